//! Reads the affinity records of checkpoints, from containers and memory segments. Reading is tolerant: damaged records are reported,
//! and the rest is shown.
#![forbid(unsafe_code)]

use crate::body;
use crate::ending::{self, Problem, Problems};
use crate::memory::{self, Stock};
use crate::output::{self, plain};
use crate::places::nothing_in;
use crate::survey::{Checkpoint, State, survey, without_path};
use crate::target::{Target, tier_of};
use bivouac_core::affinity::record::{Record, RegionPlace};
use bivouac_core::base::CheckpointKey;
use bivouac_core::format::codec;
use bivouac_core::format::shard::Head;
use bivouac_core::format::{Content, Region};
use bivouac_core::region::AFFINITY;
use bivouac_core::segment::SlotState;
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::ReadFile;
use bivouac_core::tier::{Tier, TierError, join};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Where the threads and pages of one rank or one process are.
pub struct Placed {
    /// The rank; for a process that is not a rank, the number of the process.
    pub number: u32,
    /// The process, if a live process was examined.
    pub process: Option<u32>,
    /// What is known.
    pub record: Record,
    /// Bytes of each region, by name.
    pub bytes: BTreeMap<String, u64>,
}

impl Placed {
    /// What its number stands for.
    pub fn kind(&self) -> Kind {
        if self.process == Some(self.number) { Kind::Process } else { Kind::Rank }
    }
}

/// What numbers stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Ranks of a checkpoint.
    #[default]
    Rank,
    /// Processes that are not ranks.
    Process,
}

impl Kind {
    /// The word for one of them.
    pub fn one(self) -> &'static str {
        match self {
            Kind::Rank => "rank",
            Kind::Process => "process",
        }
    }

    /// The word for several of them.
    pub fn many(self) -> &'static str {
        match self {
            Kind::Rank => "ranks",
            Kind::Process => "processes",
        }
    }

    /// These numbers in words: `rank 3`, `ranks 0-3`.
    pub fn list(self, numbers: &[u32]) -> String {
        let word = if numbers.len() == 1 { self.one() } else { self.many() };
        format!("{word} {}", output::ranks(numbers.iter().copied()))
    }
}

/// The state at one time, of the ranks of a checkpoint or of live processes.
pub struct Snapshot {
    /// What it is, in words.
    pub title: String,
    /// It is of live processes.
    pub is_live: bool,
    /// The folder, file or segment that was read.
    pub path: Option<String>,
    /// Job, group and name.
    pub series: Option<[String; 3]>,
    /// Which checkpoint of the series.
    pub key: Option<CheckpointKey>,
    /// Ranks in the group.
    pub group_size: Option<u32>,
    /// The ranks or processes, ascending by number.
    pub ranks: Vec<Placed>,
    /// Ranks that have no record, ascending.
    pub without: BTreeSet<u32>,
}

impl Snapshot {
    /// An empty snapshot.
    pub fn new(title: String) -> Snapshot {
        let (ranks, without) = (Vec::new(), BTreeSet::new());
        Snapshot { title, is_live: false, path: None, series: None, key: None, group_size: None, ranks, without }
    }

    /// Adds a shard's record. If there are two shards of a rank, the first one with a record counts.
    fn add(&mut self, head: &Head, record: Option<Record>, problems: &mut Problems) {
        let (meta, rank) = (&head.meta, head.header.rank.0);
        self.series.get_or_insert_with(|| [meta.job.clone(), meta.group.clone(), meta.name.clone()]);
        self.key.get_or_insert(head.header.key);
        self.group_size.get_or_insert(head.header.group_size);
        if self.ranks.iter().any(|placed| placed.number == rank) {
            return;
        }
        let Some(mut record) = record else {
            self.without.insert(rank);
            return;
        };
        let bytes: BTreeMap<String, u64> =
            meta.regions.iter().map(|region| (region.name.clone(), region.bytes)).collect();
        record.regions.retain(|(name, place)| match fits(bytes.get(name), place) {
            Ok(()) => true,
            Err(why) => {
                problems.add(Problem::damage(format!("{}: rank {rank}: region {name:.64?}: {why}", self.title)));
                false
            }
        });
        self.without.remove(&rank);
        self.ranks.push(Placed { number: rank, process: None, record, bytes });
    }

    fn named(mut self) -> Snapshot {
        self.ranks.sort_by_key(|placed| placed.number);
        if let (Some([_, _, name]), Some(key)) = (&self.series, &self.key) {
            self.title = format!("{}: {name} version {} of generation {}", self.title, key.version, key.generation);
        }
        self
    }
}

/// Checks whether a place that a record names belongs to a region of the shard.
fn fits(bytes: Option<&u64>, place: &RegionPlace) -> Result<(), String> {
    let bytes = bytes.ok_or("the record places it, but the shard has no such region")?;
    match place {
        RegionPlace::Host { pages, .. } => pages.check(*bytes),
        RegionPlace::Device(_) => Ok(()),
    }
}

/// The snapshots of a path; problems with reading are added to `problems`.
pub fn of_path(path: &Path, problems: &mut Problems) -> Vec<Snapshot> {
    try_path(path, problems).unwrap_or_else(|problem| {
        problems.add(problem);
        Vec::new()
    })
}

