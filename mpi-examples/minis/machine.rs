//! The compute device: a GPU or its host twin. Both enqueue kernels on a stream and return.
#![deny(unsafe_code)] // Its child `gpu` launches kernels.

#[cfg(feature = "cuda")]
#[path = "gpu.rs"]
pub mod gpu;
#[cfg(feature = "cuda")]
#[path = "slow.rs"]
pub mod slow;
#[path = "twin.rs"]
pub mod twin;

use super::kernels::{Kernel, Numbers};
use bivouac::device::{Device, DeviceError, DeviceSpan, Stream};
use std::sync::Arc;

/// The result of everything that a machine does.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// Memory and kernels of one device, and a stream on which they run in the order of the calls.
pub trait Machine {
    /// The device, for the caches.
    fn device(&self) -> &Arc<dyn Device>;

    /// The stream.
    fn stream(&self) -> &dyn Stream;

    /// Enqueues a kernel, with its arrays in the order of its parameters.
    ///
    /// # Errors
    /// Any error that the device reports, possibly from earlier work.
    fn launch(&self, kernel: Kernel, arrays: &[&DeviceSpan], numbers: Numbers) -> Result<()>;

    /// Memory for `count` four-byte values, filled with noise up to `value`.
    ///
    /// # Errors
    /// No room, or any error that the device reports.
    fn filled(&self, count: u64, seed: u32, value: f32) -> Result<DeviceSpan> {
        let span = self.device().allocate(4 * count)?;
        let numbers = Numbers { items: count, step: seed, value, ..Numbers::default() };
        self.launch(Kernel::Fill, &[&span], numbers)?;
        Ok(span)
    }
}
