//! The packed forms of this rank's shards: each is made when the first file needs it, and kept until the last file has been written.
#![forbid(unsafe_code)]

use super::chunking::{DeviceTables, Looked, Looking};
use super::report::Reporter;
use super::setup::Setup;
use super::stats::Stats;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Digest};
use crate::catalog::{Folder, Moment};
use crate::config::{Compress, Method};
use crate::device::Device;
use crate::format::shard::Head;
use crate::format::{Region, RegionKind, SourceKey};
use crate::reduction::{
    Chunks, Extents, Field, Found, Methods, Question, Versions, Way, Worth, all_own, chunk_that_fits, extents,
};
use crate::tier::names::Series;
use crate::tier::packing::{PackedShard, pack};
use crate::tier::source::{MemoryShard, Source};
use crate::tier::{Tier, TierError, TierId};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the files of a checkpoint may refer to, until it is decided what they store.
enum Form {
    /// The root's choice.
    Chosen(Vec<SourceKey>),
    Decided(Decided),
}

/// What the files of a checkpoint store.
#[derive(Default)]
struct Decided {
    /// Which parts of the shard the files store; `None`: all of it.
    extents: Option<Extents>,
    /// The packed forms of the shard, by whether compression was requested; `None`: files store it as it is in memory.
    packed: HashMap<bool, Option<PackedShard>>,
}

struct State {
    series: HashMap<String, Versions>,
    forms: HashMap<u64, Form>,
    /// For shards that are still to be decided on, what was found on the device, and the names of their series.
    looked: HashMap<u64, (String, Found)>,
    methods: Methods,
    /// The application's wishes for regions of shards that are under way.
    wishes: HashMap<u64, Vec<(String, Method)>>,
    /// The way chosen for each region of these shards.
    ways: HashMap<u64, BTreeMap<String, Way>>,
}

impl State {
    fn wish(&self, operation: u64, region: &str) -> Option<Method> {
        let wishes = self.wishes.get(&operation)?;
        wishes.iter().rev().find(|(wished, _)| wished == region).map(|(_, method)| *method)
    }

    /// How to look for unchanged parts of a region of a shard, whose blocks have these digests. Decided only once for each region.
    fn way(&mut self, name: &str, operation: u64, region: &str, bytes: u64, blocks: &[Digest]) -> Way {
        if let Some(way) = self.ways.get(&operation).and_then(|ways| ways.get(region)) {
            return *way;
        }
        let wish = self.wish(operation, region);
        let State { series, methods, ways, .. } = self;
        let changed = || series.get(name)?.changed(operation, region, bytes, blocks);
        let way = methods.way(name, region, wish, changed);
        ways.entry(operation).or_default().insert(region.to_owned(), way);
        way
    }

    /// How to look for unchanged parts of each region of a shard that may be left to earlier files.
    fn ways(&mut self, name: &str, head: &Head) -> BTreeMap<String, Way> {
        let (operation, block) = (head.header.key.operation, u64::from(head.header.block_size));
        let arrays = head.meta.regions.iter().filter(|region| region.kind == RegionKind::Array);
        let way = |region: &Region| {
            let first = region.first_block as usize;
            let blocks = &head.digests[first..first + region.blocks(block) as usize];
            (region.name.clone(), self.way(name, operation, &region.name, region.bytes, blocks))
        };
        arrays.map(way).collect()
    }
}

/// What this rank knows about the contents of its files.
pub(super) struct Reducer {
    is_on: bool,
    /// The way for regions for which nothing else is specified.
    way: Way,
    /// Bytes that the tables of a series may take.
    budget: u64,
    has_said: AtomicBool,
    has_said_off: AtomicBool,
    compress: Compress,
    worth: Lock<Worth>,
    setup: Arc<Setup>,
    reporter: Arc<Reporter>,
    state: Lock<State>,
    /// The chunks of those regions of each series that are examined in the same way; `None`: there is no room for their tables.
    chunks: Lock<HashMap<(String, Way), Option<Chunks>>>,
    /// The chunks of regions in device memory.
    on_device: Option<DeviceTables>,
}

