//! What can go wrong with a history.

use crate::base::Digest;
use crate::base::units::Bytes;
use crate::device::DeviceError;

/// Why a version was not appended or restored. Errors of one version leave the others and the session as they were.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HistoryError {
    /// The history has no such version.
    #[error("history {history:?} has no version {version}: it was never appended")]
    Unknown {
        /// The history.
        history: String,
        /// The version.
        version: u64,
    },
    /// The version was restored earlier and then dropped, as the history was told to do.
    #[error("version {version} of history {history:?} was restored before, and the history drops what was restored")]
    Gone {
        /// The history.
        history: String,
        /// The version.
        version: u64,
    },
    /// All copies of the version are damaged or lost.
    #[error("version {version} of history {history:?} is lost: {reason}")]
    Lost {
        /// The history.
        history: String,
        /// The version.
        version: u64,
        /// What happened to its last copy.
        reason: String,
    },
    /// The history already has a version with that number.
    #[error("history {history:?} already has a version {version}")]
    Exists {
        /// The history.
        history: String,
        /// The version.
        version: u64,
    },
    /// The history's caches were dropped, and its versions with them.
    #[error("the caches of history {history:?} were closed: it has no versions any more")]
    Closed {
        /// The history.
        history: String,
    },
    /// No tier has room, and no work that is under way will make any.
    #[error(
        "no room for version {version} of history {history:?} ({}): {reason}; raise device.budget, history.host_budget or \
         history.store_budget, or restore versions so that they can be dropped", Bytes(*bytes)
    )]
    NoRoom {
        /// The history.
        history: String,
        /// The version.
        version: u64,
        /// Its length.
        bytes: u64,
        /// The limit.
        reason: String,
    },
    /// The fields of a restore are not the fields that were appended.
    #[error("version {version} of history {history:?}, field {field:?}: {reason}")]
    Field {
        /// The history.
        history: String,
        /// The version.
        version: u64,
        /// The field.
        field: String,
        /// What is different.
        reason: String,
    },
    /// Bytes that were read are not the bytes that were appended. The copy is given up. A restore passes this error on only as the reason
    /// of [`HistoryError::Lost`]. From an append, it means that host fields did not arrive unchanged in the GPU cache.
    #[error("{tier} tier, field {field:?}, block {block}: digest {found} instead of {expected}")]
    Damaged {
        /// Where the copy was.
        tier: &'static str,
        /// The field.
        field: String,
        /// The block of the field.
        block: u64,
        /// The digest made when the block was appended.
        expected: Digest,
        /// The digest of the bytes that were read.
        found: Digest,
    },
    /// A restore that returned early ([`Return::Enqueued`](super::Return::Enqueued)) did not deliver what was appended.
    #[error(
        "version {version} of history {history:?} was restored with an enqueued copy that did not deliver what was appended: {reason}; \
         what was computed from it is wrong: go back to a checkpoint, or restore it again"
    )]
    Late {
        /// The history.
        history: String,
        /// The version.
        version: u64,
        /// What happened to the copy.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file tier failed.
    #[error("history file in {directory}: {reason}")]
    Store {
        /// Its directory.
        directory: String,
        /// The file system's error.
        reason: String,
    },
    /// Nothing changed for the configured time.
    #[error("version {version} of history {history:?} timed out after {seconds:.0} s (timeouts.room)")]
    TimedOut {
        /// The history.
        history: String,
        /// The version.
        version: u64,
        /// How long the call waited.
        seconds: f64,
    },
}

impl HistoryError {
    /// Is the copy that was read at fault, so that another copy may do?
    pub(super) fn is_of_copy(&self) -> bool {
        matches!(self, HistoryError::Damaged { .. } | HistoryError::Store { .. })
    }
}
