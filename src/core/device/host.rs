//! The host twin: a device whose memory is the host's.
//!
//! It behaves as a GPU does where that matters to the rest of the code. Its memory has addresses that the host cannot dereference, is
//! mapped in steps of 2 MiB, and runs out. Work is enqueued on streams, each of which has a thread that runs its work in order. Access to
//! memory that is not mapped loses the device, and the error is reported later. Transfers take the time that a [`HostModel`] gives. Digests
//! are the same. None of this is `unsafe`: memory is reached by address through locked boxes.
#![forbid(unsafe_code)]

mod stream;

pub use stream::HostStream;

use super::chunks::{ChunkTable, Place, TableSize, check_question, within};
use super::{Device, DeviceError, DeviceInfo, DeviceSpan, HostRange, Pinned, Priority, Reservation, Result, Stream};
use crate::base::sync::{Guard, Lock, Order};
use crate::base::units::MIB;
use crate::base::units::PAGE;
use crate::reduction::{Chunks, Found, Question};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use stream::Schedule;

/// Steps in which memory is mapped.
const GRANULARITY: u64 = 2 * MIB;
/// Where addresses begin: no host allocation lies there.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000;

/// How fast the twin is. `None` means as fast as the host.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostModel {
    /// Memory in bytes; zero means 64 GiB.
    pub memory_bytes: u64,
    /// Copies inside the device, in bytes per second.
    pub copy_bytes_per_s: Option<f64>,
    /// Each direction of the link, shared by all streams, in bytes per second.
    pub link_bytes_per_s: Option<f64>,
}

/// A device in host memory.
pub struct HostDevice {
    shared: Arc<Shared>,
}

/// One step of memory, if it is mapped. A kernel of the application locks several, in the order of their addresses.
type MemoryBox = Lock<Option<Box<[u8]>>>;
/// A step of memory while it is locked.
type LockedBox<'a> = Guard<'a, Option<Box<[u8]>>>;

struct Shared {
    info: DeviceInfo,
    model: HostModel,
    book: Lock<Book>,
    /// When each direction of the link becomes free: down, up.
    links: [Lock<Option<Instant>>; 2],
    /// Taken while nothing may cross the link.
    stopped: Lock<()>,
    lost: Lock<Option<String>>,
    streams: AtomicUsize,
    /// Exists only if streams have no threads.
    schedule: Option<Lock<Schedule>>,
}

/// Which addresses belong to what.
struct Book {
    next: u64,
    used: u64,
    ranges: BTreeMap<u64, Weak<Range>>,
}

/// Addresses with memory in boxes of equal size, of which some may be missing.
struct Range {
    shared: Arc<Shared>,
    base: u64,
    bytes: u64,
    box_bytes: u64,
    boxes: Vec<MemoryBox>,
    /// Offset and length of what was mapped together.
    steps: Lock<BTreeMap<u64, u64>>,
}

fn lock<T>(mutex: &Lock<T>) -> Guard<'_, T> {
    mutex.lock()
}

impl HostDevice {
    /// A twin with the given model.
    pub fn new(model: HostModel) -> HostDevice {
        HostDevice::with(model, None)
    }

    /// A twin whose streams have no threads. Their work is done by any call that waits for some of it, and by [`HostDevice::advance`]; a
    /// seed chooses which part of which stream is next. If only one thread uses the twin, the same seed gives the same order.
    pub fn scheduled(model: HostModel, seed: u64) -> HostDevice {
        HostDevice::with(model, Some(Lock::at(Order::Account, Schedule::new(seed))))
    }

    fn with(model: HostModel, schedule: Option<Lock<Schedule>>) -> HostDevice {
        let memory_bytes = if model.memory_bytes == 0 { 64 << 30 } else { model.memory_bytes };
        let info = DeviceInfo {
            kind: "host",
            ordinal: 0,
            name: "host twin".into(),
            bus_id: String::new(),
            granularity: GRANULARITY,
            memory_bytes,
        };
        let book = Book { next: FIRST_ADDRESS, used: 0, ranges: BTreeMap::new() };
        let shared = Shared {
            info,
            model,
            book: Lock::new(book),
            links: Default::default(),
            stopped: Lock::unordered(()),
            lost: Lock::default(),
            streams: AtomicUsize::new(0),
            schedule,
        };
        HostDevice { shared: Arc::new(shared) }
    }

    /// Runs `kernel` on the bytes of spans that were obtained from [`Device::allocate`], in the order given. This call is the counterpart
    /// of a kernel launch on a GPU: the application's own code computes on the twin in this way.
    ///
    /// # Blocking
    /// For the kernel. Work on streams is not waited for: finish the stream first.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if two spans share an allocation, or if a span does not come from such an allocation.
    pub fn compute<T>(&self, spans: &[&DeviceSpan], kernel: impl FnOnce(&mut [&mut [u8]]) -> T) -> Result<T> {
        self.shared.compute(spans, kernel)
    }

