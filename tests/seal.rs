//! Histories in collective checkpoints: they are sealed in the middle of a backward pass, with versions on all tiers, and loaded after a
//! restart. The real session runs on ranks that are threads of this process, each with a host twin as its device.
#![forbid(unsafe_code)]

#[path = "common/limit.rs"]
mod limit;
mod machine;

use bivouac_core::base::digest::digest_bytes;
use bivouac_core::cache::Keep;
use bivouac_core::device::Priority;
use bivouac_core::device::host::HostModel;
use bivouac_core::transfer::history::Return;
use bivouac_core::{
    Boxes, Caches, Decomposition, Error, Field, FieldMut, History, Ids, Level, LoadError, Pending, Session,
};
use machine::{MIB, Machine, Rank, VICTIM, content, damage};
use std::time::Duration;

const NAME: &str = "adjoint";
const WAVE: &str = "wave";
const VERSIONS: u64 = 20;
/// The place in the backward pass at which the history is sealed: the versions below this one are left.
const LEFT: u64 = 10;

/// A node whose histories have little memory.
fn node() -> Machine {
    Machine { device_bytes: 4 * MIB, history_bytes: [3 * MIB, 64 * MIB], local_every: 1, ..Machine::new() }
}

/// Runs `body` on all ranks, each with its own caches.
fn run<T: Send>(machine: &Machine, ranks: u32, body: impl Fn(&Rank, &Session, &Caches) -> T + Sync) -> Vec<T> {
    machine.run(ranks, |rank, session| {
        let caches = session.caches_with(rank.device.clone(), |config| config.line_bytes = MIB).expect("caches");
        body(rank, session, &caches)
    })
}

/// The length of the field `p`, in device memory: a multiple of the length of an `f64`, but not of the block.
fn p_bytes(version: u64) -> usize {
    600_000 + version as usize * 30_008
}

/// The length of the field `mask`, in host memory.
fn mask_bytes(version: u64) -> usize {
    10_001 + version as usize
}

impl Rank {
    fn append(&self, history: &History, version: u64, until: Return) {
        let p = self.span(&content(self.rank, version, 1, p_bytes(version)));
        let mask = content(self.rank, version, 2, mask_bytes(version));
        let none: [u32; 0] = [];
        let fields = [Field::device::<f64>("p", &p), Field::host("mask/1", &mask), Field::host("none", &none)];
        history.append_and(version, &fields, &*self.stream, until).expect("room");
        let zeros = self.span(&vec![0; p.bytes() as usize]);
        self.stream.copy(&zeros, &p).expect("enqueued");
        self.stream.finish().expect("overwritten");
    }

    /// Restores a version, checks its data, and returns the digests of that data.
    fn restore(&self, history: &History, version: u64) -> String {
        let (p, mut mask) = (self.span(&vec![0; p_bytes(version)]), vec![0u8; mask_bytes(version)]);
        let fields = &mut [FieldMut::device::<f64>("p", &p), FieldMut::host("mask/1", &mut mask)];
        history.restore(version, fields, &*self.stream).expect("it is there");
        let p = self.bytes(&p);
        assert!(p == content(self.rank, version, 1, p_bytes(version)), "p of version {version}");
        assert!(mask == content(self.rank, version, 2, mask_bytes(version)), "mask of version {version}");
        format!("{version} {} {}", digest_bytes(&p), digest_bytes(&mask))
    }

    /// Runs the forward pass.
    fn forward(&self, caches: &Caches) -> History {
        let history = caches.history(WAVE, Keep::UntilRead);
        history.hint((0..VERSIONS).rev());
        (0..VERSIONS).for_each(|version| self.append(&history, version, Return::Done));
        history.start_prefetch();
        history
    }

    fn backward(&self, history: &History, versions: std::ops::Range<u64>) -> Vec<String> {
        versions.rev().map(|version| self.restore(history, version)).collect()
    }
}

fn seal(session: &Session, version: u64, history: &History) -> bivouac_core::Result<Pending> {
    let mut checkpoint = session.begin_checkpoint(NAME, version)?;
    checkpoint.save_history(history)?;
    checkpoint.value("left", &LEFT)?;
    checkpoint.capture()
}

