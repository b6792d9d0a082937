//! The shards of one series that this rank has captured, as long as files may still refer to them.

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
    /// The checkpoints to which the shard refers.
    pub sources: Vec<SourceKey>,
    /// All extents of the shard.
    pub extents: Vec<Extent>,
}

struct Version {
    key: SourceKey,
    head: Arc<Head>,
    /// Which blocks the version's file stores itself; `None`: not decided yet.
    own: Option<Vec<bool>>,
    /// The number of bytes of the bodies that the version's file stores itself.
    stored: u64,
}

impl Version {
    fn is_own(&self, block: usize) -> bool {
        self.own.as_ref().is_some_and(|own| own[block])
    }

    /// This version's counterpart of a region of another shard: an array of the same name and length, cut into blocks of the same length.
    fn twin(&self, head: &Head, region: &Region) -> Option<&Region> {
        let is_same = |twin: &&Region| (twin.kind, twin.bytes) == (RegionKind::Array, region.bytes);
        let is_cut_alike = self.head.header.block_size == head.header.block_size;
        self.head.region(&region.name).filter(|twin| is_cut_alike && region.kind == RegionKind::Array && is_same(twin))
    }
}

/// In a rank's report on an earlier checkpoint ([`Versions::uses`]), the number of bytes that the checkpoint's file stores has the
/// checkpoint's operation with this bit as its key.
pub const STORED: u64 = 1 << 63;

/// The versions of a series.
#[derive(Default)]
pub struct Versions {
    /// The versions by their operations.
    list: BTreeMap<u64, Version>,
    /// The last version that was decided by chunks, and the bytes that it takes from each of its sources.
    last: Option<(u64, BTreeMap<u64, u64>)>,
    by_chunks: bool,
    /// The checkpoints to which files may refer by the last choice on which this rank has acted.
    chosen: Option<Vec<u64>>,
    /// The number of versions that were captured, and how many of the last ones found nothing in the files to which
    /// they might have referred.
    captured: u64,
    misses: u32,
}

/// Attempts after failed attempts are at most this many doublings apart.
const MISSES_MAX: u32 = 4;

impl Versions {
    /// From now on, more than unchanged blocks is searched for.
    pub fn by_chunks(&mut self) {
        self.by_chunks = true;
    }

    /// Notes that a shard was captured. Its file stores the whole shard (`is_whole`), or that is still to be decided.
    pub fn captured(&mut self, key: SourceKey, head: Arc<Head>, is_whole: bool) {
        let operation = key.key.operation;
        self.captured += 1;
        self.list.insert(operation, Version { key, head, own: None, stored: 0 });
        if is_whole {
            self.whole(operation);
        }
    }

    /// The checkpoints to which files may be expected to refer before the root has chosen: those of the last choice, and later ones.
    pub fn expected(&self) -> Vec<u64> {
        let newest = self.chosen.iter().flatten().max();
        let is_expected = |operation: &&u64| match &self.chosen {
            Some(chosen) => chosen.contains(operation) || newest.is_none_or(|newest| *operation > newest),
            None => true,
        };
        self.list.keys().filter(is_expected).copied().collect()
    }

    /// Notes the root's choice of checkpoints to which files may refer.
    pub fn chosen(&mut self, operations: Vec<u64>) {
        self.chosen = Some(operations);
    }

    /// Returns this rank's report on a shard before the root has chosen to which checkpoints its file may refer. By operation, the report
    /// says how many of the shard's bytes the file of each earlier checkpoint stores, and (with [`STORED`]) how many bytes that file stores
    /// in all. Each byte counts for the latest checkpoint that has it. `found` is what has been found by chunks already. If that is not
    /// known yet, the report assumes as much as the time before, and all that the last file stores. Only regions for which `is_asked`
    /// returns true count.
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
        // The checkpoints in the report are kept, so an attempt that finds nothing has a cost.
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

    /// Does this version try to find chunks again, after attempts that have found none?
    fn is_hopeful(&self, captured: u64) -> bool {
        captured.is_multiple_of(1 << self.misses.min(MISSES_MAX))
    }

    /// Are the chunks of a shard that is stored whole worth a look? They are only if the next attempt is to find them again.
    pub fn is_worth_a_look(&self) -> bool {
        self.misses == 0 || self.is_hopeful(self.captured + 1)
    }

    /// Notes that a version's file stores the whole shard, and that nobody has looked at its chunks.
    pub fn passed_over(&mut self, operation: u64) {
        self.whole(operation);
        self.last = None;
    }

    /// Those of the checkpoints to which files may refer for which this rank knows what their files store.
    pub fn known(&self, allowed: &[SourceKey]) -> Vec<SourceKey> {
        let is_known = |source: &&SourceKey| {
            let version = self.list.get(&source.key.operation);
            version.is_some_and(|version| version.key == **source && version.own.is_some())
        };
        allowed.iter().filter(is_known).copied().collect()
    }

    /// The share of a region's blocks that has changed since the newest version before, if that version has the same region; `blocks` are
    /// the digests of the blocks.
    pub fn changed(&self, operation: u64, region: &str, bytes: u64, blocks: &[Digest]) -> Option<f64> {
        let (_, newest) = self.list.range(..operation).next_back()?;
        let twin = newest.head.region(region).filter(|twin| twin.bytes == bytes)?;
        let known = newest.head.digests.get(twin.first_block as usize..)?.get(..blocks.len())?;
        let changed = known.iter().zip(blocks).filter(|(known, now)| known != now).count();
        (!blocks.is_empty()).then(|| changed as f64 / blocks.len() as f64)
    }

    /// Where the blocks of some regions of a shard are stored: in the file of the latest of the `known` checkpoints that stores the same
    /// block at the same place, or otherwise in the shard's own file.
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

    /// Notes where each part of a shard is stored. The extents refer to `allowed` checkpoints, all of which are known. The result leaves
    /// out checkpoints that are not in use.
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

    /// Notes that a version's file stores the whole shard after all.
    pub fn whole(&mut self, operation: u64) {
        if let Some(version) = self.list.get_mut(&operation) {
            version.own = Some(vec![true; version.head.digests.len()]);
            version.stored = version.head.meta.regions.iter().map(|region| region.bytes).sum();
        }
        self.last = self.by_chunks.then(|| (operation, BTreeMap::new()));
    }

    /// Notes that files might have referred to earlier ones, but chunks have found nothing there.
    pub fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// Forgets a version if no file of it was made to which others may refer.
    pub fn forget_undecided(&mut self, operation: u64) {
        if self.list.get(&operation).is_some_and(|version| version.own.is_none()) {
            self.list.remove(&operation);
        }
    }

    /// Keeps only these versions, and those that are later than the last of them.
    pub fn keep(&mut self, operations: &[u64]) {
        let last = operations.iter().max().copied().unwrap_or_default();
        self.list.retain(|operation, _| *operation > last || operations.contains(operation));
    }
}

/// The blocks of a shard that its own file stores entirely.
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

/// For each block of the regions that are asked for: the first of these versions whose file stores an equal block at the same place.
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
