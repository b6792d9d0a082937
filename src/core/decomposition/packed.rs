//! Parts in the form of records. Their boxes are decoded one after the other, because two bytes of a record may represent a box that
//! takes many numbers.

use super::{Cuboid, DIMS};
use crate::format::numbers;

/// The maximum number of elements of an array, and of the memory of a box. With these the number of bytes fits in 64 bits for any element
/// type.
pub const ELEMENTS_MAX: u64 = (1 << 62) - 1;
/// The maximum number of boxes of a rank.
pub const BOXES_MAX: usize = 1 << 24;

/// The box before the first one.
const NOTHING: Cuboid = Cuboid { from: [0; DIMS], to: [0; DIMS] };

/// The fields before the boxes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub dims: usize,
    pub whole: Cuboid,
    pub is_sparse: bool,
    pub count: usize,
}

impl Head {
    /// Takes the fields off the front; `None` unless the array is possible and enough bytes follow for the given number
    /// of boxes.
    pub fn take(bytes: &mut &[u8]) -> Option<Head> {
        let (first, rest) = bytes.split_at_checked(2)?;
        *bytes = rest;
        let (dims, is_sparse) = (usize::from(first[0]), first[1] == 1);
        if !(1..=DIMS).contains(&dims) || first[1] > 1 {
            return None;
        }
        let mut whole = Cuboid { from: [0; DIMS], to: [1; DIMS] };
        for dim in 0..dims {
            whole.to[dim] = numbers::take(bytes)?;
        }
        let count = usize::try_from(numbers::take(bytes)?).ok()?;
        // Each box takes at least two bytes per dimension, so a count that nothing follows makes the reader allocate
        // nothing.
        if whole.volume() > ELEMENTS_MAX || count > bytes.len() / (2 * dims) || count > BOXES_MAX {
            return None;
        }
        Some(Head { dims, whole, is_sparse, count })
    }

    /// Takes the boxes off the front, one by one; `None` as soon as one is not inside the array.
    pub fn each(&self, bytes: &mut &[u8], mut take: impl FnMut(Cuboid)) -> Option<()> {
        let mut before = NOTHING;
        for _ in 0..self.count {
            before = self.next(&before, bytes)?;
            take(before);
        }
        Some(())
    }

    fn next(&self, before: &Cuboid, bytes: &mut &[u8]) -> Option<Cuboid> {
        let mut next = Cuboid { from: [0; DIMS], to: [1; DIMS] };
        for dim in 0..self.dims {
            let step = |bytes: &mut &[u8]| numbers::take(bytes).map(numbers::to_step);
            next.from[dim] = before.from[dim].wrapping_add(step(bytes)? as u64);
            let extent = before.extent(dim).wrapping_add(step(bytes)? as u64);
            next.to[dim] = next.from[dim].checked_add(extent)?;
        }
        Some(next).filter(|next| self.whole.contains(next))
    }
}

/// A rank's parts, where they lie in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedParts<'a> {
    bytes: &'a [u8],
    head: Head,
    elements: u64,
}

impl<'a> PackedParts<'a> {
    /// Checks all boxes once; `None` unless they are inside a possible array, and nothing follows.
    pub fn of(mut bytes: &'a [u8]) -> Option<PackedParts<'a>> {
        PackedParts::take(&mut bytes).filter(|_| bytes.is_empty())
    }

    /// Takes parts off the front.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Option<PackedParts<'a>> {
        let all = *bytes;
        let head = Head::take(bytes)?;
        let mut elements = 0u64;
        head.each(bytes, |own| elements = elements.saturating_add(own.volume()))?;
        Some(PackedParts { bytes: &all[..all.len() - bytes.len()], head, elements })
    }

    /// The bytes, from which [`PackedParts::of`] makes the parts again.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Dimensions of the array.
    pub fn dims(&self) -> usize {
        self.head.dims
    }

    /// All elements of the array.
    pub fn whole(&self) -> &Cuboid {
        &self.head.whole
    }

    /// The extents of the array.
    pub fn shape(&self) -> &[u64] {
        &self.head.whole.to[..self.head.dims]
    }

    /// The parts of all ranks together need not cover the array.
    pub fn is_sparse(&self) -> bool {
        self.head.is_sparse
    }

    /// The number of boxes.
    pub fn count(&self) -> usize {
        self.head.count
    }

    /// The number of elements of the boxes.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The boxes, in order.
    pub fn boxes(&self) -> impl Iterator<Item = Cuboid> + use<'a> {
        let (mut bytes, mut before) = (self.bytes, NOTHING);
        // The bytes were checked when this value was made.
        let head = Head::take(&mut bytes).unwrap_or(Head { count: 0, ..self.head });
        (0..head.count).map_while(move |_| {
            before = head.next(&before, &mut bytes)?;
            Some(before)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Boxes, Parts};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packed_parts_say_what_the_parts_say() {
        let boxes = Boxes::of([9, 7]).own([1, 2], [3, 4]).own([8, 0], [0, 7]).own([0, 0], [1, 1]).sparse();
        let parts = boxes.check().expect("inside").parts().clone();
        let mut bytes = Vec::new();
        parts.put(&mut bytes);
        let packed = PackedParts::of(&bytes).expect("just put");
        assert_eq!((packed.dims(), packed.shape(), packed.whole()), (2, &[9, 7][..], parts.whole()));
        assert_eq!((packed.is_sparse(), packed.count(), packed.elements()), (true, 3, 13));
        assert_eq!(packed.boxes().collect::<Vec<_>>(), parts.own());
        assert_eq!(packed.bytes(), &bytes[..]);
        bytes.push(0);
        assert_eq!(PackedParts::of(&bytes), None);
    }

    proptest! {
        #[test]
        fn what_is_read_packed_is_read_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let (mut rest, mut others) = (&bytes[..], &bytes[..]);
            let packed = PackedParts::take(&mut rest);
            let parts = Parts::take(&mut others);
            prop_assert_eq!(packed.is_some(), parts.is_some());
            if let (Some(packed), Some(parts)) = (packed, parts) {
                prop_assert_eq!(rest, others);
                prop_assert_eq!(packed.boxes().collect::<Vec<_>>(), parts.own());
                prop_assert_eq!((packed.whole(), packed.elements()), (parts.whole(), parts.elements()));
            }
        }
    }
}
