//! `bivouac verify` and `extract` of checkpoints with decomposed regions: the commands prove what sessions write, and find
//! what no session writes.
#![forbid(unsafe_code)]

use crate::store::{Store, bivouac, with_path};
use crate::{limit, store};
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::{CheckpointKey, Digest, Generation, Incarnation, Level, Rank};
use bivouac_core::config::{Config, Method};
use bivouac_core::decomposition::ids::List;
use bivouac_core::decomposition::{Identity, OnResize, Record, Rule};
use bivouac_core::format::container::encode_tail;
use bivouac_core::format::shard::{Layout, encode_head};
use bivouac_core::format::{ContainerEntry, ContainerInfo, ElementType, Manifest, Region, RegionKind, ShardMeta};
use bivouac_core::region::DECOMPOSITION;
use bivouac_core::{Boxes, Ids, Rows, Session};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;

// ------------------------------------------------------------------------------------------- forged checkpoints

/// A region and its bytes.
type Saved = (Region, Vec<u8>);

/// Writes a committed checkpoint with these regions for each rank, in one container, and returns its folder.
fn write(root: &Path, version: u64, ranks: &[Vec<Saved>]) -> PathBuf {
    write_files(root, version, ranks, &[("c000000.bvc", (0..ranks.len() as u32).collect())], true)
}

/// Writes such a checkpoint in several files, each with the shards of some ranks.
fn write_files(
    root: &Path,
    version: u64,
    ranks: &[Vec<Saved>],
    files: &[(&str, Vec<u32>)],
    has_manifest: bool,
) -> PathBuf {
    let key =
        CheckpointKey { generation: Generation(1), version, operation: version, incarnation: Incarnation([7; 16]) };
    let folder = root.join("job-1/world/heat").join(key.folder());
    std::fs::create_dir_all(&folder).expect("our own folder");
    std::fs::write(root.join("store"), format!("{:032x}\n", 7)).expect("written");
    let mut containers = Vec::new();
    for (file, of) in files {
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        for rank in of {
            let shard = shard(key, *rank, ranks.len() as u32, &ranks[*rank as usize]);
            let (offset, length) = (bytes.len() as u64, shard.len() as u64);
            entries.push(ContainerEntry { key, rank: Rank(*rank), offset, length });
            bytes.extend(shard);
        }
        bytes.extend(encode_tail(&entries).expect("an index"));
        std::fs::write(folder.join(file), &bytes).expect("written");
        let ranks = of.iter().copied().map(Rank).collect();
        containers.push(ContainerInfo { file: file.to_string(), bytes: bytes.len() as u64, ranks });
    }
    let manifest = Manifest {
        job: "job-1".into(),
        group: "world".into(),
        name: "heat".into(),
        key,
        agreement: 5,
        group_size: ranks.len() as u32,
        origin: None,
        level: Level::System,
        sources: Vec::new(),
        containers,
    };
    if has_manifest {
        std::fs::write(folder.join("manifest"), manifest.encode().expect("a manifest")).expect("written");
    }
    folder
}

fn shard(key: CheckpointKey, rank: u32, size: u32, saved: &[Saved]) -> Vec<u8> {
    let regions = saved.iter().map(|(region, _)| region.clone()).collect();
    let meta = ShardMeta { job: "job-1".into(), group: "world".into(), name: "heat".into(), regions };
    let layout = Layout::new(meta, BLOCK).expect("a layout");
    let header = layout.header(key, 5, size, Rank(rank), None);
    let mut bytes = vec![0; layout.total_len as usize];
    let mut digests: Vec<Digest> = Vec::new();
    for (region, (_, body)) in layout.meta.regions.iter().zip(saved) {
        let start = (layout.body_offset + region.offset) as usize;
        bytes[start..start + body.len()].copy_from_slice(body);
        digests.extend(body.chunks(BLOCK as usize).map(digest_bytes));
    }
    encode_head(&layout, &header, &digests, &mut bytes[..layout.body_offset as usize]);
    bytes
}

/// Regions of a rank that owns these boxes: its part of the array, and a value that all ranks share. The record follows them.
fn regions(boxes: &Boxes) -> Vec<Saved> {
    let elements = boxes.check().expect("inside").parts().elements();
    let array = Region::of_bytes("t", RegionKind::Array, 2 * elements);
    let array = Region { element: ElementType::U16, shape: vec![elements], ..array };
    let step = Region::of_bytes("step", RegionKind::Value, 8);
    vec![(array, vec![3; 2 * elements as usize]), (step, 70u64.to_le_bytes().into())]
}

fn record(boxes: &Boxes, identity: Identity) -> Record {
    let parts = boxes.check().expect("inside").parts().clone();
    Record {
        decompositions: vec![(identity, parts)],
        rules: [(0, Rule::On(0)), (1, Rule::Shared)].into(),
        ..Record::default()
    }
}

