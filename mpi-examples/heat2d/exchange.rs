//! The MPI part of the physics: the halo exchange between neighbours, and the transfer of the field to
//! rank 0, row by row.
//!
//! Everything sent here has been received when a function returns, on the rank that returns. Bivouac
//! requires this of an application at `capture`: none of its own messages may be in flight.
#![forbid(unsafe_code)]

use super::plate::{Decomposition, Plane, Side};
use mpi::request::WaitGuard;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

const TAG_HALO: i32 = 1;
const TAG_BLOCK: i32 = 10;

/// The buffers of one rank's halo exchange, kept from step to step.
pub struct Halo {
    /// Side, neighbour, edge to send, halo to receive; sides at the border of the plate are absent.
    links: Vec<(Side, i32, Vec<f64>, Vec<f64>)>,
    /// The sides at the border of the plate.
    pub borders: Vec<Side>,
}

impl Halo {
    /// Makes the buffers for a rank.
    pub fn new(cut: &Decomposition, rank: usize) -> Self {
        let mut halo = Halo { links: Vec::new(), borders: Vec::new() };
        for side in Side::ALL {
            match cut.neighbour(rank, side) {
                Some(neighbour) => halo.links.push((side, neighbour as i32, Vec::new(), Vec::new())),
                None => halo.borders.push(side),
            }
        }
        halo
    }

    /// Swaps edges with all neighbours and fills the plane's ring from them.
    pub fn exchange(&mut self, world: &SimpleCommunicator, plane: &mut Plane) {
        for (side, _, outgoing, incoming) in &mut self.links {
            plane.copy_edge(*side, outgoing);
            incoming.resize(plane.side_len(*side), 0.0);
        }
        mpi::request::scope(|scope| {
            let mut guards = Vec::with_capacity(2 * self.links.len());
            for (side, neighbour, outgoing, incoming) in &mut self.links {
                let neighbour = world.process_at_rank(*neighbour);
                // A message is tagged with the side of the sender, so that the two edges between a pair of ranks
                // can never be taken for each other.
                let tag_in = TAG_HALO + side.opposite() as i32;
                let receive = neighbour.immediate_receive_into_with_tag(scope, &mut incoming[..], tag_in);
                guards.push(WaitGuard::from(receive));
                let send = neighbour.immediate_send_with_tag(scope, &outgoing[..], TAG_HALO + *side as i32);
                guards.push(WaitGuard::from(send));
            }
            // Dropping the guards waits for all messages.
        });
        for (side, _, _, incoming) in &self.links {
            plane.set_halo(*side, incoming);
        }
    }
}

/// Calls `row` on rank 0 with every row of the plate, from north to south; collective.
///
/// Rank 0 holds one row of blocks at a time, not the whole plate.
pub fn for_each_row(world: &SimpleCommunicator, cut: &Decomposition, plane: &Plane, mut row: impl FnMut(&[f64])) {
    let rank = world.rank() as usize;
    if rank != 0 {
        let block = cut.block(rank);
        let cells: Vec<f64> = (0..block.y.len()).flat_map(|row| plane.row(row).iter().copied()).collect();
        world.process_at_rank(0).send_with_tag(&cells[..], TAG_BLOCK);
        return;
    }
    let mut line = Vec::with_capacity(cut.grid.nx);
    for band in 0..cut.py {
        let ranks = band * cut.px..(band + 1) * cut.px;
        let blocks: Vec<Vec<f64>> = ranks.clone().map(|source| receive_block(world, cut, plane, source)).collect();
        for y in 0..cut.block(ranks.start).y.len() {
            line.clear();
            for (cells, source) in blocks.iter().zip(ranks.clone()) {
                let width = cut.block(source).x.len();
                line.extend_from_slice(&cells[y * width..(y + 1) * width]);
            }
            row(&line);
        }
    }
}

fn receive_block(world: &SimpleCommunicator, cut: &Decomposition, own: &Plane, source: usize) -> Vec<f64> {
    let block = cut.block(source);
    if source == 0 {
        return (0..block.y.len()).flat_map(|row| own.row(row).iter().copied()).collect();
    }
    let mut cells = vec![0.0; block.x.len() * block.y.len()];
    world.process_at_rank(source as i32).receive_into_with_tag(&mut cells[..], TAG_BLOCK);
    cells
}
