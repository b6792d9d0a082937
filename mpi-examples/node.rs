//! The position of a rank among the ranks of its node.
#![forbid(unsafe_code)]

use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// This rank's number among those of its node. Collective.
pub fn local_rank(world: &SimpleCommunicator) -> usize {
    world.split_shared(world.rank()).rank() as usize
}
