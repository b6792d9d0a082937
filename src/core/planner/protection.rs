//! Gives in closed form what redundancy between nodes costs and what it survives, with the numbers of `docs/RECOVERY.md` for each scheme.
//!
//! What exactly survives depends on who covers whom. [`super::play`] asks the placement itself. This module uses the
//! guarantee of [`crate::redundancy::placement`] instead, and the chance that losses follow each other so closely that a set
//! loses more than it has parity.

use super::machine::Machine;
use crate::config::Scheme;
use crate::policy::intervals::LevelCosts;

/// The schemes that are compared if none is chosen.
pub const SCHEMES: [Scheme; 7] = [
    Scheme::None,
    Scheme::Partner { copies: 1 },
    Scheme::Partner { copies: 2 },
    Scheme::Xor { members: 4 },
    Scheme::Xor { members: 8 },
    Scheme::Rs { data: 4, parity: 2 },
    Scheme::Rs { data: 8, parity: 2 },
];

/// The memory that the protection of a shard occupies, in shards.
///
/// ```
/// use bivouac_core::{config::Scheme, planner::protection::{memory_share, traffic_share}};
/// let scheme = Scheme::Rs { data: 4, parity: 2 };
/// assert_eq!((memory_share(scheme), traffic_share(scheme)), (0.5, 1.25));
/// ```
pub fn memory_share(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::None => 0.0,
        Scheme::Partner { copies } => f64::from(copies),
        Scheme::Xor { members } => 1.0 / f64::from(members - 1),
        Scheme::Rs { data, parity } => f64::from(parity) / f64::from(data),
    }
}

/// What a rank sends, and receives, to protect a shard, in shards.
pub fn traffic_share(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::None => 0.0,
        Scheme::Partner { copies } => f64::from(copies),
        Scheme::Xor { .. } => 1.0,
        Scheme::Rs { data, parity } => 1.0 + f64::from(parity - 1) / f64::from(data),
    }
}

/// What a lost rank reads to recover its shard, in shards.
pub fn rebuild_share(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::None => 0.0,
        Scheme::Partner { .. } => 1.0,
        Scheme::Xor { members } => f64::from(members - 1),
        Scheme::Rs { data, .. } => f64::from(data),
    }
}

/// Whether the scheme survives the loss of this many neighbouring nodes out of `nodes`. By the guarantee of the placement, it does if no
/// group that is lost together has more than one part in `parity + 1` of all nodes.
pub fn survives(scheme: Scheme, lost: u64, nodes: u64) -> bool {
    scheme.parity() > 0 && lost.saturating_mul(u64::from(scheme.parity()) + 1) <= nodes
}

/// The costs of the level that survives node losses on that machine, and the failures a second that exceed it; `None` if the scheme does
/// not survive the loss of any node. `reboots` are failures that have no level of their own. `memory` gives the costs of the copy in node
/// memory, which is made first.
pub(super) fn level(machine: &Machine, reboots: f64, memory: &LevelCosts) -> Option<(LevelCosts, f64)> {
    let (scheme, nodes) = (machine.scheme, machine.nodes);
    if !survives(scheme, 1, nodes) {
        return None;
    }
    let single = reboots + machine.failures.loss * nodes as f64;
    let of_domains = machine.domain_losses().map(|(domain, rate)| (domain.nodes, rate * (1.0 - domain.returns)));
    let (mut survived, mut beyond) = (single, 0.0);
    for (lost, rate) in of_domains {
        match survives(scheme, lost, nodes) {
            true => survived += rate,
            false => beyond += rate,
        }
    }
    let exchange = machine.state * traffic_share(scheme) / machine.network;
    let rebuild = machine.state * rebuild_share(scheme) / machine.network;
    let mut costs = machine.moved(exchange, machine.relaunch + rebuild, survived, memory.latency);
    // Lost nodes are not protected again before the next exchange. That takes about one optimal interval, which is no
    // shorter than the exchange.
    let cost = costs.cost(f64::MAX) + memory.cost(f64::MAX);
    let interval = (2.0 * cost / (survived + memory.rate)).sqrt().max(costs.latency);
    let window = costs.recovery + costs.latency + if interval.is_finite() { interval } else { 0.0 };
    let beyond_parity = single * chance_of_more(scheme, nodes, single / nodes as f64 * window);
    costs.rate -= beyond_parity;
    Some((costs, beyond + beyond_parity))
}

