//! What a mapping could not keep.
#![forbid(unsafe_code)]

use super::{Decision, Rule, Target};
use crate::affinity::cpus::Cpus;
use crate::affinity::machine::{Cpu, Likeness, Machine};
use crate::base::units::show_cpus;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something that could not be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The record does not say on which machine it was taken, or nothing is known about this one.
    MachineUnknown,
    /// The user names CPUs for the restart, and none of them is allowed: the list was not used.
    ListNotAllowed,
    /// The ranks of this node are not the same as then, or not all old CPUs have a counterpart:
    /// every rank took its share.
    Shares {
        /// Ranks of the node then.
        then: usize,
        /// And now.
        now: usize,
    },
    /// A different number of ranks took the checkpoint: threads and pages were left where they are.
    Resized {
        /// How many ranks took it.
        then: u32,
        /// How many there are.
        now: u32,
    },
    /// Other processes of the node may have the same CPUs, and nothing says which: threads were left where they are.
    Strangers,
    /// The threads were bound to the first of these sets when the restart began, and have the second now.
    Rebound(Cpus, Cpus),
    /// These CPUs, which the threads had, are not allowed now.
    NotAllowed(Cpus),
    /// The threads have fewer CPUs than they had.
    FewerCpus {
        /// How many they had.
        then: usize,
        /// How many they have.
        now: usize,
    },
    /// Threads that shared a node are now on several.
    NodeSplit {
        /// The old node.
        node: u32,
        /// The new ones.
        over: Vec<u32>,
    },
    /// The number of last-level caches whose threads are now spread over several caches.
    CachesSplit(usize),
    /// The number of cores that now have threads which were on different cores.
    CoresShared(usize),
    /// Pages were on a node where no thread of this rank ran, and that node has no counterpart or no memory.
    NodeGone {
        /// The old node.
        node: u32,
        /// Where its pages go.
        to: Target,
    },
    /// Threads of this rank were near a GPU of this rank, and none of them is now.
    GpuFar,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::MachineUnknown => write!(f, "the machine is not known"),
            Loss::ListNotAllowed => write!(f, "no CPU that was named for the restart is allowed"),
            Loss::Shares { then, now } if then == now => {
                write!(f, "each of the {now} ranks of the node took its share")
            }
            Loss::Shares { then, now } => {
                write!(f, "{then} ranks were on the node and now {now} are: each took its share")
            }
            Loss::Resized { then, now } => write!(
                f,
                "{then} ranks took the checkpoint and {now} restore it: what was recorded belongs to other ranks, and threads and memory stay \
                 where they are"
            ),
            Loss::Strangers => write!(
                f,
                "processes on the node that are not ranks of this group may use the same CPUs: threads stay where they are"
            ),
            Loss::Rebound(then, now) => {
                write!(f, "threads were bound to CPUs {} and are now on {}", show_cpus(then), show_cpus(now))
            }
            Loss::NotAllowed(cpus) => {
                write!(f, "no longer allowed: CPUs")?;
                cpus.iter().take(16).try_for_each(|cpu| write!(f, " {cpu}"))?;
                if cpus.len() > 16 { write!(f, " and {} more", cpus.len() - 16) } else { Ok(()) }
            }
            Loss::FewerCpus { then, now } => write!(f, "{now} CPUs for threads that had {then}"),
            Loss::NodeSplit { node, over } => write!(f, "threads of node {node} are on nodes {over:?}"),
            Loss::CachesSplit(count) => write!(f, "threads of {count} caches no longer share one"),
            Loss::CoresShared(count) => write!(f, "{count} cores are shared by threads that had different ones"),
            Loss::NodeGone { node, to: Target::Node(to) } => write!(f, "pages of node {node} go to node {to}"),
            Loss::NodeGone { node, to: Target::Spread(nodes) } => {
                write!(f, "pages of node {node} are spread over nodes {nodes:?}")
            }
            Loss::GpuFar => write!(f, "threads that were near their GPU no longer are"),
        }
    }
}

