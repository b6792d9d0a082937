//! Messages between the ranks of a group: one small trait, and a record of which ranks share a node.
//!
//! The coordination driver needs very little from a message layer: start a send, take the next message from any rank, and give up. In
//! addition, redundancy between nodes moves bulk data, as *parcels*: the sender lends its memory instead of having it copied, and the
//! receiver gets pooled buffers and takes in only a limited number at a time, so that a rank that is busy elsewhere holds its senders
//! back instead of filling its memory. [`Comm`] offers exactly this. It has four implementations: `mpi` for real jobs, [`sockets`] for
//! jobs whose MPI library allows no thread of ours to call it, [`threads`] for N ranks in one process (tests and the simulation), and
//! `faulty`, a wrapper that drops, delays, reorders and kills according to a seed. Collective MPI calls are not used between `open` and
//! the very end, because non-blocking collectives need the same order on all ranks and cannot be cancelled.

mod bell;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
#[cfg(feature = "mpi")]
pub mod mpi;
mod parcel;
mod pool;
pub mod sockets;
pub mod threads;

pub use bell::Bell;
pub use parcel::{Label, MAX_PARCEL_BYTES, Parcel, SharedBytes, Slice};

use crate::base::Rank;
use std::sync::Arc;
use std::time::Duration;

/// What can go wrong when ranks talk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// An MPI call returned an error code.
    #[error("rank {rank}: {call} failed with MPI error {code}: {text}")]
    Mpi {
        /// The rank that called.
        rank: Rank,
        /// The MPI function.
        call: &'static str,
        /// Its return code.
        code: i32,
        /// The library's own description.
        text: String,
    },
    /// Some ranks have not opened the communicator together with the others.
    #[error("rank {rank}: {}", absence(*count, missing, *waited))]
    Absent {
        /// The rank that called.
        rank: Rank,
        /// The number of missing ranks; 0: only rank 0 knows it, and its message has not arrived.
        count: u32,
        /// The first few missing ranks.
        missing: Vec<Rank>,
        /// How long the call has waited for them.
        waited: Duration,
    },
    /// The communicator is gone: MPI was finalized, or this simulated rank was killed.
    #[error("rank {rank}: the communicator is closed")]
    Closed {
        /// The rank that called.
        rank: Rank,
    },
    /// A message was addressed to a rank that the group does not have.
    #[error("rank {rank}: cannot send to rank {to}: the group has {size} ranks, numbered from 0")]
    NoSuchRank {
        /// The rank that called.
        rank: Rank,
        /// The rank to which the message was addressed.
        to: Rank,
        /// The number of ranks in the group.
        size: u32,
    },
    /// A message was longer than [`MAX_MESSAGE_BYTES`].
    #[error("rank {rank}: a message of {bytes} bytes to rank {to} is over the limit of {MAX_MESSAGE_BYTES} bytes")]
    TooLong {
        /// The rank that called.
        rank: Rank,
        /// The rank to which the message was addressed.
        to: Rank,
        /// The length of the message.
        bytes: usize,
    },
    /// The body of a parcel was longer than [`MAX_PARCEL_BYTES`].
    #[error("rank {rank}: a parcel of {bytes} bytes to rank {to} is over the limit of {MAX_PARCEL_BYTES} bytes")]
    ParcelTooLong {
        /// The rank that called.
        rank: Rank,
        /// The rank to which the parcel was addressed.
        to: Rank,
        /// The length of the body.
        bytes: usize,
    },
    /// MPI cannot be used here, or cannot be used on this communicator. Nothing was sent.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Why MPI cannot be used at this point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// `MPI_Init` has not been called yet.
    #[error("MPI is not initialized: call MPI_Init or MPI_Init_thread first")]
    NotInitialized,
    /// `MPI_Finalize` has been called.
    #[error("MPI is already finalized: no communicator can be used any more")]
    Finalized,
    /// The communicator is `MPI_COMM_NULL`.
    #[error(
        "the communicator is MPI_COMM_NULL: ranks that are not members (for example those that passed MPI_UNDEFINED to MPI_Comm_split) must not open a session on it"
    )]
    NullCommunicator,
    /// The communicator is an intercommunicator.
    #[error("the communicator is an intercommunicator: merge it first (MPI_Intercomm_merge)")]
    Intercommunicator,
    /// The MPI library does not allow calls from this thread.
    #[error(
        "MPI was initialized with {level}, which does not allow MPI calls from this thread: call from the thread that called MPI_Init_thread, or ask for MPI_THREAD_MULTIPLE"
    )]
    WrongThread {
        /// The thread level that the MPI library granted.
        level: ThreadLevel,
    },
}

