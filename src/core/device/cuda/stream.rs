//! Copies on a GPU's stream.

use super::super::{
    Carrier, Copied, DeviceError, DeviceSpan, Gate, Moment, Priority, Result, RowCopy, Run, Sending, Staging, Stream,
    check_runs, check_sendings,
};
use super::batch;
use super::context::Shared;
use super::detour::{DETOUR_BYTES, Team};
use super::event::Event;
use super::memory::Allocation;
use super::pinned::{self, PinnedLoan, Registration, Way};
use crate::base::Digest;
use crate::base::log;
use crate::base::sync::{Lock, Order};
use cudarc::driver::{CudaStream, result, sys};
use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// Bytes of a data block that one thread block handles.
const ITEM_BYTES: u64 = 64 << 10;
/// Threads of a thread block; the kernel is built for it.
const THREADS: u32 = 256;
/// The number of thread blocks that digest what the copy engine has sent.
const DIGEST_WIDTH: u32 = 32;
/// Pieces below this size take less time with a kernel of this many thread blocks than with copies that are enqueued one by one.
const SHORT: u64 = 256 << 10;
const SHORT_WIDTH: u32 = 4;
/// The maximum number of runs that are passed as kernel arguments; more go through memory.
const FEW: usize = 64;
/// The least scratch, in bytes.
const SCRATCH_MIN: u64 = 256 << 10;
/// Words of scratch per data block: two sums and a counter.
const SCRATCH_WORDS: u64 = 3;
/// Transfers are cut into pieces, so that a gate can hold them back.
const PIECE_BYTES: u64 = 16 << 20;
/// The maximum number of bytes that are enqueued before the link has finished with them: enough to keep the link busy
/// while the thread wakes up.
const AHEAD_BYTES: u64 = 3 * PIECE_BYTES;
/// `struct Run` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct KernelRun {
    from: u64,
    to: u64,
    bytes: u64,
    start: u64,
    region_bytes: u64,
    first_block: u32,
    first_item: u32,
}

/// What the kernel is told about the runs of a call.
struct Table {
    runs: Vec<KernelRun>,
    /// The run of each item of a table that goes through memory, because a search for the run would take too long there. Empty if
    /// each run is one item, for which there is nothing to tell.
    owners: Vec<u32>,
    /// Thread blocks of the call.
    items: u32,
}

impl From<&Run> for KernelRun {
    fn from(run: &Run) -> KernelRun {
        KernelRun {
            from: run.from.address(),
            to: run.to.as_ref().map_or(0, DeviceSpan::address),
            bytes: run.from.bytes(),
            start: run.start,
            region_bytes: run.region_bytes,
            first_block: run.first_block,
            first_item: 0,
        }
    }
}

/// The runs of a transfer, with the places of their digests, and without the places of the bytes if these are only digested.
fn runs_of(sendings: &[Sending], block_bytes: u64, is_stored: bool) -> Vec<KernelRun> {
    let mut first_block = 0;
    let mut runs = Vec::with_capacity(sendings.iter().map(|sending| sending.parts.len()).sum());
    for Sending { from, to, parts } in sendings {
        runs.extend(parts.iter().map(|part| {
            let to = if is_stored { to.address() as u64 + part.to } else { 0 };
            let (from, bytes) = (from.address() + part.from, part.bytes);
            let run = KernelRun { from, to, bytes, start: 0, region_bytes: bytes, first_block, first_item: 0 };
            first_block += bytes.div_ceil(block_bytes) as u32;
            run
        }));
    }
    runs
}

/// A copy by the engine: source, target and length.
pub(super) type EngineCopy = (u64, u64, usize);

