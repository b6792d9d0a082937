//! The host twin: a device whose memory is the host's.
//!
//! It behaves as a GPU does where that matters to the rest: memory has addresses of its own that the host cannot follow, is
//! mapped in steps of 2 MiB, and runs out; work is enqueued on streams, each of which has a thread and runs it in order;
//! touching memory that is not mapped loses the device, and that is heard of later; transfers take time by a
//! [`HostModel`]. Digests are the same. Nothing of it is `unsafe`: memory is reached through locked boxes by address.
#![forbid(unsafe_code)]

use super::chunks::{ChunkTable, Place, TableSize, check_question, within};
use super::{
    Copied, Device, DeviceError, DeviceInfo, DeviceSpan, Gate, HostRange, Pinned, Priority, Reservation, Result, Run,
    Stream, check_runs, upload_and_digest,
};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::base::log;
use crate::base::sync::{Condition, Guard, Lock, Order};
use crate::base::threads::spawn;
use crate::base::units::MIB;
use crate::base::units::PAGE;
use crate::reduction::{Chunks, Found, Question};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Steps in which memory is mapped.
const GRANULARITY: u64 = 2 * MIB;
/// Where addresses begin: no host allocation lies there.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000;
/// Copies go through a buffer of this size, so that no two boxes are locked at once.
const CHUNK_BYTES: u64 = 256 << 10;

/// How fast the twin is. `None`: as fast as the host.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostModel {
    /// Memory in bytes; zero: 64 GiB.
    pub memory_bytes: u64,
    /// Copies inside the device, bytes per second.
    pub copy_bytes_per_s: Option<f64>,
    /// Each direction of the link, shared by all streams, bytes per second.
    pub link_bytes_per_s: Option<f64>,
}

/// A device in host memory.
pub struct HostDevice {
    shared: Arc<Shared>,
}

/// One step of memory, if it is mapped. A kernel of the application locks several, in the order of their addresses.
type MemoryBox = Lock<Option<Box<[u8]>>>;
/// The same while it is locked.
type LockedBox<'a> = Guard<'a, Option<Box<[u8]>>>;

struct Shared {
    info: DeviceInfo,
    model: HostModel,
    book: Lock<Book>,
    /// Until when the link is taken: down, up.
    links: [Lock<Option<Instant>>; 2],
    lost: Lock<Option<String>>,
    streams: AtomicUsize,
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
    /// A twin with that model.
    pub fn new(model: HostModel) -> HostDevice {
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
            lost: Lock::default(),
            streams: AtomicUsize::new(0),
        };
        HostDevice { shared: Arc::new(shared) }
    }

    /// Runs `kernel` on the bytes of spans that were got from [`Device::allocate`], in the order given: what a kernel launch is to
    /// a GPU. The application's own code on the twin computes so.
    ///
    /// # Blocking
    /// For the kernel. Work on streams is not waited for: finish the stream first.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if two spans share an allocation or one is not such memory.
    pub fn compute<T>(&self, spans: &[&DeviceSpan], kernel: impl FnOnce(&mut [&mut [u8]]) -> T) -> Result<T> {
        let ranges: Result<Vec<_>> = spans.iter().map(|span| self.shared.range_at(span.address())).collect();
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
                return Err(refuse(span, "kernels of the twin work on allocations"));
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

    /// Loses the device, as a fault of a kernel does.
    pub fn lose(&self, reason: &str) {
        self.shared.lose(reason.into());
    }
}

impl Shared {
    /// Tells this device from others.
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

