//! Copies of stores, to be damaged: the places of their files, and how to copy files that are full of holes.

use rustix::fs::SeekFrom;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A copy of a store, to be damaged.
pub struct Case {
    pub folder: PathBuf,
}

impl Case {
    /// Copies a store with these directories for memory, local and global tier into a folder with this name.
    pub fn copy(tiers: [&Path; 3], parent: &Path, name: &str) -> Case {
        let folder = parent.join(name);
        for (tier, from) in ["memory", "local", "global"].into_iter().zip(tiers) {
            copy_tree(from, &folder.join(tier)).unwrap();
        }
        Case { folder }
    }

    pub fn tier(&self, tier: &str) -> PathBuf {
        self.folder.join(tier)
    }

    /// Removes a tier.
    pub fn lose(&self, tier: &str) {
        fs::remove_dir_all(self.tier(tier)).unwrap();
        fs::create_dir(self.tier(tier)).unwrap();
    }

    /// The memory segment.
    pub fn segment(&self) -> PathBuf {
        let all = files(&self.tier("memory"), "");
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// A file of a version.
    pub fn file(&self, tier: &str, version: u64, name: &str) -> PathBuf {
        let part = format!("-v{version:010}-");
        let found = files(&self.tier(tier), name);
        let found: Vec<_> = found.into_iter().filter(|path| path.to_string_lossy().contains(&part)).collect();
        assert_eq!(found.len(), 1, "{tier} {version} {name}: {found:?}");
        found[0].clone()
    }

    /// The versions that a tier holds. With references, these are more versions than retention keeps by number.
    pub fn versions(&self, tier: &str) -> Vec<u64> {
        versions(&self.tier(tier))
    }

    /// Removes a version from a tier.
    pub fn lose_version(&self, tier: &str, version: u64) {
        fs::remove_dir_all(self.file(tier, version, "manifest").parent().unwrap()).unwrap();
    }
}

/// The versions below a folder, ascending.
pub fn versions(folder: &Path) -> Vec<u64> {
    let version = |path: &PathBuf| {
        let folder = path.parent()?.file_name()?.to_str()?;
        folder.split_once("-v")?.1.split_once('-')?.0.parse().ok()
    };
    files(folder, "manifest").iter().filter_map(version).collect()
}

/// All files below a folder whose names end with this text.
pub fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        // Retention may delete files during this walk.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        // The copy of a local directory belongs to the copied store next to it.
        if entry.file_name() == "of-store" {
            continue;
        }
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            copy_sparse(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Copies the data of a file and keeps its holes: a segment consists almost entirely of holes, and
/// an extra one is damage.
pub fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let (source, target) = (File::open(from)?, File::create(to)?);
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&source, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&source, SeekFrom::Hole(start))?;
        let mut bytes = vec![0; (end - start) as usize];
        source.read_exact_at(&mut bytes, start)?;
        target.write_all_at(&bytes, start)?;
        at = end;
    }
    target.set_permissions(source.metadata()?.permissions())
}
