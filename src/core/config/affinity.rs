//! Section `[affinity]`: where threads and pages were, and whether they go back there.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::Duration;

/// What is recorded about threads and pages, and what a restart does with the record (Middleware'14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AffinityMode {
    /// Threads and pages are recorded, and a restart puts both back.
    #[default]
    Full,
    /// Threads and pages are recorded, and a restart puts threads back.
    Threads,
    /// Threads and pages are recorded, and a restart puts pages back.
    Pages,
    /// Threads and pages are recorded, and a restart puts nothing back.
    Capture,
    /// Nothing is recorded.
    Off,
}

impl AffinityMode {
    /// Does a restart set the CPU masks of threads?
    pub fn has_threads(self) -> bool {
        matches!(self, AffinityMode::Full | AffinityMode::Threads)
    }

    /// Does a restart bring pages back to their NUMA nodes?
    pub fn has_pages(self) -> bool {
        matches!(self, AffinityMode::Full | AffinityMode::Pages)
    }
}

/// The part of the section that a node may choose.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AffinityConfig {
    /// CPUs that the ranks of this node share after a restart, instead of the recorded ones; `None`: the recorded ones.
    pub cpus: Option<BTreeSet<usize>>,
    /// How often threads and pages are looked at between checkpoints; zero: never.
    pub check_every: Duration,
}
