//! The operating system's file systems as a [`Storage`].
//!
//! A checkpoint is written once, in large pieces, and with luck is never read. Passing it through the page cache costs
//! a copy of everything and evicts the application's own pages, so whole pages are written around it (`O_DIRECT`) where
//! the file system supports that. Three decisions shape this module:
//!
//! - **Two descriptors for one file.** The buffered one makes the file, writes what is not a whole page, and is the one that
//!   `sync` is called on: the kernel reports a failed write-back to descriptors that were open at the time, so it must be the
//!   descriptor that wrote. The direct one writes whole pages. Each page is written by only one of the two, unless the caller
//!   writes the same page in parts. Switching `O_DIRECT` on and off on one descriptor would race between threads. The second
//!   open checks that it found the same file (device and inode).
//! - **The first use is the probe.** A file system that cannot do direct I/O says so with `EINVAL` or `EOPNOTSUPP`, some
//!   when a file is opened, some at the first write. With [`Direct::Auto`], the bytes then go through the page cache
//!   instead, that file system is not asked again, and one line in the log says so. With [`Direct::On`] the error is
//!   returned. No scratch file is ever written, and nothing is concluded from the file system's name.
//! - **Whole pages at an unaligned address are copied** into an aligned buffer and still go around the page cache when they are
//!   written; the page cache would also have copied them. Reading to an unaligned address goes through the page cache, where the
//!   kernel at least reads ahead during the copy. Readers that want the device's full rate use a [`PageBuffer`] (measured on one
//!   virtual disk: 2.2 to 2.6 GB/s direct, 0.6 to 2.0 through the page cache, 1.0 to 1.5 direct with a copy after each read).
//!
//! Errors are those of the operating system, unchanged; tiers add the path. Interrupted calls are repeated and short ones
//! continued. After a failed write or sync, a handle remains failed: the kernel may have dropped the dirty pages, and a
//! second fsync would then succeed without the data. Closing reports nothing, because `sync` has already asked for everything
//! that a close could report.
//!
//! Locks are those of [`std::fs::File::try_lock`], that is, `flock`. They belong to the open file description, like those of
//! `F_OFD_SETLK`, so they end with the descriptor or the process, and never because another descriptor of the same file is
//! closed. NFS turns them into byte-range locks on the server; Lustre has them if it is mounted with `flock` (with `localflock`,
//! only within one node). A child that was forked without exec shares the description and keeps the lock alive.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::base::log;
use crate::base::sync::{Guard, Lock};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::held::{HeldDirectories, OPEN_FLAGS, Spot};
use super::ours::Trust;
use super::storage::{Create, Entry, FileLock, ReadFile, Stat, Storage, WriteFile};
use crate::base::units::{MIB, PAGE};
use crate::config::Direct;

/// Alignment of address, offset and length of direct transfers.
const ALIGNMENT: usize = PAGE as usize;

/// Reads of fewer bytes than this go through the page cache. A device needs about this much at once to be busy
/// (measured: 1 MiB reads are as fast as 8 MiB ones), and headers and indexes are read more than once.
const DIRECT_READ_MIN: usize = MIB as usize;

/// Size of the buffers through which whole pages at unaligned addresses are copied. It is large enough to keep a device
/// busy, and small enough to stay in the processor's cache between the copy and the transfer.
const BOUNCE_BYTES: usize = MIB as usize;

/// How many bounce buffers are kept for the next writer. If more threads write, they allocate their own for each call.
const BOUNCE_KEPT: usize = 8;

/// Buffers that start on a page boundary, for direct transfers, without `unsafe`.
///
/// Reading straight from a device needs such a buffer: memory from the allocator practically never starts on a page boundary.
pub struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    /// Allocates `length` zero bytes on a page boundary.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let address = bytes.as_ptr().addr();
        PageBuffer { start: address.next_multiple_of(ALIGNMENT) - address, bytes, length }
    }
}

