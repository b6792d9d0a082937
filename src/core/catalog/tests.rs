use super::*;
use crate::base::Level;
use crate::base::{CheckpointKey, Generation, Incarnation, Origin};
use crate::config::LevelPolicy;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn origin(generation: u64, version: u64, operation: u64, restart: u64) -> Origin {
    Origin { generation: Generation(generation), version, operation, restart }
}

/// The stretches of a run that has restored these origins one after the other.
fn stretches(ours: u64, origins: &[Origin]) -> Stretches {
    let mut stretches = Stretches::default();
    origins.iter().for_each(|origin| stretches.begin(Generation(ours), *origin));
    stretches
}

/// A candidate whose operation is its version, and whose run restored its origin before anything else.
fn candidate(generation: u64, version: u64, from: Option<(u64, u64)>) -> Candidate {
    Candidate {
        key: CheckpointKey { generation: Generation(generation), version, operation: version, ..Default::default() },
        agreement: 1,
        group_size: 4,
        origin: from.map(|(g, v)| origin(g, v, 99, 0)),
    }
}

/// A candidate of generation 1.
fn at(version: u64, operation: u64, origin: Option<Origin>) -> Candidate {
    let mut candidate = candidate(1, version, None);
    (candidate.key.operation, candidate.origin) = (operation, origin);
    candidate
}

fn folder(version: u64, operation: u64) -> Folder {
    Folder { generation: Generation(1), version, operation, committed: true }
}

/// The folders of a durable tier that may be deleted when `committed` has just reached the tier's level.
fn retention(
    folders: &[Folder],
    committed: &CheckpointKey,
    stretches: &Stretches,
    policy: &LevelPolicy,
) -> Vec<Folder> {
    let ledger = Ledger::new(folders.iter().map(|folder| folder.entry((), Level::System)).collect());
    let committed = *committed;
    let rulings = ledger.judge(&Occasion::Retention {
        committed,
        level: Level::System,
        stretches,
        policy,
        parts: None,
        stays: &BTreeSet::new(),
    });
    folders.iter().zip(rulings).filter(|(_, ruling)| ruling.may_go()).map(|(folder, _)| *folder).collect()
}

fn names(list: &[Candidate]) -> Vec<(u64, u64)> {
    list.iter().map(|c| (c.key.version, c.key.operation)).collect()
}

fn policy(keep_last: u64, keep_every: u64) -> LevelPolicy {
    LevelPolicy { every: 1.into(), every_seconds: Duration::ZERO, keep_last, keep_every }
}

#[test]
fn versions_after_a_recorded_parent_are_left_behind() {
    let known =
        [candidate(2, 55, Some((1, 50))), candidate(1, 60, None), candidate(1, 50, None), candidate(1, 40, None)];
    let (usable, left) = restorable(&known, &[true; 4]);
    assert_eq!(usable.iter().map(|c| c.key.version).collect::<Vec<_>>(), [55, 50, 40]);
    assert_eq!(left.iter().map(|c| c.key.version).collect::<Vec<_>>(), [60]);
}

#[test]
fn versions_that_a_run_rolled_back_itself_are_left_behind() {
    // The run took 1 to 5, went back to 3 and took 4 and 5 again, and went back to 3 once more and took 4.
    let (first, second) = (Some(origin(1, 3, 3, 9)), Some(origin(1, 3, 3, 19)));
    let mut known = vec![at(1, 1, None), at(2, 2, None), at(3, 3, None), at(4, 4, None), at(5, 5, None)];
    known.extend([at(4, 10, first), at(5, 11, first)]);
    let (usable, left) = restorable(&known, &[true; 7]);
    assert_eq!(names(&usable)[..2], [(5, 11), (4, 10)]);
    assert_eq!(names(&usable)[2..], [(3, 3), (2, 2), (1, 1)]);
    assert_eq!(names(&left), [(5, 5), (4, 4)]);
    known.push(at(4, 20, second));
    let (usable, left) = restorable(&known, &[true; 8]);
    assert_eq!(names(&usable), [(4, 20), (3, 3), (2, 2), (1, 1)]);
    assert_eq!(names(&left), [(5, 11), (5, 5), (4, 10), (4, 4)]);
    // When the parent is gone, what is older than the parent still counts.
    known.retain(|c| c.key.version != 3);
    assert_eq!(names(&restorable(&known, &[true; 7]).0), [(4, 20), (2, 2), (1, 1)]);
}

