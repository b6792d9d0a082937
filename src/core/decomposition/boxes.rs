//! A rank's boxes of an array, as a program describes them and as records store them.

use super::packed::{BOXES_MAX, ELEMENTS_MAX, Head};
use super::strides::Strides;
use super::{Cuboid, DIMS};
use crate::format::numbers;

/// Why a part of an array is impossible, or does not fit the parts of the other ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecompositionError {
    /// An array of too few or too many dimensions.
    #[error("an array of {given} dimensions cannot be decomposed: use 1 to {DIMS} dimensions")]
    Dimensions {
        /// The number of dimensions.
        given: usize,
    },
    /// An array of too many elements.
    #[error("an array of shape {shape:?} has more than {ELEMENTS_MAX} elements")]
    TooLarge {
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A list of numbers for a different number of dimensions.
    #[error("{what} {numbers:?} has {} numbers, but the array has {dims} dimensions", numbers.len())]
    Numbers {
        /// The meaning of the numbers.
        what: &'static str,
        /// The numbers.
        numbers: Vec<u64>,
        /// The dimensions of the array.
        dims: usize,
    },
    /// A box that is not inside the array.
    #[error(
        "box {number} of this rank, of extent {extent:?} at {origin:?}, is not inside the array of shape {shape:?}"
    )]
    Outside {
        /// The place of the box among those of this rank.
        number: usize,
        /// Its first element.
        origin: Vec<u64>,
        /// Its extents.
        extent: Vec<u64>,
        /// The shape of the array.
        shape: Vec<u64>,
    },
    /// Ghost cells that would make the memory of a box have too many elements.
    #[error(
        "box {number} of this rank, with ghost cells of {before:?} before and {after:?} after it, has more than {ELEMENTS_MAX} elements"
    )]
    Margin {
        /// The place of the box among those of this rank.
        number: usize,
        /// The ghost cells before it.
        before: Vec<u64>,
        /// The ghost cells after it.
        after: Vec<u64>,
    },
    /// More boxes than a rank can have.
    #[error("a rank cannot own {given} boxes: at most {BOXES_MAX} are possible")]
    TooMany {
        /// The number of boxes.
        given: usize,
    },
}

/// A rank's part of a global array: boxes of its elements. See [`Session::decompose`](crate::session::Session::decompose).
///
/// Dimensions are given slowest first, as rows before columns in C. All numbers count elements. A rank may own any number of boxes, or
/// none. Each box has its own memory.
///
/// ```
/// use bivouac_core::decomposition::Boxes;
///
/// // A rank's rows of an array of 100 rows and 80 columns; its memory has one ghost cell more on each side.
/// let rows = Boxes::of([100, 80]).own([25, 0], [25, 80]).halo([1, 1]);
/// // Two patches of one level of an adaptive mesh, which as a whole covers only some of its array.
/// let level = Boxes::of([4096, 4096]).own([0, 0], [64, 64]).own([512, 64], [32, 64]).halo([2, 2]).sparse();
/// // A rank that has nothing of it.
/// let nothing = Boxes::of([100, 80]);
/// # drop((rows, level, nothing));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    shape: Vec<u64>,
    own: Vec<(Vec<u64>, Vec<u64>)>,
    before: Option<Vec<u64>>,
    after: Option<Vec<u64>>,
    is_sparse: bool,
}

impl Boxes {
    /// Begins a rank's part of an array of this shape, without any boxes.
    pub fn of(shape: impl Into<Vec<u64>>) -> Boxes {
        Boxes { shape: shape.into(), own: Vec::new(), before: None, after: None, is_sparse: false }
    }

    /// Adds the box of this extent that begins at `origin`: this rank owns its elements. Call this again to add more boxes. An extent of 0
    /// in a dimension makes a box without elements, which nevertheless counts as one of the rank's boxes.
    #[must_use]
    pub fn own(mut self, origin: impl Into<Vec<u64>>, extent: impl Into<Vec<u64>>) -> Boxes {
        self.own.push((origin.into(), extent.into()));
        self
    }