impl Reducer {
    pub fn new(setup: &Arc<Setup>, reporter: &Arc<Reporter>) -> Reducer {
        let reduction = &setup.config.job.reduction;
        let (compress, way) = (reduction.compress, Way::of(reduction.method, reduction.chunk));
        let budget = setup.config.node.reduction_budget.of(setup.memory_share());
        let on_device = match way {
            Way::Chunks { grouping, chunk } => {
                Some(DeviceTables::new(grouping, chunk, setup.config.node.device_tables))
            }
            Way::Full | Way::Blocks => None,
        };
        let state = State {
            series: HashMap::new(),
            forms: HashMap::new(),
            looked: HashMap::new(),
            methods: Methods::new(reduction),
            wishes: HashMap::new(),
            ways: HashMap::new(),
        };
        Reducer {
            is_on: reduction.is_on(),
            way,
            budget,
            has_said: AtomicBool::new(false),
            has_said_off: AtomicBool::new(false),
            compress,
            worth: Lock::default(),
            setup: setup.clone(),
            reporter: reporter.clone(),
            state: Lock::new(state),
            chunks: Lock::default(),
            on_device,
        }
    }

    /// Is the reduction of files switched on?
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Regions of a shard are to be reduced by methods other than the configured one.
    pub fn wish(&self, operation: u64, wishes: Vec<(String, Method)>) {
        if self.is_on {
            self.state.lock().wishes.insert(operation, wishes);
        } else if !self.has_said_off.swap(true, Ordering::Relaxed) {
            let region = wishes.first().map_or("", |(region, _)| region);
            log::warn!(
                "event=reduction-off region={region:?}: the program asks for a method, and reduction.method is full: set it, or name a region in \
                 reduction.regions; said once"
            );
        }
    }

    /// Is it useful to examine the regions in device memory?
    pub fn looks_on_devices(&self) -> bool {
        self.on_device.is_some()
    }

    /// May a capture leave out what has not changed since this version? It may not if a device has last looked at another version, or is
    /// about to do so.
    pub fn may_leave_out(&self, name: &str, since: u64) -> bool {
        self.on_device.as_ref().is_none_or(|tables| tables.is_in_step(name, since))
    }

    /// Regions of a shard in device memory did not find room in the cache, so they are not examined there.
    pub fn found_no_room(&self, name: &str) {
        if let Some(tables) = &self.on_device {
            tables.found_no_room(name);
        }
    }

    /// Examines regions of a shard in device memory before the shard is captured, and returns how long that took; `None` if it was
    /// impossible or not worthwhile.
    ///
    /// # Blocking
    /// For the device.
    pub fn look(&self, device: &dyn Device, looking: Looking<'_>) -> Option<Duration> {
        let tables = self.on_device.as_ref()?;
        let (name, operation) = (looking.name.to_owned(), looking.operation);
        let mut looking = looking;
        let expected = {
            let mut state = self.state.lock();
            let mut is_worth_it = false;
            looking.fields.retain(|Field { name: region, bytes, blocks, .. }| {
                let (method, chunk) = state.methods.asked(&name, region, state.wish(operation, region));
                let is_looked_at = Way::of(method, chunk) == self.way;
                is_worth_it |= is_looked_at && state.way(&name, operation, region, *bytes, blocks).is_chunked();
                is_looked_at
            });
            if !is_worth_it {
                return None;
            }
            let captured = state.series.get(&name).map(Versions::expected).unwrap_or_default();
            let later = state.looked.iter().filter(|(_, (other, _))| *other == name).map(|(operation, _)| *operation);
            let mut expected: Vec<u64> = captured.into_iter().chain(later).filter(|other| *other < operation).collect();
            expected.sort_unstable();
            expected.dedup();
            expected
        };
        let Looked { found, took } = tables.look(device, looking, expected)?;
        log::debug!("event=looked-on-device operation={operation} seconds={:.6}", took.as_secs_f64());
        self.state.lock().looked.insert(operation, (name, found));
        Some(took)
    }

