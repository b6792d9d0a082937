//! Which directories are ours: the one rule that sessions and tools apply before they trust or change their contents.
//!
//! Checkpoints are found by names that others can work out: `/tmp/bivouac-UID-HASH` is the same on all nodes and is
//! visible wherever the job runs. The user who makes such a directory first decides what it contains. So a directory
//! counts only when it belongs to the effective user or to root (who can do anything anyway) and nobody else may write
//! to it. It is opened once ([`open`]), and everything below is reached from that descriptor ([`super::beneath`]):
//! anything that is put in its place later, or linked into it, is never reached.
//!
//! A configured directory may itself be reached through symbolic links (`/scratch` is often one). They are resolved once,
//! by the rule of Linux's `protected_symlinks`, which is not enabled on every system: in a directory where everybody may
//! write, a link counts only if it belongs to this user, to root, or to the owner of the directory that contains it.
//!
//! In a place that others share (`/tmp`, `/var/tmp`, a node's scratch disk) we use our own folder ([`private_folder`]),
//! which has mode 0700 and is not a link. If somebody else has taken its name, the next of a few names is used.
#![forbid(unsafe_code)]

use super::beneath::{Beneath, DIRECTORY};
use crate::base::log;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Names that [`private_folder`] tries: `name`, `name.1`, `name.2` etc.
const NAMES_TRIED: u32 = 8;
/// The maximum number of links that are followed; the kernel has the same limit.
const LINKS_MAX: u32 = 40;

/// What is required of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// It belongs to this user or root, and nobody else may write to it. Its contents are restored, and changed.
    Ours,
    /// It may belong to anybody. Its contents are only looked at.
    Anybodys,
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum NotOurs {
    /// It has another owner.
    #[error(
        "{} belongs to user {owner}, not to user {user}. It is left alone: use a directory of your own, or become its owner \
         (root: runuser -u \"$(id -nu {owner})\" -- bivouac ...)",
        path.display()
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's effective user.
        user: u32,
    },
    /// Others may put files into it.
    #[error("others may write to {} (mode {mode:03o}), and could put files there: run chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A third party put a link on the way to it.
    #[error("{} is a symbolic link that user {owner} has put into a directory that everybody may write to", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// All names that a private folder may have belong to others.
    #[error("no private folder can be made in {}: {}", place.display(), taken.join("; "))]
    Taken {
        /// Where the folder should be.
        place: PathBuf,
        /// What was found under each name.
        taken: Vec<String>,
    },
}

impl From<NotOurs> for io::Error {
    fn from(error: NotOurs) -> io::Error {
        io::Error::other(error)
    }
}

/// Opens a directory that must meet the requirement `trust`.
///
/// # Errors
/// The system's error; [`NotOurs`], wrapped.
pub fn open(path: &Path, trust: Trust) -> io::Result<Beneath> {
    let directory = resolve(path)?;
    let stat = rustix::fs::fstat(&directory)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    if trust == Trust::Ours {
        check(path, &stat)?;
    }
    Ok(Beneath::new(directory))
}

/// Does it belong to this user or root, and may nobody else write to it?
fn check(path: &Path, stat: &Stat) -> Result<(), NotOurs> {
    let (user, owner, mode) = (user(), stat.st_uid, stat.st_mode & 0o7777);
    if owner != user && owner != 0 {
        return Err(NotOurs::Owner { path: path.to_owned(), owner, user });
    }
    if mode & 0o022 != 0 {
        return Err(NotOurs::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Opens a regular file that belongs to this user or root for reading. No link, pipe or device is opened in its place.
///
/// # Errors
/// The system's error, or `InvalidData` with what is wrong.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_file_to(path, OFlags::RDONLY)
}

/// As [`open_file`], with other flags. What it creates is private to this user.
///
/// # Errors
/// As [`open_file`].
pub fn open_file_to(path: &Path, how: OFlags) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO that somebody has put there would wait for ever.
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let (stat, user) = (rustix::fs::fstat(&file)?, user());
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("it is not a regular file".into());
    }
    if stat.st_uid != user && stat.st_uid != 0 {
        return refuse(format!("it belongs to user {}, not to user {user} or root", stat.st_uid));
    }
    Ok(File::from(file))
}

/// The user whose files are ours.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Opens the target of `path`, one component at a time, and follows only links that nobody else has planted.
fn resolve(path: &Path) -> io::Result<OwnedFd> {
    let absolute = std::path::absolute(path)?;
    let mut rest: VecDeque<OsString> = names(&absolute).collect();
    let mut at = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty())?;
    let (mut seen, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = rest.pop_front() {
        // It is first opened as a directory, because only that makes an automounter mount what belongs there.
        match rustix::fs::openat(&at, &name, DIRECTORY, Mode::empty()) {
            Ok(next) => {
                at = next;
                seen.push(name);
                continue;
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = follow(&at, &seen, &name)?;
        if target.is_absolute() {
            at = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty())?;
            seen = PathBuf::from("/");
        }
        names(&target).rev().for_each(|name| rest.push_front(name));
    }
    Ok(at)
}

/// The components of a path that name something; `..` is one.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    let is_name = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|component| component.as_os_str().to_owned())
}

