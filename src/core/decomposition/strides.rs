//! The places of a box's elements in memory that has ghost cells around them.

use super::{Cuboid, DIMS};
use std::ops::Range;

/// The rows of a box in its memory: a number of rows of equal length, at regular distances. Neighbours that touch are one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strides {
    /// The offset of the first row in bytes.
    first: usize,
    /// The number of bytes in a row.
    row: usize,
    /// How often the row repeats, and at which distance, slowest dimension first. The last entry is for neighbouring
    /// rows.
    again: Vec<(usize, usize)>,
}

impl Strides {
    /// The rows of a box whose elements take `size` bytes, in memory with `before` more elements before it and `after` after it in each
    /// dimension.
    pub fn of(cuboid: &Cuboid, before: &[u64; DIMS], after: &[u64; DIMS], size: u64) -> Strides {
        Strides::inside(cuboid, cuboid, before, after, size)
    }

    /// The rows of a part of such a box, in the memory of the box.
    pub fn inside(part: &Cuboid, of: &Cuboid, before: &[u64; DIMS], after: &[u64; DIMS], size: u64) -> Strides {
        let memory: [u64; DIMS] = std::array::from_fn(|dim| of.extent(dim) + before[dim] + after[dim]);
        let (mut row, mut step, mut first, mut is_whole) = (size, size, 0, true);
        let mut again = Vec::new();
        for dim in (0..DIMS).rev() {
            let extent = part.extent(dim);
            first += (part.from[dim] - of.from[dim] + before[dim]) * step;
            match is_whole {
                true => row *= extent,
                false if extent != 1 => again.push((extent as usize, step as usize)),
                false => {}
            }
            is_whole &= memory[dim] == extent;
            step *= memory[dim];
        }
        again.reverse();
        Strides { first: first as usize, row: row as usize, again }
    }

    /// The range of the bytes of the box, if they are one piece of memory.
    pub fn one_piece(&self) -> Option<Range<usize>> {
        self.again.is_empty().then(|| self.first..self.first + self.row)
    }

    /// The number of bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.again.iter().fold(self.row, |bytes, (count, _)| bytes * count)
    }

    /// The number of bytes in a row.
    pub fn row(&self) -> usize {
        self.row
    }

    /// The offset of the first row, and how often rows repeat at which distances, slowest first, in bytes.
    pub fn shape(&self) -> (usize, &[(usize, usize)]) {
        (self.first, &self.again)
    }

    /// The place in memory of byte `at` of the box. The box must have more bytes than `at`.
    pub fn place_of(&self, at: usize) -> usize {
        self.first + self.place(at / self.row.max(1)) + at % self.row.max(1)
    }

    /// The number of bytes of the box that lie before `place` in memory.
    pub fn before(&self, place: usize) -> usize {
        let Some(mut rest) = place.checked_sub(self.first) else { return 0 };
        let (mut bytes, mut each) = (0, self.bytes());
        for (count, distance) in &self.again {
            each /= (*count).max(1);
            // Each repetition ends before the next one begins.
            let passed = rest.checked_div(*distance).unwrap_or(0);
            if passed >= *count {
                return bytes + count * each;
            }
            bytes += passed * each;
            rest -= passed * distance;
        }
        bytes + rest.min(self.row)
    }

    /// Passes the places of bytes `from..to` of the box in memory to `take`, row by row: the place, and the number of bytes.
    pub fn each(&self, from: usize, to: usize, mut take: impl FnMut(usize, usize)) {
        if from >= to || self.row == 0 {
            return;
        }
        let (mut index, mut within, mut left) = (from / self.row, from % self.row, to - from);
        let (near, step) = self.again.last().copied().unwrap_or((1, 0));
        while left > 0 {
            // The next rows follow each other at the distance of neighbouring rows.
            let mut place = self.first + self.place(index);
            for _ in index % near..near {
                let bytes = (self.row - within).min(left);
                take(place + within, bytes);
                (left, within) = (left - bytes, 0);
                if left == 0 {
                    return;
                }
                place += step;
                index += 1;
            }
        }
    }

    /// The place of a row, counted from the first one.
    fn place(&self, mut index: usize) -> usize {
        let mut place = 0;
        for (count, distance) in self.again.iter().rev() {
            place += index % count * distance;
            index /= count;
        }
        place
    }

    /// Do all rows begin and end at a multiple of this many bytes of the box?
    pub fn is_even(&self, bytes: usize) -> bool {
        self.row.is_multiple_of(bytes)
    }

    /// Copies bytes to the box in its memory, starting at byte `at` of the box. The elements around the box do not
    /// change.
    pub fn scatter(&self, bytes: &[u8], at: usize, memory: &mut [u8]) {
        let mut done = 0;
        self.each(at, at + bytes.len(), |place, count| {
            memory[place..place + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        });
    }
}

/// A traversal of the bytes of a box in its memory.
pub struct Rows<'s> {
    way: Cursor<'s>,
    left: usize,
}

