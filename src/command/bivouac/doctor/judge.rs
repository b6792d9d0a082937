//! Turns facts into findings. Pure.
#![forbid(unsafe_code)]

use super::facts::{Allocation, Directory, Facts, Launcher, Ranks, Trial};
use crate::batch::System;
use crate::output::bytes;
use bivouac_core::base::units::{GIB, MIB};
use bivouac_core::config::{Budget, Direct, Progress};
use bivouac_core::redundancy::placement::place;
use bivouac_core::segment::budget_bytes;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// A smaller segment is hardly useful as a tier, because it is meant to hold two shards of every rank.
const BUDGET_SMALL: u64 = 256 * MIB;
/// A directory with less free space is nearly full.
const FREE_SMALL: u64 = GIB;
/// For each rank, a session keeps a few files open; for each peer, MPI keeps some open, too.
const FILES_SMALL: u64 = 1024;
/// A clock that has been set does not show a time before 2024-01-01.
const CLOCK_FIRST: Duration = Duration::from_secs(1_704_067_200);
/// The first kernel that has `MADV_COLLAPSE`.
const KERNEL_COLLAPSE: (u32, u32) = (6, 1);
/// The first kernel that has `MADV_POPULATE_WRITE`.
const KERNEL_POPULATE: (u32, u32) = (5, 14);

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// It works, but not as well as it could.
    Warning,
    /// Something that the settings ask for cannot work.
    Problem,
}

impl Verdict {
    /// The word in the output.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        }
    }
}

/// The outcome of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to change.
    pub advice: Option<String>,
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Ok, found: found.into(), advice: None }
}

fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
}

fn problem(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Problem, found: found.into(), advice: Some(advice.into()) }
}

/// All findings, in a fixed order.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![configuration(facts)];
    findings.push(launcher(facts));
    findings.extend(facts.ranks.as_ref().map(|ranks| self::ranks(facts, ranks)).into_iter().flatten());
    findings.extend(memory(facts));
    findings.extend(local(facts));
    findings.extend(global(facts));
    findings.extend(objects(facts));
    findings.extend(redundancy(facts));
    findings.extend(limits(facts));
    findings.extend(slurm(facts));
    findings.extend(end_of_allocation(facts));
    findings.extend(libraries(facts));
    findings.push(live_memory(facts));
    findings.push(clock(facts));
    findings
}

fn configuration(facts: &Facts) -> Finding {
    match &facts.configuration {
        Ok(source) => ok("configuration", source),
        Err(why) => problem(
            "configuration",
            why,
            "correct it: programs refuse to start with it. The rest of this report assumes the defaults",
        ),
    }
}

// ------------------------------------------------------------------------------------------- MPI

/// Which MPI a launcher belongs to, by what it says about its version.
fn family(launcher: &Launcher) -> Option<&'static str> {
    let text = launcher.version.as_ref()?.to_lowercase();
    let known = [
        ("open mpi", "Open MPI"),
        ("openrte", "Open MPI"),
        ("prrte", "Open MPI"),
        ("intel(r) mpi", "Intel MPI"),
        ("hydra", "MPICH"),
        ("mpich", "MPICH"),
        ("slurm", "SLURM"),
    ];
    known.into_iter().find(|(word, _)| text.contains(word)).map(|(_, name)| name)
}

fn launcher(facts: &Facts) -> Finding {
    let Some(first) = facts.launchers.first() else {
        return problem(
            "MPI",
            "no mpirun, mpiexec or srun in PATH",
            "load the module of the MPI that your program is built with, or install openmpi-bin",
        );
    };
    let version = first.version.as_deref().and_then(|text| text.lines().next()).unwrap_or("unknown version");
    let others: Vec<&str> = facts.launchers.iter().skip(1).map(|launcher| launcher.name).collect();
    let others = if others.is_empty() { String::new() } else { format!("; also {}", others.join(", ")) };
    let found = format!("{} ({version}){others}", first.path.display());
    match family(first) {
        Some("Open MPI") if facts.is_root && !facts.root_may_launch => warning(
            "MPI",
            format!("{found}, but Open MPI refuses to run as root"),
            "become an ordinary user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (containers)",
        ),
        Some("Intel MPI") => warning(
            "MPI",
            found,
            "Bivouac is tested with Open MPI and MPICH; Intel MPI has MPICH's binary interface and may work",
        ),
        Some(_) => ok("MPI", found),
        None => warning(
            "MPI",
            found,
            "its kind is not known. Bivouac is tested with Open MPI 4 and 5 and MPICH 4; rebuild your program when you switch from one to \
             the other",
        ),
    }
}

