//! The mapping itself: the only file here with `unsafe` code.
//!
//! Four things are handed out, each with its own rule:
//!
//! - *Control words* ([`Map::word`]) are 64-bit atomics before the data area. They are never reached by any other
//!   type of access, so processes and threads may share them freely.
//! - *Loans* ([`Map::lend`]) are ranges of the data area. The map keeps a book of them (`loans.rs`) and lends no byte
//!   twice, so a loan owns its range within this process and may give out `&mut [u8]`. *Shared loans* ([`Map::lend_shared`],
//!   [`Loan::share`]) overlap each other, never a loan, and give out `&[u8]` only. Other processes own other
//!   extents (see [`super`]); a process that broke this rule could change bytes under a loan, as with any shared
//!   mapping, and the block digests would find it.
//! - *Addresses* ([`Map::address`]) are numbers, for a device that registers memory. Code that makes a pointer from an
//!   address, or that asks a device to write there, must hold a loan of the range for that time.
//! - *Views* ([`View`]) are read-only maps of another generation's segment, whose writers have ended.
//!
//! The file of a map never shrinks while we use it: no code here truncates a segment. If something else shrinks the
//! file, touching the lost pages raises SIGBUS, and no check can prevent that.

use super::layout::EXTENT_MIN;
use super::loans::LoanBook;
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A mapped range of memory, unmapped when dropped.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` is an address range that belongs to the process, not to a thread; all access goes through
// `Map`, `Loan` and `View`, whose own rules make it free of data races within this process.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself has no mutable state.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file` at an address that is a multiple of 2 MiB, so that huge pages fit.
    fn new(file: &File, len: usize, prot: ProtFlags) -> Result<Mapping, Errno> {
        let align = EXTENT_MIN as usize;
        let padded = len.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                padded,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let head = (start as usize).next_multiple_of(align) - start as usize;
        let base = start.wrapping_byte_add(head);
        // SAFETY: `[base, base + len)` lies inside the range reserved just above (head <= align - 1 and padded is len +
        // align), which nothing else uses yet, so replacing it affects nobody's memory.
        let mapped = unsafe { rustix::mm::mmap(base, len, prot, MapFlags::SHARED | MapFlags::FIXED, file, 0) };
        if let Err(errno) = mapped {
            unmap(start, padded);
            return Err(errno);
        }
        unmap(start, head);
        let end = len.next_multiple_of(4096);
        unmap(base.wrapping_byte_add(end), padded - head - end);
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { base, len })
    }

    /// The address of `offset`; `length` bytes from there are mapped.
    fn at(&self, offset: u64, length: u64) -> NonNull<u8> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.len as u64), "range outside the segment");
        // SAFETY: offset <= len, so the result points into the mapping or one past its end.
        unsafe { self.base.add(offset as usize) }
    }

    fn advise(&self, offset: u64, length: u64, advice: Advice) -> Result<(), Errno> {
        let at = self.at(offset, length);
        // SAFETY: the range is mapped (checked by `at`), and only advice that keeps the contents is passed here.
        unsafe { rustix::mm::madvise(at.as_ptr().cast(), length as usize, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child this removes the child's own mapping only.
        unmap(self.base.as_ptr().cast(), self.len);
    }
}

/// Unmaps a range that this file mapped and to which nothing refers any more.
fn unmap(start: *mut c_void, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: called only by `Mapping`, for parts of its own range that were never handed out, or when it is
    // dropped, after everything that borrows from it.
    if let Err(errno) = unsafe { rustix::mm::munmap(start, len) } {
        log::warn!("munmap failed errno={errno} bytes={len}");
    }
}

/// A writable map of this run's segment.
pub(super) struct Map {
    mapping: Mapping,
    control_len: u64,
    file: File,
    /// The ranges of the file that are out. Invariant: all lie after the control area.
    loans: Lock<LoanBook>,
    pid: u32,
}

impl Map {
    /// Maps `len` bytes of `file`. The pages of the first `control_len` bytes are reserved.
    pub(super) fn new(file: File, control_len: u64, len: u64) -> Result<Map, Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        assert!(control_len <= len as u64, "the control area lies inside the file");
        let mapping = Mapping::new(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Map { mapping, control_len, file, loans: Lock::default(), pid: std::process::id() })
    }

    /// The segment's file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Is this the process that made the map, and not a child that it forked?
    pub(super) fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The control word at `offset`, a multiple of 8.
    pub(super) fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.control_len, "no control word at {offset}");
        let at = self.mapping.at(offset, 8);
        // SAFETY: the word is mapped and reserved (control area), aligned (the base is a multiple of 2 MiB), lives as
        // long as `self`, and is only ever accessed as an atomic: loans start after the control area.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// Lends a range of the data area, or `None` if the range is empty or any of its bytes is already on loan.
    ///
    /// The pages need not be reserved yet; nothing touches them before [`Loan::as_mut_slice`].
    pub(super) fn lend(self: &Arc<Self>, offset: u64, length: u64) -> Option<Loan> {
        let range = self.check_range(offset, length);
        self.loans().lend(range.clone()).then(|| Loan(Hold { map: Arc::clone(self), range, is_alone: true }))
    }

    /// Lends a range of the data area for reading, or `None` if the range is empty or any of its bytes is lent to a writer.
    ///
    /// The caller has reserved the pages.
    pub(super) fn lend_shared(self: &Arc<Self>, offset: u64, length: u64) -> Option<SharedLoan> {
        let range = self.check_range(offset, length);
        self.loans().view(range.clone()).then(|| SharedLoan(Hold { map: Arc::clone(self), range, is_alone: false }))
    }

    /// The address at which this process has mapped a range of the data area.
    pub(super) fn address(&self, offset: u64, length: u64) -> usize {
        let range = self.check_range(offset, length);
        self.mapping.at(range.start, length).as_ptr().expose_provenance()
    }

    fn check_range(&self, offset: u64, length: u64) -> Range<u64> {
        let end = offset.checked_add(length).filter(|end| *end <= self.mapping.len as u64);
        assert!(offset >= self.control_len && end.is_some(), "range outside the data area");
        offset..offset + length
    }

    fn loans(&self) -> Guard<'_, LoanBook> {
        self.loans.lock()
    }
}

