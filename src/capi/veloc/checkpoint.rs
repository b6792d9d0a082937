//! From `Checkpoint_begin` to `Checkpoint_end`, and what becomes of it.

use super::choice::{self, Mode};
use super::files;
use super::names;
use super::state::{Phase, State, sizes};
use crate::base::Level;
use crate::capi::arguments::BVK_U8;
use crate::capi::checkpoint::take;
use crate::capi::regions::Region;
use crate::capi::status::{BVK_ERR_NOT_COMMITTED, Failure, Outcome};
use crate::coordination::Payload;
use crate::session::Pending;
use crate::transfer::LevelVerdict;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::PathBuf;

/// Verdicts of checkpoints that nobody has waited for are forgotten beyond this number; the log has them.
const PENDING_MAX: usize = 64;

/// A checkpoint that was begun.
pub(super) struct Begun {
    name: String,
    series: String,
    version: u64,
    parts: BTreeMap<String, Part>,
    /// Files that the application writes itself, by the names that it gave.
    files: BTreeMap<String, PathBuf>,
    failed: Option<String>,
}

/// A region of a checkpoint.
enum Part {
    /// The application's memory, until the checkpoint is captured.
    Lent(Region),
    /// Bytes as they were in the call that chose them.
    Copied(Vec<u8>),
}

impl State {
    /// Begins a checkpoint. One that cannot be begun counts as a no of this rank.
    pub(super) fn begin(&mut self, name: Outcome<&str>, version: c_int) -> Outcome<()> {
        self.check_idle()?;
        let checked = name.and_then(|name| names::checkpoint(name, version).map_err(Failure::argument));
        let (name, series, version) = match checked {
            Ok(checked) => checked,
            Err(failure) => {
                // No series has this name: the others hear that this rank refuses.
                drop(self.open.session.checkpoint("", 0));
                return Err(failure);
            }
        };
        let (parts, files) = (BTreeMap::new(), BTreeMap::new());
        self.phase = Phase::Checkpoint(Begun { name: name.to_owned(), series, version, parts, files, failed: None });
        Ok(())
    }

    fn begun(&mut self) -> Outcome<&mut Begun> {
        match &mut self.phase {
            Phase::Checkpoint(begun) => Ok(begun),
            _ => Err(Failure::state("no checkpoint is open: VELOC_Checkpoint_begin comes first")),
        }
    }

