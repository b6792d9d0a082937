//! `bivouac verify`: reads everything and checks every header, index, manifest, digest and filling byte.
//!
//! The paths are turned into a list of [`Item`]s, one per file or slot, which a few threads take one by one. Their findings are put in the
//! order of the list, so that the output does not depend on which thread was faster. At the end, what the shards of each checkpoint say
//! about [how its regions are spread over the ranks](dealt) is examined together.
#![forbid(unsafe_code)]

mod dealt;
mod lists;
pub mod tiling;

use crate::body;
use crate::ending::{self, Ending, Problems};
use crate::memory::{self, Stock};
use crate::output::{self, SCHEMA, most, plain, print, print_json};
use crate::places::{named_or_global, nothing_in};
use crate::survey::{Checkpoint, State, is_known, survey};
use crate::target::{Target, place_of, tier_of};
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::sync::Lock;
use bivouac_core::base::units::{MIB, page_ceil};
use bivouac_core::base::{Generation, Rank};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{ContainerEntry, ContainerInfo, Content, Manifest, Region, manifest};
use bivouac_core::redundancy::part::Part;
use bivouac_core::segment::{OldSlot, SegmentError, SlotState};
use bivouac_core::tier::names::{Series, is_parity_file};
use bivouac_core::tier::source::{FileShard, Source};
use bivouac_core::tier::storage::ReadFile;
use bivouac_core::tier::{Tier, TierError, TierId, join, read_whole};
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes per read from a file: a whole number of blocks of any allowed size.
pub const READ_BYTES: u64 = 8 * MIB;
/// The maximum number of findings per shard; a file of noise would give one for each block.
const FINDINGS_MAX: usize = 64;
/// The maximum number of findings that are shown to people.
const SHOWN_MAX: usize = 100;
/// The maximum size of a manifest: it is metadata, for which the format allows 64 MiB.
const MANIFEST_MAX: u64 = 65 << 20;

/// The arguments of `bivouac verify`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac verify bivouac                      everything below a global directory
  bivouac verify -j 8 /scratch/ckpt/heat2d-0c7a11f2/world/heat
  bivouac verify c000000.bvc                  one container, even outside its folder
  bivouac verify --json bivouac | jq '.findings[] | select(.kind == \"damage\") | [.path, .rank, .region, .offset]'

The last lines name, for each series and tier, the newest version that is entirely good there. Damage on one tier does
not mean that a checkpoint is lost: a restart takes the next tier's copy, or the next older version. A checkpoint
without a manifest does not count as damaged, but its files are checked nevertheless. Files are read through
the page cache, so recently written data is checked as the kernel has cached it.
If all shards of a checkpoint are here and good, the command also proves that regions with a decomposition tile their
arrays: each element is in exactly one box, or in exactly one rank's list of numbers (in a sparse array, in at most
one).

Exit status: 0 all good; 1 damage found;
2 wrong usage, or something could not be read (and no damage was found); 3 nothing found.")]
pub struct Args {
    /// Directories, container files, manifests or memory segments [default: the configured global directory]
    paths: Vec<PathBuf>,
    /// The number of files to read at the same time [default: the number of processors, but at most 4]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Something differs from what was written.
    Damage,
    /// The system would not let us look.
    Unreadable,
    /// It is worth knowing, but no fault: an incomplete checkpoint, a file that does not belong here.
    Note,
}

impl Kind {
    fn of(ending: Ending) -> Kind {
        match ending {
            Ending::Damage => Kind::Damage,
            Ending::Good | Ending::Nothing => Kind::Note,
            Ending::Trouble | Ending::Status(_) => Kind::Unreadable,
        }
    }

    /// How a command ends that has made such a finding.
    pub fn ending(self) -> Ending {
        match self {
            Kind::Damage => Ending::Damage,
            Kind::Unreadable => Ending::Trouble,
            Kind::Note => Ending::Good,
        }
    }
}

