//! Opens those copies of a checkpoint's shards that one rank can reach, for the attempt that loads the checkpoint.

use super::access::{Attempted, Copies, ShardAccess};
use super::discover::Found;
use super::election::Elected;
use super::remote::Peers;
use crate::base::Rank;
use crate::format::Manifest;
use crate::redundancy::holding::Alternative;
use crate::tier::Tier;
use crate::transfer::Engine;
use std::sync::Arc;

/// What one rank can open of a checkpoint.
pub struct Opener {
    engine: Arc<Engine>,
    attempted: Attempted,
    elected: Elected,
    found: Arc<Found>,
}

impl Opener {
    /// An opener for the elected checkpoint, with what this rank has found of it.
    pub fn new(engine: &Arc<Engine>, attempted: Attempted, elected: &Elected, found: &Arc<Found>) -> Opener {
        Opener { engine: engine.clone(), attempted, elected: elected.clone(), found: found.clone() }
    }

    /// The properties that are the same for all shards.
    pub fn attempted(&self) -> &Attempted {
        &self.attempted
    }

    /// The checkpoint that is loaded.
    pub fn elected(&self) -> &Elected {
        &self.elected
    }

    /// The engine that moves messages.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// All ways to a shard whose home this rank is.
    pub fn home(&self, shard: Rank) -> Copies {
        self.with(shard, self.elected.ways.get(&shard).cloned().unwrap_or_default())
    }

    /// The copies of a shard that this rank has found, and the ways to other nodes that the shard's home knows.
    pub fn with(&self, shard: Rank, ways: Vec<Alternative>) -> Copies {
        let own = self.found.copies(&self.elected.candidate, shard).to_vec();
        let (series, key) = (self.attempted.series.clone(), self.attempted.key);
        let peers = Peers::new(self.engine.clone(), series, key, shard, ways);
        Copies { own, peers: Some(peers), ..self.shared() }
    }

    /// The copies of a shard that this rank can read without any other rank: on its node, and on tiers that all nodes share.
    ///
    /// # Blocking
    /// On the local tier, if node memory has none.
    pub fn near(&self, shard: Rank) -> Copies {
        let (series, tiers) = (&self.attempted.series, self.engine.tiers());
        let own = self.found.on_node((series, tiers), &self.elected.candidate, shard);
        Copies { own, ..self.shared() }
    }

    /// The rank that reads a shard whose home this rank is, if only other nodes have copies, and the ways that are left if the chosen copy
    /// is damaged.
    pub fn lender(&self, shard: Rank) -> Option<(Rank, Vec<Alternative>)> {
        if self.found.has(&self.elected.candidate, shard) {
            return None;
        }
        let mut ways = self.elected.ways.get(&shard)?.clone();
        let is_copy = |way: &Alternative| matches!(way, Alternative::Copy { .. });
        let copies = ways.iter().filter(|way| is_copy(way)).count();
        // Copies come first. The choice depends on the shard, so that one node does not read all of them.
        let chosen = (shard.0 as usize).checked_rem(copies)?;
        match ways.remove(chosen) {
            Alternative::Copy { holder, .. } => Some((holder, ways)),
            Alternative::Rebuild { .. } => None,
        }
    }

    /// Access to a shard through these copies.
    pub fn access(&self, shard: Rank, copies: Copies) -> ShardAccess {
        ShardAccess::new(shard, &self.attempted, copies)
    }

    fn shared(&self) -> Copies {
        let engine = &self.engine;
        let shared = self.elected.manifests.iter();
        let shared: Vec<(Arc<dyn Tier>, Manifest)> =
            shared.filter_map(|(tier, manifest)| Some((engine.tier(*tier)?.clone(), manifest.clone()))).collect();
        Copies { own: Vec::new(), peers: None, shared, tiers: engine.tiers().to_vec() }
    }
}