    /// A shard was captured. Returns what this rank says about the shard with its vote ([`super::core::References::choose`]).
    pub fn captured(&self, source: &Source) -> Vec<(u64, u64)> {
        if !self.is_on {
            return Vec::new();
        }
        let head: Arc<Head> = source.shared_head();
        let key = SourceKey { key: head.header.key, agreement: head.header.agreement };
        let (name, operation) = (head.meta.name.clone(), key.key.operation);
        let mut state = self.state.lock();
        let ways = state.ways(&name, &head);
        let State { series, looked: found, .. } = &mut *state;
        let versions = series.entry(name).or_default();
        if ways.values().any(|way| way.is_chunked()) {
            versions.by_chunks();
        }
        versions.captured(key, head, matches!(source, Source::File(_)));
        let is_asked = |region: &str| ways.get(region).is_some_and(|way| *way != Way::Full);
        versions.uses(operation, found.get(&operation).map(|(_, found)| found), is_asked)
    }

    /// A checkpoint goes to files. They refer to nothing unless a choice follows.
    pub fn planned(&self, operation: u64) {
        if self.compress != Compress::Off {
            self.chosen(operation, Vec::new());
        }
    }

    /// Is the next file on a tier to be compressed, if bytes are written there at this bandwidth?
    pub fn is_compressed(&self, bandwidth: impl FnOnce() -> Option<f64>) -> bool {
        match self.compress {
            Compress::Off => false,
            Compress::On => true,
            Compress::Auto => {
                let bandwidth = bandwidth();
                self.worth.lock().pays(bandwidth)
            }
        }
    }

    /// Files of a checkpoint may refer to these checkpoints.
    pub fn chosen(&self, operation: u64, sources: Vec<SourceKey>) {
        self.state.lock().forms.insert(operation, Form::Chosen(sources));
    }

    /// The packed form of a shard, compressed or not; `None` if its files store all of it.
    ///
    /// # Blocking
    /// The first time, for reading what has changed and for compressing.
    ///
    /// # Errors
    /// [`TierError`]: the shard is damaged.
    pub fn packed(
        &self,
        name: &str,
        operation: u64,
        shard: &MemoryShard,
        compress: bool,
    ) -> Result<Option<PackedShard>, TierError> {
        let (form, looked) = {
            let State { forms, looked, .. } = &mut *self.state.lock();
            let Some(form) = forms.get_mut(&operation) else { return Ok(None) };
            if let Form::Decided(Decided { packed, .. }) = form
                && let Some(packed) = packed.get(&compress)
            {
                return Ok(packed.clone());
            }
            // Callers that ask in the meantime write the shard whole.
            let form = std::mem::replace(form, Form::Decided(Decided::default()));
            (form, looked.remove(&operation).map(|(_, found)| found).unwrap_or_default())
        };
        let (mut decided, allowed) = match form {
            Form::Chosen(sources) => {
                let (extents, allowed) = self.decide(name, operation, shard, &sources, &looked)?;
                (Decided { extents, ..Decided::default() }, allowed)
            }
            Form::Decided(decided) => (decided, Vec::new()),
        };
        let is_first = decided.packed.is_empty();
        let room = if compress { self.budget } else { 0 };
        let packed = self.pack(operation, shard, decided.extents.as_ref(), room)?;
        let is_whole = decided.extents.is_none() || (is_first && packed.is_none());
        if let Some(tables) = self.on_device.as_ref().filter(|_| !looked.is_empty()) {
            tables.decided(name, operation, &looked, &allowed, is_whole);
        }
        let mut state = self.state.lock();
        if is_whole && decided.extents.take().is_some() {
            let versions = state.series.entry(name.to_owned()).or_default();
            versions.missed();
            versions.whole(operation);
        }
        decided.packed.insert(compress, packed.clone());
        if let Some(form) = state.forms.get_mut(&operation) {
            *form = Form::Decided(decided);
        }
        Ok(packed)
    }

