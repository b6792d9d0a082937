//! Tables of chunks in the memory of a device.
#![forbid(unsafe_code)]

use super::{DeviceError, DeviceSpan, Result};
use crate::format::extents::EXTENTS_MAX;
use crate::reduction::{Chunks, Found, Grouping, Question, chunk_of, range_bytes};
use std::fmt;

/// Bytes of a chunk's digest, of the place where it is stored, and of a stretch in the answer: at worst, there is one for each chunk.
const LEAF_BYTES: u64 = 16 + 8 + 16;
/// Bytes of an entry of the table.
const ENTRY_BYTES: u64 = 24;
/// How many eighths of a table may be in use.
const FULL: u64 = 6;

/// Where bytes of a field are on the device. The ranges of a field are in order, and reach from one multiple of 64 bytes to another,
/// or to the end of the field.
#[derive(Clone, Debug)]
pub struct Place {
    /// Index of the field.
    pub field: usize,
    /// The first byte, counted from the start of the field.
    pub start: u64,
    /// The bytes.
    pub span: DeviceSpan,
}

/// What a table has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSize {
    /// Bytes of a chunk.
    pub chunk: u64,
    /// How chunks are put together.
    pub grouping: Grouping,
    /// Bytes of a block.
    pub block: u64,
    /// Blocks of all fields.
    pub blocks: u64,
    /// Entries.
    pub entries: u64,
    /// The maximum number of stretches of one version.
    pub runs: u64,
}

impl TableSize {
    /// The layout of a table for this many blocks that takes at most `budget` bytes of the device's memory; `None` if even one with the
    /// longest chunks takes more. `wanted` is the length of chunks, unless the shortest that fits is to be taken.
    pub fn that_fits(
        blocks: u64,
        block: u64,
        grouping: Grouping,
        wanted: Option<u64>,
        budget: u64,
    ) -> Option<TableSize> {
        let nodes = if grouping == Grouping::Tree { 2 } else { 1 };
        let leaves = |chunk: u64| blocks.saturating_mul(block / chunk);
        let least = |chunk: u64| leaves(chunk) * nodes * 8 / FULL + 64;
        let takes = |chunk: u64| leaves(chunk).saturating_mul(LEAF_BYTES) + least(chunk) * ENTRY_BYTES;
        let chunk = chunk_of(wanted, |chunk| takes(chunk) <= budget)?;
        // As many chunks as one version brings, and as many again of earlier versions.
        let entries = ((budget - leaves(chunk) * LEAF_BYTES) / ENTRY_BYTES).min(2 * least(chunk));
        // No file describes more.
        let runs = leaves(chunk).clamp(64, EXTENTS_MAX as u64);
        Some(TableSize { chunk, grouping, block, blocks, entries, runs })
    }

    /// Chunks of a block.
    pub fn per_block(&self) -> u64 {
        self.block / self.chunk
    }

    /// Chunks that a tree covers.
    pub fn per_range(&self) -> u64 {
        range_bytes(self.block, self.chunk) / self.chunk
    }

    /// Chunks of all blocks.
    pub fn leaves(&self) -> u64 {
        self.blocks * self.per_block()
    }

    /// The maximum number of entries that may be in use.
    pub fn most(&self) -> u64 {
        self.entries / 8 * FULL
    }

    /// An empty table of this form in the processor's memory.
    pub fn empty(&self) -> Chunks {
        Chunks::with_entries(self.chunk, self.grouping, self.most())
    }

    /// Bytes that such a table takes.
    pub fn bytes(&self) -> u64 {
        self.leaves() * LEAF_BYTES + self.entries * ENTRY_BYTES
    }
}

/// The chunks of a series that a rank's files store, in the memory of a device.
///
/// # Contract
/// The table finds what [`crate::reduction::Chunks`] finds, as long as it has room and the fields stay the same. With
/// other fields, it begins anew.
pub trait ChunkTable: Send + fmt::Debug {
    /// What it has room for.
    fn size(&self) -> &TableSize;

