//! Which CPUs the job was given, and on which of them background threads run.
//!
//! A launcher often binds each process to some cores (Open MPI to a single one for two processes or fewer), and threads inherit that.
//! Background threads that share the application's cores get in its way, and in each other's: on a machine with 16 cores, preparing
//! host memory took 2.3 times as long on one core. Therefore, if a launcher has bound the processes of a node and has left CPUs that
//! none of them has, background threads run on those CPUs. If it has left none, the background threads of a process with a single
//! core may run wherever the launcher itself may, and those of other processes stay where the process runs. In the first two cases,
//! CPUs that are near the device that they serve are preferred. A process that no launcher started keeps its threads where its user
//! put it, and so does a job that shares its node with others and is not confined to its CPUs.
#![forbid(unsafe_code)]

use super::cpus::{Cpus, of_this_thread};
use super::threads;
use crate::base::threads::PREFIX;
use crate::base::units::parse_cpus;
use std::sync::OnceLock;

/// The maximum number of ancestors to look at. There may be wrappers between a launcher and the process.
const ANCESTORS_MAX: usize = 8;

/// The CPUs that the job was given on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// Their numbers.
    pub cpus: Cpus,
    /// True if they come from a launcher, in which case they are the same for all processes that it started here. Otherwise, they are
    /// the CPUs of this process, as its threads show them.
    pub is_jobs: bool,
}

/// The CPUs that the job was given on this node: those of the launcher that started its processes, or else those of all `threads` of this
/// process together, because whatever bound these threads did so within the CPUs that the process had.
pub fn given(threads: impl IntoIterator<Item = Cpus>) -> Given {
    remember_start();
    let own: Cpus = threads.into_iter().flatten().chain(of_this_thread()).collect();
    // A thread outside the launcher's CPUs shows that the process may use more than these, which the other ranks cannot know.
    match Launcher::of_this_process(&own) {
        Some(launcher) => Given { cpus: launcher.cpus, is_jobs: true },
        None => Given { cpus: own, is_jobs: false },
    }
}

/// The number of processes that the launcher of this process started on this node, as it told this process; `None` if it did not say.
pub fn processes_here() -> Option<usize> {
    processes(&|name| std::env::var(name).ok())
}

/// Looks at the most specific variable first, because `mpirun` in a batch job also has the variables of the job.
fn processes(variable: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let own = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"];
    own.into_iter().find_map(number).or_else(|| {
        let node = number("SLURM_NODEID")?;
        tasks_of_node(&variable("SLURM_STEP_TASKS_PER_NODE")?, node)
    })
}

/// The number for one node in a list such as `4(x2),3`.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        first += times;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

/// The CPUs that another process with these threads was given. If its environment is hidden, its launcher is not believed.
pub fn given_to(process: u32, threads: impl IntoIterator<Item = Cpus>) -> Cpus {
    let own: Cpus = threads.into_iter().flatten().collect();
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let variable = |name: &str| {
        let mut lines = environment.split(|byte| *byte == 0).filter_map(|line| std::str::from_utf8(line).ok());
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    Launcher::of(process, &own, &variable).map_or(own, |launcher| launcher.cpus)
}

/// The CPUs of the thread that asked first, before anything was restored.
fn remember_start() -> &'static Cpus {
    static START: OnceLock<Cpus> = OnceLock::new();
    START.get_or_init(of_this_thread)
}

