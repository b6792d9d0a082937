//! Questions that a session asks all ranks, and their answers.
#![forbid(unsafe_code)]

use super::error::{Error, Result};
use crate::coordination::{Ballot, Outcome, Verdict};
use crate::format::codec;
use crate::transfer::Engine;
use serde::de::DeserializeOwned;

/// Casts this rank's vote and waits for the verdict. `agreed` is the root's decision if no rank objects.
///
/// # Collective
/// All ranks.
pub(super) fn ask(
    engine: &Engine,
    call: &'static str,
    ballot: Ballot,
    agreed: impl FnOnce(&Ballot) -> (Outcome, Vec<u8>) + Send + 'static,
) -> Result<Verdict> {
    heard(call, engine.collective(ballot, Box::new(|ballot| Outcome::unless_culprits(ballot, agreed))))
}

/// Returns a verdict on which all ranks agreed, or the error that the call reports.
pub(super) fn heard(call: &'static str, verdict: Result<Verdict, String>) -> Result<Verdict> {
    let verdict = verdict.map_err(|reason| Error::Failed { reason })?;
    match verdict.outcome {
        Outcome::Agreed => Ok(verdict),
        Outcome::Abandoned(culprits) => Err(Error::Disagreed { call, culprits }),
        Outcome::Unknown => Err(Error::Failed { reason: "the root did not answer".into() }),
    }
}

/// Decodes the root's decision.
pub(super) fn decoded<T: DeserializeOwned>(verdict: &Verdict) -> Result<T> {
    codec::decode("decision", &verdict.decision).map_err(|error| Error::Failed { reason: error.to_string() })
}
