//! Which tiers exist, nearest first, and what the rest of the program must know to use one.
//!
//! [`TIERS`] is the only list of tiers; [`making`](super::making) shows how the file tiers that all nodes share are made. A tier is named
//! by its place in the list ([`TierId`]), and code that needs to know something about a tier asks its [`TierSpec`]: no code compares names.
#![forbid(unsafe_code)]

use crate::base::Level;
use crate::config::{JobConfig, LevelPolicy};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Index, IndexMut};

/// How copies reach a tier, and how they are read from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// They exist when a capture returns: slots of node-shared memory.
    Memory,
    /// Ranks exchange them: the memory and storage of the other nodes of a redundancy set.
    Peers,
    /// They are written in the background, and read again, through [`Tier`](super::Tier).
    Files,
}

/// What the configuration says about a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Is the tier to be used?
    pub is_enabled: bool,
    /// If a rank cannot use the tier, the session does not open.
    pub is_required: bool,
    /// What the tier receives and what stays there. `None` if that is decided elsewhere.
    pub policy: Option<LevelPolicy>,
}

/// How the ranks of a node put their shards into one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathering {
    /// They do not; each rank has a file of its own.
    Apart,
    /// Each rank writes its own slice ([`Writers::Node`](super::Writers::Node)).
    Slices,
    /// One rank writes the shards of all from node memory.
    ByOne,
}

/// What the rest of the program must know about a tier to use it.
#[derive(Debug)]
pub struct TierSpec {
    /// The name in messages, logs, statistics and the configuration.
    pub name: &'static str,
    /// What a checkpoint survives if all its shards are on this tier. Several tiers may have the same level.
    pub level: Level,
    /// How copies reach the tier.
    pub means: Means,
    /// Do all nodes see the same tier? Otherwise each node has its own, which the others do not see.
    pub is_shared: bool,
    /// How the ranks of a node put their shards into one file, where that is possible.
    pub gathering: Gathering,
    /// What a configuration says about the tier.
    pub wish: fn(&JobConfig) -> Wish,
}

/// All tiers, nearest first: a restart reads from the nearest copy.
pub const TIERS: [TierSpec; 5] = [
    TierSpec {
        name: "memory",
        level: Level::Process,
        means: Means::Memory,
        is_shared: false,
        gathering: Gathering::Apart,
        wish: |job| Wish { is_enabled: job.memory_enabled, is_required: job.memory_required, policy: None },
    },
    TierSpec {
        name: "local",
        level: Level::NodeReboot,
        means: Means::Files,
        is_shared: false,
        gathering: Gathering::Apart,
        wish: |job| Wish { is_enabled: job.local_enabled, is_required: job.local_required, policy: Some(job.local) },
    },
    TierSpec {
        name: "peers",
        level: Level::NodeLoss,
        means: Means::Peers,
        is_shared: true,
        gathering: Gathering::Apart,
        wish: |job| Wish { is_enabled: job.redundancy.first_scheme().is_some(), is_required: false, policy: None },
    },
    TierSpec {
        name: "global",
        level: Level::System,
        means: Means::Files,
        is_shared: true,
        gathering: Gathering::Slices,
        wish: |job| Wish { is_enabled: job.global_enabled, is_required: job.global_required, policy: Some(job.global) },
    },
    TierSpec {
        name: "object",
        level: Level::System,
        means: Means::Files,
        is_shared: true,
        gathering: Gathering::ByOne,
        wish: |job| Wish {
            is_enabled: job.object_url.is_some(),
            is_required: job.object_required,
            policy: Some(job.object),
        },
    },
];

/// A tier, by its place in [`TIERS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct TierId(u8);

impl TierId {
    /// Node-shared memory.
    pub const MEMORY: TierId = TierId::named("memory");
    /// Node-local storage.
    pub const LOCAL: TierId = TierId::named("local");
    /// The memory and storage of other nodes: partner copies and parity.
    pub const PEERS: TierId = TierId::named("peers");
    /// The parallel file system.
    pub const GLOBAL: TierId = TierId::named("global");
    /// An object store.
    pub const OBJECT: TierId = TierId::named("object");

    /// The tier with that name. A name that is not in the table does not compile.
    const fn named(name: &str) -> TierId {
        let mut at = 0;
        while at < TIERS.len() {
            if is_equal(TIERS[at].name.as_bytes(), name.as_bytes()) {
                return TierId(at as u8);
            }
            at += 1;
        }
        panic!("no tier has that name")
    }

    /// All tiers, nearest first.
    pub fn all() -> impl ExactSizeIterator<Item = TierId> + DoubleEndedIterator + Clone {
        (0..TIERS.len()).map(|at| TierId(at as u8))
    }

    /// The tiers that are written and read through [`Tier`](super::Tier), nearest first.
    pub fn files() -> impl DoubleEndedIterator<Item = TierId> + Clone {
        TierId::all().filter(|tier| tier.spec().means == Means::Files)
    }

