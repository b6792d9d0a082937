//! The consequences of each kind of damage through VELOC's interface: in node memory, with the tiers below it whole, damaged or lost.
//!
//! `veloc_damage.c` makes a store and is killed. Copies of the store are damaged, and one MPI job restores from all of them: once with
//! `VELOC_Restart_test`, which reads what it offers, and once without it, so that the restart itself must refuse. The tests of the Rust
//! interface have the same table, with more rows (`tests/damage.rs`).

use crate::Bed;
use crate::case::{Case, files};
use crate::limit::LIMIT;
use crate::spots::{self, SHARD_PARTS, Shard, flip_slot_entry, spoil};
use bivouac_core::base::rng::Rng;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RANKS: usize = 2;
/// The store has the versions 1 to this one; node memory has only this one.
const NEWEST: u64 = 4;
/// The region that is damaged if copies must not make up for each other.
const DATA: &str = "#1";

/// The outcome that a restart must have.
#[derive(Clone, Copy)]
enum Outcome {
    /// All ranks restore this version, from these tiers. Before it, these versions were refused, unless they were not even offered.
    Restored(u64, [&'static str; RANKS], &'static [u64]),
    /// No version is restored, after these were refused.
    Nothing(&'static [u64]),
}

use Outcome::{Nothing, Restored};

/// An action that damages a copy of the store. It returns a text that describes the damage.
type Damage = Box<dyn Fn(&Case, &mut Rng) -> String>;

/// `tier` on one rank, and `others` on the other.
fn one(rank: usize, tier: &'static str, others: &'static str) -> [&'static str; RANKS] {
    let mut tiers = [others; RANKS];
    tiers[rank] = tier;
    tiers
}

fn rows() -> Vec<(String, Damage, Outcome)> {
    let mut rows: Vec<(String, Damage, Outcome)> = Vec::new();
    let mut add = |name: String, outcome, damage: Damage| rows.push((name, damage, outcome));
    add("whole".into(), Restored(NEWEST, ["memory"; 2], &[]), Box::new(|_, _| "nothing".into()));

    // Node memory is damaged, and the files are whole.
    for (rank, part) in (0..RANKS).flat_map(|rank| SHARD_PARTS.map(|part| (rank, part))) {
        let outcome = Restored(NEWEST, one(rank, "local", "memory"), &[]);
        add(format!("{part}-{rank}"), outcome, Box::new(move |case, rng| Shard::in_memory(case, rank).flip(part, rng)));
    }
    for rank in 0..RANKS {
        let outcome = Restored(NEWEST, one(rank, "local", "memory"), &[]);
        add(format!("slot-entry-{rank}"), outcome, Box::new(move |case, rng| flip_slot_entry(case, rank, rng)));
    }
    let local = Restored(NEWEST, ["local"; 2], &[]);
    add("segment-header".into(), local, Box::new(|case, rng| spots::flip(&case.segment(), 0..128, rng)));
    add("all-memory".into(), local, Box::new(|case, rng| in_memory(case, &[0, 1], rng)));
    for how in ["truncated", "empty", "missing"] {
        let spoiled = move |case: &Case, rng: &mut Rng| spoil(&case.segment(), how, [Path::new(""); 2], rng);
        add(format!("segment-{how}"), local, Box::new(spoiled));
    }
    for rank in 0..RANKS {
        let outcome = Restored(NEWEST, one(rank, "global", "memory"), &[]);
        let damage = move |case: &Case, rng: &mut Rng| {
            let shard = Shard::in_file(case.file("local", NEWEST, &rank_file(rank)), rank);
            in_memory(case, &[rank], rng) + &shard.flip(DATA, rng)
        };
        add(format!("memory-and-scratch-{rank}"), outcome, Box::new(damage));
    }

    // Every copy of the newest version is damaged: on one rank only, or on both.
    for ranks in [&[0][..], &[1], &[0, 1]] {
        let outcome = Restored(NEWEST - 1, ["local"; 2], &[NEWEST]);
        add(format!("all-tiers-{ranks:?}"), outcome, Box::new(|case, rng| in_every_tier(case, NEWEST, ranks, rng)));
    }
    let outcome = Restored(NEWEST - 2, ["local"; 2], &[NEWEST, NEWEST - 1]);
    let damage = |case: &Case, rng: &mut Rng| {
        in_every_tier(case, NEWEST, &[1], rng) + &in_every_tier(case, NEWEST - 1, &[0], rng)
    };
    add("two-versions".into(), outcome, Box::new(damage));

    // Only node memory is left. The store still exists: without it, the memory would be that of another store.
    let alone = |case: &Case| {
        case.lose("local");
        (1..=NEWEST).for_each(|version| case.lose_version("global", version));
    };
    add(
        "alone".into(),
        Restored(NEWEST, ["memory"; 2], &[]),
        Box::new(move |case, _| {
            alone(case);
            "scratch and all that is persistent are gone".into()
        }),
    );
    for rank in 0..RANKS {
        let damage = move |case: &Case, rng: &mut Rng| {
            alone(case);
            in_memory(case, &[rank], rng)
        };
        add(format!("alone-{rank}"), Nothing(&[NEWEST]), Box::new(damage));
    }
    let damage = move |case: &Case, rng: &mut Rng| {
        alone(case);
        spoil(&case.segment(), "truncated", [Path::new(""); 2], rng)
    };
    add("alone-truncated".into(), Nothing(&[]), Box::new(damage));
    rows
}

fn rank_file(rank: usize) -> String {
    format!("r{rank:06}.bvs")
}

fn in_memory(case: &Case, ranks: &[usize], rng: &mut Rng) -> String {
    ranks.iter().map(|rank| Shard::in_memory(case, *rank).flip(DATA, rng) + "; ").collect()
}

fn in_every_tier(case: &Case, version: u64, ranks: &[usize], rng: &mut Rng) -> String {
    let mut done = if version == NEWEST { in_memory(case, ranks, rng) } else { String::new() };
    for rank in ranks {
        let copies = [case.file("local", version, &rank_file(*rank)), case.file("global", version, "c000000.bvc")];
        done.extend(copies.map(|path| Shard::in_file(path, *rank).flip(DATA, rng) + "; "));
    }
    done
}

/// Makes a store with all versions, whose ranks were killed when every tier had its versions. Returns its directories.
fn make(bed: &Bed, program: &Path) -> Case {
    let folder = bed.path("made");
    std::fs::create_dir(&folder).expect("made");
    for tier in ["memory", "local", "global"] {
        std::fs::create_dir(folder.join(tier)).expect("made");
    }
    let made = Case { folder };
    let (config, end) = (config(&made, ""), bed.path("end"));
    let arguments = ["make", &config, &NEWEST.to_string(), end.to_str().expect("UTF-8")];
    let mut job = command(bed, program, &arguments).stderr(Stdio::null()).spawn().expect("mpirun");
    let has_all = |tier: &str| files(&made.tier(tier), "manifest").len() as u64 == NEWEST;
    let limit = Instant::now() + LIMIT;
    let mut is_whole = false;
    while !is_whole && Instant::now() < limit && job.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(1));
        is_whole = has_all("local") && has_all("global");
    }
    std::fs::write(end, "").expect("written");
    let status = job.wait().expect("a child");
    assert!(is_whole && !status.success(), "{status}: {:?}\n{}", files(&made.folder, ""), logs(bed).concat());
    made
}

