//! Brings what a dead job left on a node to the global tier (scavenging). This is for tools, after the job has died for good.
//!
//! One process on each surviving node does this on its own; the processes exchange no messages. [`collect`](collect()) lists the shards
//! that the node still has in memory segments and on its local tier, whichever ranks they belong to. [`select`](select()) chooses the
//! versions that are worth draining. [`Drain`] copies their shards into the checkpoints' folders on the global tier, with a separate
//! container for each rank, by the same steps as the library: a temporary name, digests checked on the way, fsync, rename, fsync of the
//! folder. The process that then finds that all shards of a checkpoint are there writes the manifest, by the same rule as a restart (roll
//! forward).
//!
//! # Why several may do it at once, and again
//!
//! - A shard is captured once, so all copies of it are equal. Two nodes that hold copies of the same shard write under
//!   different temporary names, and one renames its file over that of the other; either result is right. The same applies
//!   to the manifest.
//! - A temporary file is locked while it is being written. A later drain on the same host removes temporary files whose
//!   locks are free.
//! - Anything good that is already there is not written again, so a drain that was killed continues where it stopped.
//! - Names contain the generation, so nothing that a later run writes is touched. A folder that holds shards of another
//!   run under the same name (because a claim was lost) is refused.
//!
//! # Which versions
//!
//! The nodes cannot compare what they have, so each decides by a rule by which all of them take the same version, whenever there is a
//! version that all of them have: see [`select`](select()).
//!
//! # Missing ranks
//!
//! [`Standing::missing`] says which ranks' shards are neither here nor on the global tier. These shards are on other nodes, or lost. What
//! redundancy can rebuild must be decided on the basis of that list.

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

/// A shard or a parity part on this node. Only its head has been read, and only segments are kept open.
#[derive(Clone)]
pub struct Piece {
    /// The series.
    pub series: Series,
    /// The checkpoint.
    pub candidate: Candidate,
    /// The rank whose shard it is, or that kept the parity part.
    pub rank: Rank,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is a shard or a parity part.
    pub content: Content,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Slot(Arc<OldSegment>, OldSlot),
    File(Arc<dyn Tier>, String),
}

impl Piece {
    /// The tier that it is on.
    pub fn tier(&self) -> TierId {
        match &self.place {
            Place::Slot(..) => TierId::MEMORY,
            Place::File(tier, _) => tier.kind(),
        }
    }

    /// Opens the piece and checks that it is still what it was.
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
