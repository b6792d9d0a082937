//! `bivouac drain`, on the remains of sessions that end like killed processes, on one node and on two.
//!
//! A run takes its first version on all tiers, so that the store knows it, and later versions in memory, or in memory and on the local tier
//! only. Then nodes are drained, lost or damaged, and the real session restarts from the remains.
#![forbid(unsafe_code)]

use crate::store;
use crate::store::{Ran, Store, bivouac, command, entries, ran, take, with_path};
use bivouac_core::base::ids::{Generation, Incarnation, text_hash};
use bivouac_core::base::units::MIB;
use bivouac_core::base::{CheckpointKey, Digest, Rank};
use bivouac_core::config::Config;
use bivouac_core::format::shard::{Layout, ShardMeta, encode_head};
use bivouac_core::segment::{OldSegment, SealInfo, Segment, SegmentSpec, SlotState};
use bivouac_core::{Level, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Barrier;

const TWO_NODES: [u32; 4] = [0, 0, 1, 1];

/// Writes only the first version to the local and the global tier.
fn memory_first(config: &mut Config) {
    (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
}

/// Writes only the first version to the global tier.
fn local_first(config: &mut Config) {
    config.job.global.every = 1000.into();
}

/// A job that took version 10 on all tiers and the later versions in memory only, and then died.
fn died_in_memory(nodes: &[u32], later: &[u64]) -> Store {
    let store = Store::on(nodes);
    store.run_killed(memory_first, |session, rank| {
        take(session, rank, &[10], Level::System);
        take(session, rank, later, Level::Process);
        settle(session);
    });
    store
}

/// Completes the consequences of verdicts that the session has heard (manifests are written, room is given back),
/// which a kill could cut off.
fn settle(session: &Session) {
    session.versions("heat").expect("a list");
}

/// A job that took the later versions on the local tier as well, and then died.
fn died_on_disk(nodes: &[u32], later: &[u64]) -> Store {
    let store = Store::on(nodes);
    store.run_killed(local_first, |session, rank| {
        take(session, rank, &[10], Level::System);
        take(session, rank, later, Level::NodeReboot);
        settle(session);
    });
    store
}

fn arguments(store: &Store, node: u32, more: &[&str]) -> Vec<String> {
    let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    let mut args: Vec<String> = ["drain", "--global"].map(Into::into).into();
    args.push(path(store.global()));
    args.extend(["--memory".into(), path(store.memory_of(node)), "--local".into(), path(store.local_of(node))]);
    args.extend(more.iter().map(|more| (*more).to_owned()));
    args
}

fn drain(store: &Store, node: u32, more: &[&str]) -> Ran {
    bivouac(&arguments(store, node, more))
}

fn drain_json(store: &Store, node: u32, more: &[&str]) -> (i32, Value) {
    let ran = drain(store, node, &[more, &["--json"]].concat());
    (ran.status, ran.json())
}

/// The rows of a document: version, ranks copied, ranks that are there, and whether it is complete.
fn rows(document: &Value) -> Vec<(u64, Value, Value, bool)> {
    let rows = document["checkpoints"].as_array().expect("a list");
    let row = |row: &Value| {
        let version = row["version"].as_u64().expect("a number");
        (version, row["copied"].clone(), row["there"].clone(), row["complete"].as_bool().expect("a word"))
    };
    rows.iter().map(row).collect()
}

fn folder_of(store: &Store, version: u64) -> PathBuf {
    let mark = format!("-v{version:010}-");
    let folders = store.folders(&store.global());
    let found = folders.iter().find(|folder| folder.to_str().expect("UTF-8").contains(&mark));
    found.unwrap_or_else(|| panic!("no version {version} in {folders:?}")).clone()
}

fn names(folder: &Path) -> Vec<String> {
    entries(folder).iter().map(|path| path.file_name().expect("a name").to_str().expect("UTF-8").to_owned()).collect()
}

/// Checks that no temp file is left anywhere below, and that every digest is right.
fn assert_clean(store: &Store) {
    for folder in store.folders(&store.global()) {
        assert!(!names(&folder).iter().any(|name| name.ends_with(".tmp")), "{:?}", names(&folder));
    }
    let verified = with_path(&["verify"], &store.global());
    assert_eq!(verified.status, 0, "{}", verified.out);
}

/// Flips a bit in the main region of a sealed shard of a segment.
fn damage_slot(segment: &Path, version: u64, node_rank: u32) {
    let old = open(segment);
    let is_it = |slot: &&bivouac_core::segment::OldSlot| {
        slot.state == SlotState::Sealed && (slot.version, slot.node_rank) == (version, node_rank)
    };
    let slot = old.slots().iter().find(is_it).expect("a sealed slot");
    flip(segment, slot.offset + 4096 + 5000);
}

fn open(segment: &Path) -> OldSegment {
    let name = segment.file_name().expect("a name").to_str().expect("UTF-8");
    OldSegment::open(segment.parent().expect("a folder"), name).expect("a segment")
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
}

/// May this process mount file systems in a namespace of its own? Prints a loud note if it may not.
fn can_mount(test: &str) -> bool {
    let script = "mount -t tmpfs -o size=1m bivouac-probe /mnt";
    let tried = std::process::Command::new("unshare").args(["-m", "sh", "-c", script]).stderr(Stdio::null()).status();
    let can = rustix::process::geteuid().is_root() && tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!(
            "\n*** SKIPPED {test}: it mounts a small file system. Run it as root: sudo -E cargo nextest run --test cli {test} ***\n"
        );
    }
    can
}

// ------------------------------------------------------------------------------------------- what it is for

#[test]
fn a_job_that_died_for_good_goes_on_from_what_its_nodes_had_in_memory() {
    let store = died_in_memory(&TWO_NODES, &[20, 30]);
    let (status, first) = drain_json(&store, 0, &[]);
    assert_eq!(
        (status, rows(&first)),
        (0, vec![(30, json!([0, 1]), json!([]), false), (10, json!([]), json!([0, 1]), true)])
    );
    assert_eq!(first["checkpoints"][0]["missing"], json!([[2, 3]]), "{first}");
    assert_eq!(names(&folder_of(&store, 30)), ["r000000.bvs", "r000001.bvs"]);
    let (status, second) = drain_json(&store, 1, &[]);
    assert_eq!((status, &rows(&second)[0]), (0, &(30, json!([2, 3]), json!([]), true)), "{second}");
    assert_eq!(names(&folder_of(&store, 30)).last().map(String::as_str), Some("r000003.bvs"));
    assert!(folder_of(&store, 30).join("manifest").exists());
    assert_clean(&store);
    [0, 1].into_iter().for_each(|node| store.wipe(node));
    assert_eq!(store.restart(), Some(30));
}

#[test]
fn a_node_without_memory_brings_what_is_on_its_disk() {
    // Node 1 was rebooted, so its memory is gone. Version 40 was in memory only, so 30 is the newest version that all
    // nodes have. Version 10 is complete on the parallel file system; the test does not depend on whether the killed
    // ranks had freed its memory.
    let newer_than_10 = |document: &Value| {
        let newer = rows(document).into_iter().filter(|row| row.0 > 10);
        newer.map(|(version, _, _, complete)| (version, complete)).collect::<Vec<_>>()
    };
    let store = Store::on(&TWO_NODES);
    let local_every_second =
        |config: &mut Config| (config.job.local.every, config.job.global.every) = (2.into(), 1000.into());
    store.run_killed(local_every_second, |session, rank| {
        take(session, rank, &[10], Level::System);
        take(session, rank, &[20], Level::Process);
        take(session, rank, &[30], Level::NodeReboot);
        take(session, rank, &[40], Level::Process);
        settle(session);
    });
    store.wipe_memory(1);
    let (status, first) = drain_json(&store, 0, &[]);
    assert_eq!((status, newer_than_10(&first)), (0, vec![(40, false), (30, false)]), "{first}");
    let (status, second) = drain_json(&store, 1, &[]);
    assert_eq!((status, newer_than_10(&second)), (0, vec![(30, true)]), "{second}");
    let row = rows(&second).into_iter().find(|row| row.0 == 30);
    assert_eq!(row, Some((30, json!([2, 3]), json!([]), true)), "{second}");
    [0, 1].into_iter().for_each(|node| store.wipe(node));
    assert_eq!(store.restart(), Some(30));
}

#[test]
fn all_takes_everything_and_name_one_series() {
    let store = died_on_disk(&[0, 0], &[20, 30]);
    let (_, document) = drain_json(&store, 0, &["--name", "flow"]);
    assert_eq!(rows(&document), []);
    let (_, document) = drain_json(&store, 0, &["--newest", "--name", "heat"]);
    assert_eq!(rows(&document).iter().map(|row| row.0).collect::<Vec<_>>(), [30]);
    let (_, document) = drain_json(&store, 0, &["--all"]);
    let all = [
        (30, json!([]), json!([0, 1]), true),
        (20, json!([0, 1]), json!([]), true),
        (10, json!([]), json!([0, 1]), true),
    ];
    assert_eq!(rows(&document), all, "{document}");
    assert_clean(&store);
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_would_be() {
    let store = died_in_memory(&TWO_NODES, &[20]);
    let before = (store.folders(&store.global()), store::data_files(&store.global()));
    let (status, document) = drain_json(&store, 0, &["--dry-run"]);
    assert_eq!((status, document["dry_run"].as_bool(), document["bytes"].as_u64()), (0, Some(true), Some(0)));
    assert_eq!(rows(&document)[0], (20, json!([0, 1]), json!([]), false), "{document}");
    assert_eq!(before, (store.folders(&store.global()), store::data_files(&store.global())));
    let text = drain(&store, 0, &["-n"]).out;
    assert!(text.contains("would copy ranks 0-1; incomplete, ranks 2-3 of 4 are missing"), "{text}");
}

// ------------------------------------------------------------------------------------------- twice, and at once

#[test]
fn a_second_drain_finds_everything_there() {
    let store = died_on_disk(&[0, 0], &[20]);
    assert_eq!(drain(&store, 0, &[]).status, 0);
    let written = |name: &str| folder_of(&store, 20).join(name).metadata().expect("there").modified().expect("a time");
    let before = ["r000000.bvs", "manifest"].map(written);
    for more in [&[][..], &["--quick"]] {
        let (status, document) = drain_json(&store, 0, more);
        assert_eq!((status, rows(&document)), (0, vec![(20, json!([]), json!([0, 1]), true)]));
        assert_eq!(document["bytes"], 0);
    }
    assert_eq!(before, ["r000000.bvs", "manifest"].map(written));
}

#[test]
fn a_manifest_that_a_killed_drain_did_not_write_any_more_is_written_by_the_next() {
    let store = died_in_memory(&[0, 0], &[20]);
    drain(&store, 0, &[]);
    std::fs::remove_file(folder_of(&store, 20).join("manifest")).expect("removed");
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document)[0].clone()), (0, (20, json!([]), json!([0, 1]), true)));
    assert_clean(&store);
}

