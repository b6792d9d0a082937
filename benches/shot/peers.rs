//! The peers of the shot: what an application would do without Bivouac, with the same memory.

use super::shot::{Engine, Setup};
use bivouac_core::device::{Device, DeviceSpan, HostRange, Run, Stream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Memory that is handed out from front to back, as versions are appended.
struct Pinned {
    address: u64,
    bytes: u64,
    used: u64,
    context: Arc<CudaContext>,
}

impl Pinned {
    fn new(context: &Arc<CudaContext>, bytes: u64) -> Pinned {
        // SAFETY: the context is bound by its owner on this thread.
        let address =
            unsafe { result::malloc_host(bytes as usize, sys::CU_MEMHOSTALLOC_PORTABLE) }.expect("pinned memory");
        Pinned { address: address as u64, bytes, used: 0, context: context.clone() }
    }

    fn take(&mut self, bytes: u64) -> Option<u64> {
        (self.used + bytes <= self.bytes).then(|| {
            self.used += bytes;
            self.address + self.used - bytes
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.bind_to_thread().expect("context");
        // SAFETY: the address came from `malloc_host`; nothing uses it any more.
        unsafe { result::free_host(self.address as *mut _) }.expect("free");
    }
}

fn bytes_at<'a>(address: u64, bytes: u64) -> &'a mut [u8] {
    // SAFETY: the callers name their own pinned memory, and only one of them uses a range at a time.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes as usize) }
}

/// (d) Seconds that one call takes to allocate pinned memory.
pub fn pin_directly(setup: &Setup, bytes: u64) -> f64 {
    let begun = Instant::now();
    let pinned = Pinned::new(setup.device.context(), bytes);
    let seconds = begun.elapsed().as_secs_f64();
    drop(pinned);
    seconds
}

/// (e) Seconds to map memory, set it to zero, and register it.
pub fn set_and_register(setup: &Setup, bytes: u64) -> f64 {
    let begun = Instant::now();
    let mut memory = vec![0u8; bytes as usize];
    memory.fill(0);
    let (range, _) = HostRange::leaked(memory.leak());
    let skip = range.address().next_multiple_of(4096) - range.address();
    let pinned = setup.device.pin(&range.part(skip as u64, bytes - 4096).expect("inside")).expect("registered");
    let seconds = begun.elapsed().as_secs_f64();
    drop(pinned);
    seconds
}

/// What the disk delivers: prints a line for each number of threads.
pub fn raw_file(directory: &Path, bytes: u64, set: &str) {
    const PIECE: u64 = 4 << 20;
    let pieces = bytes / PIECE;
    let rate = |threads: u64, work: &(dyn Fn(&mut [u8], u64) + Sync)| {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let mut memory = vec![7u8; 2 * PIECE as usize];
                    let skip = memory.as_ptr().align_offset(4096);
                    let piece = &mut memory[skip..skip + PIECE as usize];
                    (thread..pieces).step_by(threads as usize).for_each(|at| work(piece, at * PIECE));
                });
            }
        });
        (pieces * PIECE) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    for threads in [1, 2, 4] {
        let file = file(directory);
        let write = rate(threads, &|piece, at| file.write_all_at(piece, at).expect("write"));
        let read = rate(threads, &|piece, at| file.read_exact_at(piece, at).expect("read"));
        println!(
            "{{\"figure\": \"file\", \"set\": \"{set}\", \"threads\": {threads}, \"gb\": {:.1}, \"write_gb_s\": {write:.2}, \"read_gb_s\": {read:.2}}}",
            bytes as f64 / 1e9
        );
    }
}

/// An unnamed file that bypasses the page cache.
fn file(directory: &Path) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
    let opened = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    File::from(
        opened
            .or_else(|_| rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR))
            .expect("file"),
    )
}

/// Where a version is kept.
#[derive(Clone, Copy)]
enum Place {
    Host(u64),
    File(u64),
}

/// (a) Every copy is waited for: to and from host memory, to and from the file. If copies are enqueued, only those to
/// and from the file are.
pub struct Blocking {
    stream: Arc<CudaStream>,
    enqueue: bool,
    span: DeviceSpan,
    host: Pinned,
    bounce: Pinned,
    file: File,
    end: u64,
    places: BTreeMap<u64, Place>,
}

/// Versions larger than this need a larger bounce buffer.
const BOUNCE: u64 = 1 << 30;

impl Blocking {
    pub fn new(setup: &Setup, host: u64, directory: &Path) -> Blocking {
        let context = setup.device.context();
        Blocking {
            stream: setup.raw.clone(),
            enqueue: setup.enqueue,
            span: setup.span.clone(),
            host: Pinned::new(context, host),
            bounce: Pinned::new(context, BOUNCE),
            file: file(directory),
            end: 0,
            places: BTreeMap::new(),
        }
    }
}

