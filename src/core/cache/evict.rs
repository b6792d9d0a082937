//! Which copies make room for a new one: a pure decider (HPDC'23, sections 4.1.6 and 4.2).
//!
//! The copies that can go soonest go first, and among equal waits those that are used latest: consumed ones, then ones without a hint,
//! then those with the farthest hints. Pinned copies are not candidates: copies that someone reads or writes, copies that were
//! prefetched and have not been read yet, and copies that can never become evictable.
//!
//! # Where this differs from the paper
//! The paper's algorithm 1 looks for neighbours, because there a version is in one contiguous range. Here a version is in pieces, and
//! any copies make room together, so none has to go, and none is waited for, only because it is between two others.
#![forbid(unsafe_code)]

use super::EntryId;
use std::cmp::Reverse;
use std::time::Duration;

/// When a copy will be used again. The larger, the later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    /// It is hinted, this far after the head of the restore order.
    Hinted(u64),
    /// Nobody has said when, which counts as later than any hint.
    Unhinted,
    /// Not before everything else has been used: it was consumed, or a copy above stands in for it.
    Consumed,
}

/// A copy that may make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Whose copy.
    pub id: EntryId,
    /// How many bytes it would free.
    pub bytes: u64,
    /// Nanoseconds until it is evictable; 0 means now (the paper's `state_ts`).
    pub wait: u64,
    /// When it will be used again.
    pub next: Use,
}

impl Candidate {
    /// The smaller, the sooner it goes: shortest wait, then latest use, then a fixed order.
    fn rank(&self) -> (u64, Reverse<Use>, EntryId) {
        (self.wait, Reverse(self.next), self.id)
    }
}

/// A decision: evict all of these, as soon as they are evictable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What goes; empty if nothing is missing.
    pub victims: Vec<EntryId>,
    /// The sum of the victims' waits; zero if all can go now.
    pub wait: Duration,
}

/// The candidates that can go soonest and are used latest, as many as it takes to free `missing` bytes, and none of them
/// superfluous. The order of the candidates does not matter. `None` if all together are too few. O(n) on average.
pub fn choose(mut candidates: Vec<Candidate>, missing: u64) -> Option<Plan> {
    let count = first_that_hold(&mut candidates, missing)?;
    let chosen = &mut candidates[..count];
    chosen.sort_unstable_by_key(Candidate::rank);
    // The last one was needed when it was chosen, but with it, others may no longer be needed: the most useful is kept first.
    let mut surplus = held(chosen) - missing;
    let mut plan = Plan { victims: Vec::new(), wait: Duration::ZERO };
    for candidate in chosen.iter().rev() {
        if candidate.bytes <= surplus {
            surplus -= candidate.bytes;
        } else {
            plan.victims.push(candidate.id);
            plan.wait = plan.wait.saturating_add(Duration::from_nanos(candidate.wait));
        }
    }
    Some(plan)
}

fn held(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| candidate.bytes).sum()
}

/// Brings the first candidates in rank that together hold `bytes` bytes to the front, in any order, and returns
/// their number. Each round halves what is still undecided.
fn first_that_hold(candidates: &mut [Candidate], bytes: u64) -> Option<usize> {
    let (mut low, mut high, mut missing) = (0, candidates.len(), bytes);
    if held(candidates) < bytes {
        return None;
    }
    // `missing` bytes are to come from `candidates[low..high]`, which hold enough; `low` candidates are chosen.
    while missing > 0 {
        let half = (high - low).div_ceil(2);
        let undecided = &mut candidates[low..high];
        undecided.select_nth_unstable_by_key(half - 1, Candidate::rank);
        let held = held(&undecided[..half]);
        if held < missing {
            missing -= held;
            low += half;
        } else if half == 1 {
            return Some(low + 1);
        } else {
            high = low + half;
        }
    }
    Some(low)
}

