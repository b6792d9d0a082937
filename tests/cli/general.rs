//! The command line, on stores that real sessions have written: what the commands show, find and refuse.
//!
//! A [`Store`] is made by a group of ranks that are threads of this process, with the real file system and a node
//! segment in a folder of its own. Neither the tests nor the command need MPI.
#![forbid(unsafe_code)]

use crate::store::{RANKS, Store, areas, bivouac, data_files, take, with_path};
use crate::{limit, store};
use bivouac_core::base::ids::Generation;
use bivouac_core::base::rng::Rng;
use bivouac_core::base::{CheckpointKey, Digest, Rank};
use bivouac_core::config::{Config, Method};
use bivouac_core::format::container::encode_tail;
use bivouac_core::format::shard::{Layout, encode_head};
use bivouac_core::format::{ContainerEntry, Region, RegionKind, ShardMeta};
use bivouac_core::{Level, Session};
use serde_json::Value;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

/// Verifies a path, and returns the exit status and the document.
fn verify(path: &Path) -> (i32, Value) {
    let ran = with_path(&["verify", "--json"], path);
    (ran.status, ran.json())
}

fn damage(document: &Value) -> Vec<&Value> {
    let findings = document["findings"].as_array().expect("a list");
    findings.iter().filter(|finding| finding["kind"] == "damage").collect()
}

// ------------------------------------------------------------------------------------------- ls and inspect

#[test]
fn ls_shows_the_same_checkpoints_from_every_folder_above_them() {
    let store = Store::with(&[10, 20]);
    for root in [store.global(), store.local()] {
        let series = store.series(&root);
        for path in series.ancestors().take_while(|path| path.starts_with(&root)) {
            let ran = with_path(&["ls", "--json"], path);
            assert_eq!(ran.status, 0, "{}: {}", path.display(), ran.err);
            let document = ran.json();
            let found = document["checkpoints"].as_array().expect("a list");
            let versions: Vec<_> = found.iter().map(|row| row["version"].as_u64()).collect();
            assert_eq!(versions, [Some(20), Some(10)], "{}", path.display());
            for row in found {
                let is_global = root == store.global();
                assert_eq!(row["level"], if is_global { "system" } else { "node-reboot" });
                assert_eq!(row["tier"], if is_global { "global" } else { "local" });
                assert_eq!(
                    (&row["state"], &row["name"], &row["group"]),
                    (&"committed".into(), &"heat".into(), &"world".into())
                );
                assert_eq!((row["ranks"].as_u64(), row["group_size"].as_u64()), (Some(2), Some(2)));
                assert!(row["bytes"].as_u64() > Some(2 * 12000) && row["modified"].as_u64() > Some(1 << 30));
            }
        }
        let single = with_path(&["ls", "--json"], &store.folders(&root)[0]);
        assert_eq!(single.json()["checkpoints"][0]["version"], 10);
        let text = with_path(&["ls"], &root);
        assert!(text.out.starts_with("JOB ") && text.out.lines().count() == 3, "{}", text.out);
    }
}

