use super::*;
use crate::base::{CheckpointKey, Generation, Origin};
use crate::config::LevelPolicy;
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
        key: CheckpointKey { generation: Generation(generation), version, operation: version, ..Default::default() },
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
    let of =
        |generation, version, committed| Folder { generation: Generation(generation), committed, ..folder(version, 1) };
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
