//! Who looks after the shards of a checkpoint in a restart, even if a different number of ranks took it. Pure.
//!
//! Each old shard has a *home* among the ranks of this run. The home knows where copies of the shard are, and votes for it. If the number
//! of ranks has not changed, the home is the rank with the same number. Data on a node is found by its home, if the home is on that node,
//! or else by one of the node's ranks: data that belongs to other nodes is spread over all of these ranks.

use crate::base::Rank;
use std::ops::Range;

/// The home, among `ranks` ranks, of a shard of a checkpoint that `of` ranks took.
pub fn home(shard: Rank, of: u32, ranks: u32) -> Rank {
    Rank((u64::from(shard.0) * u64::from(ranks) / u64::from(of.max(1))) as u32)
}

/// The shards whose home a rank is, if `of` ranks took the checkpoint and there are `ranks` ranks now.
pub fn homed(rank: Rank, of: u32, ranks: u32) -> Range<u32> {
    // The first shard whose home is `rank` or a later one.
    let first = |rank: u32| (u64::from(rank) * u64::from(of)).div_ceil(u64::from(ranks.max(1))) as u32;
    first(rank.0)..first(rank.0 + 1)
}

/// The rank of a node that looks at the node's data of a shard of a checkpoint that `of` ranks took. `node` has the ranks of the node, and
/// there are `ranks` ranks in all.
pub fn finder(shard: Rank, of: u32, node: &[Rank], ranks: u32) -> Option<Rank> {
    let home = home(shard, of, ranks);
    if node.contains(&home) { Some(home) } else { node.get(shard.0 as usize % node.len().max(1)).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_has_one_home_and_with_as_many_ranks_it_is_its_own() {
        for of in 1..40 {
            for ranks in 1..40 {
                let all: Vec<u32> = (0..ranks)
                    .flat_map(|rank| {
                        let homed = homed(Rank(rank), of, ranks);
                        assert!(homed.clone().all(|shard| home(Rank(shard), of, ranks) == Rank(rank)));
                        homed
                    })
                    .collect();
                assert_eq!(all, (0..of).collect::<Vec<_>>(), "{of} on {ranks}");
                // The shards are spread as evenly as possible.
                let most = (0..ranks).map(|rank| homed(Rank(rank), of, ranks).len()).max();
                assert_eq!(most, Some(of.div_ceil(ranks) as usize));
            }
            assert!((0..of).all(|rank| homed(Rank(rank), of, of) == (rank..rank + 1)));
        }
        assert_eq!(home(Rank(u32::MAX - 1), u32::MAX, u32::MAX), Rank(u32::MAX - 1));
    }

    #[test]
    fn what_lies_on_a_node_is_found_by_one_of_its_ranks() {
        let node: Vec<Rank> = (4..8).map(Rank).collect();
        assert_eq!(finder(Rank(5), 12, &node, 12), Some(Rank(5)));
        // The shards of other nodes go to the node's ranks one by one.
        let finders: Vec<u32> = (0..4).map(|shard| finder(Rank(shard), 12, &node, 12).expect("somebody").0).collect();
        assert_eq!(finders, [4, 5, 6, 7]);
        // If twice as many ranks took the checkpoint, each home has two shards.
        assert_eq!([10, 11].map(|shard| finder(Rank(shard), 24, &node, 12)), [Some(Rank(5)); 2]);
        assert_eq!(finder(Rank(0), 1, &[], 1), None);
    }
}
