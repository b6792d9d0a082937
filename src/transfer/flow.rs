//! The life of one checkpoint on one rank, as a pure state machine per durable level.
//!
//! ```text
//!  Off ◄── not planned ──┐
//!                     Planned ──► Writing ──► Voted ──► Committed
//!                        │           (written or failed)   │
//!                        └── the call was abandoned ──► Abandoned ◄── some rank failed
//! ```
//!
//! Files are written one after the other, local before global, unless the local file system stands still; the exchange with
//! the peers of the redundancy set runs beside them. Each level is voted on as soon as this rank has done its part or failed
//! to: a failed local write does not keep the checkpoint from the global tier.

use super::stats::PerTier;
use crate::policy::Plan;
use crate::tier::TierKind;

/// Where one level of one checkpoint stands on this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LevelState {
    /// Not wanted for this checkpoint.
    Off,
    /// Wanted, not begun.
    Planned,
    /// Bytes are on their way.
    Writing,
    /// This rank has cast its vote.
    Voted,
    /// All ranks have it.
    Committed,
    /// Some rank does not.
    Abandoned,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEffect {
    /// Write the shard to this tier.
    Write(TierKind),
    /// Vote on this tier's level.
    Vote(TierKind),
    /// No level needs the bytes of the capture any more.
    SourceFree,
    /// All levels have come to an end.
    Finished,
}

/// The state of one checkpoint.
#[derive(Clone, Debug)]
pub struct Flow {
    called: bool,
    levels: PerTier<LevelState>,
    source_free: bool,
}

impl Default for Flow {
    fn default() -> Self {
        use LevelState::Planned;
        let levels = PerTier { memory: Planned, local: Planned, peers: Planned, global: Planned };
        Flow { called: false, levels, source_free: false }
    }
}

impl Flow {
    /// The state of a tier's level.
    pub fn level(&self, tier: TierKind) -> LevelState {
        *self.levels.of(tier)
    }

    /// Do all ranks have it on that tier?
    pub fn is_committed(&self, tier: TierKind) -> bool {
        self.level(tier) == LevelState::Committed
    }

    /// Do all ranks have it on a tier that outlives the loss of this node's memory?
    pub fn is_durable(&self) -> bool {
        self.is_committed(TierKind::Local) || self.is_committed(TierKind::Global)
    }

    /// Has this rank voted for a level that memory must hold, and not heard the answer?
    pub fn awaits_verdict(&self) -> bool {
        !self.called || self.level(TierKind::Peers) == LevelState::Voted
    }

    /// All ranks made the same call and captured it.
    pub fn on_agreed(&mut self, plan: Plan) -> Vec<FlowEffect> {
        let planned = |wanted| if wanted { LevelState::Planned } else { LevelState::Off };
        self.called = true;
        self.levels = PerTier {
            memory: if plan.process { LevelState::Committed } else { LevelState::Off },
            local: planned(plan.local),
            peers: planned(plan.peers),
            global: planned(plan.global),
        };
        self.next()
    }

    /// Some rank made another call or could not capture, or nobody will ever know. What is committed stays committed.
    pub fn on_abandoned(&mut self) -> Vec<FlowEffect> {
        self.called = true;
        for tier in TierKind::ALL {
            let level = self.levels.of_mut(tier);
            if !matches!(level, LevelState::Committed | LevelState::Off) {
                *level = LevelState::Abandoned;
            }
        }
        self.next()
    }

    /// This rank has written the tier's copy, or failed to.
    pub fn on_written(&mut self, tier: TierKind) -> Vec<FlowEffect> {
        assert_eq!(self.level(tier), LevelState::Writing, "{tier} was not being written");
        *self.levels.of_mut(tier) = LevelState::Voted;
        let mut effects = vec![FlowEffect::Vote(tier)];
        effects.extend(self.next());
        effects
    }

    /// The local file system stands still: the global copy is not put off until it moves again.
    pub fn on_stuck(&mut self) -> Vec<FlowEffect> {
        let waits =
            self.level(TierKind::Local) == LevelState::Writing && self.level(TierKind::Global) == LevelState::Planned;
        if !waits {
            return Vec::new();
        }
        *self.levels.of_mut(TierKind::Global) = LevelState::Writing;
        vec![FlowEffect::Write(TierKind::Global)]
    }

    /// The ranks have decided on the tier's level. (A root that gives up may do so before this rank has written.)
    pub fn on_settled(&mut self, tier: TierKind, committed: bool) -> Vec<FlowEffect> {
        *self.levels.of_mut(tier) = if committed { LevelState::Committed } else { LevelState::Abandoned };
        self.next()
    }

    /// Have all levels come to an end?
    pub fn is_finished(&self) -> bool {
        use LevelState::{Abandoned, Committed, Off};
        self.called && TierKind::ALL.into_iter().all(|tier| matches!(self.level(tier), Off | Committed | Abandoned))
    }

