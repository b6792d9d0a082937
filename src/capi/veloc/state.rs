//! The state of this process: a session, the regions that are protected on it, and the checkpoint or restart that is open.

use super::ahead::Ahead;
use super::checkpoint::Begun;
use super::checkpoint::failure_of;
use super::ini::{self, Settings};
use super::names;
use super::restart::Restarting;
use crate::arguments::{BVK_U8, text};
use crate::open::Open;
use crate::regions::{Region, Regions};
use crate::status::{Failure, Outcome};
use ::mpi::ffi::MPI_Comm;
use bivouac_core::base::{CheckpointKey, Level};
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::comm::{CommError, Unusable, threads};
use bivouac_core::config::{Config, ConfigSource};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::session::{Error, Pending, Session, prepare_to_wait};
use bivouac_core::tier::routed::Folder;
use bivouac_core::tier::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of routed files in the scratch directory.
const FILES: &str = "veloc-files";

/// What is open between two calls.
pub(super) enum Phase {
    Idle,
    Checkpoint(Begun),
    Restart(Restarting),
}

/// A checkpoint of Bivouac's that was looked at: its series, version and generation.
pub(super) type Key = (String, u64, u64);

/// Everything that belongs to one `VELOC_Init`.
pub(super) struct State {
    pub open: Open,
    pub settings: Settings,
    /// The rank in the names of VELOC's own files. For a process alone, this is its number.
    pub old_rank: u32,
    /// The maximum number of ranks that may have written one of VELOC's own versions; `None` for a process alone, where it is unknown.
    pub old_ranks: Option<u32>,
    /// The protected regions by group.
    groups: BTreeMap<Option<String>, Regions>,
    pub phase: Phase,
    /// Captured checkpoints that are not yet known to be safe.
    pub pending: Vec<Pending>,
    /// Versions that a restart has refused, and which are not offered again.
    pub refused: BTreeSet<Key>,
    /// Series and versions of VELOC's own files that are refused likewise.
    pub refused_old: BTreeSet<(String, u64)>,
    /// Checkpoints that were read and found undamaged when they were offered.
    pub verified: BTreeSet<Key>,
    /// The last verified checkpoint, in node memory.
    pub kept: Option<(CheckpointKey, Source)>,
    /// The number of bytes of routed files, of the checkpoint that had most.
    pub routed: u64,
    pub ahead: Ahead,
}

/// Reads the settings from VELOC's configuration file, the environment, and a Bivouac file.
///
/// # Safety
/// `path` is NULL or ends with zero.
unsafe fn configure(path: *const c_char) -> Result<(Settings, Config), String> {
    // SAFETY: as the caller says.
    let path = Path::new(unsafe { text(path, "the configuration file's name") }.map_err(|failure| failure.text)?);
    let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let given = std::fs::read_to_string(path).map_err(|error| wrong(path, &error))?;
    let settings = ini::read(&given, |name| std::env::var(name).ok()).map_err(|error| wrong(path, &error))?;
    let mut table = settings.config.clone();
    if let Some(more) = &settings.bivouac {
        let given = std::fs::read_to_string(more).map_err(|error| wrong(more, &error))?;
        table = ini::merged(table, &given).map_err(|error| wrong(more, &error))?;
    }
    let config = Config::with_settings(ConfigSource::Text(&table.to_string()), &[]);
    let mut config = config.map_err(|error| wrong(path, &error))?;
    let note = |note: &String| format!("event=veloc-setting file={} note={note:?}", path.display());
    config.notes.extend(settings.notes.iter().map(note));
    Ok((settings, config))
}

/// Reports missing settings as an error, after all ranks have been told. `single` is the number of a process that is alone.
fn agreed(session: Session, settings: Option<Settings>, single: Option<u32>) -> Outcome<State> {
    let settings = settings.ok_or_else(|| Failure::state("a session was opened without its settings"))?;
    let identity = session.engine().identity();
    let (rank, ranks) = (identity.rank.0, identity.size);
    let mut open = Open::new(session);
    // Each of VELOC's ranks protects whatever it wants.
    open.own_regions = true;
    Ok(State {
        open,
        settings,
        old_rank: single.unwrap_or(rank),
        old_ranks: single.is_none().then_some(ranks),
        groups: BTreeMap::new(),
        phase: Phase::Idle,
        pending: Vec::new(),
        refused: BTreeSet::new(),
        refused_old: BTreeSet::new(),
        verified: BTreeSet::new(),
        kept: None,
        routed: 0,
        ahead: Ahead::default(),
    })
}

impl State {
    /// Opens a session on the ranks of `comm`.
    ///
    /// # Safety
    /// `comm` is a communicator of this process or `MPI_COMM_NULL`; `path` is NULL or ends with zero.
    pub(super) unsafe fn open(comm: MPI_Comm, path: *const c_char) -> Outcome<State> {
        // SAFETY: as the caller says.
        let configured = unsafe { configure(path) };
        let (settings, config) =
            configured.map_or_else(|error| (None, Err(error)), |(s, config)| (Some(s), Ok(config)));
        // SAFETY: as the caller says.
        let comm = unsafe { MpiComm::duplicate_raw(comm, &prepare_to_wait(config.as_ref())) }.map_err(Error::from)?;
        agreed(Session::open_on_mpi(comm, config)?, settings, None)
    }

