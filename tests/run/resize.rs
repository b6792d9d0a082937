//! Jobs whose number of ranks may change, played by scripts: without a spare they shrink, later they grow again, and users request
//! another number of ranks.

use super::bed::{Bed, Supervisor};
use super::common::limit::wait_until;
use serde_json::Value;
use std::fs;

/// Any number of ranks can restore what this session commits.
const FREE: &str = r#"newest='{"name":"heat","version":1,"ranks":6,"unix":5}'"#;
/// Only as many ranks as took this checkpoint can restore it.
const BOUND: &str =
    r#"newest='{"name":"heat","version":1,"ranks":6,"unix":5,"bound":{"count":1,"regions":["state"]}}'"#;

const OPTIONS: [&str; 4] = ["--hosts", "a:2,b:2,c:2", "--ranks", "2..6/2"];
const WORDS: [&str; 4] = ["-n", "9", "program", "{ranks}"];

fn ranks(bed: &Bed) -> Vec<Value> {
    bed.attempts().into_iter().map(|mut attempt| attempt["ranks"].take()).collect()
}

/// The ends of the command lines of all starts, without the exported variables before them.
fn starts(bed: &Bed) -> Vec<String> {
    let after = |start: String| start[start.find("--host").expect("hosts")..].to_owned();
    bed.starts().into_iter().map(after).collect()
}

#[test]
fn a_job_goes_on_with_fewer_ranks_and_with_more_again_when_the_lost_host_answers() {
    let bed = Bed::with(&format!(
        "{FREE}; status $attempt 1 false; case $attempt in 1) touch down/b; exit 1 ;; 2) rm down/b; exit 1 ;; esac"
    ));
    let ended = bed.finish(bed.placed_with(&OPTIONS, &WORDS)).expect(0);
    ended.says(&["launched: process", "6 ranks on a:2, b:2, c:2", "lost b; starting again with 4 ranks at once"]);
    assert_eq!(
        starts(&bed),
        ["--host a:2,b:2,c:2 -n 6 program 6", "--host a:2,c:2 -n 4 program 4", "--host a:2,c:2,b:2 -n 6 program 6"]
    );
    assert_eq!(ranks(&bed), [6, 4, 6].map(Value::from));
    assert_eq!(bed.attempts()[1]["hosts"], serde_json::json!(["a:2", "c:2"]));
}

#[test]
fn a_job_whose_newest_checkpoint_is_bound_to_its_number_of_ranks_stops_and_names_the_region() {
    let bed = Bed::with(&format!("{BOUND}; status $attempt 1 false; touch down/b; exit 1"));
    let says = ["\"state\"", "only by the 6 ranks", "room for 4", "save_on, shared, or per_rank"];
    bed.finish(bed.placed_with(&OPTIONS, &WORDS)).expect(13).says(&says);
    assert_eq!(bed.decisions(), ["rank-bound"]);
    // The next start ends in the same way, until the host is back.
    bed.finish(bed.placed_with(&OPTIONS, &WORDS)).expect(13).says(&says);
    assert_eq!(bed.starts().len(), 1);
    fs::remove_file(bed.path().join("down/b")).expect("it was down");
    bed.script("job", "#!/bin/sh\ncd \"$(dirname \"$0\")\"; echo \"$*\" >> starts\n");
    bed.finish(bed.placed_with(&OPTIONS, &WORDS)).expect(0);
    assert!(bed.starts()[1].ends_with("-n 6 program 6"), "{:?}", bed.starts());
}

#[test]
fn a_session_that_does_not_say_who_can_restore_it_is_not_shrunk() {
    let bed = Bed::with("status $attempt 1 false; touch down/b; exit 1");
    bed.finish(bed.placed_with(&["--hosts", "a:1,b:1", "--ranks", "1..2"], &WORDS)).expect(13).says(&["older version"]);
}

#[test]
fn a_job_that_has_committed_nothing_yet_shrinks() {
    let bed = Bed::with("status 0 1 false; [ $attempt = 2 ] || touch down/b; [ $attempt = 2 ]");
    bed.finish(bed.placed_with(&OPTIONS, &WORDS)).expect(0);
    assert_eq!(ranks(&bed), [6, 4].map(Value::from));
}

