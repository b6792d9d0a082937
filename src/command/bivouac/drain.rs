//! `bivouac drain`: copies what a dead job left on this node to the global tier.
//!
//! The command is run on every surviving node, at the same time or one after the other. [`bivouac_core::recovery::drain`] explains
//! what is copied and why several nodes can copy at once. This module finds out where to look and whether the job is dead, and puts
//! the outcome into words.
#![forbid(unsafe_code)]

use crate::ending::{Ending, Problem, Problems};
use crate::living::{self, claimed, claims, is_job, no_job};
use crate::output::{self, KeyView, SCHEMA, complain, plain, show};
use crate::places::{
    local_directories, local_names, named_or_configured, no_store, own_local, own_store, own_tier, store_root,
};
use bivouac_core::Config;
use bivouac_core::base::clock::SystemClock;
use bivouac_core::base::ids::text_hash;
use bivouac_core::base::units::parse_duration;
use bivouac_core::base::{Clock, Generation, Incarnation, Rank};
use bivouac_core::recovery::drain::{
    Chosen, Collected, Damage, Drain, Drained, Fate, SegmentSeen, Which, collect, host_tag, select,
};
use bivouac_core::tier::claims::Claims;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::{Tier, TierId};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often `--wait` checks whether the other nodes are done.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The arguments of `bivouac drain`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac drain --global /scratch/me/run7               this node, all dead jobs that have used this store
  bivouac drain --dry-run --job heat2d                  only show what would be copied
  srun --ntasks-per-node=1 bivouac drain --job heat2d --wait 10min          all nodes of an allocation (in the batch script)
  mpirun -npernode 1 sh -c 'bivouac drain --job heat2d --wait 10min || true'      without SLURM; mpirun ends all processes when one fails
  runuser -u \"$SLURM_JOB_USER\" -- bivouac drain --global /scratch/me/run7   in a SLURM epilog, which runs as root on each node

The command looks for shards of any rank in this node's memory segments and on its local tier. It writes each shard
into the checkpoint's folder in the global directory, unless a good copy is already there. Every digest is checked.
The last node to copy its shards completes the checkpoint, and the next run of the job restarts from it. Several nodes
may run the command at the same time. If it is killed, it can be started again.

If shards are missing from the global directory, parity parts that cover them are copied as well. When the shards of a
lost node can be rebuilt from the files there, the shards are rebuilt by the first process that notices this, which then
removes the parts.

For each series, the command takes the newest version that this node knows to be committed in memory, the newest one
on the local tier, everything that was taken after these, and older versions that may survive the loss of a node
because something is kept here for other nodes. In this way, all nodes take a version that they all have, if there is
one, and the newest version that is available without a lost node. --all takes everything.

A job with a run that is alive is refused. Nothing is removed from the node, so a copy that stays behind is never lost
(see `bivouac clean`).

Exit status: 0 everything that this node has is in the global directory; 1 something is damaged or could not be
written, or a checkpoint is still incomplete (with --wait); 2 wrong usage, something cannot be read, or the command
refused; 3 neither this node nor the global directory knows the job or the series that was named. The status is also 0
if the node has nothing to copy.")]
pub struct Args {
    /// The global directory [default: the configured one, from BIVOUAC_CONFIG and the BIVOUAC_… variables]
    #[arg(long, value_name = "DIR")]
    global: Option<PathBuf>,
    /// The folder of this node's memory segments [default: the configured memory.directory]
    #[arg(long, value_name = "DIR")]
    memory: Option<PathBuf>,
    /// A directory of the local tier; may be given several times [default: the configured local.directory, or the
    /// private folder below the temporary directory]
    #[arg(long, value_name = "DIR")]
    local: Vec<PathBuf>,
    /// Take only the job with this name or key (`bivouac ls` shows the key). It may be a job that has never used this
    /// global directory
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Take only the series with this name
    #[arg(long)]
    name: Option<String>,
    /// Take the newest committed version of each series, what was taken after it, and what may survive the loss of
    /// nodes (the default)
    #[arg(long, conflicts_with = "all")]
    newest: bool,
    /// Take every version that this node has
    #[arg(long)]
    all: bool,
    /// The number of shards to copy at the same time [default: the number of processors, but at most 4]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: Option<u16>,
    /// If the head of a shard in the global directory is good, accept the shard without reading its data
    #[arg(long)]
    quick: bool,
    /// Wait this long for the shards of other nodes; if a checkpoint is still incomplete then, the exit status is 1
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Create the global directory if it does not exist yet. Without this option, a directory that is not a store is an
    /// error, because its file system may not be mounted
    #[arg(long)]
    create: bool,
    /// Also take jobs with a run that seems to be alive, such as a run on a host that was cut off, or the next run. That
    /// run is not disturbed, but it may delete what is being read or written
    #[arg(long, alias = "take-over")]
    even_alive: bool,
    /// Only say what would be copied
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "not a time such as 90s, 10min or 2h".into())
}

