//! The application's data, seen as bytes: typed slices, device memory, small values, and data that is read while it is captured.
//!
//! A type can be saved if every bit pattern of its bytes is a valid value and it has no padding ([`bytemuck::Pod`]). Loading bytes with a
//! correct digest can therefore never produce an invalid value.
#![forbid(unsafe_code)]

mod device;
mod elements;
mod packed;
mod unpacked;

pub use device::{DeviceRows, rows_in};
pub use elements::Elements;
pub use packed::{Packed, check_memory};
pub use unpacked::Unpacked;

use crate::base::digest::copy_digest;
use crate::base::text::short;
use crate::base::{Digest, Rank};
use crate::decomposition::Decomposition;
use crate::device::{DeviceError, DeviceSpan};
use crate::format::{ElementType, FormatError, Region, RegionKind, codec};
use crate::live::LiveMemory;
use serde::{Serialize, de::DeserializeOwned};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The prefix of the names of Bivouac's own regions. The names of the application's regions cannot begin with it.
const RESERVED: &str = ".bivouac/";
/// The region that records where the rank's threads and pages were.
pub const AFFINITY: &str = ".bivouac/affinity";
/// The region that records how the other regions are spread over the ranks.
pub const DECOMPOSITION: &str = ".bivouac/decomposition";
/// The region that records how long output files were.
pub const COMPANIONS: &str = ".bivouac/companions";

/// The maximum number of bytes of a value that other ranks may get.
pub const SHARED_MAX: usize = 1 << 20;

/// Is this the name of one of Bivouac's own regions?
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// A type whose slices can be saved and loaded.
///
/// It is implemented for the numeric primitives and for arrays of them. For your own record type, derive [`bytemuck::Pod`] and declare the
/// element type, which is checked when a region is loaded:
///
/// ```
/// #[repr(C)]
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// struct Particle { position: [f64; 3], velocity: [f64; 3] }
///
/// impl bivouac::Element for Particle {
///     const TYPE: bivouac::ElementType = bivouac::ElementType::Record(48);
/// }
/// assert_eq!(<Particle as bivouac::Element>::TYPE.bytes(), 48);
/// ```
pub trait Element: bytemuck::Pod {
    /// The type as it is recorded with the region and compared when the region is loaded. Its
    /// [`bytes`](ElementType::bytes) must be the size of `Self`; saving refuses anything else.
    const TYPE: ElementType;
}

macro_rules! plain {
    ($($type:ty => $name:ident),*) => { $(impl Element for $type { const TYPE: ElementType = ElementType::$name; })* };
}
plain!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64);

impl<T: Element, const N: usize> Element for [T; N]
where
    [T; N]: bytemuck::Pod,
{
    const TYPE: ElementType = ElementType::Record(size_of::<[T; N]>() as u32);
}

/// A region that waits to be captured: name, type, shape, and where its bytes are.
#[derive(Clone, Debug)]
pub struct SavedRegion<'a> {
    /// What is recorded in the region table. It does not say where the bytes came from.
    pub region: Region,
    /// The bytes.
    pub data: RegionData<'a>,
}

impl SavedRegion<'_> {
    /// Has live memory copied like any other host memory, before the call that captures it returns. Returns true if the region was live
    /// memory.
    pub(crate) fn copy_at_once(&mut self) -> bool {
        let RegionData::Live(memory) = &self.data else { return false };
        self.data = RegionData::Host(Cow::Borrowed(memory.at_once()));
        true
    }
}

