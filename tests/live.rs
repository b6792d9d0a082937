//! Host memory to which the program continues to write while it is captured, with the real session on ranks that are
//! threads of this process.
#![forbid(unsafe_code)]

mod common;
mod machine;

use bivouac_core::config::{HostWrites, OffloadConfig, OffloadMode};
use bivouac_core::live::Watch;
use bivouac_core::{Attempt, Level, LiveMemory, LiveStats, Offload, Pending, Session};
use common::limit::wait_until;
use machine::*;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The length of a region: a few MiB, which begin and end inside a page.
const NUMBERS: usize = (3 << 20) / 8 + 11;

fn machine(host_writes: HostWrites) -> Machine {
    let offload = OffloadConfig { mode: OffloadMode::Always, audit: true, host_writes };
    Machine { offload, ..Machine::new() }
}

/// Can writes be watched here? Prints a loud note if they cannot.
fn can_watch() -> bool {
    match Watch::open() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("*** SKIPPED: {why}; as root: cargo nextest run --features object-store -E 'binary(live)' ***");
            false
        }
    }
}

/// A function that declares that a part is about to be written to.
type Declare<'a> = dyn Fn(&[AtomicU64]) + Sync + 'a;

/// Memory to which several threads write, and a gate that stops them.
struct Field {
    numbers: &'static [AtomicU64],
    memory: LiveMemory,
    gate: RwLock<()>,
    is_over: AtomicBool,
}

impl Field {
    /// A field that begins `odd` numbers after the start of an allocation.
    fn new(odd: usize) -> Field {
        let numbers: Vec<AtomicU64> = (0..NUMBERS as u64 + odd as u64).map(AtomicU64::new).collect();
        let numbers = &numbers.leak()[odd..];
        let memory = LiveMemory::leaked(numbers);
        Field { numbers, memory, gate: RwLock::new(()), is_over: AtomicBool::new(false) }
    }

    fn now(&self) -> Vec<u64> {
        self.numbers.iter().map(|number| number.load(Ordering::Relaxed)).collect()
    }

    /// Writes until the test is over, to the places that `place` makes of random numbers.
    fn write(&self, seed: u64, declare: Option<&Declare<'_>>, place: impl Fn(u64) -> usize) {
        let mut state = seed | 1;
        while !self.is_over.load(Ordering::Acquire) {
            let _pass = self.gate.read().expect("nobody panics");
            for _ in 0..50 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = place(state);
                declare.into_iter().for_each(|declare| declare(&self.numbers[at..at + 1]));
                self.numbers[at].store(state, Ordering::Relaxed);
            }
        }
    }
}

/// Ends the writers when it is dropped, even if the test fails.
struct Over<'a>(&'a Field);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Captures a field while nobody writes, and returns its contents at that moment.
fn capture(session: &Session, field: &Field, version: u64) -> (Pending, Vec<u64>) {
    let _nobody = field.gate.write().expect("nobody panics");
    let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
    checkpoint.save_live::<u64>("field", &field.memory).expect("a region");
    checkpoint.value("version", &version).expect("a region");
    let snapshot = field.now();
    (checkpoint.capture().expect("captured"), snapshot)
}

fn restart(session: &Session) -> Option<(u64, Vec<u64>)> {
    let mut numbers = vec![0u64; NUMBERS];
    let load = |restorer: &mut Attempt| Ok(restorer.load("field", &mut numbers)?);
    session.begin_restore(NAME).run(load).expect("a restart").map(|restored| (restored.version, numbers))
}

/// Captures versions while two threads continue to write to a tenth of the field; each version must come back
/// unchanged. Returns the counters.
fn capture_under_fire(machine: &Machine, odd: usize, versions: u64) -> Vec<LiveStats> {
    let is_declared = machine.offload.host_writes == HostWrites::Declared;
    machine.run(2, |rank, session| {
        let field = Field::new(odd);
        let engine = session.engine().clone();
        let declare = |part: &[AtomicU64]| {
            let range = part.as_ptr_range();
            engine.before_write(&(range.start.addr()..range.end.addr()));
        };
        let declare: Option<&Declare<'_>> = if is_declared { Some(&declare) } else { None };
        std::thread::scope(|scope| {
            let _over = Over(&field);
            for writer in 1..3 {
                let (field, seed) = (&field, u64::from(rank.rank + 1) << 32 | writer);
                // The places include both ends and the middle.
                scope.spawn(move || {
                    field.write(seed, declare, |number| (number as usize % (NUMBERS / 10)) * 10 / 99 * 99)
                });
            }
            for version in 1..=versions {
                let (pending, snapshot) = capture(session, &field, version);
                assert!(pending.wait(Level::Process).expect("committed") >= Level::Process);
                assert!(restart(session) == Some((version, snapshot)), "version {version} is another one");
            }
        });
        session.stats().live
    })
}