/// The document of `drain --json`.
#[derive(Serialize, Default)]
struct Document {
    schema: u32,
    command: &'static str,
    dry_run: bool,
    global: String,
    memory: String,
    local: Vec<String>,
    /// The checkpoints that were to be copied, the newest first.
    checkpoints: Vec<Row>,
    /// Jobs that were left alone, and why.
    skipped: Vec<Skipped>,
    /// Parity parts that were seen.
    parity: usize,
    /// Parity parts that cannot be used, and why.
    unusable_parity: Vec<String>,
    /// Bytes written.
    bytes: u64,
    /// Whatever is damaged or missing and could not be replaced.
    damage: Vec<String>,
    /// What could not be read, was refused, or was not there.
    problems: Problems,
}

/// A job that was left alone.
#[derive(Serialize)]
pub struct Skipped {
    /// Its key.
    pub job: String,
    /// Why.
    pub why: String,
}

/// One checkpoint of the document.
#[derive(Serialize)]
pub struct Row {
    /// Which checkpoint it is.
    #[serde(flatten)]
    pub key: KeyView,
    incarnation: String,
    group_size: u32,
    /// Its folder on the global tier.
    path: String,
    /// Ranks whose shards were copied, or, in a dry run, would be copied.
    copied: Vec<u32>,
    /// Ranks whose shards were on the global tier already and are good.
    there: Vec<u32>,
    /// Ranks whose lost shards were rebuilt from their sets or from damaged copies, or, in a dry run, could be rebuilt.
    rebuilt: Vec<u32>,
    /// Parity parts that were copied to the global tier for a rebuild there.
    parts: usize,
    /// Ranks whose shards were found here but could not be copied.
    lost: Vec<Lost>,
    /// Ranks whose shards are not on the global tier, as the first and last rank of each range.
    pub missing: Vec<[u32; 2]>,
    /// All shards and the manifest are on the global tier.
    pub complete: bool,
    /// Bytes written.
    pub bytes: u64,
    /// Why it could not be completed.
    error: Option<String>,
}

#[derive(Serialize)]
struct Lost {
    rank: u32,
    /// `damaged`, `not-written` or `refused`.
    kind: &'static str,
    why: Vec<String>,
}

/// Where to look, and where to copy to.
struct Places {
    global: Arc<dyn Tier>,
    memory: PathBuf,
    locals: Vec<Arc<dyn Tier>>,
    write_bytes: u64,
}

/// Runs `bivouac drain`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document { schema: SCHEMA, command: "drain", dry_run: args.dry_run, ..Default::default() };
    let is_short = match drain(args, &mut document) {
        Ok(is_short) => is_short,
        Err(problem) => {
            document.problems.add(problem);
            false
        }
    };
    document.problems.complain();
    if is_short || !document.damage.is_empty() {
        document.problems.note(Ending::Damage);
    }
    show(args.json, &document, text);
    document.problems.ending()
}

/// Rebuilds what is missing on the global tier, if all of it can be rebuilt.
fn mend_if_possible(drain: &Drain<'_>, drained: &mut Drained, jobs: usize, progress: &(dyn Fn(u64) + Sync)) {
    if !is_complete(drained) && drain.lacking(drained).is_ok_and(|lacking| lacking.is_empty()) {
        drain.mend(drained, jobs, progress);
    }
}

