//! Decides when to checkpoint and where a checkpoint goes, by arithmetic on counts and times alone.
//!
//! [`is_due`] says whether a checkpoint goes to a tier.
//! [`Cadence`] answers `should_checkpoint` and `should_exit`, in almost every call without a message: every rank counts its
//! calls, the root says at which call the ranks communicate next, and only that call is a reduction. [`intervals`] models the
//! costs of failures and checkpoints, and finds the intervals that minimize them. [`tuning`] sets these intervals while a program
//! runs, from its own measurements.
#![forbid(unsafe_code)]

pub mod intervals;
pub mod tuning;

use crate::config::{Choice, Interval, LevelPolicy};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the root remembers about a series for one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The number of checkpoints taken so far.
    pub taken: u64,
    /// When the last checkpoint that went to this tier was taken.
    pub last: Option<Duration>,
    /// How many checkpoints had been taken before that one.
    pub newest: Option<u64>,
}

/// Whether the next checkpoint goes to the tier. The first one does, then every n-th, and one after each pause of `every_seconds`. If n is
/// left to the session, it is `tuned`. It then counts from the last checkpoint that went to the tier, because n may have changed since.
pub fn is_due(history: &History, policy: &LevelPolicy, tuned: u64, now: Duration) -> bool {
    let by_count = match policy.every {
        Choice::Fixed(every) => history.taken.is_multiple_of(every.max(1)),
        Choice::Auto => history.newest.is_none_or(|newest| history.taken - newest >= tuned),
    };
    let by_time = !policy.every_seconds.is_zero()
        && history.last.is_none_or(|last| now.saturating_sub(last) >= policy.every_seconds);
    by_count || by_time
}

/// What the root told all ranks at the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The answer for the call in which the ranks looked.
    pub checkpoint: bool,
    /// Whether any rank has asked for the end.
    pub exit: bool,
    /// After how many further calls the ranks look again.
    pub checkpoint_calls: u64,
}

/// Counts calls on every rank in the same way.
#[derive(Clone, Debug, Default)]
pub struct Cadence {
    calls: u64,
    next_look: u64,
}

impl Cadence {
    /// Counts one call, and returns true if the ranks have to look at each other's state in this call.
    pub fn on_call(&mut self) -> bool {
        self.calls += 1;
        self.calls > self.next_look
    }

    /// Notes that the ranks have looked, so that the next calls up to the `calls`-th need no message.
    pub fn on_look(&mut self, calls: u64) {
        self.next_look = self.calls.saturating_add(calls.max(1) - 1);
    }
}

/// The root's measurements, on which the answers of `should_checkpoint` by time or cost are based.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    last_yes: Option<Duration>,
    last_look: Option<(Duration, u64)>,
    calls: u64,
}

impl Pace {
    /// Returns the root's answer at a look: whether a checkpoint is due now, and after how many calls to look again.
    ///
    /// `calls` is the number of calls since the last look, `cost` is the blocking time of one checkpoint, and `tuned` is the pause that the
    /// session would choose. The next look is planned at 90 % of the calls that fit into the remaining time, so that it is early rather
    /// than late. When little time remains, the ranks look in every call.
    pub fn look(
        &mut self,
        interval: &Interval,
        now: Duration,
        calls: u64,
        cost: Duration,
        tuned: Duration,
    ) -> (bool, u64) {
        self.calls += calls;
        let per_call = match self.last_look {
            Some((then, _)) if calls > 0 => (now.saturating_sub(then)) / u32::try_from(calls).unwrap_or(u32::MAX),
            _ => Duration::ZERO,
        };
        self.last_look = Some((now, self.calls));
        let start = *self.last_yes.get_or_insert(now);
        let due_after = due_after(interval, cost, tuned);
        let passed = now.saturating_sub(start);
        let is_due = due_after.is_some_and(|pause| passed >= pause);
        if is_due {
            self.last_yes = Some(now);
        }
        let left = match due_after {
            None => return (false, u64::MAX),
            Some(pause) if is_due => pause,
            Some(pause) => pause.saturating_sub(passed),
        };
        if per_call.is_zero() {
            return (is_due, 1);
        }
        let fits = left.as_secs_f64() * 0.9 / per_call.as_secs_f64();
        (is_due, (fits as u64).clamp(1, 1_000_000))
    }
}