/// Loads the history, and returns it with the number of its versions and the tier from which they came.
fn load(session: &Session, caches: &Caches) -> (History, u64, &'static str) {
    let mut loaded = None;
    let restored = session.begin_restore(NAME).run(|restorer| {
        let history = caches.history(WAVE, Keep::UntilRead);
        history.hint((0..restorer.value("left")?).rev());
        let versions = restorer.load_history(&history)?;
        history.start_prefetch();
        loaded = Some((history, versions));
        Ok(())
    });
    let restored = restored.expect("a restart").expect("a checkpoint");
    let (history, versions) = loaded.expect("it was loaded");
    (history, versions, restored.tier.name())
}

/// Seals in the middle of a backward pass, continues the pass, dies, and continues from the restored history.
fn a_backward_pass_goes_on_after_a_restart(machine: &Machine, ranks: u32, tier: &str) {
    let uninterrupted = run(machine, ranks, |rank, session, caches| {
        let history = rank.forward(caches);
        rank.backward(&history, LEFT..VERSIONS);
        // This waits until the links have filled the room in all three tiers, and have stopped.
        let moved = || history.stats().moved_bytes;
        let mut before = [0; 4];
        while before[3] == 0 || before != moved() {
            before = moved();
            std::thread::sleep(Duration::from_millis(200));
        }
        let pending = seal(session, 1, &history).expect("captured");
        let sealed = history.stats().sealed_bytes;
        assert_eq!(sealed.iter().sum::<u64>(), (0..LEFT).map(|v| (p_bytes(v) + mask_bytes(v)) as u64).sum::<u64>());
        assert!(sealed.iter().all(|bytes| *bytes > 0), "versions lay on all three tiers: {sealed:?}");
        assert_eq!(session.stats().direct_captures, u64::from(tier == "local"));
        assert!(pending.wait(Level::NodeReboot).expect("committed") >= Level::NodeReboot);
        // The versions are unchanged.
        let rest = rank.backward(&history, 0..LEFT);
        assert_eq!(history.stats().failures, [0; 4]);
        rest
    });
    let continued = run(machine, ranks, |rank, session, caches| {
        let (history, versions, from) = load(session, caches);
        assert_eq!((versions, from), (LEFT, tier));
        let names: Vec<_> = history.fields(3).expect("it is there").into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["p", "mask/1", "none"]);
        rank.backward(&history, 0..LEFT)
    });
    assert_eq!(continued, uninterrupted);
}

#[test]
fn a_sealed_history_comes_back_from_node_memory() {
    a_backward_pass_goes_on_after_a_restart(&node(), 1, "memory");
    a_backward_pass_goes_on_after_a_restart(&node(), 3, "memory");
}

/// Node memory has some room, but the shard does not fit next to the history.
#[test]
fn a_history_that_no_slot_can_hold_goes_straight_to_a_file() {
    a_backward_pass_goes_on_after_a_restart(&Machine { memory_bytes: 6 * MIB, ..node() }, 1, "local");
    a_backward_pass_goes_on_after_a_restart(&Machine { memory_bytes: 24 * MIB, ..node() }, 3, "local");
}

#[test]
fn an_empty_history_is_told_from_none() {
    let machine = node();
    run(&machine, 1, |_, session, caches| {
        let pending = seal(session, 1, &caches.history(WAVE, Keep::All)).expect("captured");
        pending.wait(Level::Process).expect("committed");
    });
    run(&machine, 1, |_, session, caches| {
        assert_eq!(load(session, caches).1, 0);
        let missing = session.begin_restore(NAME).run(|restorer| {
            let other = caches.history("another", Keep::All);
            assert!(matches!(restorer.load_history(&other), Err(LoadError::Missing { .. })));
            Ok(())
        });
        assert!(missing.expect("a restart").is_some());
    });
}

/// The copy of an append that returned early is still running, but the checkpoint includes its version.
#[test]
fn what_is_enqueued_is_sealed() {
    let slow = HostModel { copy_bytes_per_s: Some(5e6), ..node().model };
    let machine = Machine { model: slow, ..node() };
    run(&machine, 1, |rank, session, caches| {
        let history = caches.history(WAVE, Keep::UntilRead);
        let (p, none) = (rank.span(&content(0, 7, 1, MIB as usize)), [Field::host::<u8>("mask", &[])]);
        let until = Return::Enqueued;
        history.append_and(7, &[Field::device::<u8>("p", &p)], &*rank.stream, until).expect("room");
        history.append_and(9, &none, &*rank.stream, until).expect("room");
        seal(session, 1, &history).expect("captured").wait(Level::Process).expect("committed");
    });
    run(&machine, 1, |rank, session, caches| {
        let (history, versions, _) = load(session, caches);
        assert_eq!(versions, 2);
        let mut p = vec![0u8; MIB as usize];
        history.restore(7, &mut [FieldMut::host("p", &mut p)], &*rank.stream).expect("it is there");
        assert!(p == content(0, 7, 1, MIB as usize));
        history.restore(9, &mut [], &*rank.stream).expect("it is there");
    });
}

