//! Bringing what a dead job left on a node to the global tier (scavenging): for tools, after the job has died for good.
//!
//! One process per surviving node does this on its own; the processes exchange no message. [`collect`](collect()) lists the shards that the
//! node still has: in memory segments and on its local tier, of whatever ranks. [`select`](select()) chooses the versions that are
//! worth it. [`Drain`] copies their shards into the folders that the global tier has for them, a separate container for
//! each rank, by the same steps as the library: temp name, digests checked on the way, fsync, rename, fsync of the folder.
//! Whoever then finds all shards of a checkpoint present writes its manifest, by the rule that a restart uses (roll forward).
//!
//! # Why several may do it at once, and again
//!
//! - A shard is captured once, so all copies of it are equal. Two nodes that hold a copy of the same one write under
//!   different temporary names and rename over each other; either result is right. The same goes for the manifest.
//! - A temp file is locked while it is written. A later drain on the same host removes those whose lock is free.
//! - Anything that is already there, and good, is not written again: a drain that was killed continues where it stopped.
//! - Names contain the generation, so nothing that a later run writes is touched. A folder that holds shards of another
//!   run under the same name (a lost claim) is refused.
//!
//! # Which versions
//!
//! The nodes cannot compare what they have, so each decides by a rule that makes all of them take the same version whenever
//! one exists that all have: see [`select`](select()).
//!
//! # Missing ranks
//!
//! [`Standing::missing`] says whose shards are neither here nor on the global tier. They are on other nodes, or lost; what
//! redundancy can rebuild has to be decided on that list.

mod collect;
mod copy;
mod mend;
mod select;

pub use collect::{Collected, Damage, SegmentSeen, collect};
pub use copy::{Drain, Drained, Fate, Standing, host_tag};
pub use mend::{Lacking, Parts};
pub use select::{Chosen, Which, select};

use super::discover::candidate_of;
use crate::base::Rank;
use crate::catalog::Candidate;
use crate::format::Content;
use crate::format::shard::Head;
use crate::segment::{OldBytes, OldSegment, OldSlot};
use crate::tier::names::Series;
use crate::tier::source::{MemoryShard, Source};
use crate::tier::{Tier, TierError, TierId};
use std::sync::Arc;

/// A shard or a parity part on this node. Only its head has been read; nothing is kept open but segments.
#[derive(Clone)]
pub struct Piece {
    /// Which series.
    pub series: Series,
    /// Which checkpoint.
    pub candidate: Candidate,
    /// Whose data; who kept the part.
    pub rank: Rank,
    /// Its length.
    pub bytes: u64,
    /// Which of the two it is.
    pub content: Content,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Slot(Arc<OldSegment>, OldSlot),
    File(Arc<dyn Tier>, String),
}

impl Piece {
    /// Which tier it rests on.
    pub fn tier(&self) -> TierId {
        match &self.place {
            Place::Slot(..) => TierId::MEMORY,
            Place::File(tier, _) => tier.kind(),
        }
    }

    /// Opens it and checks that it is still what it was.
    ///
    /// # Errors
    /// [`TierError`] of this piece's tier.
    pub fn open(&self) -> Result<Source, TierError> {
        let source = match &self.place {
            Place::Slot(segment, slot) => {
                Source::Memory(MemoryShard::open_any(segment.path(), OldBytes::new(segment, slot))?)
            }
            Place::File(tier, file) => {
                Source::File(tier.open_any(&self.series, &self.candidate.key.folder(), file, self.rank)?)
            }
        };
        let Head { header, meta, .. } = source.head();
        let Series { job, group, name } = &self.series;
        let is_it = (&meta.job, &meta.group, &meta.name) == (job, group, name)
            && candidate_of(source.head()) == self.candidate
            && (header.rank, header.content) == (self.rank, self.content);
        if !is_it {
            return Err(TierError::Foreign {
                tier: self.tier(),
                path: source.path().to_owned(),
                found: format!("rank {} of {}/{}/{} {}", header.rank, meta.job, meta.group, meta.name, header.key),
                expected: format!("rank {} of {job}/{group}/{name} {}", self.rank, self.candidate.key),
            });
        }
        Ok(source)
    }
}
