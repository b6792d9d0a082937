//! This run's segment, as one of the node's ranks holds it.
#![forbid(unsafe_code)]

use super::arena::{Arena, Plan, Room};
use super::board::Boards;
use super::layout::{BUDGET_MAX, NODE_RANKS_MAX, SLOTS_PER_RANK, SegmentHeader};
use super::map::{self, Loan, Map};
use super::populate::Populator;
use super::room::Gauge;
use super::slots::{Entry, Sealed, SlotMut, SlotRef};
use super::state::{SlotId, SlotState};
use super::token::Queue;
use super::{Refusal, SegmentError, SegmentSpec, file};
use crate::base::ids::Level;
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::base::threads::spawn_scoped;
use crate::base::units::Bytes;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How often this rank tries to claim extents before it gives up. Another rank can be quicker; each time this happens,
/// that rank has made progress.
const CLAIM_ATTEMPTS: u32 = 1000;

/// The node segment of this run. All methods take `&self`; share it between threads as it is.
///
/// Dropping it gives this rank's place up. It never removes the file, which a restart needs, and it does nothing in a forked child.
pub struct Segment {
    pub(super) shared: Arc<Shared>,
}

/// What the handle, the slots and the leases share.
pub(super) struct Shared {
    pub(super) map: Arc<Map>,
    path: PathBuf,
    pub(super) header: SegmentHeader,
    pub(super) node_rank: u32,
    populator: Populator,
    closed: AtomicBool,
    /// The part of waiting for tokens that concerns this process only.
    pub(super) queue: Queue,
    /// Held while new extents are claimed and populated.
    turn: Lock<()>,
    books: Lock<Books>,
}

/// What this process knows about its own slots and extents.
struct Books {
    arena: Arena,
    /// One entry per slot of the directory, in step with the state words there.
    slots: Vec<Held>,
    refusal: Option<Refusal>,
}

/// Who holds a slot.
enum Held {
    Nobody,
    /// A `SlotMut`, or the readers of a retired slot.
    Elsewhere,
    /// The book itself, and perhaps readers.
    Sealed(Arc<Sealed>),
}

impl Segment {
    /// Makes the segment and takes node rank 0's place in it. The node's first rank calls it.
    ///
    /// # Errors
    /// [`SegmentError::Exists`] if the name is in use, [`SegmentError::Limit`] or [`SegmentError::Name`] for a bad specification,
    /// [`SegmentError::Os`] if the directory or its free space does not allow a segment; no file is left behind then.
    pub fn create(spec: &SegmentSpec) -> Result<Segment, SegmentError> {
        check_spec(spec, 0)?;
        let path = file::path_of(&spec.directory, &spec.name)?;
        file::warn_unless_memory(&spec.directory);
        let header = SegmentHeader::of(spec);
        let file = file::create_new(&path)?;
        let made = lock_place(&file, &path, 0).and_then(|()| {
            file::format_new(&file, &path, &header)?;
            Segment::open(file, path.clone(), &spec.directory, header, 0)
        });
        if made.is_err() {
            // Nobody else has it: an unfinished segment is never taken for a whole one.
            if let Err(error) = std::fs::remove_file(&path) {
                log::warn!("cannot remove an unfinished segment path={} error=\"{error}\"", path.display());
            }
        }
        let segment = made?;
        log::info!(
            "segment created path={} budget={} extents={} extent={} node_ranks={}",
            segment.shared.path.display(),
            Bytes(header.budget),
            header.extent_count,
            Bytes(header.extent_size),
            header.node_ranks
        );
        Ok(segment)
    }

    /// Maps the segment that the node's first rank made, and takes `node_rank`'s place in it.
    ///
    /// # Errors
    /// [`SegmentError::NotFound`] or [`SegmentError::Unfinished`] while the segment does not exist or is incomplete
    /// ([`SegmentError::is_not_there`]: try again), [`SegmentError::NotOurs`], [`SegmentError::Damaged`],
    /// [`SegmentError::Mismatch`] if it belongs to another run, [`SegmentError::RankTaken`], [`SegmentError::Used`],
    /// [`SegmentError::Limit`], [`SegmentError::Name`], [`SegmentError::Os`].
    pub fn attach(spec: &SegmentSpec, node_rank: u32) -> Result<Segment, SegmentError> {
        check_spec(spec, node_rank)?;
        let path = file::path_of(&spec.directory, &spec.name)?;
        let (file, metadata) = file::open_checked(&path, true)?;
        let header = file::read_header(&file, &path, &metadata)?;
        check_same_run(spec, &header, &path)?;
        lock_place(&file, &path, node_rank)?;
        file::reserve_control(&file, &path, &header)?;
        let segment = Segment::open(file, path, &spec.directory, header, node_rank)?;
        segment.shared.check_unused()?;
        segment.shared.clear_tokens();
        Ok(segment)
    }

