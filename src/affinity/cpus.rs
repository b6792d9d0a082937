//! Which CPUs the job was given, and which of them background threads run on.
//!
//! A launcher often binds each process to some cores (Open MPI to a single one for two processes or fewer), and threads inherit that.
//! Background threads that share the application's cores stand in its way, and in each other's: on a machine with 16 cores
//! making host memory ready took 2.3 times as long on one core. So where a launcher has bound the processes of a node and cores are
//! left that none of them has, they run there, and of a process with a single core they may run wherever the launcher itself
//! may, of all that on the CPUs that are near the device they serve. What no launcher started keeps its threads where its user put
//! it, and so does a job that shares its node with others and is not confined to its CPUs.
#![forbid(unsafe_code)]

use crate::base::units::parse_cpus;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// Ancestors that are looked at: wrappers between a launcher and the process.
const ANCESTORS_MAX: usize = 8;

/// What the names of Bivouac's threads begin with.
pub(crate) const OWN_THREADS: &str = "bvk-";

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

/// The CPUs that the job was given on this node: those of the launcher that bound its processes, or else those of all threads of this
/// process together, since whatever bound them did so inside of what the process had.
pub fn given(threads: impl IntoIterator<Item = Cpus>) -> Cpus {
    let own: Cpus = threads.into_iter().flatten().chain(of_this_thread()).collect();
    with_launcher(own, std::process::id(), &|name| std::env::var(name).ok())
}

