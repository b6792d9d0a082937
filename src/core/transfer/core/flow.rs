//! The state of a checkpoint that all ranks have captured, on each tier that it goes to.
//!
//! ```text
//!  Off ◄── not in the plan
//!                                  written, or failed to            all ranks have it
//!  Planned ───────────► Writing ──────────────────────► Voted ─────────────────────────► Committed
//!     │                    │                             │  └─── some rank does not ───► Abandoned
//!     └────────────────────┴── the root has given up, ───┼─────────────────────────────► Abandoned
//!                              or is silent              └─── the root is silent ──────► Unknown
//! ```
//!
//! What memory holds is committed with the call. Files are written one after the other, the nearest first, unless a nearer one's file
//! system stands still; the exchange with the peers of the redundancy set runs at the same time as the writes. Each level is voted on as
//! soon as this rank has done its part or failed to: a failed write to one tier does not keep the checkpoint from the next one.

use crate::tier::{Means, PerTier, TierId, TierSet};

/// The state of one checkpoint on one tier, as this rank knows it.
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
    /// All ranks have done their part.
    Committed,
    /// Some rank has not done its part.
    Abandoned,
    /// This rank has voted and heard no verdict: others may have heard that the level is committed.
    Unknown,
}

/// How a level ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// All ranks have done their part.
    Committed,
    /// Some rank has not done its part.
    Abandoned,
    /// Nobody here knows the outcome.
    Unknown,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEffect {
    /// Begin this rank's part on this tier.
    Start(TierId),
    /// Vote on this tier's level.
    Vote(TierId),
    /// No level needs the bytes of the capture any more.
    SourceFree,
    /// All levels have ended.
    Finished,
}

/// The levels of one checkpoint.
#[derive(Clone, Debug)]
pub struct Flow {
    levels: PerTier<LevelState>,
    is_source_free: bool,
}

impl Flow {
    /// All ranks have made the same call and captured the checkpoint; it goes to these tiers.
    pub fn agreed(plan: TierSet) -> (Flow, Vec<FlowEffect>) {
        let levels = PerTier::new(|tier| match (plan.has(tier), tier.spec().means) {
            (false, _) => LevelState::Off,
            (true, Means::Memory) => LevelState::Committed,
            (true, Means::Files | Means::Peers) => LevelState::Planned,
        });
        let mut flow = Flow { levels, is_source_free: false };
        let effects = flow.next();
        (flow, effects)
    }

    /// The state of a tier's level.
    pub fn level(&self, tier: TierId) -> LevelState {
        self.levels[tier]
    }

    /// Do all ranks have the checkpoint on that tier?
    pub fn is_committed(&self, tier: TierId) -> bool {
        self.level(tier) == LevelState::Committed
    }

    /// May others have heard that the checkpoint is committed at a level for which memory must hold it, while this rank has not?
    pub fn is_in_doubt(&self) -> bool {
        by(Means::Peers).any(|tier| matches!(self.level(tier), LevelState::Voted | LevelState::Unknown))
    }

    /// Are bytes on their way, or are votes on the content of memory?
    pub fn is_open(&self) -> bool {
        use LevelState::{Planned, Voted, Writing};
        self.needs_source() || by(Means::Peers).any(|tier| matches!(self.level(tier), Planned | Writing | Voted))
    }

    /// Does a level still need the bytes of the capture?
    pub fn needs_source(&self) -> bool {
        self.levels.iter().any(|(_, level)| matches!(level, LevelState::Planned | LevelState::Writing))
    }

    /// The root is silent. If this rank has not voted for a level, nobody can have heard that it is committed.
    pub fn on_lost(&mut self) -> Vec<FlowEffect> {
        use LevelState::{Abandoned, Planned, Unknown, Voted, Writing};
        for (_, level) in self.levels.iter_mut() {
            *level = match *level {
                Planned | Writing => Abandoned,
                Voted => Unknown,
                settled => settled,
            };
        }
        self.next()
    }

    /// This rank has written the tier's copy, or failed to.
    pub fn on_written(&mut self, tier: TierId) -> Vec<FlowEffect> {
        debug_assert_eq!(self.level(tier), LevelState::Writing, "{tier} was not being written");
        self.levels[tier] = LevelState::Voted;
        let mut effects = vec![FlowEffect::Vote(tier)];
        effects.extend(self.next());
        effects
    }

    /// The file systems of these tiers stand still: farther copies do not wait for them.
    pub fn on_stuck(&mut self, stuck: TierSet) -> Vec<FlowEffect> {
        let waits = |tier: &TierId| self.level(*tier) == LevelState::Writing;
        let writing: TierSet = TierId::files().filter(waits).collect();
        if writing.is_empty() || writing.and(stuck) != writing {
            return Vec::new();
        }
        let mut planned = TierId::files().filter(|tier| self.level(*tier) == LevelState::Planned && !stuck.has(*tier));
        planned.next().map(|tier| self.start(tier)).into_iter().collect()
    }

    /// The ranks have decided on the tier's level, or the root is silent. (A root that gives up may decide before this rank has written.)
    pub fn on_settled(&mut self, tier: TierId, end: Settled) -> Vec<FlowEffect> {
        debug_assert_ne!(self.level(tier), LevelState::Off, "{tier} is not in the plan");
        self.levels[tier] = match (end, self.level(tier)) {
            (Settled::Committed, _) => LevelState::Committed,
            (Settled::Unknown, LevelState::Voted | LevelState::Unknown) => LevelState::Unknown,
            (Settled::Abandoned | Settled::Unknown, _) => LevelState::Abandoned,
        };
        self.next()
    }

