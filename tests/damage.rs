//! The consequences of each kind of damage: the first nine rows of the damage table, under a real `mpirun` with four ranks.
//!
//! `tests/programs/damage_worker.rs` takes and restores checkpoints of which it can compute every byte again. Here it is killed, its files
//! are damaged, and its file systems fill up; then the tests compare its ranks' records with the promises of the table. Rows that damage a
//! store at rest make one store, copy it for each damage, and restore from all copies in one MPI job. They do so twice, with and without a
//! thread for the coordination.
//!
//! | variable | meaning |
//! |---|---|
//! | `BIVOUAC_TEST_SEED` | the seed of everything random; printed by each test that uses it |
//! | `BIVOUAC_TEST_KILLS` | how often `sigkill_…` kills (default 6; the whole row: 30) |
//!
//! Rows that need their own file systems mount them in a private mount namespace, which needs root. Rows about
//! permissions then run their job as the user `nobody`.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

#[path = "damage/bed.rs"]
mod bed;
#[path = "damage/case.rs"]
mod case;
mod common;
#[cfg(feature = "object-store")]
mod object;
#[path = "damage/outage.rs"]
mod outage;
#[path = "damage/spots.rs"]
mod spots;

use bed::{Bed, RANKS, Store, Told, seed};
use bivouac_core::base::rng::Rng;
use case::{Case, versions};
use spots::{
    CONTAINER_PARTS, LOST, SHARD_PARTS, Shard, flip_anywhere, flip_container, flip_slot_entry, overwrite, spoil,
};
use std::fs;
use std::time::{Duration, Instant};

const NEWEST: u64 = Store::NEWEST;