fn down(stream: &CudaStream, span: &DeviceSpan, address: u64, bytes: u64) {
    // SAFETY: both ranges have that length and live until the stream is synchronized.
    unsafe { result::memcpy_dtoh_async(bytes_at(address, bytes), span.address(), stream.cu_stream()) }.expect("copy");
}

/// Brings a version back, through the bounce buffer if it is in the file.
fn bring(stream: &CudaStream, span: &DeviceSpan, place: Place, bytes: u64, file: &File, bounce: &Pinned) {
    let address = match place {
        Place::Host(address) => address,
        Place::File(at) => {
            file.read_exact_at(bytes_at(bounce.address, bytes), at).expect("read");
            bounce.address
        }
    };
    // SAFETY: as in `down`.
    unsafe { result::memcpy_htod_async(span.address(), bytes_at(address, bytes), stream.cu_stream()) }.expect("copy");
}

impl Engine for Blocking {
    fn reset(&mut self) {
        (self.host.used, self.end) = (0, 0);
        self.places.clear();
    }

    fn append(&mut self, version: u64, bytes: u64) {
        let place = match self.host.take(bytes) {
            Some(address) => {
                down(&self.stream, &self.span, address, bytes);
                if !self.enqueue {
                    self.stream.synchronize().expect("copy");
                }
                Place::Host(address)
            }
            None => {
                down(&self.stream, &self.span, self.bounce.address, bytes);
                self.stream.synchronize().expect("copy");
                self.file.write_all_at(bytes_at(self.bounce.address, bytes), self.end).expect("write");
                self.end += bytes;
                Place::File(self.end - bytes)
            }
        };
        self.places.insert(version, place);
    }

    fn restore(&mut self, version: u64, bytes: u64) {
        let place = self.places[&version];
        bring(&self.stream, &self.span, place, bytes, &self.file, &self.bounce);
        if !self.enqueue || matches!(place, Place::File(_)) {
            self.stream.synchronize().expect("copy");
        }
    }
}

/// (b) Copies to host memory are enqueued, and waited for before the application continues to compute, because its buffer would
/// change; a thread writes the oldest to the file when host memory runs short. Versions are read on demand. If copies are
/// enqueued, the stream's order protects the buffer, and only reads from the file are waited for.
pub struct OnDemand {
    stream: Arc<CudaStream>,
    enqueue: bool,
    span: DeviceSpan,
    shared: Arc<Shared>,
    bounce: Pinned,
    work: Option<Sender<Copied>>,
    /// Number of versions that were given to the writer.
    sent: u64,
    writer: Option<std::thread::JoinHandle<()>>,
}

/// A version on its way to host memory.
struct Copied {
    version: u64,
    address: u64,
    bytes: u64,
    /// Its place in the file.
    at: u64,
    /// Happens when the copy has arrived.
    arrived: CudaEvent,
}

struct Shared {
    state: Mutex<HostState>,
    changed: Condvar,
    file: File,
}

struct HostState {
    host: Pinned,
    /// Free ranges: address and length. Invariant: no two touch.
    free: BTreeMap<u64, u64>,
    /// Versions that are in the file as well, oldest first: number, address, length, place in the file.
    kept: VecDeque<(u64, u64, u64, u64)>,
    places: BTreeMap<u64, Place>,
    end: u64,
    /// Number of versions that the writer is done with.
    written: u64,
}

impl HostState {
    /// Memory for a version: new, free, or taken from the oldest versions that the file has. `None` if the file has none of them yet.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        if let Some(address) = self.host.take(bytes) {
            return Some(address);
        }
        loop {
            let found = self.free.iter().find(|(_, have)| **have >= bytes).map(|(address, have)| (*address, *have));
            if let Some((address, have)) = found {
                self.free.remove(&address);
                if have > bytes {
                    self.free.insert(address + bytes, have - bytes);
                }
                return Some(address);
            }
            let (version, mut address, mut length, at) = self.kept.pop_front()?;
            self.places.insert(version, Place::File(at));
            if let Some(behind) = self.free.remove(&(address + length)) {
                length += behind;
            }
            let before = self.free.range(..address).next_back().map(|(start, have)| (*start, *have));
            if let Some((start, have)) = before.filter(|(start, have)| start + have == address) {
                (address, length) = (start, have + length);
            }
            self.free.insert(address, length);
        }
    }
}

