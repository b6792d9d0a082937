//! NVIDIA GPUs through the driver API, on the device's primary context.
//!
//! The primary context is the one that the CUDA runtime uses, too, so memory and streams of an application written with the
//! runtime, with cudarc or with another library are usable here as they are. The driver library is loaded when
//! [`CudaDevice::open`] asks for it; without one, or without a GPU behind it, `open` says so and nothing else
//! happens.
//!
//! `memory.rs` has address space, mapping and allocations; `pinned.rs` host memory that the GPU reaches by itself, `detour.rs` the way
//! around for other memory; `stream.rs` the copies, `scatter.rs` those of many small pieces; `event.rs` points in them; `kernels.rs` how the kernels get to the GPU.

mod detour;
mod event;
mod kernels;
mod memory;
mod pinned;
mod scatter;
mod stream;

use super::{Device, DeviceError, DeviceInfo, DeviceSpan, HostRange, Pinned, Priority, Reservation, Result, Stream};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use kernels::load;
use memory::{Allocation, VirtualRange};
use pinned::{PinnedPool, PinnedRange};
use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stream::GpuStream;

/// The least driver: virtual memory management and priorities are older, the PTX that NVRTC 13 makes is not.
const DRIVER_NEEDED: (i32, i32) = (12, 0);

/// The handle that means the calling thread's own stream.
const PER_THREAD_STREAM: usize = 2;

/// One GPU, as this process uses it.
pub struct CudaDevice {
    shared: Arc<Shared>,
}

/// What device, streams and memory of one GPU have in common.
struct Shared {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    copy_blocks: CudaFunction,
    pinned: PinnedPool,
}

impl CudaDevice {
    /// The GPU number `ordinal` of those that this process sees.
    ///
    /// # Blocking
    /// Initialises the driver and the device's primary context if nobody has yet (0.2 to 1 s), and compiles the kernels.
    ///
    /// # Errors
    /// [`DeviceError::NoLibrary`], [`DeviceError::NoDevice`], [`DeviceError::DriverTooOld`], [`DeviceError::Kernels`],
    /// [`DeviceError::Failed`].
    pub fn open(ordinal: usize) -> Result<CudaDevice> {
        check_driver(ordinal)?;
        let context = CudaContext::new(ordinal).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_INVALID_DEVICE => {
                DeviceError::NoDevice { ordinal }
            }
            _ => failed(ordinal, "cuDevicePrimaryCtxRetain", error),
        })?;
        CudaDevice::on(&context)
    }

    /// The GPU of a context that the application has, which must be a primary one.
    ///
    /// # Errors
    /// As [`CudaDevice::open`]; [`DeviceError::Foreign`] for a context that is not primary.
    pub fn on(context: &Arc<CudaContext>) -> Result<CudaDevice> {
        let ordinal = context.ordinal();
        check_driver(ordinal)?;
        if !context.is_primary() {
            let reason = "the context is not the device's primary one".to_owned();
            return Err(DeviceError::Foreign { address: context.cu_ctx() as u64, ordinal, reason });
        }
        let _bound = bind(context)?;
        let granularity = memory::granularity(ordinal)?;
        let info = DeviceInfo {
            kind: "cuda",
            ordinal,
            name: context.name().map_err(|error| failed(ordinal, "cuDeviceGetName", error))?,
            bus_id: bus_id(context).map_err(|error| failed(ordinal, "cuDeviceGetPCIBusId", error))?,
            granularity,
            memory_bytes: context.total_mem().map_err(|error| failed(ordinal, "cuDeviceTotalMem", error))? as u64,
        };
        let copy_blocks = load(context)?;
        let pinned = PinnedPool::new(context)?;
        Ok(CudaDevice { shared: Arc::new(Shared { info, context: context.clone(), copy_blocks, pinned }) })
    }

    /// The context, for the application's own kernels.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.shared.context
    }

    /// A stream of the application, for copies that are ordered with its work. The calls order against it as any
    /// other work on it does.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] for a stream of another context, and for the per-thread stream.
    pub fn adopt(&self, stream: &Arc<CudaStream>) -> Result<Arc<dyn Stream>> {
        let shared = &self.shared;
        if stream.cu_stream() as usize == PER_THREAD_STREAM {
            let reason = "the per-thread stream is another one on each thread".to_owned();
            let address = stream.cu_stream() as u64;
            return Err(DeviceError::Foreign { address, ordinal: shared.info.ordinal, reason });
        }
        if stream.context() != &shared.context {
            let reason = format!("the stream belongs to a context of device {}", stream.context().ordinal());
            let address = stream.cu_stream() as u64;
            return Err(DeviceError::Foreign { address, ordinal: shared.info.ordinal, reason });
        }
        Ok(Arc::new(GpuStream::new(shared.clone(), stream.clone())))
    }

    /// A raw stream handle of the application.
    ///
    /// # Safety
    /// `handle` is a stream of this device's primary context, not the per-thread one, and lives as long as what is returned.
    pub unsafe fn adopt_raw(&self, handle: sys::CUstream) -> Arc<dyn Stream> {
        // SAFETY: the caller promises a stream of this context that outlives the wrapper, which does not destroy it.
        let stream = unsafe { self.shared.context.wrap_borrowed_stream(handle) };
        Arc::new(GpuStream::new(self.shared.clone(), stream))
    }

    /// A slice of cudarc as a span, which keeps the slice alive.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] for memory of another device.
    pub fn span<T: Send + Sync + 'static>(&self, slice: &Arc<CudaSlice<T>>) -> Result<DeviceSpan> {
        let (address, _reads) = slice.device_ptr(slice.stream());
        self.check_address(address, slice.num_bytes() as u64)?;
        Ok(DeviceSpan::new(address, slice.num_bytes() as u64, self.shared.home(), slice.clone()))
    }

    /// Memory of the application by its raw address.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] if it is not device memory of this device: host memory, managed memory, or another GPU's.
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are device memory that stays allocated until every copy from or to the span, and its
    /// parts, has ended.
    pub unsafe fn raw_span(&self, address: u64, bytes: u64) -> Result<DeviceSpan> {
        self.check_address(address, bytes)?;
        Ok(DeviceSpan::new(address, bytes, self.shared.home(), Arc::new(())))
    }

    fn check_address(&self, address: u64, bytes: u64) -> Result<()> {
        let shared = &self.shared;
        let _bound = shared.bind()?;
        if bytes > 0 {
            memory::check_ours(shared.info.ordinal, address)?;
            memory::check_ours(shared.info.ordinal, address.saturating_add(bytes - 1))?;
        }
        Ok(())
    }
}

