//! The calls that a program makes.
#![forbid(unsafe_code)]

use super::mark::{Snapshot, Terms};
use super::thread::{Gate, Offloader};
use super::{Counters, OffloadError, OffloadStats};
use crate::affinity::{cpus, given};
use crate::base::log;
use crate::base::units::PAGE;
use crate::config::{OffloadConfig, OffloadMode, ThreadCpus};
use crate::device::{DeviceError, DeviceSpan, Priority, Stream};
use crate::segment::{Segment, SlotMut};
use crate::transfer::history::{Burst, CacheHandle, Caches, HistoryError, Lent};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Slots that a series uses in turn.
const SLOTS: usize = 2;
/// Slots that a series uses in turn if a level beyond node memory may still read one of them when its turn comes.
const SLOTS_READ: usize = 3;
/// How many marked shards in a row may be refused before the next ones are copied.
const REFUSALS_MAX: u32 = 2;

/// How an [`Offload`] is made.
pub(crate) struct OffloadSpec {
    pub config: OffloadConfig,
    /// Bytes of the buffer.
    pub buffer: u64,
    /// Where the offloader's thread runs.
    pub cpus: ThreadCpus,
    /// How long a shard may take at most.
    pub limit: Duration,
    pub segment: Option<Arc<Segment>>,
    /// Does anything read shards in node memory: a level after it, or the code that makes copies and parity?
    pub is_read: bool,
    pub stats: Counters,
    /// Does anything wait for a marked shard?
    pub is_waited_for: Box<dyn Fn() -> bool + Send>,
}

/// Marks checkpoints of GPU memory, and sends them from live memory while the program continues.
/// [`Session::offload`](crate::Session::offload) creates it.
///
/// [`CheckpointBuilder::with_offload`](crate::CheckpointBuilder::with_offload) notes the content that the regions have once the work
/// enqueued on a stream has run. From then until the next mark, the program calls [`Offload::before_write`], or [`Offload::before`] with a
/// [`WriteSet`], to declare the memory to which it is about to write, ahead of the work that writes there. Neither call waits: what has not
/// been sent yet is copied into a buffer on the device, or the stream of the work waits for the transfer. Before memory of a region is
/// freed, call [`Offload::settle`].
///
/// The digests of a checkpoint's blocks reveal a write that was not declared (`offload.audit`). The checkpoint is then refused on all
/// ranks, and the reason names the region and the bytes.
///
/// ```no_run
/// # fn f(session: &bivouac::Session, device: std::sync::Arc<dyn bivouac::device::Device>, launch: impl Fn(u64),
/// #     stream: &dyn bivouac::device::Stream, u: &bivouac::device::DeviceSpan) -> bivouac::Result<()> {
/// let caches = session.caches(device)?; // once, at the start
/// let offload = session.offload(&caches)?;
/// offload.prepare(u.bytes())?;
/// let writes = offload.write_set("advance", &[u.clone()]);
/// for step in 0..1000 {
///     if step % 100 == 0 {
///         let mut ckpt = session.begin_checkpoint("heat", step)?.with_offload(&offload, stream);
///         ckpt.save_device::<f64>("u", u)?;
///         ckpt.capture()?;
///     }
///     offload.before(&writes, stream)?; // ahead of the kernel that writes to u
///     launch(step);
/// }
/// # Ok(()) }
/// ```
///
/// Dropping the offloader blocks until everything that is marked has reached node memory.
pub struct Offload {
    /// Dropped before everything that it uses.
    offloader: Offloader,
    handle: CacheHandle,
    _lent: Option<Lent>,
    segment: Option<Arc<Segment>>,
    is_read: bool,
    config: OffloadConfig,
    limit: Duration,
    marks: AtomicU64,
    /// Refusals in a row.
    refusals: Arc<AtomicU32>,
}

/// The memory to which a piece of work writes, under a name.
#[derive(Clone, Debug)]
pub struct WriteSet {
    name: String,
    spans: Vec<DeviceSpan>,
}

impl WriteSet {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Makes transfers keep to the turns and the pace of flushes, with one burst for each shard.
struct Turns {
    handle: CacheHandle,
    burst: Option<Burst>,
    is_waited_for: Box<dyn Fn() -> bool + Send>,
}

impl Gate for Turns {
    fn pass(&mut self, version: u64, all: u64, bytes: u64) {
        self.burst.get_or_insert_with(|| self.handle.burst(version, all)).pass(bytes);
    }

