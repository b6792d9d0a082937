//! A job whose every failure ends all flushes, because the processes that do them die, and whose first checkpoint after a start goes to all
//! levels, as in the engine.
//!
//! A *run* is what lies between two failures: a recovery, and then work and checkpoints in always the same order, until the next failure. A failure that needs a
//! level undoes what this run did since its last checkpoint there counted; where none has counted yet, all of the run, and what earlier runs did that
//! was on lower levels only. How much that is follows from how long runs that get that far are, and each level is one linear equation. Every run ends with one
//! failure, so what stays done of a mean run, times the failures in a second, is the efficiency. Not exact is one thing: where in a segment a failure falls is followed for
//! the first level only, and work and saving are thought of as mixed evenly for the others.

use super::{LEVELS_MAX, LevelCosts, Pattern};

/// By level.
type Levels = [f64; LEVELS_MAX];

/// Runs of a job, on average. A run *begins behind* a level when the failures since the last one that computed again need it, and no higher one.
struct Runs {
    /// Levels that are used.
    count: usize,
    /// Failures a second.
    rate: f64,
    /// The share of failures that need a level.
    share: Levels,
    /// The chance that a recovery from a level completes.
    recovers: Levels,
    /// The share of runs that compute.
    computes: f64,
    /// The chance that a run works until its first checkpoint on a level counts.
    counts: Levels,
    /// Seconds of work since the newest that counts on a level, when a failure comes, where there is one.
    age: Levels,
    /// Seconds of work of a run whose first one does not count, times the chance of that.
    without: Levels,
    /// Seconds of work of a run that computes.
    work: f64,
}

impl Runs {
    fn of(used: &[LevelCosts], pattern: &Pattern) -> Runs {
        let count = used.len();
        let intervals = pattern.intervals();
        let every = pattern.every();
        let by_level = |of: &dyn Fn(usize) -> f64| -> Levels {
            std::array::from_fn(|level| if level < count { of(level) } else { 0.0 })
        };
        let cost = by_level(&|level| used[level].cost(intervals[level]));
        let delay = by_level(&|level| used[level].delay(intervals[level]));
        let rate: f64 = used.iter().map(|level| level.rate).sum();
        let share = by_level(&|level| used[level].rate / rate);
        let survives = |seconds: f64| (-rate * seconds).exp();
        let fails = |seconds: f64| -(-rate * seconds).exp_m1();

        let segment = pattern.segment;
        // Until the first checkpoint, to all levels, is done.
        let first = segment + cost.iter().sum::<f64>();
        // Seconds from one checkpoint of a level to the next, and how many more of them a run sees behind the first. What a checkpoint costs a higher level
        // lies in them as often as the runs get that far.
        let (mut period, mut later, mut behind) = ([0.0; LEVELS_MAX], [0.0; LEVELS_MAX], [0.0; LEVELS_MAX]);
        for level in (0..count).rev() {
            let of_own = (0..=level).map(|lower| cost[lower] / every[lower] as f64).sum::<f64>();
            let own = every[level] as f64 * (segment + of_own);
            let of_higher: f64 = (level + 1..count).map(|higher| cost[higher] * later[higher]).sum();
            period[level] = own + if of_higher > 0.0 { of_higher * (rate * own).exp_m1() } else { 0.0 };
            let grows = (rate * period[level]).exp_m1();
            later[level] = (rate * cost[level]).exp() / grows;
            // How long ago the last one was, when a failure comes.
            behind[level] = 1.0 / rate - period[level] / grows;
        }
        let mean = period[0];
        let working = segment / mean;
        let (is_first, is_next) = (survives(first), survives(mean));
        let counts = by_level(&|level| is_first * survives(delay[level]));
        // The work since the last checkpoint, as if work and saving were mixed evenly, and by how much it differs, because all of the saving comes behind the
        // work.
        let worked = fails(segment) / rate;
        let exact = (worked - segment * is_next) / (1.0 - is_next);
        let correction = exact - working * behind[0];
        let age = |level: usize| working * (delay[level] + behind[level]) + correction;
        let without = |level: usize| {
            let later = working * (is_first - counts[level]) / rate;
            worked + later - (segment + working * delay[level]) * counts[level]
        };
        // Time that is not work: the first checkpoint, of which the chance that it gets as far as a level falls, and the later ones.
        let (mut saved, mut begun) = (0.0, survives(segment));
        for level in 0..count {
            let fails = fails(cost[level]);
            saved += fails / rate * (begun + is_first * later[level]);
            begun *= 1.0 - fails;
        }
        let recovers = by_level(&|level| survives(used[level].recovery));
        let (age, without) = (by_level(&age), by_level(&without));
        Runs {
            count,
            rate,
            share,
            recovers,
            computes: begins(count, &share, &recovers)
                .iter()
                .zip(&recovers)
                .map(|(begins, recovers)| begins * recovers)
                .sum(),
            counts,
            age,
            without,
            work: 1.0 / rate - saved,
        }
    }