    /// Have all levels ended?
    pub fn is_finished(&self) -> bool {
        use LevelState::{Planned, Voted, Writing};
        !self.levels.iter().any(|(_, level)| matches!(level, Planned | Writing | Voted))
    }

    fn start(&mut self, tier: TierId) -> FlowEffect {
        self.levels[tier] = LevelState::Writing;
        FlowEffect::Start(tier)
    }

    fn next(&mut self) -> Vec<FlowEffect> {
        use LevelState::{Planned, Writing};
        // The files are written one after the other; meanwhile, the exchange with the peers uses the network.
        let is_file_open = TierId::files().any(|tier| self.level(tier) == Writing);
        let next_file = TierId::files().find(|tier| self.level(*tier) == Planned).filter(|_| !is_file_open);
        let next: Vec<TierId> = by(Means::Peers).filter(|tier| self.level(*tier) == Planned).chain(next_file).collect();
        let mut effects: Vec<FlowEffect> = next.into_iter().map(|tier| self.start(tier)).collect();
        if !self.needs_source() && !self.is_source_free {
            self.is_source_free = true;
            effects.push(FlowEffect::SourceFree);
        }
        if self.is_finished() {
            effects.push(FlowEffect::Finished);
        }
        effects
    }
}

/// The tiers that copies reach by these means.
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
        let (mut flow, effects) = Flow::agreed(plan(&[TierId::MEMORY, LOCAL, GLOBAL]));
        assert_eq!(effects, [Start(LOCAL)]);
        assert_eq!(flow.on_written(LOCAL), [Vote(LOCAL), Start(GLOBAL)]);
        assert_eq!(flow.on_settled(LOCAL, Settled::Committed), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL), SourceFree]);
        assert!(!flow.is_finished());
        assert_eq!(flow.on_settled(GLOBAL, Settled::Committed), [Finished]);
    }

    #[test]
    fn a_failed_local_level_does_not_stop_the_global_one() {
        let (mut flow, _) = Flow::agreed(plan(&[LOCAL, GLOBAL]));
        assert_eq!(flow.on_written(LOCAL), [Vote(LOCAL), Start(GLOBAL)]);
        assert_eq!(flow.on_settled(LOCAL, Settled::Abandoned), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL), SourceFree]);
        assert_eq!(flow.on_settled(GLOBAL, Settled::Committed), [Finished]);
        assert_eq!((flow.level(LOCAL), flow.level(GLOBAL)), (LevelState::Abandoned, LevelState::Committed));
    }

    #[test]
    fn the_global_copy_waits_for_the_local_one_but_not_for_a_file_system_that_stands_still() {
        let (mut flow, effects) = Flow::agreed(plan(&[TierId::MEMORY, LOCAL, GLOBAL]));
        assert_eq!(effects, [Start(LOCAL)]);
        assert_eq!(flow.on_stuck(TierSet::of(LOCAL)), [Start(GLOBAL)]);
        assert_eq!(flow.on_stuck(TierSet::of(LOCAL)), []);
        assert_eq!(flow.on_written(GLOBAL), [Vote(GLOBAL)]);
        assert_eq!(flow.on_settled(GLOBAL, Settled::Committed), []);
        assert_eq!(flow.on_settled(LOCAL, Settled::Abandoned), [SourceFree, Finished]);
    }

    #[test]
    fn a_silent_root_takes_nothing_back_and_leaves_in_doubt_what_was_voted_for() {
        let (mut flow, _) = Flow::agreed(plan(&[TierId::MEMORY, LOCAL, TierId::PEERS, GLOBAL]));
        flow.on_written(TierId::PEERS);
        assert_eq!(flow.on_lost(), [SourceFree, Finished]);
        let states = [TierId::MEMORY, LOCAL, TierId::PEERS, GLOBAL].map(|tier| flow.level(tier));
        use LevelState::{Abandoned, Committed, Unknown};
        assert_eq!(states, [Committed, Abandoned, Unknown, Abandoned]);
        assert!(flow.is_in_doubt() && flow.is_finished() && !flow.is_open());
        // The verdict may arrive after all.
        flow.on_settled(TierId::PEERS, Settled::Committed);
        assert!(!flow.is_in_doubt() && flow.is_committed(TierId::PEERS));
    }

    /// A version is kept as long as others may have heard that it is committed in the memory of peers.
    #[test]
    fn a_verdict_is_awaited_on_the_peers() {
        let (mut flow, _) = Flow::agreed(plan(&[TierId::MEMORY, LOCAL, TierId::PEERS]));
        assert!(!flow.is_in_doubt(), "this rank has not voted yet");
        flow.on_written(LOCAL);
        assert!(!flow.is_in_doubt(), "memory holds nothing for the local tier's sake");
        flow.on_written(TierId::PEERS);
        assert!(flow.is_in_doubt());
        flow.on_settled(TierId::PEERS, Settled::Committed);
        assert!(!flow.is_in_doubt());
    }

    #[test]
    fn memory_only_checkpoints_finish_with_the_call() {
        assert_eq!(Flow::agreed(plan(&[TierId::MEMORY])).1, [SourceFree, Finished]);
    }
}
