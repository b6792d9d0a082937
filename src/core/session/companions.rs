//! Output files that grow while checkpoints are taken, and that a restart makes agree with the checkpoint again.
#![forbid(unsafe_code)]

use crate::base::digest::digest_bytes;
use crate::base::log;
use crate::base::sync::Lock;
use crate::format::companions::{self, CompanionRecord, TAIL};
use crate::recovery::{Attempt, Unloaded};
use crate::region::{self, SavedRegion};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a restart does with a companion that has more bytes than the restored checkpoint recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnRestart {
    /// It cuts off the additional bytes.
    #[default]
    Truncate,
    /// It ends with an error on all ranks, and leaves the file as it is.
    Refuse,
    /// It leaves the file as it is, and the program continues in another file in the same folder: `traj.part0002.xtc` after `traj.xtc`.
    Another,
}

/// An output file that is kept in agreement with the checkpoints of a series. It comes from
/// [`Session::companion`](crate::Session::companion).
#[derive(Clone, Debug)]
pub struct Companion(pub(super) Option<Arc<Kept>>);

impl Companion {
    /// The absolute path to which the program writes the file now; `None` on a rank that has no such file. Ask again after a restart, which
    /// may have started another file ([`OnRestart::Another`]).
    pub fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|kept| kept.path.lock().clone())
    }
}

/// A companion of this rank.
#[derive(Debug)]
pub(super) struct Kept {
    /// The path as the program gave it.
    name: PathBuf,
    on_restart: OnRestart,
    /// The path to which the program writes now.
    path: Lock<PathBuf>,
}

/// The companions of one series on this rank.
pub(super) type Companions = Vec<Arc<Kept>>;

impl Kept {
    /// Creates a companion at `path`, which the program gave as `name`.
    pub fn new(name: &Path, on_restart: OnRestart, path: PathBuf) -> Kept {
        Kept { name: name.to_owned(), on_restart, path: Lock::new(path) }
    }

    /// What a checkpoint records about this companion.
    fn record(&self) -> io::Result<CompanionRecord> {
        let path = self.path.lock().clone();
        let found = File::open(&path).and_then(|file| {
            let length = file.metadata()?.len();
            Ok((length, tail(&file, length)?))
        });
        let (length, tail) = match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, digest_bytes(&[]).0),
            found => found?,
        };
        let file = path.file_name().unwrap_or_default().as_bytes().to_vec();
        Ok(CompanionRecord { name: self.name.as_os_str().as_bytes().to_vec(), file, length, tail })
    }

    /// Plans what a restart from `record` has to do. Nothing is changed yet.
    fn plan(self: &Arc<Self>, record: &CompanionRecord, version: u64) -> Result<Plan, Unloaded> {
        let path = self.path.lock().with_file_name(OsStr::from_bytes(&record.file));
        let shown = path.display().to_string();
        let rejected = |what: String| {
            Unloaded::Rejected(format!("the companion {shown} {what}: it does not agree with version {version}"))
        };
        let opened = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && record.length == 0 => None,
            Err(error) => return Err(rejected(format!("cannot be opened: {error}"))),
            Ok(file) => Some(file),
        };
        let mut plan = Plan { kept: self.clone(), path: path.clone(), cut: None };
        let Some(file) = opened else { return Ok(plan) };
        let length = file.metadata().map_err(|error| rejected(format!("cannot be read: {error}")))?.len();
        let had = record.length;
        if length < had {
            return Err(rejected(format!("has {length} bytes but had {had}, so its end is lost")));
        }
        let found = tail(&file, had).map_err(|error| rejected(format!("cannot be read: {error}")))?;
        if found != record.tail {
            return Err(rejected(format!("has different bytes before byte {had} than at the capture")));
        }
        match self.on_restart {
            _ if length == had => {}
            OnRestart::Truncate => plan.cut = Some((file, length, had)),
            OnRestart::Refuse => {
                let more = length - had;
                let why = format!(
                    "the companion {shown} has {more} bytes more than version {version} recorded, and must not be truncated: move it away, \
                     or allow the restart to truncate it or to start another file (on_restart)"
                );
                return Err(Unloaded::Refused(why));
            }
            OnRestart::Another => plan.path = another(&self.name, &path),
        }
        Ok(plan)
    }
}

