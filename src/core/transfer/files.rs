//! The level of a tier of files: this rank's shard in a file of its own, or in a container with those of its node.
#![forbid(unsafe_code)]

use super::core::{Facts, References};
use super::lanes::Lanes;
use super::level::{Done, LevelWork, Opened};
use super::node::NodeContainer;
use super::reducer::Reducer;
use super::report::Reporter;
use super::setup::{Identity, Setup};
use super::shards::Shards;
use super::stats::Stats;
use super::work::Task;
use super::write::{Together, WriteJob, WriteSpec, Written};
use crate::base::Rank;
use crate::base::log;
use crate::base::sync::Lock;
use crate::config::{Compress, Verify};
use crate::format::packed::Packing;
use crate::format::shard::Head;
use crate::format::{ContainerEntry, ContainerInfo, Content};
use crate::segment::{OldBytes, OldSegment, OldSlot, SlotState};
use crate::tier::names::{node_file, rank_file};
use crate::tier::packing::PackedShard;
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{Gathering, Tier, TierError, TierId, Upload, Writers, check_sources};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// For how many series the time at which their last file was begun is remembered.
const SERIES_MAX: usize = 1024;

/// One tier of files.
pub(super) struct FileLevel {
    setup: Arc<Setup>,
    tier: Arc<dyn Tier>,
    shards: Arc<Shards>,
    reducer: Arc<Reducer>,
    lanes: Arc<Lanes>,
    reporter: Arc<Reporter>,
    /// The node containers for which this rank waits for others of the node, and since when it waits.
    awaited: Lock<Vec<(u64, NodeContainer, Duration)>>,
    /// When the last file of each series was begun.
    written: Lock<HashMap<String, Duration>>,
}

impl FileLevel {
    pub fn new(
        setup: &Arc<Setup>,
        tier: &Arc<dyn Tier>,
        shards: &Arc<Shards>,
        reducer: &Arc<Reducer>,
        lanes: &Arc<Lanes>,
        reporter: &Arc<Reporter>,
    ) -> FileLevel {
        FileLevel {
            setup: setup.clone(),
            tier: tier.clone(),
            shards: shards.clone(),
            reducer: reducer.clone(),
            lanes: lanes.clone(),
            reporter: reporter.clone(),
            awaited: Lock::default(),
            written: Lock::default(),
        }
    }

    fn kind(&self) -> TierId {
        self.tier.kind()
    }

    fn done(&self, operation: u64, written: Result<Vec<ContainerInfo>, String>) -> Done {
        Done::Written { operation, tier: self.kind(), written }
    }

    /// The container that the ranks of this node write together, if they do so, and all entries of the container.
    fn node_container(&self, of: &Facts) -> Option<(Together, Vec<ContainerEntry>)> {
        let together = match self.kind().spec().gathering {
            Gathering::Apart => return None,
            Gathering::Slices => Together::Slice,
            Gathering::ByOne => Together::ForAll,
        };
        let Identity { rank, node_ranks, .. } = &self.setup.identity;
        let segment = self.setup.memory.as_ref()?;
        let (node, entries) = NodeContainer::of(segment, self.kind(), of.key, *rank, node_ranks)?;
        Some((together(node), entries))
    }

    /// Opens the container that one rank of the node writes for all.
    fn open_for_all(
        &self,
        of: &Facts,
        node: NodeContainer,
        mut entries: Vec<ContainerEntry>,
    ) -> Result<Opened, TierError> {
        if entries[0].rank != self.setup.rank() {
            return Ok(Opened::Waits(node));
        }
        let mut sources = self.shards_of_node(of, &entries);
        if let Ok(shards) = &mut sources
            && let Err(error) = self.compress(of, shards)
        {
            sources = Err(error);
        }
        let mut offset = 0;
        for (entry, (_, source)) in entries.iter_mut().zip(sources.iter().flatten()) {
            entry.offset = offset;
            entry.length = source.head().header.total_len;
            offset += entry.length;
        }
        self.open_together(of, Together::ForAll(node), entries, sources)
    }

