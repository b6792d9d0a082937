//! Identities: ranks (who), generations, versions and operations (when), and levels (how safe).
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::fmt;

/// A rank within a session's group, which is the communicator on which the session was opened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank that decides for the group.
    pub const ROOT: Rank = Rank(0);

    /// The rank as an index into tables by rank.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The number of a run of a job on a store. It grows by at least one with every run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, Default)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The random identity of a run. It distinguishes two runs that accidentally have the same generation number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Incarnation(pub [u8; 16]);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Incarnation {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !text.is_ascii() {
            return Err(());
        }
        let mut bytes = [0u8; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| ())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ())?;
        }
        Ok(Incarnation(bytes))
    }
}

/// The 64-bit hash (XXH3) by which names and calls are compared. Slots of the segment carry the hash of their series, segment headers those
/// of job and group, and ballots that of the call. Every writer and every reader of such a hash uses this function.
pub fn text_hash(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// Identifies a checkpoint of one name. Keys are ordered by generation, then version, then operation.
///
/// The operation number is the position of the collective call within its session. It makes the key unique if an application takes the same
/// version twice within one run, so that the second attempt never overwrites the files of the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, Default)]
pub struct CheckpointKey {
    /// The run that took the checkpoint.
    pub generation: Generation,
    /// The application's number for the checkpoint, for example the time step.
    pub version: u64,
    /// The position of the collective operation within that run.
    pub operation: u64,
    /// The run's random identity.
    pub incarnation: Incarnation,
}

impl CheckpointKey {
    /// The folder name that this checkpoint has on every directory tier.
    pub fn folder(&self) -> String {
        format!("g{:06}-v{:010}-o{:06}", self.generation.0, self.version, self.operation)
    }

    /// Reads a folder name back, and returns generation, version and operation. (A name holds no incarnation.)
    pub fn parse_folder(name: &str) -> Option<(Generation, u64, u64)> {
        let mut parts = name.split('-');
        let generation = parts.next()?.strip_prefix('g')?.parse().ok()?;
        let version = parts.next()?.strip_prefix('v')?.parse().ok()?;
        let operation = parts.next()?.strip_prefix('o')?.parse().ok()?;
        parts.next().is_none().then_some((Generation(generation), version, operation))
    }
}

impl fmt::Display for CheckpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of generation {} (operation {})", self.version, self.generation, self.operation)
    }
}

/// How a stretch of a run, from one restart to the next, began: which checkpoint was restored, and when.
///
/// A run may go back to the same checkpoint twice. The checkpoints that it took in between are then left behind, although they descend from
/// that checkpoint, too. Only the operation of the restart distinguishes the two stretches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The run that took the restored checkpoint.
    pub generation: Generation,
    /// The version of that checkpoint.
    pub version: u64,
    /// The operation of that checkpoint within its run.
    pub operation: u64,
    /// The last operation of the restart, within the run that made the restart.
    pub restart: u64,
}

/// What a committed checkpoint survives. Levels are ordered: a higher level survives more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Level {
    /// The application's next write can no longer damage the captured data. The checkpoint survives nothing yet.
    Captured,
    /// The death of processes: all shards are in node memory.
    Process,
    /// A reboot of the node, if its disk survives: all shards are on node-local storage.
    NodeReboot,
    /// The loss of a node: redundancy sets cover all shards.
    NodeLoss,
    /// The loss of the whole machine: all shards are on the global tier.
    System,
}

impl Level {
    /// The levels that are committed by a vote, lowest first.
    pub const VOTED: [Level; 4] = [Level::Process, Level::NodeReboot, Level::NodeLoss, Level::System];

    /// The name used in logs, error messages and `--json` output.
    pub fn name(self) -> &'static str {
        match self {
            Level::Captured => "captured",
            Level::Process => "process",
            Level::NodeReboot => "node-reboot",
            Level::NodeLoss => "node-loss",
            Level::System => "system",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_read_back_and_sort_like_keys() {
        let key = |g, v, o| CheckpointKey {
            generation: Generation(g),
            version: v,
            operation: o,
            incarnation: Incarnation::default(),
        };
        assert_eq!(CheckpointKey::parse_folder(&key(3, 70, 9).folder()), Some((Generation(3), 70, 9)));
        assert!(key(1, 99, 9).folder() < key(2, 1, 1).folder());
        assert_eq!(CheckpointKey::parse_folder("g1-v2"), None);
        assert_eq!(CheckpointKey::parse_folder("g1-v2-o3-x"), None);
    }

    #[test]
    fn incarnations_read_back_and_refuse_other_text() {
        let id = Incarnation([7; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("zz".parse::<Incarnation>().is_err());
        assert!("é".repeat(16).parse::<Incarnation>().is_err());
    }
}
