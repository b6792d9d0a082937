//! A shard as a file may hold it: its own bytes, and references to bytes that files of earlier checkpoints hold.
//!
//! Like a parity part, a *packed shard* has the form of a shard. Its magic is `BVKPACK1`. Its regions are the head of the shard that it
//! represents, the checkpoints to which it refers (its *sources*), the *extents*, the *frames*, and the bytes that it stores itself, which
//! may be compressed in frames. Joined with its sources, it is that shard, byte for byte. A reference names a range of the bodies of the
//! same rank's shard in the source. The source's file must store this range itself, whatever the form of that file: there is only one hop.

use super::index::Index;
use super::shard::{Content, Head, Layout, Region, RegionKind, ShardHeader, ShardMeta};
use super::{FormatError, codec, extents};
use crate::base::ids::CheckpointKey;
use crate::config::SOURCES_MAX;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// The names of the regions, in their order.
pub const REGIONS: [&str; 5] = ["head", "sources", "extents", "frames", "bytes"];

/// The maximum number of bytes that a frame represents.
pub const FRAME_MAX: u64 = 1 << 20;

const WHAT: &str = "packed shard";

/// A checkpoint to which another one refers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SourceKey {
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The agreement hash of its shards.
    pub agreement: u64,
}

/// Where the bytes of an extent are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In the packed shard itself, after the stored bytes of the extents before it.
    Own,
    /// In a source.
    In {
        /// The source, by its place in the list.
        source: u32,
        /// Starting at this byte of its bodies.
        offset: u64,
    },
    /// In the packed shard itself, for another extent.
    Same {
        /// Starting at this byte of the bodies.
        offset: u64,
    },
}

/// A range of a region's bytes. Extents are in the order of the regions, and of the bytes in each region. Every byte is in exactly one
/// extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number of bytes; an extent ends with its region at the latest.
    pub length: u64,
    /// Where the bytes are stored.
    pub stored: Stored,
}

impl Extent {
    /// Are the bytes at `stored` those that directly follow this extent's stored bytes?
    fn is_continued(&self, stored: Stored) -> bool {
        match (self.stored, stored) {
            (Stored::Own, Stored::Own) => true,
            (Stored::In { source, offset }, Stored::In { source: next, offset: at }) => {
                source == next && offset + self.length == at
            }
            (Stored::Same { offset }, Stored::Same { offset: at }) => offset + self.length == at,
            _ => false,
        }
    }
}

/// A run of own bytes, as it is stored. Frames are in the order of the bytes that they represent, and cover all of them; none
/// extends beyond a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// The number of own bytes that the frame represents: 1 to [`FRAME_MAX`].
    pub bytes: u32,
    /// The number of bytes that are stored for them: the same number if they are stored as they are, otherwise fewer.
    pub stored: u32,
}

/// A frame in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedFrame {
    /// The number of own bytes before those that the frame represents.
    pub at: u64,
    /// The number of bytes that the frame represents.
    pub bytes: u64,
    /// The number of stored bytes before those of this frame.
    pub stored_at: u64,
    /// The number of stored bytes.
    pub stored: u64,
    /// Bytes of an element of the region to which the bytes belong.
    pub element: u64,
}

impl PlacedFrame {
    /// Are the bytes stored in a form that differs from their own?
    pub fn is_compressed(&self) -> bool {
        self.stored < self.bytes
    }
}

/// Appends an extent to those starting at `first`. It is merged with the last extent if it is stored directly after that one.
pub fn append(extents: &mut Vec<Extent>, first: usize, next: Extent) {
    match extents[first..].last_mut() {
        Some(last) if last.is_continued(next.stored) => last.length += next.length,
        _ => extents.push(next),
    }
}

/// An extent in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Its first byte, counted from the start of the bodies.
    pub at: u64,
    /// The number of bytes.
    pub length: u64,
    /// Where the bytes are stored.
    pub stored: Stored,
    /// The number of bytes that the packed shard stores itself for earlier extents.
    pub own_before: u64,
}

impl Placed {
    /// The byte after its last one.
    pub fn end(&self) -> u64 {
        self.at + self.length
    }

    /// The number of bytes that the packed shard stores itself for the extents up to and including this one.
    pub fn own_behind(&self) -> u64 {
        self.own_before + if self.stored == Stored::Own { self.length } else { 0 }
    }
}

