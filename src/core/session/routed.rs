//! The files of a checkpoint that the program writes itself.
#![forbid(unsafe_code)]

use crate::tier::routed::Folder;
use std::path::PathBuf;

/// Files of a checkpoint that is being put together.
pub(super) struct Routed {
    pub folder: Folder,
    /// Names of regions, and where their files are.
    pub files: Vec<(String, PathBuf)>,
}

impl Routed {
    /// Is there a file of that name?
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(known, _)| known == name)
    }

    /// The files are not needed any more.
    pub fn remove(&self) {
        self.folder.remove();
    }
}
