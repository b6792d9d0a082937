//! Where a checkpoint goes: the root's decision on a call that all ranks made and captured.

use crate::base::Level;
use crate::config::{JobConfig, LevelPolicy, PartStore};
use crate::format::SourceKey;
use crate::policy::{History, is_due};
use crate::tier::{PerTier, TierId, TierSet};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What all ranks have agreed on with the call of a checkpoint.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The tiers that it goes to.
    pub tiers: TierSet,
    /// The earlier checkpoints that its files may refer to, ascending.
    pub sources: Vec<SourceKey>,
}

/// What the root knows when it decides.
pub struct Wishes<'a> {
    /// The configuration.
    pub job: &'a JobConfig,
    /// The tiers in use that are written to.
    pub in_use: TierSet,
    /// This series has redundancy sets.
    pub can_protect: bool,
    /// The last checkpoint before an end that was asked for goes everywhere: the nodes may be gone afterwards.
    pub is_last: bool,
    /// The interval, in checkpoints, of each level whose interval is left to the session.
    pub tuned: &'a dyn Fn(Level) -> u64,
    /// The time now.
    pub now: Duration,
}

/// The tiers that the next checkpoint of the series `name` goes to. All ranks hold it on the tiers `held`, and some ranks wrote it during
/// the capture to the tiers `written`. `histories` count the checkpoint.
pub fn plan(
    histories: &mut PerTier<History>,
    name: &str,
    held: TierSet,
    written: TierSet,
    wishes: &Wishes<'_>,
) -> TierSet {
    let mut is_wanted = |tier: TierId, policy: &LevelPolicy, is_enabled: bool, is_forced: bool| {
        let history = &mut histories[tier];
        let wanted = is_enabled
            && (wishes.is_last || is_forced || is_due(history, policy, (wishes.tuned)(tier.level()), wishes.now));
        if wanted {
            (history.last, history.newest) = (Some(wishes.now), Some(history.taken));
        }
        history.taken += 1;
        wanted
    };
    let (_, protection) = wishes.job.redundancy.policy_for(name);
    let mut plan = held.and(TierSet::of(TierId::MEMORY));
    if is_wanted(TierId::PEERS, &protection, wishes.can_protect, false) {
        plan.insert(TierId::PEERS);
    }
    // Parts in files of a node need the shards of that node in files, too.
    let for_peers = plan.has(TierId::PEERS) && wishes.job.redundancy.store == PartStore::Local;
    for tier in TierId::files() {
        let Some(policy) = tier.wish(wishes.job).policy else { continue };
        let is_forced = written.has(tier) || (for_peers && !tier.spec().is_shared);
        if is_wanted(tier, &policy, wishes.in_use.has(tier), is_forced) {
            plan.insert(tier);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn memory() -> TierSet {
        TierSet::of(TierId::MEMORY)
    }

    fn job(change: impl FnOnce(&mut JobConfig)) -> JobConfig {
        let mut job = Config::default().job;
        job.global.every = 4.into();
        change(&mut job);
        job
    }

    fn plans(job: &JobConfig, count: usize, written: TierSet, is_last: bool) -> Vec<TierSet> {
        let mut histories = PerTier::default();
        let in_use = [TierId::LOCAL, TierId::GLOBAL].into_iter().collect();
        let at = |second| Wishes {
            job,
            in_use,
            can_protect: false,
            is_last,
            tuned: &|_| 1,
            now: Duration::from_secs(second),
        };
        (0..count as u64).map(|second| plan(&mut histories, "heat", memory(), written, &at(second))).collect()
    }

    #[test]
    fn each_tier_gets_the_checkpoints_that_are_its_turn() {
        let plans = plans(&job(|_| ()), 5, TierSet::NONE, false);
        assert_eq!(
            plans.iter().map(|plan| plan.has(TierId::GLOBAL)).collect::<Vec<_>>(),
            [true, false, false, false, true]
        );
        assert!(plans.iter().all(|plan| plan.has(TierId::MEMORY) && plan.has(TierId::LOCAL)));
        assert!(plans.iter().all(|plan| !plan.has(TierId::PEERS) && !plan.has(TierId::OBJECT)), "not in use");
    }

    #[test]
    fn the_last_one_and_what_was_written_already_go_there_out_of_turn() {
        let is_global = |plans: Vec<TierSet>| plans.iter().all(|plan| plan.has(TierId::GLOBAL));
        assert!(is_global(plans(&job(|_| ()), 3, TierSet::NONE, true)));
        assert!(is_global(plans(&job(|_| ()), 3, TierSet::of(TierId::GLOBAL), false)));
        assert!(!is_global(plans(&job(|_| ()), 3, TierSet::NONE, false)));
    }

    #[test]
    fn what_some_rank_does_not_hold_in_memory_is_not_committed_there() {
        let job = job(|_| ());
        let wishes = Wishes {
            job: &job,
            in_use: TierSet::NONE,
            can_protect: false,
            is_last: false,
            tuned: &|_| 1,
            now: Duration::ZERO,
        };
        assert_eq!(plan(&mut PerTier::default(), "heat", TierSet::NONE, memory(), &wishes), TierSet::NONE);
    }

    #[test]
    fn parts_in_files_of_a_node_bring_the_shards_there() {
        let job = job(|job| {
            job.local.every = 1000.into();
            job.redundancy.store = PartStore::Local;
        });
        let in_use = TierSet::of(TierId::LOCAL);
        let wishes =
            Wishes { job: &job, in_use, can_protect: true, is_last: false, tuned: &|_| 1, now: Duration::ZERO };
        let mut histories = PerTier::default();
        for _ in 0..3 {
            let plan = plan(&mut histories, "heat", memory(), TierSet::NONE, &wishes);
            assert_eq!(plan.has(TierId::PEERS), plan.has(TierId::LOCAL));
        }
    }
}
