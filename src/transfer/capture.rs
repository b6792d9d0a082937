//! Copying the application's regions: into a memory slot, or block by block into a file.
//!
//! Both make the digests on the way, in the same pass over the source that copies it, and write the head last. The
//! slot path touches nothing but the slot. The file path (for shards that no slot can hold) stages through one buffer of
//! the configured write size, so that memory stays bounded.

use crate::base::Digest;
use crate::base::digest::{copy_digest, store_fence};
use crate::base::units::page_ceil;
use crate::format::shard::{Layout, encode_head};
use crate::format::{ContainerEntry, ShardHeader, container};
use crate::region::SavedRegion;
use crate::tier::TierError;
use crate::tier::directory::Upload;
use crate::tier::posix::PageBuffer;

/// Fills `target` (of exactly `layout.total_len` bytes) with the shard. Everything is visible to other threads and
/// processes once the slot's state is stored after it.
pub fn into_slot(layout: &Layout, header: &ShardHeader, regions: &[SavedRegion<'_>], target: &mut [u8]) {
    let (head, body) = target.split_at_mut(layout.body_offset as usize);
    let mut digests = Vec::with_capacity(layout.block_count as usize);
    let block = layout.block_size as usize;
    for (placed, saved) in layout.meta.regions.iter().zip(regions) {
        let start = placed.offset as usize;
        let end = start + saved.bytes.len();
        for (from, to) in saved.bytes.chunks(block).zip(body[start..end].chunks_mut(block)) {
            digests.push(copy_digest(from, to));
        }
        // Reused slots hold older bytes: the padding is part of the file and must not leak them.
        body[end..start + page_ceil(placed.bytes) as usize].fill(0);
    }
    encode_head(layout, header, &digests, head);
    store_fence();
}

/// Writes the shard as the only one of a container, durable but still under its temp name.
///
/// # Errors
/// [`TierError::Io`]; the upload is condemned.
///
/// # Blocking
/// Until the device has everything.
pub fn into_file(
    layout: &Layout,
    header: &ShardHeader,
    regions: &[SavedRegion<'_>],
    upload: &Upload,
    write_bytes: usize,
) -> Result<ContainerEntry, TierError> {
    let entry = ContainerEntry { key: header.key, rank: header.rank, offset: 0, length: layout.total_len };
    let tail = container::encode_tail(std::slice::from_ref(&entry)).unwrap_or_default();
    upload.reserve(layout.total_len + tail.len() as u64)?;
    let mut digests: Vec<Digest> = Vec::with_capacity(layout.block_count as usize);
    let block = layout.block_size as usize;
    // A whole number of blocks, so that every piece starts on a page.
    let mut buffer = PageBuffer::new(write_bytes.next_multiple_of(block));
    for (placed, saved) in layout.meta.regions.iter().zip(regions) {
        let mut at = layout.body_offset + placed.offset;
        for piece in saved.bytes.chunks(buffer.len()) {
            let staged = &mut buffer[..page_ceil(piece.len() as u64) as usize];
            for (from, to) in piece.chunks(block).zip(staged.chunks_mut(block)) {
                let length = from.len();
                digests.push(copy_digest(from, &mut to[..length]));
            }
            staged[piece.len()..].fill(0);
            store_fence();
            upload.write_at(at, staged)?;
            at += staged.len() as u64;
        }
    }
    let mut head = PageBuffer::new(layout.body_offset as usize);
    encode_head(layout, header, &digests, &mut head);
    upload.write_at(0, &head)?;
    upload.write_at(layout.total_len, &tail)?;
    upload.sync()?;
    Ok(entry)
}
