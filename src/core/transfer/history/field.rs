//! The application's fields: where their bytes are, how bytes are copied to and from them, and their digests.
#![forbid(unsafe_code)]

use super::error::HistoryError;
use super::layout::{Cut, FieldInfo, Layout};
use crate::base::Digest;
use crate::device::{DeviceSpan, Run, Stream};
use crate::format::ElementType;
use crate::region::Element;

/// A field of a version to append.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    pub(super) name: &'a str,
    pub(super) element: ElementType,
    pub(super) data: FieldData<'a>,
}

#[derive(Clone, Debug)]
pub(super) enum FieldData<'a> {
    Device(&'a DeviceSpan),
    Host(&'a [u8]),
}

impl<'a> Field<'a> {
    /// A field in device memory that holds elements of type `T`.
    pub fn device<T: Element>(name: &'a str, span: &'a DeviceSpan) -> Field<'a> {
        Field { name, element: T::TYPE, data: FieldData::Device(span) }
    }

    /// A field in a slice of host memory. The append copies it to the device cache and waits for the copy.
    pub fn host<T: Element>(name: &'a str, slice: &'a [T]) -> Field<'a> {
        Field { name, element: T::TYPE, data: FieldData::Host(bytemuck::cast_slice(slice)) }
    }

    /// A field of bytes in host memory, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn host_bytes(name: &'a str, element: ElementType, bytes: &'a [u8]) -> Field<'a> {
        Field { name, element, data: FieldData::Host(bytes) }
    }

    /// A field of bytes in device memory, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn device_bytes(name: &'a str, element: ElementType, span: &'a DeviceSpan) -> Field<'a> {
        Field { name, element, data: FieldData::Device(span) }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self.data {
            FieldData::Device(span) => span.bytes(),
            FieldData::Host(slice) => slice.len() as u64,
        }
    }
}

/// A field of a version to restore.
#[derive(Debug)]
pub struct FieldMut<'a> {
    pub(super) name: &'a str,
    pub(super) element: ElementType,
    pub(super) data: FieldDataMut<'a>,
}

#[derive(Debug)]
pub(super) enum FieldDataMut<'a> {
    Device(&'a DeviceSpan),
    Host(&'a mut [u8]),
}

impl<'a> FieldMut<'a> {
    /// Device memory that has exactly the field's length.
    pub fn device<T: Element>(name: &'a str, span: &'a DeviceSpan) -> FieldMut<'a> {
        FieldMut { name, element: T::TYPE, data: FieldDataMut::Device(span) }
    }

    /// A slice of host memory that has exactly the field's length.
    pub fn host<T: Element>(name: &'a str, slice: &'a mut [T]) -> FieldMut<'a> {
        FieldMut { name, element: T::TYPE, data: FieldDataMut::Host(bytemuck::cast_slice_mut(slice)) }
    }

    /// Bytes in host memory, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn host_bytes(name: &'a str, element: ElementType, bytes: &'a mut [u8]) -> FieldMut<'a> {
        FieldMut { name, element, data: FieldDataMut::Host(bytes) }
    }

    /// Bytes in device memory, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn device_bytes(name: &'a str, element: ElementType, span: &'a DeviceSpan) -> FieldMut<'a> {
        FieldMut { name, element, data: FieldDataMut::Device(span) }
    }

    pub(super) fn bytes(&self) -> u64 {
        match &self.data {
            FieldDataMut::Device(span) => span.bytes(),
            FieldDataMut::Host(slice) => slice.len() as u64,
        }
    }
}

impl Layout {
    /// A cut as a run of a device copy.
    pub(super) fn run(&self, cut: &Cut, from: DeviceSpan, to: Option<DeviceSpan>) -> Run {
        let info = &self.fields[cut.field];
        Run { from, to, first_block: info.first_block, start: cut.start, region_bytes: info.bytes }
    }
}

