//! The calls from `Checkpoint_begin` to `Checkpoint_end`, and the outcome of a checkpoint.

use super::choice::{self, Mode};
use super::names;
use super::state::{Phase, State, sizes};
use crate::arguments::BVK_U8;
use crate::checkpoint::{begin, finish};
use crate::regions::Region;
use crate::status::{BVK_ERR_NOT_COMMITTED, Failure, Outcome};
use bivouac_core::base::Level;
use bivouac_core::base::units::page_ceil;
use bivouac_core::coordination::Payload;
use bivouac_core::format::ElementType;
use bivouac_core::region::{self, ReadBlocks};
use bivouac_core::session::{CheckpointBuilder, Pending};
use bivouac_core::tier::routed;
use bivouac_core::transfer::LevelVerdict;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::PathBuf;

/// The maximum number of verdicts that are kept for checkpoints for which nobody has waited. Older verdicts are only in the log.
const PENDING_MAX: usize = 64;

/// A checkpoint that was begun.
pub(super) struct Begun {
    name: String,
    pub(super) series: String,
    pub(super) version: u64,
    /// `None` for an announced version, which goes to a history.
    checkpoint: Option<Box<CheckpointBuilder<'static>>>,
    parts: BTreeMap<String, Part>,
    /// Files that the application itself writes, by the names that it gave them.
    files: BTreeMap<String, PathBuf>,
    failed: Option<String>,
}

/// A region of a checkpoint.
enum Part {
    /// The application's memory, until the checkpoint is captured.
    Lent(Region),
    /// The checkpoint holds the bytes as they were in the call that chose them.
    Held,
    /// A copy of the bytes as they were in the call that chose them, for an announced version.
    Copied(Vec<u8>),
}

impl Begun {
    /// Notes why there will be no capture.
    fn fail(&mut self, text: String) -> Failure {
        self.failed.get_or_insert(text.clone());
        Failure::state(text)
    }
}

impl State {
    /// Begins a checkpoint. If it cannot be begun, this rank votes no.
    pub(super) fn begin(&mut self, name: Outcome<&str>, version: c_int) -> Outcome<()> {
        self.check_idle()?;
        let checked = name.and_then(|name| names::checkpoint(name, version).map_err(Failure::argument));
        let (name, series, version) = match checked {
            Ok(checked) => checked,
            Err(failure) => {
                // No series has this name. The call tells the other ranks that this one refuses.
                drop(self.open.session.begin_checkpoint("", 0));
                return Err(failure);
            }
        };
        // A program that takes a checkpoint restores no older one, so the memory is freed for the new one.
        self.kept = None;
        // From here on, the other ranks are told about any failure.
        let checkpoint = match self.ahead.takes(version) {
            true => None,
            false => {
                let mut checkpoint = begin(&self.open, &series, version)?;
                checkpoint.let_time_pass();
                Some(Box::new(checkpoint))
            }
        };
        let (name, parts, files) = (name.to_owned(), BTreeMap::new(), BTreeMap::new());
        self.phase = Phase::Checkpoint(Begun { name, series, version, checkpoint, parts, files, failed: None });
        Ok(())
    }

    fn begun(&mut self) -> Outcome<&mut Begun> {
        match &mut self.phase {
            Phase::Checkpoint(begun) => Ok(begun),
            _ => Err(Failure::state("no checkpoint is open: call VELOC_Checkpoint_begin first")),
        }
    }

