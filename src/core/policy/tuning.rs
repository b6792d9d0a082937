//! Sets intervals while the program runs, from the measured costs of checkpoints and the expected failures.
//!
//! Only the root holds a [`Tuner`]. It is told of each checkpoint, of each commit, and of the program's steps, both while levels are being
//! written and while none is. At most at every fifth checkpoint, the tuner searches for the best pattern by the exact model of
//! [`super::intervals`], and changes its answer if the new one loses at least 2 % less. A level that is left to the tuner is used more or
//! less often, but never left out.
//!
//! The tuner acts on measurements that its own answers influence: after a longer interval more of the state has changed, so checkpoints
//! cost more, and the next answer takes that into account.
#![forbid(unsafe_code)]

use super::intervals::{Best, Bounds, Conduct, LEVELS_MAX, LevelCosts, Pattern, best_within, efficiency};
use crate::base::Level;
use crate::config::Choice;
use std::fmt;

/// A failure ends this session with all its flushes.
const CONDUCT: Conduct = Conduct::Engine;
/// The minimum number of checkpoints between two changes.
const CHANGE_EVERY: u64 = 5;
/// The share of the loss that a change has to save.
const GAIN: f64 = 0.02;
/// The least slow-down that is assumed for a level that is written in the background. What such writes take from other users of shared
/// storage cannot be measured here.
const SLOWDOWN_LEAST: f64 = 0.01;
/// The weight of the newest cost in the mean.
const NEWEST: f64 = 0.3;
/// The maximum number of steps in a mean. Older steps are forgotten.
const STEPS_MAX: f64 = 256.0;
/// With fewer steps than this, with or without writes, no slow-down is computed.
const STEPS_LEAST: f64 = 8.0;
/// The share of the time that goes into the second checkpoint, while only one checkpoint of the program has been measured.
const UNKNOWN_SHARE: f64 = 0.05;

/// A cost that may change. The second value replaces the first, because first calls also make memory ready.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    seen: u64,
    value: f64,
    range: [f64; 2],
    /// The cost in an earlier run, which holds until there are two values.
    before: Option<f64>,
}

impl Cost {
    fn add(&mut self, value: f64) {
        if self.seen < 2 {
            (self.value, self.range) = (value, [value; 2]);
        } else {
            self.value += NEWEST * (value - self.value);
            self.range = [self.range[0].min(value), self.range[1].max(value)];
        }
        self.seen += 1;
    }

    fn get(&self) -> Option<f64> {
        let own = (self.seen > 0).then_some(self.value);
        if self.seen < 2 { self.before.or(own) } else { own }
    }

    fn spread(&self) -> Option<Spread> {
        let value = [self.value, self.range[0], self.range[1]];
        (self.seen > 0).then(|| Spread { value, samples: (self.seen - 1).max(1) })
    }
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The current value, the least and the greatest.
    pub value: [f64; 3],
    /// The number of measurements.
    pub samples: u64,
}

/// What a tuner has measured for each level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds from a capture until it counts on the level.
    pub latency: Vec<(Level, Spread)>,
    /// The share by which the program is slower meanwhile, for levels with enough steps.
    pub slowdown: Vec<(Level, Spread)>,
}

/// What was measured in an earlier run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// Seconds for which a checkpoint stops the program.
    pub blocking: f64,
    /// Seconds from a capture until it counts on a level, for some levels.
    pub latency: Vec<(Level, f64)>,
}

/// The mean and the variance of the newest steps.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Steps {
    fn add(&mut self, seconds: f64) {
        self.count = (self.count + 1.0).min(STEPS_MAX);
        let away = seconds - self.mean;
        self.mean += away / self.count;
        self.variance += (away * (seconds - self.mean) - self.variance) / self.count;
    }

    /// The share by which these steps are longer than others, less the part that may be due to chance.
    fn beyond(&self, others: &Steps) -> f64 {
        self.spread(others).map_or(0.0, |spread| spread.value[1])
    }

    /// The share by which these steps are longer than others, with the range that chance allows.
    fn spread(&self, others: &Steps) -> Option<Spread> {
        if self.count < STEPS_LEAST || others.count < STEPS_LEAST || others.mean <= 0.0 {
            return None;
        }
        let error = (self.variance / self.count + others.variance / others.count).sqrt();
        let share = |error: f64| ((self.mean - others.mean + error) / others.mean).clamp(0.0, 1.0);
        Some(Spread { value: [share(0.0), share(-error), share(error)], samples: self.count as u64 })
    }
}