#[test]
fn tasks_of_srun_are_dealt_out_to_the_nodes_that_answer() {
    let bed = Bed::with("true");
    fs::create_dir(bed.path().join("down")).unwrap();
    fs::write(bed.path().join("down/n2"), "").unwrap();
    let probe = format!("test ! -e {}/down/{{host}}", bed.path().display());
    let mut command = bed.run_command(&["--launcher", "srun", "--probe", &probe, "--ranks", "3..6/3"]);
    command.env("SLURM_JOB_ID", "42").env("SLURM_JOB_NODELIST", "n[1-3]").env("SLURM_TASKS_PER_NODE", "2(x3)");
    command.env("SLURM_JOB_END_TIME", "4000000000");
    command.arg("--").arg(bed.path().join("job")).args(["-n", "6", "program"]);
    bed.finish(command).expect(0);
    assert_eq!(bed.starts(), ["--nodes 2 --distribution arbitrary --nodelist n1,n1,n3 --ntasks 3 program"]);
}

/// A script that ends with the reason when it is asked to, like a program that calls `should_exit`. In the attempt
/// `last`, it ends by itself.
fn obedient(last: u32) -> Bed {
    let bivouac = env!("CARGO_BIN_EXE_bivouac");
    Bed::with(&format!(
        "{FREE}; status $attempt 1 false; echo ready > ready-$attempt; [ $attempt = {last} ] && {{ status $attempt 2 true; exit 0; }}
         while [ ! -e $BIVOUAC_RUN_DIRECTORY/halt.json ]; do sleep 0.02; done
         why=$({bivouac} halt $BIVOUAC_RUN_DIRECTORY --list | sed -n '1s/^halt //p')
         status $attempt 2 true \"$why\""
    ))
}

#[test]
fn a_job_that_is_asked_to_goes_on_with_fewer_ranks_and_then_with_more() {
    let bed = obedient(3);
    let supervisor = bed.start(bed.placed_with(&[&OPTIONS[..], &["--restarts", "0"]].concat(), &WORDS));
    for (attempt, ranks) in [(1, "2"), (2, "4")] {
        bed.wait_for_file(format!("ready-{attempt}"));
        let set = bed.halt(&["--resize", ranks]).expect(0);
        assert!(set.stdout.contains(&format!("halt now, to continue with {ranks} ranks (set by ")), "{}", set.stdout);
    }
    supervisor
        .wait()
        .expect(0)
        .says(&["2 ranks were asked for; all hosts answer; starting again with 2 ranks at once"]);
    assert_eq!(
        starts(&bed),
        ["--host a:2,b:2,c:2 -n 6 program 6", "--host a:1,b:1 -n 2 program 2", "--host a:2,b:1,c:1 -n 4 program 4"]
    );
    assert_eq!(bed.decisions(), ["resized", "resized", "success"]);
    assert!(!bed.run_directory().join("halt.json").exists(), "the next start must not be stopped by it");
}

