//! Hosts die with everything that they hold; the redundancy sets bring the lost data back on a spare, under the supervisor.

use crate::bed::{Attempt, FIRST_HOSTS, Hosts, Job, RANKS_PER_HOST, random};
use crate::checks::{calm_digest, check_attempts, check_counters, protected, restored_by_all, wait_for_protected};
use bivouac_core::base::rng::Rng;
use std::time::Duration;

fn ranks_of(host: &str) -> std::ops::Range<usize> {
    let first = FIRST_HOSTS.iter().position(|name| *name == host).unwrap() * RANKS_PER_HOST;
    first..first + RANKS_PER_HOST
}

/// Checks that one host died and that there was one restart. It restored the newest version that ranks had heard was committed, or a newer
/// one; the lost host's ranks restored from their peers. Returns each rank's tier.
fn check_one_restart(job: &Job, victim: &str, newest: impl Fn(&Attempt) -> u64) -> Vec<String> {
    let generations = job.generations();
    assert_eq!(generations.len(), 2, "one host died, so one restart");
    let told = generations[&1].iter().map(newest).max().unwrap();
    let last = job.last_attempts();
    let (version, generation, tiers) = restored_by_all(&last);
    assert!(version >= told, "version {version} was restored, version {told} had been committed");
    assert_eq!(generation, 1);
    check_counters(&last, |rank| ranks_of(victim).contains(&rank));
    tiers
}

