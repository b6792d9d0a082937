//! Checkpoints that are marked and sent from live GPU memory: what the calls cost, how fast the checkpoints are sent, and what the
//! program feels of this.
//!
//! ```sh
//! cargo bench --bench marks -- --gib 8 --only mark,write,send,changed,beside
//! mpirun -n GPUS marks --bench --gib 4 --only mark,send,beside      # one rank for each GPU, all at once
//! ```
//!
//! Only node memory is used. F is the blocking download of the same regions into pinned memory, in the same run, by all ranks at once. The
//! root prints the figures of the slowest rank.
//!
//! - `mark`: the host time of a capture that marks, and the time until the stream has come to its end, with and without audit; for
//!   comparison, one digest pass over the regions.
//! - `write`: `before_write` with nothing marked, with a mark whose copies of these blocks have arrived already, and before blocks that are
//!   copied into the buffer, until the stream has finished the copy; for comparison, a bare copy inside the device.
//! - `send`: the time from the return of a capture that marks to the commit, unpaced, where everything, and where every second block of
//!   64 KiB or of 4 KiB, has changed.
//! - `changed`: the same, where every hundredth block of 64 KiB has changed.
//! - `beside`: steps of a program that copies 4 GiB inside the device: alone, during an unpaced transfer and during a paced one.
//!
//! - `granularity`: scattered pieces of 4 KiB to 16 MiB, carried by bare copies one by one, through a buffer, and as Bivouac sends them;
//!   alone, and during steps.
//!
//! Prints one JSON object per line; times are medians in seconds.
#![forbid(unsafe_code)]

#[path = "marks/granularity.rs"]
mod granularity;
#[allow(dead_code)] // Other benches use the rest.
#[path = "shot/node.rs"]
mod node;

use bivouac_core::config::{Budget, OffloadConfig, OffloadMode};
use bivouac_core::device::{Device, DeviceSpan, HostRange, Priority, Run, Stream};
use bivouac_core::{Caches, Config, Level, Offload, Pending, Session};
use clap::Parser;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use node::median;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures marked checkpoints on one rank for each GPU: mpirun -n GPUS.
#[derive(Parser)]
struct Options {
    /// Size of a rank's regions, in GiB.
    #[arg(long, default_value_t = 8)]
    gib: u64,
    /// Size of the buffer, in MiB.
    #[arg(long, default_value_t = 2048)]
    buffer: u64,
    /// Size of a block, in KiB.
    #[arg(long, default_value_t = 64)]
    block: u64,
    /// What to measure.
    #[arg(long, value_delimiter = ',', default_value = "mark,write,send,changed,beside")]
    only: Vec<String>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Directory for node memory.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

const MIB: u64 = 1 << 20;

/// The maximum over all ranks. Collective.
fn most(world: &SimpleCommunicator, mine: f64) -> f64 {
    let mut all = 0.0;
    world.all_reduce_into(&mine, &mut all, SystemOperation::max());
    all
}

/// The minimum over all ranks. Collective.
fn least(world: &SimpleCommunicator, mine: f64) -> f64 {
    let mut all = 0.0;
    world.all_reduce_into(&mine, &mut all, SystemOperation::min());
    all
}

/// The root prints a line, with the numbers of ranks and GPUs.
fn say(world: &SimpleCommunicator, mut line: serde_json::Value) {
    line["ranks"] = world.size().into();
    line["gpus"] = node::gpus().into();
    if world.rank() == 0 {
        println!("{line}");
    }
}

/// A folder that all ranks know; the root makes it, and removes it when all are done. Collective.
fn folder(world: &SimpleCommunicator, below: &Path) -> PathBuf {
    let mut number = [u64::from(std::process::id())];
    world.process_at_rank(0).broadcast_into(&mut number);
    let path = below.join(format!("bivouac-marks-{}", number[0]));
    if world.rank() == 0 {
        std::fs::create_dir_all(&path).expect("a folder");
    }
    world.barrier();
    path
}

fn seconds(call: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    call();
    begun.elapsed().as_secs_f64()
}

/// A program with one region on each rank, and a session for it.
struct Bed<'a> {
    world: &'a SimpleCommunicator,
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    /// The region, and something to overwrite it with.
    region: DeviceSpan,
    other: DeviceSpan,
    /// For bare copies.
    spare: DeviceSpan,
    bytes: u64,
    block: u64,
    offload: Offload,
    caches: Caches,
    session: Session,
    version: u64,
    folder: PathBuf,
}