/// How long until a copy of `bytes`, after `queued_bytes` on a link of that bandwidth, has passed it and is evictable
/// (the paper's `predict_evictable`). Never zero: zero means evictable now. A link of rate 0 counts as 1 byte per
/// nanosecond, so that more bytes mean a longer wait even before anything was measured.
pub fn predict_evictable(queued_bytes: u64, bytes: u64, bytes_per_s: u64) -> Duration {
    let rate = if bytes_per_s == 0 { 1_000_000_000 } else { bytes_per_s };
    let nanos = (u128::from(queued_bytes) + u128::from(bytes)) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos.max(1)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn candidate(version: u64, bytes: u64, wait: u64, next: Use) -> Candidate {
        Candidate { id: EntryId { history: 0, version }, bytes, wait, next }
    }

    fn hinted(version: u64, bytes: u64, distance: u64) -> Candidate {
        candidate(version, bytes, 0, Use::Hinted(distance))
    }

    fn victims(candidates: &[Candidate], missing: u64) -> Option<Vec<u64>> {
        let plan = choose(candidates.to_vec(), missing);
        plan.map(|plan| plan.victims.iter().map(|id| id.version).collect())
    }

    #[test]
    fn consumed_goes_first_then_unhinted_then_the_farthest() {
        let all =
            [hinted(1, 8, 3), hinted(2, 8, 9), candidate(3, 8, 0, Use::Unhinted), candidate(4, 8, 0, Use::Consumed)];
        assert_eq!(victims(&all, 0), Some(vec![]));
        assert_eq!(victims(&all, 8), Some(vec![4]));
        assert_eq!(victims(&all[..3], 8), Some(vec![3]));
        assert_eq!(victims(&all[..2], 8), Some(vec![2]));
    }

    #[test]
    fn waiting_is_worse_than_losing_what_is_near() {
        let all = [candidate(1, 8, 5, Use::Consumed), hinted(2, 8, 0)];
        assert_eq!(victims(&all, 8), Some(vec![2]));
        assert_eq!(choose(all.to_vec(), 16).map(|plan| plan.wait), Some(Duration::from_nanos(5)));
    }

    #[test]
    fn too_little_is_said_to_be_too_little() {
        let all = [hinted(1, 4, 1), hinted(2, 4, 1)];
        assert_eq!(victims(&all, 8).map(|all| all.len()), Some(2));
        assert_eq!((victims(&all, 9), victims(&[], 1)), (None, None));
    }

    #[test]
    fn nothing_is_evicted_that_is_not_needed() {
        // 1, 2 and 3 are the first that hold 8 bytes, and 1 with 3 do.
        assert_eq!(victims(&[hinted(1, 2, 9), hinted(2, 3, 8), hinted(3, 6, 7)], 8), Some(vec![3, 1]));
    }

    #[test]
    fn a_prediction_counts_the_queue_and_is_never_now() {
        assert_eq!(predict_evictable(3_000, 1_000, 2_000), Duration::from_secs(2));
        assert!(predict_evictable(0, 1, u64::MAX) > Duration::ZERO);
        assert!(predict_evictable(0, 10, 0) < predict_evictable(0, 20, 0));
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let next =
            prop_oneof![4 => (0u64..9).prop_map(Use::Hinted), 1 => Just(Use::Unhinted), 1 => Just(Use::Consumed)];
        prop::collection::vec((1u64..9, 0u64..3, next), 0..12).prop_map(|all| {
            let numbered = all.into_iter().enumerate();
            numbered.map(|(at, (bytes, wait, next))| candidate(at as u64, bytes, wait, next)).collect()
        })
    }

    proptest! {
        #[test]
        fn the_first_in_rank_that_suffice_are_taken(all in candidates(), missing in 0u64..60) {
            let mut sorted = all.clone();
            sorted.sort_unstable_by_key(Candidate::rank);
            let plan = choose(all.clone(), missing);
            prop_assert_eq!(plan.is_some(), held(&all) >= missing);
            if let Some(plan) = plan {
                let victims: BTreeSet<_> = plan.victims.iter().copied().collect();
                let chosen: Vec<_> = all.into_iter().filter(|candidate| victims.contains(&candidate.id)).collect();
                prop_assert!(held(&chosen) >= missing);
                prop_assert!(chosen.iter().all(|candidate| held(&chosen) - candidate.bytes < missing));
                let wait: u64 = chosen.iter().map(|candidate| candidate.wait).sum();
                prop_assert_eq!(plan.wait, Duration::from_nanos(wait));
                // All of them are among the shortest prefix that suffices.
                let mut sum = 0;
                let prefix: BTreeSet<_> = sorted.iter().take_while(|candidate| {
                    let needed = sum < missing;
                    sum += candidate.bytes;
                    needed
                }).map(|candidate| candidate.id).collect();
                prop_assert!(victims.is_subset(&prefix));
            }
        }
    }
}