/// Where the bytes of a region are.
#[derive(Clone, Debug)]
pub enum RegionData<'a> {
    /// In host memory, borrowed from the application or made by Bivouac.
    Host(Cow<'a, [u8]>),
    /// In device memory.
    Device(Cow<'a, DeviceSpan>),
    /// In device memory, and not in one piece.
    DeviceRows(Arc<DeviceRows>),
    /// In host memory that the program may write to before it is copied.
    Live(LiveMemory),
    /// Elsewhere: the bytes are read when the region is captured.
    Kept(Arc<dyn ReadBlocks + 'a>),
    /// Already in their place in the checkpoint: they were copied when the application handed them over.
    Held {
        /// The number of bytes.
        bytes: u64,
        /// The address from which the bytes were copied; 0 if there is none to record.
        address: usize,
    },
}

/// Bytes that are read straight into their place when their region is captured, together with their digests. The digests of a history are
/// older than the capture: the bytes that arrive are compared with them.
pub trait ReadBlocks: fmt::Debug + Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> u64;

    /// Reads the blocks that begin at byte `at`, a multiple of `block_bytes`, into `target`, and their digests into `digests`. `target`
    /// ends with a block or with the region.
    ///
    /// # Errors
    /// A text that says why the bytes cannot be read. The content of `target` and `digests` is then unspecified.
    ///
    /// # Blocking
    /// On whatever holds the bytes.
    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String>;

    /// The application's memory that holds the bytes, if it is known.
    fn memory(&self) -> Option<&[u8]> {
        None
    }
}

impl RegionData<'_> {
    /// Are the bytes in device memory?
    pub fn is_on_device(&self) -> bool {
        matches!(self, RegionData::Device(_) | RegionData::DeviceRows(_))
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            RegionData::Host(bytes) => bytes.len() as u64,
            RegionData::Device(span) => span.bytes(),
            RegionData::DeviceRows(rows) => rows.bytes(),
            RegionData::Live(memory) => memory.bytes(),
            RegionData::Kept(kept) => kept.bytes(),
            RegionData::Held { bytes, .. } => *bytes,
        }
    }
}

/// Why something cannot be a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The name is empty, too long, has control characters, or is one of Bivouac's own.
    #[error(
        "region name {:?} is not usable: use 1 to 256 bytes without control characters, not beginning with {RESERVED:?}",
        short(name)
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The checkpoint has no region at all: it would be the newest, and nothing could be restored from it.
    #[error(
        "version {version} of {name:?} has no region: save or protect its regions before it is captured (a rank that has nothing to save \
         must save a region of length 0)"
    )]
    None {
        /// The series.
        name: String,
        /// The version.
        version: u64,
    },
    /// Parts of a state name different devices or streams.
    #[error(
        "parts of the protected state are in device memory with different caches or streams: a checkpoint can use only one of each; pass \
         the same to every `with_device` or `with_offload`"
    )]
    TwoStreams,
    /// The name is already in use in this checkpoint.
    #[error("region {name:?} is saved twice in one checkpoint: give each region its own name")]
    Twice {
        /// The name.
        name: String,
    },
    /// The shape does not describe the slice.
    #[error("region {name:?}: shape {shape:?} does not have {elements} elements")]
    Shape {
        /// The name.
        name: String,
        /// The shape given.
        shape: Vec<u64>,
        /// Elements in the slice.
        elements: u64,
    },
    /// Device memory, live memory or a field of a history is not a whole number of elements long.
    #[error("region {name:?}: {bytes} bytes are not a whole number of elements of type {element}")]
    Partial {
        /// The name.
        name: String,
        /// The length of the memory or field in bytes.
        bytes: u64,
        /// The element type.
        element: ElementType,
    },
    /// [`Element::TYPE`] of one of the application's types differs in size from that type.
    #[error("region {name:?}: element type {element} does not have the {bytes} bytes of the Rust type")]
    ElementSize {
        /// The name.
        name: String,
        /// The declared element type.
        element: ElementType,
        /// Size of the Rust type.
        bytes: u64,
    },
    /// The decomposition was made by another rank, or in a group of another size.
    #[error(
        "region {name:?}: its decomposition is that of rank {of} of {among}, but this is rank {rank} of {ranks}: decompose the array in \
         this session"
    )]
    Decomposition {
        /// The name.
        name: String,
        /// The rank that made the decomposition.
        of: Rank,
        /// The number of ranks in the group of that rank.
        among: u32,
        /// This rank.
        rank: Rank,
        /// The number of ranks in this rank's group.
        ranks: u32,
    },
    /// Memory was given for a different number of boxes than the rank owns.
    #[error("region {name:?}: memory for {given} boxes was given, but this rank owns {boxes}")]
    Boxes {
        /// The name.
        name: String,
        /// The number of boxes for which memory was given.
        given: usize,
        /// The number of boxes that the rank owns.
        boxes: usize,
    },
    /// The memory of a box differs in length from the box with its ghost cells.
    #[error("region {name:?}: the memory for box {number} has {given} elements, but needs {need} with its ghost cells")]
    Memory {
        /// The name.
        name: String,
        /// The place of the box among those of the rank.
        number: usize,
        /// Elements given.
        given: u64,
        /// Elements of the box with its ghost cells.
        need: u64,
    },
    /// A column differs in length from the rows of its set.
    #[error("column {name:?} has {given} elements, but {rows} rows of {width} need {need}")]
    Column {
        /// The name of the column's region.
        name: String,
        /// Elements given.
        given: u64,
        /// Rows of the set.
        rows: u64,
        /// Elements of each row.
        width: u32,
        /// The number of elements that these rows need.
        need: u64,
    },
    /// A field of a history does not fit the decomposition that was named for it.
    #[error("field {field:?} of history {history:?}: {what}")]
    HistoryField {
        /// The history.
        history: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// The description of a set of rows is invalid.
    #[error("rows {name:?}: {what}")]
    Rows {
        /// The name of the set.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The rows of a box do not lie in the device memory that was given for it.
    #[error("region {name:?}: {source}")]
    Device {
        /// The name.
        name: String,
        /// What is wrong with it.
        source: DeviceError,
    },
    /// A small array that was loaded has a different type from what the application asks for.
    #[error("value {name:?} has {bytes} bytes of elements of type {found}, but type {expected} was requested")]
    Elements {
        /// The name.
        name: String,
        /// The length of its elements in bytes.
        bytes: usize,
        /// The type of the elements that were loaded.
        found: ElementType,
        /// The type asked for.
        expected: ElementType,
    },
    /// A value that other ranks may get is too long.
    #[error(
        "value {name:?} takes {bytes} bytes; a value that all ranks share, or that others may ask for, may have at most {SHARED_MAX}"
    )]
    Long {
        /// The name.
        name: String,
        /// Its length when it is encoded.
        bytes: usize,
    },
    /// A value could not be encoded.
    #[error("value {name:?} cannot be encoded: {source}")]
    Value {
        /// The name.
        name: String,
        /// Why.
        source: FormatError,
    },
}