/// The text of [`CommError::Absent`].
fn absence(count: u32, missing: &[Rank], waited: Duration) -> String {
    let waited = waited.as_secs();
    if count == 0 {
        return format!(
            "not all ranks of the communicator have opened the session within {waited} s; rank 0 may be one of the missing, or its \
             output names them"
        );
    }
    let named: Vec<String> = missing.iter().map(Rank::to_string).collect();
    let more = if count as usize > named.len() { " and others" } else { "" };
    format!(
        "{count} ranks have not opened the session within {waited} s: {}{more}. All ranks of the communicator open it together; \
         did those end before, or fail to read their configuration?",
        named.join(", ")
    )
}

/// What the MPI library allows the threads of this process to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadLevel {
    /// There is only one thread.
    Single,
    /// Only the thread that initialized MPI may call it.
    Funneled,
    /// Any thread may call, one at a time; the application ensures this.
    Serialized,
    /// Any thread may call at any time.
    Multiple,
}

impl std::fmt::Display for ThreadLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ThreadLevel::Single => "MPI_THREAD_SINGLE",
            ThreadLevel::Funneled => "MPI_THREAD_FUNNELED",
            ThreadLevel::Serialized => "MPI_THREAD_SERIALIZED",
            ThreadLevel::Multiple => "MPI_THREAD_MULTIPLE",
        })
    }
}

/// The length in bytes of the longest message that [`Comm::send`] takes. Protocol messages are a few bytes to a few
/// MiB; the limit keeps a mistaken length far away from MPI's 32-bit counts and bounds what a receiver can be made to
/// allocate.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Checks the arguments of a send, the same way in each implementation.
fn check_send(rank: Rank, size: u32, to: Rank, bytes: usize) -> Result<(), CommError> {
    if to.0 >= size {
        return Err(CommError::NoSuchRank { rank, to, size });
    }
    if bytes > MAX_MESSAGE_BYTES {
        return Err(CommError::TooLong { rank, to, bytes });
    }
    Ok(())
}

/// Turns one label per rank into node numbers; ranks with equal labels are on the same node. Nodes are numbered by
/// their lowest rank, in ascending order.
fn number_nodes<L: std::hash::Hash + Eq>(labels: &[L]) -> Vec<u32> {
    let mut numbers = std::collections::HashMap::new();
    labels
        .iter()
        .map(|label| {
            let next = numbers.len() as u32;
            *numbers.entry(label).or_insert(next)
        })
        .collect()
}

