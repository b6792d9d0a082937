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

/// Where a capture has put the shard.
pub(super) struct Placed {
    /// Its bytes.
    pub source: Source,
    /// The slot that it lies in, if it lies in one.
    pub slot: Option<SlotId>,
    /// Written during the capture, durable under its temp name.
    pub direct: Option<Box<dyn Upload>>,
    /// The tier that has it: memory only with room for another one, which makes it a level; or the one to which it was written during the
    /// capture.
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
    /// Not yet published.
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

    /// Whose it is, and where it lies.
    pub fn get(&self, operation: u64) -> Option<(Arc<Facts>, Source)> {
        self.0.lock().get(&operation).map(|shard| (shard.facts.clone(), shard.source.clone()))
    }

    /// The file that was written on that tier during the capture, to be published.
    pub fn take_direct(&self, operation: u64, tier: TierId) -> Option<Box<dyn Upload>> {
        let mut shards = self.0.lock();
        let direct = &mut shards.get_mut(&operation)?.direct;
        direct.take_if(|upload| upload.kind() == tier)
    }

    /// Nobody needs it any more. What was written of it and never published is to be discarded.
    pub fn forget(&self, operation: u64) -> Option<Box<dyn Upload>> {
        let gone = self.0.lock().remove(&operation);
        gone.and_then(|shard| shard.direct)
    }
}
