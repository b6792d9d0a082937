//! Redundancy between nodes: ranks in different failure domains cover each other, so that a checkpoint survives the loss
//! of nodes without the global tier.
//!
//! [`code`] is the arithmetic: it determines which bytes are added up with which factors to make parity and to rebuild a lost member, and
//! knows neither ranks nor messages. [`domains`] says which nodes fail together, and [`placement`] which ranks cover each other.
//! [`stripes`] says which chunk of which shard goes into which sum, and which rank keeps the sum; [`part`] is the form in which sums are
//! kept. [`exchange`] is one rank's work for one checkpoint, and [`rebuild`] restores a lost shard.

pub mod code;
pub mod domains;
pub mod exchange;
pub mod holding;
pub mod part;
pub mod placement;
pub mod rebuild;
pub mod stripes;

use crate::base::Rank;
use crate::config::Scheme;
use exchange::Role;
use placement::place;

/// The role of one rank in each scheme that the configuration names. A scheme that would not survive the loss of even
/// one node on this machine is left out.
#[derive(Clone, Default, Debug)]
pub struct Protection {
    roles: Vec<(Scheme, Role)>,
    /// Requirements that could not be met, in plain sentences, the same on all ranks.
    pub notes: Vec<String>,
}

impl Protection {
    /// The roles of a rank: `nodes` gives the node of each rank, and `domains` the failure domain of each node.
    pub fn new(rank: Rank, nodes: &[u32], domains: &[u32], schemes: &[Scheme]) -> Protection {
        let mut protection = Protection::default();
        for scheme in schemes {
            let placement = place(nodes, domains, *scheme);
            let notes = placement.lost.iter().map(|lost| format!("{scheme}: {lost}"));
            protection.notes.extend(notes);
            if placement.tolerates_nodes == 0 {
                protection.notes.push(format!(
                    "{scheme}: would not survive the loss of a node here, so no checkpoint reaches level node-loss"
                ));
                continue;
            }
            let role = match placement.set_of(rank) {
                Some((_, members)) => Role::Set { members: members.to_vec(), parity: scheme.parity() },
                None => Role::Partners { to: placement.targets(rank).to_vec(), from: placement.sources(rank) },
            };
            protection.roles.push((*scheme, role));
        }
        protection
    }

    /// The schemes that protect something.
    pub fn schemes(&self) -> Vec<Scheme> {
        self.roles.iter().map(|(scheme, _)| *scheme).collect()
    }

    /// This rank's role, if the scheme protects anything.
    pub fn role(&self, scheme: Scheme) -> Option<&Role> {
        self.roles.iter().find(|(known, _)| *known == scheme).map(|(_, role)| role)
    }
}
