//! What the application, the log and the supervisor are told of checkpoints, and what is counted.
#![forbid(unsafe_code)]

use super::core::{Facts, Outages};
use super::progress::{LevelVerdict, Progress, Report, level_of};
use super::setup::Setup;
use super::stats::Stats;
use super::status::{Supervision, Told};
use crate::base::calendar::unix_now;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Level, Rank};
use crate::coordination::Culprit;
use crate::format::events::What;
use crate::format::supervision::{Bound, RestoredFrom, status_file};
use crate::segment::Segment;
use crate::tier::{TierError, TierId, TierSet};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many verdicts are kept for an application that asks for them. An application that never asks must not pay for that with its memory.
pub const REPORTS_MAX: usize = 4096;

/// Tells the application, the log and the supervisor. There is one per engine.
pub struct Reporter {
    rank: Rank,
    supervision: Supervision,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// The newest verdicts that nobody has asked for, at most [`REPORTS_MAX`].
    reports: VecDeque<Report>,
    /// The states of the checkpoints in the books, by operation.
    progress: HashMap<u64, Arc<Lock<Progress>>>,
    /// What binds these checkpoints to the number of ranks, by operation (root with a run directory only).
    bound: HashMap<u64, Bound>,
    /// The levels at which checkpoints were refused.
    outages: Outages,
    stats: Stats,
    told: Told,
}

impl Reporter {
    /// A reporter whose first reports name the levels that no checkpoint reaches.
    pub(super) fn new(setup: &Setup, supervision: Supervision) -> Reporter {
        let reports = setup.lost.iter().map(|(tier, culprits)| Report {
            name: String::new(),
            key: CheckpointKey::default(),
            level: tier.level(),
            verdict: LevelVerdict::Off(culprits.clone()),
        });
        let state = State { reports: reports.collect(), ..State::default() };
        Reporter { rank: setup.rank(), supervision, state: Lock::new(state) }
    }

    // ---- Counters.

    /// Changes the counters.
    pub fn count<T>(&self, change: impl FnOnce(&mut Stats) -> T) -> T {
        change(&mut self.state.lock().stats)
    }

    /// Something has happened that reports mention.
    pub(super) fn note(&self, what: impl FnOnce() -> What) {
        if let Some(events) = &self.supervision.events {
            events.note(what());
        }
    }

    /// Notes how much of the node's memory is in use.
    pub(super) fn note_memory(&self, segment: &Segment) {
        if self.supervision.events.is_none() {
            return;
        }
        let (used, budget) = (segment.taken_bytes(), segment.capacity());
        if self.state.lock().told.is_memory_news(used) {
            self.note(|| What::Memory { used, budget });
        }
    }

    /// This rank's part of a checkpoint has been written to a tier.
    pub(super) fn note_written(&self, operation: u64, tier: TierId, bytes: u64, took: Duration) {
        self.note(|| What::Written { operation, tier: tier.to_string(), bytes, seconds: took.as_secs_f64() });
    }

    /// A copy could not be written to a tier, or read from it.
    pub(super) fn on_tier_failure(&self, tier: TierId, error: &TierError) {
        self.count(|stats| {
            stats.write_failures[tier] += 1;
            if let Some(tier) = error.damaged() {
                stats.damaged[tier] += 1;
            }
        });
        let rank = self.rank;
        if error.damaged().is_some() {
            log::error!("event=damage-found rank={rank} error={error}");
        }
        self.note(|| What::Failed { tier: tier.to_string(), reason: error.to_string() });
        // The verdict contains the reasons of all ranks, and the root logs it.
        log::info!("event=write-failed rank={rank} tier={tier} errno={:?} error={error}", error.errno());
    }

    // ---- Checkpoints.

    /// A checkpoint has been entered into the books. Returns what the application sees of it.
    pub(super) fn follow(&self, operation: u64) -> Arc<Lock<Progress>> {
        let progress = Arc::new(Lock::new(Progress::default()));
        self.state.lock().progress.insert(operation, progress.clone());
        progress
    }

    /// A checkpoint is entered into the books: notes what binds it to the number of ranks, which is the same on all ranks.
    pub(super) fn note_bound(&self, operation: u64, bound: Bound) {
        self.state.lock().bound.insert(operation, bound);
    }

    fn of(&self, operation: u64) -> Option<Arc<Lock<Progress>>> {
        self.state.lock().progress.get(&operation).cloned()
    }