/// The digests of fields, computed where the fields are.
pub(super) fn digests_of(
    layout: &Layout,
    fields: &[Field<'_>],
    stream: &dyn Stream,
) -> Result<Vec<Digest>, HistoryError> {
    let mut digests = vec![Digest::default(); layout.blocks as usize];
    let mut runs = Vec::new();
    for (field, info) in fields.iter().zip(&layout.fields) {
        match field.data {
            FieldData::Device(span) => runs.push(Run::whole(span.clone(), None, info.first_block)),
            FieldData::Host(slice) => {
                digest_slice(slice, layout.block_bytes, &mut digests[info.first_block as usize..])
            }
        }
    }
    let found = stream.copy_blocks(runs, layout.block_bytes)?.digests()?;
    for (field, info) in fields.iter().zip(&layout.fields) {
        if matches!(field.data, FieldData::Device(_)) {
            let blocks = info.blocks(layout.block_bytes);
            digests[blocks.clone()].copy_from_slice(&found[blocks]);
        }
    }
    Ok(digests)
}

pub(super) fn digest_slice(slice: &[u8], block_bytes: u64, digests: &mut [Digest]) {
    let blocks = slice.chunks(block_bytes as usize).zip(digests);
    blocks.for_each(|(block, digest)| *digest = crate::base::digest::digest_bytes(block));
}

/// The digests of what the application has in host memory, in the blocks of the version.
pub(super) struct FromHost(Vec<(usize, Vec<Digest>)>);

impl FromHost {
    /// Computes the digests for those fields that are in host memory.
    pub(super) fn new(layout: &Layout, fields: &[Field<'_>]) -> FromHost {
        let made = fields.iter().zip(&layout.fields).enumerate().filter_map(|(at, (field, info))| match field.data {
            FieldData::Device(_) => None,
            FieldData::Host(slice) => {
                let mut digests = vec![Digest::default(); info.blocks(layout.block_bytes).len()];
                digest_slice(slice, layout.block_bytes, &mut digests);
                Some((at, digests))
            }
        });
        FromHost(made.collect())
    }

    /// Checks that the bytes that came over the link are those of the application.
    ///
    /// # Errors
    /// [`HistoryError::Damaged`].
    pub(super) fn check(&self, layout: &Layout, found: &[Digest]) -> Result<(), HistoryError> {
        self.0.iter().try_for_each(|(field, expected)| {
            let info = &layout.fields[*field];
            compare_blocks(info, 0, expected, &found[info.blocks(layout.block_bytes)], "device")
        })
    }
}

/// Copies bytes from a field of the caller.
pub(super) fn get(field: &Field<'_>, at: u64, bytes: &mut [u8], stream: &dyn Stream) -> Result<(), HistoryError> {
    match field.data {
        FieldData::Device(span) => stream.download(&mut [(span.part(at, bytes.len() as u64)?, bytes)], None)?,
        FieldData::Host(slice) => bytes.copy_from_slice(&slice[at as usize..at as usize + bytes.len()]),
    }
    Ok(())
}

/// Copies bytes into a field of the caller.
pub(super) fn put(field: &mut FieldMut<'_>, at: u64, bytes: &[u8], stream: &dyn Stream) -> Result<(), HistoryError> {
    match &mut field.data {
        FieldDataMut::Device(span) => stream.upload(&[(bytes, span.part(at, bytes.len() as u64)?)], None)?,
        FieldDataMut::Host(slice) => slice[at as usize..at as usize + bytes.len()].copy_from_slice(bytes),
    }
    Ok(())
}

/// Checks the present content of the caller's fields; that of device fields is checked on the device.
pub(super) fn check(
    layout: &Layout,
    digests: &[Digest],
    targets: &[usize],
    fields: &[FieldMut<'_>],
    tier: &'static str,
    stream: &dyn Stream,
) -> Result<(), HistoryError> {
    let mut found = vec![Digest::default(); layout.blocks as usize];
    let mut runs = Vec::new();
    for (field, target) in fields.iter().zip(targets) {
        let info = &layout.fields[*target];
        match &field.data {
            FieldDataMut::Device(span) => runs.push(Run::whole((*span).clone(), None, info.first_block)),
            FieldDataMut::Host(slice) => {
                digest_slice(slice, layout.block_bytes, &mut found[info.blocks(layout.block_bytes)]);
            }
        }
    }
    let on_device = stream.copy_blocks(runs, layout.block_bytes)?.digests()?;
    for (field, target) in fields.iter().zip(targets) {
        if matches!(field.data, FieldDataMut::Device(_)) {
            let blocks = layout.fields[*target].blocks(layout.block_bytes);
            found[blocks.clone()].copy_from_slice(&on_device[blocks]);
        }
    }
    compare(layout, digests, &found, targets.iter().copied(), tier)
}

/// Are the digests of these fields equal to those made when the fields were appended?
pub(super) fn compare(
    layout: &Layout,
    expected: &[Digest],
    found: &[Digest],
    fields: impl Iterator<Item = usize>,
    tier: &'static str,
) -> Result<(), HistoryError> {
    for info in fields.map(|field| &layout.fields[field]) {
        let blocks = info.blocks(layout.block_bytes);
        compare_blocks(info, 0, &expected[blocks.clone()], &found[blocks], tier)?;
    }
    Ok(())
}

/// Compares digests of blocks of one field, beginning with the block of index `first`.
pub(super) fn compare_blocks(
    info: &FieldInfo,
    first: u64,
    expected: &[Digest],
    found: &[Digest],
    tier: &'static str,
) -> Result<(), HistoryError> {
    let differs = expected.iter().zip(found).enumerate().find(|(_, (expected, found))| expected != found);
    let Some((index, (expected, found))) = differs else { return Ok(()) };
    let (field, block) = (info.name.clone(), first + index as u64);
    Err(HistoryError::Damaged { tier, field, block, expected: *expected, found: *found })
}

impl FieldInfo {
    /// The field's blocks among the version's digests.
    pub(super) fn blocks(&self, block_bytes: u64) -> std::ops::Range<usize> {
        let first = self.first_block as usize;
        first..first + self.bytes.div_ceil(block_bytes) as usize
    }
}
