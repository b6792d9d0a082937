//! The Rust API: a session on a communicator, checkpoints taken through it, and restarts.
//!
//! ```no_run
//! # #[cfg(feature = "mpi")]
//! # fn main() -> bivouac::Result<()> {
//! use bivouac::Session;
//! let universe = mpi::initialize().expect("MPI is not initialised yet");
//! let world = universe.world();
//! let session = Session::from_env(&world)?;
//! let (mut step, mut t) = (0u64, vec![0.0f64; 1 << 20]);
//! session.restart("heat", |r| {
//!     r.load("temperature", &mut t)?;
//!     step = r.value("step")?;
//!     Ok(())
//! })?;
//! while step < 1000 {
//!     step += 1; // … compute …
//!     if step % 100 == 0 {
//!         let mut ckpt = session.checkpoint("heat", step)?;
//!         ckpt.save("temperature", &t)?;
//!         ckpt.value("step", &step)?;
//!         ckpt.capture()?;
//!     }
//! }
//! session.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "mpi"))]
//! # fn main() {}
//! ```
//!
//! # Messages in flight
//!
//! A checkpoint is consistent if the application is: when a rank calls [`Checkpoint::capture`], its own communication
//! that the checkpoint depends on is complete. Bivouac sees the application's memory, not its messages; one that is still
//! on its way is in no checkpoint. Bivouac's own messages use a communicator of their own.
#![forbid(unsafe_code)]

mod decide;
mod domains;
mod error;
mod looking;
mod open;
pub mod place;
mod summary;
#[cfg(test)]
mod tests;

use crate::base::log;
use crate::base::sync::{Guard, Lock, Order};
pub use error::{Error, Result};

use crate::affinity::keeper::{AffinityReport, Whereabouts};
use crate::affinity::pinning::Pin;
use crate::base::Level;
use crate::base::calendar::unix_now;
use crate::base::ids::text_hash;
use crate::base::text::list;
use crate::base::units::page_ceil;
use crate::comm::Comm;
#[cfg(feature = "mpi")]
use crate::config::Timeouts;
use crate::config::{AffinityMode, Budget, Config};
use crate::coordination::{Ballot, Culprit, Outcome, Payload};
use crate::device::{Device, DeviceSpan, Stream};
use crate::format::supervision::RestoredFrom;
use crate::recovery::discover::{Reach, discover, open_segments};
use crate::recovery::election::origin_of;
use crate::recovery::remote::Peers;
use crate::recovery::{Elected, Election, RestartError, Restorer, Want};
use crate::region::{self, Element, RegionData, RegionError, SavedRegion};
use crate::tier::TierId;
use crate::tier::names::is_component;
#[cfg(any(feature = "mpi", test))]
use crate::transfer::HoldSpec;
use crate::transfer::checkpoint::{CaptureSpec, OnDevice};
use crate::transfer::history::{CacheConfig, Caches, History, index_name};
use crate::transfer::{Engine, Held, LevelVerdict, Progress, Report, Stats, Threads, Waited};
use decide::Decisions;
use place::{Place, Workers, segment_prefix, store_hash};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use summary::SERIES_NAMED;

/// How long `close` waits at least for the pieces of I/O in hand, when its limit has passed.
const LAST_PIECES: Duration = Duration::from_secs(1);
/// How long `close` lets its last messages travel.
const GOODBYE_LIMIT: Duration = Duration::from_secs(10);
/// The same when MPI is finalized under an open session.
#[cfg(feature = "mpi")]
const FINALIZE_LIMIT: Duration = Duration::from_secs(3);

/// A group of ranks that take and restore checkpoints together.
///
/// All methods marked *Collective* are called by all ranks of the group in the same order. A session belongs to one
/// thread at a time: it can be moved to another thread, but not shared.
pub struct Session {
    engine: Arc<Engine>,
    threads: Option<Arc<Lock<Threads>>>,
    decisions: RefCell<Decisions>,
    process: u32,
    #[cfg(feature = "mpi")]
    _hook: Option<crate::comm::mpi::FinalizeHook>,
    not_sync: PhantomData<Cell<()>>,
}

/// Before ranks wait for each other: how long they do, and who hears what has to be said meanwhile, such as which rank does not call. A
/// rank without a usable configuration does as the default says.
#[cfg(feature = "mpi")]
pub(crate) fn prepare_to_wait(config: std::result::Result<&Config, &String>) -> Timeouts {
    let default = Config::default();
    let config = config.unwrap_or(&default);
    log::configure(config.node.log);
    config.job.timeouts
}

/// The message layer of a session that is opened on a communicator, and who works for it: MPI with a thread of ours or without one,
/// or streams of our own, with which a thread does not need MPI's leave.
#[cfg(feature = "mpi")]
fn layer(
    mut comm: crate::comm::mpi::MpiComm,
    wanted: crate::config::Progress,
    timeouts: &Timeouts,
) -> Result<(Box<dyn Comm>, Workers)> {
    use crate::comm::sockets::{Opened, SocketComm};
    let is_threaded = comm.is_multiple() && wanted != crate::config::Progress::Stepped;
    let here = comm.nodes()[comm.rank().index()];
    let neighbours = comm.nodes().iter().filter(|node| **node == here).count();
    let wish = wish(wanted, is_threaded, is_crowded(neighbours, processors()));
    let unreachable = match SocketComm::open(&mut comm, wish, timeouts.abandon)? {
        Opened::Streams(streams) => {
            log::debug!("event=streams rank={} reason=\"MPI grants {}\"", comm.rank(), comm.thread_level());
            comm.quiesce(GOODBYE_LIMIT)?;
            comm.cancel();
            return Ok((streams, Workers::Threads));
        }
        Opened::NotWanted => None,
        Opened::Unreachable(why) => Some(why),
    };
    if let (Some(why), true) = (unreachable, comm.rank() == crate::base::Rank::ROOT) {
        let (level, line) = without_streams(&why, wanted, is_threaded, &comm.thread_level().to_string());
        log::log!(level, "{line}");
    }
    Ok((Box::new(comm), if is_threaded { Workers::Threads } else { Workers::Writers }))
}

/// What a rank thinks of streams that may have a thread work over MPI, or not.
#[cfg(any(feature = "mpi", test))]
fn wish(wanted: crate::config::Progress, is_threaded: bool, is_crowded: bool) -> crate::comm::sockets::Wish {
    use crate::comm::sockets::Wish;
    use crate::config::Progress;
    match wanted {
        Progress::Stepped => Wish::Refuse,
        Progress::Auto if is_threaded && !is_crowded => Wish::Whatever,
        Progress::Auto | Progress::Sockets => Wish::Need,
    }
}