    /// Sets the width of the ghost cells, which is the same before and after a box. In memory, each box has this many additional elements
    /// on both sides of each dimension. They are not saved, and a load leaves them unchanged.
    #[must_use]
    pub fn halo(self, width: impl Into<Vec<u64>>) -> Boxes {
        let width = width.into();
        self.margins(width.clone(), width)
    }

    /// Sets the width of the ghost cells before and after a box, if the two differ, for example for padded rows.
    #[must_use]
    pub fn margins(mut self, before: impl Into<Vec<u64>>, after: impl Into<Vec<u64>>) -> Boxes {
        (self.before, self.after) = (Some(before.into()), Some(after.into()));
        self
    }

    /// Makes the array sparse: the boxes of all ranks together need not cover it. An element may belong to no rank, but never to two.
    #[must_use]
    pub fn sparse(mut self) -> Boxes {
        self.is_sparse = true;
        self
    }

    /// The extents of the array.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The boxes of all ranks together need not cover the array.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// Checks everything that this rank can check alone.
    ///
    /// # Errors
    /// [`DecompositionError`]: the first mistake.
    pub fn check(&self) -> Result<Own, DecompositionError> {
        let dims = self.shape.len();
        if dims == 0 || dims > DIMS {
            return Err(DecompositionError::Dimensions { given: dims });
        }
        let whole = Cuboid::at(&vec![0; dims], &self.shape).filter(|whole| whole.volume() <= ELEMENTS_MAX);
        let whole = whole.ok_or_else(|| DecompositionError::TooLarge { shape: self.shape.clone() })?;
        if self.own.len() > BOXES_MAX {
            return Err(DecompositionError::TooMany { given: self.own.len() });
        }
        let as_many = |what, numbers: &Vec<u64>| match numbers.len() == dims {
            true => Ok(()),
            false => Err(DecompositionError::Numbers { what, numbers: numbers.clone(), dims }),
        };
        let none = vec![0; dims];
        let (before, after) = (self.before.as_ref().unwrap_or(&none), self.after.as_ref().unwrap_or(&none));
        as_many("a width of ghost cells", before)?;
        as_many("a width of ghost cells", after)?;
        let mut own = Vec::with_capacity(self.own.len());
        for (number, (origin, extent)) in self.own.iter().enumerate() {
            as_many("an origin", origin)?;
            as_many("an extent", extent)?;
            let inside = Cuboid::at(origin, extent).filter(|own| whole.contains(own));
            own.push(inside.ok_or_else(|| DecompositionError::Outside {
                number,
                origin: origin.clone(),
                extent: extent.clone(),
                shape: self.shape.clone(),
            })?);
            let sides = extent.iter().zip(before.iter().zip(after));
            let memory = sides.map(|(extent, (before, after))| extent.checked_add(*before)?.checked_add(*after));
            // A dimension without elements does not make room for more elements in the others.
            let memory = memory.map(|side| side.map(|side| side.max(1)));
            let elements = memory.into_iter().try_fold(1u64, |all, side| all.checked_mul(side?));
            if elements.is_none_or(|elements| elements > ELEMENTS_MAX) {
                let (before, after) = (before.clone(), after.clone());
                return Err(DecompositionError::Margin { number, before, after });
            }
        }
        let margin = |of: &Vec<u64>| std::array::from_fn(|dim| of.get(dim).copied().unwrap_or(0));
        let parts = Parts { dims, whole, is_sparse: self.is_sparse, own };
        Ok(Own { parts, before: margin(before), after: margin(after) })
    }
}

/// The part of an array that one rank owns, without its memory: the content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    dims: usize,
    whole: Cuboid,
    is_sparse: bool,
    own: Vec<Cuboid>,
}

impl Parts {
    /// Dimensions of the array.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// All elements of the array.
    pub fn whole(&self) -> &Cuboid {
        &self.whole
    }

    /// The extents of the array.
    pub fn shape(&self) -> &[u64] {
        &self.whole.to[..self.dims]
    }

    /// The parts of all ranks together need not cover the array.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// The boxes, in the order in which they are saved.
    pub fn own(&self) -> &[Cuboid] {
        &self.own
    }

