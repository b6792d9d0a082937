//! Regions that are copied before their checkpoint is captured, and copies that are kept from a look at a checkpoint until the restart.

use super::*;
use crate::base::units::{KIB, MIB};
use crate::recovery::LoadError;
use crate::region::{self, SavedRegion};

fn array<'a>(name: &str, bytes: &'a [u8]) -> SavedRegion<'a> {
    region::array(name, bytes, &[bytes.len() as u64]).expect("a region")
}

fn loaded(session: &Session, names: &[&str]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let restored = session.begin_restore("heat").run(|from| {
        all = names.iter().map(|name| from.load_vec::<u8>(name)).collect::<Result<_, LoadError>>()?;
        Ok(())
    });
    restored.expect("restarts").expect("there is something");
    all
}

fn is_free(session: &Session, before: u64) -> bool {
    session.engine.memory().expect("it is on").room().expect("asked") == before
}

/// Changes after the copy are not captured; regions that were not held are captured as they are at the capture. The held regions are in
/// memory, or in a file if no slot is long enough.
#[test]
fn what_is_held_is_captured_as_it_was() {
    for (budget, direct) in [(64 * MIB, 0), (4 * MIB, 1)] {
        let bed = Bed::new();
        let (place, mut config) = (bed.place(), bed.config());
        config.node.memory_budget = Budget::Bytes(budget);
        let session = bed.open(&place, config.clone());
        let (mut first, mut second) = (vec![1u8; 5 * MIB as usize + 17], vec![2u8; 9000]);
        let lent = vec![3u8; 5000];
        let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
        checkpoint.hold(vec![array("first", &first)], 20_000).expect("held");
        first.fill(99);
        checkpoint.hold(vec![array("second", &second)], 10_000).expect("held");
        second.fill(98);
        checkpoint.value("step", &1u64).expect("added");
        checkpoint.save("lent", &lent).expect("added");
        settle(&checkpoint.capture().expect("captured"));
        let stats = session.stats();
        assert_eq!((stats.captured, stats.direct_captures, stats.committed[TierId::GLOBAL]), (1, direct, 1));
        assert!(stats.blocked_last > Duration::ZERO);
        session.close().expect("closes");
        let session = bed.open(&place, config);
        let all = loaded(&session, &["first", "second", "lent"]);
        assert!(all == [vec![1u8; 5 * MIB as usize + 17], vec![2u8; 9000], lent]);
        session.close().expect("closes");
    }
}

/// More regions come than were announced. The held regions move to a longer slot, and the test would notice if they were overwritten there.
#[test]
fn what_is_held_moves_when_more_comes_than_was_said() {
    let bed = Bed::new();
    let (place, mut config) = (bed.place(), bed.config());
    config.node.memory_budget = Budget::Bytes(64 * MIB);
    let session = bed.open(&place, config.clone());
    let parts: Vec<(String, Vec<u8>)> = (0..300u32).map(|at| (format!("part{at}"), vec![at as u8; 40_000])).collect();
    let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
    checkpoint.hold(vec![array("first", &[7; 100_000])], 0).expect("held");
    // More regions come with another call of `hold`, and at the capture.
    checkpoint.hold(parts[..100].iter().map(|(name, bytes)| array(name, bytes)).collect(), 0).expect("held");
    for (name, bytes) in &parts[100..] {
        checkpoint.save(name, bytes).expect("added");
    }
    settle(&checkpoint.capture().expect("captured"));
    assert_eq!(session.stats().direct_captures, 0);
    session.close().expect("closes");
    let session = bed.open(&place, config);
    let names: Vec<&str> = ["first"].into_iter().chain(parts.iter().map(|(name, _)| name.as_str())).collect();
    let all = loaded(&session, &names);
    assert!(all[0] == [7; 100_000] && all[1..].iter().zip(&parts).all(|(found, (_, bytes))| found == bytes));
    session.close().expect("closes");
}

/// A region that is held again gets its newer state. A region of another shape is refused, and the held one stays.
#[test]
fn what_is_held_may_be_held_again() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
    checkpoint.hold(vec![array("a", &[1; 5000]), array("b", &[1; 5000])], 0).expect("held");
    checkpoint.hold(vec![array("a", &[2; 5000])], 0).expect("held");
    let refused = checkpoint.hold(vec![array("b", &[3; 5001])], 0);
    assert!(matches!(refused, Err(Error::Region(region::RegionError::Twice { .. }))), "{refused:?}");
    settle(&checkpoint.capture().expect("captured"));
    assert!(loaded(&session, &["a", "b"]) == [[2; 5000], [1; 5000]]);
    session.close().expect("closes");
}

