//! All checkpoints of a rank that are not over, and the consequences of events. [`super`] explains how this module is used.

use super::flow::{FlowEffect, LevelState, Settled};
use super::life::Life;
use super::plan::Plan;
use super::references::References;
use super::tier_of;
use crate::base::ids::text_hash;
use crate::base::{CheckpointKey, Generation, Level, Origin, Rank};
use crate::catalog::{Folder, Ledger, LedgerEntry, Levels, Moment, Occasion, Place, Stretches};
use crate::config::JobConfig;
use crate::coordination::{Ballot, Outcome, Payload, Phase, Round, Verdict};
use crate::format::{ContainerInfo, SourceKey, codec};
use crate::policy::History;
use crate::tier::names::Series;
use crate::tier::{PerTier, TierId, TierSet};
use crate::transfer::progress::LevelVerdict;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// What is known about a checkpoint, beginning with its capture.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// Its key.
    pub key: CheckpointKey,
    /// Its series.
    pub series: Series,
    /// The hash of what all ranks must have in common.
    pub agreement: u64,
    /// What it descends from.
    pub origin: Option<Origin>,
}

/// A shard in its place, and the vote on it.
pub struct Captured<S> {
    /// The slot that contains it, if a slot does.
    pub slot: Option<S>,
    /// The tier that contains it.
    pub on: TierId,
    /// The vote of this rank.
    pub vote: Ballot,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect<S> {
    /// Vote.
    Vote(Round, Ballot),
    /// Begin this rank's part of a checkpoint on a tier.
    Start(u64, TierId),
    /// Stop this rank's part of a checkpoint on a tier: its result is not needed any more.
    Stop(u64, TierId),
    /// Bring the parts that this rank keeps for others into the node's own files.
    Store(u64, Vec<S>),
    /// Nobody needs the bytes of the capture any more; what was written of them without being published is removed.
    Forget(u64),
    /// All ranks have captured the checkpoint; it goes to these tiers.
    Planned(u64, TierSet),
    /// The files of a checkpoint may refer to these checkpoints.
    Refer(u64, Vec<SourceKey>),
    /// Files may still come to refer to these checkpoints of a series, and to later ones.
    OfUse(String, Vec<u64>),
    /// The verdict on a level, or on the call.
    Heard(Arc<Facts>, Option<TierId>, LevelVerdict),
    /// All levels have ended.
    Finished(u64),
    /// Note in the slots that all ranks have the checkpoint at this level.
    Mark(Vec<S>, Level),
    /// Nobody needs the slot once its writes are done.
    LetPass(S),
    /// Give back what is kept of a checkpoint for others, and its own slot.
    Retire(Vec<S>, Option<S>),
    /// Nothing is left of the checkpoint.
    Gone(u64),
}

struct Entry<S> {
    facts: Arc<Facts>,
    life: Life,
    /// The tier that holds the bytes of the capture.
    on: Option<TierId>,
    slot: Option<S>,
    /// What this rank keeps of the checkpoint for other ranks.
    parts: Vec<S>,
    /// The containers that this rank has published but not yet voted with.
    containers: PerTier<Vec<ContainerInfo>>,
    failures: Vec<(TierId, String)>,
}

/// The checkpoints of one rank. `S` names a slot of node memory.
pub struct Books<S> {
    rank: Rank,
    /// What redundancy keeps must also be in the node's own files before its level counts.
    has_stored_parts: bool,
    entries: BTreeMap<u64, Entry<S>>,
    /// Operations whose checkpoints have bytes in their place but are still to be captured.
    held: HashSet<u64>,
    /// Root: what is remembered of each series for planning.
    histories: HashMap<String, PerTier<History>>,
    /// What this run has committed.
    committed: HashSet<(TierId, u64)>,
    /// The highest level at which this run has committed something of a series, by the hash of the series' name.
    reached: HashMap<u64, Level>,
    /// What this run restored of each series, by name, and when.
    stretches: HashMap<String, Stretches>,
    /// The references between checkpoints.
    references: References,
    /// Why nothing more is committed.
    failure: Option<String>,
    /// The reason is that a newer run has taken over: the ranks still hear each other.
    is_superseded: bool,
}

type Effects<S> = Vec<Effect<S>>;

impl<S: Copy> Books<S> {
    /// Without checkpoints.
    pub fn new(rank: Rank, job: &JobConfig) -> Books<S> {
        Books {
            rank,
            has_stored_parts: job.redundancy.has_stored_parts(),
            references: References::new(job),
            entries: BTreeMap::new(),
            held: HashSet::new(),
            histories: HashMap::new(),
            committed: HashSet::new(),
            reached: HashMap::new(),
            stretches: HashMap::new(),
            failure: None,
            is_superseded: false,
        }
    }

    // ---- Events.

    /// Bytes of a checkpoint that is still to be captured are in their place.
    pub fn on_held(&mut self, operation: u64) {
        self.held.insert(operation);
    }