/// The chance that, after the loss of a node, parity does not suffice because too many of the nodes that share a set with it are lost
/// before the next exchange, each with the chance `each`. Each loss puts the exchange off, so the time starts anew: of n neighbours any may
/// be lost next, and then any of the others.
///
/// All ranks of a node are assumed to have the same neighbours, which is so if the number of sets is a multiple of the ranks of a node.
/// Otherwise there are up to twice as many neighbours, and the plays, which ask the placement, find more losses that exceed the parity.
fn chance_of_more(scheme: Scheme, nodes: u64, each: f64) -> f64 {
    let parity = scheme.parity();
    let neighbours = match scheme {
        // The nodes whose copies the lost node held. Each of their shards is lost for good if its node is lost after all of its copies.
        Scheme::Partner { copies } => copies,
        _ => scheme.members() - 1,
    };
    let neighbours = u64::from(neighbours).min(nodes - 1) as f64;
    let ways = (0..parity).map(|of| (neighbours - f64::from(of)).max(0.0)).product::<f64>();
    (ways * each.powi(parity as i32)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Level;
    use crate::planner::machine::{Failures, Site, Store};
    use crate::planner::play::{Played, Setting, play, seed_of};
    use crate::planner::presets;
    use crate::policy::intervals::best;

    /// For losses that follow each other too closely, the estimate agrees with the plays, which ask the placement, within a factor of two.
    #[test]
    fn losses_beyond_parity_are_about_as_frequent_as_in_plays() {
        for (scheme, loss) in [
            (Scheme::Partner { copies: 1 }, 2e-5),
            (Scheme::Xor { members: 8 }, 1e-5),
            (Scheme::Rs { data: 4, parity: 2 }, 3e-5),
        ] {
            let mut machine = presets::named("node-8gpu").expect("known");
            (machine.nodes, machine.scheme, machine.site) = (64, scheme, Site::default());
            machine.failures = Failures { process: 0.0, reboot: 0.0, loss, system: 1e-12 };
            // With several ranks on a node, the neighbours would be on up to twice as many nodes if the size of a set did not divide the
            // number of ranks.
            (machine.gpus, machine.links, machine.network) = (1, vec![(1, 280e9)], 2e12);
            // With these rates, a recovery from the global store is over before the next failure.
            machine.global = Some(Store { write: 1e13, read: 1e13 });
            let levels = machine.levels();
            let costs: Vec<LevelCosts> = levels.iter().map(|(_, costs)| *costs).collect();
            assert_eq!(levels.last().map(|(level, _)| *level), Some(Level::System));
            let expected = costs.last().expect("one").rate;
            let pattern = best(&costs, 1, machine.conduct()).expect("a pattern").pattern;
            assert!(pattern.levels.iter().any(|(at, _)| levels[*at].0 == Level::NodeLoss), "{scheme} pays");
            let time = 100.0 / expected;
            let setting = Setting::of_machine(&machine, &machine.levels(), &pattern, time / 8.0);
            let plays: Vec<Played> = (0..8).map(|run| play(&setting, seed_of(1, run))).collect();
            let found = plays.iter().map(|play| play.lost_all).sum::<u64>();
            assert!((60..200).contains(&found), "{scheme}: {found} in plays, 100 by the estimate");
        }
    }

    #[test]
    fn what_is_lost_together_survives_where_the_placement_can_keep_it_apart() {
        let scheme = Scheme::Rs { data: 4, parity: 2 };
        assert!(survives(scheme, 8, 24) && !survives(scheme, 9, 24) && !survives(Scheme::None, 1, 100));
        assert!(survives(Scheme::Partner { copies: 1 }, 1, 2) && !survives(Scheme::Xor { members: 8 }, 1, 1));
    }
}
