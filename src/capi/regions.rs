//! Regions that are protected, or are to be saved: pointers of the application with their type and shape.

use super::arguments::element;
use super::gpu::{self, Gpu};
use super::status::{BVK_ERR_LOAD, Failure, Outcome};
use bivouac_core::Elements;
use bivouac_core::base::units::page_ceil;
use bivouac_core::decomposition::{Decomposition, OnResize};
use bivouac_core::device::DeviceSpan;
use bivouac_core::format::ElementType;
use bivouac_core::live::LiveMemory;
use bivouac_core::region::{self, RegionData, RegionError, SHARED_MAX, SavedRegion};
use bivouac_core::session::{CheckpointBuilder, Error};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Memory of the application under a name.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub name: String,
    address: usize,
    bytes: usize,
    element: ElementType,
    shape: Vec<u64>,
    /// The number of the GPU that the memory belongs to.
    gpu: Option<usize>,
    /// It is host memory that is copied after a capture has returned.
    pub is_live: bool,
    /// How it is spread over the ranks.
    pub lies: Lies,
}

/// How a region is spread over the ranks, which says how it is saved and loaded.
#[derive(Clone, Debug)]
pub(super) enum Lies {
    /// It belongs to this rank, and binds its checkpoint to the number of ranks.
    Own,
    /// It is this rank's part of an array: the memory of each of its boxes. The region has no other memory.
    On(Decomposition, Vec<Piece>),
    /// It is a value that is the same on all ranks.
    Shared,
    /// It is a value of this rank, with what becomes of it on a different number of ranks.
    PerRank(OnResize),
}

/// The memory of a box.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    address: usize,
    pub bytes: usize,
}

impl Piece {
    /// # Safety
    /// As [`Region::host`].
    unsafe fn host<'a>(&self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the application has promised that these bytes are its own and readable; `Region::new` has seen that they do not wrap around.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.bytes) }
    }

    /// # Safety
    /// As [`Region::host_mut`].
    unsafe fn host_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `host`; the application has promised that the bytes are writable and that nobody uses them in a call
        // that loads them.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.address), self.bytes) }
    }
}

/// The maximum number of bytes that the type and the length of a value take in addition to its elements.
const VALUE_HEAD: usize = 16;

// The pointer is kept as a number: the memory that it points to is the application's, and only calls that the application
// hands a region access it.
impl Region {
    /// Describes memory, without reading it.
    ///
    /// # Errors
    /// The arguments do not fit each other, or the region cannot have that name.
    pub(super) fn new(name: &str, data: *const c_void, kind: c_int, shape: &[u64]) -> Outcome<Region> {
        let element = element(kind)
            .map_err(|failure| Failure::new(failure.status, format!("region {name:?}: {}", failure.text)))?;
        let count = shape.iter().try_fold(1u64, |count, extent| count.checked_mul(*extent));
        let bytes = count.and_then(|count| count.checked_mul(element.bytes()));
        let Some(bytes) = bytes.and_then(|bytes| isize::try_from(bytes).ok()) else {
            return Err(Failure::argument(format!(
                "region {name:?}: {shape:?} x {element} is more than memory can hold"
            )));
        };
        if data.is_null() && bytes > 0 {
            return Err(Failure::argument(format!(
                "region {name:?}: the pointer is NULL, but the region has {bytes} bytes"
            )));
        }
        if data.addr().checked_add(bytes.unsigned_abs()).is_none() {
            return Err(Failure::argument(format!("region {name:?}: it goes past the end of memory")));
        }
        let gpu = if bytes > 0 { gpu::of_pointer(data)? } else { None };
        let region = Region {
            name: name.into(),
            address: data.expose_provenance(),
            bytes: bytes.unsigned_abs(),
            element,
            shape: shape.into(),
            gpu,
            is_live: false,
            lies: Lies::Own,
        };
        region::check_name(name).map_err(|error| Failure::from(Error::from(error)))?;
        Ok(region)
    }

