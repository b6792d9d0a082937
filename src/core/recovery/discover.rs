//! What one rank can reach of a series.

use super::homes::{finder, home};
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Level, Rank};
use crate::catalog::Candidate;
use crate::format::shard::Head;
use crate::format::{Content, FormatError, Manifest, ShardHeader};
use crate::redundancy::stripes::SetInfo;
use crate::redundancy::{self, holding::Item};
use crate::segment::{OldBytes, OldSegment, OldSlot, SegmentError, SlotState, list};
use crate::tier::names::Series;
use crate::tier::source::{FileShard, MemoryShard, Source};
use crate::tier::{Look, PerTier, Tier, TierError, TierId, open_or_mend};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// What a rank has found of an item of a checkpoint.
pub struct Held {
    /// The redundancy set, for a parity part.
    pub set: Option<SetInfo>,
    /// Its copies, nearest tier first.
    pub sources: Vec<Source>,
}

/// What a rank found.
#[derive(Default)]
pub struct Found {
    /// The items on its node that this rank has to look at, by candidate.
    pub held: HashMap<Candidate, BTreeMap<Item, Held>>,
    /// Candidates of which this rank has evidence that they were committed.
    pub committed: Vec<Candidate>,
    /// Manifests of the tiers that all nodes share, nearest first (root only).
    pub manifests: HashMap<Candidate, Vec<(TierId, Manifest)>>,
    /// Things that should be readable but are not, for the message if nothing can be restored.
    pub damage: Vec<String>,
    /// The number of these things on each tier, without files that simply do not exist.
    pub damaged: PerTier<u64>,
    /// The segments of the node in which the rank looked.
    pub segments: Vec<Arc<OldSegment>>,
}

impl Found {
    /// All candidates, newest first.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            self.held.keys().chain(self.manifests.keys()).chain(&self.committed).copied().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        all
    }

    /// The copies of a shard that this rank has found, nearest first.
    pub fn copies(&self, candidate: &Candidate, shard: Rank) -> &[Source] {
        let held = self.held.get(candidate).and_then(|items| items.get(&Item::Shard(shard)));
        held.map_or(&[], |held| &held.sources)
    }

    /// Has this rank found the shard?
    pub fn has(&self, candidate: &Candidate, shard: Rank) -> bool {
        self.held.get(candidate).is_some_and(|items| items.contains_key(&Item::Shard(shard)))
    }

    /// The copies on this node of a shard that one of its ranks has found, nearest first. The ranks that look after other copies report
    /// what is wrong with these.
    ///
    /// # Blocking
    /// On the local tier, if node memory has none.
    pub fn on_node(
        &self,
        (series, tiers): (&Series, &[Arc<dyn Tier>]),
        candidate: &Candidate,
        shard: Rank,
    ) -> Vec<Source> {
        let is_it = |header: &ShardHeader| {
            header.rank == shard && header.content == Content::Shard && candidate_of_header(header) == *candidate
        };
        let name = text_hash(&series.name);
        let mut copies = Vec::new();
        for segment in &self.segments {
            let slots = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed && slot.name == name);
            let slots = slots.filter(|slot| header_of(segment, slot).is_some_and(|header| is_it(&header)));
            let opened = slots.filter_map(|slot| {
                let bytes = OldBytes::looked_at(segment, slot);
                MemoryShard::open(segment.path(), bytes, series, shard).ok().map(Source::Memory)
            });
            copies.extend(opened);
        }
        if !copies.is_empty() {
            return copies;
        }
        let folder = candidate.key.folder();
        for tier in tiers.iter().filter(|tier| !tier.kind().spec().is_shared) {
            let files = tier.rank_files(series, &folder).unwrap_or_default();
            let files = files.into_iter().filter(|(_, rank, content)| (*rank, *content) == (shard, Content::Shard));
            let opened =
                files.filter_map(|(file, rank, _)| open_or_mend(&**tier, tiers, series, &folder, &file, rank).ok());
            copies.extend(opened.filter(|shard| is_it(&shard.head().header)).map(Source::File));
        }
        copies
    }

    fn unusable(&mut self, tier: TierId, why: String) {
        self.damaged[tier] += 1;
        self.damage.push(why);
    }

    fn add(&mut self, found: (Candidate, Item, Option<SetInfo>, Source), committed: bool) {
        let (candidate, item, set, source) = found;
        if committed {
            self.committed.push(candidate);
        }
        let items = self.held.entry(candidate).or_default();
        items.entry(item).or_insert_with(|| Held { set, sources: Vec::new() }).sources.push(source);
    }
}