/// The CPUs on which those background threads of this process may run that serve a PCI device. `device` is its address,
/// such as `0000:17:00.0`, or empty for no particular device. The CPUs of all threads of the application together
/// count, whichever thread asks.
///
/// # Blocking
/// If a launcher started this process: for a look at all threads of the processes that it started on this node.
pub fn for_background(device: &str) -> Cpus {
    let start = remember_start();
    let own = threads::cpus_of_application();
    let Some(launcher) = Launcher::of_this_process(&own).filter(|_| !own.is_empty()) else { return start.clone() };
    let read = |path: String| std::fs::read_to_string(path).ok();
    let list = |path: String| read(path).and_then(|text| parse_cpus(&text)).unwrap_or_default();
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

/// Chooses from a launcher's CPUs those for the background threads of a process with the CPUs `own`. These are CPUs that no
/// process was given. If there are none, they are all of the launcher's CPUs if `own` is within a single `core`, and `own`
/// otherwise. CPUs near the device are preferred.
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

/// The process that started the processes of the job on this node: `mpirun`, or a daemon of `mpirun` or of a batch system.
#[derive(Debug, PartialEq, Eq)]
struct Launcher {
    cpus: Cpus,
    pid: u32,
}

/// What is known about a process.
struct Ancestor {
    cpus: Cpus,
    parent: u32,
    /// Its environment says that it is a rank. The environment of a wrapper says so, too.
    is_rank: bool,
}

/// The variables in which launchers tell a process its rank, the most specific first, because `mpirun` in a batch job
/// also has those of the job.
const RANK_VARIABLES: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

impl Launcher {
    /// The launcher of this process, if the process was started as a rank, and if the CPUs that the launcher may use are
    /// the job's and nobody else's.
    fn of_this_process(own: &Cpus) -> Option<Launcher> {
        Launcher::of(std::process::id(), own, &|name| std::env::var(name).ok())
    }

    /// The launcher of a process with these CPUs and variables, under the same conditions.
    fn of(process: u32, own: &Cpus, variable: &dyn Fn(&str) -> Option<String>) -> Option<Launcher> {
        let name = RANK_VARIABLES.into_iter().find(|name| variable(name).is_some())?;
        let look = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let is_ours = |uids: &str| {
                let own = rustix::process::getuid().as_raw();
                uids.split_whitespace().next().and_then(|uid| uid.parse().ok()) == Some(own)
            };
            let is_rank = match std::fs::read(format!("/proc/{pid}/environ")) {
                Ok(environment) => {
                    let mut variables = environment.split(|byte| *byte == 0);
                    variables.any(|it| it.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')))
                }
                // A process of this user that hides its environment may be a wrapper as well as the launcher.
                Err(_) if field("Uid:").is_none_or(is_ours) => return None,
                // A process of another user is not a wrapper.
                Err(_) => false,
            };
            let cpus = parse_cpus(field("Cpus_allowed_list:")?)?;
            Some(Ancestor { cpus, parent: field("PPid:")?.parse().ok()?, is_rank })
        };
        let mut launcher = Launcher::find(look(process)?.parent, &look)?;
        // Where more CPUs could be plugged in, the list of a process also names CPUs that do not exist.
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|list| parse_cpus(&list));
        launcher.cut_to(online.as_ref());
        // A daemon may not be confined to the CPUs to which the batch system confines the job.
        launcher.cut_to(of_control_group(process).as_ref());
        let is_plausible = launcher.cpus.is_superset(own) && launcher.is_within_grant(variable);
        is_plausible.then_some(launcher)
    }

    /// Leaves the launcher only those of its CPUs that are in `set`, if there is a set.
    fn cut_to(&mut self, set: Option<&Cpus>) {
        if let Some(set) = set {
            self.cpus = &self.cpus & set;
        }
    }

    /// The first ancestor that is not a rank.
    fn find(mut pid: u32, look: &dyn Fn(u32) -> Option<Ancestor>) -> Option<Launcher> {
        for _ in 0..ANCESTORS_MAX {
            let found = if pid > 0 { look(pid)? } else { return None };
            if !found.is_rank {
                return Some(Launcher { cpus: found.cpus, pid });
            }
            pid = found.parent;
        }
        None
    }

    /// Without control groups, SLURM leaves its own processes the whole node. Their CPUs then say nothing about the job.
    fn is_within_grant(&self, variable: &dyn Fn(&str) -> Option<String>) -> bool {
        let granted = variable("SLURM_CPUS_ON_NODE").and_then(|count| count.parse::<usize>().ok());
        granted.is_none_or(|granted| self.cpus.len() <= granted)
    }

    /// The CPUs of its children's threads, except those of Bivouac's threads; all of the launcher's CPUs if these cannot be found out.
    fn busy(&self) -> Cpus {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap_or_default();
        let tasks = children.split_whitespace().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        let cpus = tasks.flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if field("Name:")?.starts_with(PREFIX) { None } else { parse_cpus(field("Cpus_allowed_list:")?) }
        });
        let busy: Cpus = cpus.flatten().collect();
        if busy.is_empty() { self.cpus.clone() } else { busy }
    }
}