    /// Looks at the next version of the series. The bytes of those blocks that have changed are at these places. `None` if the version
    /// makes more stretches than [`TableSize::runs`]; the table then begins anew with the next version.
    ///
    /// # Blocking
    /// For the device. It does not wait for work on other streams of the program.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if a block that has changed is at none of these places, or if there are more blocks than there is room for;
    /// any error that the device reports. The table then begins anew with the next version.
    fn look(&mut self, asked: &Question, places: &[Place]) -> Result<Option<Found>>;
}

/// Checks what [`ChunkTable::look`] demands of its arguments.
///
/// # Errors
/// [`DeviceError::Range`].
pub(super) fn check_question(size: &TableSize, asked: &Question, places: &[Place]) -> Result<()> {
    let refuse = |bytes, reason| Err(DeviceError::Range { offset: 0, bytes, reason });
    let mut blocks = 0;
    for field in &asked.fields {
        if field.blocks.len() as u64 != field.bytes.div_ceil(size.block) {
            return refuse(field.bytes, "a field must have one digest for each of its blocks");
        }
        if !field.at.is_multiple_of(4096) || field.at + field.bytes > 1 << 50 {
            return refuse(field.at, "a field must begin at a page, and bodies must end at or before 2^50");
        }
        blocks += field.blocks.len() as u64;
    }
    if asked.block != size.block || blocks > size.blocks {
        return refuse(blocks, "more blocks, or longer ones, than the table was made for");
    }
    for part in asked.kept().map_or(&[][..], |(_, parts)| parts) {
        let end = asked.fields.get(part.field).and_then(|field| {
            let end = part.start.checked_add(part.bytes).filter(|end| *end <= field.bytes)?;
            Some(end).filter(|end| end.is_multiple_of(size.chunk) || *end == field.bytes)
        });
        if end.is_none() || !part.start.is_multiple_of(size.chunk) || part.bytes == 0 {
            return refuse(part.bytes, "a part that is kept must consist of whole chunks of a field");
        }
    }
    for place in places {
        let Some(field) = asked.fields.get(place.field) else {
            return refuse(place.span.bytes(), "a place belongs to no field");
        };
        let end = place.start.checked_add(place.span.bytes()).filter(|end| *end <= field.bytes);
        let is_whole = end.is_some_and(|end| end.is_multiple_of(64) || end == field.bytes);
        if !place.start.is_multiple_of(64) || !is_whole {
            let why = "a place must begin and end at a multiple of 64, or end at its field's end";
            return refuse(place.span.bytes(), why);
        }
    }
    let is_sorted = |pair: &[Place]| {
        let end = pair[0].start + pair[0].span.bytes();
        (pair[0].field, end) <= (pair[1].field, pair[1].start) || pair[0].field < pair[1].field
    };
    if !places.windows(2).all(is_sorted) {
        return refuse(0, "places must be in order, each of them once");
    }
    Ok(())
}

/// The places of a range of a field: the parts of `places` that have some of it, in order; an error if some of it is at none of them.
pub(super) fn within(places: &[Place], field: usize, from: u64, bytes: u64) -> Result<Vec<DeviceSpan>> {
    let end = from + bytes;
    let first = places.partition_point(|place| (place.field, place.start + place.span.bytes()) <= (field, from));
    let (mut at, mut spans) = (from, Vec::with_capacity(1));
    for place in places[first..].iter().take_while(|place| place.field == field && place.start < end) {
        if place.start > at {
            break;
        }
        let upto = end.min(place.start + place.span.bytes());
        spans.push(place.span.part(at - place.start, upto - at)?);
        at = upto;
    }
    if at == end {
        return Ok(spans);
    }
    Err(DeviceError::Range { offset: at, bytes: end - at, reason: "a block that has changed has no place" })
}
