//! The engine's state, its steps, and how the rest of the session talks to it.

use super::checkpoint::Checkpoint;
use super::fence::Fence;
use super::fetch::Request;
use super::lanes::Lanes;
use super::node::NodeContainer;
use super::outages::Outages;
use super::parcels::Running;
use super::progress::{LevelVerdict, Report};
use super::stats::Stats;
use super::status::{Supervision, Told};
use super::tasks::{Task, slot_entry};
use super::waiting::Waiting;
use crate::affinity::current_node;
use crate::affinity::keeper::Keeper;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Clock, Generation, Incarnation, Level, Origin, Rank};
use crate::catalog::{Ledger, Moment, Occasion, Reason, Ruling, Stretches};
use crate::comm::{Bell, Label, Parcel, Slice};
use crate::config::{Config, PartStore};
use crate::coordination::core::{Effect, Event};
use crate::coordination::{Ballot, Culprit, Driver, Outcome, Payload, Phase, Round, Verdict};
use crate::format::shard::Layout;
use crate::policy::History;
use crate::redundancy::Protection;
use crate::redundancy::holding::Item;
use crate::segment::{OldSegment, OldSlot, Segment, SlotState};
use crate::tier::claims::{Claim, Claims};
use crate::tier::names::Series;
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use crate::tier::{PerTier, Tier, TierError, TierId, TierSet};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Verdicts that are kept for an application that asks for them. One that never asks must not pay for that with its memory.
pub const REPORTS_MAX: usize = 4096;
/// How long a call that steps goes on after something has last moved.
const STEPPED_PATIENCE: Duration = Duration::from_millis(1);
/// How long a waiting call sleeps when nothing moves.
const PAUSE: Duration = Duration::from_micros(50);

/// Who this rank's session is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Job key.
    pub job: String,
    /// Group within the job.
    pub group: String,
    /// This run.
    pub generation: Generation,
    /// Its random identity.
    pub incarnation: Incarnation,
    /// The store of its global tier, if it has one.
    pub store: Option<Incarnation>,
    /// This rank.
    pub rank: Rank,
    /// Ranks in the group.
    pub size: u32,
    /// The ranks of this node, ascending.
    pub node_ranks: Vec<Rank>,
}

impl Identity {
    /// The series of that name.
    pub fn series(&self, name: &str) -> Series {
        Series { job: self.job.clone(), group: self.group.clone(), name: name.into() }
    }

    /// Is this the node's first rank?
    pub fn is_node_leader(&self) -> bool {
        self.node_ranks.first() == Some(&self.rank)
    }
}

/// Everything an engine stands on.
pub struct Setup {
    /// Who we are.
    pub identity: Identity,
    /// The configuration.
    pub config: Config,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The node segment, if the memory tier is in use.
    pub memory: Option<Arc<Segment>>,
    /// The tiers in use that are written to, nearest first.
    pub tiers: Vec<Arc<dyn Tier>>,
    /// The account of where this rank's threads and pages are, unless that is off.
    pub affinity: Option<Arc<Keeper>>,
    /// Tiers that were wanted and cannot be used, and by whom not; the same on all ranks.
    pub lost: Vec<(TierId, Vec<Culprit>)>,
    /// This rank's part in the redundancy sets.
    pub protection: Protection,
    /// The run's claim (root only), until the engine has it.
    pub claim: Option<(Claims, Claim)>,
    /// What a supervisor is told, and how it asks.
    pub supervision: Supervision,
    /// No thread works for this engine: its steps are taken inside its own calls.
    pub is_inline: bool,
    /// Threads write, but the coordination is stepped inside the engine's calls: bulk data moves only there.
    pub is_stepped: bool,
}

/// Why a capture failed on this rank.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The session has failed before; nothing more is committed.
    #[error("rank {rank}: this session has failed and commits nothing more: {reason}")]
    Failed {
        /// This rank.
        rank: Rank,
        /// Why it failed.
        reason: String,
    },
    /// The regions cannot be laid out.
    #[error("rank {rank}: {source}")]
    Layout {
        /// This rank.
        rank: Rank,
        /// What is wrong.
        source: crate::format::FormatError,
    },
    /// The checkpoint has regions in device memory, and was captured without saying which caches and stream to use.
    #[error("rank {rank}: version {version} of {name:?} has regions in device memory: capture it with capture_on")]
    NoCaches {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
    },
    /// The device did not give its regions.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {source}")]
    Device {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// What the device says.
        source: crate::device::DeviceError,
    },
    /// A version of a history could not be read.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {source}")]
    Region {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// Which region, and why.
        source: super::capture::Unreadable,
    },
    /// No tier could take the shard.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {}", causes.join("; "))]
    NoTier {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// One cause per tier that was tried.
        causes: Vec<String>,
    },
}

