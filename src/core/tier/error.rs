//! Why a tier could not store or return something.
#![forbid(unsafe_code)]

use super::TierId;
use crate::base::{CheckpointKey, Digest, Rank};
use crate::format::FormatError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a tier could not store or return something.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The operating system refused.
    #[error("{tier} tier: cannot {action} {}: {source}{}", path.display(), advice(path, source))]
    Io {
        /// Which tier.
        tier: TierId,
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{tier} tier: {}: {source}", path.display())]
    Format {
        /// Which tier.
        tier: TierId,
        /// Which file or segment.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A block's bytes changed after they were captured.
    #[error(
        "{tier} tier: {}: region {region:?} of rank {rank} is damaged at byte {at}: digest {found}, expected {expected}",
        path.display()
    )]
    Damaged {
        /// Which tier.
        tier: TierId,
        /// Which file or segment.
        path: PathBuf,
        /// Whose shard.
        rank: Rank,
        /// Which region.
        region: String,
        /// Start of the block within the region.
        at: u64,
        /// The digest made at capture.
        expected: Digest,
        /// The digest of the bytes as read.
        found: Digest,
    },
    /// A well-formed file of another checkpoint, rank or job is in the place of ours.
    #[error("{tier} tier: {} holds {found}, not {expected}", path.display())]
    Foreign {
        /// Which tier.
        tier: TierId,
        /// Which file or segment.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was looked for.
        expected: String,
    },
    /// A file refers to an earlier checkpoint that does not exist, or has changed.
    #[error("{tier} tier: {}: the shard of rank {rank} refers to {key}: {cause}", path.display())]
    Source {
        /// Which tier.
        tier: TierId,
        /// Which file.
        path: PathBuf,
        /// Whose shard.
        rank: Rank,
        /// The checkpoint to which the file refers.
        key: CheckpointKey,
        /// What is wrong with that checkpoint.
        cause: Box<TierError>,
    },
}

impl TierError {
    /// Names the tier, the action and the path of a system error.
    pub fn io(tier: TierId, action: &'static str, path: &Path, source: io::Error) -> TierError {
        // A reader of a shard that uses several files reports by itself which of them is faulty, and why.
        match source.downcast::<TierError>() {
            Ok(error) => error,
            Err(source) => TierError::Io { tier, action, path: path.to_owned(), source },
        }
    }

    /// The error number of the system, if the error came from the system.
    pub fn errno(&self) -> Option<i32> {
        match self {
            TierError::Io { source, .. } => source.raw_os_error(),
            TierError::Source { cause, .. } => cause.errno(),
            _ => None,
        }
    }

    /// The tier on which something has changed since it was written, if that is what the error says.
    pub fn damaged(&self) -> Option<TierId> {
        match self {
            TierError::Damaged { tier, .. } | TierError::Format { tier, .. } => Some(*tier),
            TierError::Source { cause, .. } => cause.damaged(),
            TierError::Io { .. } | TierError::Foreign { .. } => None,
        }
    }

    /// Does the error say only that the file does not exist?
    pub fn is_absent(&self) -> bool {
        matches!(self, TierError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What a user can do about the usual errors.
fn advice(path: &Path, error: &io::Error) -> &'static str {
    const ELOOP: i32 = 40;
    if error.raw_os_error() == Some(ELOOP) {
        return "; a symbolic link is in the way; Bivouac neither makes nor follows links: remove it";
    }
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space or lower keep_last: the next checkpoint tries again"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; the file system is mounted read-only",
        io::ErrorKind::PermissionDenied if path.to_str().is_some_and(|path| path.contains("://")) => {
            "; check the credentials of the object store in the environment of every rank, and what they allow"
        }
        io::ErrorKind::PermissionDenied => "; check the owner and mode of the directory",
        _ => "",
    }
}
