//! Works out when each checkpoint is done and when it counts, from a start until something fails.
//!
//! Nothing here depends on chance. If no checkpoint waits for another, the times are known in closed form. Flushes fall behind if they take
//! longer than the time to the next one, or if node memory has no room for another version. The first checkpoints are then worked out one
//! by one, and the mean pace of the later half is extrapolated to all that follow.

use crate::policy::intervals::LEVELS_MAX;

/// The maximum number of checkpoints that are worked out one by one (1.5 MB).
const WALKED_MAX: u64 = 1 << 16;
/// The maximum number of versions that are still being written. With more, the flushes would be years behind.
const OPEN_MAX: u64 = 64;

/// A pattern with its costs in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// Work between two checkpoints.
    pub segment: f64,
    /// The number of levels that are used.
    pub used: usize,
    /// For each level, n if every n-th checkpoint goes to it; the largest number if none does.
    pub every: [u64; LEVELS_MAX],
    /// For each level, how long a checkpoint blocks the program.
    pub costs: [f64; LEVELS_MAX],
    /// For each level, the time from a checkpoint's capture until it counts.
    pub delays: [f64; LEVELS_MAX],
}

/// The checkpoints after a start, which has the number 0.
#[derive(Clone, Debug)]
pub(super) struct Timeline<'a> {
    pace: &'a Pace,
    walked: Option<&'a Walked>,
    /// For each level, how many checkpoints ago it had its turn when the start was made; 0: just then.
    phase: [u64; LEVELS_MAX],
    mean: f64,
    costs: f64,
}

impl Pace {
    /// Seconds from one checkpoint to the next, on average.
    fn mean(&self) -> f64 {
        let higher = (1..self.used).map(|level| self.costs[level] / self.every[level] as f64);
        self.segment + self.costs[0] + higher.sum::<f64>()
    }

    /// The least number of seconds between two checkpoints of a level.
    fn period(&self, level: usize) -> f64 {
        self.every[level] as f64 * (self.segment + self.costs[0])
    }
}

impl<'a> Timeline<'a> {
    pub fn new(pace: &'a Pace, walked: Option<&'a Walked>) -> Timeline<'a> {
        let costs = (1..pace.used).map(|level| pace.costs[level]).sum();
        let mut timeline = Timeline { pace, walked, phase: [0; LEVELS_MAX], mean: pace.mean(), costs };
        timeline.start_all();
        timeline
    }

    /// Sets the phases so that the next checkpoint goes to all levels, as the first of a session does.
    pub fn start_all(&mut self) {
        for level in 0..self.pace.used {
            self.phase[level] = self.pace.every[level] - 1;
        }
    }

    /// Sets the phases so that the start is checkpoint `index` of the pattern, in which a level has the checkpoints whose number is a
    /// multiple of its interval.
    pub fn start_at(&mut self, index: u64) {
        for level in 0..self.pace.used {
            self.phase[level] = index % self.pace.every[level];
        }
    }

    /// When a checkpoint is done on all its levels, in seconds from the start.
    pub fn done(&self, index: u64) -> f64 {
        if let Some(walked) = self.walked {
            return walked.done(index);
        }
        let mut done = index as f64 * (self.pace.segment + self.pace.costs[0]);
        for level in 1..self.pace.used {
            if self.pace.costs[level] > 0.0 {
                done += ((self.phase[level] + index) / self.pace.every[level]) as f64 * self.pace.costs[level];
            }
        }
        done
    }

    /// The last checkpoint that is done by `time`.
    pub fn last(&self, time: f64) -> u64 {
        if let Some(walked) = self.walked {
            return walked.last(time);
        }
        let mut low = ((time - self.costs) / self.mean - 1.0).max(0.0) as u64;
        let mut high = ((time + self.costs) / self.mean + 2.0) as u64;
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.done(middle) <= time {
                true => low = middle,
                false => high = middle,
            }
        }
        low
    }

    /// Work from the start to a time after checkpoint `last`.
    pub fn work(&self, last: u64, time: f64) -> f64 {
        last as f64 * self.pace.segment + (time - self.done(last)).clamp(0.0, self.pace.segment)
    }

    /// Seconds that captures up to checkpoint `last` have waited for room.
    pub fn waited(&self, last: u64) -> f64 {
        self.walked.map_or(0.0, |walked| walked.done(last) - last as f64 * self.mean).max(0.0)
    }

    /// The newest checkpoint up to `last` that goes to a level.
    pub fn due(&self, level: usize, last: u64) -> Option<u64> {
        let every = self.pace.every[level];
        ((self.phase[level] + last) / every * every).checked_sub(self.phase[level]).filter(|index| *index > 0)
    }

    /// The newest checkpoint that counts on a level at `time`, where `last` is the last one that is done.
    pub fn newest(&self, level: usize, last: u64, time: f64) -> Option<u64> {
        if let Some(walked) = self.walked {
            let known = walked.newest(level, time);
            let found = known.or_else(|| self.due(level, self.last(time - self.pace.delays[level])));
            return found.filter(|index| *index > 0);
        }
        let newest = self.due(level, last)?;
        match self.counts(level, newest) <= time {
            true => Some(newest),
            // Checkpoints that overtake each other are left to [`Walked`].
            false => self.due(level, self.last((time - self.pace.delays[level]).max(0.0))),
        }
    }

    /// When a checkpoint counts on a level that it goes to.
    pub fn counts(&self, level: usize, index: u64) -> f64 {
        match self.walked.and_then(|walked| walked.counts(level, index)) {
            Some(counts) => counts,
            None => self.done(index) + self.pace.delays[level],
        }
    }

    /// When the first checkpoint counts on a level.
    pub fn first_counts(&self, level: usize) -> f64 {
        self.counts(level, self.pace.every[level] - self.phase[level])
    }

    /// Which level is being written at a time after checkpoint `last`; 0 while the program works.
    pub fn written(&self, last: u64, time: f64) -> usize {
        let mut end = self.done(last) + self.pace.segment + self.pace.costs[0];
        if time <= end {
            return 0;
        }
        for level in 1..self.pace.used {
            if (self.phase[level] + last + 1).is_multiple_of(self.pace.every[level]) {
                end += self.pace.costs[level];
                if time <= end {
                    return level;
                }
            }
        }
        0
    }
}

