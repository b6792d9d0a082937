//! Machines that are known by name.
//!
//! The nine machines of the ICS'19 paper are in [`super::ics19`].

use super::estimate::of_parts;
use super::ics19;
use super::machine::{Capture, Domain, Failures, Machine, Site, Store};
use crate::config::Scheme;
use crate::policy::intervals::Volume;

const GB: f64 = 1e9;
const GIB: f64 = (1u64 << 30) as f64;
const DAY: f64 = 86_400.0;

/// A single machine without GPUs and without a parallel file system. Its disk survives every failure that the model has. The
/// failure rates are a guess.
fn laptop() -> Machine {
    Machine {
        name: "laptop".into(),
        nodes: 1,
        gpus: 1,
        state: 4.0 * GIB,
        links: vec![(1, 5.0 * GB)],
        at_once: u64::MAX,
        capture: Capture::Blocking,
        memory: Some(16.0 * GIB),
        network: 0.1 * GB,
        scheme: Scheme::None,
        local: Some(Store { write: 1.0 * GB, read: 2.0 * GB }),
        global: None,
        volume: Volume::WHOLE,
        is_behind: true,
        slowdown: 0.05,
        relaunch: 5.0,
        failures: Failures { process: 1.0 / (7.0 * DAY), reboot: 1.0 / (30.0 * DAY), loss: 0.0, system: 0.0 },
        site: Site::default(),
    }
}

/// A node of eight GPUs, half of whose memory is saved. Its capture rate is twice the rate measured with four GPUs at once
/// (`benches/README.md`). The failure rates of the parts are those of the paper's table 1, and one lost node in ten does not come back.
/// Storage, network, racks and the relaunch time are guesses. Schroeder and Gibson (2006) found the shape of the failures at LANL.
fn node_8gpu() -> Machine {
    Machine {
        name: "node-8gpu".into(),
        nodes: 1,
        gpus: 8,
        state: 8.0 * 40.0 * GIB,
        links: vec![(1, 50.0 * GB), (2, 100.0 * GB), (4, 200.0 * GB), (8, 280.0 * GB)],
        at_once: u64::MAX,
        capture: Capture::Blocking,
        memory: Some(1536.0 * GIB),
        network: 100.0 * GB,
        scheme: Scheme::None,
        local: Some(Store { write: 10.0 * GB, read: 20.0 * GB }),
        global: Some(Store { write: 100.0 * GB, read: 100.0 * GB }),
        volume: Volume::WHOLE,
        is_behind: true,
        slowdown: 0.02,
        relaunch: 60.0,
        failures: of_parts(8),
        site: Site {
            shape: 0.7,
            domains: vec![Domain { name: "rack".into(), nodes: 8, rate: 1e-9, returns: 0.9 }],
            ..Site::default()
        },
    }
}

/// Returns all known machines.
pub fn all() -> Vec<Machine> {
    [laptop(), node_8gpu()].into_iter().chain(ics19::PRINTED.iter().map(ics19::Column::machine)).collect()
}

/// Returns the machine with that name.
pub fn named(name: &str) -> Option<Machine> {
    all().into_iter().find(|machine| machine.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::intervals::{Conduct, best};

    fn efficiency(name: &str) -> f64 {
        let levels: Vec<_> = named(name).expect("known").levels().into_iter().map(|(_, costs)| costs).collect();
        best(&levels, 0, Conduct::Chain).expect("a pattern").efficiency * 100.0
    }

    /// The costs are 8.0, 476 and 1943 s.
    #[test]
    fn costs_are_those_of_the_papers_tables() {
        let machine = named("ics19-3.6ef-16").expect("known");
        let seconds: Vec<f64> =
            machine.levels().iter().map(|(_, costs)| (costs.blocking * 10.0).round() / 10.0).collect();
        assert_eq!(seconds, [8.0, 475.7, 1942.8]);
    }

    /// As in figures 2 and 3, the efficiency falls with scale, and with density above 8.
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
