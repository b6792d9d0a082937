//! Boards: how the ranks of a node vote in shared memory, without locks or messages.
//!
//! Each rank has a board that only it writes ([`Boards::post`]), and the node has one that all ranks write
//! ([`Boards::arrive`], [`Boards::set_outcome`]). A board is a ring of 64 entries; operation `n` uses entry `n % 64`. An
//! entry carries the number of the operation it belongs to, so nobody ever clears one: the first use by a newer operation
//! takes the entry over. A rank that is more than 63 operations behind is told so (`None` or `false`) and not counted under
//! the wrong number. Numbers below 2^47 are allowed.
//!
//! ```text
//! rank's entry   0 tag: operation + 1, or 0 while it is being written    8 value
//! node's entry   0 count: (operation + 1) << 16 | arrivals               8 (operation + 1) << 1 | ready      16 outcome
//! ```
//!
//! A rank's entry is read like a sequence lock with one writer: tag, value, tag again. The node's count is one word that
//! changes by compare-and-swap. The outcome is claimed by compare-and-swap, then written, then marked ready. A rank that
//! is killed between claiming and marking leaves an operation without an outcome, which its peers see as a time-out.
#![forbid(unsafe_code)]

use super::layout::SegmentHeader;
use super::map::Map;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// The first operation number that the boards do not accept.
const OPERATION_END: u64 = 1 << 47;

/// The boards of one segment, as one rank sees them.
pub(super) struct Boards<'a> {
    pub(super) map: &'a Map,
    pub(super) header: &'a SegmentHeader,
    pub(super) node_rank: u32,
}

