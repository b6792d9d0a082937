//! What can go wrong with a segment, and why there may be no room in one.
#![forbid(unsafe_code)]

use super::room::Available;
use crate::base::units::Bytes;
use crate::format::FormatError;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a segment cannot be made, opened or used.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// There is no file of that name (yet).
    #[error("there is no memory segment {}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The file exists, but its creator has not finished it, or died while making it.
    #[error("memory segment {} is not finished yet", path.display())]
    Unfinished {
        /// The path.
        path: PathBuf,
    },
    /// A file of that name exists already.
    #[error("{} exists already: another process of this run has created it, or a name was used twice", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The file must not be trusted: it is a link or a special file, it belongs to another user, or others may access it.
    #[error("{} is not used as a memory segment: {why}", path.display())]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The content is garbage or cut short.
    #[error("memory segment {} is not usable: {source}", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A sound segment, but of another job, group or run.
    #[error("memory segment {} belongs to another run: {field} is {found}, expected {expected}", path.display())]
    Mismatch {
        /// The path.
        path: PathBuf,
        /// The first header field that differs.
        field: &'static str,
        /// What this process expects.
        expected: String,
        /// What the header says.
        found: String,
    },
    /// Another living process has this rank's place.
    #[error("rank {node_rank} of memory segment {} is taken by a live process", path.display())]
    RankTaken {
        /// The path.
        path: PathBuf,
        /// The rank on the node.
        node_rank: u32,
    },
    /// This rank's part of the segment holds data of an earlier process of the same run.
    #[error("rank {node_rank} of memory segment {} was used before in the same run", path.display())]
    Used {
        /// The path.
        path: PathBuf,
        /// The rank on the node.
        node_rank: u32,
    },
    /// The request never fits, however long one waits.
    #[error("{} do not fit into a memory segment of {}: raise memory.budget, which needs as much free space in memory.directory", Bytes(*bytes), Bytes(*capacity))]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of all extents.
        capacity: u64,
    },
    /// The slot was never sealed, or its entry is damaged.
    #[error("slot {index} of node rank {node_rank} in {} was never finished", path.display())]
    Torn {
        /// The path.
        path: PathBuf,
        /// The rank on the node.
        node_rank: u32,
        /// The slot.
        index: u32,
    },
    /// The bytes of a slot are not all there: holes were punched into it.
    #[error("slot {index} of node rank {node_rank} in {} has holes", path.display())]
    Hole {
        /// The path.
        path: PathBuf,
        /// The rank on the node.
        node_rank: u32,
        /// The slot.
        index: u32,
    },
    /// Not a plain file name.
    #[error("{name:?} is not a file name")]
    Name {
        /// The name, shortened.
        name: String,
    },
    /// A number of the specification is out of range.
    #[error("memory segment: {what} is {value}, allowed: {allowed}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The handle was inherited by a forked child; only the process that opened a segment may change it.
    #[error("a memory segment cannot be used in a forked child process")]
    Forked,
    /// The segment has been closed.
    #[error("the memory segment is closed")]
    Closed,
    /// A system call failed.
    #[error("{call} failed on {}: {source}", path.display())]
    Os {
        /// The path.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl SegmentError {
    pub(super) fn os(path: &Path, call: &'static str, errno: Errno) -> SegmentError {
        SegmentError::io(path, call, errno.into())
    }

    pub(super) fn io(path: &Path, call: &'static str, source: io::Error) -> SegmentError {
        SegmentError::Os { path: path.to_owned(), call, source }
    }

    /// Is the segment merely not there yet? Then attaching again a little later may work.
    pub fn is_not_there(&self) -> bool {
        matches!(self, SegmentError::NotFound { .. } | SegmentError::Unfinished { .. })
    }
}

/// Why there is no room now. Another attempt may succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// All slots of this rank are in use.
    Slots,
    /// The budget's free extents have no contiguous range of that many bytes.
    Budget {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The node has not enough free memory left.
    Node {
        /// Bytes of the next piece to populate.
        bytes: u64,
        /// What is left, less the reserve.
        available: Available,
    },
    /// The system refused pages.
    Os {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Slots => f.write_str("all slots of this rank are in use"),
            Refusal::Budget { bytes } => write!(f, "no contiguous {} is left in the budget", Bytes(*bytes)),
            Refusal::Node { bytes, available } => {
                write!(f, "{} needed, but the node has only {} left", Bytes(*bytes), Bytes(available.least))
            }
            Refusal::Os { call, errno } => write!(f, "{call}: {}", io::Error::from_raw_os_error(*errno)),
        }
    }
}
