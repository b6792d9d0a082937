//! A shard in node memory in the form in which a file is going to hold it: with references to what earlier files already hold, and the rest
//! compressed if requested.
#![forbid(unsafe_code)]

use super::pieces::Piece;
use super::source::{FileShard, MemoryShard, Source};
use super::storage::ReadFile;
use super::{TierError, TierId};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::format::FormatError;
use crate::format::frames::Compressor;
use crate::format::packed::{Extent, FRAME_MAX, Frame, Packing, Placed, SourceKey, Stored};
use crate::format::shard::{Head, encode_head};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A packed shard whose bytes are made from memory when they are read, and its description.
#[derive(Clone)]
pub struct PackedShard {
    /// The shard, as a file is going to hold it.
    pub shard: FileShard,
    /// What the shard stands for, and where each part of that is.
    pub packing: Arc<Packing>,
}

/// The bytes of a packed shard.
struct Packed {
    own: OwnBytes,
    /// Everything before the bytes that the shard stores itself.
    prefix: Vec<u8>,
    total: u64,
}

/// What a packed shard stores itself.
struct OwnBytes {
    shard: MemoryShard,
    packing: Arc<Packing>,
    /// What is stored of each frame that is compressed.
    compressed: Vec<Option<Box<[u8]>>>,
}

/// Packs a shard with these sources, and with extents that cover its regions and whose references are right. Its own bytes are compressed
/// as long as the compressed frames take at most `room` bytes.
///
/// The bytes that the packed shard stores itself are read once. If one of its blocks is also a block of the shard, the digest of that block
/// is reused, and is checked when the block is written. All other blocks from which bytes are taken are checked here.
///
/// # Errors
/// [`TierError::Damaged`] if the shard has changed since the capture; [`TierError::Format`] for what the format cannot hold.
pub fn pack(
    shard: &MemoryShard,
    sources: Vec<SourceKey>,
    extents: &[Extent],
    room: u64,
) -> Result<PackedShard, TierError> {
    let path = Source::Memory(shard.clone()).path().to_owned();
    let wrong = |source: FormatError| TierError::Format { tier: TierId::MEMORY, path: path.clone(), source };
    let head = shard.part(0, shard.head().header.body_offset as usize)?.to_vec();
    let packing = Packing::new(head, sources, extents).map_err(wrong)?;
    let (frames, compressed) = if room > 0 { compress(shard, &packing, room)? } else { Default::default() };
    let packing = Arc::new(packing.with_frames(&frames).map_err(wrong)?);
    let encoded = packing.encode(room > 0).map_err(wrong)?;
    let (layout, header) = packing.layout(&encoded).map_err(wrong)?;
    let block = layout.block_size;
    let mut digests: Vec<Digest> = Vec::with_capacity(layout.block_count as usize);
    for body in &encoded {
        digests.extend(body.chunks(block as usize).map(digest_bytes));
    }
    let own = OwnBytes { shard: shard.clone(), packing: packing.clone(), compressed };
    digests.extend(own.digests(block)?);
    let own_at = layout.body_offset + layout.meta.regions[encoded.len()].offset;
    let mut prefix = vec![0; own_at as usize];
    let header = encode_head(&layout, &header, &digests, &mut prefix[..layout.body_offset as usize]);
    for (region, body) in layout.meta.regions.iter().zip(&encoded) {
        let start = (layout.body_offset + region.offset) as usize;
        prefix[start..start + body.len()].copy_from_slice(body);
    }
    let head = Head::written(&layout, header, digests);
    let file = Packed { own, prefix, total: layout.total_len };
    let shard = FileShard::written(TierId::MEMORY, path, Arc::new(file), 0, head);
    Ok(PackedShard { shard, packing })
}

/// The frames, and what is stored of those that are compressed.
type Compressed = (Vec<Frame>, Vec<Option<Box<[u8]>>>);

