//! Checkpoints in flight: capture, verdicts, and when a slot may be reused.

use super::capture::{self, FileError, Unreadable};
use super::engine::{CaptureError, Decision, Engine, REPORTS_MAX, State};
use super::flow::{Flow, FlowEffect, LevelState};
use super::held::{GONE, Held};
use super::history::Caches;
use super::landing::{Descent, Unsealed};
use super::node::NodeContainer;
use super::progress::level_of;
use super::progress::{LevelVerdict, Progress, Report};
use super::tasks::{Task, tier_of};
use super::write::Written;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Digest, Level, Origin};
use crate::catalog::{Ledger, LedgerEntry, Levels, Moment, Occasion, Place};
use crate::config::{LevelPolicy, PartStore};
use crate::coordination::core::Event;
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Phase, Round, Verdict};
use crate::device::{DeviceError, Stream};
use crate::format::shard::{Head, Layout};
use crate::format::{ContainerInfo, ShardHeader, ShardMeta, codec};
use crate::policy::is_due;
use crate::region::{self, RegionData, SavedRegion};
use crate::segment::{BOARD_OPERATIONS, SealInfo, SlotId, SlotMut};
use crate::tier::names::{Series, rank_file};
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{Means, PerTier, TierError, TierId, TierSet, Upload, Writers};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// Checkpoints in flight per rank.
const IN_FLIGHT_MAX: usize = 32;

/// A checkpoint from its capture until nothing is left to do for it.
pub(super) struct Checkpoint {
    pub key: CheckpointKey,
    pub series: Series,
    pub agreement: u64,
    pub origin: Option<Origin>,
    pub flow: Flow,
    pub source: Option<Source>,
    pub slot: Option<SlotId>,
    /// Its bytes are on their way from the GPU cache to a slot that is reserved, and this rank has not voted.
    pub is_landing: bool,
    /// This rank's vote on the call, while it waits for those on earlier calls to be cast.
    pub ballot: Option<Ballot>,
    /// What this rank keeps of it for other ranks.
    pub parts: Vec<SlotId>,
    /// How many of them are on the local tier.
    pub parts_stored: usize,
    /// Written during capture, durable under its temp name.
    pub direct: Option<(TierId, Box<dyn Upload>)>,
    /// The containers that this rank has published.
    pub containers: PerTier<Vec<ContainerInfo>>,
    pub failures: Vec<(TierId, String)>,
    pub progress: Arc<Mutex<Progress>>,
    /// The verdict on the call, or on the level that the parts are for, did not arrive. Others may have been told that it is committed, so its slots stay for the
    /// restart to settle; a session that misses a verdict has failed, and captures nothing more.
    pub is_unknown: bool,
}

impl Checkpoint {
    /// Does its shard hold a slot of the segment?
    fn has_slot(&self) -> bool {
        self.slot.is_some() || self.is_landing
    }
}

/// Where a capture has put the shard.
pub(super) struct Placed {
    pub source: Source,
    pub slot: Option<SlotId>,
    direct: Option<(TierId, Box<dyn Upload>)>,
    /// The tier that has it: memory only with room for another one, which makes it a level; or the one to which it was written during the capture.
    on: TierSet,
}

impl Placed {
    /// What this rank tells the others with its vote.
    pub fn payload(&self) -> Payload {
        Payload::Bits { all: self.on.bits(), any: self.on.bits() }
    }
}

/// What a capture has done with the shard when it returns.
pub(super) enum Taken {
    Placed(Box<Placed>),
    /// The bytes are safe, part of them in the GPU cache; the vote is cast when they have come down.
    Staged(Box<Descent>),
}

impl Taken {
    /// One per block.
    pub(super) fn digests(&self) -> &[Digest] {
        match self {
            Taken::Placed(placed) => &placed.source.head().digests,
            Taken::Staged(descent) => &descent.unsealed.digests,
        }
    }
}

/// What a capture does that found no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoRoom {
    Wait,
    LookOnceMore,
    GiveUp,
}

impl NoRoom {
    /// `can_help`: something is seen now that will give room. What was there when the room was asked for may have ended since, and have
    /// given it: so nobody gives up who has not asked once more.
    fn then(can_help: bool, is_last_look: bool, is_over: bool) -> NoRoom {
        match (can_help, is_last_look) {
            (true, _) if !is_over => NoRoom::Wait,
            (false, false) => NoRoom::LookOnceMore,
            _ => NoRoom::GiveUp,
        }
    }
}

/// Why one tier did not take a shard.
pub(super) enum FillError {
    /// It could not; another one may.
    Tier(String),
    /// The device failed, and no tier can have its bytes.
    Device(DeviceError),
    /// A region has no bytes that any tier could have.
    Region(Unreadable),
}

impl From<DeviceError> for FillError {
    fn from(error: DeviceError) -> FillError {
        FillError::Device(error)
    }
}

impl From<FileError> for FillError {
    fn from(error: FileError) -> FillError {
        match error {
            FileError::Tier(error) => FillError::Tier(error.to_string()),
            FileError::Device(error) => FillError::Device(error),
            FileError::Region(error) => FillError::Region(error),
        }
    }
}

impl From<Unreadable> for FillError {
    fn from(error: Unreadable) -> FillError {
        FillError::Region(error)
    }
}

/// What device regions are captured with.
#[derive(Clone, Copy)]
pub struct OnDevice<'a> {
    /// The GPU cache, and the threads that empty it.
    pub caches: &'a Caches,
    /// The application's stream, on which the regions are complete.
    pub stream: &'a dyn Stream,
}

