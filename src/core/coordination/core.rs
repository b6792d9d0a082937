//! The pure core of agreement: events in, effects out. No clock, no messages, no files.
//!
//! This is the course of a round on one rank, from the first event that mentions it:
//!
//! ```text
//!            vote (own), up (children)          all in, not root
//!   (none) ───────────────────────► Gathering ──────────────────► Voted ──┐
//!                                      │  │ all in, root                  │ down
//!                        time is up,   │  ▼                               ▼
//!                        root only     │ Deciding ──── decided ──────► Settled
//!                                      └──── abandoned ─────────────────► ▲
//!   Gathering or Voted, not root, the root's time and a grace have passed: Settled(Unknown), core latched
//! ```
//!
//! A root that takes long to decide tells its tree so again and again, and each time the time-outs of the other ranks begin anew.
//!
//! Messages may be lost (because their sender or receiver has died), delayed or repeated. A repeated message changes nothing.

use super::ballot::{Ballot, Culprit, Payload, Ranks};
use super::tree::Tree;
use crate::base::Rank;
use crate::base::log;
use crate::config::Timeouts;
use crate::format::codec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of rounds that ended last and are still remembered, because messages about them may still be on their way.
const ENDED_MAX: usize = 256;

/// The part of an operation that a round decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// The call itself and, for a checkpoint, also the level `Process`.
    Call,
    /// A further part, under a number on which the callers agree: for a checkpoint, the tier that it has reached.
    Level(u8),
}

/// One reduction: an operation and a phase of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Number of the collective call within the session, the same on all ranks.
    pub operation: u64,
    /// The phase.
    pub phase: Phase,
}

/// The maximum length of a decision, which leaves enough space for the rest of a message.
const DECISION_MAX: usize = codec::LIMIT - (64 << 10);

/// How a round ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// All ranks said yes to the same call.
    Agreed,
    /// The root gave up, because of these ranks.
    Abandoned(Vec<Culprit>),
    /// The root could not be reached; nobody here knows how the round ended.
    Unknown,
}

impl Outcome {
    /// The decision of `agreed`, unless ranks failed or made different calls.
    pub fn unless_culprits(ballot: &Ballot, agreed: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>)) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if culprits.is_empty() { agreed(ballot) } else { (Outcome::Abandoned(culprits), Vec::new()) }
    }

    /// The outcome `Agreed`, and the encoded decision. If the decision is too large to be sent, the round is abandoned with that reason.
    pub fn agreed<T: Serialize>(what: &'static str, decision: &T) -> (Outcome, Vec<u8>) {
        match codec::encode(what, decision).ok().filter(|bytes| bytes.len() <= DECISION_MAX) {
            Some(bytes) => (Outcome::Agreed, bytes),
            None => {
                let text = format!("the {what} is too large to be sent: more than {DECISION_MAX} bytes");
                (Outcome::Abandoned(vec![Culprit::of(Rank::ROOT, text)]), Vec::new())
            }
        }
    }
}

/// The end of a round, the same on all ranks that hear it (a rank that hears none ends with `Unknown`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The round.
    pub round: Round,
    /// How it ended.
    pub outcome: Outcome,
    /// The reduced payload.
    pub payload: Payload,
    /// What the root tells all ranks in addition. Its meaning depends on the call.
    pub decision: Vec<u8>,
}

/// What ranks send each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// A subtree has voted.
    Up(Round, Ballot),
    /// A subtree has not voted yet, because of these ranks.
    Late(Round, Vec<Rank>),
    /// All votes are in, but the root is still deciding: the decision may depend on a file system that hangs.
    Deciding(Round),
    /// The verdict.
    Down(Verdict),
}

/// What the core is told.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// This rank votes.
    Vote(Round, Ballot),
    /// A message arrived.
    Message(Rank, Message),
    /// The answer to [`Effect::Decide`].
    Decided {
        /// The round.
        round: Round,
        /// The outcome.
        outcome: Outcome,
        /// What all ranks are to be told in addition.
        decision: Vec<u8>,
    },
    /// Time has passed.
    Tick,
}

