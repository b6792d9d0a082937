//! The costs of one rank's checkpoints, the maxima of these costs over all ranks, and a machine profile made from them.
//!
//! Each rank adds up its own costs; `close` carries the numbers as maxima in the reduction that it makes anyway. What only the root can
//! see, namely the seconds until levels count and the slow-down, is provided by `transfer::tuning`.
#![forbid(unsafe_code)]

use super::stats::Stats;
use crate::base::Level;
use crate::format::profile::{Figure, Name, Profile, Source, rounded};
use crate::policy::tuning::Measured;
use crate::tier::{PerTier, TierId};
use std::time::Duration;

/// Number of classes of intervals: up to 1 s, 4 s, 16 s, etc.; the last class has no upper bound.
const INTERVALS: usize = 9;
const INTERVAL_FACTOR: f64 = 4.0;

/// Measurements of one kind: how many, their sum, the least, the greatest, and how many bytes were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
    /// Bytes that were moved in all of them.
    pub bytes: u64,
}

impl Times {
    /// Adds one measurement.
    pub fn add(&mut self, took: Duration, bytes: u64) {
        self.least = if self.count == 0 { took } else { self.least.min(took) };
        self.most = self.most.max(took);
        (self.count, self.total, self.bytes) = (self.count + 1, self.total + took, self.bytes + bytes);
    }

    /// Numbers of one kind: the mean, the least, the greatest, the mean of the bytes, and the count.
    fn numbers(&self) -> [u64; 5] {
        let count = self.count.max(1);
        let nanos = |time: Duration| time.as_nanos() as u64;
        [nanos(self.total) / count, nanos(self.least), nanos(self.most), self.bytes / count, self.count]
    }
}

/// The shares of the state that checkpoints stored, for intervals of about the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// How many shares.
    pub count: u64,
    /// Seconds between the checkpoints, in all.
    pub seconds: f64,
    /// The sum of the shares.
    pub total: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Shares {
    fn numbers(&self) -> [u64; 5] {
        let count = self.count.max(1) as f64;
        // In parts per million; seconds become milliseconds.
        let parts = |share: f64| (share * 1e6).round() as u64;
        let mean = parts(self.total / count);
        let range = [parts(self.least).min(mean), parts(self.most).max(mean)];
        [mean, range[0], range[1], (self.seconds / count * 1e3).round() as u64, self.count]
    }
}

/// What checkpoints of this rank have cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// How long each capture except the first stopped the program: the first one prepared memory.
    pub blocking: Times,
    /// The time from the return of a capture until the bytes in GPU memory have reached node memory.
    pub landing: Times,
    /// Exchanges with the other ranks of redundancy sets.
    pub exchange: Times,
    /// Restarts, from the call until all ranks had loaded, by the farthest tier that this rank read from.
    pub restarts: PerTier<Times>,
    /// The share of the state that was stored, by the time since the previous file on the same tier, shortest intervals first.
    pub dirty: [Shares; INTERVALS],
}

impl Costs {
    /// A checkpoint stored this share of its bytes, after this interval since the previous one.
    pub fn on_stored(&mut self, interval: Duration, share: f64) {
        let seconds = interval.as_secs_f64();
        let step = (seconds.ln() / INTERVAL_FACTOR.ln()).ceil().clamp(0.0, (INTERVALS - 1) as f64);
        let shares = &mut self.dirty[step as usize];
        shares.least = if shares.count == 0 { share } else { shares.least.min(share) };
        shares.most = shares.most.max(share);
        (shares.count, shares.seconds, shares.total) =
            (shares.count + 1, shares.seconds + seconds, shares.total + share);
    }
}

/// What a rank reports in `close`: the number of ranks of its node, the bytes of one of its checkpoints, the bytes that one checkpoint
/// moves to each tier, and its costs.
pub fn numbers(stats: &Stats, node_ranks: u64) -> Vec<u64> {
    let Costs { blocking, landing, exchange, restarts, dirty } = &stats.costs;
    let mut all = vec![node_ranks, stats.bytes_captured / stats.captured.max(1)];
    all.extend(TierId::all().map(|tier| stats.flushed_bytes[tier] / stats.committed[tier].max(1)));
    let times = [blocking, landing, exchange].into_iter().chain(restarts.iter().map(|(_, times)| times));
    all.extend(times.flat_map(Times::numbers));
    all.extend(dirty.iter().flat_map(Shares::numbers));
    // Trailing zeros are dropped: they do not change the maxima.
    while all.last() == Some(&0) {
        all.pop();
    }
    all
}

