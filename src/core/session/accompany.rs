//! The collective calls with which a session declares its companions and cuts them at a restart.
#![forbid(unsafe_code)]

use super::asking::ask;
use super::companions::{Companion, Companions, Kept, OnRestart, Plan};
use super::error::{Error, Result};
use super::session::Session;
use crate::coordination::{Outcome, Payload};
use crate::recovery::RestartError;
use crate::tier::names::is_component;
use std::path::Path;
use std::sync::Arc;

impl Session {
    /// Keeps an output file in agreement with the checkpoints of the series `series`. The program appends to this file, which may be a
    /// trajectory or a time series, for example. Each checkpoint records the length of the file at the capture, and a digest of its last
    /// 64 KiB. A restart brings the file back to that length, as `on_restart` says, so that what a run wrote after its last checkpoint is
    /// not in the file twice. Call this once, before the restart.
    ///
    /// The file must be complete when the checkpoint is captured: flush the program's own buffers first. If the file is shorter at a
    /// restart than it was at the capture, or if its bytes before the recorded length do not have the recorded digest, it does not agree
    /// with the version, and all ranks continue with the next older version. This happens if the end of the file was only in the page
    /// cache of a node that has died.
    ///
    /// If there is no checkpoint to restore, the file stays as it is: a program that starts from the beginning must truncate it itself.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, heat: &mut impl bivouac::Checkpoint, rank: i32) -> Result<(), Box<dyn std::error::Error>> {
    /// use bivouac::OnRestart;
    /// use std::fs::File;
    /// use std::io::Write;
    ///
    /// // The root writes it.
    /// let path = (rank == 0).then_some("energy.csv".as_ref());
    /// let energies = session.companion("heat", path, OnRestart::Truncate)?;
    /// let is_restored = session.restore("heat", heat)?.is_some();
    /// if let Some(path) = energies.path() {
    ///     let mut file = File::options().create(true).append(is_restored).write(true).truncate(!is_restored).open(path)?;
    ///     writeln!(file, "0.1,7.3")?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, with the same series and `on_restart`; ranks that do not write a file pass `None`. A file belongs to one rank.
    ///
    /// # Errors
    /// [`Error::Disagreed`], the same on all ranks: the arguments differ, `series` cannot be the name of a series, or a path is not that of
    /// a file.
    pub fn companion(&self, series: &str, path: Option<&Path>, on_restart: OnRestart) -> Result<Companion> {
        let absolute = path.map(std::path::absolute).transpose();
        let failure = match &absolute {
            _ if !is_component(series) => Some(format!("{series:?} cannot be the name of a series")),
            Err(error) => Some(format!("the path of a companion cannot be used: {error}")),
            Ok(Some(path)) if path.file_name().is_none() || path.is_dir() => {
                Some(format!("the companion {} is not a file", path.display()))
            }
            Ok(_) => None,
        };
        let mut ballot = self.engine.ballot(&format!("companion of {series:?}, {on_restart:?}"), Payload::None);
        if let Some(failure) = failure {
            ballot = ballot.failed(self.engine.identity().rank, failure, false);
        }
        ask(&self.engine, "companion", ballot, |_| (Outcome::Agreed, Vec::new()))?;
        let kept = path.zip(absolute.ok().flatten()).map(|(name, path)| Arc::new(Kept::new(name, on_restart, path)));
        self.companions.borrow_mut().entry(series.to_owned()).or_default().extend(kept.clone());
        Ok(Companion(kept))
    }

    /// The companions of a series; `None` if no rank has declared any.
    pub(super) fn companions_of(&self, series: &str) -> Option<Companions> {
        self.companions.borrow().get(series).cloned()
    }

    /// Carries out the plans of a restart. If a rank fails to do so, the call fails on all ranks.
    ///
    /// # Collective
    /// All ranks.
    pub(super) fn carry_out(&self, plans: Vec<Plan>) -> Result<()> {
        let failure = plans.iter().try_for_each(Plan::cut).err();
        match self.agree("companions", Payload::None, failure) {
            Err(Error::Disagreed { culprits, .. }) => return Err(RestartError::Refused { culprits }.into()),
            agreed => _ = agreed?,
        }
        plans.into_iter().for_each(Plan::settle);
        Ok(())
    }
}
