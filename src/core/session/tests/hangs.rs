//! The local file system hangs: its calls do not return, and no error is reported. The tests of a global file system that hangs are in the
//! parent module.
//!
//! Node memory has no such test: it consists of mapped pages of a tmpfs, which needs no server, and the session reaches it by system calls
//! alone. A call takes long only if memory is short, and then ends in an error.

use super::*;
use crate::transfer::progress::LevelVerdict;

fn protected(config: &mut Config) {
    impatient(config);
    config.job.redundancy.scheme = Scheme::Partner { copies: 1 };
}

/// Has a new version reached all tiers that keep files?
fn is_everywhere(session: &Session, version: u64) -> bool {
    let pending = take(session, version);
    // After this, all ranks have received the same verdicts and continue in the same way.
    wait_until("all levels end", || pending.poll());
    let verdicts = pending.verdicts();
    [Level::NodeReboot, Level::System].iter().all(|level| verdicts.contains(&(*level, LevelVerdict::Committed)))
}

/// On both nodes, the disk is about to die.
#[test]
fn while_the_local_file_system_hangs_all_other_levels_go_on_and_then_all_do() {
    let (bed, gate, together) = (Bed::new(), Arc::new(Gate::default()), Barrier::new(2));
    let forced = gate.watch_over(|| {
        bed.on_two_nodes(TierId::LOCAL, &gate, protected, |session| {
            commit(&session, &[1], Level::System);
            // The work that follows from the verdict on the local level is done without the local file system.
            session.progress();
            together.wait();
            gate.close();
            let newest = || session.stats().newest;
            for version in 2..8 {
                let pending = take(&session, version);
                let all =
                    [Level::Process, Level::NodeLoss, Level::System].map(|level| (level, LevelVerdict::Committed));
                wait_until("all levels end but the local one", || {
                    all.iter().all(|(level, _)| pending.verdicts().iter().any(|(ended, _)| ended == level))
                });
                assert!(all.iter().all(|level| pending.verdicts().contains(level)), "{:?}", pending.verdicts());
                leap_on_two(&bed, &together);
            }
            assert_eq!((newest()[TierId::MEMORY], newest()[TierId::GLOBAL]), (Some(7), Some(7)));
            assert!(newest()[TierId::LOCAL] < Some(2), "{:?}", newest());
            together.wait();
            gate.open();
            assert!((20..40).any(|version| is_everywhere(&session, version)), "the local level does not come back");
            session.close().expect("closes");
        });
    });
    assert!(!forced, "something waited for the local file system");
}

#[test]
fn close_does_not_wait_longer_than_it_says_for_a_local_file_system_that_hangs() {
    close_keeps_its_limit(TierId::LOCAL, Level::System);
}

/// A capture that finds no room in node memory writes to a file itself, on the application's own thread.
#[test]
fn a_capture_without_room_goes_to_no_file_system_that_hangs() {
    let (bed, local, global) = (Bed::new(), Arc::new(Gate::default()), Arc::new(Gate::default()));
    let place = behind(behind(bed.place(), TierId::LOCAL, &local), TierId::GLOBAL, &global);
    let mut config = bed.config();
    impatient(&mut config);
    config.job.timeouts.room = Duration::from_millis(300);
    let session = bed.open(&place, config);
    let field = vec![7u8; 3 << 20];
    let capture = |version| {
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
        checkpoint.save("field", &field).expect("saved");
        checkpoint.value("step", &version).expect("saved");
        checkpoint.capture()
    };
    let work = || {
        local.close();
        global.close();
        let first = capture(1).expect("memory has room");
        local.hold_up();
        global.hold_up();
        let refused = (2..40).find_map(|version| capture(version).err()).expect("memory is full");
        let text = refused.to_string();
        let words = ["memory tier: no room", "local tier: /local seems to hang", "global tier: /global seems to hang"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        global.open();
        let mut versions = 40..;
        let mut last = None;
        wait_until("the global tier takes them", || {
            last = capture(versions.next().expect("endless")).ok();
            last.is_some()
        });
        for pending in [first, last.expect("captured")] {
            assert_eq!(pending.wait(Level::System).expect("committed"), Level::System);
        }
        assert_eq!(session.stats().direct_captures, 1, "there was room in memory");
        local.open();
    };
    let mut forced = [false; 2];
    forced[0] = local.watch_over(|| forced[1] = global.watch_over(work));
    assert_eq!(forced, [false; 2], "a capture waited for a file system");
    session.close().expect("closes");
}