/// One thing that was found.
#[derive(Serialize, Debug)]
pub struct Finding {
    /// How bad it is.
    pub kind: Kind,
    /// The tier, unless the file is not in a store.
    pub tier: Option<&'static str>,
    /// File, folder or segment.
    pub path: String,
    /// The rank whose shard it is.
    pub rank: Option<u32>,
    /// The region.
    pub region: Option<String>,
    /// Start of the damaged block, from the start of the region.
    pub offset: Option<u64>,
    /// The digest made at capture.
    pub expected: Option<String>,
    /// The digest of the bytes as read.
    pub found: Option<String>,
    /// The whole finding in words.
    pub message: String,
}

impl Finding {
    fn new(kind: Kind, path: &Path, message: impl Into<String>) -> Finding {
        let path = path.display().to_string();
        Finding {
            kind,
            message: message.into(),
            tier: None,
            path,
            rank: None,
            region: None,
            offset: None,
            expected: None,
            found: None,
        }
    }

    fn damage(path: &Path, message: impl Into<String>) -> Finding {
        Finding::new(Kind::Damage, path, message)
    }

    fn on(mut self, tier: TierId) -> Finding {
        self.tier = Some(tier.name());
        self
    }

    /// The whole finding in one line, with the tier first.
    fn line(&self) -> String {
        let message = plain(&output::message(&self.message));
        match self.tier.map(|tier| format!("{tier} tier: ")) {
            Some(tier) if !message.starts_with(&tier) => tier + &message,
            _ => message,
        }
    }

    fn of_rank(mut self, rank: Rank) -> Finding {
        self.rank = Some(rank.0);
        self
    }

    /// The finding for a tier's error.
    fn of(path: &Path, error: &TierError) -> Finding {
        Finding::new(Kind::of(ending::of_tier(error)), path, error.to_string())
    }
}

/// What was examined.
#[derive(Serialize, Default, Clone, Copy, PartialEq, Eq)]
struct Checked {
    checkpoints: u64,
    manifests: u64,
    containers: u64,
    segments: u64,
    shards: u64,
    /// Parity parts of redundancy sets.
    parts: u64,
    blocks: u64,
    bytes: u64,
    /// Arrays for which it was proved that the parts of all ranks tile them.
    arrays: u64,
}

impl Checked {
    fn add(&mut self, other: Checked) {
        self.checkpoints += other.checkpoints;
        self.manifests += other.manifests;
        self.containers += other.containers;
        self.segments += other.segments;
        self.shards += other.shards;
        self.parts += other.parts;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.arrays += other.arrays;
    }
}

/// The document of `verify --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    /// There is no damage, and everything could be read.
    good: bool,
    checked: Checked,
    findings: Vec<Finding>,
    /// The newest good version of each series on each tier.
    newest_good: Vec<Newest>,
    /// Problems of paths at which there was nothing.
    problems: Problems,
}

/// The newest version of a series whose data on a tier are all good.
#[derive(Serialize)]
struct Newest {
    tier: &'static str,
    job: String,
    group: String,
    name: String,
    /// `None`: no version is good.
    version: Option<u64>,
    generation: Option<u64>,
    operation: Option<u64>,
}

/// A checkpoint that was examined.
struct Seen {
    tier: TierId,
    series: Series,
    order: (Generation, u64, u64),
    path: PathBuf,
    /// Could a restart take it, judging by its files and their lengths?
    is_whole: bool,
}

/// The newest good version of each series. The list is sorted by series, the newest first, and the result has its order.
fn newest_good(seen: &[Seen], findings: &[Finding]) -> Vec<Newest> {
    let bad: Vec<&Path> =
        findings.iter().filter(|found| found.kind != Kind::Note).map(|found| Path::new(&found.path)).collect();
    let is_good = |seen: &&Seen| seen.is_whole && !bad.iter().any(|path| path.starts_with(&seen.path));
    let of_series = seen.chunk_by(|a, b| (a.tier, &a.series) == (b.tier, &b.series));
    let newest = of_series.filter_map(|series| Some((series.first()?, series.iter().find(is_good))));
    newest
        .map(|(first, found)| Newest {
            tier: first.tier.name(),
            job: first.series.job.clone(),
            group: first.series.group.clone(),
            name: first.series.name.clone(),
            version: found.map(|found| found.order.1),
            generation: found.map(|found| found.order.0.0),
            operation: found.map(|found| found.order.2),
        })
        .collect()
}