fn ranks(facts: &Facts, ranks: &Result<Ranks, String>) -> Vec<Finding> {
    let ranks = match ranks {
        Ok(ranks) => ranks,
        Err(why) => {
            return vec![problem(
                "ranks",
                why,
                "start it under the launcher of the MPI that bivouac is built with: mpirun -np 2 bivouac doctor --mpi",
            )];
        }
    };
    let library = ranks.library.lines().next().unwrap_or_default();
    let mut findings = Vec::new();
    let least = ranks.per_node.iter().min().copied().unwrap_or_default();
    let most = ranks.per_node.iter().max().copied().unwrap_or_default();
    let spread = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let found = format!("{} ranks on {} nodes, {spread} on each ({library})", ranks.size, ranks.per_node.len());
    findings.push(match ranks.size {
        1 => warning(
            "ranks",
            found,
            "one rank alone shows little. Use a launcher: mpirun -np 2 bivouac doctor --mpi; if that also says \
                                      1, the launcher and the library belong to different MPIs",
        ),
        _ => ok("ranks", found),
    });
    findings.push(ok("thread level", ranks.thread_level.as_str()));
    if facts.config.node.progress != Progress::Stepped {
        findings.push(match &ranks.cut_off {
            None => ok("sockets", "ranks can reach each other without MPI"),
            Some(why) => warning(
                "sockets",
                format!("ranks cannot reach each other without MPI: {why}"),
                format!(
                    "programs that do not ask for MPI_THREAD_MULTIPLE commit levels only while they are inside a call to Bivouac: {}",
                    bivouac_core::comm::sockets::INSTEAD
                ),
            ),
        });
    }
    if facts.config.job.global_enabled {
        findings.push(match &ranks.blind {
            Err(why) => {
                problem("shared directory", why, "make the global directory (global.directory) writable for all ranks")
            }
            Ok(blind) if !blind.is_empty() => problem(
                "shared directory",
                format!(
                    "ranks {} do not see what rank 0 writes in {}",
                    crate::output::ranks(blind.iter().copied()),
                    facts.global.path.display()
                ),
                "set global.directory to an absolute path on a file system that all nodes share",
            ),
            Ok(_) => ok("shared directory", format!("all ranks see {}", facts.global.path.display())),
        });
    }
    findings
}

// ------------------------------------------------------------------------------------------- tiers

fn memory(facts: &Facts) -> Vec<Finding> {
    let (check, config) = ("memory tier", &facts.config);
    if !config.job.memory_enabled {
        return vec![ok(check, "switched off (memory.enabled)")];
    }
    let directory = config.node.memory_directory.display();
    let available = match &facts.memory.available {
        Ok(available) => available,
        Err(why) => {
            return vec![problem(
                check,
                why,
                "set memory.directory to a tmpfs that exists and is writable, normally /dev/shm",
            )];
        }
    };
    let budget = budget_bytes(config.node.memory_budget, available);
    let limit = match available.cgroup {
        Some(left) if left <= available.tmpfs && left <= available.mem_available => ", limited by the control group",
        _ if available.tmpfs <= available.mem_available => ", limited by the file system",
        _ => "",
    };
    let found = format!(
        "{directory} of {}: a session gets {} for all ranks of a node; {} are available{limit}",
        bytes(facts.memory.total),
        bytes(budget),
        bytes(available.least)
    );
    let share = match config.node.memory_budget {
        Budget::Bytes(_) => "lower memory.budget, or free memory",
        Budget::Percent(_) => "raise memory.budget, or free memory",
    };
    let tier = if !facts.memory.is_memory {
        warning(
            check,
            format!("{found}, but it is not in memory"),
            "set memory.directory to a tmpfs: until then, captures are as slow as that disk and wear it out",
        )
    } else if budget == 0 || available.least == 0 {
        problem(
            check,
            found,
            format!(
                "there is no room for a segment: {share}; in a container, raise its shared memory (docker run --shm-size)"
            ),
        )
    } else if budget < BUDGET_SMALL || budget > available.least {
        warning(
            check,
            found,
            format!(
                "the tier needs room for two shards of every rank of the node; with less, it is only a buffer: {share}; in a container, \
                 raise its shared memory (docker run --shm-size)"
            ),
        )
    } else {
        ok(check, found)
    };
    vec![tier, huge_pages(facts), segments(facts)]
}

fn huge_pages(facts: &Facts) -> Finding {
    let huge = facts.memory.huge.as_deref().unwrap_or("unknown");
    let found = format!("shmem_enabled is {huge}");
    match facts.kernel {
        Some(kernel) if kernel < KERNEL_POPULATE => warning(
            "huge pages",
            format!("{found}, kernel {}.{}", kernel.0, kernel.1),
            "this kernel is older than 5.14: memory is populated page by page. Populate early (take a large first checkpoint), or use a \
             newer kernel",
        ),
        Some(kernel) if kernel < KERNEL_COLLAPSE && !matches!(huge, "always" | "advise" | "within_size" | "force") => {
            warning(
                "huge pages",
                format!("{found}, kernel {}.{}", kernel.0, kernel.1),
                "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled; populating and copying then take about half \
                 the time",
            )
        }
        _ => ok("huge pages", found),
    }
}

fn segments(facts: &Facts) -> Finding {
    let (dead, dead_bytes) = facts.memory.dead;
    match dead {
        0 => ok("segments", format!("none of dead runs, {} of living ones", facts.memory.alive)),
        _ => warning(
            "segments",
            format!("{dead} of dead runs take {}", bytes(dead_bytes)),
            "a restart of the job uses and removes them. If there will be none: bivouac drain, then bivouac clean --all-dead",
        ),
    }
}

