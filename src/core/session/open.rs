//! Opening a session: three short agreements, then the engine.
//!
//! 1. *Introduce*: the root makes or reads the store id, and tells all ranks its configuration, the job's key and the run's identity.
//! 2. *Compare and claim*: every rank compares its configuration, prepares its tiers and reports the largest generation that it has seen.
//!    The root claims the next generation. A tier that some rank cannot use is off for all ranks.
//! 3. *Attach*: the node's first rank makes the segment, all ranks agree that this is done, and the others attach. A node without a segment
//!    continues without it.

use super::domains::node_domains;
use super::error::{Error, Result};
use super::events::{events_of, opened_of, run_directory};
use super::layer::GOODBYE_LIMIT;
use super::looking::{LOOK, found, look_within, tiers};
use super::place::{Place, Workers, job_key, local_name, segment_generation, segment_name, segment_prefix, store_hash};
use super::summary::{Opening, importance};
use crate::affinity::keeper::{Keeper, Settings};
use crate::base::calendar::unix_now;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::units::Bytes;
use crate::base::{Clock, Generation, Incarnation, Rank};
use crate::comm::Comm;
use crate::config::{AffinityMode, Config, JobConfig, Timeouts};
use crate::coordination::core::{Effect, Event};
use crate::coordination::{Ballot, Culprit, Driver, Outcome, Payload, Phase, Ranks, Round, Verdict};
use crate::format::codec;
use crate::format::events::What;
use crate::format::profile::Profile;
use crate::format::supervision::Status;
use crate::planner::estimate::{Seen, after, of_ranks};
use crate::policy::tuning::Expected;
use crate::recovery::discover::open_segments;
use crate::redundancy::Protection;
use crate::segment::{OldSegment, Segment, SegmentSpec, available_memory, budget_bytes, strangers};
use crate::tier::claims::{Claim, ClaimError, ClaimRecord, Claims};
use crate::tier::directory::DirectoryTier;
use crate::tier::names::{Series, is_component};
use crate::tier::ours::{self, Trust};
use crate::tier::owner::{LocalOwner, OWNER_FILE};
use crate::tier::run_directory::RunDirectory;
use crate::tier::{Make, Tier, TierError, TierId, TierSet, maker};
use crate::transfer::profile::{ProfileFile, start};
use crate::transfer::{Engine, Identity, Setup, Supervision, Teller};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A start that comes later than this many seconds after a failure does not count as a relaunch.
const RELAUNCH_MAX: f64 = 600.0;

/// The information that the root sends to all ranks first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Introduction {
    config: Vec<(String, String)>,
    job: String,
    group: String,
    incarnation: Incarnation,
    store: Option<Incarnation>,
    /// The tiers that all nodes share but that the root cannot use, each with the reason.
    failures: Vec<(TierId, String)>,
    /// Whether the root has a run directory.
    supervised: bool,
}

/// The information that the root sends to all ranks after the claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Opened {
    generation: Generation,
    tiers: TierSet,
    notes: Vec<Culprit>,
}

/// A tier that was wanted and cannot be used, and the ranks that cannot use it.
pub(super) type Lost = (TierId, Vec<Culprit>);

/// The beginning of the text of a rank that cannot use `tier`. The other ranks recognise the tier by this beginning.
fn opening_of(tier: TierId) -> String {
    format!("{tier} tier: ")
}

/// The identity by which claims name this process: the random identity of its first session.
static PROCESS: OnceLock<Incarnation> = OnceLock::new();

/// The notes about `tier`. A note that names no ranks may be about any tier.
fn about(tier: TierId, notes: &[Culprit]) -> Vec<Culprit> {
    let is_about = |note: &&Culprit| note.ranks.named().is_empty() || note.text.starts_with(&opening_of(tier));
    notes.iter().filter(is_about).cloned().collect()
}

/// Makes collective calls before the engine exists.
pub(super) struct Bootstrap<'a> {
    driver: Driver,
    clock: &'a dyn Clock,
    operation: u64,
}

