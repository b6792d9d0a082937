//! How fast a marked shard is sent: no faster than necessary. Pure.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

/// How many intervals are remembered.
const INTERVALS: usize = 8;

/// The times between marks.
#[derive(Default)]
pub(super) struct Intervals {
    last: Option<Duration>,
    known: VecDeque<Duration>,
}

impl Intervals {
    /// A shard is marked now. Returns how long its transfer may take: half the median of the last intervals, at most `limit`; zero while no
    /// interval is known.
    pub fn on_mark(&mut self, now: Duration, limit: Duration) -> Duration {
        if let Some(last) = self.last.replace(now) {
            if self.known.len() == INTERVALS {
                self.known.pop_front();
            }
            self.known.push_back(now.saturating_sub(last));
        }
        let mut sorted: Vec<Duration> = self.known.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(Duration::ZERO, |median| limit.min(*median / 2))
    }
}

/// How long the next piece waits, if a shard of `all` bytes is to take `whole`, and `sent` bytes were sent in the `passed` time.
pub(super) fn wait(sent: u64, all: u64, whole: Duration, passed: Duration) -> Duration {
    let due = whole.mul_f64(sent as f64 / all.max(1) as f64);
    due.saturating_sub(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_median_of_the_last_intervals_is_there_for_it() {
        let (mut intervals, seconds) = (Intervals::default(), Duration::from_secs);
        let limit = seconds(100);
        assert_eq!(intervals.on_mark(seconds(7), limit), Duration::ZERO);
        assert_eq!(intervals.on_mark(seconds(17), limit), seconds(5));
        assert_eq!(intervals.on_mark(seconds(1017), limit), limit);
        assert_eq!(intervals.on_mark(seconds(1037), limit), seconds(10));
        (1..=8).for_each(|mark| _ = intervals.on_mark(seconds(1037 + 2 * mark), limit));
        assert_eq!(intervals.on_mark(seconds(1055), limit), seconds(1));
    }

    #[test]
    fn pieces_go_evenly() {
        let whole = Duration::from_secs(10);
        assert_eq!(wait(0, 100, whole, Duration::ZERO), Duration::ZERO);
        assert_eq!(wait(50, 100, whole, Duration::from_secs(2)), Duration::from_secs(3));
        assert_eq!(wait(50, 100, whole, Duration::from_secs(6)), Duration::ZERO);
        assert_eq!(wait(0, 0, whole, Duration::ZERO), Duration::ZERO);
    }
}
