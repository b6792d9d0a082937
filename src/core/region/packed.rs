//! Boxes of a decomposed array in the application's memory, captured without the memory around them.

use super::{ReadBlocks, RegionError};
use crate::base::Digest;
use crate::base::digest::{EqualRows, Sums};
use crate::decomposition::Decomposition;
use crate::decomposition::strides::{Rows, Strides};
use std::fmt;

/// The number of bytes in a pair of words.
const PAIR: usize = 16;
/// The maximum number of bytes that pass through the buffer at once.
const BUFFER: usize = 16 << 10;

/// The memory of boxes, and the places of the boxes' elements in it. The bytes follow box by box, each box in memory order.
pub struct Packed<'a> {
    boxes: Vec<(&'a [u8], Strides)>,
    /// The offset at which each box begins, and the end of the last box.
    starts: Vec<usize>,
}

impl fmt::Debug for Packed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes of {} boxes)", self.bytes(), self.boxes.len())
    }
}

impl<'a> Packed<'a> {
    /// Describes this rank's boxes, each by its memory and its strides.
    pub fn new(boxes: Vec<(&'a [u8], Strides)>) -> Packed<'a> {
        let mut starts = vec![0];
        starts.extend(boxes.iter().scan(0, |end, (_, strides)| {
            *end += strides.bytes();
            Some(*end)
        }));
        Packed { boxes, starts }
    }

    /// The bytes, if they are one piece of memory.
    pub fn in_one_piece(&self) -> Option<&'a [u8]> {
        match &self.boxes[..] {
            [] => Some(&[]),
            [(memory, strides)] => strides.one_piece().map(|piece| &memory[piece]),
            _ => None,
        }
    }

    /// A way along `count` bytes that begins at byte `at`, row by row.
    fn way(&self, at: usize, count: usize) -> Way<'_> {
        let number = self.starts.partition_point(|start| *start <= at) - 1;
        Way { of: self, number, at, left: count, rows: None }
    }
}

/// A way along the bytes of boxes.
struct Way<'p> {
    of: &'p Packed<'p>,
    number: usize,
    at: usize,
    left: usize,
    /// The rows of the current box.
    rows: Option<Rows<'p>>,
}

impl<'p> Way<'p> {
    /// The next rows, which have the same length and lie at regular distances; `None` at the end.
    #[inline]
    fn next(&mut self) -> Option<EqualRows<'p>> {
        while self.left > 0 {
            let (memory, strides) = self.of.boxes.get(self.number)?;
            let rows = self.rows.get_or_insert_with(|| Rows::at(strides, self.at - self.of.starts[self.number]));
            let (first, row, step, count) = rows.next();
            match self.left / row.max(1) {
                _ if row == 0 => (self.number, self.rows) = (self.number + 1, None),
                0 => return Some(EqualRows { memory, first, row: self.left, step, count: 1 }),
                most => return Some(EqualRows { memory, first, row, step, count: count.min(most) }),
            }
        }
        None
    }

    /// Moves on by `bytes` bytes in each of the next `rows` rows.
    #[inline]
    fn skip(&mut self, bytes: usize, rows: usize) {
        self.at += bytes * rows;
        self.left -= bytes * rows;
        if let Some(way) = &mut self.rows {
            way.skip(bytes, rows);
        }
    }
}

impl ReadBlocks for Packed<'_> {
    fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0) as u64
    }

    /// The single loop of a capture copies and digests row by row, from two places of a block in turn, because one place alone leaves
    /// memory idle. If rows end inside a pair of words, which the digest takes at once, all rows pass through a buffer that stays in the
    /// nearest cache.
    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let are_even = self.boxes.iter().all(|(_, strides)| strides.is_even(PAIR));
        let mut buffer = [0u8; BUFFER];
        let blocks = (at as usize..).step_by(block_bytes as usize);
        for ((at, to), digest) in blocks.zip(target.chunks_mut(block_bytes as usize)).zip(digests) {
            let (mut sums, length) = (Sums::default(), to.len());
            if are_even {
                let half = length / 2 / PAIR * PAIR;
                let (near, far) = to.split_at_mut(half);
                copy_in_turn([(self.way(at, half), near), (self.way(at + half, length - half), far)], &mut sums);
            } else {
                for (number, to) in to.chunks_mut(BUFFER).enumerate() {
                    let bytes = &mut buffer[..to.len()];
                    let (mut way, mut done) = (self.way(at + number * BUFFER, to.len()), 0);
                    while let Some(EqualRows { memory, first, row, .. }) = way.next() {
                        bytes[done..done + row].copy_from_slice(&memory[first..first + row]);
                        way.skip(row, 1);
                        done += row;
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

/// Copies the rows of two halves of a block in turn, each time as many rows as both halves have at regular distances.
fn copy_in_turn(halves: [(Way<'_>, &mut [u8]); 2], sums: &mut Sums) {
    let [(mut one, mut to), (mut two, mut other_to)] = halves;
    let (mut at, mut other_at) = (0, to.len() as u64);
    loop {
        let (here, there) = (one.next(), two.next());
        let (row, other_row, rows) = match (here, there) {
            (None, None) => return,
            (Some(here), Some(there)) => {
                let row = here.row.min(there.row);
                // If both have rows of the same length, as many whole rows are taken as both have; otherwise the part of one row that both
                // have.
                let rows = if here.row == there.row { here.count.min(there.count) } else { 1 };
                (row, row, rows)
            }
            (here, there) => (here.map_or(0, |here| here.row), there.map_or(0, |there| there.row), 1),
        };
        let (target, behind) = std::mem::take(&mut to).split_at_mut(row * rows);
        let (other_target, other_behind) = std::mem::take(&mut other_to).split_at_mut(other_row * rows);
        if let (Some(here), Some(there)) = (here, there) {
            let here = EqualRows { row, count: rows, ..here };
            let there = EqualRows { row, count: rows, ..there };
            sums.add_copying_rows([(at, here, target), (other_at, there, other_target)]);
        } else if let Some(here) = here {
            sums.add_copying(at, &here.memory[here.first..][..row], target);
        } else if let Some(there) = there {
            sums.add_copying(other_at, &there.memory[there.first..][..other_row], other_target);
        }
        if here.is_some() {
            one.skip(row, rows);
        }
        if there.is_some() {
            two.skip(other_row, rows);
        }
        (to, other_to) = (behind, other_behind);
        (at, other_at) = (at + (row * rows) as u64, other_at + (other_row * rows) as u64);
    }
}

/// Checks that the application's memory for each box of a decomposition has the length that the box needs.
///
/// # Errors
/// [`RegionError::Memory`] for the first box without memory of its length, [`RegionError::Boxes`] for a different number of
/// boxes.
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
            // Reads from the second block onwards.
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