    /// This rank does not capture the checkpoint.
    pub fn on_declined(&mut self, operation: u64) {
        self.held.remove(&operation);
    }

    /// The application has handed a checkpoint over. `None`: part of it is still in the GPU cache, and this rank votes when that part has
    /// landed.
    pub fn on_captured(&mut self, facts: Arc<Facts>, captured: Option<Captured<S>>) -> Effects<S> {
        let operation = facts.key.operation;
        self.held.remove(&operation);
        let (on, slot, life) = match captured {
            Some(Captured { slot, on, vote }) => (Some(on), slot, Life::Ready(vote)),
            None => (None, None, Life::Landing),
        };
        let entry =
            Entry { facts, life, on, slot, parts: Vec::new(), containers: PerTier::default(), failures: Vec::new() };
        self.entries.insert(operation, entry);
        let mut effects = Vec::new();
        // The session has failed between that look and now: nobody would answer the vote.
        if let Some(reason) = self.cut_off().map(ToOwned::to_owned) {
            self.give_up(operation, LevelVerdict::Unknown(reason), &mut effects);
            self.settle_memory(&mut effects);
        }
        effects.extend(self.votes());
        effects
    }

    /// What was in the GPU cache is in this slot now, or (`None`) in no slot, and `vote` says which.
    pub fn on_landed(&mut self, operation: u64, slot: Option<S>, vote: Ballot) -> Effects<S> {
        let mut effects = Vec::new();
        if let Some(entry) = self.entries.get_mut(&operation) {
            let is_wanted = entry.life.on_landed(vote);
            (entry.slot, entry.on) = (slot, slot.map(|_| TierId::MEMORY));
            if !is_wanted {
                effects.push(Effect::Forget(operation));
            }
        }
        effects.extend(self.votes());
        self.settle_memory(&mut effects);
        effects
    }

    /// A verdict on a checkpoint's call or level has arrived.
    pub fn on_verdict(&mut self, verdict: &Verdict) -> Effects<S> {
        let operation = verdict.round.operation;
        let heard = match &verdict.outcome {
            Outcome::Agreed => LevelVerdict::Committed,
            Outcome::Abandoned(culprits) => LevelVerdict::Abandoned(culprits.clone()),
            Outcome::Unknown => LevelVerdict::Unknown(self.failed().unwrap_or_default().to_owned()),
        };
        let mut effects = Vec::new();
        match (tier_of(verdict.round.phase), heard) {
            (None, LevelVerdict::Committed) => match codec::decode::<Plan>("plan", &verdict.decision) {
                Ok(plan) => self.agree(operation, plan, &mut effects),
                Err(error) => self.give_up(operation, LevelVerdict::Unknown(error.to_string()), &mut effects),
            },
            (None, heard) => self.give_up(operation, heard, &mut effects),
            (Some(tier), heard) => {
                // Without the root's word, nothing is known to have been deleted.
                let stay = codec::decode::<(u64, Vec<u64>)>("what stays", &verdict.decision).ok();
                self.settle_level(operation, tier, heard, stay, &mut effects);
            }
        }
        self.settle_memory(&mut effects);
        effects
    }

    /// This rank's part on a tier has ended: written and published in these containers, or failed.
    pub fn on_written(
        &mut self,
        operation: u64,
        tier: TierId,
        written: Result<Vec<ContainerInfo>, String>,
    ) -> Effects<S> {
        let mut effects = Vec::new();
        if let Some(entry) = self.entries.get_mut(&operation) {
            match written {
                Ok(containers) => entry.containers[tier].extend(containers),
                Err(why) => entry.failures.push((tier, why)),
            }
            // Parts in the node's files are useless unless the shards of all ranks themselves are there.
            let needs_own = tier == TierId::PEERS && self.has_stored_parts && !entry.has_failed(tier);
            if needs_own && let Some((_, why)) = entry.failures.iter().find(|(at, _)| !at.spec().is_shared) {
                let why = format!("its own shard did not reach the local tier: {why}");
                entry.failures.push((tier, why));
            }
            // The root may have given the level up while it was being written.
            if let Life::Agreed(flow) = &mut entry.life
                && flow.level(tier) == LevelState::Writing
            {
                let next = flow.on_written(tier);
                self.follow(operation, next, &mut effects);
            }
        }
        self.settle_memory(&mut effects);
        effects
    }

    /// The exchange with the peers is done on this rank, which keeps these parts for others.
    pub fn on_kept(&mut self, operation: u64, parts: Vec<S>) -> Effects<S> {
        let Some(entry) = self.entries.get_mut(&operation) else { return vec![Effect::Retire(parts, None)] };
        if entry.life.flow().is_none_or(|flow| flow.level(TierId::PEERS) != LevelState::Writing) {
            return vec![Effect::Retire(parts, None)];
        }
        entry.parts.clone_from(&parts);
        // Before the vote: the others may hear that the level is committed, and this rank may die before it does.
        let mut effects = vec![Effect::Mark(parts.clone(), Level::NodeLoss)];
        if self.has_stored_parts {
            // Even with no parts: the vote says that this shard, too, is in the node's files.
            effects.push(Effect::Store(operation, parts));
        } else {
            effects.extend(self.on_written(operation, TierId::PEERS, Ok(Vec::new())));
        }
        effects
    }

