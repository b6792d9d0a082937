//! Whole hosts are lost, with their processes, memory and disks, and the job continues. The jobs run on four hosts with two ranks each, and
//! on spares, under plain `mpirun` and under the supervisor.
//! These tests need root and a kernel that allows namespaces, and print a loud note if either is missing.
//! `tests/hosts/bed.rs` explains what a test host is.
//! what a test host is.
//!
//! | variable | meaning |
//! |---|---|
//! | `BIVOUAC_TEST_SEED` | the seed of everything random; printed by each test that uses it |
//! | `BIVOUAC_TEST_HOST_KILLS` | how many hosts the sweep of moments kills (default 3; `ci/test.sh whole`: 6) |
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

#[path = "hosts/bed.rs"]
mod bed;
#[path = "hosts/checks.rs"]
mod checks;
mod common;
#[path = "hosts/flips.rs"]
mod flips;
mod interfaces;
#[path = "hosts/losses.rs"]
mod losses;
#[path = "hosts/returns.rs"]
mod returns;
#[path = "hosts/supervisor.rs"]
mod supervisor;
#[path = "hosts/veloc.rs"]
mod veloc;

use bed::{FIRST_HOSTS, Hosts, Job, RANKS, can, example};
use common::limit::wait_until;
use std::fs;
use std::process::{Command, Stdio};

// ---------------------------------------------------------------------------------------------------------------------
// The hosts themselves

#[test]
fn each_host_has_its_own_name_network_processes_memory_and_disk_and_loses_them_when_it_dies() {
    let Some(hosts) = Hosts::up(2) else { return };
    let local = hosts.local().join("mark");
    let mark = |host: &str| hosts.on(host, &["touch", "/dev/shm/mark", local.to_str().unwrap()]);
    let marks = |host: &str| {
        let list = format!("ls -d /dev/shm/mark {} 2> /dev/null | wc -l", local.display());
        hosts.on(host, &["bash", "-c", &list])
    };
    let boot = |host: &str| hosts.on(host, &["cat", "/proc/sys/kernel/random/boot_id"]);
    let answers = |host: &str| {
        let agent = bed::scripts().join("agent.sh");
        let output = hosts.command("hosts.sh", &["exec", "head", agent.to_str().unwrap(), host, "true"]).output();
        output.unwrap().status.success()
    };

    for host in ["head", "node1", "node2"] {
        assert_eq!(hosts.on(host, &["uname", "-n"]), host);
    }
    hosts.on("node1", &["ping", "-c", "1", "-W", "2", "node2"]);
    assert_ne!(boot("node1"), boot("node2"));
    mark("node1");
    assert_eq!((marks("node1"), marks("node2")), ("2".into(), "0".into()));
    assert!(hosts.memory("node1").join("mark").exists() && hosts.disk("node1").join("mark").exists());
    let processes = hosts.on("node1", &["bash", "-c", "ls -d /proc/[0-9]* | wc -l"]);
    assert!(processes.parse::<u32>().unwrap() < 10, "node1 sees processes of others: {processes}");

    mark("node2");
    let before = boot("node2");
    hosts.kill("node2");
    assert!(!answers("node2"));
    hosts.boot_with_old_disk("node2");
    assert!(answers("node2"));
    assert_ne!(boot("node2"), before);
    assert_eq!(marks("node2"), "1", "the old disk, and nothing else");
    hosts.power_off("node2");
    assert!(!answers("node2"));
    hosts.boot("node2");
    assert_eq!(marks("node2"), "0");
    assert_eq!(marks("node1"), "2", "node1 was not touched");

    hosts.cut("node1");
    assert!(!answers("node1"));
    assert_eq!(marks("node1"), "2", "a cut host lives on");
    hosts.heal("node1");
    assert!(answers("node1"));
}

