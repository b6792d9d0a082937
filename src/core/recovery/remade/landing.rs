//! Brings elements into device memory: they are collected in pinned memory, and the device moves them to their places.
//!
//! Several threads land the data that is read here, each with two pinned memories of its own: one is filled while the device empties the
//! other ([`Lane`]). Data from other ranks is put alternately into two further memories.

use crate::base::sync::Lock;
use crate::decomposition::strides::Strides;
use crate::device::{self, DeviceError, DeviceSpan, RowCopy, Staging, Stream};
use crate::region::rows_in;
use std::ops::Range;

/// The size of a pinned memory in bytes, unless an element is longer.
pub const STAGED: u64 = 4 << 20;
/// The number of threads that fill such memories. A single thread moves a sixth of what the link could move.
pub const FILLERS: usize = 8;
/// The maximum number of copies that are enqueued together, so that their list for the device stays short.
const TOGETHER: usize = 4096;

/// Device memory of a rank's boxes.
pub struct Landing<'t> {
    boxes: Vec<DeviceSpan>,
    stream: &'t dyn Stream,
    /// For data that arrives in pieces; `None` before the first piece.
    pieces: Option<Pieces<'t>>,
    /// Why some of the data has not arrived.
    failure: Lock<Option<DeviceError>>,
}

impl<'t> Landing<'t> {
    /// The memory of each box, which must be as long as the box needs, and which work on a stream writes.
    pub fn new(boxes: Vec<DeviceSpan>, stream: &'t dyn Stream) -> Landing<'t> {
        Landing { boxes, stream, pieces: None, failure: Lock::default() }
    }

    /// The copy of some bytes of a part of a box from pinned memory, in which the bytes begin at `packed`.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if the part lies outside the memory of its box.
    pub fn copy(&self, number: u32, part: &Strides, bytes: Range<usize>, packed: usize) -> device::Result<RowCopy> {
        let outside = DeviceError::Range { offset: u64::from(number), bytes: 0, reason: "there is no such box" };
        let rows = rows_in(self.boxes.get(number as usize).ok_or(outside)?, part)?;
        Ok(RowCopy { rows, at: bytes.start as u64, bytes: bytes.len() as u64, packed: packed as u64 })
    }

    /// Two pinned memories for one thread, of this many bytes each.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn lane(&self, bytes: u64) -> device::Result<Lane<'t>> {
        Ok(Lane { now: self.stream.staging(bytes)?, other: self.stream.staging(bytes)? })
    }

    /// Puts some bytes of a part of a box in their place. [`Landing::finish`] reports an error.
    pub fn put(&mut self, number: u32, part: &Strides, range: Range<usize>, bytes: &[u8]) {
        if self.failed() {
            return;
        }
        if let Err(error) = self.try_put(number, part, range, bytes) {
            self.fail(error);
        }
    }

    fn try_put(&mut self, number: u32, part: &Strides, range: Range<usize>, bytes: &[u8]) -> device::Result<()> {
        let mut pieces = match self.pieces.take() {
            Some(pieces) => pieces,
            None => Pieces { lane: self.lane(STAGED)?, used: 0, copies: Vec::new() },
        };
        for (number_of, some) in bytes.chunks(STAGED as usize).enumerate() {
            if pieces.used + some.len() > STAGED as usize || pieces.copies.len() == TOGETHER {
                pieces.send()?;
            }
            let first = range.start + number_of * STAGED as usize;
            let copy = self.copy(number, part, first..first + some.len(), pieces.used)?;
            pieces.lane.now.memory()?[pieces.used..][..some.len()].copy_from_slice(some);
            pieces.copies.push(copy);
            pieces.used += some.len();
        }
        self.pieces = Some(pieces);
        Ok(())
    }

    /// Notes that the device has failed in a thread.
    pub fn fail(&self, error: DeviceError) {
        self.failure.lock().get_or_insert(error);
    }

    /// Has the device failed in any thread?
    pub fn failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// The first failure, if there is one.
    pub fn failure(&self) -> Option<DeviceError> {
        self.failure.lock().clone()
    }

    /// Waits until everything has arrived.
    ///
    /// # Errors
    /// The first error that the device reported.
    pub fn finish(mut self) -> device::Result<()> {
        let rest = self.pieces.take().map_or(Ok(()), |mut pieces| {
            pieces.send()?;
            pieces.lane.finish()
        });
        self.failure.into_inner().map_or(rest, Err)
    }
}

/// The two pinned memories of one thread.
pub struct Lane<'t> {
    now: Box<dyn Staging + 't>,
    other: Box<dyn Staging + 't>,
}

impl Lane<'_> {
    /// The memory to fill, once the device has emptied it.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn memory(&mut self) -> device::Result<&mut [u8]> {
        self.now.memory()
    }

    /// Has the device move the filled memory to its places. The other memory is filled next.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn send(&mut self, copies: &[RowCopy]) -> device::Result<()> {
        for copies in copies.chunks(TOGETHER) {
            self.now.scatter(copies)?;
        }
        std::mem::swap(&mut self.now, &mut self.other);
        Ok(())
    }

    /// Waits until the device has emptied both.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn finish(mut self) -> device::Result<()> {
        self.now.memory()?;
        self.other.memory()?;
        Ok(())
    }
}

/// Data that arrived in pieces and has not been sent on.
struct Pieces<'t> {
    lane: Lane<'t>,
    /// The number of bytes used in the current memory.
    used: usize,
    copies: Vec<RowCopy>,
}

impl Pieces<'_> {
    fn send(&mut self) -> device::Result<()> {
        self.used = 0;
        self.lane.send(&std::mem::take(&mut self.copies))
    }
}
