//! Decides which failures occur, and when.
//!
//! All sources with a constant rate form one Poisson process, in which the kinds are told apart by their shares. Nodes whose failures are
//! not exponential are separate renewal processes. These have been running for ever when a run begins, so that the mean rate is the same at
//! all times (Cox 1962, section 5.2): the first failure of a node has the density S(t) / mean. It is sampled by thinning: a time that is
//! uniform between 0 and the mean is accepted with the chance S(t). The earliest of many such times is known in closed form, so only nodes
//! that might fail within the run cost anything. The next failure of a node that has failed is in a heap. Runs that are longer than the
//! mean sample all nodes.

use crate::base::rng::Rng;
use crate::planner::machine::{Burst, Failures, Machine};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// What has failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A failure of any kind, given by the lowest level that survives it, as its index in the pattern.
    Class(usize),
    /// A process of a node failed.
    Process,
    /// Nodes failed that come back with their storage.
    Reboot(Range<u32>),
    /// Nodes failed that do not come back.
    Loss(Range<u32>),
    /// All nodes failed.
    System,
}

/// A source of failures with a constant rate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Class(usize),
    /// Any failure of a node.
    Node,
    Domain(usize),
    System,
}

/// Nodes that are lost together: the number in each group, and the share that comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Group {
    nodes: u32,
    returns: f64,
}

/// All sources of failures.
#[derive(Clone, Debug, PartialEq)]
pub struct Hazard {
    nodes: u32,
    /// The sources with constant rates, each with the sum of the rates up to and including its own.
    steady: Vec<(Source, f64)>,
    /// The mean and shape of the time between two failures of a node, and the matching scale; `None` if the time is exponential.
    weibull: Option<Weibull>,
    /// Shares of the failures of a node: those after which its memory is intact, and those after which its memory or its storage is.
    shares: [f64; 2],
    groups: Vec<Group>,
    burst: Option<Burst>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Weibull {
    mean: f64,
    shape: f64,
    scale: f64,
}

impl Weibull {
    fn new(mean: f64, shape: f64) -> Weibull {
        Weibull { mean, shape, scale: mean / gamma(1.0 + 1.0 / shape) }
    }

    /// The chance of lasting this long.
    fn survival(&self, time: f64) -> f64 {
        (-(time / self.scale).powf(self.shape)).exp()
    }

    /// Samples the time between two failures.
    fn draw(&self, rng: &mut Rng) -> f64 {
        self.scale * (-share(rng).ln()).powf(1.0 / self.shape)
    }

    /// Samples the time until the next failure of a process that has been running for ever. It is a uniform part of a time between two
    /// failures, where long times are met in proportion to their length. A power of such a time has a gamma distribution.
    fn draw_first(&self, rng: &mut Rng) -> f64 {
        self.scale * gamma_distributed(1.0 + 1.0 / self.shape, rng).powf(1.0 / self.shape) * share(rng)
    }
}

/// Samples a uniform number above 0 and up to 1.
pub(super) fn share(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

fn exponential(mean: f64, rng: &mut Rng) -> f64 {
    -share(rng).ln() * mean
}

/// The gamma function for numbers above 0, by Lanczos' approximation with g = 7 and nine terms, to 15 digits (Godfrey 2001).
///
/// ```
/// use bivouac_core::planner::play::gamma;
/// assert!((gamma(5.0) - 24.0).abs() < 1e-9 && (gamma(0.5) - std::f64::consts::PI.sqrt()).abs() < 1e-12);
/// ```
pub fn gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let terms = TERMS.iter().zip(1..).map(|(term, at)| term / (x - 1.0 + f64::from(at)));
    let sum = 0.999_999_999_999_809_9 + terms.sum::<f64>();
    let t = x + 6.5;
    (std::f64::consts::TAU).sqrt() * t.powf(x - 0.5) * (-t).exp() * sum
}

/// Samples the gamma distribution with this shape, at least 1, and scale 1, by the method of Marsaglia and Tsang (2000).
fn gamma_distributed(shape: f64, rng: &mut Rng) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        // The method of Box and Muller.
        let normal = (-2.0 * share(rng).ln()).sqrt() * (std::f64::consts::TAU * share(rng)).cos();
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && share(rng).ln() < normal * normal / 2.0 + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

impl Hazard {
    /// Failures at constant rates, one for each level, which is the lowest that survives them.
    pub fn of_classes(rates: &[f64]) -> Hazard {
        let mut hazard =
            Hazard { nodes: 1, steady: Vec::new(), weibull: None, shares: [1.0; 2], groups: Vec::new(), burst: None };
        for (class, rate) in rates.iter().enumerate() {
            hazard.add(Source::Class(class), *rate);
        }
        hazard
    }

