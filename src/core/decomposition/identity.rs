//! The identity of a decomposition.

use super::Parts;
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// The identity of a decomposition: of its shape, the number of ranks, and the parts of each. It is a sum over the ranks, modulo 2^128, of
/// a hash of each rank's parts, so that no rank needs to know the others' parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Identity(pub u128);

/// The number of parts of an identity that are added up over ranks as 64-bit numbers, so that no carry is lost.
const LIMBS: usize = 4;

impl Identity {
    /// The term of one rank in the sum.
    pub fn of_rank(parts: &Parts, rank: u32, ranks: u32) -> Identity {
        let mut packed = Vec::new();
        parts.put(&mut packed);
        Identity::of_packed(&packed, rank, ranks)
    }

    /// The term of one rank in the sum, with its parts in the form of records.
    pub fn of_packed(packed: &[u8], rank: u32, ranks: u32) -> Identity {
        let mut hasher = Xxh3::new();
        hasher.update(&rank.to_le_bytes());
        hasher.update(&ranks.to_le_bytes());
        hasher.update(packed);
        Identity(hasher.digest128())
    }

    /// The sum of two identities.
    #[must_use]
    pub fn and(self, other: Identity) -> Identity {
        Identity(self.0.wrapping_add(other.0))
    }

    /// The identity as numbers. From their sums over up to 2^32 ranks [`Identity::from_limbs`] makes the sum of the identities.
    pub fn limbs(self) -> [u64; LIMBS] {
        std::array::from_fn(|limb| (self.0 >> (32 * limb)) as u64 & 0xffff_ffff)
    }

    /// The identity from such sums of numbers.
    pub fn from_limbs(limbs: [u64; LIMBS]) -> Identity {
        let place = |(limb, sum): (usize, u64)| u128::from(sum).wrapping_shl(32 * limb as u32);
        Identity(limbs.into_iter().enumerate().map(place).fold(0, u128::wrapping_add))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn limbs_add_up_to_the_sum(all in proptest::collection::vec(any::<u128>(), 1..40)) {
            let sum = all.iter().fold(Identity::default(), |sum, one| sum.and(Identity(*one)));
            let mut limbs = [0u64; LIMBS];
            for one in &all {
                limbs.iter_mut().zip(Identity(*one).limbs()).for_each(|(sum, limb)| *sum += limb);
            }
            prop_assert_eq!(Identity::from_limbs(limbs), sum);
        }
    }

    fn of(shape: [u64; 2], ranks: &[([u64; 2], [u64; 2])]) -> Identity {
        let count = ranks.len() as u32;
        (0..).zip(ranks).fold(Identity::default(), |sum, (rank, (origin, extent))| {
            let parts = Boxes::of(shape).own(*origin, *extent).check().expect("inside");
            sum.and(Identity::of_rank(parts.parts(), rank, count))
        })
    }

    #[test]
    fn whatever_is_dealt_otherwise_has_another_identity() {
        let rows = of([4, 4], &[([0, 0], [2, 4]), ([2, 0], [2, 4])]);
        let all = [
            rows,
            // Variants: the parts of two ranks exchanged, columns, an uneven cut, another shape, and one more rank,
            // which has no elements.
            of([4, 4], &[([2, 0], [2, 4]), ([0, 0], [2, 4])]),
            of([4, 4], &[([0, 0], [4, 2]), ([0, 2], [4, 2])]),
            of([4, 4], &[([0, 0], [1, 4]), ([1, 0], [3, 4])]),
            of([4, 5], &[([0, 0], [2, 4]), ([2, 0], [2, 4])]),
            of([4, 4], &[([0, 0], [2, 4]), ([2, 0], [2, 4]), ([4, 0], [0, 4])]),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(rows, of([4, 4], &[([0, 0], [2, 4]), ([2, 0], [2, 4])]));
        // Regular changes to small numbers, which the digest of blocks does not detect.
        let slabs = |widths: [u64; 8]| {
            let mut at = 0;
            let ranks = widths.map(|width| {
                at += width;
                ([at - width, 0], [width, 3])
            });
            of([64, 3], &ranks)
        };
        let mut seen = HashSet::new();
        for swap in 0..7 {
            let mut widths = [8u64; 8];
            widths[swap] += 1;
            widths[swap + 1] -= 1;
            assert!(seen.insert(slabs(widths)), "{widths:?}");
        }
    }

    #[test]
    fn ghost_cells_do_not_change_it() {
        let plain = Boxes::of([4]).own([0], [4]).check().expect("inside");
        let ghosts = Boxes::of([4]).own([0], [4]).halo([1]).check().expect("inside");
        assert_eq!(Identity::of_rank(plain.parts(), 0, 1), Identity::of_rank(ghosts.parts(), 0, 1));
    }
}