/// The registrations of the host memory that transfers write to; and the copies, if the copy engine makes them, cut where
/// registrations begin and end.
fn registered(sendings: &[Sending], is_cut: bool) -> Result<(Vec<Arc<Registration>>, Vec<EngineCopy>)> {
    let (mut registrations, mut copies) = (Vec::new(), Vec::new());
    for Sending { from, to, parts } in sendings {
        let used = || parts.iter().filter(|part| part.bytes > 0);
        let Some(start) = used().map(|part| part.to).min() else { continue };
        let end = used().map(|part| part.to + part.bytes).max().unwrap_or(start);
        let (mut at, mut ends) = (start, Vec::new());
        for (bytes, way) in pinned::cut_at(to.address() + start as usize, (end - start) as usize) {
            let Way::Direct(registration) = way else {
                let reason = "it is sent to memory that is not pinned";
                return Err(DeviceError::Range { offset: at, bytes: bytes as u64, reason });
            };
            registrations.extend(registration);
            at += bytes as u64;
            ends.push(at);
        }
        for part in used().filter(|_| is_cut) {
            let (mut done, mut next) = (0, ends.partition_point(|end| *end <= part.to));
            while done < part.bytes {
                let bytes = (part.bytes - done).min(ends[next] - part.to - done);
                let to = to.address() as u64 + part.to + done;
                copies.push((from.address() + part.from + done, to, bytes as usize));
                (done, next) = (done + bytes, next + 1);
            }
        }
    }
    Ok((registrations, copies))
}

impl Table {
    fn of(runs: impl Iterator<Item = KernelRun>, item_bytes: u64) -> Result<Table> {
        let mut table = Vec::with_capacity(runs.size_hint().0);
        let mut items = 0u64;
        for run in runs.filter(|run| run.bytes > 0) {
            table.push(KernelRun { first_item: items as u32, ..run });
            items += (run.start + run.bytes).div_ceil(item_bytes) - run.start / item_bytes;
        }
        let too_many = DeviceError::Range { offset: 0, bytes: items, reason: "more than 2^31 items in one call" };
        let items = i32::try_from(items).map_err(|_| too_many)? as u32;
        let mut owners = Vec::new();
        if table.len() > FEW && items as usize != table.len() {
            owners.reserve_exact(items as usize);
            let ends = table.iter().skip(1).map(|run| run.first_item).chain([items]);
            for (index, (run, end)) in table.iter().zip(ends).enumerate() {
                owners.resize(owners.len() + (end - run.first_item) as usize, index as u32);
            }
        }
        Ok(Table { runs: table, owners, items })
    }

    /// Does each item have a data block of its own? Then nothing is added up in memory.
    fn has_whole_blocks(&self, block_bytes: u64, item_bytes: u64) -> bool {
        let is_whole = |run: &KernelRun| {
            let end = run.start + run.bytes;
            run.start.is_multiple_of(block_bytes) && (end == run.region_bytes || end.is_multiple_of(block_bytes))
        };
        block_bytes == item_bytes && self.runs.iter().all(is_whole)
    }

    /// The bytes of the runs, if the table is long and goes through memory.
    fn runs_bytes(&self) -> usize {
        if self.runs.len() > FEW { size_of_val(&self.runs[..]) } else { 0 }
    }

    /// The bytes that go through memory: the runs, followed by their owners.
    fn bytes(&self) -> usize {
        self.runs_bytes() + size_of_val(&self.owners[..])
    }
}

/// What one launch of the kernel works with.
struct Launch<'a> {
    table: &'a Table,
    /// Exponents of the bytes of a block and of an item.
    shifts: [u32; 2],
    /// Where a long table goes.
    memory: Option<&'a Allocation>,
    /// The sums of the blocks, where several items share one.
    sums: Option<&'a Allocation>,
    /// Thread blocks, if there are to be fewer than items.
    width: Option<u32>,
    /// Takes the digests; after these bytes, it holds a long table.
    pinned: &'a PinnedLoan,
    digest_bytes: usize,
}

/// A stream: the application's, or one of ours.
pub(super) struct GpuStream {
    pub(super) shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    scratch: Lock<Scratch>,
    /// Pairs of timing events to be reused.
    events: Arc<Lock<Vec<[Event; 2]>>>,
    /// What plain copies and copies of rows that are under way still use, oldest first.
    copying: Lock<VecDeque<(Event, Used)>>,
    /// Destroys the stream after everything else here; `None` for the application's.
    _owned: Option<Owned>,
}

/// What a copy uses: memory of the device, and maybe a table.
pub(super) type Used = (Vec<DeviceSpan>, Option<PinnedLoan>);

