//! Files that the application writes and reads itself: where they are while it does.
//!
//! ```text
//! <scratch>/veloc-files/<job>/<group>-r000002/<series>-<version>/<hash>-<name>
//! ```
//!
//! Other users may write to the scratch directory of many sites. So the tree begins in a directory of this user
//! ([`bivouac_core::tier::ours`]), its folders have mode 0700, and no link is followed on the way. What the application
//! creates there has the mode that it wants; what is brought back for it has mode 0600, and nobody else gets as far as
//! that.
#![forbid(unsafe_code)]

use super::names;
use bivouac_core::base::Digest;
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::log;
use bivouac_core::config::Direct;
use bivouac_core::region::ReadBlocks;
use bivouac_core::tier::ours::{self, Trust};
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::storage::{Create, Storage};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The folder of one version of one rank.
pub(super) struct Folder {
    scratch: PathBuf,
    below: PathBuf,
}

impl Folder {
    pub(super) fn new(scratch: &Path, job: &str, group: &str, rank: u32, series: &str, version: u64) -> Folder {
        let rank = format!("{group}-r{rank:06}");
        let below = Path::new("veloc-files").join(job).join(rank).join(format!("{series}-{version}"));
        Folder { scratch: scratch.to_owned(), below }
    }

    /// The folder's path, and a way to it that no link leads away from.
    fn reach(&self) -> io::Result<(PosixStorage, PathBuf)> {
        let storage = PosixStorage::new(Direct::Off);
        let root = ours::own_place(&self.scratch, |scratch| storage.create_dir_all(scratch))?;
        storage.hold(&root, Trust::Ours)?;
        Ok((storage, root.join(&self.below)))
    }

    fn named(&self, original: &str, error: &io::Error) -> String {
        format!("{}: {error}", self.scratch.join(&self.below).join(names::routed(original)).display())
    }

    /// Makes room for a file that the application is going to write; what an earlier run left of it is gone.
    ///
    /// # Errors
    /// With the path.
    pub(super) fn prepare(&self, original: &str) -> Result<PathBuf, String> {
        let made = self.reach().and_then(|(storage, folder)| make_room(&storage, &folder, original));
        made.map_err(|error| self.named(original, &error))
    }

    /// Brings a file back, whole or not at all.
    ///
    /// # Errors
    /// With the path.
    pub(super) fn bring_back(&self, original: &str, bytes: &[u8]) -> Result<PathBuf, String> {
        let brought = self.reach().and_then(|(storage, folder)| {
            let path = make_room(&storage, &folder, original)?;
            let part = path.with_extension("part");
            remove_file(&storage, &part)?;
            let written = storage.open_write(&part, Create::New).and_then(|file| file.write_at(0, bytes));
            written.and_then(|()| storage.rename(&part, &path)).map(|()| path).inspect_err(|_| {
                // Nothing of a full file system is left to those that need room.
                _ = storage.remove_file(&part);
            })
        });
        brought.map_err(|error| self.named(original, &error))
    }

    /// Removes the folder when nobody needs it any more.
    pub(super) fn remove(&self) {
        let removed = self.reach().and_then(|(storage, folder)| remove_tree(&storage, &folder));
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            let path = self.scratch.join(&self.below);
            log::warn!("event=veloc-files-not-removed path={} error={error}", path.display());
        }
    }
}

fn make_room(storage: &PosixStorage, folder: &Path, original: &str) -> io::Result<PathBuf> {
    let path = folder.join(names::routed(original));
    storage.create_dir_all(folder)?;
    remove_file(storage, &path).map(|()| path)
}