impl<'s> Rows<'s> {
    /// The traversal that starts at byte `at` of the box.
    pub fn at(of: &'s Strides, at: usize) -> Rows<'s> {
        Rows { way: Cursor::at(of, at), left: of.bytes() - at }
    }

    /// The place of the next bytes, how many of them follow without a gap, how often this many bytes repeat, and at which distance. At
    /// the end there are no bytes.
    #[inline]
    pub fn next(&self) -> (usize, usize, usize, usize) {
        let row = self.way.left().min(self.left);
        let step = self.way.of.again.last().map_or(0, |(_, step)| *step);
        match self.way.within {
            0 if row > 0 => (self.way.place(), row, step, (self.left / row).min(self.way.near + 1)),
            _ => (self.way.place(), row, step, 1),
        }
    }

    /// Advances by at most this many rows of that many bytes each.
    #[inline]
    pub fn skip(&mut self, bytes: usize, rows: usize) {
        self.left -= bytes * rows;
        if self.left > 0 {
            self.way.skip_rows(rows - 1);
            self.way.skip(bytes);
        }
    }
}

/// A traversal of the bytes of a box in two memories at the same time.
pub struct Both<'s> {
    one: Cursor<'s>,
    two: Cursor<'s>,
    /// The number of bytes that are left.
    left: usize,
}

impl<'s> Both<'s> {
    /// The traversal from the first byte of a box, which has the same number of bytes in both memories.
    pub fn new(one: &'s Strides, two: &'s Strides) -> Both<'s> {
        Both { one: Cursor::at(one, 0), two: Cursor::at(two, 0), left: one.bytes() }
    }

    /// The places of the next bytes in both memories, and how many follow without a gap in either. At the end there are
    /// none.
    #[inline]
    pub fn next(&self) -> (usize, usize, usize) {
        (self.one.place(), self.two.place(), self.one.left().min(self.two.left()).min(self.left))
    }

    /// Advances by at most this many bytes.
    #[inline]
    pub fn skip(&mut self, bytes: usize) {
        self.left -= bytes;
        if self.left > 0 {
            self.one.skip(bytes);
            self.two.skip(bytes);
        }
    }
}

/// A traversal of the bytes of a box, row by row.
struct Cursor<'s> {
    of: &'s Strides,
    /// The index of the row, and its place.
    index: usize,
    begins: usize,
    /// The bytes of the row that have been passed.
    within: usize,
    /// The number of rows that follow at the distance of neighbouring rows.
    near: usize,
}

