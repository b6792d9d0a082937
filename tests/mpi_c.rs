//! The C interface under a real `mpirun`: every function with its mistakes, and the examples in C and C++ killed and restarted.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod interfaces;

use interfaces::memcheck::{self, is_ours};
use interfaces::{compile, compile_with, folder, gpu_program_ended, library_folder, line, mpirun, printed, root};
use std::path::{Path, PathBuf};

fn heat2d(folder: &Path) -> PathBuf {
    compile(folder, "heat2d", &[root().join("mpi-examples/c/heat2d.c")], &["-ffp-contract=off"])
}

#[test]
fn every_function_does_what_the_header_says_of_it() {
    let folder = folder();
    // AddressSanitizer watches the C side and what the library writes there. What MPI leaks is none of our business.
    let options = ["-pthread", "-fsanitize=address", "-fno-omit-frame-pointer"];
    let program = compile(folder.path(), "capi", &[root().join("tests/programs/c/capi.c")], &options);
    let output =
        mpirun(2, folder.path(), &program, &[]).env("ASAN_OPTIONS", "detect_leaks=0").output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
    let funneled = mpirun(2, folder.path(), &program, &["funneled"])
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .expect("started");
    assert_eq!(printed(&funneled).trim(), "ok");
}

#[test]
fn a_forked_child_can_do_nothing_to_the_session_of_its_parent() {
    let folder = folder();
    let program = compile(folder.path(), "fork", &[root().join("tests/programs/c/fork.c")], &["-std=c11", "-pthread"]);
    let output = mpirun(2, folder.path(), &program, &[]).output().expect("started");
    assert_eq!(printed(&output).trim(), "ok");
}

/// The Rust example computes the same plate.
fn digest_of_rust_example(options: &[&str]) -> String {
    let example = library_folder().parent().expect("a folder").join("examples/heat2d");
    assert!(example.exists(), "{} is missing: cargo build --example heat2d", example.display());
    let folder = folder();
    line(&printed(&mpirun(1, folder.path(), &example, options).output().expect("started")), "digest")
}

#[test]
fn heat_in_c_goes_on_after_a_kill_and_ends_as_in_rust() {
    let folder = folder();
    let program = heat2d(folder.path());
    let options = ["--grid", "93x71", "--steps", "120"];
    let with = |more: &[&'static str]| [&options[..], more].concat();
    let killed =
        mpirun(3, folder.path(), &program, &with(&["--every", "10", "--die-at", "77:1"])).output().expect("started");
    assert!(!killed.status.success(), "{killed:?}");
    let again = printed(&mpirun(3, folder.path(), &program, &with(&["--every", "10"])).output().expect("started"));
    // The kill may have cut off the agreement on the last checkpoint or two.
    assert!(["version=70", "version=60", "version=50"].contains(&line(&again, "restored").as_str()), "{again}");
    assert_eq!(line(&again, "digest"), digest_of_rust_example(&options));
}

#[test]
fn particles_in_cpp_go_on_after_a_kill_with_other_lengths_on_each_rank() {
    let source = root().join("mpi-examples/cpp/particles.cpp");
    let (undisturbed, folder) = (folder(), folder());
    let program = compile(folder.path(), "particles", &[source], &[]);
    let options = ["--steps", "200", "--every", "20"];
    let expected = printed(&mpirun(3, undisturbed.path(), &program, &options).output().expect("started"));
    let die = [&options[..], &["--die-at", "133", "--die-rank", "2"]].concat();
    let killed = mpirun(3, folder.path(), &program, &die).output().expect("started");
    assert!(!killed.status.success(), "{killed:?}");
    let again = printed(&mpirun(3, folder.path(), &program, &options).output().expect("started"));
    assert!(line(&again, "restored version=").parse::<u32>().is_ok_and(|version| version >= 80), "{again}");
    assert_eq!(line(&again, "sum"), line(&expected, "sum"));
}

#[test]
fn device_pointers_are_saved_in_the_order_of_the_stream_and_restored() {
    let folder = folder();
    let sources = [root().join("tests/programs/c/gpu.c")];
    let program = compile_with(folder.path(), "gpu", &sources, &["-pthread"], &["-ldl"]);
    gpu_program_ended(&mpirun(2, folder.path(), &program, &[]).output().expect("started"));
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
