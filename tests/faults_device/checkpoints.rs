//! Collective checkpoints in which one rank's device fails: all ranks hear the same, and none of them stops.

use crate::device::{ALWAYS, Call, Fault, FaultyDevice};
use crate::logs;
use crate::machine::*;
use bivouac_core::cache::Keep;
use bivouac_core::config::Method;
use bivouac_core::device::Priority::{High, Low};
use bivouac_core::device::{Device, DeviceSpan};
use bivouac_core::tier::TierId;
use bivouac_core::transfer::history::{Field, FieldMut, Return};
use bivouac_core::{Caches, Level, Session};
use std::time::{Duration, Instant};

/// The same rank with its device behind switches.
fn behind_switches(rank: &Rank) -> (Rank, std::sync::Arc<FaultyDevice>) {
    let twin = rank.twin.clone().expect("the device is a twin");
    let device = FaultyDevice::around(twin.clone());
    let stream = device.stream(High).expect("a stream");
    (Rank { rank: rank.rank, device: device.clone(), twin: Some(twin), stream }, device)
}

/// Runs all ranks. The victim's device has these faults from the start.
fn with_faults<T: Send>(
    machine: &Machine,
    ranks: u32,
    faults: &[(Call, Fault, u64, u64)],
    body: impl Fn(&Rank, &Session, &FaultyDevice) -> T + Sync,
) -> Vec<T> {
    machine.run(ranks, |rank, session| {
        let (rank, device) = behind_switches(rank);
        if rank.rank == VICTIM {
            faults.iter().for_each(|(call, fault, pass, hits)| device.set(*call, *fault, *pass, *hits));
        }
        body(&rank, session, &device)
    })
}

/// Takes a checkpoint of memory that was allocated before.
fn try_span(rank: &Rank, session: &Session, caches: &Caches, version: u64, p: &DeviceSpan) -> Result<Level, String> {
    let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins").with_device(caches, &*rank.stream);
    checkpoint.save_device::<f64>("p", p).expect("a region");
    committed(checkpoint.capture(), Level::Process)
}

#[test]
fn a_device_without_memory_for_staging_sends_its_shard_straight_to_node_memory() {
    logs::collect();
    for ranks in [2, 4] {
        let machine = Machine { local_every: 1, ..Machine::new() };
        let faults = [(Call::CopyBlocks(High), Fault::OutOfMemory, 1, 1)];
        with_faults(&machine, ranks, &faults, |rank, session, device| {
            let caches = rank.caches(session);
            for version in 1..=3 {
                reaches(rank.capture(session, &caches, version), Level::NodeReboot);
            }
            let is_hit = u64::from(rank.rank == VICTIM);
            assert_eq!((device.hits(), session.stats().staged_captures), (is_hit, 3 - is_hit));
            assert_eq!(rank.restart(session), Some((3, "memory")));
        });
    }
    assert!(logs::has(&["event=not-staged", "no device memory for a test"]));
}

#[test]
fn a_landing_that_fails_is_a_no_with_its_reason_and_the_next_checkpoint_commits() {
    for ranks in [2, 4] {
        let machine = Machine { local_every: 1, ..Machine::new() };
        let faults = [(Call::Download(Low), Fault::Fail, 1, 1)];
        with_faults(&machine, ranks, &faults, |rank, session, _| {
            let caches = rank.caches(session);
            reaches(rank.capture(session, &caches, 1), Level::NodeReboot);
            let second = rank.capture(session, &caches, 2);
            names_the_victim(rank.rank, committed(second, Level::Process), "download: a test said so");
            assert_eq!(rank.restart(session), Some((1, "memory")), "the skipped one is none");
            reaches(rank.capture(session, &caches, 3), Level::NodeReboot);
            assert_eq!(rank.restart(session), Some((3, "memory")));
        });
    }
}