impl<'a> Bed<'a> {
    /// Collective.
    fn new(world: &'a SimpleCommunicator, options: &Options, block: u64, audit: bool) -> Bed<'a> {
        let bytes = options.gib << 30;
        let folder = folder(world, &options.memory);
        let mut config = Config::default();
        config.job.name = Some("bench-marks".into());
        config.job.block_bytes = block;
        (config.job.local_enabled, config.job.global_enabled) = (false, false);
        config.job.offload = OffloadConfig { mode: OffloadMode::Always, audit, ..OffloadConfig::default() };
        config.node.memory_directory = folder.clone();
        let ranks = u64::from(world.size() as u32);
        config.node.memory_budget = Budget::Bytes(ranks * (2 * (bytes + bytes / 128) + (2 << 30)));
        config.node.device_budget = Budget::Bytes(options.buffer * MIB + (64 << 20));
        config.node.offload_buffer = Budget::Bytes(options.buffer * MIB);
        let session = Session::open(world, config).expect("opens");
        let device: Arc<dyn Device> = node::gpu(world).expect("a GPU");
        let stream = device.stream(Priority::High).expect("a stream");
        let [region, other, spare] = [bytes, 1 << 30, 1 << 30].map(|bytes| device.allocate(bytes).expect("room"));
        let caches = session.caches(device.clone()).expect("caches");
        let offload = session.offload(&caches).expect("an offload");
        let preparing = seconds(|| offload.prepare(bytes).expect("prepared"));
        let preparing = most(world, preparing);
        if world.rank() == 0 {
            eprintln!("prepared 2 slots of {} GiB for each rank in {preparing:.1} s", options.gib);
        }
        Bed { world, device, stream, region, other, spare, bytes, block, offload, caches, session, version: 0, folder }
    }

    /// Ends the session. Collective.
    fn close(self) {
        // In this order.
        drop(self.offload);
        drop(self.caches);
        self.session.close().expect("closed");
        self.world.barrier();
        if self.world.rank() == 0
            && let Err(error) = std::fs::remove_dir_all(&self.folder)
        {
            eprintln!("{} stays: {error}", self.folder.display());
        }
        self.world.barrier();
    }

    /// Marks the region; returns how long the capture took.
    fn mark(&mut self) -> (Pending, f64) {
        self.version += 1;
        let mut checkpoint = self
            .session
            .begin_checkpoint("bench", self.version)
            .expect("begun")
            .with_offload(&self.offload, &*self.stream);
        checkpoint.save_device::<u8>("region", &self.region).expect("saved");
        let begun = Instant::now();
        let pending = checkpoint.capture().expect("marked");
        (pending, begun.elapsed().as_secs_f64())
    }

    /// Declares a part of the region and overwrites it with data that differs from version to version.
    fn write(&self, at: u64, bytes: u64) {
        let part = self.region.part(at, bytes).expect("inside");
        self.offload.before_write(&part, &*self.stream).expect("declared");
        let from = self.other.part((self.version * 4096 + at) % (512 * MIB) / 256 * 256, bytes).expect("inside");
        self.stream.copy(&from, &part).expect("enqueued");
    }

    /// Changes each `step`th block; returns the number of bytes.
    fn change(&self, block: u64, step: u64) -> u64 {
        let mut changed = 0;
        if step == 1 {
            (0..self.bytes).step_by(512 << 20).for_each(|at| self.write(at, 512 * MIB));
            changed = self.bytes;
        } else {
            for at in (0..self.bytes).step_by((block * step) as usize) {
                self.write(at, block);
                changed += block;
            }
        }
        self.stream.finish().expect("done");
        changed
    }

    fn commit(&self, pending: Pending) {
        pending.wait(Level::Process).expect("committed");
    }

    /// Takes two checkpoints, so that both slots are known.
    fn warm_up(&mut self) {
        for _ in 0..2 {
            self.change(self.block, 1);
            let (pending, _) = self.mark();
            self.commit(pending);
        }
    }

    /// The time of the blocking download of the region into pinned memory, by all ranks at once; the slowest rank's. Collective.
    fn f(&self, rounds: usize) -> f64 {
        let bytes = self.bytes.min(4 << 30);
        let (range, memory) = HostRange::leaked(vec![1u8; bytes as usize + 4096].leak());
        let skip = range.address().next_multiple_of(4096) - range.address();
        let pinned = self.device.pin(&range.part(skip as u64, bytes).expect("inside")).expect("pinned");
        let part = self.region.part(0, bytes).expect("inside");
        let target = &mut memory[skip..skip + bytes as usize];
        let download = |_| {
            self.world.barrier();
            let mine = seconds(|| self.stream.download(&mut [(part.clone(), &mut *target)], None).expect("down"));
            most(self.world, mine)
        };
        let times: Vec<f64> = (0..rounds).map(download).collect();
        drop(pinned);
        median(&times[1..]) * self.bytes as f64 / bytes as f64
    }
}

/// Fills `other` with data that has no two equal blocks.
fn fill(bed: &Bed<'_>) {
    let mut rng = bivouac_core::base::rng::Rng::new(1);
    let bytes: Vec<u8> = (0..bed.other.bytes() / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bed.stream.upload(&[(&bytes, bed.other.clone())], None).expect("up");
}

fn mark(world: &SimpleCommunicator, options: &Options, block: u64) {
    for audit in [false, true] {
        let mut bed = Bed::new(world, options, block, audit);
        fill(&bed);
        bed.warm_up();
        let (mut host, mut stream, mut digests) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            bed.stream.finish().expect("idle");
            world.barrier();
            let begun = Instant::now();
            let (pending, took) = bed.mark();
            bed.stream.finish().expect("done");
            stream.push(begun.elapsed().as_secs_f64());
            host.push(took);
            bed.commit(pending);
            let runs = vec![Run::whole(bed.region.clone(), None, 0)];
            digests.push(bed.stream.copy_blocks(runs, block).and_then(|copied| copied.seconds()).expect("digests"));
        }
        let line = json!({
            "figure": "mark", "gib": options.gib, "block": block, "audit": audit, "capture": most(world, median(&host)),
            "checkpoint_and_stream": most(world, median(&stream)), "digest_pass": most(world, median(&digests)), "F": bed.f(4),
        });
        say(world, line);
        bed.close();
    }
}

fn write(world: &SimpleCommunicator, options: &Options, block: u64) {
    let mut bed = Bed::new(world, options, block, true);
    fill(&bed);
    bed.warm_up();
    let part = |at: u64, bytes: u64| bed.region.part(at, bytes).expect("inside");
    let calls = |bed: &Bed<'_>, span: &DeviceSpan, count: u32| {
        seconds(|| (0..count).for_each(|_| bed.offload.before_write(span, &*bed.stream).expect("declared")))
            / f64::from(count)
    };
    let first = part(0, 64 * MIB);
    let parts: Vec<DeviceSpan> = (1..=12).map(|index| part(bed.bytes - index * 256 * MIB, 256 * MIB)).collect();
    let idle = calls(&bed, &first, 100_000);
    let (mut safe, mut doubled) = (Vec::new(), Vec::new());
    for size in [16 * MIB, 64 * MIB, 256 * MIB] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            bed.change(block, 1);
            world.barrier();
            let (pending, _) = bed.mark();
            // The first piece will have been sent by then; the last ones are far from it.
            std::thread::sleep(Duration::from_millis(20));
            bed.stream.finish().expect("idle");
            safe.push(calls(&bed, &first, 20));
            bed.stream.finish().expect("idle");
            // Parts that were written to after the last mark are sent first, so the parts differ each time.
            for span in parts.iter().skip(round % 2 * 6).take(2) {
                let span = span.part(0, size).expect("inside");
                ours.push(seconds(|| {
                    bed.offload.before_write(&span, &*bed.stream).expect("declared");
                    bed.stream.finish().expect("done");
                }));
                let to = bed.spare.part(0, size).expect("inside");
                theirs.push(seconds(|| {
                    bed.stream.copy(&span, &to).expect("enqueued");
                    bed.stream.finish().expect("done");
                }));
            }
            bed.commit(pending);
        }
        doubled.push(
            json!({ "bytes": size, "before_write": most(world, median(&ours)), "copy": most(world, median(&theirs)) }),
        );
    }
    let stats = bed.offload.stats();
    let line = json!({
        "figure": "write", "gib": options.gib, "block": block, "nothing_marked": most(world, idle), "all_safe": most(world, median(&safe)), "doubled": doubled,
        "marks": stats.marks, "copied": bed.session.stats().captured - stats.marks, "equal_bytes": stats.equal_bytes, "doubled_bytes": stats.doubled_bytes, "urgent_bytes": stats.urgent_bytes,
    });
    say(world, line);
    bed.close();
}

