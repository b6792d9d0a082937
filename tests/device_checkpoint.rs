//! Collective checkpoints and restarts of regions in device memory, with the real session on ranks that are threads of this process. Each
//! rank has its own device, a host twin whose link can be slow and which can be lost.
#![forbid(unsafe_code)]

mod common;
mod machine;

use bivouac_core::config::{FlushRate, Method, StaggerConfig};
use bivouac_core::device::{DeviceSpan, Stream};
use bivouac_core::session::place::Workers;
use bivouac_core::tier::TierId;
use bivouac_core::{Attempt, Boxes, Caches, Checkpoint, Decomposition, Level, Protected, Session};
use common::limit::wait_until;
use machine::*;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Three ranks have shards that each take a fifth of a second, and copy them to host memory one after the other.
#[test]
fn shards_that_take_turns_are_committed_and_restored() {
    let stagger = StaggerConfig { bursts: Some(1), patience: Duration::from_secs(600), ..StaggerConfig::default() };
    let machine = Machine { stagger, ..Machine::slow(0.2) };
    let waited = machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let last = (1..=3).map(|version| rank.capture(session, &caches, version)).last();
        reaches(last.expect("three of them"), Level::Process);
        let stats = caches.stats();
        assert_eq!(stats.turns_given_up, 0);
        stats.turn_seconds
    });
    assert!(waited.iter().sum::<f64>() > 0.2, "{waited:?}");
    let restored = machine.run(RANKS, |rank, session| rank.restart(session));
    assert!(restored.iter().all(|restored| matches!(restored, Some((3, "memory")))), "{restored:?}");
}

/// At this rate 60 shards of 2 MiB take two minutes.
#[test]
fn who_waits_for_a_checkpoint_is_not_held_up_by_the_pace() {
    let stagger = StaggerConfig { rate: FlushRate::Bytes(MIB), ..StaggerConfig::default() };
    let machine = Machine { stagger, device_bytes: 128 * MIB, ..Machine::new() };
    let begun = Instant::now();
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        let last = (1..=60).map(|version| rank.capture(session, &caches, version)).last();
        reaches(last.expect("sixty of them"), Level::Process);
    });
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
}

/// Captures through the GPU cache, and past it.
#[test]
fn slots_are_pinned_behind_the_application_s_back_once() {
    for device_bytes in [32 * MIB, 2 * MIB] {
        let machine = Machine { device_bytes, ..Machine::new() };
        machine.run(RANKS, |rank, session| {
            let caches = rank.caches(session);
            let pinned = || caches.stats().slot_bytes_pinned;
            reaches(rank.capture(session, &caches, 1), Level::Process);
            wait_until("the first slot is pinned", || pinned() >= DEVICE_BYTES);
            for version in 2..=12 {
                reaches(rank.capture(session, &caches, version), Level::Process);
            }
            // The slots of twelve checkpoints use the same memory as those of the first few.
            wait_until("all slots are pinned", || {
                let before = pinned();
                std::thread::sleep(Duration::from_millis(50));
                before >= 2 * DEVICE_BYTES && before == pinned()
            });
            assert!(pinned() <= 6 * DEVICE_BYTES, "{}", pinned());
            assert_eq!(rank.restart(session), Some((12, "memory")));
        });
    }
}

#[test]
fn mixed_regions_come_back_into_device_and_host_memory() {
    for workers in [Workers::Threads, Workers::Writers] {
        let machine = Machine { workers, local_every: 1, ..Machine::new() };
        machine.run(RANKS, |rank, session| {
            let caches = rank.caches(session);
            for version in 1..=4 {
                let pending = rank.capture(session, &caches, version);
                reaches(pending, Level::NodeReboot);
            }
            let stats = session.stats();
            assert_eq!((stats.captured, stats.staged_captures, stats.direct_captures), (4, 4, 0));
            assert_eq!(rank.restart(session), Some((4, "memory")));
        });
        machine.run(RANKS, |rank, session| assert_eq!(rank.restart(session), Some((4, "memory"))));
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        machine.run(RANKS, |rank, session| assert_eq!(rank.restart(session), Some((4, "local"))));
    }
}

