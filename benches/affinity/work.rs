//! One process of the experiment of Middleware'14, section 4: a run that takes checkpoints at several of its steps, or a restart from
//! one of them and the rest of the run.
//!
//! A run pins each thread and has it touch its parts first. A restart does what an application does that knows nothing of
//! affinity: its threads run where the system puts them, and the main thread touches all memory, so that only the session can
//! bring anything back. Rank 0 prints the findings of a process as one JSON line; `table.rs` compares these lines.
#![forbid(unsafe_code)]

use crate::kernels::{self, Kernel};
use crate::team::Team;
use bivouac_core::affinity::machine::Machine;
use bivouac_core::affinity::{cpus, numa, threads};
use bivouac_core::config::{AffinityMode, Budget};
use bivouac_core::{Attempt, CheckpointBuilder, Config, Level, Session};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

/// The series of the checkpoints.
const NAME: &str = "kernel";
const PAGE: usize = 4096;

/// What is computed, and how.
#[derive(clap::Args, Clone)]
pub struct Work {
    /// Name of the kernel.
    #[arg(value_parser = kernels::NAMES)]
    kernel: String,
    /// With affinity or without.
    #[arg(long, value_parser = ["full", "off"])]
    mode: String,
    /// Threads of each rank.
    #[arg(long)]
    threads: usize,
    /// Approximate memory of each rank, in MiB.
    #[arg(long)]
    size: usize,
    /// Steps of the whole run.
    #[arg(long)]
    iterations: u64,
    /// Where the checkpoints go.
    #[arg(long)]
    dir: PathBuf,
}

/// A computation in progress, on one rank.
struct Running {
    world: SimpleCommunicator,
    work: Work,
    kernel: Arc<dyn Kernel>,
    team: Team,
    session: Session,
}

/// The steps at which this many checkpoints are taken, with the same distance before the first, between any two and after the last.
fn points(iterations: u64, count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(move |point| iterations * point / (count + 1))
}

/// Computes from the start, with checkpoints.
pub fn run(world: SimpleCommunicator, work: Work, count: u64) {
    let team = Team::start(work.threads);
    let cpus = pin(&world, &team, work.threads);
    let kernel = kernel_of(&work);
    let starting = kernel.clone();
    team.run(move |thread| starting.start(thread));
    let session = open(&world, &work, count);
    let running = Running { world, work, kernel, team, session };
    let places = running.places(&cpus);
    let (mut step, mut iterations, mut checkpoints) = (0, Vec::new(), Vec::new());
    for point in points(running.work.iterations, count) {
        iterations.push(running.advance(step, point) / (point - step) as f64);
        checkpoints.push(running.checkpoint(point, &cpus));
        step = point;
    }
    running.advance(step, running.work.iterations);
    let mut line = running.line("run");
    line["iteration_s"] = json!(iterations);
    line["checkpoints"] = json!(checkpoints);
    // A page of the heap may have been touched before threads were pinned.
    line["pages"] = json!([running.sum(places.pages.0), running.sum(places.pages.1)]);
    line["checksum"] = json!(running.checksum());
    running.finish(&line);
}

/// Computes the rest of a run from one of its checkpoints.
pub fn resume(world: SimpleCommunicator, work: Work, point: u64) {
    let team = Team::start(work.threads);
    let kernel = kernel_of(&work);
    // The main thread touches all of it.
    (0..work.threads).for_each(|thread| kernel.start(thread));
    let begun = Instant::now();
    let session = open(&world, &work, 1);
    let opened_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut cpus: Vec<usize> = Vec::new();
    let load = |restorer: &mut Attempt| {
        cpus = restorer.value("cpus")?;
        load(restorer, &*kernel)
    };
    let restored = session.begin_restore(NAME).version(point).run(load).expect("it can be restored");
    assert_eq!(restored.map(|restored| restored.version), Some(point));
    let restart_s = begun.elapsed().as_secs_f64();
    let running = Running { world, work, kernel, team, session };
    let places = running.places(&cpus);
    let before = migrations();
    let took = running.advance(point, running.work.iterations);
    let moved = before.zip(migrations()).map(|(before, after)| after.saturating_sub(before));
    let mut line = running.line("resume");
    line["version"] = json!(point);
    line["open_s"] = json!(running.slowest(opened_s));
    line["restart_s"] = json!(running.slowest(restart_s));
    line["rest_s"] = json!(took);
    line["iteration_s"] = json!(took / (running.work.iterations - point) as f64);
    line["migrations"] = json!(moved.map(|moved| running.sum(moved)));
    line["threads"] = json!([running.sum(places.threads.0), running.sum(places.threads.1)]);
    line["pages"] = json!([running.sum(places.pages.0), running.sum(places.pages.1)]);
    line["checksum"] = json!(running.checksum());
    running.finish(&line);
}