#[test]
fn drains_of_both_nodes_and_two_of_one_node_at_once_complete_the_checkpoint() {
    for round in 0..8 {
        let store = died_in_memory(&TWO_NODES, &[20 + round]);
        // With a partner copy, both nodes have the shards of ranks 2 and 3, so they write the same files.
        if round % 2 == 1 {
            let segment = store.segment_of(1);
            let copy =
                store.memory_of(0).join(format!("{}9", segment.file_name().expect("a name").to_str().expect("UTF-8")));
            std::fs::copy(&segment, copy).expect("copied");
        }
        let start = Barrier::new(3);
        let codes: Vec<i32> = std::thread::scope(|scope| {
            let run = |node| {
                let (store, start) = (&store, &start);
                scope.spawn(move || {
                    start.wait();
                    let ran = drain(store, node, &["--parallel", "2"]);
                    assert!(ran.status == 0, "{ran:?}");
                    ran.status
                })
            };
            [0, 1, 1].map(run).map(|thread| thread.join().expect("no panic")).into()
        });
        assert_eq!(codes, [0, 0, 0]);
        assert_clean(&store);
        assert_eq!(
            names(&folder_of(&store, 20 + round)),
            ["manifest", "r000000.bvs", "r000001.bvs", "r000002.bvs", "r000003.bvs"]
        );
        [0, 1].into_iter().for_each(|node| store.wipe(node));
        assert_eq!(store.restart(), Some(20 + round));
    }
}