/// What the root says where ranks do not reach each other by streams: a thread works over MPI then, or nobody but the application.
#[cfg(any(feature = "mpi", test))]
fn without_streams(
    why: &str,
    wanted: crate::config::Progress,
    is_threaded: bool,
    thread_level: &str,
) -> (log::Level, String) {
    if is_threaded {
        let is_said = wanted == crate::config::Progress::Sockets;
        let level = if is_said { log::Level::Warn } else { log::Level::Debug };
        return (level, format!("event=no-streams reason=\"{why}\": ranks talk over MPI"));
    }
    let line = format!(
        "event=no-comm-thread reason=\"MPI grants {thread_level}, and ranks do not reach each other without it: {why}\": \
         checkpoints are committed only while the application is in a call of the session; {}",
        crate::comm::sockets::INSTEAD
    );
    (log::Level::Warn, line)
}

/// Do ranks share processors? MPI's waiting calls then take them from each other: a vote over MPI took half a second with two ranks on
/// each of 16, over streams a tenth of that.
#[cfg(any(feature = "mpi", test))]
fn is_crowded(ranks: usize, processors: Option<usize>) -> bool {
    processors.is_some_and(|processors| ranks > processors)
}

/// How many processors this machine has, whichever of them this process may use: its neighbours have the others.
#[cfg(feature = "mpi")]
fn processors() -> Option<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    crate::base::units::parse_cpus(online.trim()).map(|online| online.len()).filter(|count| *count > 0)
}

/// What a restart restored.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// The version.
    pub version: u64,
    /// The run that took it.
    pub generation: u64,
    /// The farthest tier that this rank read from: `memory`, `local`, `peers` or `global`.
    pub tier: &'static str,
    /// Bytes that this rank read.
    pub bytes: u64,
    /// Seconds from the call to the agreement of all ranks.
    pub seconds: f64,
    /// How many of them had passed when the ranks had elected this checkpoint and began to load it.
    pub elect_seconds: f64,
    /// A later run had left this version behind; it was asked for by name.
    pub left_behind: bool,
}

/// A version that all ranks can restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The version.
    pub version: u64,
    /// The run that took it.
    pub generation: u64,
    /// A later run went back behind it: it is restored only by name.
    pub left_behind: bool,
}

impl Session {
    /// Opens a session on the ranks of `comm` with the configuration of the environment: the file that `BIVOUAC_CONFIG` names, and
    /// `BIVOUAC_…` variables. A rank whose configuration has a mistake takes part, and all ranks are told whose it is and what is
    /// wrong. `Session::open(&comm, Config::from_env()?)` would leave the others waiting for that rank.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// As [`Session::open`].
    ///
    /// # Errors
    /// As [`Session::open`].
    #[cfg(feature = "mpi")]
    pub fn from_env<C: mpi::traits::Communicator + ?Sized>(comm: &C) -> Result<Session> {
        Session::open_with(comm, Config::from_env())
    }

    /// Opens a session on the ranks of `comm`, which may be any intracommunicator; MPI may have been initialised by
    /// anybody at any thread level. A thread moves the coordination along: over MPI with `MPI_THREAD_MULTIPLE` and a processor for each rank, else (or with
    /// `engine.progress = "sockets"`) over sockets between the ranks. Where ranks do not reach each other so, which is logged, or with `engine.progress = "stepped"`, the
    /// session's own calls do ([`Session::progress`] helps when they are rare).
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// Until all ranks have called, at most for `timeouts.abandon`; for the file systems of the tiers; up to about ten seconds if a claim of another
    /// host has to be watched.
    ///
    /// # Errors
    /// [`Error::Open`], the same on all ranks: a configuration is invalid or they differ (ranks and keys named), or another
    /// run of the job is alive. [`Error::Comm`], for example because ranks have not called ([`crate::comm::CommError::Absent`]
    /// names them).
    #[cfg(feature = "mpi")]
    pub fn open<C: mpi::traits::Communicator + ?Sized>(comm: &C, config: Config) -> Result<Session> {
        Session::open_with::<C, String>(comm, Ok(config))
    }

    /// The same for a program that makes or changes its configuration: what came of that on this rank.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// As [`Session::open`].
    ///
    /// # Errors
    /// As [`Session::open`].
    #[cfg(feature = "mpi")]
    pub fn open_with<C: mpi::traits::Communicator + ?Sized, E: std::fmt::Display>(
        comm: &C,
        config: std::result::Result<Config, E>,
    ) -> Result<Session> {
        let config = config.map_err(|mistake| mistake.to_string());
        let timeouts = prepare_to_wait(config.as_ref());
        Session::open_on_mpi(crate::comm::mpi::MpiComm::duplicate(comm, &timeouts)?, config)
    }

    /// Opens a session on a communicator of our own; a rank without a usable configuration fails together with the others.
    #[cfg(feature = "mpi")]
    pub(crate) fn open_on_mpi(
        comm: crate::comm::mpi::MpiComm,
        config: std::result::Result<Config, String>,
    ) -> Result<Session> {
        use crate::comm::CommError;
        use crate::comm::mpi::on_finalize;
        let (config, mistake) = match config {
            Ok(config) => (config, None),
            Err(mistake) => (Config::default(), Some(mistake)),
        };
        let group = comm.default_group_name();
        let (comm, workers) = layer(comm, config.node.progress, &config.job.timeouts)?;
        let place =
            Place::here(&config, workers, group).map_err(|error| Error::Failed { reason: error.to_string() })?;
        let is_root = comm.rank() == crate::base::Rank::ROOT;
        let opened = Session::open_or_fail(comm, &place, config, mistake);
        let mut session = opened.inspect_err(|error| {
            if is_root {
                log::error!(target: log::SUMMARY, "{error}");
            }
        })?;
        let (engine, threads) = (session.engine.clone(), session.threads.clone());
        let hook = on_finalize(move || {
            engine.fail("MPI was finalized before the session was closed".into());
            if let Some(threads) = threads {
                threads.lock().stop_comm();
            }
            // All ranks finalize; some MPI libraries hang in it when messages are left under way.
            engine.end_conversation(FINALIZE_LIMIT);
            engine.cancel_messages();
        });
        session._hook = Some(hook.map_err(|error: CommError| Error::Comm(error))?);
        Ok(session)
    }

    /// Opens a session on any message layer, in any surroundings: N ranks in one process, a simulation.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// As `Session::open`.
    ///
    /// # Errors
    /// As `Session::open`.
    pub fn open_on(comm: Box<dyn Comm>, place: &Place, config: Config) -> Result<Session> {
        Session::open_or_fail(comm, place, config, None)
    }

