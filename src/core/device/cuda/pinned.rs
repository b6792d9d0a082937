//! Host memory that the GPU reaches at the speed of the link: registrations, and our own small buffers.
//!
//! A driver refuses a copy that crosses from one registration into another, or out of one. The process therefore keeps a book of
//! what it has registered, by which transfers are cut ([`cut`]). A registration lives for as long as somebody pins with it or
//! copies through it: memory that is pinned again shares its registration.

use super::super::{DeviceError, HostRange, Pinned, Result};
use super::context::{KeptContext, Shared, bind, failed};
use super::memory::{attribute, out_of_memory};
use crate::base::digest::{copy_streaming, store_fence};
use crate::base::log;
use crate::base::sync::{Guard, Lock, Order};
use crate::base::units::PAGE;
use cudarc::driver::{CudaContext, result, sys};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// End and state of each registration of this process by its start, whichever device it was made for: all are portable. Invariant:
/// no two overlap.
static BOOK: Lock<BTreeMap<usize, (usize, State)>> = Lock::new(BTreeMap::new());
/// Held while something is being registered, of which the book is told before and after.
static REGISTERING: Lock<()> = Lock::at(Order::Outer, ());

/// What can be done with a registration.
enum State {
    /// It is being made, or being taken back because nobody has it any more.
    Moving,
    Here(Weak<Registration>),
    /// It could not be taken back: its memory stays mapped, and copies go around it.
    Stuck,
}

/// Nobody may drop a registration while holding this.
fn book() -> Guard<'static, BTreeMap<usize, (usize, State)>> {
    BOOK.lock()
}

/// Host memory that is registered with the driver.
pub(super) struct Registration {
    shared: Arc<Shared>,
    memory: HostRange,
}

impl Registration {
    /// Registers memory that is in no registration.
    fn new(shared: &Arc<Shared>, memory: HostRange) -> Result<Arc<Registration>> {
        let (start, end) = (memory.address, memory.address + memory.bytes as usize);
        // Entered before the driver knows it, because transfers must avoid what is just being registered.
        book().insert(start, (end, State::Moving));
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the driver checks that the range is mapped, and changes no byte of it; `memory.keep` keeps it mapped until
        // `drop` has taken the registration back.
        let code = unsafe { sys::cuMemHostRegister_v2(start as *mut _, memory.bytes as usize, flags) };
        if let Err(error) = code.result() {
            book().remove(&start);
            return Err(out_of_memory(shared, "pinned host memory", memory.bytes, "cuMemHostRegister", error));
        }
        let made = Arc::new(Registration { shared: shared.clone(), memory });
        book().insert(start, (end, State::Here(Arc::downgrade(&made))));
        Ok(made)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The last owner may be a thread that works with another GPU.
        let _kept = KeptContext::here();
        let undone = self.shared.bind().and_then(|_bound| {
            // SAFETY: the address was registered by `new`, and is unregistered once. Copies through it hold it.
            let code = unsafe { sys::cuMemHostUnregister(self.memory.address as *mut _) };
            code.result().map_err(|error| self.shared.failed("cuMemHostUnregister", error))
        });
        let Err(error) = undone else {
            book().remove(&self.memory.address);
            return;
        };
        // The driver may continue to consider it pinned, so other memory must not be placed at its addresses. With a lost device, this
        // happens to all registrations.
        static SAID: AtomicBool = AtomicBool::new(false);
        let level = if SAID.swap(true, Ordering::Relaxed) { log::Level::Debug } else { log::Level::Warn };
        log::log!(level, "event=memory-not-unpinned bytes={} error={error}", self.memory.bytes);
        std::mem::forget(self.memory.keep.clone());
        let end = self.memory.address + self.memory.bytes as usize;
        book().insert(self.memory.address, (end, State::Stuck));
    }
}

/// A pinned range: the registrations in which its bytes lie.
pub(super) struct PinnedRange {
    _parts: Vec<Arc<Registration>>,
}

impl Pinned for PinnedRange {}