    /// Describes the memory of this rank's boxes, `(address, number of elements)` of each, without reading it. Whether it fits the boxes is
    /// not checked.
    ///
    /// # Errors
    /// As [`Region::new`]; also if the memory of two boxes overlaps, or lies on different devices.
    pub(super) fn on(name: &str, on: Decomposition, memory: &[(*const c_void, u64)], kind: c_int) -> Outcome<Region> {
        let mut region = Region::new(name, std::ptr::null(), kind, &[0])?;
        let mut pieces = Vec::with_capacity(memory.len());
        for (data, elements) in memory {
            let whole = Region::new(name, *data, kind, &[*elements])?;
            let is_first = pieces.iter().all(|piece: &Piece| piece.bytes == 0);
            if whole.bytes > 0 && !is_first && whole.gpu != region.gpu {
                return Err(Failure::argument(format!(
                    "region {name:?}: the memory of some boxes is on a GPU, and that of others elsewhere: all of it must be on the same \
                     GPU, or in host memory"
                )));
            }
            if whole.bytes > 0 {
                region.gpu = whole.gpu;
            }
            pieces.push(Piece { address: whole.address, bytes: whole.bytes });
        }
        let mut places: Vec<Range<usize>> =
            pieces.iter().map(|piece| piece.address..piece.address + piece.bytes).collect();
        places.retain(|place| !place.is_empty());
        places.sort_by_key(|place| place.start);
        if places.windows(2).any(|two| two[0].end > two[1].start) {
            return Err(Failure::argument(format!("region {name:?}: the memory of two boxes overlaps")));
        }
        region.lies = Lies::On(on, pieces);
        Ok(region)
    }

    /// This region's memory as a value.
    ///
    /// # Errors
    /// It is memory of a GPU, or it is too long.
    pub(super) fn of_values(self, lies: Lies) -> Outcome<Region> {
        self.check_host("values are")?;
        let bytes = self.bytes + VALUE_HEAD;
        if bytes > SHARED_MAX {
            return Err(Error::from(RegionError::Long { name: self.name, bytes }).into());
        }
        Ok(Region { lies, ..self })
    }

    pub(super) fn check_host(&self, what: &str) -> Outcome<()> {
        match self.gpu {
            None => Ok(()),
            Some(gpu) => {
                let name = &self.name;
                Err(Failure::argument(format!(
                    "region {name:?} is on GPU {gpu}, but {what} taken only from host memory"
                )))
            }
        }
    }

    /// Does it belong to this rank, and bind its checkpoint to the number of ranks?
    pub(super) fn is_own(&self) -> bool {
        matches!(self.lies, Lies::Own)
    }