    /// Copies inside the device; `on_chunk` sees the bytes.
    fn copy(&self, from: &DeviceSpan, to: Option<&DeviceSpan>, mut on_chunk: impl FnMut(&[u8])) -> Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES.min(from.bytes()) as usize];
        let mut at = 0;
        while at < from.bytes() {
            let length = CHUNK_BYTES.min(from.bytes() - at);
            let chunk = &mut buffer[..length as usize];
            self.read(&from.part(at, length)?, chunk)?;
            if let Some(to) = to {
                self.write(&to.part(at, length)?, chunk)?;
            }
            on_chunk(chunk);
            at += length;
        }
        Ok(())
    }

    /// Digests of the runs' blocks, copied on the way.
    fn copy_runs(&self, runs: &[Run], block_bytes: u64, blocks: u32) -> Result<Vec<Digest>> {
        // Blocks of which only a part has come by: their bytes, and how many of them there are.
        let mut open: BTreeMap<u32, (Vec<u8>, usize)> = BTreeMap::new();
        // A GPU leaves what was there before in the digests of blocks that no run covers.
        let mut digests = vec![Digest([0xdb; 16]); blocks as usize];
        for run in runs {
            let mut at = run.start;
            self.copy(&run.from, run.to.as_ref(), |mut chunk| {
                while !chunk.is_empty() {
                    let block = at / block_bytes;
                    let begin = block * block_bytes;
                    let length = block_bytes.min(run.region_bytes - begin) as usize;
                    let inside = (at - begin) as usize;
                    let (new, rest) = chunk.split_at(chunk.len().min(length - inside));
                    let index = run.first_block + block as u32;
                    let (bytes, count) = open.entry(index).or_insert_with(|| (vec![0; length], 0));
                    bytes[inside..inside + new.len()].copy_from_slice(new);
                    *count += new.len();
                    if *count == length {
                        digests[index as usize] = digest_bytes(bytes);
                        open.remove(&index);
                    }
                    at += new.len() as u64;
                    chunk = rest;
                }
            })?;
        }
        Ok(digests)
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
            "it reaches over the end of the reservation"
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
            return Err(DeviceError::Range { offset, bytes, reason: "a part of it is mapped already" });
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
            return Err(DeviceError::Range { offset, bytes, reason: "it is not made of whole mapped steps" });
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
            return Err(DeviceError::Range { offset, bytes, reason: "a part of it has no memory" });
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
        self.shared.check()?;
        let number = self.shared.streams.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel::<Job>();
        let thread = spawn(format!("bvk-twin-{number}"), move || {
            for job in receiver {
                job();
            }
        });
        let thread = thread.map_err(|error| DeviceError::Failed {
            ordinal: 0,
            call: "a thread for a stream",
            reason: error.to_string(),
        })?;
        Ok(Arc::new(HostStream { shared: self.shared.clone(), sender: Some(sender), thread: Some(thread), number }))
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
            let reason = "host memory is pinned in whole pages";
            return Err(DeviceError::Range { offset: memory.address as u64, bytes: memory.bytes, reason });
        }
        Ok(Box::new(HostPinned { _memory: memory.clone() }))
    }
}

/// A table of chunks, which the processor looks into.
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

/// A piece of work on a stream.
type Job = Box<dyn FnOnce() + Send>;

/// A stream: a queue and the thread that works it off.
struct HostStream {
    shared: Arc<Shared>,
    sender: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    number: usize,
}

/// The end of a piece of work.
#[derive(Default)]
struct End {
    outcome: Lock<Option<(Result<Vec<Digest>>, f64)>>,
    changed: Condition,
}

impl HostStream {
    fn enqueue(&self, work: impl FnOnce(&Shared) -> Result<Vec<Digest>> + Send + 'static) -> Result<Arc<End>> {
        self.shared.check()?;
        let end = Arc::new(End::default());
        let (shared, there) = (self.shared.clone(), end.clone());
        let job: Job = Box::new(move || {
            let started = Instant::now();
            let outcome = shared.check().and_then(|()| work(&shared));
            *lock(&there.outcome) = Some((outcome, started.elapsed().as_secs_f64()));
            there.changed.notify_all();
        });
        // The thread lives as long as the stream.
        if self.sender.as_ref().is_none_or(|sender| sender.send(job).is_err()) {
            return Err(DeviceError::Lost { ordinal: 0, reason: "the stream's thread is gone".into() });
        }
        Ok(end)
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            log::error!("event=twin-thread-panicked stream={}", self.number);
        }
    }
}

