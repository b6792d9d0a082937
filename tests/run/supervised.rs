//! The supervisor on scripts.

use super::bed::{Bed, is_alive};
use super::common::limit::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

#[test]
fn a_program_that_succeeds_runs_once() {
    let bed = Bed::with("echo hello");
    let ended =
        bed.finish(bed.job(&[])).expect(0).says(&["launched: process", "stopped: the program ended successfully"]);
    assert_eq!(ended.stdout, "hello\n");
    assert_eq!(bed.starts(), ["one two"]);
    assert_eq!(bed.decisions(), ["success"]);
    assert_eq!(bed.events(), ["launched", "ended", "stopped"]);
    let attempt = &bed.attempts()[0];
    assert_eq!((&attempt["attempt"], &attempt["exit_status"]), (&Value::from(1), &Value::from(0)));
    assert!(attempt["began"].as_f64() <= attempt["ended"].as_f64());
}

#[test]
fn a_crash_loop_is_stopped_after_two_attempts_without_progress() {
    // The first attempt reaches version 70, and the others restore that version and die before the next one.
    let bed = Bed::with("case $attempt in 1) status 70 9 false ;; *) status 0 9 false ;; esac; exit 3");
    bed.finish(bed.job(&["--restarts", "9"])).expect(12).says(&["no progress: 2 attempts in a row", "exit status 3"]);
    assert_eq!(bed.decisions(), ["restart", "restart", "no-progress"]);
    let attempts = bed.attempts();
    assert_eq!(attempts[0]["committed"]["world"][0]["version"], 70);
    assert_eq!(attempts[1]["committed_before"]["world"][0]["version"], 70);
    assert_eq!(attempts[1]["committed"]["world"], Value::Array(Vec::new()));
    assert_eq!(attempts[2]["generations"]["world"], 3);
}

#[test]
fn restarts_are_used_up_in_the_end_although_each_attempt_gets_further() {
    let bed = Bed::with("status $((attempt * 10)) 9 false; exit 3");
    bed.finish(bed.job(&["--restarts", "2"])).expect(11).says(&["all restarts are used up (exit status 3)"]);
    assert_eq!(bed.decisions(), ["restart", "restart", "exhausted"]);
}

#[test]
fn ranks_under_srun_find_the_run_directory_also_after_sbatch_export_none() {
    let bed = Bed::with("true");
    let mut command = bed.run_command(&["--launcher", "srun"]);
    command.arg("--").arg(bed.path().join("job")).args(["-n", "2", "program"]).env("SLURM_EXPORT_ENV", "NONE");
    bed.finish(command).expect(0);
    assert_eq!(bed.starts(), ["--export=BIVOUAC_RUN_DIRECTORY -n 2 program"]);
}

/// The script plays mpirun in an allocation of one other node, 127.0.0.2. SLURM shows this configuration, and neither a remote shell nor a
/// job step can reach the node.
fn on_another_node(bed: &Bed, config: &str, options: &[&str]) -> Command {
    bed.script("scontrol", &format!("#!/bin/sh\necho '{config}'\n"));
    for name in ["srun", "ssh"] {
        bed.script(name, "#!/bin/sh\nexit 1\n");
    }
    let mut command = bed.run_command(&["--launcher", "openmpi"]);
    command.args(options).arg("--").arg(bed.path().join("job")).args(["-n", "2", "program"]);
    command.env("PATH", bed.search_path()).env("SLURM_JOB_ID", "42").env("SLURM_JOB_END_TIME", "4000000000");
    command.env("SLURM_JOB_NODELIST", "127.0.0.2").env("SLURM_TASKS_PER_NODE", "2");
    command
}

#[test]
fn slurmd_is_asked_at_the_port_that_slurm_tells() {
    let slurmd = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = slurmd.local_addr().unwrap().port();
    let bed = Bed::with("true");
    bed.finish(on_another_node(&bed, &format!("SlurmdPort = {port}"), &[])).expect(0);
    drop(slurmd);
    bed.finish(on_another_node(&bed, &format!("SlurmdPort = {port}"), &[])).expect(13).says(&["job step"]);
}

