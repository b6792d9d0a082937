//! Which copies make room for a new one: two pure deciders over the same view of a tier (HPDC'23, sections 4.1.6, 4.2).
//!
//! Both take what hurts least. Gaps cost nothing. Then a decision that has to wait is worse than any that has not; among
//! equal waits it is worst to lose what is hinted, the nearer the worse, then what is unhinted, and least to lose what
//! was consumed. What is pinned is never chosen: a copy that someone reads or writes, one that was prefetched and is
//! not read yet, and one that can never become evictable. If nothing fits, they say so.
//!
//! # Where this differs from the paper
//! Algorithm 1 adds up one prefetch distance per fragment, by which ten near fragments look farther away than a single
//! far one. Here each hinted byte counts with its nearness (the largest hinted distance less its own, plus one), and the
//! sum is minimised: for fragments of one size that is the same order. The paper's loop also ends as soon as the window
//! has reached the end of the table, before the windows that start later; here every window is scored. Sums are integers
//! (nanoseconds, bytes times distance), so that what leaves a window leaves nothing behind.
#![forbid(unsafe_code)]

use super::EntryId;
use std::cmp::Reverse;
use std::ops::{AddAssign, SubAssign};
use std::time::Duration;

/// When a copy will be used again. The larger, the later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    /// It is hinted, this far behind the head of the restore order.
    Hinted(u64),
    /// Nobody said: later than any hint.
    Unhinted,
    /// Not before everything else was used: it was consumed, or a copy above stands in for it.
    Consumed,
}

/// A range of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragment {
    /// Free bytes.
    Gap(u64),
    /// A copy that is evictable after `wait`.
    Entry {
        /// Whose copy.
        id: EntryId,
        /// How many bytes it would free.
        bytes: u64,
        /// Nanoseconds until it is evictable; 0 means now (the paper's `state_ts`).
        wait: u64,
        /// When it will be used again.
        next: Use,
    },
    /// Something that stays, or a border between spans. No window goes across.
    Pinned,
}

/// A decision: evict all of these, as soon as they are evictable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What goes; empty if the gaps suffice.
    pub victims: Vec<EntryId>,
    /// The sum of the victims' waits; zero if all can go now.
    pub wait: Duration,
}

/// What a choice costs, in the order in which it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Cost {
    wait: u128,
    /// Hinted bytes, each times its nearness.
    hinted: u128,
    unhinted_bytes: u64,
    consumed_bytes: u64,
}

impl Cost {
    fn of(fragment: &Fragment, farthest: u64) -> Cost {
        let Fragment::Entry { bytes, wait, next, .. } = *fragment else { return Cost::default() };
        let mut cost = Cost { wait: u128::from(wait), ..Cost::default() };
        match next {
            Use::Hinted(distance) => cost.hinted = u128::from(bytes) * (u128::from(farthest - distance) + 1),
            Use::Unhinted => cost.unhinted_bytes = bytes,
            Use::Consumed => cost.consumed_bytes = bytes,
        }
        cost
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.wait += other.wait;
        self.hinted += other.hinted;
        self.unhinted_bytes += other.unhinted_bytes;
        self.consumed_bytes += other.consumed_bytes;
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Cost) {
        self.wait -= other.wait;
        self.hinted -= other.hinted;
        self.unhinted_bytes -= other.unhinted_bytes;
        self.consumed_bytes -= other.consumed_bytes;
    }
}

impl Fragment {
    fn bytes(&self) -> u64 {
        match self {
            Fragment::Gap(bytes) | Fragment::Entry { bytes, .. } => *bytes,
            Fragment::Pinned => 0,
        }
    }
}

fn farthest_hint(fragments: &[Fragment]) -> u64 {
    let distance = |fragment: &Fragment| match fragment {
        Fragment::Entry { next: Use::Hinted(distance), .. } => *distance,
        _ => 0,
    };
    fragments.iter().map(distance).max().unwrap_or(0)
}

