//! Boxes of elements of a global array: which elements two boxes have in common, and which elements several boxes leave
//! out.
//!
//! A box has up to [`DIMS`] dimensions, slowest first. Dimensions that an array does not have come last and are one element wide, so that
//! the number of dimensions does not matter here.

use crate::format::numbers;
use std::fmt::{self, Display};

/// The maximum number of dimensions of an array.
pub const DIMS: usize = 8;

/// A box of elements: in each dimension those from `from` up to `to`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cuboid {
    /// The first element in each dimension.
    pub from: [u64; DIMS],
    /// The first element after the box in each dimension.
    pub to: [u64; DIMS],
}

impl Cuboid {
    /// The box of this extent starting at `origin`; `None` if it has more than [`DIMS`] dimensions, or if its end does not fit in 64 bits.
    pub fn at(origin: &[u64], extent: &[u64]) -> Option<Cuboid> {
        if origin.len() != extent.len() || origin.len() > DIMS {
            return None;
        }
        let mut cuboid = Cuboid { from: [0; DIMS], to: [1; DIMS] };
        for (dim, (origin, extent)) in origin.iter().zip(extent).enumerate() {
            cuboid.from[dim] = *origin;
            cuboid.to[dim] = origin.checked_add(*extent)?;
        }
        Some(cuboid)
    }

    /// Its width in a dimension.
    pub fn extent(&self, dim: usize) -> u64 {
        self.to[dim].saturating_sub(self.from[dim])
    }

    /// The number of its elements, or `u64::MAX` if it does not fit in 64 bits.
    pub fn volume(&self) -> u64 {
        (0..DIMS).fold(1u64, |volume, dim| volume.saturating_mul(self.extent(dim)))
    }

    /// It has no element.
    pub fn is_empty(&self) -> bool {
        (0..DIMS).any(|dim| self.extent(dim) == 0)
    }

    /// The elements that are in both boxes; `None` if there are none.
    pub fn common(&self, other: &Cuboid) -> Option<Cuboid> {
        let mut common = *self;
        for dim in 0..DIMS {
            common.from[dim] = self.from[dim].max(other.from[dim]);
            common.to[dim] = self.to[dim].min(other.to[dim]);
            if common.from[dim] >= common.to[dim] {
                return None;
            }
        }
        Some(common)
    }

    /// The other box lies in this one. An empty box lies in every box whose borders it does not cross.
    pub fn contains(&self, other: &Cuboid) -> bool {
        (0..DIMS).all(|dim| self.from[dim] <= other.from[dim] && other.to[dim] <= self.to[dim])
    }

    /// Its first elements that lie in one row.
    pub fn first_row(&self) -> Cuboid {
        let mut row = *self;
        // The fastest dimension that is more than one element wide.
        let last = (0..DIMS).rev().find(|dim| self.extent(*dim) > 1).unwrap_or(0);
        for dim in (0..DIMS).filter(|dim| *dim != last) {
            row.to[dim] = row.from[dim] + 1;
        }
        row
    }

    /// Halves it along its longest side repeatedly, until there are `count` boxes or only single elements.
    pub fn cut(&self, count: usize) -> Vec<Cuboid> {
        let mut pieces = vec![*self];
        while pieces.len() < count {
            let before = pieces.len();
            pieces = pieces.into_iter().flat_map(|piece| piece.halves()).collect();
            if pieces.len() == before {
                break;
            }
        }
        pieces
    }

    fn halves(self) -> impl Iterator<Item = Cuboid> {
        let longest = (0..DIMS).rev().max_by_key(|dim| self.extent(*dim)).unwrap_or(0);
        let middle = self.from[longest] + self.extent(longest).div_ceil(2);
        let (mut low, mut high) = (self, self);
        low.to[longest] = middle;
        high.from[longest] = middle;
        [low, high].into_iter().filter(|half| !half.is_empty())
    }

    /// The first of its elements that are in none of the others, along a row, in the order of memory.
    pub fn first_gap(&self, others: &[Cuboid]) -> Option<Cuboid> {
        let inside: Vec<Cuboid> = others.iter().filter_map(|other| self.common(other)).collect();
        if self.is_empty() { None } else { gap(*self, &inside, 0) }
    }

