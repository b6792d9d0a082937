//! Copying the application's regions: into a memory slot, or block by block into a file.
//!
//! The digests of host regions are computed in the same pass over the source that copies it; those of device regions are computed on the
//! device, before their bytes cross the link. Versions of histories already have digests, with which the arriving bytes are compared. The
//! head is written last. The slot path touches nothing but the slot, and is divided into parts, because device regions may arrive in it
//! later than host regions. The file path (for shards that no slot can hold) stages through one buffer of the configured write size, so
//! that memory stays bounded.

use super::remains::within;
use crate::base::digest::{copy_digest, copy_digest_before, digest_bytes, store_fence, zero_streaming};
use crate::base::units::page_ceil;
use crate::base::{Digest, Rank};
use crate::device::{Copied, DeviceError, DeviceSpan, Run, Staging, Stream};
use crate::format::shard::{Head, Layout, encode_head};
use crate::format::{ContainerEntry, Region, ShardHeader, container};
use crate::region::{DeviceRows, RegionData, SavedRegion};
use crate::tier::TierError;
use crate::tier::Upload;
use crate::tier::posix::PageBuffer;
use std::ops::Range;
use std::sync::Arc;

/// Bytes in device memory.
#[derive(Clone)]
pub enum DeviceBytes {
    /// In one piece.
    Span(DeviceSpan),
    /// In rows.
    Rows(Arc<DeviceRows>),
}

impl DeviceBytes {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            DeviceBytes::Span(span) => span.bytes(),
            DeviceBytes::Rows(rows) => rows.bytes(),
        }
    }

    /// The memory, if it is in one piece.
    pub fn span(&self) -> Option<&DeviceSpan> {
        match self {
            DeviceBytes::Span(span) => Some(span),
            DeviceBytes::Rows(_) => None,
        }
    }
}

/// A region in device memory, or some of its blocks, and its place in the shard.
pub struct DevicePart {
    /// The memory.
    pub memory: DeviceBytes,
    /// Where its bytes go, from the start of the shard.
    pub at: u64,
    /// Its blocks among those of the shard.
    pub blocks: Range<usize>,
    /// Its place among the regions.
    pub region: usize,
}