/// What the application hands over for one checkpoint.
pub struct CaptureSpec<'a> {
    /// Number of the collective call, drawn when the checkpoint was begun.
    pub operation: u64,
    /// Series.
    pub name: String,
    /// Version.
    pub version: u64,
    /// The regions, first those that are held.
    pub regions: Vec<SavedRegion<'a>>,
    /// What [`Engine::hold`] has put in its place.
    pub held: Option<Held>,
    /// Each rank may have regions of its own.
    pub own_regions: bool,
    /// For the regions in device memory.
    pub device: Option<OnDevice<'a>>,
    /// When the application called `checkpoint`.
    pub begun: Duration,
}

impl Engine {
    /// Takes the regions into the nearest tier that has room, and casts this rank's vote.
    ///
    /// # Collective
    /// All ranks; returns without waiting for the others.
    ///
    /// # Blocking
    /// For the copy; for room in the memory tier at most for the configured time; for the storage when the shard fits
    /// into no slot. Device regions are copied inside the device if the GPU cache has room for them, otherwise over the link.
    ///
    /// # Errors
    /// [`CaptureError`], after this rank has voted no.
    pub fn capture(self: &Arc<Self>, mut spec: CaptureSpec<'_>) -> Result<Arc<Mutex<Progress>>, CaptureError> {
        let rank = self.setup.identity.rank;
        let failed = self.lock().failed.clone();
        let agreement = self.agreement(&spec);
        let what = if spec.own_regions { "regions of its own".into() } else { summary(&spec.regions) };
        let call = format!("checkpoint {:?} version {} with {what}", spec.name, spec.version);
        let taken = match failed {
            Some(reason) => Err(CaptureError::Failed { rank, reason }),
            None => self.place(&mut spec, agreement),
        };
        match taken {
            Ok(Taken::Placed(placed)) => {
                self.post(spec.operation, &placed);
                let ballot = self.vote_on(agreement, &call, &placed);
                let progress = self.begin(&spec, agreement, Some((*placed, ballot)));
                self.wake();
                self.step();
                Ok(progress)
            }
            Ok(Taken::Staged(descent)) => {
                // In the books first: it may have landed before the next line is reached.
                let progress = self.begin(&spec, agreement, None);
                self.send_down(*descent, call);
                Ok(progress)
            }
            Err(error) => {
                self.decline(spec.operation, &spec.name, spec.version, &error.to_string());
                Err(error)
            }
        }
    }

    /// Says on the node's board how long this rank's shard is.
    pub(super) fn post(&self, operation: u64, placed: &Placed) {
        let Some(segment) = &self.setup.memory else { return };
        let length = if placed.slot.is_some() { placed.source.head().header.total_len } else { 0 };
        // A board entry that an older checkpoint still needs is left alone; then every rank of the node writes alone.
        if !self.has_board_conflict(operation) {
            NodeContainer::post(segment, operation, length);
        }
    }

    /// Casts a no for a checkpoint that this rank began and cannot or will not capture.
    pub fn decline(&self, operation: u64, name: &str, version: u64, why: &str) {
        let round = Round { operation, phase: Phase::Call };
        let mut state = self.lock();
        state.held.remove(&operation);
        state.stats.abandoned += 1;
        state.stats.declined += 1;
        state.declined.insert(operation, (name.to_owned(), version));
        state.deciders.insert(round, Decision::Checkpoint { name: String::new() });
        state.events.push(Event::Vote(round, self.refusal(why)));
        drop(state);
        self.wake();
        self.step();
    }

    /// Hash of all that must be equal on all ranks. Lengths and shapes are free.
    fn agreement(&self, spec: &CaptureSpec<'_>) -> u64 {
        let config = self.config_hash;
        let identity = &self.setup.identity;
        let shared = if spec.own_regions { &[] } else { &spec.regions[..] };
        let mut hasher = Xxh3::new();
        (config, identity.incarnation, identity.generation).hash(&mut hasher);
        (spec.operation, &spec.name, spec.version).hash(&mut hasher);
        for SavedRegion { region, .. } in shared {
            (&region.name, region.kind, region.element).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn key(&self, version: u64, operation: u64) -> CheckpointKey {
        let identity = &self.setup.identity;
        CheckpointKey { generation: identity.generation, version, operation, incarnation: identity.incarnation }
    }

    /// Where the regions go, with bodies from `head` on or later. Most checkpoints of a series have the regions of the one before.
    pub(super) fn layout(&self, name: &str, regions: &[SavedRegion<'_>], head: u64) -> Result<Layout, CaptureError> {
        let block_bytes = self.setup.config.job.block_bytes;
        let known = self.lock().layouts.get(name).cloned();
        let is_it = |known: &Layout| known.is_of(regions.iter().map(|saved| &saved.region), block_bytes, head);
        if let Some(known) = known.filter(is_it) {
            return Ok(known);
        }
        let series = self.setup.identity.series(name);
        let regions = regions.iter().map(|saved| saved.region.clone()).collect();
        let meta = ShardMeta { job: series.job, group: series.group, name: series.name, regions };
        let rank = self.setup.identity.rank;
        let made = Layout::behind_head(meta, block_bytes, head);
        let layout = made.map_err(|source| CaptureError::Layout { rank, source })?;
        self.lock().layouts.insert(name.into(), layout.clone());
        Ok(layout)
    }

    pub(super) fn no_tier(&self, name: &str, version: u64, causes: Vec<String>) -> CaptureError {
        CaptureError::NoTier { rank: self.setup.identity.rank, name: name.into(), version, causes }
    }

    /// The error of a capture that tries no other tier.
    pub(super) fn capture_error(&self, name: &str, version: u64, error: FillError) -> CaptureError {
        let (rank, named) = (self.setup.identity.rank, name.to_owned());
        match error {
            FillError::Tier(cause) => self.no_tier(name, version, vec![cause]),
            FillError::Device(source) => CaptureError::Device { rank, name: named, version, source },
            FillError::Region(source) => CaptureError::Region { rank, name: named, version, source },
        }
    }

    /// No slot could be had, and the application waits for a file.
    pub(super) fn say_direct(&self, version: u64, bytes: u64, why: &[String]) {
        if self.setup.memory.is_none() {
            return;
        }
        let rank = self.setup.identity.rank;
        log::debug!("event=capture-direct rank={rank} version={version} bytes={bytes} why={why:?}");
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_direct_told, true) {
            let advice = "what finds no room in node memory is written to a file before capture returns; said once";
            state.notes.push(format!("event=capture-direct why={why:?}: {advice}"));
        }
    }

    /// Somebody has removed the node's segment: its memory still works, and nobody could find it after a kill.
    fn say_unlinked(&self, path: &Path) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_unlinked_told, true) {
            state.notes.push(format!(
                "event=memory-segment-vanished path={}: it was removed under the run, so that no checkpoint in node memory survives a kill \
                 any more (level process); the next run makes a new one",
                path.display()
            ));
        }
    }