impl PinnedRange {
    /// Registers those parts of the range that are in no registration of this process.
    pub(super) fn new(shared: &Arc<Shared>, memory: &HostRange) -> Result<PinnedRange> {
        if !memory.address.is_multiple_of(PAGE as usize) || !memory.bytes.is_multiple_of(PAGE) {
            let reason = "host memory can only be pinned in whole pages";
            return Err(DeviceError::Range { offset: memory.address as u64, bytes: memory.bytes, reason });
        }
        let _bound = shared.bind()?;
        let _one_at_a_time = REGISTERING.lock();
        let (mut at, end) = (memory.address, memory.address + memory.bytes as usize);
        let mut parts = Vec::new();
        while at < end {
            let place = around(&book(), at, end);
            match place {
                Around::Here(upto, registration) => {
                    parts.push(registration);
                    at = upto;
                }
                Around::Moving(_) => std::thread::yield_now(),
                Around::Stuck(upto) => at = upto,
                Around::Before(next) => {
                    let gap = HostRange::new(at, (next - at) as u64, memory.keep.clone());
                    parts.push(Registration::new(shared, gap)?);
                    at = next;
                }
            }
        }
        Ok(PinnedRange { _parts: parts })
    }
}

/// Where an address is, and up to where that holds.
enum Around {
    /// In a registration.
    Here(usize, Arc<Registration>),
    /// In one that is being made or taken back.
    Moving(usize),
    /// In one that could not be taken back.
    Stuck(usize),
    /// In none.
    Before(usize),
}

fn around(book: &BTreeMap<usize, (usize, State)>, address: usize, end: usize) -> Around {
    if let Some((_, (upto, state))) = book.range(..=address).next_back()
        && *upto > address
    {
        let upto = end.min(*upto);
        return match state {
            State::Stuck => Around::Stuck(upto),
            State::Moving => Around::Moving(upto),
            State::Here(registration) => {
                registration.upgrade().map_or(Around::Moving(upto), |registration| Around::Here(upto, registration))
            }
        };
    }
    Around::Before(book.range(address..).next().map_or(end, |(start, _)| end.min(*start)))
}

/// How the device reaches a piece of host memory.
pub(super) enum Way {
    /// By itself. If this is one of our registrations, it is held until the copy has ended.
    Direct(Option<Arc<Registration>>),
    /// Through a buffer.
    Detour,
}

/// Cuts host memory where registrations begin and end: the lengths of the pieces, in order, and how each is reached.
pub(super) fn cut(host: &[u8]) -> Vec<(usize, Way)> {
    cut_at(host.as_ptr().addr(), host.len())
}

/// Cuts host memory as [`cut`] does, by address and length.
pub(super) fn cut_at(start: usize, length: usize) -> Vec<(usize, Way)> {
    let end = start + length;
    let mut pieces = Vec::with_capacity(1);
    // Kept while the driver is asked, so that whatever it then knows about memory between our registrations is the application's doing.
    let book = book();
    let mut at = start;
    while at < end {
        let (upto, way) = match around(&book, at, end) {
            Around::Here(upto, registration) => (upto, Way::Direct(Some(registration))),
            Around::Moving(upto) | Around::Stuck(upto) => (upto, Way::Detour),
            // The application may have registered memory in pieces, or a part of it.
            Around::Before(upto) => match end_of_pinned(at) {
                Some(end) => (upto.min(end), Way::Direct(None)),
                None => (upto, Way::Detour),
            },
        };
        pieces.push((upto - at, way));
        at = upto;
    }
    drop(book);
    pieces
}

