//! A machine as hwloc shows it: this one, one stored as XML, or one described in hwloc's short form.
#![forbid(unsafe_code)]

use super::parts::{CpuPart, DevicePart, Parts, kind};
use super::{Cpus, Machine, Node, sysfs};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Keeps PCI devices and their bridges. Devices of the operating system are left out: looking for them starts the drivers
/// of all GPUs.
fn builder() -> Result<TopologyBuilder, String> {
    let builder = Topology::builder().with_io_type_filter(TypeFilter::KeepImportant).map_err(in_words)?;
    let builder = builder.with_type_filter(ObjectType::OSDevice, TypeFilter::KeepNone).map_err(in_words)?;
    // A rank that is confined to some cores sees what the others see.
    builder.with_flags(BuildFlags::INCLUDE_DISALLOWED).map_err(in_words)
}

fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// This machine. `/sys` at `root` adds what hwloc does not show: nodes without memory, and distances to them.
///
/// # Errors
/// What hwloc says, in words; or that it was told by its environment (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`) to show another machine.
pub(super) fn here(root: &Path) -> Result<Machine, String> {
    let topology = builder()?.build().map_err(in_words)?;
    if !topology.is_this_system() {
        return Err("hwloc's environment variables describe another machine".to_owned());
    }
    let mut parts = parts(&topology);
    let (nodes, distances) = sysfs::nodes(root);
    for (node, cpus) in &nodes {
        // hwloc assigns the CPUs of a node without memory to the next best node; the kernel assigns them to this one.
        let own = parts.cpus.iter_mut().filter(|cpu| cpus.contains(&(cpu.number as usize)));
        own.for_each(|cpu| cpu.node = Some(node.number));
        if parts.nodes.iter().all(|known| known.number != node.number) {
            parts.nodes.push(*node);
        }
    }
    parts.nodes.sort_by_key(|node| node.number);
    if !distances.is_empty() {
        parts.distances = distances;
    }
    Ok(parts.assemble())
}

pub(super) fn from_xml(xml: &str) -> Result<Machine, String> {
    let builder = builder()?.from_xml(xml).map_err(in_words)?;
    Ok(parts(&builder.build().map_err(in_words)?).assemble())
}

pub(super) fn from_synthetic(description: &str) -> Result<Machine, String> {
    let builder = builder()?.from_synthetic(description).map_err(in_words)?;
    Ok(parts(&builder.build().map_err(in_words)?).assemble())
}

fn parts(topology: &Topology) -> Parts {
    let nodes: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    let near: Vec<(u32, Cpus)> = nodes.iter().filter_map(|node| Some((number(node)?, cpus(node)))).collect();
    let cpus = topology.objects_with_type(ObjectType::PU).filter_map(|cpu| one_cpu(cpu, &near)).collect();
    let nodes = nodes.iter().filter_map(|node| Some(Node { number: number(node)?, bytes: bytes(node) })).collect();
    Parts { cpus, nodes, distances: distances(topology), devices: devices(topology) }
}

fn one_cpu(cpu: &TopologyObject, nodes: &[(u32, Cpus)]) -> Option<CpuPart> {
    let own = number(cpu)?;
    let first = |object: Option<&TopologyObject>| object.and_then(|object| cpus(object).first().copied());
    let package = first(cpu.first_ancestor_with_type(ObjectType::Package));
    // Ancestors are listed from the bottom up.
    let cache = first(cpu.ancestors().filter(|object| object.object_type().is_cpu_data_cache()).last());
    let core = first(cpu.first_ancestor_with_type(ObjectType::Core));
    // If there are several nodes (in a package with two kinds of memory), the one that is near the fewest CPUs counts, and
    // of these the first: the kernel numbers ordinary memory before other kinds.
    let near = nodes.iter().filter(|(_, cpus)| cpus.contains(&(own as usize)));
    Some(CpuPart {
        number: own,
        core: core.unwrap_or(own as usize) as u64,
        cache: cache.or(package).unwrap_or(0) as u64,
        package: package.unwrap_or(0) as u64,
        node: near.min_by_key(|(number, cpus)| (cpus.len(), *number)).map(|(number, _)| *number),
    })
}

fn number(object: &TopologyObject) -> Option<u32> {
    object.os_index().and_then(|index| u32::try_from(index).ok())
}

fn cpus(object: &TopologyObject) -> Cpus {
    object.cpuset().map(|set| set.iter_set().map(usize::from).collect()).unwrap_or_default()
}

fn bytes(node: &TopologyObject) -> u64 {
    match node.attributes() {
        Some(ObjectAttributes::NUMANode(attributes)) => attributes.local_memory().map_or(0, u64::from),
        _ => 0,
    }
}

/// The firmware's distances between nodes; if there are several tables, those of the first that names all nodes.
fn distances(topology: &Topology) -> BTreeMap<(u32, u32), u16> {
    let count = topology.objects_with_type(ObjectType::NUMANode).count();
    for table in topology.distances(Some(DistancesKind::MEANS_LATENCY)).unwrap_or_default() {
        let nodes = table.objects().flatten().filter(|object| object.object_type() == ObjectType::NUMANode);
        let nodes: Vec<u32> = nodes.filter_map(number).collect();
        if nodes.len() != count || nodes.len() != table.num_objects() {
            continue;
        }
        let pairs = nodes.iter().flat_map(|from| nodes.iter().map(|to| (*from, *to)));
        let values = table.distances().iter().map(|value| u16::try_from(*value).unwrap_or(u16::MAX));
        return pairs.zip(values).collect();
    }
    BTreeMap::new()
}

fn devices(topology: &Topology) -> Vec<DevicePart> {
    let found = topology.pci_devices().filter_map(|object| {
        let Some(ObjectAttributes::PCIDevice(at)) = object.attributes() else { return None };
        let (domain, bus) = (at.domain(), at.bus_id());
        let address = format!("{domain:04x}:{bus:02x}:{:02x}.{:x}", at.bus_device(), at.function());
        let cpus = object.first_non_io_ancestor().map(cpus).unwrap_or_default();
        Some(DevicePart { address, kind: kind(at.class_id())?, cpus })
    });
    // hwloc lists a device once; a forged XML file may list it more often.
    let mut seen = BTreeSet::new();
    found.filter(|device| seen.insert(device.address.clone())).collect()
}
