//! Boxes of a decomposed array in the application's memory, captured without what surrounds them.

use super::{ReadBlocks, RegionError};
use crate::base::Digest;
use crate::base::digest::Sums;
use crate::decomposition::Decomposition;
use crate::decomposition::strides::{Rows, Strides};
use std::fmt;

/// Bytes of a pair of words.
const PAIR: usize = 16;
/// Bytes that go through a buffer at once.
const BUFFER: usize = 16 << 10;

/// The memory of boxes, and where their elements lie in it. Their bytes are box behind box, each in the order of memory.
pub struct Packed<'a> {
    boxes: Vec<(&'a [u8], Strides)>,
    /// Where each box begins, and where the last one ends.
    starts: Vec<usize>,
}

impl fmt::Debug for Packed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes of {} boxes)", self.bytes(), self.boxes.len())
    }
}

impl<'a> Packed<'a> {
    /// This rank's boxes, with elements of so many bytes, in their memory.
    pub fn new(boxes: Vec<(&'a [u8], Strides)>) -> Packed<'a> {
        let mut starts = vec![0];
        starts.extend(boxes.iter().scan(0, |end, (_, strides)| {
            *end += strides.bytes();
            Some(*end)
        }));
        Packed { boxes, starts }
    }

    /// The bytes, where they are one piece of memory.
    pub fn in_one_piece(&self) -> Option<&'a [u8]> {
        match &self.boxes[..] {
            [] => Some(&[]),
            [(memory, strides)] => strides.one_piece().map(|piece| &memory[piece]),
            _ => None,
        }
    }

    /// `count` bytes from byte `at` on, one piece of memory after the other.
    fn rows(&self, at: usize, count: usize) -> impl Iterator<Item = &[u8]> {
        let mut number = self.starts.partition_point(|start| *start <= at) - 1;
        let (mut left, mut open) = (count, None);
        std::iter::from_fn(move || {
            while left > 0 {
                let (memory, strides) = self.boxes.get(number)?;
                let way = open.get_or_insert_with(|| Rows::at(strides, (at + count - left) - self.starts[number]));
                let (place, bytes) = way.next();
                let bytes = bytes.min(left);
                if bytes > 0 {
                    way.skip(bytes);
                    left -= bytes;
                    return Some(&memory[place..place + bytes]);
                }
                (number, open) = (number + 1, None);
            }
            None
        })
    }
}

impl ReadBlocks for Packed<'_> {
    fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0) as u64
    }

    /// The one loop of captures copies and digests row by row, from two places of a block in turn: one alone leaves memory idle. Rows that end inside a pair of
    /// words, which the digest takes at once, pass through a buffer that stays in the nearest cache.
    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let are_even = self.boxes.iter().all(|(_, strides)| strides.is_even(PAIR));
        let mut buffer = [0u8; BUFFER];
        let blocks = (at as usize..).step_by(block_bytes as usize);
        for ((at, to), digest) in blocks.zip(target.chunks_mut(block_bytes as usize)).zip(digests) {
            let (mut sums, length) = (Sums::default(), to.len());
            if are_even {
                let half = length / 2 / PAIR * PAIR;
                let (near, far) = to.split_at_mut(half);
                copy_in_turn([(self.rows(at, half), near), (self.rows(at + half, length - half), far)], &mut sums);
            } else {
                for (number, to) in to.chunks_mut(BUFFER).enumerate() {
                    let bytes = &mut buffer[..to.len()];
                    let mut done = 0;
                    for row in self.rows(at + number * BUFFER, to.len()) {
                        bytes[done..done + row.len()].copy_from_slice(row);
                        done += row.len();
                    }
                    sums.add_copying((number * BUFFER) as u64, bytes, to);
                }
            }
            *digest = sums.finish(length as u64);
        }
        Ok(())
    }

    fn memory(&self) -> Option<&[u8]> {
        match &self.boxes[..] {
            [(memory, _)] => Some(memory),
            _ => None,
        }
    }
}

