//! What a node still has of dead jobs.

use super::super::discover::{candidate_of, candidate_of_manifest};
use super::{Piece, Place};
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Generation, Level, Rank};
use crate::catalog::Candidate;
use crate::format::Content;
use crate::format::shard::Head;
use crate::redundancy::part::Part;
use crate::redundancy::stripes::SetInfo;
use crate::segment::{OldSegment, OldSlot, SegmentError, SlotState, list};
use crate::tier::names::{Series, is_component, is_node_file, is_rank_file, parse_rank_file};
use crate::tier::storage::ReadFile;
use crate::tier::{Tier, TierError, TierId};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The prefix of the names of all segment files.
const SEGMENT_PREFIX: &str = "bivouac-";
/// The limit for generations. They grow by one with each run, so a larger number is garbage, and the next run would add one to it.
const GENERATION_MAX: u64 = 1 << 48;

/// Something that should be usable but is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The tier.
    pub tier: TierId,
    /// The series, if it can be determined.
    pub series: Option<Series>,
    /// The hash of the series name, if only that can be determined.
    pub name_hash: Option<u64>,
    /// Generation, version and operation, if they can be determined.
    pub order: Option<(Generation, u64, u64)>,
    /// The rank whose shard it is, if that can be determined.
    pub rank: Option<Rank>,
    /// What is wrong, with the path.
    pub why: String,
}

impl Damage {
    /// May the damage concern this series, as far as can be determined?
    pub fn may_concern(&self, series: &Series) -> bool {
        match (&self.series, self.name_hash) {
            (Some(own), _) => own == series,
            (None, Some(hash)) => hash == text_hash(&series.name),
            (None, None) => true,
        }
    }
}

/// A segment that has been examined.
#[derive(Clone, Debug)]
pub struct SegmentSeen {
    /// Its path.
    pub path: PathBuf,
    /// The hash of its job's key.
    pub job: u64,
    /// The hash of its group's name.
    pub group: u64,
    /// The run that made it.
    pub generation: Generation,
    /// Is a process of that run alive on this node?
    pub is_alive: bool,
}

/// Everything that was found on a node.
#[derive(Default)]
pub struct Collected {
    /// Shards whose heads are sound, in the order in which they are to be tried: memory first.
    pub pieces: Vec<Piece>,
    /// Checkpoints that this node knows to have been committed, and the tier that says so.
    pub committed: BTreeSet<(Series, TierId, Candidate)>,
    /// Checkpoints that may survive the loss of nodes: something here was marked as such, or is kept for other ranks.
    pub protected: BTreeSet<(Series, Candidate)>,
    /// What should be usable but is not.
    pub damage: Vec<Damage>,
    /// Segments and directories that could not be read at all.
    pub problems: Vec<String>,
    /// The segments that have been examined.
    pub segments: Vec<SegmentSeen>,
    /// Parity parts of redundancy sets, and the set that each belongs to.
    pub parts: Vec<(Piece, SetInfo)>,
    /// Parity parts that cannot be used, and why. They are no loss as long as the shards are there.
    pub bad_parts: Vec<String>,
    /// For the series that is being examined: the folders that others refer to, and the damage to folders that lack what they refer to.
    pub(super) referred_to: BTreeSet<String>,
    pub(super) lacking: Vec<(String, Damage)>,
}

/// Looks through the memory segments of this user in `memory` and through local tiers, for the series that are `wanted`.
///
/// # Blocking
/// Reads the head of every shard there.
pub fn collect(memory: &Path, locals: &[Arc<dyn Tier>], wanted: &dyn Fn(&Series) -> bool) -> Collected {
    let mut found = Collected::default();
    found.add_segments(memory, wanted);
    locals.iter().for_each(|tier| found.add_directory(tier, wanted));
    found
}

/// What one slot turned out to be.
enum Looked {
    Shard(Box<Piece>),
    Part(Box<Piece>),
    Nothing,
    Damaged(String),
}

