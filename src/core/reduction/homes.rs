//! Where bytes are stored, and the extents that this comes to.

use crate::base::Digest;
use crate::format::extents::EXTENTS_MAX;
use crate::format::packed::{Extent, Stored, append};
use crate::format::shard::Head;
use crate::format::{Region, RegionKind};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a byte is stored: by the files of which checkpoint, and as which byte of its bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// The operation of the checkpoint.
    pub operation: u64,
    /// The byte.
    pub offset: u64,
}

impl Home {
    /// So many bytes behind it.
    pub fn behind(self, bytes: u64) -> Home {
        Home { offset: self.offset + bytes, ..self }
    }
}

/// Bytes of a region that are stored side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// How many.
    pub bytes: u64,
    /// Where the first is.
    pub home: Home,
}

/// Appends a stretch to others: it extends the last one if it is stored next to that.
pub(super) fn push(stretches: &mut Vec<Stretch>, next: Stretch) {
    match stretches.last_mut() {
        Some(last) if last.home.behind(last.bytes) == next.home => last.bytes += next.bytes,
        _ => stretches.push(next),
    }
}

/// Where all bytes of some regions of a shard are stored, by the regions' names.
pub type Found = BTreeMap<String, Vec<Stretch>>;

/// A region whose chunks are looked at.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its first byte, counted from the start of the bodies: a multiple of 4096.
    pub at: u64,
    /// How many bytes.
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

    /// Where the bytes of a block lie among the bodies.
    pub fn block(&self, index: u64, block: u64) -> Range<usize> {
        let (start, end) = (index * block, self.bytes.min((index + 1) * block));
        (self.at + start) as usize..(self.at + end) as usize
    }

    /// The array regions of a shard of which `is_asked` says yes.
    pub fn of(head: &Head, is_asked: impl Fn(&str) -> bool) -> Vec<Field> {
        let block = u64::from(head.header.block_size);
        let regions = head.meta.regions.iter();
        let regions = regions.filter(|region| region.kind == RegionKind::Array && is_asked(&region.name));
        regions.map(|region| Field::new(region, block, &head.digests)).collect()
    }
}

/// Bytes of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Index of the field.
    pub field: usize,
    /// The first byte, counted from the start of the field: where a chunk begins.
    pub start: u64,
    /// How many, up to where a chunk ends.
    pub bytes: u64,
}

/// The next version of a series, for whoever looks at its chunks.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Its operation.
    pub operation: u64,
    /// The checkpoints whose files may be referred to; none: its own file is to hold all of it.
    pub allowed: Vec<u64>,
    /// Bytes of a block.
    pub block: u64,
    /// The regions.
    pub fields: Vec<Field>,
    /// What the file of the version before, of this operation, stores itself, although it was said to be stored elsewhere. Nothing is made of it where
    /// a field lies elsewhere than it did, or has another length.
    pub kept: Option<(u64, Vec<Part>)>,
    /// Where blocks are stored, by their digests alone, as far as that is known. It is of use where the version before has not been looked at.
    pub known: Found,
}

impl Question {
    /// The version before that has stored more than was said, and what, if it may be referred to.
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

/// The extents of a shard whose bytes are stored there; files of `allowed` checkpoints may be referred to, each by its place in that list. What
/// is stored by others, and what nothing is known of, its own file stores. `None` if that is all, or if there are more extents than a file may have.
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

/// The extents of a shard whose file stores all of it.
pub fn all_own(head: &Head) -> Vec<Extent> {
    let regions = head.meta.regions.iter().filter(|region| region.bytes > 0);
    regions.map(|region| Extent { length: region.bytes, stored: Stored::Own }).collect()
}

/// What of a shard its file stores itself although it was found elsewhere: at places that may not be referred to, or all of it where the file is whole.
/// Parts of fields, of which these are the names.
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
