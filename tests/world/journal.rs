//! The events that ranks write down while they work, for the checkers to read afterwards; and the data that they should have.

use bivouac_core::base::Level;
use bivouac_core::base::rng::Rng;
use std::sync::{Arc, Mutex};

/// Generation and version of a checkpoint.
pub type Key = (u64, u64);

/// How one level of one checkpoint ended, as one rank heard it.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Committed,
    Abandoned(String),
    Unknown,
}

/// The result of a rank's restart of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Restart {
    /// The key of the restored checkpoint, and the number of the run that took it.
    Restored {
        key: Key,
        run: u64,
        tier: &'static str,
    },
    Nothing,
    /// The ranks agreed that the restart fails.
    Refused(String),
    /// This rank lost contact with the others.
    Lost(String),
}

/// One entry of the journal.
#[derive(Clone, Debug)]
pub enum Entry {
    Opened {
        generation: u64,
    },
    NotOpened {
        text: String,
    },
    Restart {
        series: &'static str,
        by_name: bool,
        outcome: Restart,
    },
    Captured {
        series: &'static str,
        version: u64,
    },
    NotCaptured {
        text: String,
    },
    Verdict {
        series: &'static str,
        version: u64,
        level: Level,
        heard: Heard,
    },
    /// The rank asked whether a checkpoint is due.
    Asked {
        is_due: bool,
    },
    Listed {
        series: &'static str,
        versions: Vec<Key>,
    },
    /// A collective call failed.
    Failed {
        call: &'static str,
        text: String,
    },
    Closed {
        result: Result<(), String>,
    },
    /// The rank has done everything that it had to do.
    Ended,
    /// The present and the maximum size of a node's segment in memory.
    Memory {
        bytes: u64,
        allowed: u64,
    },
}

/// The journal of one run: entries with the rank that made them, in the order of simulated time.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<(u32, Entry)>>>);

impl Journal {
    pub fn note(&self, rank: u32, entry: Entry) {
        self.0.lock().unwrap().push((rank, entry));
    }

    pub fn entries(&self) -> Vec<(u32, Entry)> {
        self.0.lock().unwrap().clone()
    }
}

/// One region of a shard.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    Bytes(Vec<u8>),
    Numbers(Vec<f64>),
}

/// Zeros with a few equal values, some of which are the corners of a rectangle: a page that was lost differs from them only slightly.
fn sparse(rng: &mut Rng, length: u64) -> Vec<f64> {
    let mut numbers = vec![0.0; length as usize];
    if length > 0 {
        let [from, across, down] = [length, 40, 100].map(|below| rng.below(below));
        let corners = [from, from + across, from + down, from + across + down];
        let alone = rng.chance(1, 2).then(|| rng.below(length));
        corners.into_iter().chain(alone).for_each(|at| numbers[(at % length) as usize] = 2.0);
    }
    numbers
}

/// The data that rank `rank` of run `run` saves in version `version` of `series`. Restored data is compared with this
/// model. Lengths differ from version to version and from rank to rank; some are zero.
pub fn contents(seed: u64, run: u64, series: &str, version: u64, rank: u32, large: bool) -> Vec<(String, Data)> {
    let hash = series.bytes().fold(seed, |hash, byte| hash.rotate_left(8) ^ u64::from(byte));
    // The number and types of regions are the same on all ranks.
    let mut shape = Rng::new(hash ^ run << 40 ^ version << 20);
    let count = 1 + shape.below(3);
    let kinds: Vec<bool> = (0..count).map(|_| shape.chance(1, 2)).collect();
    let mut rng = Rng::new(shape.next_u64() ^ u64::from(rank));
    let mut regions = Vec::new();
    for (index, numbers) in kinds.into_iter().enumerate() {
        let length = match rng.below(10) {
            0 => 0,
            1..=6 => rng.below(3000),
            _ if large => rng.below(120_000),
            _ => rng.below(9000),
        };
        let data = match numbers {
            true if rng.chance(1, 2) => Data::Numbers(sparse(&mut rng, length / 8)),
            true => Data::Numbers((0..length / 8).map(|_| (rng.next_u64() >> 12) as f64 / 1e6).collect()),
            false => Data::Bytes((0..length).map(|_| rng.next_u64() as u8).collect()),
        };
        regions.push((format!("region-{index}"), data));
    }
    regions.push(("slow".into(), Data::Bytes(slow(hash ^ run << 40, version, rank, large))));
    regions
}

/// A region of constant length, each part of which changes only in some versions, so that files may refer to earlier ones for the rest.
fn slow(seed: u64, version: u64, rank: u32, large: bool) -> Vec<u8> {
    const PART: u64 = 4096;
    let mut shape = Rng::new(seed ^ u64::from(rank) << 32);
    let parts = shape.below(if large { 40 } else { 8 });
    let mut bytes = Vec::new();
    for part in 0..parts {
        let period = 1 + shape.below(5);
        let changed = (version + part) / period;
        let mut rng = Rng::new(seed ^ changed << 24 ^ part << 8 ^ u64::from(rank));
        bytes.extend((0..PART).map(|_| rng.next_u64() as u8));
    }
    bytes.extend((0..shape.below(100)).map(|at| (version / 3 + at) as u8));
    // Earlier data may now be in another place, and may be there twice.
    if parts > 2 && version.is_multiple_of(4) {
        bytes.rotate_left(PART as usize / 2);
        bytes.copy_within(..PART as usize, PART as usize);
    }
    bytes
}
