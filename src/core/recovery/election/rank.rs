//! A rank's side of an election: its reports to the root, and what it does with the answers.

use super::super::discover::{Found, Held};
use super::super::homes::{home, homed};
use super::super::remade::ELSEWHERE;
use super::error::{RestartError, Tried, Unloaded, Want, join};
use super::root::{AT_THE_END, Choice, DISTRUSTED, REJECTED, RootView, Word, from_bits, to_bits};
use crate::base::log;
use crate::base::{CheckpointKey, Origin, Rank};
use crate::catalog::{Candidate, WINDOW, restorable};
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Span, Verdict};
use crate::format::{FormatError, Manifest, codec};
use crate::redundancy::holding::{Alternative, Holding, Item, Table};
use crate::tier::TierId;
use crate::transfer::Engine;
use crate::transfer::posting::{Exchange, Handled, all_at_once};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A candidate to attempt, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Elected {
    /// The checkpoint.
    pub candidate: Candidate,
    /// Its manifests on the tiers that all nodes share, nearest first.
    pub manifests: Vec<(TierId, Manifest)>,
    /// A later run had left it behind, but it was requested by its number.
    pub left_behind: bool,
    /// For the shards whose home this rank is, the ways that lead to other nodes.
    pub ways: BTreeMap<Rank, Vec<Alternative>>,
    /// The ranks have looked for shards on each other's nodes. The same on all ranks.
    pub has_gathered: bool,
    /// It was attempted before, and some copy was damaged. The same on all ranks.
    pub is_again: bool,
}

/// One restart, from the first look to the end.
pub struct Election {
    engine: Arc<Engine>,
    name: String,
    want: Want,
    found: Arc<Found>,
    /// Every candidate looked at so far, newest first, and whether all ranks can restore it. The same on all ranks.
    known: Vec<Candidate>,
    complete: Vec<bool>,
    /// For each candidate: some rank knows that it was committed.
    committed: Vec<bool>,
    /// The place in `known` at which the window begins that was looked at last.
    window: usize,
    /// Some rank knows of a candidate that was committed.
    evidence: bool,
    damage: Vec<Culprit>,
    tried: Vec<Tried>,
    current: Option<Candidate>,
    exhausted: bool,
    /// Who holds which items of this window, if this rank is the home of the shard, or if the item is needed to rebuild such a shard.
    holdings: BTreeSet<Holding>,
    /// The shards of this window for which this rank has asked other homes, by place and rank.
    asked: BTreeSet<(u8, Rank)>,
    /// A candidate of which copies were found damaged: other ways to its shards are sought, although there are some.
    distrusted: Option<Candidate>,
    /// The ranks have told each other what they hold of this window.
    gathered: bool,
}

impl Election {
    /// A restart of a series, with this rank's findings.
    pub fn new(engine: &Arc<Engine>, name: &str, want: Want, found: Found) -> Election {
        Election {
            engine: engine.clone(),
            name: name.into(),
            want,
            found: Arc::new(found),
            holdings: BTreeSet::new(),
            asked: BTreeSet::new(),
            distrusted: None,
            gathered: false,
            known: Vec::new(),
            complete: Vec::new(),
            committed: Vec::new(),
            window: 0,
            evidence: false,
            damage: Vec::new(),
            tried: Vec::new(),
            current: None,
            exhausted: false,
        }
    }

    /// What this rank has found.
    pub fn found(&self) -> &Arc<Found> {
        &self.found
    }

    /// Have the ranks looked for shards on each other's nodes? The same on all ranks.
    pub fn has_gathered(&self) -> bool {
        self.gathered
    }

    /// Elects the first candidate; `None` if there is nothing to restore and never was.
    ///
    /// # Collective
    /// All ranks. Two reductions per window.
    ///
    /// # Errors
    /// [`RestartError`], the same on all ranks.
    pub fn first(&mut self) -> Result<Option<Elected>, RestartError> {
        loop {
            self.look()?;
            let mut word = self.vote()?;
            if word == Word::Gather {
                word = self.gather()?;
            }
            if word != Word::NextWindow {
                return self.take(word);
            }
        }
    }