/// Describes a slice as a region.
///
/// # Errors
/// [`RegionError`] for an unusable name, shape or element type.
pub fn array<'a, T: Element>(name: &str, data: &'a [T], shape: &[u64]) -> Result<SavedRegion<'a>, RegionError> {
    check_array::<T>(name, data.len() as u64, shape)?;
    describe(name, RegionKind::Array, T::TYPE, shape, RegionData::Host(Cow::Borrowed(bytemuck::cast_slice(data))))
}

/// Describes device memory with elements of type `T` as a region. If `shape` is `None`, the region has one dimension.
///
/// # Errors
/// [`RegionError`] for an unusable name, shape or element type, or memory that ends inside an element.
pub fn device_array<'a, T: Element>(
    name: &str,
    span: &'a DeviceSpan,
    shape: Option<&[u64]>,
) -> Result<SavedRegion<'a>, RegionError> {
    elements_in::<T>(name, span.bytes(), shape, RegionData::Device(Cow::Borrowed(span)))
}

/// Describes memory of `bytes` bytes with elements of type `T` as a region.
fn elements_in<'a, T: Element>(
    name: &str,
    bytes: u64,
    shape: Option<&[u64]>,
    data: RegionData<'a>,
) -> Result<SavedRegion<'a>, RegionError> {
    let elements = bytes / (size_of::<T>() as u64).max(1);
    let shape = shape.unwrap_or(std::slice::from_ref(&elements));
    check_array::<T>(name, elements, shape)?;
    if elements * T::TYPE.bytes() != bytes {
        return Err(RegionError::Partial { name: name.into(), bytes, element: T::TYPE });
    }
    describe(name, RegionKind::Array, T::TYPE, shape, data)
}

/// Describes live memory, to which the program continues to write, as a region. The memory holds elements of type `T`. If `shape` is
/// `None`, the region has one dimension.
///
/// # Errors
/// See [`device_array`].
pub fn live_array<'a, T: Element>(
    name: &str,
    memory: &LiveMemory,
    shape: Option<&[u64]>,
) -> Result<SavedRegion<'a>, RegionError> {
    elements_in::<T>(name, memory.bytes(), shape, RegionData::Live(memory.clone()))
}

/// Describes elements as a region. Their type is known only at run time.
///
/// # Errors
/// [`RegionError`] for an unusable name, or a shape that does not fit the data.
pub fn typed<'a>(
    name: &str,
    element: ElementType,
    shape: &[u64],
    data: RegionData<'a>,
) -> Result<SavedRegion<'a>, RegionError> {
    let (bytes, size) = (data.bytes(), element.bytes());
    if size == 0 || bytes % size != 0 {
        return Err(RegionError::Partial { name: name.into(), bytes, element });
    }
    check_shape(name, bytes / size, shape)?;
    describe(name, RegionKind::Array, element, shape, data)
}

