//! Copies chosen shards to the global tier, and completes the checkpoints that have become whole there.

use super::super::discover::{candidate_of, candidate_of_manifest};
use super::Chosen;
use super::collect::rank_of_file;
use super::mend::Parts;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::sync::{Guard, Lock, Order};
use crate::base::threads::in_threads;
use crate::base::{CheckpointKey, Rank};
use crate::catalog::Candidate;
use crate::format::{ContainerEntry, Content, Manifest, manifest};
use crate::tier::names::{Series, is_node_file, is_rank_file, parity_file, rank_file};
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use crate::tier::{Tier, TierError, TierId, Upload, Writers};
use crate::transfer::write::{WriteJob, WriteSpec};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The part of a temporary file's name that says on which host the file is being written. Locks may not work across hosts, so only files of
/// this host are ever taken for leftovers.
pub fn host_tag(host: &str) -> String {
    format!("drain-{:08x}", text_hash(host) as u32)
}

/// How chosen checkpoints are copied.
pub struct Drain<'a> {
    /// The tier to which shards are copied.
    pub global: &'a Arc<dyn Tier>,
    /// [`host_tag`] of this host.
    pub host: String,
    /// A text that no other process on this host has. It is part of the names of temporary files.
    pub unique: String,
    /// Trust a shard that is already on the global tier if its head is good.
    pub is_quick: bool,
    /// Change nothing.
    pub is_dry: bool,
    /// The number of bytes in a write.
    pub write_bytes: u64,
}

/// What became of one rank's shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is on the global tier now. (In a dry run: it would be.)
    Copied,
    /// A good copy was already there.
    There,
    /// There was no whole copy. The shard was reconstructed and is now on the global tier. (In a dry run: it would be.)
    Rebuilt,
    /// No copy on this node is usable, for these reasons.
    Damaged(Vec<String>),
    /// The shard could not be written to the global tier, for this reason.
    NotWritten(String),
    /// The global tier holds something else under its name.
    Refused(String),
}

/// What became of one checkpoint.
pub struct Drained {
    /// The checkpoint that was to be drained.
    pub chosen: Chosen,
    /// What became of the shards that were here.
    pub fates: BTreeMap<Rank, Fate>,
    /// Unusable files on the global tier that hold a rank's shard, and that could not be replaced from here.
    pub spoiled: BTreeMap<Rank, String>,
    /// What became of the parity parts.
    pub parts: Parts,
    /// Bytes written.
    pub bytes: u64,
    /// Its state on the global tier now.
    pub standing: Result<Standing, TierError>,
    is_stale: bool,
}

impl Drained {
    /// The result for a checkpoint with which nothing has been done.
    pub fn untouched(chosen: Chosen, standing: Standing) -> Drained {
        Drained {
            chosen,
            fates: BTreeMap::new(),
            spoiled: BTreeMap::new(),
            parts: Parts::default(),
            bytes: 0,
            standing: Ok(standing),
            is_stale: false,
        }
    }

    /// Notes the later result for a rank.
    pub(super) fn take(&mut self, rank: Rank, brought: Brought) {
        self.fates.insert(rank, brought.fate);
        self.bytes += brought.bytes;
        self.is_stale |= brought.is_stale;
        match brought.spoiled {
            Some(file) => self.spoiled.insert(rank, file),
            None => self.spoiled.remove(&rank),
        };
    }
}

/// The state of a checkpoint on the global tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// The ranks whose shards, as far as is known, no usable file there holds, as ranges.
    pub missing: Vec<RangeInclusive<u32>>,
    /// All shards are there and agree, and the manifest records them. (In a dry run: the files would make it so.)
    pub is_complete: bool,
}

/// The files of one checkpoint's folder.
#[derive(Default)]
pub(super) struct Shelf {
    /// Its manifest, if it can be read and is complete.
    manifest: Option<Manifest>,
    /// The files that may hold each rank's shard; the file that counts comes first.
    pub(super) copies: BTreeMap<Rank, Vec<String>>,
    /// Names of all files.
    pub(super) names: Vec<String>,
}

