//! The capture of a checkpoint: copies its regions to the nearest tier that has room, and casts this rank's vote.
#![forbid(unsafe_code)]

use super::capture::{self, DevicePart, FileError};
use super::core::{Books, Facts, call};
use super::desk::Decision;
use super::engine::Engine;
use super::error::{CaptureError, FillError};
use super::held::{GONE, Held};
use super::history::CacheHandle;
use super::landing::{Descent, Unsealed};
use super::marking::Marked;
use super::node::NodeContainer;
use super::offload::Offload;
use super::progress::Progress;
use super::remains::{Compared, Known};
use super::shards::Placed;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Digest};
use crate::config::Method;
use crate::coordination::Ballot;
use crate::coordination::core::Event;
use crate::device::Stream;
use crate::format::events::What;
use crate::format::shard::{Head, Layout};
use crate::format::supervision::Bound;
use crate::format::{ShardHeader, ShardMeta};
use crate::region::{self, RegionData, SavedRegion};
use crate::segment::{BOARD_OPERATIONS, SealInfo, SlotMut};
use crate::tier::names::{Series, rank_file};
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{TierError, TierId, TierSet, Upload, Writers};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// How many pieces of device memory a capture copies one by one at most.
const PIECES_MAX: usize = 16_384;

/// Checkpoints in flight per rank.
const IN_FLIGHT_MAX: usize = 32;

/// What a capture has done with the shard when it returns.
pub(super) enum Taken {
    Placed(Box<Placed>),
    /// The bytes are safe, part of them in the GPU cache; the vote is cast when they have arrived in the slot.
    Staged(Box<Descent>),
    /// The bytes are taken from live memory: device regions are marked, those on the host protected.
    Marked(Box<Marked>),
}

impl Taken {
    /// The digests, one per block.
    pub(super) fn digests(&self) -> &[Digest] {
        match self {
            Taken::Placed(placed) => &placed.source.head().digests,
            Taken::Staged(descent) => &descent.unsealed.digests,
            // The digests of device regions are not known yet.
            Taken::Marked(marked) => &marked.unsealed.digests,
        }
    }
}

/// What a capture that found no room does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoRoom {
    Wait,
    LookOnceMore,
    GiveUp,
}

impl NoRoom {
    /// `can_help`: something is known now that will free room. Something that existed when room was asked for may have ended since and
    /// freed its room; so no capture gives up before it has asked once more.
    fn then(can_help: bool, is_last_look: bool, is_over: bool) -> NoRoom {
        match (can_help, is_last_look) {
            (true, _) if !is_over => NoRoom::Wait,
            (false, false) => NoRoom::LookOnceMore,
            _ => NoRoom::GiveUp,
        }
    }
}

/// What the capture of device regions needs.
#[derive(Clone, Copy)]
pub struct OnDevice<'a> {
    /// The GPU cache, and the threads that empty it.
    pub caches: &'a CacheHandle,
    /// The application's stream, on which the regions are complete.
    pub stream: &'a dyn Stream,
    /// Allows marking them instead of copying, if given.
    pub offload: Option<&'a Offload>,
}

/// What must be equal on all ranks besides the names and types of regions.
#[derive(Clone, Default)]
pub struct Agreed {
    /// The hash of it; 0: nothing must be equal.
    pub hash: u64,
    /// What is hashed, in words, where ranks may differ: for the message that names a rank that differs.
    pub text: String,
}

/// What the application hands over for one checkpoint.
pub struct CaptureSpec<'a> {
    /// Number of the collective call, taken when the checkpoint was begun.
    pub operation: u64,
    /// Series.
    pub name: String,
    /// Version.
    pub version: u64,
    /// The regions; those that are held come first.
    pub regions: Vec<SavedRegion<'a>>,
    /// What [`Engine::hold`] has already put into its place.
    pub held: Option<Held>,
    /// Each rank may have regions of its own.
    pub own_regions: bool,
    /// What else all ranks agree on.
    pub agreed: Agreed,
    /// What binds the checkpoint to the number of ranks, if this rank reports to a supervisor.
    pub bound: Option<Bound>,
    /// For the regions in device memory.
    pub device: Option<OnDevice<'a>>,
    /// When the application called `checkpoint`.
    pub begun: Duration,
}

