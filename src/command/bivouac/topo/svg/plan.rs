//! What is drawn of one machine: packages with their nodes, caches and cores, the ranks on each CPU, and the memory of each rank on each
//! node. Pure, and without sizes.
#![forbid(unsafe_code)]

use super::super::gather::{Kind, Placed};
use super::super::hosts::{all_bytes_by_node, is_pinned, nodes_of_threads, of_application};
use crate::output;
use bivouac_core::affinity::cpus::Cpus;
use bivouac_core::affinity::machine::{Machine, Node, PciDevice, PciKind};
use bivouac_core::affinity::record::RegionPlace;
use bivouac_core::base::units::show_cpus;
use std::collections::{BTreeMap, BTreeSet};

/// A machine with ranks.
#[derive(Default)]
pub struct Plan {
    /// Packages in logical order.
    pub packages: Vec<Package>,
    /// Devices that are attached to nodes of several packages, or whose nodes are unknown.
    pub devices: Vec<Device>,
    /// The ranks that colours stand for.
    pub ranks: Vec<Rank>,
    /// The largest sum of bytes on a node, which a whole bar stands for. 0: there are no bars.
    pub bar_bytes: u64,
    /// What cannot be drawn, in words.
    pub notes: Vec<String>,
}

/// A rank.
pub struct Rank {
    /// The number of the rank, or that of the process.
    pub number: u32,
    /// Whether the number is that of a rank or of a process.
    pub kind: Kind,
    /// How many of its application's threads are pinned, and how many there are.
    pub pinned: usize,
    /// See `pinned`.
    pub threads: usize,
    /// Bytes of its regions in host memory whose node is known.
    pub bytes: u64,
}

/// A package, or the parts that belong to no package.
#[derive(Default)]
pub struct Package {
    /// Its number; without one, these are the parts that belong to no package.
    pub number: Option<u32>,
    /// What it is called.
    pub title: String,
    /// In logical order.
    pub nodes: Vec<NodePlan>,
    /// Devices that are attached to several of its nodes.
    pub devices: Vec<Device>,
}

/// A NUMA node.
#[derive(Default)]
pub struct NodePlan {
    /// Its number.
    pub number: u32,
    /// What it is called.
    pub title: String,
    /// The machine has no such node, but a record names it.
    pub is_foreign: bool,
    /// Its caches, or parts of them, with their cores; a core is the list of its CPUs.
    pub caches: Vec<(u32, Vec<Vec<Cpu>>)>,
    /// The ranks that have memory there.
    pub memory: Vec<Part>,
    /// The devices that are attached to it.
    pub devices: Vec<Device>,
}

/// A CPU.
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// The ranks with pinned threads that may run there, as ascending indices of the list.
    pub ranks: Vec<usize>,
    /// Was it given to a job of one of the ranks? Without ranks, all CPUs count as given.
    pub is_given: bool,
}

/// The memory of one rank on a node.
pub struct Part {
    /// The index of the rank in the list.
    pub rank: usize,
    /// Bytes.
    pub bytes: u64,
    /// No thread of the rank may run on the node.
    pub is_orphan: bool,
}

/// A GPU or a network card.
pub struct Device {
    /// What it is called.
    pub label: String,
    /// What it is.
    pub kind: PciKind,
    /// The ranks that have regions there, as indices of the list.
    pub ranks: Vec<usize>,
}

/// The ranks that are on each CPU.
type Ranks = BTreeMap<usize, Vec<usize>>;

