//! Cells, into which the ranks cut an array to compare its parts with each other. Each cell has an owner, to which every rank sends its
//! elements of the cell.
//!
//! A cell has about the shape of the mean part, so that few parts lie in one cell and each part lies in few cells. Arithmetic on a few sums
//! over all ranks determines which cells exist, and who owns them. If every element has an owner, the cells form a grid of at most 64 cells
//! for each rank. A sparse array may have all its elements in one corner, so its cells are arranged in layers (`layers.rs`). If many parts
//! lie in one cell nevertheless, its owner [cuts it](super::shelf) and sends the pieces on.

use super::layers::{Layers, exponent};
use super::{Cuboid, DIMS, Identity, Parts};
use crate::base::Rank;
use xxhash_rust::xxh3::xxh3_64;

/// The maximum number of cells for each rank.
const CELLS_MAX: u64 = 64;

/// Sums over the parts of all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Parts with elements.
    pub parts: u64,
    /// The sums of their extents in each dimension, unless the array is sparse.
    pub extents: [u64; DIMS],
    /// For a sparse array: the sums of the exponents of the least powers of two that are at least as wide as the parts. So one part
    /// that is as wide as millions of others changes the mean only a little.
    pub exponents: [u64; DIMS],
    /// The sum of their elements.
    pub volume: u64,
    /// The identity of the whole.
    pub identity: Identity,
}

/// The number of numbers that represent the sums in a message.
const NUMBERS: usize = 2 * DIMS + 6;

impl Sums {
    /// The sums of one rank.
    pub fn of_rank(parts: &Parts, rank: Rank, ranks: u32) -> Sums {
        let identity = Identity::of_rank(parts, rank.0, ranks);
        let mut sums = Sums { identity, ..Sums::default() };
        for part in parts.own().iter().filter(|part| !part.is_empty()) {
            sums.parts += 1;
            sums.volume = sums.volume.saturating_add(part.volume());
            for dim in 0..DIMS {
                match parts.is_sparse() {
                    true => sums.exponents[dim] += u64::from(exponent(part.extent(dim))),
                    false => sums.extents[dim] = sums.extents[dim].saturating_add(part.extent(dim)),
                }
            }
        }
        sums
    }

    /// The sums as numbers that are added up over the ranks, each with a key; zeros are left out.
    pub fn numbers(&self) -> Vec<(u64, u64)> {
        let first = [self.parts, self.volume].into_iter().chain(self.identity.limbs());
        let all = first.chain(self.extents).chain(self.exponents);
        (0..).zip(all).filter(|(_, number)| *number > 0).collect()
    }

    /// The sums from the numbers.
    pub fn of_numbers(numbers: &[(u64, u64)]) -> Sums {
        let mut of = [0u64; NUMBERS];
        for (key, number) in numbers {
            if let Some(slot) = of.get_mut(*key as usize) {
                *slot = *number;
            }
        }
        let [parts, volume, rest @ ..] = of;
        let (limbs, sides) = rest.split_at(rest.len() - 2 * DIMS);
        let identity = Identity::from_limbs(std::array::from_fn(|limb| limbs[limb]));
        let sides = |from: usize| std::array::from_fn(|dim| sides[from + dim]);
        Sums { parts, extents: sides(0), exponents: sides(DIMS), volume, identity }
    }

    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Sums) -> Sums {
        let both =
            |one: [u64; DIMS], other: [u64; DIMS]| std::array::from_fn(|dim| one[dim].saturating_add(other[dim]));
        Sums {
            parts: self.parts + other.parts,
            extents: both(self.extents, other.extents),
            exponents: both(self.exponents, other.exponents),
            volume: self.volume.saturating_add(other.volume),
            identity: self.identity.and(other.identity),
        }
    }
}

/// The cells of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cells {
    whole: Cuboid,
    ranks: u32,
    lie: Lie,
}

/// How the cells are arranged.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Lie {
    Grid(Grid),
    Layers(Layers),
}

impl Cells {
    /// The cells of the array of `parts`, whose parts on all ranks add up to `sums`, for this many ranks.
    pub fn new(parts: &Parts, sums: &Sums, ranks: u32) -> Cells {
        let lie = match parts.is_sparse() {
            true => Lie::Layers(Layers::new(parts, sums)),
            false => Lie::Grid(Grid::new(parts.whole(), sums, ranks)),
        };
        Cells { whole: *parts.whole(), ranks, lie }
    }

    /// The elements of the array.
    pub fn whole(&self) -> &Cuboid {
        &self.whole
    }

