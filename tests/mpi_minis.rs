//! The mini-apps of `mpi-examples/minis.rs` under a real `mpirun`, on the host twin of a GPU. A run that takes checkpoints while it
//! computes, is killed and is launched again ends with the same bits as an undisturbed run. A declaration that is left out is found.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

/// Each rank has 2 MiB, and takes four checkpoints.
const SMALL: [&str; 4] = ["--mib", "2", "--steps", "10"];

/// The example, which Cargo builds with the tests: `target/<profile>/examples/minis`.
fn minis() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/minis");
    assert!(path.exists(), "{} is missing: cargo build --example minis", path.display());
    path
}

/// A folder in shared memory, where the memory tier works and nothing outlives the test.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap()
}

/// Runs an app with a buffer of 1 MiB. Returns `None` if there is no `mpirun`.
fn run(app: &str, folder: &Path, options: &[&str]) -> Option<Output> {
    let memory = folder.join("memory");
    std::fs::create_dir_all(&memory).unwrap();
    let job = format!("test-{}", folder.file_name()?.to_str()?);
    let env = [
        ("BIVOUAC_JOB_NAME", job.as_str()),
        ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true"),
        ("BIVOUAC_MEMORY_DIRECTORY", memory.to_str()?),
        ("BIVOUAC_MEMORY_BUDGET", "768 MiB"),
        ("BIVOUAC_DEVICE_BUDGET", "4 MiB"),
        ("BIVOUAC_OFFLOAD_BUFFER", "1 MiB"),
        ("BIVOUAC_OFFLOAD_MODE", "always"),
    ];
    let program = minis();
    let args = [program.to_str()?, app, "--every", "2", "--dir", folder.to_str()?];
    let args: Vec<&str> = args.into_iter().chain(options.iter().copied()).collect();
    common::mpirun(2, &args, &env)
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
    value(text, name).trim_end_matches(',').parse().unwrap_or_else(|error| panic!("{name} {error}\n{text}"))
}

fn check(app: &str) {
    let Some(calm) = run(app, folder().path(), &[&SMALL[..], &["--how", "none"]].concat()) else { return };
    let calm = text(&calm);
    let folder = folder();
    let options = ["--wait", "--die-at", "7"];
    let killed = run(app, folder.path(), &[&SMALL[..], &options].concat()).unwrap();
    let printed = String::from_utf8_lossy(&killed.stdout);
    assert!(
        !killed.status.success() && !printed.contains("digest"),
        "the last rank outlived its own SIGKILL\n{printed}"
    );
    // The next run continues after the kill.
    let again = text(&run(app, folder.path(), &[&SMALL[..], &["--wait"]].concat()).unwrap());
    assert_eq!(
        (value(&again, "digest "), number(&again, "restored version=")),
        (value(&calm, "digest "), 6),
        "{again}"
    );
    assert_eq!((number(&again, "marks="), number(&again, "refused=")), (1, 0), "{again}");
    // This run takes all checkpoints, in the second slot and in the first one again, and nobody waits for anything.
    let folder = self::folder();
    let whole = text(&run(app, folder.path(), &SMALL).unwrap());
    assert_eq!((value(&whole, "digest "), number(&whole, "refused=")), (value(&calm, "digest "), 0), "{whole}");
    assert!(number(&whole, "marks=") >= 2, "{whole}");
    assert_eq!(whole.matches("level=system").count(), 4, "{whole}");
}

#[test]
fn stencil() {
    check("stencil");
}

#[test]
fn cg() {
    check("cg");
}

#[test]
fn particles() {
    check("particles");
}

#[test]
fn amr() {
    check("amr");
}

#[test]
fn sweep() {
    check("sweep");
}

#[test]
fn rtm() {
    check("rtm");
}

#[test]
fn who_leaves_a_declaration_out_is_told_which_bytes_and_computes_on() {
    let large = ["--mib", "96", "--steps", "4"];
    let Some(calm) = run("cg", folder().path(), &[&large[..], &["--how", "none"]].concat()) else { return };
    let folder = folder();
    // Sending everything takes some seconds, the matrix first; the app writes to the solution at once, even on a busy machine.
    let options = ["--link", "30", "--forget", "solution"];
    let output = run("cg", folder.path(), &[&large[..], &options].concat()).unwrap();
    let (out, err) = (text(&output), String::from_utf8_lossy(&output.stderr));
    assert_eq!(value(&out, "digest "), value(&text(&calm), "digest "));
    assert_eq!(
        (number(&out, "marks="), number(&out, "refused="), number(&out, "refused version=")),
        (1, 1, 2),
        "{out}"
    );
    assert!(err.contains(r#"region \"x\" has changed in bytes 0 to "#) && err.contains("before_write"), "{err}");
}
