//! Memory of a GPU: address space mapped step by step, and plain allocations.

use super::super::{DeviceError, DeviceSpan, Reservation, Result};
use super::context::{Shared, failed};
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// How memory is made: in device memory of this GPU, not shared with other processes.
fn properties(ordinal: usize) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(ordinal: usize) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as i32 }
}

/// The step in which device memory can be mapped, in bytes.
pub(super) fn granularity(ordinal: usize) -> Result<u64> {
    let mut bytes = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the driver is loaded; both pointers are to live values.
    let code = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties(ordinal), option) };
    code.result().map_err(|error| failed(ordinal, "cuMemGetAllocationGranularity", error))?;
    Ok(bytes as u64)
}

/// Is `address` in device memory of this GPU?
pub(super) fn check_ours(ordinal: usize, address: u64) -> Result<()> {
    let foreign = |reason: String| Err(DeviceError::Foreign { address, ordinal, reason });
    match attribute::<u32>(address, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        Some(kind) if kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => {}
        Some(_) => return foreign("it is host memory".into()),
        None => return foreign("the driver does not know it".into()),
    }
    if attribute::<u32>(address, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)
        .is_some_and(|managed| managed & 1 != 0)
    {
        return foreign("it is managed memory, which moves on its own".into());
    }
    match attribute::<u32>(address, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        Some(number) if number as usize == ordinal => Ok(()),
        Some(number) => foreign(format!("it is memory of device {number}")),
        None => foreign("the driver does not say which device it belongs to".into()),
    }
}

/// The number of the device to whose plain memory an address belongs; `None` for memory that the driver does not know, or
/// that is not plain device memory.
pub(super) fn device_of(address: u64) -> Result<Option<usize>> {
    let asked = |which| match ask::<u32>(address, which) {
        Ok(value) => Ok(Some(value)),
        // An address that the driver does not know, or a driver that was not started, says nothing about the device.
        Err(sys::CUresult::CUDA_ERROR_INVALID_VALUE)
        | Err(sys::CUresult::CUDA_ERROR_NOT_INITIALIZED)
        | Err(sys::CUresult::CUDA_ERROR_DEINITIALIZED) => Ok(None),
        Err(code) => Err(failed(0, "cuPointerGetAttribute", cudarc::driver::DriverError(code))),
    };
    let Some(kind) = asked(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? else { return Ok(None) };
    let managed = asked(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)?;
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 || managed.is_some_and(|managed| managed & 1 != 0) {
        return Ok(None);
    }
    let number = asked(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
    Ok(number.map(|number| number as usize))
}

/// An attribute that has as many bytes as `T`; `None` if the driver does not know the address.
pub(super) fn attribute<T: bytemuck::Pod>(address: u64, which: sys::CUpointer_attribute) -> Option<T> {
    ask(address, which).ok()
}

fn ask<T: bytemuck::Pod>(address: u64, which: sys::CUpointer_attribute) -> std::result::Result<T, sys::CUresult> {
    let mut value = [T::zeroed(); 2];
    // SAFETY: the attributes asked for here are numbers of four or eight bytes, for which two `T` are room enough; the address itself is
    // not followed.
    let code = unsafe { sys::cuPointerGetAttribute(value.as_mut_ptr().cast(), which, address) };
    if code == sys::CUresult::CUDA_SUCCESS { Ok(value[0]) } else { Err(code) }
}

/// A plain allocation.
pub(super) struct Allocation {
    shared: Arc<Shared>,
    address: u64,
    bytes: u64,
}

impl Allocation {
    pub(super) fn new(shared: &Arc<Shared>, bytes: u64) -> Result<Allocation> {
        let _bound = shared.bind()?;
        // SAFETY: the context is bound. An empty request would be refused by the driver, so it gets a byte.
        let address = unsafe { result::malloc_sync(bytes.max(1) as usize) };
        let address = address.map_err(|error| out_of_memory(shared, "an allocation", bytes, "cuMemAlloc", error))?;
        Ok(Allocation { shared: shared.clone(), address, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let freed = self.shared.bind().and_then(|_bound| {
            // SAFETY: the address came from `malloc_sync` and is freed once; the driver waits for the work that uses it.
            unsafe { result::free_sync(self.address) }.map_err(|error| self.shared.failed("cuMemFree", error))
        });
        if let Err(error) = freed {
            log::debug!("event=device-memory-not-freed error={error}");
        }
    }
}

pub(super) fn out_of_memory(
    shared: &Shared,
    what: &'static str,
    bytes: u64,
    call: &'static str,
    error: cudarc::driver::DriverError,
) -> DeviceError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory { what, bytes },
        _ => shared.failed(call, error),
    }
}

/// Reserved addresses, and what is mapped where.
pub(super) struct VirtualRange {
    shared: Arc<Shared>,
    base: u64,
    bytes: u64,
    /// Offset to length and handle. Invariant: disjoint, inside the range, at multiples of the granularity.
    mapped: Lock<BTreeMap<u64, (u64, sys::CUmemGenericAllocationHandle)>>,
    this: Weak<VirtualRange>,
}

impl VirtualRange {
    pub(super) fn new(shared: &Arc<Shared>, bytes: u64) -> Result<Arc<VirtualRange>> {
        let _bound = shared.bind()?;
        let bytes = bytes.max(1).next_multiple_of(shared.info.granularity);
        let mut base = 0;
        // SAFETY: the context is bound, and `base` is memory for an address.
        let code = unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) };
        code.result()
            .map_err(|error| out_of_memory(shared, "an address range", bytes, "cuMemAddressReserve", error))?;
        Ok(Arc::new_cyclic(|this| VirtualRange {
            shared: shared.clone(),
            base,
            bytes,
            mapped: Lock::default(),
            this: this.clone(),
        }))
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let granularity = self.shared.info.granularity;
        let reason = if bytes == 0 || !offset.is_multiple_of(granularity) || !bytes.is_multiple_of(granularity) {
            "device memory is mapped in multiples of the granularity"
        } else if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            "it goes past the end of the reservation"
        } else {
            return Ok(());
        };
        Err(DeviceError::Range { offset, bytes, reason })
    }

    fn mapped(&self) -> Guard<'_, BTreeMap<u64, (u64, sys::CUmemGenericAllocationHandle)>> {
        self.mapped.lock()
    }

    /// Maps new memory at `address`; if this fails, none of it stays.
    fn map_at(&self, address: u64, bytes: u64) -> Result<sys::CUmemGenericAllocationHandle> {
        let shared = &self.shared;
        let ordinal = shared.info.ordinal;
        let mut handle = 0;
        // SAFETY: the context is bound; the properties are those that the granularity was asked for.
        let code = unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties(ordinal), 0) };
        code.result().map_err(|error| out_of_memory(shared, "the GPU cache", bytes, "cuMemCreate", error))?;
        // SAFETY: the addresses are reserved by us and have no memory yet (`check`, and the book under its lock).
        let code = unsafe { sys::cuMemMap(address, bytes as usize, 0, handle, 0) };
        if let Err(error) = code.result() {
            self.release(handle);
            return Err(shared.failed("cuMemMap", error));
        }
        // Only this device gets access: a peer that nobody has asked for would cost time at every mapping.
        let access = sys::CUmemAccessDesc {
            location: location(ordinal),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was just mapped as a whole; one descriptor is given and counted.
        let code = unsafe { sys::cuMemSetAccess(address, bytes as usize, &access, 1) };
        if let Err(error) = code.result() {
            self.unmap_at(address, bytes, handle);
            return Err(shared.failed("cuMemSetAccess", error));
        }
        Ok(handle)
    }

    fn unmap_at(&self, address: u64, bytes: u64, handle: sys::CUmemGenericAllocationHandle) {
        // SAFETY: exactly this range was mapped by one call with this handle.
        let code = unsafe { sys::cuMemUnmap(address, bytes as usize) };
        if let Err(error) = code.result() {
            log::debug!("event=device-memory-not-unmapped error={}", self.shared.failed("cuMemUnmap", error));
        }
        self.release(handle);
    }

    fn release(&self, handle: sys::CUmemGenericAllocationHandle) {
        // SAFETY: the handle came from `cuMemCreate` and is released once.
        let code = unsafe { sys::cuMemRelease(handle) };
        if let Err(error) = code.result() {
            log::debug!("event=device-memory-not-released error={}", self.shared.failed("cuMemRelease", error));
        }
    }
}