impl Engine {
    /// Has regions of the checkpoint that is captured next reduced by these methods.
    pub fn reduce(&self, operation: u64, wishes: Vec<(String, Method)>) {
        if !wishes.is_empty() {
            self.reducer.wish(operation, wishes);
        }
    }

    /// Takes the regions into the nearest tier that has room, and casts this rank's vote.
    ///
    /// # Collective
    /// All ranks; returns without waiting for the others.
    ///
    /// # Blocking
    /// For the copy; for room in the memory tier, at most for the configured time; for the storage if the shard fits into no slot. Device
    /// regions are copied inside the device if the GPU cache has room for them, otherwise over the link.
    ///
    /// # Errors
    /// [`CaptureError`], after this rank has voted no.
    pub fn capture(self: &Arc<Self>, mut spec: CaptureSpec<'_>) -> Result<Arc<Lock<Progress>>, CaptureError> {
        if spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Live(_))) {
            self.lives.wait_for_turn();
        }
        let rank = self.setup.rank();
        let failed = self.failed();
        let agreement = self.agreement(&spec);
        let what = if spec.own_regions { "its own regions".into() } else { summary(&spec.regions) };
        let call = format!("checkpoint {:?} version {} with {what}{}", spec.name, spec.version, spec.agreed.text);
        let taken = match failed {
            Some(reason) => Err(CaptureError::Failed { rank, reason }),
            None => self.place(&mut spec, agreement),
        };
        if let (Ok(_), Some(bound)) = (&taken, spec.bound.take()) {
            self.reporter().note_bound(spec.operation, bound);
        }
        match taken {
            Ok(Taken::Placed(placed)) => {
                self.post(spec.operation, &placed);
                let ballot = self.vote_on(agreement, &call, &placed);
                let progress = self.enter(self.facts(&spec, agreement), Some((*placed, ballot)));
                self.count_capture(&spec);
                self.wake();
                self.step();
                Ok(progress)
            }
            Ok(Taken::Staged(descent)) => {
                // Entered in the books first: the shard may have landed before the next line is reached.
                let progress = self.enter(self.facts(&spec, agreement), None);
                self.count_capture(&spec);
                self.send_down(*descent, call);
                Ok(progress)
            }
            Ok(Taken::Marked(marked)) => {
                let progress = self.enter(self.facts(&spec, agreement), None);
                self.count_capture(&spec);
                self.send_marked(*marked, spec.device, call);
                Ok(progress)
            }
            Err(error) => {
                self.decline(spec.operation, &spec.name, spec.version, &error.to_string());
                Err(error)
            }
        }
    }

    /// Announces the length of this rank's shard on the node's board.
    pub(super) fn post(&self, operation: u64, placed: &Placed) {
        let Some(segment) = &self.setup.memory else { return };
        let length = if placed.slot.is_some() { placed.source.head().header.total_len } else { 0 };
        // A board entry that an older checkpoint still needs is left alone; then every rank of the node writes alone.
        if !self.has_board_conflict(operation) {
            NodeContainer::post(segment, operation, length);
        }
    }

    /// Votes no on a checkpoint that this rank began and cannot or will not capture.
    pub fn decline(&self, operation: u64, name: &str, version: u64, why: &str) {
        self.books().on_declined(operation);
        self.reporter().count(|stats| {
            stats.abandoned += 1;
            stats.declined += 1;
        });
        self.desk.on_declined(operation, name, version);
        self.desk.decide_by(call(operation), Decision::Checkpoint { name: String::new() });
        self.desk.push(Event::Vote(call(operation), self.refusal(why)));
        self.wake();
        self.step();
    }

    /// Hash of everything that must be equal on all ranks. Lengths and shapes are free.
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
        if spec.agreed.hash != 0 {
            spec.agreed.hash.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn facts(&self, spec: &CaptureSpec<'_>, agreement: u64) -> Arc<Facts> {
        let identity = &self.setup.identity;
        let key = identity.key(spec.version, spec.operation);
        let origin = self.books().origin(&spec.name);
        Arc::new(Facts { key, series: identity.series(&spec.name), agreement, origin })
    }

    fn count_capture(&self, spec: &CaptureSpec<'_>) {
        let bytes = spec.regions.iter().map(|saved| saved.region.bytes).sum::<u64>();
        let blocked = self.setup.now().saturating_sub(spec.begun);
        self.reporter().count(|stats| {
            if stats.captured > 0 {
                stats.costs.blocking.add(blocked, bytes);
            }
            stats.captured += 1;
            stats.bytes_captured += bytes;
            stats.blocked_last = blocked;
            stats.blocked_max = stats.blocked_max.max(blocked);
            stats.blocked_total += blocked;
        });
        self.reporter().note(|| What::Captured {
            name: spec.name.clone(),
            version: spec.version,
            operation: spec.operation,
            bytes,
            seconds: blocked.as_secs_f64(),
        });
    }

    /// The places of the regions, with the bodies at `head` or later. Most checkpoints of a series have the same regions as the previous
    /// one.
    pub(super) fn layout(&self, name: &str, regions: &[SavedRegion<'_>], head: u64) -> Result<Layout, CaptureError> {
        let block_bytes = self.setup.config.job.block_bytes;
        let known = self.layouts.lock().get(name).cloned();
        let is_it = |known: &Layout| known.is_of(regions.iter().map(|saved| &saved.region), block_bytes, head);
        if let Some(known) = known.filter(is_it) {
            return Ok(known);
        }
        let series = self.setup.identity.series(name);
        let regions = regions.iter().map(|saved| saved.region.clone()).collect();
        let meta = ShardMeta { job: series.job, group: series.group, name: series.name, regions };
        let rank = self.setup.rank();
        let made = Layout::behind_head(meta, block_bytes, head);
        let layout = made.map_err(|source| CaptureError::Layout { rank, source })?;
        self.layouts.lock().insert(name.into(), layout.clone());
        Ok(layout)
    }

    pub(super) fn no_tier(&self, name: &str, version: u64, causes: Vec<String>) -> CaptureError {
        CaptureError::NoTier { rank: self.setup.rank(), name: name.into(), version, causes }
    }

    /// The error of a capture that tries no other tier.
    pub(super) fn capture_error(&self, name: &str, version: u64, error: FillError) -> CaptureError {
        let (rank, named) = (self.setup.rank(), name.to_owned());
        match error {
            FillError::Tier(cause) => self.no_tier(name, version, vec![cause]),
            FillError::Device(source) => CaptureError::Device { rank, name: named, version, source },
            FillError::Region(source) => CaptureError::Region { rank, name: named, version, source },
        }
    }

    /// Logs that there was no slot, so that the application waits for a file.
    pub(super) fn say_direct(&self, version: u64, bytes: u64, why: &[String]) {
        if self.setup.memory.is_none() {
            return;
        }
        let rank = self.setup.rank();
        log::debug!("event=capture-direct rank={rank} version={version} bytes={bytes} why={why:?}");
        let advice =
            "a checkpoint without room in node memory is written to a file before capture returns; logged once";
        self.desk.note_once("capture-direct", || format!("event=capture-direct why={why:?}: {advice}"));
    }

    /// Warns that somebody has removed the node's segment: its memory still works, but nobody could find it after a kill.
    fn say_unlinked(&self, path: &Path) {
        self.desk.note_once("memory-segment-vanished", || {
            format!(
                "event=memory-segment-vanished path={}: it was removed during the run, so no checkpoint in node memory survives a kill \
                 any more (level process); the next run makes a new one",
                path.display()
            )
        });
    }

    pub(super) fn place(self: &Arc<Self>, spec: &mut CaptureSpec<'_>, agreement: u64) -> Result<Taken, CaptureError> {
        let identity = &self.setup.identity;
        let rank = identity.rank;
        let held = spec.held.take();
        let version = spec.version;
        if spec.device.is_none() && spec.regions.iter().any(|saved| saved.data.is_on_device()) {
            return Err(CaptureError::NoCaches { rank, name: spec.name.clone(), version });
        }
        if held.is_none() && spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Held { .. })) {
            return Err(self.no_tier(&spec.name, version, vec![GONE.into()]));
        }
        let series = identity.series(&spec.name);
        let origin = self.books().origin(&spec.name);
        let layout = self.layout(&spec.name, &spec.regions, held.as_ref().map_or(0, Held::head))?;
        let header = layout.header(identity.key(version, spec.operation), agreement, identity.size, rank, origin);
        let _call = spec.device.map(|device| device.caches.capturing());
        if let Some(held) = held {
            return self.place_held(spec, held, &layout, &header);
        }
        // The cause, in case another tier can take the shard.
        let name = spec.name.clone();
        let cause_of = |error| match error {
            FillError::Tier(cause) => Ok(cause),
            other => Err(self.capture_error(&name, version, other)),
        };
        let digests = || {
            let spare = std::mem::take(&mut *self.spare_digests.lock());
            let count = layout.block_count as usize;
            if spare.len() == count { spare } else { bytemuck::zeroed_vec(count) }
        };
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

    /// Fills as much of a slot as is possible now: device regions may still have to be copied to it. `digests` has those of regions that
    /// are held.
    pub(super) fn fill_slot(
        self: &Arc<Self>,
        spec: &mut CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        slot: SlotMut,
        digests: Vec<Digest>,
    ) -> Result<Taken, FillError> {
        let parts = capture::device_parts(layout, &spec.regions);
        let is_marked = self.is_to_be_marked(spec, &parts, &slot);
        match self.watch_live(spec, layout, is_marked || parts.is_empty()) {
            None if !is_marked => self.copy_to_slot(spec, layout, header, slot, digests, parts),
            live => self.mark_slot(spec, layout, header, slot, digests, parts, live),
        }
    }

    /// Copies the regions to the slot; those in device memory are copied before the application continues.
    fn copy_to_slot(
        &self,
        spec: &CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        mut slot: SlotMut,
        mut digests: Vec<Digest>,
        parts: Vec<DevicePart>,
    ) -> Result<Taken, FillError> {
        let device = spec.device.filter(|_| !parts.is_empty());
        let block = layout.block_size;
        // Rows have no blocks before they are packed.
        let may_know = !capture::has_rows(&parts);
        let known = self
            .known(spec, layout, &slot)
            .filter(|known| may_know && known.is_as_long(layout, parts.iter().map(|part| part.region)));
        // If older versions are known, the digests suffice at first.
        let digesting = match device.filter(|_| known.is_some()) {
            Some(OnDevice { stream, .. }) => capture::begin_digests(&parts, block, stream)?,
            None => None,
        };
        // Without threads nobody would copy it to the slot.
        let stage = |parts: &[DevicePart]| match device.filter(|_| !self.setup.is_inline) {
            Some(OnDevice { caches, stream, .. }) => caches.stage(parts, block, stream),
            None => Ok(None),
        };
        let mut staged = if known.is_none() { stage(&parts)? } else { None };
        // The host regions, while the device computes.
        let here = known.as_ref().map(|known| &known.here.digests[..]);
        capture::copy_host(layout, &spec.regions, slot.as_mut_slice(), &mut digests, here);
        capture::read_kept(layout, &spec.regions, slot.as_mut_slice(), &mut digests)?;
        let regions: Vec<usize> = parts.iter().map(|part| part.region).collect();
        let (mut wanted, mut fill, mut changed, mut is_partial) = (parts, None, None, false);
        if let Some(known) = known {
            if let Some(digesting) = digesting {
                capture::place_digests(&wanted, &digesting.digests()?, &mut digests);
            }
            let Compared { changed: blocks, older } = known.compare(&digests);
            changed = Some(blocks.iter().map(|blocks| blocks.len()).sum());
            // More pieces than this take longer than one copy of everything.
            is_partial = blocks.len() <= PIECES_MAX;
            if is_partial {
                wanted = capture::some_blocks(&wanted, block, &blocks)?;
                fill = known.fill(layout, &regions, &older);
                self.reporter().count(|stats| stats.reduction.partial_captures += 1);
            }
            staged = stage(&wanted)?;
        }
        let unsealed =
            |digests| Unsealed { name: spec.name.clone(), layout: layout.clone(), header: header.clone(), digests };
        if let Some(mut staged) = staged {
            capture::place_digests(&wanted, &staged.digests()?, &mut digests);
            self.remains.lock().captured(&spec.name, &digests, changed);
            self.reporter().count(|stats| stats.staged_captures += 1);
            let unsealed = unsealed(digests);
            return Ok(Taken::Staged(Box::new(Descent { staged, slot, unsealed, regions, fill, is_partial })));
        }
        if let Some(OnDevice { caches, stream, .. }) = device {
            if !is_partial {
                self.reducer.found_no_room(&spec.name);
            }
            if changed.is_none() {
                capture::digest_on_device(&wanted, block, stream, &mut digests)?;
            }
            capture::download(&wanted, block, slot.as_mut_slice(), stream, &mut digests)?;
            caches.pin_soon(&slot, wanted.iter().map(|part| part.memory.bytes()).sum());
        }
        if let Some(Err(flipped)) = fill.map(|fill| fill.copy_to(slot.as_mut_slice())) {
            self.remains.lock().forget();
            return Err(FillError::Tier(format!("memory tier: {flipped}")));
        }
        self.remains.lock().captured(&spec.name, &digests, changed);
        if self.setup.later.is_some() {
            return Ok(Taken::Marked(Box::new(Marked::whole(slot, unsealed(digests)))));
        }
        let placed = self.seal(unsealed(digests), slot).map_err(FillError::Tier)?;
        Ok(Taken::Placed(Box::new(placed)))
    }

    /// What a capture into a slot need not store.
    fn known(&self, spec: &CaptureSpec<'_>, layout: &Layout, slot: &SlotMut) -> Option<Known> {
        let segment = self.setup.memory.as_ref().filter(|_| self.reducer.is_on())?;
        let known = self.remains.lock().begin(segment, &spec.name, spec.operation, layout, slot)?;
        // Held regions have been written to the slot since then.
        let is_held = spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Held { .. }));
        let newest = known.newest.header.key.operation;
        (!is_held && self.reducer.may_leave_out(&spec.name, newest)).then_some(known)
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
        if self.reducer.is_on() || self.has_marked.load(Ordering::Relaxed) {
            self.remains.lock().sealed(name, sealed, Source::Memory(shard.clone()).shared_head());
        }
        log::debug!("event=captured rank={} version={version} operation={operation} bytes={length}", self.setup.rank());
        // The whole slot stays taken, however short the shard became.
        let is_linked = segment.is_linked();
        let is_level = room + length <= self.slot_share() && is_linked;
        let on = if is_level { TierSet::of(TierId::MEMORY) } else { TierSet::NONE };
        if !is_linked {
            self.say_unlinked(segment.path());
        }
        // Populates memory for the next capture, out of this rank's share and never out of the memory that the others need.
        let held = self.books().slots_beside(operation) as u64;
        if (held + 2) * room <= self.slot_share() {
            self.prepare_room(room);
        }
        Ok(Placed { source: Source::Memory(shard), slot: Some(sealed), direct: None, on })
    }

    /// The part of the segment that one rank may use if all use the same: in whole extents, because each extent has one owner.
    fn slot_share(&self) -> u64 {
        let ranks = self.setup.identity.node_ranks.len() as u64;
        self.setup.memory.as_ref().map_or(0, |segment| {
            let header = segment.header();
            header.extent_count / ranks * header.extent_size
        })
    }

    /// Begins a file for a shard of this rank while the application waits. Returns the cause if that failed, `None` if the tier is off.
    pub(super) fn begin_file(
        &self,
        series: &Series,
        key: &CheckpointKey,
        tier: TierId,
    ) -> Option<Result<Box<dyn Upload>, String>> {
        let directory = self.tier(tier)?;
        // The application itself would wait for that tier, and nothing could end the wait.
        if self.stuck().has(tier) {
            let (path, warn) = (directory.root().display(), self.setup.config.job.timeouts.warn);
            let why = format!("{tier} tier: {path} seems to hang: writes there have made no progress for {warn:?}");
            return Some(Err(why));
        }
        let path = directory.folder_path(series, key).join(rank_file(self.setup.rank()));
        let begun = directory.begin(&path, Writers::One);
        Some(begun.map_err(|error| {
            self.reporter().on_tier_failure(tier, &error);
            error.to_string()
        }))
    }

    /// Writes the missing rest of the shard before the application continues.
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
                self.reporter().count(|stats| stats.direct_captures += 1);
                let (source, on) = (Source::File(shard), TierSet::of(tier));
                let placed = Placed { source, slot: None, direct: Some(upload), on };
                Ok(Taken::Placed(Box::new(placed)))
            }
            Err(error) => {
                upload.discard();
                if let FileError::Tier(error) = &error {
                    self.reporter().on_tier_failure(tier, error);
                }
                Err(error.into())
            }
        }
    }

    /// Reserves a slot of `bytes`, and waits for room if need be; `None` if the tier is off, the reason if there is no room.
    pub(super) fn wait_for_slot(&self, operation: u64, bytes: u64) -> Result<Option<SlotMut>, String> {
        let Some(segment) = &self.setup.memory else { return Ok(None) };
        let _waiting = self.waiting.begin();
        let clock = &self.setup.clock;
        let started = clock.now();
        let (mut waited, mut is_last_look) = (false, false);
        loop {
            let seen = self.seen();
            let in_flight = self.books().in_flight().count();
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
            // Another rank that is late may occupy memory that it is about to give back.
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
                log::info!("event=waiting-for-room rank={} bytes={bytes}", self.setup.rank());
            }
            if !self.pump() {
                self.pause(seen, Duration::from_micros(100));
            }
        }
    }

    /// Does an older checkpoint in flight use the board entry of this operation? The boards of the node segment are rings.
    fn has_board_conflict(&self, operation: u64) -> bool {
        let books = self.books();
        let mut others = books.in_flight().map(|facts| facts.key.operation).filter(|other| *other != operation);
        others.any(|other| other % BOARD_OPERATIONS == operation % BOARD_OPERATIONS)
    }

    fn note_room_wait(&self, waited: bool, started: Duration) {
        if waited {
            let took = self.setup.now().saturating_sub(started);
            self.reporter().count(|stats| {
                stats.room_waits += 1;
                stats.room_wait_total += took;
            });
            log::info!("event=waited-for-room rank={} seconds={:.6}", self.setup.rank(), took.as_secs_f64());
        }
    }

    /// Frees what may be freed now; true if something was freed, or will be when the current writes are done.
    fn can_free(&self, crowded: bool) -> bool {
        crowded || self.decide(Books::on_pressed) || self.books().will_release()
    }

    /// Makes a shard of a slot that has all its bodies.
    pub(super) fn seal(&self, unsealed: Unsealed, mut slot: SlotMut) -> Result<Placed, String> {
        let Unsealed { name, layout, header, digests } = unsealed;
        let head = capture::write_head(&layout, &header, digests, slot.as_mut_slice());
        self.seal_slot(&name, head, slot)
    }

    pub(super) fn vote_on(&self, agreement: u64, call: &str, placed: &Placed) -> Ballot {
        let uses = self.reducer.captured(&placed.source);
        Ballot::of(self.setup.rank(), agreement, call, placed.payload()).with_sums(uses)
    }
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