/// A profile made from the maxima of all ranks' [`numbers`] and from the root's measurements. `None` if nothing was captured.
pub fn profile(greatest: &[u64], measured: &Measured, nodes: u64, ranks: u64, source: &Source) -> Option<Profile> {
    let mut left = greatest.iter().copied();
    let mut next = || left.next().unwrap_or(0);
    let node_ranks = next() as f64;
    let state = next() as f64 * node_ranks;
    if state <= 0.0 {
        return None;
    }
    let moved: Vec<f64> = TierId::all().map(|_| next() as f64 * node_ranks).collect();
    let moved = |level: Level| {
        let bytes = TierId::all().zip(&moved).filter(|(tier, _)| tier.level() == level).map(|(_, bytes)| *bytes);
        bytes.fold(0.0, f64::max)
    };
    let mut figures: Vec<Figure> = Vec::new();
    let mut add = |figure: Figure| {
        // A profile has one figure for each level: if several tiers have the same level, that of the farther tier.
        figures.retain(|old| (old.name, old.level, old.interval) != (figure.name, figure.level, figure.interval));
        figures.push(figure);
    };
    let of = |name: Name, level: Option<Level>, value: [f64; 3], samples: u64| {
        let [value, least, most] = value.map(rounded);
        let range = [least.min(value), most.max(value)];
        Figure { name, level, interval: None, value, range, samples, bytes: None, source: source.clone() }
    };
    let bytes = |bytes: f64| Some(rounded(bytes)).filter(|bytes| *bytes > 0.0);
    let restarts = TierId::all().map(|tier| (Name::Restart, Some(tier.level())));
    let times = [Name::Blocking, Name::Landing, Name::Exchange].map(|name| (name, None));
    for (name, level) in times.into_iter().chain(restarts) {
        let [mean, least, most, moved, count] = std::array::from_fn(|_| next());
        if count > 0 {
            let seconds = [mean, least, most].map(|nanos| nanos as f64 / 1e9);
            add(Figure { bytes: bytes(moved as f64 * node_ranks), ..of(name, level, seconds, count) });
        }
    }
    for (level, latency) in &measured.latency {
        let moved = if *level == Level::Process { state } else { moved(*level) };
        add(Figure { bytes: bytes(moved), ..of(Name::Latency, Some(*level), latency.value, latency.samples) });
    }
    for (level, slowdown) in &measured.slowdown {
        add(of(Name::Slowdown, Some(*level), slowdown.value, slowdown.samples));
    }
    for _ in 0..INTERVALS {
        let [mean, least, most, interval, count] = std::array::from_fn(|_| next());
        if count > 0 && interval > 0 {
            let share = [mean, least, most].map(|parts| (parts as f64 / 1e6).min(1.0));
            add(Figure { interval: Some(rounded(interval as f64 / 1e3)), ..of(Name::Dirty, None, share, count) });
        }
    }
    Some(Profile { nodes, ranks, state: Some(rounded(state)), figures, failures: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tuning::Spread;

    fn second(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A rank whose checkpoints cost `times` as much as those of another.
    fn stats(times: f64) -> Stats {
        let mut stats = Stats { captured: 4, bytes_captured: 4_000_000, ..Stats::default() };
        stats.flushed_bytes[TierId::GLOBAL] = 1_500_000;
        stats.committed[TierId::GLOBAL] = 3;
        for seconds in [1.0, 2.0, 3.0] {
            stats.costs.blocking.add(second(seconds * times), 1_000_000);
        }
        stats.costs.restarts[TierId::LOCAL].add(second(5.0 * times), 1_000_000);
        for (interval, share) in [(50.0, 0.2), (60.0, 0.4), (700.0, 0.5)] {
            stats.costs.on_stored(second(interval), share * times.min(1.0));
        }
        stats
    }

    #[test]
    fn a_profile_has_the_greatest_of_all_ranks() {
        let (mut all, other) = (numbers(&stats(1.0), 2), numbers(&stats(0.5), 2));
        all.iter_mut().zip(&other).for_each(|(one, other)| *one = (*one).max(*other));
        let spread = |value| Spread { value, samples: 3 };
        let measured = Measured {
            latency: vec![(Level::Process, spread([0.0; 3])), (Level::System, spread([9.0, 8.0, 11.0]))],
            slowdown: vec![(Level::System, spread([0.02, 0.01, 0.03]))],
        };
        let source = Source::new(1e9, "host", "./program");
        let profile = profile(&all, &measured, 3, 6, &source).expect("something was captured");
        assert_eq!(Profile::decode(&profile.encode()), Ok(profile.clone()));
        assert_eq!((profile.nodes, profile.ranks, profile.state), (3, 6, Some(2e6)));
        let of = |name, level| {
            let figure = profile.figure(name, level).expect("it is there");
            (figure.value, figure.range, figure.samples, figure.bytes)
        };
        assert_eq!(of(Name::Blocking, None), (2.0, [1.0, 3.0], 3, Some(2e6)));
        assert_eq!(of(Name::Restart, Some(Level::NodeReboot)), (5.0, [5.0, 5.0], 1, Some(2e6)));
        assert_eq!(of(Name::Latency, Some(Level::System)), (9.0, [8.0, 11.0], 3, Some(1e6)));
        assert_eq!(of(Name::Slowdown, Some(Level::System)), (0.02, [0.01, 0.03], 3, None));
        let dirty = profile.figures.iter().filter(|figure| figure.name == Name::Dirty);
        let dirty: Vec<_> = dirty.map(|figure| (figure.interval, figure.value, figure.range)).collect();
        assert_eq!(dirty, [(Some(55.0), 0.3, [0.2, 0.4]), (Some(700.0), 0.5, [0.5, 0.5])]);
        assert!(profile.figure(Name::Landing, None).is_none());
    }

    #[test]
    fn ranks_that_captured_nothing_say_little_and_have_no_profile() {
        let none = numbers(&Stats::default(), 4);
        assert_eq!(none, [4]);
        assert_eq!(profile(&none, &Measured::default(), 1, 4, &Source::default()), None);
        // Numbers from ranks of another version, or damaged ones, also result in no profile, or in one that can be read back.
        for rubbish in [vec![u64::MAX; 100], vec![1; 3], (0..90).map(|at| at * 77).collect()] {
            if let Some(profile) = profile(&rubbish, &Measured::default(), 1, 4, &Source::default()) {
                assert!(profile.figures.len() <= crate::format::profile::FIGURES_MAX);
            }
        }
    }
}
