//! The node segment: memory that all ranks of a node share and that outlives them.
//!
//! # What it is
//!
//! The segment is one file per node, job, group and run in a tmpfs (`/dev/shm`). The node's first rank makes it
//! ([`Segment::create`]), and all ranks map it ([`Segment::attach`]). Captured shards are kept in it. When processes are
//! killed, the file stays, and the next run finds it ([`list`], [`OldSegment`]) and reads what was sealed. Nothing removes
//! the file except [`Segment::close`], [`OldSegment::unlink`] and [`remove`]: dropping a handle never does.
//!
//! # What is in it
//!
//! The segment contains a header (whose it is, how it is cut), then for each rank a *slot directory* and a *board*, a
//! table of *extents*, and the extents themselves. Control words change by atomics; there are no locks between
//! processes, so a process that is killed at any instant leaves nothing locked. `layout.rs` shows where each byte is.
//!
//! - A **slot** holds one shard that is being captured or is kept. Only its own rank changes it during a run. Its entry
//!   in the directory is authoritative for recovery: it contains the state, place, operation, version, hash of the
//!   name, committed level, and a check word.
//! - An **extent** is the unit in which ranks take memory from the node: at least 2 MiB, at most about 16384 per
//!   segment. A rank owns an extent by setting its owner word with a compare-and-swap, and then divides the extent at
//!   4 KiB granularity as it likes (`arena.rs`; the bookkeeping for this is in process memory).
//! - A **board** carries votes (`board.rs`).
//! - A **lease** is memory without a slot, for caches, which no restart will read (`lease.rs`). Ranges of it are lent for
//!   writing or shared for reading, and can be registered with a device (`pins.rs`).
//! - A **token** lets ranks take turns: at a link that several devices share, and at registering memory (`token.rs`).
//! - **Liveness**: each process holds a lock on one byte of the file, whose number is the process's rank on the node. The
//!   process releases the lock when it closes or drops the segment. If the process dies, however that happens, the kernel
//!   releases the lock. There is one limit: locks belong to the open file, which forked children share, so a killed process
//!   whose forked child lives on counts as alive.
//!
//! # The life of a slot
//!
//! ```text
//!             reserve              seal               retire
//!   Empty ────────────▶ Writing ────────▶ Sealed ────────────▶ Retired
//!     ▲                    │ abandon         (readers: SlotRef)   │
//!     ├────────────────────┘                                      │
//!     └───────────────────────────────────────────────────────────┘
//!                                      the last SlotRef is dropped
//! ```
//!
//! `seal` orders the (non-temporal) stores of the bytes before the state word, so a reader that sees `Sealed` sees the
//! bytes. A retired slot keeps its memory until its last [`SlotRef`] is dropped, so writer threads never read bytes of
//! a successor. A slot that a killed process left in `Writing` or `Retired` is not restorable.
//!
//! # Memory is never touched before it is reserved
//!
//! The file's virtual length is fixed by the budget, but pages exist only where extents have been populated
//! (`populate.rs`), after a look at what the node can still give (`room.rs`). That there is no room is an ordinary answer
//! ([`Segment::reserve`] returns `None`, [`Segment::refusal`] says why): the caller then waits or uses another tier.
//! Extents stay populated when they change hands, so a segment's memory only grows, up to its budget, until it is removed.
//!
//! # Threads
//!
//! A [`Segment`] is shared as `&Segment` or `Arc<Segment>` between the application's thread and the writer threads. It
//! contains two locks: `turn`, which a thread holds while it claims and populates new extents (long), and `books`, for the
//! books (short, never during a system call). They are taken in the order `turn`, `books`, the map's book of loans. A rank
//! that finds warm memory takes only the short ones. A third, `queue`, is held during one [`Segment::try_take`]
//! (microseconds) and with none of the others. All of this works only on Linux.

mod arena;
mod board;
mod error;
mod file;
mod layout;
mod lease;
mod live;
mod loans;
mod map;
mod old;
mod pins;
mod populate;
mod room;
mod slots;
mod state;
#[cfg(test)]
mod tests;
mod token;

pub use error::{Refusal, SegmentError};
pub use file::{is_held, list, remove, strangers};
pub use layout::{BOARD_OPERATIONS, EXTENT_MIN, SLOTS_PER_RANK, SegmentHeader, TOKEN_HOLDERS_MAX, TOKEN_LINKS};
pub use lease::{Lease, LeasePart, LeaseView};
pub use live::Segment;
pub use old::{OldBytes, OldSegment, OldSlot};
pub use pins::{PIN_CHUNK, Pins};
pub use room::{Available, available_memory, budget_bytes};
pub use slots::{SealInfo, SlotMut, SlotRef};
pub use state::{SlotId, SlotState};
pub use token::{Order, Token, TokenGuard};

use crate::base::ids::{Generation, Incarnation};
use std::path::PathBuf;

/// Which segment is meant, for whom, and how large it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentSpec {
    /// A tmpfs directory, normally `/dev/shm`.
    pub directory: PathBuf,
    /// File name; it holds job, group and generation in some form, so that no two runs use one name.
    pub name: String,
    /// Hash of the job's key.
    pub job: u64,
    /// Hash of the group's name.
    pub group: u64,
    /// This run.
    pub generation: Generation,
    /// This run's random identity.
    pub incarnation: Incarnation,
    /// Hash of the id of the run's store; 0 if the run has no store.
    pub store: u64,
    /// Bytes of data for all ranks of the node together. Only the creator's value counts: the header carries it to the
    /// others. The control area (about 12 KiB per rank, at most 256 KiB for the extents) is additional.
    pub budget: u64,
    /// Ranks of the group on this node.
    pub node_ranks: u32,
    /// Ranks of the group on all nodes.
    pub group_size: u32,
}
