//! Chooses the bindings for the MPI to which `mpicc` belongs, and links its library. It also compiles the shim with `mpicc`,
//! which checks the bindings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The macros in `mpi.h` that distinguish the kinds of MPI, each with the name of the bindings.
const KINDS: [(&str, &str); 4] =
    [("OPEN_MPI", "openmpi"), ("MPICH_NAME", "mpich"), ("MPICH_VERSION", "mpich"), ("I_MPI_VERSION", "mpich")];

fn main() {
    for file in ["shim.c", "shim.h", "bindings"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-env-changed=MPI_SYS_BINDINGS");
    let library = build_probe_mpi::probe().unwrap_or_else(|errors| {
        let why: Vec<String> = errors.iter().map(ToString::to_string).collect();
        fail(&format!("no MPI library was found: set MPICC, or load a module. {}", why.join("; ")))
    });
    let mut build = cc::Build::new();
    match &library.mpicc {
        Some(mpicc) => _ = build.compiler(mpicc),
        None => _ = build.includes(&library.include_paths),
    }
    let bindings = match env::var_os("MPI_SYS_BINDINGS") {
        Some(path) => PathBuf::from(path),
        None => Path::new(&variable("CARGO_MANIFEST_DIR")).join("bindings").join(kind(&build)).with_extension("rs"),
    };
    let checks = bindings.with_extension("h");
    println!("cargo:rerun-if-changed={}", bindings.display());
    let target = Path::new(&variable("OUT_DIR")).join("bindings.rs");
    fs::copy(&bindings, &target).unwrap_or_else(|error| fail(&format!("{}: {error}", bindings.display())));
    build.file("shim.c").define("SHIM_CHECKS", format!("\"{}\"", checks.display()).as_str());
    build.compile("mpi_shim");
    for path in &library.lib_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for name in &library.libs {
        println!("cargo:rustc-link-lib={name}");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo has not set {name}")))
}

/// Finds out which binary interface the compiler's `mpi.h` has.
fn kind(build: &cc::Build) -> &'static str {
    let source = Path::new(&variable("OUT_DIR")).join("kind.c");
    let asks: String =
        KINDS.iter().map(|(macro_, kind)| format!("#ifdef {macro_}\nis_of_kind {kind}\n#endif\n")).collect();
    fs::write(&source, format!("#include <mpi.h>\n{asks}"))
        .unwrap_or_else(|error| fail(&format!("{}: {error}", source.display())));
    let mut command: Command = build.get_compiler().to_command();
    let output = command.arg("-E").arg(&source).output();
    let output = output.unwrap_or_else(|error| fail(&format!("{command:?}: {error}")));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = |kind: &str| text.lines().any(|line| line.trim() == format!("is_of_kind {kind}"));
    KINDS.iter().map(|(_, kind)| *kind).find(|kind| said(kind)).unwrap_or_else(|| {
        fail(&format!(
            "{command:?} does not include the mpi.h of Open MPI, nor of MPICH or an MPI with its binary interface (Intel, Cray, MVAPICH): \
             make bindings as tests/mpi_bindings.rs does, and name the file in MPI_SYS_BINDINGS. {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    })
}

fn fail(text: &str) -> ! {
    eprintln!("mpi-sys: {text}");
    std::process::exit(1)
}
