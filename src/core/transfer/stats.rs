//! The counters and measurements of a session.

use super::costs::Costs;
use super::live::LiveStats;
use super::offload::OffloadStats;
use crate::format::supervision::Tuned;
use crate::tier::{PerTier, TierId};
use std::time::Duration;

/// Counters and times of one rank since its session was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Checkpoints that this rank has captured.
    pub captured: u64,
    /// Checkpoints that the ranks abandoned at the call: no part of them is kept.
    pub abandoned: u64,
    /// Abandoned checkpoints that this rank itself did not capture.
    pub declined: u64,
    /// How often each level was reached: `Process` (memory), `NodeReboot` (local), `NodeLoss` (peers), `System` (global).
    pub committed: PerTier<u64>,
    /// How often a level was wanted but not reached, because at least one rank failed to reach it.
    pub level_failures: PerTier<u64>,
    /// Writes of this rank that failed.
    pub write_failures: PerTier<u64>,
    /// Newest version that this rank knows to be committed at each level.
    pub newest: PerTier<Option<u64>>,
    /// Bytes that the application handed over.
    pub bytes_captured: u64,
    /// Time that the application spent between `checkpoint` and the return of `capture`, for the last checkpoint.
    pub blocked_last: Duration,
    /// The longest of these times.
    pub blocked_max: Duration,
    /// The sum of these times.
    pub blocked_total: Duration,
    /// Captures that had to wait for room in the memory tier.
    pub room_waits: u64,
    /// How long they waited in total; part of the blocked time.
    pub room_wait_total: Duration,
    /// Captures that did not fit into the memory tier and were written to a file before `capture` returned.
    pub direct_captures: u64,
    /// Captures whose device regions were in the GPU cache when `capture` returned. They are brought to node memory in the background.
    pub staged_captures: u64,
    /// Bytes written to each tier in the background.
    pub flushed_bytes: PerTier<u64>,
    /// Time that writing these bytes took, from the first byte to the rename.
    pub flushed_time: PerTier<Duration>,
    /// The reduction of files (`reduction.method`).
    pub reduction: Reduction,
    /// Marked checkpoints of GPU memory, over all devices ([`crate::Session::offload`]).
    pub offload: OffloadStats,
    /// Captures from live memory in which only the program's declarations prevented later writes from being saved (`offload.audit`,
    /// `offload.host_writes`).
    pub unaudited: u64,
    /// Host memory that was copied while the program wrote to it ([`crate::CheckpointBuilder::save_live`]).
    pub live: LiveStats,
    /// Bytes of shards that restarts have read from each tier.
    pub restored_bytes: PerTier<u64>,
    /// What checkpoints and restarts of this rank have cost, one by one.
    pub costs: Costs,
    /// Copies of shards or blocks that were found damaged.
    pub damaged: PerTier<u64>,
    /// Messages that this rank has sent for coordination.
    pub messages: u64,
    /// How often a thread of the application was found to have moved to other CPUs, over all looks (`affinity.check_every`). Threads that a
    /// restart puts back do not count.
    pub threads_wandered: u64,
    /// How often a page of a region was found to have moved to another NUMA node, over all looks.
    pub pages_wandered: u64,
    /// The choice of the intervals that are left to the session (`"auto"`), and the reason; on the root, once there is a choice.
    pub tuned: Option<Tuned>,
    /// Checkpoints in flight: at least one of their levels has been neither reached nor given up.
    pub in_flight: u64,
}

/// The reduction of files, over all tiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Reduction {
    /// Files that refer to earlier ones.
    pub packed: u64,
    /// Files that could have referred to earlier ones but do not: the first files of a run or after a restart, and files for which
    /// references did not pay off.
    pub whole: u64,
    /// Bytes of the shards that both kinds of files represent.
    pub shard_bytes: u64,
    /// Bytes that both kinds of files store themselves.
    pub stored_bytes: u64,
    /// Bytes that were left of shards and that Bivouac tried to compress (`reduction.compress`).
    pub compressed_from: u64,
    /// The size of these bytes after compression.
    pub compressed_to: u64,
    /// How long the compression took.
    pub compress_time: Duration,
    /// Captures that stored only what had changed since the previous one.
    pub partial_captures: u64,
    /// Shards whose regions in device memory were examined on the device, chunk by chunk.
    pub looked_on_device: u64,
    /// How long that took, while the shards were on their way down.
    pub device_time: Duration,
}

impl Stats {
    /// Has a checkpoint or a level been refused, or has one not ended?
    pub fn has_losses(&self) -> bool {
        self.abandoned + self.in_flight > 0 || self.level_failures.iter().any(|(_, failures)| *failures > 0)
    }

    /// Measured write bandwidth of a tier in bytes per second, if anything was written.
    pub fn bandwidth(&self, tier: TierId) -> Option<f64> {
        let seconds = self.flushed_time[tier].as_secs_f64();
        (seconds > 0.0).then(|| self.flushed_bytes[tier] as f64 / seconds)
    }
}