/// The outcome that a restart from a damaged store must have.
#[derive(Clone, Debug)]
enum Outcome {
    /// All ranks restore this version, each from its tier here.
    Restored(u64, [&'static str; RANKS]),
    /// All ranks get the same error, which contains these words.
    Error(&'static str),
}

fn all(tier: &'static str) -> [&'static str; RANKS] {
    [tier; RANKS]
}

/// `tier` on one rank, and `others` on the other ranks.
fn one(rank: usize, tier: &'static str, others: &'static str) -> [&'static str; RANKS] {
    let mut tiers = all(others);
    tiers[rank] = tier;
    tiers
}

/// An action that damages a copy of the store. It returns a text that describes the damage.
type Damage<'a> = Box<dyn Fn(&Case, &mut Rng) -> String + 'a>;

/// Damages, and the outcomes that they must have.
#[derive(Default)]
struct Row<'a> {
    cases: Vec<(String, Damage<'a>, Outcome)>,
}

impl<'a> Row<'a> {
    fn add(&mut self, name: impl Into<String>, outcome: Outcome, damage: impl Fn(&Case, &mut Rng) -> String + 'a) {
        self.cases.push((name.into(), Box::new(damage), outcome));
    }

    /// Restores from a damaged copy for each case, once with each way to advance the coordination. Returns the first job's
    /// record, for more checks.
    fn check(&self, store: &Store) -> Told {
        let seed = seed();
        let told = self.check_with(store, seed, "auto");
        self.check_with(store, seed, "stepped");
        told
    }

    /// Restores once more with the global tier's files as objects of a bucket: the bytes are the same, and damage to them
    /// has the same outcomes.
    #[cfg(feature = "object-store")]
    fn check_in_bucket(&self, store: &Store) {
        let mut bed = Bed::in_memory();
        let Some(server) = object::Server::s3s_fs_on(bed.folder()) else { return };
        for (name, value) in object::environment() {
            bed.set(name, &value);
        }
        bed.set("BIVOUAC_TEST_OBJECT_ENDPOINT", &server.endpoint());
        // Nobody holds a lock on an object, so in each case a claim would be watched for nine seconds.
        bed.set("BIVOUAC_JOB_TAKE_OVER", "true");
        let moved = |tiers: [&'static str; RANKS]| tiers.map(|tier| if tier == "global" { "object" } else { tier });
        // No folder can replace an object.
        let of_objects = |name: &str| !(name.starts_with("global") && name.ends_with("directory"));
        self.check_on(&bed, store, seed(), ("in a bucket", &of_objects), &|outcome| match outcome {
            Outcome::Restored(version, tiers) => Outcome::Restored(*version, moved(*tiers)),
            other => other.clone(),
        });
    }

    fn check_with(&self, store: &Store, seed: u64, progress: &str) -> Told {
        let mut bed = Bed::in_memory();
        bed.set("BIVOUAC_ENGINE_PROGRESS", progress);
        self.check_on(&bed, store, seed, (progress, &|_| true), &Outcome::clone)
    }

    fn check_on(
        &self,
        bed: &Bed,
        store: &Store,
        seed: u64,
        (way, is_meant): (&str, &dyn Fn(&str) -> bool),
        wanted: &dyn Fn(&Outcome) -> Outcome,
    ) -> Told {
        let mut rng = Rng::new(seed);
        let mut args = vec!["restore".to_owned()];
        let mut done = Vec::new();
        let cases = || self.cases.iter().filter(|(name, ..)| is_meant(name));
        for (name, damage, _) in cases() {
            let case = store.copy(&bed.folder().join("cases"), name);
            done.push(damage(&case, &mut rng));
            args.push(case.folder.to_str().unwrap().to_owned());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told = bed.run(&args).expect("MPI was there when the store was made");
        for ((name, _, outcome), done) in cases().zip(done) {
            check_case(&told, name, &wanted(outcome), &format!("{name} ({way}): {done}"));
        }
        told
    }
}

fn check_case(told: &Told, name: &str, outcome: &Outcome, what: &str) {
    let word = |line: &str| format!("case={name} {line}");
    let errors: Vec<Vec<&str>> = (0..RANKS).map(|rank| lines(told, rank, &word("restart-error "))).collect();
    match outcome {
        Outcome::Restored(version, tiers) => {
            for (rank, tier) in tiers.iter().enumerate() {
                let wanted = [format!("{version} generation=1 tier={tier}")];
                let found = lines(told, rank, &word("restored version="));
                assert_eq!(found, wanted, "{what}: rank {rank}; errors {:?}\n{}", errors[rank], told.streams);
                let verified = lines(told, rank, &word("verified version="));
                assert_eq!(verified, [version.to_string()], "{what}: rank {rank} holds wrong data");
            }
        }
        Outcome::Error(text) => {
            assert_eq!(errors[0].len(), 1, "{what}: no error on rank 0\n{told:?}");
            assert!(errors[0][0].contains(text), "{what}: {:?}", errors[0][0]);
            for rank in 1..RANKS {
                assert_eq!(errors[rank], errors[0], "{what}: rank {rank} says something else than rank 0");
            }
        }
    }
}

fn lines<'a>(told: &'a Told, rank: usize, word: &str) -> Vec<&'a str> {
    told.ranks[rank].lines().filter_map(|line| line.strip_prefix(word)).collect()
}

/// A counter of the restart from a case.
fn restart_counter(told: &Told, rank: usize, name: &str, path: &str) -> u64 {
    told.counter(rank, &format!("case={name} restart-stats "), path)
}

// ---------------------------------------------------------------------------------------------------------------------
// SIGKILL of any rank at any instant

/// When a rank is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// This long after the session was opened.
    After(Duration),
    /// This long after the rank wrote its n-th line with these words.
    On(&'static str, u64, Duration),
}

fn moments(kills: u64, rng: &mut Rng) -> Vec<(Moment, usize)> {
    let lines = ["captured version=", "committed version=", "restored version=", "opened", "pid="];
    let mut moment = |kill: u64| {
        let wait = Duration::from_micros(rng.below(4000));
        match kill % 3 {
            0 => Moment::After(Duration::from_micros(rng.below(400_000))),
            // The kill comes between capture and process commit, and while the local copy is being written.
            1 => Moment::On(lines[0], 1 + rng.below(30), wait),
            // A level has just been reported: the next one is being written, and retention deletes.
            _ if rng.chance(4, 5) => Moment::On(lines[1], 1 + rng.below(70), wait),
            _ => Moment::On(lines[2 + rng.below(3) as usize], 1, wait),
        }
    };
    let times: Vec<Moment> = (0..kills).map(&mut moment).collect();
    times.into_iter().map(|time| (time, rng.below(RANKS as u64) as usize)).collect()
}

fn count(log: &str, word: &str) -> u64 {
    log.lines().filter(|line| line.starts_with(word)).count() as u64
}

/// The newest version that any rank heard was committed, at any level.
fn newest_told(told: &Told) -> u64 {
    let lines = (0..RANKS).flat_map(|rank| told.lines(rank, "committed version="));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).max().unwrap_or(0)
}

#[test]
fn sigkill_of_any_rank_at_a_random_instant_restarts_from_the_newest_committed_version_with_the_same_digest() {
    let kills = std::env::var("BIVOUAC_TEST_KILLS").map_or(6, |text| text.parse().expect("BIVOUAC_TEST_KILLS"));
    let mut rng = Rng::new(seed());
    let args = ["run", "--versions", "300", "--pause-ms", "4", "--elements", "60001"];
    let Some(calm) = Bed::on_disk().run(&args) else { return };
    let digest = calm.line(0, "digest ").to_owned();

    let mut hits = 0;
    for (chain, kills) in moments(kills, &mut rng).chunks(6).enumerate() {
        let mut bed = Bed::on_disk();
        if chain % 2 == 1 {
            bed.set("BIVOUAC_ENGINE_PROGRESS", "stepped");
        }
        let mut newest = 0;
        for (at, rank) in kills {
            let killed = kill_at(&bed, &args, *at, *rank);
            hits += u64::from(killed.lines(0, "end").is_empty());
            newest = check_oracle(&killed, newest, &digest, &format!("killed at {at:?}, rank {rank}"));
        }
        let last = bed.run(&args).unwrap();
        check_oracle(&last, newest, &digest, "after the last kill");
        assert_eq!(last.line(0, "digest "), digest);
    }
    assert!(hits * 3 >= kills * 2, "only {hits} of {kills} runs were killed before their end: this tested nothing");
}

fn kill_at(bed: &Bed, args: &[&str], at: Moment, rank: usize) -> Told {
    let mut job = bed.start(args).unwrap();
    let (rank_seen, word, times, wait) = match at {
        Moment::After(time) => (0, "opened", 1, time),
        Moment::On(word, times, wait) => (rank, word, times, wait),
    };
    while job.is_running() && count(&bed.log(rank_seen), word) < times {
        std::thread::sleep(Duration::from_micros(100));
    }
    let until = Instant::now() + wait;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    job.kill(&[rank]);
    job.end()
}

/// After a kill, a restart finds at least the newest version that the application was told was committed, and its data is right. Returns
/// the newest version that the application was told was committed by the end of this run.
fn check_oracle(told: &Told, newest: u64, digest: &str, what: &str) -> u64 {
    let mut restored = Vec::new();
    for rank in 0..RANKS {
        let wrong = told.ranks[rank].contains("WRONG") || told.ranks[rank].contains("restart-error");
        assert!(!wrong, "{what}\n{told:?}");
        let versions = told.lines(rank, "restored version=");
        restored.extend(versions.iter().map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap()));
        let nothing = !told.lines(rank, "nothing").is_empty();
        assert!(!nothing || newest == 0, "{what}: nothing restored, although {newest} was committed\n{told:?}");
        // A rank that died while it compared the restored data has written nothing since.
        let died_comparing = told.ranks[rank].lines().last().is_some_and(|line| line.starts_with("restored version="));
        let verified = told.lines(rank, "verified").len() + usize::from(died_comparing);
        assert_eq!(versions.len(), verified, "{what}\n{told:?}");
    }
    // A rank that was killed during the restart itself has restored nothing.
    restored.dedup();
    assert!(restored.len() <= 1, "{what}: a mixed state {restored:?}\n{told:?}");
    assert!(restored.iter().all(|version| *version >= newest), "{what}: {restored:?} is older than {newest}\n{told:?}");
    assert!(told.lines(0, "digest ").iter().all(|found| *found == digest), "{what}: another digest\n{told:?}");
    newest.max(newest_told(told))
}

// ---------------------------------------------------------------------------------------------------------------------
// Losing tiers

#[test]
fn all_ranks_killed_with_the_memory_segment_still_there_restores_from_memory_and_reads_nothing_from_disk() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    row.add("whole", Outcome::Restored(NEWEST, all("memory")), |_, _| "nothing is damaged".into());
    let told = row.check(&store);
    for rank in 0..RANKS {
        let read = |tier: &str| restart_counter(&told, rank, "whole", &format!("restored_bytes.{tier}"));
        assert!(read("memory") > 160_000, "rank {rank}");
        assert_eq!((read("local"), read("global")), (0, 0), "rank {rank} read shard bytes from disk");
    }
}

