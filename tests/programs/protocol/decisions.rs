//! `should_checkpoint` and `should_exit`: the calls that return true.

use crate::support::{Job, NAME, config, folder, take};
use bivouac_core::config::Choice;
use bivouac_core::{Config, Session};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Asks `calls` times, each rank at its own uneven pace, and returns the calls that answered yes.
fn ask(job: &Job, calls: u64, question: impl FnMut(u64) -> bivouac_core::Result<bool>) -> bivouac_core::Result<String> {
    ask_while(job, |call, _| call < calls, question)
}

/// Asks at least this often, until the answer is yes or it is clear that it will never be.
fn ask_until_yes(
    job: &Job,
    calls: u64,
    question: impl FnMut(u64) -> bivouac_core::Result<bool>,
) -> bivouac_core::Result<String> {
    ask_while(job, |call, yes| call < calls || (yes.is_empty() && call < 50_000), question)
}

fn ask_while(
    job: &Job,
    goes_on: impl Fn(u64, &[String]) -> bool,
    mut question: impl FnMut(u64) -> bivouac_core::Result<bool>,
) -> bivouac_core::Result<String> {
    let mut yes = Vec::new();
    let mut calls = 0..;
    while let Some(call) = calls.next().filter(|call| goes_on(*call, &yes)) {
        std::thread::sleep(Duration::from_micros(1000 + 700 * (u64::from(job.rank.unsigned_abs()) + call % 3)));
        if question(call)? {
            yes.push(call.to_string());
        }
    }
    Ok(yes.join(","))
}

fn with(job: &Job, change: impl FnOnce(&mut Config)) -> Session {
    let mut config = config();
    config.job.exit.check_every = Duration::from_millis(20);
    change(&mut config);
    job.open_with(config)
}

pub fn decide(job: &Job) {
    let session = with(job, |config| config.job.interval.steps = 7);
    job.tell("by-steps", ask(job, 50, |_| session.should_checkpoint()));
    job.tell("never-exits", ask(job, 50, |_| session.should_exit()));
    job.tell("close", session.close().map(|()| "closed"));

    let session = with(job, |config| config.job.interval.seconds = Duration::from_millis(100).into());
    job.tell("by-seconds", ask_until_yes(job, 150, |_| session.should_checkpoint()));
    session.close().expect("nothing is in flight");

    let session = with(job, |config| config.job.interval.overhead_percent = 20.0);
    let by_cost = ask_until_yes(job, 100, |call| {
        let due = session.should_checkpoint()?;
        if due {
            take(&session, NAME, 1, call, job.rank)?;
        }
        Ok(due)
    });
    job.tell("by-overhead", by_cost);
    session.close().expect("what is in flight is drained");

    let session = with(job, |config| {
        config.job.interval.seconds = Choice::Auto;
        config.job.global.every = Choice::Auto;
        (config.job.interval.least, config.job.interval.most) = (Duration::from_millis(5), Duration::from_millis(40));
        config.job.interval.mtbf = Some(Duration::from_secs(1));
    });
    let by_auto = ask_until_yes(job, 100, |call| {
        let due = session.should_checkpoint()?;
        if due {
            take(&session, NAME, 1, call, job.rank)?;
        }
        Ok(due)
    });
    job.tell("by-auto", by_auto);
    // Only the root measures; there is no choice before all levels of a checkpoint are known.
    let tuned = session.stats().tuned.map(|tuned| tuned.levels.len());
    job.say("tuned", format!("{}", job.rank == 0 && tuned.is_some() || job.rank > 0 && tuned.is_none()));
    session.close().expect("what is in flight is drained");

    let session = with(job, |config| config.job.exit.signal = Some("USR1".into()));
    let by_signal = ask_until_yes(job, 120, |call| {
        if call == 30 && job.rank == 2 {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("a process may signal itself");
        }
        session.should_exit()
    });
    job.tell("by-signal", by_signal);
    session.close().expect("nothing is in flight");

    let file = folder().join("stop");
    let session = with(job, |config| config.job.exit.stop_file = Some(file.clone()));
    let by_file = ask_until_yes(job, 120, |call| {
        if call == 30 && job.rank == 3 {
            std::fs::write(&file, "").expect("the test's folder is writable");
        }
        session.should_exit()
    });
    job.tell("by-file", by_file);
    session.close().expect("nothing is in flight");

    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let mut ends = [now + 2];
    // All ranks need the same time, because it is part of the configuration that they share.
    mpi::traits::Root::broadcast_into(&mpi::traits::Communicator::process_at_rank(&job.world, 0), &mut ends[..]);
    let session = with(job, |config| {
        config.job.exit.end_time = Some(ends[0]);
        config.job.exit.reserve = Duration::from_millis(1500);
    });
    job.tell("by-time", ask_until_yes(job, 600, |_| session.should_exit()));
    session.close().expect("nothing is in flight");
}