fn with_record(mut saved: Vec<Saved>, record: Vec<u8>) -> Vec<Saved> {
    saved.push((Region::of_bytes(DECOMPOSITION, RegionKind::Value, record.len() as u64), record));
    saved
}

/// The identity of the decomposition whose boxes these are, by rank.
fn identity(all: &[Boxes]) -> Identity {
    let of = |(rank, boxes): (u32, &Boxes)| {
        Identity::of_rank(boxes.check().expect("inside").parts(), rank, all.len() as u32)
    };
    (0..).zip(all).map(of).fold(Identity::default(), Identity::and)
}

/// The regions that sessions would have written if nobody had proved that these boxes tile their array.
fn unproved(all: &[Boxes]) -> Vec<Vec<Saved>> {
    let identity = identity(all);
    all.iter().map(|boxes| with_record(regions(boxes), record(boxes, identity).encode())).collect()
}

/// Slabs of an array of 30 rows and 7 columns on three ranks.
fn slabs() -> [Boxes; 3] {
    [0, 1, 2].map(|rank| Boxes::of([30, 7]).own([10 * rank, 0], [10, 7]))
}

fn verify(path: &Path) -> (i32, Value) {
    let ran = with_path(&["verify", "--json"], path);
    (ran.status, ran.json())
}

/// The only finding in a checkpoint with these shards, which must be damage.
fn only_damage(ranks: &[Vec<Saved>]) -> Value {
    let root = tempfile::tempdir().expect("a folder");
    let folder = write(root.path(), 10, ranks);
    let (status, document) = verify(root.path());
    let findings = document["findings"].as_array().expect("a list");
    assert_eq!((status, findings.len(), &findings[0]["kind"]), (1, 1, &"damage".into()), "{document}");
    let finding = &findings[0];
    let path = finding["path"].as_str().expect("text");
    assert!(Path::new(path).starts_with(&folder), "{finding}");
    assert_eq!((&finding["tier"], document["checked"]["arrays"].as_u64()), (&"global".into(), Some(0)), "{document}");
    // The version is then not a good one, and the output for people says the same.
    assert_eq!(document["newest_good"][0]["version"], Value::Null);
    let text = with_path(&["verify"], root.path()).out;
    assert!(text.contains(finding["message"].as_str().expect("text")), "{text}");
    finding.clone()
}

fn message(finding: &Value) -> &str {
    finding["message"].as_str().expect("text")
}

// ------------------------------------------------------------------------------------------- what is good

/// Takes a checkpoint with rows of one array, and patches of another one.
fn take(session: &Session, rank: u32, version: u64) {
    let rows = Boxes::of([2000, 7]).own([u64::from(rank) * 1000, 0], [1000, 7]).halo([1, 0]);
    let patches = (0..6)
        .fold(Boxes::of([1000, 40]).sparse(), |boxes, at| boxes.own([at * 100 + 3 * u64::from(rank), 7], [1, at + 1]));
    let (rows, patches) = (session.decompose(rows).expect("rows"), session.decompose(patches).expect("patches"));
    let mut t = vec![1.0f64; 1002 * 7];
    t[500] = version as f64;
    let small = [2u16; 6];
    let memory: Vec<&[u16]> = (0..6).map(|at| &small[..at + 1]).collect();
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
    checkpoint.save_on("t", &rows, &t).expect("a region");
    checkpoint.save_boxes_on("patches", &patches, &memory).expect("a region");
    checkpoint.shared("step", &version).expect("a value");
    checkpoint.per_rank("seed", &rank, OnResize::Ask).expect("a value");
    let pending = checkpoint.capture().expect("captured");
    limit::wait_until("all levels end", || pending.poll());
}

#[test]
fn what_sessions_write_is_proved_wherever_all_shards_are() {
    let store = Store::empty();
    let refers = |config: &mut Config| config.job.reduction.method = Method::Basic;
    store.run_killed(refers, |session, rank| (0..2).for_each(|at| take(session, rank, 10 + at)));
    for root in [store.global(), store.local()] {
        let (status, document) = verify(&root);
        assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(4)), "{document}");
        assert_eq!(document["findings"], serde_json::json!([]));
    }
    let text = with_path(&["verify"], &store.folders(&store.global())[1]).out;
    assert!(text.contains("; 2 decomposed arrays proved\n"), "{text}");
    // The shards in node memory are checked one by one.
    let (status, document) = verify(&store.segment());
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(0)), "{document}");
    assert!(document["checked"]["shards"].as_u64() >= Some(2));
    // First all shards are in one file, away from its folder; then only some of them are.
    let away = store.disk.path().join("away.bvc");
    std::fs::copy(store.folders(&store.global())[0].join("c000000.bvc"), &away).expect("copied");
    assert_eq!(verify(&away).1["checked"]["arrays"], 2);
    let (status, document) = verify(&store.folders(&store.local())[0].join("r000001.bvs"));
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(0)), "{document}");
}