    pub(super) fn place(&self, spec: &mut CaptureSpec<'_>, agreement: u64) -> Result<Taken, CaptureError> {
        let identity = &self.setup.identity;
        let rank = identity.rank;
        let held = spec.held.take();
        let spec = &*spec;
        let version = spec.version;
        if spec.device.is_none() && spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Device(_))) {
            return Err(CaptureError::NoCaches { rank, name: spec.name.clone(), version });
        }
        if held.is_none() && spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Held { .. })) {
            return Err(self.no_tier(&spec.name, version, vec![GONE.into()]));
        }
        let series = identity.series(&spec.name);
        let origin = self.lock().origin(&spec.name);
        let layout = self.layout(&spec.name, &spec.regions, held.as_ref().map_or(0, Held::head))?;
        let header = layout.header(self.key(version, spec.operation), agreement, identity.size, rank, origin);
        let _call = spec.device.map(|device| device.caches.capturing());
        if let Some(held) = held {
            return self.place_held(spec, held, &layout, &header);
        }
        // The cause, if another tier may do.
        let cause_of = |error| match error {
            FillError::Tier(cause) => Ok(cause),
            other => Err(self.capture_error(&spec.name, version, other)),
        };
        let digests = || vec![Digest::default(); layout.block_count as usize];
        let mut causes = Vec::new();
        match self.wait_for_slot(spec.operation, layout.total_len) {
            Ok(Some(slot)) => match self.fill_slot(spec, &layout, &header, slot, digests()) {
                Ok(taken) => return Ok(taken),
                Err(error) => causes.push(cause_of(error)?),
            },
            Ok(None) => causes.push("memory tier: off".into()),
            Err(cause) => causes.push(cause),
        }
        self.say_direct(version, layout.total_len, &causes);
        for tier in TierId::files() {
            let filled = match self.begin_file(&series, &header.key, tier) {
                Some(Ok(upload)) => self.finish_file(spec, &layout, &header, upload, digests()),
                Some(Err(cause)) => Err(FillError::Tier(cause)),
                None => continue,
            };
            match filled {
                Ok(taken) => return Ok(taken),
                Err(error) => causes.push(cause_of(error)?),
            }
        }
        Err(self.no_tier(&spec.name, version, causes))
    }

    /// Fills a slot, as far as it can be now: device regions may still have to come down. `digests` has those of regions that are held.
    pub(super) fn fill_slot(
        &self,
        spec: &CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        mut slot: SlotMut,
        mut digests: Vec<Digest>,
    ) -> Result<Taken, FillError> {
        let parts = capture::device_parts(layout, &spec.regions);
        let device = spec.device.filter(|_| !parts.is_empty());
        // Without threads nobody would bring it down.
        let staged = match device.filter(|_| !self.setup.is_inline) {
            Some(OnDevice { caches, stream }) => caches.stage(&parts, layout.block_size, stream)?,
            None => None,
        };
        // While the device copies, if it does.
        capture::copy_host(layout, &spec.regions, slot.as_mut_slice(), &mut digests);
        capture::read_kept(layout, &spec.regions, slot.as_mut_slice(), &mut digests)?;
        let unsealed =
            |digests| Unsealed { name: spec.name.clone(), layout: layout.clone(), header: header.clone(), digests };
        if let Some(mut staged) = staged {
            capture::place_digests(&parts, &staged.digests()?, &mut digests);
            self.lock().stats.staged_captures += 1;
            return Ok(Taken::Staged(Box::new(Descent { staged, slot, unsealed: unsealed(digests) })));
        }
        if let Some(OnDevice { caches, stream }) = device {
            let found = capture::digest_on_device(&parts, layout.block_size, stream)?;
            capture::place_digests(&parts, &found, &mut digests);
            capture::download(&parts, slot.as_mut_slice(), stream)?;
            caches.pin_soon(&slot, parts.iter().map(|part| part.span.bytes()).sum());
        }
        let placed = self.seal(&unsealed(digests), slot).map_err(FillError::Tier)?;
        Ok(Taken::Placed(Box::new(placed)))
    }

    /// Seals a complete slot, whose head is `head`.
    pub(super) fn seal_slot(&self, name: &str, head: Head, slot: SlotMut) -> Result<Placed, String> {
        let (key, length, room) = (head.header.key, head.header.total_len, slot.room());
        let (operation, version) = (key.operation, key.version);
        let info = SealInfo { operation, version, name: text_hash(name) };
        let segment = self.setup.memory.as_ref().ok_or("memory tier: off")?;
        let sealed = slot.seal(info).map_err(|error| format!("memory tier: {error}"))?;
        let bytes = segment.sealed(sealed).ok_or("memory tier: the slot is gone")?;
        let shard = MemoryShard::sealed(segment.path(), Arc::new(bytes), head);
        log::debug!(
            "event=captured rank={} version={version} operation={operation} bytes={length}",
            self.setup.identity.rank
        );
        // The whole slot stays taken, however short the shard became.
        let is_linked = segment.is_linked();
        let is_level = room + length <= self.slot_share() && is_linked;
        let on = if is_level { TierSet::of(TierId::MEMORY) } else { TierSet::NONE };
        if !is_linked {
            self.say_unlinked(segment.path());
        }
        // The next capture finds its memory populated: out of this rank's share, never out of what the others need.
        let others = |c: &&Checkpoint| c.has_slot() && c.key.operation != operation;
        let held = self.lock().checkpoints.values().filter(others).count() as u64;
        if (held + 2) * room <= self.slot_share() {
            self.prepare_room(room);
        }
        Ok(Placed { source: Source::Memory(shard), slot: Some(sealed), direct: None, on })
    }

    /// What one rank may use of the segment if all use the same: whole extents, because each has one owner.
    fn slot_share(&self) -> u64 {
        let ranks = self.setup.identity.node_ranks.len() as u64;
        self.setup.memory.as_ref().map_or(0, |segment| {
            let header = segment.header();
            header.extent_count / ranks * header.extent_size
        })
    }

    /// Begins a file for a shard of this rank, which the application waits for; the cause if there is none, `None` if the tier is off.
    pub(super) fn begin_file(
        &self,
        series: &Series,
        key: &CheckpointKey,
        tier: TierId,
    ) -> Option<Result<Box<dyn Upload>, String>> {
        let directory = self.tier(tier)?;
        // The application itself would wait there, and nothing could end that.
        if self.stuck(&self.lock()).has(tier) {
            let (path, warn) = (directory.root().display(), self.setup.config.job.timeouts.warn);
            let why =
                format!("{tier} tier: {path} seems to hang: what is being written there has not moved for {warn:?}");
            return Some(Err(why));
        }
        let path = directory.folder_path(series, key).join(rank_file(self.setup.identity.rank));
        let begun = directory.begin(&path, Writers::One);
        Some(begun.map_err(|error| {
            self.tier_failure(&mut self.lock(), tier, &error);
            error.to_string()
        }))
    }

    /// Writes what is missing of the shard before the application goes on.
    pub(super) fn finish_file(
        &self,
        spec: &CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        upload: Box<dyn Upload>,
        digests: Vec<Digest>,
    ) -> Result<Taken, FillError> {
        let tier = upload.kind();
        let write_bytes = self.setup.config.node.write_bytes as usize;
        let stream = spec.device.map(|device| device.stream);
        let written = capture::into_file(layout, header, &spec.regions, stream, &*upload, write_bytes, digests);
        let opened = written.and_then(|(entry, head)| {
            let path = upload.path().to_owned();
            let file = upload.read_back().map_err(|source| TierError::io(tier, "open", &path, source))?;
            Ok(FileShard::written(tier, path, file.into(), entry.offset, head))
        });
        match opened {
            Ok(shard) => {
                self.lock().stats.direct_captures += 1;
                let (source, on) = (Source::File(shard), TierSet::of(tier));
                let placed = Placed { source, slot: None, direct: Some((tier, upload)), on };
                Ok(Taken::Placed(Box::new(placed)))
            }
            Err(error) => {
                upload.discard();
                if let FileError::Tier(error) = &error {
                    self.tier_failure(&mut self.lock(), tier, error);
                }
                Err(error.into())
            }
        }
    }

    /// A slot of `bytes`, waiting for room if need be; `None` if the tier is off, the reason if there is no room.
    pub(super) fn wait_for_slot(&self, operation: u64, bytes: u64) -> Result<Option<SlotMut>, String> {
        let Some(segment) = &self.setup.memory else { return Ok(None) };
        let _waiting = self.waiting.begin();
        let clock = &self.setup.clock;
        let started = clock.now();
        let (mut waited, mut is_last_look) = (false, false);
        loop {
            let in_flight = self.lock().checkpoints.values().filter(|c| !c.flow.is_finished()).count();
            let crowded = in_flight >= IN_FLIGHT_MAX;
            if !crowded {
                match segment.reserve(bytes) {
                    Ok(Some(slot)) => {
                        self.note_room_wait(waited, started);
                        return Ok(Some(slot));
                    }
                    Ok(None) => {}
                    Err(error) => return Err(format!("memory tier: {error}")),
                }
            }
            // Another rank that is behind may sit in memory that it gives back in a moment.
            let others = || segment.others_give_back(operation).unwrap_or(false);
            let own = || self.can_free(crowded) || segment.is_still_read();
            let can_help = bytes <= segment.capacity() && (own() || others());
            let is_over = clock.now().saturating_sub(started) >= self.setup.config.job.timeouts.room;
            match NoRoom::then(can_help, is_last_look, is_over) {
                NoRoom::Wait => is_last_look = false,
                NoRoom::LookOnceMore => {
                    is_last_look = true;
                    continue;
                }
                NoRoom::GiveUp => {
                    self.note_room_wait(waited, started);
                    let why = segment.refusal().map_or_else(|| "no room".into(), |refusal| refusal.to_string());
                    return Err(format!("memory tier: no room for {bytes} bytes: {why}"));
                }
            }
            if !waited {
                waited = true;
                log::info!("event=waiting-for-room rank={} bytes={bytes}", self.setup.identity.rank);
            }
            if !self.pump() {
                self.pause(Duration::from_micros(100));
            }
        }
    }

    /// Boards of the node segment are rings: does an older checkpoint in flight use the entry of this operation?
    fn has_board_conflict(&self, operation: u64) -> bool {
        let state = self.lock();
        let mut others = state.checkpoints.values().filter(|c| !c.flow.is_finished() && c.key.operation != operation);
        others.any(|c| c.key.operation % BOARD_OPERATIONS == operation % BOARD_OPERATIONS)
    }

    fn note_room_wait(&self, waited: bool, started: Duration) {
        if waited {
            let took = self.setup.clock.now().saturating_sub(started);
            let mut state = self.lock();
            state.stats.room_waits += 1;
            state.stats.room_wait_total += took;
            log::info!("event=waited-for-room rank={} seconds={:.6}", self.setup.identity.rank, took.as_secs_f64());
        }
    }

    /// Frees what may be freed now; true if something was, or will be when writes now under way are done.
    fn can_free(&self, crowded: bool) -> bool {
        let mut state = self.lock();
        if !crowded && self.free_slots(&mut state, true) {
            return true;
        }
        // A slot in which bytes are landing is given back, whatever has become of the checkpoint.
        let will_free = |c: &Checkpoint| c.is_landing || (!c.flow.is_finished() && c.slot.is_some());
        state.checkpoints.values().any(will_free) || crowded
    }

    /// Enters a captured checkpoint into the books, with this rank's vote unless the shard is still to land.
    fn begin(&self, spec: &CaptureSpec<'_>, agreement: u64, placed: Option<(Placed, Ballot)>) -> Arc<Mutex<Progress>> {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let bytes = spec.regions.iter().map(|saved| saved.region.bytes).sum::<u64>();
        let is_landing = placed.is_none();
        let (placed, ballot) = placed.unzip();
        let (source, slot, direct) =
            placed.map_or((None, None, None), |placed| (Some(placed.source), placed.slot, placed.direct));
        let round = Round { operation: spec.operation, phase: Phase::Call };
        let mut state = self.lock();
        let checkpoint = Checkpoint {
            key: self.key(spec.version, spec.operation),
            series: self.setup.identity.series(&spec.name),
            agreement,
            origin: state.origin(&spec.name),
            flow: Flow::default(),
            source,
            slot,
            is_landing,
            ballot,
            parts: Vec::new(),
            parts_stored: 0,
            direct,
            containers: PerTier::default(),
            failures: Vec::new(),
            progress: progress.clone(),
            is_unknown: false,
        };
        let blocked = self.setup.clock.now().saturating_sub(spec.begun);
        state.stats.captured += 1;
        state.stats.bytes_captured += bytes;
        state.stats.blocked_last = blocked;
        state.stats.blocked_max = state.stats.blocked_max.max(blocked);
        state.stats.blocked_total += blocked;
        state.held.remove(&spec.operation);
        state.checkpoints.insert(spec.operation, checkpoint);
        state.deciders.insert(round, Decision::Checkpoint { name: spec.name.clone() });
        state.cast_votes();
        progress
    }

    /// The root's decision on a checkpoint call: which levels it gets.
    pub(super) fn decide_checkpoint(&self, state: &mut State, name: &str, ballot: &Ballot) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let Payload::Bits { all, any } = &ballot.payload else { return (Outcome::Abandoned(Vec::new()), Vec::new()) };
        let now = self.setup.clock.now();
        let job = &self.setup.config.job;
        let (scheme, protection) = job.redundancy.policy_for(name);
        // The last checkpoint before an end that was asked for goes everywhere: the nodes may be gone afterwards.
        let is_last = self.is_ending.load(std::sync::atomic::Ordering::Relaxed);
        let (held, written) = (TierSet::from_bits(*all), TierSet::from_bits(*any));
        let histories = state.histories.entry(name.to_owned()).or_default();
        let mut is_wanted = |tier: TierId, policy: &LevelPolicy, is_enabled: bool, is_forced: bool| {
            let history = &mut histories[tier];
            let wanted = is_enabled && (is_last || is_forced || is_due(history, policy, now));
            history.taken += 1;
            if wanted {
                history.last = Some(now);
            }
            wanted
        };
        let can_protect = self.setup.protection.role(scheme).is_some();
        let mut plan = held.and(TierSet::of(TierId::MEMORY));
        if is_wanted(TierId::PEERS, &protection, can_protect, false) {
            plan.insert(TierId::PEERS);
        }
        // Parts in files of a node need the shards beside them.
        let for_peers = plan.has(TierId::PEERS) && job.redundancy.store == PartStore::Local;
        for tier in TierId::files() {
            let Some(policy) = tier.wish(job).policy else { continue };
            let is_forced = written.has(tier) || (for_peers && !tier.spec().is_shared);
            if is_wanted(tier, &policy, self.tier(tier).is_some(), is_forced) {
                plan.insert(tier);
            }
        }
        Outcome::agreed("plan", &plan)
    }

    /// A verdict on a checkpoint's call or level has arrived.
    pub(super) fn on_checkpoint_verdict(&self, state: &mut State, verdict: &Verdict) {
        let operation = verdict.round.operation;
        let outcome = match &verdict.outcome {
            Outcome::Agreed => LevelVerdict::Committed,
            Outcome::Abandoned(culprits) => LevelVerdict::Abandoned(culprits.clone()),
            Outcome::Unknown => LevelVerdict::Unknown(state.failed.clone().unwrap_or_default()),
        };
        let Some(tier) = tier_of(verdict.round.phase) else {
            let plan = codec::decode::<TierSet>("plan", &verdict.decision).ok();
            match plan.filter(|_| outcome == LevelVerdict::Committed) {
                Some(plan) => self.on_agreed(state, operation, plan),
                None => self.give_up(state, operation, outcome),
            }
            return;
        };
        let committed = outcome == LevelVerdict::Committed;
        let is_unknown = matches!(outcome, LevelVerdict::Unknown(_));
        self.report(state, operation, Some(tier), outcome);
        if committed {
            self.on_committed(state, operation, tier);
        } else {
            state.stats.level_failures[tier] += 1;
        }
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        let effects = checkpoint.flow.on_settled(tier, committed);
        // Others may have been told that it is committed, and have given up what they kept of older ones.
        checkpoint.is_unknown |= is_unknown && tier == TierId::PEERS;
        if committed {
            self.mark_slots(checkpoint);
        } else if tier == TierId::PEERS {
            self.drop_exchange(state, operation, is_unknown);
        }
        self.apply(state, operation, effects);
        self.free_slots(state, false);
    }

    /// Notes the highest committed level in the entries of the slots. Whoever finds the segment after the run has died can
    /// then tell an only copy from one that is safe elsewhere.
    fn mark_slots(&self, checkpoint: &Checkpoint) {
        let committed = TierId::all().filter(|tier| checkpoint.flow.is_committed(*tier));
        if let Some(highest) = committed.map(TierId::level).max() {
            self.mark(checkpoint.slot.as_slice(), highest);
            // What is kept for others is kept for that level at least.
            self.mark(&checkpoint.parts, highest.max(Level::NodeLoss));
        }
    }

    pub(super) fn mark(&self, slots: &[SlotId], level: Level) {
        let Some(segment) = &self.setup.memory else { return };
        for slot in slots {
            if let Err(error) = segment.set_committed(*slot, level) {
                log::warn!("event=slot-not-marked error={error}");
            }
        }
    }

    fn on_agreed(&self, state: &mut State, operation: u64, plan: TierSet) {
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        lock_progress(&checkpoint.progress).plan = Some(plan);
        let effects = checkpoint.flow.on_agreed(plan);
        if plan.has(TierId::MEMORY) {
            self.mark_slots(checkpoint);
            self.report(state, operation, Some(TierId::MEMORY), LevelVerdict::Committed);
            self.on_committed(state, operation, TierId::MEMORY);
        } else if let (false, Some(slot), Some(segment)) =
            (plan.has(TierId::PEERS), checkpoint.slot, &self.setup.memory)
            && let Err(error) = segment.let_pass(slot)
        {
            log::warn!("event=slot-not-marked error={error}");
        }
        self.apply(state, operation, effects);
        self.free_slots(state, false);
    }

    /// A level is committed: counts it, and starts what follows from it.
    fn on_committed(&self, state: &mut State, operation: u64, tier: TierId) {
        let Some(checkpoint) = state.checkpoints.get(&operation) else { return };
        let version = checkpoint.key.version;
        let is_first = lock_progress(&checkpoint.progress).is_first_commit();
        state.told.on_committed(tier, &checkpoint.series.name, version, is_first);
        state.stats.committed[tier] += 1;
        state.stats.newest[tier] = Some(version);
        state.committed.insert((tier, operation));
        let highest = state.committed_names.entry(text_hash(&checkpoint.series.name)).or_insert(Level::Captured);
        *highest = tier.level().max(*highest);
        log::info!(
            "event=committed rank={} name={:?} version={version} generation={} operation={operation} level={}",
            self.setup.identity.rank,
            checkpoint.series.name,
            checkpoint.key.generation,
            tier.level()
        );
        let (is_shared, is_files) = (tier.spec().is_shared, tier.spec().means == Means::Files);
        if is_files && !is_shared && self.setup.identity.is_node_leader() {
            let manifest = Box::new(self.manifest(checkpoint, tier.level(), Vec::new()));
            state.lanes.push(Task::NodeManifest { tier, series: checkpoint.series.clone(), manifest });
        }
        let retains = match tier.spec().means {
            Means::Memory => None,
            // What a node's files held for the sake of the peers may go.
            Means::Peers => self.node_files().filter(|_| self.has_stored_parts()).map(|tier| tier.kind()),
            Means::Files => Some(tier).filter(|_| !is_shared || self.is_root()),
        };
        if let Some(tier) = retains {
            state.lanes.push(Task::Retain { tier, series: checkpoint.series.clone(), key: checkpoint.key });
        }
        if !state.old_segments.is_empty() {
            state.lanes.push(Task::RemoveOldSegments);
        }
    }

    /// The call was abandoned, or nobody here knows: nothing more of this checkpoint is written.
    pub(super) fn give_up(&self, state: &mut State, operation: u64, verdict: LevelVerdict) {
        let heard = (None, verdict.clone());
        let is_known = |c: &Checkpoint| lock_progress(&c.progress).heard.contains(&heard);
        if state.checkpoints.get(&operation).is_some_and(is_known) {
            // It came while this rank's vote was on its way, and answers that, too.
            return;
        }
        state.stats.abandoned += 1;
        let is_unknown = matches!(verdict, LevelVerdict::Unknown(_));
        self.report(state, operation, None, verdict);
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        // Without this rank's vote nobody can have been told that it is committed.
        let has_voted = !checkpoint.is_landing && checkpoint.ballot.take().is_none();
        checkpoint.is_unknown = is_unknown && has_voted;
        if let Some((_, upload)) = checkpoint.direct.take() {
            state.lanes.push(Task::Discard(upload));
        }
        let effects = checkpoint.flow.on_abandoned();
        self.drop_exchange(state, operation, is_unknown);
        self.apply(state, operation, effects);
        self.free_slots(state, false);
    }

    fn report(&self, state: &mut State, operation: u64, tier: Option<TierId>, verdict: LevelVerdict) {
        let Some(checkpoint) = state.checkpoints.get(&operation) else { return };
        lock_progress(&checkpoint.progress).heard.push((tier, verdict.clone()));
        let (name, key) = (checkpoint.series.name.clone(), checkpoint.key);
        self.tell(state, &name, key, level_of(tier), verdict);
    }

    /// Tells the application, the log and the supervisor of a verdict.
    pub(super) fn tell(&self, state: &mut State, name: &str, key: CheckpointKey, level: Level, verdict: LevelVerdict) {
        let CheckpointKey { version, operation, .. } = key;
        match &verdict {
            LevelVerdict::Off(_) => {}
            LevelVerdict::Committed => {
                if let Some(refused) = state.outages.on_committed(level).filter(|_| self.is_root()) {
                    log::warn!("event=reached-again level={level} version={version} refused={refused}");
                }
            }
            // All ranks hear the same: it is said once.
            LevelVerdict::Abandoned(culprits) => {
                let culprits = culprits.iter().map(Culprit::to_string).collect::<Vec<_>>();
                // What ranks do wrong at the call is for each call anew.
                let is_news = level == Level::Captured || state.outages.on_refused(level, &culprits.join("; "));
                let importance = match (self.is_root(), is_news) {
                    (false, _) => log::Level::Debug,
                    (true, true) => log::Level::Warn,
                    (true, false) => log::Level::Info,
                };
                let until = if level == Level::Captured { "" } else { " (said once, until it is reached again)" };
                log::log!(
                    importance,
                    "event=abandoned name={name:?} version={version} operation={operation} level={level} culprits={culprits:?}{until}"
                );
            }
            LevelVerdict::Unknown(reason) => log::error!(
                "event=verdict-unknown rank={} version={version} operation={operation} level={level} reason={reason:?}",
                self.setup.identity.rank
            ),
        }
        if let Some(reason) = verdict.reason() {
            state.told.on_refused(name, version, level, reason);
        }
        let report = Report { name: name.to_owned(), key, level, verdict };
        if state.reports.len() >= REPORTS_MAX {
            state.reports.pop_front();
        }
        state.reports.push_back(report);
    }

    pub(super) fn apply(&self, state: &mut State, operation: u64, effects: Vec<FlowEffect>) {
        for effect in effects {
            match effect {
                FlowEffect::Write(TierId::PEERS) => self.begin_exchange(state, operation),
                FlowEffect::Write(tier) => state.lanes.write(operation, tier),
                FlowEffect::Vote(tier) => self.vote_level(state, operation, tier),
                FlowEffect::SourceFree => {
                    if let Some(checkpoint) = state.checkpoints.get_mut(&operation) {
                        checkpoint.source = None;
                    }
                }
                FlowEffect::Finished => {
                    if let Some(checkpoint) = state.checkpoints.get(&operation) {
                        lock_progress(&checkpoint.progress).finished = true;
                    }
                }
            }
        }
    }

    fn vote_level(&self, state: &mut State, operation: u64, tier: TierId) {
        let rank = self.setup.identity.rank;
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        let phase = Phase::Level(tier.index());
        let published = std::mem::take(&mut checkpoint.containers[tier]);
        let payload = if published.is_empty() { Ok(Payload::None) } else { Payload::gathered(published) };
        let call = format!("{tier} level of operation {operation}");
        let mut ballot = match payload {
            Ok(payload) => Ballot::of(rank, checkpoint.agreement, call, payload),
            Err(error) => {
                Ballot::of(rank, checkpoint.agreement, call, Payload::None).failed(rank, error.to_string(), true)
            }
        };
        for (_, why) in checkpoint.failures.iter().filter(|(failed, _)| *failed == tier) {
            ballot = ballot.failed(rank, why, true);
        }
        state.events.push(Event::Vote(Round { operation, phase }, ballot));
    }

    /// A write has come to its end on this rank.
    pub(super) fn on_written(&self, state: &mut State, operation: u64, tier: TierId, written: Written) {
        if tier == TierId::PEERS {
            let failure = match written {
                Written::Failed(error) => {
                    self.tier_failure(state, TierId::LOCAL, &error);
                    Some(error.to_string())
                }
                Written::Published(_) | Written::SliceDone => None,
            };
            self.on_part_written(state, operation, failure);
            return;
        }
        let failure = match written {
            Written::SliceDone => {
                // The node's outcome is awaited by `poll_slices`.
                return;
            }
            Written::Published(info) => {
                let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
                // Where all see one directory, its manifest names what all have put there.
                checkpoint.containers[tier].extend(info.filter(|_| tier.spec().is_shared));
                None
            }
            Written::Failed(error) => {
                self.tier_failure(state, tier, &error);
                Some(error.to_string())
            }
        };
        self.end_write(state, operation, tier, failure);
    }

    pub(super) fn end_write(&self, state: &mut State, operation: u64, tier: TierId, failure: Option<String>) {
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        checkpoint.failures.extend(failure.map(|why| (tier, why)));
        // The root may have given the level up while it was being written.
        if checkpoint.flow.level(tier) == LevelState::Writing {
            let effects = checkpoint.flow.on_written(tier);
            self.apply(state, operation, effects);
        }
        self.free_slots(state, false);
    }

    /// Ranks whose slice of a node container is done vote when the container has its name, or when they have waited for
    /// the other ranks of the node for as long as the root waits for votes: one of them may have died or lost touch.
    pub(super) fn poll_slices(&self, state: &mut State) {
        let (now, limit) = (self.setup.clock.now(), self.setup.config.job.timeouts.abandon);
        for (.., node, _) in state.slices.iter().filter(|(.., since)| now.saturating_sub(*since) >= limit) {
            // The first outcome stays: a rank that comes later does not publish, unless it just has.
            node.settle(false);
        }
        // Of one rank that writes for all nobody else can say that it has failed: it is only not waited for any longer.
        let is_over =
            |since: &Duration, node: &NodeContainer| node.outcome().is_some() || now.saturating_sub(*since) >= limit;
        let (ended, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.slices).into_iter().partition(|(_, _, node, since)| is_over(since, node));
        state.slices = waiting;
        for (operation, tier, node, _) in ended {
            let failure = (node.outcome() != Some(true))
                .then(|| "another rank of this node could not write its part, or did not in time".to_owned());
            self.end_write(state, operation, tier, failure);
        }
    }

    /// Begins the farther copies of checkpoints whose nearer ones wait for a file system that stands still. The root gives a
    /// level up only much later. A shard that lies on such a file system itself has to wait.
    pub(super) fn pass_by(&self, state: &mut State) {
        let stuck = self.stuck(state);
        if stuck.is_empty() {
            return;
        }
        let is_elsewhere = |c: &&mut Checkpoint| c.source.as_ref().is_some_and(|source| !stuck.has(source.tier()));
        let begun: Vec<_> = state
            .checkpoints
            .values_mut()
            .filter(is_elsewhere)
            .map(|c| (c.key.operation, c.flow.on_stuck(stuck)))
            .filter(|(_, effects)| !effects.is_empty())
            .collect();
        for (operation, effects) in begun {
            let rank = self.setup.identity.rank;
            log::warn!(
                "event=tier-passed-by rank={rank} operation={operation} tiers={stuck:?} reason=\"nothing moves there\""
            );
            self.apply(state, operation, effects);
        }
    }

    /// The tiers whose file systems seem to hang: something is under way there, and nothing has ended for as long as a warning takes.
    fn stuck(&self, state: &State) -> TierSet {
        state.lanes.stuck(self.setup.clock.now(), self.setup.config.job.timeouts.warn)
    }

    /// Retires slots that nobody needs; `hard` also the newest ones, if they are committed on a lower tier. True if any.
    ///
    /// A slot, and what is kept beside it for other ranks, stays while it is being written, and while it is its series'
    /// newest one committed at level `Process` or at level `NodeLoss`.
    pub(super) fn free_slots(&self, state: &mut State, hard: bool) -> bool {
        let Some(segment) = &self.setup.memory else {
            state.checkpoints.retain(|_, c| !c.flow.is_finished());
            return false;
        };
        let occasion = if hard { Occasion::Pressed } else { Occasion::Settled };
        let rulings = state.memory_ledger(self.has_stored_parts()).judge(&occasion);
        let mut freed = false;
        for (checkpoint, ruling) in state.checkpoints.values_mut().zip(rulings) {
            if !ruling.may_go() {
                continue;
            }
            segment.retire_all(std::mem::take(&mut checkpoint.parts));
            if let Some(slot) = checkpoint.slot.take() {
                match segment.retire(slot) {
                    Ok(retired) => freed |= retired,
                    Err(error) => log::warn!("event=slot-not-retired error={error}"),
                }
            }
        }
        state.checkpoints.retain(|_, c| !(c.flow.is_finished() && !c.has_slot() && c.parts.is_empty()));
        freed
    }
}

