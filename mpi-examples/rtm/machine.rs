//! The compute device: a GPU or its host twin, with the same few kernels.
#![deny(unsafe_code)] // Its child `gpu` launches kernels.

#[cfg(feature = "cuda")]
#[path = "gpu.rs"]
pub mod gpu;
#[path = "twin.rs"]
pub mod twin;

use super::model::{Ground, Survey};
use bivouac::device::{Device, DeviceError, DeviceSpan, Stream};
use std::sync::Arc;

/// The result of everything that a machine does.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// The factors of the wave equation, in device memory.
#[derive(Debug)]
pub struct Medium {
    /// (velocity · step / cell)² of each cell.
    pub courant: DeviceSpan,
    /// Damping of each column, then of each row.
    pub sponge: DeviceSpan,
}

/// Memory and kernels of one device. Kernels run in the order of the calls. Copies enqueued on the stream run after the
/// kernels called before them, and must have finished before the next kernel is called.
///
/// # Blocking
/// On a GPU, a call only enqueues its kernel on the stream; on the twin, the kernel has finished when the call returns.
///
/// # Errors
/// Any error that the device reports, possibly from earlier work.
pub trait Machine {
    /// The device, for the caches.
    fn device(&self) -> &Arc<dyn Device>;

    /// The stream on which the kernels run, for copies that are ordered with them.
    fn stream(&self) -> &dyn Stream;

    /// Replaces the field one step before `now` with the field one step after it.
    fn step(&self, medium: &Medium, now: &DeviceSpan, before: &DeviceSpan) -> Result<()>;

    /// Adds the source's amplitude to a cell.
    fn add_source(&self, medium: &Medium, field: &DeviceSpan, cell: usize, amplitude: f32) -> Result<()>;

    /// Records what the receivers hear after `step` steps.
    fn record(&self, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()>;

    /// Makes the receivers send what they heard around `step`, which is neither the first nor the last row of `traces`.
    fn inject(&self, medium: &Medium, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()>;

    /// Adds the product of two fields to the image.
    fn correlate(&self, source: &DeviceSpan, receivers: &DeviceSpan, image: &DeviceSpan) -> Result<()>;

    /// The ground as the kernels need it.
    fn medium(&self, survey: &Survey, ground: &Ground) -> Result<Medium> {
        let courant = self.upload(&ground.courant(&survey.shape, survey.seconds_per_step()))?;
        let sponge = self.upload(&survey.shape.sponge(survey.seconds_per_step()))?;
        Ok(Medium { courant, sponge })
    }

    /// Device memory that holds these values.
    fn upload(&self, values: &[f32]) -> Result<DeviceSpan> {
        let span = self.device().allocate(4 * values.len() as u64)?;
        self.stream().upload(&[(bytemuck::cast_slice(values), span.clone())], None)?;
        Ok(span)
    }
}