/// Checkpoints that wait for each other, worked out one by one from a start at which the first goes to all levels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Walked {
    done: Vec<f64>,
    /// For each level, the checkpoints that count on it, and when.
    counts: [Vec<(u64, f64)>; LEVELS_MAX],
    /// Seconds from one checkpoint to the next after the last that was worked out.
    pace: f64,
}

impl Walked {
    /// Returns `None` if no checkpoint waits for another. `versions` fit in node memory: the newest, which stays for a restart, the one
    /// that is being captured, and those that are still being written.
    pub fn new(pace: &Pace, versions: u64) -> Option<Walked> {
        let delayed = (0..pace.used).filter(|level| pace.delays[*level] > 0.0);
        let is_behind = delayed.clone().any(|level| pace.delays[level] > pace.period(level));
        if !is_behind && versions >= 2 + delayed.count() as u64 {
            return None;
        }
        let room = versions.saturating_sub(2).min(OPEN_MAX) as usize;
        let count = pace.every[pace.used - 1].saturating_mul(2).saturating_add(2).clamp(256, WALKED_MAX);
        let mut walked = Walked { done: Vec::with_capacity(count as usize), counts: Default::default(), pace: 0.0 };
        // When the unwritten versions before the newest will have been written, and when the newest will.
        let (mut open, mut newest): (Vec<f64>, f64) = (Vec::new(), 0.0);
        let (mut now, mut ends) = (0.0f64, [0.0f64; LEVELS_MAX]);
        for index in 0..count {
            now += pace.segment;
            open.retain(|end| *end > now);
            if open.len() > room {
                open.sort_by(f64::total_cmp);
                now = open[open.len() - 1 - room];
                open.retain(|end| *end > now);
            }
            let goes_to = |level: &usize| index.is_multiple_of(pace.every[*level]);
            now += (0..pace.used).filter(goes_to).map(|level| pace.costs[level]).sum::<f64>();
            walked.done.push(now);
            open.push(newest);
            newest = now;
            for level in (0..pace.used).filter(goes_to) {
                // A level takes one checkpoint at a time.
                ends[level] = ends[level].max(now) + pace.delays[level];
                walked.counts[level].push((index + 1, ends[level]));
                newest = newest.max(ends[level]);
            }
        }
        let half = walked.done.len() / 2;
        walked.pace = (now - walked.done[half - 1]) / (walked.done.len() - half) as f64;
        Some(walked)
    }

    /// The share of the time in which captures wait.
    pub fn waiting_share(&self, pace: &Pace) -> f64 {
        (1.0 - pace.mean() / self.pace).max(0.0)
    }

    fn done(&self, index: u64) -> f64 {
        match (index as usize).checked_sub(1) {
            None => 0.0,
            Some(at) => self.done.get(at).copied().unwrap_or_else(|| {
                self.done[self.done.len() - 1] + (index - self.done.len() as u64) as f64 * self.pace
            }),
        }
    }

