//! The C interface under a real `mpirun`: every function with its mistakes. The examples in C and C++ are killed and restarted.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod interfaces;
#[path = "common/limit.rs"]
mod limit;

use interfaces::memcheck::{self, is_ours};
use interfaces::{
    compile, compile_with, compiler, digest_after_kills, folder, gpu_program_ended, library_folder, line,
    live_program_ended, mpirun, printed, root,
};
use limit::LIMIT;
use std::path::{Path, PathBuf};
use std::process::Command;

fn heat2d(folder: &Path) -> PathBuf {
    compile(folder, "heat2d", &[root().join("mpi-examples/c/heat2d.c")], &["-ffp-contract=off"])
}

#[test]
fn every_function_does_what_the_header_says_of_it() {
    let folder = folder();
    // AddressSanitizer watches the C side and what the library writes there. Leaks in MPI are not this test's concern.
    let options = ["-pthread", "-fsanitize=address", "-fno-omit-frame-pointer"];
    let program = compile(folder.path(), "capi", &[root().join("tests/programs/c/capi.c")], &options);
    let output =
        mpirun(2, folder.path(), &program, &[]).env("ASAN_OPTIONS", "detect_leaks=0").output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches(r#"the checkpoint has regions that are not protected: "field""#).count(), 1, "{said}");
    let funneled = mpirun(2, folder.path(), &program, &["funneled"])
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .expect("started");
    assert_eq!(printed(&funneled).trim(), "ok");
}

#[test]
fn what_is_protected_has_node_memory_before_the_first_checkpoint() {
    let folder = folder();
    let program = compile(folder.path(), "capi", &[root().join("tests/programs/c/capi.c")], &["-pthread"]);
    let limit = LIMIT.as_secs().to_string();
    let output = mpirun(2, folder.path(), &program, &["ready", &limit]).output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
}

#[test]
fn who_is_missing_when_a_session_opens_is_said_while_the_others_wait() {
    let folder = folder();
    let program = compile(folder.path(), "capi", &[root().join("tests/programs/c/capi.c")], &["-pthread"]);
    let mut command = mpirun(2, folder.path(), &program, &["late"]);
    let output = command.env("BIVOUAC_TIMEOUTS_WARN", "100ms").output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.lines().any(|line| line.contains("event=waiting") && line.contains("[r1]")), "{said}");
}

/// A mistyped name in `bvk_restore`, or a forgotten call, looks like a first run: the series starts over, and the next run removes the old
/// versions. The tiny program calls restart only after its checkpoint.
#[test]
fn a_run_that_starts_a_series_over_is_told_once() {
    let folder = folder();
    let program = compile(folder.path(), "tiny", &[root().join("tests/programs/c/tiny.c")], &[]);
    for (run, memory_alone) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut command = mpirun(2, folder.path(), &program, &[]);
        command.env("BIVOUAC_JOB_NAME", if memory_alone { "in-memory" } else { "on-disk" });
        if memory_alone {
            // Data that is only in memory stays there if the run is killed, but not if it closes.
            command.env("BIVOUAC_LOCAL_ENABLED", "false").env("BIVOUAC_GLOBAL_ENABLED", "false");
        }
        let output = command.output().expect("started");
        assert!(printed(&output).starts_with("wrong 0"));
        let said = String::from_utf8_lossy(&output.stderr);
        let told: Vec<&str> = said.lines().filter(|line| line.contains("event=series-started-over")).collect();
        if run == 1 {
            assert!(told.is_empty(), "{said}");
        } else {
            let what = "name=\"tiny\" newest_before=\"version 1 of run 1\"";
            assert!(told.len() == 1 && told[0].contains(what), "memory alone: {memory_alone}\n{said}");
        }
    }
}