#[test]
fn ls_says_why_a_checkpoint_is_not_committed() {
    let store = Store::with(&[10, 20, 30, 40, 50]);
    let folders = store.folders(&store.global());
    std::fs::remove_file(folders[0].join("manifest")).expect("removed");
    std::fs::remove_file(folders[1].join("manifest")).expect("removed");
    std::fs::rename(folders[1].join("c000000.bvc"), folders[1].join("c000000.bvc.tmp")).expect("renamed");
    std::fs::remove_file(folders[2].join("c000000.bvc")).expect("removed");
    std::fs::write(folders[3].join("manifest"), "garbage").expect("written");
    let document = with_path(&["ls", "--json"], &store.global()).json();
    let states: Vec<(&str, &str)> = document["checkpoints"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (row["state"].as_str().expect("text"), row["why"].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(states[0], ("committed", "-"));
    assert!(states[1].0 == "damaged" && states[1].1.contains("manifest"), "{states:?}");
    assert!(states[2].0 == "damaged" && states[2].1.contains("c000000.bvc is missing"), "{states:?}");
    assert!(states[3].0 == "incomplete" && states[3].1.contains("1 unfinished"), "{states:?}");
    assert!(states[4].0 == "restorable" && states[4].1.contains("the next restart writes it"), "{states:?}");
    // A checkpoint that is merely incomplete is not damaged.
    let (status, document) = verify(&folders[1]);
    assert_eq!((status, document["good"].as_bool()), (0, Some(true)), "{document}");
    assert_eq!(document["findings"][0]["kind"], "note");
    assert_eq!(verify(&folders[2]).0, 1);
    assert_eq!(verify(&folders[3]).0, 1);
}

#[test]
fn ls_says_why_a_checkpoint_is_still_here() {
    let store = Store::with(&[10, 20, 30]);
    let back = |session: &Session, rank: u32| {
        session.begin_restore("heat").version(10).run(|_| Ok(())).expect("restarts").expect("version 10 was there");
        take(session, rank, &[15], Level::System);
    };
    store.run(|_| (), back);
    let unfinished = store.series(&store.global()).join("g000009-v0000000099-o000009");
    std::fs::create_dir(&unfinished).expect("made");
    let standings = |path: &Path| -> Vec<(u64, Option<String>)> {
        let document = with_path(&["ls", "--json"], path).json();
        let rows = document["checkpoints"].as_array().expect("a list").iter();
        rows.map(|row| (row["version"].as_u64().expect("a number"), row["standing"].as_str().map(str::to_owned)))
            .collect()
    };
    let some = |standing: &str| Some(standing.to_owned());
    let expected =
        [(99, None), (15, some("newest")), (30, some("left-behind")), (20, some("left-behind")), (10, some("older"))];
    assert_eq!(standings(&store.global()), expected);
    // A named version has the same standing as it has in its series.
    for folder in store.folders(&store.global()) {
        let found = standings(&folder);
        assert!(found.len() == 1 && expected.contains(&found[0]), "{}: {found:?}", folder.display());
    }
    let text = with_path(&["ls"], &store.global()).out;
    assert!(text.contains(" STANDING ") && text.contains(" left behind ") && text.contains(" newest "), "{text}");
    // `rm` keeps the version that `ls` calls the newest.
    let ran = with_path(&["rm", "--yes"], &store.series(&store.global()));
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert_eq!(standings(&store.global()), [(15, some("newest"))]);
}

#[test]
fn inspect_shows_header_regions_origin_agreement_and_incarnation() {
    let store = Store::with(&[10]);
    let second = |session: &Session, rank: u32| {
        session.begin_restore("heat").run(|_| Ok(())).expect("restarts").expect("something was there");
        take(session, rank, &[20], Level::System);
    };
    store.run(|_| (), second);
    let folder = store.folders(&store.global()).pop().expect("two");
    let ran = with_path(&["inspect", "--json"], &folder);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let document = ran.json();
    let checkpoint = &document["checkpoints"][0];
    let (manifest, shards) = (&checkpoint["manifest"], &checkpoint["containers"][0]["shards"]);
    assert_eq!(shards.as_array().expect("a list").len(), 2);
    for (rank, shard) in [(0, &shards[0]), (1, &shards[1])] {
        assert_eq!(shard["rank"], rank);
        for field in
            ["job", "group", "name", "generation", "version", "operation", "incarnation", "agreement", "origin"]
        {
            assert_eq!(shard[field], manifest[field], "{field}");
        }
        assert_eq!((&shard["origin"]["version"], &shard["block_size"]), (&10.into(), &4096.into()));
        assert_eq!(shard["incarnation"].as_str().expect("text").len(), 32);
        let regions = shard["regions"].as_array().expect("a list");
        let names: Vec<_> = regions.iter().map(|region| region["name"].as_str().expect("text")).collect();
        assert_eq!(names, ["field", "few", "none", "step", ".bivouac/affinity"]);
        assert_eq!((&regions[0]["shape"], &regions[0]["element"]), (&serde_json::json!([30, 50]), &"f64".into()));
        assert_eq!((&regions[0]["bytes"], &regions[0]["blocks"]), (&12000.into(), &3.into()));
        assert_eq!((&regions[2]["bytes"], &regions[3]["kind"]), (&0.into(), &"value".into()));
    }
    let text = with_path(&["inspect"], &folder).out;
    assert!(text.contains("30 x 50") && text.contains("its run had restored version 10 of generation 1"), "{text}");
    // The files alone show the same, even away from their folder.
    let away = store.disk.path().join("away");
    for (file, field) in [("c000000.bvc", "containers"), ("manifest", "manifests")] {
        std::fs::copy(folder.join(file), &away).expect("copied");
        for path in [&folder.join(file), &away] {
            let ran = with_path(&["inspect", "--json"], path);
            assert_eq!((ran.status, ran.json()[field].as_array().map(Vec::len)), (0, Some(1)), "{}", ran.err);
            assert_eq!(verify(path).0, 0);
        }
    }
}

// ------------------------------------------------------------------------------------------- verify

#[test]
fn an_undamaged_store_is_good_and_everything_was_looked_at() {
    let store = Store::with(&[10, 20]);
    for (root, containers) in [(store.global(), 2), (store.local(), 4)] {
        let ran = with_path(&["verify", "--json", "--jobs", "3"], &root);
        let document = ran.json();
        assert_eq!((ran.status, document["good"].as_bool()), (0, Some(true)), "{document}");
        assert_eq!(document["findings"], serde_json::json!([]));
        let checked = &document["checked"];
        let counts: Vec<_> =
            ["checkpoints", "manifests", "containers", "shards", "blocks"].map(|name| checked[name].as_u64()).into();
        // The blocks are three of `field`, one of `few`, one of the value and one of the affinity,
        // in each of four shards.
        assert_eq!(counts, [2, 2, containers, 4, 24].map(Some));
    }
    let text = with_path(&["verify"], &store.global());
    assert!(text.status == 0 && text.out.starts_with("all good: 2 checkpoints"), "{}", text.out);
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_named() {
    let store = Store::with(&[10]);
    let mut rng = Rng::new(0x0b17);
    for root in [store.global(), store.local()] {
        for file in data_files(&root) {
            let good = std::fs::read(&file).expect("read");
            let is_manifest = file.ends_with("manifest");
            let areas = if is_manifest { vec![("manifest", 0..good.len())] } else { areas(&good) };
            for (area, range) in areas {
                for _ in 0..3 {
                    let at = range.start + rng.below(range.len() as u64) as usize;
                    let mut bad = good.clone();
                    bad[at] ^= 1 << rng.below(8);
                    std::fs::write(&file, &bad).expect("written");
                    let (status, document) = verify(&root);
                    let place = format!("byte {at} of {} ({area}): {document}", file.display());
                    let damage = damage(&document);
                    assert_eq!((status, damage.len()), (1, 1), "{place}");
                    assert_eq!(
                        damage[0]["path"],
                        file.canonicalize().expect("exists").to_str().expect("UTF-8"),
                        "{place}"
                    );
                    if area == "body" {
                        let body = at - range.start;
                        assert_eq!(
                            (&damage[0]["region"], &damage[0]["offset"]),
                            (&"field".into(), &(body / 4096 * 4096).into())
                        );
                        assert_ne!(damage[0]["expected"], damage[0]["found"]);
                        let rank = if file.ends_with("r000001.bvs") { 1 } else { 0 };
                        assert_eq!(damage[0]["rank"], rank, "{place}");
                    }
                    assert_eq!(verify(&file).0, 1, "alone: {place}");
                }
            }
            std::fs::write(&file, &good).expect("written");
        }
        assert_eq!(verify(&root).0, 0);
    }
}

#[test]
fn a_file_truncated_empty_missing_or_replaced_is_found() {
    let store = Store::with(&[10, 20]);
    let mut rng = Rng::new(7);
    for root in [store.global(), store.local()] {
        let files = data_files(&root);
        for (index, file) in files.iter().enumerate() {
            let good = std::fs::read(file).expect("read");
            let other = &files[(index + files.len() / 2) % files.len()];
            assert_eq!(other.file_name(), file.file_name());
            let another_rank = files.iter().find(|another| another.parent() == file.parent() && *another != file);
            let garbage: Vec<u8> = (0..5000).map(|_| rng.next_u64() as u8).collect();
            let mut replacements = vec![
                ("empty", Some(Vec::new())),
                ("truncated", Some(good[..rng.below(good.len() as u64) as usize].to_vec())),
                ("a page short", Some(good[..good.len().saturating_sub(4096)].to_vec())),
                ("too long", Some([good.clone(), vec![0; 4096]].concat())),
                ("another version's", Some(std::fs::read(other).expect("read"))),
                ("another file's", another_rank.map(|path| std::fs::read(path).expect("read"))),
                ("garbage", Some(garbage)),
                ("a picture", Some(b"\x89PNG\r\n\x1a\n and so on".to_vec())),
            ];
            if !file.ends_with("manifest") {
                replacements.push(("missing", None));
            }
            for (what, bytes) in replacements {
                match bytes {
                    Some(bytes) => std::fs::write(file, bytes).expect("written"),
                    None => std::fs::remove_file(file).expect("removed"),
                }
                let (status, document) = verify(&root);
                assert_eq!(status, 1, "{what}: {}: {document}", file.display());
                assert!(!damage(&document).is_empty());
                let ls = with_path(&["ls"], &root);
                assert!([0, 1].contains(&ls.status), "{what}: {}", ls.err);
                with_path(&["inspect"], &root);
            }
            std::fs::write(file, &good).expect("written");
        }
        assert_eq!(verify(&root).0, 0);
    }
}

#[test]
fn verify_names_the_tier_both_lengths_and_the_newest_good_version() {
    let store = Store::with(&[10, 20, 30]);
    for (root, file, tier) in [(store.global(), "c000000.bvc", "global"), (store.local(), "r000001.bvs", "local")] {
        let path = store.folders(&root)[2].join(file);
        let good = std::fs::read(&path).expect("read");
        let (found, whole) = (good.len() - 100, good.len());
        std::fs::write(&path, &good[..found]).expect("written");
        let sizes = format!("it has {found} bytes instead of {whole}");
        for path in [&root, &path] {
            let ran = with_path(&["verify"], path);
            let first = ran.out.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("damage: {tier} tier: ")) && first.contains(&sizes), "{}", ran.out);
        }
        // The last line names the newest good version.
        let (status, document) = verify(&root);
        assert_eq!((status, &document["findings"][0]["tier"]), (1, &tier.into()), "{document}");
        let newest = &document["newest_good"][0];
        assert_eq!((&newest["version"], &newest["tier"], &newest["name"]), (&20.into(), &tier.into(), &"heat".into()));
        let text = with_path(&["verify"], &root).out;
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("newest good version: 20 ({tier} tier, ")), "{text}");
        assert!(last.ends_with("/world/heat)"), "{text}");
        // A flipped bit in the data also removes a version from the list.
        let second = store.folders(&root)[1].join(file);
        let mut bytes = std::fs::read(&second).expect("read");
        let (_, body) = areas(&bytes).swap_remove(4);
        bytes[body.start] ^= 1;
        std::fs::write(&second, &bytes).expect("written");
        assert_eq!(verify(&root).1["newest_good"][0]["version"], 10);
        let single = with_path(&["verify"], &store.folders(&root)[1]).out;
        assert!(single.contains("newest good version: none"), "{single}");
    }
    // A finding that does not come from the file system also names the tier.
    std::fs::write(store.folders(&store.global())[0].join("notes.txt"), "mine").expect("written");
    let text = with_path(&["verify"], &store.global()).out;
    assert!(text.lines().any(|line| line.starts_with("note: global tier: ") && line.contains("notes.txt")), "{text}");
}

