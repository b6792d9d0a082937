//! Shards that are sent from live memory of the device, while the application continues.
//!
//! # What happens
//!
//! ```text
//!  application's stream   ... the work before │ mark (digests of all blocks) │ doubling, or nothing │ the work that writes ...
//!  bvk-off, low stream                        └▶ piece after piece to the slot ... what was doubled, from the buffer
//!  urgent stream                                 what a write waits for
//!  bvk-off                                       all there, and what was marked? land: head, seal, vote
//! ```
//!
//! `Offloader::mark` notes the blocks and enqueues a moment on the stream; the saved content is the result of the work that precedes this
//! moment. A thread sends blocks from where they are (`Shared::step`). Before the program writes, it says so (`Offloader::before`). Blocks
//! that have not arrived are then copied into a buffer on the writer's stream, or, if the buffer is full, sent at once on a separate
//! stream, for which the writer's stream waits. The calling thread never waits: hardware waits for hardware.
//!
//! Blocks that were sent or doubled must have the digests of the mark. A difference means a write that was not declared: the shard is
//! refused, with the region and the bytes. Without the audit, nothing is digested on the application's stream: the digests are made after
//! the mark, while the application continues, and an undeclared write to a block before it is digested is not detected.
//!
//! `zones` decides which state a block may be in, `ring` where it is in the buffer, and `order` and `pace` when it is sent. All of these
//! are pure.
//!
//! Source: ICS'19, section 4, whose memory zone monitor is replaced by what the program declares.
#![forbid(unsafe_code)]

mod mark;
mod open;
mod order;
mod pace;
mod ring;
mod step;
#[cfg(test)]
mod tests;
mod thread;
mod writes;
mod zones;

pub(in crate::transfer) use mark::{Field, Known, Landed, Snapshot};
pub(crate) use open::OffloadSpec;
pub use open::{Offload, WriteSet};

use crate::base::Digest;
use crate::base::sync::{Condition, Lock};
use crate::base::units::MIB;
use crate::device::{DeviceError, DeviceSpan, Stream};
use mark::Mark;
use order::Order;
use pace::Intervals;
use ring::Ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Lengths that were found by measurement.
#[derive(Clone, Copy)]
struct Sizes {
    /// How many bytes are sent, and become safe, at a time.
    piece: u64,
    /// The shortest run of blocks for which the copy engine is faster than a kernel of many thread blocks, while somebody waits.
    engine: u64,
    /// The shortest run for which the copy engine is faster than a kernel of few thread blocks, and disturbs the application less.
    engine_beside: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { piece: 16 * MIB, engine: 256 << 10, engine_beside: 64 << 10 }
    }
}

/// The number of thread blocks of a kernel that sends: few, unless somebody waits.
const WIDTH: u32 = 8;
const WIDTH_HURRIED: u32 = 32;
/// How many transfers are under way at once to keep the link busy.
const AHEAD: usize = 4;
/// One in this many unchanged blocks is sent nevertheless, a different one each time: no damaged bit survives forever.
const REFRESHED: usize = 64;

/// Why a write cannot be declared, or memory cannot be prepared.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OffloadError {
    /// The stream is being captured into a CUDA graph.
    #[error(
        "the stream is recorded for a CUDA graph, in which a declaration has no effect when the graph runs: declare all that the graph writes \
         before each launch of it"
    )]
    Recording,
    /// The shard has no node memory to which the device can write.
    #[error("no node memory for marked shards of {bytes} bytes: {reason}")]
    Slots {
        /// Bytes of the regions.
        bytes: u64,
        /// What is missing.
        reason: String,
    },
    /// The device has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Counters of marks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OffloadStats {
    /// Shards that were marked.
    pub marks: u64,
    /// Shards that were refused after the mark.
    pub refused: u64,
    /// Bytes of marked shards.
    pub bytes: u64,
    /// Marked bytes that the slot already held.
    pub equal_bytes: u64,
    /// Marked bytes that were copied into the buffer before a write.
    pub doubled_bytes: u64,
    /// Marked bytes for which a stream of the application had to wait.
    pub urgent_bytes: u64,
    /// How often a mark waited for the previous one.
    pub waits: u64,
    /// How long these waits took.
    pub wait_time: Duration,
}

impl OffloadStats {
    /// Counts what another offloader of the session has counted.
    pub(in crate::transfer) fn add(&mut self, other: &OffloadStats) {
        let OffloadStats { marks, refused, bytes, equal_bytes, doubled_bytes, urgent_bytes, waits, wait_time } = other;
        self.marks += marks;
        self.refused += refused;
        self.bytes += bytes;
        self.equal_bytes += equal_bytes;
        self.doubled_bytes += doubled_bytes;
        self.urgent_bytes += urgent_bytes;
        self.waits += waits;
        self.wait_time += *wait_time;
    }
}

/// Counters that outlive their offloader, for the session.
pub(crate) type Counters = Arc<Lock<OffloadStats>>;

/// What the application's calls and the thread share.
struct Shared {
    sizes: Sizes,
    /// Streams of low priority for what is not urgent, used alternately.
    lows: [Arc<dyn Stream>; 2],
    urgent: Arc<dyn Stream>,
    /// The memory of the buffer.
    buffer: Vec<DeviceSpan>,
    books: Lock<Books>,
    stats: Counters,
    /// Signals that something has ended.
    changed: Condition,
    /// Is there a marked shard that has not landed?
    is_open: AtomicBool,
    /// The number of threads that wait for the end of this shard.
    hurrying: AtomicUsize,
    /// The number of calls of the application that are about to take the books.
    calling: AtomicUsize,
    stop: AtomicBool,
    /// The thread has panicked: nothing is sent any more.
    is_dead: AtomicBool,
    started: Instant,
}

struct Books {
    mark: Option<Mark>,
    /// A mark has been taken from `mark`, and is landing.
    is_landing: bool,
    /// The free room in each part of the buffer.
    rings: Vec<Ring>,
    order: Order,
    intervals: Intervals,
    /// Room for the digests of the next mark: allocating memory anew for each mark takes as long as the rest of the call.
    spare_digests: Vec<Digest>,
}

impl Shared {
    fn new(streams: [Arc<dyn Stream>; 3], buffer: Vec<DeviceSpan>, sizes: Sizes, stats: Counters) -> Shared {
        let [one, two, urgent] = streams;
        let rings = buffer.iter().map(|span| Ring::new(span.bytes())).collect();
        let books = Books {
            mark: None,
            is_landing: false,
            rings,
            order: Order::default(),
            intervals: Intervals::default(),
            spare_digests: Vec::new(),
        };
        Shared {
            sizes,
            lows: [one, two],
            urgent,
            buffer,
            // Work is enqueued and queried under this lock: both take locks of their own, and neither waits.
            books: Lock::at(crate::base::sync::Order::Outer, books),
            stats,
            changed: Condition::new(),
            is_open: AtomicBool::new(false),
            hurrying: AtomicUsize::new(0),
            calling: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn count(&self, add: impl FnOnce(&mut OffloadStats)) {
        add(&mut self.stats.lock());
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