impl std::ops::Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl std::ops::DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// What all files of one [`PosixStorage`] share: whether direct I/O is wanted, and what was learned about it.
struct DirectIo {
    wanted: Direct,
    /// File systems (device numbers) that refused direct I/O.
    refused: Lock<HashSet<u64>>,
    bounce: Lock<Vec<PageBuffer>>,
}

/// A panic elsewhere leaves these sets intact, because each change is a single insertion or removal.
fn lock<T>(mutex: &Lock<T>) -> Guard<'_, T> {
    mutex.lock()
}

impl DirectIo {
    fn is_tried_on(&self, device: u64) -> bool {
        match self.wanted {
            Direct::Off => false,
            Direct::On => true,
            Direct::Auto => !lock(&self.refused).contains(&device),
        }
    }

    /// Notes that direct I/O failed with `errno`. `Ok` means that the page cache is to be used instead.
    fn refuse(&self, device: u64, errno: Errno) -> io::Result<()> {
        if self.wanted == Direct::On || !matches!(errno, Errno::INVAL | Errno::OPNOTSUPP) {
            return Err(errno.into());
        }
        if lock(&self.refused).insert(device) {
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            log::info!("direct_io=off device={major}:{minor} errno={}", errno.raw_os_error());
        }
        Ok(())
    }

    /// Opens the file at `spot` a second time, around the page cache. `None` if that is not wanted or not possible.
    fn open(&self, spot: &Spot<'_>, access: OFlags, first: &rustix::fs::Stat) -> io::Result<Option<OwnedFd>> {
        if !self.is_tried_on(first.st_dev) {
            return Ok(None);
        }
        let file = match spot.open(access | OFlags::DIRECT | OPEN_FLAGS, Mode::empty()) {
            Ok(file) => file,
            Err(errno) => return self.refuse(first.st_dev, errno).map(|()| None),
        };
        let second = rustix::fs::fstat(&file)?;
        if (second.st_dev, second.st_ino) != (first.st_dev, first.st_ino) {
            // Somebody replaced the file between the two calls: the file that was opened first is no longer at this path.
            return Err(Errno::STALE.into());
        }
        Ok(Some(file))
    }

    fn take_bounce(&self) -> PageBuffer {
        lock(&self.bounce).pop().unwrap_or_else(|| PageBuffer::new(BOUNCE_BYTES))
    }

    fn give_bounce(&self, buffer: PageBuffer) {
        let mut kept = lock(&self.bounce);
        if kept.len() < BOUNCE_KEPT {
            kept.push(buffer);
        }
    }
}

/// An open regular file, for writing or for reading.
struct PosixFile {
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    device: u64,
    shared: Arc<DirectIo>,
    /// Set if a write or sync failed. Nothing that follows may report success.
    condemned: AtomicBool,
}

impl PosixFile {
    fn direct(&self) -> Option<&OwnedFd> {
        self.direct.as_ref().filter(|_| self.shared.is_tried_on(self.device))
    }