/// What a container is compared with.
#[derive(Clone)]
struct Expected {
    series: Series,
    folder: String,
    /// The manifest of the folder.
    manifest: Option<Arc<Manifest>>,
    /// The container's entry in the manifest.
    record: Option<ContainerInfo>,
    /// Something to which the checkpoint refers is gone; the checkpoint exists only because others refer to it.
    is_held: bool,
}

impl Expected {
    fn new(series: Series, folder: String, manifest: Option<Arc<Manifest>>, file: &Path) -> Expected {
        let is_it = |entry: &&ContainerInfo| file.file_name().is_some_and(|name| name == entry.file.as_str());
        let record = manifest.as_ref().and_then(|whole| whole.containers.iter().find(is_it)).cloned();
        Expected { series, folder, manifest, record, is_held: false }
    }

    /// Does the manifest take this shard (or, without a rank, every shard) from another file? If so, this copy was damaged, and the rank
    /// has received a file of its own since.
    fn is_replaced(&self, file: &Path, rank: Option<Rank>) -> bool {
        let Some(manifest) = self.manifest.as_ref().filter(|manifest| manifest.is_complete()) else { return false };
        let here = |info: &ContainerInfo| file.file_name().is_some_and(|name| name == info.file.as_str());
        match rank {
            Some(rank) => manifest.container_of(rank).is_some_and(|info| !here(info)),
            None => !manifest.containers.iter().any(here),
        }
    }
}

/// One piece of work.
enum Item {
    Container { tier: Arc<dyn Tier>, path: PathBuf, bytes: u64, expected: Option<Expected> },
    Slot { stock: Arc<Stock>, slot: OldSlot },
}

impl Item {
    fn bytes(&self) -> u64 {
        match self {
            Item::Container { bytes, .. } => *bytes,
            Item::Slot { slot, .. } => slot.length,
        }
    }
}

/// The outcome of one item.
#[derive(Default)]
struct Outcome {
    findings: Vec<Finding>,
    checked: Checked,
    /// A shard says how its regions are spread over the ranks.
    has_record: bool,
}

/// The list of work, and what was found while making it.
#[derive(Default)]
struct Plan {
    items: Vec<Item>,
    first: Outcome,
    /// The checkpoints in the list.
    seen: Vec<Seen>,
    /// Problems of paths at which there was nothing.
    problems: Problems,
}

/// Runs `bivouac verify`.
pub fn run(args: &Args) -> Ending {
    let mut plan = Plan::default();
    match named_or_global(&args.paths) {
        Ok(paths) => paths.iter().for_each(|path| plan.add(path)),
        Err(problem) => plan.problems.add(problem),
    }
    plan.problems.complain();
    let jobs = args.jobs.map_or_else(output::jobs_default, usize::from);
    let outcomes = work(&plan.items, jobs, &output::bar(plan.items.iter().map(Item::bytes).sum(), args.json));
    let mut checked = plan.first.checked;
    let proofs: Vec<Finding> =
        dealt::groups(&plan.items, &outcomes).iter().flat_map(|group| dealt::prove(group, &mut checked)).collect();
    let Plan { first: Outcome { mut findings, .. }, seen, mut problems, .. } = plan;
    for outcome in outcomes {
        findings.extend(outcome.findings);
        checked.add(outcome.checked);
    }
    findings.extend(proofs);
    findings.iter().for_each(|finding| problems.note(finding.kind.ending()));
    let ending = problems.ending();
    let newest = newest_good(&seen, &findings);
    if args.json {
        let good = ending <= Ending::Nothing;
        let newest_good = newest;
        print_json(&Document { schema: SCHEMA, command: "verify", good, checked, findings, newest_good, problems });
    } else {
        print(&text(&checked, &findings, &newest));
    }
    ending
}

