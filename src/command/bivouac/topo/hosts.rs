//! Which ranks were on which machine, and what the drawing and the tables need to know about each. Pure.
#![forbid(unsafe_code)]

use super::gather::{Placed, Snapshot};
use bivouac_core::affinity::cpus::Cpus;
use bivouac_core::affinity::machine::Machine;
use bivouac_core::affinity::pages::PAGE_BYTES;
use bivouac_core::affinity::record::{RegionPlace, Role, ThreadPlace};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks that ran on the same host: their machines are equal, and they name the same neighbours.
pub struct Host<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The index of that machine among the different machines of the snapshot.
    pub kind: usize,
    /// Its ranks for which there are records.
    pub ranks: Vec<&'a Placed>,
}

impl Host<'_> {
    /// Its ranks or processes in words: `ranks 0-3`.
    pub fn who(&self) -> String {
        let kind = self.ranks.first().map(|placed| placed.kind()).unwrap_or_default();
        kind.list(&self.ranks.iter().map(|placed| placed.number).collect::<Vec<_>>())
    }
}

/// The hosts of a snapshot in the order of their first ranks.
pub fn hosts(snapshot: &Snapshot) -> Vec<Host<'_>> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut machines: Vec<&Machine> = Vec::new();
    for placed in &snapshot.ranks {
        let record = &placed.record;
        let kind = machines.iter().position(|machine| **machine == record.machine).unwrap_or_else(|| {
            machines.push(&record.machine);
            machines.len() - 1
        });
        let is_here = |host: &&mut Host| {
            host.kind == kind && host.ranks.first().is_some_and(|first| first.record.neighbours == record.neighbours)
        };
        match hosts.iter_mut().find(is_here) {
            Some(host) => host.ranks.push(placed),
            None => hosts.push(Host { machine: &record.machine, kind, ranks: vec![placed] }),
        }
    }
    hosts
}

/// Was the thread pinned? A thread that may use all CPUs that its job was given is not pinned.
pub fn is_pinned(placed: &Placed, thread: &ThreadPlace) -> bool {
    thread.cpus != placed.record.given
}

/// The threads of the application.
pub fn of_application(placed: &Placed) -> impl Iterator<Item = &ThreadPlace> {
    placed.record.threads.iter().filter(|thread| thread.role != Role::Bivouac)
}

/// The nodes that a thread of the application may run on.
pub fn nodes_of_threads(placed: &Placed) -> BTreeSet<u32> {
    let cpus: Cpus = of_application(placed).flat_map(|thread| &thread.cpus).copied().collect();
    let own = placed.record.machine.cpus.iter().filter(|cpu| cpus.contains(&(cpu.number as usize)));
    own.map(|cpu| cpu.node).collect()
}

/// The bytes of a place in host memory, by node; `None` stands for an unknown node.
pub fn bytes_by_node(place: &RegionPlace) -> BTreeMap<Option<u32>, u64> {
    match place {
        RegionPlace::Host { pages, .. } => {
            pages.counts().into_iter().map(|(node, pages)| (node, pages.saturating_mul(PAGE_BYTES))).collect()
        }
        RegionPlace::Device(_) => BTreeMap::new(),
    }
}

/// The bytes of all regions of a rank in host memory, by node; `None` stands for an unknown node.
pub fn all_bytes_by_node(placed: &Placed) -> BTreeMap<Option<u32>, u64> {
    let mut all: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for (node, bytes) in placed.record.regions.iter().flat_map(|(_, place)| bytes_by_node(place)) {
        let sum = all.entry(node).or_default();
        *sum = sum.saturating_add(bytes);
    }
    all
}

/// The numbers of packages, last-level caches and cores of a machine.
pub fn counts(machine: &Machine) -> [usize; 3] {
    let count = |of: fn(&bivouac_core::affinity::machine::Cpu) -> u32| {
        machine.cpus.iter().map(of).max().map_or(0, |last| last as usize + 1)
    };
    [count(|cpu| cpu.package), count(|cpu| cpu.cache), count(|cpu| cpu.core)]
}

/// A machine in a few words.
pub fn summary(machine: &Machine) -> String {
    if machine.cpus.is_empty() && machine.nodes.is_empty() {
        return "nothing is known about it".to_owned();
    }
    let some = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let [packages, caches, cores] = counts(machine);
    let memory = machine.nodes.iter().fold(0u64, |sum, node| sum.saturating_add(node.bytes));
    let parts = [
        some(packages, "package"),
        some(machine.nodes.len(), "NUMA node"),
        some(caches, "last-level cache"),
        some(cores, "core"),
        some(machine.cpus.len(), "CPU"),
        crate::output::bytes(memory),
    ];
    parts.join(", ")
}