    /// Passes a result on; a failure condemns the handle.
    fn judged<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.condemned.store(true, Ordering::Release);
        }
        result
    }

    fn check_condemned(&self) -> io::Result<()> {
        match self.condemned.load(Ordering::Acquire) {
            true => Err(io::Error::other("an earlier write or sync of this file failed; write it again")),
            false => Ok(()),
        }
    }

    fn write_pieces(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_range(offset, bytes.len())?;
        let Some(direct) = self.direct() else { return write_buffered(&self.buffered, offset, bytes) };
        let (head, pages) = whole_pages(offset, bytes.len());
        if pages == 0 {
            return write_buffered(&self.buffered, offset, bytes);
        }
        let (head, rest) = bytes.split_at(head);
        let (pages, tail) = rest.split_at(pages);
        let pages_offset = offset + head.len() as u64;
        write_buffered(&self.buffered, offset, head)?;
        if is_aligned(pages) {
            self.write_pages(direct, pages_offset, pages)?;
        } else {
            self.write_pages_through_bounce(direct, pages_offset, pages)?;
        }
        write_buffered(&self.buffered, pages_offset + pages.len() as u64, tail)
    }

    fn write_pages_through_bounce(&self, direct: &OwnedFd, mut offset: u64, pages: &[u8]) -> io::Result<()> {
        let mut buffer = self.shared.take_bounce();
        for piece in pages.chunks(BOUNCE_BYTES) {
            buffer[..piece.len()].copy_from_slice(piece);
            self.write_pages(direct, offset, &buffer[..piece.len()])?;
            offset += piece.len() as u64;
        }
        self.shared.give_bounce(buffer);
        Ok(())
    }

    /// Writes whole pages from an aligned address; the part that the device does not accept goes through the page cache.
    fn write_pages(&self, direct: &OwnedFd, offset: u64, pages: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < pages.len() {
            match retry_on_intr(|| rustix::io::pwrite(direct, &pages[done..], offset + done as u64)) {
                // A short write ended inside a page: that page is written again with the rest.
                Ok(written) if written >= ALIGNMENT => done += written - written % ALIGNMENT,
                Ok(_) => break,
                Err(errno) => {
                    self.shared.refuse(self.device, errno)?;
                    break;
                }
            }
        }
        write_buffered(&self.buffered, offset + done as u64, &pages[done..])
    }

    /// Reads whole pages to an aligned address and returns how many bytes were read; the caller reads the rest.
    fn read_pages(&self, direct: &OwnedFd, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < pages.len() {
            match retry_on_intr(|| rustix::io::pread(direct, &mut pages[done..], offset + done as u64)) {
                Ok(read) => {
                    done += read;
                    if read == 0 || !read.is_multiple_of(ALIGNMENT) {
                        break;
                    }
                }
                Err(errno) => {
                    self.shared.refuse(self.device, errno)?;
                    break;
                }
            }
        }
        Ok(done)
    }
}

/// Refuses ranges that the kernel would refuse, so that its `EINVAL` can only refer to direct I/O.
fn check_range(offset: u64, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::FBIG.into()),
    }
}

/// Splits a range: bytes before its first whole page, and bytes in whole pages.
fn whole_pages(offset: u64, length: usize) -> (usize, usize) {
    let head = (offset.wrapping_neg() % PAGE) as usize;
    if head >= length {
        return (length, 0);
    }
    (head, (length - head) / ALIGNMENT * ALIGNMENT)
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGNMENT)
}