/// Divides a shard's own bytes into frames. Returns none if no frame becomes shorter, and then does not read the
/// frames that it passed over.
///
/// # Errors
/// [`TierError::Damaged`] if the shard has changed since the capture.
fn compress(shard: &MemoryShard, packing: &Packing, mut room: u64) -> Result<Compressed, TierError> {
    let path = Source::Memory(shard.clone()).path().to_owned();
    let no_memory = |source| TierError::io(TierId::MEMORY, "compress", &path, source);
    let mut compressor = Compressor::new().map_err(no_memory)?;
    let (mut frames, mut compressed, mut bytes, mut passed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut at, mut unchecked) = (0, 0);
    for (region, own) in packing.own_regions() {
        let end = at + own;
        while at < end {
            let range = at..end.min(at + FRAME_MAX);
            at = range.end;
            let length = range.end - range.start;
            let element = region.element.bytes();
            let mut packed = None;
            // A sample is not checked, because it decides only whether compression is worth trying.
            let is_tried = room > 0 && compressor.is_due() && {
                let sample = Compressor::sample(length as usize);
                bytes.resize(sample.len(), 0);
                let start = range.start + sample.start as u64;
                read_plain(shard, packing, start..start + sample.len() as u64, &mut bytes)?;
                compressor.is_promising(&bytes, element)
            };
            if is_tried {
                unchecked = read_checked(shard, packing, range, unchecked, &mut bytes)?;
                packed = compressor.compress(&bytes, element);
                let taken = packed.as_ref().map_or(0, |packed| packed.len() as u64);
                // After the first frame that does not fit, no other is tried.
                packed = packed.filter(|_| taken <= room);
                room = room.saturating_sub(taken);
            } else {
                passed.push(range);
            }
            let stored = packed.as_ref().map_or(length, |packed| packed.len() as u64);
            // No frame is longer than 2^20.
            frames.push(Frame { bytes: length as u32, stored: stored as u32 });
            compressed.push(packed);
        }
    }
    if !compressed.iter().any(Option::is_some) {
        return Ok(Compressed::default());
    }
    let mut unchecked = 0;
    for part in passed.into_iter().flat_map(|range| own_parts(packing, range)) {
        unchecked = check_blocks(shard, packing, &part, unchecked)?;
    }
    Ok((frames, compressed))
}

impl OwnBytes {
    /// The digests of what is stored, block by block.
    fn digests(&self, block: u64) -> Result<Vec<Digest>, TierError> {
        let (stored, mut digests, mut bytes) = (self.packing.stored_bytes(), Vec::new(), Vec::new());
        let mut unchecked = 0;
        for start in (0..stored).step_by(block as usize) {
            let range = start..stored.min(start + block);
            if self.compressed.is_empty() {
                let taken = own_parts(&self.packing, range.clone());
                if let [only] = &taken[..]
                    && let Some(digest) = digest_of(&self.packing, only.clone())
                {
                    digests.push(digest);
                    continue;
                }
                unchecked = read_checked(&self.shard, &self.packing, range, unchecked, &mut bytes)?;
            } else {
                bytes.resize((range.end - range.start) as usize, 0);
                self.read(range, &mut bytes)?;
            }
            digests.push(digest_bytes(&bytes));
        }
        Ok(digests)
    }

    /// Reads a range of what is stored.
    fn read(&self, range: Range<u64>, buffer: &mut [u8]) -> Result<(), TierError> {
        if self.compressed.is_empty() {
            return read_plain(&self.shard, &self.packing, range, buffer);
        }
        let frames = &self.packing.frames;
        let first = frames.partition_point(|frame| frame.stored_at + frame.stored <= range.start);
        let mut rest = buffer;
        for (frame, compressed) in frames[first..].iter().zip(&self.compressed[first..]) {
            if frame.stored_at >= range.end {
                break;
            }
            let from = range.start.max(frame.stored_at) - frame.stored_at;
            let to = range.end.min(frame.stored_at + frame.stored) - frame.stored_at;
            let (target, behind) = rest.split_at_mut((to - from) as usize);
            match compressed {
                Some(bytes) => target.copy_from_slice(&bytes[from as usize..to as usize]),
                None => read_plain(&self.shard, &self.packing, frame.at + from..frame.at + to, target)?,
            }
            rest = behind;
        }
        Ok(())
    }
}

/// Reads a range of a shard's own bytes, uncompressed.
fn read_plain(
    shard: &MemoryShard,
    packing: &Packing,
    range: Range<u64>,
    mut buffer: &mut [u8],
) -> Result<(), TierError> {
    for part in own_parts(packing, range) {
        let bytes = bytes_of(shard, packing, &part)?;
        let (target, behind) = buffer.split_at_mut(bytes.len());
        target.copy_from_slice(bytes);
        buffer = behind;
    }
    Ok(())
}

