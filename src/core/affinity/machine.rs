//! The parts of a machine that matter for placement: CPUs, NUMA nodes, and the PCI devices whose place matters.
//!
//! Numbers are those of the operating system, because masks and page queries use them. The order of the lists is the logical
//! one: CPUs that share a core, a cache, a node or a package are next to each other, so a position means the same on two
//! machines that are built alike but numbered differently. Nodes are in the order of their first CPUs. Nodes without CPUs
//! (high-bandwidth memory, memory of accelerators) follow, in the order of the nodes that they are nearest to. Nodes without
//! memory, which hwloc does not show, come last.
//!
//! [`Machine::here`] reads this machine through hwloc (feature `hwloc`), or from `/sys` with our own small reader. Both give the
//! same answer, and all ranks of a node get the same answer, whatever each of them is confined to.
#![forbid(unsafe_code)]

#[cfg(feature = "hwloc")]
mod hwloc;
mod parts;
mod reading;
mod sysfs;

use super::cpus::Cpus;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of CPUs, and one more than the highest number of a CPU: the most that Linux can be built for on any platform.
pub const CPUS_MAX: usize = 8192;
/// The maximum number of NUMA nodes, and one more than the highest number of a node: Linux has no more bits for them.
pub const NODES_MAX: usize = 1024;
/// The maximum number of devices that are listed.
pub const DEVICES_MAX: usize = 4096;
/// The maximum number of nodes that are listed for a device. If it is near more nodes, only the first of them are listed.
pub const DEVICE_NODES_MAX: usize = 64;

/// A logical processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Which core it belongs to: cores are counted in logical order over the whole machine.
    pub core: u32,
    /// Which last-level cache it shares, counted likewise; the package on a machine without such a cache.
    pub cache: u32,
    /// Which package.
    pub package: u32,
    /// The number of the nearest NUMA node.
    pub node: u32,
}

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its memory in bytes; 0 if it has none.
    pub bytes: u64,
}

/// What a PCI device is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum PciKind {
    /// A display device: a GPU.
    Gpu,
    /// A network or InfiniBand card.
    Network,
}

/// A PCI device whose place matters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PciDevice {
    /// Its address, such as `0000:17:00.0`.
    pub address: String,
    /// What it is.
    pub kind: PciKind,
    /// Numbers of the nodes to which it is attached, which are those of the nearest CPUs, in logical order.
    pub nodes: Vec<u32>,
}

/// A machine. `Machine::default()` is one of which nothing is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// In logical order.
    pub cpus: Vec<Cpu>,
    /// In logical order.
    pub nodes: Vec<Node>,
    /// The firmware's distance of each node from each, row by row in the order of `nodes`; empty if it is not known.
    pub distances: Vec<u16>,
    /// In the order of their addresses.
    pub devices: Vec<PciDevice>,
}

/// A machine without the operating system's numbers: two machines of the same shape are built alike.
///
/// The shape does not include how much memory a node has, which changes with the kernel, or network cards, because
/// virtual ones come and go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Core, cache, package and position of the node of each CPU.
    cpus: Vec<(u32, u32, u32, Option<usize>)>,
    /// Does each node have memory?
    nodes: Vec<bool>,
    distances: Vec<u16>,
    /// Positions of the nodes of each GPU, sorted by position, because the addresses are numbers, too.
    gpus: Vec<Vec<Option<usize>>>,
}

/// How much alike two machines are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Likeness {
    /// Shape and numbers are the same.
    Same,
    /// The shape is the same, but the numbers of CPUs or nodes differ.
    Renumbered,
    /// The shape differs.
    Other,
}