/// A run goes back to 3 and takes 4 and 5, and then goes back to 3 again and takes 4, 5 and 6: both stretches descend from the same
/// checkpoint.
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
    let (usable, left) = restorable(&known, &[true; 6]);
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
    let (usable, left) = restorable(&known, &[true; 3]);
    assert_eq!((names(&usable), names(&left)), (vec![(4, 10), (3, 3)], vec![(4, 4)]));
}

#[test]
fn damaged_records_that_lead_in_a_circle_come_to_an_end() {
    let known = [candidate(2, 7, Some((1, 5))), candidate(1, 5, Some((2, 7)))];
    let (usable, left) = restorable(&known, &[true; 2]);
    assert_eq!((usable, left), (known.to_vec(), vec![]));
}

#[test]
fn a_run_knows_which_of_its_own_checkpoints_it_descends_from() {
    // The run took 1 to 5, went back to its own 3 with operation 9, took 10 to 12, went back to 11 with 19 and to 2 with 29, and restored
    // another run's checkpoint with 39.
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
    let (usable, left) = restorable(&[newer, cut, older], &[true; 3]);
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
        of(2, 7, 7, true), // a later checkpoint was faster
        of(1, 9, 9, true), // of another run, from which this one does not continue
    ];
    let doomed = retention(&folders, &committed, &Stretches::default(), &policy(2, 0));
    assert_eq!(doomed, [of(2, 3, 3, true), of(2, 5, 5, false)]);
}

#[test]
fn what_a_run_inherited_stays_longer_than_what_it_rolled_back_itself() {
    // The run began from version 50 of the run before, took 55 and 57, went back to 55 with operation 4, and took 60.
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
    // A run that began from nothing has no ancestors in other runs, even after it has gone back to a checkpoint of its own.
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
    // The run went back only to a checkpoint of its own.
    assert_eq!(over(&folders, &[origin(3, 10, 1, 3)]), Some((2, 40)));
    assert_eq!(over(&folders, &[origin(1, 90, 1, 0)]), None);
    // There is nothing to continue from, or nothing that counts.
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
    let (usable, _) = restorable(&known, &[false, true]);
    assert_eq!(usable[0].key.version, 60);
}