#[test]
fn hosts_that_are_given_are_asked_by_slurm_if_they_are_nodes_of_the_allocation() {
    let slurmd = TcpListener::bind("127.0.0.2:0").unwrap();
    let config = format!("SlurmdPort = {}", slurmd.local_addr().unwrap().port());
    let bed = Bed::with("true");
    fs::write(bed.path().join("hosts.txt"), "127.0.0.2 slots=2\n").unwrap();
    for options in [["--hosts", "127.0.0.2:2"], ["--hostfile", "hosts.txt"]] {
        bed.finish(on_another_node(&bed, &config, &options)).expect(0);
    }
    bed.finish(on_another_node(&bed, &config, &["--hosts", "127.0.0.2,127.0.0.3"])).expect(13).says(&["ssh"]);
}

#[test]
fn a_run_directory_that_vanishes_costs_neither_restarts_nor_success() {
    let bed = Bed::with("rm -r \"$BIVOUAC_RUN_DIRECTORY\"; [ $attempt = 2 ]");
    let ended = bed.finish(bed.job(&[])).expect(0);
    ended.says(&["exit status 1", "would not find the job", "stopped: the program ended successfully"]);
    assert_eq!(bed.starts().len(), 2);
}

#[test]
fn a_later_attempt_may_take_over_what_the_ones_before_have_claimed() {
    let bed = Bed::with("echo ${BIVOUAC_JOB_TAKE_OVER:-unset} >> take; status $attempt 1 false; [ $attempt = 2 ]");
    bed.finish(bed.job(&[])).expect(0);
    assert_eq!(fs::read_to_string(bed.path().join("take")).unwrap(), "unset\ntrue\n");
}

#[test]
fn the_claim_of_a_run_that_this_one_has_not_started_is_respected() {
    // No attempt opens a session, perhaps because somebody else's run prevents it.
    let bed = Bed::with("echo ${BIVOUAC_JOB_TAKE_OVER:-unset} >> take; exit 1");
    bed.finish(bed.job(&[])).expect(12);
    assert_eq!(fs::read_to_string(bed.path().join("take")).unwrap(), "unset\nunset\n");
}

#[test]
fn what_is_said_about_affinity_reaches_every_attempt() {
    let bed = Bed::with("echo $BIVOUAC_AFFINITY_MODE $BIVOUAC_AFFINITY_CPUS >> said; [ $attempt = 2 ]");
    bed.finish(bed.job(&["--affinity", "threads", "--affinity-cpus", "0-1,3"])).expect(0);
    assert_eq!(fs::read_to_string(bed.path().join("said")).unwrap(), "threads 0-1,3\nthreads 0-1,3\n");
    bed.finish(bed.job(&["--affinity", "most"])).expect(2);
    bed.finish(bed.job(&["--affinity-cpus", "3-1"])).expect(2);
}

#[test]
fn a_spare_takes_the_place_of_a_host_that_was_lost() {
    let bed = Bed::with("status $attempt 1 false; if [ $attempt = 1 ]; then touch down/b; exit 205; fi");
    let ended = bed.finish(bed.placed(&["--hosts", "a:2,b:2,c:2", "--spares", "1"]));
    ended.expect(0).says(&["no answer from b", "lost b", "on a:2, c:2"]);
    let exported = "-x BIVOUAC_RUN_DIRECTORY -x BIVOUAC_JOB_TAKE_OVER";
    assert_eq!(
        bed.starts(),
        [
            "-x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 4 program".to_owned(),
            format!("{exported} --host a:2,c:2 -n 4 program")
        ]
    );
    let attempts = bed.attempts();
    assert_eq!(attempts[0]["hosts"], serde_json::json!(["a:2", "b:2"]));
    assert_eq!(attempts[0]["spares"], serde_json::json!(["c:2"]));
    assert!(attempts[0]["down"]["b"].is_string(), "{}", attempts[0]);
    assert_eq!(bed.events()[..5], ["probed", "launched", "opened", "committed", "ended"].map(str::to_owned));
}

#[test]
fn a_host_that_comes_back_is_a_spare_again() {
    let bed = Bed::with(
        "status $attempt 1 false
         case $attempt in 1) touch down/b; exit 1 ;; 2) rm down/b; touch down/c; exit 1 ;; esac",
    );
    bed.finish(bed.placed(&["--hosts", "a:2,b:2,c:2", "--spares", "1"])).expect(0);
    assert!(bed.starts()[2].contains("--host a:2,b:2 "), "{:?}", bed.starts());
}