    /// The file systems of these tiers stand still: the farther copies of those checkpoints that are held elsewhere begin without waiting
    /// for them. The root gives a level up only much later. Also returns the operations of these checkpoints.
    pub fn on_stuck(&mut self, stuck: TierSet) -> (Vec<u64>, Effects<S>) {
        let mut begun = Vec::new();
        for (operation, entry) in &mut self.entries {
            let Life::Agreed(flow) = &mut entry.life else { continue };
            if entry.on.is_some_and(|tier| !stuck.has(tier)) {
                begun.push((*operation, flow.on_stuck(stuck)));
            }
        }
        begun.retain(|(_, next)| !next.is_empty());
        let mut effects = Vec::new();
        let operations = begun.iter().map(|(operation, _)| *operation).collect();
        for (operation, next) in begun {
            self.follow(operation, next, &mut effects);
        }
        (operations, effects)
    }

    /// The application waits for memory: only what is needed is kept.
    pub fn on_pressed(&mut self) -> Effects<S> {
        let mut effects = Vec::new();
        self.release(&Occasion::Pressed, &mut effects);
        effects
    }

    /// The session has failed: nothing more is committed, and nothing more is reported about open checkpoints. True if
    /// that is news.
    pub fn on_failed(&mut self, reason: &str) -> (bool, Effects<S>) {
        let is_news = self.failure.is_none();
        self.on_silence(reason);
        let open: Vec<u64> = self.in_flight().map(|facts| facts.key.operation).collect();
        let mut effects = Vec::new();
        for operation in open {
            self.give_up(operation, LevelVerdict::Unknown(reason.to_owned()), &mut effects);
        }
        self.settle_memory(&mut effects);
        (is_news, effects)
    }

    /// The root did not answer: from now on, this rank takes part in no agreement.
    pub fn on_silence(&mut self, reason: &str) {
        self.failure.get_or_insert_with(|| reason.to_owned());
        self.is_superseded = false;
    }

    /// A newer run has taken over: nothing is committed, but the ranks continue to hear each other. True if that is news.
    pub fn on_superseded(&mut self, reason: &str) -> bool {
        let is_news = self.failure.is_none();
        if is_news {
            self.failure = Some(reason.to_owned());
            self.is_superseded = true;
        }
        is_news
    }

    /// The run has restored something of a series: later checkpoints of the series descend from what was restored.
    pub fn on_restored(&mut self, name: &str, origin: Origin, generation: Generation) {
        self.stretches.entry(name.into()).or_default().begin(generation, origin);
    }

    /// Root: what is remembered of a series, for a plan to count.
    pub fn history(&mut self, name: &str) -> &mut PerTier<History> {
        self.histories.entry(name.to_owned()).or_default()
    }

    /// The references between checkpoints, for choosing and for questions.
    pub fn references(&mut self) -> &mut References {
        &mut self.references
    }

    // ---- Questions.

    /// Is the checkpoint in the books?
    pub fn has(&self, operation: u64) -> bool {
        self.entries.contains_key(&operation)
    }

    /// What is known about the checkpoint.
    pub fn facts(&self, operation: u64) -> Option<Arc<Facts>> {
        self.entries.get(&operation).map(|entry| entry.facts.clone())
    }

    /// Is the checkpoint in the books, and has it not ended?
    pub fn is_open(&self, operation: u64) -> bool {
        self.entries.get(&operation).is_some_and(|entry| !entry.life.is_finished())
    }

    /// Is the checkpoint's shard still on its way from the device?
    pub fn is_coming_down(&self, operation: u64) -> bool {
        self.entries.get(&operation).is_some_and(|entry| entry.life.is_coming_down())
    }

    /// The checkpoints that have not ended.
    pub fn in_flight(&self) -> impl Iterator<Item = &Arc<Facts>> {
        self.entries.values().filter(|entry| !entry.life.is_finished()).map(|entry| &entry.facts)
    }

    /// Have all of them ended, with no bytes on their way?
    pub fn is_at_rest(&self) -> bool {
        self.entries.values().all(|entry| entry.life.is_finished() && !entry.life.is_coming_down())
    }

    /// Has this rank captured the checkpoint without having heard what goes to the peers? The others may have heard it first; and verdicts
    /// need not arrive in the order of their operations.
    pub fn awaits_exchange(&self, operation: u64) -> bool {
        self.entries.get(&operation).is_some_and(|entry| match &entry.life {
            Life::Landing | Life::Ready(_) | Life::Voting => true,
            Life::Agreed(flow) => flow.level(TierId::PEERS) == LevelState::Planned,
            Life::Falling | Life::Refused | Life::Doubtful => false,
        })
    }