#[test]
fn a_region_that_is_read_ahead_comes_to_device_memory() {
    let machine = Machine { memory_enabled: false, local_every: 1, ..Machine::new() };
    let bytes = (17 << 20) + 12_345;
    machine.run(1, |rank, session| {
        let span = rank.span(&content(0, 1, 1, bytes));
        let caches = rank.caches(session);
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins").with_device(&caches, &*rank.stream);
        checkpoint.save_device::<u8>("large", &span).expect("a region");
        let pending = checkpoint.capture();
        reaches(pending, Level::NodeReboot);
    });
    machine.run(1, |rank, session| {
        let span = rank.span(&vec![0; bytes]);
        let load = |restorer: &mut Attempt| Ok(restorer.load_device::<u8>("large", &span, &*rank.stream)?);
        let restored = session.begin_restore(NAME).run(load).expect("a restart").expect("version 1");
        assert_eq!((restored.version, restored.tier.name()), (1, "local"));
        assert!(rank.bytes(&span) == content(0, 1, 1, bytes));
    });
}

#[test]
fn capture_returns_before_the_bytes_are_in_node_memory_and_nothing_is_committed_before_they_are() {
    let machine = Machine::slow(4.0);
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let begun = std::time::Instant::now();
        let pending = rank.capture(session, &caches, 1).expect("captured");
        assert_eq!(pending.level(), Level::Captured);
        assert_eq!(session.stats().in_flight, 1);
        reaches(Ok(pending), Level::Process);
        // The rank with the least on its device has `p` there.
        assert!(begun.elapsed() >= Duration::from_secs_f64(4.0 * P_BYTES as f64 / DEVICE_BYTES as f64));
        assert_eq!(session.stats().staged_captures, 1);
        assert_eq!(rank.restart(session), Some((1, "memory")));
    });
}

#[test]
fn ranks_vote_in_the_order_of_their_calls() {
    let machine = Machine::slow(0.5);
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let staged = rank.capture(session, &caches, 1).expect("captured");
        // This version is in node memory at once, but is reported after the other one.
        rank.take_host(session, 2);
        assert!(staged.level() >= Level::Process);
        let versions: Vec<u64> = session.reports().iter().map(|report| report.key.version).collect();
        assert!(versions.is_sorted(), "{versions:?}");
    });
}

#[test]
fn what_lands_after_the_ranks_have_given_it_up_makes_room_and_nothing_else() {
    let mut machine = Machine::slow(9.0);
    machine.abandon = Duration::from_secs(3);
    machine.run_to_the_end(RANKS, |rank, session| {
        let caches = rank.caches(&session);
        // The other ranks have no bytes on their devices.
        let p = rank.span(&content(rank.rank, 1, 1, if rank.rank == VICTIM { P_BYTES } else { 0 }));
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins").with_device(&caches, &*rank.stream);
        checkpoint.save_device::<f64>("p", &p).expect("a region");
        let ended = committed(checkpoint.capture(), Level::Process);
        names_the_victim(rank.rank, ended, "did not take part");
        // This rank's later votes wait for the link as well.
        let mut later = (2..12).map(|version| rank.try_host(&session, version));
        assert!(later.any(|ended| ended.is_ok()), "the rank votes again");
        let abandoned = session.reports().iter().filter(|report| report.key.version == 1).count();
        assert_eq!(abandoned, 1);
        session.close().expect("nothing is left");
    });
}

#[test]
fn a_shard_that_the_gpu_cache_cannot_hold_goes_straight_to_node_memory() {
    let machine = Machine { device_bytes: 2 * MIB, ..Machine::new() };
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        reaches(rank.capture(session, &caches, 1), Level::Process);
        let stats = session.stats();
        // Odd ranks have 2 MiB on the device, which just fits.
        assert_eq!((stats.staged_captures, stats.direct_captures), (u64::from(rank.rank % 2), 0));
        assert_eq!(rank.restart(session), Some((1, "memory")));
    });
}