#[test]
fn too_few_nodes_stop_the_run_before_and_after_it_started() {
    let bed = Bed::with("status $attempt 1 false; touch down/b; exit 1");
    let placed = bed.placed(&["--hosts", "a:2,b:2"]);
    bed.finish(placed).expect(13).says(&["too few nodes", "a:2", "room for 2 of 4 ranks", "bivouac drain"]);
    assert_eq!(bed.decisions(), ["too-few-nodes"]);
    bed.finish(bed.placed(&["--hosts", "a:2,b:2"])).expect(13);
    assert_eq!(bed.starts().len(), 1, "b was down before the second run began");
    bed.finish(bed.placed(&["--hosts", "a:4,b:4", "--min-nodes", "2"])).expect(13).says(&["at least 2 are needed"]);
}

/// When it is first asked, a host is silent for longer than it may be.
#[test]
fn a_host_without_which_the_job_cannot_go_on_is_asked_once_more() {
    let bed = Bed::with("exit 0");
    for (hosts, starts) in [("a:2,b:2", 1), ("a:4,b:4", 2)] {
        let asked = bed.path().join("asked");
        let probe = format!("test {{host}} = a || if mkdir {} 2> /dev/null; then sleep 1000; fi", asked.display());
        let mut command = bed.run_command(&["--launcher", "openmpi", "--probe", &probe, "--probe-timeout", "1s"]);
        command.args(["--hosts", hosts]).arg("--").arg(bed.path().join("job")).args(["-n", "4", "program"]);
        bed.finish(command).expect(0);
        assert_eq!(bed.starts().len(), starts);
        fs::remove_dir(asked).expect("b was asked");
    }
    assert_eq!(
        bed.starts(),
        ["-x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 4 program", "-x BIVOUAC_RUN_DIRECTORY --host a:4 -n 4 program"],
        "where the others suffice it is not waited for"
    );
}

#[test]
fn a_silent_host_is_not_asked_again_when_nothing_is_to_be_started_any_more() {
    let bed = Bed::with("touch down/b; exit 1");
    for (restarts, asked) in [("1", 2), ("0", 1)] {
        let mut command = bed.placed(&["--hosts", "a:2,b:2", "--restarts", restarts, "--fruitless", "9"]);
        command.current_dir(bed.path());
        bed.finish(command).expect(if restarts == "0" { 11 } else { 13 });
        let probes = bed.lines("timeline.jsonl");
        let probes = probes.iter().filter(|line| line["event"] == "probed" && line["attempt"] == 1).count();
        assert_eq!(probes, asked, "restarts: {restarts}");
        fs::remove_file(bed.path().join("down/b")).expect("it was silent");
        fs::remove_dir_all(bed.run_directory()).expect("ours");
    }
}

#[test]
fn hosts_come_from_the_command_line_of_the_launcher_or_from_slurm() {
    let bed = Bed::with("true");
    fs::create_dir(bed.path().join("down")).unwrap();
    fs::write(bed.path().join("down/n2"), "").unwrap();
    let probe = format!("test ! -e {}/down/{{host}}", bed.path().display());
    let mut own = bed.run_command(&["--launcher", "openmpi", "--probe", &probe, "--spares", "1"]);
    own.arg("--").arg(bed.path().join("job")).args(["--host", "n1:2,n2:2,n3:2,n4:2", "-np", "4", "program"]);
    // The ranks would fit without n3, but three hosts were requested.
    bed.finish(own).expect(0);
    let mut slurm = bed.placed(&["--spares", "1", "--exclude", "n4"]);
    slurm.env("SLURM_JOB_ID", "42").env("SLURM_JOB_NODELIST", "n[1-4]").env("SLURM_TASKS_PER_NODE", "2(x4)");
    slurm.env("SLURM_JOB_END_TIME", "4000000000");
    bed.finish(slurm).expect(0);
    assert_eq!(
        bed.starts(),
        [
            "-x BIVOUAC_RUN_DIRECTORY --host n1:2,n4:2,n3:2 -np 4 program",
            "-x BIVOUAC_RUN_DIRECTORY --host n1:2,n3:2 -n 4 program"
        ]
    );
}

/// SLURM's PMIx plugin puts the number of nodes of a step into the job's variable.
#[test]
fn a_step_is_told_the_nodes_it_has_and_no_others() {
    let bed = Bed::with("echo \"$SLURM_JOB_NODELIST\" > nodes");
    fs::create_dir(bed.path().join("down")).unwrap();
    fs::write(bed.path().join("down/n2"), "").unwrap();
    let probe = format!("test ! -e {}/down/{{host}}", bed.path().display());
    for (alive, nodes) in [(false, "n1,n3,n4\n"), (true, "n1,n2,n4\n")] {
        if alive {
            fs::rename(bed.path().join("down/n2"), bed.path().join("down/n3")).unwrap();
        }
        let mut command = bed.run_command(&["--launcher", "srun", "--probe", &probe, "--spares", "1"]);
        command.env("SLURM_JOB_ID", "42").env("SLURM_JOB_NODELIST", "n[1-4]").env("SLURM_TASKS_PER_NODE", "2(x4)");
        command.env("SLURM_JOB_END_TIME", "4000000000");
        command.arg("--").arg(bed.path().join("job")).args(["-n", "6", "program"]);
        bed.finish(command).expect(0);
        assert_eq!(fs::read_to_string(bed.path().join("nodes")).unwrap(), nodes);
    }
}

