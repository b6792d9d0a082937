//! Decides how often to checkpoint at which level: the costs of checkpoints and of failures, the expected time of a job, and the intervals
//! that minimize it.
//!
//! [`first_order`] has the closed forms. For one level they are those of Young (1974) and Daly (2006). For several levels they are a sum of
//! square roots and the pattern that gives it, by Benoit, Cavelan, Le Fèvre, Robert and Sun (2017) and, for two levels without a known
//! length of the job, by Di, Robert, Vivien and Cappello (2017). Vaidya (1997) distinguishes the time until a checkpoint counts from the
//! time for which it blocks. The closed forms hold while little is lost.
//!
//! [`efficiency`] gives the expected time even where much is lost, by one of two sets of rules ([`Conduct`]): `chain` is the Markov model
//! of the literature, and `engine` models the engine. Both agree with the plays of [`crate::planner`], within the noise of the plays, for
//! jobs that spend at least a sixth of their time on work. For jobs that spend less, `chain` is up to 13 % off if checkpoints count long
//! after they were taken.
//!
//! [`best`] searches for the pattern with the highest efficiency, and leaves out levels that do not pay.

mod chain;
mod engine;

/// The maximum number of levels in a pattern.
pub const LEVELS_MAX: usize = 4;

/// The share of the state that a checkpoint moves, by the time since the checkpoint before it. Changed data is written to again and again,
/// so the share saturates (ICS'19, figure 6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volume {
    /// The share right after a checkpoint.
    pub least: f64,
    /// The share after a long time.
    pub most: f64,
    /// Seconds after which 63 % of the difference is reached; 0: it is reached at once.
    pub saturates_after: f64,
}

impl Volume {
    /// The whole state is always moved.
    pub const WHOLE: Volume = Volume { least: 1.0, most: 1.0, saturates_after: 0.0 };

    /// The share of the state that is moved after `interval` seconds.
    pub fn share(&self, interval: f64) -> f64 {
        match self.saturates_after > 0.0 {
            true => self.most - (self.most - self.least) * (-interval / self.saturates_after).exp(),
            false => self.most,
        }
    }
}

/// What a level of checkpoints costs, in seconds, and how often it is needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelCosts {
    /// Seconds for which the program stands still, whatever it has changed.
    pub fixed: f64,
    /// Seconds for which the program stands still if the whole state is moved.
    pub blocking: f64,
    /// Seconds from the capture until the checkpoint counts, if the whole state is moved.
    pub latency: f64,
    /// The share by which the program is slower during that time: 0.02 is 2 %.
    pub slowdown: f64,
    /// Seconds from a failure until the program computes again from such a checkpoint.
    pub recovery: f64,
    /// Failures a second for which this level is the lowest that survives.
    pub rate: f64,
    /// How much of the state a checkpoint moves.
    pub volume: Volume,
}

impl LevelCosts {
    /// The costs of a level that blocks and recovers in these times, without latency.
    pub const fn blocking(blocking: f64, recovery: f64, rate: f64) -> LevelCosts {
        LevelCosts { fixed: 0.0, blocking, latency: 0.0, slowdown: 0.0, recovery, rate, volume: Volume::WHOLE }
    }

    /// Seconds that a checkpoint costs after `interval` seconds, by blocking and by slowing the program down.
    pub fn cost(&self, interval: f64) -> f64 {
        self.fixed + self.volume.share(interval) * (self.blocking + self.slowdown * self.latency)
    }

    /// Seconds until a checkpoint counts, likewise.
    pub fn delay(&self, interval: f64) -> f64 {
        self.volume.share(interval) * self.latency
    }
}

/// What a level costs by its closed forms, in shares of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waste {
    /// Seconds between two checkpoints of the level.
    pub interval: f64,
    /// The share in which the program stands still for checkpoints or is slowed down by them.
    pub checkpoints: f64,
    /// The share of work that failures undo.
    pub rework: f64,
    /// The share that passes between failures and the moment when the program computes again.
    pub recovery: f64,
}

impl Waste {
    /// What a level loses with this interval, to first order: c/T + rate (T/2 + d + r).
    pub fn of(level: &LevelCosts, interval: f64) -> Waste {
        Waste {
            interval,
            checkpoints: level.cost(interval) / interval,
            rework: level.rate * (interval / 2.0 + level.delay(interval)),
            recovery: level.rate * level.recovery,
        }
    }

    /// The sum of all three shares.
    pub fn total(&self) -> f64 {
        self.checkpoints + self.rework + self.recovery
    }
}