#[test]
fn without_threads_a_capture_is_complete_when_it_returns() {
    let machine = Machine { workers: Workers::Inline, ..Machine::new() };
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        reaches(rank.capture(session, &caches, 1), Level::Process);
        assert_eq!(session.stats().staged_captures, 0);
        assert_eq!(rank.restart(session), Some((1, "memory")));
    });
}

#[test]
fn without_room_in_node_memory_a_shard_goes_straight_to_a_file() {
    let off = Machine { memory_enabled: false, local_every: 1, ..Machine::new() };
    let full = Machine { memory_bytes: 4 * MIB, local_every: 1, ..Machine::new() };
    for machine in [off, full] {
        let direct = machine.run(RANKS, |rank, session| {
            let caches = rank.caches(session);
            reaches(rank.capture(session, &caches, 1), Level::NodeReboot);
            session.stats().direct_captures
        });
        assert!(direct.iter().sum::<u64>() >= 2, "{direct:?}");
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        machine.run(RANKS, |rank, session| assert_eq!(rank.restart(session), Some((1, "local"))));
    }
}

#[test]
fn a_capture_waits_for_the_slot_of_one_that_is_still_landing() {
    // There is room for about two shards of one rank.
    let machine = Machine { memory_bytes: 8 * MIB, local_every: 1, ..Machine::slow(1.0) };
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        let pending: Vec<_> = (1..=4).map(|version| rank.capture(session, &caches, version)).collect();
        for pending in pending {
            reaches(pending, Level::NodeReboot);
        }
        let stats = session.stats();
        assert_eq!((stats.staged_captures, stats.direct_captures), (4, 0));
        assert!(stats.room_waits > 0);
        assert_eq!(rank.restart(session), Some((4, "memory")));
    });
}

#[test]
fn captures_in_a_row_share_the_gpu_cache() {
    // There is room for one shard: the next one waits for that room or goes past the cache, whichever is sooner.
    let machine = Machine { device_bytes: 4 * MIB, ..Machine::slow(0.2) };
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let pending: Vec<_> = (1..=4).map(|version| rank.capture(session, &caches, version)).collect();
        for pending in pending {
            reaches(pending, Level::Process);
        }
        assert_eq!(rank.restart(session), Some((4, "memory")));
    });
}

#[test]
fn a_device_that_is_lost_before_capture_is_a_no_that_all_ranks_hear() {
    Machine::new().run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let p = rank.span(&content(rank.rank, 1, 1, P_BYTES));
        if rank.rank == VICTIM {
            rank.lose_device();
        }
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins").with_device(&caches, &*rank.stream);
        checkpoint.save_device::<f64>("p", &p).expect("a region");
        let ended = committed(checkpoint.capture(), Level::Process);
        names_the_victim(rank.rank, ended, "fell off the bus");
        rank.take_host(session, 2);
    });
}

#[test]
fn a_device_that_is_lost_after_capture_is_a_no_that_all_ranks_hear() {
    // A download takes four seconds, so the second shard is on the link when the device is lost.
    Machine::slow(4.0).run_to_the_end(RANKS, |rank, session| {
        let caches = rank.caches(&session);
        reaches(rank.capture(&session, &caches, 1), Level::Process);
        let second = rank.capture(&session, &caches, 2);
        if rank.rank == VICTIM {
            rank.lose_device();
        }
        names_the_victim(rank.rank, committed(second, Level::Process), "fell off the bus");
        rank.take_host(&session, 3);
        session.close().expect("nothing is left");
    });
}

#[test]
fn regions_in_device_memory_are_not_captured_without_caches() {
    Machine::new().run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let p = rank.span(&content(rank.rank, 1, 1, P_BYTES));
        // The region is added as the C interface adds it.
        let region = bivouac_core::region::device_array::<f64>("p", &p, None).expect("a region");
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins");
        checkpoint.add(region).expect("its only one");
        let captured = match rank.rank {
            VICTIM => checkpoint.capture(),
            _ => checkpoint.with_device(&caches, &*rank.stream).capture(),
        };
        names_the_victim(rank.rank, committed(captured, Level::Process), "with_device");
        rank.take_host(session, 2);
    });
}