    /// Seconds of work that a failure undoes which needs `level`; and, by the lower levels that a run begins behind, what earlier runs have done and a failure
    /// would undo that needs `level`, times the chance of such a beginning. `below`: that of the lower levels.
    fn undone(&self, level: usize, below: &[(f64, Levels)]) -> (f64, Levels) {
        let own = self.computes * (self.counts[level] * self.age[level] + self.without[level]);
        // With `earlier` seconds at stake when runs begin to compute: linear in these.
        let with = |earlier: f64| {
            let undone = own + (1.0 - self.counts[level]) * earlier;
            let mut stake = [0.0; LEVELS_MAX];
            for behind in 0..level {
                let (undone_below, stake_below) = &below[behind];
                let again: f64 =
                    (0..behind).map(|lower| (1.0 - self.recovers[lower]) * (stake[lower] - stake_below[lower])).sum();
                stake[behind] =
                    self.share[behind] * (undone - undone_below + again) / passes(behind, &self.share, &self.recovers);
            }
            let next: f64 = (0..level).map(|behind| self.recovers[behind] * stake[behind]).sum();
            (undone, stake, next)
        };
        let offset = with(0.0).2;
        let slope = with(1.0).2 - offset;
        let (undone, stake, _) = with(offset / (1.0 - slope).max(0.0));
        (undone, stake)
    }

    /// Seconds of work that a mean run loses, its own or that of earlier ones.
    fn lost(&self) -> f64 {
        let mut below: Vec<(f64, Levels)> = Vec::with_capacity(self.count);
        for level in 0..self.count {
            below.push(self.undone(level, &below));
        }
        let of = |(level, (undone, stake)): (usize, &(f64, Levels))| {
            let recovering: f64 = (0..level).map(|behind| (1.0 - self.recovers[behind]) * stake[behind]).sum();
            self.share[level] * (undone + recovering)
        };
        below.iter().enumerate().map(of).sum()
    }
}

/// The chance that what begins behind a level continues otherwise than by a failure, while it recovers, that needs no higher one.
fn passes(behind: usize, share: &Levels, recovers: &Levels) -> f64 {
    1.0 - (1.0 - recovers[behind]) * share[..=behind].iter().sum::<f64>()
}

/// The share of runs that begin behind each level: by the failure before, or by the one that a recovery did not get past.
fn begins(count: usize, share: &Levels, recovers: &Levels) -> Levels {
    let mut begins = [0.0; LEVELS_MAX];
    for level in 0..count {
        let lower: f64 = (0..level).map(|lower| (1.0 - recovers[lower]) * begins[lower]).sum();
        begins[level] = share[level] * (1.0 + lower) / passes(level, share, recovers);
    }
    let all: f64 = begins.iter().sum();
    begins.map(|begins| begins / all)
}

/// The share of the time that is work and stays done, of the merged levels of a pattern.
pub(super) fn efficiency(used: &[LevelCosts], pattern: &Pattern) -> f64 {
    if used.iter().all(|level| level.rate == 0.0) {
        let costs = used.iter().zip(pattern.intervals()).map(|(level, interval)| level.cost(interval) / interval);
        return 1.0 / (1.0 + costs.sum::<f64>());
    }
    let runs = Runs::of(used, pattern);
    let share = runs.rate * (runs.computes * runs.work - runs.lost());
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}
