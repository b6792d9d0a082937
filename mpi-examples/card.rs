//! What the examples need before their own kernels: a rank's GPU, one of its streams, and a compiler.
#![allow(unsafe_code)] // Looking for a library is unsafe: loading one runs its code.

use bivouac::device::cuda::CudaDevice;
use bivouac::device::{DeviceError, Stream};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, sys};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use std::sync::Arc;

type Result<T> = std::result::Result<T, DeviceError>;

/// A GPU, one of its streams, with which Bivouac's copies are ordered, and kernels.
pub struct Card {
    /// The GPU.
    pub device: CudaDevice,
    /// The stream on which kernels are launched.
    pub launches: Arc<CudaStream>,
    /// The same stream, for copies.
    pub stream: Arc<dyn Stream>,
    module: Arc<CudaModule>,
}

impl Card {
    /// The GPU of the node's rank number `local_rank`, with kernels in CUDA C++: the ranks take the node's GPUs in turn.
    ///
    /// # Errors
    /// The errors of [`CudaDevice::open`], and that the kernels could not be compiled.
    pub fn open(source: &str, local_rank: usize) -> Result<Card> {
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoLibrary);
        }
        // cudarc panics if it does not find the compiler, and a panic ends the MPI job.
        if !has_compiler() {
            return Err(DeviceError::Kernels { reason: "the library NVRTC was not found".into() });
        }
        let count = CudaContext::device_count().unwrap_or(0).max(0) as usize;
        let ordinal = local_rank.checked_rem(count).ok_or(DeviceError::NoDevice { ordinal: local_rank })?;
        let device = CudaDevice::open(ordinal)?;
        let context = device.context();
        let failed = |error| failed(ordinal, "cuStreamCreate", error);
        let launches = context.new_stream().map_err(failed)?;
        let stream = device.adopt(&launches)?;
        let refuse = |reason: String| DeviceError::Kernels { reason };
        let ptx = compile(source).map_err(|error| refuse(said(&error)))?;
        let module = context.load_module(ptx).map_err(|error| refuse(format!("cuModuleLoadData: {error}")))?;
        Ok(Card { device, launches, stream, module })
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn kernel(&self, name: &str) -> Result<CudaFunction> {
        let refuse = |error| DeviceError::Kernels { reason: format!("cuModuleGetFunction {name}: {error}") };
        self.module.load_function(name).map_err(refuse)
    }
}

/// Is there an NVRTC library on this machine?
pub fn has_compiler() -> bool {
    // SAFETY: it only tries to load the library.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}

/// NVRTC's PTX of kernels, for the lowest architecture that Bivouac's own kernels support.
///
/// # Errors
/// Any error that the compiler reports.
///
/// # Panics
/// If the library is missing: see [`has_compiler`].
pub fn compile(source: &str) -> std::result::Result<Ptx, CompileError> {
    let options = vec!["--gpu-architecture=compute_80".to_owned(), "--std=c++17".into()];
    compile_ptx_with_opts(source, CompileOptions { options, ..CompileOptions::default() })
}

/// A compiler's error in its own words.
pub fn said(error: &CompileError) -> String {
    match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => format!("{other:?}"),
    }
}

/// A launch that failed.
pub fn failed(ordinal: usize, call: &'static str, error: DriverError) -> DeviceError {
    DeviceError::Failed { ordinal, call, reason: error.to_string() }
}
