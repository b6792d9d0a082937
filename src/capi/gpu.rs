//! Device memory of the application by its address: which device it belongs to, and the caches of that device.

use super::status::{Failure, Outcome};
use bivouac_core::base::units::MIB;
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{self, Device, DeviceError, DeviceSpan, Priority, Stream};
use bivouac_core::session::Session;
use bivouac_core::transfer::history::Caches;
use std::ffi::c_void;
use std::sync::Arc;

/// The handle of the per-thread default stream, which belongs to no thread of ours.
const PER_THREAD_STREAM: usize = 2;

/// The least memory of the twin in host memory.
const TWIN_BYTES_MIN: u64 = 64 * MIB;

/// In tests the twin's memory counts as that of a GPU with this number, because the library passes its addresses to nobody.
#[cfg(test)]
pub(super) const TWIN: usize = 99;

/// The GPU whose memory a pointer leads to; `None` for host memory. Memory that migrates by itself counts as host memory.
pub(super) fn of_pointer(data: *const c_void) -> device::Result<Option<usize>> {
    #[cfg(test)]
    if HostDevice::is_address(data.addr() as u64) {
        return Ok(Some(TWIN));
    }
    #[cfg(feature = "cuda")]
    return bivouac_core::device::cuda::ordinal_of(data.addr() as u64);
    #[cfg(not(feature = "cuda"))]
    {
        _ = data;
        Ok(None)
    }
}

/// Restores the application's current context after a call that may use a device.
#[cfg(feature = "cuda")]
pub(super) fn keep_context() -> bivouac_core::device::cuda::KeptContext {
    bivouac_core::device::cuda::KeptContext::here()
}

/// Without CUDA there is no context to restore.
#[cfg(not(feature = "cuda"))]
pub(super) fn keep_context() {}

/// A device with its caches, opened when it is first needed. Fields are dropped in their order.
pub(super) struct Gpu {
    pub caches: Caches,
    pub twin: Option<Twin>,
    #[cfg(feature = "cuda")]
    cuda: Option<Arc<bivouac_core::device::cuda::CudaDevice>>,
}

/// The twin in host memory.
pub(super) struct Twin {
    pub device: Arc<HostDevice>,
    /// The only stream, which the application cannot name.
    pub stream: Arc<dyn Stream>,
}

impl Gpu {
    /// Opens the caches of GPU number `ordinal`, or of the twin in host memory.
    pub(super) fn open(session: &Session, ordinal: Option<usize>) -> Outcome<Gpu> {
        let Some(ordinal) = ordinal else {
            // Its memory is this process's own: `device.budget` in percent is one of the rank's part of node memory.
            let memory_bytes = session.memory_share().max(TWIN_BYTES_MIN);
            return Gpu::twin(session, HostModel { memory_bytes, ..HostModel::default() });
        };
        #[cfg(feature = "cuda")]
        {
            let cuda = Arc::new(bivouac_core::device::cuda::CudaDevice::open(ordinal)?);
            let caches = session.caches(cuda.clone())?;
            Ok(Gpu { caches, twin: None, cuda: Some(cuda) })
        }
        #[cfg(not(feature = "cuda"))]
        Err(DeviceError::NoDevice { ordinal }.into())
    }

    /// Opens the caches of a twin in host memory.
    pub(super) fn twin(session: &Session, model: HostModel) -> Outcome<Gpu> {
        let device = Arc::new(HostDevice::new(model));
        let stream = device.stream(Priority::High)?;
        let caches = session.caches(device.clone())?;
        Ok(Gpu {
            caches,
            twin: Some(Twin { device, stream }),
            #[cfg(feature = "cuda")]
            cuda: None,
        })
    }

    /// The application's stream by its handle; 0 is the legacy default stream.
    ///
    /// # Safety
    /// The handle is that of a stream in this device's primary context that lives as long as the result.
    pub(super) unsafe fn stream(&self, handle: usize) -> Outcome<Arc<dyn Stream>> {
        if let Some(twin) = &self.twin {
            return Ok(twin.stream.clone());
        }
        if handle == PER_THREAD_STREAM {
            return Err(Failure::argument(
                "the per-thread default stream cannot be used: set another one with bvk_set_stream",
            ));
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            let handle = std::ptr::with_exposed_provenance_mut(handle);
            // SAFETY: as the caller says; it is not the per-thread stream.
            return Ok(unsafe { cuda.adopt_raw(handle) });
        }
        Err(DeviceError::NoLibrary.into())
    }

    /// Memory of the application on this device.
    ///
    /// # Safety
    /// The memory stays allocated until all copies from and to the span have ended.
    pub(super) unsafe fn span(&self, address: u64, bytes: u64) -> device::Result<DeviceSpan> {
        if let Some(twin) = &self.twin {
            return twin.device.span_at(address, bytes);
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = &self.cuda {
            // SAFETY: as the caller says.
            return unsafe { cuda.raw_span(address, bytes) };
        }
        let reason = format!("the {bytes} bytes there are not memory of this device");
        Err(DeviceError::Foreign { address, ordinal: 0, reason })
    }
}