/// The failures that are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Failures a second for which each level is the lowest that survives, in the order of [`Level::VOTED`].
    pub rates: [f64; LEVELS_MAX],
    /// Seconds from a failure until the job has been started again.
    pub relaunch: f64,
}

/// What a tuner may choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    /// The shortest and the longest interval in seconds, if the interval is left to the tuner; `None` if the program determines it.
    pub segment: Option<(f64, f64)>,
    /// The levels in use, ascending, each with n if every n-th checkpoint goes to it. The lowest level takes all checkpoints.
    pub levels: Vec<(Level, Choice<u64>)>,
    /// The failures that are expected.
    pub expected: Expected,
}

impl Scope {
    /// Is anything left to the tuner?
    pub fn is_open(&self) -> bool {
        self.segment.is_some() || self.levels.iter().any(|(_, every)| every.is_auto())
    }

    /// The failure rate of each level in use.
    fn rates(&self) -> Vec<f64> {
        let levels: Vec<Level> = self.levels.iter().map(|(level, _)| *level).collect();
        spread(&levels, self.expected.rates)
    }
}

/// Assigns the failure rates of [`Level::VOTED`] to these levels, ascending. If a level is not among them, its failures count as those of
/// the next higher level. The highest level receives what remains.
pub fn spread(levels: &[Level], rates: [f64; LEVELS_MAX]) -> Vec<f64> {
    let mut of_levels = vec![0.0; levels.len()];
    for (class, rate) in Level::VOTED.iter().zip(rates) {
        let survives = levels.iter().position(|level| level >= class);
        if let Some(at) = survives.or(levels.len().checked_sub(1)) {
            of_levels[at] += rate;
        }
    }
    of_levels
}

/// A tuner's answer: how often to checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Seconds of work between two checkpoints.
    pub segment: f64,
    /// For each level in use, n if every n-th checkpoint goes to it.
    pub every: Vec<u64>,
}

/// A change of the answer, and the reasons for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The answer that holds from now on.
    pub answer: Answer,
    /// The levels in use, with their costs.
    pub levels: Vec<(Level, LevelCosts)>,
    /// The share of the time that is expected to be lost, before and after the change.
    pub lost: [f64; 2],
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interval_s={:.3}", self.answer.segment)?;
        for ((level, costs), every) in self.levels.iter().zip(&self.answer.every) {
            write!(
                f,
                " {level}=\"every {every}, blocks {:.3} s, counts after {:.3} s, slows down by {:.1} %, fails every {:.0} s\"",
                costs.fixed + costs.blocking,
                costs.latency,
                costs.slowdown * 100.0,
                1.0 / costs.rate
            )?;
        }
        write!(f, " lost_before={:.3} % lost={:.3} %", self.lost[0] * 100.0, self.lost[1] * 100.0)
    }
}

/// Chooses intervals from measured costs and failures. It reads no clock: the caller passes all times.
///
/// ```
/// use bivouac_core::base::Level;
/// use bivouac_core::policy::tuning::{Expected, Scope, Tuner};
/// let levels = vec![(Level::Process, 1.into())];
/// let expected = Expected { rates: [1e-4, 0.0, 0.0, 0.0], relaunch: 10.0 };
/// let scope = Scope { segment: Some((1.0, 3600.0)), levels, expected };
/// let mut tuner = Tuner::new(scope);
/// assert_eq!(tuner.pause(), 1.0); // Something has to be measured.
/// for _ in 0..2 {
///     tuner.on_checkpoint(None, 2.0);
///     tuner.decide(&[]);
/// }
/// // sqrt(2 x 2 s / 1e-4), and the two seconds themselves.
/// assert!((tuner.pause() - 202.0).abs() < 3.0);
/// ```
#[derive(Clone, Debug)]
pub struct Tuner {
    scope: Scope,
    /// The measured seconds of work between two checkpoints.
    segment: Cost,
    blocking: Cost,
    latency: Vec<Cost>,
    quiet: Steps,
    /// For each level, the steps while it, but no level above it, is being written.
    busy: Vec<Steps>,
    answer: Answer,
    taken: u64,
    /// How many checkpoints had been taken at the last change.
    changed: Option<u64>,
}