    /// Ends an attempt; `Ok(None)` if it counts, the next candidate if not.
    ///
    /// A rank that has failed may call this while others load something together. The others are told so in that load and then call this,
    /// too; the rank that failed votes again.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`RestartError`], the same on all ranks.
    pub fn end(&mut self, failure: Option<Unloaded>) -> Result<Option<Elected>, RestartError> {
        let verdict = loop {
            let mut ballot = self.ballot("end of an attempt", Payload::None);
            if let Some(why) = &failure {
                let is_hopeless = matches!(why, Unloaded::Refused(_));
                ballot = ballot.failed(self.engine.identity().rank, why.to_string(), !is_hopeless);
                // Only the failure counts, whatever call the others are in.
                ballot.calls.clear();
            }
            let root = self.root_view();
            let decide = Box::new(move |ballot: &Ballot| root.decide_end(ballot));
            let rejects = matches!(failure, Some(Unloaded::Rejected(_)));
            let sums = vec![(AT_THE_END, 1), (REJECTED, u64::from(rejects))];
            let verdict = self.engine.collective(ballot.with_sums(sums), decide);
            let verdict = verdict.map_err(|reason| RestartError::Session { reason })?;
            let are_some_elsewhere = verdict.outcome != Outcome::Agreed && verdict.decision == ELSEWHERE;
            if failure.is_none() || !are_some_elsewhere {
                break agreed(Ok(verdict))?;
            }
        };
        let (word, tried): (Word, Option<Tried>) = self.decode(&verdict.decision)?;
        if let Some(tried) = tried {
            // All ranks hear the same, so one warning is enough.
            let level = if self.engine.is_root() { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "event=attempt-failed {} culprits={:?}", tried.key, join(&tried.culprits));
            self.tried.push(tried);
        }
        match word {
            Word::Gather => {
                // A copy of some rank is damaged, and others may be, too.
                self.distrusted = self.current;
                match self.gather()? {
                    Word::NextWindow => self.first(),
                    word => self.take(word),
                }
            }
            Word::NextWindow => self.first(),
            word => self.take(word),
        }
    }

