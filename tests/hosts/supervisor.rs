//! The supervisor's part: when it gives up and why, and what happens when the supervisor itself is lost.

use crate::bed::{FIRST_HOSTS, Hosts, Job, RANKS, Run, can, example, files};
use crate::checks::{calm_digest, protected, restored_by_all};
use crate::{digest, words};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Checks that the supervisor ended with this exit status, and returns its output.
fn stopped(run: Run, status: i32) -> String {
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(status), "{}\n{}", ended.out, ended.log);
    let line = ended.log.lines().rfind(|line| line.contains("  stopped: "));
    line.unwrap_or_else(|| panic!("it does not say why\n{}", ended.log)).to_owned()
}

#[test]
fn with_no_spare_and_too_few_nodes_it_stops_and_drain_saves_what_a_later_job_restarts_from() {
    let Some(hosts) = Hosts::up(4) else { return };
    let job = protected(&hosts, "partner(1)");
    let args = ["--versions", "12", "--hold", "8", "--wait", "node-loss"];
    let mut run = job.supervise_worker("run", 4, &["--min-nodes", "4"], &args);
    run.wait_for_hold(&job, 8);
    hosts.kill("node3");
    job.go(8);
    let why = stopped(run, 13);
    assert!(why.contains("too few nodes") && why.contains("bivouac drain"), "{why}");

    drain(&job, &["node1", "node2", "node4"]);
    // The allocation is given back, so everything that the nodes held is gone.
    for host in ["node1", "node2", "node4"] {
        hosts.kill(host);
    }
    FIRST_HOSTS.iter().for_each(|host| hosts.boot(host));
    job.start_worker("later", &FIRST_HOSTS, &args).finish();
    let last = job.last_attempts();
    let (version, _, tiers) = restored_by_all(&last);
    assert_eq!((version, tiers), (7, vec!["global".to_owned(); RANKS]));
    assert_eq!(job.digest(), calm_digest(12, 20_001));
}

/// Runs `bivouac drain` on all these hosts at once. It must succeed on each.
fn drain(job: &Job, on: &[&str]) {
    on_all(job, on, &[env!("CARGO_BIN_EXE_bivouac"), "drain", "--wait", "30s"]);
}

/// Runs a command on all these hosts at once. It must succeed on each.
fn on_all(job: &Job, on: &[&str], words: &[&str]) {
    let start = |host: &&str| {
        let mut command: Command = job.command_with("hosts.sh", &["exec", host]);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (host.to_string(), command.spawn().unwrap())
    };
    let children: Vec<_> = on.iter().map(start).collect();
    let outputs: Vec<(String, Output)> =
        children.into_iter().map(|(host, child)| (host, child.wait_with_output().unwrap())).collect();
    for (host, output) in &outputs {
        assert!(output.status.success(), "{words:?} on {host}: {outputs:#?}");
    }
}

/// `launch/slurm/epilog.sh`, as SLURM calls it on each node.
#[test]
fn the_epilog_saves_what_a_dead_job_left_in_memory_and_removes_it() {
    let Some(hosts) = Hosts::up(4) else { return };
    let mut job = protected(&hosts, "none");
    job.set("BIVOUAC_LOCAL_ENABLED", "false");
    let args = ["--versions", "12", "--hold", "8", "--wait", "process"];
    let mut run = job.start_worker("first", &FIRST_HOSTS, &args);
    run.wait_for_hold(&job, 8);
    for host in FIRST_HOSTS {
        // The launcher hears of the first deaths, and may end the other ranks itself.
        hosts.on(host, &["bash", "-c", "pkill -KILL damage-worker || true"]);
    }
    run.fail();
    let segments = |host: &str| {
        files(&hosts.memory(host)).iter().filter(|path| path.to_string_lossy().contains("/bivouac-")).count()
    };
    assert!(FIRST_HOSTS.iter().all(|host| segments(host) == 1), "there is nothing to save");

    let epilog = concat!(env!("WORKSPACE_ROOT"), "/launch/slurm/epilog.sh");
    let own = Path::new(env!("CARGO_BIN_EXE_bivouac")).parent().unwrap();
    let path = format!("PATH={}:{}", own.display(), std::env::var("PATH").unwrap());
    let global = format!("EPILOG_GLOBAL={}", job.global().display());
    // SLURM gives the epilog a bare environment.
    on_all(&job, &FIRST_HOSTS, &["env", "-i", &path, "SLURM_JOB_USER=root", &global, epilog]);
    assert!(FIRST_HOSTS.iter().all(|host| segments(host) == 0), "something was left in memory");
    job.go(8);
    job.start_worker("second", &FIRST_HOSTS, &args).finish();
    let last = job.last_attempts();
    let (version, _, tiers) = restored_by_all(&last);
    assert_eq!((version, tiers), (7, vec!["global".to_owned(); RANKS]));
}

