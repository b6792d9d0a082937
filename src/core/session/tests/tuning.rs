//! Intervals that a session chooses itself.

use super::*;
use crate::config::Choice;
use crate::format::supervision::{ATTEMPTS_FILE, Tuned};
use crate::tier::run_directory::RunDirectory;

/// Makes steps of two seconds until `count` checkpoints were due and taken. Returns what was chosen, and the number of steps before each
/// checkpoint.
fn run(bed: &Bed, session: &Session, count: usize) -> (Tuned, Vec<u64>) {
    let mut between = Vec::new();
    let mut steps = 0;
    while between.len() < count {
        bed.clock.leap(Duration::from_secs(2));
        steps += 1;
        assert!(steps < 10_000, "{between:?}");
        if session.should_checkpoint().expect("an answer") {
            take_and_settle(session, between.len() as u64 + 1);
            between.push(std::mem::take(&mut steps));
        }
    }
    (session.stats().tuned.expect("there was enough to measure"), between)
}

fn auto(bed: &Bed, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = bed.config();
    config.job.interval.seconds = Choice::Auto;
    config.job.global.every = Choice::Auto;
    change(&mut config);
    config
}

#[test]
fn a_checkpoint_is_due_after_what_was_chosen_and_no_sooner() {
    let bed = Bed::new();
    let config = auto(&bed, |config| {
        (config.job.interval.least, config.job.interval.most) = (Duration::from_secs(5), Duration::from_secs(21));
        config.job.interval.mtbf = Some(Duration::from_secs(100 * 86_400));
    });
    let session = bed.open(&bed.place(), config);
    let (tuned, between) = run(&bed, &session, 8);
    // Checkpoints take milliseconds, and failures come every hundred days: once that is known, checkpoints are taken as rarely as allowed.
    assert_eq!((tuned.interval_seconds.round(), between[0]), (21.0, 4), "{tuned:?} {between:?}");
    assert!(between[3..].iter().all(|steps| *steps == 11), "{between:?}");
    let levels: Vec<&str> = tuned.levels.iter().map(|level| level.level.as_str()).collect();
    assert_eq!(levels, ["process", "node-reboot", "system"]);
    session.close().expect("closes");
}

#[test]
fn failures_come_from_the_attempts_of_the_supervisor_and_what_was_chosen_goes_into_the_status() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().expect("a folder");
    let directory = RunDirectory::at(folder.path().join("run"));
    directory.create().expect("made");
    let attempt = |number: u32| {
        let began = f64::from(number) * 100.0;
        format!(
            "{{\"began\": {began}, \"ended\": {}, \"hosts\": [], \"down\": {{}}, \"decision\": \"restart\"}}\n",
            began + 60.0
        )
    };
    directory.replace(ATTEMPTS_FILE, (0..50).map(attempt).collect::<String>().as_bytes()).expect("written");
    let config = auto(&bed, |config| config.node.run_directory = Some(directory.path().to_owned()));
    let session = bed.open(&bed.place(), config);
    let (tuned, _) = run(&bed, &session, 4);
    let rate = tuned.levels[0].failures_per_second;
    assert!((1.0 / 70.0..1.0 / 55.0).contains(&rate), "{rate}");
    session.close().expect("closes");
    let status = directory.read_status("world").expect("readable").expect("there");
    assert_eq!(status.tuned.map(|tuned| tuned.changes > 0), Some(true));
}

#[test]
fn what_is_not_left_to_the_session_is_not_measured() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    take_and_settle(&session, 1);
    assert!(!session.engine.tuning().is_on() && session.stats().tuned.is_none());
    session.close().expect("closes");
}
