//! Shared parts of the table's rows: a protected job, and the checks of what its ranks restored.
#![allow(dead_code)] // As in `bed.rs`.

use crate::bed::{Attempt, Hosts, Job, RANKS, Restored, Run, example};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A job whose checkpoints are protected by a scheme. Only the first checkpoint of each attempt goes to the global tier, which therefore
/// holds an older one.
pub fn protected<'a>(hosts: &'a Hosts, scheme: &str) -> Job<'a> {
    let mut job = Job::new(hosts, "protected");
    job.set("BIVOUAC_REDUNDANCY_SCHEME", scheme).set("BIVOUAC_GLOBAL_EVERY", "1000000");
    job
}

/// The digest with which an undisturbed run ends.
pub fn calm_digest(versions: u64, elements: u64) -> String {
    let mut worker = Command::new(example("damage-worker"));
    worker.args(["digest", "--ranks", &RANKS.to_string(), "--versions", &versions.to_string()]);
    let output = worker.args(["--elements", &elements.to_string()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The newest version that any rank heard was committed at level node-loss.
pub fn newest_protected<'a>(attempts: impl IntoIterator<Item = &'a Attempt>) -> u64 {
    attempts.into_iter().map(|attempt| attempt.newest_committed("node-loss")).max().unwrap_or(0)
}

/// Waits until rank 0 has heard that a version is protected.
pub fn wait_for_protected(run: &mut Run, job: &Job, version: u64) {
    run.wait_until(&format!("version {version} is protected"), || {
        job.attempts(0).last().is_some_and(|attempt| newest_protected([attempt]) >= version)
    });
}

/// The version and the generation of the one checkpoint that all ranks restored in their last attempt, and the tier of each rank.
pub fn restored_by_all(last: &[Attempt]) -> (u64, u64, Vec<String>) {
    let restored: Vec<Restored> = last.iter().map(Attempt::restored).collect();
    let what = |restored: &Restored| (restored.version, restored.generation);
    assert!(restored.iter().all(|other| what(other) == what(&restored[0])), "a mixed state: {restored:?}");
    let (version, generation) = what(&restored[0]);
    (version, generation, restored.into_iter().map(|restored| restored.tier).collect())
}

/// Checks that nothing came from the global tier, that nothing was found damaged, and that exactly these ranks restored from their peers.
pub fn check_counters(last: &[Attempt], from_peers: impl Fn(usize) -> bool) {
    check_sources(last);
    for attempt in last {
        let rank = attempt.rank;
        let peers = attempt.restart_counter("restored_bytes.peers");
        assert_eq!(peers > 0, from_peers(rank), "rank {rank} restored {peers} bytes from its peers");
    }
}

/// Checks that nothing came from the global tier, and that nothing was found damaged.
pub fn check_sources(last: &[Attempt]) {
    for attempt in last {
        let rank = attempt.rank;
        assert_eq!(attempt.restart_counter("restored_bytes.global"), 0, "rank {rank}");
        for tier in ["memory", "local", "peers", "global"] {
            assert_eq!(attempt.restart_counter(&format!("damaged.{tier}")), 0, "rank {rank}, {tier}");
        }
    }
}

/// Checks that each attempt restored one checkpoint on all ranks, with every byte right, and that it was not older than what the previous
/// attempt had protected: one host was lost in between.
pub fn check_attempts(generations: &BTreeMap<u64, Vec<Attempt>>) {
    let mut protected = 0;
    for (generation, attempts) in generations {
        let restored: BTreeSet<(u64, u64)> = attempts
            .iter()
            .filter(|attempt| attempt.all("verified version=").next().is_some())
            .map(|attempt| attempt.restored())
            .map(|restored| (restored.version, restored.generation))
            .collect();
        assert!(restored.len() <= 1, "generation {generation}: a mixed state: {restored:?}");
        assert!(!attempts.iter().any(|attempt| attempt.all("WRONG").next().is_some()), "{attempts:#?}");
        if let Some((version, _)) = restored.first() {
            assert!(*version >= protected, "generation {generation}: {version} restored, {protected} was protected");
        }
        // If an attempt protected nothing new, the last protected version has a set that has lost a member.
        protected = newest_protected(attempts);
    }
}
