//! Where bytes are stored, and the extents that follow from this.

use crate::base::Digest;
use crate::format::extents::EXTENTS_MAX;
use crate::format::packed::{Extent, Stored, append};
use crate::format::shard::Head;
use crate::format::{Region, RegionKind};
use std::collections::BTreeMap;
use std::ops::Range;

/// The place where a byte is stored, given by a checkpoint, whose files hold it, and an offset within the bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// The operation of the checkpoint.
    pub operation: u64,
    /// The offset of the byte.
    pub offset: u64,
}

impl Home {
    /// The place `bytes` bytes further on.
    pub fn behind(self, bytes: u64) -> Home {
        Home { offset: self.offset + bytes, ..self }
    }
}

/// Bytes of a region that are stored side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The number of bytes.
    pub bytes: u64,
    /// Where the first byte is stored.
    pub home: Home,
}

/// Appends a stretch to others. If it is stored right after the last one, that one is extended.
pub(super) fn push(stretches: &mut Vec<Stretch>, next: Stretch) {
    match stretches.last_mut() {
        Some(last) if last.home.behind(last.bytes) == next.home => last.bytes += next.bytes,
        _ => stretches.push(next),
    }
}

/// Where all bytes of some regions of a shard are stored, by the regions' names.
pub type Found = BTreeMap<String, Vec<Stretch>>;

/// A region whose chunks are searched for.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name of the region.
    pub name: String,
    /// The offset of its first byte from the start of the bodies, a multiple of 4096.
    pub at: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The digests of its blocks.
    pub blocks: Vec<Digest>,
}

impl Field {
    /// A region of a shard whose blocks have these digests.
    pub fn new(region: &Region, block: u64, digests: &[Digest]) -> Field {
        let first = region.first_block as usize;
        let blocks = digests[first..first + region.blocks(block) as usize].to_vec();
        Field { name: region.name.clone(), at: region.offset, bytes: region.bytes, blocks }
    }

    /// Where the bytes of a block are among the bodies.
    pub fn block(&self, index: u64, block: u64) -> Range<usize> {
        let (start, end) = (index * block, self.bytes.min((index + 1) * block));
        (self.at + start) as usize..(self.at + end) as usize
    }

    /// The array regions of a shard for which `is_asked` returns true.
    pub fn of(head: &Head, is_asked: impl Fn(&str) -> bool) -> Vec<Field> {
        let block = u64::from(head.header.block_size);
        let regions = head.meta.regions.iter();
        let regions = regions.filter(|region| region.kind == RegionKind::Array && is_asked(&region.name));
        regions.map(|region| Field::new(region, block, &head.digests)).collect()
    }
}

/// A part of a field, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The index of the field.
    pub field: usize,
    /// The offset of its first byte from the start of the field. A chunk begins there.
    pub start: u64,
    /// The number of bytes, up to the end of a chunk.
    pub bytes: u64,
}

/// The next version of a series, as a question about its chunks.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The operation of the version.
    pub operation: u64,
    /// The checkpoints whose files may be referred to. If there are none, the version's own file is to hold all its bytes.
    pub allowed: Vec<u64>,
    /// The length of a block, in bytes.
    pub block: u64,
    /// The regions of the version.
    pub fields: Vec<Field>,
    /// The operation of the version before, and what its file stores itself although it was said to be stored elsewhere. This is ignored
    /// for a field that has moved or has another length.
    pub kept: Option<(u64, Vec<Part>)>,
    /// Where blocks are stored, if their digests alone show it. This is of use if the version before has not been looked at.
    pub known: Found,
}

impl Question {
    /// The operation of the version before and what its file stores beyond what was said, if that file may be referred to.
    pub fn kept(&self) -> Option<(u64, &[Part])> {
        let may = |kept: &&(u64, Vec<Part>)| self.allowed.contains(&kept.0);
        self.kept.as_ref().filter(may).map(|(operation, parts)| (*operation, &parts[..]))
    }

    pub(super) fn is_whole(&self) -> bool {
        self.allowed.is_empty()
    }

    pub(super) fn may_refer(&self, home: &Home) -> bool {
        self.allowed.contains(&home.operation)
    }
}

/// The extents of a shard whose bytes are stored at these places. Files of `allowed` checkpoints may be referred to, each by its index in
/// that list. The shard's own file stores whatever others store, and everything about which nothing is known. `None` if the own file stores
/// everything, or if there are more extents than a file may have.
pub fn extents(head: &Head, found: &Found, allowed: &[u64]) -> Option<Vec<Extent>> {
    let operation = head.header.key.operation;
    let mut extents = Vec::new();
    for region in &head.meta.regions {
        let (first, mut at) = (extents.len(), region.offset);
        let whole = [Stretch { bytes: region.bytes, home: Home { operation, offset: at } }];
        let stretches = found.get(&region.name).map_or(&whole[..], Vec::as_slice);
        for Stretch { bytes, home } in stretches.iter().filter(|stretch| stretch.bytes > 0) {
            let stored = match allowed.iter().position(|allowed| *allowed == home.operation) {
                Some(source) => Stored::In { source: source as u32, offset: home.offset },
                None if home.operation == operation && home.offset != at => Stored::Same { offset: home.offset },
                None => Stored::Own,
            };
            append(&mut extents, first, Extent { length: *bytes, stored });
            at += bytes;
        }
    }
    let is_too_much = extents.len() > EXTENTS_MAX;
    let is_reduced = extents.iter().any(|extent| extent.stored != Stored::Own);
    (is_reduced && !is_too_much).then_some(extents)
}

/// The extents of a shard whose file stores all its bytes.
pub fn all_own(head: &Head) -> Vec<Extent> {
    let regions = head.meta.regions.iter().filter(|region| region.bytes > 0);
    regions.map(|region| Extent { length: region.bytes, stored: Stored::Own }).collect()
}

/// The parts of a shard that its file stores itself although they were found elsewhere: those at places that may not be referred to, or all
/// of them if the file is whole. The parts belong to fields, whose names are `names`.
pub fn kept(found: &Found, names: &[String], operation: u64, allowed: &[u64], is_whole: bool) -> Vec<Part> {
    let mut kept = Vec::new();
    for (field, stretches) in names.iter().enumerate().filter_map(|(field, name)| Some((field, found.get(name)?))) {
        let mut start = 0;
        for Stretch { bytes, home } in stretches {
            let is_elsewhere = home.operation != operation && (is_whole || !allowed.contains(&home.operation));
            if is_elsewhere {
                kept.push(Part { field, start, bytes: *bytes });
            }
            start += bytes;
        }
    }
    kept
}
