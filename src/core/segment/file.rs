//! The segment as a file: how one is made, opened, checked, listed and removed. Nothing here is mapped.
#![forbid(unsafe_code)]

use super::SegmentError;
use super::layout::{HEADER_LEN, NODE_RANKS_MAX, SegmentHeader};
use super::map;
use crate::base::log;
use crate::format::FormatError;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The only permission bits that a segment may have.
const MODE: u32 = 0o600;

/// The path of a segment; the name must be a plain file name.
pub(super) fn path_of(directory: &Path, name: &str) -> Result<PathBuf, SegmentError> {
    let plain = !name.is_empty() && name.len() <= 255 && name != "." && name != "..";
    if !plain || name.contains(['/', '\0']) {
        return Err(SegmentError::Name { name: name.chars().take(64).collect() });
    }
    Ok(directory.join(name))
}

/// Makes a new file that only this user may open.
pub(super) fn create_new(path: &Path) -> Result<File, SegmentError> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => SegmentError::Exists { path: path.to_owned() },
            _ => SegmentError::io(path, "create", source),
        })?;
    // The umask of the process may have removed bits that others expect.
    file.set_permissions(std::fs::Permissions::from_mode(MODE))
        .map_err(|source| SegmentError::io(path, "fchmod", source))?;
    Ok(file)
}

/// Opens an existing segment file and checks that it is a regular file of this user with the right permissions.
pub(super) fn open_checked(path: &Path, write: bool) -> Result<(File, Metadata), SegmentError> {
    // O_NONBLOCK: opening a FIFO that somebody put there must not wait for a writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = File::options().read(true).write(write).custom_flags(flags).open(path);
    let file = opened.map_err(|source| match (source.kind(), source.raw_os_error()) {
        (ErrorKind::NotFound, _) => SegmentError::NotFound { path: path.to_owned() },
        (_, Some(libc::ELOOP)) => SegmentError::NotOurs { path: path.to_owned(), why: "it is a symbolic link".into() },
        (ErrorKind::IsADirectory, _) | (_, Some(libc::ENXIO)) => {
            SegmentError::NotOurs { path: path.to_owned(), why: "it is not a regular file".into() }
        }
        _ => SegmentError::io(path, "open", source),
    })?;
    let metadata = file.metadata().map_err(|source| SegmentError::io(path, "fstat", source))?;
    match why_not_ours(&metadata) {
        Some(why) => Err(SegmentError::NotOurs { path: path.to_owned(), why }),
        None => Ok((file, metadata)),
    }
}

fn why_not_ours(metadata: &Metadata) -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        Some("it is not a regular file".into())
    } else if metadata.uid() != user {
        Some(format!("it belongs to user {}, not to {user}", metadata.uid()))
    } else if metadata.mode() & 0o7777 != MODE {
        Some(format!("its mode is {:o}, not {MODE:o}", metadata.mode() & 0o7777))
    } else {
        None
    }
}

/// Gives a new file its length, reserves the control area, and writes the header; the magic bytes come last, so that
/// nobody takes an unfinished segment for a whole one.
pub(super) fn format_new(file: &File, path: &Path, header: &SegmentHeader) -> Result<(), SegmentError> {
    file.set_len(header.file_len()).map_err(|source| SegmentError::io(path, "ftruncate", source))?;
    reserve_control(file, path, header)?;
    let bytes = header.encode();
    let write = |at: usize, end: usize| {
        file.write_all_at(&bytes[at..end], at as u64).map_err(|source| SegmentError::io(path, "write", source))
    };
    write(8, HEADER_LEN)?;
    write(0, 8)
}

/// Reserves the pages of the control area; pages that exist already are kept.
pub(super) fn reserve_control(file: &File, path: &Path, header: &SegmentHeader) -> Result<(), SegmentError> {
    loop {
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, header.control_len()) {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(SegmentError::os(path, "fallocate", errno)),
            Ok(()) => return Ok(()),
        }
    }
}

/// Reads and checks the header, and checks that the file is as long as the header says.
pub(super) fn read_header(file: &File, path: &Path, metadata: &Metadata) -> Result<SegmentHeader, SegmentError> {
    let mut bytes = [0u8; HEADER_LEN];
    let unfinished = || SegmentError::Unfinished { path: path.to_owned() };
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(if metadata.len() == 0 {
                unfinished()
            } else {
                short(path, HEADER_LEN as u64, metadata.len())
            });
        }
        Err(source) => return Err(SegmentError::io(path, "read", source)),
        Ok(()) => {}
    }
    if bytes[..8] == [0; 8] {
        return Err(unfinished());
    }
    let header =
        SegmentHeader::decode(&bytes).map_err(|source| SegmentError::Damaged { path: path.to_owned(), source })?;
    if metadata.len() < header.file_len() {
        return Err(short(path, header.file_len(), metadata.len()));
    }
    Ok(header)
}