/// Device memory that the calls on a stream use one after the other.
#[derive(Default)]
struct Scratch {
    /// Sums of data blocks between the thread blocks of one call; zero between calls.
    sums: Option<Arc<Allocation>>,
    /// Long tables of runs.
    table: Option<Arc<Allocation>>,
}

/// A stream of our own.
pub(super) struct Owned {
    shared: Arc<Shared>,
    handle: sys::CUstream,
}

// SAFETY: the driver allows a stream to be used and destroyed from any thread of the process.
unsafe impl Send for Owned {}
// SAFETY: as above; there is no state on our side.
unsafe impl Sync for Owned {}

impl Owned {
    /// A stream of its own in the context, which is bound. Streams of the application stay as they are, whereas cudarc's way of making
    /// streams would make the context track every slice by events.
    pub(super) fn new(shared: Arc<Shared>, priority: Priority) -> Result<Owned> {
        let range = result::stream::get_priority_range();
        let (least, greatest) = range.map_err(|error| shared.failed("cuCtxGetStreamPriorityRange", error))?;
        let priority = match priority {
            Priority::High => greatest,
            Priority::Low => least,
        };
        let kind = result::stream::StreamKind::NonBlocking;
        let handle = result::stream::create_with_priority(kind, priority);
        let handle = handle.map_err(|error| shared.failed("cuStreamCreateWithPriority", error))?;
        Ok(Owned { shared, handle })
    }

    pub(super) fn into_stream(self) -> GpuStream {
        // SAFETY: the stream was made in this context; `_owned` keeps it alive for as long as the wrapper.
        let stream = unsafe { self.shared.context.wrap_borrowed_stream(self.handle) };
        GpuStream {
            shared: self.shared.clone(),
            stream,
            scratch: Lock::default(),
            events: Arc::default(),
            copying: Lock::at(Order::Outer, VecDeque::new()),
            _owned: Some(self),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let gone = self.shared.bind().and_then(|_bound| {
            // SAFETY: the handle is ours and destroyed once; the driver lets enqueued work end first.
            unsafe { result::stream::destroy(self.handle) }
                .map_err(|error| self.shared.failed("cuStreamDestroy", error))
        });
        if let Err(error) = gone {
            log::debug!("event=stream-not-destroyed error={error}");
        }
    }
}

impl GpuStream {
    pub(super) fn new(shared: Arc<Shared>, stream: Arc<CudaStream>) -> GpuStream {
        let (scratch, events) = (Lock::default(), Arc::default());
        let copying = Lock::at(Order::Outer, VecDeque::new());
        GpuStream { shared, stream, scratch, events, copying, _owned: None }
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: the stream is of the event's context, and lives as long as `self`.
        unsafe { event.record(self.stream.cu_stream()) }
    }

    /// A new event after everything enqueued, on which threads can sleep.
    pub(super) fn event(&self) -> Result<Event> {
        let event = Event::blocking(&self.shared)?;
        self.record(&event)?;
        Ok(event)
    }

