//! `bivouac extract`: decomposed arrays are put together, and compared element by element with what the test knows.
#![forbid(unsafe_code)]

use crate::limit;
use crate::store::{Ran, Store, areas, bivouac, entries, with_path};
use bivouac_core::config::Method;
use bivouac_core::{Boxes, OnResize, Session};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The extents of the array of which all ranks have parts.
const SHAPE: [u64; 3] = [9, 40, 33];
/// Extents of an array that the ranks do not cover.
const LEVEL: [u64; 2] = [50, 60];
const RANKS: u32 = 4;

/// The value of an element in a version: no two are alike.
fn element(version: u64, at: [u64; 3]) -> f64 {
    let place = (at[0] * SHAPE[1] + at[1]) * SHAPE[2] + at[2];
    // Only some elements change with the version, so that most blocks stay the same.
    place as f64 + if at[0] == 0 && at[1] < 3 { 1e6 * version as f64 } else { 0.5 }
}

/// A box by its first element and its extent.
type Own = ([u64; 3], [u64; 3]);

/// The boxes of each rank: the array is cut again and again, at random places, and the pieces are dealt out.
fn dealt() -> Vec<Vec<Own>> {
    let mut pieces: Vec<Own> = vec![([0; 3], SHAPE)];
    let mut random = 12345u64;
    for _ in 0..60 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (which, dim) = ((random >> 33) as usize % pieces.len(), (random >> 20) as usize % 3);
        let (mut low, mut high) = (pieces[which], pieces[which]);
        let cut = (random >> 40) % low.1[dim].max(1);
        low.1[dim] = cut;
        high.0[dim] += cut;
        high.1[dim] -= cut;
        (pieces[which], _) = (low, pieces.push(high));
    }
    (0..RANKS as usize).map(|rank| pieces.iter().skip(rank).step_by(RANKS as usize).copied().collect()).collect()
}

/// The memory of a box with a margin of one element, which is not part of the array.
fn memory(version: u64, (from, extent): Own) -> Vec<f64> {
    let sides = extent.map(|extent| extent + 2);
    let mut memory = vec![f64::NAN; sides.iter().product::<u64>() as usize];
    for z in 0..extent[0] {
        for y in 0..extent[1] {
            for x in 0..extent[2] {
                let place = ((z + 1) * sides[1] + y + 1) * sides[2] + x + 1;
                memory[place as usize] = element(version, [from[0] + z, from[1] + y, from[2] + x]);
            }
        }
    }
    memory
}

/// Patches of a level: for each rank, a column of five patches with gaps between them.
fn patches(rank: u32) -> Boxes {
    (0..5).fold(Boxes::of(LEVEL).sparse(), |boxes, at| boxes.own([10 * at, 12 * u64::from(rank)], [5, 7]))
}

fn take(session: &Session, rank: u32, version: u64) {
    let own = &dealt()[rank as usize];
    let boxes = own.iter().fold(Boxes::of(SHAPE), |boxes, (from, extent)| boxes.own(*from, *extent)).halo([1; 3]);
    let (boxes, level) = (session.decompose(boxes).expect("boxes"), session.decompose(patches(rank)).expect("patches"));
    let memory: Vec<Vec<f64>> = own.iter().map(|own| memory(version, *own)).collect();
    let memory: Vec<&[f64]> = memory.iter().map(Vec::as_slice).collect();
    let own_array = [rank];
    let patch: Vec<i16> = (0..35).map(|at| at - 10 * rank as i16).collect();
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
    checkpoint.save_boxes_on("t", &boxes, &memory).expect("a region");
    checkpoint.save_boxes_on("level", &level, &[patch.as_slice(); 5]).expect("a region");
    checkpoint.save("own", &own_array).expect("a region");
    checkpoint.value("other", &rank).expect("a value");
    checkpoint.shared("step", &version).expect("a value");
    checkpoint.per_rank("seed", &rank, OnResize::Ask).expect("a value");
    let pending = checkpoint.capture().expect("captured");
    // Checkpoints do not refer to files that are still on their way to a tier.
    limit::wait_until("all levels end", || pending.poll());
}