impl Bootstrap<'_> {
    pub(super) fn agree(
        &mut self,
        ballot: Ballot,
        decide: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>),
    ) -> Result<Verdict> {
        self.operation += 1;
        let round = Round { operation: self.operation, phase: Phase::Call };
        let mut events = vec![Event::Vote(round, ballot)];
        let mut decide = Some(decide);
        loop {
            let effects = self.driver.step(std::mem::take(&mut events))?;
            let idle = effects.is_empty();
            for effect in effects {
                match effect {
                    Effect::Decide(round, ballot) => {
                        for note in ballot.notes() {
                            log::warn!("{note}");
                        }
                        let answer = decide.take().map(|decide| decide(&ballot));
                        let (outcome, decision) = answer.unwrap_or((Outcome::Unknown, Vec::new()));
                        events.push(Event::Decided { round, outcome, decision });
                    }
                    Effect::Settled(verdict) if verdict.round == round => {
                        return match verdict.outcome {
                            Outcome::Agreed => Ok(verdict),
                            Outcome::Abandoned(culprits) => {
                                // All ranks leave, so this rank must forward the verdict before it leaves too.
                                if let Err(error) = self.driver.quiesce(GOODBYE_LIMIT) {
                                    log::debug!("event=no-goodbye error={error}");
                                }
                                Err(Error::Open { culprits })
                            }
                            Outcome::Unknown => Err(Error::Failed { reason: "the root did not answer in open".into() }),
                        };
                    }
                    Effect::Waiting { waited, missing, .. } => {
                        log::warn!("event=waiting call=open waited_s={:.0} missing={missing:?}", waited.as_secs_f64());
                    }
                    Effect::Settled(_) | Effect::Send(..) => {}
                }
            }
            if idle && events.is_empty() {
                self.clock.sleep(Duration::from_micros(100));
            }
        }
    }
}

/// Opens the engine of one rank. `mistake` says why this rank has no usable configuration.
///
/// # Collective
/// All ranks of `comm`.
///
/// # Errors
/// [`Error::Open`], the same on all ranks, with the ranks that failed or whose configuration differs.
pub fn open(comm: Box<dyn Comm>, place: &Place, config: Config, mistake: Option<String>) -> Result<Arc<Engine>> {
    let (rank, size) = (comm.rank(), comm.size());
    let nodes = comm.nodes().to_vec();
    // The configuration is checked only here: a rank that stayed away because of its own mistake would leave the others waiting.
    let mistake = mistake.or_else(|| config.check().err().map(|error| error.to_string()));
    let timeouts = if mistake.is_none() { config.job.timeouts } else { Timeouts::default() };
    let driver = Driver::new(comm, place.clock.clone(), timeouts);
    let mut bootstrap = Bootstrap { driver, clock: &*place.clock, operation: 0 };

    let introduction = introduce(&mut bootstrap, rank, place, &config, mistake)?;
    let prepared = prepare(rank, place, &config, &introduction);
    let (opened, claim) = claim(&mut bootstrap, rank, size, place, &config, &introduction, &prepared)?;
    let identity = identity_of(&introduction, opened.generation, rank, &nodes);
    let mut lost = lost_files(&config, &opened);
    let Memory { segment: memory, old, without } = match config.job.memory_enabled {
        true => open_memory(&mut bootstrap, &identity, &config)?,
        false => Memory::default(),
    };
    if !without.is_empty() {
        lost.insert(0, (TierId::MEMORY, without));
    }
    log::debug!(
        "event=opened rank={rank} size={size} job={} group={} generation={} incarnation={} memory={} tiers={:?}",
        identity.job,
        identity.group,
        identity.generation,
        identity.incarnation,
        memory.is_some(),
        opened.tiers
    );
    let protection = protect(&mut bootstrap, rank, &nodes, place, &config)?;
    let teller = config.node.run_directory.as_ref().filter(|_| rank == Rank::ROOT);
    let elsewhere = config.node.events_directory.as_ref();
    let teller = teller.map(|directory| teller_of(&place.directory.join(directory), elsewhere, place, &identity));
    let events = events_of(&config, place, &identity);
    lost.extend(lost_redundancy(&config, &protection, size));
    let file = profile_of(&config, place, &nodes, rank);
    // The profile is used only for choices that the configuration leaves open.
    let known = file.as_ref().filter(|_| config.job.has_auto()).and_then(ProfileFile::read);
    let mut setup = Setup {
        lost,
        affinity: None,
        scratch: PathBuf::new(),
        supervision: Supervision::of(introduction.supervised, teller, events),
        identity,
        clock: place.clock.clone(),
        memory,
        tiers: prepared.into_open(opened.tiers),
        protection,
        claim,
        expected: expected(&config, place, &nodes, rank, known.as_ref()),
        profile: file,
        start: known.as_ref().and_then(start),
        is_inline: place.workers == Workers::Inline,
        is_stepped: place.workers == Workers::Writers,
        later: place.later.clone(),
        config,
    };
    if rank == Rank::ROOT && place.is_real && log::is_on(log::Level::Warn, log::SUMMARY) {
        tell_opening(&setup, &nodes, &old);
    }
    // The keeper starts with the threads that exist now. The thread that looked at the file systems for the opening line has ended, unless
    // a file system is slow.
    setup.affinity = keeper_of(place, &setup);
    setup.scratch = scratch(place, &setup, &introduction.job);
    let operation = bootstrap.operation;
    let opened = setup.supervision.events.is_some().then(|| What::Opened(Box::new(opened_of(&setup, place))));
    let engine = Engine::new(setup, bootstrap.driver, operation);
    if let Some(opened) = opened {
        engine.note_event(opened);
    }
    engine.keep_until_commit(old);
    engine.write_status();
    Ok(Arc::new(engine))
}

