//! Why a capture failed.
#![forbid(unsafe_code)]

use super::capture::{FileError, Unreadable};
use crate::base::Rank;
use crate::device::DeviceError;
use crate::format::FormatError;

/// Why a capture failed on this rank.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The session has already failed; nothing more is committed.
    #[error("rank {rank}: this session has failed and commits nothing more: {reason}")]
    Failed {
        /// This rank.
        rank: Rank,
        /// Why it failed.
        reason: String,
    },
    /// The regions cannot be laid out.
    #[error("rank {rank}: {source}")]
    Layout {
        /// This rank.
        rank: Rank,
        /// What is wrong.
        source: FormatError,
    },
    /// The checkpoint has regions in device memory, and was captured without specifying which caches and stream to use.
    #[error(
        "rank {rank}: version {version} of {name:?} has regions in device memory, which need with_device or with_offload"
    )]
    NoCaches {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
    },
    /// The device did not deliver its regions.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {source}")]
    Device {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// An error that the device reports.
        source: DeviceError,
    },
    /// A version of a history could not be read.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {source}")]
    Region {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// The region, and the reason.
        source: Unreadable,
    },
    /// No tier could take the shard.
    #[error("rank {rank}: version {version} of {name:?} could not be captured: {}", causes.join("; "))]
    NoTier {
        /// This rank.
        rank: Rank,
        /// Series.
        name: String,
        /// Version.
        version: u64,
        /// One cause per tier that was tried.
        causes: Vec<String>,
    },
}

/// Why one tier did not take a shard.
pub(super) enum FillError {
    /// The tier could not take it; another one may.
    Tier(String),
    /// The device failed, and no tier can have its bytes.
    Device(DeviceError),
    /// A region has no bytes that a tier could take.
    Region(Unreadable),
}

impl From<DeviceError> for FillError {
    fn from(error: DeviceError) -> FillError {
        FillError::Device(error)
    }
}

impl From<FileError> for FillError {
    fn from(error: FileError) -> FillError {
        match error {
            FileError::Tier(error) => FillError::Tier(error.to_string()),
            FileError::Device(error) => FillError::Device(error),
            FileError::Region(error) => FillError::Region(error),
        }
    }
}

impl From<Unreadable> for FillError {
    fn from(error: Unreadable) -> FillError {
        FillError::Region(error)
    }
}