#[test]
fn the_watchdog_ends_an_attempt_that_never_opens_a_session() {
    // The other hosts have done their work when the time-out expires, however slow the machine is.
    let bed = Bed::with("exec sleep 1000");
    bed.finish(bed.job(&["--start-timeout", "1s", "--grace", "1s"])).expect(14).says(&["it never opened a session"]);
    assert_eq!(bed.decisions(), ["restart", "no-progress"]);
    assert!(!is_alive(bed.job_pid()));
}

#[test]
fn the_watchdog_ends_an_attempt_that_does_not_move_even_if_it_ignores_term() {
    let bed = Bed::with(
        "[ $attempt = 2 ] && exit 0
         trap '' TERM
         status 5 1 false
         while true; do sleep 1; done",
    );
    bed.finish(bed.job(&["--hang-timeout", "3s", "--grace", "1s"]))
        .expect(0)
        .says(&["no step", "1 s after TERM: KILL"]);
    assert_eq!(bed.decisions(), ["restart", "success"]);
    assert_eq!(bed.attempts()[0]["outcome"], "ended by the watchdog: no step and no checkpoint for too long");
}

/// srun ends its step when it receives TERM. If it is killed or stopped first, it leaves the ranks where they are.
#[test]
fn srun_gets_the_time_to_end_its_step() {
    let bed = Bed::with("trap 'echo ended >> step; exit 1' TERM; echo ready > ready; kill -STOP $$; exit 9");
    let mut command = bed.run_command(&["--launcher", "srun", "--restarts", "0", "--grace", "0"]);
    command.arg("--").arg(bed.path().join("job")).args(["-n", "2", "program"]);
    let supervisor = bed.start(command);
    bed.wait_for_file("ready");
    let pid = bed.job_pid();
    wait_until("it is stopped", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });
    supervisor.signal(Signal::SIGINT);
    supervisor.wait().expect(130);
    assert_eq!(fs::read_to_string(bed.path().join("step")).unwrap(), "ended\n");
}

#[test]
fn an_interrupt_ends_the_job_and_the_run() {
    let bed = Bed::with(
        "trap 'echo got-term; exit 5' TERM; status 5 1 false; echo ready > ready; while true; do sleep 0.05; done",
    );
    let supervisor = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    supervisor.signal(Signal::SIGINT);
    let ended = supervisor.wait().expect(130).says(&["SIGINT: TERM", "stopped: interrupted"]);
    assert_eq!(ended.stdout, "got-term\n");
    assert_eq!(bed.decisions(), ["interrupted"]);
}

#[test]
fn a_second_interrupt_kills() {
    let bed = Bed::with("trap '' TERM; echo ready > ready; while true; do sleep 0.05; done");
    let supervisor = bed.start(bed.job(&["--grace", "1h"]));
    bed.wait_for_file("ready");
    supervisor.signal(Signal::SIGINT);
    wait_until("the first interrupt is noticed", || bed.events().contains(&"interrupted".to_owned()));
    supervisor.signal(Signal::SIGINT);
    supervisor.wait().expect(130).says(&["SIGINT again: KILL"]);
    assert!(!is_alive(bed.job_pid()));
}

#[test]
fn signals_of_the_batch_system_ask_for_a_last_checkpoint() {
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGHUP] {
        let bed = Bed::with(
            "status 5 1 false; echo ready > ready
             while [ ! -e $BIVOUAC_RUN_DIRECTORY/halt.json ]; do sleep 0.05; done
             status 6 2 true asked; exit 0",
        );
        let supervisor = bed.start(bed.job(&[]));
        bed.wait_for_file("ready");
        supervisor.signal(signal);
        let ended = supervisor.wait().expect(10).says(&["asked for a last checkpoint", "stopped: halted: asked"]);
        assert!(ended.stderr.contains(signal.as_str()), "{}", ended.stderr);
        assert_eq!(bed.decisions(), ["halted"]);
        assert!(!bed.run_directory().join("halt.json").exists(), "the next start must not be stopped by it");
    }
}

