//! A rank's side: what it tells the root, and what it makes of the answers.

use super::super::discover::{Foreign, Found};
use super::error::{RestartError, Tried, Want, join};
use super::root::{Choice, RootView, Word, from_bits, to_bits};
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Origin};
use crate::catalog::{Candidate, WINDOW, restorable};
use crate::coordination::{Ballot, Culprit, Outcome, Payload};
use crate::format::{Manifest, codec};
use crate::redundancy::holding::{Alternative, Holding, Item};
use crate::redundancy::stripes::SetInfo;
use crate::tier::TierId;
use crate::tier::source::Source;
use crate::transfer::Engine;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A candidate to attempt, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Elected {
    /// Which checkpoint.
    pub candidate: Candidate,
    /// Its manifests on the tiers that all nodes share, nearest first.
    pub manifests: Vec<(TierId, Manifest)>,
    /// A later run had left it behind; it was asked for by name.
    pub left_behind: bool,
    /// This rank's ways to its shard that lead to other nodes.
    pub ways: Vec<Alternative>,
}

/// One restart, from the first look to the end.
pub struct Election {
    engine: Arc<Engine>,
    name: String,
    want: Want,
    found: Found,
    /// Everything looked at so far, newest first, and whether all ranks can restore it. The same on all ranks.
    known: Vec<Candidate>,
    complete: Vec<bool>,
    /// For each of them: some rank knows that it was committed.
    committed: Vec<bool>,
    /// Where in `known` the window begins that was looked at last.
    window: usize,
    /// Some rank knows it was committed, or found damage.
    evidence: bool,
    damage: Vec<Culprit>,
    tried: Vec<Tried>,
    current: Option<Candidate>,
    exhausted: bool,
    /// What the root knows of this window's holdings. Empty on other ranks.
    holdings: Arc<Lock<Vec<Holding>>>,
    /// This window's holdings have been gathered.
    gathered: bool,
}

impl Election {
    /// A restart of a series, with what this rank has found of it.
    pub fn new(engine: &Arc<Engine>, name: &str, want: Want, found: Found) -> Election {
        Election {
            engine: engine.clone(),
            name: name.into(),
            want,
            found,
            holdings: Arc::default(),
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
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Did the ranks look for shards on each other's nodes? The same on all ranks.
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
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`RestartError`], the same on all ranks.
    pub fn end(&mut self, failure: Option<(String, bool)>) -> Result<Option<Elected>, RestartError> {
        let mut ballot = self.ballot("end of an attempt", Payload::None);
        if let Some((text, retry)) = failure {
            ballot = ballot.failed(self.engine.identity().rank, text, retry);
        }
        let root = self.root_view();
        let (verdict, _) = self.reduce(ballot, move |ballot| root.decide_end(ballot))?;
        let (word, tried): (Word, Option<Tried>) = self.decode(&verdict)?;
        if let Some(tried) = tried {
            // All ranks hear the same: it is said once.
            let level = if self.engine.is_root() { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "event=attempt-failed {} culprits={:?}", tried.key, join(&tried.culprits));
            self.tried.push(tried);
        }
        match word {
            Word::Gather => match self.gather()? {
                Word::NextWindow => self.first(),
                word => self.take(word),
            },
            Word::NextWindow => self.first(),
            word => self.take(word),
        }
    }

    /// All complete versions that this election has looked at, newest first: key, and whether a later run left it behind.
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
        let (usable, left) = restorable(&self.known, &self.complete, self.engine.identity().size);
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
        self.known.extend(&window);
        self.complete.resize(self.known.len(), false);
        self.committed.resize(self.known.len(), false);
        Ok(())
    }