/// Takes particles, of which each rank has a different number, and the first rank none; and an array that is cut into boxes.
fn take_rows(session: &Session, rank: u32, ranks: u32, heat: f64) {
    let first = u64::from(rank) * u64::from(rank);
    let id: Vec<u64> = (first..first + 5 * u64::from(rank)).collect();
    let v: Vec<f32> = id.iter().flat_map(|id| [*id as f32, 0.5, -1.0]).collect();
    let cells = 60 / u64::from(ranks);
    let grid = session.decompose(Boxes::of([60]).own([cells * u64::from(rank)], [cells])).expect("a grid");
    let t = vec![heat; cells as usize];
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    checkpoint.save_on("t", &grid, &t).expect("a region");
    let rows = Rows::new(id.len() as u64).column("id", &id).columns("v", 3, &v);
    checkpoint.save_rows("electrons", rows.bounds([f64::from(rank)], [f64::from(rank + 1)])).expect("rows");
    let pending = checkpoint.capture().expect("captured");
    limit::wait_until("all levels end", || pending.poll());
}

/// A store with such a checkpoint, and the checkpoint's folder on the global tier.
fn store_of_rows(ranks: u32, heat: f64) -> (Store, PathBuf) {
    let store = Store::on(&vec![0; ranks as usize]);
    store.run(|_| (), |session, rank| take_rows(session, rank, ranks, heat));
    let folder = store.folders(&store.global())[0].clone();
    (store, folder)
}

#[test]
fn rows_go_through_all_tools() {
    let (store, folder) = store_of_rows(4, 1.0);
    for root in [store.global(), store.local()] {
        let (status, document) = verify(&root);
        assert_eq!((status, &document["findings"]), (0, &serde_json::json!([])), "{document}");
        // The cut array is proved; rows have nothing that must be complete.
        assert_eq!(document["checked"]["arrays"], 1, "{document}");
        let document = with_path(&["ls", "--json"], &root).json();
        assert_eq!(document["checkpoints"][0]["resizable"], true, "{document}");
    }
    let text = with_path(&["inspect", "--rank", "3"], &folder).out;
    for (region, cell) in [("electrons/id", "15 rows"), ("electrons/v", "15 rows of 3"), ("t ", "array 0")] {
        let row = text.lines().find(|line| line.trim_start().starts_with(region)).expect("a row");
        assert!(row.ends_with(&format!("  {cell}")), "{row}");
    }
    assert!(text.contains("resize  can be restored by any number of ranks\n"), "{text}");
    let document = with_path(&["inspect", "--json"], &folder.join("c000000.bvc")).json();
    for shard in document["containers"][0]["shards"].as_array().expect("a list") {
        let rank = shard["rank"].as_f64().expect("a number");
        let regions = shard["dealt"]["regions"].as_array().expect("a list").iter();
        let rows: Vec<&Value> = regions.filter(|said| said["rule"] == "rows").map(|said| &said["rows"]).collect();
        assert!(rows.len() == 2 && rows[0]["width"] == 1 && rows[1]["width"] == 3, "{shard}");
        assert!(rows.iter().all(|rows| rows["count"] == 5.0 * rank && rows["bounds"][0][0] == rank), "{shard}");
    }

    // Columns are compared by rank if as many ranks have them, and not at all on other numbers of ranks; the array is
    // compared in both cases.
    let diff = |b: &Path, more: &[&str]| {
        let both = [&folder, b].map(|path| path.to_str().expect("UTF-8"));
        bivouac(&[&["diff"], more, &both[..]].concat())
    };
    let ((_same, same), (_hot, hot), (_fewer, fewer)) =
        (store_of_rows(4, 1.0), store_of_rows(4, 2.0), store_of_rows(3, 1.0));
    let ran = diff(&same, &["--read"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "equal: 12 regions\n"), "{ran:?}");
    assert_eq!(diff(&hot, &[]).status, 1);
    assert_eq!(diff(&hot, &["--region", "electrons/v"]).status, 0);
    let ran = diff(&fewer, &[]);
    assert!(ran.status == 0 && ran.out.ends_with("equal: 1 regions\n"), "{ran:?}");
    for column in ["electrons/id", "electrons/v"] {
        assert!(ran.out.contains(&format!("{column} (each rank has its own, but 4 and 3 ranks")), "{ran:?}");
    }
    let ran = diff(&fewer, &["--region", "electrons/id"]);
    assert!(ran.status == 2 && ran.err.contains("nothing can be compared"), "{ran:?}");

    // A column is not part of an array, but the part of one rank can be extracted.
    let out = tempfile::tempdir().expect("a folder");
    let file = out.path().join("v.npy");
    let (from, to) = (folder.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let ran = bivouac(&["extract", from, "electrons/v", "-o", to]);
    assert!(ran.status == 2 && ran.err.contains("is a column of rows") && !file.exists(), "{ran:?}");
    assert!(ran.err.contains("bivouac export ") && ran.err.contains(" electrons/v -o FILE"), "{ran:?}");
    let ran = bivouac(&["export", from, "electrons/v", "--rank", "2", "-o", to]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let bytes = std::fs::read(&file).expect("written");
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'shape': (10, 3)"), "{bytes:?}");
    assert_eq!(bytes[bytes.len() - 120..][..4], 4f32.to_le_bytes());
    assert_eq!(bivouac(&["extract", from, "t", "-o", to]).status, 0);
}

#[test]
fn what_was_forged_as_sessions_write_it_is_proved() {
    let root = tempfile::tempdir().expect("a folder");
    write(root.path(), 10, &unproved(&slabs()));
    let sparse = [Boxes::of([9]).own([1], [3]).sparse(), Boxes::of([9]).own([7], [1]).own([4], [0]).sparse()];
    write(root.path(), 20, &unproved(&sparse));
    // No rank owns a part of an empty array.
    write(root.path(), 30, &unproved(&[Boxes::of([0, 4]), Boxes::of([0, 4])]));
    let (status, document) = verify(root.path());
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(3)), "{document}");
}

