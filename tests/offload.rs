//! Checkpoints that are marked and then sent from live memory, with the real session on ranks that are threads of this process. Each rank
//! has a host twin as its device.
#![forbid(unsafe_code)]

mod common;
mod machine;

use bivouac_core::config::{FlushRate, HostWrites, OffloadConfig, OffloadMode, StaggerConfig};
use bivouac_core::device::DeviceSpan;
use bivouac_core::format::ShardHeader;
use bivouac_core::{Attempt, Level, Offload, Pending, Session};
use common::limit::wait_until;
use machine::*;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const ALWAYS: OffloadConfig =
    OffloadConfig { mode: OffloadMode::Always, audit: true, host_writes: HostWrites::Watched };

/// A program's regions on its device: one that changes all the time, and one that never does.
struct Program {
    p: DeviceSpan,
    table: DeviceSpan,
}

impl Program {
    fn new(rank: &Rank) -> Program {
        let table = rank.span(&content(rank.rank, 0, 7, Q_BYTES));
        Program { p: rank.span(&content(rank.rank, 0, 1, P_BYTES)), table }
    }

    /// Enqueues the work that gives `p` its contents in a version; with `offload`, the write is declared first.
    fn compute(&self, rank: &Rank, offload: Option<&Offload>, version: u64) {
        if let Some(offload) = offload {
            offload.before_write(&self.p, &*rank.stream).expect("declared");
        }
        let next = rank.span(&content(rank.rank, version, 1, P_BYTES));
        rank.stream.copy(&next, &self.p).expect("enqueued");
    }

    fn mark(&self, rank: &Rank, session: &Session, offload: &Offload, version: u64) -> bivouac_core::Result<Pending> {
        let mesh = content(rank.rank, version, 3, MESH_BYTES);
        let mut checkpoint = session.begin_checkpoint(NAME, version)?.with_offload(offload, &*rank.stream);
        checkpoint.save("mesh", &mesh)?;
        checkpoint.save_device::<u8>("p", &self.p)?;
        checkpoint.value("version", &version)?;
        checkpoint.save_device::<u8>("table", &self.table)?;
        checkpoint.capture()
    }

    /// Restores the newest version, and returns its number and the tier from which it came.
    fn restart(rank: &Rank, session: &Session) -> Option<(u64, &'static str)> {
        let load = |restorer: &mut Attempt| {
            let version: u64 = restorer.value("version")?;
            let (p, mut table) = (rank.span(&vec![0; P_BYTES]), vec![0u8; Q_BYTES]);
            let mut mesh = vec![0u8; MESH_BYTES];
            restorer.load_device::<u8>("p", &p, &*rank.stream)?;
            restorer.load("table", &mut table)?;
            restorer.load("mesh", &mut mesh)?;
            assert!(rank.bytes(&p) == content(rank.rank, version, 1, P_BYTES), "p of version {version}");
            assert!(table == content(rank.rank, 0, 7, Q_BYTES) && mesh == content(rank.rank, version, 3, MESH_BYTES));
            Ok(())
        };
        session
            .begin_restore(NAME)
            .run(load)
            .expect("a restart")
            .map(|restored| (restored.version, restored.tier.name()))
    }
}

/// The headers with which the files of a folder begin.
fn shards_in(folder: &Path) -> Vec<ShardHeader> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let heads = entries.flat_map(|path| match path.is_dir() {
        true => shards_in(&path),
        false => std::fs::read(&path).ok().and_then(|bytes| ShardHeader::decode(&bytes).ok()).into_iter().collect(),
    });
    heads.collect()
}

/// The number of bytes that the files of a folder occupy.
fn allocated_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| entry.metadata().expect("there").blocks() * 512).sum()
}

fn prepared(rank: &Rank, session: &Session) -> (bivouac_core::Caches, Offload) {
    let caches = rank.caches(session);
    let offload = session.offload(&caches).expect("an offload");
    offload.prepare((P_BYTES + Q_BYTES + MESH_BYTES) as u64).expect("room");
    (caches, offload)
}