#[test]
fn dropping_the_caches_brings_what_is_in_them_to_node_memory() {
    Machine::slow(0.5).run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let pending: Vec<_> = (1..=3).map(|version| rank.capture(session, &caches, version)).collect();
        drop(caches);
        for pending in pending {
            reaches(pending, Level::Process);
        }
        assert_eq!(rank.restart(session), Some((3, "memory")));
    });
}

#[test]
fn close_waits_for_what_is_still_in_the_gpu_cache() {
    let machine = Machine { local_every: 1, ..Machine::slow(0.5) };
    machine.run_to_the_end(RANKS, |rank, session| {
        let caches = rank.caches(&session);
        rank.capture(&session, &caches, 1).expect("captured");
        rank.capture(&session, &caches, 2).expect("captured");
        session.close().expect("all of it was written");
    });
    machine.run(RANKS, |rank, session| assert_eq!(rank.restart(session), Some((2, "local"))));
}

#[test]
fn a_session_that_is_gone_leaves_nothing_to_wait_for() {
    // As in a killed process, the bytes are still copied, and nobody is told.
    let machine = Machine::slow(0.5);
    let barrier = Barrier::new(RANKS as usize);
    machine.run_to_the_end(RANKS, |rank, session| {
        let caches = rank.caches(&session);
        reaches(rank.capture(&session, &caches, 1), Level::Process);
        rank.capture(&session, &caches, 2).expect("captured");
        drop(session);
        drop(caches);
        barrier.wait();
    });
    // All shards of version 2 are there and equal, so that version may be restored as well.
    machine.run(RANKS, |rank, session| {
        let restored = rank.restart(session).expect("version 1 was committed");
        assert!([1, 2].contains(&restored.0), "{restored:?}");
    });
}

#[test]
fn what_is_damaged_is_found_on_the_device_and_read_from_the_next_copy() {
    let machine = Machine { local_every: 1, ..Machine::new() };
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        reaches(rank.capture(session, &caches, 1), Level::NodeReboot);
    });
    // The damage is in the middle of the last block of `q` of rank 0, and of `p` of the victim.
    damage(&machine.folder("memory"), &content(0, 1, 2, Q_BYTES)[Q_BYTES - 1000..Q_BYTES - 900]);
    damage(&machine.folder("memory"), &content(VICTIM, 1, 1, P_BYTES)[70_000..70_100]);
    machine.run(RANKS, |rank, session| {
        let is_hit = [0, VICTIM].contains(&rank.rank);
        let tier = if is_hit { "local" } else { "memory" };
        let q = rank.span(&vec![0; Q_BYTES]);
        let p = rank.span(&vec![0; P_BYTES]);
        let load = |restorer: &mut Attempt| {
            restorer.load_device::<u8>("q", &q, &*rank.stream)?;
            restorer.load_device::<f64>("p", &p, &*rank.stream)?;
            Ok(())
        };
        let restored = session.begin_restore(NAME).run(load).expect("a restart").expect("version 1");
        assert_eq!((restored.version, restored.tier.name()), (1, tier), "rank {}", rank.rank);
        assert_eq!(session.stats().damaged[TierId::MEMORY], u64::from(is_hit));
        assert!(rank.bytes(&q) == content(rank.rank, 1, 2, Q_BYTES));
        assert!(rank.bytes(&p) == content(rank.rank, 1, 1, P_BYTES));
    });
}