impl Checkpoint {
    /// What node memory holds of it, for the ledger.
    fn entry(&self) -> LedgerEntry<String> {
        use LevelState::{Planned, Voted, Writing};
        let is_undecided = |tier: &TierId| matches!(self.flow.level(*tier), Planned | Writing | Voted);
        let known = TierId::all().filter(|tier| self.flow.is_committed(*tier));
        // Lost touch, or still without an answer: the others may have heard that it is committed.
        let is_in_doubt = self.is_unknown || self.flow.awaits_verdict();
        let doubt = Levels::NONE.with(Level::Process).with(Level::NodeLoss);
        LedgerEntry {
            series: self.series.name.clone(),
            taken: Moment::of(&self.key),
            version: self.key.version,
            place: Place::Slot,
            known: known.fold(Levels::NONE, |known, tier| known.with(tier.level())),
            doubt: if is_in_doubt && (self.slot.is_some() || !self.parts.is_empty()) { doubt } else { Levels::NONE },
            is_open: self.source.is_some() || [TierId::MEMORY, TierId::PEERS].iter().any(is_undecided),
            needs: Vec::new(),
        }
    }
}

impl State {
    /// What lies in this rank's node memory, in the order of the operations.
    pub(super) fn memory_ledger(&self, has_stored_parts: bool) -> Ledger<String> {
        let entries = self.checkpoints.values().map(Checkpoint::entry).collect();
        Ledger::new(entries).with_stored_parts(has_stored_parts)
    }