#[test]
fn what_was_captured_comes_back_though_writers_never_stop() {
    if !can_watch() {
        return;
    }
    for odd in [0, 3] {
        for stats in capture_under_fire(&machine(HostWrites::Watched), odd, 12) {
            assert!(stats.regions > 0 && stats.bytes == stats.regions * NUMBERS as u64 * 8, "{stats:?}");
            assert!(stats.regions + stats.at_once == 12, "{stats:?}");
        }
    }
}

#[test]
fn what_is_declared_comes_back_without_the_kernels_help() {
    for stats in capture_under_fire(&machine(HostWrites::Declared), 1, 12) {
        assert_eq!((stats.regions, stats.at_once, stats.waited_bytes), (12, 0, 0), "{stats:?}");
        assert!(stats.declared_bytes > 0, "{stats:?}");
    }
}

/// Node memory has no room, or the configuration requires a copy at once.
#[test]
fn what_is_not_left_for_later_is_copied_at_once() {
    let no_memory = Machine { memory_enabled: false, local_every: 1, ..machine(HostWrites::Watched) };
    for (machine, at_once) in [(machine(HostWrites::Copied), 3), (no_memory, 0)] {
        machine.run(1, |_, session| {
            let field = Field::new(0);
            for version in 1..=3 {
                let (pending, snapshot) = capture(session, &field, version);
                field.numbers.iter().for_each(|number| number.store(9, Ordering::Relaxed));
                reaches(Ok(pending), Level::Process.min(Level::NodeReboot));
                assert!(restart(session) == Some((version, snapshot)));
            }
            let stats = session.stats().live;
            assert_eq!((stats.regions, stats.at_once), (0, at_once), "{stats:?}");
        });
    }
}

#[test]
fn memory_that_is_overwritten_at_once_is_copied_at_once_until_it_is_tried_again() {
    if !can_watch() {
        return;
    }
    machine(HostWrites::Watched).run(1, |_, session| {
        let field = Field::new(0);
        let mut tried = Vec::new();
        for version in 1..=40 {
            let before = session.stats().live.regions;
            let (pending, snapshot) = capture(session, &field, version);
            // The writes go from the end to the start, because the copy reaches the end last.
            let numbers = field.numbers.iter().rev().step_by(2048);
            numbers.for_each(|number| _ = number.fetch_add(1, Ordering::Relaxed));
            reaches(Ok(pending), Level::Process);
            assert!(restart(session) == Some((version, snapshot)));
            tried.push(session.stats().live.regions > before);
        }
        let stats = session.stats().live;
        assert!(tried[0] && stats.waited_bytes > 0, "{stats:?}");
        // After a capture for which the program waited too often, eight are copied. It is also possible that every
        // capture was quick enough.
        let pauses: Vec<usize> =
            tried.split(|is_live| *is_live).map(<[bool]>::len).filter(|count| *count > 0).collect();
        let (last, others) = pauses.split_last().unwrap_or((&0, &[]));
        assert!(others.iter().all(|count| *count == 8) && *last <= 8, "{tried:?}");
        assert_eq!(stats.at_once, pauses.iter().sum::<usize>() as u64);
    });
}

/// If two regions share pages, one of them is copied at once: a page that is opened for writing to the one would be open for the other.
#[test]
fn memory_that_is_saved_twice_is_twice_what_it_was() {
    if !can_watch() {
        return;
    }
    machine(HostWrites::Watched).run(1, |_, session| {
        let field = Field::new(3);
        let half = LiveMemory::leaked(&field.numbers[NUMBERS / 2..]);
        for version in 1..=3 {
            let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
            checkpoint.save_live::<u64>("field", &field.memory).expect("a region");
            checkpoint.save_live::<u64>("half", &half).expect("a region");
            let snapshot = field.now();
            let pending = checkpoint.capture();
            field.numbers.iter().step_by(4096).for_each(|number| _ = number.fetch_add(1, Ordering::Relaxed));
            reaches(pending, Level::Process);
            let (mut all, mut part) = (vec![0u64; NUMBERS], vec![0u64; NUMBERS - NUMBERS / 2]);
            let load = |restorer: &mut Attempt| {
                restorer.load("field", &mut all)?;
                Ok(restorer.load("half", &mut part)?)
            };
            assert!(session.begin_restore(NAME).run(load).expect("a restart").is_some());
            assert!(all == snapshot && part == snapshot[NUMBERS / 2..], "version {version}");
        }
        let stats = session.stats().live;
        assert!(stats.at_once >= 3 && stats.regions + stats.at_once == 6, "{stats:?}");
    });
}