impl Collected {
    /// Looks through the memory segments of this user in a folder.
    ///
    /// # Blocking
    /// Reads the head of every shard there.
    pub fn add_segments(&mut self, directory: &Path, wanted: &dyn Fn(&Series) -> bool) {
        match list(directory, SEGMENT_PREFIX) {
            Ok(names) => names.iter().for_each(|name| self.add_segment(directory, name, wanted)),
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// Looks through one memory segment.
    ///
    /// # Blocking
    /// See [`Collected::add_segments`].
    pub fn add_segment(&mut self, directory: &Path, name: &str, wanted: &dyn Fn(&Series) -> bool) {
        let damaged =
            |why: String| Damage { tier: TierId::MEMORY, series: None, name_hash: None, order: None, rank: None, why };
        let segment = match OldSegment::open(directory, name) {
            Ok(segment) => Arc::new(segment),
            // The segment was never finished, so that no shard has ever been in it, or it has just been deleted.
            Err(SegmentError::Unfinished { .. } | SegmentError::NotFound { .. }) => return,
            Err(error @ SegmentError::Damaged { .. }) => return self.damage.push(damaged(error.to_string())),
            Err(error) => return self.problems.push(error.to_string()),
        };
        let header = *segment.header();
        match segment.is_alive() {
            Ok(is_alive) => self.segments.push(SegmentSeen {
                path: segment.path().to_owned(),
                job: header.job,
                group: header.group,
                generation: header.generation,
                is_alive,
            }),
            Err(error) => return self.problems.push(error.to_string()),
        }
        let (mut strange, mut readable, mut taken) = (Vec::new(), 0usize, 0usize);
        for slot in segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed) {
            match look_at_slot(&segment, slot) {
                Looked::Shard(piece) => {
                    readable += 1;
                    if wanted(&piece.series) {
                        taken += 1;
                        if slot.level >= Level::Process {
                            self.committed.insert((piece.series.clone(), TierId::MEMORY, piece.candidate));
                        }
                        // A checkpoint that has reached the global tier needs no help.
                        if slot.level == Level::NodeLoss {
                            self.protected.insert((piece.series.clone(), piece.candidate));
                        }
                        self.pieces.push(*piece);
                    }
                }
                Looked::Part(piece) => {
                    readable += 1;
                    if wanted(&piece.series) {
                        taken += 1;
                        self.add_part(*piece);
                    }
                }
                Looked::Nothing => {}
                Looked::Damaged(why) => strange.push(Damage {
                    name_hash: Some(slot.name),
                    order: Some((header.generation, slot.version, slot.operation)),
                    ..damaged(why)
                }),
            }
        }
        // Damage in a segment that belongs only to other jobs does not concern us.
        if taken > 0 || readable == 0 {
            self.damage.append(&mut strange);
        }
    }

    /// Looks through a directory tier.
    ///
    /// # Blocking
    /// See [`Collected::add_segments`].
    pub fn add_directory(&mut self, tier: &Arc<dyn Tier>, wanted: &dyn Fn(&Series) -> bool) {
        if let Err(error) = self.try_directory(tier, wanted) {
            self.problems.push(error.to_string());
        }
    }

    fn try_directory(&mut self, tier: &Arc<dyn Tier>, wanted: &dyn Fn(&Series) -> bool) -> Result<(), TierError> {
        for series in tier.all_series()?.into_iter().filter(wanted) {
            for (generation, version, operation) in tier.folders(&series)? {
                let key = CheckpointKey { generation, version, operation, ..Default::default() };
                if let Err(error) = self.add_folder(tier, &series, &key) {
                    self.problems.push(error.to_string());
                }
            }
            // A folder that others refer to may itself lack what it refers to, because it is kept for the others only.
            let referred_to = std::mem::take(&mut self.referred_to);
            let lacking = std::mem::take(&mut self.lacking).into_iter();
            self.damage.extend(lacking.filter(|(folder, _)| !referred_to.contains(folder)).map(|(_, damage)| damage));
        }
        Ok(())
    }

    fn add_part(&mut self, piece: Piece) {
        match set_of(&piece) {
            Ok(set) if is_sane(&piece.candidate) => {
                self.protected.insert((piece.series.clone(), piece.candidate));
                self.parts.push((piece, set));
            }
            Ok(_) => self.bad_parts.push(insane(Path::new(&piece.series.name))),
            Err(error) => self.bad_parts.push(error.to_string()),
        }
    }

    fn add_folder(&mut self, tier: &Arc<dyn Tier>, series: &Series, key: &CheckpointKey) -> Result<(), TierError> {
        let folder = Folder { tier, series, key, name: key.folder(), path: tier.folder_path(series, key) };
        let entries = tier.entries(&folder.path)?;
        let mut seen = BTreeSet::new();
        for name in entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name) {
            if let Some((rank, Content::Parity)) = parse_rank_file(&name) {
                self.add_part_file(&folder, name, rank);
            } else if is_rank_file(&name) || is_node_file(&name) {
                self.add_container(&folder, &name, &mut seen);
            }
        }
        self.add_manifest(&folder, &seen);
        Ok(())
    }