    fn is_waited_for(&self) -> bool {
        self.handle.is_waited_for() || (self.is_waited_for)()
    }

    fn over(&mut self) {
        self.burst = None;
    }
}

impl Offload {
    pub(crate) fn open(caches: &Caches, spec: OffloadSpec) -> Result<Offload, HistoryError> {
        let handle = caches.handle();
        let device = handle.device().clone();
        let lent = if spec.buffer > 0 { handle.lend(spec.buffer)? } else { None };
        let buffer: Vec<DeviceSpan> = lent.iter().flat_map(|lent| lent.spans.clone()).collect();
        let had: u64 = buffer.iter().map(DeviceSpan::bytes).sum();
        if had < spec.buffer / 2 {
            log::warn!(
                "event=offload-buffer-smaller bytes={had} wanted={}: the GPU cache (device.budget) has no more room; where the buffer is full, \
                 the program's stream waits for the link",
                spec.buffer
            );
        }
        let [one, two] = [device.stream(Priority::Low)?, device.stream(Priority::Low)?];
        let streams = [one, two, device.stream(Priority::High)?];
        let gate = Turns { handle: handle.clone(), burst: None, is_waited_for: spec.is_waited_for };
        let address = device.info().bus_id.clone();
        let near = match spec.cpus {
            ThreadCpus::Near => given::for_background(&address),
            ThreadCpus::Own => cpus::of_this_thread(),
        };
        let offloader = Offloader::open(streams, buffer, spec.stats, gate, move || cpus::run_on(&near));
        let offloader = offloader.map_err(|error| HistoryError::Store {
            directory: String::new(),
            reason: format!("a thread could not be started: {error}"),
        })?;
        Ok(Offload {
            offloader,
            handle,
            _lent: lent,
            segment: spec.segment,
            is_read: spec.is_read,
            config: spec.config,
            limit: spec.limit,
            marks: AtomicU64::new(0),
            refusals: Arc::default(),
        })
    }

    /// Declares that work enqueued on `stream` between now and the next mark may write to `span`. This may be a region, a part of a region,
    /// or any other memory, which is ignored.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// Never. The stream may be held back until the mark has been made, for a copy inside the device, or for the transfer over the link.
    ///
    /// # Errors
    /// [`OffloadError::Recording`] if the stream is being captured into a CUDA graph: declare everything that the graph writes before each
    /// of its launches. [`OffloadError::Device`]: the device has failed; the shard that is marked is then refused.
    pub fn before_write(&self, span: &DeviceSpan, stream: &dyn Stream) -> Result<(), OffloadError> {
        self.offloader.before(std::slice::from_ref(span), stream)
    }

    /// Names the memory to which some work of the program writes, so that [`Offload::before`] can declare it each time.
    pub fn write_set(&self, name: &str, spans: &[DeviceSpan]) -> WriteSet {
        WriteSet { name: name.to_owned(), spans: spans.to_vec() }
    }

    /// Calls [`Offload::before_write`] for all memory that a set names.
    ///
    /// # Errors
    /// See [`Offload::before_write`].
    pub fn before(&self, set: &WriteSet, stream: &dyn Stream) -> Result<(), OffloadError> {
        self.offloader.before(&set.spans, stream)
    }

    /// Waits until no marked checkpoint needs live memory any more. Call this before memory of regions is freed, and before it is
    /// written to in a way that cannot be declared, such as by another process or another device.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the transfer of what is marked, at full speed.
    pub fn settle(&self) {
        self.offloader.settle();
    }