proptest! {
    #[test]
    fn candidates_as_bytes_read_back_and_compare_as_they_do(numbers in proptest::collection::vec((0u64..3, 0u64..3, 0u64..3, 0u8..2, 0u64..2, 1u32..3, proptest::option::of(0u64..3)), 2)) {
        let made: Vec<Candidate> = numbers
            .into_iter()
            .map(|(generation, version, operation, run, agreement, group_size, origin)| Candidate {
                key: CheckpointKey { generation: Generation(generation), version, operation, incarnation: Incarnation([run; 16]) },
                agreement: agreement << 40,
                group_size: group_size << 20,
                origin: origin.map(|of| Origin { generation: Generation(of), version: 300 - of, operation: of, restart: of }),
            })
            .collect();
        let bytes: Vec<Vec<u8>> = made.iter().map(Candidate::to_bytes).collect();
        prop_assert_eq!(Candidate::of_bytes(&bytes[0]), Some(made[0]));
        prop_assert_eq!(bytes[0].cmp(&bytes[1]), made[0].cmp(&made[1]));
        prop_assert_eq!(Candidate::of_bytes(&bytes[0][1..]), None);
    }
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
        folder(3, 1, 1, true),   // of a newer run
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

// ------------------------------------------------------------------------------------------- node memory

/// A slot of run `taken.0`, from its operation `taken.1`, that notes this level.
fn slot(name: &'static str, taken: (u64, u64), level: Level) -> LedgerEntry<&'static str> {
    let doubt = if level == Level::Captured { Levels::NONE.with(Level::Process) } else { Levels::NONE };
    LedgerEntry {
        series: name,
        taken: Moment { generation: Generation(taken.0), operation: taken.1 },
        version: taken.1 * 10,
        place: Place::Slot,
        known: Levels::noted(level),
        doubt,
        is_open: false,
        needs: Vec::new(),
    }
}

/// The copies in the memory of dead runs that are needed, as series and operation. `durable` has the newest checkpoint of each series on
/// the global tier.
fn only(slots: &[LedgerEntry<&'static str>], durable: &[(&'static str, (u64, u64))]) -> Vec<(String, u64)> {
    let elsewhere = |taken: (u64, u64)| {
        let newest = Some(Moment { generation: Generation(taken.0), operation: taken.1 });
        Elsewhere { durable: newest, global: newest }
    };
    let elsewhere: BTreeMap<_, _> = durable.iter().map(|(name, taken)| (*name, elsewhere(*taken))).collect();
    let ledger = Ledger::new(slots.to_vec()).with_elsewhere(elsewhere);
    let rulings = ledger.judge(&Occasion::Ended);
    let kept = slots.iter().zip(rulings).filter(|(_, ruling)| !ruling.may_go());
    let kept: BTreeSet<_> = kept.map(|(slot, _)| (slot.series.to_owned(), slot.taken.operation)).collect();
    kept.into_iter().collect()
}

#[test]
fn the_newest_committed_version_that_is_nowhere_else_is_an_only_copy() {
    let heat = |operation, level| slot("heat", (1, operation), level);
    assert_eq!(only(&[heat(2, Level::Process)], &[]), [("heat".into(), 2)]);
    assert_eq!(only(&[heat(2, Level::NodeReboot)], &[]), []);
    assert_eq!(only(&[heat(2, Level::System), heat(3, Level::Process)], &[]), [("heat".into(), 3)]);
    // Checkpoints that are older than a safe one, or were given up for a newer one, are not needed.
    assert_eq!(only(&[heat(2, Level::Process), heat(3, Level::System)], &[]), []);
    assert_eq!(only(&[heat(2, Level::Captured), heat(3, Level::Process), heat(4, Level::System)], &[]), []);
    assert_eq!(only(&[heat(3, Level::Process)], &[("heat", (1, 2))]), [("heat".into(), 3)]);
    assert_eq!(only(&[heat(3, Level::Process)], &[("heat", (1, 3))]), []);
    assert_eq!(only(&[heat(3, Level::Process)], &[("heat", (2, 1))]), []);
}

#[test]
fn what_was_sealed_after_the_newest_committed_version_is_an_only_copy_too() {
    let heat = |operation, level| slot("heat", (1, operation), level);
    assert_eq!(only(&[heat(2, Level::System), heat(3, Level::Captured)], &[]), [("heat".into(), 3)]);
    assert_eq!(
        only(
            &[heat(1, Level::Captured), heat(2, Level::Process), heat(3, Level::Captured), heat(4, Level::Captured)],
            &[]
        ),
        [("heat".into(), 2), ("heat".into(), 3), ("heat".into(), 4)]
    );
    assert_eq!(only(&[heat(3, Level::Captured)], &[("heat", (1, 3))]), []);
}

#[test]
fn the_newest_version_that_survives_lost_nodes_is_an_only_copy_until_the_global_tier_has_one_as_new() {
    let heat = |operation, level| slot("heat", (1, operation), level);
    let operations = |slots: &[LedgerEntry<&'static str>], durable: &[(&'static str, (u64, u64))]| -> BTreeSet<u64> {
        only(slots, durable).into_iter().map(|(_, operation)| operation).collect()
    };
    let both = [heat(2, Level::NodeLoss), heat(3, Level::NodeReboot)];
    assert_eq!(operations(&both, &[]), [2].into());
    assert_eq!(operations(&both, &[("heat", (1, 1))]), [2].into());
    assert_eq!(operations(&both, &[("heat", (1, 2))]), [].into());
    assert_eq!(operations(&[heat(2, Level::NodeLoss), heat(3, Level::System)], &[]), [].into());
    assert_eq!(operations(&[heat(2, Level::NodeLoss), heat(3, Level::Process)], &[]), [2, 3].into());
    assert_eq!(
        operations(&[heat(1, Level::NodeLoss), heat(2, Level::NodeLoss), heat(3, Level::NodeReboot)], &[]),
        [2].into()
    );
    // A part of version 3 was sealed, but nobody heard whether all ranks had their parts.
    let doubt =
        [heat(1, Level::NodeLoss), heat(2, Level::NodeLoss), heat(3, Level::NodeLoss), heat(3, Level::NodeReboot)];
    assert_eq!(operations(&doubt, &[]), [2, 3].into());
}

