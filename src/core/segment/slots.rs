//! Slots as values: a slot that is being written, a slot that is sealed and readable, and the entry to which both refer.
#![forbid(unsafe_code)]

use super::SegmentError;
use super::layout::{PASSING, SlotWords, pack_level, pack_state, slot_word, unpack_level, unpack_state};
use super::live::Shared;
use super::map::{Loan, Map};
use super::state::{SlotId, SlotState};
use crate::base::digest::store_fence;
use crate::base::ids::Level;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};

/// What a slot's entry says about the shard in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SealInfo {
    /// The collective operation that took the slot.
    pub operation: u64,
    /// The version that the application gave the checkpoint.
    pub version: u64,
    /// Hash of the checkpoint's name.
    pub name: u64,
}

/// The words of one slot entry. Only the rank that owns the slot writes them.
pub(super) struct Entry<'a> {
    pub(super) map: &'a Map,
    pub(super) at: u64,
}

impl Entry<'_> {
    fn set(&self, word: u64, value: u64) {
        self.map.word(self.at + word).store(value, Relaxed);
    }

    /// State (if the word is sound) and use count.
    pub(super) fn state(&self) -> (Option<SlotState>, u64) {
        unpack_state(self.map.word(self.at + slot_word::STATE).load(Acquire))
    }

    /// Will the slot become free without anything that a rank about to begin `operation` does?
    pub(super) fn ends_without(&self, operation: u64) -> bool {
        let word = |word: u64| self.map.word(self.at + word).load(Acquire);
        match self.state().0 {
            Some(SlotState::Sealed) if word(slot_word::OPERATION) < operation => {
                let level = word(slot_word::LEVEL);
                level & PASSING != 0 || unpack_level(level, word(slot_word::CHECK)) == Some(Level::Captured)
            }
            // Its last readers finish in a moment.
            Some(SlotState::Retired) => true,
            _ => false,
        }
    }

    /// Changes the state of the slot, after all earlier writes.
    fn move_to(&self, next: SlotState, uses: u64) {
        let (state, _) = self.state();
        assert!(state.is_some_and(|state| state.may_become(next)), "a slot cannot go from {state:?} to {next}");
        self.map.word(self.at + slot_word::STATE).store(pack_state(next, uses), Release);
    }

    /// Empty to Writing: place and length are known, everything else is not. Returns the new use count.
    pub(super) fn begin(&self, offset: u64, length: u64) -> u64 {
        let (_, uses) = self.state();
        let uses = (uses + 1) & (u64::MAX >> 8);
        for word in [slot_word::CHECK, slot_word::LEVEL, slot_word::OPERATION, slot_word::VERSION, slot_word::NAME] {
            self.set(word, 0);
        }
        self.set(slot_word::OFFSET, offset);
        self.set(slot_word::LENGTH, length);
        self.move_to(SlotState::Writing, uses);
        uses
    }

    /// Writing to Sealed. Returns the check word.
    fn seal(&self, words: SlotWords, node_rank: u32, index: u32) -> u64 {
        let check = words.check_word(node_rank, index);
        self.set(slot_word::OPERATION, words.operation);
        self.set(slot_word::VERSION, words.version);
        self.set(slot_word::NAME, words.name);
        self.set(slot_word::LEVEL, pack_level(Level::Captured, check));
        self.set(slot_word::CHECK, check);
        self.move_to(SlotState::Sealed, words.uses);
        check
    }

    /// Writes the committed level of a sealed slot.
    pub(super) fn set_level(&self, level: Level) {
        let check = self.map.word(self.at + slot_word::CHECK).load(Relaxed);
        let passing = self.map.word(self.at + slot_word::LEVEL).load(Relaxed) & PASSING;
        self.map.word(self.at + slot_word::LEVEL).store(pack_level(level, check) | passing, Release);
    }

    /// Says that a sealed slot is given back as soon as its bytes have been written elsewhere.
    pub(super) fn let_pass(&self) {
        let level = self.map.word(self.at + slot_word::LEVEL);
        level.store(level.load(Relaxed) | PASSING, Release);
    }

    /// Sealed to Retired.
    pub(super) fn retire(&self, uses: u64) {
        self.move_to(SlotState::Retired, uses);
    }

    /// Writing or Retired to Empty.
    pub(super) fn clear(&self, uses: u64) {
        self.move_to(SlotState::Empty, uses);
    }
}