#[test]
fn mistakes_in_calls_are_told() {
    let machine = node();
    run(&machine, 1, |rank, session, caches| {
        let history = caches.history(WAVE, Keep::UntilRead);
        (0..3).for_each(|version| rank.append(&history, version, Return::Done));
        let mut twice = session.begin_checkpoint(NAME, 1).expect("begins");
        twice.save_history(&history).expect("regions");
        let error = twice.save_history(&history).expect_err("the same names").to_string();
        assert!(error.contains("\"wave/0/p\" is saved twice"), "{error}");
        drop(twice);
        let mut taken = session.begin_checkpoint(NAME, 2).expect("begins");
        taken.save("wave/2/p", &[1u8]).expect("a region");
        assert!(matches!(taken.save_history(&history), Err(Error::Region(_))));
        drop(taken);
        let mut consumed = session.begin_checkpoint(NAME, 3).expect("begins");
        consumed.save_history(&history).expect("regions");
        rank.restore(&history, 1);
        let error = consumed.capture().err().expect("it has gone").to_string();
        assert!(error.contains("wave/1/p") && error.contains("was restored before"), "{error}");
        let odd = rank.span(&[0; 9]);
        history.append(5, &[Field::device::<u64>("odd", &odd)], &*rank.stream).expect("room");
        let mut partial = session.begin_checkpoint(NAME, 4).expect("begins");
        let error = partial.save_history(&history).expect_err("a part of an element").to_string();
        assert!(error.contains("\"wave/5/odd\"") && error.contains("whole number"), "{error}");
        drop(partial);
        history.restore(5, &mut [], &*rank.stream).expect("it is there");
        seal(session, 5, &history).expect("captured").wait(Level::Process).expect("committed");
        // The history already has the versions that would be loaded.
        let error = session.begin_restore(NAME).run(|restorer| Ok(restorer.load_history(&history).map(drop)?));
        let error = error.expect_err("they exist").to_string();
        assert!(error.contains("already has a version 0"), "{error}");
    });
    run(&machine, 1, |rank, session, caches| {
        let (history, versions, _) = load(session, caches);
        assert_eq!(versions, 2, "the consumed one is not among them");
        rank.restore(&history, 2);
        rank.restore(&history, 0);
    });
}

#[test]
fn ranks_with_other_versions_are_named() {
    run(&node(), 3, |rank, session, caches| {
        let history = caches.history(WAVE, Keep::UntilRead);
        (0..3).for_each(|version| rank.append(&history, version, Return::Done));
        if rank.rank == VICTIM {
            rank.restore(&history, 2);
        }
        let pending = seal(session, 1, &history).expect("captured");
        let error = pending.wait(Level::Process).expect_err("they differ").to_string();
        assert!(error.contains(&format!("rank {VICTIM}")), "{error}");
    });
}

/// The versions bypass the GPU cache. One rank's copy in memory is damaged: the copy in the file is captured if there is one; otherwise all
/// ranks hear what happened.
#[test]
fn a_damaged_copy_is_replaced_by_the_next_one_or_is_a_no_of_that_rank() {
    for store in [64 * MIB, 1] {
        let machine = Machine { device_bytes: MIB, history_bytes: [8 * MIB, store], ..node() };
        let version = 70;
        run(&machine, 3, |rank, session, caches| {
            let history = caches.history(WAVE, Keep::All);
            rank.append(&history, version, Return::Done);
            if store > 1 {
                history.wait_flushed();
            }
            if rank.rank == VICTIM {
                damage(&machine.folder("memory"), &content(VICTIM, version, 1, p_bytes(version))[70_000..70_100]);
            }
            match (seal(session, 1, &history), store) {
                (Ok(pending), 1) => {
                    let error = pending.wait(Level::Process).expect_err("the victim has no bytes").to_string();
                    assert!(error.contains(&format!("rank {VICTIM}")) && error.contains("is lost"), "{error}");
                }
                (Err(error), 1) => {
                    let error = error.to_string();
                    assert!(rank.rank == VICTIM && error.contains("memory tier, field \"p\", block 4"), "{error}");
                }
                (pending, _) => {
                    pending.expect("captured").wait(Level::Process).expect("committed");
                    let sealed = history.stats().sealed_bytes;
                    let from_file =
                        if rank.rank == VICTIM { (p_bytes(version) + mask_bytes(version)) as u64 } else { 0 };
                    assert_eq!((sealed[0], sealed[2]), (0, from_file), "rank {}", rank.rank);
                }
            }
        });
        if store > 1 {
            run(&machine, 3, |rank, session, caches| {
                let (history, versions, _) = load(session, caches);
                assert_eq!(versions, 1);
                rank.restore(&history, version);
            });
        }
    }
}