    /// Is an address in the range where twins have their memory? It may belong to none of them.
    pub fn is_address(address: u64) -> bool {
        (FIRST_ADDRESS..=i64::MAX as u64).contains(&address)
    }

    /// A part of an allocation, by its address. A program that has only pointers names GPU memory in this way.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] if the address is not in memory of this twin; [`DeviceError::Range`] if the part extends beyond the end of
    /// its allocation.
    pub fn span_at(&self, address: u64, bytes: u64) -> Result<DeviceSpan> {
        let range = self.shared.range_at(address)?;
        let (base, whole) = (range.base, range.bytes);
        DeviceSpan::new(base, whole, self.shared.home(), range).part(address - base, bytes)
    }

    /// A stream on which kernels can be enqueued as well.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn own_stream(&self) -> Result<Arc<HostStream>> {
        HostStream::new(&self.shared).map(Arc::new)
    }

    /// If streams have no threads, does part of the work of one stream. Returns false if there is no work that may be done now.
    pub fn advance(&self) -> bool {
        self.shared.advance()
    }

    /// Stops the link: nothing crosses it as long as the result is held. Enqueued work waits there, and has read nothing yet.
    pub fn stop_link(&self) -> Guard<'_, ()> {
        self.shared.stopped.lock()
    }

    /// Loses the device, as a kernel fault does.
    pub fn lose(&self, reason: &str) {
        self.shared.lose(reason.into());
    }
}