fn text(checked: &Checked, findings: &[Finding], newest: &[Newest]) -> String {
    let line = |finding: &Finding| {
        let word = match finding.kind {
            Kind::Damage => "damage",
            Kind::Unreadable => "unreadable",
            Kind::Note => "note",
        };
        format!("{word}: {}", finding.line())
    };
    let mut text = String::new();
    // Damage comes first, so that the least important findings are left out.
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by_key(|finding| std::cmp::Reverse(finding.kind.ending()));
    let shown = most(ordered.into_iter().map(line), SHOWN_MAX, "and", "more findings (--json shows all)");
    shown.iter().for_each(|line| text += &format!("{line}\n"));
    let count = |kind| findings.iter().filter(|finding| finding.kind == kind).count();
    let verdict = match (count(Kind::Damage), count(Kind::Unreadable)) {
        (0, 0) if *checked == Checked::default() => "nothing was checked".into(),
        (0, 0) => "all good".into(),
        (0, unreadable) => format!("{unreadable} not readable"),
        (damage, 0) => format!("{damage} damaged"),
        (damage, unreadable) => format!("{damage} damaged, {unreadable} not readable"),
    };
    let arrays = match checked.arrays {
        0 => String::new(),
        arrays => format!("; {arrays} decomposed arrays proved"),
    };
    text += &format!(
        "{verdict}: {} checkpoints, {} manifests, {} containers, {} segments, {} shards, {} parity parts, {} blocks, {}{arrays}\n",
        checked.checkpoints,
        checked.manifests,
        checked.containers,
        checked.segments,
        checked.shards,
        checked.parts,
        checked.blocks,
        output::bytes(checked.bytes)
    );
    for Newest { tier, job, group, name, version, .. } in newest {
        let version = version.map_or_else(|| "none".into(), |version| version.to_string());
        let series = plain(&format!("{job}/{group}/{name}"));
        text += &format!("newest good version: {version} ({tier} tier, {series})\n");
    }
    text
}

/// Lets `jobs` threads take items until none is left; the outcomes are in the order of the items.
fn work(items: &[Item], jobs: usize, bar: &ProgressBar) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Lock<Vec<(usize, Outcome)>> = Lock::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let outcome = check(item, bar);
                    outcomes.lock().push((index, outcome));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

// ------------------------------------------------------------------------------------------- the list of work

impl Plan {
    fn find(&mut self, finding: Finding) {
        self.first.findings.push(finding);
    }

    fn add(&mut self, path: &Path) {
        match Target::of(path) {
            Err(error) => self.find(Finding::new(Kind::Unreadable, path, error.to_string())),
            Ok(Target::Scope(scope)) => match survey(&scope) {
                Err(error) => self.find(Finding::new(Kind::Unreadable, path, error.to_string())),
                Ok((checkpoints, problems)) => {
                    if checkpoints.is_empty() && problems.is_empty() {
                        self.problems.add(nothing_in(path));
                    }
                    for problem in problems {
                        self.find(Finding::new(Kind::Unreadable, path, problem));
                    }
                    checkpoints.iter().for_each(|checkpoint| self.add_checkpoint(checkpoint));
                }
            },
            Ok(Target::Container(path)) => {
                let tier = tier_of(&path);
                let expected = place_of(&path).map(|(series, folder)| {
                    // The state of the manifest does not matter here.
                    let manifest = tier.read_manifest(&series, &folder).ok().map(Arc::new);
                    Expected::new(series, folder, manifest, &path)
                });
                let bytes = path.metadata().map_or(0, |metadata| metadata.len());
                self.items.push(Item::Container { tier, path, bytes, expected });
            }
            Ok(Target::Manifest(path)) => self.add_manifest(&path),
            Ok(Target::Segment(folder, name)) => self.add_segment(&folder, &name),
            Ok(Target::Segments(folder)) => match memory::names(&folder) {
                Ok(names) => names.iter().for_each(|name| self.add_segment(&folder, name)),
                Err(error) => self.find(Finding::new(Kind::Unreadable, &folder, error.to_string())),
            },
        }
    }

