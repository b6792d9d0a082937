//! A captured checkpoint on its way down the tiers.
#![forbid(unsafe_code)]

use super::error::{Error, Result};
use crate::base::Level;
use crate::base::sync::{Guard, Lock};
use crate::transfer::{Engine, LevelVerdict, Progress, Waited};
use std::sync::Arc;
use std::time::Duration;

/// A captured checkpoint on its way down the tiers. Dropping it changes nothing.
pub struct Pending {
    pub(super) engine: Arc<Engine>,
    pub(super) progress: Arc<Lock<Progress>>,
    pub(super) name: String,
    pub(super) version: u64,
}

impl Pending {
    /// The version.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn progress(&self) -> Guard<'_, Progress> {
        self.progress.lock()
    }

    /// The highest level that all ranks have reached, as far as this rank knows.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn level(&self) -> Level {
        self.progress().level()
    }

    /// Exchanges coordination messages. Returns true once each level of this checkpoint has been reached or given up.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn poll(&self) -> bool {
        self.engine.reporter().beat();
        self.engine.pump();
        self.progress().finished
    }

    /// The verdicts so far, in the order in which they arrived.
    pub fn verdicts(&self) -> Vec<(Level, LevelVerdict)> {
        self.progress().verdicts()
    }

    /// Waits until the checkpoint is committed at `level` or a higher one, and returns that level.
    ///
    /// # Collective
    /// Local, but returns only when all ranks have done their part.
    ///
    /// # Blocking
    /// For the slowest rank, at most until the root gives up on the level (`timeouts.abandon`).
    ///
    /// # Errors
    /// [`Error::NotCommitted`] as soon as it is known that the level will not be reached.
    pub fn wait(&self, level: Level) -> Result<Level> {
        self.engine.reporter().beat();
        let _waiting = self.engine.waiting.begin();
        loop {
            let seen = self.engine.seen();
            let waited = self.progress().waited(level);
            match waited {
                Waited::Reached(reached) => return Ok(reached),
                Waited::Failed(mut verdicts) => {
                    verdicts.extend(self.engine.lost_at(level));
                    let (name, version) = (self.name.clone(), self.version);
                    return Err(Error::NotCommitted { name, version, level, verdicts });
                }
                Waited::Open => {
                    if !self.engine.pump() {
                        self.engine.pause(seen, Duration::from_micros(50));
                    }
                }
            }
        }
    }
}