/// The bytes of a range of the bodies, where they are in memory.
fn bytes_of<'s>(shard: &'s MemoryShard, packing: &Packing, range: &Range<u64>) -> Result<&'s [u8], TierError> {
    let start = packing.outline.head.header.body_offset + range.start;
    shard.part(start as usize, (range.end - range.start) as usize)
}

/// Reads a range of a shard's own bytes. Before that, compares all blocks that the range touches, beginning with block `unchecked`, with
/// their digests. Returns the number of the next block to compare.
fn read_checked(
    shard: &MemoryShard,
    packing: &Packing,
    range: Range<u64>,
    mut unchecked: u64,
    bytes: &mut Vec<u8>,
) -> Result<u64, TierError> {
    bytes.clear();
    for part in own_parts(packing, range) {
        unchecked = check_blocks(shard, packing, &part, unchecked)?;
        bytes.extend_from_slice(bytes_of(shard, packing, &part)?);
    }
    Ok(unchecked)
}

/// Compares the blocks that a range of the bodies touches, beginning with block `unchecked`, with their digests. Returns the
/// number of the next block to compare.
fn check_blocks(shard: &MemoryShard, packing: &Packing, range: &Range<u64>, unchecked: u64) -> Result<u64, TierError> {
    let head = &packing.outline.head;
    let after = head.meta.regions.partition_point(|region| region.offset + region.bytes <= range.start);
    let Some(region) = head.meta.regions.get(after) else { return Ok(unchecked) };
    let size = u64::from(head.header.block_size);
    let first = region.first_block + (range.start - region.offset) / size;
    let behind = region.first_block + (range.end - region.offset).div_ceil(size);
    let source = Source::Memory(shard.clone());
    for index in first.max(unchecked)..behind {
        let (at, length, ..) = head.block_at(index);
        let block = Piece { bytes: at..at + length, blocks: index..index + 1 };
        block.check(&source, shard.part(at as usize, length as usize)?)?;
    }
    Ok(behind.max(unchecked))
}

/// The ranges of the bodies of which a range of the own bytes consists.
fn own_parts(packing: &Packing, range: Range<u64>) -> Vec<Range<u64>> {
    let first = packing.extents.partition_point(|extent| extent.own_behind() <= range.start);
    let own = packing.extents[first..].iter().take_while(|extent| extent.own_before < range.end);
    let own = own.filter(|extent| extent.stored == Stored::Own);
    let part = |extent: &Placed| {
        let from = range.start.max(extent.own_before) - extent.own_before;
        let to = range.end.min(extent.own_before + extent.length) - extent.own_before;
        extent.at + from..extent.at + to
    };
    own.map(part).filter(|part| !part.is_empty()).collect()
}

/// The digest of a range of the bodies, if the range is exactly one block.
fn digest_of(packing: &Packing, range: Range<u64>) -> Option<Digest> {
    let head = &packing.outline.head;
    let after = head.meta.regions.partition_point(|region| region.offset + region.bytes <= range.start);
    let region = head.meta.regions.get(after).filter(|region| region.offset <= range.start)?;
    let (block, from) = (u64::from(head.header.block_size), range.start - region.offset);
    let is_block = from.is_multiple_of(block) && range.end == region.offset + region.bytes.min(from + block);
    is_block.then(|| head.digests[(region.first_block + from / block) as usize])
}

impl ReadFile for Packed {
    fn len(&self) -> io::Result<u64> {
        Ok(self.total)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.total);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let own_at = self.prefix.len() as u64;
        let (before, behind) = buffer.split_at_mut((own_at.clamp(offset, end) - offset) as usize);
        before.copy_from_slice(&self.prefix[offset.min(own_at) as usize..end.min(own_at) as usize]);
        let stored = offset.max(own_at) - own_at..end.max(own_at) - own_at;
        let behind_own = self.own.packing.stored_bytes();
        let own = stored.start.min(behind_own)..stored.end.min(behind_own);
        let (own_bytes, zeros) = behind.split_at_mut((own.end - own.start) as usize);
        zeros.fill(0);
        self.own.read(own, own_bytes).map_err(io::Error::other)
    }
}
