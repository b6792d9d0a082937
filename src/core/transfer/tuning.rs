//! Intervals that the session chooses itself: what the root tells its [`Tuner`], and what it asks the tuner.
//!
//! No extra messages are sent for this. The look of `should_checkpoint` carries, as a maximum, how long each rank has stood still. The
//! answers are sent with existing verdicts: the verdict of that look, and the verdict on the call of each checkpoint.
#![forbid(unsafe_code)]

use crate::base::Level;
use crate::base::log;
use crate::base::sync::Lock;
use crate::config::{Choice, JobConfig};
use crate::format::supervision::{Tuned, TunedLevel};
use crate::policy::intervals::LevelCosts;
use crate::policy::tuning::{Change, Expected, Measured, Scope, Start, Tuner};
use crate::tier::{TierId, TierSet};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How many checkpoints are followed until their levels have ended.
const OPEN_MAX: usize = 64;
/// For how many series the time of the last checkpoint is remembered.
const SERIES_MAX: usize = 1024;

/// What the root measures. It is empty on ranks other than the root, and in sessions that have nothing to choose or measure.
#[derive(Default)]
pub struct Tuning {
    state: Option<Lock<State>>,
}

struct State {
    tuner: Tuner,
    /// Some choice is left to the tuner; otherwise it only measures.
    is_open: bool,
    /// When each checkpoint was captured, and which levels it has yet to reach.
    open: BTreeMap<u64, (Duration, TierSet)>,
    /// The time of the last checkpoint of each series, and how long the program had stood still by then.
    before: HashMap<String, (Duration, Duration)>,
    /// The ratio of the time for which the slowest rank stands still to the time for this rank.
    slowest: f64,
    /// The last change of the intervals.
    newest: Option<Tuned>,
    /// The last step: its time, how long the program had stood still by then, and which level was being written.
    step: Option<(Duration, Duration, Option<Level>)>,
}

/// The choices that a configuration leaves to the session on these tiers.
pub fn scope(job: &JobConfig, has_memory: bool, written: TierSet, has_peers: bool, expected: Expected) -> Scope {
    let interval = &job.interval;
    let segment = interval.seconds.is_auto().then_some((interval.least.as_secs_f64(), interval.most.as_secs_f64()));
    let mut levels: Vec<(Level, Choice<u64>)> = Vec::new();
    let mut add = |level: Level, every: Choice<u64>| {
        // Every checkpoint goes to the nearest place; a second tier of the same level keeps the configured interval.
        if levels.is_empty() {
            levels.push((level, Choice::Fixed(1)));
        } else if levels.iter().all(|(of, _)| *of != level) {
            levels.push((level, every));
        }
    };
    if has_memory {
        add(Level::Process, Choice::Fixed(1));
    }
    for tier in TierId::all() {
        if tier == TierId::PEERS && has_peers {
            add(tier.level(), job.redundancy.every);
        }
        if let Some(policy) = tier.wish(job).policy.filter(|_| written.has(tier)) {
            add(tier.level(), policy.every);
        }
    }
    Scope { segment, levels, expected }
}

impl Tuning {
    /// Has something to choose if `scope` leaves any choice. `is_asked`: measurements are wanted in any case. `start`: the measurements of
    /// an earlier run.
    pub fn new(scope: Scope, is_asked: bool, start: Option<Start>) -> Tuning {
        let is_open = scope.is_open();
        let state = (is_open || is_asked).then(|| {
            let (mut tuner, mut newest) = (Tuner::new(scope), None);
            if let Some(change) = start.filter(|_| is_open).and_then(|start| tuner.begin_from(&start)) {
                log::info!("event=interval-tuned from=plan.profile {change}");
                newest = Some(told(&change, 1));
            }
            State { tuner, is_open, open: BTreeMap::new(), before: HashMap::new(), slowest: 1.0, newest, step: None }
        });
        Tuning { state: state.map(Lock::new) }
    }

    /// The measurements of the levels so far.
    pub fn measured(&self) -> Measured {
        self.state.as_ref().map_or_else(Measured::default, |state| state.lock().tuner.measured())
    }

    /// Is there anything to measure?
    pub fn is_on(&self) -> bool {
        self.state.is_some()
    }

    /// The program has reached its next step, and has stood still for `blocked` so far.
    pub fn on_step(&self, now: Duration, blocked: Duration) {
        let Some(mut state) = self.state.as_ref().map(Lock::lock) else { return };
        let beside = state.beside();
        let last = state.step.replace((now, blocked, beside));
        if let Some((then, blocked_then, beside_then)) = last
            && beside_then == beside
        {
            let step = now.saturating_sub(then).saturating_sub(blocked.saturating_sub(blocked_then));
            state.tuner.on_step(beside, step.as_secs_f64());
        }
    }

