//! A machine in numbers, and what checkpoints cost on it.

use super::protection;
use crate::base::Level;
use crate::config::Scheme;
use crate::policy::intervals::{Conduct, LevelCosts, Volume};

/// The bandwidth of a place where checkpoints are kept, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store {
    /// The rate at which it is written.
    pub write: f64,
    /// The rate at which it is read.
    pub read: f64,
}

/// Failures a second, by what survives the failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Failures of a node after which its memory is intact: a process or a GPU fails, or the program is ended.
    pub process: f64,
    /// Failures of a node that comes back with its local storage.
    pub reboot: f64,
    /// Failures of a node that does not come back.
    pub loss: f64,
    /// Failures of all nodes at once, independent of their number.
    pub system: f64,
}

impl Failures {
    /// The total failure rate of one node.
    pub fn of_node(&self) -> f64 {
        self.process + self.reboot + self.loss
    }

    /// The total failure rate of a machine of this many nodes.
    pub fn total(&self, nodes: u64) -> f64 {
        self.of_node() * nodes as f64 + self.system
    }
}

/// Failures that cause further failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// The chance that a failure of a node is followed by another, which in turn may be followed by one; at least 0 and below 1. It does
    /// not change the mean failure rate.
    pub chance: f64,
    /// The mean delay of the following failure, in seconds. The delay is exponentially distributed.
    pub delay: f64,
}

/// Nodes that may be lost together, for example those of a switch or a rack.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// What such a domain is called.
    pub name: String,
    /// The number of nodes in each domain.
    pub nodes: u64,
    /// Losses a second of one such domain as a whole.
    pub rate: f64,
    /// The share of these losses after which the nodes come back with their local storage.
    pub returns: f64,
}

/// Spare nodes, which replace nodes that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spares {
    /// The number of spares.
    pub count: u64,
    /// Seconds until a lost node becomes available as a spare.
    pub repair: f64,
}

/// The time limit of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Seconds for which a job may run.
    pub time: f64,
    /// Seconds from the end of a job until the next one starts.
    pub queue: f64,
}

/// The effects that the simple model leaves out. By default there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// The shape of the Weibull distribution of the time between two failures of a node; 1 makes it exponential. Schroeder and Gibson
    /// (2006) found 0.7 to 0.8.
    pub shape: f64,
    /// Failures that cause further failures.
    pub burst: Option<Burst>,
    /// The groups of nodes that are lost together, smallest first.
    pub domains: Vec<Domain>,
    /// The share of the global store that other users take.
    pub others: f64,
    /// Spare nodes; `None`: there are always enough.
    pub spares: Option<Spares>,
    /// The time limit of a job; `None`: a job runs for ever.
    pub limit: Option<Limit>,
}

impl Default for Site {
    fn default() -> Self {
        Site { shape: 1.0, burst: None, domains: Vec::new(), others: 0.0, spares: None, limit: None }
    }
}

/// How a checkpoint moves from the GPUs, or from live memory, to node memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capture {
    /// The program waits until the whole checkpoint is in node memory.
    Blocking,
    /// The checkpoint is copied inside the GPU, at this rate for each node, and lands while the program continues.
    Cached {
        /// Bytes a second of a node.
        rate: f64,
    },
    /// The checkpoint is marked, which takes a fixed time, and lands from live memory. Writes to memory that has not landed yet wait.
    Marked {
        /// Seconds for which the program stands still.
        fixed: f64,
        /// The share by which the program is slower until the checkpoint has landed.
        stalls: f64,
    },
}

/// A machine, and what a job saves on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The name of the machine for `--preset`.
    pub name: String,
    /// The number of nodes.
    pub nodes: u64,
    /// GPUs of a node, each of which has a rank; 1 on a machine without GPUs.
    pub gpus: u64,
    /// The number of bytes that a node saves.
    pub state: f64,
    /// The rate at which a node copies its state into node memory, in bytes a second, for each number of GPUs that copy at once, ascending.
    /// The GPUs that copy at once share links and memory.
    pub links: Vec<(u64, f64)>,
    /// The number of a node's GPUs that copy at once; the others wait for their turn.
    pub at_once: u64,
    /// How the GPUs copy.
    pub capture: Capture,
    /// The number of bytes of a node's memory that checkpoints may occupy; `None`: there is always enough.
    pub memory: Option<f64>,
    /// The rate at which a node sends to others while it receives as much, in bytes a second.
    pub network: f64,
    /// The redundancy scheme that protects against the loss of nodes.
    pub scheme: Scheme,
    /// The local storage of a node.
    pub local: Option<Store>,
    /// The storage that all nodes share.
    pub global: Option<Store>,
    /// The share of the state that is written to files.
    pub volume: Volume,
    /// Whether storage is written while the program continues. Otherwise the program also stands still for that.
    pub is_behind: bool,
    /// The share by which the program is slower during these writes.
    pub slowdown: f64,
    /// Seconds until a failure is noticed and the job runs again.
    pub relaunch: f64,
    /// The failures of a node, and those of all nodes at once.
    pub failures: Failures,
    /// What the simple model leaves out.
    pub site: Site,
}