impl Tuner {
    /// Returns a tuner that has measured nothing.
    pub fn new(scope: Scope) -> Tuner {
        let count = scope.levels.len();
        let every = scope.levels.iter().map(|(_, every)| every.fixed().unwrap_or(1).max(1)).collect();
        let answer = Answer { segment: scope.segment.map_or(0.0, |(least, _)| least), every };
        Tuner {
            scope,
            segment: Cost::default(),
            blocking: Cost::default(),
            latency: vec![Cost::default(); count],
            quiet: Steps::default(),
            busy: vec![Steps::default(); count],
            answer,
            taken: 0,
            changed: None,
        }
    }

    /// Starts from the measurements of an earlier run, which determine the answer until this run has measurements of its own.
    pub fn begin_from(&mut self, start: &Start) -> Option<Change> {
        self.blocking.before = Some(start.blocking.max(0.0));
        for (level, latency) in &start.latency {
            if let Some(at) = self.at(*level) {
                self.latency[at].before = Some(latency.max(0.0));
            }
        }
        self.choose(&[])
    }

    /// What has been measured so far, for the levels that were seen at least once.
    pub fn measured(&self) -> Measured {
        let levels = || self.scope.levels.iter().map(|(level, _)| *level);
        let latency = levels().zip(&self.latency).filter_map(|(level, cost)| Some((level, cost.spread()?)));
        let slowdown = levels().zip(&self.busy).filter_map(|(level, busy)| Some((level, busy.spread(&self.quiet)?)));
        Measured { latency: latency.collect(), slowdown: slowdown.collect() }
    }

    /// Notes that a checkpoint was captured after `segment` seconds of work since the one before it, if there was one, and that the program
    /// stood still for `blocking` seconds.
    pub fn on_checkpoint(&mut self, segment: Option<f64>, blocking: f64) {
        self.taken += 1;
        self.blocking.add(blocking.max(0.0));
        if let Some(segment) = segment {
            self.segment.add(segment.max(0.0));
        }
    }

    /// Notes that a checkpoint counts on a level `latency` seconds after its capture.
    pub fn on_committed(&mut self, level: Level, latency: f64) {
        if let Some(at) = self.at(level) {
            self.latency[at].add(latency.max(0.0));
        }
    }

    /// Notes that the program took `seconds` for a step while the level `beside`, but no level above it, was being
    /// written; `None`: no level was.
    pub fn on_step(&mut self, beside: Option<Level>, seconds: f64) {
        match beside.map(|level| self.at(level)) {
            None => self.quiet.add(seconds),
            Some(Some(at)) => self.busy[at].add(seconds),
            Some(None) => {}
        }
    }

    /// The index of a level among the levels in use.
    fn at(&self, level: Level) -> Option<usize> {
        self.scope.levels.iter().position(|(of, _)| *of == level)
    }

    /// Seconds from one answer of yes to the next: the shortest interval until something has been measured, then a
    /// short one, then the answer's.
    pub fn pause(&self) -> f64 {
        let blocking = self.blocking.get().unwrap_or(0.0);
        match (self.taken, self.scope.segment) {
            (_, None) => 0.0,
            _ if self.changed.is_some() => self.answer.segment + blocking,
            (0, Some((least, _))) => least,
            (1, Some((least, most))) => (blocking / UNKNOWN_SHARE).clamp(least, most),
            _ => self.answer.segment + blocking,
        }
    }

