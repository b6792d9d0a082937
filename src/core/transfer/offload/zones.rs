//! The state of each block of a marked shard. Pure.
//!
//! ```text
//!   mark ──▶ Pending ──── sent ───▶ Moving ── a write waits ──▶ Awaited
//!               │ │                  │  │ arrived                  │ arrived
//!               │ └──── doubled ─────┤  └──────────────▶ Safe ◀────┘
//!               │                    ▼                   ▲ ▲
//!               │                 Doubled ── arrived from │ the buffer
//!               └───────────── equal to what the slot holds ┘
//! ```
//!
//! A block is what the paper calls a zone. A block that a write would spoil is *exposed*: these are the Pending, Moving and Awaited ones.
//! An Awaited block can no longer be doubled: the write that waits for it may begin before another stream copies it. If a block was doubled
//! while it was in transit, the bytes that arrive are not used, because somebody may have written meanwhile: its copy in the buffer is sent
//! after them.
//!
//! Source: ICS'19, sections 4.1.3 and 4.3.2.
#![forbid(unsafe_code)]

use std::ops::Range;

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Zone {
    /// It is in live memory only. The value is zero, so that a table of these states costs nothing before it is read.
    Pending = 0,
    /// It is on its way from live memory to the slot.
    Moving,
    /// It is on its way from live memory to the slot, and a write waits for it.
    Awaited,
    /// It is in the buffer, and will sooner or later be sent to the slot.
    Doubled,
    /// It is in the slot.
    Safe,
}

/// An event in the life of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happens {
    /// The slot already holds it.
    Equal,
    /// Its transfer is enqueued.
    Sent,
    /// A write waits for the end of its transfer.
    Awaited,
    /// Its copy into the buffer is enqueued.
    Doubled,
    /// Its transfer has ended.
    Arrived,
    /// The transfer from the buffer has ended.
    Emptied,
}

impl Zone {
    /// All states, by their numbers.
    const ALL: [Zone; 5] = [Zone::Pending, Zone::Moving, Zone::Awaited, Zone::Doubled, Zone::Safe];

    /// The state after an event; `None` if the event is impossible in this state.
    pub fn after(self, happens: Happens) -> Option<Zone> {
        match (self, happens) {
            (Zone::Pending, Happens::Equal) => Some(Zone::Safe),
            (Zone::Pending, Happens::Sent) => Some(Zone::Moving),
            (Zone::Pending | Zone::Moving, Happens::Doubled) => Some(Zone::Doubled),
            (Zone::Moving | Zone::Awaited, Happens::Awaited) => Some(Zone::Awaited),
            (Zone::Moving | Zone::Awaited, Happens::Arrived) => Some(Zone::Safe),
            (Zone::Doubled, Happens::Emptied) => Some(Zone::Safe),
            // The block was doubled while it was on its way.
            (Zone::Doubled, Happens::Arrived) => Some(Zone::Doubled),
            _ => None,
        }
    }

    /// Would a write spoil the block?
    pub fn is_exposed(self) -> bool {
        matches!(self, Zone::Pending | Zone::Moving | Zone::Awaited)
    }
}

/// The states of all blocks of a shard that are on the device, in the order of the shard.
pub(super) struct Zones {
    /// The states, as numbers.
    states: Vec<u8>,
    /// The number of blocks in a piece, a power of two, as its exponent; and for each piece, how many blocks are exposed and how many are
    /// Pending.
    shift: u32,
    exposed: Vec<u32>,
    pending: Vec<u32>,
    /// How many blocks are not Safe.
    left: usize,
    /// How many blocks are Pending.
    all_pending: usize,
}

impl Zones {
    /// `blocks` blocks, all Pending, in pieces of `piece` blocks, a power of two.
    pub fn new(blocks: usize, piece: usize) -> Zones {
        debug_assert!(piece.is_power_of_two());
        let counts = |index: usize| piece.min(blocks - index * piece) as u32;
        let exposed: Vec<u32> = (0..blocks.div_ceil(piece)).map(counts).collect();
        let pending = exposed.clone();
        Zones { states: vec![0; blocks], shift: piece.ilog2(), pending, exposed, left: blocks, all_pending: blocks }
    }

    /// Applies an event to a block. If the event is impossible for the block, an invariant is broken.
    pub fn happens(&mut self, block: usize, happens: Happens) -> Zone {
        let before = self.state(block);
        let after = before.after(happens);
        debug_assert!(after.is_some(), "block {block} is {before:?} and cannot be {happens:?}");
        let after = after.unwrap_or(before);
        self.states[block] = after as u8;
        let (piece, is_taken) = (block >> self.shift, before == Zone::Pending && after != Zone::Pending);
        self.exposed[piece] -= u32::from(before.is_exposed() && !after.is_exposed());
        self.pending[piece] -= u32::from(is_taken);
        self.all_pending -= usize::from(is_taken);
        self.left -= usize::from(before != Zone::Safe && after == Zone::Safe);
        after
    }

