//! Regions that the application writes as a stream of bytes, whose length is unknown until its end.
//!
//! A stream is a region that is *held* (`transfer::held`) while it grows. Written bytes are copied to their place in the slot at once, and
//! each block receives its digest when it is full. If the slot is full, the shard is laid out anew in a slot of twice the length; the next
//! stream of this name begins with as much room as the last one used. If no slot is long enough, the stream continues in a file, through a
//! buffer.
#![forbid(unsafe_code)]

use super::engine::Engine;
use super::error::CaptureError;
use super::held::{CHANGED, Held, HoldSpec, Store};
use crate::base::digest::{PAIR, Sums, digest_bytes, store_fence};
use crate::base::ids::text_hash;
use crate::base::units::{KIB, MIB, page_ceil};
use crate::format::Region;
use crate::region::{RegionData, SavedRegion};
use crate::tier::posix::PageBuffer;
use std::borrow::Cow;

/// Room for a stream whose length is not known.
const FIRST: u64 = 4 * MIB;

/// The checkpoint of a stream.
pub struct StreamSpec<'s> {
    /// Number of the collective call, taken when the checkpoint was begun.
    pub operation: u64,
    /// Series.
    pub name: &'s str,
    /// Version.
    pub version: u64,
    /// Bytes of regions that are added without being held.
    pub others: u64,
}

/// A stream that is being written. If it is dropped before its end, it gives back the room of all held regions.
pub struct ByteStream {
    /// Present unless the stream has failed.
    held: Option<Held>,
    /// The held regions, followed by the region of the stream.
    regions: Vec<SavedRegion<'static>>,
    length: u64,
    /// How long the stream may become with the present room.
    limit: u64,
    /// For a slot: the sums of the last block, which is not full, up to the last whole pair of words.
    sums: Sums,
    /// For a file: the bytes that follow those already written to it; their number is `length` modulo the length of this buffer.
    staged: Option<PageBuffer>,
}

impl ByteStream {
    fn region(&self) -> &Region {
        &self.regions.last().expect("it has one").region
    }

    fn set_length(&mut self, bytes: u64) {
        let saved = self.regions.last_mut().expect("it has one");
        saved.region.bytes = bytes;
        saved.region.shape = vec![bytes];
        saved.data = RegionData::Held { bytes, address: 0 };
    }

    /// Where the stream begins in its shard, and its first block.
    fn place(&self) -> Option<(u64, usize)> {
        let layout = &self.held.as_ref()?.layout;
        let placed = layout.meta.regions.last()?;
        Some((layout.body_offset + placed.offset, placed.first_block as usize))
    }

    /// How many bytes the stream has.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Engine {
    /// Begins a stream after the regions that are held in `before`, which are the first of `regions`; the last is the stream's, without a
    /// byte.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// As a capture.
    ///
    /// # Errors
    /// [`CaptureError`]; in this case, nothing is held.
    pub fn begin_stream(
        &self,
        spec: &StreamSpec<'_>,
        regions: Vec<SavedRegion<'static>>,
        before: Option<Held>,
    ) -> Result<ByteStream, CaptureError> {
        let mut stream = ByteStream { held: None, regions, length: 0, limit: 0, sums: Sums::default(), staged: None };
        let last = self.stream_lengths.lock().get(&key(spec, stream.region())).copied();
        let room = last.map_or(FIRST, |last| last + last / 16) + spec.others;
        let mut regions = stream.regions.clone();
        if let Some(saved) = regions.last_mut() {
            saved.data = RegionData::Host(Cow::Borrowed(&[]));
        }
        let hold =
            HoldSpec { operation: spec.operation, name: spec.name, version: spec.version, regions: &regions, room };
        stream.held = Some(self.hold(&hold, before)?);
        self.measure(spec, &mut stream);
        Ok(stream)
    }

