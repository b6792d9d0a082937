//! The figures of host memory: each is a ratio of two things measured in turn, in one run, on the same bytes.
//!
//! Run it through `benches/run.sh`, which starts it under mpirun and stores what it prints. Every line that rank 0
//! prints is one JSON object: what was measured, the medians of both sides in seconds, their ratio, and the target. All
//! buffers are touched before anything is timed; the first round of each measurement is thrown away.
#![forbid(unsafe_code)]

use bivouac_core::base::digest::{copy_digest, copy_streaming, store_fence};
use bivouac_core::config::Budget;
use bivouac_core::tier::posix::PageBuffer;
use bivouac_core::{Config, Level, Session};
use clap::Parser;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a raw write and of an engine write.
const WRITE: usize = 4 << 20;
/// Bytes of a raw read.
const READ: usize = 4 << 20;
/// Threads per rank of a raw write: the engine's default.
const WRITERS: usize = 2;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

#[derive(Parser)]
struct Options {
    /// What to measure.
    #[arg(value_parser = ["digest", "blocking", "regions", "flush", "restart", "small", "beside", "streams"])]
    figure: String,
    /// Data per rank, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Directory for the local and the global tier, on the file system to measure.
    #[arg(long)]
    dir: PathBuf,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    world: SimpleCommunicator,
    options: Options,
}