    /// Changes the state of several blocks.
    pub fn all(&mut self, blocks: Range<usize>, happens: Happens) {
        for piece in self.pieces_of(&blocks) {
            let own = self.of_piece(piece, &blocks);
            match self.only_state(&own) {
                Some(before) => self.all_alike(piece, own, before, happens),
                None => own.for_each(|block| _ = self.happens(block, happens)),
            }
        }
    }

    /// Changes the state of blocks of one piece that are all in the same state.
    fn all_alike(&mut self, piece: usize, blocks: Range<usize>, before: Zone, happens: Happens) {
        let after = before.after(happens);
        debug_assert!(after.is_some(), "blocks {blocks:?} are {before:?} and cannot be {happens:?}");
        let (after, count) = (after.unwrap_or(before), blocks.len());
        self.states[blocks].fill(after as u8);
        let of = |has_left: bool| if has_left { count } else { 0 };
        self.exposed[piece] -= of(before.is_exposed() && !after.is_exposed()) as u32;
        let taken = of(before == Zone::Pending && after != Zone::Pending);
        self.pending[piece] -= taken as u32;
        self.all_pending -= taken;
        self.left -= of(before != Zone::Safe && after == Zone::Safe);
    }

    /// The blocks, among these, that are in a piece.
    fn of_piece(&self, piece: usize, blocks: &Range<usize>) -> Range<usize> {
        blocks.start.max(piece << self.shift)..blocks.end.min((piece + 1) << self.shift)
    }

    /// The state of blocks that are all in the same one.
    pub fn only_state(&self, blocks: &Range<usize>) -> Option<Zone> {
        let states = &self.states[blocks.clone()];
        let first = *states.first()?;
        // If all are in the same state, this takes one comparison of whole words.
        let is_only = states.iter().fold(0, |differs, state| differs | (state ^ first)) == 0;
        is_only.then(|| Zone::ALL[usize::from(first)])
    }

    /// The state of a block.
    pub fn state(&self, block: usize) -> Zone {
        Zone::ALL[usize::from(self.states[block])]
    }

    /// How many blocks are Pending, counting only pieces that end at or before this block.
    pub fn pending_until(&self, end: usize) -> usize {
        match end >= self.states.len() {
            true => self.all_pending,
            false => self.pending[..end >> self.shift].iter().map(|pending| *pending as usize).sum(),
        }
    }

    /// Where a piece ends.
    pub fn end_of(&self, piece: usize) -> usize {
        self.states.len().min((piece + 1) << self.shift)
    }

    /// How many blocks are not Safe.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The pieces that contain these blocks.
    pub fn pieces_of(&self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start >> self.shift..(blocks.end + (1 << self.shift) - 1) >> self.shift
    }

    /// Pending blocks of a piece, in runs, `most` blocks in total at most.
    pub fn pending_of(&self, piece: usize, most: usize) -> Vec<Range<usize>> {
        if self.pending[piece] == 0 {
            return Vec::new();
        }
        let (start, end) = (piece << self.shift, self.end_of(piece));
        let mut left = most;
        let mut runs = Vec::new();
        for run in self.runs(start..end, |zone| zone == Zone::Pending) {
            let run = run.start..run.end.min(run.start + left);
            left -= run.len();
            if !run.is_empty() {
                runs.push(run);
            }
        }
        runs
    }

    /// Does a piece have Pending blocks?
    pub fn has_pending(&self, piece: usize) -> bool {
        self.pending[piece] > 0
    }

    /// Exposed blocks of a range, in runs of equal state. Cheap if most pieces have none.
    pub fn exposed_of(&self, blocks: &Range<usize>) -> Vec<(Range<usize>, Zone)> {
        let mut runs: Vec<(Range<usize>, Zone)> = Vec::new();
        for piece in self.pieces_of(blocks).filter(|piece| self.exposed[*piece] > 0) {
            let own = self.of_piece(piece, blocks);
            let alike = self.only_state(&own).map(|state| (own.clone(), state));
            let each = own.map(|block| (block..block + 1, self.state(block)));
            let has_only = alike.is_some();
            for (blocks, state) in alike.into_iter().chain(each.filter(|_| !has_only)) {
                match runs.last_mut() {
                    Some((run, of)) if run.end == blocks.start && *of == state => run.end = blocks.end,
                    _ if state.is_exposed() => runs.push((blocks, state)),
                    _ => {}
                }
            }
        }
        runs
    }