    fn open(
        file: File,
        path: PathBuf,
        directory: &Path,
        header: SegmentHeader,
        node_rank: u32,
    ) -> Result<Segment, SegmentError> {
        let map = Map::new(file, header.control_len(), header.file_len())
            .map_err(|errno| SegmentError::os(&path, "mmap", errno))?;
        let books = Books {
            arena: Arena::new(header.extent_size, header.extent_count, node_rank, header.node_ranks),
            slots: (0..SLOTS_PER_RANK).map(|_| Held::Nobody).collect(),
            refusal: None,
        };
        let shared = Shared {
            map: Arc::new(map),
            path,
            header,
            node_rank,
            populator: Populator::new(Gauge::new(directory, header.node_ranks)),
            closed: AtomicBool::new(false),
            queue: Queue::default(),
            turn: Lock::at(crate::base::sync::Order::Outer, ()),
            books: Lock::new(books),
        };
        Ok(Segment { shared: Arc::new(shared) })
    }

    /// What the header says.
    pub fn header(&self) -> &SegmentHeader {
        &self.shared.header
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Bytes of all extents of the node together.
    pub fn capacity(&self) -> u64 {
        self.shared.header.data_len()
    }

    /// This process's place among the ranks of the node.
    pub fn node_rank(&self) -> u32 {
        self.shared.node_rank
    }

    /// Ranks of the node that have a place in the segment.
    pub fn node_ranks(&self) -> u32 {
        self.shared.header.node_ranks
    }

    /// Turns asking for huge pages on (the default) or off. Affects only extents that are populated after the call.
    pub fn set_huge_pages(&self, on: bool) {
        self.shared.populator.set_huge_pages(on);
    }

    /// A slot with `bytes` of contiguous, populated, page-aligned memory, or `None` if there is no room now.
    /// [`Segment::refusal`] then says why, and a later call may succeed.
    ///
    /// # Blocking
    /// Does not block if this rank has warm memory for the slot. Otherwise blocks for as long as populating takes (0.1
    /// to 0.5 s per GiB), and before that for a [`Segment::prepare`] that is under way in another thread.
    ///
    /// # Errors
    /// [`SegmentError::TooLarge`] if it never fits, [`SegmentError::Closed`], [`SegmentError::Forked`].
    pub fn reserve(&self, bytes: u64) -> Result<Option<SlotMut>, SegmentError> {
        let shared = &self.shared;
        shared.check_open()?;
        shared.check_fits(bytes)?;
        let Some(index) = shared.take_index() else { return Ok(shared.refuse(Refusal::Slots)) };
        match shared.find_room(bytes, false) {
            Ok(Room { offset, length, remains }) => {
                let loan = shared.lend(offset, length);
                Ok(Some(SlotMut::new(Arc::clone(shared), loan, index, bytes, remains)))
            }
            Err(refusal) => {
                shared.books().slots[index as usize] = Held::Nobody;
                Ok(shared.refuse(refusal))
            }
        }
    }

    /// Populates memory in advance, so that the next [`Segment::reserve`] of that many bytes finds it warm. `false`
    /// if there is no room now.
    ///
    /// # Blocking
    /// Blocks for as long as populating takes. Meant to be called from a background thread.
    ///
    /// # Errors
    /// As [`Segment::reserve`].
    pub fn prepare(&self, bytes: u64) -> Result<bool, SegmentError> {
        let shared = &self.shared;
        shared.check_open()?;
        shared.check_fits(bytes)?;
        let turn = shared.turn();
        if shared.books().arena.free_longest() >= Arena::rounded(bytes) {
            return Ok(true);
        }
        match shared.claim_room(bytes, &turn, true) {
            Ok(plan) => {
                shared.books().arena.keep(plan.offset, plan.length);
                Ok(true)
            }
            Err(refusal) => {
                shared.refuse::<()>(refusal);
                Ok(false)
            }
        }
    }

    /// Why the last [`Segment::reserve`] or [`Segment::prepare`] found no room.
    pub fn refusal(&self) -> Option<Refusal> {
        self.shared.books().refusal
    }

    /// Bytes that this rank could still reserve now, perhaps not in one piece: its own free memory, memory that nobody
    /// owns and that is already populated, and as much of the rest as the node can still give.
    ///
    /// # Errors
    /// [`SegmentError::Os`] if the file system cannot be asked.
    pub fn room(&self) -> Result<u64, SegmentError> {
        let shared = &self.shared;
        let (mut warm, mut cold) = (shared.books().arena.free_bytes(), 0);
        for extent in 0..shared.header.extent_count {
            if shared.owner(extent).load(Relaxed) == 0 {
                let share = if shared.is_populated(extent) { &mut warm } else { &mut cold };
                *share += shared.header.extent_size;
            }
        }
        Ok(warm + cold.min(shared.populator.gauge.read()?.least))
    }

    /// Bytes that this process has populated afresh so far. The number does not grow while slots are reused warm.
    pub fn populated_bytes(&self) -> u64 {
        self.shared.populator.fresh_bytes()
    }

    /// Bytes of the node's memory that the segment occupies now, whichever rank uses them.
    pub fn taken_bytes(&self) -> u64 {
        let header = &self.shared.header;
        let populated = (0..header.extent_count).filter(|extent| self.shared.is_populated(*extent)).count() as u64;
        populated * header.extent_size
    }

    /// The bytes of a sealed slot, or `None` if it has been retired.
    pub fn sealed(&self, slot: SlotId) -> Option<SlotRef> {
        match self.shared.books().slots.get(slot.index as usize)? {
            Held::Sealed(sealed) if sealed.id == slot => Some(SlotRef(Arc::clone(sealed))),
            _ => None,
        }
    }

    /// Notes in the slot's entry that its checkpoint is committed at `level`. `false` if the slot has been retired.
    ///
    /// # Errors
    /// [`SegmentError::Forked`].
    pub fn set_committed(&self, slot: SlotId, level: Level) -> Result<bool, SegmentError> {
        self.if_sealed(slot, |entry| entry.set_level(level))
    }

    /// Declares that a sealed slot is not itself a level: it is retired when its bytes have been written elsewhere, so
    /// other ranks may wait for its room. `false` if it was already retired.
    ///
    /// # Errors
    /// [`SegmentError::Forked`].
    pub fn let_pass(&self, slot: SlotId) -> Result<bool, SegmentError> {
        self.if_sealed(slot, |entry| entry.let_pass())
    }

    fn if_sealed(&self, slot: SlotId, change: impl FnOnce(Entry<'_>)) -> Result<bool, SegmentError> {
        self.shared.check_mine()?;
        let books = self.shared.books();
        let held = matches!(books.slots.get(slot.index as usize), Some(Held::Sealed(sealed)) if sealed.id == slot);
        if held {
            change(self.shared.entry(slot.index));
        }
        Ok(held)
    }

    /// Gives a sealed slot up. Its room is free once the last [`SlotRef`] is dropped. `false` if it was already retired.
    ///
    /// # Errors
    /// [`SegmentError::Forked`].
    pub fn retire(&self, slot: SlotId) -> Result<bool, SegmentError> {
        self.shared.check_mine()?;
        let mut books = self.shared.books();
        let held = match books.slots.get_mut(slot.index as usize) {
            Some(held @ Held::Sealed(_)) => held,
            _ => return Ok(false),
        };
        match std::mem::replace(held, Held::Elsewhere) {
            Held::Sealed(sealed) if sealed.id == slot => {
                self.shared.entry(slot.index).retire(slot.uses);
                // The last holder frees the room, for which it takes the books.
                drop(books);
                drop(sealed);
                Ok(true)
            }
            other => {
                *held = other;
                Ok(false)
            }
        }
    }

    /// Retires slots that nobody needs. A slot that cannot be retired is reported in the log.
    pub fn retire_all(&self, slots: impl IntoIterator<Item = SlotId>) {
        for slot in slots {
            if let Err(error) = self.retire(slot) {
                log::warn!("event=slot-not-retired error={error}");
            }
        }
    }

    /// Publishes this rank's value for an operation to the ranks of the node. `false` if the ring of 64 operations has
    /// already passed this number, or the number is 2^47 or more. Posting again replaces the value.
    pub fn post(&self, operation: u64, value: u64) -> bool {
        self.shared.boards().post(operation, value)
    }

    /// The value that a rank of the node posted for an operation.
    pub fn read(&self, node_rank: u32, operation: u64) -> Option<u64> {
        self.shared.boards().read(node_rank, operation)
    }

    /// Counts this call for an operation and returns how many arrived before it on this node. The rank that gets `node_ranks
    /// - 1` also sees everything that the others posted before they arrived. `None` if the ring has passed this number.
    pub fn arrive(&self, operation: u64) -> Option<u32> {
        self.shared.boards().arrive(operation)
    }

    /// Arrivals at an operation so far.
    pub fn arrived(&self, operation: u64) -> u32 {
        self.shared.boards().arrived(operation)
    }

    /// Publishes the outcome of an operation. The first value stays; `false` if this was not the first, or if an
    /// operation 64 numbers away uses the entry.
    pub fn set_outcome(&self, operation: u64, value: u64) -> bool {
        self.shared.boards().set_outcome(operation, value)
    }

    /// The outcome of an operation, once a rank of the node has set it.
    pub fn outcome(&self, operation: u64) -> Option<u64> {
        self.shared.boards().outcome(operation)
    }

    /// Does a living process hold another rank's place? (For its own place, a process always gets `false`.)
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn is_peer_alive(&self, node_rank: u32) -> Result<bool, SegmentError> {
        map::is_locked(self.shared.map.file(), u64::from(node_rank), 1)
            .map_err(|errno| SegmentError::os(&self.shared.path, "fcntl", errno))
    }

    /// Does another living rank of the node hold a slot that will become free without any help from a rank that is about to
    /// begin `operation`? Such a slot belongs to an earlier operation and is either committed at no level yet (it will be
    /// committed or given back) or only passing through ([`Segment::let_pass`]), or it is retired and still read. A slot of
    /// the operation itself would wait for that rank, and a committed slot stays.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn others_give_back(&self, operation: u64) -> Result<bool, SegmentError> {
        let shared = &self.shared;
        for rank in (0..shared.header.node_ranks).filter(|rank| *rank != shared.node_rank) {
            let entry = |index| Entry { map: &shared.map, at: shared.header.slot_offset(rank, index) };
            if (0..SLOTS_PER_RANK).any(|index| entry(index).ends_without(operation)) && self.is_peer_alive(rank)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has this rank retired a slot that is still read? Its room is free in a moment.
    pub fn is_still_read(&self) -> bool {
        let retired = |index| self.shared.entry(index).state().0 == Some(SlotState::Retired);
        (0..SLOTS_PER_RANK).any(retired)
    }

    /// Does the file still have its name? If somebody removed the name, the next run cannot find the file, which is
    /// then no longer a level.
    pub fn is_linked(&self) -> bool {
        file::is_linked(self.shared.map.file(), &self.shared.path)
    }

    /// Gives this rank's place up and, if `unlink`, removes the file's name (unless another file has that name by now).
    /// Memory stays mapped for as long as slots are held. Closing twice is harmless.
    ///
    /// # Errors
    /// [`SegmentError::Forked`], [`SegmentError::Os`]; the segment is closed nevertheless.
    pub fn close(&self, unlink: bool) -> Result<(), SegmentError> {
        self.shared.check_mine()?;
        let first = !self.shared.closed.swap(true, AcqRel);
        let file = self.shared.map.file();
        let unlinked = if unlink { file::unlink(file, &self.shared.path) } else { Ok(()) };
        if first {
            map::unlock_byte(file, self.shared.node_rank)
                .map_err(|errno| SegmentError::os(&self.shared.path, "fcntl", errno))?;
            log::info!("segment closed path={} unlink={unlink}", self.shared.path.display());
        }
        unlinked
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, node rank {})", self.shared.path.display(), self.shared.node_rank)
    }
}

impl Shared {
    pub(super) fn check_mine(&self) -> Result<(), SegmentError> {
        if self.map.is_mine() { Ok(()) } else { Err(SegmentError::Forked) }
    }

    pub(super) fn check_open(&self) -> Result<(), SegmentError> {
        self.check_mine()?;
        if self.closed.load(Acquire) { Err(SegmentError::Closed) } else { Ok(()) }
    }

    pub(super) fn check_fits(&self, bytes: u64) -> Result<(), SegmentError> {
        let capacity = self.header.data_len();
        if Arena::rounded(bytes) <= capacity { Ok(()) } else { Err(SegmentError::TooLarge { bytes, capacity }) }
    }

    /// Makes sure that this rank starts with nothing, as the books assume.
    fn check_unused(&self) -> Result<(), SegmentError> {
        let slots = (0..SLOTS_PER_RANK).any(|index| self.entry(index).state().0 != Some(SlotState::Empty));
        let extents = (0..self.header.extent_count).any(|extent| self.owner(extent).load(Relaxed) == self.owner_mark());
        if slots || extents {
            return Err(SegmentError::Used { path: self.path.clone(), node_rank: self.node_rank });
        }
        Ok(())
    }

    fn books(&self) -> Guard<'_, Books> {
        self.books.lock()
    }

    fn turn(&self) -> Guard<'_, ()> {
        self.turn.lock()
    }

