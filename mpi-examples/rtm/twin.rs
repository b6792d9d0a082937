//! The host twin as a machine.
#![forbid(unsafe_code)]

use super::super::model::Shape;
use super::super::stencil;
use super::{Machine, Medium, Result};
use bivouac::device::host::{HostDevice, HostModel};
use bivouac::device::{Device, DeviceError, DeviceSpan, Priority, Stream};
use std::sync::Arc;

/// A device in host memory, and one of its streams for copies.
pub struct Twin {
    shape: Shape,
    twin: Arc<HostDevice>,
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
}

impl Twin {
    /// A twin with this much memory, which computes on fields of that shape.
    ///
    /// # Errors
    /// The stream's thread could not be started.
    pub fn new(shape: Shape, memory_bytes: u64) -> Result<Twin> {
        let twin = Arc::new(HostDevice::new(HostModel { memory_bytes, ..HostModel::default() }));
        let stream = twin.stream(Priority::High)?;
        Ok(Twin { shape, device: twin.clone(), twin, stream })
    }

    /// Runs a kernel on spans, which it sees as slices of elements.
    fn compute(&self, spans: &[&DeviceSpan], kernel: impl FnOnce(&mut [&mut [f32]])) -> Result<()> {
        self.twin.compute(spans, |parts| {
            let slices: std::result::Result<Vec<&mut [f32]>, _> =
                parts.iter_mut().map(|bytes| bytemuck::try_cast_slice_mut(bytes)).collect();
            slices.map(|mut slices| kernel(&mut slices)).map_err(|error| DeviceError::Failed {
                ordinal: 0,
                call: "a kernel of the twin",
                reason: error.to_string(),
            })
        })?
    }
}

impl Machine for Twin {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn step(&self, medium: &Medium, now: &DeviceSpan, before: &DeviceSpan) -> Result<()> {
        self.compute(&[&medium.courant, &medium.sponge, now, before], |slices| {
            if let [courant, sponge, now, before] = slices {
                stencil::step(&self.shape, courant, sponge, now, before);
            }
        })
    }

    fn add_source(&self, medium: &Medium, field: &DeviceSpan, cell: usize, amplitude: f32) -> Result<()> {
        self.compute(&[&medium.courant, field], |slices| {
            if let [courant, field] = slices {
                stencil::add_source(courant, field, cell, amplitude);
            }
        })
    }

    fn record(&self, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()> {
        self.compute(&[field, traces], |slices| {
            if let [field, traces] = slices {
                stencil::record(&self.shape, field, traces, step);
            }
        })
    }

    fn inject(&self, medium: &Medium, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()> {
        self.compute(&[&medium.courant, field, traces], |slices| {
            if let [courant, field, traces] = slices {
                stencil::inject(&self.shape, courant, field, traces, step);
            }
        })
    }

    fn correlate(&self, source: &DeviceSpan, receivers: &DeviceSpan, image: &DeviceSpan) -> Result<()> {
        self.compute(&[source, receivers, image], |slices| {
            if let [source, receivers, image] = slices {
                stencil::correlate(&self.shape, source, receivers, image);
            }
        })
    }
}
