//! Ranks that make different calls, or none; configurations that differ; names that cannot be used.

use crate::limit::wait_until;
use crate::support::{Job, NAME, commit, config, field, folder, restore, take};
use bivouac_core::{Attempt, CheckpointBuilder, Config, Level, Pending, Session};
use std::time::{Duration, Instant};

/// The culprit's call in place of the checkpoint that the others take.
fn wrong_call(session: &Session, kind: &str, version: u64, rank: i32) -> bivouac_core::Result<Pending> {
    let data = field(1, version, rank);
    let (floats, _) = data.split_at(100);
    let integers: Vec<i64> = floats.iter().map(|value| *value as i64).collect();
    let finish = |mut ckpt: CheckpointBuilder<'_>| {
        ckpt.value("seed", &1u64)?;
        ckpt.capture()
    };
    match kind {
        "name" => take(session, "cold", 1, version, rank),
        "version" => take(session, NAME, 1, version + 1000, rank),
        "region-name" => {
            let mut ckpt = session.begin_checkpoint(NAME, version)?;
            ckpt.save("pressure", &data)?;
            finish(ckpt)
        }
        "element-type" => {
            let mut ckpt = session.begin_checkpoint(NAME, version)?;
            ckpt.save("field", &integers)?;
            finish(ckpt)
        }
        "more-regions" => {
            let mut ckpt = session.begin_checkpoint(NAME, version)?;
            ckpt.save("field", &data)?;
            ckpt.save("extra", floats)?;
            finish(ckpt)
        }
        "unusable-name" => take(session, "a/b", 1, version, rank),
        "unusable-region" => {
            let mut ckpt = session.begin_checkpoint(NAME, version)?;
            ckpt.save("", &data)?;
            finish(ckpt)
        }
        "given-up" => {
            drop(session.begin_checkpoint(NAME, version)?);
            Err(bivouac_core::Error::application("gave it up"))
        }
        "other-call" => match session.versions(NAME) {
            Ok(versions) => panic!("a call that nobody else made succeeded: {versions:?}"),
            Err(error) => Err(error),
        },
        "other-restart" => match session.begin_restore("a/b").run(|_| Ok(())) {
            Ok(restored) => panic!("a call that nobody else made succeeded: {restored:?}"),
            Err(error) => Err(error),
        },
        other => panic!("no wrong call {other:?}"),
    }
}

/// Makes each kind of wrong call on one rank or another, and a right call after each.
pub fn disagree(job: &Job) {
    let session = job.open();
    let kinds = [
        "name",
        "version",
        "region-name",
        "element-type",
        "more-regions",
        "unusable-name",
        "unusable-region",
        "given-up",
        "other-call",
        "other-restart",
    ];
    let mut version = 1;
    for (index, kind) in kinds.into_iter().enumerate() {
        // The root decides, and rank 1 is between rank 3 and the root: each of these ranks is the culprit in turn.
        let culprit = (index + 2) as i32 % job.size;
        let outcome = if job.rank == culprit {
            wrong_call(&session, kind, version, job.rank)
        } else {
            take(&session, NAME, 1, version, job.rank)
        };
        job.tell(&format!("wrong-{kind}"), outcome.and_then(|pending| pending.wait(Level::Process)));
        job.tell(&format!("right-{kind}"), commit(&session, NAME, 1, version + 1, job.rank));
        version += 2;
    }
    job.tell("restored", restore(&session, NAME, None, job.rank));
    job.tell("close", session.close().map(|()| "closed"));
}

/// Ranks are late for a checkpoint, one after the other.
pub fn late(job: &Job, ranks: &[String]) {
    let session = job.open();
    let mut version = 1;
    for late in ranks {
        let is_late = job.rank.to_string() == *late;
        job.tell(&format!("before-{late}"), commit(&session, NAME, 1, version, job.rank));
        // The application's own communication continues without Bivouac while the late rank is busy elsewhere.
        if is_late {
            job.barrier();
        }
        let outcome = take(&session, NAME, 1, version + 1, job.rank).and_then(|pending| pending.wait(Level::Process));
        job.tell(&format!("late-{late}"), outcome);
        if !is_late {
            job.barrier();
        }
        version += 2;
    }
    job.tell("after", commit(&session, NAME, 1, version, job.rank));
    job.tell("restored", restore(&session, NAME, None, job.rank));
    job.tell("close", session.close().map(|()| "closed"));
}