/// A store of two nodes with two versions, the second of which refers to the first.
fn store() -> Store {
    let store = Store::on(&[0, 0, 1, 1]);
    let refers = |config: &mut bivouac_core::config::Config| config.job.reduction.method = Method::Basic;
    store.run(refers, |session, rank| [10, 20].into_iter().for_each(|version| take(session, rank, version)));
    store
}

fn extract(from: &Path, region: &str, output: &Path, more: &[&str]) -> Ran {
    let (from, output) = (from.to_str().expect("UTF-8"), output.to_str().expect("UTF-8"));
    bivouac(&[&["extract", from, region, "-o", output], more].concat())
}

/// The header of a file, and the bytes after it.
fn read(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("read");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let words = std::str::from_utf8(&bytes[10..start]).expect("ASCII").trim_end().to_owned();
    (words, bytes[start..].to_vec())
}

fn header(descr: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
}

/// The values of the elements of a box, in C order.
fn expected(version: u64, sides: [std::ops::Range<u64>; 3]) -> Vec<u8> {
    let [zs, ys, xs] = sides;
    let mut bytes = Vec::new();
    for z in zs {
        for y in ys.clone() {
            bytes.extend(xs.clone().flat_map(|x| element(version, [z, y, x]).to_le_bytes()));
        }
    }
    bytes
}

fn is_empty(folder: &TempDir) -> bool {
    entries(folder.path()).is_empty()
}

fn folder_of(store: &Store, version: u64) -> PathBuf {
    let folders = store.folders(&store.global());
    let found = folders.iter().find(|folder| folder.to_string_lossy().contains(&format!("-v{version:010}-")));
    found.expect("it is there").clone()
}

#[test]
fn every_element_is_at_its_place_whatever_the_ranks_had() {
    let (store, out) = (store(), tempfile::tempdir().expect("a folder"));
    let file = out.path().join("t.npy");
    let [depth, rows, columns] = SHAPE;
    for version in [10, 20] {
        let folder = folder_of(&store, version);
        let ran = extract(&folder, "t", &file, &["--json"]);
        assert_eq!(ran.status, 0, "{}", ran.err);
        let document = ran.json();
        assert_eq!((&document["shape"], &document["filled"]), (&serde_json::json!(SHAPE), &0.into()), "{document}");
        assert!(read(&file) == (header("<f8", "(9, 40, 33)"), expected(version, [0..depth, 0..rows, 0..columns])));
        for (text, shape, sides) in [
            ("8,:,:", "(1, 40, 33)", [8..9, 0..rows, 0..columns]),
            ("2:5,17:18,-4:-1", "(3, 1, 3)", [2..5, 17..18, 29..32]),
            (":,-1,5", "(9, 1, 1)", [0..depth, 39..40, 5..6]),
            ("3:3,:,:", "(0, 40, 33)", [3..3, 0..rows, 0..columns]),
        ] {
            let ran = extract(&folder, "t", &file, &["--box", text]);
            assert_eq!(ran.status, 0, "{text}: {}", ran.err);
            assert!(ran.out.contains(&format!("<f8 {shape}, from (")) && ran.out.contains("of (9, 40, 33)"), "{ran:?}");
            assert!(read(&file) == (header("<f8", shape), expected(version, sides)), "{text}");
        }
    }
    // The second version cannot be read without the first one.
    let text = with_path(&["inspect"], &folder_of(&store, 20)).out;
    assert!((0..RANKS).all(|rank| text.contains(&format!("packed shard of rank {rank}"))), "{text}");
    // A container away from its folder holds only the shards of one node.
    let away = out.path().join("away");
    std::fs::copy(folder_of(&store, 10).join("c000000.bvc"), &away).expect("copied");
    let ran = extract(&away, "t", &file, &[]);
    assert!(ran.status == 3 && ran.err.contains("because only the shards of ranks 0-1 of 4 are"), "{ran:?}");
}

