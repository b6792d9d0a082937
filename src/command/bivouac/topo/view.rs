//! The document of `topo --json`.
#![forbid(unsafe_code)]

use super::compare::{Comparison, MaskDifference, RankDifference};
use super::gather::{Placed, Snapshot};
use super::hosts::{bytes_by_node, hosts, is_pinned};
use crate::ending::Problems;
use crate::output::SCHEMA;
use bivouac_core::affinity::machine::{Cpu, Likeness, Machine, PciKind};
use bivouac_core::affinity::record::{RegionPlace, Role};
use bivouac_core::base::units::show_cpus;
use serde::Serialize;

/// The whole document.
#[derive(Serialize)]
pub struct Document<'a> {
    schema: u32,
    command: &'static str,
    /// This machine, if the user named nothing else.
    machine: Option<MachineView<'a>>,
    snapshots: Vec<SnapshotView<'a>>,
    comparison: Option<ComparisonView<'a>>,
    problems: &'a Problems,
}

/// A machine. Sets of CPUs are text everywhere, as the kernel writes them: `0-3,8`.
#[derive(Serialize)]
struct MachineView<'a> {
    /// The CPUs in logical order, as the nodes are.
    cpus: &'a [Cpu],
    nodes: Vec<NodeView>,
    devices: Vec<DeviceView<'a>>,
}

#[derive(Serialize)]
struct NodeView {
    number: u32,
    bytes: u64,
    cpus: String,
    /// The distance to each node, in the order of the list; empty if the distances are not known.
    distances: Vec<u16>,
}

#[derive(Serialize)]
struct DeviceView<'a> {
    address: &'a str,
    /// `gpu` or `network`.
    kind: &'static str,
    nodes: &'a [u32],
}

/// A checkpoint, or live processes.
#[derive(Serialize)]
struct SnapshotView<'a> {
    title: &'a str,
    path: Option<&'a str>,
    job: Option<&'a str>,
    group: Option<&'a str>,
    name: Option<&'a str>,
    generation: Option<u64>,
    version: Option<u64>,
    operation: Option<u64>,
    group_size: Option<u32>,
    /// The different machines.
    machines: Vec<MachineView<'a>>,
    ranks: Vec<RankView<'a>>,
    /// The ranks without a record.
    without: Vec<u32>,
}

#[derive(Serialize)]
struct RankView<'a> {
    rank: u32,
    /// The number of the process, if one was examined.
    process: Option<u32>,
    /// The index of its machine in the list.
    machine: usize,
    /// The ranks that ran on the same host.
    neighbours: &'a [u32],
    /// The CPUs that its job was given.
    given: String,
    threads: Vec<ThreadView<'a>>,
    /// The system's number of the NUMA policy, and its nodes.
    policy_mode: u32,
    policy_nodes: &'a [u32],
    regions: Vec<RegionView<'a>>,
}

#[derive(Serialize)]
struct ThreadView<'a> {
    role: &'static str,
    name: &'a str,
    order: u32,
    cpus: String,
    pinned: bool,
}

/// A region: in host memory (`nodes`, `unknown_bytes`, `age_ms`, `exact`), or on a GPU (`gpu`).
#[derive(Serialize)]
struct RegionView<'a> {
    name: &'a str,
    bytes: Option<u64>,
    gpu: Option<&'a str>,
    nodes: Vec<NodeBytes>,
    unknown_bytes: u64,
    age_ms: Option<u64>,
    /// Was every page asked for? Otherwise, only one in several pages was.
    exact: Option<bool>,
}

/// Bytes of whole pages on a node.
#[derive(Serialize)]
struct NodeBytes {
    node: u32,
    bytes: u64,
}

/// How two snapshots differ.
#[derive(Serialize)]
struct ComparisonView<'a> {
    alike: bool,
    ranks: Vec<RankDifferenceView<'a>>,
    only_first: &'a [u32],
    only_second: &'a [u32],
}

#[derive(Serialize)]
struct RankDifferenceView<'a> {
    rank: u32,
    alike: bool,
    /// `same`, `renumbered` or `other`.
    machine: &'static str,
    threads: usize,
    masks: Vec<MaskView<'a>>,
    regions: Vec<RegionDifferenceView<'a>>,
}

#[derive(Serialize)]
struct MaskView<'a> {
    role: &'static str,
    name: &'a str,
    order: u32,
    /// `None` where the thread did not exist.
    first: Option<String>,
    second: Option<String>,
}

#[derive(Serialize)]
struct RegionDifferenceView<'a> {
    name: &'a str,
    pages: u64,
    elsewhere: u64,
    unknown: u64,
    other: Option<&'a str>,
}

/// The word for a thread's role.
pub fn role(role: Role) -> &'static str {
    match role {
        Role::Main => "main",
        Role::Other => "other",
        Role::Bivouac => "bivouac",
    }
}

/// The word for how much alike two machines are.
pub fn likeness(likeness: Likeness) -> &'static str {
    match likeness {
        Likeness::Same => "same",
        Likeness::Renumbered => "renumbered",
        Likeness::Other => "other",
    }
}

