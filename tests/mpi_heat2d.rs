//! The example under a real `mpirun`: its digest depends neither on the number of ranks nor on earlier kills.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The example, which Cargo builds with the tests: `target/<profile>/examples/heat2d`.
fn heat2d() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/heat2d");
    assert!(path.exists(), "{} is missing: cargo build --example heat2d", path.display());
    path
}

/// Runs heat2d on a small grid; `options` are added to the command line.
fn run(ranks: usize, folder: &Path, options: &[&str]) -> Output {
    command(ranks, folder, options).output().unwrap()
}

fn command(ranks: usize, folder: &Path, options: &[&str]) -> Command {
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let memory = folder.join("memory");
    std::fs::create_dir_all(&memory).unwrap();
    let mut command = Command::new(launcher);
    command
        .args(["-n", &ranks.to_string()])
        .arg(heat2d())
        .args(["--grid", "93x71", "--steps", "120", "--dir"])
        .arg(folder)
        .args(options)
        .env("BIVOUAC_JOB_NAME", format!("test-{}", folder.file_name().unwrap().to_str().unwrap()))
        .env("BIVOUAC_LOCAL_ALLOW_TMPFS", "true")
        .env("BIVOUAC_MEMORY_DIRECTORY", &memory)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
}

/// A folder in shared memory, where the memory tier works and nothing outlives the test.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap()
}

/// The rest of the line that starts with `word`, if there is exactly one.
fn line(output: &Output, word: &str) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned());
    let found = lines.next();
    assert!(lines.next().is_none(), "several lines start with {word:?}:\n{text}");
    found
}

fn digest(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{errors}", output.status);
    line(output, "digest").unwrap_or_else(|| panic!("no digest\n{errors}"))
}

#[test]
fn the_digest_does_not_depend_on_the_number_of_ranks() {
    let alone = digest(&run(1, folder().path(), &[]));
    for ranks in [2, 3, 4, 6] {
        assert_eq!(digest(&run(ranks, folder().path(), &[])), alone, "{ranks} ranks");
    }
}

#[test]
fn a_run_that_was_killed_and_started_again_ends_with_the_same_digest() {
    let calm = digest(&run(4, folder().path(), &["--every", "10"]));
    let folder = folder();
    let killed = run(4, folder.path(), &["--every", "10", "--wait", "system", "--die-at", "75:2"]);
    assert!(!killed.status.success() && line(&killed, "digest").is_none(), "rank 2 outlived its own SIGKILL");
    let again = run(4, folder.path(), &["--every", "10", "--die-at", "60:1"]);
    assert_eq!(digest(&again), calm);
    let restored = line(&again, "restored").unwrap_or_default();
    assert!(restored.starts_with("version=70 "), "restored {restored:?}");
}

/// The restarts load from node memory, and from the files of a job whose memory is gone.
#[test]
fn a_run_that_was_killed_goes_on_with_more_or_fewer_ranks() {
    let calm = digest(&run(4, folder().path(), &["--every", "10"]));
    for (level, memory) in [("process", true), ("system", false)] {
        let folder = folder();
        let killed = run(4, folder.path(), &["--every", "10", "--wait", level, "--die-at", "45:2"]);
        assert!(!killed.status.success(), "rank 2 outlived its own SIGKILL");
        for (ranks, version, next) in [(3, 40, "65:1"), (1, 60, "85:0"), (6, 80, "500:0")] {
            if !memory {
                std::fs::remove_dir_all(folder.path().join("memory")).unwrap();
            }
            let again = run(ranks, folder.path(), &["--every", "10", "--wait", level, "--die-at", next]);
            let restored = line(&again, "restored").unwrap_or_default();
            let errors = String::from_utf8_lossy(&again.stderr);
            assert!(restored.starts_with(&format!("version={version} ")), "restored {restored:?}\n{errors}");
            let tier = if memory { "tier=memory" } else { "tier=" };
            assert!(restored.contains(tier), "restored {restored:?}");
            match ranks {
                6 => assert_eq!(digest(&again), calm),
                _ => assert!(!again.status.success(), "rank 0 outlived its own SIGKILL"),
            }
        }
    }
}

/// Even if only the session's own calls advance messages (`engine.progress`), the messages between ranks in a load arrive.
#[test]
fn a_stepped_run_that_was_killed_on_4_goes_on_with_3_ranks() {
    let stepped = |ranks, folder: &Path, options: &[&str]| {
        command(ranks, folder, options).env("BIVOUAC_ENGINE_PROGRESS", "stepped").output().unwrap()
    };
    let calm = digest(&run(4, folder().path(), &["--every", "10"]));
    for (level, memory) in [("process", true), ("system", false)] {
        let folder = folder();
        let killed = stepped(4, folder.path(), &["--every", "10", "--wait", level, "--die-at", "45:2"]);
        assert!(!killed.status.success(), "rank 2 outlived its own SIGKILL");
        if !memory {
            std::fs::remove_dir_all(folder.path().join("memory")).unwrap();
        }
        let again = stepped(3, folder.path(), &["--every", "10", "--wait", level]);
        assert_eq!(digest(&again), calm);
        let restored = line(&again, "restored").unwrap_or_default();
        assert!(restored.starts_with("version=40 "), "restored {restored:?}");
    }
}

#[test]
fn a_checkpoint_of_another_problem_is_refused_by_name() {
    let folder = folder();
    digest(&run(2, folder.path(), &["--every", "50", "--wait", "system"]));
    let other = run(2, folder.path(), &["--border", "fixed"]);
    let errors = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && line(&other, "digest").is_none());
    assert!(errors.contains("border Insulated") && errors.contains("border Fixed"), "{errors}");
}