#[test]
fn each_series_counts_by_itself() {
    let slots = [
        slot("heat", (1, 2), Level::Process),
        slot("flow", (1, 9), Level::System),
        slot("flow", (2, 1), Level::Process),
    ];
    assert_eq!(only(&slots, &[]), [("flow".into(), 1), ("heat".into(), 2)]);
    assert_eq!(only(&slots, &[("flow", (2, 1))]), [("heat".into(), 2)]);
}

#[test]
fn what_needs_a_base_keeps_it_and_not_what_that_needed_itself() {
    let mut slots: Vec<_> = (1..=4).map(|operation| slot("heat", (1, operation), Level::Process)).collect();
    let rulings = |slots: &[LedgerEntry<&'static str>]| {
        let rulings = Ledger::new(slots.to_vec()).judge(&Occasion::Ended);
        rulings.into_iter().map(Ruling::reason).collect::<Vec<_>>()
    };
    assert_eq!(rulings(&slots), [None, None, None, Some(Reason::Newest(Level::Process))]);
    // Checkpoint 4 is stored as differences from 2, of which only the bytes count that its own file stores. What 2 takes from 1 would be
    // needed only to restore 2 itself.
    (slots[3].needs, slots[1].needs) = (vec![slots[1].taken], vec![slots[0].taken]);
    let needed = |by: usize| Some(Reason::NeededBy(slots[by].taken));
    assert_eq!(rulings(&slots), [None, needed(3), None, Some(Reason::Newest(Level::Process))]);
    // Another series has an operation with the same number.
    slots[0].series = "flow";
    assert_eq!(rulings(&slots)[0], Some(Reason::Newest(Level::Process)));
}

#[test]
fn a_run_that_waits_for_memory_gives_up_the_newest_only_where_something_as_new_outlasts_it() {
    let mut slots = vec![slot("heat", (1, 1), Level::NodeReboot), slot("heat", (1, 2), Level::Process)];
    let kept = |slots: &[LedgerEntry<&'static str>], occasion| -> Vec<u64> {
        let rulings = Ledger::new(slots.to_vec()).judge(&occasion);
        let kept = slots.iter().zip(rulings).filter(|(_, ruling)| !ruling.may_go());
        kept.map(|(slot, _)| slot.taken.operation).collect()
    };
    assert_eq!((kept(&slots, Occasion::Settled), kept(&slots, Occasion::Pressed)), (vec![2], vec![2]));
    slots[1].known = Levels::noted(Level::NodeReboot);
    assert_eq!((kept(&slots, Occasion::Settled), kept(&slots, Occasion::Pressed)), (vec![2], vec![]));
    // The parts of redundancy sets are not in files.
    slots[1].known = Levels::noted(Level::NodeReboot).with(Level::NodeLoss);
    assert_eq!(kept(&slots, Occasion::Pressed), [2]);
    slots[1].known = slots[1].known.with(Level::System);
    assert_eq!(kept(&slots, Occasion::Pressed), [0; 0]);
    slots[0].is_open = true;
    assert_eq!(kept(&slots, Occasion::Pressed), [1]);
    slots[0].is_open = false;
    slots[0].doubt = Levels::NONE.with(Level::Process);
    assert_eq!((kept(&slots, Occasion::Settled), kept(&slots, Occasion::Pressed)), (vec![1, 2], vec![]));
}

// ------------------------------------------------------------------------------------------- whole histories

/// One series on one node with one rank: what has happened to each checkpoint, and where copies of it still exist.
#[derive(Clone, Debug, Default)]
struct Past {
    checkpoints: Vec<Trace>,
}

