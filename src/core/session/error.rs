//! The one error type of the public API.

use crate::base::text::short;
use crate::base::{Level, Rank};
use crate::comm::CommError;
use crate::config::ConfigError;
use crate::coordination::{Culprit, join};
use crate::recovery::{LoadError, RestartError};
use crate::region::RegionError;
use crate::transfer::{CaptureError, LevelVerdict};
use std::fmt;

/// The errors of the public API. The application may always continue.
///
/// A collective call that waits for the other ranks returns the same variant with the same culprits on all of them. A call that does not
/// wait, such as a capture, may fail on one rank alone; the other ranks are told in their verdict.
///
/// `{}` and `{:?}` print the same text; the second is what Rust prints when `main` returns an error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a history, or of the caches of histories.
    #[error(transparent)]
    History(#[from] crate::transfer::history::HistoryError),
    /// An error of an [`Offload`](crate::Offload): writes could not be declared, or memory could not be prepared.
    #[error(transparent)]
    Offload(#[from] crate::transfer::offload::OffloadError),
    /// The configuration has problems.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Messages cannot be exchanged.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// These ranks could not open the session.
    #[error("the session could not be opened: {}", join(culprits))]
    Open {
        /// The ranks, and why.
        culprits: Vec<Culprit>,
    },
    /// The name of a series or job cannot be used.
    #[error(
        "{what} {:?} is not usable: use 1 to 128 bytes without '/' or control characters, not starting with '.'",
        short(name)
    )]
    Name {
        /// Which kind of name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Something cannot be a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No file can be provided for a region that the program writes as a file.
    #[error("rank {rank}: the file for region {name:?} cannot be created: {why}; local.directory determines its place")]
    File {
        /// This rank.
        rank: Rank,
        /// The region.
        name: String,
        /// The path, and what the system says.
        why: String,
    },
    /// The capture failed on this rank; the others are told in their verdict.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A region could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The restart ended without a restored state.
    #[error(transparent)]
    Restart(#[from] RestartError),
    /// A checkpoint has not reached the level that was waited for, and will not reach it.
    #[error("version {version} of {name:?} did not reach level {level}: {}", explain(verdicts))]
    NotCommitted {
        /// The series.
        name: String,
        /// The version.
        version: u64,
        /// The level that was waited for.
        level: Level,
        /// The verdicts so far.
        verdicts: Vec<(Level, LevelVerdict)>,
    },
    /// Ranks made different calls, or some did not call.
    #[error("{call}: {}", join(culprits))]
    Disagreed {
        /// The call.
        call: &'static str,
        /// The ranks, and how they differ.
        culprits: Vec<Culprit>,
    },
    /// The parts of an array that the ranks described do not contain each of its elements exactly once.
    #[error("the array of shape {shape:?} cannot be decomposed: {finding}")]
    Decomposition {
        /// The extents of the array.
        shape: Vec<u64>,
        /// The first elements that have no owner or two owners, and the ranks that own them.
        finding: String,
    },
    /// A message has arrived at this rank, but its application has not received the message.
    #[error(
        "rank {rank}: a message from rank {from} with tag {tag} has arrived but has not been received: a checkpoint taken \
         now would not contain it; receive it first"
    )]
    MessageInFlight {
        /// This rank, in the communicator that was checked.
        rank: i32,
        /// The sender's rank.
        from: i32,
        /// The message's tag.
        tag: i32,
    },
    /// The session has failed and commits nothing more. The application may continue to compute.
    #[error("this session has failed and commits nothing more: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// `close` reached its time limit while checkpoints were in flight.
    #[error("{in_flight} checkpoints were still being written when the session was closed after {waited_s:.0} s")]
    Undrained {
        /// The checkpoints with undecided levels.
        in_flight: u64,
        /// How long `close` waited.
        waited_s: f64,
    },
    /// An error of the application's own, from inside a restart closure.
    #[error("{0}")]
    Application(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The result type of the public API.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an error of the application's own, to return it from a restart closure.
    pub fn application(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Application(error.into())
    }
}

fn explain(verdicts: &[(Level, LevelVerdict)]) -> String {
    let failed =
        verdicts.iter().filter_map(|(level, verdict)| verdict.reason().map(|reason| format!("{level} {reason}")));
    let text = failed.collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        "this level was not planned for it (see `every` in [local] and [global])".into()
    } else {
        text
    }
}