pub(super) fn candidate_of(head: &Head) -> Candidate {
    candidate_of_header(&head.header)
}

fn candidate_of_header(header: &ShardHeader) -> Candidate {
    Candidate { key: header.key, agreement: header.agreement, group_size: header.group_size, origin: header.origin }
}

/// The candidate that a manifest records.
pub fn candidate_of_manifest(manifest: &Manifest) -> Candidate {
    Candidate {
        key: manifest.key,
        agreement: manifest.agreement,
        group_size: manifest.group_size,
        origin: manifest.origin,
    }
}

/// Where to look.
pub struct Reach<'a> {
    /// The series.
    pub series: &'a Series,
    /// This rank.
    pub rank: Rank,
    /// The number of ranks of this run.
    pub ranks: u32,
    /// The segments of the node: those of older runs, and a read-only view of this run's segment.
    pub segments: &'a [Arc<OldSegment>],
    /// The ranks of the node.
    pub node_ranks: &'a [Rank],
    /// The tiers in use, nearest first.
    pub tiers: &'a [Arc<dyn Tier>],
    /// This rank also looks at the tiers that all nodes share.
    pub is_root: bool,
}

/// Looks everywhere that this rank can reach.
///
/// # Blocking
/// Reads heads of shards on the local tier, and manifests on the global tier.
pub fn discover(reach: &Reach<'_>) -> Found {
    let mut found = Found { segments: reach.segments.to_vec(), ..Found::default() };
    for segment in reach.segments {
        discover_memory(reach, segment, &mut found);
    }
    for tier in reach.tiers.iter().filter(|tier| !tier.kind().spec().is_shared) {
        discover_of_node(reach, &**tier, &mut found);
    }
    for tier in reach.tiers.iter().filter(|tier| reach.is_root && tier.kind().spec().is_shared) {
        discover_shared(reach, &**tier, &mut found);
    }
    found
}

impl Reach<'_> {
    /// How this rank treats data on this node that belongs to rank `rank` of `of` ranks: not at all, as data that another rank looks after,
    /// or as its own.
    fn role_in(&self, rank: Rank, of: u32) -> Option<Role> {
        if finder(rank, of, self.node_ranks, self.ranks) != Some(self.rank) {
            return None;
        }
        Some(if home(rank, of, self.ranks) == self.rank { Role::Home } else { Role::Finder })
    }
}

/// The role of a rank for an item on its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It looks after the data.
    Home,
    /// It tells the home of the data that the data is here.
    Finder,
}

fn discover_memory(reach: &Reach<'_>, segment: &Arc<OldSegment>, found: &mut Found) {
    let name = text_hash(&reach.series.name);
    for slot in segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed && slot.name == name) {
        // A rank may now be at a different place on the node, so the shard's own header says whose it is. Since checking a whole shard
        // takes long, a shard that another rank looks at is skipped before that. The first rank of the node looks at shards without a
        // header.
        let header = header_of(segment, slot);
        let role = match &header {
            Some(header) => reach.role_in(header.rank, header.group_size),
            None => (reach.node_ranks.first() == Some(&reach.rank)).then_some(Role::Home),
        };
        let Some(role) = role else { continue };
        let is_own_shard = role == Role::Home && header.is_none_or(|header| header.content == Content::Shard);
        match MemoryShard::open_any(segment.path(), OldBytes::new(segment, slot)) {
            Ok(shard) => {
                let committed = slot.level >= Level::Process;
                found_of(reach, Source::Memory(shard)).into_iter().for_each(|it| found.add(it, committed));
            }
            Err(error) => match segment.bytes(slot) {
                Err(SegmentError::Hole { .. }) => {}
                bytes if is_own_shard => {
                    found
                        .unusable(TierId::MEMORY, bytes.err().map_or_else(|| error.to_string(), |why| why.to_string()));
                }
                _ => log::warn!("event=foreign-copy-unusable rank={} error={error}", reach.rank),
            },
        }
    }
}

/// The header of the shard in a slot, if it is good. The rest of the shard may be missing.
fn header_of(segment: &OldSegment, slot: &OldSlot) -> Option<ShardHeader> {
    ShardHeader::decode(&segment.first_bytes(slot)?).ok()
}

