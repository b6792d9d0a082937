//! What the slots of node memory still contain: a capture into memory that an earlier capture used only stores what has changed.
//!
//! A series uses two slots in turn. A slot that it gives back contains its shard until that memory is used for something else, and the next
//! capture usually receives the same slot again ([`SlotMut::remains`]). Blocks of that shard with the digests of the new shard stay; blocks
//! that only the newest sealed shard has are copied from there; the rest is copied from the application. Damage to bytes that were left
//! alone is detected in the same way as damage to any other bytes: when a writer or a restart checks their digests, and when they are
//! copied from one slot to another. After a write that has failed, and every hundredth time, a capture stores everything.
#![forbid(unsafe_code)]

use crate::base::Digest;
use crate::base::digest::{copy_digest, store_fence};
use crate::format::Region;
use crate::format::shard::{Head, Layout};
use crate::segment::{Segment, SlotId, SlotMut, SlotRef};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// For how many shards of a series the heads are remembered.
const HEADS_MAX: usize = 4;
/// How many captures in a row may leave something out, so that a bit that flips in memory stays no longer.
const PARTIAL_MAX: u32 = 100;

#[derive(Default)]
struct Latest {
    /// The slots that were sealed last, and the heads of their shards.
    heads: VecDeque<(SlotId, Arc<Head>)>,
    /// The operation of the last capture.
    begun: u64,
    /// The share of blocks that had changed in the last capture.
    changed: f64,
    /// How many captures have left something out since the last one that stored everything.
    partial: u32,
}

/// The shards that this process has sealed.
#[derive(Default)]
pub(super) struct Remains(HashMap<String, Latest>);

/// What a capture need not store.
pub(super) struct Known {
    /// The head of the shard that the slot contains.
    pub here: Arc<Head>,
    /// The newest shard of the series.
    pub newest: Arc<Head>,
    /// The bytes of the newest shard, if they are in another slot.
    pub bytes: Option<SlotRef>,
}

/// The parts of a slot that are copied from another one, in bytes from the start of both.
pub(super) struct Fill {
    from: SlotRef,
    /// The ranges of the blocks, and their digests.
    blocks: Vec<(Range<usize>, Digest)>,
}

/// A block of the newest shard differs from what was captured.
#[derive(Debug, thiserror::Error)]
#[error(
    "the newest shard in node memory is damaged at byte {at}: the digest of a block that should be unchanged is different"
)]
pub(super) struct Flipped {
    at: usize,
}

impl Remains {
    /// A shard has been sealed in a slot.
    pub fn sealed(&mut self, name: &str, slot: SlotId, head: Arc<Head>) {
        let latest = self.0.entry(name.to_owned()).or_default();
        if latest.heads.len() == HEADS_MAX {
            latest.heads.pop_front();
        }
        latest.heads.push_back((slot, head));
    }

    /// A capture begins. Returns what it need not store; `None` if nothing is known about that, or if most of the last capture had changed.
    pub fn begin(
        &mut self,
        segment: &Segment,
        name: &str,
        operation: u64,
        layout: &Layout,
        slot: &SlotMut,
    ) -> Option<Known> {
        let latest = self.0.entry(name.to_owned()).or_default();
        let before = std::mem::replace(&mut latest.begun, operation);
        let (sealed, newest) = latest.heads.back()?;
        let is_alike = |head: &&Arc<Head>| is_alike(head, layout);
        let here = latest.heads.iter().find(|(other, _)| Some(*other) == slot.remains()).map(|(_, head)| head);
        let here = here.filter(is_alike)?.clone();
        // A previous capture that has not landed yet would be the newest.
        let newest = Some(newest).filter(is_alike).filter(|head| head.header.key.operation == before)?.clone();
        let bytes = segment.sealed(*sealed);
        let is_there = bytes.is_some() || slot.remains() == Some(*sealed);
        if !is_there || latest.changed > 0.5 || latest.partial >= PARTIAL_MAX {
            latest.partial = 0;
            return None;
        }
        latest.partial += 1;
        Some(Known { here, newest, bytes })
    }

    /// A shard is marked. Returns the head of an earlier shard with regions of the same lengths that its slot contains, if that is known.
    pub fn here(&mut self, name: &str, operation: u64, layout: &Layout, slot: &SlotMut) -> Option<Arc<Head>> {
        let latest = self.0.entry(name.to_owned()).or_default();
        latest.begun = operation;
        let here = latest.heads.iter().find(|(other, _)| Some(*other) == slot.remains()).map(|(_, head)| head);
        let lengths = |regions: &[Region]| regions.iter().map(|region| region.bytes).collect::<Vec<_>>();
        let here = here.filter(|head| is_alike(head, layout));
        here.filter(|head| lengths(&head.meta.regions) == lengths(&layout.meta.regions)).cloned()
    }