    /// Writes all of `bytes` after those written earlier.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the copy; if there is no more room, as a capture.
    ///
    /// # Errors
    /// [`CaptureError`]; in this case, nothing is held, and the stream has failed.
    pub fn write_stream(
        &self,
        spec: &StreamSpec<'_>,
        stream: &mut ByteStream,
        mut bytes: &[u8],
    ) -> Result<(), CaptureError> {
        while !bytes.is_empty() {
            if stream.length == stream.limit {
                self.grow(spec, stream)?;
            }
            let room = usize::try_from(stream.limit - stream.length).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            match stream.staged.is_some() {
                false => self.write_to_slot(spec, stream, now)?,
                true => self.write_to_file(spec, stream, now)?,
            }
            bytes = later;
        }
        Ok(())
    }

    /// Ends the stream. Returns its region, and the holder of this region and the others.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For writing the rest.
    ///
    /// # Errors
    /// [`CaptureError`]; in this case, nothing is held.
    pub fn end_stream(&self, spec: &StreamSpec<'_>, mut stream: ByteStream) -> Result<(Held, Region), CaptureError> {
        if stream.staged.is_some() {
            self.flush_staged(spec, &mut stream)?;
        }
        self.close_tail(spec, &mut stream)?;
        let region = stream.region().clone();
        self.stream_lengths.lock().insert(key(spec, &region), stream.length);
        stream.held.take().map(|held| (held, region)).ok_or_else(|| self.lost(spec))
    }

    fn lost(&self, spec: &StreamSpec<'_>) -> CaptureError {
        self.no_tier(spec.name, spec.version, vec!["a stream that was to become one of its regions has failed".into()])
    }

    fn too_long(&self, spec: &StreamSpec<'_>, length: u64) -> CaptureError {
        let why = format!(
            "the file has no room for the tables of a stream of more than {length} bytes; a larger job.block makes room for a longer one"
        );
        self.no_tier(spec.name, spec.version, vec![why])
    }

    /// Copies bytes into the slot, bypassing the cache, and adds them to the sums of their block. Pieces of any size are thus read once and
    /// written once.
    fn write_to_slot(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream, bytes: &[u8]) -> Result<(), CaptureError> {
        let (start, _) = stream.place().ok_or_else(|| self.lost(spec))?;
        let ByteStream { held, length, sums, .. } = stream;
        let Some(Held { store: Some(Store::Slot(slot)), layout, digests, .. }) = held else {
            return Err(self.lost(spec));
        };
        let block = layout.block_size as usize;
        let body = &mut slot.as_mut_slice()[start as usize..];
        let (mut at, mut left) = (*length as usize, bytes);
        while !left.is_empty() {
            let within = at % block;
            let (now, later) = left.split_at(left.len().min(block - within));
            // The room may end before the end of the block.
            let end = (at - within + block).min(body.len());
            add_to_block(sums, &mut body[at - within..end], within, now);
            at += now.len();
            if at.is_multiple_of(block) {
                digests.push(std::mem::take(sums).finish(block as u64));
            }
            left = later;
        }
        *length = at as u64;
        Ok(())
    }

    fn write_to_file(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream, bytes: &[u8]) -> Result<(), CaptureError> {
        let mut left = bytes;
        while !left.is_empty() {
            let staged = stream.staged.as_mut().ok_or_else(|| self.lost(spec))?;
            let within = (stream.length % staged.len() as u64) as usize;
            let (now, later) = left.split_at(left.len().min(staged.len() - within));
            staged[within..within + now.len()].copy_from_slice(now);
            let is_full = within + now.len() == staged.len();
            stream.length += now.len() as u64;
            if is_full {
                self.flush_staged(spec, stream)?;
            }
            left = later;
        }
        Ok(())
    }