impl Machine {
    /// The number of lowest levels that are always used, even where they do not pay: data that is written while the program continues is
    /// written from node memory.
    pub fn always(&self) -> usize {
        usize::from(self.is_behind)
    }

    /// How a failure affects a checkpoint that is being written. Background writes end with the program.
    pub fn conduct(&self) -> Conduct {
        if self.is_behind { Conduct::Engine } else { Conduct::Chain }
    }

    /// The rate at which a node copies its state into node memory, in bytes a second, if as many GPUs as allowed copy at once.
    pub fn capture_rate(&self) -> f64 {
        let at_once = self.at_once.min(self.gpus);
        let found = self.links.iter().rev().find(|(gpus, _)| *gpus <= at_once).or(self.links.first());
        found.map_or(f64::INFINITY, |(_, rate)| *rate)
    }

    /// Failures a second of all kinds, including those of whole domains.
    pub fn failure_rate(&self) -> f64 {
        self.failures.total(self.nodes) + self.domain_losses().map(|(_, rate)| rate).sum::<f64>()
    }

    /// Each kind of domain, with the losses a second of all its domains together.
    pub fn domain_losses(&self) -> impl Iterator<Item = (&Domain, f64)> {
        self.site.domains.iter().map(|domain| (domain, domain.rate * (self.nodes / domain.nodes.max(1)) as f64))
    }

    /// Bytes of node memory that a version occupies on each node: the state, and what the node keeps for others.
    pub fn version_bytes(&self) -> f64 {
        self.state * (1.0 + protection::memory_share(self.scheme))
    }

    /// The number of versions that fit in node memory.
    pub fn versions(&self) -> u64 {
        self.memory.map_or(u64::MAX, |memory| (memory / self.version_bytes()) as u64)
    }

    /// The levels of the machine, ascending, with their costs. Failures whose own level is missing count as those of the next higher level.
    /// The highest level is assumed to survive all failures.
    ///
    /// A copy made in the background counts once everything before it has arrived: a file in the global store is written after the local
    /// one, which is written after the copy has landed in node memory.
    pub fn levels(&self) -> Vec<(Level, LevelCosts)> {
        let nodes = self.nodes as f64;
        let Failures { process, reboot, loss, system } = self.failures;
        let memory = self.in_memory(process * nodes);
        let landing = memory.latency;
        let mut levels = vec![(Level::Process, memory)];
        let mut rest = reboot * nodes;
        rest += self.domain_losses().map(|(domain, rate)| rate * domain.returns).sum::<f64>();
        let mut before = landing;
        if let Some(local) = self.local {
            let costs = self.stored(local, self.state, rest, landing);
            before = costs.latency;
            levels.push((Level::NodeReboot, LevelCosts { volume: self.volume, ..costs }));
            rest = 0.0;
        }
        let losses = loss * nodes;
        let of_domains = self.domain_losses().map(|(domain, rate)| rate * (1.0 - domain.returns)).sum::<f64>();
        match protection::level(self, rest, &memory) {
            Some((costs, beyond)) => {
                levels.push((Level::NodeLoss, costs));
                rest = beyond + system;
            }
            None => rest += losses + of_domains + system,
        }
        match self.global {
            Some(global) => {
                let global = Store {
                    write: global.write * (1.0 - self.site.others),
                    read: global.read * (1.0 - self.site.others),
                };
                let costs = self.stored(global, self.state * nodes, rest, before);
                levels.push((Level::System, LevelCosts { volume: self.volume, ..costs }));
            }
            None => levels.last_mut().expect("one").1.rate += rest,
        }
        levels
    }

    /// The costs of the copy in node memory.
    fn in_memory(&self, rate: f64) -> LevelCosts {
        let copy = self.state / self.capture_rate();
        let recovery = self.relaunch + copy;
        match self.capture {
            Capture::Blocking => LevelCosts::blocking(copy, recovery, rate),
            Capture::Cached { rate: inside } => LevelCosts {
                latency: copy,
                slowdown: self.slowdown,
                ..LevelCosts::blocking(self.state / inside, recovery, rate)
            },
            Capture::Marked { fixed, stalls } => {
                LevelCosts { fixed, latency: copy, slowdown: stalls, ..LevelCosts::blocking(0.0, recovery, rate) }
            }
        }
    }

