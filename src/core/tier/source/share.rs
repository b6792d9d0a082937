//! A block that several readers check together: each copies some of its bytes, and adds what these contribute to the digest of the whole.
//!
//! The sums of a block's digest are those of its pairs of words, whoever adds them. If every byte of a block is copied by exactly one of
//! several readers, and each adds the pairs that it copies, then all together have the digest of what was copied. Except in shared pairs,
//! no reader reads more than it needs.
//!
//! If two or more readers copy bytes of the same pair, the reader that copies its first byte adds the pair ([`BlockShare::copy`]). It reads
//! the other bytes of the pair as well and lends them: it adds a weighted sum of these bytes to its loan. The readers that copy the lent
//! bytes subtract the same sum, over what *they* have read, from their own loans. Weights are odd, and each byte of a block has its own, so
//! the loans add up to zero if the bytes that were added are those that were copied, even if memory has changed in between. If the bytes
//! differ, the loans add up to zero with a probability of at most one in 2^56, and a single byte that differs is always detected. So what
//! all readers have copied is right if their sums give the block's digest and their loans add up to zero.

use crate::base::Digest;
use crate::base::digest::{PAIR, Sums, weight};
use std::ops::Range;

/// What a reader adds to the check of a block of which it has copied some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockShare {
    sums: Sums,
    loan: u64,
}

/// Length of a share in a message, in bytes.
pub const SHARE_BYTES: usize = 24;

impl BlockShare {
    /// Copies bytes of a block, beginning at `at`, as many as `target` takes. Goes around the cache if there are enough bytes.
    pub fn copy(&mut self, block: &[u8], at: usize, target: &mut [u8]) {
        let end = at + target.len();
        let whole = at.next_multiple_of(PAIR)..end / PAIR * PAIR;
        if whole.is_empty() {
            // These are at most the end of one pair and the beginning of the next.
            let border = at.next_multiple_of(PAIR).clamp(at, end);
            let (near, far) = target.split_at_mut(border - at);
            self.copy_of_pair(block, at..border, near);
            return self.copy_of_pair(block, border..end, far);
        }
        let (near, rest) = target.split_at_mut(whole.start - at);
        let (middle, far) = rest.split_at_mut(whole.len());
        self.copy_of_pair(block, at..whole.start, near);
        self.sums.add_copying(whole.start as u64, &block[whole.clone()], middle);
        self.copy_of_pair(block, whole.end..end, far);
    }

    /// Copies some bytes of one pair.
    fn copy_of_pair(&mut self, block: &[u8], part: Range<usize>, target: &mut [u8]) {
        if part.is_empty() {
            return;
        }
        let begin = part.start / PAIR * PAIR;
        let mut pair = [0u8; PAIR];
        if part.start > begin {
            pair[part.start - begin..part.end - begin].copy_from_slice(&block[part.clone()]);
            self.loan = self.loan.wrapping_sub(weighed(begin, part.start - begin..part.end - begin, &pair));
        } else {
            // The last pair of a block may be short.
            let length = PAIR.min(block.len() - begin);
            pair[..length].copy_from_slice(&block[begin..begin + length]);
            self.sums.add(begin as u64, &pair[..length]);
            self.loan = self.loan.wrapping_add(weighed(begin, part.end - begin..length, &pair));
        }
        target.copy_from_slice(&pair[part.start - begin..part.end - begin]);
    }

    /// Adds what another reader adds to the check of the same block.
    pub fn merge(&mut self, other: BlockShare) {
        self.sums.merge(other.sums);
        self.loan = self.loan.wrapping_add(other.loan);
    }

    /// The digest of what was copied of a block of `length` bytes, once all its shares are merged. `None` if the bytes that were added are
    /// not those that were copied.
    pub fn finish(self, length: u64) -> Option<Digest> {
        (self.loan == 0).then(|| self.sums.finish(length))
    }

    /// The share in the form in which a message carries it.
    pub fn to_bytes(self) -> [u8; SHARE_BYTES] {
        let mut bytes = [0; SHARE_BYTES];
        bytes[..16].copy_from_slice(&self.sums.to_bytes());
        bytes[16..].copy_from_slice(&self.loan.to_le_bytes());
        bytes
    }