    /// The sources of failures of a machine.
    pub fn of_machine(machine: &Machine) -> Hazard {
        let Failures { process, reboot, system, .. } = machine.failures;
        let (of_node, site) = (machine.failures.of_node(), &machine.site);
        let nodes = machine.nodes.min(u64::from(u32::MAX)) as u32;
        let mut hazard = Hazard::of_classes(&[]);
        hazard.nodes = nodes;
        // Together with the failures that follow, the mean stays the same.
        let own = of_node * site.burst.map_or(1.0, |burst| 1.0 - burst.chance);
        if of_node > 0.0 {
            hazard.shares = [process / of_node, (process + reboot) / of_node];
            match site.shape == 1.0 {
                true => hazard.add(Source::Node, own * f64::from(nodes)),
                false => hazard.weibull = Some(Weibull::new(1.0 / own, site.shape)),
            }
        }
        for (at, (domain, rate)) in machine.domain_losses().enumerate() {
            hazard.groups.push(Group { nodes: domain.nodes as u32, returns: domain.returns });
            hazard.add(Source::Domain(at), rate);
        }
        hazard.add(Source::System, system);
        hazard.burst = site.burst;
        hazard
    }

    fn add(&mut self, source: Source, rate: f64) {
        if rate > 0.0 {
            self.steady.push((source, self.steady_rate() + rate));
        }
    }

    fn steady_rate(&self) -> f64 {
        self.steady.last().map_or(0.0, |(_, sum)| *sum)
    }

    /// Whether anything can fail.
    pub fn is_any(&self) -> bool {
        self.steady_rate() > 0.0 || self.weibull.is_some()
    }
}

/// What a time in the heap belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Waiting {
    /// A node that fails again.
    Again(u32),
    /// A node that fails because of another node.
    Following(u32),
}

/// Failures in the order in which they occur.
#[derive(Clone, Debug)]
pub struct Failing<'a> {
    hazard: &'a Hazard,
    rng: Rng,
    /// The time of the next failure with a constant rate.
    steady: f64,
    /// The time of the next node that fails for the first time, and the number of nodes that might still do so.
    fresh: f64,
    left: u32,
    /// The nodes that have had their chance to fail for the first time.
    tried: Vec<u64>,
    /// Times as the bits of floating-point numbers, whose order is the same for positive numbers.
    waiting: BinaryHeap<Reverse<(u64, Waiting)>>,
    until: f64,
}

