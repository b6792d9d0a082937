//! On which NUMA node each page of a region lies, in runs. Pure.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// Bytes of a page in a map. Larger pages are runs of them.
pub const PAGE_BYTES: u64 = 4096;

/// Pages in a row that lie alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// How many; not 0.
    pub pages: u64,
    /// The number of their node; `None`: they have no memory, or nobody knows.
    pub node: Option<u32>,
}

/// The pages of a region, from the one that its first byte lies in to the one that its last byte lies in.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PageMap {
    /// Where in its page the region begins, in bytes: less than [`PAGE_BYTES`].
    pub offset: u32,
    /// In order; neighbours differ.
    pub runs: Vec<Run>,
}