/// The end of the registration, or of the driver's pinned memory, in which this address lies; `None` if it lies in none.
fn end_of_pinned(address: usize) -> Option<usize> {
    use sys::CUpointer_attribute as Ask;
    let kind = attribute::<u32>(address as u64, Ask::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 {
        return None;
    }
    let start: usize = attribute(address as u64, Ask::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?;
    let bytes: usize = attribute(address as u64, Ask::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?;
    start.checked_add(bytes).filter(|end| *end > address)
}

/// Small pinned buffers that kernels write digests to and read tables of runs from. They are reused, because making one
/// costs as much as a checkpoint.
pub(super) struct PinnedPool {
    free: Arc<Lock<Vec<PinnedBuffer>>>,
    context: Arc<CudaContext>,
}

/// The least size of a pooled buffer in bytes: enough for the digests of 4 GiB in blocks of 256 KiB.
const BUFFER_MIN: usize = 256 << 10;
/// The number of buffers that are made at once, so that the first captures find one.
const BUFFERS_AT_START: usize = 4;

impl PinnedPool {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<PinnedPool> {
        let pool = PinnedPool { free: Arc::default(), context: context.clone() };
        let buffers: Result<Vec<_>> = (0..BUFFERS_AT_START).map(|_| pool.make(BUFFER_MIN)).collect();
        *pool.lock() = buffers?;
        Ok(pool)
    }

    fn lock(&self) -> Guard<'_, Vec<PinnedBuffer>> {
        self.free.lock()
    }

    fn make(&self, bytes: usize) -> Result<PinnedBuffer> {
        let ordinal = self.context.ordinal();
        let _bound = bind(&self.context)?;
        // SAFETY: the context is bound; 1 is CU_MEMHOSTALLOC_PORTABLE. Unified addressing makes the host address the device's.
        let address = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let address = address.map_err(|error| failed(ordinal, "cuMemHostAlloc", error))?;
        Ok(PinnedBuffer { address: address as u64, bytes, context: self.context.clone() })
    }

    /// Makes buffers of at least `bytes` bytes until there are `count` of them.
    pub(super) fn stock(&self, count: usize, bytes: usize) -> Result<()> {
        while self.lock().iter().filter(|buffer| buffer.bytes >= bytes).count() < count {
            let buffer = self.make(bytes)?;
            self.lock().push(buffer);
        }
        Ok(())
    }

    /// A buffer of at least `bytes` bytes, the smallest there is. It is given back when the loan is dropped.
    pub(super) fn take(&self, bytes: usize) -> Result<PinnedLoan> {
        let found = {
            let mut free = self.lock();
            let fitting = free.iter().enumerate().filter(|(_, buffer)| buffer.bytes >= bytes);
            let smallest = fitting.min_by_key(|(_, buffer)| buffer.bytes).map(|(at, _)| at);
            smallest.map(|at| free.swap_remove(at))
        };
        let buffer = match found {
            Some(buffer) => buffer,
            None => self.make(bytes.next_power_of_two().max(BUFFER_MIN))?,
        };
        Ok(PinnedLoan { buffer: Some(buffer), home: self.free.clone() })
    }
}

/// Pinned host memory of our own.
pub(super) struct PinnedBuffer {
    address: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let freed = bind(&self.context).and_then(|_bound| {
            // SAFETY: the address came from `malloc_host` and is freed once; no loan of it is out.
            let freed = unsafe { result::free_host(self.address as *mut _) };
            freed.map_err(|error| failed(self.context.ordinal(), "cuMemFreeHost", error))
        });
        if let Err(error) = freed {
            log::debug!("event=pinned-memory-not-freed error={error}");
        }
    }
}

/// A buffer of the pool in use.
pub(super) struct PinnedLoan {
    buffer: Option<PinnedBuffer>,
    home: Arc<Lock<Vec<PinnedBuffer>>>,
}

impl PinnedLoan {
    fn buffer(&self) -> &PinnedBuffer {
        self.buffer.as_ref().expect("a loan has its buffer until it is dropped")
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer().address
    }

    /// The first bytes of the buffer, which the device neither reads nor writes now.
    pub(super) fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        let buffer = self.buffer();
        assert!(bytes <= buffer.bytes, "the loan is large enough");
        // SAFETY: the buffer is host memory of ours of that length (asserted), which the driver has zeroed or others have written; the loan is
        // exclusive, and the caller has waited for the device.
        unsafe { std::slice::from_raw_parts_mut(buffer.address as *mut u8, bytes) }
    }

    /// Writes bytes for the device to read, through the processor's caches: while the bytes are in the caches, the device reads them from
    /// there, and host memory is spared two of three passes.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let buffer = self.buffer();
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= buffer.bytes), "the loan is large enough");
        let target = (buffer.address as usize + offset) as *mut u8;
        // SAFETY: the range is inside the buffer (asserted), which is host memory of ours; the loan is exclusive, and the device
        // is told of it only after the write.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Reads what the device has written; the caller has waited for the device.
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let buffer = self.buffer();
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= buffer.bytes), "the loan is large enough");
        let source = (buffer.address as usize + offset) as *const u8;
        // SAFETY: the range is inside the buffer (asserted); the work that writes to it has ended.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies the buffer's beginning past the processor's caches; the caller has waited for the device.
    pub(super) fn stream_out(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.buffer().bytes, "the loan is large enough");
        // SAFETY: the buffer is host memory of ours of that length (asserted); the work that writes to it has ended.
        copy_streaming(unsafe { std::slice::from_raw_parts(self.address() as *const u8, bytes.len()) }, bytes);
        store_fence();
    }
}

impl Drop for PinnedLoan {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.home.lock().push(buffer);
        }
    }
}
