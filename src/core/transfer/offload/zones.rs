//! What has become of each block of a marked shard. Pure.
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
//! A block is a zone of the paper. *Exposed* are those that a write would spoil: Pending, Moving and Awaited ones. An Awaited one cannot be doubled any
//! more: the write that waits for it may begin before another stream comes to copy it. What arrives of a block that was doubled
//! meanwhile is of no use, because somebody may have written while it was under way: its copy in the buffer goes there behind it.
//!
//! Source: ICS'19, sections 4.1.3 and 4.3.2.
#![forbid(unsafe_code)]

use std::ops::Range;

/// What has become of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Zone {
    /// It is in live memory only. Zero: a table of these costs nothing before it is looked at.
    Pending = 0,
    /// It is on its way from live memory to the slot.
    Moving,
    /// The same, and a write waits for it.
    Awaited,
    /// It is in the buffer, and on its way to the slot sooner or later.
    Doubled,
    /// It is in the slot.
    Safe,
}

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happens {
    /// The slot holds it already.
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
    /// All of them, by their numbers.
    const ALL: [Zone; 5] = [Zone::Pending, Zone::Moving, Zone::Awaited, Zone::Doubled, Zone::Safe];

    /// The state behind it; `None` where that cannot happen.
    pub fn after(self, happens: Happens) -> Option<Zone> {
        match (self, happens) {
            (Zone::Pending, Happens::Equal) => Some(Zone::Safe),
            (Zone::Pending, Happens::Sent) => Some(Zone::Moving),
            (Zone::Pending | Zone::Moving, Happens::Doubled) => Some(Zone::Doubled),
            (Zone::Moving | Zone::Awaited, Happens::Awaited) => Some(Zone::Awaited),
            (Zone::Moving | Zone::Awaited, Happens::Arrived) => Some(Zone::Safe),
            (Zone::Doubled, Happens::Emptied) => Some(Zone::Safe),
            // It was doubled while it was under way.
            (Zone::Doubled, Happens::Arrived) => Some(Zone::Doubled),
            _ => None,
        }
    }

    /// Would a write spoil it?
    pub fn is_exposed(self) -> bool {
        matches!(self, Zone::Pending | Zone::Moving | Zone::Awaited)
    }
}

/// All blocks of a shard that are on the device, in the order of the shard.
pub(super) struct Zones {
    /// Numbers of states.
    states: Vec<u8>,
    /// Blocks of a piece, and for each piece how many are exposed and how many Pending.
    piece: usize,
    exposed: Vec<u32>,
    pending: Vec<u32>,
    /// How many are not Safe.
    left: usize,
}

impl Zones {
    /// So many blocks, all Pending, in pieces of `piece` blocks.
    pub fn new(blocks: usize, piece: usize) -> Zones {
        let piece = piece.max(1);
        let counts = |index: usize| piece.min(blocks - index * piece) as u32;
        let exposed: Vec<u32> = (0..blocks.div_ceil(piece)).map(counts).collect();
        Zones { states: vec![0; blocks], piece, pending: exposed.clone(), exposed, left: blocks }
    }

    /// Moves a block on. A block to which that cannot happen is a broken invariant.
    pub fn happens(&mut self, block: usize, happens: Happens) -> Zone {
        let before = self.state(block);
        let after = before.after(happens);
        debug_assert!(after.is_some(), "block {block} is {before:?} and cannot be {happens:?}");
        let after = after.unwrap_or(before);
        self.states[block] = after as u8;
        let piece = block / self.piece;
        self.exposed[piece] -= u32::from(before.is_exposed() && !after.is_exposed());
        self.pending[piece] -= u32::from(before == Zone::Pending && after != Zone::Pending);
        self.left -= usize::from(before != Zone::Safe && after == Zone::Safe);
        after
    }

    /// The same for several blocks.
    pub fn all(&mut self, blocks: Range<usize>, happens: Happens) {
        blocks.for_each(|block| _ = self.happens(block, happens));
    }

    /// What a block is.
    pub fn state(&self, block: usize) -> Zone {
        Zone::ALL[usize::from(self.states[block])]
    }

    /// How many are not Safe.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The pieces that blocks lie in.
    pub fn pieces_of(&self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start / self.piece..blocks.end.div_ceil(self.piece)
    }

    /// Pending blocks of a piece, in runs, each of at most `most`, until those are `most` together.
    pub fn pending_of(&self, piece: usize, most: usize) -> Vec<Range<usize>> {
        if self.pending[piece] == 0 {
            return Vec::new();
        }
        let (start, end) = (piece * self.piece, self.states.len().min((piece + 1) * self.piece));
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

    /// Has a piece anything Pending?
    pub fn has_pending(&self, piece: usize) -> bool {
        self.pending[piece] > 0
    }

    /// Exposed blocks of a range, in runs of equal state. Costs little where most pieces have none.
    pub fn exposed_of(&self, blocks: &Range<usize>) -> Vec<(Range<usize>, Zone)> {
        let mut runs: Vec<(Range<usize>, Zone)> = Vec::new();
        for piece in self.pieces_of(blocks).filter(|piece| self.exposed[*piece] > 0) {
            let (start, end) = (blocks.start.max(piece * self.piece), blocks.end.min((piece + 1) * self.piece));
            for block in start..end {
                let state = self.state(block);
                match runs.last_mut() {
                    Some((run, of)) if run.end == block && *of == state => run.end = block + 1,
                    _ if state.is_exposed() => runs.push((block..block + 1, state)),
                    _ => {}
                }
            }
        }
        runs
    }

    /// Runs of blocks of a range that are so.
    pub fn runs(&self, blocks: Range<usize>, is_so: impl Fn(Zone) -> bool) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in blocks.filter(|block| is_so(self.state(*block))) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end = block + 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
