//! The services of an engine for calls of the application: questions to all ranks, waiting, requests to others, and the end.
#![forbid(unsafe_code)]

use super::costs;
use super::desk::Decider;
use super::engine::Engine;
use super::fetch::Wanted;
use super::progress::LevelVerdict;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Level, Origin, Rank};
use crate::catalog::{Occasion, Reason, Ruling};
use crate::coordination::{Ballot, Payload, Verdict};
use crate::format::events::What;
use crate::format::supervision::RestoredFrom;
use crate::segment::OldSegment;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a call that steps continues after something has last moved.
const STEPPED_PATIENCE: Duration = Duration::from_millis(1);
/// How long a waiting call sleeps when nothing moves.
const PAUSE: Duration = Duration::from_micros(50);

impl Engine {
    // ---- Questions to all ranks.

    /// The number of the next collective call.
    pub fn next_operation(&self) -> u64 {
        self.operation.fetch_add(1, Ordering::Relaxed) + 1
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
        self.collective_at(self.next_operation(), ballot, decide)
    }

    /// [`Engine::collective`] for an operation whose number was taken before.
    ///
    /// # Errors
    /// As [`Engine::collective`].
    pub fn collective_at(&self, operation: u64, ballot: Ballot, decide: Decider) -> Result<Verdict, String> {
        let round = super::core::call(operation);
        if let Some(reason) = self.cut_off() {
            return Err(reason);
        }
        self.desk.ask(round, ballot, decide);
        self.wait_until(|| {
            self.posting.decline(operation);
            match self.desk.take_answer(&round) {
                Some(verdict) => Some(Ok(verdict)),
                // The verdict may have arrived between the two looks.
                None => self.cut_off().map(|reason| self.desk.take_answer(&round).ok_or(reason)),
            }
        })
    }

    /// An empty ballot of this rank for a call with these words; the hash covers the words.
    pub fn ballot(&self, call: &str, payload: Payload) -> Ballot {
        Ballot::of(self.setup.rank(), text_hash(call), call, payload)
    }

    /// The ballot of a rank that refuses the call that it was asked to make.
    pub fn refusal(&self, why: &str) -> Ballot {
        let mut ballot = self.ballot("", Payload::None).failed(self.setup.rank(), why, false);
        // The failure is what counts; a hash of this ballot would only name the rank a second time.
        ballot.calls.clear();
        ballot
    }

    // ---- Waiting.

