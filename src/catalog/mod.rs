//! Which versions exist where, and which of them may be restored or deleted. Pure: no I/O, no messages.
//!
//! A [`Candidate`] is a checkpoint that somebody has seen a shard of. [`merge_newest`] unites what ranks have
//! seen, [`restorable`] applies lineage (which older versions a run left behind on purpose), and [`retention`]
//! says which folders may go after a commit.
#![forbid(unsafe_code)]

use crate::base::{CheckpointKey, Generation, Origin};
use crate::config::LevelPolicy;
use serde::{Deserialize, Serialize};

/// How many candidates one round of an election looks at.
pub const WINDOW: usize = 32;

/// A checkpoint that a rank knows of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// Which checkpoint; the order of candidates is the order of keys.
    pub key: CheckpointKey,
    /// The agreement hash of its shards.
    pub agreement: u64,
    /// Ranks in the group that took it.
    pub group_size: u32,
    /// The last restart that its run had made when it took this one.
    pub origin: Option<Origin>,
}

/// Unites two lists (each newest first) and keeps the newest [`WINDOW`].
pub fn merge_newest(a: &[Candidate], b: &[Candidate]) -> Vec<Candidate> {
    let mut all = [a, b].concat();
    all.sort_unstable_by(|x, y| y.cmp(x));
    all.dedup();
    all.truncate(WINDOW);
    all
}

/// Were both taken by the same run? A claim that was lost with its disk lets two runs have one generation; their operations
/// cannot be compared.
fn is_same_run(one: &CheckpointKey, other: &CheckpointKey) -> bool {
    (one.generation, one.incarnation) == (other.generation, other.incarnation)
}

/// Was one taken before the other by the same run?
fn is_earlier(one: &CheckpointKey, other: &CheckpointKey) -> bool {
    is_same_run(one, other) && one.operation < other.operation
}

/// Does a checkpoint lie on the same stretch of a run as `last`, between two restarts, and not after it?
fn is_on_stretch(candidate: &Candidate, last: &Candidate) -> bool {
    // The same version taken again lies on the way only in the form that counted.
    candidate == last
        || (candidate.origin == last.origin
            && is_earlier(&candidate.key, &last.key)
            && candidate.key.version < last.key.version)
}

/// The ancestry of a checkpoint: the stretches of runs that it descends from, newest first.
///
/// A version that lies after the one that was restored later, by another run or by a restart inside the same one, has
/// been left behind on purpose (somebody went back): it is listed, but never elected unasked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The last checkpoint of each stretch.
    path: Vec<Candidate>,
}

impl Lineage {
    /// The lineage of the newest complete candidate, as far as `known` candidates tell it.
    pub fn of_newest(complete: &[Candidate], known: &[Candidate]) -> Self {
        newest(complete).map_or_else(Lineage::default, |newest| Lineage::of(newest, known))
    }

