//! Finds what can still be rebuilt after nodes have been lost, by asking the placement.
//!
//! A lost node takes with it its shards and what it kept for others. The shards are rebuilt, but what the node kept is not made again
//! before the next exchange (`docs/RECOVERY.md`). With copies, a rank's shard is therefore lost for good if it is lost after all nodes that
//! held a copy have been lost since the exchange. With parity, it is lost for good if more members of its set have been lost since the
//! exchange than the set has parities. (Rebuilt members lack the parity of only some stripes, so sets with several parities might survive
//! one more loss. The plays do not count on that.)

use crate::base::Rank;
use crate::config::Scheme;
use crate::planner::machine::Machine;
use crate::redundancy::placement::{Cover, Placement, place};
use std::ops::Range;

/// If there are more ranks than this, one rank is placed for each node.
const RANKS_MAX: u64 = 1 << 18;

/// The placement of a machine's ranks: who covers whom.
#[derive(Clone, Debug)]
pub struct Survivors {
    placement: Placement,
    ranks_per_node: u32,
    nodes: u32,
    parity: u8,
}

impl Survivors {
    /// Places the ranks as the engine would, kept apart by the largest domains of which there are enough. `None` if no
    /// loss of a node is survived.
    pub fn of_machine(machine: &Machine) -> Option<Survivors> {
        let nodes = u32::try_from(machine.nodes).ok()?;
        let enough = u64::from(machine.scheme.parity()) + 1;
        let domain = machine.site.domains.iter().rev().find(|domain| machine.nodes / domain.nodes.max(1) >= enough);
        let domains: Vec<u32> = match domain {
            Some(domain) => (0..nodes).map(|node| node / domain.nodes as u32).collect(),
            None => Vec::new(),
        };
        let ranks = if machine.nodes * machine.gpus > RANKS_MAX { 1 } else { machine.gpus as u32 };
        Survivors::new(nodes, ranks, &domains, machine.scheme)
    }

    /// Places this many nodes with this many ranks each; `domains` gives the domain of each node.
    pub fn new(nodes: u32, ranks_per_node: u32, domains: &[u32], scheme: Scheme) -> Option<Survivors> {
        let of_ranks: Vec<u32> = (0..nodes * ranks_per_node).map(|rank| rank / ranks_per_node).collect();
        let placement = place(&of_ranks, domains, scheme);
        let parity = scheme.parity() as u8;
        (placement.tolerates_nodes > 0).then_some(Survivors { placement, ranks_per_node, nodes, parity })
    }

    fn node(&self, rank: Rank) -> u32 {
        rank.0 / self.ranks_per_node
    }

    fn ranks(&self, node: u32) -> impl Iterator<Item = Rank> {
        (node * self.ranks_per_node..(node + 1) * self.ranks_per_node).map(Rank)
    }
}

/// The nodes that have been lost since the last exchange.
#[derive(Clone, Debug)]
pub struct Lost<'a> {
    survivors: &'a Survivors,
    gone: Vec<bool>,
    all: Vec<u32>,
    /// The lost nodes whose shards have not been rebuilt yet.
    open: Vec<u32>,
    /// How many members each set has lost.
    members: Vec<u8>,
}

