//! Finds out which rank sends which elements to which other rank when a region is loaded on a different decomposition
//! than it was saved on.
//!
//! Ranks that read shards tell the [owners of cells](super::shelf) which parts of an array the shards have, and all ranks tell the
//! owners which parts they want. Each owner finds out for its cells whether every wanted element exists exactly once, and tells each
//! rank which [pieces](Piece) it gets from where.

use super::Cuboid;
use super::shelf::{Lying, Placed, Shelf, Side};
use crate::base::Rank;
use crate::format::numbers;
use std::collections::BTreeMap;

/// The approximate length of a bundle of pieces in bytes.
const BUNDLE_BYTES: usize = 64 << 10;

/// Elements that go from a shard to a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    /// The rank that reads the shard for those that cannot read it.
    pub reader: Rank,
    /// The shard is on a tier that all ranks can read.
    pub is_shared: bool,
    /// The old rank whose shard has them.
    pub shard: Rank,
    /// The place of the box in the shard.
    pub part: u32,
    /// The rank that wants them.
    pub to: Rank,
    /// The place of its box.
    pub number: u32,
    /// The elements.
    pub cuboid: Cuboid,
}

/// Why some wanted elements cannot be delivered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unmatched {
    /// No rank has them: the first elements, and the rank that wants them.
    Missing(Cuboid, Rank),
    /// Two old ranks have them: the first elements, and the ranks.
    Twice(Cuboid, Rank, Rank),
}

impl Unmatched {
    /// The problem as bytes, ordered so that the greatest bytes belong to the problem that comes first in the array.
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, first, ranks) = match self {
            Unmatched::Missing(first, rank) => (0u8, first, [rank, Rank(0)]),
            Unmatched::Twice(first, one, other) => (1, first, [one, other]),
        };
        let mut bytes = first.to_key();
        bytes.extend(ranks.iter().flat_map(|rank| rank.0.to_be_bytes()));
        bytes.push(kind);
        bytes
    }

    /// The problem from such bytes; `None` if they are not from [`Unmatched::to_bytes`].
    pub fn of_bytes(bytes: &[u8]) -> Option<Unmatched> {
        let (first, rest) = Cuboid::of_key(bytes)?;
        let rest: &[u8; 9] = rest.try_into().ok()?;
        let rank = |at: usize| Rank(u32::from_be_bytes(rest[at..at + 4].try_into().unwrap_or_default()));
        match rest[8] {
            0 => Some(Unmatched::Missing(first, rank(0))),
            1 => Some(Unmatched::Twice(first, rank(0), rank(4))),
            _ => None,
        }
    }

    /// In words, for an array of this many dimensions.
    pub fn in_words(&self, dims: usize) -> String {
        match self {
            Unmatched::Missing(first, rank) => {
                format!("no rank saved elements {}, which rank {rank} loads", first.shown(dims))
            }
            Unmatched::Twice(first, one, other) => {
                format!("elements {} are in the shards of both rank {one} and rank {other}", first.shown(dims))
            }
        }
    }
}

/// An owner's result for its cells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Matched {
    /// Pieces, by the rank that wants them.
    pub pieces: BTreeMap<Rank, Vec<Piece>>,
    /// The first problem.
    pub unmatched: Option<Unmatched>,
    /// The number of elements that are wanted in its cells.
    pub wanted: u64,
    /// The number of elements of the pieces.
    pub matched: u64,
}

/// Matches the wanted elements in the cells of a rank with the elements that ranks have.
pub fn matched(shelf: &Shelf) -> Matched {
    let mut matched = Matched::default();
    let mut wrong: Vec<Unmatched> = Vec::new();
    for Lying { parts, inner, .. } in shelf.cells() {
        let (wants, has): (Vec<Placed>, Vec<Placed>) = parts.iter().partition(|placed| placed.side == Side::Wants);
        for (at, one) in has.iter().enumerate() {
            wrong.extend(
                has[at + 1..]
                    .iter()
                    .filter_map(|other| Some(Unmatched::Twice(one.meets(other)?.first_row(), one.of, other.of))),
            );
        }
        for want in &wants {
            let mut found = 0;
            for have in &has {
                let Some(cuboid) = have.cuboid.common(&want.cuboid) else { continue };
                found += cuboid.volume();
                if have.is_above && want.is_above {
                    continue;
                }
                let piece = Piece {
                    reader: have.rank,
                    is_shared: have.side == Side::Shared,
                    shard: have.of,
                    part: have.number,
                    to: want.rank,
                    number: want.number,
                    cuboid,
                };
                matched.matched += cuboid.volume();
                matched.pieces.entry(want.rank).or_default().push(piece);
            }
            if found < want.cuboid.volume() {
                // The cells inside this one check their own elements, so these elements count as known here.
                let known: Vec<Cuboid> = has.iter().map(|have| have.cuboid).chain(inner.iter().copied()).collect();
                wrong.extend(want.cuboid.first_gap(&known).map(|gap| Unmatched::Missing(gap, want.rank)));
            }
            if !want.is_above {
                matched.wanted += want.cuboid.volume();
            }
        }
    }
    matched.unmatched = wrong.into_iter().max_by_key(|wrong| wrong.to_bytes());
    matched
}

