//! What is to be done in the background, on two sides: with the local file system, and with the global one.
//!
//! A file system may hang for minutes without an error: a global one while a server fails over, a local one with a disk that
//! is about to die. What waits for it then must hold up nothing else. So each side has its own tasks, its own writes and its
//! own job in hand, and of the threads one never takes up anything of the far side ([`Sides::Near`]) and one nothing of the
//! near side ([`Sides::Far`]). What touches neither is for all of them.

use super::tasks::Task;
use super::write::WriteJob;
use crate::affinity::Node;
use crate::tier::TierKind;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Of which file system something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The local file system.
    Near,
    /// The global file system.
    Far,
}

impl Side {
    /// The side of a tier.
    pub fn of(tier: TierKind) -> Side {
        if tier == TierKind::Global { Side::Far } else { Side::Near }
    }
}

/// What a thread takes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sides {
    /// Nothing that could wait for the global file system.
    Near,
    /// Nothing that could wait for the local one.
    Far,
    /// Everything.
    Both,
}

impl Sides {
    /// Does it take up work of that side?
    pub fn has(self, side: Side) -> bool {
        match self {
            Sides::Near => side == Side::Near,
            Sides::Far => side == Side::Far,
            Sides::Both => true,
        }
    }
}

/// The work of one side.
#[derive(Default)]
pub(super) struct Lane {
    /// Small jobs, done before the next piece of a write.
    pub tasks: VecDeque<Task>,
    /// Writes that have not begun: operation and tier.
    pub writes: VecDeque<(u64, TierKind)>,
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

/// Both, and the small jobs that wait for neither file system.
#[derive(Default)]
pub(super) struct Lanes {
    tasks: VecDeque<Task>,
    near: Lane,
    far: Lane,
}

/// The next step of a write.
pub(super) enum Step {
    Open(u64, TierKind),
    Piece(Arc<WriteJob>, usize),
}

impl Lanes {
    pub fn of(&mut self, side: Side) -> &mut Lane {
        match side {
            Side::Near => &mut self.near,
            Side::Far => &mut self.far,
        }
    }

    fn of_sides(&self, sides: Sides) -> impl Iterator<Item = &Lane> {
        [(Side::Near, &self.near), (Side::Far, &self.far)]
            .into_iter()
            .filter(move |(side, _)| sides.has(*side))
            .map(|(_, lane)| lane)
    }

    pub fn push(&mut self, task: Task) {
        match task.side() {
            Some(side) => self.of(side).tasks.push_back(task),
            None => self.tasks.push_back(task),
        }
    }

    pub fn write(&mut self, operation: u64, tier: TierKind) {
        self.of(Side::of(tier)).writes.push_back((operation, tier));
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

    pub fn has_tasks(&self, sides: Sides) -> bool {
        !self.tasks.is_empty() || self.of_sides(sides).any(|lane| !lane.tasks.is_empty())
    }

    /// Have threads something in hand that may wait for a file system?
    pub fn is_in_hand(&self) -> bool {
        self.of_sides(Sides::Both).any(|lane| lane.in_hand > 0)
    }

    /// Is a write begun, or being begun?
    pub fn is_writing(&self, sides: Sides) -> bool {
        self.of_sides(sides).any(Lane::is_writing)
    }

    /// Is there a write that could be begun at once?
    pub fn has_writes(&self, sides: Sides) -> bool {
        self.of_sides(sides).any(|lane| !lane.writes.is_empty() && !lane.is_opening)
    }

    pub fn is_empty(&self, sides: Sides) -> bool {
        !self.has_tasks(sides) && !self.is_writing(sides) && self.of_sides(sides).all(|lane| lane.writes.is_empty())
    }

    pub fn take_task(&mut self, sides: Sides) -> Option<Task> {
        let mut of_sides = [Side::Near, Side::Far].into_iter().filter(|side| sides.has(*side));
        self.tasks.pop_front().or_else(|| of_sides.find_map(|side| self.of(side).tasks.pop_front()))
    }

    /// The next step of a write: that of the earlier checkpoint first.
    pub fn take_step(&mut self, sides: Sides) -> Option<Step> {
        let is_far_first = self.far.operation() < self.near.operation() && self.far.operation().is_some();
        let order = if is_far_first { [Side::Far, Side::Near] } else { [Side::Near, Side::Far] };
        order.into_iter().filter(|side| sides.has(*side)).find_map(|side| self.of(side).take_step())
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
