//! `bivouac rm`: removes checkpoints and dead segments, and refuses what a living run may need.
//!
//! First, everything is examined and a plan is made; then the plan is shown and confirmed; finally it is carried out. A checkpoint
//! loses its manifest first, so that it stops being committed before it stops being complete. Claims and the store id remain, because
//! they number the runs.
#![forbid(unsafe_code)]

use crate::ending::{Ending, Problem};
use crate::living::{living_run, memory_directory};
use crate::memory::{self, Stock};
use crate::output::list;
use crate::places::nothing_in;
use crate::removal::{Doomed, How, Removal};
use crate::standing::{History, histories};
use crate::survey::{Checkpoint, dependents, survey};
use crate::target::{Scope, Target};
use bivouac_core::base::CheckpointKey;
use bivouac_core::catalog::{Folder, Ledger, Occasion};
use bivouac_core::segment::SegmentError;
use bivouac_core::tier::Tier;
use bivouac_core::tier::names::Series;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of versions that are named.
const VERSIONS_MAX: usize = 8;

/// The arguments of `bivouac rm`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac rm bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000050-o000005      one checkpoint
  bivouac rm --dry-run bivouac/heat2d-0c7a11f2/world/heat         only show what would go: all but the newest committed one
  bivouac rm --yes --force bivouac/heat2d-0c7a11f2                all checkpoints of a job, including the newest
  bivouac rm --yes /dev/shm                                       all segments of runs that have ended

The newest committed checkpoint of a series is kept, and so is a segment that may hold the only copy of a version;
--force removes these as well. A checkpoint is also kept if the files of another one refer to it (reduction), unless
the other one is removed too. Nothing that belongs to a run that is alive is ever removed. A run is alive if its claim
is locked or a process holds its segment. A local tier has no claims, so there the segments in --memory decide.
Claims and the store ID are kept, because they number the runs; `rm -r` removes them as well.

Exit status: 0 done; 2 wrong usage, something cannot be read, or the command refused to act; 3 nothing found.")]
pub struct Args {
    /// Directories or memory segments
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Also remove the newest committed version of a series, the only copy in memory, and unreadable segments
    #[arg(short, long)]
    force: bool,
    /// Also remove the checkpoints whose files refer to what is removed
    #[arg(long)]
    with_dependents: bool,
    /// The folder of this node's memory segments, which show which runs are alive [default: BIVOUAC_MEMORY_DIRECTORY,
    /// or /dev/shm]
    #[arg(long, value_name = "DIR")]
    memory: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

#[derive(Default)]
struct Plan {
    removal: Removal,
    /// For each group, its living run, if there is one; each group is looked up once.
    groups: BTreeMap<(PathBuf, String, String), Option<String>>,
    seen: BTreeSet<PathBuf>,
}

/// Runs `bivouac rm`.
pub fn run(args: &Args) -> Ending {
    let mut plan = Plan::default();
    for path in &args.paths {
        if let Err(problem) = plan.add(args, path) {
            plan.removal.problems.add(problem);
        }
    }
    // A refusal concerns what the user named, so nothing else is removed, either.
    plan.removal.is_all_or_nothing = true;
    plan.removal.carry_out("rm", args.how)
}

// ------------------------------------------------------------------------------------------- the plan

/// The found checkpoints, and all checkpoints that refer to them directly or through others, the newest first.
fn with_dependents(tier: &Arc<dyn Tier>, found: Vec<Checkpoint>) -> Result<Vec<Checkpoint>, Problem> {
    let mut all: BTreeMap<PathBuf, Checkpoint> = BTreeMap::new();
    let (mut referring, mut next) = (BTreeMap::new(), found);
    while let Some(checkpoint) = next.pop() {
        if all.contains_key(&checkpoint.path) {
            continue;
        }
        let series = checkpoint.series.clone();
        let by: &BTreeMap<String, Vec<CheckpointKey>> =
            referring.entry(series.clone()).or_insert_with(|| dependents(&**tier, &series));
        for key in by.get(&checkpoint.folder).into_iter().flatten() {
            let Series { job, group, name } = series.clone();
            let parts = vec![job, group, name, key.folder()];
            next.extend(survey(&Scope { tier: tier.clone(), parts })?.0);
        }
        all.insert(checkpoint.path.clone(), checkpoint);
    }
    let mut all: Vec<Checkpoint> = all.into_values().collect();
    all.sort_by_key(|checkpoint| Reverse((checkpoint.order.0, checkpoint.order.2)));
    Ok(all)
}

impl Plan {
    fn add(&mut self, args: &Args, path: &Path) -> Result<(), Problem> {
        match Target::of(path)? {
            Target::Scope(scope) => self.add_scope(args, &scope, path),
            Target::Container(path) | Target::Manifest(path) => {
                let folder = path.parent().unwrap_or(Path::new("/")).display().to_string();
                Err(format!(
                    "{} is a part of a checkpoint, which would be damaged without it. To remove the checkpoint: bivouac rm {folder}",
                    path.display()
                )
                .into())
            }
            Target::Segment(folder, name) => Ok(self.add_segment(args, &folder, &name, true)?),
            Target::Segments(folder) => {
                let names = memory::names(&folder)?;
                Ok(names.iter().try_for_each(|name| self.add_segment(args, &folder, name, false))?)
            }
        }
    }

