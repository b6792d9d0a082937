//! Host memory that is copied after a capture has returned (`save_live`), against memory that is copied before (`save`).
//!
//! ```text
//! cargo bench --bench live | tee benches/results/live-NAME.jsonl
//! GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo bench --bench live      (huge pages, where the kernel gives them to who asks)
//! ```
//!
//! A program with one region writes to a part of it and then reads all of it, step by step, on one core. It does so without checkpoints and
//! with a checkpoint of either kind before each step, in turns; figures are medians. The lines are:
//!
//! * `capture`: how long the call takes, and how long a memcpy of the region takes;
//! * `program`: what a checkpoint adds to a step of a program that writes to this share of the region, and the ratio of the two kinds.
#![forbid(unsafe_code)]

use bivouac_core::comm::threads::world;
use bivouac_core::config::{Budget, HostWrites};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Config, Level, LiveMemory, Session};
use clap::Parser;
use serde_json::json;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Parser)]
struct Options {
    /// Size of the region, in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Bytes of a block.
    #[arg(long, default_value_t = 64 << 10)]
    block: u64,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A session, and a program with one region.
struct Bed {
    session: Session,
    numbers: &'static [AtomicU64],
    memory: LiveMemory,
    version: u64,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(options: &Options, host_writes: HostWrites) -> Bed {
        let folder = tempfile::TempDir::new_in("/dev/shm").expect("a folder");
        let bytes = (options.mib as u64) << 20;
        let mut config = Config::default();
        config.job.name = Some("bench-live".into());
        config.job.block_bytes = options.block;
        (config.job.local_enabled, config.job.global_enabled) = (false, false);
        config.job.offload.host_writes = host_writes;
        config.node.memory_directory = folder.path().to_owned();
        config.node.memory_budget = Budget::Bytes(3 * bytes + (64 << 20));
        let comm = world(&[0]).into_iter().next().expect("one rank");
        let place = Place::here(&config, Workers::Threads, "world".into()).expect("a place");
        let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
        let numbers: Vec<AtomicU64> = (0..(options.mib as u64) << 17).map(AtomicU64::new).collect();
        let numbers: &'static [AtomicU64] = numbers.leak();
        Bed { session, numbers, memory: LiveMemory::leaked(numbers), version: 0, _folder: folder }
    }

    /// One step, after a checkpoint or none: seconds of the capture, and of both.
    fn step(&mut self, is_captured: bool, part: f64) -> (f64, f64) {
        let begun = Instant::now();
        self.version += 1;
        let pending = is_captured.then(|| {
            let mut checkpoint = self.session.begin_checkpoint("bench", self.version).expect("begun");
            checkpoint.save_live::<u64>("field", &self.memory).expect("saved");
            checkpoint.capture().expect("captured")
        });
        let captured = begun.elapsed().as_secs_f64();
        let count = (self.numbers.len() as f64 * part) as usize;
        self.numbers[..count].iter().for_each(|number| number.store(self.version, Ordering::Relaxed));
        let numbers = self.numbers.iter().map(|number| number.load(Ordering::Relaxed));
        black_box(numbers.fold(0u64, u64::wrapping_add));
        let all = begun.elapsed().as_secs_f64();
        if let Some(pending) = pending {
            assert!(pending.wait(Level::Process).expect("committed") >= Level::Process);
        }
        (captured, all)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of a copy of this many bytes.
fn memcpy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    let once = |to: &mut Vec<u8>| {
        let begun = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to[0]);
        begun.elapsed().as_secs_f64()
    };
    median((0..5).map(|_| once(&mut to)).collect())
}

fn main() {
    let options = Options::parse();
    let huge = std::env::var("GLIBC_TUNABLES").is_ok_and(|tunables| tunables.contains("hugetlb=1"));
    let about = json!({ "mib": options.mib, "block": options.block, "rounds": options.rounds, "huge": huge });
    let line = |bench: &str, mut values: serde_json::Value| {
        values["bench"] = bench.into();
        values["about"] = about.clone();
        println!("{values}");
    };
    let bare = memcpy(options.mib << 20);
    for part in [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0] {
        // A new bed for each share, so that none of them remembers the measurements before.
        let mut copied = Bed::new(&options, HostWrites::Copied);
        let mut live = Bed::new(&options, HostWrites::Watched);
        for bed in [&mut copied, &mut live] {
            (0..2).for_each(|_| _ = bed.step(true, 0.0));
        }
        let mut rows: [Vec<(f64, f64)>; 4] = Default::default();
        for _ in 0..options.rounds {
            rows[0].push(copied.step(false, part));
            rows[1].push(copied.step(true, part));
            rows[2].push(live.step(false, part));
            rows[3].push(live.step(true, part));
        }
        let [calm, copied_all, calm_too, live_all] =
            [0, 1, 2, 3].map(|row: usize| median(rows[row].iter().map(|(_, all)| *all).collect()));
        let [copied_call, live_call] =
            [1, 3].map(|row: usize| median(rows[row].iter().map(|(call, _)| *call).collect()));
        let stats = live.session.stats().live;
        if part == 0.0 {
            line("capture", json!({ "memcpy_s": bare, "copied_s": copied_call, "live_s": live_call }));
        }
        let (by_copy, by_live) = (copied_all - calm, live_all - calm_too);
        line(
            "program",
            json!({
                "written": part, "step_s": calm, "copied_adds_s": by_copy, "live_adds_s": by_live, "live_of_copied": by_live / by_copy,
                "waited_bytes": stats.waited_bytes, "live": stats.regions, "at_once": stats.at_once,
            }),
        );
    }
}