fn command(bed: &Bed, program: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = bed.command(program, arguments);
    // All copies of a store belong to one job, and each has its own node memory.
    command.env("BIVOUAC_JOB_NAME", "veloc-damage").env_remove("BIVOUAC_MEMORY_DIRECTORY");
    command
}

/// A configuration for a copy of the store.
fn config(case: &Case, more: &str) -> String {
    let [memory, local, global] = ["memory", "local", "global"].map(|tier| case.tier(tier));
    let (own, path) = (case.folder.join("more.toml"), case.folder.join("veloc.cfg"));
    std::fs::write(&own, format!("[memory]\ndirectory = {memory:?}\n")).expect("written");
    let text = format!(
        "scratch = {}\npersistent = {}\nmode = async\nbivouac = {}\n{more}",
        local.display(),
        global.display(),
        own.display()
    );
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn logs(bed: &Bed) -> [String; RANKS] {
    std::array::from_fn(|rank| std::fs::read_to_string(bed.path(&format!("rank-{rank}.log"))).unwrap_or_default())
}

#[test]
fn damage_in_node_memory_is_passed_over_on_all_ranks_alike() {
    let bed = Bed::new();
    let program = bed.watched("veloc_damage.c");
    let made = make(&bed, &program);
    let seed = std::env::var("BIVOUAC_TEST_SEED").ok().map(|text| text.parse().expect("BIVOUAC_TEST_SEED: a number"));
    let seed = seed.unwrap_or(20_260_101);
    println!("seed: replay with BIVOUAC_TEST_SEED={seed}");
    for verifies in [true, false] {
        let mut rng = Rng::new(seed);
        let mut arguments = vec!["restore".to_owned()];
        let mut done = Vec::new();
        for (name, damage, outcome) in rows() {
            let tiers = ["memory", "local", "global"].map(|tier| made.tier(tier));
            let place = bed.path(if verifies { "verified" } else { "trusted" });
            let case = Case::copy(tiers.each_ref().map(|tier| tier.as_path()), &place, &name);
            let what = format!("{name}, verify = {verifies}: {}", damage(&case, &mut rng));
            arguments.push(config(&case, &format!("verify = {verifies}\n")));
            done.push((what, outcome));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut run = command(&bed, &program, &arguments);
        if !verifies {
            run.env("BIVOUAC_ENGINE_PROGRESS", "stepped");
        }
        let output = run.output().expect("mpirun");
        let logs = logs(&bed);
        assert!(output.status.success(), "{}\n{}", output.status, logs.join("\n"));
        for (rank, log) in logs.iter().enumerate() {
            let log = format!("\n{log}");
            let told: Vec<&str> = log.split("\nstore ").skip(1).collect();
            assert_eq!(told.len(), done.len(), "rank {rank}: {log}");
            for ((what, outcome), told) in done.iter().zip(told) {
                check(rank, verifies, *outcome, told, what);
            }
        }
    }
}

/// Checks the lines that a rank wrote about one restart.
fn check(rank: usize, verifies: bool, outcome: Outcome, told: &str, what: &str) {
    let all = |start: &str| -> Vec<i64> {
        let lines = told.lines().filter_map(|line| line.strip_prefix(start));
        lines.map(|number| number.trim().parse().expect("a number")).collect()
    };
    let (version, tier, refused) = match outcome {
        Restored(version, tiers, refused) => (version as i64, Some(tiers[rank]), refused),
        Nothing(refused) => (-1, None, refused),
    };
    assert_eq!(all("from "), [version], "rank {rank}, {what}\n{told}");
    let refused = if verifies { &[] } else { refused };
    let refused: Vec<i64> = refused.iter().map(|version| *version as i64).collect();
    assert_eq!(all("refused "), refused, "rank {rank}, {what}\n{told}");
    let restored = told.lines().find(|line| line.contains("event=restored "));
    let from = restored.and_then(|line| line.split_whitespace().find_map(|word| word.strip_prefix("tier=")));
    assert_eq!(from, tier, "rank {rank}, {what}\n{told}");
}