    fn open_or_fail(comm: Box<dyn Comm>, place: &Place, config: Config, mistake: Option<String>) -> Result<Session> {
        let decisions = Decisions::new(&config.job.exit)?;
        let engine = open::open(comm, place, config, mistake)?;
        let threads = match place.workers {
            Workers::Inline => None,
            workers => {
                let started = Threads::start(&engine, workers == Workers::Threads);
                let threads = started.map_err(|error| Error::Failed { reason: format!("no thread: {error}") })?;
                Some(Arc::new(Lock::at(Order::Threads, threads)))
            }
        };
        Ok(Session {
            engine,
            threads,
            decisions: RefCell::new(decisions),
            process: std::process::id(),
            #[cfg(feature = "mpi")]
            _hook: None,
            not_sync: PhantomData,
        })
    }

    /// The number of this run on its store.
    pub fn generation(&self) -> u64 {
        self.engine.identity().generation.0
    }

    /// Begins a checkpoint: version `version` of the series `name`. Nothing is copied before
    /// [`Checkpoint::capture`]; dropping it without a capture is a no of this rank, which the others hear.
    ///
    /// # Collective
    /// All ranks, with the same arguments and regions; returns without waiting for anybody.
    ///
    /// # Errors
    /// [`Error::Name`]; the other ranks hear of it in their verdict.
    pub fn checkpoint<'a>(&'a self, name: &str, version: u64) -> Result<Checkpoint<'a>> {
        self.begin(name, version)
    }

    /// The same without the compiler's help: it has to end before the session does.
    pub(crate) fn begin(&self, name: &str, version: u64) -> Result<Checkpoint<'static>> {
        self.engine.reporter().step_beat();
        self.catch_up();
        let begun = self.engine.clock().now();
        // The number is drawn first: a call that is refused here counts on the other ranks, and all numbers stay in step.
        let operation = self.engine.next_operation();
        if let Err(error) = check_name(name) {
            self.engine.decline(operation, name, version, &error.to_string());
            return Err(error);
        }
        Ok(Checkpoint {
            engine: self.engine.clone(),
            operation,
            name: name.into(),
            version,
            regions: Vec::new(),
            names: HashSet::new(),
            own_regions: false,
            held: None,
            begun,
            held_for: None,
            done: false,
        })
    }

    /// Restores the newest checkpoint of `name` that all ranks can restore, from the nearest copies. `load` takes what it
    /// needs out of the [`Restorer`]; when any rank finds damage that no copy makes good, all ranks run `load` again
    /// with the next older checkpoint, so it must be able to run more than once. `None`: there is nothing to restore.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// Until all ranks have loaded; for flushes of this session that are under way.
    ///
    /// # Errors
    /// [`Error::Restart`], the same on all ranks. Nothing that a failed attempt loaded may be used.
    pub fn restart(&self, name: &str, load: impl FnMut(&mut Restorer) -> Result<()>) -> Result<Option<Restored>> {
        self.restore(name, Want::Newest, load)
    }

    /// The same for one version, also one that a later run left behind. Later checkpoints of this run then descend from it.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// As [`Session::restart`]; the version is missing: [`crate::RestartError::NoSuchVersion`].
    pub fn restart_version(
        &self,
        name: &str,
        version: u64,
        load: impl FnMut(&mut Restorer) -> Result<()>,
    ) -> Result<Option<Restored>> {
        self.restore(name, Want::Version(version), load)
    }

    /// The versions of `name` that all ranks can restore, newest first.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// As [`Session::restart`].
    pub fn versions(&self, name: &str) -> Result<Vec<VersionInfo>> {
        self.check_name_together(name)?;
        let mut election = self.election(name, Want::Newest);
        let listed = election.list();
        self.engine.server().stop_serving();
        let listed = listed?;
        if listed.is_empty() {
            self.say_nothing_is_there(name, &election);
        }
        Ok(listed
            .into_iter()
            .map(|(candidate, left_behind)| VersionInfo {
                version: candidate.key.version,
                generation: candidate.key.generation.0,
                left_behind,
            })
            .collect())
    }

    /// Refuses a name that cannot be used. The others may have made a call that can: they hear of the refusal in the
    /// verdict on it, and the numbers of the calls stay in step.
    fn check_name_together(&self, name: &str) -> Result<()> {
        let Err(error) = check_name(name) else { return Ok(()) };
        let refusal = self.engine.refusal(&error.to_string());
        let decide = |ballot: &Ballot| (Outcome::Abandoned(ballot.culprits()), Vec::new());
        if let Err(reason) = self.engine.collective(refusal, Box::new(decide)) {
            log::debug!("event=refusal-not-heard reason={reason:?}");
        }
        Err(error)
    }

    fn election(&self, name: &str, want: Want) -> Election {
        let engine = &self.engine;
        engine.drain(engine.config().job.timeouts.drain);
        let identity = engine.identity();
        let mut damage = Vec::new();
        let segments = match engine.config().job.memory_enabled {
            true => {
                let prefix = segment_prefix(&identity.job, &identity.group);
                open_segments(&engine.config().node.memory_directory, &prefix, store_hash(identity.store), &mut damage)
            }
            false => Vec::new(),
        };
        let reach = Reach {
            series: &identity.series(name),
            rank: identity.rank,
            segments: &segments,
            node_ranks: if identity.is_node_leader() { &identity.node_ranks } else { &[] },
            tiers: engine.tiers(),
            is_root: engine.is_root(),
        };
        let mut found = discover(&reach);
        found.damaged[TierId::MEMORY] += damage.len() as u64;
        found.damage.extend(damage);
        engine.reporter().count(|stats| {
            for tier in TierId::all() {
                stats.damaged[tier] += found.damaged[tier];
            }
        });
        Election::new(engine, name, want, found)
    }

    /// Nothing can be restored: a first run, or a mistyped name, or another number of ranks. The root says which it may be.
    fn say_nothing_is_there(&self, name: &str, election: &Election) {
        let identity = self.engine.identity();
        if !self.engine.is_root() {
            return;
        }
        let candidates = election.found().candidates();
        if let Some(other) = candidates.iter().find(|candidate| candidate.group_size != identity.size) {
            let (version, then, now) = (other.key.version, other.group_size, identity.size);
            log::warn!(
                "event=nothing-to-restore name={name:?}: version {version} was taken by {then} ranks, and these are {now}; a restart takes as many"
            );
            return;
        }
        let named =
            self.engine.tiers().iter().flat_map(|tier| tier.names(&identity.job, &identity.group).unwrap_or_default());
        let others: BTreeSet<String> = named.filter(|other| other != name).collect();
        if candidates.is_empty() && !others.is_empty() {
            let others = list(others.iter().map(|other| format!("{other:?}")), SERIES_NAMED, ", ");
            log::warn!("event=nothing-to-restore name={name:?}: nothing of that name is there, but of {others}");
        }
    }

    fn restore(
        &self,
        name: &str,
        want: Want,
        mut load: impl FnMut(&mut Restorer) -> Result<()>,
    ) -> Result<Option<Restored>> {
        let mut attempt = self.attempt(name, want)?;
        while let Some(mut open) = attempt {
            let failure = match load(open.restorer()) {
                Ok(()) => None,
                Err(Error::Load(error)) => Some((error.to_string(), error.is_damage())),
                Err(error) => Some((error.to_string(), true)),
            };
            match open.end(self, failure)? {
                AttemptEnd::Counts(restored) => return Ok(Some(restored)),
                AttemptEnd::Again(next) => attempt = Some(*next),
            }
        }
        Ok(None)
    }

    /// Begins a restart: what [`Session::restart`] does for callers that cannot hand over a closure. The session makes no other
    /// collective call until the attempt has ended.
    pub(crate) fn attempt(&self, name: &str, want: Want) -> Result<Option<Attempt>> {
        self.begin_attempt(name, want, true)
    }

    /// The same to look at a checkpoint only: threads stay where they are. It is ended with [`Attempt::end_uncounted`].
    #[cfg(feature = "mpi")]
    pub(crate) fn look(&self, name: &str, want: Want) -> Result<Option<Attempt>> {
        self.begin_attempt(name, want, false)
    }

    fn begin_attempt(&self, name: &str, want: Want, goes_back: bool) -> Result<Option<Attempt>> {
        self.engine.reporter().beat();
        self.check_name_together(name)?;
        let started = self.engine.clock().now();
        let mut election = self.election(name, want);
        let first = election.first();
        self.next_attempt(Course { name: name.into(), want, goes_back, started, election }, first)
    }

    fn next_attempt(&self, course: Course, next: Result<Option<Elected>, RestartError>) -> Result<Option<Attempt>> {
        let Ok(Some(elected)) = next else {
            // Nobody loads, so nobody asks any more.
            self.engine.server().stop_serving();
            next?;
            self.say_nothing_is_there(&course.name, &course.election);
            return Ok(None);
        };
        self.engine.reporter().beat();
        let elect = self.engine.clock().now().saturating_sub(course.started);
        let mut restorer = self.restorer(&course.name, &course.election, &elected);
        if let Some(keeper) = self.engine.affinity().filter(|_| course.goes_back) {
            restorer.go_back(keeper);
        }
        Ok(Some(Attempt { course, elected, elect, restorer }))
    }

    fn restorer(&self, name: &str, election: &Election, elected: &Elected) -> Restorer {
        let identity = self.engine.identity();
        let copies = election.found().copies.get(&elected.candidate).cloned().unwrap_or_default();
        let shared = elected.manifests.iter();
        let shared = shared.filter_map(|(tier, manifest)| Some((self.engine.tier(*tier)?.clone(), manifest.clone())));
        let shared = shared.collect();
        let clock = self.engine.clock().clone();
        let (key, series) = (elected.candidate.key, identity.series(name));
        let peers = Peers::new(self.engine.clone(), series.clone(), key, elected.ways.clone());
        Restorer::new(identity.rank, clock, key, series, copies, Some(peers), shared)
    }

    /// What all ranks have loaded becomes what this run goes on from: later checkpoints descend from it.
    pub(crate) fn count(&self, loaded: Loaded) -> Restored {
        let Loaded { name, want, elected, has_gathered, restored } = loaded;
        let key = elected.candidate.key;
        if want == Want::Newest {
            // Asked for by name, newer versions stay: nothing newer has been committed yet.
            self.engine.forget_others(&name, &key, !elected.manifests.is_empty());
        }
        if has_gathered {
            self.decisions.borrow_mut().checkpoint_soon();
        }
        self.engine.begin_stretch(&name, |restart| origin_of(&elected, restart));
        log::info!(
            "event=restored rank={} name={name:?} {key} tier={} bytes={} seconds={:.6} left_behind={}",
            self.engine.identity().rank,
            restored.tier,
            restored.bytes,
            restored.seconds,
            restored.left_behind
        );
        self.engine.tell_restored(RestoredFrom {
            name,
            version: restored.version,
            generation: restored.generation,
            tier: restored.tier.to_owned(),
            bytes: restored.bytes,
            seconds: restored.seconds,
            elect_seconds: restored.elect_seconds,
            unix: unix_now(),
        });
        restored
    }

    /// Looks whether a message of the application's own has arrived on `comm` that nobody has received: such a message is
    /// in no checkpoint (see *Messages in flight* above). Made for debug builds, after a barrier and before
    /// [`Session::checkpoint`]. MPI shows only messages that have arrived, so finding none proves nothing.
    ///
    /// ```no_run
    /// # #[cfg(feature = "mpi")]
    /// # fn f(session: &bivouac::Session, world: &mpi::topology::SimpleCommunicator) -> bivouac::Result<()> {
    /// use mpi::traits::CommunicatorCollectives;
    /// if cfg!(debug_assertions) {
    ///     world.barrier();
    ///     session.check_no_messages(world)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local; never waits.
    ///
    /// # Errors
    /// [`Error::MessageInFlight`] naming sender and tag.
    #[cfg(feature = "mpi")]
    pub fn check_no_messages<C: mpi::traits::Communicator>(&self, comm: &C) -> Result<()> {
        use mpi::traits::Source;
        match comm.any_process().immediate_probe() {
            None => Ok(()),
            Some(status) => {
                Err(Error::MessageInFlight { rank: comm.rank(), from: status.source_rank(), tag: status.tag() })
            }
        }
    }

    /// Is it time for a checkpoint, by the configured interval (calls, seconds, or cost)? Call it once per step.
    ///
    /// With an interval, the first call after a restart for which the ranks looked for shards on each other's nodes says yes: what a
    /// lost node held is protected again only by a new checkpoint.
    ///
    /// # Collective
    /// All ranks, the same number of times; the answer is the same on all. By calls: no message at all. By time or cost:
    /// the ranks look at each other only when a yes is near.
    ///
    /// # Errors
    /// [`Error::Disagreed`], [`Error::Failed`].
    pub fn should_checkpoint(&self) -> Result<bool> {
        self.engine.reporter().step_beat();
        self.engine.pump();
        self.catch_up();
        self.decisions.borrow_mut().should_checkpoint(&self.engine)
    }

    /// Is it time to stop: the configured signal arrived on some rank, the stop file exists, the end time is near, or a halt
    /// condition of the run directory is met (`run.directory`)?
    ///
    /// # Collective
    /// As [`Session::should_checkpoint`]; the ranks look at each other about every `exit.check_every`.
    ///
    /// # Errors
    /// [`Error::Disagreed`], [`Error::Failed`].
    pub fn should_exit(&self) -> Result<bool> {
        self.engine.reporter().step_beat();
        self.engine.reporter().tell_exit_asked();
        self.engine.pump();
        self.decisions.borrow_mut().should_exit(&self.engine)
    }

    /// Populates node memory for a checkpoint of about `bytes` per rank in the background, so that the first capture
    /// finds it ready. Later captures are prepared for by themselves.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn prepare(&self, bytes: u64) {
        // Header, tables, padding and what the session adds come on top: 1 % covers them at any block size.
        self.engine.prepare_room(page_ceil(bytes + bytes / 100 + 192 * 1024));
    }

    /// Moves the coordination along. Needed only where the session has no thread for that and calls are rare.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn progress(&self) {
        self.engine.reporter().beat();
        self.engine.pump();
    }

    /// Verdicts heard since the last call, in the order of the operations that they are about; the newest 4096, if nobody asks for long.
    ///
    /// # Collective
    /// Local. All ranks hear the same verdicts, though not at the same moment.
    pub fn reports(&self) -> Vec<Report> {
        self.engine.reporter().beat();
        self.engine.pump();
        self.engine.reporter().take_reports()
    }

    /// Opens the caches of this rank on `device`, as large as the configuration says (`[device]`, `[history]`): GPU memory,
    /// leases of the node's memory tier, and a file on the local tier. Histories are made from them, and checkpoints with regions in
    /// device memory pass through them ([`Checkpoint::capture_on`]); they live no longer than the session.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the first step of GPU memory, well below a millisecond. The rest is made ready in the background. With turns at
    /// links (`stagger.bursts`): for a look at the node's topology, some tens of milliseconds.
    ///
    /// # Errors
    /// [`Error::History`].
    pub fn caches(&self, device: Arc<dyn Device>) -> Result<Caches> {
        self.caches_with(device, |_| {})
    }

    /// The same with a say in what the configuration does not name, [`CacheConfig::trace`] above all: `change` gets what
    /// the configuration makes of it last.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// As [`Session::caches`].
    ///
    /// # Errors
    /// [`Error::History`].
    pub fn caches_with(&self, device: Arc<dyn Device>, change: impl FnOnce(&mut CacheConfig)) -> Result<Caches> {
        let config = self.engine.config();
        let history = config.node.history;
        let percent = |budget: Budget, of: u64| match budget {
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(percent) => (of as f64 * percent / 100.0) as u64,
        };
        let segment = self.engine.memory().cloned();
        let ranks = self.engine.identity().node_ranks.len() as u64;
        let share = self.memory_share();
        let directory = self.engine.tier(TierId::LOCAL).map(|tier| tier.root().to_owned());
        let free = |path: &std::path::PathBuf| {
            rustix::fs::statvfs(path).map_or(0, |fs| fs.f_bavail * fs.f_frsize / ranks.max(1))
        };
        let mut caches = CacheConfig {
            device_bytes: percent(config.node.device_budget, device.info().memory_bytes),
            host_bytes: percent(history.host_budget, share),
            store_bytes: percent(history.store_budget, directory.as_ref().map_or(0, free)),
            store_directory: directory,
            block_bytes: config.job.block_bytes,
            cpus: config.node.device_cpus,
            touch: history.touch,
            pin: history.pin,
            stagger: config.job.stagger,
            room: config.job.timeouts.room,
            ..CacheConfig::default()
        };
        change(&mut caches);
        if let Some(keeper) = self.engine.affinity() {
            keeper.use_device(&device.info().bus_id);
        }
        Ok(Caches::open_beside(device, segment, caches, self.engine.waiting.clone())?)
    }

    /// This rank's part of the node memory tier, in bytes.
    pub(crate) fn memory_share(&self) -> u64 {
        let ranks = self.engine.identity().node_ranks.len() as u64;
        self.engine.memory().map_or(0, |segment| segment.capacity() / ranks.max(1))
    }

    /// Lets threads that have started since a restart have the CPUs of their predecessors.
    fn catch_up(&self) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.catch_up();
        }
    }

    /// What of affinity is restored from now on, whatever the configuration says. All that the configuration lets be recorded is
    /// recorded all the same.
    ///
    /// # Collective
    /// Local, but ranks that differ restore differently.
    pub fn set_affinity(&self, mode: AffinityMode) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.set_mode(mode);
        }
    }

    /// Puts the threads of this rank where `pin` says: within what the job was given on this node, of which each rank gets its share.
    /// Threads that start later are put there by the next [`Session::checkpoint`] or [`Session::should_checkpoint`]. Does nothing where
    /// affinity is off. Where other processes of the job than this group's ranks are on the node, or no launcher says what the job was given
    /// and the group has several ranks here, [`Pin::Compact`] and [`Pin::Scatter`] leave threads alone, because two processes could get
    /// the same CPUs: [`AffinityReport::losses`] says so.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) {
    /// session.pin(bivouac::Pin::Compact);
    /// # }
    /// ```
    ///
    /// # Collective
    /// Local; with the same `pin` on all ranks of a node they keep out of each other's way.
    pub fn pin(&self, pin: Pin) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.pin(pin);
        }
    }

    /// What is known about threads and pages of this rank: what the last restart brought back and what it could not, and what has
    /// wandered since. `None`: affinity is off (`affinity.mode`).
    ///
    /// # Collective
    /// Local.
    pub fn affinity(&self) -> Option<AffinityReport> {
        self.engine.affinity().map(|keeper| keeper.report())
    }

    /// Counters and times of this rank.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Waits for all flushes that are under way and ends the session.
    ///
    /// The node segment is removed, unless it holds the newest checkpoint and no durable tier does.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// For what is being written, at most for `timeouts.drain`; then for ranks that have not called, at most for `timeouts.abandon`; and
    /// some seconds for last messages.
    ///
    /// # Errors
    /// [`Error::Undrained`], [`Error::Disagreed`], [`Error::Failed`]; the session is closed all the same.
    pub fn close(self) -> Result<()> {
        let limit = self.engine.config().job.timeouts.drain;
        self.close_within(limit)
    }

    /// The same with a limit of its own for what is being written; zero: it is left where it is.
    pub(crate) fn close_within(mut self, limit: Duration) -> Result<()> {
        let engine = self.engine.clone();
        let started = engine.clock().now();
        let drained = engine.drain(limit);
        let in_flight = engine.stats().in_flight;
        let agreed = self.agree("close", Payload::None, engine.failed()).map(drop);
        engine.end_conversation(GOODBYE_LIMIT);
        match &self.threads {
            Some(threads) => {
                let left = (started + limit).saturating_sub(engine.clock().now()).max(LAST_PIECES);
                threads.lock().finish(left);
            }
            None => {
                engine.close_claim();
                engine.tell_closed();
            }
        }
        engine.cancel_messages();
        engine.close_memory();
        self.process = 0;
        let waited_s = engine.clock().now().saturating_sub(started).as_secs_f64();
        log::debug!("event=closed rank={} waited_s={waited_s:.3} in_flight={in_flight}", engine.identity().rank);
        if engine.is_root() {
            let (identity, seconds) = (engine.identity(), engine.seconds_open());
            let stats = Stats { in_flight, ..engine.stats() };
            let line = summary::closing(&identity.job, identity.generation.0, seconds, &stats);
            log::log!(target: log::SUMMARY, summary::importance(stats.has_losses()), "{line}");
        }
        // What the ranks agreed on comes first: it is the same on all of them.
        agreed?;
        if let Some(reason) = engine.failed() {
            return Err(Error::Failed { reason });
        }
        if drained { Ok(()) } else { Err(Error::Undrained { in_flight, waited_s }) }
    }

    /// A reduction of what each rank says; fails on all ranks if one of them gives a failure or makes another call.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn agree(&self, call: &'static str, mine: Payload, failure: Option<String>) -> Result<Payload> {
        let mut ballot = self.engine.ballot(call, mine);
        if let Some(reason) = failure {
            ballot = ballot.failed(self.engine.identity().rank, reason, false);
        }
        let verdict = self.engine.collective(
            ballot,
            Box::new(|ballot| {
                let culprits: Vec<Culprit> = ballot.culprits();
                let outcome = if culprits.is_empty() { Outcome::Agreed } else { Outcome::Abandoned(culprits) };
                (outcome, Vec::new())
            }),
        );
        let verdict = verdict.map_err(|reason| Error::Failed { reason })?;
        match verdict.outcome {
            Outcome::Agreed => Ok(verdict.payload),
            Outcome::Abandoned(culprits) => Err(Error::Disagreed { call, culprits }),
            Outcome::Unknown => Err(Error::Failed { reason: "the root did not answer".into() }),
        }
    }

    /// What works behind the session.
    #[cfg(feature = "mpi")]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Drop for Session {
    /// Never communicates: stops the comm thread and leaves everything else as a killed process would. In a forked child it
    /// does nothing.
    fn drop(&mut self) {
        if self.process != 0 && self.process != std::process::id() {
            std::mem::forget(self.threads.take());
            return;
        }
        if self.process != 0 {
            log::warn!(
                "event=not-closed rank={}: the session ends without close; what is on its way stays where it is, and other ranks that go \
                 on wait for this one",
                self.engine.identity().rank
            );
        }
        if let Some(threads) = &self.threads {
            threads.lock().stop_comm();
        }
    }
}