/// An entry in the book of loans, removed when dropped.
struct Hold {
    map: Arc<Map>,
    range: Range<u64>,
    is_alone: bool,
}

impl Hold {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Address of the range, which is mapped for as long as this value holds the map.
    fn at(&self) -> NonNull<u8> {
        self.map.mapping.at(self.range.start, self.len())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A forked child shares no book with its parent, and its copy of the mutex may be locked for good.
        if !self.map.is_mine() {
            return;
        }
        let mut loans = self.map.loans();
        if self.is_alone { loans.end_loan(self.range.clone()) } else { loans.end_view(self.range.clone()) }
    }
}

/// A range of the data area that nothing else in this process can reach.
pub(super) struct Loan(Hold);

impl Loan {
    /// Start of the range in the file.
    pub(super) fn offset(&self) -> u64 {
        self.0.range.start
    }

    /// Length of the range in bytes.
    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The bytes. The caller has reserved the pages.
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as the loan holds the map; mapped memory is initialised; this loan
        // is the only one for these bytes, and writing through it needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.at().as_ptr(), self.len() as usize) }
    }

    /// The bytes, to be written. The caller has reserved the pages.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only reference into the range.
        unsafe { std::slice::from_raw_parts_mut(self.0.at().as_ptr(), self.len() as usize) }
    }

    /// Gives up writing: from now on others may read the range, too.
    pub(super) fn share(self) -> SharedLoan {
        let Loan(mut hold) = self;
        hold.map.loans().share(hold.range.clone());
        hold.is_alone = false;
        SharedLoan(hold)
    }

    /// Reserves the pages of a part of the range: after this, touching them cannot run out of file system space.
    pub(super) fn reserve(&mut self, at: u64, length: u64) -> Result<(), Errno> {
        self.check_part(at, length);
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.0.map.file, flags, self.offset() + at, length))
    }

    /// Enters the pages of a part of the range into this process's page table, writable. Bytes do not change.
    pub(super) fn populate(&mut self, at: u64, length: u64) -> Result<(), Errno> {
        self.check_part(at, length);
        retry(|| self.0.map.mapping.advise(self.offset() + at, length, Advice::LinuxPopulateWrite))
    }

    /// Enters pages as [`populate`](Self::populate) does, for kernels without `MADV_POPULATE_WRITE` (before 5.14), by an atomic addition of
    /// zero to each page. The caller has reserved the pages.
    pub(super) fn touch(&mut self, at: u64, length: u64) {
        self.check_part(at, length);
        for page in (0..length).step_by(4096) {
            let byte = self.0.map.mapping.at(self.offset() + at + page, 1);
            // SAFETY: the byte is mapped and inside this loan, which `&mut self` makes ours alone; an atomic byte needs no alignment.
            unsafe { AtomicU8::from_ptr(byte.as_ptr()) }.fetch_add(0, Ordering::Relaxed);
        }
    }

    /// Asks for huge pages under every whole 2 MiB step of a part of the range. Bytes do not change.
    pub(super) fn collapse(&mut self, at: u64, length: u64) -> Result<(), Errno> {
        self.check_part(at, length);
        let start = self.0.map.mapping.at(self.offset() + at, length);
        // SAFETY: the range is mapped and inside this loan; MADV_COLLAPSE keeps the contents and at worst fails.
        let status = unsafe { libc::madvise(start.as_ptr().cast(), length as usize, libc::MADV_COLLAPSE) };
        if status == 0 { Ok(()) } else { Err(last_errno()) }
    }

    fn check_part(&self, at: u64, length: u64) {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.len()), "part outside the loan");
    }
}