/// Answers a round that is not about a checkpoint's level. Runs on the root only.
pub type Decider = Box<dyn FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send>;

pub(super) enum Decision {
    Checkpoint { name: String },
    Custom(Decider),
}

#[derive(Default)]
pub(super) struct State {
    pub events: Vec<Event>,
    pub awaited: HashSet<Round>,
    pub verdicts: HashMap<Round, Verdict>,
    pub deciders: HashMap<Round, Decision>,
    pub checkpoints: BTreeMap<u64, Checkpoint>,
    /// Operations whose checkpoints have bytes in their place and are still to be captured.
    pub held: HashSet<u64>,
    pub lanes: Lanes,
    /// Node containers on which this rank waits for others of the node, and since when.
    pub slices: Vec<(u64, TierId, NodeContainer, Duration)>,
    /// What the root remembers of a series.
    pub histories: HashMap<String, PerTier<History>>,
    pub committed: HashSet<(TierId, u64)>,
    /// By the hash of its name, the highest level at which this run has committed something of a series.
    pub committed_names: HashMap<u64, Level>,
    /// Exchanges under way, by operation.
    pub exchanges: BTreeMap<u64, Running>,
    /// Parcels of exchanges that have not begun here.
    pub early: BTreeMap<u64, Vec<Parcel>>,
    /// Parcels to be sent that belong to no exchange.
    pub outbox: VecDeque<(Rank, Label, Slice)>,
    /// Buffers to give back to the message layer.
    pub spent: Vec<Vec<u8>>,
    /// Requests of other ranks.
    pub requests: VecDeque<Request>,
    /// What requests are answered from.
    pub served: HashMap<(String, CheckpointKey, Item), Vec<Source>>,
    /// Requests of this rank, and the answers that have come.
    pub fetches: HashMap<u64, Option<Result<Vec<u8>, String>>>,
    pub fetch_id: u64,
    /// The newest verdicts that nobody has asked for, [`REPORTS_MAX`] at most.
    pub reports: VecDeque<Report>,
    pub stats: Stats,
    /// What this rank has to say with its next vote.
    pub notes: Vec<String>,
    /// A capture has had to wait for a file, and that was said.
    pub is_direct_told: bool,
    /// Checkpoints that this rank has refused and of which no verdict was heard: series and version, by operation.
    pub declined: HashMap<u64, (String, u64)>,
    /// The last layout of each series; what its shard in memory needs anyway.
    pub layouts: HashMap<String, Layout>,
    /// The node's segment has been removed under the run, and that was said.
    pub is_unlinked_told: bool,
    /// Levels that checkpoints were refused at.
    pub outages: Outages,
    /// Series, by the hashes of their names, of which it was said that this run has started them over.
    pub told_over: HashSet<u64>,
    pub failed: Option<String>,
    /// The reason in `failed` is a newer run: nothing is committed, but the ranks still hear each other.
    pub superseded: bool,
    /// What this run restored of each series, by name, and when.
    pub stretches: HashMap<String, Stretches>,
    pub operation: u64,
    pub renewed: Duration,
    pub told: Told,
    pub old_segments: Vec<Arc<OldSegment>>,
}

/// One rank's engine. Shared by the session, its threads and the checkpoints in flight.
pub struct Engine {
    pub(super) setup: Setup,
    opened: Duration,
    pub(super) config_hash: u64,
    pub(super) fence: Option<Fence>,
    bell: Option<Arc<Bell>>,
    driver: Mutex<Driver>,
    state: Mutex<State>,
    staging: Mutex<Option<PageBuffer>>,
    changed: Condvar,
    work_ready: Condvar,
    stop: AtomicBool,
    /// Calls of the application that wait for flushes.
    pub(crate) waiting: Waiting,
    /// `should_exit` has said yes.
    pub is_ending: AtomicBool,
}