fn append_host(history: &History, version: u64, bytes: &[u8], rank: &Rank) {
    history.append(version, &[Field::host("m", bytes)], &*rank.stream).expect("room");
}

/// Between save and capture, the version is consumed, and a new version of the same length or a shorter one gets its number.
#[test]
fn a_version_appended_anew_is_neither_sealed_for_the_old_one_nor_given_up() {
    for length in [500_000, 3] {
        run(&node(), 1, |rank, session, caches| {
            let history = caches.history(WAVE, Keep::UntilRead);
            append_host(&history, 1, &content(0, 1, 1, 500_000), rank);
            let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins");
            checkpoint.save_history(&history).expect("regions");
            history.restore(1, &mut [], &*rank.stream).expect("it is there");
            let new = content(0, 1, 9, length);
            append_host(&history, 1, &new, rank);
            let error = checkpoint.capture().err().expect("the old one is gone").to_string();
            assert!(error.contains("version 1"), "{error}");
            let mut back = vec![0u8; length];
            history.restore(1, &mut [FieldMut::host("m", &mut back)], &*rank.stream).expect("the new one is good");
            assert!(back == new);
        });
    }
}

#[test]
fn a_version_that_the_application_knows_to_be_lost_stops_no_later_seal() {
    let machine = Machine { device_bytes: MIB, history_bytes: [8 * MIB, 1], ..node() };
    run(&machine, 1, |rank, session, caches| {
        let history = caches.history(WAVE, Keep::UntilRead);
        rank.append(&history, 70, Return::Done);
        rank.append(&history, 71, Return::Done);
        damage(&machine.folder("memory"), &content(0, 70, 1, p_bytes(70))[70_000..70_100]);
        let capture = |version: u64| {
            let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
            checkpoint.save_history(&history).expect("regions");
            checkpoint.capture().map(|pending| pending.wait(Level::Process).map_err(|error| error.to_string()))
        };
        assert!(capture(1).is_err(), "nobody was told yet");
        let p = rank.span(&vec![0; p_bytes(70)]);
        let lost = history.restore(70, &mut [FieldMut::device::<f64>("p", &p)], &*rank.stream);
        assert!(lost.is_err_and(|error| error.to_string().contains("is lost")));
        assert!(matches!(capture(2), Ok(Ok(_))));
        assert!(rank.restore(&history, 71).starts_with("71 "));
    });
}

#[test]
fn a_seal_ends_the_enqueued_append_of_another_thread() {
    let model = HostModel { link_bytes_per_s: Some(2e6), ..node().model };
    let machine = Machine { model, ..node() };
    run(&machine, 1, |rank, session, caches| {
        let history = caches.history(WAVE, Keep::UntilRead);
        let bytes = content(0, 1, 1, MIB as usize);
        std::thread::scope(|scope| {
            let (begun, is_begun) = std::sync::mpsc::channel();
            let history = &history;
            scope.spawn(move || {
                let stream = rank.device.stream(Priority::High).expect("a stream");
                begun.send(()).expect("somebody listens");
                let fields = [Field::host("m", &bytes)];
                history.append_and(1, &fields, &*stream, Return::Enqueued).expect("room");
            });
            is_begun.recv().expect("begun");
            // The capture comes within the half second of the upload; if it is late, the test checks less.
            std::thread::sleep(Duration::from_millis(100));
            let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins");
            checkpoint.save_history(history).expect("not timeouts.room later, with an error");
        });
    });
}

#[test]
fn a_history_without_its_caches_is_not_sealed_as_empty() {
    run(&node(), 1, |rank, session, _| {
        let caches = session.caches(rank.device.clone()).expect("caches");
        let history = caches.history(WAVE, Keep::All);
        rank.append(&history, 1, Return::Done);
        drop(caches);
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begins");
        let error = checkpoint.save_history(&history).expect_err("its versions are gone").to_string();
        assert!(error.contains("closed"), "{error}");
    });
}