#[test]
fn without_all_shards_nothing_is_proved_and_nothing_is_damage_for_that() {
    let root = tempfile::tempdir().expect("a folder");
    let overlapping = [Boxes::of([9]).own([0], [9]), Boxes::of([9]).own([8], [1])];
    let some = [("r000001.bvs", vec![1])];
    write_files(root.path(), 10, &unproved(&overlapping), &some, false);
    let (status, document) = verify(root.path());
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(0)), "{document}");
    assert_eq!(document["findings"][0]["kind"], "note");
    // If the other shard is there as well, the overlap is found, even if the manifest is not yet written.
    let both = [("r000000.bvs", vec![0]), ("r000001.bvs", vec![1])];
    write_files(root.path(), 10, &unproved(&overlapping), &both, false);
    let (status, document) = verify(root.path());
    assert!(status == 1 && document["findings"].to_string().contains("elements [8] belong both"), "{document}");
}

#[test]
fn a_copy_that_was_replaced_does_not_count() {
    let root = tempfile::tempdir().expect("a folder");
    let mut ranks = unproved(&slabs());
    let files = [("c000000.bvc", vec![0, 1, 2])];
    // The node's container holds an invalid record of rank 1.
    let mut bad = ranks.clone();
    bad[1] = with_record(regions(&slabs()[1]), vec![9]);
    let folder = write_files(root.path(), 10, &bad, &files, false);
    let bytes = std::fs::read(folder.join("c000000.bvc")).expect("read");
    let files = [("c000000.bvc", vec![0, 2]), ("r000001.bvs", vec![1])];
    write_files(root.path(), 10, &ranks, &files, true);
    let good = std::fs::read(folder.join("manifest")).expect("read");
    let mut manifest = Manifest::decode(&good).expect("just written");
    manifest.containers[0].bytes = bytes.len() as u64;
    std::fs::write(folder.join("manifest"), manifest.encode().expect("a manifest")).expect("written");
    std::fs::write(folder.join("c000000.bvc"), &bytes).expect("written");
    let (status, document) = verify(root.path());
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(1)), "{document}");
    assert!(document["findings"].to_string().contains("(the manifest names another copy)"), "{document}");
    // Without a manifest, the rank's own file counts as well.
    ranks.truncate(2);
    let two = [Boxes::of([9]).own([0], [5]), Boxes::of([9]).own([5], [4])];
    let other = [Boxes::of([9]).own([0], [5]), Boxes::of([9]).own([4], [5])];
    let folder = write_files(root.path(), 20, &unproved(&other), &[("c000000.bvc", vec![0, 1])], false);
    let bytes = std::fs::read(folder.join("c000000.bvc")).expect("read");
    let mine: Vec<Vec<Saved>> =
        two.iter().map(|boxes| with_record(regions(boxes), record(boxes, identity(&other)).encode())).collect();
    write_files(root.path(), 20, &mine, &[("r000001.bvs", vec![1])], false);
    std::fs::write(folder.join("c000000.bvc"), &bytes).expect("written");
    let (_, document) = verify(&folder);
    let text = document["findings"].to_string();
    assert!(text.contains("its identity is ") && !text.contains("belong"), "{document}");
}

// ------------------------------------------------------------------------------------------- what is wrong

#[test]
fn elements_of_two_ranks_are_found() {
    let mut all = slabs();
    all[2] = Boxes::of([30, 7]).own([20, 0], [10, 7]).own([12, 3], [2, 2]);
    let finding = only_damage(&unproved(&all));
    assert_eq!((&finding["rank"], &finding["region"]), (&2.into(), &"t".into()));
    let text = "c000000.bvc: region \"t\" on an array of shape [30, 7]: \
                elements [12, 3..5] belong both to box 0 of rank 1 and to box 1 of rank 2";
    assert!(message(&finding).ends_with(text), "{finding}");
    // The same is found in an array that need not be covered; and so is an element that one rank has twice.
    let sparse = [Boxes::of([9]).own([1], [3]).own([3], [1]).sparse(), Boxes::of([9]).sparse()];
    let finding = only_damage(&unproved(&sparse));
    assert!(message(&finding).ends_with("elements [3] belong both to box 0 of rank 0 and to box 1 of rank 0"));
}