fn write_buffered(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

impl WriteFile for PosixFile {
    /// Also makes the file at least `length` bytes long, where the file system supports that: writes that do not move the
    /// end of the file need not wait for each other.
    fn reserve(&self, length: u64) -> io::Result<()> {
        self.check_condemned()?;
        if length == 0 {
            return Ok(());
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.buffered, FallocateFlags::empty(), 0, length)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => self.judged(result.map_err(io::Error::from)),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_condemned()?;
        self.judged(self.write_pieces(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.check_condemned()?;
        self.judged(retry_on_intr(|| rustix::fs::fsync(&self.buffered)).map_err(io::Error::from))
    }
}

impl ReadFile for PosixFile {
    fn len(&self) -> io::Result<u64> {
        let size = rustix::fs::fstat(&self.buffered)?.st_size;
        Ok(u64::try_from(size).unwrap_or(0))
    }

    fn holds(&self, range: Range<u64>) -> bool {
        match rustix::fs::seek(&self.buffered, SeekFrom::Hole(range.start)) {
            // Some file systems report a hole where bytes were written a moment ago.
            Ok(hole) if hole < range.end => {
                let mut bytes = [0; 512];
                let length = bytes.len().min((range.end - hole) as usize);
                let read = self.read_at(hole, &mut bytes[..length]);
                read.is_err() || bytes.iter().any(|byte| *byte != 0)
            }
            Ok(_) => true,
            // The file ends before the range.
            Err(Errno::NXIO) => range.is_empty(),
            Err(_) => true,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(offset, buffer.len())?;
        let mut done = 0;
        if let Some(direct) = self.direct()
            && buffer.len() >= DIRECT_READ_MIN
            && offset.is_multiple_of(PAGE)
            && is_aligned(buffer)
        {
            let (_, pages) = whole_pages(offset, buffer.len());
            done = self.read_pages(direct, offset, &mut buffer[..pages])?;
        }
        while done < buffer.len() {
            match retry_on_intr(|| rustix::io::pread(&self.buffered, &mut buffer[done..], offset + done as u64))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

/// Held by its open file description, as the module's documentation explains.
struct PosixLock {
    _file: File,
}

impl FileLock for PosixLock {}

/// File systems as the operating system mounts them.
///
/// One value serves any number of directories and threads; make one for each direct I/O setting. Paths below a
/// directory that this value holds ([`Storage::hold`]) are reached from that directory, without following links; the
/// system resolves all others as usual.
pub struct PosixStorage {
    shared: Arc<DirectIo>,
    held: HeldDirectories,
}

impl PosixStorage {
    /// Files are written around the page cache as `direct` says.
    pub fn new(direct: Direct) -> Self {
        let shared = DirectIo { wanted: direct, refused: Lock::default(), bounce: Lock::default() };
        PosixStorage { shared: Arc::new(shared), held: HeldDirectories::default() }
    }

    fn file(&self, buffered: OwnedFd, direct: Option<OwnedFd>, stat: &rustix::fs::Stat) -> PosixFile {
        let condemned = AtomicBool::new(false);
        PosixFile { buffered, direct, device: stat.st_dev, shared: Arc::clone(&self.shared), condemned }
    }

    /// Makes one directory, whose parent exists, and makes its name durable.
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        // A root that was removed is made by its path, before it can be held again.
        let is_again = self.held.is_one(path);
        let spot = if is_again { Spot::of_path(path) } else { self.held.spot(path)? };
        match rustix::fs::mkdirat(spot.directory(), spot.name, Mode::RWXU) {
            // Of the ranks that share it, only the first one gets here.
            Ok(()) if is_again => log::warn!(
                "event=directory-vanished path={}: it was removed during the run with all checkpoints in it, and is created again",
                path.display()
            ),
            Ok(()) => log::debug!("directory=made path={}", path.display()),
            // Another rank was faster. Its fsync may still be under way, so ours follows nevertheless.
            Err(Errno::EXIST) if spot.is_directory()? => {}
            Err(errno) => return Err(errno.into()),
        }
        self.sync_name_of(path)
    }

    /// Makes the name of a directory durable. Parents that we may not read (`/scratch` is `rwx--x--x` at some sites) cannot be
    /// synced; the directory itself is then synced instead, which on journalling file systems makes its name durable as well.
    fn sync_name_of(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = parent_of(path) else { return Ok(()) };
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let result = self.sync_dir(parent).or_else(|error| match is_denied(&error) {
            true => self.sync_dir(path),
            false => Err(error),
        });
        match result {
            // We may read neither of them, so we did not just make this name either.
            Err(error) if is_denied(&error) => Ok(()),
            result => result,
        }
    }

    /// Is there a directory at `path`? A held directory that was removed, alone or with its parents, does not count.
    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match self.held.spot(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            spot => spot?.is_directory(),
        }
    }
}

/// The directory that holds `path`'s name; `None` for a root.
fn parent_of(path: &Path) -> Option<&Path> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent,
    }
}

impl Storage for PosixStorage {
    fn hold(&self, root: &Path, trust: Trust) -> io::Result<()> {
        self.held.take(root, trust).map(drop)
    }

    /// Missing directories are made one by one, each followed by an fsync of its parent. Another rank may have made the
    /// deepest existing directory a moment ago and not synced its name yet, so that name is synced as well.
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut existing = Some(path).filter(|path| !path.as_os_str().is_empty());
        while let Some(path) = existing.filter(|path| *path != Path::new(".")) {
            if self.is_directory(path)? {
                break;
            }
            missing.push(path);
            existing = parent_of(path);
        }
        existing.map_or(Ok(()), |path| self.sync_name_of(path))?;
        missing.into_iter().rev().try_for_each(|path| self.make_directory(path))
    }

    fn open_write(&self, path: &Path, create: Create) -> io::Result<Box<dyn WriteFile>> {
        let exclusive = match create {
            Create::New => OFlags::EXCL,
            Create::Shared => OFlags::empty(),
        };
        let spot = self.held.spot(path)?;
        let (buffered, stat) = spot.open_regular(OFlags::WRONLY | OFlags::CREATE | exclusive)?;
        let direct = self.shared.open(&spot, OFlags::WRONLY, &stat).inspect_err(|error| {
            let is_anothers = error.raw_os_error() == Some(Errno::STALE.raw_os_error());
            if create == Create::New && !is_anothers {
                // The caller gets no file, so it must not find the name taken. The first error is the one to report.
                let _ = rustix::fs::unlinkat(spot.directory(), spot.name, AtFlags::empty());
            }
        })?;
        Ok(Box::new(self.file(buffered, direct, &stat)))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let spot = self.held.spot(path)?;
        let (buffered, stat) = spot.open_regular(OFlags::RDONLY)?;
        if stat.st_size < DIRECT_READ_MIN as i64 {
            return Ok(Box::new(self.file(buffered, None, &stat)));
        }
        let direct = self.shared.open(&spot, OFlags::RDONLY, &stat)?;
        Ok(Box::new(self.file(buffered, direct, &stat)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.held.spot(from)?, self.held.spot(to)?);
        Ok(rustix::fs::renameat(from.directory(), from.name, to.directory(), to.name)?)
    }

    /// If a file system has no fsync for directories, its names are assumed to need none.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.held.spot(path)?.sync()
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let spot = self.held.spot(path)?;
        Ok(rustix::fs::unlinkat(spot.directory(), spot.name, AtFlags::empty())?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let spot = self.held.spot(path)?;
        Ok(rustix::fs::unlinkat(spot.directory(), spot.name, AtFlags::REMOVEDIR)?)
    }

    /// Names that are not UTF-8 cannot be ours; they are listed with replacement characters.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let directory = self.held.spot(path)?.open_directory()?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    // Removed by another rank since it was listed.
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno.into()),
                },
                kind => kind,
            };
            entries.push(Entry { name: name.to_string_lossy().into_owned(), is_dir: kind == FileType::Directory });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The kernel decides what "now" is; on a network file system, the server does.
    fn touch(&self, path: &Path) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let spot = self.held.spot(path)?;
        Ok(rustix::fs::utimensat(spot.directory(), spot.name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Asks the server of a network file system and not the client's cache, which may be a minute old.
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let spot = self.held.spot(path)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::MTIME | StatxFlags::SIZE | StatxFlags::TYPE;
        let stat = |mode, bytes, modified| {
            let is_odd = FileType::from_raw_mode(mode) != FileType::RegularFile;
            Ok(Stat { bytes: if is_odd { 0 } else { bytes }, modified, is_odd })
        };
        match rustix::fs::statx(spot.directory(), spot.name, flags, wanted) {
            Ok(of) => stat(of.stx_mode.into(), of.stx_size, system_time(of.stx_mtime.tv_sec, of.stx_mtime.tv_nsec)?),
            // The filter of system calls in some containers does not know statx.
            Err(Errno::NOSYS | Errno::PERM) => {
                let of = rustix::fs::statat(spot.directory(), spot.name, AtFlags::SYMLINK_NOFOLLOW)?;
                let modified = system_time(of.st_mtime, u32::try_from(of.st_mtime_nsec).unwrap_or(0))?;
                stat(of.st_mode, u64::try_from(of.st_size).unwrap_or(0), modified)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let spot = self.held.spot(path)?;
        // The file is opened for writing as well, because NFS grants an exclusive lock only then.
        let (file, opened) = spot.open_regular(OFlags::RDWR)?;
        let file = File::from(file);
        if !granted(file.try_lock())? {
            return Ok(None);
        }
        // The process that had the lock between our opening and our locking may have removed the file or put another in its place.
        let named = rustix::fs::statat(spot.directory(), spot.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino) {
            return Err(Errno::NOENT.into());
        }
        Ok(Some(Box::new(PosixLock { _file: file })))
    }

    /// Uses a shared lock, which is given back at once. An exclusive one would look to others like the lock of a living owner.
    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let (file, _) = self.held.spot(path)?.open_regular(OFlags::RDONLY)?;
        Ok(!granted(File::from(file).try_lock_shared())?)
    }
}

/// Was a lock granted?
fn granted(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.raw_os_error() == Some(Errno::NOLCK.raw_os_error()) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, error))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Seconds (possibly before 1970) and nanoseconds as a time.
fn system_time(seconds: i64, nanoseconds: u32) -> io::Result<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    time.and_then(|time| time.checked_add(Duration::from_nanos(nanoseconds.into())))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "modification time out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    /// A file whose direct descriptor answers every write with `EINVAL`. That descriptor belongs to a file of /proc
    /// that parses what it gets.
    fn file_that_refuses(path: &Path, direct: Direct) -> PosixFile {
        let storage = PosixStorage::new(direct);
        let (buffered, stat) = storage.held.spot(path).unwrap().open_regular(OFlags::RDWR | OFlags::CREATE).unwrap();
        let refusing = File::options().write(true).open("/proc/self/oom_score_adj").unwrap();
        storage.file(buffered, Some(refusing.into()), &stat)
    }

    #[test]
    fn a_range_splits_into_head_whole_pages_and_tail() {
        assert_eq!(whole_pages(0, 4096), (0, 4096));
        assert_eq!(whole_pages(0, 4095), (0, 0));
        assert_eq!(whole_pages(1, 4095), (4095, 0));
        assert_eq!(whole_pages(1, 8192), (4095, 4096));
        assert_eq!(whole_pages(4000, 50), (50, 0));
        assert_eq!(whole_pages(8192, 10000), (0, 8192));
    }

    #[test]
    fn page_buffers_start_on_a_page() {
        for length in [0, 1, 4096, 1 << 20] {
            let buffer = PageBuffer::new(length);
            assert_eq!(buffer.len(), length);
            assert!(is_aligned(&buffer));
        }
    }

    #[test]
    fn a_refused_direct_write_goes_through_the_page_cache_and_is_not_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = file_that_refuses(&path, Direct::Auto);
        let bytes = pattern(3 * BOUNCE_BYTES + 5000);
        file.write_at(10, &bytes).unwrap();
        assert!(file.direct().is_none());
        assert!(!file.shared.is_tried_on(file.device));
        assert_eq!(std::fs::read(&path).unwrap()[10..], bytes);
    }

    #[test]
    fn a_refused_direct_write_is_an_error_when_direct_is_on_and_condemns_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = file_that_refuses(&directory.path().join("file"), Direct::On);
        let error = file.write_at(0, &pattern(8192)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        assert!(WriteFile::sync(&file).is_err(), "a condemned file must not sync");
        assert!(file.write_at(0, b"x").is_err(), "a condemned file must not be written on");
    }

    #[test]
    fn other_errors_of_direct_writes_are_never_papered_over() {
        for wanted in [Direct::Auto, Direct::On] {
            let storage = PosixStorage::new(wanted);
            for errno in [Errno::NOSPC, Errno::IO, Errno::DQUOT] {
                let error = storage.shared.refuse(1, errno).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
                assert!(storage.shared.is_tried_on(1));
            }
        }
    }

    #[test]
    fn times_before_1970_and_out_of_range_are_handled() {
        let early = system_time(-2, 500_000_000).unwrap();
        assert_eq!(SystemTime::UNIX_EPOCH.duration_since(early).unwrap(), Duration::from_millis(1500));
        assert!(system_time(i64::MIN, 0).is_ok_and(|time| time < early));
        assert!(system_time(i64::MAX, u32::MAX).is_err());
    }
}
