//! Small files by which several processes find out who came first: the claims of runs ([`super::claims`]).
#![forbid(unsafe_code)]

use super::storage::{Create, Entry, FileLock, Storage};
use crate::base::Clock;
use crate::base::log;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Files that are written once, by the process that comes first.
///
/// # Contract
/// If several processes create the same file at the same moment, on any hosts, exactly one succeeds. The created file is durable, and
/// others always read it whole. Where that takes two steps, the file is held first ([`Records::is_held`]).
pub trait Records: Send + Sync {
    /// Makes a file that must not exist yet, with the folders above it, and holds it for as long as the returned value lives, if
    /// the place supports that.
    ///
    /// # Errors
    /// `AlreadyExists`; other errors of the place.
    fn create(&self, path: &Path, bytes: &[u8], clock: &dyn Clock) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Reads a file of at most `limit` bytes.
    ///
    /// # Errors
    /// `NotFound`; `InvalidData` if the file is longer.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;

    /// The entries of a folder.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;

    /// Is the file held by the process that made it, and is that process alive?
    ///
    /// # Errors
    /// `Unsupported` if the place cannot hold files.
    fn is_held(&self, path: &Path) -> io::Result<bool>;

    /// When the file was last changed or touched, according to a clock that is the same for all callers.
    ///
    /// # Errors
    /// `NotFound`.
    fn changed(&self, path: &Path) -> io::Result<SystemTime>;

    /// Changes the answer of [`Records::changed`], and nothing else.
    ///
    /// # Errors
    /// `NotFound`; other errors of the place.
    fn touch(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file, unless it exists.
    ///
    /// # Errors
    /// Errors of the place.
    fn mark(&self, path: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`; other errors of the place.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// Records in a file system.
pub struct Files(pub Arc<dyn Storage>);

impl Files {
    /// Locks a file that was just made. Another process that checks whether the file is held takes the lock for a moment.
    fn hold(&self, path: &Path, clock: &dyn Clock) -> Option<Box<dyn FileLock>> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.0.try_lock(path) {
                Ok(Some(lock)) => return Some(lock),
                Ok(None) => clock.sleep(LOCK_PAUSE),
                Err(error) => {
                    log::debug!("event=claim-not-locked path={} error={error}", path.display());
                    return None;
                }
            }
        }
        log::warn!("event=claim-not-locked path={} reason=\"another process holds its lock\"", path.display());
        None
    }
}

impl Records for Files {
    fn create(&self, path: &Path, bytes: &[u8], clock: &dyn Clock) -> io::Result<Option<Box<dyn FileLock>>> {
        let folder = path.parent().unwrap_or(Path::new("."));
        self.0.create_dir_all(folder)?;
        let file = self.0.open_write(path, Create::New)?;
        // The file is locked before it says anything, because a process that can read it and take its lock may think
        // that its maker is dead.
        let lock = self.hold(path, clock);
        if let Err(error) = file.write_at(0, bytes).and_then(|()| file.sync()) {
            // A claim that says nothing would look like somebody else's at the next look.
            if let Err(error) = self.0.remove_file(path) {
                log::debug!("event=empty-claim-left path={} error={error}", path.display());
            }
            return Err(error);
        }
        self.0.sync_dir(folder)?;
        Ok(lock)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.0.read_all(path, limit)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.0.list(folder)
    }

    fn is_held(&self, path: &Path) -> io::Result<bool> {
        self.0.is_locked(path)
    }

    fn changed(&self, path: &Path) -> io::Result<SystemTime> {
        // A network file system asks its server when a file is opened; otherwise it may answer from its cache.
        self.0.open_read(path).and_then(|_| self.0.modified(path))
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        self.0.touch(path)
    }

    fn mark(&self, path: &Path) -> io::Result<()> {
        self.0.open_write(path, Create::Shared).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
}
