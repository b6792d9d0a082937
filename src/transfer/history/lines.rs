//! The node-memory tier of a cache: leases of the node segment, side by side in one numbering, and which parts of them are
//! pinned.
#![forbid(unsafe_code)]

use crate::cache::Piece;
use crate::device::{Device, DeviceError, Pinned};
use crate::segment::{Lease, LeasePart, LeaseView, PIN_CHUNK, Pins, Segment};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The leases by the offset of their first byte in the cache's numbering.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<BTreeMap<u64, Line>>,
}

struct Line {
    /// Before `lease`: a registration is taken back before its memory goes back to the node.
    pinned: Vec<Box<dyn Pinned>>,
    /// In offsets of the line.
    pins: Pins,
    lease: Lease,
}

impl Lines {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a lease; the answer is its offset. Lines never touch: a transfer that crosses from one lease into another is cut.
    pub(super) fn add(&self, lease: Lease) -> u64 {
        let mut lines = self.lock();
        let offset =
            lines.last_key_value().map_or(0, |(offset, line)| offset + line.lease.len() + crate::base::units::PAGE);
        lines.insert(offset, Line { pinned: Vec::new(), pins: Pins::default(), lease });
        offset
    }

    /// The first line that is not pinned as a whole.
    pub(super) fn first_unpinned(&self) -> Option<u64> {
        self.lock().iter().find(|(_, line)| line.pins.bytes() < line.lease.len()).map(|(offset, _)| *offset)
    }

    /// The parts of a line that are to be pinned, one by one.
    pub(super) fn unpinned(&self, offset: u64) -> Vec<std::ops::Range<u64>> {
        self.lock().get(&offset).map_or_else(Vec::new, |line| line.pins.missing(0..line.lease.len()))
    }

    /// Pins one such part.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn pin(
        &self,
        offset: u64,
        part: std::ops::Range<u64>,
        segment: &Segment,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        let start = self.lock().get(&offset).map(|line| line.lease.offset() + part.start);
        let range = start.and_then(|start| segment.host_range(start, part.end - part.start));
        let Some(range) = range else { return Ok(()) };
        let pinned = device.pin(&range)?;
        if let Some(line) = self.lock().get_mut(&offset) {
            line.pins.mark(part);
            line.pinned.push(pinned);
        }
        Ok(())
    }

    /// Lends a piece for writing, cut where a copy must not cross: at the ends of lines and of pinned parts.
    pub(super) fn lend(&self, piece: Piece) -> Option<Vec<LeasePart>> {
        self.cut(piece, |line, range| line.lease.lend(range))
    }

    /// The same for reading.
    pub(super) fn view(&self, piece: Piece) -> Option<Vec<LeaseView>> {
        self.cut(piece, |line, range| line.lease.view(range))
    }

    fn cut<T>(&self, piece: Piece, take: impl Fn(&Line, std::ops::Range<u64>) -> Option<T>) -> Option<Vec<T>> {
        let lines = self.lock();
        let mut parts = Vec::new();
        let mut at = piece.offset;
        while at < piece.end() {
            let (offset, line) = lines.range(..=at).next_back()?;
            let end = piece.end().min(offset + line.lease.len());
            if end <= at {
                return None;
            }
            for (mut range, is_pinned) in line.pins.split(at - offset..end - offset) {
                // What may be pinned while it is copied is cut where its registrations will end, too.
                while !is_pinned && range.start / PIN_CHUNK != (range.end - 1) / PIN_CHUNK {
                    let border = (range.start / PIN_CHUNK + 1) * PIN_CHUNK;
                    parts.push(take(line, range.start..border)?);
                    range.start = border;
                }
                parts.push(take(line, range)?);
            }
            at = end;
        }
        Some(parts)
    }

    /// Bytes of all lines, and how many of them are pinned.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let lines = self.lock();
        let sum = |of: fn(&Line) -> u64| lines.values().map(of).sum();
        (sum(|line| line.lease.len()), sum(|line| line.pins.bytes()))
    }
}
