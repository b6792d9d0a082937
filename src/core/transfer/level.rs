//! A rank's part in a level of a checkpoint, as a trait: for files, and for the peers of a redundancy set.
//!
//! The books ([`super::core`]) say when a level begins and how it ended; an implementor does this rank's part, and answers with [`Done`].
//! Every tier in use has an implementor, except memory: a shard is in memory when its capture returns, so nothing is left to do for that
//! level.
#![forbid(unsafe_code)]

use super::core::Facts;
use super::node::NodeContainer;
use super::write::{WriteJob, Written};
use crate::format::ContainerInfo;
use crate::segment::SlotId;
use crate::tier::{TierError, TierId};
use std::sync::Arc;

/// The result of a level's work, for the books.
pub(super) enum Done {
    /// This rank's part has ended.
    Written { operation: u64, tier: TierId, written: Result<Vec<ContainerInfo>, String> },
    /// This rank keeps these parts for others.
    Kept { operation: u64, parts: Vec<SlotId> },
}

/// An opened write.
pub(super) enum Opened {
    /// It is to be run piece by piece.
    Job(Box<WriteJob>),
    /// Nothing had to be run.
    Done(Written),
    /// Another rank of the node writes this rank's shard as well.
    Waits(NodeContainer),
    /// The checkpoint is gone.
    Gone,
}

/// This rank's part of a level.
///
/// [`LevelWork::start`], [`LevelWork::stop`] and [`LevelWork::committed`] are called in the middle of a decision: they do no I/O and send
/// nothing, but queue the work to be done.
pub(super) trait LevelWork: Send + Sync {
    /// The level is wanted: begins this rank's part.
    fn start(&self, facts: &Facts) -> Vec<Done>;

    /// Opens the write that was queued for the level.
    ///
    /// # Blocking
    /// On the tier.
    ///
    /// # Errors
    /// [`TierError`]: this rank does not do its part.
    fn open(&self, operation: u64) -> Result<Opened, TierError>;

    /// A write that was opened has ended.
    fn written(&self, operation: u64, written: Written) -> Vec<Done>;

    /// The result of this rank's part is not needed any more.
    fn stop(&self, operation: u64);

    /// All ranks have done their part.
    fn committed(&self, facts: &Arc<Facts>);
}