#[test]
fn waiting_ends_when_the_other_node_is_done() {
    let store = died_in_memory(&TWO_NODES, &[20]);
    let (status, document) = drain_json(&store, 0, &["--wait", "0"]);
    assert_eq!((status, document["damage"].as_array().map(Vec::len)), (1, Some(0)), "{document}");
    let both = std::thread::scope(|scope| {
        [0, 1]
            .map(|node| {
                scope.spawn({
                    let store = &store;
                    move || drain_json(store, node, &["--wait", "2min"])
                })
            })
            .map(|thread| thread.join().expect("no panic"))
    });
    for (status, document) in both {
        assert_eq!((status, rows(&document)[0].3), (0, true), "{document}");
    }
}

/// A big job runs on one node. A drain of it is killed at about every stage of its work.
#[test]
fn a_drain_that_is_killed_goes_on_where_it_stopped() {
    let store = Store::on(&[0, 0, 0, 0]);
    let big = |config: &mut Config| {
        memory_first(config);
        config.node.memory_budget = bivouac_core::config::Budget::Bytes(256 * MIB);
    };
    store.run_killed(big, |session, rank| {
        take(session, rank, &[10], Level::System);
        let version = 20;
        let field = store::field(rank, version);
        let bulk: Vec<u64> = (0..MIB).map(|i| i ^ u64::from(rank)).collect();
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
        checkpoint.save("field", &field).expect("a region");
        checkpoint.save("bulk", &bulk).expect("a region");
        checkpoint.value("step", &version).expect("a value");
        assert!(checkpoint.capture().expect("captured").wait(Level::Process).expect("committed") >= Level::Process);
    });
    let program = assert_cmd::cargo::cargo_bin("bivouac");
    let series = store.series(&store.global());
    let published = || {
        let folders = entries(&series);
        let names: Vec<String> = folders.iter().skip(1).flat_map(|folder| names(folder)).collect();
        let whole = names.iter().filter(|name| name.ends_with(".bvs")).count();
        (whole, names.iter().filter(|name| name.ends_with(".tmp")).count())
    };
    let (mut mid_file, mut between) = (0, 0);
    for at in 0..12 {
        // The drain is killed when this many files exist, finished or not.
        let goal = 1 + at % 5;
        if store.folders(&store.global()).len() > 1 && at % 3 == 0 {
            std::fs::remove_dir_all(folder_of(&store, 20)).expect("removed");
        }
        let mut child = std::process::Command::new(&program)
            .args(arguments(&store, 0, &["--parallel", "1"]))
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        loop {
            let (whole, unfinished) = published();
            if whole + unfinished >= goal || child.try_wait().expect("ours").is_some() {
                break;
            }
            std::hint::spin_loop();
        }
        // The drain may just have ended.
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().expect("ends");
        let (whole, unfinished) = published();
        mid_file += usize::from(unfinished > 0);
        between += usize::from(whole > 0 && whole < 4);
        // No file that has its final name is torn.
        assert_eq!(with_path(&["verify"], &store.global()).status, 0);
    }
    assert!(mid_file > 0 && between > 0, "no drain was killed in the middle of its work: {mid_file} {between}");
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document)[0].3), (0, true), "{document}");
    assert_clean(&store);
    store.wipe(0);
    assert_eq!(store.restart(), Some(20));
}

