//! Files that the program writes: files that are regions, and files that grow while checkpoints are taken.

use super::*;
use crate::recovery::LoadError;
use crate::region::RegionError;
use crate::session::{Companion, OnRestart};
use std::fs::File;
use std::io::Write;

/// A configuration whose node-local storage is a real folder.
fn with_scratch(bed: &Bed, scratch: &Path) -> Config {
    let mut config = bed.config();
    (config.job.local_enabled, config.node.local_directory) = (false, Some(scratch.to_owned()));
    config
}

/// All files below a folder.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

#[test]
fn a_routed_file_is_a_region_and_is_gone_from_the_disk_afterwards() {
    let (bed, scratch) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let place = bed.place();
    let session = bed.open(&place, with_scratch(&bed, scratch.path()));
    let long: Vec<u8> = (0..37_000_001u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    // This file was left by a killed run.
    let old = scratch.path().join(".files").join(crate::session::place::job_key(session.engine().config(), &place));
    std::fs::create_dir_all(old.join("world-r000000/other-7")).expect("a folder");
    std::fs::write(old.join("world-r000000/other-7/x"), "left").expect("written");

    let mut ckpt = session.begin_checkpoint("heat", 5).expect("begun");
    let path = ckpt.route("out/dump.h5").expect("a path");
    assert!(path.starts_with(scratch.path()) && !path.exists() && path.to_string_lossy().ends_with("-dump.h5"));
    std::fs::write(&path, &long).expect("written");
    assert_eq!(ckpt.route("out/dump.h5").expect("a path"), path, "asked for again it is there");
    assert!(path.exists() && files_in(scratch.path()).len() == 1, "and nothing of the killed run");
    std::fs::write(ckpt.route("empty").expect("a path"), b"").expect("written");
    assert!(matches!(ckpt.save("empty", &[0u8]), Err(Error::Region(RegionError::Twice { .. }))));
    ckpt.save("array", &[1u64, 2, 3]).expect("added");
    assert!(matches!(ckpt.route("array"), Err(Error::Region(RegionError::Twice { .. }))));
    ckpt.shared("step", &5u64).expect("added");
    settle(&ckpt.capture().expect("captured"));
    assert!(files_in(scratch.path()).is_empty());

    let mut seen = None;
    let load = |attempt: &mut crate::recovery::Attempt| {
        let path = attempt.route("out/dump.h5")?;
        assert!(std::fs::read(&path).expect("it is there") == long);
        assert_eq!(attempt.route("out/dump.h5")?, path);
        assert_eq!(std::fs::read(attempt.route("empty")?).expect("it is there"), b"");
        assert_eq!(std::fs::read(attempt.route("array")?).expect("it is there").len(), 24);
        assert!(attempt.load_vec::<u8>("out/dump.h5")? == long);
        assert!(matches!(attempt.route("nobody"), Err(LoadError::Missing { .. })));
        assert!(matches!(attempt.route("step"), Err(LoadError::Mismatch { .. })), "a value is none");
        seen = Some(path);
        Ok(())
    };
    session.begin_restore("heat").run(load).expect("restarts").expect("it is there");
    assert!(!seen.expect("loaded").exists(), "until the attempt has ended");
    session.close().expect("closes");
}

#[test]
fn a_routed_file_that_is_missing_fails_the_capture_on_all_ranks_and_one_that_is_given_up_goes() {
    let (bed, scratch) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let places = [bed.place(), bed.place()];
    on_one_node(&places, &with_scratch(&bed, scratch.path()), |rank, session| {
        let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
        let path = ckpt.route("dump").expect("a path");
        if rank == 0 {
            std::fs::write(&path, "dump").expect("written");
        }
        let captured = ckpt.capture();
        if rank == 0 {
            assert!(captured.expect("here").wait(Level::Process).is_err());
        } else {
            let error = captured.err().expect("no file").to_string();
            assert!(error.contains(&path.display().to_string()) && error.contains("was not saved"), "{error}");
        }
        let mut ckpt = session.begin_checkpoint("heat", 2).expect("begun");
        let path = ckpt.route("dump").expect("a path");
        std::fs::write(&path, "dump").expect("written");
        drop(ckpt);
        assert!(!path.exists());
        session.close().expect("closes");
    });
    // If there is no place for the file, the error gives the reason.
    let blocked = scratch.path().join("file");
    std::fs::write(&blocked, "").expect("written");
    let session = bed.open(&bed.place(), with_scratch(&bed, &blocked));
    let mut ckpt = session.begin_checkpoint("heat", 3).expect("begun");
    let error = ckpt.route("dump").expect_err("no folder").to_string();
    assert!(error.contains("rank 0") && error.contains("\"dump\"") && error.contains("local.directory"), "{error}");
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().append(true).create(true).open(path).expect("opens");
    file.write_all(text.as_bytes()).expect("written");
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("it can be read")
}

/// Appends a line and takes a version, for each number in `versions`.
fn advance(session: &Session, file: Option<PathBuf>, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        if let Some(path) = &file {
            append(path, &format!("step {version}\n"));
        }
        let mut ckpt = session.begin_checkpoint("heat", version).expect("begun");
        ckpt.shared("step", &version).expect("saved");
        let pending = ckpt.capture().expect("captured");
        settle(&pending);
        pending.wait(Level::System).expect("committed");
    }
}