#[test]
fn whoever_halts_a_job_that_was_to_be_resized_has_it_halted() {
    let bed = obedient(9);
    let supervisor = bed.start(bed.placed_with(&OPTIONS, &WORDS));
    bed.wait_for_file("ready-1");
    // The test writes both conditions itself, at once: otherwise the script might see only the first one.
    let condition = r#"{"when":"now","set_by":"me","set_at":5"#;
    let halt = format!(r#"{{"schema":1,"kind":"bivouac-halt","conditions":[{condition},"resize":2}},{condition}}}]}}"#);
    fs::write(bed.path().join("halt.new"), halt).unwrap();
    fs::rename(bed.path().join("halt.new"), bed.run_directory().join("halt.json")).unwrap();
    supervisor.wait().expect(10);
    assert_eq!(bed.decisions(), ["halted"]);
    let listed = bed.halt(&["--list"]).expect(0).stdout;
    assert!(listed.contains("halt now (set by me") && !listed.contains("ranks"), "{listed}");
}

#[test]
fn a_host_that_answers_again_while_the_job_runs_can_be_had_by_asking_for_more_ranks() {
    let bed = obedient(2);
    let options = [&OPTIONS[..], &["--probe-timeout", "1s"]].concat();
    let command = bed.placed_with(&options, &WORDS);
    fs::write(bed.path().join("down/c"), "").unwrap();
    let supervisor = bed.start(command);
    bed.wait_for_file("ready-1");
    bed.halt(&["--resize", "6"]).expect(2).says(&["have slots for 4 ranks"]);
    fs::remove_file(bed.path().join("down/c")).unwrap();
    wait_until("the host has been asked again", || bed.events().contains(&"answers-again".to_owned()));
    bed.halt(&["--resize", "6"]).expect(0);
    supervisor.wait().expect(0);
    assert_eq!(ranks(&bed), [4, 6].map(Value::from));
}

/// A job of at most six ranks on three hosts, one of which is down, so that the job has four ranks.
fn waiting(bed: &Bed, options: &[&str]) -> Supervisor {
    let command = bed.placed_with(options, &WORDS);
    fs::write(bed.path().join("down/c"), "").unwrap();
    let supervisor = bed.start(command);
    bed.wait_for_file("ready");
    supervisor
}

#[test]
fn a_resize_that_cannot_be_is_refused_before_anything_is_halted() {
    let bed = Bed::with(&format!(
        "{FREE}; status 1 1 false; echo ready > ready; while [ ! -e bind ]; do sleep 0.02; done
         {BOUND}; status 2 1 false; echo bound > bound; while [ ! -e stop ]; do sleep 0.02; done"
    ));
    let refused = |ranks: &str, words: &[&str]| {
        bed.halt(&["--resize", ranks]).expect(2).says(words);
        assert!(!bed.run_directory().join("halt.json").exists());
    };
    bed.halt(&["--resize", "2"]).expect(2).says(&["not a directory"]);
    let supervisor = waiting(&bed, &OPTIONS);
    refused("0", &["--resize"]);
    refused("3", &["is not resized", "allows --ranks 2..6/2, but 3 is not one of these"]);
    refused("4", &["it already has 4 ranks"]);
    refused("6", &["the hosts that answered most recently (a:2, b:2) have slots for 4 ranks"]);
    fs::write(bed.path().join("bind"), "").unwrap();
    bed.wait_for_file("bound");
    refused("2", &["\"state\"", "save_on"]);
    fs::write(bed.path().join("stop"), "").unwrap();
    supervisor.wait().expect(0);
    refused("2", &["no supervisor is at work"]);

    fs::remove_file(bed.path().join("ready")).unwrap();
    fs::remove_file(bed.path().join("stop")).unwrap();
    let supervisor = waiting(&bed, &["--hosts", "a:5,b:5,c:5"]);
    refused("2", &["without --ranks"]);
    fs::write(bed.path().join("stop"), "").unwrap();
    supervisor.wait().expect(0);
}

#[test]
fn a_supervisor_that_finds_the_job_of_a_dead_one_keeps_its_number_of_ranks() {
    let bed = Bed::with(&format!(
        "{FREE}; status $attempt 1 false; echo ready > ready-$attempt
         case $attempt in 1) touch down/b; exit 1 ;; 2) while [ ! -e go ]; do sleep 0.02; done; rm down/b; exit 1 ;; esac"
    ));
    let mut first = bed.start(bed.placed_with(&OPTIONS, &WORDS));
    bed.wait_for_file("ready-2");
    first.kill();
    let second = bed.start(bed.placed_with(&OPTIONS, &WORDS));
    wait_until("it is taken over", || bed.events().contains(&"took-over".to_owned()));
    fs::write(bed.path().join("go"), "").unwrap();
    second.wait().expect(0);
    assert_eq!(ranks(&bed), [6, 4, 6].map(Value::from));
    assert_eq!(starts(&bed)[2], "--host a:2,c:2,b:2 -n 6 program 6");
}

#[test]
fn numbers_of_ranks_that_cannot_be_are_refused_before_anything_is_started() {
    let bed = Bed::with("true");
    let several = ["-n", "1", "one", ":", "-n", "1", "two"];
    for (ranks, hosts, words, said) in [
        ("", "a:2", &WORDS[..], "it is empty"),
        ("0..4", "a:2", &WORDS, "\"0\" is not a number of ranks"),
        ("8..4", "a:8", &WORDS, "4..8"),
        ("4..8/0", "a:8", &WORDS, "step"),
        ("four", "a:8", &WORDS, "four"),
        ("5..8", "a:2,b:2", &WORDS, "room for 4 ranks, but --ranks allows no fewer than 5"),
        ("1..2", "a:2", &several, "several programs"),
    ] {
        let options = [format!("--ranks={ranks}"), format!("--hosts={hosts}")];
        bed.finish(bed.placed_with(&[&options[0], &options[1]], words)).expect(2).says(&[said]);
    }
    assert!(bed.starts().is_empty());
    bed.finish(bed.placed_with(&["--ranks", "2..8/2", "--hosts", "a:2,b:2"], &WORDS))
        .expect(0)
        .says(&["--ranks 2..8/2 allows more ranks than all hosts together have slots for (4)"]);
    assert_eq!(starts(&bed), ["--host a:2,b:2 -n 4 program 4"]);
}