// ------------------------------------------------------------------------------------------- damage

#[test]
fn a_damaged_copy_is_never_brought_and_another_one_is() {
    let store = died_on_disk(&[0, 0], &[20]);
    damage_slot(&store.segment_of(0), 20, 1);
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document)[0].clone()), (0, (20, json!([0, 1]), json!([]), true)), "{document}");
    assert_clean(&store);
    store.wipe(0);
    assert_eq!(store.restart(), Some(20));
}

#[test]
fn a_shard_without_a_good_copy_is_named_and_left_behind() {
    let store = died_in_memory(&[0, 0], &[20]);
    damage_slot(&store.segment_of(0), 20, 1);
    let (status, document) = drain_json(&store, 0, &[]);
    let row = &document["checkpoints"][0];
    assert_eq!((status, &row["copied"], &row["missing"]), (1, &json!([0]), &json!([[1, 1]])), "{document}");
    assert_eq!((&row["lost"][0]["rank"], &row["lost"][0]["kind"]), (&json!(1), &json!("damaged")));
    let why = row["lost"][0]["why"][0].as_str().expect("text");
    assert!(why.contains("memory tier") && why.contains("\"field\"") && why.contains("digest"), "{why}");
    assert_eq!(names(&folder_of(&store, 20)), ["r000000.bvs"]);
    // Version 20 is incomplete, so a restart without the node takes version 10.
    store.wipe(0);
    assert_eq!(store.restart(), Some(10));
}

#[test]
fn a_damaged_or_missing_file_of_the_local_tier_is_named() {
    for is_missing in [false, true] {
        let store = Store::on(&[0, 0]);
        // The session closes normally, so that the manifests of the local tier are written as well.
        store.run(local_first, |session, rank| take(session, rank, &[10, 20], Level::NodeReboot));
        let file = store.folders(&store.local())[1].join("r000001.bvs");
        let good = std::fs::read(&file).expect("read");
        match is_missing {
            true => std::fs::remove_file(&file).expect("removed"),
            false => std::fs::write(&file, "rubbish").expect("written"),
        }
        let (status, document) = drain_json(&store, 0, &[]);
        let lost = &document["checkpoints"][0]["lost"];
        assert_eq!((status, &lost[0]["rank"], &rows(&document)[0].1), (1, &json!(1), &json!([0])), "{document}");
        assert!(lost[0]["why"][0].as_str().expect("text").contains("r000001.bvs"), "{document}");
        // A file that another node brings repairs the loss.
        std::fs::write(folder_of(&store, 20).join("r000001.bvs"), good).expect("written");
        let (status, document) = drain_json(&store, 0, &[]);
        assert_eq!((status, rows(&document)[0].3), (0, true), "{document}");
    }
}