    /// Notes how long the slowest rank and this rank have stood still.
    pub fn on_slowest(&self, slowest: Duration, own: Duration) {
        if let Some(mut state) = self.state.as_ref().map(Lock::lock)
            && !own.is_zero()
        {
            state.slowest = (slowest.as_secs_f64() / own.as_secs_f64()).max(1.0);
        }
    }

    /// A checkpoint was captured.
    pub fn on_captured(&self, operation: u64, now: Duration) {
        let Some(mut state) = self.state.as_ref().map(Lock::lock) else { return };
        state.open.insert(operation, (now, TierSet::of(TierId::MEMORY)));
        while state.open.len() > OPEN_MAX {
            state.open.pop_first();
        }
    }

    /// All ranks have captured a checkpoint of a series; the program has stood still for `blocked` so far.
    pub fn on_agreed(&self, name: &str, now: Duration, blocked: Duration) {
        let Some(mut state) = self.state.as_ref().map(Lock::lock) else { return };
        let slowest = state.slowest;
        let is_known = state.before.contains_key(name) || state.before.len() < SERIES_MAX;
        let before = is_known.then(|| state.before.insert(name.to_owned(), (now, blocked))).flatten();
        let stood = |since: Duration| blocked.saturating_sub(since).as_secs_f64() * slowest;
        let (segment, blocking) = match before {
            // All checkpoints since then count: a program with several series has one pattern.
            Some((then, blocked_then)) => {
                let stood = stood(blocked_then);
                (Some(now.saturating_sub(then).as_secs_f64() - stood), stood)
            }
            None => (None, stood(Duration::ZERO)),
        };
        state.tuner.on_checkpoint(segment, blocking);
        state.decide(now);
    }

    /// Notes the tiers to which a checkpoint goes.
    pub fn on_planned(&self, operation: u64, tiers: TierSet) {
        let Some(mut state) = self.state.as_ref().map(Lock::lock) else { return };
        if let Some((_, pending)) = state.open.get_mut(&operation) {
            *pending = tiers;
        }
    }

    /// A level has ended, or (`None`) the checkpoint has ended at its call.
    pub fn on_ended(&self, operation: u64, tier: Option<TierId>, is_committed: bool, now: Duration) {
        let Some(mut state) = self.state.as_ref().map(Lock::lock) else { return };
        let Some((captured, pending)) = state.open.get_mut(&operation) else { return };
        let latency = now.saturating_sub(*captured).as_secs_f64();
        let Some(tier) = tier else {
            state.open.remove(&operation);
            return;
        };
        pending.remove(tier);
        if pending.is_empty() {
            state.open.remove(&operation);
        }
        if is_committed {
            state.tuner.on_committed(tier.level(), latency);
        }
    }

    /// The time from one positive answer to the next.
    pub fn pause(&self, now: Duration) -> Duration {
        let Some(mut state) = self.state.as_ref().map(Lock::lock).filter(|state| state.is_open) else {
            return Duration::MAX;
        };
        state.decide(now);
        Duration::try_from_secs_f64(state.tuner.pause()).unwrap_or(Duration::MAX)
    }

    /// The last change of the intervals, and the number of changes so far.
    pub fn newest(&self) -> Option<Tuned> {
        self.state.as_ref()?.lock().newest.clone()
    }

    /// The interval of a level, in checkpoints.
    pub fn every(&self, level: Level) -> u64 {
        let state = self.state.as_ref().map(Lock::lock).filter(|state| state.is_open);
        state.map_or(1, |state| state.tuner.every(level))
    }
}

impl State {
    /// The highest level that is being written.
    fn beside(&self) -> Option<Level> {
        self.open.values().flat_map(|(_, tiers)| tiers.iter()).map(TierId::level).max()
    }

    fn decide(&mut self, now: Duration) {
        let waited = |(captured, tiers): &(Duration, TierSet)| {
            let waited = now.saturating_sub(*captured).as_secs_f64();
            tiers.iter().map(|tier| (tier.level(), waited)).collect::<Vec<_>>()
        };
        if !self.is_open {
            return;
        }
        let pending: Vec<(Level, f64)> = self.open.values().flat_map(waited).collect();
        if let Some(change) = self.tuner.decide(&pending) {
            log::info!("event=interval-tuned {change}");
            let changes = self.newest.as_ref().map_or(0, |newest| newest.changes) + 1;
            self.newest = Some(told(&change, changes));
        }
    }
}