/// The regions have different lengths, none of which is a multiple of the block. Each region is compared with its own digests.
#[test]
fn damage_in_one_of_several_regions_that_are_loaded_together_is_that_one_s() {
    const REGIONS: [(&str, usize); 3] = [("q", Q_BYTES), ("mesh", MESH_BYTES), ("few", 7)];
    let machine = Machine { local_every: 1, ..Machine::new() };
    let expected = |at: usize| content(0, 1, at as u8, REGIONS[at].1);
    machine.run(1, |rank, session| {
        let spans = [0, 1, 2].map(|at| rank.span(&expected(at)));
        let caches = rank.caches(session);
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins").with_device(&caches, &*rank.stream);
        for ((name, _), span) in REGIONS.iter().zip(&spans) {
            checkpoint.save_device::<u8>(name, span).expect("a region");
        }
        reaches(checkpoint.capture(), Level::NodeReboot);
    });
    let load = |rank: &Rank, session: &Session| {
        let spans = REGIONS.map(|(name, bytes)| (name, rank.span(&vec![0; bytes])));
        let restored =
            session.begin_restore(NAME).run(|restorer| Ok(restorer.load_devices::<u8>(&spans, &*rank.stream)?));
        let restored = restored.map_err(|error| error.to_string())?.expect("version 1");
        for (at, (name, span)) in spans.iter().enumerate() {
            assert!(rank.bytes(span) == expected(at), "{name} from {}", restored.tier.name());
        }
        Ok::<_, String>((restored.tier.name(), session.stats().damaged[TierId::MEMORY]))
    };
    assert_eq!(machine.run(1, load), [Ok(("memory", 0))]);
    damage(&machine.folder("memory"), &expected(1)[200_000..200_100]);
    assert_eq!(machine.run(1, load), [Ok(("local", 1))]);
    std::fs::remove_dir_all(machine.folder("local")).expect("removed");
    let error = machine.run(1, load).remove(0).expect_err("the only copy is damaged");
    // Byte 200 000 is in the block that begins here.
    assert!(error.contains("\"mesh\"") && error.contains(&format!("{}", 200_000 / 16_384 * 16_384)), "{error}");
}

#[test]
fn a_device_that_fails_in_a_restart_ends_it_on_all_ranks_and_host_memory_still_takes_the_region() {
    let machine = Machine::new();
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        reaches(rank.capture(session, &caches, 1), Level::Process);
    });
    machine.run(RANKS, |rank, session| {
        let p = rank.span(&vec![0; P_BYTES]);
        if rank.rank == VICTIM {
            rank.lose_device();
        }
        let error =
            session.begin_restore(NAME).run(|restorer| Ok(restorer.load_device::<f64>("p", &p, &*rank.stream)?));
        let error = error.expect_err("one device is gone").to_string();
        assert!(error.contains(&format!("rank {VICTIM}")) && error.contains("fell off the bus"), "{error}");
        let mut host = vec![0.0f64; P_BYTES / 8];
        let restored =
            session.begin_restore(NAME).run(|restorer| match restorer.load_device::<f64>("p", &p, &*rank.stream) {
                Err(bivouac_core::LoadError::Device { .. }) => Ok(restorer.load("p", &mut host)?),
                loaded => Ok(loaded?),
            });
        assert_eq!(restored.expect("a restart").map(|restored| restored.version), Some(1));
        let bytes = if rank.rank == VICTIM { bytemuck::cast_slice(&host).to_vec() } else { rank.bytes(&p) };
        assert!(bytes == content(rank.rank, 1, 1, P_BYTES));
    });
}

/// Chunks of device memory are looked up on the device; the files then hold little, but enough to load everything.
fn files_hold_what_is_new(ranks: u32, rank: &(impl Fn(u32) -> Rank + Sync)) {
    const VERSIONS: u64 = 8;
    for method in [Method::List, Method::Tree] {
        let machine = Machine { local_every: 1, method, ..Machine::new() };
        machine.run(ranks, |there, session| {
            let rank = rank(there.rank);
            let caches = rank.caches(session);
            (1..=VERSIONS).for_each(|version| take_reduced(&rank, session, &caches, version));
            let reduction = session.stats().reduction;
            assert_eq!((reduction.looked_on_device, reduction.packed), (VERSIONS, VERSIONS - 1), "{reduction:?}");
            // From the third version on, the slot already holds an older version.
            assert_eq!(reduction.partial_captures, VERSIONS - 2, "{reduction:?}");
            assert_eq!(load_reduced(&rank, session), (VERSIONS, "memory"));
            // The first version is stored whole; the sixth finds the bytes that the third has stored, as long as the third is there.
            assert!(reduction.stored_bytes < reduction.shard_bytes / 4, "{reduction:?}");
        });
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        machine.run(ranks, |there, session| {
            assert_eq!(load_reduced(&rank(there.rank), session), (VERSIONS, "local"));
        });
    }
}