fn short(path: &Path, need: u64, have: u64) -> SegmentError {
    SegmentError::Damaged { path: path.to_owned(), source: FormatError::Short { what: "memory segment", need, have } }
}

/// Does the path still name this file?
pub(super) fn is_linked(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    ours.nlink() > 0 && (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// Removes the name if it still refers to this file. A name that no longer exists, or that refers to another file, is left alone.
pub(super) fn unlink(file: &File, path: &Path) -> Result<(), SegmentError> {
    if !is_linked(file, path) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(SegmentError::io(path, "unlink", source)),
        _ => Ok(()),
    }
}

/// Warns when the directory is not in memory: a segment on a disk works, slowly, and wears the disk.
pub(super) fn warn_unless_memory(directory: &Path) {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    if let Ok(fs) = rustix::fs::statfs(directory) {
        let kind = fs.f_type;
        if kind != TMPFS && kind != RAMFS {
            log::warn!("segment directory is not in memory path={} fs_type={kind:#x}", directory.display());
        }
    }
}

/// Names of the regular files in `directory` that start with `prefix` and belong to this user, sorted.
///
/// A directory that does not exist holds none. Nothing is opened: a listed name may still turn out to be garbage.
///
/// # Errors
/// [`SegmentError::Os`] if the directory cannot be read.
pub fn list(directory: &Path, prefix: &str) -> Result<Vec<String>, SegmentError> {
    let user = rustix::process::geteuid().as_raw();
    let found = entries(directory, prefix)?.into_iter();
    Ok(found.filter(|(_, found)| found.is_file() && found.uid() == user).map(|(name, _)| name).collect())
}

/// The files in `directory` whose names start with `prefix` and that belong to another user: path and owner. None of them is ever opened.
pub fn strangers(directory: &Path, prefix: &str) -> Vec<(PathBuf, u32)> {
    let user = rustix::process::geteuid().as_raw();
    let found = entries(directory, prefix).unwrap_or_default().into_iter();
    found.filter(|(_, found)| found.uid() != user).map(|(name, found)| (directory.join(name), found.uid())).collect()
}

/// The entries whose names start with `prefix`, sorted. Links are not followed; a file that has vanished meanwhile is left out.
fn entries(directory: &Path, prefix: &str) -> Result<Vec<(String, Metadata)>, SegmentError> {
    let entries = match std::fs::read_dir(directory) {
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| SegmentError::io(directory, "opendir", source))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| SegmentError::io(directory, "readdir", source))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(prefix) {
            found.extend(entry.metadata().ok().map(|metadata| (name, metadata)));
        }
    }
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Does a living process hold a place in the file? Meant for files that [`super::OldSegment`] refuses to open. Nobody can say how
/// many places such a file has, but its creator holds the first one from the start.
///
/// # Errors
/// [`SegmentError::NotFound`], [`SegmentError::NotOurs`], [`SegmentError::Name`], [`SegmentError::Os`].
pub fn is_held(directory: &Path, name: &str) -> Result<bool, SegmentError> {
    let path = path_of(directory, name)?;
    let (file, _) = open_checked(&path, false)?;
    map::is_locked(&file, 0, u64::from(NODE_RANKS_MAX)).map_err(|errno| SegmentError::os(&path, "fcntl", errno))
}

/// Removes a segment by name without looking inside. Meant for files that [`super::OldSegment`] refuses to open.
///
/// # Errors
/// [`SegmentError::NotFound`], [`SegmentError::NotOurs`] for a link, a special file or another user's file,
/// [`SegmentError::Name`], [`SegmentError::Os`].
pub fn remove(directory: &Path, name: &str) -> Result<(), SegmentError> {
    let path = path_of(directory, name)?;
    let metadata = std::fs::symlink_metadata(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => SegmentError::NotFound { path: path.clone() },
        _ => SegmentError::io(&path, "lstat", source),
    })?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(SegmentError::NotOurs { path, why: "it is not a regular file of this user".into() });
    }
    std::fs::remove_file(&path).map_err(|source| SegmentError::io(&path, "unlink", source))
}