    /// The first `bytes` elements under another name, for a region of bytes that has at least that many.
    pub(super) fn first(&self, name: String, bytes: usize) -> Region {
        debug_assert!(self.element == ElementType::U8 && bytes <= self.bytes);
        Region { name, bytes, shape: vec![bytes as u64], ..self.clone() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that its body takes in a checkpoint, where bodies begin on pages.
    pub(super) fn body(&self) -> u64 {
        page_ceil(match &self.lies {
            Lies::Own => self.bytes as u64,
            Lies::On(on, _) => on.elements().saturating_mul(self.element.bytes()),
            Lies::Shared | Lies::PerRank(_) => (self.bytes + VALUE_HEAD) as u64,
        })
    }

    /// Bytes of node memory that it takes in a checkpoint, with its entry in the table.
    pub(super) fn room(&self) -> u64 {
        self.body() + 1024
    }

    pub(super) fn element(&self) -> ElementType {
        self.element
    }

    /// Is this a region on the host of that type and shape?
    pub(super) fn is_like(&self, other: &bivouac_core::format::Region) -> bool {
        self.gpu.is_none() && self.element == other.element && self.shape == other.shape
    }

    pub(super) fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Its addresses.
    pub(super) fn range(&self) -> Range<usize> {
        self.address..self.address + self.bytes
    }

    /// Do two regions share memory?
    pub(super) fn overlaps(&self, other: &Region) -> bool {
        let (mine, theirs) = (self.range(), other.range());
        mine.start.max(theirs.start) < mine.end.min(theirs.end)
    }

    /// The bytes in host memory.
    ///
    /// # Safety
    /// The application's promise of [`super::session::bvk_protect`] holds for as long as the result is used.
    pub(super) unsafe fn host<'a>(&self) -> &'a [u8] {
        // SAFETY: as the caller says.
        unsafe { self.piece().host() }
    }

    fn piece(&self) -> Piece {
        Piece { address: self.address, bytes: self.bytes }
    }

    /// The bytes in host memory, to be written.
    ///
    /// # Safety
    /// As [`Region::host`]; and nobody else uses the bytes meanwhile.
    pub(super) unsafe fn host_mut<'a>(&self) -> &'a mut [u8] {
        // SAFETY: as the caller says.
        unsafe { self.piece().host_mut() }
    }

    /// The memory of each box, to be written; none for a region that lies on no boxes.
    ///
    /// # Safety
    /// As [`Region::host_mut`], for each of them.
    pub(super) unsafe fn boxes_mut<'a>(&self) -> Vec<&'a mut [u8]> {
        match &self.lies {
            // SAFETY: as the caller says; they do not overlap.
            Lies::On(_, memory) => memory.iter().map(|piece| unsafe { piece.host_mut() }).collect(),
            _ => Vec::new(),
        }
    }

    /// A copy of the value as it is now.
    ///
    /// # Safety
    /// As [`Region::host`].
    pub(super) unsafe fn value(&self) -> Value {
        // SAFETY: as the caller says.
        let elements = Elements::typed(self.element, unsafe { self.host() });
        Value { name: self.name.clone(), elements, lies: self.lies.clone() }
    }

    /// Copies a value that was loaded into the region's memory.
    ///
    /// # Safety
    /// As [`Region::host_mut`].
    pub(super) unsafe fn land(&self, loaded: &Elements) -> Outcome<()> {
        let (name, kind) = (&self.name, self.element);
        if loaded.element() != kind || loaded.bytes().len() != self.bytes {
            let (found, count, wanted) = (loaded.element(), loaded.count(), self.bytes as u64 / kind.bytes().max(1));
            let text = format!(
                "value {name:?} has {count} elements of type {found}, but {wanted} of type {kind} were asked for"
            );
            return Err(Failure::new(BVK_ERR_LOAD, text));
        }
        // SAFETY: as the caller says.
        unsafe { self.host_mut() }.copy_from_slice(loaded.bytes());
        Ok(())
    }

    /// The memory of each box in device memory, or of the whole region; empty for host memory.
    ///
    /// # Safety
    /// As [`Region::span`].
    pub(super) unsafe fn spans(&self, gpu: &Gpu) -> Outcome<Vec<DeviceSpan>> {
        let own = [self.piece()];
        let pieces = match &self.lies {
            _ if self.gpu.is_none() => &[],
            Lies::On(_, pieces) => &pieces[..],
            _ => &own[..],
        };
        // SAFETY: as the caller says.
        let span = |piece: &Piece| unsafe { gpu.span(piece.address as u64, piece.bytes as u64) };
        Ok(pieces.iter().map(span).collect::<Result<_, _>>()?)
    }

    /// The region in device memory.
    ///
    /// # Safety
    /// The application's promise of [`super::session::bvk_protect`] holds for as long as the span is used.
    pub(super) unsafe fn span(&self, gpu: &Gpu) -> Outcome<DeviceSpan> {
        // SAFETY: as the caller says.
        Ok(unsafe { gpu.span(self.address as u64, self.bytes as u64) }?)
    }

    /// Adds the region to a checkpoint; `spans` are those of [`Region::spans`].
    ///
    /// # Safety
    /// As [`Region::saved`].
    pub(super) unsafe fn add_to<'a>(
        &self,
        checkpoint: &mut CheckpointBuilder<'a>,
        spans: &'a [DeviceSpan],
    ) -> Outcome<()> {
        match &self.lies {
            // SAFETY: as the caller says.
            Lies::Own => checkpoint.add(unsafe { self.saved(spans.first()) }?)?,
            Lies::On(on, _) if self.gpu.is_some() => {
                checkpoint.save_spans_on(&self.name, on, self.element, &spans.iter().collect::<Vec<_>>())?;
            }
            Lies::On(on, memory) => {
                // SAFETY: as the caller says.
                let memory: Vec<&[u8]> = memory.iter().map(|piece| unsafe { piece.host() }).collect();
                checkpoint.save_typed_on(&self.name, on, self.element, &memory)?;
            }
            // SAFETY: as the caller says.
            Lies::Shared | Lies::PerRank(_) => unsafe { self.value() }.add_to(checkpoint)?,
        }
        Ok(())
    }

    /// The region in the form that a checkpoint takes; `span` is that of [`Region::span`], for regions in device memory.
    ///
    /// # Safety
    /// As [`Region::host`]; for a live region also the promise of [`super::live::bvk_set_live`].
    pub(super) unsafe fn saved<'a>(&self, span: Option<&'a DeviceSpan>) -> Outcome<SavedRegion<'a>> {
        let data = match span {
            Some(span) => RegionData::Device(Cow::Borrowed(span)),
            None if self.is_live => {
                let data = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
                // SAFETY: as the caller says.
                RegionData::Live(unsafe { LiveMemory::new(data, self.bytes) })
            }
            // SAFETY: as the caller says.
            None => RegionData::Host(Cow::Borrowed(unsafe { self.host() })),
        };
        region::typed(&self.name, self.element, &self.shape, data).map_err(|error| Error::from(error).into())
    }
}