    fn vote(&mut self) -> Result<Word, RestartError> {
        let start = self.window;
        let (window, found) = (&self.known[start..], &self.found);
        let have = to_bits(window.iter().map(|candidate| found.copies.contains_key(candidate)));
        let committed = to_bits(window.iter().map(|candidate| found.committed.contains(candidate)));
        // What the global tier holds completely, every rank can restore; only the root knows, and adds it.
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

    /// Tells the root what this rank, and for what belongs to other nodes its node's first rank, holds of the window;
    /// and answers requests for it from here on.
    fn gather(&mut self) -> Result<Word, RestartError> {
        let identity = self.engine.identity();
        let rank = identity.rank;
        let window = self.known[self.window..].to_vec();
        let place = |candidate: &Candidate| window.iter().position(|known| known == candidate).map(|at| at as u8);
        let mut held: BTreeMap<(u8, Item), Held> = BTreeMap::new();
        let own = self.found.copies.iter().flat_map(|(candidate, copies)| {
            copies.iter().map(move |source| (candidate, Item::Shard(rank), &None, source))
        });
        let foreign = self.found.foreign.iter();
        let foreign = foreign.map(|Foreign { candidate, item, set, source }| (candidate, *item, set, source));
        for (candidate, item, set, source) in own.chain(foreign) {
            let Some(at) = place(candidate) else { continue };
            let new = || Held { key: candidate.key, set: set.clone(), sources: Vec::new() };
            held.entry((at, item)).or_insert_with(new).sources.push(source.clone());
        }
        let holdings = held.iter().map(|((at, item), held)| Holding {
            candidate: *at,
            item: *item,
            holder: rank,
            bytes: held.sources[0].head().header.total_len,
            set: held.set.clone(),
        });
        let ballot = match Payload::gathered(holdings) {
            Ok(holdings) => self.ballot("gather", holdings),
            Err(error) => self.engine.refusal(&error.to_string()),
        };
        self.engine
            .server()
            .serve(held.into_iter().map(|((_, item), held)| ((self.name.clone(), held.key, item), held.sources)));
        let (start, keep) = (self.window, self.holdings.clone());
        self.gathered = true;
        let root = self.root_view();
        let (verdict, _) = self.reduce(ballot, move |ballot| root.decide_gather(ballot, start, &keep))?;
        let (word, complete): (Word, u64) = self.decode(&verdict)?;
        from_bits(complete, &mut self.complete[start..]);
        Ok(word)
    }

    fn take(&mut self, word: Word) -> Result<Option<Elected>, RestartError> {
        match word {
            Word::Try(elected) => {
                let Choice { candidate, manifests, left_behind, ways } = *elected;
                let rank = self.engine.identity().rank;
                let ways = ways.into_iter().find(|(of, _)| *of == rank).map_or_else(Vec::new, |(_, ways)| ways);
                self.current = Some(candidate);
                log::info!("event=elected rank={} name={:?} {}", self.engine.identity().rank, self.name, candidate.key);
                Ok(Some(Elected { candidate, manifests, left_behind, ways }))
            }
            Word::Done | Word::Nothing | Word::NextWindow | Word::Gather => Ok(None),
            Word::NothingRestorable(tried, damage, left_behind) => {
                Err(RestartError::NothingRestorable { tried, damage, left_behind: left_behind as usize })
            }
            Word::GroupSize(found) => Err(RestartError::GroupSize { found, ours: self.engine.identity().size }),
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
        let verdict =
            self.engine.collective(ballot, Box::new(decide)).map_err(|reason| RestartError::Session { reason })?;
        match verdict.outcome {
            Outcome::Agreed => Ok((verdict.decision, verdict.payload)),
            Outcome::Abandoned(culprits) => Err(RestartError::Refused { culprits }),
            Outcome::Unknown => Err(RestartError::Session { reason: "the root did not answer".into() }),
        }
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, decision: &[u8]) -> Result<T, RestartError> {
        codec::decode("decision", decision).map_err(|error| RestartError::Session { reason: error.to_string() })
    }

    /// What the root's decisions need, moved into the closure that decides. (On other ranks it is never called.)
    fn root_view(&mut self) -> RootView {
        RootView {
            size: self.engine.identity().size,
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
            window: self.window,
            gathered: self.gathered,
            holdings: self.holdings.lock().clone(),
        }
    }
}

/// What this rank has of an item of a candidate: all its copies, nearest first.
struct Held {
    key: CheckpointKey,
    set: Option<SetInfo>,
    sources: Vec<Source>,
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
        let elected = Elected { candidate, manifests: Vec::new(), left_behind: false, ways: Vec::new() };
        let origin = Origin { generation: Generation(3), version: 7, operation: 7, restart: 12 };
        assert_eq!(origin_of(&elected, 12), origin);
    }
}