    /// Reserves, touches and pins node memory for marked shards. `bytes` is the size of a shard's regions, in device and host memory
    /// together. Without this call, the first checkpoints are copied, as with
    /// [`CheckpointBuilder::with_device`](crate::CheckpointBuilder::with_device), and their slots are pinned for later checkpoints. The
    /// memory is for two shards, and for a third if other levels or redundancy read them and this rank's share of node memory has room for
    /// three. Open histories before this call: a history that is opened later may take this memory.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For about half a second per GiB.
    ///
    /// # Errors
    /// [`OffloadError::Slots`]: this rank does not have enough node memory, or the memory cannot be pinned.
    pub fn prepare(&self, bytes: u64) -> Result<(), OffloadError> {
        let failed = |reason: String| OffloadError::Slots { bytes, reason };
        let segment = self.segment.as_ref().ok_or_else(|| failed("the memory tier is off".to_owned()))?;
        // Room for the digests of blocks of 4 KiB, and for the description of the regions.
        let room = bytes + bytes / 256 + (1 << 20);
        let room = room.next_multiple_of(PAGE);
        let share = segment.capacity() / u64::from(segment.node_ranks().max(1));
        let wanted = if self.is_read && share / room >= SLOTS_READ as u64 { SLOTS_READ } else { SLOTS };
        let mut slots: Vec<SlotMut> = Vec::new();
        for _ in 0..wanted {
            match segment.reserve(room).map_err(|error| failed(error.to_string()))? {
                Some(slot) => slots.push(slot),
                None if slots.len() >= SLOTS => break,
                None => {
                    let refusal = segment.refusal();
                    return Err(failed(refusal.map_or_else(|| "no room".to_owned(), |refusal| refusal.to_string())));
                }
            }
        }
        match slots.iter().all(|slot| self.handle.pin(slot)) {
            true => Ok(()),
            false => Err(failed(
                "it could not be pinned; the log says why (check history.pin, ulimit -l, and that memory.directory is a tmpfs)"
                    .to_owned(),
            )),
        }
    }

    /// Allows marks again. After two refusals in a row, checkpoints are copied instead of marked until this is called. Call it once the
    /// forgotten write is declared.
    pub fn allow_marks(&self) {
        self.refusals.store(0, Ordering::Relaxed);
    }

    /// Counters.
    pub fn stats(&self) -> OffloadStats {
        self.offloader.stats()
    }

    /// The caches.
    pub(crate) fn handle(&self) -> &CacheHandle {
        &self.handle
    }

    /// Is a shard with this many bytes on the device to be marked?
    pub(in crate::transfer) fn wants(&self, bytes: u64) -> bool {
        let is_allowed = self.refusals.load(Ordering::Relaxed) < REFUSALS_MAX;
        is_allowed
            && self.offloader.is_alive()
            && (self.config.mode == OffloadMode::Always || !self.handle.has_room_at_once(bytes))
    }

    /// Can the device write to this slot? If not, the slot is pinned for the next time.
    pub(in crate::transfer) fn is_ready(&self, slot: &SlotMut) -> bool {
        self.handle.is_pinned(slot) || {
            self.handle.pin_soon(slot, slot.len() as u64);
            false
        }
    }

    /// Does the configuration let slots be pinned? If not, nothing is ever marked.
    pub(in crate::transfer) fn may_mark(&self) -> bool {
        self.handle.may_pin()
    }

    /// Waits until the marked shard has landed.
    pub(in crate::transfer) fn wait(&self) {
        self.offloader.wait_for_turn();
    }

    /// Marks a shard.
    pub(in crate::transfer) fn mark(&self, mut snapshot: Snapshot, stream: &dyn Stream) {
        let turn = self.marks.fetch_add(1, Ordering::Relaxed);
        let terms = Terms { turn, is_audited: self.config.audit, limit: self.limit };
        let (refusals, land) = (self.refusals.clone(), snapshot.land);
        snapshot.land = Box::new(move |landed| {
            let in_a_row = match &landed {
                Ok(_) => {
                    refusals.store(0, Ordering::Relaxed);
                    0
                }
                Err(_) => refusals.fetch_add(1, Ordering::Relaxed) + 1,
            };
            if in_a_row == REFUSALS_MAX {
                log::warn!(
                    "event=marks-copied: {REFUSALS_MAX} marked checkpoints in a row were refused; the next ones are copied before the program \
                     continues, until Offload::allow_marks is called"
                );
            }
            land(landed);
        });
        if let Err((error, land)) = self.offloader.mark(snapshot, terms, stream) {
            land(Err(DeviceError::to_string(&error)));
        }
    }
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offload({:?}, {:?})", self.config, self.stats())
    }
}