    /// Appends its numbers: its origin, and its width in each dimension of `dims`.
    pub(crate) fn put(&self, dims: usize, bytes: &mut Vec<u8>) {
        for dim in 0..dims {
            numbers::put(bytes, self.from[dim]);
            numbers::put(bytes, self.extent(dim));
        }
    }

    /// Takes a box in this form off the front.
    pub(crate) fn take(dims: usize, bytes: &mut &[u8]) -> Option<Cuboid> {
        let mut cuboid = Cuboid { from: [0; DIMS], to: [1; DIMS] };
        for dim in 0..dims {
            cuboid.from[dim] = numbers::take(bytes)?;
            cuboid.to[dim] = cuboid.from[dim].checked_add(numbers::take(bytes)?)?;
        }
        Some(cuboid)
    }

    /// The box as bytes, ordered so that the greatest bytes belong to the box that begins first in the array.
    pub(super) fn to_key(self) -> Vec<u8> {
        let from = self.from.iter().flat_map(|from| (!from).to_be_bytes());
        from.chain(self.to.iter().flat_map(|to| to.to_be_bytes())).collect()
    }

    /// The box from bytes of `to_key`, and the bytes after them.
    pub(super) fn of_key(bytes: &[u8]) -> Option<(Cuboid, &[u8])> {
        let (sides, rest) = bytes.split_at_checked(16 * DIMS)?;
        let side = |at: usize| u64::from_be_bytes(sides[8 * at..8 * at + 8].try_into().unwrap_or_default());
        let to = std::array::from_fn(|dim| side(DIMS + dim));
        Some((Cuboid { from: std::array::from_fn(|dim| !side(dim)), to }, rest))
    }

    /// The box as people read it: `[0..4, 7]` for the first `dims` dimensions.
    pub fn shown(&self, dims: usize) -> impl Display + use<> {
        Shown(*self, dims)
    }
}

struct Shown(Cuboid, usize);

impl Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for dim in 0..self.1 {
            let between = if dim == 0 { "" } else { ", " };
            match self.0.extent(dim) {
                1 => write!(f, "{between}{}", self.0.from[dim])?,
                _ => write!(f, "{between}{}..{}", self.0.from[dim], self.0.to[dim])?,
            }
        }
        f.write_str("]")
    }
}