    /// The number of ranks over which the cells are distributed.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The cells of a rank; none if the cells are layered, because then they are not counted.
    pub fn of(&self, rank: Rank) -> impl Iterator<Item = Cuboid> + '_ {
        let grid = if let Lie::Grid(grid) = &self.lie { Some(grid) } else { None };
        grid.into_iter().flat_map(move |grid| grid.of(rank).map(|index| grid.cuboid(index)))
    }

    /// Are the cells layered?
    pub fn are_layered(&self) -> bool {
        matches!(self.lie, Lie::Layers(_))
    }

    /// The cell around a cell, and its owner.
    pub fn around(&self, cell: &Cuboid) -> Option<(Rank, Cuboid)> {
        let Lie::Layers(layers) = &self.lie else { return None };
        layers.around(cell).map(|around| (hashed(&around, self.ranks), around))
    }

    /// Passes each cell that a part touches to `take`, with the owner of the cell.
    pub fn touched(&self, part: &Cuboid, mut take: impl FnMut(Rank, Cuboid)) {
        match &self.lie {
            Lie::Grid(grid) => grid.touched(part, |index| take(grid.owner(index), grid.cuboid(index))),
            Lie::Layers(layers) => layers.touched(part, |cell| take(hashed(&cell, self.ranks), cell)),
        }
    }
}

/// The owner of a box that has no number.
pub(super) fn hashed(cell: &Cuboid, ranks: u32) -> Rank {
    let mut bytes = Vec::new();
    cell.put(DIMS, &mut bytes);
    Rank((xxh3_64(&bytes) % u64::from(ranks)) as u32)
}

/// A grid of adjacent cells.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Grid {
    whole: Cuboid,
    /// The extents of a cell; cells at the end of a dimension may be smaller.
    extent: [u64; DIMS],
    /// The number of cells along each dimension.
    along: [u64; DIMS],
    ranks: u32,
}

impl Grid {
    /// The grid of `whole`, whose parts add up to `sums`, for this many ranks.
    fn new(whole: &Cuboid, sums: &Sums, ranks: u32) -> Grid {
        let side = |dim: usize| match sums.parts {
            0 => whole.extent(dim).max(1),
            parts => (sums.extents[dim] / parts).clamp(1, whole.extent(dim).max(1)),
        };
        let mut extent: [u64; DIMS] = std::array::from_fn(side);
        let along = |extent: &[u64; DIMS]| -> [u64; DIMS] {
            std::array::from_fn(|dim| whole.extent(dim).div_ceil(extent[dim]).max(1))
        };
        let count = |along: &[u64; DIMS]| along.iter().fold(1u64, |count, along| count.saturating_mul(*along));
        // There are fewer parts than would cover the array, so the cells are enlarged, first along the dimension that
        // has the most of them.
        while count(&along(&extent)) > CELLS_MAX * u64::from(ranks) {
            let many = along(&extent);
            let longest = (0..DIMS).max_by_key(|dim| many[*dim]).unwrap_or(0);
            extent[longest] = extent[longest].saturating_mul(2);
        }
        Grid { whole: *whole, extent, along: along(&extent), ranks }
    }

    /// The number of cells.
    fn count(&self) -> u64 {
        self.along.iter().product()
    }

    /// The elements of a cell.
    fn cuboid(&self, index: u64) -> Cuboid {
        let (mut cell, mut rest) = (self.whole, index);
        for dim in (0..DIMS).rev() {
            let place = rest % self.along[dim];
            rest /= self.along[dim];
            cell.from[dim] = self.whole.from[dim] + place * self.extent[dim];
            cell.to[dim] = cell.from[dim].saturating_add(self.extent[dim]).min(self.whole.to[dim]);
        }
        cell
    }

    /// The owner of a cell. Neighbours have the same owner if there are more cells than ranks.
    fn owner(&self, index: u64) -> Rank {
        Rank((u128::from(index) * u128::from(self.ranks) / u128::from(self.count())) as u32)
    }

    /// The cells of a rank.
    fn of(&self, rank: Rank) -> std::ops::Range<u64> {
        let first = |rank: u32| {
            let of = u128::from(rank) * u128::from(self.count());
            of.div_ceil(u128::from(self.ranks)) as u64
        };
        first(rank.0)..first(rank.0 + 1)
    }