    /// Opens this rank's part of a container of the node, which consists of these shards.
    fn open_together(
        &self,
        of: &Facts,
        together: Together,
        entries: Vec<ContainerEntry>,
        sources: Result<Vec<(Rank, Source)>, TierError>,
    ) -> Result<Opened, TierError> {
        let (node, writers) = match &together {
            Together::ForAll(node) => (node, Writers::One),
            Together::Slice(node) => (node, Writers::Node),
        };
        let file = node_file(entries[0].rank);
        let path = self.tier.folder_path(&of.series, &of.key).join(&file);
        let begun = sources.map_err(|error| (error, Left::Others)).and_then(|sources| {
            let upload = self.tier.begin(&path, writers).map_err(|error| (error, Left::Others))?;
            let shared = Some(together.clone());
            let spec = self.spec(of, sources, upload, file, entries, shared);
            WriteJob::new(spec).map_err(|refused| (refused.0, Left::Ours(refused.1)))
        });
        begun.map(|job| Opened::Job(Box::new(job))).map_err(|(error, left)| {
            let is_last = match &together {
                Together::Slice(_) => node.fail(),
                Together::ForAll(_) => {
                    node.settle(false);
                    true
                }
            };
            match left {
                Left::Ours(upload) if is_last => upload.discard(),
                // The other ranks of the node have left the discarding to the last one.
                Left::Others if is_last => self.tier.discard(&path),
                _ => {}
            }
            error
        })
    }

    fn spec(
        &self,
        of: &Facts,
        sources: Vec<(Rank, Source)>,
        upload: Box<dyn Upload>,
        file: String,
        entries: Vec<ContainerEntry>,
        shared: Option<Together>,
    ) -> WriteSpec {
        WriteSpec {
            operation: of.key.operation,
            tier: self.kind(),
            started: self.setup.now(),
            sources,
            upload,
            file,
            entries,
            shared,
            write_bytes: self.setup.config.node.write_bytes,
        }
    }

    /// The shards in node memory to which these entries of a container belong.
    fn shards_of_node(&self, of: &Facts, entries: &[ContainerEntry]) -> Result<Vec<(Rank, Source)>, TierError> {
        let Some(segment) = &self.setup.memory else { return Ok(Vec::new()) };
        let path = segment.path();
        let io = |source| TierError::io(TierId::MEMORY, "read", path, source);
        let directory = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let view = OldSegment::open(directory, name).map_err(|error| io(std::io::Error::other(error.to_string())))?;
        let view = Arc::new(view);
        let is_it = |slot: &&OldSlot| slot.state == SlotState::Sealed && slot.operation == of.key.operation;
        let mut shards: BTreeMap<Rank, MemoryShard> = BTreeMap::new();
        for slot in view.slots().iter().filter(is_it) {
            let shard = MemoryShard::open_any(path, OldBytes::new(&view, slot))?;
            // Node memory also contains parts that are kept for ranks of other nodes.
            let header = &shard.head().header;
            if header.key == of.key && header.content == Content::Shard && shard.head().meta.name == of.series.name {
                shards.insert(header.rank, shard);
            }
        }
        let shard_of = |entry: &ContainerEntry| {
            let gone = || io(std::io::Error::other(format!("the shard of rank {} is gone", entry.rank)));
            shards.remove(&entry.rank).map(|shard| (entry.rank, Source::Memory(shard))).ok_or_else(gone)
        };
        entries.iter().map(shard_of).collect()
    }

    /// The shard as its file will contain it: packed if earlier files on this tier contain a part of it. All these files can be opened now.
    fn reduced(&self, of: &Facts, source: Source) -> Result<Source, TierError> {
        if !References::refers_on(self.kind()) {
            let mut alone = [(self.setup.rank(), source)];
            self.compress(of, &mut alone)?;
            let [(_, source)] = alone;
            return Ok(source);
        }
        let Source::Memory(shard) = &source else { return Ok(source) };
        let compress = self.is_compressed();
        let packed = self.reducer.packed(&of.series.name, of.key.operation, shard, compress)?;
        let packed = match packed {
            Some(packed) if self.is_right(of, shard, &packed.packing)? => Some(packed.shard),
            _ => None,
        };
        self.count(shard.head(), packed.as_ref().map(FileShard::head));
        self.count_share(of, shard.head(), packed.as_ref().map(FileShard::head));
        Ok(packed.map_or(source, Source::File))
    }

