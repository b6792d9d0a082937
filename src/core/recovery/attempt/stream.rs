//! Regions that are read as streams of bytes.
#![forbid(unsafe_code)]

use super::Attempt;
use crate::base::CheckpointKey;
use crate::format::{Region, RegionKind};
use crate::recovery::load_error::LoadError;
use crate::tier::storage::zeroed;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// The number of bytes that are read and checked together.
const WINDOW: u64 = 4 << 20;

/// Reads a region byte by byte. [`Attempt::reader`] returns it.
pub struct RegionReader<'r> {
    attempt: &'r mut Attempt,
    window: Window,
    at: u64,
}

/// The part of a region that was read and checked last, for reading piece by piece.
#[doc(hidden)]
pub struct Window {
    key: CheckpointKey,
    region: Region,
    block: u64,
    from: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// A window on the region with that name, from which nothing has been read yet.
    pub fn new(attempt: &mut Attempt, name: &str) -> Result<Window, LoadError> {
        let region = attempt.find(name)?;
        if region.kind != RegionKind::Array {
            return Err(attempt.mismatch(&region, "an array".into()));
        }
        let block = attempt.source(name)?.head().header.block_size.into();
        Ok(Window { key: attempt.key(), region, block, from: 0, bytes: Vec::new() })
    }

    /// The length of the region in bytes.
    pub fn length(&self) -> u64 {
        self.region.bytes
    }

    /// Checked bytes, beginning at `at`: at least one, unless `at` is the end of the region.
    fn bytes_at(&mut self, attempt: &mut Attempt, at: u64) -> Result<&[u8], LoadError> {
        if at >= self.region.bytes {
            return Ok(&[]);
        }
        let is_here = at.checked_sub(self.from).is_some_and(|within| within < self.bytes.len() as u64);
        if !is_here {
            let from = at - at % self.block;
            let length = WINDOW.max(self.block).min(self.region.bytes - from);
            if self.bytes.len() as u64 != length {
                self.bytes = Vec::new();
                self.bytes = zeroed(length).map_err(|_| attempt.no_memory(&self.region.name, length))?;
            }
            let read = attempt.read_blocks(&self.region, from, &mut self.bytes);
            if read.is_err() {
                self.bytes.clear();
            }
            read?;
            self.from = from;
        }
        Ok(&self.bytes[(at - self.from) as usize..])
    }

    /// Reads bytes, beginning at `at`, into `target`, and returns their number. `attempt` must be at the version for which the window was
    /// made.
    pub fn read(&mut self, attempt: &mut Attempt, at: u64, target: &mut [u8]) -> Result<usize, LoadError> {
        debug_assert!(self.is_of(attempt), "the window is of another version");
        let mut done = 0;
        while done < target.len() {
            let at = at + done as u64;
            let left = &mut target[done..];
            // Whole blocks need no detour through the window.
            let whole = (left.len() as u64).min(self.region.bytes.saturating_sub(at));
            let whole = if at + whole == self.region.bytes { whole } else { whole - whole % self.block };
            if at.is_multiple_of(self.block) && whole >= WINDOW {
                let whole = whole.min(16 * WINDOW);
                attempt.read_blocks(&self.region, at, &mut left[..whole as usize])?;
                done += whole as usize;
                continue;
            }
            let found = self.bytes_at(attempt, at)?;
            if found.is_empty() {
                break;
            }
            let now = found.len().min(left.len());
            left[..now].copy_from_slice(&found[..now]);
            done += now;
        }
        Ok(done)
    }

    /// Does the window belong to the version that this attempt is at?
    pub fn is_of(&self, attempt: &Attempt) -> bool {
        attempt.key() == self.key
    }
}

impl Attempt {
    /// Reads a region as a stream of bytes. The region may have been written as a stream
    /// ([`CheckpointBuilder::writer`](crate::CheckpointBuilder::writer)), or may be any other array that belongs to this rank. Every block
    /// is checked before any of its bytes is returned. If a block is damaged, the next copy is read. The reader is seekable.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// use std::io::BufRead;
    ///
    /// let mut lines = Vec::new();
    /// session.begin_restore("heat").run(|attempt| {
    ///     lines = attempt.reader("mesh")?.lines().collect::<Result<_, _>>().map_err(bivouac::Error::application)?;
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. If a different number of ranks took the checkpoint, no region belongs to this rank.
    ///
    /// # Blocking
    /// On the tier that holds the copy. Each read may block in the same way.
    ///
    /// # Errors
    /// [`LoadError::Missing`]; [`LoadError::Mismatch`] if the region is a value; [`LoadError::NoCopy`]. Reading fails with an [`io::Error`]
    /// that holds a [`LoadError`]. If the cause is damage, all ranks continue with the next version, whatever the program makes of the
    /// error.
    pub fn reader(&mut self, name: &str) -> Result<RegionReader<'_>, LoadError> {
        let window = Window::new(self, name)?;
        Ok(RegionReader { attempt: self, window, at: 0 })
    }

    /// Reads whole blocks of a region from the nearest undamaged copy.
    fn read_blocks(&mut self, region: &Region, at: u64, target: &mut [u8]) -> Result<(), LoadError> {
        self.source(&region.name)?;
        self.own()?.load_all(std::iter::once(region), |source| {
            source.read_blocks(region, at as usize, target)?;
            Ok(target.len() as u64)
        })
    }
}

impl RegionReader<'_> {
    /// The length of the region in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is a stream, and whether it has an end comes from reading")]
    pub fn len(&self) -> u64 {
        self.window.length()
    }
}

impl Read for RegionReader<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.window.read(self.attempt, self.at, target).map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl BufRead for RegionReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.window.bytes_at(self.attempt, self.at).map_err(io::Error::other)
    }

    fn consume(&mut self, count: usize) {
        self.at += count as u64;
    }
}

impl Seek for RegionReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.window.length().checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the first byte"))?;
        Ok(self.at)
    }
}