impl Shelf {
    pub(super) fn names_rank(&self, rank: Rank) -> bool {
        self.manifest.as_ref().is_some_and(|manifest| manifest.container_of(rank).is_some())
    }

    /// Ranks without a file.
    fn missing(&self, group_size: u32) -> Vec<RangeInclusive<u32>> {
        let (mut gaps, mut next) = (Vec::new(), 0u32);
        for rank in self.copies.keys().map(|rank| rank.0).filter(|rank| *rank < group_size) {
            if rank > next {
                gaps.push(next..=rank - 1);
            }
            next = rank + 1;
        }
        if next < group_size {
            gaps.push(next..=group_size - 1);
        }
        gaps
    }
}

/// A checkpoint while several threads work on it.
struct Work {
    /// What the folder held at the start, or why it does not belong to the checkpoint.
    shelf: Result<Shelf, String>,
    fates: BTreeMap<Rank, Fate>,
    spoiled: BTreeMap<Rank, String>,
    bytes: u64,
    /// The number of ranks whose shards are not finished yet.
    left: usize,
    is_stale: bool,
    standing: Option<Result<Standing, TierError>>,
}

impl Work {
    fn add(&mut self, rank: Rank, brought: Brought) {
        self.fates.insert(rank, brought.fate);
        self.spoiled.extend(brought.spoiled.map(|file| (rank, file)));
        self.bytes += brought.bytes;
        self.is_stale |= brought.is_stale;
        self.left -= 1;
    }
}

/// The result for one rank.
pub(super) struct Brought {
    pub(super) fate: Fate,
    pub(super) bytes: u64,
    /// The manifest names a copy that no longer counts.
    pub(super) is_stale: bool,
    /// The unusable file on the global tier that could not be replaced.
    pub(super) spoiled: Option<String>,
}

impl From<Fate> for Brought {
    fn from(fate: Fate) -> Brought {
        Brought { fate, bytes: 0, is_stale: false, spoiled: None }
    }
}