#[test]
fn two_sets_of_hosts_work_beside_each_other_and_leave_nothing_behind() {
    let Some(first) = Hosts::up(2) else { return };
    let second = Hosts::up_beside(&first, 2);
    for hosts in [&first, &second] {
        let out = Job::new(hosts, "names").start("names", &["mpirun", "--host", "node1,node2", "uname", "-n"]).finish();
        let mut names: Vec<&str> = out.lines().filter(|line| line.starts_with("node")).collect();
        names.sort_unstable();
        assert_eq!(names, ["node1", "node2"], "{out}");
    }
    second.kill("node1");
    assert_eq!(first.on("node1", &["uname", "-n"]), "node1");
    for hosts in [first, second] {
        let mut leftovers = hosts.command("hosts.sh", &["leftovers"]);
        assert!(!leftovers.output().unwrap().status.success(), "they are up: there must be something");
        drop(hosts);
        let output = leftovers.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn hosts_of_a_crashed_owner_vanish_by_themselves() {
    if !can("hosts.sh") {
        return;
    }
    let state = format!("{}/hosts/{}-crashed", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let script = |args: &[&str]| {
        let mut command = Command::new(bed::scripts().join("hosts.sh"));
        command.args(args).env("BIVOUAC_TEST_HOSTS", &state).stdin(Stdio::null());
        command.output().unwrap()
    };
    let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
    let up = script(&["up", "2", "--owner", &owner.id().to_string()]);
    let listed = script(&["status"]);
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(String::from_utf8_lossy(&listed.stdout).matches(" up ").count(), 3);
    wait_until("hosts.sh leftovers finds nothing", || script(&["leftovers"]).status.success());
}

// ---------------------------------------------------------------------------------------------------------------------
// A host is lost, and the job is launched again on the others and a spare

/// The steps and pauses of a run that takes a few seconds.
const HEAT: [&str; 8] = ["--grid", "192x192", "--steps", "600", "--every", "50", "--pause", "3000"];

fn heat2d(args: &[&str]) -> Vec<String> {
    let program = [example("heat2d")];
    program.into_iter().chain(HEAT.iter().chain(args).map(|word| word.to_string())).collect()
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn digest(out: &str) -> &str {
    let digests: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("digest ")).collect();
    assert_eq!(digests.len(), 1, "{out}");
    digests[0]
}

#[test]
fn a_host_that_dies_is_replaced_by_a_spare_and_the_digest_is_that_of_the_undisturbed_run() {
    let Some(hosts) = Hosts::up(5) else { return };
    let program = heat2d(&["--wait", "system"]);
    let calm = Job::new(&hosts, "calm");
    let calm = calm.start("calm", &calm.mpirun(&FIRST_HOSTS, &words(&program))).finish();

    let job = Job::new(&hosts, "heat");
    let mut run = job.start("first", &job.mpirun(&FIRST_HOSTS, &words(&program)));
    run.wait_for_line("committed version=300 level=system");
    hosts.power_off("node3");
    let ended = run.fail();
    assert!(!ended.out.contains("digest "), "it had finished already\n{}", ended.out);

    let second = job.start("second", &job.mpirun(&["node1", "node2", "node4", "node5"], &words(&program))).finish();
    let restored = second.lines().find(|line| line.starts_with("restored version=")).expect("nothing was restored");
    let version = restored["restored version=".len()..].split(' ').next().unwrap();
    assert!(version.parse::<u64>().unwrap() >= 300, "{restored}");
    assert_eq!(digest(&second), digest(&calm));
}

#[test]
fn the_host_of_the_root_rank_dies_and_the_job_goes_on_without_it() {
    let Some(hosts) = Hosts::up(5) else { return };
    let job = Job::new(&hosts, "root");
    let args = ["--versions", "12", "--hold", "8", "--wait", "system"];
    let mut run = job.start_worker("first", &FIRST_HOSTS, &args);
    run.wait_for_hold(&job, 8);
    hosts.kill("node1");
    run.fail();
    job.go(8);
    job.start_worker("second", &["node5", "node2", "node3", "node4"], &args).finish();
    for attempt in job.last_attempts() {
        assert_eq!(attempt.restored().version, 7);
        assert!(attempt.is_whole(), "{attempt:#?}");
    }
    assert_eq!(fs::read_dir(job.folder.join("ranks")).unwrap().count(), RANKS + 1);
}
