//! Models a job whose failures undo only what needs another level: the Markov model of Moody, Bronevetsky, Mohror and de Supinski (2010),
//! written as a renewal recursion.
//!
//! A segment of work ends with a checkpoint of the first level. A number of segments form a block, which ends with a checkpoint of the
//! second level, and likewise for the higher levels. A failure of a level's own class repeats that level's block, and one of a higher class
//! leaves it. Geometric sums reduce this to one step for each level, however many segments there are. A checkpoint of a higher level is
//! undone only by failures that need this level or a higher one.

use super::{LEVELS_MAX, LevelCosts, Pattern};

/// A process that takes time and may end by a failure of a class. Classes correspond to levels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    /// The expected seconds until the process ends, in either way.
    time: f64,
    /// The chances that the process ends by a failure of each class. The remaining chance is that of success.
    leave: [f64; LEVELS_MAX],
}

impl Process {
    /// A process of `length` seconds, which a failure of class `from` or of a higher class ends.
    fn atom(length: f64, rates: &[f64; LEVELS_MAX], from: usize) -> Process {
        let all: f64 = rates[from..].iter().sum();
        if all <= 0.0 || length <= 0.0 {
            return Process { time: length.max(0.0), leave: [0.0; LEVELS_MAX] };
        }
        let failing = -(-all * length).exp_m1();
        let leave = std::array::from_fn(|class| if class < from { 0.0 } else { rates[class] / all * failing });
        Process { time: failing / all, leave }
    }

    fn failing(&self) -> f64 {
        self.leave.iter().sum::<f64>().min(1.0)
    }

    fn success(&self) -> f64 {
        1.0 - self.failing()
    }

    fn then(&self, next: &Process) -> Process {
        let success = self.success();
        Process {
            time: self.time + success * next.time,
            leave: std::array::from_fn(|class| self.leave[class] + success * next.leave[class]),
        }
    }

    /// The process repeated `count` times in a row; a fraction counts in proportion.
    fn times(&self, count: f64) -> Process {
        let failing = self.failing();
        // 1 + s + s^2 + ... is how often the process is begun.
        let begun = if failing > 0.0 { -(count * (-failing).ln_1p()).exp_m1() / failing } else { count };
        Process { time: self.time * begun, leave: self.leave.map(|leave| leave * begun) }
    }

    /// The process, repeated as `again` after `recovery` whenever it ends by a failure of `class`.
    fn repeated(&self, class: usize, recovery: &Process, again: &Process) -> Process {
        let round = recovery.then(again);
        let rounds = self.leave[class] / (1.0 - round.leave[class]).max(0.0);
        let mut leave: [f64; LEVELS_MAX] = std::array::from_fn(|other| self.leave[other] + rounds * round.leave[other]);
        leave[class] = 0.0;
        Process { time: self.time + rounds * round.time, leave }
    }
}

/// The share of the time that is spent on work that is kept, for the merged levels of a pattern.
pub(super) fn efficiency(used: &[LevelCosts], pattern: &Pattern) -> f64 {
    let rates: [f64; LEVELS_MAX] = std::array::from_fn(|class| used.get(class).map_or(0.0, |level| level.rate));
    let intervals = pattern.intervals();
    // Lower failures do not undo what a higher level does, but it waits until they have been recovered from.
    let mut stretch = 1.0;
    let mut block = Process { time: pattern.segment, leave: [0.0; LEVELS_MAX] };
    for (class, level) in used.iter().enumerate() {
        let (cost, delay) = (level.cost(intervals[class]), level.delay(intervals[class]));
        let (once, again) = match class {
            0 => {
                let length = pattern.segment + cost;
                (Process::atom(length, &rates, 0), Process::atom(length + delay, &rates, 0))
            }
            _ => {
                let write = Process::atom(cost * stretch, &rates, class);
                let count = pattern.levels[class].1 as f64;
                // Work that was done while the last checkpoint did not count yet is lost with it.
                let lost = if block.time > 0.0 { delay / block.time } else { 0.0 };
                (block.times(count).then(&write), block.times(count + lost).then(&write))
            }
        };
        let read = Process::atom(level.recovery * stretch, &rates, class);
        let recovery = read.repeated(class, &Process::atom(0.0, &rates, class), &read);
        block = once.repeated(class, &recovery, &again);
        stretch += level.rate * recovery.time;
    }
    let work = intervals.last().copied().unwrap_or(pattern.segment);
    let share = work / block.time;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}