    /// Writes the staged bytes, with zeros up to the next page, and computes the digests of their blocks.
    fn flush_staged(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream) -> Result<(), CaptureError> {
        let (start, first) = stream.place().ok_or_else(|| self.lost(spec))?;
        let length = stream.length;
        let Some(Held { store: Some(Store::File(upload)), layout, digests, .. }) = &mut stream.held else {
            return Err(self.lost(spec));
        };
        let Some(staged) = stream.staged.as_mut() else { return Err(self.lost(spec)) };
        // Full blocks already have digests: the staged bytes begin after these blocks.
        let from = (digests.len() - first) as u64 * layout.block_size;
        let bytes = (length - from) as usize;
        if bytes == 0 {
            return Ok(());
        }
        digests.extend(staged[..bytes].chunks(layout.block_size as usize).map(digest_bytes));
        let pages = page_ceil(bytes as u64) as usize;
        staged[bytes..pages].fill(0);
        store_fence();
        upload.write_at(start + from, &staged[..pages]).map_err(|error| {
            self.reporter().on_tier_failure(upload.kind(), &error);
            self.capture_error(spec.name, spec.version, super::error::FillError::Tier(error.to_string()))
        })
    }

    /// Gives the region of the stream its actual length, and its last block a digest if that block is not full.
    fn close_tail(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream) -> Result<(), CaptureError> {
        stream.set_length(stream.length);
        let (start, first) = stream.place().ok_or_else(|| self.lost(spec))?;
        let (length, head) = (stream.length as usize, stream.held.as_ref().map_or(0, Held::head));
        let layout = self.layout(spec.name, &stream.regions, head)?;
        let Some(held) = &mut stream.held else { return Err(self.lost(spec)) };
        if layout.body_offset != held.layout.body_offset {
            // The room before the bodies of a file cannot change.
            return Err(self.too_long(spec, stream.length));
        }
        if let Some(Store::Slot(slot)) = &mut held.store {
            let body = &mut slot.as_mut_slice()[start as usize..];
            let full = (held.digests.len() - first) * layout.block_size as usize;
            if full < length {
                let (mut sums, whole) = (stream.sums, full + (length - full) / PAIR * PAIR);
                sums.add((whole - full) as u64, &body[whole..length]);
                held.digests.push(sums.finish((length - full) as u64));
            }
            body[length..page_ceil(length as u64) as usize].fill(0);
        }
        held.layout = layout;
        Ok(())
    }

    /// Makes room for the same length again, in a longer slot or in a file.
    fn grow(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream) -> Result<(), CaptureError> {
        if stream.staged.is_some() {
            // A file takes more bytes only while its tables have room.
            return Err(self.too_long(spec, stream.length));
        }
        self.close_tail(spec, stream)?;
        let before = stream.held.take().ok_or_else(|| self.lost(spec))?;
        let (operation, name, version) = (spec.operation, spec.name, spec.version);
        let room = stream.length.max(FIRST) + spec.others;
        let saved = stream.regions.clone();
        let regions = before.resolve(&saved).ok_or_else(|| self.lost(spec))?;
        let mut causes = Vec::new();
        let hold = HoldSpec { operation, name, version, regions: &regions, room };
        match self.hold_in_memory(&hold, room, &mut causes)? {
            Some(moved) => self.replace(spec, stream, &before, moved),
            None => self.go_on_in_file(spec, stream, &before, causes),
        }
    }

    /// The held regions have moved.
    fn replace(
        &self,
        spec: &StreamSpec<'_>,
        stream: &mut ByteStream,
        before: &Held,
        moved: Held,
    ) -> Result<(), CaptureError> {
        let moved = moved.in_place_of(before, &stream.regions);
        stream.held = Some(moved.ok_or_else(|| self.no_tier(spec.name, spec.version, vec![CHANGED.into()]))?);
        self.measure(spec, stream);
        Ok(())
    }