fn remove_file(storage: &PosixStorage, path: &Path) -> io::Result<()> {
    match storage.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_tree(storage: &PosixStorage, folder: &Path) -> io::Result<()> {
    for entry in storage.list(folder)? {
        let path = folder.join(&entry.name);
        match entry.is_dir {
            true => remove_tree(storage, &path)?,
            false => remove_file(storage, &path)?,
        }
    }
    storage.remove_dir(folder)
}

/// What the application has written: read when its checkpoint is captured, straight into its place.
#[derive(Debug)]
pub(super) struct Content {
    file: File,
    bytes: u64,
    path: PathBuf,
}

/// # Errors
/// There is no such file, or it cannot be read.
pub(super) fn content(path: &Path) -> Result<Content, String> {
    let opened = ours::open_file(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (bytes, file) = opened.map_err(|error| not_saved(path, &error))?;
    Ok(Content { file, bytes, path: path.to_owned() })
}

fn not_saved(path: &Path, error: &io::Error) -> String {
    format!("the routed file {} was not saved: {error}", path.display())
}

impl ReadBlocks for Content {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let mut at = at;
        for (block, digest) in target.chunks_mut(block_bytes as usize).zip(digests) {
            self.file.read_exact_at(block, at).map_err(|error| not_saved(&self.path, &error))?;
            *digest = digest_bytes(block);
            at += block.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn read(path: &Path) -> Vec<u8> {
        let content = content(path).unwrap();
        let (mut bytes, mut digests) = (vec![0; content.bytes() as usize], vec![Digest::default(); 2]);
        content.read(0, 4096, &mut bytes, &mut digests).unwrap();
        bytes
    }

    #[test]
    fn a_file_goes_and_comes_back() {
        let scratch = tempfile::tempdir().unwrap();
        let at = Folder::new(scratch.path(), "job", "world", 1, "heat", 20);
        let path = at.prepare("out/heat.dat").unwrap();
        assert!(content(&path).unwrap_err().contains("was not saved"));
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(read(&path), b"old");
        assert!(!at.prepare("out/heat.dat").unwrap().exists(), "what was there is gone");
        assert_eq!(at.bring_back("out/heat.dat", b"new").unwrap(), path);
        assert_eq!(read(&path), b"new");
        let opened = content(&path).unwrap();
        std::fs::write(&path, b"n").unwrap();
        let cut = opened.read(0, 4096, &mut [0; 3], &mut [Digest::default()]);
        assert!(cut.unwrap_err().contains("was not saved"), "one that is cut meanwhile is noticed");
        std::fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(content(&path).is_err(), "an endless one is not read");
        std::fs::create_dir_all(path.with_file_name("made/by/the/application")).unwrap();
        at.remove();
        at.remove();
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn a_planted_part_is_replaced_and_not_written_through() {
        let (scratch, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = Folder::new(scratch.path(), "job", "world", 1, "heat", 20);
        let path = at.prepare("heat.dat").unwrap();
        let target = outside.path().join("precious");
        std::fs::write(&target, b"precious").unwrap();
        symlink(&target, path.with_extension("part")).unwrap();
        assert_eq!(at.bring_back("heat.dat", b"new").unwrap(), path);
        assert_eq!(
            (std::fs::read(&path).unwrap(), std::fs::read(&target).unwrap()),
            (b"new".into(), b"precious".into())
        );
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn a_linked_folder_is_neither_filled_nor_emptied() {
        let (scratch, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = Folder::new(scratch.path(), "job", "world", 1, "heat", 20);
        let folder = at.prepare("heat.dat").unwrap().parent().unwrap().to_owned();
        std::fs::remove_dir(&folder).unwrap();
        std::fs::write(outside.path().join("precious"), b"precious").unwrap();
        symlink(outside.path(), &folder).unwrap();
        assert!(at.bring_back("heat.dat", b"new").is_err());
        at.remove();
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn in_a_scratch_directory_of_all_users_the_files_are_in_a_folder_of_their_owner() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let at = Folder::new(scratch.path(), "job", "world", 1, "heat", 20);
        let path = at.bring_back("heat.dat", b"new").unwrap();
        let own = scratch.path().join(format!("bivouac-{}", ours::user()));
        assert!(path.starts_with(&own), "{}", path.display());
        assert_eq!(mode(&own), 0o700);
    }
}
