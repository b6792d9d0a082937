//! What the links, the calls and the kernels of all ranks did when, as a trace that `chrome://tracing` and Perfetto draw.
//!
//! Times begin for each rank when its caches open, right after a barrier, so the ranks' clocks agree about as well as the
//! ranks leave a barrier together.
#![forbid(unsafe_code)]

use bivouac::history::{HistoryStats, Span};
use serde_json::{Value, json};
use std::time::Instant;

/// Sums of what a rank's caches did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Bytes appended.
    pub appended: u64,
    /// Bytes restored.
    pub restored: u64,
    /// Time that the application spent in appends and restores, in seconds.
    pub blocked_s: f64,
    /// Restores, and how many of them found their version in the GPU cache.
    pub restores: (u64, u64),
    /// Bytes moved: device to host, host to file, file to host, host to device.
    pub moved: [u64; 4],
}

impl From<HistoryStats> for Counts {
    fn from(stats: HistoryStats) -> Counts {
        Counts {
            appended: stats.append_bytes,
            restored: stats.restore_bytes,
            blocked_s: stats.append_seconds + stats.restore_seconds,
            restores: (stats.restores, stats.hits),
            moved: stats.moved_bytes,
        }
    }
}

/// Records what the application computed when, between its calls to the caches.
pub struct Recorder {
    zero: Instant,
    begun: Instant,
    spans: Vec<Span>,
    is_on: bool,
}

impl Recorder {
    /// A recorder whose times count from now. Spans are kept only if it `is_on`.
    pub fn new(is_on: bool) -> Recorder {
        Recorder { zero: Instant::now(), begun: Instant::now(), spans: Vec::new(), is_on }
    }

    /// Marks the beginning of a computation.
    pub fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Marks its end; it was a computation of that kind.
    pub fn end(&mut self, what: &'static str, version: u64) {
        if self.is_on {
            let from_s = self.begun.duration_since(self.zero).as_secs_f64();
            let to_s = self.zero.elapsed().as_secs_f64();
            self.spans.push(Span { what, version, bytes: 0, from_s, to_s });
        }
    }

    /// The spans that were recorded.
    pub fn into_spans(self) -> Vec<Span> {
        self.spans
    }
}

/// The lines of a rank in the drawing, from the top: a name, and what is drawn in it.
const LINES: [(&str, &[&str]); 7] = [
    ("compute", &["observe", "forward", "backward"]),
    ("calls", &["append", "restore"]),
    ("device to host", &["d2h"]),
    ("host to file", &["h2f"]),
    ("file to host", &["f2h"]),
    ("host to device", &["h2d"]),
    ("memory", &["map", "touch", "pin"]),
];

/// The events of one rank in the Trace Event Format: complete events with times in microseconds, and names for the lines.
pub fn events(rank: i32, spans: &[Span]) -> Vec<Value> {
    let name = |what: &str, tid: usize, name: &str| json!({"name": what, "ph": "M", "pid": rank, "tid": tid, "args": {"name": name}});
    let mut events = vec![name("process_name", 0, &format!("rank {rank}"))];
    events.extend(LINES.iter().enumerate().map(|(tid, (line, _))| name("thread_name", tid, line)));
    events.extend(spans.iter().map(|span| {
        let tid = LINES.iter().position(|(_, what)| what.contains(&span.what)).unwrap_or(LINES.len());
        let category = if tid == 0 { "compute" } else { "bivouac" };
        json!({
            "name": span.what, "cat": category, "ph": "X", "pid": rank, "tid": tid,
            "ts": span.from_s * 1e6, "dur": (span.to_s - span.from_s) * 1e6,
            "args": {"version": span.version, "bytes": span.bytes},
        })
    }));
    events
}

/// The whole trace as a text.
pub fn trace(events: Vec<Value>) -> String {
    json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
}