/// A value that has already been copied and waits for its checkpoint.
pub(super) struct Value {
    pub name: String,
    elements: Elements,
    lies: Lies,
}

impl Value {
    /// Bytes that its body takes in a checkpoint, where bodies begin on pages.
    pub(super) fn body(&self) -> u64 {
        page_ceil((self.elements.bytes().len() + VALUE_HEAD) as u64)
    }

    /// Adds it to a checkpoint.
    pub(super) fn add_to(&self, checkpoint: &mut CheckpointBuilder<'_>) -> Outcome<()> {
        match self.lies {
            Lies::PerRank(on_resize) => checkpoint.per_rank(&self.name, &self.elements, on_resize)?,
            _ => checkpoint.shared(&self.name, &self.elements)?,
        }
        Ok(())
    }
}

/// Regions in the order in which they were added, each name once. The cost of a call does not depend on their number: codes protect
/// thousands.
#[derive(Debug, Default)]
pub(super) struct Regions {
    by_place: BTreeMap<u64, Region>,
    /// The place of each name.
    places: HashMap<String, u64>,
    /// The next place, above all others.
    next: u64,
    /// The sum of their [`Region::room`].
    room: u64,
}

impl Regions {
    /// Adds a region, which replaces a region of the same name, and is live if the replaced region is.
    pub(super) fn put(&mut self, mut region: Region) {
        region.is_live =
            region.gpu.is_none() && region.is_own() && self.get(&region.name).is_some_and(|replaced| replaced.is_live);
        let place = self.places.get(&region.name).copied().unwrap_or(self.next);
        if place == self.next {
            self.next += 1;
            self.places.insert(region.name.clone(), place);
        }
        self.room += region.room();
        if let Some(replaced) = self.by_place.insert(place, region) {
            self.room -= replaced.room();
        }
    }