#[test]
fn a_store_made_without_a_comm_thread_is_restored_from_memory_too() {
    let Some(store) = Store::make(&[("BIVOUAC_ENGINE_PROGRESS", "stepped")]) else { return };
    let mut row = Row::default();
    row.add("whole", Outcome::Restored(NEWEST, all("memory")), |_, _| "nothing is damaged".into());
    row.check(&store);
}

#[test]
fn a_lost_memory_segment_is_restored_from_local_and_a_lost_local_tier_from_global() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    row.add("no-memory", Outcome::Restored(NEWEST, all("local")), |case, _| {
        case.lose("memory");
        "memory segment gone".into()
    });
    row.add("no-local", Outcome::Restored(NEWEST, all("memory")), |case, _| {
        case.lose("local");
        "local tier gone".into()
    });
    row.add("only-global", Outcome::Restored(NEWEST, all("global")), |case, _| {
        case.lose("memory");
        case.lose("local");
        "memory segment and local tier gone".into()
    });
    row.add("only-local", Outcome::Restored(NEWEST, all("local")), |case, _| {
        case.lose("memory");
        case.lose("global");
        "memory segment and global tier gone".into()
    });
    for rank in [0, 2] {
        let tiers = one(rank, "global", "local");
        row.add(format!("no-local-copy-of-{rank}"), Outcome::Restored(NEWEST, tiers), move |case, _| {
            case.lose("memory");
            fs::remove_file(case.file("local", NEWEST, &rank_file(rank))).unwrap();
            format!("memory segment and local copy of rank {rank} gone")
        });
    }
    let told = row.check(&store);
    for rank in 0..RANKS {
        let read = |name: &str, tier: &str| restart_counter(&told, rank, name, &format!("restored_bytes.{tier}"));
        assert!(read("no-memory", "local") > 160_000 && read("only-global", "global") > 160_000, "rank {rank}");
        assert_eq!((read("no-memory", "memory"), read("no-memory", "global")), (0, 0), "rank {rank}");
        assert_eq!((read("only-global", "memory"), read("only-global", "local")), (0, 0), "rank {rank}");
    }
}