    /// Notes why there is no room, and returns `None`.
    pub(super) fn refuse<T>(&self, refusal: Refusal) -> Option<T> {
        log::debug!("no room path={} node_rank={} reason=\"{refusal}\"", self.path.display(), self.node_rank);
        self.books().refusal = Some(refusal);
        None
    }

    /// An unused slot, set aside for the caller.
    fn take_index(&self) -> Option<u32> {
        let mut books = self.books();
        let index = books.slots.iter().position(|held| matches!(held, Held::Nobody))?;
        books.slots[index] = Held::Elsewhere;
        Some(index as u32)
    }

    /// Takes a range of populated memory: owned and warm if possible, otherwise from new extents.
    pub(super) fn find_room(&self, bytes: u64, in_background: bool) -> Result<Room, Refusal> {
        if let Some(range) = self.books().arena.take(bytes) {
            return Ok(range);
        }
        let turn = self.turn();
        // The thread that had the turn before may have prepared exactly this range.
        if let Some(range) = self.books().arena.take(bytes) {
            return Ok(range);
        }
        let plan = self.claim_room(bytes, &turn, in_background)?;
        Ok(Room { offset: plan.offset, length: plan.length, remains: None })
    }

    /// Takes a range for which new extents are needed: claims and populates them. `_turn` proves that the caller has the turn.
    fn claim_room(&self, bytes: u64, _turn: &Guard<'_, ()>, in_background: bool) -> Result<Plan, Refusal> {
        let plan = self.claim(bytes)?;
        match self.populate(&plan.new_extents, in_background) {
            Ok(()) => {
                self.books().arena.settle(&plan);
                Ok(plan)
            }
            Err(refusal) => {
                let gone = self.books().arena.release(&plan);
                self.disown(&gone);
                Err(refusal)
            }
        }
    }

