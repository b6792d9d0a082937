//! Marks on the twin, whose streams behave as a seed determines: the slot must contain what was marked, and the program's memory what it
//! would contain without us.

use super::mark::{Field, Known, Snapshot, Terms};
use super::step::Next;
use super::thread::{Gate, Offloader};
use super::{Shared, Sizes};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::base::rng::Rng;
use crate::device::host::{HostDevice, HostModel, HostStream};
use crate::device::{Device, DeviceSpan, Moment, Priority, Stream, Target};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Where a landed shard, or its refusal, is put.
type Outcome = Arc<Mutex<Option<Result<Whole, String>>>>;

/// A shard that has landed.
struct Whole {
    target: Arc<Target>,
    digests: Vec<Digest>,
}

/// A program with regions on the twin, and a model of the same regions.
struct World {
    rng: Rng,
    device: HostDevice,
    shared: Shared,
    streams: Vec<Arc<HostStream>>,
    spans: Vec<DeviceSpan>,
    paper: Vec<Vec<u8>>,
    /// The moment after the last mark: if a write is not declared, the program itself has to make sure that the snapshot comes first.
    marked: Option<Arc<dyn Moment>>,
    /// The moment after the last writer of each region.
    written: Vec<Option<Arc<dyn Moment>>>,
    is_audited: bool,
    /// Writes are sometimes not declared.
    forgets: bool,
    /// Region and bytes of undeclared writes since the mark that have changed something.
    forgotten: Vec<(usize, Range<usize>)>,
}

impl World {
    fn new(seed: u64, forgets: bool) -> World {
        let mut rng = Rng::new(seed);
        let device = HostDevice::scheduled(HostModel { memory_bytes: 1 << 30, ..HostModel::default() }, rng.next_u64());
        let streams = (0..1 + rng.below(4)).map(|_| device.own_stream().expect("a stream")).collect();
        let lengths: Vec<u64> = (0..1 + rng.below(4)).map(|_| rng.below(12 * BLOCK)).collect();
        let allocate = |bytes| device.allocate(bytes).expect("room");
        let spans: Vec<DeviceSpan> = lengths.iter().map(|bytes| allocate(*bytes)).collect();
        let buffer = (0..rng.below(3)).map(|_| allocate(rng.below(9 * BLOCK))).collect();
        let [piece, engine, engine_beside] = [(); 3].map(|()| BLOCK << rng.below(4));
        let sizes = Sizes { piece, engine, engine_beside };
        let ours =
            [Priority::Low, Priority::Low, Priority::High].map(|priority| device.stream(priority).expect("a stream"));
        let shared = Shared::new(ours, buffer, sizes, Arc::default());
        let is_audited = forgets || rng.chance(1, 2);
        World {
            paper: lengths.iter().map(|bytes| vec![0; *bytes as usize]).collect(),
            marked: None,
            written: vec![None; spans.len()],
            rng,
            device,
            shared,
            streams,
            spans,
            is_audited,
            forgets,
            forgotten: Vec::new(),
        }
    }

    fn stream(&mut self) -> Arc<HostStream> {
        self.streams[self.rng.below(self.streams.len() as u64) as usize].clone()
    }

    /// Enqueues a kernel that adds something to a part of a region; the write may be declared before or not.
    fn write(&mut self) {
        let stream = self.stream();
        let region = self.rng.below(self.spans.len() as u64) as usize;
        let length = self.spans[region].bytes();
        let start = self.rng.below(length + 1);
        let end = start + self.rng.below((length - start).min(4 * BLOCK) + 1);
        let add = self.rng.below(4) as u8;
        let part = self.spans[region].part(start, end - start).expect("inside");
        if self.forgets && self.rng.chance(1, 12) {
            if let Some(marked) = &self.marked {
                stream.wait_for(&**marked).expect("no error");
            }
            if add > 0 {
                self.forgotten.push((region, start as usize..end as usize));
            }
        } else {
            let declared = if self.rng.chance(1, 5) { self.spans.clone() } else { vec![part.clone()] };
            self.shared.before(&declared, &*stream).expect("no error");
        }
        if start == end {
            return;
        }
        if let Some(last) = &self.written[region] {
            stream.wait_for(&**last).expect("no error");
        }
        let kernel = move |bytes: &mut [&mut [u8]]| bytes[0].iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
        stream.launch(vec![part], kernel).expect("enqueued");
        self.written[region] = Some(stream.moment().expect("a moment"));
        let paper = &mut self.paper[region][start as usize..end as usize];
        paper.iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
    }

