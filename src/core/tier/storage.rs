//! The file operations that directory tiers use, as a trait: a real file system or a simulated one.
//!
//! A tier never calls the operating system itself. It goes through [`Storage`], so that the same tier code runs on a
//! disk, on a simulated disk that loses unsynced writes at a power cut (`super::simulated`), and through wrappers that
//! fail, slow down or count (`super::wrappers`).
#![forbid(unsafe_code)]

use super::ours::Trust;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// How a file is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// The file must not exist yet (`O_EXCL`).
    New,
    /// Several ranks of a node open the same file, and each writes its own slice.
    Shared,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// File name.
    pub name: String,
    /// Is it a directory?
    pub is_dir: bool,
}

/// What is known about a file or folder without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The length of the file; meaningless for a folder.
    pub bytes: u64,
    /// When it was last changed, according to the system that keeps it.
    pub modified: SystemTime,
    /// Is it a folder, a link, or something else that is not a file?
    pub is_odd: bool,
}

/// A file open for writing.
///
/// # Contract
/// `write_at` writes all bytes or fails. Where the storage writes around the page cache, aligned writes (address, offset and length
/// multiples of 4096) go straight to the device; other writes are still correct. Different threads may write different ranges at the
/// same time. `sync` returns when all writes made through any handle of this file, and the file's length, would survive a power cut.
/// After any error the file is condemned: the caller removes it and starts over under a new name.
pub trait WriteFile: Send + Sync {
    /// Reserves room for the first `length` bytes; may do nothing if the file system does not support that.
    fn reserve(&self, length: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything written so far durable (fsync).
    fn sync(&self) -> io::Result<()>;
}

/// A file open for reading. `read_at` fills the whole buffer or fails with `UnexpectedEof`.
#[allow(clippy::len_without_is_empty)] // A length that asks the system is not the length of a collection.
pub trait ReadFile: Send + Sync {
    /// Current length of the file.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Is the whole range really stored, and not a hole that takes no room and reads as zeros? Storage that cannot tell answers yes.
    fn holds(&self, range: std::ops::Range<u64>) -> bool {
        let _ = range;
        true
    }
    /// How many threads read a large range of the file ahead of the caller that takes the bytes. If 0, only the caller reads, in order.
    fn readers(&self) -> usize {
        2
    }
    /// Tells the file that this range is going to be read soon. This is a hint for files that are far away; other files ignore it.
    fn will_read(&self, range: std::ops::Range<u64>) {
        let _ = range;
    }
}

/// A range below this size is read without asking whether the file holds it.
const UNASKED_MAX: u64 = 1 << 20;

/// Reads a range whose length comes from a file. The file must really store as many bytes as this takes in memory: a hole of
/// terabytes costs nothing, and the checksums that cover it can be right.
///
/// # Errors
/// `InvalidData` for a hole, `OutOfMemory`, and the storage's own errors.
pub fn read_range(file: &dyn ReadFile, range: std::ops::Range<u64>) -> io::Result<Vec<u8>> {
    let length = range.end.saturating_sub(range.start);
    if length > UNASKED_MAX && !file.holds(range.clone()) {
        let message =
            format!("{length} bytes from byte {} on are announced, but the file has a hole there", range.start);
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut bytes = zeroed(length)?;
    file.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// Returns `length` zeros. Asking for more memory than exists is an error, not an abort.
///
/// # Errors
/// `OutOfMemory`.
pub fn zeroed<T: bytemuck::Zeroable + Clone>(length: u64) -> io::Result<Vec<T>> {
    let mut values = Vec::new();
    let reserved = usize::try_from(length).is_ok_and(|length| values.try_reserve_exact(length).is_ok());
    if !reserved {
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for {length} values")));
    }
    values.resize(length as usize, T::zeroed());
    Ok(values)
}

/// A lock that ends with the value or with the process, whichever ends first.
pub trait FileLock: Send + Sync {}

/// A file system as tiers see it. Paths are absolute or relative to the process; every method may block on the device.
pub trait Storage: Send + Sync {
    /// Holds the directory `root` open, which must meet the requirement `trust`. After this, every path below it is
    /// reached from the opened directory, and no symbolic link is followed there. If the root is removed later, it is
    /// looked for again by the same rule. Storage without owners has nothing to do here.
    fn hold(&self, root: &Path, trust: Trust) -> io::Result<()> {
        let _ = (root, trust);
        Ok(())
    }

    /// Creates a directory and its parents (mode 0700 for those it makes) and makes the new names durable.
    /// Existing directories are no error.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for writing (mode 0600; symbolic links are not followed).
    fn open_write(&self, path: &Path, create: Create) -> io::Result<Box<dyn WriteFile>>;
    /// Opens a file for reading.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;
    /// Renames within one directory, replacing the target. Durable after [`Storage::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Lists a directory, sorted by name. `NotFound` if it does not exist.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;
    /// Sets the modification time of an existing file to the server's current time.
    fn touch(&self, path: &Path) -> io::Result<()>;
    /// What is known about a name, according to the server, without following a link or opening anything.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// The modification time according to the server.
    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.stat(path).map(|stat| stat.modified)
    }
    /// Takes an exclusive lock on an existing file (open-file-description lock), or `None` if somebody else holds it.
    /// The lock is on the file that has this name when it is granted: `NotFound` if a holder before us removed it.
    /// `Unsupported` where the file system has no locks.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;
    /// Does anybody hold that lock? Any number of processes may ask at the same time without seeing each other, and
    /// read permission is enough. Errors are those of [`Storage::try_lock`].
    fn is_locked(&self, path: &Path) -> io::Result<bool>;

    /// Reads a whole file of at most `limit` bytes; a longer one is `InvalidData`.
    fn read_all(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open_read(path)?;
        let length = file.len()?;
        if length > limit {
            let message = format!("{length} bytes, more than the {limit} expected");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        read_range(&*file, 0..length)
    }

    /// Writes a small file so that it is either absent or whole: temp name, fsync, rename, directory fsync.
    fn write_all(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut temp = path.as_os_str().to_owned();
        temp.push(".tmp");
        let temp = Path::new(&temp);
        match self.remove_file(temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.open_write(temp, Create::New)?;
        file.write_at(0, bytes)?;
        file.sync()?;
        drop(file);
        self.rename(temp, path)?;
        self.sync_dir(path.parent().unwrap_or(Path::new(".")))
    }
}
