//! Removes what a plan names: shared by `rm`, `clean` and `reset`.
//!
//! The plan is shown and confirmed first. Then each item is checked once more, because a run may have begun since, and is removed.
#![forbid(unsafe_code)]

use crate::ending::{Ending, Problems};
use crate::living::claimed;
use crate::memory::Stock;
use crate::output::{self, SCHEMA, complain, plain, print, print_json};
use crate::survey::Checkpoint;
use bivouac_core::segment;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::owner::OWNER_FILE;
use bivouac_core::tier::{Tier, TierId};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A segment that nobody can read may be one that is just being made: its creator locks the file immediately after
/// creating it. Therefore an unreadable segment is checked twice, this long apart.
const CREATION: Duration = Duration::from_millis(200);

/// What is to be removed, what stays, and what went wrong while that was decided.
#[derive(Default)]
pub struct Removal {
    /// What is removed.
    pub doomed: Vec<Doomed>,
    kept: Vec<Kept>,
    /// What was refused, could not be read, or was not there.
    pub problems: Problems,
    /// If there is a problem, nothing is removed at all.
    pub is_all_or_nothing: bool,
}

/// How a plan is carried out.
#[derive(Clone, Copy, clap::Args)]
pub struct How {
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// One thing to remove.
pub enum Doomed {
    /// A checkpoint folder.
    Checkpoint(Box<Checkpoint>),
    /// What is left of a job on a tier when its checkpoints are gone: claims and empty folders.
    Job {
        /// The tier.
        tier: DirectoryTier,
        /// The job's folder.
        path: PathBuf,
        /// Its groups.
        groups: Vec<String>,
    },
    /// A segment whose run is dead.
    Segment(Box<Stock>),
    /// An unreadable segment, by its folder and name.
    Garbage(PathBuf, String),
    /// A file that a writer has left unfinished on this tier. `is_locked_by_writer`: its writer holds a lock for as long as it lives.
    Temp {
        /// The tier.
        tier: DirectoryTier,
        /// The file.
        path: PathBuf,
        /// Does the writer hold a lock on the file for as long as it lives?
        is_locked_by_writer: bool,
    },
}

/// The document with `--json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    command: &'static str,
    dry_run: bool,
    /// What was removed, or would be removed.
    removed: Vec<Removed>,
    /// The bytes that this has freed, or would free.
    bytes: u64,
    /// What was spared, and why.
    kept: &'a [Kept],
    /// What was refused, failed, or was not there.
    problems: Problems,
}

/// Something that was removed, or would be removed.
#[derive(Serialize)]
struct Removed {
    path: String,
    /// `checkpoint`, `segment`, `temp` or `job`.
    kind: &'static str,
    bytes: u64,
}

/// Something that stays.
#[derive(Serialize)]
struct Kept {
    path: String,
    why: String,
}

/// Bytes that a file takes on its file system.
fn occupied(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

impl Doomed {
    fn describe(&self) -> Removed {
        let of = |path: &Path, kind, bytes| Removed { path: path.display().to_string(), kind, bytes };
        match self {
            Doomed::Checkpoint(checkpoint) => of(&checkpoint.path, "checkpoint", checkpoint.bytes()),
            Doomed::Job { path, .. } => of(path, "job", 0),
            Doomed::Segment(stock) => of(stock.segment.path(), "segment", stock.memory_bytes),
            Doomed::Garbage(folder, name) => of(&folder.join(name), "segment", occupied(&folder.join(name))),
            Doomed::Temp { path, .. } => of(path, "temp", occupied(path)),
        }
    }

    fn remove(&self) -> Result<(), String> {
        match self {
            Doomed::Checkpoint(found) => {
                found.tier.remove(&found.series, &found.folder).map_err(|error| error.to_string())?;
                match found.tier.list(&found.path).is_ok_and(|left| !left.is_empty()) {
                    false => Ok(()),
                    true => Err(format!("{} was kept: something new appeared in it; try again", found.path.display())),
                }
            }
            Doomed::Job { tier, path, groups } => {
                groups.iter().try_for_each(|group| remove_group(tier, path, group))?;
                remove_folder(tier, path)?;
                release(tier)
            }
            Doomed::Segment(stock) => {
                // Only a living run that started after the plan was made matters; no run attaches to another run's segment.
                match stock.segment.is_alive() {
                    Ok(false) => stock.segment.unlink().map_err(|error| error.to_string()),
                    Ok(true) => Err(format!("{}: its run is alive", stock.segment.path().display())),
                    Err(error) => Err(error.to_string()),
                }
            }
            Doomed::Garbage(folder, name) => match segment::is_held(folder, name) {
                Ok(true) => Err(format!("{}: its run is alive", folder.join(name).display())),
                // A segment that cannot be opened has no owner that could be looked up.
                Ok(false) | Err(_) => segment::remove(folder, name).map_err(|error| error.to_string()),
            },
            Doomed::Temp { tier, path, is_locked_by_writer } => {
                let lock = match tier.storage().try_lock(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                    Ok(None) if *is_locked_by_writer => return Err(format!("{} is being written", path.display())),
                    other => other,
                };
                let removed = tier.storage().remove_file(path);
                drop(lock);
                removed.map_err(|error| format!("cannot delete {}: {error}", path.display()))
            }
        }
    }
}

/// Removes a group without checkpoints. The claims are removed last, because they number the runs.
fn remove_group(tier: &DirectoryTier, job: &Path, group: &str) -> Result<(), String> {
    let path = job.join(group);
    let name = job.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some(why) = claimed(tier, &name, group, "bivouac reset") {
        return Err(format!("{} is not removed: {why}", path.display()));
    }
    let listed = |path: &Path| match tier.storage().list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(|error| format!("cannot list {}: {error}", path.display())),
    };
    for entry in listed(&path)?.into_iter().filter(|entry| entry.is_dir && entry.name != "claims") {
        remove_folder(tier, &path.join(entry.name))?;
    }
    let claims = path.join("claims");
    for claim in listed(&claims)? {
        let file = claims.join(claim.name);
        tier.storage().remove_file(&file).map_err(|error| format!("cannot delete {}: {error}", file.display()))?;
    }
    remove_folder(tier, &claims)?;
    remove_folder(tier, &path)
}