    fn last(&self, time: f64) -> u64 {
        let known = self.done.partition_point(|done| *done <= time) as u64;
        match known == self.done.len() as u64 {
            true => known + ((time - self.done(known)) / self.pace) as u64,
            false => known,
        }
    }

    /// Returns 0 if no checkpoint counts yet, and `None` after the end of what was worked out.
    fn newest(&self, level: usize, time: f64) -> Option<u64> {
        let counts = &self.counts[level];
        let known = counts.partition_point(|(_, at)| *at <= time);
        (known < counts.len()).then(|| known.checked_sub(1).map_or(0, |at| counts[at].0))
    }

    fn counts(&self, level: usize, index: u64) -> Option<f64> {
        let counts = &self.counts[level];
        counts.binary_search_by_key(&index, |(index, _)| *index).ok().map(|at| counts[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(every: [u64; 3], costs: [f64; 3], delays: [f64; 3]) -> Pace {
        let four = |three: [f64; 3]| [three[0], three[1], three[2], 0.0];
        let every = [every[0], every[1], every[2], u64::MAX];
        Pace { segment: 100.0, used: 3, every, costs: four(costs), delays: four(delays) }
    }

    /// The closed form agrees with counting checkpoint by checkpoint.
    #[test]
    fn the_closed_form_is_what_one_finds_who_counts() {
        let pace = pace([1, 3, 12], [2.0, 7.0, 30.0], [0.0, 50.0, 400.0]);
        let walked = Walked::new(&pace, 2).expect("two versions are few");
        for (phase, is_all) in [(0, true), (0, false), (5, false), (11, false)] {
            let mut timeline = Timeline::new(&pace, None);
            if !is_all {
                timeline.start_at(phase);
            }
            let mut now = 0.0;
            for index in 1..60u64 {
                now += 100.0 + 2.0;
                let goes = |every: u64| if is_all { (index - 1) % every == 0 } else { (phase + index) % every == 0 };
                for (every, cost) in [(3, 7.0), (12, 30.0)] {
                    now += if goes(every) { cost } else { 0.0 };
                }
                assert!((timeline.done(index) - now).abs() < 1e-9, "{index}");
                assert_eq!((timeline.last(now), timeline.last(now - 0.01)), (index, index - 1));
                assert_eq!(timeline.due(1, index) == Some(index), goes(3));
                if goes(12) {
                    assert_eq!(timeline.newest(2, timeline.last(now + 400.0), now + 400.0), Some(index));
                    assert_ne!(timeline.newest(2, timeline.last(now + 399.0), now + 399.0), Some(index));
                    assert_eq!(
                        (timeline.written(index - 1, now - 1.0), timeline.written(index - 1, now - 31.0)),
                        (2, 1)
                    );
                }
            }
        }
        let timeline = Timeline::new(&pace, Some(&walked));
        assert_eq!((timeline.newest(0, 0, 50.0), timeline.newest(2, 1, 300.0)), (None, None), "nothing counts yet");
        assert!(walked.done(50) > Timeline::new(&pace, None).done(50), "captures wait for room");
    }

    #[test]
    fn captures_wait_for_room_and_flushes_for_each_other() {
        // With room for one version that is being written, the third capture waits until the first version has reached the
        // highest level, 550 s later.
        let slow = pace([1, 1, 4], [1.0, 0.0, 0.0], [0.0, 10.0, 550.0]);
        let three = Walked::new(&slow, 3).expect("few");
        let two = Walked::new(&slow, 2).expect("fewer");
        assert_eq!(three.done[..4], [101.0, 202.0, 303.0, 404.0]);
        assert_eq!(two.done[..3], [101.0, 202.0, 652.0]);
        assert_eq!((two.counts[2][0], two.counts[1][2]), ((1, 651.0), (3, 662.0)));
        // Each flush takes 250 s. Flushes follow each other, and set the program's pace.
        let behind = Walked::new(&pace([1, 1, 1], [1.0, 0.0, 0.0], [0.0, 0.0, 250.0]), u64::MAX).expect("behind");
        assert_eq!(behind.counts[2][..3], [(1, 351.0), (2, 601.0), (3, 851.0)]);
        let behind = Walked::new(&pace([1, 1, 1], [1.0, 0.0, 0.0], [0.0, 0.0, 250.0]), 3).expect("behind");
        assert!((behind.pace - 250.0).abs() < 1e-9 && (98..=103).contains(&behind.last(25_000.0)), "{}", behind.pace);
        assert!((behind.last(1e9) as f64 / 4e6 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn where_there_is_room_nothing_waits() {
        assert_eq!(Walked::new(&pace([1, 1, 4], [1.0, 0.0, 0.0], [0.0, 10.0, 350.0]), 4), None);
    }
}
