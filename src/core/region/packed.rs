//! Boxes of a decomposed array in the application's memory, captured without what surrounds them.

use super::{ReadBlocks, RegionError};
use crate::base::Digest;
use crate::base::digest::copy_digest;
use crate::decomposition::Decomposition;
use crate::decomposition::strides::Strides;
use std::fmt;

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

    /// Copies those from byte `at` on, as many as fit into `target`.
    fn gather(&self, at: usize, target: &mut [u8]) {
        let first = self.starts.partition_point(|start| *start <= at) - 1;
        let (mut done, mut at) = (0, at);
        for ((memory, strides), start) in self.boxes.iter().zip(&self.starts).skip(first) {
            let within = at - start;
            let bytes = (strides.bytes() - within).min(target.len() - done);
            strides.gather(memory, within, &mut target[done..done + bytes]);
            done += bytes;
            at += bytes;
            if done == target.len() {
                break;
            }
        }
    }
}

impl ReadBlocks for Packed<'_> {
    fn bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0) as u64
    }

    /// Rows pass through a buffer that stays in cache, from which the one loop of captures copies and digests.
    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let mut buffer = vec![0u8; (block_bytes as usize).min(target.len())];
        for (index, (to, digest)) in target.chunks_mut(block_bytes as usize).zip(digests).enumerate() {
            let rows = &mut buffer[..to.len()];
            self.gather(at as usize + index * block_bytes as usize, rows);
            *digest = copy_digest(rows, to);
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