    /// Passes each cell that a box touches to `take`, in ascending order.
    fn touched(&self, part: &Cuboid, mut take: impl FnMut(u64)) {
        if part.is_empty() {
            return;
        }
        let first: [u64; DIMS] = std::array::from_fn(|dim| (part.from[dim] - self.whole.from[dim]) / self.extent[dim]);
        let last: [u64; DIMS] = std::array::from_fn(|dim| (part.to[dim] - 1 - self.whole.from[dim]) / self.extent[dim]);
        let mut at = first;
        loop {
            take((0..DIMS).fold(0, |index, dim| index * self.along[dim] + at[dim]));
            let Some(dim) = (0..DIMS).rev().find(|dim| at[*dim] < last[*dim]) else { return };
            at[dim] += 1;
            at[dim + 1..].copy_from_slice(&first[dim + 1..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::*;
    use proptest::prelude::*;

    fn sums(of: &[Boxes]) -> Sums {
        let ranks = of.len() as u32;
        let of_rank = |(rank, boxes): (u32, &Boxes)| {
            let sums = Sums::of_rank(boxes.check().expect("inside").parts(), Rank(rank), ranks);
            assert_eq!(Sums::of_numbers(&sums.numbers()), sums);
            sums
        };
        (0..).zip(of).map(of_rank).fold(Sums::default(), Sums::and)
    }

    #[test]
    fn parts_of_one_shape_lie_in_one_cell_each() {
        let all: Vec<Boxes> =
            (0..12).map(|rank| Boxes::of([12, 20]).own([rank / 2 * 2, rank % 2 * 10], [2, 10])).collect();
        let sums = sums(&all);
        assert_eq!((sums.parts, sums.volume, &sums.extents[..2]), (12, 240, &[24, 120][..]));
        let cells = Grid::new(&Cuboid::at(&[0, 0], &[12, 20]).expect("two"), &sums, 12);
        assert_eq!(cells.count(), 12);
        for (rank, boxes) in (0..).zip(&all) {
            let mut touched = Vec::new();
            cells.touched(&boxes.check().expect("inside").parts().own()[0], |cell| touched.push(cell));
            assert_eq!((touched.clone(), cells.owner(touched[0])), (vec![rank], Rank(rank as u32)));
        }
    }

    #[test]
    fn there_are_64_cells_a_rank_at_most() {
        // All patches are in one corner, and as small as possible.
        let all: Vec<Boxes> = (0..4).map(|rank| Boxes::of([1 << 20; 3]).own([rank, 0, 0], [1, 1, 1])).collect();
        let cells = Grid::new(&Cuboid::at(&[0; 3], &[1 << 20; 3]).expect("three"), &sums(&all), 4);
        assert!((128..=256).contains(&cells.count()), "{}", cells.count());
        // No rank has any elements, or the array has none.
        for extent in [0, 9] {
            let none = Grid::new(&Cuboid::at(&[0, 0], &[extent, 3]).expect("two"), &Sums::default(), 4);
            assert_eq!(none.count(), 1);
        }
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_cell_and_every_cell_has_one_owner(
            shape in proptest::collection::vec(1u64..9, 1..4),
            mean in proptest::collection::vec(1u64..9, 3),
            ranks in 1u32..9,
        ) {
            let mut sums = Sums { parts: 1, ..Sums::default() };
            (0..DIMS).for_each(|dim| sums.extents[dim] = mean.get(dim).copied().unwrap_or(1));
            let whole = Cuboid::at(&vec![0; shape.len()], &shape).expect("few");
            let cells = Grid::new(&whole, &sums, ranks);
            let all: Vec<Cuboid> = (0..cells.count()).map(|index| cells.cuboid(index)).collect();
            prop_assert_eq!(all.iter().map(Cuboid::volume).sum::<u64>(), whole.volume());
            prop_assert!(whole.first_gap(&all).is_none());
            let owned: Vec<u64> = (0..ranks).flat_map(|rank| {
                let of = cells.of(Rank(rank));
                assert!(of.clone().all(|index| cells.owner(index) == Rank(rank)));
                of
            }).collect();
            prop_assert_eq!(owned, (0..cells.count()).collect::<Vec<_>>());
        }

        #[test]
        fn a_box_touches_the_cells_that_it_has_elements_of(
            mean in proptest::collection::vec(1u64..5, 3),
            sides in proptest::collection::vec((0u64..8, 0u64..5), 3),
        ) {
            let mut sums = Sums { parts: 1, ..Sums::default() };
            (0..DIMS).for_each(|dim| sums.extents[dim] = mean.get(dim).copied().unwrap_or(1));
            let cells = Grid::new(&Cuboid::at(&[0; 3], &[12; 3]).expect("three"), &sums, 100);
            let (origin, extent): (Vec<u64>, Vec<u64>) = sides.into_iter().unzip();
            let part = Cuboid::at(&origin, &extent).expect("three");
            let mut touched = Vec::new();
            cells.touched(&part, |index| touched.push(index));
            let expected: Vec<u64> =
                (0..cells.count()).filter(|index| cells.cuboid(*index).common(&part).is_some()).collect();
            prop_assert_eq!(touched, expected);
        }
    }
}