fn steps(versions: std::ops::RangeInclusive<u64>) -> String {
    versions.map(|version| format!("step {version}\n")).collect()
}

fn restored(session: &Session) -> Result<Option<u64>, Error> {
    let load = |attempt: &mut crate::recovery::Attempt| attempt.shared::<u64>("step").map(drop).map_err(Error::from);
    Ok(session.begin_restore("heat").run(load)?.map(|restored| restored.version))
}

/// The second of two ranks writes the file. Bytes that were written after the last checkpoint are cut off. If the file has lost its end, or
/// has other bytes, the version does not count; if no version counts, there is nothing to restore.
#[test]
fn a_companion_is_cut_to_what_the_restored_version_knows() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("energy.csv");
    let run = |work: &(dyn Fn(&Session, &Companion) + Sync)| {
        on_nodes(
            &bed,
            &[0, 0],
            |config| config.job.global.keep_last = 10,
            |rank, session| {
                let own = (rank == 1).then_some(path.as_path());
                let companion = session.companion("heat", own, OnRestart::Truncate).expect("all say it");
                assert_eq!(companion.path().as_deref(), own);
                work(&session, &companion);
                session.close().expect("closes");
            },
        )
    };
    run(&|session, companion| {
        assert_eq!(restored(session).expect("restarts"), None);
        advance(session, companion.path(), 1..=4);
        companion.path().iter().for_each(|path| append(path, "lost 5\nlost 6\n"));
    });
    run(&|session, _| assert_eq!(restored(session).expect("restarts"), Some(4)));
    assert_eq!(text(&path), steps(1..=4));
    // A node died together with the end of the file.
    File::options().write(true).open(&path).expect("opens").set_len(18).expect("cut");
    run(&|session, _| assert_eq!(restored(session).expect("restarts"), Some(2)));
    assert_eq!(text(&path), steps(1..=2));
    run(&|session, companion| {
        assert_eq!(restored(session).expect("restarts"), Some(2));
        advance(session, companion.path(), 3..=4);
    });
    // The file has different bytes than at the capture.
    std::fs::write(&path, steps(1..=4).replace("step 3", "step X")).expect("written");
    run(&|session, _| assert_eq!(restored(session).expect("restarts"), Some(2)));
    std::fs::remove_file(&path).expect("removed");
    run(&|session, _| {
        let error = restored(session).expect_err("no version agrees").to_string();
        assert!(error.contains("rank 1") && error.contains("energy.csv") && error.contains("No such file"), "{error}");
    });
    assert!(!path.exists());
}