/// The directory for the files that the program writes itself: next to the files of the local tier, or where those would be if the tier
/// were on.
fn scratch(place: &Place, setup: &Setup, job: &str) -> PathBuf {
    let local = setup.tier(TierId::LOCAL).map(|tier| tier.root().to_owned());
    let configured = setup.config.node.local_directory.as_ref().map(|directory| place.directory.join(directory));
    let name = || local_name(setup.identity.store, job, place.user);
    local.or(configured).unwrap_or_else(|| place.temporary.join(name()))
}

/// The identity of this rank. `nodes` gives the node of every rank.
fn identity_of(introduction: &Introduction, generation: Generation, rank: Rank, nodes: &[u32]) -> Identity {
    let size = nodes.len() as u32;
    let my_node = nodes[rank.index()];
    Identity {
        job: introduction.job.clone(),
        group: introduction.group.clone(),
        generation,
        incarnation: introduction.incarnation,
        store: introduction.store,
        rank,
        size,
        node_ranks: (0..size).map(Rank).filter(|peer| nodes[peer.index()] == my_node).collect(),
    }
}

/// The file tiers that were wanted and cannot be used.
fn lost_files(config: &Config, opened: &Opened) -> Vec<Lost> {
    let wanted = TierId::files().filter(|tier| tier.wish(&config.job).is_enabled);
    wanted.filter(|tier| !opened.tiers.has(*tier)).map(|tier| (tier, about(tier, &opened.notes))).collect()
}

/// This rank's part in the redundancy sets. The root warns if there is less redundancy than was asked for.
fn protect(
    bootstrap: &mut Bootstrap<'_>,
    rank: Rank,
    nodes: &[u32],
    place: &Place,
    config: &Config,
) -> Result<Protection> {
    let node_domains = node_domains(bootstrap, rank, nodes, place, config)?;
    let protection = Protection::new(rank, nodes, &node_domains.domains, &config.job.redundancy.schemes());
    if rank == Rank::ROOT {
        for note in node_domains.notes.iter().chain(&protection.notes) {
            log::warn!("event=redundancy-reduced {note}");
        }
    }
    Ok(protection)
}

/// The redundancy tier and the reason, if redundancy was wanted but is not possible.
fn lost_redundancy(config: &Config, protection: &Protection, size: u32) -> Option<Lost> {
    let is_lost = protection.schemes().is_empty() && !config.job.redundancy.schemes().is_empty();
    is_lost.then(|| {
        let culprit = Culprit { ranks: Ranks::all(size), text: protection.notes.join("; "), retry: true };
        (TierId::PEERS, vec![culprit])
    })
}

/// Writes the opening line for people: what the session uses, and which checkpoints it has found.
fn tell_opening(setup: &Setup, nodes: &[u32], old: &[OldSegment]) {
    let Setup { identity, protection, lost, .. } = setup;
    let seen = look_within(LOOK, setup.tiers.clone(), identity);
    let opening = Opening {
        job: &identity.job,
        group: &identity.group,
        ranks: identity.size,
        nodes: nodes.iter().max().map_or(0, |node| node + 1),
        generation: identity.generation.0,
        tiers: tiers(&setup.config, setup.memory.as_deref(), &setup.tiers, seen.as_deref(), lost),
        redundancy: match lost.iter().any(|(tier, _)| *tier == TierId::PEERS) {
            false => Ok(protection.schemes().iter().map(ToString::to_string).collect()),
            true => Err(protection.notes.join("; ")),
        },
        found: seen.as_deref().map(|seen| found(seen, old)),
    };
    log::log!(target: log::SUMMARY, importance(opening.is_loss()), "{}", opening.line());
}

/// Makes the keeper, which records where this rank's threads and pages are; `None` if affinity is off.
fn keeper_of(place: &Place, setup: &Setup) -> Option<Arc<Keeper>> {
    let Setup { identity, config, .. } = setup;
    let is_on = place.is_real && place.workers != Workers::Inline && config.job.affinity != AffinityMode::Off;
    is_on.then(|| {
        Arc::new(Keeper::new(Settings {
            mode: config.job.affinity,
            config: config.node.affinity.clone(),
            rank: identity.rank.0,
            neighbours: identity.node_ranks.iter().map(|rank| rank.0).collect(),
        }))
    })
}

