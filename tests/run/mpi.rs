//! Tests with a real `mpirun` and a real supervisor: they run heat2d, and a program in C that starts MPI with `MPI_Init`.

use super::bed::{Bed, Ended, is_alive};
use super::common;
use super::common::limit::wait_until;
use super::interfaces;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A lock that keeps out other MPI jobs of the tests as long as it lives.
struct Turn(#[allow(dead_code)] std::fs::File);

fn turn() -> Turn {
    Turn(common::one_at_a_time())
}

/// The example, which Cargo builds with the tests: `target/<profile>/examples/heat2d`.
fn heat2d() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/heat2d");
    assert!(path.exists(), "{} is missing: cargo build --example heat2d", path.display());
    path
}

/// A supervisor on heat2d with four ranks. `None`, with a loud note, if there is no `mpirun`.
fn heat(bed: &Bed, options: &[&str], heat: &[&str]) -> Option<Command> {
    let launcher = common::mpirun_command(4)?;
    let mut command = bed.run_command(options);
    command.arg("--").arg(launcher.get_program()).args(launcher.get_args()).arg(heat2d());
    command.args(["--grid", "93x71", "--steps", "120", "--every", "10", "--dir"]).arg(bed.path()).args(heat);
    command.envs(launcher.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let name = bed.path().file_name().unwrap().to_str().unwrap();
    command.env("BIVOUAC_JOB_NAME", name).env("BIVOUAC_LOCAL_ALLOW_TMPFS", "true");
    command.env("BIVOUAC_MEMORY_DIRECTORY", bed.path().join("memory")).env("BIVOUAC_EXIT_CHECK_EVERY", "0");
    Some(command)
}

#[track_caller]
fn digest(ended: &Ended) -> String {
    let digests: Vec<&str> = ended.stdout.lines().filter_map(|line| line.strip_prefix("digest ")).collect();
    assert_eq!(digests.len(), 1, "{}\n{}", ended.stdout, ended.stderr);
    digests[0].to_owned()
}

/// The digest of an undisturbed run.
fn calm() -> Option<String> {
    let bed = Bed::new();
    let ended = bed.finish(heat(&bed, &[], &[])?).expect(0);
    assert_eq!(bed.decisions(), ["success"]);
    assert!(
        ["opened", "first-step", "committed", "closed"].iter().all(|event| bed.events().contains(&(*event).to_owned()))
    );
    Some(digest(&ended))
}

/// The process ids of the ranks, from the first lines of heat2d.
fn ranks(stdout: &str) -> Vec<i32> {
    let started = stdout.lines().rfind(|line| line.starts_with("started ")).expect("it has started");
    let pids = started.rsplit_once("pids=").expect("it names its processes").1;
    pids.split(',').map(|pid| pid.parse().expect("a number")).collect()
}

#[test]
fn a_report_of_three_failures_agrees_with_what_was_logged() {
    let _turn = turn();
    let bed = Bed::new();
    let options = ["--pause", "20000", "--wait", "system"];
    let Some(mut command) = heat(&bed, &["--restarts", "5"], &options) else { return };
    let events = bed.path().join("events");
    command.env("BIVOUAC_EVENTS_DIRECTORY", &events);
    let mut supervisor = bed.start(command);
    for (attempt, version) in [30, 60, 90].into_iter().enumerate() {
        supervisor.wait_for_output(&format!("committed version={version} level=system"));
        let started = || supervisor.stdout().lines().filter(|line| line.starts_with("started ")).count();
        wait_until("this attempt has started", || started() > attempt);
        kill(Pid::from_raw(ranks(&supervisor.stdout())[attempt]), Signal::SIGKILL).unwrap();
    }
    supervisor.wait().expect(0);
    let mut command = bed.bivouac();
    command.arg("report").arg(bed.run_directory()).arg(&events).args(["--json", "-o", "page.html"]);
    let reported = bed.finish(command).expect(0);
    let document: Value = serde_json::from_str(&reported.stdout).expect(&reported.stderr);
    let group = &document["groups"][0];
    let (runs, attempts) = (group["runs"].as_array().unwrap(), bed.attempts());
    assert_eq!((runs.len(), attempts.len(), &group["told"]), (4, 4, &Value::from(4)));
    let number = |value: &Value| value.as_f64().expect("a number");

    // Each attempt must be as the supervisor recorded it.
    for (at, (run, attempt)) in runs.iter().zip(&attempts).enumerate() {
        assert_eq!(run["ending"], if at < 3 { "died" } else { "closed" });
        assert_eq!((&run["run"], &run["outcome"]), (&attempt["generations"]["world"], &attempt["outcome"]));
        assert!(at == 3 || run["ended"] == attempt["ended"], "{run}");
        let commits = run["commits"].as_array().unwrap();
        for level in attempt["committed"]["world"].as_array().unwrap() {
            let known = commits.iter().filter(|commit| commit["level"] == level["level"]).count() as u64;
            let told = level["committed"].as_u64().unwrap();
            // A root that dies may have reported a commit in one of the two places and not yet in the other.
            assert!(known == told || (at < 3 && known > told), "{level} in {commits:?}");
        }
        assert!(run["refused"].as_array().unwrap().is_empty());
    }

    // The version that each run restored must agree with the program's log. Its cost is checked as well.
    let restored: Vec<Value> =
        bed.lines("timeline.jsonl").into_iter().filter(|line| line["event"] == "restored").collect();
    assert_eq!(restored.len(), 3);
    for (at, (run, line)) in runs[1..].iter().zip(&restored).enumerate() {
        let version = &run["restored"]["version"];
        assert!(line["text"].as_str().unwrap().contains(&format!("heat version {version}")), "{version}: {line}");
        let before = &runs[at];
        let capture =
            before["captures"].as_array().unwrap().iter().find(|capture| capture["version"] == *version).unwrap();
        let lost = number(&before["ended"]) - number(&capture["unix"]);
        assert!((number(&before["rework"]) - lost).abs() < 1e-6, "{lost}: {before}");
    }

    // Ranks that were killed lose the events of their last second; those of the last attempt were not killed.
    for capture in runs[3]["captures"].as_array().unwrap() {
        assert!(capture["bytes"].as_u64().unwrap() >= 93 * 71 * 8, "{capture}");
    }

    // The bytes of the last session must agree with its status.
    let status: Value =
        serde_json::from_str(&std::fs::read_to_string(bed.run_directory().join("status-world.json")).unwrap()).unwrap();
    let lines = std::fs::read_to_string(events.join("events-world-0.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (level, tier) in [("node-reboot", "local"), ("system", "global")] {
        let of_tier =
            |line: &&Value| line["event"] == "written" && line["tier"] == tier && line["run"] == status["generation"];
        let written: u64 = lines.iter().filter(of_tier).map(|line| line["bytes"].as_u64().unwrap()).sum();
        let told = status["levels"].as_array().unwrap().iter().find(|it| it["level"] == level).unwrap();
        assert_eq!(told["root_bytes"], written, "{tier}");
    }
    let all = group["tiers"].as_array().unwrap();
    let of_all = |tier: &str| all.iter().find(|it| it["tier"] == tier).unwrap()["bytes"].as_u64().unwrap();
    let written: u64 = (0..4)
        .flat_map(|rank| {
            let text = std::fs::read_to_string(events.join(format!("events-world-{rank}.jsonl"))).unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            lines.into_iter().filter(|line| line["event"] == "written" && line["tier"] == "global")
        })
        .map(|line| line["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(of_all("global"), written);

    // The parts of the time add up to the whole.
    let account = &group["account"];
    let parts = ["work", "checkpoints", "rework", "recovering", "down"].map(|part| number(&account[part]));
    assert!(
        (parts.iter().sum::<f64>() - number(&account["total"])).abs() < 1e-6 && parts.iter().all(|part| *part >= 0.0)
    );
    assert!((number(&group["ended"]) - number(&group["began"]) - number(&account["total"])).abs() < 1e-6);
    assert!((number(&group["began"]) - number(&attempts[0]["began"])).abs() < 1e-6);
    let page = std::fs::read_to_string(bed.path().join("page.html")).unwrap();
    assert!(page.contains("3 failures") && page.contains("4 runs"), "{page}");
    if let Some(keep) = std::env::var_os("BIVOUAC_TEST_KEEP_REPORT") {
        std::fs::write(keep, page).unwrap();
    }
}

#[test]
fn a_rank_that_is_killed_costs_a_restart_and_not_the_result() {
    let _turn = turn();
    let Some(calm) = calm() else { return };
    let bed = Bed::new();
    // The run is slow enough to be caught in the middle, and it waits for the level so that there is something to restore.
    let Some(command) = heat(&bed, &[], &["--pause", "30000", "--wait", "system"]) else { return };
    let mut supervisor = bed.start(command);
    supervisor.wait_for_output("committed version=30 level=system");
    kill(Pid::from_raw(ranks(&supervisor.stdout())[2]), Signal::SIGKILL).unwrap();
    let ended = supervisor.wait().expect(0).says(&["all ranks elected and loaded heat version"]);
    assert_eq!(digest(&ended), calm);
    assert_eq!(bed.decisions(), ["restart", "success"]);
    assert!(bed.attempts()[1]["generations"]["world"].as_u64() > bed.attempts()[0]["generations"]["world"].as_u64());
}

#[test]
fn a_program_that_crashes_at_the_same_step_every_time_is_stopped_with_the_reason() {
    let _turn = turn();
    let bed = Bed::new();
    let Some(command) = heat(&bed, &["--restarts", "9"], &["--wait", "system", "--die-at", "75:1"]) else { return };
    bed.finish(command).expect(12).says(&["no progress: 2 attempts in a row"]);
    assert_eq!(bed.decisions(), ["restart", "restart", "no-progress"]);
}

#[test]
fn a_job_that_hangs_is_ended_by_the_watchdog_and_started_again() {
    let _turn = turn();
    let Some(calm) = calm() else { return };
    let bed = Bed::new();
    // A disk to which other programs write much may take longer than the watchdog waits; then there are more attempts.
    let options = ["--hang-timeout", "10s", "--grace", "5s", "--restarts", "20", "--fruitless", "20"];
    let Some(command) = heat(&bed, &options, &["--pause", "30000", "--wait", "system"]) else { return };
    let mut supervisor = bed.start(command);
    supervisor.wait_for_output("committed version=30 level=system");
    let stopped = ranks(&supervisor.stdout());
    kill(Pid::from_raw(stopped[1]), Signal::SIGSTOP).unwrap();
    let ended = supervisor.wait().expect(0).says(&["no step and no checkpoint for too long"]);
    assert_eq!(digest(&ended), calm);
    let decisions = bed.decisions();
    let (last, hung) = decisions.split_last().expect("attempts");
    assert!(
        last == "success" && !hung.is_empty() && hung.iter().all(|decision| decision == "restart"),
        "{decisions:?}"
    );
    wait_until("the ranks of the first attempt are gone", || !stopped.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_job_that_hangs_at_the_same_step_every_time_ends_with_the_status_of_a_hang() {
    let _turn = turn();
    let bed = Bed::new();
    let options = ["--hang-timeout", "4s", "--grace", "5s"];
    let Some(command) = heat(&bed, &options, &["--wait", "system", "--hang-at", "25:3"]) else { return };
    bed.finish(command).expect(14);
    assert_eq!(bed.decisions().last().map(String::as_str), Some("no-progress"));
}

#[test]
fn sigterm_brings_a_last_checkpoint_and_the_next_start_goes_on_from_it() {
    let _turn = turn();
    let Some(calm) = calm() else { return };
    let bed = Bed::new();
    let Some(command) = heat(&bed, &[], &["--pause", "50000"]) else { return };
    let mut supervisor = bed.start(command);
    supervisor.wait_for_output("committed version=20 ");
    supervisor.signal(Signal::SIGTERM);
    let ended =
        supervisor.wait().expect(10).says(&["SIGTERM: the program is asked for a last checkpoint", "halted: now"]);
    let stopped = ended.stdout.lines().find_map(|line| line.strip_prefix("stopped step=")).expect(&ended.stdout);
    let step = stopped.split(' ').next().unwrap().to_owned();
    let Some(command) = heat(&bed, &[], &[]) else { return };
    let ended = bed.finish(command).expect(0);
    assert!(ended.stdout.contains(&format!("restored version={step} ")), "{}", ended.stdout);
    assert_eq!(digest(&ended), calm);
}

#[test]
fn a_job_that_is_resized_twice_ends_with_the_digest_of_the_undisturbed_run() {
    let _turn = turn();
    let Some(calm) = calm() else { return };
    let bed = Bed::new();
    let Some(command) = heat(&bed, &["--ranks", "2..4", "--restarts", "0"], &["--pause", "30000"]) else { return };
    let mut supervisor = bed.start(command);
    for (ranks, version) in [("2", 10), ("3", 50)] {
        supervisor.wait_for_output(&format!("committed version={version} "));
        bed.halt(&["--resize", ranks]).expect(0);
        supervisor.wait_for_output(&format!("started ranks={ranks} "));
    }
    let ended = supervisor.wait().expect(0);
    assert_eq!(digest(&ended), calm);
    assert_eq!(bed.decisions(), ["resized", "resized", "success"]);
    let started: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("started ")).collect();
    let restored = ended.stdout.lines().filter(|line| line.starts_with("restored version=")).count();
    assert!(restored == 2 && started.len() == 3 && started[0].starts_with("started ranks=4 "), "{}", ended.stdout);
}

#[test]
fn a_halt_after_two_checkpoints_stops_the_job_after_two_more() {
    let _turn = turn();
    let bed = Bed::new();
    let Some(command) = heat(&bed, &[], &["--pause", "50000", "--wait", "system"]) else { return };
    let mut supervisor = bed.start(command);
    supervisor.wait_for_output("committed version=10 level=system");
    bed.halt(&["--after", "2"]).expect(0);
    let ended = supervisor.wait().expect(10).says(&["halted: after 2 more checkpoints"]);
    let stopped = ended.stdout.lines().find_map(|line| line.strip_prefix("stopped step=")).expect(&ended.stdout);
    let step: u64 = stopped.split(' ').next().unwrap().parse().unwrap();
    assert!((30..120).contains(&step), "{stopped}");
}

#[test]
fn the_death_of_the_supervisor_does_not_touch_the_job_and_a_new_one_takes_over() {
    let _turn = turn();
    let Some(calm) = calm() else { return };
    let bed = Bed::new();
    let arguments = ["--pause", "40000", "--wait", "system"];
    let Some(command) = heat(&bed, &[], &arguments) else { return };
    let mut first = bed.start(command);
    first.wait_for_output("committed version=20 level=system");
    first.kill();
    let Some(command) = heat(&bed, &[], &arguments) else { return };
    let second = bed.start(command);
    wait_until("the job is taken over", || bed.events().contains(&"took-over".to_owned()));
    second.wait().expect(0);
    // The job that the first supervisor started printed all of this.
    let stdout = first.stdout();
    assert!(stdout.contains(&format!("digest {calm}")) && stdout.matches("started ").count() == 1, "{stdout}");
    assert_eq!(bed.decisions(), ["success"]);
}

/// The program `hydro.c` runs on four ranks and is killed over and over; node memory is lost each time. The program calls only
/// `bvk_checkpoint` of Bivouac. Whatever it had time to write is committed and restored.
#[test]
fn a_program_under_mpi_init_that_only_takes_checkpoints_goes_on_from_the_last_one_each_time() {
    let _turn = turn();
    let kills: u64 = std::env::var("BIVOUAC_TEST_KILLS").map_or(3, |text| text.parse().expect("BIVOUAC_TEST_KILLS"));
    let cycles = (50 * (kills + 2)).to_string();
    let bed = Bed::new();
    let Some(launcher) = common::mpirun_command(4) else { return };
    let source = interfaces::root().join("tests/programs/c/hydro.c");
    let program = interfaces::compile(bed.path(), "hydro", &[source], &[]);
    let start = bed.script("start", "#!/bin/sh\nrm -rf \"$BIVOUAC_MEMORY_DIRECTORY\"/*\nexec \"$@\"\n");
    let command = |store: &str, options: &[&str], folder: &[&str]| {
        let mut command = bed.run_command(options);
        command.arg("--").arg(&start).arg(launcher.get_program()).args(launcher.get_args()).arg(&program);
        command.args(["2000", &cycles, "50"]).args(folder);
        command.envs(launcher.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("BIVOUAC_JOB_NAME", store).env("BIVOUAC_LOCAL_ENABLED", "false");
        command.env("BIVOUAC_MEMORY_DIRECTORY", bed.path().join("memory"));
        command.env("BIVOUAC_GLOBAL_DIRECTORY", bed.path().join(store));
        command.env("LD_LIBRARY_PATH", interfaces::with_soname(bed.path()));
        command
    };
    let calm = digest(&bed.finish(command("calm", &[], &[])).expect(0));

    let folder = bed.path().to_str().expect("UTF-8");
    let mut supervisor = bed.start(command("killed", &["--restarts", &kills.to_string()], &[folder]));
    for turn in 1..=kills {
        let version = 50 * turn;
        supervisor.wait_for_output(&format!("taken {version}\n"));
        wait_until(&format!("version {version} is at level system"), || newest_at_system(&bed) >= version);
        let ranks = ranks(&supervisor.stdout());
        kill(Pid::from_raw(ranks[turn as usize % ranks.len()]), Signal::SIGKILL).unwrap();
        supervisor.wait_for_output(&format!("restored {version}\n"));
    }
    std::fs::write(bed.path().join("go"), "").unwrap();
    let ended = supervisor.wait().expect(0);
    assert_eq!(digest(&ended), calm);
    assert_eq!(bed.decisions().len() as u64, 1 + kills + 1, "{:?}", bed.decisions());
}

/// The newest version that is committed at level system, according to the run directory.
fn newest_at_system(bed: &Bed) -> u64 {
    let text = std::fs::read_to_string(bed.run_directory().join("status-world.json")).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let mut levels = status["levels"].as_array().into_iter().flatten();
    levels.find(|level| level["level"] == "system").map_or(0, |level| level["version"].as_u64().unwrap())
}
