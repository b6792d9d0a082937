//! Works out what levels cost on a measured machine: from its profile, and from a known machine where the profile has no figure.
//!
//! Figures that a session measured of its own checkpoints take precedence, because they include the contention, the messages and the
//! program. In their absence the rates of `bivouac bench` are used. Seconds are in proportion to the bytes that a node saves. More nodes
//! are not assumed to be faster: shared storage serves all nodes together as fast as it served those that measured it.

use super::estimate::Seen;
use super::machine::Machine;
use crate::base::Level;
use crate::format::profile::{Failures, Name, Profile};
use crate::policy::intervals::{LevelCosts, Volume};
use crate::policy::tuning::spread;
use std::collections::BTreeSet;

/// What levels cost, and which of the figures nobody has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// The levels that the machine has, ascending, with their costs.
    pub levels: Vec<(Level, LevelCosts)>,
    /// The figures that were taken from the known machine.
    pub missing: BTreeSet<&'static str>,
}

impl Seen {
    /// Takes the observed failures from a profile.
    pub fn told(failures: &Failures) -> Seen {
        let Failures { seconds, node_seconds, process, node, system, .. } = *failures;
        Seen { seconds, node_seconds, process, node, system }
    }
}

/// Returns a profile's levels. `machine` gives the number of nodes, their state, how often they fail, and every
/// figure that the profile lacks.
pub fn levels(profile: &Profile, machine: &Machine) -> Profiled {
    let reader = Reader { profile, machine, volume: volume(profile) };
    let known = machine.levels();
    let known = |level: Level| known.iter().find(|(of, _)| *of == level).map(|(_, costs)| *costs);
    let mut missing = BTreeSet::new();
    let mut levels = vec![(Level::Process, reader.memory(known(Level::Process), &mut missing))];
    for level in [Level::NodeReboot, Level::NodeLoss, Level::System] {
        levels.extend(reader.stored(level, known(level), &mut missing).map(|costs| (level, costs)));
    }
    let names: Vec<Level> = levels.iter().map(|(level, _)| *level).collect();
    let rates = spread(&names, machine.failures.by_level(machine.nodes));
    levels.iter_mut().zip(rates).for_each(|((_, costs), rate)| costs.rate = rate);
    Profiled { levels, missing }
}

struct Reader<'a> {
    profile: &'a Profile,
    machine: &'a Machine,
    volume: Volume,
}

