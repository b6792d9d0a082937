//! A machine in numbers, and what checkpoints cost on it.

use crate::base::Level;
use crate::policy::intervals::LevelCosts;

/// Where checkpoints are kept, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store {
    /// Written.
    pub write: f64,
    /// Read.
    pub read: f64,
}

/// Failures a second, by what survives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Of a node, after which its memory is still there: a process, a GPU, a program that was ended.
    pub process: f64,
    /// Of a node that comes back with its local storage.
    pub reboot: f64,
    /// Of a node that does not come back.
    pub loss: f64,
    /// Of all nodes at once, however many there are.
    pub system: f64,
}

impl Failures {
    /// All of a machine of so many nodes.
    pub fn total(&self, nodes: u64) -> f64 {
        (self.process + self.reboot + self.loss) * nodes as f64 + self.system
    }
}

/// A machine and what a job saves there.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What `--preset` calls it.
    pub name: String,
    /// How many there are.
    pub nodes: u64,
    /// Bytes that a node saves.
    pub state: f64,
    /// Bytes a second at which a node copies its state into node memory while the program stands still, all GPUs at once.
    pub capture: f64,
    /// Local storage of a node.
    pub local: Option<Store>,
    /// Shared by all nodes.
    pub global: Option<Store>,
    /// Is what goes to storage written while the program goes on? If not, the program stands still for that, too.
    pub is_behind: bool,
    /// By how much the program is slower meanwhile.
    pub slowdown: f64,
    /// Seconds until a failure is noticed and the job runs again.
    pub relaunch: f64,
    /// Of a node, and of all at once.
    pub failures: Failures,
}

impl Machine {
    /// How many of the lowest levels are there whether they pay or not: what is written while the program goes on is written from node memory.
    pub fn always(&self) -> usize {
        usize::from(self.is_behind)
    }

    /// Levels that it has, ascending, and what they cost. Failures that no level of their own survives are those of the next one; the highest one is
    /// thought to survive all.
    pub fn levels(&self) -> Vec<(Level, LevelCosts)> {
        let nodes = self.nodes as f64;
        let Failures { process, reboot, loss, system } = self.failures;
        let memory = LevelCosts {
            recovery: self.relaunch + self.state / self.capture,
            ..LevelCosts::blocking(self.state / self.capture, 0.0, process * nodes)
        };
        let stored = |store: Store, bytes: f64, rate: f64| {
            let (write, recovery) = (bytes / store.write, self.relaunch + bytes / store.read);
            match self.is_behind {
                true => {
                    LevelCosts { latency: write, slowdown: self.slowdown, ..LevelCosts::blocking(0.0, recovery, rate) }
                }
                false => LevelCosts::blocking(write, recovery, rate),
            }
        };
        let mut levels = vec![(Level::Process, memory)];
        let mut rest = reboot * nodes;
        if let Some(local) = self.local {
            levels.push((Level::NodeReboot, stored(local, self.state, rest)));
            rest = 0.0;
        }
        rest += loss * nodes + system;
        match self.global {
            Some(global) => levels.push((Level::System, stored(global, self.state * nodes, rest))),
            None => levels.last_mut().expect("one").1.rate += rest,
        }
        levels
    }

    /// The same machine, all of whose failures are so many times as frequent.
    pub fn failing(mut self, times: f64) -> Machine {
        let Failures { process, reboot, loss, system } = &mut self.failures;
        for rate in [process, reboot, loss, system] {
            *rate *= times;
        }
        self
    }
}
