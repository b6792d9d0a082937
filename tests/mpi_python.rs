//! The Python package under a real `mpirun`: every method, and the example, which is killed and restarted.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod interfaces;

use interfaces::{
    compile, digest_after_kills, folder, library_folder, line, live_program_ended, mpirun, printed, root,
};
use std::path::Path;
use std::process::Command;

/// A Python with mpi4py and NumPy. Prints a note if there is none. The system's Python is tried as well, because only
/// it has the packages of the distribution.
fn python() -> Option<&'static str> {
    let works = |python: &&str| {
        Command::new(python).args(["-c", "import mpi4py, numpy"]).output().is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(works);
    if found.is_none() {
        println!("SKIPPED: programs in Python (no python3 here has mpi4py and numpy)");
    }
    found
}

/// `mpirun` of a Python program, with the package from the source tree and the library that Cargo has built.
fn run(python: &str, ranks: usize, folder: &Path, program: &str, options: &[&str]) -> Command {
    let script = root().join(program);
    let arguments = [&["-m", "mpi4py", script.to_str().expect("UTF-8")], options].concat();
    let mut command = mpirun(ranks, folder, Path::new(python), &arguments);
    command
        .env("PYTHONPATH", root().join("src/capi/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BIVOUAC_LIBRARY", library_folder().join(interfaces::LIBRARY));
    command
}

#[test]
fn the_example_ends_with_the_digest_of_the_one_in_rust_after_kills_on_any_number_of_ranks() {
    let Some(python) = python() else { return };
    let plate = ["--grid", "93x71", "--steps", "120"];
    let (rust, place) = (folder(), folder());
    let example = library_folder().parent().expect("a folder").join("examples/heat2d");
    assert!(example.exists(), "{} is missing: cargo build --example heat2d", example.display());
    let output = mpirun(1, rust.path(), &example, &plate).output().expect("mpirun is there");
    let digest = line(&printed(&output), "digest");

    let program = "mpi-examples/python/heat.py";
    let directory = place.path().join("kept");
    let common = [&plate[..], &["--every", "10", "--dir", directory.to_str().expect("UTF-8")]].concat();
    let ended =
        digest_after_kills(|ranks, more| run(python, ranks, place.path(), program, &[&common[..], more].concat()));
    assert_eq!(ended, digest);
}

#[test]
fn the_program_of_the_documentation_runs() {
    let Some(python) = python() else { return };
    let place = folder();
    let script = place.path().join("simulation.py");
    let program =
        interfaces::documented("docs/PYTHON.md", "python") + "print('ended', int(step), field.min(), field.max())\n";
    std::fs::write(&script, program).expect("written");
    for _ in 0..2 {
        let mut command = run(python, 1, place.path(), script.to_str().expect("UTF-8"), &[]);
        let said = printed(&command.env("BIVOUAC_INTERVAL_STEPS", "400").output().expect("mpirun is there"));
        assert_eq!(line(&said, "ended"), "1000 1000.0 1000.0");
        assert!(interfaces::has_series(place.path(), "run"), "no checkpoint was taken");
    }
}

#[test]
fn a_live_array_comes_back_as_it_was_and_stays_until_it_has_been_copied() {
    let Some(python) = python() else { return };
    let place = folder();
    live_program_ended(|mode| {
        let mut command = run(python, 2, place.path(), "tests/programs/python/live.py", &[mode]);
        command.env("BIVOUAC_JOB_NAME", mode);
        command
    });
}

/// This package saves on 3 ranks, and loads on 3 and on 2.
#[test]
fn arrays_on_boxes_come_back_on_any_number_of_ranks() {
    saved_and_loaded("elastic", &[3, 2]);
}

/// Runs a program that saves on three ranks, and then loads the data on other numbers of ranks.
fn saved_and_loaded(name: &str, loads: &[usize]) {
    let Some(python) = python() else { return };
    let place = folder();
    let program = format!("tests/programs/python/{name}.py");
    for (ranks, what) in [(3, "save")].into_iter().chain(loads.iter().map(|ranks| (*ranks, "load"))) {
        let said = printed(&run(python, ranks, place.path(), &program, &[what]).output().expect("mpirun is there"));
        assert_eq!(said.trim(), "all right", "{what} on {ranks} ranks");
    }
}

#[test]
fn rows_are_dealt_to_fewer_ranks() {
    saved_and_loaded("rows", &[2]);
}

#[test]
fn rows_are_dealt_to_as_many_ranks_to_one_and_to_more() {
    saved_and_loaded("rows", &[3, 1, 5]);
}

/// The bytes, types and order of dimensions are the same, whichever language saved them.
#[test]
fn what_a_program_in_c_has_saved_is_loaded() {
    saved_by_c("elastic");
}

#[test]
fn rows_that_a_program_in_c_has_saved_are_loaded() {
    saved_by_c("rows");
}

/// A C program saves on four ranks, and the Python program of the same name loads the data on two.
fn saved_by_c(name: &str) {
    let Some(python) = python() else { return };
    let place = folder();
    let saves = compile(place.path(), name, &[root().join(format!("tests/programs/c/{name}.c"))], &[]);
    let said = printed(&mpirun(4, place.path(), &saves, &["save"]).output().expect("mpirun is there"));
    assert_eq!(said.trim(), "ok");
    let loads = run(python, 2, place.path(), &format!("tests/programs/python/{name}.py"), &["load-of-c"]).output();
    assert_eq!(printed(&loads.expect("mpirun is there")).trim(), "all right");
}

#[test]
fn every_method_does_what_it_does_in_c() {
    let Some(python) = python() else { return };
    let place = folder();
    let output = run(python, 2, place.path(), "tests/programs/python/every.py", &[]).output().expect("mpirun is there");
    let said = printed(&output);
    assert!(said.lines().any(|line| line == "all right"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the program for a Python library, and prints which parts the program skips.
fn with_library(library: &str) {
    let Some(python) = python() else { return };
    let place = folder();
    let program = "tests/programs/python/libraries.py";
    let output = run(python, 2, place.path(), program, &[library]).output().expect("mpirun is there");
    let said = printed(&output);
    assert!(said.lines().any(|line| line == "all right"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    print!("{said}");
}

#[test]
fn what_hdf5_writes_to_a_path_and_in_memory_is_a_region() {
    with_library("h5py");
}

/// CI has no PyTorch, which is large. To run this test, use `/usr/bin/python3 -m pip install torch`, and name the test.
#[test]
fn what_torch_saves_is_a_region() {
    with_library("torch");
}

#[test]
fn tensors_on_a_gpu_are_saved_and_marked_in_the_order_of_the_stream() {
    let Some(python) = python() else { return };
    let place = folder();
    let output = run(python, 2, place.path(), "tests/programs/python/gpu.py", &[]).output().expect("mpirun is there");
    let said = printed(&output);
    assert!(said.trim() == "all right" || said.starts_with("SKIPPED: "), "{said}");
    print!("{said}");
}

#[test]
fn a_library_that_is_not_there_is_said_with_what_to_do() {
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command.args(["-c", "import bivouac"]).env("PYTHONPATH", root().join("src/capi/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("BIVOUAC_LIBRARY", "/nowhere/libbivouac.so");
    let output = command.output().expect("python is there");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("/nowhere/libbivouac.so") && errors.contains("ci/install.sh"),
        "{errors}"
    );
}

/// The package refuses a library with another interface, so its numbers must be those of the library in this tree.
#[test]
fn the_package_has_the_version_of_the_library() {
    let read = |file: &str| std::fs::read_to_string(root().join("src/capi/python").join(file)).expect("readable");
    let (version, mut parts) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION").split('.'));
    assert!(read("pyproject.toml").contains(&format!("\nversion = \"{version}\"\n")));
    let interface = format!("{}.{}", parts.next().expect("a major one"), parts.next().expect("a minor one"));
    assert!(read("bivouac/_library.py").contains(&format!("\nINTERFACE = \"{interface}\"\n")));
}

/// Every function of the header is used in the package, so that a new function is not forgotten.
#[test]
fn the_package_knows_every_function_of_the_header() {
    let header = std::fs::read_to_string(root().join("include/bivouac.h")).expect("readable");
    let package = std::fs::read_to_string(root().join("src/capi/python/bivouac/_library.py")).expect("readable");
    let module = std::fs::read_to_string(root().join("src/capi/fortran/bivouac.f90")).expect("readable");
    let declared = header.lines().filter(|line| !line.starts_with("//")).filter_map(|line| {
        let name = line.split('(').next().filter(|_| line.contains('('))?.split([' ', '*']).next_back()?;
        name.starts_with("bvk_").then_some(name)
    });
    // The package has other calls for these: MPI communicators, one dimension, one region at a time, names instead of numbers, one box.
    let left_out = ["bvk_open", "bvk_protect", "bvk_protect_many", "bvk_protect_id", "bvk_unprotect_id", "bvk_save"];
    let left_out = [&left_out[..], &["bvk_protect_on", "bvk_save_on", "bvk_load_on"]].concat();
    // Only C has a `FILE`.
    let left_out = [&left_out[..], &["bvk_fopen", "bvk_fopen_saved"]].concat();
    let wanted: Vec<&str> = declared.filter(|name| !left_out.contains(name)).collect();
    assert!(wanted.len() > 45, "{wanted:?}");
    for name in wanted {
        assert!(package.contains(&format!("\"{name}\"")), "{name} is not in the package for Python");
        assert!(module.contains(&format!("name='{name}'")), "{name} is not in the module for Fortran");
    }
}
