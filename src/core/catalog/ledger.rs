//! Which copies of checkpoints exist where, and which of them may be deleted: all code that deletes copies asks a [`Ledger`] first. Pure.
//!
//! The asker enters what it can see as [`LedgerEntry`]s: slots of node memory and folders of a directory tier. Each entry has the levels
//! that its checkpoint is known to have reached, and those that it may have reached without the asker's knowledge. Then [`Ledger::judge`]
//! rules on each entry: [`Ruling::Go`], or [`Ruling::Keep`] with the [`Reason`], which the log and the tools show.
//!
//! # What is needed
//!
//! A level of a series is safe as long as the newest checkpoint that has reached it can be restored at that level. So a copy is *needed*
//! for a level if its checkpoint has, or may have, that level, and if nothing as new outlasts the copy: no later checkpoint is known to
//! have the level in the same place, and no checkpoint that is as new is in a place that survives more. A copy that is needed is never
//! deleted, whoever asks.
//!
//! | level | is provided by | outlasted by |
//! |---|---|---|
//! | process | slots of node memory | local storage, the global tier |
//! | node-loss | the parts of redundancy sets, in slots (or on local storage) | the global tier (or local storage with this level, too) |
//! | node-reboot, system | folders of their tiers | (retention keeps the newest there) |
//!
//! Level node-loss does not outlast level process: a redundancy set may be in the very memory that is to be freed.
//!
//! Copies in flight, and copies that other copies need ([`LedgerEntry::needs`]), are also kept. The [`Occasion`] decides on all others.
#![forbid(unsafe_code)]

use super::lineage::Stretches;
use crate::base::{CheckpointKey, Generation, Level, Origin};
use crate::config::LevelPolicy;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// When a checkpoint was taken: later means newer. Version numbers do not tell this, because the application chooses them, and an
/// application that has gone back takes smaller ones later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment {
    /// The run that took it.
    pub generation: Generation,
    /// The number of the run's collective call that took it.
    pub operation: u64,
}

impl Moment {
    /// When the checkpoint with this key was taken.
    pub fn of(key: &CheckpointKey) -> Moment {
        Moment { generation: key.generation, operation: key.operation }
    }
}

/// A set of levels.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Levels(u8);

impl Levels {
    /// No level.
    pub const NONE: Levels = Levels(0);

    /// The levels that a note of the highest level proves. A note of node-loss says nothing about local storage, and a note of system says
    /// nothing about the tiers below. Either proves level process, because all shards were captured.
    pub fn noted(highest: Level) -> Levels {
        match highest {
            Level::Captured => Levels::NONE,
            Level::Process => Levels::NONE.with(Level::Process),
            other => Levels::NONE.with(Level::Process).with(other),
        }
    }

    /// These levels and this one.
    #[must_use]
    pub fn with(self, level: Level) -> Levels {
        Levels(self.0 | 1 << level as u8)
    }

    /// The levels that are in either set.
    #[must_use]
    pub fn or(self, other: Levels) -> Levels {
        Levels(self.0 | other.0)
    }

    /// These levels without this one.
    #[cfg(test)]
    pub(super) fn without(self, level: Level) -> Levels {
        Levels(self.0 & !(1 << level as u8))
    }

    /// Is this level in the set?
    pub fn has(self, level: Level) -> bool {
        self.0 & 1 << level as u8 != 0
    }

    /// The highest level in the set.
    pub fn highest(self) -> Option<Level> {
        Level::VOTED.into_iter().rev().find(|level| self.has(*level))
    }

    /// Does the checkpoint outlive this node's memory?
    pub fn is_durable(self) -> bool {
        self.has(Level::NodeReboot) || self.has(Level::System)
    }
}

/// A kind of place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A slot of node memory.
    Slot,
    /// A folder of a directory tier. All folders in a ledger belong to one tier.
    Folder,
}

/// A checkpoint's bytes in one place, or a part of them.
#[derive(Clone, Debug)]
pub struct LedgerEntry<S> {
    /// The series.
    pub series: S,
    /// When the checkpoint was taken.
    pub taken: Moment,
    /// The version number, which the application chose.
    pub version: u64,
    /// The place.
    pub place: Place,
    /// The levels on which all ranks are known to have agreed. A folder without the level of its tier is a leftover, or is still being
    /// written.
    pub known: Levels,
    /// The levels on which the ranks may have agreed without the asker's knowledge.
    pub doubt: Levels,
    /// Bytes or votes are on their way.
    pub is_open: bool,
    /// Checkpoints without which this one cannot be restored.
    pub needs: Vec<Moment>,
}