/// When the checkpoint is given up, the room is free again, in memory and on the disk.
#[test]
fn what_is_held_and_not_captured_gives_its_room_back() {
    for (budget, is_in_memory) in [(64 * MIB, true), (4 * MIB, false)] {
        let bed = Bed::new();
        let mut config = bed.config();
        config.node.memory_budget = Budget::Bytes(budget);
        let session = bed.open(&bed.place(), config);
        let files = |bed: &Bed| {
            bed.disk
                .files(Path::new("/local"))
                .iter()
                .filter(|(path, _)| path.extension().is_some_and(|e| e == "tmp"))
                .count()
        };
        let free = session.engine.memory().expect("it is on").room().expect("asked");
        let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
        checkpoint.hold(vec![array("a", &vec![1; 6 * MIB as usize])], 0).expect("held");
        assert_eq!((is_free(&session, free), files(&bed)), (!is_in_memory, usize::from(!is_in_memory)));
        drop(checkpoint);
        assert!(is_free(&session, free) && files(&bed) == 0);
        assert_eq!(take_and_settle(&session, 2), Level::System);
        session.close().expect("closes");
    }
}

/// If no tier has room, the call says so, and a later capture is refused instead of being made up.
#[test]
fn what_could_not_be_held_is_not_captured() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.node.memory_budget = Budget::Bytes(4 * MIB);
    (config.job.local_enabled, config.job.global_enabled) = (false, false);
    let session = bed.open(&bed.place(), config);
    let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
    checkpoint.hold(vec![array("a", &[1; 5000])], 0).expect("held");
    let held = checkpoint.hold(vec![array("b", &vec![1; 6 * MIB as usize])], 64 * KIB);
    assert!(matches!(held, Err(Error::Capture(_))), "{held:?}");
    // Regions that were held before are gone, and the checkpoint cannot continue without them.
    let again = checkpoint.hold(vec![array("b", &[1; 5000])], 0);
    assert!(matches!(again, Err(Error::Capture(_))), "{again:?}");
    assert!(matches!(checkpoint.capture(), Err(Error::Capture(_))));
    session.close().expect("closes");
}

/// Captures do not wait for the room that later regions may need: a small part of a large protected state also goes to memory.
#[test]
fn room_for_what_may_come_is_not_insisted_on() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
    checkpoint.hold(vec![array("a", &[1; 5000])], 64 * MIB).expect("held");
    settle(&checkpoint.capture().expect("captured"));
    assert_eq!((session.stats().direct_captures, session.stats().room_waits), (0, 0));
    session.close().expect("closes");
}

/// Meanwhile, a later checkpoint of the series is committed, and older ones are deleted. Then the application goes back, and the state that
/// it held before is no longer valid.
#[test]
fn what_is_held_outlives_later_checkpoints_and_no_restart() {
    for budget in [64 * MIB, 4 * MIB] {
        let bed = Bed::new();
        let mut config = bed.config();
        config.node.memory_budget = Budget::Bytes(budget);
        let session = bed.open(&bed.place(), config);
        let hold = |version| {
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.hold(vec![array("a", &vec![1; 6 * MIB as usize])], 0).expect("held");
            checkpoint
        };
        let first = hold(1);
        for version in 2..6 {
            assert_eq!(take_and_settle(&session, version), Level::System);
        }
        settle(&first.capture().expect("captured"));
        let second = hold(7);
        assert_eq!(restart(&session).map(|restored| restored.version), Some(5));
        let refused = second.capture().map(drop).expect_err("it is of another stretch").to_string();
        assert!(refused.contains("restart"), "{refused}");
        session.close().expect("closes");
    }
}

/// No byte that a look has read is read again, because the file may be gone by then. Without room in memory, nothing is kept.
#[cfg(feature = "mpi")]
#[test]
fn what_was_read_to_be_verified_is_restored_from_memory() {
    let bed = Bed::new();
    let (place, config) = (bed.place(), bed.config());
    let session = bed.open(&place, config.clone());
    take_bytes(&session, 1, 5 * MIB as usize).expect("captured").wait(Level::System).expect("committed");
    session.close().expect("closes");
    let session = bed.open(&place, config);
    let look = || session.look("heat", crate::recovery::Want::Newest).expect("elected").expect("there is one");
    let mut attempt = look();
    assert!(attempt.attempt().verify(|_| None).expect("it is right").is_none());
    attempt
        .end_uncounted(&session, Some(crate::recovery::Unloaded::Refused("only looked".into())))
        .map(drop)
        .expect_err("nothing else is there");
    let mut attempt = look();
    let memory = session.engine.memory().expect("it is on");
    let free = memory.room().expect("asked");
    let kept = attempt.attempt().verify(|bytes| memory.reserve(bytes).expect("asked")).expect("it is right");
    let kept = kept.expect("there was room");
    assert_eq!(kept.tier(), TierId::LOCAL);
    assert!(!is_free(&session, free));
    for top in ["/local", "/global"] {
        for (path, length) in bed.disk.files(Path::new(top)) {
            for page in 0..length / 4096 {
                bed.disk.flip_bit(&path, page * 4096 * 8 + 5).expect("it is there");
            }
        }
    }
    attempt.attempt().prefer(kept);
    let array = attempt.attempt().load_vec::<u8>("array").expect("from memory");
    assert!(array == vec![7; 5 * MIB as usize]);
    assert_eq!(attempt.attempt().damaged()[TierId::LOCAL], 0);
    drop(attempt);
    assert!(is_free(&session, free), "the room is given back");
    session.close().expect("closes");
}
