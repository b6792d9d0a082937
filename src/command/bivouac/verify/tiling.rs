//! Do the parts of all ranks tile an array? Pure.
//!
//! The ranks themselves proved this when the array was decomposed, by cells (`decomposition::proof`). This module finds the same answer in
//! another way, so that each of the two finds what the other cannot see:
//!
//! 1. No two boxes have an element in common. If two boxes do, then in each dimension, one of them begins inside the other. Therefore, in
//!    the last dimension, boxes are assigned to the ranges that they span, as in a segment tree whose leaves are the beginnings. The boxes
//!    that span a range and those that begin in it are examined in the dimension before; in the first dimension, they are sorted by their
//!    beginnings and swept. This takes n log^d n steps, whatever the boxes are.
//! 2. Then the array is tiled if the boxes have as many elements as the array. If not, the first gap is in the first half in which
//!    elements are missing.
//!
//! If there are more boxes than may be in memory, the array is halved until there are not. Half a million boxes from random cuts take three
//! seconds, and four million take a minute.
//!
//! Source of 1: Zomorodian and Edelsbrunner, Fast Software for Box Intersections, IJCGA 2002.
#![forbid(unsafe_code)]

use bivouac_core::base::Rank;
use bivouac_core::decomposition::proof::{Finding, Overlap};
use bivouac_core::decomposition::{Cuboid, PackedParts};
use std::borrow::Cow;

/// The maximum number of boxes in memory at a time, 136 bytes each.
pub const PIECES_MAX: usize = 1 << 19;
/// The maximum number of passes over all boxes.
const PASSES_MAX: usize = 1024;
/// Up to this many boxes are examined together, without parting them first.
const TOGETHER: usize = 4096;
/// A region is halved only if this tears at most one in this many boxes.
const TORN: usize = 4;
/// Up to this many boxes are compared one by one.
const FEW: usize = 16;

/// The result of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The parts tile the array; in a sparse array, no element has two owners.
    Proved,
    /// Something is wrong.
    Wrong(Finding),
    /// It would take too long to find out.
    Open,
}

/// A part of a rank's box that is in the examined part of the array.
#[derive(Clone, Copy)]
struct Piece {
    rank: Rank,
    /// The index of the box among those of its rank.
    number: u32,
    cuboid: Cuboid,
}

