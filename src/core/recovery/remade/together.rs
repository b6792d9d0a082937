//! What all ranks do together in an attempt, and how a step ends in the same way on all of them.

use super::super::load_error::LoadError;
use crate::base::log;
use crate::base::{CheckpointKey, Rank};
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Verdict};
use crate::format::codec;
use crate::transfer::Engine;
use crate::transfer::posting::{Exchange, NextPost, OnPost};

/// The decision on a round of an attempt that some ranks have already ended, while others have not or may not have: all end it now.
pub const ELSEWHERE: [u8; 1] = [2];

/// A step of an attempt.
pub struct Together<'r> {
    /// The engine that moves messages.
    pub engine: &'r Engine,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The region.
    pub region: &'r str,
}

impl Together<'_> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.engine.identity().rank
    }

    /// This rank's vote in a step.
    pub fn ballot(&self, step: &str, payload: Payload) -> Ballot {
        self.engine.ballot(&format!("load {:?} of {}: {step}", self.region, self.key), payload)
    }

    /// Adds a failure of this rank to its vote, if there is one.
    pub fn failed(&self, ballot: Ballot, failure: Option<&LoadError>) -> Ballot {
        match failure {
            Some(error) => ballot.failed(self.rank(), error.why(self.rank()), error.is_damage()),
            None => ballot,
        }
    }

    /// Exchanges posts; `agreed` is the root's decision if no rank objects.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks.
    pub fn exchange<'x>(
        &'x self,
        next: &'x mut NextPost<'x>,
        on_post: &'x mut OnPost<'x>,
        vote: impl FnOnce(Vec<Vec<u8>>) -> Ballot + 'x,
        agreed: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send + 'static,
    ) -> Result<Verdict, LoadError> {
        let decide = |ballot: &Ballot| unless_culprits(ballot, agreed);
        self.heard(self.engine.exchange(Exchange { next, on_post, vote: Box::new(vote), decide: Box::new(decide) }))
    }

    /// Votes; `agreed` is the root's decision if no rank objects.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks.
    pub fn vote(
        &self,
        ballot: Ballot,
        agreed: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send + 'static,
    ) -> Result<Verdict, LoadError> {
        self.heard(self.engine.collective(ballot, Box::new(|ballot| unless_culprits(ballot, agreed))))
    }

    /// Checks that every rank has received what it wanted. This rank received `got` of the `wanted` bytes, or has failed.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks.
    pub fn close(&self, wanted: u64, got: u64, failure: Option<&LoadError>) -> Result<(), LoadError> {
        let ballot = self.ballot("close", Payload::None).with_sums(vec![(0, wanted), (1, got)]);
        let ballot = match (failure, got == wanted) {
            (Some(_), _) => self.failed(ballot, failure),
            (None, true) => ballot,
            (None, false) => {
                ballot.failed(self.rank(), format!("got {got} of {wanted} bytes of region {:?}", self.region), false)
            }
        };
        let verdict = self.vote(ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        if self.engine.is_root() {
            let sums: Vec<(u64, u64)> = self.decode(&verdict)?;
            let bytes = sums.first().map_or(0, |(_, sum)| *sum);
            log::info!("event=covered region={:?} {} bytes={bytes}", self.region, self.key);
        }
        Ok(())
    }

    fn heard(&self, verdict: Result<Verdict, String>) -> Result<Verdict, LoadError> {
        let verdict = verdict.map_err(|reason| self.of_this_rank(reason))?;
        match verdict.outcome {
            Outcome::Agreed => Ok(verdict),
            Outcome::Abandoned(culprits) => {
                Err(LoadError::Others { key: self.key, region: self.region.into(), culprits })
            }
            Outcome::Unknown => Err(self.of_this_rank("the root did not answer".into())),
        }
    }

    /// Decodes what the root has decided.
    ///
    /// # Errors
    /// [`LoadError::Others`] if the decision cannot be decoded.
    pub fn decode<T: serde::de::DeserializeOwned>(&self, verdict: &Verdict) -> Result<T, LoadError> {
        codec::decode("decision", &verdict.decision).map_err(|error| self.of_this_rank(error.to_string()))
    }

    /// The error that the shards do not have what is wanted, which may be due to damage in their records. All ranks have heard of it.
    pub fn unmatched(&self, what: String, is_damage: bool) -> LoadError {
        LoadError::Unmatched { key: self.key, region: self.region.into(), what, is_damage }
    }

    /// The error of this rank when it cannot continue.
    pub fn of_this_rank(&self, why: String) -> LoadError {
        let culprits = vec![Culprit::of(self.rank(), why)];
        LoadError::Others { key: self.key, region: self.region.into(), culprits }
    }
}

/// The decision that all ranks agree, and nothing else.
pub fn plainly(_: &Ballot) -> (Outcome, Vec<u8>) {
    (Outcome::Agreed, Vec::new())
}

fn unless_culprits(ballot: &Ballot, agreed: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>)) -> (Outcome, Vec<u8>) {
    match Outcome::unless_culprits(ballot, agreed) {
        (Outcome::Abandoned(culprits), _) => (Outcome::Abandoned(culprits), ELSEWHERE.to_vec()),
        decided => decided,
    }
}
