//! Programs under valgrind's memcheck: which of its findings this package's code caused.

use std::path::Path;
use std::process::Command;

/// Is valgrind installed? Prints a loud note if it is not.
pub fn can() -> bool {
    let is_there = Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        let program = env!("CARGO_CRATE_NAME");
        eprintln!(
            "SKIPPED: there is no valgrind: apt-get install valgrind; cargo nextest run --test {program} memcheck"
        );
    }
    is_there
}

/// The whole check takes a minute for each program: `BIVOUAC_TEST_MEMCHECK=all cargo nextest run memcheck`.
pub fn is_whole() -> bool {
    std::env::var("BIVOUAC_TEST_MEMCHECK").is_ok_and(|value| value == "all")
}

/// The arguments of valgrind for a program and its arguments. [`check`] reads the logs that valgrind writes into `folder`.
pub fn arguments(folder: &Path, program: &Path, options: &[&str]) -> Vec<String> {
    let log = format!("--log-file={}.%p", folder.join("memcheck").display());
    let no_mistakes = format!("--suppressions={}", super::root().join("tests/interfaces/memcheck.supp").display());
    let own = ["-q", "--fair-sched=yes", "--leak-check=full", "--show-leak-kinds=definite", "--num-callers=40"];
    let program = [program.to_str().expect("UTF-8")];
    own.iter().chain(&[&*no_mistakes, &log]).chain(&program).chain(options).map(|word| (*word).to_owned()).collect()
}

/// Fails if this package's code caused a finding, or if a rank was not watched. The logs are then removed: the next program has its own.
pub fn check(folder: &Path, ranks: usize) {
    let mut logs = 0;
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with("memcheck.") {
            logs += 1;
            let text = std::fs::read_to_string(entry.path()).expect("a log");
            let text = text.lines().filter(|line| !line.starts_with("--")).map(|line| format!("{line}\n"));
            let text = text.collect::<String>();
            let ours = text.split("== \n").filter(|finding| is_ours(finding));
            assert_eq!(ours.collect::<Vec<_>>().join("\n"), "");
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }
    assert_eq!(logs, ranks, "valgrind has watched every rank");
}

/// Did this package's code cause one of memcheck's findings? A finding in a library that it calls (MPI, hwloc and their
/// plugins) does not count.
pub fn is_ours(finding: &str) -> bool {
    let mut frames = finding.lines().filter(|line| line.contains(" at 0x") || line.contains(" by 0x"));
    let deciding = frames.find(|frame| !["vgpreload", "vg_replace"].iter().any(|c| frame.contains(c)));
    let ours = [".rs:", "libbivouac", "libveloc-client"];
    deciding.is_some_and(|frame| ours.iter().any(|place| frame.contains(place)))
}
