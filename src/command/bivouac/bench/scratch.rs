//! A folder for the files of a benchmark, in a directory that is used for something else. It is removed with everything in it.

use bivouac_core::tier::TierId;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// The folder, which exists until it is dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a new folder. Node-local storage that is memory is refused: a benchmark on it says nothing about a disk.
    ///
    /// # Errors
    /// The folder cannot be created; the error says why and names the path.
    pub fn in_directory(directory: &Path, tier: TierId) -> Result<Scratch, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", directory.display());
        let kind = rustix::fs::statfs(directory).map_err(|errno| failed(&std::io::Error::from(errno)))?.f_type as u64;
        if tier != TierId::MEMORY && [TMPFS, RAMFS].contains(&kind) {
            return Err(failed(&"it is a tmpfs, which is memory: name a disk"));
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("bivouac-bench-{}-{number}", std::process::id()));
        let path = std::path::absolute(&path).map_err(|error| failed(&error))?;
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed(&error))?;
        Ok(Scratch { path })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            crate::output::complain(&format!("{} stays: {error}; remove it", self.path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_afterwards_and_memory_is_no_disk() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = {
            let scratch = Scratch::in_directory(directory.path(), TierId::MEMORY).expect("made");
            std::fs::write(scratch.path().join("file"), "bytes").expect("written");
            scratch.path().to_owned()
        };
        assert!(!path.exists() && directory.path().exists());
        let memory = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let refused = Scratch::in_directory(memory.path(), TierId::LOCAL).err().expect("refused");
        assert!(refused.contains("it is a tmpfs") && refused.contains("/dev/shm/"), "{refused}");
        let gone = Scratch::in_directory(&directory.path().join("gone"), TierId::GLOBAL).err().expect("refused");
        assert!(gone.contains("/gone: No such file or directory (os error 2)"), "{gone}");
    }
}