    /// Steps until `ready` has an answer.
    pub(super) fn wait_until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            let seen = self.seen();
            if let Some(answer) = ready() {
                return answer;
            }
            if self.pump() {
                continue;
            }
            if self.setup.is_stepped && self.has_bulk() {
                std::thread::yield_now();
            } else {
                self.pause(seen, PAUSE);
            }
        }
    }

    /// One step of everything that has no thread of its own; true if something moved.
    pub fn pump(&self) -> bool {
        let mut moved = self.step();
        if self.setup.is_inline {
            moved |= self.work_inline();
        }
        moved
    }

    /// Where no thread steps: steps for as long as others answer. Something that all ranks have done before they make a call is thus agreed
    /// on when that call returns. Ranks that are late are not waited for.
    pub fn settle(&self) {
        if !self.setup.is_stepped {
            return;
        }
        let mut moved = self.setup.now();
        loop {
            if self.pump() {
                moved = self.setup.now();
            } else if self.awaits_others() && self.setup.now().saturating_sub(moved) < STEPPED_PATIENCE {
                std::thread::yield_now();
            } else {
                return;
            }
        }
    }

    /// The present moment, for [`Engine::pause`], which waits for the next change after it.
    pub fn seen(&self) -> u64 {
        self.changed.now()
    }

    /// Sleeps at most `limit`, until something changes after `seen`.
    pub fn pause(&self, seen: u64, limit: Duration) {
        if self.setup.is_inline {
            self.setup.clock.sleep(limit);
            return;
        }
        if !self.desk.has_events() {
            self.changed.wait_past(seen, limit);
        }
    }

    /// Waits at most `limit` until nothing is in flight any more; true if so.
    pub fn drain(&self, limit: Duration) -> bool {
        let _waiting = self.waiting.begin();
        let deadline = self.setup.now() + limit;
        self.wait_until(|| {
            // When something ends, the books queue the work that follows before anybody else can look.
            let is_idle = self.books().is_at_rest() && self.lanes.is_at_rest() && self.peers.is_idle();
            if is_idle || self.cut_off().is_some() {
                return Some(is_idle);
            }
            (self.setup.now() >= deadline).then_some(false)
        })
    }

    // ---- Requests to other ranks.

    /// Asks a rank (which may be this one) for a range of at most [`FETCH_MAX`](super::fetch::FETCH_MAX) bytes. The answer is taken with
    /// [`Engine::collect`] or given up with [`Engine::forget`].
    pub fn fetch(&self, to: Rank, wanted: &Wanted, range: Range<u64>) -> u64 {
        let id = self.fetches.ask(to, wanted, range);
        self.wake();
        id
    }

    /// Waits for an answer.
    ///
    /// # Blocking
    /// Until the other rank has answered, at most for `timeouts.abandon`.
    ///
    /// # Errors
    /// What the other rank found wrong, or, as [`io::ErrorKind::TimedOut`], that it did not answer.
    pub fn collect(&self, id: u64) -> io::Result<Vec<u8>> {
        let deadline = self.setup.now() + self.setup.config.job.timeouts.abandon;
        let answer = self.wait_until(|| {
            if let Some(answer) = self.fetches.take_answer(id) {
                return Some(answer.map_err(io::Error::other));
            }
            if let Some(reason) = self.cut_off() {
                return Some(Err(io::Error::other(reason)));
            }
            let silent = || io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time");
            (self.setup.now() >= deadline).then(|| Err(silent()))
        });
        self.fetches.forget(id);
        answer
    }

    /// Gives up a request.
    pub fn forget(&self, id: u64) {
        self.fetches.forget(id);
    }

    /// Gives back the buffer of an answer.
    pub fn recycle(&self, bytes: Vec<u8>) {
        self.mail.give_back(bytes);
    }

    // ---- What a restart reports.

    /// Records what this run restored of a series with its last call: later checkpoints of the series descend from it.
    pub fn begin_stretch(&self, name: &str, origin: impl FnOnce(u64) -> Origin) {
        let origin = origin(self.operation.load(Ordering::Relaxed));
        self.books().on_restored(name, origin, self.setup.identity.generation);
    }

    /// Hands over segments of older runs, to be removed once this run has committed something of each of their series.
    pub fn keep_until_commit(&self, old: Vec<OldSegment>) {
        self.inherited.keep(old);
        // At once for the segments of runs that ended before they had taken anything.
        self.remove_old_segments();
    }

    /// Gives back the memory of those versions of a series, from older runs, that were not elected. If one of them may survive the loss of
    /// nodes, this happens only if the elected version is known to survive that, too: by its slots, or because it `is_global`.
    pub fn forget_others(&self, name: &str, elected: &CheckpointKey, is_global: bool) {
        self.inherited.forget_others(name, elected, is_global);
    }

    /// Something was restored: tells the supervisor, and counts steps as first steps again.
    pub fn tell_restored(&self, restored: RestoredFrom) {
        self.reporter().on_restored(restored);
        self.wake();
    }

    /// `should_exit` has answered yes. If this rank knows the reason, it reports it; the supervisor is told in any
    /// case.
    pub fn tell_exit(&self, reason: Option<&str>) {
        self.reporter().on_exit(reason);
        self.wake();
    }

    /// Sends a note with the next vote. The root logs it, once for all ranks that send the same note.
    pub fn note(&self, text: String) {
        self.desk.note(text);
    }

    /// The levels, `level` and higher, that no checkpoint reaches because their tiers cannot be used.
    pub fn lost_at(&self, level: Level) -> impl Iterator<Item = (Level, LevelVerdict)> {
        let lost = self.setup.lost.iter().map(|(tier, culprits)| (tier.level(), culprits));
        lost.filter(move |(at, _)| *at >= level).map(|(at, culprits)| (at, LevelVerdict::Off(culprits.clone())))
    }

    // ---- The end.

    /// Closes the node segment. The node's first rank removes the segment, unless it holds something that no durable tier has.
    pub fn close_memory(&self) {
        let Some(segment) = &self.setup.memory else { return };
        let is_leader = self.setup.identity.is_node_leader();
        let rulings = self.books().memory().judge(&Occasion::Ended);
        let needed_for = rulings.into_iter().find_map(Ruling::reason);
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

    /// Marks the claim as ended normally (root only).
    pub fn close_claim(&self) {
        if let Some(fence) = &self.fence {
            fence.close();
        }
    }

    /// Writes the events that have accumulated, and the status (root with a run directory only).
    ///
    /// # Blocking
    /// Appends to one file, writes and renames a small one.
    pub fn write_status(&self) {
        self.note_memory();
        self.reporter().write_status(false, || (self.stats(), self.failed()));
    }

    /// Something has happened that reports mention.
    pub fn note_event(&self, what: What) {
        self.reporter().note(|| what);
    }

    /// The first rank of a node reports how much of the node's memory is in use.
    fn note_memory(&self) {
        let segment = self.setup.memory.as_ref().filter(|_| self.setup.identity.is_node_leader());
        if let Some(segment) = segment {
            self.reporter().note_memory(segment);
        }
    }

    /// Reports that the session is closed.
    ///
    /// # Blocking
    /// As [`Engine::write_status`].
    pub fn tell_closed(&self) {
        self.reporter().write_status(true, || (self.stats(), self.failed()));
    }

    /// What this rank reports about its costs when the session closes.
    pub fn cost_numbers(&self) -> Vec<u64> {
        costs::numbers(&self.stats(), self.setup.identity.node_ranks.len() as u64)
    }

    /// Keeps the maxima of the numbers that all ranks have reported, for [`Engine::write_profile`].
    pub fn keep_costs(&self, greatest: Vec<u64>) {
        *self.greatest.lock() = greatest;
    }

    /// Writes the machine profile (root with `plan.profile` only), if the ranks have said what checkpoints cost.
    ///
    /// # Blocking
    /// Reads two small files, writes and renames one.
    pub fn write_profile(&self) {
        let Some(file) = &self.setup.profile else { return };
        let greatest = std::mem::take(&mut *self.greatest.lock());
        file.tell(&greatest, &self.tuning().measured(), u64::from(self.setup.identity.size));
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