fn rank_file(rank: usize) -> String {
    format!("r{rank:06}.bvs")
}

const NODE_FILE: &str = "c000000.bvc";

// ---------------------------------------------------------------------------------------------------------------------
// One bit

#[test]
fn one_bit_flipped_in_memory_is_found_and_the_local_copy_is_used() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    let ranks = [0, 1, 2, 3];
    for (part, rank) in SHARD_PARTS.into_iter().zip(ranks) {
        let tiers = one(rank, "local", "memory");
        row.add(format!("memory-{part}"), Outcome::Restored(NEWEST, tiers), move |case, rng| {
            Shard::in_memory(case, rank).flip(part, rng)
        });
    }
    for rank in [0, 3] {
        let tiers = one(rank, "local", "memory");
        row.add(format!("slot-entry-{rank}"), Outcome::Restored(NEWEST, tiers), move |case, rng| {
            flip_slot_entry(case, rank, rng)
        });
    }
    row.add("segment-header", Outcome::Restored(NEWEST, all("local")), |case, rng| {
        spots::flip(&case.segment(), 0..128, rng)
    });
    let told = row.check(&store);
    for (part, rank) in SHARD_PARTS.into_iter().zip(ranks) {
        let damaged = restart_counter(&told, rank, &format!("memory-{part}"), "damaged.memory");
        assert_eq!(damaged, 1, "rank {rank}: the damaged {part} is not in the statistics");
    }
}