impl<S> LedgerEntry<S> {
    /// The levels that the checkpoint has or may have.
    fn possible(&self) -> Levels {
        self.known.or(self.doubt)
    }

    fn order(&self) -> (Generation, u64, u64) {
        (self.taken.generation, self.version, self.taken.operation)
    }
}

/// The checkpoints of a series that are known to be safe in places whose copies are not in the ledger.
#[derive(Clone, Copy, Default, Debug)]
pub struct Elsewhere {
    /// The newest checkpoint that outlives node memory.
    pub durable: Option<Moment>,
    /// The newest checkpoint on the global tier.
    pub global: Option<Moment>,
}

/// Why copies are to be deleted.
#[derive(Clone, Debug)]
pub enum Occasion<'a> {
    /// `committed`, a checkpoint of this run, has just reached the tier's level: which folders does the tier's policy give up?
    Retention {
        /// The checkpoint.
        committed: CheckpointKey,
        /// The tier's level.
        level: Level,
        /// The restarts of the series from which this run descends.
        stretches: &'a Stretches,
        /// Which folders are kept.
        policy: &'a LevelPolicy,
        /// If parts of redundancy sets are on this tier: has this run reached the level that these parts are for?
        parts: Option<bool>,
        /// Operations of this run whose folders the root has said to keep.
        stays: &'a BTreeSet<u64>,
    },
    /// A level was settled: what can the run's own memory give up? The newest checkpoint stays, so that a restart is quick.
    Settled,
    /// The application waits for memory: only what is needed stays.
    Pressed,
    /// The run has ended: only what is needed stays.
    Ended,
    /// All ranks continue from `elected`: copies of its series that older runs left in memory may be deleted. Copies that may survive lost
    /// nodes stay, unless `elected` survives them, too (because of `is_global`, or through its slots).
    Elected {
        /// The checkpoint.
        elected: Moment,
        /// The checkpoint is on the global tier.
        is_global: bool,
    },
    /// A user asks for the deletion. `newest` is the checkpoint from which a restart would continue, as far as the tier shows
    /// ([`super::lineage::newest`]).
    Asked {
        /// The newest checkpoint.
        newest: Option<Moment>,
    },
}

/// Why a copy stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Bytes or votes are on their way.
    Open,
    /// It may have been committed at this level, and it is newer than every checkpoint that is known to have been.
    Doubt(Level),
    /// It is the newest of its series at this level.
    Newest(Level),
    /// The ranks have elected it.
    Elected,
    /// It may survive lost nodes, and the checkpoint that was elected or committed since does not.
    Protects,
    /// A later run took it.
    LaterRun,
    /// It is one of the newest checkpoints, which the policy keeps.
    Last,
    /// The policy keeps its version for good.
    Pinned,
    /// A run that this one does not continue from took it, or has left it behind.
    NotOurs,
    /// This checkpoint cannot be restored without it.
    NeededBy(Moment),
    /// Files of later checkpoints refer to it, or may do so.
    Source,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Open => f.write_str("being written"),
            Reason::Doubt(level) => write!(f, "may be the newest at level {level}: the ranks' verdict was not heard"),
            Reason::Newest(level) => write!(f, "the newest at level {level}"),
            Reason::Elected => f.write_str("the one that was restored"),
            Reason::Protects => f.write_str("may survive lost nodes, which nothing newer is known to do"),
            Reason::LaterRun => f.write_str("of a later run"),
            Reason::Last => f.write_str("among the last (keep_last)"),
            Reason::Pinned => f.write_str("kept for good (keep_every)"),
            Reason::NotOurs => f.write_str("left behind, or of a run that no later run continued from"),
            Reason::Source => f.write_str("files of later checkpoints refer to it, or may come to"),
            Reason::NeededBy(taken) => {
                write!(f, "needed by operation {} of run {}", taken.operation, taken.generation)
            }
        }
    }
}

/// May a copy be deleted?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// It stays.
    Keep(Reason),
    /// Nobody needs it.
    Go,
}