    /// How many other checkpoints hold a slot of node memory.
    pub fn slots_beside(&self, operation: u64) -> usize {
        self.entries.iter().filter(|(other, entry)| **other != operation && entry.has_slot()).count()
    }

    /// Will memory be given back without further action, when the current writes are done? Memory of shards that are still coming down is
    /// given back, whatever has become of the checkpoint.
    pub fn will_release(&self) -> bool {
        let will = |entry: &Entry<S>| match &entry.life {
            life if life.is_coming_down() => true,
            life => !life.is_finished() && entry.slot.is_some(),
        };
        self.entries.values().any(will)
    }

    /// The series that have checkpoints in the books.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.values().map(|entry| entry.facts.series.name.as_str())
    }

    /// The origin of a checkpoint of a series if it is taken now.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        self.stretches.get(name)?.last()
    }

    /// What this run has restored of a series.
    pub fn stretches(&self, name: &str) -> Option<&Stretches> {
        self.stretches.get(name)
    }

    /// The highest level at which this run has committed something of a series, by the hash of its name.
    pub fn reached(&self, name: u64) -> Option<Level> {
        self.reached.get(&name).copied()
    }

    /// [`Books::reached`] of all series.
    pub fn all_reached(&self) -> &HashMap<u64, Level> {
        &self.reached
    }

    /// Why the session has failed, if it has.
    pub fn failed(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Why this rank can agree on nothing any more, if so. A superseded rank still can: its application continues to compute, and all its
    /// ranks continue to receive the same answer to each question.
    pub fn cut_off(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| !self.is_superseded)
    }

    /// What this rank's node memory holds, in the order of the operations.
    pub fn memory(&self) -> Ledger<String> {
        Ledger::new(self.entries.values().map(Entry::in_ledger).collect()).with_stored_parts(self.has_stored_parts)
    }

    /// A folder of a tier, with what this run knows of it besides its name and whether it has a manifest.
    pub fn folder(&self, folder: &Folder, tier: TierId, now: &CheckpointKey) -> LedgerEntry<()> {
        let mut entry = folder.entry((), tier.level());
        if folder.generation == now.generation {
            let operation = folder.operation;
            let tiers = [tier, TierId::PEERS].into_iter().filter(|at| self.committed.contains(&(*at, operation)));
            entry.known = tiers.fold(entry.known, |known, tier| known.with(tier.level()));
            entry.is_open = self.is_open(operation) || self.held.contains(&operation);
        }
        entry
    }

    // ---- Effects.

    /// Does a vote wait for a shard that is landing? Votes on calls are cast in the order of the calls: later votes
    /// wait for a shard that is still landing.
    pub fn has_vote_waiting(&self) -> bool {
        let mut lives = self.entries.values().map(|entry| &entry.life);
        lives.any(|life| matches!(life, Life::Landing))
            && lives.any(|life| matches!(life, Life::Ready(_) | Life::Landing))
    }

    fn votes(&mut self) -> Effects<S> {
        let mut effects = Vec::new();
        for (operation, entry) in self.entries.iter_mut() {
            if matches!(entry.life, Life::Landing) {
                break;
            }
            let round = Round { operation: *operation, phase: Phase::Call };
            effects.extend(entry.life.take_vote().map(|vote| Effect::Vote(round, vote)));
        }
        effects
    }

    fn agree(&mut self, operation: u64, plan: Plan, effects: &mut Effects<S>) {
        let Some(entry) = self.entries.get_mut(&operation) else { return };
        let Plan { tiers: plan, sources } = plan;
        let next = entry.life.on_agreed(plan);
        effects.push(Effect::Planned(operation, plan));
        if self.references.is_on() {
            self.references.planned(&entry.facts, plan, &sources);
            effects.push(Effect::Refer(operation, sources));
        }
        if plan.has(TierId::MEMORY) {
            entry.mark(effects);
            let facts = entry.facts.clone();
            self.commit(&facts, TierId::MEMORY);
            effects.push(Effect::Heard(facts, Some(TierId::MEMORY), LevelVerdict::Committed));
        } else if let (false, Some(slot)) = (plan.has(TierId::PEERS), entry.slot) {
            effects.push(Effect::LetPass(slot));
        }
        self.follow(operation, next, effects);
    }

    /// The call came to nothing, or nobody here will hear its verdict: nothing more of this checkpoint is written.
    fn give_up(&mut self, operation: u64, heard: LevelVerdict, effects: &mut Effects<S>) {
        let Some(entry) = self.entries.get_mut(&operation) else { return };
        let ends_doubt = matches!((&entry.life, &heard), (Life::Doubtful, LevelVerdict::Abandoned(_)));
        if entry.life.is_finished() && !ends_doubt {
            // The verdict arrived while this rank's vote was on its way, and answers that vote, too.
            return;
        }
        let next = match &heard {
            LevelVerdict::Unknown(_) => entry.life.on_lost(),
            _ => {
                self.references.refused(&entry.facts);
                entry.life.on_refused()
            }
        };
        effects.push(Effect::Heard(entry.facts.clone(), None, heard));
        entry.stop_exchange(operation, effects);
        self.follow(operation, next, effects);
    }

    fn settle_level(
        &mut self,
        operation: u64,
        tier: TierId,
        heard: LevelVerdict,
        stay: Option<(u64, Vec<u64>)>,
        effects: &mut Effects<S>,
    ) {
        let Some(entry) = self.entries.get_mut(&operation) else { return };
        let end = match &heard {
            LevelVerdict::Committed => Settled::Committed,
            LevelVerdict::Unknown(_) => Settled::Unknown,
            LevelVerdict::Abandoned(_) | LevelVerdict::Off(_) => Settled::Abandoned,
        };
        let facts = entry.facts.clone();
        let is_committed = end == Settled::Committed;
        if let Some(of_use) = self.references.settled(&facts, tier, is_committed, stay) {
            effects.push(Effect::OfUse(facts.series.name.clone(), of_use));
        }
        effects.push(Effect::Heard(facts.clone(), Some(tier), heard));
        let next = match &mut entry.life {
            Life::Agreed(flow) => flow.on_settled(tier, end),
            _ => Vec::new(),
        };
        if end == Settled::Committed {
            entry.mark(effects);
            self.commit(&facts, tier);
        } else if tier == TierId::PEERS {
            entry.stop_exchange(operation, effects);
        }
        self.follow(operation, next, effects);
    }

    fn commit(&mut self, facts: &Facts, tier: TierId) {
        self.committed.insert((tier, facts.key.operation));
        let highest = self.reached.entry(text_hash(&facts.series.name)).or_insert(Level::Captured);
        *highest = tier.level().max(*highest);
    }

    fn follow(&mut self, operation: u64, next: Vec<FlowEffect>, effects: &mut Effects<S>) {
        for step in next {
            let effect = match step {
                FlowEffect::Start(tier) => Effect::Start(operation, tier),
                FlowEffect::SourceFree => Effect::Forget(operation),
                FlowEffect::Finished => Effect::Finished(operation),
                FlowEffect::Vote(tier) => match self.entries.get_mut(&operation) {
                    Some(entry) => entry.vote(self.rank, tier),
                    None => continue,
                },
            };
            effects.push(effect);
        }
    }

    /// Lets go of slots that nobody needs, and of checkpoints that have nothing left.
    ///
    /// A slot, and what is kept besides it for other ranks, stays while it is being written, and while its checkpoint is the newest of the
    /// series that is committed at level `Process` or at level `NodeLoss`.
    fn settle_memory(&mut self, effects: &mut Effects<S>) {
        self.release(&Occasion::Settled, effects);
    }

    fn release(&mut self, occasion: &Occasion<'_>, effects: &mut Effects<S>) {
        let rulings = self.memory().judge(occasion);
        for (entry, ruling) in self.entries.values_mut().zip(rulings) {
            if ruling.may_go() && (entry.slot.is_some() || !entry.parts.is_empty()) {
                effects.push(Effect::Retire(std::mem::take(&mut entry.parts), entry.slot.take()));
            }
        }
        let is_gone = |entry: &Entry<S>| entry.life.is_finished() && !entry.has_slot() && entry.parts.is_empty();
        let gone = self.entries.iter().filter(|(_, entry)| is_gone(entry));
        effects.extend(gone.map(|(operation, _)| Effect::Gone(*operation)));
        self.entries.retain(|_, entry| !is_gone(entry));
    }
}

