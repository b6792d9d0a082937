//! The bytes of this rank's captures, for as long as some level needs them.
#![forbid(unsafe_code)]

use super::core::Facts;
use crate::base::sync::Lock;
use crate::coordination::Payload;
use crate::segment::SlotId;
use crate::tier::source::Source;
use crate::tier::{TierId, TierSet, Upload};
use std::collections::HashMap;
use std::sync::Arc;

/// Where a capture has put its shard.
pub(super) struct Placed {
    /// The bytes of the shard.
    pub source: Source,
    /// The slot that contains the shard, if a slot does.
    pub slot: Option<SlotId>,
    /// The file that was written during the capture, if there is one: durable under its temporary name.
    pub direct: Option<Box<dyn Upload>>,
    /// The tier that has the shard: memory, but only if there is room for another shard, which makes memory count as a level; or the tier
    /// to which the shard was written during the capture.
    pub on: TierSet,
}

impl Placed {
    /// What this rank reports to the others with its vote.
    pub fn payload(&self) -> Payload {
        Payload::Bits { all: self.on.bits(), any: self.on.bits() }
    }
}

/// A shard that is kept for its levels.
struct Shard {
    facts: Arc<Facts>,
    source: Source,
    /// The file that was written during the capture, until it is published.
    direct: Option<Box<dyn Upload>>,
}

/// The shards of the checkpoints that are under way, by operation.
#[derive(Default)]
pub(super) struct Shards(Lock<HashMap<u64, Shard>>);

impl Shards {
    pub fn put(&self, facts: Arc<Facts>, placed: Placed) {
        let Placed { source, direct, .. } = placed;
        self.0.lock().insert(facts.key.operation, Shard { facts, source, direct });
    }

    /// The checkpoint of the shard, and where its bytes are.
    pub fn get(&self, operation: u64) -> Option<(Arc<Facts>, Source)> {
        self.0.lock().get(&operation).map(|shard| (shard.facts.clone(), shard.source.clone()))
    }

    /// The file that was written on that tier during the capture, to be published.
    pub fn take_direct(&self, operation: u64, tier: TierId) -> Option<Box<dyn Upload>> {
        let mut shards = self.0.lock();
        let direct = &mut shards.get_mut(&operation)?.direct;
        direct.take_if(|upload| upload.kind() == tier)
    }

    /// Nobody needs the shard any more. Returns the file that was written but never published, which is to be discarded.
    pub fn forget(&self, operation: u64) -> Option<Box<dyn Upload>> {
        let gone = self.0.lock().remove(&operation);
        gone.and_then(|shard| shard.direct)
    }
}