/// All losses of a decision.
pub(super) fn of(decision: &Decision<'_>, targets: &BTreeMap<u32, Target>) -> Vec<Loss> {
    let (old, now) = (&decision.record.machine, decision.now);
    let mut losses = Vec::new();
    if old.cpus.is_empty() || now.machine.cpus.is_empty() {
        losses.push(Loss::MachineUnknown);
    }
    if decision.rule == Rule::Left {
        losses.extend((!decision.used.is_empty()).then_some(Loss::Strangers));
    } else if now.cpus.is_some() && decision.rule != Rule::Named {
        losses.push(Loss::ListNotAllowed);
    }
    if decision.rule == Rule::Shares && !decision.used.is_empty() {
        losses.push(Loss::Shares { then: decision.record.neighbours.len(), now: now.neighbours.len() });
    }
    if decision.rule != Rule::Left {
        of_cpus(decision, &mut losses);
    }
    let with_pages = decision.nodes_with_pages();
    let own: BTreeSet<u32> = decision.used.iter().map(|at| old.cpus[*at].node).collect();
    for (node, target) in targets.iter().filter(|(node, _)| with_pages.contains(node) && !own.contains(node)) {
        let counterpart = match (decision.likeness, old.node_position(*node)) {
            (Likeness::Renumbered, Some(at)) => now.machine.nodes.get(at).map(|node| node.number),
            _ => Some(*node),
        };
        if Some(target) != counterpart.map(Target::Node).as_ref() {
            losses.push(Loss::NodeGone { node: *node, to: target.clone() });
        }
    }
    losses
}

fn of_cpus(decision: &Decision<'_>, losses: &mut Vec<Loss>) {
    let (old, new): (&Machine, &Machine) = (&decision.record.machine, decision.now.machine);
    let pairs: Vec<(&Cpu, &Cpu)> =
        decision.used.iter().filter_map(|at| Some((&old.cpus[*at], &new.cpus[*decision.images.get(at)?]))).collect();
    if decision.likeness == Likeness::Same {
        let numbers = decision.used.iter().map(|at| old.cpus[*at].number as usize);
        let missing: Cpus = numbers.filter(|cpu| !decision.now.allowed.contains(cpu)).collect();
        if !missing.is_empty() {
            losses.push(Loss::NotAllowed(missing));
        }
    }
    let images: BTreeSet<u32> = pairs.iter().map(|(_, to)| to.number).collect();
    if images.len() < decision.used.len() {
        losses.push(Loss::FewerCpus { then: decision.used.len(), now: images.len() });
    }
    let nodes = spread(pairs.iter().map(|(from, to)| (from.node, to.node)));
    losses.extend(nodes.map(|(node, over)| Loss::NodeSplit { node, over: over.into_iter().collect() }));
    let caches = spread(pairs.iter().map(|(from, to)| (from.cache, to.cache))).count();
    if caches > 0 {
        losses.push(Loss::CachesSplit(caches));
    }
    let cores = spread(pairs.iter().map(|(from, to)| (to.core, from.core))).count();
    if cores > 0 {
        losses.push(Loss::CoresShared(cores));
    }
    let gpus = decision.own_gpus();
    let was_near = pairs.iter().any(|(from, _)| gpus.old.contains(&from.node));
    if was_near && !gpus.new.is_empty() && !pairs.iter().any(|(_, to)| gpus.new.contains(&to.node)) {
        losses.push(Loss::GpuFar);
    }
}

/// Those first numbers that occur with more than one second number, with all their second numbers.
fn spread(pairs: impl Iterator<Item = (u32, u32)>) -> impl Iterator<Item = (u32, BTreeSet<u32>)> {
    let mut found: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (from, to) in pairs {
        found.entry(from).or_default().insert(to);
    }
    found.into_iter().filter(|(_, to)| to.len() > 1)
}