    /// Compresses shards for a file that refers to no others, if compression is requested and useful, within the bytes that all compressed
    /// data may take.
    fn compress(&self, of: &Facts, sources: &mut [(Rank, Source)]) -> Result<(), TierError> {
        let mut room = if self.is_compressed() { self.reducer.room() } else { 0 };
        for (_, source) in sources {
            let Source::Memory(shard) = source else { continue };
            let packed = match room {
                0 => None,
                room => self.reducer.compressed(of.key.operation, shard, room)?,
            };
            self.count(shard.head(), packed.as_ref().map(|packed| packed.shard.head()));
            if let Some(PackedShard { shard, packing }) = packed {
                let compressed = packing.frames.iter().filter(|frame| frame.is_compressed());
                room = room.saturating_sub(compressed.map(|frame| frame.stored).sum());
                *source = Source::File(shard);
            }
        }
        Ok(())
    }

    /// Is the next file to be compressed?
    fn is_compressed(&self) -> bool {
        self.reducer.is_compressed(|| self.reporter.count(|stats| stats.bandwidth(self.kind())))
    }

    /// Does what a packed shard refers to exist, and does it have the stated content? If not, the file of the shard stores the whole shard.
    fn is_right(&self, of: &Facts, shard: &MemoryShard, packing: &Packing) -> Result<bool, TierError> {
        let header = &shard.head().header;
        let bodies = match self.setup.config.job.reduction.verify {
            Verify::Digest => None,
            Verify::Bytes => {
                Some(shard.part(header.body_offset as usize, (header.total_len - header.body_offset) as usize)?)
            }
        };
        let (tier, rank) = (self.kind(), self.setup.rank());
        let wrong = check_sources(&*self.tier, &of.series, packing, bodies)?;
        if let Some(wrong) = &wrong {
            let advice = "its file holds the whole shard instead; bivouac verify says what is damaged";
            log::error!("event=reference-wrong rank={rank} tier={tier} version={} {wrong}: {advice}", of.key.version);
        }
        Ok(wrong.is_none())
    }

    fn count(&self, whole: &Head, packed: Option<&Head>) {
        let reduction = &self.setup.config.job.reduction;
        if !reduction.is_on() && reduction.compress == Compress::Off {
            return;
        }
        self.reporter.count(|Stats { reduction, .. }| {
            *(if packed.is_some() { &mut reduction.packed } else { &mut reduction.whole }) += 1;
            reduction.shard_bytes += whole.header.total_len;
            reduction.stored_bytes += packed.unwrap_or(whole).header.total_len;
        });
    }

    /// Counts how much of itself a file that may refer to earlier ones stores, by the time since the previous file of its series.
    fn count_share(&self, of: &Facts, whole: &Head, packed: Option<&Head>) {
        let now = self.setup.now();
        let before = {
            let mut written = self.written.lock();
            let is_known = written.contains_key(&of.series.name) || written.len() < SERIES_MAX;
            is_known.then(|| written.insert(of.series.name.clone(), now)).flatten()
        };
        if let (Some(before), Some(packed)) = (before, packed) {
            let share = packed.header.total_len as f64 / whole.header.total_len.max(1) as f64;
            self.reporter.count(|stats| stats.costs.on_stored(now.saturating_sub(before), share.min(1.0)));
        }
    }

    /// Opens the write of this rank's shard to a file of its own.
    fn open_alone(&self, of: &Facts, source: Source) -> Result<Opened, TierError> {
        let rank = self.setup.rank();
        let (file, length) = (rank_file(rank), source.head().header.total_len);
        let upload = self.tier.begin(&self.tier.folder_path(&of.series, &of.key).join(&file), Writers::One)?;
        let entries = vec![ContainerEntry { key: of.key, rank, offset: 0, length }];
        begin_alone(self.spec(of, vec![(rank, source)], upload, file, entries, None))
    }

    /// Publishes a shard that was written during the capture: it is already durable and only needs its name.
    fn publish_direct(&self, of: &Facts, upload: &dyn Upload) -> Result<Opened, TierError> {
        let rank = self.setup.rank();
        if let Err(error) = upload.publish() {
            upload.discard();
            return Err(error);
        }
        let file = rank_file(rank);
        let path = self.tier.folder_path(&of.series, &of.key).join(&file);
        let io = |source| TierError::io(self.kind(), "read", &path, source);
        let bytes = self.tier.stat(&path).map_err(io)?.bytes;
        Ok(Opened::Done(Written::Published(Some(ContainerInfo { file, bytes, ranks: vec![rank] }))))
    }