/// What the core asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Send a message.
    Send(Rank, Message),
    /// Root only: all votes are in. Decide, make durable what must be durable, and answer with [`Event::Decided`].
    Decide(Round, Ballot),
    /// The round is settled on this rank.
    Settled(Verdict),
    /// A round has been waiting for a long time, and these ranks are missing.
    Waiting {
        /// The round.
        round: Round,
        /// How long it has been waiting.
        waited: Duration,
        /// Ranks known to be missing, or heads of subtrees that are silent.
        missing: Vec<Rank>,
    },
}

#[derive(Debug)]
struct Gathering {
    since: Duration,
    warned: Duration,
    own: bool,
    from: Vec<Rank>,
    late: BTreeMap<Rank, Vec<Rank>>,
    ballot: Ballot,
    /// The ballot was sent up, or handed to the decider.
    complete: bool,
}

/// The state of all rounds on one rank.
#[derive(Debug)]
pub struct Core {
    rank: Rank,
    size: u32,
    tree: Tree,
    timeouts: Timeouts,
    open: BTreeMap<Round, Gathering>,
    /// Verdicts on rounds that ended before this rank voted in them. They are kept until it votes, however late, because by then this rank
    /// may be the only one that still knows.
    unheard: BTreeMap<Round, Verdict>,
    ended: Ended,
    latched: bool,
}

/// The rounds that ended last, and the order in which they ended.
#[derive(Debug, Default)]
struct Ended {
    verdicts: BTreeMap<Round, Verdict>,
    order: VecDeque<Round>,
}

impl Ended {
    /// Keeps a verdict without its decision, because decisions are long. An agreed round had all votes, and its verdict was sent to all
    /// ranks that voted, so only the fact that it has ended must be remembered.
    fn insert(&mut self, verdict: &Verdict) {
        let Verdict { round, outcome, payload, .. } = verdict;
        let kept = Verdict { round: *round, outcome: outcome.clone(), payload: payload.clone(), decision: Vec::new() };
        self.verdicts.insert(verdict.round, kept);
        self.order.push_back(verdict.round);
        // Rounds are forgotten by age and not by number, because a round of an early operation may be the last to end.
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.verdicts.remove(&oldest);
        }
    }
}

impl Core {
    /// The core of `rank`; `nodes[r]` is the node of rank r.
    pub fn new(rank: Rank, nodes: &[u32], timeouts: Timeouts) -> Core {
        let tree = Tree::new(rank, nodes);
        Core {
            rank,
            size: nodes.len() as u32,
            tree,
            timeouts,
            open: BTreeMap::new(),
            unheard: BTreeMap::new(),
            ended: Ended::default(),
            latched: false,
        }
    }

    /// Has this rank lost touch with the root? Then nothing more is committed here.
    pub fn is_latched(&self) -> bool {
        self.latched
    }

    /// Are no rounds open on this rank?
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Has this rank voted in a round that is still open?
    pub fn awaits_others(&self) -> bool {
        self.open.values().any(|state| state.own)
    }

    /// Handles one event at time `now`, and appends the effects that are to be carried out.
    pub fn on_event(&mut self, event: Event, now: Duration, effects: &mut Vec<Effect>) {
        match event {
            Event::Vote(round, ballot) => self.on_vote(round, ballot, now, effects),
            Event::Message(from, Message::Up(round, ballot)) => self.on_up(from, round, ballot, now, effects),
            Event::Message(from, Message::Late(round, missing)) => self.on_late(from, round, missing, now, effects),
            Event::Message(_, Message::Deciding(round)) => self.on_deciding(round, now, effects),
            Event::Message(_, Message::Down(verdict)) => self.settle(verdict, effects),
            Event::Decided { round, outcome, decision } => self.on_decided(round, outcome, decision, effects),
            Event::Tick => self.on_tick(now, effects),
        }
    }