fn main() {
    env_logger::init();
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one rank would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        mpi::topology::SimpleCommunicator::world().abort(1);
    }));
    let bench = Bench { world: universe.world(), options };
    let figure = bench.options.figure.clone();
    match figure.as_str() {
        "digest" => bench.digest(),
        "blocking" => bench.blocking(),
        "regions" => bench.regions(),
        "flush" => bench.flush(),
        "restart" => bench.restart(),
        "small" => bench.small(),
        "streams" => bench.streams(),
        _ => bench.beside(),
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Bench {
    fn rank(&self) -> i32 {
        self.world.rank()
    }

    fn bytes(&self) -> usize {
        self.options.mib << 20
    }

    /// The longest of all ranks' times.
    fn slowest(&self, mine: f64) -> f64 {
        let mut all = 0.0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        all
    }

    /// Runs `body` on all ranks at once and returns the slowest rank's time.
    fn timed(&self, body: impl FnOnce()) -> f64 {
        self.world.barrier();
        let start = Instant::now();
        body();
        self.slowest(start.elapsed().as_secs_f64())
    }

    /// Times the sides in turn, round by round, and returns their medians.
    fn in_turn<const N: usize>(&self, mut sides: [&mut dyn FnMut() -> f64; N]) -> [f64; N] {
        let mut times = [(); N].map(|()| Vec::new());
        for round in 0..=self.options.rounds {
            for (side, times) in sides.iter_mut().zip(&mut times) {
                let took = side();
                if round > 0 {
                    times.push(took);
                }
            }
        }
        times.map(median)
    }

    fn print(&self, what: &str, ours: f64, reference: f64, against: &str, target: &str) {
        self.print_ratio(what, ours, reference, ours / reference, against, target);
    }

    fn print_ratio(&self, what: &str, ours: f64, reference: f64, ratio: f64, against: &str, target: &str) {
        if self.rank() == 0 {
            let line = json!({
                "figure": what, "ranks": self.world.size(), "mib_per_rank": self.options.mib, "rounds": self.options.rounds,
                "ours_s": ours, "against": against, "against_s": reference,
                "ratio": (ratio * 1000.0).round() / 1000.0, "target": target,
            });
            println!("{line}");
        }
    }

    fn config(&self, name: &str) -> Config {
        let mut config = Config::from_env().expect("the environment is clean");
        config.job.name = Some(format!("bench-{name}"));
        config.job.global_directory = self.options.dir.join("global");
        config.node.local_directory = Some(self.options.dir.join("local"));
        config.job.global.keep_last = 1;
        config.job.local.keep_last = 1;
        let ranks = self.world.size() as u64;
        config.node.memory_budget = Budget::Bytes(ranks * (3 * self.bytes() as u64 + (64 << 20)));
        config
    }

    fn open(&self, config: Config) -> Session {
        Session::open(&self.world, config).expect("the session opens")
    }

    /// A session whose first slot has been populated in the background, as in an application that knows its size.
    fn open_prepared(&self, name: &str) -> Session {
        let session = self.open(self.config(name));
        session.prepare(self.bytes() as u64);
        std::thread::sleep(std::time::Duration::from_secs(2));
        session
    }

    fn noise(&self) -> Vec<f64> {
        let mut rng = bivouac_core::base::rng::Rng::new(self.rank() as u64);
        (0..self.bytes() / 8).map(|_| f64::from_bits(rng.next_u64() >> 2)).collect()
    }

    fn capture(&self, session: &Session, version: u64, data: &[f64]) -> bivouac_core::Pending {
        let mut checkpoint = session.begin_checkpoint("bench", version).expect("the name is fine");
        checkpoint.save("data", data).expect("the region is fine");
        checkpoint.capture().expect("there is room")
    }

    /// Digests on against off, and the capture loop against libc's memcpy, memory to memory.
    fn digest(&self) {
        let source = self.noise();
        let source: &[u8] = bytemuck::cast_slice(&source);
        let mut plain = PageBuffer::new(source.len());
        let mut target = PageBuffer::new(source.len());
        let block = 256 << 10;
        let target = std::cell::RefCell::new(&mut target);
        let [on, off, memcpy] = self.in_turn([
            &mut || {
                let mut target = target.borrow_mut();
                self.timed(|| {
                    for (from, to) in source.chunks(block).zip(target.chunks_mut(block)) {
                        black_box(copy_digest(from, to));
                    }
                    store_fence();
                })
            },
            &mut || {
                let mut target = target.borrow_mut();
                self.timed(|| {
                    for (from, to) in source.chunks(block).zip(target.chunks_mut(block)) {
                        copy_streaming(from, black_box(to));
                    }
                    store_fence();
                })
            },
            &mut || self.timed(|| black_box(&mut plain).copy_from_slice(black_box(source))),
        ]);
        self.print("capture loop, digests on against off", on, off, "the same loop without digests", "<= 1.10");
        self.print(
            "capture loop with digests against memcpy",
            on,
            memcpy,
            "memcpy into touched private memory",
            "<= 1.0",
        );
    }

    /// Blocking time of a checkpoint against memcpy of the same bytes, without a flush and during a flush.
    fn blocking(&self) {
        let data = self.noise();
        let source: &[u8] = bytemuck::cast_slice(&data);
        let mut target = PageBuffer::new(source.len());
        let session = self.open_prepared("blocking");
        let mut version = 0;
        let mut quiet = || {
            version += 1;
            let mut pending = None;
            let took = self.timed(|| pending = Some(self.capture(&session, version, &data)));
            pending.expect("captured").wait(Level::System).expect("committed");
            took
        };
        let mut copy = || self.timed(|| black_box(&mut target).copy_from_slice(black_box(source)));
        let [ours, memcpy] = self.in_turn([&mut quiet, &mut copy]);
        self.print("blocking time of a checkpoint", ours, memcpy, "memcpy into touched private memory", "<= 1.0");
        let mut beside = || {
            version += 2;
            let first = self.capture(&session, version, &data);
            let mut second = None;
            let took = self.timed(|| second = Some(self.capture(&session, version + 1, &data)));
            first.wait(Level::System).expect("committed");
            second.expect("captured").wait(Level::System).expect("committed");
            took
        };
        let [ours, memcpy] = self.in_turn([&mut beside, &mut copy]);
        self.print("blocking time with a flush beside it", ours, memcpy, "memcpy with no flush", "reported");
        session.close().expect("closed");
    }

    /// Regions that are written and read as streams and as files, in pieces of different sizes. Writing, from the beginning until the
    /// capture has returned, is compared with memcpy of the same bytes, and reading with a load. Then come the first stream of a session,
    /// whose length nobody knows, and streams that are half as long again each time.
    fn streams(&self) {
        const PIECES: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];
        let data = self.noise();
        let source: &[u8] = bytemuck::cast_slice(&data);
        let mut target = PageBuffer::new(source.len());
        let open = |name: &str, slots: u64| {
            let mut config = self.config(name);
            (config.job.global_enabled, config.job.local.keep_last) = (false, 1);
            config.job.local_enabled = false;
            let shard = self.bytes() as u64 + (8 << 20);
            config.node.memory_budget = Budget::Bytes(self.world.size() as u64 * (slots * shard + (64 << 20)));
            self.open(config)
        };
        let session = open("streams", 4);
        session.prepare(self.bytes() as u64);
        std::thread::sleep(std::time::Duration::from_secs(2));
        let version = std::cell::Cell::new(0);
        let write = |session: &Session, bytes: &[u8], piece: usize| {
            version.set(version.get() + 1);
            let mut pending = None;
            let took = self.timed(|| {
                let mut checkpoint = session.begin_checkpoint("bench", version.get()).expect("the name is fine");
                let mut writer = checkpoint.writer("data").expect("the region is fine");
                bytes.chunks(piece).for_each(|piece| writer.write_all(piece).expect("there is room"));
                writer.finish().expect("there is room");
                pending = Some(checkpoint.capture().expect("there is room"));
            });
            pending.expect("captured").wait(Level::Process).expect("committed");
            took
        };
        let memcpy = "memcpy into touched private memory";
        // No length is known yet.
        let first = write(&session, source, 1 << 20);
        let target = std::cell::RefCell::new(&mut target);
        let mut copy = || {
            let mut target = target.borrow_mut();
            self.timed(|| black_box(&mut **target).copy_from_slice(black_box(source)))
        };
        let once = copy();
        self.print("first stream of a session, pieces of 1 MiB", first, once, memcpy, "reported");
        for (name, piece) in PIECES {
            let [ours, memcpy_s] = self.in_turn([&mut || write(&session, source, piece), &mut copy]);
            self.print(&format!("stream in pieces of {name}, later checkpoints"), ours, memcpy_s, memcpy, "<= 1.2");
        }
        let mut save = || {
            version.set(version.get() + 1);
            let mut pending = None;
            let took = self.timed(|| pending = Some(self.capture(&session, version.get(), &data)));
            pending.expect("captured").wait(Level::Process).expect("committed");
            took
        };
        let mut route = || {
            version.set(version.get() + 1);
            let mut pending = None;
            let took = self.timed(|| {
                let mut checkpoint = session.begin_checkpoint("bench", version.get()).expect("the name is fine");
                std::fs::write(checkpoint.route("data").expect("a path"), source).expect("written");
                pending = Some(checkpoint.capture().expect("there is room"));
            });
            pending.expect("captured").wait(Level::Process).expect("committed");
            took
        };
        let raw = self.options.dir.join(format!("raw-{}", self.rank()));
        let mut file = || {
            drop(std::fs::remove_file(&raw));
            self.timed(|| std::fs::write(&raw, source).expect("written"))
        };
        let [saved, routed, written, memcpy_s] = self.in_turn([&mut save, &mut route, &mut file, &mut copy]);
        self.print("the same array by save", saved, memcpy_s, memcpy, "<= 1.0");
        self.print("a routed file, written and captured", routed, written, "writing the file alone", "reported");
        let read = |how: &dyn Fn(&mut bivouac_core::Attempt, &mut [u8])| {
            let mut target = target.borrow_mut();
            let mut took = 0.0;
            let restored = session.begin_restore("bench").run(|attempt| {
                took = self.timed(|| how(attempt, &mut target[..source.len()]));
                Ok(())
            });
            restored.expect("restarts").expect("it is there");
            took
        };
        let in_pieces = |attempt: &mut bivouac_core::Attempt, target: &mut [u8]| {
            let mut reader = attempt.reader("data").expect("it is there");
            target.chunks_mut(64 << 10).for_each(|piece| reader.read_exact(piece).expect("it is right"));
        };
        let [piecewise, at_once, loaded, brought] = self.in_turn([
            &mut || read(&in_pieces),
            &mut || read(&|attempt, target| attempt.reader("data").expect("there").read_exact(target).expect("right")),
            &mut || read(&|attempt, target| attempt.load("data", target).expect("it is right")),
            &mut || read(&|attempt, _| drop(attempt.route("data").expect("it is right"))),
        ]);
        self.print("reading a stream in pieces of 64 KiB", piecewise, loaded, "load", "reported");
        self.print("reading a stream into one buffer", at_once, loaded, "load", "<= 1.1");
        self.print("bringing a region back as a file", brought, loaded, "load", "reported");
        session.close().expect("closed");
        // Streams start at a sixteenth, and each is half as long again: none begins with enough room.
        let session = open("growing", 6);
        let lengths = std::iter::successors(Some(source.len() / 16), |length| Some(length * 3 / 2));
        let (mut ours, mut memcpy_s) = (Vec::new(), Vec::new());
        for length in lengths.take_while(|length| *length <= source.len()) {
            ours.push(write(&session, &source[..length], 1 << 20) / length as f64);
            let mut target = target.borrow_mut();
            let took = self.timed(|| black_box(&mut target[..length]).copy_from_slice(black_box(&source[..length])));
            memcpy_s.push(took / length as f64);
        }
        let of = |times: Vec<f64>| median(times) * source.len() as f64;
        self.print("streams half as long again each time", of(ours), of(memcpy_s), memcpy, "reported");
        session.close().expect("closed");
        drop(std::fs::remove_file(&raw));
    }

    /// Many regions of 4 to 64 KiB, like those of adaptive meshes: the time from the call until the capture returns, against
    /// memcpy of the same regions; and the time until all ranks agree that the regions are durable, against raw O_DIRECT writes
    /// of the same bytes.
    fn regions(&self) {
        const COUNT: usize = 10_000;
        let mut rng = bivouac_core::base::rng::Rng::new(self.rank() as u64);
        let names: Vec<String> = (0..COUNT).map(|at| format!("level 3, block {at}")).collect();
        let regions: Vec<Vec<f64>> = (0..COUNT)
            .map(|_| {
                let words = 512 + rng.next_u64() as usize % (8192 - 512 + 1);
                (0..words).map(|_| f64::from_bits(rng.next_u64() >> 2)).collect()
            })
            .collect();
        // Scattered in memory, like the regions of a mesh that has been refined for a while.
        let regions: Vec<&[f64]> = (0..COUNT).map(|at| &regions[at * 7919 % COUNT][..]).collect();
        let bytes: usize = regions.iter().map(|region| 8 * region.len()).sum();
        let mut target = PageBuffer::new(bytes.next_multiple_of(WRITE));
        let mut config = self.config("regions");
        // Its padding makes a shard longer.
        let shard = (bytes + COUNT * 8192) as u64;
        config.node.memory_budget = Budget::Bytes(self.world.size() as u64 * (4 * shard + (64 << 20)));
        config.job.global_enabled = false;
        let session = self.open(config);
        session.prepare(shard);
        std::thread::sleep(std::time::Duration::from_secs(3));
        let raw = self.options.dir.join(format!("raw-{}", self.rank()));
        let mut version = 0;
        let (mut named, mut durable) = (Vec::new(), Vec::new());
        let mut ours = || {
            version += 1;
            let mut pending = None;
            let mut saved = 0.0;
            let took = self.timed(|| {
                let begun = Instant::now();
                let mut checkpoint = session.begin_checkpoint("bench", version).expect("the name is fine");
                for (name, region) in names.iter().zip(&regions) {
                    checkpoint.save(name, region).expect("the region is fine");
                }
                saved = begun.elapsed().as_secs_f64();
                pending = Some(checkpoint.capture().expect("there is room"));
            });
            named.push(self.slowest(saved));
            durable.push(self.timed(|| _ = pending.expect("captured").wait(Level::NodeReboot).expect("committed")));
            took
        };
        let copied = std::cell::RefCell::new(&mut target);
        let mut copy = || {
            let mut target = copied.borrow_mut();
            self.timed(|| {
                let mut at = 0;
                for region in &regions {
                    let region: &[u8] = bytemuck::cast_slice(region);
                    black_box(&mut target[at..at + region.len()]).copy_from_slice(black_box(region));
                    at += region.len();
                }
            })
        };
        let mut write = || {
            drop(std::fs::remove_file(&raw));
            let page = copied.borrow();
            self.timed(|| write_raw(&raw, &page))
        };
        let [blocked, memcpy, written] = self.in_turn([&mut ours, &mut copy, &mut write]);
        let (named, durable) = (median(named.split_off(1)), median(durable.split_off(1)));
        self.print("blocking time with 10,000 regions", blocked, memcpy, "memcpy of the same regions", "<= 1.3");
        self.print("naming 10,000 regions, part of it", named, memcpy, "memcpy of the same regions", "reported");
        let against = "raw O_DIRECT writes of 4 MiB by as many threads, and fsync";
        let what = "flush of 10,000 regions to the local tier, bandwidth";
        self.print_ratio(what, durable, written, written / durable, against, ">= 0.90");
        std::fs::remove_file(&raw).expect("the raw file is there");
        session.close().expect("closed");
    }

    /// Bytes flushed to a tier until everything is durable and agreed on, against raw O_DIRECT writes of the same bytes.
    fn flush(&self) {
        for (tier, level) in [("local", Level::NodeReboot), ("global", Level::System)] {
            let data = self.noise();
            let mut config = self.config(tier);
            config.job.local_enabled = level == Level::NodeReboot;
            config.job.global_enabled = level == Level::System;
            let session = self.open(config);
            let raw = self.options.dir.join(format!("raw-{}", self.rank()));
            let mut page = PageBuffer::new(self.bytes());
            page.copy_from_slice(bytemuck::cast_slice(&data));
            let mut version = 0;
            let mut ours = || {
                version += 1;
                let pending = self.capture(&session, version, &data);
                self.timed(|| {
                    pending.wait(level).expect("committed");
                })
            };
            let mut reference = || {
                // Deleting the last round's file takes time that is not part of writing.
                drop(std::fs::remove_file(&raw));
                self.timed(|| write_raw(&raw, &page))
            };
            let [ours, reference] = self.in_turn([&mut ours, &mut reference]);
            let what = format!("flush to the {tier} tier, bandwidth");
            self.print_ratio(
                &what,
                ours,
                reference,
                reference / ours,
                "raw O_DIRECT writes of 4 MiB by as many threads, and fsync",
                ">= 0.90",
            );
            std::fs::remove_file(&raw).expect("the raw file is there");
            session.close().expect("closed");
        }
    }

    /// A restart from memory against memcpy, and from a file with a cold page cache against raw O_DIRECT reads.
    fn restart(&self) {
        let data = self.noise();
        let source: &[u8] = bytemuck::cast_slice(&data);
        let mut target = PageBuffer::new(source.len());
        let mut restored = vec![0.0f64; data.len()];
        restored.fill(1.0);
        let session = self.open_prepared("memory");
        self.capture(&session, 1, &data).wait(Level::System).expect("committed");
        let mut ours = || {
            self.timed(|| {
                let done = session
                    .begin_restore("bench")
                    .run(|r| Ok(r.load("data", &mut restored)?))
                    .expect("restored")
                    .expect("there");
                assert_eq!(done.tier.name(), "memory");
            })
        };
        let mut copy = || self.timed(|| black_box(&mut target).copy_from_slice(black_box(source)));
        let [ours, memcpy] = self.in_turn([&mut ours, &mut copy]);
        self.print("restart from memory", ours, memcpy, "memcpy into touched private memory", "<= 1.5");
        session.close().expect("closed");

        let mut config = self.config("file");
        config.job.memory_enabled = false;
        config.job.global_enabled = false;
        let session = self.open(config);
        self.capture(&session, 1, &data).wait(Level::NodeReboot).expect("committed");
        let raw = self.options.dir.join(format!("raw-{}", self.rank()));
        write_raw(&raw, &target);
        let mut ours = || {
            self.assert_cold();
            self.timed(|| {
                let done = session
                    .begin_restore("bench")
                    .run(|r| Ok(r.load("data", &mut restored)?))
                    .expect("restored")
                    .expect("there");
                assert_eq!(done.tier.name(), "local");
            })
        };
        let mut reference = || self.timed(|| read_raw(&raw, &mut target));
        let [ours, reference] = self.in_turn([&mut ours, &mut reference]);
        let against = "raw O_DIRECT reads of 4 MiB by as many threads";
        self.print_ratio("restart from a file, cold, bandwidth", ours, reference, reference / ours, against, ">= 0.85");
        std::fs::remove_file(&raw).expect("the raw file is there");
        session.close().expect("closed");
    }

    /// Drops the tier's files from the page cache, and has the kernel confirm that none of their pages is left.
    fn assert_cold(&self) {
        self.world.barrier();
        if self.rank() == 0 {
            let mut files = Vec::new();
            find_files(&self.options.dir, &mut files);
            for path in &files {
                let file = File::open(path).expect("the file opens");
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
            }
            let shards: Vec<&PathBuf> = files.iter().filter(|f| f.extension().is_some_and(|e| e == "bvs")).collect();
            let report = std::process::Command::new("fincore").args(["-n", "-b", "-o", "RES"]).args(&shards).output();
            match report {
                Ok(report) => {
                    let lines = String::from_utf8_lossy(&report.stdout).into_owned();
                    let resident: u64 = lines.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
                    assert_eq!(resident, 0, "{} shard files are cold", shards.len());
                }
                Err(error) => eprintln!("NOT VERIFIED that the files are cold: fincore of util-linux: {error}"),
            }
        }
        self.world.barrier();
    }

    /// Fixed cost of a checkpoint of 1 KiB per rank, compared with one bare allreduce.
    fn small(&self) {
        let data = vec![1.0f64; 128];
        let session = self.open(self.config("small"));
        let mut version = 0;
        let mut call = || {
            version += 1;
            let mut pending = None;
            let took = self.timed(|| pending = Some(self.capture(&session, version, &data)));
            pending.expect("captured").wait(Level::System).expect("committed");
            took
        };
        let mut allreduce = || {
            self.timed(|| {
                let mut sum = 0.0f64;
                self.world.all_reduce_into(&1.0f64, &mut sum, SystemOperation::sum());
                black_box(sum);
            })
        };
        let [ours, bare] = self.in_turn([&mut call, &mut allreduce]);
        self.print(
            "blocking time of a checkpoint of 1 KiB per rank",
            ours,
            bare,
            "one allreduce of 8 bytes",
            "<= 500 us at 2 ranks",
        );
        let mut committed = || {
            version += 1;
            self.timed(|| {
                self.capture(&session, version, &data).wait(Level::Process).expect("committed");
            })
        };
        let [ours, bare] = self.in_turn([&mut committed, &mut allreduce]);
        self.print(
            "the same until level process is committed on all ranks",
            ours,
            bare,
            "one allreduce of 8 bytes",
            "reported",
        );
        session.close().expect("closed");
    }

    /// Slow-down of a memory-bound loop while a flush runs.
    fn beside(&self) {
        let data = self.noise();
        let session = self.open(self.config("beside"));
        let mut a = vec![1.0f64; self.bytes() / 8];
        let mut b = vec![2.0f64; self.bytes() / 8];
        let mut triad = |world: &SimpleCommunicator| {
            world.barrier();
            let start = Instant::now();
            for _ in 0..4 {
                for (x, y) in a.iter_mut().zip(&b) {
                    *x = *y + 0.5 * *x;
                }
                std::mem::swap(&mut a, &mut b);
            }
            black_box(&a);
            start.elapsed().as_secs_f64()
        };
        let mut version = 0;
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for round in 0..=self.options.rounds {
            let quiet = self.slowest(triad(&self.world));
            version += 1;
            let pending = self.capture(&session, version, &data);
            let busy = self.slowest(triad(&self.world));
            pending.wait(Level::System).expect("committed");
            if round > 0 {
                alone.push(quiet);
                beside.push(busy);
            }
        }
        let against = "the same loop with no flush (the flush may end before the loop does)";
        self.print(
            "memory-bound loop beside a flush to local and global",
            median(beside),
            median(alone),
            against,
            "reported",
        );
        session.close().expect("closed");
    }
}