fn discover_of_node(reach: &Reach<'_>, tier: &dyn Tier, found: &mut Found) {
    let folders = match tier.folders(reach.series) {
        Ok(folders) => folders,
        Err(error) => {
            found.unusable(tier.kind(), error.to_string());
            return;
        }
    };
    let mut read = |(generation, version, operation)| {
        let folder = CheckpointKey { generation, version, operation, ..Default::default() }.folder();
        let manifest = tier.read_manifest(reach.series, &folder);
        if let Some(error) = manifest.as_ref().err().filter(|error| !error.is_absent()) {
            found.unusable(tier.kind(), error.to_string());
        }
        (folder, manifest.ok())
    };
    let folders: Vec<(String, Option<Manifest>)> = folders.into_iter().map(&mut read).collect();
    let held = referred_to(folders.iter().filter_map(|(_, manifest)| manifest.as_ref()));
    let mut look = Look::new(tier, reach.series, reach.rank);
    for (folder, manifest) in folders {
        let files = tier.rank_files(reach.series, &folder).unwrap_or_default();
        // A checkpoint that is kept only because others refer to it is not mended from other tiers.
        let others = if held.contains(&folder) { &[] } else { reach.tiers };
        let of = manifest.as_ref().map(|manifest| manifest.group_size).or_else(|| {
            let (file, rank, _) = files.first()?;
            Some(tier.open_raw(reach.series, &folder, file, *rank).ok()?.head().header.group_size)
        });
        let of = of.unwrap_or(reach.ranks);
        let is_held = held.contains(&folder);
        if of == reach.ranks {
            let opened = look.open_or_mend(others, &folder);
            note(reach, tier, (&folder, reach.rank, is_held), manifest.as_ref(), opened, found);
        } else if let Some(manifest) = &manifest {
            found.committed.push(candidate_of_manifest(manifest));
        }
        for (file, rank, content) in files {
            let is_own = of == reach.ranks && rank == reach.rank && content == Content::Shard;
            let Some(role) = reach.role_in(rank, of).filter(|_| !is_own) else { continue };
            if content == Content::Shard && role == Role::Home {
                let opened = open_or_mend(tier, others, reach.series, &folder, &file, rank);
                note(reach, tier, (&folder, rank, is_held), manifest.as_ref(), opened, found);
                continue;
            }
            match tier.open_any(reach.series, &folder, &file, rank) {
                Ok(shard) => found_of(reach, Source::File(shard)).into_iter().for_each(|it| found.add(it, false)),
                Err(error) => log::warn!("event=foreign-copy-unusable rank={} error={error}", reach.rank),
            }
        }
    }
}

/// Notes the result of opening a shard that this rank looks after.
fn note(
    reach: &Reach<'_>,
    tier: &dyn Tier,
    (folder, rank, is_held): (&str, Rank, bool),
    manifest: Option<&Manifest>,
    opened: Result<FileShard, TierError>,
    found: &mut Found,
) {
    match opened {
        Ok(shard) => {
            let source = Source::File(shard);
            let candidate = candidate_of(source.head());
            found.add((candidate, Item::Shard(rank), None, source), manifest.is_some());
        }
        Err(TierError::Source { cause, .. }) if cause.is_absent() && is_held => {
            log::debug!("event=held tier={} folder={folder} error={cause}", tier.kind());
        }
        Err(error) => {
            let recorded = manifest.filter(|manifest| manifest.container_of(rank).is_some());
            if let Some(manifest) = recorded {
                found.committed.push(candidate_of_manifest(manifest));
            }
            if recorded.is_some() || !error.is_absent() {
                log::warn!("event=local-copy-unusable rank={} error={error}", reach.rank);
                match error.is_absent() {
                    true => found.damage.push(error.to_string()),
                    false => found.unusable(tier.kind(), error.to_string()),
                }
            }
        }
    }
}

/// What a copy contains, if it belongs to the series.
fn found_of(reach: &Reach<'_>, source: Source) -> Option<(Candidate, Item, Option<SetInfo>, Source)> {
    let head = source.head();
    let (meta, rank, candidate) = (&head.meta, head.header.rank, candidate_of(head));
    // It may be a leftover of another job or group with the same hash, or of the same job before it was renamed.
    let Series { job, group, name } = reach.series;
    if (&meta.job, &meta.group, &meta.name) != (job, group, name) {
        return None;
    }
    if head.header.content == Content::Shard {
        return Some((candidate, Item::Shard(rank), None, source));
    }
    match redundancy::part::Part::open(source) {
        Ok(part) => Some((candidate, Item::Part(rank), Some(part.set), part.source)),
        Err(error) => {
            log::warn!("event=parity-unusable rank={} error={error}", reach.rank);
            None
        }
    }
}