impl<S: Copy> Entry<S> {
    /// Does the shard of this checkpoint hold a slot of the segment?
    fn has_slot(&self) -> bool {
        self.slot.is_some() || self.life.is_coming_down()
    }

    fn has_failed(&self, tier: TierId) -> bool {
        self.failures.iter().any(|(failed, _)| *failed == tier)
    }

    /// Notes the highest committed level in the slots. Whoever finds the segment after the run has died can then distinguish the only copy
    /// of a checkpoint from one that is safe elsewhere.
    fn mark(&self, effects: &mut Effects<S>) {
        let committed = TierId::all().filter(|tier| self.life.is_committed(*tier));
        let Some(highest) = committed.map(TierId::level).max() else { return };
        effects.extend(self.slot.map(|slot| Effect::Mark(vec![slot], highest)));
        if !self.parts.is_empty() {
            // What is kept for others is kept for that level at least.
            effects.push(Effect::Mark(self.parts.clone(), highest.max(Level::NodeLoss)));
        }
    }

    /// The exchange leads to nothing more. What it has already produced stays, even if the outcome is in doubt: others may have heard that
    /// the level is committed.
    fn stop_exchange(&mut self, operation: u64, effects: &mut Effects<S>) {
        effects.push(Effect::Stop(operation, TierId::PEERS));
        if !self.life.is_in_doubt() && !self.life.is_committed(TierId::PEERS) && !self.parts.is_empty() {
            effects.push(Effect::Retire(std::mem::take(&mut self.parts), None));
        }
    }