    /// How many bytes the results of compression may take in total until the file is written.
    pub fn room(&self) -> u64 {
        self.budget
    }

    /// A shard of any rank of this node, compressed into at most `room` bytes, in a file that refers to no others; `None` if that is no
    /// shorter.
    ///
    /// # Blocking
    /// For compressing.
    ///
    /// # Errors
    /// [`TierError`]: the shard is damaged.
    pub fn compressed(&self, operation: u64, shard: &MemoryShard, room: u64) -> Result<Option<PackedShard>, TierError> {
        self.pack(operation, shard, None, room)
    }

    /// Packs a shard whose file stores what `extents` say, or all of it. If `room` is not zero, the file is compressed into at most that
    /// many bytes. `None` if the packed form is no shorter.
    fn pack(
        &self,
        operation: u64,
        shard: &MemoryShard,
        extents: Option<&Extents>,
        room: u64,
    ) -> Result<Option<PackedShard>, TierError> {
        let compress = room > 0;
        let begun = self.setup.now();
        let packed = match extents {
            Some(Extents { sources, extents }) => pack(shard, sources.clone(), extents, room),
            None if compress => pack(shard, Vec::new(), &all_own(shard.head()), room),
            None => return Ok(None),
        };
        let packed = match packed {
            Ok(packed) => packed,
            // There are more extents than the format can hold.
            Err(TierError::Format { source, .. }) => {
                log::debug!("event=not-packed operation={operation} error={source}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if compress {
            let (own, stored) = (packed.packing.own_bytes(), packed.packing.stored_bytes());
            let took = self.setup.now().saturating_sub(begun);
            self.worth.lock().measured(own, stored, took.as_secs_f64());
            self.reporter.count(|Stats { reduction, .. }| {
                reduction.compressed_from += own;
                reduction.compressed_to += stored;
                reduction.compress_time += took;
            });
        }
        // The description of a packed shard may take more than packing saves. Its place in a container has the length of the whole shard.
        Ok(Some(packed).filter(|packed| packed.shard.head().header.total_len < shard.head().header.total_len))
    }

    /// Decides which parts of a shard its file stores itself, and where the rest is, given the sources that it may refer to. Also returns
    /// the sources to which it may in fact refer. `looked` is what was found on the device of the shard's regions there.
    fn decide(
        &self,
        name: &str,
        operation: u64,
        shard: &MemoryShard,
        sources: &[SourceKey],
        looked: &Found,
    ) -> Result<(Option<Extents>, Vec<u64>), TierError> {
        let head = shard.head();
        // A shard that the device was to examine but has not costs no table here.
        let was_missed = looked.is_empty() && self.on_device.as_ref().is_some_and(|tables| tables.has(name));
        let (known, mut ways) = {
            let mut state = self.state.lock();
            let mut ways = state.ways(name, head);
            ways.retain(|region, way| *way != Way::Full && !looked.contains_key(region));
            if was_missed {
                ways.values_mut().for_each(|way| *way = Way::Blocks);
            }
            let is_chunked = ways.values().any(|way| way.is_chunked());
            let versions = state.series.entry(name.to_owned()).or_default();
            let known = versions.known(sources);
            versions.chosen(known.iter().map(|source| source.key.operation).collect());
            if known.is_empty() && looked.is_empty() && !(is_chunked && versions.is_worth_a_look()) {
                versions.passed_over(operation);
                return Ok((None, Vec::new()));
            }
            (known, ways)
        };
        let allowed: Vec<u64> = known.iter().map(|source| source.key.operation).collect();
        let mut found = looked.clone();
        let chunked: HashSet<Way> = ways.values().copied().filter(|way| way.is_chunked()).collect();
        for way in &chunked {
            let budget = self.budget / chunked.len() as u64;
            let is_asked = |region: &str| ways.get(region) == Some(way);
            let stored =
                self.state.lock().series.get(name).map(|versions| versions.unchanged(operation, &known, is_asked));
            let asked = Question {
                operation,
                allowed: allowed.clone(),
                block: head.header.block_size.into(),
                fields: Field::of(head, is_asked),
                known: stored.unwrap_or_default(),
                kept: None,
            };
            match self.look_here(name, shard, asked, *way, budget)? {
                Some(here) => found.extend(here),
                None => ways.values_mut().filter(|other| *other == way).for_each(|other| *other = Way::Blocks),
            }
        }
        let mut state = self.state.lock();
        let versions = state.series.entry(name.to_owned()).or_default();
        found.extend(versions.unchanged(operation, &known, |region| ways.get(region) == Some(&Way::Blocks)));
        let decided = match extents(head, &found, &allowed) {
            Some(extents) => versions.decided(operation, &known, extents),
            None => {
                if !allowed.is_empty() {
                    versions.missed();
                }
                versions.whole(operation);
                None
            }
        };
        Ok((decided, allowed))
    }

    /// Looks for chunks of those fields of a shard that are asked for; `None`, after a message in the log, if there is no room for the
    /// tables.
    fn look_here(
        &self,
        name: &str,
        shard: &MemoryShard,
        asked: Question,
        way: Way,
        budget: u64,
    ) -> Result<Option<Found>, TierError> {
        let Way::Chunks { grouping, chunk } = way else { return Ok(None) };
        let head = shard.head();
        let bytes: u64 = asked.fields.iter().map(|field| field.bytes).sum();
        if bytes == 0 {
            return Ok(Some(Found::new()));
        }
        let length = head.header.total_len - head.header.body_offset;
        let bodies = shard.part(head.header.body_offset as usize, length as usize)?;
        let new_table = || {
            let chunk = chunk_that_fits(bytes, budget, chunk, grouping);
            chunk.map(|chunk| Chunks::new(chunk, grouping, bytes, budget))
        };
        let mut chunks = self.chunks.lock();
        let table = chunks.entry((name.to_owned(), way)).or_insert_with(new_table);
        // A shard that has grown may need longer tables.
        if table.as_ref().is_some_and(|table| !table.has_room_for(bytes)) {
            *table = new_table();
        }
        let Some(table) = table else {
            // After the lock is released, because logging takes locks of its own.
            drop(chunks);
            self.say_by_blocks(bytes);
            return Ok(None);
        };
        let read = |field: usize, index: u64| {
            Ok::<_, Infallible>(Cow::Borrowed(&bodies[asked.fields[field].block(index, asked.block)]))
        };
        let Ok(found) = table.look(&asked, read);
        Ok(Some(found))
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

    /// No file needs the packed form of this checkpoint any more.
    pub fn written(&self, operation: u64) {
        let mut state = self.state.lock();
        state.forms.remove(&operation);
        state.looked.remove(&operation);
        state.wishes.remove(&operation);
        state.ways.remove(&operation);
        state.series.values_mut().for_each(|versions| versions.forget_undecided(operation));
    }

    /// Only these versions of a series, and later ones, are still of use.
    pub fn keep(&self, name: &str, operations: &[u64]) {
        if let Some(versions) = self.state.lock().series.get_mut(name) {
            versions.keep(operations);
        }
    }
}

/// The checkpoints that others need according to their manifests. Each manifest is read once, because the manifest of a folder never
/// changes.
#[derive(Default)]
pub(super) struct Manifests(Lock<HashMap<(TierId, Series, Moment), Vec<Moment>>>);

impl Manifests {
    /// The checkpoints without which a committed checkpoint cannot be restored; `None` if its manifest cannot be read.
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
        let manifest = manifest.inspect_err(|error| match error.is_absent() {
            // Another rank's retention was faster.
            true => log::debug!("event=manifest-gone error={error}"),
            false => log::warn!("event=manifest-unusable error={error}"),
        });
        let manifest = manifest.ok()?;
        let needs: Vec<Moment> = manifest.sources.iter().map(|source| Moment::of(&source.key)).collect();
        self.0.lock().insert(place, needs.clone());
        Some(needs)
    }
}
