//! Which checkpoints descend from which, and which of them a restart may take. Pure.
//!
//! A [`Candidate`] is a checkpoint of which some rank has seen a shard. [`restorable`] applies the ancestry
//! ([`Lineage`]), which shows the older versions that a run left behind on purpose.
#![forbid(unsafe_code)]

use crate::base::{CheckpointKey, Generation, Incarnation, Origin};
use serde::{Deserialize, Serialize};

/// How many candidates one round of an election looks at.
pub const WINDOW: usize = 32;

/// A checkpoint that a rank knows about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// The checkpoint. The order of candidates is the order of their keys.
    pub key: CheckpointKey,
    /// The agreement hash of its shards.
    pub agreement: u64,
    /// The number of ranks in the group that took it.
    pub group_size: u32,
    /// The last restart of its run before the checkpoint was taken.
    pub origin: Option<Origin>,
}

impl Candidate {
    /// The candidate as bytes that compare in the same way as candidates, for [`Candidate::of_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let CheckpointKey { generation, version, operation, incarnation } = self.key;
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>();
        let mut bytes = numbers(&[generation.0, version, operation]);
        bytes.extend(incarnation.0);
        bytes.extend(numbers(&[self.agreement, self.group_size.into()]));
        if let Some(Origin { generation, version, operation, restart }) = self.origin {
            bytes.extend(numbers(&[generation.0, version, operation, restart]));
        }
        bytes
    }

    /// The candidate that [`Candidate::to_bytes`] encoded.
    pub fn of_bytes(bytes: &[u8]) -> Option<Candidate> {
        let (key, rest) = bytes.split_at_checked(24)?;
        let (incarnation, rest) = rest.split_at_checked(16)?;
        let numbers = |bytes: &[u8]| -> Option<Vec<u64>> {
            let chunks = bytes.chunks(8).map(|chunk| Some(u64::from_be_bytes(chunk.try_into().ok()?)));
            chunks.collect()
        };
        let [generation, version, operation] = numbers(key)?[..] else { return None };
        let incarnation = Incarnation(incarnation.try_into().ok()?);
        let rest = numbers(rest)?;
        let (agreement, group_size, origin) = match rest[..] {
            [agreement, group_size] => (agreement, group_size, None),
            [agreement, group_size, generation, version, operation, restart] => (
                agreement,
                group_size,
                Some(Origin { generation: Generation(generation), version, operation, restart }),
            ),
            _ => return None,
        };
        let key = CheckpointKey { generation: Generation(generation), version, operation, incarnation };
        Some(Candidate { key, agreement, group_size: group_size.try_into().ok()?, origin })
    }
}

/// Did the same run take both? If a claim is lost with its disk, two runs may get the same generation, and their operations cannot be
/// compared.
fn is_same_run(one: &CheckpointKey, other: &CheckpointKey) -> bool {
    (one.generation, one.incarnation) == (other.generation, other.incarnation)
}

/// Did the same run take one before the other?
fn is_earlier(one: &CheckpointKey, other: &CheckpointKey) -> bool {
    is_same_run(one, other) && one.operation < other.operation
}

/// Is a checkpoint on the same stretch of a run (between two restarts) as `last`, and not after it?
fn is_on_stretch(candidate: &Candidate, last: &Candidate) -> bool {
    // If a version was taken more than once, only the form that counted is on the path.
    candidate == last
        || (candidate.origin == last.origin
            && is_earlier(&candidate.key, &last.key)
            && candidate.key.version < last.key.version)
}

/// The ancestry of a checkpoint: the stretches of runs that it descends from, newest first.
///
/// If another run, or a restart within the same run, later went back to an older version, the versions after that one
/// have been left behind on purpose: they are listed, but elected only on request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The last checkpoint of each stretch.
    path: Vec<Candidate>,
}

