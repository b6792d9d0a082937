//! The machine profile of a session (`plan.profile`): read by the session's root when the session opens, and written when it closes.
//!
//! The profile is a hint, like the files of the run directory, and is handled in the same way: it is replaced as a whole, and believed only
//! if it belongs to this user or to root. Trouble with it causes a warning and has no effect on the session. A file that cannot be read is
//! left as it is: somebody may want it back.
#![forbid(unsafe_code)]

use super::costs;
use crate::base::calendar::unix_now;
use crate::base::log;
use crate::format::profile::{Failures, Name, Profile, Source};
use crate::planner::estimate::Seen;
use crate::policy::tuning::{Measured, Start};
use crate::tier::run_directory::RunDirectory;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The path of the profile, and the facts that accompany its numbers.
pub struct ProfileFile {
    path: PathBuf,
    /// The number of nodes of the group.
    nodes: u64,
    host: String,
    command: String,
    /// The directory in which ended attempts are recorded.
    run: Option<RunDirectory>,
}

impl ProfileFile {
    /// A profile at `path`, for a group on this many nodes. `run`: the run directory, if there is one.
    pub fn new(path: PathBuf, nodes: u64, host: &str, command: &str, run: Option<RunDirectory>) -> ProfileFile {
        ProfileFile { path, nodes, host: host.to_owned(), command: command.to_owned(), run }
    }

    /// The content of the file; `None` if there is no file yet. Warns if the file cannot be used.
    pub fn read(&self) -> Option<Profile> {
        self.try_read().unwrap_or_else(|error| {
            log::warn!("event=profile-not-read error={error:?}: the session continues without it");
            None
        })
    }

    fn try_read(&self) -> Result<Option<Profile>, String> {
        read(&self.path)
    }

    /// Adds a session's measurements to the profile: the maxima of all ranks' [`costs::numbers`], and what the root has measured. Trouble
    /// only causes a warning.
    pub fn tell(&self, greatest: &[u64], measured: &Measured, ranks: u64) {
        let source = Source::new(unix_now(), &self.host, &self.command);
        let Some(mut profile) = costs::profile(greatest, measured, self.nodes, ranks, &source) else { return };
        profile.failures = self.failures(&source);
        match self.renew(profile) {
            Ok(()) => log::info!("event=profile-written path={}", self.path.display()),
            Err(error) => {
                log::warn!("event=profile-not-written error={error:?}: what this session has measured is lost")
            }
        }
    }

    fn renew(&self, newer: Profile) -> Result<(), String> {
        let mut profile = self.try_read()?.unwrap_or_default();
        profile.renew(newer);
        write(&self.path, &profile)
    }

    /// The outcomes of those attempts of `bivouac run` that have ended.
    fn failures(&self, source: &Source) -> Option<Failures> {
        let attempts = self.run.as_ref()?.read_attempts().unwrap_or_else(|error| {
            log::warn!("event=attempts-not-read error={error}: the profile keeps the failures that it has");
            Vec::new()
        });
        let Seen { seconds, node_seconds, process, node, system } = Seen::of(&attempts);
        let failures = Failures { seconds, node_seconds, process, node, system, source: source.clone() };
        (!attempts.is_empty()).then_some(failures)
    }
}

/// Reads a profile; `None` if there is none.
///
/// # Errors
/// The system's answer, or why the file is not believed or makes no sense, with its path.
pub fn read(path: &Path) -> Result<Option<Profile>, String> {
    let (directory, name) = parts(path)?;
    let Some(bytes) = directory.read(name).map_err(|error| error.to_string())? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: it is not UTF-8 text", path.display()))?;
    Profile::decode(&text).map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

/// Replaces a profile as a whole. Only this user can read it.
///
/// # Errors
/// The system's answer, with the path.
pub fn write(path: &Path, profile: &Profile) -> Result<(), String> {
    let (directory, name) = parts(path)?;
    directory.replace(name, profile.encode().as_bytes()).map_err(|error| error.to_string())
}

fn parts(path: &Path) -> Result<(RunDirectory, &str), String> {
    let name = path.file_name().and_then(OsStr::to_str);
    let name = name.ok_or_else(|| format!("{} names no file", path.display()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((RunDirectory::at(folder), name))
}

/// What an earlier session measured and a tuner can begin with. Rates of a benchmark do not count: they say nothing
/// about the state.
pub fn start(profile: &Profile) -> Option<Start> {
    let blocking = profile.figure(Name::Blocking, None)?.value;
    let latency = profile.figures.iter().filter(|figure| figure.name == Name::Latency);
    let latency = latency.filter_map(|figure| Some((figure.level?, figure.value))).collect();
    Some(Start { blocking, latency })
}
