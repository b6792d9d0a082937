//! The messages between the ranks: who has a GPU, the shots' images, the ranks' reports.
#![forbid(unsafe_code)]

use super::image::Image;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::collections::BTreeMap;

/// Tag of the ranks' reports; a shot's image has the tag [`FIRST_SHOT`] plus its number. MPI allows tags up
/// to 32767 at least.
const REPORT: i32 = 1;
const FIRST_SHOT: i32 = 2;

/// The shots of a rank: the ranks take shots in turn.
pub fn shots_of(rank: i32, ranks: i32, shots: usize) -> impl Iterator<Item = usize> {
    (rank as usize..shots).step_by(ranks as usize)
}

/// Does it hold on all ranks? Collective.
pub fn all(world: &SimpleCommunicator, holds: bool) -> bool {
    let mut all = false;
    world.all_reduce_into(&holds, &mut all, SystemOperation::logical_and());
    all
}

/// Adds the images of all shots on rank 0, in the order of the shots. Collective; the other ranks receive nothing.
pub fn stack(
    world: &SimpleCommunicator,
    shots: usize,
    mine: &BTreeMap<usize, Vec<f32>>,
    mut image: Image,
) -> Option<Image> {
    let root = world.process_at_rank(0);
    if world.rank() != 0 {
        mine.iter().for_each(|(shot, pixels)| root.send_with_tag(&pixels[..], FIRST_SHOT + *shot as i32));
        return None;
    }
    for shot in 0..shots {
        match mine.get(&shot) {
            Some(pixels) => image.add(pixels),
            None => {
                let owner = world.process_at_rank((shot % world.size() as usize) as i32);
                image.add(&owner.receive_vec_with_tag::<f32>(FIRST_SHOT + shot as i32).0);
            }
        }
    }
    Some(image)
}

/// Gathers the texts of all ranks on rank 0, in the order of the ranks; returns nothing on the others. Collective.
pub fn gather(world: &SimpleCommunicator, mine: String) -> Vec<String> {
    if world.rank() != 0 {
        world.process_at_rank(0).send_with_tag(mine.as_bytes(), REPORT);
        return Vec::new();
    }
    let others = (1..world.size()).map(|rank| {
        let (bytes, _) = world.process_at_rank(rank).receive_vec_with_tag::<u8>(REPORT);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    std::iter::once(mine).chain(others).collect()
}