    /// Zeroed sums for `blocks` data blocks.
    fn sums(&self, scratch: &mut Scratch, blocks: u64) -> Result<Arc<Allocation>> {
        let bytes = blocks * SCRATCH_WORDS * 8;
        if let Some(memory) = scratch.sums.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.clone());
        }
        let memory = Arc::new(Allocation::new(&self.shared, bytes.next_power_of_two().max(SCRATCH_MIN))?);
        let (address, length) = (memory.address(), memory.bytes() as usize);
        // SAFETY: the allocation is that long, and is used on this stream only.
        let zeroed = unsafe { result::memset_d8_async(address, 0, length, self.stream.cu_stream()) };
        zeroed.map_err(|error| self.shared.failed("cuMemsetD8Async", error))?;
        // Work under way keeps the smaller one.
        scratch.sums = Some(memory.clone());
        Ok(memory)
    }

    /// Room for a table of runs.
    fn table(&self, scratch: &mut Scratch, bytes: u64) -> Result<Arc<Allocation>> {
        if let Some(memory) = scratch.table.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.clone());
        }
        let memory = Arc::new(Allocation::new(&self.shared, bytes.next_power_of_two().max(SCRATCH_MIN))?);
        scratch.table = Some(memory.clone());
        Ok(memory)
    }

    /// Two timing events, which are reused where there are some.
    fn timed_events(&self) -> Result<[Event; 2]> {
        let used = self.events.lock().pop();
        match used {
            Some(pair) => Ok(pair),
            None => Ok([Event::timed(&self.shared)?, Event::timed(&self.shared)?]),
        }
    }

    /// Enqueues the kernel, after its table where that is long.
    ///
    /// # Safety
    /// The runs of the table lie in memory of this device, and go to such memory or to pinned memory that is lent out, with lengths that
    /// [`check_runs`] or [`check_sendings`] has checked. The sums have room for all blocks, unless each item has one of its own, the
    /// table's memory has room for a long table, and both are used on this stream only. The pinned loan has room for the digests, and holds
    /// a long table after them. All of that stays until the stream has run what is enqueued here, even if this fails.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let Launch { table, shifts: [block_shift, item_shift], memory, sums, width, pinned, digest_bytes } = launch;
        let (shared, stream) = (&self.shared, self.stream.cu_stream());
        let mut few = [KernelRun::default(); FEW];
        let (mut many, mut owners) = (0u64, 0u64);
        if let Some(memory) = memory {
            many = memory.address();
            owners = if table.owners.is_empty() { 0 } else { many + table.runs_bytes() as u64 };
            let from = (pinned.address() + *digest_bytes as u64) as *const c_void;
            // SAFETY: as the caller says, the pinned loan holds the table there until the work has ended, and `many` has room for it.
            let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(many, from, table.bytes(), stream).result() };
            sent.map_err(|error| shared.failed("cuMemcpyHtoDAsync", error))?;
        } else {
            few[..table.runs.len()].copy_from_slice(&table.runs);
        }
        let (count, sums) = (table.runs.len() as u32, sums.map_or(0, Allocation::address));
        let digests = pinned.address();
        let mut arguments: [*mut c_void; 9] = [
            (&raw const few).cast_mut().cast(),
            (&raw const many).cast_mut().cast(),
            (&raw const owners).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const *block_shift).cast_mut().cast(),
            (&raw const *item_shift).cast_mut().cast(),
            (&raw const sums).cast_mut().cast(),
            (&raw const digests).cast_mut().cast(),
            (&raw const table.items).cast_mut().cast(),
        ];
        let (function, arguments, blocks) = match width {
            Some(width) => (&shared.send_blocks, &mut arguments[..], (*width).clamp(1, table.items)),
            None => (&shared.copy_blocks, &mut arguments[..8], table.items),
        };
        let (function, grid, block) = (function.cu_function(), (blocks, 1, 1), (THREADS, 1, 1));
        // SAFETY: the arguments are those of `bvk_send_blocks`, of which `bvk_copy_blocks` has all but the last, in number, order and size, and
        // are read during the call. What they point to is as the caller says.
        let launched = unsafe { result::launch_kernel(function, grid, block, 0, stream, arguments) };
        launched.map_err(|error| shared.failed("cuLaunchKernel", error))
    }

    pub(super) fn check_spans<'a>(&self, mut spans: impl Iterator<Item = &'a DeviceSpan>) -> Result<()> {
        spans.try_for_each(|span| span.check_home(self.shared.home(), self.shared.info.ordinal))
    }

    /// Keeps what a copy that `enqueue` enqueues uses, until the copy has ended. The context is bound.
    pub(super) fn keeping(&self, enqueue: impl FnOnce() -> Result<Used>) -> Result<()> {
        let mut copying = self.copying.lock();
        while copying.front().is_some_and(|(event, _)| event.is_done().unwrap_or(false)) {
            copying.pop_front();
        }
        let used = enqueue()?;
        match self.event() {
            Ok(event) => copying.push_back((event, used)),
            // Nothing would tell when the copy has ended.
            Err(error) => return self.drain().and(Err(error)),
        }
        Ok(())
    }

    /// Waits until nothing enqueued runs any more, whatever cudarc or the driver think of earlier errors. Only then is memory
    /// that was lent to the device ours again. A lost device runs nothing.
    pub(super) fn drain(&self) -> Result<()> {
        let bound = self.shared.bind();
        // SAFETY: the stream lives as long as `self`.
        let waited = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        if waited.is_err() || bound.is_err() {
            // SAFETY: it takes no arguments. Whatever it answers, there is nothing else to wait for.
            let _all = unsafe { sys::cuCtxSynchronize() };
        }
        bound.and_then(|_bound| waited.map_err(|error| self.shared.failed("cuStreamSynchronize", error)))
    }

    /// Enqueues pieces. With a gate, at most about [`AHEAD_BYTES`] bytes are ahead of the link, so that the gate takes effect soon.
    fn pass<T>(
        &self,
        pieces: impl Iterator<Item = Piece<T>>,
        mut gate: Option<Gate<'_>>,
        mut enqueue: impl FnMut(Piece<T>) -> Result<()>,
    ) -> Result<()> {
        let mut ahead: VecDeque<Event> = VecDeque::new();
        let mut unmarked = 0;
        pieces.into_iter().try_for_each(|piece| {
            let Some(gate) = gate.as_mut() else { return enqueue(piece) };
            gate(piece.bytes);
            if ahead.len() as u64 * PIECE_BYTES >= AHEAD_BYTES
                && let Some(event) = ahead.pop_front()
            {
                event.wait()?;
            }
            unmarked += piece.bytes;
            enqueue(piece)?;
            if unmarked >= PIECE_BYTES {
                unmarked = 0;
                ahead.push_back(self.event()?);
            }
            Ok(())
        })
    }

    /// Enqueues a copy between device memory and host memory, of which one is `to`.
    ///
    /// # Safety
    /// Both have this many bytes, and the host's are lent to the device until the stream has run the copy.
    pub(super) unsafe fn enqueue(&self, from: u64, to: u64, bytes: usize, is_down: bool) -> Result<()> {
        let stream = self.stream.cu_stream();
        // SAFETY: as the caller says.
        let (code, call) = unsafe {
            match is_down {
                true => (sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, stream), "cuMemcpyDtoHAsync"),
                false => (sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, stream), "cuMemcpyHtoDAsync"),
            }
        };
        code.result().map_err(|error| self.shared.failed(call, error))
    }
}

