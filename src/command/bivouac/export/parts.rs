//! Which shards hold a region, and how they fit together. [`find`] looks, the rest is pure.
#![forbid(unsafe_code)]

use super::npy::{descr, tuple};
use crate::ending::{self, Problem};
use crate::output::{list, plain, ranks, short};
use crate::places::nothing_in;
use crate::survey::{Checkpoint, State, survey};
use crate::target::{Target, place_of, tier_of};
use bivouac_core::base::{CheckpointKey, Rank};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{ContainerEntry, ElementType, Manifest, Region, RegionKind};
use bivouac_core::tier::names::Series;
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::ReadFile;
use bivouac_core::tier::{Tier, TierError, TierId, join};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Regions that are named when another one was asked for.
const REGIONS_MAX: usize = 20;

/// One rank's part of the region.
pub struct Part {
    /// Whose.
    pub rank: u32,
    /// Its container.
    pub path: PathBuf,
    /// Where in it the shard lies.
    pub entry: ContainerEntry,
    /// The region, as the shard's head describes it.
    pub region: Region,
}

impl Part {
    /// Element type and shape, in NumPy's words.
    pub fn describe(&self) -> String {
        format!("{} {}", descr(self.region.element), tuple(&self.shape()))
    }

    /// The recorded shape, or one dimension if that does not describe the bytes.
    pub fn shape(&self) -> Vec<u64> {
        let Region { shape, element, bytes, .. } = &self.region;
        let product = shape.iter().try_fold(element.bytes(), |product, extent| product.checked_mul(*extent));
        match product == Some(*bytes) {
            true => shape.clone(),
            false => vec![bytes.checked_div(element.bytes()).unwrap_or_default()],
        }
    }
}

/// What was found of a region in a place.
pub struct Found {
    /// For reading.
    pub tier: Arc<dyn Tier>,
    /// Ascending by rank.
    pub parts: Vec<Part>,
    /// Ranks in the group.
    pub group_size: u32,
}

/// What is kept of a shard: its head has a digest for each block, and there may be many shards.
struct Shard {
    path: PathBuf,
    entry: ContainerEntry,
    key: CheckpointKey,
    group_size: u32,
    /// The region that is looked for.
    region: Option<Region>,
}

impl Shard {
    fn new(path: &Path, entry: ContainerEntry, head: &Head, region: &str) -> Shard {
        let (key, group_size) = (head.header.key, head.header.group_size);
        Shard { path: path.to_owned(), entry, key, group_size, region: head.region(region).cloned() }
    }
}

/// A place to look in.
struct Place {
    path: PathBuf,
    tier: Arc<dyn Tier>,
    series: Option<Series>,
    manifest: Option<Manifest>,
    containers: Vec<PathBuf>,
    /// A checkpoint folder, and no container alone.
    is_folder: bool,
}

/// Looks for a region of all ranks, or of one.
///
/// # Errors
/// It is not there, or what should be there is damaged.
pub fn find(path: &Path, region: &str, rank: Option<u32>) -> Result<Found, Problem> {
    let place = place(path)?;
    let mut shards: BTreeMap<u32, Shard> = BTreeMap::new();
    let (mut damage, mut seen, mut names) = (None, BTreeSet::new(), BTreeSet::new());
    for container in place.containers.iter().filter(|path| place.may_hold(path, rank)) {
        let mut wrong = |error: &TierError| {
            damage.get_or_insert(Problem { ending: ending::of_tier(error), text: error.to_string() });
        };
        let (index, file) = match place.tier.open_container(container) {
            Ok(opened) => opened,
            Err(error) => {
                wrong(&error);
                continue;
            }
        };
        let file: Arc<dyn ReadFile> = file.into();
        for entry in index.entries {
            let number = entry.rank.0;
            seen.insert(number);
            let is_meant = rank.is_none_or(|rank| rank == number) && place.may_hold(container, Some(number));
            if !is_meant || shards.contains_key(&number) {
                continue;
            }
            match place.open(container, file.clone(), &entry) {
                Ok(shard) => {
                    names.extend(shard.head().meta.regions.iter().map(|region| region.name.clone()));
                    shards.insert(number, Shard::new(container, entry, shard.head(), region));
                }
                Err(error) => wrong(&error),
            }
        }
    }
    let here: BTreeSet<u32> = shards.keys().copied().collect();
    let group_size = shards.values().map(|shard| shard.group_size).max().unwrap_or_default();
    let missing: BTreeSet<u32> = match rank {
        Some(rank) => BTreeSet::from([rank]).difference(&here).copied().collect(),
        None => place.expected(group_size).difference(&here).copied().collect(),
    };
    if let Some(problem) = damage.filter(|_| !missing.is_empty() || here.is_empty()) {
        return Err(problem);
    }
    if !missing.is_empty() || here.is_empty() {
        return Err(lacking(&place.path, missing, seen));
    }
    if let Some(problem) = mixed(&shards) {
        return Err(problem);
    }
    // The ranks had agreed on the names of their regions.
    let part = |(rank, Shard { path, entry, region, .. })| Some(Part { rank, path, entry, region: region? });
    let parts: Vec<Part> = shards.into_iter().filter_map(part).collect();
    if parts.is_empty() {
        let names = list(names.iter().map(|name| short(name)), REGIONS_MAX, ", ");
        let place = place.path.display();
        return Err(Problem::nothing(format!("{place} has no region {:?}: it has {names}", short(region))));
    }
    if parts.iter().any(|part| part.region.kind == RegionKind::Value) {
        return Err(format!(
            "region {:?} is a value that the program has encoded (serde), and no array: only the program can read it",
            short(region)
        )
        .into());
    }
    Ok(Found { tier: place.tier, parts, group_size })
}

