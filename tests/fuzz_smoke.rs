//! Fuzzing without a fuzzer: the tests run every decoder on seeded mutations of good bytes, on the stable toolchain.
//!
//! Each test starts from good bytes (the golden files, encoded messages, the sample configuration, a real segment) and changes them: bits,
//! bytes, words of interest, cuts, splices. In most rounds the checksums are then corrected, so that the decoders behind them are reached;
//! a test fails if no round reached them. No input may cause a panic, and no input may make the program hold more than 256 MiB: the
//! allocator of this program refuses to give more, which ends the program.
//!
//! In CI this takes a few seconds. To run for an hour, shared by all targets:
//!
//! ```text
//! BIVOUAC_TEST_FUZZ_SECONDS=3600 cargo nextest run --test fuzz_smoke
//! ```
//!
//! Round N of a target is the same on every machine. A failure prints its round; to replay it alone:
//! `BIVOUAC_TEST_FUZZ_ROUND=N cargo nextest run --test fuzz_smoke NAME`. `BIVOUAC_TEST_FUZZ_SEED` gives other rounds.

mod fuzz_targets;
mod golden_files;

use bivouac_core::affinity::machine::{Cpu, Machine, Node, PciDevice, PciKind};
use bivouac_core::affinity::pages::{PageMap, Run};
use bivouac_core::affinity::record::{Policy, Record, RegionPlace, Role, ThreadPlace};
use bivouac_core::base::rng::Rng;
use bivouac_core::base::{Generation, Incarnation, Rank};
use bivouac_core::catalog::Candidate;
use bivouac_core::coordination::core::Message;
use bivouac_core::coordination::{Ballot, Culprit, Outcome, Payload, Phase, Round, Verdict};
use bivouac_core::decomposition::{self, Boxes, Identity, Ids, OnResize, Rule};
use bivouac_core::format::{ContainerInfo, checksum, codec};
use bivouac_core::segment::{SealInfo, Segment, SegmentSpec};
use fuzz_targets::Reached;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

// ------------------------------------------------------------------------------------------- the allocator

/// The maximum number of bytes that this program may hold.
const HELD_MAX: usize = 256 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which gives nothing beyond [`HELD_MAX`]: the standard library then ends the program and
/// prints the number of bytes that were requested.
struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