/// What stays the same from attempt to attempt of one restart.
struct Course {
    name: String,
    want: Want,
    /// Threads and memory go back to where they were when the checkpoint was taken.
    goes_back: bool,
    started: Duration,
    election: Election,
}

/// One attempt of a restart: all ranks load the checkpoint that they have elected, and then end it together.
pub(crate) struct Attempt {
    course: Course,
    elected: Elected,
    elect: Duration,
    restorer: Restorer,
}

/// What all ranks have loaded, before it counts: see [`Session::count`].
pub(crate) struct Loaded {
    name: String,
    want: Want,
    elected: Elected,
    has_gathered: bool,
    restored: Restored,
}

/// How an attempt ended that does not count by itself, the same on all ranks.
pub(crate) enum UncountedEnd {
    /// All ranks have loaded.
    Loaded(Box<Loaded>),
    /// As [`AttemptEnd::Again`].
    Again(Box<Attempt>),
}

/// How an attempt ended, the same on all ranks.
pub(crate) enum AttemptEnd {
    /// All ranks have loaded.
    Counts(Restored),
    /// Some rank has not: nothing of it may be used. The attempt at the next candidate.
    Again(Box<Attempt>),
}

impl Attempt {
    /// What to load from.
    pub(crate) fn restorer(&mut self) -> &mut Restorer {
        &mut self.restorer
    }