fn lacking(path: &Path, missing: BTreeSet<u32>, here: BTreeSet<u32>) -> Problem {
    let what = if missing.is_empty() { String::new() } else { format!(" of ranks {}", ranks(missing)) };
    let here = match here.is_empty() {
        true => "none can be read".to_owned(),
        false => format!("it has those of ranks {}", ranks(here)),
    };
    Problem::nothing(format!("{} has no shard{what}: {here}", path.display()))
}

/// Shards of several checkpoints in one place.
fn mixed(shards: &BTreeMap<u32, Shard>) -> Option<Problem> {
    let (first_rank, first) = shards.first_key_value()?;
    let (rank, other) = shards.iter().find(|(_, shard)| shard.key != first.key)?;
    Some(Problem::damage(format!(
        "{}: the shard of rank {rank} is of {}, and that of rank {first_rank} of {}",
        other.path.display(),
        other.key,
        first.key
    )))
}

impl Place {
    /// Is this where the manifest has the rank, if it says so?
    fn may_hold(&self, container: &Path, rank: Option<u32>) -> bool {
        let named = rank.and_then(|rank| self.manifest.as_ref()?.container_of(Rank(rank)));
        named.is_none_or(|info| container.file_name().is_some_and(|name| name == info.file.as_str()))
    }

    fn open(&self, path: &Path, file: Arc<dyn ReadFile>, entry: &ContainerEntry) -> Result<FileShard, TierError> {
        let path = path.to_owned();
        match &self.series {
            Some(series) => self.tier.open_placed(series, path, file, entry),
            None => join(&*self.tier, FileShard::open_any(self.tier.kind(), path, file, entry)?),
        }
    }

    /// Ranks whose shards have to be here: on the global tier all, on others those that the manifest names, and in a container alone
    /// whatever is there.
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

fn place(path: &Path) -> Result<Place, Problem> {
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
            Err(format!("{} has no regions that could be exported: {advice}", path.display()).into())
        }
    }
}

/// The one checkpoint that is meant.
fn only(path: &Path, mut found: Vec<Checkpoint>) -> Result<Checkpoint, Problem> {
    if found.len() > 1 {
        let newest = found.iter().find(|found| found.state == State::Committed).or(found.first());
        let newest = newest.map_or_else(String::new, |newest| format!(", such as {}", newest.path.display()));
        return Err(format!("{} holds {} checkpoints: name one{newest}", path.display(), found.len()).into());
    }
    found.pop().ok_or_else(|| nothing_in(path))
}

/// Element type and shape of all parts one after the other, along the first axis.
///
/// # Errors
/// They do not fit, or some are missing.
pub fn joined(found: &Found) -> Result<(ElementType, Vec<u64>), String> {
    let advice = "give --rank N, or a name with {rank} for a file of each rank";
    let Some(first) = found.parts.first() else { return Err("there is no part".into()) };
    let here = found.parts.iter().map(|part| part.rank);
    if here.len() as u64 != u64::from(found.group_size) {
        return Err(format!(
            "only the shards of ranks {} of {} are here, and one array is made of all of them: name the folder on the global tier, or {advice}",
            ranks(here),
            found.group_size
        ));
    }
    let mut whole = first.shape();
    // Numbers become an array with one for each rank.
    if whole.is_empty() {
        whole.push(1);
    }
    for part in &found.parts[1..] {
        let mut shape = part.shape();
        if shape.is_empty() {
            shape.push(1);
        }
        if part.region.element != first.region.element || shape[1..] != whole[1..] || shape.len() != whole.len() {
            return Err(format!(
                "the parts do not fit together: rank {} has {}, rank {} has {}; {advice}",
                first.rank,
                first.describe(),
                part.rank,
                part.describe()
            ));
        }
        whole[0] = whole[0].checked_add(shape[0]).ok_or("the first axis is too long")?;
    }
    Ok((first.region.element, whole))
}

/// A rank's part in words.
pub fn title(part: &Part) -> String {
    format!("rank {} of {}", part.rank, plain(&part.path.display().to_string()))
}