    /// Something in node memory may be damaged: the next captures store everything.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// A capture has these digests. `changed` is the number of blocks that differ from the newest shard, if that is known.
    pub fn captured(&mut self, name: &str, digests: &[Digest], changed: Option<usize>) {
        let Some(latest) = self.0.get_mut(name) else { return };
        let newest = latest.heads.back().map_or(&[][..], |(_, head)| &head.digests[..]);
        let differ = || newest.iter().zip(digests).filter(|(newest, digest)| newest != digest).count();
        latest.changed = changed.unwrap_or_else(differ) as f64 / digests.len().max(1) as f64;
    }
}

/// Do the regions of a shard begin where those of the other shard do?
fn is_alike(head: &Head, layout: &Layout) -> bool {
    let (header, regions) = (&head.header, &head.meta.regions);
    // If a region is a little longer than before, the digests of its blocks show that.
    let is_there = |(one, other): (&Region, &Region)| {
        (one.offset, one.first_block, &one.name) == (other.offset, other.first_block, &other.name)
    };
    (header.total_len, header.body_offset) == (layout.total_len, layout.body_offset)
        && (u64::from(header.block_size), head.digests.len() as u64) == (layout.block_size, layout.block_count)
        && regions.len() == layout.meta.regions.len()
        && regions.iter().zip(&layout.meta.regions).all(is_there)
}

/// Blocks of a shard, as ranges of block numbers.
#[derive(Default)]
pub(super) struct Compared {
    /// The blocks that the newest shard does not have.
    pub changed: Vec<Range<usize>>,
    /// The blocks that the newest shard has but the slot does not.
    pub older: Vec<Range<usize>>,
}

/// Appends a block to ascending ranges.
fn push(ranges: &mut Vec<Range<usize>>, block: usize) {
    match ranges.last_mut() {
        Some(last) if last.end == block => last.end = block + 1,
        _ => ranges.push(block..block + 1),
    }
}

impl Known {
    /// Finds out which blocks of a shard with these digests are where.
    pub fn compare(&self, digests: &[Digest]) -> Compared {
        let mut compared = Compared::default();
        let known = self.newest.digests.iter().zip(&self.here.digests);
        for (block, (digest, (newest, here))) in digests.iter().zip(known).enumerate() {
            match (digest == newest, digest == here) {
                (true, true) => {}
                (false, _) => push(&mut compared.changed, block),
                (true, false) => push(&mut compared.older, block),
            }
        }
        compared
    }

    /// Have these regions kept their lengths?
    pub fn is_as_long(&self, layout: &Layout, mut regions: impl Iterator<Item = usize>) -> bool {
        let bytes = |head: &Head, region: usize| head.meta.regions[region].bytes;
        regions.all(|region| {
            let now = layout.meta.regions[region].bytes;
            [&self.here, &self.newest].iter().all(|head| bytes(head, region) == now)
        })
    }

    /// How to copy these blocks of a device's regions from the newest shard; `None` if they are already in the slot.
    pub fn fill(self, layout: &Layout, regions: &[usize], blocks: &[Range<usize>]) -> Option<Fill> {
        let from = self.bytes?;
        let mut found = Vec::new();
        for region in regions.iter().map(|region| &layout.meta.regions[*region]) {
            let first = region.first_block as usize;
            let own = first..first + region.blocks(layout.block_size) as usize;
            let begin = layout.body_offset + region.offset;
            for block in within(blocks, &own).flatten() {
                let start = (block - first) as u64 * layout.block_size;
                let end = region.bytes.min(start + layout.block_size);
                found.push(((begin + start) as usize..(begin + end) as usize, self.newest.digests[block]));
            }
        }
        Some(Fill { from, blocks: found })
    }
}

/// The parts of ascending ranges that are within another range.
pub(super) fn within<'a>(ranges: &'a [Range<usize>], other: &Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
    let other = other.clone();
    let first = ranges.partition_point(|range| range.end <= other.start);
    let parts = ranges[first..].iter().map(move |range| range.start.max(other.start)..range.end.min(other.end));
    parts.take_while(|part| !part.is_empty())
}

impl Fill {
    /// Copies the blocks.
    ///
    /// # Errors
    /// [`Flipped`]: the copied bytes are not the captured ones.
    pub fn copy_to(&self, target: &mut [u8]) -> Result<(), Flipped> {
        for (range, digest) in &self.blocks {
            if copy_digest(&self.from[range.clone()], &mut target[range.clone()]) != *digest {
                return Err(Flipped { at: range.start });
            }
        }
        store_fence();
        Ok(())
    }
}