    fn next(&mut self) -> Vec<FlowEffect> {
        use LevelState::{Planned, Writing};
        let mut effects = Vec::new();
        // The files are written one after the other; the peers are reached over the network meanwhile.
        let is_file_open = [TierKind::Local, TierKind::Global].iter().any(|tier| self.level(*tier) == Writing);
        let next_file = [TierKind::Local, TierKind::Global].into_iter().find(|tier| self.level(*tier) == Planned);
        let next =
            [Some(TierKind::Peers).filter(|tier| self.level(*tier) == Planned), next_file.filter(|_| !is_file_open)];
        for tier in next.into_iter().flatten() {
            *self.levels.of_mut(tier) = Writing;
            effects.push(FlowEffect::Write(tier));
        }
        let is_needed = TierKind::ALL.into_iter().any(|tier| matches!(self.level(tier), Planned | Writing));
        if !is_needed && !self.source_free {
            self.source_free = true;
            effects.push(FlowEffect::SourceFree);
        }
        if self.is_finished() {
            effects.push(FlowEffect::Finished);
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::FlowEffect::*;
    use super::*;
    use TierKind::{Global, Local};

    #[test]
    fn local_is_written_before_global_and_the_source_is_free_after_the_last_write() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_agreed(Plan { process: true, local: true, peers: false, global: true }), [Write(Local)]);
        assert_eq!(flow.on_written(Local), [Vote(Local), Write(Global)]);
        assert_eq!(flow.on_settled(Local, true), []);
        assert_eq!(flow.on_written(Global), [Vote(Global), SourceFree]);
        assert!(!flow.is_finished());
        assert_eq!(flow.on_settled(Global, true), [Finished]);
    }

    #[test]
    fn a_failed_local_level_does_not_stop_the_global_one() {
        let mut flow = Flow::default();
        flow.on_agreed(Plan { process: false, local: true, peers: false, global: true });
        assert_eq!(flow.on_written(Local), [Vote(Local), Write(Global)]);
        assert_eq!(flow.on_settled(Local, false), []);
        assert_eq!(flow.on_written(Global), [Vote(Global), SourceFree]);
        assert_eq!(flow.on_settled(Global, true), [Finished]);
        assert_eq!((flow.level(Local), flow.level(Global)), (LevelState::Abandoned, LevelState::Committed));
    }

    #[test]
    fn the_global_copy_waits_for_the_local_one_but_not_for_a_file_system_that_stands_still() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_stuck(), []);
        assert_eq!(flow.on_agreed(Plan { process: true, local: true, peers: false, global: true }), [Write(Local)]);
        assert_eq!(flow.on_stuck(), [Write(Global)]);
        assert_eq!(flow.on_stuck(), []);
        assert_eq!(flow.on_written(Global), [Vote(Global)]);
        assert_eq!(flow.on_settled(Global, true), []);
        assert_eq!(flow.on_settled(Local, false), [SourceFree, Finished]);
    }

    #[test]
    fn an_abandoned_call_ends_everything() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_abandoned(), [SourceFree, Finished]);
    }

    #[test]
    fn a_failure_later_on_takes_nothing_back() {
        let mut flow = Flow::default();
        flow.on_agreed(Plan { process: true, local: true, peers: false, global: false });
        assert_eq!(flow.on_abandoned(), [SourceFree, Finished]);
        assert!(flow.is_committed(TierKind::Memory) && !flow.is_committed(Local));
    }

    #[test]
    fn durable_is_what_lies_on_one_tier_that_outlives_the_memory() {
        for (local, global) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut flow = Flow::default();
            flow.on_agreed(Plan { process: true, local: true, peers: true, global: true });
            flow.on_settled(TierKind::Peers, true);
            assert!(!flow.is_durable());
            flow.on_settled(Local, local);
            flow.on_settled(Global, global);
            assert_eq!(flow.is_durable(), local || global);
        }
    }

    /// A version is kept as long as others may have heard that it is committed in memory, or in the memory of peers.
    #[test]
    fn a_verdict_is_awaited_on_the_call_and_on_the_peers() {
        let mut flow = Flow::default();
        assert!(flow.awaits_verdict(), "on the call");
        flow.on_agreed(Plan { process: true, local: true, peers: true, global: false });
        assert!(!flow.awaits_verdict(), "this rank has not voted yet");
        flow.on_written(Local);
        assert!(!flow.awaits_verdict(), "memory holds nothing for the local tier's sake");
        flow.on_written(TierKind::Peers);
        assert!(flow.awaits_verdict());
        flow.on_settled(TierKind::Peers, true);
        assert!(!flow.awaits_verdict());
    }

    #[test]
    fn memory_only_checkpoints_finish_with_the_call() {
        let mut flow = Flow::default();
        assert_eq!(
            flow.on_agreed(Plan { process: true, local: false, peers: false, global: false }),
            [SourceFree, Finished]
        );
    }
}