    /// Lets other work continue.
    fn go_on(&mut self) {
        for _ in 0..self.rng.below(12) {
            match self.rng.chance(1, 4) {
                true => _ = self.shared.step(self.rng.chance(3, 4), self.rng.chance(1, 2)),
                false => _ = self.device.advance(),
            }
        }
    }

    /// Marks all regions; the target contains `before`, whose digests are known or not.
    fn mark(&mut self, before: Vec<u8>, known: Option<Vec<Digest>>) -> Outcome {
        let stream = self.stream();
        for last in self.written.iter().flatten() {
            stream.wait_for(&**last).expect("no error");
        }
        let outcome = Outcome::default();
        let there = outcome.clone();
        let mut at = 0;
        let field = |(index, span): (usize, &DeviceSpan)| {
            let field = Field { name: format!("r{index}"), span: span.clone(), at };
            at += span.bytes().next_multiple_of(BLOCK);
            field
        };
        let snapshot = Snapshot {
            version: 0,
            fields: self.spans.iter().enumerate().map(field).collect(),
            block_bytes: BLOCK,
            target: Target::new(before),
            known: known.map(|known| -> Known {
                Box::new(move |first, into| into.copy_from_slice(&known[first..first + into.len()]))
            }),
            land: Box::new(move |landed| {
                let whole = landed.map(|landed| Whole { target: landed.target, digests: landed.digests.to_vec() });
                *there.lock().expect("no panic") = Some(whole);
            }),
        };
        self.forgotten.clear();
        let terms = Terms { turn: self.rng.next_u64(), is_audited: self.is_audited, limit: Duration::ZERO };
        assert!(self.shared.mark(snapshot, terms, &*stream).is_ok());
        self.marked = Some(stream.moment().expect("a moment"));
        outcome
    }

    /// Works until the mark has landed.
    fn finish(&mut self, outcome: &Outcome) -> Result<Whole, String> {
        loop {
            if let Some(landed) = outcome.lock().expect("no panic").take() {
                return landed;
            }
            match self.shared.step(true, true) {
                Next::Await(moment) => _ = moment.wait(),
                Next::Again => {}
                Next::Ask { .. } | Next::Pause(_) | Next::Idle => panic!("there is nothing to wait for"),
            }
        }
    }

    /// The expected content of the shard, and its digests.
    fn expected(&self) -> (Vec<u8>, Vec<Digest>) {
        let mut bytes = Vec::new();
        let mut digests = Vec::new();
        for region in &self.paper {
            bytes.extend_from_slice(region);
            bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
            digests.extend(region.chunks(BLOCK as usize).map(digest_bytes));
        }
        (bytes, digests)
    }

    /// Checks that the program's memory is what it would be without us.
    fn check_program(&self) {
        self.streams.iter().for_each(|stream| stream.finish().expect("no error"));
        for (span, paper) in self.spans.iter().zip(&self.paper) {
            let same = self.device.compute(&[span], |bytes| bytes[0] == &paper[..]);
            assert!(same.expect("memory"), "the program has something else");
        }
    }

    /// Checks that a refusal is due to an undeclared write.
    fn check_refusal(&self, why: &str) {
        let number = |before: &str| -> usize {
            let rest = why.split_once(before).unwrap_or_else(|| panic!("{why}")).1;
            let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().unwrap_or_else(|_| panic!("{why}"))
        };
        let (region, start, end) = (number("region \"r"), number("in bytes "), number(" to "));
        let is_so = |(other, bytes): &(usize, Range<usize>)| *other == region && bytes.start < end && start < bytes.end;
        assert!(self.forgotten.iter().any(is_so), "{why}, and that was {:?}", self.forgotten);
    }
}