/// Describes, as a region of one dimension, bytes that are read at the capture.
///
/// # Errors
/// [`RegionError`] for an unusable name, or bytes that end inside an element.
pub fn kept_array<'a>(
    name: &str,
    element: ElementType,
    kept: impl ReadBlocks + 'a,
) -> Result<SavedRegion<'a>, RegionError> {
    let bytes = kept.bytes();
    let elements = bytes / element.bytes().max(1);
    if elements * element.bytes() != bytes {
        return Err(RegionError::Partial { name: name.into(), bytes, element });
    }
    describe(name, RegionKind::Array, element, &[elements], RegionData::Kept(Arc::new(kept)))
}

/// Describes a column as a region. The column has `rows` rows with `width` elements each. `size` is the size of the application's type in
/// bytes.
///
/// # Errors
/// [`RegionError`] for an unusable name or element type, or for a number of bytes that does not fit the rows.
pub fn column<'a>(
    name: &str,
    (element, size): (ElementType, usize),
    (rows, width): (u64, u32),
    bytes: &'a [u8],
) -> Result<SavedRegion<'a>, RegionError> {
    if size == 0 || element.bytes() != size as u64 {
        return Err(RegionError::ElementSize { name: name.into(), element, bytes: size as u64 });
    }
    let given = (bytes.len() / size) as u64;
    let need = rows.saturating_mul(u64::from(width));
    if width == 0 || given != need {
        return Err(RegionError::Column { name: name.into(), given, rows, width, need });
    }
    let shape = [rows, u64::from(width)];
    let shape = if width == 1 { &shape[..1] } else { &shape[..] };
    describe(name, RegionKind::Array, element, shape, RegionData::Host(Cow::Borrowed(bytes)))
}

/// Describes a rank's part of a decomposed array as a region. `memory` has the memory of each of the rank's boxes.
///
/// # Errors
/// [`RegionError`] for an unusable name or element type, a decomposition made by another rank or in another group than `place`, or memory
/// that does not fit.
pub fn decomposed<'a, T: Element>(
    name: &str,
    on: &Decomposition,
    memory: &[&'a [T]],
    place: (Rank, u32),
) -> Result<SavedRegion<'a>, RegionError> {
    check_element::<T>(name)?;
    let bytes: Vec<&[u8]> = memory.iter().map(|memory| bytemuck::cast_slice(memory)).collect();
    typed_decomposed(name, on, T::TYPE, &bytes, place)
}

/// Does the same as [`decomposed`] for elements of a type that is known only at run time. The memory of each box holds a whole number of
/// elements.
///
/// # Errors
/// See [`decomposed`].
pub fn typed_decomposed<'a>(
    name: &str,
    on: &Decomposition,
    element: ElementType,
    memory: &[&'a [u8]],
    place: (Rank, u32),
) -> Result<SavedRegion<'a>, RegionError> {
    let size = element.bytes();
    check_place(name, on, place)?;
    check_memory(name, on, memory.iter().map(|memory| memory.len() / size.max(1) as usize))?;
    let boxes = (0..).zip(memory).map(|(number, memory)| (*memory, on.own().strides(number, size)));
    let packed = Packed::new(boxes.collect());
    let data = match packed.in_one_piece() {
        Some(bytes) => RegionData::Host(Cow::Borrowed(bytes)),
        None => RegionData::Kept(Arc::new(packed)),
    };
    typed(name, element, &shape_on(on), data)
}

/// Does the same as [`typed_decomposed`] for boxes in device memory.
///
/// # Errors
/// The errors of [`typed_decomposed`], and [`RegionError::Partial`] if the memory of a box ends inside an element.
pub fn device_decomposed<'a>(
    name: &str,
    on: &Decomposition,
    element: ElementType,
    memory: &[&'a DeviceSpan],
    place: (Rank, u32),
) -> Result<SavedRegion<'a>, RegionError> {
    let size = element.bytes();
    check_place(name, on, place)?;
    check_device_memory(name, on, element, memory)?;
    let boxes = || (0..).zip(memory).map(|(number, memory)| (*memory, on.own().strides(number, size)));
    let unusable = |source| RegionError::Device { name: name.into(), source };
    let data = match &boxes().collect::<Vec<_>>()[..] {
        [(memory, strides)] if strides.one_piece() == Some(0..memory.bytes() as usize) => {
            RegionData::Device(Cow::Borrowed(*memory))
        }
        [(memory, strides)] if strides.one_piece().is_some() => {
            let (first, _) = strides.shape();
            let part = memory.part(first as u64, strides.bytes() as u64);
            RegionData::Device(Cow::Owned(part.map_err(unusable)?))
        }
        all => {
            let rows = all.iter().map(|(memory, strides)| rows_in(memory, strides));
            let rows = rows.collect::<Result<Vec<_>, DeviceError>>().map_err(unusable)?;
            RegionData::DeviceRows(Arc::new(DeviceRows::new(rows)))
        }
    };
    typed(name, element, &shape_on(on), data)
}

