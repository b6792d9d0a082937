//! The tree along which votes travel up. It is built node by node, so that most messages stay within a node.
//!
//! The first rank of each node is its leader. Leaders form a binary tree in node order (node 0 at the root), and the
//! ranks of a node form a binary tree below their leader. So a rank has at most four children, and the depth is
//! log2(nodes) + log2(ranks per node).

use crate::base::Rank;

/// One rank's place in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The rank to which votes are sent; `None` at the root.
    pub parent: Option<Rank>,
    /// The ranks whose votes are awaited.
    pub children: Vec<Rank>,
}

impl Tree {
    /// The place of `rank`, given each rank's node (`nodes[rank]`; nodes are numbered by their lowest rank).
    pub fn new(rank: Rank, nodes: &[u32]) -> Tree {
        let mut members: Vec<Vec<Rank>> = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let node = *node as usize;
            if members.len() <= node {
                members.resize(node + 1, Vec::new());
            }
            members[node].push(Rank(index as u32));
        }
        let node = nodes[rank.index()] as usize;
        let place = members[node].iter().position(|member| *member == rank).unwrap_or(0);
        let mut children: Vec<Rank> =
            [2 * place + 1, 2 * place + 2].iter().filter_map(|child| members[node].get(*child).copied()).collect();
        let parent = if place > 0 {
            Some(members[node][(place - 1) / 2])
        } else {
            let below = [2 * node + 1, 2 * node + 2];
            children.extend(below.iter().filter_map(|child| members.get(*child).and_then(|ranks| ranks.first())));
            (node > 0).then(|| members[(node - 1) / 2][0])
        };
        Tree { parent, children }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hangs_below_the_root_exactly_once_and_depth_is_logarithmic() {
        for (ranks, per_node) in [(1, 1), (2, 1), (3, 2), (8, 4), (64, 5), (1000, 16), (4096, 64)] {
            let nodes: Vec<u32> = (0..ranks).map(|rank| rank / per_node).collect();
            let trees: Vec<Tree> = (0..ranks).map(|rank| Tree::new(Rank(rank), &nodes)).collect();
            let mut parents = vec![None; ranks as usize];
            for (rank, tree) in trees.iter().enumerate() {
                assert!(tree.children.len() <= 4);
                for child in &tree.children {
                    assert!(parents[child.index()].replace(Rank(rank as u32)).is_none());
                }
            }
            for (rank, tree) in trees.iter().enumerate() {
                assert_eq!(tree.parent, parents[rank]);
                assert_eq!(tree.parent.is_none(), rank == 0);
                let (mut depth, mut at) = (0, tree.parent);
                while let Some(up) = at {
                    (depth, at) = (depth + 1, trees[up.index()].parent);
                }
                assert!(depth <= 2 * (32 - ranks.leading_zeros()), "{ranks} ranks: depth {depth}");
            }
        }
    }

    #[test]
    fn ranks_dealt_round_robin_over_nodes_are_grouped_by_node() {
        let nodes = [0, 1, 0, 1, 0, 1];
        assert_eq!(Tree::new(Rank(0), &nodes), Tree { parent: None, children: vec![Rank(2), Rank(4), Rank(1)] });
        assert_eq!(Tree::new(Rank(5), &nodes), Tree { parent: Some(Rank(1)), children: vec![] });
    }
}
