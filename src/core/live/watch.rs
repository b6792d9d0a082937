//! The kernel's userfaultfd: a thread that writes to a protected page waits, and Bivouac is notified.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{Advice, UserfaultfdFlags};
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::sync::Arc;

/// The kernel's number for the version of this interface.
const API: u64 = 0xaa;
/// The kernel has write protection (Linux 5.7): faults say whether a write to a protected page caused them.
const HAS_PROTECTION: u64 = 1;
/// Shared memory, such as that of tmpfs, can be protected (Linux 5.19).
const HAS_SHARED: u64 = 1 << 12;
/// Pages that were never touched stay protected (Linux 6.4).
const HAS_UNTOUCHED: u64 = 1 << 13;
/// A mapping that is registered with this mode can be protected.
const MODE_PROTECT: u64 = 2;
/// The call that protects, as a bit among the calls that a mapping allows.
const CAN_PROTECT: u64 = 1 << 6;
const PROTECT: u64 = 1;
const LET_PASS: u64 = 0;
const EVENT_FAULT: u8 = 0x12;

#[repr(C)]
#[derive(Default)]
struct Handshake {
    api: u64,
    features: u64,
    calls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct Registration {
    span: Span,
    mode: u64,
    calls: u64,
}

#[repr(C)]
struct Protection {
    span: Span,
    mode: u64,
}

const UFFDIO_API: u32 = opcode::read_write::<Handshake>(0xaa, 0x3f);
const UFFDIO_REGISTER: u32 = opcode::read_write::<Registration>(0xaa, 0x00);
const UFFDIO_UNREGISTER: u32 = opcode::read::<Span>(0xaa, 0x01);
const UFFDIO_WAKE: u32 = opcode::read::<Span>(0xaa, 0x02);
const UFFDIO_WRITEPROTECT: u32 = opcode::read_write::<Protection>(0xaa, 0x06);
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;

/// Why writes cannot be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// This process may not use userfaultfd.
    #[error(
        "this process may not use userfaultfd ({errno}): it needs vm.unprivileged_userfaultfd = 1, or permission to open /dev/userfaultfd, or the \
         capability CAP_SYS_PTRACE; in a container, a seccomp profile that allows userfaultfd"
    )]
    Refused {
        /// The kernel's answer.
        errno: Errno,
    },
    /// The kernel cannot protect pages with userfaultfd.
    #[error("this kernel cannot protect pages with userfaultfd: Linux 5.7 or later is needed")]
    Old,
    /// This memory cannot be protected.
    #[error(
        "the kernel cannot protect this memory ({errno}): use anonymous memory or, from Linux 5.19 on, shared memory"
    )]
    Memory {
        /// The kernel's answer.
        errno: Errno,
    },
}

/// The descriptor on which the kernel reports that a thread wants to write.
pub struct Watch {
    fd: OwnedFd,
    features: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:#x})", self.features)
    }
}

/// The size of a page on this machine, in bytes.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

fn create() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: the descriptor is used only to protect pages of memory that the program has handed over for this purpose (`LiveMemory::new`);
    // it never fills or moves pages.
    match unsafe { rustix::mm::userfaultfd(flags) } {
        Err(errno @ (Errno::PERM | Errno::NOSYS)) => create_by_device().ok_or(errno),
        created => created,
    }
}

/// Opens the device (Linux 6.1), which a process may be allowed to use even if it may not make the system call.
fn create_by_device() -> Option<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd").ok()?;
    // SAFETY: the call takes flags by value and returns a new descriptor or -1.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    // SAFETY: the descriptor was just created, and nobody else has it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a userfaultfd with these features, and returns it with the kernel's answer.
fn open(features: u64) -> Result<(OwnedFd, Handshake), Errno> {
    let fd = create()?;
    let mut handshake = Handshake { api: API, features, calls: 0 };
    // SAFETY: the opcode is that of `struct uffdio_api`, whose layout `Handshake` has.
    unsafe { ioctl(&fd, Updater::<UFFDIO_API, _>::new(&mut handshake)) }?;
    Ok((fd, handshake))
}