/// How often the job is expected to fail, according to the configuration, to its earlier attempts, or to the failures that other runs have
/// seen. Only the root needs this, and only if it chooses an interval.
fn expected(config: &Config, place: &Place, nodes: &[u32], rank: Rank, known: Option<&Profile>) -> Expected {
    if rank != Rank::ROOT || !config.job.has_auto() {
        return Expected::default();
    }
    let count = node_count(nodes);
    let parts = of_ranks(nodes.len() as u64, count);
    let attempts = run_directory(config, place).map_or(Ok(Vec::new()), |directory| directory.read_attempts());
    let attempts = attempts.unwrap_or_else(|error| {
        log::warn!("event=attempts-not-read error={error}: failures are estimated without them");
        Vec::new()
    });
    // The profile has the failures of runs with other run directories.
    let told = known.and_then(|profile| profile.failures.as_ref()).filter(|_| attempts.is_empty());
    let failures = match config.job.interval.mtbf {
        Some(mtbf) => parts.each(count, mtbf.as_secs_f64()),
        None => after(&parts, &told.map_or_else(|| Seen::of(&attempts), Seen::told)),
    };
    // The time since the last attempt failed shows how long a relaunch takes.
    let since = attempts.last().filter(|last| last.has_failed()).map(|last| unix_now() - last.ended);
    let relaunch = since.filter(|since| (0.0..RELAUNCH_MAX).contains(since)).unwrap_or(0.0);
    Expected { rates: failures.by_level(count), relaunch }
}

fn node_count(nodes: &[u32]) -> u64 {
    nodes.iter().max().map_or(1, |node| u64::from(*node) + 1)
}

/// The machine profile, if one is configured. Only the root uses it.
fn profile_of(config: &Config, place: &Place, nodes: &[u32], rank: Rank) -> Option<ProfileFile> {
    let path = config.node.profile.as_ref().filter(|_| rank == Rank::ROOT)?;
    let (host, command) = (&place.host, &place.command);
    Some(ProfileFile::new(place.directory.join(path), node_count(nodes), host, command, run_directory(config, place)))
}

fn teller_of(directory: &Path, events: Option<&PathBuf>, place: &Place, identity: &Identity) -> Teller {
    let base = Status {
        job: identity.job.clone(),
        group: identity.group.clone(),
        ranks: identity.size,
        host: place.host.clone(),
        pid: std::process::id(),
        generation: identity.generation.0,
        incarnation: identity.incarnation.to_string(),
        events: events.map(|path| place.directory.join(path).display().to_string()).unwrap_or_default(),
        ..Status::new()
    };
    Teller::new(RunDirectory::at(directory), base)
}

fn introduce(
    bootstrap: &mut Bootstrap<'_>,
    rank: Rank,
    place: &Place,
    config: &Config,
    mistake: Option<String>,
) -> Result<Introduction> {
    let mut ballot = Ballot::of(rank, 0, "open", Payload::None);
    for note in &config.notes {
        ballot = ballot.noted(rank, note);
    }
    if let Some(text) = mistake {
        ballot = ballot.failed(rank, text, false);
    }
    let verdict = bootstrap.agree(ballot, |ballot| {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let (store, failures) = hold_stores(place, config);
        let root = store_root(config, place);
        if store == Some(place.fresh) && config.node.local_directory.is_none() {
            for path in earlier_locals(place, &root) {
                log::warn!(
                    "event=new-store path={}: no store was there, and one has been made. {} has local copies of the one that was there \
                     before, which are not looked at: if that file system is just not mounted, end this job and mount it",
                    root,
                    path.display()
                );
            }
        }
        let introduction = Introduction {
            config: config.job.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            job: job_key(config, place),
            group: config.job.group.clone().unwrap_or_else(|| place.group.clone()),
            incarnation: place.fresh,
            store,
            failures,
            supervised: config.node.run_directory.is_some(),
        };
        Outcome::agreed("introduction", &introduction)
    })?;
    codec::decode("introduction", &verdict.decision).map_err(|error| Error::Failed { reason: error.to_string() })
}

/// The location of the configured store, by which local directories name it: the store's root on the nearest tier that all nodes share.
fn store_root(config: &Config, place: &Place) -> String {
    let nearest = shared(config).find_map(|(_, make)| make(&place.around(config)).ok());
    nearest.map_or_else(String::new, |tier| tier.root().display().to_string())
}

/// The wanted tiers that all nodes share, nearest first.
fn shared(config: &Config) -> impl Iterator<Item = (TierId, Make)> {
    let wanted = TierId::files().filter(|tier| tier.wish(&config.job).is_enabled);
    wanted.filter_map(|tier| Some((tier, maker(tier)?)))
}