    /// The costs of a copy in a store that begins `before` seconds after the capture.
    fn stored(&self, store: Store, bytes: f64, rate: f64, before: f64) -> LevelCosts {
        self.moved(bytes / store.write, self.relaunch + bytes / store.read, rate, before)
    }

    /// The costs of a transfer that takes `seconds`, in the background or while the program stands still.
    pub(super) fn moved(&self, seconds: f64, recovery: f64, rate: f64, before: f64) -> LevelCosts {
        match self.is_behind {
            true => {
                let latency = before + seconds;
                // The program is slower only while this level's own bytes move.
                let slowdown = if latency > 0.0 { self.slowdown * seconds / latency } else { 0.0 };
                LevelCosts { latency, slowdown, ..LevelCosts::blocking(0.0, recovery, rate) }
            }
            false => LevelCosts::blocking(seconds, recovery, rate),
        }
    }

    /// Returns this machine with a mean time of this many seconds between two failures of any kind. It follows [`Failures::each`], and
    /// losses of whole domains keep their share among the failures of nodes.
    pub fn failing_each(mut self, seconds: f64) -> Machine {
        let before = self.failures.of_node();
        self.failures = self.failures.each(self.nodes, seconds);
        let times = if before > 0.0 { self.failures.of_node() / before } else { 0.0 };
        self.site.domains.iter_mut().for_each(|domain| domain.rate *= times);
        // Nodes and domains together have the rate that nodes alone were to have.
        let (of_nodes, all) = (1.0 / seconds - self.failures.system, self.failure_rate() - self.failures.system);
        let system = self.failures.system;
        let mut machine = self.failing(if all > 0.0 { of_nodes / all } else { 1.0 });
        machine.failures.system = system;
        machine
    }

