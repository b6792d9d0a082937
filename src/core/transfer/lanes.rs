//! What is to be done in the background, in a lane for each tier that is written to.
//!
//! A file system may hang for minutes without an error: a global one while a server fails over, a local one with a disk that
//! is about to die. What waits for it then must hold up nothing else. So each lane has its own tasks, its own writes and its
//! own job in hand, and for each lane in use there is a thread that takes up nothing of the others. What waits for no tier is for all
//! of them.

use super::work::Task;
use super::write::WriteJob;
use crate::affinity::Node;
use crate::base::sync::Lock;
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
struct Lane {
    /// Small jobs, done before the next piece of a write.
    tasks: VecDeque<Task>,
    /// Writes that have not begun: operation and tier.
    writes: VecDeque<(u64, TierId)>,
    /// The write that has.
    active: Option<Arc<WriteJob>>,
    /// Somebody is just opening the next one.
    is_opening: bool,
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
    fn begin(&mut self, now: Duration) {
        if self.in_hand == 0 {
            self.moved = now;
        }
        self.in_hand += 1;
    }

    /// Is there work in hand, none of which has ended for this long?
    fn is_stuck(&self, now: Duration, limit: Duration) -> bool {
        self.in_hand > 0 && now.saturating_sub(self.moved) >= limit
    }
}

/// All of them, and the small jobs that wait for no tier.
#[derive(Default)]
pub(super) struct Lanes(Lock<Queues>);

#[derive(Default)]
struct Queues {
    tasks: VecDeque<Task>,
    lanes: PerTier<Lane>,
}

/// The next step of a write.
pub(super) enum Step {
    Open(u64, TierId),
    Piece(Arc<WriteJob>, usize),
}

impl Queues {
    /// The lane of a tier.
    fn of(&mut self, tier: TierId) -> &mut Lane {
        &mut self.lanes[lane_of(tier)]
    }

    fn of_tiers(&self, tiers: TierSet) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |(tier, _)| tiers.has(*tier)).map(|(_, lane)| lane)
    }

    fn push(&mut self, task: Task) {
        match task.waits_for() {
            Some(tier) => self.of(tier).tasks.push_back(task),
            None => self.tasks.push_back(task),
        }
    }

    fn has_tasks(&self, tiers: TierSet) -> bool {
        !self.tasks.is_empty() || self.of_tiers(tiers).any(|lane| !lane.tasks.is_empty())
    }

    /// Has room for `bytes` prepared; one preparation that is about to be done is made larger instead.
    fn prepare(&mut self, bytes: u64, node: Option<Node>) {
        let waiting = self.tasks.iter_mut().find_map(|task| match task {
            Task::Prepare { bytes, .. } => Some(bytes),
            _ => None,
        });
        match waiting {
            Some(waiting) => *waiting = (*waiting).max(bytes),
            None => self.push(Task::Prepare { bytes, node }),
        }
    }
}

impl Lanes {
    pub fn push(&self, task: Task) {
        self.0.lock().push(task);
    }

    /// Puts a write up.
    pub fn write(&self, operation: u64, tier: TierId) {
        self.0.lock().of(tier).writes.push_back((operation, tier));
    }

    /// Has room for `bytes` prepared; one preparation that is about to be done is made larger instead.
    pub fn prepare(&self, bytes: u64, node: Option<Node>) {
        self.0.lock().prepare(bytes, node);
    }

    /// A thread takes something up, from nowhere here, that may wait for that tier.
    pub fn begin(&self, tier: TierId, now: Duration) {
        self.0.lock().of(tier).begin(now);
    }

    /// What a thread had in hand, and may have waited for that tier, has ended.
    pub fn end(&self, tier: TierId, now: Duration) {
        let mut queues = self.0.lock();
        let lane = queues.of(tier);
        lane.in_hand -= 1;
        lane.moved = now;
    }

    /// The write that was to be opened is open, or came to nothing.
    pub fn opened(&self, tier: TierId, job: Option<Arc<WriteJob>>) {
        let mut queues = self.0.lock();
        let lane = queues.of(tier);
        (lane.is_opening, lane.active) = (false, job);
    }

    /// The write in hand has ended.
    pub fn closed(&self, tier: TierId) {
        self.0.lock().of(tier).active = None;
    }

    /// The tiers on which there is work in hand, none of which has ended for this long.
    pub fn stuck(&self, now: Duration, limit: Duration) -> TierSet {
        let queues = self.0.lock();
        queues.lanes.iter().filter(|(_, lane)| lane.is_stuck(now, limit)).map(|(tier, _)| tier).collect()
    }

    /// Is a write begun, or being begun?
    pub fn is_writing(&self, tiers: TierSet) -> bool {
        self.0.lock().of_tiers(tiers).any(Lane::is_writing)
    }

    /// Is a write begun, or could one be?
    pub fn has_writes(&self, tiers: TierSet) -> bool {
        self.0.lock().of_tiers(tiers).any(|lane| lane.is_writing() || !lane.writes.is_empty())
    }

    /// Is there nothing to do, begun or not?
    pub fn is_empty(&self, tiers: TierSet) -> bool {
        let queues = self.0.lock();
        !queues.has_tasks(tiers) && !queues.of_tiers(tiers).any(|lane| lane.is_writing() || !lane.writes.is_empty())
    }

    /// Is nothing to be done, and nothing in hand that may wait for a file system? Writes that are put up do not count: whose they are says so.
    pub fn is_at_rest(&self) -> bool {
        let queues = self.0.lock();
        !queues.has_tasks(TierSet::ALL)
            && !queues.of_tiers(TierSet::ALL).any(|lane| lane.in_hand > 0 || lane.is_writing())
    }

    /// A small job, in hand from now on: whoever waits for the end of all work finds it here or there.
    pub fn take_task(&self, tiers: TierSet, now: Duration) -> Option<Task> {
        let mut queues = self.0.lock();
        let found = queues.tasks.pop_front();
        let task = found.or_else(|| tiers.iter().find_map(|tier| queues.lanes[tier].tasks.pop_front()))?;
        if let Some(tier) = task.waits_for() {
            queues.of(tier).begin(now);
        }
        Some(task)
    }

    /// The next step of a write, in hand from now on: that of the earliest checkpoint first, and of one checkpoint that to the nearest tier.
    pub fn take_step(&self, tiers: TierSet, now: Duration) -> Option<Step> {
        let mut queues = self.0.lock();
        let lanes = queues.lanes.iter_mut().filter(|(tier, _)| tiers.has(*tier)).map(|(_, lane)| lane);
        let mut lanes: Vec<(u64, &mut Lane)> = lanes.filter_map(|lane| Some((lane.operation()?, lane))).collect();
        lanes.sort_by_key(|(operation, _)| *operation);
        lanes.into_iter().find_map(|(_, lane)| {
            let step = lane.take_step()?;
            lane.begin(now);
            Some(step)
        })
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
        let lanes = Lanes::default();
        for bytes in [5, 9, 7] {
            lanes.prepare(bytes, None);
        }
        let take = || lanes.take_task(TierSet::NONE, Duration::ZERO);
        assert!(matches!(take(), Some(Task::Prepare { bytes: 9, .. })));
        assert!(take().is_none());
    }
}
