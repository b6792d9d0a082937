//! What counts, and where the counters are: on this processor, on a GPU, or on its host twin.
#![deny(unsafe_code)] // Its child `gpu` launches a kernel.

#[cfg(feature = "cuda")]
#[path = "gpu.rs"]
pub mod gpu;
#[path = "twin.rs"]
pub mod twin;

use super::subgraphs::Problem;
use bivouac::device::{Device, DeviceError, DeviceSpan, Stream};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Counters are copied to and from a device this many at a time, so that host memory never holds all of them.
const PIECE: usize = 1 << 22;

/// A device whose memory holds the counters.
pub trait Machine {
    /// The device, for the caches.
    fn device(&self) -> &Arc<dyn Device>;

    /// The stream that copies of the counters are to be ordered on.
    fn stream(&self) -> &dyn Stream;

    /// The counters.
    fn counters(&self) -> &DeviceSpan;

    /// Counts the subgraphs of those roots, and waits for the end.
    ///
    /// # Errors
    /// [`Overflow`](super::subgraphs::Overflow), or what the device says.
    fn count(&mut self, roots: Range<u32>) -> Result<(), Box<dyn Error>>;
}

/// The counters of all vertices, wherever they are.
pub enum Counters {
    /// In host memory.
    Host {
        /// What is counted.
        problem: Arc<Problem>,
        /// The counters.
        values: Vec<u32>,
    },
    /// On a device.
    Device(Box<dyn Machine>),
}

impl Counters {
    /// In host memory, all zero.
    pub fn host(problem: &Arc<Problem>) -> Counters {
        Counters::Host { problem: problem.clone(), values: vec![0; problem.counters()] }
    }

    /// Counts the subgraphs of those roots.
    ///
    /// # Errors
    /// [`Overflow`](super::subgraphs::Overflow), or what the device says.
    pub fn count(&mut self, roots: Range<u32>) -> Result<(), Box<dyn Error>> {
        match self {
            Counters::Host { problem, values } => Ok(problem.count(roots, values)?),
            Counters::Device(machine) => machine.count(roots),
        }
    }

    /// Copies the counters, starting with `first`.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn read(&self, first: usize, into: &mut [u32]) -> Result<(), DeviceError> {
        match self {
            Counters::Host { values, .. } => into.copy_from_slice(&values[first..first + into.len()]),
            Counters::Device(machine) => {
                let span = machine.counters().part(4 * first as u64, 4 * into.len() as u64)?;
                machine.stream().download(&mut [(span, bytemuck::cast_slice_mut(into))], None)?;
            }
        }
        Ok(())
    }

    /// A description of what computes.
    pub fn place(&self) -> String {
        match self {
            Counters::Host { .. } => "host memory".into(),
            Counters::Device(machine) => machine.device().info().name.clone(),
        }
    }
}

/// Device memory for this many counters, all zero.
///
/// # Errors
/// Any error that the device reports.
pub fn zeros(device: &dyn Device, stream: &dyn Stream, count: usize) -> Result<DeviceSpan, DeviceError> {
    let span = device.allocate(4 * count as u64)?;
    let piece = vec![0u32; count.min(PIECE)];
    for first in (0..count).step_by(PIECE) {
        let values = &piece[..PIECE.min(count - first)];
        let part = span.part(4 * first as u64, 4 * values.len() as u64)?;
        stream.upload(&[(bytemuck::cast_slice(values), part)], None)?;
    }
    Ok(span)
}
