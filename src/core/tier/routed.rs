//! Files that the application writes and reads itself, and that are regions of a checkpoint: where they are in the meantime.
//!
//! ```text
//! <root>/<tree>/<job>/<group>-r000002/<series>-<version>/<hash>-<name>
//! ```
//!
//! At many sites, other users may write to the scratch directory. So the root is a directory of this user ([`ours`]), the folders have mode
//! 0700, and no link is followed on the way. Files that the application creates there have the mode that it chooses. Files that are brought
//! back for it have mode 0600, and nobody else can reach them.
#![forbid(unsafe_code)]

use super::names::Series;
use super::ours::{self, Trust};
use super::posix::PosixStorage;
use super::storage::{Create, Storage, WriteFile};
use crate::base::digest::digest_bytes;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{Digest, Rank};
use crate::config::Direct;
use crate::region::ReadBlocks;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The tree of files that programs route themselves. No job has such a name.
pub const TREE: &str = ".files";
/// How many characters of a file's own name are kept in the name of its routed file, so that people recognise it.
const SHOWN_MAX: usize = 48;

/// The files of one version of one rank.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    below: PathBuf,
}

impl Folder {
    /// The folder below `root`, in the tree `tree`. Nothing is made yet.
    pub fn new(root: &Path, tree: &str, series: &Series, rank: Rank, version: u64) -> Folder {
        let Series { job, group, name } = series;
        let rank = format!("{group}-r{:06}", rank.0);
        let below = Path::new(tree).join(job).join(rank).join(format!("{name}-{version}"));
        Folder { root: root.to_owned(), below }
    }

    /// The folder's path, and storage that reaches it without following links.
    fn reach(&self) -> io::Result<(PosixStorage, PathBuf)> {
        let storage = PosixStorage::new(Direct::Off);
        let root = ours::own_place(&self.root, |root| storage.create_dir_all(root))?;
        storage.hold(&root, Trust::Ours)?;
        Ok((storage, root.join(&self.below)))
    }

    fn named(&self, original: &str, error: &io::Error) -> String {
        format!("{}: {error}", self.root.join(&self.below).join(routed(original)).display())
    }

    /// Makes room for a file that the application is going to write. Anything that an earlier run left of that file is deleted.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn prepare(&self, original: &str) -> Result<PathBuf, String> {
        let made = self.reach().and_then(|(storage, folder)| make_room(&storage, &folder, original));
        made.map_err(|error| self.named(original, &error))
    }

    /// Brings a file back, whole or not at all: `fill` writes it. Errors of `fill` that do not concern the file are passed on.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn bring_back<E>(
        &self,
        original: &str,
        fill: impl FnOnce(&dyn WriteFile) -> io::Result<Result<(), E>>,
    ) -> Result<Result<PathBuf, E>, String> {
        let brought = self.reach().and_then(|(storage, folder)| {
            let path = make_room(&storage, &folder, original)?;
            let part = path.with_extension("part");
            remove_file(&storage, &part)?;
            let written = storage.open_write(&part, Create::New).and_then(|file| fill(&*file));
            if !matches!(written, Ok(Ok(()))) {
                // On a full file system, no remains take the room that others need.
                _ = storage.remove_file(&part);
            }
            match written? {
                Ok(()) => storage.rename(&part, &path).map(|()| Ok(path)),
                Err(other) => Ok(Err(other)),
            }
        });
        brought.map_err(|error| self.named(original, &error))
    }

    /// Removes the folder when nobody needs it any more.
    pub fn remove(&self) {
        self.remove_below(&self.below);
    }

    /// Removes what earlier runs left of this rank's files, for all series and versions.
    pub fn remove_older(&self) {
        if let Some(rank) = self.below.parent() {
            self.remove_below(rank);
        }
    }

    fn remove_below(&self, below: &Path) {
        let removed = self.reach().and_then(|(storage, folder)| {
            let mut root = folder;
            self.below.components().for_each(|_| _ = root.pop());
            remove_tree(&storage, &root.join(below))
        });
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("event=files-not-removed path={} error={error}", self.root.join(below).display());
        }
    }
}