    /// The number of elements of the boxes.
    pub fn elements(&self) -> u64 {
        self.own.iter().map(Cuboid::volume).fold(0, u64::saturating_add)
    }

    /// Appends the parts to `bytes`. A box takes few bytes if it has the extents of the previous one and lies near its end.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.dims as u8);
        bytes.push(u8::from(self.is_sparse));
        self.shape().iter().for_each(|extent| numbers::put(bytes, *extent));
        numbers::put(bytes, self.own.len() as u64);
        let mut before = Cuboid { from: [0; DIMS], to: [0; DIMS] };
        for own in &self.own {
            for dim in 0..self.dims {
                numbers::put(bytes, numbers::from_step(own.from[dim].wrapping_sub(before.from[dim]) as i64));
                numbers::put(bytes, numbers::from_step(own.extent(dim).wrapping_sub(before.extent(dim)) as i64));
            }
            before = *own;
        }
    }

    /// Takes parts off the front of `bytes`; `None` unless they are inside a possible array.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Parts> {
        let head = Head::take(bytes)?;
        let mut own = Vec::with_capacity(head.count);
        head.each(bytes, |next| own.push(next))?;
        Some(Parts { dims: head.dims, whole: head.whole, is_sparse: head.is_sparse, own })
    }
}

/// A rank's part of an array, and the memory that it has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    parts: Parts,
    before: [u64; DIMS],
    after: [u64; DIMS],
}

impl Own {
    /// `count` consecutive elements, as an array that belongs to this rank alone.
    pub fn line(count: u64) -> Own {
        let mut whole = Cuboid { from: [0; DIMS], to: [1; DIMS] };
        whole.to[0] = count;
        let parts = Parts { dims: 1, whole, is_sparse: false, own: vec![whole] };
        Own { parts, before: [0; DIMS], after: [0; DIMS] }
    }

    /// This part with memory for its elements only, without ghost cells.
    pub fn without_margins(&self) -> Own {
        Own { parts: self.parts.clone(), before: [0; DIMS], after: [0; DIMS] }
    }

    /// The elements that are saved.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The widths of the ghost cells before and after each box.
    pub fn margins(&self) -> (&[u64; DIMS], &[u64; DIMS]) {
        (&self.before, &self.after)
    }

    /// The number of elements that the memory of a box has, including ghost cells.
    pub fn memory_elements(&self, number: usize) -> u64 {
        let own = &self.parts.own[number];
        (0..DIMS).map(|dim| own.extent(dim) + self.before[dim] + self.after[dim]).product()
    }

