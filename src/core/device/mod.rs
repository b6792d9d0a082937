//! Accelerators: memory of their own, streams of work, copies, and digests made on the way.
//!
//! # What a device is to the rest
//!
//! A [`Device`] hands out address space whose memory is mapped step by step ([`Reservation`]), and [`Stream`]s on which copies run in
//! order. There are four kinds of copies:
//!
//! - [`Stream::copy_blocks`]: inside the device, with the digest of every block made in the same pass. Regions enter and leave the GPU
//!   cache in this way. The copy is *enqueued*; its [`Copied`] says when it has ended, and gives the digests.
//! - [`Stream::download`] and [`Stream::upload`]: between device and host memory. They *block* the calling thread, which borrows the host
//!   memory until the copy has ended; background threads call them.
//! - [`Stream::copy`]: a bare copy inside the device, for benchmarks.
//! - [`Stream::send`]: from the device to host memory that is lent out ([`Target`]), *enqueued*, with digests.
//!
//! Bytes that are not in one piece ([`Rows`]) are first packed inside the device ([`Stream::pack`]), or pass through our own pinned memory
//! ([`Stream::staging`]).
//!
//! A [`Moment`] is a point in the work of a stream. Other streams can wait for it without blocking a thread.
//!
//! In addition, a [`chunks::ChunkTable`] says which chunks of regions are already stored.
//!
//! # Two implementations
//!
//! [`cuda`] drives NVIDIA GPUs. [`host`] is its twin in host memory, with the same granularity and alignment, ordered streams, errors that
//! arrive late, and a bandwidth model. A machine without a GPU runs the whole path on it. One contract suite (`tests/contract_device.rs`)
//! holds both to the same behaviour.
//!
//! # Whose memory
//!
//! A [`DeviceSpan`] names device memory and keeps its owner alive. Spans of memory that this module has allocated are safe to make. For a
//! span that is made from a raw pointer of the application, the application must keep a promise ([`cuda::CudaDevice::raw_span`]).

pub mod chunks;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod host;
mod rows;
mod target;

pub use error::DeviceError;
use rows::check_copies;
pub use rows::{LEVELS, RowCopy, Rows, Staging};
pub use target::{Target, TargetPart};