impl Watch {
    /// Asks the kernel for a watch.
    ///
    /// # Errors
    /// [`WatchError::Refused`], [`WatchError::Old`].
    pub fn open() -> Result<Watch, WatchError> {
        Watch::open_with(HAS_SHARED | HAS_UNTOUCHED)
    }

    /// Asks the kernel for a watch with at most these features.
    fn open_with(most: u64) -> Result<Watch, WatchError> {
        let refused = |errno| if errno == Errno::NOSYS { WatchError::Old } else { WatchError::Refused { errno } };
        // The kernel lists its features only for a caller that asks for none, and answers only once per descriptor.
        let (_, offered) = open(0).map_err(refused)?;
        if offered.features & HAS_PROTECTION == 0 {
            return Err(WatchError::Old);
        }
        let features = HAS_PROTECTION | offered.features & most;
        let (fd, _) = open(features).map_err(refused)?;
        Ok(Watch { fd, features })
    }

    /// Protects whole pages, which lie in memory that the program has handed over. A thread that writes there waits until
    /// [`Protected::let_pass`] is called, or until the returned value is dropped.
    ///
    /// # Errors
    /// [`WatchError::Memory`]; nothing is protected then.
    pub fn protect(self: &Arc<Self>, pages: Range<usize>, mappings: &Mappings) -> Result<Protected, WatchError> {
        let mut protected = Protected { watch: self.clone(), spans: Vec::new() };
        // Older kernels take one mapping at a time.
        for span in mappings.cut(&pages) {
            self.register(&span)?;
            protected.spans.push(span.clone());
            if self.features & HAS_UNTOUCHED == 0 {
                touch(&span)?;
            }
            self.write_protect(&span, PROTECT).map_err(|errno| WatchError::Memory { errno })?;
        }
        let covered: usize = protected.spans.iter().map(Range::len).sum();
        if covered < pages.len() {
            return Err(WatchError::Memory { errno: Errno::NOMEM });
        }
        Ok(protected)
    }

    fn register(&self, span: &Range<usize>) -> Result<(), WatchError> {
        let mut registration = Registration { span: span_of(span), mode: MODE_PROTECT, calls: 0 };
        // SAFETY: the opcode is that of `struct uffdio_register`, whose layout `Registration` has. Registering pages changes none of their
        // bytes.
        let done = unsafe { ioctl(&self.fd, Updater::<UFFDIO_REGISTER, _>::new(&mut registration)) };
        done.map_err(|errno| WatchError::Memory { errno })?;
        if registration.calls & CAN_PROTECT == 0 {
            self.unregister(span);
            return Err(WatchError::Memory { errno: Errno::OPNOTSUPP });
        }
        Ok(())
    }

    /// Removes all protection from `span`, and wakes the threads that wait there.
    fn unregister(&self, span: &Range<usize>) {
        let mut span = span_of(span);
        // SAFETY: the opcodes are those of calls with a `struct uffdio_range`, whose layout `Span` has. If the memory has been unmapped in
        // the meantime, the first call fails, and nothing is left to remove.
        let done = unsafe { ioctl(&self.fd, Updater::<UFFDIO_UNREGISTER, _>::new(&mut span)) };
        if done.is_err() {
            // The program has mapped something else into the middle of the span, and the rest must not stay protected.
            let whole = span.start as usize..(span.start + span.bytes) as usize;
            for part in Mappings::now().cut(&whole) {
                // SAFETY: as above.
                let _ = unsafe { ioctl(&self.fd, Updater::<UFFDIO_UNREGISTER, _>::new(&mut span_of(&part))) };
            }
        }
        // SAFETY: as above. The kernel itself wakes only threads that wait for missing pages.
        let _ = unsafe { ioctl(&self.fd, Updater::<UFFDIO_WAKE, _>::new(&mut span)) };
    }