impl Drain<'_> {
    /// Copies the chosen checkpoints in the order given, with `jobs` threads. A checkpoint is completed as soon as its
    /// last shard is done. `progress` is told the number of bytes read or written.
    ///
    /// # Blocking
    /// On all tiers.
    pub fn run(&self, chosen: Vec<Chosen>, jobs: usize, progress: &(dyn Fn(u64) + Sync)) -> Vec<Drained> {
        let works: Vec<Lock<Work>> = chosen.iter().map(|chosen| Lock::at(Order::File, self.begin(chosen))).collect();
        let tasks: Vec<(usize, Rank)> = chosen
            .iter()
            .enumerate()
            .flat_map(|(at, chosen)| chosen.pieces.keys().map(move |rank| (at, *rank)))
            .collect();
        let next = AtomicUsize::new(0);
        in_threads(jobs.min(tasks.len()), "bvk-drain", || {
            let mut staging = None;
            while let Some((at, rank)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (chosen, work) = (&chosen[*at], &works[*at]);
                let brought = self.bring(chosen, *rank, work, &mut staging, progress);
                let mut work = locked(work);
                work.add(*rank, brought);
                if work.left == 0 {
                    // No other thread works on this checkpoint any more.
                    let standing = self.standing(chosen, &work.fates, &work.spoiled, work.is_stale);
                    work.standing = Some(standing);
                }
            }
        });
        let works = works.into_iter().map(|work| work.into_inner());
        chosen
            .into_iter()
            .zip(works)
            .map(|(chosen, work)| {
                let Work { fates, spoiled, bytes, is_stale, .. } = work;
                // If there was no task, no thread has looked yet.
                let standing = work.standing.unwrap_or_else(|| self.standing(&chosen, &fates, &spoiled, is_stale));
                let is_stale = is_stale && !standing.as_ref().is_ok_and(|standing| standing.is_complete);
                Drained { chosen, fates, spoiled, parts: Parts::default(), bytes, standing, is_stale }
            })
            .collect()
    }

    /// Determines the state of a checkpoint again, because other nodes may have brought their shards since. Writes the manifest if all
    /// shards are there but the manifest is missing.
    pub fn settle(&self, drained: &mut Drained) {
        let standing = self.standing(&drained.chosen, &drained.fates, &drained.spoiled, drained.is_stale);
        drained.is_stale &= !standing.as_ref().is_ok_and(|standing| standing.is_complete);
        drained.standing = standing;
    }

    fn standing(
        &self,
        chosen: &Chosen,
        fates: &BTreeMap<Rank, Fate>,
        spoiled: &BTreeMap<Rank, String>,
        is_stale: bool,
    ) -> Result<Standing, TierError> {
        let mut shelf = self.shelf(&chosen.series, &chosen.candidate.key)?;
        // A file that is no good and that nothing here could replace counts as missing.
        shelf.copies.retain(|rank, files| files.first() != spoiled.get(rank));
        if self.is_dry {
            let would_be =
                fates.iter().filter(|(_, fate)| matches!(fate, Fate::Copied | Fate::Rebuilt)).map(|(rank, _)| *rank);
            shelf.copies.extend(would_be.map(|rank| (rank, vec![rank_file(rank)])));
            let missing = shelf.missing(chosen.candidate.group_size);
            return Ok(Standing { is_complete: missing.is_empty(), missing });
        }
        let missing = shelf.missing(chosen.candidate.group_size);
        if !missing.is_empty() {
            return Ok(Standing { missing, is_complete: false });
        }
        let is_complete = self.complete(chosen, &shelf, is_stale)?;
        Ok(Standing { missing, is_complete })
    }

    /// All shards seem to be there: is the manifest there, too, and can it be written if not?
    fn complete(&self, chosen: &Chosen, shelf: &Shelf, is_stale: bool) -> Result<bool, TierError> {
        let is_recorded = shelf.manifest.as_ref().is_some_and(|manifest| {
            let is_there = |file: &String| shelf.names.contains(file);
            candidate_of_manifest(manifest) == chosen.candidate
                && manifest.containers.iter().all(|container| is_there(&container.file))
        });
        if is_recorded && !is_stale {
            return Ok(true);
        }
        let folder = chosen.candidate.key.folder();
        let whole = self.global.reconstruct(&chosen.series, &folder)?;
        let Some(whole) = whole.filter(|whole| candidate_of_manifest(whole) == chosen.candidate) else {
            return Ok(false);
        };
        if shelf.manifest.as_ref() != Some(&whole) {
            self.write_manifest(&chosen.series, &whole)?;
            log::info!("event=rolled-forward folder={folder} tier={}", self.global.kind());
        }
        Ok(true)
    }

    fn write_manifest(&self, series: &Series, whole: &Manifest) -> Result<(), TierError> {
        let path = self.global.folder_path(series, &whole.key).join(manifest::FILE_NAME);
        let format = |source| TierError::Format { tier: self.global.kind(), path, source };
        let bytes = whole.encode().map_err(format)?;
        let upload = self.begin_rival(series, &whole.key, manifest::FILE_NAME)?;
        let written = upload.write_at(0, &bytes).and_then(|()| upload.sync()).and_then(|()| upload.publish());
        written.inspect_err(|_| upload.discard())
    }

    fn begin(&self, chosen: &Chosen) -> Work {
        let shelf = self.shelf(&chosen.series, &chosen.candidate.key);
        if let (Ok(shelf), false) = (&shelf, self.is_dry) {
            self.remove_leftovers(chosen, shelf);
        }
        let shelf = match shelf {
            Ok(shelf) => match &shelf.manifest {
                Some(manifest) if candidate_of_manifest(manifest) != chosen.candidate => {
                    Err(conflict(&**self.global, chosen, &manifest.key))
                }
                _ => Ok(shelf),
            },
            Err(error) => Err(error.to_string()),
        };
        Work {
            shelf,
            fates: BTreeMap::new(),
            spoiled: BTreeMap::new(),
            bytes: 0,
            left: chosen.pieces.len(),
            is_stale: false,
            standing: None,
        }
    }

    /// The files of a folder, by the ranks whose shards they hold.
    pub(super) fn shelf(&self, series: &Series, key: &CheckpointKey) -> Result<Shelf, TierError> {
        let (folder, path) = (key.folder(), self.global.folder_path(series, key));
        let entries = self.global.entries(&path)?;
        let names: Vec<String> = entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect();
        let manifest = self.global.read_manifest(series, &folder).ok().filter(Manifest::is_complete);
        let mut copies: BTreeMap<Rank, Vec<String>> = BTreeMap::new();
        for container in manifest.iter().flat_map(|manifest| &manifest.containers) {
            for rank in container.ranks.iter().filter(|_| names.contains(&container.file)) {
                copies.entry(*rank).or_default().push(container.file.clone());
            }
        }
        let mut add = |rank: Rank, name: &String| {
            let files = copies.entry(rank).or_default();
            if !files.contains(name) {
                files.push(name.clone());
            }
        };
        for name in names.iter().filter(|name| is_rank_file(name)) {
            if let Some(rank) = rank_of_file(name).filter(|rank| rank_file(*rank) == **name) {
                add(rank, name);
            }
        }
        for name in names.iter().filter(|name| is_node_file(name)) {
            if let Ok((container, _)) = self.global.open_container(&path.join(name)) {
                let ours = container.entries.iter().filter(|entry| entry.key.folder() == folder);
                ours.for_each(|entry| add(entry.rank, name));
            }
        }
        Ok(Shelf { manifest, copies, names })
    }

    /// Removes temporary files of drains on this host that are no longer running.
    fn remove_leftovers(&self, chosen: &Chosen, shelf: &Shelf) {
        let folder = self.global.folder_path(&chosen.series, &chosen.candidate.key);
        let mark = format!(".{}-", self.host);
        for name in shelf.names.iter().filter(|name| name.ends_with(".tmp") && name.contains(&mark)) {
            self.global.discard_abandoned(&folder.join(name));
        }
    }

    /// Brings one rank's shard to the global tier, unless a good copy is already there.
    fn bring(
        &self,
        chosen: &Chosen,
        rank: Rank,
        work: &Lock<Work>,
        staging: &mut Option<PageBuffer>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Brought {
        let (files, is_named) = match &locked(work).shelf {
            Ok(shelf) => (shelf.copies.get(&rank).cloned().unwrap_or_default(), shelf.names_rank(rank)),
            Err(why) => return Fate::Refused(why.clone()).into(),
        };
        let copies = chosen.pieces.get(&rank).map_or(&[][..], Vec::as_slice);
        let mut causes = Vec::new();
        // If there are several files, the first one counts by the manifest, and the rank's own file counts by the rule that a new manifest
        // follows.
        for (at, file) in files.iter().enumerate().filter(|(at, file)| *at == 0 || **file == rank_file(rank)) {
            match self.is_good(chosen, rank, file) {
                Ok(true) => {
                    progress(copies.first().map_or(0, |piece| piece.bytes));
                    return Brought { is_stale: at > 0, ..Fate::There.into() };
                }
                Ok(false) => return Fate::Refused(conflict_in(&**self.global, chosen, file)).into(),
                Err(error) => causes.push(error.to_string()),
            }
        }
        let known = chosen.damage.iter().filter(|damage| damage.rank == Some(rank));
        causes.extend(known.map(|damage| damage.why.clone()));
        for piece in copies {
            match piece.open().and_then(|source| self.copy(chosen, rank, source, staging, progress)) {
                Ok(bytes) => {
                    for why in &causes {
                        log::warn!("event=damaged-copy-passed-over rank={rank} error={why}");
                    }
                    return Brought { fate: Fate::Copied, bytes, is_stale: is_named, spoiled: None };
                }
                Err(error) if tier_of(&error) == self.global.kind() => {
                    return Fate::NotWritten(error.to_string()).into();
                }
                Err(error) => causes.push(error.to_string()),
            }
        }
        Brought { spoiled: files.into_iter().next(), ..Fate::Damaged(causes).into() }
    }

    /// Is this rank's shard in that file good? `false`: it is the shard of another checkpoint.
    fn is_good(&self, chosen: &Chosen, rank: Rank, file: &str) -> Result<bool, TierError> {
        let shard = self.global.open_shard(&chosen.series, &chosen.candidate.key.folder(), file, rank)?;
        if candidate_of(shard.head()) != chosen.candidate {
            return Ok(false);
        }
        if !self.is_quick {
            Source::File(shard).verify(|_| ())?;
        }
        Ok(true)
    }

    /// Writes one shard or parity part, and returns the number of bytes that were written.
    pub(super) fn copy(
        &self,
        chosen: &Chosen,
        rank: Rank,
        source: Source,
        staging: &mut Option<PageBuffer>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, TierError> {
        let key = chosen.candidate.key;
        let length = source.head().header.total_len;
        if self.is_dry {
            source.verify(|_| ())?;
            progress(length);
            return Ok(0);
        }
        let file = match source.head().header.content {
            Content::Shard | Content::Packed => rank_file(rank),
            Content::Parity => parity_file(rank),
        };
        let upload = self.begin_rival(&chosen.series, &key, &file)?;
        let spec = WriteSpec {
            operation: key.operation,
            tier: self.global.kind(),
            started: Duration::ZERO,
            sources: vec![(rank, source)],
            upload,
            file,
            entries: vec![ContainerEntry { key, rank, offset: 0, length }],
            shared: None,
            write_bytes: self.write_bytes,
        };
        WriteJob::run_alone(spec, staging, progress)?;
        Ok(length)
    }

    /// Begins a file that other drains may be writing at the same time.
    fn begin_rival(&self, series: &Series, key: &CheckpointKey, file: &str) -> Result<Box<dyn Upload>, TierError> {
        let path = self.global.folder_path(series, key).join(file);
        self.global.begin(&path, Writers::Rival(&format!("{}-{}", self.host, self.unique)))
    }
}

fn locked(work: &Lock<Work>) -> Guard<'_, Work> {
    work.lock()
}

pub(super) fn tier_of(error: &TierError) -> TierId {
    match error {
        TierError::Io { tier, .. }
        | TierError::Format { tier, .. }
        | TierError::Damaged { tier, .. }
        | TierError::Foreign { tier, .. }
        | TierError::Source { tier, .. } => *tier,
    }
}

fn conflict(global: &dyn Tier, chosen: &Chosen, found: &CheckpointKey) -> String {
    let folder = global.folder_path(&chosen.series, &chosen.candidate.key);
    format!(
        "{} tier: {} belongs to another run with the same number (incarnation {}, ours {}): a claim was lost. Drain into an empty \
         directory, or move that folder away",
        global.kind(),
        folder.display(),
        found.incarnation,
        chosen.candidate.key.incarnation
    )
}

fn conflict_in(global: &dyn Tier, chosen: &Chosen, file: &str) -> String {
    let path = global.folder_path(&chosen.series, &chosen.candidate.key).join(file);
    let Candidate { key, .. } = chosen.candidate;
    format!(
        "{} tier: {} holds a shard of a checkpoint other than {key} of incarnation {}: drain into an empty directory, or move that folder \
         away",
        global.kind(),
        path.display(),
        key.incarnation
    )
}
