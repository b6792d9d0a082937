//! How often to checkpoint at which level: what checkpoints cost and what failures cost, the expected time of a job, and the intervals for which it
//! is least.
//!
//! [`first_order`] has the closed forms: one level by Young (1974) and Daly (2006); several levels as a sum of square roots and the pattern that gives
//! it by Benoit, Cavelan, Le Fèvre, Robert and Sun (2017) and, for two levels without a known length of the job, Di, Robert, Vivien and Cappello (2017); the time until a
//! checkpoint counts, beside the time for which it blocks, by Vaidya (1997). They hold while little is lost.
//!
//! [`efficiency`] has the expected time also where much is lost, by one of two sets of rules ([`Conduct`]): `chain` is the Markov model of the literature, `engine` what the
//! engine does. Both agree with what [`crate::planner`] plays, within the noise of the plays, for jobs that spend at least a sixth of their time on
//! work. For jobs that get less done, `chain` is up to 13 % off if checkpoints count long after they were taken.
//!
//! [`best`] looks for the pattern with the highest efficiency, and leaves out levels that do not pay.

mod chain;
mod engine;

/// Levels that a pattern can have.
pub const LEVELS_MAX: usize = 4;

/// How much of the state a checkpoint moves, as a share of all, by the time since the one before: what changes is written to again and again, so it saturates
/// (ICS'19, figure 6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volume {
    /// Right after a checkpoint.
    pub least: f64,
    /// After a long time.
    pub most: f64,
    /// Seconds after which 63 % of the difference is reached; 0: at once.
    pub saturates_after: f64,
}

impl Volume {
    /// All of it, always.
    pub const WHOLE: Volume = Volume { least: 1.0, most: 1.0, saturates_after: 0.0 };

    /// The share after `interval` seconds.
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
    /// For which the program stands still, whatever it has changed.
    pub fixed: f64,
    /// For which it stands still where all of the state is moved.
    pub blocking: f64,
    /// From the capture until the checkpoint counts, where all of the state is moved.
    pub latency: f64,
    /// By how much the program is slower meanwhile: 0.02 is 2 %.
    pub slowdown: f64,
    /// From a failure until the program computes again from such a checkpoint.
    pub recovery: f64,
    /// Failures a second that this level is the lowest to survive.
    pub rate: f64,
    /// How much of the state one moves.
    pub volume: Volume,
}

impl LevelCosts {
    /// One that blocks for so long, and recovers in so long.
    pub const fn blocking(blocking: f64, recovery: f64, rate: f64) -> LevelCosts {
        LevelCosts { fixed: 0.0, blocking, latency: 0.0, slowdown: 0.0, recovery, rate, volume: Volume::WHOLE }
    }

    /// Seconds that one costs after `interval` seconds, while it blocks and while it slows down.
    pub fn cost(&self, interval: f64) -> f64 {
        self.fixed + self.volume.share(interval) * (self.blocking + self.slowdown * self.latency)
    }

    /// Seconds until it counts, likewise.
    pub fn delay(&self, interval: f64) -> f64 {
        self.volume.share(interval) * self.latency
    }
}

/// A level by its closed forms: shares of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waste {
    /// Seconds between two checkpoints of the level.
    pub interval: f64,
    /// Standing still and being slowed down for them.
    pub checkpoints: f64,
    /// Work that failures undo.
    pub rework: f64,
    /// Time until it computes again after failures.
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

    /// All of it.
    pub fn total(&self) -> f64 {
        self.checkpoints + self.rework + self.recovery
    }
}

/// Each level by itself, with the interval that loses the least: sqrt(2 c / rate), and never less than its delay (Young 1974, Vaidya 1997).
/// A level without failures has an infinite one.
///
/// ```
/// use bivouac_core::policy::intervals::{LevelCosts, first_order};
/// let [level] = first_order(&[LevelCosts::blocking(300.0, 0.0, 1.0 / 86_400.0)])[..] else { unreachable!() };
/// assert_eq!(level.interval.round(), 7200.0);
/// ```
pub fn first_order(levels: &[LevelCosts]) -> Vec<Waste> {
    let of = |level: &LevelCosts| {
        // What it costs depends on the interval where its volume does: a few rounds come to rest.
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

/// Daly's interval for one level (2006, equation 37): better than the square root where failures are frequent. Seconds of work between two checkpoints.
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
    /// As the literature supposes: what is being written, whether the program stands still for it or not, is undone only by failures that need its level or a higher one;
    /// every so many-th checkpoint of the whole job goes to a level.
    Chain,
    /// As the engine does: a failure ends all flushes, because the processes that do them die; the first checkpoint after a start goes to all levels, and every
    /// so many-th from there.
    Engine,
}

/// A pattern of checkpoints: which levels there are, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// Seconds of work between two checkpoints.
    pub segment: f64,
    /// The levels that are used, ascending, and every how many-th checkpoint of the level before in this list goes there; 1 for the first one.
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

    /// Every how many-th checkpoint goes to each level of the pattern.
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

/// The share of the time that is work and stays done, by the full model. 0 if the job never ends: failures that no level of the pattern
/// survives are not considered.
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
    /// Segment, levels and counts.
    pub pattern: Pattern,
    /// The share of the time that is work and stays done.
    pub efficiency: f64,
}