impl Ruling {
    /// Why the copy stays, if it does.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Ruling::Keep(reason) => Some(reason),
            Ruling::Go => None,
        }
    }

    /// May the copy be deleted?
    pub fn may_go(self) -> bool {
        self == Ruling::Go
    }
}

/// The copies that an asker can see.
#[derive(Clone, Debug)]
pub struct Ledger<S> {
    entries: Vec<LedgerEntry<S>>,
    elsewhere: BTreeMap<S, Elsewhere>,
    /// The parts of redundancy sets are also on local storage.
    has_stored_parts: bool,
}

impl<S: Ord + Clone> Ledger<S> {
    /// A ledger of these entries. The rulings are in their order.
    pub fn new(entries: Vec<LedgerEntry<S>>) -> Ledger<S> {
        Ledger { entries, elsewhere: BTreeMap::new(), has_stored_parts: false }
    }

    /// Adds what is known to be safe in other places.
    #[must_use]
    pub fn with_elsewhere(mut self, elsewhere: BTreeMap<S, Elsewhere>) -> Ledger<S> {
        self.elsewhere = elsewhere;
        self
    }

    /// Sets whether the parts of redundancy sets are on local storage before their level counts.
    #[must_use]
    pub fn with_stored_parts(mut self, has_stored_parts: bool) -> Ledger<S> {
        self.has_stored_parts = has_stored_parts;
        self
    }

    /// The entries, in the order in which they were given.
    pub fn entries(&self) -> &[LedgerEntry<S>] {
        &self.entries
    }

    /// The newest checkpoint of a series that is known to have a level (or a level that outlasts it) in this kind of place. For level
    /// node-loss, all of the checkpoint's copies there must have the level, because a part that is kept for others has it before all ranks
    /// have agreed on it.
    pub fn newest(&self, series: &S, place: Place, level: Level) -> Option<Moment> {
        let reaches = |levels: Levels| levels.has(level) || (level == Level::NodeLoss && levels.has(Level::System));
        let mut known: BTreeMap<Moment, (bool, bool)> = BTreeMap::new();
        for entry in self.of(series).filter(|entry| entry.place == place) {
            let (some, all) = known.entry(entry.taken).or_insert((false, true));
            (*some, *all) = (*some || reaches(entry.known), *all && reaches(entry.known));
        }
        let counts = |(some, all): (bool, bool)| if level == Level::NodeLoss { all } else { some };
        known.into_iter().rev().find(|(_, told)| counts(*told)).map(|(taken, _)| taken)
    }

    /// The newest checkpoint of a series that has a level, or a level that outlasts it, outside node memory.
    fn outlasting(&self, series: &S, level: Level) -> Option<Moment> {
        let outlasts = |entry: &&LedgerEntry<S>| match level {
            Level::NodeLoss => {
                let is_stored = self.has_stored_parts && entry.known.has(Level::NodeReboot);
                entry.known.has(Level::System) || (is_stored && entry.known.has(Level::NodeLoss))
            }
            _ => entry.known.is_durable(),
        };
        let known = self.elsewhere.get(series).copied().unwrap_or_default();
        let elsewhere = if level == Level::NodeLoss { known.global } else { known.durable.max(known.global) };
        self.of(series).filter(outlasts).map(|entry| entry.taken).max().max(elsewhere)
    }

    /// The reason why a slot is needed by the rule of this module, if it is.
    fn need(&self, entry: &LedgerEntry<S>) -> Option<Reason> {
        [Level::Process, Level::NodeLoss].into_iter().find_map(|level| {
            let is_needed = entry.possible().has(level)
                && Some(entry.taken) > self.outlasting(&entry.series, level)
                && Some(entry.taken) >= self.newest(&entry.series, Place::Slot, level);
            let reason = if entry.known.has(level) { Reason::Newest(level) } else { Reason::Doubt(level) };
            is_needed.then_some(reason)
        })
    }

    fn of<'l>(&'l self, series: &'l S) -> impl Iterator<Item = &'l LedgerEntry<S>> {
        self.entries.iter().filter(move |entry| entry.series == *series)
    }