/// Copies the rows of two halves of a block, as much of either in turn as both have without interruption.
fn copy_in_turn<'r, R: Iterator<Item = &'r [u8]>>(halves: [(R, &mut [u8]); 2], sums: &mut Sums) {
    let [(mut rows, mut to), (mut other_rows, mut other_to)] = halves;
    let (mut row, mut other): (&[u8], &[u8]) = (&[], &[]);
    let (mut at, mut other_at) = (0, to.len() as u64);
    loop {
        if row.is_empty() {
            row = rows.next().unwrap_or_default();
        }
        if other.is_empty() {
            other = other_rows.next().unwrap_or_default();
        }
        let count = row.len().min(other.len());
        let [one, two] = match (row.len(), other.len()) {
            (0, 0) => return,
            (rest, 0) | (0, rest) => [rest.min(row.len()), rest.min(other.len())],
            _ => [count; 2],
        };
        let (now, later) = row.split_at(one);
        let (other_now, other_later) = other.split_at(two);
        let (target, behind) = std::mem::take(&mut to).split_at_mut(one);
        let (other_target, other_behind) = std::mem::take(&mut other_to).split_at_mut(two);
        if count > 0 {
            sums.add_copying_both([(at, now, target), (other_at, other_now, other_target)]);
        } else {
            sums.add_copying(at, now, target);
            sums.add_copying(other_at, other_now, other_target);
        }
        (row, other, to, other_to) = (later, other_later, behind, other_behind);
        (at, other_at) = (at + one as u64, other_at + two as u64);
    }
}

/// Memory of the application for the boxes of a decomposition: is it as long as they need it?
///
/// # Errors
/// [`RegionError::Memory`] for the first box that has none of its length, [`RegionError::Boxes`] for another number of them.
pub fn check_memory(
    name: &str,
    on: &Decomposition,
    elements: impl ExactSizeIterator<Item = usize>,
) -> Result<(), RegionError> {
    let (given, boxes) = (elements.len(), on.boxes());
    if given != boxes {
        return Err(RegionError::Boxes { name: name.into(), given, boxes });
    }
    for (number, given) in elements.enumerate() {
        let need = on.own().memory_elements(number);
        if given as u64 != need {
            return Err(RegionError::Memory { name: name.into(), number, given: given as u64, need });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::digest_bytes;
    use crate::decomposition::Boxes;

    #[test]
    fn boxes_cut_blocks_at_every_alignment() {
        let own = Boxes::of([40, 9]).own([0, 0], [5, 9]).own([9, 2], [0, 3]).own([20, 1], [7, 5]).halo([1, 2]).check();
        let own = own.expect("inside");
        let memory: Vec<Vec<u8>> = (0..3)
            .map(|number| (0..own.memory_elements(number) as usize * 4).map(|at| (at * 7 + number) as u8).collect())
            .collect();
        let boxes = (0..3).map(|number| (&memory[number][..], own.strides(number, 4)));
        let packed = Packed::new(boxes.collect());
        let mut expected = Vec::new();
        for (number, (rows, columns)) in [(5, 9), (0, 3), (7, 5)].into_iter().enumerate() {
            for row in 0..rows {
                let start = ((row + 1) * (columns + 4) + 2) * 4;
                expected.extend_from_slice(&memory[number][start..start + columns * 4]);
            }
        }
        assert_eq!(packed.bytes(), expected.len() as u64);
        for block in 1..=expected.len() {
            let count = expected.len().div_ceil(block);
            let (mut target, mut digests) = (vec![0; expected.len()], vec![Digest::default(); count]);
            packed.read(0, block as u64, &mut target, &mut digests).expect("memory");
            assert_eq!(target, expected, "blocks of {block}");
            let by_block: Vec<Digest> = expected.chunks(block).map(digest_bytes).collect();
            assert_eq!(digests, by_block, "blocks of {block}");
            // From the second block on.
            if count > 1 {
                packed.read(block as u64, block as u64, &mut target[block..], &mut digests[1..]).expect("memory");
                assert_eq!(target, expected);
            }
        }
    }

    #[test]
    fn what_is_one_piece_is_lent() {
        let memory = [1u8; 60];
        let of = |boxes: Boxes| {
            let own = boxes.check().expect("inside");
            let boxes = (0..own.parts().own().len()).map(|number| (&memory[..], own.strides(number, 1)));
            Packed::new(boxes.collect()).in_one_piece().map(<[u8]>::len)
        };
        assert_eq!(of(Boxes::of([6, 10]).own([0, 0], [6, 10])), Some(60));
        assert_eq!(of(Boxes::of([6, 10]).own([1, 0], [4, 10]).halo([1, 0])), Some(40));
        assert_eq!(of(Boxes::of([6, 10])), Some(0));
        assert_eq!(of(Boxes::of([6, 10]).own([1, 1], [4, 8]).halo([1, 1])), None);
    }
}
