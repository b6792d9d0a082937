//! What checkpoints of one rank have cost, the greatest of that over all ranks, and a machine profile made of it.
//!
//! A rank adds up its own; `close` carries the numbers as maxima in the reduction that it makes anyway. What only the root can see, the seconds until levels count and
//! the slow-down, comes from `transfer::tuning`.
#![forbid(unsafe_code)]

use super::stats::Stats;
use crate::base::Level;
use crate::format::profile::{Figure, Name, Profile, Source, rounded};
use crate::policy::tuning::Measured;
use crate::tier::{PerTier, TierId};
use std::time::Duration;

/// Intervals that are told apart: up to 1 s, 4 s, 16 s and so on; the last one has no end.
const INTERVALS: usize = 9;
const INTERVAL_FACTOR: f64 = 4.0;

/// Measurements of one kind: how often, in all, the least, the most, and how many bytes were moved.
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
    /// One more.
    pub fn add(&mut self, took: Duration, bytes: u64) {
        self.least = if self.count == 0 { took } else { self.least.min(took) };
        self.most = self.most.max(took);
        (self.count, self.total, self.bytes) = (self.count + 1, self.total + took, self.bytes + bytes);
    }

    /// Of one: its mean, the least, the most, the bytes; and how many.
    fn numbers(&self) -> [u64; 5] {
        let count = self.count.max(1);
        let nanos = |time: Duration| time.as_nanos() as u64;
        [nanos(self.total) / count, nanos(self.least), nanos(self.most), self.bytes / count, self.count]
    }
}

/// Shares of the state that checkpoints stored after intervals of about the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// How many.
    pub count: u64,
    /// Seconds between them, in all.
    pub seconds: f64,
    /// The shares, in all.
    pub total: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Shares {
    fn numbers(&self) -> [u64; 5] {
        let count = self.count.max(1) as f64;
        // Of a million; seconds in milliseconds.
        let parts = |share: f64| (share * 1e6).round() as u64;
        let mean = parts(self.total / count);
        let range = [parts(self.least).min(mean), parts(self.most).max(mean)];
        [mean, range[0], range[1], (self.seconds / count * 1e3).round() as u64, self.count]
    }
}

/// What checkpoints of this rank have cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// For how long each but the first stopped the program: that one made memory ready.
    pub blocking: Times,
    /// From the return of a capture until what was in GPU memory was in node memory.
    pub landing: Times,
    /// Exchanges with the other ranks of redundancy sets.
    pub exchange: Times,
    /// Restarts, from the call until all ranks had loaded, by the farthest tier that this rank read from.
    pub restarts: PerTier<Times>,
    /// What was stored of the state, by the time since the file before on the same tier, shortest intervals first.
    pub dirty: [Shares; INTERVALS],
}

impl Costs {
    /// A checkpoint stored this share of its bytes, this many seconds after the previous one.
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

/// What a rank says in `close`: the ranks of its node, what one of its checkpoints has, what one moves to each tier, and its costs.
pub fn numbers(stats: &Stats, node_ranks: u64) -> Vec<u64> {
    let Costs { blocking, landing, exchange, restarts, dirty } = &stats.costs;
    let mut all = vec![node_ranks, stats.bytes_captured / stats.captured.max(1)];
    all.extend(TierId::all().map(|tier| stats.flushed_bytes[tier] / stats.committed[tier].max(1)));
    let times = [blocking, landing, exchange].into_iter().chain(restarts.iter().map(|(_, times)| times));
    all.extend(times.flat_map(Times::numbers));
    all.extend(dirty.iter().flat_map(Shares::numbers));
    // The greatest of nothing and something is something.
    while all.last() == Some(&0) {
        all.pop();
    }
    all
}

/// A profile of the greatest of all ranks' [`numbers`], and of what the root has measured. `None` if nothing was captured.
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
        // A profile has one of each level: of several tiers the farther one.
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
        // What other ranks of another version, or damage, could say is no profile either, or one that reads back.
        for rubbish in [vec![u64::MAX; 100], vec![1; 3], (0..90).map(|at| at * 77).collect()] {
            if let Some(profile) = profile(&rubbish, &Measured::default(), 1, 4, &Source::default()) {
                assert!(profile.figures.len() <= crate::format::profile::FIGURES_MAX);
            }
        }
    }
}