    fn add_part_file(&mut self, folder: &Folder<'_>, name: String, rank: Rank) {
        match folder.tier.open_any(folder.series, &folder.name, &name, rank) {
            Ok(shard) => self.add_part(Piece {
                series: folder.series.clone(),
                candidate: candidate_of(shard.head()),
                rank,
                bytes: shard.head().header.total_len,
                content: Content::Parity,
                place: Place::File(folder.tier.clone(), name),
            }),
            Err(error) => self.bad_parts.push(error.to_string()),
        }
    }

    /// Adds the shards of a file, and adds to `seen` the ranks whose shards the file has or should have.
    fn add_container(&mut self, folder: &Folder<'_>, name: &str, seen: &mut BTreeSet<Rank>) {
        let (tier, series, path) = (folder.tier, folder.series, folder.path.join(name));
        let (container, file) = match tier.open_container(&path) {
            Ok(opened) => opened,
            Err(error) => {
                let rank = rank_of_file(name);
                seen.extend(rank);
                return self.damage.push(folder.damage(rank, error.to_string()));
            }
        };
        let file: Arc<dyn ReadFile> = file.into();
        for entry in container.entries.iter().filter(|entry| entry.key.folder() == folder.name) {
            seen.insert(entry.rank);
            match tier.open_placed(series, path.clone(), file.clone(), entry) {
                Ok(shard) if is_sane(&candidate_of(shard.head())) => self.pieces.push(Piece {
                    series: series.clone(),
                    candidate: candidate_of(shard.head()),
                    rank: entry.rank,
                    bytes: shard.head().header.total_len,
                    content: Content::Shard,
                    place: Place::File(tier.clone(), name.to_owned()),
                }),
                Ok(_) => self.damage.push(folder.damage(Some(entry.rank), insane(&path))),
                Err(TierError::Source { cause, .. }) if cause.is_absent() => {
                    let why = format!("{}: it refers to something that is missing: {cause}", path.display());
                    self.lacking.push((folder.name.clone(), folder.damage(Some(entry.rank), why)));
                }
                Err(error) => self.damage.push(folder.damage(Some(entry.rank), error.to_string())),
            }
        }
    }