    /// From now on, this rank waits for the other ranks of its node.
    pub fn wait_for(&self, operation: u64, node: NodeContainer) {
        self.awaited.lock().push((operation, node, self.setup.now()));
    }

    /// Ends the wait of ranks whose slice of a node container is done. They vote when the container has its name, or when they have waited
    /// for the other ranks of the node for as long as the root waits for votes: one of the others may have died or lost touch.
    pub fn poll(&self) -> Vec<Done> {
        let mut awaited = self.awaited.lock();
        if awaited.is_empty() {
            return Vec::new();
        }
        let (now, limit) = (self.setup.now(), self.setup.config.job.timeouts.abandon);
        let is_late = |since: &Duration| now.saturating_sub(*since) >= limit;
        for (_, node, _) in awaited.iter().filter(|(.., since)| is_late(since)) {
            // The first outcome stays: a late rank does not publish, unless it has just done so.
            node.settle(false);
        }
        // If one rank writes for all, no other rank can say that it has failed: the others merely stop waiting for it.
        let is_over = |(_, node, since): &(u64, NodeContainer, Duration)| node.outcome().is_some() || is_late(since);
        let (ended, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut *awaited).into_iter().partition(is_over);
        *awaited = waiting;
        let why = || "another rank of this node could not write its part, or not in time".to_owned();
        let end = |(operation, node, _): (u64, NodeContainer, Duration)| {
            self.done(operation, if node.outcome() == Some(true) { Ok(Vec::new()) } else { Err(why()) })
        };
        ended.into_iter().map(end).collect()
    }
}

/// What remains after a write could not be begun.
enum Left {
    Others,
    Ours(Box<dyn Upload>),
}

/// Begins a write of a file that no other rank writes to.
pub(super) fn begin_alone(spec: WriteSpec) -> Result<Opened, TierError> {
    match WriteJob::new(spec) {
        Ok(job) => Ok(Opened::Job(Box::new(job))),
        Err(refused) => {
            refused.1.discard();
            Err(refused.0)
        }
    }
}

impl LevelWork for FileLevel {
    fn start(&self, facts: &Facts) -> Vec<Done> {
        self.lanes.write(facts.key.operation, self.kind());
        Vec::new()
    }

    fn open(&self, operation: u64) -> Result<Opened, TierError> {
        let Some((facts, source)) = self.shards.get(operation) else { return Ok(Opened::Gone) };
        if let Some(upload) = self.shards.take_direct(operation, self.kind()) {
            return self.publish_direct(&facts, &*upload);
        }
        let together = match &source {
            Source::Memory(_) => self.node_container(&facts),
            Source::File(_) => None,
        };
        match together {
            Some((Together::ForAll(node), entries)) => self.open_for_all(&facts, node, entries),
            Some((Together::Slice(node), entries)) => {
                let own = self.reduced(&facts, source).map(|source| vec![(self.setup.rank(), source)]);
                self.open_together(&facts, Together::Slice(node), entries, own)
            }
            None => self.open_alone(&facts, self.reduced(&facts, source)?),
        }
    }

    fn written(&self, operation: u64, written: Written) -> Vec<Done> {
        let written = match written {
            // The vote waits for the outcome of the node.
            Written::SliceDone => return Vec::new(),
            // On a tier with one directory for all, the manifest names what all ranks have put there.
            Written::Published(info) => Ok(info.filter(|_| self.kind().spec().is_shared).into_iter().collect()),
            Written::Failed(error) => {
                self.reporter.on_tier_failure(self.kind(), &error);
                Err(error.to_string())
            }
        };
        vec![self.done(operation, written)]
    }

    fn stop(&self, _: u64) {
        // A write that has begun is completed; retention removes its files.
    }

    fn committed(&self, facts: &Arc<Facts>) {
        let (tier, facts) = (self.kind(), facts.clone());
        let is_shared = tier.spec().is_shared;
        if !is_shared && self.setup.identity.is_node_leader() {
            self.lanes.push(Task::NodeManifest { tier, facts: facts.clone() });
        }
        if !is_shared || self.setup.identity.is_root() {
            self.lanes.push(Task::Retain { tier, facts });
        }
    }
}
