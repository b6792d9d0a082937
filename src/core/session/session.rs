//! A session: opening, decisions, and the end.
#![forbid(unsafe_code)]

use super::asking::ask;
use super::checkpoint::{CheckpointBuilder, check_name};
use super::companions::Companions;
use super::decide::Decisions;
use super::error::{Error, Result};
use super::layer::GOODBYE_LIMIT;
#[cfg(feature = "mpi")]
use super::layer::{layer, prepare_to_wait};
use super::place::{Place, Workers};
use super::terms::Terms;
use super::{open, summary};
use crate::affinity::keeper::AffinityReport;
use crate::affinity::pinning::Pin;
use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::base::units::page_ceil;
use crate::comm::Comm;
use crate::config::{AffinityMode, Config};
use crate::coordination::{Outcome, Payload};
use crate::transfer::{Engine, Report, Stats, Threads};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// The minimum time for which `close` waits for I/O in progress, even if its limit has passed.
const LAST_PIECES: Duration = Duration::from_secs(1);
/// How long the last messages may take when MPI is finalized while a session is open.
#[cfg(feature = "mpi")]
const FINALIZE_LIMIT: Duration = Duration::from_secs(3);

/// A group of ranks that take and restore checkpoints together.
///
/// All ranks of the group call the methods marked *Collective* in the same order. A session belongs to one thread at a time: it can be
/// moved to another thread, but not shared.
pub struct Session {
    pub(super) engine: Arc<Engine>,
    pub(super) threads: Option<Arc<Lock<Threads>>>,
    pub(super) decisions: RefCell<Decisions>,
    /// The companions of each series. All ranks know which series have companions.
    pub(super) companions: RefCell<BTreeMap<String, Companions>>,
    /// The series whose first restart has been reported.
    pub(super) told: RefCell<BTreeSet<String>>,
    pub(super) process: u32,
    #[cfg(feature = "mpi")]
    pub(super) _hook: Option<crate::comm::mpi::FinalizeHook>,
    pub(super) not_sync: PhantomData<Cell<()>>,
}

impl Session {
    /// Opens a session on the ranks of `comm` with the configuration of the environment: the file that `BIVOUAC_CONFIG` names, and
    /// `BIVOUAC_…` variables. A rank whose configuration has a mistake still takes part, and all ranks are told which rank it is and what
    /// is wrong. With `Session::open(&comm, Config::from_env()?)`, the other ranks would wait for that rank instead.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// See [`Session::open`].
    ///
    /// # Errors
    /// See [`Session::open`].
    #[cfg(feature = "mpi")]
    pub fn from_env<C: mpi::traits::Communicator + ?Sized>(comm: &C) -> Result<Session> {
        Session::open_with(comm, Config::from_env())
    }

    /// Opens a session on the ranks of `comm`, which may be any intracommunicator. MPI must be initialised, at any thread level.
    ///
    /// A background thread exchanges the coordination messages. With `MPI_THREAD_MULTIPLE` and a processor for each rank, it uses MPI;
    /// otherwise, or with `engine.progress = "sockets"`, it uses sockets between the ranks. If ranks cannot reach each other by sockets,
    /// which is logged, or with `engine.progress = "stepped"`, the session's own calls exchange the messages. If these calls are rare, call
    /// [`Session::progress`] as well.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// Until all ranks have called, for at most `timeouts.abandon`; for the file systems of the tiers; and for up to about ten seconds if
    /// another host's claim has to be watched.
    ///
    /// # Errors
    /// [`Error::Open`], on all ranks alike: a configuration is invalid, configurations differ (the ranks and keys are named), or another
    /// run of the job is alive. [`Error::Comm`], for example because ranks have not called ([`crate::comm::CommError::Absent`] names them).
    #[cfg(feature = "mpi")]
    pub fn open<C: mpi::traits::Communicator + ?Sized>(comm: &C, config: Config) -> Result<Session> {
        Session::open_with::<C, String>(comm, Ok(config))
    }