#[test]
fn a_program_that_does_not_end_in_time_after_such_a_signal_is_ended() {
    let bed = Bed::with("trap 'exit 5' TERM; echo ready > ready; while true; do sleep 0.05; done");
    let supervisor = bed.start(bed.job(&["--reserve", "1s"]));
    bed.wait_for_file("ready");
    supervisor.signal(Signal::SIGTERM);
    supervisor.wait().expect(10).says(&["1 s after it was asked to: sending TERM", "halted: SIGTERM"]);
}

#[test]
fn usr2_is_handed_on() {
    let bed = Bed::with("trap 'echo got-usr2; exit 0' USR2; echo ready > ready; while true; do sleep 0.05; done");
    let supervisor = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    supervisor.signal(Signal::SIGUSR2);
    assert_eq!(supervisor.wait().expect(0).stdout, "got-usr2\n");
}

#[test]
fn a_signal_during_the_wait_before_a_restart_ends_the_run() {
    for (signal, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 10)] {
        let bed = Bed::with("exit 1");
        let supervisor = bed.start(bed.job(&["--backoff", "1h"]));
        wait_until("the wait has begun", || bed.events().contains(&"restarts".to_owned()));
        supervisor.signal(signal);
        supervisor.wait().expect(status);
        assert_eq!(bed.starts().len(), 1);
    }
}

#[test]
fn a_supervisor_that_is_killed_leaves_the_job_alone_and_a_new_one_takes_over() {
    let bed = Bed::with(
        "[ $attempt = 2 ] && { status 9 9 true; exit 0; }
         status 5 1 false; echo ready > ready
         while [ ! -e go ]; do sleep 0.05; done
         status 7 2 false; echo survived; exit 1",
    );
    let mut first = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    let pid = bed.job_pid();
    bed.finish(bed.job(&[])).expect(2).says(&["another supervisor is at work"]);
    first.kill();
    assert!(is_alive(pid), "the job died with its supervisor");
    let second = bed.start(bed.job(&[]));
    wait_until("the job is taken over", || bed.events().contains(&"took-over".to_owned()));
    assert_eq!(bed.starts().len(), 1, "it was started again although it lives");
    fs::write(bed.path().join("go"), "").unwrap();
    // Nobody can know the job's exit status. Its session was not closed, so this is a failure, and the job is launched again.
    second.wait().expect(0).says(&["waiting for it", "its exit status is not known"]);
    assert!(first.stdout().contains("survived"), "the job had lost its output");
    assert_eq!(bed.decisions(), ["restart", "success"]);
    let attempts = bed.attempts();
    assert_eq!((&attempts[0]["attempt"], &attempts[1]["attempt"]), (&Value::from(1), &Value::from(2)));
    assert_eq!(attempts[0]["run_began"], attempts[1]["run_began"]);
    assert_eq!(attempts[0]["committed"]["world"][0]["version"], 7);
}

#[test]
fn a_second_supervisor_is_kept_out_also_where_there_are_no_locks() {
    let bed = Bed::with("echo ready > ready; while [ ! -e go ]; do sleep 0.05; done");
    let first = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    // If the lock file is replaced, the lock on the old file does not stop a new supervisor.
    fs::remove_file(bed.run_directory().join("supervisor.lock")).unwrap();
    let said = format!("as process {}", first.pid());
    bed.finish(bed.job(&[])).expect(2).says(&["another supervisor is at work", &said]);
    fs::write(bed.path().join("go"), "").unwrap();
    first.wait().expect(0);
    bed.finish(bed.job(&[])).expect(0);
    assert_eq!(bed.starts().len(), 2);
}

#[test]
fn a_living_job_of_another_command_is_not_taken_over() {
    let bed = Bed::with("echo ready > ready; while [ ! -e go ]; do sleep 0.05; done; status 7 2 true");
    let mut first = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    first.kill();
    let mut other = bed.run_command(&[]);
    other.args(["--", "true", "three"]);
    bed.finish(other).expect(2).says(&["\"one\", \"two\"", "\"true\", \"three\"", "another --run-directory"]);
    // The job stays as it was, and a supervisor with the same command finds it.
    let second = bed.start(bed.job(&[]));
    wait_until("the job is taken over", || bed.events().contains(&"took-over".to_owned()));
    fs::write(bed.path().join("go"), "").unwrap();
    second.wait().expect(0);
    assert_eq!(bed.starts().len(), 1);
}