/// How many rounds of a seed were refused, and how many rounds there were.
fn run(seed: u64, forgets: bool) -> (usize, usize) {
    let mut world = World::new(seed, forgets);
    let (bytes, blocks) = (world.expected().0.len(), world.expected().1.len());
    let (mut slot, mut known) = (vec![0; bytes], None);
    let (rounds, mut refused) = (1 + world.rng.below(4) as usize, 0);
    for _ in 0..rounds {
        for _ in 0..world.rng.below(4) {
            world.write();
            world.go_on();
        }
        let outcome = world.mark(slot, known.take());
        let (expected, digests) = world.expected();
        for _ in 0..world.rng.below(10) {
            world.go_on();
            world.write();
        }
        match world.finish(&outcome) {
            Ok(Whole { target, digests: found }) => {
                let landed = target.take_back::<Vec<u8>>().expect("nothing is on its way there");
                assert!(landed == expected, "another state than the one that was marked");
                assert!(found == digests && found.len() == blocks);
                // Sometimes the next shard is sent to another slot.
                let is_there = world.rng.chance(2, 3);
                (slot, known) = if is_there { (landed, Some(found)) } else { (vec![0; bytes], None) };
            }
            Err(why) => {
                world.check_refusal(&why);
                refused += 1;
                (slot, known) = (vec![0; bytes], None);
            }
        }
    }
    world.check_program();
    (refused, rounds)
}

fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("BIVOUAC_TEST_SEED").unwrap_or(0);
    first..first + number("BIVOUAC_TEST_SEEDS").unwrap_or(count)
}

fn named<T>(seed: u64, run: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    std::panic::catch_unwind(run).unwrap_or_else(|cause| {
        eprintln!("seed {seed}: BIVOUAC_TEST_SEED={seed} BIVOUAC_TEST_SEEDS=1");
        std::panic::resume_unwind(cause)
    })
}

/// Runs all seeds with `BIVOUAC_TEST_SEEDS=200000 cargo nextest run --release -p bivouac-core offload`.
#[test]
fn the_slot_has_what_was_marked_and_the_program_what_it_wrote() {
    for seed in seeds(2000) {
        let (refused, _) = named(seed, || run(seed, false));
        assert_eq!(refused, 0, "seed {seed}");
    }
}

#[test]
fn a_write_that_nobody_declared_is_refused_or_does_no_harm() {
    let (mut refused, mut all) = (0, 0);
    for seed in seeds(1000) {
        let (some, of) = named(seed, || run(seed, true));
        (refused, all) = (refused + some, all + of);
    }
    assert!(refused > 0 && refused < all, "{refused} of {all}");
}

/// A gate that fails as a broken invariant does.
struct Broken;

impl Gate for Broken {
    fn pass(&mut self, _: u64, _: u64, _: u64) {
        panic!("the gate is broken");
    }

    fn is_waited_for(&self) -> bool {
        true
    }

    fn over(&mut self) {}
}

#[test]
fn nobody_waits_for_a_thread_that_has_died() {
    let device = HostDevice::new(HostModel::default());
    let streams = [(); 3].map(|()| device.stream(Priority::Low).expect("a stream"));
    let stream = device.stream(Priority::High).expect("a stream");
    let offloader = Offloader::open(streams, Vec::new(), Arc::default(), Broken, || {}).expect("a thread");
    let span = device.allocate(4 * BLOCK).expect("room");
    // `land` is dropped together with the shard, and not called.
    let told = Arc::new(());
    let kept = told.clone();
    let snapshot = Snapshot {
        version: 1,
        fields: vec![Field { name: "r".into(), span: span.clone(), at: 0 }],
        block_bytes: BLOCK,
        target: Target::new(vec![0; 4 * BLOCK as usize]),
        known: None,
        land: Box::new(move |_| panic!("it has not landed, and {kept:?} was told so")),
    };
    let terms = Terms { turn: 0, is_audited: true, limit: Duration::ZERO };
    assert!(offloader.mark(snapshot, terms, &*stream).is_ok());
    offloader.settle();
    assert!(!offloader.is_alive());
    assert_eq!(Arc::strong_count(&told), 1);
    offloader.before(&[span], &*stream).expect("nothing is marked");
}