    /// Ends it on `session`, which began it; `failure`: why this rank has not loaded, and whether an older checkpoint would help.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn end(self, session: &Session, failure: Option<(String, bool)>) -> Result<AttemptEnd> {
        Ok(match self.end_uncounted(session, failure)? {
            UncountedEnd::Loaded(loaded) => AttemptEnd::Counts(session.count(*loaded)),
            UncountedEnd::Again(next) => AttemptEnd::Again(next),
        })
    }

    /// The same, and what was loaded does not count before [`Session::count`] is told so.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn end_uncounted(self, session: &Session, failure: Option<(String, bool)>) -> Result<UncountedEnd> {
        let Attempt { mut course, elected, elect, restorer } = self;
        let engine = &session.engine;
        let failure = failure.or_else(|| restorer.failure().map(|text| (text.to_owned(), true)));
        engine.reporter().count(|stats| {
            for tier in TierId::all() {
                stats.restored_bytes[tier] += restorer.read_bytes()[tier];
                stats.damaged[tier] += restorer.damaged()[tier];
            }
        });
        let next = course.election.end(failure);
        if !matches!(next, Ok(None)) {
            let next = session.next_attempt(course, next)?;
            return Ok(UncountedEnd::Again(Box::new(next.expect("an error or a candidate, both were looked at"))));
        }
        // All ranks have ended their attempts: nobody asks any more.
        engine.server().stop_serving();
        let took = engine.clock().now().saturating_sub(course.started);
        let (key, read) = (elected.candidate.key, restorer.read_bytes());
        let restored = Restored {
            version: key.version,
            generation: key.generation.0,
            tier: restorer.farthest().name(),
            bytes: read.iter().map(|(_, bytes)| bytes).sum(),
            seconds: took.as_secs_f64(),
            elect_seconds: elect.as_secs_f64(),
            left_behind: elected.left_behind,
        };
        let has_gathered = course.election.has_gathered();
        let Course { name, want, .. } = course;
        Ok(UncountedEnd::Loaded(Box::new(Loaded { name, want, elected, has_gathered, restored })))
    }
}