    /// Tells all ranks the root's data about the elected candidate; `None` if the root has none.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`RestartError`], the same on all ranks.
    pub fn tell_all<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        said: Option<T>,
    ) -> Result<Option<T>, RestartError> {
        let decide = move |ballot: &Ballot| Outcome::unless_culprits(ballot, |_| Outcome::agreed("outline", &said));
        let (decision, _) = self.reduce(self.ballot("outline", Payload::None), decide)?;
        self.decode(&decision)
    }

    /// All complete versions that this election has looked at, newest first, each with whether a later run left it behind.
    ///
    /// # Collective
    /// All ranks; looks at every window.
    ///
    /// # Errors
    /// [`RestartError`], the same on all ranks.
    pub fn list(&mut self) -> Result<Vec<(Candidate, bool)>, RestartError> {
        while !self.exhausted {
            self.look()?;
            if self.vote()? == Word::Gather {
                self.gather()?;
            }
        }
        let (usable, left) = restorable(&self.known, &self.complete);
        let mut all: Vec<(Candidate, bool)> =
            usable.into_iter().map(|c| (c, false)).chain(left.into_iter().map(|c| (c, true))).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        Ok(all)
    }

    fn look(&mut self) -> Result<(), RestartError> {
        let last = self.known.last().copied();
        let fresh: Vec<Candidate> =
            self.found.candidates().into_iter().filter(|c| last.is_none_or(|last| *c < last)).take(WINDOW).collect();
        let fresh = fresh.iter().map(Candidate::to_bytes);
        let mut ballot = self.ballot("look", Payload::greatest(WINDOW as u32, fresh));
        let rank = self.engine.identity().rank;
        if last.is_none()
            && let Some(first) = self.found.damage.first()
        {
            let more = self.found.damage.len() - 1;
            let text = if more > 0 { format!("{first} (and {more} more)") } else { first.clone() };
            ballot = ballot.failed(rank, text, true);
        }
        let (verdict, payload) = self.reduce(ballot, |ballot| {
            let differing: Vec<Culprit> = ballot.culprits().into_iter().filter(|c| !c.retry).collect();
            if !differing.is_empty() {
                return (Outcome::Abandoned(differing), Vec::new());
            }
            Outcome::agreed("damage", &ballot.culprits())
        })?;
        self.damage.extend(self.decode::<Vec<Culprit>>(&verdict)?);
        let window = match payload {
            Payload::Greatest { items, .. } => items.iter().filter_map(|bytes| Candidate::of_bytes(bytes)).collect(),
            _ => Vec::new(),
        };
        self.exhausted = window.len() < WINDOW;
        self.window = self.known.len();
        self.gathered = false;
        self.holdings.clear();
        self.distrusted = None;
        self.asked.clear();
        self.known.extend(&window);
        self.complete.resize(self.known.len(), false);
        self.committed.resize(self.known.len(), false);
        Ok(())
    }

    fn vote(&mut self) -> Result<Word, RestartError> {
        let start = self.window;
        let (window, found) = (&self.known[start..], &self.found);
        let has_all = |candidate: &Candidate| self.homed(candidate).all(|shard| found.has(candidate, shard));
        let have = to_bits(window.iter().map(has_all));
        let committed = to_bits(window.iter().map(|candidate| found.committed.contains(candidate)));
        // Every rank can restore what the global tier holds completely. Only the root knows of it, and adds it.
        let global = to_bits(window.iter().map(|candidate| found.manifests.contains_key(candidate)));
        let root = self.root_view();
        let ballot = self.ballot("vote", Payload::Bits { all: have, any: committed });
        let (verdict, payload) = self.reduce(ballot, move |ballot| root.decide_vote(ballot, start, global))?;
        let (word, complete): (Word, u64) = self.decode(&verdict)?;
        from_bits(complete, &mut self.complete[start..]);
        if let Payload::Bits { any, .. } = payload {
            self.evidence |= any != 0;
            from_bits(any, &mut self.committed[start..]);
        }
        Ok(word)
    }

    /// The shards whose home this rank is.
    fn homed(&self, candidate: &Candidate) -> impl Iterator<Item = Rank> + use<> {
        let identity = self.engine.identity();
        homed(identity.rank, candidate.group_size, identity.size).map(Rank)
    }

    /// The home of a shard of the candidate at this place in the window.
    fn home(&self, place: u8, shard: Rank) -> Option<Rank> {
        let candidate = self.known.get(self.window + usize::from(place))?;
        (shard.0 < candidate.group_size).then(|| home(shard, candidate.group_size, self.engine.identity().size))
    }

    /// Has all ranks tell the homes of shards who holds them and, where that is not enough, who holds other items of their redundancy sets.
    /// From here on, answers requests for what this rank holds.
    fn gather(&mut self) -> Result<Word, RestartError> {
        let served = self.found.held.iter().flat_map(|(candidate, items)| {
            let key = candidate.key;
            items.iter().map(move |(item, held)| ((key, *item), held.sources.clone()))
        });
        let served = served.map(|((key, item), sources)| ((self.name.clone(), key, item), sources));
        self.engine.server().serve(served);
        self.gathered = true;
        self.tell("shards", self.shards_held())?;
        let (start, view) = (self.window, self.root_view());
        let sought = self.sought();
        let (verdict, _) =
            self.reduce(self.ballot("gather", sought), move |ballot| view.decide_gather(ballot, start, true))?;
        let (mut word, mut complete): (Word, u64) = self.decode(&verdict)?;
        if let Word::Seek(spans) = word {
            self.tell("sets", self.parts_held(&spans))?;
            let view = self.root_view();
            let lacking = Payload::spans(self.lacking());
            let (verdict, _) =
                self.reduce(self.ballot("sets", lacking), move |ballot| view.decide_gather(ballot, start, false))?;
            (word, complete) = self.decode(&verdict)?;
        }
        from_bits(complete, &mut self.complete[start..]);
        Ok(word)
    }

    /// The candidates in the window, with what this rank has found of them.
    fn found_of_window(&self) -> impl Iterator<Item = (u8, &Candidate, &BTreeMap<Item, Held>)> {
        let window = self.known[self.window..].iter().zip(0u8..);
        window.filter_map(|(candidate, place)| Some((place, candidate, self.found.held.get(candidate)?)))
    }

    fn holding(&self, candidate: u8, item: Item, held: &Held) -> Option<Holding> {
        let bytes = held.sources.first()?.head().header.total_len;
        Some(Holding { candidate, item, holder: self.engine.identity().rank, bytes, set: held.set.clone() })
    }

    /// The shards that this rank holds, for their homes.
    fn shards_held(&self) -> BTreeMap<Rank, Vec<Holding>> {
        let mut to_homes: BTreeMap<Rank, Vec<Holding>> = BTreeMap::new();
        for (place, _, items) in self.found_of_window() {
            for (item, held) in items {
                let Item::Shard(shard) = *item else { continue };
                if let (Some(home), Some(holding)) = (self.home(place, shard), self.holding(place, *item, held)) {
                    to_homes.entry(home).or_default().push(holding);
                }
            }
        }
        to_homes
    }

    /// The parity parts that this rank holds of the redundancy sets of these shards, for the homes of the shards.
    fn parts_held(&self, sought: &[Span]) -> BTreeMap<Rank, Vec<Holding>> {
        let mut to_homes: BTreeMap<Rank, Vec<Holding>> = BTreeMap::new();
        for (place, _, items) in self.found_of_window() {
            for (item, held) in items {
                let (Item::Part(_), Some(set)) = (*item, &held.set) else { continue };
                let is_sought = |shard: &Rank| {
                    let is_in =
                        |span: &Span| span.kind == u16::from(place) && (span.first..=span.last).contains(&shard.0);
                    sought.iter().any(is_in)
                };
                let homes = set.members.iter().filter(|(member, _)| is_sought(member));
                let homes: BTreeSet<Rank> = homes.filter_map(|(member, _)| self.home(place, *member)).collect();
                let Some(holding) = self.holding(place, *item, held) else { continue };
                homes.into_iter().for_each(|home| to_homes.entry(home).or_default().push(holding.clone()));
            }
        }
        to_homes
    }

    /// Sends holdings to homes, and takes what others send.
    fn tell(&mut self, what: &str, to_homes: BTreeMap<Rank, Vec<Holding>>) -> Result<(), RestartError> {
        let mut first = Vec::new();
        for (to, holdings) in to_homes {
            for some in holdings.chunks(HOLDINGS_MAX) {
                first.push((to, encoded(&Message::Held(some.to_vec()))?));
            }
        }
        let ballot = self.ballot(what, Payload::None);
        let engine = self.engine.clone();
        let mut on_post = |from: Rank, bytes: &[u8]| self.on_message(from, bytes).map_err(|why| why.to_string());
        let decide = |ballot: &Ballot| Outcome::unless_culprits(ballot, |_| (Outcome::Agreed, Vec::new()));
        let vote = Box::new(|_| ballot);
        let exchange =
            Exchange { next: &mut all_at_once(first), on_post: &mut on_post, vote, decide: Box::new(decide) };
        agreed(engine.exchange(exchange)).map(drop)
    }

    /// Handles what a home is told or asked.
    fn on_message(&mut self, from: Rank, bytes: &[u8]) -> Result<Handled, FormatError> {
        let mut onward = Vec::new();
        match codec::decode("message", bytes)? {
            Message::Held(holdings) => {
                for holding in holdings {
                    let members = holding.set.iter().flat_map(|set| set.members.clone());
                    for (member, _) in members {
                        // The member's shard is needed to rebuild another one, and its home may be another rank.
                        let home = self
                            .home(holding.candidate, member)
                            .filter(|_| self.asked.insert((holding.candidate, member)));
                        if let Some(home) = home {
                            let message = Message::Who(holding.candidate, member);
                            onward.push((home, codec::encode("message", &message)?));
                        }
                    }
                    self.holdings.insert(holding);
                }
            }
            Message::Who(place, shard) => {
                let known =
                    self.holdings.iter().filter(|known| (known.candidate, known.item) == (place, Item::Shard(shard)));
                let message = Message::Held(known.cloned().collect());
                onward.push((from, codec::encode("message", &message)?));
            }
        }
        Ok(Handled { answer: Vec::new(), onward })
    }

    /// The shards whose home this rank is that, as far as it knows, no rank holds and that cannot be rebuilt.
    fn lacking(&self) -> Vec<(u16, u32)> {
        let mut lacking = Vec::new();
        for (candidate, place) in self.known[self.window..].iter().zip(0u8..) {
            let table = Table::of(&self.holdings, place);
            let lost = self.homed(candidate).filter(|shard| !table.has(*shard));
            lacking.extend(lost.map(|shard| (u16::from(place), shard.0)));
        }
        lacking
    }

    /// The shards of [`lacking`](Self::lacking), and those of a distrusted candidate whose home this rank is.
    fn sought(&self) -> Payload {
        let mut sought = self.lacking();
        let place = self.known[self.window..].iter().position(|known| Some(*known) == self.distrusted);
        if let (Some(place), Some(candidate)) = (place, self.distrusted) {
            let kind = place as u16 | DISTRUSTED;
            sought.extend(self.homed(&candidate).map(|shard| (kind, shard.0)));
        }
        Payload::spans(sought)
    }

    fn take(&mut self, word: Word) -> Result<Option<Elected>, RestartError> {
        match word {
            Word::Try(elected) => {
                let Choice { candidate, manifests, left_behind } = *elected;
                let rank = self.engine.identity().rank;
                let place = self.known[self.window..].iter().position(|known| *known == candidate);
                let mut ways = BTreeMap::new();
                if let (Some(place), true) = (place, self.gathered) {
                    let table = Table::of(&self.holdings, place as u8);
                    // This includes shards of which this rank has copies, because these may turn out to be damaged.
                    ways.extend(self.homed(&candidate).map(|shard| (shard, table.alternatives(shard, rank))));
                }
                self.current = Some(candidate);
                log::info!("event=elected rank={rank} name={:?} {}", self.name, candidate.key);
                let (has_gathered, is_again) = (self.gathered, self.distrusted == Some(candidate));
                Ok(Some(Elected { candidate, manifests, left_behind, ways, has_gathered, is_again }))
            }
            Word::Done | Word::Nothing | Word::NextWindow | Word::Gather | Word::Seek(_) => Ok(None),
            Word::NothingRestorable(tried, damage, left_behind) => {
                Err(RestartError::NothingRestorable { tried, damage, left_behind: left_behind as usize })
            }
            Word::NoSuchVersion(present) => {
                let version = if let Want::Version(version) = self.want { version } else { 0 };
                Err(RestartError::NoSuchVersion { version, present })
            }
        }
    }

    fn ballot(&self, step: &str, payload: Payload) -> Ballot {
        self.engine.ballot(&format!("restart {:?} {:?}: {step}", self.name, self.want), payload)
    }

    fn reduce(
        &self,
        ballot: Ballot,
        decide: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send + 'static,
    ) -> Result<(Vec<u8>, Payload), RestartError> {
        let verdict = agreed(self.engine.collective(ballot, Box::new(decide)))?;
        Ok((verdict.decision, verdict.payload))
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, decision: &[u8]) -> Result<T, RestartError> {
        codec::decode("decision", decision).map_err(|error| RestartError::Session { reason: error.to_string() })
    }

    /// The data that the root's decisions need, to be moved into the closure that decides. (On other ranks, that closure is never called.)
    fn root_view(&mut self) -> RootView {
        RootView {
            want: self.want,
            known: self.known.clone(),
            complete: self.complete.clone(),
            committed: self.committed.clone(),
            manifests: self.found.manifests.clone().into_iter().collect(),
            evidence: self.evidence,
            damage: self.damage.clone(),
            tried: self.tried.clone(),
            current: self.current,
            exhausted: self.exhausted,
            distrusted: self.distrusted,
            lost: Vec::new(),
        }
    }
}