impl Shared {
    /// Makes the context the calling thread's. Not by cudarc's way, which answers with errors that the application left in
    /// the context.
    fn bind(&self) -> Result<Bound> {
        bind(&self.context)
    }

    /// Tells this device from others.
    fn home(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn failed(&self, call: &'static str, error: DriverError) -> DeviceError {
        failed(self.info.ordinal, call, error)
    }
}

/// Makes a context the calling thread's, as [`Shared::bind`].
fn bind(context: &CudaContext) -> Result<Bound> {
    let bound = Bound { outside: exchange_capture_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
    // SAFETY: the context is retained for as long as `context` lives.
    let current = unsafe { result::ctx::set_current(context.cu_ctx()) };
    current.map(|()| bound).map_err(|error| failed(context.ordinal(), "cuCtxSetCurrent", error))
}

/// The calling thread works for us while this lives: a stream that the application is capturing into a graph meanwhile, on whichever
/// thread and in whichever mode, neither forbids our calls nor is ended by them. They use other streams and events than it does.
#[must_use]
struct Bound {
    outside: sys::CUstreamCaptureMode,
}

impl Drop for Bound {
    fn drop(&mut self) {
        exchange_capture_mode(self.outside);
    }
}

/// Sets the calling thread's mode of stream capture, and says which it was.
fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the library is loaded, since a context is there, and `mode` is a place for the answer. It has no other effect than on this
    // thread's mode, and fails only where the driver was shut down.
    unsafe { _ = sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({}, {})", self.shared.info.ordinal, self.shared.info.name)
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn free_memory(&self) -> Result<u64> {
        let _bound = self.shared.bind()?;
        let free = result::mem_get_info();
        free.map(|(free, _)| free as u64).map_err(|error| self.shared.failed("cuMemGetInfo", error))
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSpan> {
        let allocation = Allocation::new(&self.shared, bytes)?;
        let address = allocation.address();
        Ok(DeviceSpan::new(address, bytes, self.shared.home(), Arc::new(allocation)))
    }

    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>> {
        Ok(VirtualRange::new(&self.shared, bytes)?)
    }

    fn stream(&self, priority: Priority) -> Result<Arc<dyn Stream>> {
        let shared = &self.shared;
        let _bound = shared.bind()?;
        let range = result::stream::get_priority_range();
        let (least, greatest) = range.map_err(|error| shared.failed("cuCtxGetStreamPriorityRange", error))?;
        let priority = match priority {
            Priority::High => greatest,
            Priority::Low => least,
        };
        // Streams of the application stay as they are: cudarc's way of making streams would switch the context over to
        // tracking every slice by events.
        let stream = stream::Owned::new(shared.clone(), priority)?;
        Ok(Arc::new(stream.into_stream()))
    }

    fn make_ready(&self, bytes: u64) -> Result<()> {
        self.shared.pinned.stock(detour::buffers_for(bytes), detour::DETOUR_BYTES)
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>> {
        Ok(Box::new(PinnedRange::new(&self.shared, memory)?))
    }
}

/// The number of the GPU whose memory an address is; `None` for host memory, for managed memory, and in a process that has not
/// loaded the driver, which then has no device memory.
///
/// # Errors
/// [`DeviceError::Lost`] or [`DeviceError::Failed`]: the driver tells of an earlier error instead of the address, which the
/// processor cannot read.
pub fn ordinal_of(address: u64) -> Result<Option<usize>> {
    static IS_USABLE: OnceLock<bool> = OnceLock::new();
    if !is_driver_loaded() {
        return Ok(None);
    }
    // SAFETY: it only looks whether the library can be loaded, which it is.
    if !*IS_USABLE.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Ok(None);
    }
    // A device that is lost is no reason to lose what lies in host memory.
    memory::device_of(address).or_else(|error| if is_readable(address) { Ok(None) } else { Err(error) })
}

/// Can the processor read this byte? Plain device memory it cannot.
fn is_readable(address: u64) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
    // SAFETY: the kernel copies one byte of this process into `byte`, and answers with an error where there is none to read.
    unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) == 1 }
}

