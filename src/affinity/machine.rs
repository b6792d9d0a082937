//! A machine as far as placement goes: CPUs, NUMA nodes, and the PCI devices whose place matters.
//!
//! Numbers are those of the operating system, because masks and page queries speak them. The order of the lists is the logical
//! one, that of hwloc: CPUs that share a core, a cache, a node or a package stand side by side, so that a position means the same
//! on two machines that are built alike but numbered differently. A node without memory, which hwloc does not show, is listed
//! behind the others.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A logical processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Which core it belongs to: cores are counted in logical order over the whole machine.
    pub core: u32,
    /// Which last-level cache it shares, counted likewise; on a machine without such a cache the package.
    pub cache: u32,
    /// Which package.
    pub package: u32,
    /// The number of the NUMA node that is nearest.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    /// Numbers of the nodes that it hangs at.
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
