//! The background work, with a separate lane for each tier that is written to.
//!
//! A file system may hang for minutes without an error: a global one while a server fails over, a local one on a disk that is about to
//! fail. Work that waits for it must not hold up anything else. So each lane has its own tasks, its own writes and its own current job, and
//! for each lane in use there is a thread that takes up no work of the other lanes. Work that waits for no tier is open to all threads.

use super::work::Task;
use super::write::WriteJob;
use crate::affinity::Node;
use crate::base::sync::Lock;
use crate::tier::{Means, PerTier, TierId, TierSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The tier whose lane contains the writes of `tier`: `tier` itself, or, for parts that are kept for other ranks, the tier of the nearest
/// files.
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
    /// The write that has begun.
    active: Option<Arc<WriteJob>>,
    /// A thread is just opening the next write.
    is_opening: bool,
    /// The number of pieces of work that threads are doing; `moved` is when the last one ended or the first one began.
    in_hand: u32,
    moved: Duration,
}

impl Lane {
    /// The operation whose write is current or next.
    fn operation(&self) -> Option<u64> {
        self.active.as_ref().map(|job| job.operation).or_else(|| self.writes.front().map(|(operation, _)| *operation))
    }

    fn is_writing(&self) -> bool {
        self.active.is_some() || self.is_opening
    }

    /// A thread takes up work that may wait for this file system.
    fn begin(&mut self, now: Duration) {
        if self.in_hand == 0 {
            self.moved = now;
        }
        self.in_hand += 1;
    }

    /// Is work under way, although none of it has ended for this long?
    fn is_stuck(&self, now: Duration, limit: Duration) -> bool {
        self.in_hand > 0 && now.saturating_sub(self.moved) >= limit
    }
}

/// All lanes, and the small jobs that wait for no tier.
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

    /// Has room for `bytes` prepared; a preparation that is already queued is made larger instead.
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

    /// Queues a write.
    pub fn write(&self, operation: u64, tier: TierId) {
        self.0.lock().of(tier).writes.push_back((operation, tier));
    }

    /// Has room for `bytes` prepared; a preparation that is already queued is made larger instead.
    pub fn prepare(&self, bytes: u64, node: Option<Node>) {
        self.0.lock().prepare(bytes, node);
    }

    /// A thread takes up work that may wait for that tier and is not queued here.
    pub fn begin(&self, tier: TierId, now: Duration) {
        self.0.lock().of(tier).begin(now);
    }

    /// Work of a thread that may have waited for that tier has ended.
    pub fn end(&self, tier: TierId, now: Duration) {
        let mut queues = self.0.lock();
        let lane = queues.of(tier);
        lane.in_hand -= 1;
        lane.moved = now;
    }

    /// The write that was to be opened is open, or could not be opened.
    pub fn opened(&self, tier: TierId, job: Option<Arc<WriteJob>>) {
        let mut queues = self.0.lock();
        let lane = queues.of(tier);
        (lane.is_opening, lane.active) = (false, job);
    }

    /// The current write has ended.
    pub fn closed(&self, tier: TierId) {
        self.0.lock().of(tier).active = None;
    }

    /// The tiers on which work is under way although none of it has ended for this long.
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

    /// Is nothing to be done, and nothing under way that may wait for a file system? Queued writes do not count, because their owners count
    /// them.
    pub fn is_at_rest(&self) -> bool {
        let queues = self.0.lock();
        !queues.has_tasks(TierSet::ALL)
            && !queues.of_tiers(TierSet::ALL).any(|lane| lane.in_hand > 0 || lane.is_writing())
    }

    /// Takes a small job, which counts as under way from now on: a thread that waits for the end of all work finds the job either in the
    /// queue or under way.
    pub fn take_task(&self, tiers: TierSet, now: Duration) -> Option<Task> {
        let mut queues = self.0.lock();
        let found = queues.tasks.pop_front();
        let task = found.or_else(|| tiers.iter().find_map(|tier| queues.lanes[tier].tasks.pop_front()))?;
        if let Some(tier) = task.waits_for() {
            queues.of(tier).begin(now);
        }
        Some(task)
    }

    /// Takes the next step of a write, which counts as under way from now on. The earliest checkpoint comes first, and for the same
    /// checkpoint the nearest tier.
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