impl<'a> Failing<'a> {
    /// The failures of a run that ends at `until`; infinity if it has no fixed end.
    pub fn new(hazard: &'a Hazard, until: f64, rng: Rng) -> Failing<'a> {
        let mut failing = Failing {
            hazard,
            rng,
            steady: f64::INFINITY,
            fresh: f64::INFINITY,
            left: 0,
            tried: Vec::new(),
            waiting: BinaryHeap::new(),
            until,
        };
        failing.draw_steady(0.0);
        if let Some(weibull) = hazard.weibull {
            if until <= weibull.mean {
                failing.left = hazard.nodes;
                failing.tried = vec![0; hazard.nodes.div_ceil(64) as usize];
                failing.draw_fresh(0.0, &weibull);
            } else {
                for node in 0..hazard.nodes {
                    let at = weibull.draw_first(&mut failing.rng);
                    failing.wait(at, Waiting::Again(node));
                }
            }
        }
        failing
    }

    /// When the next failure occurs.
    pub fn next_at(&self) -> f64 {
        let waiting = self.waiting.peek().map_or(f64::INFINITY, |Reverse((bits, _))| f64::from_bits(*bits));
        self.steady.min(self.fresh).min(waiting)
    }

    /// Takes the next failure. It must not be called if [`Failing::next_at`] is infinite.
    pub fn take(&mut self) -> (f64, Kind) {
        let at = self.next_at();
        if self.steady == at {
            self.draw_steady(at);
            let source = self.source();
            return (at, self.of_source(source, at));
        }
        let Some(weibull) = self.hazard.weibull.filter(|_| self.fresh == at) else {
            let kind = match self.waiting.pop() {
                Some(Reverse((_, Waiting::Again(node)))) => {
                    self.renew(node, at);
                    self.of_node(node, at)
                }
                Some(Reverse((_, Waiting::Following(node)))) => self.of_node(node, at),
                None => Kind::System,
            };
            return (at, kind);
        };
        let node = self.untried();
        self.draw_fresh(at, &weibull);
        self.renew(node, at);
        (at, self.of_node(node, at))
    }

    fn draw_steady(&mut self, now: f64) {
        let rate = self.hazard.steady_rate();
        if rate > 0.0 {
            self.steady = now + exponential(1.0 / rate, &mut self.rng);
        }
    }

    fn source(&mut self) -> Source {
        let steady = &self.hazard.steady;
        if let [(only, _)] = steady[..] {
            return only;
        }
        let chosen = share(&mut self.rng) * self.hazard.steady_rate();
        steady.iter().find(|(_, sum)| chosen <= *sum).unwrap_or(&steady[steady.len() - 1]).0
    }

    fn of_source(&mut self, source: Source, at: f64) -> Kind {
        match source {
            Source::Class(class) => Kind::Class(class),
            Source::Node => {
                let node = self.rng.below(u64::from(self.hazard.nodes)) as u32;
                self.of_node(node, at)
            }
            Source::Domain(number) => {
                let group = self.hazard.groups[number];
                let which = self.rng.below(u64::from(self.hazard.nodes / group.nodes)) as u32;
                let nodes = which * group.nodes..(which + 1) * group.nodes;
                if share(&mut self.rng) <= group.returns { Kind::Reboot(nodes) } else { Kind::Loss(nodes) }
            }
            Source::System => Kind::System,
        }
    }

    /// Returns the kind of a node's failure, and schedules the failure that follows it, if any.
    fn of_node(&mut self, node: u32, at: f64) -> Kind {
        if let Some(burst) = self.hazard.burst
            && share(&mut self.rng) <= burst.chance
        {
            let next = self.neighbour(node);
            let delay = exponential(burst.delay, &mut self.rng);
            self.wait(at + delay, Waiting::Following(next));
        }
        let [process, reboot] = self.hazard.shares;
        match share(&mut self.rng) {
            kind if kind <= process => Kind::Process,
            kind if kind <= reboot => Kind::Reboot(node..node + 1),
            _ => Kind::Loss(node..node + 1),
        }
    }

    /// Picks any node of the same smallest domain.
    fn neighbour(&mut self, node: u32) -> u32 {
        let all = self.hazard.nodes;
        let size = self.hazard.groups.first().map_or(all, |group| group.nodes).clamp(1, all);
        let first = node / size * size;
        first + self.rng.below(u64::from(size.min(all - first))) as u32
    }

    fn wait(&mut self, at: f64, what: Waiting) {
        if at < self.until {
            self.waiting.push(Reverse((at.to_bits(), what)));
        }
    }

    /// Schedules the next failure of a node that has failed.
    fn renew(&mut self, node: u32, at: f64) {
        if let Some(weibull) = self.hazard.weibull {
            let next = at + weibull.draw(&mut self.rng);
            self.wait(next, Waiting::Again(node));
        }
    }

    /// Samples the next node that fails for the first time: takes the least of `left` times that are uniform between now and the mean,
    /// until one of them is accepted.
    fn draw_fresh(&mut self, mut now: f64, weibull: &Weibull) {
        while self.left > 0 {
            let least = -(share(&mut self.rng).ln() / f64::from(self.left)).exp_m1();
            now += (weibull.mean - now) * least;
            if now >= self.until {
                break;
            }
            self.left -= 1;
            if share(&mut self.rng) <= weibull.survival(now) {
                return self.fresh = now;
            }
            // This node will not fail within the mean, or failed before the run. It has had its chance.
            self.untried();
        }
        self.fresh = f64::INFINITY;
    }

    /// Picks any node that has not had its chance yet.
    fn untried(&mut self) -> u32 {
        loop {
            let node = self.rng.below(u64::from(self.hazard.nodes)) as u32;
            let (word, bit) = (node as usize / 64, 1 << (node % 64));
            if self.tried[word] & bit == 0 {
                self.tried[word] |= bit;
                return node;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::machine::Domain;
    use crate::planner::presets;

    fn machine(nodes: u64, change: impl FnOnce(&mut Machine)) -> Machine {
        let mut machine = presets::named("node-8gpu").expect("known");
        machine.nodes = nodes;
        machine.site = Default::default();
        machine.failures = Failures { process: 6e-6, reboot: 3e-6, loss: 1e-6, system: 0.0 };
        change(&mut machine);
        machine
    }

    fn all(machine: &Machine, until: f64, seed: u64) -> Vec<(f64, Kind)> {
        let hazard = Hazard::of_machine(machine);
        let mut failing = Failing::new(&hazard, until, Rng::new(seed));
        std::iter::from_fn(|| (failing.next_at() < until).then(|| failing.take())).collect()
    }

    /// By how many standard errors of a count the counts differ from the expected ones.
    fn away(found: usize, expected: f64, spread: f64) -> f64 {
        (found as f64 - expected) / (expected * spread).sqrt()
    }

    /// For short and long runs, at the beginning and at the end. Failures that cluster spread more.
    #[test]
    fn rates_are_what_was_asked_for() {
        for (shape, nodes, until) in
            [(1.0, 2000, 5e4), (0.7, 2000, 5e4), (0.7, 50, 1e6), (2.0, 2000, 4e4), (0.5, 300, 3e5)]
        {
            let machine = machine(nodes, |machine| machine.site.shape = shape);
            let expected = 1e-5 * nodes as f64 * until;
            let (mut halves, mut kinds) = ([0; 2], [0; 3]);
            const RUNS: u64 = 20;
            for seed in 0..RUNS {
                let found = all(&machine, until, seed);
                assert!(found.windows(2).all(|pair| pair[0].0 <= pair[1].0));
                for (at, kind) in found {
                    halves[usize::from(at > until / 2.0)] += 1;
                    kinds[match kind {
                        Kind::Process => 0,
                        Kind::Reboot(_) => 1,
                        _ => 2,
                    }] += 1;
                }
            }
            let spread = if shape < 1.0 { 4.0 } else { 1.0 };
            for (found, part) in halves.into_iter().zip([0.5, 0.5]).chain(kinds.into_iter().zip([0.6, 0.3, 0.1])) {
                let away = away(found, expected * part * RUNS as f64, spread);
                assert!(away.abs() < 3.5, "shape {shape}: {halves:?} {kinds:?}, {expected} a run: {away}");
            }
        }
    }

    /// The times between two failures of one node have a Weibull distribution: with the shape 0.7, 63 % are shorter than the scale, and the
    /// mean is as asked for.
    #[test]
    fn times_between_failures_have_the_shape() {
        let weibull = Weibull::new(1000.0, 0.7);
        let mut rng = Rng::new(1);
        let drawn: Vec<f64> = (0..40_000).map(|_| weibull.draw(&mut rng)).collect();
        let below = |limit: f64| drawn.iter().filter(|time| **time < limit).count() as f64 / drawn.len() as f64;
        assert!((drawn.iter().sum::<f64>() / drawn.len() as f64 - 1000.0).abs() < 25.0);
        for limit in [50.0, weibull.scale, 3000.0] {
            assert!((below(limit) - (1.0 - weibull.survival(limit))).abs() < 0.008, "{limit}");
        }
        // The mean remaining time at a random moment is (1 + variance / mean^2) / 2 of the mean.
        let left = (0..40_000).map(|_| weibull.draw_first(&mut rng)).sum::<f64>() / 40_000.0;
        let second = weibull.scale.powi(2) * gamma(1.0 + 2.0 / 0.7);
        assert!((left / (second / 2000.0) - 1.0).abs() < 0.03, "{left}");
        assert!((second / 1e6 - gamma(1.0 + 2.0 / 0.7) / gamma(1.0 + 1.0 / 0.7).powi(2)).abs() < 1e-9);
    }

    /// The rate stays the same, and failures have others near them, in time and in the rack.
    #[test]
    fn bursts_keep_the_rate_and_come_close() {
        for shape in [1.0, 0.7] {
            let with = |chance: f64| {
                machine(4000, |machine| {
                    machine.site.shape = shape;
                    machine.site.burst = Some(Burst { chance, delay: 1.0 });
                    machine.site.domains = vec![Domain { name: "rack".into(), nodes: 8, rate: 0.0, returns: 0.0 }];
                    machine.failures = Failures { process: 0.0, reboot: 0.0, loss: 1e-5, system: 0.0 };
                })
            };
            let (burst, expected) = (with(0.4), 1e-5 * 4000.0 * 2e4 * 10.0);
            let (mut count, mut close, mut near) = (0, 0, 0);
            for seed in 0..10 {
                let found = all(&burst, 2e4, seed);
                count += found.len();
                for pair in found.windows(2) {
                    let [Kind::Loss(one), Kind::Loss(other)] = [&pair[0].1, &pair[1].1] else { panic!("{pair:?}") };
                    if pair[1].0 - pair[0].0 < 0.5 {
                        close += 1;
                        near += usize::from(one.start / 8 == other.start / 8);
                    }
                }
            }
            assert!(away(count, expected, 8.0).abs() < 3.5, "{count} of {expected}");
            // The share is 0.4 (1 - e^-0.5), plus 0.02 by chance.
            let share = close as f64 / count as f64;
            assert!((0.14..0.20).contains(&share) && near * 10 > close * 8, "{share} {near} of {close}");
        }
    }

    #[test]
    fn domains_are_lost_whole_at_their_rate() {
        let machine = machine(1000, |machine| {
            machine.failures = Failures { process: 0.0, reboot: 0.0, loss: 0.0, system: 1e-4 };
            machine.site.domains = vec![
                Domain { name: "switch".into(), nodes: 4, rate: 1e-6, returns: 1.0 },
                Domain { name: "rack".into(), nodes: 20, rate: 2e-6, returns: 0.25 },
            ];
        });
        let (mut switches, mut racks, mut returned, mut systems) = (0, 0, 0, 0);
        for (_, kind) in all(&machine, 1e7, 3) {
            match kind {
                Kind::Reboot(nodes) if nodes.len() == 4 => switches += usize::from(nodes.start % 4 == 0),
                Kind::Loss(nodes) if nodes.len() == 20 => {
                    racks += usize::from(nodes.start % 20 == 0 && nodes.end <= 1000)
                }
                Kind::Reboot(nodes) if nodes.len() == 20 => returned += 1,
                Kind::System => systems += 1,
                other => panic!("{other:?}"),
            }
        }
        for (found, expected) in [(switches, 2500.0), (racks, 750.0), (returned, 250.0), (systems, 1000.0)] {
            assert!(away(found, expected, 1.0).abs() < 3.5, "{found}, expected {expected}");
        }
        assert!((machine.failure_rate() * 1e7 - 4500.0).abs() < 1e-6);
    }
}