/// Makes the document.
pub fn document<'a>(
    here: Option<&'a Machine>,
    snapshots: &'a [Snapshot],
    comparison: Option<&'a Comparison>,
    problems: &'a Problems,
) -> Document<'a> {
    Document {
        schema: SCHEMA,
        command: "topo",
        machine: here.map(machine),
        snapshots: snapshots.iter().map(snapshot).collect(),
        comparison: comparison.map(comparison_view),
        problems,
    }
}

fn machine<'a>(machine: &'a Machine) -> MachineView<'a> {
    let count = machine.nodes.len();
    let node = |(at, node): (usize, &bivouac_core::affinity::machine::Node)| NodeView {
        number: node.number,
        bytes: node.bytes,
        cpus: show_cpus(&machine.cpus_of_node(node.number)),
        distances: machine.distances.get(at * count..(at + 1) * count).unwrap_or_default().to_vec(),
    };
    let device = |device: &'a bivouac_core::affinity::machine::PciDevice| DeviceView {
        address: &device.address,
        kind: if device.kind == PciKind::Gpu { "gpu" } else { "network" },
        nodes: &device.nodes,
    };
    MachineView {
        cpus: &machine.cpus,
        nodes: machine.nodes.iter().enumerate().map(node).collect(),
        devices: machine.devices.iter().map(device).collect(),
    }
}

fn snapshot(snapshot: &Snapshot) -> SnapshotView<'_> {
    let hosts = hosts(snapshot);
    let part = |at: usize| snapshot.series.as_ref().map(|series| series[at].as_str());
    let kind_of = |placed: &Placed| {
        let is_here = |host: &&super::hosts::Host| host.ranks.iter().any(|own| own.number == placed.number);
        hosts.iter().find(is_here).map_or(0, |host| host.kind)
    };
    let kinds = hosts.iter().map(|host| host.kind + 1).max().unwrap_or(0);
    let first_of = |kind: usize| hosts.iter().find(|host| host.kind == kind).map(|host| machine(host.machine));
    SnapshotView {
        title: &snapshot.title,
        path: snapshot.path.as_deref(),
        job: part(0),
        group: part(1),
        name: part(2),
        generation: snapshot.key.map(|key| key.generation.0),
        version: snapshot.key.map(|key| key.version),
        operation: snapshot.key.map(|key| key.operation),
        group_size: snapshot.group_size,
        machines: (0..kinds).filter_map(first_of).collect(),
        ranks: snapshot.ranks.iter().map(|placed| rank(placed, kind_of(placed))).collect(),
        without: snapshot.without.iter().copied().collect(),
    }
}

fn rank<'a>(placed: &'a Placed, machine: usize) -> RankView<'a> {
    let record = &placed.record;
    let thread = |thread: &'a bivouac_core::affinity::record::ThreadPlace| ThreadView {
        role: role(thread.role),
        name: &thread.name,
        order: thread.order,
        cpus: show_cpus(&thread.cpus),
        pinned: is_pinned(placed, thread),
    };
    RankView {
        rank: placed.number,
        process: placed.process,
        machine,
        neighbours: &record.neighbours,
        given: show_cpus(&record.given),
        threads: record.threads.iter().map(thread).collect(),
        policy_mode: record.policy.mode,
        policy_nodes: &record.policy.nodes,
        regions: record.regions.iter().map(|(name, place)| region(name, place, placed)).collect(),
    }
}

fn region<'a>(name: &'a str, place: &'a RegionPlace, placed: &Placed) -> RegionView<'a> {
    let counts = bytes_by_node(place);
    let known = counts.iter().filter_map(|(node, bytes)| Some(NodeBytes { node: (*node)?, bytes: *bytes }));
    let (gpu, age_ms, exact) = match place {
        RegionPlace::Host { age_ms, is_whole, .. } => (None, Some(*age_ms), Some(*is_whole)),
        RegionPlace::Device(address) => (Some(address.as_str()), None, None),
    };
    let unknown_bytes = counts.get(&None).copied().unwrap_or(0);
    let bytes = placed.bytes.get(name).copied();
    RegionView { name, bytes, gpu, nodes: known.collect(), unknown_bytes, age_ms, exact }
}

fn comparison_view(comparison: &Comparison) -> ComparisonView<'_> {
    let [only_first, only_second] = &comparison.alone;
    let ranks = comparison.ranks.iter().map(rank_difference).collect();
    ComparisonView { alike: comparison.is_alike(), ranks, only_first, only_second }
}

fn rank_difference<'a>(rank: &'a RankDifference) -> RankDifferenceView<'a> {
    let mask = |mask: &'a MaskDifference| {
        let [first, second] = [0, 1].map(|at: usize| mask.cpus[at].as_ref().map(show_cpus));
        MaskView { role: role(mask.thread.0), name: &mask.thread.1, order: mask.thread.2, first, second }
    };
    let region = |region: &'a super::compare::RegionDifference| RegionDifferenceView {
        name: &region.name,
        pages: region.pages,
        elsewhere: region.elsewhere,
        unknown: region.unknown,
        other: region.other.as_deref(),
    };
    RankDifferenceView {
        rank: rank.rank,
        alike: rank.is_alike(),
        machine: likeness(rank.machine),
        threads: rank.threads,
        masks: rank.masks.iter().map(mask).collect(),
        regions: rank.regions.iter().map(region).collect(),
    }
}
