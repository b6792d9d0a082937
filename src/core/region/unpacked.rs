//! The memory of boxes into which a decomposed array is loaded. The memory around the boxes stays unchanged.

use crate::decomposition::strides::Strides;

/// The memory of boxes, and the places of the boxes' elements in it. The bytes follow box by box, each box in memory order.
pub struct Unpacked<'t> {
    boxes: Vec<Piece<'t>>,
    bytes: usize,
}

/// Memory for some bytes of a box.
struct Piece<'t> {
    /// The offset of `memory` in the memory of the piece's box.
    from: usize,
    memory: &'t mut [u8],
    strides: Strides,
    /// The first of the box's bytes that belong to the piece, and their number.
    first: usize,
    bytes: usize,
}

/// A position along the bytes.
pub struct Way {
    /// The piece, and the number of its bytes that have been passed.
    number: usize,
    at: usize,
    /// The rest of the current row, from `row` to `end`, as offsets in the piece's memory.
    row: usize,
    end: usize,
}

impl<'t> Unpacked<'t> {
    /// Takes all bytes of these boxes.
    pub fn new(boxes: impl IntoIterator<Item = (&'t mut [u8], Strides)>) -> Unpacked<'t> {
        let whole = |(memory, strides): (&'t mut [u8], Strides)| {
            let bytes = strides.bytes();
            Piece { from: 0, memory, strides, first: 0, bytes }
        };
        let boxes: Vec<Piece<'t>> = boxes.into_iter().map(whole).collect();
        let bytes = boxes.iter().map(|piece| piece.bytes).sum();
        Unpacked { boxes, bytes }
    }

    /// The number of bytes that the memory takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory if all bytes go to one piece of it, otherwise `self`.
    pub fn in_one_piece(self) -> Result<&'t mut [u8], Unpacked<'t>> {
        match &self.boxes[..] {
            [] => Ok(&mut []),
            [Piece { strides, from: 0, .. }] => match strides.one_piece() {
                Some(range) => {
                    let memory = self.boxes.into_iter().next().map(|piece| &mut piece.memory[range]);
                    Ok(memory.unwrap_or_default())
                }
                None => Err(self),
            },
            _ => Err(self),
        }
    }

    /// Copies `bytes` to the places of the bytes that begin at byte `at`.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        let (mut way, mut done) = (self.way(at), 0);
        while done < bytes.len()
            && let Some(memory) = self.next(&mut way, bytes.len() - done)
        {
            memory.copy_from_slice(&bytes[done..done + memory.len()]);
            done += memory.len();
        }
    }

    /// The position of byte `at`.
    pub fn way(&self, at: usize) -> Way {
        let (mut number, mut at) = (0, at);
        while let Some(piece) = self.boxes.get(number).filter(|piece| at >= piece.bytes) {
            (number, at) = (number + 1, at - piece.bytes);
        }
        Way { number, at, row: 0, end: 0 }
    }

    /// The memory for the next bytes, at most `most` bytes in one piece; `None` at the end.
    pub fn next(&mut self, way: &mut Way, most: usize) -> Option<&mut [u8]> {
        if way.row == way.end {
            let piece = loop {
                let piece = self.boxes.get(way.number)?;
                if way.at < piece.bytes {
                    break piece;
                }
                (way.number, way.at) = (way.number + 1, way.at - piece.bytes);
            };
            let byte = piece.first + way.at;
            let left = piece.strides.row() - byte % piece.strides.row();
            way.row = piece.strides.place_of(byte) - piece.from;
            way.end = way.row + left.min(piece.bytes - way.at);
        }
        let count = most.min(way.end - way.row);
        let begin = way.row;
        way.row += count;
        way.at += count;
        Some(&mut self.boxes[way.number].memory[begin..begin + count])
    }

    /// Splits the bytes into parts of `most` bytes, and a last part with the rest, for several threads. The memory of a part lies before
    /// that of the next part, so that the memory can be split.
    pub fn parts(self, most: usize) -> Vec<Unpacked<'t>> {
        let (mut parts, mut open, mut room) = (Vec::new(), Vec::new(), most);
        for mut piece in self.boxes {
            while piece.bytes > room {
                let (now, later) = piece.split(room);
                open.push(now);
                parts.push(Unpacked { boxes: std::mem::take(&mut open), bytes: most });
                (piece, room) = (later, most);
            }
            room -= piece.bytes;
            open.push(piece);
        }
        let bytes = most - room;
        parts.push(Unpacked { boxes: open, bytes });
        parts
    }
}

impl<'t> Piece<'t> {
    /// Splits off the first `bytes` bytes. The piece must have more than that.
    fn split(self, bytes: usize) -> (Piece<'t>, Piece<'t>) {
        let Piece { from, memory, strides, first, bytes: all } = self;
        let border = strides.place_of(first + bytes);
        let (before, behind) = memory.split_at_mut(border - from);
        let now = Piece { from, memory: before, strides: strides.clone(), first, bytes };
        (now, Piece { from: border, memory: behind, strides, first: first + bytes, bytes: all - bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decomposition::Boxes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_put_what_the_whole_would(
            extents in proptest::collection::vec((0u64..6, 0u64..6, 0u64..6), 0..4),
            halo in (0u64..3, 0u64..3, 0u64..3),
            size in 1u64..9,
            most in 1usize..200,
            piece in 1usize..90,
        ) {
            let boxes = extents.iter().fold(Boxes::of([6, 6, 6]).halo([halo.0, halo.1, halo.2]), |boxes, (z, y, x)| {
                boxes.own([0, 0, 0], [*z, *y, *x])
            });
            let own = boxes.check().expect("inside");
            let fresh = || -> Vec<Vec<u8>> {
                (0..extents.len()).map(|number| vec![0xee; (own.memory_elements(number) * size) as usize]).collect()
            };
            let strides = |number| own.strides(number, size);
            let bytes: Vec<u8> = (0..own.parts().elements() * size).map(|at| at as u8).collect();
            let mut expected = fresh();
            let mut start = 0;
            for (number, memory) in expected.iter_mut().enumerate() {
                let end = start + strides(number).bytes();
                strides(number).scatter(&bytes[start..end], 0, memory);
                start = end;
            }
            let mut whole = fresh();
            let lent = whole.iter_mut().enumerate().map(|(number, memory)| (&mut memory[..], strides(number)));
            let mut unpacked = Unpacked::new(lent);
            prop_assert_eq!(unpacked.bytes(), bytes.len());
            for (number, bytes) in bytes.chunks(piece).enumerate() {
                unpacked.put(number * piece, bytes);
            }
            prop_assert_eq!(&whole, &expected);
            let mut apart = fresh();
            let lent = apart.iter_mut().enumerate().map(|(number, memory)| (&mut memory[..], strides(number)));
            let parts = Unpacked::new(lent).parts(most);
            prop_assert_eq!(parts.iter().map(Unpacked::bytes).sum::<usize>(), bytes.len());
            for (mut part, bytes) in parts.into_iter().zip(bytes.chunks(most)) {
                prop_assert_eq!(part.bytes(), bytes.len());
                for (number, bytes) in bytes.chunks(piece).enumerate() {
                    part.put(number * piece, bytes);
                }
            }
            prop_assert_eq!(&apart, &expected);
        }
    }
}