/// A range of the data area that nothing in this process writes while this value lives. Others may read it.
pub(super) struct SharedLoan(Hold);

impl SharedLoan {
    /// The bytes. The lender has reserved the pages.
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as the loan holds the map; mapped memory is initialised; the book lends
        // no byte of the range to a writer while it has this entry, so all references to the range are shared ones.
        unsafe { std::slice::from_raw_parts(self.0.at().as_ptr(), self.0.len() as usize) }
    }
}

/// A read-only map of a segment that nobody writes any more.
pub(super) struct View(Mapping);

impl View {
    /// Maps the first `len` bytes of `file` for reading.
    pub(super) fn new(file: &File, len: u64) -> Result<View, Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        Ok(View(Mapping::new(file, len, ProtFlags::READ)?))
    }

    /// Bytes of the file.
    ///
    /// The caller has checked that the range is inside the file and has no holes. The generation that wrote it has
    /// ended or has sealed the range; if somebody writes there nevertheless, the block digests reveal it.
    pub(super) fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        let at = self.0.at(offset, length);
        // SAFETY: the range is mapped (checked by `at`) for as long as `self`, mapped memory is initialised, and this
        // process maps the file read-only, so it has no mutable reference to it through this view.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), length as usize) }
    }
}

/// Takes the liveness lock on byte `node_rank` of the file. `false` if somebody else holds the lock.
///
/// The lock belongs to the open file, so it ends when the last process that shares this opening ends or closes it.
pub(super) fn lock_byte(file: &File, node_rank: u32) -> Result<bool, Errno> {
    let mut range = byte_range(libc::F_WRLCK, u64::from(node_rank), 1);
    match ofd(file, libc::F_OFD_SETLK, &mut range) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Releases the liveness lock on byte `node_rank`.
pub(super) fn unlock_byte(file: &File, node_rank: u32) -> Result<(), Errno> {
    ofd(file, libc::F_OFD_SETLK, &mut byte_range(libc::F_UNLCK, u64::from(node_rank), 1))
}

/// Does another opening of the file hold a lock on any of the `count` bytes from `start`?
pub(super) fn is_locked(file: &File, start: u64, count: u64) -> Result<bool, Errno> {
    let mut range = byte_range(libc::F_WRLCK, start, count);
    ofd(file, libc::F_OFD_GETLK, &mut range)?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn byte_range(kind: i32, start: u64, count: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: count as libc::off_t,
        l_pid: 0, // must be zero for locks of open files
    }
}

fn ofd(file: &File, command: i32, range: &mut libc::flock) -> Result<(), Errno> {
    retry(|| {
        // SAFETY: the descriptor is open for as long as `file`, and `range` is a valid `flock` that lives through the
        // call; none of the commands used here keeps the pointer.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *range) };
        if status == 0 { Ok(()) } else { Err(last_errno()) }
    })
}

/// Repeats a call that a signal interrupted. Each repetition continues where the last one stopped, or starts a piece of
/// bounded size again. The limit on repetitions ends the loop only if signals arrive faster than the call makes progress.
fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut result = call();
    for _ in 0..10_000 {
        match result {
            Err(Errno::INTR) => result = call(),
            other => return other,
        }
    }
    result
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limit::wait_until;

    const CONTROL: u64 = 4096;

    fn map(len: u64) -> Arc<Map> {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file in /dev/shm");
        file.set_len(len).expect("set_len");
        Arc::new(Map::new(file, CONTROL, len).expect("map"))
    }

    #[test]
    fn no_byte_is_lent_twice() {
        let map = map(EXTENT_MIN);
        let first = map.lend(8192, 8192).expect("free");
        for (offset, length) in [(8192, 1), (4096, 4097), (16383, 1), (4096, 65536), (12288, 100)] {
            assert!(map.lend(offset, length).is_none(), "{offset} {length}");
        }
        let before = map.lend(4096, 4096).expect("free before");
        let after = map.lend(16384, 4096).expect("free after");
        drop(first);
        assert!(map.lend(8192, 8192).is_some());
        assert!(map.lend(8192, 8193).is_none());
        drop((before, after));
    }

    #[test]
    fn shared_loans_keep_writers_out_and_each_other_in() {
        let map = map(EXTENT_MIN);
        let mut loan = map.lend(8192, 8192).expect("free");
        loan.reserve(0, 8192).expect("reserve");
        loan.as_mut_slice().fill(9);
        assert!(map.lend_shared(4096, 4097).is_none());
        let first = loan.share();
        let second = map.lend_shared(12288, 8192).expect("shared");
        assert!(first.as_slice().iter().all(|byte| *byte == 9));
        assert!(second.as_slice()[..4096].iter().all(|byte| *byte == 9));
        drop(first);
        assert!(map.lend(12288, 1).is_none());
        assert!(map.lend(8192, 4096).is_some(), "what only the first one read is free");
        assert_eq!(map.address(8192, 1) % 4096, 0);
        drop(second);
        assert!(map.lend(4096, EXTENT_MIN - 4096).is_some());
    }

    #[test]
    fn words_and_loans_reach_the_file() {
        use std::os::unix::fs::FileExt;
        let map = map(4 * EXTENT_MIN);
        map.word(64).store(0x1122, Ordering::Release);
        let mut loan = map.lend(EXTENT_MIN, EXTENT_MIN).expect("free");
        loan.reserve(0, EXTENT_MIN).expect("reserve");
        loan.touch(0, EXTENT_MIN);
        loan.populate(0, 8192).expect("populate");
        loan.as_mut_slice()[4097] = 7;
        let mut word = [0u8; 8];
        map.file().read_exact_at(&mut word, 64).expect("read");
        assert_eq!(u64::from_ne_bytes(word), 0x1122);
        map.file().read_exact_at(&mut word[..1], EXTENT_MIN + 4097).expect("read");
        assert_eq!(word[0], 7);
        assert!(loan.as_slice().as_ptr().addr().is_multiple_of(EXTENT_MIN as usize));
    }

    #[test]
    fn a_liveness_byte_is_seen_by_others_and_ends_with_its_opening() {
        let path = tempfile::NamedTempFile::new_in("/dev/shm").expect("file").into_temp_path();
        let open = || File::options().read(true).write(true).open(&path).expect("open");
        let (one, two) = (open(), open());
        assert!(lock_byte(&one, 3).expect("lock"));
        assert!(!lock_byte(&two, 3).expect("lock"));
        assert!(lock_byte(&two, 2).expect("lock"));
        assert!(is_locked(&two, 0, 8).expect("query"));
        assert!(!is_locked(&two, 4, 4).expect("query"));
        assert!(!is_locked(&one, 3, 1).expect("an opening does not see its own lock"));
        drop(one);
        // A process that another test is just starting shares our openings until it calls exec.
        wait_until("the lock is gone with its opening", || !is_locked(&two, 3, 1).expect("query"));
        unlock_byte(&two, 2).expect("unlock");
        assert!(!is_locked(&open(), 0, 8).expect("query"));
    }
}
