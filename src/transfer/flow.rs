//! The life of one checkpoint on one rank, as a pure state machine per tier that it goes to.
//!
//! ```text
//!  Off ◄── not planned ──┐
//!                     Planned ──► Writing ──► Voted ──► Committed
//!                        │           (written or failed)   │
//!                        └── the call was abandoned ──► Abandoned ◄── some rank failed
//! ```
//!
//! Files are written one after the other, the nearest first, unless a nearer one's file system stands still; the exchange with
//! the peers of the redundancy set runs beside them. Each level is voted on as soon as this rank has done its part or failed
//! to: a failed write to one tier does not keep the checkpoint from the next one.

use crate::tier::{Means, PerTier, TierId, TierSet};

/// Where one checkpoint stands on one tier, as this rank knows it.
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
    Write(TierId),
    /// Vote on this tier's level.
    Vote(TierId),
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
        Flow { called: false, levels: PerTier::new(|_| LevelState::Planned), source_free: false }
    }
}

impl Flow {
    /// The state of a tier's level.
    pub fn level(&self, tier: TierId) -> LevelState {
        self.levels[tier]
    }

    /// Do all ranks have it on that tier?
    pub fn is_committed(&self, tier: TierId) -> bool {
        self.level(tier) == LevelState::Committed
    }

    /// Do all ranks have it on a tier that outlives the loss of this node's memory?
    pub fn is_durable(&self) -> bool {
        TierId::files().any(|tier| self.is_committed(tier))
    }

    /// Has this rank voted for a level that memory must hold, and not heard the answer?
    pub fn awaits_verdict(&self) -> bool {
        !self.called || by(Means::Peers).any(|tier| self.level(tier) == LevelState::Voted)
    }

    /// All ranks made the same call and captured it; it goes to these tiers. It is in memory already, if that is one of them.
    pub fn on_agreed(&mut self, plan: TierSet) -> Vec<FlowEffect> {
        self.called = true;
        self.levels = PerTier::new(|tier| match (plan.has(tier), tier.spec().means) {
            (false, _) => LevelState::Off,
            (true, Means::Memory) => LevelState::Committed,
            (true, Means::Files | Means::Peers) => LevelState::Planned,
        });
        self.next()
    }

    /// Some rank made another call or could not capture, or nobody will ever know. What is committed stays committed.
    pub fn on_abandoned(&mut self) -> Vec<FlowEffect> {
        self.called = true;
        for (_, level) in self.levels.iter_mut() {
            if !matches!(level, LevelState::Committed | LevelState::Off) {
                *level = LevelState::Abandoned;
            }
        }
        self.next()
    }

    /// This rank has written the tier's copy, or failed to.
    pub fn on_written(&mut self, tier: TierId) -> Vec<FlowEffect> {
        assert_eq!(self.level(tier), LevelState::Writing, "{tier} was not being written");
        self.levels[tier] = LevelState::Voted;
        let mut effects = vec![FlowEffect::Vote(tier)];
        effects.extend(self.next());
        effects
    }

    /// The file systems of these tiers stand still: farther copies are not put off until they move again.
    pub fn on_stuck(&mut self, stuck: TierSet) -> Vec<FlowEffect> {
        let waits = |tier: &TierId| self.level(*tier) == LevelState::Writing;
        let writing: TierSet = TierId::files().filter(waits).collect();
        if writing.is_empty() || writing.and(stuck) != writing {
            return Vec::new();
        }
        let mut planned = TierId::files().filter(|tier| self.level(*tier) == LevelState::Planned && !stuck.has(*tier));
        planned.next().map(|tier| self.write(tier)).into_iter().collect()
    }

    /// The ranks have decided on the tier's level. (A root that gives up may do so before this rank has written.)
    pub fn on_settled(&mut self, tier: TierId, committed: bool) -> Vec<FlowEffect> {
        self.levels[tier] = if committed { LevelState::Committed } else { LevelState::Abandoned };
        self.next()
    }

    /// Have all levels come to an end?
    pub fn is_finished(&self) -> bool {
        use LevelState::{Abandoned, Committed, Off};
        self.called && self.levels.iter().all(|(_, level)| matches!(level, Off | Committed | Abandoned))
    }

    fn write(&mut self, tier: TierId) -> FlowEffect {
        self.levels[tier] = LevelState::Writing;
        FlowEffect::Write(tier)
    }

