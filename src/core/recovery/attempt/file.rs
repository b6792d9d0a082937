//! Regions that are brought back as files.
#![forbid(unsafe_code)]

use super::{Attempt, Window};
use crate::recovery::load_error::LoadError;
use crate::tier::routed::Folder;
use crate::tier::storage::{WriteFile, zeroed};
use std::io;
use std::path::PathBuf;

/// The number of bytes that are read, checked and written at once.
const PIECE: u64 = 16 << 20;

impl Attempt {
    /// Brings a region back as a file. The region may have been written as a file
    /// ([`CheckpointBuilder::route`](crate::CheckpointBuilder::route)), or may be any other array that belongs to this rank. The path is in
    /// node-local storage. The file has mode 600 and exists until the attempt ends. Every block is checked before it is written.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, read: impl Fn(&std::path::Path) -> std::io::Result<()>) -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|attempt| {
    ///     let path = attempt.route("dump.h5")?;
    ///     read(&path).map_err(bivouac::Error::application)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. If a different number of ranks took the checkpoint, no region belongs to this rank.
    ///
    /// # Blocking
    /// On the tier that holds the copy, and on node-local storage.
    ///
    /// # Errors
    /// [`LoadError::Missing`]; [`LoadError::Mismatch`] if the region is a value; [`LoadError::NoCopy`]; [`LoadError::File`] if the file
    /// cannot be written.
    pub fn route(&mut self, name: &str) -> Result<PathBuf, LoadError> {
        let folder = match (&self.routed, &self.opener) {
            (Some(folder), _) => folder.clone(),
            (None, Some(opener)) => {
                let attempted = opener.attempted();
                opener.engine().routed(&attempted.series, attempted.key.version)
            }
            (None, None) => return Err(self.no_file(name, "it is loaded without a session".into())),
        };
        self.routed = Some(folder.clone());
        self.bring_back(&folder, name, name)
    }

    /// Brings region `name` back as the file `original` in a folder.
    ///
    /// # Errors
    /// See [`Attempt::route`].
    #[doc(hidden)]
    pub fn bring_back(&mut self, folder: &Folder, original: &str, name: &str) -> Result<PathBuf, LoadError> {
        let mut window = Window::new(self, name)?;
        let brought = folder.bring_back(original, |file| self.fill(&mut window, name, file));
        brought.unwrap_or_else(|why| Err(self.no_file(name, why)))
    }

    fn fill(&mut self, window: &mut Window, name: &str, file: &dyn WriteFile) -> io::Result<Result<(), LoadError>> {
        let length = window.length();
        let Ok(mut piece) = zeroed::<u8>(PIECE.min(length)) else { return Ok(Err(self.no_memory(name, PIECE))) };
        let mut at = 0;
        while at < length {
            match window.read(self, at, &mut piece) {
                Ok(read) => file.write_at(at, &piece[..read])?,
                Err(error) => return Ok(Err(error)),
            }
            at += piece.len() as u64;
        }
        Ok(Ok(()))
    }

    fn no_file(&self, name: &str, why: String) -> LoadError {
        LoadError::File { rank: self.rank, key: self.key, region: name.into(), why }
    }
}