fn kernel_of(work: &Work) -> Arc<dyn Kernel> {
    kernels::of_name(&work.kernel, work.size << 20, work.threads).expect("the name was checked").into()
}

/// Puts each thread of each rank of the node on a CPU, as far apart as possible, and returns these CPUs.
fn pin(world: &SimpleCommunicator, team: &Team, threads: usize) -> Vec<usize> {
    let neighbours = world.split_shared(world.rank());
    let order = Machine::here().in_order(&cpus::of_this_thread());
    let all = neighbours.size() as usize * threads;
    let cpu = |thread: usize| {
        let place = neighbours.rank() as usize * threads + thread;
        order[place * order.len().max(all) / all % order.len()] as usize
    };
    let cpus: Vec<usize> = (0..threads).map(cpu).collect();
    let wanted = cpus.clone();
    team.run(move |thread| cpus::run_on(&[wanted[thread]].into()));
    cpus
}

fn open(world: &SimpleCommunicator, work: &Work, points: u64) -> Session {
    let mut config = Config::from_env().expect("the environment is clean");
    config.job.name = Some(format!("affinity-{}-{}", work.kernel, work.mode));
    config.job.global_directory = work.dir.clone();
    config.job.global.keep_last = points.max(1);
    config.job.local_enabled = false;
    // A restart loads from files, as in the paper.
    config.job.memory_enabled = false;
    config.node.memory_budget = Budget::Bytes(64 << 20);
    config.job.affinity = if work.mode == "off" { AffinityMode::Off } else { AffinityMode::Full };
    Session::open(world, config).expect("the session opens")
}

fn load(restorer: &mut Attempt, kernel: &dyn Kernel) -> bivouac_core::Result<()> {
    for (name, parts) in kernel.reals() {
        for thread in 0..parts.count() {
            restorer.load(&format!("{name}.{thread}"), &mut parts.part_mut(thread))?;
        }
    }
    for (name, parts) in kernel.indices() {
        for thread in 0..parts.count() {
            restorer.load(&format!("{name}.{thread}"), &mut parts.part_mut(thread))?;
        }
    }
    Ok(())
}

/// How many threads and pages are where they were, and out of how many.
struct Places {
    threads: (u64, u64),
    pages: (u64, u64),
}

impl Running {
    /// Computes these steps on all ranks and says how long the slowest took, in seconds.
    fn advance(&self, from: u64, to: u64) -> f64 {
        let (kernel, barrier) = (self.kernel.clone(), Barrier::new(self.work.threads));
        self.world.barrier();
        let begun = Instant::now();
        self.team.run(move |thread| {
            for step in from..to {
                kernel.step(thread, step, &barrier);
                barrier.wait();
            }
        });
        self.slowest(begun.elapsed().as_secs_f64())
    }

    /// Takes a checkpoint and waits until it is on the global tier.
    fn checkpoint(&self, version: u64, cpus: &[usize]) -> Value {
        let (reals, indices) = (self.kernel.reals(), self.kernel.indices());
        let parts = |count: usize| 0..count;
        let reals = reals.iter().flat_map(|(name, it)| parts(it.count()).map(move |at| (name, at, it.part(at))));
        let indices = indices.iter().flat_map(|(name, it)| parts(it.count()).map(move |at| (name, at, it.part(at))));
        let (reals, indices): (Vec<_>, Vec<_>) = (reals.collect(), indices.collect());
        let before = bytes_below(&self.work.dir);
        self.world.barrier();
        let begun = Instant::now();
        let mut checkpoint: CheckpointBuilder = self.session.begin_checkpoint(NAME, version).expect("the name is fine");
        checkpoint.value("cpus", &cpus).expect("a value");
        for (name, at, part) in &reals {
            checkpoint.save(&format!("{name}.{at}"), part).expect("a region");
        }
        for (name, at, part) in &indices {
            checkpoint.save(&format!("{name}.{at}"), part).expect("a region");
        }
        let pending = checkpoint.capture().expect("captured");
        let blocked = begun.elapsed().as_secs_f64();
        pending.wait(Level::System).expect("committed");
        let took = begun.elapsed().as_secs_f64();
        let (blocked_s, durable_s) = (self.slowest(blocked), self.slowest(took));
        let bytes = bytes_below(&self.work.dir) - before;
        json!({"version": version, "blocked_s": blocked_s, "durable_s": durable_s, "bytes": bytes})
    }

