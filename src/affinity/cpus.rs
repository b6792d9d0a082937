//! Which CPUs background threads run on.
//!
//! A launcher often binds each process to one core (Open MPI does so for two processes or fewer), and threads inherit that. Background
//! threads that share the application's only core stand in its way, and in each other's: on a machine with 16 cores
//! making host memory ready took 2.3 times as long. So where a launcher has bound the process to a single core they may run wherever
//! the launcher itself may, of that on the CPUs that are near the device they serve. A process that has more than one core, or that
//! no launcher started, keeps its threads where its user put it, and so does a job that shares its node with others and is not
//! confined to its CPUs.
#![forbid(unsafe_code)]

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// Ancestors that are looked at: wrappers between a launcher and the process.
const ANCESTORS_MAX: usize = 8;

/// CPU numbers of the operating system.
pub type Cpus = BTreeSet<usize>;

/// The CPUs of the calling thread; empty if the system does not say.
pub fn of_this_thread() -> Cpus {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => Cpus::new(),
    }
}

/// Lets the calling thread run on these CPUs, as far as its control group allows. Where that does not work it stays where it is.
pub fn run_on(cpus: &Cpus) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    if let Err(error) = sched_setaffinity(None, &set) {
        log::debug!("event=not-moved cpus={} error={error}", cpus.len());
    }
}

/// Where background threads of this process may run that serve a PCI device (such as `0000:17:00.0`; empty: none in particular).
pub fn for_background(device: &str) -> Cpus {
    let read = |path: String| std::fs::read_to_string(path).ok();
    let list = |path: String| read(path).and_then(|text| parse(&text)).unwrap_or_default();
    let own = of_this_thread();
    let core = own.first().map(|cpu| list(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")));
    let status = |pid: u32| read(format!("/proc/{pid}/status"));
    let launcher = launchers(&status);
    let near = match device {
        "" => Cpus::new(),
        id => list(format!("/sys/bus/pci/devices/{}/local_cpulist", id.to_lowercase())),
    };
    let is_free = may_widen(&own, &core.unwrap_or_default(), &launcher, &|name| std::env::var(name).ok());
    choose(&own, if is_free { &launcher } else { &own }, &near)
}

/// Did a launcher put the process on a single core, although the job has more of them?
fn may_widen(own: &Cpus, core: &Cpus, launcher: &Cpus, variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let is_launched = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"]
        .into_iter()
        .any(|name| variable(name).is_some());
    let is_one_core = own.len() == 1 || own.is_subset(core);
    // SLURM without control groups leaves its own processes the whole node.
    let granted = variable("SLURM_CPUS_ON_NODE").and_then(|count| count.parse::<usize>().ok());
    is_launched && is_one_core && granted.is_none_or(|granted| launcher.len() <= granted)
}

/// Of what the launcher had, what is near the device; without either, what the process has.
fn choose(own: &Cpus, launchers: &Cpus, near: &Cpus) -> Cpus {
    let wide = if launchers.is_superset(own) { launchers } else { own };
    match wide & near {
        both if both.is_empty() => wide.clone(),
        both => both,
    }
}

/// The CPUs of the first ancestor that has others than this process: its launcher, behind wrappers that were bound with it.
fn launchers(status: &dyn Fn(u32) -> Option<String>) -> Cpus {
    let look = |pid: u32| {
        let text = status(pid)?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some((parse(field("Cpus_allowed_list:")?)?, field("PPid:")?.parse::<u32>().ok()?))
    };
    let Some((own, mut pid)) = look(std::process::id()) else { return Cpus::new() };
    for _ in 0..ANCESTORS_MAX {
        match (pid > 1).then(|| look(pid)).flatten() {
            Some((cpus, _)) if cpus != own => return cpus,
            Some((_, parent)) => pid = parent,
            None => break,
        }
    }
    own
}

/// A list such as `0-3,8,10-11`.
pub(super) fn parse(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> Cpus {
        parse(text).expect("a list")
    }

    #[test]
    fn lists_of_cpus_are_read_and_garbage_is_not() {
        assert_eq!(cpus("0-2,5,7-7\n"), Cpus::from([0, 1, 2, 5, 7]));
        assert_eq!(cpus("\n"), Cpus::new());
        for bad in ["x", "1-", "-1", "1-x", "0-99999999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn threads_go_near_the_device_within_what_the_launcher_had() {
        let (own, all, near) = (cpus("3"), cpus("0-15"), cpus("8-23"));
        assert_eq!(choose(&own, &all, &near), cpus("8-15"));
        assert_eq!(choose(&own, &all, &Cpus::new()), all);
        assert_eq!(choose(&own, &all, &cpus("40-47")), all, "a device of another part of the machine");
        assert_eq!(choose(&own, &cpus("4-7"), &Cpus::new()), own, "never away from what the process may use");
        assert_eq!(choose(&own, &Cpus::new(), &Cpus::new()), own);
    }

    #[test]
    fn only_a_launcher_that_bound_to_one_core_is_overruled() {
        let (core, all) = (cpus("3,11"), cpus("0-15"));
        let with = |names: &'static [(&'static str, &'static str)]| {
            move |name: &str| names.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned())
        };
        let mpi = with(&[("OMPI_COMM_WORLD_RANK", "0")]);
        assert!(may_widen(&cpus("3"), &core, &all, &mpi) && may_widen(&cpus("3,11"), &core, &all, &mpi));
        assert!(!may_widen(&cpus("0-3"), &core, &all, &mpi), "the user gave it four");
        assert!(!may_widen(&cpus("3"), &core, &all, &with(&[])), "taskset");
        let slurm = with(&[("SLURM_PROCID", "0"), ("SLURM_CPUS_ON_NODE", "4")]);
        assert!(!may_widen(&cpus("3"), &core, &all, &slurm), "the rest of the node is others'");
        assert!(may_widen(&cpus("3"), &core, &cpus("0-3"), &slurm));
    }

    #[test]
    fn the_launcher_is_behind_wrappers_that_are_bound_alike() {
        let me = std::process::id();
        let status = |pid: u32| {
            let (list, parent) = match pid {
                pid if pid == me => ("2", 900_001),
                900_001 => ("2", 900_002),
                900_002 => ("0-7", 1),
                _ => return None,
            };
            Some(format!("Name:\tx\nPPid:\t{parent}\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\n"))
        };
        assert_eq!(launchers(&status), cpus("0-7"));
        let alone = |pid: u32| if pid == me { status(pid) } else { None };
        assert_eq!(launchers(&alone), cpus("2"));
        assert_eq!(launchers(&|_| None), Cpus::new());
    }

    #[test]
    fn a_thread_bound_to_one_cpu_is_let_out_again() {
        let before = of_this_thread();
        let thread = std::thread::spawn(move || {
            let one = Cpus::from([*before.first().expect("a CPU")]);
            run_on(&one);
            let bound = of_this_thread();
            run_on(&before);
            (bound == one, of_this_thread() == before)
        });
        assert_eq!(thread.join().expect("no panic"), (true, true));
    }
}