fn told(change: &Change, changes: u64) -> Tuned {
    let level = |((level, costs), every): (&(Level, LevelCosts), &u64)| TunedLevel {
        level: level.name().into(),
        every: *every,
        blocking_seconds: costs.fixed + costs.blocking,
        latency_seconds: costs.latency,
        slowdown: costs.slowdown,
        failures_per_second: costs.rate,
    };
    let levels = change.levels.iter().zip(&change.answer.every).map(level).collect();
    Tuned { interval_seconds: change.answer.segment, levels, lost: change.lost, changes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn auto() -> JobConfig {
        let mut job = Config::default().job;
        job.interval.seconds = Choice::Auto;
        job.global.every = Choice::Auto;
        job
    }

    #[test]
    fn the_scope_is_what_is_left_open_on_the_tiers_in_use() {
        let job = auto();
        let both: TierSet = [TierId::LOCAL, TierId::GLOBAL].into_iter().collect();
        let expected = Expected { rates: [1e-4; 4], relaunch: 0.0 };
        let whole = scope(&job, true, both, true, expected);
        assert_eq!(whole.segment, Some((1.0, 3600.0)));
        let levels = [Level::Process, Level::NodeReboot, Level::NodeLoss, Level::System];
        let every = [1.into(), 1.into(), 1.into(), Choice::Auto];
        assert_eq!(whole.levels, levels.into_iter().zip(every).collect::<Vec<_>>());
        let no_memory = scope(&job, false, TierSet::of(TierId::GLOBAL), false, expected);
        assert_eq!(no_memory.levels, [(Level::System, Choice::Fixed(1))]);
        let fixed = scope(&Config::default().job, true, both, false, expected);
        assert!(!Tuning::new(fixed.clone(), false, None).is_on());
        // A tuner with nothing to choose measures, but changes nothing.
        let only = Tuning::new(fixed, true, Some(Start { blocking: 5.0, latency: Vec::new() }));
        for number in 0..12 {
            only.on_captured(number, second(100 * number));
            only.on_agreed("heat", second(100 * number), second(number));
            only.on_planned(number, TierSet::of(TierId::GLOBAL));
            only.on_ended(number, Some(TierId::GLOBAL), true, second(100 * number + 30));
        }
        assert_eq!((only.newest(), only.pause(second(1200)), only.every(Level::System)), (None, Duration::MAX, 1));
        let latency = only.measured().latency;
        assert!(only.is_on() && latency.len() == 1 && latency[0].1.value == [30.0; 3], "{latency:?}");
    }

    #[test]
    fn what_happens_becomes_costs_and_an_answer() {
        let expected = Expected { rates: [1e-4, 0.0, 0.0, 1e-5], relaunch: 7.0 };
        let tuning = Tuning::new(scope(&auto(), true, TierSet::of(TierId::GLOBAL), false, expected), false, None);
        assert_eq!(tuning.pause(second(0)), second(1));
        let plan: TierSet = [TierId::MEMORY, TierId::GLOBAL].into_iter().collect();
        let mut changes = Vec::new();
        for number in 0..8 {
            // The program stands still for two seconds in each hundred, and is slower by a quarter during the 20 s of writing.
            let now = second(100 * number);
            tuning.on_slowest(second(4 * number + 4), second(2 * number + 2));
            tuning.on_captured(number, now);
            tuning.on_agreed("heat", now, second(2 * number + 2));
            changes.extend(tuning.newest());
            tuning.on_planned(number, plan);
            tuning.on_ended(number, Some(TierId::MEMORY), true, now);
            let mut at = now;
            while at < now + second(90) {
                if at == now + second(20) {
                    tuning.on_ended(number, Some(TierId::GLOBAL), true, at);
                }
                tuning.on_step(at, second(2 * number + 2));
                at += if at < now + second(20) { Duration::from_millis(1250) } else { second(1) };
            }
        }
        let [first, ..] = &changes[..] else { unreachable!("nothing was chosen") };
        let [memory, global] = &first.levels[..] else { unreachable!("two levels") };
        assert!((memory.blocking_seconds - 4.0).abs() < 0.1, "the slowest rank: {first:?}");
        assert!((global.latency_seconds - 20.0).abs() < 0.1 && first.changes == 1, "{first:?}");
        let last = tuning.pause(second(800)).as_secs_f64();
        assert!((200.0..400.0).contains(&last), "{last}");
        assert!(tuning.every(Level::System) > 1);
        let state = tuning.state.as_ref().expect("on").lock();
        assert!(state.open.is_empty() && state.step.is_some());
    }

    #[test]
    fn a_checkpoint_that_is_refused_is_followed_no_more() {
        let expected = Expected { rates: [1e-4; 4], relaunch: 0.0 };
        let tuning = Tuning::new(scope(&auto(), true, TierSet::of(TierId::GLOBAL), false, expected), false, None);
        tuning.on_captured(1, second(1));
        tuning.on_ended(1, None, false, second(2));
        (2..100).for_each(|operation| tuning.on_captured(operation, second(3)));
        let state = tuning.state.as_ref().expect("on").lock();
        assert_eq!(state.open.len(), OPEN_MAX);
        assert!(!state.open.contains_key(&1));
    }
}