    /// The share that [`BlockShare::to_bytes`] encoded.
    pub fn of_bytes(bytes: &[u8; SHARE_BYTES]) -> BlockShare {
        let (sums, loan) = bytes.split_at(16);
        let array = |bytes: &[u8]| std::array::from_fn(|at| bytes[at]);
        BlockShare { sums: Sums::of_bytes(&std::array::from_fn(|at| sums[at])), loan: u64::from_le_bytes(array(loan)) }
    }
}

/// The weighted sum of some bytes of the pair that begins at `begin`. One is added to each byte, so that a zero that nobody
/// copies is detected as well.
fn weighed(begin: usize, within: Range<usize>, pair: &[u8; PAIR]) -> u64 {
    within.fold(0u64, |sum, at| sum.wrapping_add((u64::from(pair[at]) + 1).wrapping_mul(weight(begin + at))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::digest_bytes;
    use proptest::prelude::*;

    /// Cuts a block at some places, gives each part to one of several readers, and makes each copy its parts. Between any two
    /// parts, a byte may change.
    fn copied(
        block: &mut [u8],
        cuts: &[usize],
        order: u64,
        change: Option<(usize, usize)>,
    ) -> (Option<Digest>, Vec<u8>) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (block.len() + 1)).chain([0, block.len()]).collect();
        ends.sort_unstable();
        let mut parts: Vec<Range<usize>> = ends.windows(2).map(|two| two[0]..two[1]).collect();
        let count = parts.len();
        parts.rotate_left(order as usize % count);
        if order % 2 == 1 {
            parts.reverse();
        }
        let (mut shares, mut target) = ([BlockShare::default(); 3], vec![0; block.len()]);
        for (number, part) in parts.into_iter().enumerate() {
            if let Some((_, at)) = change.filter(|(when, _)| when % count == number) {
                let place = at % block.len();
                block[place] ^= 1 << (at % 8);
            }
            let to = &mut target[part.clone()];
            shares[(number as u64 ^ order) as usize % 3].copy(block, part.start, to);
        }
        let mut whole = BlockShare::default();
        for share in shares {
            whole.merge(BlockShare::of_bytes(&share.to_bytes()));
        }
        (whole.finish(block.len() as u64), target)
    }

    #[test]
    fn a_zero_that_nobody_copies_is_seen() {
        for length in 1..80 {
            for cut in 0..length {
                let (block, mut share) = (vec![0; length], BlockShare::default());
                share.copy(&block, 0, &mut vec![0; cut]);
                assert_ne!(share.finish(length as u64), Some(digest_bytes(&block)), "{cut} of {length} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn all_shares_are_the_digest_of_what_was_copied(
            length in 1usize..400,
            cuts in proptest::collection::vec(0usize..400, 0..30),
            order in any::<u64>(),
            change in proptest::option::of((0usize..30, any::<usize>())),
        ) {
            let mut block: Vec<u8> = (0..length).map(|at| (at * 7 + at / 13) as u8).collect();
            let expected = digest_bytes(&block);
            let before = block.clone();
            let (found, target) = copied(&mut block, &cuts, order, change);
            if change.is_none() {
                prop_assert_eq!((found, &target), (Some(expected), &before));
            } else {
                // A byte that was lent before the change and copied after it causes a false alarm.
                prop_assert!(found != Some(expected) || target == before);
            }
        }

        #[test]
        fn a_part_that_is_left_out_or_taken_twice_is_seen(
            length in 1usize..400,
            cut in any::<usize>(),
            is_twice in any::<bool>(),
        ) {
            let block: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8).collect();
            let cut = cut % length;
            let mut share = BlockShare::default();
            share.copy(&block, 0, &mut vec![0; cut]);
            if is_twice {
                share.copy(&block, cut, &mut vec![0; length - cut]);
                share.copy(&block, cut, &mut vec![0; length - cut]);
            }
            prop_assert_ne!(share.finish(length as u64), Some(digest_bytes(&block)));
        }
    }
}