    /// This rank's vote on a level.
    fn vote(&mut self, rank: Rank, tier: TierId) -> Effect<S> {
        let round = Round { operation: self.facts.key.operation, phase: Phase::Level(tier.index()) };
        let published = std::mem::take(&mut self.containers[tier]);
        let payload = if published.is_empty() { Ok(Payload::None) } else { Payload::gathered(published) };
        let call = format!("{tier} level of operation {}", round.operation);
        let ballot = |payload| Ballot::of(rank, self.facts.agreement, call, payload);
        let mut ballot = match payload {
            Ok(payload) => ballot(payload),
            Err(error) => ballot(Payload::None).failed(rank, error.to_string(), true),
        };
        for (_, why) in self.failures.iter().filter(|(failed, _)| *failed == tier) {
            ballot = ballot.failed(rank, why, true);
        }
        Effect::Vote(round, ballot)
    }

    /// What node memory holds of this checkpoint.
    fn in_ledger(&self) -> LedgerEntry<String> {
        let known = TierId::all().filter(|tier| self.life.is_committed(*tier));
        let doubt = Levels::NONE.with(Level::Process).with(Level::NodeLoss);
        let has_memory = self.slot.is_some() || !self.parts.is_empty();
        LedgerEntry {
            series: self.facts.series.name.clone(),
            taken: Moment::of(&self.facts.key),
            version: self.facts.key.version,
            place: Place::Slot,
            known: known.fold(Levels::NONE, |known, tier| known.with(tier.level())),
            // This rank has lost touch, or still has no answer: the others may have heard that the checkpoint is committed.
            doubt: if self.life.is_in_doubt() && has_memory { doubt } else { Levels::NONE },
            is_open: self.life.is_open(),
            needs: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Incarnation;
    use crate::config::PartStore;

    type Book = Books<u32>;

    fn books(has_stored_parts: bool) -> Book {
        let mut job = JobConfig::default();
        job.redundancy.store = if has_stored_parts { PartStore::Local } else { PartStore::Memory };
        Books::new(Rank(1), &job)
    }

    fn facts(operation: u64) -> Arc<Facts> {
        let key = CheckpointKey {
            generation: Generation(1),
            version: operation,
            operation,
            incarnation: Incarnation([1; 16]),
        };
        let series = Series { job: "job".into(), group: "world".into(), name: "heat".into() };
        Arc::new(Facts { key, series, agreement: 7, origin: None })
    }

    fn captured(slot: u32) -> Option<Captured<u32>> {
        Some(Captured { slot: Some(slot), on: TierId::MEMORY, vote: Ballot::default() })
    }

    fn verdict(operation: u64, tier: Option<TierId>, outcome: Outcome, plan: &[TierId]) -> Verdict {
        let phase = tier.map_or(Phase::Call, |tier| Phase::Level(tier.index()));
        let plan = Plan { tiers: plan.iter().copied().collect(), sources: Vec::new() };
        let decision = codec::encode("plan", &plan).unwrap();
        Verdict { round: Round { operation, phase }, outcome, payload: Payload::None, decision }
    }

    fn agreed(operation: u64, plan: &[TierId]) -> Verdict {
        verdict(operation, None, Outcome::Agreed, plan)
    }

    fn settled(operation: u64, tier: TierId, outcome: Outcome) -> Verdict {
        verdict(operation, Some(tier), outcome, &[])
    }

    fn votes(effects: &[Effect<u32>]) -> Vec<(u64, Option<TierId>)> {
        let vote = |effect: &Effect<u32>| match effect {
            Effect::Vote(round, _) => Some((round.operation, tier_of(round.phase))),
            _ => None,
        };
        effects.iter().filter_map(vote).collect()
    }

    /// The effects that say nothing to others.
    fn acts(effects: Vec<Effect<u32>>) -> Vec<Effect<u32>> {
        let is_act = |effect: &Effect<u32>| !matches!(effect, Effect::Heard(..) | Effect::Vote(..));
        effects.into_iter().filter(is_act).collect()
    }

    const ALL: [TierId; 4] = [TierId::MEMORY, TierId::LOCAL, TierId::PEERS, TierId::GLOBAL];

    #[test]
    fn a_checkpoint_goes_from_the_call_to_its_last_level() {
        let mut books = books(false);
        assert_eq!(votes(&books.on_captured(facts(1), captured(10))), [(1, None)]);
        let begun = acts(books.on_verdict(&agreed(1, &ALL)));
        let plan: TierSet = ALL.into_iter().collect();
        let (peers, local) = (Effect::Start(1, TierId::PEERS), Effect::Start(1, TierId::LOCAL));
        assert_eq!(begun, [Effect::Planned(1, plan), Effect::Mark(vec![10], Level::Process), peers, local]);
        let kept = books.on_kept(1, vec![20]);
        assert_eq!(
            (votes(&kept), acts(kept)),
            (vec![(1, Some(TierId::PEERS))], vec![Effect::Mark(vec![20], Level::NodeLoss)])
        );
        let written = books.on_written(1, TierId::LOCAL, Ok(Vec::new()));
        assert_eq!(
            (votes(&written), acts(written)),
            (vec![(1, Some(TierId::LOCAL))], vec![Effect::Start(1, TierId::GLOBAL)])
        );
        assert_eq!(acts(books.on_written(1, TierId::GLOBAL, Ok(Vec::new()))), [Effect::Forget(1)]);
        for tier in [TierId::LOCAL, TierId::PEERS] {
            books.on_verdict(&settled(1, tier, Outcome::Agreed));
        }
        assert!(books.in_flight().next().is_some());
        assert!(books.on_verdict(&settled(1, TierId::GLOBAL, Outcome::Agreed)).contains(&Effect::Finished(1)));
        assert!(books.is_at_rest() && books.has(1), "its slot is the newest of its series");
    }

    #[test]
    fn votes_on_calls_are_cast_in_the_order_of_the_calls() {
        let mut books = books(false);
        assert_eq!(votes(&books.on_captured(facts(1), None)), []);
        assert_eq!(votes(&books.on_captured(facts(2), captured(20))), []);
        assert_eq!(votes(&books.on_captured(facts(3), None)), []);
        assert_eq!(votes(&books.on_landed(1, Some(10), Ballot::default())), [(1, None), (2, None)]);
        assert_eq!(votes(&books.on_landed(3, None, Ballot::default())), [(3, None)], "also a no");
    }

    /// A shard that the others have given up while it came down from the GPU gives its memory back on arrival.
    #[test]
    fn a_shard_that_lands_too_late_is_given_back() {
        let mut books = books(false);
        books.on_captured(facts(1), None);
        let refused = books.on_verdict(&verdict(1, None, Outcome::Abandoned(Vec::new()), &[]));
        assert!(refused.contains(&Effect::Finished(1)) && !refused.contains(&Effect::Gone(1)));
        assert!(!books.is_at_rest() && books.will_release());
        let landed = books.on_landed(1, Some(10), Ballot::default());
        assert_eq!(landed, [Effect::Forget(1), Effect::Retire(Vec::new(), Some(10)), Effect::Gone(1)]);
    }

    #[test]
    fn a_verdict_that_comes_twice_is_heard_once() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_captured(facts(2), None);
        let abandoned = |operation| verdict(operation, None, Outcome::Abandoned(Vec::new()), &[]);
        assert!(!books.on_verdict(&abandoned(2)).is_empty());
        assert_eq!(books.on_verdict(&abandoned(2)), []);
        assert!(!books.on_verdict(&abandoned(1)).is_empty());
        assert_eq!(books.on_verdict(&abandoned(1)), []);
    }

    /// The others may have heard that the checkpoint is committed: the restart decides.
    #[test]
    fn a_silent_root_leaves_the_memory_of_what_was_voted_for() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_captured(facts(2), captured(20));
        books.on_verdict(&agreed(1, &[TierId::MEMORY, TierId::PEERS]));
        books.on_kept(1, vec![11]);
        books.on_captured(facts(3), None);
        let (is_news, effects) = books.on_failed("the network is gone");
        assert!(is_news && !books.on_failed("again").0);
        assert_eq!(books.cut_off(), Some("the network is gone"));
        let kept = |slot: u32| {
            !effects.iter().any(
                |effect| matches!(effect, Effect::Retire(parts, own) if parts.contains(&slot) || *own == Some(slot)),
            )
        };
        assert!(kept(10) && kept(11) && kept(20));
        assert!(books.has(1) && books.has(2) && books.has(3));
        books.on_landed(3, Some(30), Ballot::default());
        assert!(!books.has(3), "nobody can have heard of it");
        assert!(books.memory().judge(&Occasion::Ended).into_iter().all(|ruling| !ruling.may_go()));
    }