/// Measures the time from the return of a capture that marks to the commit, where every `step`th block of `block` bytes has changed.
fn send(world: &SimpleCommunicator, options: &Options, name: &str, block: u64, step: u64) {
    let mut bed = Bed::new(world, options, block, true);
    fill(&bed);
    bed.warm_up();
    let (mut times, mut changed, mut sent) = (Vec::new(), 0, Vec::new());
    for _ in 0..options.rounds {
        let before = bed.offload.stats();
        // The slot holds the contents of two checkpoints ago, when the same blocks were different.
        changed = bed.change(block, step);
        world.barrier();
        let (pending, _) = bed.mark();
        let begun = Instant::now();
        bed.commit(pending);
        times.push(begun.elapsed().as_secs_f64());
        let stats = bed.offload.stats();
        sent.push((stats.bytes - before.bytes - (stats.equal_bytes - before.equal_bytes)) as f64);
    }
    let f = bed.f(4);
    let (mine, sent) = (median(&times[2..]), least(world, median(&sent[2..])));
    let (time, fastest) = (most(world, mine), least(world, mine));
    let line = json!({
        "figure": name, "gib": options.gib, "block": block, "every": step, "changed_bytes": changed, "sent_bytes": sent, "mark_to_commit": time, "least_mark_to_commit": fastest, "F": f,
        "rate_of_link": sent / time / (bed.bytes as f64 / f), "of_F": time / f,
    });
    say(world, line);
    bed.close();
}

