//! The cells of a sparse array: cubes in layers. The cubes of each layer are wider by a constant factor than those of
//! the layer below.
//!
//! ```text
//!   part     its elements, in each cell of the finest layer in which it touches few cells         to the owners of these cells
//!   cell     its existence, when something arrives for it for the first time                      to the owner of the cell around it
//!   cell     the pieces of its parts that lie in existing finer cells, as "above"                 to the owners of the finer cells
//! ```
//!
//! So a part touches a bounded number of cells, however small other parts are. A cell holds parts of about its own size, however many
//! parts lie in a corner of the array. The elements that two parts have in common are found once, in the cell that holds the smaller
//! part. Arithmetic determines the cells, which are not counted. A hash gives the owner of each cell.

use super::cells::Sums;
use super::{Cuboid, DIMS, Parts};

/// The layers of an array. Extents of cells are powers of two, so that each cell lies in one cell of the next layer. Cells at the end
/// of the array extend beyond it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    whole: Cuboid,
    dims: usize,
    /// For each dimension: the exponent of the power of two that is about as wide as the mean part.
    mean: [u32; DIMS],
    /// For each dimension: the exponent of the least power of two that is as wide as the array.
    most: [u32; DIMS],
    /// The number of layers below the layer whose cells have the shape of the mean part, down to single elements.
    below: u32,
    /// The number of all layers, up to the layer whose only cell contains the whole array.
    count: u32,
}

impl Layers {
    /// The layers of the array of `parts`, whose parts on all ranks add up to `sums`.
    pub fn new(parts: &Parts, sums: &Sums) -> Layers {
        let (whole, dims) = (*parts.whole(), parts.dims());
        let most: [u32; DIMS] = std::array::from_fn(|dim| exponent(whole.extent(dim)));
        let mean = std::array::from_fn(|dim| {
            let rounded = sums.exponents[dim].saturating_add(sums.parts / 2).checked_div(sums.parts);
            rounded.unwrap_or(0).min(u64::from(most[dim])) as u32
        });
        let mut layers = Layers { whole, dims, mean, most, below: 0, count: 0 };
        let steps = |exponents: u32| exponents.div_ceil(layers.step());
        let below = steps(mean.into_iter().max().unwrap_or(0));
        let above = steps((0..DIMS).map(|dim| most[dim] - mean[dim]).max().unwrap_or(0));
        (layers.below, layers.count) = (below, below + 1 + above);
        layers
    }

    /// By how many powers of two the cells of a layer are wider than those of the layer below. A cell contains so few cells of the
    /// layer below that its owner can be told about each of them: 64 in three dimensions, 256 in eight.
    fn step(&self) -> u32 {
        if self.dims <= 3 { 2 } else { 1 }
    }

    /// The maximum number of cells that a part touches.
    fn touched_most(&self) -> u64 {
        2 << self.dims
    }

    fn exponent(&self, layer: u32, dim: usize) -> u32 {
        (self.mean[dim] + self.step() * layer).saturating_sub(self.step() * self.below).min(self.most[dim])
    }

    /// The finest layer in which a box with the extents of `part` touches few cells, wherever it is.
    fn layer_of(&self, part: &Cuboid) -> u32 {
        let touches = |layer: &u32| {
            (0..DIMS).fold(1u64, |all, dim| {
                let (extent, exponent) = (part.extent(dim), self.exponent(*layer, dim));
                let most = if extent < 2 { extent } else { ((extent - 2) >> exponent) + 2 };
                all.saturating_mul(most.min(self.whole.extent(dim).div_ceil(1 << exponent)))
            })
        };
        // The last layer consists of one cell.
        (0..self.count).find(|layer| touches(layer) <= self.touched_most()).unwrap_or(self.count - 1)
    }

    /// The cell of a layer that contains an element.
    fn cell(&self, layer: u32, at: &[u64; DIMS]) -> Cuboid {
        let mut cell = self.whole;
        for (dim, at) in at.iter().enumerate() {
            let exponent = self.exponent(layer, dim);
            cell.from[dim] = self.whole.from[dim] + ((at - self.whole.from[dim]) >> exponent << exponent);
            cell.to[dim] = cell.from[dim].saturating_add(1 << exponent);
        }
        cell
    }

    /// Passes each cell that a part touches, in the part's layer, to `take`.
    pub fn touched(&self, part: &Cuboid, mut take: impl FnMut(Cuboid)) {
        if part.is_empty() {
            return;
        }
        let (layer, mut at) = (self.layer_of(part), part.from);
        loop {
            let cell = self.cell(layer, &at);
            take(cell);
            let Some(dim) = (0..DIMS).rev().find(|dim| cell.to[*dim] < part.to[*dim]) else { return };
            at[dim] = cell.to[dim];
            at[dim + 1..].copy_from_slice(&part.from[dim + 1..]);
        }
    }