    /// The places of the elements of a box in its memory.
    pub fn strides(&self, number: usize, size: u64) -> Strides {
        Strides::of(&self.parts.own[number], &self.before, &self.after, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_a_part_is_refused() {
        let refused = |boxes: Boxes| boxes.check().expect_err("it cannot be").to_string();
        assert!(refused(Boxes::of([])).contains("0 dimensions"));
        assert!(refused(Boxes::of([1; 9])).contains("9 dimensions"));
        assert!(refused(Boxes::of([1 << 31, 1 << 31])).contains("more than 4611686018427387903"));
        assert!(refused(Boxes::of([u64::MAX; 8])).contains("more than"));
        assert!(refused(Boxes::of([4, 4]).own([0], [1])).contains("an origin [0] has 1 numbers"));
        assert!(refused(Boxes::of([4, 4]).own([0, 0], [1, 1, 1])).contains("an extent [1, 1, 1] has 3"));
        assert!(refused(Boxes::of([4, 4]).halo([1])).contains("a width of ghost cells [1] has 1 numbers"));
        let outside = refused(Boxes::of([4, 4]).own([0, 0], [1, 1]).own([2, 3], [2, 2]));
        assert_eq!(outside, "box 1 of this rank, of extent [2, 2] at [2, 3], is not inside the array of shape [4, 4]");
        assert!(refused(Boxes::of([4]).own([u64::MAX], [2])).contains("not inside"));
        for width in [1 << 61, u64::MAX] {
            assert!(refused(Boxes::of([4, 4]).own([0, 0], [4, 4]).halo([width, 1])).contains("ghost cells of"));
            assert!(refused(Boxes::of([4, 4]).own([0, 0], [0, 4]).halo([0, width])).contains("ghost cells of"));
        }
    }

    #[test]
    fn what_can_be_a_part_says_how_much_memory_it_has() {
        let own =
            Boxes::of([9, 7]).own([1, 2], [3, 4]).own([8, 0], [0, 7]).margins([1, 0], [2, 5]).check().expect("inside");
        assert_eq!([own.memory_elements(0), own.memory_elements(1)], [6 * 9, 3 * 12]);
        assert_eq!((own.parts().elements(), own.parts().shape()), (12, &[9, 7][..]));
        assert!(Boxes::of([0, 5]).own([0, 0], [0, 5]).check().is_ok());
        assert!(Boxes::of([(1 << 62) - 1]).check().is_ok());
        assert!(Boxes::of([4; 8]).check().is_ok());
    }

    fn some_boxes() -> impl Strategy<Value = Boxes> {
        let dims = proptest::collection::vec((1u64..1 << 20, any::<[u32; 2]>()), 1..5);
        (dims, 0usize..40, any::<bool>()).prop_map(|(dims, count, sparse)| {
            let shape: Vec<u64> = dims.iter().map(|(extent, _)| extent % 2000 + 1).collect();
            let boxes = (0..count as u64).fold(Boxes::of(shape.clone()), |boxes, number| {
                let side = |(extent, (_, [a, b])): (&u64, &(u64, [u32; 2]))| {
                    let from = (u64::from(*a) + number * 7) % extent;
                    (from, (u64::from(*b) + number) % (extent - from + 1))
                };
                let (origin, extent): (Vec<u64>, Vec<u64>) = shape.iter().zip(&dims).map(side).unzip();
                boxes.own(origin, extent)
            });
            if sparse { boxes.sparse() } else { boxes }
        })
    }

    proptest! {
        #[test]
        fn parts_that_were_put_are_taken(boxes in some_boxes()) {
            let parts = boxes.check().expect("inside").parts;
            let mut bytes = Vec::new();
            parts.put(&mut bytes);
            let mut rest = &bytes[..];
            prop_assert_eq!(Parts::take(&mut rest), Some(parts));
            prop_assert!(rest.is_empty());
            // A truncated form is invalid.
            for end in 0..bytes.len() {
                prop_assert_eq!(Parts::take(&mut &bytes[..end]), None);
            }
        }

        #[test]
        fn whatever_is_taken_is_inside_its_array(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(parts) = Parts::take(&mut &bytes[..]) {
                prop_assert!(parts.own().iter().all(|own| parts.whole().contains(own)));
                prop_assert!(parts.whole().volume() <= ELEMENTS_MAX);
            }
        }
    }

    #[test]
    fn a_count_that_nothing_follows_takes_no_memory() {
        let mut bytes = vec![1, 0];
        numbers::put(&mut bytes, 100);
        for count in [1 << 63, 1 << 24, 2] {
            let mut forged = bytes.clone();
            numbers::put(&mut forged, count);
            forged.extend([0, 0]);
            assert_eq!(Parts::take(&mut &forged[..]), None);
        }
    }

    #[test]
    fn a_box_in_three_dimensions_takes_less_than_64_bytes() {
        // Boxes that are far apart in an array of the maximum size, each of a different extent.
        let side = 1u64 << 20;
        let boxes = (0..1000u64).fold(Boxes::of([side, side, side]), |boxes, number| {
            let at = |by: u64| number.wrapping_mul(by) % (side / 2);
            boxes.own(
                [at(0x9e37_79b9), at(0x85eb_ca6b), at(0xc2b2_ae35)],
                [1 + at(77_777), 1 + at(99_991), 1 + at(31_337)],
            )
        });
        let mut bytes = Vec::new();
        boxes.check().expect("inside").parts.put(&mut bytes);
        assert!(bytes.len() < 64 * 1000, "{}", bytes.len());
    }
}
