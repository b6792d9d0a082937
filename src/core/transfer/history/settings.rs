//! The settings with which caches are made.
#![forbid(unsafe_code)]

use crate::config::{PinOrder, StaggerConfig, ThreadCpus, Touch};
use std::path::PathBuf;
use std::time::Duration;

/// How large the caches are, and how they are made.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// GPU cache of this rank, in bytes.
    pub device_bytes: u64,
    /// Node memory for this rank's histories, in bytes; it is leased in steps, as long as the node has any left.
    pub host_bytes: u64,
    /// File space for this rank's histories, in bytes.
    pub store_bytes: u64,
    /// Where the file goes; `None`: no file.
    pub store_directory: Option<PathBuf>,
    /// Bytes per block digest.
    pub block_bytes: u64,
    /// Host memory is leased and touched in steps of this size.
    pub line_bytes: u64,
    /// Where the threads of the caches run.
    pub cpus: ThreadCpus,
    /// When host memory is touched.
    pub touch: Touch,
    /// How host memory is pinned.
    pub pin: PinOrder,
    /// How flushes are kept from disturbing other ranks and the application.
    pub stagger: StaggerConfig,
    /// How long a call waits for room.
    pub room: Duration,
    /// Whether every step and span is recorded.
    pub trace: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            device_bytes: 4 << 30,
            host_bytes: 32 << 30,
            store_bytes: 1 << 40,
            store_directory: None,
            block_bytes: 256 << 10,
            line_bytes: 256 << 20,
            cpus: ThreadCpus::default(),
            touch: Touch::default(),
            pin: PinOrder::default(),
            stagger: StaggerConfig::default(),
            room: Duration::from_secs(600),
            trace: false,
        }
    }
}