#[test]
fn damaged_files_on_the_global_tier_are_replaced_by_good_ones() {
    // First, a shard that an earlier drain wrote is damaged.
    let store = died_in_memory(&[0, 0], &[20]);
    drain(&store, 0, &[]);
    flip(&folder_of(&store, 20).join("r000001.bvs"), 9000);
    let (status, document) = drain_json(&store, 0, &["--quick"]);
    assert_eq!((status, rows(&document)[0].clone()), (0, (20, json!([]), json!([0, 1]), true)), "{document}");
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document)[0].clone()), (0, (20, json!([1]), json!([0]), true)), "{document}");
    assert_clean(&store);
    // Then a manifest is damaged.
    std::fs::write(folder_of(&store, 20).join("manifest"), "rubbish").expect("written");
    assert_eq!(drain(&store, 0, &[]).status, 0);
    assert_clean(&store);
    store.wipe(0);
    assert_eq!(store.restart(), Some(20));
}

#[test]
fn a_damaged_slice_of_a_nodes_container_gets_a_file_of_its_own_and_the_manifest_names_it() {
    // Everything is committed on the global tier and is then damaged there; the segment remains because the run was killed.
    for whole_container in [false, true] {
        let store = Store::on(&[0, 0]);
        store.run_killed(|_| (), |session, rank| take(session, rank, &[10], Level::System));
        let folder = folder_of(&store, 10);
        assert_eq!(names(&folder), ["c000000.bvc", "manifest"]);
        let container = folder.join("c000000.bvc");
        let length = container.metadata().expect("there").len();
        flip(&container, if whole_container { length - 30 } else { length / 2 + 5000 });
        assert_eq!(with_path(&["verify"], &store.global()).status, 1);
        let (status, document) = drain_json(&store, 0, &[]);
        let copied = if whole_container { json!([0, 1]) } else { json!([1]) };
        assert_eq!((status, &rows(&document)[0].1, rows(&document)[0].3), (0, &copied, true), "{document}");
        let verified = with_path(&["verify", "--json"], &store.global());
        assert_eq!(verified.status, 0, "{}", verified.out);
        assert!(verified.out.contains("the manifest names another copy"), "{}", verified.out);
        let (status, document) = drain_json(&store, 0, &[]);
        assert_eq!((status, document["bytes"].as_u64()), (0, Some(0)), "{document}");
        store.wipe(0);
        assert_eq!(store.restart(), Some(10));
        // If the manifest is lost as well, the rank's own file counts.
        std::fs::remove_file(folder.join("manifest")).expect("removed");
        assert_eq!(store.restart(), Some(10));
    }
}

#[test]
fn garbage_and_forgeries_are_reported_and_touch_nothing_outside() {
    let store = died_in_memory(&[0, 0], &[20]);
    let memory = store.memory_of(0);
    let private = |name: &str, bytes: &[u8]| {
        let path = memory.join(name);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
        path
    };
    let garbage = private("bivouac-00000000-00000000-g000001", &[7; 9000]);
    private("bivouac-00000000-00000000-g000002", &[]);
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document)[0].3), (1, true), "{document}");
    assert!(document["damage"][0].as_str().expect("text").contains("g000001"), "{document}");
    std::fs::remove_file(garbage).expect("removed");
    // One sound shard has names that lead out of the store, and one has a number that no run can have had.
    let forge = |file: &str, job: &str, generation: u64| {
        let meta = ShardMeta { job: job.into(), group: "world".into(), name: "heat".into(), regions: Vec::new() };
        let layout = Layout::new(meta, 4096).expect("a layout");
        let key = CheckpointKey { generation: Generation(generation), version: 1, operation: 1, ..Default::default() };
        let header = layout.header(key, 0, 1, Rank(0), None);
        let spec = SegmentSpec {
            directory: memory.clone(),
            name: file.into(),
            job: text_hash(job),
            group: text_hash("world"),
            generation: Generation(9),
            incarnation: Incarnation([1; 16]),
            store: 0,
            budget: 4 * MIB,
            node_ranks: 1,
            group_size: 1,
        };
        let segment = Segment::create(&spec).expect("made");
        let mut slot = segment.reserve(layout.total_len).expect("usable").expect("room");
        encode_head(&layout, &header, &[] as &[Digest], &mut slot.as_mut_slice()[..layout.body_offset as usize]);
        let slot = slot.seal(SealInfo { operation: 1, version: 1, name: text_hash("heat") }).expect("sealed");
        segment.set_committed(slot, Level::Process).expect("ours");
    };
    let before = entries(store.disk.path());
    forge("bivouac-11111111-11111111-g000009", "../../outside", 9);
    forge("bivouac-22222222-22222222-g000009", "heat", u64::MAX);
    for more in [&[][..], &["--job", "../../outside"], &["--job", "heat"], &["--all"]] {
        let (status, document) = drain_json(&store, 0, more);
        let damage = document["damage"].to_string();
        assert_eq!(status, 1, "{more:?} {document}");
        assert!(damage.contains("cannot be a folder name") && damage.contains("no run can have had"), "{document}");
    }
    assert_eq!(entries(store.disk.path()), before);
}

