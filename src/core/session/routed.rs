//! The files of a checkpoint that the program writes itself.
#![forbid(unsafe_code)]

use crate::tier::routed::Folder;
use std::path::PathBuf;

/// The routed files of a checkpoint whose regions are being added.
pub(super) struct Routed {
    pub folder: Folder,
    /// The names of the regions, and the paths of their files.
    pub files: Vec<(String, PathBuf)>,
}

impl Routed {
    /// Does the region `name` have a file?
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(known, _)| known == name)
    }

    /// Removes the files, which are no longer needed.
    pub fn remove(&self) {
        self.folder.remove();
    }
}