/// Opens the store on each tier that all nodes share. The nearest tier that has a store id determines the id for all. A tier that was
/// emptied is given this id.
fn hold_stores(place: &Place, config: &Config) -> (Option<Incarnation>, Vec<(TierId, String)>) {
    let made: Vec<_> = shared(config).map(|(tier, make)| (tier, make(&place.around(config)))).collect();
    let find = |(_, made): &(TierId, Usable)| made.as_ref().ok().and_then(|made| made.find_store().ok().flatten());
    let known = if made.len() > 1 { made.iter().find_map(find) } else { None };
    let (mut store, mut failures) = (None, Vec::new());
    for (tier, made) in made {
        let fresh = known.or(store).unwrap_or(place.fresh);
        let hold = |made: Arc<dyn Tier>| {
            let found = made.hold_store(fresh, &*place.clock).map_err(|error| error.to_string())?;
            match store.is_some_and(|store| store != found) {
                false => Ok(found),
                true => Err(format!(
                    "{tier} tier: {} belongs to another store than the nearer tier does: give each store a place of its own, or switch \
                     one of both off",
                    made.root().display()
                )),
            }
        };
        match made.and_then(hold) {
            Ok(found) => store = Some(found),
            Err(why) => failures.push((tier, why)),
        }
    }
    (store, failures)
}

/// A tier, or why this rank cannot use it.
type Usable = std::result::Result<Arc<dyn Tier>, String>;

/// The tiers that this rank can use, and the generations that it has seen.
struct Prepared {
    /// The tiers that are wanted, nearest first.
    usable: Vec<(TierId, Usable)>,
    /// The largest generation that this rank has seen anywhere.
    seen: Generation,
}

impl Prepared {
    /// The tiers that this rank can use.
    fn tiers(&self) -> impl Iterator<Item = &Arc<dyn Tier>> {
        self.usable.iter().filter_map(|(_, usable)| usable.as_ref().ok())
    }

    /// This rank's tiers that are in `open`, the set of tiers that all ranks can use.
    fn into_open(self, open: TierSet) -> Vec<Arc<dyn Tier>> {
        self.usable.into_iter().filter_map(|(_, tier)| tier.ok()).filter(|tier| open.has(tier.kind())).collect()
    }
}

fn prepare(rank: Rank, place: &Place, config: &Config, introduction: &Introduction) -> Prepared {
    let mut seen = Generation(0);
    let mut usable: Vec<(TierId, Usable)> = Vec::new();
    if config.job.local_enabled {
        let local = prepare_local(rank, place, config, introduction);
        usable.push((TierId::LOCAL, look_for_runs(local, introduction, &mut seen)));
    }
    for (tier, make) in shared(config) {
        let failure = introduction.failures.iter().find(|(of, _)| *of == tier).map(|(_, why)| why.clone());
        let found = failure.map_or_else(|| make(&place.around(config)), Err);
        let found = found.and_then(|made| is_store(made, introduction));
        // Claims may have been lost while checkpoints remain. It is enough if one rank looks at what all ranks share.
        let found = if rank == Rank::ROOT { look_for_runs(found, introduction, &mut seen) } else { found };
        usable.push((tier, found));
    }
    if config.job.memory_enabled {
        let prefix = segment_prefix(&introduction.job, &introduction.group);
        let names = crate::segment::list(&config.node.memory_directory, &prefix).unwrap_or_default();
        seen = names.iter().filter_map(|name| segment_generation(name, &prefix)).fold(seen, Generation::max);
    }
    Prepared { usable, seen }
}

/// Refuses a tier on which this rank does not see the same store as the root.
fn is_store(made: Arc<dyn Tier>, introduction: &Introduction) -> Usable {
    let found = made.find_store().map_err(|error| error.to_string())?;
    match found == introduction.store {
        true => Ok(made),
        false => Err(format!(
            "{} tier: {} is not the same store as the root's: do all nodes share it?",
            made.kind(),
            made.root().display()
        )),
    }
}

/// Raises `seen` to the largest generation of a checkpoint on a tier. A tier whose generations cannot be read is not used: a new run with
/// the number of an older run would be taken for that older run.
fn look_for_runs(tier: Usable, introduction: &Introduction, seen: &mut Generation) -> Usable {
    let tier = tier?;
    *seen = largest_generation(&*tier, introduction).map_err(|error| error.to_string())?.max(*seen);
    Ok(tier)
}