#[test]
fn a_parity_part_that_is_none_is_said_and_does_no_harm() {
    let store = died_on_disk(&[0, 0], &[20]);
    std::fs::write(store.folders(&store.local())[1].join("p000000.bvp"), "BVKPRTY1 and so on").expect("written");
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, document["parity"].as_u64(), rows(&document)[0].3), (0, Some(0), true), "{document}");
    assert!(document["unusable_parity"].to_string().contains("p000000.bvp"), "{document}");
    assert!(drain(&store, 0, &[]).out.contains("unusable parity part"));
}

// ------------------------------------------------------------------------------------------- who may, and when not

#[test]
fn a_living_run_is_left_alone() {
    let store = died_in_memory(&TWO_NODES, &[20]);
    store.while_it_runs(memory_first, || {
        let here = drain(&store, 0, &[]);
        // If no process of the run is on the node, the run's claim tells that the run is alive.
        let elsewhere = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(elsewhere.path().join("memory")).expect("made");
        let old = entries(&store.memory_of(1))[0].clone();
        let copy = elsewhere.path().join("memory").join(old.file_name().expect("a name"));
        std::fs::copy(&old, &copy).expect("copied");
        let memory = elsewhere.path().join("memory");
        let there = with_path(&["drain", "--global", store.global().to_str().expect("UTF-8"), "--memory"], &memory);
        let forced = drain_json(&store, 0, &["--even-alive"]);
        let named_otherwise = drain(&store, 1, &["--take-over"]);
        assert!(here.status == 2 && here.err.contains("living run, generation 2, with the memory segment"), "{here:?}");
        assert!(
            there.status == 2 && there.err.contains("living run, generation 2") && there.err.contains("claim"),
            "{there:?}"
        );
        assert_eq!((forced.0, rows(&forced.1)[0].clone()), (0, (20, json!([0, 1]), json!([]), false)), "{}", forced.1);
        assert_eq!(named_otherwise.status, 0, "{named_otherwise:?}");
    });
}

/// The next run took its own versions and closed; a late drain of the old run does not change which version is the newest.
#[test]
fn a_late_drain_of_an_older_run_does_not_come_before_the_newer_one() {
    let store = died_in_memory(&[0, 0], &[20]);
    let kept = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a folder");
    let segment = store.segment_of(0);
    std::fs::copy(&segment, kept.path().join(segment.file_name().expect("a name"))).expect("copied");
    store.wipe_memory(0);
    store.run(
        |_| (),
        |session, rank| {
            assert_eq!(
                session.begin_restore("heat").run(|_| Ok(())).expect("restarts").map(|restored| restored.version),
                Some(10)
            );
            take(session, rank, &[15], Level::System);
        },
    );
    let late =
        with_path(&["drain", "--json", "--global", store.global().to_str().expect("UTF-8"), "--memory"], kept.path());
    assert_eq!((late.status, rows(&late.json())[0].clone()), (0, (20, json!([0, 1]), json!([]), true)), "{late:?}");
    assert_eq!(store.restart(), Some(15));
}

#[test]
fn a_job_that_never_used_the_store_needs_its_name_and_gets_its_number_recorded() {
    // The job used no global tier.
    let store = Store::on(&[0, 0]);
    let without = |config: &mut Config| (config.job.global_enabled, config.job.local_enabled) = (false, false);
    store.run_killed(without, |session, rank| take(session, rank, &[20], Level::Process));
    let unmounted = drain(&store, 0, &[]);
    assert!(
        unmounted.status == 2 && unmounted.err.contains("mounted?") && unmounted.err.contains("--create"),
        "{unmounted:?}"
    );
    assert!(!store.global().exists());
    let dry = drain(&store, 0, &["--create", "--dry-run", "--job", "cli"]);
    assert!(
        dry.status == 0 && dry.out.contains("would copy ranks 0-1; would then be complete") && !store.global().exists(),
        "{dry:?}"
    );
    let (status, document) = drain_json(&store, 0, &["--create"]);
    assert_eq!((status, rows(&document)), (0, vec![]));
    assert!(document["skipped"][0]["why"].as_str().expect("text").contains("--job"), "{document}");
    let (status, document) = drain_json(&store, 0, &["--job", "cli"]);
    assert_eq!((status, rows(&document)), (0, vec![(20, json!([0, 1]), json!([]), true)]), "{document}");
    assert_clean(&store);
    store.wipe(0);
    // The next run must not take the same number: the names of its folders would be those of the drained run.
    store.run(|_| (), |session: &Session, _| assert!(session.generation() > 1));
    assert_eq!(store.restart(), Some(20));
}