/// Writes on as many threads as the engine has writers; each takes every n-th piece.
fn write_raw(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(O_DIRECT).open(path);
    let file = file.expect("the file system takes O_DIRECT");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.len() as u64).expect("there is room");
    std::thread::scope(|scope| {
        for thread in 0..WRITERS {
            let file = &file;
            scope.spawn(move || {
                for (index, piece) in bytes.chunks(WRITE).enumerate().skip(thread).step_by(WRITERS) {
                    file.write_all_at(piece, (index * WRITE) as u64).expect("the write succeeds");
                }
            });
        }
    });
    file.sync_all().expect("the sync succeeds");
}

fn read_raw(path: &Path, bytes: &mut [u8]) {
    let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).expect("the file is there");
    let half = (bytes.len() / 2).next_multiple_of(READ).min(bytes.len());
    let (first, second) = bytes.split_at_mut(half);
    std::thread::scope(|scope| {
        for (start, part) in [(0, first), (half, second)] {
            let file = &file;
            scope.spawn(move || {
                for (index, piece) in part.chunks_mut(READ).enumerate() {
                    file.read_exact_at(piece, (start + index * READ) as u64).expect("the read succeeds");
                }
            });
        }
    });
}

fn find_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("the directory lists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_files(&path, found);
        } else {
            found.push(path);
        }
    }
}