    /// This machine with all failures this many times as frequent.
    pub fn failing(mut self, times: f64) -> Machine {
        let Failures { process, reboot, loss, system } = &mut self.failures;
        let domains = self.site.domains.iter_mut().map(|domain| &mut domain.rate);
        for rate in [process, reboot, loss, system].into_iter().chain(domains) {
            *rate *= times;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::play::{Played, Setting, Summary, play, seed_of};
    use crate::planner::presets;
    use crate::policy::intervals::{Best, best};

    /// A machine whose global store takes the whole state in six minutes.
    fn large(scheme: Scheme) -> Machine {
        let mut machine = presets::named("node-8gpu").expect("known").failing(20.0);
        (machine.nodes, machine.scheme) = (4096, scheme);
        machine.global = Some(Store { write: 4e12, read: 4e12 });
        machine
    }

    fn planned(machine: &Machine) -> Best {
        let costs: Vec<LevelCosts> = machine.levels().into_iter().map(|(_, costs)| costs).collect();
        best(&costs, machine.always(), machine.conduct()).expect("a pattern")
    }

    /// Whichever level failures are assigned to, none is lost and none is added.
    #[test]
    fn levels_have_all_failures_whatever_the_scheme() {
        for preset in presets::all() {
            for scheme in protection::SCHEMES {
                let mut machine = Machine { scheme, ..preset.clone() };
                machine.failures.loss = machine.failures.reboot / 3.0;
                machine.site.domains = vec![
                    Domain { name: "switch".into(), nodes: 4, rate: 1e-8, returns: 0.5 },
                    Domain { name: "row".into(), nodes: 600, rate: 1e-9, returns: 0.0 },
                ];
                let levels = machine.levels();
                let sum: f64 = levels.iter().map(|(_, costs)| costs.rate).sum();
                assert!((sum / machine.failure_rate() - 1.0).abs() < 1e-12, "{} {scheme}", machine.name);
                assert!(levels.iter().all(|(_, costs)| costs.rate >= 0.0));
                let is_protected = levels.iter().any(|(level, _)| *level == Level::NodeLoss);
                assert_eq!(is_protected, scheme != Scheme::None && machine.nodes > 1, "{} {scheme}", machine.name);
                assert!(levels.is_sorted_by_key(|(level, _)| *level));
            }
        }
    }

    #[test]
    fn copies_come_one_after_the_other_and_slow_down_for_their_own_bytes() {
        let mut machine = large(Scheme::Xor { members: 8 });
        machine.capture = Capture::Cached { rate: 1e13 };
        let levels = machine.levels();
        let copy = machine.state / 280e9;
        let takes = [copy, machine.state / 10e9, machine.state / 100e9, machine.state * 4096.0 / 4e12];
        let delays = [takes[0], takes[0] + takes[1], takes[0] + takes[2], takes[0] + takes[1] + takes[3]];
        for (((_, costs), takes), delay) in levels.iter().zip(takes).zip(delays) {
            assert!((costs.latency / delay - 1.0).abs() < 1e-12, "{costs:?}");
            assert!((costs.cost(1.0) - costs.blocking - 0.02 * takes).abs() < 1e-9, "{costs:?}");
        }
        // A rebuild reads from seven others.
        assert!((levels[2].1.recovery - 60.0 - machine.state * 7.0 / 100e9).abs() < 1e-9);
    }

    #[test]
    fn gpus_that_take_turns_share_less() {
        let mut machine = large(Scheme::None);
        let mut rate = |at_once: u64| {
            machine.at_once = at_once;
            machine.capture_rate() / 1e9
        };
        assert_eq!([1, 2, 3, 4, 8, 100].map(&mut rate), [50.0, 100.0, 100.0, 200.0, 280.0, 280.0]);
        // Marking stops the program for almost no time, and the data lands as late as with copies inside the GPU.
        machine.at_once = 2;
        let costs =
            [Capture::Blocking, Capture::Cached { rate: 8.8e12 }, Capture::Marked { fixed: 0.01, stalls: 0.05 }]
                .map(|capture| Machine { capture, ..machine.clone() }.levels()[0].1);
        let blocks = costs.map(|costs| costs.fixed + costs.blocking);
        assert!(blocks[0] > 3.0 && blocks[1] < 0.05 && blocks[2] == 0.01, "{blocks:?}");
        assert!(
            costs[0].latency == 0.0 && costs[1].latency == costs[0].blocking && costs[2].latency == costs[1].latency
        );
    }

    /// Compares the model's answer and the plays' answer.
    #[test]
    fn a_worse_machine_is_never_better() {
        type Change = fn(&mut Machine);
        let changes: [(&str, Change); 9] = [
            ("failures", |machine| *machine = machine.clone().failing(3.0)),
            ("links", |machine| machine.links.iter_mut().for_each(|(_, rate)| *rate /= 3.0)),
            ("network", |machine| machine.network /= 3.0),
            ("local", |machine| machine.local.iter_mut().for_each(|store| store.write /= 3.0)),
            ("global", |machine| machine.global.iter_mut().for_each(|store| store.write /= 3.0)),
            ("others", |machine| machine.site.others = 0.6),
            ("relaunch", |machine| machine.relaunch *= 3.0),
            ("racks", |machine| machine.site.domains.iter_mut().for_each(|domain| domain.rate *= 30.0)),
            ("state", |machine| machine.state *= 1.5),
        ];
        let of = |machine: &Machine| {
            let best = planned(machine);
            let setting = Setting::of_machine(machine, &machine.levels(), &best.pattern, 10.0 * 86_400.0);
            let plays: Vec<Played> = (0..24).map(|run| play(&setting, seed_of(2, run))).collect();
            (best.efficiency, Summary::of(&plays).efficiency)
        };
        for scheme in [Scheme::Xor { members: 8 }, Scheme::None] {
            let (model, played) = of(&large(scheme));
            for (what, change) in changes {
                let mut machine = large(scheme);
                change(&mut machine);
                let (worse, worse_played) = of(&machine);
                assert!(worse <= model + 1e-6, "{what}, {scheme}: {worse} {model}");
                let error = (worse_played.error.powi(2) + played.error.powi(2)).sqrt();
                assert!(
                    worse_played.mean <= played.mean + 3.0 * error,
                    "{what}, {scheme}: {worse_played:?} {played:?}"
                );
            }
        }
    }

    /// Losses of racks count among all failures. The system fails as often as before, or accounts for a tenth of all failures.
    #[test]
    fn a_mean_time_between_failures_is_that_of_all_kinds() {
        for (seconds, system) in [(3600.0, 1.77e-7 * 20.0), (1e6, 1e-7)] {
            let machine = large(Scheme::None).failing_each(seconds);
            assert!((machine.failure_rate() * seconds - 1.0).abs() < 1e-12);
            assert!((machine.failures.system - system).abs() < 1e-12);
            let [before, behind] =
                [large(Scheme::None), machine].map(|machine| machine.site.domains[0].rate / machine.failures.loss);
            assert!((before / behind - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_store_that_costs_nothing_is_used() {
        for preset in presets::all().into_iter().filter(|machine| machine.global.is_some()) {
            let free = Store { write: f64::INFINITY, read: f64::INFINITY };
            let machine = Machine { local: Some(free), relaunch: 0.0, ..preset };
            assert!(planned(&machine).pattern.levels.iter().any(|(level, _)| *level == 1), "{}", machine.name);
        }
    }

    #[test]
    fn versions_are_as_many_as_have_room_with_what_they_keep_for_others() {
        let mut machine = large(Scheme::Partner { copies: 1 });
        machine.memory = Some(machine.state * 4.5);
        assert_eq!(machine.versions(), 2);
        machine.scheme = Scheme::Xor { members: 8 };
        assert_eq!(machine.versions(), 3);
        machine.memory = None;
        assert_eq!(machine.versions(), u64::MAX);
    }
}
