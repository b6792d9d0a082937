//! Memory into which elements are loaded, wherever they come from.

use super::super::load_error::LoadError;
use super::landing::Landing;
use super::packet;
use super::packing::{BoxWay, Sink};
use super::together::Together;
use crate::decomposition::strides::Strides;
use crate::decomposition::{Cuboid, DIMS, Own};
use crate::device::{self, DeviceSpan, Stream};

/// Checks that every rank has received what it wanted. This rank wanted `wanted` bytes, or could not take them. Nothing is under way any
/// more, so what has not reached its target never will.
///
/// # Errors
/// [`LoadError::Others`], the same on all ranks.
pub fn close(
    together: &Together<'_>,
    wanted: u64,
    target: Option<Target<'_>>,
    failure: Option<LoadError>,
) -> Result<(), LoadError> {
    match (target.map_or(Ok(0), Target::finish), failure) {
        (Ok(got), failure) => together.close(wanted, got, failure.as_ref()),
        (Err(_), Some(failure)) => together.close(wanted, 0, Some(&failure)),
        (Err(source), None) => {
            let what = format!("region {:?}", together.region);
            let failure = LoadError::Device { rank: together.rank(), key: together.key, what, source };
            together.close(wanted, 0, Some(&failure))
        }
    }
}

/// The memory of a rank's boxes.
pub struct Target<'t> {
    own: &'t Own,
    memory: Memory<'t>,
    /// The size of an element in bytes.
    size: u64,
    delivered: u64,
}

enum Memory<'t> {
    Host(Vec<&'t mut [u8]>),
    Device(Landing<'t>),
}

/// Says where pieces of boxes lie in the memory of the boxes.
pub struct Mapper<'t> {
    own: &'t Own,
    size: u64,
}

impl<'t> Mapper<'t> {
    /// A mapper for boxes whose elements have `size` bytes.
    pub fn new(own: &'t Own, size: u64) -> Mapper<'t> {
        Mapper { own, size }
    }

    /// The size of an element in bytes.
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

/// A part of a box.
pub struct Share {
    /// The box.
    pub number: u32,
    /// The part.
    pub within: Cuboid,
}

/// A part of a box, and its memory.
pub struct Slot<'t> {
    /// The box.
    pub number: u32,
    /// The part.
    pub within: Cuboid,
    memory: &'t mut [u8],
    /// The place in the memory of the box at which this memory begins.
    from: usize,
}

impl<'t> Slot<'t> {
    /// Memory that does not belong to a box, but has its bytes in an order of its own.
    pub fn apart(memory: &'t mut [u8]) -> Slot<'t> {
        Slot { number: 0, within: Cuboid::default(), memory, from: 0 }
    }

    /// `count` bytes at a place in the memory of the box.
    pub fn place(&mut self, place: usize, count: usize) -> &mut [u8] {
        &mut self.memory[place - self.from..][..count]
    }
}

impl<'t> Target<'t> {
    /// A target in host memory. `memory` has the memory of each box, as long as the box needs it to be.
    pub fn new(own: &'t Own, memory: Vec<&'t mut [u8]>, size: u64) -> Target<'t> {
        Target { own, memory: Memory::Host(memory), size, delivered: 0 }
    }

    /// A target in device memory, which work on a stream writes. `boxes` has the memory of each box.
    pub fn on_device(own: &'t Own, boxes: Vec<DeviceSpan>, stream: &'t dyn Stream, size: u64) -> Target<'t> {
        Target { own, memory: Memory::Device(Landing::new(boxes, stream)), size, delivered: 0 }
    }

    /// The device memory, if the target has some.
    pub(super) fn landing(&self) -> Option<&Landing<'t>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(landing) => Some(landing),
        }
    }

    /// Says where pieces lie in this target.
    pub fn mapper(&self) -> Mapper<'t> {
        Mapper::new(self.own, self.size)
    }

    /// Puts some bytes of a piece of a box, beginning with its byte `from`, where they belong; false if they do not belong there.
    pub fn put(&mut self, number: u32, piece: &Cuboid, from: usize, bytes: &[u8]) -> bool {
        let Some(strides) = self.mapper().strides(number, piece) else { return false };
        let Some(end) = from.checked_add(bytes.len()).filter(|end| *end <= strides.bytes()) else { return false };
        match &mut self.memory {
            Memory::Host(memory) => match memory.get_mut(number as usize) {
                Some(memory) => strides.scatter(bytes, from, memory),
                None => return false,
            },
            Memory::Device(landing) => landing.put(number, &strides, from..end, bytes),
        }
        self.delivered += bytes.len() as u64;
        true
    }

    /// Puts some bytes at a place in the memory of the only box, which has no margin; false if they do not belong there.
    pub fn put_at(&mut self, place: usize, bytes: &[u8]) -> bool {
        let [line] = self.own.parts().own() else { return false };
        self.put(0, line, place, bytes)
    }

    /// Notes that this many bytes were put into slots.
    pub fn add_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// The number of bytes that have arrived. They are in their places when this returns.
    ///
    /// # Errors
    /// Any error that the device of that memory reports.
    ///
    /// # Blocking
    /// For the device.
    pub fn finish(self) -> device::Result<u64> {
        if let Memory::Device(landing) = self.memory {
            landing.finish()?;
        }
        Ok(self.delivered)
    }

    /// Cuts the boxes in host memory into tasks of about `most` bytes, for several threads. A box is cut in its slowest dimension, whose
    /// parts are consecutive in memory.
    pub fn tasks(&mut self, most: u64) -> Vec<Vec<Slot<'_>>> {
        let own = self.own;
        let (before, after) = own.margins();
        let (mut tasks, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        let Memory::Host(memory) = &mut self.memory else { return tasks };
        for ((number, of), memory) in (0..).zip(own.parts().own()).zip(memory) {
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
                // The memory of this part ends where the next part begins.
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

    /// Cuts the boxes into tasks of at most `most` bytes, or of one element. A box is cut in its slowest dimensions.
    pub fn shares(&self, most: u64) -> Vec<Vec<Share>> {
        let (mut tasks, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (number, of) in (0..).zip(self.own.parts().own()) {
            let mut waiting = vec![*of];
            while let Some(within) = waiting.pop() {
                let all = within.volume() * self.size;
                let slowest = (0..DIMS).find(|dim| within.extent(*dim) > 1);
                if let Some(dim) = slowest.filter(|_| all > most) {
                    // The box is cut into as few parts as possible, or else index by index. The first part is taken next.
                    let extent = within.extent(dim);
                    let count = all.div_ceil(most.max(1)).min(extent);
                    for part in (0..count).rev() {
                        let mut some = within;
                        some.from[dim] = within.from[dim] + part * extent / count;
                        some.to[dim] = within.from[dim] + (part + 1) * extent / count;
                        waiting.push(some);
                    }
                    continue;
                }
                if !open.is_empty() && bytes + all > most {
                    (_, bytes) = (tasks.push(std::mem::take(&mut open)), 0);
                }
                bytes += all;
                if all > 0 {
                    open.push(Share { number, within });
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
}