impl State {
    /// Says once that this run takes checkpoints of a series that earlier runs have, the newest being `newest`, and has restored none of them:
    /// a name that is mistyped in the call of the restart, or a forgotten call, looks like a first run otherwise.
    pub fn tell_started_over(&mut self, name: &str, newest: (Generation, u64)) {
        if !self.told_over.insert(text_hash(name)) {
            return;
        }
        let (generation, version) = newest;
        self.notes.push(format!(
            "event=series-started-over name={name:?} newest_before=\"version {version} of run {generation}\": this run has restored nothing of \
             this series, and takes checkpoints of it. The next run goes on from these, and removes the older ones. To go on from those \
             instead, end this run and restart from version {version} by its number; to keep both, take checkpoints under another name. \
             `bivouac ls` shows both"
        ));
    }

    /// Why this rank can agree on nothing any more, if so. A superseded run still can: its application computes on, and
    /// all its ranks go on to get one answer to each question.
    pub fn cut_off(&self) -> Option<&String> {
        self.failed.as_ref().filter(|_| !self.superseded)
    }
}

/// Why a segment is kept when its run ends.
fn in_words(reason: Reason) -> String {
    match reason {
        Reason::Newest(Level::Process) => "no durable tier has its newest version".into(),
        Reason::Newest(Level::NodeLoss) => {
            "the global tier does not have the newest version that it protects from the loss of nodes".into()
        }
        Reason::Doubt(_) | Reason::Open => "it is not known whether all ranks committed what it holds".into(),
        other => other.to_string(),
    }
}

impl Engine {
    /// An engine at rest.
    ///
    /// `operation` is the number of the last collective call that was made on the driver before.
    pub fn new(mut setup: Setup, driver: Driver, operation: u64) -> Engine {
        let reports = setup.lost.iter().map(|(tier, culprits)| Report {
            name: String::new(),
            key: CheckpointKey::default(),
            level: tier.level(),
            verdict: LevelVerdict::Off(culprits.clone()),
        });
        let state = State { operation, reports: reports.collect(), ..State::default() };
        Engine {
            opened: setup.clock.now(),
            fence: setup.claim.take().map(Fence::new),
            config_hash: setup.config.job.hash(),
            setup,
            bell: driver.bell(),
            driver: Mutex::new(driver),
            state: Mutex::new(state),
            staging: Mutex::default(),
            changed: Condvar::new(),
            work_ready: Condvar::new(),
            stop: AtomicBool::new(false),
            waiting: Waiting::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held is a broken invariant of ours; the state itself is still consistent enough
        // to report it, and the application must not be taken down.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who we are.
    pub fn identity(&self) -> &Identity {
        &self.setup.identity
    }

    /// The account of where this rank's threads and pages are, unless that is off.
    pub fn affinity(&self) -> Option<&Arc<Keeper>> {
        self.setup.affinity.as_ref()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.setup.config
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.setup.clock
    }

    /// The node segment, if the memory tier is in use.
    pub fn memory(&self) -> Option<&Arc<Segment>> {
        self.setup.memory.as_ref()
    }

    /// The tiers in use that are written to, nearest first.
    pub fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.setup.tiers
    }

    /// A tier that is written to, if it is in use.
    pub fn tier(&self, tier: TierId) -> Option<&Arc<dyn Tier>> {
        self.setup.tiers.iter().find(|found| found.kind() == tier)
    }

    /// Counters and times so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.lock().stats.clone();
        if let Some(keeper) = &self.setup.affinity {
            (stats.threads_wandered, stats.pages_wandered) = keeper.wandered();
        }
        stats.in_flight = self.lock().checkpoints.values().filter(|c| !c.flow.is_finished()).count() as u64;
        stats
    }