/// A slot that is being written: memory that exists and belongs to this value alone.
///
/// If it is dropped without [`SlotMut::seal`], its room is given back, and nobody ever sees it.
pub struct SlotMut {
    shared: Arc<Shared>,
    /// Always `Some` until `seal` or `drop` takes it.
    loan: Option<Loan>,
    index: u32,
    uses: u64,
    length: u64,
    room: u64,
    remains: Option<SlotId>,
}

impl SlotMut {
    pub(super) fn new(shared: Arc<Shared>, loan: Loan, index: u32, length: u64, remains: Option<SlotId>) -> SlotMut {
        let uses = shared.entry(index).begin(loan.offset(), length);
        SlotMut { shared, loan: Some(loan), index, uses, length, room: length, remains }
    }

    /// The slot that had exactly this memory, in whole pages, if the memory still holds what that slot was sealed with.
    pub fn remains(&self) -> Option<SlotId> {
        self.remains
    }

    /// Bytes that were asked for, or the rest that shortening has left.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Bytes that were originally asked for, whatever [`SlotMut::shorten`] has left of them.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Leaves only the first `bytes` to be sealed; no more than there are.
    pub fn shorten(&mut self, bytes: u64) {
        self.length = self.length.min(bytes);
        self.shared.entry(self.index).set(slot_word::LENGTH, self.length);
    }

    /// Was nothing asked for?
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where the memory starts, in bytes from the start of the segment's data area; a multiple of 4096.
    pub fn offset(&self) -> u64 {
        self.loan.as_ref().map_or(0, |loan| loan.offset() - self.shared.header.data_offset())
    }

    /// What was written into it.
    pub fn as_slice(&self) -> &[u8] {
        self.loan.as_ref().map_or(&[], |loan| &loan.as_slice()[..self.length as usize])
    }

    /// The slot's memory, exactly as long as asked for, page-aligned. If the slot was used before, it still holds old bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.loan {
            Some(loan) => &mut loan.as_mut_slice()[..self.length as usize],
            None => &mut [],
        }
    }

    /// Declares the bytes complete and unchanging, after a store fence.
    ///
    /// # Errors
    /// [`SegmentError::Forked`] in a forked child.
    pub fn seal(mut self, info: SealInfo) -> Result<SlotId, SegmentError> {
        self.shared.check_mine()?;
        let loan = self.loan.take().ok_or(SegmentError::Closed)?;
        let words = SlotWords {
            uses: self.uses,
            offset: loan.offset(),
            length: self.length,
            operation: info.operation,
            version: info.version,
            name: info.name,
        };
        let data_offset = self.shared.header.data_offset();
        store_fence();
        self.shared.entry(self.index).seal(words, self.shared.node_rank, self.index);
        let id = SlotId { index: self.index, uses: self.uses };
        let shared = Arc::downgrade(&self.shared);
        let sealed = Sealed { shared, loan: Some(loan), id, length: self.length, data_offset };
        self.shared.on_sealed(Arc::new(sealed));
        Ok(id)
    }
}

impl AsRef<[u8]> for SlotMut {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for SlotMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl fmt::Debug for SlotMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotMut({}, {} bytes)", self.index, self.length)
    }
}

impl Drop for SlotMut {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            self.shared.on_free(loan, SlotId { index: self.index, uses: self.uses }, false);
        }
    }
}

/// A sealed slot, freed when the book and all readers have dropped it.
pub(super) struct Sealed {
    /// Weak, because the segment's books hold this value.
    shared: Weak<Shared>,
    /// Always `Some` until `drop` takes it.
    loan: Option<Loan>,
    pub(super) id: SlotId,
    length: u64,
    /// Where the file's data area starts, copied from the segment.
    data_offset: u64,
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // Without the segment, nobody allocates any more: the slot stays sealed in the file for the next run.
        if let (Some(loan), Some(shared)) = (self.loan.take(), self.shared.upgrade()) {
            shared.on_free(loan, self.id, true);
        }
    }
}

/// A reader's hold on a sealed slot: the bytes stay mapped and unchanged while any clone of it lives, even if the slot is
/// retired or the segment is closed meanwhile.
#[derive(Clone)]
pub struct SlotRef(pub(super) Arc<Sealed>);

impl SlotRef {
    /// Where the bytes start, counted from the start of the segment's data area; a multiple of 4096.
    pub fn offset(&self) -> u64 {
        self.0.loan.as_ref().map_or(0, |loan| loan.offset() - self.0.data_offset)
    }
}

impl Deref for SlotRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.loan.as_ref().map_or(&[], |loan| &loan.as_slice()[..self.0.length as usize])
    }
}

impl fmt::Debug for SlotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotRef({}, {} bytes)", self.0.id.index, self.0.length)
    }
}

impl AsRef<[u8]> for SlotRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