#[test]
fn strangers_in_a_folder_are_noted_and_do_no_harm() {
    let store = Store::with(&[10]);
    let folder = store.folders(&store.global())[0].clone();
    std::fs::write(folder.join("notes.txt"), "mine").expect("written");
    std::fs::create_dir(folder.join("r000009.bvs")).expect("made");
    std::fs::write(folder.join("c000001.bvc.tmp"), "unfinished").expect("written");
    std::fs::create_dir_all(store.global().join("other/place/entirely")).expect("made");
    let (status, document) = verify(&store.global());
    assert_eq!((status, damage(&document).len()), (0, 0), "{document}");
    assert_eq!(document["findings"].as_array().map(Vec::len), Some(2));
    assert_eq!(with_path(&["ls"], &store.global()).status, 0);
}

// ------------------------------------------------------------------------------------------- segments

/// A store whose newest checkpoint is in memory only, as after a kill.
fn memory_only() -> Store {
    let store = Store::empty();
    let only_memory = |config: &mut Config| (config.job.local_enabled, config.job.global_enabled) = (false, false);
    store.run(only_memory, |session, rank| take(session, rank, &[10, 20], Level::Process));
    store
}

#[test]
fn a_segment_is_listed_inspected_and_verified() {
    let store = memory_only();
    let segment = store.segment();
    for path in [segment.as_path(), store.memory.path()] {
        let document = with_path(&["ls", "--json"], path).json();
        let listed = &document["segments"][0];
        assert_eq!((&listed["alive"], &listed["node_ranks"]), (&false.into(), &2.into()), "{document}");
        let slots = listed["slots"].as_array().expect("a list");
        let newest: Vec<_> = slots.iter().filter(|slot| slot["version"] == 20).collect();
        assert_eq!(newest.len(), 2, "{document}");
        for slot in newest {
            assert_eq!(
                (&slot["state"], &slot["name"], &slot["level"]),
                (&"sealed".into(), &"heat".into(), &"process".into())
            );
        }
        let (status, document) = verify(path);
        assert_eq!((status, document["checked"]["segments"].as_u64()), (0, Some(1)), "{document}");
        assert!(document["checked"]["shards"].as_u64() >= Some(2));
        assert_eq!(with_path(&["inspect"], path).status, 0);
    }
    let text = with_path(&["ls"], &segment).out;
    assert!(text.contains("its run has ended") && text.contains("sealed (process)"), "{text}");
}