impl Reader<'_> {
    /// The measured seconds, scaled from the bytes that a node moved then to the bytes that a node saves here.
    fn seconds(&self, name: Name, level: Option<Level>) -> Option<f64> {
        let figure = self.profile.figure(name, level)?;
        Some(figure.value * figure.bytes.map_or(1.0, |bytes| self.machine.state / bytes))
    }

    /// Seconds for the state of a node at the measured rate of one node.
    fn at_rate(&self, name: Name) -> Option<f64> {
        self.profile.figure(name, None).map(|figure| self.machine.state / figure.value)
    }

    fn memory(&self, known: Option<LevelCosts>, missing: &mut BTreeSet<&'static str>) -> LevelCosts {
        let known = known.unwrap_or(LevelCosts::blocking(0.0, 0.0, 0.0));
        // The time for which the program stands still is the measured time, whatever share of the data has changed.
        let fixed = self.seconds(Name::Blocking, None).or_else(|| self.at_rate(Name::Capture));
        let fixed = fixed.unwrap_or_else(|| {
            missing.insert("capture");
            known.blocking
        });
        let restart = self.seconds(Name::Restart, Some(Level::Process)).or_else(|| self.at_rate(Name::Restore));
        let recovery = restart.map(|restart| self.machine.relaunch + restart).unwrap_or_else(|| {
            missing.insert("restore");
            known.recovery
        });
        LevelCosts { fixed, ..LevelCosts::blocking(0.0, recovery, 0.0) }
    }

    /// The costs of a level in storage or on other nodes; `None` if neither the profile nor the known machine has the level.
    fn stored(
        &self,
        level: Level,
        known: Option<LevelCosts>,
        missing: &mut BTreeSet<&'static str>,
    ) -> Option<LevelCosts> {
        let (write, read, names) = match level {
            Level::NodeReboot => (Some(Name::LocalWrite), Some(Name::LocalRead), ["local_write", "local_read"]),
            Level::System => (Some(Name::GlobalWrite), Some(Name::GlobalRead), ["global_write", "global_read"]),
            _ => (None, None, ["exchange", "restart from other nodes"]),
        };
        // The bench ran on one node, and sessions on as many nodes as the profile says. Fewer nodes do not make the store faster.
        let times = |measured: u64| match level {
            Level::System => (self.machine.nodes as f64 / measured as f64).max(1.0),
            _ => 1.0,
        };
        let of = |session: Name, bench: Option<Name>| {
            let own = self.seconds(session, Some(level)).map(|seconds| seconds * times(self.profile.nodes));
            own.or_else(|| Some(self.at_rate(bench?)? * times(1)))
        };
        let (latency, restart) = (of(Name::Latency, write), of(Name::Restart, read));
        // Other nodes are a level only where a session has used them.
        if latency.is_none() && known.is_none() {
            return None;
        }
        let (is_written, is_read) = (latency.is_some(), restart.is_some());
        let latency = latency.or(known.map(|known| known.latency)).unwrap_or_default();
        let recovery = restart.map(|restart| self.machine.relaunch + restart);
        let recovery = recovery.or(known.map(|known| known.recovery)).unwrap_or(self.machine.relaunch + latency);
        let slowdown = self.profile.figure(Name::Slowdown, Some(level)).map(|figure| figure.value);
        missing.extend((!is_written).then_some(names[0]));
        missing.extend((!is_read).then_some(names[1]));
        missing.extend(slowdown.is_none().then_some("slowdown"));
        let slowdown = slowdown.unwrap_or(self.machine.slowdown);
        let costs = LevelCosts { latency, slowdown, volume: self.volume, ..LevelCosts::blocking(0.0, recovery, 0.0) };
        // If writes do not run in the background, the program stands still for them.
        Some(match self.machine.is_behind {
            true => costs,
            false => LevelCosts { blocking: latency, latency: 0.0, slowdown: 0.0, ..costs },
        })
    }
}

/// Fits how much of the data changes within an interval, by least squares over the measured shares. A single measured share
/// holds for all intervals.
pub fn volume(profile: &Profile) -> Volume {
    let dirty = profile.figures.iter().filter(|figure| figure.name == Name::Dirty);
    let points: Vec<(f64, f64)> =
        dirty.filter_map(|figure| Some((figure.interval?, figure.value.clamp(0.0, 1.0)))).collect();
    let (Some(least), Some(most)) = (
        points.iter().map(|(interval, _)| *interval).reduce(f64::min),
        points.iter().map(|(interval, _)| *interval).reduce(f64::max),
    ) else {
        return Volume::WHOLE;
    };
    let mean = points.iter().map(|(_, share)| share).sum::<f64>() / points.len() as f64;
    let flat = Volume { least: mean, most: mean, saturates_after: 0.0 };
    let error = |volume: &Volume| points.iter().map(|(at, share)| (volume.share(*at) - share).powi(2)).sum::<f64>();
    // From a tenth of the shortest interval to ten times the longest.
    let candidates = (0..=60).map(|step| {
        let after = least / 10.0 * (100.0 * most / least).powf(f64::from(step) / 60.0);
        fitted(&points, after)
    });
    candidates.fold(flat, |best, next| if error(&next) < error(&best) * (1.0 - 1e-9) { next } else { best })
}