/// The buffer has room for everything, for some, or for nothing; the marks are audited or not.
#[test]
fn what_was_marked_is_restored_though_the_program_went_on_at_once() {
    for (buffer_bytes, audit) in [(8 * MIB, true), (MIB, true), (0, true), (MIB, false)] {
        let offload = OffloadConfig { audit, ..ALWAYS };
        let machine = Machine { offload, buffer_bytes, local_every: 1, ..Machine::slow(0.1) };
        machine.run(RANKS, |rank, session| {
            let (_caches, offload) = prepared(rank, session);
            let program = Program::new(rank);
            for version in 1..=5 {
                program.compute(rank, Some(&offload), version);
                let pending = program.mark(rank, session, &offload, version);
                program.compute(rank, Some(&offload), 100 + version);
                reaches(pending, Level::NodeReboot);
            }
            let stats = offload.stats();
            assert_eq!((stats.marks, stats.refused), (5, 0), "{stats:?}");
            assert_eq!(stats.bytes, 5 * (P_BYTES + Q_BYTES) as u64);
            // The slots of the third and later versions already held the table.
            assert!(stats.equal_bytes > 0, "{stats:?}");
            assert_eq!(stats.doubled_bytes > 0, buffer_bytes > 0, "{stats:?}");
            assert!(buffer_bytes >= 8 * MIB || stats.urgent_bytes > 0, "{stats:?}");
            assert_eq!(session.stats().staged_captures, 0);
            assert_eq!(session.stats().offload, stats);
            assert_eq!(session.stats().unaudited, if audit { 0 } else { 5 });
            assert_eq!(Program::restart(rank, session), Some((5, "memory")));
        });
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        machine.run(RANKS, |rank, session| assert_eq!(Program::restart(rank, session), Some((5, "local"))));
        let headers = shards_in(&machine.folder("local"));
        assert!(!headers.is_empty() && headers.iter().all(|header| header.is_unaudited != audit), "{headers:#?}");
    }
}

#[test]
fn a_write_that_was_not_declared_is_refused_on_all_ranks_and_twice_in_a_row_is_enough() {
    let machine = Machine { offload: ALWAYS, ..Machine::slow(0.1) };
    machine.run(RANKS, |rank, session| {
        let (_caches, offload) = prepared(rank, session);
        let program = Program::new(rank);
        let twin = rank.twin.as_ref().expect("the device is a twin");
        let step = |version: u64, is_declared: bool, is_marked: bool| {
            program.compute(rank, Some(&offload), version);
            // Nothing has been sent yet when the program writes.
            let is_late = !is_declared && rank.rank == VICTIM;
            let stopped = (is_late && is_marked).then(|| twin.stop_link());
            let pending = program.mark(rank, session, &offload, version);
            program.compute(rank, (!is_late).then_some(&offload), 100 + version);
            rank.stream.finish().expect("written");
            drop(stopped);
            committed(pending, Level::Process)
        };
        assert!(step(1, true, true).is_ok());
        for version in [2, 3] {
            let heard = step(version, false, true);
            let error = heard.clone().expect_err("refused");
            // The error names the block that was sent first, whichever that is.
            let says = |block: usize| format!("\"p\" has changed in bytes {} to {} ", block << 14, (block + 1) << 14);
            assert!((0..P_BYTES >> 14).any(|block| error.contains(&says(block))), "{error}");
            assert!(error.contains("before_write"), "{error}");
            names_the_victim(rank.rank, heard, "no write to it was declared");
        }
        // Now the victim copies, and no rank has an error.
        assert!(step(4, false, false).is_ok());
        let is_victim = rank.rank == VICTIM;
        assert_eq!(session.stats().staged_captures, u64::from(is_victim));
        offload.allow_marks();
        assert!(step(5, true, true).is_ok());
        let stats = offload.stats();
        assert_eq!((stats.marks, stats.refused), if is_victim { (4, 2) } else { (5, 0) });
        assert_eq!(Program::restart(rank, session), Some((5, "memory")));
    });
}