#[test]
fn a_flipped_bit_in_a_slot_or_header_of_a_segment_is_found() {
    let store = memory_only();
    let segment = store.segment();
    let good = std::fs::read(&segment).expect("read");
    // The slot of version 10 was given up when version 20 was committed; its bytes are still there.
    let is_newest = |window: &[u8]| window.starts_with(b"BVKSHRD1") && window[32] == 20;
    let shard = good.windows(33).position(is_newest).expect("a shard");
    let areas = areas(&[&good[shard..], &[0; 64]].concat());
    let mut rng = Rng::new(3);
    let cases = areas.iter().filter(|(area, _)| !["footer", "last shard or index"].contains(area));
    let ranges = cases.map(|(area, range)| (*area, shard + range.start..shard + range.end));
    for (area, range) in ranges.chain([("segment header", 0..128)]) {
        let at = range.start + rng.below(range.len() as u64) as usize;
        let mut bad = good.clone();
        bad[at] ^= 1 << rng.below(8);
        std::fs::write(&segment, &bad).expect("written");
        let (status, document) = verify(&segment);
        assert_eq!((status, damage(&document).len()), (1, 1), "{area}, byte {at}: {document}");
    }
    std::fs::write(&segment, &good[..good.len() / 2]).expect("written");
    assert_eq!(verify(&segment).0, 1);
    std::fs::write(&segment, &good).expect("written");
    assert_eq!(verify(&segment).0, 0);
}

