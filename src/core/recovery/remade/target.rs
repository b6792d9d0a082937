//! Memory that elements are loaded into, whoever they come from.

use crate::decomposition::strides::Strides;
use crate::decomposition::{Cuboid, Decomposition};

/// The memory of a rank's boxes.
pub struct Target<'t> {
    on: &'t Decomposition,
    memory: Vec<&'t mut [u8]>,
    /// Bytes of an element.
    size: u64,
    delivered: u64,
}

impl<'t> Target<'t> {
    /// The memory of each box, as long as that needs it.
    pub fn new(on: &'t Decomposition, memory: Vec<&'t mut [u8]>, size: u64) -> Target<'t> {
        Target { on, memory, size, delivered: 0 }
    }

    /// Puts some bytes of a piece of a box, those from `from` on, where they belong; false if they do not.
    pub fn put(&mut self, number: u32, piece: &Cuboid, from: usize, bytes: &[u8]) -> bool {
        let own = self.on.own();
        let number = number as usize;
        let Some(of) = own.parts().own().get(number).filter(|of| of.contains(piece)) else { return false };
        let (before, after) = own.margins();
        let strides = Strides::inside(piece, of, before, after, self.size);
        let (Some(end), Some(memory)) = (from.checked_add(bytes.len()), self.memory.get_mut(number)) else {
            return false;
        };
        if end > strides.bytes() {
            return false;
        }
        strides.scatter(bytes, from, memory);
        self.delivered += bytes.len() as u64;
        true
    }

    /// How many bytes have come.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}
