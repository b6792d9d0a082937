//! Where the versions of a history are: the pure planner of a cache over GPU memory, node memory and a file.
//!
//! An application, an adjoint computation for example, appends hundreds of versions to a history, says in which order it
//! will read them, and reads them. A version is first copied to the *device* cache, at the speed of GPU memory;
//! background links then move it on:
//!
//! ```text
//!            application
//!     admit, written │ ▲ read, read_done
//!                    ▼ │
//!   Device   GPU memory, mapped step by step
//!      Down │ ▲ Up
//!           ▼ │
//!   Host     node memory, in leases
//!       Out │ ▲ In
//!           ▼ │
//!   Store    a range of a file
//! ```
//!
//! [`Cache`] makes all decisions and does nothing else: it moves no bytes, reads no clock and starts no thread. The
//! doers share it under a lock. Each link's worker calls [`Cache::next`], moves the bytes without the lock, and calls
//! [`Cache::done`]. The application's thread calls [`Cache::admit`] and [`Cache::written`] around its copy into the
//! cache, and [`Cache::read`] and [`Cache::read_done`] around its copy out of it. If it is told to wait, it waits for
//! the next change (a `done`, `written`, `read_done`, `close`, or a new span) and calls again.
//!
//! | file | decides |
//! |---|---|
//! | `life` | which states a copy goes through: one table (HPDC'23, figure 1) |
//! | `space` | where bytes lie: the allocation table with gaps |
//! | `order` | what is read next: the restore-order queue |
//! | `evict` | what makes room |
//! | `queue` | in which order versions are flushed and leave |
//! | `entry` | one version and its copies |
//! | `room` | what may leave a tier, and when |
//! | `links` | what a link moves next: flushes, prefetches |
//! | `planner` | what the application is told |
//!
//! # Rules
//!
//! - A version has at most one *copy* per tier, each with a [`State`]. The last copy of a version that is still wanted
//!   never leaves. `Keep::All` versions are always wanted; `Keep::UntilRead` ones are wanted until they have been read
//!   and no further hint names them. Then all copies leave at once, and flushes of them are in vain.
//! - Flushing is eager, except for what will not be needed below ([`links`](self)): what will be used latest goes
//!   first, so that eviction finds the right copies flushed.
//! - A started prefetch is never evicted before it has been read. The only exception is an append (or a staged shard,
//!   or memory that is asked back) that finds nothing else in its way: it drops the prefetch that is read last, and
//!   only if a tier below has it.
//! - While an append waits for room, no prefetch takes any.
//! - *Nobody waits for themselves.* The answer is [`Admission::Wait`] only while a flush or another job is under way or
//!   could start at once, or while spans are still announced; otherwise, it is a lower tier or [`Admission::Never`]. A
//!   read needs no room: it takes the fastest copy there is, and waits only for a job that is already bringing it up.
//! - As long as the device is not fully mapped, nothing is evicted from it (HiPC'22, section II, constraint 1).
//! - A tier may have no bytes. A store without a host tier can be written and read only by the application itself: what is
//!   in the device cache goes down through the host.
#![forbid(unsafe_code)]

mod books;
mod check;
mod entry;
pub mod evict;
pub mod life;
mod links;
pub mod order;
mod planner;
mod queue;
mod room;
pub mod space;
#[cfg(test)]
mod tests;
mod uses;

pub use books::{Cache, Options, TierOptions};
pub use life::{State, Step};
pub use links::Job;
pub use planner::{Admission, Noted, Read, Reason};
pub use space::runs;

/// The maximum number of jobs of one link that are under way: one that moves and one that is ready to.
pub const IN_FLIGHT_MAX: usize = 2;

/// The number of failures after which a version is not tried on a link again.
pub const TRIES_MAX: u32 = 3;

/// One version of a history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId {
    /// The history, in the application's numbering.
    pub history: u32,
    /// The version in it.
    pub version: u64,
}

/// Where a copy rests, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// GPU memory.
    Device,
    /// Node memory.
    Host,
    /// A file.
    Store,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Store];

    /// The link that takes copies from here to the tier below.
    pub fn flush(self) -> Option<Link> {
        match self {
            Tier::Device => Some(Link::Down),
            Tier::Host => Some(Link::Out),
            Tier::Store => None,
        }
    }
}

/// A way between two neighbouring tiers, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Link {
    /// Device to host.
    Down,
    /// Host to store.
    Out,
    /// Store to host.
    In,
    /// Host to device.
    Up,
}

impl Link {
    /// All links.
    pub const ALL: [Link; 4] = [Link::Down, Link::Out, Link::In, Link::Up];

    /// Where the bytes come from.
    pub fn from(self) -> Tier {
        match self {
            Link::Down => Tier::Device,
            Link::Out | Link::Up => Tier::Host,
            Link::In => Tier::Store,
        }
    }

    /// Where they go.
    pub fn to(self) -> Tier {
        match self {
            Link::Up => Tier::Device,
            Link::Down | Link::In => Tier::Host,
            Link::Out => Tier::Store,
        }
    }
}

/// How long a version is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Until the version has been read and no further hint names it.
    UntilRead,
    /// Until its history is closed.
    All,
}

/// A range of a tier's space, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Piece {
    /// Where it starts.
    pub offset: u64,
    /// How long it is: whole units of the tier, so the last piece of a version may be longer than what lies in it.
    pub bytes: u64,
}

impl Piece {
    /// The first byte after it.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Whose bytes lie in a tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A version's.
    Entry(EntryId),
    /// A staged shard, by the number that the caller has given it.
    Shard(u64),
}
