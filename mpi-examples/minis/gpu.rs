//! A GPU as a machine: `kernels.cu`, compiled at run time, on a stream with which Bivouac's copies are ordered.
#![allow(unsafe_code)] // Launching a kernel is unsafe: the compiler cannot see what it does.

use super::super::card::{Card, failed};
use super::super::kernels::{Kernel, Numbers};
use super::slow::{Hold, SlowDevice};
use super::{Machine, Result};
use bivouac::device::cuda::CudaDevice;
use bivouac::device::{Device, DeviceSpan, Stream};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use std::time::Duration;

/// The kernels.
pub const KERNELS: &str = include_str!("kernels.cu");
/// Threads of a block, as the kernels' launch bounds have it.
const THREADS: u64 = 256;
/// Arrays among the parameters.
const ARRAYS: usize = 6;

/// One GPU, one of its streams, and the kernels.
pub struct Gpu {
    card: Arc<CudaDevice>,
    /// The same GPU, possibly with a slower link.
    device: Arc<dyn Device>,
    launches: Arc<CudaStream>,
    stream: Arc<dyn Stream>,
    kernels: Vec<CudaFunction>,
}

impl Gpu {
    /// The GPU of the node's rank number `local_rank`; with a link of this many MiB per second, if that is slower than its
    /// own.
    ///
    /// # Errors
    /// The errors of [`Card::open`].
    pub fn open(local_rank: usize, link: Option<u32>) -> Result<Gpu> {
        let card = Card::open(KERNELS, local_rank)?;
        let kernels: Result<Vec<_>> = Kernel::ALL.iter().map(|kernel| card.kernel(&kernel.name())).collect();
        let hold = card.kernel("hold")?;
        let Card { device, launches, mut stream, .. } = card;
        let (kernels, device) = (kernels?, Arc::new(device));
        let Some(link) = link else {
            return Ok(Gpu { kernels, card: device.clone(), device, launches, stream });
        };
        let ordinal = device.info().ordinal;
        let holding = device.context().new_stream().map_err(|error| failed(ordinal, "cuStreamCreate", error))?;
        let behind = device.adopt(&holding)?;
        let launch = move |time: Duration| {
            let nanoseconds = time.as_nanos() as u64;
            let mut launch = holding.launch_builder(&hold);
            launch.arg(&nanoseconds);
            let shape = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the kernel has this one parameter, and touches no memory.
            let launched = unsafe { launch.launch(shape) };
            launched.map(|_| ()).map_err(|error| failed(ordinal, "cuLaunchKernel", error))
        };
        let slow = SlowDevice::new(device.clone(), link, Hold { stream: behind, launch: Box::new(launch) });
        stream = slow.slowed(stream);
        Ok(Gpu { kernels, card: device, device: Arc::new(slow), launches, stream })
    }
}

#[allow(dead_code)] // For tests.
impl Gpu {
    /// Another stream of this GPU.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn beside(&self) -> Result<Gpu> {
        let failed = |error| failed(self.device.info().ordinal, "cuStreamCreate", error);
        let launches = self.launches.context().new_stream().map_err(failed)?;
        let stream = self.card.adopt(&launches)?;
        Ok(Gpu {
            card: self.card.clone(),
            device: self.device.clone(),
            launches,
            stream,
            kernels: self.kernels.clone(),
        })
    }

    /// The stream on which kernels are launched.
    pub fn launches(&self) -> &Arc<CudaStream> {
        &self.launches
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
        // SAFETY: the arguments are those of every kernel in `kernels.cu`, in their order. The spans are live allocations of this
        // device, of which a kernel uses as much as the numbers say; `apps.rs` makes both, and its tests run the same kernels with
        // bounds that are checked.
        let launched = unsafe { launch.launch(shape) };
        launched.map(|_| ()).map_err(|error| failed(self.device.info().ordinal, "cuLaunchKernel", error))
    }
}
