//! The shards of one series that this rank has captured, as far as files may still refer to them.

use super::homes::{Found, Home, Stretch, push};
use crate::base::Digest;
use crate::format::packed::{Extent, SourceKey, Stored};
use crate::format::shard::Head;
use crate::format::{Region, RegionKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The packed form of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extents {
    /// The checkpoints that it refers to.
    pub sources: Vec<SourceKey>,
    /// All extents.
    pub extents: Vec<Extent>,
}

struct Version {
    key: SourceKey,
    head: Arc<Head>,
    /// Which blocks its file stores itself; `None`: that is not decided.
    own: Option<Vec<bool>>,
    /// Bytes of its bodies that its file stores itself.
    stored: u64,
}

impl Version {
    fn is_own(&self, block: usize) -> bool {
        self.own.as_ref().is_some_and(|own| own[block])
    }

    /// Its region that stands for one of another shard: of the same name, kind and length, and cut into the same blocks.
    fn twin(&self, head: &Head, region: &Region) -> Option<&Region> {
        let is_same = |twin: &&Region| (twin.kind, twin.bytes) == (RegionKind::Array, region.bytes);
        let is_cut_alike = self.head.header.block_size == head.header.block_size;
        self.head.region(&region.name).filter(|twin| is_cut_alike && region.kind == RegionKind::Array && is_same(twin))
    }
}

/// In a rank's report on an earlier checkpoint ([`Versions::uses`]) the bytes that its file stores are under its operation with this bit.
pub const STORED: u64 = 1 << 63;

/// The versions of a series.
#[derive(Default)]
pub struct Versions {
    /// By operation.
    list: BTreeMap<u64, Version>,
    /// The last one that was decided by chunks, and the bytes that it takes from each of its sources.
    last: Option<(u64, BTreeMap<u64, u64>)>,
    by_chunks: bool,
    /// What files may refer to by the last choice that this rank has acted on.
    chosen: Option<Vec<u64>>,
    /// How many were captured, and how many of the last ones have found nothing in what they might have referred to.
    captured: u64,
    misses: u32,
}

/// Attempts that have found nothing are at most this many doublings apart.
const MISSES_MAX: u32 = 4;

impl Versions {
    /// More than unchanged blocks is going to be found from now on.
    pub fn by_chunks(&mut self) {
        self.by_chunks = true;
    }

    /// A shard was captured. Its file stores all of it (`is_whole`), or that is still to be decided.
    pub fn captured(&mut self, key: SourceKey, head: Arc<Head>, is_whole: bool) {
        let operation = key.key.operation;
        self.captured += 1;
        self.list.insert(operation, Version { key, head, own: None, stored: 0 });
        if is_whole {
            self.whole(operation);
        }
    }

    /// What files may refer to, as far as that can be told before it is chosen: as by the last choice, and what came later.
    pub fn expected(&self) -> Vec<u64> {
        let newest = self.chosen.iter().flatten().max();
        let is_expected = |operation: &&u64| match &self.chosen {
            Some(chosen) => chosen.contains(operation) || newest.is_none_or(|newest| *operation > newest),
            None => true,
        };
        self.list.keys().filter(is_expected).copied().collect()
    }

    /// Files may refer to these, by the root's choice.
    pub fn chosen(&mut self, operations: Vec<u64>) {
        self.chosen = Some(operations);
    }

    /// This rank's report on a shard before anybody has chosen what its file may refer to: by operation, how many of its bytes the files of
    /// each earlier one store, and (with [`STORED`]) how many these store in all. Each byte counts at the latest that has it. `found` is
    /// what chunks have found already. Otherwise it is not known yet: as much as the time before, and all that the last one stores. Only
    /// regions that are asked for refer to any.
    pub fn uses(&self, operation: u64, found: Option<&Found>, is_asked: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let Some(version) = self.list.get(&operation) else { return Vec::new() };
        let decided = || self.list.range(..operation).filter(|(_, earlier)| earlier.own.is_some());
        let earlier: Vec<&Version> = decided().rev().map(|(_, earlier)| earlier).collect();
        if earlier.is_empty() {
            return Vec::new();
        }
        let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
        let owners = owners(&version.head, &earlier, is_asked);
        for ((_, length, _), owner) in version.head.blocks().zip(owners) {
            if let Some(owner) = owner {
                *uses.entry(earlier[owner].key.key.operation).or_default() += length;
            }
        }
        let stored: BTreeMap<u64, u64> = decided().map(|(operation, earlier)| (*operation, earlier.stored)).collect();
        let mut by_chunks: BTreeMap<u64, u64> = BTreeMap::new();
        for stretch in found.into_iter().flat_map(Found::values).flatten() {
            *by_chunks.entry(stretch.home.operation).or_default() += stretch.bytes;
        }
        for (source, bytes) in by_chunks.into_iter().filter(|(source, _)| stored.contains_key(source)) {
            let known = uses.entry(source).or_default();
            *known = bytes.max(*known);
        }
        // What it refers to stays, so an attempt that finds nothing has its price.
        let guess = self.last.as_ref().filter(|_| found.is_none() && self.is_hopeful(self.captured));
        if let Some((last, expected)) = guess {
            let all = stored.get(last).map(|bytes| (*last, *bytes));
            for (source, bytes) in expected.iter().map(|(source, bytes)| (*source, *bytes)).chain(all) {
                let known = uses.entry(source).or_default();
                *known = bytes.max(*known);
            }
        }
        uses.into_iter().chain(stored.into_iter().map(|(operation, bytes)| (operation | STORED, bytes))).collect()
    }

    /// Is that one of those that attempt to find chunks, after attempts that have found none?
    fn is_hopeful(&self, captured: u64) -> bool {
        captured.is_multiple_of(1 << self.misses.min(MISSES_MAX))
    }

    /// Are the chunks of a shard that is stored whole worth looking at? Only for the next attempt to find them again.
    pub fn is_worth_a_look(&self) -> bool {
        self.misses == 0 || self.is_hopeful(self.captured + 1)
    }

    /// Its file stores all of it, and nobody has looked at its chunks.
    pub fn passed_over(&mut self, operation: u64) {
        self.whole(operation);
        self.last = None;
    }

    /// Those of the checkpoints that files may refer to of which this rank knows what their files store.
    pub fn known(&self, allowed: &[SourceKey]) -> Vec<SourceKey> {
        let is_known = |source: &&SourceKey| {
            let version = self.list.get(&source.key.operation);
            version.is_some_and(|version| version.key == **source && version.own.is_some())
        };
        allowed.iter().filter(is_known).copied().collect()
    }

    /// What share of a region's blocks has changed since the newest version before, if that has the like; `blocks` are their digests.
    pub fn changed(&self, operation: u64, region: &str, bytes: u64, blocks: &[Digest]) -> Option<f64> {
        let (_, newest) = self.list.range(..operation).next_back()?;
        let twin = newest.head.region(region).filter(|twin| twin.bytes == bytes)?;
        let known = newest.head.digests.get(twin.first_block as usize..)?.get(..blocks.len())?;
        let changed = known.iter().zip(blocks).filter(|(known, now)| known != now).count();
        (!blocks.is_empty()).then(|| changed as f64 / blocks.len() as f64)
    }

    /// Where the blocks of some regions of a shard are stored: by the latest of these known checkpoints that stores it at its place, or
    /// else by its own file.
    pub fn unchanged(&self, operation: u64, known: &[SourceKey], is_asked: impl Fn(&str) -> bool) -> Found {
        let mut found = Found::new();
        let Some(version) = self.list.get(&operation) else { return found };
        let mut sources: Vec<&Version> =
            known.iter().filter_map(|source| self.list.get(&source.key.operation)).collect();
        sources.sort_unstable_by_key(|version| std::cmp::Reverse(version.key.key.operation));
        let (head, block_size) = (&version.head, u64::from(version.head.header.block_size));
        let owners = owners(head, &sources, &is_asked);
        for region in head.meta.regions.iter().filter(|region| is_asked(&region.name)) {
            let twins: Vec<Option<&Region>> = sources.iter().map(|source| source.twin(head, region)).collect();
            let mut stretches = Vec::new();
            for block in 0..region.blocks(block_size) {
                let (operation, place) = match owners[(region.first_block + block) as usize] {
                    Some(owner) => (sources[owner].key.key.operation, twins[owner].map_or(0, |twin| twin.offset)),
                    None => (operation, region.offset),
                };
                let start = block * block_size;
                let home = Home { operation, offset: place + start };
                push(&mut stretches, Stretch { bytes: block_size.min(region.bytes - start), home });
            }
            found.insert(region.name.clone(), stretches);
        }
        found
    }

    /// Notes what of a shard is stored where: the extents refer to `allowed` checkpoints, all of which
    /// are known. Those that are not in use are left out of what is returned.
    pub fn decided(&mut self, operation: u64, allowed: &[SourceKey], mut extents: Vec<Extent>) -> Option<Extents> {
        let version = self.list.get_mut(&operation).filter(|version| version.own.is_none())?;
        let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
        let mut stored = 0;
        for extent in &extents {
            match extent.stored {
                Stored::Own => stored += extent.length,
                Stored::In { source, .. } => *bytes.entry(source).or_default() += extent.length,
                Stored::Same { .. } => {}
            }
        }
        (version.own, version.stored) = (Some(own_blocks(&version.head, &extents)), stored);
        let places: BTreeMap<u32, u32> = bytes.keys().copied().zip(0..).collect();
        for extent in &mut extents {
            if let Stored::In { source, .. } = &mut extent.stored {
                *source = places[source];
            }
        }
        let operation_of = |source: &u32| allowed[*source as usize].key.operation;
        self.misses = 0;
        let taken = || bytes.iter().map(|(source, bytes)| (operation_of(source), *bytes)).collect();
        self.last = self.by_chunks.then(|| (operation, taken()));
        let sources = bytes.keys().map(|source| allowed[*source as usize]).collect();
        Some(Extents { sources, extents })
    }

    /// Its file stores all of it after all.
    pub fn whole(&mut self, operation: u64) {
        if let Some(version) = self.list.get_mut(&operation) {
            version.own = Some(vec![true; version.head.digests.len()]);
            version.stored = version.head.meta.regions.iter().map(|region| region.bytes).sum();
        }
        self.last = self.by_chunks.then(|| (operation, BTreeMap::new()));
    }

    /// Files might have referred to earlier ones, and chunks have found nothing there.
    pub fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// It came to no file that others may refer to.
    pub fn forget_undecided(&mut self, operation: u64) {
        if self.list.get(&operation).is_some_and(|version| version.own.is_none()) {
            self.list.remove(&operation);
        }
    }

    /// Only these are still of use, and later ones than the last of them.
    pub fn keep(&mut self, operations: &[u64]) {
        let last = operations.iter().max().copied().unwrap_or_default();
        self.list.retain(|operation, _| *operation > last || operations.contains(operation));
    }
}

/// The blocks of a shard that are stored by its own file as a whole.
fn own_blocks(head: &Head, extents: &[Extent]) -> Vec<bool> {
    let mut own = vec![true; head.digests.len()];
    let (mut rest, block) = (extents.iter(), u64::from(head.header.block_size));
    for region in &head.meta.regions {
        let mut at = 0;
        while at < region.bytes {
            let Some(extent) = rest.next() else { return own };
            if extent.stored != Stored::Own {
                let first = region.first_block + at / block;
                let behind = region.first_block + (at + extent.length).div_ceil(block);
                own[first as usize..behind as usize].fill(false);
            }
            at += extent.length;
        }
    }
    own
}

/// For each block of the regions that are asked for the first of these versions whose file stores its like at the same place.
fn owners(head: &Head, versions: &[&Version], is_asked: impl Fn(&str) -> bool) -> Vec<Option<usize>> {
    let mut owners = vec![None; head.digests.len()];
    let block_size = u64::from(head.header.block_size);
    for (owner, version) in versions.iter().enumerate() {
        for region in head.meta.regions.iter().filter(|region| is_asked(&region.name)) {
            let Some(twin) = version.twin(head, region) else { continue };
            let (first, twin_first) = (region.first_block as usize, twin.first_block as usize);
            for block in 0..region.blocks(block_size) as usize {
                let (here, there) = (first + block, twin_first + block);
                let is_free = owners[here].is_none() && version.is_own(there);
                if is_free && head.digests[here] == version.head.digests[there] {
                    owners[here] = Some(owner);
                }
            }
        }
    }
    owners
}