    fn next(&mut self) -> Vec<FlowEffect> {
        use LevelState::{Planned, Writing};
        // The files are written one after the other; the peers are reached over the network meanwhile.
        let is_file_open = TierId::files().any(|tier| self.level(tier) == Writing);
        let next_file = TierId::files().find(|tier| self.level(*tier) == Planned).filter(|_| !is_file_open);
        let next: Vec<TierId> = by(Means::Peers).filter(|tier| self.level(*tier) == Planned).chain(next_file).collect();
        let mut effects: Vec<FlowEffect> = next.into_iter().map(|tier| self.write(tier)).collect();
        let is_needed = self.levels.iter().any(|(_, level)| matches!(level, Planned | Writing));
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

/// The tiers that copies come to in that way.
fn by(means: Means) -> impl Iterator<Item = TierId> {
    TierId::all().filter(move |tier| tier.spec().means == means)
}

#[cfg(test)]
mod tests {
    use super::FlowEffect::*;
    use super::*;

    const LOCAL: TierId = TierId::LOCAL;
    const GLOBAL: TierId = TierId::GLOBAL;

    fn plan(tiers: &[TierId]) -> TierSet {
        tiers.iter().copied().collect()
    }

    #[test]
    fn local_is_written_before_global_and_the_source_is_free_after_the_last_write() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_agreed(plan(&[TierId::MEMORY, LOCAL, GLOBAL])), [Write(LOCAL)]);
        assert_eq!(flow.on_written(LOCAL), [Vote(LOCAL), Write(GLOBAL)]);
        assert_eq!(flow.on_settled(LOCAL, true), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL), SourceFree]);
        assert!(!flow.is_finished());
        assert_eq!(flow.on_settled(GLOBAL, true), [Finished]);
    }

    #[test]
    fn a_failed_local_level_does_not_stop_the_global_one() {
        let mut flow = Flow::default();
        flow.on_agreed(plan(&[LOCAL, GLOBAL]));
        assert_eq!(flow.on_written(LOCAL), [Vote(LOCAL), Write(GLOBAL)]);
        assert_eq!(flow.on_settled(LOCAL, false), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL), SourceFree]);
        assert_eq!(flow.on_settled(GLOBAL, true), [Finished]);
        assert_eq!((flow.level(LOCAL), flow.level(GLOBAL)), (LevelState::Abandoned, LevelState::Committed));
    }

    #[test]
    fn the_global_copy_waits_for_the_local_one_but_not_for_a_file_system_that_stands_still() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_stuck(TierSet::of(LOCAL)), []);
        assert_eq!(flow.on_agreed(plan(&[TierId::MEMORY, LOCAL, GLOBAL])), [Write(LOCAL)]);
        assert_eq!(flow.on_stuck(TierSet::of(LOCAL)), [Write(GLOBAL)]);
        assert_eq!(flow.on_stuck(TierSet::of(LOCAL)), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL)]);
        assert_eq!(flow.on_settled(GLOBAL, true), []);
        assert_eq!(flow.on_settled(LOCAL, false), [SourceFree, Finished]);
    }

    #[test]
    fn an_abandoned_call_ends_everything() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_abandoned(), [SourceFree, Finished]);
    }

    #[test]
    fn a_failure_later_on_takes_nothing_back() {
        let mut flow = Flow::default();
        flow.on_agreed(plan(&[TierId::MEMORY, LOCAL]));
        assert_eq!(flow.on_abandoned(), [SourceFree, Finished]);
        assert!(flow.is_committed(TierId::MEMORY) && !flow.is_committed(LOCAL));
    }

    #[test]
    fn durable_is_what_lies_on_one_tier_that_outlives_the_memory() {
        for (local, global) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut flow = Flow::default();
            flow.on_agreed(plan(&[TierId::MEMORY, LOCAL, TierId::PEERS, GLOBAL]));
            flow.on_settled(TierId::PEERS, true);
            assert!(!flow.is_durable());
            flow.on_settled(LOCAL, local);
            flow.on_settled(GLOBAL, global);
            assert_eq!(flow.is_durable(), local || global);
        }
    }

    /// A version is kept as long as others may have heard that it is committed in memory, or in the memory of peers.
    #[test]
    fn a_verdict_is_awaited_on_the_call_and_on_the_peers() {
        let mut flow = Flow::default();
        assert!(flow.awaits_verdict(), "on the call");
        flow.on_agreed(plan(&[TierId::MEMORY, LOCAL, TierId::PEERS]));
        assert!(!flow.awaits_verdict(), "this rank has not voted yet");
        flow.on_written(LOCAL);
        assert!(!flow.awaits_verdict(), "memory holds nothing for the local tier's sake");
        flow.on_written(TierId::PEERS);
        assert!(flow.awaits_verdict());
        flow.on_settled(TierId::PEERS, true);
        assert!(!flow.awaits_verdict());
    }

    #[test]
    fn memory_only_checkpoints_finish_with_the_call() {
        let mut flow = Flow::default();
        assert_eq!(flow.on_agreed(plan(&[TierId::MEMORY])), [SourceFree, Finished]);
    }
}
