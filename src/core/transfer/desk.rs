//! What this rank has to say in rounds, and what it waits to hear.
#![forbid(unsafe_code)]

use crate::base::ids::text_hash;
use crate::base::sync::Lock;
use crate::base::{Generation, Rank};
use crate::coordination::core::Event;
use crate::coordination::{Ballot, Culprit, Outcome, Round, Verdict};
use std::collections::{HashMap, HashSet};

/// Answers a round that is not about a checkpoint's level. Runs on the root only.
pub type Decider = Box<dyn FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send>;

/// Determines who answers a round on the root.
pub(super) enum Decision {
    /// The plan: the round is the call of a checkpoint of that series.
    Checkpoint { name: String },
    /// The caller.
    Custom(Decider),
}

/// How many notes the root remembers before it forgets them all.
const TOLD_MAX: usize = 1024;

/// Connects those who call with those who step.
#[derive(Default)]
pub(super) struct Desk(Lock<State>);

#[derive(Default)]
struct State {
    events: Vec<Event>,
    awaited: HashSet<Round>,
    verdicts: HashMap<Round, Verdict>,
    deciders: HashMap<Round, Decision>,
    /// The notes of this rank that go with its next vote.
    notes: Vec<String>,
    /// The ranks that have sent each note, by the hashes of the texts (root).
    told: HashMap<u64, Vec<Rank>>,
    /// The keys of notes that are sent only once.
    said: HashSet<&'static str>,
    /// Series, by the hashes of their names, for which a note has said that this run has started them over.
    started_over: HashSet<u64>,
    /// Checkpoints that this rank has refused without having heard a verdict: series and version, by operation.
    declined: HashMap<u64, (String, u64)>,
}

impl Desk {
    /// Queues an event for the next step.
    pub fn push(&self, event: Event) {
        self.0.lock().events.push(event);
    }

    pub fn has_events(&self) -> bool {
        !self.0.lock().events.is_empty()
    }

    /// All new events since the last step; the first vote carries this rank's notes.
    pub fn take_events(&self, rank: Rank) -> Vec<Event> {
        let mut state = self.0.lock();
        let mut events = std::mem::take(&mut state.events);
        if let Some(Event::Vote(_, ballot)) = events.iter_mut().find(|event| matches!(event, Event::Vote(..))) {
            let noted = |ballot: Ballot, note| ballot.noted(rank, note);
            *ballot = std::mem::take(&mut state.notes).into_iter().fold(std::mem::take(ballot), noted);
        }
        events
    }

    /// Registers who answers a round on the root.
    pub fn decide_by(&self, round: Round, decision: Decision) {
        self.0.lock().deciders.insert(round, decision);
    }

    pub fn take_decider(&self, round: &Round) -> Option<Decision> {
        self.0.lock().deciders.remove(round)
    }

    /// Votes, and keeps the verdict for whoever asks.
    pub fn ask(&self, round: Round, ballot: Ballot, decide: Decider) {
        let mut state = self.0.lock();
        state.awaited.insert(round);
        state.deciders.insert(round, Decision::Custom(decide));
        state.events.push(Event::Vote(round, ballot));
    }

    pub fn take_answer(&self, round: &Round) -> Option<Verdict> {
        self.0.lock().verdicts.remove(round)
    }

    /// Does a call wait for a verdict?
    pub fn is_asking(&self) -> bool {
        !self.0.lock().awaited.is_empty()
    }

    /// A round has ended; its verdict is kept if somebody waits for it.
    pub fn on_settled(&self, verdict: Verdict) {
        let mut state = self.0.lock();
        if state.awaited.remove(&verdict.round) {
            state.verdicts.insert(verdict.round, verdict);
        }
    }

    /// This rank has refused a checkpoint.
    pub fn on_declined(&self, operation: u64, name: &str, version: u64) {
        self.0.lock().declined.insert(operation, (name.to_owned(), version));
    }

    /// What this rank has refused in that operation, if there has been no verdict on it.
    pub fn take_declined(&self, operation: u64) -> Option<(String, u64)> {
        self.0.lock().declined.remove(&operation)
    }

    /// Sends a note with the next vote. The root logs it, once for all ranks that send the same note.
    pub fn note(&self, text: String) {
        self.0.lock().notes.push(text);
    }

    /// Is a note new to the root, or repeated by ranks that have sent it before? If some ranks notice something while a round is under way,
    /// the same note from all ranks arrives with the votes of two rounds.
    pub fn is_news(&self, note: &Culprit) -> bool {
        let mut state = self.0.lock();
        if state.told.len() >= TOLD_MAX {
            state.told.clear();
        }
        let said = state.told.entry(text_hash(&note.text)).or_default();
        let is_news = said.is_empty() || note.ranks.named().iter().any(|rank| said.contains(rank));
        if is_news {
            said.clear();
        }
        said.extend_from_slice(note.ranks.named());
        is_news
    }

    /// [`Desk::note`], once in a session.
    pub fn note_once(&self, what: &'static str, text: impl FnOnce() -> String) {
        let mut state = self.0.lock();
        if state.said.insert(what) {
            let text = text();
            state.notes.push(text);
        }
    }

    /// Notes once that this run takes checkpoints of a series without having restored any, although earlier runs have taken some, the
    /// newest being `newest`. Otherwise a mistyped name in the call of the restart, or a forgotten call, would look like a first run.
    pub fn note_started_over(&self, name: &str, newest: (Generation, u64)) {
        let mut state = self.0.lock();
        if !state.started_over.insert(text_hash(name)) {
            return;
        }
        let (generation, version) = newest;
        state.notes.push(format!(
            "event=series-started-over name={name:?} newest_before=\"version {version} of run {generation}\": this run has restored nothing of \
             this series, and takes checkpoints of it. The next run continues from these, and removes the older ones. To continue from those \
             instead, end this run and restart from version {version} by its number; to keep both, take checkpoints under another name. \
             `bivouac ls` shows both"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::Ranks;

    #[test]
    fn what_other_ranks_say_with_a_later_vote_is_no_news() {
        let desk = Desk::default();
        let says = |ranks: &[u32], text: &str| {
            let ranks = Ranks::of(ranks.iter().copied().map(Rank));
            desk.is_news(&Culprit { ranks, text: text.into(), retry: false })
        };
        assert!(says(&[0], "a"));
        assert!(!says(&[1, 2], "a"));
        assert!(says(&[1], "b"));
        assert!(says(&[2], "a"), "it says it again");
        assert!(!says(&[0], "a"));
    }
}