    /// The ruling on each entry, in order.
    pub fn judge(&self, occasion: &Occasion<'_>) -> Vec<Ruling> {
        let mut rulings: Vec<Ruling> = match occasion {
            Occasion::Retention { committed, level, stretches, policy, parts, .. } => {
                let (level, parts) = (*level, *parts);
                Retention { ledger: self, committed, level, stretches, policy, parts }.judge()
            }
            _ => self.entries.iter().map(|entry| self.judge_one(entry, occasion)).collect(),
        };
        self.keep_what_is_needed(&mut rulings);
        if let Occasion::Retention { committed, stays, .. } = occasion {
            let stays = |entry: &LedgerEntry<S>| {
                entry.taken.generation == committed.generation && stays.contains(&entry.taken.operation)
            };
            for (_, ruling) in self.entries.iter().zip(&mut rulings).filter(|(entry, _)| stays(entry)) {
                *ruling = if ruling.may_go() { Ruling::Keep(Reason::Source) } else { *ruling };
            }
        }
        rulings
    }

    fn judge_one(&self, entry: &LedgerEntry<S>, occasion: &Occasion<'_>) -> Ruling {
        if entry.is_open {
            return Ruling::Keep(Reason::Open);
        }
        let is_newest =
            |level| entry.known.has(level) && self.newest(&entry.series, entry.place, level) == Some(entry.taken);
        let reason = match occasion {
            Occasion::Settled if entry.doubt != Levels::NONE => entry.doubt.highest().map(Reason::Doubt),
            Occasion::Settled => {
                [Level::Process, Level::NodeLoss].into_iter().find(|level| is_newest(*level)).map(Reason::Newest)
            }
            Occasion::Pressed | Occasion::Ended => self.need(entry),
            Occasion::Elected { elected, .. } if entry.taken == *elected => Some(Reason::Elected),
            Occasion::Elected { elected, is_global } => {
                let mut other = self.of(&entry.series).filter(|other| other.taken == entry.taken);
                let protects = other.any(|other| other.known.highest() == Some(Level::NodeLoss));
                (protects && !*is_global && !self.is_protected(&entry.series, *elected)).then_some(Reason::Protects)
            }
            Occasion::Asked { newest } => {
                let level = entry.known.highest().filter(|_| Some(entry.taken) == *newest);
                level.map(Reason::Newest)
            }
            Occasion::Retention { .. } => None,
        };
        reason.map_or(Ruling::Go, Ruling::Keep)
    }

    /// Do the slots here show that a checkpoint survives lost nodes?
    fn is_protected(&self, series: &S, taken: Moment) -> bool {
        let levels = self.of(series).filter(|entry| entry.taken == taken).map(|entry| entry.known.highest());
        levels.min().is_some_and(|lowest| lowest >= Some(Level::NodeLoss))
    }

    /// Keeps every copy that a kept copy needs in order to be restored. Copies that such a source itself would need are not kept, because
    /// only the bytes that its own file stores count.
    fn keep_what_is_needed(&self, rulings: &mut [Ruling]) {
        let kept: Vec<usize> = (0..rulings.len()).filter(|at| !rulings[*at].may_go()).collect();
        for by in kept.into_iter().map(|at| &self.entries[at]).filter(|by| !by.needs.is_empty()) {
            for (index, base) in self.entries.iter().enumerate() {
                if base.series == by.series && by.needs.contains(&base.taken) && rulings[index].may_go() {
                    rulings[index] = Ruling::Keep(Reason::NeededBy(by.taken));
                }
            }
        }
    }
}

/// Decides which folders of one series the policy of a directory tier keeps.
struct Retention<'l, S> {
    ledger: &'l Ledger<S>,
    committed: &'l CheckpointKey,
    level: Level,
    stretches: &'l Stretches,
    policy: &'l LevelPolicy,
    parts: Option<bool>,
}