    fn add_scope(&mut self, args: &Args, scope: &Scope, named: &Path) -> Result<(), Problem> {
        let is_single = scope.parts.len() == 4;
        let Scope { tier, .. } = scope;
        // Files are removed only if they belong to this user.
        tier.find_store().map_err(|error| error.to_string())?;
        let (found, problems) = survey(scope)?;
        if let Some(problem) = problems.into_iter().next() {
            return Err(problem.into());
        }
        if found.is_empty() {
            return Err(nothing_in(named));
        }
        let histories = histories(scope, &found)?;
        // A checkpoint that refers to another one is removed before that one.
        let mut found = found;
        found.sort_by_key(|checkpoint| Reverse((checkpoint.order.0, checkpoint.order.2)));
        if args.with_dependents {
            found = with_dependents(tier, found)?;
        }
        let all = found.iter().map(|one| &one.series).collect::<BTreeSet<_>>().into_iter();
        let referring: BTreeMap<Series, _> = all.map(|series| (series.clone(), dependents(&**tier, series))).collect();
        let mut kept: BTreeSet<(Series, String)> = BTreeSet::new();
        let named: BTreeSet<(Series, String)> =
            found.iter().map(|one| (one.series.clone(), one.folder.clone())).collect();
        for checkpoint in found {
            let series = &checkpoint.series;
            if let Some(why) = self.living_run(args, &checkpoint) {
                return Err(format!("{} is not removed: {why}", checkpoint.path.display()).into());
            }
            let level = checkpoint.tier.kind().level();
            let folder = Folder {
                generation: checkpoint.order.0,
                version: checkpoint.order.1,
                operation: checkpoint.order.2,
                committed: checkpoint.candidate.is_some(),
            };
            let ledger = Ledger::new(vec![folder.entry((), level)]);
            let ruling = ledger.judge(&Occasion::Asked { newest: histories.get(series).and_then(History::newest) });
            if ruling.iter().any(|ruling| !ruling.may_go()) && !args.force {
                let path = checkpoint.path.display();
                kept.insert((series.clone(), checkpoint.folder.clone()));
                if is_single {
                    return Err(format!(
                        "{path} is the newest committed version of its series: --force removes it too"
                    )
                    .into());
                }
                let why = "the newest committed version of its series; --force removes it too".into();
                self.removal.keep(&checkpoint.path, why);
                continue;
            }
            let by = &referring[series];
            let by = by.get(&checkpoint.folder).map(Vec::as_slice).unwrap_or_default();
            let stays = |key: &&CheckpointKey| {
                let place = (series.clone(), key.folder());
                kept.contains(&place) || !named.contains(&place)
            };
            if let Some(by) = by.iter().find(stays) {
                let (path, by) = (checkpoint.path.display(), by.folder());
                kept.insert((series.clone(), checkpoint.folder.clone()));
                let why = format!("files of {by} refer to it; --with-dependents removes that too");
                if is_single {
                    return Err(format!("{path} is not removed: {why}").into());
                }
                self.removal.keep(&checkpoint.path, why);
            } else if self.seen.insert(checkpoint.path.clone()) {
                self.removal.doomed.push(Doomed::Checkpoint(Box::new(checkpoint)));
            }
        }
        Ok(())
    }

    /// The living run of the checkpoint's job and group, if this node can tell that there is one.
    fn living_run(&mut self, args: &Args, checkpoint: &Checkpoint) -> Option<String> {
        let Series { job, group, .. } = &checkpoint.series;
        let key = (checkpoint.tier.root().to_owned(), job.clone(), group.clone());
        self.groups
            .entry(key)
            .or_insert_with(|| {
                living_run(&*checkpoint.tier, &memory_directory(args.memory.as_deref()), job, group, "bivouac rm")
            })
            .clone()
    }

    fn add_segment(&mut self, args: &Args, folder: &Path, name: &str, is_named: bool) -> Result<(), String> {
        let path = folder.join(name);
        if self.seen.contains(&path) {
            return Ok(());
        }
        let mut spare = |why: String| {
            if is_named {
                return Err(format!("{} is not removed: {why}", path.display()));
            }
            self.removal.keep(&path, why);
            Ok(())
        };
        let doomed = match Stock::open(folder, name) {
            Err(SegmentError::NotFound { .. }) => return Ok(()),
            // A segment that is just being made looks unfinished, too.
            Err(error) if !args.force => return spare(format!("{error}; --force removes it nevertheless")),
            Err(_) => Doomed::Garbage(folder.to_owned(), name.to_owned()),
            Ok(stock) if stock.is_alive => return spare("its run is alive".into()),
            Ok(stock) => {
                let only = stock.only_copies();
                if !only.is_empty() && !args.force {
                    let only = list(only.into_iter(), VERSIONS_MAX, ", ");
                    return spare(format!("it may hold the only copy of {only}; --force removes it nevertheless"));
                }
                Doomed::Segment(Box::new(stock))
            }
        };
        self.seen.insert(path);
        self.removal.doomed.push(doomed);
        Ok(())
    }
}