fn largest_generation(tier: &dyn Tier, introduction: &Introduction) -> std::result::Result<Generation, TierError> {
    let mut largest = Generation::default();
    for name in tier.names(&introduction.job, &introduction.group)? {
        let series = Series { job: introduction.job.clone(), group: introduction.group.clone(), name };
        largest = tier.folders(&series)?.first().map_or(largest, |folder| folder.0.max(largest));
    }
    Ok(largest)
}

fn prepare_local(rank: Rank, place: &Place, config: &Config, introduction: &Introduction) -> Usable {
    let root = local_root(place, config, introduction)?;
    let wrap = |action, source| TierError::io(TierId::LOCAL, action, &root, source).to_string();
    if place.is_real
        && !config.node.local_allow_tmpfs
        && is_memory_backed(&root).map_err(|source| wrap("inspect", source))?
    {
        return Err(format!(
            "local tier: {} is a tmpfs, which a reboot empties: set local.directory to a disk, or set local.allow_tmpfs",
            root.display()
        ));
    }
    // Other jobs of this user may be trying the same directory at this moment, each with a rank of the same number.
    let probe = root.join(format!("probe-{}-r{:06}", introduction.incarnation, rank.0));
    place.local.write_all(&probe, b"probe").map_err(|source| wrap("write to", source))?;
    place.local.remove_file(&probe).map_err(|source| wrap("delete in", source))?;
    Ok(Arc::new(DirectoryTier::new(TierId::LOCAL, place.local.clone(), root)))
}

/// The directory of the local tier: the configured one, or a folder of this user in a place that others share. A directory that belongs to
/// another store is left to that store, and a folder inside it is used.
fn local_root(place: &Place, config: &Config, introduction: &Introduction) -> std::result::Result<PathBuf, String> {
    let configured = config.node.local_directory.as_ref().map(|directory| place.directory.join(directory));
    let around = configured.as_ref().unwrap_or(&place.temporary);
    let name = local_name(introduction.store, &introduction.job, place.user);
    let make = |directory: &Path| place.local.create_dir_all(directory);
    let private = |around: &Path| match place.is_real {
        true => make(around).and_then(|()| ours::private_folder(around, &name)),
        false => make(&around.join(&name)).map(|()| around.join(&name)),
    };
    let wrap = |source| TierError::io(TierId::LOCAL, "use", around, source).to_string();
    let global = introduction.store.map_or_else(String::new, |_| store_root(config, place));
    let owner = LocalOwner { name: name.clone(), global };
    // Takes a directory, unless it belongs to another store, and returns the directory's owner.
    let take = |root: &Path| {
        place.local.hold(root, Trust::Ours).map_err(wrap)?;
        owner.settle(&*place.local, root, &*place.clock).map_err(|error| error.to_string())
    };
    let Some(directory) = &configured else {
        // If the store cannot be reached, its name is not known, and its local copies may be the only copies.
        let is_cut_off = introduction.store.is_none() && !introduction.failures.is_empty();
        let earlier = if is_cut_off { earlier_locals(place, &store_root(config, place)) } else { Vec::new() };
        let root = earlier.into_iter().next().map_or_else(|| private(around).map_err(wrap), Ok)?;
        return take(&root).map(|_| root);
    };
    let found =
        if place.is_real { ours::own_place(directory, make) } else { make(directory).map(|()| directory.clone()) };
    let root = found.map_err(wrap)?;
    let theirs = take(&root)?;
    if !owner.is_another(&theirs) {
        return Ok(root);
    }
    let own = private(&root).map_err(wrap)?;
    let (theirs, instead) = (theirs.global, own.display());
    log::info!("event=local-directory-of-another-store path={} store={theirs} instead={instead}", root.display());
    take(&own).map(|_| own)
}

