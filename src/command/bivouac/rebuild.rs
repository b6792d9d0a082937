//! `bivouac rebuild`: completes a checkpoint in the global directory from what is left of the nodes, redundancy included.
//!
//! One process reads everything: it needs no MPI, and no node except its own. The code of `drain`
//! ([`bivouac_core::recovery::drain`]) writes; this module decides which versions are worth it.
#![forbid(unsafe_code)]

use crate::drain::{self, Row, Skipped, Wanted, find_store, is_complete, is_same, ranges, row_text};
use crate::ending::{Ending, Problem, Problems};
use crate::living;
use crate::output::{self, SCHEMA, plain, show};
use crate::places::{own_store, own_tier, store_root};
use crate::target::Target;
use bivouac_core::Config;
use bivouac_core::recovery::drain::{Chosen, Collected, Drain, Drained, Lacking, Piece, Standing, Which};
use bivouac_core::recovery::drain::{host_tag, select};
use bivouac_core::tier::names::Series;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::{Tier, TierId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of directories that are named.
const DIRS_MAX: usize = 8;

/// The arguments of `bivouac rebuild`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac rebuild /mnt/n1/shm /mnt/n1/ckpt /mnt/n3/ckpt --global /scratch/me/run7     what is left of the nodes, mounted here
  bivouac rebuild saved/* --global /scratch/me/run7 --job heat2d --dry-run            copies in one folder; check only whether it works
  bivouac rebuild /scratch/me/run7 --global /scratch/me/run7                          after drains that left parity parts
  bivouac rebuild saved/n1 saved/n2 --global /scratch/me/run7 --name state --version 70

A DIR is a root directory of the local tier, a folder with memory segments (such as a copy of /dev/shm), a folder with
both, a single memory segment, or the global directory itself. As on the node, a copied segment must belong to you.

For each series, the command takes the newest version for which every rank's shard is in a DIR or in the global
directory, or can be rebuilt from the shards and parity parts of the rank's redundancy set. It writes what the global
directory lacks, checking each block against the digest made at capture, and then writes the manifest. The next run of
the job restarts from this version. Nothing is removed from a DIR. The command may be killed and started again.

Exit status: 0 done; 1 something is damaged or missing: no version of a series is available, or only one that is older
than a version that was once committed; 2 wrong usage, something cannot be read, or the command refused to act;
3 nothing found.")]
pub struct Args {
    /// What the surviving nodes hold: directories or memory segments
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// The global directory
    #[arg(long, value_name = "DIR")]
    global: PathBuf,
    /// Take only the job with this name or key (`bivouac ls` shows the key). It may be a job that has never used this
    /// global directory
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Take only the series with this name
    #[arg(long)]
    name: Option<String>,
    /// Take this version instead of the newest available one
    #[arg(long, value_name = "V")]
    version: Option<u64>,
    /// The number of shards to write at the same time [default: the number of processors, but at most 4]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: Option<u16>,
    /// If the head of a shard in the global directory is good, accept the shard without reading its data
    #[arg(long)]
    quick: bool,
    /// Create the global directory if it does not exist yet
    #[arg(long)]
    create: bool,
    /// Also take jobs with a run that seems to be alive
    #[arg(long)]
    even_alive: bool,
    /// Only say what would be written. Everything is read and checked nevertheless
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `rebuild --json`.
#[derive(Serialize, Default)]
struct Document {
    schema: u32,
    command: &'static str,
    dry_run: bool,
    global: String,
    /// The versions that were examined, the newest first, for each series down to the version that was completed.
    checkpoints: Vec<Version>,
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

/// One version.
#[derive(Serialize)]
struct Version {
    #[serde(flatten)]
    row: Row,
    /// Why the version cannot be completed; in this case nothing was written.
    lacking: Vec<Lack>,
}

#[derive(Serialize)]
struct Lack {
    /// First and last rank.
    ranks: [u32; 2],
    why: String,
}

/// Runs `bivouac rebuild`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document { schema: SCHEMA, command: "rebuild", dry_run: args.dry_run, ..Default::default() };
    if let Err(problem) = rebuild(args, &mut document) {
        document.problems.add(problem);
    }
    document.problems.complain();
    if !document.damage.is_empty() {
        document.problems.note(Ending::Damage);
    }
    show(args.json, &document, text);
    document.problems.ending()
}

fn rebuild(args: &Args, document: &mut Document) -> Result<(), String> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let root = store_root(&args.global).map_err(|error| format!("{}: {error}", args.global.display()))?;
    let global = own_store(&root, &config)?;
    find_store(args.create, args.dry_run, &*global)?;
    document.global = global.root().display().to_string();
    let wanted = Wanted::new(&global, args.job.as_deref(), args.name.as_deref());
    let mut collected = Collected::default();
    for dir in &args.dirs {
        if let Err(problem) = look(dir, &global, &config, &wanted, &mut collected) {
            document.problems.add(problem);
        }
    }
    // A wrong path would look like a lost node.
    if !document.problems.is_empty() {
        return Ok(());
    }
    collected.add_directory(&global, &|series| wanted.is(series));
    document.skipped = wanted.skipped();
    document.parity = collected.parts.len();
    document.unusable_parity = std::mem::take(&mut collected.bad_parts);
    document.problems.extend(std::mem::take(&mut collected.problems));
    let segments = std::mem::take(&mut collected.segments);
    let (mut chosen, loose) = select(collected, Which::All);
    chosen.retain(|chosen| args.version.is_none_or(|version| chosen.candidate.key.version == version));
    if chosen.is_empty() {
        let version = args.version.map_or_else(String::new, |version| format!(" of version {version}"));
        let places = output::list(args.dirs.iter().map(|dir| dir.display().to_string()), DIRS_MAX, ", ");
        let what = format!("nothing{version} was found: no shard and no parity part");
        let places = format!("in {places} and {}", global.root().display());
        let ending = if document.skipped.is_empty() { Ending::Nothing } else { Ending::Trouble };
        document.problems.add(Problem { ending, text: format!("{what} {places}") });
    }
    if !args.even_alive {
        drain::refuse_living(&global, &segments, &mut chosen, &mut document.problems);
    }
    // What is on the global tier is examined there, so it is not listed here.
    let is_elsewhere = |piece: &Piece| piece.tier() != TierId::GLOBAL;
    for chosen in &mut chosen {
        chosen.pieces.values_mut().for_each(|copies| copies.retain(is_elsewhere));
        chosen.parts.values_mut().for_each(|copies| copies.retain(is_elsewhere));
        chosen.parts.retain(|_, copies| !copies.is_empty());
    }
    let drain = Drain {
        global: &global,
        host: host_tag(&living::host()),
        unique: format!("{}-{}", std::process::id(), &living::me("bivouac rebuild").incarnation[..8]),
        is_quick: args.quick,
        is_dry: args.dry_run,
        write_bytes: config.node.write_bytes,
    };
    let mut of_series: BTreeMap<Series, Vec<Chosen>> = BTreeMap::new();
    for chosen in chosen {
        of_series.entry(chosen.series.clone()).or_default().push(chosen);
    }
    let jobs = args.parallel.map_or_else(output::jobs_default, usize::from);
    for (series, versions) in of_series {
        if !complete_newest(&drain, versions, jobs, args, document) {
            let name = format!("{}/{}/{}", series.job, series.group, series.name);
            document.damage.push(format!("no version of {name} can be completed"));
        }
    }
    document.damage.extend(loose.iter().map(|damage| damage.why.clone()));
    Ok(())
}

/// Searches one of the places that the user has named.
fn look(
    dir: &Path,
    global: &Arc<dyn Tier>,
    config: &Config,
    wanted: &Wanted<'_>,
    collected: &mut Collected,
) -> Result<(), String> {
    let wanted = |series: &Series| wanted.is(series);
    if is_same(dir, global.root()) {
        return Ok(());
    }
    match Target::of(dir).map_err(|error| error.to_string())? {
        Target::Segment(folder, name) => collected.add_segment(&folder, &name, &wanted),
        Target::Scope(scope) if !scope.parts.is_empty() => {
            return Err(format!(
                "{} is a part of a store: give its root directory, {}",
                dir.display(),
                scope.tier.root().display()
            ));
        }
        Target::Container(_) | Target::Manifest(_) => {
            return Err(format!("{} is a single file of a store: give the store's root directory", dir.display()));
        }
        Target::Scope(_) | Target::Segments(_) => {
            let path = std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            collected.add_segments(&path, &wanted);
            let storage = Arc::new(PosixStorage::new(config.node.local_direct));
            let tier: Arc<dyn Tier> = Arc::new(own_tier(TierId::LOCAL, storage, path)?);
            collected.add_directory(&tier, &wanted);
        }
    }
    Ok(())
}

/// Completes the newest version of a series that can be completed, and says what is wrong with the newer versions.
fn complete_newest(
    drain: &Drain<'_>,
    versions: Vec<Chosen>,
    jobs: usize,
    args: &Args,
    document: &mut Document,
) -> bool {
    for chosen in versions {
        let lacking = match drain.lacking_of(&chosen) {
            Ok(lacking) => lacking,
            Err(error) => {
                document.damage.push(error.to_string());
                continue;
            }
        };
        if !lacking.is_empty() {
            note_lacking(drain.global, chosen, lacking, document);
            continue;
        }
        let mut chosen = vec![chosen];
        if !args.dry_run {
            chosen = drain::record_runs(drain.global, chosen, &mut document.damage);
        }
        let shards =
            |chosen: &Chosen| chosen.pieces.values().map(|copies| copies.first().map_or(0, |one| one.bytes)).sum();
        let bar = output::bar(chosen.first().map_or(0, shards), args.json);
        let progress = |bytes| bar.inc(bytes);
        let drained = drain.run(chosen, jobs, &progress).pop().map(|mut drained| {
            if !is_complete(&drained) {
                drain.mend(&mut drained, jobs, &progress);
            }
            drain.remove_parts(&drained);
            drained
        });
        bar.finish_and_clear();
        let Some(drained) = drained else { continue };
        let row = drain::row(&drained, drain.global);
        let is_done = row.complete;
        document.bytes += row.bytes;
        document.damage.append(&mut drain::damage(&drained, &row));
        document.checkpoints.push(Version { row, lacking: Vec::new() });
        if is_done {
            return true;
        }
    }
    false
}

fn note_lacking(global: &Arc<dyn Tier>, chosen: Chosen, lacking: Vec<Lacking>, document: &mut Document) {
    let standing = Standing { missing: lacking.iter().map(|lack| lack.ranks.clone()).collect(), is_complete: false };
    let tiers: BTreeSet<&str> = chosen.committed.iter().map(|tier| tier.name()).collect();
    let row = drain::row(&Drained::untouched(chosen, standing), global);
    let lacking: Vec<Lack> =
        lacking.into_iter().map(|Lacking { ranks, why }| Lack { ranks: [*ranks.start(), *ranks.end()], why }).collect();
    if !tiers.is_empty() {
        let tiers = tiers.into_iter().collect::<Vec<_>>().join(" and ");
        document.damage.push(format!(
            "version {} was committed ({tiers} tier), but can no longer be restored: ranks {} are missing",
            row.key.version,
            ranges(&row.missing)
        ));
    }
    document.checkpoints.push(Version { row, lacking });
}

fn text(document: &Document) -> String {
    let mut text = String::new();
    for version in &document.checkpoints {
        text += &row_text(&version.row, document.dry_run);
        for Lack { ranks, why } in &version.lacking {
            text += &format!("  ranks {}: {}\n", ranges(&[*ranks]), plain(why));
        }
    }
    for skipped in &document.skipped {
        text += &format!("skipped {}: {}\n", plain(&skipped.job), skipped.why);
    }
    for why in &document.unusable_parity {
        text += &format!("unusable parity part: {}\n", plain(why));
    }
    for damage in &document.damage {
        text += &format!("damage: {}\n", plain(damage));
    }
    text
}