    #[test]
    fn what_was_in_doubt_is_committed_where_it_lies_when_the_word_comes_after_all() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_failed("MPI was finalized");
        let plan = [TierId::MEMORY, TierId::GLOBAL];
        let effects = books.on_verdict(&agreed(1, &plan));
        assert!(effects.contains(&Effect::Mark(vec![10], Level::Process)), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Start(..))), "{effects:?}");
        assert!(books.is_at_rest() && books.has(1));
    }

    #[test]
    fn what_was_in_doubt_goes_when_it_is_heard_that_it_was_refused() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_failed("MPI was finalized");
        let effects = books.on_verdict(&verdict(1, None, Outcome::Abandoned(Vec::new()), &[]));
        assert!(effects.contains(&Effect::Retire(Vec::new(), Some(10))), "{effects:?}");
        assert!(!books.has(1) && books.is_at_rest());
    }

    /// The vote would wait forever, and so would the application.
    #[test]
    fn what_is_captured_after_the_failure_is_given_up_at_once() {
        let mut books = books(false);
        books.on_failed("the network is gone");
        let effects = books.on_captured(facts(1), captured(10));
        assert_eq!(votes(&effects), []);
        let unknown = LevelVerdict::Unknown("the network is gone".into());
        assert!(effects.contains(&Effect::Heard(facts(1), None, unknown)), "{effects:?}");
        assert!(effects.contains(&Effect::Retire(Vec::new(), Some(10))) && effects.contains(&Effect::Gone(1)));
        books.on_captured(facts(2), None);
        assert_eq!(votes(&books.on_landed(2, Some(20), Ballot::default())), []);
        assert!(!books.has(2) && books.is_at_rest());
    }

    #[test]
    fn what_is_kept_for_others_stays_when_the_session_fails_after_the_commit() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_verdict(&agreed(1, &[TierId::MEMORY, TierId::PEERS, TierId::GLOBAL]));
        books.on_kept(1, vec![11]);
        books.on_verdict(&settled(1, TierId::PEERS, Outcome::Agreed));
        let (_, effects) = books.on_failed("the network is gone");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Retire(..))), "{effects:?}");
        assert!(effects.contains(&Effect::Stop(1, TierId::PEERS)), "nobody is served any more");
    }

    #[test]
    fn a_superseded_run_commits_nothing_and_goes_on_answering() {
        let mut books = books(false);
        assert!(books.on_superseded("run 2 has taken over"));
        assert_eq!((books.failed(), books.cut_off()), (Some("run 2 has taken over"), None));
        assert!(!books.on_superseded("again"));
        books.on_silence("the root did not answer");
        assert_eq!(books.cut_off(), Some("run 2 has taken over"), "now it hears nobody");
    }

    #[test]
    fn parts_on_files_of_the_node_need_the_own_shard_there() {
        let mut books = books(true);
        books.on_captured(facts(1), captured(10));
        books.on_verdict(&agreed(1, &[TierId::MEMORY, TierId::LOCAL, TierId::PEERS]));
        assert_eq!(acts(books.on_kept(1, vec![11]))[1..], [Effect::Store(1, vec![11])]);
        books.on_written(1, TierId::LOCAL, Err("no space left".into()));
        let vote = books.on_written(1, TierId::PEERS, Ok(Vec::new()));
        let Some(Effect::Vote(_, ballot)) = vote.iter().find(|effect| matches!(effect, Effect::Vote(..))) else {
            panic!("no vote: {vote:?}")
        };
        assert!(ballot.culprits()[0].text.contains("no space left"), "{ballot:?}");
    }

    #[test]
    fn what_is_kept_for_a_level_that_was_given_up_goes_at_once() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_verdict(&agreed(1, &[TierId::MEMORY, TierId::PEERS]));
        let stopped = books.on_verdict(&settled(1, TierId::PEERS, Outcome::Abandoned(Vec::new())));
        assert!(stopped.contains(&Effect::Stop(1, TierId::PEERS)));
        assert_eq!(books.on_kept(1, vec![11]), [Effect::Retire(vec![11], None)]);
        assert_eq!(books.on_kept(9, vec![12]), [Effect::Retire(vec![12], None)], "of nothing that is known");
    }

    #[test]
    fn older_memory_goes_when_a_newer_one_is_committed_and_when_the_application_waits() {
        let mut books = books(false);
        for operation in 1..=2 {
            books.on_captured(facts(operation), captured(10 * operation as u32));
        }
        assert_eq!(acts(books.on_verdict(&agreed(1, &[TierId::MEMORY]))).last(), Some(&Effect::Finished(1)));
        let second = books.on_verdict(&agreed(2, &[TierId::MEMORY, TierId::GLOBAL]));
        assert!(second.contains(&Effect::Retire(Vec::new(), Some(10))) && second.contains(&Effect::Gone(1)));
        assert_eq!(books.on_pressed(), [], "it is being written");
        books.on_written(2, TierId::GLOBAL, Ok(Vec::new()));
        books.on_verdict(&settled(2, TierId::GLOBAL, Outcome::Agreed));
        assert_eq!(books.on_pressed(), [Effect::Retire(Vec::new(), Some(20)), Effect::Gone(2)]);
    }

    #[test]
    fn farther_copies_pass_by_a_file_system_that_stands_still() {
        let mut books = books(false);
        books.on_captured(facts(1), captured(10));
        books.on_verdict(&agreed(1, &[TierId::MEMORY, TierId::LOCAL, TierId::GLOBAL]));
        let (whose, effects) = books.on_stuck(TierSet::of(TierId::LOCAL));
        assert_eq!((whose, effects), (vec![1], vec![Effect::Start(1, TierId::GLOBAL)]));
        let on_file = Captured { slot: None, on: TierId::LOCAL, vote: Ballot::default() };
        books.on_captured(facts(2), Some(on_file));
        books.on_verdict(&agreed(2, &[TierId::LOCAL, TierId::GLOBAL]));
        assert!(books.on_stuck(TierSet::of(TierId::LOCAL)).0.is_empty(), "its bytes lie on what stands still");
    }
}
