//! CPU masks of MPI jobs, on any machine: after a restart the masks are as before, the ranks of a node share the CPUs of their launcher,
//! and no thread leaves those CPUs. Pages need several NUMA nodes: `tests/affinity.rs`.
#![cfg(all(feature = "mpi", feature = "hwloc"))]
#![forbid(unsafe_code)]

mod common;

use bivouac_core::base::units::parse_cpus;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

const RANKS: u32 = 2;

/// The CPUs that this test may use, if there are enough of them to tell ranks apart.
fn cpus() -> Option<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a mask");
    let cpus: Vec<usize> = parse_cpus(list).expect("a list").into_iter().collect();
    if cpus.len() < 2 {
        eprintln!(
            "\n*** SKIPPED: one CPU only, so masks were not tested. Run cargo test --test mpi_affinity on two. ***\n"
        );
        return None;
    }
    Some(cpus)
}

/// Runs the worker. With `only`, mpirun and all its processes are confined to that CPU.
fn run(folder: &Path, only: Option<usize>, arguments: &[&str]) -> Option<Output> {
    let plain = common::mpirun_command(RANKS)?;
    let mut command = match only {
        Some(cpu) => {
            let mut confined = Command::new("taskset");
            confined.args(["-c", &cpu.to_string()]).arg(plain.get_program()).args(plain.get_args());
            confined.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
            confined
        }
        None => plain,
    };
    command
        .arg(assert_cmd::cargo::cargo_bin("bivouac").with_file_name("examples/affinity-worker"))
        .args(["--pieces", "4"]);
    command.args(arguments).current_dir(folder);
    command.env("BIVOUAC_GLOBAL_DIRECTORY", folder.join("global")).env("BIVOUAC_LOCAL_ENABLED", "false");
    command.env("BIVOUAC_MEMORY_ENABLED", "false").env("BIVOUAC_JOB_NAME", "masks");
    command.env("BIVOUAC_AFFINITY_CHECK_EVERY", "200ms");
    Some(common::Job::start(command).wait())
}

/// The lines of the ranks: the last word of each, by the words before it.
fn said(output: &Output) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(key, word)| (key.into(), word.into())).collect()
}

#[test]
fn masks_come_back_and_never_leave_what_the_launcher_has() {
    let Some(cpus) = cpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run(folder.path(), None, &["save"]) else { return };
    let saved = said(&output);
    let restored = said(&run(folder.path(), None, &["restore", "full", "off"]).unwrap());
    let mask = |said: &BTreeMap<String, String>, rank: u32, case: &str, thread: &str| {
        said.get(&format!("{rank} {case} thread {thread}")).expect("it said so").clone()
    };
    for rank in 0..RANKS {
        for thread in ["main", "worker"] {
            let then = mask(&saved, rank, "saved", thread);
            assert_eq!(mask(&restored, rank, "full", thread), then);
            assert_ne!(mask(&restored, rank, "off", thread), then, "free again");
        }
    }
    // The same checkpoint is restored in a job that has one CPU, so its threads may not return to their CPUs.
    let last = *cpus.last().unwrap();
    let confined = said(&run(folder.path(), Some(last), &["restore", "full"]).unwrap());
    for (rank, thread) in [(0, "main"), (0, "worker"), (1, "main"), (1, "worker")] {
        assert_eq!(mask(&confined, rank, "full", thread), last.to_string());
    }
}

#[test]
fn ranks_share_what_the_job_has_and_threads_get_cores_of_their_own() {
    let Some(cpus) = cpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run(folder.path(), None, &["pin"]) else { return };
    let free = said(&output);
    let of = |said: &BTreeMap<String, String>, rank: u32, thread: &str| -> BTreeSet<usize> {
        parse_cpus(&said[&format!("{rank} pinned thread {thread}")]).expect("a list")
    };
    let mains: Vec<_> = (0..RANKS).map(|rank| of(&free, rank, "main")).collect();
    assert!(mains[0].is_disjoint(&mains[1]) && !mains[0].is_empty() && !mains[1].is_empty(), "{mains:?}");
    let later: Vec<_> = (0..RANKS).map(|rank| of(&free, rank, "worker")).collect();
    assert!(later[0].is_disjoint(&later[1]), "{later:?}");
    let confined = said(&run(folder.path(), Some(cpus[0]), &["pin"]).unwrap());
    for (rank, thread) in [(0, "main"), (0, "worker"), (1, "main"), (1, "worker")] {
        assert_eq!(of(&confined, rank, thread), BTreeSet::from([cpus[0]]), "not outside of its launcher's CPU");
    }
}

/// Two groups on one node do not know of each other. Either might take a CPU that the other takes.
#[test]
fn groups_that_share_a_node_go_back_to_their_places_and_nothing_else_is_dealt_to_them() {
    let Some(cpus) = cpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run(folder.path(), None, &["groups", "save"]) else { return };
    let saved = said(&output);
    let all: BTreeSet<usize> = cpus.iter().copied().collect();
    let of = |said: &BTreeMap<String, String>, rank: u32, case: &str| -> (BTreeSet<usize>, String) {
        let mask = parse_cpus(&said[&format!("{rank} {case} thread main")]).expect("a list");
        (mask, said[&format!("{rank} {case} losses")].clone())
    };
    let restored = said(&run(folder.path(), None, &["groups", "restore"]).unwrap());
    let last = *cpus.last().unwrap();
    let confined = said(&run(folder.path(), Some(last), &["groups", "restore"]).unwrap());
    for rank in 0..RANKS {
        assert_eq!(of(&saved, rank, "pinned"), (all.clone(), "1".into()), "left alone, and told");
        let own = BTreeSet::from([cpus[rank as usize % cpus.len()]]);
        assert_eq!(of(&saved, rank, "saved").0, own);
        assert_eq!(of(&restored, rank, "restored"), (own, "0".into()), "the same place, and no other rank's");
        assert_eq!(of(&confined, rank, "restored"), (BTreeSet::from([last]), "1".into()), "left alone, and told");
    }
}

#[test]
fn threads_that_are_moved_between_checkpoints_are_counted() {
    if cpus().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = run(folder.path(), None, &["wander"]) else { return };
    let said = said(&output);
    for rank in 0..RANKS {
        assert_eq!(said[&format!("{rank} quiet")], "0");
        assert_eq!(said[&format!("{rank} moved")], "1", "the main thread, once");
    }
}
