//! NVIDIA GPUs through the driver API, on the device's primary context.
//!
//! The primary context is the one that the CUDA runtime also uses. The memory and the streams of an application written with the runtime,
//! with cudarc or with another library can therefore be used here as they are. The driver library is loaded when [`CudaDevice::open`] asks
//! for it. If there is no library, or no GPU, `open` returns an error, and nothing else happens.
//!
//! The files: `memory.rs` (address space, mapping and allocations); `pinned.rs` (host memory that the GPU reaches by itself); `detour.rs`
//! (the way around for other memory); `stream.rs` (copies); `batch.rs` (copies that are enqueued together); `scatter.rs` (copies of many
//! small pieces); `rows.rs` (copies of rows at regular distances); `event.rs` (points in the work of a stream); `kernels.rs` (how the
//! kernels get to the GPU); `chunks.rs` (tables of chunks).

mod batch;
mod chunks;
mod context;
mod detour;
mod event;
mod kernels;
mod memory;
mod pinned;
mod rows;
mod scatter;
mod stream;

use super::chunks::{ChunkTable, TableSize};
use super::{Device, DeviceError, DeviceInfo, DeviceSpan, HostRange, Pinned, Priority, Reservation, Result, Stream};
use crate::base::sync::Lock;
use chunks::CudaChunks;
pub use context::KeptContext;
use context::{Shared, bind, bus_id, check_driver, failed, is_driver_loaded};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result, sys};
use kernels::{Functions, load_blocks, load_chunks, load_rows};
use memory::{Allocation, VirtualRange};
use pinned::{PinnedPool, PinnedRange};
use std::fmt;
use std::sync::{Arc, OnceLock};
use stream::GpuStream;

/// The handle that means the calling thread's own stream.
const PER_THREAD_STREAM: usize = 2;

/// One GPU, as this process uses it.
pub struct CudaDevice {
    shared: Arc<Shared>,
    /// The kernels that look for chunks. They are loaded the first time that somebody asks for them.
    chunks: Lock<Option<Arc<Functions>>>,
}

impl CudaDevice {
    /// Opens GPU number `ordinal` among those that this process sees.
    ///
    /// # Blocking
    /// For the initialisation of the driver and of the device's primary context, if this has not been done yet (0.2 to 1 s), and for the
    /// compilation of the kernels.
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

    /// Opens the GPU of a context that the application has, which must be a primary context.
    ///
    /// # Errors
    /// The errors of [`CudaDevice::open`], and [`DeviceError::Foreign`] for a context that is not primary.
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
        let [copy_blocks, send_blocks] = load_blocks(context)?;
        let copy_rows = load_rows(context)?;
        let pinned = PinnedPool::new(context)?;
        let chunks = Lock::default();
        Ok(CudaDevice {
            chunks,
            shared: Arc::new(Shared { info, context: context.clone(), copy_blocks, send_blocks, copy_rows, pinned }),
        })
    }

    /// The context, for the application's own kernels.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.shared.context
    }

    /// Adopts a stream of the application, for copies that are ordered with its work. The calls are ordered with the rest of the stream
    /// like any other work on it.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] for a stream of another context, and for the per-thread stream.
    pub fn adopt(&self, stream: &Arc<CudaStream>) -> Result<Arc<dyn Stream>> {
        let shared = &self.shared;
        if stream.cu_stream() as usize == PER_THREAD_STREAM {
            let reason = "the per-thread stream is a different one on each thread; use an explicit stream".to_owned();
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

    /// Adopts a stream of the application by its raw handle.
    ///
    /// # Safety
    /// `handle` must be a stream of this device's primary context, must not be the per-thread stream, and must live as long as the result.
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
    /// [`DeviceError::Foreign`] if this is not device memory of this device: host memory, managed memory, or memory of another GPU.
    ///
    /// # Safety
    /// The `bytes` bytes that begin at `address` must be device memory that stays allocated until every copy from or to the span and its
    /// parts has ended.
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
        let _bound = self.shared.bind()?;
        let stream = stream::Owned::new(self.shared.clone(), priority)?;
        Ok(Arc::new(stream.into_stream()))
    }

    fn chunk_table(&self, size: TableSize) -> Result<Box<dyn ChunkTable>> {
        let load = || {
            let mut chunks = self.chunks.lock();
            if let Some(functions) = &*chunks {
                return Ok(functions.clone());
            }
            Ok(chunks.insert(Arc::new(load_chunks(&self.shared.context)?)).clone())
        };
        Ok(Box::new(CudaChunks::new(&self.shared, size, load)?))
    }

    fn make_ready(&self, bytes: u64) -> Result<()> {
        self.shared.pinned.stock(detour::buffers_for(bytes), detour::DETOUR_BYTES)
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>> {
        Ok(Box::new(PinnedRange::new(&self.shared, memory)?))
    }
}

/// The number of the GPU to whose memory an address belongs. `None` for host memory and for managed memory, and in a process that has not
/// loaded the driver, because such a process has no device memory.
///
/// # Errors
/// [`DeviceError::Lost`] or [`DeviceError::Failed`]: the driver reports an earlier error instead of the address, which the
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
    // A device that is lost is no reason to lose what is in host memory.
    memory::device_of(address).or_else(|error| if is_readable(address) { Ok(None) } else { Err(error) })
}

/// Can the processor read this byte? It cannot read plain device memory.
fn is_readable(address: u64) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
    // SAFETY: the kernel copies one byte of this process into `byte`, and answers with an error where there is none to read.
    unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) == 1 }
}
