//! Why something was not loaded.

use crate::base::text::{list, short};
use crate::base::{CheckpointKey, Rank};
use crate::coordination::{Culprit, Ranks, join};
use crate::device::DeviceError;
use crate::region::RegionError;
use crate::transfer::history::HistoryError;

/// Why a region could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint has no region of that name.
    #[error("rank {rank}: {key} has no region {:?}; it has: {}", short(region), shown(present))]
    Missing {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region asked for.
        region: String,
        /// The regions it has.
        present: Vec<String>,
    },
    /// The region has a different type or length from those that the application asks for.
    #[error("rank {rank}: region {region:?} of {key} holds {found}, but {expected} was requested")]
    Mismatch {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// What the checkpoint holds.
        found: String,
        /// What the application asked for.
        expected: String,
    },
    /// A value does not decode as the type asked for.
    #[error("rank {rank}: {source}")]
    Value {
        /// This rank.
        rank: Rank,
        /// What is wrong.
        source: RegionError,
    },
    /// The memory given for a region does not fit its decomposition.
    #[error("rank {rank}: {source}")]
    Region {
        /// This rank.
        rank: Rank,
        /// What does not fit.
        source: RegionError,
    },
    /// The region is spread over the ranks in a different way from the one that the application asks for.
    #[error("rank {rank}: region {region:?} of {key} {found}")]
    Decomposition {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// How the region was saved, and which call to use.
        found: String,
    },
    /// The parts of an array that this run wants do not match those in the checkpoint.
    #[error("region {region:?} of {key} was not loaded: {what}")]
    Unmatched {
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// The first elements that no rank has saved, or that two ranks have saved.
        what: String,
        /// True if the parts cannot have been saved in this way, so that the records of the shards must be damaged.
        is_damage: bool,
    },
    /// The ranks could not load the region together.
    #[error("region {region:?} of {key} was not loaded: {}", join(culprits))]
    Others {
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// The ranks that caused this, and why.
        culprits: Vec<Culprit>,
    },
    /// The checkpoint was taken by a different number of ranks, and the region that was asked for belongs to one rank.
    #[error(
        "rank {rank}: {key} was taken by {found} ranks and this run has {ours}, so no shard of it is this rank's own: load arrays with load_on, and \
         what all ranks share with shared"
    )]
    Resized {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The number of ranks that took it.
        found: u32,
        /// The number of ranks of this run.
        ours: u32,
    },
    /// The device did not take the region, or cannot say whether its content is right.
    #[error("rank {rank}: {what} of {key} was not loaded into device memory: {source}")]
    Device {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region; if several regions were loaded together, the first of them and the number of the others.
        what: String,
        /// Any error that the device reports.
        source: DeviceError,
    },
    /// There is not enough memory for the contents of the checkpoint.
    #[error("rank {rank}: region {region:?} of {key} needs {bytes} bytes, but there is not enough memory")]
    Memory {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// Its length.
        bytes: u64,
    },
    /// A region cannot be brought back as a file.
    #[error("rank {rank}: region {region:?} of {key} cannot be restored as a file: {why}")]
    File {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region.
        region: String,
        /// The path, and what the system says.
        why: String,
    },
    /// The history did not take a version.
    #[error("rank {rank}: a version of {key} was not loaded into the history: {source}")]
    History {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// What the history says.
        source: Box<HistoryError>,
    },
    /// Every copy that this rank can reach is damaged or gone.
    #[error("rank {rank}: no usable copy of {what} of {key}: {}", causes.join("; "))]
    NoCopy {
        /// This rank.
        rank: Rank,
        /// The checkpoint.
        key: CheckpointKey,
        /// The region, or the whole shard.
        what: String,
        /// One cause per copy.
        causes: Vec<String>,
    },
}

/// The maximum number of regions that an error names, because a checkpoint may have thousands.
const REGIONS_MAX: usize = 10;

fn shown(regions: &[String]) -> String {
    list(regions.iter().map(|name| short(name)), REGIONS_MAX, ", ")
}

impl LoadError {
    /// Why this rank could not load the region, for a list of culprits that itself names the region and the checkpoint.
    pub fn why(&self, rank: Rank) -> String {
        match self {
            LoadError::Others { culprits, .. } => match &culprits[..] {
                [culprit] if culprit.ranks == Ranks::of([rank]) => culprit.text.clone(),
                _ => join(culprits),
            },
            LoadError::Unmatched { what, .. } => what.clone(),
            LoadError::Mismatch { found, expected, .. } => {
                format!("it holds {found}, but {expected} was requested")
            }
            LoadError::Decomposition { found, .. } => format!("it {found}"),
            other => other.to_string(),
        }
    }

    /// Would an older checkpoint help?
    pub fn is_damage(&self) -> bool {
        match self {
            LoadError::NoCopy { .. } => true,
            LoadError::Unmatched { is_damage, .. } => *is_damage,
            LoadError::Others { culprits, .. } => culprits.iter().all(|culprit| culprit.retry),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Generation, Incarnation};

    #[test]
    fn what_ranks_hear_of_each_other_names_rank_region_and_checkpoint_once() {
        let key =
            CheckpointKey { generation: Generation(1), version: 3, operation: 7, incarnation: Incarnation::default() };
        let region = || "t".to_owned();
        let heard = |ranks: &[u32], error: &LoadError| {
            let culprits = ranks.iter().map(|rank| Culprit::of(Rank(*rank), error.why(Rank(*rank)))).collect();
            LoadError::Others { key, region: region(), culprits }
        };
        let found = "was saved without a decomposition".to_owned();
        let own = LoadError::Decomposition { rank: Rank(2), key, region: region(), found };
        let (once, expected) = (heard(&[2], &own), "rank 2: it was saved without a decomposition");
        assert_eq!(once.to_string(), format!("region \"t\" of {key} was not loaded: {expected}"));
        // The same error is heard again: once from this rank in a later step, and once from another rank.
        assert_eq!(heard(&[2], &once).to_string(), once.to_string());
        assert_eq!(once.why(Rank(1)), expected);
        let unmatched =
            LoadError::Unmatched { key, region: region(), what: "[0, 4) is missing".into(), is_damage: true };
        assert_eq!(heard(&[1], &unmatched).to_string().matches("was not loaded").count(), 1);
    }
}
