//! The calls from `Restart_test` to `Restart_end`.
//!
//! The ranks agree in `Restart_begin` (on the checkpoint, and on the files in it), in `Recover_mem` and `Recover_selective`, and in
//! `Restart_end`. Each of these calls fails on all ranks or on none.

use super::choice::{self, Mode};
use super::names;
use super::old_files::{self, OldFile};
use super::state::{Key, Phase, State, sizes};
use crate::open::Open;
use crate::regions::Region;
use crate::restart::load_region;
use crate::status::{BVK_ERR_LOAD, BVK_ERR_RESTART, Failure, Outcome};
use bivouac_core::base::log;
use bivouac_core::coordination::Payload;
use bivouac_core::recovery::{Attempt, RestartError, Unloaded, Want};
use bivouac_core::session::{Error, Loaded, Restart, Session, UncountedEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::path::{Path, PathBuf};

/// A restart that is open.
pub(super) struct Restarting {
    name: String,
    series: String,
    version: u64,
    source: Source,
    /// The regions that are stored for this rank, with their lengths in bytes.
    stored: BTreeMap<String, u64>,
    /// Whether the restart has failed on all ranks.
    has_failed: bool,
}

/// The source of the data.
enum Source {
    /// A checkpoint of Bivouac's.
    Ours {
        generation: u64,
        /// The attempt, until the ranks have ended it together.
        attempt: Option<Box<Restart>>,
        /// The last result that the ranks have loaded. It counts if the restart ends well.
        loaded: Option<Box<Loaded>>,
        /// The files of the checkpoint, which were brought back to these paths.
        files: BTreeMap<String, PathBuf>,
    },
    /// A file that VELOC wrote.
    Old(OldFile),
    /// The history of announced versions.
    Ahead,
}

/// The newest version that all ranks can restore, judged by the versions that they have named.
enum Common {
    /// There is no such version: some rank has none left.
    None,
    /// It is not newer than this one.
    AtMost(u64),
    /// All ranks have named the same version. `is_unread`: some rank has yet to read it.
    All { is_unread: bool },
}

impl Restarting {
    /// Ends an open attempt without counting it.
    fn give_up(source: Source, session: &Session) {
        if let Source::Ours { attempt: Some(attempt), .. } = source {
            drop(attempt.end_uncounted(session, Some(Unloaded::Refused("the restart was given up".into()))));
        }
    }
}

/// Ends an attempt, and continues with the same checkpoint while the ranks find other copies of it. A version that
/// they then refuse is noted.
///
/// # Collective
/// All ranks.
fn complete(
    open: &mut Open,
    first: Restart,
    mut load: impl FnMut(&mut Open, &mut Attempt) -> Result<(), Unloaded>,
) -> Outcome<Box<Loaded>> {
    let mut attempt = first;
    let key = attempt.attempt().key();
    loop {
        let failure = load(open, attempt.attempt()).err();
        match attempt.end_uncounted(&open.session, failure)? {
            UncountedEnd::Loaded(loaded) => return Ok(loaded),
            UncountedEnd::Again(next) => attempt = *next,
        }
        if attempt.attempt().key() != key {
            // This checkpoint has the same number, but was taken earlier or by a run that was left behind. It is not
            // the one that was asked for.
            drop(
                attempt.end_uncounted(
                    &open.session,
                    Some(Unloaded::Refused("another checkpoint with that number".into())),
                ),
            );
            let text = format!("version {} cannot be restored: some ranks have no good copy of it", key.version);
            return Err(Failure::new(BVK_ERR_RESTART, text));
        }
    }
}

impl State {
    /// The newest version at or below `limit` that all ranks can restore, where 0 is no limit; `None` if there is none.
    pub(super) fn newest(&mut self, name: Outcome<&str>, limit: c_int) -> Outcome<Option<c_int>> {
        self.check_idle()?;
        let checked = name.and_then(|name| {
            let limit = names::version(limit).map_err(Failure::argument)?;
            Ok((name, names::series(name).map_err(Failure::argument)?, if limit == 0 { u64::MAX } else { limit }))
        });
        let (name, series, limit) = match checked {
            Ok(checked) => checked,
            Err(failure) => return Err(self.refuse(failure)),
        };
        // A version that does not fit into VELOC's numbers cannot be returned.
        let mut limit = limit.min(c_int::MAX as u64);
        let old = self.newest_old(name, &series, limit)?;
        loop {
            let key = self.newest_ours(&series, limit)?.filter(|key| old.is_none_or(|old| key.1 >= old));
            let is_unread = self.settings.verifies && key.as_ref().is_some_and(|key| !self.verified.contains(key));
            let found = self.common(key.as_ref().map(|key| key.1), is_unread)?;
            match (found, key) {
                (Common::None, _) | (_, None) => return Ok(old.and_then(|old| c_int::try_from(old).ok())),
                (Common::AtMost(version), _) => limit = version,
                (Common::All { is_unread }, Some(key)) => {
                    if !is_unread || self.verify(&key)? {
                        let version = c_int::try_from(key.1).ok();
                        self.verified.insert(key);
                        return Ok(version);
                    }
                }
            }
        }
    }

    /// The newest of Bivouac's versions at or below `limit` that this rank has not seen refused.
    fn newest_ours(&mut self, series: &str, limit: u64) -> Outcome<Option<Key>> {
        let listed = match self.open.session.versions(series) {
            Err(Error::Restart(refused @ RestartError::NothingRestorable { .. })) => {
                self.open
                    .session
                    .engine()
                    .note(format!("event=veloc-nothing-found name={series:?} reason={:?}", refused.to_string()));
                Vec::new()
            }
            listed => listed?,
        };
        let mut usable = listed.into_iter().filter(|info| !info.left_behind && info.version <= limit).peekable();
        let ranks = self.open.session.engine().identity().size;
        if let Some(other) = usable.next_if(|info| info.ranks != ranks) {
            // Going back to an older version would be a step that nobody asked for.
            let (version, then) = (other.version, other.ranks);
            self.open.session.engine().note(format!(
                "event=veloc-nothing-found name={series:?} reason=\"version {version} was taken by {then} ranks, and these are {ranks}: start it \
                 on as many, or remove that version\""
            ));
            return Ok(None);
        }
        let mut keys = usable.map(|info| (series.to_owned(), info.version, info.generation));
        Ok(keys.find(|key| !self.refused.contains(key)))
    }

    /// Finds what the ranks have in common. Each rank names its newest version, and whether it has yet to read that version. The oldest of
    /// these versions is the only one that all ranks can have.
    fn common(&self, newest: Option<u64>, is_unread: bool) -> Outcome<Common> {
        let newest = newest.map_or(0, |version| version + 1);
        let payload = Payload::Max(vec![newest, u64::MAX - newest, u64::from(is_unread)]);
        let Payload::Max(numbers) = self.open.session.agree("restart test", payload, None)? else {
            return Ok(Common::None);
        };
        let number = |at: usize| numbers.get(at).copied().unwrap_or_default();
        let (most, least) = (number(0), u64::MAX - number(1));
        Ok(match least.checked_sub(1) {
            None => Common::None,
            Some(_) if most == least => Common::All { is_unread: number(2) > 0 },
            Some(version) => Common::AtMost(version),
        })
    }

    /// Reads a checkpoint on all ranks. A damaged checkpoint is not offered again.
    fn verify(&mut self, key: &Key) -> Outcome<bool> {
        // The version that is read now will be restored next, so it stays in node memory if that has room without waiting.
        self.kept = None;
        let mut kept = None;
        let whole = |open: &mut Open, restorer: &mut Attempt| {
            kept = None;
            let (memory, share) = (open.session.engine().memory(), open.session.memory_share());
            // The memory is taken from this rank's share, of which the next checkpoint needs as much.
            let room = |bytes| memory.filter(|_| 2 * bytes <= share)?.reserve(bytes).ok().flatten();
            let copy = restorer.verify(room).map_err(|error| Unloaded::by(&error))?;
            kept = copy.map(|copy| (restorer.key(), copy));
            Ok(())
        };
        let gone = || Err(Failure::state("it is gone"));
        let outcome = match self.open.session.look(&key.0, Want::Version(key.1)) {
            Ok(Some(mut attempt)) => match attempt.attempt().generation() == key.2 {
                true => complete(&mut self.open, attempt, whole).map(drop),
                false => {
                    let other = "another run's version with that number was found";
                    drop(attempt.end_uncounted(&self.open.session, Some(Unloaded::Refused(other.into()))));
                    gone()
                }
            },
            Ok(None) => gone(),
            Err(error @ (Error::Failed { .. } | Error::Restart(RestartError::Session { .. }))) => {
                return Err(error.into());
            }
            Err(error) => Err(error.into()),
        };
        if outcome.is_ok() {
            self.kept = kept;
        }
        if let Err(failure) = &outcome {
            log::warn!("event=veloc-version-refused name={:?} version={} reason={:?}", key.0, key.1, failure.text);
            self.refused.insert(key.clone());
        }
        Ok(outcome.is_ok())
    }

    /// The newest version at or below `limit` that VELOC has written and that is complete on all ranks.
    fn newest_old(&mut self, name: &str, series: &str, limit: u64) -> Outcome<Option<u64>> {
        let folders = self.old_folders();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        let mut mine = old_files::versions(&folders, name, self.old_rank, self.old_ranks);
        mine.retain(|version| !self.refused_old.contains(&(series.to_owned(), *version)));
        let mut limit = limit;
        loop {
            let newest = mine.range(..=limit).next_back().copied();
            match self.common(newest, false)? {
                Common::None => return Ok(None),
                Common::All { .. } => return Ok(newest),
                Common::AtMost(version) => limit = version,
            }
        }
    }

    /// Refuses calls while a checkpoint or a restart is open. A restart that has failed is ended first.
    pub(super) fn check_idle(&mut self) -> Outcome<()> {
        let is_over = matches!(&self.phase, Phase::Restart(restarting) if restarting.has_failed);
        if is_over {
            self.leave_restart();
        }
        match &self.phase {
            Phase::Idle => Ok(()),
            _ => Err(Failure::state("a checkpoint or restart is open already: end it first")),
        }
    }

    /// Tells the other ranks that this one cannot take part in their call.
    fn refuse(&mut self, failure: Failure) -> Failure {
        // No series has this name, and the session refuses it together with all ranks.
        drop(self.open.session.versions(""));
        failure
    }

    /// Prevents a refused version from being offered again. `generation` is that of a checkpoint of Bivouac's. A VELOC file with the same
    /// number is not offered in its place, because a restart prefers Bivouac's checkpoint.
    fn refuse_version(&mut self, series: &str, version: u64, generation: Option<u64>) {
        self.refused_old.insert((series.to_owned(), version));
        if let Some(generation) = generation {
            self.refused.insert((series.to_owned(), version, generation));
        }
    }

    /// Begins a restart of one version.
    pub(super) fn begin_restart(&mut self, name: Outcome<&str>, version: c_int) -> Outcome<()> {
        self.check_idle()?;
        let checked = name.and_then(|name| names::checkpoint(name, version).map_err(Failure::argument));
        let (name, series, version) = match checked {
            Ok(checked) => checked,
            Err(failure) => return Err(self.refuse(failure)),
        };
        let (source, mut stored) = if self.ahead.has(&series, version) {
            let sizes = self.ahead.sizes(&self.open, version);
            let refusal = sizes.as_ref().err().map(|failure| failure.text.clone());
            let agreed = self.open.session.agree("restart begin", Payload::None, refusal);
            let sizes = sizes?;
            agreed?;
            (Source::Ahead, sizes)
        } else {
            match self.open.session.start_restore(&series, Want::Version(version)) {
                Ok(Some(attempt)) => self.begin_ours(&series, version, attempt)?,
                Ok(None) => self.begin_old(name, version, None)?,
                Err(error @ Error::Restart(RestartError::Session { .. } | RestartError::Refused { .. })) => {
                    return Err(error.into());
                }
                Err(Error::Restart(error)) => self.begin_old(name, version, Some(error))?,
                Err(error) => return Err(error.into()),
            }
        };
        // Files are routed, not loaded into protected memory.
        stored.retain(|name, _| names::parse_file(name).is_none());
        let name = name.to_owned();
        self.phase = Phase::Restart(Restarting { name, series, version, source, stored, has_failed: false });
        Ok(())
    }

    /// Finds what this rank's shard holds, and brings back the files of all ranks.
    fn begin_ours(&mut self, series: &str, version: u64, first: Restart) -> Outcome<(Source, BTreeMap<String, u64>)> {
        let mut attempt = first;
        self.prefer_kept(&mut attempt);
        let generation = attempt.attempt().generation();
        let folder = self.file_folder(series, version);
        let (mut stored, mut files) = (BTreeMap::new(), BTreeMap::new());
        let listed = list(attempt.attempt());
        let is_plain = matches!(&listed, Ok(listed) if listed.keys().all(|name| names::parse_file(name).is_none()));
        let mine = Payload::Bits { all: u64::from(is_plain), any: 0 };
        let agreed = self.open.session.agree("restart begin", mine, None)?;
        if matches!(agreed, Payload::Bits { all: 1, .. }) {
            stored.extend(listed.unwrap_or_default());
            let attempt = Some(Box::new(attempt));
            return Ok((Source::Ours { generation, attempt, loaded: None, files }, stored));
        }
        let brought = complete(&mut self.open, attempt, |_, restorer| {
            stored = list(restorer)?;
            for name in stored.keys() {
                let Some(original) = names::parse_file(name) else { continue };
                let path = restorer.bring_back(&folder, original, name).map_err(|error| Unloaded::by(&error))?;
                files.insert(original.to_owned(), path);
            }
            Ok(())
        });
        match brought {
            Ok(loaded) => Ok((Source::Ours { generation, attempt: None, loaded: Some(loaded), files }, stored)),
            Err(failure) => {
                folder.remove();
                self.refuse_version(series, version, Some(generation));
                Err(failure)
            }
        }
    }

    /// Begins with a version that VELOC wrote. `error` says why Bivouac has none.
    fn begin_old(
        &mut self,
        name: &str,
        version: u64,
        error: Option<RestartError>,
    ) -> Outcome<(Source, BTreeMap<String, u64>)> {
        let folders = self.old_folders();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        let found = old_files::find(&folders, name, self.old_rank, self.old_ranks, version);
        let has = u64::from(found.is_ok());
        let agreed = self.open.session.agree("restart begin", Payload::Bits { all: has, any: has }, None)?;
        let (Payload::Bits { all: 1, .. }, Ok(file)) = (agreed, found) else {
            let text = match error {
                Some(error) => error.to_string(),
                None => format!("there is no version {version} of {name:?}"),
            };
            return Err(Failure::new(BVK_ERR_RESTART, text));
        };
        let protected = self.regions(name);
        let place = |id| {
            let own = names::region(Some(name), id);
            let is_own = protected.contains_key(&own) && !protected.contains_key(&names::region(None, id));
            if is_own { own } else { names::region(None, id) }
        };
        let stored = file.regions().iter().map(|region| (place(region.id), region.bytes)).collect();
        Ok((Source::Old(file), stored))
    }

    /// Ends an open restart without counting it, and removes the files that were brought back.
    ///
    /// # Collective
    /// All ranks, if nothing has been loaded.
    pub(super) fn leave_restart(&mut self) {
        self.kept = None;
        let Ok(Restarting { series, version, source, .. }) = self.restarting() else { return };
        let has_files = matches!(&source, Source::Ours { files, .. } if !files.is_empty());
        Restarting::give_up(source, &self.open.session);
        if has_files {
            self.file_folder(&series, version).remove();
        }
    }

    fn restarting(&mut self) -> Outcome<Restarting> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Restart(restarting) => Ok(restarting),
            other => {
                self.phase = other;
                Err(Failure::state("no restart is open: call VELOC_Restart_begin first"))
            }
        }
    }

    /// The path at which the application reads a file that was part of the checkpoint.
    pub(super) fn routed(&mut self, original: &str) -> Outcome<PathBuf> {
        let Phase::Restart(Restarting { source: Source::Ours { files, .. }, .. }) = &self.phase else {
            return Err(Failure::state("no checkpoint or restart that has files is open"));
        };
        // Programs that route a single file need not use the same name for it.
        let only = files.values().next().filter(|_| files.len() == 1);
        let found = files.get(original).or(only);
        found.cloned().ok_or_else(|| Failure::new(BVK_ERR_LOAD, format!("the checkpoint has no file {original:?}")))
    }

    /// The length in bytes of a region in the version that is being restored.
    pub(super) fn size(&self, id: c_int) -> Outcome<u64> {
        let Phase::Restart(restarting) = &self.phase else {
            return Err(Failure::state("no restart is open: call VELOC_Restart_begin first"));
        };
        stored_bytes(&restarting.stored, &restarting.name, id)
    }

    /// The length in bytes of a region in an announced version, or in the version that is being restored.
    pub(super) fn size_of(&self, version: c_int, id: c_int) -> Outcome<u64> {
        let version = names::version(version).map_err(Failure::argument)?;
        if let Some(series) = self.ahead.series_of(version) {
            return stored_bytes(&self.ahead.sizes(&self.open, version)?, series, id);
        }
        match &self.phase {
            Phase::Restart(restarting) if restarting.version == version => self.size(id),
            _ => Err(Failure::argument(format!("version {version} was not announced, and is not being restored"))),
        }
    }

    /// Loads stored regions into protected ones, on all ranks or on none.
    ///
    /// # Safety
    /// Protected regions are writable, and nobody else uses them.
    pub(super) unsafe fn recover(&mut self, mode: Result<Mode, String>, ids: &[c_int]) -> Outcome<()> {
        let mut restarting = self.restarting()?;
        if restarting.has_failed {
            self.phase = Phase::Restart(restarting);
            return Err(Failure::state("this restart has already failed: begin another one"));
        }
        let regions = self.regions(&restarting.name);
        let chosen = mode.and_then(|mode| choice::loaded(mode, ids, &restarting.stored, &sizes(&regions)));
        let targets = chosen.map(|chosen| {
            let target = |(name, bytes): (String, u64)| {
                let region = regions.get(&name);
                region.map(|region| region.first(name, usize::try_from(bytes).unwrap_or(usize::MAX)))
            };
            chosen.into_iter().filter_map(target).collect::<Vec<Region>>()
        });
        // SAFETY: as the caller says.
        let loaded = unsafe { self.load(&mut restarting, targets) };
        if loaded.is_err() {
            restarting.has_failed = true;
            match restarting.source {
                Source::Ours { generation, .. } => {
                    self.refuse_version(&restarting.series, restarting.version, Some(generation));
                }
                Source::Old(_) => self.refuse_version(&restarting.series, restarting.version, None),
                Source::Ahead => {}
            }
        }
        self.phase = Phase::Restart(restarting);
        loaded
    }

    /// # Safety
    /// As [`State::recover`].
    unsafe fn load(&mut self, restarting: &mut Restarting, targets: Result<Vec<Region>, String>) -> Outcome<()> {
        let Restarting { series, version, source, .. } = restarting;
        match source {
            Source::Ours { generation, attempt, loaded, .. } => {
                let attempt = match attempt.take() {
                    Some(attempt) => *attempt,
                    None => self.again(series, *version, *generation)?,
                };
                let done = complete(&mut self.open, attempt, |open, restorer| {
                    let targets = targets.as_ref().map_err(|text| Unloaded::Refused(text.clone()))?;
                    for region in targets {
                        let Open { session, gpus, stream, .. } = open;
                        // SAFETY: as the caller says.
                        let loaded = unsafe { load_region(restorer, region, session, gpus, *stream) };
                        // If a device is gone, other copies cannot be loaded, either.
                        let loaded = loaded.map_err(|failure| Unloaded::Refused(failure.text))?;
                        loaded.map_err(|error| Unloaded::by(&error))?;
                    }
                    Ok(())
                })?;
                *loaded = Some(done);
                Ok(())
            }
            Source::Old(file) => {
                // SAFETY: as the caller says.
                let read =
                    targets.and_then(|targets| targets.iter().try_for_each(|region| unsafe { fill(file, region) }));
                self.open.session.agree("restart recover", Payload::None, read.err())?;
                Ok(())
            }
            Source::Ahead => {
                let restored = targets.map_err(Failure::argument).and_then(|targets| {
                    // SAFETY: as the caller says.
                    unsafe { self.ahead.restore(&mut self.open, *version, &targets) }
                });
                let refusal = restored.as_ref().err().map(|failure| failure.text.clone());
                let agreed = self.open.session.agree("restart recover", Payload::None, refusal);
                restored?;
                agreed?;
                self.ahead.restored(*version);
                Ok(())
            }
        }
    }

    /// Begins another attempt at a checkpoint of which parts have already been restored.
    fn again(&mut self, series: &str, version: u64, generation: u64) -> Outcome<Restart> {
        let gone = || Failure::new(BVK_ERR_RESTART, format!("version {version} of {series:?} is gone"));
        let mut attempt = self.open.session.start_restore(series, Want::Version(version))?.ok_or_else(gone)?;
        if attempt.attempt().generation() != generation {
            let other = "another run's version was found".to_owned();
            drop(attempt.end_uncounted(&self.open.session, Some(Unloaded::Refused(other))));
            return Err(gone());
        }
        self.prefer_kept(&mut attempt);
        Ok(attempt)
    }

    /// Lets the attempt use what `Restart_test` has read of this checkpoint, so that it is not read again.
    fn prefer_kept(&self, attempt: &mut Restart) {
        if let Some((key, copy)) = &self.kept
            && attempt.attempt().key() == *key
        {
            attempt.attempt().prefer(copy.clone());
        }
    }

    /// Ends a restart. `is_good` is the application's verdict.
    pub(super) fn end_restart(&mut self, is_good: bool) -> Outcome<()> {
        if let Phase::Restart(Restarting { version, has_failed: true, .. }) = self.phase {
            self.leave_restart();
            let failure = Failure::new(BVK_ERR_RESTART, format!("the restart of version {version} has failed"));
            return if is_good { Err(failure) } else { Ok(()) };
        }
        let restarting = self.restarting()?;
        self.kept = None;
        let Restarting { series, version, source, .. } = restarting;
        let refusal = (!is_good).then(|| "the application could not use it".to_owned());
        let ended = match source {
            Source::Ours { generation, attempt, loaded, .. } => {
                let ended = match attempt {
                    // Nothing was loaded.
                    Some(attempt) => {
                        let refusal = refusal.map(Unloaded::Refused);
                        complete(&mut self.open, *attempt, |_, _| refusal.clone().map_or(Ok(()), Err))
                    }
                    None => {
                        let agreed = self.open.session.agree("restart end", Payload::None, refusal);
                        agreed.map_err(Failure::from).and_then(|_| {
                            loaded.ok_or_else(|| Failure::state("a restart without an attempt has loaded nothing"))
                        })
                    }
                };
                self.file_folder(&series, version).remove();
                match ended {
                    Ok(loaded) => {
                        self.open.session.count(*loaded);
                        Ok(())
                    }
                    Err(failure) => {
                        self.refuse_version(&series, version, Some(generation));
                        Err(failure)
                    }
                }
            }
            Source::Old(_) => {
                let agreed = self.open.session.agree("restart end", Payload::None, refusal);
                if agreed.is_err() {
                    self.refuse_version(&series, version, None);
                }
                agreed.map(drop).map_err(Failure::from)
            }
            Source::Ahead => Ok(()),
        };
        // An application that rejects the version already knows why.
        if is_good { ended } else { Ok(()) }
    }

    /// Restores every stored region of a version.
    ///
    /// # Safety
    /// As [`State::recover`].
    pub(super) unsafe fn restart(&mut self, name: Outcome<&str>, version: c_int) -> Outcome<()> {
        self.begin_restart(name, version)?;
        // SAFETY: as the caller says.
        let recovered = unsafe { self.recover(Ok(Mode::All), &[]) };
        if recovered.is_err() {
            // The restart has failed on all ranks, so there is nothing to agree on.
            self.leave_restart();
            return recovered;
        }
        self.end_restart(true)
    }

    /// Restores an announced version, whatever its name.
    ///
    /// # Safety
    /// As [`State::recover`].
    pub(super) unsafe fn restart_announced(&mut self, version: c_int) -> Outcome<()> {
        self.check_idle()?;
        let number = names::version(version).map_err(Failure::argument);
        let series = number.and_then(|number| {
            let series = self.ahead.series_of(number).cloned();
            series.ok_or_else(|| Failure::argument(format!("version {version} was not announced, or was not saved")))
        });
        let series = match series {
            Ok(series) => series,
            Err(failure) => return Err(self.refuse(failure)),
        };
        // A series whose name differs from VELOC's begins with `v-`, which no name of VELOC's contains.
        let name = series.strip_prefix("v-").unwrap_or(&series);
        // SAFETY: as the caller says.
        unsafe { self.restart(Ok(name), version) }
    }

    /// Deletes all checkpoints with a name.
    pub(super) fn cleanup(&mut self, name: Outcome<&str>) -> Outcome<()> {
        self.check_idle()?;
        let checked = name.and_then(|name| Ok((name, names::series(name).map_err(Failure::argument)?)));
        let (name, series) = match checked {
            Ok(checked) => checked,
            Err(failure) => return Err(self.refuse(failure)),
        };
        // Checkpoints that are being written are complete before they are deleted, because the list waits for them.
        let listed = match self.open.session.versions(&series) {
            Err(Error::Restart(error @ (RestartError::Session { .. } | RestartError::Refused { .. }))) => {
                return Err(Error::Restart(error).into());
            }
            listed => listed.unwrap_or_default(),
        };
        // A run that has since taken over owns the folders. Only the root knows of it.
        let superseded = self.open.session.engine().check_claim();
        self.open.session.agree("cleanup", Payload::None, superseded.err())?;
        // Copies in node memory disappear with the session. Until then they are not offered.
        let refused = listed.into_iter().map(|info| (series.clone(), info.version, info.generation));
        self.refused.extend(refused.collect::<BTreeSet<_>>());
        self.pending.clear();
        self.kept = None;
        let removed = self.remove_durable(&series).and_then(|()| {
            let folders = self.old_folders();
            let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
            old_files::remove_all(&folders, name, self.old_rank)
        });
        self.open.session.agree("cleanup", Payload::None, removed.err())?;
        Ok(())
    }

    /// Deletes those folders of a series for which this rank is responsible.
    fn remove_durable(&self, series: &str) -> Result<(), String> {
        let engine = self.open.session.engine();
        let identity = engine.identity();
        let of = identity.series(series);
        let looks_after = |is_shared: bool| if is_shared { engine.is_root() } else { identity.is_node_leader() };
        for tier in engine.tiers().iter().filter(|tier| looks_after(tier.kind().spec().is_shared)) {
            for (generation, version, operation) in tier.folders(&of).map_err(|error| error.to_string())? {
                engine.check_claim()?;
                let folder = format!("g{:06}-v{version:010}-o{operation:06}", generation.0);
                tier.remove(&of, &folder).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// The regions of a shard, with their lengths in bytes.
fn list(restorer: &mut Attempt) -> Result<BTreeMap<String, u64>, Unloaded> {
    let unloaded = |error| Unloaded::by(&error);
    let mut found = BTreeMap::new();
    for (name, _) in restorer.regions().map_err(unloaded)? {
        let region = restorer.describe(&name).map_err(unloaded)?;
        found.insert(name, region.bytes);
    }
    Ok(found)
}

/// The length in bytes of a stored region. The region in the group with that name takes precedence.
fn stored_bytes(stored: &BTreeMap<String, u64>, name: &str, id: c_int) -> Outcome<u64> {
    let found = stored.get(&names::region(Some(name), id)).or_else(|| stored.get(&names::region(None, id)));
    found.copied().ok_or_else(|| Failure::new(BVK_ERR_LOAD, format!("region {id} is not in the checkpoint")))
}

/// Reads a region that VELOC wrote.
///
/// # Safety
/// As [`State::recover`].
unsafe fn fill(file: &OldFile, region: &Region) -> Result<(), String> {
    let id = names::parse_region(&region.name).map(|(_, id)| id);
    let found = file.regions().iter().find(|stored| Some(stored.id) == id);
    let stored = found.ok_or_else(|| format!("region {} is not in the file", region.name))?;
    if let Some(gpu) = region.gpu() {
        return Err(format!(
            "region {} is on GPU {gpu}: files that VELOC wrote can be restored only into host memory",
            region.name
        ));
    }
    // SAFETY: as the caller says.
    file.read(stored, unsafe { region.host_mut() })
}
