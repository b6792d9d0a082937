//! Where things are in a node: the NUMA node that a rank computes on, and the PCIe links of its GPUs ([`links`]).
//!
//! Memory that the application's thread touches first is placed by the system. Memory that a background thread populates
//! in advance would be placed wherever that thread happens to run, so the background thread is told which node to
//! prefer. Without the `numa` feature, on a machine with one node, or where libnuma cannot work, nothing is done.
//!
//! # When what is done
//!
//! A session has one [`keeper::Keeper`], unless affinity is off. A checkpoint asks it for the record (the region `.bivouac/affinity`,
//! which is the last of the shard). The writers lend it time when they have nothing else to do. In this time, it reads page maps, looks
//! for what has wandered, and moves Bivouac's own threads out of the way of those that were moved. For the latter, it reads `/proc` of
//! the other ranks. No checkpoint waits for this.
//!
//! A restart has it read the record of each elected candidate before the application's closure runs. If the node has no copy, this
//! happens with the first load, so that a rank that loads nothing asks no other node. [`mapping`] decides, masks are set, and each
//! region's pages are placed before its bytes are read.
//!
//! Bivouac's threads ([`given::for_background`]) run on CPUs that no process of the launcher has, near the rank or its device. If
//! there are no such CPUs, the threads of a process with a single core run wherever the launcher may, and those of any other process
//! run where the process runs.

#[cfg(test)]
#[macro_use]
mod alone;
pub mod cpus;
pub mod given;
pub mod keeper;
pub mod links;
pub mod machine;
pub mod mapping;
#[cfg(feature = "numa")]
pub mod numa;
#[cfg(not(feature = "numa"))]
#[path = "numa_absent.rs"]
pub mod numa;
mod packed;
pub mod pages;
pub mod pinning;
pub mod placing;
pub mod record;
pub mod scan;
pub mod threads;

/// A NUMA node by the operating system's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node(pub u32);

/// The NUMA node of the CPU that the calling thread runs on; `None` if there is only one, or it is not known.
pub fn current_node() -> Option<Node> {
    #[cfg(feature = "numa")]
    return numa::current_node();
    #[cfg(not(feature = "numa"))]
    None
}

/// Runs `body` with the calling thread's fresh memory placed on `node` while that node has room.
pub fn with_preferred<T>(node: Option<Node>, body: impl FnOnce() -> T) -> T {
    #[cfg(feature = "numa")]
    return match node {
        Some(node) => numa::with_preferred(node, body),
        None => body(),
    };
    #[cfg(not(feature = "numa"))]
    {
        let _ = node;
        body()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferring_a_node_runs_the_body_wherever_it_is() {
        assert_eq!(with_preferred(current_node(), || 7), 7);
        assert_eq!(with_preferred(Some(Node(0)), || 8), 8);
        assert_eq!(with_preferred(Some(Node(4_000_000)), || 9), 9);
    }
}