impl Lineage {
    /// The lineage of the newest complete candidate, as far as the `known` candidates show it.
    pub fn of_newest(complete: &[Candidate], known: &[Candidate]) -> Self {
        newest(complete).map_or_else(Lineage::default, |newest| Lineage::of(newest, known))
    }

    /// The lineage of one candidate.
    pub fn of(newest: &Candidate, known: &[Candidate]) -> Self {
        let mut path = vec![*newest];
        let mut child = *newest;
        while let Some(origin) = child.origin {
            // The parent is the restored checkpoint or, because that may have been deleted since, the nearest one before it that is left.
            let is_parent = |c: &&Candidate| {
                c.key.generation == origin.generation
                    && c.key.version <= origin.version
                    && c.key.operation <= origin.operation
                    && (!is_same_run(&c.key, &child.key) || is_earlier(&c.key, &child.key))
            };
            let parent = known.iter().filter(is_parent).max_by_key(|c| (c.key.version, c.key.operation));
            match parent {
                // A damaged record could lead in a circle.
                Some(parent) if !path.contains(parent) => child = *parent,
                _ => break,
            }
            path.push(child);
        }
        Lineage { path }
    }

    /// Is that checkpoint on the path?
    pub fn contains(&self, candidate: &Candidate) -> bool {
        self.path.iter().any(|last| is_on_stretch(candidate, last))
    }
}

/// The candidate from which a run would continue: the newest in the order of keys, unless its own run later went back to an earlier one and
/// took others.
pub fn newest(complete: &[Candidate]) -> Option<&Candidate> {
    let mut newest = complete.iter().max()?;
    loop {
        let behind = (newest.key.generation, newest.key.version);
        let is_behind = |origin: Origin| (origin.generation, origin.version) < behind;
        let went_back = |c: &&Candidate| is_earlier(&newest.key, &c.key) && c.origin.is_some_and(is_behind);
        match complete.iter().filter(went_back).max() {
            Some(later) => newest = later,
            None => return Some(newest),
        }
    }
}

/// The candidates that a restart may try without a requested version, newest first, and those that were left behind.
///
/// `complete[i]` says whether all ranks can restore `known[i]`.
pub fn restorable(known: &[Candidate], complete: &[bool]) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut usable: Vec<Candidate> =
        known.iter().zip(complete).filter(|(_, complete)| **complete).map(|(candidate, _)| *candidate).collect();
    usable.sort_unstable_by(|x, y| y.cmp(x));
    let lineage = Lineage::of_newest(&usable, known);
    usable.into_iter().partition(|candidate| lineage.contains(candidate))
}

/// The restarts of a series from which its run descends, oldest first. Each begins a stretch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretches(Vec<Origin>);

impl Stretches {
    /// Notes that the run has gone back to a checkpoint. What it restored after that checkpoint was taken is no longer an ancestor.
    pub fn begin(&mut self, ours: Generation, origin: Origin) {
        self.0.retain(|earlier| origin.generation == ours && earlier.restart < origin.operation);
        self.0.push(origin);
    }

    /// The last restart.
    pub fn last(&self) -> Option<Origin> {
        self.0.last().copied()
    }

    /// The checkpoint of an earlier run that this run restored: its first ancestor there.
    pub(super) fn inherited(&self, ours: Generation) -> Option<Origin> {
        self.0.first().copied().filter(|origin| origin.generation < ours)
    }

    /// Does the run continue from something that another run took?
    pub fn inherits(&self, ours: Generation) -> bool {
        self.inherited(ours).is_some()
    }

    /// Is the checkpoint that the run took in that earlier operation still an ancestor of those that it takes now?
    pub(super) fn descend_from(&self, ours: Generation, operation: u64) -> bool {
        // Did the first restart after the operation go back to it, or to a later one?
        let next = self.0.iter().find(|origin| origin.restart > operation);
        next.is_none_or(|origin| origin.generation == ours && origin.operation >= operation)
    }
}