fn duration(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Algorithm 1: the consecutive fragments, given in the order of addresses, that hold `bytes` at the least cost.
/// `None` if no window is large enough. O(n).
pub fn window(fragments: &[Fragment], bytes: u64) -> Option<Plan> {
    let farthest = farthest_hint(fragments);
    let (mut start, mut held, mut cost) = (0, 0, Cost::default());
    let mut best: Option<(Cost, std::ops::RangeInclusive<usize>)> = None;
    for (end, fragment) in fragments.iter().enumerate() {
        if *fragment == Fragment::Pinned {
            (start, held, cost) = (end + 1, 0, Cost::default());
            continue;
        }
        held += fragment.bytes();
        cost += Cost::of(fragment, farthest);
        // The shortest window that ends here: a longer one costs no less.
        while held - fragments[start].bytes() >= bytes && start < end {
            held -= fragments[start].bytes();
            cost -= Cost::of(&fragments[start], farthest);
            start += 1;
        }
        if held >= bytes && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, start..=end));
        }
    }
    let (cost, range) = best?;
    let victims = fragments[range].iter().filter_map(|fragment| match fragment {
        Fragment::Entry { id, .. } => Some(*id),
        _ => None,
    });
    Some(Plan { victims: victims.collect(), wait: duration(cost.wait) })
}

/// A fragment that can go, as `scattered` ranks them: shortest wait, then latest use, then a fixed order.
type Ranked = (u64, Reverse<Use>, EntryId, u64);

/// The same choice where a version may lie in many pieces: gaps first, wherever they are, then the entries that can
/// go soonest and are used latest, until there are `bytes`; none of them superfluous. The order of the fragments does
/// not matter, and each entry stands in one of them. `None` if all together are too few. O(n) on average.
pub fn scattered(fragments: &[Fragment], bytes: u64) -> Option<Plan> {
    let free: u64 = fragments.iter().map(|fragment| if let Fragment::Gap(bytes) = fragment { *bytes } else { 0 }).sum();
    let mut entries: Vec<Ranked> = fragments.iter().filter_map(ranked).collect();
    let missing = bytes.saturating_sub(free);
    let count = first_that_hold(&mut entries, missing)?;
    let chosen = &mut entries[..count];
    chosen.sort_unstable();
    // The last one was needed when it came, but with it others may be needed no more: the most useful is kept first.
    let mut surplus = chosen.iter().map(|(.., bytes)| bytes).sum::<u64>() - missing;
    let mut plan = Plan { victims: Vec::new(), wait: Duration::ZERO };
    for (wait, _, id, bytes) in chosen.iter().rev() {
        if *bytes <= surplus {
            surplus -= bytes;
        } else {
            plan.victims.push(*id);
            plan.wait = plan.wait.saturating_add(Duration::from_nanos(*wait));
        }
    }
    Some(plan)
}

fn ranked(fragment: &Fragment) -> Option<Ranked> {
    match *fragment {
        Fragment::Entry { id, bytes, wait, next } => Some((wait, Reverse(next), id, bytes)),
        _ => None,
    }
}

