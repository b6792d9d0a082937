//! What the application does between two versions.

use bivouac_core::device::cuda::CudaDevice;
use cudarc::driver::{CudaEvent, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::compile_ptx;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs for a number of nanoseconds on one thread of the device.
const SPIN: &str = "extern \"C\" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(begun));
    do { asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); } while (now - begun < nanoseconds);
}";

/// Does nothing, for an exact time; the thread sleeps for most of it unless it is told not to.
pub fn idle(seconds: f64, is_awake: bool) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if !is_awake && left > Duration::from_micros(300) {
            std::thread::sleep(left - Duration::from_micros(200));
        }
    }
}

/// A kernel on the application's stream for each interval, enqueued one step ahead, as simulations do.
pub struct Kernels {
    stream: Arc<CudaStream>,
    spin: CudaFunction,
    /// The end of the newest kernel.
    newest: Option<CudaEvent>,
}

impl Kernels {
    pub fn new(device: &CudaDevice, stream: &Arc<CudaStream>) -> Kernels {
        let module = device.context().load_module(compile_ptx(SPIN).expect("kernel")).expect("module");
        Kernels { stream: stream.clone(), spin: module.load_function("spin").expect("kernel"), newest: None }
    }

    /// Enqueues a kernel of this length, and waits for the previous one.
    pub fn step(&mut self, seconds: f64) {
        let nanoseconds = (seconds * 1e9) as u64;
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.spin);
        launch.arg(&nanoseconds);
        // SAFETY: the kernel takes this number and touches no memory.
        unsafe { launch.launch(one) }.expect("launch");
        let end = self.stream.record_event(None).expect("event");
        if let Some(before) = self.newest.replace(end) {
            before.synchronize().expect("kernel");
        }
    }

    /// Waits for everything that was enqueued.
    pub fn end(&mut self) {
        self.stream.synchronize().expect("kernels");
        self.newest = None;
    }
}