    /// Which threads and pages are where the run had them: each thread on its one CPU, and its parts on that CPU's node.
    fn places(&self, cpus: &[usize]) -> Places {
        let masks = Arc::new(Mutex::new(vec![cpus::Cpus::new(); cpus.len()]));
        let found = masks.clone();
        self.team.run(move |thread| found.lock().expect("no panic")[thread] = cpus::of_this_thread());
        let masks = masks.lock().expect("no panic");
        let is_right = |(mask, cpu): &(&cpus::Cpus, &usize)| mask.len() == 1 && mask.contains(cpu);
        let right = masks.iter().zip(cpus).filter(is_right).count() as u64;
        let mut places = Places { threads: (right, cpus.len() as u64), pages: (0, 0) };
        let node = |thread: usize| Machine::here().cpu(cpus[thread] as u32).map(|cpu| cpu.node);
        let mut add = |thread: usize, bytes: &[u8]| {
            let first = bytes.as_ptr().addr().next_multiple_of(PAGE);
            let end = bytes.as_ptr().addr() + bytes.len();
            let pages: Vec<usize> = (first..end.saturating_sub(PAGE - 1)).step_by(PAGE).collect();
            let found = numa::query_before_reading(&pages).unwrap_or_default();
            let is_right = |status: &&i32| u32::try_from(**status).ok() == node(thread);
            places.pages.0 += found.iter().filter(is_right).count() as u64;
            places.pages.1 += pages.len() as u64;
        };
        for (_, parts) in self.kernel.reals() {
            (0..parts.count()).for_each(|thread| add(thread, bytemuck::cast_slice(&parts.part(thread))));
        }
        for (_, parts) in self.kernel.indices() {
            (0..parts.count()).for_each(|thread| add(thread, bytemuck::cast_slice(&parts.part(thread))));
        }
        places
    }

    /// A checksum of the results of all ranks, after all steps.
    fn checksum(&self) -> String {
        let mine = kernels::checksum(&self.kernel.result(self.work.iterations).joined());
        let mine = mine.rotate_left(self.world.rank() as u32);
        let mut all = 0u64;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::bitwise_xor());
        format!("{all:016x}")
    }

    fn slowest(&self, mine: f64) -> f64 {
        let mut all = 0.0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        all
    }

    fn sum(&self, mine: u64) -> u64 {
        let mut all = 0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::sum());
        all
    }

    fn line(&self, phase: &str) -> Value {
        let work = &self.work;
        json!({
            "phase": phase, "kernel": work.kernel, "mode": work.mode, "ranks": self.world.size(), "threads": work.threads,
            "mib": work.size, "iterations": work.iterations, "nodes": Machine::here().nodes_with_memory().len(),
        })
    }

    fn finish(self, line: &Value) {
        if self.world.rank() == 0 {
            println!("{line}");
        }
        self.session.close().expect("closed");
    }
}

/// How often threads of this process have changed their CPU, if the kernel says (the event `migrations` of perf).
fn migrations() -> Option<u64> {
    let of_thread = |id: i32| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{id}/sched")).ok()?;
        let line = text.lines().find(|line| line.starts_with("se.nr_migrations"))?;
        line.rsplit(':').next()?.trim().parse::<u64>().ok()
    };
    threads::list().into_iter().map(|thread| of_thread(thread.id)).sum()
}

/// Bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        Ok(data) => data.len(),
        // A temporary file has just been renamed.
        Err(_) => 0,
    };
    entries.map(size).sum()
}