#[test]
fn a_job_that_was_taken_over_and_closes_its_sessions_has_succeeded() {
    let bed = Bed::with(
        "status 5 1 false; echo ready > ready
         while [ ! -e go ]; do sleep 0.05; done
         status 7 2 true",
    );
    let mut first = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    first.kill();
    let second = bed.start(bed.job(&[]));
    wait_until("the job is taken over", || bed.events().contains(&"took-over".to_owned()));
    fs::write(bed.path().join("go"), "").unwrap();
    second.wait().expect(0);
    assert_eq!(bed.starts().len(), 1);
}

#[test]
fn a_supervisor_after_one_whose_job_is_over_begins_anew() {
    let bed = Bed::with("if [ $attempt = 1 ]; then echo ready > ready; while [ ! -e go ]; do sleep 0.05; done; fi");
    let mut first = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    let pid = bed.job_pid();
    first.kill();
    fs::write(bed.path().join("go"), "").unwrap();
    wait_until("the job has ended", || !is_alive(pid));
    bed.finish(bed.job(&[])).expect(0);
    assert_eq!(bed.starts().len(), 2);
    assert!(!bed.events().contains(&"took-over".to_owned()));
}

// ------------------------------------------------------------------------------------------- halt conditions

/// A program that ends when its session would end: at once if it must halt.
const OBEDIENT: &str = "
    status 1 1 false; echo ready > ready
    n=1
    while [ ! -e stop ]; do n=$((n + 1)); status $n $n false; sleep 0.05; done
    status $n $n true 'told to'
";

#[test]
fn each_halt_condition_stops_the_run() {
    let later = "+1s";
    for options in [vec!["--now"], vec!["--after", "2"], vec!["--at", later], vec!["--before-end", "50s"]] {
        let bed = Bed::with(OBEDIENT);
        let supervisor = bed.start(bed.job(&["--end-time", "+51s", "--reserve", "0"]));
        bed.wait_for_file("ready");
        bed.halt(&options).expect(0);
        wait_until("the condition is noticed", || bed.events().contains(&"halting".to_owned()));
        fs::write(bed.path().join("stop"), "").unwrap();
        supervisor.wait().expect(10).says(&["a halt condition is met", "stopped: halted: told to", "--clear"]);
        // The condition remains, so that a chain of jobs ends.
        let options: &[&str] = if options[0] == "--before-end" { &["--end-time", "+50s"] } else { &[] };
        bed.finish(bed.job(options)).expect(10);
        assert_eq!(bed.starts().len(), 1);
        bed.halt(&["--clear"]).expect(0);
        bed.finish(bed.job(&[])).expect(10).says(&["told to"]);
        assert_eq!(bed.starts().len(), 2);
    }
}

#[test]
fn a_program_that_fails_after_it_was_to_halt_is_not_started_again() {
    let bed = Bed::with("status 5 1 false; echo ready > ready; while [ ! -e stop ]; do sleep 0.05; done; exit 1");
    let supervisor = bed.start(bed.job(&[]));
    bed.wait_for_file("ready");
    bed.halt(&["--now"]).expect(0);
    fs::write(bed.path().join("stop"), "").unwrap();
    supervisor.wait().expect(10);
    assert_eq!(bed.starts().len(), 1);
}

#[test]
fn the_end_of_the_allocation_is_a_condition_of_its_own_and_the_job_is_queued_again() {
    let bed =
        Bed::with("status 5 1 false; while [ ! -e stop ]; do sleep 0.05; done; status 6 2 true 'the end is near'");
    fake_scontrol(&bed, "JobState=RUNNING Reason=None PreemptTime=None");
    let mut command = bed.job(&["--end-time", "+33s", "--reserve", "30s", "--requeue"]);
    command.env("PATH", bed.search_path()).env("SLURM_JOB_ID", "42");
    let supervisor = bed.start(command);
    wait_until("the end is near", || bed.events().contains(&"halting".to_owned()));
    let listed = bed.halt(&["--list"]).expect(0);
    assert!(listed.stdout.contains("30 s before the end of the allocation"), "{}", listed.stdout);
    fs::write(bed.path().join("stop"), "").unwrap();
    supervisor.wait().expect(10).says(&["SLURM queues job 42 again"]);
    assert!(was_queued_again(&bed));
    assert!(bed.halt(&["--list"]).expect(0).stdout.contains("no halt condition is set"));
}