fn space(trial: &Trial) -> String {
    format!("{}, {} of {} free", trial.kind, bytes(trial.free), bytes(trial.total))
}

/// Checks what the local and the global directory have in common: Can files be written to the directory, and around the page cache if the
/// settings ask for that? Is there room?
fn writable(check: &'static str, key: &str, directory: &Directory, direct: Direct) -> Result<String, Finding> {
    let path = directory.path.display();
    let trial = directory.trial.as_ref().map_err(|why| {
        problem(check, format!("{path}: {why}"), format!("set {key} to a directory that this user may write to"))
    })?;
    let there = if directory.exists { "" } else { " (not there yet; a session makes it)" };
    let found = format!("{path}{there}: {}", space(trial));
    if direct == Direct::On && trial.direct == Some(false) {
        let section = key.split('.').next().unwrap_or_default();
        return Err(problem(check, format!("{found}, no direct I/O"), format!("set {section}.direct to \"auto\"")));
    }
    if trial.free < FREE_SMALL {
        return Err(warning(
            check,
            found,
            format!("free some space, or set {key} to another file system: on a full one, checkpoints are lost"),
        ));
    }
    let direct = match trial.direct {
        Some(true) => ", direct I/O",
        Some(false) => ", through the page cache",
        None => "",
    };
    Ok(found + direct)
}

fn local(facts: &Facts) -> Vec<Finding> {
    let (check, config) = ("local tier", &facts.config);
    if !config.job.local_enabled {
        return vec![ok(check, "switched off (local.enabled)")];
    }
    let found = match writable(check, "local.directory", &facts.local, config.node.local_direct) {
        Ok(found) => found,
        Err(finding) => return vec![finding],
    };
    let Ok(trial) = &facts.local.trial else { return Vec::new() };
    let mut findings = vec![if trial.is_memory && !config.node.local_allow_tmpfs {
        problem(
            check,
            found,
            "a reboot empties it, so sessions continue without this tier: set local.directory to a disk of the node, or local.allow_tmpfs \
             to true",
        )
    } else if trial.is_shared == Some(true) {
        warning(
            check,
            found,
            "this is not node-local storage: set local.directory to a disk of the node, or local.enabled to false",
        )
    } else {
        ok(check, found)
    }];
    findings.extend(facts.orphans.iter().map(|orphan| {
        let (path, held) = (orphan.path.display(), bytes(orphan.bytes));
        warning(
            "local copies",
            format!("{path}: {held} from the store {}, which cannot be found", orphan.global),
            "no run restores or removes them. If that store is gone, not just unmounted: bivouac clean --all-dead --even-newest",
        )
    }));
    findings
}

fn objects(facts: &Facts) -> Option<Finding> {
    let (check, url) = ("object tier", facts.config.job.object_url.as_deref()?);
    Some(match facts.objects.as_ref()? {
        Err(why) => problem(
            check,
            why,
            "set object.url and object.endpoint, and give every rank the environment variables with the credentials",
        ),
        Ok(objects) => {
            let store = if objects.has_store { "a store" } else { "no store yet" };
            let found = format!("{url} can be read and written, and holds {store}");
            match objects.can_fence {
                true => ok(check, found),
                false => warning(
                    check,
                    format!("{found}, but it does not refuse a second object with the same name"),
                    "it cannot keep two simultaneous runs apart: make sure that only one is started",
                ),
            }
        }
    })
}

fn global(facts: &Facts) -> Vec<Finding> {
    let (check, config) = ("global tier", &facts.config);
    if !config.job.global_enabled {
        return vec![ok(check, "switched off (global.enabled)")];
    }
    let mut findings = Vec::new();
    findings.push(match writable(check, "global.directory", &facts.global, config.node.global_direct) {
        Err(finding) => finding,
        Ok(found) => {
            let trial = facts.global.trial.as_ref().ok();
            let nodes = facts.slurm.as_ref().and_then(|slurm| slurm.nodes).unwrap_or(1);
            let is_shared = trial.and_then(|trial| trial.is_shared);
            let devices = [&facts.local, &facts.global].map(|directory| directory.trial.as_ref().ok().map(|trial| trial.device));
            if trial.is_some_and(|trial| trial.is_memory) {
                warning(check, found, "it is in the memory of this node: set global.directory to a file system that outlives it")
            } else if is_shared == Some(false) && nodes > 1 {
                problem(check, found, format!("the job has {nodes} nodes and this looks like a disk of one: set global.directory to a file system that all nodes share"))
            } else if config.job.local_enabled && devices[0].is_some() && devices[0] == devices[1] {
                warning(check, found, "the local tier is on the same file system and adds nothing: set local.directory to a disk of the node, or local.enabled to false")
            } else {
                ok(check, found)
            }
        }
    });
    match &facts.store {
        None => {}
        Some(Err(why)) => findings.push(problem(
            "store",
            why,
            "check the owner and the mode of the global directory; checkpoints belong to the user who ran the job",
        )),
        Some(Ok(store)) => {
            let (folders, open) = store.folders;
            let found = format!("{folders} checkpoints, {open} of them without a manifest, {} temp files", store.temps);
            findings.push(if let Some(living) = store.living.first() {
                warning("store", format!("{living} ({found})"), "another run of the same job and group is refused meanwhile: give it \
                    another job.name, or set job.take_over to fence off the living one")
            } else if store.temps > 0 {
                warning("store", found, "temp files of runs that died: bivouac clean --all-dead DIR, or the next run's retention, removes them")
            } else {
                ok("store", found)
            });
        }
    }
    findings
}