    /// Returns n if every n-th checkpoint goes to a level; 1 for a level that is not in use.
    pub fn every(&self, level: Level) -> u64 {
        self.at(level).map_or(1, |at| self.answer.every[at])
    }

    /// The current answer.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The costs of the levels. `pending` says for how long each level that is being written has been waited for, which may already be
    /// longer than it ever took.
    fn costs(&self, blocking: f64, pending: &[(Level, f64)]) -> Vec<LevelCosts> {
        let of = |(at, rate): (usize, f64)| {
            let level = self.scope.levels[at].0;
            let waited = pending.iter().filter(|(of, _)| *of == level).map(|(_, seconds)| *seconds);
            let latency = waited.fold(self.latency[at].get().unwrap_or(0.0), f64::max);
            let seen = self.busy[at].beyond(&self.quiet);
            let slowdown = if at == 0 { seen } else { seen.max(SLOWDOWN_LEAST) };
            let own = blocking;
            let blocking = if at == 0 { own } else { 0.0 };
            // A restart reads what was written, and the program then repeats its own part.
            let costs = LevelCosts::blocking(blocking, self.scope.expected.relaunch + own + latency, rate);
            LevelCosts { latency, slowdown, ..costs }
        };
        self.scope.rates().into_iter().enumerate().map(of).collect()
    }

    /// Changes the answer if that pays and the last change was long enough ago.
    pub fn decide(&mut self, pending: &[(Level, f64)]) -> Option<Change> {
        let is_time = self.changed.is_none_or(|changed| self.taken >= changed + CHANGE_EVERY);
        if self.taken >= 2 && is_time { self.choose(pending) } else { None }
    }

    fn choose(&mut self, pending: &[(Level, f64)]) -> Option<Change> {
        let blocking = self.blocking.get()?;
        // A program that chooses its own checkpoints has an interval once it has taken two.
        let bounds = self.scope.segment.or_else(|| self.segment.get().map(|segment| (segment, segment)))?;
        let mut every = [None; LEVELS_MAX];
        for (fixed, (_, choice)) in every.iter_mut().zip(&self.scope.levels) {
            *fixed = choice.fixed();
        }
        let costs = self.costs(blocking, pending);
        let Best { pattern, efficiency: best } = best_within(&costs, &Bounds { segment: bounds, every }, CONDUCT)?;
        let mut answer = Answer { segment: pattern.segment, every: pattern.every() };
        for (every, (_, choice)) in answer.every.iter_mut().zip(&self.scope.levels) {
            *every = choice.fixed().unwrap_or(*every);
        }
        let before = 1.0 - efficiency(&costs, &self.pattern(bounds), CONDUCT);
        let lost = [before, 1.0 - best];
        if self.changed.is_some() && (answer == self.answer || before - lost[1] < GAIN * before) {
            return None;
        }
        let is_news = answer != self.answer;
        (self.answer, self.changed) = (answer, Some(self.taken));
        let levels = self.scope.levels.iter().map(|(level, _)| *level).zip(costs).collect();
        is_news.then(|| Change { answer: self.answer.clone(), levels, lost })
    }

