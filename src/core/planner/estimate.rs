//! Estimates how often a job fails from the failures that it has been seen to have.
//!
//! Each rate has a Gamma distribution. Before anything has been seen, its shape is 1, and its mean is the rate at which parts of that kind
//! have been seen to fail elsewhere, which weighs as much as one failure. Once failures have been counted over some time, the shape is 1 +
//! failures, over 1 / mean + time. A job that fails a hundred times as often would believe a single such mean for too long: after 20
//! failures of a node in 40 days, it would still expect one in 58 days. So there are several means, each ten times as large and a tenth as
//! likely as the one before, and the observations show which of them applies.

use super::ics19::SYSTEM_FAILURES;
use super::machine::Failures;
use crate::format::supervision::Attempt;
use crate::policy::intervals::LEVELS_MAX;

/// Failures a second of a GPU, of a processor and of the rest of a node (Lee et al., GPU Snapshot, ICS'19, table 1, from 18,688 GPUs of
/// Titan and others).
const GPU: f64 = 1.14e-9;
const PROCESSOR: f64 = 3.2e-10;
const NODE: f64 = 1.44e-10;
/// The share of a job's failures that are failures of the whole system, used if only the frequency of the job's failures is known. The
/// value is a guess.
const SYSTEM_SHARE: f64 = 0.1;
/// The share of lost nodes that do not come back. The value is a guess.
const NODES_GONE: f64 = 0.1;

/// Returns the rates at which parts have been seen to fail elsewhere, for a node of two processors with this many GPUs.
pub fn of_parts(gpus: u32) -> Failures {
    Failures {
        process: GPU * f64::from(gpus) + 2.0 * PROCESSOR,
        reboot: NODE * (1.0 - NODES_GONE),
        loss: NODE * NODES_GONE,
        system: SYSTEM_FAILURES,
    }
}

/// The same as [`of_parts`], for a job of which only the ranks and nodes are known. It assumes a GPU for each rank, and
/// at most eight on a node.
pub fn of_ranks(ranks: u64, nodes: u64) -> Failures {
    of_parts(ranks.div_ceil(nodes).min(8) as u32)
}

/// The failures that a job was seen to have over all its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Seconds for which the job ran.
    pub seconds: f64,
    /// These seconds multiplied by the number of nodes on which the job ran.
    pub node_seconds: f64,
    /// The number of times that the job ended and all nodes were still usable.
    pub process: u64,
    /// The number of lost nodes, except those that [`Seen::system`] counts.
    pub node: u64,
    /// The number of times that the job ended and no node was usable.
    pub system: u64,
}

impl Seen {
    /// Evaluates the attempts of `bivouac run`. A host that did not answer after a failed attempt counts as a lost node. If an attempt had
    /// several hosts and none answered, the system counts as lost.
    pub fn of(attempts: &[Attempt]) -> Seen {
        let mut seen = Seen::default();
        for attempt in attempts {
            let nodes = attempt.hosts.len().max(1);
            seen.seconds += attempt.seconds();
            seen.node_seconds += attempt.seconds() * nodes as f64;
            // Host names have their slots appended: "a:2".
            let name = |host: &String| host.split(':').next().unwrap_or_default().to_owned();
            let down = attempt.hosts.iter().filter(|host| attempt.down.contains_key(&name(host))).count();
            match down {
                _ if !attempt.has_failed() => {}
                0 => seen.process += 1,
                all if all == nodes && nodes > 1 => seen.system += 1,
                some => seen.node += some as u64,
            }
        }
        seen
    }
}

/// A rate and its 90 % range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The mean rate, a second.
    pub mean: f64,
    /// The 5 % and 95 % quantiles.
    pub range: [f64; 2],
}

/// The number of powers of ten by which jobs may fail more often than parts do, because their programs fail, too.
const DECADES: i32 = 8;