use crate::base::Digest;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The result type of this module.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cuda` or `host`.
    pub kind: &'static str,
    /// Its number as this process sees it.
    pub ordinal: usize,
    /// Its name, as the driver gives it.
    pub name: String,
    /// PCI address, `domain:bus:device.function`; empty for the host twin.
    pub bus_id: String,
    /// The step in which device memory can be mapped, in bytes: a power of two.
    pub granularity: u64,
    /// Total memory, in bytes.
    pub memory_bytes: u64,
}

/// Which work goes first when streams compete for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// Before the application's.
    High,
    /// After the application's.
    Low,
}

/// A range of device memory, and what keeps it from being freed.
#[derive(Clone)]
pub struct DeviceSpan {
    address: u64,
    bytes: u64,
    /// Which device of this process it belongs to.
    home: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceSpan {
    /// Only for implementations of [`Device`]: the range is memory of theirs for as long as `owner` lives. `home` tells their devices
    /// apart.
    fn new(address: u64, bytes: u64, home: usize, owner: Arc<dyn Any + Send + Sync>) -> DeviceSpan {
        DeviceSpan { address, bytes, home, owner }
    }

    /// Refuses a span of another device.
    fn check_home(&self, home: usize, ordinal: usize) -> Result<()> {
        if self.home == home || self.bytes == 0 {
            return Ok(());
        }
        let reason = "the span comes from another device".to_owned();
        Err(DeviceError::Foreign { address: self.address, ordinal, reason })
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the span.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if the part extends beyond the end.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<DeviceSpan> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => {
                Ok(DeviceSpan { address: self.address + offset, bytes, home: self.home, owner: self.owner.clone() })
            }
            _ => Err(DeviceError::Range { offset, bytes, reason: "it goes past the end of its memory" }),
        }
    }
}

impl fmt::Debug for DeviceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSpan({:#x}, {} bytes)", self.address, self.bytes)
    }
}

/// Host memory that a device may be told to pin: its address in this process, and its owner, which keeps it mapped. Only this crate can
/// name memory that may be unmapped. If a driver took addresses for pinned although their pages are gone, a device could write anywhere.
#[derive(Clone)]
pub struct HostRange {
    address: usize,
    bytes: u64,
    pub(crate) keep: Arc<dyn Any + Send + Sync>,
}

impl HostRange {
    /// The range is mapped for as long as `keep` lives.
    pub(crate) fn new(address: usize, bytes: u64, keep: Arc<dyn Any + Send + Sync>) -> HostRange {
        HostRange { address, bytes, keep }
    }

    /// Names memory that is never freed, and also returns that memory.
    pub fn leaked(memory: &'static mut [u8]) -> (HostRange, &'static mut [u8]) {
        (HostRange::new(memory.as_ptr().addr(), memory.len() as u64, Arc::new(())), memory)
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the memory.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if the part extends beyond the end.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<HostRange> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => {
                Ok(HostRange::new(self.address + offset as usize, bytes, self.keep.clone()))
            }
            _ => Err(DeviceError::Range { offset, bytes, reason: "it goes past the end of its memory" }),
        }
    }
}

impl fmt::Debug for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRange({:#x}, {} bytes)", self.address, self.bytes)
    }
}

/// Pinned host memory. Dropping this unpins it.
pub trait Pinned: Send + Sync {}

/// A contiguous part of a region that is copied and digested.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is read.
    pub from: DeviceSpan,
    /// Where it is copied to, of the same length; `None`: the bytes are only digested.
    pub to: Option<DeviceSpan>,
    /// Index, among the digests of the whole call, of the region's first block.
    pub first_block: u32,
    /// Where the run starts in its region, in bytes: a multiple of 64.
    pub start: u64,
    /// Length of the whole region in bytes. The run ends at a multiple of 64 or at the region's end.
    pub region_bytes: u64,
}

impl Run {
    /// A whole region in one run.
    pub fn whole(from: DeviceSpan, to: Option<DeviceSpan>, first_block: u32) -> Run {
        let region_bytes = from.bytes();
        Run { from, to, first_block, start: 0, region_bytes }
    }
}

/// Checks what [`Stream::copy_blocks`] demands of its arguments, and counts the digests that they make.
///
/// # Errors
/// [`DeviceError::Range`].
fn check_runs(runs: &[Run], block_bytes: u64) -> Result<u32> {
    let refuse = |offset, bytes, reason| Err(DeviceError::Range { offset, bytes, reason });
    if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
        return refuse(0, block_bytes, "the block size must be a power of two from 4 KiB to 1 MiB");
    }
    let mut blocks = 0u64;
    for run in runs {
        let bytes = run.from.bytes();
        let Some(end) = run.start.checked_add(bytes).filter(|end| *end <= run.region_bytes) else {
            return refuse(run.start, bytes, "the run goes past the end of its region");
        };
        if !run.start.is_multiple_of(64) || (!end.is_multiple_of(64) && end != run.region_bytes) {
            let why = "a run must begin and end at a multiple of 64, or end at the region's end";
            return refuse(run.start, bytes, why);
        }
        if run.to.as_ref().is_some_and(|to| to.bytes() != bytes) {
            return refuse(run.start, bytes, "source and target differ in length");
        }
        blocks = blocks.max(u64::from(run.first_block) + run.region_bytes.div_ceil(block_bytes));
    }
    // An empty region covers nothing, and shares its first block with the region after it.
    let in_order: Vec<&Run> = runs.iter().filter(|run| run.region_bytes > 0).collect();
    if !covers(&in_order, block_bytes) {
        let mut sorted = in_order;
        sorted.sort_by_key(|run| (run.first_block, run.start));
        if !covers(&sorted, block_bytes) {
            return refuse(0, 0, "the runs of a call must cover each region that they touch entirely, and once");
        }
    }
    match u32::try_from(blocks) {
        Ok(blocks) if blocks <= 1 << 28 => Ok(blocks),
        _ => refuse(0, blocks, "more than 2^28 blocks in one call"),
    }
}

/// Do the runs, in this order, cover one region after the other from end to end?
fn covers(runs: &[&Run], block_bytes: u64) -> bool {
    let (mut next, mut end, mut first, mut free) = (0, 0, None, 0);
    for run in runs {
        if first == Some(run.first_block) && end == run.region_bytes && next == run.start && next < end {
            next += run.from.bytes();
            continue;
        }
        if next != end || run.start != 0 || u64::from(run.first_block) < free {
            return false;
        }
        (first, next, end) = (Some(run.first_block), run.from.bytes(), run.region_bytes);
        free = u64::from(run.first_block) + end.div_ceil(block_bytes);
    }
    next == end
}

/// [`Stream::upload_blocks`], piece by piece.
///
/// # Errors
/// See [`Stream::upload_blocks`].
pub fn upload_and_digest(stream: &dyn Stream, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
    stream.upload(copies, None)?;
    let mut first = 0u64;
    let runs = copies.iter().map(|(_, device)| {
        let run = Run::whole(device.clone(), None, u32::try_from(first).unwrap_or(u32::MAX));
        first += device.bytes().div_ceil(block_bytes);
        run
    });
    stream.copy_blocks(runs.collect(), block_bytes)?.digests()
}

/// An enqueued [`Stream::copy_blocks`]. Dropping it waits for the end of the copy: until then, the device uses the memory.
pub trait Copied: Send + Sync {
    /// Has the copy ended?
    ///
    /// # Errors
    /// Any error that the device reports about this or earlier work.
    fn is_done(&self) -> Result<bool>;

    /// Waits for the end of the copy.
    ///
    /// # Errors
    /// See [`Copied::is_done`].
    fn wait(&self) -> Result<()>;

    /// The digests, in the order of the blocks. Waits for the end.
    ///
    /// # Errors
    /// See [`Copied::is_done`].
    fn digests(&self) -> Result<Vec<Digest>>;

    /// Copies the digests into `into`, starting with that of block number `first`. Waits for the end.
    ///
    /// # Errors
    /// See [`Copied::is_done`].
    ///
    /// # Panics
    /// If there are not enough digests.
    fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<()>;

    /// How long the device took for the copy, in seconds, from the end of the previous work on its stream. Waits for the end.
    ///
    /// # Errors
    /// See [`Copied::is_done`].
    fn seconds(&self) -> Result<f64>;
}

/// A point in the work of a stream, which may have continued since.
pub trait Moment: Any + Send + Sync {
    /// Has the stream reached this point?
    ///
    /// # Errors
    /// Any error that the device reports about this or earlier work.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the stream has reached it.
    ///
    /// # Errors
    /// See [`Moment::is_done`].
    fn wait(&self) -> Result<()>;
}

/// Parts of device memory on their way to host memory.
#[derive(Clone, Debug)]
pub struct Sending {
    /// Where they are.
    pub from: DeviceSpan,
    /// Where they go.
    pub to: TargetPart,
    /// The parts.
    pub parts: Vec<SentPart>,
}

/// Consecutive blocks. All of them are whole except the last, which may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentPart {
    /// Where they begin in the source, in bytes.
    pub from: u64,
    /// Where they begin in the target.
    pub to: u64,
    /// Their length.
    pub bytes: u64,
}

/// What moves bytes from the device to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// The copy engine: fastest for long pieces. Digests are made on the device after each copy. If many pieces cannot be enqueued in one
    /// call and have less than 256 KiB each on average, a kernel copies them.
    Engine,
    /// A kernel with this number of thread blocks that reads, digests and stores: for short pieces. The fewer thread blocks it has, the
    /// less it disturbs other work.
    Kernel(u32),
}

/// Checks what [`Stream::send`] demands of its arguments, and counts the digests that they make.
///
/// # Errors
/// [`DeviceError::Range`].
fn check_sendings(sendings: &[Sending], block_bytes: u64) -> Result<u32> {
    let refuse = |bytes, reason| Err(DeviceError::Range { offset: 0, bytes, reason });
    if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
        return refuse(block_bytes, "the block size must be a power of two from 4 KiB to 1 MiB");
    }
    let is_inside = |at: u64, bytes: u64, whole: u64| at.checked_add(bytes).is_some_and(|end| end <= whole);
    let mut blocks = 0;
    for Sending { from, to, parts } in sendings {
        for part in parts {
            if !is_inside(part.from, part.bytes, from.bytes()) || !is_inside(part.to, part.bytes, to.bytes()) {
                return refuse(part.bytes, "it goes past the end of its memory");
            }
            blocks += part.bytes.div_ceil(block_bytes);
        }
    }
    match u32::try_from(blocks) {
        Ok(blocks) if blocks <= 1 << 28 => Ok(blocks),
        _ => refuse(blocks, "more than 2^28 blocks in one call"),
    }
}

/// Called before each piece of a transfer with its length. It may sleep to hold the transfer back.
pub type Gate<'a> = &'a mut dyn FnMut(u64);

/// A sequence of work on one device. Streams run concurrently.
///
/// # Contract
/// Everything that is enqueued runs in the order of the calls. An error of enqueued work is returned by a later call on any stream of the
/// device. After a device is lost, every call returns [`DeviceError::Lost`], and none hangs.
pub trait Stream: Send + Sync + fmt::Debug {
    /// Enqueues copies inside the device that make the digest of every block on the way ([`crate::base::digest`]).
    ///
    /// The runs of one call must cover all blocks of a region.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for runs that break the rules of [`Run`]; [`DeviceError::OutOfMemory`]; any error that the device reports.
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>>;

    /// Enqueues a bare copy inside the device.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if the lengths differ; any error that the device reports.
    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<()>;

    /// Enqueues copies inside the device from rows to one piece of memory, `to`. No two copies may write the same bytes.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for copies that extend beyond an end; any error that the device reports.
    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()>;

    /// Lends `bytes` bytes of our own host memory, for copies that are enqueued on this stream, to and from rows on the device. The memory
    /// still has its old content.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>>;

    /// Copies to host memory.
    ///
    /// # Blocking
    /// Until all bytes have arrived. With pinned memory, the copy runs at the speed of the link; with other memory, it is a good deal
    /// slower. One target may consist of both kinds, and of several pinned ranges.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if lengths differ; otherwise the device's error. The content of the targets is then unspecified.
    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], gate: Option<Gate<'_>>) -> Result<()>;

    /// Copies from host memory.
    ///
    /// # Blocking
    /// Until all bytes have arrived.
    ///
    /// # Errors
    /// See [`Stream::download`].
    fn upload(&self, copies: &[(&[u8], DeviceSpan)], gate: Option<Gate<'_>>) -> Result<()>;

    /// Copies pieces of host memory, each to its own place, and makes the digests of their blocks on the device. The digests of the first
    /// piece come first, then those of the second, and so forth. For many small pieces, this is much faster than one copy for each. The
    /// digests are those of the bytes that the device has before or after it stores them at their places.
    ///
    /// # Blocking
    /// As long as [`Stream::upload`], and for the digests.
    ///
    /// # Errors
    /// See [`Stream::upload`] and [`Stream::copy_blocks`].
    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>>;

    /// Enqueues the transfer of blocks to host memory that is lent out and pinned. The digests are those of the blocks of the first part of
    /// the first sending, then those of the second part, and so forth. They are digests of the content that the device memory had when it
    /// was sent, or later.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for parts that extend beyond an end, or if the target is not pinned; [`DeviceError::OutOfMemory`]; any error
    /// that the device reports.
    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>>;

    /// The point after everything that has been enqueued.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn moment(&self) -> Result<Arc<dyn Moment>>;

    /// Makes everything that is enqueued after this call wait for a moment of any stream of the same device. The calling thread does not
    /// wait.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] for a moment of another device; any error that the device reports.
    fn wait_for(&self, moment: &dyn Moment) -> Result<()>;

    /// Is the stream recording enqueued work for a graph, instead of running it?
    ///
    /// # Errors
    /// Any error that the device reports.
    fn is_recording(&self) -> Result<bool>;

    /// Waits for everything that has been enqueued.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn finish(&self) -> Result<()>;
}

/// Device addresses, parts of which have memory.
pub trait Reservation: Send + Sync + fmt::Debug {
    /// Length in bytes: a multiple of the granularity.
    fn bytes(&self) -> u64;

    /// Gives memory to a part that has none. Offset and length are multiples of the granularity.
    ///
    /// # Blocking
    /// About a millisecond per GiB.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Range`].
    fn map(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Takes away the memory of a part that was mapped by one or several whole calls. Nothing may use this memory any more.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if it does not begin and end at borders of [`Reservation::map`] calls.
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()>;

    /// A span of mapped memory.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if some of it has no memory.
    fn span(&self, offset: u64, bytes: u64) -> Result<DeviceSpan>;
}