    fn on_vote(&mut self, round: Round, ballot: Ballot, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(verdict) = self.unheard.remove(&round).or_else(|| self.ended.verdicts.get(&round).cloned()) {
            effects.push(Effect::Settled(verdict));
            return;
        }
        let state = self.gather(round, now);
        if !state.own {
            state.own = true;
            state.ballot = std::mem::take(&mut state.ballot).merge(ballot);
            self.advance(round, effects);
        }
    }

    fn on_up(&mut self, from: Rank, round: Round, ballot: Ballot, now: Duration, effects: &mut Vec<Effect>) {
        if !self.tree.children.contains(&from) || self.answers_late(from, round, effects) {
            return;
        }
        let state = self.gather(round, now);
        if !state.from.contains(&from) {
            state.from.push(from);
            state.late.remove(&from);
            state.ballot = std::mem::take(&mut state.ballot).merge(ballot);
            self.advance(round, effects);
        }
    }

    fn on_late(&mut self, from: Rank, round: Round, missing: Vec<Rank>, now: Duration, effects: &mut Vec<Effect>) {
        if self.answers_late(from, round, effects) {
            return;
        }
        let state = self.gather(round, now);
        if !state.from.contains(&from) {
            state.late.insert(from, missing);
        }
    }

    /// The verdict on a round that has ended, if it is remembered.
    fn verdict(&self, round: Round) -> Option<&Verdict> {
        self.unheard.get(&round).or_else(|| self.ended.verdicts.get(&round))
    }

    /// Answers a child's message about a round that has ended: the child is told how, unless it was told already because it had voted.
    fn answers_late(&self, from: Rank, round: Round, effects: &mut Vec<Effect>) -> bool {
        let verdict = self.verdict(round);
        let told = verdict.filter(|verdict| verdict.outcome != Outcome::Agreed);
        effects.extend(told.map(|verdict| Effect::Send(from, Message::Down(verdict.clone()))));
        verdict.is_some()
    }

    /// The root is alive, so its time-out begins anew.
    fn on_deciding(&mut self, round: Round, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(state) = self.open.get_mut(&round).filter(|state| state.complete) {
            (state.since, state.warned) = (now, Duration::ZERO);
            effects.extend(self.tree.children.iter().map(|child| Effect::Send(*child, Message::Deciding(round))));
        }
    }

    fn on_decided(&mut self, round: Round, outcome: Outcome, decision: Vec<u8>, effects: &mut Vec<Effect>) {
        // A decision that comes after the round was given up changes nothing.
        if let Some(state) = self.open.get_mut(&round) {
            let payload = match std::mem::take(&mut state.ballot.payload) {
                // It was for the manifest or the choice that the root has just made, and is too long to be sent to all ranks.
                Payload::Gathered(_) => Payload::None,
                payload => payload,
            };
            self.settle(Verdict { round, outcome, payload, decision }, effects);
        }
    }

