//! Directories that a storage holds open, and the names of files below them.
#![forbid(unsafe_code)]

use super::beneath::Beneath;
use super::ours::{self, Trust};
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::path::{Path, PathBuf};

/// How files are opened. Opening a FIFO or a device must neither hang nor have an effect; for regular files,
/// `NONBLOCK` makes no difference.
pub(super) const OPEN_FLAGS: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The directories that a storage holds.
#[derive(Default)]
pub(super) struct HeldDirectories(Lock<Vec<Held>>);

/// A directory that is held open.
#[derive(Clone)]
struct Held {
    root: PathBuf,
    trust: Trust,
    beneath: Beneath,
}

/// A name in a directory.
pub(super) struct Spot<'a> {
    /// `None` if the name is a whole path.
    directory: Option<Beneath>,
    pub(super) name: &'a Path,
}

impl<'a> Spot<'a> {
    /// A whole path, as the system interprets it.
    pub(super) fn of_path(path: &'a Path) -> Spot<'a> {
        Spot { directory: None, name: path }
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, Beneath::directory)
    }

    pub(super) fn open(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        retry_on_intr(|| rustix::fs::openat(self.directory(), self.name, flags, mode))
    }

    /// Opens a regular file and nothing else.
    pub(super) fn open_regular(&self, flags: OFlags) -> io::Result<(OwnedFd, Stat)> {
        let file = self.open(flags | OPEN_FLAGS, Mode::RUSR | Mode::WUSR)?;
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file, stat)),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// Opens a directory for reading its names or syncing them.
    pub(super) fn open_directory(&self) -> rustix::io::Result<OwnedFd> {
        // A whole path may end in a link that the user made.
        let links = if self.directory.is_some() { OFlags::NOFOLLOW } else { OFlags::empty() };
        self.open(OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links, Mode::empty())
    }

    /// Is it a directory? If it is something else, that is an error.
    pub(super) fn is_directory(&self) -> io::Result<bool> {
        let links = if self.directory.is_some() { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        match rustix::fs::statat(self.directory(), self.name, links) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Ok(true),
                FileType::Symlink => Err(Errno::LOOP.into()),
                _ => Err(Errno::NOTDIR.into()),
            },
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let directory = self.open_directory()?;
        match retry_on_intr(|| rustix::fs::fsync(&directory)) {
            // The file system has no such operation for directories: there, names are as durable as they can be.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                log::debug!("directory_fsync=unsupported path={}", self.name.display());
                Ok(())
            }
            result => Ok(result?),
        }
    }
}

impl HeldDirectories {
    /// A panic elsewhere leaves the list intact, because each change is a single insertion or removal.
    fn lock(&self) -> Guard<'_, Vec<Held>> {
        self.0.lock()
    }

    /// The name that `path` denotes, and the directory that contains it.
    pub(super) fn spot<'a>(&self, path: &'a Path) -> io::Result<Spot<'a>> {
        let held = self.lock().iter().find(|held| path.starts_with(&held.root)).cloned();
        let Some(mut held) = held else { return Ok(Spot::of_path(path)) };
        if !held.beneath.is_at(&held.root) {
            held.beneath = self.take(&held.root, held.trust)?;
        }
        let below = path.strip_prefix(&held.root).unwrap_or(Path::new(""));
        let Some(name) = below.file_name() else {
            return Ok(Spot { directory: Some(held.beneath), name: Path::new(".") });
        };
        let directory = held.beneath.below(below.parent().unwrap_or(Path::new("")))?;
        Ok(Spot { directory: Some(directory), name: Path::new(name) })
    }

    /// Opens a directory and keeps it, in place of any directory held under the same path.
    pub(super) fn take(&self, root: &Path, trust: Trust) -> io::Result<Beneath> {
        let beneath = ours::open(root, trust)?;
        let mut held = self.lock();
        held.retain(|held| held.root != root);
        held.push(Held { root: root.to_owned(), trust, beneath: beneath.clone() });
        Ok(beneath)
    }

    /// Is this the path of a directory that is held?
    pub(super) fn is_one(&self, path: &Path) -> bool {
        self.lock().iter().any(|held| held.root == path)
    }
}