/// A local directory in which nothing is left belongs to nobody: the next store may have it.
fn release(tier: &DirectoryTier) -> Result<(), String> {
    let left = tier.storage().list(tier.root()).unwrap_or_default();
    let owner = tier.root().join(OWNER_FILE);
    match left.as_slice() {
        [only] if tier.kind() == TierId::LOCAL && only.name == OWNER_FILE => {
            tier.storage().remove_file(&owner).map_err(|error| format!("cannot delete {}: {error}", owner.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a folder that should be empty.
fn remove_folder(tier: &DirectoryTier, path: &Path) -> Result<(), String> {
    match tier.storage().remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| format!("cannot delete {}: {error}", path.display())),
    }
}

impl Removal {
    /// Is there nothing to remove, nothing that stays, and nothing to complain about?
    pub fn is_empty(&self) -> bool {
        self.doomed.is_empty() && self.kept.is_empty() && self.problems.is_empty()
    }

    /// Notes that something stays.
    pub fn keep(&mut self, path: &Path, why: String) {
        self.kept.push(Kept { path: path.display().to_string(), why });
    }

    /// Asks the user, removes, and reports the outcome.
    pub fn carry_out(self, command: &'static str, how: How) -> Ending {
        let mut problems = self.problems;
        problems.complain();
        let is_stopped = self.is_all_or_nothing && problems.ending() > Ending::Nothing;
        let is_agreed = !is_stopped && (how.dry_run || self.doomed.is_empty() || confirm(how.yes, &self.doomed));
        let mut removed = Vec::new();
        if is_agreed {
            if !how.dry_run && self.doomed.iter().any(|doomed| matches!(doomed, Doomed::Garbage(..))) {
                std::thread::sleep(CREATION);
            }
            for doomed in &self.doomed {
                let described = doomed.describe();
                match if how.dry_run { Ok(()) } else { doomed.remove() } {
                    Ok(()) => removed.push(described),
                    Err(problem) => {
                        complain(&problem);
                        problems.add(problem);
                    }
                }
            }
        } else if !is_stopped {
            problems.add("not confirmed: nothing was removed".to_owned());
        }
        let bytes = removed.iter().map(|removed| removed.bytes).sum();
        let document =
            Document { schema: SCHEMA, command, dry_run: how.dry_run, removed, bytes, kept: &self.kept, problems };
        if how.json {
            print_json(&document);
        } else {
            print(&text(&document));
        }
        document.problems.ending()
    }
}

fn text(document: &Document<'_>) -> String {
    let mut text = String::new();
    for kept in document.kept {
        text += &format!("kept    {}: {}\n", plain(&kept.path), plain(&kept.why));
    }
    let word = if document.dry_run { "would remove" } else { "removed" };
    for removed in &document.removed {
        text += &format!("{word} {} ({})\n", plain(&removed.path), output::bytes(removed.bytes));
    }
    match (document.removed.len(), document.dry_run) {
        (0, _) => text += "nothing was removed\n",
        (_, true) => text += &format!("would free {}\n", output::bytes(document.bytes)),
        (_, false) => text += &format!("freed {}\n", output::bytes(document.bytes)),
    }
    text
}

/// Asks the user on a terminal. Without a terminal, the answer is no, with a hint about `--yes`.
fn confirm(yes: bool, doomed: &[Doomed]) -> bool {
    if yes {
        return true;
    }
    if !io::stdin().is_terminal() {
        complain("cannot ask for confirmation here: give --yes to remove, or --dry-run to see what would be removed");
        return false;
    }
    let mut bytes = 0;
    for doomed in doomed {
        let removed = doomed.describe();
        bytes += removed.bytes;
        complain(&format!("{} {} ({})", removed.kind, plain(&removed.path), output::bytes(removed.bytes)));
    }
    let mut out = io::stderr();
    let asked =
        write!(out, "Remove these {} ({})? [y/N] ", doomed.len(), output::bytes(bytes)).and_then(|()| out.flush());
    let mut answer = String::new();
    let heard = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    heard.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
