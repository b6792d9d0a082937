//! Elements on their way into device memory: they are put together in pinned memory, and brought to their places by the device.
//!
//! Data that is read here is landed by several threads, each with its own two pinned memories: one is filled while the device empties the
//! other ([`Lane`]). What comes from other ranks is put into one after the other of two more.

use crate::base::sync::Lock;
use crate::decomposition::strides::Strides;
use crate::device::{self, DeviceError, DeviceSpan, RowCopy, Staging, Stream};
use crate::region::rows_in;
use std::ops::Range;

/// Bytes of a pinned memory, unless an element is longer.
pub const STAGED: u64 = 4 << 20;
/// Threads that fill such memories: one alone moves a sixth of what the link does.
pub const FILLERS: usize = 8;
/// Copies that are enqueued together, so that what the device is told of them stays short.
const TOGETHER: usize = 4096;

/// Device memory of a rank's boxes.
pub struct Landing<'t> {
    boxes: Vec<DeviceSpan>,
    stream: &'t dyn Stream,
    /// For what comes in pieces; none before the first.
    pieces: Option<Pieces<'t>>,
    /// Why some of it has not come.
    failure: Lock<Option<DeviceError>>,
}

impl<'t> Landing<'t> {
    /// The memory of each box, as long as that needs it, which is written by work on a stream.
    pub fn new(boxes: Vec<DeviceSpan>, stream: &'t dyn Stream) -> Landing<'t> {
        Landing { boxes, stream, pieces: None, failure: Lock::default() }
    }

    /// The copy of some bytes of a part of a box from pinned memory, where they begin at `packed`.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if the part lies outside of the memory of its box.
    pub fn copy(&self, number: u32, part: &Strides, bytes: Range<usize>, packed: usize) -> device::Result<RowCopy> {
        let outside = DeviceError::Range { offset: u64::from(number), bytes: 0, reason: "there is no such box" };
        let rows = rows_in(self.boxes.get(number as usize).ok_or(outside)?, part)?;
        Ok(RowCopy { rows, at: bytes.start as u64, bytes: bytes.len() as u64, packed: packed as u64 })
    }

    /// Pinned memories for one thread, of this many bytes each.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn lane(&self, bytes: u64) -> device::Result<Lane<'t>> {
        Ok(Lane { now: self.stream.staging(bytes)?, other: self.stream.staging(bytes)? })
    }

    /// Puts some bytes of a part of a box where they go; an error is told by [`Landing::finish`].
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

    /// The device has failed a thread.
    pub fn fail(&self, error: DeviceError) {
        self.failure.lock().get_or_insert(error);
    }

    /// Has it failed one?
    pub fn failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// The first failure, if there is one.
    pub fn failure(&self) -> Option<DeviceError> {
        self.failure.lock().clone()
    }

    /// Waits until all is there.
    ///
    /// # Errors
    /// What the device has said first.
    pub fn finish(mut self) -> device::Result<()> {
        let rest = self.pieces.take().map_or(Ok(()), |mut pieces| {
            pieces.send()?;
            pieces.lane.finish()
        });
        self.failure.into_inner().map_or(rest, Err)
    }
}

/// Two pinned memories of one thread.
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

    /// Has the device bring it to its places; the other memory is filled next.
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

/// What has come in pieces and was not sent on.
struct Pieces<'t> {
    lane: Lane<'t>,
    /// Bytes of the memory in hand.
    used: usize,
    copies: Vec<RowCopy>,
}

impl Pieces<'_> {
    fn send(&mut self) -> device::Result<()> {
        self.used = 0;
        self.lane.send(&std::mem::take(&mut self.copies))
    }
}