impl Reservation for VirtualRange {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn map(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        let _bound = self.shared.bind()?;
        let mut mapped = self.mapped();
        let before = mapped.range(..offset + bytes).next_back();
        if before.is_some_and(|(at, (length, _))| at + length > offset) {
            return Err(DeviceError::Range { offset, bytes, reason: "part of it is already mapped" });
        }
        let handle = self.map_at(self.base + offset, bytes)?;
        mapped.insert(offset, (bytes, handle));
        Ok(())
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        let _bound = self.shared.bind()?;
        let mut mapped = self.mapped();
        let parts: Vec<(u64, u64)> =
            mapped.range(offset..offset + bytes).map(|(at, (length, _))| (*at, *length)).collect();
        let mut next = offset;
        for (at, length) in &parts {
            if *at == next {
                next += length;
            }
        }
        if next != offset + bytes {
            return Err(DeviceError::Range { offset, bytes, reason: "it does not consist of whole mapped pieces" });
        }
        for (at, length) in parts {
            if let Some((_, handle)) = mapped.remove(&at) {
                self.unmap_at(self.base + at, length, handle);
            }
        }
        Ok(())
    }

    fn span(&self, offset: u64, bytes: u64) -> Result<DeviceSpan> {
        let mapped = self.mapped();
        let end = offset.checked_add(bytes);
        let mut next = offset;
        if let Some((at, (length, _))) = mapped.range(..=offset).next_back() {
            next = next.max(at + length);
        }
        while let Some((length, _)) = mapped.get(&next).filter(|_| end.is_some_and(|end| next < end)) {
            next += length;
        }
        match (end, self.this.upgrade()) {
            (Some(end), Some(this)) if next >= end => {
                Ok(DeviceSpan::new(self.base + offset, bytes, self.shared.home(), this))
            }
            _ => Err(DeviceError::Range { offset, bytes, reason: "part of it is not mapped" }),
        }
    }
}

impl fmt::Debug for VirtualRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualRange({:#x}, {} bytes)", self.base, self.bytes)
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        let _bound = match self.shared.bind() {
            Ok(bound) => bound,
            Err(error) => {
                log::debug!("event=device-memory-not-unmapped error={error}");
                return;
            }
        };
        let parts = std::mem::take(self.mapped.get_mut());
        for (at, (length, handle)) in parts {
            self.unmap_at(self.base + at, length, handle);
        }
        // SAFETY: the range is ours, and nothing is mapped in it any more. No span of it lives: they own this value.
        let code = unsafe { sys::cuMemAddressFree(self.base, self.bytes as usize) };
        if let Err(error) = code.result() {
            log::debug!("event=device-addresses-not-freed error={}", self.shared.failed("cuMemAddressFree", error));
        }
    }
}
