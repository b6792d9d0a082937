//! Regions that the program itself writes as files.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::error::{Error, Result};
use super::routed::Routed;
use crate::base::ids::text_hash;
use crate::format::ElementType;
use crate::region::{self, RegionError};
use crate::tier::routed;
use std::path::PathBuf;

impl<'a> CheckpointBuilder<'a> {
    /// Adds a file as region `name`, for a program that writes the file itself, or for a library that wants a path. Returns the path to
    /// which the file is written, in node-local storage. The file must be complete when the checkpoint is captured; the capture reads and
    /// removes it. [`Attempt::route`](crate::Attempt::route) brings it back; in every other respect it is an array of bytes. If the library
    /// can write to a stream, [`CheckpointBuilder::writer`] avoids the file.
    ///
    /// The path is below `local.directory`, or, if the local tier is off, below the directory that the tier would use. Files that a killed
    /// run left there are removed when the rank routes its first file on that node.
    ///
    /// The region belongs to its rank. A second call with the same name returns the same path.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, step: u64, dump: impl Fn(&std::path::Path) -> std::io::Result<()>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ckpt = session.begin_checkpoint("heat", step)?;
    /// dump(&ckpt.route("dump.h5")?)?;
    /// ckpt.value("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks add the region; its length may differ between ranks.
    ///
    /// # Blocking
    /// On node-local storage. [`CheckpointBuilder::capture`] blocks until the file has been read.
    ///
    /// # Errors
    /// [`Error::Region`]: the name is unusable or is already in use. [`Error::File`]: the file cannot be prepared. If the file is missing
    /// or cannot be read, the capture fails ([`Error::Capture`]), and all ranks are told.
    ///
    /// Source: the functions of the same name in VELOC and SCR.
    pub fn route(&mut self, name: &str) -> Result<PathBuf> {
        region::check_name(name)?;
        let routed = self.routed.get_or_insert_with(|| {
            let identity = self.engine.identity();
            let folder = self.engine.routed(&identity.series(&self.name), self.version);
            Routed { folder, files: Vec::new() }
        });
        if let Some((_, path)) = routed.files.iter().find(|(known, _)| known == name) {
            return Ok(path.clone());
        }
        if self.regions.iter().any(|saved| saved.region.name == name) {
            return Err(RegionError::Twice { name: name.into() }.into());
        }
        let rank = self.engine.identity().rank;
        let path = routed.folder.prepare(name).map_err(|why| Error::File { rank, name: name.into(), why })?;
        routed.files.push((name.into(), path.clone()));
        self.names.insert(text_hash(name));
        Ok(path)
    }

    /// Adds the files as regions. They are read when the checkpoint is captured.
    pub(super) fn add_routed(&mut self) -> Result<(), String> {
        let Some(routed) = &self.routed else { return Ok(()) };
        for (name, path) in &routed.files {
            let saved = region::kept_array(name, ElementType::U8, routed::content(path)?);
            self.regions.push(saved.map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}
