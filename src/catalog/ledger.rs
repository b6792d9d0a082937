//! What lies where, and what of it may go. Pure.
#![forbid(unsafe_code)]

use super::lineage::Stretches;
use crate::base::{CheckpointKey, Generation, Origin};
use crate::config::LevelPolicy;

/// A checkpoint folder on a directory tier, as retention sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Generation of the run that made it.
    pub generation: Generation,
    /// Version.
    pub version: u64,
    /// Operation.
    pub operation: u64,
    /// Is it known to be committed at this tier (a manifest, or a verdict heard by this session)?
    pub committed: bool,
}

impl Folder {
    pub(super) fn order(&self) -> (Generation, u64, u64) {
        (self.generation, self.version, self.operation)
    }
}

/// The newest committed version of earlier runs, if run `ours` goes on from none of them: it has started the series over.
pub fn started_over(folders: &[Folder], ours: Generation, stretches: &Stretches) -> Option<(Generation, u64)> {
    let earlier = folders.iter().filter(|folder| folder.committed && folder.generation < ours);
    let newest = earlier.map(|folder| (folder.generation, folder.version)).max();
    newest.filter(|_| !stretches.inherits(ours))
}

/// Which folders may be deleted now that `committed` (one of this run's checkpoints) is committed at this tier.
///
/// Kept: everything of newer generations (we would be superseded), everything of this run from the committed
/// operation on (in flight), the newest `keep_last` committed ones up to and including it, every committed one
/// whose version is a multiple of `keep_every`, and committed ones of the run that this one goes on from, and of runs
/// after it, that are not our ancestors (`stretches` says what this run restored; runs before that one all count as
/// ancestors). All else is deleted: superseded versions, and incomplete leftovers of this run and of runs before it. Since `committed` itself is always kept, the newest restorable version never goes.
pub fn retention(
    folders: &[Folder],
    committed: &CheckpointKey,
    stretches: &Stretches,
    policy: &LevelPolicy,
) -> Vec<Folder> {
    let ours = committed.generation;
    let is_current = |f: &Folder| f.generation == ours && f.operation == committed.operation;
    let in_flight = |f: &Folder| f.generation > ours || (f.generation == ours && f.operation >= committed.operation);
    let inherited = stretches.inherited(ours);
    let ancestor = |f: &Folder| {
        let of_older =
            |o: Origin| f.generation < o.generation || (f.generation == o.generation && f.version <= o.version);
        f.generation == ours || inherited.is_some_and(of_older)
    };
    // Rolled back by this run itself: the first to go.
    let rolled_back = |f: &Folder| f.generation == ours && !stretches.descend_from(ours, f.operation);
    let mut history: Vec<&Folder> =
        folders.iter().filter(|f| is_current(f) || (f.committed && ancestor(f) && !in_flight(f))).collect();
    history.sort_unstable_by_key(|f| std::cmp::Reverse((is_current(f), !rolled_back(f), f.order())));
    let kept_last: Vec<_> = history.iter().take(policy.keep_last.max(1) as usize).map(|f| f.order()).collect();
    let pinned = |f: &Folder| policy.keep_every > 0 && f.version.is_multiple_of(policy.keep_every);
    folders
        .iter()
        .filter(|f| !in_flight(f))
        .filter(|f| !f.committed || (ancestor(f) && !pinned(f)))
        .filter(|f| !kept_last.contains(&f.order()))
        .copied()
        .collect()
}