/// Returns the estimate of a rate that was thought to be `prior` before `failures` were seen in this many seconds.
///
/// ```
/// use bivouac_core::planner::estimate::rate;
/// let (day, year) = (86_400.0, 365.0 * 86_400.0);
/// // Nothing seen is what was thought, and much that is seen is what was seen, however wrong the thought.
/// assert!((rate(1.0 / year, 0, 0.0).mean * year - 1.0).abs() < 1e-9);
/// assert!((rate(1.0 / year, 20, 10.0 * day).mean * day - 2.0).abs() < 0.2);
/// ```
pub fn rate(prior: f64, failures: u64, seconds: f64) -> Rate {
    let seconds = seconds.max(0.0);
    // The chances fall as the rates rise, so that each rate contributes equally to the mean.
    let chances: Vec<f64> = (0..=DECADES).map(|decade| 10f64.powi(-decade)).collect();
    let least = prior * chances.iter().sum::<f64>() / chances.len() as f64;
    // The pseudo-seconds of each candidate, and the logarithm of the likelihood of the observations under it: (beta / (beta + t)) (t /
    // (beta + t))^failures.
    let before: Vec<f64> = chances.iter().map(|chance| chance / least).collect();
    let likely = |beta: f64| {
        let seen = if failures > 0 { failures as f64 * (seconds / (beta + seconds)).ln() } else { 0.0 };
        (beta / (beta + seconds)).ln() + seen
    };
    let logs: Vec<f64> = before.iter().zip(&chances).map(|(beta, chance)| chance.ln() + likely(*beta)).collect();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| if most.is_finite() { (log - most).exp() } else { 1.0 }).collect();
    let sum: f64 = weights.iter().sum();
    let parts: Vec<(f64, f64)> =
        before.iter().zip(&weights).map(|(beta, weight)| (beta + seconds, weight / sum)).collect();
    let shape = failures + 1;
    let mean = parts.iter().map(|(beta, weight)| weight * shape as f64 / beta).sum();
    Rate { mean, range: [0.05, 0.95].map(|share| quantile(shape, &parts, share)) }
}

/// Returns the chance that a Gamma distribution with a whole shape is below `x` (in units of its scale). It is the chance that at least as
/// many events of a Poisson process occur within `x`.
fn below(shape: u64, x: f64) -> f64 {
    // For larger shapes a normal distribution is as good, and the sum would be long.
    if shape > 400 {
        let z = (x - shape as f64) / (shape as f64).sqrt();
        return 1.0 / (1.0 + (-1.5976 * z - 0.07056 * z.powi(3)).exp());
    }
    let mut term = (-x).exp();
    let mut sum = term;
    for event in 1..shape {
        term *= x / event as f64;
        sum += term;
    }
    1.0 - sum
}

/// Returns a quantile of a mixture of such distributions, each given by its seconds and its weight. It is found by
/// bisection of the logarithm.
fn quantile(shape: u64, parts: &[(f64, f64)], share: f64) -> f64 {
    let of = |rate: f64| parts.iter().map(|(beta, weight)| weight * below(shape, rate * beta)).sum::<f64>();
    let most = parts.iter().map(|(beta, _)| *beta).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (-300.0f64, ((3.0 * shape as f64 + 20.0) / most).ln());
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if of(middle.exp()) < share { low = middle } else { high = middle }
    }
    high.exp()
}

/// Returns the failures of a node and of all nodes at once, updated with the observations. The share of lost nodes that come back stays as
/// assumed, because an attempt does not show it.
pub fn after(prior: &Failures, seen: &Seen) -> Failures {
    of_rates(prior, seen, |rate| rate.mean)
}

/// The failures of [`after`] if each kind is as rare, or as frequent, as its 90 % range allows.
pub fn within(prior: &Failures, seen: &Seen) -> [Failures; 2] {
    [0, 1].map(|end| of_rates(prior, seen, |rate| rate.range[end]))
}

fn of_rates(prior: &Failures, seen: &Seen, of: impl Fn(Rate) -> f64) -> Failures {
    // A kind of failure whose prior rate is 0 never occurs.
    let rate =
        |prior: f64, failures: u64, seconds: f64| if prior > 0.0 { of(rate(prior, failures, seconds)) } else { 0.0 };
    let nodes = prior.reboot + prior.loss;
    let node = if nodes > 0.0 { rate(nodes, seen.node, seen.node_seconds) / nodes } else { 0.0 };
    Failures {
        process: rate(prior.process, seen.process, seen.node_seconds),
        reboot: prior.reboot * node,
        loss: prior.loss * node,
        system: rate(prior.system, seen.system, seen.seconds),
    }
}

impl Failures {
    /// The failures a second of a job on this many nodes, by the lowest level that survives them, in the order of
    /// [`Level::VOTED`](crate::base::Level::VOTED).
    pub fn by_level(&self, nodes: u64) -> [f64; LEVELS_MAX] {
        let of_nodes = |rate: f64| rate * nodes as f64;
        [of_nodes(self.process), of_nodes(self.reboot), of_nodes(self.loss), self.system]
    }