/// Treats each level alone, with the interval that loses the least: sqrt(2 c / rate), but never less than the level's delay (Young 1974,
/// Vaidya 1997). A level without failures has an infinite interval.
///
/// ```
/// use bivouac_core::policy::intervals::{LevelCosts, first_order};
/// let [level] = first_order(&[LevelCosts::blocking(300.0, 0.0, 1.0 / 86_400.0)])[..] else { unreachable!() };
/// assert_eq!(level.interval.round(), 7200.0);
/// ```
pub fn first_order(levels: &[LevelCosts]) -> Vec<Waste> {
    let of = |level: &LevelCosts| {
        // If the volume depends on the interval, so do the costs. A few rounds converge.
        let mut interval = (2.0 * level.cost(f64::MAX) / level.rate).sqrt();
        for _ in 0..16 {
            interval = (2.0 * level.cost(interval) / level.rate).sqrt().max(level.delay(interval));
        }
        match interval.is_finite() && interval > 0.0 {
            true => Waste::of(level, interval),
            false => Waste { interval, checkpoints: 0.0, rework: 0.0, recovery: 0.0 },
        }
    };
    levels.iter().map(of).collect()
}

/// Daly's interval for one level (2006, equation 37), in seconds of work between two checkpoints. It is better than the square root if
/// failures are frequent.
pub fn daly(cost: f64, mtbf: f64) -> f64 {
    match cost < 2.0 * mtbf {
        true => {
            let x = cost / (2.0 * mtbf);
            (2.0 * cost * mtbf).sqrt() * (1.0 + x.sqrt() / 3.0 + x / 9.0) - cost
        }
        false => mtbf,
    }
}

/// What failures do to checkpoints that are being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// As the literature assumes, a checkpoint that is being written is undone only by failures that need its level or a higher one,
    /// whether or not the program stands still for it. Every n-th checkpoint of the whole job goes to a level.
    Chain,
    /// As in the engine, a failure ends all flushes, because the processes that make them die. The first checkpoint after a start goes to
    /// all levels, and from there on every n-th goes to a level.
    Engine,
}

/// A pattern of checkpoints: which levels are used, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// Seconds of work between two checkpoints.
    pub segment: f64,
    /// The levels that are used, ascending. With each level comes n: every n-th checkpoint of the level before in this list goes there; 1
    /// for the first level.
    pub levels: Vec<(usize, u64)>,
}

impl Pattern {
    /// Seconds of work between two checkpoints of each level of the pattern.
    pub fn intervals(&self) -> Vec<f64> {
        let mut interval = self.segment;
        let mut of = |(_, every): &(usize, u64)| {
            interval *= *every as f64;
            interval
        };
        self.levels.iter().map(&mut of).collect()
    }

    /// For each level of the pattern, n if every n-th checkpoint goes to it.
    pub fn every(&self) -> Vec<u64> {
        let mut product = 1u64;
        let mut of = |(_, every): &(usize, u64)| {
            product = product.saturating_mul(*every);
            product
        };
        self.levels.iter().map(&mut of).collect()
    }
}

/// The levels of a pattern, with the failures of those that it leaves out added to the next one that survives them.
pub fn merged(levels: &[LevelCosts], pattern: &Pattern) -> Vec<LevelCosts> {
    let mut from = 0;
    let mut of = |(index, _): &(usize, u64)| {
        let rate = levels[from..=*index].iter().map(|level| level.rate).sum();
        from = index + 1;
        LevelCosts { rate, ..levels[*index] }
    };
    pattern.levels.iter().map(&mut of).collect()
}

/// The share of the time that is spent on work that is kept, by the full model. It is 0 if the job never ends. Failures that no level of
/// the pattern survives are not considered.
///
/// # Panics
/// If the pattern has more levels than [`LEVELS_MAX`], or one that is not in `levels`.
///
/// ```
/// use bivouac_core::policy::intervals::{Conduct, LevelCosts, Pattern, efficiency};
/// let levels = [LevelCosts::blocking(8.0, 8.0, 5.34e-4), LevelCosts::blocking(1943.0, 1943.0, 1.77e-7)];
/// let pattern = Pattern { segment: 170.0, levels: vec![(0, 1), (1, 800)] };
/// assert_eq!((efficiency(&levels, &pattern, Conduct::Chain) * 1000.0).round(), 883.0);
/// ```
pub fn efficiency(levels: &[LevelCosts], pattern: &Pattern, conduct: Conduct) -> f64 {
    of_merged(&merged(levels, pattern), pattern, conduct)
}