/// The best line over the part of the data that is still unchanged after each interval.
fn fitted(points: &[(f64, f64)], saturates_after: f64) -> Volume {
    let left = |interval: f64| (-interval / saturates_after).exp();
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(at, _)| left(*at)).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, share)| share).sum::<f64>() / count;
    let across = points.iter().map(|(at, share)| (left(*at) - mean_x) * (share - mean_y)).sum::<f64>();
    let along = points.iter().map(|(at, _)| (left(*at) - mean_x).powi(2)).sum::<f64>();
    let slope = if along > 0.0 { (across / along).min(0.0) } else { 0.0 };
    let most = (mean_y - slope * mean_x).clamp(0.0, 1.0);
    Volume { least: (most + slope).clamp(0.0, most), most, saturates_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::presets;

    const SAMPLE: &str = include_str!("../../../config/machine.toml");

    fn sample() -> Profile {
        Profile::decode(SAMPLE).expect("it is right")
    }

    fn machine(nodes: u64) -> Machine {
        Machine { nodes, state: 20e9, ..presets::named("laptop").expect("known") }
    }

    fn without(names: &[Name]) -> Profile {
        let mut profile = sample();
        profile.figures.retain(|figure| !names.contains(&figure.name));
        profile
    }

    fn of(profiled: &Profiled, level: Level) -> LevelCosts {
        profiled.levels.iter().find(|(of, _)| *of == level).expect("it is there").1
    }

    #[test]
    fn what_a_session_measured_comes_before_rates_and_these_before_what_is_known() {
        let machine = machine(4);
        let own = levels(&sample(), &machine);
        assert_eq!(own.levels.iter().map(|(level, _)| *level).collect::<Vec<_>>(), Level::VOTED);
        assert_eq!((of(&own, Level::Process).fixed, of(&own, Level::System).latency), (0.8, 95.0));
        assert_eq!(of(&own, Level::System).recovery, 60.0 + machine.relaunch);
        assert_eq!(of(&own, Level::System).slowdown, 0.03);

        let rates = levels(&without(&[Name::Blocking, Name::Latency, Name::Restart]), &machine);
        assert_eq!(of(&rates, Level::Process).fixed, 4.0);
        // Four nodes share what one had.
        assert_eq!((of(&rates, Level::NodeReboot).latency, of(&rates, Level::System).latency), (10.0, 80.0));
        assert!(!rates.missing.contains("capture") && rates.levels.len() == 3, "{rates:?}");

        let nothing = levels(&Profile::default(), &machine);
        let known = machine.levels();
        assert_eq!(nothing.levels.len(), known.len());
        assert_eq!(of(&nothing, Level::Process).fixed, known[0].1.blocking);
        assert_eq!(of(&nothing, Level::NodeReboot).latency, known[1].1.latency);
        let missing: Vec<_> = nothing.missing.into_iter().collect();
        assert_eq!(missing, ["capture", "local_read", "local_write", "restore", "slowdown"]);
    }

    #[test]
    fn seconds_grow_with_the_state_and_shared_storage_with_the_nodes() {
        let twice = levels(&sample(), &Machine { state: 40e9, ..machine(8) });
        assert_eq!((of(&twice, Level::Process).fixed, of(&twice, Level::NodeReboot).latency), (1.6, 24.0));
        assert_eq!(of(&twice, Level::System).latency, 4.0 * 95.0);
        assert_eq!(of(&levels(&sample(), &machine(1)), Level::System).latency, 95.0, "fewer nodes are not slower");
    }

    #[test]
    fn failures_are_all_there_whatever_levels_are() {
        for profile in [sample(), without(&[Name::Latency]), Profile::default()] {
            let machine = Machine { failures: crate::planner::estimate::of_parts(8), ..machine(16) };
            let sum: f64 = levels(&profile, &machine).levels.iter().map(|(_, costs)| costs.rate).sum();
            assert!((sum / machine.failures.total(16) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn the_dirty_share_is_fitted() {
        let truth = Volume { least: 0.1, most: 0.7, saturates_after: 300.0 };
        let mut profile = sample();
        let one = profile.figures.pop().expect("the last one is dirty");
        let at = |interval: f64| {
            let value = truth.share(interval);
            crate::format::profile::Figure { interval: Some(interval), value, range: [value; 2], ..one.clone() }
        };
        profile.figures = [10.0, 60.0, 200.0, 600.0, 3000.0].map(at).to_vec();
        let found = volume(&profile);
        for interval in [30.0, 100.0, 1000.0] {
            assert!((found.share(interval) - truth.share(interval)).abs() < 0.01, "{found:?}");
        }
        profile.figures.truncate(1);
        let found = volume(&profile);
        assert!((found.share(1e6) - truth.share(10.0)).abs() < 1e-9, "{found:?}");
        assert_eq!(volume(&Profile::default()), Volume::WHOLE);
    }
}