    /// The answer as a pattern.
    fn pattern(&self, bounds: (f64, f64)) -> Pattern {
        let mut below = 1;
        let count = |(at, every): (usize, &u64)| {
            let count = (every / below).max(1);
            below *= count;
            (at, count)
        };
        let levels = self.answer.every.iter().enumerate().map(count).collect();
        Pattern { segment: self.answer.segment.clamp(bounds.0, bounds.1), levels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    const DAY: f64 = 86_400.0;

    fn scope(levels: &[(Level, Choice<u64>)], segment: Option<(f64, f64)>) -> Scope {
        let rates = [1.0 / 3600.0, 1.0 / DAY, 1.0 / DAY, 0.1 / DAY];
        Scope { segment, levels: levels.to_vec(), expected: Expected { rates, relaunch: 0.0 } }
    }

    /// A program, with the costs of its checkpoints: how long each one blocks, seconds until the second level counts, and
    /// the slow-down meanwhile.
    struct Program {
        blocking: f64,
        latency: f64,
        slowdown: f64,
    }

    impl Program {
        /// Plays one segment and its checkpoint, with 10 % noise.
        fn go(&self, tuner: &mut Tuner, rng: &mut Rng) -> Option<Change> {
            let mut noisy = |value: f64| value * (0.9 + rng.below(2001) as f64 / 10_000.0);
            for beside in [None, Some(Level::System)] {
                let times = if beside.is_some() { 1.0 + self.slowdown } else { 1.0 };
                (0..20).for_each(|_| tuner.on_step(beside, noisy(0.1 * times)));
            }
            tuner.on_checkpoint(Some(tuner.pause()), noisy(self.blocking));
            tuner.on_committed(Level::Process, 0.0);
            tuner.on_committed(Level::System, noisy(self.latency));
            tuner.decide(&[])
        }

        fn truth(&self, tuner: &Tuner) -> Vec<LevelCosts> {
            let rates = tuner.scope.rates();
            let system = LevelCosts {
                latency: self.latency,
                slowdown: self.slowdown,
                ..LevelCosts::blocking(0.0, self.blocking + self.latency, rates[1])
            };
            vec![LevelCosts::blocking(self.blocking, self.blocking, rates[0]), system]
        }

        /// The loss with the tuner's answer, as a multiple of the least possible loss.
        fn compared(&self, tuner: &Tuner, bounds: (f64, f64)) -> f64 {
            let truth = self.truth(tuner);
            let best = best_within(&truth, &Bounds { segment: bounds, ..Bounds::NONE }, CONDUCT).expect("a pattern");
            (1.0 - efficiency(&truth, &tuner.pattern(bounds), CONDUCT)) / (1.0 - best.efficiency)
        }
    }

    const AUTO: [(Level, Choice<u64>); 2] = [(Level::Process, Choice::Fixed(1)), (Level::System, Choice::Auto)];
    const BOUNDS: (f64, f64) = (1.0, 36_000.0);

    #[test]
    fn thirty_checkpoints_from_nothing_are_near_the_best() {
        let mut rng = Rng::new(5);
        let mut worst: f64 = 1.0;
        for _ in 0..40 {
            let mut drawn = |from: f64, to: f64| (from.ln() + rng.below(1000) as f64 / 1000.0 * (to / from).ln()).exp();
            let program =
                Program { blocking: drawn(0.01, 60.0), latency: drawn(1.0, 900.0), slowdown: drawn(0.02, 0.5) };
            let mut tuner = Tuner::new(scope(&AUTO, Some(BOUNDS)));
            let mut changes = 0;
            (0..30).for_each(|_| changes += u64::from(program.go(&mut tuner, &mut rng).is_some()));
            worst = worst.max(program.compared(&tuner, BOUNDS));
            assert!(changes <= 1 + 30 / CHANGE_EVERY);
        }
        assert!(worst < 1.10, "{worst} of the least that can be lost");
    }

    /// A run begins with the measurements of the run before, however wrong they have become.
    #[test]
    fn a_run_goes_on_where_the_last_one_was() {
        let mut rng = Rng::new(9);
        let program = Program { blocking: 2.0, latency: 100.0, slowdown: 0.1 };
        let mut first = Tuner::new(scope(&AUTO, Some(BOUNDS)));
        (0..30).for_each(|_| drop(program.go(&mut first, &mut rng)));
        let measured = first.measured();
        let [memory, system] = &measured.latency[..] else { panic!("{measured:?}") };
        assert!(
            system.1.value[1] < 100.0
                && system.1.value[2] > 100.0
                && system.1.samples == 29
                && memory.1.value[2] == 0.0
        );
        assert!(
            measured.slowdown.iter().any(|(level, seen)| *level == Level::System && (seen.value[0] - 0.1).abs() < 0.02)
        );
        for (times, most) in [(1.0, 1.10), (100.0, 1.10)] {
            let start = Start { blocking: 2.0 * times, latency: vec![(Level::System, 100.0 * times)] };
            let mut next = Tuner::new(scope(&AUTO, Some(BOUNDS)));
            let change = next.begin_from(&start).expect("an answer at once");
            assert!((next.pause() - change.answer.segment - start.blocking).abs() < 1e-9);
            if times == 1.0 {
                assert!((next.pause() / first.pause() - 1.0).abs() < 0.25, "{} {}", next.pause(), first.pause());
            }
            (0..40).for_each(|_| drop(program.go(&mut next, &mut rng)));
            assert!(program.compared(&next, BOUNDS) < most);
        }
    }

    #[test]
    fn costs_that_jump_are_followed() {
        let mut rng = Rng::new(6);
        let mut program = Program { blocking: 0.1, latency: 20.0, slowdown: 0.05 };
        let mut tuner = Tuner::new(scope(&AUTO, Some(BOUNDS)));
        for times in [1.0, 100.0, 0.01] {
            program = Program { blocking: program.blocking * times, latency: program.latency * times, ..program };
            (0..40).for_each(|_| drop(program.go(&mut tuner, &mut rng)));
            let compared = program.compared(&tuner, BOUNDS);
            assert!(compared < 1.10, "{compared} behind a jump by {times}");
        }
    }

    #[test]
    fn nothing_is_chosen_outside_of_its_bounds_or_where_it_is_fixed() {
        let mut rng = Rng::new(7);
        let program = Program { blocking: 5.0, latency: 60.0, slowdown: 0.2 };
        for bounds in [(1.0, 10.0), (900.0, 1000.0), (50.0, 50.0)] {
            let mut tuner = Tuner::new(scope(&AUTO, Some(bounds)));
            for _ in 0..20 {
                program.go(&mut tuner, &mut rng);
                assert!((bounds.0..=bounds.1).contains(&tuner.answer().segment));
            }
        }
        let fixed = [(Level::Process, 1.into()), (Level::NodeReboot, 3.into()), (Level::System, Choice::Auto)];
        let mut tuner = Tuner::new(scope(&fixed, None));
        (0..20).for_each(|_| drop(program.go(&mut tuner, &mut rng)));
        assert_eq!((tuner.every(Level::NodeReboot), tuner.pause()), (3, 0.0));
        assert!(tuner.every(Level::System) > 1, "{:?}", tuner.answer());
    }

    #[test]
    fn changes_are_rare_and_small_ones_are_none() {
        let mut rng = Rng::new(8);
        let program = Program { blocking: 1.0, latency: 30.0, slowdown: 0.1 };
        let mut tuner = Tuner::new(scope(&AUTO, Some(BOUNDS)));
        let changes: Vec<u64> = (0..200).filter(|_| program.go(&mut tuner, &mut rng).is_some()).collect();
        assert!(changes.windows(2).all(|pair| pair[1] - pair[0] >= CHANGE_EVERY), "{changes:?}");
        assert!((1..=8).contains(&changes.len()), "{changes:?}");
    }

    #[test]
    fn a_level_that_never_counts_is_waited_for_in_its_costs() {
        let mut tuner = Tuner::new(scope(&AUTO, Some(BOUNDS)));
        (0..2).for_each(|_| tuner.on_checkpoint(None, 1.0));
        let change = tuner.decide(&[(Level::System, 500.0)]).expect("the first answer");
        assert_eq!(change.levels[1].1.latency, 500.0);
        assert!(change.to_string().contains("system=\"every"), "{change}");
    }

    #[test]
    fn failures_of_levels_that_are_not_there_are_those_of_the_next() {
        // The time is one day.
        let of = |levels: &[(Level, Choice<u64>)]| {
            scope(levels, None).rates().into_iter().map(|rate| (rate * DAY * 1e6).round() / 1e6).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(Level::NodeReboot, 1.into())]), [26.1]);
        assert_eq!(of(&AUTO), [24.0, 2.1]);
        assert!(of(&[]).is_empty() && !scope(&[], None).is_open());
    }
}