/// A device, as this process uses it.
///
/// # Contract
/// Calls may come from any thread. Nothing panics for lack of a driver, a device or memory.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Memory that is free now, in bytes.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn free_memory(&self) -> Result<u64>;

    /// Memory of its own, freed when the last span of it is dropped.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: u64) -> Result<DeviceSpan>;

    /// Addresses without memory; `bytes` is rounded up to the granularity.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>>;

    /// A stream of its own, which waits for no other.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn stream(&self, priority: Priority) -> Result<Arc<dyn Stream>>;

    /// An empty table of the chunks of a series.
    ///
    /// # Blocking
    /// For some milliseconds; for half a second the first time, because of the kernels.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Kernels`], [`DeviceError::Range`] for more blocks than there are numbers; any error
    /// that the device reports.
    fn chunk_table(&self, size: chunks::TableSize) -> Result<Box<dyn chunks::ChunkTable>>;

    /// Prepares transfers of this many bytes between the device and memory that is not pinned, so that the first transfer need not. This
    /// takes no more than some tens of megabytes of host memory.
    ///
    /// # Blocking
    /// For some milliseconds, during which other calls into the driver may also wait.
    ///
    /// # Errors
    /// Any error that the device reports. In that case, transfers make what they need themselves.
    fn make_ready(&self, bytes: u64) -> Result<()>;

    /// Pins host memory in whole pages, so that transfers run at the speed of the link. Pinned ranges may overlap: memory stays pinned as
    /// long as one of the ranges exists.
    ///
    /// # Blocking
    /// Other calls into the driver wait in the meantime, so pin small parts.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if the system does not let this much memory be pinned; [`DeviceError::Range`] for parts of pages;
    /// [`DeviceError::Failed`].
    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>>;
}