impl Best {
    fn is_better_than(&self, other: &Best) -> bool {
        1.0 - self.efficiency < (1.0 - other.efficiency) * (1.0 - GAIN)
    }
}

/// What of a pattern is not free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The least and the greatest segment, in seconds.
    pub segment: (f64, f64),
    /// Every how many-th checkpoint goes to each of the levels, where that is not free. Those of the first level are all.
    pub every: [Option<u64>; LEVELS_MAX],
}

impl Bounds {
    /// Nothing is fixed.
    pub const NONE: Bounds = Bounds { segment: (0.0, f64::INFINITY), every: [None; LEVELS_MAX] };

    /// Sets what is fixed. Counts that do not go into each other are rounded.
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

/// Rounds of a golden section over all segments that can be of use: the best one is found to a few parts in ten thousand, of which efficiency feels the square.
const SECTIONS: u32 = 24;
/// Where counts change by a step of the search, by a factor of three at most (from 3 to 1), the best segment and the shortest one that delays allow
/// change by less than this factor; and the rounds that this takes.
const NEAR: f64 = 3.5;
const SECTIONS_NEAR: u32 = 13;
/// A level that is used less often than that is used never.
const EVERY_MAX: u64 = 100_000_000;
/// By what share less has to be lost to be worth a step.
const GAIN: f64 = 1e-6;

/// The pattern with the highest efficiency. The highest level with failures is always used, because nothing else survives these; the others are where
/// they pay, but the lowest `always` ones, which are used in any case: what other levels are made from. Intervals are no shorter than what a level needs until its checkpoints count. `None` where nothing fails, or no level is free of nonsense.
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
    // Of equals the one with the most levels: one that costs nothing is used.
    subsets.reduce(|one, other| if one.is_better_than(&other) { one } else { other })
}

/// The best pattern of all the levels, within bounds. `None` where nothing fails, there is no level, or one is nonsense.
pub fn best_within(levels: &[LevelCosts], bounds: &Bounds, conduct: Conduct) -> Option<Best> {
    let fails = levels.iter().any(|level| level.rate > 0.0);
    (fails && is_sound(levels)).then(|| best_with(levels, 0..levels.len(), bounds, conduct))
}

fn is_sound(levels: &[LevelCosts]) -> bool {
    let numbers = levels.iter().flat_map(|level| [level.rate, level.recovery, level.cost(1.0), level.delay(1.0)]);
    levels.len() <= LEVELS_MAX && { numbers }.all(|number| number.is_finite() && number >= 0.0)
}

/// The best one that uses these levels.
fn best_with(levels: &[LevelCosts], used: impl Iterator<Item = usize>, bounds: &Bounds, conduct: Conduct) -> Best {
    let mut pattern = Pattern { segment: 1.0, levels: used.map(|level| (level, 1)).collect() };
    let alone = first_order(&merged(levels, &pattern));
    // One that costs nothing could be used all the time: a hundredth of the next interval is as good.
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

/// The best segment for these counts within bounds, by golden section over its logarithm.
fn with_segment(
    levels: &[LevelCosts],
    pattern: Pattern,
    (from, to): (f64, f64),
    sections: u32,
    conduct: Conduct,
) -> Best {
    let used = merged(levels, &pattern);
    let products = Pattern { segment: 1.0, ..pattern.clone() }.intervals();
    // The longest delay, of each level in proportion, and what can be of use at all.
    let least = used.iter().zip(&products).map(|(level, product)| level.delay(f64::MAX) / product).fold(1e-6, f64::max);
    let rate: f64 = used.iter().map(|level| level.rate).sum();
    let most = (100.0 / rate).max(least * 2.0);
    let mut pattern = pattern;
    let mut at = |logarithm: f64| {
        // What comes of a logarithm again may lie beside the bounds.
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
            // On a plain of zeros, short segments are where it rises.
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
