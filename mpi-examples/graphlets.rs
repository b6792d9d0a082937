//! Counts the graphlets of a graph, in a run that survives being killed.
//!
//! For each vertex and each place in a graphlet, the program counts the induced subgraphs of two to five vertices in which the
//! vertex has that place. These counts are the vertex's graphlet degree vector, by which graphs are compared. This is the
//! application of *Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication* (Tan and others, ICPP 2023). Each
//! rank keeps counters of all vertices and adds its share of the subgraphs to them; at the end the counters are added up. The
//! changes between two checkpoints are scattered, and many of them are alike.
//!
//! The graphs are in `graphlets/inputs.rs` and `graphlets/graph.rs`, and the graphlets in `graphlets/orbits.rs`. The
//! enumeration is in `graphlets/subgraphs.rs` and, for a GPU, in `graphlets/count.cu`; the place of the counters in
//! `graphlets/machine.rs`; the sum in `graphlets/sum.rs` and `graphlets/ranks.rs`. All calls to Bivouac are in
//! `graphlets/checkpoints.rs`.
//!
//! ```sh
//! export BIVOUAC_REDUCTION_METHOD=tree      # or full, basic, list: docs/REDUCTION.md
//! mpirun -n 4 graphlets --dir /scratch/me/graphlets --graph race --vertices 1000000
//! mpirun -n 4 graphlets --dir /scratch/me/graphlets --graph race --vertices 1000000 --device cuda
//! ```
//!
//! Rank 0 prints `started`, `restored`, `committed` (a checkpoint has reached a level), and at the end `digest`, which depends only
//! on the graph and on `--size`, and the size of the checkpoints: `stored_bytes` of `shard_bytes`. `--die-at 7` makes the last rank
//! kill itself after its seventh part; started again, the run continues from the newest checkpoint.
//!
//! A rank with `--device cuda` uses the GPU with its number among the ranks of its node, modulo the node's GPUs.
#![deny(unsafe_code)] // Except in `card` and `machine::gpu`.

#[cfg(feature = "cuda")]
mod card;
#[path = "graphlets/checkpoints.rs"]
mod checkpoints;
#[path = "graphlets/graph.rs"]
mod graph;
#[path = "graphlets/inputs.rs"]
mod inputs;
#[path = "graphlets/machine.rs"]
mod machine;
mod node;
#[path = "graphlets/options.rs"]
mod options;
#[path = "graphlets/orbits.rs"]
mod orbits;
#[path = "graphlets/ranks.rs"]
mod ranks;
#[path = "graphlets/subgraphs.rs"]
mod subgraphs;
#[path = "graphlets/sum.rs"]
mod sum;
mod surroundings;

use checkpoints::Checkpoints;
use clap::Parser;
use machine::Counters;
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use options::{Options, Place};
use orbits::Table;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use subgraphs::{Problem, roots_of};
use surroundings::start;

fn main() {
    let options = Options::parse();
    start(Threading::Multiple, options.verbose_log, |world| run(world, &options));
}

fn run(world: &SimpleCommunicator, options: &Options) -> Result<(), Box<dyn Error>> {
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    let graph = inputs::generate(options.graph, options.vertices as usize, options.seed);
    let problem = Arc::new(Problem { graph, table: Table::new(options.size.into()) });
    let mut counters = open_counters(world, options, &problem)?;
    announce(world, options, &problem, &counters);

    let mut checkpoints = Checkpoints::open(world, options, &counters, describe(options, ranks))?;
    let mut part = checkpoints.restart(&mut counters)?;
    let begun = Instant::now();
    let mut stopped = false;
    while part < options.parts && !stopped {
        counters.count(roots_of(part as usize, options.parts as usize, rank, ranks, problem.graph.vertices()))?;
        part += 1;
        stopped = checkpoints.should_exit()?;
        if part.is_multiple_of(options.every) || stopped {
            checkpoints.take(&counters, part);
            if options.wait {
                checkpoints.settle();
            }
        }
        fail_if_asked(options, part, rank + 1 == ranks);
        checkpoints.follow();
    }
    let seconds = begun.elapsed().as_secs_f64();
    if part < options.parts {
        if rank == 0 {
            println!("stopped part={part} of={}", options.parts);
        }
    } else {
        finish(world, &problem, &counters, seconds)?;
    }
    checkpoints.close(world)
}

/// Opens the counters, all zero, in the same kind of place on every rank.
fn open_counters(
    world: &SimpleCommunicator,
    options: &Options,
    problem: &Arc<Problem>,
) -> Result<Counters, Box<dyn Error>> {
    let local_rank = node::local_rank(world);
    Ok(match options.device {
        Place::Host => Counters::host(problem),
        Place::Twin => Counters::Device(Box::new(machine::twin::Twin::open(problem)?)),
        Place::Cuda => Counters::Device(open_gpu(problem, local_rank)?),
    })
}

#[cfg(feature = "cuda")]
fn open_gpu(problem: &Problem, local_rank: usize) -> Result<Box<dyn machine::Machine>, Box<dyn Error>> {
    Ok(Box::new(machine::gpu::Gpu::open(problem, local_rank)?))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_: &Problem, _: usize) -> Result<Box<dyn machine::Machine>, Box<dyn Error>> {
    Err(bivouac::device::DeviceError::NoLibrary.into())
}

/// Describes what is counted, and how the ranks share it: a checkpoint of anything else is of no use.
fn describe(options: &Options, ranks: usize) -> String {
    let Options { graph, vertices, seed, size, parts, .. } = options;
    format!("{graph:?} of {vertices} vertices, seed {seed}, size {size}, {parts} parts on {ranks} ranks")
}

fn announce(world: &SimpleCommunicator, options: &Options, problem: &Problem, counters: &Counters) {
    if world.rank() == 0 {
        println!(
            "started ranks={} place={:?} graph={:?} vertices={} edges={} size={} parts={} counter_bytes={}",
            world.size(),
            counters.place(),
            options.graph,
            problem.graph.vertices(),
            problem.graph.edges(),
            options.size,
            options.parts,
            4 * problem.counters()
        );
    }
}

/// The death that `--die-at` asks for: SIGKILL, as from outside; nothing is flushed, no destructor runs.
fn fail_if_asked(options: &Options, part: u32, is_last_rank: bool) {
    if options.die_at == Some(part)
        && is_last_rank
        && let Err(error) = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    {
        eprintln!("cannot kill itself: {error}");
    }
}

/// Adds the counters up, and prints the result on rank 0. Collective.
fn finish(
    world: &SimpleCommunicator,
    problem: &Problem,
    counters: &Counters,
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    let sum = ranks::total(world, counters, problem.graph.vertices(), problem.table.width())?;
    if world.rank() == 0 {
        for (size, count) in sum.subgraphs() {
            println!("subgraphs size={size} count={count}");
        }
        println!("digest {} seconds={seconds:.3}", sum.digest());
    }
    Ok(())
}
