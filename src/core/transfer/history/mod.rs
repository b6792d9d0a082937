//! Histories: versions that are written forward and read back in a known order, at the speed of GPU memory.
//!
//! # What happens
//!
//! [`History::append`] copies the application's fields into the GPU cache, on the application's stream, and makes the digest of every block
//! on the way. While there is room, the application waits for nothing else. In the background, two threads for each link move versions:
//! device to host, host to file, file to host, host to device. [`History::restore`] copies a version back and compares the digests. Only
//! [`crate::cache`] decides where a version is kept, what makes room and what is fetched ahead. This module moves the bytes as it is told.
//!
//! ```text
//!  application's thread      append ──▶ [GPU cache] ──▶ restore
//!  bvk-d2h                               │        ▲                bvk-h2d
//!                                        ▼        │
//!                                   [node memory: leases of the node segment, pinned part by part]
//!  bvk-h2f                               │        ▲                bvk-f2h
//!                                        ▼        │
//!                                   [file without a name on the local tier]
//!  bvk-map    maps GPU memory, leases and touches host memory, in steps, from the start on
//!  bvk-pin    pins host memory behind it, and slots of checkpoints ([`registered`](self))
//! ```
//!
//! Device regions of collective checkpoints pass through the same GPU cache on their way to node memory ([`staging`](self)).
//!
//! A history belongs to its rank alone: no call to it communicates. Its versions are never candidates for a restart, and its memory and
//! file vanish with the process. Versions that must outlive the process are sealed, which makes them part of a collective checkpoint
//! ([`CheckpointBuilder::save_history`](crate::CheckpointBuilder::save_history)).
//!
//! Sources: HPDC'23 (caching and prefetching), sections 2 and 4; HiPC'22 (cache allocation), section IV.
//!
//! # Blocking and locks
//!
//! One lock guards the planner and the layouts. It is never held across a copy, a file access or a call into a driver.
//!
//! # How bytes and decisions meet
//!
//! `transfer::history` moves bytes, and `cache` decides. Whenever its state changes, the planner hands jobs to the threads of each link
//! (`Cache::next`). It wakes exactly as many threads as can work, because waking a thread costs the application as much as a small copy. An
//! append announces its flush while it waits for its own copy, so that the flushing thread is awake when the copy is done. The bytes of a
//! version are cut into pieces, so that they occupy as few gaps as possible. One kernel copies any number of runs, and adds up the digests
//! of blocks that extend over several runs. `docs/GPU.md` describes the life cycle.
//!
//! Flushes of the ranks of a node can be staggered (`transfer::history::bursts`, the gate of `Stream::download`). Before each piece, the
//! flushing thread waits for the pace (`transfer::pacing`; `steps` tells it the application's step times), and before the first piece also
//! for its rank's turn (`turns`: a token of `segment::token`, shared by the rank's two threads; `affinity::links` says which token). Both
//! waits end when the caches close. The pace does not apply while a call of the application waits for flushes (`transfer::waiting`), and
//! the thread continues without a turn that does not come in time.
//!
//! A history in a checkpoint (`transfer::history::seal`) consists of regions whose bytes are read at capture (`region::ReadBlocks`). They
//! are read from the fastest tier that has a good copy, straight into the slot or into the buffer of the file writer, and are compared with
//! the digests of the append. `Cache::peek` asks the planner for the copy: it holds the copy and changes nothing else.
#![forbid(unsafe_code)]

mod append;
mod burst;
mod bursts;
mod error;
mod field;
mod layout;
mod lending;
mod lines;
mod links;
mod open;
mod preparing;
mod registered;
mod restore;
mod seal;
mod settings;
mod shared;
mod spill;
mod staging;
mod steps;
mod trace;
mod turns;
mod ways;

pub use append::Return;
pub(in crate::transfer) use burst::Burst;
pub use error::HistoryError;
pub use field::{Field, FieldMut};
pub use layout::FieldInfo;
pub use lending::CacheHandle;
pub(in crate::transfer) use lending::Lent;
pub(crate) use seal::{Index, index_name, region_name};
pub use settings::CacheConfig;
pub use shared::{Caches, History};
pub(in crate::transfer) use shared::{LookAt, Staged};
pub use trace::{HistoryStats, Operation, Span, Step};