    fn add_checkpoint(&mut self, checkpoint: &Checkpoint) {
        self.first.checked.checkpoints += 1;
        let Checkpoint { tier, series, folder, path, .. } = checkpoint;
        self.seen.push(Seen {
            tier: tier.kind(),
            series: series.clone(),
            order: checkpoint.order,
            path: path.clone(),
            is_whole: matches!(checkpoint.state, State::Committed | State::Restorable),
        });
        let whole = checkpoint.manifest.clone().map(Arc::new);
        let manifest_path = path.join(manifest::FILE_NAME);
        match (&checkpoint.state, &whole) {
            (State::Damaged, None) => self.add_bad_manifest(tier, series, folder, &manifest_path),
            (State::Restorable | State::Incomplete, _) => {
                let why = checkpoint.why.clone().unwrap_or_default();
                let message = format!("{} is {}: {why}", path.display(), checkpoint.state.name());
                self.find(Finding::new(Kind::Note, path, message).on(tier.kind()));
            }
            _ => {}
        }
        if let Some(whole) = &whole {
            self.first.checked.manifests += 1;
            if tier.kind().spec().is_shared && !whole.is_complete() {
                let message = format!("{} does not name all ranks of the group", manifest_path.display());
                self.find(Finding::damage(&manifest_path, message).on(tier.kind()));
            }
            for record in &whole.containers {
                if !checkpoint.files.iter().any(|file| file.name == record.file && !file.is_odd) {
                    let file = path.join(&record.file);
                    let ranks = output::ranks(record.ranks.iter().map(|rank| rank.0));
                    let message = format!("{} is missing, with the shards of ranks {ranks}", file.display());
                    self.find(Finding::damage(&file, message).on(tier.kind()));
                }
            }
        }
        for file in &checkpoint.files {
            let path = path.join(&file.name);
            if !is_known(file) {
                let message = format!("{} does not belong here", path.display());
                self.find(Finding::new(Kind::Note, &path, message).on(tier.kind()));
            }
            if !file.is_container() && !file.is_part() {
                continue;
            }
            let is_held = checkpoint.state == State::Held;
            let expected = Expected { is_held, ..Expected::new(series.clone(), folder.clone(), whole.clone(), &path) };
            let expected = Some(expected);
            self.items.push(Item::Container { tier: tier.clone(), path, bytes: file.bytes, expected });
        }
    }

    fn add_bad_manifest(&mut self, tier: &Arc<dyn Tier>, series: &Series, folder: &str, path: &Path) {
        match tier.read_manifest(series, folder) {
            Err(error) => self.find(Finding::of(path, &error).on(tier.kind())),
            // The manifest was damaged a moment ago: somebody has just written it again.
            Ok(_) => self.first.checked.manifests += 1,
        }
    }

    fn add_manifest(&mut self, path: &Path) {
        let checked = match place_of(path) {
            None => decode_manifest(path).map(drop),
            Some((series, folder)) => tier_of(path)
                .read_manifest(&series, &folder)
                .map(drop)
                .map_err(|error| Box::new(Finding::of(path, &error).on(tier_of(path).kind()))),
        };
        match checked {
            Ok(()) => self.first.checked.manifests += 1,
            Err(finding) => self.find(*finding),
        }
    }

    fn add_segment(&mut self, folder: &Path, name: &str) {
        let path = folder.join(name);
        let stock = match Stock::open(folder, name) {
            Ok(stock) => Arc::new(stock),
            Err(error) => {
                let kind = match &error {
                    SegmentError::Unfinished { .. } => Kind::Note,
                    error => Kind::of(ending::of_segment(error)),
                };
                return self.find(Finding::new(kind, &path, error.to_string()).on(TierId::MEMORY));
            }
        };
        self.first.checked.segments += 1;
        for slot in stock.segment.slots() {
            match slot.state {
                SlotState::Sealed => self.items.push(Item::Slot { stock: stock.clone(), slot: *slot }),
                SlotState::Writing if !stock.is_alive => {
                    let (rank, index) = (slot.node_rank, slot.index);
                    let message = format!("slot {index} of node rank {rank} in {} was never finished", path.display());
                    self.find(Finding::new(Kind::Note, &path, message).on(TierId::MEMORY));
                }
                _ => {}
            }
        }
    }
}