/// What ranks tell each other about what they hold.
#[derive(Serialize, Deserialize)]
enum Message {
    /// The sender, or a rank of which it has been told, holds these items.
    Held(Vec<Holding>),
    /// Who holds the shard of that rank, of the candidate at that place in the window?
    Who(u8, Rank),
}

/// The maximum number of holdings in one message.
const HOLDINGS_MAX: usize = 1024;

fn encoded(message: &Message) -> Result<Vec<u8>, RestartError> {
    codec::encode("message", message).map_err(|error| RestartError::Session { reason: error.to_string() })
}

/// A verdict that all ranks agreed on, or the error that the restart ends with.
fn agreed(verdict: Result<Verdict, String>) -> Result<Verdict, RestartError> {
    let verdict = verdict.map_err(|reason| RestartError::Session { reason })?;
    match verdict.outcome {
        Outcome::Agreed => Ok(verdict),
        Outcome::Abandoned(culprits) => Err(RestartError::Refused { culprits }),
        Outcome::Unknown => Err(RestartError::Session { reason: "the root did not answer".into() }),
    }
}

/// What later checkpoints name as their origin, after a restart that ended with operation `restart`.
pub fn origin_of(elected: &Elected, restart: u64) -> Origin {
    let CheckpointKey { generation, version, operation, .. } = elected.candidate.key;
    Origin { generation, version, operation, restart }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Generation;

    #[test]
    fn what_comes_later_names_what_was_restored_and_the_restart() {
        let key = CheckpointKey { generation: Generation(3), version: 7, operation: 7, ..CheckpointKey::default() };
        let candidate = Candidate { key, agreement: 1, group_size: 4, origin: None };
        let elected = Elected {
            candidate,
            manifests: Vec::new(),
            left_behind: false,
            ways: BTreeMap::new(),
            has_gathered: false,
            is_again: false,
        };
        let origin = Origin { generation: Generation(3), version: 7, operation: 7, restart: 12 };
        assert_eq!(origin_of(&elected, 12), origin);
    }
}