    /// Opens a session with a configuration that the program made or changed, or with the reason why it could not make one. Otherwise the
    /// same as [`Session::open`].
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// See [`Session::open`].
    ///
    /// # Errors
    /// See [`Session::open`].
    #[cfg(feature = "mpi")]
    pub fn open_with<C: mpi::traits::Communicator + ?Sized, E: std::fmt::Display>(
        comm: &C,
        config: std::result::Result<Config, E>,
    ) -> Result<Session> {
        let config = config.map_err(|mistake| mistake.to_string());
        let timeouts = prepare_to_wait(config.as_ref());
        Session::open_on_mpi(crate::comm::mpi::MpiComm::duplicate(comm, &timeouts)?, config)
    }

    /// Opens a session on a communicator of Bivouac's own. A rank without a usable configuration fails together with the others.
    #[cfg(feature = "mpi")]
    #[doc(hidden)]
    pub fn open_on_mpi(
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
            // All ranks finalize MPI, and some MPI libraries hang in that call if messages are still under way.
            engine.end_conversation(FINALIZE_LIMIT);
            engine.cancel_messages();
        });
        session._hook = Some(hook.map_err(|error: CommError| Error::Comm(error))?);
        Ok(session)
    }

    /// Opens a session on any message layer and in any environment, for example N ranks in one process, or a simulation.
    ///
    /// # Collective
    /// All ranks of `comm`.
    ///
    /// # Blocking
    /// See `Session::open`.
    ///
    /// # Errors
    /// See `Session::open`.
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
                Some(Arc::new(Lock::at(Order::Session, threads)))
            }
        };
        Ok(Session {
            engine,
            threads,
            decisions: RefCell::new(decisions),
            companions: RefCell::default(),
            told: RefCell::default(),
            process: std::process::id(),
            #[cfg(feature = "mpi")]
            _hook: None,
            not_sync: PhantomData,
        })
    }

    /// The generation: the number of this run on its store.
    pub fn generation(&self) -> u64 {
        self.engine.identity().generation.0
    }

    /// Begins a checkpoint: version `version` of the series `name`. Nothing is copied before [`CheckpointBuilder::capture`]. If the builder
    /// is dropped without a capture, this rank aborts the checkpoint, and the other ranks are told.
    ///
    /// Versions should grow within a run, because a restart takes the largest one as the newest. If a version is taken twice, both
    /// checkpoints are stored, and a restart takes the second one.
    ///
    /// # Collective
    /// All ranks, with the same arguments and regions; the call does not wait for the other ranks.
    ///
    /// # Errors
    /// [`Error::Name`]; the other ranks learn of it in their verdict.
    pub fn begin_checkpoint<'a>(&'a self, name: &str, version: u64) -> Result<CheckpointBuilder<'a>> {
        self.begin_unbound(name, version)
    }

    /// Begins a checkpoint without a lifetime. It must end before the session does.
    #[doc(hidden)]
    pub fn begin_unbound(&self, name: &str, version: u64) -> Result<CheckpointBuilder<'static>> {
        self.engine.reporter().step_beat();
        self.catch_up();
        let begun = self.engine.clock().now();
        // The number is taken first: the other ranks count a call that is refused here, and all numbers must stay in step.
        let operation = self.engine.next_operation();
        if let Err(error) = check_name(name) {
            self.engine.decline(operation, name, version, &error.to_string());
            return Err(error);
        }
        Ok(CheckpointBuilder {
            engine: self.engine.clone(),
            operation,
            name: name.into(),
            version,
            regions: Vec::new(),
            names: HashSet::new(),
            wishes: Vec::new(),
            terms: Terms::default(),
            own_regions: false,
            held: None,
            room: 0,
            broken: None,
            routed: None,
            companions: self.companions_of(name),
            begun,
            held_for: None,
            done: false,
        })
    }

    /// Checks whether a message of the application has arrived on `comm` but has not been received. Such a message is not part of any
    /// checkpoint: before a capture, all of the application's own communication must be complete. The check is intended for debug builds,
    /// after a barrier and before [`Session::checkpoint`]. MPI shows only messages that have arrived, so finding none proves nothing.
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
    /// [`Error::MessageInFlight`], with sender and tag.
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

    /// Returns whether it is time for a checkpoint according to the configured interval (calls, seconds, or cost). Call this once per step.
    ///
    /// If an interval is configured, the answer is true at the first call after a restart in which the ranks looked for shards on each
    /// other's nodes: the data that a lost node held is protected again only once a new checkpoint has been taken.
    ///
    /// # Collective
    /// All ranks, the same number of times; the answer is the same on all ranks. An interval in calls needs no messages. For an interval in
    /// time or cost, the ranks compare only when a checkpoint is nearly due.
    ///
    /// # Errors
    /// [`Error::Disagreed`], [`Error::Failed`].
    pub fn should_checkpoint(&self) -> Result<bool> {
        self.engine.reporter().step_beat();
        self.engine.pump();
        self.catch_up();
        self.decisions.borrow_mut().should_checkpoint(&self.engine)
    }

    /// Returns true if it is time to stop: the configured signal has arrived on some rank, the stop file exists, the end time is near, or a
    /// halt condition of the run directory is met (`run.directory`).
    ///
    /// # Collective
    /// See [`Session::should_checkpoint`]. About once every `exit.check_every`, the ranks compare what they have seen.
    ///
    /// # Errors
    /// [`Error::Disagreed`], [`Error::Failed`].
    pub fn should_exit(&self) -> Result<bool> {
        self.engine.reporter().step_beat();
        self.engine.reporter().tell_exit_asked();
        self.engine.pump();
        self.decisions.borrow_mut().should_exit(&self.engine)
    }

    /// Prepares node memory in the background for a checkpoint of about `bytes` per rank, so that the first capture does not wait for
    /// it. For later captures this happens automatically.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn prepare(&self, bytes: u64) {
        // 1 % and 192 KiB more cover the header, the tables, the padding and the regions that the session adds, at any block size.
        self.engine.prepare_room(page_ceil(bytes + bytes / 100 + 192 * 1024));
    }

    /// Exchanges coordination messages. This is needed only if the session has no thread for them and other calls are rare.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn progress(&self) {
        self.engine.reporter().beat();
        self.engine.pump();
    }

    /// Declares that the program is about to write to `memory`, which may be part of a region saved with
    /// [`CheckpointBuilder::save_live`](crate::CheckpointBuilder::save_live). Those bytes of the region that have not been copied are
    /// copied before this returns. Any other memory is ignored. A declaration is needed for writes that are not instructions of this
    /// process (an MPI receive by a network card, a transfer from a GPU), and for all writes with `offload.host_writes = "declared"`. For
    /// other writes, it avoids a page fault.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the copy of these bytes, if they were captured and have not been copied.
    pub fn before_write<T>(&self, memory: &[T]) {
        let range = memory.as_ptr_range();
        self.engine.before_write(&(range.start.addr()..range.end.addr()));
    }

    /// Waits until Bivouac no longer reads live host memory. Call this before that memory is freed.
    /// [`Offload::settle`](crate::Offload::settle) does the same for GPU memory.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the copy of captured memory.
    pub fn settle(&self) {
        self.engine.settle_live();
    }

    /// Returns the verdicts since the last call, in the order of the operations to which they belong. If this is not called for a long
    /// time, only the newest 4096 verdicts are kept.
    ///
    /// # Collective
    /// Local. All ranks get the same verdicts, though not at the same time.
    pub fn reports(&self) -> Vec<Report> {
        self.engine.reporter().beat();
        self.engine.pump();
        self.engine.reporter().take_reports()
    }

    /// Gives threads that have started since a restart the CPUs of their predecessors.
    pub(super) fn catch_up(&self) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.catch_up();
        }
    }

    /// Sets which parts of the affinity a later restart brings back, in place of the configured parts. This does not change what is
    /// recorded, which follows the configuration.
    ///
    /// # Collective
    /// Local, but ranks with different modes restore different things.
    pub fn set_affinity(&self, mode: AffinityMode) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.set_mode(mode);
        }
    }

    /// Puts the threads of this rank where `pin` says, on the CPUs that the job was given on this node; each rank gets its share of them.
    /// The next [`Session::checkpoint`] or [`Session::should_checkpoint`] also places threads that start later. This does nothing if
    /// affinity is off.
    ///
    /// [`Pin::Compact`] and [`Pin::Scatter`] leave threads where they are if the node has processes of the job that are not ranks of this
    /// group, or if no launcher says which CPUs the job was given and the group has several ranks on the node. In both cases, two processes
    /// could otherwise get the same CPUs. [`AffinityReport::losses`] says if threads were left where they are.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) {
    /// session.pin(bivouac::Pin::Compact);
    /// # }
    /// ```
    ///
    /// # Collective
    /// Local. With the same `pin` on all ranks of a node, the ranks get different cores.
    pub fn pin(&self, pin: Pin) {
        if let Some(keeper) = self.engine.affinity() {
            keeper.pin(pin);
        }
    }

    /// Returns the report on this rank's threads and pages: what the last restart brought back, what it could not bring back, and what has
    /// moved since. Returns `None` if affinity is off (`affinity.mode`).
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

    /// Waits for all flushes in flight and ends the session.
    ///
    /// The node segment is removed, unless it holds the newest checkpoint and no durable tier does.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// For checkpoints that are being written, for at most `timeouts.drain`; then for ranks that have not called, for at most
    /// `timeouts.abandon`; and for a few seconds for the last messages.
    ///
    /// # Errors
    /// [`Error::Undrained`], [`Error::Disagreed`], [`Error::Failed`]; the session is closed nevertheless.
    pub fn close(self) -> Result<()> {
        let limit = self.engine.config().job.timeouts.drain;
        self.close_within(limit)
    }

    /// Closes the session as [`Session::close`] does, and waits at most `limit` for checkpoints that are being written. If `limit` is zero,
    /// the call does not wait for them.
    #[doc(hidden)]
    pub fn close_within(mut self, limit: Duration) -> Result<()> {
        let engine = self.engine.clone();
        engine.settle_live();
        let started = engine.clock().now();
        let drained = engine.drain(limit);
        let in_flight = engine.stats().in_flight;
        let agreed = self.agree("close", Payload::Max(engine.cost_numbers()), engine.failed()).map(|greatest| {
            if let Payload::Max(greatest) = greatest {
                engine.keep_costs(greatest);
            }
        });
        engine.end_conversation(GOODBYE_LIMIT);
        match &self.threads {
            Some(threads) => {
                let left = (started + limit).saturating_sub(engine.clock().now()).max(LAST_PIECES);
                threads.lock().finish(left);
            }
            None => {
                engine.close_claim();
                engine.tell_closed();
                engine.write_profile();
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
        // The error on which the ranks agreed comes first, because it is the same on all ranks.
        agreed?;
        if let Some(reason) = engine.failed() {
            return Err(Error::Failed { reason });
        }
        if drained { Ok(()) } else { Err(Error::Undrained { in_flight, waited_s }) }
    }

    /// Reduces the ballots of all ranks. Fails on all ranks if one of them reports a failure or makes a different call.
    ///
    /// # Collective
    /// All ranks.
    #[doc(hidden)]
    pub fn agree(&self, call: &'static str, mine: Payload, failure: Option<String>) -> Result<Payload> {
        let mut ballot = self.engine.ballot(call, mine);
        if let Some(reason) = failure {
            ballot = ballot.failed(self.engine.identity().rank, reason, false);
        }
        Ok(ask(&self.engine, call, ballot, |_| (Outcome::Agreed, Vec::new()))?.payload)
    }

    /// The engine of the session.
    #[doc(hidden)]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Drop for Session {
    /// Never communicates: stops the comm thread and leaves everything else as a killed process would leave it. Does nothing in a forked
    /// child.
    fn drop(&mut self) {
        if self.process != 0 && self.process != std::process::id() {
            std::mem::forget(self.threads.take());
            return;
        }
        if self.process != 0 {
            log::warn!(
                "event=not-closed rank={}: the session ends without close; what is on its way stays where it is, and other ranks that continue \
                 wait for this one",
                self.engine.identity().rank
            );
        }
        // The program may free its live memory after this, so the copy must have ended.
        self.engine.settle_live();
        if let Some(threads) = &self.threads {
            threads.lock().stop_comm();
        }
    }
}