#[test]
fn files_hold_what_is_new_of_a_device() {
    let model = Machine::new().model;
    files_hold_what_is_new(RANKS, &|rank| Rank::new(rank, model));
}

/// A region that is always too large for the GPU cache goes straight to node memory, and its few changed bytes go through the cache. No
/// table could be asked about the rest, so the processor looks at the whole region.
#[test]
fn what_is_larger_than_the_gpu_cache_is_captured_in_part_and_looked_at_by_the_processor() {
    let machine = Machine { local_every: 1, method: Method::Tree, device_bytes: 2 * MIB, ..Machine::new() };
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        (1..=8).for_each(|version| take_reduced(rank, session, &caches, version));
        let stats = session.stats();
        let reduction = stats.reduction;
        assert_eq!(
            (reduction.looked_on_device, reduction.packed, reduction.partial_captures),
            (0, 7, 6),
            "{reduction:?}"
        );
        assert_eq!(stats.staged_captures, 6);
        assert!(reduction.stored_bytes < reduction.shard_bytes / 3, "{reduction:?}");
    });
    std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
    machine.run(1, |rank, session| assert_eq!(load_reduced(rank, session), (8, "local")));
}

/// If the tables have no room on the device, the processor looks for chunks.
#[test]
fn without_room_for_the_tables_on_the_device_files_are_as_small() {
    let machine = Machine { local_every: 1, method: Method::Tree, tables_bytes: 10_000, ..Machine::new() };
    machine.run(1, |rank, session| {
        let caches = rank.caches(session);
        (1..=4).for_each(|version| take_reduced(rank, session, &caches, version));
        let reduction = session.stats().reduction;
        assert_eq!((reduction.looked_on_device, reduction.packed), (0, 3), "{reduction:?}");
        assert!(reduction.stored_bytes < reduction.shard_bytes / 3, "{reduction:?}");
    });
}

/// A state with parts in host and in device memory, one of them decomposed, and a state within it.
struct State<'r> {
    caches: &'r Caches,
    stream: &'r dyn Stream,
    grid: Decomposition,
    version: u64,
    p: DeviceSpan,
    field: DeviceSpan,
    mesh: Vec<u8>,
    inner: Inner<'r>,
}

struct Inner<'r> {
    caches: &'r Caches,
    stream: &'r dyn Stream,
    small: Vec<DeviceSpan>,
}

impl Checkpoint for State<'_> {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        parts.protect_shared("version", &mut self.version).protect("mesh", &mut self.mesh);
        let mut device = parts.with_device(self.caches, self.stream);
        device.protect::<f64>("p", &self.p).protect_on::<u16>("field", &self.grid, &self.field);
        parts.protect_state("inner", &mut self.inner);
    }
}

impl Checkpoint for Inner<'_> {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        let mut device = parts.with_device(self.caches, self.stream);
        for (at, span) in self.small.iter().enumerate() {
            device.protect::<u8>(&format!("small {at}"), span);
        }
    }
}

/// The state at a version; 0 is the state before anything is restored. Each rank has one row of the field.
fn state<'r>(rank: &'r Rank, session: &Session, caches: &'r Caches, version: u64) -> State<'r> {
    let row = Boxes::of([u64::from(RANKS), 1000]).own([u64::from(rank.rank), 0], [1, 1000]);
    let of = |what: u8, bytes| rank.span(&content(rank.rank, version, what, bytes));
    State {
        caches,
        stream: &*rank.stream,
        grid: session.decompose(row).expect("decomposed"),
        version,
        p: of(1, P_BYTES),
        field: of(2, 2000),
        mesh: content(rank.rank, version, 3, MESH_BYTES),
        inner: Inner { caches, stream: &*rank.stream, small: (4..8).map(|what| of(what, 100)).collect() },
    }
}

