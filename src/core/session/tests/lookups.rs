//! Where a restart looks, and in what order: windows of candidates, other nodes, and what a restart reports when nothing is left.

use super::*;
use crate::base::Rank;
use crate::catalog::{Candidate, WINDOW};
use crate::recovery::discover::{Found, Held};
use crate::recovery::election::{Election, RestartError, Want};
use crate::redundancy::holding::Item;
use crate::tier::source::Source;
use crate::tier::wrappers::Counts;
use std::collections::BTreeMap;

/// Candidates for versions of one run that exist on no tier.
fn candidates(versions: std::ops::RangeInclusive<u64>) -> Vec<Candidate> {
    let key = |version| CheckpointKey { generation: Generation(1), version, operation: version, ..Default::default() };
    versions.map(|version| Candidate { key: key(version), agreement: 1, group_size: 1, origin: None }).collect()
}

/// A rank's shard, with these sources.
fn shard(rank: u32, sources: Vec<Source>) -> BTreeMap<Item, Held> {
    [(Item::Shard(Rank(rank)), Held { set: None, sources })].into()
}

/// Opens a session of one rank on `bed`, and calls `work` with an election among `found`.
fn elect<T>(bed: &Bed, found: Found, want: Want, work: impl FnOnce(&mut Election) -> T) -> T {
    let session = bed.open(&bed.place(), bed.config());
    let outcome = work(&mut Election::new(&session.engine, "heat", want, found));
    session.engine.server().stop_serving();
    session.close().expect("closes");
    outcome
}

#[test]
fn all_versions_are_listed_however_many_windows_they_fill() {
    for count in [1, WINDOW as u64, 2 * WINDOW as u64 + 7] {
        let known = candidates(1..=count);
        let held = known.iter().map(|candidate| (*candidate, shard(0, Vec::new()))).collect();
        let found = Found { held, ..Found::default() };
        let listed = elect(&Bed::new(), found, Want::Newest, |election| election.list().expect("listed"));
        assert_eq!(listed, known.into_iter().rev().map(|candidate| (candidate, false)).collect::<Vec<_>>());
    }
}

/// The halves of a world are named after their lowest ranks in it, which change with the number of ranks.
#[test]
fn a_restart_that_finds_nothing_in_its_group_names_the_groups_that_have_something() {
    let bed = Bed::new();
    let found_by = |group: &str, takes: bool| {
        let mut config = bed.config();
        (config.job.group, config.job.memory_enabled) = (Some(group.into()), false);
        let session = bed.open(&bed.place(), config);
        assert_eq!(restart(&session), None);
        let election = session.election("heat", Want::Newest);
        let found = session.found_instead("heat", &election);
        session.engine.server().stop_serving();
        if takes {
            commit(&session, &[1], Level::System);
        }
        session.close().expect("closes");
        found
    };
    assert_eq!(found_by("sub-0", true), None, "a first run has nothing to say");
    assert!(
        found_by("sub-4", true)
            .expect("sub-0 has a version")
            .contains("in group \"sub-4\", but there is in \"sub-0\". ")
    );
    let said = found_by("sub-3", false).expect("two groups have a version");
    assert!(
        said.contains("in group \"sub-3\", but there is in \"sub-0\", \"sub-4\". ")
            && said.contains("BIVOUAC_JOB_GROUP"),
        "{said}"
    );
    // A run cannot continue from a group without a version.
    let said = found_by("sub-5", false).expect("two groups have a version");
    assert!(!said.contains("\"sub-3\""), "{said}");
}