// SAFETY: every call is either passed on unchanged to the system's allocator, which keeps the contract, or refused with
// a null pointer, which the contract allows. The counter allocates nothing.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size() > HELD_MAX {
            HELD.fetch_sub(layout.size(), Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc` (a layout of non-zero size), which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

// ------------------------------------------------------------------------------------------- mutations

/// Values that replace lengths and counts.
const WORDS: [u64; 12] = [0, 1, 2, 255, 4095, 4096, 1 << 20, 1 << 31, 1 << 32, 1 << 46, u64::MAX / 16, u64::MAX];

/// Changes a few things, anywhere or near the front, where the headers are.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..1 + rng.below(6) {
        if bytes.is_empty() {
            bytes.extend((0..rng.below(64)).map(|_| 7u8));
            continue;
        }
        let length = bytes.len() as u64;
        let reach = if rng.chance(1, 2) { length } else { length.min(600) };
        // The distance counts from the front or, because of containers, from the back.
        let offset = rng.below(reach);
        let at = if rng.chance(1, 3) { length - 1 - offset } else { offset } as usize;
        match rng.below(10) {
            0..=2 => bytes[at] ^= 1 << rng.below(8),
            3 => bytes[at] = rng.next_u64() as u8,
            4 | 5 => {
                // An aligned word changes by a small step, or becomes a value of interest.
                let at = at / 8 * 8;
                if let Some(word) = bytes.get_mut(at..at + 8) {
                    let old = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                    let new = match rng.below(3) {
                        0 => old.wrapping_add(rng.below(17)).wrapping_sub(8),
                        1 => WORDS[rng.below(WORDS.len() as u64) as usize],
                        _ => old.wrapping_mul(rng.below(5)),
                    };
                    word.copy_from_slice(&new.to_le_bytes());
                }
            }
            6 => bytes.truncate(at),
            7 => {
                let end = (at + 1 + rng.below(32) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            8 => {
                let piece: Vec<u8> = bytes[at..(at + 1 + rng.below(64) as usize).min(bytes.len())].to_vec();
                let to = rng.below(bytes.len() as u64) as usize;
                bytes.splice(to..to, piece);
            }
            _ => {
                // A splice with another seed.
                let other = &seeds[rng.below(seeds.len() as u64) as usize];
                if !other.is_empty() {
                    let from = rng.below(other.len() as u64) as usize;
                    let count = (1 + rng.below(512) as usize).min(other.len() - from).min(bytes.len() - at);
                    bytes[at..at + count].copy_from_slice(&other[from..from + count]);
                }
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(word) = bytes.get_mut(at..at + 8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Corrects the checksum at `at` in `range`. The checksum covers that range, and counts as zero there.
fn sign(bytes: &mut [u8], range: std::ops::Range<usize>, at: usize) {
    if range.end <= bytes.len() && range.start + at + 8 <= range.end {
        put(bytes, range.start + at, 0);
        let sum = checksum(&bytes[range.clone()]);
        put(bytes, range.start + at, sum);
    }
}

fn sign_nothing(_: &mut Rng, _: &mut [u8]) {}

fn sign_shard(_: &mut Rng, bytes: &mut [u8]) {
    sign_shard_at(bytes, 0);
}

/// The set is checked by a digest only when it is read from a file, not here, so it is changed more often than the rest.
fn sign_part(rng: &mut Rng, bytes: &mut [u8]) {
    let body = word(bytes, 120).and_then(|body| usize::try_from(body).ok()).filter(|body| *body < bytes.len());
    if let (Some(body), true) = (body, rng.chance(1, 2)) {
        let at = body + rng.below(40.min((bytes.len() - body) as u64)) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
    sign_shard_at(bytes, 0);
}

/// Half of the time, changes a bit in the extents or in the packed head, and corrects the checksums of that head.
fn sign_packed(rng: &mut Rng, bytes: &mut [u8]) {
    let body = word(bytes, 120).and_then(|body| usize::try_from(body).ok()).filter(|body| *body < bytes.len());
    if let (Some(body), true) = (body, rng.chance(1, 2)) {
        let at = body + rng.below((bytes.len() - body) as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        sign_shard_at(bytes, body);
    }
    sign_shard_at(bytes, 0);
}

fn sign_shard_at(bytes: &mut [u8], start: usize) {
    let body = word(bytes, start + 120).and_then(|body| start.checked_add(usize::try_from(body).ok()?));
    if let Some(sum) = body.and_then(|body| bytes.get(start + 256..body)).map(checksum) {
        put(bytes, start + 136, sum);
    }
    sign(bytes, start..start + 256, 16);
}

fn sign_container(rng: &mut Rng, bytes: &mut [u8]) {
    let Some(footer) = bytes.len().checked_sub(64) else { return };
    if rng.chance(1, 2) {
        let length = bytes.len() as u64;
        put(bytes, footer + 48, length);
    }
    sign_shard_at(bytes, 0);
    let index = word(bytes, footer + 24).and_then(|at| usize::try_from(at).ok());
    if let Some(sum) = index.and_then(|index| bytes.get(index..footer)).map(checksum) {
        put(bytes, footer + 40, sum);
    }
    sign(bytes, footer..footer + 64, 16);
}

fn sign_manifest(rng: &mut Rng, bytes: &mut [u8]) {
    if let Some(sum) = bytes.get(48..).map(checksum) {
        put(bytes, 32, sum);
        if rng.chance(3, 4) {
            let length = bytes.len() as u64 - 48;
            put(bytes, 24, length);
        }
    }
    sign(bytes, 0..48, 16);
}

fn sign_segment(_: &mut Rng, bytes: &mut [u8]) {
    sign(bytes, 0..128, 16);
}

// ------------------------------------------------------------------------------------------- seeds

fn messages() -> Vec<Vec<u8>> {
    let round = Round { operation: 9, phase: Phase::Level(3) };
    let info = |file: &str| ContainerInfo { file: file.into(), bytes: 45056, ranks: vec![Rank(0), Rank(1)] };
    let candidate = Candidate { key: golden_files::key(), agreement: 7, group_size: 2, origin: golden_files::ORIGIN };
    let payloads = [
        Payload::None,
        Payload::Bits { all: 1, any: 3 },
        Payload::Max(vec![1, 2, 3]),
        Payload::greatest(3, [candidate.to_bytes()]),
        Payload::gathered([info("c000000.bvc"), info("c000002.bvc")]).unwrap(),
    ];
    let culprit = Culprit { retry: true, ..Culprit::of(Rank(1), "no space left on device") };
    let mut all = vec![
        Message::Late(round, vec![Rank(1), Rank(2)]),
        Message::Deciding(round),
        Message::Down(Verdict {
            round,
            outcome: Outcome::Abandoned(vec![culprit]),
            payload: Payload::None,
            decision: vec![1, 2, 3],
        }),
    ];
    all.extend(payloads.map(|payload| {
        Message::Up(round, Ballot::of(Rank(1), 77, "checkpoint heat", payload).failed(Rank(1), "failed", true))
    }));
    all.iter().map(|message| codec::encode("message", message).expect("encodes")).collect()
}

/// The record of a rank with pinned threads, on a machine with four nodes.
fn affinity_record() -> Vec<u8> {
    let cpu = |number| Cpu { number, core: number / 2, cache: number / 4, package: number / 8, node: number / 4 };
    let gpu = |node: u32| PciDevice { address: format!("0000:{node}7:00.0"), kind: PciKind::Gpu, nodes: vec![node] };
    let thread = |order: u32| ThreadPlace {
        role: if order == 0 { Role::Main } else { Role::Other },
        name: "heat2d".into(),
        order,
        cpus: (order as usize * 2..order as usize * 2 + 2).collect(),
    };
    let runs = (0..40).map(|at| Run { pages: 100 + at, node: (at % 5 > 0).then_some(at as u32 % 4) });
    let host = |runs| RegionPlace::Host { pages: PageMap::from_runs(64, runs), age_ms: 9, is_whole: false };
    let record = Record {
        machine: Machine {
            cpus: (0..16).map(cpu).collect(),
            nodes: (0..4).map(|number| Node { number, bytes: 1 << 34 }).collect(),
            distances: (0..16).map(|at| if at % 5 == 0 { 10 } else { 21 }).collect(),
            devices: vec![gpu(1), gpu(3)],
        },
        given: (0..16).collect(),
        neighbours: vec![0, 1],
        threads: (0..6).map(thread).collect(),
        policy: Policy { mode: 1, nodes: vec![2] },
        regions: vec![("u".into(), host(runs)), ("v".into(), RegionPlace::Device("0000:17:00.0".into()))],
    };
    record.encode().expect("encodes")
}

/// Records of a few boxes on two arrays, of many boxes on one array with columns of rows, and of nothing.
fn decomposition_records() -> Vec<Vec<u8>> {
    let on = |boxes: Boxes, identity| (Identity(identity), boxes.check().expect("inside").parts().clone());
    let few = [
        on(Boxes::of([40, 7]).own([10, 0], [10, 7]).own([30, 2], [1, 5]), 0x0123_4567_89ab_cdef << 40),
        on(Boxes::of([1 << 20, 9, 9]).sparse(), 7),
    ];
    let rules = [Rule::On(0), Rule::Shared, Rule::PerRank(OnResize::Ask), Rule::On(1), Rule::PerRank(OnResize::Refuse)];
    let column = |set, width| Rule::Rows { set, width };
    let rows = |count, low: &[f64], high: &[f64]| decomposition::RowSet::new(count, (low, high)).expect("it can be");
    let list = |total, count| (Identity(3), decomposition::ids::Listed { total, is_sparse: count > 0, count });
    let patches = (0..40).fold(Boxes::of([300, 300]), |boxes, at| boxes.own([at * 7, at], [at % 5, 3]));
    let records = [
        decomposition::Record {
            decompositions: few.into(),
            rules: (0..).step_by(3).zip(rules).collect(),
            ..decomposition::Record::default()
        },
        decomposition::Record {
            decompositions: vec![on(patches, u128::MAX)],
            rules: [(0, column(0, 1)), (1, column(0, 3)), (2, Rule::On(0)), (3, column(1, 1))].into(),
            rows: vec![rows(7, &[0.5, -1.0], &[2.0, 9.0]), rows(0, &[], &[])],
            ..decomposition::Record::default()
        },
        decomposition::Record {
            rules: [(0, Rule::Numbered(1)), (1, column(0, 2)), (3, Rule::Numbered(0))].into(),
            rows: vec![rows(3, &[], &[])],
            lists: vec![list(1 << 40, 5), list(9, 0)],
            ..decomposition::Record::default()
        },
        decomposition::Record::default(),
    ];
    records.iter().map(decomposition::Record::encode).collect()
}

/// Lists of numbers, each with its total and its count: some are in order and others are not, some are so long that they take several
/// blocks, and one is empty.
fn lists() -> Vec<Vec<u8>> {
    let lists = [
        Ids::of(20_000).own((0..9000).chain((9000..15_000).rev().step_by(3))),
        Ids::of(1 << 60).own((0..40).map(|at| at << 50 | 7)),
        Ids::of(3),
    ];
    let with_head = |ids: Ids| {
        let list = ids.check().expect("inside");
        let (total, count) = (list.head().total, list.head().count);
        [&total.to_le_bytes()[..], &count.to_le_bytes(), list.packed()].concat()
    };
    lists.map(with_head).into()
}

/// The control area of a real segment with sealed slots.
fn segment() -> Vec<u8> {
    let folder = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("/dev/shm");
    let spec = SegmentSpec {
        directory: folder.path().to_owned(),
        name: "node".into(),
        job: 1,
        group: 2,
        generation: Generation(3),
        incarnation: Incarnation([4; 16]),
        store: 0,
        budget: 8 << 20,
        node_ranks: 2,
        group_size: 2,
    };
    let segment = Segment::create(&spec).expect("a segment");
    let shard = golden_files::shard(0);
    for version in 1..4 {
        let mut slot = segment.reserve(shard.len() as u64).expect("reserves").expect("room");
        slot.as_mut_slice().copy_from_slice(&shard);
        slot.seal(SealInfo { operation: version, version, name: 5 }).expect("seals");
    }
    let mut bytes = std::fs::read(folder.path().join("node")).expect("read");
    bytes.truncate(24 << 10);
    bytes
}

// ------------------------------------------------------------------------------------------- the runner

const TARGETS: u64 = 13;
/// Rounds in CI, which take some seconds for all targets together in a debug build.
const ROUNDS: u64 = 20_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn fuzz(name: &str, seeds: &[Vec<u8>], sign: fn(&mut Rng, &mut [u8]), target: fn(&[u8]) -> Reached) {
    for (index, seed) in seeds.iter().enumerate() {
        assert_eq!(target(seed), Reached::Value, "{name}: seed {index} is good");
    }
    let only = number("BIVOUAC_TEST_FUZZ_ROUND");
    let limit = number("BIVOUAC_TEST_FUZZ_SECONDS").map(|seconds| Duration::from_secs(seconds.div_ceil(TARGETS)));
    let base = number("BIVOUAC_TEST_FUZZ_SEED").unwrap_or(0);
    let started = Instant::now();
    let mut round = only.unwrap_or(0);
    let mut counts = [0u64; 3];
    loop {
        let mut rng = Rng::new(base ^ round.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        mutate(&mut rng, &mut bytes, seeds);
        if rng.chance(7, 8) {
            sign(&mut rng, &mut bytes);
        }
        match catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            Ok(reached) => counts[reached as usize] += 1,
            Err(_) => {
                let kept = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{round}"));
                std::fs::write(&kept, &bytes).expect("the target folder is writable");
                panic!(
                    "{name}: round {round} with seed {base} panicked (see above); the bytes are in {}",
                    kept.display()
                );
            }
        }
        round += 1;
        let is_over = limit.map_or(round >= ROUNDS, |limit| started.elapsed() >= limit);
        if only.is_some() || is_over {
            break;
        }
    }
    let [frame, rules, value] = counts;
    println!("{name}: {round} rounds; refused by the frame {frame}, by rules {rules}, decoded {value}");
    if only.is_none() {
        assert!(rules > 0 && value > 0, "{name}: nothing came past the checksums: {counts:?}");
    }
}

#[test]
fn hostile_shard_heads_neither_panic_nor_allocate() {
    let seeds = [golden_files::shard(0), golden_files::shard(1)];
    fuzz("shard_head", &seeds, sign_shard, fuzz_targets::shard_head);
}

#[test]
fn hostile_parity_parts_neither_panic_nor_allocate() {
    fuzz("parity_part", &[golden_files::part()], sign_part, fuzz_targets::parity_part);
}

#[test]
fn hostile_packed_shards_neither_panic_nor_allocate() {
    fuzz("packed_shard", &[golden_files::packed(1)], sign_packed, fuzz_targets::packed_shard);
}

#[test]
fn hostile_containers_neither_panic_nor_allocate() {
    let seeds = [golden_files::read(golden_files::CONTAINER), golden_files::read(golden_files::SINGLE)];
    fuzz("container_tail", &seeds, sign_container, fuzz_targets::container_tail);
}

#[test]
fn hostile_manifests_neither_panic_nor_allocate() {
    fuzz("manifest", &[golden_files::read(golden_files::MANIFEST)], sign_manifest, fuzz_targets::manifest);
}

#[test]
fn hostile_messages_neither_panic_nor_allocate() {
    fuzz("message", &messages(), sign_nothing, fuzz_targets::message);
}

#[test]
fn hostile_configurations_neither_panic_nor_allocate() {
    let path = std::path::Path::new(env!("WORKSPACE_ROOT")).join("config/bivouac.toml");
    let sample = std::fs::read(path).expect("the sample");
    let short =
        b"[job]\nname = \"x\"\n[local]\nkeep_last = 3\nevery_seconds = \"5 min\"\n[exit]\nsignal = \"USR1\"\n".to_vec();
    fuzz("config_toml", &[sample, short], sign_nothing, fuzz_targets::config_toml);
}

#[test]
fn hostile_topologies_neither_panic_nor_allocate() {
    let path = std::path::Path::new(env!("WORKSPACE_ROOT")).join("config/topology.toml");
    let sample = std::fs::read(path).expect("the sample");
    let short = b"[rack]\na = 'node[1-4,7],x'\nb = ['node[08-17]', 'y[1-9]z[1-9]']\n".to_vec();
    let slurm =
        b"SwitchName=s0 Nodes=node[1-8]\nSwitchName=s1 Nodes=node[09-17],x\nSwitchName=t Switches=s[0-1]\n".to_vec();
    fuzz("topology", &[sample, short, slurm], sign_nothing, fuzz_targets::topology);
}

#[test]
fn hostile_machine_profiles_neither_panic_nor_allocate() {
    let path = std::path::Path::new(env!("WORKSPACE_ROOT")).join("config/machine.toml");
    let sample = std::fs::read_to_string(path).expect("the sample");
    // The seeds have only a few figures, because all figures together take long to read.
    let figures: Vec<&str> = sample.split("\n[[figure]]\n").collect();
    let seed = |picked: &[&str]| [&[figures[0]], picked].concat().join("\n[[figure]]\n").into_bytes();
    let last = figures.len() - 1;
    let seeds = [seed(&figures[1..2]), seed(&figures[last - 1..]), seed(&figures[11..13])];
    fuzz("profile", &seeds, sign_nothing, fuzz_targets::profile);
}

#[test]
fn hostile_affinity_records_neither_panic_nor_allocate() {
    fuzz("affinity_record", &[affinity_record()], sign_nothing, fuzz_targets::affinity_record);
}

#[test]
fn hostile_lists_of_numbers_neither_panic_nor_allocate() {
    fuzz("id_list", &lists(), sign_nothing, fuzz_targets::id_list);
}

#[test]
fn hostile_decomposition_records_neither_panic_nor_allocate() {
    fuzz("decomposition_record", &decomposition_records(), sign_nothing, fuzz_targets::decomposition_record);
}

#[test]
fn hostile_segments_neither_panic_nor_allocate() {
    fuzz("segment_header", &[segment()], sign_segment, fuzz_targets::segment_header);
}

#[test]
fn the_allocator_refuses_more_than_its_limit() {
    let mut bytes: Vec<u8> = Vec::new();
    assert!(bytes.try_reserve_exact(HELD_MAX + 1).is_err());
    assert!(bytes.try_reserve_exact(HELD_MAX / 16).is_ok());
}
