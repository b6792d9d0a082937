//! Copies to host memory that are enqueued in one driver call (CUDA 13.0). On an H100, pieces of 64 KiB cross the link at 17 GB/s if
//! they are enqueued one by one, and at 44 GB/s in batches (`benches/marks.rs`, granularity).

use super::super::Result;
use super::stream::{EngineCopy, GpuStream};
use cudarc::driver::sys::{self, CUdeviceptr, CUmemcpyAttributes, CUresult, CUstream};
use std::ffi::c_void;
use std::sync::OnceLock;

/// `cuMemcpyBatchAsync` as CUDA 13.0 has it: targets, sources and lengths; attributes, the first copy that each of them
/// applies to, and their number; the stream.
type Enqueue = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    CUstream,
) -> CUresult;
const VERSION: i32 = 13_000;
/// Handles up to this number are the default streams, which the call refuses.
const DEFAULT_STREAMS: usize = 2;

/// The driver's call; `None` before CUDA 13.0.
fn call() -> Option<Enqueue> {
    static CALL: OnceLock<Option<Enqueue>> = OnceLock::new();
    *CALL.get_or_init(|| {
        let mut found: *mut c_void = std::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        // SAFETY: the name ends with a zero; the call writes one pointer and one status.
        let asked = unsafe {
            sys::cuGetProcAddress_v2(c"cuMemcpyBatchAsync".as_ptr(), &raw mut found, VERSION, 0, &raw mut status)
        };
        if asked != CUresult::CUDA_SUCCESS || found.is_null() {
            return None;
        }
        // SAFETY: the driver answers with the function of that name as it was in that version, whose parameters these are.
        Some(unsafe { std::mem::transmute::<*mut c_void, Enqueue>(found) })
    })
}

/// Can many copies be enqueued in one call?
pub(super) fn is_there() -> bool {
    call().is_some()
}

impl GpuStream {
    /// Enqueues copies to host memory: in one call, if that is better and the driver supports it.
    ///
    /// # Safety
    /// See [`GpuStream::enqueue`]; its conditions hold for each copy.
    pub(super) unsafe fn enqueue_all(&self, copies: &[EngineCopy]) -> Result<()> {
        let call = call().filter(|_| copies.len() > 1 && self.raw() as usize > DEFAULT_STREAMS);
        let Some(call) = call else {
            // SAFETY: as the caller says.
            return copies.iter().try_for_each(|(from, to, bytes)| unsafe { self.enqueue(*from, *to, *bytes, true) });
        };
        let mut sources: Vec<CUdeviceptr> = copies.iter().map(|(from, ..)| *from).collect();
        let mut targets: Vec<CUdeviceptr> = copies.iter().map(|(_, to, _)| *to).collect();
        let mut lengths: Vec<usize> = copies.iter().map(|(.., bytes)| *bytes).collect();
        let nowhere = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let order = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut attributes =
            CUmemcpyAttributes { srcAccessOrder: order, srcLocHint: nowhere, dstLocHint: nowhere, flags: 0 };
        let mut first = 0;
        // SAFETY: the three arrays have an entry for each copy, all of which have the one set of attributes from copy 0 on; the driver reads
        // them before it returns. The copies are as the caller says.
        let code = unsafe {
            call(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                lengths.as_mut_ptr(),
                copies.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                self.raw(),
            )
        };
        code.result().map_err(|error| self.shared.failed("cuMemcpyBatchAsync", error))
    }
}