    /// Returns these failures at another frequency, where `seconds` is the mean time between two failures of a job on this many nodes. The
    /// system fails as often as before, but accounts for at most a tenth of all failures. The other kinds keep their shares of the rest.
    pub fn each(&self, nodes: u64, seconds: f64) -> Failures {
        let Failures { process, reboot, loss, system } = *self;
        let of_nodes = (process + reboot + loss) * nodes as f64;
        let system = if of_nodes > 0.0 { system.min(SYSTEM_SHARE / seconds) } else { 1.0 / seconds };
        let times = if of_nodes > 0.0 { (1.0 / seconds - system) / of_nodes } else { 0.0 };
        Failures { process: process * times, reboot: reboot * times, loss: loss * times, system }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halved quantiles of chi-squared distributions with 2, 8 and 200 degrees of freedom, from tables.
    #[test]
    fn quantiles_are_those_of_tables() {
        let of = |shape, share| quantile(shape, &[(1.0, 1.0)], share);
        for (shape, [low, high]) in [(1, [0.0513, 2.9957]), (4, [1.3663, 7.7537]), (100, [84.139, 116.997])] {
            assert!((of(shape, 0.05) - low).abs() < 1e-3 * low, "{shape}: {}", of(shape, 0.05));
            assert!((of(shape, 0.95) - high).abs() < 1e-3 * high, "{shape}: {}", of(shape, 0.95));
        }
        let [before, behind] = [400, 401].map(|shape| of(shape, 0.95));
        assert!((behind - before - 1.0).abs() < 1.5, "{before} {behind}");
    }

    /// Rates sampled from the prior lie within the range nine times in ten, whatever is observed.
    #[test]
    fn the_range_is_one_of_ninety_percent() {
        let mut rng = crate::base::rng::Rng::new(3);
        let mut share = || (rng.below(1 << 40) as f64 + 0.5) / (1u64 << 40) as f64;
        let (mut inside, draws) = (0, 1000);
        for draw in 0..draws {
            let decade = (-share().log10()).floor().min(f64::from(DECADES)) as i32;
            let truth = -share().ln() * 1e-8 * 1.1111 / 9.0 * 10f64.powi(decade);
            let seconds = [0.0, 1e7, 1e8, 1e9][draw % 4];
            // The failures of a Poisson process within that time.
            let (mut at, mut failures) = (0.0, 0);
            while {
                at -= share().ln() / truth;
                at < seconds
            } {
                failures += 1;
            }
            let found = rate(1e-8, failures, seconds);
            inside += usize::from((found.range[0]..found.range[1]).contains(&truth));
        }
        assert!((870..930).contains(&inside), "{inside} of {draws}");
    }

    #[test]
    fn attempts_tell_processes_nodes_and_the_system_apart() {
        let line = |hosts: &str, down: &str, decision: &str| {
            format!(
                r#"{{"began": 100, "ended": 700, "hosts": [{hosts}], "down": {{{down}}}, "decision": "{decision}", "more": 1}}"#
            )
        };
        let lines = [
            line(r#""a:2", "b:2""#, "", "restart"),
            line(r#""a:2", "b:2""#, r#""b": "no route", "c": "spare""#, "restart"),
            line(r#""a:2", "c:2""#, r#""a": "no route", "c": "no route""#, "too-few-nodes"),
            line("", "", "exhausted"),
            line("", "", "success"),
            line(r#""a:2""#, r#""a": "busy""#, "halted"),
            r#"{"began": 5, "ended""#.to_owned(),
        ];
        let seen = Seen::of(&Attempt::decode_all(lines.join("\n").as_bytes()));
        assert_eq!(seen, Seen { seconds: 3600.0, node_seconds: 5400.0, process: 2, node: 1, system: 1 });
        assert!(Attempt::decode_all(b"\xff\n[]\n{\"began\": 9, \"ended\": 1}\n").is_empty());
    }

    #[test]
    fn what_was_seen_outweighs_what_was_thought() {
        let prior = of_parts(8);
        assert!((after(&prior, &Seen::default()).process / prior.process - 1.0).abs() < 1e-12);
        let day = 86_400.0;
        let seen = Seen { seconds: 10.0 * day, node_seconds: 40.0 * day, process: 20, node: 4, system: 0 };
        let found = after(&prior, &seen);
        assert!((found.process * 40.0 * day - 20.0).abs() < 2.0, "{found:?}");
        assert!(((found.reboot + found.loss) * 40.0 * day - 4.0).abs() < 2.0 && found.reboot > found.loss);
        assert!(found.system < prior.system);
        let [rare, frequent] = within(&prior, &seen);
        assert!(rare.process < found.process && found.process < frequent.process && rare.loss < frequent.loss);
        assert!(rare.system > 0.0 && rare.system < found.system && found.system < frequent.system);
        let laptop = Failures { loss: 0.0, system: 0.0, ..prior };
        assert!(after(&laptop, &seen).loss == 0.0 && within(&laptop, &seen)[1].system == 0.0);
        let each = found.each(4, 3600.0);
        assert!((each.total(4) * 3600.0 - 1.0).abs() < 1e-9 && each.system == found.system);
        // In a job that fails rarely, nearly all failures would be those of the system.
        let [often, seldom] = [60.0, 30.0 * day].map(|seconds| prior.each(1, seconds));
        assert!(often.system == prior.system && often.process > 10.0 * often.reboot, "{often:?}");
        assert!(
            (seldom.system * 30.0 * day - SYSTEM_SHARE).abs() < 1e-9 && seldom.process > seldom.system,
            "{seldom:?}"
        );
    }
}
