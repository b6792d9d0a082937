//! Models a job in the engine: every failure ends all flushes, because the processes that make them die, and the first checkpoint after a
//! start goes to all levels.
//!
//! A *run* is the time between two failures: a recovery, and then work and checkpoints, always in the same order, until the next failure. A
//! failure that needs a level undoes what this run has done since its last checkpoint that counts there. If no checkpoint counts there yet,
//! the failure undoes the whole run, and whatever earlier runs had saved on lower levels only. The amount depends on the mean length of the
//! runs that reach that point, and each level is one linear equation. Every run ends with one failure, so the efficiency is the work of a
//! mean run that is kept, multiplied by the failures in a second. One thing is not exact: the position of a failure within a segment is
//! followed only for the first level, and for the others work and saving are assumed to be mixed evenly.

use super::{LEVELS_MAX, LevelCosts, Pattern};

/// A value for each level.
type Levels = [f64; LEVELS_MAX];

/// The runs of a job, on average. A run *begins behind* a level if that level is the highest that the failures since
/// the job last computed need.
struct Runs {
    /// The number of levels that are used.
    count: usize,
    /// Failures a second.
    rate: f64,
    /// For each level, the share of the failures that need it.
    share: Levels,
    /// The chance that a recovery from a level completes.
    recovers: Levels,
    /// The share of runs that compute.
    computes: f64,
    /// The chance that a run works until its first checkpoint on a level counts.
    counts: Levels,
    /// If a checkpoint counts on a level when a failure occurs, the seconds of work since the newest such checkpoint.
    age: Levels,
    /// The seconds of work of a run in which no checkpoint counts on a level, multiplied by the chance of such a run.
    without: Levels,
    /// The seconds of work of a run that computes.
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
        // Seconds until the first checkpoint, which goes to all levels, is done.
        let first = segment + cost.iter().sum::<f64>();
        // Seconds from one checkpoint of a level to the next, and the number of further checkpoints that a run reaches after the first. The
        // cost of a checkpoint on a higher level is part of the period as often as runs reach it.
        let (mut period, mut later, mut behind) = ([0.0; LEVELS_MAX], [0.0; LEVELS_MAX], [0.0; LEVELS_MAX]);
        for level in (0..count).rev() {
            let of_own = (0..=level).map(|lower| cost[lower] / every[lower] as f64).sum::<f64>();
            let own = every[level] as f64 * (segment + of_own);
            let of_higher: f64 = (level + 1..count).map(|higher| cost[higher] * later[higher]).sum();
            period[level] = own + if of_higher > 0.0 { of_higher * (rate * own).exp_m1() } else { 0.0 };
            let grows = (rate * period[level]).exp_m1();
            later[level] = (rate * cost[level]).exp() / grows;
            // How long before a failure the last checkpoint was taken.
            behind[level] = 1.0 / rate - period[level] / grows;
        }
        let mean = period[0];
        let working = segment / mean;
        let (is_first, is_next) = (survives(first), survives(mean));
        let counts = by_level(&|level| is_first * survives(delay[level]));
        // The work since the last checkpoint, as if work and saving were mixed evenly, and the difference to that, because all of the
        // saving follows the work.
        let worked = fails(segment) / rate;
        let exact = (worked - segment * is_next) / (1.0 - is_next);
        let correction = exact - working * behind[0];
        let age = |level: usize| working * (delay[level] + behind[level]) + correction;
        let without = |level: usize| {
            let later = working * (is_first - counts[level]) / rate;
            worked + later - (segment + working * delay[level]) * counts[level]
        };
        // Time that is not work: the first checkpoint, which reaches each further level with a smaller chance, and the later checkpoints.
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

    /// Returns the seconds of work that a failure that needs `level` undoes. For each lower level that a run begins behind, it also returns
    /// the work of earlier runs that such a failure would undo, multiplied by the chance of such a beginning. `below` holds these values
    /// for the lower levels.
    fn undone(&self, level: usize, below: &[(f64, Levels)]) -> (f64, Levels) {
        let own = self.computes * (self.counts[level] * self.age[level] + self.without[level]);
        // If `earlier` seconds are at stake when runs begin to compute, the result is linear in them.
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

    /// The seconds of work that a mean run loses, from its own work and from that of earlier runs.
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

/// The chance that a run that begins behind a level does not continue with a failure, during its recovery, that needs no higher level.
fn passes(behind: usize, share: &Levels, recovers: &Levels) -> f64 {
    1.0 - (1.0 - recovers[behind]) * share[..=behind].iter().sum::<f64>()
}

/// The share of runs that begin behind each level, by the failure before or by the failure that a recovery did not survive.
fn begins(count: usize, share: &Levels, recovers: &Levels) -> Levels {
    let mut begins = [0.0; LEVELS_MAX];
    for level in 0..count {
        let lower: f64 = (0..level).map(|lower| (1.0 - recovers[lower]) * begins[lower]).sum();
        begins[level] = share[level] * (1.0 + lower) / passes(level, share, recovers);
    }
    let all: f64 = begins.iter().sum();
    begins.map(|begins| begins / all)
}

/// The share of the time that is spent on work that is kept, for the merged levels of a pattern.
pub(super) fn efficiency(used: &[LevelCosts], pattern: &Pattern) -> f64 {
    if used.iter().all(|level| level.rate == 0.0) {
        let costs = used.iter().zip(pattern.intervals()).map(|(level, interval)| level.cost(interval) / interval);
        return 1.0 / (1.0 + costs.sum::<f64>());
    }
    let runs = Runs::of(used, pattern);
    let share = runs.rate * (runs.computes * runs.work - runs.lost());
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}
