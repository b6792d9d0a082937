//! What was protected, or is to be saved: pointers of the application with their type and shape.

use super::arguments::element;
use super::gpu::{self, Gpu};
use super::status::{Failure, Outcome};
use crate::device::DeviceSpan;
use crate::format::ElementType;
use crate::region::{self, RegionData, SavedRegion};
use crate::session::Error;
use std::borrow::Cow;
use std::ffi::{c_int, c_void};

/// Memory of the application under a name.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub name: String,
    address: usize,
    bytes: usize,
    element: ElementType,
    shape: Vec<u64>,
    /// The number of the GPU whose memory it is.
    gpu: Option<usize>,
}

// The pointer is kept as a number: what is behind it is the application's, and only the calls that are handed a region by the
// application look there.
impl Region {
    /// Describes memory; nothing is read from there.
    ///
    /// # Errors
    /// The arguments do not go together, or the region cannot have that name.
    pub(super) fn new(name: &str, data: *const c_void, kind: c_int, shape: &[u64]) -> Outcome<Region> {
        let element = element(kind)?;
        let count = shape.iter().try_fold(1u64, |count, extent| count.checked_mul(*extent));
        let bytes = count.and_then(|count| count.checked_mul(element.bytes()));
        let Some(bytes) = bytes.and_then(|bytes| isize::try_from(bytes).ok()) else {
            return Err(Failure::argument(format!(
                "region {name:?}: {shape:?} x {element} is more than memory can hold"
            )));
        };
        if data.is_null() && bytes > 0 {
            return Err(Failure::argument(format!(
                "region {name:?}: the pointer is NULL, and the region has {bytes} bytes"
            )));
        }
        if data.addr().checked_add(bytes.unsigned_abs()).is_none() {
            return Err(Failure::argument(format!("region {name:?}: it reaches over the end of memory")));
        }
        let gpu = if bytes > 0 { gpu::of_pointer(data)? } else { None };
        let region = Region {
            name: name.into(),
            address: data.expose_provenance(),
            bytes: bytes.unsigned_abs(),
            element,
            shape: shape.into(),
            gpu,
        };
        region::check_name(name).map_err(|error| Failure::from(Error::from(error)))?;
        Ok(region)
    }

    /// The same under another name with its first `bytes` elements only; a region of bytes that has at least so many.
    pub(super) fn first(&self, name: String, bytes: usize) -> Region {
        debug_assert!(self.element == ElementType::U8 && bytes <= self.bytes);
        Region { name, bytes, shape: vec![bytes as u64], ..self.clone() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn element(&self) -> ElementType {
        self.element
    }

    /// Is this a region on the host of that type and shape?
    pub(super) fn is_like(&self, other: &crate::format::Region) -> bool {
        self.gpu.is_none() && self.element == other.element && self.shape == other.shape
    }

    pub(super) fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Do two regions share memory?
    pub(super) fn overlaps(&self, other: &Region) -> bool {
        let (mine, theirs) = (self.address..self.address + self.bytes, other.address..other.address + other.bytes);
        mine.start.max(theirs.start) < mine.end.min(theirs.end)
    }

    /// The bytes in host memory.
    ///
    /// # Safety
    /// The application's promise of [`super::session::bvk_protect`] holds for as long as the result is used.
    pub(super) unsafe fn host<'a>(&self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the application has promised that these bytes are its own and readable; `new` has seen that they do not wrap around.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.bytes) }
    }

    /// The same to be written.
    ///
    /// # Safety
    /// As [`Region::host`]; and nobody else uses the bytes meanwhile.
    pub(super) unsafe fn host_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `host`; the application has promised that the bytes are writable and that nobody uses them in a call
        // that loads them.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.address), self.bytes) }
    }

    /// The region in device memory.
    ///
    /// # Safety
    /// The application's promise of [`super::session::bvk_protect`] holds for as long as the span is used.
    pub(super) unsafe fn span(&self, gpu: &Gpu) -> Outcome<DeviceSpan> {
        // SAFETY: as the caller says.
        Ok(unsafe { gpu.span(self.address as u64, self.bytes as u64) }?)
    }

    /// The region as it is handed to a checkpoint; `span` is that of [`Region::span`], for regions in device memory.
    ///
    /// # Safety
    /// As [`Region::host`].
    pub(super) unsafe fn saved<'a>(&self, span: Option<&'a DeviceSpan>) -> Outcome<SavedRegion<'a>> {
        let data = match span {
            Some(span) => RegionData::Device(span),
            // SAFETY: as the caller says.
            None => RegionData::Host(Cow::Borrowed(unsafe { self.host() })),
        };
        region::typed(&self.name, self.element, &self.shape, data).map_err(|error| Error::from(error).into())
    }
}

/// The GPU that all device regions are on; `None` without such regions.
pub(super) fn only_gpu(regions: &[Region]) -> Outcome<Option<usize>> {
    let mut gpus = regions.iter().filter_map(Region::gpu);
    let first = gpus.next();
    match gpus.find(|other| Some(*other) != first) {
        None => Ok(first),
        Some(other) => Err(Failure::new(
            super::status::BVK_ERR_DEVICE,
            format!(
                "regions lie on GPU {} and on GPU {other}: save those of each GPU in a checkpoint of its own name",
                first.unwrap_or(0)
            ),
        )),
    }
}
