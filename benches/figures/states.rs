//! The counters of an input after each part of the work.

use super::Options;
use super::inputs::{self, Kind};
use super::machine::{self, Counters};
use super::orbits::Table;
use super::subgraphs::{Problem, roots_of};
use bivouac::device::DeviceSpan;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::sync::Arc;
use std::time::Instant;

/// States may take one part in this many of the device memory; the rest is for the cache and the tables of chunks.
const SHARE: u64 = 4;

/// An input that has been counted.
pub struct Input {
    /// Its kind.
    pub kind: Kind,
    /// The number of its edges.
    pub edges: usize,
    /// Bytes of the counters.
    pub bytes: u64,
    /// What checkpoints are taken of.
    pub counters: Counters,
    states: Vec<State>,
}

/// The counters in one state.
enum State {
    Host(Vec<u32>),
    Device(DeviceSpan),
}

impl Input {
    /// Counts the first `count` of `parts` parts of the share of each rank of `comm`, and keeps the counters after each part. Collective.
    pub fn count(options: &Options, kind: Kind, comm: &SimpleCommunicator, parts: usize, count: usize) -> Input {
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        let begun = Instant::now();
        let graph = inputs::generate(kind, options.vertices(), options.seed);
        let problem = Arc::new(Problem { graph, table: Table::new(options.size()) });
        let made = begun.elapsed().as_secs_f64();
        let mut counters = open(options, &problem, comm);
        let (vertices, bytes) = (problem.graph.vertices(), 4 * problem.counters() as u64);
        let mut states = Vec::new();
        for part in 0..count {
            counters.count(roots_of(part, parts, rank, ranks, vertices)).expect("counted");
            states.push(keep(&counters, problem.counters(), count as u64));
        }
        let counted = begun.elapsed().as_secs_f64() - made;
        if rank == 0 {
            eprintln!("{kind:?}: graph made in {made:.1} s, {count} of {parts} parts counted in {counted:.1} s");
        }
        Input { kind, edges: problem.graph.edges(), bytes, counters, states }
    }

    /// How many states there are.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Sets the counters to those of a state.
    pub fn set(&mut self, state: usize) {
        match (&mut self.counters, &self.states[state]) {
            (Counters::Host { values, .. }, State::Host(state)) => values.copy_from_slice(state),
            (Counters::Device(machine), State::Host(state)) => {
                let copies = [(bytemuck::cast_slice(state), machine.counters().clone())];
                machine.stream().upload(&copies, None).expect("uploaded");
            }
            (Counters::Device(machine), State::Device(state)) => {
                machine.stream().copy(state, machine.counters()).expect("copied");
                machine.stream().finish().expect("copied");
            }
            (Counters::Host { .. }, State::Device(_)) => unreachable!("states of host memory are there"),
        }
    }
}

/// A copy of the counters, on the device if all `count` of them fit there.
fn keep(counters: &Counters, length: usize, count: u64) -> State {
    if let Counters::Device(machine) = counters {
        let bytes = machine.counters().bytes();
        if count * bytes <= machine.device().info().memory_bytes / SHARE {
            let state = machine.device().allocate(bytes).expect("room");
            machine.stream().copy(machine.counters(), &state).expect("copied");
            machine.stream().finish().expect("copied");
            return State::Device(state);
        }
    }
    let mut values = vec![0; length];
    counters.read(0, &mut values).expect("read");
    State::Host(values)
}

fn open(options: &Options, problem: &Arc<Problem>, comm: &SimpleCommunicator) -> Counters {
    match options.gpu {
        false => Counters::host(problem),
        true => Counters::Device(open_gpu(problem, comm.rank() as usize)),
    }
}

#[cfg(feature = "cuda")]
fn open_gpu(problem: &Problem, local_rank: usize) -> Box<dyn machine::Machine> {
    Box::new(machine::gpu::Gpu::open(problem, local_rank).expect("a GPU"))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_: &Problem, _: usize) -> Box<dyn machine::Machine> {
    panic!("built without the feature `cuda`")
}