#[test]
fn elements_of_no_rank_are_found() {
    let mut all = slabs();
    all[1] = Boxes::of([30, 7]).own([10, 0], [4, 7]).own([14, 0], [1, 2]).own([14, 5], [1, 2]).own([15, 0], [5, 7]);
    let finding = only_damage(&unproved(&all));
    assert_eq!((&finding["rank"], &finding["region"]), (&Value::Null, &"t".into()));
    let text = "region \"t\" on an array of shape [30, 7]: elements [14, 2..5] belong to no rank";
    assert!(message(&finding).ends_with(text) && message(&finding).contains("g000001-v0000000010"), "{finding}");
    // Here the whole array belongs to no rank.
    let finding = only_damage(&unproved(&[Boxes::of([5, 6, 7]), Boxes::of([5, 6, 7])]));
    assert!(message(&finding).ends_with("elements [0, 0, 0..7] belong to no rank"), "{finding}");
}

#[test]
fn an_identity_that_is_not_the_sum_is_found() {
    let all = slabs();
    let wrong = Identity(identity(&all).0 ^ 1 << 90);
    let ranks: Vec<_> = all.iter().map(|boxes| with_record(regions(boxes), record(boxes, wrong).encode())).collect();
    let finding = only_damage(&ranks);
    let text = format!("its identity is {wrong}, but the parts of all ranks give {}", identity(&all));
    assert!(message(&finding).ends_with(&text) && finding["region"] == "t", "{finding}");
    // The parts of two ranks are exchanged: the array is still tiled, but the two shards have each other's bytes.
    let exchanged = [0, 2, 1].map(|rank: usize| all[rank].clone());
    let ranks: Vec<_> =
        exchanged.iter().map(|boxes| with_record(regions(boxes), record(boxes, identity(&all)).encode())).collect();
    assert!(message(&only_damage(&ranks)).contains("the parts of all ranks give "));
}

#[test]
fn records_that_do_not_fit_their_shards_are_found() {
    let all = slabs();
    let good = record(&all[1], identity(&all));
    let bytes = good.encode();
    let mut newer = bytes.clone();
    newer[0] = 2;
    let other = record(&Boxes::of([30, 7]).own([10, 0], [9, 7]), identity(&all)).encode();
    let mut of_array = good.clone();
    of_array.rules.insert(0, Rule::Shared);
    let mut too_many = good.clone();
    too_many.rules.insert(9, Rule::Shared);
    let outside = [&bytes[..bytes.len() - 11], &[22u8, 20, 2, 14], &bytes[bytes.len() - 5..]].concat();
    for (record, text) in [
        (bytes[..bytes.len() - 1].to_vec(), "it is truncated or invalid"),
        (Vec::new(), "it is empty"),
        (newer, "version 2, and 1 is known"),
        (outside, "it is truncated or invalid"),
        (other, "region \"t\" has 140 bytes, but its boxes have 63 elements"),
        (of_array.encode(), "region \"t\" is an array, but has the rule of a value"),
        (too_many.encode(), "it has a rule for region 9, but the shard has only 3 regions"),
    ] {
        let mut ranks = unproved(&all);
        ranks[1] = with_record(regions(&all[1]), record);
        let finding = only_damage(&ranks);
        assert!(message(&finding).contains(text), "{text}: {finding}");
        assert_eq!((&finding["rank"], &finding["region"]), (&1.into(), &DECOMPOSITION.into()), "{text}");
        assert!(message(&finding).contains("c000000.bvc: rank 1: decomposition record"), "{finding}");
    }
}

#[test]
fn shards_that_say_different_things_are_found() {
    let all = slabs();
    let with = |saved: Vec<Saved>| {
        let mut ranks = unproved(&all);
        ranks[1] = saved;
        only_damage(&ranks)
    };
    let own = |change: fn(&mut Record)| {
        let mut record = record(&all[1], identity(&all));
        change(&mut record);
        record.encode()
    };
    let is_on_rank_1 = |finding: &Value, region: &str, text: &str| {
        assert_eq!((&finding["rank"], &finding["region"]), (&1.into(), &region.into()));
        assert!(message(finding).contains("c000000.bvc: rank 1: ") && message(finding).contains(text), "{finding}");
    };
    let text = "it has no decomposition record, unlike rank 0";
    is_on_rank_1(&with(regions(&all[1])), DECOMPOSITION, text);
    let record = own(|record| record.rules.extend([(1, Rule::PerRank(OnResize::Drop))]));
    let text = "its regions are spread over the ranks differently from those of rank 0";
    is_on_rank_1(&with(with_record(regions(&all[1]), record)), DECOMPOSITION, text);
    let record = own(|record| record.decompositions[0].0.0 += 1);
    let text = "region \"t\" has a different decomposition from that of rank 0";
    is_on_rank_1(&with(with_record(regions(&all[1]), record)), "t", text);
    // The record has the same identity, but an array of another shape or of another kind.
    for boxes in [Boxes::of([31, 7]).own([10, 0], [10, 7]), all[1].clone().sparse()] {
        let saved = with_record(regions(&boxes), self::record(&boxes, identity(&all)).encode());
        is_on_rank_1(&with(saved), "t", text);
    }
    let mut saved = regions(&all[1]);
    saved[1].1[0] += 1;
    let record = own(|_| ());
    let text = "value \"step\", which all ranks share, differs from that of rank 0";
    is_on_rank_1(&with(with_record(saved, record)), "step", text);
}

