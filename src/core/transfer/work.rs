//! The kinds of background work, and what each may wait for.
#![forbid(unsafe_code)]

use super::core::{Facts, tier_of};
use super::fetch::Request;
use super::lanes::lane_of;
use super::write::WriteJob;
use crate::affinity::Node;
use crate::affinity::keeper::Keeper;
use crate::coordination::{Ballot, Phase, Round};
use crate::redundancy::exchange::{Exchange, Job};
use crate::tier::{Means, TierId, Upload};
use std::sync::Arc;

/// The tier on which run directories usually are: work that may wait for a run directory counts as waiting for this tier.
pub(super) const RUN_DIRECTORY: TierId = TierId::GLOBAL;

/// The tier to which a phase of a checkpoint refers, if it is a tier of files that all nodes share.
pub(super) fn shared_files(phase: Phase) -> Option<TierId> {
    tier_of(phase).filter(|tier| tier.spec().means == Means::Files && tier.spec().is_shared)
}

/// A small job, done before the next piece of a write.
pub(super) enum Task {
    /// Root: all ranks have voted on a level; check the claim, write the manifest, answer.
    Decide { round: Round, ballot: Ballot },
    /// Node leader: record on a tier of the node that its level is committed.
    NodeManifest { tier: TierId, facts: Arc<Facts> },
    /// Delete what retention no longer keeps after a commit.
    Retain { tier: TierId, facts: Arc<Facts> },
    /// Populate memory for the next capture, on the NUMA node of the rank's GPU, or otherwise on the NUMA node on which the application
    /// computes.
    Prepare { bytes: u64, node: Option<Node> },
    /// Discard a file that was written during a capture that came to nothing.
    Discard(Box<dyn Upload>),
    /// Remove the segments of older runs: this run has committed something of its own.
    RemoveOldSegments,
    /// Root: renew the claim.
    Renew,
    /// Root with a run directory: write the status.
    Status,
}

/// A piece of work for a thread.
pub(super) enum Work {
    Task(Task),
    Open(u64, TierId),
    Piece(Arc<WriteJob>, usize),
    Exchange(Arc<Exchange>, Job),
    Answer(Request),
    /// Check where threads and pages are, when there is nothing else to do.
    Look(Arc<Keeper>),
}

impl Task {
    /// The tier that the task may wait for, if any: the root publishes a manifest with its decision on a tier that all nodes share. For a
    /// decision that needs nothing else from a file system, another thread looks at the claims.
    pub fn waits_for(&self) -> Option<TierId> {
        match self {
            Task::Decide { round, .. } => shared_files(round.phase),
            Task::Retain { tier, .. } | Task::NodeManifest { tier, .. } => Some(*tier),
            Task::Discard(upload) => Some(upload.kind()),
            Task::Renew | Task::Status => Some(RUN_DIRECTORY),
            Task::Prepare { .. } | Task::RemoveOldSegments => None,
        }
    }
}

impl Work {
    /// The tier that the work may wait for, if that is known.
    pub fn waits_for(&self) -> Option<TierId> {
        match self {
            Work::Task(task) => task.waits_for(),
            Work::Open(_, tier) => Some(lane_of(*tier)),
            Work::Piece(job, _) => Some(lane_of(job.tier)),
            Work::Exchange(..) | Work::Answer(_) | Work::Look(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CheckpointKey;
    use crate::tier::names::Series;

    /// In the wrong lane, work would hold up a tier whose file system is sound while another file system hangs.
    #[test]
    fn what_may_wait_for_a_file_system_is_on_its_side_and_nothing_else() {
        let decide =
            |phase| Task::Decide { round: Round { operation: 1, phase }, ballot: Ballot::default() }.waits_for();
        let level = |tier: TierId| Phase::Level(tier.index());
        let phases = [Phase::Call, level(TierId::LOCAL), level(TierId::PEERS), level(TierId::GLOBAL)];
        assert_eq!(phases.map(decide), [None, None, None, Some(TierId::GLOBAL)]);
        let retain = |tier| {
            let series = Series { job: "job".into(), group: "world".into(), name: "heat".into() };
            let facts = Facts { key: CheckpointKey::default(), series, agreement: 0, origin: None };
            Task::Retain { tier, facts: Arc::new(facts) }.waits_for()
        };
        assert_eq!([TierId::LOCAL, TierId::GLOBAL].map(retain), [Some(TierId::LOCAL), Some(TierId::GLOBAL)]);
        assert_eq!([Task::Renew, Task::Status].map(|task| task.waits_for()), [Some(TierId::GLOBAL); 2]);
        let prepare = Task::Prepare { bytes: 1, node: None };
        assert_eq!([prepare, Task::RemoveOldSegments].map(|task| task.waits_for()), [None; 2]);
    }
}