/// What a packed shard says about the shard that it represents, except where that shard's bytes are.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Everything before the bodies of the shard that the packed shard represents.
    pub head: Arc<Head>,
    /// The encoded `head`: the bytes with which the whole shard begins.
    pub head_bytes: Arc<[u8]>,
    /// The checkpoints to which the packed shard refers.
    pub sources: Arc<[SourceKey]>,
}

impl Outline {
    fn new(head: Head, head_bytes: Vec<u8>, sources: Vec<SourceKey>) -> Result<Outline, FormatError> {
        rule(head_bytes.len() as u64 == head.header.body_offset, "bytes follow the head")?;
        rule(head.header.content == Content::Shard, "it stands for something that is not a shard")?;
        check_sources(WHAT, &head.header.key, &sources)?;
        Ok(Outline { head: head.into(), head_bytes: head_bytes.into(), sources: sources.into() })
    }

    /// Decodes the first two regions of a packed shard with this head.
    ///
    /// # Errors
    /// [`FormatError`] if the regions break a rule, or do not belong to the packed shard.
    pub fn decode(packed: &Head, head: Vec<u8>, sources: &[u8]) -> Result<Outline, FormatError> {
        let outline = Outline::new(Head::decode(&head)?, head, codec::decode(WHAT, sources)?)?;
        let (outer, inner) = (&packed.header, &outline.head.header);
        let identity = |header: &ShardHeader| {
            (header.key, header.agreement, header.group_size, header.rank, header.origin, header.block_size)
        };
        let names = |meta: &ShardMeta| (meta.job.clone(), meta.group.clone(), meta.name.clone());
        let is_it = identity(outer) == identity(inner) && names(&packed.meta) == names(&outline.head.meta);
        rule(is_it, "it stands for the shard of another checkpoint or rank")?;
        Ok(outline)
    }
}

/// The content of a packed shard, except its own bytes.
#[derive(Clone, Debug)]
pub struct Packing {
    /// The shard that it represents, and the checkpoints to which it refers.
    pub outline: Outline,
    /// All extents.
    pub extents: Vec<Placed>,
    /// How its own bytes are stored. Without frames, they are stored as they are.
    pub frames: Vec<PlacedFrame>,
    own_bytes: u64,
    index: Index,
}

impl Packing {
    /// Makes a packing from the encoded head of a shard, the sources, and extents that cover its regions.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] for a rule that a reader would find broken.
    pub fn new(head_bytes: Vec<u8>, sources: Vec<SourceKey>, extents: &[Extent]) -> Result<Packing, FormatError> {
        Packing::of(Outline::new(Head::decode(&head_bytes)?, head_bytes, sources)?, extents)
    }

    fn of(outline: Outline, extents: &[Extent]) -> Result<Packing, FormatError> {
        let (extents, own_bytes) = place(&outline.head, extents, outline.sources.len())?;
        let index = Index::of(&extents);
        let packing = Packing { outline, extents, frames: Vec::new(), own_bytes, index };
        let is_stored = |extent: &Placed| match extent.stored {
            Stored::Same { offset } => packing.own_range(offset..offset + extent.length).is_some(),
            Stored::Own | Stored::In { .. } => true,
        };
        rule(packing.extents.iter().all(is_stored), "an extent refers to bytes that the shard does not store itself")?;
        Ok(packing)
    }

    /// This packing with its own bytes in frames; with no frames they are stored as they are.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] for a rule that a reader would find broken.
    pub fn with_frames(mut self, frames: &[Frame]) -> Result<Packing, FormatError> {
        self.frames = place_frames(&self, frames)?;
        Ok(self)
    }

    /// Decodes the outline, the extents and the frames of a packed shard with this head.
    ///
    /// # Errors
    /// [`FormatError`] if they break a rule, or do not belong to the packed shard.
    pub fn decode(packed: &Head, outline: Outline, [extents, frames]: [&[u8]; 2]) -> Result<Packing, FormatError> {
        let frames: Vec<Frame> = codec::decode(WHAT, frames)?;
        let extents = extents::decode(&extents::expanded(extents)?, &outline.head.meta.regions, outline.sources.len())?;
        let packing = Packing::of(outline, &extents)?.with_frames(&frames)?;
        let [.., own] = regions_of(packed)?;
        if own.bytes != packing.stored_bytes() {
            let why = format!("it stores {} bytes of its own, but claims {}", own.bytes, packing.stored_bytes());
            return Err(FormatError::invalid(WHAT, why));
        }
        Ok(packing)
    }