    /// All ranks have captured the checkpoint, and it goes to these tiers.
    pub(super) fn on_planned(&self, operation: u64, plan: TierSet) {
        if let Some(progress) = self.of(operation) {
            progress.lock().plan = Some(plan);
        }
    }

    /// All levels of the checkpoint have ended.
    pub(super) fn on_finished(&self, operation: u64) {
        if let Some(progress) = self.of(operation) {
            progress.lock().finished = true;
        }
    }

    /// The checkpoint has been removed from the books.
    pub(super) fn on_gone(&self, operation: u64) {
        let mut state = self.state.lock();
        state.progress.remove(&operation);
        state.bound.remove(&operation);
    }

    /// The verdict on a level of a checkpoint, or on its call.
    pub(super) fn on_heard(&self, facts: &Facts, tier: Option<TierId>, verdict: LevelVerdict) {
        let progress = self.of(facts.key.operation);
        let is_first = progress.is_none_or(|progress| {
            let mut progress = progress.lock();
            progress.heard.push((tier, verdict.clone()));
            progress.is_first_commit()
        });
        let (name, version) = (&facts.series.name, facts.key.version);
        let mut state = self.state.lock();
        let State { told, bound, .. } = &mut *state;
        match (tier, &verdict) {
            (Some(tier), LevelVerdict::Committed) => {
                told.on_committed(tier, name, version, is_first, bound.get(&facts.key.operation));
                state.stats.committed[tier] += 1;
                state.stats.newest[tier] = Some(version);
            }
            (Some(tier), _) => state.stats.level_failures[tier] += 1,
            (None, _) => state.stats.abandoned += 1,
        }
        drop(state);
        self.tell(name, facts.key, level_of(tier), verdict.clone());
        if let (Some(tier), LevelVerdict::Committed) = (tier, &verdict) {
            self.note_of_root(|| What::Committed {
                name: name.clone(),
                version,
                operation: facts.key.operation,
                level: tier.level().name().into(),
            });
            log::info!(
                "event=committed rank={} name={name:?} version={version} generation={} operation={} level={}",
                self.rank,
                facts.key.generation,
                facts.key.operation,
                tier.level()
            );
        }
    }

    /// Tells the application, the log and the supervisor of a verdict.
    pub(super) fn tell(&self, name: &str, key: CheckpointKey, level: Level, verdict: LevelVerdict) {
        let CheckpointKey { version, operation, .. } = key;
        let is_root = self.rank == Rank::ROOT;
        match &verdict {
            LevelVerdict::Off(_) => {}
            LevelVerdict::Committed => {
                let refused = self.state.lock().outages.on_committed(level);
                if let Some(refused) = refused.filter(|_| is_root) {
                    log::warn!("event=reached-again level={level} version={version} refused={refused}");
                }
            }
            // All ranks hear the same verdict, so it is logged as a warning only once.
            LevelVerdict::Abandoned(culprits) => {
                let culprits = culprits.iter().map(Culprit::to_string).collect::<Vec<_>>();
                // Mistakes that ranks make at a call are news for each call.
                let is_news =
                    level == Level::Captured || self.state.lock().outages.on_refused(level, &culprits.join("; "));
                let importance = match (is_root, is_news) {
                    (false, _) => log::Level::Debug,
                    (true, true) => log::Level::Warn,
                    (true, false) => log::Level::Info,
                };
                let until = if level == Level::Captured { "" } else { " (logged once, until it is reached again)" };
                log::log!(
                    importance,
                    "event=abandoned name={name:?} version={version} operation={operation} level={level} culprits={culprits:?}{until}"
                );
            }
            LevelVerdict::Unknown(reason) => log::error!(
                "event=verdict-unknown rank={} version={version} operation={operation} level={level} reason={reason:?}",
                self.rank
            ),
        }
        if let Some(reason) = verdict.reason() {
            let level = level.name().into();
            self.note_of_root(|| What::Refused { name: name.to_owned(), version, operation, level, reason });
        }
        let mut state = self.state.lock();
        if let Some(reason) = verdict.reason() {
            state.told.on_refused(name, version, level, reason);
        }
        if state.reports.len() >= REPORTS_MAX {
            state.reports.pop_front();
        }
        state.reports.push_back(Report { name: name.to_owned(), key, level, verdict });
    }

    /// Verdicts heard since the last call, in the order of their operations; if there are more than [`REPORTS_MAX`], only the newest.
    pub fn take_reports(&self) -> Vec<Report> {
        let mut reports = Vec::from(std::mem::take(&mut self.state.lock().reports));
        reports.sort_by_key(|report| (report.key.operation, report.level));
        reports
    }

