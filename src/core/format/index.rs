//! Finds the extent, among a million, that holds a given byte. Pure.
//!
//! A binary search among a million extents takes twenty steps, most of which wait for memory: this costs 2 µs for each of a million
//! references. If extents are about equally long, a table indexed by place leaves one or two steps.
#![forbid(unsafe_code)]

use super::packed::Placed;
use std::ops::Range;

/// For each stretch of 2^`shift` bytes of the bodies: the first extent that ends after the first byte of the stretch.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    shift: u32,
    first: Vec<u32>,
}

impl Index {
    /// Makes the index of extents, which must be in order and not empty. There is at most one stretch more than there
    /// are extents.
    pub fn of(extents: &[Placed]) -> Index {
        let end = extents.last().map_or(0, Placed::end);
        let mean = end / (extents.len() as u64).max(1);
        let shift = (u64::BITS - mean.leading_zeros()).min(u64::BITS - 1);
        let mut first = Vec::with_capacity((end >> shift) as usize + 1);
        for (number, extent) in (0..).zip(extents) {
            while first.len() as u64 <= (extent.end() - 1) >> shift {
                first.push(number);
            }
        }
        Index { shift, first }
    }

    /// The place of the first extent that ends after a byte, or the number of extents if none does. `extents` must be
    /// the extents from which the index was made.
    pub fn find(&self, extents: &[Placed], byte: u64) -> usize {
        let stretch = (byte >> self.shift) as usize;
        let Some(from) = self.first.get(stretch) else { return extents.len() };
        let from = *from as usize;
        let upto = self.first.get(stretch + 1).map_or(extents.len(), |next| *next as usize);
        from + extents[from..upto].partition_point(|extent| extent.end() <= byte)
    }

    /// The extents that hold any of these bytes. `extents` must be the extents from which the index was made.
    pub fn range(&self, extents: &[Placed], bytes: Range<u64>) -> Range<usize> {
        let first = self.find(extents, bytes.start);
        let last = bytes.end.checked_sub(1).map_or(0, |last| self.find(extents, last));
        let behind = last + usize::from(extents.get(last).is_some_and(|extent| extent.at < bytes.end));
        first..behind.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::Stored;
    use super::*;
    use crate::base::rng::Rng;
    use proptest::prelude::*;

    fn extents(lengths: impl IntoIterator<Item = (u64, u64)>) -> Vec<Placed> {
        let mut at = 0;
        let place = |(gap, length): (u64, u64)| {
            let placed = Placed { at: at + gap, length, stored: Stored::Own, own_before: 0 };
            at = placed.end();
            placed
        };
        lengths.into_iter().map(place).collect()
    }

    proptest! {
        #[test]
        fn what_it_finds_a_look_at_all_of_them_finds(seed: u64, count in 0usize..60, scale in 0u32..50) {
            let mut rng = Rng::new(seed);
            // Some extents are much longer than the rest, and some have a gap before them.
            let mut one = |_| {
                let most = 1 << (rng.below(2) * u64::from(scale));
                let length = 1 + rng.below(most);
                (rng.below(4) / 3 * rng.below(100), length)
            };
            let extents = extents((0..count).map(&mut one).collect::<Vec<_>>());
            let index = Index::of(&extents);
            prop_assert!(index.first.len() <= extents.len() + 1);
            let edges = extents.iter().flat_map(|extent| [extent.at, extent.end()]);
            let near: Vec<u64> = edges.flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]).chain([0, u64::MAX]).collect();
            for byte in &near {
                let expected = extents.iter().position(|extent| extent.end() > *byte).unwrap_or(count);
                prop_assert_eq!(index.find(&extents, *byte), expected);
            }
            for _ in 0..50 {
                let [a, b] = [0; 2].map(|_| near[rng.below(near.len() as u64) as usize]);
                let bytes = a.min(b)..a.max(b);
                let first = extents.partition_point(|extent| extent.end() <= bytes.start);
                let count = extents[first..].partition_point(|extent| extent.at < bytes.end);
                prop_assert_eq!(index.range(&extents, bytes), first..first + count);
            }
        }
    }

    #[test]
    fn the_longest_extent_there_can_be_has_a_place() {
        let extents = extents([(0, u64::MAX)]);
        let index = Index::of(&extents);
        assert_eq!((index.find(&extents, 5), index.find(&extents, u64::MAX)), (0, 1));
    }
}