/// The CPUs to which a process's control group (version 2) is limited; `None` if there is no such limit, or if it cannot be read.
fn of_control_group(process: u32) -> Option<Cpus> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let list =
        std::fs::read_to_string(format!("/sys/fs/cgroup{}/cpuset.cpus.effective", path.trim_end_matches('/'))).ok()?;
    parse_cpus(&list).filter(|cpus| !cpus.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::cpus::run_on;
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
    fn the_launcher_is_behind_wrappers_and_nothing_above_it_counts() {
        let look = |pid: u32| {
            let (list, parent, is_rank) = match pid {
                10 => ("2", 20, true),
                20 => ("2", 30, true),
                30 => ("0-3", 40, false),
                40 => ("0-7", 1, false),
                _ => return None,
            };
            Some(Ancestor { cpus: cpus(list), parent, is_rank })
        };
        let launcher = Some(Launcher { cpus: cpus("0-3"), pid: 30 });
        assert_eq!(Launcher::find(10, &look), launcher, "not the shell under taskset");
        assert_eq!(Launcher::find(30, &look), launcher);
        assert_eq!(Launcher::find(0, &look), None);
        assert_eq!(Launcher::find(99, &look), None);
    }

    #[test]
    fn launchers_tell_how_many_processes_they_started_on_the_node() {
        let with = |list: &'static [(&'static str, &'static str)]| {
            processes(&|name: &str| list.iter().find(|(other, _)| *other == name).map(|(_, text)| (*text).to_owned()))
        };
        assert_eq!(with(&[]), None);
        assert_eq!(
            with(&[("SLURM_STEP_TASKS_PER_NODE", "1"), ("SLURM_NODEID", "0"), ("MPI_LOCALNRANKS", "6")]),
            Some(6)
        );
        assert_eq!(with(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "many")]), None);
        for (node, tasks) in [("0", Some(4)), ("1", Some(4)), ("2", Some(3)), ("3", None), ("x", None)] {
            let variable = |name: &str| (if name == "SLURM_NODEID" { node } else { "4(x2),3" }).to_owned();
            let slurm = |name: &str| name.starts_with("SLURM").then(|| variable(name));
            assert_eq!(processes(&slurm), tasks, "node {node}");
        }
        assert_eq!([tasks_of_node("4(x", 0), tasks_of_node("", 0), tasks_of_node("(x3)", 0)], [None; 3]);
    }

    #[test]
    fn a_launcher_that_has_more_than_was_granted_is_not_believed() {
        let with = |names: &'static [(&'static str, &'static str)]| {
            move |name: &str| names.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned())
        };
        let launcher = |list: &str| Launcher { cpus: cpus(list), pid: 1 };
        assert!(launcher("0-15").is_within_grant(&with(&[])));
        let slurm = with(&[("SLURM_CPUS_ON_NODE", "4")]);
        assert!(!launcher("0-15").is_within_grant(&slurm), "the rest of the node is others'");
        assert!(launcher("0-3").is_within_grant(&slurm));
        let mut plugged = launcher("0-127");
        plugged.cut_to(Some(&cpus("0-3")));
        assert!(plugged.is_within_grant(&slurm), "CPUs that are not there count for nothing");
        plugged.cut_to(None);
        assert_eq!(plugged.cpus, cpus("0-3"));
    }

    #[test]
    fn what_this_process_may_use_was_given_to_it() {
        let own = of_this_thread();
        assert!(given([]).cpus.is_superset(&own));
        assert!(given([cpus("9999")]).cpus.contains(&9999), "a thread elsewhere");
        assert!(!for_background("").is_empty());
        assert_eq!(given_to(std::process::id(), [own.clone()]), given([]).cpus);
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