    /// The lineage of one candidate.
    pub fn of(newest: &Candidate, known: &[Candidate]) -> Self {
        let mut path = vec![*newest];
        let mut child = *newest;
        while let Some(origin) = child.origin {
            // The nearest that is left of the one that was restored: it may have been deleted since.
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

    /// Does that checkpoint lie on the path?
    pub fn contains(&self, candidate: &Candidate) -> bool {
        self.path.iter().any(|last| is_on_stretch(candidate, last))
    }
}

/// The candidate that a run would go on from: the newest in the order of keys, unless its own run went back behind it
/// afterwards and took others.
fn newest(complete: &[Candidate]) -> Option<&Candidate> {
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

/// The candidates that an unasked restart may try, newest first, and those that were left behind.
///
/// `complete[i]` says whether all ranks can restore `known[i]`.
pub fn restorable(known: &[Candidate], complete: &[bool], group_size: u32) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut usable: Vec<Candidate> = known
        .iter()
        .zip(complete)
        .filter(|(candidate, complete)| **complete && candidate.group_size == group_size)
        .map(|(candidate, _)| *candidate)
        .collect();
    usable.sort_unstable_by(|x, y| y.cmp(x));
    let lineage = Lineage::of_newest(&usable, known);
    usable.into_iter().partition(|candidate| lineage.contains(candidate))
}

/// A checkpoint folder on a directory tier, as retention sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Generation of the run that made it.
    pub generation: Generation,
    /// Version.
    pub version: u64,
    /// Operation.
    pub operation: u64,
    /// Is it known to be committed at this tier (a manifest, or a verdict heard by this session)?
    pub committed: bool,
}

impl Folder {
    fn order(&self) -> (Generation, u64, u64) {
        (self.generation, self.version, self.operation)
    }
}

/// The restarts of a series that its run descends from, oldest first: the beginnings of its stretches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretches(Vec<Origin>);

impl Stretches {
    /// The run has gone back to a checkpoint. What it restored since that one was taken is no ancestor any more.
    pub fn begin(&mut self, ours: Generation, origin: Origin) {
        self.0.retain(|earlier| origin.generation == ours && earlier.restart < origin.operation);
        self.0.push(origin);
    }

    /// The last restart.
    pub fn last(&self) -> Option<Origin> {
        self.0.last().copied()
    }

    /// What the run restored of another run: its first ancestor there.
    fn inherited(&self, ours: Generation) -> Option<Origin> {
        self.0.first().copied().filter(|origin| origin.generation < ours)
    }

    /// Does the run go on from something that another run took?
    pub fn inherits(&self, ours: Generation) -> bool {
        self.inherited(ours).is_some()
    }