// ------------------------------------------------------------------------------------------- what is made to take memory

/// Encodes a number as the format does.
fn short(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A record of as many boxes as a rank can have, each of which takes two bytes and consists of the first element; and a
/// record of as many rules.
fn swollen(count: u64) -> [Vec<u8>; 2] {
    let mut boxes = [&[1, 1][..], &[5; 16], &[1, 1]].concat();
    short(&mut boxes, 1 << 40);
    short(&mut boxes, count);
    boxes.extend([0, 2]);
    boxes.resize(boxes.len() + 2 * (count as usize - 1), 0);
    boxes.push(0);
    let mut rules = vec![1, 0];
    short(&mut rules, count);
    rules.resize(rules.len() + 2 * count as usize, 0);
    [boxes, rules]
}

/// Runs the command with at most this much memory, and returns its exit status and text.
fn within(bytes: u64, args: &[&OsStr]) -> (i32, String) {
    let command = store::command();
    let program = command.get_program().to_owned();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v \"$1\" && shift && exec \"$@\"", "sh"]);
    limited.arg((bytes >> 10).to_string()).arg(program).args(args);
    let output = limited.output().expect("sh is there");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn records_that_say_much_in_few_bytes_take_little_memory() {
    let root = tempfile::tempdir().expect("a folder");
    let none = || vec![(Region::of_bytes("step", RegionKind::Value, 8), vec![0; 8])];
    let count = 1 << 23;
    let [boxes, rules] = swollen(count);
    write(root.path(), 10, &[with_record(none(), boxes)]);
    write(root.path(), 20, &[with_record(none(), rules)]);
    // The boxes alone would take a gigabyte if they were unpacked, and the rules would take 300 MB.
    let (status, text) = within(400 << 20, &["verify".as_ref(), "--jobs".as_ref(), "1".as_ref(), root.path().as_ref()]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("elements [0] belong both to box 0 of rank 0 and to box 1 of rank 0"), "{text}");
    assert!(text.contains("v0000000020") && text.contains("it is truncated or invalid"), "{text}");
    assert!(text.contains("an array of shape [1099511627776] without a region: "), "{text}");
}

// ------------------------------------------------------------------------------------------- what is extracted

/// The array takes more than two bands. Its ranks have columns, so each band has a part of each rank.
#[test]
fn an_array_that_is_larger_than_the_memory_is_extracted() {
    let shape = [13, 5000, 2500u64];
    let columns = |rank: u64| Boxes::of(shape).own([0, 0, 625 * rank], [13, 5000, 625]);
    let all: Vec<Boxes> = (0..4).map(columns).collect();
    let element = |z: u64, y: u64, x: u64| (z * 31 + y * 7 + x * 3) as u8;
    let saved = |(rank, boxes): (u64, &Boxes)| {
        let own = |row: u64| (625 * rank..625 * rank + 625).map(move |x| element(row / 5000, row % 5000, x));
        let bytes: Vec<u8> = (0..13 * 5000).flat_map(own).collect();
        let region = Region::of_bytes("t", RegionKind::Array, bytes.len() as u64);
        let region = Region { element: ElementType::U8, shape: vec![bytes.len() as u64], ..region };
        let step = Region::of_bytes("step", RegionKind::Value, 8);
        with_record(vec![(region, bytes), (step, vec![0; 8])], record(boxes, identity(&all)).encode())
    };
    let ranks: Vec<Vec<Saved>> = (0..).zip(&all).map(saved).collect();
    let root = tempfile::tempdir().expect("a folder");
    let folder = write(root.path(), 10, &ranks);
    let file = root.path().join("t.npy");
    let args = ["extract".as_ref(), folder.as_os_str(), "t".as_ref(), "-o".as_ref(), file.as_os_str()];
    // A band takes 64 MiB, and the array takes 155 MiB.
    let (status, text) = within(130 << 20, &args);
    assert_eq!(status, 0, "{text}");
    let bytes = std::fs::read(&file).expect("read");
    let found = &bytes[bytes.len() - (13 * 5000 * 2500)..];
    let is_right = |(at, byte): (usize, &u8)| {
        let at = at as u64;
        *byte == element(at / 12_500_000, at / 2500 % 5000, at % 2500)
    };
    assert!(found.iter().enumerate().all(is_right));
}