    /// The cell around a cell; `None` for the last one, and for a box that is not a cell.
    pub fn around(&self, cell: &Cuboid) -> Option<Cuboid> {
        if !self.whole.contains(&Cuboid { to: cell.from, ..*cell }) || self.whole.is_empty() {
            return None;
        }
        let is_of = |layer: &u32| self.cell(*layer, &cell.from) == *cell;
        (0..self.count - 1).find(is_of).map(|layer| self.cell(layer + 1, &cell.from))
    }
}

/// The exponent of the least power of two that is as wide as the extent.
pub(super) fn exponent(extent: u64) -> u32 {
    u64::BITS - extent.max(1).saturating_sub(1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::super::cells::Sums;
    use super::*;
    use crate::base::Rank;
    use proptest::prelude::*;

    fn parts(boxes: &Boxes) -> Parts {
        boxes.check().expect("inside").parts().clone()
    }

    fn layers(boxes: &Boxes) -> Layers {
        let parts = parts(boxes);
        Layers::new(&parts, &Sums::of_rank(&parts, Rank(0), 1))
    }

    fn touched(layers: &Layers, part: &Cuboid) -> Vec<Cuboid> {
        let mut all = Vec::new();
        layers.touched(part, |cell| all.push(cell));
        all
    }

    #[test]
    fn a_part_lies_in_cells_of_its_own_size_however_large_the_array_is() {
        let level = Boxes::of([1 << 20; 3]).sparse().own([32, 16, 48], [16; 3]).own([0; 3], [16; 3]);
        let layers = layers(&level);
        let own = Cuboid::at(&[32, 16, 48], &[16; 3]).expect("three");
        assert_eq!(touched(&layers, &own), [own]);
        let moved = Cuboid::at(&[33, 17, 49], &[16; 3]).expect("three");
        assert_eq!(touched(&layers, &moved).len(), 8);
        // Each cell is four times as wide as the one before it, up to the whole array.
        let mut around = vec![own];
        while let Some(next) = layers.around(around.last().expect("one")) {
            assert!(next.contains(around.last().expect("one")));
            around.push(next);
        }
        assert_eq!((around.len(), around[1].extent(0), around[8].extent(2)), (9, 64, 1 << 20));
        assert_eq!(layers.around(&moved), None);
        // Among such patches, a sheet through the whole array; and a single element.
        let sheet = Cuboid::at(&[5, 0, 0], &[1, 1 << 20, 1 << 20]).expect("three");
        assert!(touched(&layers, &sheet).len() <= 16);
        assert_eq!(touched(&layers, &Cuboid::at(&[5; 3], &[1; 3]).expect("three")).len(), 1);
    }

    #[test]
    fn arrays_of_any_shape_have_layers() {
        let huge = layers(&Boxes::of([(1 << 62) - 1]).sparse().own([1 << 61], [(1 << 61) - 1]).own([5], [3]));
        let all = Cuboid::at(&[0], &[(1 << 62) - 1]).expect("one");
        assert!((1..=4).contains(&touched(&huge, &all).len()));
        let none = layers(&Boxes::of([0, 7]).sparse());
        assert_eq!(none.around(&Cuboid::at(&[0, 0], &[1, 1]).expect("two")), None);
        assert_eq!(touched(&none, &Cuboid::at(&[0, 0], &[0, 7]).expect("two")), []);
        let one = layers(&Boxes::of([1]).sparse().own([0], [1]));
        assert_eq!(one.around(&Cuboid::at(&[0], &[1]).expect("one")), None);
    }

    proptest! {
        #[test]
        fn a_part_lies_in_few_cells_that_cover_it_and_each_is_in_the_next_one(
            shape in proptest::collection::vec(1u64..70, 1..9),
            sides in proptest::collection::vec((any::<u64>(), any::<u64>()), 8 * 3),
        ) {
            let of = |from: usize| -> (Vec<u64>, Vec<u64>) {
                shape.iter().zip(&sides[from..]).map(|(extent, (origin, wide))| {
                    let origin = origin % extent;
                    (origin, 1 + wide % (extent - origin))
                }).unzip()
            };
            let boxes = (0..3).map(|at| of(8 * at)).fold(Boxes::of(shape.clone()).sparse(), |boxes, (origin, extent)| {
                boxes.own(origin, extent)
            });
            let layers = layers(&boxes);
            for part in parts(&boxes).own() {
                let cells = touched(&layers, part);
                prop_assert!(cells.len() <= 2 << shape.len(), "{} cells", cells.len());
                let inside: Vec<Cuboid> = cells.iter().filter_map(|cell| cell.common(part)).collect();
                prop_assert_eq!(inside.len(), cells.len());
                prop_assert_eq!(inside.iter().map(Cuboid::volume).sum::<u64>(), part.volume());
                prop_assert_eq!(part.first_gap(&inside), None);
                for cell in cells {
                    let mut at = cell;
                    let mut steps = 0;
                    while let Some(next) = layers.around(&at) {
                        prop_assert!(next.contains(&at) && next != at);
                        (at, steps) = (next, steps + 1);
                    }
                    prop_assert!(at.contains(parts(&boxes).whole()) && steps <= 14);
                }
            }
        }
    }
}
