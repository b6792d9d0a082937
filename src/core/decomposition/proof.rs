//! The proof that parts tile an array: no element has two owners, and, unless the array is sparse, none is left out.
//!
//! The owner of each [cell](super::cells) compares the parts that ranks have in it ([`super::shelf`]). If two parts overlap, the sender of
//! the later one is told. If the volumes show that elements are missing, each owner looks for the first missing element in its cells.

use super::Cuboid;
use super::cells::Cells;
use super::shelf::Shelf;
use crate::base::Rank;

/// Two parts that overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// Rank and place of the lower part.
    pub one: (Rank, u32),
    /// Rank and place of the other part.
    pub other: (Rank, u32),
    /// The first row of the elements that they have in common.
    pub first: Cuboid,
}

/// A mistake in the parts of all ranks together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Elements belong to two ranks.
    Overlap(Overlap),
    /// Elements belong to no rank.
    Gap(Cuboid),
}

impl Finding {
    /// The mistake as bytes, ordered so that the greatest bytes are those to be reported: overlaps before gaps, and then the mistake
    /// that comes first in the array.
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, first, parts) = match self {
            Finding::Overlap(Overlap { one, other, first }) => (1u8, first, [one, other]),
            Finding::Gap(first) => (0, first, [(Rank(0), 0); 2]),
        };
        let mut bytes = vec![kind];
        bytes.extend(first.to_key());
        bytes.extend(parts.iter().flat_map(|(rank, number)| [rank.0.to_be_bytes(), number.to_be_bytes()].concat()));
        bytes
    }

    /// The mistake from such bytes; `None` if they are not from [`Finding::to_bytes`].
    pub fn of_bytes(bytes: &[u8]) -> Option<Finding> {
        let (kind, rest) = bytes.split_first()?;
        let (first, parts) = Cuboid::of_key(rest)?;
        let part: &[u8; 16] = parts.try_into().ok()?;
        let number = |at: usize| u32::from_be_bytes(part[4 * at..4 * at + 4].try_into().unwrap_or_default());
        let (one, other) = ((Rank(number(0)), number(1)), (Rank(number(2)), number(3)));
        match kind {
            1 => Some(Finding::Overlap(Overlap { one, other, first })),
            0 => Some(Finding::Gap(first)),
            _ => None,
        }
    }

    /// In words, for an array of this many dimensions.
    pub fn in_words(&self, dims: usize) -> String {
        match self {
            Finding::Overlap(Overlap { one: (one, of_one), other: (other, of_other), first }) => {
                let first = first.shown(dims);
                format!(
                    "elements {first} belong both to box {of_one} of rank {one} and to box {of_other} of rank {other}"
                )
            }
            Finding::Gap(first) => format!("elements {} belong to no rank", first.shown(dims)),
        }
    }
}

/// One rank's cells.
#[derive(Clone, Debug)]
pub struct Owner(Shelf);

/// The result of a post.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// An overlap of its parts with others, if there is one.
    pub overlap: Option<Overlap>,
    /// The posts that are to be sent on.
    pub onward: Vec<(Rank, Vec<u8>)>,
}

impl Owner {
    /// An owner that has received nothing yet.
    pub fn new(cells: &Cells, dims: usize) -> Owner {
        Owner(Shelf::new(cells, dims))
    }

