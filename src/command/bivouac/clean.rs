//! `bivouac clean`: removes what this user's dead jobs left on a node.
//!
//! It removes memory segments without a living process, and temporary files of uploads. The command is made for the
//! epilog of a batch system, after `bivouac drain`: there, nobody can answer a question, and other jobs of the same
//! user may run on the node.
//!
//! # What the command can know
//!
//! - *Alive*: a process that uses a segment holds a lock on it, on this node. A job with a living process here keeps all its segments,
//!   including those of its earlier runs, because it may be restoring from them. Only the job's claim, on the global tier, shows whether
//!   the job is alive on other nodes.
//! - *Safe elsewhere*: a slot's entry says up to which level its version was committed when the run died. If the global directory is given,
//!   every version that is complete there counts as well (a drain may have copied it since). A segment is kept if it has the newest version
//!   of a series and neither of the two shows that this version is durable; the exit status says so. What was sealed after the newest
//!   version that is known to be committed counts as committed, too, because the verdict may not have arrived before the kill. A segment is
//!   also kept if it has the newest version that survives the loss of nodes, unless the global tier has one that is as new: a lost node may
//!   have to be rebuilt from this segment, and what was taken later may be lost with that node.
//! - *Orphaned*: a local directory says where the store that its copies belong to was. If that store is gone, no run will restore or
//!   remove the copies.
#![forbid(unsafe_code)]

use crate::ending::Ending;
use crate::living::{self, claimed, is_job, is_segment_of, living_segment, meant_keys, no_job};
use crate::memory::{self, Stock};
use crate::output::list;
use crate::places::{Orphan, is_local_name, local_directories, no_store, orphans, own_tier, store_of};
use crate::removal::{Doomed, How, Removal};
use crate::reset;
use crate::survey::{State, survey};
use crate::target::{Scope, Target};
use bivouac_core::base::ids::text_hash;
use bivouac_core::base::{CheckpointKey, Generation};
use bivouac_core::catalog::{Elsewhere, Ledger, LedgerEntry, Moment, Occasion};
use bivouac_core::config::{Config, Direct};
use bivouac_core::format::FormatError;
use bivouac_core::recovery::discover::is_of_another;
use bivouac_core::recovery::drain::host_tag;
use bivouac_core::segment::{self, SegmentError};
use bivouac_core::session::place::store_hash;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::{Series, is_component};
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::{Tier, TierId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of versions that are named.
const VERSIONS_MAX: usize = 8;

/// The arguments of `bivouac clean`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac clean --all-dead --dry-run                    what dead jobs left in this node's memory
  bivouac clean --job heat2d --yes --global /scratch/me/run7
  srun --ntasks-per-node=1 bivouac clean --job heat2d --yes       at the end of a batch script
  runuser -u \"$SLURM_JOB_USER\" -- bivouac clean --all-dead --yes --global /scratch/me/run7      in a SLURM epilog, which runs as root

The command removes memory segments in which no process of the job is alive, and temporary files of uploads (files that
never got their final names). It never touches checkpoints, nor anything that belongs to another user or to a job that
is alive. Unless --even-newest is given, it also keeps the only copy of the newest version of a series, and the only
copy of the newest version that survives the loss of a node. Copy such versions to the global directory first, with
`bivouac drain`.

A DIR is a folder of memory segments, or a local or global directory in which to look for temporary files. Without a
DIR, the command uses the directories of the configuration. Temporary files of the local tier are removed if a claim
(--global) or a segment shows that their run is dead. Local copies of stores that are gone are named, and
--even-newest removes them.

Exit status: 0 done; 2 wrong usage, something could not be read or removed, or a segment was kept because it may hold
the only copy of a newest version or because the job that --job names is alive; 3 the job that --job names is unknown.
The status is also 0 if the node has nothing to clean.")]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["job", "all_dead"]))]
pub struct Args {
    /// Folders of memory segments, or local or global directories
    dirs: Vec<PathBuf>,
    /// Clean up only after the job with this name or key (`bivouac ls` shows the key)
    #[arg(long)]
    job: Option<String>,
    /// Clean up after all dead jobs of this user
    #[arg(long)]
    all_dead: bool,
    /// The global directory, which shows which jobs are alive and which versions are safe [default: the configured one,
    /// if it exists]
    #[arg(long, value_name = "DIR")]
    global: Option<PathBuf>,
    /// Also remove segments that may hold the only copy of the newest version of a series
    #[arg(long)]
    even_newest: bool,
    #[command(flatten)]
    how: How,
}

/// Runs `bivouac clean`.
pub fn run(args: &Args) -> Ending {
    let mut removal = Removal::default();
    if let Err(problem) = plan(args, &mut removal) {
        removal.problems.add(problem);
        removal.is_all_or_nothing = true;
    }
    removal.carry_out("clean", args.how)
}

/// Where to clean, and what is known about the surroundings.
struct Ground<'a> {
    args: &'a Args,
    /// Hashes of the keys that the job that the user named may have.
    keys: BTreeSet<u64>,
    memory: Vec<PathBuf>,
    tiers: Vec<DirectoryTier>,
    global: Option<DirectoryTier>,
    /// The store in the global directory, as segments name it; 0 if there is none.
    store: u64,
    /// Local directories of other stores.
    orphans: Vec<Orphan>,
    /// Names of jobs and groups on the global tier, by hash.
    names: BTreeMap<(u64, u64), Job>,
    /// For each job, its living run, if it has one; each job is looked up once.
    claimed: BTreeMap<Job, Option<String>>,
}