/// The device regions of a shard, in order.
pub fn device_parts(layout: &Layout, regions: &[SavedRegion<'_>]) -> Vec<DevicePart> {
    let part = |(region, (placed, saved)): (usize, (&Region, &SavedRegion<'_>))| {
        let memory = match &saved.data {
            RegionData::Host(_) | RegionData::Live(_) | RegionData::Kept(_) | RegionData::Held { .. } => return None,
            RegionData::Device(span) => DeviceBytes::Span(DeviceSpan::clone(span)),
            RegionData::DeviceRows(rows) => DeviceBytes::Rows(rows.clone()),
        };
        let first = placed.first_block as usize;
        let blocks = first..first + placed.blocks(layout.block_size) as usize;
        Some(DevicePart { memory, at: layout.body_offset + placed.offset, blocks, region })
    };
    layout.meta.regions.iter().zip(regions).enumerate().filter_map(part).collect()
}

/// Do some of them consist of several pieces?
pub fn has_rows(parts: &[DevicePart]) -> bool {
    parts.iter().any(|part| part.memory.span().is_none())
}

/// Puts the digests of device regions, given one region after the other, into their places among those of the shard.
pub fn place_digests(parts: &[DevicePart], found: &[Digest], digests: &mut [Digest]) {
    let mut rest = found;
    for part in parts {
        let (own, others) = rest.split_at(part.blocks.len());
        digests[part.blocks.clone()].copy_from_slice(own);
        rest = others;
    }
}

/// Some blocks of device regions that are in one piece. The blocks are given by their places among those of the shard, in ascending ranges.
///
/// # Errors
/// [`DeviceError::Range`] for parts that are not whole regions.
pub fn some_blocks(
    parts: &[DevicePart],
    block_bytes: u64,
    blocks: &[Range<usize>],
) -> Result<Vec<DevicePart>, DeviceError> {
    let mut some: Vec<DevicePart> = Vec::new();
    for (part, span) in in_one_piece(parts) {
        for blocks in within(blocks, &part.blocks) {
            let start = (blocks.start - part.blocks.start) as u64 * block_bytes;
            let end = span.bytes().min((blocks.end - part.blocks.start) as u64 * block_bytes);
            let memory = DeviceBytes::Span(span.part(start, end - start)?);
            some.push(DevicePart { memory, at: part.at + start, blocks, region: part.region });
        }
    }
    Ok(some)
}

/// The parts in one piece.
fn in_one_piece(parts: &[DevicePart]) -> impl Iterator<Item = (&DevicePart, &DeviceSpan)> {
    parts.iter().filter_map(|part| Some((part, part.memory.span()?)))
}

/// Computes, on the device, the digests of device regions that are in one piece, and puts them into their places among those of the shard.
///
/// # Errors
/// Any error that the device reports.
///
/// # Blocking
/// For the work that is enqueued on the stream, and one pass over the regions.
pub fn digest_on_device(
    parts: &[DevicePart],
    block_bytes: u64,
    stream: &dyn Stream,
    digests: &mut [Digest],
) -> Result<(), DeviceError> {
    let found = begin_digests(parts, block_bytes, stream)?;
    let found = found.map_or_else(|| Ok(Vec::new()), |copied| copied.digests())?;
    let mut rest = &found[..];
    for (part, _) in in_one_piece(parts) {
        let (own, others) = rest.split_at(part.blocks.len());
        digests[part.blocks.clone()].copy_from_slice(own);
        rest = others;
    }
    Ok(())
}

/// Enqueues the computation of digests for device regions that are in one piece, one region after the other; `None` if there are no bytes.
///
/// # Errors
/// Any error that the device reports.
pub fn begin_digests(
    parts: &[DevicePart],
    block_bytes: u64,
    stream: &dyn Stream,
) -> Result<Option<Box<dyn Copied>>, DeviceError> {
    let mut runs = Vec::with_capacity(parts.len());
    let mut next = 0;
    for (part, span) in in_one_piece(parts).filter(|(part, _)| !part.blocks.is_empty()) {
        runs.push(Run::whole(span.clone(), None, next));
        next += part.blocks.len() as u32;
    }
    if runs.is_empty() { Ok(None) } else { stream.copy_blocks(runs, block_bytes).map(Some) }
}

/// How many blocks are compared before a capture stops looking for unchanged ones.
const LOOKS: usize = 16;

/// Copies the host regions into `target` (of at least `layout.total_len` bytes), their digests into `digests`, and zeroes the padding after
/// every region. Regions that are held there stay unchanged, and those in live memory are copied later. `here` holds the digests of the
/// content of `target`, if they are known: a block with an equal digest is not copied, unless most blocks turn out to have changed.
pub fn copy_host(
    layout: &Layout,
    regions: &[SavedRegion<'_>],
    target: &mut [u8],
    digests: &mut [Digest],
    here: Option<&[Digest]>,
) {
    let (mut looked, mut same) = (0, 0);
    let body = &mut target[layout.body_offset as usize..];
    let block = layout.block_size as usize;
    for (index, (placed, saved)) in layout.meta.regions.iter().zip(regions).enumerate() {
        let start = placed.offset as usize;
        let end = start + placed.bytes as usize;
        if let RegionData::Host(bytes) = &saved.data {
            let digests = &mut digests[placed.first_block as usize..];
            let blocks = bytes.chunks(block).zip(body[start..end].chunks_mut(block));
            let behind = bytes.as_ptr_range().end;
            let next = match regions.get(index + 1).map(|saved| &saved.data) {
                Some(RegionData::Host(bytes)) => bytes.as_ptr(),
                _ => behind,
            };
            for (index, ((from, to), digest)) in blocks.zip(digests).enumerate() {
                let is_worth_it = looked < LOOKS || 2 * same > looked;
                if let Some(here) = here.filter(|_| is_worth_it) {
                    looked += 1;
                    *digest = digest_bytes(from);
                    if here[placed.first_block as usize + index] == *digest {
                        same += 1;
                        continue;
                    }
                }
                let end = from.as_ptr_range().end;
                *digest = copy_digest_before(from, to, if end == behind { next } else { end });
            }
        }
        // Reused slots hold older bytes. The padding is part of the file and must not leak them.
        let page_end = start + page_ceil(placed.bytes) as usize;
        if end < page_end {
            zero_streaming(&mut body[end..page_end]);
        }
    }
}

/// A region that is read during the capture could not be read.
#[derive(Debug, thiserror::Error)]
#[error("region {region:?}: {reason}")]
pub struct Unreadable {
    /// The name of the region.
    pub region: String,
    /// The reason.
    pub reason: String,
}

/// Reads kept regions into `target`, a whole shard, and writes their digests to `digests`.
///
/// # Errors
/// [`Unreadable`]; the content of `target` is then unspecified.
///
/// # Blocking
/// On the storage that holds the regions.
pub fn read_kept(
    layout: &Layout,
    regions: &[SavedRegion<'_>],
    target: &mut [u8],
    digests: &mut [Digest],
) -> Result<(), Unreadable> {
    let body = &mut target[layout.body_offset as usize..];
    for (placed, saved) in layout.meta.regions.iter().zip(regions) {
        let RegionData::Kept(kept) = &saved.data else { continue };
        let target = &mut body[placed.offset as usize..][..placed.bytes as usize];
        let digests = &mut digests[placed.first_block as usize..][..placed.blocks(layout.block_size) as usize];
        let read = kept.read(0, layout.block_size, target, digests);
        read.map_err(|reason| Unreadable { region: placed.name.clone(), reason })?;
    }
    Ok(())
}

/// Copies device regions into `target`, a whole shard. Digests of regions in rows are computed from the bytes that arrive.
///
/// # Errors
/// The device's error; the content of `target` is then unspecified.
///
/// # Blocking
/// For the work that is enqueued on the stream, and for the transfer.
pub fn download(
    parts: &[DevicePart],
    block_bytes: u64,
    target: &mut [u8],
    stream: &dyn Stream,
    digests: &mut [Digest],
) -> Result<(), DeviceError> {
    let copies = in_one_piece(parts).map(|(part, span)| (span.clone(), part.at));
    stream.download(&mut targets(copies, target), None)?;
    for part in parts {
        if let DeviceBytes::Rows(rows) = &part.memory {
            let target = &mut target[part.at as usize..][..rows.bytes() as usize];
            download_rows(rows, 0, block_bytes, target, stream, &mut digests[part.blocks.clone()])?;
        }
    }
    store_fence();
    Ok(())
}

/// Size in bytes of the pinned memory that rows pass through, at least one block. Two such memories exist: the device fills one while the
/// other is emptied.
const STAGED_ROWS: u64 = 4 << 20;

/// Copies the bytes of rows, beginning at `at` (a block boundary), into `target`, and computes the digests of the blocks.
fn download_rows(
    rows: &DeviceRows,
    at: u64,
    block_bytes: u64,
    target: &mut [u8],
    stream: &dyn Stream,
    digests: &mut [Digest],
) -> Result<(), DeviceError> {
    let size = STAGED_ROWS.max(block_bytes).min((target.len() as u64).next_multiple_of(block_bytes));
    if size == 0 {
        return Ok(());
    }
    let mut pieces = target.chunks_mut(size as usize).zip(digests.chunks_mut((size / block_bytes) as usize));
    let mut begin = at;
    let mut enqueue = |staging: &mut Box<dyn Staging + '_>| -> Result<_, DeviceError> {
        let Some((to, digests)) = pieces.next() else { return Ok(None) };
        staging.gather(&rows.copies(begin, to.len() as u64))?;
        begin += to.len() as u64;
        Ok(Some((to, digests)))
    };
    let (mut filled, mut spare) = (stream.staging(size)?, stream.staging(size)?);
    let mut next = enqueue(&mut filled)?;
    while let Some((to, digests)) = next {
        next = enqueue(&mut spare)?;
        let from = &filled.memory()?[..to.len()];
        copy_blocks(from, to, block_bytes as usize, digests);
        std::mem::swap(&mut filled, &mut spare);
    }
    Ok(())
}

/// Pairs each span with the bytes of `target` that begin at its offset. Offsets ascend, and spans do not overlap in `target`.
pub fn targets(copies: impl Iterator<Item = (DeviceSpan, u64)>, target: &mut [u8]) -> Vec<(DeviceSpan, &mut [u8])> {
    let (mut rest, mut at) = (target, 0);
    let mut pairs = Vec::new();
    for (span, offset) in copies {
        let length = span.bytes();
        let (bytes, behind) = rest.split_at_mut((offset - at + length) as usize);
        pairs.push((span, &mut bytes[(offset - at) as usize..]));
        (rest, at) = (behind, offset + length);
    }
    pairs
}

/// Writes everything that precedes the bodies, and returns it. Other threads and processes see everything once the slot's state is stored,
/// which must follow.
pub fn write_head(layout: &Layout, header: &ShardHeader, digests: Vec<Digest>, target: &mut [u8]) -> Head {
    let written = encode_head(layout, header, &digests, &mut target[..layout.body_offset as usize]);
    store_fence();
    Head::written(layout, written, digests)
}

/// Why a shard was not written to a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The tier failed, or what arrived from the device differs from what was there.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The bytes of a region could not be read.
    #[error(transparent)]
    Region(#[from] Unreadable),
}

/// Writes the shard as the only one of a container, durable but still under its temporary name. `digests` already has those of the regions
/// that are in the file. Returns the location of the shard and its head. Device regions need the stream; their blocks are compared on
/// arrival with the digests made on the device.
///
/// # Errors
/// [`FileError`]; the upload is condemned.
///
/// # Blocking
/// Until the storage has everything.
pub fn into_file(
    layout: &Layout,
    header: &ShardHeader,
    regions: &[SavedRegion<'_>],
    stream: Option<&dyn Stream>,
    upload: &dyn Upload,
    write_bytes: usize,
    mut digests: Vec<Digest>,
) -> Result<(ContainerEntry, Head), FileError> {
    let entry = ContainerEntry { key: header.key, rank: header.rank, offset: 0, length: layout.total_len };
    let tail = container::encode_tail(std::slice::from_ref(&entry)).unwrap_or_default();
    upload.reserve(layout.total_len + tail.len() as u64)?;
    if let Some(stream) = stream {
        digest_on_device(&device_parts(layout, regions), layout.block_size, stream, &mut digests)?;
    }
    bodies_into_file(layout, header.rank, regions, stream, upload, write_bytes, &mut digests)?;
    let mut head = PageBuffer::new(layout.body_offset as usize);
    let written = encode_head(layout, header, &digests, &mut head);
    upload.write_at(0, &head)?;
    upload.write_at(layout.total_len, &tail)?;
    upload.sync()?;
    Ok((entry, Head::written(layout, written, digests)))
}

/// Writes those bodies of a shard that are not in the file yet, and their digests into `digests`. Device regions in one piece already have
/// digests; their bodies are compared with them.
///
/// # Errors
/// [`FileError`]; the upload is condemned.
///
/// # Blocking
/// Until the storage has taken them.
pub fn bodies_into_file(
    layout: &Layout,
    rank: Rank,
    regions: &[SavedRegion<'_>],
    stream: Option<&dyn Stream>,
    upload: &dyn Upload,
    write_bytes: usize,
    digests: &mut [Digest],
) -> Result<(), FileError> {
    let block = layout.block_size as usize;
    // A whole number of blocks, so that every piece starts on a page.
    let mut buffer = PageBuffer::new(write_bytes.next_multiple_of(block));
    let missing = |(_, saved): &(&Region, &SavedRegion<'_>)| !matches!(saved.data, RegionData::Held { .. });
    for (placed, saved) in layout.meta.regions.iter().zip(regions).filter(missing) {
        let length = placed.bytes as usize;
        for at in (0..length).step_by(buffer.len()) {
            let bytes = buffer.len().min(length - at);
            let staged = &mut buffer[..page_ceil(bytes as u64) as usize];
            let first = placed.first_block as usize + at / block;
            let blocks = &mut digests[first..first + bytes.div_ceil(block)];
            match (&saved.data, stream) {
                (RegionData::Host(source), _) => {
                    copy_blocks(&source[at..at + bytes], &mut staged[..bytes], block, blocks)
                }
                (RegionData::Live(memory), _) => {
                    copy_blocks(&memory.at_once()[at..at + bytes], &mut staged[..bytes], block, blocks);
                }
                (RegionData::Device(span), Some(stream)) => {
                    let part = span.part(at as u64, bytes as u64)?;
                    stream.download(&mut [(part, &mut staged[..bytes])], None)?;
                    check(rank, layout.block_size, placed, at, &staged[..bytes], blocks, upload)?;
                }
                (RegionData::Kept(kept), _) => {
                    let read = kept.read(at as u64, layout.block_size, &mut staged[..bytes], blocks);
                    read.map_err(|reason| Unreadable { region: placed.name.clone(), reason })?;
                }
                (RegionData::DeviceRows(rows), Some(stream)) => {
                    download_rows(rows, at as u64, layout.block_size, &mut staged[..bytes], stream, blocks)?;
                }
                (RegionData::Device(_) | RegionData::DeviceRows(_), None) => {
                    let reason = "device memory cannot be read without a stream";
                    return Err(DeviceError::Range { offset: 0, bytes: placed.bytes, reason }.into());
                }
                (RegionData::Held { .. }, _) => {}
            }
            staged[bytes..].fill(0);
            store_fence();
            upload.write_at(layout.body_offset + placed.offset + at as u64, staged)?;
        }
    }
    Ok(())
}

/// Copies blocks, and computes their digests.
fn copy_blocks(from: &[u8], to: &mut [u8], block: usize, digests: &mut [Digest]) {
    let pieces = from.chunks(block).zip(to.chunks_mut(block));
    pieces.zip(digests).for_each(|((from, to), digest)| *digest = copy_digest(from, to));
}

/// Are these the bytes that were on the device? A capture into a file is the only way in which bytes reach a durable
/// tier without passing through a [`WriteJob`](super::write::WriteJob), which checks all that it writes.
fn check(
    rank: Rank,
    block_bytes: u64,
    region: &Region,
    at: usize,
    bytes: &[u8],
    expected: &[Digest],
    upload: &dyn Upload,
) -> Result<(), TierError> {
    let block = block_bytes as usize;
    let found = bytes.chunks(block).map(digest_bytes);
    let Some((index, (found, expected))) = found.zip(expected).enumerate().find(|(_, (found, made))| found != *made)
    else {
        return Ok(());
    };
    Err(TierError::Damaged {
        tier: upload.kind(),
        path: upload.path().to_owned(),
        rank,
        region: region.name.clone(),
        at: (at + index * block) as u64,
        expected: *expected,
        found,
    })
}
