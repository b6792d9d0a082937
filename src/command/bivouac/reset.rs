//! `bivouac reset`: forgets a job, so that its next run begins from nothing.
//!
//! Removing the global directory alone does not do that: the data of a killed run in node memory and on node disks remain.
//! If the local tier is in its default place, they would never be removed, because another store has another folder.
//!
//! The command removes all checkpoints and claims of the job in the global directory and in the local directories of this node (including
//! those of stores that are gone), and the job's memory segments on this node. The same command on other nodes forgets what is in their
//! memory and on their disks; until then, a run on the same store could restore it.
#![forbid(unsafe_code)]

use crate::ending::Ending;
use crate::living::{is_job, is_meant, is_segment_of, living_run, meant_keys, no_job};
use crate::memory::{self, Stock};
use crate::places::{all_local_directories, no_store, own_tier, store_of};
use crate::removal::{Doomed, How, Removal};
use crate::survey::survey;
use crate::target::Scope;
use bivouac_core::config::{Config, Direct};
use bivouac_core::segment::SegmentError;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::is_component;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::{Tier, TierId};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The arguments of `bivouac reset`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac reset --job heat2d --dry-run                       what is left of the job, and where
  bivouac reset --job heat2d --yes --global /scratch/me/run7
  srun --ntasks-per-node=1 bivouac reset --job heat2d --yes       on all nodes of an allocation

Everything that belongs to the job is removed, including the newest version and the only copies. If a run of the job
is alive, the command refuses, and nothing is removed. The directories are those of the configuration; --global names
another global directory.

Exit status: 0 done; 2 wrong usage, the job is alive, or something could not be removed; 3 no trace of the job found.")]
pub struct Args {
    /// The name or the key of the job (`bivouac ls` shows the key)
    #[arg(long)]
    job: String,
    /// The global directory [default: the configured one, if it exists]
    #[arg(long, value_name = "DIR")]
    global: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Runs `bivouac reset`.
pub fn run(args: &Args) -> Ending {
    let mut removal = Removal::default();
    if let Err(problem) = plan(args, &mut removal) {
        removal.problems.add(problem);
    }
    removal.carry_out("reset", args.how)
}

fn plan(args: &Args, removal: &mut Removal) -> Result<(), String> {
    removal.is_all_or_nothing = true;
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let storage = || Arc::new(PosixStorage::new(Direct::Off));
    let root = args.global.as_ref().unwrap_or(&config.job.global_directory);
    let store = store_of(&*storage(), root)?;
    if store.is_none() && args.global.is_some() {
        return Err(no_store(root));
    }
    let memory = &config.node.memory_directory;
    let global = store.map(|_| (TierId::GLOBAL, root.clone()));
    let locals = all_local_directories(&config)?.into_iter().map(|local| (TierId::LOCAL, local));
    let mut jobs = BTreeSet::new();
    for (kind, root) in global.into_iter().chain(locals) {
        let tier = own_tier(kind, storage(), root)?;
        for job in folders(tier.root())?.into_iter().filter(|job| is_job(job, &args.job)) {
            add_tree(&tier, &job, memory, removal)?;
            jobs.insert(job);
        }
    }
    let keys = meant_keys(&args.job, jobs.iter().map(String::as_str));
    add_segments(&args.job, &keys, memory, removal)?;
    if removal.is_empty() {
        removal.problems.add(no_job(&args.job, "the node's memory, its local tiers and the global directory"));
    }
    Ok(())
}

/// The names of the folders at `path` that a job or a group may have.
///
/// # Errors
/// The folders cannot be listed.
pub fn folders(path: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("cannot list {}: {error}", path.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are not followed.
        if is_component(&name) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Adds all checkpoints of a job on a tier, and then the job's claims and folders.
///
/// # Errors
/// The job is alive, or it cannot be read.
pub fn add_tree(tier: &DirectoryTier, job: &str, memory: &Path, removal: &mut Removal) -> Result<(), String> {
    let path = tier.root().join(job);
    let groups = folders(&path)?;
    for group in &groups {
        let alive = living_run(tier, memory, job, group, "bivouac reset");
        if let Some(why) = alive {
            return Err(format!("{} is not removed: {why}", path.join(group).display()));
        }
    }
    let (found, problems) = survey(&Scope { tier: Arc::new(tier.clone()), parts: vec![job.to_owned()] })
        .map_err(|error| error.to_string())?;
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem);
    }
    removal.doomed.extend(found.into_iter().map(|found| Doomed::Checkpoint(Box::new(found))));
    removal.doomed.push(Doomed::Job { tier: tier.clone(), path, groups });
    Ok(())
}

fn add_segments(job: &str, keys: &BTreeSet<u64>, folder: &Path, removal: &mut Removal) -> Result<(), String> {
    for name in memory::names(folder).map_err(|error| error.to_string())? {
        match Stock::open(folder, &name) {
            Ok(stock) if !is_meant(&stock, &stock.entries(), keys, job) => {}
            Ok(stock) if stock.is_alive => {
                return Err(format!("{} is not removed: its run is alive", stock.segment.path().display()));
            }
            Ok(stock) => removal.doomed.push(Doomed::Segment(Box::new(stock))),
            Err(SegmentError::NotFound { .. }) => {}
            Err(_) if is_segment_of(&name, keys) => removal.doomed.push(Doomed::Garbage(folder.to_owned(), name)),
            Err(_) => {}
        }
    }
    Ok(())
}