type Job = (String, String);

fn plan(args: &Args, removal: &mut Removal) -> Result<(), String> {
    let mut ground = Ground::survey(args)?;
    let mut stocks = Vec::new();
    for folder in ground.memory.clone() {
        ground.open_all(&folder, &mut stocks, removal)?;
    }
    ground.add_segments(stocks, removal);
    for tier in ground.tiers.clone() {
        ground.add_temps(&tier, removal)?;
    }
    if args.dirs.is_empty() {
        ground.add_orphans(removal)?;
    }
    if let Some(job) = &args.job
        && removal.is_empty()
        && !ground.names.values().any(|(key, _)| is_job(key, job))
    {
        removal.problems.add(no_job(job, "the node's memory, its local tier and the global directory"));
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------- where

impl<'a> Ground<'a> {
    fn survey(args: &'a Args) -> Result<Ground<'a>, String> {
        let config = Config::from_env().map_err(|error| error.to_string())?;
        let own = |kind, root| own_tier(kind, Arc::new(PosixStorage::new(Direct::Off)), root);
        let root = args.global.as_ref().unwrap_or(&config.job.global_directory);
        let global = own(TierId::GLOBAL, root.clone())?;
        let store = store_of(&**global.storage(), root)?;
        if store.is_none() && args.global.is_some() {
            return Err(no_store(root));
        }
        let global = Some(global).filter(|_| store.is_some());
        let (mut memory, mut tiers) = (Vec::new(), Vec::new());
        for path in &args.dirs {
            match Target::of(path).map_err(|error| error.to_string())? {
                Target::Segments(folder) => memory.push(folder),
                Target::Scope(Scope { tier, parts }) if parts.is_empty() => {
                    tiers.push(own(tier.kind(), tier.root().to_owned())?);
                }
                _ => {
                    return Err(format!(
                        "{} is neither a folder of segments nor a local or global directory: see bivouac rm",
                        path.display()
                    ));
                }
            }
        }
        if args.dirs.is_empty() {
            memory.push(config.node.memory_directory.clone());
            for local in local_directories(&config, root, store, args.job.as_deref())? {
                tiers.push(own(TierId::LOCAL, local)?);
            }
            tiers.extend(global.clone());
        }
        let names = match &global {
            Some(tier) => groups(tier)?,
            None => BTreeMap::new(),
        };
        let known = names.values().map(|(job, _)| job.as_str());
        let keys = args.job.as_ref().map(|job| meant_keys(job, known)).unwrap_or_default();
        let (orphans, claimed) = (orphans(&config, root, store)?, BTreeMap::new());
        Ok(Ground { args, keys, memory, tiers, global, store: store_hash(store), orphans, names, claimed })
    }

    /// Does the user mean that job?
    fn is_meant(&self, key: &str) -> bool {
        self.args.job.as_ref().is_none_or(|job| is_job(key, job))
    }

    /// The living run of that job, according to its claim; `None`, too, if this cannot be found out.
    fn living_claim(&mut self, job: &Job) -> Option<String> {
        let tier = self.global.as_ref()?;
        let ask = || claimed(tier, &job.0, &job.1, "bivouac clean");
        self.claimed.entry(job.clone()).or_insert_with(ask).clone()
    }
}

/// All jobs and groups that have claims on a tier, by the hashes that segments have.
fn groups(tier: &DirectoryTier) -> Result<BTreeMap<(u64, u64), Job>, String> {
    let list = |path: &Path| match tier.storage().list(path) {
        Ok(entries) => Ok(entries
            .into_iter()
            .filter(|entry| entry.is_dir && is_component(&entry.name))
            .map(|entry| entry.name)
            .collect::<Vec<_>>()),
        Err(error) => Err(format!("cannot list {}: {error}", path.display())),
    };
    let mut found = BTreeMap::new();
    for job in list(tier.root())? {
        for group in list(&tier.root().join(&job))? {
            if living::claims(tier, &job, &group).is_some() {
                found.insert((text_hash(&job), text_hash(&group)), (job.clone(), group));
            }
        }
    }
    Ok(found)
}

// ------------------------------------------------------------------------------------------- segments

impl Ground<'_> {
    /// Opens all segments of a folder that the user may mean. Segments that cannot be opened are decided on at once.
    fn open_all(
        &self,
        folder: &Path,
        stocks: &mut Vec<(Stock, Vec<LedgerEntry<Series>>)>,
        removal: &mut Removal,
    ) -> Result<(), String> {
        for name in memory::names(folder).map_err(|error| error.to_string())? {
            match Stock::open(folder, &name) {
                Ok(stock) => {
                    let copies = stock.entries();
                    let of = |job: &String| living::is_meant(&stock, &copies, &self.keys, job);
                    if self.args.job.as_ref().is_none_or(of) {
                        stocks.push((stock, copies));
                    }
                }
                Err(SegmentError::NotFound { .. }) => {}
                Err(error) => self.add_unreadable(folder, &name, &error, removal),
            }
        }
        Ok(())
    }

    /// Decides on a segment whose header cannot be used: it is unfinished, damaged, or made by another version of the library.
    fn add_unreadable(&self, folder: &Path, name: &str, error: &SegmentError, removal: &mut Removal) {
        let path = folder.join(name);
        if !self.args.all_dead && !is_segment_of(name, &self.keys) {
            return;
        }
        match (error, segment::is_held(folder, name)) {
            (_, Ok(true)) => removal.keep(&path, "its run is alive".into()),
            (SegmentError::Damaged { source: FormatError::Version { .. }, .. }, _) if !self.args.even_newest => {
                let why = format!("{error}; --even-newest removes it nevertheless");
                removal.problems.add(format!("{} is kept: {why}", path.display()));
                removal.keep(&path, why);
            }
            (SegmentError::Unfinished { .. } | SegmentError::Damaged { .. }, Ok(false)) => {
                removal.doomed.push(Doomed::Garbage(folder.to_owned(), name.to_owned()));
            }
            (error, _) => removal.problems.add(error.to_string()),
        }
    }

    fn add_segments(&mut self, stocks: Vec<(Stock, Vec<LedgerEntry<Series>>)>, removal: &mut Removal) {
        let group = |stock: &Stock| (stock.segment.header().job, stock.segment.header().group);
        let living: BTreeSet<(u64, u64)> =
            stocks.iter().filter(|(stock, _)| stock.is_alive).map(|(stock, _)| group(stock)).collect();
        let only = self.only_copies_by_store(&stocks, removal);
        for (stock, copies) in stocks {
            let path = stock.segment.path().to_owned();
            let names: BTreeSet<Job> = self
                .names
                .get(&group(&stock))
                .cloned()
                .into_iter()
                .chain(copies.iter().map(|copy| (copy.series.job.clone(), copy.series.group.clone())))
                .collect();
            let alive = if stock.is_alive {
                Some("its run is alive".to_owned())
            } else if living.contains(&group(&stock)) {
                Some("a later run of its job is alive, and may need it".to_owned())
            } else {
                names.iter().find_map(|job| self.living_claim(job))
            };
            let held = copies
                .iter()
                .filter(|copy| only.contains(&(stock.segment.header().store, copy.series.clone(), copy.taken)))
                .map(|copy| format!("version {} of {}", copy.version, copy.series.name));
            let held: BTreeSet<String> = held.collect();
            if let Some(why) = alive {
                if self.args.job.is_some() {
                    removal.problems.add(format!("{} is kept: {why}", path.display()));
                }
                removal.keep(&path, why);
            } else if !held.is_empty() && !self.args.even_newest {
                let held = list(held.into_iter(), VERSIONS_MAX, ", ");
                let what = format!(
                    "it may hold the only copy of {held} (the newest, or the newest that survives the loss of a node)"
                );
                let why = match is_of_another(stock.segment.header().store, self.store) {
                    true => {
                        format!("{what}, and it belongs to another store: if that store is gone, give --even-newest")
                    }
                    false => {
                        format!("{what}; bring it to the global directory first (bivouac drain), or give --even-newest")
                    }
                };
                removal.problems.add(format!("{} is kept: {why}", path.display()));
                removal.keep(&path, why);
            } else {
                removal.doomed.push(Doomed::Segment(Box::new(stock)));
            }
        }
    }

    /// The copies of all dead runs that must not be removed: store, series, generation and operation. Generations of different
    /// stores are unrelated.
    fn only_copies_by_store(
        &self,
        stocks: &[(Stock, Vec<LedgerEntry<Series>>)],
        removal: &mut Removal,
    ) -> BTreeSet<(u64, Series, Moment)> {
        let mut dead: BTreeMap<u64, Vec<LedgerEntry<Series>>> = BTreeMap::new();
        for (stock, copies) in stocks.iter().filter(|(stock, _)| !stock.is_alive) {
            dead.entry(stock.segment.header().store).or_default().extend(copies.iter().cloned());
        }
        let mut only = BTreeSet::new();
        for (store, copies) in &dead {
            let durable = match is_of_another(*store, self.store) {
                true => Ok(BTreeMap::new()),
                false => self.durable(copies),
            };
            let durable = durable.unwrap_or_else(|problem| {
                removal.problems.add(problem);
                BTreeMap::new()
            });
            let ledger = Ledger::new(copies.clone()).with_elsewhere(durable);
            let needed = ledger.entries().iter().zip(ledger.judge(&Occasion::Ended));
            let needed = needed.filter(|(_, ruling)| !ruling.may_go());
            only.extend(needed.map(|(entry, _)| (*store, entry.series.clone(), entry.taken)));
        }
        only
    }

    /// The newest version of each series that is complete on the global tier.
    fn durable(&self, copies: &[LedgerEntry<Series>]) -> Result<BTreeMap<Series, Elsewhere>, String> {
        let mut durable = BTreeMap::new();
        let Some(tier) = &self.global else { return Ok(durable) };
        let all: BTreeSet<&Series> = copies.iter().map(|copy| &copy.series).collect();
        for series in all.into_iter().filter(|series| tier.series_path(series).is_dir()) {
            let parts = vec![series.job.clone(), series.group.clone(), series.name.clone()];
            let (found, _) =
                survey(&Scope { tier: Arc::new(tier.clone()), parts }).map_err(|error| error.to_string())?;
            let whole = found.iter().filter(|found| matches!(found.state, State::Committed | State::Restorable));
            let taken = whole.map(|found| Moment { generation: found.order.0, operation: found.order.2 });
            let newest = taken.max();
            durable.insert(series.clone(), Elsewhere { durable: newest, global: newest });
        }
        Ok(durable)
    }
}

// ------------------------------------------------------------------------------------------- orphans

impl Ground<'_> {
    /// Adds local copies of stores that are gone. These may be all that is left of a job, or the store's file system may
    /// just not be mounted.
    fn add_orphans(&self, removal: &mut Removal) -> Result<(), String> {
        for orphan in self.orphans.iter().filter(|orphan| orphan.is_gone) {
            let tier = own_tier(TierId::LOCAL, Arc::new(PosixStorage::new(Direct::Off)), orphan.path.clone())?;
            for job in reset::folders(&orphan.path)?.into_iter().filter(|job| self.is_meant(job) && !is_local_name(job))
            {
                if self.args.even_newest {
                    reset::add_tree(&tier, &job, &self.memory[0], removal)?;
                    continue;
                }
                let why = format!(
                    "it belongs to the store {}, which cannot be found: if that store is gone, not just unmounted, give --even-newest",
                    orphan.global
                );
                removal.keep(&orphan.path.join(job), why);
            }
        }
        Ok(())
    }
}

// ------------------------------------------------------------------------------------------- temp files

impl Ground<'_> {
    fn add_temps(&mut self, tier: &DirectoryTier, removal: &mut Removal) -> Result<(), String> {
        let series = tier.all_series().map_err(|error| error.to_string())?;
        let meant: Vec<Series> = series.into_iter().filter(|series| self.is_meant(&series.job)).collect();
        for series in meant {
            for (generation, version, operation) in tier.folders(&series).map_err(|error| error.to_string())? {
                let key = CheckpointKey { generation, version, operation, ..Default::default() };
                let folder = tier.folder_path(&series, &key);
                let names = match tier.storage().list(&folder) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    other => other.map_err(|error| format!("cannot list {}: {error}", folder.display()))?,
                };
                for name in names.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(".tmp")) {
                    self.add_temp(tier, &series, generation, folder.join(name), removal);
                }
            }
        }
        Ok(())
    }

    fn add_temp(
        &mut self,
        tier: &DirectoryTier,
        series: &Series,
        generation: Generation,
        path: PathBuf,
        removal: &mut Removal,
    ) {
        let user = rustix::process::geteuid().as_raw();
        let is_ours = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.uid() == user);
        if !is_ours {
            return;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_locked_by_writer = name.contains(".drain-");
        let why = if is_locked_by_writer {
            let is_here = name.contains(&format!(".{}-", host_tag(&living::host())));
            match tier.storage().is_locked(&path) {
                Ok(true) => Some("a drain is writing it".to_owned()),
                _ if !is_here => Some(
                    "a drain on another host wrote it, and only that host can tell whether the drain still runs"
                        .to_owned(),
                ),
                _ => None,
            }
        } else {
            self.living_writer(tier, series, generation)
        };
        match why {
            Some(why) => removal.keep(&path, why),
            None => removal.doomed.push(Doomed::Temp { tier: tier.clone(), path, is_locked_by_writer }),
        }
    }

    /// Why the run that writes there may be alive; `None` if it is known to be dead.
    fn living_writer(&mut self, tier: &DirectoryTier, series: &Series, generation: Generation) -> Option<String> {
        let job = (series.job.clone(), series.group.clone());
        if let Some(why) = self.memory.iter().find_map(|folder| living_segment(folder, &job.0, &job.1)) {
            return Some(why);
        }
        let has_claims = |tier: &DirectoryTier| living::claims(tier, &job.0, &job.1).is_some();
        if tier.kind() == TierId::GLOBAL && has_claims(tier) {
            return claimed(tier, &job.0, &job.1, "bivouac clean");
        }
        if self.global.as_ref().is_some_and(has_claims) {
            return self.living_claim(&job);
        }
        let hashes = (text_hash(&job.0), text_hash(&job.1));
        let is_dead = |folder: &PathBuf| {
            let stocks = memory::names(folder)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|name| Stock::open(folder, &name).ok());
            stocks
                .map(|stock| *stock.segment.header())
                .any(|header| (header.job, header.group) == hashes && header.generation == generation)
        };
        // A segment of that run exists here, and no process uses it.
        (!self.memory.iter().any(is_dead)).then(|| "cannot tell whether its run is alive: give --global DIR".into())
    }
}