#[test]
fn a_program_that_crashes_at_the_same_step_is_stopped_after_two_attempts_without_progress() {
    let Some(hosts) = Hosts::up(4) else { return };
    let job = protected(&hosts, "partner(1)");
    let program =
        [&example("heat2d")[..], "--grid", "96x96", "--steps", "300", "--every", "100", "--wait", "node-loss"];
    let run = job.supervise("run", 4, &["--restarts", "9"], &[&program[..], &["--die-at", "150:3"]].concat());
    let why = stopped(run, 12);
    assert!(why.contains("no progress"), "{why}");
    let records = job.records();
    // The first attempt committed version 100, and the others committed nothing newer.
    let decisions: Vec<_> = records.iter().map(|record| record["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions, ["restart", "restart", "no-progress"]);
    assert!(records.iter().all(|record| record["down"].as_object().unwrap().is_empty()), "{records:#?}");
}

#[test]
fn a_killed_supervisor_leaves_the_job_alone_and_the_next_one_takes_it_over() {
    let Some(hosts) = Hosts::up(5) else { return };
    let job = protected(&hosts, "partner(1)");
    let args = ["--versions", "16", "--hold", "6,10", "--wait", "node-loss"];
    let mut first = job.supervise_worker("first", 5, &["--spares", "1"], &args);
    first.wait_for_hold(&job, 6);
    hosts.on("head", &["kill", "-KILL", &job.supervisor_pid().to_string()]);
    first.fail();
    job.go(6);

    let mut second = job.supervise_worker("second", 5, &["--spares", "1"], &args);
    second.wait_for_hold(&job, 10);
    second.wait_for_log("  took-over: ");
    assert_eq!(job.generations().len(), 1, "the job was disturbed");
    // The new supervisor can do everything: it replaces a lost host.
    hosts.kill("node2");
    job.go(10);
    second.finish();
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (9, 1));
    assert_eq!(job.seats(), ["node1", "node5", "node3", "node4"]);
    assert_eq!(job.digest(), calm_digest(16, 20_001));
}

#[test]
fn a_cut_network_that_mpirun_does_not_notice_is_noticed_within_the_hang_time_out() {
    let Some(hosts) = Hosts::up(5) else { return };
    let program = crate::heat2d(&["--wait", "node-loss"]);
    let calm = Job::new(&hosts, "calm");
    let calm = calm.start("calm", &calm.mpirun(&FIRST_HOSTS, &words(&program))).finish();

    let mut job = protected(&hosts, "xor(4)");
    // With the default settings of TCP, nobody hears that a connection is silent before two hours are over.
    for variable in ["OMPI_MCA_oob_tcp_keepalive_time", "OMPI_MCA_oob_tcp_keepalive_intvl"] {
        job.set_launcher(variable, "7200");
    }
    // A disk to which other programs write much may take longer than the watchdog waits. Then there are more attempts, of the same kind.
    let often = ["--restarts", "20", "--fruitless", "20", "--backoff", "0"];
    let options = ["--spares", "1", "--hang-timeout", "8", "--grace", "2"];
    let mut run = job.supervise("run", 5, &[options.as_slice(), &often].concat(), &words(&program));
    run.wait_for_line("committed version=300 level=node-loss");
    hosts.cut("node4");
    let ended = run.end();
    assert!(ended.status.success(), "{}\n{}\n{}", ended.status, ended.out, ended.log);
    let records = job.records();
    let (last, hung) = records.split_last().unwrap();
    assert!(!hung.is_empty(), "{records:#?}");
    for record in hung {
        assert!(record["outcome"].as_str().unwrap().contains("watchdog"), "{records:#?}");
        assert_eq!(record["down"].as_object().unwrap().keys().collect::<Vec<_>>(), ["node4"]);
    }
    assert_eq!(last["decision"], "success");
    assert_eq!(last["hosts"], serde_json::json!(["node1:2", "node2:2", "node3:2", "node5:2"]));
    assert_eq!(digest(&ended.out), digest(&calm));
}

#[test]
fn one_of_four_hosts_dies_without_a_spare_and_a_global_tier_and_the_job_ends_on_three_with_the_same_digest() {
    let Some(hosts) = Hosts::up(4) else { return };
    let program = crate::heat2d(&["--wait", "node-loss"]);
    let calm = Job::new(&hosts, "calm");
    let calm = calm.start("calm", &calm.mpirun(&FIRST_HOSTS, &words(&program))).finish();

    let mut job = protected(&hosts, "partner(1)");
    job.set("BIVOUAC_GLOBAL_ENABLED", "false");
    let mut run = job.supervise("run", 4, &["--ranks", "2..8"], &words(&program));
    run.wait_for_line("committed version=300 level=node-loss");
    hosts.kill("node3");
    let ended = run.end();
    assert!(ended.status.success(), "{}\n{}\n{}", ended.status, ended.out, ended.log);
    let records = job.records();
    assert_eq!(records.iter().map(|record| record["ranks"].as_u64()).collect::<Vec<_>>(), [Some(8), Some(6)]);
    assert_eq!(records[1]["hosts"], serde_json::json!(["node1:2", "node2:2", "node4:2"]));
    let restored =
        ended.out.lines().find_map(|line| line.strip_prefix("restored version=")).expect("nothing was restored");
    let version: u64 = restored.split(' ').next().unwrap().parse().unwrap();
    assert!(version >= 300, "{restored}");
    assert_eq!(digest(&ended.out), digest(&calm));
}

#[test]
fn a_job_whose_checkpoints_are_bound_to_its_ranks_stops_without_a_spare_and_names_their_regions() {
    let Some(hosts) = Hosts::up(4) else { return };
    let job = protected(&hosts, "partner(1)");
    let args = ["--versions", "12", "--hold", "8", "--wait", "node-loss"];
    let mut run = job.supervise_worker("run", 4, &["--ranks", "2..8"], &args);
    run.wait_for_hold(&job, 8);
    hosts.kill("node3");
    job.go(8);
    let why = stopped(run, 13);
    for part in ["\"main\", \"bytes\"", "only by the 8 ranks", "room for 6", "bivouac drain"] {
        assert!(why.contains(part), "{part:?} is missing in {why}");
    }
    let records = job.records();
    assert_eq!((&records[0]["decision"], records.len()), (&"rank-bound".into(), 1));
}

fn tells_its_story(demo: &str, parts: &[&str]) {
    if !can("hosts.sh") {
        return;
    }
    let _alone = crate::common::one_at_a_time();
    let demo = Path::new(env!("WORKSPACE_ROOT")).join("launch").join(demo);
    let programs = Path::new(env!("CARGO_BIN_EXE_bivouac")).parent().unwrap();
    let mut command = Command::new(demo);
    let shown = tempfile::tempdir().unwrap();
    command.args(["--scheme", "partner(1)"]).env("DEMO_PROGRAMS", programs).env("DEMO_STEPS", "1200");
    command.env("DEMO_SHOWN", shown.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for part in
        [" is dead", "started the job again", "its first new step", "Both digests are equal"].iter().chain(parts)
    {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(shown.path().join("report-hosts.html").exists(), "no report was kept\n{text}");
}

#[test]
fn the_demo_tells_its_story() {
    let from = "from the memory of other hosts, 0 from the parallel file system";
    tells_its_story("demo-node-loss.sh", &[from, "The plate in version 1200"]);
}

#[test]
fn the_demo_of_fewer_ranks_tells_its_story() {
    tells_its_story("demo-shrink.sh", &["Ranks of the attempts: 8 6"]);
}