/// Returns true if a checkpoint that was waited for is still incomplete.
fn drain(args: &Args, document: &mut Document) -> Result<bool, String> {
    let places = places(args)?;
    document.global = places.global.root().display().to_string();
    document.memory = places.memory.display().to_string();
    document.local = places.locals.iter().map(|tier| tier.root().display().to_string()).collect();
    let mut collected = look(args, &places, document);
    document.parity = collected.parts.len();
    document.unusable_parity = std::mem::take(&mut collected.bad_parts);
    document.problems.extend(std::mem::take(&mut collected.problems));
    let segments = std::mem::take(&mut collected.segments);
    let which = if args.all { Which::All } else { Which::Newest };
    let (mut chosen, loose) = select(collected, which);
    if !args.even_alive {
        refuse_living(&places.global, &segments, &mut chosen, &mut document.problems);
    }
    if !args.dry_run {
        chosen = record_runs(&places.global, chosen, &mut document.damage);
    }
    let drain = Drain {
        global: &places.global,
        host: host_tag(&living::host()),
        unique: format!("{}-{}", std::process::id(), &living::me("bivouac drain").incarnation[..8]),
        is_quick: args.quick,
        is_dry: args.dry_run,
        write_bytes: places.write_bytes,
    };
    let first = |copies: &Vec<bivouac_core::recovery::drain::Piece>| copies.first().map_or(0, |piece| piece.bytes);
    let total = chosen.iter().flat_map(|chosen| chosen.pieces.values().map(first)).sum();
    let bar = output::bar(total, args.json);
    let jobs = args.parallel.map_or_else(output::jobs_default, usize::from);
    let mut drained = drain.run(chosen, jobs, &|bytes| bar.inc(bytes));
    for at in 0..drained.len() {
        if is_open(&drained, at, which) {
            drain.bring_parts(&mut drained[at], &|bytes| bar.inc(bytes));
            drain.settle(&mut drained[at]);
            mend_if_possible(&drain, &mut drained[at], jobs, &|bytes| bar.inc(bytes));
        }
    }
    bar.finish_and_clear();
    let mut is_short = args.wait.is_some_and(|limit| !wait(&drain, &mut drained, which, limit));
    if is_short {
        // The process that was to do this may have been killed.
        drained.iter_mut().for_each(|drained| mend_if_possible(&drain, drained, jobs, &|_| ()));
        is_short = (0..drained.len()).any(|at| is_open(&drained, at, which));
    }
    drained.iter().filter(|drained| is_complete(drained)).for_each(|drained| drain.remove_parts(drained));
    report(document, &drained, &loose, &places.global);
    Ok(is_short && !args.dry_run)
}

// ------------------------------------------------------------------------------------------- where

fn places(args: &Args) -> Result<Places, String> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let root = args.global.clone().unwrap_or_else(|| named_or_configured(&config));
    let root = store_root(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let global = own_store(&root, &config)?;
    let store = find_store(args.create, args.dry_run, &*global)?;
    let mut locals = Vec::new();
    for directory in &args.local {
        locals.extend(own_local(directory, &local_names(store, args.job.as_deref()))?);
    }
    if args.local.is_empty() {
        locals = local_directories(&config, &root, store, args.job.as_deref())?;
    }
    let mut tiers = Vec::new();
    for local in locals {
        if is_same(&local, &root) {
            return Err(format!("{} is given both as the global and as a local directory", local.display()));
        }
        let storage = Arc::new(PosixStorage::new(config.node.local_direct));
        tiers.push(Arc::new(own_tier(TierId::LOCAL, storage, local)?) as Arc<dyn Tier>);
    }
    Ok(Places {
        global,
        memory: args.memory.clone().unwrap_or(config.node.memory_directory),
        locals: tiers,
        write_bytes: config.node.write_bytes,
    })
}

/// Are these two the same directory?
pub fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().ok().is_some_and(|one| other.canonicalize().ok() == Some(one))
}