// ------------------------------------------------------------------------------------------- the rest of the machine

fn limits(facts: &Facts) -> Vec<Finding> {
    let text = |limit: Option<u64>| limit.map_or("unlimited".into(), |limit| limit.to_string());
    let size = |limit: Option<u64>| limit.map_or("unlimited".into(), bytes);
    let limits = facts.limits;
    let found = format!(
        "open files {}, locked memory {}, core files {}",
        text(limits.files),
        size(limits.locked),
        size(limits.core)
    );
    vec![match limits.files {
        Some(files) if files < FILES_SMALL => warning(
            "limits",
            found,
            format!("raise the limit on open files: ulimit -n {FILES_SMALL} in the job script"),
        ),
        _ => ok("limits", found),
    }]
}

fn slurm(facts: &Facts) -> Vec<Finding> {
    let left = facts.allocation.and_then(|allocation| allocation.left).map(|left| format!("{} left", span(left)));
    let Some(slurm) = &facts.slurm else {
        return vec![match facts.allocation {
            Some(Allocation { system, .. }) => {
                ok("batch system", format!("{}, {}", system.name(), left.unwrap_or("no end is known".into())))
            }
            None => ok("batch system", "not in a job of SLURM, LSF, PBS or Flux"),
        }];
    };
    let mut parts = vec![format!("SLURM, job {}", slurm.job)];
    parts.extend(slurm.nodes.map(|nodes| format!("{nodes} nodes")));
    parts.extend(slurm.tasks_per_node.as_ref().map(|tasks| format!("{tasks} tasks per node")));
    parts.extend(left);
    parts.extend(
        slurm.requeue.map(|requeue| if requeue { "may be requeued".into() } else { "is not requeued".to_owned() }),
    );
    let found = parts.join(", ");
    let mut findings = vec![match slurm.missing.as_slice() {
        [] => ok("batch system", found),
        missing => warning(
            "batch system",
            format!("{found}; {} not in PATH", missing.join(" and ")),
            "add SLURM's commands to PATH: without them, nodes cannot be probed and jobs cannot be requeued",
        ),
    }];
    if let Some(task) = &slurm.array_task {
        findings.push(match &facts.config.job.name {
            Some(name) if name.contains(task.as_str()) => ok("job array", format!("task {task}, job name {name:?}")),
            name => warning(
                "job array",
                format!("task {task}, job name {}", name.as_deref().unwrap_or("unset")),
                "all tasks of an array look like one job, and only one of them may run: export BIVOUAC_JOB_NAME=name-$SLURM_ARRAY_TASK_ID",
            ),
        });
    }
    findings
}