impl Shared {
    /// See [`HostDevice::compute`].
    fn compute<T>(&self, spans: &[&DeviceSpan], kernel: impl FnOnce(&mut [&mut [u8]]) -> T) -> Result<T> {
        let ranges: Result<Vec<_>> = spans.iter().map(|span| self.range_at(span.address())).collect();
        let ranges = ranges?;
        let refuse = |span: &DeviceSpan, reason| DeviceError::Range { offset: 0, bytes: span.bytes(), reason };
        // Locked in the order of addresses, so that two kernels cannot wait for each other.
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_by_key(|index| ranges[*index].base);
        if let Some(pair) = order.windows(2).find(|pair| ranges[pair[0]].base == ranges[pair[1]].base) {
            return Err(refuse(spans[pair[0]], "two spans of one kernel share an allocation"));
        }
        let mut guards: Vec<(usize, LockedBox<'_>)> = Vec::new();
        for index in order {
            let (range, span) = (&ranges[index], spans[index]);
            if range.box_bytes != range.bytes || span.address() + span.bytes() > range.base + range.bytes {
                return Err(refuse(span, "on the host device, kernels can only use allocations"));
            }
            guards.push((index, lock(&range.boxes[0])));
        }
        guards.sort_by_key(|(index, _)| *index);
        let mut slices = Vec::with_capacity(spans.len());
        for (index, guard) in &mut guards {
            let offset = (spans[*index].address() - ranges[*index].base) as usize;
            let memory = guard.as_mut().ok_or_else(|| refuse(spans[*index], "the memory is gone"))?;
            slices.push(&mut memory[offset..offset + spans[*index].bytes() as usize]);
        }
        Ok(kernel(&mut slices))
    }

    /// A number that tells this device from others.
    fn home(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn check_spans<'a>(&self, mut spans: impl Iterator<Item = &'a DeviceSpan>) -> Result<()> {
        spans.try_for_each(|span| span.check_home(self.home(), self.info.ordinal))
    }

    fn check(&self) -> Result<()> {
        match &*lock(&self.lost) {
            Some(reason) => Err(DeviceError::Lost { ordinal: 0, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn lose(&self, reason: String) {
        lock(&self.lost).get_or_insert(reason);
    }

    fn range_at(&self, address: u64) -> Result<Arc<Range>> {
        let book = lock(&self.book);
        let found = book.ranges.range(..=address).next_back().and_then(|(_, range)| range.upgrade());
        found.filter(|range| address < range.base + range.bytes.max(1)).ok_or_else(|| DeviceError::Foreign {
            address,
            ordinal: 0,
            reason: "the device does not know it".into(),
        })
    }

    fn take(&self, bytes: u64, what: &'static str) -> Result<()> {
        let mut book = lock(&self.book);
        if book.used + bytes > self.info.memory_bytes {
            return Err(DeviceError::OutOfMemory { what, bytes });
        }
        book.used += bytes;
        Ok(())
    }

    fn give(&self, bytes: u64) {
        lock(&self.book).used -= bytes;
    }

    /// Calls `visit` for each part of a span that lies in one box, with that box's bytes.
    fn visit(&self, span: &DeviceSpan, mut visit: impl FnMut(u64, &mut [u8])) -> Result<()> {
        if span.bytes() == 0 {
            return Ok(());
        }
        let range = self.range_at(span.address())?;
        let begin = span.address() - range.base;
        let end = begin + span.bytes();
        let mut at = begin;
        while at < end {
            let index = at / range.box_bytes;
            let stop = end.min((index + 1) * range.box_bytes);
            let mut memory = range.boxes.get(index as usize).map(lock);
            let Some(memory) = memory.as_mut().and_then(|memory| memory.as_mut()) else {
                let reason = format!("illegal address {:#x}", range.base + at);
                self.lose(reason.clone());
                return Err(DeviceError::Lost { ordinal: 0, reason });
            };
            let first = index * range.box_bytes;
            visit(at - begin, &mut memory[(at - first) as usize..(stop - first) as usize]);
            at = stop;
        }
        Ok(())
    }

    fn read(&self, span: &DeviceSpan, target: &mut [u8]) -> Result<()> {
        self.visit(span, |at, bytes| target[at as usize..at as usize + bytes.len()].copy_from_slice(bytes))
    }

    fn write(&self, span: &DeviceSpan, source: &[u8]) -> Result<()> {
        self.visit(span, |at, bytes| bytes.copy_from_slice(&source[at as usize..at as usize + bytes.len()]))
    }

    /// To be called before anything that crosses the link is read.
    fn wait_for_link(&self) {
        drop(self.stopped.lock());
    }

    /// Lets the modelled time of a transfer pass.
    fn spend_on_link(&self, link: usize, bytes: u64) {
        let Some(rate) = self.model.link_bytes_per_s else { return };
        let end = {
            let mut taken = lock(&self.links[link]);
            let now = Instant::now();
            let end = taken.map_or(now, |taken| taken.max(now)) + Duration::from_secs_f64(bytes as f64 / rate);
            *taken = Some(end);
            end
        };
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

impl Range {
    fn new(shared: &Arc<Shared>, bytes: u64, box_bytes: u64) -> Arc<Range> {
        let boxes = (0..bytes.div_ceil(box_bytes.max(1)).max(1)).map(|_| Lock::unordered(None)).collect();
        let mut book = lock(&shared.book);
        let base = book.next;
        book.next += bytes.max(1).next_multiple_of(GRANULARITY) + GRANULARITY;
        book.ranges.retain(|_, range| range.strong_count() > 0);
        let range = Range {
            shared: shared.clone(),
            base,
            bytes,
            box_bytes,
            boxes,
            steps: Lock::at(Order::Outer, BTreeMap::new()),
        };
        let range = Arc::new(range);
        book.ranges.insert(base, Arc::downgrade(&range));
        range
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let boxes = self.boxes.iter_mut().filter_map(|memory| memory.get_mut().take());
        let bytes: u64 = boxes.map(|memory| memory.len() as u64).sum();
        self.shared.give(bytes);
    }
}

/// A range whose boxes come and go.
struct Steps(Arc<Range>);

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({:#x}, {} bytes)", self.0.base, self.0.bytes)
    }
}

impl Steps {
    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let reason = if bytes == 0 || !offset.is_multiple_of(GRANULARITY) || !bytes.is_multiple_of(GRANULARITY) {
            "device memory is mapped in multiples of the granularity"
        } else if offset.checked_add(bytes).is_none_or(|end| end > self.0.bytes) {
            "it goes past the end of the reservation"
        } else {
            return Ok(());
        };
        Err(DeviceError::Range { offset, bytes, reason })
    }

    fn boxes(&self, offset: u64, bytes: u64) -> &[MemoryBox] {
        &self.0.boxes[(offset / GRANULARITY) as usize..((offset + bytes) / GRANULARITY) as usize]
    }
}

impl Reservation for Steps {
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    fn map(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        self.0.shared.check()?;
        let mut steps = lock(&self.0.steps);
        let boxes = self.boxes(offset, bytes);
        if boxes.iter().any(|memory| lock(memory).is_some()) {
            return Err(DeviceError::Range { offset, bytes, reason: "part of it is already mapped" });
        }
        self.0.shared.take(bytes, "the GPU cache")?;
        for memory in boxes {
            *lock(memory) = Some(vec![0; GRANULARITY as usize].into_boxed_slice());
        }
        steps.insert(offset, bytes);
        Ok(())
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        let mut steps = lock(&self.0.steps);
        let inside: Vec<(u64, u64)> = steps.range(offset..offset + bytes).map(|(at, length)| (*at, *length)).collect();
        let end = inside.iter().fold(offset, |next, (at, length)| if *at == next { next + length } else { next });
        if end != offset + bytes {
            return Err(DeviceError::Range { offset, bytes, reason: "it does not consist of whole mapped pieces" });
        }
        inside.iter().for_each(|(at, _)| _ = steps.remove(at));
        self.boxes(offset, bytes).iter().for_each(|memory| *lock(memory) = None);
        self.0.shared.give(bytes);
        Ok(())
    }

    fn span(&self, offset: u64, bytes: u64) -> Result<DeviceSpan> {
        let whole = offset.checked_add(bytes).is_some_and(|end| {
            let last = end.div_ceil(GRANULARITY) as usize;
            let boxes = self.0.boxes.get((offset / GRANULARITY) as usize..last.max((offset / GRANULARITY) as usize));
            end <= self.0.bytes && boxes.is_some_and(|boxes| boxes.iter().all(|memory| lock(memory).is_some()))
        });
        if !whole {
            return Err(DeviceError::Range { offset, bytes, reason: "part of it is not mapped" });
        }
        Ok(DeviceSpan::new(self.0.base + offset, bytes, self.0.shared.home(), self.0.clone()))
    }
}

/// All memory of the host is within reach of the twin: a registration keeps it mapped, and that is all.
struct HostPinned {
    _memory: HostRange,
}

impl Pinned for HostPinned {}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostDevice({})", self.shared.info.name)
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn free_memory(&self) -> Result<u64> {
        self.shared.check()?;
        Ok(self.shared.info.memory_bytes - lock(&self.shared.book).used)
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSpan> {
        self.shared.check()?;
        self.shared.take(bytes, "an allocation")?;
        let range = Range::new(&self.shared, bytes, bytes);
        *lock(&range.boxes[0]) = Some(vec![0; bytes as usize].into_boxed_slice());
        Ok(DeviceSpan::new(range.base, bytes, self.shared.home(), range))
    }

    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>> {
        self.shared.check()?;
        let bytes = bytes.max(1).next_multiple_of(GRANULARITY);
        Ok(Arc::new(Steps(Range::new(&self.shared, bytes, GRANULARITY))))
    }

    fn stream(&self, _priority: Priority) -> Result<Arc<dyn Stream>> {
        Ok(self.own_stream()?)
    }

    fn chunk_table(&self, size: TableSize) -> Result<Box<dyn ChunkTable>> {
        self.shared.check()?;
        self.shared.take(size.bytes(), "a table of chunks")?;
        Ok(Box::new(HostChunks { shared: self.shared.clone(), size, chunks: size.empty(), before: Vec::new() }))
    }

    fn make_ready(&self, _: u64) -> Result<()> {
        self.shared.check()
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>> {
        self.shared.check()?;
        if !memory.address.is_multiple_of(PAGE as usize) || !memory.bytes.is_multiple_of(PAGE) {
            let reason = "host memory can only be pinned in whole pages";
            return Err(DeviceError::Range { offset: memory.address as u64, bytes: memory.bytes, reason });
        }
        Ok(Box::new(HostPinned { _memory: memory.clone() }))
    }
}

/// A table of chunks that is searched on the CPU.
struct HostChunks {
    shared: Arc<Shared>,
    size: TableSize,
    chunks: Chunks,
    /// Names and lengths of the fields that were looked at last.
    before: Vec<(String, u64)>,
}

impl ChunkTable for HostChunks {
    fn size(&self) -> &TableSize {
        &self.size
    }

    fn look(&mut self, asked: &Question, places: &[Place]) -> Result<Option<Found>> {
        check_question(&self.size, asked, places)?;
        self.shared.check_spans(places.iter().map(|place| &place.span))?;
        self.shared.check()?;
        let fields: Vec<_> = asked.fields.iter().map(|field| (field.name.clone(), field.bytes)).collect();
        if fields != self.before {
            (self.chunks, self.before) = (self.size.empty(), fields);
        }
        let read = |field: usize, block: u64| {
            let from = block * self.size.block;
            let mut bytes = vec![0; self.size.block.min(asked.fields[field].bytes - from) as usize];
            let mut rest = &mut bytes[..];
            for span in within(places, field, from, rest.len() as u64)? {
                let (part, others) = rest.split_at_mut(span.bytes() as usize);
                self.shared.read(&span, part)?;
                rest = others;
            }
            Ok(Cow::Owned(bytes))
        };
        let found = self.chunks.look(asked, read).inspect_err(|_| self.before.clear())?;
        let runs: usize = found.values().map(Vec::len).sum();
        if runs as u64 > self.size.runs {
            self.before.clear();
            return Ok(None);
        }
        Ok(Some(found))
    }
}

impl Drop for HostChunks {
    fn drop(&mut self) {
        self.shared.give(self.size.bytes());
    }
}

impl fmt::Debug for HostChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostChunks({:?})", self.size)
    }
}