/// The private local folders of this user that belong to a store whose global directory is `global`, the most recent first.
fn earlier_locals(place: &Place, global: &str) -> Vec<PathBuf> {
    let prefix = format!("bivouac-{}-", place.user);
    let named = place.local.list(&place.temporary).unwrap_or_default().into_iter();
    let ours = named.filter(|entry| entry.is_dir && entry.name.starts_with(&prefix)).filter(|entry| {
        // The folder must not have been planted by another user.
        let is_private =
            || ours::private_folders(&place.temporary, &entry.name).is_ok_and(|(ours, _)| !ours.is_empty());
        !place.is_real || is_private()
    });
    let mut found: Vec<_> = ours
        .map(|entry| place.temporary.join(entry.name))
        .filter(|path| LocalOwner::of(&*place.local, path).is_some_and(|owner| owner.global == global))
        .map(|path| (place.local.modified(&path.join(OWNER_FILE)).ok(), path))
        .collect();
    found.sort_unstable();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn is_memory_backed(root: &Path) -> std::io::Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(root)?.f_type as u64;
    Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

#[allow(clippy::too_many_arguments)]
fn claim(
    bootstrap: &mut Bootstrap<'_>,
    rank: Rank,
    size: u32,
    place: &Place,
    config: &Config,
    introduction: &Introduction,
    prepared: &Prepared,
) -> Result<(Opened, Option<(Claims, Claim)>)> {
    let is_lost = |tier: TierId| prepared.usable.iter().any(|(of, usable)| *of == tier && usable.is_err());
    let lost = TierId::all().map(|tier| u64::from(is_lost(tier)));
    let payload = Payload::Max(std::iter::once(prepared.seen.0).chain(lost).collect());
    let mut ballot = Ballot::of(rank, 1, "open", payload);
    for (tier, usable) in &prepared.usable {
        if let Err(why) = usable {
            ballot = ballot.failed(rank, about_tier(*tier, why), !tier.wish(&config.job).is_required);
        }
    }
    let differences = JobConfig::differences(&config.job.entries(), &introduction.config);
    if !differences.is_empty() {
        let text: Vec<String> = differences.iter().map(ToString::to_string).collect();
        ballot = ballot.failed(rank, format!("configuration differs from rank 0's: {}", text.join(", ")), false);
    }
    if !is_component(&introduction.group) {
        ballot = ballot.failed(rank, format!("group name {:?} cannot be a folder name", introduction.group), false);
    }
    let claimed = Arc::new(Lock::new(None));
    let keep = claimed.clone();
    let verdict = bootstrap.agree(ballot, |ballot| {
        let refused: Vec<Culprit> = ballot.culprits().into_iter().filter(|culprit| !culprit.retry).collect();
        if !refused.is_empty() {
            return (Outcome::Abandoned(refused), Vec::new());
        }
        let Payload::Max(numbers) = &ballot.payload else { return (Outcome::Unknown, Vec::new()) };
        let number = |index: usize| numbers.get(index).copied().unwrap_or_default();
        let is_open = |tier: TierId| number(1 + usize::from(tier.index())) == 0;
        let open: Vec<&Arc<dyn Tier>> = prepared.tiers().filter(|tier| is_open(tier.kind())).collect();
        let seen = Generation(number(0));
        let generation =
            match home_of_claims(&open).map(|tier| make_claim(tier, seen, size, place, config, introduction)) {
                None => Generation(seen.0 + 1),
                Some(Ok((claims, claim))) => {
                    let generation = claim.generation();
                    *keep.lock() = Some((claims, claim));
                    generation
                }
                Some(Err(text)) => {
                    return (Outcome::Abandoned(vec![Culprit::of(rank, text)]), Vec::new());
                }
            };
        let tiers = open.iter().map(|tier| tier.kind()).collect();
        let opened = Opened { generation, tiers, notes: ballot.culprits() };
        Outcome::agreed("opened", &opened)
    })?;
    let opened =
        codec::decode("opened", &verdict.decision).map_err(|error| Error::Failed { reason: error.to_string() })?;
    let claim = claimed.lock().take();
    Ok((opened, claim))
}

/// Begins `text` with the name of its tier, unless it already does, as most errors do.
fn about_tier(tier: TierId, text: &str) -> String {
    let opening = opening_of(tier);
    format!("{opening}{}", text.strip_prefix(&opening).unwrap_or(text))
}

/// The tier on which a run claims to be the newest: the nearest tier that all nodes share and that can tell which claim came first,
/// otherwise a tier of the root's own node.
fn home_of_claims<'a>(open: &[&'a Arc<dyn Tier>]) -> Option<&'a dyn Tier> {
    let (shared, own): (Vec<&Arc<dyn Tier>>, Vec<_>) = open.iter().partition(|tier| tier.kind().spec().is_shared);
    for tier in shared.iter().filter(|tier| !tier.can_fence()) {
        log::warn!(
            "event=no-fence tier={} path={}: this place cannot tell who writes first, so neither of two simultaneous runs is refused: make \
             sure that only one is started",
            tier.kind(),
            tier.root().display()
        );
    }
    shared.into_iter().chain(own).find(|tier| tier.can_fence()).map(|tier| &**tier)
}

fn make_claim(
    tier: &dyn Tier,
    seen: Generation,
    size: u32,
    place: &Place,
    config: &Config,
    introduction: &Introduction,
) -> std::result::Result<(Claims, Claim), String> {
    let Introduction { job, group, .. } = introduction;
    let claims = Claims::new(tier.kind(), tier.records(), tier.root(), job, group);
    let record = ClaimRecord {
        incarnation: introduction.incarnation.to_string(),
        host: place.host.clone(),
        boot: place.boot.clone(),
        pid: std::process::id(),
        process: PROCESS.get_or_init(|| place.fresh).to_string(),
        program: place.command.chars().take(500).collect(),
        group_size: size,
    };
    let claim = claims.claim(seen, &record, config.job.take_over, &*place.clock);
    Ok((claims, claim.map_err(|error| refusal(&error, introduction))?))
}

