//! Files that VELOC itself has written: which versions are complete for a rank, and their bytes.
#![forbid(unsafe_code)]

use super::names;
use super::old::{COUNT_BYTES, OldRegion, decode, list_bytes};
use bivouac_core::base::log;
use bivouac_core::tier::ours;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A complete file of one rank.
pub(super) struct OldFile {
    path: PathBuf,
    file: File,
    regions: Vec<OldRegion>,
}

impl OldFile {
    /// Opens a file and reads its list of regions.
    ///
    /// # Errors
    /// The file cannot be read, or is incomplete.
    pub(super) fn open(path: &Path) -> io::Result<OldFile> {
        // Anyone may know these names, and may have put a file there first.
        let file = ours::open_file(path)?;
        let bytes = file.metadata()?.len();
        let mut count = [0; COUNT_BYTES];
        file.read_exact_at(&mut count, 0)?;
        let length = list_bytes(count, bytes).map_err(io::Error::other)?;
        let mut list = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut list, 0)?;
        let regions = decode(&list, bytes).map_err(io::Error::other)?;
        Ok(OldFile { path: path.to_owned(), file, regions })
    }

    /// The regions of the file.
    pub(super) fn regions(&self) -> &[OldRegion] {
        &self.regions
    }

    /// Reads a region into `target`, which must be as long as the region.
    ///
    /// # Errors
    /// The text names the path and the region's number.
    pub(super) fn read(&self, region: &OldRegion, target: &mut [u8]) -> Result<(), String> {
        let read = self.file.read_exact_at(target, region.at);
        read.map_err(|error| format!("{}: region {} cannot be read: {error}", self.path.display(), region.id))
    }
}

/// The first complete file of a version, in the order of the folders.
pub(super) fn find(
    folders: &[&Path],
    name: &str,
    rank: u32,
    ranks: Option<u32>,
    version: u64,
) -> Result<OldFile, String> {
    // If more ranks than now wrote the version, the data of the others would be lost.
    if let Some(ranks) = ranks {
        let more = names::old_file(name, ranks, version);
        if let Some(folder) = folders.iter().find(|folder| folder.join(&more).exists()) {
            let path = folder.join(more);
            return Err(format!("version {version} was written by more than {ranks} ranks: {}", path.display()));
        }
    }
    let mut causes = Vec::new();
    for folder in folders {
        let path = folder.join(names::old_file(name, rank, version));
        match OldFile::open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => causes.push(format!("{}: {error}", path.display())),
        }
    }
    let why = if causes.is_empty() { "there is no such file".into() } else { causes.join("; ") };
    Err(format!("version {version} of {name:?}, as VELOC writes it: {why}"))
}

/// The versions of which this rank has a complete file.
pub(super) fn versions(folders: &[&Path], name: &str, rank: u32, ranks: Option<u32>) -> BTreeSet<u64> {
    let named = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let names = named.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let found: BTreeSet<u64> = names.filter_map(|file| names::parse_old_file(&file, name, rank)).collect();
    let is_whole = |version: &u64| match find(folders, name, rank, ranks, *version) {
        Ok(_) => true,
        Err(why) => {
            log::warn!("event=veloc-file-passed-over rank={rank} reason={why:?}");
            false
        }
    };
    found.into_iter().filter(is_whole).collect()
}

/// Deletes all files that VELOC wrote for this rank and name.
///
/// # Errors
/// The first deletion that failed.
pub(super) fn remove_all(folders: &[&Path], name: &str, rank: u32) -> Result<(), String> {
    for folder in folders {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_named =
                entry.file_name().to_str().and_then(|file| names::parse_old_file(file, name, rank)).is_some();
            if is_named && entry.metadata().is_ok_and(|metadata| metadata.uid() == ours::user()) {
                let path = entry.path();
                std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_count_and_another_folder_may_have_them() {
        let (scratch, persistent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [scratch.path(), persistent.path()];
        let mut whole = 1u64.to_ne_bytes().to_vec();
        whole.extend(5i32.to_ne_bytes());
        whole.extend(4u64.to_ne_bytes());
        whole.extend(b"data");
        let write = |folder: &Path, file: &str, bytes: &[u8]| std::fs::write(folder.join(file), bytes).unwrap();
        write(scratch.path(), "heat-0-10.dat", &whole);
        write(scratch.path(), "heat-0-20.dat", &whole[..20]);
        write(persistent.path(), "heat-0-20.dat", &whole);
        write(scratch.path(), "heat-0-30.dat", b"");
        write(scratch.path(), "heat-0-40.dat", &whole);
        write(scratch.path(), "heat-2-40.dat", &whole);
        std::fs::create_dir(scratch.path().join("heat-0-50.dat")).unwrap();
        assert_eq!(versions(&folders, "heat", 0, Some(2)), [10, 20].into(), "40 was written by three ranks");
        assert_eq!(versions(&folders, "heat", 2, None), [40].into(), "a process alone has no other ranks");
        let file = find(&folders, "heat", 0, Some(2), 20).unwrap();
        let mut bytes = [0; 4];
        file.read(&file.regions()[0], &mut bytes).unwrap();
        assert_eq!((file.regions()[0].id, &bytes), (5, b"data"));
        assert!(find(&folders, "heat", 0, Some(2), 30).is_err() && find(&folders, "heat", 1, Some(2), 10).is_err());
        std::fs::remove_dir(scratch.path().join("heat-0-50.dat")).unwrap();
        remove_all(&folders, "heat", 0).unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1, "another rank's file stays");
    }

    #[test]
    fn a_file_that_another_user_has_put_there_is_no_version_and_stays() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!(
                "\n*** SKIPPED: it changes owners. Run it as root: sudo -E cargo nextest run --lib another_user_has_put ***\n"
            );
        }
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("heat-0-10.dat");
        std::fs::write(&path, 0u64.to_ne_bytes()).unwrap();
        assert_eq!(versions(&[scratch.path()], "heat", 0, None), [10].into());
        std::os::unix::fs::chown(&path, Some(20_002), None).unwrap();
        assert!(versions(&[scratch.path()], "heat", 0, None).is_empty());
        let why = find(&[scratch.path()], "heat", 0, None, 10).err().unwrap();
        assert!(why.contains("belongs to user 20002"), "{why}");
        remove_all(&[scratch.path()], "heat", 0).unwrap();
        assert!(path.exists());
    }
}