#[test]
fn rm_spares_segments_that_live_or_may_hold_the_only_copy() {
    let store = memory_only();
    let segment = store.segment();
    let refused = with_path(&["rm", "--yes"], &segment);
    assert!(
        refused.status == 2
            && refused.err.contains("may hold the only copy")
            && refused.err.contains("version 20 of heat"),
        "{}",
        refused.err
    );
    let spared = with_path(&["rm", "--yes"], store.memory.path());
    assert!(spared.status == 0 && spared.out.contains("kept") && segment.exists(), "{}", spared.out);
    let removed = with_path(&["rm", "--yes", "--force", "--json"], &segment);
    assert_eq!((removed.status, removed.json()["removed"][0]["kind"].as_str()), (0, Some("segment")));
    assert!(!segment.exists());
    // The segment of a living run stays, whatever the options are.
    let (up, down) = (Barrier::new(RANKS as usize + 1), Barrier::new(RANKS as usize + 1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.run(
                |_| (),
                |session, rank| {
                    take(session, rank, &[30], Level::Process);
                    up.wait();
                    down.wait();
                },
            );
        });
        up.wait();
        let segment = store.segment();
        let ran = with_path(&["rm", "--yes", "--force"], &segment);
        let listed = with_path(&["ls", "--json"], &segment);
        down.wait();
        assert!(ran.status == 2 && ran.err.contains("its run is alive"), "{}", ran.err);
        assert_eq!(listed.json()["segments"][0]["alive"], true);
    });
}

#[test]
fn rm_takes_an_unreadable_segment_only_by_force() {
    let store = Store::empty();
    let garbage = store.memory.path().join("bivouac-00000000-00000000-g000001");
    std::fs::write(&garbage, "garbage").expect("written");
    assert_eq!(with_path(&["rm", "--yes"], &garbage).status, 2);
    assert_eq!(with_path(&["ls"], &garbage).status, 2);
    assert_eq!(with_path(&["rm", "--yes", "--force"], &garbage).status, 0);
    assert!(!garbage.exists());
}

// ------------------------------------------------------------------------------------------- hostile files

/// A container with one shard whose checksums are right: it has a huge region and the digests of that region,
/// all of which are a hole.
fn sparse(store: &Store, root: &Path, bytes: u64) -> PathBuf {
    let job = store::only_folder(root).file_name().expect("a name").to_string_lossy().into_owned();
    let region = Region::of_bytes("field", RegionKind::Array, bytes);
    let meta = ShardMeta { job, group: "world".into(), name: "heat".into(), regions: vec![region] };
    let layout = Layout::new(meta, 4096).expect("a layout");
    let key = CheckpointKey { generation: Generation(9), version: 99, operation: 9, ..Default::default() };
    let mut head = vec![0; layout.body_offset as usize];
    let digests = vec![Digest::default(); layout.block_count as usize];
    encode_head(&layout, &layout.header(key, 0, RANKS, Rank(0), None), &digests, &mut head);
    let entry = ContainerEntry { key, rank: Rank(0), offset: 0, length: layout.total_len };
    let path = store.series(root).join(key.folder()).join("r000000.bvs");
    std::fs::create_dir(path.parent().expect("a folder")).expect("made");
    let file = std::fs::File::create_new(&path).expect("made");
    file.write_all_at(&head[..4096], 0).expect("written");
    file.write_all_at(&encode_tail(&[entry]).expect("a tail"), layout.total_len).expect("written");
    path
}

#[test]
fn a_sparse_file_with_right_checksums_is_damage_and_takes_no_memory() {
    let store = Store::with(&[10]);
    for root in [store.global(), store.local()] {
        // The region has 25 GiB, and so 100 MiB of digests. They stand for the 16 GiB that 4 TiB would have: the test
        // must compute their checksum.
        let path = sparse(&store, &root, 25 << 30);
        assert!(path.metadata().expect("there").blocks() < 100, "{} is not sparse", path.display());
        let listed = with_path(&["ls", "--json"], &root);
        let rows = listed.json()["checkpoints"].as_array().expect("a list").clone();
        let row = rows.iter().find(|row| row["version"] == 99).expect("it is listed");
        assert!(listed.status == 0 && row["why"].as_str().is_some_and(|why| why.contains("hole")), "{row}");
        let (status, document) = verify(&root);
        assert!(status == 1 && document["findings"].to_string().contains("hole"), "{document}");
        let inspected = with_path(&["inspect"], &path);
        assert!((inspected.out + &inspected.err).contains("hole"));
    }
    store.wipe_memory(0);
    assert_eq!(store.restart(), Some(10));
}

// ------------------------------------------------------------------------------------------- rm

