//! Which blocks of memory have been copied, and which are being copied.
#![forbid(unsafe_code)]

use crate::base::Digest;
use crate::base::sync::Lock;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const PENDING: u8 = 0;
const TAKEN: u8 = 1;
const SAFE: u8 = 2;

/// Blocks, each of which is copied once, by the first thread that takes it.
///
/// ```text
///  pending ── claim ─▶ taken ── done ─▶ safe
/// ```
pub struct Blocks {
    states: Box<[AtomicU8]>,
    /// Not safe yet.
    left: AtomicUsize,
    digests: Lock<Vec<Digest>>,
}

impl Blocks {
    /// `count` blocks, none of them copied.
    pub fn new(count: usize) -> Blocks {
        let states = (0..count).map(|_| AtomicU8::new(PENDING)).collect();
        Blocks { states, left: AtomicUsize::new(count), digests: Lock::new(vec![Digest::default(); count]) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// How many are not safe yet.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Takes a block that is pending: the caller, and nobody else, copies it.
    pub fn claim(&self, block: usize) -> bool {
        self.states[block].compare_exchange(PENDING, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the first blocks that are pending, starting at `from`, then at the start: consecutive ones, at most `most` of them, and
    /// none past one of the `ends`, which ascend. An empty range if none is pending.
    pub fn claim_next(&self, from: usize, most: usize, ends: &[usize]) -> Range<usize> {
        let count = self.count();
        for start in (from..count).chain(0..from.min(count)) {
            if !self.claim(start) {
                continue;
            }
            let own = ends[ends.partition_point(|end| *end <= start)..].first().copied().unwrap_or(count);
            let behind = (start + 1..own.min(start + most.max(1))).take_while(|block| self.claim(*block));
            return start..start + 1 + behind.count();
        }
        0..0
    }

    /// Blocks that the caller has taken have been copied; these are their digests.
    pub fn done(&self, blocks: Range<usize>, digests: &[Digest]) {
        self.digests.lock()[blocks.clone()].copy_from_slice(digests);
        let count = blocks.len();
        self.states[blocks].iter().for_each(|state| state.store(SAFE, Ordering::Release));
        self.left.fetch_sub(count, Ordering::AcqRel);
    }

    /// Has it been copied?
    pub fn is_safe(&self, block: usize) -> bool {
        self.states[block].load(Ordering::Acquire) == SAFE
    }

    /// The digests, once all are safe.
    pub fn digests(&self) -> Vec<Digest> {
        self.digests.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_for_one() {
        let blocks = Blocks::new(10);
        assert!(blocks.claim(4) && !blocks.claim(4) && !blocks.is_safe(4));
        // After 4 as far as the region goes, then as many as are wanted, then those from the start.
        assert_eq!(blocks.claim_next(4, 8, &[7, 10]), 5..7);
        assert_eq!(blocks.claim_next(7, 2, &[7, 10]), 7..9);
        assert_eq!(blocks.claim_next(7, 2, &[7, 10]), 9..10);
        assert_eq!(blocks.claim_next(7, 8, &[7, 10]), 0..4);
        assert_eq!(blocks.claim_next(7, 8, &[7, 10]), 0..0);
        assert_eq!(blocks.left(), 10);
        let digest = Digest([7; 16]);
        blocks.done(4..6, &[digest; 2]);
        assert_eq!((blocks.left(), blocks.is_safe(5), blocks.is_safe(6)), (8, true, false));
        assert_eq!((blocks.digests()[5], blocks.digests()[6]), (digest, Digest::default()));
    }
}