    /// The regions of which the packed shard stores bytes itself, and the number of these bytes.
    pub fn own_regions(&self) -> impl Iterator<Item = (&Region, u64)> {
        let own = |region: &Region| {
            let extents = self.extents_in(region.offset..region.offset + region.bytes);
            extents.iter().filter(|extent| extent.stored == Stored::Own).map(|extent| extent.length).sum::<u64>()
        };
        self.outline.head.meta.regions.iter().map(move |region| (region, own(region))).filter(|(_, own)| *own > 0)
    }

    /// The number of the shard's bytes that the packed shard stores itself.
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// The number of bytes that the packed shard's own bytes take in their stored form.
    pub fn stored_bytes(&self) -> u64 {
        self.frames.last().map_or(self.own_bytes, |last| last.stored_at + last.stored)
    }

    /// The bodies of its first four regions. With `compress`, the extents are compressed if that makes them shorter.
    ///
    /// # Errors
    /// [`FormatError`] if there are more extents than a packed shard may have.
    pub fn encode(&self, compress: bool) -> Result<[Vec<u8>; 4], FormatError> {
        // Both lengths fit in 32 bits.
        let plain = |placed: &PlacedFrame| Frame { bytes: placed.bytes as u32, stored: placed.stored as u32 };
        let frames: Vec<Frame> = self.frames.iter().map(plain).collect();
        let sources = codec::encode(WHAT, &self.outline.sources.to_vec())?;
        let extents = extents::compressed(extents::encode(self)?, compress);
        Ok([self.outline.head_bytes.to_vec(), sources, extents, codec::encode(WHAT, &frames)?])
    }

    /// Where everything goes in the packed shard with these bodies, and its header, whose table checksum is still to be filled in.
    ///
    /// # Errors
    /// See [`Layout::new`].
    pub fn layout(&self, encoded: &[Vec<u8>; 4]) -> Result<(Layout, ShardHeader), FormatError> {
        let [head, sources, extents, frames] = encoded.each_ref().map(|body| body.len() as u64);
        let bytes = [head, sources, extents, frames, self.stored_bytes()];
        let region = |(name, bytes)| Region::of_bytes(name, RegionKind::Array, bytes);
        let regions = REGIONS.into_iter().zip(bytes).map(region).collect();
        let ShardMeta { job, group, name, .. } = (*self.outline.head.meta).clone();
        let inner = &self.outline.head.header;
        let layout = Layout::new(ShardMeta { job, group, name, regions }, inner.block_size.into())?;
        let header = layout.header(inner.key, inner.agreement, inner.group_size, inner.rank, inner.origin);
        Ok((layout, ShardHeader { content: Content::Packed, ..header }))
    }

    /// The extents that hold any of these bytes of the bodies.
    pub fn extents_in(&self, range: Range<u64>) -> &[Placed] {
        &self.extents[self.index.range(&self.extents, range)]
    }

    /// The frames that hold any of these own bytes.
    pub fn frames_in(&self, own: Range<u64>) -> Range<usize> {
        let first = self.frames.partition_point(|frame| frame.at + frame.bytes <= own.start);
        first..first + self.frames[first..].partition_point(|frame| frame.at < own.end)
    }

    /// Where a range of the bodies begins in the packed shard's own bytes, if the whole range is stored there.
    pub fn own_range(&self, range: Range<u64>) -> Option<u64> {
        let extents = self.extents_in(range.clone());
        let (first, last) = (extents.first()?, extents.last()?);
        let is_whole = first.at <= range.start
            && last.end() >= range.end
            && extents.iter().all(|extent| extent.stored == Stored::Own)
            && extents.windows(2).all(|pair| pair[0].end() == pair[1].at);
        is_whole.then(|| first.own_before + (range.start - first.at))
    }
}

fn rule(holds: bool, why: &str) -> Result<(), FormatError> {
    if holds { Ok(()) } else { Err(FormatError::invalid(WHAT, why)) }
}

