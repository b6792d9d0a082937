//! A record of the actions of a rank's session, with their times. Each rank has a file, with a JSON object in each
//! line.
//!
//! A line names the run to which it belongs, because each run of a job appends to the file of the previous run. Lines of unknown kinds are
//! skipped, and so are lines that cannot be read: the last line may be half written. Fields are added, never renamed, while the schema
//! stays the same.
//!
//! Times are seconds since 1970, by the clock of the host that wrote the file. For an event that took time, the time is that of its end.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The number that the first line of a session carries as `schema`.
pub const SCHEMA: u32 = 1;
/// The maximum length of an event file, in bytes: a session stops writing before a file exceeds it.
pub const EVENTS_MAX: u64 = 16 << 20;

/// The name of a rank's file.
pub fn events_file(group: &str, rank: u32) -> String {
    format!("events-{group}-{rank}.jsonl")
}

/// The group and the rank in the name of such a file.
pub fn events_of(name: &str) -> Option<(&str, u32)> {
    let (group, rank) = name.strip_prefix("events-")?.strip_suffix(".jsonl")?.rsplit_once('-')?;
    Some((group, rank.parse().ok()?))
}

/// A line of an event file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened.
    pub unix: f64,
    /// The run in which it happened.
    pub run: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A session was opened.
    Opened(Box<Opened>),
    /// The rank has handed over its part of a checkpoint, or has tried to. Its program continues.
    Captured {
        /// The series.
        name: String,
        /// The version.
        version: u64,
        /// The number of the checkpoint within the run.
        operation: u64,
        /// Bytes of its regions.
        bytes: u64,
        /// How long it stopped the program.
        seconds: f64,
    },
    /// Data that was in GPU memory has reached node memory.
    Landed {
        /// As in `Captured`.
        version: u64,
        /// Bytes that were transferred.
        bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// The rank's part is on a tier. For the tier `peers`, the exchange with other ranks has ended.
    Written {
        /// As in `Captured`.
        operation: u64,
        /// The tier.
        tier: String,
        /// Bytes that were written.
        bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// A copy of this rank did not reach a tier.
    Failed {
        /// The tier.
        tier: String,
        /// Why.
        reason: String,
    },
    /// The checkpoint is committed at a level on all ranks. Only the root records this.
    Committed {
        /// The series.
        name: String,
        /// The version.
        version: u64,
        /// As in `Captured`.
        operation: u64,
        /// The level.
        level: String,
    },
    /// The checkpoint is not committed at a level, or was refused at the call (`captured`). Only the root records this.
    Refused {
        /// The series.
        name: String,
        /// The version.
        version: u64,
        /// As in `Captured`.
        operation: u64,
        /// The level.
        level: String,
        /// Why, with the ranks that caused it.
        reason: String,
    },
    /// A version was restored.
    Restored {
        /// The series.
        name: String,
        /// The version.
        version: u64,
        /// The run that took it.
        generation: u64,
        /// The farthest tier that this rank read from.
        tier: String,
        /// Bytes that it read.
        bytes: u64,
        /// The time from the call to the agreement of all ranks.
        seconds: f64,
        /// The part of that time that had passed when a version was elected.
        elect_seconds: f64,
    },
    /// Node memory that is taken by shards of the node. The first rank of a node records this when it changes.
    Memory {
        /// Bytes that are in use.
        used: u64,
        /// Bytes that may be in use.
        budget: u64,
    },
    /// A warning, or an error.
    Warned {
        /// `WARN` or `ERROR`.
        importance: String,
        /// The text of the message.
        text: String,
    },
    /// The program was told to end.
    Exit {
        /// Why.
        reason: String,
    },
    /// The session was closed normally.
    Closed,
    /// Events are missing here: the file could not be written, or was full.
    Missing {
        /// The number of missing events; 0: all events after this one.
        count: u64,
        /// Why.
        reason: String,
    },
    /// An event of another version.
    #[serde(other)]
    Unknown,
}

/// Who opened a session, where, and with what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Opened {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of the library.
    pub library: String,
    /// The job's key.
    pub job: String,
    /// The group.
    pub group: String,
    /// This rank.
    pub rank: u32,
    /// Ranks in the group.
    pub ranks: u32,
    /// The lowest rank of this node: ranks of the same node name the same one.
    pub node: u32,
    /// The run's random identity, the same on all of its ranks.
    pub incarnation: String,
    /// The host.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// CPUs that the thread that opened the session may run on, as a list such as `0-3,8`.
    pub cpus: String,
    /// The tiers in use and their places, nearest first.
    pub tiers: Vec<(String, String)>,
    /// Tiers that were wanted but cannot be used, and why.
    pub lost: Vec<(String, String)>,
    /// The redundancy schemes in use.
    pub redundancy: Vec<String>,
    /// Every setting, its value as in a configuration file, and the place where it was written (empty for a default). Only the root's event
    /// has them.
    pub settings: Vec<(String, String, String)>,
}

impl Event {
    /// Encodes the line, including its end.
    pub fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("events have text keys");
        line.push(b'\n');
        line
    }

    /// The events of a file, in the order of their lines.
    pub fn decode_all(bytes: &[u8]) -> Vec<Event> {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events = lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
        events.filter(|event| event.unix.is_finite() && event.what != What::Unknown).collect()
    }
}

/// Events of one rank with the opening of their session, which is the last opening before them with the same run number: a store that was
/// made anew begins to count its runs again. Events without an opening are left out.
pub fn with_openings<'e>(events: impl IntoIterator<Item = &'e Event>) -> Vec<(&'e Opened, &'e Event)> {
    let mut known: BTreeMap<u64, &Opened> = BTreeMap::new();
    let mut found = Vec::new();
    for event in events {
        if let What::Opened(opened) = &event.what {
            known.insert(event.run, opened);
        }
        found.extend(known.get(&event.run).map(|opened| (*opened, event)));
    }
    found
}

impl What {
    /// How many seconds it lasted, up to the time of its line.
    pub fn seconds(&self) -> f64 {
        let seconds = match self {
            What::Captured { seconds, .. }
            | What::Landed { seconds, .. }
            | What::Written { seconds, .. }
            | What::Restored { seconds, .. } => *seconds,
            _ => 0.0,
        };
        if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_what_is_strange_is_passed_over() {
        let opened = Opened { schema: SCHEMA, job: "heat".into(), ranks: 2, ..Opened::default() };
        let whats = [
            What::Opened(opened.into()),
            What::Captured { name: "t".into(), version: 7, operation: 3, bytes: 8, seconds: 0.5 },
            What::Closed,
        ];
        let events: Vec<Event> = whats.into_iter().map(|what| Event { unix: 12.25, run: 4, what }).collect();
        let mut bytes: Vec<u8> = events.iter().flat_map(Event::encode).collect();
        assert_eq!(Event::decode_all(&bytes), events);
        bytes.extend_from_slice(
            b"\n\xff\n{}\n[1]\n{\"unix\":1,\"run\":1,\"event\":\"later\",\"x\":2}\n{\"unix\":1,\"ru",
        );
        assert_eq!(Event::decode_all(&bytes), events);
    }

    #[test]
    fn names_of_files_say_group_and_rank() {
        assert_eq!(events_of(&events_file("sub-2", 31)), Some(("sub-2", 31)));
        for name in ["events-world.jsonl", "status-world.json", "events-world-x.jsonl", "events-a-1.json"] {
            assert_eq!(events_of(name), None, "{name}");
        }
    }
}
