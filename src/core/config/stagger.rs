//! Section `[stagger]`: how the ranks of a node spread their flushes from device memory.
#![forbid(unsafe_code)]

use std::time::Duration;

/// The maximum number of ranks that may hold a token of the node segment at once.
pub(super) const BURSTS_MAX: u32 = 8;

/// How flushes from device to host memory are kept from disturbing each other and the application (ICS'19, section 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StaggerConfig {
    /// The number of ranks that may flush at once over what `scope` names, 1 to 8; `None`: all.
    pub bursts: Option<u32>,
    /// The resource at which the ranks take turns.
    pub scope: BurstScope,
    /// Whose turn is next.
    pub order: BurstOrder,
    /// How long a rank waits for a turn to flush or to pin host memory. Then it continues without one.
    pub patience: Duration,
    /// The rate at which each rank flushes.
    pub rate: FlushRate,
    /// With [`FlushRate::Auto`]: by how much flushes may lengthen the application's steps, as a fraction of a step.
    pub slowdown: f64,
}

impl Default for StaggerConfig {
    fn default() -> Self {
        StaggerConfig {
            bursts: None,
            scope: BurstScope::default(),
            order: BurstOrder::default(),
            // A device of 80 GB on a link of 25 GB/s needs about three seconds.
            patience: Duration::from_secs(10),
            rate: FlushRate::default(),
            slowdown: 0.02,
        }
    }
}

/// The resource at which the ranks of a node take turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BurstScope {
    /// Each PCIe link that several GPUs share.
    #[default]
    Link,
    /// The node, where host memory is slower than the links together.
    Node,
}

/// Whose turn is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BurstOrder {
    /// The smallest flush.
    #[default]
    ShortestFirst,
    /// One rank after the other, 64 MiB at a time.
    RoundRobin,
    /// The rank that has waited longest.
    FirstCome,
}

/// The rate at which a rank flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushRate {
    /// As fast as it can.
    #[default]
    Unlimited,
    /// As fast as possible without lengthening the application's steps by more than [`StaggerConfig::slowdown`].
    Auto,
    /// This many bytes per second.
    Bytes(u64),
}