#[test]
fn where_the_cache_has_room_it_is_copied_and_not_marked() {
    for (device_bytes, marked) in [(32 * MIB, 0), (3 * MIB, 2)] {
        let machine = Machine { device_bytes, buffer_bytes: 2 * MIB, ..Machine::new() };
        machine.run(RANKS, |rank, session| {
            let (_caches, offload) = prepared(rank, session);
            let program = Program::new(rank);
            for version in 1..=2 {
                program.compute(rank, Some(&offload), version);
                reaches(program.mark(rank, session, &offload, version), Level::Process);
            }
            assert_eq!((offload.stats().marks, session.stats().staged_captures), (marked, 2 - marked));
            assert_eq!(Program::restart(rank, session), Some((2, "memory")));
        });
    }
}

/// Without [`Offload::prepare`], the first slots are pinned after their first use.
#[test]
fn slots_that_are_not_ready_are_for_copies_and_are_made_ready() {
    let machine = Machine { offload: ALWAYS, ..Machine::new() };
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        let offload = session.offload(&caches).expect("an offload");
        let program = Program::new(rank);
        let mut version = 0;
        wait_until("one is marked", || {
            version += 1;
            program.compute(rank, Some(&offload), version);
            reaches(program.mark(rank, session, &offload, version), Level::Process);
            offload.stats().marks > 0
        });
        assert!(session.stats().staged_captures > 0);
        assert_eq!(Program::restart(rank, session), Some((version, "memory")));
    });
}

/// Two slots are made ready, and a third one if the local tier reads them and there is room for three.
#[test]
fn as_many_slots_are_made_ready_as_take_turns() {
    for (memory_only, shard, slots) in [(true, 32, 2), (false, 32, 3), (false, 100, 2)] {
        let machine = Machine { offload: ALWAYS, memory_only, ..Machine::new() };
        machine.run(1, |rank, session| {
            let caches = rank.caches(session);
            let offload = session.offload(&caches).expect("an offload");
            let before = allocated_in(&machine.folder("memory"));
            offload.prepare(shard * MIB).expect("room");
            let mib = (allocated_in(&machine.folder("memory")) - before) / MIB;
            assert!((slots * shard..(slots + 1) * shard).contains(&mib), "{mib} MiB for {slots} of {shard}");
        });
    }
}

