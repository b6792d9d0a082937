//! Restarts: after a kill, on another number of ranks, of other regions, of older versions.

use crate::limit::LIMIT;
use crate::support::{Job, NAME, commit, load, restore, take};
use bivouac_core::{Attempt, Level, LevelVerdict, Session};
use std::time::Instant;

/// Restores the newest version, takes the versions `1..=more` after it, and ends as `how` says.
pub fn step(job: &Job, how: &str, more: u64) {
    let session = job.open();
    let mut from = 0;
    let restored = session.begin_restore(NAME).run(|r| {
        load(r, job.rank)?;
        from = r.version();
        Ok(())
    });
    job.tell("restored", restored.map(|r| r.map_or(0, |r| r.version)));
    let seed = session.generation();
    for version in from + 1..=from + more {
        job.tell(&format!("committed-{version}"), commit(&session, NAME, seed, version, job.rank));
    }
    match how {
        "kill" => job.die(),
        "close" => job.tell("close", session.close().map(|()| "closed")),
        other => panic!("no end {other:?}"),
    }
}

/// Takes checkpoints, and computes without a call of the session or of MPI until all levels of each
/// checkpoint have ended.
pub fn without_calls(job: &Job) {
    let session = job.open();
    for version in 1..=3 {
        let taken = take(&session, NAME, 1, version, job.rank).expect("taken");
        let (started, mut work) = (Instant::now(), 1u64);
        let mut ended = Vec::new();
        while ended.len() < 3 && started.elapsed() < LIMIT {
            work = std::hint::black_box(work.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7));
            ended = taken.verdicts();
        }
        let are_committed = ended.iter().all(|(_, verdict)| *verdict == LevelVerdict::Committed);
        job.say(&format!("levels-{version}"), format!("{} {are_committed}", ended.len()));
        eprintln!("version {version} rank {}: {:.1} ms", job.rank, started.elapsed().as_secs_f64() * 1e3);
    }
    job.tell("close", session.close().map(|()| "closed"));
}

/// Restores the newest version, and lists the versions that exist.
pub fn look(job: &Job) {
    let session = job.open();
    job.tell("restored", restore(&session, NAME, None, job.rank));
    job.tell("versions", listed(&session));
    job.tell("close", session.close().map(|()| "closed"));
}

fn listed(session: &Session) -> bivouac_core::Result<String> {
    let versions = session.versions(NAME)?;
    let words = versions.iter().map(|v| {
        let mark = if v.left_behind { "-left" } else { "" };
        format!("g{}v{}{mark}", v.generation, v.version)
    });
    Ok(words.collect::<Vec<_>>().join(" "))
}

/// Regions that differ from those that the application loads.
pub fn mismatch(job: &Job) {
    let session = job.open();
    let data: Vec<f64> = (0..100 + job.rank).map(f64::from).collect();
    let taken = || -> bivouac_core::Result<Level> {
        let mut ckpt = session.begin_checkpoint(NAME, 1)?;
        ckpt.save("temperature", &data)?;
        ckpt.save("flags", &[7i32; 10])?;
        ckpt.value("step", &42u64)?;
        ckpt.capture()?.wait(Level::System)
    };
    job.tell("taken", taken());

    // A closure that handles the error gets the other regions, and the restart counts.
    let restored = session.begin_restore(NAME).run(|r| {
        let (mut wrong_length, mut wrong_type) = (vec![0.0f64; 99], vec![0.0f32; 10]);
        job.tell("handled-missing", r.load::<f64>("pressure", &mut []).map(|()| "loaded").map_err(Into::into));
        job.tell("handled-length", r.load("temperature", &mut wrong_length).map(|()| "loaded").map_err(Into::into));
        job.tell("handled-type", r.load("flags", &mut wrong_type).map(|()| "loaded").map_err(Into::into));
        job.tell("handled-value", r.value::<String>("step").map_err(Into::into));
        job.tell("handled-kind", r.value::<u64>("flags").map_err(Into::into));
        assert!(wrong_length.iter().all(|value| *value == 0.0), "a target that did not fit was written to");
        all(r, &data)
    });
    job.tell("handled", restored.map(|r| r.map_or(0, |r| r.version)));

    let missing = session.begin_restore(NAME).run(|r| Ok(r.load::<f64>("pressure", &mut [])?));
    job.tell("everywhere", missing.map(|_| "restored"));
    let one_rank = session.begin_restore(NAME).run(|r| {
        let length = if job.rank == 2 { 55 } else { data.len() };
        Ok(r.load("temperature", &mut vec![0.0f64; length])?)
    });
    job.tell("one-rank", one_rank.map(|_| "restored"));
    let one_value = session.begin_restore(NAME).run(|r| {
        if job.rank == 1 {
            r.value::<String>("step")?;
        }
        all(r, &data)
    });
    job.tell("one-value", one_value.map(|_| "restored"));
    job.tell("right", session.begin_restore(NAME).run(|r| all(r, &data)).map(|r| r.map_or(0, |r| r.version)));
    job.tell("close", session.close().map(|()| "closed"));
}

fn all(r: &mut Attempt, data: &[f64]) -> bivouac_core::Result<()> {
    let mut loaded = vec![0.0f64; data.len()];
    r.load("temperature", &mut loaded)?;
    assert_eq!(loaded, data);
    let mut flags = [0i32; 10];
    r.load("flags", &mut flags)?;
    assert_eq!((flags, r.value::<u64>("step")?), ([7; 10], 42));
    Ok(())
}

/// Goes back to an older version on purpose, takes one more version from there, and is killed.
pub fn go_back(job: &Job, to: u64, next: u64) {
    let session = job.open();
    job.tell("no-such", restore(&session, NAME, Some(99), job.rank));
    job.tell("restored", restore(&session, NAME, Some(to), job.rank));
    job.tell("versions", listed(&session));
    job.tell("committed", commit(&session, NAME, session.generation(), next, job.rank));
    job.die();
}

/// Rolls back within an open session.
pub fn roll_back(job: &Job) {
    let session = job.open();
    for version in 1..=5 {
        job.tell(&format!("committed-{version}"), commit(&session, NAME, 1, version, job.rank));
    }
    // This is another series of the same session: restoring one series says nothing about the other.
    job.tell("other", commit(&session, "other", 1, 2, job.rank));
    job.tell("newest", restore(&session, NAME, None, job.rank));
    job.tell("back", restore(&session, NAME, Some(3), job.rank));
    job.tell("other-newest", restore(&session, "other", None, job.rank));
    job.tell("retaken", commit(&session, NAME, 2, 4, job.rank));
    // This checkpoint is still on its way when the restart begins, which waits for it.
    job.tell("captured", take(&session, NAME, 2, 5, job.rank).map(|_| "captured"));
    job.tell("newest-retaken", restore(&session, NAME, None, job.rank));
    job.tell("back-again", restore(&session, NAME, Some(3), job.rank));
    job.tell("retaken-again", commit(&session, NAME, 3, 4, job.rank));
    job.die();
}