/// Makes the plan of a machine with these ranks.
pub fn plan(machine: &Machine, ranks: &[&Placed]) -> Plan {
    let on_cpus = ranks_of_cpus(ranks);
    let given: Cpus = ranks.iter().flat_map(|placed| &placed.record.given).copied().collect();
    let memory = memory_of_nodes(ranks);
    let mut plan = Plan { ranks: ranks.iter().map(|placed| rank(placed)).collect(), ..Plan::default() };
    let homes = homes(machine);
    let packages: BTreeSet<Option<u32>> = machine.nodes.iter().map(|node| homes.get(&node.number).copied()).collect();
    for package in packages.iter().filter(|package| package.is_some()).chain(packages.get(&None)) {
        let title = package.map_or("nodes without CPUs".to_owned(), |number| format!("package {number}"));
        let own = machine.nodes.iter().filter(|node| homes.get(&node.number).copied() == *package);
        let nodes = own.map(|node| of_node(machine, *node, &on_cpus, &given, ranks.is_empty()));
        plan.packages.push(Package { number: *package, title, nodes: nodes.collect(), devices: Vec::new() });
    }
    add_memory(&mut plan, memory);
    for device in &machine.devices {
        add_device(&mut plan, &homes, device, ranks);
    }
    plan.notes.extend(strays(machine, ranks, &on_cpus));
    plan
}

fn rank(placed: &Placed) -> Rank {
    let known = all_bytes_by_node(placed).into_iter().filter(|(node, _)| node.is_some());
    Rank {
        number: placed.number,
        kind: placed.kind(),
        pinned: of_application(placed).filter(|thread| is_pinned(placed, thread)).count(),
        threads: of_application(placed).count(),
        bytes: known.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes)),
    }
}

fn ranks_of_cpus(ranks: &[&Placed]) -> Ranks {
    let mut on_cpus = Ranks::new();
    for (place, placed) in ranks.iter().enumerate() {
        let pinned = of_application(placed).filter(|thread| is_pinned(placed, thread));
        let cpus: Cpus = pinned.flat_map(|thread| &thread.cpus).copied().collect();
        cpus.into_iter().for_each(|cpu| on_cpus.entry(cpu).or_default().push(place));
    }
    on_cpus
}

fn memory_of_nodes(ranks: &[&Placed]) -> BTreeMap<u32, Vec<Part>> {
    let mut memory: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
    for (rank, placed) in ranks.iter().enumerate() {
        let own = nodes_of_threads(placed);
        for (node, bytes) in all_bytes_by_node(placed) {
            if let Some(node) = node {
                let part = Part { rank, bytes, is_orphan: !own.contains(&node) };
                memory.entry(node).or_default().push(part);
            }
        }
    }
    memory
}

/// The package of each node: that of its first CPU, or of the nearest node that has CPUs.
fn homes(machine: &Machine) -> BTreeMap<u32, u32> {
    let mut homes: BTreeMap<u32, u32> = BTreeMap::new();
    for cpu in &machine.cpus {
        homes.entry(cpu.node).or_insert(cpu.package);
    }
    let with_cpus = homes.clone();
    for node in machine.nodes.iter().filter(|node| !with_cpus.contains_key(&node.number)) {
        let near = with_cpus.iter().filter_map(|(other, package)| {
            Some((machine.distance(node.number, *other)?, machine.node_position(*other)?, *package))
        });
        if let Some((_, _, package)) = near.min() {
            homes.insert(node.number, package);
        }
    }
    homes
}

fn of_node(machine: &Machine, node: Node, on_cpus: &Ranks, given: &Cpus, is_empty: bool) -> NodePlan {
    let memory = if node.bytes == 0 { "no memory".to_owned() } else { output::bytes(node.bytes) };
    let own: Vec<_> = machine.cpus.iter().filter(|cpu| cpu.node == node.number).collect();
    let plain = |number: u32| Cpu {
        number,
        ranks: on_cpus.get(&(number as usize)).cloned().unwrap_or_default(),
        is_given: is_empty || given.contains(&(number as usize)),
    };
    let core = |cpus: &[&bivouac_core::affinity::machine::Cpu]| cpus.iter().map(|cpu| plain(cpu.number)).collect();
    let caches = own
        .chunk_by(|a, b| a.cache == b.cache)
        .map(|cache| (cache[0].cache, cache.chunk_by(|a, b| a.core == b.core).map(core).collect::<Vec<Vec<Cpu>>>()));
    let (number, title) = (node.number, format!("node {} · {memory}", node.number));
    NodePlan { number, title, caches: caches.collect(), ..NodePlan::default() }
}

