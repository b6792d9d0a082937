//! One rank's engine: the books, the parts that do the work, and the connections between them.
//!
//! Every event is reported to the books (`Engine::decide`), and its effects are performed before anything else can happen: the lock of the
//! books is held meanwhile, and none of the parts that perform them does I/O or sends a message during that time. They report the results
//! of their work as `Done`.

use super::core::{Books, Captured, Effect, Facts, Plan, Wishes, call, plan};
use super::desk::{Decision, Desk};
use super::fence::{Fence, Standing};
use super::fetch::Fetches;
use super::files::FileLevel;
use super::inherited::Inherited;
use super::lanes::Lanes;
use super::level::{Done, LevelWork};
use super::live::Lives;
use super::mail::Mail;
use super::offload::Counters;
use super::peers::Peers;
use super::posting::Posting;
use super::progress::{LevelVerdict, Progress};
use super::reducer::{Manifests, Reducer};
use super::remains::Remains;
use super::report::Reporter;
use super::setup::{Identity, Setup};
use super::shards::{Placed, Shards};
use super::stats::Stats;
use super::tuning::{Tuning, scope};
use super::waiting::Waiting;
use super::work::Task;
use crate::affinity::current_node;
use crate::affinity::keeper::Keeper;
use crate::base::log;
use crate::base::sync::{Guard, Lock, Order, Signal};
use crate::base::{Clock, Digest, Level};
use crate::comm::{Bell, CommError};
use crate::config::Config;
use crate::coordination::core::{Effect as Said, Event};
use crate::coordination::{Ballot, Driver, Outcome, Payload, Verdict};
use crate::format::shard::Layout;
use crate::redundancy::exchange;
use crate::segment::{Segment, SlotId};
use crate::tier::names::Series;
use crate::tier::posix::PageBuffer;
use crate::tier::routed::{self, Folder};
use crate::tier::{PerTier, Tier, TierId, TierSet};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How many parcels are taken and sent in one step, so that steps stay short.
const PARCELS_PER_STEP: usize = 32;
/// How many parcels may be on their way out at the same time.
const UNSENT_MAX: usize = 16;
/// How many pieces of work may wait before parcels are no longer taken.
const BACKLOG_MAX: usize = 32;

/// One rank's engine. Shared by the session, its threads and the checkpoints in flight.
pub struct Engine {
    pub(super) setup: Arc<Setup>,
    opened: Duration,
    pub(super) config_hash: u64,
    driver: Lock<Driver>,
    books: Lock<Books<SlotId>>,
    pub(super) desk: Desk,
    shards: Arc<Shards>,
    pub(super) reducer: Arc<Reducer>,
    /// What the slots still contain.
    pub(super) remains: Lock<Remains>,
    /// Room for the digests of the next shard. It is allocated after a shard has been copied from a device: during the call that captures,
    /// the allocation would take as long as everything else.
    pub(super) spare_digests: Lock<Vec<Digest>>,
    /// A shard was marked, so it is worth knowing what slots contain.
    pub(super) has_marked: AtomicBool,
    pub(super) manifests: Manifests,
    pub(super) lanes: Arc<Lanes>,
    pub(super) mail: Arc<Mail>,
    pub(super) files: Vec<Arc<FileLevel>>,
    pub(super) peers: Arc<Peers>,
    levels: PerTier<Option<Arc<dyn LevelWork>>>,
    pub(super) fetches: Fetches,
    pub(super) posting: Posting,
    reporter: Arc<Reporter>,
    /// Measurements for the intervals that the session chooses itself.
    tuning: Arc<Tuning>,
    /// What checkpoints have cost the rank for which they cost most; known once the session closes.
    pub(super) greatest: Lock<Vec<u64>>,
    pub(super) inherited: Inherited,
    pub(super) fence: Option<Fence>,
    bell: Option<Arc<Bell>>,
    /// The last layout of each series, which its shard in memory needs anyway.
    pub(super) layouts: Lock<HashMap<String, Layout>>,
    /// The program has written files of its own.
    has_routed: AtomicBool,
    /// The last known lengths of the streams of checkpoints, by the hashes of both names.
    pub(super) stream_lengths: Lock<HashMap<(u64, u64), u64>>,
    /// Staging buffer for the work that calls of the application do themselves.
    pub(super) staging: Lock<Option<PageBuffer>>,
    /// Signals what has come up to those who step or wait; `work_ready` signals it to those who work.
    pub(super) changed: Signal,
    pub(super) work_ready: Signal,
    pub(super) operation: AtomicU64,
    stop: AtomicBool,
    /// Calls of the application that wait for flushes.
    pub(crate) waiting: Waiting,
    pub(super) lives: Arc<Lives>,
    /// The counters of each device's offloader, kept even after the offloader has ended.
    marked: Lock<Vec<Counters>>,
    /// `should_exit` has said yes.
    pub is_ending: AtomicBool,
}