#[test]
fn one_bit_flipped_in_a_local_file_is_found_and_the_global_copy_is_used() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    for (rank, part) in SHARD_PARTS.into_iter().chain(CONTAINER_PARTS).enumerate() {
        let rank = rank % RANKS;
        let tiers = one(rank, "global", "local");
        row.add(format!("local-{part}"), Outcome::Restored(NEWEST, tiers), move |case, rng| {
            case.lose("memory");
            let path = case.file("local", NEWEST, &rank_file(rank));
            match part {
                "entries" | "footer" => flip_container(&path, part, rng),
                part => Shard::in_file(path, rank).flip(part, rng),
            }
        });
    }
    row.add("local-manifest", Outcome::Restored(NEWEST, all("local")), |case, rng| {
        case.lose("memory");
        flip_anywhere(&case.file("local", NEWEST, "manifest"), rng)
    });
    row.add("memory-and-local", Outcome::Restored(NEWEST, one(1, "global", "memory")), |case, rng| {
        let path = case.file("local", NEWEST, &rank_file(1));
        let (first, second) = (Shard::in_memory(case, 1).flip("main", rng), Shard::in_file(path, 1).flip("main", rng));
        format!("{first}, {second}")
    });
    row.check(&store);
}

#[test]
fn one_bit_flipped_in_the_only_copy_leads_all_ranks_to_the_next_older_version() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    for (rank, part) in SHARD_PARTS.into_iter().chain(CONTAINER_PARTS).enumerate() {
        row.add(format!("global-{part}"), Outcome::Restored(NEWEST - 1, all("global")), move |case, rng| {
            case.lose("memory");
            case.lose("local");
            let path = case.file("global", NEWEST, NODE_FILE);
            match part {
                "entries" | "footer" => flip_container(&path, part, rng),
                part => Shard::in_file(path, rank % RANKS).flip(part, rng),
            }
        });
    }
    // The shards also hold everything that a manifest says.
    row.add("global-manifest", Outcome::Restored(NEWEST, all("global")), |case, rng| {
        case.lose("memory");
        case.lose("local");
        flip_anywhere(&case.file("global", NEWEST, "manifest"), rng)
    });
    for (rank, part) in SHARD_PARTS.into_iter().enumerate() {
        let tiers = Outcome::Restored(NEWEST - 1, all("local"));
        row.add(format!("all-tiers-of-{rank}"), tiers, move |case, rng| flip_all(case, rank, &[NEWEST], part, rng));
    }
    let third = if versions(&store.bed.local).contains(&(NEWEST - 2)) { "local" } else { "global" };
    row.add("two-versions", Outcome::Restored(NEWEST - 2, all(third)), |case, rng| {
        let one = flip_all(case, 1, &[NEWEST], "body", rng);
        let two = flip_all(case, 2, &[NEWEST - 1], "index", rng);
        format!("{one}; {two}")
    });
    row.check(&store);
    #[cfg(feature = "object-store")]
    row.check_in_bucket(&store);
}

#[test]
fn one_bit_flipped_in_every_copy_of_every_version_is_one_clear_error_on_all_ranks() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    for (rank, part) in SHARD_PARTS.into_iter().enumerate() {
        row.add(format!("every-{part}"), Outcome::Error("nothing can be restored"), move |case, rng| {
            flip_all(case, rank, &case.versions("global"), part, rng)
        });
    }
    row.add("every-rank", Outcome::Error("nothing can be restored"), |case, rng| {
        let ranks = (0..RANKS).map(|rank| flip_all(case, rank, &case.versions("global"), "header", rng));
        ranks.collect::<Vec<_>>().join("; ")
    });
    let told = row.check(&store);
    #[cfg(feature = "object-store")]
    row.check_in_bucket(&store);
    let text = lines(&told, 0, "case=every-body restart-error ")[0];
    for words in ["rank 3", "version 5", "version 4", "version 3", "digest"] {
        assert!(text.contains(words), "the error does not say {words:?}: {text}");
    }
}