    /// Adds protected regions. With `copies`, regions in host memory are copied now, because the application may
    /// change them before the end.
    ///
    /// # Safety
    /// Protected regions are readable; if `copies` is false, until the end.
    pub(super) unsafe fn choose(&mut self, mode: Result<Mode, String>, ids: &[c_int], copies: bool) -> Outcome<()> {
        let name = self.begun()?.name.clone();
        let (regions, files) = (self.regions(&name), self.routed);
        let chosen = mode.and_then(|mode| choice::saved(mode, ids, &sizes(&regions)));
        // VELOC also refuses an empty selection: a checkpoint without regions would be the newest one.
        let nothing = "no memory region is selected: call VELOC_Mem_protect first, or use VELOC_Route_file without VELOC_Checkpoint_mem";
        let chosen = chosen.and_then(|chosen| if chosen.is_empty() { Err(nothing.to_owned()) } else { Ok(chosen) });
        let begun = self.begun()?;
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(text) => {
                begun.failed.get_or_insert(text.clone());
                return Err(Failure::argument(text));
            }
        };
        // The routed files at the end may be as large as those of the earlier checkpoint that had most.
        let (mut held, mut room) = (Vec::new(), files);
        for (name, region) in regions {
            let is_copied = copies && region.gpu().is_none();
            let part = match (chosen.contains(&name), is_copied, &begun.checkpoint) {
                (true, true, Some(_)) => {
                    held.push(region);
                    Part::Held
                }
                (true, true, None) => {
                    // SAFETY: as the caller says.
                    let copied = copy_of(unsafe { region.host() });
                    Part::Copied(copied.map_err(|why| begun.fail(format!("region {name} cannot be copied: {why}")))?)
                }
                (true, false, _) => {
                    room += page_ceil(region.bytes() as u64);
                    Part::Lent(region)
                }
                // A later call may choose the region.
                (false, ..) => {
                    room += page_ceil(region.bytes() as u64);
                    continue;
                }
            };
            begun.parts.insert(name, part);
        }
        if let (Some(checkpoint), false) = (&mut begun.checkpoint, held.is_empty()) {
            // SAFETY: as the caller says.
            let saved = held.iter().map(|region| unsafe { region.saved(None) }).collect::<Outcome<Vec<_>>>();
            let done = saved.and_then(|saved| checkpoint.hold(saved, room).map_err(Failure::from));
            done.inspect_err(|failure| _ = begun.failed.get_or_insert(failure.text.clone()))?;
        }
        Ok(())
    }

    /// The path at which the application is to write a file that is part of the checkpoint.
    pub(super) fn route(&mut self, original: &str) -> Outcome<PathBuf> {
        let begun = self.begun()?;
        if let Some(path) = begun.files.get(original) {
            // A repeated call returns the same path, so what was written there is kept.
            return Ok(path.clone());
        }
        let (series, version) = (begun.series.clone(), begun.version);
        if self.ahead.takes(version) {
            let text = format!("version {version} was announced, so it can hold only memory, not routed files");
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

    /// Captures a checkpoint that was begun, or gives it up. `is_good` is the application's verdict.
    ///
    /// # Safety
    /// Protected regions are readable.
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
        let Begun { series, version, mut checkpoint, parts, files, mut failed, .. } = begun;
        let mut routed = 0;
        for (original, path) in files.iter().filter(|_| is_good) {
            // Announced versions have no checkpoint.
            let Some(checkpoint) = &mut checkpoint else { continue };
            let content = routed::content(path).inspect(|content| routed += page_ceil(content.bytes()));
            let saved = content.and_then(|content| {
                let saved = region::kept_array(&names::file_region(original), ElementType::U8, content);
                saved.map_err(|error| error.to_string())
            });
            if let Err(text) = saved.and_then(|saved| checkpoint.add(saved).map_err(|error| error.to_string())) {
                failed.get_or_insert(text);
            }
        }
        self.routed = self.routed.max(routed);
        let described = parts.iter().filter_map(|(name, part)| match part {
            Part::Lent(region) => Some(Ok(region.clone())),
            Part::Held => None,
            Part::Copied(bytes) => Some(Region::new(name, bytes.as_ptr().cast(), BVK_U8, &[bytes.len() as u64])),
        });
        let regions = described.collect::<Outcome<Vec<Region>>>();
        let regions = match (is_good, failed, regions) {
            (true, None, Ok(regions)) => Ok(regions),
            (_, failed, regions) => Err(failed.map(Failure::state).or(regions.err()).filter(|_| is_good)),
        };
        let Some(checkpoint) = checkpoint else {
            // SAFETY: as the caller says; `parts` outlives the call.
            return unsafe { self.append(&series, version, regions) };
        };
        let regions = match regions {
            Ok(regions) => regions,
            // Dropping the checkpoint makes this rank vote no.
            Err(failure) => return failure.map_or(Ok(()), Err),
        };
        // SAFETY: as above.
        let pending = unsafe { finish(&mut self.open, *checkpoint, &regions, &[]) }?;
        // Whatever was known about a version with this number concerned another version.
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

    /// Appends an announced version on all ranks or on none. An error in place of the regions says why this rank has none; `None` means
    /// that the application has given the version up.
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

    /// Gives up a checkpoint that was begun, and tells the other ranks.
    pub(super) fn give_up(&self, begun: Begun) {
        if begun.checkpoint.is_none() {
            drop(self.open.session.begin_checkpoint(&begun.series, begun.version));
        }
        if !begun.files.is_empty() {
            self.file_folder(&begun.series, begun.version).remove();
        }
    }

    /// Waits for all captured checkpoints.
    pub(super) fn wait(&mut self) -> Outcome<()> {
        let outcomes: Vec<Outcome<()>> = std::mem::take(&mut self.pending).iter().map(settle).collect();
        outcomes.into_iter().collect()
    }

    /// Are all captured checkpoints finished?
    pub(super) fn is_finished(&self) -> bool {
        // All pending checkpoints are polled, because polling advances them.
        self.pending.iter().filter(|pending| !pending.poll()).count() == 0
    }
}

/// A copy of the bytes, if there is memory for it.
fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, std::collections::TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Waits until a checkpoint has reached the highest level that it can.
///
/// # Errors
/// The checkpoint has reached no level, or it has missed a level that the configuration promises, above the highest that it has reached.
fn settle(pending: &Pending) -> Outcome<()> {
    // The levels are tried from the highest down. A level that was not planned, or has failed, is not waited for.
    let levels = [Level::System, Level::NodeLoss, Level::NodeReboot, Level::Process];
    let reached = levels.into_iter().find_map(|level| pending.wait(level).ok());
    if reached.is_some() && failure_of(pending).is_none() {
        return Ok(());
    }
    let verdicts = pending.verdicts();
    let failed = verdicts.iter().filter_map(|(level, verdict)| Some(format!("{level} {}", verdict.reason()?)));
    let failed: Vec<String> = failed.collect();
    Err(Failure::new(
        BVK_ERR_NOT_COMMITTED,
        format!("version {} was not saved at the planned level: {}", pending.version(), failed.join("; ")),
    ))
}

/// The highest level that failed, if it is above the highest level that was reached.
pub(super) fn failure_of(pending: &Pending) -> Option<Level> {
    let reached = pending.level();
    let verdicts = pending.verdicts();
    let failed = verdicts.iter().filter(|(_, verdict)| *verdict != LevelVerdict::Committed).map(|(level, _)| *level);
    failed.max().filter(|failed| *failed > reached || reached == Level::Captured)
}
