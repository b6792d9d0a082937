//! Pages on NUMA nodes, in machines that have several: `numa/machine.sh` boots the machines in QEMU, and `programs/numa_pages.rs` places
//! pages there and checks where they are. Each of its scenarios first checks that pages are not yet where they are wanted.
#![cfg(feature = "numa")]
#![forbid(unsafe_code)]

#[path = "numa/mod.rs"]
mod machines;

use machines::{program, script, text};
use std::path::Path;
use std::process::{Command, Stdio};

/// The scenarios that every machine can run.
const SCENARIOS: [&str; 7] = ["calls", "scanned", "fresh", "touched", "neighbours", "held", "not-own"];

/// Can machines be booted here?
fn can() -> bool {
    machines::can("placing pages", "numa")
}

fn is_whole() -> bool {
    machines::is_whole("numa")
}

/// Runs scenarios in a machine with these options.
fn run(options: &[&str], scenarios: &[&str]) {
    if !can() {
        return;
    }
    let program = program("numa-pages");
    let mut command = Command::new(script());
    // Memory that a program requests in large pieces always begins untouched.
    command.env("MALLOC_MMAP_THRESHOLD_", "131072").args(["--limit", "400"]).args(options).arg("--").arg(program);
    let output = command.args(scenarios).stdin(Stdio::null()).output().unwrap();
    let out = text(&output);
    println!("{out}");
    assert!(output.status.success(), "{}: {out}", output.status);
    for scenario in scenarios {
        assert!(out.lines().any(|line| line.starts_with(&format!("passed {scenario} "))), "{scenario}: {out}");
    }
}

#[test]
fn four_nodes_with_small_pages() {
    if is_whole() {
        run(
            &["--nodes", "4", "--memory", "1024", "--huge", "never"],
            &[&SCENARIOS[..], &["full", "forbidden"]].concat(),
        );
    }
}

#[test]
fn four_nodes_with_huge_pages() {
    run(&["--nodes", "4", "--memory", "1024", "--huge", "always"], &[&SCENARIOS[..], &["full"]].concat());
}

#[test]
fn two_nodes_whose_system_moves_pages_by_itself() {
    if is_whole() {
        run(&["--nodes", "2", "--cpus", "4", "--memory", "768", "--balancing"], &SCENARIOS);
    }
}

#[test]
fn eight_nodes_in_a_ring_of_which_one_has_no_memory() {
    let options = ["--nodes", "8", "--memoryless", "1", "--memory", "1792", "--ring", "--huge", "always"];
    run(&options, &SCENARIOS);
}

/// Tests the machine itself: it has what was requested, and passes on a command's exit status.
#[test]
fn a_machine_is_as_it_was_asked_for_and_passes_statuses_on() {
    if !can() {
        return;
    }
    let machine = |words: &[&str]| Command::new(script()).args(words).stdin(Stdio::null()).output().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("numa-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let shared = folder.to_str().unwrap();
    let look = format!(
        "cat /sys/devices/system/node/has_memory /sys/devices/system/node/has_cpu; \
         cat /sys/devices/system/node/node0/distance /proc/sys/kernel/numa_balancing \
             /sys/kernel/mm/transparent_hugepage/enabled; \
         echo kept > {shared}/file; touch {0}/not-kept; echo said >&2; exit 7",
        env!("WORKSPACE_ROOT")
    );
    let options = ["--nodes", "4", "--memoryless", "1", "--ring", "--huge", "never", "--share", shared, "--"];
    let output = machine(&[&options[..], &["bash", "-c", &look]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(out.lines().collect::<Vec<_>>(), ["0-2", "0-3", "10 20 30 20", "0", "always madvise [never]"]);
    // The first machine after a change of its parts prints first that it is being made.
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().last(), Some("said"));
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "kept\n");
    assert!(!Path::new(env!("WORKSPACE_ROOT")).join("not-kept").exists());
    std::fs::remove_dir_all(&folder).unwrap();
    let over = machine(&["--nodes", "1", "--cpus", "1", "--memory", "256", "--limit", "1", "--", "sleep", "99"]);
    assert_eq!(over.status.code(), Some(124), "{}", text(&over));
    for wrong in [&["--nodes", "0", "--", "true"][..], &["--memoryless", "4", "--", "true"], &["--nodes"], &["--what"]]
    {
        assert_eq!(machine(wrong).status.code(), Some(125), "{wrong:?}");
    }
}