#[test]
fn what_belongs_to_two_ranks_is_not_extracted() {
    let mut all = slabs();
    all[2] = Boxes::of([30, 7]).own([20, 0], [10, 7]).own([12, 3], [2, 2]);
    let root = tempfile::tempdir().expect("a folder");
    let folder = write(root.path(), 10, &unproved(&all));
    let file = root.path().join("t.npy");
    let extract = |more: &[&str]| {
        let words = ["extract", folder.to_str().expect("UTF-8"), "t", "-o", file.to_str().expect("UTF-8")];
        bivouac(&[&words, more].concat())
    };
    let ran = extract(&[]);
    let text = "elements [12, 3..5] belong both to box 0 of rank 1 and to box 1 of rank 2";
    assert!(ran.status == 1 && ran.err.contains(text) && !file.exists(), "{ran:?}");
    // Outside of the damage, the array is whole.
    assert_eq!(extract(&["--box", "14:,:"]).status, 0);
    // One shard has a different description of the array.
    let mut ranks = unproved(&slabs());
    let other = record(&Boxes::of([31, 7]).own([10, 0], [10, 7]), identity(&slabs()));
    ranks[1] = with_record(regions(&slabs()[1]), other.encode());
    let folder = write(root.path(), 20, &ranks);
    let (folder, file) = (folder.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let ran = bivouac(&["extract", folder, "t", "-o", file]);
    assert!(ran.status == 1 && ran.err.contains("has a different decomposition from that of rank 0"), "{ran:?}");
}

// ------------------------------------------------------------------------------------------- lists of numbers

/// The vertices of each rank, as forged shards hold them: a region with the elements, and the list.
fn listed(all: &[Ids]) -> Vec<Vec<Saved>> {
    let ranks = all.len() as u32;
    let lists: Vec<List> = all.iter().map(|ids| ids.clone().check().expect("inside")).collect();
    let of = (0..).map(Rank).zip(&lists).map(|(rank, list)| list.identity(rank, ranks));
    let identity = of.fold(Identity::default(), Identity::and);
    lists.iter().map(|list| with_list(list, identity, list.packed().to_vec())).collect()
}

fn with_list(list: &List, identity: Identity, numbers: Vec<u8>) -> Vec<Saved> {
    let count = list.head().count;
    let array = Region::of_bytes("t", RegionKind::Array, 2 * count);
    let array = Region { element: ElementType::U16, shape: vec![count], ..array };
    let rules = [(0, Rule::Numbered(0))].into();
    let record = Record { rules, lists: vec![(identity, list.head())], ..Record::default() };
    let mut saved = with_record(vec![(array, vec![3; 2 * count as usize])], record.encode());
    saved.push((Region::of_bytes(".bivouac/ids/0", RegionKind::Value, numbers.len() as u64), numbers));
    saved
}

/// Every third number, in descending order.
fn third(rank: u64) -> impl Iterator<Item = u64> {
    (0..9000).rev().filter(move |number| number % 3 == rank)
}

#[test]
fn lists_of_numbers_are_proved_by_a_way_of_their_own() {
    let thirds = || [0, 1, 2].map(|rank| Ids::of(9000).own(third(rank)));
    let root = tempfile::tempdir().expect("a folder");
    write(root.path(), 10, &listed(&thirds()));
    write(root.path(), 20, &listed(&[Ids::of(9).own([7, 2]).sparse(), Ids::of(9).sparse()]));
    let (status, document) = verify(root.path());
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(2)), "{document}");

    let mut twice = thirds();
    twice[2] = Ids::of(9000).own(third(2)).own([4500]);
    let finding = only_damage(&listed(&twice));
    assert_eq!((&finding["rank"], &finding["region"]), (&2.into(), &"t".into()));
    let text =
        "region \"t\" on an array of 9000 numbered elements: number 4500 is in the lists of both rank 0 and rank 2";
    assert!(message(&finding).ends_with(text), "{finding}");

    let mut gap = thirds();
    gap[1] = Ids::of(9000).own(third(1).filter(|number| *number != 3001));
    assert!(message(&only_damage(&listed(&gap))).ends_with("number 3001 is in no rank's list"));

    let list = |rank: u64| thirds()[rank as usize].clone().check().expect("inside");
    let good = listed(&thirds());
    let wrong = |list: &List, numbers: Vec<u8>| {
        let mut ranks = good.clone();
        ranks[1] = with_list(list, Identity(5), numbers);
        ranks
    };
    let finding = only_damage(&wrong(&list(1), list(1).packed().to_vec()));
    assert!(message(&finding).ends_with("region \"t\" has different lists from those of rank 0"), "{finding}");
    // The list has the same numbers in another order, but not the order that the identity stands for.
    let mut other = thirds();
    other[1] = Ids::of(9000).own(third(1).collect::<Vec<_>>().into_iter().rev());
    let identity = Record::decode(&good[1][1].1).expect("good").lists[0].0;
    let mut ranks = good.clone();
    let list_of_other = other[1].clone().check().expect("inside");
    ranks[1] = with_list(&list_of_other, identity, list_of_other.packed().to_vec());
    assert!(message(&only_damage(&ranks)).contains(&format!("its identity is {identity}, but the lists of all ranks")));
    // These are no valid lists: one is cut, one has fewer numbers than the record says, and one is empty.
    let packed = list(1).packed().to_vec();
    let other = Ids::of(9000).own(third(1).skip(1)).check().expect("inside");
    for (list, numbers, text) in [
        (&list(1), packed[..packed.len() - 1].to_vec(), "region \".bivouac/ids/0\" is invalid"),
        (&list(1), other.packed().to_vec(), "is invalid"),
        (&list(1), vec![], "of 0 bytes cannot be a list of 3000 numbers"),
    ] {
        let finding = only_damage(&wrong(list, numbers));
        assert!(message(&finding).contains(text), "{finding}");
    }
}