impl OnDemand {
    pub fn new(setup: &Setup, host: u64, directory: &Path, spills: bool) -> OnDemand {
        let context = setup.device.context();
        let state = HostState {
            host: Pinned::new(context, host),
            free: BTreeMap::new(),
            kept: VecDeque::new(),
            places: BTreeMap::new(),
            end: 0,
            written: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), file: file(directory) });
        let (sender, receiver) = channel();
        let there = shared.clone();
        let writer = std::thread::spawn(move || write_behind(&there, &receiver, spills));
        let bounce = Pinned::new(context, BOUNCE);
        OnDemand {
            stream: setup.raw.clone(),
            enqueue: setup.enqueue,
            span: setup.span.clone(),
            shared,
            bounce,
            sent: 0,
            work: Some(sender),
            writer: Some(writer),
        }
    }
}

/// Writes versions in the order of their arrival; their memory is free afterwards.
fn write_behind(shared: &Shared, work: &Receiver<Copied>, spills: bool) {
    for Copied { version, address, bytes, at, arrived } in work {
        arrived.synchronize().expect("copy");
        if spills {
            shared.file.write_all_at(bytes_at(address, bytes), at).expect("write");
        }
        let mut state = shared.state.lock().expect("lock");
        state.written += 1;
        if spills {
            state.kept.push_back((version, address, bytes, at));
        }
        drop(state);
        shared.changed.notify_all();
    }
}

impl Engine for OnDemand {
    fn reset(&mut self) {
        self.wait_flushed();
        let mut state = self.shared.state.lock().expect("lock");
        (state.host.used, state.end) = (0, 0);
        state.free.clear();
        state.kept.clear();
        state.places.clear();
    }

    fn wait_flushed(&mut self) {
        let state = self.shared.state.lock().expect("lock");
        drop(self.shared.changed.wait_while(state, |state| state.written < self.sent).expect("lock"));
    }

    fn append(&mut self, version: u64, bytes: u64) {
        let mut state = self.shared.state.lock().expect("lock");
        let (address, at) = loop {
            if let Some(address) = state.take(bytes) {
                break (address, state.end);
            }
            state = self.shared.changed.wait(state).expect("lock");
        };
        state.end += bytes;
        drop(state);
        down(&self.stream, &self.span, address, bytes);
        let arrived = self.stream.record_event(None).expect("event");
        if !self.enqueue {
            self.stream.synchronize().expect("copy");
        }
        self.shared.state.lock().expect("lock").places.insert(version, Place::Host(address));
        if let Some(work) = &self.work {
            work.send(Copied { version, address, bytes, at, arrived }).expect("writer");
            self.sent += 1;
        }
    }

    fn restore(&mut self, version: u64, bytes: u64) {
        let place = self.shared.state.lock().expect("lock").places[&version];
        bring(&self.stream, &self.span, place, bytes, &self.shared.file, &self.bounce);
        if !self.enqueue || matches!(place, Place::File(_)) {
            self.stream.synchronize().expect("copy");
        }
    }
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        self.work = None;
        self.writer.take().expect("once").join().expect("writer");
    }
}

/// (c) Managed memory as tuned in the HPDC'23 paper (section 5.2.2): preferred location, accessed-by, and prefetch in both
/// directions. Versions that are prefetched and not yet read stay within the GPU budget.
pub struct Managed {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    behind: Arc<CudaStream>,
    span: DeviceSpan,
    versions: Vec<(u64, u64)>,
    budget: u64,
    ahead: u64,
    hinted: VecDeque<u64>,
    resident: BTreeMap<u64, u64>,
    started: bool,
}

fn location(context: &CudaContext, on_device: bool) -> sys::CUmemLocation {
    let type_ = match on_device {
        true => sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        false => sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
    };
    sys::CUmemLocation { type_, id: if on_device { context.ordinal() as i32 } else { 0 } }
}

impl Managed {
    pub fn new(setup: &Setup, budget: u64, sizes: &[u64]) -> Managed {
        let context = setup.device.context().clone();
        let free = setup.device.free_memory().expect("figure");
        assert!(sizes.iter().sum::<u64>() < free, "managed memory stays within free device memory");
        let behind = context.new_stream().expect("stream");
        let mut managed = Managed {
            context,
            stream: setup.raw.clone(),
            behind,
            span: setup.span.clone(),
            versions: Vec::new(),
            budget,
            ahead: 0,
            hinted: VecDeque::new(),
            resident: BTreeMap::new(),
            started: false,
        };
        for bytes in sizes {
            let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
            // SAFETY: the context is bound on this thread.
            let address = unsafe { result::malloc_managed(*bytes as usize, flags) }.expect("managed memory");
            managed.versions.push((address, *bytes));
            managed.advise(address, *bytes, sys::CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, true);
        }
        managed
    }

    fn advise(&self, address: u64, bytes: u64, advice: sys::CUmem_advise, on_device: bool) {
        // SAFETY: a managed allocation of that length.
        unsafe { sys::cuMemAdvise_v2(address, bytes as usize, advice, location(&self.context, on_device)) }
            .result()
            .expect("advice");
    }