impl Boards<'_> {
    /// Writes this rank's value of an operation. `false` if a newer operation has the entry.
    pub(super) fn post(&self, operation: u64, value: u64) -> bool {
        if operation >= OPERATION_END {
            return false;
        }
        let (tag, word) = self.entry(self.node_rank, operation);
        if tag.load(Relaxed) > operation + 1 {
            return false;
        }
        tag.store(0, Relaxed);
        // A reader that sees the new value also sees the zero tag, or the final one, when it looks again.
        fence(Release);
        word.store(value, Relaxed);
        tag.store(operation + 1, Release);
        true
    }

    /// The value that a rank posted for an operation.
    pub(super) fn read(&self, node_rank: u32, operation: u64) -> Option<u64> {
        if operation >= OPERATION_END || node_rank >= self.header.node_ranks {
            return None;
        }
        let (tag, word) = self.entry(node_rank, operation);
        if tag.load(Acquire) != operation + 1 {
            return None;
        }
        let value = word.load(Relaxed);
        fence(Acquire);
        (tag.load(Relaxed) == operation + 1).then_some(value)
    }

    /// Counts an arrival; returns how many came before, or `None` if a newer operation has the entry.
    pub(super) fn arrive(&self, operation: u64) -> Option<u32> {
        if operation >= OPERATION_END {
            return None;
        }
        let (count, _) = self.entry(self.header.node_ranks, operation);
        let mut seen = count.load(Relaxed);
        loop {
            let before = match (seen >> 16).cmp(&(operation + 1)) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => seen & 0xffff,
                std::cmp::Ordering::Greater => return None,
            };
            // Node ranks are at most 16384; more than 65535 arrivals are a caller's loop, not a count.
            let after = (before + 1).min(0xffff);
            // AcqRel: the rank that arrives last sees everything that the others wrote before they arrived.
            match count.compare_exchange_weak(seen, (operation + 1) << 16 | after, AcqRel, Relaxed) {
                Ok(_) => return Some(before as u32),
                Err(now) => seen = now,
            }
        }
    }

    /// Number of arrivals so far.
    pub(super) fn arrived(&self, operation: u64) -> u32 {
        let (count, _) = self.entry(self.header.node_ranks, operation);
        let seen = count.load(Acquire);
        if operation < OPERATION_END && seen >> 16 == operation + 1 { (seen & 0xffff) as u32 } else { 0 }
    }

    /// Writes the outcome of an operation, once. `false` if the operation already has an outcome, or if another
    /// operation has the entry.
    pub(super) fn set_outcome(&self, operation: u64, value: u64) -> bool {
        if operation >= OPERATION_END {
            return false;
        }
        let (tag, word) = self.outcome_entry(operation);
        let claim = (operation + 1) << 1;
        let mut seen = tag.load(Relaxed);
        loop {
            // Taken by this operation or a newer one, or by an older one whose writer has not finished and could still overwrite our value.
            if seen >= claim || (seen != 0 && seen & 1 == 0) {
                return false;
            }
            match tag.compare_exchange_weak(seen, claim, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // See `post` for the fence.
        fence(Release);
        word.store(value, Relaxed);
        tag.store(claim | 1, Release);
        true
    }

    /// The outcome of an operation, once somebody has set it.
    pub(super) fn outcome(&self, operation: u64) -> Option<u64> {
        if operation >= OPERATION_END {
            return None;
        }
        let (tag, word) = self.outcome_entry(operation);
        let ready = (operation + 1) << 1 | 1;
        if tag.load(Acquire) != ready {
            return None;
        }
        let value = word.load(Relaxed);
        fence(Acquire);
        (tag.load(Relaxed) == ready).then_some(value)
    }

    fn entry(&self, board: u32, operation: u64) -> (&AtomicU64, &AtomicU64) {
        let at = self.header.board_offset(board, operation);
        (self.map.word(at), self.map.word(at + 8))
    }

    fn outcome_entry(&self, operation: u64) -> (&AtomicU64, &AtomicU64) {
        let at = self.header.board_offset(self.header.node_ranks, operation);
        (self.map.word(at + 8), self.map.word(at + 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Generation, Incarnation};
    use crate::segment::SegmentSpec;

    fn with_boards(test: impl FnOnce(&dyn Fn(u32, &mut dyn FnMut(Boards<'_>)))) {
        let spec = SegmentSpec {
            directory: "/dev/shm".into(),
            name: String::new(),
            job: 0,
            group: 0,
            generation: Generation(1),
            incarnation: Incarnation::default(),
            store: 0,
            budget: 0,
            node_ranks: 4,
            group_size: 4,
        };
        let header = SegmentHeader::of(&spec);
        let file = tempfile::tempfile_in("/dev/shm").expect("file");
        file.set_len(header.file_len()).expect("set_len");
        let map = Map::new(file, header.control_len(), header.file_len()).expect("map");
        test(&|node_rank, body| body(Boards { map: &map, header: &header, node_rank }));
    }

    #[test]
    fn posts_are_read_under_their_own_number_only() {
        with_boards(|at| {
            at(1, &mut |board| {
                assert_eq!(board.read(1, 0), None);
                assert!(board.post(0, 0));
                assert_eq!(board.read(1, 0), Some(0));
                assert_eq!(board.read(0, 0), None);
                assert_eq!(board.read(4, 0), None, "rank out of range");
                assert!(board.post(64, 9));
                assert_eq!((board.read(1, 0), board.read(1, 64)), (None, Some(9)));
                assert!(!board.post(0, 5), "the ring went on");
                assert_eq!(board.read(1, 64), Some(9));
                assert!(!board.post(u64::MAX, 1));
                assert_eq!(board.read(1, u64::MAX), None);
            });
        });
    }

    #[test]
    fn arrivals_start_at_zero_for_each_operation() {
        with_boards(|at| {
            at(0, &mut |board| {
                for operation in [5, 69, 133] {
                    for before in 0..4 {
                        assert_eq!(board.arrived(operation), before);
                        assert_eq!(board.arrive(operation), Some(before));
                    }
                }
                assert_eq!(board.arrive(5), None);
                assert_eq!((board.arrived(5), board.arrived(133)), (0, 4));
                assert_eq!(board.arrive(u64::MAX), None);
            });
        });
    }

    #[test]
    fn the_first_outcome_stays() {
        with_boards(|at| {
            at(2, &mut |board| {
                assert_eq!(board.outcome(7), None);
                assert!(board.set_outcome(7, 1));
                assert!(!board.set_outcome(7, 2));
                assert_eq!(board.outcome(7), Some(1));
                assert!(board.set_outcome(71, 3));
                assert!(!board.set_outcome(7, 4));
                assert_eq!((board.outcome(7), board.outcome(71)), (None, Some(3)));
            });
        });
    }

    #[test]
    fn the_last_to_arrive_sees_every_post() {
        with_boards(|at| {
            at(0, &mut |board| {
                let (map, header) = (board.map, board.header);
                for operation in 0..2000u64 {
                    let sums: Vec<Option<u64>> = std::thread::scope(|scope| {
                        let ranks: Vec<_> = (0..2)
                            .map(|node_rank| {
                                scope.spawn(move || {
                                    let board = Boards { map, header, node_rank };
                                    assert!(board.post(operation, operation * 10 + u64::from(node_rank)));
                                    (board.arrive(operation) == Some(1))
                                        .then(|| (0..2).filter_map(|rank| board.read(rank, operation)).sum::<u64>())
                                })
                            })
                            .collect();
                        ranks.into_iter().map(|rank| rank.join().expect("thread")).collect()
                    });
                    assert_eq!(sums.into_iter().flatten().collect::<Vec<_>>(), [operation * 20 + 1]);
                }
            });
        });
    }

    #[test]
    fn a_reader_never_takes_a_value_for_another_operations() {
        with_boards(|at| {
            at(0, &mut |board| {
                let (map, header) = (board.map, board.header);
                const LAST: u64 = 64 * 20_000;
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let board = Boards { map, header, node_rank: 0 };
                        for operation in (0..=LAST).step_by(64) {
                            assert!(board.post(operation, !operation));
                        }
                    });
                    let reader = Boards { map, header, node_rank: 1 };
                    while reader.read(0, LAST).is_none() {
                        for operation in (0..=LAST).step_by(64 * 97) {
                            assert!(reader.read(0, operation).is_none_or(|value| value == !operation));
                        }
                    }
                });
            });
        });
    }
}