impl Engine {
    /// An engine at rest.
    ///
    /// `operation` is the number of the last collective call that was made on the driver before this.
    pub fn new(mut setup: Setup, driver: Driver, operation: u64) -> Engine {
        let fence = setup.claim.take().map(Fence::new);
        let supervision = std::mem::take(&mut setup.supervision);
        let reporter = Arc::new(Reporter::new(&setup, supervision));
        let setup = Arc::new(setup);
        let (shards, lanes, mail) = (Arc::<Shards>::default(), Arc::<Lanes>::default(), Arc::<Mail>::default());
        let reducer = Arc::new(Reducer::new(&setup, &reporter));
        let file_level = |tier| Arc::new(FileLevel::new(&setup, tier, &shards, &reducer, &lanes, &reporter));
        let files: Vec<Arc<FileLevel>> = setup.tiers.iter().map(file_level).collect();
        let peers = Arc::new(Peers::new(&setup, &shards, &lanes, &mail, &reporter));
        let mut levels: PerTier<Option<Arc<dyn LevelWork>>> = PerTier::default();
        levels[TierId::PEERS] = Some(peers.clone());
        for (tier, level) in setup.tiers.iter().zip(&files) {
            levels[tier.kind()] = Some(level.clone());
        }
        let books = Books::new(setup.rank(), &setup.config.job);
        Engine {
            opened: setup.now(),
            config_hash: setup.config.job.hash(),
            bell: driver.bell(),
            driver: Lock::at(Order::Driver, driver),
            books: Lock::at(Order::Core, books),
            desk: Desk::default(),
            fetches: Fetches::new(setup.rank(), &mail),
            posting: Posting::new(setup.rank(), &mail),
            shards,
            reducer,
            remains: Lock::at(Order::Account, Remains::default()),
            spare_digests: Lock::default(),
            has_marked: AtomicBool::new(false),
            manifests: Manifests::default(),
            lanes,
            mail,
            files,
            peers,
            levels,
            reporter,
            tuning: Arc::new(tuning_of(&setup)),
            greatest: Lock::default(),
            inherited: Inherited::default(),
            fence,
            layouts: Lock::default(),
            has_routed: AtomicBool::new(false),
            stream_lengths: Lock::new(HashMap::new()),
            staging: Lock::default(),
            changed: Signal::default(),
            work_ready: Signal::default(),
            operation: AtomicU64::new(operation),
            stop: AtomicBool::new(false),
            waiting: Waiting::default(),
            lives: Arc::default(),
            marked: Lock::default(),
            is_ending: AtomicBool::new(false),
            setup,
        }
    }

    // ---- The parts.

    /// The identity of this rank and its run.
    pub fn identity(&self) -> &Identity {
        &self.setup.identity
    }

    /// Is this rank the root?
    pub fn is_root(&self) -> bool {
        self.setup.identity.is_root()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.setup.config
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.setup.clock
    }

    /// The record of where this rank's threads and pages are, unless that is off.
    pub fn affinity(&self) -> Option<&Arc<Keeper>> {
        self.setup.affinity.as_ref()
    }

