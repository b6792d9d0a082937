//! Files that the application writes and reads itself: where they are while it does.
//!
//! ```text
//! <scratch>/veloc-files/<job>/<group>-r000002/<series>-<version>/<hash>-<name>
//! ```
#![forbid(unsafe_code)]

use super::names;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of one version of one rank.
pub(super) fn folder(scratch: &Path, job: &str, group: &str, rank: u32, series: &str, version: u64) -> PathBuf {
    scratch.join("veloc-files").join(job).join(format!("{group}-r{rank:06}")).join(format!("{series}-{version}"))
}

/// Makes room for a file that the application is going to write; what an earlier run left of it is gone.
///
/// # Errors
/// With the path.
pub(super) fn prepare(folder: &Path, original: &str) -> Result<PathBuf, String> {
    let path = folder.join(names::routed(original));
    let made = std::fs::create_dir_all(folder).and_then(|()| match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    made.map(|()| path.clone()).map_err(|error| format!("{}: {error}", path.display()))
}

/// What the application has written.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub(super) fn content(path: &Path) -> Result<Vec<u8>, String> {
    let read = std::fs::symlink_metadata(path).and_then(|metadata| match metadata.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::other("it is not a file")),
    });
    read.map_err(|error| format!("the routed file {} was not saved: {error}", path.display()))
}

/// Brings a file back, whole or not at all.
///
/// # Errors
/// With the path.
pub(super) fn bring_back(folder: &Path, original: &str, bytes: &[u8]) -> Result<PathBuf, String> {
    let path = prepare(folder, original)?;
    let part = path.with_extension("part");
    let brought = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &path));
    brought.map(|()| path.clone()).map_err(|error| {
        // Nothing of a full file system is left to those that need room.
        _ = std::fs::remove_file(&part);
        format!("{}: {error}", path.display())
    })
}

/// Removes a folder when nobody needs it any more.
pub(super) fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        log::warn!("event=veloc-files-not-removed path={} error={error}", folder.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_and_comes_back() {
        let scratch = tempfile::tempdir().unwrap();
        let at = folder(scratch.path(), "job", "world", 1, "heat", 20);
        let path = prepare(&at, "out/heat.dat").unwrap();
        assert!(content(&path).unwrap_err().contains("was not saved"));
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(content(&path).unwrap(), b"old");
        assert!(!prepare(&at, "out/heat.dat").unwrap().exists(), "what was there is gone");
        assert_eq!(bring_back(&at, "out/heat.dat", b"new").unwrap(), path);
        assert_eq!(content(&path).unwrap(), b"new");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(content(&path).is_err(), "an endless one is not read");
        remove(&at);
        remove(&at);
        assert!(!at.exists());
    }
}