/// In some versions all regions are decomposed; one version has a region that belongs to its rank alone.
#[test]
fn versions_that_can_be_restored_on_other_ranks_are_listed_so() {
    let store = Store::empty();
    let refers = |config: &mut bivouac_core::config::Config| config.job.reduction.method = Method::Basic;
    store.run(refers, |session, rank| {
        let (rows, own) = (Boxes::of([2000]).own([1000 * u64::from(rank)], [1000]), [rank; 7]);
        let (rows, data) = (session.decompose(rows).expect("rows"), [1.5f64; 1000]);
        for version in [10, 20, 30] {
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
            checkpoint.save_on("t", &rows, &data).expect("a region");
            checkpoint.per_rank("seed", &rank, OnResize::Drop).expect("a value");
            if version == 20 {
                checkpoint.save("own", &own).expect("a region");
            }
            let pending = checkpoint.capture().expect("captured");
            limit::wait_until("all levels end", || pending.poll());
        }
    });
    for root in [store.global(), store.local()] {
        let document = with_path(&["ls", "--json"], &root).json();
        let rows = document["checkpoints"].as_array().expect("a list");
        let said: Vec<_> = rows.iter().map(|row| (row["version"].as_u64(), row["resizable"].as_bool())).collect();
        assert_eq!(said, [(Some(30), Some(true)), (Some(20), Some(false)), (Some(10), Some(true))], "{document}");
        assert!(rows.iter().all(|row| row["group_size"] == 2), "{document}");
        let text = with_path(&["ls"], &root).out;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].trim_end().ends_with("OTHER RANKS") && lines[2].trim_end().ends_with("no"), "{text}");
        assert!([1, 3].iter().all(|line| lines[*line].trim_end().ends_with("yes")), "{text}");
    }
    // Nothing is reported for a version that cannot be restored.
    let newest = store.folders(&store.global()).pop().expect("three");
    std::fs::write(newest.join("manifest"), "no manifest").expect("written");
    let document = with_path(&["ls", "--json"], &newest).json();
    assert!(document["checkpoints"][0]["resizable"].is_null(), "{document}");
}

#[test]
fn what_nobody_saved_is_an_error_or_filled() {
    let (store, out) = (store(), tempfile::tempdir().expect("a folder"));
    let (folder, file) = (folder_of(&store, 10), out.path().join("level.npy"));
    let ran = extract(&folder, "level", &file, &[]);
    assert!(ran.status == 3 && ran.err.contains("elements [0, 7..12] were saved by no rank"), "{ran:?}");
    assert!(is_empty(&out));
    let level = |rows: std::ops::Range<u64>, columns: std::ops::Range<u64>, fill: i16| -> Vec<u8> {
        let at = |y: u64, x: u64| match (y % 10 < 5 && x % 12 < 7) && x < 48 {
            true => (y % 10 * 7 + x % 12) as i16 - 10 * (x / 12) as i16,
            false => fill,
        };
        rows.flat_map(|y| columns.clone().map(move |x| (y, x))).flat_map(|(y, x)| at(y, x).to_le_bytes()).collect()
    };
    let ran = extract(&folder, "level", &file, &["--fill", "-7"]);
    assert!(ran.status == 0 && ran.out.ends_with("<i2 (50, 60), 2300 elements filled\n"), "{ran:?}");
    assert!(read(&file) == (header("<i2", "(50, 60)"), level(0..50, 0..60, -7)));
    let ran = extract(&folder, "level", &file, &["--box", "20:25,24:31"]);
    assert!(ran.status == 0 && read(&file).1 == level(20..25, 24..31, 0), "{ran:?}");
    for (more, text) in [
        (&["--fill", "1.5"][..], "--fill \"1.5\" does not fit: the elements are 16-bit integers"),
        (&["--box", "0:51,:"], "\"0:51\" is not inside an extent of 50"),
        (&["--box", "0:5"], "has 1 ranges, but the array of shape [50, 60] has 2"),
        (&["--box", "0:5,a"], "\"a\" is not a range"),
    ] {
        let ran = extract(&folder, "level", &file, more);
        assert!(ran.status == 2 && ran.err.contains(text), "{ran:?}");
    }
    let ran = extract(&folder, "t", &file, &["--fill", "0"]);
    assert!(ran.status == 2 && ran.err.contains("not sparse: omit --fill"), "{ran:?}");
}