/// The contents of the files are right, and still no file is whole.
#[test]
fn where_a_device_cannot_look_at_chunks_blocks_are_compared_or_the_processor_looks() {
    logs::collect();
    for (call, fault) in [(Call::Table, Fault::OutOfMemory), (Call::Look, Fault::Fail)] {
        let machine = Machine { local_every: 1, method: Method::Tree, ..Machine::new() };
        let faults = [(call, fault, u64::from(call == Call::Look), 1)];
        with_faults(&machine, RANKS, &faults, |rank, session, _| {
            let caches = rank.caches(session);
            (1..=6).for_each(|version| take_reduced(rank, session, &caches, version));
            let reduction = session.stats().reduction;
            let is_hit = u64::from(rank.rank == VICTIM);
            assert_eq!((reduction.looked_on_device, reduction.packed), (6 - is_hit, 5), "{reduction:?}");
        });
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        machine.run(RANKS, |rank, session| assert_eq!(load_reduced(rank, session), (6, "local")));
    }
    assert!(logs::has(&["event=reduction-not-on-device", "a test said so"]));
}

/// The copy fails either in the call itself, or when its digests are waited for.
#[test]
fn a_copy_that_fails_in_capture_is_a_no_that_all_ranks_hear() {
    for fault in [Fault::Fail, Fault::FailLater] {
        let faults = [(Call::CopyBlocks(High), fault, 0, 1)];
        with_faults(&Machine::new(), RANKS, &faults, |rank, session, _| {
            let caches = rank.caches(session);
            let p = rank.span(&content(rank.rank, 1, 1, P_BYTES));
            names_the_victim(rank.rank, try_span(rank, session, &caches, 1, &p), "copy_blocks: a test said so");
            reaches(rank.capture(session, &caches, 2), Level::Process);
            assert_eq!(rank.restart(session), Some((2, "memory")));
        });
    }
}

#[test]
fn a_rank_whose_device_is_lost_goes_on_with_host_memory() {
    let faults = [(Call::Download(Low), Fault::Lose, 1, 1)];
    let begun = Instant::now();
    let machine = Machine { abandon: Duration::from_secs(120), ..Machine::new() };
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let caches = rank.caches(session);
        reaches(rank.capture(session, &caches, 1), Level::Process);
        let p = rank.span(&content(rank.rank, 2, 1, P_BYTES));
        names_the_victim(rank.rank, try_span(rank, session, &caches, 2, &p), "a test pulled the plug");
        for version in 3..6 {
            names_the_victim(rank.rank, try_span(rank, session, &caches, version, &p), "device 0 is lost");
            rank.take_host(session, version);
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(100), "nobody waited for a time-out: {:?}", begun.elapsed());
}

/// The digests were computed on the device, before the data crossed the link.
#[test]
fn a_shard_that_was_damaged_on_the_link_reaches_no_durable_level() {
    let staged = vec![(Call::Download(Low), Fault::Damage, 1, 1)];
    let direct = vec![(Call::CopyBlocks(High), Fault::OutOfMemory, 1, 1), (Call::Download(High), Fault::Damage, 0, 1)];
    for faults in [staged, direct] {
        let machine = Machine { local_every: 1, ..Machine::new() };
        with_faults(&machine, RANKS, &faults, |rank, session, device| {
            let caches = rank.caches(session);
            reaches(rank.capture(session, &caches, 1), Level::NodeReboot);
            let second = rank.capture(session, &caches, 2);
            names_the_victim(rank.rank, committed(second, Level::NodeReboot), "\"p\"");
            assert_eq!(device.hits(), if rank.rank == VICTIM { faults.len() as u64 } else { 0 });
            // The damaged version is not restored from node memory either: all ranks fall back to the previous version, which has given up
            // its place in node memory to this one.
            assert_eq!(rank.restart(session), Some((1, "local")));
            reaches(rank.capture(session, &caches, 3), Level::NodeReboot);
        });
        machine.run(RANKS, |rank, session| assert_eq!(rank.restart(session), Some((3, "memory"))));
    }
}

/// If no durable level follows, the bytes are not read before a restart reads them.
#[test]
fn a_shard_that_was_damaged_on_the_link_is_not_restored_from_node_memory() {
    let machine = Machine::new();
    let faults = [(Call::Download(Low), Fault::Damage, 1, 1)];
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let caches = rank.caches(session);
        // The first checkpoint of a run goes to every tier.
        reaches(rank.capture(session, &caches, 1), Level::NodeReboot);
        reaches(rank.capture(session, &caches, 2), Level::Process);
    });
    machine.run(RANKS, |rank, session| {
        assert_eq!(rank.restart(session), Some((1, "local")), "rank {}", rank.rank);
        assert_eq!(session.stats().damaged[TierId::MEMORY] > 0, rank.rank == VICTIM);
    });
}