/// Reads a manifest that may be anywhere.
///
/// # Errors
/// A finding that says what is wrong.
pub fn decode_manifest(path: &Path) -> Result<Manifest, Box<Finding>> {
    let tier = tier_of(path);
    let bytes = tier
        .open(path)
        .and_then(|file| read_whole(&*file, MANIFEST_MAX))
        .map_err(|source| Box::new(Finding::of(path, &TierError::io(tier.kind(), "read", path, source))))?;
    Manifest::decode(&bytes).map_err(|error| Box::new(Finding::damage(path, format!("{}: {error}", path.display()))))
}

// ------------------------------------------------------------------------------------------- checking one item

fn check(item: &Item, bar: &ProgressBar) -> Outcome {
    let mut outcome = Outcome::default();
    match item {
        Item::Container { tier, path, expected, .. } => {
            if let Err(finding) = check_container(tier, path, expected.as_ref(), &mut outcome, bar) {
                outcome.findings.push(*finding);
            }
            let is_replaced = |rank: Option<u32>| {
                expected.as_ref().is_some_and(|expected| expected.is_replaced(path, rank.map(Rank)))
            };
            for finding in outcome.findings.iter_mut().filter(|finding| is_replaced(finding.rank)) {
                finding.kind = Kind::Note;
                finding.message += " (the manifest names another copy)";
            }
            let tier = expected.is_some().then(|| tier.kind().name());
            outcome.findings.iter_mut().for_each(|finding| finding.tier = tier);
        }
        Item::Slot { stock, slot } => {
            check_slot(stock, slot, &mut outcome, bar);
            outcome.findings.iter_mut().for_each(|finding| finding.tier = Some(TierId::MEMORY.name()));
        }
    }
    outcome
}

fn check_container(
    tier: &Arc<dyn Tier>,
    path: &Path,
    expected: Option<&Expected>,
    outcome: &mut Outcome,
    bar: &ProgressBar,
) -> Result<(), Box<Finding>> {
    outcome.checked.containers += 1;
    let wrong = |error: TierError| Box::new(Finding::of(path, &error));
    let record = expected.and_then(|expected| expected.record.as_ref());
    let (container, file) = tier.open_container(path).map_err(|error| {
        let mut finding = wrong(error);
        finding.message += &lengths(path, record);
        finding
    })?;
    let file: Arc<dyn ReadFile> = file.into();
    let named = expected.and_then(|expected| expected.manifest.as_ref().zip(expected.record.as_ref()));
    if let Some((manifest, record)) = named {
        let ranks: BTreeSet<Rank> = container.entries.iter().map(|entry| entry.rank).collect();
        let has_all = record.ranks.iter().all(|rank| ranks.contains(rank));
        // If a rank's part of its node's container was damaged, the rank may have received a file of its own, which the manifest names.
        let is_known = |rank: &Rank| manifest.container_of(*rank).is_some();
        let length = file.len().map_err(|source| wrong(TierError::io(tier.kind(), "read", path, source)))?;
        if !has_all || !ranks.iter().all(is_known) || length != record.bytes {
            let message = format!(
                "{} is not the container that the manifest names{}",
                path.display(),
                lengths(path, Some(record))
            );
            outcome.findings.push(Finding::damage(path, message));
        }
    }
    for entry in &container.entries {
        let shard = match FileShard::open_any(tier.kind(), path.to_owned(), file.clone(), entry) {
            Ok(shard) => shard,
            Err(error) => {
                outcome.findings.push(Finding::of(path, &error).of_rank(entry.rank));
                continue;
            }
        };
        check_shard(tier, path, expected, (entry, shard), outcome, bar);
    }
    Ok(())
}