/// What a restart has to do with a companion.
pub(super) struct Plan {
    kept: Arc<Kept>,
    /// The file to which the program continues to write.
    path: PathBuf,
    /// The file to truncate, its current length and its length afterwards; `None` if it stays as it is.
    cut: Option<(File, u64, u64)>,
}

impl Plan {
    /// Makes the planned file the one to which the program writes. All ranks have carried out their plans before this.
    pub fn settle(self) {
        *self.kept.path.lock() = self.path;
    }

    /// Truncates the file if that is planned.
    pub fn cut(&self) -> Result<(), String> {
        let Some((file, from, to)) = &self.cut else { return Ok(()) };
        let shown = self.path.display();
        file.set_len(*to).map_err(|error| format!("the companion {shown} cannot be cut to {to} bytes: {error}"))?;
        log::info!("event=companion-cut path={shown} from={from} to={to}");
        Ok(())
    }
}

/// The digest of the last `TAIL` bytes before byte `length`, or of all of them if there are fewer.
fn tail(file: &File, length: u64) -> io::Result<[u8; 16]> {
    let bytes = length.min(TAIL);
    let mut tail = vec![0; bytes as usize];
    file.read_exact_at(&mut tail, length - bytes)?;
    Ok(digest_bytes(&tail).0)
}

/// The first numbered form of `name` that no file in the folder of `current` has: `traj.part0002.xtc` for `traj.xtc`.
fn another(name: &Path, current: &Path) -> PathBuf {
    let stem = name.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = name.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    let named = |number: u32| current.with_file_name(format!("{stem}.part{number:04}{extension}"));
    let mut number = 2;
    while named(number).symlink_metadata().is_ok() && number < u32::MAX {
        number += 1;
    }
    named(number)
}

/// The region that records the companions. All ranks have this region if any rank has companions.
pub(super) fn saved(companions: Option<&Companions>) -> Result<Option<SavedRegion<'static>>, String> {
    let Some(companions) = companions else { return Ok(None) };
    let record = |kept: &Arc<Kept>| {
        let shown = || kept.path.lock().display().to_string();
        kept.record().map_err(|error| format!("the companion {} cannot be recorded: {error}", shown()))
    };
    let records = companions.iter().map(record).collect::<Result<Vec<_>, _>>()?;
    let bytes = companions::encode(&records).map_err(|error| error.to_string())?;
    if bytes.len() > region::SHARED_MAX {
        // A restart does not accept a longer record from another rank.
        let (count, most) = (records.len(), region::SHARED_MAX);
        return Err(format!(
            "the record of {count} companions takes {} bytes, but at most {most} are allowed",
            bytes.len()
        ));
    }
    Ok(Some(region::reserved(region::COMPANIONS, bytes)))
}

/// Plans what this rank has to do so that its companions agree with the version of the attempt.
///
/// # Collective
/// All ranks, if a different number of ranks took the checkpoint.
pub(super) fn plan(attempt: &mut Attempt, mine: &Companions) -> Result<Vec<Plan>, Unloaded> {
    let records = attempt.companions(!mine.is_empty()).map_err(|error| Unloaded::by(&error))?;
    let version = attempt.version();
    let mut plans = Vec::new();
    for kept in mine {
        match records.iter().find(|record| record.name == kept.name.as_os_str().as_bytes()) {
            Some(record) => plans.push(kept.plan(record, version)?),
            None => log::warn!(
                "event=companion-unknown path={}: version {version} was taken before it was a companion; it stays as it is",
                kept.path.lock().display()
            ),
        }
    }
    Ok(plans)
}