/// Damages all copies of these versions of one rank. In bodies it always damages the same region: copies that are damaged in different
/// regions make up for each other.
fn flip_all(case: &Case, rank: usize, versions: &[u64], part: &str, rng: &mut Rng) -> String {
    let mut done = Vec::new();
    let part = if part == "body" { "main" } else { part };
    for version in versions {
        if *version == NEWEST {
            done.push(Shard::in_memory(case, rank).flip(part, rng));
        }
        if case.versions("local").contains(version) {
            done.push(Shard::in_file(case.file("local", *version, &rank_file(rank)), rank).flip(part, rng));
        }
        done.push(Shard::in_file(case.file("global", *version, NODE_FILE), rank).flip(part, rng));
    }
    done.join(", ")
}

// ---------------------------------------------------------------------------------------------------------------------
// Writes that were lost

#[test]
fn a_page_or_sector_that_was_never_written_or_is_an_older_one_is_found_on_every_tier() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    for (rank, how) in LOST.into_iter().enumerate() {
        let before = move |case: &Case| Shard::in_file(case.file("local", NEWEST - 1, &rank_file(rank)), rank);
        row.add(format!("memory-{how}"), Outcome::Restored(NEWEST, one(rank, "local", "memory")), move |case, rng| {
            Shard::in_memory(case, rank).lose_write(how, &before(case), rng)
        });
        row.add(format!("local-{how}"), Outcome::Restored(NEWEST, one(rank, "global", "local")), move |case, rng| {
            let shard = Shard::in_file(case.file("local", NEWEST, &rank_file(rank)), rank);
            let done = shard.lose_write(how, &before(case), rng);
            case.lose("memory");
            done
        });
        row.add(format!("global-{how}"), Outcome::Restored(NEWEST - 1, all("global")), move |case, rng| {
            let shard = Shard::in_file(case.file("global", NEWEST, NODE_FILE), rank);
            let done = shard.lose_write(how, &before(case), rng);
            case.lose("memory");
            case.lose("local");
            done
        });
    }
    let told = row.check(&store);
    for (rank, how) in LOST.into_iter().enumerate() {
        // Nobody can tell whether a hole in a segment is damage or memory that was given back.
        let damaged = restart_counter(&told, rank, &format!("memory-{how}"), "damaged.memory");
        assert_eq!(damaged, u64::from(how != "hole"), "rank {rank}: {how}");
        assert_eq!(restart_counter(&told, rank, &format!("local-{how}"), "damaged.local"), 1, "rank {rank}: {how}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Files that are not what they should be

/// The arguments for [`spoil`].
const WAYS: [&str; 6] = ["truncated", "empty", "missing", "directory", "other-version", "other-job"];

#[test]
fn a_file_truncated_empty_missing_or_replaced_is_treated_as_absent() {
    let Some(store) = Store::make(&[]) else { return };
    let other = Store::make(&[("BIVOUAC_JOB_NAME", "another")]).expect("MPI is there");
    let other = other.copy(store.bed.folder(), "other");
    let foreign =
        |case: &Case, tier: &str, name: &str| [case.file(tier, NEWEST - 1, name), other.file(tier, NEWEST, name)];
    let mut row = Row::default();
    for (number, how) in WAYS.into_iter().enumerate() {
        let rank = number % RANKS;
        let spoiled = move |case: &Case, tier: &str, name: &str, rng: &mut Rng, foreign: [std::path::PathBuf; 2]| {
            let [a, b] = &foreign;
            spoil(&case.file(tier, NEWEST, name), how, [a, b], rng)
        };
        row.add(format!("local-{how}"), Outcome::Restored(NEWEST, one(rank, "global", "local")), move |case, rng| {
            case.lose("memory");
            let name = rank_file(rank);
            spoiled(case, "local", &name, rng, foreign(case, "local", &name))
        });
        row.add(format!("global-{how}"), Outcome::Restored(NEWEST - 1, all("global")), move |case, rng| {
            case.lose("memory");
            case.lose("local");
            spoiled(case, "global", NODE_FILE, rng, foreign(case, "global", NODE_FILE))
        });
        for (tier, lost) in [("local", None), ("global", Some("local"))] {
            row.add(format!("{tier}-manifest-{how}"), Outcome::Restored(NEWEST, all(tier)), move |case, rng| {
                case.lose("memory");
                lost.into_iter().for_each(|lost| case.lose(lost));
                spoiled(case, tier, "manifest", rng, foreign(case, tier, "manifest"))
            });
        }
    }
    row.check(&store);
    #[cfg(feature = "object-store")]
    row.check_in_bucket(&store);
}

#[test]
fn a_segment_truncated_empty_missing_or_replaced_is_treated_as_absent() {
    let Some(store) = Store::make(&[]) else { return };
    let other = Store::make(&[("BIVOUAC_JOB_NAME", "another")]).expect("MPI is there");
    let other = other.copy(store.bed.folder(), "other");
    let mut row = Row::default();
    for how in ["truncated", "empty", "missing", "directory"] {
        row.add(format!("segment-{how}"), Outcome::Restored(NEWEST, all("local")), move |case, rng| {
            let path = case.segment();
            spoil(&path, how, [&path, &path], rng)
        });
    }
    row.add("segment-other-job", Outcome::Restored(NEWEST, all("local")), |case, _| {
        case::copy_sparse(&other.segment(), &case.segment()).unwrap();
        "the segment of another job under our name".into()
    });
    row.add("slot-other-rank", Outcome::Restored(NEWEST, one(0, "local", "memory")), |case, _| {
        let [zero, one] = [0, 1].map(|rank| Shard::in_memory(case, rank));
        assert_eq!(zero.bytes.len(), one.bytes.len());
        overwrite(&zero, &one.bytes);
        "rank 1's shard in the slot of rank 0".into()
    });
    row.add("slot-other-version", Outcome::Restored(NEWEST, one(3, "local", "memory")), |case, _| {
        let old = Shard::in_file(case.file("local", NEWEST - 1, &rank_file(3)), 3);
        let slot = Shard::in_memory(case, 3);
        assert_eq!(slot.bytes.len(), old.bytes.len());
        overwrite(&slot, &old.bytes);
        "the version before in the slot of rank 3".into()
    });
    row.check(&store);
}

// ---------------------------------------------------------------------------------------------------------------------
// The newest version on some ranks only

#[test]
fn a_version_that_only_some_ranks_have_gives_way_to_an_older_one_on_all_ranks() {
    let Some(store) = Store::make(&[]) else { return };
    let mut row = Row::default();
    for rank in 0..RANKS {
        let older = Outcome::Restored(NEWEST - 1, all("local"));
        row.add(format!("all-but-{rank}"), older, move |case, _| {
            case.lose("memory");
            case.lose_version("global", NEWEST);
            fs::remove_file(case.file("local", NEWEST, &rank_file(rank))).unwrap();
            format!("rank {rank} has no copy of version {NEWEST}")
        });
    }
    row.add("only-2", Outcome::Restored(NEWEST - 1, all("local")), |case, rng| {
        case.lose_version("local", NEWEST);
        case.lose_version("global", NEWEST);
        for rank in [0, 1, 3] {
            Shard::in_memory(case, rank).flip("header", rng);
        }
        "version 5 is in the memory of rank 2 only".into()
    });
    row.add("together", Outcome::Restored(NEWEST, ["local", "memory", "local", "memory"]), |case, rng| {
        case.lose_version("global", NEWEST);
        for rank in [0, 2] {
            Shard::in_memory(case, rank).flip("table", rng);
        }
        for rank in [1, 3] {
            fs::remove_file(case.file("local", NEWEST, &rank_file(rank))).unwrap();
        }
        "ranks 0 and 2 have version 5 on the local tier, 1 and 3 in memory".into()
    });
    row.add("nobody", Outcome::Restored(NEWEST - 2, all("global")), |case, _| {
        case.lose("memory");
        case.lose("local");
        case.lose_version("global", NEWEST);
        fs::remove_file(case.file("global", NEWEST - 1, NODE_FILE)).unwrap();
        "version 5 is gone, version 4 is a manifest only".into()
    });
    row.check(&store);
}
