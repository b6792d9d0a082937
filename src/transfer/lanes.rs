//! What is to be done in the background, in a lane for each tier that is written to.
//!
//! A file system may hang for minutes without an error: a global one while a server fails over, a local one with a disk that
//! is about to die. What waits for it then must hold up nothing else. So each lane has its own tasks, its own writes and its
//! own job in hand, and for each lane in use there is a thread that takes up nothing of the others. What waits for no tier is for all
//! of them.

use super::tasks::Task;
use super::write::WriteJob;
use crate::affinity::Node;
use crate::tier::{Means, PerTier, TierId, TierSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The tier whose lane the writes of `tier` are in: its own, or that of the nearest files, where what is kept for other ranks goes.
pub(super) fn lane_of(tier: TierId) -> TierId {
    if tier.spec().means == Means::Files { tier } else { NEAREST }
}

/// The nearest tier that is written to.
pub(super) const NEAREST: TierId = TierId::LOCAL;

/// The work on one tier.
#[derive(Default)]
pub(super) struct Lane {
    /// Small jobs, done before the next piece of a write.
    pub tasks: VecDeque<Task>,
    /// Writes that have not begun: operation and tier.
    pub writes: VecDeque<(u64, TierId)>,
    /// The write that has.
    pub active: Option<Arc<WriteJob>>,
    /// Somebody is just opening the next one.
    pub is_opening: bool,
    /// Pieces of work that threads have in hand, and when the last one ended or the first one began.
    in_hand: u32,
    moved: Duration,
}

impl Lane {
    /// The operation whose write is in hand or next.
    fn operation(&self) -> Option<u64> {
        self.active.as_ref().map(|job| job.operation).or_else(|| self.writes.front().map(|(operation, _)| *operation))
    }

    fn is_writing(&self) -> bool {
        self.active.is_some() || self.is_opening
    }

    /// A thread takes something up that may wait for this file system.
    pub fn begin(&mut self, now: Duration) {
        if self.in_hand == 0 {
            self.moved = now;
        }
        self.in_hand += 1;
    }

    /// It has ended.
    pub fn end(&mut self, now: Duration) {
        self.in_hand -= 1;
        self.moved = now;
    }

    /// Is there something in hand, and has nothing come to its end for so long?
    pub fn is_stuck(&self, now: Duration, limit: Duration) -> bool {
        self.in_hand > 0 && now.saturating_sub(self.moved) >= limit
    }
}

/// All of them, and the small jobs that wait for no tier.
#[derive(Default)]
pub(super) struct Lanes {
    tasks: VecDeque<Task>,
    lanes: PerTier<Lane>,
}

/// The next step of a write.
pub(super) enum Step {
    Open(u64, TierId),
    Piece(Arc<WriteJob>, usize),
}

impl Lanes {
    /// The lane of a tier.
    pub fn of(&mut self, tier: TierId) -> &mut Lane {
        &mut self.lanes[lane_of(tier)]
    }

    fn of_tiers(&self, tiers: TierSet) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |(tier, _)| tiers.has(*tier)).map(|(_, lane)| lane)
    }

    /// The tiers on which something is in hand, and nothing has come to its end for so long.
    pub fn stuck(&self, now: Duration, limit: Duration) -> TierSet {
        self.lanes.iter().filter(|(_, lane)| lane.is_stuck(now, limit)).map(|(tier, _)| tier).collect()
    }

    pub fn push(&mut self, task: Task) {
        match task.waits_for() {
            Some(tier) => self.of(tier).tasks.push_back(task),
            None => self.tasks.push_back(task),
        }
    }

    pub fn write(&mut self, operation: u64, tier: TierId) {
        self.of(tier).writes.push_back((operation, tier));
    }

    /// Has room for `bytes` prepared; one preparation that is about to be done is made larger instead.
    pub fn prepare(&mut self, bytes: u64, node: Option<Node>) {
        let waiting = self.tasks.iter_mut().find_map(|task| match task {
            Task::Prepare { bytes, .. } => Some(bytes),
            _ => None,
        });
        match waiting {
            Some(waiting) => *waiting = (*waiting).max(bytes),
            None => self.push(Task::Prepare { bytes, node }),
        }
    }

    pub fn has_tasks(&self, tiers: TierSet) -> bool {
        !self.tasks.is_empty() || self.of_tiers(tiers).any(|lane| !lane.tasks.is_empty())
    }

    /// Have threads something in hand that may wait for a file system?
    pub fn is_in_hand(&self) -> bool {
        self.of_tiers(TierSet::ALL).any(|lane| lane.in_hand > 0)
    }

    /// Is a write begun, or being begun?
    pub fn is_writing(&self, tiers: TierSet) -> bool {
        self.of_tiers(tiers).any(Lane::is_writing)
    }

    /// Is there a write that could be begun at once?
    pub fn has_writes(&self, tiers: TierSet) -> bool {
        self.of_tiers(tiers).any(|lane| !lane.writes.is_empty() && !lane.is_opening)
    }

    pub fn is_empty(&self, tiers: TierSet) -> bool {
        !self.has_tasks(tiers) && !self.is_writing(tiers) && self.of_tiers(tiers).all(|lane| lane.writes.is_empty())
    }

    pub fn take_task(&mut self, tiers: TierSet) -> Option<Task> {
        self.tasks.pop_front().or_else(|| tiers.iter().find_map(|tier| self.lanes[tier].tasks.pop_front()))
    }

    /// The next step of a write: that of the earliest checkpoint first, and of one checkpoint that to the nearest tier.
    pub fn take_step(&mut self, tiers: TierSet) -> Option<Step> {
        let lanes = self.lanes.iter_mut().filter(|(tier, _)| tiers.has(*tier)).map(|(_, lane)| lane);
        let mut lanes: Vec<(u64, &mut Lane)> = lanes.filter_map(|lane| Some((lane.operation()?, lane))).collect();
        lanes.sort_by_key(|(operation, _)| *operation);
        lanes.into_iter().find_map(|(_, lane)| lane.take_step())
    }
}

impl Lane {
    fn take_step(&mut self) -> Option<Step> {
        if let Some(job) = &self.active {
            return job.take().map(|piece| Step::Piece(job.clone(), piece));
        }
        if self.is_opening {
            return None;
        }
        let (operation, tier) = self.writes.pop_front()?;
        self.is_opening = true;
        Some(Step::Open(operation, tier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preparation_that_waits_is_made_larger() {
        let mut lanes = Lanes::default();
        for bytes in [5, 9, 7] {
            lanes.prepare(bytes, None);
        }
        let wanted = |task: &Task| matches!(task, Task::Prepare { bytes: 9, .. });
        assert!(lanes.tasks.len() == 1 && lanes.tasks.iter().all(wanted));
    }
}