    /// What a checkpoint of a series that is taken now descends from.
    pub(super) fn origin(&self, name: &str) -> Option<Origin> {
        self.stretches.get(name)?.last()
    }

    /// Casts the votes on calls in the order of the calls: behind a shard that is still landing, later ones wait.
    pub(super) fn cast_votes(&mut self) {
        for checkpoint in self.checkpoints.values_mut().take_while(|c| !c.is_landing) {
            let round = Round { operation: checkpoint.key.operation, phase: Phase::Call };
            self.events.extend(checkpoint.ballot.take().map(|ballot| Event::Vote(round, ballot)));
        }
    }
}

pub(super) fn lock_progress(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The regions in words, for the message that names a rank with another layout.
fn summary(regions: &[SavedRegion<'_>]) -> String {
    let own = || regions.iter().filter(|saved| !region::is_reserved(&saved.region.name));
    let named: Vec<String> = own().take(6).map(|s| format!("{} ({})", s.region.name, s.region.element)).collect();
    let more = own().count().saturating_sub(named.len());
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} regions: {}{rest}", own().count(), named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gives_room_up_who_has_not_asked_for_it_since_the_last_thing_that_could_help_was_gone() {
        assert_eq!(NoRoom::then(false, false, false), NoRoom::LookOnceMore);
        assert_eq!(NoRoom::then(false, false, true), NoRoom::LookOnceMore);
        assert_eq!(NoRoom::then(false, true, false), NoRoom::GiveUp);
        assert_eq!(NoRoom::then(true, true, false), NoRoom::Wait);
        assert_eq!(NoRoom::then(true, false, true), NoRoom::GiveUp);
    }

    #[test]
    fn a_summary_names_the_first_regions_of_the_application_and_counts_the_others() {
        let regions = |count: u64| -> Vec<SavedRegion<'static>> {
            let own = (0..count).map(|number| region::value(&format!("r{number}"), &number).expect("a value"));
            own.chain([region::reserved(region::AFFINITY, Vec::new())]).collect()
        };
        assert_eq!(summary(&regions(0)), "0 regions: ");
        assert_eq!(summary(&regions(2)), "2 regions: r0 (u8), r1 (u8)");
        assert!(summary(&regions(6)).ends_with("r4 (u8), r5 (u8)"), "{}", summary(&regions(6)));
        assert!(summary(&regions(8)).ends_with("r5 (u8) and 2 more"), "{}", summary(&regions(8)));
    }
}