#[derive(Clone, Debug)]
struct Trace {
    key: CheckpointKey,
    /// The levels that were agreed on, and those among them that this rank has not heard of.
    reached: Levels,
    unheard: Levels,
    is_open: bool,
    in_memory: bool,
    /// A part for other ranks was sealed here, whether or not all of them got theirs.
    has_part: bool,
    on_local: bool,
    on_global: bool,
}

impl Trace {
    fn taken(&self) -> Moment {
        Moment::of(&self.key)
    }

    /// Can the checkpoint still be restored at this level from what is left?
    fn gives(&self, level: Level) -> bool {
        match level {
            Level::Process => (self.in_memory && self.reached.has(Level::Process)) || self.gives(Level::NodeReboot),
            Level::NodeReboot => (self.on_local && self.reached.has(Level::NodeReboot)) || self.gives(Level::System),
            Level::NodeLoss => (self.in_memory && self.reached.has(Level::NodeLoss)) || self.gives(Level::System),
            _ => self.on_global && self.reached.has(Level::System),
        }
    }

    fn entry(&self) -> LedgerEntry<()> {
        let known = Level::VOTED.into_iter().filter(|level| self.reached.has(*level) && !self.unheard.has(*level));
        LedgerEntry {
            series: (),
            taken: self.taken(),
            version: self.key.version,
            place: Place::Slot,
            known: known.fold(Levels::NONE, Levels::with),
            doubt: self.unheard,
            is_open: self.is_open,
            needs: Vec::new(),
        }
    }
}

impl Past {
    /// The newest checkpoint that can be restored at a level.
    fn newest(&self, level: Level) -> Option<Moment> {
        self.checkpoints.iter().filter(|trace| trace.gives(level)).map(Trace::taken).max()
    }

    fn give_up_memory(&mut self, occasion: &Occasion<'_>) {
        let held: Vec<usize> = (0..self.checkpoints.len()).filter(|at| self.checkpoints[*at].in_memory).collect();
        let ledger = Ledger::new(held.iter().map(|at| self.checkpoints[*at].entry()).collect());
        let whole = self.checkpoints.iter().filter(|trace| trace.on_local || trace.on_global);
        let durable = whole.filter(|trace| trace.entry().known.is_durable()).map(Trace::taken).max();
        let whole = self.checkpoints.iter().filter(|trace| trace.on_global);
        let global = whole.filter(|trace| trace.entry().known.has(Level::System)).map(Trace::taken).max();
        let ledger = ledger.with_elsewhere([((), Elsewhere { durable, global })].into());
        for (at, ruling) in held.into_iter().zip(ledger.judge(occasion)) {
            let trace = &mut self.checkpoints[at];
            if ruling.may_go() {
                assert!(!trace.is_open, "{trace:?} was in flight");
                trace.in_memory = false;
            }
        }
    }

    /// Gives up what earlier runs left in memory, which is known only from the notes in the slots. The slot of a shard notes the highest
    /// level that was heard of, and the slot of a part notes node-loss as soon as the part is sealed.
    fn forget_others(&mut self, occasion: &Occasion<'_>) {
        let slots = self.checkpoints.iter().enumerate().filter(|(_, trace)| trace.in_memory).flat_map(|(at, trace)| {
            let shard = trace.entry().known.highest().unwrap_or(Level::Captured);
            let part = Some(Level::NodeLoss).filter(|_| trace.has_part);
            let entry = move |level| LedgerEntry { known: Levels::noted(level), doubt: Levels::NONE, ..trace.entry() };
            [Some(shard), part].into_iter().flatten().map(move |level| (at, entry(level)))
        });
        let (at, entries): (Vec<usize>, Vec<_>) = slots.unzip();
        for (at, ruling) in at.into_iter().zip(Ledger::new(entries).judge(occasion)) {
            self.checkpoints[at].in_memory &= !ruling.may_go();
        }
    }