    /// The node segment, if the memory tier is in use.
    pub fn memory(&self) -> Option<&Arc<Segment>> {
        self.setup.memory.as_ref()
    }

    /// This rank's equal share of node memory, in bytes; `None` if node memory is off.
    pub fn memory_share(&self) -> u64 {
        self.setup.memory_share()
    }

    /// The tiers in use that are written to, nearest first.
    pub fn tiers(&self) -> &[Arc<dyn Tier>] {
        &self.setup.tiers
    }

    /// The folder for those files of one version that the program writes itself. Files that an earlier run of this rank left on this node
    /// are removed first.
    pub fn routed(&self, series: &Series, version: u64) -> Folder {
        let folder = Folder::new(&self.setup.scratch, routed::TREE, series, self.setup.identity.rank, version);
        if !self.has_routed.swap(true, Ordering::Relaxed) {
            folder.remove_older();
        }
        folder
    }

    /// A tier that is written to, if it is in use.
    pub fn tier(&self, tier: TierId) -> Option<&Arc<dyn Tier>> {
        self.setup.tier(tier)
    }

    /// What the application, the log and the supervisor are told.
    pub fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// The measurements for intervals that the session chooses itself.
    pub fn tuning(&self) -> &Arc<Tuning> {
        &self.tuning
    }

    /// Serves the requests of other ranks, from what this rank holds.
    pub fn server(&self) -> &Fetches {
        &self.fetches
    }

    /// The part that does this rank's work for a level.
    pub(super) fn level(&self, tier: TierId) -> Option<&Arc<dyn LevelWork>> {
        self.levels[tier].as_ref()
    }

