//! A checkpoint that takes regions in device memory.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::error::Result;
use super::pending::Pending;
use crate::decomposition::Decomposition;
use crate::device::{DeviceSpan, Stream};
use crate::region::{self, Element};
use crate::transfer::checkpoint::OnDevice;
use crate::transfer::history::Caches;
use crate::transfer::offload::{Offload, OffloadError};
use std::ops::{Deref, DerefMut};

/// A checkpoint that takes regions in device memory in addition to everything that a [`CheckpointBuilder`] takes. It dereferences to a
/// [`CheckpointBuilder`], and comes from [`CheckpointBuilder::with_device`] or [`CheckpointBuilder::with_offload`].
pub struct DeviceCheckpointBuilder<'a> {
    host: CheckpointBuilder<'a>,
    gpu: Gpu<'a>,
}

/// A device whose memory is saved and loaded.
#[derive(Clone, Copy)]
pub(super) struct Gpu<'a> {
    pub way: Way<'a>,
    /// The application's stream. The regions are complete once its enqueued work has run.
    pub stream: &'a dyn Stream,
}

/// How device regions leave the program's memory.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    Copied(&'a Caches),
    Marked(&'a Offload),
}

impl Gpu<'_> {
    /// Do both describe the same way of saving, on the same stream?
    pub fn is(&self, other: &Gpu<'_>) -> bool {
        let is_one_way = match (self.way, other.way) {
            (Way::Copied(one), Way::Copied(other)) => std::ptr::eq(one, other),
            (Way::Marked(one), Way::Marked(other)) => std::ptr::eq(one, other),
            (Way::Copied(_), Way::Marked(_)) | (Way::Marked(_), Way::Copied(_)) => false,
        };
        is_one_way && std::ptr::addr_eq(self.stream, other.stream)
    }
}

impl<'a> Deref for DeviceCheckpointBuilder<'a> {
    type Target = CheckpointBuilder<'a>;

    fn deref(&self) -> &CheckpointBuilder<'a> {
        &self.host
    }
}

impl<'a> DerefMut for DeviceCheckpointBuilder<'a> {
    fn deref_mut(&mut self) -> &mut CheckpointBuilder<'a> {
        &mut self.host
    }
}

impl<'a> DeviceCheckpointBuilder<'a> {
    pub(super) fn new(host: CheckpointBuilder<'a>, gpu: Gpu<'a>) -> Self {
        DeviceCheckpointBuilder { host, gpu }
    }

    /// Adds device memory that holds elements of type `T` as region `name`. The region is recorded like a slice: it can be loaded into host
    /// memory and into device memory.
    ///
    /// # Errors
    /// [`Error::Region`](crate::Error::Region): the name is unusable or is already in use, or the memory ends inside an element.
    pub fn save_device<T: Element>(&mut self, name: &str, span: &'a DeviceSpan) -> Result<()> {
        let saved = region::device_array::<T>(name, span, None)?;
        self.host.add(saved)
    }

    /// Adds a region in device memory with the extents of its dimensions, slowest first. Otherwise the same as
    /// [`DeviceCheckpointBuilder::save_device`].
    ///
    /// # Errors
    /// The errors of [`DeviceCheckpointBuilder::save_device`], and [`Error::Region`](crate::Error::Region) if the shape does not fit the
    /// memory.
    pub fn save_device_shaped<T: Element>(&mut self, name: &str, span: &'a DeviceSpan, shape: &[u64]) -> Result<()> {
        let saved = region::device_array::<T>(name, span, Some(shape))?;
        self.host.add(saved)
    }

    /// Adds an array whose box is in device memory, with elements of type `T`. An array with ghost cells around a box, or with several
    /// boxes, is copied, not marked ([`CheckpointBuilder::with_offload`]). The region is recorded like a slice: it can be loaded into host
    /// memory and into device memory. Otherwise the same as [`CheckpointBuilder::save_on`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, grid: &bivouac::Decomposition, caches: &bivouac::Caches,
    /// #     stream: &dyn bivouac::device::Stream, t: &bivouac::device::DeviceSpan, step: u64) -> bivouac::Result<()> {
    /// let mut ckpt = session.begin_checkpoint("heat", step)?.with_device(caches, stream);
    /// ckpt.save_device_on::<f64>("temperature", grid, t)?;
    /// ckpt.shared("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks save the region, on the same decomposition; some may pass a slice, and others device memory.
    ///
    /// # Errors
    /// The errors of [`CheckpointBuilder::save_on`], and [`Error::Region`](crate::Error::Region) if the memory ends inside an element.
    pub fn save_device_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &'a DeviceSpan) -> Result<()> {
        match on.boxes() {
            0 if memory.bytes() == 0 => self.save_device_boxes_on::<T>(name, on, &[]),
            _ => self.save_device_boxes_on::<T>(name, on, &[memory]),
        }
    }

    /// Adds an array of which this rank owns any number of boxes. `memory` has the device memory of each box, in the order in which the
    /// boxes were described. Otherwise the same as [`DeviceCheckpointBuilder::save_device_on`].
    ///
    /// # Collective
    /// Local.
    ///
    /// # Errors
    /// See [`DeviceCheckpointBuilder::save_device_on`].
    pub fn save_device_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: &[&'a DeviceSpan],
    ) -> Result<()> {
        region::check_element::<T>(name)?;
        self.host.save_spans_on(name, on, T::TYPE, memory)
    }

    /// Captures the checkpoint. Its device regions are saved in the state that they have once the work enqueued on the stream has run. They
    /// move to node memory after this call has returned, and this rank votes only after that. Otherwise the same as
    /// [`CheckpointBuilder::capture`].
    ///
    /// With an [`Offload`], kernels of other devices that write to these regions must have ended before the call, and so must kernels on
    /// other streams for which this stream does not wait. Until the next capture, every write to the regions must be declared, on every
    /// stream.
    ///
    /// # Collective
    /// All ranks, each with its own kind of builder; the call does not wait for the other ranks.
    ///
    /// # Blocking
    /// For the work on the stream and a copy inside the device. If the GPU cache has no room, for the transfer to node memory. For marked
    /// regions, the call does not wait for the device, but waits for the previous checkpoint if that one was marked and has not been sent.
    /// Otherwise the same as for [`CheckpointBuilder::capture`]. When the call returns, the application may overwrite the regions, on any
    /// stream.
    ///
    /// # Errors
    /// The errors of [`CheckpointBuilder::capture`]; [`Error::Capture`](crate::Error::Capture) if the device fails;
    /// [`Error::Offload`](crate::Error::Offload) if regions are marked and the stream is being captured into a CUDA graph.
    /// [`Pending::wait`] reports, on all ranks, any failure after this call has returned, including one that is due to an undeclared write.
    pub fn capture(self) -> Result<Pending> {
        let DeviceCheckpointBuilder { host, gpu: Gpu { way, stream } } = self;
        match way {
            Way::Copied(caches) => host.take(Some(OnDevice { caches: &caches.handle(), stream, offload: None })),
            Way::Marked(offload) => {
                if let Ok(true) = stream.is_recording() {
                    let error = OffloadError::Recording;
                    host.refuse(&error.to_string());
                    return Err(error.into());
                }
                host.take(Some(OnDevice { caches: offload.handle(), stream, offload: Some(offload) }))
            }
        }
    }
}