    fn fetch(&self, address: u64, bytes: u64, on_device: bool) {
        let stream = self.behind.cu_stream();
        // SAFETY: a managed allocation of that length.
        let code = unsafe {
            sys::cuMemPrefetchAsync_v2(address, bytes as usize, location(&self.context, on_device), 0, stream)
        };
        code.result().expect("prefetch");
    }

    fn prefetch(&mut self) {
        while let Some(version) = self.hinted.front().copied().filter(|_| self.started) {
            let (address, bytes) = self.versions[version as usize];
            if self.ahead + bytes > self.budget {
                return;
            }
            self.hinted.pop_front();
            self.ahead += bytes;
            self.resident.insert(version, bytes);
            self.advise(address, bytes, sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, true);
            self.fetch(address, bytes, true);
        }
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        // SAFETY: both ranges have that length.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream.cu_stream()) }.expect("copy");
        self.stream.synchronize().expect("copy");
    }
}

impl Engine for Managed {
    fn reset(&mut self) {
        self.behind.synchronize().expect("works");
        for (address, bytes) in self.versions.clone() {
            self.advise(address, bytes, sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false);
            self.fetch(address, bytes, false);
        }
        self.behind.synchronize().expect("works");
        (self.ahead, self.started) = (0, false);
        self.hinted.clear();
        self.resident.clear();
    }

    fn append(&mut self, version: u64, bytes: u64) {
        let (address, length) = self.versions[version as usize];
        self.advise(address, length, sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, true);
        self.copy(self.span.address(), address, bytes);
        // The flush: written versions move to the host as soon as the GPU budget is used up.
        self.resident.insert(version, bytes);
        while self.resident.values().sum::<u64>() > self.budget {
            let (oldest, length) = self.resident.pop_first().expect("not empty");
            let (address, _) = self.versions[oldest as usize];
            self.advise(address, length, sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false);
            self.fetch(address, length, false);
        }
    }

    fn hint(&mut self, versions: &[u64]) {
        self.hinted.extend(versions);
        self.prefetch();
    }

    fn start_prefetch(&mut self) {
        self.started = true;
        // What is on the device counts as fetched ahead.
        self.ahead = 0;
        self.resident.clear();
        self.prefetch();
    }

    fn wait_flushed(&mut self) {
        self.behind.synchronize().expect("works");
    }

    fn restore(&mut self, version: u64, bytes: u64) {
        let (address, length) = self.versions[version as usize];
        self.copy(address, self.span.address(), bytes);
        self.advise(address, length, sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false);
        if let Some(length) = self.resident.remove(&version) {
            self.ahead -= length;
        }
        self.prefetch();
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.behind.synchronize().expect("works");
        for (address, _) in &self.versions {
            // SAFETY: allocated above, used by nobody any more.
            unsafe { result::free_sync(*address) }.expect("free");
        }
    }
}

/// (f) Bare copies inside the device, into a ring of the GPU budget; or copies with digests.
pub struct Floor {
    stream: Arc<CudaStream>,
    enqueue: bool,
    digests: Option<Arc<dyn Stream>>,
    span: DeviceSpan,
    ring: DeviceSpan,
}

/// Bytes of a block, as in histories.
const BLOCK: u64 = 256 << 10;

impl Floor {
    pub fn new(setup: &Setup, bytes: u64) -> Floor {
        let ring = setup.device.allocate(bytes.max(setup.span.bytes())).expect("room");
        let (stream, span) = (setup.raw.clone(), setup.span.clone());
        Floor { stream, enqueue: setup.enqueue, digests: None, span, ring }
    }

    pub fn with_digests(setup: &Setup, bytes: u64) -> Floor {
        let stream = setup.device.adopt(&setup.raw).expect("own stream");
        Floor { digests: Some(stream), ..Floor::new(setup, bytes) }
    }

    fn copy(&self, version: u64, bytes: u64, back: bool) {
        let slots = self.ring.bytes() / self.span.bytes();
        let place = self.ring.part(version % slots * self.span.bytes(), bytes).expect("inside");
        let own = self.span.part(0, bytes).expect("inside");
        let (from, to) = if back { (place, own) } else { (own, place) };
        if let Some(stream) = &self.digests {
            let copied = stream.copy_blocks(vec![Run::whole(from, Some(to), 0)], BLOCK).expect("copy");
            copied.digests().expect("copy");
            return;
        }
        // SAFETY: both ranges have that length.
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes as usize, self.stream.cu_stream()) }
            .expect("copy");
        if !self.enqueue {
            self.stream.synchronize().expect("copy");
        }
    }
}

impl Engine for Floor {
    fn reset(&mut self) {}

    fn append(&mut self, version: u64, bytes: u64) {
        self.copy(version, bytes, false);
    }

    fn restore(&mut self, version: u64, bytes: u64) {
        self.copy(version, bytes, true);
    }
}