impl<'s> Cursor<'s> {
    fn at(of: &'s Strides, byte: usize) -> Cursor<'s> {
        let row = of.row.max(1);
        let mut cursor = Cursor { of, index: byte / row, begins: 0, within: byte % row, near: 0 };
        // A box without elements has nothing to traverse.
        if of.bytes() > 0 {
            cursor.find();
        }
        cursor
    }

    fn find(&mut self) {
        let near = self.of.again.last().map_or(1, |(count, _)| *count);
        self.begins = self.of.first + self.of.place(self.index);
        self.near = near - self.index % near - 1;
    }

    fn place(&self) -> usize {
        self.begins + self.within
    }

    /// The bytes that are left in the row.
    fn left(&self) -> usize {
        self.of.row - self.within
    }

    /// Advances by whole rows, at most as many as follow at the distance of neighbours.
    #[inline]
    fn skip_rows(&mut self, rows: usize) {
        let step = self.of.again.last().map_or(0, |(_, step)| *step);
        self.index += rows;
        self.near -= rows;
        self.begins += rows * step;
    }

    /// Advances by at most the bytes that are left in the row.
    #[inline]
    fn skip(&mut self, bytes: usize) {
        self.within += bytes;
        if self.within < self.of.row {
            return;
        }
        (self.within, self.index) = (0, self.index + 1);
        match (self.near.checked_sub(1), self.of.again.last()) {
            (Some(near), Some((_, step))) => (self.begins, self.near) = (self.begins + step, near),
            _ => self.find(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strides(extent: &[u64], before: &[u64], after: &[u64], size: u64) -> Strides {
        let margins = |of: &[u64]| std::array::from_fn(|dim| of.get(dim).copied().unwrap_or(0));
        let cuboid = Cuboid::at(&vec![3; extent.len()], extent).expect("small");
        Strides::of(&cuboid, &margins(before), &margins(after), size)
    }

    /// Copies bytes of the box from its memory, starting at byte `at` of the box.
    fn gather(strides: &Strides, memory: &[u8], at: usize, target: &mut [u8]) {
        let mut done = 0;
        strides.each(at, at + target.len(), |place, bytes| {
            target[done..done + bytes].copy_from_slice(&memory[place..place + bytes]);
            done += bytes;
        });
    }

    #[test]
    fn what_touches_is_one_row() {
        assert_eq!(strides(&[4, 5, 6], &[], &[], 8), Strides { first: 0, row: 960, again: vec![] });
        // A margin in the slowest dimension separates nothing.
        assert_eq!(strides(&[4, 5, 6], &[1], &[2], 8), Strides { first: 240, row: 960, again: vec![] });
        assert_eq!(strides(&[4, 5, 6], &[0, 1], &[], 8), Strides { first: 48, row: 240, again: vec![(4, 288)] });
        let all = Strides { first: 8 * (7 * 8 + 8 + 1), row: 48, again: vec![(4, 448), (5, 64)] };
        assert_eq!(strides(&[4, 5, 6], &[1, 1, 1], &[1, 1, 1], 8), all);
        // A dimension with one element does not add a level.
        assert_eq!(strides(&[4, 1, 6], &[0, 0, 1], &[0, 0, 1], 1), Strides { first: 1, row: 6, again: vec![(4, 8)] });
        assert!(
            strides(&[7], &[2], &[2], 4).one_piece() == Some(8..36)
                && strides(&[0, 4], &[1, 1], &[1, 1], 4).bytes() == 0
        );
    }

    #[test]
    fn a_part_of_a_box_lies_in_the_memory_of_the_box() {
        let of = Cuboid::at(&[10, 20], &[4, 6]).expect("two");
        let part = Cuboid::at(&[11, 22], &[2, 3]).expect("two");
        let none = [0; DIMS];
        let strides = Strides::inside(&part, &of, &none, &none, 2);
        assert_eq!(strides, Strides { first: 2 * (6 + 2), row: 6, again: vec![(2, 12)] });
        let mut margins = none;
        margins[1] = 1;
        assert_eq!(
            Strides::inside(&part, &of, &margins, &margins, 2),
            Strides { first: 2 * (8 + 3), row: 6, again: vec![(2, 16)] }
        );
        // Whole rows form one piece.
        let rows = Cuboid::at(&[12, 20], &[2, 6]).expect("two");
        assert_eq!(Strides::inside(&rows, &of, &none, &none, 1).one_piece(), Some(12..24));
    }

    proptest! {
        #[test]
        fn elements_come_from_their_places_and_go_back(
            dims in proptest::collection::vec((0u64..5, 0u64..3, 0u64..3), 1..=4),
            size in 1u64..5,
            cut in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let [extent, before, after] = [0, 1, 2].map(|at| dims.iter().map(|d| [d.0, d.1, d.2][at]).collect::<Vec<_>>());
            let memory: Vec<u64> = dims.iter().map(|d| d.0 + d.1 + d.2).collect();
            let count = memory.iter().product::<u64>() * size;
            let bytes: Vec<u8> = (0..count).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            // The expected result follows the plain rule, element by element.
            let mut expected = Vec::new();
            for element in 0..extent.iter().product::<u64>() {
                let (mut rest, mut place, mut step) = (element, 0, size);
                for dim in (0..dims.len()).rev() {
                    place += (rest % extent[dim] + before[dim]) * step;
                    (rest, step) = (rest / extent[dim], step * memory[dim]);
                }
                expected.extend_from_slice(&bytes[place as usize..(place + size) as usize]);
            }
            let strides = strides(&extent, &before, &after, size);
            prop_assert_eq!(strides.bytes(), expected.len());
            let ends = [cut.0, cut.1].map(|end| end.index(expected.len() + 1));
            let (from, to) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            let mut some = vec![0; to - from];
            gather(&strides, &bytes, from, &mut some);
            prop_assert_eq!(&some[..], &expected[from..to]);
            // Each byte comes before the next one.
            for at in (0..expected.len()).step_by(3) {
                let place = strides.place_of(at);
                prop_assert_eq!([strides.before(place), strides.before(place + 1)], [at, at + 1]);
            }
            prop_assert_eq!([strides.before(0), strides.before(bytes.len())], [0, expected.len()]);
            // Putting the bytes back changes no other bytes.
            let mut other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
            strides.scatter(&some, from, &mut other);
            let mut there = vec![0; to - from];
            gather(&strides, &other, from, &mut there);
            prop_assert_eq!(there, some);
            let changed = other.iter().zip(&bytes).filter(|(now, then)| now == then).count();
            prop_assert_eq!(changed, to - from);
        }
    }

    proptest! {
        #[test]
        fn bytes_go_from_one_memory_to_another(
            dims in proptest::collection::vec((1u64..5, 0u64..3, 0u64..3, 0u64..3), 1..=4),
            size in 1u64..5,
            step in any::<prop::sample::Index>(),
        ) {
            let numbers = |of: fn(&(u64, u64, u64, u64)) -> u64| dims.iter().map(of).collect::<Vec<_>>();
            let extent = numbers(|dim| dim.0);
            let one = strides(&extent, &numbers(|dim| dim.1), &numbers(|dim| dim.2), size);
            let two = strides(&extent, &numbers(|dim| dim.3), &numbers(|dim| dim.1), size);
            let (mut both, mut at) = (Both::new(&one, &two), 0);
            loop {
                let (place, other, count) = both.next();
                if count == 0 {
                    break;
                }
                let some = step.index(count) + 1;
                for byte in 0..some {
                    assert_eq!((one.place_of(at + byte), two.place_of(at + byte)), (place + byte, other + byte));
                }
                both.skip(some);
                at += some;
            }
            prop_assert_eq!(at, one.bytes());
        }
    }
}
