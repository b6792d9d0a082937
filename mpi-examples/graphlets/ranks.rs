//! The messages between the ranks: the sum of their counters, their statistics, and the node of each.
#![forbid(unsafe_code)]

use super::machine::Counters;
use super::sum::Sum;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::error::Error;

/// The counters of this many vertices are added up at a time.
const VERTICES: usize = 1 << 13;

/// The sum of a number over all ranks, on rank 0; zero on the others. Collective.
pub fn sum(world: &SimpleCommunicator, mine: u64) -> u64 {
    let mut all = [0];
    sum_into_root(world, &[mine], &mut all);
    all[0]
}

fn sum_into_root(world: &SimpleCommunicator, mine: &[u64], all: &mut [u64]) {
    let root = world.process_at_rank(0);
    match world.rank() {
        0 => root.reduce_into_root(mine, all, SystemOperation::sum()),
        _ => root.reduce_into(mine, SystemOperation::sum()),
    }
}

/// Adds up the counters of all ranks on rank 0; the other ranks receive nothing of use. Collective.
///
/// # Errors
/// The [`Overflow`](super::subgraphs::Overflow) of a sum, or any error that the device reports.
pub fn total(
    world: &SimpleCommunicator,
    counters: &Counters,
    vertices: usize,
    width: usize,
) -> Result<Sum, Box<dyn Error>> {
    let mut sum = Sum::new(width);
    for first in (0..vertices).step_by(VERTICES) {
        let count = width * VERTICES.min(vertices - first);
        let (mut mine, mut all) = (vec![0u32; count], vec![0u64; count]);
        counters.read(first * width, &mut mine)?;
        let mine: Vec<u64> = mine.into_iter().map(u64::from).collect();
        sum_into_root(world, &mine, &mut all);
        sum.add(first, &all)?;
    }
    Ok(sum)
}