    fn write_protect(&self, span: &Range<usize>, mode: u64) -> Result<(), Errno> {
        loop {
            let mut protection = Protection { span: span_of(span), mode };
            // SAFETY: the opcode is that of `struct uffdio_writeprotect`, whose layout `Protection` has. No bytes change.
            match unsafe { ioctl(&self.fd, Updater::<UFFDIO_WRITEPROTECT, _>::new(&mut protection)) } {
                // The mappings of the process are changing.
                Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
                done => return done,
            }
        }
    }

    /// The page that a thread is waiting to write to, if there is one.
    pub fn next_fault(&self) -> Option<usize> {
        let mut message = [0u8; 32];
        loop {
            match rustix::io::read(self.fd.as_fd(), &mut message) {
                Ok(32) if message[0] == EVENT_FAULT => {
                    let address = u64::from_ne_bytes(message[16..24].try_into().unwrap_or_default());
                    return Some(address as usize & !(page_bytes() - 1));
                }
                Err(Errno::INTR) | Ok(32) => {}
                _ => return None,
            }
        }
    }
}

fn span_of(span: &Range<usize>) -> Span {
    Span { start: span.start as u64, bytes: span.len() as u64 }
}

/// Has the kernel provide pages for memory that was never touched, because it cannot protect memory without pages.
fn touch(span: &Range<usize>) -> Result<(), WatchError> {
    let start = std::ptr::with_exposed_provenance_mut(span.start);
    // SAFETY: the advice reads pages of mapped memory (`LiveMemory::new`) and changes no bytes.
    match unsafe { rustix::mm::madvise(start, span.len(), Advice::LinuxPopulateRead) } {
        Ok(()) => Ok(()),
        // Kernels before Linux 5.14 do not know this advice, so each page is touched here.
        Err(Errno::INVAL) => {
            for page in span.clone().step_by(page_bytes()) {
                // SAFETY: the page is mapped and readable (`LiveMemory::new`).
                let _ = unsafe { std::ptr::with_exposed_provenance::<u8>(page).read_volatile() };
            }
            Ok(())
        }
        Err(errno) => Err(WatchError::Memory { errno }),
    }
}

/// Pages that are protected until this value is dropped.
#[derive(Debug)]
pub struct Protected {
    watch: Arc<Watch>,
    spans: Vec<Range<usize>>,
}

impl Protected {
    /// Lets writes to some of the pages pass, and wakes the threads that wait there. Pages that are not protected at all are
    /// ignored.
    ///
    /// # Errors
    /// The kernel's answer. The kernel accepts huge pages only as a whole.
    pub fn let_pass(&self, pages: &Range<usize>) -> Result<(), Errno> {
        for span in &self.spans {
            let own = span.start.max(pages.start)..span.end.min(pages.end);
            if !own.is_empty() {
                self.watch.write_protect(&own, LET_PASS)?;
            }
        }
        Ok(())
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        self.spans.iter().for_each(|span| self.watch.unregister(span));
    }
}

/// The mappings of this process.
pub struct Mappings(Vec<Range<usize>>);

impl Mappings {
    /// The current mappings; empty if the system does not list them.
    pub fn now() -> Mappings {
        Mappings::parse(&String::from_utf8_lossy(&fs::read("/proc/self/maps").unwrap_or_default()))
    }