#[test]
fn an_older_window_is_looked_at_when_nothing_of_the_newest_one_can_be_restored() {
    let known = candidates(1..=WINDOW as u64 + 3);
    let held = [0, 1].map(|place: usize| (known[place], shard(0, Vec::new()))).into();
    let found = Found { held, committed: known.clone(), ..Found::default() };
    let failed = || Some(crate::recovery::Unloaded::Damaged("a flipped bit".to_owned()));
    elect(&Bed::new(), found, Want::Newest, |election| {
        let version = |elected: Option<crate::recovery::election::Elected>| elected.expect("one").candidate.key.version;
        assert_eq!(version(election.first().expect("elected")), 2);
        assert!(election.has_gathered(), "the newer ones may be elsewhere");
        // Each version is tried once more after other ways to its shards have been looked for.
        assert_eq!(version(election.end(failed()).expect("once more")), 2);
        assert_eq!(version(election.end(failed()).expect("the next")), 1);
        assert_eq!(version(election.end(failed()).expect("once more")), 1);
        let end = election.end(failed());
        let Err(RestartError::NothingRestorable { tried, .. }) = end else { panic!("{end:?}") };
        assert_eq!(tried.iter().map(|tried| tried.key.version).collect::<Vec<_>>(), [2, 1]);
    });
}

/// Another node may have what a rank's own node does not have.
#[test]
fn versions_are_listed_also_if_their_shards_lie_elsewhere() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    commit(&session, &[1], Level::System);
    let election = session.election("heat", Want::Newest);
    let candidate = election.found().held.keys().next().expect("version 1");
    let copies = election.found().copies(candidate, Rank(0));
    let list = |rank| {
        let found = Found { held: [(*candidate, shard(rank, copies.to_vec()))].into(), ..Found::default() };
        let listed = Election::new(&session.engine, "heat", Want::Newest, found).list().expect("listed");
        session.engine.server().stop_serving();
        listed
    };
    assert_eq!(list(0), [(*candidate, false)]);
    assert_eq!(list(1), [], "the shard of a rank that this run does not have");
    session.close().expect("closes");
}

#[test]
fn of_what_a_rank_finds_unreadable_the_first_is_told_and_how_many_more_there_are() {
    for (count, told) in [(1, "rank 0: file 1"), (2, "rank 0: file 1 (and 1 more)"), (4, "rank 0: file 1 (and 3 more)")]
    {
        let damage = (1..=count).map(|number| format!("file {number}")).collect();
        let found = Found { damage, ..Found::default() };
        let first =
            elect(&Bed::new(), found, Want::Newest, |election| election.first().map(|elected| elected.is_some()));
        let Err(RestartError::NothingRestorable { damage, .. }) = &first else { panic!("{first:?}") };
        assert_eq!(damage.iter().map(ToString::to_string).collect::<Vec<_>>(), [told]);
    }
}

/// Shards on other nodes may be the last copies of their data. Only in that case is a checkpoint due at once.
#[test]
fn after_a_restart_from_own_copies_the_next_checkpoint_is_due_when_it_would_be_anyway() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.job.interval.steps = 3;
    let session = bed.open(&bed.place(), config);
    commit(&session, &[1], Level::System);
    assert_eq!(restart(&session).map(|restored| restored.version), Some(1));
    let due = [(); 4].map(|()| session.should_checkpoint().expect("answered"));
    assert_eq!(due, [false, false, true, false]);
    session.close().expect("closes");
}

/// If thousands of ranks list one directory at the same time, they overload the directory's file system.
#[test]
fn a_restart_reads_the_global_directory_on_the_root_alone() {
    let (bed, counts) = (Bed::new(), [(); 2].map(|()| Arc::new(Counts::default())));
    let place = bed.place();
    let places = [0, 1].map(|rank: usize| behind(place.clone(), TierId::GLOBAL, &counts[rank]));
    let config = bed.config();
    on_one_node(&places, &config, |rank, session| {
        commit(&session, &[1], Level::System);
        let before = counts[rank].calls(Call::List);
        assert_eq!(restart(&session).map(|restored| restored.tier.name()), Some("memory"));
        let listed = counts[rank].calls(Call::List) - before;
        assert_eq!(listed > 0, rank == 0, "{listed} by rank {rank}");
        session.close().expect("closes");
    });
}
