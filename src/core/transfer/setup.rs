//! Who a rank's engine is, and what it stands on.
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

/// Who this rank's session is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Job key.
    pub job: String,
    /// Group within the job.
    pub group: String,
    /// This run.
    pub generation: Generation,
    /// Its random identity.
    pub incarnation: Incarnation,
    /// The store of its global tier, if it has one.
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

    /// This rank, and how many there are.
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

/// Called once, with whether the shard has landed.
pub type Lands = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Lands shards at some time after their captures, in the place of the threads that bring them: the simulation's.
pub type Later = Arc<dyn Fn(Lands) + Send + Sync>;

/// Everything an engine stands on.
pub struct Setup {
    /// Who we are.
    pub identity: Identity,
    /// The configuration.
    pub config: Config,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The node segment, if the memory tier is in use.
    pub memory: Option<Arc<Segment>>,
    /// The tiers in use that are written to, nearest first.
    pub tiers: Vec<Arc<dyn Tier>>,
    /// Where files lie that the program writes itself: a directory of this node, which need not be there.
    pub scratch: PathBuf,
    /// The account of where this rank's threads and pages are, unless that is off.
    pub affinity: Option<Arc<Keeper>>,
    /// Tiers that were wanted and cannot be used, and by whom not; the same on all ranks.
    pub lost: Vec<(TierId, Vec<Culprit>)>,
    /// This rank's part in the redundancy sets.
    pub protection: Protection,
    /// The run's claim (root only), until the engine has it.
    pub claim: Option<(Claims, Claim)>,
    /// What a supervisor is told, and how it asks, until the engine has it.
    pub supervision: Supervision,
    /// What is expected of failures, where something is left to the session (root only).
    pub expected: Expected,
    /// Where what checkpoints cost is written at the end (root only, with `plan.profile`).
    pub profile: Option<ProfileFile>,
    /// What an earlier session has measured, for intervals that set themselves.
    pub start: Option<Start>,
    /// No thread works for this engine: its steps are taken inside its own calls.
    pub is_inline: bool,
    /// Who lands shards whose bytes are in their slots already, as if they still had to come.
    pub later: Option<Later>,
    /// Threads write, but the coordination is stepped inside the engine's calls: bulk data moves only there.
    pub is_stepped: bool,
}

impl Setup {
    /// Now.
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

    /// The files of this node, which the others do not see.
    pub fn node_files(&self) -> Option<&Arc<dyn Tier>> {
        self.tiers.iter().find(|tier| !tier.kind().spec().is_shared)
    }

    /// Is what this run keeps for redundancy on local storage before its level counts?
    pub fn has_stored_parts(&self) -> bool {
        self.config.job.redundancy.has_stored_parts()
    }

    /// What this rank may use of node memory, if all ranks of the node use the same.
    pub fn memory_share(&self) -> u64 {
        let ranks = self.identity.node_ranks.len() as u64;
        self.memory.as_ref().map_or(0, |segment| segment.capacity() / ranks.max(1))
    }

    /// What this rank does to protect checkpoints of that name.
    pub fn role(&self, name: &str) -> Option<&Role> {
        let (scheme, _) = self.config.job.redundancy.policy_for(name);
        self.protection.role(scheme)
    }

    /// What a manifest says about a checkpoint.
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