/// Joins pieces that were split between cells: the elements that a box of one shard and a box of one rank have in common become one
/// piece. The result is sorted.
pub fn joined(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_unstable();
    let mut joined: Vec<Piece> = Vec::new();
    for of in pieces.chunk_by(|one, other| Piece { cuboid: other.cuboid, ..*one } == *other) {
        let mut hull = of[0].cuboid;
        for Piece { cuboid, .. } in of {
            hull.from.iter_mut().zip(cuboid.from).for_each(|(from, other)| *from = other.min(*from));
            hull.to.iter_mut().zip(cuboid.to).for_each(|(to, other)| *to = other.max(*to));
        }
        match of.iter().map(|piece| piece.cuboid.volume()).sum::<u64>() == hull.volume() {
            true => joined.push(Piece { cuboid: hull, ..of[0] }),
            false => joined.extend(of),
        }
    }
    joined
}

/// Pieces in bundles of a bounded length, for arrays of this many dimensions.
pub fn bundles(pieces: &[Piece], dims: usize) -> Vec<Vec<u8>> {
    let (mut open, mut bundles) = (Vec::new(), Vec::new());
    for Piece { reader, is_shared, shard, part, to, number, cuboid } in pieces {
        numbers::put(&mut open, u64::from(reader.0) << 1 | u64::from(*is_shared));
        for value in [shard.0, *part, to.0, *number] {
            numbers::put(&mut open, u64::from(value));
        }
        cuboid.put(dims, &mut open);
        if open.len() > BUNDLE_BYTES {
            bundles.push(std::mem::take(&mut open));
        }
    }
    bundles.extend((!open.is_empty()).then_some(open));
    bundles
}