/// The same for another process with these threads. Where its environment is hidden its launcher is not believed.
pub fn given_to(process: u32, threads: impl IntoIterator<Item = Cpus>) -> Cpus {
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let variable = |name: &str| {
        let mut lines = environment.split(|byte| *byte == 0).filter_map(|line| std::str::from_utf8(line).ok());
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    with_launcher(threads.into_iter().flatten().collect(), process, &variable)
}

fn with_launcher(own: Cpus, process: u32, variable: &dyn Fn(&str) -> Option<String>) -> Cpus {
    match Launcher::find(process, &status_of) {
        Some(launcher) if launcher.is_trusted(variable) => &launcher.cpus | &own,
        _ => own,
    }
}

/// Where background threads of this process may run that serve a PCI device (such as `0000:17:00.0`; empty: none in particular).
pub fn for_background(device: &str) -> Cpus {
    let read = |path: String| std::fs::read_to_string(path).ok();
    let list = |path: String| read(path).and_then(|text| parse_cpus(&text)).unwrap_or_default();
    let own = of_this_thread();
    let launcher = Launcher::find(std::process::id(), &status_of);
    let Some(launcher) = launcher.filter(|it| it.is_trusted(&|name| std::env::var(name).ok())) else {
        return own;
    };
    let core = own.first().map(|cpu| list(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")));
    let near = match device {
        "" => own
            .first()
            .and_then(|cpu| node_of(*cpu))
            .map_or_else(Cpus::new, |node| list(format!("/sys/devices/system/node/node{node}/cpulist"))),
        id => list(format!("/sys/bus/pci/devices/{}/local_cpulist", id.to_lowercase())),
    };
    choose(&own, &core.unwrap_or_default(), &launcher.cpus, &launcher.busy(), &near)
}

/// The NUMA node of a CPU.
fn node_of(cpu: usize) -> Option<usize> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// Of a launcher's CPUs, where background threads of a process with the CPUs `own` go: to what no process was given, and if there
/// is no such, out of a single `core`; near the device where that is possible.
fn choose(own: &Cpus, core: &Cpus, launchers: &Cpus, busy: &Cpus, near: &Cpus) -> Cpus {
    if own.is_empty() || !launchers.is_superset(own) {
        return own.clone();
    }
    let free = launchers - busy;
    let is_one_core = own.len() == 1 || own.is_subset(core);
    let wide = match (free.is_empty(), is_one_core) {
        (false, _) => free,
        (true, true) => launchers.clone(),
        (true, false) => return own.clone(),
    };
    match &wide & near {
        both if both.is_empty() => wide,
        both => both,
    }
}

/// The process that started another one, behind wrappers that were bound with it.
struct Launcher {
    cpus: Cpus,
    /// The process whose children are the processes that it started, as far as that is known.
    pid: u32,
}

impl Launcher {
    /// The first ancestor that has more CPUs than the process; its parent, if none has.
    fn find(process: u32, status: &dyn Fn(u32) -> Option<String>) -> Option<Launcher> {
        let look = |pid: u32| {
            let text = status(pid)?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            Some((parse_cpus(field("Cpus_allowed_list:")?)?, field("PPid:")?.parse::<u32>().ok()?))
        };
        let (own, parent) = look(process)?;
        let mut pid = parent;
        for _ in 0..ANCESTORS_MAX {
            match (pid > 1).then(|| look(pid)).flatten() {
                Some((cpus, _)) if cpus != own && cpus.is_superset(&own) => return Some(Launcher { cpus, pid }),
                Some((_, next)) => pid = next,
                None => break,
            }
        }
        Some(Launcher { cpus: own, pid: parent })
    }

    /// Is this the launcher of a parallel job, and are its CPUs the job's and no other's?
    fn is_trusted(&self, variable: &dyn Fn(&str) -> Option<String>) -> bool {
        let is_launched = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"]
            .into_iter()
            .any(|name| variable(name).is_some());
        // SLURM without control groups leaves its own processes the whole node.
        let granted = variable("SLURM_CPUS_ON_NODE").and_then(|count| count.parse::<usize>().ok());
        is_launched && granted.is_none_or(|granted| self.cpus.len() <= granted)
    }

    /// The CPUs that the threads of its children have, other than Bivouac's; all of them where that is not to be known.
    fn busy(&self) -> Cpus {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap_or_default();
        let tasks = children.split_whitespace().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        let cpus = tasks.flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if field("Name:")?.starts_with(OWN_THREADS) { None } else { parse_cpus(field("Cpus_allowed_list:")?) }
        });
        let busy: Cpus = cpus.flatten().collect();
        if busy.is_empty() { self.cpus.clone() } else { busy }
    }
}

fn status_of(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> Cpus {
        parse_cpus(text).expect("a list")
    }

    #[test]
    fn threads_go_to_free_cpus_near_the_device_within_what_the_launcher_had() {
        let (own, core, all, near) = (cpus("3"), cpus("3,11"), cpus("0-15"), cpus("8-23"));
        let go = |own: &Cpus, all: &Cpus, busy: &str, near: &Cpus| choose(own, &core, all, &cpus(busy), near);
        assert_eq!(go(&own, &all, "0-15", &near), cpus("8-15"), "nothing is free, and one core is too little");
        assert_eq!(go(&own, &all, "0-15", &Cpus::new()), all);
        assert_eq!(go(&own, &all, "0-15", &cpus("40-47")), all, "a device of another part of the machine");
        assert_eq!(go(&own, &all, "0-3", &near), cpus("8-15"));
        assert_eq!(go(&own, &all, "0-3,8-15", &near), cpus("4-7"), "free comes before near");
        assert_eq!(go(&cpus("0-3"), &all, "0-7", &Cpus::new()), cpus("8-15"), "off the application's cores");
        assert_eq!(go(&cpus("0-3"), &all, "0-15", &near), cpus("0-3"), "nothing is free, and four are enough");
        assert_eq!(go(&all, &all, "0-15", &near), all, "not bound at all");
        assert_eq!(go(&own, &cpus("4-7"), "4-7", &Cpus::new()), own, "never away from what the process may use");
        assert_eq!(go(&own, &Cpus::new(), "", &Cpus::new()), own);
    }

    #[test]
    fn only_the_launcher_of_a_parallel_job_is_believed() {
        let with = |names: &'static [(&'static str, &'static str)]| {
            move |name: &str| names.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned())
        };
        let launcher = |list: &str| Launcher { cpus: cpus(list), pid: 1 };
        assert!(launcher("0-15").is_trusted(&with(&[("OMPI_COMM_WORLD_RANK", "0")])));
        assert!(!launcher("0-15").is_trusted(&with(&[])), "taskset");
        let slurm = with(&[("SLURM_PROCID", "0"), ("SLURM_CPUS_ON_NODE", "4")]);
        assert!(!launcher("0-15").is_trusted(&slurm), "the rest of the node is others'");
        assert!(launcher("0-3").is_trusted(&slurm));
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
        let found = Launcher::find(me, &status).expect("an ancestor");
        assert_eq!((found.cpus, found.pid), (cpus("0-7"), 900_002));
        let alone = |pid: u32| if pid == me { status(pid) } else { None };
        assert_eq!(Launcher::find(me, &alone).expect("itself").cpus, cpus("2"));
        assert!(Launcher::find(me, &|_| None).is_none());
    }

    #[test]
    fn what_this_process_may_use_was_given_to_it() {
        let own = of_this_thread();
        assert!(given([]).is_superset(&own));
        assert!(given([cpus("9999")]).contains(&9999), "a thread elsewhere");
        assert_eq!(given_to(std::process::id(), [own.clone()]), given([]));
        assert_eq!(given_to(u32::MAX, [cpus("3")]), cpus("3"));
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