/// At this rate, one checkpoint takes more than two seconds, and forty votes of others depend on it.
#[test]
fn who_waits_for_a_marked_checkpoint_is_not_held_up_by_the_pace() {
    let stagger = StaggerConfig { rate: FlushRate::Bytes(MIB), ..StaggerConfig::default() };
    let machine = Machine { offload: ALWAYS, stagger, ..Machine::new() };
    let begun = Instant::now();
    machine.run(RANKS, |rank, session| {
        let (_caches, offload) = prepared(rank, session);
        let program = Program::new(rank);
        for version in 1..=40 {
            program.compute(rank, Some(&offload), version);
            program.mark(rank, session, &offload, version).expect("marked");
            rank.take_host(session, version);
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn one_mark_is_open_at_a_time() {
    let machine = Machine { offload: ALWAYS, ..Machine::slow(2.0) };
    machine.run(1, |rank, session| {
        let (_caches, offload) = prepared(rank, session);
        let program = Program::new(rank);
        let mark = |version| {
            program.compute(rank, Some(&offload), version);
            program.mark(rank, session, &offload, version)
        };
        let (first, second) = (mark(1), mark(2));
        assert_eq!(offload.stats().waits, 1);
        reaches(first, Level::Process);
        reaches(second, Level::Process);
        assert_eq!(Program::restart(rank, session), Some((2, "memory")));
    });
}

#[test]
fn a_device_that_is_lost_behind_the_mark_is_a_no_that_all_ranks_hear() {
    let machine = Machine { offload: ALWAYS, ..Machine::slow(0.5) };
    machine.run(RANKS, |rank, session| {
        let (_caches, offload) = prepared(rank, session);
        let program = Program::new(rank);
        program.compute(rank, Some(&offload), 1);
        reaches(program.mark(rank, session, &offload, 1), Level::Process);
        program.compute(rank, Some(&offload), 2);
        let pending = program.mark(rank, session, &offload, 2);
        if rank.rank == VICTIM {
            rank.lose_device();
            assert!(offload.before_write(&program.p, &*rank.stream).is_err());
            offload.settle();
        }
        names_the_victim(rank.rank, committed(pending, Level::Process), "fell off the bus");
        rank.take_host(session, 3);
    });
}

/// Takes a number of checkpoints on a real device, with a buffer for everything, for some, and for nothing.
#[cfg(feature = "cuda")]
#[test]
fn what_was_marked_is_restored_on_a_gpu() {
    use bivouac_core::device::{Device, Priority, cuda::CudaDevice};
    let gpu: std::sync::Arc<dyn Device> = match CudaDevice::open(0) {
        Ok(gpu) => std::sync::Arc::new(gpu),
        Err(error) => {
            eprintln!("SKIPPED: {error}; on a machine with a GPU: cargo nextest run --test offload on_a_gpu");
            return;
        }
    };
    let rank = || {
        let stream = gpu.stream(Priority::High).expect("a stream");
        Rank { rank: 0, device: gpu.clone(), twin: None, stream }
    };
    for (buffer_bytes, audit) in [(8 * MIB, true), (MIB, true), (0, true), (MIB, false)] {
        let offload = OffloadConfig { audit, ..ALWAYS };
        let machine = Machine { offload, buffer_bytes, local_every: 1, ..Machine::new() };
        machine.run(1, |_, session| {
            let rank = &rank();
            let (_caches, offload) = prepared(rank, session);
            let program = Program::new(rank);
            for version in 1..=50 {
                program.compute(rank, Some(&offload), version);
                let pending = program.mark(rank, session, &offload, version);
                program.compute(rank, Some(&offload), 100 + version);
                reaches(pending, Level::Process);
            }
            let stats = offload.stats();
            assert_eq!((stats.marks, stats.refused), (50, 0), "{stats:?}");
            assert_eq!(Program::restart(rank, session), Some((50, "memory")));
            // This write is not declared, and comes before anything can have been sent.
            if audit {
                let heavy = [256 * MIB; 2].map(|bytes| gpu.allocate(bytes).expect("room"));
                let pending = program.mark(rank, session, &offload, 51);
                program.compute(rank, None, 151);
                (0..10).for_each(|_| rank.stream.copy(&heavy[0], &heavy[1]).expect("enqueued"));
                let heard = committed(pending, Level::Process);
                assert!(
                    heard.is_ok() || heard.clone().is_err_and(|error| error.contains("\"p\" has changed")),
                    "{heard:?}"
                );
                assert_eq!(offload.stats().refused, u64::from(heard.is_err()));
            }
        });
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
    }
}

/// Marked data is copied to the host before the session ends, whichever object is dropped first.
#[test]
fn nothing_that_was_marked_is_lost_by_an_end() {
    for order in 0..3 {
        let machine = Machine { offload: ALWAYS, local_every: 1, ..Machine::slow(0.3) };
        machine.run_to_the_end(RANKS, |rank, session| {
            let (caches, offload) = prepared(rank, &session);
            let program = Program::new(rank);
            program.compute(rank, Some(&offload), 1);
            program.mark(rank, &session, &offload, 1).expect("marked");
            match order {
                0 => drop((offload, caches)),
                1 => drop((caches, offload)),
                _ => {
                    offload.settle();
                    drop((offload, caches));
                }
            }
            // The object is gone, but its counters are not.
            assert_eq!(session.stats().offload.marks, 1);
            session.close().expect("closes");
        });
        machine.run(RANKS, |rank, session| {
            assert_eq!(Program::restart(rank, session).map(|(version, _)| version), Some(1), "{order}");
        });
    }
}
