//! A machine as `/sys` of Linux shows it: for builds without hwloc, and for what hwloc does not show.
#![forbid(unsafe_code)]

use super::parts::{CpuPart, DevicePart, Parts, kind};
use super::{Cpus, NODES_MAX, Node};
use crate::base::units::parse_cpus as parse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All that `/sys` at `root` says; `None` if it does not even list the CPUs.
pub(super) fn read(root: &Path) -> Option<Parts> {
    let (nodes, distances) = nodes(root);
    let online = list(&root.join("devices/system/cpu/online")).filter(|cpus| !cpus.is_empty())?;
    let mut cpus: Vec<(Vec<usize>, CpuPart)> = online.iter().map(|cpu| one_cpu(root, *cpu, &online, &nodes)).collect();
    cpus.sort_by(|a, b| a.0.cmp(&b.0));
    let cpus = cpus.into_iter().map(|(_, part)| part).collect();
    let mut found: Vec<Node> = nodes.iter().map(|(node, _)| *node).collect();
    if found.is_empty() {
        // A kernel without NUMA has one node, with all of the memory.
        let bytes = std::fs::read_to_string("/proc/meminfo").map_or(0, |text| total(&text));
        found.push(Node { number: 0, bytes });
    }
    Some(Parts { cpus, nodes: found, distances, devices: devices(root) })
}

/// Distances by the numbers of two nodes.
type Distances = BTreeMap<(u32, u32), u16>;

/// Nodes by number with their CPUs, and the distances between them; nothing on a kernel without NUMA.
pub(super) fn nodes(root: &Path) -> (Vec<(Node, Cpus)>, Distances) {
    let folder = root.join("devices/system/node");
    let numbers: Vec<u32> = list(&folder.join("online"))
        .unwrap_or_default()
        .into_iter()
        .filter(|number| *number < NODES_MAX)
        .map(|number| number as u32)
        .collect();
    let (mut nodes, mut distances) = (Vec::new(), BTreeMap::new());
    for number in &numbers {
        let folder = folder.join(format!("node{number}"));
        let Some(meminfo) = text(&folder.join("meminfo")) else { continue };
        let cpus = list(&folder.join("cpulist")).unwrap_or_default();
        nodes.push((Node { number: *number, bytes: total(&meminfo) }, cpus));
        let row = text(&folder.join("distance")).unwrap_or_default();
        // The columns are the nodes that are online.
        let row = numbers.iter().zip(row.split_whitespace());
        distances.extend(row.filter_map(|(to, distance)| Some(((*number, *to), distance.parse().ok()?))));
    }
    (nodes, distances)
}

/// A CPU, and where it is in the logical order.
///
/// The sets of CPUs that share something with it are nested. From the largest to the smallest, each named by its first
/// CPU, they form a path from the root of a tree to the CPU, and the order of the paths is the order of hwloc.
fn one_cpu(root: &Path, cpu: usize, online: &Cpus, nodes: &[(Node, Cpus)]) -> (Vec<usize>, CpuPart) {
    let folder = root.join(format!("devices/system/cpu/cpu{cpu}"));
    let shared = |names: &[&str]| {
        let listed = names.iter().find_map(|name| list(&folder.join("topology").join(name)));
        listed.map(|cpus| &cpus & online).filter(|cpus| cpus.contains(&cpu))
    };
    let core = shared(&["core_cpus_list", "thread_siblings_list"]);
    let package = shared(&["package_cpus_list", "core_siblings_list"]);
    let caches = caches(&folder, cpu, online);
    let own = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
    let last = caches.last().cloned().or_else(|| package.clone());
    let first = |set: &Option<Cpus>, or: usize| set.as_ref().and_then(Cpus::first).copied().unwrap_or(or) as u64;
    let part = CpuPart {
        number: u32::try_from(cpu).unwrap_or(u32::MAX),
        core: first(&core, cpu),
        cache: first(&last, 0),
        package: first(&package, 0),
        node: own.map(|(node, _)| node.number),
    };
    let mut sets: Vec<Cpus> = caches;
    sets.extend([package, shared(&["die_cpus_list"]), shared(&["cluster_cpus_list"]), core].into_iter().flatten());
    sets.extend(own.map(|(_, cpus)| cpus & online));
    sets.sort_by_key(|set| std::cmp::Reverse(set.len()));
    let path = sets.iter().filter_map(|set| set.first().copied()).chain([cpu]).collect();
    (path, part)
}

/// Which CPUs share each of its data caches, from the first level up.
fn caches(cpu_folder: &Path, cpu: usize, online: &Cpus) -> Vec<Cpus> {
    let indexes = (0..).map(|index| cpu_folder.join(format!("cache/index{index}"))).take_while(|path| path.is_dir());
    let mut caches: Vec<(u32, Cpus)> = indexes
        .filter(|path| text(&path.join("type")).is_some_and(|kind| kind.trim() != "Instruction"))
        .filter_map(|path| {
            Some((text(&path.join("level"))?.trim().parse().ok()?, list(&path.join("shared_cpu_list"))?))
        })
        .map(|(level, cpus)| (level, &cpus & online))
        .filter(|(_, cpus)| cpus.contains(&cpu))
        .collect();
    caches.sort_by_key(|(level, _)| *level);
    caches.into_iter().map(|(_, cpus)| cpus).collect()
}

fn devices(root: &Path) -> Vec<DevicePart> {
    let folder = root.join("bus/pci/devices");
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    let found = entries.into_iter().filter_map(|path| {
        // The text is a number such as 0x030200: base class, subclass, programming interface.
        let class = text(&path.join("class"))?;
        let class = u32::from_str_radix(class.trim().trim_start_matches("0x"), 16).ok()?;
        let address = path.file_name()?.to_str()?.to_owned();
        let cpus = list(&path.join("local_cpulist")).unwrap_or_default();
        Some(DevicePart { address, kind: kind(u16::try_from(class >> 8).ok()?)?, cpus })
    });
    found.collect()
}

/// The bytes of a line such as `Node 0 MemTotal: 24682416 kB`; 0 if there is none.
fn total(meminfo: &str) -> u64 {
    let kilobytes =
        meminfo.lines().find_map(|line| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes.saturating_mul(1024))
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn list(path: &Path) -> Option<Cpus> {
    parse(&text(path)?)
}
