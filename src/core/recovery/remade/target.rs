//! Memory that elements are loaded into, whoever they come from.

use super::packet;
use super::packing::{BoxWay, Sink};
use crate::decomposition::strides::Strides;
use crate::decomposition::{Cuboid, DIMS, Own};

/// The memory of a rank's boxes.
pub struct Target<'t> {
    own: &'t Own,
    memory: Vec<&'t mut [u8]>,
    /// Bytes of an element.
    size: u64,
    delivered: u64,
}

/// Says where pieces of boxes lie in the memory of those.
pub struct Mapper<'t> {
    own: &'t Own,
    size: u64,
}

impl<'t> Mapper<'t> {
    /// Of boxes whose elements have so many bytes.
    pub fn new(own: &'t Own, size: u64) -> Mapper<'t> {
        Mapper { own, size }
    }

    /// Bytes of an element.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where a piece of a box lies in the memory of the box.
    pub fn strides(&self, number: u32, piece: &Cuboid) -> Option<Strides> {
        let own = self.own;
        let of = own.parts().own().get(number as usize).filter(|of| of.contains(piece))?;
        let (before, after) = own.margins();
        Some(Strides::inside(piece, of, before, after, self.size))
    }
}

/// A part of a box, and its memory.
pub struct Slot<'t> {
    /// The box.
    pub number: u32,
    /// The part.
    pub within: Cuboid,
    memory: &'t mut [u8],
    /// Where in the memory of the box it begins.
    from: usize,
}

impl Slot<'_> {
    /// So many bytes at a place of the memory of the box.
    pub fn place(&mut self, place: usize, count: usize) -> &mut [u8] {
        &mut self.memory[place - self.from..][..count]
    }
}

impl<'t> Target<'t> {
    /// The memory of each box, as long as that needs it.
    pub fn new(own: &'t Own, memory: Vec<&'t mut [u8]>, size: u64) -> Target<'t> {
        Target { own, memory, size, delivered: 0 }
    }

    /// Where pieces lie in it.
    pub fn mapper(&self) -> Mapper<'t> {
        Mapper::new(self.own, self.size)
    }

    /// Puts some bytes of a piece of a box, those from `from` on, where they belong; false if they do not.
    pub fn put(&mut self, number: u32, piece: &Cuboid, from: usize, bytes: &[u8]) -> bool {
        let Some(strides) = self.mapper().strides(number, piece) else { return false };
        let (Some(end), Some(memory)) = (from.checked_add(bytes.len()), self.memory.get_mut(number as usize)) else {
            return false;
        };
        if end > strides.bytes() {
            return false;
        }
        strides.scatter(bytes, from, memory);
        self.delivered += bytes.len() as u64;
        true
    }

    /// So many bytes were put into slots.
    pub fn add_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// The boxes in tasks of about so many bytes, for several threads. A box is cut in its slowest dimension, whose parts lie one behind the other.
    pub fn tasks(&mut self, most: u64) -> Vec<Vec<Slot<'_>>> {
        let own = self.own;
        let (before, after) = own.margins();
        let (mut tasks, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for ((number, of), memory) in (0..).zip(own.parts().own()).zip(&mut self.memory) {
            let all = of.volume() * self.size;
            let slowest = (0..DIMS).find(|dim| of.extent(*dim) > 1).unwrap_or(0);
            let rows = of.extent(slowest).max(1);
            let count = all.div_ceil(most.max(1)).clamp(1, rows);
            let (mut rest, mut from) = (&mut **memory, 0);
            for part in 0..count {
                let mut within = *of;
                if count > 1 {
                    within.from[slowest] = of.from[slowest] + part * rows / count;
                    within.to[slowest] = of.from[slowest] + (part + 1) * rows / count;
                }
                // Up to where the next one begins.
                let mut next = *of;
                next.from[slowest] = within.to[slowest];
                let end = match part + 1 == count {
                    true => from + rest.len(),
                    false => Strides::inside(&next, of, before, after, self.size).place_of(0),
                };
                let (memory, behind) = rest.split_at_mut(end - from);
                open.push(Slot { number, within, memory, from });
                (rest, from, bytes) = (behind, end, bytes + within.volume() * self.size);
                if bytes >= most {
                    (_, bytes) = (tasks.push(std::mem::take(&mut open)), 0);
                }
            }
        }
        tasks.extend((!open.is_empty()).then_some(open));
        tasks
    }
}

impl Sink<BoxWay> for Target<'_> {
    fn take(&mut self, portions: &[u8]) -> Result<(), String> {
        let dims = self.own.parts().dims();
        packet::unpack(portions, dims, |number, cuboid, at, bytes| Target::put(self, number, cuboid, at, bytes))
    }

    fn put(&mut self, way: &BoxWay, from: usize, bytes: &[u8]) -> bool {
        Target::put(self, way.number, &way.cuboid, from, bytes)
    }

    fn delivered(&self) -> u64 {
        self.delivered
    }
}