    /// Runs of blocks of a range whose state satisfies `is_so`.
    pub fn runs(&self, blocks: Range<usize>, is_so: impl Fn(Zone) -> bool) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for piece in self.pieces_of(&blocks) {
            let own = self.of_piece(piece, &blocks);
            let alike = self.only_state(&own);
            let whole = alike.filter(|zone| is_so(*zone)).map(|_| own.clone());
            let each = own.filter(|block| alike.is_none() && is_so(self.state(*block))).map(|block| block..block + 1);
            for blocks in whole.into_iter().chain(each) {
                match runs.last_mut() {
                    Some(run) if run.end == blocks.start => run.end = blocks.end,
                    _ => runs.push(blocks),
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use Happens::{Arrived, Awaited, Doubled, Emptied, Equal, Sent};

    #[test]
    fn the_table_is_the_drawing() {
        let states = [Zone::Pending, Zone::Moving, Zone::Awaited, Zone::Doubled, Zone::Safe];
        let events = [Equal, Sent, Awaited, Doubled, Arrived, Emptied];
        let table = states.map(|state| events.map(|event| state.after(event)));
        let [_, moving, awaited, doubled, safe] = states.map(Some);
        assert_eq!(table[0], [safe, moving, None, doubled, None, None]);
        assert_eq!(table[1], [None, None, awaited, doubled, safe, None]);
        assert_eq!(table[2], [None, None, awaited, None, safe, None]);
        assert_eq!(table[3], [None, None, None, None, doubled, safe]);
        assert_eq!(table[4], [None; 6]);
        assert_eq!(states.map(Zone::is_exposed), [true, true, true, false, false]);
    }

    #[test]
    fn what_is_counted_is_what_is_there() {
        let mut zones = Zones::new(10, 4);
        let exposed = |zones: &Zones| zones.exposed.iter().sum::<u32>();
        assert_eq!((zones.pending.len(), exposed(&zones), zones.left()), (3, 10, 10));
        zones.all(2..6, Sent);
        assert_eq!(format!("{:?}", zones.pending_of(0, 9)), "[0..2]");
        assert_eq!(format!("{:?}", zones.pending_of(1, 1)), "[6..7]");
        assert!(zones.pending_of(1, 0).is_empty());
        zones.all(3..5, Doubled);
        assert_eq!(
            zones.exposed_of(&(1..7)),
            [(1..2, Zone::Pending), (2..3, Zone::Moving), (5..6, Zone::Moving), (6..7, Zone::Pending)]
        );
        zones.all(2..6, Arrived);
        assert_eq!(zones.runs(0..10, |zone| zone == Zone::Safe), [2..3, 5..6]);
        zones.all(3..5, Emptied);
        zones.all(6..10, Equal);
        assert_eq!((exposed(&zones), zones.left()), (2, 2));
        assert_eq!(zones.exposed_of(&(2..10)), []);
        assert_eq!(zones.pieces_of(&(3..9)), 0..3);
    }

    /// Changing whole pieces at a time has the same result as changing block by block.
    #[test]
    fn many_at_once_are_as_one_by_one() {
        let mut rng = Rng::new(7);
        let events = [Equal, Sent, Awaited, Doubled, Arrived, Emptied];
        for _ in 0..200 {
            let blocks = 1 + rng.below(40) as usize;
            let piece = 1 << rng.below(5);
            let [mut one, mut other] = [Zones::new(blocks, piece), Zones::new(blocks, piece)];
            let mut moved = 0;
            for _ in 0..60 {
                let start = rng.below(blocks as u64) as usize;
                let range = start..start + 1 + rng.below((blocks - start) as u64) as usize;
                let event = events[rng.below(events.len() as u64) as usize];
                if range.clone().any(|block| one.state(block).after(event).is_none()) {
                    continue;
                }
                moved += 1;
                one.all(range.clone(), event);
                range.for_each(|block| _ = other.happens(block, event));
                assert_eq!(
                    (&one.states, &one.exposed, &one.pending, one.left, one.all_pending),
                    (&other.states, &other.exposed, &other.pending, other.left, other.all_pending)
                );
                let within = rng.below(blocks as u64) as usize..blocks;
                let mut expected: Vec<(Range<usize>, Zone)> = Vec::new();
                for block in within.clone().filter(|block| one.state(*block).is_exposed()) {
                    match expected.last_mut() {
                        Some((run, of)) if run.end == block && *of == one.state(block) => run.end += 1,
                        _ => expected.push((block..block + 1, one.state(block))),
                    }
                }
                assert_eq!(one.exposed_of(&within), expected);
            }
            assert!(moved > 0);
        }
    }
}