/// Where a link leads, if it is trusted.
fn follow(directory: &OwnedFd, path: &Path, name: &OsStr) -> io::Result<PathBuf> {
    let link = rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (stat, around) = (rustix::fs::fstat(&link)?, rustix::fs::fstat(directory)?);
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR.into());
    }
    if !is_link_believed(&around, stat.st_uid, user()) {
        return Err(NotOurs::Link { path: path.join(name), owner: stat.st_uid }.into());
    }
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Where everybody may write, a link counts only if it belongs to this user, to root, or to the owner of the directory.
fn is_link_believed(directory: &Stat, owner: u32, user: u32) -> bool {
    directory.st_mode & 0o002 == 0 || [user, 0, directory.st_uid].contains(&owner)
}

/// Where this user's files are kept if `directory` is configured: in `directory`, if it is ours alone or does not exist yet
/// (`make` makes it); otherwise in a folder of this user, which is made in it, or next to it if it belongs to somebody else.
///
/// # Errors
/// The system's error; [`NotOurs`], wrapped.
pub fn own_place(directory: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let opened = match open(directory, Trust::Ours) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(directory).and_then(|()| open(directory, Trust::Ours))
        }
        other => other,
    };
    let foreign = match opened {
        Err(error) if is_not_ours(&error) => error,
        other => return other.map(|_| directory.to_owned()),
    };
    let (place, name) = instead_of(directory);
    let made = private_folder(&place, &name);
    match &made {
        Ok(folder) => log::info!("event=own-folder path={} reason={foreign}", folder.display()),
        Err(error) => log::warn!("event=no-own-folder place={} error={error}", place.display()),
    }
    // The error is about the directory that was configured.
    made.map_err(|_| foreign)
}

/// The places that [`own_place`] has made, now or earlier, or would make. This call makes nothing.
///
/// # Errors
/// As [`own_place`].
pub fn own_places(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let foreign = match open(directory, Trust::Ours) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![directory.to_owned()]),
        Err(error) if is_not_ours(&error) => error,
        other => return other.map(|_| vec![directory.to_owned()]),
    };
    let (place, name) = instead_of(directory);
    match private_folders(&place, &name)? {
        (found, _) if !found.is_empty() => Ok(found),
        _ if is_shared(&place) => Ok(vec![place.join(name)]),
        _ => Err(foreign),
    }
}

/// Where a folder of this user is made if `directory` is not ours: in it if everybody may make files there, otherwise next to it.
fn instead_of(directory: &Path) -> (PathBuf, String) {
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) if !is_shared(directory) && is_shared(parent) => {
            (parent.to_owned(), format!("{}-{}", name.to_string_lossy(), user()))
        }
        _ => (directory.to_owned(), format!("bivouac-{}", user())),
    }
}

fn is_not_ours(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotOurs>())
}

/// May everybody make files in the directory, and only the owner of a file remove it?
fn is_shared(directory: &Path) -> bool {
    rustix::fs::stat(directory).is_ok_and(|stat| stat.st_mode & 0o1002 == 0o1002)
}

/// A folder in `place` that only this user may enter, which is made if it does not exist. Ranks that ask at the same
/// time get the same folder.
///
/// # Errors
/// The system's error; [`NotOurs::Taken`], wrapped, if others have taken all its names.
pub fn private_folder(place: &Path, name: &str) -> io::Result<PathBuf> {
    let directory = resolve(place)?;
    let mut taken = Vec::new();
    for name in candidates(name) {
        match rustix::fs::mkdirat(&directory, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        match why_not_private(&directory, &name)? {
            None => return Ok(place.join(name)),
            Some(why) => taken.push(said(&place.join(&name), &why)),
        }
    }
    Err(NotOurs::Taken { place: place.to_owned(), taken }.into())
}

/// All folders in `place` that [`private_folder`] may have made, and descriptions of what occupies its other names.
///
/// # Errors
/// The system's error. A place that does not exist contains no folders, which is not an error.
pub fn private_folders(place: &Path, name: &str) -> io::Result<(Vec<PathBuf>, Vec<String>)> {
    let directory = match resolve(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        other => other?,
    };
    let (mut found, mut taken) = (Vec::new(), Vec::new());
    for name in candidates(name) {
        match why_not_private(&directory, &name) {
            Ok(None) => found.push(place.join(name)),
            Ok(Some(why)) => taken.push(format!("{} {why}", place.join(&name).display())),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok((found, taken))
}

fn candidates(name: &str) -> impl Iterator<Item = String> + '_ {
    (0..NAMES_TRIED).map(move |number| if number == 0 { name.to_owned() } else { format!("{name}.{number}") })
}

fn said(path: &Path, why: &str) -> String {
    let text = format!("{} {why}", path.display());
    log::warn!("event=name-taken {text}; it is left alone, and another name is used");
    text
}

fn why_not_private(directory: &OwnedFd, name: impl AsRef<OsStr>) -> Result<Option<String>, Errno> {
    let stat = rustix::fs::statat(directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?;
    let (kind, mode) = (FileType::from_raw_mode(stat.st_mode), stat.st_mode & 0o7777);
    Ok(if stat.st_uid != user() {
        Some(format!("belongs to user {}, not to user {}", stat.st_uid, user()))
    } else if kind != FileType::Directory {
        Some("is not a directory".into())
    } else {
        (mode & 0o077 != 0).then(|| format!("is open to others (mode {mode:03o}): chmod 700 makes it usable"))
    })
}