fn add_memory(plan: &mut Plan, mut memory: BTreeMap<u32, Vec<Part>>) {
    let sum = |parts: &Vec<Part>| parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
    plan.bar_bytes = memory.values().map(sum).max().unwrap_or(0);
    for node in plan.packages.iter_mut().flat_map(|package| &mut package.nodes) {
        node.memory = memory.remove(&node.number).unwrap_or_default();
    }
    let foreign = memory.into_iter().map(|(number, memory)| {
        let title = format!("node {number} · not on this machine");
        NodePlan { number, title, is_foreign: true, memory, ..NodePlan::default() }
    });
    let nodes: Vec<NodePlan> = foreign.collect();
    if !nodes.is_empty() {
        let title = "nodes that only a record names".to_owned();
        plan.packages.push(Package { number: None, title, nodes, devices: Vec::new() });
    }
}

/// A device is drawn at its node, in its package if it is attached to several nodes of the package, and otherwise
/// outside all packages.
fn add_device(plan: &mut Plan, homes: &BTreeMap<u32, u32>, device: &PciDevice, ranks: &[&Placed]) {
    let has = |placed: &&Placed| {
        placed.record.regions.iter().any(|(_, place)| match place {
            RegionPlace::Device(address) => address.eq_ignore_ascii_case(&device.address),
            RegionPlace::Host { .. } => false,
        })
    };
    let own = (0..ranks.len()).filter(|place| has(&ranks[*place])).collect();
    let kind = if device.kind == PciKind::Gpu { "GPU" } else { "NIC" };
    let address = device.address.strip_prefix("0000:").unwrap_or(&device.address);
    let drawn = Device { label: format!("{kind} {}", output::plain(address)), kind: device.kind, ranks: own };
    let mut packages = device.nodes.iter().map(|node| homes.get(node).copied());
    let first = packages.next().flatten().filter(|first| packages.all(|other| other == Some(*first)));
    let package = plan.packages.iter_mut().find(|package| first.is_some() && package.number == first);
    let devices = match (package, device.nodes.as_slice()) {
        (Some(package), [node]) => match package.nodes.iter_mut().find(|own| own.number == *node) {
            Some(node) => &mut node.devices,
            None => &mut package.devices,
        },
        (Some(package), _) => &mut package.devices,
        (None, _) => &mut plan.devices,
    };
    devices.push(drawn);
}

/// What the records name but the machine does not have, and pages whose place is unknown.
fn strays(machine: &Machine, ranks: &[&Placed], on_cpus: &Ranks) -> Vec<String> {
    let all = machine.all_cpus();
    let cpus: Cpus = on_cpus.keys().copied().filter(|cpu| !all.contains(cpu)).collect();
    let mut notes = Vec::new();
    if !cpus.is_empty() {
        notes.push(format!("threads are pinned to CPUs that the machine does not have: {}", show_cpus(&cpus)));
    }
    let gpus: BTreeSet<&str> = ranks
        .iter()
        .flat_map(|placed| &placed.record.regions)
        .filter_map(|(_, place)| match place {
            RegionPlace::Device(address) if machine.device(address).is_none() => Some(address.as_str()),
            _ => None,
        })
        .collect();
    if !gpus.is_empty() {
        let list = gpus.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!("regions are on GPUs that the machine does not have: {list}"));
    }
    let unknown = ranks.iter().filter_map(|placed| all_bytes_by_node(placed).remove(&None));
    let unknown = unknown.fold(0u64, u64::saturating_add);
    if unknown > 0 {
        notes.push(format!("{} of regions are on no known node", output::bytes(unknown)));
    }
    notes
}
