//! What a planner knows: the data that the other files change.
#![forbid(unsafe_code)]

use super::entry::Entry;
use super::order::Order;
use super::queue::{QUEUES, Queue};
use super::space::Space;
use super::{EntryId, Link, Owner, Piece, Tier};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a tier is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierOptions {
    /// Allocations are rounded up to this many bytes. 64 KiB on the device and 4 KiB elsewhere keep copies and direct
    /// I/O aligned.
    pub unit: u64,
    /// The maximum number of bytes that it may ever have; 0 for a tier that does not exist.
    pub capacity: u64,
}

/// What a [`Cache`] is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// GPU memory. It has no bytes until [`Cache::add_span`] gives it some.
    pub device: TierOptions,
    /// Node memory, likewise.
    pub host: TierOptions,
    /// A file, which has all its bytes from the start.
    pub store: TierOptions,
}

/// How a version that is not here any more has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Consumed,
    Lost,
}

/// One tier's space.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub space: Space,
    pub capacity: u64,
    /// Spans are still to come.
    pub mapping: bool,
}

impl Seat {
    fn new(options: TierOptions) -> Seat {
        let space = Space::new(options.unit);
        Seat { space, capacity: options.capacity, mapping: options.capacity > 0 }
    }
}

/// One history.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    pub order: Order,
    pub started: bool,
    pub closed: bool,
    /// Where in the restore order `claim_ahead` stopped: every version that is hinted before this place is
    /// claimed, or not on the device.
    pub stopped_at: Option<u64>,
    /// Versions that are not here any more.
    pub ended: BTreeMap<u64, End>,
}

/// A job under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub id: EntryId,
    pub link: Link,
    pub bytes: u64,
    pub started: Duration,
}

/// The planner of histories over three tiers. The [module](super) explains how it is used.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) tiers: [Seat; 3],
    pub(super) entries: BTreeMap<EntryId, Entry>,
    /// The versions that have a copy on each tier.
    pub(super) residents: [BTreeSet<EntryId>; 3],
    /// What Down and Out flush, and what may leave each tier.
    pub(super) queues: [Queue; QUEUES],
    /// Bytes of all versions that are here, and of the largest that ever was.
    pub(super) entry_bytes: u64,
    /// How many of them have each length.
    pub(super) lengths: BTreeMap<u64, u64>,
    pub(super) largest: u64,
    pub(super) histories: BTreeMap<u32, History>,
    /// Jobs under way, by ticket.
    pub(super) flights: BTreeMap<u64, Flight>,
    /// Owners that were told to wait for room.
    pub(super) waiting: BTreeSet<Owner>,
    pub(super) staged: BTreeMap<u64, Vec<Piece>>,
    pub(super) staged_bytes: u64,
    pub(super) rates: [u64; 4],
    pub(super) failures: [u64; 4],
    pub(super) tickets: u64,
    pub(super) serials: u64,
}

impl Cache {
    /// A planner without device and host memory: [`add_span`](Cache::add_span) provides it.
    ///
    /// # Panics
    /// If a unit is 0.
    pub fn new(options: Options) -> Cache {
        let mut tiers = [options.device, options.host, options.store].map(Seat::new);
        let store = &mut tiers[Tier::Store as usize];
        store.space.add_span(0, options.store.capacity);
        store.mapping = false;
        Cache {
            tiers,
            entries: BTreeMap::new(),
            residents: Default::default(),
            queues: Default::default(),
            entry_bytes: 0,
            lengths: BTreeMap::new(),
            largest: 0,
            histories: BTreeMap::new(),
            flights: BTreeMap::new(),
            waiting: BTreeSet::new(),
            staged: BTreeMap::new(),
            staged_bytes: 0,
            rates: [0; 4],
            failures: [0; 4],
            tickets: 0,
            serials: 0,
        }
    }
}