#[test]
fn a_halt_that_the_user_wants_does_not_queue_the_job_again() {
    let bed = Bed::with("true");
    fake_scontrol(&bed, "JobState=RUNNING Reason=None PreemptTime=None");
    fs::create_dir(bed.run_directory()).unwrap();
    bed.halt(&["--now"]).expect(0);
    let mut command = bed.job(&["--requeue"]);
    command.env("PATH", bed.search_path()).env("SLURM_JOB_ID", "42");
    bed.finish(command).expect(10);
    assert!(!was_queued_again(&bed));
}

/// A signal requests the last checkpoint, as slurmd and the batch script do. SLURM shows the job like this. Was the job queued again?
fn is_queued_again_after_a_signal(shown: &str) -> bool {
    let bed = Bed::with(
        "status 5 1 false; echo ready > ready
         while [ ! -e $BIVOUAC_RUN_DIRECTORY/halt.json ]; do sleep 0.05; done
         status 6 2 true asked",
    );
    fake_scontrol(&bed, shown);
    let mut command = bed.job(&["--requeue"]);
    command.env("PATH", bed.search_path()).env("SLURM_JOB_ID", "42");
    let supervisor = bed.start(command);
    bed.wait_for_file("ready");
    supervisor.signal(Signal::SIGTERM);
    let is_queued = supervisor.wait().expect(10).stderr.contains("SLURM queues job 42 again");
    assert_eq!(is_queued, was_queued_again(&bed));
    is_queued
}

#[test]
fn a_cancelled_job_is_not_queued_again() {
    assert!(is_queued_again_after_a_signal("JobState=RUNNING Reason=None PreemptTime=None"));
    assert!(!is_queued_again_after_a_signal("JobState=COMPLETING Reason=None PreemptTime=None"));
    assert!(is_queued_again_after_a_signal("JobState=COMPLETING Reason=None PreemptTime=2026-11-21T13:03:14"));
}

#[test]
fn the_run_directory_of_a_job_is_known_by_its_supervisor_or_its_sessions() {
    let unused = "no record of a supervisor";
    let bed = Bed::with("true");
    bed.finish(bed.job(&[])).expect(0);
    assert!(!bed.halt(&["--now"]).expect(0).stderr.contains(unused));
    fs::remove_file(bed.run_directory().join("supervisor.json")).unwrap();
    bed.halt(&["--now"]).expect(0).says(&[unused]);
    fs::write(bed.run_directory().join("status-world.json"), "of another version").unwrap();
    assert!(!bed.halt(&["--now"]).expect(0).stderr.contains(unused));
}

#[test]
fn conditions_are_set_listed_and_cleared() {
    let bed = Bed::with("true");
    bed.halt(&["--list"]).expect(2).says(&["is not a directory"]);
    fs::create_dir(bed.run_directory()).unwrap();
    bed.halt(&[]).expect(3).says(&["is not the run directory of a job"]);
    let unused = "no record of a supervisor";
    bed.halt(&["--after", "3", "--at", "2026-01-31T12:00:00Z"]).expect(0).says(&[unused]);
    let listed = bed.halt(&["--list"]).expect(0).stdout;
    assert!(
        listed.contains("after 3 more checkpoints (set by ") && listed.contains("at 2026-01-31T12:00:00Z"),
        "{listed}"
    );
    let json: Value = serde_json::from_str(&bed.halt(&["--json"]).expect(0).stdout).unwrap();
    assert_eq!(json["conditions"][0]["when"], "after");
    assert_eq!(json["conditions"][1]["unix"], 1_769_860_800u64);
    bed.halt(&["--before-end", "60"]).expect(2).says(&["the end of the allocation is not known"]);
    assert_eq!(bed.halt(&["--clear", "--now"]).expect(0).stdout.lines().count(), 1);
    fs::write(bed.run_directory().join("halt.json"), "garbage").unwrap();
    bed.halt(&["--now"]).expect(2).says(&["halt.json"]);
    bed.halt(&["--clear"]).expect(0);
    assert!(!bed.run_directory().join("halt.json").exists());
    for options in
        [&["--after", "0"][..], &["--after", "x"], &["--at", "noon"], &["--before-end", "soon"], &["--sometime"]]
    {
        bed.halt(options).expect(2);
    }
}

