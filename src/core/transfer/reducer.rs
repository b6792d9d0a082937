//! The packed forms of this rank's shards: made when the first file needs one, kept until the last one has it.
#![forbid(unsafe_code)]

use super::setup::Setup;
use crate::base::CheckpointKey;
use crate::base::log;
use crate::base::sync::Lock;
use crate::catalog::{Folder, Moment};
use crate::config::{Method, ReductionConfig};
use crate::format::SourceKey;
use crate::format::shard::Head;
use crate::reduction::{Chunks, Extents, Grouping, Versions, chunk_that_fits};
use crate::tier::names::Series;
use crate::tier::packing::pack;
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{Tier, TierError, TierId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What files of a checkpoint may refer to, and what became of it.
enum Form {
    /// The root's choice.
    Chosen(Vec<SourceKey>),
    /// Decided: `None` if it is whole.
    Decided(Option<Extents>),
    Packed(FileShard),
}

#[derive(Default)]
struct State {
    series: HashMap<String, Versions>,
    forms: HashMap<u64, Form>,
}

/// What this rank knows of what its files hold.
pub(super) struct Reducer {
    is_on: bool,
    /// How chunks are put together; `None`: blocks are compared.
    grouping: Option<Grouping>,
    /// The length of chunks, unless what fits is to be taken.
    chunk: Option<u64>,
    /// Bytes that the tables of a series may take.
    budget: u64,
    has_said: AtomicBool,
    state: Lock<State>,
    /// The chunks of each series; `None`: there is no room for their tables.
    chunks: Lock<HashMap<String, Option<Chunks>>>,
}

impl Reducer {
    pub fn new(setup: &Setup) -> Reducer {
        let ReductionConfig { method, chunk, .. } = setup.config.job.reduction;
        let budget = setup.config.node.reduction_budget.of(setup.memory_share());
        let grouping = match method {
            Method::Full | Method::Basic => None,
            Method::List => Some(Grouping::List),
            Method::Tree => Some(Grouping::Tree),
        };
        Reducer {
            is_on: method != Method::Full,
            grouping,
            chunk,
            budget,
            has_said: AtomicBool::new(false),
            state: Lock::default(),
            chunks: Lock::default(),
        }
    }

    /// A shard was captured: what this rank says of it with its vote ([`super::core::References::choose`]).
    pub fn captured(&self, source: &Source) -> Vec<(u64, u64)> {
        if !self.is_on {
            return Vec::new();
        }
        let head: Arc<Head> = source.shared_head();
        let key = SourceKey { key: head.header.key, agreement: head.header.agreement };
        let (name, operation) = (head.meta.name.clone(), key.key.operation);
        let mut state = self.state.lock();
        let versions = state.series.entry(name).or_insert_with(|| Versions::new(self.grouping.is_some()));
        versions.captured(key, head, matches!(source, Source::File(_)));
        versions.uses(operation)
    }

    /// Files of a checkpoint may refer to these.
    pub fn chosen(&self, operation: u64, sources: Vec<SourceKey>) {
        self.state.lock().forms.insert(operation, Form::Chosen(sources));
    }

    /// The packed form of a shard; `None` if its files hold it whole.
    ///
    /// # Blocking
    /// The first time, for reading what has changed.
    ///
    /// # Errors
    /// [`TierError`]: the shard is damaged.
    pub fn packed(&self, name: &str, operation: u64, shard: &MemoryShard) -> Result<Option<FileShard>, TierError> {
        let chosen = match self.state.lock().forms.get_mut(&operation) {
            None => return Ok(None),
            Some(Form::Packed(packed)) => return Ok(Some(packed.clone())),
            Some(form) => std::mem::replace(form, Form::Decided(None)),
        };
        let decided = match chosen {
            Form::Chosen(sources) => self.decide(name, operation, shard, &sources)?,
            Form::Decided(decided) => decided,
            Form::Packed(_) => None,
        };
        let is_reduced = decided.is_some();
        let packed = match decided.map(|Extents { sources, extents }| pack(shard, sources, &extents)).transpose() {
            // What it says of itself may take more than it saves. Its place in a container is that of the whole shard.
            Ok(packed) => packed.filter(|packed| packed.head().header.total_len < shard.head().header.total_len),
            // More extents than the format can hold.
            Err(TierError::Format { source, .. }) => {
                log::debug!("event=not-packed operation={operation} error={source}");
                None
            }
            Err(error) => return Err(error),
        };
        let mut state = self.state.lock();
        if is_reduced && packed.is_none() {
            let versions = state.series.entry(name.to_owned()).or_default();
            versions.missed();
            versions.whole(operation);
        }
        if let (Some(form), Some(packed)) = (state.forms.get_mut(&operation), &packed) {
            *form = Form::Packed(packed.clone());
        }
        Ok(packed)
    }

    /// What the file of a shard stores itself, and where the rest is, where it may refer to these.
    fn decide(
        &self,
        name: &str,
        operation: u64,
        shard: &MemoryShard,
        sources: &[SourceKey],
    ) -> Result<Option<Extents>, TierError> {
        let Some(grouping) = self.grouping else { return Ok(self.by_blocks(name, operation, sources)) };
        let known = {
            let mut state = self.state.lock();
            let versions = state.series.entry(name.to_owned()).or_default();
            let known = versions.known(sources);
            if known.is_empty() && !versions.is_worth_a_look() {
                versions.passed_over(operation);
                return Ok(None);
            }
            known
        };
        let allowed: Vec<u64> = known.iter().map(|source| source.key.operation).collect();
        let head = shard.head();
        let length = head.header.total_len - head.header.body_offset;
        let bodies = shard.part(head.header.body_offset as usize, length as usize)?;
        let found = {
            let mut chunks = self.chunks.lock();
            let table = chunks.entry(name.to_owned()).or_insert_with(|| self.table(length, grouping));
            // A shard that has grown may need longer ones.
            if table.as_ref().is_some_and(|table| !table.has_room_for(length)) {
                *table = self.table(length, grouping);
            }
            match table {
                Some(table) => table.look(operation, head, bodies, &allowed),
                None => {
                    // Behind the lock: whoever writes the log has locks of its own.
                    drop(chunks);
                    self.say_by_blocks(length);
                    return Ok(self.by_blocks(name, operation, sources));
                }
            }
        };
        let mut state = self.state.lock();
        let versions = state.series.entry(name.to_owned()).or_default();
        match found {
            Some(extents) => Ok(versions.decided(operation, &known, extents)),
            None => {
                if !allowed.is_empty() {
                    versions.missed();
                }
                versions.whole(operation);
                Ok(None)
            }
        }
    }

    fn by_blocks(&self, name: &str, operation: u64, sources: &[SourceKey]) -> Option<Extents> {
        self.state.lock().series.get_mut(name).and_then(|versions| versions.decide(operation, sources))
    }

    /// Says once that there is no room for the tables of chunks.
    fn say_by_blocks(&self, bytes: u64) {
        if !self.has_said.swap(true, Ordering::Relaxed) {
            let budget = self.budget;
            log::warn!(
                "event=reduction-by-blocks bytes={bytes} budget={budget}: the tables of chunks do not fit into reduction.host_budget"
            );
        }
    }

    fn table(&self, bytes: u64, grouping: Grouping) -> Option<Chunks> {
        let chunk = chunk_that_fits(bytes, self.budget, self.chunk, grouping);
        chunk.map(|chunk| Chunks::new(chunk, grouping, bytes, self.budget))
    }

    /// No file needs the packed form any more.
    pub fn written(&self, operation: u64) {
        let mut state = self.state.lock();
        state.forms.remove(&operation);
        state.series.values_mut().for_each(|versions| versions.forget_undecided(operation));
    }

    /// Of a series only these are of use, and what is later.
    pub fn keep(&self, name: &str, operations: &[u64]) {
        if let Some(versions) = self.state.lock().series.get_mut(name) {
            versions.keep(operations);
        }
    }
}

/// What manifests say that checkpoints need, each read once: a folder's manifest never changes.
#[derive(Default)]
pub(super) struct Manifests(Lock<HashMap<(TierId, Series, Moment), Vec<Moment>>>);

impl Manifests {
    /// What a committed checkpoint cannot be restored without; `None` if its manifest cannot be read.
    ///
    /// # Blocking
    /// On the tier, the first time.
    pub fn needs(&self, tier: &dyn Tier, series: &Series, folder: &Folder) -> Option<Vec<Moment>> {
        let place = (tier.kind(), series.clone(), folder.taken());
        if let Some(known) = self.0.lock().get(&place) {
            return Some(known.clone());
        }
        let Folder { generation, version, operation, .. } = *folder;
        let name = CheckpointKey { generation, version, operation, ..CheckpointKey::default() }.folder();
        let manifest = tier.read_manifest(series, &name);
        let manifest = manifest.inspect_err(|error| log::warn!("event=manifest-unusable error={error}")).ok()?;
        let needs: Vec<Moment> = manifest.sources.iter().map(|source| Moment::of(&source.key)).collect();
        self.0.lock().insert(place, needs.clone());
        Some(needs)
    }
}
