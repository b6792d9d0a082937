//! What captures and offloading use of the caches: their device, a part of their memory, their turns at the link, and their pinned memory.
#![forbid(unsafe_code)]

use super::burst::Burst;
use super::bursts::Call;
use super::shared::{Caches, PATIENCE, Shared};
use super::steps::CallKind;
use crate::base::units::PAGE;
use crate::cache::{Admission, Piece, Tier};
use crate::config::PinOrder;
use crate::device::{Device, DeviceError, DeviceSpan};
use crate::segment::SlotMut;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The smallest amount that is worth lending.
const LEAST: u64 = 1 << 20;

/// A hold on the caches' memory and turns, even after the end of their threads.
#[derive(Clone)]
pub struct CacheHandle(pub(super) Arc<Shared>);

/// A part of the GPU cache that holds nothing else. Dropping it gives the memory back.
pub(in crate::transfer) struct Lent {
    shared: Arc<Shared>,
    shard: u64,
    /// Its parts.
    pub spans: Vec<DeviceSpan>,
}

impl Caches {
    pub(crate) fn handle(&self) -> CacheHandle {
        CacheHandle(self.shared.clone())
    }

    /// Bytes of the GPU cache, once it is mapped.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.shared.range.bytes()
    }
}

impl CacheHandle {
    /// Would a copy of this many bytes fit into the GPU cache now, without waiting for anything?
    pub fn has_room_at_once(&self, bytes: u64) -> bool {
        self.0.settle_enqueued(false);
        let mut books = self.0.lock();
        let shard = books.next_shard();
        let has_room = matches!(books.cache.stage(shard, bytes, self.0.now()), Admission::Device(_));
        books.cache.unstage(shard);
        has_room
    }

    /// The PCI address of their device; empty if it has none.
    pub fn device_address(&self) -> String {
        self.0.device.info().bus_id.clone()
    }

    /// Notes that a capture with device regions is under way, until the returned value is dropped.
    pub(in crate::transfer) fn capturing(&self) -> Call<'_> {
        self.0.bursts.call(CallKind::Write)
    }

    /// Their device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// Lends a part of the GPU cache while the returned value lives: this many bytes, or as many as there are; `None` if that is next to
    /// nothing.
    ///
    /// # Blocking
    /// Until the cache is mapped, some milliseconds.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub(in crate::transfer) fn lend(&self, bytes: u64) -> Result<Option<Lent>, DeviceError> {
        let (shared, begun) = (&self.0, Instant::now());
        let mut books = shared.lock();
        while !books.cache.is_fully_mapped(Tier::Device)
            && begun.elapsed() < shared.config.room
            && !shared.is_stopping()
        {
            books = shared.wait_at_most(books, PATIENCE);
        }
        let shard = books.next_shard();
        let mut asked = bytes.min(shared.range.bytes()) / LEAST * LEAST;
        let pieces: Vec<Piece> = loop {
            if asked == 0 {
                return Ok(None);
            }
            match books.cache.stage(shard, asked, shared.now()) {
                Admission::Device(pieces) => break pieces,
                _ => books.cache.unstage(shard),
            }
            asked = asked / 2 / LEAST * LEAST;
        };
        drop(books);
        let mut lent = Lent { shared: shared.clone(), shard, spans: Vec::new() };
        for piece in pieces {
            lent.spans.push(shared.range.span(piece.offset, piece.bytes)?);
        }
        Ok(Some(lent))
    }

    /// Begins a transfer of `bytes` bytes, which keeps to the turns and the pace of flushes.
    pub(in crate::transfer) fn burst(&self, version: u64, bytes: u64) -> Burst {
        self.0.burst(version, bytes)
    }

    /// Does a call of the application wait for flushes?
    pub fn is_waited_for(&self) -> bool {
        self.0.bursts.waiting.is_any() || self.0.is_stopping()
    }

    /// Is all of a slot pinned?
    pub fn is_pinned(&self, slot: &SlotMut) -> bool {
        let place = pages_of(slot);
        self.0.registered.bytes(place.clone()) == place.end - place.start
    }

    /// Are slots pinned at all?
    pub fn may_pin(&self) -> bool {
        self.0.config.pin != PinOrder::Never
    }

    /// Pins a slot now; false if pinning does not work here.
    ///
    /// # Blocking
    /// For turns with the other ranks of the node, and about a second for 10 GiB.
    pub fn pin(&self, slot: &SlotMut) -> bool {
        self.may_pin() && super::preparing::pin(&self.0, pages_of(slot), &mut self.0.config.pin.clone())
    }
}

/// The pages of a slot, as offsets in the segment's data area.
fn pages_of(slot: &SlotMut) -> Range<u64> {
    slot.offset()..slot.offset() + (slot.len() as u64).next_multiple_of(PAGE)
}

impl Drop for Lent {
    fn drop(&mut self) {
        // A forked child must not change the memory, and the lock may be held by a thread that does not exist in the child.
        if self.shared.process != std::process::id() {
            return;
        }
        let mut books = self.shared.lock();
        books.cache.unstage(self.shard);
        self.shared.changed(books);
    }
}
