//! Files that hold bytes of a shard's bodies, each by the places that these have there.

use super::super::TierError;
use super::super::pieces::Piece;
use super::super::source::{FileShard, Source};
use super::super::storage::read_range;
use crate::base::sync::Lock;
use crate::format::frames::Expander;
use crate::format::packed::{Packing, PlacedFrame, regions_of};
use crate::format::{Content, FormatError, Region, codec};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A file that holds bytes of a shard's bodies.
pub struct Store {
    pub shard: FileShard,
    /// What it stores; `None`: the whole shard.
    pub packed: Option<OwnBytes>,
}

/// Where in a file bytes of a shard's bodies are.
#[derive(Clone, Copy)]
pub enum At {
    /// In the raw shard.
    Shard(u64),
    /// In what a packed one stores itself.
    Own(u64),
}

impl At {
    pub fn byte(self) -> u64 {
        match self {
            At::Shard(byte) | At::Own(byte) => byte,
        }
    }
}

impl Store {
    /// Reads what a raw shard says of itself, if it is packed.
    pub fn of(shard: FileShard) -> Result<Store, TierError> {
        let packed = match shard.head().header.content {
            Content::Packed => Some(OwnBytes::new(&shard, Arc::new(packing_of(&shard)?))?),
            Content::Shard | Content::Parity => None,
        };
        Ok(Store { shard, packed })
    }

    /// Where a range of the bodies is stored as a whole.
    pub fn find(&self, range: Range<u64>) -> Option<At> {
        match &self.packed {
            Some(own) => own.packing.own_range(range).map(At::Own),
            None => {
                let header = &self.shard.head().header;
                let start = header.body_offset.checked_add(range.start)?;
                let end = header.body_offset.checked_add(range.end)?;
                (end <= header.total_len).then_some(At::Shard(start))
            }
        }
    }

    /// Reads from where something was found, and what follows it.
    pub fn read(&self, at: At, behind: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        match (at, &self.packed) {
            (At::Own(at), Some(own)) => own.read(&self.shard, at + behind, buffer),
            (At::Own(at) | At::Shard(at), _) => self.shard.read_raw(at + behind, buffer),
        }
    }
}

/// What a packed shard in a file stores itself.
pub struct OwnBytes {
    /// Where that begins in the shard.
    at: u64,
    pub packing: Arc<Packing>,
    /// Frames of which only a part was asked for, the last ones; ranges that refer to them are often short and close to each other.
    expanded: Lock<VecDeque<(usize, Arc<[u8]>)>>,
}

/// So many expanded frames are kept.
const EXPANDED_MAX: usize = 4;

impl OwnBytes {
    pub fn new(raw: &FileShard, packing: Arc<Packing>) -> Result<OwnBytes, TierError> {
        let [.., own] = regions_of(raw.head()).map_err(|error| raw.wrong(error))?;
        Ok(OwnBytes { at: raw.head().header.body_offset + own.offset, packing, expanded: Lock::default() })
    }

    /// Reads from this one of its own bytes on.
    fn read(&self, raw: &FileShard, at: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let frames = self.packing.frames_in(at..at + buffer.len() as u64);
        if self.packing.frames.is_empty() {
            return raw.read_raw(self.at + at, buffer);
        }
        let mut expander = None;
        let mut rest = buffer;
        let mut from = at;
        for index in frames {
            let frame = &self.packing.frames[index];
            let length = rest.len().min((frame.at + frame.bytes - from) as usize);
            let (target, behind) = rest.split_at_mut(length);
            let inside = from - frame.at;
            if !frame.is_compressed() {
                raw.read_raw(self.at + frame.stored_at + inside, target)?;
            } else if length as u64 == frame.bytes {
                self.expand(raw, frame, &mut expander, target)?;
            } else {
                let expanded = self.expanded(raw, index, &mut expander)?;
                target.copy_from_slice(&expanded[inside as usize..inside as usize + length]);
            }
            (rest, from) = (behind, from + length as u64);
        }
        Ok(())
    }

    /// A frame as a whole, which stays for those who ask for it next.
    fn expanded(&self, raw: &FileShard, index: usize, expander: &mut Option<Expander>) -> Result<Arc<[u8]>, TierError> {
        if let Some((_, bytes)) = self.expanded.lock().iter().find(|(known, _)| *known == index) {
            return Ok(bytes.clone());
        }
        let frame = &self.packing.frames[index];
        let mut bytes = vec![0; frame.bytes as usize];
        self.expand(raw, frame, expander, &mut bytes)?;
        let bytes: Arc<[u8]> = bytes.into();
        let mut kept = self.expanded.lock();
        kept.push_front((index, bytes.clone()));
        kept.truncate(EXPANDED_MAX);
        Ok(bytes)
    }

    fn expand(
        &self,
        raw: &FileShard,
        frame: &PlacedFrame,
        expander: &mut Option<Expander>,
        bytes: &mut [u8],
    ) -> Result<(), TierError> {
        let mut stored = vec![0; frame.stored as usize];
        raw.read_raw(self.at + frame.stored_at, &mut stored)?;
        let no_memory = |source| TierError::io(raw.tier(), "expand", raw.path(), source);
        let expander = match expander {
            Some(expander) => expander,
            None => expander.insert(Expander::new().map_err(no_memory)?),
        };
        expander.expand(&stored, frame.element, bytes).map_err(|error| raw.wrong(error))
    }
}

/// Reads and checks what a packed shard says of itself.
///
/// # Errors
/// [`TierError`] if it cannot be read, or is damaged.
///
/// # Blocking
/// On the tier.
pub fn packing_of(raw: &FileShard) -> Result<Packing, TierError> {
    let head = raw.head();
    let [first, sources, extents, frames, _] = regions_of(head).map_err(|error| raw.wrong(error))?;
    if let Some(region) = [sources, extents, frames].into_iter().find(|region| region.bytes > codec::LIMIT as u64) {
        let why = format!("its {} are too long: {} bytes", region.name, region.bytes);
        return Err(raw.wrong(FormatError::invalid("packed shard", why)));
    }
    let read = |region: &Region| -> Result<Vec<u8>, TierError> {
        let start = raw.offset() + head.header.body_offset + region.offset;
        let bytes = read_range(raw.file(), start..start + region.bytes);
        let bytes = bytes.map_err(|source| TierError::io(raw.tier(), "read", raw.path(), source))?;
        let at = head.header.body_offset + region.offset;
        let blocks = region.first_block..region.first_block + region.blocks(head.header.block_size.into());
        Piece { bytes: at..at + region.bytes, blocks }.check(&Source::File(raw.clone()), &bytes)?;
        Ok(bytes)
    };
    let (sources, extents, frames) = (read(sources)?, read(extents)?, read(frames)?);
    Packing::decode(head, read(first)?, [&sources, &extents, &frames]).map_err(|error| raw.wrong(error))
}