fn a_state_is_saved_and_restored(rank: &(impl Fn(u32) -> Rank + Sync)) {
    let machine = Machine { local_every: 1, ..Machine::new() };
    machine.run(RANKS, |place, session| {
        let rank = rank(place.rank);
        let caches = rank.caches(session);
        for version in 1..=2 {
            let mut state = state(&rank, session, &caches, version);
            reaches(session.checkpoint(NAME, version, &mut state), Level::NodeReboot);
        }
        // The third checkpoint names its parts itself, with an additional region.
        let mut third = state(&rank, session, &caches, 3);
        let parts = Protected::of(&mut third);
        let mut by_hand = session.begin_checkpoint(NAME, 3).expect("begun").with_device(&caches, &*rank.stream);
        by_hand.save_protected(&parts).expect("saved");
        by_hand.save("more", &[1u8, 2]).expect("saved");
        reaches(by_hand.capture(), Level::NodeReboot);
        assert_eq!(session.stats().staged_captures, 3);
    });
    for memory in [true, false] {
        machine.run(RANKS, |place, session| {
            let rank = rank(place.rank);
            let caches = rank.caches(session);
            let mut found = state(&rank, session, &caches, 0);
            let restored = session.restore(NAME, &mut found).expect("a restart").expect("the newest");
            assert_eq!((restored.version, restored.tier == TierId::MEMORY), (3, memory));
            let expected = state(&rank, session, &caches, 3);
            assert!(found.version == 3 && found.mesh == expected.mesh);
            let spans = |state: &State<'_>| {
                let all = [&state.p, &state.field].into_iter().chain(&state.inner.small);
                all.map(|span| rank.bytes(span)).collect::<Vec<_>>()
            };
            assert!(spans(&found) == spans(&expected), "device memory of rank {}", rank.rank);
        });
        std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
    }
}

#[test]
fn a_state_with_parts_on_a_device_is_saved_and_restored() {
    a_state_is_saved_and_restored(&|rank| Rank::new(rank, Machine::new().model));
}

/// A checkpoint has one stream, and its regions are complete once that stream's work has ended.
#[test]
fn a_state_with_two_streams_is_refused_and_all_ranks_hear_of_it() {
    Machine::new().run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let (other, mut state) = (Rank::new(rank.rank, Machine::new().model), state(rank, session, &caches, 1));
        if rank.rank == VICTIM {
            state.inner.stream = &*other.stream;
        }
        let ended = committed(session.checkpoint(NAME, 1, &mut state), Level::Process);
        match rank.rank {
            VICTIM => assert!(ended.expect_err("two streams").contains("different caches or streams")),
            rank => names_the_victim(rank, ended, "different caches or streams"),
        }
        state.inner.stream = &*rank.stream;
        reaches(session.checkpoint(NAME, 2, &mut state), Level::Process);
    });
}

