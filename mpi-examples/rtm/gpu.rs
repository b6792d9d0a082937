//! A GPU as a machine: `wave.cu`, compiled at run time, on a stream with which Bivouac's copies are ordered.
#![allow(unsafe_code)] // Launching a kernel is unsafe: the compiler cannot see what it does.

use super::super::card::{Card, failed};
use super::super::model::{SURFACE_ROW, Shape};
use super::{Machine, Medium, Result};
use bivouac::device::{Device, DeviceSpan, Stream};
use cudarc::driver::{CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use std::sync::Arc;

/// The kernels.
pub const WAVE: &str = include_str!("wave.cu");
/// Threads of a block along a row of a field, and across rows: a warp reads 128 bytes of a row at a time.
const TILE: (u32, u32) = (32, 8);

/// One GPU, one of its streams, and the kernels.
pub struct Gpu {
    shape: Shape,
    device: Arc<dyn Device>,
    launches: Arc<CudaStream>,
    stream: Arc<dyn Stream>,
    kernels: Kernels,
}

struct Kernels {
    step: CudaFunction,
    add_source: CudaFunction,
    record: CudaFunction,
    inject: CudaFunction,
    correlate: CudaFunction,
}

impl Gpu {
    /// The GPU of the node's rank number `local_rank`, which computes on fields of that shape.
    ///
    /// # Errors
    /// The errors of [`Card::open`].
    pub fn open(shape: Shape, local_rank: usize) -> Result<Gpu> {
        let card = Card::open(WAVE, local_rank)?;
        let kernels = Kernels::load(&card)?;
        let Card { device, launches, stream, .. } = card;
        Ok(Gpu { shape, device: Arc::new(device), launches, stream, kernels })
    }

    fn launched<T>(&self, outcome: std::result::Result<T, DriverError>) -> Result<()> {
        outcome.map(|_| ()).map_err(|error| failed(self.device.info().ordinal, "cuLaunchKernel", error))
    }

    /// Index of the first receiver's cell, and how many receivers there are.
    fn receivers(&self) -> (i64, i32) {
        (self.shape.index(0, SURFACE_ROW) as i64, self.shape.grid.nx as i32)
    }
}

impl Kernels {
    fn load(card: &Card) -> Result<Kernels> {
        Ok(Kernels {
            step: card.kernel("rtm_step")?,
            add_source: card.kernel("rtm_add_source")?,
            record: card.kernel("rtm_record")?,
            inject: card.kernel("rtm_inject")?,
            correlate: card.kernel("rtm_correlate")?,
        })
    }
}

/// A thread for each cell of a rectangle.
fn over(width: usize, height: usize) -> LaunchConfig {
    let grid_dim = ((width as u32).div_ceil(TILE.0), (height as u32).div_ceil(TILE.1), 1);
    LaunchConfig { grid_dim, block_dim: (TILE.0, TILE.1, 1), shared_mem_bytes: 0 }
}

/// A thread for each of `count`.
fn along(count: i32) -> LaunchConfig {
    LaunchConfig { grid_dim: ((count as u32).div_ceil(256), 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}

/// Every span that a kernel receives is a live allocation of this device with the length that the kernel works on: fields
/// have `shape.cells()` elements, `traces` a row for each step and one more at both ends, and the image one element per
/// cell of the ground. They stay allocated until the stream is done: the driver frees memory only then.
impl Machine for Gpu {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn step(&self, medium: &Medium, now: &DeviceSpan, before: &DeviceSpan) -> Result<()> {
        let (width, height) = (self.shape.width as i32, self.shape.height as i32);
        let spans = [&medium.courant, &medium.sponge, now, before].map(DeviceSpan::address);
        let mut launch = self.launches.launch_builder(&self.kernels.step);
        spans.iter().for_each(|address| _ = launch.arg(address));
        launch.arg(&width).arg(&height);
        // SAFETY: the arguments are those of `rtm_step`, in its order; it stays within the shape.
        self.launched(unsafe { launch.launch(over(self.shape.width, self.shape.height)) })
    }

    fn add_source(&self, medium: &Medium, field: &DeviceSpan, cell: usize, amplitude: f32) -> Result<()> {
        let (courant, field, cell) = (medium.courant.address(), field.address(), cell as i64);
        let mut launch = self.launches.launch_builder(&self.kernels.add_source);
        launch.arg(&courant).arg(&field).arg(&cell).arg(&amplitude);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments are those of `rtm_add_source`, in its order; the cell is one of the field.
        self.launched(unsafe { launch.launch(one) })
    }

    fn record(&self, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()> {
        let ((first, count), step) = (self.receivers(), step as i32);
        let (field, traces) = (field.address(), traces.address());
        let mut launch = self.launches.launch_builder(&self.kernels.record);
        launch.arg(&field).arg(&traces).arg(&first).arg(&count).arg(&step);
        // SAFETY: the arguments are those of `rtm_record`, in its order; `traces` has a row for the step.
        self.launched(unsafe { launch.launch(along(count)) })
    }

    fn inject(&self, medium: &Medium, field: &DeviceSpan, traces: &DeviceSpan, step: usize) -> Result<()> {
        let ((first, count), step) = (self.receivers(), step as i32);
        let spans = [&medium.courant, field, traces].map(DeviceSpan::address);
        let mut launch = self.launches.launch_builder(&self.kernels.inject);
        spans.iter().for_each(|address| _ = launch.arg(address));
        launch.arg(&first).arg(&count).arg(&step);
        // SAFETY: the arguments are those of `rtm_inject`, in its order; `traces` has rows around the step.
        self.launched(unsafe { launch.launch(along(count)) })
    }

    fn correlate(&self, source: &DeviceSpan, receivers: &DeviceSpan, image: &DeviceSpan) -> Result<()> {
        let shape = &self.shape;
        let first = shape.index(0, 0) as i64;
        let (width, nx, nz) = (shape.width as i32, shape.grid.nx as i32, shape.grid.nz as i32);
        let spans = [source, receivers, image].map(DeviceSpan::address);
        let mut launch = self.launches.launch_builder(&self.kernels.correlate);
        spans.iter().for_each(|address| _ = launch.arg(address));
        launch.arg(&first).arg(&width).arg(&nx).arg(&nz);
        // SAFETY: the arguments are those of `rtm_correlate`, in its order; the ground lies within the shape.
        self.launched(unsafe { launch.launch(over(shape.grid.nx, shape.grid.nz)) })
    }
}
