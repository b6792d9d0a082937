//! Files that hold bytes of a shard's bodies, and where in these files the bytes are.

use super::super::TierError;
use super::super::pieces::Piece;
use super::super::source::{FileShard, Source};
use super::super::storage::read_range;
use crate::base::sync::Lock;
use crate::format::frames::Expander;
use crate::format::packed::{Outline, Packing, Placed, PlacedFrame, REGIONS, SourceKey, Stored, regions_of};
use crate::format::{Content, FormatError, Region, codec};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The files of a packed shard and of its sources.
pub struct Stores {
    own: Store,
    packing: Arc<Packing>,
    sources: Vec<Store>,
}

/// Which of the files is at fault.
pub enum StoresError {
    Own(TierError),
    Source(Box<(SourceKey, TierError)>),
}

/// A range of one of the files, and where it is wanted.
struct Wanted {
    /// 0 for the packed shard's own file, otherwise the index of a source plus 1.
    file: usize,
    at: At,
    bytes: usize,
    target: usize,
}

impl Wanted {
    fn end(&self) -> u64 {
        self.at.byte() + self.bytes as u64
    }
}

/// Ranges that are at most this far apart in a file are read in one go, up to a maximum number of bytes.
const GAP_MAX: u64 = 64 << 10;
const READ_MAX: u64 = 1 << 20;

impl Stores {
    /// Reads the tables of a packed shard that has this outline, and those of its sources. Checks that each byte is
    /// stored where the tables say.
    pub fn open(own: &FileShard, outline: &Outline, sources: &[FileShard]) -> Result<Stores, StoresError> {
        let packing = Arc::new(tables_of(own, outline.clone()).map_err(StoresError::Own)?);
        let bytes = OwnBytes::new(own, packing.clone()).map_err(StoresError::Own)?;
        let open = |(key, shard): (&SourceKey, &FileShard)| {
            Store::of(shard.clone()).map_err(|cause| StoresError::Source(Box::new((*key, cause))))
        };
        let sources = outline.sources.iter().zip(sources).map(open).collect::<Result<Vec<_>, _>>()?;
        let stores = Stores { own: Store { shard: own.clone(), packed: Some(bytes) }, packing, sources };
        let is_lost = |extent: &&Placed| stores.place(extent, extent.at..extent.end()).is_none();
        match stores.packing.extents.iter().find(is_lost) {
            None => Ok(stores),
            Some(extent) => {
                let why =
                    format!("its bytes from {} on refer to bytes that their source does not store itself", extent.at);
                Err(StoresError::Own(own.wrong(FormatError::invalid("packed shard", why))))
            }
        }
    }

    /// Reads bytes of the bodies of the shard that the packed one stands for, beginning with byte `from` of the bodies.
    pub fn read(&self, from: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        // The bytes between the regions are zeros.
        buffer.fill(0);
        let bodies = from..from + buffer.len() as u64;
        let mut wanted = Vec::new();
        for extent in self.packing.extents_in(bodies.clone()) {
            let range = extent.at.max(bodies.start)..extent.end().min(bodies.end);
            let lost = || self.own.shard.wrong(FormatError::invalid("packed shard", "an extent is stored nowhere"));
            let (file, at) = self.place(extent, range.clone()).ok_or_else(lost)?;
            let target = (range.start - from) as usize;
            wanted.push(Wanted { file, at, bytes: (range.end - range.start) as usize, target });
        }
        self.fetch(wanted, buffer)
    }

    fn store(&self, file: usize) -> &Store {
        if file == 0 { &self.own } else { &self.sources[file - 1] }
    }

    /// Reads ranges of the files, in the order in which the files store them.
    fn fetch(&self, mut wanted: Vec<Wanted>, buffer: &mut [u8]) -> Result<(), TierError> {
        wanted.sort_unstable_by_key(|part| (part.file, part.at.byte()));
        let mut scratch = Vec::new();
        let mut rest = &wanted[..];
        while let [first, ..] = rest {
            let (from, mut end, mut count) = (first.at.byte(), first.end(), 1);
            for next in &rest[1..] {
                let is_near = next.file == first.file && next.at.byte() <= end + GAP_MAX;
                if !is_near || next.end().max(end) - from > READ_MAX {
                    break;
                }
                (end, count) = (end.max(next.end()), count + 1);
            }
            let (these, others) = rest.split_at(count);
            let store = self.store(first.file);
            if let [only] = these {
                store.read(only.at, 0, &mut buffer[only.target..only.target + only.bytes])?;
            } else {
                scratch.resize((end - from) as usize, 0);
                store.read(first.at, 0, &mut scratch)?;
                for part in these {
                    let inside = (part.at.byte() - from) as usize;
                    buffer[part.target..part.target + part.bytes]
                        .copy_from_slice(&scratch[inside..inside + part.bytes]);
                }
            }
            rest = others;
        }
        Ok(())
    }