    /// Changes the counters.
    pub fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.lock().stats);
    }

    /// Verdicts heard since the last call, in the order of their operations; of more than [`REPORTS_MAX`] the newest.
    pub fn take_reports(&self) -> Vec<Report> {
        let mut reports = Vec::from(std::mem::take(&mut self.lock().reports));
        reports.sort_by_key(|report| (report.key.operation, report.level));
        reports
    }

    /// The levels from `level` on that nothing reaches, because their tiers cannot be used.
    pub fn lost_at(&self, level: Level) -> impl Iterator<Item = (Level, LevelVerdict)> {
        let lost = self.setup.lost.iter().map(|(tier, culprits)| (tier.level(), culprits));
        lost.filter(move |(at, _)| *at >= level).map(|(at, culprits)| (at, LevelVerdict::Off(culprits.clone())))
    }

    /// Seconds since the session was opened.
    pub fn seconds_open(&self) -> f64 {
        self.setup.clock.now().saturating_sub(self.opened).as_secs_f64()
    }

    /// Why the session has failed, if it has.
    pub fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Records what this run restored of a series with its last call: later checkpoints of the series descend from it.
    pub fn begin_stretch(&self, name: &str, origin: impl FnOnce(u64) -> Origin) {
        let mut state = self.lock();
        let origin = origin(state.operation);
        state.stretches.entry(name.into()).or_default().begin(self.setup.identity.generation, origin);
    }

    /// Hands over segments of older runs, to be removed once this run has committed something of each of their series.
    pub fn keep_until_commit(&self, old: Vec<OldSegment>) {
        self.lock().old_segments.extend(old.into_iter().map(Arc::new));
        // Those of runs that were gone before they had taken anything.
        self.remove_old_segments();
    }

    /// Gives back the memory of older runs' versions of a series that were not elected.
    ///
    /// An older one that may survive the loss of nodes stays, unless the elected one is known to survive that, too: by its
    /// slots, or because it `is_global`.
    pub fn forget_others(&self, name: &str, elected: &CheckpointKey, is_global: bool) {
        let hash = text_hash(name);
        // Asking whether anybody lives, and giving memory back, take time: not under the lock.
        let segments = self.lock().old_segments.clone();
        let of_series = |slot: &&OldSlot| slot.state == SlotState::Sealed && slot.name == hash;
        let entries = segments
            .iter()
            .flat_map(|segment| segment.slots().iter().filter(of_series).map(move |slot| slot_entry(segment, slot)));
        let ledger = Ledger::new(entries.collect());
        let mut rulings = ledger.judge(&Occasion::Elected { elected: Moment::of(elected), is_global }).into_iter();
        for segment in segments {
            // What was torn has no name, and nobody can restore it.
            let sealed = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
            let keep: Vec<OldSlot> = sealed
                .filter(|slot| slot.name != hash || rulings.next().is_none_or(|ruling| !ruling.may_go()))
                .copied()
                .collect();
            if segment.is_alive().unwrap_or(true) {
                continue;
            }
            match segment.punch_except(&keep) {
                Ok(freed) => log::info!("event=old-slots-freed path={} bytes={freed}", segment.path().display()),
                Err(error) => log::warn!("event=old-slots-not-freed error={error}"),
            }
        }
    }

    /// Closes the node segment; its first rank removes it, unless it holds something that no durable tier has.
    pub fn close_memory(&self) {
        let Some(segment) = &self.setup.memory else { return };
        let is_leader = self.setup.identity.is_node_leader();
        let needed_for = {
            let state = self.lock();
            let rulings = state.memory_ledger(self.has_stored_parts()).judge(&Occasion::Ended);
            rulings.into_iter().find_map(Ruling::reason)
        };
        if let (Some(reason), true) = (needed_for, is_leader) {
            log::warn!(
                "event=segment-kept path={} reason=\"{}\": the next start of this job reads it, `bivouac clean` removes it",
                segment.path().display(),
                in_words(reason)
            );
        }
        if let Err(error) = segment.close(is_leader && needed_for.is_none()) {
            log::warn!("event=segment-not-closed error={error}");
        }
    }

    /// Is what this run keeps for redundancy on local storage before its level counts?
    pub(super) fn has_stored_parts(&self) -> bool {
        self.setup.config.job.redundancy.store == PartStore::Local
    }

    /// Ends the conversation on all ranks: what was sent has arrived.
    ///
    /// # Collective
    /// All ranks.
    pub fn end_conversation(&self, limit: Duration) {
        self.request_stop();
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        match driver.quiesce(limit) {
            Ok(true) => {}
            Ok(false) => log::warn!("event=messages-left rank={}", self.setup.identity.rank),
            Err(error) => log::debug!("event=no-goodbye error={error}"),
        }
    }

    /// Populates memory for a shard of `bytes` in the background.
    pub fn prepare_room(&self, bytes: u64) {
        let mut state = self.lock();
        if self.setup.memory.is_some() {
            let near_device = self.setup.affinity.as_ref().and_then(|keeper| keeper.node_of_device());
            state.lanes.prepare(bytes, near_device.or_else(current_node));
            drop(state);
            self.wake();
        }
    }

    /// The number of the next collective call.
    pub fn next_operation(&self) -> u64 {
        let mut state = self.lock();
        state.operation += 1;
        state.operation
    }

    /// Casts this rank's vote in a call of its own and waits for the verdict.
    ///
    /// # Collective
    /// All ranks make the same calls in the same order.
    ///
    /// # Blocking
    /// Until all ranks have called, at most for the configured time-outs.
    ///
    /// # Errors
    /// The reason why the session has failed.
    pub fn collective(&self, ballot: Ballot, decide: Decider) -> Result<Verdict, String> {
        let operation = self.next_operation();
        self.collective_at(operation, ballot, decide)
    }

    /// The same for an operation whose number was drawn before.
    ///
    /// # Errors
    /// As [`Engine::collective`].
    pub fn collective_at(&self, operation: u64, ballot: Ballot, decide: Decider) -> Result<Verdict, String> {
        let round = Round { operation, phase: Phase::Call };
        {
            let mut state = self.lock();
            if let Some(reason) = state.cut_off() {
                return Err(reason.clone());
            }
            state.awaited.insert(round);
            state.deciders.insert(round, Decision::Custom(decide));
            state.events.push(Event::Vote(round, ballot));
        }
        self.wait_until(|state| match state.verdicts.remove(&round) {
            Some(verdict) => Some(Ok(verdict)),
            None => state.cut_off().cloned().map(Err),
        })
    }

    /// Steps until `ready` has an answer.
    pub(super) fn wait_until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            if let Some(answer) = ready(&mut self.lock()) {
                return answer;
            }
            if self.pump() {
                continue;
            }
            if self.setup.is_stepped && self.has_bulk() {
                std::thread::yield_now();
            } else {
                self.pause(PAUSE);
            }
        }
    }

    /// One step of all that has no thread of its own; true if something moved.
    pub fn pump(&self) -> bool {
        let mut moved = self.step();
        if self.setup.is_inline {
            moved |= self.work_inline();
        }
        moved
    }

    /// Where no thread steps: steps for as long as others answer, so that what all ranks have done when they make a call is agreed on
    /// when that call returns. Ranks that come late are not waited for.
    pub fn settle(&self) {
        if !self.setup.is_stepped {
            return;
        }
        let clock = &self.setup.clock;
        let awaits_others = || self.driver.try_lock().is_ok_and(|driver| driver.awaits_others());
        let mut moved = clock.now();
        loop {
            if self.pump() {
                moved = clock.now();
            } else if awaits_others() && clock.now().saturating_sub(moved) < STEPPED_PATIENCE {
                std::thread::yield_now();
            } else {
                return;
            }
        }
    }

    fn work_inline(&self) -> bool {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        self.work(TierSet::ALL, &mut staging)
    }

    /// Sleeps until something changes, at most for `limit`.
    pub fn pause(&self, limit: Duration) {
        if self.setup.is_inline {
            self.setup.clock.sleep(limit);
            return;
        }
        let state = self.lock();
        if state.events.is_empty() {
            drop(self.changed.wait_timeout(state, limit));
        }
    }

    /// Moves the coordination along: casts votes, takes messages, carries out what follows. True if something moved.
    ///
    /// Does nothing if another thread is just doing it.
    pub fn step(&self) -> bool {
        let Ok(mut driver) = self.driver.try_lock() else { return false };
        let mut moved = false;
        // A verdict may lead to votes at once; more than a few rounds of that wait for the next step.
        for _ in 0..8 {
            let events = {
                let mut state = self.lock();
                self.poll_slices(&mut state);
                self.pass_by(&mut state);
                if state.failed.is_some() && self.stop.load(Ordering::Relaxed) {
                    return moved;
                }
                self.with_notes(&mut state)
            };
            let voted = !events.is_empty();
            let effects = match driver.step(events) {
                Ok(effects) => effects,
                Err(error) => return self.fail_once(error.to_string()),
            };
            if effects.is_empty() && !voted {
                break;
            }
            moved = true;
            let mut state = self.lock();
            state.stats.messages = driver.messages();
            for effect in effects {
                self.on_effect(&mut state, effect);
            }
            drop(state);
            self.wake();
        }
        match self.step_parcels(&mut driver) {
            Ok(parcels) => moved | parcels,
            Err(error) => moved | self.fail_once(error.to_string()),
        }
    }

    /// The events that wait, the first vote with what this rank has to say.
    fn with_notes(&self, state: &mut State) -> Vec<Event> {
        let mut events = std::mem::take(&mut state.events);
        if let Some(Event::Vote(_, ballot)) = events.iter_mut().find(|event| matches!(event, Event::Vote(..))) {
            let noted = |ballot: Ballot, note| ballot.noted(self.setup.identity.rank, note);
            *ballot = std::mem::take(&mut state.notes).into_iter().fold(std::mem::take(ballot), noted);
        }
        events
    }

    /// Says something with the next vote: the root writes it, once for all ranks that say the same.
    pub fn note(&self, text: String) {
        self.lock().notes.push(text);
    }

    /// Fails the session if it has not failed yet; true if it was this call. Communication that has broken down says so at every
    /// call, and nobody need be woken for that again.
    fn fail_once(&self, reason: String) -> bool {
        let is_news = self.lock().failed.is_none();
        if is_news {
            self.fail(reason);
        }
        is_news
    }

    fn on_effect(&self, state: &mut State, effect: Effect) {
        match effect {
            Effect::Send(..) => {}
            Effect::Decide(round, ballot) => {
                for note in ballot.notes() {
                    log::warn!("{note}");
                }
                match state.deciders.remove(&round) {
                    Some(decision) => {
                        let (outcome, decision) = match decision {
                            Decision::Custom(decide) => decide(&ballot),
                            Decision::Checkpoint { name } => self.decide_checkpoint(state, &name, &ballot),
                        };
                        state.events.push(Event::Decided { round, outcome, decision });
                    }
                    None => state.lanes.push(Task::Decide { round, ballot }),
                }
            }
            Effect::Settled(verdict) => self.on_settled(state, verdict),
            Effect::Waiting { round, waited, missing } => log::warn!(
                "event=waiting rank={} operation={} phase={:?} waited_s={:.0} missing={missing:?}",
                self.setup.identity.rank,
                round.operation,
                round.phase,
                waited.as_secs_f64()
            ),
        }
    }

    fn on_settled(&self, state: &mut State, verdict: Verdict) {
        let round = verdict.round;
        state.deciders.remove(&round);
        if verdict.outcome == Outcome::Unknown {
            let reason = format!("the root did not answer in operation {}", round.operation);
            state.failed.get_or_insert(reason);
            state.superseded = false;
        }
        if state.checkpoints.contains_key(&round.operation) {
            self.on_checkpoint_verdict(state, &verdict);
        } else if let Some((name, version)) = state.declined.remove(&round.operation) {
            let key = self.key(version, round.operation);
            let heard = match &verdict.outcome {
                Outcome::Abandoned(culprits) => LevelVerdict::Abandoned(culprits.clone()),
                _ => LevelVerdict::Unknown("this rank refused the checkpoint".into()),
            };
            self.tell(state, &name, key, Level::Captured, heard);
        }
        if state.awaited.remove(&round) {
            state.verdicts.insert(round, verdict);
        }
    }

    /// Latches the session as failed: nothing more is committed, and everybody who waits is told why.
    pub fn fail(&self, reason: String) {
        let mut state = self.lock();
        if state.failed.is_none() {
            log::error!("event=session-failed rank={} reason={reason:?}", self.setup.identity.rank);
            state.failed = Some(reason.clone());
        }
        state.superseded = false;
        let open: Vec<u64> =
            state.checkpoints.values().filter(|c| !c.flow.is_finished()).map(|c| c.key.operation).collect();
        for operation in open {
            self.give_up(&mut state, operation, LevelVerdict::Unknown(reason.clone()));
        }
        drop(state);
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
        self.work_ready.notify_all();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// Sleeps until something has come from another rank, or something here is to be agreed on, at most for `limit`; true if
    /// something has come. `None`, at once: no message layer tells that.
    pub(super) fn listen(&self, limit: Duration) -> Option<bool> {
        let has_work = || self.stop.load(Ordering::SeqCst) || !self.lock().events.is_empty();
        self.bell.as_ref().map(|bell| bell.listen(limit, has_work))
    }

    /// Does one piece of background work that waits for none but these tiers; false if there was none.
    ///
    /// # Blocking
    /// On these tiers.
    pub fn work(&self, tiers: TierSet, staging: &mut Option<PageBuffer>) -> bool {
        let Some(work) = self.next_work(tiers) else { return false };
        let waits_for = work.waits_for();
        self.run(work, staging);
        if let Some(tier) = waits_for {
            self.lock().lanes.of(tier).end(self.setup.clock.now());
        }
        self.wake();
        true
    }

    /// Waits for work, at most for `limit`.
    pub fn wait_for_work(&self, tiers: TierSet, limit: Duration) {
        let state = self.lock();
        let is_waiting = |running: &Running| running.exchange.backlog() > 0;
        let [answers, exchanges] = self.serves(tiers);
        if state.lanes.has_tasks(tiers)
            || (answers && !state.requests.is_empty())
            || (exchanges && state.exchanges.values().any(is_waiting))
        {
            // It came after this thread had looked.
            return;
        }
        if state.exchanges.is_empty() && !state.lanes.is_writing(tiers) && !state.lanes.has_writes(tiers) {
            drop(self.work_ready.wait_timeout(state, limit));
        } else {
            // Pieces of the active job are all taken, somebody is just opening the next, or an exchange waits for
            // others: look again soon.
            drop(self.work_ready.wait_timeout(state, limit.min(Duration::from_millis(2))));
        }
    }

    /// Waits until nothing is in flight any more, at most for `limit`; true if so.
    pub fn drain(&self, limit: Duration) -> bool {
        let _waiting = self.waiting.begin();
        let deadline = self.setup.clock.now() + limit;
        let clock = self.setup.clock.clone();
        self.wait_until(move |state| {
            let idle = state.checkpoints.values().all(|c| c.flow.is_finished() && !c.is_landing)
                && !state.lanes.has_tasks(TierSet::ALL)
                && !state.lanes.is_in_hand()
                && state.exchanges.is_empty()
                && !state.lanes.is_writing(TierSet::ALL);
            if idle || state.cut_off().is_some() { Some(idle) } else { (clock.now() >= deadline).then_some(false) }
        })
    }

    /// Tells all threads to stop.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(fence) = &self.fence {
            fence.wake();
        }
    }

    /// Have threads been told to stop?
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Gives up the communicator. Nothing is sent or received after this.
    pub fn cancel_messages(&self) {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }

    /// Marks the claim as ended in order (root only).
    pub fn close_claim(&self) {
        if let Some(fence) = &self.fence {
            fence.close();
        }
    }

    /// Is anything being agreed on or written? The comm thread polls more often then.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        !state.awaited.is_empty()
            || !state.fetches.is_empty()
            || !state.served.is_empty()
            || state.checkpoints.values().any(|c| !c.flow.is_finished())
    }

    pub(super) fn tier_failure(&self, state: &mut State, tier: TierId, error: &TierError) {
        state.stats.write_failures[tier] += 1;
        if let Some(tier) = error.damaged() {
            state.stats.damaged[tier] += 1;
            log::error!("event=damage-found rank={} error={error}", self.setup.identity.rank);
        }
        // The verdict has the reasons of all ranks, and the root writes it.
        log::info!(
            "event=write-failed rank={} tier={tier} errno={:?} error={error}",
            self.setup.identity.rank,
            error.errno()
        );
    }

    /// The ballot of a rank that refuses the call that it was asked to make.
    pub fn refusal(&self, why: &str) -> Ballot {
        let mut ballot = self.ballot("", Payload::None).failed(self.setup.identity.rank, why, false);
        // The failure is what counts; a hash of its own would only name this rank twice.
        ballot.calls.clear();
        ballot
    }

    /// An empty ballot of this rank for a call with these words; the hash covers the words.
    pub fn ballot(&self, call: &str, payload: Payload) -> Ballot {
        let hash = text_hash(call);
        Ballot::of(self.setup.identity.rank, hash, call, payload)
    }
}
