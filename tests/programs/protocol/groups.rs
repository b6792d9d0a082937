//! Several sessions in one job, and several jobs on one store.

use crate::support::{Job, NAME, commit, config, folder, load, restore};
use bivouac_core::Session;
use mpi::topology::{Color, Key, SimpleCommunicator};
use mpi::traits::*;
use std::time::Duration;

fn part(job: &Job, color: i32, key: i32) -> SimpleCommunicator {
    let color = Color::with_value(color);
    job.world.split_by_color_with_key(color, Key::from(key)).expect("every rank has a colour")
}

/// Two halves of the world each have a session of their own, and use the same names.
pub fn split(job: &Job, how: &str) {
    let color = job.rank % 2;
    let half = part(job, color, job.rank);
    let session = Session::open(&half, config()).expect("both halves may open");
    let seed = 100 + color as u64;
    if how == "start" {
        // Each half takes versions at its own pace.
        for version in 1..=(3 + 2 * color as u64) {
            commit(&session, NAME, seed, version, half.rank()).expect("nothing stands in the way");
        }
        job.say("taken", color);
        job.die();
    }
    job.tell("restored", restore(&session, NAME, None, half.rank()));
    job.tell("close", session.close().map(|()| "closed"));
}

/// One session of all ranks, in reverse order.
pub fn reordered(job: &Job, how: &str) {
    let reversed = part(job, 0, -job.rank);
    assert_eq!(reversed.rank(), job.size - 1 - job.rank);
    let session = Session::open(&reversed, config()).expect("any intracommunicator will do");
    if how == "start" {
        job.tell("committed", commit(&session, NAME, 1, 1, reversed.rank()));
        job.die();
    }
    job.tell("restored", restore(&session, NAME, None, reversed.rank()));
    job.tell("close", session.close().map(|()| "closed"));
}

/// Opens two sessions on one communicator at the same time.
pub fn two_sessions(job: &Job) {
    let first = job.open();
    job.tell("second", Session::open(&job.world, config()).map(|_| "opened"));
    let mut other = config();
    other.job.group = Some("other".into());
    let second = job.open_with(other);
    for version in 1..=3 {
        commit(&first, NAME, 1, version, job.rank).expect("nothing stands in the way");
        commit(&second, NAME, 2, version + 10, job.rank).expect("nothing stands in the way");
    }
    job.tell("restored-first", restore(&first, NAME, None, job.rank));
    job.tell("restored-second", restore(&second, NAME, None, job.rank));
    job.tell("close-first", first.close().map(|()| "closed"));
    job.tell("restored-after", restore(&second, NAME, None, job.rank));
    job.tell("close-second", second.close().map(|()| "closed"));
    // The second session was closed, so a new one can be opened.
    let again = job.open();
    job.tell("restored-again", restore(&again, NAME, None, job.rank));
    job.tell("close-again", again.close().map(|()| "closed"));
}

/// Restores the newest version and takes versions until the stop file exists; the data is that of
/// the run numbered `seed`.
///
/// Prints `version=V ok LEVEL` or `version=V error TEXT` for each version under one label. The files `first` and
/// `count` tell the test how far the run is.
pub fn serve(job: &Job, seed: u64) {
    job.say("pid", std::process::id());
    let session = job.open();
    let mut version = 0;
    let restored = session.begin_restore(NAME).run(|r| {
        let found = load(r, job.rank)?;
        version = r.version();
        job.say("restored", format!("version={version} generation={} seed={found}", r.generation()));
        Ok(())
    });
    restored.expect("a restart finds nothing or something right");
    let progress = folder().join(format!("serve-{seed}"));
    let mut steps = 0u64;
    loop {
        let exiting = session.should_exit();
        match exiting {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => panic!("should_exit: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
        steps += 1;
        version += 1;
        let outcome = commit(&session, NAME, seed, version, job.rank);
        let text = outcome.map_or_else(|error| format!("error {error}"), |level| format!("ok {level}"));
        job.say("served", format!("version={version} {text}"));
        if job.rank == 0 {
            std::fs::write(&progress, format!("{steps}\n")).expect("the test's folder is writable");
        }
    }
    job.tell("close", session.close().map(|()| "closed"));
    job.say("ended", steps);
}