fn of_merged(used: &[LevelCosts], pattern: &Pattern, conduct: Conduct) -> f64 {
    assert!(used.len() <= LEVELS_MAX, "{} levels, and a pattern has at most {LEVELS_MAX}", used.len());
    match conduct {
        Conduct::Chain => chain::efficiency(used, pattern),
        Conduct::Engine => engine::efficiency(used, pattern),
    }
}

// ---------------------------------------------------------------------------------------------- the best pattern

/// A pattern and its efficiency.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The segment, the levels and the counts.
    pub pattern: Pattern,
    /// The share of the time that is spent on work that is kept.
    pub efficiency: f64,
}

impl Best {
    fn is_better_than(&self, other: &Best) -> bool {
        1.0 - self.efficiency < (1.0 - other.efficiency) * (1.0 - GAIN)
    }
}

/// The parts of a pattern that are not free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The shortest and the longest segment, in seconds.
    pub segment: (f64, f64),
    /// For each level whose count is fixed, n if every n-th checkpoint goes to it. The first level gets all checkpoints.
    pub every: [Option<u64>; LEVELS_MAX],
}

impl Bounds {
    /// Nothing is fixed.
    pub const NONE: Bounds = Bounds { segment: (0.0, f64::INFINITY), every: [None; LEVELS_MAX] };

    /// Sets the fixed parts. Counts that are not multiples of each other are rounded.
    fn settle(&self, pattern: &mut Pattern) {
        let mut product = 1u64;
        for (at, (level, count)) in pattern.levels.iter_mut().enumerate() {
            if let Some(every) = self.every[*level].filter(|_| at > 0) {
                *count = (every.saturating_add(product / 2) / product).max(1);
            }
            product = product.saturating_mul(*count);
        }
    }
}

/// The number of rounds of a golden section over all useful segments. It finds the best segment to a few parts in ten thousand, and the
/// efficiency changes with the square of that error.
const SECTIONS: u32 = 24;
/// If the search changes a count by one step, which is a factor of three at most (from 3 to 1), the best segment and the shortest one that
/// delays allow change by less than this factor. The second constant is the number of rounds for this range.
const NEAR: f64 = 3.5;
const SECTIONS_NEAR: u32 = 13;
/// A level that would be used less often than every this many checkpoints is never used.
const EVERY_MAX: u64 = 100_000_000;
/// The least relative reduction of the loss that makes a step worthwhile.
const GAIN: f64 = 1e-6;

/// Returns the pattern with the highest efficiency. The highest level with failures is always used, because no other level survives
/// them. The lowest `always` levels are used in any case, because the other levels are made from them. All other levels are used if
/// they pay. Intervals are no shorter than the time that a level needs until its checkpoints count. `None` if nothing fails, or if a
/// level's numbers make no sense.
///
/// ```
/// use bivouac_core::policy::intervals::{Conduct, LevelCosts, best};
/// let levels = [LevelCosts::blocking(8.0, 8.0, 5.34e-4), LevelCosts::blocking(476.0, 476.0, 2.08e-6), LevelCosts::blocking(1943.0, 1943.0, 1.77e-7)];
/// let best = best(&levels, 0, Conduct::Chain).unwrap();
/// assert_eq!((best.efficiency * 1000.0).round(), 843.0);
/// ```
pub fn best(levels: &[LevelCosts], always: usize, conduct: Conduct) -> Option<Best> {
    let top = levels.iter().rposition(|level| level.rate > 0.0).filter(|_| is_sound(levels))?;
    let fixed = (1usize << always.min(top)) - 1;
    let subsets = (0..1usize << top).filter(|below| below & fixed == fixed).map(|below| {
        let used = (0..=top).filter(|level| *level == top || below >> level & 1 == 1);
        best_with(levels, used, &Bounds::NONE, conduct)
    });
    // Of equal patterns, the one with the most levels is taken, so that a level that costs nothing is used.
    subsets.reduce(|one, other| if one.is_better_than(&other) { one } else { other })
}

/// Returns the best pattern that uses all the levels, within bounds. `None` if nothing fails, if there is no level, or if a
/// level's numbers make no sense.
pub fn best_within(levels: &[LevelCosts], bounds: &Bounds, conduct: Conduct) -> Option<Best> {
    let fails = levels.iter().any(|level| level.rate > 0.0);
    (fails && is_sound(levels)).then(|| best_with(levels, 0..levels.len(), bounds, conduct))
}