    fn retain(&mut self, level: Level, committed: CheckpointKey, stretches: &Stretches, policy: &LevelPolicy) {
        let is_there = |trace: &Trace| if level == Level::System { trace.on_global } else { trace.on_local };
        let there: Vec<usize> = (0..self.checkpoints.len()).filter(|at| is_there(&self.checkpoints[*at])).collect();
        let entry = |trace: &Trace| {
            let committed = trace.entry().known.has(level);
            let CheckpointKey { generation, version, operation, .. } = trace.key;
            let mut entry = Folder { generation, version, operation, committed }.entry((), level);
            entry.is_open = trace.is_open;
            entry
        };
        let ledger = Ledger::new(there.iter().map(|at| entry(&self.checkpoints[*at])).collect());
        let rulings = ledger.judge(&Occasion::Retention {
            committed,
            level,
            stretches,
            policy,
            parts: None,
            stays: &BTreeSet::new(),
        });
        for (at, ruling) in there.into_iter().zip(rulings) {
            let trace = &mut self.checkpoints[at];
            if ruling.may_go() {
                assert!(!trace.is_open, "{trace:?} was in flight");
                if level == Level::System { trace.on_global = false } else { trace.on_local = false }
            }
        }
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Happening {
    /// A checkpoint is taken and reaches these levels: memory, local, parts for other nodes in memory, global. This rank may not hear of
    /// the highest one.
    Take { local: bool, has_part: bool, protected: bool, global: bool, is_heard: bool, stays_open: bool },
    /// Open checkpoints are settled.
    Settle,
    /// The application waits for memory.
    Press,
    /// The run is killed. The next run continues from the newest checkpoint that is left, or from nothing.
    Restart { goes_on: bool },
    /// The current run goes back to the checkpoint that it took `back` checkpoints ago.
    RollBack { back: usize },
    /// The node loses its memory or its disk.
    Lose { memory: bool },
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        6 => (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0u8..8, 0u8..4).prop_map(|(local, has_part, protected, global, heard, open)| Take {
            local, has_part, protected, global, is_heard: heard > 0, stays_open: open == 0
        }),
        2 => Just(Settle),
        2 => Just(Press),
        1 => (0u8..4).prop_map(|goes_on| Restart { goes_on: goes_on > 0 }),
        1 => (1usize..4).prop_map(|back| RollBack { back }),
        1 => any::<bool>().prop_map(|memory| Lose { memory }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    /// Whatever happens, and whoever deletes, the newest restorable checkpoint of each level stays restorable until a newer one is
    /// restorable, nothing in flight is deleted, and storage is bounded.
    #[test]
    fn the_newest_restorable_checkpoint_of_each_level_is_never_deleted(
        happenings in proptest::collection::vec(happening(), 1..60), keep_last in 1u64..4, keep_every in 0u64..5,
    ) {
        let policy = LevelPolicy { every: 1.into(), every_seconds: Duration::ZERO, keep_last, keep_every };
        let (mut past, mut stretches) = (Past::default(), Stretches::default());
        let (mut generation, mut operation, mut version) = (1u64, 0u64, 0u64);
        for happening in happenings {
            let levels = Level::VOTED;
            // Losses are not deletions, and a restart may go back past what it does not find.
            let mut before: Vec<Option<Moment>> = levels.iter().map(|level| past.newest(*level)).collect();
            match happening.clone() {
                Happening::Take { local, has_part, protected, global, is_heard, stays_open } => {
                    operation += 1;
                    version += 1;
                    let key = CheckpointKey { generation: Generation(generation), version, operation, ..Default::default() };
                    let all = [(Level::Process, true), (Level::NodeReboot, local), (Level::NodeLoss, has_part && protected), (Level::System, global)];
                    let reached = all.iter().filter(|(_, is_reached)| *is_reached).fold(Levels::NONE, |sum, (level, _)| sum.with(*level));
                    let unheard = if is_heard { Levels::NONE } else { Levels::NONE.with(reached.highest().expect("memory")) };
                    let trace = Trace {
                        key, reached, unheard, is_open: stays_open,
                        in_memory: true, has_part, on_local: local, on_global: global,
                    };
                    past.checkpoints.push(trace);
                    past.give_up_memory(&Occasion::Settled);
                    if is_heard {
                        for level in [Level::NodeReboot, Level::System].into_iter().filter(|level| reached.has(*level)) {
                            past.retain(level, key, &stretches, &policy);
                        }
                    }
                }
                Happening::Settle => {
                    past.checkpoints.iter_mut().for_each(|trace| trace.is_open = false);
                    past.give_up_memory(&Occasion::Settled);
                }
                Happening::Press => past.give_up_memory(&Occasion::Pressed),
                Happening::Restart { goes_on } => {
                    past.checkpoints.iter_mut().for_each(|trace| trace.is_open = false);
                    past.give_up_memory(&Occasion::Ended);
                    (generation, stretches) = (generation + 1, Stretches::default());
                    let newest = past.checkpoints.iter().filter(|trace| trace.gives(Level::Process)).max_by_key(|trace| trace.taken());
                    if let Some(newest) = newest.filter(|_| goes_on) {
                        let (key, is_global) = (newest.key, newest.gives(Level::System));
                        past.forget_others(&Occasion::Elected { elected: Moment::of(&key), is_global });
                        operation += 1;
                        stretches.begin(Generation(generation), origin(key.generation.0, key.version, key.operation, operation));
                        version = key.version;
                    }
                }
                Happening::RollBack { back } => {
                    let own = past.checkpoints.iter().filter(|trace| trace.key.generation.0 == generation && !trace.is_open && trace.gives(Level::Process));
                    if let Some(to) = own.rev().nth(back) {
                        let key = to.key;
                        operation += 1;
                        stretches.begin(Generation(generation), origin(generation, key.version, key.operation, operation));
                        version = key.version;
                    }
                }
                Happening::Lose { memory } => {
                    for trace in &mut past.checkpoints {
                        if memory {
                            trace.in_memory = false;
                        } else {
                            // The deleter knows of the loss: levels are only notes, and without the disk they would be wrong.
                            (trace.on_local, trace.reached) = (false, trace.reached.without(Level::NodeReboot));
                        }
                    }
                    before = vec![None; levels.len()];
                }
            }
            for (level, before) in levels.iter().zip(before) {
                prop_assert!(past.newest(*level) >= before, "{level} went back from {before:?} to {:?} with {happening:?}: {past:?}", past.newest(*level));
            }
        }
        // Storage is bounded: of the checkpoints that are settled and were heard of, memory holds only the newest one and the newest one
        // that survives lost nodes.
        past.give_up_memory(&Occasion::Settled);
        let is_plain = |trace: &&Trace| trace.in_memory && !trace.is_open && trace.unheard == Levels::NONE;
        prop_assert!(past.checkpoints.iter().filter(is_plain).count() <= 2, "{past:?}");
    }
}

/// The root's word counts, whatever a rank itself concludes about a folder, because another rank's file may refer to it.
#[test]
fn what_the_root_says_stays_of_this_run_and_without_what_it_needs() {
    let folder = |generation, operation| {
        let folder = Folder { generation: Generation(generation), version: operation, operation, committed: true };
        folder.entry((), Level::System)
    };
    let mut entries: Vec<_> = (1..=4).map(|operation| folder(2, operation)).chain([folder(1, 3)]).collect();
    entries[2].needs = vec![entries[1].taken];
    let committed = CheckpointKey { generation: Generation(2), version: 4, operation: 4, ..CheckpointKey::default() };
    let (stretches, policy) = (Stretches::default(), LevelPolicy { keep_last: 1, ..LevelPolicy::default() });
    let reasons = |stays: &[u64]| {
        let stays = stays.iter().copied().collect();
        let occasion = Occasion::Retention {
            committed,
            level: Level::System,
            stretches: &stretches,
            policy: &policy,
            parts: None,
            stays: &stays,
        };
        let rulings = Ledger::new(entries.clone()).judge(&occasion);
        rulings.into_iter().map(Ruling::reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&[])[..4], [None, None, None, Some(Reason::Last)]);
    let told = reasons(&[3, 4]);
    assert_eq!(told[..4], [None, None, Some(Reason::Source), Some(Reason::Last)]);
    assert_ne!(told[4], Some(Reason::Source), "another run's operation of that number");
}