/// Examines the parts of all ranks, which are parts of the same array, with at most `most` boxes in memory; `most` is two or more.
pub fn prove(all: &[(Rank, PackedParts<'_>)], most: usize) -> Verdict {
    let Some((_, first)) = all.first() else { return Verdict::Proved };
    prove_in(all, first.whole(), !first.is_sparse(), most)
}

/// Examines the parts of all ranks within a section of the array. If `is_covered`, all elements of the section must exist; otherwise,
/// some may be missing.
pub fn prove_in(all: &[(Rank, PackedParts<'_>)], section: &Cuboid, is_covered: bool, most: usize) -> Verdict {
    let Some((_, first)) = all.first() else { return Verdict::Proved };
    let dims = first.dims();
    let mut open = vec![*section];
    for _ in 0..PASSES_MAX {
        let Some(region) = open.pop() else { return Verdict::Proved };
        let (pieces, are_all) = pieces_in(all, &region, most);
        // A region that cannot be halved has one element, and two boxes have it.
        if !are_all && let Some([low, high]) = halves(&region, &pieces) {
            open.extend([high, low]);
            continue;
        }
        if let Some(wrong) = overlap_in(&region, &pieces, dims) {
            return Verdict::Wrong(wrong);
        }
        if !are_all {
            return Verdict::Open;
        }
        let gap = || first_gap(pieces.iter().map(|piece| piece.cuboid).collect(), region, dims);
        if let Some(gap) = is_covered.then(gap).flatten() {
            return Verdict::Wrong(Finding::Gap(gap));
        }
    }
    if open.is_empty() { Verdict::Proved } else { Verdict::Open }
}

/// The parts of all boxes that are in a region of the array, at most `most` of them; and whether these are all.
fn pieces_in(all: &[(Rank, PackedParts<'_>)], region: &Cuboid, most: usize) -> (Vec<Piece>, bool) {
    let mut pieces = Vec::new();
    for (rank, parts) in all {
        for (number, own) in (0..).zip(parts.boxes()) {
            let Some(cuboid) = region.common(&own) else { continue };
            if pieces.len() == most {
                return (pieces, false);
            }
            pieces.push(Piece { rank: *rank, number, cuboid });
        }
    }
    (pieces, true)
}

/// Halves a region in the dimension in which it is the widest, compared with the mean width of the boxes in it.
fn halves(region: &Cuboid, pieces: &[Piece]) -> Option<[Cuboid; 2]> {
    let times = |dim: usize| {
        let sum: f64 = pieces.iter().map(|piece| piece.cuboid.extent(dim) as f64).sum();
        (dim, region.extent(dim) as f64 * pieces.len() as f64 / sum.max(1.0))
    };
    let wide = (0..region.from.len()).filter(|dim| region.extent(*dim) > 1).map(times);
    let (dim, _) = wide.max_by(|one, other| one.1.total_cmp(&other.1))?;
    Some(halves_in(region, dim))
}

fn halves_in(region: &Cuboid, dim: usize) -> [Cuboid; 2] {
    let (mut low, mut high) = (*region, *region);
    low.to[dim] = region.from[dim] + region.extent(dim) / 2;
    high.from[dim] = low.to[dim];
    [low, high]
}

/// Finds two of the pieces in a region that have an element in common. The pieces are parted by halving the region for as long as this
/// parts them well: pieces that are together in a cache are compared faster.
fn overlap_in(region: &Cuboid, pieces: &[Piece], dims: usize) -> Option<Finding> {
    let mut open = vec![(*region, Cow::Borrowed(pieces))];
    while let Some((region, pieces)) = open.pop() {
        if pieces.len() > TOGETHER
            && let Some(halves) = halves(&region, &pieces)
        {
            let [low, high] = halves.map(|half| (half, clipped(&pieces, &half)));
            if low.1.len() + high.1.len() <= pieces.len() + pieces.len() / TORN {
                open.extend([high, low].map(|(half, pieces)| (half, Cow::Owned(pieces))));
                continue;
            }
        }
        if let Some((one, other)) = overlap(&pieces, dims) {
            return Some(in_common(&pieces[one], &pieces[other]));
        }
    }
    None
}

fn clipped(pieces: &[Piece], region: &Cuboid) -> Vec<Piece> {
    pieces.iter().filter_map(|piece| Some(Piece { cuboid: region.common(&piece.cuboid)?, ..*piece })).collect()
}

fn in_common(one: &Piece, other: &Piece) -> Finding {
    let mut both = [one, other];
    both.sort_by_key(|piece| (piece.rank, piece.number));
    let [one, other] = both.map(|piece| (piece.rank, piece.number));
    let common = both[0].cuboid.common(&both[1].cuboid).unwrap_or(both[0].cuboid);
    Finding::Overlap(Overlap { one, other, first: common.first_row() })
}

/// Finds two of the pieces that have an element in common. No piece is empty.
fn overlap(pieces: &[Piece], dims: usize) -> Option<(usize, usize)> {
    let all: Vec<u32> = (0..pieces.len() as u32).collect();
    let found = Search { pieces }.meet(&all, &all, dims - 1);
    found.map(|(one, other)| (one as usize, other as usize))
}

struct Search<'a> {
    pieces: &'a [Piece],
}

impl Search<'_> {
    fn from(&self, piece: u32, dim: usize) -> u64 {
        self.pieces[piece as usize].cuboid.from[dim]
    }

    fn to(&self, piece: u32, dim: usize) -> u64 {
        self.pieces[piece as usize].cuboid.to[dim]
    }

    /// Finds one piece of `around`, and another one of `starting` that begins inside it in dimension `dim`, that have an element in common.
    /// In the dimensions after `dim`, all pieces of `around` meet all pieces of `starting`.
    fn meet(&self, around: &[u32], starting: &[u32], dim: usize) -> Option<(u32, u32)> {
        if around.len().min(starting.len()) <= FEW {
            return self.one_by_one(around, starting);
        }
        if dim == 0 {
            return self.sweep(around, starting);
        }
        let begins = starting.iter().map(|piece| self.from(*piece, dim));
        let (low, last) = begins.clone().fold((u64::MAX, 0), |(low, last), at| (low.min(at), last.max(at)));
        let (mut spanning, mut others) = (Vec::new(), Vec::new());
        for piece in around {
            let (from, to) = (self.from(*piece, dim), self.to(*piece, dim));
            match (from <= low, to > last) {
                (true, true) => spanning.push(*piece),
                _ if from <= last && to > low => others.push(*piece),
                _ => {}
            }
        }
        // In the next dimension, either of the two may begin inside the other.
        let mut found = self.meet(&spanning, starting, dim - 1);
        if found.is_none() && spanning != starting {
            found = self.meet(starting, &spanning, dim - 1);
        }
        if found.is_some() || others.is_empty() {
            return found;
        }
        drop(spanning);
        let mut begins: Vec<u64> = begins.collect();
        let half = begins.len() / 2;
        let middle = match *begins.select_nth_unstable(half).1 {
            // A beginning that leaves something before it. There is one: if all pieces began together, they would be spanned.
            middle if middle == low => begins.iter().copied().filter(|at| *at > low).min()?,
            middle => middle,
        };
        let (before, behind): (Vec<u32>, Vec<u32>) =
            starting.iter().partition(|piece| self.from(**piece, dim) < middle);
        let reach: Vec<u32> = others.iter().copied().filter(|piece| self.from(*piece, dim) < middle).collect();
        others.retain(|piece| self.to(*piece, dim) > middle);
        self.meet(&reach, &before, dim).or_else(|| self.meet(&others, &behind, dim))
    }

    fn one_by_one(&self, around: &[u32], starting: &[u32]) -> Option<(u32, u32)> {
        let cuboid = |piece: u32| &self.pieces[piece as usize].cuboid;
        around.iter().find_map(|one| {
            let meets = |other: &&u32| *other != one && cuboid(*one).common(cuboid(**other)).is_some();
            starting.iter().find(meets).map(|other| (*one, *other))
        })
    }

    /// Finds two pieces that meet along the first dimension, if no other dimension remains: a piece that begins next after another one has
    /// begun, and before that one has ended.
    fn sweep(&self, around: &[u32], starting: &[u32]) -> Option<(u32, u32)> {
        let mut begins: Vec<(u64, u32)> = starting.iter().map(|piece| (self.from(*piece, 0), *piece)).collect();
        begins.sort_unstable();
        around.iter().find_map(|one| {
            let first = begins.partition_point(|(at, _)| *at < self.from(*one, 0));
            // At least one of the next two is another piece.
            let next = begins[first..].iter().take(2).find(|(_, other)| other != one);
            next.filter(|(at, _)| *at < self.to(*one, 0)).map(|(_, other)| (*one, *other))
        })
    }
}

/// The first elements of `region`, along a row, that no box has. The boxes are inside the region, and have no element in common.
fn first_gap(mut inside: Vec<Cuboid>, mut region: Cuboid, dims: usize) -> Option<Cuboid> {
    let is_full = |region: &Cuboid, inside: &[Cuboid]| {
        inside.iter().map(|own| u128::from(own.volume())).sum::<u128>() == u128::from(region.volume())
    };
    if is_full(&region, &inside) {
        return None;
    }
    let row = dims - 1;
    for dim in 0..row {
        while region.extent(dim) > 1 {
            let [low, high] = halves_in(&region, dim);
            let in_low: Vec<Cuboid> = inside.iter().filter_map(|own| low.common(own)).collect();
            (region, inside) = match is_full(&low, &in_low) {
                true => (high, inside.iter().filter_map(|own| high.common(own)).collect()),
                false => (low, in_low),
            };
        }
    }
    inside.sort_unstable_by_key(|own| own.from[row]);
    let mut gap = region;
    for own in &inside {
        if own.from[row] > gap.from[row] {
            gap.to[row] = own.from[row];
            break;
        }
        gap.from[row] = own.to[row];
    }
    Some(gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::decomposition::{Boxes, Identity, Record, View};
    use bivouac_core::format::{Region, RegionKind};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Records of ranks that have these boxes.
    fn records(all: &[Boxes]) -> Vec<Vec<u8>> {
        let record = |boxes: &Boxes| {
            let parts = boxes.check().expect("inside").parts().clone();
            Record { decompositions: vec![(Identity(1), parts)], ..Record::default() }.encode()
        };
        all.iter().map(record).collect()
    }

    fn prove_boxes(all: &[Boxes], most: usize) -> Verdict {
        let (records, regions) = (records(all), [Region::of_bytes("r", RegionKind::Value, 1)]);
        let views = records.iter().map(|record| View::of(record, &regions).expect("just encoded"));
        let parts: Vec<_> = (0..).map(Rank).zip(views.map(|view| view.decompositions[0].1)).collect();
        prove(&parts, most)
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
            let to = &mut all[place % ranks];
            *to = to.clone().own(&piece.from[..3], extent);
        }
        all
    }

    /// The ranks that own each element.
    fn owners(all: &[Boxes], shape: [u64; 3]) -> BTreeMap<[u64; 3], Vec<u32>> {
        let mut owners = BTreeMap::new();
        for z in 0..shape[0] {
            for y in 0..shape[1] {
                owners.extend((0..shape[2]).map(|x| ([z, y, x], Vec::new())));
            }
        }
        for (rank, boxes) in (0u32..).zip(all) {
            for own in boxes.check().expect("inside").parts().own() {
                for z in own.from[0]..own.to[0] {
                    for y in own.from[1]..own.to[1] {
                        (own.from[2]..own.to[2]).for_each(|x| owners.get_mut(&[z, y, x]).expect("inside").push(rank));
                    }
                }
            }
        }
        owners
    }

    proptest! {
        #[test]
        fn a_proof_agrees_with_counting(
            shape in any::<[u8; 3]>().prop_map(|shape| shape.map(|extent| u64::from(extent % 16) + 1)),
            cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..3, any::<u64>()), 0..400),
            ranks in 1usize..6,
            change in proptest::option::of((any::<[u8; 3]>(), any::<[u8; 3]>(), any::<prop::sample::Index>())),
            sparse in any::<bool>(),
            most in prop_oneof![Just(PIECES_MAX), 2usize..60],
        ) {
            let mut all = dealt(shape, &cuts, ranks);
            if let Some((origin, extent, rank)) = change {
                let origin: [u64; 3] = std::array::from_fn(|dim| u64::from(origin[dim]) % shape[dim]);
                let extent: [u64; 3] = std::array::from_fn(|dim| u64::from(extent[dim]) % (shape[dim] - origin[dim] + 1));
                let rank = rank.index(ranks);
                // One rank loses all its boxes, or gets elements that another rank has.
                all[rank] = if extent[0].is_multiple_of(2) { Boxes::of(shape) } else { all[rank].clone().own(origin, extent) };
            }
            if sparse {
                all.iter_mut().for_each(|boxes| *boxes = boxes.clone().sparse());
            }
            let owners = owners(&all, shape);
            let missing = owners.iter().find(|(_, owners)| owners.is_empty()).filter(|_| !sparse).map(|(at, _)| *at);
            let at = |first: &Cuboid| [first.from[0], first.from[1], first.from[2]];
            match prove_boxes(&all, most) {
                Verdict::Open => prop_assert!(false, "it is small"),
                Verdict::Proved => {
                    prop_assert!(missing.is_none() && owners.values().all(|owners| owners.len() < 2));
                }
                Verdict::Wrong(Finding::Gap(gap)) => {
                    // No element of the gap has an owner, and nothing before it is missing, if all boxes were in memory at once.
                    let mut elements = (gap.from[2]..gap.to[2]).map(|x| [gap.from[0], gap.from[1], x]);
                    prop_assert!(!sparse && gap.to[2] > gap.from[2] && elements.all(|at| owners[&at].is_empty()));
                    prop_assert!(most < PIECES_MAX || Some(at(&gap)) == missing);
                }
                Verdict::Wrong(Finding::Overlap(Overlap { one, other, first })) => {
                    let named = [one.0.0, other.0.0];
                    prop_assert!(one < other && owners[&at(&first)].len() > 1);
                    prop_assert!(named.iter().all(|rank| owners[&at(&first)].contains(rank)));
                    let own = |(rank, number): (Rank, u32)| {
                        all[rank.0 as usize].check().expect("inside").parts().own()[number as usize]
                    };
                    prop_assert!(own(one).contains(&first) && own(other).contains(&first));
                }
            }
        }
    }

    /// Boxes of 2 elements along each dimension that tile an array, except for one box.
    fn grid(side: u64, dims: usize, left_out: Option<u64>) -> Vec<Boxes> {
        let mut all = [(); 3].map(|()| Boxes::of(vec![2 * side; dims]));
        for number in (0..side.pow(dims as u32)).filter(|number| Some(*number) != left_out) {
            let origin: Vec<u64> = (0..dims as u32).map(|dim| number / side.pow(dim) % side * 2).collect();
            let of = &mut all[(number % 3) as usize];
            *of = std::mem::replace(of, Boxes::of([1])).own(origin, vec![2; dims]);
        }
        all.into()
    }

    #[test]
    fn one_element_among_many_boxes_is_found() {
        let cases = [(20_000, 1, PIECES_MAX), (200, 2, 5000), (30, 3, 3000), (30, 3, PIECES_MAX), (3, 8, 900)];
        for (side, dims, most) in cases {
            let mut all = grid(side, dims, None);
            assert_eq!(prove_boxes(&all, most), Verdict::Proved, "{side} {dims}");
            let last = vec![2 * side - 1; dims];
            all[1] = all[1].clone().own(last.clone(), vec![1; dims]);
            let Verdict::Wrong(Finding::Overlap(overlap)) = prove_boxes(&all, most) else { panic!("{side} {dims}") };
            assert_eq!(overlap.first, Cuboid::at(&last, &vec![1; dims]).expect("inside"));
            // The box in the middle is left out.
            let middle = side.pow(dims as u32) / 2;
            let all = grid(side, dims, Some(middle));
            let Verdict::Wrong(Finding::Gap(gap)) = prove_boxes(&all, most) else { panic!("{side} {dims}") };
            let origin: Vec<u64> = (0..dims as u32).map(|dim| middle / side.pow(dim) % side * 2).collect();
            let row = [vec![1; dims - 1], vec![2]].concat();
            // The gap is the part of the box's first row that was examined together.
            let row = Cuboid::at(&origin, &row).expect("inside");
            assert!(gap.from == row.from && row.contains(&gap) && !gap.is_empty(), "{gap:?}");
            let sparse: Vec<Boxes> = all.into_iter().map(Boxes::sparse).collect();
            assert_eq!(prove_boxes(&sparse, most), Verdict::Proved);
        }
    }

    #[test]
    fn what_nobody_can_own_is_proved_and_what_nobody_owns_is_not() {
        assert_eq!(prove_boxes(&[Boxes::of([0, 5]).own([0, 0], [0, 5])], 10), Verdict::Proved);
        assert_eq!(prove(&[], 10), Verdict::Proved);
        let whole = (1u64 << 62) - 1;
        assert_eq!(prove_boxes(&[Boxes::of([whole]).own([0], [whole])], 10), Verdict::Proved);
        let gap = prove_boxes(&[Boxes::of([whole]).own([0], [7]).own([9], [whole - 9])], 10);
        assert_eq!(gap, Verdict::Wrong(Finding::Gap(Cuboid::at(&[7], &[2]).expect("inside"))));
    }

    /// Bars through the whole array in each dimension, which do not meet and all of which any plane cuts; and the same box many times.
    #[test]
    fn boxes_that_are_made_to_take_long_do_not() {
        let side = 400u64;
        let bars = (0..side * side / 4).map(|number| (number * 2 % side, number * 2 / side * 2));
        let bars = bars.fold(Boxes::of([side; 3]).sparse(), |boxes, (a, b)| {
            let boxes = boxes.own([a, b, 0], [1, 1, side]);
            boxes.own([a + 1, 0, b], [1, side, 1]).own([0, a + 1, b + 1], [side, 1, 1])
        });
        assert_eq!(prove_boxes(std::slice::from_ref(&bars), PIECES_MAX), Verdict::Proved);
        // Another box has one element of the last bars.
        let one_more = bars.own([side - 1; 3], [1; 3]);
        assert!(matches!(prove_boxes(&[one_more], PIECES_MAX), Verdict::Wrong(Finding::Overlap(_))));
        let same = (0..200_000).fold(Boxes::of([9; 3]).sparse(), |boxes, _| boxes.own([1, 2, 3], [4, 5, 6]));
        assert!(matches!(prove_boxes(&[same], 1000), Verdict::Wrong(Finding::Overlap(_))));
    }
}
