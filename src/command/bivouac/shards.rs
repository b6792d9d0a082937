//! The shards of one checkpoint in one place: a folder of the global or a local tier, or only a container file. This module serves commands
//! that read regions of the shards.
#![forbid(unsafe_code)]

use crate::ending::{self, Problem};
use crate::output::{list, plain, ranks, short};
use crate::places::nothing_in;
use crate::survey::{Checkpoint, State, survey};
use crate::target::{Target, place_of, tier_of};
use bivouac_core::base::{CheckpointKey, Rank};
use bivouac_core::format::{ContainerEntry, Manifest};
use bivouac_core::tier::names::Series;
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::ReadFile;
use bivouac_core::tier::{Tier, TierError, TierId, join};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of regions that are named if a region that does not exist was asked for.
const REGIONS_MAX: usize = 20;

/// A place that has shards.
pub struct Place {
    /// The folder or container.
    pub path: PathBuf,
    /// The tier, for reading.
    pub tier: Arc<dyn Tier>,
    series: Option<Series>,
    manifest: Option<Manifest>,
    containers: Vec<PathBuf>,
    /// It is a checkpoint folder, not only a container.
    is_folder: bool,
}

/// The place of a shard.
#[derive(Clone)]
pub struct Spot {
    /// Its container.
    pub path: PathBuf,
    /// The container's entry for the shard.
    pub entry: ContainerEntry,
}

impl Spot {
    /// The rank whose shard it is.
    pub fn rank(&self) -> u32 {
        self.entry.rank.0
    }

    /// The place in words.
    pub fn title(&self) -> String {
        format!("rank {} of {}", self.rank(), plain(&self.path.display().to_string()))
    }
}

/// The ranks whose shards were found in a place.
pub struct Here {
    /// These ranks.
    pub ranks: BTreeSet<u32>,
    /// Ranks in the group.
    pub group_size: u32,
}

impl Here {
    /// Are there shards of all ranks?
    pub fn is_all(&self) -> bool {
        self.ranks.len() as u64 == u64::from(self.group_size)
    }
}

/// What all shards of a checkpoint have in common: which checkpoint it is, what its ranks have agreed on, and how many ranks it has.
type Common = (CheckpointKey, u64, u32);

impl Place {
    /// Finds the only checkpoint at a path.
    ///
    /// # Errors
    /// The path has no checkpoint, has several, or is something without regions.
    pub fn of(path: &Path) -> Result<Place, Problem> {
        match Target::of(path)? {
            Target::Scope(scope) => {
                let (found, problems) = survey(&scope)?;
                if let Some(problem) = problems.into_iter().next() {
                    return Err(problem.into());
                }
                let checkpoint = only(path, found)?;
                Ok(Place {
                    containers: checkpoint.containers().map(|file| checkpoint.path.join(&file.name)).collect(),
                    path: checkpoint.path,
                    tier: checkpoint.tier,
                    series: Some(checkpoint.series),
                    manifest: checkpoint.manifest,
                    is_folder: true,
                })
            }
            Target::Container(path) => Ok(Place {
                tier: tier_of(&path),
                series: place_of(&path).map(|(series, _)| series),
                manifest: None,
                containers: vec![path.clone()],
                is_folder: false,
                path,
            }),
            Target::Manifest(_) | Target::Segment(..) | Target::Segments(_) => {
                let advice = "name a checkpoint folder or a container file below a global or local directory";
                Err(format!("{} has no regions that could be read: {advice}", path.display()).into())
            }
        }
    }