/// The pieces of a bundle; `None` if it is not valid.
pub fn unbundled(mut bytes: &[u8], dims: usize) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let first = numbers::take(&mut bytes)?;
        let (reader, is_shared) = (Rank(u32::try_from(first >> 1).ok()?), first & 1 == 1);
        let mut value = || u32::try_from(numbers::take(&mut bytes)?).ok();
        let (shard, part, to, number) = (Rank(value()?), value()?, Rank(value()?), value()?);
        let cuboid = Cuboid::take(dims, &mut bytes).filter(|cuboid| !cuboid.is_empty())?;
        pieces.push(Piece { reader, is_shared, shard, part, to, number, cuboid });
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::super::cells::{Cells, Sums};
    use super::super::shelf::{all_of, posts};
    use super::super::{Boxes, Parts};
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    fn parts(boxes: &Boxes) -> Parts {
        boxes.check().expect("inside").parts().clone()
    }

    /// The results of all owners, for the shards of old ranks, each of which is read by a new rank, and for the parts
    /// that new ranks want.
    fn plan(old: &[Boxes], reader: impl Fn(u32) -> u32, new: &[Boxes]) -> Vec<Matched> {
        let ranks = new.len() as u32;
        let (old, new): (Vec<Parts>, Vec<Parts>) = (old.iter().map(parts).collect(), new.iter().map(parts).collect());
        let dims = new[0].dims();
        let sums = new.iter().map(|parts| Sums::of_rank(parts, Rank(0), ranks)).fold(Sums::default(), Sums::and);
        let cells = Cells::new(&new[0], &sums, ranks);
        let mut shelves: Vec<Shelf> = (0..ranks).map(|_| Shelf::new(&cells, dims)).collect();
        let has = (0..)
            .zip(&old)
            .flat_map(|(of, parts)| posts(&cells, dims, all_of(parts, Side::Has, Rank(reader(of)), Rank(of))));
        let wants = (0..)
            .zip(&new)
            .flat_map(|(rank, parts)| posts(&cells, dims, all_of(parts, Side::Wants, Rank(rank), Rank(rank))));
        let mut queue: VecDeque<_> = has.chain(wants).collect();
        while let Some((to, post)) = queue.pop_front() {
            queue.extend(shelves[to.0 as usize].take(&post, |_, _| ()).expect("a post"));
        }
        shelves.iter().map(matched).collect()
    }

    fn slabs(shape: [u64; 2], dim: usize, ranks: u64) -> Vec<Boxes> {
        let first = |rank: u64| rank * shape[dim] / ranks;
        (0..ranks)
            .map(|rank| {
                let (mut origin, mut extent) = ([0, 0], shape);
                (origin[dim], extent[dim]) = (first(rank), first(rank + 1) - first(rank));
                Boxes::of(shape).own(origin, extent)
            })
            .collect()
    }

    #[test]
    fn slabs_that_are_turned_send_a_piece_from_each_to_each() {
        let all = plan(&slabs([60, 40], 0, 4), |of| of * 3 / 4, &slabs([60, 40], 1, 3));
        assert!(all.iter().all(|matched| matched.unmatched.is_none()));
        let count = |of: fn(&Matched) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!((count(|one| one.wanted), count(|one| one.matched)), (2400, 2400));
        let mut pieces: Vec<Piece> = all.iter().flat_map(|one| one.pieces.values().flatten().copied()).collect();
        pieces.sort_unstable();
        let between: BTreeSet<(Rank, Rank)> = pieces.iter().map(|piece| (piece.shard, piece.to)).collect();
        assert_eq!(between.len(), 12);
        // Each rank that wants elements is told which ones it gets, and from whom.
        for matched in &all {
            for (to, pieces) in &matched.pieces {
                assert!(pieces.iter().all(|piece| piece.to == *to && piece.shard.0 * 3 / 4 == piece.reader.0));
            }
        }
        // A piece that was split between cells is one piece again.
        let whole = joined(pieces.clone());
        assert_eq!((whole.len(), whole.iter().map(|piece| piece.cuboid.volume()).sum::<u64>()), (12, 2400));
        let bundled = bundles(&pieces, 2);
        assert_eq!(unbundled(&bundled.concat(), 2), Some(pieces));
        assert_eq!(unbundled(&bundled[0][..bundled[0].len() - 1], 2), None);
    }

    #[test]
    fn what_nobody_has_and_what_two_have_is_told_with_its_range() {
        let whole = || vec![Boxes::of([10, 4]).own([0, 0], [10, 4])];
        let first = |all: Vec<Matched>| {
            let bytes = all.iter().filter_map(|one| Some(one.unmatched?.to_bytes())).max().expect("something is wrong");
            Unmatched::of_bytes(&bytes).expect("what it was").in_words(2)
        };
        let level =
            vec![Boxes::of([10, 4]).own([0, 0], [3, 4]).sparse(), Boxes::of([10, 4]).own([5, 0], [5, 4]).sparse()];
        assert_eq!(first(plan(&level, |_| 0, &whole())), "no rank saved elements [3, 0..4], which rank 0 loads");
        let twice = vec![Boxes::of([10, 4]).own([0, 0], [6, 4]), Boxes::of([10, 4]).own([5, 0], [5, 4])];
        assert_eq!(
            first(plan(&twice, |_| 0, &whole())),
            "elements [5, 0..4] are in the shards of both rank 0 and rank 1"
        );
        assert!(plan(&level, |_| 0, &level.clone()).iter().all(|one| one.unmatched.is_none()));
    }

    #[test]
    fn many_that_want_the_same_are_not_cut_for_ever() {
        let old = slabs([64, 64], 0, 8);
        let new: Vec<Boxes> = (0..1500).map(|_| Boxes::of([64, 64]).own([0, 0], [64, 64])).collect();
        let all = plan(&old, |of| of, &new);
        assert!(all.iter().all(|one| one.unmatched.is_none()));
        assert_eq!(all.iter().map(|one| one.matched).sum::<u64>(), 1500 * 64 * 64);
    }

    /// Long rods along three dimensions fill cells of a sparse array, which are therefore cut. One of the rods was saved in short pieces,
    /// which lie in finer cells.
    #[test]
    fn cells_in_layers_are_cut_and_know_what_is_in_finer_ones() {
        // 400 rods along each of three dimensions; no rod crosses another one.
        let rods = |leave_out: Option<u64>| -> Vec<([u64; 3], [u64; 3])> {
            let along_z = (0..400u64).map(|at| ([at % 40, at / 40, 0], [1, 1, 4500]));
            let along_x = (0..400u64).map(|at| ([0, 30 + at % 40, at / 40], [4500, 1, 1]));
            let along_y = (0..400u64).map(|at| ([50 + at % 40, 0, 30 + at / 40], [1, 4500, 1]));
            let all = along_z.chain(along_x).chain(along_y);
            all.filter(|(origin, _)| leave_out != Some(origin[0]) || origin[1] != 1).collect()
        };
        let boxes = |rods: &[([u64; 3], [u64; 3])]| {
            rods.iter()
                .fold(Boxes::of([8192, 8192, 8192]).sparse(), |boxes, (origin, extent)| boxes.own(*origin, *extent))
        };
        let (all, mut old) = (rods(None), rods(Some(17)));
        old.extend((0..45).map(|piece| ([17, 1, 100 * piece], [1, 1, 100])));
        let wants = || all.chunks(300).map(boxes).collect::<Vec<Boxes>>();
        let whole = plan(&[boxes(&old[..500]), boxes(&old[500..])], |of| of, &wants());
        assert!(whole.iter().all(|one| one.unmatched.is_none()));
        let sum = |all: &[Matched], of: fn(&Matched) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!((sum(&whole, |one| one.wanted), sum(&whole, |one| one.matched)), (1200 * 4500, 1200 * 4500));
        // One of the short pieces is missing.
        let missing = plan(&[boxes(&old[..500]), boxes(&old[500..1214])], |of| of, &wants());
        let first: Vec<Unmatched> = missing.iter().filter_map(|one| one.unmatched).collect();
        let of = |cuboid: &Cuboid| (cuboid.from[0], cuboid.from[1], cuboid.from[2]);
        assert!(
            first.iter().any(|wrong| matches!(wrong, Unmatched::Missing(gap, _) if of(gap) == (17, 1, 1500))),
            "{first:?}"
        );
        // A further short piece overlaps a saved rod.
        old.push(([16, 1, 33], [1, 1, 2]));
        let twice = plan(&[boxes(&old[..500]), boxes(&old[500..])], |of| of, &wants());
        assert!(
            twice
                .iter()
                .any(|one| matches!(one.unmatched, Some(Unmatched::Twice(first, ..)) if of(&first) == (16, 1, 33)))
        );
    }

    /// All boxes of an array of 4 x 4 x 4 that are not empty.
    fn all_boxes() -> Vec<Cuboid> {
        let sides: Vec<(u64, u64)> = (0..4).flat_map(|from| (from + 1..=4).map(move |to| (from, to))).collect();
        let mut boxes = Vec::new();
        for z in &sides {
            for y in &sides {
                boxes.extend(
                    sides.iter().filter_map(|x| Cuboid::at(&[z.0, y.0, x.0], &[z.1 - z.0, y.1 - y.0, x.1 - x.0])),
                );
            }
        }
        boxes
    }

    /// A bit for each of the 64 elements of a box, in the order of memory.
    fn bits(cuboid: &Cuboid) -> u64 {
        let mut bits = 0;
        for z in cuboid.from[0]..cuboid.to[0] {
            for y in cuboid.from[1]..cuboid.to[1] {
                (cuboid.from[2]..cuboid.to[2]).for_each(|x| bits |= 1 << (z * 16 + y * 4 + x));
            }
        }
        bits
    }

    /// For each of the million pairs of boxes: the elements that they have in common, and those that one leaves out of the other, compared
    /// with a count of single elements.
    #[test]
    fn each_pair_of_boxes_in_4_x_4_x_4_has_what_a_count_of_elements_says() {
        let all = all_boxes();
        let bits: Vec<u64> = all.iter().map(bits).collect();
        assert_eq!(all.len(), 1000);
        for (one, one_bits) in all.iter().zip(&bits) {
            for (other, other_bits) in all.iter().zip(&bits) {
                let common = one.common(other);
                assert_eq!(common.map_or(0, |common| self::bits(&common)), one_bits & other_bits, "{one:?} {other:?}");
                assert_eq!(one.contains(other), one_bits & other_bits == *other_bits, "{one:?} {other:?}");
                let open = one_bits & !other_bits;
                let gap = one.first_gap(std::slice::from_ref(other));
                let found = gap.map_or(0, |gap| self::bits(&gap));
                let is_first = found & !open == 0 && found.trailing_zeros() == open.trailing_zeros();
                assert!(is_first && (found == 0) == (open == 0), "{one:?} {other:?}: {gap:?}");
            }
        }
    }

    /// For each pair of boxes, one saved and the other wanted: the elements that the second gets from the first, as the owners of cells
    /// find out.
    #[test]
    fn each_box_in_4_x_4_x_4_gets_from_each_other_one_what_it_has_of_it() {
        each_gets_from_each(&Boxes::of([4, 4, 4]));
        each_gets_from_each(&Boxes::of([4, 4, 4]).sparse());
    }

    fn each_gets_from_each(array: &Boxes) {
        let all = all_boxes();
        let given = |boxes: &[Cuboid]| {
            boxes.iter().fold(array.clone(), |of, cuboid| {
                let extent = |dim: usize| cuboid.extent(dim);
                of.own(&cuboid.from[..3], [extent(0), extent(1), extent(2)])
            })
        };
        let bits_of = |pieces: &[Piece]| {
            let each: Vec<u64> = pieces.iter().map(|piece| bits(&piece.cuboid)).collect();
            let all = each.iter().fold(0, |all, bits| all | bits);
            assert_eq!(each.iter().map(|bits| bits.count_ones()).sum::<u32>(), all.count_ones(), "twice: {pieces:?}");
            all
        };
        let wants = [given(&all[..500]), given(&all[500..])];
        for has in &all {
            let found = plan(std::slice::from_ref(&given(std::slice::from_ref(has))), |_| 0, &wants);
            let mut pieces: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
            for piece in found.iter().flat_map(|one| one.pieces.values().flatten()) {
                pieces.entry(piece.to.0 as usize * 500 + piece.number as usize).or_default().push(*piece);
            }
            for (number, want) in all.iter().enumerate() {
                let got = pieces.get(&number).map_or(0, |pieces| bits_of(pieces));
                assert_eq!(got, bits(has) & bits(want), "{has:?} {want:?}");
            }
        }
    }

    /// Boxes in a square of 64 x 64. Their sides are powers of two, or up to two elements shorter.
    fn of_sizes(all: &[(u32, u64, u64, u64)]) -> impl Iterator<Item = ([u64; 2], [u64; 2])> + '_ {
        all.iter().map(|(size, y, x, less)| {
            let extent = [1 << (size % 7), 1 << (size / 7 % 7)].map(|side: u64| side - less % 3 % side);
            let origin = [y % (65 - extent[0]), x % (65 - extent[1])];
            (origin, extent)
        })
    }

    fn elements(boxes: &Boxes) -> impl Iterator<Item = [u64; 2]> {
        let own = parts(boxes).own().to_vec();
        own.into_iter()
            .flat_map(|own| (own.from[0]..own.to[0]).flat_map(move |y| (own.from[1]..own.to[1]).map(move |x| [y, x])))
    }

    proptest! {
        /// Boxes of all sizes in a corner of a sparse array. Some are saved. Others are wanted, and their elements may be saved or missing.
        #[test]
        fn of_a_sparse_array_too_each_gets_what_is_there_and_what_is_missing_is_told(
            old in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..30),
            new in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..12),
            is_twice in any::<bool>(),
        ) {
            let level = || Boxes::of([1 << 20, 1 << 20]).sparse();
            // An element belongs to the first box that has it, unless `is_twice` lets later boxes have it too.
            let mut has: BTreeMap<[u64; 2], Vec<u32>> = BTreeMap::new();
            let mut shards: Vec<Boxes> = vec![level(); 5];
            for (shard, (origin, extent)) in (0..5).cycle().zip(of_sizes(&old)) {
                let one = level().own(origin, extent);
                if is_twice || elements(&one).all(|at| !has.contains_key(&at)) {
                    elements(&one).for_each(|at| has.entry(at).or_default().push(shard));
                    shards[shard as usize] = shards[shard as usize].clone().own(origin, extent);
                }
            }
            let wants: Vec<Boxes> = of_sizes(&new).map(|(origin, extent)| level().own(origin, extent)).collect();
            let all = plan(&shards, |of| of % wants.len() as u32, &wants);
            let wrong: Vec<Unmatched> = all.iter().filter_map(|one| one.unmatched).collect();
            let twice = has.values().any(|shards| shards.len() > 1);
            let missing = |boxes: &Boxes| elements(boxes).any(|at| !has.contains_key(&at));
            prop_assert_eq!(!wrong.is_empty(), twice || wants.iter().any(missing));
            for wrong in wrong {
                match wrong {
                    Unmatched::Missing(gap, rank) => {
                        prop_assert!(!has.contains_key(&[gap.from[0], gap.from[1]]));
                        prop_assert!(parts(&wants[rank.0 as usize]).own()[0].contains(&gap));
                    }
                    Unmatched::Twice(first, one, other) => {
                        let shards = &has[&[first.from[0], first.from[1]]];
                        let (one, other) = (shards.iter().position(|shard| *shard == one.0), shards.iter().rposition(|shard| *shard == other.0));
                        prop_assert!(one.is_some() && other.is_some() && one != other, "{shards:?}");
                    }
                }
            }
            if twice {
                return Ok(());
            }
            let sum = |of: fn(&Matched) -> u64| all.iter().map(of).sum::<u64>();
            let elements_wanted = wants.iter().map(|boxes| elements(boxes).count() as u64).sum::<u64>();
            prop_assert_eq!(sum(|one| one.wanted), elements_wanted);
            let mut got: BTreeMap<(u32, [u64; 2]), u32> = BTreeMap::new();
            for piece in all.iter().flat_map(|one| one.pieces.values().flatten()) {
                for y in piece.cuboid.from[0]..piece.cuboid.to[0] {
                    for x in piece.cuboid.from[1]..piece.cuboid.to[1] {
                        prop_assert_eq!(got.insert((piece.to.0, [y, x]), piece.shard.0), None);
                    }
                }
            }
            prop_assert_eq!(sum(|one| one.matched), got.len() as u64);
            for (rank, boxes) in (0..).zip(&wants) {
                for at in elements(boxes) {
                    prop_assert_eq!(got.get(&(rank, at)), has.get(&at).map(|shards| &shards[0]));
                }
            }
        }

        #[test]
        fn pieces_are_what_is_wanted_each_element_once(
            dims in (1u64..12, 1u64..12),
            old in (0usize..2, 1u64..9),
            new in proptest::collection::vec(((0u64..12, 0u64..12), (0u64..12, 0u64..12)), 1..8),
        ) {
            let shape = [dims.0, dims.1];
            let old = slabs(shape, old.0, old.1);
            // The new ranks may want anything, even the same elements.
            let new: Vec<Boxes> = new.into_iter().map(|((y, x), (height, width))| {
                let origin = [y % shape[0], x % shape[1]];
                Boxes::of(shape).own(origin, [height % (shape[0] - origin[0] + 1), width % (shape[1] - origin[1] + 1)])
            }).collect();
            let all = plan(&old, |of| of % new.len() as u32, &new);
            prop_assert!(all.iter().all(|one| one.unmatched.is_none()));
            let mut got: BTreeMap<(u32, u64, u64), u32> = BTreeMap::new();
            for piece in all.iter().flat_map(|one| one.pieces.values().flatten()) {
                let from = old[piece.shard.0 as usize].check().expect("inside");
                prop_assert!(from.parts().own()[piece.part as usize].contains(&piece.cuboid));
                for y in piece.cuboid.from[0]..piece.cuboid.to[0] {
                    for x in piece.cuboid.from[1]..piece.cuboid.to[1] {
                        *got.entry((piece.to.0, y, x)).or_default() += 1;
                    }
                }
            }
            let mut wanted = BTreeMap::new();
            for (rank, boxes) in (0..).zip(&new) {
                let own = parts(boxes).own()[0];
                for y in own.from[0]..own.to[0] {
                    wanted.extend((own.from[1]..own.to[1]).map(|x| ((rank, y, x), 1)));
                }
            }
            prop_assert_eq!(got, wanted);
        }
    }
}