    /// Adds what the manifest says, and as damage the missing files of ranks that were not `seen`.
    fn add_manifest(&mut self, folder: &Folder<'_>, seen: &BTreeSet<Rank>) {
        let (tier, series) = (folder.tier, folder.series);
        match tier.read_manifest(series, &folder.name) {
            Ok(manifest) => {
                self.referred_to.extend(manifest.sources.iter().map(|source| source.key.folder()));
                let candidate = candidate_of_manifest(&manifest);
                if is_sane(&candidate) {
                    self.committed.insert((series.clone(), tier.kind(), candidate));
                    // A node's manifest names the shards of the node's own ranks. Other shards are copies that the node keeps for other
                    // ranks.
                    let is_own = |rank: &Rank| manifest.containers.iter().any(|own| own.ranks.contains(rank));
                    if !seen.iter().all(is_own) {
                        self.protected.insert((series.clone(), candidate));
                    }
                }
                for container in &manifest.containers {
                    for rank in container.ranks.iter().filter(|rank| !seen.contains(rank)) {
                        let file = folder.path.join(&container.file);
                        let why = format!("{}, which holds the shard of rank {rank}, is missing", file.display());
                        self.damage.push(folder.damage(Some(*rank), why));
                    }
                }
            }
            Err(error) if error.is_absent() => {}
            // The shards themselves prove what the manifest recorded.
            Err(error) => log::warn!("event=manifest-unusable error={error}"),
        }
    }
}

/// The folder of a checkpoint on a tier.
struct Folder<'a> {
    tier: &'a Arc<dyn Tier>,
    series: &'a Series,
    key: &'a CheckpointKey,
    /// Its name, and its full path.
    name: String,
    path: PathBuf,
}

impl Folder<'_> {
    fn damage(&self, rank: Option<Rank>, why: String) -> Damage {
        Damage {
            tier: self.tier.kind(),
            series: Some(self.series.clone()),
            name_hash: None,
            order: Some((self.key.generation, self.key.version, self.key.operation)),
            rank,
            why,
        }
    }
}

/// Opens a part, and returns the redundancy set that it describes.
pub(super) fn set_of(piece: &Piece) -> Result<SetInfo, TierError> {
    Part::open(piece.open()?).map(|part| part.set)
}

/// The rank in the name of a rank's own file.
pub(super) fn rank_of_file(name: &str) -> Option<Rank> {
    name.strip_prefix('r')?.strip_suffix(".bvs")?.parse().ok().map(Rank)
}

fn is_sane(candidate: &Candidate) -> bool {
    (1..GENERATION_MAX).contains(&candidate.key.generation.0)
}

fn insane(path: &Path) -> String {
    format!("{}: no run can have had its generation", path.display())
}

fn look_at_slot(segment: &Arc<OldSegment>, slot: &OldSlot) -> Looked {
    let place = || format!("slot {} of node rank {} in {}", slot.index, slot.node_rank, segment.path().display());
    let bytes = match segment.bytes(slot) {
        Ok(bytes) => bytes,
        // A later run has given the memory back, because another checkpoint was elected.
        Err(SegmentError::Hole { .. }) => return Looked::Nothing,
        Err(error) => return Looked::Damaged(error.to_string()),
    };
    let head = match Head::decode(bytes) {
        Ok(head) => head,
        Err(error) => return Looked::Damaged(format!("{}: {error}", place())),
    };
    let series = Series { job: head.meta.job.clone(), group: head.meta.group.clone(), name: head.meta.name.clone() };
    let candidate = candidate_of(&head);
    if head.header.total_len != bytes.len() as u64 {
        let (found, expected) = (head.header.total_len, bytes.len());
        return Looked::Damaged(format!("{}: the shard has {found} bytes, but its slot has {expected}", place()));
    }
    // These names become the names of folders.
    if ![&series.job, &series.group, &series.name].into_iter().all(|name| is_component(name)) {
        return Looked::Damaged(format!("{}: its job, group or name cannot be a folder name", place()));
    }
    if !is_sane(&candidate) {
        return Looked::Damaged(insane(segment.path()));
    }
    let place = Place::Slot(segment.clone(), *slot);
    let content = head.header.content;
    let piece = Box::new(Piece { series, candidate, rank: head.header.rank, bytes: slot.length, content, place });
    match content {
        Content::Shard | Content::Packed => Looked::Shard(piece),
        Content::Parity => Looked::Part(piece),
    }
}