/// Checks a shard that is at an entry of a container.
fn check_shard(
    tier: &Arc<dyn Tier>,
    path: &Path,
    expected: Option<&Expected>,
    (entry, shard): (&ContainerEntry, FileShard),
    outcome: &mut Outcome,
    bar: &ProgressBar,
) {
    let known = outcome.findings.len();
    let header = &shard.head().header;
    if (header.key, header.rank) != (entry.key, entry.rank) {
        let message = format!(
            "{}: the shard of rank {} holds rank {} of {}",
            path.display(),
            entry.rank,
            header.rank,
            header.key
        );
        outcome.findings.push(Finding::damage(path, message).of_rank(entry.rank));
    }
    if let Some(why) = why_no_part(path, &shard) {
        outcome.findings.push(Finding::damage(path, why).of_rank(entry.rank));
    }
    if let Some(why) = expected.and_then(|expected| why_foreign(expected, shard.head())) {
        let message = format!("{}: rank {}: {why}", path.display(), entry.rank);
        outcome.findings.push(Finding::damage(path, message).of_rank(entry.rank));
    }
    let mut buffer = Vec::new();
    let read = |at: u64, length: u64, look: &mut dyn FnMut(&[u8])| {
        buffer.resize(length as usize, 0);
        shard.read_raw(at, &mut buffer)?;
        look(&buffer);
        Ok(())
    };
    check_bodies(path, shard.head(), read, outcome, bar);
    let whole = match shard.head().header.content {
        Content::Shard => Some(shard),
        Content::Packed if !expected.is_some_and(|expected| expected.is_held) => {
            check_join(&**tier, path, shard, outcome)
        }
        Content::Packed | Content::Parity => None,
    };
    if let Some(whole) = whole.filter(|_| outcome.findings.len() == known) {
        dealt::check_record(path, whole.head(), body::of_file(&whole), outcome);
    }
}

/// Checks that a packed shard, joined with what it refers to, is the one that was captured. Returns the joined shard.
fn check_join(tier: &dyn Tier, path: &Path, shard: FileShard, outcome: &mut Outcome) -> Option<FileShard> {
    let rank = shard.head().header.rank;
    let joined = join(tier, shard).and_then(|joined| Source::File(joined.clone()).verify(|_| ()).map(|()| joined));
    joined.map_err(|error| outcome.findings.push(Finding::of(path, &error).of_rank(rank))).ok()
}

/// The length of a file and, if its manifest says that it should have another one, that one. Without a manifest, only
/// the length is known.
fn lengths(path: &Path, record: Option<&ContainerInfo>) -> String {
    let Ok(found) = path.metadata().map(|metadata| metadata.len()) else { return String::new() };
    match record.map(|record| record.bytes) {
        Some(expected) if expected == found => String::new(),
        Some(expected) => format!("; it has {found} bytes instead of {expected}"),
        None => format!("; it has {found} bytes"),
    }
}

/// A parity part has a file of its own and describes its set; such a file holds nothing else.
fn why_no_part(path: &Path, shard: &FileShard) -> Option<String> {
    let is_part = shard.head().header.content == Content::Parity;
    let is_named = path.file_name().and_then(|name| name.to_str()).is_some_and(is_parity_file);
    let path = path.display();
    match (is_part, is_named) {
        (false, true) => Some(format!("{path} holds a shard, but its name says parity")),
        (true, false) => Some(format!("{path} holds a parity part where a shard belongs")),
        (false, false) => None,
        (true, true) => Part::open(Source::File(shard.clone())).err().map(|error| error.to_string()),
    }
}

/// Does the shard belong to its place, and to the manifest that names it?
fn why_foreign(expected: &Expected, head: &Head) -> Option<String> {
    let (meta, header) = (&head.meta, &head.header);
    let Series { job, group, name } = &expected.series;
    let is_here = (&meta.job, &meta.group, &meta.name) == (job, group, name) && header.key.folder() == expected.folder;
    if !is_here {
        return Some(format!("the shard here belongs to {}/{}/{} {}", meta.job, meta.group, meta.name, header.key));
    }
    let manifest = expected.manifest.as_ref().filter(|_| expected.record.is_some())?;
    let found = (header.key, header.agreement, header.group_size, header.origin);
    (found != (manifest.key, manifest.agreement, manifest.group_size, manifest.origin))
        .then(|| "incarnation, agreement, group size or origin differ from the manifest".into())
}