/// The number of calls that fit into `pause`, if the last `calls` took `elapsed`. It is at least one, and one if nothing was measured.
pub fn calls_within(pause: Duration, elapsed: Option<Duration>, calls: u64) -> u64 {
    match elapsed {
        Some(elapsed) if !elapsed.is_zero() && calls > 0 => {
            let fits = pause.as_secs_f64() / elapsed.as_secs_f64() * calls as f64;
            (fits as u64).clamp(1, 1_000_000)
        }
        _ => 1,
    }
}

/// The pause between two checkpoints by time or cost; `None` if neither is configured.
fn due_after(interval: &Interval, cost: Duration, tuned: Duration) -> Option<Duration> {
    let by_time = match interval.seconds {
        Choice::Auto => Some(tuned),
        Choice::Fixed(seconds) => (!seconds.is_zero()).then_some(seconds),
    };
    // cost / (cost + pause) = p / 100. A checkpoint whose cost has never been measured is taken at once, so that it is measured.
    let by_cost = (interval.overhead_percent > 0.0).then(|| {
        let share = interval.overhead_percent.min(100.0) / 100.0;
        Duration::try_from_secs_f64(cost.as_secs_f64() * (1.0 - share) / share).unwrap_or(Duration::MAX)
    });
    match (by_time, by_cost) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(every: u64, seconds: u64) -> LevelPolicy {
        LevelPolicy { every: every.into(), every_seconds: Duration::from_secs(seconds), keep_last: 1, keep_every: 0 }
    }

    #[test]
    fn the_first_and_every_nth_checkpoint_goes_to_a_tier() {
        let due: Vec<u64> = (0..7)
            .filter(|taken| is_due(&History { taken: *taken, ..History::default() }, &policy(3, 0), 1, Duration::ZERO))
            .collect();
        assert_eq!(due, [0, 3, 6]);
    }

    #[test]
    fn a_long_pause_makes_a_checkpoint_due() {
        let history = History { taken: 1, last: Some(Duration::from_secs(5)), newest: Some(0) };
        assert!(!is_due(&history, &policy(10, 60), 1, Duration::from_secs(60)));
        assert!(is_due(&history, &policy(10, 60), 1, Duration::from_secs(65)));
    }

    #[test]
    fn turns_that_change_are_counted_from_the_last_one() {
        let policy = LevelPolicy { every: Choice::Auto, ..policy(1, 0) };
        let mut history = History::default();
        let due: Vec<u64> = [2, 2, 2, 5, 4, 5, 4, 4]
            .into_iter()
            .filter_map(|tuned| {
                let is_due = is_due(&history, &policy, tuned, Duration::ZERO);
                let taken = history.taken;
                history.newest = if is_due { Some(taken) } else { history.newest };
                history.taken += 1;
                is_due.then_some(taken)
            })
            .collect();
        assert_eq!(due, [0, 2, 6]);
    }

    #[test]
    fn between_looks_no_rank_needs_a_message() {
        let mut cadence = Cadence::default();
        assert!(cadence.on_call());
        cadence.on_look(4);
        assert_eq!((0..4).map(|_| cadence.on_call()).collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[test]
    fn pace_by_seconds_says_yes_about_once_per_pause() {
        let interval = Interval { seconds: Duration::from_secs(10).into(), ..Interval::default() };
        let (mut pace, mut cadence) = (Pace::default(), Cadence::default());
        let (mut yes, mut looks, mut since) = (Vec::new(), 0, 0);
        for call in 0..1000u64 {
            since += 1;
            if cadence.on_call() {
                looks += 1;
                let (due, next) =
                    pace.look(&interval, Duration::from_millis(100 * call), since, Duration::ZERO, Duration::ZERO);
                since = 0;
                cadence.on_look(next);
                if due {
                    yes.push(call);
                }
            }
        }
        assert!((9..=10).contains(&yes.len()), "{yes:?}");
        assert!(looks < 100, "{looks} looks in 1000 calls");
    }

    #[test]
    fn pace_by_cost_keeps_the_share() {
        let interval = Interval { overhead_percent: 5.0, ..Interval::default() };
        let [second, pause] = [1, 7].map(Duration::from_secs);
        assert_eq!(due_after(&interval, second, pause), Some(Duration::from_secs(19)));
        assert_eq!(due_after(&Interval::default(), second, pause), None);
        let both = Interval { seconds: Choice::Auto, ..interval };
        assert_eq!(due_after(&both, second, pause), Some(pause));
    }
}