#[test]
fn a_restart_that_finds_nothing_of_a_name_says_what_there_is() {
    let folder = folder();
    let program = compile(folder.path(), "tiny", &[root().join("tests/programs/c/tiny.c")], &[]);
    let said = |ranks, args: &[&str]| {
        let output = mpirun(ranks, folder.path(), &program, args).output().expect("started");
        assert!(printed(&output).starts_with("wrong 0"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = said.lines().filter(|line| line.contains("event=nothing-to-restore"));
        lines.map(|line| line.split_once("event=").expect("it is there").1.to_owned()).collect::<Vec<_>>()
    };
    // A first run prints nothing.
    assert_eq!(said(2, &["tiny"]), [""; 0]);
    let typo = "nothing-to-restore name=\"tyni\": there is no checkpoint of that name, but there are some of \"tiny\"";
    assert_eq!(said(2, &["tyni"]), [typo]);
}

/// The options for a C++ standard, with the warnings that careful projects request. AddressSanitizer notices the use of memory
/// that a vector has left.
fn strictly(standard: &str) -> Vec<String> {
    let warnings = ["-Wshadow", "-Wconversion", "-Wold-style-cast", "-fsanitize=address", "-fno-omit-frame-pointer"];
    warnings.iter().map(|word| (*word).to_owned()).chain([format!("-std={standard}")]).collect()
}

#[test]
fn sessions_in_cpp_follow_vectors_and_leave_nobody_waiting() {
    for (standard, ranks) in [("c++11", 2), ("c++14", 2), ("c++20", 3)] {
        let folder = folder();
        let options = strictly(standard);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let program = compile(folder.path(), "sessions", &[root().join("tests/programs/c/sessions.cpp")], &options);
        let mut command = mpirun(ranks, folder.path(), &program, &[]);
        let output = command.env("ASAN_OPTIONS", "detect_leaks=0").output().expect("started");
        assert_eq!(printed(&output).trim(), "ok", "{standard}");
    }
}

#[test]
fn archives_of_cereal_are_regions() {
    if !Path::new("/usr/include/cereal/cereal.hpp").exists() {
        println!("SKIPPED: archives of cereal (libcereal-dev is not there; ci/setup.sh --with-tests installs it)");
        return;
    }
    let folder = folder();
    let program = compile(folder.path(), "archives", &[root().join("tests/programs/c/archives.cpp")], &["-std=c++17"]);
    let output = mpirun(2, folder.path(), &program, &[]).output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
}

/// Runs the C++ program for boxes and rows.
fn elastic_in_cpp(options: &[&str], ranks: usize) {
    let folder = folder();
    let program = compile(folder.path(), "elastic", &[root().join("tests/programs/c/elastic.cpp")], options);
    let output = mpirun(ranks, folder.path(), &program, &[]).env("ASAN_OPTIONS", "detect_leaks=0").output();
    assert_eq!(printed(&output.expect("started")).trim(), "ok", "{options:?}");
}

#[test]
fn boxes_and_rows_in_cpp_are_cut_and_dealt_anew() {
    elastic_in_cpp(&["-std=c++11"], 3);
}

#[test]
fn boxes_and_rows_in_cpp_touch_no_other_memory() {
    for (standard, ranks) in [("c++11", 2), ("c++20", 4)] {
        let options = strictly(standard);
        elastic_in_cpp(&options.iter().map(String::as_str).collect::<Vec<_>>(), ranks);
    }
}

#[test]
fn what_cannot_be_protected_does_not_compile_and_says_why() {
    let folder = folder();
    let source = root().join("tests/programs/c/sessions.cpp");
    for (wrong, why) in [
        (1, "bivouac: a std::vector<bool> has no elements in memory"),
        (2, "bivouac: only numbers, bool, characters"),
        (3, "bivouac: only numbers, bool, characters"),
        (4, "bivouac: what is protected is written to by a restart"),
        (5, "bivouac: only numbers, bool, characters"),
    ] {
        let mut command = Command::new(compiler("cpp"));
        command.args(["-std=c++11", "-fsyntax-only", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", "-I"]);
        command.arg(root().join("include")).arg(format!("-DWRONG={wrong}")).arg(&source).current_dir(folder.path());
        let output = command.output().expect("started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{wrong}: {said}");
    }
}

#[test]
fn a_forked_child_can_do_nothing_to_the_session_of_its_parent() {
    let folder = folder();
    let program = compile(folder.path(), "fork", &[root().join("tests/programs/c/fork.c")], &["-std=c11", "-pthread"]);
    let output = mpirun(2, folder.path(), &program, &[]).output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
}

/// The digest of the Rust example, which computes the same plate.
fn digest_of_rust_example(options: &[&str]) -> String {
    let example = library_folder().parent().expect("a folder").join("examples/heat2d");
    assert!(example.exists(), "{} is missing: cargo build --example heat2d", example.display());
    let folder = folder();
    line(&printed(&mpirun(1, folder.path(), &example, options).output().expect("started")), "digest")
}

#[test]
fn heat_in_c_goes_on_after_kills_on_any_number_of_ranks_and_ends_as_in_rust() {
    let folder = folder();
    let program = heat2d(folder.path());
    let options = ["--grid", "93x71", "--steps", "120"];
    let digest = digest_after_kills(|ranks, more| {
        mpirun(ranks, folder.path(), &program, &[&options[..], &["--every", "10"], more].concat())
    });
    assert_eq!(digest, digest_of_rust_example(&options));
}

#[test]
fn what_is_on_boxes_or_shared_is_restored_on_any_number_of_ranks() {
    saved_and_loaded("elastic", &[(4, "multiple"), (3, "funneled"), (1, "multiple"), (6, "multiple")]);
}

/// Runs a program that saves on four ranks, and then loads the data on other numbers of ranks.
fn saved_and_loaded(name: &str, loads: &[(usize, &str)]) {
    let folder = folder();
    let options = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    let program = compile(folder.path(), name, &[root().join(format!("tests/programs/c/{name}.c"))], &options);
    let loads = loads.iter().map(|(ranks, threads)| (*ranks, "load", *threads));
    // Each run restores what the first one saved: it takes no checkpoint.
    for (ranks, what, threads) in [(4, "save", "multiple")].into_iter().chain(loads) {
        let mut command = mpirun(ranks, folder.path(), &program, &[what, threads]);
        let output = command.env("ASAN_OPTIONS", "detect_leaks=0").output().expect("started");
        assert_eq!(printed(&output).trim(), "ok", "{what} on {ranks} ranks");
        // Regions that the program loads itself are not reported as missing.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("event=not-restored"), "{said}");
    }
}

#[test]
fn rows_are_dealt_to_other_ranks() {
    saved_and_loaded("rows", &[(3, "funneled")]);
}

/// The data is loaded on as many ranks, on one, and on more.
#[test]
fn rows_are_dealt_to_as_many_ranks_to_one_and_to_more() {
    saved_and_loaded("rows", &[(4, "multiple"), (1, "multiple"), (6, "multiple")]);
}

/// The text that a run writes to standard error.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("started");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn a_session_says_what_it_works_with_and_what_it_has_done() {
    let folder = folder();
    let program = heat2d(folder.path());
    let options = ["--grid", "40x40", "--steps", "20", "--every", "10"];
    let run = |more: &[(&str, &str)]| told(mpirun(3, folder.path(), &program, &options).envs(more.iter().copied()));
    let ours = |text: &str| text.lines().filter(|line| line.starts_with("bivouac: ")).map(String::from).collect();
    let lines: Vec<String> = ours(&run(&[]));
    let [opened, closed] = &lines[..] else { panic!("{lines:?}") };
    for part in ["run 1: 3 ranks on 1 node; memory ", "; local /", "; global /", "newest found: nothing"] {
        assert!(opened.contains(part), "{part}: {opened}");
    }
    assert!(closed.contains("2 checkpoints, committed: memory 2, local 2, global 2"), "{closed}");
    let again: Vec<String> = ours(&run(&[]));
    assert!(again.len() == 3 && again[0].contains("newest found: \"heat\" version 20 ("), "{again:?}");
    assert!(
        again[1].contains("run 2 restored \"heat\" version 20 of run 1 in ") && again[1].contains("; rank 0 read "),
        "{again:?}"
    );
    assert_eq!(run(&[("BIVOUAC_LOG", "off")]), "");
    let all = run(&[("BIVOUAC_LOG", "debug")]);
    assert!(all.contains(" DEBUG bivouac::session"), "{all}");

    let lost = run(&[("BIVOUAC_GLOBAL_DIRECTORY", "/proc/nope")]);
    let why = "all 3 ranks: global tier: cannot use /proc/nope: No such file or directory";
    let lines: Vec<String> = ours(&lost);
    assert!(lines.len() == 3 && lines[0].contains(&format!("; global OFF ({why}")), "{lost}");
    let report = lost.lines().find(|line| line.starts_with("level 4: ")).expect("a report");
    assert!(report.contains(why), "{report}");

    // Three ranks have no room, twice each, but this is reported once.
    let full = run(&[("BIVOUAC_MEMORY_BUDGET", "4096"), ("BIVOUAC_JOB_NAME", "full")]);
    let direct: Vec<&str> = full.lines().filter(|line| line.contains("event=capture-direct")).collect();
    assert!(direct.len() == 1 && direct[0].contains("all 3 ranks: event=capture-direct why="), "{full}");

    // The root prints one line for all ranks, and nothing else.
    let program = compile(folder.path(), "capi", &[root().join("tests/programs/c/capi.c")], &["-pthread"]);
    let refused = |settings: &[(&str, &str)]| {
        let said = told(mpirun(3, folder.path(), &program, &["refused"]).envs(settings.iter().copied()));
        let line = said.strip_prefix("bivouac: the session could not be opened: ").unwrap_or_else(|| panic!("{said}"));
        assert!(line.lines().count() == 1 && said.len() < 512, "{said}");
        line.to_owned()
    };
    let lost = refused(&[("BIVOUAC_GLOBAL_REQUIRED", "true"), ("BIVOUAC_GLOBAL_DIRECTORY", "/proc/nope")]);
    assert!(lost.starts_with(why), "{lost}");
    let typo = refused(&[("BIVOUAC_GLOBL_DIRECTORY", "/x")]);
    assert!(typo.starts_with("all 3 ranks: environment variable BIVOUAC_GLOBL_DIRECTORY"), "{typo}");
}

fn particles(folder: &Path) -> PathBuf {
    compile(folder, "particles", &[root().join("mpi-examples/cpp/particles.cpp")], &["-ffp-contract=off"])
}

#[test]
fn particles_in_cpp_go_on_after_a_kill_with_fewer_ranks() {
    let (undisturbed, folder) = (folder(), folder());
    let program = particles(folder.path());
    let options = ["--steps", "120", "--every", "10"];
    let expected = printed(&mpirun(1, undisturbed.path(), &program, &options).output().expect("started"));
    let die = [&options[..], &["--die-at", "83:2"]].concat();
    let killed = mpirun(4, folder.path(), &program, &die).output().expect("started");
    assert!(!killed.status.success(), "{killed:?}");
    let again = printed(&mpirun(3, folder.path(), &program, &options).output().expect("started"));
    let (version, ranks) = line(&again, "restored version=").split_once(" from ").map(own).expect("both");
    assert!(version.parse::<u32>().is_ok_and(|version| version >= 50) && ranks == "4 ranks", "{again}");
    assert_eq!(line(&again, "digest"), line(&expected, "digest"));
}

fn own((one, other): (&str, &str)) -> (String, String) {
    (one.into(), other.into())
}

/// The example is killed five times, on four ranks, three, and one, and then runs on six.
#[test]
fn particles_in_cpp_go_on_after_kills_on_any_number_of_ranks() {
    let (undisturbed, folder) = (folder(), folder());
    let program = particles(folder.path());
    let options = ["--steps", "120", "--every", "10"];
    let digest =
        digest_after_kills(|ranks, more| mpirun(ranks, folder.path(), &program, &[&options[..], more].concat()));
    let expected = printed(&mpirun(4, undisturbed.path(), &program, &options).output().expect("started"));
    assert_eq!(digest, line(&expected, "digest"));
}

#[test]
fn device_pointers_are_saved_in_the_order_of_the_stream_and_restored() {
    let folder = folder();
    let sources = [root().join("tests/programs/c/gpu.c")];
    let program = compile_with(folder.path(), "gpu", &sources, &["-pthread"], &["-ldl"]);
    gpu_program_ended(&mpirun(2, folder.path(), &program, &[]).output().expect("started"));
}

#[test]
fn live_regions_come_back_as_they_were_and_may_be_freed_once_they_are_taken_out() {
    let folder = folder();
    let program = compile(folder.path(), "live", &[root().join("tests/programs/c/live.c")], &[]);
    live_program_ended(|mode| {
        let mut command = mpirun(2, folder.path(), &program, &[mode]);
        command.env("BIVOUAC_JOB_NAME", mode);
        command
    });
}

#[test]
fn what_memcheck_says_of_libraries_is_not_ours() {
    let ours = "==7== 8 bytes are lost\n==7==    at 0x1: calloc (in /x/vgpreload_memcheck.so)\n==7==    by 0x2: f (session.rs:3)";
    let theirs = "==7== 8 bytes are lost\n==7==    at 0x1: calloc (in /x/vgpreload_memcheck.so)\n==7==    by 0x2: ???\n==7==    by 0x3: f (a.rs:3)";
    assert!(is_ours(ours) && !is_ours(theirs));
    assert!(is_ours(
        "==7== Invalid read\n==7==    at 0x1: memmove (vg_replace_strmem.c:1)\n==7==    by 0x2: f (a.rs:3)"
    ));
    assert!(is_ours("==7== Invalid read\n==7==    at 0x2: bvk_save (in /x/libbivouac.so)"));
}

#[test]
fn memcheck_finds_nothing_of_ours() {
    if !memcheck::can() {
        return;
    }
    let folder = folder();
    let (ranks, program, options): (_, _, &[&str]) = match memcheck::is_whole() {
        true => {
            let source = root().join("tests/programs/c/capi.c");
            (2, compile(folder.path(), "capi", &[source], &["-pthread"]), &[])
        }
        false => (1, heat2d(folder.path()), &["--grid", "40x40", "--steps", "6", "--every", "2"]),
    };
    let arguments = memcheck::arguments(folder.path(), &program, options);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    printed(&mpirun(ranks, folder.path(), Path::new("valgrind"), &arguments).output().expect("started"));
    memcheck::check(folder.path(), ranks);
}
