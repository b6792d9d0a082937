//! What of the node segment is registered with the device, and what is to be: the leases of histories as they come, and slots of
//! checkpoints once the device has written into them, because the next checkpoint will mostly lie where an earlier one did.
#![forbid(unsafe_code)]

use super::Shared;
use crate::base::units::{MIB, PAGE};
use crate::config::PinOrder;
use crate::device::{Device, DeviceError, Pinned};
use crate::segment::{Pins, Segment, SlotMut};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

/// Slots with fewer bytes from the device are not worth a registration.
const SLOT_BYTES_MIN: u64 = MIB;

/// In offsets of the segment's data area.
#[derive(Default)]
pub(super) struct Registered {
    book: Mutex<Book>,
    /// Who pins, to be woken.
    pub(super) worker: OnceLock<Thread>,
}

#[derive(Default)]
struct Book {
    pins: Pins,
    pinned: Vec<Box<dyn Pinned>>,
    /// Slots that are to be pinned, oldest first.
    slots: VecDeque<Range<u64>>,
    /// Nothing more can be pinned here.
    is_given_up: bool,
}

impl Registered {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of a range is still to be pinned, part by part.
    pub(super) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.lock().pins.missing(range)
    }

    /// How many bytes of a range are pinned.
    pub(super) fn bytes(&self, range: Range<u64>) -> u64 {
        self.lock().pins.bytes(range)
    }

    /// A slot that is to be pinned.
    pub(super) fn next_slot(&self) -> Option<Range<u64>> {
        self.lock().slots.pop_front()
    }

    /// Nothing more can be pinned here: slots wait for nobody.
    pub(super) fn give_up(&self) {
        let mut book = self.lock();
        book.is_given_up = true;
        book.slots.clear();
    }

    /// Pins one missing part. Memory that this rank has given back meanwhile is left alone.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn pin(&self, part: Range<u64>, segment: &Segment, device: &dyn Device) -> Result<(), DeviceError> {
        let Some(memory) = segment.host_range(part.start, part.end - part.start) else { return Ok(()) };
        let pinned = device.pin(&memory)?;
        let mut book = self.lock();
        book.pins.mark(part);
        book.pinned.push(pinned);
        Ok(())
    }
}

impl Shared {
    /// A line that is not pinned as a whole.
    pub(super) fn unpinned_line(&self) -> Option<Range<u64>> {
        let is_unpinned = |place: &Range<u64>| self.registered.bytes(place.clone()) < place.end - place.start;
        self.lines.places().into_iter().find(is_unpinned)
    }

    /// Bytes of all lines, and how many of them are pinned.
    pub(super) fn host_bytes(&self) -> (u64, u64) {
        let places = self.lines.places();
        let all = places.iter().map(|place| place.end - place.start).sum();
        (all, places.into_iter().map(|place| self.registered.bytes(place)).sum())
    }

    /// So many bytes went from the device into a slot, or will: it is pinned behind everybody's back, for the next time.
    pub(super) fn pin_soon(&self, slot: &SlotMut, bytes: u64) {
        if bytes < SLOT_BYTES_MIN || self.config.pin == PinOrder::Never {
            return;
        }
        let place = slot.offset()..slot.offset() + slot.len() as u64 / PAGE * PAGE;
        let mut book = self.registered.lock();
        if book.is_given_up {
            return;
        }
        if book.pins.bytes(place.clone()) < place.end - place.start && !book.slots.contains(&place) {
            book.slots.push_back(place);
            drop(book);
            self.registered.worker.get().into_iter().for_each(Thread::unpark);
        }
    }
}