/// A rank's slab of an array with 40 rows and 6 columns.
fn slab(rank: u32, ranks: u32) -> (u64, u64) {
    let first = |rank: u32| u64::from(rank) * 40 / u64::from(ranks);
    (first(rank), first(rank + 1) - first(rank))
}

fn cells(version: u64, rank: u32, ranks: u32) -> Vec<f64> {
    let (first, rows) = slab(rank, ranks);
    (first * 6..(first + rows) * 6).map(|place| (version * 1000 + place) as f64).collect()
}

fn numbers(rank: u32, ranks: u32) -> Vec<u64> {
    (0..500).rev().filter(|number| number * 7 % 11 % u64::from(ranks) == u64::from(rank)).collect()
}

fn of_numbers(version: u64, numbers: &[u64]) -> Vec<u32> {
    numbers.iter().map(|number| (version * 1000 + number) as u32).collect()
}

/// The decompositions of the versions' fields.
fn grid_and_mesh(session: &Session, rank: u32, ranks: u32) -> (Decomposition, Decomposition, Vec<u64>) {
    let ((first, rows), own) = (slab(rank, ranks), numbers(rank, ranks));
    // A field of a history has no ghost cells.
    let grid = session.decompose(Boxes::of([40, 6]).own([first, 0], [rows, 6]).halo([1, 0])).expect("it tiles");
    let mesh = session.decompose(Ids::of(500).own(own.iter().copied())).expect("each has one");
    (grid, mesh, own)
}

#[test]
fn a_history_on_decompositions_comes_back_version_by_version_on_any_number_of_ranks() {
    let machine = node();
    run(&machine, 3, |rank, session, caches| {
        let (grid, mesh, own) = grid_and_mesh(session, rank.rank, 3);
        let history = caches.history(WAVE, Keep::All);
        for version in 3..8 {
            let (u, p) = (cells(version, rank.rank, 3), of_numbers(version, &own));
            let bytes: Vec<u8> = u.iter().flat_map(|value| value.to_le_bytes()).collect();
            let span = rank.span(&bytes);
            let fields = [Field::device::<f64>("u", &span), Field::host("p", &p)];
            history.append(version, &fields, &*rank.stream).expect("room");
        }
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begun");
        let text = checkpoint.save_history_on(&history, &[("u", &grid)]).unwrap_err().to_string();
        assert!(text.contains("field \"p\" of history \"wave\": no decomposition was given"), "{text}");
        drop(checkpoint);
        let mut checkpoint = session.begin_checkpoint(NAME, 2).expect("begun");
        let text = checkpoint.save_history_on(&history, &[("u", &mesh), ("p", &grid)]).unwrap_err().to_string();
        assert!(text.contains("elements, but this rank owns"), "{text}");
        drop(checkpoint);
        let mut checkpoint = session.begin_checkpoint(NAME, 3).expect("begun");
        checkpoint.save_history_on(&history, &[("u", &grid), ("p", &mesh)]).expect("saved");
        let pending = checkpoint.capture().expect("captured");
        assert!(pending.wait(Level::NodeReboot).expect("committed") >= Level::NodeReboot);
    });
    for ranks in [2, 3, 4] {
        run(&machine, ranks, |rank, session, caches| {
            let (grid, mesh, own) = grid_and_mesh(session, rank.rank, ranks);
            let mut loaded = None;
            let restored = session.begin_restore(NAME).run(|restorer| {
                let history = caches.history(WAVE, Keep::All);
                assert_eq!(restorer.load_history_on(&history, &[("p", &mesh), ("u", &grid)])?, 5);
                loaded = Some(history);
                Ok(())
            });
            assert_eq!(restored.expect("a restart").expect("a checkpoint").version, 3);
            let history = loaded.expect("it was loaded");
            for version in 3..8 {
                let (mut u, mut p) = (vec![0.0f64; slab(rank.rank, ranks).1 as usize * 6], vec![0u32; own.len()]);
                let fields = &mut [FieldMut::host("u", &mut u), FieldMut::host("p", &mut p)];
                history.restore(version, fields, &*rank.stream).expect("it is there");
                assert!(u == cells(version, rank.rank, ranks) && p == of_numbers(version, &own), "version {version}");
            }
            let end = session.begin_restore(NAME).run(|restorer| {
                let history = caches.history("other", Keep::All);
                restorer.load_history_on(&history, &[("p", &mesh), ("u", &grid)])?;
                Ok(())
            });
            assert!(end.unwrap_err().to_string().contains("other/versions"));
        });
    }
}