    /// In which file a range of an extent is stored, and where in the file.
    fn place(&self, extent: &Placed, range: Range<u64>) -> Option<(usize, At)> {
        let inside = range.start - extent.at;
        let moved = |offset: u64| {
            let start = offset.checked_add(inside)?;
            Some(start..start.checked_add(range.end - range.start)?)
        };
        match extent.stored {
            Stored::Own => Some((0, At::Own(extent.own_before + inside))),
            Stored::Same { offset } => self.own.find(moved(offset)?).map(|at| (0, at)),
            Stored::In { source, offset } => {
                let store = self.sources.get(source as usize)?;
                store.find(moved(offset)?).map(|at| (source as usize + 1, at))
            }
        }
    }
}

/// A file that holds bytes of a shard's bodies.
pub struct Store {
    pub shard: FileShard,
    /// What a packed shard stores itself; `None` if the file stores a whole shard.
    pub packed: Option<OwnBytes>,
}

/// Where in a file some bytes of a shard's bodies are.
#[derive(Clone, Copy)]
pub enum At {
    /// In the raw shard.
    Shard(u64),
    /// In the part that a packed shard stores itself.
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
    /// A raw shard, with its description of itself if it is packed.
    pub fn of(shard: FileShard) -> Result<Store, TierError> {
        let packed = match shard.head().header.content {
            Content::Packed => Some(OwnBytes::new(&shard, Arc::new(packing_of(&shard)?))?),
            Content::Shard | Content::Parity => None,
        };
        Ok(Store { shard, packed })
    }

    /// Where a range of the bodies is stored, if this file stores all of it.
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

    /// Reads the bytes that begin `behind` bytes after the place that was found.
    pub fn read(&self, at: At, behind: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        match (at, &self.packed) {
            (At::Own(at), Some(own)) => own.read(&self.shard, at + behind, buffer),
            (At::Own(at) | At::Shard(at), _) => self.shard.read_raw(at + behind, buffer),
        }
    }
}

/// What a packed shard in a file stores itself.
pub struct OwnBytes {
    /// Where these bytes begin in the shard.
    at: u64,
    pub packing: Arc<Packing>,
    /// The last frames of which only a part was requested. Ranges that refer to such frames are often short and close to each other.
    expanded: Lock<VecDeque<(usize, Arc<[u8]>)>>,
}

/// How many expanded frames are kept.
const EXPANDED_MAX: usize = 4;

impl OwnBytes {
    pub fn new(raw: &FileShard, packing: Arc<Packing>) -> Result<OwnBytes, TierError> {
        let [.., own] = regions_of(raw.head()).map_err(|error| raw.wrong(error))?;
        Ok(OwnBytes { at: raw.head().header.body_offset + own.offset, packing, expanded: Lock::default() })
    }

    /// Reads from the shard's own bytes, beginning at byte `at`.
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

    /// A frame as a whole, which is kept for the next requests.
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

/// Reads and checks a packed shard's description of itself.
///
/// # Errors
/// [`TierError`] if the description cannot be read or is damaged.
///
/// # Blocking
/// On the tier.
pub fn packing_of(raw: &FileShard) -> Result<Packing, TierError> {
    tables_of(raw, outline_of(raw)?)
}

/// Reads and checks what a packed shard stands for, and what it refers to.
pub fn outline_of(raw: &FileShard) -> Result<Outline, TierError> {
    let [head, sources, ..] = regions_of(raw.head()).map_err(|error| raw.wrong(error))?;
    let (head, sources) = (read_table(raw, head)?, read_table(raw, sources)?);
    Outline::decode(raw.head(), head, &sources).map_err(|error| raw.wrong(error))
}

/// Reads and checks the rest of a packed shard's description of itself.
fn tables_of(raw: &FileShard, outline: Outline) -> Result<Packing, TierError> {
    let [_, _, extents, frames, _] = regions_of(raw.head()).map_err(|error| raw.wrong(error))?;
    let (extents, frames) = (read_table(raw, extents)?, read_table(raw, frames)?);
    Packing::decode(raw.head(), outline, [&extents, &frames]).map_err(|error| raw.wrong(error))
}

/// Reads and checks one region of a packed shard as a whole.
fn read_table(raw: &FileShard, region: &Region) -> Result<Vec<u8>, TierError> {
    let head = raw.head();
    if region.name != REGIONS[0] && region.bytes > codec::LIMIT as u64 {
        let why = format!("its {} are too long: {} bytes", region.name, region.bytes);
        return Err(raw.wrong(FormatError::invalid("packed shard", why)));
    }
    let at = head.header.body_offset + region.offset;
    let start = raw.offset() + at;
    let bytes = read_range(raw.file(), start..start + region.bytes);
    let bytes = bytes.map_err(|source| TierError::io(raw.tier(), "read", raw.path(), source))?;
    let blocks = region.first_block..region.first_block + region.blocks(head.header.block_size.into());
    Piece { bytes: at..at + region.bytes, blocks }.check(&Source::File(raw.clone()), &bytes)?;
    Ok(bytes)
}