    /// The books, for questions. To report an event, use [`Engine::decide`].
    pub(super) fn books(&self) -> Guard<'_, Books<SlotId>> {
        self.books.lock()
    }

    /// Counters and times so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.reporter.count(|stats| stats.clone());
        if let Some(keeper) = &self.setup.affinity {
            (stats.threads_wandered, stats.pages_wandered) = keeper.wandered();
        }
        stats.tuned = self.tuning.newest();
        stats.in_flight = self.books().in_flight().count() as u64;
        let marked = self.marked.lock().clone();
        marked.iter().for_each(|counters| stats.offload.add(&counters.lock()));
        stats.live = self.lives.stats();
        stats
    }

    /// Counters for one more offloader, which [`Engine::stats`] includes from now on.
    pub(crate) fn count_marks(&self) -> Counters {
        let counters = Counters::default();
        self.marked.lock().push(counters.clone());
        counters
    }

    /// Seconds since the session was opened.
    pub fn seconds_open(&self) -> f64 {
        self.setup.now().saturating_sub(self.opened).as_secs_f64()
    }

    /// Why the session has failed, if it has.
    pub fn failed(&self) -> Option<String> {
        self.books().failed().map(ToOwned::to_owned)
    }

    /// Why this rank can agree on nothing any more, if so.
    pub(super) fn cut_off(&self) -> Option<String> {
        self.books().cut_off().map(ToOwned::to_owned)
    }

    // ---- Events and effects.

    /// Reports an event to the books, and performs what follows. True if memory was given back.
    pub(super) fn decide(&self, event: impl FnOnce(&mut Books<SlotId>) -> Vec<Effect<SlotId>>) -> bool {
        let mut books = self.books.lock();
        let mut effects = VecDeque::from(event(&mut books));
        let mut has_freed = false;
        while let Some(effect) = effects.pop_front() {
            let done = match effect {
                Effect::Start(operation, tier) => {
                    self.level(tier).zip(books.facts(operation)).map(|(level, facts)| level.start(&facts))
                }
                Effect::Store(operation, parts) => books.facts(operation).map(|facts| self.peers.store(facts, parts)),
                Effect::Retire(parts, slot) => {
                    has_freed |= self.retire(parts, slot);
                    None
                }
                effect => {
                    self.perform(effect);
                    None
                }
            };
            for done in done.into_iter().flatten() {
                effects.extend(enter(&mut books, done));
            }
        }
        has_freed
    }

    /// Takes the results of somebody's work.
    pub(super) fn done(&self, done: impl IntoIterator<Item = Done>) {
        for done in done {
            if matches!(&done, Done::Written { written: Err(_), .. }) {
                self.remains.lock().forget();
            }
            self.decide(|books| enter(books, done));
        }
    }

    fn perform(&self, effect: Effect<SlotId>) {
        match effect {
            Effect::Vote(round, ballot) => self.desk.push(Event::Vote(round, ballot)),
            Effect::Stop(operation, tier) => {
                if let Some(level) = self.level(tier) {
                    level.stop(operation);
                }
            }
            Effect::Forget(operation) => {
                self.reducer.written(operation);
                if let Some(upload) = self.shards.forget(operation) {
                    self.lanes.push(Task::Discard(upload));
                }
            }
            Effect::Planned(operation, plan) => {
                self.reducer.planned(operation);
                self.reporter.on_planned(operation, plan);
            }
            Effect::Refer(operation, sources) => self.reducer.chosen(operation, sources),
            Effect::OfUse(name, operations) => self.reducer.keep(&name, &operations),
            Effect::Heard(facts, tier, verdict) => self.hear(&facts, tier, verdict),
            Effect::Finished(operation) => self.reporter.on_finished(operation),
            Effect::Gone(operation) => {
                self.reducer.written(operation);
                self.reporter.on_gone(operation);
            }
            Effect::Mark(slots, level) => self.mark(&slots, level),
            Effect::LetPass(slot) => {
                if let Some(Err(error)) = self.setup.memory.as_ref().map(|segment| segment.let_pass(slot)) {
                    log::warn!("event=slot-not-marked error={error}");
                }
            }
            // The caller performs these, because their results matter to it.
            Effect::Start(..) | Effect::Store(..) | Effect::Retire(..) => {}
        }
    }

    fn hear(&self, facts: &Arc<Facts>, tier: Option<TierId>, verdict: LevelVerdict) {
        let is_committed = verdict == LevelVerdict::Committed;
        self.tuning.on_ended(facts.key.operation, tier, is_committed, self.setup.now());
        self.reporter.on_heard(facts, tier, verdict);
        if !is_committed {
            return;
        }
        if let Some(level) = tier.and_then(|tier| self.level(tier)) {
            level.committed(facts);
        }
        if !self.inherited.is_empty() {
            self.lanes.push(Task::RemoveOldSegments);
        }
    }

    fn mark(&self, slots: &[SlotId], level: Level) {
        let Some(segment) = &self.setup.memory else { return };
        for slot in slots {
            if let Err(error) = segment.set_committed(*slot, level) {
                log::warn!("event=slot-not-marked error={error}");
            }
        }
    }

    fn retire(&self, parts: Vec<SlotId>, slot: Option<SlotId>) -> bool {
        let Some(segment) = &self.setup.memory else { return false };
        segment.retire_all(parts);
        let retired = slot.map(|slot| segment.retire(slot)).transpose();
        retired
            .inspect_err(|error| log::warn!("event=slot-not-retired error={error}"))
            .is_ok_and(|freed| freed == Some(true))
    }

    /// Enters a checkpoint into the books: its bytes are in their place, or (`None`) still on their way. Returns what the application sees
    /// of it.
    pub(super) fn enter(&self, facts: Arc<Facts>, placed: Option<(Placed, Ballot)>) -> Arc<Lock<Progress>> {
        let operation = facts.key.operation;
        let progress = self.reporter.follow(operation);
        self.tuning.on_captured(operation, self.setup.now());
        self.desk.decide_by(call(operation), Decision::Checkpoint { name: facts.series.name.clone() });
        let captured = placed.map(|(placed, vote)| {
            let (slot, on) = (placed.slot, placed.source.tier());
            self.shards.put(facts.clone(), placed);
            Captured { slot, on, vote }
        });
        self.decide(|books| books.on_captured(facts, captured));
        progress
    }

    /// A shard that was still on its way has arrived, or (`None`) never will, and `vote` says which.
    pub(super) fn enter_landed(&self, operation: u64, placed: Option<Placed>, vote: Ballot) {
        let slot = placed.as_ref().and_then(|placed| placed.slot);
        let facts = self.books().facts(operation);
        if let (Some(placed), Some(facts)) = (placed, facts) {
            self.shards.put(facts, placed);
        }
        self.decide(|books| books.on_landed(operation, slot, vote));
        self.wake();
    }

    // ---- The coordination.

    /// Moves the coordination along: casts votes, takes messages, carries out what follows. True if something moved.
    ///
    /// Does nothing if another thread is already doing so.
    pub fn step(&self) -> bool {
        let Some(mut driver) = self.driver.try_lock() else { return false };
        let mut moved = false;
        // A verdict may lead to votes at once; after a few such rounds, the rest waits for the next step.
        for _ in 0..8 {
            self.done(self.files.iter().flat_map(|files| files.poll()));
            self.pass_by();
            if self.is_stopping() && self.failed().is_some() {
                return moved;
            }
            let events = self.desk.take_events(self.setup.rank());
            let has_voted = !events.is_empty();
            let said = match driver.step(events) {
                Ok(said) => said,
                Err(error) => return self.fail_once(error.to_string()),
            };
            if said.is_empty() && !has_voted {
                break;
            }
            moved = true;
            let messages = driver.messages();
            self.reporter.count(|stats| stats.messages = messages);
            said.into_iter().for_each(|said| self.on_said(said));
            self.wake();
        }
        match self.step_parcels(&mut driver) {
            Ok(parcels) => moved | parcels,
            Err(error) => moved | self.fail_once(error.to_string()),
        }
    }

    fn on_said(&self, said: Said) {
        match said {
            Said::Send(..) => {}
            Said::Decide(round, ballot) => {
                for note in ballot.notes().iter().filter(|note| self.desk.is_news(note)) {
                    log::warn!("{note}");
                }
                let (outcome, decision) = match self.desk.take_decider(&round) {
                    Some(Decision::Custom(decide)) => decide(&ballot),
                    Some(Decision::Checkpoint { name }) => self.plan_checkpoint(round.operation, &name, &ballot),
                    None => return self.lanes.push(Task::Decide { round, ballot }),
                };
                self.desk.push(Event::Decided { round, outcome, decision });
            }
            Said::Settled(verdict) => self.on_settled(verdict),
            // Sending from live memory takes a long time, and on most ranks at the same time.
            Said::Waiting { round, .. } if self.books().is_coming_down(round.operation) => {}
            Said::Waiting { round, waited, missing } => log::warn!(
                "event=waiting rank={} operation={} phase={:?} waited_s={:.0} missing={missing:?}",
                self.setup.rank(),
                round.operation,
                round.phase,
                waited.as_secs_f64()
            ),
        }
    }

    /// The root's decision on a checkpoint call: which tiers the checkpoint goes to, and what its files may refer to.
    fn plan_checkpoint(&self, operation: u64, name: &str, ballot: &Ballot) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let Payload::Bits { all, any } = &ballot.payload else { return (Outcome::Abandoned(Vec::new()), Vec::new()) };
        let blocked = self.reporter.count(|stats| stats.blocked_total);
        self.tuning.on_agreed(name, self.setup.now(), blocked);
        let wishes = Wishes {
            job: &self.setup.config.job,
            in_use: self.setup.written(),
            can_protect: self.setup.role(name).is_some(),
            is_last: self.is_ending.load(Ordering::Relaxed),
            tuned: &|level| self.tuning.every(level),
            now: self.setup.now(),
        };
        let (held, written) = (TierSet::from_bits(*all), TierSet::from_bits(*any));
        let mut books = self.books();
        let tiers = plan(books.history(name), name, held, written, &wishes);
        self.tuning.on_planned(operation, tiers);
        let facts = books.facts(operation);
        let sources = facts.map(|facts| books.references().choose(&facts, tiers, &ballot.sums)).unwrap_or_default();
        Outcome::agreed("plan", &Plan { tiers, sources })
    }

    fn on_settled(&self, verdict: Verdict) {
        let operation = verdict.round.operation;
        self.desk.take_decider(&verdict.round);
        if verdict.outcome == Outcome::Unknown {
            self.books().on_silence(&format!("the root did not answer in operation {operation}"));
        }
        if self.books().has(operation) {
            self.decide(|books| books.on_verdict(&verdict));
        } else if let Some((name, version)) = self.desk.take_declined(operation) {
            let heard = match &verdict.outcome {
                Outcome::Abandoned(culprits) => LevelVerdict::Abandoned(culprits.clone()),
                _ => LevelVerdict::Unknown("this rank refused the checkpoint".into()),
            };
            self.reporter.tell(&name, self.setup.identity.key(version, operation), Level::Captured, heard);
        }
        self.desk.on_settled(verdict);
    }

    /// Begins the farther copies of checkpoints whose nearer copies wait for a file system that stands still.
    fn pass_by(&self) {
        let stuck = self.stuck();
        if stuck.is_empty() {
            return;
        }
        let mut passed = Vec::new();
        self.decide(|books| {
            let (operations, effects) = books.on_stuck(stuck);
            passed = operations;
            effects
        });
        let rank = self.setup.rank();
        for operation in passed {
            log::warn!(
                "event=tier-passed-by rank={rank} operation={operation} tiers={stuck:?} reason=\"nothing makes progress there\""
            );
        }
    }

    /// The tiers whose file systems seem to hang: an operation is under way, and none has ended for as long as `timeouts.warn`.
    pub(super) fn stuck(&self) -> TierSet {
        self.lanes.stuck(self.setup.now(), self.setup.config.job.timeouts.warn)
    }

    /// Moves bulk data along; true if something moved.
    fn step_parcels(&self, driver: &mut Driver) -> Result<bool, CommError> {
        let mut moved = false;
        // Requests do not count: otherwise two ranks that serve each other could wait for each other. Requests are small, and each
        // requesting rank has only a few open.
        for _ in 0..BACKLOG_MAX.saturating_sub(self.peers.backlog()).min(PARCELS_PER_STEP) {
            let Some(parcel) = driver.receive_parcel()? else { break };
            moved = true;
            if exchange::is_exchange(&parcel.label) {
                self.peers.on_parcel(parcel, |operation| self.books().awaits_exchange(operation));
            } else if Posting::is_one(&parcel.label) {
                self.posting.on_parcel(parcel);
            } else {
                self.fetches.on_parcel(parcel);
            }
        }
        for _ in 0..PARCELS_PER_STEP {
            if driver.unsent_parcels() >= UNSENT_MAX {
                break;
            }
            let Some((to, label, body)) = self.mail.next().or_else(|| self.peers.next_parcel()) else { break };
            moved = true;
            driver.send_parcel(to, label, body)?;
        }
        let done = self.peers.settle();
        moved |= !done.is_empty();
        self.done(done);
        for bytes in self.mail.take_spent().into_iter().chain(self.peers.take_spent()) {
            driver.recycle(bytes);
        }
        if moved {
            self.wake();
        }
        Ok(moved)
    }

    /// Is bulk data under way that only moves while somebody steps?
    pub(super) fn has_bulk(&self) -> bool {
        !self.peers.is_idle() || self.fetches.is_active() || self.posting.is_open()
    }

    /// Is anything being agreed on or written? The comm thread polls more often then.
    pub fn is_busy(&self) -> bool {
        self.desk.is_asking()
            || self.fetches.is_active()
            || self.posting.is_open()
            || self.books().in_flight().next().is_some()
    }

    /// Has this rank cast votes that others have yet to answer?
    pub(super) fn awaits_others(&self) -> bool {
        self.driver.try_lock().is_some_and(|driver| driver.awaits_others())
    }

    /// Ends the conversation on all ranks: everything that was sent has arrived.
    ///
    /// # Collective
    /// All ranks.
    pub fn end_conversation(&self, limit: Duration) {
        self.request_stop();
        let mut driver = self.driver.lock();
        match driver.quiesce(limit) {
            Ok(true) => {}
            Ok(false) => log::warn!("event=messages-left rank={}", self.setup.rank()),
            Err(error) => log::debug!("event=no-goodbye error={error}"),
        }
    }

    /// Gives up the communicator. Nothing is sent or received after this.
    pub fn cancel_messages(&self) {
        self.driver.lock().cancel();
    }

    /// Sleeps at most `limit`, until something has arrived from another rank or something here is to be agreed on; true if something has
    /// arrived. `None`, without sleeping, if no message layer can tell.
    pub(super) fn listen(&self, limit: Duration) -> Option<bool> {
        let has_work = || self.stop.load(Ordering::SeqCst) || self.desk.has_events();
        self.bell.as_ref().map(|bell| bell.listen(limit, has_work))
    }

    // ---- Failure, and the end.

    /// Fails the session if it has not failed yet; true if this call did so. When communication has broken down, every call reports it, and
    /// nobody need be woken again.
    fn fail_once(&self, reason: String) -> bool {
        let is_news = self.books().failed().is_none();
        if is_news {
            self.fail(reason);
        }
        is_news
    }

    /// Latches the session as failed: nothing more is committed, and all waiting calls are told why.
    pub fn fail(&self, reason: String) {
        self.decide(|books| {
            let (is_news, effects) = books.on_failed(&reason);
            if is_news {
                log::error!("event=session-failed rank={} reason={reason:?}", self.setup.rank());
            }
            effects
        });
        self.wake();
    }

    /// Is this run still the newest of its job? The root knows; the other ranks have no claim to compare, and no objection. A newer run
    /// latches the session: nothing more is committed. The conversation continues, because the other ranks have to be told, and their
    /// applications continue to ask questions.
    ///
    /// # Blocking
    /// If `is_patient`, on the file system of the claims; otherwise for a short time.
    pub(super) fn standing(&self, is_patient: bool) -> Standing {
        let Some(fence) = &self.fence else { return Standing::Newest };
        // Without threads nobody else would look at the claims.
        let standing = fence.standing(is_patient || self.setup.is_inline, &*self.setup.clock);
        if let Standing::Superseded(reason) = &standing
            && self.books().on_superseded(reason)
        {
            log::error!("event=superseded rank={} reason={reason:?}", self.setup.rank());
        }
        standing
    }

    /// Wakes everyone who waits for something to happen here.
    pub(super) fn wake(&self) {
        self.changed.ring();
        self.work_ready.ring();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// Tells all threads to stop.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(fence) = &self.fence {
            fence.wake();
        }
    }

    /// Have threads been told to stop?
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Prepares memory for a shard of `bytes` in the background.
    pub fn prepare_room(&self, bytes: u64) {
        if self.setup.memory.is_some() {
            let near_device = self.setup.affinity.as_ref().and_then(|keeper| keeper.node_of_device());
            self.lanes.prepare(bytes, near_device.or_else(current_node));
            self.wake();
        }
    }
}

/// The root measures if any interval is left to the session, or if somebody wants to know.
fn tuning_of(setup: &Setup) -> Tuning {
    if !setup.identity.is_root() {
        return Tuning::default();
    }
    let has_peers = !setup.protection.schemes().is_empty();
    let scope = scope(&setup.config.job, setup.memory.is_some(), setup.written(), has_peers, setup.expected);
    Tuning::new(scope, setup.profile.is_some(), setup.start.clone())
}

/// Enters the results of somebody's work.
fn enter(books: &mut Books<SlotId>, done: Done) -> Vec<Effect<SlotId>> {
    match done {
        Done::Written { operation, tier, written } => books.on_written(operation, tier, written),
        Done::Kept { operation, parts } => books.on_kept(operation, parts),
    }
}