/// The root makes no call, and no thread works for it in the background: the others cannot know what it is doing.
pub fn late_root(job: &Job) {
    let session = job.open();
    job.tell("before", commit(&session, NAME, 1, 1, job.rank));
    if job.rank == 0 {
        job.barrier();
    }
    let outcome = take(&session, NAME, 1, 2, job.rank).and_then(|pending| pending.wait(Level::Process));
    job.tell("late", outcome);
    if job.rank != 0 {
        job.barrier();
    }
    job.tell("after", take(&session, NAME, 1, 3, job.rank).and_then(|pending| pending.wait(Level::Process)));
    job.tell("close", session.close().map(|()| "closed"));
    job.say("ended", "");
}

/// One rank closes the session while the others continue.
pub fn close_early(job: &Job) {
    let session = job.open();
    job.tell("before", commit(&session, NAME, 1, 1, job.rank));
    if job.rank == 2 {
        job.tell("close", session.close().map(|()| "closed"));
    } else {
        job.tell("checkpoint", commit(&session, NAME, 1, 2, job.rank));
        job.tell("next", commit(&session, NAME, 1, 3, job.rank));
        job.tell("close", session.close().map(|()| "closed"));
    }
    job.barrier();
    job.say("ended", "");
}

/// Opens with configurations that are each wrong in one way, and then with a right one.
pub fn configuration(job: &Job, garbage: &str) {
    let try_open = |label: &str, config: Config| {
        job.tell(label, Session::open(&job.world, config).map(|_| "opened"));
    };
    let mut differing = config();
    if job.rank == 2 {
        differing.job.local.keep_last = 7;
        differing.job.timeouts.room = Duration::from_secs(77);
    }
    try_open("differing", differing);
    for culprit in [1, 0] {
        let mut invalid = config();
        if job.rank == culprit {
            invalid.job.block_bytes = 3;
        }
        try_open(&format!("invalid-{culprit}"), invalid);
    }
    let loaded = Config::load(folder().join(garbage)).map(|_| "loaded");
    job.tell("garbage", loaded.map_err(bivouac_core::Error::from));
    let unknown = Config::from_toml("[local]\nkeep_lst = 3\n").map(|_| "loaded");
    job.tell("unknown", unknown.map_err(bivouac_core::Error::from));
    let session = job.open();
    job.tell("right", commit(&session, NAME, 1, 1, job.rank));
    job.tell("close", session.close().map(|()| "closed"));
}

/// Reads the configuration, opens a session, and prints the result.
pub fn open_only(job: &Job) {
    let opened = Config::from_env()
        .map_err(bivouac_core::Error::from)
        .and_then(|config| Session::open(&job.world, config))
        .and_then(Session::close);
    job.tell("opened", opened.map(|()| "closed"));
}

/// Opens a session as the program in the README does, and prints the result.
pub fn from_env(job: &Job) {
    job.tell("opened", Session::from_env(&job.world).and_then(Session::close).map(|()| "closed"));
}

/// One rank does not open a session, as if it had ended before. It stays until the others have printed the error that they got. Then all
/// ranks end without calling MPI, because they have abandoned their MPI calls.
pub fn open_without(job: &Job, absent: u64) -> ! {
    let told = |rank: i32| folder().join(format!("told-{rank}"));
    let others = || (0..job.size).filter(|rank| *rank as u64 != absent);
    if job.rank as u64 != absent {
        job.tell("opened", Session::from_env(&job.world).map(|_| "opened"));
        std::fs::write(told(job.rank), "").expect("the test's folder");
    }
    wait_until("the others have said it", || others().all(|rank| told(rank).exists()));
    std::process::exit(0)
}

