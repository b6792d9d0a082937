//! Machines that are known by name.
//!
//! The nine of Lee et al., GPU Snapshot (ICS'19), tables 1 and 2: failures of GPUs and processors need node memory, those of nodes the local disk, those of the
//! system the file system; everything blocks, and is read at the rates at which it is written. The paper prints no times of recovery. What is printed there
//! is taken as it is: the processors' failures, which are not in proportion to their number, and links of 8 GB/s a GPU, but 64 GB/s a processor at most.

use super::machine::{Failures, Machine, Store};

const GB: f64 = 1e9;
const GIB: f64 = (1u64 << 30) as f64;
const DAY: f64 = 86_400.0;

/// A column of the paper's table 1: its name, GPUs, nodes, GB/s of all links, disks and the file system, and failures a second of GPUs, processors and
/// nodes.
type Column = (&'static str, f64, u64, [f64; 3], [f64; 3]);

const ICS19: [Column; 9] = [
    ("ics19-0.45ef-16", 57_600.0, 1_800, [2.30e5, 3.87e3, 3.45e3], [6.56e-5, 1.14e-6, 2.60e-7]),
    ("ics19-0.9ef-16", 115_200.0, 3_600, [4.61e5, 7.74e3, 4.49e3], [1.31e-4, 2.28e-6, 5.20e-7]),
    ("ics19-1.8ef-16", 230_400.0, 7_200, [9.22e5, 1.55e4, 5.84e3], [2.62e-4, 4.56e-6, 1.04e-6]),
    ("ics19-3.6ef-2", 460_800.0, 115_200, [3.69e6, 2.48e5, 7.65e3], [5.25e-4, 6.36e-5, 1.66e-5]),
    ("ics19-3.6ef-4", 460_800.0, 57_600, [3.69e6, 1.24e5, 7.61e3], [5.25e-4, 3.31e-5, 8.31e-6]),
    ("ics19-3.6ef-8", 460_800.0, 28_800, [3.69e6, 6.19e4, 7.60e3], [5.25e-4, 1.73e-5, 4.16e-6]),
    ("ics19-3.6ef-16", 460_800.0, 14_400, [1.84e6, 3.10e4, 7.59e3], [5.25e-4, 9.13e-6, 2.08e-6]),
    ("ics19-3.6ef-32", 460_800.0, 7_200, [9.22e5, 1.55e4, 7.58e3], [5.25e-4, 4.84e-6, 1.04e-6]),
    ("ics19-7.2ef-16", 921_600.0, 28_800, [3.69e6, 6.19e4, 9.86e3], [1.05e-3, 1.83e-5, 4.16e-6]),
];

/// Failures a second of the whole system, in each column.
const ICS19_SYSTEM: f64 = 1.77e-7;
/// Bytes of a GPU.
const ICS19_GPU: f64 = 32.0 * GB;

fn of_column((name, gpus, nodes, [links, disks, files], [gpu, cpu, node]): &Column) -> Machine {
    let count = *nodes as f64;
    let store = |rate: f64| Some(Store { write: rate, read: rate });
    Machine {
        name: (*name).to_owned(),
        nodes: *nodes,
        state: gpus / count * ICS19_GPU,
        capture: links * GB / count,
        local: store(disks * GB / count),
        global: store(files * GB),
        is_behind: false,
        slowdown: 0.0,
        relaunch: 0.0,
        failures: Failures { process: (gpu + cpu) / count, reboot: node / count, loss: 0.0, system: ICS19_SYSTEM },
    }
}

/// One machine without GPUs and without a parallel file system: what is on its disk survives all that is thought of. Its failures are a guess.
fn laptop() -> Machine {
    Machine {
        name: "laptop".into(),
        nodes: 1,
        state: 4.0 * GIB,
        capture: 5.0 * GB,
        local: Some(Store { write: 1.0 * GB, read: 2.0 * GB }),
        global: None,
        is_behind: true,
        slowdown: 0.05,
        relaunch: 5.0,
        failures: Failures { process: 1.0 / (7.0 * DAY), reboot: 1.0 / (30.0 * DAY), loss: 0.0, system: 0.0 },
    }
}

/// A node of eight GPUs whose memory is half saved. Captures at what four GPUs at once were measured to have (`benches/README.md`), twice; failures of the parts
/// are those of the paper's table 1, a node in ten does not come back; storage and the time of a new start are guesses.
fn node_8gpu() -> Machine {
    Machine {
        name: "node-8gpu".into(),
        nodes: 1,
        state: 8.0 * 40.0 * GIB,
        capture: 280.0 * GB,
        local: Some(Store { write: 10.0 * GB, read: 20.0 * GB }),
        global: Some(Store { write: 100.0 * GB, read: 100.0 * GB }),
        is_behind: true,
        slowdown: 0.02,
        relaunch: 60.0,
        failures: Failures {
            process: 8.0 * 1.14e-9 + 2.0 * 3.2e-10,
            reboot: 0.9 * 1.44e-10,
            loss: 0.1 * 1.44e-10,
            system: ICS19_SYSTEM,
        },
    }
}

/// All of them.
pub fn all() -> Vec<Machine> {
    [laptop(), node_8gpu()].into_iter().chain(ICS19.iter().map(of_column)).collect()
}

/// The one of that name.
pub fn named(name: &str) -> Option<Machine> {
    all().into_iter().find(|machine| machine.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::intervals::best;

    fn efficiency(name: &str) -> f64 {
        let levels: Vec<_> = named(name).expect("known").levels().into_iter().map(|(_, costs)| costs).collect();
        best(&levels, 0).expect("a pattern").efficiency * 100.0
    }

    /// 8.0, 476 and 1943 s, and the printed totals of failures.
    #[test]
    fn costs_are_those_of_the_papers_tables() {
        let machine = named("ics19-3.6ef-16").expect("known");
        let seconds: Vec<f64> =
            machine.levels().iter().map(|(_, costs)| (costs.blocking * 10.0).round() / 10.0).collect();
        assert_eq!(seconds, [8.0, 475.7, 1942.8]);
        let totals = [6.72e-5, 1.34e-4, 2.68e-4, 6.05e-4, 5.67e-4, 5.47e-4, 5.36e-4, 5.31e-4, 1.07e-3];
        for (column, total) in ICS19.iter().zip(totals) {
            let machine = of_column(column);
            let ours = machine.failures.total(machine.nodes);
            assert!((ours / total - 1.0).abs() < 0.005, "{}: {ours}, printed {total}", machine.name);
        }
    }

    /// Figures 2 and 3: it falls with scale, and with density above 8.
    #[test]
    fn efficiency_falls_with_scale_and_density() {
        let falls = |names: &[&str]| names.windows(2).all(|pair| efficiency(pair[0]) > efficiency(pair[1]));
        assert!(falls(&["ics19-0.45ef-16", "ics19-0.9ef-16", "ics19-1.8ef-16", "ics19-3.6ef-16", "ics19-7.2ef-16"]));
        assert!(falls(&["ics19-3.6ef-8", "ics19-3.6ef-16", "ics19-3.6ef-32"]));
        assert!((84.2..84.5).contains(&efficiency("ics19-3.6ef-16")));
    }

    #[test]
    fn every_preset_has_a_pattern_and_a_name_of_its_own() {
        let machines = all();
        for (at, machine) in machines.iter().enumerate() {
            assert!((30.0..100.0).contains(&efficiency(&machine.name)), "{}", machine.name);
            assert!(machines[..at].iter().all(|other| other.name != machine.name));
        }
    }
}
