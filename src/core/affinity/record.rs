//! What a checkpoint says about where things were: the record in each shard.
//!
//! It is small: a few hundred bytes for the machine, a few for each pinned thread, and two or more for each run of pages. It is read
//! from files that may be damaged or foreign, so everything is checked before it is used, and its size is bounded.
#![forbid(unsafe_code)]

mod wire;

use super::cpus::Cpus;
use super::machine::{ADDRESS_BYTES_MAX, CPUS_MAX, Machine, NODES_MAX};
use super::pages::PageMap;
use crate::format::FormatError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The maximum number of bytes in the name of a thread: four times what the system allows.
const NAME_BYTES_MAX: usize = 64;

/// The maximum number of threads.
const THREADS_MAX: usize = 1 << 16;

/// To whom a thread belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The thread that holds the session.
    Main,
    /// Another thread of the application, of MPI or of another library.
    Other,
    /// One of Bivouac's own.
    Bivouac,
}

/// A thread, and where it may run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ThreadPlace {
    /// To whom it belongs.
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

/// Where a region is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RegionPlace {
    /// In host memory.
    Host {
        /// On which nodes.
        pages: PageMap,
        /// How old the map was when the checkpoint was taken, in milliseconds.
        age_ms: u64,
        /// Every page was queried. Otherwise, only a sample of the pages was queried, with a search for the borders between them.
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

impl Record {
    /// As bytes, for a shard.
    ///
    /// # Errors
    /// [`FormatError`] if it breaks a rule of [`Record::check`] or takes more than 16 MiB (millions of runs of pages): such a
    /// record could not be decoded.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check().map_err(|reason| FormatError::invalid("affinity record", reason))?;
        wire::encode(self)
    }

    /// How many of the threads can be read back.
    fn threads_that_fit(&self) -> usize {
        let mut left = wire::MASKS_MAX;
        let fits = |thread: &&ThreadPlace| {
            let room = left.checked_sub(thread.cpus.len() + thread.name.len());
            left = room.unwrap_or(0);
            room.is_some()
        };
        self.threads.iter().take(THREADS_MAX).take_while(fits).count()
    }

    /// Leaves out surplus threads, then the regions that are damaged, and then the regions with the largest maps, until the record can be
    /// encoded. Returns how many regions were left out.
    pub fn keep_what_fits(&mut self) -> usize {
        self.threads.truncate(self.threads_that_fit());
        let before = self.regions.len();
        self.regions.retain(|(name, place)| place.check(name).is_ok());
        let mut sizes: Vec<(usize, usize)> = self.regions.iter().map(wire::bytes_of).zip(0..).collect();
        let mut left: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
        // The largest first.
        sizes.sort_unstable();
        let mut gone = BTreeSet::new();
        while left > wire::REGIONS_BYTES_MAX
            && let Some((bytes, index)) = sizes.pop()
        {
            left -= bytes;
            gone.insert(index);
        }
        let mut index = 0..;
        self.regions.retain(|_| index.next().is_none_or(|index| !gone.contains(&index)));
        before - self.regions.len()
    }

    /// The record from bytes of a shard, checked. Any bytes are harmless.
    ///
    /// # Errors
    /// [`FormatError`] if they are damaged, of a newer version, or break a rule of [`Record::check`].
    pub fn decode(bytes: &[u8]) -> Result<Record, FormatError> {
        wire::decode(bytes)
    }

    /// Is it consistent, and within bounds? Pages may be on nodes that the machine does not have, because little may be known about the
    /// machine. Whether a map fits its region is checked where the region is known ([`PageMap::check`]).
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        self.machine.check()?;
        let sets = std::iter::once(&self.given).chain(self.threads.iter().map(|thread| &thread.cpus));
        if let Some(cpu) = sets.filter_map(|cpus| cpus.last()).find(|cpu| **cpu >= CPUS_MAX) {
            return Err(format!("CPU {cpu}"));
        }
        if !self.neighbours.is_sorted_by(|a, b| a < b) {
            return Err("the ranks of the node are not in ascending order".to_owned());
        }
        if self.threads.len() > THREADS_MAX {
            return Err(format!("{} threads", self.threads.len()));
        }
        if self.threads_that_fit() < self.threads.len() {
            return Err("the masks of the threads have too many CPUs".to_owned());
        }
        if let Some(thread) = self.threads.iter().find(|thread| thread.name.len() > NAME_BYTES_MAX) {
            return Err(format!("the name of a thread has {} bytes", thread.name.len()));
        }
        if self.policy.nodes.len() > NODES_MAX || self.policy.nodes.iter().any(|node| *node as usize >= NODES_MAX) {
            return Err("the policy names nodes that are out of bounds".to_owned());
        }
        self.regions.iter().try_for_each(|(name, place)| place.check(name))
    }
}

impl RegionPlace {
    fn check(&self, name: &str) -> Result<(), String> {
        match self {
            RegionPlace::Host { pages, .. } => {
                pages.check_form().map_err(|error| format!("region {name:.64}: {error}"))
            }
            RegionPlace::Device(address) if address.len() > ADDRESS_BYTES_MAX => {
                Err(format!("region {name:.64}: its GPU"))
            }
            RegionPlace::Device(_) => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