/// The first gap that `others`, which lie in `within`, leave in it, considering dimension `dim` and the later ones. Between two
/// consecutive borders the same boxes are present.
fn gap(within: Cuboid, others: &[Cuboid], dim: usize) -> Option<Cuboid> {
    if others.is_empty() {
        return Some(within.first_row());
    }
    if dim == DIMS {
        return None;
    }
    let mut borders: Vec<u64> = others.iter().flat_map(|other| [other.from[dim], other.to[dim]]).collect();
    borders.extend([within.from[dim], within.to[dim]]);
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).find_map(|slab| {
        let mut part = within;
        (part.from[dim], part.to[dim]) = (slab[0], slab[1]);
        let there = others.iter().filter(|other| other.from[dim] <= slab[0] && slab[1] <= other.to[dim]);
        gap(part, &there.copied().collect::<Vec<_>>(), dim + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cuboid(from: [u64; 3], to: [u64; 3]) -> Cuboid {
        let extent: Vec<u64> = from.iter().zip(to).map(|(from, to)| to - from).collect();
        Cuboid::at(&from, &extent).expect("three dimensions")
    }

    fn elements(of: &Cuboid) -> Vec<[u64; 3]> {
        let mut all = Vec::new();
        for z in of.from[0]..of.to[0] {
            for y in of.from[1]..of.to[1] {
                all.extend((of.from[2]..of.to[2]).map(|x| [z, y, x]));
            }
        }
        all
    }

    /// All boxes in a cube whose sides are four elements long.
    fn all_in_four() -> Vec<Cuboid> {
        let spans: Vec<(u64, u64)> = (0..4).flat_map(|from| (from + 1..=4).map(move |to| (from, to))).collect();
        let mut all = Vec::new();
        for z in &spans {
            for y in &spans {
                all.extend(spans.iter().map(|x| cuboid([z.0, y.0, x.0], [z.1, y.1, x.1])));
            }
        }
        all
    }

    #[test]
    fn what_two_boxes_have_in_common_is_what_both_sets_of_elements_have() {
        let all = all_in_four();
        let sets: Vec<u64> =
            all.iter().map(|of| elements(of).iter().map(|[z, y, x]| 1 << (16 * z + 4 * y + x)).sum()).collect();
        for (one, set) in all.iter().zip(&sets) {
            assert_eq!(one.volume(), u64::from(set.count_ones()));
            for (other, others) in all.iter().zip(&sets) {
                let common = one
                    .common(other)
                    .map_or(0, |common| elements(&common).iter().map(|[z, y, x]| 1u64 << (16 * z + 4 * y + x)).sum());
                assert_eq!(common, set & others, "{one:?} {other:?}");
                assert_eq!(one.contains(other), set & others == *others);
            }
        }
    }

    #[test]
    fn what_has_no_element_has_nothing_in_common() {
        let (empty, all) = (cuboid([1, 1, 1], [1, 3, 3]), cuboid([0; 3], [4; 3]));
        assert!(empty.is_empty() && empty.volume() == 0);
        assert_eq!((all.common(&empty), empty.common(&empty)), (None, None));
        assert!(all.contains(&empty) && empty.first_gap(&[]).is_none());
    }

    #[test]
    fn a_box_beyond_all_numbers_is_none() {
        assert_eq!(Cuboid::at(&[u64::MAX], &[1]), None);
        assert_eq!(Cuboid::at(&[0; 9], &[1; 9]), None);
        assert_eq!(Cuboid::at(&[0; 2], &[1; 3]), None);
        assert_eq!(Cuboid::at(&[0; 8], &[u64::MAX; 8]).expect("eight").volume(), u64::MAX);
    }

    #[test]
    fn boxes_are_shown_by_their_ranges() {
        assert_eq!(cuboid([0, 3, 5], [4, 4, 9]).shown(3).to_string(), "[0..4, 3, 5..9]");
        assert_eq!(cuboid([2, 0, 0], [2, 1, 1]).shown(1).to_string(), "[2..2]");
    }

    #[test]
    fn a_box_is_cut_into_pieces_that_are_all_of_it() {
        for (of, count, pieces) in [
            (cuboid([0; 3], [4; 3]), 64, 64),
            (cuboid([0; 3], [4; 3]), 8, 8),
            (cuboid([5, 0, 0], [6, 1, 3]), 64, 3),
            (cuboid([0; 3], [1; 3]), 64, 1),
            (cuboid([0; 3], [100, 7, 1]), 64, 64),
        ] {
            let cut = of.cut(count);
            assert_eq!(cut.len(), pieces, "{of:?}");
            assert_eq!(cut.iter().map(Cuboid::volume).sum::<u64>(), of.volume());
            assert!(of.first_gap(&cut).is_none() && cut.iter().all(|piece| of.contains(piece)));
        }
    }

    proptest! {
        #[test]
        fn the_first_gap_begins_at_the_first_element_that_nobody_has(
            picks in proptest::collection::vec(0usize..1000, 0..12),
        ) {
            let (all, within) = (all_in_four(), cuboid([0; 3], [4; 3]));
            let some: Vec<Cuboid> = picks.iter().map(|pick| all[*pick]).collect();
            let open = |at: &[u64; 3]| !some.iter().any(|of| elements(of).contains(at));
            let first = elements(&within).into_iter().find(open);
            let found = within.first_gap(&some);
            prop_assert_eq!(found.map(|gap| [gap.from[0], gap.from[1], gap.from[2]]), first);
            if let Some(gap) = found {
                prop_assert!(elements(&gap).iter().all(open), "{:?}", gap);
            }
        }

        #[test]
        fn numbers_of_a_box_come_back(from in any::<[u32; 8]>(), extent in any::<[u32; 8]>(), dims in 1usize..=8) {
            let of = Cuboid::at(&from.map(u64::from)[..dims], &extent.map(u64::from)[..dims]).expect("small");
            let mut bytes = Vec::new();
            of.put(dims, &mut bytes);
            let mut rest = &bytes[..];
            prop_assert_eq!(Cuboid::take(dims, &mut rest), Some(of));
            prop_assert!(rest.is_empty());
        }
    }
}
