//! What a checkpoint says about where things were: the record that lies in each shard.
#![forbid(unsafe_code)]

use super::cpus::Cpus;
use super::machine::Machine;
use super::pages::PageMap;
use serde::{Deserialize, Serialize};

/// Whose a thread is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The thread that holds the session.
    Main,
    /// Another one of the application, of MPI or of another library.
    Other,
    /// One of Bivouac's own.
    Bivouac,
}

/// A thread, and where it may run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ThreadPlace {
    /// Whose it is.
    pub role: Role,
    /// Its name, which the system cuts after 15 bytes.
    pub name: String,
    /// Its place among the threads of the same role and name, by age.
    pub order: u32,
    /// The CPUs that it may run on.
    pub cpus: Cpus,
}

/// The NUMA policy of the process (`set_mempolicy`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Policy {
    /// The system's number of the mode; 0 is the default policy.
    pub mode: u32,
    /// Numbers of the nodes it names.
    pub nodes: Vec<u32>,
}

/// Where a region lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RegionPlace {
    /// In host memory.
    Host {
        /// On which nodes.
        pages: PageMap,
        /// How old the map was when the checkpoint was taken, in milliseconds.
        age_ms: u64,
        /// Nodes of every page were asked for; otherwise of one in so many, with the borders between them searched.
        is_whole: bool,
    },
    /// In the memory of the GPU with this PCI address.
    Device(String),
}

/// What is known about one rank when a checkpoint is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The node it runs on.
    pub machine: Machine,
    /// The CPUs that the job has on that node.
    pub given: Cpus,
    /// The ranks of the group that run there, ascending.
    pub neighbours: Vec<u32>,
    /// Its threads.
    pub threads: Vec<ThreadPlace>,
    /// The policy of the thread that holds the session.
    pub policy: Policy,
    /// Its regions, by name.
    pub regions: Vec<(String, RegionPlace)>,
}
