//! What a session reports, and how it receives requests: the groups consist of ranks that are threads of this process.

use super::bed::Bed;
use super::common::limit::wait_until;
use bivouac_core::base::units::MIB;
use bivouac_core::comm::threads;
use bivouac_core::config::{Budget, Config};
use bivouac_core::decomposition::OnResize;
use bivouac_core::format::supervision::{Bound, Status};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::run_directory::RunDirectory;
use bivouac_core::{Level, Session};
use std::fs;
use std::time::Duration;

const RANKS: u32 = 2;

fn config(bed: &Bed) -> Config {
    let mut config = Config::default();
    config.job.name = Some("run".into());
    config.job.global_directory = bed.path().join("global");
    config.job.exit.check_every = Duration::ZERO;
    // A rank that fails its assertions leaves the others waiting for it.
    config.job.timeouts.abandon = Duration::from_secs(60);
    config.node.local_directory = Some(bed.path().join("local"));
    config.node.local_allow_tmpfs = true;
    config.node.memory_directory = bed.path().join("memory");
    config.node.memory_budget = Budget::Bytes(16 * MIB);
    config.node.run_directory = Some(bed.run_directory());
    config
}

/// Runs a session on every rank; only the root's run directory counts.
fn run(bed: &Bed, work: impl Fn(&Session, u32) + Sync) {
    std::thread::scope(|scope| {
        for (rank, comm) in (0..RANKS).zip(threads::world(&[0; RANKS as usize])) {
            let (mut config, work) = (config(bed), &work);
            if rank > 0 {
                config.node.run_directory = None;
            }
            scope.spawn(move || {
                let place = Place::here(&config, Workers::Threads, "world".into()).expect("a place");
                let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                work(&session, rank);
                session.close().expect("closes");
            });
        }
    });
}

fn take(session: &Session, version: u64) {
    let field = vec![version as f64; 1000];
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
    checkpoint.save("field", &field).expect("a region");
    let pending = checkpoint.capture().expect("captured");
    pending.wait(Level::System).expect("committed");
}

fn status(bed: &Bed) -> Status {
    RunDirectory::at(bed.run_directory()).read_status("world").expect("readable").expect("there")
}

#[test]
fn the_root_tells_what_the_session_has_come_to() {
    let bed = Bed::new();
    run(&bed, |session, rank| {
        if rank == 0 {
            let opened = status(&bed);
            assert_eq!((opened.generation, opened.ranks, opened.closed, opened.calls), (1, RANKS, false, 0));
            assert_eq!((opened.pid, opened.restored, opened.first_step), (std::process::id(), None, None));
        }
        take(session, 10);
        take(session, 20);
        assert!(!session.should_exit().expect("agreed"));
        if rank == 0 {
            wait_until("the status says so", || status(&bed).checkpoints == 2 && status(&bed).calls >= 7);
            let now = status(&bed);
            let levels: Vec<(&str, u64, u64)> =
                now.levels.iter().map(|level| (level.level.as_str(), level.committed, level.version)).collect();
            assert_eq!(levels, [("process", 2, 20), ("node-reboot", 2, 20), ("system", 2, 20)]);
            assert!(now.series.iter().all(|series| (series.name.as_str(), series.version) == ("heat", 20)));
            assert!(now.opened <= now.first_step.expect("it made a step") && now.exit.is_none() && !now.closed);
        }
    });
    let closed = status(&bed);
    assert!(closed.closed && closed.in_flight == 0 && closed.failed.is_none());
    assert_eq!((closed.checkpoints, closed.checkpoints_total), (2, 2));

    // The next run continues the count, and reports what it has restored.
    run(&bed, |session, _| {
        let mut field = vec![0.0; 1000];
        session
            .begin_restore("heat")
            .run(|r| r.load("field", &mut field).map_err(Into::into))
            .expect("restored")
            .expect("found");
        take(session, 30);
    });
    let again = status(&bed);
    let restored = again.restored.expect("it restored something");
    assert_eq!((restored.name.as_str(), restored.version, restored.generation), ("heat", 20, 1));
    assert_eq!((again.generation, again.checkpoints, again.checkpoints_total), (2, 1, 3));
    assert_ne!(again.incarnation, closed.incarnation);
}

