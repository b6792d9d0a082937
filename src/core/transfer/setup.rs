//! The identity of a rank's engine, and everything that the engine is based on.
#![forbid(unsafe_code)]

use super::core::Facts;
use super::profile::ProfileFile;
use super::status::Supervision;
use crate::affinity::keeper::Keeper;
use crate::base::{CheckpointKey, Clock, Generation, Incarnation, Level, Rank};
use crate::config::Config;
use crate::coordination::Culprit;
use crate::format::{ContainerInfo, Manifest, SourceKey};
use crate::policy::tuning::{Expected, Start};
use crate::redundancy::Protection;
use crate::redundancy::exchange::Role;
use crate::segment::Segment;
use crate::tier::claims::{Claim, Claims};
use crate::tier::names::Series;
use crate::tier::{Tier, TierId, TierSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The identity of this rank's session.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Job key.
    pub job: String,
    /// Group within the job.
    pub group: String,
    /// This run.
    pub generation: Generation,
    /// The run's random identity.
    pub incarnation: Incarnation,
    /// The store of the job's global tier, if there is one.
    pub store: Option<Incarnation>,
    /// This rank.
    pub rank: Rank,
    /// Ranks in the group.
    pub size: u32,
    /// The ranks of this node, ascending.
    pub node_ranks: Vec<Rank>,
}

impl Identity {
    /// The series of that name.
    pub fn series(&self, name: &str) -> Series {
        Series { job: self.job.clone(), group: self.group.clone(), name: name.into() }
    }

    /// This rank, and the number of ranks.
    pub fn place(&self) -> (Rank, u32) {
        (self.rank, self.size)
    }

    /// Is this the node's first rank?
    pub fn is_node_leader(&self) -> bool {
        self.node_ranks.first() == Some(&self.rank)
    }

    /// Is this the root?
    pub fn is_root(&self) -> bool {
        self.rank == Rank::ROOT
    }

    /// The key of a checkpoint of this run.
    pub fn key(&self, version: u64, operation: u64) -> CheckpointKey {
        CheckpointKey { generation: self.generation, version, operation, incarnation: self.incarnation }
    }
}

/// Called once, with the outcome of the landing.
pub type Lands = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Lands shards some time after their captures, in place of the threads that otherwise copy them. Used by the simulation.
pub type Later = Arc<dyn Fn(Lands) + Send + Sync>;

/// Everything that an engine is based on.
pub struct Setup {
    /// The identity of this rank.
    pub identity: Identity,
    /// The configuration.
    pub config: Config,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The node segment, if the memory tier is in use.
    pub memory: Option<Arc<Segment>>,
    /// The tiers in use that are written to, nearest first.
    pub tiers: Vec<Arc<dyn Tier>>,
    /// The directory of the files that the program writes itself: a directory on this node, which need not exist.
    pub scratch: PathBuf,
    /// The record of where this rank's threads and pages are, unless that is off.
    pub affinity: Option<Arc<Keeper>>,
    /// Tiers that were wanted but cannot be used, each with the ranks that cannot use it; the same on all ranks.
    pub lost: Vec<(TierId, Vec<Culprit>)>,
    /// This rank's part in the redundancy sets.
    pub protection: Protection,
    /// The run's claim (root only), until the engine takes it.
    pub claim: Option<(Claims, Claim)>,
    /// What a supervisor is told, and how it makes requests, until the engine takes it.
    pub supervision: Supervision,
    /// The expected failures, if anything is left to the session (root only).
    pub expected: Expected,
    /// The file to which the costs of checkpoints are written at the end (root only, with `plan.profile`).
    pub profile: Option<ProfileFile>,
    /// The measurements of an earlier session, for intervals that the session chooses itself.
    pub start: Option<Start>,
    /// No thread works for this engine: its steps are performed inside its own calls.
    pub is_inline: bool,
    /// Lands shards whose bytes are already in their slots, as if the bytes were still on their way.
    pub later: Option<Later>,
    /// Threads write, but the coordination is stepped inside the engine's calls, and bulk data moves only there.
    pub is_stepped: bool,
}

impl Setup {
    /// The time now.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.identity.rank
    }

    /// A tier that is written to, if it is in use.
    pub fn tier(&self, tier: TierId) -> Option<&Arc<dyn Tier>> {
        self.tiers.iter().find(|found| found.kind() == tier)
    }

    /// The tiers in use that are written to.
    pub fn written(&self) -> TierSet {
        self.tiers.iter().map(|tier| tier.kind()).collect()
    }

    /// The tier of files of this node, which other nodes do not see.
    pub fn node_files(&self) -> Option<&Arc<dyn Tier>> {
        self.tiers.iter().find(|tier| !tier.kind().spec().is_shared)
    }

    /// Must the parts that this run keeps for redundancy be on local storage before their level counts?
    pub fn has_stored_parts(&self) -> bool {
        self.config.job.redundancy.has_stored_parts()
    }

    /// How much node memory this rank may use if all ranks of the node use the same amount.
    pub fn memory_share(&self) -> u64 {
        let ranks = self.identity.node_ranks.len() as u64;
        self.memory.as_ref().map_or(0, |segment| segment.capacity() / ranks.max(1))
    }

    /// What this rank does to protect checkpoints of that name.
    pub fn role(&self, name: &str) -> Option<&Role> {
        let (scheme, _) = self.config.job.redundancy.policy_for(name);
        self.protection.role(scheme)
    }

    /// The manifest of a checkpoint.
    pub fn manifest(
        &self,
        of: &Facts,
        level: Level,
        containers: Vec<ContainerInfo>,
        sources: Vec<SourceKey>,
    ) -> Manifest {
        Manifest {
            job: of.series.job.clone(),
            group: of.series.group.clone(),
            name: of.series.name.clone(),
            key: of.key,
            agreement: of.agreement,
            group_size: self.identity.size,
            origin: of.origin,
            level,
            containers,
            sources,
        }
    }
}