fn discover_shared(reach: &Reach<'_>, tier: &dyn Tier, found: &mut Found) {
    let folders = match tier.folders(reach.series) {
        Ok(folders) => folders,
        Err(error) => {
            found.unusable(tier.kind(), error.to_string());
            return;
        }
    };
    let name = |(generation, version, operation)| {
        CheckpointKey { generation, version, operation, ..Default::default() }.folder()
    };
    let folders: Vec<String> = folders.into_iter().map(name).collect();
    let mut manifests = Vec::new();
    for folder in &folders {
        match read_or_complete(tier, reach.series, folder) {
            Ok(manifest) => manifests.extend(manifest),
            Err(error) => found.unusable(tier.kind(), error),
        }
    }
    let held = referred_to(&manifests);
    for manifest in manifests {
        let candidate = candidate_of_manifest(&manifest);
        let lacking = manifest.sources.iter().map(|source| source.key).find(|key| !folders.contains(&key.folder()));
        match lacking {
            None => {
                found.committed.push(candidate);
                found.manifests.entry(candidate).or_default().push((tier.kind(), manifest));
            }
            // Others still refer to its files, but the checkpoint itself was given up.
            Some(_) if held.contains(&candidate.key.folder()) => {}
            Some(source) => {
                let path = tier.folder_path(reach.series, &candidate.key);
                let (kind, path) = (tier.kind(), path.display());
                found.unusable(kind, format!("{kind} tier: {path}: it refers to {source}, which is missing"));
            }
        }
    }
}

/// The folders of the checkpoints that files of others refer to.
fn referred_to<'m>(manifests: impl IntoIterator<Item = &'m Manifest>) -> HashSet<String> {
    let sources = manifests.into_iter().flat_map(|manifest| &manifest.sources);
    sources.map(|source| source.key.folder()).collect()
}

/// The manifest of a folder. If it is missing or damaged, it is put together from the shards, provided that all of them
/// are there, and written again (roll forward).
fn read_or_complete(tier: &dyn Tier, series: &Series, folder: &str) -> Result<Option<Manifest>, String> {
    let error = match tier.read_manifest(series, folder) {
        Ok(manifest) if manifest.is_complete() => return Ok(Some(manifest)),
        Ok(_) => None,
        Err(error) if error.is_absent() => None,
        Err(error) => Some(error.to_string()),
    };
    match tier.reconstruct(series, folder).map_err(|error| error.to_string())? {
        Some(manifest) => {
            match tier.write_manifest(series, &manifest) {
                Ok(()) => log::info!("event=rolled-forward folder={folder} tier={}", tier.kind()),
                Err(error) => log::warn!("event=not-rolled-forward folder={folder} error={error}"),
            }
            Ok(Some(manifest))
        }
        None => error.map_or(Ok(None), Err),
    }
}

/// Opens the segments of this job and group on this node, newest run first. A segment that was never finished is not damage.
///
/// A segment whose run had a different store is ignored: somebody removed that store to start afresh, or the job also runs on another
/// store. Its contents are not part of this run's past.
pub fn open_segments(directory: &Path, prefix: &str, store: u64, damage: &mut Vec<String>) -> Vec<Arc<OldSegment>> {
    let mut names = list(directory, prefix).unwrap_or_else(|error| {
        log::warn!("event=segments-not-listed error={error}");
        Vec::new()
    });
    names.sort_unstable_by(|a, b| b.cmp(a));
    let mut segments = Vec::new();
    for name in names {
        match OldSegment::open(directory, &name) {
            Ok(segment) if is_of_another(segment.header().store, store) => {
                log::info!("event=segment-of-another-store path={}", segment.path().display());
            }
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(SegmentError::Unfinished { .. } | SegmentError::NotFound { .. }) => {}
            Err(SegmentError::Damaged { source: FormatError::Short { have: 0, .. }, .. }) => {}
            Err(error) => {
                log::warn!("event=segment-unusable error={error}");
                damage.push(error.to_string());
            }
        }
    }
    segments
}

/// Are the stores of both runs known (not 0) and different?
pub fn is_of_another(theirs: u64, ours: u64) -> bool {
    theirs != 0 && ours != 0 && theirs != ours
}