    /// Is what the run took in that operation, before now, still an ancestor of what it takes now?
    fn descend_from(&self, ours: Generation, operation: u64) -> bool {
        // The first restart after it: did that go back to it, or to something that came after it?
        let next = self.0.iter().find(|origin| origin.restart > operation);
        next.is_none_or(|origin| origin.generation == ours && origin.operation >= operation)
    }
}

/// The newest committed version of earlier runs, if run `ours` goes on from none of them: it has started the series over.
pub fn started_over(folders: &[Folder], ours: Generation, stretches: &Stretches) -> Option<(Generation, u64)> {
    let earlier = folders.iter().filter(|folder| folder.committed && folder.generation < ours);
    let newest = earlier.map(|folder| (folder.generation, folder.version)).max();
    newest.filter(|_| !stretches.inherits(ours))
}

/// Which folders may be deleted now that `committed` (one of this run's checkpoints) is committed at this tier.
///
/// Kept: everything of newer generations (we would be superseded), everything of this run from the committed
/// operation on (in flight), the newest `keep_last` committed ones up to and including it, every committed one
/// whose version is a multiple of `keep_every`, and committed ones of the run that this one goes on from, and of runs
/// after it, that are not our ancestors (`stretches` says what this run restored; runs before that one all count as
/// ancestors). All else is deleted: superseded versions, and incomplete leftovers of this run and of runs before it. Since `committed` itself is always kept, the newest restorable version never goes.
pub fn retention(
    folders: &[Folder],
    committed: &CheckpointKey,
    stretches: &Stretches,
    policy: &LevelPolicy,
) -> Vec<Folder> {
    let ours = committed.generation;
    let is_current = |f: &Folder| f.generation == ours && f.operation == committed.operation;
    let in_flight = |f: &Folder| f.generation > ours || (f.generation == ours && f.operation >= committed.operation);
    let inherited = stretches.inherited(ours);
    let ancestor = |f: &Folder| {
        let of_older =
            |o: Origin| f.generation < o.generation || (f.generation == o.generation && f.version <= o.version);
        f.generation == ours || inherited.is_some_and(of_older)
    };
    // Rolled back by this run itself: the first to go.
    let rolled_back = |f: &Folder| f.generation == ours && !stretches.descend_from(ours, f.operation);
    let mut history: Vec<&Folder> =
        folders.iter().filter(|f| is_current(f) || (f.committed && ancestor(f) && !in_flight(f))).collect();
    history.sort_unstable_by_key(|f| std::cmp::Reverse((is_current(f), !rolled_back(f), f.order())));
    let kept_last: Vec<_> = history.iter().take(policy.keep_last.max(1) as usize).map(|f| f.order()).collect();
    let pinned = |f: &Folder| policy.keep_every > 0 && f.version.is_multiple_of(policy.keep_every);
    folders
        .iter()
        .filter(|f| !in_flight(f))
        .filter(|f| !f.committed || (ancestor(f) && !pinned(f)))
        .filter(|f| !kept_last.contains(&f.order()))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn origin(generation: u64, version: u64, operation: u64, restart: u64) -> Origin {
        Origin { generation: Generation(generation), version, operation, restart }
    }

    /// What a run has restored, one after the other.
    fn stretches(ours: u64, origins: &[Origin]) -> Stretches {
        let mut stretches = Stretches::default();
        origins.iter().for_each(|origin| stretches.begin(Generation(ours), *origin));
        stretches
    }

    /// Versions are operations; what was restored was restored at once.
    fn candidate(generation: u64, version: u64, from: Option<(u64, u64)>) -> Candidate {
        Candidate {
            key: CheckpointKey {
                generation: Generation(generation),
                version,
                operation: version,
                ..Default::default()
            },
            agreement: 1,
            group_size: 4,
            origin: from.map(|(g, v)| origin(g, v, 99, 0)),
        }
    }

    /// One of generation 1.
    fn at(version: u64, operation: u64, origin: Option<Origin>) -> Candidate {
        let mut candidate = candidate(1, version, None);
        (candidate.key.operation, candidate.origin) = (operation, origin);
        candidate
    }

    fn folder(version: u64, operation: u64) -> Folder {
        Folder { generation: Generation(1), version, operation, committed: true }
    }

    fn names(list: &[Candidate]) -> Vec<(u64, u64)> {
        list.iter().map(|c| (c.key.version, c.key.operation)).collect()
    }

    fn policy(keep_last: u64, keep_every: u64) -> LevelPolicy {
        LevelPolicy { every: 1, every_seconds: Duration::ZERO, keep_last, keep_every }
    }

    #[test]
    fn versions_after_a_recorded_parent_are_left_behind() {
        let known =
            [candidate(2, 55, Some((1, 50))), candidate(1, 60, None), candidate(1, 50, None), candidate(1, 40, None)];
        let (usable, left) = restorable(&known, &[true; 4], 4);
        assert_eq!(usable.iter().map(|c| c.key.version).collect::<Vec<_>>(), [55, 50, 40]);
        assert_eq!(left.iter().map(|c| c.key.version).collect::<Vec<_>>(), [60]);
    }

    #[test]
    fn versions_that_a_run_rolled_back_itself_are_left_behind() {
        // 1 to 5; back to 3, taken 4 and 5 again; back to 3 once more, taken 4.
        let (first, second) = (Some(origin(1, 3, 3, 9)), Some(origin(1, 3, 3, 19)));
        let mut known = vec![at(1, 1, None), at(2, 2, None), at(3, 3, None), at(4, 4, None), at(5, 5, None)];
        known.extend([at(4, 10, first), at(5, 11, first)]);
        let (usable, left) = restorable(&known, &[true; 7], 4);
        assert_eq!(names(&usable)[..2], [(5, 11), (4, 10)]);
        assert_eq!(names(&usable)[2..], [(3, 3), (2, 2), (1, 1)]);
        assert_eq!(names(&left), [(5, 5), (4, 4)]);
        known.push(at(4, 20, second));
        let (usable, left) = restorable(&known, &[true; 8], 4);
        assert_eq!(names(&usable), [(4, 20), (3, 3), (2, 2), (1, 1)]);
        assert_eq!(names(&left), [(5, 11), (5, 5), (4, 10), (4, 4)]);
        // The parent is gone: what is older than it still counts.
        known.retain(|c| c.key.version != 3);
        assert_eq!(names(&restorable(&known, &[true; 7], 4).0), [(4, 20), (2, 2), (1, 1)]);
    }

    /// Back to 3, taken 4 and 5; back to 3, taken 4, 5 and 6: both stretches descend from the same checkpoint.
    #[test]
    fn of_two_stretches_from_one_checkpoint_only_the_later_one_counts() {
        let (first, second) = (origin(1, 3, 3, 9), origin(1, 3, 3, 19));
        let known = [
            at(6, 22, Some(second)),
            at(5, 21, Some(second)),
            at(5, 11, Some(first)),
            at(4, 20, Some(second)),
            at(4, 10, Some(first)),
            at(3, 3, None),
        ];
        let (usable, left) = restorable(&known, &[true; 6], 4);
        assert_eq!(names(&usable), [(6, 22), (5, 21), (4, 20), (3, 3)]);
        assert_eq!(names(&left), [(5, 11), (4, 10)]);
        let folders: Vec<Folder> = known.iter().map(|c| folder(c.key.version, c.key.operation)).collect();
        let doomed = |keep_last| {
            let mut gone = retention(&folders, &known[0].key, &stretches(1, &[first, second]), &policy(keep_last, 0));
            gone.sort_unstable_by_key(|folder| folder.operation);
            gone.iter().map(|folder| (folder.version, folder.operation)).collect::<Vec<_>>()
        };
        assert_eq!(doomed(3), [(3, 3), (4, 10), (5, 11)]);
        assert_eq!(doomed(4), [(4, 10), (5, 11)]);
    }

    #[test]
    fn of_a_version_that_was_taken_again_without_a_restart_only_the_last_form_counts() {
        let known = [at(4, 10, None), at(4, 4, None), at(3, 3, None)];
        let (usable, left) = restorable(&known, &[true; 3], 4);
        assert_eq!((names(&usable), names(&left)), (vec![(4, 10), (3, 3)], vec![(4, 4)]));
    }

    #[test]
    fn damaged_records_that_lead_in_a_circle_come_to_an_end() {
        let known = [candidate(2, 7, Some((1, 5))), candidate(1, 5, Some((2, 7)))];
        let (usable, left) = restorable(&known, &[true; 2], 4);
        assert_eq!((usable, left), (known.to_vec(), vec![]));
    }

    #[test]
    fn a_run_knows_which_of_its_own_checkpoints_it_descends_from() {
        // Taken 1 to 5; back to 3 of its own with operation 9, taken 10 to 12; back to 11 with 19; another run's with 29.
        let own = |upto: usize| {
            let all = [origin(1, 3, 3, 9), origin(1, 8, 11, 19), origin(1, 2, 2, 29), origin(0, 7, 40, 39)];
            let path = stretches(1, &all[..upto]);
            let ancestors = (1..=5).chain(10..=12).chain([20, 30, 40]);
            ancestors.filter(|operation| path.descend_from(Generation(1), *operation)).collect::<Vec<u64>>()
        };
        assert_eq!(own(0), [1, 2, 3, 4, 5, 10, 11, 12, 20, 30, 40]);
        assert_eq!(own(1), [1, 2, 3, 10, 11, 12, 20, 30, 40]);
        assert_eq!(own(2), [1, 2, 3, 10, 11, 20, 30, 40]);
        assert_eq!(own(3), [1, 2, 30, 40]);
        assert_eq!(own(4), [40]);
        assert_eq!(stretches(1, &[]).last(), None);
        assert_eq!(stretches(1, &[origin(1, 3, 3, 9), origin(1, 8, 11, 19)]).last(), Some(origin(1, 8, 11, 19)));
    }

    #[test]
    fn two_runs_that_share_a_generation_are_two_runs() {
        let mut older = candidate(4, 12, Some((2, 6)));
        older.key.operation = 17;
        let mut newer = candidate(4, 18, Some((4, 12)));
        newer.key.operation = 15;
        newer.key.incarnation = crate::base::Incarnation([7; 16]);
        let mut cut = older;
        (cut.key.version, cut.key.operation) = (14, 19);
        let (usable, left) = restorable(&[newer, cut, older], &[true; 3], 4);
        assert_eq!((usable, left), (vec![newer, older], vec![cut]));
    }

    #[test]
    fn retention_lets_go_first_what_was_rolled_back() {
        let folders = [folder(2, 2), folder(3, 3), folder(4, 4), folder(5, 5), folder(4, 10)];
        let committed = CheckpointKey { generation: Generation(1), version: 4, operation: 10, ..Default::default() };
        let doomed = retention(&folders, &committed, &stretches(1, &[origin(1, 3, 3, 9)]), &policy(2, 0));
        assert_eq!(doomed, [folder(2, 2), folder(4, 4), folder(5, 5)]);
    }

    #[test]
    fn only_committed_ancestors_that_are_not_later_count_among_the_last() {
        let committed = CheckpointKey { generation: Generation(2), version: 6, operation: 6, ..Default::default() };
        let of = |generation, version, operation, committed| Folder {
            generation: Generation(generation),
            version,
            operation,
            committed,
        };
        let folders = [
            of(2, 3, 3, true),
            of(2, 4, 4, true),
            of(2, 5, 5, false), // some rank could not write it
            of(2, 6, 6, true),
            of(2, 7, 7, true), // a later one was faster
            of(1, 9, 9, true), // another run's, which this one does not go on from
        ];
        let doomed = retention(&folders, &committed, &Stretches::default(), &policy(2, 0));
        assert_eq!(doomed, [of(2, 3, 3, true), of(2, 5, 5, false)]);
    }

    #[test]
    fn what_a_run_inherited_stays_longer_than_what_it_rolled_back_itself() {
        // Began from version 50 of the run before; took 55 and 57; went back to 55 with operation 4, and took 60.
        let of = |version, operation| Folder { generation: Generation(2), ..folder(version, operation) };
        let folders = [folder(50, 3), of(55, 1), of(57, 2), of(60, 6)];
        let committed = CheckpointKey { generation: Generation(2), version: 60, operation: 6, ..Default::default() };
        let path = stretches(2, &[origin(1, 50, 3, 0), origin(2, 55, 1, 4)]);
        let doomed = |keep_last| retention(&folders, &committed, &path, &policy(keep_last, 0));
        assert_eq!(doomed(3), [of(57, 2)]);
        assert_eq!(doomed(2), [folder(50, 3), of(57, 2)]);
    }

    #[test]
    fn of_other_runs_only_ancestors_go() {
        let of = |generation, version| Folder { generation: Generation(generation), ..folder(version, 1) };
        let committed = CheckpointKey { generation: Generation(4), version: 60, operation: 6, ..Default::default() };
        let folders = [of(1, 90), of(2, 40), of(2, 50), of(2, 60), of(3, 20), Folder { operation: 6, ..of(4, 60) }];
        let doomed = |origins: &[Origin]| retention(&folders, &committed, &stretches(4, origins), &policy(1, 0));
        assert_eq!(doomed(&[origin(2, 50, 1, 0)]), [of(1, 90), of(2, 40), of(2, 50)]);
        // A run that began from nothing has no ancestors there, also after it has gone back within itself.
        assert_eq!(doomed(&[]), []);
        assert_eq!(doomed(&[origin(4, 10, 1, 3)]), []);
    }

    #[test]
    fn a_run_that_goes_on_from_no_earlier_one_has_started_the_series_over() {
        let of = |generation, version, committed| Folder {
            generation: Generation(generation),
            committed,
            ..folder(version, 1)
        };
        let folders = [of(1, 90, true), of(2, 40, true), of(2, 60, false), of(3, 20, true), of(4, 99, true)];
        let over = |folders: &[Folder], origins: &[Origin]| {
            started_over(folders, Generation(3), &stretches(3, origins))
                .map(|(generation, version)| (generation.0, version))
        };
        assert_eq!(over(&folders, &[]), Some((2, 40)));
        // It went back within itself only.
        assert_eq!(over(&folders, &[origin(3, 10, 1, 3)]), Some((2, 40)));
        assert_eq!(over(&folders, &[origin(1, 90, 1, 0)]), None);
        // Nothing to go on from, or nothing that counts.
        assert_eq!(over(&folders[3..], &[]), None);
        assert_eq!(over(&folders[2..], &[]), None);
    }

    #[test]
    fn version_zero_is_pinned_like_any_other() {
        let committed = CheckpointKey { generation: Generation(1), version: 6, operation: 6, ..Default::default() };
        let folders = [folder(0, 1), folder(4, 2), folder(5, 3), folder(6, 6)];
        let doomed = |keep_every| retention(&folders, &committed, &Stretches::default(), &policy(1, keep_every));
        assert_eq!(doomed(4), [folder(5, 3)]);
        assert_eq!(doomed(0), [folder(0, 1), folder(4, 2), folder(5, 3)]);
    }

    #[test]
    fn an_incomplete_newer_run_does_not_hide_the_older_one() {
        let known = [candidate(2, 10, None), candidate(1, 60, None)];
        let (usable, _) = restorable(&known, &[false, true], 4);
        assert_eq!(usable[0].key.version, 60);
    }

    #[test]
    fn another_group_size_is_never_usable() {
        assert!(restorable(&[candidate(1, 1, None)], &[true], 8).0.is_empty());
    }

    #[test]
    fn the_window_keeps_the_newest_of_both() {
        let many: Vec<_> = (0..40).rev().map(|v| candidate(1, v, None)).collect();
        let merged = merge_newest(&many[..20], &many[10..]);
        assert_eq!(merged.len(), WINDOW);
        assert_eq!(merged[0].key.version, 39);
        assert!(merged.windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn retention_keeps_the_last_the_pinned_and_the_left_behind() {
        let folder = |g, v, o, committed| Folder { generation: Generation(g), version: v, operation: o, committed };
        let folders = [
            folder(1, 40, 4, true),
            folder(1, 50, 5, true),
            folder(1, 60, 6, true),  // left behind: we restored 50
            folder(1, 70, 7, false), // incomplete leftover
            folder(2, 55, 1, true),
            folder(2, 60, 2, true),
            folder(2, 65, 3, false), // in flight
            folder(3, 1, 1, true),   // a newer run
        ];
        let committed = CheckpointKey { generation: Generation(2), version: 60, operation: 2, ..Default::default() };
        let doomed = retention(&folders, &committed, &stretches(2, &[origin(1, 50, 5, 0)]), &policy(2, 40));
        assert_eq!(doomed, [folder(1, 50, 5, true), folder(1, 70, 7, false)]);
    }

    proptest! {
        #[test]
        fn what_was_just_committed_and_what_is_newer_always_stays(
            raw in proptest::collection::vec((1u64..4, 0u64..20, 0u64..20, any::<bool>()), 0..30),
            keep_last in 1u64..4, keep_every in 0u64..5, at in 0u64..20,
        ) {
            let folders: Vec<Folder> = raw.iter().map(|&(g, v, o, committed)| Folder { generation: Generation(g), version: v, operation: o, committed }).collect();
            let committed = CheckpointKey { generation: Generation(2), version: at, operation: at, ..Default::default() };
            let path = stretches(2, &[origin(1, 9, 9, 0)]);
            for gone in retention(&folders, &committed, &path, &policy(keep_last, keep_every)) {
                prop_assert!(gone.generation < Generation(2) || (gone.generation == Generation(2) && gone.operation < at));
            }
        }
    }
}
