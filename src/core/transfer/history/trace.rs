//! The actions of a rank's caches: counts and, on request, the single spans.
#![forbid(unsafe_code)]

use crate::cache::Tier;
use std::time::Instant;

/// Which call of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// An append.
    Append,
    /// A restore.
    Restore,
}

/// One call of the application.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The version.
    pub version: u64,
    /// Which call.
    pub operation: Operation,
    /// Bytes of the version.
    pub bytes: u64,
    /// Where an append went, or a restore read from.
    pub tier: Tier,
    /// For a restore, the number of consecutive versions at the head of the restore order that were in the GPU cache when it was called.
    pub distance: u64,
    /// How long the call took.
    pub seconds: f64,
    /// How long the device needed for its copy, with digests; 0 if the version was not on the device.
    pub device_seconds: f64,
}

impl Step {
    /// A step whose duration is not known yet.
    pub(super) fn new(version: u64, operation: Operation, bytes: u64, tier: Tier, device_seconds: f64) -> Step {
        Step { version, operation, bytes, tier, distance: 0, seconds: 0.0, device_seconds }
    }
}

/// A span of time in which a thread was busy with one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// `append`, `restore`, `d2h`, `h2f`, `f2h`, `h2d`, `touch`, `pin` or `map`; if flushes are staggered, also `burst`: the part of a
    /// `d2h` that begins with the first piece, without the wait for the turn.
    pub what: &'static str,
    /// The version; 0 for memory.
    pub version: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The beginning, in seconds since the caches were opened.
    pub from_s: f64,
    /// The end, likewise.
    pub to_s: f64,
}

/// Sums over a session. Times are those that the application's thread spent in the calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryStats {
    /// Versions appended.
    pub appends: u64,
    /// Their bytes.
    pub append_bytes: u64,
    /// Time in appends, in seconds.
    pub append_seconds: f64,
    /// Versions restored.
    pub restores: u64,
    /// Their bytes.
    pub restore_bytes: u64,
    /// Time in restores, in seconds.
    pub restore_seconds: f64,
    /// Restores that found the version in the GPU cache.
    pub hits: u64,
    /// Bytes that checkpoints captured from device, host and file ([`CheckpointBuilder::save_history`](crate::CheckpointBuilder::save_history)).
    pub sealed_bytes: [u64; 3],
    /// How much host memory is leased, and how much of that is pinned, in bytes.
    pub host_bytes: (u64, u64),
    /// Node memory pinned for slots of checkpoints.
    pub slot_bytes_pinned: u64,
    /// Bytes moved: device to host, host to file, file to host, host to device.
    pub moved_bytes: [u64; 4],
    /// Jobs of the links that failed, in the same order.
    pub failures: [u64; 4],
    /// How long flushes from the device waited for this rank's turn, in seconds.
    pub turn_seconds: f64,
    /// Flushes that continued without a turn, because the turn did not come in time.
    pub turns_given_up: u64,
    /// How long flushes were held back to keep to a rate, in seconds.
    pub pace_seconds: f64,
    /// The rate to which flushes are held now, in bytes per second; `None` if there is no limit.
    pub flush_rate: Option<u64>,
}

/// Collects the actions.
pub(super) struct Trace {
    pub stats: HistoryStats,
    pub steps: Vec<Step>,
    pub spans: Vec<Span>,
    pub is_on: bool,
}

impl Trace {
    pub(super) fn new(is_on: bool) -> Trace {
        Trace { stats: HistoryStats::default(), steps: Vec::new(), spans: Vec::new(), is_on }
    }

    /// Notes a call that began at `begun` and ends now.
    pub(super) fn step(&mut self, mut step: Step, begun: Instant, zero: Instant) {
        step.seconds = begun.elapsed().as_secs_f64();
        let stats = &mut self.stats;
        let what = match step.operation {
            Operation::Append => {
                stats.appends += 1;
                stats.append_bytes += step.bytes;
                stats.append_seconds += step.seconds;
                "append"
            }
            Operation::Restore => {
                stats.restores += 1;
                stats.restore_bytes += step.bytes;
                stats.restore_seconds += step.seconds;
                stats.hits += u64::from(step.tier == Tier::Device);
                "restore"
            }
        };
        self.span(what, step.version, step.bytes, begun, zero);
        if self.is_on {
            self.steps.push(step);
        }
    }

    /// Notes an action that began at `begun` and ends now.
    pub(super) fn span(&mut self, what: &'static str, version: u64, bytes: u64, begun: Instant, zero: Instant) {
        if self.is_on {
            let from_s = begun.duration_since(zero).as_secs_f64();
            self.spans.push(Span { what, version, bytes, from_s, to_s: zero.elapsed().as_secs_f64() });
        }
    }
}
