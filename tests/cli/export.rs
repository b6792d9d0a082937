//! `bivouac export`: regions as arrays that NumPy reads.
#![forbid(unsafe_code)]

use crate::store;
use crate::store::{Ran, Store, areas, bivouac, entries, field};
use bivouac_core::{Level, Session};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Runs `export` with its output in `folder`.
fn export(from: &Path, region: &str, output: &Path, more: &[&str]) -> Ran {
    let (from, output) = (from.to_str().expect("UTF-8"), output.to_str().expect("UTF-8"));
    bivouac(&[&["export", from, region, "-o", output], more].concat())
}

/// The header of a file, as text, and the elements in the file.
fn read(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("read");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(start.is_multiple_of(64) && bytes[start - 1] == b'\n');
    let words = std::str::from_utf8(&bytes[10..start]).expect("ASCII").trim_end().to_owned();
    (words, bytes[start..].to_vec())
}

fn header(descr: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
}

fn bytes_of(ranks: &[u32]) -> Vec<u8> {
    ranks.iter().flat_map(|rank| field(*rank, 10)).flat_map(f64::to_le_bytes).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The names in a folder, including those of hidden files.
fn names(folder: &TempDir) -> Vec<String> {
    entries(folder.path()).iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect()
}

#[test]
fn all_ranks_become_one_array_along_the_first_axis() {
    let (store, out) = (Store::with(&[10]), folder());
    let file = out.path().join("field.npy");
    for root in [store.global(), store.local()] {
        let checkpoint = store.folders(&root)[0].clone();
        let ran = export(&checkpoint, "field", &file, &["--json"]);
        assert_eq!(ran.status, 0, "{}", ran.err);
        let document = ran.json();
        assert_eq!(document["files"][0]["shape"], serde_json::json!([60, 50]));
        assert_eq!(document["files"][0]["ranks"], serde_json::json!([0, 1]));
        assert_eq!(read(&file), (header("<f8", "(60, 50)"), bytes_of(&[0, 1])), "{}", root.display());
    }
    let checkpoint = store.folders(&store.global())[0].clone();
    let text = export(&checkpoint, "few", &file, &[]);
    assert!(text.status == 0 && text.out.contains("<u2 (6,), ranks 0-1"), "{text:?}");
    assert_eq!(read(&file), (header("<u2", "(6,)"), [7u16, 8, 9, 7, 8, 9].map(u16::to_le_bytes).concat()));
    assert_eq!(export(&checkpoint, "none", &file, &[]).status, 0);
    assert_eq!(read(&file), (header("|u1", "(0,)"), Vec::new()));
    assert_eq!(names(&out), ["field.npy"]);
}

#[test]
fn one_rank_or_a_file_for_each() {
    let (store, out) = (Store::with(&[10]), folder());
    let checkpoint = store.folders(&store.global())[0].clone();
    let one = out.path().join("one.npy");
    let ran = export(&checkpoint, "field", &one, &["--rank", "1"]);
    assert!(ran.status == 0 && ran.out.ends_with("<f8 (30, 50), ranks 1\n"), "{ran:?}");
    assert_eq!(read(&one), (header("<f8", "(30, 50)"), bytes_of(&[1])));
    let ran = export(&checkpoint, "field", &out.path().join("each-{rank}.npy"), &[]);
    assert_eq!((ran.status, names(&out)), (0, vec!["each-0.npy".into(), "each-1.npy".into(), "one.npy".into()]));
    for rank in [0, 1] {
        assert_eq!(read(&out.path().join(format!("each-{rank}.npy"))).1, bytes_of(&[rank]));
    }
    // A container alone can be exported, even away from its folder.
    let away = out.path().join("away");
    std::fs::copy(checkpoint.join("c000000.bvc"), &away).expect("copied");
    assert_eq!(export(&away, "field", &one, &[]).status, 0);
    assert_eq!(read(&one), (header("<f8", "(60, 50)"), bytes_of(&[0, 1])));
}

#[test]
fn damage_leaves_no_file_and_replaces_none() {
    let (store, out) = (Store::with(&[10]), folder());
    let checkpoint = store.folders(&store.global())[0].clone();
    let container = checkpoint.join("c000000.bvc");
    let good = std::fs::read(&container).expect("read");
    let (_, body) = areas(&good).swap_remove(4);
    let mut bad = good.clone();
    bad[body.start + 5000] ^= 4;
    std::fs::write(&container, &bad).expect("written");
    let before = out.path().join("field.npy");
    std::fs::write(&before, "mine").expect("written");
    for (name, more) in
        [("new.npy", &[][..]), ("field.npy", &[]), ("part-{rank}.npy", &[]), ("x.npy", &["--rank", "0"])]
    {
        let ran = export(&checkpoint, "field", &out.path().join(name), more);
        assert_eq!((ran.status, names(&out)), (1, vec!["field.npy".to_owned()]), "{name}: {ran:?}");
        for word in ["global tier: ", "c000000.bvc", "\"field\"", "rank 0", "byte 4096", "expected", "bivouac verify"] {
            assert!(ran.err.contains(word), "{word}: {}", ran.err);
        }
    }
    assert_eq!(std::fs::read(&before).expect("read"), b"mine");
    // The other rank is good, and so is the other tier.
    assert_eq!(export(&checkpoint, "field", &before, &["--rank", "1"]).status, 0);
    assert_eq!(export(&store.folders(&store.local())[0], "field", &before, &[]).status, 0);
    std::fs::write(&container, &good[..good.len() / 2]).expect("written");
    assert_eq!(export(&checkpoint, "field", &out.path().join("new.npy"), &[]).status, 1);
    assert_eq!(names(&out), ["field.npy"]);
}

#[test]
fn what_cannot_be_exported_is_said() {
    let (store, out) = (Store::with(&[10, 20]), folder());
    let checkpoint = store.folders(&store.global())[0].clone();
    let file = out.path().join("x.npy");
    let expect = |ran: Ran, status: i32, words: &[&str]| {
        assert!(ran.status == status && words.iter().all(|word| ran.err.contains(word)), "{status} {words:?} {ran:?}");
    };
    expect(export(&checkpoint, "nosuch", &file, &[]), 3, &["no region \"nosuch\"", "field", "step"]);
    expect(export(&checkpoint, "field", &file, &["--rank", "5"]), 3, &["no shard of ranks 5", "ranks 0-1"]);
    expect(export(&checkpoint, "step", &file, &[]), 2, &["\"step\" is a value"]);
    let newest = store.folders(&store.global())[1].clone();
    let named = newest.canonicalize().expect("there").display().to_string();
    expect(export(&store.global(), "field", &file, &[]), 2, &["2 checkpoints", &named]);
    expect(export(out.path(), "field", &file, &[]), 3, &["holds no checkpoint"]);
    expect(export(&checkpoint.join("manifest"), "field", &file, &[]), 2, &["name a checkpoint folder"]);
    expect(export(&checkpoint, "field", &out.path().join("none/x.npy"), &[]), 2, &["cannot write", "os error 2"]);
    assert!(names(&out).is_empty());
}

/// Rank 1 saves an array of another width.
fn uneven(session: &Session, rank: u32) {
    let width = 4 + u64::from(rank);
    let field = vec![f32::from(u16::try_from(rank).expect("small")); 3 * width as usize];
    let scalar = [u64::from(rank)];
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    checkpoint.save_shaped("field", &field, &[3, width]).expect("a region");
    checkpoint.save_shaped("scalar", &scalar, &[]).expect("a region");
    let pending = checkpoint.capture().expect("captured");
    pending.wait(Level::System).expect("committed");
}

#[test]
fn parts_that_do_not_fit_together_are_refused_and_can_be_had_one_by_one() {
    let (store, out) = (Store::empty(), folder());
    store.run(|_| (), uneven);
    let checkpoint = store.folders(&store.global())[0].clone();
    let file = out.path().join("x.npy");
    let ran = export(&checkpoint, "field", &file, &[]);
    assert!(ran.status == 2 && ran.err.contains("rank 0 has <f4 (3, 4), rank 1 has <f4 (3, 5)"), "{ran:?}");
    assert!(ran.err.contains("{rank}") && ran.err.contains("--rank"), "{ran:?}");
    assert!(names(&out).is_empty());
    assert_eq!(export(&checkpoint, "field", &out.path().join("field-{rank}.npy"), &[]).status, 0);
    assert_eq!(names(&out), ["field-0.npy", "field-1.npy"]);
    // Values become an array with one element for each rank.
    assert_eq!(export(&checkpoint, "scalar", &file, &[]).status, 0);
    assert_eq!(read(&file), (header("<u8", "(2,)"), [0u64, 1].map(u64::to_le_bytes).concat()));
    assert_eq!(export(&checkpoint, "scalar", &file, &["--rank", "1"]).status, 0);
    assert_eq!(read(&file), (header("<u8", "()"), 1u64.to_le_bytes().to_vec()));
}

#[test]
fn a_nodes_part_of_a_checkpoint_is_not_taken_for_all_of_it() {
    let (store, out) = (Store::on(&[0, 1]), folder());
    store.run(|_| (), |session, rank| store::take(session, rank, &[10], Level::System));
    let checkpoint = store.folders(&store.local_of(1))[0].clone();
    let file = out.path().join("x.npy");
    let ran = export(&checkpoint, "field", &file, &[]);
    assert!(ran.status == 2 && ran.err.contains("ranks 1 of 2 are here") && ran.err.contains("global tier"), "{ran:?}");
    assert_eq!(export(&checkpoint, "field", &file, &["--rank", "1"]).status, 0);
    // On the global tier, a missing container is an error and does not give a smaller array.
    let whole = store.folders(&store.global())[0].clone();
    let containers: Vec<PathBuf> =
        entries(&whole).into_iter().filter(|path| path.extension().is_some_and(|it| it == "bvc")).collect();
    assert_eq!(containers.len(), 2);
    std::fs::remove_file(&containers[1]).expect("removed");
    let ran = export(&whole, "field", &file, &[]);
    assert!(ran.status == 3 && ran.err.contains("no shard of ranks 1"), "{ran:?}");
}

#[test]
fn numpy_reads_what_was_written() {
    let works = |python: &&str| {
        Command::new(python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(works) else {
        return println!("SKIPPED: reading arrays in Python (no python3 here has numpy)");
    };
    let (store, out) = (Store::with(&[10]), folder());
    let checkpoint = store.folders(&store.global())[0].clone();
    assert_eq!(export(&checkpoint, "field", &out.path().join("all.npy"), &[]).status, 0);
    assert_eq!(export(&checkpoint, "few", &out.path().join("few-{rank}.npy"), &[]).status, 0);
    let program = "
import numpy as np
whole = np.load('all.npy', mmap_mode='r')
assert whole.shape == (60, 50) and whole.dtype == np.float64, whole
want = np.arange(1500).reshape(30, 50) + 1e5
assert np.array_equal(whole, np.concatenate([want, want + 1]))
assert [np.load(f'few-{rank}.npy').tolist() for rank in range(2)] == [[7, 8, 9]] * 2
";
    let ran = Command::new(python).args(["-c", program]).current_dir(out.path()).output().expect("runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