#[test]
fn rm_keeps_the_newest_committed_version_unless_forced() {
    let store = Store::with(&[10, 20, 30]);
    let memory = format!("--memory={}", store.memory.path().display());
    for root in [store.global(), store.local()] {
        let folders = store.folders(&root);
        // A newer version without a manifest does not count as the newest committed one.
        let torn = store.series(&root).join("g000009-v0000000099-o000001");
        std::fs::create_dir(&torn).expect("made");
        let single = with_path(&["rm", "--yes", &memory], &folders[2]);
        assert!(single.status == 2 && single.err.contains("--force"), "{}", single.err);
        let dry = with_path(&["rm", "--dry-run", "--json", &memory], &root);
        let document = dry.json();
        assert_eq!((dry.status, document["removed"].as_array().map(Vec::len)), (0, Some(3)), "{document}");
        assert_eq!(document["kept"][0]["path"], folders[2].canonicalize().expect("there").to_str().expect("UTF-8"));
        assert_eq!(store.folders(&root).len(), 4);
        let unasked = with_path(&["rm", &memory], &root);
        assert!(unasked.status == 2 && unasked.err.contains("--yes"), "{}", unasked.err);
        let one = with_path(&["rm", "--yes", &memory], &folders[0]);
        assert_eq!((one.status, store.folders(&root).len()), (0, 3), "{}", one.err);
        let all = with_path(&["rm", "--yes", &memory], &store.series(&root));
        assert_eq!((all.status, store.folders(&root)), (0, vec![folders[2].clone()]), "{}", all.err);
        assert_eq!(verify(&root).0, 0);
        let forced = with_path(&["rm", "--yes", "--force", &memory], &root);
        assert_eq!((forced.status, store.folders(&root).len()), (0, 0), "{}", forced.err);
    }
    // Claims stay, so the next run has the next number and finds nothing to restore.
    store.run(
        |_| (),
        |session, _| {
            assert_eq!(session.generation(), 2);
            assert!(session.begin_restore("heat").run(|_| Ok(())).expect("no damage").is_none());
        },
    );
}

#[test]
fn rm_refuses_what_belongs_to_a_living_run() {
    let store = Store::with(&[10, 20]);
    let memory = format!("--memory={}", store.memory.path().display());
    let answers = store.while_it_runs(
        |_| (),
        || {
            [store.global(), store.local()].map(|root| {
                let folder = store.folders(&root)[0].clone();
                [with_path(&["rm", "--yes", "--force", &memory], &folder), with_path(&["rm", "--yes", &memory], &root)]
            })
        },
    );
    for ran in answers.iter().flatten() {
        assert!(ran.status == 2 && ran.err.contains("living run, generation 2"), "{}", ran.err);
    }
    assert_eq!([store.folders(&store.global()).len(), store.folders(&store.local()).len()], [2, 2]);
    // Once the run has ended, its store can be removed.
    assert_eq!(with_path(&["rm", "--yes", &memory], &store.global()).status, 0);
    assert_eq!(store.folders(&store.global()).len(), 1);
}

#[test]
fn rm_refuses_a_part_of_a_checkpoint() {
    let store = Store::with(&[10]);
    let folder = store.folders(&store.global())[0].clone();
    for file in ["c000000.bvc", "manifest"] {
        let ran = with_path(&["rm", "--yes", "--force"], &folder.join(file));
        assert!(ran.status == 2 && ran.err.contains("bivouac rm "), "{}", ran.err);
    }
    assert_eq!(verify(&folder).0, 0);
}

// ------------------------------------------------------------------------------------------- usage

#[test]
fn wrong_usage_and_unreadable_paths_end_with_status_2_and_say_what_to_do() {
    let folder = tempfile::tempdir().expect("a directory");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "hello").expect("written");
    for command in ["ls", "inspect", "verify", "rm"] {
        assert_eq!(bivouac(&[command, "--unheard-of", "."]).status, 2);
        let ran = with_path(&[command], &folder.path().join("none"));
        let said = format!("{}{}", ran.out, ran.err);
        assert!(ran.status == 2 && said.contains("os error 2") && said.contains("global.directory"), "{said}");
        let ran = with_path(&[command], &text);
        assert!(ran.status == 2 && format!("{}{}", ran.out, ran.err).contains("not a Bivouac file"), "{command}");
    }
    assert_eq!(bivouac(&["rm"]).status, 2, "rm without a path");
    assert_eq!(bivouac(&["verify", "--jobs", "0", "."]).status, 2);
    assert_eq!(bivouac::<&str>(&[]).status, 2);
}