#[test]
fn a_folder_of_another_run_with_the_same_number_is_refused() {
    // Two jobs of the same name never saw each other: they have the same generation, version and operation.
    let (one, other) = (died_in_memory(&[0, 0], &[20]), died_in_memory(&[0, 0], &[20]));
    assert_eq!(drain(&one, 0, &[]).status, 0);
    let manifest = std::fs::read(folder_of(&one, 20).join("manifest")).expect("read");
    let into_one = || {
        with_path(
            &["drain", "--json", "--global", one.global().to_str().expect("UTF-8"), "--memory"],
            &other.memory_of(0),
        )
    };
    for is_committed in [true, false] {
        if !is_committed {
            std::fs::remove_file(folder_of(&one, 20).join("manifest")).expect("removed");
        }
        let ran = into_one();
        let document = ran.json();
        let lost = &document["checkpoints"][0]["lost"];
        assert_eq!(
            (ran.status, &lost[0]["kind"], lost.as_array().map(Vec::len)),
            (1, &json!("refused"), Some(2)),
            "{document}"
        );
    }
    assert_eq!(drain(&one, 0, &[]).status, 0);
    assert_eq!(std::fs::read(folder_of(&one, 20).join("manifest")).expect("read"), manifest);
    one.wipe(0);
    assert_eq!(one.restart(), Some(20));
}

#[test]
fn other_peoples_segments_are_not_even_looked_at() {
    let store = died_in_memory(&[0, 0], &[20]);
    if !rustix::process::geteuid().is_root() {
        return eprintln!(
            "\n*** SKIPPED: it changes owners. Run it as root: sudo -E cargo nextest run --test cli other_peoples ***\n"
        );
    }
    std::os::unix::fs::chown(store.segment_of(0), Some(65_534), None).expect("changed");
    let (status, document) = drain_json(&store, 0, &[]);
    assert_eq!((status, rows(&document).iter().map(|row| row.0).collect::<Vec<_>>()), (0, vec![10]), "{document}");
}

#[test]
fn what_this_user_may_not_read_or_write_is_status_2_or_1_and_named() {
    let store = died_in_memory(&[0, 0], &[20]);
    if !rustix::process::geteuid().is_root() {
        return eprintln!(
            "\n*** SKIPPED: it becomes another user. Run it as root: sudo -E cargo nextest run --test cli may_not ***\n"
        );
    }
    let own = tempfile::tempdir().expect("a folder");
    let program = own.path().join("bivouac");
    std::fs::copy(assert_cmd::cargo::cargo_bin("bivouac"), &program).expect("copied");
    std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o755)).expect("changed");
    let as_nobody = || {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).args(arguments(
            &store,
            0,
            &[],
        ));
        let output = command.output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, err) = as_nobody();
    assert!(status == Some(2) && err.contains("Permission denied"), "{status:?} {err}");
    // The user may read everything, but write nothing.
    for path in [store.disk.path(), store.memory.path()] {
        let opened = std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(path).status().expect("runs");
        assert!(opened.success());
    }
    std::os::unix::fs::chown(store.segment_of(0), Some(65_534), Some(65_534)).expect("changed");
    std::fs::set_permissions(store.segment_of(0), std::fs::Permissions::from_mode(0o600)).expect("changed");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).args(arguments(
        &store,
        0,
        &["--json", "--even-alive"],
    ));
    let output = command.output().expect("runs");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(
        (output.status.code(), &document["checkpoints"][0]["lost"][0]["kind"]),
        (Some(1), &json!("not-written")),
        "{document}"
    );
    assert!(document.to_string().contains("Permission denied"), "{document}");
}