    /// Finds a range and claims its new extents, all or none.
    fn claim(&self, bytes: u64) -> Result<Plan, Refusal> {
        for _ in 0..CLAIM_ATTEMPTS {
            let mut books = self.books();
            let plan = books.arena.plan(bytes, |extent| self.owner(extent).load(Relaxed) == 0);
            let plan = plan.ok_or(Refusal::Budget { bytes })?;
            let lost = plan.new_extents.iter().position(|extent| !self.try_own(*extent));
            match lost {
                None => {
                    books.arena.hold(&plan);
                    return Ok(plan);
                }
                Some(count) => self.disown(&plan.new_extents[..count]),
            }
        }
        Err(Refusal::Budget { bytes })
    }

    /// Populates extents that belong to this rank and are held in the arena. In the background it uses several threads,
    /// because one thread clears pages at a fraction of the memory's speed.
    fn populate(&self, extents: &[u64], in_background: bool) -> Result<(), Refusal> {
        let threads = if in_background { self.populator.threads() } else { 1 };
        let share = extents.len().div_ceil(threads).max(1);
        if extents.len() <= share {
            return self.populate_some(extents, in_background);
        }
        std::thread::scope(|scope| {
            let start = |part| {
                // If no thread can be started for a share, this thread does the work.
                let started = spawn_scoped(scope, "bvk-touch", move || self.populate_some(part, in_background));
                started.map_err(|_| self.populate_some(part, in_background))
            };
            let parts: Vec<_> = extents.chunks(share).map(start).collect();
            // All threads have ended before any refusal is passed on, because the caller takes the extents back.
            let end = |part: Result<std::thread::ScopedJoinHandle<'_, _>, _>| match part {
                Ok(thread) => thread.join().unwrap_or(Err(Refusal::Os { call: "thread", errno: 0 })),
                Err(done) => done,
            };
            let ends: Vec<_> = parts.into_iter().map(end).collect();
            ends.into_iter().collect()
        })
    }

    /// Populates extents on this thread, in groups of neighbours of the same kind.
    fn populate_some(&self, extents: &[u64], in_background: bool) -> Result<(), Refusal> {
        let group_max = (self.populator.batch() / self.header.extent_size).max(1) as usize;
        let mut rest = extents;
        while let Some(first) = rest.first() {
            let warm = self.is_populated(*first);
            let count = rest
                .iter()
                .zip(*first..)
                .take(group_max)
                .take_while(|(extent, next)| **extent == *next && self.is_populated(**extent) == warm)
                .count();
            let mut loan = self.lend(first * self.header.extent_size, count as u64 * self.header.extent_size);
            if warm {
                self.populator.enter_all(&mut loan)?;
            } else {
                self.populator.fresh(&mut loan, in_background)?;
                for extent in &rest[..count] {
                    self.populated_word(*extent).store(1, Release);
                }
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Lends a range (offset in the data area) that the arena has given out.
    fn lend(&self, offset: u64, length: u64) -> Loan {
        let loan = self.map.lend(self.header.data_offset() + offset, length);
        loan.expect("the arena gives no byte out twice, and loans end before their range is given back")
    }

    fn owner(&self, extent: u64) -> &AtomicU64 {
        self.map.word(self.header.extent_offset(extent))
    }

    fn populated_word(&self, extent: u64) -> &AtomicU64 {
        self.map.word(self.header.extent_offset(extent) + 8)
    }

    fn is_populated(&self, extent: u64) -> bool {
        self.populated_word(extent).load(Acquire) != 0
    }

    /// How owner words name this rank. Never zero, which stands for nobody.
    fn owner_mark(&self) -> u64 {
        (self.header.generation.0 & 0xffff_ffff) << 32 | (u64::from(self.node_rank) + 1)
    }

    fn try_own(&self, extent: u64) -> bool {
        self.owner(extent).compare_exchange(0, self.owner_mark(), AcqRel, Relaxed).is_ok()
    }

    fn disown(&self, extents: &[u64]) {
        for extent in extents {
            self.owner(*extent).store(0, Release);
        }
    }

    pub(super) fn entry(&self, index: u32) -> Entry<'_> {
        Entry { map: &self.map, at: self.header.slot_offset(self.node_rank, index) }
    }

    fn boards(&self) -> Boards<'_> {
        Boards { map: &self.map, header: &self.header, node_rank: self.node_rank }
    }

    /// Lets the book hold a slot that has been sealed.
    pub(super) fn on_sealed(&self, sealed: Arc<Sealed>) {
        let index = sealed.id.index as usize;
        self.books().slots[index] = Held::Sealed(sealed);
    }

    /// Frees the room of a slot that nobody holds any more. What it `was_sealed` with remains there for the time being. In a forked child
    /// nothing happens: the books belong to the parent.
    pub(super) fn on_free(&self, loan: Loan, slot: SlotId, was_sealed: bool) {
        if !self.map.is_mine() {
            return;
        }
        let (offset, length) = (loan.offset() - self.header.data_offset(), loan.len());
        drop(loan);
        self.entry(slot.index).clear(slot.uses);
        let mut books = self.books();
        books.slots[slot.index as usize] = Held::Nobody;
        if was_sealed {
            books.arena.leave(offset, length, slot);
        }
        let gone = books.arena.give(offset, length);
        drop(books);
        self.disown(&gone);
    }

    /// Frees a taken range (offset in the data area) of which no loan is out. In a forked child nothing happens.
    pub(super) fn give_back(&self, offset: u64, length: u64) {
        if self.map.is_mine() {
            let gone = self.books().arena.give(offset, length);
            self.disown(&gone);
        }
    }

    /// The address of a range (offset in the data area) that belongs to a slot or a lease of this rank and whose pages all exist.
    pub(super) fn address_of(&self, offset: u64, length: u64) -> Option<usize> {
        if !self.map.is_mine() || !self.books().arena.is_taken(offset, length) {
            return None;
        }
        // A taken range lacks pages while another thread is still populating it.
        let mut extents = offset / self.header.extent_size..=(offset + length - 1) / self.header.extent_size;
        let is_there = extents.all(|extent| self.is_populated(extent));
        is_there.then(|| self.map.address(self.header.data_offset() + offset, length))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The lock is given back explicitly, because a child process that shares the opening (for example one that is
        // just being started) would keep it alive.
        if self.map.is_mine()
            && !self.closed.load(Acquire)
            && let Err(errno) = map::unlock_byte(self.map.file(), self.node_rank)
        {
            log::warn!("cannot give the liveness lock back path={} errno={errno}", self.path.display());
        }
    }
}

fn lock_place(file: &File, path: &Path, node_rank: u32) -> Result<(), SegmentError> {
    match map::lock_byte(file, node_rank) {
        Ok(true) => Ok(()),
        Ok(false) => Err(SegmentError::RankTaken { path: path.to_owned(), node_rank }),
        Err(errno) => Err(SegmentError::os(path, "fcntl", errno)),
    }
}

fn check_spec(spec: &SegmentSpec, node_rank: u32) -> Result<(), SegmentError> {
    let limit = |what, value: u64, allowed: String| Err(SegmentError::Limit { what, value, allowed });
    if spec.node_ranks == 0 || spec.node_ranks > NODE_RANKS_MAX {
        return limit("the number of ranks on the node", spec.node_ranks.into(), format!("1 to {NODE_RANKS_MAX}"));
    }
    if spec.group_size < spec.node_ranks {
        return limit("the number of ranks", spec.group_size.into(), format!("{} or more", spec.node_ranks));
    }
    if node_rank >= spec.node_ranks {
        return limit("the rank on the node", node_rank.into(), format!("less than {}", spec.node_ranks));
    }
    if spec.budget > BUDGET_MAX {
        return limit("the memory budget", spec.budget, format!("at most {BUDGET_MAX}"));
    }
    Ok(())
}

fn check_same_run(spec: &SegmentSpec, header: &SegmentHeader, path: &Path) -> Result<(), SegmentError> {
    let fields = [
        ("job", format!("{:016x}", spec.job), format!("{:016x}", header.job)),
        ("group", format!("{:016x}", spec.group), format!("{:016x}", header.group)),
        ("generation", spec.generation.to_string(), header.generation.to_string()),
        ("incarnation", spec.incarnation.to_string(), header.incarnation.to_string()),
        ("number of ranks on the node", spec.node_ranks.to_string(), header.node_ranks.to_string()),
        ("group size", spec.group_size.to_string(), header.group_size.to_string()),
    ];
    match fields.into_iter().find(|(_, expected, found)| expected != found) {
        Some((field, expected, found)) => Err(SegmentError::Mismatch { path: path.to_owned(), field, expected, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Generation, Incarnation};
    use crate::base::units::MIB;

    #[test]
    fn an_extent_has_one_owner_until_it_is_given_back() {
        let place =
            tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let spec = SegmentSpec {
            directory: place.path().to_owned(),
            name: "owners".into(),
            job: 1,
            group: 1,
            generation: Generation(1),
            incarnation: Incarnation([1; 16]),
            store: 0,
            budget: 4 * MIB,
            node_ranks: 2,
            group_size: 2,
        };
        let (one, two) = (Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach"));
        assert!(one.shared.try_own(1));
        assert!(!two.shared.try_own(1) && !one.shared.try_own(1));
        assert_eq!(two.shared.claim(4 * MIB), Err(Refusal::Budget { bytes: 4 * MIB }));
        assert!(two.shared.try_own(0), "a failed claim holds nothing");
        one.shared.disown(&[1]);
        assert!(two.shared.try_own(1));
    }
}