    /// Takes a bundle of posts; `None` if the bundle is not valid.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Taken> {
        let mut overlap = None;
        let onward = self.0.take(bytes, |part, there| {
            overlap = overlap.or_else(|| {
                there.iter().find_map(|other| {
                    let first = part.meets(other)?.first_row();
                    // The order is by rank, not by arrival: all ranks that are told of the overlap must read the same
                    // text.
                    let (this, that) = ((part.of, part.number), (other.of, other.number));
                    Some(Overlap { one: this.min(that), other: this.max(that), first })
                })
            });
        })?;
        Some(Taken { overlap, onward })
    }

    /// The first elements in this rank's cells that no rank has. `own` are the cells that belong to the rank by arithmetic; for some of
    /// them no post may have arrived.
    pub fn first_gap(&self, own: impl Iterator<Item = Cuboid>) -> Option<Cuboid> {
        let untouched = own.filter(|cell| !self.0.knows(cell)).map(|cell| cell.first_gap(&[]));
        let touched = self
            .0
            .cells()
            .map(|lying| lying.cell.first_gap(&lying.parts.iter().map(|part| part.cuboid).collect::<Vec<_>>()));
        untouched.chain(touched).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::super::Parts;
    use super::super::cells::Sums;
    use super::super::shelf::{Side, all_of, posts};
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    /// The results of all ranks' owners, without messages, and the number of parts that the busiest owner holds.
    fn prove(all: &[Boxes]) -> (Option<Finding>, usize) {
        let ranks = all.len() as u32;
        let parts: Vec<Parts> = all.iter().map(|boxes| boxes.check().expect("inside").parts().clone()).collect();
        let (dims, whole) = (parts[0].dims(), *parts[0].whole());
        let sums = parts.iter().map(|parts| Sums::of_rank(parts, Rank(0), ranks)).fold(Sums::default(), Sums::and);
        let cells = Cells::new(&parts[0], &sums, ranks);
        let mut owners: Vec<Owner> = (0..ranks).map(|_| Owner::new(&cells, dims)).collect();
        let first = (0..)
            .zip(&parts)
            .flat_map(|(rank, parts)| posts(&cells, dims, all_of(parts, Side::Has, Rank(rank), Rank(rank))));
        let mut queue: VecDeque<_> = first.collect();
        let mut overlaps = Vec::new();
        while let Some((to, post)) = queue.pop_front() {
            let taken = owners[to.0 as usize].take(&post).expect("a post");
            overlaps.extend(taken.overlap.map(|overlap| Finding::Overlap(overlap).to_bytes()));
            queue.extend(taken.onward);
        }
        let held = |owner: &Owner| owner.0.cells().map(|lying| lying.parts.len()).sum();
        let busiest = owners.iter().map(held).max().expect("some");
        let gaps = (0..ranks)
            .zip(&owners)
            .filter_map(|(rank, owner)| owner.first_gap(cells.of(Rank(rank))).map(|gap| Finding::Gap(gap).to_bytes()));
        let is_whole = all[0].is_sparse() || sums.volume == whole.volume();
        let greatest = if is_whole { overlaps.into_iter().max() } else { overlaps.into_iter().chain(gaps).max() };
        (greatest.map(|bytes| Finding::of_bytes(&bytes).expect("a finding")), busiest)
    }

    #[test]
    fn a_tiling_is_found_to_be_one() {
        let slabs: Vec<Boxes> = [3, 0, 5, 1, 3]
            .iter()
            .scan(0, |at, rows| {
                *at += rows;
                Some(Boxes::of([12, 7]).own([*at - rows, 0], [*rows, 7]))
            })
            .collect();
        assert_eq!(prove(&slabs).0, None);
        let single: Vec<Boxes> = (0..12).map(|at| Boxes::of([3, 4]).own([at / 4, at % 4], [1, 1])).collect();
        assert_eq!(prove(&single).0, None);
        // There are more ranks than boxes, and one rank has everything.
        let mut one = vec![Boxes::of([12, 7]); 9];
        one[4] = Boxes::of([12, 7]).own([0, 0], [12, 7]);
        assert_eq!(prove(&one).0, None);
        assert_eq!(prove(&[Boxes::of([0, 7]), Boxes::of([0, 7])]).0, None);
    }

    #[test]
    fn overlaps_and_gaps_are_told_with_both_ranks_and_the_first_range() {
        let words = |all: &[Boxes]| prove(all).0.expect("wrong").in_words(2);
        let rows = |from, rows| Boxes::of([12, 7]).own([from, 0], [rows, 7]);
        // One rank counts its ghost cells as its own elements.
        let overlap = words(&[rows(0, 5), rows(4, 4), rows(8, 4)]);
        assert_eq!(overlap, "elements [4, 0..7] belong both to box 0 of rank 0 and to box 0 of rank 1");
        assert_eq!(words(&[rows(0, 4), rows(5, 3), rows(8, 4)]), "elements [4, 0..7] belong to no rank");
        assert_eq!(words(&[rows(0, 4), rows(4, 4), rows(8, 3)]), "elements [11, 0..7] belong to no rank");
        // The parts have as many elements in total as the array, but some elements twice.
        let twice = words(&[rows(0, 5), rows(4, 4), rows(9, 3)]);
        assert!(twice.starts_with("elements [4, 0..7] belong both"), "{twice}");
        assert!(words(&vec![Boxes::of([12, 7]); 3]).contains("[0, 0..7] belong to no rank"));
        let own_twice = words(&[Boxes::of([4, 4]).own([0, 0], [4, 4]).own([1, 1], [1, 2])]);
        assert_eq!(own_twice, "elements [1, 1..3] belong both to box 0 of rank 0 and to box 1 of rank 0");
        // If parts need not cover the array, only overlaps are wrong.
        assert_eq!(prove(&[rows(0, 4).sparse(), rows(5, 3).sparse()]).0, None);
        assert!(words(&[rows(0, 4).sparse(), rows(3, 3).sparse()]).contains("belong both"));
    }

    #[test]
    fn many_parts_in_one_corner_are_spread_over_the_ranks() {
        let patches = |rank: u64| {
            let at = |number: u64| (rank * 1000 + number) * 2;
            (0..1000).fold(Boxes::of([1 << 30, 1 << 30]).sparse(), |boxes, number| {
                boxes.own([at(number) % 400, at(number) / 400 * 2], [2, 2])
            })
        };
        let mut all: Vec<Boxes> = (0..16).map(patches).collect();
        let (finding, busiest) = prove(&all);
        assert_eq!(finding, None);
        assert!(busiest < 16_000 / 3, "{busiest} parts of 16,000 with one of 16 ranks");
        all[7] = all[7].clone().own([100, 20], [1, 1]);
        let Some(Finding::Overlap(overlap)) = prove(&all).0 else { panic!("it is there twice") };
        assert!([overlap.one, overlap.other].contains(&(Rank(7), 1000)), "{overlap:?}");
        assert_eq!(overlap.first, Cuboid::at(&[100, 20], &[1, 1]).expect("two"));
    }

    /// All patches lie in one corner of an array, and a sheet runs through the whole array. No owner holds much more than the others, and
    /// an overlap of the sheet with a patch is found.
    #[test]
    fn a_huge_part_amid_tiny_ones_is_compared_with_each() {
        let array = || Boxes::of([1 << 20, 1 << 20, 1 << 20]).sparse();
        let patch = |patch: u64| ([patch / 256 * 4, patch / 16 % 16 * 4, patch % 16 * 4], [4, 4, 4]);
        let mut all: Vec<Boxes> = (0..64)
            .map(|rank| {
                (64 * rank..64 * (rank + 1))
                    .map(patch)
                    .fold(array(), |boxes, (origin, extent)| boxes.own(origin, extent))
            })
            .collect();
        let (finding, busiest) = prove(&all);
        assert_eq!(finding, None);
        assert!(busiest < 4 * 64, "{busiest} parts of 4,096 with one of 64 ranks");
        // The sheet lies after the patches, and then crosses the last ones.
        all[3] = all[3].clone().own([64, 0, 0], [1, 1 << 20, 1 << 20]);
        let (finding, busiest) = prove(&all);
        assert_eq!(finding, None);
        assert!(busiest < 6 * 64, "{busiest} parts of 4,096 with one of 64 ranks");
        all[5] = all[5].clone().own([63, 1, 3], [1, (1 << 20) - 1, (1 << 20) - 3]);
        let Some(Finding::Overlap(overlap)) = prove(&all).0 else { panic!("it is there twice") };
        assert!([overlap.one, overlap.other].contains(&(Rank(5), 64)), "{overlap:?}");
        assert_eq!((overlap.first.from[0], &overlap.first.from[1..3]), (63, &[1, 3][..]));
    }

    #[test]
    fn what_is_no_post_is_not_taken() {
        let parts = Boxes::of([9]).own([2], [3]).check().expect("inside").parts().clone();
        let cells = Cells::new(&parts, &Sums::default(), 1);
        let mut owner = Owner::new(&cells, 1);
        let post = posts(&cells, 1, all_of(&parts, Side::Has, Rank(0), Rank(0))).pop().expect("one").1;
        assert!(owner.take(&post).is_some());
        assert!((1..post.len()).all(|end| owner.take(&post[..end]).is_none()));
        // A part that is not in its cell, and a count that is followed by nothing.
        assert_eq!(owner.take(&[0, 0, 5, 1, 0, 0, 0, 4, 3]), None);
        assert_eq!(owner.take(&[1, 0, 5, 0, 0xff, 0xff, 0xff, 0x7f]), None);
        assert_eq!(owner.take(&[0, 0, 5, 0xff, 0xff, 0xff, 0x7f]), None);
    }

    /// Cuts an array repeatedly, and distributes the pieces.
    fn dealt(shape: [u64; 3], cuts: &[(prop::sample::Index, usize, u64)], ranks: usize) -> Vec<Boxes> {
        let mut pieces = vec![Cuboid::at(&[0; 3], &shape).expect("three")];
        for (which, dim, at) in cuts {
            let piece = pieces.swap_remove(which.index(pieces.len()));
            let (mut low, mut high) = (piece, piece);
            low.to[*dim] = piece.from[*dim] + at % (piece.extent(*dim) + 1);
            high.from[*dim] = low.to[*dim];
            pieces.extend([low, high]);
        }
        let mut all = vec![Boxes::of(shape); ranks];
        for (place, piece) in pieces.iter().enumerate() {
            let extent: Vec<u64> = (0..3).map(|dim| piece.extent(dim)).collect();
            let to = &mut all[(place * 7 + piece.from[0] as usize) % ranks];
            *to = to.clone().own(&piece.from[..3], extent);
        }
        all
    }

    proptest! {
        #[test]
        fn a_proof_agrees_with_counting(
            shape in any::<[u8; 3]>().prop_map(|shape| shape.map(|extent| u64::from(extent % 7) + 1)),
            cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..3, any::<u64>()), 0..40),
            ranks in 1usize..9,
            change in proptest::option::of((any::<[u8; 3]>(), any::<[u8; 3]>(), any::<prop::sample::Index>())),
            is_sparse in any::<bool>(),
        ) {
            let mut all = dealt(shape, &cuts, ranks);
            if let Some((origin, extent, rank)) = change {
                let origin: [u64; 3] = std::array::from_fn(|dim| u64::from(origin[dim]) % shape[dim]);
                let extent: [u64; 3] = std::array::from_fn(|dim| u64::from(extent[dim]) % (shape[dim] - origin[dim] + 1));
                let rank = rank.index(ranks);
                // One rank loses all its parts, or gets a part that belongs to another rank.
                all[rank] = if extent[0].is_multiple_of(2) { Boxes::of(shape) } else { all[rank].clone().own(origin, extent) };
            }
            if is_sparse {
                all = all.into_iter().map(Boxes::sparse).collect();
            }
            let mut counts = BTreeMap::new();
            for (rank, boxes) in all.iter().enumerate() {
                for own in boxes.check().expect("inside").parts().own() {
                    for z in own.from[0]..own.to[0] {
                        for y in own.from[1]..own.to[1] {
                            (own.from[2]..own.to[2]).for_each(|x| counts.entry([z, y, x]).or_insert_with(Vec::new).push(rank));
                        }
                    }
                }
            }
            let elements = (0..shape[0]).flat_map(|z| (0..shape[1]).flat_map(move |y| (0..shape[2]).map(move |x| [z, y, x])));
            let twice = counts.iter().find(|(_, owners)| owners.len() > 1);
            let missing = elements.into_iter().find(|at| !counts.contains_key(at));
            match prove(&all).0 {
                None => prop_assert!(twice.is_none() && (is_sparse || missing.is_none())),
                Some(Finding::Gap(gap)) => {
                    prop_assert!(twice.is_none());
                    prop_assert_eq!(Some([gap.from[0], gap.from[1], gap.from[2]]), missing);
                }
                Some(Finding::Overlap(Overlap { one, other, first })) => {
                    let owners = &counts[&[first.from[0], first.from[1], first.from[2]]];
                    let named = [one.0.0 as usize, other.0.0 as usize];
                    prop_assert!(owners.len() > 1 && named.iter().all(|rank| owners.contains(rank)));
                }
            }
        }
    }
}