/// Memory of a caller that the device uses until the work of the stream has ended. The end of this work is waited
/// for even if a gate panics.
pub(super) struct Lent<'a> {
    stream: &'a GpuStream,
    is_drained: bool,
}

impl<'a> Lent<'a> {
    pub(super) fn to(stream: &'a GpuStream) -> Lent<'a> {
        Lent { stream, is_drained: false }
    }

    /// Waits for all enqueued work; `outcome` is the result of enqueuing it.
    pub(super) fn take_back(mut self, outcome: Result<()>) -> Result<()> {
        self.is_drained = true;
        // First without burning a processor, then for certain.
        let finished = self.stream.finish();
        outcome.and(finished).and(self.stream.drain())
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.is_drained
            && let Err(error) = self.stream.drain()
        {
            log::debug!("event=transfer-failed error={error}");
        }
    }
}

/// A part of a transfer: where it is on the device, and its bytes on the host.
struct Piece<T> {
    device: u64,
    host: T,
    bytes: u64,
}

/// The pieces of a transfer; `chunks` are the pieces of host memory, of [`PIECE_BYTES`] each.
fn pieces<T: AsRef<[u8]>>(device: u64, chunks: impl Iterator<Item = T>) -> impl Iterator<Item = Piece<T>> {
    chunks.zip((device..).step_by(PIECE_BYTES as usize)).map(|(host, device)| {
        let bytes = host.as_ref().len() as u64;
        Piece { device, host, bytes }
    })
}

pub(super) fn check_lengths(device: &DeviceSpan, host: usize) -> Result<()> {
    if device.bytes() == host as u64 {
        return Ok(());
    }
    Err(DeviceError::Range { offset: 0, bytes: device.bytes(), reason: "source and target differ in length" })
}

impl Stream for GpuStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>> {
        let blocks = check_runs(&runs, block_bytes)?;
        self.check_spans(runs.iter().flat_map(|run| std::iter::once(&run.from).chain(&run.to)))?;
        let _bound = self.shared.bind()?;
        let table = Table::of(runs.iter().map(KernelRun::from), ITEM_BYTES.min(block_bytes))?;
        let call = Call { table, blocks, block_bytes, width: None };
        // SAFETY: `check_spans` and `check_runs` have checked the runs, which keep their memory, and nothing is enqueued first.
        unsafe { self.enqueue_blocks(&call, Kept { _runs: runs, ..Kept::default() }, || Ok(())) }
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()> {
        if from.bytes() != to.bytes() {
            let reason = "source and target differ in length";
            return Err(DeviceError::Range { offset: 0, bytes: from.bytes(), reason });
        }
        self.check_spans([from, to].into_iter())?;
        let _bound = self.shared.bind()?;
        let spans = vec![from.clone(), to.clone()];
        let (from, to, bytes) = (from.address(), to.address(), from.bytes() as usize);
        self.keeping(|| {
            // SAFETY: both spans are device memory of that length, which `copying` keeps until the copy has ended.
            let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) };
            copied.map_err(|error| self.shared.failed("cuMemcpyDtoDAsync", error))?;
            Ok((spans, None))
        })
    }

    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()> {
        self.pack_rows(copies, to)
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>> {
        Ok(Box::new(self.pinned_staging(bytes)?))
    }

    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], gate: Option<Gate<'_>>) -> Result<()> {
        let _bound = self.shared.bind()?;
        copies.iter().try_for_each(|(device, host)| check_lengths(device, host.len()))?;
        self.check_spans(copies.iter().map(|(device, _)| device))?;
        let (size, total) = (PIECE_BYTES as usize, copies.iter().map(|(device, _)| device.bytes()).sum());
        let pieces = copies.iter_mut().flat_map(|(device, host)| pieces(device.address(), host.chunks_mut(size)));
        // They are kept until the copies have ended.
        let mut registrations = Vec::new();
        let lent = Lent::to(self);
        let outcome = std::thread::scope(|scope| {
            let mut team = Team::new(scope, self, total);
            let enqueued = self.pass(pieces, gate, |piece: Piece<&mut [u8]>| {
                let (mut device, mut host) = (piece.device, piece.host);
                for (bytes, way) in pinned::cut(host) {
                    let (part, rest) = host.split_at_mut(bytes);
                    match way {
                        Way::Detour => {
                            let parts = part.chunks_mut(DETOUR_BYTES).zip((device..).step_by(DETOUR_BYTES));
                            parts.into_iter().try_for_each(|(part, at)| team.give(at, part))?;
                        }
                        Way::Direct(registration) => {
                            registrations.extend(registration);
                            // SAFETY: the part lies inside a span and a slice of equal length; the slice is borrowed for this call,
                            // which ends only when the copy has ended.
                            unsafe { self.enqueue(device, part.as_mut_ptr() as u64, bytes, true)? };
                        }
                    }
                    (device, host) = (device + bytes as u64, rest);
                }
                Ok(())
            });
            enqueued.and(team.end())
        });
        lent.take_back(outcome)
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], gate: Option<Gate<'_>>) -> Result<()> {
        let _bound = self.shared.bind()?;
        copies.iter().try_for_each(|(host, device)| check_lengths(device, host.len()))?;
        self.check_spans(copies.iter().map(|(_, device)| device))?;
        let (size, total) = (PIECE_BYTES as usize, copies.iter().map(|(_, device)| device.bytes()).sum());
        let pieces = copies.iter().flat_map(|(host, device)| pieces(device.address(), host.chunks(size)));
        let mut registrations = Vec::new();
        let mut is_in_order = false;
        let lent = Lent::to(self);
        let outcome = std::thread::scope(|scope| {
            let mut team = Team::new(scope, self, total);
            let enqueued = self.pass(pieces, gate, |piece: Piece<&[u8]>| {
                let (mut device, mut host) = (piece.device, piece.host);
                for (bytes, way) in pinned::cut(host) {
                    let (part, rest) = host.split_at(bytes);
                    match way {
                        Way::Detour => {
                            // Work that was enqueued before may write what the processor reads now.
                            if !std::mem::replace(&mut is_in_order, true) {
                                self.finish()?;
                            }
                            let parts = part.chunks(DETOUR_BYTES).zip((device..).step_by(DETOUR_BYTES));
                            parts.into_iter().try_for_each(|(part, at)| team.give(at, part))?;
                        }
                        Way::Direct(registration) => {
                            registrations.extend(registration);
                            // SAFETY: as in `download`, the other way round.
                            unsafe { self.enqueue(part.as_ptr() as u64, device, bytes, false)? };
                        }
                    }
                    (device, host) = (device + bytes as u64, rest);
                }
                Ok(())
            });
            enqueued.and(team.end())
        });
        lent.take_back(outcome)
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        self.upload_in_batches(copies, block_bytes)
    }

    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>> {
        let blocks = check_sendings(&sendings, block_bytes)?;
        self.check_spans(sendings.iter().map(|sending| &sending.from))?;
        let _bound = self.shared.bind()?;
        let parts = || sendings.iter().flat_map(|sending| &sending.parts);
        let is_short = || parts().map(|part| part.bytes).sum::<u64>() < SHORT * parts().count() as u64;
        let carrier = match carrier {
            Carrier::Engine if !batch::is_there() && is_short() => Carrier::Kernel(SHORT_WIDTH),
            carrier => carrier,
        };
        // A kernel can cross from one registration into another.
        let is_stored = carrier != Carrier::Engine;
        let (registrations, copies) = registered(&sendings, !is_stored)?;
        let runs = runs_of(&sendings, block_bytes, is_stored);
        let table = Table::of(runs.into_iter(), ITEM_BYTES.min(block_bytes))?;
        let width = match carrier {
            Carrier::Kernel(width) => Some(width),
            Carrier::Engine => {
                // The digests are made by as few thread blocks as keep up with the link.
                Some(DIGEST_WIDTH)
            }
        };
        let call = Call { table, blocks, block_bytes, width };
        let copy = || match is_stored {
            true => Ok(()),
            // SAFETY: each copy is a part of a span of this device and of memory that is pinned and lent out, of equal length. `Kept` has
            // both until the work has ended.
            false => unsafe { self.enqueue_all(&copies) },
        };
        let kept = Kept { _sendings: sendings, _registrations: registrations, ..Kept::default() };
        // SAFETY: `check_spans` and `check_sendings` have checked the sendings, which keep their memory; their targets are pinned as a whole.
        unsafe { self.enqueue_blocks(&call, kept, copy) }
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        let _bound = self.shared.bind()?;
        Ok(Arc::new(self.event()?))
    }

    fn wait_for(&self, moment: &dyn Moment) -> Result<()> {
        let event = (moment as &dyn Any).downcast_ref::<Event>().filter(|event| event.home() == self.shared.home());
        let Some(event) = event else {
            let reason = "the moment comes from another device".to_owned();
            return Err(DeviceError::Foreign { address: 0, ordinal: self.shared.info.ordinal, reason });
        };
        let _bound = self.shared.bind()?;
        // SAFETY: the stream is of the event's context, which is bound, and lives as long as `self`.
        unsafe { event.hold_back(self.stream.cu_stream()) }
    }

    fn is_recording(&self) -> Result<bool> {
        let _bound = self.shared.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives as long as `self`; the call writes one value there.
        let asked = unsafe { sys::cuStreamIsCapturing(self.stream.cu_stream(), &raw mut status).result() };
        asked.map_err(|error| self.shared.failed("cuStreamIsCapturing", error))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn finish(&self) -> Result<()> {
        self.event()?.wait()
    }
}