/// The regions of a packed shard.
///
/// # Errors
/// [`FormatError::Invalid`] if the regions differ from [`REGIONS`].
pub fn regions_of(packed: &Head) -> Result<[&Region; REGIONS.len()], FormatError> {
    let found: Vec<&Region> = packed.meta.regions.iter().collect();
    let named = |regions: [&Region; REGIONS.len()]| regions.map(|region| region.name.as_str()) == REGIONS;
    <[&Region; REGIONS.len()]>::try_from(found)
        .ok()
        .filter(|regions| named(*regions))
        .ok_or_else(|| FormatError::invalid(WHAT, "its regions are not those of a packed shard"))
}

/// Checks the rules for all sources of a checkpoint: they are earlier checkpoints of the same run, not too many, and
/// each occurs once.
pub(super) fn check_sources(what: &'static str, of: &CheckpointKey, sources: &[SourceKey]) -> Result<(), FormatError> {
    let is_earlier = |source: &SourceKey| {
        let key = source.key;
        (key.generation, key.incarnation) == (of.generation, of.incarnation) && key.operation < of.operation
    };
    if sources.len() as u64 > SOURCES_MAX {
        return Err(FormatError::invalid(
            what,
            format!("{} sources, but at most {SOURCES_MAX} are allowed", sources.len()),
        ));
    }
    if let Some(source) = sources.iter().find(|source| !is_earlier(source)) {
        return Err(FormatError::invalid(
            what,
            format!("its source {} is not an earlier checkpoint of the run", source.key),
        ));
    }
    let mut operations: Vec<u64> = sources.iter().map(|source| source.key.operation).collect();
    operations.sort_unstable();
    if operations.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(FormatError::invalid(what, "a source occurs twice"));
    }
    Ok(())
}

/// Gives extents their places, and returns how many bytes the packed shard itself stores for them.
fn place(head: &Head, extents: &[Extent], sources: usize) -> Result<(Vec<Placed>, u64), FormatError> {
    let bad = |why: &str| FormatError::invalid(WHAT, why);
    let mut placed = Vec::with_capacity(extents.len());
    let (mut own_before, mut rest) = (0u64, extents.iter());
    for region in &head.meta.regions {
        let (mut at, end) = (region.offset, region.offset + region.bytes);
        while at < end {
            let Extent { length, stored } = *rest.next().ok_or_else(|| bad("its extents end before its regions"))?;
            if length == 0 || length > end - at {
                return Err(bad("an extent is empty, or longer than its region"));
            }
            let is_sound = match stored {
                Stored::Own => true,
                Stored::In { source, offset } => (source as usize) < sources && offset.checked_add(length).is_some(),
                Stored::Same { offset } => offset.checked_add(length).is_some(),
            };
            is_sound.then_some(()).ok_or_else(|| bad("an extent refers to an impossible place"))?;
            placed.push(Placed { at, length, stored, own_before });
            at += length;
            own_before += if stored == Stored::Own { length } else { 0 };
        }
    }
    if rest.next().is_some() {
        return Err(bad("extents follow its last region"));
    }
    Ok((placed, own_before))
}

/// Gives frames their places in the stored bytes.
fn place_frames(packing: &Packing, frames: &[Frame]) -> Result<Vec<PlacedFrame>, FormatError> {
    let mut placed: Vec<PlacedFrame> = Vec::with_capacity(frames.len());
    let (mut at, mut stored_at, mut rest) = (0u64, 0u64, frames.iter());
    for (region, own) in packing.own_regions().filter(|_| !frames.is_empty()) {
        let (element, end) = (region.element.bytes(), at + own);
        while at < end {
            let frame = rest.next().ok_or_else(|| FormatError::invalid(WHAT, "its frames end before its own bytes"))?;
            let (bytes, stored) = (u64::from(frame.bytes), u64::from(frame.stored));
            let is_sound = bytes > 0 && bytes <= FRAME_MAX && stored > 0 && stored <= bytes;
            rule(is_sound, "a frame is empty, too long, or longer than what it stands for")?;
            rule(bytes <= end - at, "a frame extends past its region")?;
            placed.push(PlacedFrame { at, bytes, stored_at, stored, element });
            (at, stored_at) = (at + bytes, stored_at + stored);
        }
    }
    rule(rest.next().is_none(), "frames follow its own bytes")?;
    Ok(placed)
}