/// Takes a checkpoint of a value that all ranks share. If `seed` says what happens to it on other numbers of ranks, the checkpoint also has
/// a value of each rank.
fn take_shared(session: &Session, version: u64, seed: Option<OnResize>) {
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
    checkpoint.shared("step", &version).expect("a value");
    if let Some(on_resize) = seed {
        checkpoint.per_rank("seed", &1u64, on_resize).expect("a value");
    }
    checkpoint.capture().expect("captured").wait(Level::System).expect("committed");
}

#[test]
fn the_root_tells_which_regions_bind_the_newest_checkpoint_to_its_number_of_ranks() {
    let bed = Bed::new();
    let bound = |regions: &[&str]| Bound::of(regions.iter().copied());
    let newest = || {
        let newest = status(&bed).newest.pop().expect("something is committed");
        assert_eq!((newest.name.as_str(), newest.ranks), ("heat", RANKS));
        (newest.version, newest.bound)
    };
    run(&bed, |session, _| take_shared(session, 10, Some(OnResize::Drop)));
    assert_eq!(newest(), (10, bound(&[])));
    // The next session has committed nothing, but knows what the previous one reported.
    run(&bed, |_, _| {});
    assert_eq!(newest(), (10, bound(&[])));
    run(&bed, |session, _| take_shared(session, 20, Some(OnResize::Refuse)));
    assert_eq!(newest(), (20, bound(&["seed"])));
    run(&bed, |session, _| {
        take_shared(session, 30, None);
        take(session, 40);
    });
    assert_eq!(newest(), (40, bound(&["field"])));
    let mut command = bed.bivouac();
    command.arg("status").arg(bed.run_directory());
    let shown = bed.finish(command).expect(0).stdout;
    assert!(shown.contains("\"heat\" version 40 can be restored only by 2 ranks, because of \"field\""), "{shown}");
}

#[test]
fn all_ranks_obey_a_halt_condition_although_no_key_of_exit_is_set() {
    let bed = Bed::new();
    run(&bed, |session, rank| {
        assert!(!session.should_exit().expect("agreed"));
        take(session, 10);
        if rank == 0 {
            wait_until("the status counts it", || status(&bed).checkpoints_total == 1);
            bed.halt(&["--after", "2"]).expect(0);
        }
        take(session, 20);
        assert!(!session.should_exit().expect("agreed"), "one of two");
        take(session, 30);
        // The root may hear of the commit a moment later than the other rank.
        let mut asked = 0;
        while !session.should_exit().expect("agreed") {
            asked += 1;
            assert!(asked < 10_000, "never asked to exit");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(session.should_exit().expect("agreed"), "a yes stays");
    });
    let why = status(&bed).exit.expect("told");
    assert!(why.starts_with("after 2 more checkpoints (set by "), "{why}");
}

#[test]
fn foreign_and_broken_halt_files_are_ignored() {
    let bed = Bed::new();
    let halt = bed.run_directory().join("halt.json");
    run(&bed, |session, rank| {
        for text in ["garbage", "{}", "{\"schema\":1,\"kind\":\"somebody-else\",\"conditions\":[{\"when\":\"now\"}]}"] {
            if rank == 0 {
                fs::write(&halt, text).expect("written");
            }
            assert!(!session.should_exit().expect("agreed"), "{text}");
        }
        if rank == 0 {
            fs::remove_file(&halt).expect("removed");
            bed.halt(&["--now"]).expect(0);
        }
        assert!(session.should_exit().expect("agreed"));
    });
}

#[test]
fn a_run_directory_that_cannot_be_used_does_not_hurt_the_session() {
    let bed = Bed::new();
    fs::write(bed.run_directory(), "a file").expect("written");
    run(&bed, |session, _| {
        take(session, 10);
        assert!(!session.should_exit().expect("agreed"));
    });
    assert_eq!(fs::read_to_string(bed.run_directory()).unwrap(), "a file");
}

#[test]
fn a_run_that_was_given_up_does_not_overwrite_the_status_of_the_next() {
    let bed = Bed::new();
    run(&bed, |session, rank| {
        take(session, 10);
        if rank == 0 {
            // A later run has begun on other nodes.
            let later = Status { generation: 2, incarnation: "later".into(), ..status(&bed) };
            wait_until("the first run gives way", || {
                // The first run may have just read the file and may overwrite it once; the later run would write again.
                RunDirectory::at(bed.run_directory()).replace("status-world.json", &later.encode()).expect("written");
                std::thread::sleep(Duration::from_secs(2));
                status(&bed) == later
            });
        }
        take(session, 20);
    });
    let now = status(&bed);
    assert_eq!((now.incarnation.as_str(), now.closed), ("later", false));
}
