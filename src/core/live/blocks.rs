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
    /// The number of blocks that are not safe yet.
    left: AtomicUsize,
    digests: Lock<Vec<Digest>>,
}

impl Blocks {
    /// Creates `count` blocks, none of which has been copied.
    pub fn new(count: usize) -> Blocks {
        let states = (0..count).map(|_| AtomicU8::new(PENDING)).collect();
        Blocks { states, left: AtomicUsize::new(count), digests: Lock::new(vec![Digest::default(); count]) }
    }

    /// The number of blocks.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// The number of blocks that are not safe yet.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Takes a block if it is pending, and returns whether it was. If so, the caller, and nobody else, must copy the block.
    pub fn claim(&self, block: usize) -> bool {
        self.states[block].compare_exchange(PENDING, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the first pending blocks, searching from `from` and then from the start. The blocks are consecutive, at most `most` of them,
    /// and do not go past the next of the ascending `ends`. Returns an empty range if no block is pending.
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

    /// Records that blocks which the caller has taken have been copied, and their digests.
    pub fn done(&self, blocks: Range<usize>, digests: &[Digest]) {
        self.digests.lock()[blocks.clone()].copy_from_slice(digests);
        let count = blocks.len();
        self.states[blocks].iter().for_each(|state| state.store(SAFE, Ordering::Release));
        self.left.fetch_sub(count, Ordering::AcqRel);
    }

    /// Has the block been copied?
    pub fn is_safe(&self, block: usize) -> bool {
        self.states[block].load(Ordering::Acquire) == SAFE
    }

    /// The digests of all blocks. They are complete once all blocks are safe.
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
        // After block 4 up to the end of the region, then as many blocks as are wanted, then those from the start.
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