fn check_slot(stock: &Stock, slot: &OldSlot, outcome: &mut Outcome, bar: &ProgressBar) {
    let path = stock.segment.path();
    let place = format!("slot {} of node rank {} in {}", slot.index, slot.node_rank, path.display());
    let opened = stock.segment.bytes(slot).map_err(|error| error.to_string());
    let (bytes, head) = match opened.and_then(|bytes| stock.head(slot).map(|head| (bytes, head))) {
        Ok(opened) => opened,
        Err(why) => return outcome.findings.push(Finding::damage(path, format!("{place}: {why}"))),
    };
    if (head.header.key.version, head.header.key.operation) != (slot.version, slot.operation) {
        outcome.findings.push(Finding::damage(path, format!("{place}: it holds {}", head.header.key)));
    }
    // The slot has the length of the shard, and the head keeps all offsets within that length.
    let read = |at: u64, length: u64, look: &mut dyn FnMut(&[u8])| {
        look(&bytes[at as usize..(at + length) as usize]);
        Ok(())
    };
    let known = outcome.findings.len();
    check_bodies(path, &head, read, outcome, bar);
    if head.header.content == Content::Shard && outcome.findings.len() == known {
        dealt::check_record(path, &head, body::of_memory(bytes), outcome);
    }
}

/// Checks all blocks of a shard, and that the rest of the last page of each region is zero.
fn check_bodies(
    path: &Path,
    head: &Head,
    mut read: impl FnMut(u64, u64, &mut dyn FnMut(&[u8])) -> Result<(), TierError>,
    outcome: &mut Outcome,
    bar: &ProgressBar,
) {
    match head.header.content {
        Content::Shard | Content::Packed => outcome.checked.shards += 1,
        Content::Parity => outcome.checked.parts += 1,
    }
    outcome.checked.bytes += head.header.total_len;
    let known = outcome.findings.len();
    bar.inc(head.header.body_offset);
    for region in &head.meta.regions {
        let (start, length) = (head.header.body_offset + region.offset, page_ceil(region.bytes));
        let mut at = 0;
        while at < length {
            let part = READ_BYTES.min(length - at);
            let mut found = Vec::new();
            let mut look = |bytes: &[u8]| found = damaged_blocks(path, head, region, at, bytes);
            if let Err(error) = read(start + at, part, &mut look) {
                return outcome.findings.push(Finding::of(path, &error).of_rank(head.header.rank));
            }
            outcome.findings.append(&mut found);
            if outcome.findings.len() - known >= FINDINGS_MAX {
                let message = format!(
                    "{}: rank {}: and more; the rest of the shard was not read",
                    path.display(),
                    head.header.rank
                );
                return outcome.findings.push(Finding::damage(path, message).of_rank(head.header.rank));
            }
            bar.inc(part);
            at += part;
        }
        outcome.checked.blocks += region.blocks(u64::from(head.header.block_size));
    }
}

/// Checks the blocks of a region that `bytes` holds. These begin at byte `at` of the region, which is the start of a block.
pub fn damaged_blocks(path: &Path, head: &Head, region: &Region, at: u64, bytes: &[u8]) -> Vec<Finding> {
    let block = u64::from(head.header.block_size);
    let (rank, name) = (head.header.rank, output::short(&region.name));
    let data = (region.bytes.saturating_sub(at)).min(bytes.len() as u64) as usize;
    let (data, filling) = bytes.split_at(data);
    let mut findings = Vec::new();
    for (bytes, index) in data.chunks(block as usize).zip(at / block..) {
        let (found, expected) = (digest_bytes(bytes), head.digests[(region.first_block + index) as usize]);
        if found != expected {
            let offset = index * block;
            let message = format!(
                "{}: region {name:?} of rank {rank} is damaged at byte {offset}: digest {found}, expected {expected}",
                path.display()
            );
            findings.push(Finding {
                region: Some(region.name.clone()),
                offset: Some(offset),
                expected: Some(expected.to_string()),
                found: Some(found.to_string()),
                ..Finding::damage(path, message).of_rank(rank)
            });
        }
    }
    if filling.iter().any(|byte| *byte != 0) {
        let message = format!(
            "{}: the padding after region {name:?} of rank {rank} is not zero (the data is not affected)",
            path.display()
        );
        let finding = Finding::damage(path, message).of_rank(rank);
        findings.push(Finding { region: Some(region.name.clone()), offset: Some(region.bytes), ..finding });
    }
    findings
}