/// The context that is current on this thread, for as long as this lives; then it is so again. For callers that work on
/// a thread of the application, whose next calls must go where they went before.
#[must_use]
pub struct KeptContext {
    context: sys::CUcontext,
    process: u32,
}

impl KeptContext {
    /// Remembers it: null where none is, which is so as long as nobody has loaded or started the driver.
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
    // SAFETY: the library is loaded, and there is a place for the answer. Before the driver is started the answer is an error.
    let code = unsafe { sys::cuCtxGetCurrent(&mut context) };
    (code == sys::CUresult::CUDA_SUCCESS).then_some(context)
}

/// Has somebody in this process loaded the driver? Asked in each call of the C interface, so the list of libraries is read only when it
/// has grown; and without a lock, which a child that is forked meanwhile would find taken for ever.
fn is_driver_loaded() -> bool {
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
fn check_driver(ordinal: usize) -> Result<()> {
    // SAFETY: it only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary);
    }
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => DeviceError::NoDevice { ordinal },
        _ => failed(ordinal, "cuInit", error),
    })?;
    let mut version = 0;
    // SAFETY: the library is loaded and `version` is a place for one int.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    code.result().map_err(|error| failed(ordinal, "cuDriverGetVersion", error))?;
    let found = (version / 1000, version % 1000 / 10);
    if found < DRIVER_NEEDED {
        return Err(DeviceError::DriverTooOld { found: format!("{}.{}", found.0, found.1), needed: "12.0" });
    }
    Ok(())
}

fn bus_id(context: &Arc<CudaContext>) -> std::result::Result<String, DriverError> {
    let mut text = [0; 32];
    // SAFETY: the device is the context's, and the buffer is as long as is said; the driver ends the text with a zero.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, context.cu_device()) }.result()?;
    // SAFETY: the call succeeded, so there is a zero in the buffer.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_lowercase())
}

/// A driver's error in our words. Some codes mean that the context is of no more use.
fn failed(ordinal: usize, call: &'static str, error: DriverError) -> DeviceError {
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