/// Rank 0 sends rank 1 a message with tag 77, which is received only after both ranks were asked
/// about messages in flight.
fn messages(job: &Job, session: &Session) {
    use mpi::traits::{Communicator, Destination, Source};
    if job.rank == 0 {
        // A message of eight bytes leaves at once.
        job.world.process_at_rank(1).send_with_tag(&5u64, 77);
    }
    job.barrier();
    if job.rank == 1 {
        // The barrier may overtake the message.
        while job.world.process_at_rank(0).immediate_probe_with_tag(77).is_none() {}
    }
    job.tell("in-flight", session.check_no_messages(&job.world).map(|()| "none"));
    if job.rank == 1 {
        let (number, _) = job.world.process_at_rank(0).receive_with_tag::<u64>(77);
        assert_eq!(number, 5);
    }
    job.barrier();
    job.tell("received", session.check_no_messages(&job.world).map(|()| "none"));
}

pub fn names(job: &Job) {
    let session = job.open();
    messages(job, &session);
    for (label, name) in [("empty", ""), ("slash", "a/b"), ("dot", ".hidden"), ("newline", "a\nb")] {
        job.tell(&format!("name-{label}"), session.begin_checkpoint(name, 1).map(|_| "begun"));
    }
    let long = "n".repeat(129);
    job.tell("name-long", session.begin_checkpoint(&long, 1).map(|_| "begun"));
    job.tell("restart-slash", session.begin_restore("a/b").run(|_| Ok(())).map(|_| "restarted"));
    job.tell("versions-slash", session.versions("a/b").map(|_| "listed"));

    let twice = || -> bivouac_core::Result<Level> {
        let data = [job.rank as f64; 10];
        let mut ckpt = session.begin_checkpoint(NAME, 1)?;
        ckpt.save("field", &data)?;
        let second = ckpt.save("field", &data);
        job.tell("twice", second.map(|()| "saved"));
        ckpt.capture()?.wait(Level::System)
    };
    job.tell("twice-captured", twice());

    let none = || session.begin_checkpoint("none", 2)?.capture()?.wait(Level::System);
    job.tell("zero-regions", none());
    let restored = session.begin_restore("none").run(|_| Ok(()));
    job.tell("zero-regions-restored", restored.map(|r| r.map_or(0, |r| r.version)));

    let empty = || -> bivouac_core::Result<Level> {
        let mut ckpt = session.begin_checkpoint("empty", 3)?;
        ckpt.save::<f64>("nothing", &[])?;
        ckpt.save_shaped::<u8>("flat", &[], &[5, 0, 7])?;
        ckpt.capture()?.wait(Level::System)
    };
    job.tell("zero-length", empty());
    let restored = session.begin_restore("empty").run(|r| {
        r.load::<f64>("nothing", &mut [])?;
        assert!(r.load_vec::<u8>("flat")?.is_empty());
        assert_eq!(r.shape("flat")?, [5, 0, 7]);
        Ok(())
    });
    job.tell("zero-length-restored", restored.map(|r| r.map_or(0, |r| r.version)));
    many_tiny_regions(job, &session);
    job.tell("close", session.close().map(|()| "closed"));
}

fn many_tiny_regions(job: &Job, session: &Session) {
    const COUNT: usize = 10_000;
    let values: Vec<[u32; 1]> = (0..COUNT).map(|index| [(index as u32) * 7 + job.rank as u32]).collect();
    let many = || -> bivouac_core::Result<Level> {
        let mut ckpt = session.begin_checkpoint("many", 4)?;
        for (index, value) in values.iter().enumerate() {
            ckpt.save(&format!("region {index}"), value)?;
        }
        ckpt.capture()?.wait(Level::System)
    };
    job.tell("many", many());
    let started = Instant::now();
    let restored = session.begin_restore("many").run(|r: &mut Attempt| {
        for (index, value) in values.iter().enumerate() {
            let mut loaded = [[0u32; 1]];
            r.load(&format!("region {index}"), loaded.as_flattened_mut())?;
            assert_eq!(loaded[0], *value, "region {index}");
        }
        Ok(())
    });
    job.tell("many-restored", restored.map(|r| r.map_or(0, |r| r.version)));
    log::info!("event=many-loaded seconds={:.3}", started.elapsed().as_secs_f64());
}