/// Can the configured schemes keep their promise on the known nodes?
fn redundancy(facts: &Facts) -> Vec<Finding> {
    let (check, schemes) = ("redundancy", facts.config.job.redundancy.schemes());
    if schemes.is_empty() {
        return vec![ok(
            check,
            "none (redundancy.scheme): what a lost node had is lost too, unless it is on the global tier",
        )];
    }
    let per_node: Option<Vec<u32>> = match (&facts.ranks, &facts.slurm) {
        (Some(Ok(ranks)), _) => Some(ranks.per_node.clone()),
        (_, Some(slurm)) => slurm.nodes.map(|nodes| vec![slurm.least_tasks(); nodes as usize]),
        (_, None) => None,
    };
    let node_of_each = |per_node: &Vec<u32>| -> Vec<u32> {
        (0..).zip(per_node).flat_map(|(node, count)| std::iter::repeat_n(node, *count as usize)).collect()
    };
    let nodes = per_node.as_ref().map(node_of_each);
    let judged = schemes.into_iter().map(|scheme| {
        let Some(nodes) = &nodes else {
            let found = format!("{scheme}; the number of nodes is not known here (in a job: mpirun bivouac doctor --mpi)");
            return ok(check, found);
        };
        let count = nodes.iter().collect::<BTreeSet<_>>().len();
        let placement = place(nodes, &[], scheme);
        let survives = placement.tolerates_nodes;
        let found = format!("{scheme} on {count} nodes survives the loss of {survives} at once");
        if survives >= scheme.parity() {
            return ok(check, found);
        }
        let found = format!("{found}: {}", placement.lost.join("; "));
        let advice = format!(
            "start on {} nodes or more, with the same number of ranks on each, or choose a scheme with fewer members or less parity",
            scheme.members()
        );
        match survives {
            0 => problem(check, found, format!("no checkpoint reaches the level node-loss: {advice}")),
            _ => warning(check, found, advice),
        }
    });
    judged.collect()
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..300 => format!("{seconds} s"),
        300..10_800 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Will a program learn in time that its allocation ends?
fn end_of_allocation(facts: &Facts) -> Vec<Finding> {
    let check = "end of allocation";
    let exit = &facts.config.job.exit;
    let now = facts.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let configured = exit.end_time.map(|end| Duration::from_secs(end).saturating_sub(now));
    let known = facts.allocation.and_then(|allocation| allocation.left);
    let (variable, more, signal) = match facts.allocation.map(|allocation| allocation.system) {
        Some(System::Flux) => (
            "BIVOUAC_EXIT_END_TIME=$(($(date +%s) + $(flux job timeleft)))",
            "--time-limit",
            "flux batch --signal=USR1@300",
        ),
        Some(System::Lsf) => {
            ("BIVOUAC_EXIT_END_TIME, or use bivouac run, which asks LSF", "bsub -W", "bsub -wa USR1 -wt 5")
        }
        Some(System::Pbs) => (
            "BIVOUAC_EXIT_END_TIME, or use bivouac run, which asks PBS",
            "qsub -l walltime",
            "a signal from the script",
        ),
        _ => (
            "BIVOUAC_EXIT_END_TIME=${SLURM_JOB_END_TIME:-unset}, or use bivouac run, which asks SLURM",
            "sbatch --time",
            "sbatch --signal=B:USR1@300",
        ),
    };
    match (configured, known) {
        (Some(left), _) if left <= exit.reserve => vec![problem(
            check,
            format!("exit.end_time is in {}, exit.reserve is {}", span(left), span(exit.reserve)),
            format!(
                "should_exit() says yes at once: set exit.end_time to the end of this allocation (export {variable}), or lower exit.reserve"
            ),
        )],
        (Some(left), Some(known)) if left > known + Duration::from_secs(60) => vec![warning(
            check,
            format!("exit.end_time is in {}, but the allocation ends in {}", span(left), span(known)),
            format!("export {variable}"),
        )],
        (Some(left), _) => vec![ok(
            check,
            format!("in {}, of which {} are kept for the last checkpoint", span(left), span(exit.reserve)),
        )],
        (None, Some(known)) if known <= exit.reserve => vec![problem(
            check,
            format!("the allocation ends in {}, exit.reserve is {}", span(known), span(exit.reserve)),
            format!("there is no time for a run and its last checkpoint: ask for more ({more}), or lower exit.reserve"),
        )],
        (None, Some(known)) if exit.signal.is_none() && exit.stop_file.is_none() => vec![warning(
            check,
            format!("in {}, but nothing tells the program", span(known)),
            format!(
                "export {variable}, or set exit.signal = \"USR1\" and use {signal}, so that should_exit() says yes in time"
            ),
        )],
        (None, Some(known)) => vec![ok(check, format!("in {}; the program is told by signal or file", span(known)))],
        (None, None) => Vec::new(),
    }
}

fn libraries(facts: &Facts) -> Vec<Finding> {
    let has = |name: &str| facts.libraries.iter().any(|library| library.name == name && library.path.is_some());
    let list: Vec<String> = facts
        .libraries
        .iter()
        .map(|library| match &library.path {
            Some(path) => path.display().to_string(),
            None => format!("{} missing", library.name),
        })
        .collect();
    let found = format!("{}; {} NUMA nodes", list.join(", "), facts.numa_nodes);
    vec![if facts.numa_nodes > 1 && !has("libnuma") {
        warning(
            "libraries",
            found,
            "install libnuma (Debian: libnuma1), so that captured data stays on the NUMA node of its rank",
        )
    } else if !has("libisal") {
        warning(
            "libraries",
            found,
            "install ISA-L (Debian: libisal2): without it, Reed-Solomon codes work, but several times slower",
        )
    } else if !has("libhwloc") {
        warning("libraries", found, "install hwloc (Debian: libhwloc15): cores and memory are not mapped without it")
    } else {
        ok("libraries", found)
    }]
}

/// A program that does not save live memory lacks nothing without it, so the finding is not a warning.
fn live_memory(facts: &Facts) -> Finding {
    match &facts.watch {
        Ok(()) => ok("live memory", "writes to it can be watched (userfaultfd)"),
        Err(why) => ok("live memory", format!("is copied before a capture returns (save_live): {why}")),
    }
}

fn clock(facts: &Facts) -> Finding {
    let since = facts.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let found = format!("{} seconds since 1970", since.as_secs());
    match since < CLOCK_FIRST {
        true => {
            problem("clock", found, "set the clock of this node: exit.end_time and the ages of claims depend on it")
        }
        false => ok("clock", found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Library, Limits, Memory, Slurm, Store};
    use super::*;
    use crate::places::Orphan;
    use bivouac_core::Config;
    use bivouac_core::segment::Available;
    use std::path::PathBuf;

    fn directory(path: &str, kind: &'static str, device: u64, is_shared: Option<bool>) -> Directory {
        let trial =
            Trial { kind, is_memory: false, is_shared, device, total: 100 * GIB, free: 50 * GIB, direct: Some(true) };
        Directory { path: path.into(), exists: true, trial: Ok(trial) }
    }

    fn library(name: &'static str) -> Library {
        Library { name, path: Some(PathBuf::from(format!("/lib/{name}.so.1"))) }
    }

    /// A node where all is well.
    fn healthy() -> Facts {
        let available = Available { tmpfs: 64 * GIB, mem_available: 100 * GIB, cgroup: None, least: 64 * GIB };
        Facts {
            configuration: Ok("defaults".into()),
            config: Config::default(),
            launchers: vec![Launcher {
                name: "mpirun",
                path: "/usr/bin/mpirun".into(),
                version: Some("mpirun (Open MPI) 4.1.4".into()),
            }],
            is_root: false,
            root_may_launch: false,
            ranks: None,
            memory: Memory {
                available: Ok(available),
                is_memory: true,
                total: 64 * GIB,
                huge: Some("advise".into()),
                dead: (0, 0),
                alive: 0,
            },
            local: directory("/local/me", "xfs", 1, Some(false)),
            orphans: Vec::new(),
            global: directory("/scratch/me", "lustre", 2, Some(true)),
            store: None,
            objects: None,
            limits: Limits { files: Some(65_536), locked: None, core: Some(0) },
            allocation: None,
            slurm: None,
            libraries: ["libhwloc", "libnuma", "libisal"].map(library).into(),
            numa_nodes: 2,
            watch: Ok(()),
            kernel: Some((6, 1)),
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        }
    }

    /// Checks that exactly one finding is not ok after a change: it has this check and this verdict, and its advice contains the word.
    #[track_caller]
    fn expect(change: impl FnOnce(&mut Facts), check: &str, verdict: Verdict, word: &str) {
        let mut facts = healthy();
        change(&mut facts);
        let findings = judge(&facts);
        let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.verdict != Verdict::Ok).collect();
        assert_eq!(
            bad.iter().map(|finding| (finding.check, finding.verdict)).collect::<Vec<_>>(),
            [(check, verdict)],
            "{findings:#?}"
        );
        let advice = bad[0].advice.as_deref().unwrap_or_default();
        assert!(advice.contains(word), "{advice}");
    }

    fn trial(directory: &mut Directory, change: impl FnOnce(&mut Trial)) {
        change(directory.trial.as_mut().expect("a trial"));
    }

    use Verdict::{Problem, Warning};

    #[test]
    fn a_healthy_node_has_nothing_to_complain_about() {
        let findings = judge(&healthy());
        assert!(
            findings.iter().all(|finding| finding.verdict == Verdict::Ok && finding.advice.is_none()),
            "{findings:#?}"
        );
        let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
        for check in [
            "configuration",
            "MPI",
            "memory tier",
            "local tier",
            "global tier",
            "limits",
            "batch system",
            "libraries",
            "live memory",
            "clock",
        ] {
            assert!(checks.contains(&check), "{check} is not among {checks:?}");
        }
    }

    #[test]
    fn a_wrong_configuration_is_a_problem() {
        expect(|facts| facts.configuration = Err("global.keep_lsat".into()), "configuration", Problem, "correct it");
    }

    #[test]
    fn mpi_has_to_be_there_and_known_and_to_take_this_user() {
        expect(|facts| facts.launchers.clear(), "MPI", Problem, "module");
        expect(|facts| facts.launchers[0].version = Some("something 3".into()), "MPI", Warning, "not known");
        expect(|facts| facts.launchers[0].version = None, "MPI", Warning, "not known");
        expect(|facts| facts.is_root = true, "MPI", Warning, "OMPI_ALLOW_RUN_AS_ROOT");
        expect(
            |facts| facts.launchers[0].version = Some("Intel(R) MPI Library for Linux* OS, Version 2021.9".into()),
            "MPI",
            Warning,
            "MPICH",
        );
        for version in ["HYDRA build details:\n    Version: 4.0.2", "slurm 22.05.8", "mpiexec (OpenRTE) 4.0"] {
            let mut facts = healthy();
            facts.launchers[0].version = Some(version.into());
            assert_eq!(judge(&facts)[1].verdict, Verdict::Ok, "{version}");
        }
    }

    fn job(change: impl FnOnce(&mut Ranks)) -> Option<Result<Ranks, String>> {
        let mut ranks = Ranks {
            size: 4,
            per_node: vec![2, 2],
            thread_level: "MPI_THREAD_MULTIPLE".into(),
            cut_off: None,
            library: "Open MPI v4.1.4".into(),
            blind: Ok(Vec::new()),
        };
        change(&mut ranks);
        Some(Ok(ranks))
    }

    #[test]
    fn ranks_have_to_see_each_other_and_one_directory() {
        let mut facts = healthy();
        facts.ranks = job(|_| ());
        assert!(judge(&facts).iter().all(|finding| finding.verdict == Verdict::Ok));
        expect(
            |facts| facts.ranks = job(|ranks| (ranks.size, ranks.per_node) = (1, vec![1])),
            "ranks",
            Warning,
            "mpirun -np 2",
        );
        expect(
            |facts| facts.ranks = job(|ranks| ranks.cut_off = Some("rank 1: refused".into())),
            "sockets",
            Warning,
            "OMPI_MPI_THREAD_LEVEL=3",
        );
        let mut facts = healthy();
        facts.config.node.progress = Progress::Stepped;
        facts.ranks = job(|ranks| ranks.cut_off = Some("rank 1: refused".into()));
        assert!(judge(&facts).iter().all(|finding| finding.verdict == Verdict::Ok), "nobody wants sockets");
        expect(
            |facts| facts.ranks = job(|ranks| ranks.blind = Ok(vec![2, 3])),
            "shared directory",
            Problem,
            "all nodes share",
        );
        expect(
            |facts| facts.ranks = job(|ranks| ranks.blind = Err("denied".into())),
            "shared directory",
            Problem,
            "writable",
        );
        expect(|facts| facts.ranks = Some(Err("no probe".into())), "ranks", Problem, "mpirun -np 2");
    }

    #[test]
    fn the_memory_tier_needs_room_in_memory() {
        expect(|facts| facts.memory.available = Err("no such directory".into()), "memory tier", Problem, "/dev/shm");
        expect(|facts| facts.memory.is_memory = false, "memory tier", Warning, "tmpfs");
        let with = |least: u64| {
            move |facts: &mut Facts| {
                facts.memory.available = Ok(Available { tmpfs: least, mem_available: GIB, cgroup: None, least });
            }
        };
        expect(with(0), "memory tier", Problem, "--shm-size");
        // The size of shared memory that a container has by default.
        expect(with(64 * MIB), "memory tier", Warning, "--shm-size");
        expect(
            |facts| facts.config.node.memory_budget = Budget::Bytes(65 * GIB),
            "memory tier",
            Warning,
            "lower memory.budget",
        );
        let orphan =
            |path: &str| Orphan { path: path.into(), global: "/scratch/old".into(), is_gone: true, bytes: GIB };
        expect(|facts| facts.orphans = vec![orphan("/local/me")], "local copies", Warning, "--even-newest");
        expect(|facts| facts.memory.dead = (2, GIB), "segments", Warning, "bivouac clean --all-dead");
        let mut off = healthy();
        off.config.job.memory_enabled = false;
        off.memory.available = Err("whatever".into());
        assert!(judge(&off).iter().all(|finding| finding.verdict == Verdict::Ok));
    }

    #[test]
    fn old_kernels_populate_memory_slowly() {
        expect(|facts| facts.kernel = Some((5, 4)), "huge pages", Warning, "5.14");
        let never = |facts: &mut Facts| (facts.kernel, facts.memory.huge) = (Some((5, 15)), Some("never".into()));
        expect(never, "huge pages", Warning, "shmem_enabled");
        let mut newer = healthy();
        newer.memory.huge = Some("never".into());
        assert!(judge(&newer).iter().all(|finding| finding.verdict == Verdict::Ok));
    }

    #[test]
    fn the_local_tier_needs_a_disk_of_the_node() {
        expect(|facts| facts.local.trial = Err("Permission denied".into()), "local tier", Problem, "local.directory");
        expect(
            |facts| trial(&mut facts.local, |trial| trial.is_memory = true),
            "local tier",
            Problem,
            "local.allow_tmpfs",
        );
        expect(
            |facts| trial(&mut facts.local, |trial| trial.is_shared = Some(true)),
            "local tier",
            Warning,
            "disk of the node",
        );
        expect(|facts| trial(&mut facts.local, |trial| trial.free = MIB), "local tier", Warning, "free some space");
        let direct = |facts: &mut Facts| {
            facts.config.node.local_direct = Direct::On;
            trial(&mut facts.local, |trial| trial.direct = Some(false));
        };
        expect(direct, "local tier", Problem, "local.direct");
        let mut allowed = healthy();
        allowed.config.node.local_allow_tmpfs = true;
        trial(&mut allowed.local, |trial| trial.is_memory = true);
        assert!(judge(&allowed).iter().all(|finding| finding.verdict == Verdict::Ok));
    }

    #[test]
    fn the_object_tier_needs_a_store_that_answers() {
        use super::super::facts::Objects;
        let with = |objects: Result<Objects, String>| {
            move |facts: &mut Facts| {
                facts.config.job.object_url = Some("s3://bucket/runs".into());
                facts.objects = Some(objects);
            }
        };
        expect(with(Err("denied".into())), "object tier", Problem, "credentials");
        expect(with(Ok(Objects { has_store: true, can_fence: false })), "object tier", Warning, "only one");
    }

    #[test]
    fn the_global_tier_needs_a_file_system_that_all_nodes_share() {
        expect(
            |facts| facts.global.trial = Err("Read-only file system".into()),
            "global tier",
            Problem,
            "global.directory",
        );
        expect(|facts| trial(&mut facts.global, |trial| trial.is_memory = true), "global tier", Warning, "outlives");
        expect(|facts| trial(&mut facts.global, |trial| trial.device = 1), "global tier", Warning, "adds nothing");
        let two_nodes = |facts: &mut Facts| {
            facts.slurm = Some(Slurm { job: "7".into(), nodes: Some(2), ..Default::default() });
            trial(&mut facts.global, |trial| trial.is_shared = Some(false));
        };
        expect(two_nodes, "global tier", Problem, "all nodes share");
        let store = |store: Store| move |facts: &mut Facts| facts.store = Some(Ok(store));
        expect(store(Store { living: vec!["heat lives".into()], ..Default::default() }), "store", Warning, "job.name");
        expect(store(Store { temps: 2, folders: (3, 1), ..Default::default() }), "store", Warning, "bivouac clean");
        expect(|facts| facts.store = Some(Err("denied".into())), "store", Problem, "owner");
    }

    #[test]
    fn few_open_files_are_a_warning() {
        expect(|facts| facts.limits.files = Some(256), "limits", Warning, "ulimit -n");
    }

    fn allocation(left: u64) -> Option<Allocation> {
        Some(Allocation { system: System::Slurm, left: Some(Duration::from_secs(left)) })
    }

    #[test]
    fn a_program_has_to_hear_of_the_end_of_its_allocation() {
        let check = "end of allocation";
        expect(|facts| facts.allocation = allocation(3600), check, Warning, "BIVOUAC_EXIT_END_TIME");
        expect(|facts| facts.allocation = allocation(100), check, Problem, "sbatch --time");
        let by_time = |end: u64, left: u64| {
            move |facts: &mut Facts| {
                facts.config.job.exit.end_time = Some(1_800_000_000 + end);
                facts.allocation = allocation(left);
            }
        };
        expect(by_time(100, 3600), check, Problem, "exit.reserve");
        expect(by_time(7200, 3600), check, Warning, "SLURM_JOB_END_TIME");
        let mut told = healthy();
        by_time(3600, 3600)(&mut told);
        assert!(judge(&told).iter().all(|finding| finding.verdict == Verdict::Ok), "{:#?}", judge(&told));
        told.config.job.exit.end_time = None;
        told.config.job.exit.signal = Some("USR1".into());
        assert!(judge(&told).iter().all(|finding| finding.verdict == Verdict::Ok));
    }

    #[test]
    fn slurm_has_its_own_traps() {
        let inside = |change: fn(&mut Slurm)| {
            move |facts: &mut Facts| {
                let mut slurm = Slurm { job: "7".into(), nodes: Some(1), ..Default::default() };
                change(&mut slurm);
                facts.slurm = Some(slurm);
            }
        };
        expect(inside(|slurm| slurm.missing = vec!["scontrol"]), "batch system", Warning, "PATH");
        expect(inside(|slurm| slurm.array_task = Some("3".into())), "job array", Warning, "SLURM_ARRAY_TASK_ID");
        let mut named = healthy();
        inside(|slurm| slurm.array_task = Some("3".into()))(&mut named);
        named.config.job.name = Some("heat-3".into());
        assert!(judge(&named).iter().all(|finding| finding.verdict == Verdict::Ok));
    }

    #[test]
    fn redundancy_that_cannot_be_had_on_these_nodes_is_said() {
        let ranks = |scheme: &'static str, per_node: &'static [u32]| {
            move |facts: &mut Facts| {
                facts.config.job.redundancy.scheme = scheme.parse().expect("a scheme");
                facts.ranks = Some(Ok(Ranks {
                    size: per_node.iter().sum(),
                    per_node: per_node.into(),
                    thread_level: "MPI_THREAD_MULTIPLE".into(),
                    cut_off: None,
                    library: "Open MPI".into(),
                    blind: Ok(Vec::new()),
                }));
            }
        };
        expect(ranks("xor(8)", &[4]), "redundancy", Verdict::Problem, "node-loss");
        expect(ranks("rs(4,2)", &[4, 4]), "redundancy", Verdict::Warning, "6 nodes");
        expect(ranks("partner(2)", &[1, 1]), "redundancy", Verdict::Warning, "3 nodes");
        let mut facts = healthy();
        ranks("rs(2,2)", &[2; 4])(&mut facts);
        assert!(judge(&facts).iter().all(|finding| finding.verdict == Verdict::Ok));
        let mut slurm = Slurm { nodes: Some(4), tasks_per_node: Some("2(x3),1".into()), ..Slurm::default() };
        assert_eq!(slurm.least_tasks(), 1);
        slurm.tasks_per_node = Some("16(x4)".into());
        assert_eq!(slurm.least_tasks(), 16);
        slurm.tasks_per_node = None;
        assert_eq!(slurm.least_tasks(), 1);
    }

    #[test]
    fn missing_libraries_and_an_unset_clock_are_said() {
        let without = |name: &'static str| {
            move |facts: &mut Facts| {
                facts
                    .libraries
                    .iter_mut()
                    .filter(|library| library.name == name)
                    .for_each(|library| library.path = None);
            }
        };
        expect(without("libnuma"), "libraries", Warning, "libnuma1");
        expect(without("libisal"), "libraries", Warning, "ISA-L");
        expect(without("libhwloc"), "libraries", Warning, "hwloc");
        expect(
            |facts| facts.now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400),
            "clock",
            Problem,
            "set the clock",
        );
    }

    #[test]
    fn times_have_a_fitting_unit() {
        let text = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([text(5), text(600), text(12_000)], ["5 s", "10 min", "3 h 20 min"]);
    }
}