#[test]
fn a_full_global_directory_is_said_and_a_later_drain_goes_on() {
    let test = "a_full_global_directory";
    if !can_mount(test) {
        return;
    }
    let store = died_in_memory(&[0, 0, 0, 0], &[20]);
    // The store is on a file system with room for two of four shards.
    let folder = folder_of(&store, 10);
    let shard: u64 = folder.join("c000000.bvc").metadata().expect("there").len() / 4;
    let used: u64 = store::data_files(&store.global()).iter().map(|path| path.metadata().expect("there").len()).sum();
    let size = used + 40 * 4096 + shard * 5 / 2;
    let script = "set -e; cp -a \"$1\" \"$1.copy\"; mount -t tmpfs -o size=\"$2\" bivouac-test \"$1\"; cp -a \"$1.copy/.\" \"$1\"; shift 2; \
                  filler=\"$1\"; shift; head -c \"$filler\" /dev/zero > \"$1/filler\" 2> /dev/null || true; root=$1; shift; \
                  \"$@\" > \"$root.first\" || echo \"status=$?\"; rm \"$root/filler\"; mount -o remount,size=64m \"$root\"; \
                  \"$@\" > \"$root.second\" || echo \"status=$?\"; cp -a \"$root/.\" \"$root.copy\"";
    let root = store.global();
    let mut command = std::process::Command::new("unshare");
    // Another file takes all room except that for two shards.
    command
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&root)
        .arg(size.to_string())
        .arg((40 * 4096).to_string())
        .arg(&root);
    command.arg(assert_cmd::cargo::cargo_bin("bivouac")).args(arguments(&store, 0, &["--json", "--parallel", "1"]));
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let document = |suffix: &str| -> Value {
        let mut path = root.clone().into_os_string();
        path.push(suffix);
        serde_json::from_slice(&std::fs::read(path).expect("written")).expect("a document")
    };
    let (first, second) = (document(".first"), document(".second"));
    assert_eq!(said.trim(), "status=1", "{first} {second}");
    let lost = first["checkpoints"][0]["lost"].as_array().expect("a list");
    assert!(!lost.is_empty() && lost.iter().all(|lost| lost["kind"] == "not-written"), "{first}");
    assert!(lost[0]["why"][0].as_str().expect("text").contains("No space left"), "{first}");
    let row = &second["checkpoints"][0];
    assert_eq!(
        (&row["complete"], row["copied"].as_array().map(Vec::len)),
        (&json!(true), Some(lost.len())),
        "{second}"
    );
    // A later run sees the contents of the copy outside.
    std::fs::remove_dir_all(&root).expect("removed");
    std::fs::rename(root.with_file_name("global.copy"), &root).expect("renamed");
    assert_clean(&store);
    store.wipe(0);
    assert_eq!(store.restart(), Some(20));
}

// ------------------------------------------------------------------------------------------- usage

#[test]
fn wrong_usage_ends_with_status_2_and_says_what_to_do() {
    let store = died_in_memory(&[0, 0], &[20]);
    for bad in [&["--all", "--newest"][..], &["--parallel", "0"], &["--wait", "soon"], &["extra"], &["--unheard-of"]] {
        assert_eq!(drain(&store, 0, bad).status, 2, "{bad:?}");
    }
    let global = store.global();
    let same =
        bivouac(&["drain", "--global", global.to_str().expect("UTF-8"), "--local", global.to_str().expect("UTF-8")]);
    assert!(same.status == 2 && same.err.contains("both as the global and as a local"), "{same:?}");
    let mut broken = command();
    broken.args(arguments(&store, 0, &[])).env("BIVOUAC_GLOBAL_KEEP_LSAT", "3");
    let broken = ran(broken);
    assert!(broken.status == 2 && broken.err.contains("KEEP_LAST"), "{broken:?}");
    std::fs::write(store.global().join("store"), "rubbish").expect("written");
    let rubbish = drain(&store, 0, &[]);
    assert!(rubbish.status == 2 && rubbish.err.contains("no store id"), "{rubbish:?}");
}

#[test]
fn nothing_to_drain_is_no_error() {
    let store = died_in_memory(&[0, 0], &[20]);
    store.wipe(0);
    let ran = drain(&store, 0, &[]);
    assert!(ran.status == 0 && ran.out == "nothing to drain\n" && ran.err.contains("does not exist"), "{ran:?}");
}

#[test]
fn directories_come_from_the_configuration_too() {
    let store = died_on_disk(&[0, 0], &[20]);
    let mut configured = command();
    configured.arg("drain").arg("--json");
    configured.env("BIVOUAC_GLOBAL_DIRECTORY", store.global()).env("BIVOUAC_MEMORY_DIRECTORY", store.memory_of(0));
    configured.env("BIVOUAC_LOCAL_DIRECTORY", store.local());
    let document = ran(configured).json();
    assert_eq!(rows(&document)[0].1, json!([0, 1]), "{document}");
}

#[test]
fn the_private_local_directory_of_a_run_is_found_without_being_named() {
    let store = Store::on(&[0, 0]);
    let temporary = tempfile::tempdir().expect("a folder");
    // The default directory is under the temporary directory of the process: the test asks the library for the name.
    store.run_killed(local_first, |session, rank| take(session, rank, &[10], Level::System));
    let id = std::fs::read_to_string(store.global().join("store")).expect("there");
    let user = rustix::process::getuid().as_raw();
    let place = temporary.path().join(bivouac_core::session::place::local_name(id.trim().parse().ok(), "", user));
    std::fs::rename(store.local(), &place).expect("renamed");
    std::fs::remove_dir_all(folder_of(&store, 10)).expect("removed");
    let mut drain = command();
    drain
        .args(["drain", "--json", "--global"])
        .arg(store.global())
        .arg("--memory")
        .arg(temporary.path())
        .env("TMPDIR", temporary.path());
    let document = ran(drain).json();
    assert_eq!(
        (rows(&document), &document["local"][0]),
        (vec![(10, json!([0, 1]), json!([]), true)], &json!(place.to_str()))
    );
}