/// The id of the store. A directory without one is made into a store only if the user says so.
///
/// # Errors
/// The id cannot be read or created, or the directory is not a store.
pub fn find_store(create: bool, dry_run: bool, tier: &dyn Tier) -> Result<Option<Incarnation>, String> {
    match tier.find_store().map_err(|error| error.to_string())? {
        Some(id) => Ok(Some(id)),
        None if create && dry_run => Ok(None),
        None if create => {
            let fresh = bivouac_core::base::rng::incarnation()
                .map_err(|error| format!("cannot get random numbers: {error}"))?;
            tier.hold_store(fresh, &SystemClock::default()).map(Some).map_err(|error| error.to_string())
        }
        None => Err(format!("{}, or --create to create the store", no_store(tier.root()))),
    }
}

// ------------------------------------------------------------------------------------------- what

/// Was nothing found of what was wanted?
fn is_empty(collected: &Collected) -> bool {
    collected.pieces.is_empty() && collected.parts.is_empty() && collected.damage.is_empty()
}

fn look(args: &Args, places: &Places, document: &mut Document) -> Collected {
    for tier in places.locals.iter().filter(|tier| !tier.root().exists()) {
        complain(&format!("nothing there: {} does not exist", tier.root().display()));
    }
    let wanted = Wanted::new(&places.global, args.job.as_deref(), args.name.as_deref());
    let collected = collect(&places.memory, &places.locals, &|series| wanted.is(series));
    if is_empty(&collected)
        && let Some(problem) = wanted.unknown()
    {
        document.problems.add(problem);
    }
    document.skipped.append(&mut wanted.skipped());
    collected
}

/// The series that the user means.
pub struct Wanted<'a> {
    global: &'a Arc<dyn Tier>,
    job: Option<&'a str>,
    name: Option<&'a str>,
    strangers: RefCell<BTreeSet<String>>,
}

