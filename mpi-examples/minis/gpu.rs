//! A GPU as a machine: `kernels.cu`, compiled at run time, on a stream that the copies of Bivouac are ordered with.
#![allow(unsafe_code)] // Launching a kernel is unsafe: the compiler cannot see what it does.

use super::super::card::{Card, failed};
use super::super::kernels::{Kernel, Numbers};
use super::{Machine, Result};
use bivouac::device::{Device, DeviceSpan, Stream};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;

/// The kernels.
pub const KERNELS: &str = include_str!("kernels.cu");
/// Threads of a block, as the kernels' launch bounds have it.
const THREADS: u64 = 256;
/// Arrays among the parameters.
const ARRAYS: usize = 6;

/// One GPU, a stream of it, and the kernels.
pub struct Gpu {
    device: Arc<dyn Device>,
    launches: Arc<CudaStream>,
    stream: Arc<dyn Stream>,
    kernels: Vec<CudaFunction>,
}

impl Gpu {
    /// The GPU of the node's rank number `local_rank`.
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open(local_rank: usize) -> Result<Gpu> {
        let card = Card::open(KERNELS, local_rank)?;
        let kernels: Result<Vec<_>> = Kernel::ALL.iter().map(|kernel| card.kernel(&kernel.name())).collect();
        let Card { device, launches, stream, .. } = card;
        Ok(Gpu { kernels: kernels?, device: Arc::new(device), launches, stream })
    }
}

impl Machine for Gpu {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn launch(&self, kernel: Kernel, arrays: &[&DeviceSpan], numbers: Numbers) -> Result<()> {
        let mut addresses = [0u64; ARRAYS];
        addresses.iter_mut().zip(arrays).for_each(|(address, span)| *address = span.address());
        if let (Kernel::Dot, [one, sums]) = (kernel, arrays) {
            addresses = [one.address(), one.address(), sums.address(), 0, 0, 0];
        }
        let Numbers { items, at, width, height, step, value } = numbers;
        let mut launch = self.launches.launch_builder(&self.kernels[kernel as usize]);
        addresses.iter().for_each(|address| _ = launch.arg(address));
        launch.arg(&items).arg(&at).arg(&width).arg(&height).arg(&step).arg(&value);
        let grid_dim = (items.div_ceil(THREADS) as u32, 1, 1);
        let shape = LaunchConfig { grid_dim, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments are those of every kernel in `kernels.cu`, in their order. The spans are live allocations of this device, of which a
        // kernel uses as much as the numbers say; `apps.rs` makes both, and the same kernels with bounds that are checked run in its tests.
        let launched = unsafe { launch.launch(shape) };
        launched.map(|_| ()).map_err(|error| failed(self.device.info().ordinal, "cuLaunchKernel", error))
    }
}
