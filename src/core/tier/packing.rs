//! A shard in node memory as a file is going to hold it: with references for what earlier files hold already.
#![forbid(unsafe_code)]

use super::pieces::Piece;
use super::source::{FileShard, MemoryShard, Source};
use super::storage::ReadFile;
use super::{TierError, TierId};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::format::FormatError;
use crate::format::packed::{Extent, Packing, Placed, SourceKey, Stored};
use crate::format::shard::{Head, encode_head};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The packed shard, made of memory where it is read.
struct Packed {
    shard: MemoryShard,
    packing: Arc<Packing>,
    /// Everything before its own bytes.
    prefix: Vec<u8>,
    total: u64,
}

/// Packs a shard: with sources, and extents over its regions, whose references are right.
///
/// What it stores itself is read once: where a block of the packed shard is one of the shard, its digest is taken over, and checked when the
/// block is written; all other blocks that it takes bytes of are checked here.
///
/// # Errors
/// [`TierError::Damaged`] if the shard has changed since the capture; [`TierError::Format`] for what the format cannot hold.
pub fn pack(shard: &MemoryShard, sources: Vec<SourceKey>, extents: &[Extent]) -> Result<FileShard, TierError> {
    let path = Source::Memory(shard.clone()).path().to_owned();
    let wrong = |source: FormatError| TierError::Format { tier: TierId::MEMORY, path: path.clone(), source };
    let head = shard.part(0, shard.head().header.body_offset as usize)?.to_vec();
    let packing = Packing::new(head, sources, extents).map_err(wrong)?;
    let encoded = packing.encode().map_err(wrong)?;
    let (layout, header) = packing.layout(&encoded).map_err(wrong)?;
    let block = layout.block_size;
    let mut digests: Vec<Digest> = Vec::with_capacity(layout.block_count as usize);
    for body in &encoded {
        digests.extend(body.chunks(block as usize).map(digest_bytes));
    }
    digests.extend(own_digests(shard, &packing, block)?);
    let own_at = layout.body_offset + layout.meta.regions[3].offset;
    let mut prefix = vec![0; own_at as usize];
    let header = encode_head(&layout, &header, &digests, &mut prefix[..layout.body_offset as usize]);
    for (region, body) in layout.meta.regions.iter().zip(&encoded) {
        let start = (layout.body_offset + region.offset) as usize;
        prefix[start..start + body.len()].copy_from_slice(body);
    }
    let head = Head::written(&layout, header, digests);
    let packing = Arc::new(packing);
    let file = Packed { shard: shard.clone(), packing: packing.clone(), prefix, total: layout.total_len };
    Ok(FileShard::with_packing(TierId::MEMORY, path, Arc::new(file), head.into(), packing))
}

/// The digests of the own bytes, block by block.
fn own_digests(shard: &MemoryShard, packing: &Packing, block: u64) -> Result<Vec<Digest>, TierError> {
    let (own, mut digests, mut bytes) = (packing.own_bytes(), Vec::new(), Vec::new());
    let mut unchecked = 0;
    for start in (0..own).step_by(block as usize) {
        let range = start..own.min(start + block);
        let taken = own_parts(packing, range.clone());
        if let [only] = &taken[..]
            && let Some(digest) = digest_of(packing, only.clone())
        {
            digests.push(digest);
            continue;
        }
        bytes.clear();
        let body = packing.head.header.body_offset;
        for part in taken {
            unchecked = check_blocks(shard, packing, &part, unchecked)?;
            bytes.extend_from_slice(shard.part((body + part.start) as usize, (part.end - part.start) as usize)?);
        }
        digests.push(digest_bytes(&bytes));
    }
    Ok(digests)
}

/// Compares the blocks that a range of the bodies touches with their digests, those from `unchecked` on; returns the next one.
fn check_blocks(shard: &MemoryShard, packing: &Packing, range: &Range<u64>, unchecked: u64) -> Result<u64, TierError> {
    let head = &packing.head;
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

/// The ranges of the bodies that a range of the own bytes is made of.
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

/// The digest of the block that this range of the bodies is, if it is one.
fn digest_of(packing: &Packing, range: Range<u64>) -> Option<Digest> {
    let head = &packing.head;
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
        let own = offset.max(own_at) - own_at..end.max(own_at) - own_at;
        let body = self.packing.head.header.body_offset;
        let mut rest = behind;
        for part in own_parts(&self.packing, own) {
            let length = (part.end - part.start) as usize;
            let (target, behind) = rest.split_at_mut(length);
            let bytes = self.shard.part((body + part.start) as usize, length).map_err(io::Error::other)?;
            target.copy_from_slice(bytes);
            rest = behind;
        }
        rest.fill(0);
        Ok(())
    }
}