/// A group of ranks that can send each other short messages, and parcels of bulk data.
///
/// # Contract
/// - `send` only starts a message; it never waits for the receiver, and the bytes may be reused at once.
/// - Messages from one rank to another arrive in the order in which they were sent, or not at all if either of them has
///   died. (The `faulty` wrapper breaks the order on purpose; the core must bear it.)
/// - `receive` never waits. It returns the next message from any rank and moves unfinished sends along.
/// - Parcels from one rank to another arrive in the order in which they were sent, each exactly once. If either rank
///   has died, parcels may stop arriving at some point. The order between parcels and messages is undefined.
/// - A receiver holds a bounded number of parcels that its caller has not taken; further parcels stay with their senders
///   and count as unsent there. A rank that sends parcels must therefore also receive; otherwise two ranks can wait for
///   each other forever.
/// - `receive` and `receive_parcel` both advance all unfinished sends and receives.
/// - All calls on one value are made by one thread at a time.
/// - After `cancel`, or once the message layer is gone, every call returns [`CommError::Closed`] or does nothing;
///   nothing blocks.
pub trait Comm: Send {
    /// This rank.
    fn rank(&self) -> Rank;
    /// Number of ranks.
    fn size(&self) -> u32;
    /// For each rank the index of its node; nodes are numbered by their lowest rank, in ascending order.
    fn nodes(&self) -> &[u32];
    /// Starts to send `bytes` to `to` (which may be this rank).
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`] and [`CommError::TooLong`] for bad arguments (nothing was sent),
    /// [`CommError::Closed`], or what the message layer reports.
    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError>;
    /// The next message, if one has arrived.
    ///
    /// # Errors
    /// [`CommError::Closed`], or what the message layer reports, which may be about an earlier send.
    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError>;
    /// Gives back a message that was taken too early: the next call to `receive` returns it.
    fn put_back(&mut self, from: Rank, bytes: Vec<u8>);
    /// The number of messages that have not left yet, so that their buffers are still lent.
    fn unfinished(&self) -> usize;
    /// Starts to send a parcel to `to` (which may be this rank). The bytes are lent until the parcel has left; they are
    /// not copied if the layer can avoid it. An empty body is fine.
    ///
    /// # Errors
    /// [`CommError::NoSuchRank`] and [`CommError::ParcelTooLong`] for bad arguments (nothing was sent),
    /// [`CommError::Closed`], or what the message layer reports.
    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError>;
    /// The next parcel that has arrived completely. Never waits.
    ///
    /// # Errors
    /// [`CommError::Closed`], or what the message layer reports, which may be about an earlier send. After an error
    /// about an arriving parcel no more parcels arrive: each call returns that error.
    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError>;
    /// Gives the memory of a parcel back, for later parcels. The caller may also drop it, which costs page faults.
    fn recycle(&mut self, bytes: Vec<u8>);
    /// The number of parcels that have not left yet, so that their bytes are still lent.
    fn unsent_parcels(&self) -> usize;
    /// The bell that rings when something has arrived. `None`: a thread that wants to know this must poll.
    fn bell(&self) -> Option<Arc<Bell>> {
        None
    }
    /// Ends the conversation: waits until everything that was sent to this rank has arrived, for at most `limit`. Messages and parcels that
    /// have not been taken are dropped. Returns true if all ranks got this far; then `cancel` can free everything. Layers that lose nothing
    /// at the end need not do anything.
    ///
    /// # Collective
    /// All ranks.
    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        let _ = limit;
        Ok(true)
    }
    /// Gives up all unfinished sends and closes the communicator.
    fn cancel(&mut self);
}

impl Comm for Box<dyn Comm> {
    fn rank(&self) -> Rank {
        (**self).rank()
    }
    fn size(&self) -> u32 {
        (**self).size()
    }
    fn nodes(&self) -> &[u32] {
        (**self).nodes()
    }
    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        (**self).send(to, bytes)
    }
    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        (**self).receive()
    }
    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        (**self).put_back(from, bytes);
    }
    fn unfinished(&self) -> usize {
        (**self).unfinished()
    }
    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        (**self).send_parcel(to, label, body)
    }
    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        (**self).receive_parcel()
    }
    fn recycle(&mut self, bytes: Vec<u8>) {
        (**self).recycle(bytes);
    }
    fn unsent_parcels(&self) -> usize {
        (**self).unsent_parcels()
    }
    fn bell(&self) -> Option<Arc<Bell>> {
        (**self).bell()
    }
    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        (**self).quiesce(limit)
    }
    fn cancel(&mut self) {
        (**self).cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_lowest_rank() {
        assert_eq!(number_nodes(&[7, 7, 3, 7, 3, 9]), [0, 0, 1, 0, 1, 2]);
        assert!(number_nodes::<u8>(&[]).is_empty());
    }

    #[test]
    fn a_send_to_a_rank_outside_the_group_or_of_too_many_bytes_is_refused() {
        let rank = Rank(1);
        assert_eq!(check_send(rank, 4, Rank(3), MAX_MESSAGE_BYTES), Ok(()));
        assert_eq!(check_send(rank, 4, Rank(4), 0), Err(CommError::NoSuchRank { rank, to: Rank(4), size: 4 }));
        let bytes = MAX_MESSAGE_BYTES + 1;
        assert_eq!(check_send(rank, 4, Rank(0), bytes), Err(CommError::TooLong { rank, to: Rank(0), bytes }));
    }
}
