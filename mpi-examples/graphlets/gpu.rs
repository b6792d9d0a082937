//! A GPU as a machine: `count.cu`, compiled at run time, on a stream with which Bivouac's copies are ordered.
#![allow(unsafe_code)] // Launching a kernel is unsafe: the compiler cannot see what it does.

use super::super::card::{Card, failed};
use super::super::subgraphs::{Overflow, Problem};
use super::{Machine, zeros};
use bivouac::device::{Device, DeviceError, DeviceSpan, Stream};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// The kernel.
pub const COUNT: &str = include_str!("count.cu");
/// Threads of a block, as the kernel's launch bounds have it.
const THREADS: u32 = 128;

/// One GPU, one of its streams, the kernel, and what it reads and writes.
pub struct Gpu {
    device: Arc<dyn Device>,
    launches: Arc<CudaStream>,
    stream: Arc<dyn Stream>,
    kernel: CudaFunction,
    size: i32,
    width: usize,
    offsets: DeviceSpan,
    neighbours: DeviceSpan,
    orbits: DeviceSpan,
    counters: DeviceSpan,
    /// Index plus one of a counter that has exceeded its 32 bits.
    overflowed: DeviceSpan,
}

impl Gpu {
    /// The GPU of the node's rank number `local_rank`, with the graph in its memory.
    ///
    /// # Errors
    /// The errors of [`Card::open`], and that there is no room for the graph and the counters.
    pub fn open(problem: &Problem, local_rank: usize) -> Result<Gpu, DeviceError> {
        let card = Card::open(COUNT, local_rank)?;
        let kernel = card.kernel("graphlets_count")?;
        let Card { device, launches, stream, .. } = card;
        let upload = |bytes: &[u8]| -> Result<DeviceSpan, DeviceError> {
            let span = device.allocate(bytes.len() as u64)?;
            stream.upload(&[(bytes, span.clone())], None)?;
            Ok(span)
        };
        Ok(Gpu {
            size: problem.table.size as i32,
            width: problem.table.width(),
            offsets: upload(bytemuck::cast_slice(&problem.graph.offsets))?,
            neighbours: upload(bytemuck::cast_slice(&problem.graph.neighbours))?,
            orbits: upload(bytemuck::cast_slice(&problem.table.rows))?,
            counters: zeros(&device, &*stream, problem.counters())?,
            overflowed: upload(&[0; 8])?,
            device: Arc::new(device),
            launches,
            stream,
            kernel,
        })
    }
}

impl Machine for Gpu {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn counters(&self) -> &DeviceSpan {
        &self.counters
    }

    fn count(&mut self, roots: Range<u32>) -> Result<(), Box<dyn Error>> {
        let (first, count, width) = (roots.start, roots.len() as u32, self.width as i32);
        if count == 0 {
            return Ok(());
        }
        let spans = [&self.offsets, &self.neighbours, &self.orbits, &self.counters, &self.overflowed];
        let spans = spans.map(DeviceSpan::address);
        let mut launch = self.launches.launch_builder(&self.kernel);
        spans.iter().for_each(|address| _ = launch.arg(address));
        launch.arg(&first).arg(&count).arg(&self.size).arg(&width);
        let grid_dim = (count.div_ceil(THREADS), 1, 1);
        let shape = LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments are those of `graphlets_count`, in its order. The spans are live allocations of this device
        // that hold the whole graph, the table and all counters of the problem, which the roots belong to.
        let launched = unsafe { launch.launch(shape) };
        launched.map_err(|error| failed(self.device.info().ordinal, "cuLaunchKernel", error))?;
        // On the kernel's stream: it waits for the kernel.
        let mut overflowed = [0u64];
        let bytes = bytemuck::cast_slice_mut(&mut overflowed);
        self.stream.download(&mut [(self.overflowed.clone(), bytes)], None)?;
        match overflowed[0] {
            0 => Ok(()),
            index => Err(Overflow::of(index as usize - 1, self.width).into()),
        }
    }
}