    fn on_tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let rounds: Vec<Round> = self.open.keys().copied().collect();
        for round in rounds {
            let Some(state) = self.open.get_mut(&round) else { continue };
            let waited = now.saturating_sub(state.since);
            let deciding = self.tree.parent.is_none() && state.complete;
            let is_long = waited >= state.warned + self.timeouts.warn;
            if is_long {
                state.warned = waited;
            }
            if deciding {
                if is_long {
                    let children = self.tree.children.iter();
                    effects.extend(children.map(|child| Effect::Send(*child, Message::Deciding(round))));
                    effects.push(Effect::Waiting { round, waited, missing: vec![self.rank] });
                }
                continue;
            }
            if is_long {
                let missing = missing(self.rank, &self.tree, state);
                if let (Some(parent), false) = (self.tree.parent, state.complete) {
                    effects.push(Effect::Send(parent, Message::Late(round, missing.clone())));
                }
                effects.push(Effect::Waiting { round, waited, missing });
            }
            if self.tree.parent.is_none() && waited >= self.timeouts.abandon {
                let text = format!("did not take part within {:?}", self.timeouts.abandon);
                let ranks = Ranks::of(missing(self.rank, &self.tree, &self.open[&round]));
                let culprit = Culprit { ranks, text, retry: false };
                self.on_decided(round, Outcome::Abandoned(vec![culprit]), Vec::new(), effects);
                self.tell_all(round, effects);
            } else if self.tree.parent.is_some() && waited >= self.root_is_lost_after() && self.open[&round].own {
                log::error!("event=root-lost rank={} round={round:?} waited_s={:.1}", self.rank, waited.as_secs_f64());
                self.latched = true;
                let verdict =
                    Verdict { round, outcome: Outcome::Unknown, payload: Payload::None, decision: Vec::new() };
                self.settle(verdict, effects);
            }
        }
    }

    /// Sends a verdict to every rank directly. A rank that is missing may be one through which others would hear the
    /// verdict: in stepped mode, a rank passes nothing on while it makes no call. Only a time-out is worth that many
    /// messages.
    fn tell_all(&self, round: Round, effects: &mut Vec<Effect>) {
        let Some(verdict) = self.verdict(round) else { return };
        let others = (0..self.size).map(Rank).filter(|rank| *rank != self.rank && !self.tree.children.contains(rank));
        effects.extend(others.map(|rank| Effect::Send(rank, Message::Down(verdict.clone()))));
    }

    /// The root abandons a round after `abandon`, but its verdict takes a while to arrive, and the ranks' clocks start at different times.
    fn root_is_lost_after(&self) -> Duration {
        self.timeouts.abandon + self.timeouts.warn.max(self.timeouts.abandon / 10)
    }

    fn gather(&mut self, round: Round, now: Duration) -> &mut Gathering {
        self.open.entry(round).or_insert_with(|| Gathering {
            since: now,
            warned: Duration::ZERO,
            own: false,
            from: Vec::new(),
            late: BTreeMap::new(),
            ballot: Ballot::default(),
            complete: false,
        })
    }

    fn advance(&mut self, round: Round, effects: &mut Vec<Effect>) {
        let Some(state) = self.open.get_mut(&round) else { return };
        if state.complete || !state.own || state.from.len() < self.tree.children.len() {
            return;
        }
        state.complete = true;
        match self.tree.parent {
            // The root's ballot keeps the payload for the verdict. Other ranks do not need theirs again.
            None => effects.push(Effect::Decide(round, state.ballot.clone())),
            Some(parent) => {
                effects.push(Effect::Send(parent, Message::Up(round, std::mem::take(&mut state.ballot))));
            }
        }
    }

    fn settle(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        if self.verdict(verdict.round).is_some() {
            return;
        }
        let voted = self.open.remove(&verdict.round).is_some_and(|state| state.own);
        for child in &self.tree.children {
            effects.push(Effect::Send(*child, Message::Down(verdict.clone())));
        }
        self.ended.insert(&verdict);
        // A rank that has not called yet hears the verdict when it calls.
        if voted {
            effects.push(Effect::Settled(verdict));
        } else {
            self.unheard.insert(verdict.round, verdict);
        }
    }
}