/// This holds even if the next capture leaves nothing for later itself.
#[test]
fn when_the_next_capture_has_returned_the_one_before_has_been_copied() {
    if !can_watch() {
        return;
    }
    machine(HostWrites::Watched).run(1, |_, session| {
        let (field, small) = (Field::new(0), LiveMemory::leaked(vec![].leak()));
        let (first, snapshot) = capture(session, &field, 1);
        let mut checkpoint = session.begin_checkpoint("small", 1).expect("begins");
        checkpoint.save_live::<u64>("small", &small).expect("a region");
        let second = checkpoint.capture();
        assert_eq!(session.stats().live.regions, 1);
        reaches(Ok(first), Level::Process);
        reaches(second, Level::Process);
        session.settle();
        assert!(restart(session) == Some((1, snapshot)));
    });
}

/// The device and the host regions of one shard are copied by two threads.
fn mark(
    rank: &Rank,
    session: &Session,
    offload: &Offload,
    field: &Field,
    version: u64,
) -> bivouac_core::Result<Pending> {
    let p = rank.span(&content(rank.rank, version, 1, P_BYTES));
    let mut checkpoint = session.begin_checkpoint(NAME, version)?.with_offload(offload, &*rank.stream);
    checkpoint.save_live::<u64>("field", &field.memory)?;
    checkpoint.save_device::<u8>("p", &p)?;
    checkpoint.capture()
}

#[test]
fn a_shard_with_live_memory_on_host_and_device_lands_when_both_have_come() {
    if !can_watch() {
        return;
    }
    let machine = Machine { offload: machine(HostWrites::Watched).offload, ..Machine::slow(0.05) };
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let offload = session.offload(&caches).expect("an offload");
        offload.prepare((P_BYTES + NUMBERS * 8) as u64).expect("room");
        let field = Field::new(5);
        for version in 1..=4 {
            field.numbers[0].store(version, Ordering::Relaxed);
            let snapshot = field.now();
            let pending = mark(rank, session, &offload, &field, version);
            field.numbers[NUMBERS - 1].store(version + 100, Ordering::Relaxed);
            reaches(pending, Level::Process);
            let (mut p, mut numbers) = (vec![0u8; P_BYTES], vec![0u64; NUMBERS]);
            let load = |restorer: &mut Attempt| {
                restorer.load("field", &mut numbers)?;
                Ok(restorer.load("p", &mut p)?)
            };
            assert_eq!(
                session.begin_restore(NAME).run(load).expect("a restart").map(|restored| restored.version),
                Some(version)
            );
            assert!(numbers == snapshot && p == content(rank.rank, version, 1, P_BYTES), "version {version}");
        }
        // A capture whose slot was not ready yet was copied whole.
        let (marks, regions) = (session.stats().offload.marks, session.stats().live.regions);
        assert!(marks > 0 && marks == regions, "{marks} marks, {regions} regions");
    });
}

#[test]
fn a_device_that_is_lost_takes_the_shard_with_it_and_no_writer_hangs() {
    if !can_watch() {
        return;
    }
    let machine = Machine { offload: machine(HostWrites::Watched).offload, ..Machine::slow(0.5) };
    machine.run(RANKS, |rank, session| {
        let caches = rank.caches(session);
        let offload = session.offload(&caches).expect("an offload");
        offload.prepare((P_BYTES + NUMBERS * 8) as u64).expect("room");
        let field = Field::new(0);
        reaches(mark(rank, session, &offload, &field, 1), Level::Process);
        let pending = mark(rank, session, &offload, &field, 2);
        if rank.rank == VICTIM {
            rank.lose_device();
        }
        field.numbers.iter().for_each(|number| number.store(7, Ordering::Relaxed));
        names_the_victim(rank.rank, committed(pending, Level::Process), "fell off the bus");
    });
}

#[test]
fn who_drops_the_session_may_free_the_memory() {
    let machine = machine(HostWrites::Watched);
    machine.run_to_the_end(1, |_, session| {
        let field = Field::new(0);
        let (pending, _) = capture(&session, &field, 1);
        let is_free = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let numbers = field.numbers;
            scope.spawn(|| {
                numbers.iter().for_each(|number| number.store(1, Ordering::Relaxed));
                is_free.store(true, Ordering::Release);
            });
            drop(pending);
            drop(session);
        });
        wait_until("all is written", || is_free.load(Ordering::Acquire));
    });
}