/// The GPU, or `None` with a loud note.
#[cfg(feature = "cuda")]
fn gpu() -> Option<std::sync::Arc<bivouac_core::device::cuda::CudaDevice>> {
    match bivouac_core::device::cuda::CudaDevice::open(0) {
        Ok(gpu) => Some(gpu.into()),
        Err(error) => {
            eprintln!("SKIPPED: {error}; on a machine with a GPU: cargo nextest run --test device_checkpoint");
            None
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn files_hold_what_is_new_of_a_gpu_and_a_state_comes_back_on_a_gpu() {
    use bivouac_core::device::{Device, Priority};
    let Some(gpu) = gpu() else { return };
    let rank = |rank| {
        let stream = gpu.stream(Priority::High).expect("a stream");
        Rank { rank, device: gpu.clone(), twin: None, stream }
    };
    files_hold_what_is_new(2, &rank);
    a_state_is_saved_and_restored(&rank);
}

#[cfg(feature = "cuda")]
#[test]
fn mixed_regions_come_back_on_a_gpu() {
    use bivouac_core::device::{Device, Priority};
    let Some(gpu) = gpu() else { return };
    let rank = || {
        let stream = gpu.stream(Priority::High).expect("a stream");
        Rank { rank: 0, device: gpu.clone(), twin: None, stream }
    };
    // The captures go through the GPU cache, past it, and straight to a file.
    for (device_bytes, memory_enabled) in [(32 * MIB, true), (2 * MIB, true), (32 * MIB, false)] {
        let machine = Machine { device_bytes, memory_enabled, local_every: 1, ..Machine::new() };
        machine.run(1, |_, session| {
            let (rank, caches) = (rank(), rank().caches(session));
            for version in 1..=3 {
                reaches(rank.capture(session, &caches, version), Level::NodeReboot);
            }
            let staged = if device_bytes > DEVICE_BYTES && memory_enabled { 3 } else { 0 };
            assert_eq!(session.stats().staged_captures, staged);
            let tier = if memory_enabled { "memory" } else { "local" };
            assert_eq!(rank.restart(session), Some((3, tier)));
            if !memory_enabled {
                return;
            }
            wait_until("slots are pinned", || caches.stats().slot_bytes_pinned >= 2 * DEVICE_BYTES);
            for version in 4..=8 {
                reaches(rank.capture(session, &caches, version), Level::NodeReboot);
            }
            assert_eq!(rank.restart(session), Some((8, tier)));
        });
        if memory_enabled {
            std::fs::remove_dir_all(machine.folder("memory")).expect("its memory goes");
        }
        let last = if memory_enabled { 8 } else { 3 };
        machine.run(1, |_, session| assert_eq!(rank().restart(session), Some((last, "local"))));
    }
}

#[cfg(feature = "mpi")]
mod under_mpi {
    use super::*;
    use crate::common::{Worker, run_workers};
    use bivouac_core::Session;
    use bivouac_core::config::Progress;
    use mpi::Threading;
    use mpi::traits::Communicator;
    use std::path::PathBuf;

    const FOLDER: &str = "BIVOUAC_TEST_FOLDER";

    fn takes_and_restores(worker: &'static str) {
        let machine = Machine::new();
        for folder in ["memory", "local"] {
            std::fs::create_dir_all(machine.folder(folder)).expect("a folder");
        }
        let folder = machine.root.path().to_str().expect("a plain path");
        run_workers(RANKS, worker, &[(FOLDER, folder)]);
    }

    fn work(name: &'static str, threading: Threading, progress: Progress) {
        let Some(worker) = Worker::start(name, threading) else { return };
        let machine = Machine { local_every: 1, ..Machine::slow(0.2) };
        let folder = PathBuf::from(std::env::var_os(FOLDER).expect("set by the test"));
        let mut config = machine.config_in(&folder);
        config.node.progress = progress;
        let world = worker.world();
        let rank = Rank::new(world.rank() as u32, machine.model);
        let session = Session::open(&world, config).expect("opens");
        let caches = rank.caches(&session);
        let pending: Vec<_> = (1..=3).map(|version| rank.capture(&session, &caches, version)).collect();
        pending.into_iter().for_each(|pending| reaches(pending, Level::NodeReboot));
        assert_eq!(session.stats().staged_captures, 3);
        assert_eq!(rank.restart(&session), Some((3, "memory")));
        rank.capture(&session, &caches, 4).expect("captured");
        session.close().expect("all of it was written");
        worker.finish();
    }

    #[test]
    fn with_a_thread_for_messages() {
        takes_and_restores("under_mpi::threaded_worker");
    }

    #[test]
    fn threaded_worker() {
        work("under_mpi::threaded_worker", Threading::Multiple, Progress::Auto);
    }

    /// Only the application's thread may call MPI: the thread that copies a shard to the host must not.
    #[test]
    fn with_messages_inside_the_calls() {
        takes_and_restores("under_mpi::stepped_worker");
    }

    #[test]
    fn stepped_worker() {
        work("under_mpi::stepped_worker", Threading::Funneled, Progress::Stepped);
    }
}