fn try_path(path: &Path, problems: &mut Problems) -> Result<Vec<Snapshot>, Problem> {
    match Target::of(path)? {
        Target::Scope(scope) => {
            let (found, unread) = survey(&scope)?;
            problems.extend(unread);
            if found.is_empty() {
                return Err(nothing_in(path));
            }
            Ok(newest(&found).into_iter().map(|found| of_checkpoint(found, problems)).collect())
        }
        Target::Container(path) => {
            let mut snapshot = Snapshot::new(format!("container {}", plain(&path.display().to_string())));
            snapshot.path = Some(path.display().to_string());
            add_container(&mut snapshot, &tier_of(&path), &path, problems);
            Ok(vec![snapshot.named()])
        }
        Target::Manifest(path) => Err(format!("{} is a manifest: name its folder", path.display()).into()),
        Target::Segment(folder, name) => of_segment(&folder, &name, problems),
        Target::Segments(folder) => {
            let names = memory::names(&folder)?;
            let mut snapshots = Vec::new();
            for name in names {
                match of_segment(&folder, &name, problems) {
                    Ok(found) => snapshots.extend(found),
                    Err(problem) => problems.add(problem),
                }
            }
            Ok(snapshots)
        }
    }
}

/// For each series, the newest checkpoint that a restart could take, or the newest of all if there is none. `found` is sorted by
/// series, the newest first.
fn newest(found: &[Checkpoint]) -> Vec<&Checkpoint> {
    let of_series = found.chunk_by(|a, b| a.series == b.series);
    let is_good = |found: &&Checkpoint| matches!(found.state, State::Committed | State::Restorable);
    of_series.filter_map(|series| series.iter().find(is_good).or(series.first())).collect()
}

fn of_checkpoint(found: &Checkpoint, problems: &mut Problems) -> Snapshot {
    let path = found.path.display().to_string();
    let mut snapshot = Snapshot::new(format!("checkpoint {}", plain(&path)));
    snapshot.path = Some(path);
    snapshot.group_size = found.group_size;
    for file in found.containers() {
        add_container(&mut snapshot, &found.tier, &found.path.join(&file.name), problems);
    }
    snapshot.named()
}

fn add_container(snapshot: &mut Snapshot, tier: &Arc<dyn Tier>, path: &Path, problems: &mut Problems) {
    let wrong = |place: String, error: &TierError| Problem {
        ending: ending::of_tier(error),
        text: format!("{place}: {}", without_path(error)),
    };
    let (container, file) = match tier.open_container(path) {
        Ok(opened) => opened,
        Err(error) => return problems.add(wrong(path.display().to_string(), &error)),
    };
    let file: Arc<dyn ReadFile> = file.into();
    for entry in &container.entries {
        let opened = FileShard::open_any(tier.kind(), path.into(), file.clone(), entry);
        let shard = match opened.and_then(|shard| join(&**tier, shard)) {
            Ok(shard) => shard,
            Err(error) => {
                problems.add(wrong(format!("{}: rank {}", path.display(), entry.rank), &error));
                continue;
            }
        };
        let head = shard.head();
        add_shard(snapshot, &path.display().to_string(), head, body::of_file(&shard), problems);
    }
}

fn add_shard(
    snapshot: &mut Snapshot,
    file: &str,
    head: &Head,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
    problems: &mut Problems,
) {
    // A parity part has neither regions of the application nor a record.
    if head.header.content != Content::Shard {
        return;
    }
    let record = match head.region(AFFINITY) {
        Some(region) if region.bytes > 0 => match read_record(head, region, read) {
            Ok(record) => Some(record),
            Err(Problem { ending, text }) => {
                let text = format!("{file}: rank {}: {text}", head.header.rank);
                problems.add(Problem { ending, text });
                None
            }
        },
        _ => None,
    };
    snapshot.add(head, record, problems);
}

fn read_record(
    head: &Head,
    region: &Region,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
) -> Result<Record, Problem> {
    let bytes = body::read_region(head, region, codec::LIMIT as u64, read)?;
    Record::decode(&bytes).map_err(|error| Problem::damage(error.to_string()))
}

/// The newest checkpoint of each series that has shards in a segment.
fn of_segment(folder: &Path, name: &str, problems: &mut Problems) -> Result<Vec<Snapshot>, Problem> {
    let stock = Stock::open(folder, name)?;
    let path = stock.segment.path().display().to_string();
    let mut newest: BTreeMap<[String; 3], Vec<(Head, &[u8])>> = BTreeMap::new();
    for slot in stock.segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed) {
        let opened =
            stock.head(slot).and_then(|head| Ok((head, stock.segment.bytes(slot).map_err(|e| e.to_string())?)));
        let (head, bytes) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                problems.add(Problem::damage(format!("{path}: slot {}.{}: {why}", slot.node_rank, slot.index)));
                continue;
            }
        };
        let series = [head.meta.job.clone(), head.meta.group.clone(), head.meta.name.clone()];
        let known = newest.entry(series).or_default();
        let order = |head: &Head| (head.header.key.generation, head.header.key.version, head.header.key.operation);
        match known.first().map(|(first, _)| order(first).cmp(&order(&head))) {
            Some(std::cmp::Ordering::Greater) => continue,
            Some(std::cmp::Ordering::Less) => known.clear(),
            _ => {}
        }
        known.push((head, bytes));
    }
    let mut snapshots = Vec::new();
    for shards in newest.into_values() {
        let mut snapshot = Snapshot::new(format!("memory segment {}", plain(&path)));
        snapshot.path = Some(path.clone());
        for (head, bytes) in shards {
            add_shard(&mut snapshot, &path, &head, body::of_memory(bytes), problems);
        }
        snapshots.push(snapshot.named());
    }
    Ok(snapshots)
}