    fn parse(text: &str) -> Mappings {
        let range = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        };
        Mappings(text.lines().filter_map(range).collect())
    }

    /// The parts of a range that are mapped, one for each mapping.
    fn cut(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let first = self.0.partition_point(|mapping| mapping.end <= range.start);
        let touched = self.0[first..].iter().take_while(|mapping| mapping.start < range.end);
        let cut = touched.map(|mapping| mapping.start.max(range.start)..mapping.end.min(range.end));
        cut.filter(|part| !part.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveMemory;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn a_range_is_cut_at_mappings() {
        let text = "1000-3000 rw-p 00000000 00:00 0 [heap]\n3000-4000 r--p 0 fe:01 9 /usr/lib/a b\nodd\n8000-9000 rw-s 0 00:01 2\n";
        let mappings = Mappings::parse(text);
        assert_eq!(mappings.cut(&(0x2000..0x8800)), [0x2000..0x3000, 0x3000..0x4000, 0x8000..0x8800]);
        assert_eq!(mappings.cut(&(0x4000..0x8000)), []);
        assert_eq!(mappings.cut(&(0x2000..0x2000)), []);
    }

    /// Whole pages of memory that is never freed.
    fn pages(count: usize) -> (&'static [AtomicU64], Range<usize>) {
        let page = page_bytes();
        let memory: Vec<AtomicU64> = std::iter::repeat_with(AtomicU64::default).take((count + 1) * page / 8).collect();
        let memory: &'static [AtomicU64] = memory.leak();
        let start = LiveMemory::leaked(memory).range().start.next_multiple_of(page);
        let first = (start - LiveMemory::leaked(memory).range().start) / 8;
        (&memory[first..first + count * page / 8], start..start + count * page)
    }

    fn or_skip(features: u64) -> Option<Arc<Watch>> {
        match Watch::open_with(features) {
            Ok(watch) => Some(Arc::new(watch)),
            Err(why) => {
                eprintln!("*** SKIPPED: no writes can be watched on this machine: {why} ***");
                None
            }
        }
    }

    /// Runs also as on a kernel on which untouched pages must be touched before they can be protected.
    #[test]
    fn who_writes_to_a_protected_page_waits_until_it_may_pass() {
        for features in [HAS_SHARED | HAS_UNTOUCHED, 0] {
            let Some(watch) = or_skip(features) else { return };
            let (memory, range) = pages(8);
            let page = page_bytes();
            let protected = watch.protect(range.clone(), &Mappings::now()).expect("protected");
            assert_eq!(watch.next_fault(), None);
            let has_written = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    memory[3 * page / 8 + 5].store(9, Ordering::Relaxed);
                    has_written.store(true, Ordering::Release);
                });
                let fault = fault_on(&watch);
                assert_eq!(fault, range.start + 3 * page);
                assert!(!has_written.load(Ordering::Acquire));
                // Reads do not wait.
                assert_eq!(memory[3 * page / 8 + 5].load(Ordering::Relaxed), 0);
                protected.let_pass(&(fault..fault + page)).expect("it may");
            });
            memory[3 * page / 8].store(10, Ordering::Relaxed);
            // A thread that waits when the protection is removed continues.
            std::thread::scope(|scope| {
                scope.spawn(|| memory[0].store(11, Ordering::Relaxed));
                fault_on(&watch);
                drop(protected);
            });
            assert_eq!((memory[0].load(Ordering::Relaxed), watch.next_fault()), (11, None));
        }
    }

    fn fault_on(watch: &Watch) -> usize {
        let begun = Instant::now();
        loop {
            if let Some(fault) = watch.next_fault() {
                return fault;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody was stopped");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_not_mapped_or_not_whole_is_refused() {
        let Some(watch) = or_skip(HAS_SHARED | HAS_UNTOUCHED) else { return };
        let page = page_bytes();
        let hole = 0x1000_0000_0000..0x1000_0000_0000 + page;
        assert!(matches!(watch.protect(hole, &Mappings::now()), Err(WatchError::Memory { errno: Errno::NOMEM })));
        let (memory, range) = pages(2);
        let odd = range.start + 8..range.end;
        assert!(matches!(watch.protect(odd, &Mappings::now()), Err(WatchError::Memory { errno: Errno::INVAL })));
        memory[0].store(1, Ordering::Relaxed);
    }
}
