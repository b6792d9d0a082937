//! The file tier of a cache: one file without a name, so that nothing is left behind however the process ends.
#![forbid(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Direct I/O requires offsets, lengths and addresses to be multiples of this.
pub(super) const ALIGN: usize = 4096;

/// An unnamed file in a directory of the local tier.
pub(super) struct Spill {
    /// The file opened to bypass the page cache, if the file system supports that.
    direct: Option<File>,
    buffered: File,
    directory: PathBuf,
}

impl Spill {
    /// Creates the file.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn new(directory: &Path) -> io::Result<Spill> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let buffered = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(_) => Spill::named_and_removed(directory)?,
        };
        // Opens the same file once more, by its place in /proc, for the other kind of I/O.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&buffered));
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = rustix::fs::open(name, flags, Mode::empty()).ok().map(File::from);
        Ok(Spill { direct, buffered, directory: directory.to_owned() })
    }

    /// For file systems that have no unnamed files.
    fn named_and_removed(directory: &Path) -> io::Result<File> {
        let path = directory.join(format!("history-{}-{}.tmp", std::process::id(), crate::base::rng::incarnation()?));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn file(&self, bytes: &[u8], at: u64) -> &File {
        let aligned = bytes.as_ptr().addr().is_multiple_of(ALIGN)
            && bytes.len().is_multiple_of(ALIGN)
            && at.is_multiple_of(ALIGN as u64);
        self.direct.as_ref().filter(|_| aligned).unwrap_or(&self.buffered)
    }

    /// # Errors
    /// The file system's error.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file(bytes, at).write_all_at(bytes, at)
    }

    /// # Errors
    /// The file system's error, or a file that ends early.
    pub(super) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file(bytes, at).read_exact_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::posix::PageBuffer;

    #[test]
    fn a_spill_file_has_no_name_and_gives_back_what_it_got() {
        let place = tempfile::tempdir().expect("directory");
        let spill = Spill::new(&place.path().join("deep/er")).expect("spill file");
        let mut whole = PageBuffer::new(3 * ALIGN);
        whole.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        spill.write(&whole, 8 * ALIGN as u64).expect("direct");
        spill.write(&whole[..100], 5).expect("odd");
        let mut back = PageBuffer::new(3 * ALIGN);
        spill.read(&mut back, 8 * ALIGN as u64).expect("direct");
        assert_eq!(back[..], whole[..]);
        spill.read(&mut back[1..101], 5).expect("odd");
        assert_eq!(back[1..101], whole[..100]);
        assert!(spill.read(&mut back, 1 << 30).is_err());
        assert_eq!(std::fs::read_dir(spill.directory()).expect("directory").count(), 0);
    }
}
