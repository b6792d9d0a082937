//! The graphlets under a real `mpirun`: their counts depend neither on the number of ranks, nor on the place of the counters, nor on
//! earlier kills. Files that refer to earlier ones are shorter.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

/// Each rank has counters of 1.2 MB.
const GRAPH: [&str; 6] = ["--graph", "delaunay", "--vertices", "4000", "--parts", "8"];

/// The example, which Cargo builds with the tests: `target/<profile>/examples/graphlets`.
fn graphlets() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/graphlets");
    assert!(path.exists(), "{} is missing: cargo build --example graphlets", path.display());
    path
}

/// A folder in shared memory, where the memory tier works and nothing outlives the test.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap()
}

/// Counts with a reduction method. Returns `None` if there is no `mpirun`.
fn run(ranks: u32, folder: &Path, method: &str, options: &[&str]) -> Option<Output> {
    let memory = folder.join("memory");
    std::fs::create_dir_all(&memory).unwrap();
    let job = format!("test-{}", folder.file_name()?.to_str()?);
    let env = [
        ("BIVOUAC_JOB_NAME", job.as_str()),
        ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true"),
        ("BIVOUAC_MEMORY_DIRECTORY", memory.to_str()?),
        ("BIVOUAC_MEMORY_BUDGET", "128 MiB"),
        ("BIVOUAC_DEVICE_BUDGET", "16 MiB"),
        ("BIVOUAC_REDUCTION_METHOD", method),
    ];
    let program = graphlets();
    let args = [program.to_str()?].into_iter().chain(GRAPH).chain(["--dir", folder.to_str()?]);
    let args: Vec<&str> = args.chain(options.iter().copied()).collect();
    common::mpirun(ranks, &args, &env)
}

/// The output of a run, which must have come to its end.
fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The word after `name`.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let rest = text.split(name).nth(1).unwrap_or_else(|| panic!("no {name:?}\n{text}"));
    rest.split_whitespace().next().unwrap_or_default()
}

fn number(text: &str, name: &str) -> u64 {
    value(text, name).parse().unwrap_or_else(|error| panic!("{name} {error}\n{text}"))
}

#[test]
fn the_digest_depends_neither_on_the_ranks_nor_on_where_the_counters_are() {
    let Some(alone) = run(1, folder().path(), "full", &[]) else { return };
    let alone = text(&alone);
    assert_eq!(value(&alone, "digest ").len(), 32, "{alone}");
    for (ranks, device) in [(3, "host"), (2, "twin")] {
        let other = text(&run(ranks, folder().path(), "full", &["--device", device]).unwrap());
        assert_eq!(value(&other, "digest "), value(&alone, "digest "), "{ranks} ranks, {device}");
        assert_eq!(number(&other, "stored_bytes="), 0, "with \"full\" nothing is left to others\n{other}");
    }
    let fewer = text(&run(1, folder().path(), "full", &["--size", "4"]).unwrap());
    assert_ne!(value(&fewer, "digest "), value(&alone, "digest "));
    assert_eq!(value(&fewer, "size=4 count="), value(&alone, "size=4 count="));
}

fn check_a_killed_run(device: &str) {
    let Some(calm) = run(4, folder().path(), "tree", &["--device", device]) else { return };
    let calm = text(&calm);
    let folder = folder();
    let options = ["--device", device, "--every", "1", "--wait", "--die-at", "5"];
    let killed = run(4, folder.path(), "tree", &options).unwrap();
    let printed = String::from_utf8_lossy(&killed.stdout);
    assert!(!killed.status.success() && !printed.contains("digest"), "the last rank outlived its own SIGKILL");
    let again = text(&run(4, folder.path(), "tree", &options).unwrap());
    assert_eq!(
        (value(&again, "digest "), number(&again, "restored version=")),
        (value(&calm, "digest "), 5),
        "{again}"
    );
    // Four ranks write three checkpoints to two tiers. The first is whole, after a restart as well.
    let [whole, packed] = ["whole=", "packed="].map(|name| number(&again, name));
    assert_eq!((whole, packed), (8, 16), "{again}");
    let [shards, stored] = ["shard_bytes=", "stored_bytes="].map(|name| number(&again, name));
    assert!(shards >= 24 * 4 * 73 * 4000 && stored * 2 < shards, "{stored} of {shards} bytes\n{again}");
}

#[test]
fn a_run_that_was_killed_and_started_again_ends_with_the_same_counts() {
    check_a_killed_run("host");
}

#[test]
fn so_does_one_whose_counters_are_in_the_memory_of_a_device() {
    check_a_killed_run("twin");
}

#[test]
fn a_checkpoint_of_another_graph_is_refused_by_name() {
    let folder = folder();
    let Some(first) = run(2, folder.path(), "tree", &["--every", "4", "--wait"]) else { return };
    text(&first);
    let other = run(2, folder.path(), "tree", &["--seed", "2"]).unwrap();
    let errors = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && !String::from_utf8_lossy(&other.stdout).contains("digest"));
    assert!(errors.contains("seed 1") && errors.contains("seed 2"), "{errors}");
}