/// Explains why a claim was refused. The run that is alive may be a session of this very process.
fn refusal(error: &ClaimError, Introduction { job, group, .. }: &Introduction) -> String {
    match error {
        ClaimError::Alive { generation, host, pid, is_ours: true, .. } => format!(
            "this process (process {pid} on {host}) has a session of job {job:?} and group {group:?} open already, as generation \
             {generation}. Close it first, or give the new session a group of its own (job.group)"
        ),
        other => other.to_string(),
    }
}

/// A rank's node memory.
#[derive(Default)]
struct Memory {
    segment: Option<Arc<Segment>>,
    /// The segments of older runs, which the node's first rank looks after; empty on the other ranks.
    old: Vec<OldSegment>,
    /// The ranks that cannot use node memory, and why. The list is the same on all ranks.
    without: Vec<Culprit>,
}

/// Opens the node's segment and, on the node's first rank, the segments of older runs.
///
/// The other ranks attach to the segment once the first rank has done its part. They do not wait for a segment that the first rank could
/// not make.
fn open_memory(bootstrap: &mut Bootstrap<'_>, identity: &Identity, config: &Config) -> Result<Memory> {
    let prefix = segment_prefix(&identity.job, &identity.group);
    let directory = config.node.memory_directory.clone();
    let node_rank = identity.node_ranks.iter().position(|rank| *rank == identity.rank).unwrap_or(0) as u32;
    let mut spec = SegmentSpec {
        directory: directory.clone(),
        name: segment_name(&identity.job, &identity.group, identity.generation, identity.incarnation),
        job: text_hash(&identity.job),
        group: text_hash(&identity.group),
        generation: identity.generation,
        incarnation: identity.incarnation,
        store: store_hash(identity.store),
        budget: 0,
        node_ranks: identity.node_ranks.len() as u32,
        group_size: identity.size,
    };
    let (mut old, mut note) = (Vec::new(), None);
    let created = (node_rank == 0).then(|| {
        for (path, owner) in strangers(&directory, &prefix) {
            log::warn!("event=foreign-segment path={} owner={owner}: it is left alone", path.display());
        }
        old = open_segments(&directory, &prefix, spec.store, &mut Vec::new());
        available_memory(&directory).and_then(|mut available| {
            // The memory of dead runs of this job is given back once this run has elected the checkpoint that it restores.
            let dead = old.iter().filter(|segment| !segment.is_alive().unwrap_or(true));
            let dead = dead.map(|segment| segment.allocated_bytes()).sum();
            available.least = available.least.saturating_add(dead);
            available.tmpfs = available.tmpfs.saturating_add(dead);
            spec.budget = budget_bytes(config.node.memory_budget, &available);
            if available.is_small_file_system() {
                note = Some(format!(
                    "event=small-memory-directory path={} free={} memory={}: node memory holds no more than that; mount it larger \
                     (of a container: --shm-size), or set memory.directory to a larger tmpfs",
                    directory.display(),
                    Bytes(available.tmpfs),
                    Bytes(available.mem_available)
                ));
            }
            log::info!("event=memory-budget rank={} bytes={} available={available:?}", identity.rank, spec.budget);
            Segment::create(&spec)
        })
    });
    let mut ballot = Ballot::of(identity.rank, 2, "open", Payload::None);
    if let Some(text) = note {
        ballot = ballot.noted(identity.rank, text);
    }
    bootstrap.agree(ballot, |_| (Outcome::Agreed, Vec::new()))?;
    let segment = created.unwrap_or_else(|| Segment::attach(&spec, node_rank));
    let old = old.into_iter().filter_map(Arc::into_inner).collect();
    let mut ballot = Ballot::of(identity.rank, 4, "open", Payload::None);
    if let Err(error) = &segment {
        let text = about_tier(TierId::MEMORY, &error.to_string());
        ballot = ballot.failed(identity.rank, text, !TierId::MEMORY.wish(&config.job).is_required);
    }
    let verdict = bootstrap.agree(ballot, |ballot| {
        let without = ballot.culprits();
        if without.iter().any(|culprit| !culprit.retry) {
            return (Outcome::Abandoned(without), Vec::new());
        }
        Outcome::agreed("memory", &without)
    })?;
    let without =
        codec::decode("memory", &verdict.decision).map_err(|error| Error::Failed { reason: error.to_string() })?;
    Ok(Memory { segment: segment.ok().map(Arc::new), old, without })
}