fn check_name(name: &str) -> Result<()> {
    if is_component(name) { Ok(()) } else { Err(Error::Name { what: "checkpoint name", name: name.into() }) }
}

/// A checkpoint that is being put together: regions are named, and nothing is copied yet.
pub struct Checkpoint<'a> {
    engine: Arc<Engine>,
    operation: u64,
    name: String,
    version: u64,
    regions: Vec<SavedRegion<'a>>,
    /// The hashes of their names.
    names: HashSet<u64>,
    own_regions: bool,
    held: Option<Held>,
    begun: Duration,
    /// How long the application has waited for what is held, if anything is.
    held_for: Option<Duration>,
    done: bool,
}

impl<'a> Checkpoint<'a> {
    /// Adds a slice as region `name`.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or was used before.
    pub fn save<T: Element>(&mut self, name: &str, data: &'a [T]) -> Result<()> {
        self.save_shaped(name, data, &[data.len() as u64])
    }

    /// Adds a slice with the extents of its dimensions, slowest first.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or was used before, or the shape does not fit the slice.
    pub fn save_shaped<T: Element>(&mut self, name: &str, data: &'a [T], shape: &[u64]) -> Result<()> {
        let saved = region::array(name, data, shape)?;
        self.add(saved)
    }

    /// Adds device memory that holds elements of type `T` as region `name`. The region is recorded like a slice: it can be
    /// loaded into host memory and into device memory. Such a checkpoint is captured with [`Checkpoint::capture_on`].
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or was used before, or the memory ends inside an element.
    pub fn save_device<T: Element>(&mut self, name: &str, span: &'a DeviceSpan) -> Result<()> {
        let saved = region::device_array::<T>(name, span, None)?;
        self.add(saved)
    }