#[test]
fn every_command_has_examples_in_its_help() {
    for command in ["ls", "inspect", "verify", "export", "extract", "rm", "clean", "drain", "doctor"] {
        let ran = bivouac(&[command, "--help"]);
        let examples = ran
            .out
            .lines()
            .filter(|line| line.starts_with("  ") && line.contains(&format!("bivouac {command}")))
            .count();
        assert!(ran.status == 0 && examples >= 3, "{}", ran.out);
    }
    assert_eq!(bivouac(&["--version"]).out.trim(), concat!("bivouac ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let store = Store::with(&[10]);
    let program = assert_cmd::cargo::cargo_bin("bivouac");
    let mut child = std::process::Command::new(program)
        .arg("inspect")
        .arg(store.global())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

// ------------------------------------------------------------------------------------------- reduction

/// Versions 10, 20 and 30; the files of each refer to those before it.
fn referring() -> Store {
    let store = Store::empty();
    let change = |config: &mut Config| {
        config.job.reduction.method = Method::Basic;
        (config.job.local.keep_last, config.job.global.keep_last) = (1, 1);
    };
    store.run(change, |session, rank| {
        let mut array = vec![rank as u8; 40 * 4096];
        for version in [10, 20, 30] {
            array[version * 4096] = 1 + version as u8;
            let version = version as u64;
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
            checkpoint.save("array", &array).expect("a region");
            let pending = checkpoint.capture().expect("captured");
            // All levels must end: checkpoints do not refer to files that are still on their way to a tier.
            limit::wait_until("all levels end", || pending.poll());
        }
    });
    store
}

#[test]
fn what_files_refer_to_is_shown_and_checked_and_goes_only_with_what_refers_to_it() {
    let store = referring();
    for root in [store.global(), store.local()] {
        let folders = store.folders(&root);
        let names: Vec<_> = folders.iter().map(|path| path.file_name().expect("a name").to_string_lossy()).collect();
        let listed = with_path(&["ls", "--json"], &root);
        let document = listed.json();
        assert_eq!((listed.status, verify(&root).0), (0, 0), "{}", listed.err);
        let needs = |row: usize, field: &str| document["checkpoints"][row][field].clone();
        assert_eq!(needs(0, "needs"), serde_json::json!([names[0], names[1]]));
        assert_eq!(needs(2, "needed_by"), serde_json::json!([names[2], names[1]]));
        let text = with_path(&["ls"], &root).out;
        assert!(text.contains("REFERS TO") && text.contains("10, 20"), "{text}");
        let refused = with_path(&["rm", "--yes"], &folders[0]);
        assert_eq!(refused.status, 2);
        let words = ["is not removed", &names[1], "--with-dependents"];
        assert!(words.iter().all(|word| refused.err.contains(word)), "{}", refused.err);
        // Without a version, `rm` keeps the newest one, and so everything to which that one refers.
        assert_eq!(with_path(&["rm", "--yes"], &store.series(&root)).status, 0);
        assert_eq!(store.folders(&root).len(), 3);
        // This would remove the newest version as well, so the command refuses.
        assert_eq!(with_path(&["rm", "--yes", "--with-dependents"], &folders[1]).status, 2);
        assert_eq!(store.folders(&root).len(), 3);
        let ran = with_path(&["rm", "--yes", "--with-dependents", "--force"], &folders[1]);
        assert_eq!((ran.status, store.folders(&root).len()), (0, 1), "{}", ran.err);
        assert_eq!(verify(&root).0, 0);
    }
}

#[test]
fn what_a_packed_shard_stores_and_refers_to_is_shown() {
    let store = referring();
    let folders = store.folders(&store.local());
    let text = with_path(&["inspect", "--rank", "1"], &folders[2]);
    let name = |folder: &Path| folder.file_name().expect("a name").to_string_lossy().into_owned();
    for part in
        ["packed shard of rank 1", "stores  4", "of it twice", &format!("4 KiB of {}", name(&folders[1])), "array"]
    {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    let document = with_path(&["inspect", "--json", "--rank", "1"], &folders[2]).json();
    let packed = &document["checkpoints"][0]["containers"][0]["shards"][0]["packed"];
    let of = |source: usize| (packed["sources"][source]["folder"].clone(), packed["sources"][source]["bytes"].clone());
    // The oldest source comes first.
    assert_eq!(of(0), (name(&folders[0]).into(), (38 * 4096).into()), "{packed}");
    assert_eq!(of(1), (name(&folders[1]).into(), 4096.into()), "{packed}");
    assert_eq!((&packed["same_bytes"], packed["regions"][0]["name"].as_str()), (&0.into(), Some("array")));
}

#[test]
fn what_differs_between_two_checkpoints_is_told_by_digests_and_by_bytes() {
    let store = referring();
    let root = store.global();
    let folders = store.folders(&root);
    let diff = |more: &[&str], a: &Path, b: &Path| {
        let args: Vec<&str> = ["diff"].into_iter().chain(more.iter().copied()).chain(a.to_str()).collect();
        with_path(&args, b)
    };
    let same = diff(&[], &folders[2], &folders[2]);
    assert_eq!((same.status, same.out.starts_with("equal: ")), (0, true), "{}{}", same.out, same.err);
    for _ in ["packed", "whole"] {
        let ran = diff(&["--json"], &folders[0], &folders[2]);
        let document = ran.json();
        let rows = document["differences"].as_array().expect("a list");
        let found: Vec<_> = rows.iter().map(|row| (&row["region"], &row["what"], &row["ranges"])).collect();
        let ranges = serde_json::json!([[20 * 4096, 4096], [30 * 4096, 4096]]);
        assert_eq!(found, vec![(&"array".into(), &"bytes".into(), &ranges); RANKS as usize], "{document}");
        assert_eq!(ran.status, 1);
        let read = diff(&["--json", "--read", "--rank", "1"], &folders[0], &folders[2]).json();
        let row = &read["differences"][0];
        assert_eq!(row["ranges"], serde_json::json!([[20 * 4096, 64], [30 * 4096, 64]]));
        // The values differ from 1, which is the rank, to 31.
        assert_eq!((&row["largest"], &row["rank"]), (&serde_json::json!([30.0, 30 * 4096]), &serde_json::json!(1)));
        let text = diff(&["--region", "array"], &folders[0], &folders[2]).out;
        assert!(text.contains("8 KiB of 160 KiB") && text.contains("81920+4096, 122880+4096"), "{text}");
        assert_eq!(with_path(&["unpack"], &folders[2]).status, 0);
    }
    assert_eq!(diff(&["--region", "nope"], &folders[0], &folders[2]).status, 3);
    assert_eq!(diff(&["--rank", "99"], &folders[0], &folders[2]).status, 3);
    let many = diff(&[], &root, &folders[2]);
    assert!(many.status == 2 && many.err.contains("has 3 checkpoints"), "{}", many.err);
}

#[test]
fn a_checkpoint_whose_source_is_gone_is_held_for_others_or_damaged() {
    let store = referring();
    let folders = store.folders(&store.global());
    std::fs::remove_dir_all(&folders[0]).expect("removed");
    let ran = with_path(&["ls", "--json"], &store.global());
    let states: Vec<Value> =
        ran.json()["checkpoints"].as_array().expect("a list").iter().map(|row| row["state"].clone()).collect();
    assert_eq!((ran.status, states), (1, vec!["damaged".into(), "held".into()]));
    let text = with_path(&["ls"], &store.global()).out;
    for part in ["it refers to version 10, which is not there", "held (for version 30;"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (status, document) = verify(&store.global());
    let found = damage(&document);
    // Damage is reported for each rank, of version 30 alone.
    assert_eq!((status, found.len()), (1, RANKS as usize), "{document}");
    assert!(found.iter().all(|finding| finding["message"].as_str().is_some_and(|text| text.contains("refers to"))));
}

#[test]
fn what_was_made_whole_needs_no_other_and_a_flip_in_a_source_is_no_longer_its_own() {
    let store = referring();
    for root in [store.global(), store.local()] {
        let folders = store.folders(&root);
        let dry = with_path(&["unpack", "--dry-run"], &root);
        assert_eq!((dry.status, dry.out.matches("refers to").count()), (0, 2), "{}", dry.out);
        let ran = with_path(&["unpack", "--json"], &folders[2]);
        assert_eq!(ran.status, 0, "{}", ran.err);
        let row = &ran.json()["checkpoints"][0];
        assert_eq!(row["needed"].as_array().map(Vec::len), Some(2));
        assert!(row["bytes"].as_u64() > Some(2 * 40 * 4096), "{row}");
        assert_eq!(with_path(&["unpack"], &folders[2]).out, "everything is already whole\n");
        assert_eq!(verify(&root).0, 0);
        for folder in &folders[..2] {
            std::fs::remove_dir_all(folder).expect("removed");
        }
        assert_eq!((verify(&root).0, with_path(&["ls"], &root).status), (0, 0));
    }
    store.run(
        |_| (),
        |session, rank| {
            let mut array = Vec::new();
            let load = |r: &mut bivouac_core::Attempt| {
                array = r.load_vec::<u8>("array")?;
                Ok(())
            };
            session.begin_restore("heat").run(load).expect("restored").expect("version 30");
            let value = |at: usize| array[at * 4096];
            assert_eq!((value(10), value(20), value(30), value(31)), (11, 21, 31, rank as u8));
        },
    );
}

#[test]
fn rm_keeps_what_a_checkpoint_refers_to_whose_manifest_is_missing_and_unpack_goes_on_where_it_was_stopped() {
    let store = referring();
    let folders = store.folders(&store.global());
    std::fs::remove_file(folders[2].join("manifest")).expect("removed");
    let refused = with_path(&["rm", "--yes"], &folders[0]);
    assert!(refused.status == 2 && refused.err.contains("--with-dependents"), "{}", refused.err);
    assert_eq!(with_path(&["rm", "--yes"], &store.series(&store.global())).status, 0);
    assert_eq!(store.folders(&store.global()).len(), 3);
    let silent = with_path(&["unpack"], &folders[2]);
    assert!(silent.status == 2 && silent.err.contains("no manifest"), "{}", silent.err);
    // The command was stopped between the files and the manifest.
    let folders = store.folders(&store.local());
    let before = std::fs::read(folders[2].join("manifest")).expect("read");
    assert_eq!(with_path(&["unpack"], &folders[2]).status, 0);
    std::fs::write(folders[2].join("manifest"), before).expect("written");
    assert_eq!(with_path(&["ls"], &folders[2]).status, 0);
    let again = with_path(&["unpack"], &folders[2]);
    assert!(again.status == 0 && again.out.contains("is whole"), "{}", again.err);
    // This removes everything that refers to the first version, directly or not.
    let ran = with_path(&["rm", "--yes", "--with-dependents", "--force"], &folders[0]);
    assert_eq!((ran.status, store.folders(&store.local()).len()), (0, 1), "{}", ran.err);
}

#[test]
fn nothing_of_a_living_run_is_made_whole() {
    let store = referring();
    let change = |config: &mut Config| config.job.reduction.method = Method::Basic;
    store.run(change, |_, rank| {
        if rank == 0 {
            let refused = with_path(&["unpack"], &store.global());
            assert!(refused.status == 2 && refused.err.contains("living run"), "{}", refused.err);
        }
    });
}
