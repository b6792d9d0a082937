//! What a restart is asked for, and why it ended without a restored state.

use crate::base::CheckpointKey;
use crate::base::text::{list, short};
use crate::coordination::Culprit;
use crate::recovery::load_error::LoadError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the application asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The newest version that all ranks can restore, on the lineage of the newest run.
    Newest,
    /// The version with this number, even if a later run left it behind.
    Version(u64),
}

/// An attempt that did not count, and why.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The ranks that caused this, and why.
    pub culprits: Vec<Culprit>,
}

/// Why a restart ended without a restored state. The same on all ranks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RestartError {
    /// There were checkpoints, but none of them can be restored.
    #[error("nothing can be restored: {}", describe_failure(tried, damage, *left_behind))]
    NothingRestorable {
        /// Attempts, newest first.
        tried: Vec<Tried>,
        /// The damage that ranks found.
        damage: Vec<Culprit>,
        /// Complete versions that a later run left behind on purpose.
        left_behind: usize,
    },
    /// The checkpoint was taken by a different number of ranks, and has regions that belong to its ranks.
    #[error("{}", bound(*version, *found, *ours, regions))]
    RankBound {
        /// Its version.
        version: u64,
        /// The number of ranks that took it.
        found: u32,
        /// The number of ranks of this run.
        ours: u32,
        /// The regions.
        regions: Vec<String>,
    },
    /// The version that was asked for does not exist, or does not exist on all ranks.
    #[error("version {version} cannot be restored by all ranks; versions that can: {}", shown(present))]
    NoSuchVersion {
        /// The version.
        version: u64,
        /// Versions that can be restored.
        present: Vec<u64>,
    },
    /// A rank disagreed with the checkpoint or with the other ranks' call.
    #[error("the restart was ended by {}", join(culprits))]
    Refused {
        /// The ranks, and why they disagreed.
        culprits: Vec<Culprit>,
    },
    /// The session has failed.
    #[error("{reason}")]
    Session {
        /// Why.
        reason: String,
    },
}

/// Why a rank has not loaded what was elected, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unloaded {
    /// A copy is damaged: other copies of the version are tried, then older versions.
    Damaged(String),
    /// The program rejects the version. All copies of it are equal, so older versions are tried.
    Rejected(String),
    /// No other version would help, so the restart ends.
    Refused(String),
}

impl Unloaded {
    /// What this error means for the restart.
    pub fn by(error: &LoadError) -> Unloaded {
        match error.is_damage() {
            true => Unloaded::Damaged(error.to_string()),
            false => Unloaded::Refused(error.to_string()),
        }
    }
}

impl fmt::Display for Unloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unloaded::Damaged(why) | Unloaded::Refused(why) => f.write_str(why),
            Unloaded::Rejected(why) => write!(f, "rejected by the program: {why}"),
        }
    }
}

/// The maximum number of versions that an error names: the newest ones.
const VERSIONS_MAX: usize = 10;

/// The maximum number of regions that an error names.
const REGIONS_MAX: usize = 6;

fn bound(version: u64, found: u32, ours: u32, regions: &[String]) -> String {
    let named = list(regions.iter().map(|name| format!("{:?}", short(name))), REGIONS_MAX, ", ");
    format!(
        "version {version} was taken by {found} ranks and this run has {ours}, but it can only be restored on {found}: {named} belong to the \
         ranks that saved them. Start the program on {found} ranks, or ask for another version by its number. Versions that are taken \
         from now on can be restored on any number of ranks if arrays are saved with save_on, what all ranks share with shared, and what \
         is each rank's own with per_rank"
    )
}

fn shown(ascending: &[u64]) -> String {
    if ascending.is_empty() {
        return "none".into();
    }
    list(ascending.iter().rev().map(u64::to_string), VERSIONS_MAX, ", ")
}

pub(super) fn join(culprits: &[Culprit]) -> String {
    culprits.iter().map(Culprit::to_string).collect::<Vec<_>>().join("; ")
}

pub(super) fn describe_failure(tried: &[Tried], damage: &[Culprit], left_behind: usize) -> String {
    let mut parts: Vec<String> = tried.iter().take(4).map(|t| format!("{} ({})", t.key, join(&t.culprits))).collect();
    if !damage.is_empty() {
        parts.push(format!("found unreadable: {}", join(damage)));
    }
    if left_behind > 0 {
        parts.push(format!("{left_behind} older versions were left behind by a later run; ask for one by its number"));
    }
    if parts.is_empty() {
        parts.push(
            "checkpoints were committed, but the shards of some ranks are neither on a node of this run nor on the global tier \
             (the root's log names them: event=passed-over)"
                .into(),
        );
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;

    fn culprit(retry: bool) -> Culprit {
        Culprit { retry, ..Culprit::of(Rank(2), "a flipped bit") }
    }

    #[test]
    fn an_end_without_anything_restored_says_why() {
        let text = |tried: &[Tried], damage: &[Culprit], left| describe_failure(tried, damage, left);
        assert!(text(&[], &[], 0).contains("event=passed-over"));
        let attempt = Tried { key: CheckpointKey::default(), culprits: vec![culprit(true), culprit(true)] };
        let told = text(&[attempt], &[], 0);
        assert!(
            told.contains("rank 2: a flipped bit; rank 2: a flipped bit") && !told.contains("passed-over"),
            "{told}"
        );
        assert!(!told.contains("unreadable") && !told.contains("left behind"), "{told}");
        assert!(text(&[], &[culprit(true)], 0).contains("found unreadable: rank 2: a flipped bit"));
        assert!(text(&[], &[], 2).starts_with("2 older versions were left behind"));
    }
}
