//! The Fortran module under a real `mpirun`: every function, and the example, which is killed and restarted.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod interfaces;

use interfaces::{compile, compiler, digest_after_kills, folder, line, live_program_ended, mpirun, printed, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Can Fortran be compiled here? Prints a note if not.
fn has_compiler() -> bool {
    let found = Command::new(compiler("f90")).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: programs in Fortran ({} is absent or has no compiler)", compiler("f90"));
    }
    found
}

fn with_module(folder: &Path, name: &str, source: &str) -> PathBuf {
    let sources = [root().join("src/capi/fortran/bivouac.f90"), root().join(source)];
    compile(folder, name, &sources, &["-std=f2018", "-ffp-contract=off", "-Wno-compare-reals"])
}

/// The Rust example's digest of the same plate.
fn expected(folder: &Path, options: &[&str]) -> String {
    let examples = interfaces::library_folder().parent().expect("a folder").join("examples/heat2d");
    assert!(examples.exists(), "{} is missing: cargo build --example heat2d", examples.display());
    let output = mpirun(1, folder, &examples, options).output().expect("mpirun is there");
    line(&printed(&output), "digest")
}

#[test]
fn the_example_ends_with_the_digest_of_the_one_in_rust_after_kills_on_any_number_of_ranks() {
    if !has_compiler() {
        return;
    }
    let plate = ["--grid", "93x71", "--steps", "120"];
    let (rust, place) = (folder(), folder());
    let digest = expected(rust.path(), &plate);
    let program = with_module(place.path(), "heat2d", "mpi-examples/fortran/heat2d.f90");
    let directory = place.path().join("kept");
    let common = [&plate[..], &["--every", "10", "--dir", directory.to_str().expect("UTF-8")]].concat();

    let ended = digest_after_kills(|ranks, more| mpirun(ranks, place.path(), &program, &[&common[..], more].concat()));
    assert_eq!(ended, digest);
    assert!(directory.join("global").exists(), "--dir counts for more than the environment");
}

#[test]
fn the_program_of_the_documentation_runs() {
    if !has_compiler() {
        return;
    }
    let place = folder();
    let source = place.path().join("simulation.f90");
    std::fs::write(&source, interfaces::documented("docs/FORTRAN.md", "fortran")).expect("written");
    let module = root().join("src/capi/fortran/bivouac.f90");
    let program = compile(place.path(), "simulation", &[module, source], &["-std=f2018"]);
    for _ in 0..2 {
        let mut command = mpirun(2, place.path(), &program, &[]);
        let said = printed(&command.env("BIVOUAC_INTERVAL_STEPS", "400").output().expect("mpirun is there"));
        assert!(said.is_empty(), "{said}");
        assert!(interfaces::has_series(place.path(), "run"), "no checkpoint was taken");
    }
}

#[test]
fn a_live_region_comes_back_as_it_was_and_may_be_deallocated_once_it_is_taken_out() {
    if !has_compiler() {
        return;
    }
    let place = folder();
    let program = with_module(place.path(), "live", "tests/programs/fortran/live.f90");
    live_program_ended(|mode| {
        let mut command = mpirun(2, place.path(), &program, &[mode]);
        command.env("BIVOUAC_JOB_NAME", mode);
        command
    });
}

/// This module saves on 3 ranks, and loads on 3 and on 2.
#[test]
fn arrays_on_boxes_come_back_on_any_number_of_ranks() {
    saved_and_loaded("elastic", &[3, 2]);
}

#[test]
fn rows_are_dealt_to_fewer_ranks() {
    saved_and_loaded("rows", &[2]);
}

#[test]
fn rows_are_dealt_to_as_many_ranks_to_one_and_to_more() {
    saved_and_loaded("rows", &[3, 1, 5]);
}

/// Runs a program that saves on three ranks, and then loads the data on other numbers of ranks.
fn saved_and_loaded(name: &str, loads: &[usize]) {
    if !has_compiler() {
        return;
    }
    let place = folder();
    let program = with_module(place.path(), name, &format!("tests/programs/fortran/{name}.f90"));
    for (ranks, what) in [(3, "save")].into_iter().chain(loads.iter().map(|ranks| (*ranks, "load"))) {
        let said = printed(&mpirun(ranks, place.path(), &program, &[what]).output().expect("mpirun is there"));
        assert_eq!(said.trim(), "all right", "{what} on {ranks} ranks");
    }
}

#[test]
fn every_function_does_what_it_does_in_c() {
    if !has_compiler() {
        return;
    }
    let place = folder();
    let program = with_module(place.path(), "every", "tests/programs/fortran/every.f90");
    let output = mpirun(2, place.path(), &program, &[]).output().expect("mpirun is there");
    let said = printed(&output);
    assert!(said.lines().any(|line| line == "all right"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));

    let mut inspect = Command::new(env!("CARGO_BIN_EXE_bivouac"));
    let output = inspect.args(["inspect", "--json"]).arg(place.path().join("global")).output().expect("runs");
    let found: serde_json::Value = serde_json::from_str(&printed(&output)).expect("one document");
    let parts = |value: &serde_json::Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let containers: Vec<_> = parts(&found, "checkpoints").iter().flat_map(|found| parts(found, "containers")).collect();
    let shards: Vec<_> = containers.iter().flat_map(|container| parts(container, "shards")).collect();
    let regions: Vec<_> = shards.iter().flat_map(|shard| parts(shard, "regions")).collect();
    let recorded = |name: &str, element: &str, shape: serde_json::Value| {
        let of_name: Vec<_> =
            regions.iter().filter(|region| region["name"] == name && region["element"] == element).collect();
        assert!(of_name.iter().any(|region| region["shape"] == shape), "{name} has not {shape}: {of_name:?}");
    };
    recorded("f64", "f64", serde_json::json!([5, 3]));
    recorded("i16", "i16", serde_json::json!([3, 2]));
    recorded("f32", "f32", serde_json::json!([1, 3, 1, 2]));
    recorded("i64", "i64", serde_json::json!([]));
    recorded("nothing", "f64", serde_json::json!([0]));
}
