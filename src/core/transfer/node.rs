//! The container that the ranks of a node write together.
//!
//! Every rank posts the length of its shard on its board in the node segment before it votes. When a checkpoint is agreed on, every rank
//! therefore knows the lengths of all shards of its node and computes the same layout without a message. If each rank writes its own slice,
//! the ranks count their arrivals, and the last one publishes. A rank that fails says so before it arrives, so that nobody publishes a
//! container with a hole. If one rank writes for all ([`Gathering::ByOne`]), the first rank does so, and says on its board how the write
//! ended.

use crate::base::log;
use crate::base::{CheckpointKey, Rank};
use crate::format::ContainerEntry;
use crate::segment::Segment;
use crate::tier::{Gathering, TierId};
use std::sync::Arc;

const PUBLISHED: u64 = 1;
const FAILED: u64 = 2;
/// A rank's word on its board: the length of its shard in these low bits, and above them two bits for each tier to which the rank has
/// written for all.
const LENGTH_BITS: u32 = 48;

fn length_of(word: u64) -> u64 {
    word & ((1 << LENGTH_BITS) - 1)
}

/// One node's container of one checkpoint.
#[derive(Clone)]
pub struct NodeContainer {
    segment: Arc<Segment>,
    operation: u64,
    members: u32,
    /// The node rank that writes for all, and where its word says how the write ended.
    by_one: Option<(u32, u32)>,
}

impl NodeContainer {
    /// Posts the length of this rank's shard. 0 means that the shard is not in the segment, so that the rank writes alone.
    pub fn post(segment: &Segment, operation: u64, length: u64) {
        if !segment.post(operation, length) {
            log::error!("event=board-entry-lost operation={operation}");
        }
    }

    /// The container on a tier in which `rank` takes part, and all entries of the container; `None` if the rank is not among them.
    ///
    /// `ranks` are the ranks of the node in the order of their node ranks. Also `None` if some rank has not posted,
    /// which is impossible after an agreement; the rank then writes alone.
    pub fn of(
        segment: &Arc<Segment>,
        tier: TierId,
        key: CheckpointKey,
        rank: Rank,
        ranks: &[Rank],
    ) -> Option<(NodeContainer, Vec<ContainerEntry>)> {
        let (mut offset, mut first) = (0, None);
        let mut entries = Vec::new();
        for (node_rank, member) in (0..).zip(ranks) {
            let length = length_of(segment.read(node_rank, key.operation)?);
            if length > 0 {
                entries.push(ContainerEntry { key, rank: *member, offset, length });
                offset += length;
                first.get_or_insert(node_rank);
            }
        }
        let shift = LENGTH_BITS + 2 * u32::from(tier.index());
        let by_one = first.filter(|_| tier.spec().gathering == Gathering::ByOne).map(|first| (first, shift));
        let members = entries.len() as u32;
        let takes_part = entries.iter().any(|entry| entry.rank == rank);
        let node = NodeContainer { segment: segment.clone(), operation: key.operation, members, by_one };
        takes_part.then_some((node, entries))
    }

    /// This rank's slice is durable. True for the last rank of the node.
    pub fn arrive(&self) -> bool {
        self.segment.arrive(self.operation).is_some_and(|before| before + 1 == self.members)
    }

    /// This rank's slice will never exist; this also counts as an arrival. True for the last rank of the node.
    pub fn fail(&self) -> bool {
        self.segment.set_outcome(self.operation, FAILED);
        self.arrive()
    }

    /// Has some rank failed?
    pub fn has_failed(&self) -> bool {
        self.segment.outcome(self.operation) == Some(FAILED)
    }

    /// The container has received its final name, or could not be renamed.
    pub fn settle(&self, published: bool) {
        let outcome = if published { PUBLISHED } else { FAILED };
        match self.by_one {
            None => _ = self.segment.set_outcome(self.operation, outcome),
            // Only the rank that writes has anything to report.
            Some((first, shift)) if first == self.segment.node_rank() => {
                let word = self.segment.read(first, self.operation).unwrap_or_default();
                NodeContainer::post(&self.segment, self.operation, word | outcome << shift);
            }
            Some(_) => {}
        }
    }

    /// How the write of the container ended: `None` while ranks are still writing.
    pub fn outcome(&self) -> Option<bool> {
        let outcome = match self.by_one {
            None => self.segment.outcome(self.operation)?,
            Some((first, shift)) => self.segment.read(first, self.operation)? >> shift & 3,
        };
        (outcome != 0).then_some(outcome == PUBLISHED)
    }
}