impl Machine {
    /// The CPU with this number.
    pub fn cpu(&self, number: u32) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.number == number)
    }

    /// The node with this number.
    pub fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.number == number)
    }

    /// The place of a node in the logical order.
    pub fn node_position(&self, number: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.number == number)
    }

    /// The device with this address, in upper or lower case.
    pub fn device(&self, address: &str) -> Option<&PciDevice> {
        self.devices.iter().find(|device| device.address.eq_ignore_ascii_case(address))
    }

    /// Numbers of all CPUs.
    pub fn all_cpus(&self) -> Cpus {
        self.cpus.iter().map(|cpu| cpu.number as usize).collect()
    }

    /// Numbers of the CPUs that are nearest to a node.
    pub fn cpus_of_node(&self, number: u32) -> Cpus {
        self.cpus.iter().filter(|cpu| cpu.node == number).map(|cpu| cpu.number as usize).collect()
    }

    /// Those of these CPUs that the machine has, in logical order.
    pub fn in_order(&self, cpus: &Cpus) -> Vec<u32> {
        let numbers = self.cpus.iter().map(|cpu| cpu.number);
        numbers.filter(|number| cpus.contains(&(*number as usize))).collect()
    }

    /// Numbers of the nodes with memory, in logical order. If there is at most one, there is nothing to place.
    pub fn nodes_with_memory(&self) -> Vec<u32> {
        self.nodes.iter().filter(|node| node.bytes > 0).map(|node| node.number).collect()
    }

    /// The firmware's distance between two nodes by number; `None` if it is not known.
    pub fn distance(&self, from: u32, to: u32) -> Option<u16> {
        let (from, to) = (self.node_position(from)?, self.node_position(to)?);
        self.distances.get(from * self.nodes.len() + to).copied()
    }

    /// The node itself if it has memory, otherwise the nearest node that does: by distance, then by place in the logical order.
    pub fn nearest_with_memory(&self, number: u32) -> Option<u32> {
        let own = self.node_position(number)?;
        let with_memory = self.nodes.iter().enumerate().filter(|(_, node)| node.bytes > 0);
        let nearest = with_memory.min_by_key(|(at, node)| {
            (node.number != number, self.distance(number, node.number).unwrap_or(u16::MAX), at.abs_diff(own))
        });
        nearest.map(|(_, node)| node.number)
    }

    /// What is left of the machine without numbers.
    pub fn shape(&self) -> Shape {
        let positions: BTreeMap<u32, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.number, at)).collect();
        let position = |number: u32| positions.get(&number).copied();
        let cpus = self.cpus.iter().map(|cpu| (cpu.core, cpu.cache, cpu.package, position(cpu.node))).collect();
        let gpus = self.devices.iter().filter(|device| device.kind == PciKind::Gpu);
        let mut gpus: Vec<Vec<Option<usize>>> =
            gpus.map(|gpu| gpu.nodes.iter().map(|node| position(*node)).collect()).collect();
        gpus.sort_unstable();
        let nodes = self.nodes.iter().map(|node| node.bytes > 0).collect();
        Shape { cpus, nodes, distances: self.distances.clone(), gpus }
    }

    /// How much this machine is like another one.
    pub fn likeness(&self, other: &Machine) -> Likeness {
        if self.shape() != other.shape() {
            return Likeness::Other;
        }
        let cpus = self.cpus.iter().zip(&other.cpus).all(|(own, other)| own.number == other.number);
        let nodes = self.nodes.iter().zip(&other.nodes).all(|(own, other)| own.number == other.number);
        if cpus && nodes { Likeness::Same } else { Likeness::Renumbered }
    }

    /// Is it consistent, and within bounds? This is asked of machines that come from elsewhere. Numbers must be unique and below
    /// [`CPUS_MAX`] and [`NODES_MAX`]; cores, caches and packages must be counted without gaps in logical order; and every node
    /// that is named must exist.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        self.check_numbers()?;
        for (what, of) in [
            ("cores", (|cpu| cpu.core) as fn(&Cpu) -> u32),
            ("caches", |cpu| cpu.cache),
            ("packages", |cpu| cpu.package),
        ] {
            let mut count = 0;
            for cpu in &self.cpus {
                if of(cpu) > count {
                    return Err(format!("{what} are not numbered in order at CPU {}", cpu.number));
                }
                count = count.max(of(cpu) + 1);
            }
        }
        let count = self.nodes.len();
        if !self.distances.is_empty() && self.distances.len() != count * count {
            return Err(format!("{} distances between {count} nodes", self.distances.len()));
        }
        self.check_devices()
    }

    fn check_numbers(&self) -> Result<(), String> {
        let (cpus, nodes) = (self.cpus.len(), self.nodes.len());
        if cpus > CPUS_MAX || nodes > NODES_MAX {
            return Err(format!("{cpus} CPUs and {nodes} nodes"));
        }
        let mut seen = BTreeSet::new();
        if let Some(cpu) = self.cpus.iter().find(|cpu| cpu.number as usize >= CPUS_MAX || !seen.insert(cpu.number)) {
            return Err(format!("CPU {} is listed twice or out of bounds", cpu.number));
        }
        let mut seen = BTreeSet::new();
        if let Some(node) =
            self.nodes.iter().find(|node| node.number as usize >= NODES_MAX || !seen.insert(node.number))
        {
            return Err(format!("node {} is listed twice or out of bounds", node.number));
        }
        match self.cpus.iter().find(|cpu| !seen.contains(&cpu.node)) {
            Some(cpu) => Err(format!("CPU {} is on node {}, which does not exist", cpu.number, cpu.node)),
            None => Ok(()),
        }
    }

    fn check_devices(&self) -> Result<(), String> {
        if self.devices.len() > DEVICES_MAX {
            return Err(format!("{} devices", self.devices.len()));
        }
        let known: BTreeSet<u32> = self.nodes.iter().map(|node| node.number).collect();
        for device in &self.devices {
            let is_small = device.nodes.len() <= DEVICE_NODES_MAX && device.address.len() <= ADDRESS_BYTES_MAX;
            if !is_small || !device.nodes.iter().all(|node| known.contains(node)) {
                return Err(format!("the device at {:.32?} is attached to nodes that do not exist", device.address));
            }
        }
        Ok(())
    }
}

/// The maximum number of bytes in the address of a device.
pub(super) const ADDRESS_BYTES_MAX: usize = 32;

#[cfg(test)]
pub(super) mod tests;