impl<'a> Wanted<'a> {
    /// Selects the series of `job`, or of all jobs that the store knows, with the name `name`, or with any name.
    pub fn new(global: &'a Arc<dyn Tier>, job: Option<&'a str>, name: Option<&'a str>) -> Wanted<'a> {
        Wanted { global, job, name, strangers: RefCell::default() }
    }

    /// Does the user mean this series?
    pub fn is(&self, series: &Series) -> bool {
        if self.name.is_some_and(|name| name != series.name) {
            return false;
        }
        match self.job {
            Some(job) => is_job(&series.job, job),
            None if claims(&**self.global, &series.job, &series.group).is_some() => true,
            None => {
                self.strangers.borrow_mut().insert(series.job.clone());
                false
            }
        }
    }

    /// The complaint if nothing was found of what the user named; `None` if the store knows it, or if the user named nothing.
    fn unknown(&self) -> Option<Problem> {
        let places = format!("this node, and in {}", self.global.root().display());
        let meant = |job: &String| self.job.is_none_or(|meant| is_job(job, meant));
        match (self.job, self.name) {
            (_, Some(name)) => {
                let mut known = self.global.all_series().unwrap_or_default().into_iter();
                let is_known = known.any(|series| series.name == name && meant(&series.job));
                (!is_known)
                    .then(|| Problem::nothing(format!("there is no series {:?} on {places}", output::short(name))))
            }
            (Some(job), None) => {
                let is_known = self.global.components(self.global.root()).unwrap_or_default().iter().any(meant);
                (!is_known).then(|| no_job(job, &places))
            }
            (None, None) => None,
        }
    }

    /// The jobs that were skipped because the store does not know them.
    pub fn skipped(self) -> Vec<Skipped> {
        let why = "it has never used this global directory; --job includes it nevertheless";
        self.strangers.into_inner().into_iter().map(|job| Skipped { job, why: why.into() }).collect()
    }
}

type Job = (String, String);

fn job_of(series: &Series) -> Job {
    (series.job.clone(), series.group.clone())
}

/// Leaves out the checkpoints of jobs that may have a living run.
pub fn refuse_living(
    global: &Arc<dyn Tier>,
    segments: &[SegmentSeen],
    chosen: &mut Vec<Chosen>,
    problems: &mut Problems,
) {
    let here = |job: &str, group: &str| {
        let (job, group) = (text_hash(job), text_hash(group));
        let alive = segments.iter().find(|seen| seen.is_alive && (seen.job, seen.group) == (job, group))?;
        let (generation, path) = (alive.generation, alive.path.display());
        Some(format!(
            "its job has a living run, generation {generation}, with the memory segment {path}. Wait for it to end"
        ))
    };
    let jobs: BTreeSet<Job> = chosen.iter().map(|chosen| job_of(&chosen.series)).collect();
    for (job, group) in jobs {
        if let Some(why) = here(&job, &group).or_else(|| claimed(&**global, &job, &group, "bivouac drain")) {
            problems.add(format!("{job}/{group} is left alone: {why}; --even-alive includes it nevertheless"));
            chosen.retain(|chosen| job_of(&chosen.series) != (job.clone(), group.clone()));
        }
    }
}

/// Ensures that no later run takes the numbers of the runs whose checkpoints are copied here. Leaves out the
/// checkpoints of groups for which this cannot be recorded.
pub fn record_runs(tier: &Arc<dyn Tier>, chosen: Vec<Chosen>, damage: &mut Vec<String>) -> Vec<Chosen> {
    let mut newest: BTreeMap<Job, Generation> = BTreeMap::new();
    for chosen in &chosen {
        let generation = newest.entry(job_of(&chosen.series)).or_default();
        *generation = chosen.candidate.key.generation.max(*generation);
    }
    let mut failed = BTreeSet::new();
    for ((job, group), used) in newest {
        let claims = Claims::new(tier.kind(), tier.records(), tier.root(), &job, &group);
        if let Err(error) = claims.record_used(used, &living::me("bivouac drain"), &SystemClock::default()) {
            damage.push(format!("{job}/{group} is not drained: {error}"));
            failed.insert((job, group));
        }
    }
    chosen.into_iter().filter(|chosen| !failed.contains(&job_of(&chosen.series))).collect()
}

/// Is there anything left to do for this checkpoint? The checkpoints are sorted, the newest first: an incomplete one is of no use if a
/// newer one of its series is complete.
fn is_open(drained: &[Drained], at: usize, which: Which) -> bool {
    let series = &drained[at].chosen.series;
    let is_passed = |newer: &Drained| newer.chosen.series == *series && is_complete(newer);
    !is_complete(&drained[at]) && (which == Which::All || !drained[..at].iter().any(is_passed))
}

/// Waits until all checkpoints are complete. Returns false if some are not when the time is up.
fn wait(drain: &Drain<'_>, drained: &mut [Drained], which: Which, limit: Duration) -> bool {
    let clock = SystemClock::default();
    loop {
        let open: Vec<usize> = (0..drained.len()).filter(|at| is_open(drained, *at, which)).collect();
        open.iter().for_each(|at| drain.settle(&mut drained[*at]));
        if !(0..drained.len()).any(|at| is_open(drained, at, which)) {
            return true;
        }
        if clock.now() >= limit || drain.is_dry {
            return false;
        }
        clock.sleep(LOOK_AGAIN.min(limit));
    }
}

/// Is the checkpoint complete on the global tier?
pub fn is_complete(drained: &Drained) -> bool {
    drained.standing.as_ref().is_ok_and(|standing| standing.is_complete)
}

// ------------------------------------------------------------------------------------------- in words

fn report(document: &mut Document, drained: &[Drained], loose: &[Damage], global: &Arc<dyn Tier>) {
    for drained in drained {
        let row = row(drained, global);
        document.bytes += row.bytes;
        document.damage.append(&mut damage(drained, &row));
        document.checkpoints.push(row);
    }
    document.damage.extend(loose.iter().map(|damage| damage.why.clone()));
}

/// The parts of a checkpoint that are damaged or missing and could not be replaced.
pub fn damage(drained: &Drained, row: &Row) -> Vec<String> {
    let mut all = Vec::new();
    // A checkpoint that is complete nevertheless has lost nothing.
    if !row.complete {
        all.extend(row.lost.iter().map(|Lost { rank, kind, why }| {
            format!(
                "version {} of {}: the shard of rank {rank} is {kind}: {}",
                row.key.version,
                row.key.name,
                why.join("; ")
            )
        }));
        let nameless = drained.chosen.damage.iter().filter(|damage| damage.rank.is_none());
        all.extend(nameless.map(|damage| damage.why.clone()));
        all.extend(drained.parts.failed.iter().cloned());
    }
    all.extend(row.error.clone());
    all
}

/// The row of the document for a checkpoint.
pub fn row(drained: &Drained, global: &Arc<dyn Tier>) -> Row {
    let Chosen { series, candidate, .. } = &drained.chosen;
    let with = |fate: &Fate| -> Vec<u32> {
        drained.fates.iter().filter(|(_, found)| *found == fate).map(|(rank, _)| rank.0).collect()
    };
    let lost = drained.fates.iter().filter_map(|(rank, fate)| {
        let (kind, why) = match fate {
            Fate::Copied | Fate::There | Fate::Rebuilt => return None,
            Fate::Damaged(why) => ("damaged", why.clone()),
            Fate::NotWritten(why) => ("not-written", vec![why.clone()]),
            Fate::Refused(why) => ("refused", vec![why.clone()]),
        };
        let Rank(rank) = *rank;
        Some(Lost { rank, kind, why })
    });
    let standing = drained.standing.as_ref();
    let range = |range: &RangeInclusive<u32>| [*range.start(), *range.end()];
    Row {
        key: KeyView::new([&series.job, &series.group, &series.name], &candidate.key),
        incarnation: candidate.key.incarnation.to_string(),
        group_size: candidate.group_size,
        path: global.folder_path(series, &candidate.key).display().to_string(),
        copied: with(&Fate::Copied),
        there: with(&Fate::There),
        rebuilt: with(&Fate::Rebuilt),
        parts: drained.parts.copied,
        lost: lost.collect(),
        missing: standing.map_or_else(|_| Vec::new(), |standing| standing.missing.iter().map(range).collect()),
        complete: is_complete(drained),
        bytes: drained.bytes,
        error: standing.err().map(ToString::to_string),
    }
}

fn text(document: &Document) -> String {
    let mut text = String::new();
    document.checkpoints.iter().for_each(|row| text += &row_text(row, document.dry_run));
    for skipped in &document.skipped {
        text += &format!("skipped {}: {}\n", plain(&skipped.job), skipped.why);
    }
    for why in &document.unusable_parity {
        text += &format!("unusable parity part: {}\n", plain(why));
    }
    for damage in &document.damage {
        text += &format!("damage: {}\n", plain(damage));
    }
    if document.checkpoints.is_empty() {
        text += "nothing to drain\n";
    }
    text
}

/// A checkpoint as one line of text.
pub fn row_text(row: &Row, dry_run: bool) -> String {
    let mut parts = Vec::new();
    let bytes = if dry_run { String::new() } else { format!(" ({})", output::bytes(row.bytes)) };
    if !row.copied.is_empty() {
        let copied = if dry_run { "would copy" } else { "copied" };
        parts.push(format!("{copied} ranks {}{bytes}", output::ranks(row.copied.iter().copied())));
    }
    if !row.rebuilt.is_empty() {
        let rebuilt = if dry_run { "would rebuild" } else { "rebuilt" };
        parts.push(format!("{rebuilt} ranks {}", output::ranks(row.rebuilt.iter().copied())));
    }
    if !row.there.is_empty() {
        parts.push(format!("ranks {} were there", output::ranks(row.there.iter().copied())));
    }
    if row.parts > 0 && !row.complete {
        parts.push(format!("{} {} parity parts", if dry_run { "would copy" } else { "copied" }, row.parts));
    }
    if !row.lost.is_empty() {
        parts.push(format!(
            "ranks {} could not be copied or rebuilt",
            output::ranks(row.lost.iter().map(|lost| lost.rank))
        ));
    }
    parts.push(match (row.complete, row.missing.is_empty()) {
        (true, _) if dry_run => "would then be complete".into(),
        (true, _) => "complete".into(),
        (false, false) => format!("incomplete, ranks {} of {} are missing", ranges(&row.missing), row.group_size),
        (false, true) => "incomplete".into(),
    });
    format!("{} {}: {}\n", row.key.series(), row.key.words(), parts.join("; "))
}

/// Ranges as text: `0-3,7`.
pub fn ranges(ranges: &[[u32; 2]]) -> String {
    output::ranges(&ranges.iter().map(|[first, last]| (*first, *last)).collect::<Vec<_>>())
}