    /// Takes out the region of that name; false if there is none.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let removed = self.places.remove(name).and_then(|place| self.by_place.remove(&place));
        self.room -= removed.as_ref().map_or(0, Region::room);
        removed.is_some()
    }

    /// Keeps the regions for which `keep` is true.
    pub(super) fn retain(&mut self, keep: impl Fn(&Region) -> bool) {
        let (places, room) = (&mut self.places, &mut self.room);
        self.by_place.retain(|_, region| {
            let is_kept = keep(region);
            if !is_kept {
                places.remove(&region.name);
                *room -= region.room();
            }
            is_kept
        });
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Region> {
        self.by_place.get(self.places.get(name)?)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Region> {
        self.by_place.get_mut(self.places.get(name)?)
    }

    /// Bytes of node memory that a checkpoint of all of them takes.
    pub(super) fn room(&self) -> u64 {
        self.room
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.by_place.values()
    }
}

/// The GPU that all device regions are on; `None` without such regions.
pub(super) fn only_gpu<'a>(regions: impl IntoIterator<Item = &'a Region>) -> Outcome<Option<usize>> {
    let mut gpus = regions.into_iter().filter_map(Region::gpu);
    let first = gpus.next();
    match gpus.find(|other| Some(*other) != first) {
        None => Ok(first),
        Some(other) => Err(Failure::new(
            super::status::BVK_ERR_DEVICE,
            format!(
                "regions are on GPU {} and on GPU {other}: save the regions of each GPU in a checkpoint with its own name",
                first.unwrap_or(0)
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::BVK_U8;
    use super::*;
    use bivouac_core::device::Device;
    use bivouac_core::device::host::{HostDevice, HostModel};

    fn region(name: &str, bytes: &[u8]) -> Region {
        Region::new(name, bytes.as_ptr().cast(), BVK_U8, &[bytes.len() as u64]).unwrap()
    }

    fn names(regions: &Regions) -> Vec<&str> {
        regions.iter().map(|region| region.name.as_str()).collect()
    }

    #[test]
    fn regions_keep_their_order_and_their_sum() {
        let (few, many) = ([0; 10], [0; 5000]);
        let mut regions = Regions::default();
        ["a", "b", "c"].iter().for_each(|name| regions.put(region(name, &few)));
        assert_eq!(regions.room(), 3 * (4096 + 1024));
        regions.put(region("a", &many));
        assert_eq!((names(&regions), regions.room()), (vec!["a", "b", "c"], 2 * (4096 + 1024) + 8192 + 1024));
        assert!(regions.remove("a") && !regions.remove("a") && !regions.has("a"));
        regions.put(region("a", &few));
        assert_eq!((names(&regions), regions.room()), (vec!["b", "c", "a"], 3 * (4096 + 1024)));
        regions.retain(|region| region.name == "c");
        assert_eq!((names(&regions), regions.room()), (vec!["c"], 4096 + 1024));
        assert!(regions.has("c") && !regions.has("b"));
        regions.put(region("b", &few));
        assert_eq!(names(&regions), ["c", "b"]);
    }

    #[test]
    fn a_region_that_replaces_a_live_one_is_live_until_the_name_is_taken_out() {
        let (here, there) = ([0; 10], [0; 10]);
        let mut regions = Regions::default();
        let is_live = |regions: &Regions| regions.get("a").map(|region| region.is_live);
        assert_eq!(is_live(&regions), None);
        regions.put(region("a", &here));
        assert_eq!(is_live(&regions), Some(false));
        regions.get_mut("a").expect("it is there").is_live = true;
        regions.put(region("a", &there));
        assert_eq!(is_live(&regions), Some(true));
        let on_gpu = Region { gpu: Some(0), ..region("a", &here) };
        regions.put(on_gpu);
        assert_eq!(is_live(&regions), Some(false));
        regions.get_mut("a").expect("it is there").is_live = true;
        assert!(regions.remove("a"));
        regions.put(region("a", &here));
        assert_eq!(is_live(&regions), Some(false));
    }

    #[test]
    fn what_is_live_is_handed_over_as_such() {
        let bytes = [7; 10];
        let mut a = region("a", &bytes);
        let is_live = |region: &Region| {
            // SAFETY: the bytes live as long as this function, and nobody writes to them.
            let saved = unsafe { region.saved(None) }.expect("a region");
            assert_eq!((saved.data.bytes(), &saved.region.shape[..]), (10, &[10u64][..]));
            matches!(saved.data, RegionData::Live(memory) if memory.range() == region.range())
        };
        assert!(!is_live(&a));
        a.is_live = true;
        assert!(is_live(&a));
    }

    #[test]
    fn values_are_small_and_on_the_host() {
        let device = HostDevice::new(HostModel::default());
        let span = device.allocate(8).expect("memory");
        let there = std::ptr::without_provenance(span.address() as usize);
        let on_gpu = Region::new("a", there, BVK_U8, &[8]).expect("a region").of_values(Lies::Shared);
        assert!(on_gpu.expect_err("it is on a GPU").text.contains("values are taken only from host memory"));
        let bytes = vec![7; SHARED_MAX - VALUE_HEAD + 1];
        let most = region("a", &bytes[1..]).of_values(Lies::Shared).expect("as much as there may be");
        // SAFETY: the bytes live as long as this function.
        let elements = Elements::typed(most.element(), unsafe { most.host() });
        assert!(region::shared("a", &elements).is_ok());
        assert!(region("a", &bytes).of_values(Lies::Shared).is_err());
    }
}