impl<'a> Lost<'a> {
    /// No node has been lost.
    pub fn none(survivors: &'a Survivors) -> Lost<'a> {
        let sets = match &survivors.placement.cover {
            Cover::Sets(sets) => sets.len(),
            _ => 0,
        };
        let gone = vec![false; survivors.nodes as usize];
        Lost { survivors, gone, all: Vec::new(), open: Vec::new(), members: vec![0; sets] }
    }

    /// Notes the loss of these nodes, and says whether all shards can still be rebuilt.
    pub fn lose(&mut self, nodes: Range<u32>) -> bool {
        let mut is_survived = true;
        for node in nodes {
            self.open.push(node);
            if std::mem::replace(&mut self.gone[node as usize], true) {
                continue;
            }
            self.all.push(node);
            for rank in self.survivors.ranks(node) {
                if let Some((set, _)) = self.survivors.placement.set_of(rank) {
                    self.members[set] = self.members[set].saturating_add(1);
                    is_survived &= self.members[set] <= self.survivors.parity;
                }
            }
        }
        if let Cover::Partners(_) = self.survivors.placement.cover {
            is_survived &= self.open.iter().all(|node| self.survivors.ranks(*node).all(|rank| self.has_copy(rank)));
        }
        is_survived
    }

    fn has_copy(&self, rank: Rank) -> bool {
        let holders = self.survivors.placement.targets(rank);
        holders.iter().any(|holder| !self.gone[self.survivors.node(*holder) as usize])
    }

    /// Whether everything that nodes keep for each other is complete.
    pub fn is_none(&self) -> bool {
        self.all.is_empty()
    }

    /// All shards are in their places again.
    pub fn on_recovered(&mut self) {
        self.open.clear();
    }

    /// Everything has been exchanged again.
    pub fn on_exchanged(&mut self) {
        self.open.clear();
        for node in self.all.drain(..) {
            self.gone[node as usize] = false;
            for rank in self.survivors.ranks(node) {
                if let Some((set, _)) = self.survivors.placement.set_of(rank) {
                    self.members[set] = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use crate::redundancy::holding::{Holding, Item, Table};
    use crate::redundancy::stripes::SetInfo;

    const SCHEMES: [Scheme; 6] = [
        Scheme::Partner { copies: 1 },
        Scheme::Partner { copies: 2 },
        Scheme::Xor { members: 4 },
        Scheme::Xor { members: 8 },
        Scheme::Rs { data: 2, parity: 2 },
        Scheme::Rs { data: 4, parity: 3 },
    ];

    /// Asks the restart's own table, with all shards and parts except those of lost nodes.
    fn by_holdings(survivors: &Survivors, lost: &[u32]) -> bool {
        let ranks = survivors.nodes * survivors.ranks_per_node;
        let mut all = Vec::new();
        let is_lost = |rank: Rank| lost.contains(&survivors.node(rank));
        let mut hold = |item, holder: Rank, set: Option<SetInfo>| {
            if !is_lost(holder) {
                all.push(Holding { candidate: 0, item, holder, bytes: 8192, set });
            }
        };
        for rank in (0..ranks).map(Rank) {
            hold(Item::Shard(rank), rank, None);
            for holder in survivors.placement.targets(rank) {
                hold(Item::Shard(rank), *holder, None);
            }
            if let Some((_, members)) = survivors.placement.set_of(rank) {
                let members = members.iter().map(|member| (*member, 8192)).collect();
                hold(Item::Part(rank), rank, Some(SetInfo { parity: u32::from(survivors.parity), members }));
            }
        }
        let table = Table::of(&all, 0);
        (0..ranks).all(|rank| table.has(Rank(rank)))
    }

    /// If nodes are lost together, the answer agrees with the code that rebuilds, with one rank or several on a node, and with racks.
    #[test]
    fn what_survives_is_what_a_restart_would_find() {
        let mut rng = Rng::new(5);
        let (mut survived, mut fatal) = (0, 0);
        for scheme in SCHEMES {
            for (nodes, ranks, rack) in [(12, 1, 1), (13, 3, 1), (16, 2, 4)] {
                let domains: Vec<u32> = (0..nodes).map(|node| node / rack).collect();
                let survivors = Survivors::new(nodes, ranks, &domains, scheme).expect("it survives one");
                for _ in 0..12 {
                    let lost: Vec<u32> = (0..=rng.below(4)).map(|_| rng.below(u64::from(nodes)) as u32).collect();
                    let mut ours = Lost::none(&survivors);
                    let answers: Vec<bool> = lost.iter().map(|node| ours.lose(*node..node + 1)).collect();
                    let is_survived = answers.iter().all(|answer| *answer);
                    assert_eq!(is_survived, by_holdings(&survivors, &lost), "{scheme} {nodes}x{ranks}: {lost:?}");
                    if is_survived { survived += 1 } else { fatal += 1 }
                }
            }
        }
        assert!(survived > 50 && fatal > 50, "{survived} {fatal}");
    }

    #[test]
    fn as_many_as_there_is_parity_survive_and_a_rack_where_racks_are_kept_apart() {
        for scheme in SCHEMES {
            let survivors =
                Survivors::new(64, 1, &(0..64).map(|node| node / 8).collect::<Vec<_>>(), scheme).expect("one");
            let mut lost = Lost::none(&survivors);
            assert!(lost.lose(8..16) && !lost.is_none(), "{scheme}");
            lost.on_exchanged();
            assert!(lost.is_none());
            assert!(lost.lose(16..24), "{scheme}: made anew, so it survives another one");
        }
        assert!(Survivors::new(1, 4, &[], SCHEMES[0]).is_none());
        assert!(Survivors::new(4, 1, &[], Scheme::None).is_none());
    }

    /// Rebuilt shards are available. What was kept for others is missing until the next exchange.
    #[test]
    fn what_was_kept_for_others_is_missing_until_the_next_exchange() {
        let survivors = Survivors::new(4, 1, &[], Scheme::Partner { copies: 1 }).expect("one");
        // Node 0 holds the copy of node 2, and node 2 that of node 0.
        let mut lost = Lost::none(&survivors);
        assert!(lost.lose(0..1));
        lost.on_recovered();
        assert!(lost.lose(1..2), "node 1 has its copy on 3");
        lost.on_recovered();
        assert!(!lost.lose(2..3), "its copy went with node 0");
        lost.on_exchanged();
        assert!(lost.lose(2..3) && !lost.lose(0..1));
    }
}