    /// Opens a session of this process alone, with MPI or without.
    ///
    /// # Safety
    /// `path` is NULL or ends with zero.
    pub(super) unsafe fn open_single(id: u32, path: *const c_char) -> Outcome<State> {
        // SAFETY: as the caller says.
        let configured = unsafe { configure(path) };
        let (settings, mut config) = configured.map_err(|text| Failure::new(crate::status::BVK_ERR_OPEN, text))?;
        config.job.group.get_or_insert_with(|| format!("single-{id}"));
        // SAFETY: the handle is a constant of the MPI library, and the call checks whether MPI can be used before it uses it.
        let comm = unsafe { MpiComm::duplicate_raw(::mpi::ffi::RSMPI_COMM_SELF, &prepare_to_wait(Ok(&config))) };
        let session = match comm {
            Ok(comm) => Session::open_on_mpi(comm, Ok(config))?,
            Err(CommError::Unusable(Unusable::NotInitialized | Unusable::Finalized)) => {
                let failed = |error: std::io::Error| Error::Failed { reason: error.to_string() };
                let place = Place::here(&config, Workers::Threads, format!("single-{id}")).map_err(failed)?;
                let comm = threads::world(&[0]).pop();
                let comm = comm.ok_or_else(|| Failure::state("a world of one rank has no rank"))?;
                Session::open_on(Box::new(comm), &place, config)?
            }
            Err(error) => return Err(Error::from(error).into()),
        };
        agreed(session, Some(settings), Some(id))
    }

    /// Closes the session. If `drain` is true, it waits for checkpoints that are being written.
    pub(super) fn close(mut self, drain: bool) -> Outcome<()> {
        self.leave_restart();
        let mut unended = None;
        if let Phase::Checkpoint(begun) = std::mem::replace(&mut self.phase, Phase::Idle) {
            unended = Some(format!(
                "version {} of {:?} was begun but not ended, so it is given up: call VELOC_Checkpoint_end before VELOC_Finalize",
                begun.version, begun.series
            ));
            self.give_up(begun);
        }
        let limit = match drain {
            true => self.open.session.engine().config().job.timeouts.drain,
            false => Duration::ZERO,
        };
        let last = self.pending.pop();
        match self.open.close_within(limit) {
            Err(Error::Undrained { .. }) if !drain => {}
            other => other.map_err(Failure::from)?,
        }
        let refused = last.filter(|_| drain).and_then(|last| Some((failure_of(&last)?, last.version(), last.level())));
        // If a rank gave up the checkpoint, the call that ended it has already said so.
        let refused = refused.filter(|(level, ..)| *level > Level::Captured);
        let refused = refused.map(|(level, version, reached)| {
            format!(
                "the last version, {version}, did not reach level {level}, but only {reached}: the line above says why"
            )
        });
        unended.or(refused).map_or(Ok(()), |text| Err(Failure::state(text)))
    }

    /// Protects memory under a number, and replaces the region that had this number.
    pub(super) fn protect(
        &mut self,
        group: Option<&str>,
        id: c_int,
        data: *mut c_void,
        count: usize,
        size: usize,
    ) -> Outcome<()> {
        if let Some(group) = group {
            names::series(group).map_err(Failure::argument)?;
        }
        let bytes = count.checked_mul(size).and_then(|bytes| u64::try_from(bytes).ok());
        let bytes =
            bytes.ok_or_else(|| Failure::argument(format!("region {id}: {count} x {size} bytes are too many")))?;
        let region = Region::new(&names::region(group, id), data, BVK_U8, &[bytes])?;
        self.groups.entry(group.map(str::to_owned)).or_default().put(region);
        // A checkpoint saves the regions without a group and those of its own group.
        let own = group.is_some().then(|| self.groups.get(&group.map(str::to_owned))).flatten();
        let common = self.groups.get(&None);
        self.open.make_ready(common.into_iter().chain(own).map(Regions::room).sum());
        Ok(())
    }

    /// Ends the protection of a region.
    pub(super) fn unprotect(&mut self, group: Option<&str>, id: c_int) -> Outcome<()> {
        let name = names::region(group, id);
        match self.groups.get_mut(&group.map(str::to_owned)).is_some_and(|regions| regions.remove(&name)) {
            true => Ok(()),
            false => Err(Failure::argument(format!("region {name} is not protected"))),
        }
    }

    /// Ends the protection of all regions of a group.
    pub(super) fn clear(&mut self, group: Option<&str>) {
        self.groups.remove(&group.map(str::to_owned));
    }

    /// The regions that belong to checkpoints of this name: those without a group, and those of the group with that name.
    pub(super) fn regions(&self, name: &str) -> BTreeMap<String, Region> {
        let groups = [None, Some(name.to_owned())];
        let regions = groups.iter().filter_map(|group| self.groups.get(group)).flat_map(Regions::iter);
        regions.map(|region| (region.name.clone(), region.clone())).collect()
    }

    /// The folders in which VELOC itself would have put its files, nearest first.
    pub(super) fn old_folders(&self) -> [PathBuf; 2] {
        [self.settings.scratch.clone(), self.settings.persistent.clone()]
    }

    /// The folder for those files of one version that the application itself writes and reads.
    pub(super) fn file_folder(&self, series: &str, version: u64) -> Folder {
        let identity = self.open.session.engine().identity();
        Folder::new(&self.settings.scratch, FILES, &identity.series(series), identity.rank, version)
    }
}

/// The sizes of regions by their names.
pub(super) fn sizes(regions: &BTreeMap<String, Region>) -> BTreeMap<String, u64> {
    regions.iter().map(|(name, region)| (name.clone(), region.bytes() as u64)).collect()
}