impl<S: Ord + Clone> Retention<'_, S> {
    fn is_current(&self, entry: &LedgerEntry<S>) -> bool {
        entry.taken == Moment::of(self.committed)
    }

    /// Did this run, or a run from which it descends, take the checkpoint?
    fn is_ancestor(&self, entry: &LedgerEntry<S>) -> bool {
        let ours = self.committed.generation;
        let generation = entry.taken.generation;
        let is_older =
            |o: Origin| generation < o.generation || (generation == o.generation && entry.version <= o.version);
        generation == ours || self.stretches.inherited(ours).is_some_and(is_older)
    }

    /// Why the folder stays, whatever the policy says.
    fn fixed(&self, entry: &LedgerEntry<S>) -> Option<Reason> {
        let now = Moment::of(self.committed);
        if entry.taken.generation > now.generation {
            return Some(Reason::LaterRun);
        }
        let is_own = entry.taken.generation == now.generation;
        // A later checkpoint can overtake this one; its folder counts as still being written.
        if !self.is_current(entry) && (entry.is_open || (is_own && entry.taken.operation > now.operation)) {
            return Some(Reason::Open);
        }
        let has_reached = self.parts?;
        // Folders from which lost nodes could be rebuilt stay until this run has such folders, too.
        let newest = || {
            let own = self.ledger.entries.iter().filter(|entry| entry.taken.generation == now.generation);
            own.filter(|entry| entry.known.has(Level::NodeLoss)).map(|entry| entry.taken).max()
        };
        let protects = if is_own { newest() == Some(entry.taken) } else { !has_reached };
        (protects && !self.is_current(entry)).then_some(Reason::Protects)
    }

    fn judge(&self) -> Vec<Ruling> {
        let entries = &self.ledger.entries;
        let ours = self.committed.generation;
        // Checkpoints that this run itself has rolled back are the first to be deleted.
        let is_rolled_back = |entry: &LedgerEntry<S>| {
            entry.taken.generation == ours && !self.stretches.descend_from(ours, entry.taken.operation)
        };
        let counts = |entry: &&LedgerEntry<S>| {
            self.is_current(entry)
                || (entry.known.has(self.level) && self.is_ancestor(entry) && self.fixed(entry).is_none())
        };
        let mut history: Vec<&LedgerEntry<S>> = entries.iter().filter(counts).collect();
        history.sort_unstable_by_key(|entry| Reverse((self.is_current(entry), !is_rolled_back(entry), entry.order())));
        let last: Vec<_> =
            history.iter().take(self.policy.keep_last.max(1) as usize).map(|entry| entry.order()).collect();
        let is_pinned =
            |entry: &LedgerEntry<S>| self.policy.keep_every > 0 && entry.version.is_multiple_of(self.policy.keep_every);
        let judge = |entry: &LedgerEntry<S>| {
            let reason = match self.fixed(entry) {
                Some(fixed) => Some(fixed),
                None if self.is_current(entry) || last.contains(&entry.order()) => Some(Reason::Last),
                None if !entry.known.has(self.level) => None,
                None if !self.is_ancestor(entry) => Some(Reason::NotOurs),
                None if is_pinned(entry) => Some(Reason::Pinned),
                None => None,
            };
            reason.map_or(Ruling::Go, Ruling::Keep)
        };
        entries.iter().map(judge).collect()
    }
}

/// A checkpoint folder on a directory tier, as a listing shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folder {
    /// The generation of the run that made it.
    pub generation: Generation,
    /// The version.
    pub version: u64,
    /// The operation.
    pub operation: u64,
    /// Is it known to be committed on this tier, by a manifest or by a verdict that this session heard?
    pub committed: bool,
}

impl Folder {
    /// When its checkpoint was taken.
    pub fn taken(&self) -> Moment {
        Moment { generation: self.generation, operation: self.operation }
    }

    /// The ledger entry of this folder, on a tier that provides `level`.
    pub fn entry<S>(&self, series: S, level: Level) -> LedgerEntry<S> {
        let known = if self.committed { Levels::NONE.with(level) } else { Levels::NONE };
        LedgerEntry {
            series,
            taken: self.taken(),
            version: self.version,
            place: Place::Folder,
            known,
            doubt: Levels::NONE,
            is_open: false,
            needs: Vec::new(),
        }
    }
}

/// Can a run do without this entry of an earlier run, given the highest level at which it has committed a checkpoint of the series?
pub fn is_succeeded<S>(entry: &LedgerEntry<S>, committed: Option<Level>) -> bool {
    committed.is_some_and(|ours| Some(ours) >= entry.known.highest())
}

/// The newest committed version of earlier runs, if run `ours` does not continue from any of them and so has started the series over.
pub fn started_over(folders: &[Folder], ours: Generation, stretches: &Stretches) -> Option<(Generation, u64)> {
    let earlier = folders.iter().filter(|folder| folder.committed && folder.generation < ours);
    let newest = earlier.map(|folder| (folder.generation, folder.version)).max();
    newest.filter(|_| !stretches.inherits(ours))
}