impl End {
    fn with<T>(&self, read: impl FnOnce(&Result<Vec<Digest>>, f64) -> T) -> T {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Some((result, seconds)) => return read(result, *seconds),
                None => outcome = self.changed.wait(outcome),
            }
        }
    }
}

/// Transfers are cut into pieces of this size, as a GPU's are.
const PIECE_BYTES: u64 = 16 * MIB;

/// Asks the gate for each piece of a transfer.
fn pass(gate: &mut Option<Gate<'_>>, bytes: u64) {
    if let Some(gate) = gate {
        (0..bytes.div_ceil(PIECE_BYTES)).for_each(|index| gate(PIECE_BYTES.min(bytes - index * PIECE_BYTES)));
    }
}

fn check_lengths(device: &DeviceSpan, host: usize) -> Result<()> {
    if device.bytes() == host as u64 {
        return Ok(());
    }
    Err(DeviceError::Range { offset: 0, bytes: device.bytes(), reason: "source and target differ in length" })
}

impl Stream for HostStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>> {
        let blocks = check_runs(&runs, block_bytes)?;
        self.shared.check_spans(runs.iter().flat_map(|run| std::iter::once(&run.from).chain(&run.to)))?;
        let end = self.enqueue(move |shared| {
            let started = Instant::now();
            let digests = shared.copy_runs(&runs, block_bytes, blocks)?;
            if let Some(rate) = shared.model.copy_bytes_per_s {
                let bytes: u64 = runs.iter().map(|run| run.from.bytes()).sum();
                std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate).saturating_sub(started.elapsed()));
            }
            Ok(digests)
        })?;
        Ok(Box::new(HostCopied(end)))
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()> {
        if from.bytes() != to.bytes() {
            let reason = "source and target differ in length";
            return Err(DeviceError::Range { offset: 0, bytes: from.bytes(), reason });
        }
        self.shared.check_spans([from, to].into_iter())?;
        let (from, to) = (from.clone(), to.clone());
        self.enqueue(move |shared| shared.copy(&from, Some(&to), |_| {}).map(|()| Vec::new())).map(|_| ())
    }

    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], mut gate: Option<Gate<'_>>) -> Result<()> {
        copies.iter().try_for_each(|(device, host)| check_lengths(device, host.len()))?;
        self.shared.check_spans(copies.iter().map(|(device, _)| device))?;
        self.finish()?;
        for (device, host) in copies {
            pass(&mut gate, device.bytes());
            self.shared.read(device, host)?;
            self.shared.spend_on_link(0, device.bytes());
        }
        // A device that was lost meanwhile has not delivered.
        self.shared.check()
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], mut gate: Option<Gate<'_>>) -> Result<()> {
        copies.iter().try_for_each(|(host, device)| check_lengths(device, host.len()))?;
        self.shared.check_spans(copies.iter().map(|(_, device)| device))?;
        self.finish()?;
        for (host, device) in copies {
            pass(&mut gate, device.bytes());
            self.shared.write(device, host)?;
            self.shared.spend_on_link(1, device.bytes());
        }
        self.shared.check()
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        upload_and_digest(self, copies, block_bytes)
    }

    fn finish(&self) -> Result<()> {
        self.enqueue(|_| Ok(Vec::new()))?.with(|outcome, _| outcome.clone().map(|_| ()))?;
        self.shared.check()
    }
}

impl fmt::Debug for HostStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostStream({})", self.number)
    }
}

struct HostCopied(Arc<End>);

impl Copied for HostCopied {
    fn is_done(&self) -> Result<bool> {
        match &*lock(&self.0.outcome) {
            Some((outcome, _)) => outcome.clone().map(|_| true),
            None => Ok(false),
        }
    }

    fn wait(&self) -> Result<()> {
        self.0.with(|outcome, _| outcome.clone().map(|_| ()))
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        self.0.with(|outcome, _| outcome.clone())
    }

    fn seconds(&self) -> Result<f64> {
        self.0.with(|outcome, seconds| outcome.clone().map(|_| seconds))
    }
}

impl Drop for HostCopied {
    fn drop(&mut self) {
        self.0.with(|_, _| ());
    }
}