/// Brings the smallest entries that together hold `bytes` to the front, in any order, and says how many they are.
/// Each round halves what is still undecided.
fn first_that_hold(entries: &mut [Ranked], bytes: u64) -> Option<usize> {
    let (mut low, mut high, mut missing) = (0, entries.len(), bytes);
    if entries.iter().map(|(.., bytes)| bytes).sum::<u64>() < bytes {
        return None;
    }
    // `missing` bytes are to come from `entries[low..high]`, which hold enough; `low` entries are chosen.
    while missing > 0 {
        let half = (high - low).div_ceil(2);
        let undecided = &mut entries[low..high];
        undecided.select_nth_unstable(half - 1);
        let held: u64 = undecided[..half].iter().map(|(.., bytes)| bytes).sum();
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

/// How long until a copy of `bytes`, behind `queued_bytes` on a link of that bandwidth, has passed it and is evictable
/// (the paper's `predict_evictable`). Never zero: zero means evictable now. A link of rate 0 counts as 1 byte per
/// nanosecond, so that more bytes mean a longer wait even before anything was measured.
pub fn predict_evictable(queued_bytes: u64, bytes: u64, bytes_per_s: u64) -> Duration {
    let rate = if bytes_per_s == 0 { 1_000_000_000 } else { bytes_per_s };
    let nanos = (u128::from(queued_bytes) + u128::from(bytes)) * 1_000_000_000 / u128::from(rate);
    duration(nanos.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(version: u64) -> EntryId {
        EntryId { history: 0, version }
    }

    fn entry(version: u64, bytes: u64, wait: u64, next: Use) -> Fragment {
        Fragment::Entry { id: id(version), bytes, wait, next }
    }

    fn hinted(version: u64, bytes: u64, distance: u64) -> Fragment {
        entry(version, bytes, 0, Use::Hinted(distance))
    }

    fn victims(plan: Option<Plan>) -> Option<Vec<u64>> {
        plan.map(|plan| plan.victims.iter().map(|id| id.version).collect())
    }

    type Decider = fn(&[Fragment], u64) -> Option<Plan>;
    const BOTH: [Decider; 2] = [window, scattered];

    #[test]
    fn gaps_go_first_then_consumed_then_unhinted_then_the_farthest() {
        let mut view =
            vec![hinted(1, 8, 3), hinted(2, 8, 9), entry(3, 8, 0, Use::Unhinted), entry(4, 8, 0, Use::Consumed)];
        view.push(Fragment::Gap(8));
        for decide in BOTH {
            assert_eq!(victims(decide(&view, 8)), Some(vec![]));
            assert_eq!(victims(decide(&view[..4], 8)), Some(vec![4]));
            assert_eq!(victims(decide(&view[..3], 8)), Some(vec![3]));
            assert_eq!(victims(decide(&view[..2], 8)), Some(vec![2]));
        }
    }

    #[test]
    fn waiting_is_worse_than_losing_what_is_near() {
        let view = [entry(1, 8, 5, Use::Consumed), hinted(2, 8, 0)];
        for decide in BOTH {
            assert_eq!(victims(decide(&view, 8)), Some(vec![2]));
            assert_eq!(decide(&view, 16).unwrap().wait, Duration::from_nanos(5));
        }
    }

    #[test]
    fn a_window_does_not_go_across_what_is_pinned() {
        let view = [hinted(1, 4, 1), hinted(2, 4, 1), Fragment::Pinned, hinted(3, 4, 1), hinted(4, 8, 1)];
        assert_eq!(victims(window(&view, 12)), Some(vec![3, 4]));
        assert_eq!(window(&view, 13), None);
        assert_eq!(victims(scattered(&view, 20)).map(|all| all.len()), Some(4));
        assert_eq!(scattered(&view, 21), None);
        assert_eq!(BOTH.map(|decide| decide(&[], 1)), [None, None]);
    }

    #[test]
    fn a_small_copy_between_gaps_goes_rather_than_a_large_one_that_is_farther() {
        // HPDC'23, section 4.1.5.
        let view = [hinted(1, 10, 5), Fragment::Gap(4), hinted(2, 2, 4), Fragment::Gap(4), Fragment::Pinned];
        assert_eq!(victims(window(&view, 10)), Some(vec![2]));
    }

    #[test]
    fn many_near_copies_are_not_one_far_copy() {
        let view = [hinted(1, 1, 6), hinted(2, 1, 6), hinted(3, 1, 6), Fragment::Pinned, hinted(4, 3, 10)];
        assert_eq!(victims(window(&view, 3)), Some(vec![4]));
    }

    #[test]
    fn the_windows_at_the_end_are_scored_too() {
        // The window reaches the end of the table while it still starts at its beginning.
        let view = [hinted(1, 4, 1), hinted(2, 4, 2), hinted(3, 8, 9)];
        assert_eq!(victims(window(&view, 8)), Some(vec![3]));
    }

    #[test]
    fn scattered_evicts_nothing_that_is_not_needed() {
        let view = [hinted(1, 2, 9), hinted(2, 3, 8), hinted(3, 6, 7), Fragment::Gap(2)];
        // 1, 2 and 3 are the first that hold 8 bytes, and 1 with 3 do.
        assert_eq!(victims(scattered(&view, 10)), Some(vec![3, 1]));
    }

    #[test]
    fn a_prediction_counts_the_queue_and_is_never_now() {
        assert_eq!(predict_evictable(3_000, 1_000, 2_000), Duration::from_secs(2));
        assert!(predict_evictable(0, 1, u64::MAX) > Duration::ZERO);
        assert!(predict_evictable(0, 10, 0) < predict_evictable(0, 20, 0));
    }

    fn fragments() -> impl Strategy<Value = Vec<Fragment>> {
        let next =
            prop_oneof![4 => (0u64..9).prop_map(Use::Hinted), 1 => Just(Use::Unhinted), 1 => Just(Use::Consumed)];
        let one = prop_oneof![
            2 => (1u64..6).prop_map(Fragment::Gap),
            1 => Just(Fragment::Pinned),
            6 => (1u64..9, 0u64..3, next).prop_map(|(bytes, wait, next)| entry(0, bytes, wait, next)),
        ];
        prop::collection::vec(one, 0..12).prop_map(|mut all| {
            for (at, fragment) in all.iter_mut().enumerate() {
                if let Fragment::Entry { id, .. } = fragment {
                    id.version = at as u64;
                }
            }
            all
        })
    }

    proptest! {
        #[test]
        fn no_window_costs_less(view in fragments(), bytes in 1u64..30) {
            let farthest = farthest_hint(&view);
            let sum = |range: &[Fragment]| range.iter().fold(Cost::default(), |mut sum, fragment| {
                sum += Cost::of(fragment, farthest);
                sum
            });
            let mut least: Option<Cost> = None;
            for start in 0..view.len() {
                for end in start..view.len() {
                    let range = &view[start..=end];
                    let held: u64 = range.iter().map(Fragment::bytes).sum();
                    if held >= bytes && !range.contains(&Fragment::Pinned) {
                        least = Some(least.map_or(sum(range), |least| least.min(sum(range))));
                    }
                }
            }
            let plan = window(&view, bytes);
            let cost = plan.map(|plan| {
                let chosen: Vec<_> = view.iter().copied().filter(|fragment|
                    matches!(fragment, Fragment::Entry { id, .. } if plan.victims.contains(id))).collect();
                assert_eq!(plan.wait, duration(sum(&chosen).wait));
                sum(&chosen)
            });
            prop_assert_eq!(cost, least);
        }

        #[test]
        fn scattered_takes_the_first_in_rank_that_suffice(view in fragments(), bytes in 1u64..60) {
            let gaps: u64 = view.iter().map(|f| if let Fragment::Gap(bytes) = f { *bytes } else { 0 }).sum();
            let mut sorted: Vec<Ranked> = view.iter().filter_map(ranked).collect();
            sorted.sort_unstable();
            let all: u64 = gaps + sorted.iter().map(|(.., bytes)| bytes).sum::<u64>();
            let plan = scattered(&view, bytes);
            prop_assert_eq!(plan.is_some(), all >= bytes);
            if let Some(plan) = plan {
                let victims: BTreeSet<_> = plan.victims.iter().copied().collect();
                let size = |id: &EntryId| sorted.iter().find(|(_, _, other, _)| other == id).unwrap().3;
                let held: u64 = gaps + victims.iter().map(size).sum::<u64>();
                prop_assert!(held >= bytes);
                prop_assert!(victims.iter().all(|id| held - size(id) < bytes));
                // All of them are among the shortest prefix that suffices.
                let mut sum = gaps;
                let prefix: BTreeSet<_> = sorted.iter().take_while(|(.., size)| {
                    let needed = sum < bytes;
                    sum += size;
                    needed
                }).map(|(_, _, id, _)| *id).collect();
                prop_assert!(victims.is_subset(&prefix));
            }
        }
    }
}