fn one_host_dies_mid_computation(scheme: &str) {
    let Some(hosts) = Hosts::up(5) else { return };
    // There are so many versions that the job is still running when a busy machine gets round to the kill.
    let args = ["--versions", "100", "--pause-ms", "40", "--elements", "40001"];
    let mut rng = random();
    let job = protected(&hosts, scheme);
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    wait_for_protected(&mut run, &job, 5 + rng.below(20));
    std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    let victim = FIRST_HOSTS[1 + rng.below(3) as usize];
    hosts.strike(victim);
    run.finish();

    let tiers = check_one_restart(&job, victim, |attempt| attempt.newest_committed("node-loss"));
    let lost = ranks_of(victim);
    for (rank, tier) in tiers.iter().enumerate() {
        assert_eq!(tier, if lost.contains(&rank) { "peers" } else { "memory" }, "rank {rank}");
    }
    assert_eq!(job.digest(), calm_digest(100, 40_001));

    let records = job.records();
    let decisions: Vec<_> = records.iter().map(|record| record["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions, ["restart", "success"]);
    let down = records[0]["down"].as_object().unwrap();
    assert_eq!(down.keys().collect::<Vec<_>>(), [victim]);
    let hosts: Vec<_> = records[1]["hosts"].as_array().unwrap().iter().map(|host| host.as_str().unwrap()).collect();
    assert!(hosts.contains(&"node5:2") && !hosts.contains(&&*format!("{victim}:2")), "{hosts:?}");
}

#[test]
fn one_host_dies_mid_computation_partner() {
    one_host_dies_mid_computation("partner(1)");
}

#[test]
fn one_host_dies_mid_computation_xor() {
    one_host_dies_mid_computation("xor(4)");
}

#[test]
fn one_host_dies_mid_computation_rs() {
    one_host_dies_mid_computation("rs(2,2)");
}

// ---------------------------------------------------------------------------------------------------------------------
// Under MPI_Init, where the library's threads may not call MPI, while ranks compute without any call

#[test]
fn levels_are_committed_between_hosts_while_ranks_only_compute_and_a_network_is_cut_for_a_while() {
    let Some(hosts) = Hosts::up(4) else { return };
    let mut job = protected(&hosts, "xor(4)");
    // The launcher must not end the job because of the cut network.
    for variable in ["OMPI_MCA_oob_tcp_keepalive_time", "OMPI_MCA_oob_tcp_keepalive_intvl"] {
        job.set_launcher(variable, "7200");
    }
    let mut run = job.start_worker("run", &FIRST_HOSTS, &["--versions", "4", "--single", "--silent-levels", "3"]);
    run.wait_until("a capture", || job.attempts(0).last().is_some_and(|attempt| attempt.all("captured").count() >= 2));
    hosts.cut("node3");
    std::thread::sleep(Duration::from_secs(2));
    hosts.heal("node3");
    run.finish();
    for attempt in job.last_attempts() {
        for level in ["process", "node-reboot", "node-loss"] {
            assert_eq!(attempt.newest_silently_committed(level), 4, "rank {}", attempt.rank);
        }
        let told: Vec<&str> = attempt.all("silently").collect();
        println!("rank {}: {told:?}", attempt.rank);
    }
    assert_eq!(job.digest(), calm_digest(4, 20_001));
}

fn one_host_dies_while_ranks_only_compute(scheme: &str) {
    let Some(hosts) = Hosts::up(5) else { return };
    // Each version is committed at its levels before the next call.
    let args = ["--versions", "48", "--single", "--silent-levels", "3", "--silent-ms", "60", "--elements", "40001"];
    let mut rng = random();
    let job = protected(&hosts, scheme);
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    let newest = |attempt: &Attempt| attempt.newest_silently_committed("node-loss");
    let goal = 4 + rng.below(10);
    run.wait_until("some versions", || job.attempts(0).last().is_some_and(|attempt| newest(attempt) >= goal));
    std::thread::sleep(Duration::from_micros(rng.below(50_000)));
    let victim = FIRST_HOSTS[1 + rng.below(3) as usize];
    hosts.strike(victim);
    run.finish();

    check_one_restart(&job, victim, newest);
    assert_eq!(job.digest(), calm_digest(48, 40_001));
}

#[test]
fn one_host_dies_while_ranks_only_compute_partner() {
    one_host_dies_while_ranks_only_compute("partner(1)");
}

#[test]
fn one_host_dies_while_ranks_only_compute_xor() {
    one_host_dies_while_ranks_only_compute("xor(4)");
}

#[test]
fn one_host_dies_while_ranks_only_compute_rs() {
    one_host_dies_while_ranks_only_compute("rs(2,2)");
}

// ---------------------------------------------------------------------------------------------------------------------
// Two hosts at once

fn two_hosts_die_at_once(scheme: &str) -> Option<(u64, Vec<Attempt>, String)> {
    let hosts = Hosts::up(6)?;
    let args = ["--versions", "14", "--hold", "8", "--wait", "node-loss"];
    let job = protected(&hosts, scheme);
    let mut run = job.supervise_worker("run", 6, &["--spares", "2"], &args);
    run.wait_for_hold(&job, 8);
    hosts.strike("node2");
    hosts.strike("node3");
    job.go(8);
    let ended = run.end();
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.log);
    let last = job.last_attempts();
    assert_eq!(job.digest(), calm_digest(14, 20_001));
    Some((restored_by_all(&last).0, last, ended.log))
}

#[test]
fn two_hosts_die_at_once_rs_survives() {
    let Some((version, last, _)) = two_hosts_die_at_once("rs(2,2)") else { return };
    assert_eq!(version, 7);
    check_counters(&last, |rank| (2..6).contains(&rank));
}

#[test]
fn two_hosts_die_at_once_partner_2_survives() {
    let Some((version, last, _)) = two_hosts_die_at_once("partner(2)") else { return };
    assert_eq!(version, 7);
    check_counters(&last, |rank| (2..6).contains(&rank));
}

#[test]
fn two_hosts_die_at_once_xor_says_that_it_cannot_and_falls_back_to_global() {
    let Some((version, last, log)) = two_hosts_die_at_once("xor(4)") else { return };
    assert_eq!(version, 1);
    let line = log.lines().find(|line| line.contains("event=passed-over version 7 of generation 1"));
    assert!(line.is_some_and(|line| line.contains("the shards of ranks 2-5,")), "{line:?}\n{log}");
    for attempt in &last {
        assert!(attempt.restart_counter("restored_bytes.global") > 0);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// At the worst moments

/// When a host is killed: this many microseconds after rank 0 has written its n-th line with this start, in the running attempt.
#[derive(Clone, Debug)]
struct Moment {
    line: &'static str,
    times: u64,
    delay: Duration,
}

/// The moments of the kills, in turn: while a shard is captured, while copies and parity travel, and while the levels are committed.
fn moments(kills: u64, rng: &mut Rng) -> Vec<Moment> {
    // The phases are right after a capture, while copies and parity are on their way, and while the levels' verdicts are on their way to
    // the other ranks and the next version is captured.
    let phases = [("captured version=", 3000), ("captured version=", 80_000), ("committed version=", 20_000)];
    let moment = |kill: u64| {
        let (line, delay) = phases[kill as usize % phases.len()];
        Moment { line, times: 3 + rng.below(9), delay: Duration::from_micros(rng.below(delay)) }
    };
    (0..kills).map(moment).collect()
}

#[test]
fn hosts_die_during_capture_exchange_and_commit_and_an_older_or_the_same_version_leads_to_the_same_digest() {
    let Some(hosts) = Hosts::up(5) else { return };
    let kills =
        std::env::var("BIVOUAC_TEST_HOST_KILLS").map_or(3, |text| text.parse().expect("BIVOUAC_TEST_HOST_KILLS"));
    let mut rng = random();
    // Each rank has 3 MiB, so the exchange takes tens of milliseconds.
    let args = ["--versions", "60", "--wait", "node-loss", "--elements", "400001"];
    let mut job = protected(&hosts, "xor(4)");
    job.set("BIVOUAC_MEMORY_BUDGET", "256 MiB").set("BIVOUAC_JOB_BLOCK", "64 KiB");
    let restarts = (kills + 2).to_string();
    let mut run = job.supervise_worker("run", 5, &["--spares", "1", "--restarts", &restarts], &args);
    let mut generation = 0;
    let mut killed = 0;
    for moment in moments(kills, &mut rng) {
        // This is the attempt after the last kill; when the work is done, nothing is left to kill.
        let here = || {
            let last = job.attempts(0).pop()?;
            let at = last.generation().filter(|at| *at > generation)?;
            (last.all(moment.line).count() as u64 >= moment.times).then_some(at)
        };
        let mut at = None;
        while at.is_none() && run.is_running() {
            at = here();
            std::thread::sleep(Duration::from_micros(200));
        }
        let Some(at) = at else { break };
        std::thread::sleep(moment.delay);
        let seated: Vec<String> = job.seats();
        // The root's host is killed only sometimes, because its successor has to watch the old claim for some seconds.
        let victim = &seated[if rng.chance(1, 6) { 0 } else { 1 + rng.below(3) as usize }];
        println!("{victim} is killed in generation {at}: {moment:?}");
        hosts.strike(victim);
        killed += 1;
        generation = at;
        // The host comes back with an empty disk, and is a spare from then on.
        hosts.boot(victim);
    }
    run.finish();
    assert!(killed * 2 > kills, "the work was done after {killed} of {kills} kills: this tested too little");
    assert_eq!(job.digest(), calm_digest(60, 400_001));
    check_attempts(&job.generations());
}

fn a_host_dies_during_the_rebuild_of_an_earlier_loss(victim: &str) {
    let Some(hosts) = Hosts::up(6) else { return };
    // Each rank has 8 MiB, so loading takes long enough to be hit.
    let args = ["--versions", "10", "--hold", "6", "--wait", "node-loss", "--elements", "1000001"];
    let mut rng = random();
    let mut job = protected(&hosts, "rs(2,2)");
    job.set("BIVOUAC_MEMORY_BUDGET", "400 MiB").set("BIVOUAC_JOB_BLOCK", "64 KiB");
    let mut run = job.supervise_worker("run", 6, &["--spares", "2"], &args);
    run.wait_for_hold(&job, 6);
    job.go(6);
    hosts.strike("node2");
    let line = "opened generation=2";
    run.wait_until(line, || job.attempts(0).last().is_some_and(|attempt| attempt.all(line).next().is_some()));
    std::thread::sleep(Duration::from_micros(rng.below(40_000)));
    hosts.strike(victim);
    let ended = run.end();
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.log);
    let last = job.last_attempts();
    let (version, _, tiers) = restored_by_all(&last);
    println!("version {version} from {tiers:?}");
    assert!(version >= 5, "rs(2,2) survives two losses: version 5 was protected, {version} was restored");
    assert_eq!(job.digest(), calm_digest(10, 1_000_001));
    check_attempts(&job.generations());
}

#[test]
fn the_spare_dies_while_it_rebuilds_what_was_lost() {
    a_host_dies_during_the_rebuild_of_an_earlier_loss("node5");
}

#[test]
fn a_surviving_member_dies_during_the_rebuild_of_an_earlier_loss() {
    a_host_dies_during_the_rebuild_of_an_earlier_loss("node3");
}