/// The shape with which a rank's part is recorded.
fn shape_on(on: &Decomposition) -> Vec<u64> {
    match on.own().parts().own() {
        [own] => (0..on.shape().len()).map(|dim| own.extent(dim)).collect(),
        _ => vec![on.elements()],
    }
}

/// Checks that the device memory for each box of a decomposition has the length that the box needs.
///
/// # Errors
/// The errors of [`check_memory`], and [`RegionError::Partial`] if the memory of a box ends inside an element.
pub fn check_device_memory(
    name: &str,
    on: &Decomposition,
    element: ElementType,
    memory: &[&DeviceSpan],
) -> Result<(), RegionError> {
    let size = element.bytes().max(1);
    if let Some(odd) = memory.iter().find(|memory| !memory.bytes().is_multiple_of(size)) {
        return Err(RegionError::Partial { name: name.into(), bytes: odd.bytes(), element });
    }
    check_memory(name, on, memory.iter().map(|memory| (memory.bytes() / size) as usize))
}

/// Checks that the decomposition was made by this rank, in a group of this size.
///
/// # Errors
/// [`RegionError::Decomposition`].
pub fn check_place(name: &str, on: &Decomposition, (rank, ranks): (Rank, u32)) -> Result<(), RegionError> {
    let (of, among) = on.place();
    if (of, among) == (rank, ranks) {
        return Ok(());
    }
    Err(RegionError::Decomposition { name: name.into(), of, among, rank, ranks })
}

fn check_shape(name: &str, elements: u64, shape: &[u64]) -> Result<(), RegionError> {
    if shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent)) != Some(elements) {
        return Err(RegionError::Shape { name: name.into(), shape: shape.into(), elements });
    }
    Ok(())
}

fn check_array<T: Element>(name: &str, elements: u64, shape: &[u64]) -> Result<(), RegionError> {
    check_shape(name, elements, shape)?;
    check_element::<T>(name)
}

/// Checks that the element type has the size of the application's type.
///
/// # Errors
/// [`RegionError::ElementSize`].
pub fn check_element<T: Element>(name: &str) -> Result<(), RegionError> {
    if T::TYPE.bytes() != size_of::<T>() as u64 || size_of::<T>() == 0 {
        return Err(RegionError::ElementSize { name: name.into(), element: T::TYPE, bytes: size_of::<T>() as u64 });
    }
    Ok(())
}

/// Encodes a small value as a region.
///
/// # Errors
/// [`RegionError`] for an unusable name or a value that cannot be encoded.
pub fn value<T: Serialize>(name: &str, value: &T) -> Result<SavedRegion<'static>, RegionError> {
    let bytes = codec::encode("value", value).map_err(|source| RegionError::Value { name: name.into(), source })?;
    let shape = [bytes.len() as u64];
    describe(name, RegionKind::Value, ElementType::U8, &shape, RegionData::Host(Cow::Owned(bytes)))
}

/// Encodes, as a region, a small value that other ranks may get.
///
/// # Errors
/// [`RegionError`] for an unusable name, or a value that cannot be encoded or is too long.
pub fn shared<T: Serialize>(name: &str, shared: &T) -> Result<SavedRegion<'static>, RegionError> {
    let saved = value(name, shared)?;
    let bytes = saved.region.bytes as usize;
    if bytes > SHARED_MAX { Err(RegionError::Long { name: name.into(), bytes }) } else { Ok(saved) }
}

/// Makes one of Bivouac's own regions, whose name [`is_reserved`] must accept.
pub fn reserved(name: &str, bytes: Vec<u8>) -> SavedRegion<'static> {
    debug_assert!(is_reserved(name), "{name}");
    let shape = [bytes.len() as u64];
    unchecked(name, RegionKind::Value, ElementType::U8, &shape, RegionData::Host(Cow::Owned(bytes)))
}