    /// Like [`Reporter::note`], for events that all ranks know: only the root notes them.
    fn note_of_root(&self, what: impl FnOnce() -> What) {
        if self.rank == Rank::ROOT {
            self.note(what);
        }
    }

    // ---- The supervisor.

    /// Does `should_exit` have halt conditions to check? The answer is the same on all ranks.
    pub fn is_supervised(&self) -> bool {
        self.supervision.is_on
    }

    /// Does this rank report on the session to a supervisor?
    pub fn tells(&self) -> bool {
        self.supervision.teller.is_some()
    }

    /// The application's thread has made a call, so it is alive.
    pub fn beat(&self) {
        self.supervision.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The application's thread has made a call that it makes once per step.
    pub fn step_beat(&self) {
        self.beat();
        if self.supervision.teller.is_some() {
            let told = &mut self.state.lock().told;
            if told.first_step.is_none() {
                told.first_step = Some(unix_now());
                told.due = Duration::ZERO;
            }
        }
    }

    /// Something was restored: tells the supervisor, and counts steps as first steps again.
    pub(super) fn on_restored(&self, restored: RestoredFrom) {
        self.note(|| {
            let RestoredFrom { name, version, generation, tier, bytes, seconds, elect_seconds, .. } = restored.clone();
            What::Restored { name, version, generation, tier, bytes, seconds, elect_seconds }
        });
        let told = &mut self.state.lock().told;
        told.restored = Some(restored);
        told.first_step = None;
        told.due = Duration::ZERO;
    }

    /// `should_exit` was called.
    pub fn tell_exit_asked(&self) {
        if self.supervision.teller.is_some() {
            self.state.lock().told.asks_exit = true;
        }
    }

    /// `should_exit` has answered yes. If this rank knows the reason, it reports it; the supervisor is told in any
    /// case.
    pub(super) fn on_exit(&self, reason: Option<&str>) {
        let reason = reason.unwrap_or("requested on another rank").to_owned();
        let is_first = {
            let told = &mut self.state.lock().told;
            told.due = Duration::ZERO;
            let is_first = told.exit.is_none();
            told.exit.get_or_insert_with(|| reason.clone());
            is_first
        };
        if is_first {
            self.note_of_root(|| What::Exit { reason });
        }
    }

    /// The halt condition that is met, in words (only the root finds any).
    ///
    /// # Blocking
    /// Reads one small file.
    pub fn halt_asked(&self) -> Option<String> {
        let teller = self.supervision.teller.as_ref()?;
        match teller.directory.read_halt() {
            Ok(halt) => {
                self.supervision.complain("halt-file-ignored", None);
                let total = teller.base.checkpoints_total + self.state.lock().told.checkpoints;
                let group = teller.base.group.as_str();
                halt.met(unix_now(), [(group, total)].into_iter()).map(ToString::to_string)
            }
            Err(problem) => {
                self.supervision.complain("halt-file-ignored", Some(problem));
                None
            }
        }
    }

    /// Is it time to write the status, or events? Once for each time.
    pub(super) fn take_status_due(&self, now: Duration) -> bool {
        if self.supervision.teller.is_none() && self.supervision.events.is_none() {
            return false;
        }
        self.state.lock().told.take_due(now)
    }

    /// Writes the events that have accumulated, and the status (root with a run directory only). `sum_up` gives the counters and why the
    /// session has failed.
    ///
    /// # Blocking
    /// Appends to one file, writes and renames a small one.
    pub(super) fn write_status(&self, is_closed: bool, sum_up: impl FnOnce() -> (Stats, Option<String>)) {
        if is_closed {
            self.state.lock().told.closed = true;
            self.note(|| What::Closed);
        }
        let _writing = self.supervision.writing.lock();
        if let Some(events) = &self.supervision.events {
            self.supervision.complain("events-not-written", events.write().err().map(|error| error.to_string()));
        }
        let Some(teller) = &self.supervision.teller else { return };
        if teller.is_superseded() {
            return;
        }
        let (stats, failed) = sum_up();
        let calls = self.supervision.calls.load(Ordering::Relaxed);
        let status = teller.status(&self.state.lock().told, &stats, calls, failed);
        let written = teller.directory.replace(&status_file(&status.group), &status.encode());
        self.supervision.complain("status-not-written", written.err().map(|error| error.to_string()));
    }
}
