//! Reaching what is below a directory that is held open, without following symbolic links.
//!
//! The kernel does this in one call (`openat2`, Linux 5.6). Where the kernel does not have that call, or a container's
//! filter refuses it, each component is opened separately, with the same result.
#![forbid(unsafe_code)]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// How directories on the way are opened. Nothing is read in them, so no read permission is needed.
pub(super) const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How often the kernel is asked. A rename elsewhere may disturb its walk, and the call must then be repeated.
const ATTEMPTS: u32 = 100;

/// A directory that is held open.
#[derive(Clone, Debug)]
pub struct Beneath {
    directory: Arc<OwnedFd>,
}

impl Beneath {
    pub(super) fn new(directory: OwnedFd) -> Beneath {
        Beneath { directory: Arc::new(directory) }
    }

    /// The directory itself.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Does `path` still lead to this directory? It does not if the directory was removed or moved away, if another directory or file
    /// system has taken its place, or if its file server has forgotten it.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let identity = |directory: BorrowedFd<'_>, path: &Path, flags: AtFlags| {
            let found = rustix::fs::statx(directory, path, flags, StatxFlags::INO | StatxFlags::MNT_ID);
            found.map(|found| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
        };
        let held = identity(self.directory(), Path::new(""), AtFlags::EMPTY_PATH);
        let there = identity(CWD, path, AtFlags::empty());
        matches!((held, there), (Ok(held), Ok(there)) if held == there)
    }

    /// The directory at `path` below this one (this one, if `path` is empty).
    ///
    /// # Errors
    /// `LOOP` for a symbolic link, `XDEV` for a path that leads out of this directory, and other errors of the system.
    pub fn below(&self, path: &Path) -> Result<Beneath, Errno> {
        if path.as_os_str().is_empty() {
            return Ok(self.clone());
        }
        match self.in_one_call(path) {
            Err(Errno::NOSYS | Errno::PERM) => self.step_by_step(path).map(Beneath::new),
            other => other.map(Beneath::new),
        }
    }

    fn in_one_call(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // Without NOFOLLOW, a link at the end is refused like those before it.
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        let mut answer = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            answer = retry_on_intr(|| rustix::fs::openat2(&*self.directory, path, flags, Mode::empty(), how));
            if !matches!(answer, Err(Errno::AGAIN)) {
                break;
            }
        }
        answer
    }

    fn step_by_step(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        for name in path {
            if name == ".." || name == "/" {
                return Err(Errno::XDEV);
            }
            let directory = at.as_ref().map_or(self.directory(), AsFd::as_fd);
            at = Some(step(directory, name)?);
        }
        at.ok_or(Errno::INVAL)
    }
}

/// Opens one directory. A link gives `LOOP`; the kernel itself would report only that it is no directory.
fn step(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::openat(directory, name, DIRECTORY, Mode::empty())).map_err(|errno| {
        let is_link = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if errno == Errno::NOTDIR && is_link(stat) => Errno::LOOP,
            _ => errno,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::os::unix::fs::symlink;

    #[test]
    fn both_ways_reach_the_same_directories_and_follow_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("root/a/b")).unwrap();
        std::fs::create_dir_all(path("outside/b")).unwrap();
        std::fs::write(path("root/file"), "").unwrap();
        for (link, target) in [("root/away", "../outside"), ("root/within", "a"), ("root/a/up", "..")] {
            symlink(target, path(link)).unwrap();
        }
        symlink(path("outside"), path("root/far")).unwrap();
        let root = Beneath::new(rustix::fs::openat(CWD, path("root"), DIRECTORY, Mode::empty()).unwrap());
        type Way = fn(&Beneath, &Path) -> Result<OwnedFd, Errno>;
        for way in [Beneath::in_one_call as Way, Beneath::step_by_step] {
            let found = way(&root, Path::new("a/b")).unwrap();
            let (found, there) = (rustix::fs::fstat(&found).unwrap(), rustix::fs::stat(path("root/a/b")).unwrap());
            assert_eq!((found.st_dev, found.st_ino), (there.st_dev, there.st_ino));
            for (name, errno) in [
                ("away/b", Errno::LOOP),
                ("within/b", Errno::LOOP),
                ("within", Errno::LOOP),
                ("far", Errno::LOOP),
                ("a/up/a", Errno::LOOP),
                ("../outside", Errno::XDEV),
                ("/etc", Errno::XDEV),
                ("file", Errno::NOTDIR),
                ("nothing", Errno::NOENT),
            ] {
                assert_eq!(way(&root, Path::new(name)).err(), Some(errno), "{name}");
            }
        }
    }
}