/// Takes a version whose vertices are distributed over the ranks in a scrambled order.
fn take_mesh(session: &Session, rank: u32, ranks: u32, changed: Option<u64>) {
    const TOTAL: u64 = 5000;
    let own = (0..TOTAL).map(|at| at * 1103 % TOTAL).filter(|number| number % 7 % u64::from(ranks) == u64::from(rank));
    let own: Vec<u64> = own.collect();
    let some: Vec<u64> = own.iter().copied().filter(|number| number % 2 == 0).collect();
    let mesh = session.decompose(Ids::of(TOTAL).own(own.iter().copied())).expect("each has one");
    let even = session.decompose(Ids::of(TOTAL).own(some.iter().copied()).sparse()).expect("apart");
    let t: Vec<u32> = own.iter().map(|number| *number as u32 + u32::from(changed == Some(*number))).collect();
    // If vertex 77 is changed, so is the mark of the vertex before it.
    let mark: Vec<u16> = some.iter().map(|number| *number as u16 ^ u16::from(changed == Some(*number + 1))).collect();
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    checkpoint.save_on("t", &mesh, &t).expect("a region");
    checkpoint.save_on("mark", &even, &mark).expect("a region");
    let pending = checkpoint.capture().expect("captured");
    pending.wait(Level::System).expect("committed");
}

#[test]
fn elements_with_numbers_are_shown_extracted_and_compared_by_number() {
    let of = |ranks: u32, changed| {
        let store = Store::on(&(0..ranks).map(|rank| rank / 2).collect::<Vec<_>>());
        store.run(|_| (), |session, rank| take_mesh(session, rank, ranks, changed));
        let folder = store.folders(&store.global())[0].clone();
        (store, folder)
    };
    let ((_a, a), (_b, b), (_c, c)) = (of(4, None), of(3, None), of(3, Some(77)));
    let (status, document) = verify(&a);
    assert_eq!((status, document["checked"]["arrays"].as_u64()), (0, Some(2)), "{document}");
    let ran = with_path(&["inspect"], &a);
    assert!(ran.out.contains("0: 5000 numbered elements; this rank has"), "{}", ran.out);
    assert!(ran.out.contains("1: 5000 numbered elements, sparse; this rank has"), "{}", ran.out);
    assert!(ran.out.contains("can be restored by any number of ranks"), "{}", ran.out);
    let document = with_path(&["inspect", "--json"], &a).json().to_string();
    assert!(document.contains("\"rule\":\"numbered\""), "{document}");

    let out = tempfile::tempdir().expect("a folder");
    let file = out.path().join("t.npy");
    let extract = |name: &str, more: &[&str]| {
        let [from, to] = [&a, &file].map(|path| path.to_str().expect("UTF-8"));
        bivouac(&[&["extract", from, name, "-o", to], more].concat())
    };
    let ran = extract("t", &[]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let bytes = std::fs::read(&file).expect("written");
    let t: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
    assert!(bytes.ends_with(&t) && bytes.len() % 64 == t.len() % 64, "{} bytes", bytes.len());
    let ran = extract("mark", &[]);
    assert!(ran.status == 3 && ran.err.contains("elements [1] were saved by no rank"), "{ran:?}");

    let diff = |b: &Path| bivouac(&["diff", a.to_str().expect("UTF-8"), b.to_str().expect("UTF-8")]);
    let ran = diff(&b);
    assert!(ran.status == 0 && ran.out.ends_with("equal: 2 regions\n"), "{ran:?}");
    let ran = diff(&c);
    assert!(
        ran.status == 1
            && ran.out.contains("[77]: 77 (rank 0) and 78 (rank 0)")
            && ran.out.contains("[76]: 76 (rank 2) and 77 (rank 0)"),
        "{ran:?}"
    );
    assert!(ran.out.contains("2 of 2 regions differ") && !ran.out.contains("only in"), "{ran:?}");
}