/// Makes one of Bivouac's own regions from bytes that are kept in any case, and that belong to many checkpoints.
pub fn reserved_shared(name: &str, bytes: Arc<[u8]>) -> SavedRegion<'static> {
    debug_assert!(is_reserved(name), "{name}");
    let shape = [bytes.len() as u64];
    unchecked(name, RegionKind::Value, ElementType::U8, &shape, RegionData::Kept(Arc::new(Shared(bytes))))
}

/// Bytes that several regions share.
#[derive(Debug)]
struct Shared(Arc<[u8]>);

impl ReadBlocks for Shared {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let (block, source) = (block_bytes as usize, &self.0[at as usize..][..target.len()]);
        for ((source, target), digest) in source.chunks(block).zip(target.chunks_mut(block)).zip(digests) {
            *digest = copy_digest(source, target);
        }
        Ok(())
    }
}

/// Decodes a value.
///
/// # Errors
/// [`RegionError::Value`] if the bytes do not encode a value of type `T`.
pub fn decode_value<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, RegionError> {
    codec::decode("value", bytes).map_err(|source| RegionError::Value { name: name.into(), source })
}

fn describe<'a>(
    name: &str,
    kind: RegionKind,
    element: ElementType,
    shape: &[u64],
    data: RegionData<'a>,
) -> Result<SavedRegion<'a>, RegionError> {
    check_name(name)?;
    Ok(unchecked(name, kind, element, shape, data))
}

/// Checks that a region of the application can have this name.
///
/// # Errors
/// [`RegionError::Name`].
pub fn check_name(name: &str) -> Result<(), RegionError> {
    // There may be thousands of names, and most of them are ASCII, which needs no table of characters.
    let has_control = match name.is_ascii() {
        true => name.bytes().any(|byte| byte.is_ascii_control()),
        false => name.chars().any(char::is_control),
    };
    if name.is_empty() || name.len() > 256 || has_control || is_reserved(name) {
        return Err(RegionError::Name { name: name.into() });
    }
    Ok(())
}

fn unchecked<'a>(
    name: &str,
    kind: RegionKind,
    element: ElementType,
    shape: &[u64],
    data: RegionData<'a>,
) -> SavedRegion<'a> {
    let region = Region {
        name: name.into(),
        kind,
        element,
        shape: shape.into(),
        bytes: data.bytes(),
        offset: 0,
        first_block: 0,
    };
    SavedRegion { region, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::host::{HostDevice, HostModel};

    #[test]
    fn slices_and_values_become_regions() {
        let saved = array("t", &[1.0f64, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
        assert_eq!((saved.region.bytes, saved.region.element), (32, ElementType::F64));
        let saved = value("step", &7u64).unwrap();
        let RegionData::Host(bytes) = &saved.data else { panic!("a value is in host memory") };
        assert_eq!(decode_value::<u64>("step", bytes), Ok(7));
        assert!(decode_value::<String>("step", bytes).is_err());
        assert_eq!(<[f64; 3] as Element>::TYPE, ElementType::Record(24));
    }

    #[test]
    fn device_memory_becomes_a_region_like_any_other() {
        let device = HostDevice::new(HostModel::default());
        let span = device.allocate(64).unwrap();
        let (on_device, on_host) = (device_array::<f64>("t", &span, None).unwrap(), [0.0f64; 8]);
        assert_eq!(on_device.region, array("t", &on_host, &[8]).unwrap().region);
        assert_eq!(device_array::<f32>("t", &span, Some(&[4, 4])).unwrap().region.shape, [4, 4]);
        assert!(matches!(device_array::<f64>("t", &span, Some(&[7])), Err(RegionError::Shape { elements: 8, .. })));
        let odd = span.part(0, 63).unwrap();
        assert!(matches!(device_array::<f64>("t", &odd, None), Err(RegionError::Partial { bytes: 63, .. })));
    }

    #[test]
    fn what_cannot_be_a_region_is_refused() {
        assert!(matches!(array("t", &[1u8, 2], &[3]), Err(RegionError::Shape { .. })));
        assert!(matches!(array("t", &[1u8, 2], &[u64::MAX, 3]), Err(RegionError::Shape { .. })));
        assert!(matches!(array("", &[1u8], &[1]), Err(RegionError::Name { .. })));
        assert!(matches!(array("a\nb", &[1u8], &[1]), Err(RegionError::Name { .. })));
        assert!(matches!(value(AFFINITY, &1u8), Err(RegionError::Name { .. })), "a name of ours");
    }
}