    /// The same with the extents of its dimensions, slowest first.
    ///
    /// # Errors
    /// As [`Checkpoint::save_device`], and if the shape does not fit the memory.
    pub fn save_device_shaped<T: Element>(&mut self, name: &str, span: &'a DeviceSpan, shape: &[u64]) -> Result<()> {
        let saved = region::device_array::<T>(name, span, Some(shape))?;
        self.add(saved)
    }

    /// Adds a small value, which is encoded now.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn value<T: serde::Serialize>(&mut self, name: &str, value: &T) -> Result<()> {
        let saved = region::value(name, value)?;
        self.add(saved)
    }

    /// Adds the versions of a history that are there now, whatever tier they lie on: each field of each as a region
    /// `<history>/<version>/<field>`, and a value `<history>/versions` that lists them. They are read when the checkpoint is
    /// captured, stay in the history as they are, and come back with [`Restorer::load_history`]. Not among them are versions that
    /// were consumed, or whose append had returned early ([`Return::Enqueued`](crate::transfer::history::Return::Enqueued)) and failed.
    ///
    /// On all ranks the history has the same name, and the same versions with the same fields; lengths are free. Between this
    /// and the capture no version may be consumed.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, history: &bivouac::History, step: u64) -> bivouac::Result<()> {
    /// let mut ckpt = session.checkpoint("adjoint", step)?;
    /// ckpt.save_history(history)?;
    /// ckpt.value("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For copies into the GPU cache that are enqueued. Then [`Checkpoint::capture`] blocks for the transfers: from GPU and host
    /// memory, and from the file.
    ///
    /// # Errors
    /// [`Error::Region`]: a name is unusable or was used before, or a field ends inside an element. [`Error::History`] when the
    /// device fails, or a version that another thread appends is not there after `timeouts.room`. After an error the checkpoint
    /// is of no use: drop it. A version that turns out to be damaged on all tiers, or consumed, is an error of the capture
    /// ([`Error::Capture`]), which all ranks hear.
    pub fn save_history(&mut self, history: &'a History) -> Result<()> {
        let (index, kept) = history.kept()?;
        for field in kept {
            self.add(region::kept_array(&field.region_name(), field.element(), field)?)?;
        }
        self.value(&index_name(history.name()), &index)
    }

    /// Lets each rank save regions of its own: names and types need not be equal on all ranks. To be said on all of them.
    #[cfg(feature = "mpi")]
    pub(crate) fn let_regions_differ(&mut self) {
        self.own_regions = true;
    }

    /// What the application does before the capture is not waiting for us.
    #[cfg(feature = "mpi")]
    pub(crate) fn let_time_pass(&mut self) {
        self.held_for.get_or_insert_default();
    }

    /// Gives it up before the capture, for this reason, which all ranks hear.
    #[cfg(feature = "mpi")]
    pub(crate) fn refuse(mut self, why: &str) {
        self.done = true;
        self.engine.decline(self.operation, &self.name, self.version, why);
    }

    /// The region of that name, as it is held.
    #[cfg(feature = "mpi")]
    pub(crate) fn held(&self, name: &str) -> Option<&crate::format::Region> {
        let held = self.regions.iter().find(|saved| saved.region.name == name);
        held.filter(|saved| matches!(saved.data, RegionData::Held { .. })).map(|saved| &saved.region)
    }

    /// Adds a region that is described already.
    pub(crate) fn add(&mut self, saved: SavedRegion<'a>) -> Result<()> {
        let is_new = self.names.insert(text_hash(&saved.region.name));
        // Two names may have one hash.
        if !is_new && self.regions.iter().any(|known| known.region.name == saved.region.name) {
            return Err(RegionError::Twice { name: saved.region.name }.into());
        }
        self.regions.push(saved);
        Ok(())
    }

    /// Copies host regions now: the application may overwrite them at once, and goes on to the capture later. They come before those
    /// that were added without being held, of which there are `room` bytes at most. One that is held already is copied again.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// As [`Checkpoint::capture`].
    ///
    /// # Errors
    /// [`Error::Region`]: one of them was added before, or held with another type or shape; nothing has changed then.
    /// [`Error::Capture`]: no tier could take them; the checkpoint is of no use then.
    #[cfg(any(feature = "mpi", test))]
    pub(crate) fn hold(&mut self, regions: Vec<SavedRegion<'_>>, room: u64) -> Result<()> {
        debug_assert!(
            self.regions.iter().all(|saved| matches!(saved.data, RegionData::Held { .. })),
            "held ones come first"
        );
        let started = self.engine.clock().now();
        let mut all: Vec<SavedRegion<'_>> = self.regions.clone();
        for saved in regions {
            let known = all.iter_mut().find(|known| known.region.name == saved.region.name);
            match known {
                None => all.push(saved),
                Some(known) if known.region == saved.region && matches!(known.data, RegionData::Held { .. }) => {
                    *known = saved;
                }
                Some(_) => return Err(RegionError::Twice { name: saved.region.name }.into()),
            }
        }
        let spec = HoldSpec { operation: self.operation, name: &self.name, version: self.version, regions: &all, room };
        self.held = Some(self.engine.hold(&spec, self.held.take())?);
        let held = all.into_iter().map(|saved| {
            let data = match &saved.data {
                RegionData::Held { bytes, address } => RegionData::Held { bytes: *bytes, address: *address },
                RegionData::Host(Cow::Borrowed(bytes)) => {
                    RegionData::Held { bytes: bytes.len() as u64, address: bytes.as_ptr().addr() }
                }
                other => RegionData::Held { bytes: other.bytes(), address: 0 },
            };
            SavedRegion { region: saved.region, data }
        });
        self.regions = held.collect();
        self.names.extend(self.regions.iter().map(|saved| text_hash(&saved.region.name)));
        let took = self.engine.clock().now().saturating_sub(started);
        self.held_for = Some(self.held_for.unwrap_or_default() + took);
        Ok(())
    }

    /// Copies all regions; when it returns the application may overwrite them. The checkpoint is committed at a level
    /// only when the [`Pending`] says so.
    ///
    /// # Collective
    /// All ranks; returns without waiting for the others.
    ///
    /// # Blocking
    /// For the copy. When the memory tier is full: for a flush to make room, at most `timeouts.room`. When the shard fits
    /// into no slot: for the write to the next tier.
    ///
    /// # Errors
    /// [`Error::Region`] if nothing was added. [`Error::Capture`] when no tier of this rank could take the shard, when a version of a history cannot be read, or when it
    /// has regions in device memory ([`Checkpoint::capture_on`] takes those); the other ranks hear of it in their verdict.
    pub fn capture(self) -> Result<Pending> {
        self.take(None)
    }

    /// The same for a checkpoint with regions in device memory, which are complete once the work that is enqueued on `stream` has
    /// run. They are copied into the GPU cache of `caches`, and from there to node memory after this call has returned; only
    /// then does this rank vote. `caches` are of the device that the regions are on, from [`Session::caches`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, device: std::sync::Arc<dyn bivouac::device::Device>,
    /// #     stream: &dyn bivouac::device::Stream, t: &bivouac::device::DeviceSpan, step: u64) -> bivouac::Result<()> {
    /// let caches = session.caches(device)?; // once, at the start
    /// let mut ckpt = session.checkpoint("heat", step)?;
    /// ckpt.save_device::<f64>("temperature", t)?;
    /// ckpt.value("step", &step)?;
    /// let pending = ckpt.capture_on(&caches, stream)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, each with [`Checkpoint::capture`] or with this; returns without waiting for the others.
    ///
    /// # Blocking
    /// For the work on the stream and a copy inside the device; when it returns the application may overwrite the regions, on
    /// whichever stream. When the GPU cache has no room that comes sooner: for the transfer to node memory. Otherwise as
    /// [`Checkpoint::capture`].
    ///
    /// # Errors
    /// [`Error::Capture`] as [`Checkpoint::capture`], and when the device fails. When it fails after this call has returned,
    /// [`Pending::wait`] says so, on all ranks.
    pub fn capture_on(self, caches: &Caches, stream: &dyn Stream) -> Result<Pending> {
        self.take(Some(OnDevice { caches, stream }))
    }

    fn take(mut self, device: Option<OnDevice<'_>>) -> Result<Pending> {
        self.done = true;
        if self.regions.is_empty() {
            let error = RegionError::None { name: self.name.clone(), version: self.version };
            self.engine.decline(self.operation, &self.name, self.version, &error.to_string());
            return Err(error.into());
        }
        let called = self.engine.clock().now();
        self.engine.reporter().beat();
        if let Some(keeper) = self.engine.affinity() {
            let address = device.as_ref().map_or_else(String::new, |on| on.caches.device_address());
            let regions = self.regions.iter().filter_map(|saved| {
                let at = match &saved.data {
                    RegionData::Host(Cow::Borrowed(bytes)) => Whereabouts::Host(bytes.as_ptr().addr(), bytes.len()),
                    RegionData::Held { bytes, address } if *address != 0 => {
                        Whereabouts::Host(*address, *bytes as usize)
                    }
                    RegionData::Device(_) => Whereabouts::Device(&address),
                    RegionData::Host(Cow::Owned(_)) | RegionData::Kept(_) | RegionData::Held { .. } => return None,
                };
                Some((saved.region.name.as_str(), at))
            });
            let record = region::reserved(region::AFFINITY, keeper.record(regions));
            self.regions.push(record);
        }
        let spec = CaptureSpec {
            operation: self.operation,
            name: self.name.clone(),
            version: self.version,
            regions: std::mem::take(&mut self.regions),
            held: self.held.take(),
            own_regions: self.own_regions,
            device,
            // Between the copy of what is held and this call the application computes.
            begun: self.held_for.map_or(self.begun, |took| called.saturating_sub(took)),
        };
        let captured = self.engine.capture(spec);
        self.engine.settle();
        let progress = captured?;
        Ok(Pending { engine: self.engine.clone(), progress, name: self.name.clone(), version: self.version })
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.engine.decline(self.operation, &self.name, self.version, "gave the checkpoint up before capture");
        }
    }
}