#[test]
fn a_reserve_that_leaves_no_time_at_all_does_not_queue_the_job_again_for_ever() {
    let bed = Bed::with("true");
    fake_scontrol(&bed, "JobState=RUNNING Reason=None PreemptTime=None");
    let mut command = bed.job(&["--end-time", "+60s", "--reserve", "2min", "--requeue"]);
    command.env("PATH", bed.search_path()).env("SLURM_JOB_ID", "42");
    bed.finish(command).expect(10).says(&["the job is not queued again: it was halted before its first attempt"]);
    assert!(bed.starts().is_empty() && !was_queued_again(&bed));
}

/// A `scontrol` that shows the job like this, and notes its arguments.
fn fake_scontrol(bed: &Bed, shown: &str) {
    let body =
        format!("echo \"$@\" >> \"$(dirname \"$0\")/scontrol.log\"\n[ $1 = requeue ] || echo 'JobId=42 {shown}'");
    bed.script("scontrol", &format!("#!/bin/sh\n{body}\n"));
}

fn was_queued_again(bed: &Bed) -> bool {
    let log = fs::read_to_string(bed.path().join("scontrol.log")).unwrap_or_default();
    log.lines().any(|line| line == "requeue 42")
}

// ------------------------------------------------------------------------------------------- bad input

#[test]
fn bad_arguments_are_refused_before_anything_is_started() {
    let bed = Bed::with("true");
    fs::write(bed.path().join("hosts.txt"), "a slots=x\n").unwrap();
    let cases: [(&[&str], &str); 16] = [
        (&["--hosts", "a,b"], "no launcher that is known here"),
        (&["--spares", "1"], "no launcher that is known here"),
        (&["--launcher", "openmpi", "--spares", "1"], "no hosts are known"),
        (&["--launcher", "openmpi", "--hosts", "a:x"], "--hosts: "),
        (&["--launcher", "openmpi", "--hosts", "a;rm"], "is not a host name"),
        (&["--launcher", "openmpi", "--hosts", "a", "--spares", "1"], "none is left to compute"),
        (&["--launcher", "openmpi", "--hosts", "a,b", "--exclude", "a,b"], "none is left to compute"),
        (&["--launcher", "openmpi", "--hosts", "a,b", "--min-nodes", "3"], "the host list is too small"),
        (&["--launcher", "openmpi", "--hostfile", "nowhere.txt"], "nowhere.txt"),
        (&["--launcher", "openmpi", "--hostfile", "hosts.txt"], "line 1"),
        (&["--hang-timeout", "soon"], "10min"),
        (&["--hang-timeout", "1s"], "3 s or more"),
        (&["--probe-timeout", "0"], "more than 0"),
        (&["--grace", "-1"], "unexpected argument"),
        (&["--restarts", "many"], "--restarts"),
        (&["--end-time", "tomorrow"], "--end-time"),
    ];
    for (options, words) in cases {
        bed.finish(bed.job(options)).expect(2).says(&[words]);
    }
    let mut missing = bed.run_command(&[]);
    missing.args(["--", "./no-such-program"]);
    bed.finish(missing).expect(2).says(&["there is no such program"]);
    bed.finish(bed.run_command(&[])).expect(2);
    let mut nothing = bed.run_command(&["--launcher", "openmpi"]);
    nothing.arg("--").arg(bed.path().join("job"));
    bed.finish(nothing).expect(2).says(&["names no program"]);
    assert!(bed.starts().is_empty());
    let mut blocked = bed.bivouac();
    blocked.args(["run", "--run-directory", "hosts.txt", "--"]).arg(bed.path().join("job"));
    bed.finish(blocked).expect(2).says(&["hosts.txt"]);
}

#[test]
fn strange_files_in_the_run_directory_are_named_and_ignored() {
    let bed = Bed::with("true");
    fs::create_dir(bed.run_directory()).unwrap();
    for name in ["supervisor.json", "halt.json", "status-world.json", "launcher.pid"] {
        fs::write(bed.run_directory().join(name), "garbage").unwrap();
    }
    let ended = bed.finish(bed.job(&[])).expect(0);
    ended.says(&["supervisor.json", "halt.json", "status-world.json", "ignored"]);
    assert_eq!(bed.decisions(), ["success"]);
}

#[test]
fn a_file_as_standard_input_is_read_from_its_start_in_each_attempt() {
    let bed = Bed::with("cat; status $attempt 1 false; [ $attempt = 2 ]");
    let input = bed.path().join("input");
    fs::write(&input, "line\n").unwrap();
    let mut command = bed.job(&[]);
    command.stdin(fs::File::open(&input).unwrap());
    assert_eq!(bed.finish(command).expect(0).stdout, "line\nline\n");
}
