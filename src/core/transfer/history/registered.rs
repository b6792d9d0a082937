//! The part of the node segment that is registered with the device, and the part that is to be registered: the leases of histories as they
//! arrive, and slots of checkpoints once the device has written into them, because the next checkpoint is usually placed where an earlier
//! one was.
#![forbid(unsafe_code)]

use crate::base::sync::{Guard, Lock};
use crate::device::{Device, DeviceError, Pinned};
use crate::segment::{Pins, Segment};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;
use std::thread::Thread;

/// The registered ranges of the node segment, as offsets in its data area.
#[derive(Default)]
pub(super) struct Registered {
    book: Lock<Book>,
    /// The thread that pins, so that it can be woken.
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
    fn lock(&self) -> Guard<'_, Book> {
        self.book.lock()
    }

    /// The parts of a range that are still to be pinned.
    pub(super) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.lock().pins.missing(range)
    }

    /// How many bytes of a range are pinned.
    pub(super) fn bytes(&self, range: Range<u64>) -> u64 {
        self.lock().pins.bytes(range)
    }

    /// Takes the next slot that is to be pinned.
    pub(super) fn next_slot(&self) -> Option<Range<u64>> {
        self.lock().slots.pop_front()
    }

    /// Nothing more can be pinned here: clears the queue of slots.
    pub(super) fn give_up(&self) {
        let mut book = self.lock();
        book.is_given_up = true;
        book.slots.clear();
    }

    /// Pins one missing part. Memory that this rank has given back meanwhile is left alone.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub(super) fn pin(&self, part: Range<u64>, segment: &Segment, device: &dyn Device) -> Result<(), DeviceError> {
        let Some(memory) = segment.host_range(part.start, part.end - part.start) else { return Ok(()) };
        let pinned = device.pin(&memory)?;
        let mut book = self.lock();
        book.pins.mark(part);
        book.pinned.push(pinned);
        Ok(())
    }

    /// Queues a slot for pinning, for the next time the device writes into it.
    pub(super) fn pin_soon(&self, slot: Range<u64>) {
        let mut book = self.lock();
        if book.is_given_up {
            return;
        }
        if book.pins.bytes(slot.clone()) < slot.end - slot.start && !book.slots.contains(&slot) {
            book.slots.push_back(slot);
            drop(book);
            self.worker.get().into_iter().for_each(Thread::unpark);
        }
    }
}