/// What a call of the kernel is to do.
struct Call {
    table: Table,
    blocks: u32,
    block_bytes: u64,
    width: Option<u32>,
}

/// What work under way uses.
#[derive(Default)]
struct Kept {
    _runs: Vec<Run>,
    _sendings: Vec<Sending>,
    _registrations: Vec<Arc<Registration>>,
}

impl GpuStream {
    /// Enqueues the kernel after what `first` enqueues, between two events. The context is bound.
    ///
    /// # Safety
    /// The runs of the table are as [`GpuStream::launch`] says, and `first` enqueues nothing but work on memory that `kept` keeps.
    unsafe fn enqueue_blocks(
        &self,
        call: &Call,
        kept: Kept,
        first: impl FnOnce() -> Result<()>,
    ) -> Result<Box<dyn Copied>> {
        let (shared, Call { table, blocks, block_bytes, width }) = (&self.shared, call);
        let item_bytes = ITEM_BYTES.min(*block_bytes);
        let digest_bytes = *blocks as usize * 16;
        let table_bytes = table.bytes();
        let mut pinned = shared.pinned.take(digest_bytes + table_bytes)?;
        let [begin, end] = self.timed_events()?;
        // Held until the kernel is enqueued: another thread's call on this stream may use the same scratch only after it.
        let mut scratch = self.scratch.lock();
        let sums_memory = match table.has_whole_blocks(*block_bytes, item_bytes) {
            true => None,
            false => Some(self.sums(&mut scratch, u64::from(*blocks))?),
        };
        let table_memory = if table_bytes > 0 { Some(self.table(&mut scratch, table_bytes as u64)?) } else { None };
        if table_bytes > 0 {
            pinned.write(digest_bytes, bytemuck::cast_slice(&table.runs));
            pinned.write(digest_bytes + table.runs_bytes(), bytemuck::cast_slice(&table.owners));
        }
        let (memory, sums) = (table_memory.as_deref(), sums_memory.as_deref());
        let shifts = [block_bytes.trailing_zeros(), item_bytes.trailing_zeros()];
        let launch = Launch { table, shifts, memory, sums, width: *width, pinned: &pinned, digest_bytes };
        let enqueue = || -> Result<()> {
            self.record(&begin)?;
            first()?;
            if table.items > 0 {
                // SAFETY: the runs are as the caller says. The sums were asked for as many blocks as the runs have, where they are added up in
                // memory, the table's memory and the loan for the bytes of both. `Enqueued` keeps all of it alive until the work has ended,
                // and `drain` waits for what a failure leaves behind; other calls use the scratch on this stream only.
                unsafe { self.launch(&launch)? };
            }
            self.record(&end)
        };
        if let Err(error) = enqueue() {
            // What was enqueued before the failure still uses what is given back now.
            return self.drain().and(Err(error));
        }
        drop(scratch);
        Ok(Box::new(Enqueued {
            events: Some([begin, end]),
            home: self.events.clone(),
            pinned,
            blocks: *blocks,
            _scratch: [sums_memory, table_memory],
            _kept: kept,
        }))
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        if !self.copying.get_mut().is_empty()
            && let Err(error) = self.drain()
        {
            log::debug!("event=copy-failed error={error}");
        }
    }
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuStream({:?} of device {})", self.stream.cu_stream(), self.shared.info.ordinal)
    }
}