/// The name under which the application writes and reads a routed file, in its folder.
fn routed(original: &str) -> String {
    let last = original.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let shown: String = last.chars().take(SHOWN_MAX).map(plain).collect();
    format!("{:016x}-{shown}", text_hash(original))
}

fn make_room(storage: &PosixStorage, folder: &Path, original: &str) -> io::Result<PathBuf> {
    let path = folder.join(routed(original));
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

/// A file that the application has written. It is read when its checkpoint is captured, directly into its place in the shard.
#[derive(Debug)]
pub struct Content {
    file: File,
    bytes: u64,
    path: PathBuf,
}

/// Opens what was written to `path`.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub fn content(path: &Path) -> Result<Content, String> {
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

    fn folder(root: &Path) -> Folder {
        let series = Series { job: "job".into(), group: "world".into(), name: "heat".into() };
        Folder::new(root, TREE, &series, Rank(1), 20)
    }

    fn bring_back(at: &Folder, original: &str, bytes: &[u8]) -> Result<PathBuf, String> {
        let brought = at.bring_back(original, |file| file.write_at(0, bytes).map(Ok::<(), ()>));
        brought.map(|brought| brought.expect("nothing else was said"))
    }

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
        let at = folder(scratch.path());
        let path = at.prepare("out/heat.dat").unwrap();
        assert!(content(&path).unwrap_err().contains("was not saved"));
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(read(&path), b"old");
        assert!(!at.prepare("out/heat.dat").unwrap().exists(), "what was there is gone");
        assert_eq!(bring_back(&at, "out/heat.dat", b"new").unwrap(), path);
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
        let failed = at.bring_back("heat.dat", |_| Ok(Err("damage")));
        assert_eq!(failed, Ok(Err("damage")));
        let failed = at.bring_back("heat.dat", |_| -> io::Result<Result<(), ()>> { Err(io::Error::other("full")) });
        assert!(failed.unwrap_err().ends_with("-heat.dat: full"));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "nothing is left of it");
        at.remove_older();
        assert!(!path.parent().unwrap().parent().unwrap().exists() && scratch.path().join(TREE).join("job").exists());
    }

    #[test]
    fn whatever_a_file_is_called_it_has_a_place_of_its_own() {
        for original in ["a/b.dat", "", "\u{fffd}\n", "..", &"x".repeat(1000), &"\u{e9}".repeat(500)] {
            let routed = routed(original);
            assert!(crate::tier::names::is_component(&routed) && routed.is_ascii(), "{routed:?}");
        }
        assert_ne!(routed("a/x.dat"), routed("b/x.dat"));
    }

    #[test]
    fn a_planted_part_is_replaced_and_not_written_through() {
        let (scratch, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = folder(scratch.path());
        let path = at.prepare("heat.dat").unwrap();
        let target = outside.path().join("precious");
        std::fs::write(&target, b"precious").unwrap();
        symlink(&target, path.with_extension("part")).unwrap();
        assert_eq!(bring_back(&at, "heat.dat", b"new").unwrap(), path);
        assert_eq!(
            (std::fs::read(&path).unwrap(), std::fs::read(&target).unwrap()),
            (b"new".into(), b"precious".into())
        );
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn a_linked_folder_is_neither_filled_nor_emptied() {
        let (scratch, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = folder(scratch.path());
        let folder = at.prepare("heat.dat").unwrap().parent().unwrap().to_owned();
        std::fs::remove_dir(&folder).unwrap();
        std::fs::write(outside.path().join("precious"), b"precious").unwrap();
        symlink(outside.path(), &folder).unwrap();
        assert!(bring_back(&at, "heat.dat", b"new").is_err());
        at.remove();
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn in_a_scratch_directory_of_all_users_the_files_are_in_a_folder_of_their_owner() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let at = folder(scratch.path());
        let path = bring_back(&at, "heat.dat", b"new").unwrap();
        let own = scratch.path().join(format!("bivouac-{}", ours::user()));
        assert!(path.starts_with(&own), "{}", path.display());
        assert_eq!(mode(&own), 0o700);
    }
}
