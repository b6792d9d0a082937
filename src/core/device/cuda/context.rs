//! The context of a GPU: what device, streams and memory have in common, which context is current on a thread, and errors
//! of the driver in our words.

use super::super::{DeviceError, DeviceInfo, Result};
use super::pinned::PinnedPool;
use cudarc::driver::{CudaContext, CudaFunction, DriverError, result, sys};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The oldest driver that works: virtual memory management and priorities are older, but the PTX that NVRTC 13 makes is not.
const DRIVER_NEEDED: (i32, i32) = (12, 0);

/// What device, streams and memory of one GPU have in common.
pub(super) struct Shared {
    pub(super) info: DeviceInfo,
    pub(super) context: Arc<CudaContext>,
    pub(super) copy_blocks: CudaFunction,
    pub(super) send_blocks: CudaFunction,
    pub(super) copy_rows: CudaFunction,
    pub(super) pinned: PinnedPool,
}

impl Shared {
    /// Makes the context current on the calling thread. This does not use cudarc's way, which answers with errors that the
    /// application left in the context.
    pub(super) fn bind(&self) -> Result<Bound> {
        bind(&self.context)
    }

    /// A number that tells this device from others.
    pub(super) fn home(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(super) fn failed(&self, call: &'static str, error: DriverError) -> DeviceError {
        failed(self.info.ordinal, call, error)
    }
}

/// Makes a context current on the calling thread, like [`Shared::bind`].
pub(super) fn bind(context: &CudaContext) -> Result<Bound> {
    let bound = Bound { outside: exchange_capture_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
    // SAFETY: the context is retained for as long as `context` lives.
    let current = unsafe { result::ctx::set_current(context.cu_ctx()) };
    current.map(|()| bound).map_err(|error| failed(context.ordinal(), "cuCtxSetCurrent", error))
}

/// The calling thread works for us while this lives. If the application captures a stream into a graph in the meantime, on
/// whichever thread and in whichever mode, the capture neither forbids our calls nor is ended by them, because our calls use
/// other streams and events.
#[must_use]
pub(super) struct Bound {
    outside: sys::CUstreamCaptureMode,
}

impl Drop for Bound {
    fn drop(&mut self) {
        exchange_capture_mode(self.outside);
    }
}

/// Sets the calling thread's mode of stream capture, and returns the mode that it had.
fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the library is loaded, because there is a context, and `mode` is memory for the answer. It has no other effect than on this
    // thread's mode, and fails only where the driver was shut down.
    unsafe { _ = sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// Remembers the context that is current on this thread, and makes it current again at the end of its life. This is for
/// callers that work on a thread of the application, whose next calls must go where they went before.
#[must_use]
pub struct KeptContext {
    context: sys::CUcontext,
    process: u32,
}

impl KeptContext {
    /// Remembers the context. It is null where there is none, which is so as long as nobody has loaded or started the driver.
    pub fn here() -> KeptContext {
        static FIRST: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        let first =
            FIRST.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|first| first);
        // A forked child must not call the driver, which may have been at work in its parent: it has no context to keep.
        let is_child = first != 0 && first != process;
        let context = if is_child { None } else { current_context() };
        KeptContext { context: context.unwrap_or(std::ptr::null_mut()), process: if is_child { 0 } else { process } }
    }
}

impl Drop for KeptContext {
    fn drop(&mut self) {
        // The call may have loaded the driver.
        if self.process == std::process::id() && current_context().is_some_and(|now| now != self.context) {
            // SAFETY: the context was current on this thread, or none was (null); the application does not destroy it during our call.
            // An error would leave the context that is current.
            unsafe { _ = sys::cuCtxSetCurrent(self.context) };
        }
    }
}

/// The context that is current on this thread, null if there is none; `None` without a driver that is loaded and started.
fn current_context() -> Option<sys::CUcontext> {
    if !is_driver_loaded() {
        return None;
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the library is loaded, and there is memory for the answer. Before the driver is started the answer is an error.
    let code = unsafe { sys::cuCtxGetCurrent(&mut context) };
    (code == sys::CUresult::CUDA_SUCCESS).then_some(context)
}

/// Has somebody in this process loaded the driver? This is asked in each call of the C interface, so the list of libraries is read only
/// when it has grown. There is no lock, because a child that is forked in the meantime would find it taken for ever.
pub(super) fn is_driver_loaded() -> bool {
    /// How many libraries had ever been loaded when the list was read without finding the driver.
    static LOADED_WITHOUT: AtomicU64 = AtomicU64::new(0);
    static IS_LOADED: AtomicBool = AtomicBool::new(false);

    /// What is seen in one reading of the list.
    struct Look {
        known: u64,
        loaded: u64,
        has_driver: bool,
    }

    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, look: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the system hands over a description that is valid during this call; the other pointer is the one that
        // `dl_iterate_phdr` was given below, and nobody else uses what it leads to.
        let (info, look) = unsafe { (&*info, &mut *look.cast::<Look>()) };
        look.loaded = info.dlpi_adds;
        if look.loaded == look.known {
            return 1;
        }
        // SAFETY: a name that is not null ends with a zero byte.
        let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        look.has_driver |= name.to_string_lossy().contains("libcuda.so");
        0
    }

    if IS_LOADED.load(Ordering::Relaxed) {
        return true;
    }
    let mut found = Look { known: LOADED_WITHOUT.load(Ordering::Relaxed), loaded: 0, has_driver: false };
    // SAFETY: `look` has the signature that is called, does not unwind, and gets a pointer to a value of ours.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    match found.has_driver {
        true => IS_LOADED.store(true, Ordering::Relaxed),
        false => LOADED_WITHOUT.store(found.loaded, Ordering::Relaxed),
    }
    found.has_driver
}

/// Is there a driver, and is it new enough?
pub(super) fn check_driver(ordinal: usize) -> Result<()> {
    // SAFETY: it only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary);
    }
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => DeviceError::NoDevice { ordinal },
        _ => failed(ordinal, "cuInit", error),
    })?;
    let mut version = 0;
    // SAFETY: the library is loaded and `version` is memory for one int.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    code.result().map_err(|error| failed(ordinal, "cuDriverGetVersion", error))?;
    let found = (version / 1000, version % 1000 / 10);
    if found < DRIVER_NEEDED {
        return Err(DeviceError::DriverTooOld { found: format!("{}.{}", found.0, found.1), needed: "12.0" });
    }
    Ok(())
}

pub(super) fn bus_id(context: &Arc<CudaContext>) -> std::result::Result<String, DriverError> {
    let mut text = [0; 32];
    // SAFETY: the device is the context's, and the buffer is as long as is said; the driver ends the text with a zero.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, context.cu_device()) }.result()?;
    // SAFETY: the call succeeded, so there is a zero in the buffer.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_lowercase())
}

/// A driver's error in our words. Some codes mean that the context cannot be used any more.
pub(super) fn failed(ordinal: usize, call: &'static str, error: DriverError) -> DeviceError {
    use sys::CUresult::*;
    let reason = match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("{:?}", error.0),
    };
    match error.0 {
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUDA_ERROR_UNKNOWN => DeviceError::Lost { ordinal, reason: format!("{call}: {reason}") },
        _ => DeviceError::Failed { ordinal, call, reason },
    }
}