/// A captured checkpoint on its way down the tiers. Dropping it changes nothing.
pub struct Pending {
    engine: Arc<Engine>,
    progress: Arc<Lock<Progress>>,
    name: String,
    version: u64,
}

impl Pending {
    /// The version.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn progress(&self) -> Guard<'_, Progress> {
        self.progress.lock()
    }

    /// The highest level that all ranks have reached, as far as this rank has heard.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn level(&self) -> Level {
        self.progress().level()
    }

    /// Moves the coordination along; true once all levels of this checkpoint have come to an end.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn poll(&self) -> bool {
        self.engine.reporter().beat();
        self.engine.pump();
        self.progress().finished
    }

    /// The verdicts heard so far, in the order in which they came.
    pub fn verdicts(&self) -> Vec<(Level, LevelVerdict)> {
        self.progress().verdicts()
    }

    /// Waits until the checkpoint is committed at `level` or a higher one, and returns that level.
    ///
    /// # Collective
    /// Local, but returns only when all ranks have done their part.
    ///
    /// # Blocking
    /// For the slowest rank; at most until the root gives the level up (`timeouts.abandon`).
    ///
    /// # Errors
    /// [`Error::NotCommitted`] as soon as it is known that the level will not be reached.
    pub fn wait(&self, level: Level) -> Result<Level> {
        self.engine.reporter().beat();
        let _waiting = self.engine.waiting.begin();
        loop {
            let waited = self.progress().waited(level);
            match waited {
                Waited::Reached(reached) => return Ok(reached),
                Waited::Failed(mut verdicts) => {
                    verdicts.extend(self.engine.lost_at(level));
                    let (name, version) = (self.name.clone(), self.version);
                    return Err(Error::NotCommitted { name, version, level, verdicts });
                }
                Waited::Open => {
                    if !self.engine.pump() {
                        self.engine.pause(Duration::from_micros(50));
                    }
                }
            }
        }
    }
}
