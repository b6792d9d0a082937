//! A program with VELOC's interface runs on several hosts: the data that one of them loses comes back from the others.

use crate::bed::{Hosts, Job, RANKS_PER_HOST, files};
use crate::interfaces::{self, with_soname};
use std::fs;
use std::path::{Path, PathBuf};

const HOSTS: [&str; 3] = ["node1", "node2", "node3"];
const RANKS: usize = HOSTS.len() * RANKS_PER_HOST;
const VERSIONS: &str = "3";

/// The version that each rank restored last, and the tier from which it was read.
fn restored(job: &Job) -> Vec<(i64, Option<String>)> {
    let told = |rank: usize| {
        let log = fs::read_to_string(job.path(&format!("rank-{rank}.log"))).unwrap();
        let version = log.lines().find_map(|line| line.strip_prefix("from ")).unwrap_or_else(|| panic!("{log}"));
        let line = log.lines().find(|line| line.contains("event=restored "));
        let tier = line.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("tier=")));
        (version.parse().unwrap(), tier.map(str::to_owned))
    };
    (0..RANKS).map(told).collect()
}

#[test]
fn a_host_without_its_scratch_and_memory_gets_them_back_from_the_others_through_velocs_interface() {
    let Some(hosts) = Hosts::up(HOSTS.len() as u32) else { return };
    let mut job = Job::new(&hosts, "veloc");
    interfaces::veloc::client(&job.folder);
    let program = interfaces::veloc::program(&job.folder, "tests/programs/c/veloc_damage.c", &[]);
    let program = program.to_str().unwrap();
    // VELOC's file sets everything except node memory. Nothing is written where all hosts would see it.
    for variable in ["BIVOUAC_JOB_NAME", "BIVOUAC_LOCAL_DIRECTORY", "BIVOUAC_GLOBAL_DIRECTORY"] {
        job.unset(variable);
    }
    job.set("LD_LIBRARY_PATH", with_soname(&job.folder).to_str().unwrap());
    let (config, end, persistent) = (job.path("veloc.cfg"), job.path("end"), job.path("persistent"));
    let scratch = hosts.local().join("scratch");
    let text = format!(
        "scratch = {}\npersistent = {persistent}\nmode = async\npersistent_interval = -1\nec_interval = 0\n",
        scratch.display()
    );
    fs::write(&config, text).unwrap();
    fs::write(&end, "").unwrap();
    let run = |name: &str, args: &[&str]| job.start(name, &job.mpirun(&HOSTS, &[&[program], args].concat()));
    run("make", &["make", &config, VERSIONS, &end]).fail();
    let on_disk = |host: &str| hosts.disk(host).join("scratch").exists();
    assert!(on_disk("node2") && hosts.memory("node2").read_dir().unwrap().next().is_some());

    hosts.kill("node2");
    hosts.boot("node2");
    assert!(!on_disk("node2") && hosts.memory("node2").read_dir().unwrap().next().is_none());
    run("again", &["restore", &config]).finish();
    let lost = RANKS_PER_HOST..2 * RANKS_PER_HOST;
    for (rank, told) in restored(&job).into_iter().enumerate() {
        let tier = if lost.contains(&rank) { "peers" } else { "memory" };
        assert_eq!(told, (VERSIONS.parse().unwrap(), Some(tier.to_owned())), "rank {rank}");
    }
    let is_container = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bvc");
    assert!(!files(Path::new(&persistent)).iter().any(is_container), "it came from the hosts alone");

    // A restart uses nothing up. After one more loss than the parity covers, all ranks hear that there
    // is nothing to restore.
    run("once-more", &["restore", &config]).finish();
    let versions: Vec<i64> = restored(&job).into_iter().map(|(version, _)| version).collect();
    assert_eq!(versions, [VERSIONS.parse::<i64>().unwrap(); RANKS]);
    hosts.kill("node3");
    hosts.boot("node3");
    run("lost", &["restore", &config]).finish();
    assert_eq!(restored(&job), vec![(-1, None); RANKS]);
}
