//! The shards of one series that this rank has captured, as far as files may still refer to them.

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

/// The versions of a series, by operation.
#[derive(Default)]
pub struct Versions(BTreeMap<u64, Version>);

impl Versions {
    /// A shard was captured. Its file stores all of it (`is_whole`), or that is still to be decided.
    pub fn captured(&mut self, key: SourceKey, head: Arc<Head>, is_whole: bool) {
        let own = is_whole.then(|| vec![true; head.digests.len()]);
        self.0.insert(key.key.operation, Version { key, head, own });
    }

    /// How many bytes of a shard the files of earlier ones store: by operation, each byte counted at the latest that has it.
    pub fn uses(&self, operation: u64) -> Vec<(u64, u64)> {
        let Some(version) = self.0.get(&operation) else { return Vec::new() };
        let earlier: Vec<&Version> = self.0.range(..operation).rev().map(|(_, earlier)| earlier).collect();
        let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
        let owners = owners(&version.head, &earlier);
        for ((_, length, _), owner) in version.head.blocks().zip(owners) {
            if let Some(owner) = owner {
                *uses.entry(earlier[owner].key.key.operation).or_default() += length;
            }
        }
        uses.into_iter().collect()
    }

    /// Files may refer to these checkpoints: decides which blocks the file of a shard stores itself. `None`: all of them.
    pub fn decide(&mut self, operation: u64, allowed: &[SourceKey]) -> Option<Extents> {
        let version = self.0.get(&operation).filter(|version| version.own.is_none())?;
        let mut sources: Vec<&Version> = allowed
            .iter()
            .filter_map(|source| self.0.get(&source.key.operation).filter(|version| version.key == *source))
            .collect();
        sources.sort_unstable_by_key(|version| std::cmp::Reverse(version.key.key.operation));
        let owners = owners(&version.head, &sources);
        let extents = extents(&version.head, &owners, &sources);
        let own = owners.iter().map(Option::is_none).collect();
        self.0.get_mut(&operation)?.own = Some(own);
        extents
    }

    /// Its file stores all of it after all.
    pub fn whole(&mut self, operation: u64) {
        if let Some(version) = self.0.get_mut(&operation) {
            version.own = Some(vec![true; version.head.digests.len()]);
        }
    }

    /// Only these are still of use, and later ones than the last of them.
    pub fn keep(&mut self, operations: &[u64]) {
        let last = operations.iter().max().copied().unwrap_or_default();
        self.0.retain(|operation, _| *operation > last || operations.contains(operation));
    }
}

/// For each block of a shard the first of these versions whose file stores its like at the same place.
fn owners(head: &Head, versions: &[&Version]) -> Vec<Option<usize>> {
    let mut owners = vec![None; head.digests.len()];
    let block_size = u64::from(head.header.block_size);
    for (owner, version) in versions.iter().enumerate() {
        for region in &head.meta.regions {
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

/// The extents of a shard whose blocks have these owners; `None` if none has one.
fn extents(head: &Head, owners: &[Option<usize>], versions: &[&Version]) -> Option<Extents> {
    let mut used: Vec<usize> = owners.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    let block_size = u64::from(head.header.block_size);
    let mut extents = Vec::new();
    for region in &head.meta.regions {
        let twins: Vec<Option<&Region>> = versions.iter().map(|version| version.twin(head, region)).collect();
        let stored = |block: u64| match owners[(region.first_block + block) as usize] {
            Some(owner) => Stored::In {
                source: used.partition_point(|other| *other < owner) as u32,
                offset: twins[owner].map_or(0, |twin| twin.offset) + block * block_size,
            },
            None => Stored::Own,
        };
        let mut last: Option<Extent> = None;
        for block in 0..region.blocks(block_size) {
            let (length, stored) = (block_size.min(region.bytes - block * block_size), stored(block));
            match &mut last {
                Some(last) if is_continued(last, stored) => last.length += length,
                _ => extents.extend(last.replace(Extent { length, stored })),
            }
        }
        extents.extend(last);
    }
    let sources: Vec<SourceKey> = used.into_iter().map(|owner| versions[owner].key).collect();
    (!sources.is_empty()).then_some(Extents { sources, extents })
}

/// Does what is stored there follow an extent?
fn is_continued(last: &Extent, stored: Stored) -> bool {
    match (last.stored, stored) {
        (Stored::Own, Stored::Own) => true,
        (Stored::In { source, offset }, Stored::In { source: next, offset: at }) => {
            source == next && offset + last.length == at
        }
        _ => false,
    }
}