    /// The tier's place among all tiers, for messages.
    pub fn index(self) -> u8 {
        self.0
    }

    /// The tier at that place, if there is one.
    pub fn at(index: u8) -> Option<TierId> {
        (usize::from(index) < TIERS.len()).then_some(TierId(index))
    }

    /// The specification of the tier.
    pub fn spec(self) -> &'static TierSpec {
        &TIERS[usize::from(self.0)]
    }

    /// The name used in messages, logs and statistics.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// What a checkpoint survives if all its shards are on this tier.
    pub fn level(self) -> Level {
        self.spec().level
    }

    /// What a configuration says about the tier.
    pub fn wish(self, job: &JobConfig) -> Wish {
        (self.spec().wish)(job)
    }
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl From<TierId> for u8 {
    fn from(tier: TierId) -> u8 {
        tier.0
    }
}

impl TryFrom<u8> for TierId {
    type Error = &'static str;

    fn try_from(index: u8) -> Result<TierId, &'static str> {
        TierId::at(index).ok_or("no tier has that number")
    }
}

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One value per tier.
///
/// ```
/// use bivouac_core::tier::{PerTier, TierId};
///
/// let mut bytes = PerTier::<u64>::default();
/// bytes[TierId::LOCAL] += 7;
/// assert_eq!((bytes[TierId::LOCAL], bytes.iter().map(|(_, bytes)| bytes).sum::<u64>()), (7, 7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PerTier<T>([T; TIERS.len()]);

impl<T> PerTier<T> {
    /// Values made by calling `of` for each tier.
    pub fn new(of: impl FnMut(TierId) -> T) -> PerTier<T> {
        let mut of = of;
        PerTier(std::array::from_fn(|at| of(TierId(at as u8))))
    }

    /// Each tier with its value, nearest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (TierId, &T)> {
        TierId::all().zip(self.0.iter())
    }

    /// Each tier with its value, which can be changed, nearest first.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (TierId, &mut T)> {
        TierId::all().zip(self.0.iter_mut())
    }
}

/// Gives these tiers their values; the others have the default value.
impl<T: Default, const N: usize> From<[(TierId, T); N]> for PerTier<T> {
    fn from(values: [(TierId, T); N]) -> PerTier<T> {
        let mut of = PerTier::new(|_| T::default());
        for (tier, value) in values {
            of[tier] = value;
        }
        of
    }
}

impl<T> Index<TierId> for PerTier<T> {
    type Output = T;

    fn index(&self, tier: TierId) -> &T {
        &self.0[usize::from(tier.0)]
    }
}

impl<T> IndexMut<TierId> for PerTier<T> {
    fn index_mut(&mut self, tier: TierId) -> &mut T {
        &mut self.0[usize::from(tier.0)]
    }
}

impl<T: fmt::Debug> fmt::Debug for PerTier<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Some of the tiers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierSet(u8);

impl TierSet {
    /// The set that the bits of a message stand for. Bits that belong to no tier are ignored.
    pub fn from_bits(bits: u64) -> TierSet {
        TierSet(bits as u8).and(TierSet::ALL)
    }

    /// One bit for each tier, for messages.
    pub fn bits(self) -> u64 {
        self.0.into()
    }

    /// No tier.
    pub const NONE: TierSet = TierSet(0);
    /// All tiers.
    pub const ALL: TierSet = TierSet((1 << TIERS.len()) - 1);

    /// This tier alone.
    pub fn of(tier: TierId) -> TierSet {
        TierSet(1 << tier.0)
    }

    /// Is the tier in the set?
    pub fn has(self, tier: TierId) -> bool {
        self.0 & (1 << tier.0) != 0
    }

    /// Removes a tier.
    pub fn remove(&mut self, tier: TierId) {
        self.0 &= !TierSet::of(tier).0;
    }

    /// Adds a tier.
    pub fn insert(&mut self, tier: TierId) {
        self.0 |= 1 << tier.0;
    }

    /// The tiers that are in both sets.
    #[must_use]
    pub fn and(self, other: TierSet) -> TierSet {
        TierSet(self.0 & other.0)
    }

    /// The tiers that are in at least one of the two sets.
    #[must_use]
    pub fn or(self, other: TierSet) -> TierSet {
        TierSet(self.0 | other.0)
    }

    /// Is the set empty?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The tiers of the set, nearest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = TierId> {
        TierId::all().filter(move |tier| self.has(*tier))
    }
}

impl FromIterator<TierId> for TierSet {
    fn from_iter<I: IntoIterator<Item = TierId>>(tiers: I) -> TierSet {
        tiers.into_iter().fold(TierSet::NONE, |set, tier| set.or(TierSet::of(tier)))
    }
}

impl fmt::Debug for TierSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