#[test]
fn a_companion_that_must_not_be_cut_ends_the_restart_on_all_ranks() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("energy.csv");
    let run = |more: &str| {
        on_nodes(
            &bed,
            &[0, 0],
            |_| (),
            |rank, session| {
                let own = (rank == 0).then_some(path.as_path());
                let companion = session.companion("heat", own, OnRestart::Refuse).expect("all say it");
                let found = restored(&session).map_err(|error| error.to_string());
                if found == Ok(None) {
                    advance(&session, companion.path(), 1..=2);
                    companion.path().iter().for_each(|path| append(path, more));
                }
                session.close().expect("closes");
                found
            },
        )
    };
    assert_eq!(run("more\n"), [Ok(None), Ok(None)]);
    let [Err(one), Err(other)] = &run("")[..] else { panic!("refused") };
    assert!(one == other && one.contains("5 bytes more than version 2 recorded"), "{one}");
    assert_eq!(text(&path), steps(1..=2) + "more\n");
    std::fs::write(&path, steps(1..=2)).expect("written");
    assert_eq!(run(""), [Ok(Some(2)), Ok(Some(2))]);
}

#[test]
fn another_file_is_started_where_the_old_one_is_to_stay() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("traj.tar.xtc");
    let part = |number: u32| folder.path().join(format!("traj.tar.part{number:04}.xtc"));
    let run = |until: u64, more: &str| {
        let session = bed.open(&bed.place(), bed.config());
        let companion = session.companion("heat", Some(&path), OnRestart::Another).expect("it is one");
        let from = restored(&session).expect("restarts");
        let now = companion.path().expect("it has one");
        advance(&session, Some(now.clone()), from.map_or(1, |from| from + 1)..=until);
        append(&now, more);
        session.close().expect("closes");
        (from, now)
    };
    assert_eq!(run(2, "lost"), (None, path.clone()));
    assert_eq!(run(4, ""), (Some(2), part(2)));
    // Nothing was written after the last checkpoint, so the program continues in the same file.
    assert_eq!(run(5, "lost"), (Some(4), part(2)));
    append(&part(3), "somebody else's");
    assert_eq!(run(6, ""), (Some(5), part(4)));
    assert_eq!((text(&path), text(&part(2))), (steps(1..=2) + "lost", steps(3..=5) + "lost"));
    assert_eq!((text(&part(3)), text(&part(4))), ("somebody else's".to_owned(), steps(6..=6)));
}

/// Runs on three ranks, one rank and two ranks. The last rank writes the file each time.
#[test]
fn a_companion_is_found_by_whoever_writes_it_on_another_number_of_ranks() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("energy.csv");
    for (count, ranks) in [(1, 3u32), (2, 1), (3, 2)] {
        on_nodes(
            &bed,
            &vec![0; ranks as usize],
            |_| (),
            |rank, session| {
                let own = (rank + 1 == ranks).then_some(path.as_path());
                let companion = session.companion("heat", own, OnRestart::Truncate).expect("all say it");
                assert_eq!(restored(&session).expect("restarts"), (count > 1).then_some(count - 1));
                companion.path().iter().for_each(|path| assert_eq!(path.exists(), count > 1));
                advance(&session, companion.path(), count..=count);
                companion.path().iter().for_each(|path| append(path, "lost\n"));
                session.close().expect("closes");
            },
        );
        assert_eq!(text(&path), steps(1..=count) + "lost\n");
    }
}

#[test]
fn ranks_that_say_different_things_of_companions_hear_it() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    on_nodes(
        &bed,
        &[0, 0],
        |_| (),
        |rank, session| {
            let how = if rank == 0 { OnRestart::Truncate } else { OnRestart::Another };
            let heard = |result: Result<Companion, Error>| result.expect_err("refused").to_string();
            let error = heard(session.companion("heat", None, how));
            assert!(error.contains("Truncate") && error.contains("Another"), "{error}");
            // On one rank only, the path is that of a folder.
            let error = heard(session.companion("heat", (rank == 1).then_some(folder.path()), OnRestart::Refuse));
            assert!(error.contains("rank 1") && error.contains("is not a file"), "{error}");
            let error = heard(session.companion("a/b", None, OnRestart::Refuse));
            assert!(error.contains("\"a/b\""), "{error}");
            session.companion("heat", None, OnRestart::Refuse).expect("a rank without a file");
            session.close().expect("closes");
        },
    );
}