/// Measures steps during a transfer.
fn beside(world: &SimpleCommunicator, options: &Options, block: u64) {
    let mut bed = Bed::new(world, options, block, true);
    fill(&bed);
    bed.warm_up();
    let [from, to] = [0, 512 * MIB].map(|at| bed.spare.part(at, 512 * MIB).expect("inside"));
    let step = |bed: &Bed<'_>| {
        seconds(|| {
            (0..8).for_each(|_| bed.stream.copy(&from, &to).expect("enqueued"));
            bed.stream.finish().expect("done");
        })
    };
    let steps = |bed: &Bed<'_>, count: usize| -> Vec<f64> { (0..count).map(|_| step(bed)).collect() };
    steps(&bed, 10);
    world.barrier();
    let alone = median(&steps(&bed, 200));
    let mut figures = Vec::new();
    // In the first half of the rounds, which does not count, the intervals become those of the transfer.
    for (name, pause) in [("unpaced", None), ("paced", Some(Duration::from_secs(2)))] {
        let (mut beside, mut took) = (Vec::new(), Vec::new());
        for round in 0..options.rounds.max(9) {
            bed.change(block, 1);
            world.barrier();
            let marked = Instant::now();
            let (pending, _) = bed.mark();
            bed.stream.finish().expect("marked");
            let mut times = Vec::new();
            if pause.is_none() {
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| {
                        pending.wait(Level::Process).expect("committed");
                        marked.elapsed()
                    });
                    while !waiting.is_finished() {
                        times.push(step(&bed));
                    }
                    took.push(waiting.join().expect("no panic").as_secs_f64());
                });
            } else {
                while pending.level() < Level::Process {
                    times.push(step(&bed));
                }
                took.push(marked.elapsed().as_secs_f64());
                pending.wait(Level::Process).expect("committed");
            }
            if round >= options.rounds.max(9) / 2 {
                beside.extend(times);
            }
            if let Some(pause) = pause {
                std::thread::sleep(pause.saturating_sub(marked.elapsed()));
            }
        }
        let mean = beside.iter().sum::<f64>() / beside.len() as f64;
        figures.push(json!({
            "transfer": name, "took": most(world, median(&took)), "median_step": most(world, median(&beside)),
            "mean_step": most(world, mean), "steps": beside.len(), "of_alone": most(world, median(&beside) / alone),
        }));
    }
    let stats = bed.offload.stats();
    let line = json!({
        "figure": "beside", "gib": options.gib, "block": block, "alone": most(world, alone), "beside": figures, "F": bed.f(4), "waits": stats.waits,
    });
    say(world, line);
    bed.close();
}

fn main() {
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one rank would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        SimpleCommunicator::world().abort(1);
    }));
    let world = universe.world();
    let block = options.block << 10;
    for what in &options.only {
        match what.as_str() {
            "mark" => mark(&world, &options, block),
            "write" => write(&world, &options, block),
            "send" => {
                send(&world, &options, "send", 64 << 10, 1);
                send(&world, &options, "send", 64 << 10, 4);
                send(&world, &Options { gib: options.gib.min(2), ..Options::parse() }, "send", 4 << 10, 4);
            }
            "changed" => send(&world, &options, "changed", 64 << 10, 100),
            "beside" => beside(&world, &options, block),
            "granularity" => granularity::measure(&world, options.rounds),
            other => panic!("{other:?} is not measured here"),
        }
    }
}