/// Block copies on their way.
struct Enqueued {
    /// Always there until `drop` gives them back.
    events: Option<[Event; 2]>,
    home: Arc<Lock<Vec<[Event; 2]>>>,
    pinned: PinnedLoan,
    blocks: u32,
    _scratch: [Option<Arc<Allocation>>; 2],
    _kept: Kept,
}

impl Enqueued {
    fn events(&self) -> &[Event; 2] {
        self.events.as_ref().expect("the events are there until the value is dropped")
    }
}

impl Copied for Enqueued {
    fn is_done(&self) -> Result<bool> {
        self.events()[1].is_done()
    }

    fn wait(&self) -> Result<()> {
        self.events()[1].wait()
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        self.wait()?;
        let mut digests = vec![Digest::default(); self.blocks as usize];
        self.pinned.read(0, bytemuck::cast_slice_mut(&mut digests));
        Ok(digests)
    }

    fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<()> {
        self.wait()?;
        assert!(first + into.len() <= self.blocks as usize, "blocks of this copy");
        self.pinned.read(size_of::<Digest>() * first, bytemuck::cast_slice_mut(into));
        Ok(())
    }

    fn seconds(&self) -> Result<f64> {
        self.wait()?;
        let [begin, end] = self.events();
        begin.seconds_to(end)
    }
}

impl Drop for Enqueued {
    fn drop(&mut self) {
        // Spans, scratch and the pinned buffer are in use until then. A lost device answers at once.
        if let Err(error) = self.wait() {
            log::debug!("event=copy-failed error={error}");
            // SAFETY: it takes no arguments. If this fails, too, the context is lost and runs nothing.
            let _all = unsafe { sys::cuCtxSynchronize() };
        }
        self.home.lock().extend(self.events.take());
    }
}