fn is_sound(levels: &[LevelCosts]) -> bool {
    let numbers = levels.iter().flat_map(|level| [level.rate, level.recovery, level.cost(1.0), level.delay(1.0)]);
    levels.len() <= LEVELS_MAX && { numbers }.all(|number| number.is_finite() && number >= 0.0)
}

/// The best pattern that uses these levels.
fn best_with(levels: &[LevelCosts], used: impl Iterator<Item = usize>, bounds: &Bounds, conduct: Conduct) -> Best {
    let mut pattern = Pattern { segment: 1.0, levels: used.map(|level| (level, 1)).collect() };
    let alone = first_order(&merged(levels, &pattern));
    // A level that costs nothing could be used all the time. A hundredth of the next interval is as good.
    let mut before = alone[0].interval;
    for (at, waste) in alone.iter().enumerate().skip(1) {
        before = before.max(waste.interval.min(1e12) / 100.0 / (alone.len() - at) as f64);
        let every = (waste.interval / before).round();
        pattern.levels[at].1 = if every.is_finite() { (every as u64).clamp(1, EVERY_MAX) } else { EVERY_MAX };
        before *= pattern.levels[at].1 as f64;
    }
    bounds.settle(&mut pattern);
    let mut found = with_segment(levels, pattern, bounds.segment, SECTIONS, conduct);
    let near = |segment: f64| {
        let (from, to) = bounds.segment;
        ((segment / NEAR).max(from), (segment * NEAR).min(to))
    };
    loop {
        let before = found.clone();
        for at in 1..found.pattern.levels.len() {
            if bounds.every[found.pattern.levels[at].0].is_some() {
                continue;
            }
            for step in [|n: u64| n * 2, |n| n / 2, |n| n + n / 8, |n| n - n / 8, |n| n + 1, |n| n - 1] {
                loop {
                    let every = step(found.pattern.levels[at].1);
                    if every == 0 || every > EVERY_MAX || every == found.pattern.levels[at].1 {
                        break;
                    }
                    let mut other = found.pattern.clone();
                    other.levels[at].1 = every;
                    bounds.settle(&mut other);
                    let other = with_segment(levels, other, near(found.pattern.segment), SECTIONS_NEAR, conduct);
                    if !other.is_better_than(&found) {
                        break;
                    }
                    found = other;
                }
            }
        }
        if !found.is_better_than(&before) {
            return found;
        }
    }
}

/// Finds the best segment for these counts within bounds, by a golden section over its logarithm.
fn with_segment(
    levels: &[LevelCosts],
    pattern: Pattern,
    (from, to): (f64, f64),
    sections: u32,
    conduct: Conduct,
) -> Best {
    let used = merged(levels, &pattern);
    let products = Pattern { segment: 1.0, ..pattern.clone() }.intervals();
    // The bounds are the longest delay, in proportion for each level, and the longest segment that can be of use.
    let least = used.iter().zip(&products).map(|(level, product)| level.delay(f64::MAX) / product).fold(1e-6, f64::max);
    let rate: f64 = used.iter().map(|level| level.rate).sum();
    let most = (100.0 / rate).max(least * 2.0);
    let mut pattern = pattern;
    let mut at = |logarithm: f64| {
        // The rounding of the logarithm may move the segment out of its bounds.
        pattern.segment = logarithm.exp().clamp(from, to);
        (of_merged(&used, &pattern, conduct), pattern.segment)
    };
    let (least, most) = (least.clamp(from, to), most.clamp(from, to));
    let (mut low, mut high) = (least.ln(), most.ln());
    let mut found = at(low);
    if least < most {
        let ratio = (5f64.sqrt() - 1.0) / 2.0;
        let (mut left, mut right) = (at(high - ratio * (high - low)), at(low + ratio * (high - low)));
        let edge = at(high);
        for _ in 0..sections {
            // If all values are zero, the efficiency rises towards short segments.
            if left.0 >= right.0 {
                high = right.1.ln();
                (right, left) = (left, at(high - ratio * (high - low)));
            } else {
                low = left.1.ln();
                (left, right) = (right, at(low + ratio * (high - low)));
            }
        }
        let most = |one: (f64, f64), other: (f64, f64)| if other.0 > one.0 { other } else { one };
        found = [right, found, edge].into_iter().fold(left, most);
    }
    let (efficiency, segment) = found;
    Best { efficiency, pattern: Pattern { segment, ..pattern } }
}

#[cfg(test)]
mod tests;