    /// Passes each rank's shard, or that of one rank, to `take`, joined with what the shard refers to. The bodies of its
    /// regions have not been read.
    ///
    /// # Errors
    /// Those of `take`; and after all shards, if shards that must be here are missing, cannot be read, or belong to different checkpoints.
    pub fn each(
        &self,
        rank: Option<u32>,
        mut take: impl FnMut(Spot, &FileShard) -> Result<(), Problem>,
    ) -> Result<Here, Problem> {
        let (mut here, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let (mut damage, mut first, mut mixed) = (None, None, None);
        let wrong = |damage: &mut Option<Problem>, error: &TierError| {
            damage.get_or_insert(Problem { ending: ending::of_tier(error), text: error.to_string() });
        };
        for container in self.containers.iter().filter(|path| self.may_hold(path, rank)) {
            let (index, file) = match self.tier.open_container(container) {
                Ok(opened) => opened,
                Err(error) => {
                    wrong(&mut damage, &error);
                    continue;
                }
            };
            let file: Arc<dyn ReadFile> = file.into();
            for entry in index.entries {
                let number = entry.rank.0;
                seen.insert(number);
                let is_meant = rank.is_none_or(|rank| rank == number) && self.may_hold(container, Some(number));
                if !is_meant || here.contains(&number) {
                    continue;
                }
                let spot = Spot { path: container.clone(), entry };
                match self.open_in(&spot, file.clone()) {
                    Ok(shard) => {
                        here.insert(number);
                        mixed = mixed.or_else(|| unlike_first(&spot, &shard, &mut first));
                        take(spot, &shard)?;
                    }
                    Err(error) => wrong(&mut damage, &error),
                }
            }
        }
        let group_size = first.map_or(0, |((.., group_size), _)| group_size);
        let missing: BTreeSet<u32> = match rank {
            Some(rank) => BTreeSet::from([rank]).difference(&here).copied().collect(),
            None => self.expected(group_size).difference(&here).copied().collect(),
        };
        let is_lacking = !missing.is_empty() || here.is_empty();
        match (damage, mixed) {
            (Some(problem), _) if is_lacking => Err(problem),
            _ if is_lacking => Err(lacking(&self.path, missing, seen)),
            (_, Some(problem)) => Err(problem),
            _ => Ok(Here { ranks: here, group_size }),
        }
    }

    /// Opens a shard that [`Place::each`] has passed on.
    ///
    /// # Errors
    /// The shard no longer exists, or it has changed.
    pub fn open(&self, spot: &Spot) -> Result<FileShard, TierError> {
        let file = self.tier.open(&spot.path);
        let file = file.map_err(|source| TierError::io(self.tier.kind(), "open", &spot.path, source))?;
        self.open_in(spot, file.into())
    }

    /// The problem that no shard has a region; `names` are the regions that exist.
    pub fn no_region(&self, region: &str, names: &BTreeSet<String>) -> Problem {
        let names = list(names.iter().map(|name| short(name)), REGIONS_MAX, ", ");
        Problem::nothing(format!("{} has no region {:?}: it has {names}", self.path.display(), short(region)))
    }

    fn open_in(&self, spot: &Spot, file: Arc<dyn ReadFile>) -> Result<FileShard, TierError> {
        let path = spot.path.clone();
        match &self.series {
            Some(series) => self.tier.open_placed(series, path, file, &spot.entry),
            None => join(&*self.tier, FileShard::open_any(self.tier.kind(), path, file, &spot.entry)?),
        }
    }

    /// May this container have the shard of the rank? The manifest decides, if it names the rank.
    fn may_hold(&self, container: &Path, rank: Option<u32>) -> bool {
        let named = rank.and_then(|rank| self.manifest.as_ref()?.container_of(Rank(rank)));
        named.is_none_or(|info| container.file_name().is_some_and(|name| name == info.file.as_str()))
    }

    /// Ranks whose shards must be here: all ranks on the global tier; on other tiers, those that the manifest names; none in particular if
    /// the place is only a container.
    fn expected(&self, group_size: u32) -> BTreeSet<u32> {
        let named = self.manifest.iter().flat_map(|manifest| &manifest.containers);
        let named = named.flat_map(|container| &container.ranks).map(|rank| rank.0);
        match self.tier.kind() {
            _ if !self.is_folder => BTreeSet::new(),
            TierId::GLOBAL => (0..group_size).collect(),
            _ => named.collect(),
        }
    }
}

/// The problem if a shard belongs to a different checkpoint than the first one.
fn unlike_first(spot: &Spot, shard: &FileShard, first: &mut Option<(Common, u32)>) -> Option<Problem> {
    let header = &shard.head().header;
    let common = (header.key, header.agreement, header.group_size);
    let (of_first, first) = *first.get_or_insert((common, spot.rank()));
    let ((key, ..), (other, ..)) = (of_first, common);
    let what = match key == other {
        true => "an attempt with a different agreement or number of ranks".to_owned(),
        false => other.to_string(),
    };
    (common != of_first).then(|| {
        let (path, rank) = (spot.path.display(), spot.rank());
        Problem::damage(format!(
            "{path}: the shard of rank {rank} belongs to {what}, but that of rank {first} to {key}"
        ))
    })
}

fn lacking(path: &Path, missing: BTreeSet<u32>, here: BTreeSet<u32>) -> Problem {
    let what = if missing.is_empty() { String::new() } else { format!(" of ranks {}", ranks(missing)) };
    let here = match here.is_empty() {
        true => "none can be read".to_owned(),
        false => format!("it has those of ranks {}", ranks(here)),
    };
    Problem::nothing(format!("{} has no shard{what}: {here}", path.display()))
}

/// The only checkpoint that was found.
fn only(path: &Path, mut found: Vec<Checkpoint>) -> Result<Checkpoint, Problem> {
    if found.len() > 1 {
        let newest = found.iter().find(|found| found.state == State::Committed).or(found.first());
        let newest = newest.map_or_else(String::new, |newest| format!(", such as {}", newest.path.display()));
        return Err(format!("{} holds {} checkpoints: name one{newest}", path.display(), found.len()).into());
    }
    found.pop().ok_or_else(|| nothing_in(path))
}
