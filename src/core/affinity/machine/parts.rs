//! What a reader found, and how a machine is made from it: the part that all readers share. Pure.
#![forbid(unsafe_code)]

use super::{Cpu, Cpus, DEVICE_NODES_MAX, Machine, Node, PciDevice, PciKind};
use std::collections::{BTreeMap, BTreeSet};

/// A CPU as a reader found it. Cores, caches and packages are named by anything that tells them apart.
pub(super) struct CpuPart {
    pub number: u32,
    pub core: u64,
    pub cache: u64,
    pub package: u64,
    /// `None`: no node lists it.
    pub node: Option<u32>,
}

/// A PCI device, and the CPUs that are nearest to it.
pub(super) struct DevicePart {
    pub address: String,
    pub kind: PciKind,
    pub cpus: Cpus,
}

/// What a reader found.
#[derive(Default)]
pub(super) struct Parts {
    /// In logical order.
    pub cpus: Vec<CpuPart>,
    /// In any order; nodes that nothing else tells apart keep this order.
    pub nodes: Vec<Node>,
    /// By the numbers of the nodes.
    pub distances: BTreeMap<(u32, u32), u16>,
    pub devices: Vec<DevicePart>,
}

impl Parts {
    /// Counts and orders everything as [`Machine`] says.
    pub fn assemble(mut self) -> Machine {
        if self.nodes.is_empty() {
            return Machine::default();
        }
        let known: BTreeSet<u32> = self.nodes.iter().map(|node| node.number).collect();
        let fallback = self.nodes[0].number;
        let node_of = |part: &CpuPart| part.node.filter(|node| known.contains(node)).unwrap_or(fallback);
        let cores = count(self.cpus.iter().map(|part| part.core));
        let caches = count(self.cpus.iter().map(|part| part.cache));
        let packages = count(self.cpus.iter().map(|part| part.package));
        let cpus: Vec<Cpu> = (0..self.cpus.len())
            .map(|at| Cpu {
                number: self.cpus[at].number,
                core: cores[at],
                cache: caches[at],
                package: packages[at],
                node: node_of(&self.cpus[at]),
            })
            .collect();
        order(&mut self.nodes, &cpus, &self.distances);
        let pairs = self.nodes.iter().flat_map(|from| self.nodes.iter().map(|to| (from.number, to.number)));
        let distances: Option<Vec<u16>> = pairs.map(|pair| self.distances.get(&pair).copied()).collect();
        let mut devices: Vec<PciDevice> = self.devices.iter().map(|part| device(part, &cpus, &self.nodes)).collect();
        devices.sort_by(|a, b| a.address.cmp(&b.address));
        Machine { cpus, nodes: self.nodes, distances: distances.unwrap_or_default(), devices }
    }
}

/// Numbers for these, in the order in which they first appear.
fn count(of: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut seen = BTreeMap::new();
    of.map(|one| {
        let next = seen.len() as u32; // At most as many as there are CPUs.
        *seen.entry(one).or_insert(next)
    })
    .collect()
}

/// Sorts nodes: nodes with memory come first. Among these, nodes with CPUs come first, in the order of their first CPU; the
/// others follow in the order of the nodes with CPUs that are nearest to them.
fn order(nodes: &mut [Node], cpus: &[Cpu], distances: &BTreeMap<(u32, u32), u16>) {
    let mut first_cpu: BTreeMap<u32, usize> = BTreeMap::new();
    for (at, cpu) in cpus.iter().enumerate() {
        first_cpu.entry(cpu.node).or_insert(at);
    }
    let nearest = |node: u32| {
        let with_distance = first_cpu.iter().filter_map(|(to, at)| Some((distances.get(&(node, *to))?, *at)));
        with_distance.min().map_or(usize::MAX, |(_, at)| at)
    };
    nodes.sort_by_key(|node| {
        let own = first_cpu.get(&node.number);
        (node.bytes == 0, own.is_none(), own.copied().unwrap_or_else(|| nearest(node.number)))
    });
}

fn device(part: &DevicePart, cpus: &[Cpu], nodes: &[Node]) -> PciDevice {
    let near: BTreeSet<u32> =
        cpus.iter().filter(|cpu| part.cpus.contains(&(cpu.number as usize))).map(|cpu| cpu.node).collect();
    let nodes =
        nodes.iter().map(|node| node.number).filter(|node| near.contains(node)).take(DEVICE_NODES_MAX).collect();
    PciDevice { address: part.address.clone(), kind: part.kind, nodes }
}

/// What a PCI class code (base class and subclass) means here.
pub(super) fn kind(class: u16) -> Option<PciKind> {
    match class >> 8 {
        0x03 => Some(PciKind::Gpu),
        0x02 => Some(PciKind::Network),
        _ => None,
    }
}