/// The ranks that have not voted, as far as this rank can tell.
fn missing(rank: Rank, tree: &Tree, state: &Gathering) -> Vec<Rank> {
    let mut missing: Vec<Rank> = if state.own { Vec::new() } else { vec![rank] };
    for child in tree.children.iter().filter(|child| !state.from.contains(child)) {
        match state.late.get(child) {
            Some(below) => missing.extend(below),
            None => missing.push(*child),
        }
    }
    missing.sort_unstable();
    missing.truncate(8);
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    const ROUND: Round = Round { operation: 1, phase: Phase::Call };

    fn timeouts() -> Timeouts {
        let s = Duration::from_secs;
        Timeouts { warn: s(1), abandon: s(10), room: s(1), drain: s(1) }
    }

    /// N cores and a bag of messages; the seed picks which message arrives next.
    struct World {
        cores: Vec<Core>,
        bag: Vec<(Rank, Rank, Message)>,
        settled: Vec<Vec<Verdict>>,
        sent: Vec<u64>,
        rng: Rng,
        now: Duration,
        decide: bool,
    }

    impl World {
        fn new(size: u32, per_node: u32, seed: u64) -> World {
            let nodes: Vec<u32> = (0..size).map(|rank| rank / per_node).collect();
            let cores = (0..size).map(|rank| Core::new(Rank(rank), &nodes, timeouts())).collect();
            let settled = vec![Vec::new(); size as usize];
            World {
                cores,
                bag: Vec::new(),
                settled,
                sent: vec![0; size as usize],
                rng: Rng::new(seed),
                now: Duration::ZERO,
                decide: true,
            }
        }

        fn give(&mut self, rank: u32, event: Event) {
            let mut effects = Vec::new();
            self.cores[rank as usize].on_event(event, self.now, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Send(to, message) => {
                        self.sent[rank as usize] += 1;
                        self.bag.push((Rank(rank), to, message));
                    }
                    Effect::Settled(verdict) => self.settled[rank as usize].push(verdict),
                    Effect::Decide(round, ballot) if self.decide => {
                        let culprits = ballot.culprits();
                        let outcome = if culprits.is_empty() { Outcome::Agreed } else { Outcome::Abandoned(culprits) };
                        self.give(rank, Event::Decided { round, outcome, decision: vec![7] });
                    }
                    Effect::Decide(..) | Effect::Waiting { .. } => {}
                }
            }
        }

        fn vote(&mut self, rank: u32, hash: u64) {
            self.vote_in(ROUND, rank, hash);
        }

        fn vote_in(&mut self, round: Round, rank: u32, hash: u64) {
            let ballot = Ballot::of(Rank(rank), hash, format!("call {hash}"), Payload::Max(vec![u64::from(rank)]));
            self.give(rank, Event::Vote(round, ballot));
        }

        /// All ranks agree on these later calls.
        fn agree(&mut self, operations: std::ops::Range<u64>) {
            for operation in operations {
                let round = Round { operation, phase: Phase::Call };
                (0..self.cores.len() as u32).for_each(|rank| self.vote_in(round, rank, 5));
                self.deliver_all(0);
            }
        }

        fn deliver_all(&mut self, loss_per_mille: u64) {
            while !self.bag.is_empty() {
                let pick = self.rng.below(self.bag.len() as u64) as usize;
                let (from, to, message) = self.bag.swap_remove(pick);
                if self.rng.chance(loss_per_mille, 1000) {
                    continue;
                }
                if self.rng.chance(1, 10) {
                    self.bag.push((from, to, message.clone()));
                }
                self.give(to.0, Event::Message(from, message));
            }
        }

        fn tick(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                for rank in 0..self.cores.len() as u32 {
                    self.give(rank, Event::Tick);
                }
                self.deliver_all(0);
            }
        }
    }

    #[test]
    fn a_decision_that_is_too_large_ends_the_round_in_words() {
        let (outcome, decision) = Outcome::agreed("list", &vec![0u8; 65 << 20]);
        let Outcome::Abandoned(culprits) = outcome else { panic!("{outcome:?}") };
        assert!(decision.is_empty() && culprits[0].text.contains("the list is too large"), "{culprits:?}");
        assert_eq!(Outcome::agreed("number", &7u64), (Outcome::Agreed, 7u64.to_le_bytes().to_vec()));
    }

    #[test]
    fn all_ranks_hear_the_same_verdict_whatever_the_order() {
        for (size, per_node) in [(1, 1), (2, 2), (3, 1), (8, 3), (64, 8)] {
            for seed in 0..30 {
                let mut world = World::new(size, per_node, seed);
                for rank in 0..size {
                    world.vote(rank, 5);
                }
                world.deliver_all(0);
                for verdicts in &world.settled {
                    assert_eq!(verdicts.len(), 1, "{size} ranks, seed {seed}");
                    assert_eq!(verdicts[0], world.settled[0][0]);
                    assert_eq!(verdicts[0].outcome, Outcome::Agreed);
                    assert_eq!(verdicts[0].payload, Payload::Max(vec![u64::from(size - 1)]));
                    assert_eq!(verdicts[0].decision, [7]);
                }
            }
        }
    }

    #[test]
    fn a_rank_with_another_call_is_named_to_everybody() {
        let mut world = World::new(8, 4, 1);
        (0..8).for_each(|rank| world.vote(rank, if rank == 6 { 9 } else { 5 }));
        world.deliver_all(0);
        for verdicts in &world.settled {
            let Outcome::Abandoned(culprits) = &verdicts[0].outcome else { panic!("{verdicts:?}") };
            assert_eq!(culprits.iter().flat_map(|c| c.ranks.named()).collect::<Vec<_>>(), [&Rank(6)]);
        }
    }

    #[test]
    fn a_missing_rank_is_named_and_finds_the_verdict_when_it_comes_late() {
        for absent in 0..8 {
            let mut world = World::new(8, 4, 2);
            (0..8).filter(|rank| *rank != absent).for_each(|rank| world.vote(rank, 5));
            world.deliver_all(0);
            world.tick(13);
            for rank in (0..8).filter(|rank| *rank != absent) {
                let Outcome::Abandoned(culprits) = &world.settled[rank as usize][0].outcome else {
                    panic!("rank {rank}")
                };
                assert_eq!(
                    culprits.iter().flat_map(|c| c.ranks.named()).collect::<Vec<_>>(),
                    [&Rank(absent)],
                    "seen by {rank}"
                );
            }
            assert!(world.settled[absent as usize].is_empty());
            world.vote(absent, 5);
            assert!(matches!(world.settled[absent as usize][0].outcome, Outcome::Abandoned(_)));
        }
    }

    /// A rank takes long to write its part of a level, while the ranks agree on hundreds of later calls.
    #[test]
    fn a_late_rank_finds_the_verdict_by_time_out_however_many_rounds_came_between() {
        for (before, after) in [(300, 0), (0, 300), (300, 300)] {
            let mut world = World::new(8, 4, 2);
            (0..8).filter(|rank| *rank != 5).for_each(|rank| world.vote(rank, 5));
            world.agree(2..2 + before);
            world.tick(13);
            world.agree(1000..1000 + after);
            world.settled.iter_mut().for_each(|verdicts| verdicts.retain(|verdict| verdict.round == ROUND));
            assert_eq!((world.settled[5].len(), world.settled[0].len()), (0, 1));
            world.vote(5, 5);
            world.deliver_all(0);
            world.tick(30);
            assert!(world.cores.iter().all(|core| core.is_idle() && core.unheard.is_empty()), "{before}, {after}");
            assert!(world.settled.iter().all(|verdicts| *verdicts == world.settled[0]), "{:?}", world.settled);
        }
    }

    #[test]
    fn ended_rounds_are_forgotten_by_age_and_their_decisions_at_once() {
        let mut world = World::new(3, 3, 6);
        world.agree(10..10 + 2 * ENDED_MAX as u64);
        world.agree(1..2);
        for core in &world.cores {
            let ended = &core.ended.verdicts;
            assert_eq!((ended.len(), core.unheard.len()), (ENDED_MAX, 0));
            assert!(ended.contains_key(&ROUND), "the last that ended, with the first number");
            assert!(ended.values().all(|verdict| verdict.decision.is_empty()), "{ended:?}");
        }
    }

    #[test]
    fn the_root_tells_a_time_out_also_to_those_who_hear_through_the_missing_rank() {
        let mut world = World::new(4, 4, 5);
        assert_eq!(world.cores[1].tree.children, [Rank(3)]);
        [0, 2, 3].into_iter().for_each(|rank| world.vote(rank, 5));
        for _ in 0..13 {
            world.now += Duration::from_secs(1);
            // Rank 1 makes no call in stepped mode: it does not receive what is sent to it, and passes nothing on.
            [0, 2, 3].into_iter().for_each(|rank| world.give(rank, Event::Tick));
            let (asleep, awake) = std::mem::take(&mut world.bag).into_iter().partition(|(_, to, _)| *to == Rank(1));
            world.bag = awake;
            world.deliver_all(0);
            world.bag = asleep;
        }
        assert_eq!(world.settled[3].len(), 1);
        assert_eq!(world.settled[3], world.settled[0]);
        assert!(matches!(&world.settled[3][0].outcome, Outcome::Abandoned(c) if c[0].ranks.named() == [Rank(1)]));
        world.vote(1, 5);
        world.deliver_all(0);
        assert_eq!(world.settled[1], world.settled[0]);
    }

    #[test]
    fn with_lost_messages_ranks_end_agreed_abandoned_or_unknown_but_never_contradict() {
        for seed in 0..200 {
            let mut world = World::new(13, 4, seed);
            (0..13).for_each(|rank| world.vote(rank, 5));
            world.deliver_all(150);
            world.tick(30);
            let mut known: Vec<&Verdict> = Vec::new();
            for (rank, verdicts) in world.settled.iter().enumerate() {
                assert_eq!(verdicts.len(), 1, "rank {rank}, seed {seed}: every rank comes to an end");
                match verdicts[0].outcome {
                    Outcome::Unknown => assert!(world.cores[rank].is_latched()),
                    _ => known.push(&verdicts[0]),
                }
            }
            assert!(known.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {known:?}");
        }
    }

    #[test]
    fn a_decision_may_take_longer_than_the_time_limit_without_being_overruled() {
        let mut world = World::new(13, 4, 3);
        world.decide = false;
        (0..13).for_each(|rank| world.vote(rank, 5));
        world.deliver_all(0);
        world.tick(100);
        assert!(world.settled.iter().all(Vec::is_empty) && !world.cores.iter().any(Core::is_latched));
        assert!(!world.cores.iter().any(Core::is_idle));
        world.give(0, Event::Decided { round: ROUND, outcome: Outcome::Agreed, decision: vec![] });
        world.deliver_all(0);
        assert!(world.settled.iter().all(|v| v[0].outcome == Outcome::Agreed));
        assert!(world.cores.iter().all(Core::is_idle));
    }

    #[test]
    fn a_time_out_is_told_to_every_other_rank_once() {
        let nodes: Vec<u32> = (0..13).map(|rank| rank / 4).collect();
        let mut root = Core::new(Rank::ROOT, &nodes, timeouts());
        let vote = Event::Vote(ROUND, Ballot::of(Rank::ROOT, 5, "call", Payload::None));
        root.on_event(vote, Duration::ZERO, &mut Vec::new());
        let mut effects = Vec::new();
        root.on_event(Event::Tick, timeouts().abandon, &mut effects);
        let mut told: Vec<u32> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send(to, Message::Down(_)) => Some(to.0),
                _ => None,
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, (1..13).collect::<Vec<_>>());
    }

    #[test]
    fn a_round_costs_each_rank_a_bounded_number_of_messages() {
        for size in [2, 64, 4096] {
            let mut world = World::new(size, 16, 4);
            (0..size).for_each(|rank| world.vote(rank, 5));
            world.deliver_all(0);
            assert!(world.sent.iter().all(|sent| *sent <= 15), "one up, four down, and repeats of them");
            assert_eq!(world.cores[0].open.len(), 0);
        }
    }
}
