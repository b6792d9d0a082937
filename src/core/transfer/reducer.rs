//! The packed forms of this rank's shards: made when the first file needs one, kept until the last one has it.
#![forbid(unsafe_code)]

use crate::base::CheckpointKey;
use crate::base::log;
use crate::base::sync::Lock;
use crate::catalog::{Folder, Moment};
use crate::config::{JobConfig, Method};
use crate::format::SourceKey;
use crate::format::shard::Head;
use crate::reduction::{Extents, Versions};
use crate::tier::names::Series;
use crate::tier::packing::pack;
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{Tier, TierError, TierId};
use std::collections::HashMap;
use std::sync::Arc;

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
    state: Lock<State>,
}

impl Reducer {
    pub fn new(job: &JobConfig) -> Reducer {
        Reducer { is_on: job.reduction.method != Method::Full, state: Lock::default() }
    }

    /// A shard was captured: what this rank says of it with its vote ([`super::core::References::choose`]).
    pub fn captured(&self, source: &Source) -> Vec<(u64, u64)> {
        if !self.is_on {
            return Vec::new();
        }
        let head: Arc<Head> = source.shared_head();
        let key = SourceKey { key: head.header.key, agreement: head.header.agreement };
        let (name, operation) = (head.meta.name.clone(), key.key.operation);
        let total = head.meta.regions.iter().map(|region| region.bytes).sum();
        let mut state = self.state.lock();
        let versions = state.series.entry(name).or_default();
        versions.captured(key, head, matches!(source, Source::File(_)));
        let mut uses = versions.uses(operation);
        uses.push((operation, total));
        uses
    }

    /// Files of a checkpoint may refer to these.
    pub fn chosen(&self, operation: u64, sources: Vec<SourceKey>) {
        self.state.lock().forms.insert(operation, Form::Chosen(sources));
    }

    /// The packed form of a shard; `None` if its files hold it whole.
    ///
    /// # Blocking
    /// The first time, for reading what is not packed by whole blocks.
    ///
    /// # Errors
    /// [`TierError`]: the shard is damaged.
    pub fn packed(&self, name: &str, operation: u64, shard: &MemoryShard) -> Result<Option<FileShard>, TierError> {
        let decided = {
            let mut state = self.state.lock();
            let State { series, forms } = &mut *state;
            match forms.get_mut(&operation) {
                None => return Ok(None),
                Some(Form::Packed(packed)) => return Ok(Some(packed.clone())),
                Some(Form::Decided(decided)) => decided.clone(),
                Some(form @ Form::Chosen(_)) => {
                    let Form::Chosen(sources) = std::mem::replace(form, Form::Decided(None)) else { return Ok(None) };
                    let decided = series.get_mut(name).and_then(|versions| versions.decide(operation, &sources));
                    *form = Form::Decided(decided.clone());
                    decided
                }
            }
        };
        let Some(Extents { sources, extents }) = decided else { return Ok(None) };
        let packed = pack(shard, sources, &extents)?;
        // What it says of itself may take more than it saves. Its place in a container is that of the whole shard.
        if packed.head().header.total_len >= shard.head().header.total_len {
            let mut state = self.state.lock();
            state.forms.insert(operation, Form::Decided(None));
            if let Some(versions) = state.series.get_mut(name) {
                versions.whole(operation);
            }
            return Ok(None);
        }
        if let Some(form) = self.state.lock().forms.get_mut(&operation) {
            *form = Form::Packed(packed.clone());
        }
        Ok(Some(packed))
    }

    /// No file needs the packed form any more.
    pub fn written(&self, operation: u64) {
        self.state.lock().forms.remove(&operation);
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