#[test]
fn a_shard_that_goes_straight_to_a_file_is_compared_with_what_lay_on_the_device() {
    let machine = Machine { memory_enabled: false, local_every: 1, ..Machine::new() };
    let faults = [(Call::Download(High), Fault::Damage, 0, 1)];
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let caches = rank.caches(session);
        let p = rank.span(&content(rank.rank, 1, 1, P_BYTES));
        names_the_victim(rank.rank, try_span(rank, session, &caches, 1, &p), "\"p\"");
        reaches(rank.capture(session, &caches, 2), Level::NodeReboot);
        assert_eq!(rank.restart(session), Some((2, "local")));
    });
}

#[test]
fn a_region_that_is_damaged_on_its_way_up_is_read_from_the_next_copy() {
    let machine = Machine { local_every: 1, ..Machine::new() };
    machine.run(RANKS, |rank, session| {
        reaches(rank.capture(session, &rank.caches(session), 1), Level::NodeReboot);
    });
    let faults = [(Call::Upload(High), Fault::Damage, 0, 1)];
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let tier = if rank.rank == VICTIM { "local" } else { "memory" };
        assert_eq!(rank.restart(session), Some((1, tier)), "rank {}", rank.rank);
    });
    // If the link damages all uploads, no copy survives.
    let faults = [(Call::Upload(High), Fault::Damage, 0, ALWAYS)];
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let p = rank.span(&vec![0; P_BYTES]);
        let restored =
            session.begin_restore(NAME).run(|restorer| Ok(restorer.load_device::<f64>("p", &p, &*rank.stream)?));
        assert!(!matches!(restored, Ok(Some(_))), "rank {}", rank.rank);
    });
}

#[test]
fn a_load_that_fails_ends_the_restart_on_all_ranks_and_the_next_one_works() {
    let machine = Machine::new();
    machine.run(RANKS, |rank, session| {
        reaches(rank.capture(session, &rank.caches(session), 1), Level::Process);
    });
    let faults = [(Call::Upload(High), Fault::Fail, 0, 1)];
    with_faults(&machine, RANKS, &faults, |rank, session, _| {
        let p = rank.span(&vec![0; P_BYTES]);
        let error =
            session.begin_restore(NAME).run(|restorer| Ok(restorer.load_device::<f64>("p", &p, &*rank.stream)?));
        let error = error.expect_err("one device failed").to_string();
        assert!(error.contains(&format!("rank {VICTIM}")) && error.contains("upload: a test said so"), "{error}");
        assert_eq!(rank.restart(session), Some((1, "memory")));
    });
}

/// The loss becomes known while the capture waits for the restore: the application knows that the checkpoint lacks that version.
#[test]
fn a_version_whose_enqueued_restore_was_wrong_is_left_out_once_the_application_heard_of_it() {
    with_faults(&Machine::new(), 1, &[], |rank, session, device| {
        let caches = rank.caches(session);
        let history = caches.history("wave", Keep::UntilRead);
        let spans = [70, 71].map(|version| rank.span(&content(0, version, 1, P_BYTES)));
        for (version, span) in [70, 71].into_iter().zip(&spans) {
            history.append(version, &[Field::device::<f64>("p", span)], &*rank.stream).expect("room");
        }
        assert_eq!(device.damage(&content(0, 70, 1, P_BYTES)), 1);
        let fields = &mut [FieldMut::device::<f64>("p", &spans[0])];
        history.restore_and(70, fields, &*rank.stream, Return::Enqueued).expect("enqueued");
        let capture = |version: u64| {
            let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
            checkpoint.save_history(&history).expect("regions");
            committed(checkpoint.capture(), Level::Process)
        };
        let error = capture(1).expect_err("nobody was told yet");
        assert!(error.contains("version 70"), "{error}");
        assert!(history.settle().is_err());
        capture(2).expect("the application knows");
    });
}