    /// Copies the written bytes to a file, up to the last whole buffer, and the rest into the buffer.
    fn go_on_in_file(
        &self,
        spec: &StreamSpec<'_>,
        stream: &mut ByteStream,
        before: &Held,
        causes: Vec<String>,
    ) -> Result<(), CaptureError> {
        let (operation, name, version) = (spec.operation, spec.name, spec.version);
        let length = stream.length;
        let block = before.layout.block_size;
        let mut staged = self.staging(block);
        let whole = length - length % staged.len() as u64;
        let held = stream.regions.clone();
        let mut regions = before.resolve(&held).ok_or_else(|| self.lost(spec))?;
        let Some(saved) = regions.last_mut() else { return Err(self.lost(spec)) };
        let RegionData::Host(Cow::Borrowed(all)) = saved.data else { return Err(self.lost(spec)) };
        let (written, rest) = all.split_at(whole as usize);
        (saved.region.bytes, saved.region.shape) = (whole, vec![whole]);
        saved.data = RegionData::Host(Cow::Borrowed(written));
        staged[..rest.len()].copy_from_slice(rest);
        let hold = HoldSpec { operation, name, version, regions: &regions, room: 0 };
        let moved = self.hold_in_file(&hold, causes)?;
        stream.set_length(whole);
        stream.staged = Some(staged);
        self.replace(spec, stream, before, moved)
    }

    /// A buffer of whole blocks in front of a file.
    fn staging(&self, block: u64) -> PageBuffer {
        PageBuffer::new((self.setup.config.node.write_bytes as usize).next_multiple_of(block as usize))
    }

    /// Finds out how much room the stream has, and keeps only the digests of full blocks.
    fn measure(&self, spec: &StreamSpec<'_>, stream: &mut ByteStream) {
        let (Some((start, first)), Some(held)) = (stream.place(), &mut stream.held) else { return };
        let block = held.layout.block_size;
        if stream.staged.is_none() && matches!(held.store, Some(Store::File(_))) {
            stream.staged = Some(self.staging(block));
        }
        let whole = match &stream.staged {
            Some(staged) => stream.length - stream.length % staged.len() as u64,
            None => stream.length,
        };
        held.digests.truncate(first + (whole / block) as usize);
        // The tables have one entry per block, and as much room as their pages and the spare head leave.
        let entries = held.layout.spare_entries();
        let by_tables = (whole / block + entries).saturating_mul(block);
        // The session itself adds information on the location of threads and pages.
        let kept = page_ceil(spec.others) + page_ceil(64 * KIB + 512 * stream.regions.len() as u64);
        let by_room = match &held.store {
            Some(Store::Slot(slot)) => (slot.len() as u64).saturating_sub(start + kept),
            _ => u64::MAX,
        };
        stream.limit = by_tables.min(by_room).max(stream.length);
    }
}

/// Copies bytes to a block that already has `within` bytes, and adds whole pairs of words to the block's sums.
fn add_to_block(sums: &mut Sums, block: &mut [u8], within: usize, bytes: &[u8]) {
    // The end of a pair that an earlier write has begun, whole pairs, and the beginning of a pair that a later write will complete.
    let (near, rest) = bytes.split_at(bytes.len().min(within.next_multiple_of(PAIR) - within));
    let (whole, far) = rest.split_at(rest.len() / PAIR * PAIR);
    let mut at = within + near.len();
    block[within..at].copy_from_slice(near);
    if !near.is_empty() && at.is_multiple_of(PAIR) {
        sums.add((at - PAIR) as u64, &block[at - PAIR..at]);
    }
    if !whole.is_empty() {
        sums.add_copying(at as u64, whole, &mut block[at..at + whole.len()]);
        at += whole.len();
    }
    block[at..at + far.len()].copy_from_slice(far);
}

/// The key under which the length of a stream is remembered.
fn key(spec: &StreamSpec<'_>, region: &Region) -> (u64, u64) {
    (text_hash(spec.name), text_hash(&region.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_of_any_size_have_the_digest_of_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 1..700),
            cuts in proptest::collection::vec(0usize..700, 0..40),
        ) {
            let (mut sums, mut block) = (Sums::default(), vec![0xaa; bytes.len()]);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
            ends.sort_unstable();
            for two in ends.windows(2) {
                add_to_block(&mut sums, &mut block, two[0], &bytes[two[0]..two[1]]);
            }
            let whole = bytes.len() / PAIR * PAIR;
            sums.add(whole as u64, &block[whole..]);
            prop_assert_eq!(&block, &bytes);
            prop_assert_eq!(sums.finish(bytes.len() as u64), digest_bytes(&bytes));
        }
    }
}
