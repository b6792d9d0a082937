//! The container that the ranks of a node write together.
//!
//! Every rank posts the length of its shard on its board in the node segment before it votes. When a checkpoint is
//! agreed on, every rank therefore knows the lengths of all shards of its node and computes the same layout without a
//! message. Ranks count their arrivals; the last one publishes; a rank that fails says so before it arrives, so that
//! nobody publishes a container with a hole.

use crate::base::log;
use crate::base::{CheckpointKey, Rank};
use crate::format::ContainerEntry;
use crate::segment::Segment;
use std::sync::Arc;

const PUBLISHED: u64 = 1;
const FAILED: u64 = 2;

/// One node's container of one checkpoint.
#[derive(Clone)]
pub struct NodeContainer {
    segment: Arc<Segment>,
    operation: u64,
    members: u32,
}

impl NodeContainer {
    /// Says how long this rank's shard is; 0: it does not lie in the segment, and the rank writes alone.
    pub fn post(segment: &Segment, operation: u64, length: u64) {
        if !segment.post(operation, length) {
            log::error!("event=board-entry-lost operation={operation}");
        }
    }

    /// The container that `rank` takes part in, and all its entries; `None` if it is not one of them.
    ///
    /// `ranks` are the ranks of the node in the order of their node ranks. `None` also if some rank has not posted,
    /// which cannot be after an agreement; the rank then writes alone.
    pub fn of(
        segment: &Arc<Segment>,
        key: CheckpointKey,
        rank: Rank,
        ranks: &[Rank],
    ) -> Option<(NodeContainer, Vec<ContainerEntry>)> {
        let mut offset = 0;
        let mut entries = Vec::new();
        for (node_rank, member) in ranks.iter().enumerate() {
            let length = segment.read(node_rank as u32, key.operation)?;
            if length > 0 {
                entries.push(ContainerEntry { key, rank: *member, offset, length });
                offset += length;
            }
        }
        let members = entries.len() as u32;
        let takes_part = entries.iter().any(|entry| entry.rank == rank);
        takes_part.then(|| (NodeContainer { segment: segment.clone(), operation: key.operation, members }, entries))
    }

    /// This rank's slice is durable. True for the last rank of the node.
    pub fn arrive(&self) -> bool {
        self.segment.arrive(self.operation).is_some_and(|before| before + 1 == self.members)
    }

    /// This rank's slice is not going to be there; also counts as arrival. True for the last rank of the node.
    pub fn fail(&self) -> bool {
        self.segment.set_outcome(self.operation, FAILED);
        self.arrive()
    }

    /// Has some rank failed?
    pub fn has_failed(&self) -> bool {
        self.segment.outcome(self.operation) == Some(FAILED)
    }

    /// The container has its final name, or could not get it.
    pub fn settle(&self, published: bool) {
        self.segment.set_outcome(self.operation, if published { PUBLISHED } else { FAILED });
    }

    /// How it ended: `None` while ranks are still writing.
    pub fn outcome(&self) -> Option<bool> {
        self.segment.outcome(self.operation).map(|outcome| outcome == PUBLISHED)
    }
}