#[test]
fn one_node_gives_what_its_ranks_had_and_no_more() {
    let (store, out) = (store(), tempfile::tempdir().expect("a folder"));
    let (folder, file) = (store.folders(&store.local_of(1))[0].clone(), out.path().join("t.npy"));
    let ran = extract(&folder, "t", &file, &[]);
    assert!(
        ran.status == 3 && ran.err.contains("because only the shards of ranks 2-3 of 4 are: name the folder"),
        "{ran:?}"
    );
    // Missing elements may have been saved, so they are not filled either.
    let ran = extract(&folder, "level", &file, &["--fill", "0"]);
    assert!(ran.status == 3 && ran.err.contains("elements [0, 0..24] are not here"), "{ran:?}");
    assert!(is_empty(&out));
    let ran = extract(&folder, "level", &file, &["--box", "10:15,24:31"]);
    assert_eq!((ran.status, read(&file).0), (0, header("<i2", "(5, 7)")), "{}", ran.err);
    // The boxes of rank 3 are extracted one by one.
    for (from, extent) in dealt()[3].iter().filter(|(_, extent)| extent.iter().product::<u64>() > 0) {
        let range = |dim: usize| from[dim]..from[dim] + extent[dim];
        let text = [0, 1, 2].map(|dim| format!("{}:{}", range(dim).start, range(dim).end)).join(",");
        let ran = extract(&folder, "t", &file, &["--box", &text]);
        assert!(ran.status == 0 && read(&file).1 == expected(10, [range(0), range(1), range(2)]), "{text}: {ran:?}");
    }
}

#[test]
fn what_is_no_array_is_said_with_what_shows_it() {
    let (store, out) = (store(), tempfile::tempdir().expect("a folder"));
    let (folder, file) = (folder_of(&store, 10), out.path().join("t.npy"));
    for (region, status, words) in [
        ("step", 2, ["is a value that all ranks share", "bivouac inspect "]),
        ("seed", 2, ["is a value of each rank, not an array", "bivouac inspect "]),
        ("other", 2, ["is a value that each rank has for itself", "bivouac inspect "]),
        ("own", 2, ["each rank has its own", " own -o FILE writes it"]),
        ("nosuch", 3, ["has no region \"nosuch\"", "level"]),
    ] {
        let ran = extract(&folder, region, &file, &[]);
        assert!(ran.status == status && words.iter().all(|word| ran.err.contains(word)), "{region}: {ran:?}");
    }
    let ran = extract(&store.global(), "t", &file, &[]);
    assert!(ran.status == 2 && ran.err.contains("2 checkpoints"), "{ran:?}");
    let ran = extract(&folder, "t", &out.path().join("none/t.npy"), &[]);
    assert!(ran.status == 2 && ran.err.contains("cannot write"), "{ran:?}");
    assert!(is_empty(&out));
}

#[test]
fn damage_leaves_no_file_and_concerns_only_who_asks_for_it() {
    let (store, out) = (store(), tempfile::tempdir().expect("a folder"));
    let (folder, file) = (folder_of(&store, 10), out.path().join("t.npy"));
    let container = folder.join("c000000.bvc");
    let mut bytes = std::fs::read(&container).expect("read");
    // This is the first byte of the first block of rank 0, which holds its first boxes.
    let (name, body) = areas(&bytes).swap_remove(4);
    assert_eq!(name, "body");
    bytes[body.start] ^= 1;
    std::fs::write(&container, &bytes).expect("written");
    std::fs::write(&file, "mine").expect("written");
    let ran = extract(&folder, "t", &file, &[]);
    assert_eq!(ran.status, 1, "{ran:?}");
    for word in ["c000000.bvc", "\"t\" of rank 0", "another tier may have a good copy"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
    assert_eq!((entries(out.path()).len(), std::fs::read(&file).expect("read")), (1, b"mine".to_vec()));
    // A box of another rank is not affected.
    let (from, extent) = *dealt()[3].iter().find(|(_, extent)| extent.iter().product::<u64>() > 0).expect("some");
    let range = |dim: usize| from[dim]..from[dim] + extent[dim];
    let text = [0, 1, 2].map(|dim| format!("{}:{}", range(dim).start, range(dim).end)).join(",");
    let ran = extract(&folder, "t", &file, &["--box", &text]);
    assert!(ran.status == 0 && read(&file).1 == expected(10, [range(0), range(1), range(2)]), "{ran:?}");
}