    /// Adds protected regions. What lies in host memory is copied now if `copies`: the application may change it before the end.
    ///
    /// # Safety
    /// What was protected is readable; without `copies` until the end.
    pub(super) unsafe fn choose(&mut self, mode: Result<Mode, String>, ids: &[c_int], copies: bool) -> Outcome<()> {
        let name = self.begun()?.name.clone();
        let regions = self.regions(&name);
        let chosen = mode.and_then(|mode| choice::saved(mode, ids, &sizes(&regions)));
        let begun = self.begun()?;
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(text) => {
                begun.failed.get_or_insert(text.clone());
                return Err(Failure::argument(text));
            }
        };
        for (name, region) in regions.into_iter().filter(|(name, _)| chosen.contains(name)) {
            let part = match region.gpu().is_none() && copies {
                // SAFETY: as the caller says.
                true => match copy_of(unsafe { region.host() }) {
                    Ok(bytes) => Part::Copied(bytes),
                    Err(why) => {
                        let text = format!("region {name} cannot be copied: {why}");
                        begun.failed.get_or_insert(text.clone());
                        return Err(Failure::state(text));
                    }
                },
                false => Part::Lent(region),
            };
            begun.parts.insert(name, part);
        }
        Ok(())
    }

    /// Where the application writes a file that is part of the checkpoint.
    pub(super) fn route(&mut self, original: &str) -> Outcome<PathBuf> {
        let begun = self.begun()?;
        if let Some(path) = begun.files.get(original) {
            // Asked for again: what was written there stays.
            return Ok(path.clone());
        }
        let (series, version) = (begun.series.clone(), begun.version);
        if self.ahead.takes(version) {
            let text = format!("version {version} was announced: it holds memory only, and no routed file");
            self.begun()?.failed.get_or_insert(text.clone());
            return Err(Failure::argument(text));
        }
        let path = self.file_folder(&series, version).prepare(original);
        let begun = self.begun()?;
        match path {
            Ok(path) => {
                begun.files.insert(original.to_owned(), path.clone());
                Ok(path)
            }
            Err(text) => {
                begun.failed.get_or_insert(text.clone());
                Err(Failure::argument(text))
            }
        }
    }

    /// Captures what was begun, or gives it up: `is_good` is what the application says.
    ///
    /// # Safety
    /// What was protected is readable.
    pub(super) unsafe fn end(&mut self, is_good: bool) -> Outcome<()> {
        self.begun()?;
        let Phase::Checkpoint(begun) = std::mem::replace(&mut self.phase, Phase::Idle) else { return Ok(()) };
        let folder = (!begun.files.is_empty()).then(|| self.file_folder(&begun.series, begun.version));
        // SAFETY: as the caller says.
        let ended = unsafe { self.capture(begun, is_good) };
        if let Some(folder) = folder {
            folder.remove();
        }
        ended
    }

    /// # Safety
    /// As [`State::end`].
    unsafe fn capture(&mut self, begun: Begun, is_good: bool) -> Outcome<()> {
        let Begun { series, version, mut parts, files, mut failed, .. } = begun;
        for (original, path) in files.iter().filter(|_| is_good) {
            match files::content(path) {
                Ok(bytes) => _ = parts.insert(names::file_region(original), Part::Copied(bytes)),
                Err(text) => _ = failed.get_or_insert(text),
            }
        }
        let described = parts.iter().map(|(name, part)| match part {
            Part::Lent(region) => Ok(region.clone()),
            Part::Copied(bytes) => Region::new(name, bytes.as_ptr().cast(), BVK_U8, &[bytes.len() as u64]),
        });
        let regions = described.collect::<Outcome<Vec<Region>>>();
        let is_ahead = self.ahead.takes(version);
        let regions = match (is_good, failed, regions) {
            (true, None, Ok(regions)) => Ok(regions),
            (_, failed, regions) => Err(failed.map(Failure::state).or(regions.err()).filter(|_| is_good)),
        };
        if is_ahead {
            // SAFETY: as the caller says; `parts` outlives the call.
            return unsafe { self.append(&series, version, regions) };
        }
        let regions = match regions {
            Ok(regions) => regions,
            Err(failure) => {
                // Dropping it is this rank's no.
                drop(self.open.session.checkpoint(&series, version));
                return failure.map_or(Ok(()), Err);
            }
        };
        // SAFETY: as above.
        let pending = unsafe { take(&mut self.open, &series, version, &regions, &[]) }?;
        // What was found out about this version was about another one.
        let key = (series, version, self.open.session.generation());
        self.refused.remove(&key);
        self.verified.remove(&key);
        self.pending.retain(|older| !older.poll() || failure_of(older).is_some());
        if self.pending.len() >= PENDING_MAX {
            self.pending.remove(0);
        }
        if self.settings.is_sync {
            return settle(&pending);
        }
        self.pending.push(pending);
        Ok(())
    }

    /// Appends an announced version on all ranks, or it is there on none. Without regions: why this rank has none, `None` if the
    /// application says no.
    ///
    /// # Safety
    /// As [`State::end`].
    unsafe fn append(
        &mut self,
        series: &str,
        version: u64,
        regions: Result<Vec<Region>, Option<Failure>>,
    ) -> Outcome<()> {
        let appended = regions.and_then(|regions| {
            // SAFETY: as the caller says.
            unsafe { self.ahead.append(&mut self.open, version, &regions) }.map_err(Some)
        });
        let refusal = appended.as_ref().err().map(|failure| match failure {
            Some(failure) => failure.text.clone(),
            None => "the application gave it up".to_owned(),
        });
        let agreed = self.open.session.agree("announced version", Payload::None, refusal);
        match (appended, agreed) {
            (Ok(()), Ok(_)) => {
                self.ahead.appended(series, version);
                Ok(())
            }
            (Ok(()), Err(error)) => Err(error.into()),
            (Err(failure), _) => failure.map_or(Ok(()), Err),
        }
    }

    /// Gives up a checkpoint that was begun: the other ranks hear of it.
    pub(super) fn give_up(&self, begun: Begun) {
        drop(self.open.session.checkpoint(&begun.series, begun.version));
        if !begun.files.is_empty() {
            self.file_folder(&begun.series, begun.version).remove();
        }
    }

    /// Waits for all that was captured.
    pub(super) fn wait(&mut self) -> Outcome<()> {
        let outcomes: Vec<Outcome<()>> = std::mem::take(&mut self.pending).iter().map(settle).collect();
        outcomes.into_iter().collect()
    }

    /// Has all that was captured come to an end?
    pub(super) fn is_finished(&self) -> bool {
        // All are polled: that moves them along.
        self.pending.iter().filter(|pending| !pending.poll()).count() == 0
    }
}

/// The bytes once more, if there is memory for them.
fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, std::collections::TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Waits until a checkpoint is as safe as it is going to be.
///
/// # Errors
/// It is nowhere, or a level was not reached that is higher than what was: what the configuration promises is not there.
fn settle(pending: &Pending) -> Outcome<()> {
    // From the highest level down: one that was not planned, or has failed, is not waited for.
    let levels = [Level::System, Level::NodeLoss, Level::NodeReboot, Level::Process];
    let reached = levels.into_iter().find_map(|level| pending.wait(level).ok());
    if reached.is_some() && failure_of(pending).is_none() {
        return Ok(());
    }
    let failed = pending.verdicts().into_iter().filter_map(|(level, verdict)| match verdict {
        LevelVerdict::Committed => None,
        LevelVerdict::Abandoned(culprits) => {
            let culprits: Vec<String> = culprits.iter().map(ToString::to_string).collect();
            Some(format!("{level}: {}", culprits.join(", ")))
        }
        LevelVerdict::Unknown(reason) => Some(format!("{level}: {reason}")),
    });
    let failed: Vec<String> = failed.collect();
    Err(Failure::new(
        BVK_ERR_NOT_COMMITTED,
        format!("version {} was not saved at the level that was planned: {}", pending.version(), failed.join("; ")),
    ))
}

/// A level that was not reached, if it is higher than the highest that was.
fn failure_of(pending: &Pending) -> Option<Level> {
    let reached = pending.level();
    let verdicts = pending.verdicts();
    let failed = verdicts.iter().filter(|(_, verdict)| *verdict != LevelVerdict::Committed).map(|(level, _)| *level);
    failed.max().filter(|failed| *failed > reached || reached == Level::Captured)
}
