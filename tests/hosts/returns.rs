//! Hosts that were given up come back: with stale data, with their old disk, or while their processes still believe
//! that they are in charge.

use crate::bed::{Hosts, Job, RANKS, Run, files, random, seconds};
use crate::checks::{calm_digest, check_counters, protected, restored_by_all, wait_for_protected};
use bivouac_core::base::digest::digest_bytes;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Waits until all ranks hold before a version, in one generation.
fn wait_for_hold_in(run: &mut Run, job: &Job, generation: u64, version: u64) {
    let line = format!("hold version={version}");
    run.wait_until(&format!("{line} in generation {generation}"), || {
        let generations = job.generations();
        let attempts = generations.get(&generation).map_or(&[][..], Vec::as_slice);
        attempts.iter().filter(|attempt| attempt.lines.contains(&line)).count() == RANKS
    });
}

#[test]
fn a_host_whose_network_is_cut_counts_as_dead_and_its_stale_data_is_not_believed_when_it_is_back() {
    let Some(hosts) = Hosts::up(5) else { return };
    let job = protected(&hosts, "partner(1)");
    // The job is slow enough that the host is cut off long before all ranks wait at version 25, even on a busy machine.
    let args = ["--versions", "30", "--hold", "25", "--pause-ms", "400"];
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    wait_for_protected(&mut run, &job, 8);
    // Without its daemon, nothing ends the cut-off host's ranks: they continue to compute, and capture versions that nobody commits.
    hosts.on("node3", &["pkill", "-STOP", "orted"]);
    hosts.cut("node3");
    wait_for_hold_in(&mut run, &job, 2, 25);
    assert_eq!(job.seats(), ["node1", "node2", "node5", "node4"], "node5 stands in for node3");
    assert_eq!(hosts.on("node3", &["pgrep", "-c", "damage-worker"]), "2", "the cut host's ranks did not live on");
    let (elected, _, _) = restored_by_all(&job.generations()[&2]);
    assert!(elected < 24, "version {elected}: the host was cut off too late for it to get further than the others");
    run.wait_until("the cut host has captured something that the others do not have", || {
        let generations = job.generations();
        let stale = generations[&1].iter().find(|attempt| attempt.rank == 4).unwrap();
        let mut captured = stale.all("captured version=").filter_map(|version| version.parse::<u64>().ok());
        captured.any(|version| version > elected)
    });

    hosts.heal("node3");
    hosts.kill("node5");
    job.go(25);
    run.finish();
    assert_eq!(job.seats(), ["node1", "node2", "node3", "node4"], "node3 is used again");
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (24, 2), "not what node3 has of generation 1");
    check_counters(&last, |rank| (4..6).contains(&rank));
    assert_eq!(job.digest(), calm_digest(30, 20_001));
}

/// The root rank's host is cut off in the middle of its work and stands still, and the job continues without it. Then
/// it wakes up: it must not publish its unfinished work, and must not delete anything.
#[test]
fn a_cut_off_root_that_wakes_up_neither_publishes_nor_deletes() {
    let Some(hosts) = Hosts::up(5) else { return };
    let mut rng = random();
    let mut job = protected(&hosts, "partner(1)");
    // Each version goes to the global tier, so there is always something to publish and something to delete.
    job.set("BIVOUAC_GLOBAL_EVERY", "1").set("BIVOUAC_GLOBAL_KEEP_LAST", "2");
    let args = ["--versions", "30", "--hold", "25", "--pause-ms", "100"];
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    wait_for_protected(&mut run, &job, 8);
    std::thread::sleep(Duration::from_micros(rng.below(100_000)));
    hosts.freeze("node1");
    hosts.cut("node1");
    wait_for_hold_in(&mut run, &job, 2, 25);
    let before = verify(&job);
    // When the ranks are awake, their daemon may end them at any moment, because it has lost the launcher.
    assert_eq!(hosts.on("node1", &["pgrep", "-c", "damage-worker"]), "2", "nobody is there to wake up");
    hosts.thaw("node1");
    let log = job.log(0);
    // The host's threads have unfinished work and must renew the heartbeat of the claim.
    std::thread::sleep(seconds(5));
    let after = verify(&job);
    for (path, digest) in &before {
        assert_eq!(after.get(path), Some(digest), "{} was deleted or changed\n{log}", path.display());
    }
    // The host's shards may arrive, in folders with its generation, but nobody may publish any more that they were committed.
    let new = after.keys().filter(|path| !before.contains_key(*path));
    let manifests: Vec<_> = new.filter(|path| path.ends_with("manifest")).collect();
    assert!(manifests.is_empty(), "published: {manifests:?}\n{log}");

    job.go(25);
    run.finish();
    let (version, generation, _) = restored_by_all(&job.generations()[&2]);
    assert!(version >= 8 && generation == 1, "{version} of {generation}");
    assert_eq!(job.digest(), calm_digest(30, 20_001));
}

/// Checks every digest of the global tier. Returns all its files except the claims, with their bytes.
fn verify(job: &Job) -> BTreeMap<PathBuf, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_bivouac")).arg("verify").arg(job.global()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "bivouac verify: {}\n{text}", output.status);
    let files =
        files(&job.global()).into_iter().filter(|path| !path.components().any(|part| part.as_os_str() == "claims"));
    files.map(|path| (path.clone(), digest_bytes(&fs::read(&path).unwrap()).to_string())).collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// The old disk

#[test]
fn a_dead_host_that_comes_back_with_its_disk_brings_its_shards_of_the_elected_checkpoint() {
    let Some(hosts) = Hosts::up(4) else { return };
    let mut job = protected(&hosts, "none");
    job.set("BIVOUAC_GLOBAL_EVERY", "1000000");
    let args = ["--versions", "12", "--hold", "8", "--wait", "node-reboot"];
    let on = ["node1", "node2", "node3", "node4"];
    let mut run = job.start_worker("first", &on, &args);
    run.wait_for_hold(&job, 8);
    hosts.power_off("node3");
    run.fail();
    hosts.boot_with_old_disk("node3");
    job.go(8);
    job.start_worker("second", &on, &args).finish();
    let last = job.last_attempts();
    let (version, _, tiers) = restored_by_all(&last);
    assert_eq!(version, 7);
    let disk = |rank: usize| if (4..6).contains(&rank) { "local" } else { "memory" };
    assert_eq!(tiers, (0..RANKS).map(disk).collect::<Vec<_>>());
    assert_eq!(job.digest(), calm_digest(12, 20_001));
}

#[test]
fn a_dead_host_that_comes_back_with_an_older_disk_is_not_asked_for_what_it_has() {
    let Some(hosts) = Hosts::up(5) else { return };
    let job = protected(&hosts, "partner(1)");
    let args = ["--versions", "20", "--hold", "8,15", "--wait", "node-loss"];
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    run.wait_for_hold(&job, 8);
    hosts.kill("node3");
    job.go(8);
    // node5 has replaced it, and the job has continued; node3 has versions 6 and 7 on its disk.
    wait_for_hold_in(&mut run, &job, 2, 15);
    hosts.boot_with_old_disk("node3");
    hosts.kill("node5");
    job.go(15);
    run.finish();
    assert_eq!(job.seats(), ["node1", "node2", "node3", "node4"], "node3 is used again");
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (14, 2));
    check_counters(&last, |rank| (4..6).contains(&rank));
    assert_eq!(job.digest(), calm_digest(20, 20_001));
}
