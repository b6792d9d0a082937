//! Programs in C, C++ and Fortran that use the library: they are compiled by the MPI library's own compilers, and run under `mpirun`.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod memcheck;
pub mod veloc;

use bivouac_core::live::Watch;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The package's folder.
pub fn root() -> &'static Path {
    Path::new(env!("WORKSPACE_ROOT"))
}

/// The name that Cargo gives the shared library, which is installed as `libbivouac.so`.
pub const LIBRARY: &str = "libbivouac_capi.so";

/// The folder into which Cargo puts the shared library when it builds the tests.
pub fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.parent().expect("a folder").to_owned()
}

/// The compiler of the MPI library with which Bivouac was built (`MPICC`, if it was set for the build).
pub fn compiler(language: &str) -> String {
    let c = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    match language {
        "c" => c,
        "cpp" => c.replace("mpicc", "mpicxx"),
        "f90" => c.replace("mpicc", "mpifort"),
        other => panic!("no compiler for {other}"),
    }
}

/// Compiles programs into `folder` and links them with the library; warnings are errors.
///
/// The extension of the last source decides the language.
pub fn compile(folder: &Path, name: &str, sources: &[PathBuf], options: &[&str]) -> PathBuf {
    compile_with(folder, name, sources, options, &[])
}

/// Compiles as [`compile`] does, with further arguments for the linker before the library.
pub fn compile_with(
    folder: &Path,
    name: &str,
    sources: &[PathBuf],
    options: &[&str],
    libraries_before: &[&str],
) -> PathBuf {
    let program = folder.join(name);
    let language =
        sources.last().and_then(|source| source.extension()).and_then(|text| text.to_str()).expect("a source");
    let libraries = library_folder();
    let strict: &[&str] = match language {
        "c" => &["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic"],
        // The C++ bindings of some MPI libraries cause warnings themselves.
        "cpp" => {
            &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
        }
        _ => &["-Wall", "-Wextra", "-Werror"],
    };
    let mut command = Command::new(compiler(language));
    command
        .current_dir(folder)
        .args(strict)
        .args(["-g", "-O1"])
        .args(options)
        .arg("-I")
        .arg(root().join("include"))
        .args(sources)
        .args(libraries_before);
    command.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath,{}", libraries.display())).args([
        "-l:libbivouac_capi.so",
        "-lm",
        "-o",
    ]);
    let output = command.arg(&program).output().unwrap_or_else(|error| panic!("{}: {error}", compiler(language)));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A folder in shared memory, where the memory tier works and nothing outlives the test.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a folder")
}

/// `mpirun` with its own store in `folder`, which is also its working directory.
pub fn mpirun(ranks: usize, folder: &Path, program: &Path, arguments: &[&str]) -> Command {
    let memory = folder.join("memory");
    std::fs::create_dir_all(&memory).expect("made");
    let mut command = Command::new(std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into()));
    command.args(["-n", &ranks.to_string()]).arg(program).args(arguments).current_dir(folder);
    command
        .env("BIVOUAC_JOB_NAME", format!("test-{}", folder.file_name().expect("a name").to_str().expect("UTF-8")))
        .env("BIVOUAC_LOCAL_ALLOW_TMPFS", "true")
        .env("BIVOUAC_LOCAL_DIRECTORY", folder.join("local"))
        .env("BIVOUAC_GLOBAL_DIRECTORY", folder.join("global"))
        .env("BIVOUAC_MEMORY_DIRECTORY", &memory)
        .env("BIVOUAC_MEMORY_BUDGET", "256 MiB")
        // Programs record the library's name with a version, which a build folder does not have.
        .env("LD_LIBRARY_PATH", with_soname(folder))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
}

/// A search path that begins with a folder in which the library has the name that programs record, before the folders of the environment.
pub fn with_soname(folder: &Path) -> std::ffi::OsString {
    let version = env!("CARGO_PKG_VERSION").split('.').take(2).collect::<Vec<_>>().join(".");
    let names = folder.join("lib");
    std::fs::create_dir_all(&names).expect("made");
    let link = names.join(format!("libbivouac.so.{version}"));
    if !link.exists() {
        std::os::unix::fs::symlink(library_folder().join(LIBRARY), link).expect("linked");
    }
    let mut path = names.into_os_string();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH").filter(|more| !more.is_empty()) {
        path.push(":");
        path.push(more);
    }
    path
}

/// Checks that a program that tests a GPU has succeeded, or has printed that there is no GPU.
pub fn gpu_program_ended(output: &Output) {
    let said = printed(output);
    assert!(said.trim() == "ok" || said.starts_with("SKIPPED: "), "{said}");
    print!("{said}");
}

/// Runs a program that overwrites live regions, with each way to keep later writes out of checkpoints. `command` makes its command from an
/// argument. The program compares the restored data, and prints how the data was copied.
pub fn live_program_ended(command: impl Fn(&str) -> Command) {
    for mode in ["watched", "declared", "copied"] {
        let said = printed(&command(mode).env("BIVOUAC_OFFLOAD_HOST_WRITES", mode).output().expect("started"));
        assert!(said.lines().any(|line| line == "ok"), "{mode}: {said}");
        let counts = line(&said, "ranks=");
        let count = |name: &str| -> u64 {
            let found = counts.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{mode}: no {name} in {said}"))
        };
        let (regions, at_once, waited) = (count("regions"), count("at_once"), count("waited"));
        match (mode, Watch::open()) {
            ("declared", _) => assert!(regions > 0 && at_once == 0 && waited == 0 && count("declared") > 0, "{said}"),
            ("watched", Ok(_)) => assert!(regions > 0 && at_once == 0 && waited > 0, "{said}"),
            (_, watch) => {
                assert!(regions == 0 && at_once > 0 && waited == 0, "{mode}: {said}");
                if let ("watched", Err(why)) = (mode, watch) {
                    eprintln!("*** SKIPPED: that the kernel stops writers: {why}; the regions were copied at once ***");
                }
            }
        }
    }
}

/// The output of a program, which must have succeeded.
pub fn printed(output: &Output) -> String {
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{errors}", output.status);
    out.into_owned()
}

/// The digest of an example that is killed again and again and continues, on as many ranks, on fewer, and on more. `command` starts it on a
/// number of ranks with further arguments. It takes a checkpoint every 10 of 120 steps.
pub fn digest_after_kills(command: impl Fn(usize, &[&str]) -> Command) -> String {
    let mut killed_at = None;
    for (ranks, die_at) in [(4, Some((37, 2))), (4, Some((54, 1))), (3, Some((75, 2))), (1, Some((96, 0))), (6, None)] {
        let die = die_at.map(|(step, rank)| format!("{step}:{rank}"));
        let arguments: Vec<&str> = die.as_ref().map_or_else(Vec::new, |die| vec!["--die-at", die]);
        let output = command(ranks, &arguments).output().expect("started");
        let out = String::from_utf8_lossy(&output.stdout);
        let said = || format!("{ranks} ranks: {out}\n{}", String::from_utf8_lossy(&output.stderr));
        let restored = out.lines().find_map(|line| line.strip_prefix("restored version="));
        let version = restored.map(|rest| rest.split(' ').next().and_then(|number| number.parse::<u64>().ok()));
        // A kill may cut off the agreement on the last checkpoint or two.
        let expected = |version: u64, step: u64| version.is_multiple_of(10) && step - 30 < version && version < step;
        match (killed_at, version) {
            (None, None) => {}
            (Some(step), Some(Some(version))) if expected(version, step) => {}
            _ => panic!("after {killed_at:?}: {}", said()),
        }
        assert_eq!(output.status.success(), die_at.is_none(), "{}", said());
        if die_at.is_none() {
            return line(&out, "digest");
        }
        killed_at = die_at.map(|(step, _)| step);
    }
    unreachable!("the last run is not killed")
}

/// The rest of the only line that starts with `word`.
pub fn line(text: &str, word: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned());
    let found = lines.next().unwrap_or_else(|| panic!("no line starts with {word:?}:\n{text}"));
    assert!(lines.next().is_none(), "several lines start with {word:?}:\n{text}");
    found
}

/// The first program on a page of the documentation: the first code block in this language.
pub fn documented(page: &str, language: &str) -> String {
    let text = std::fs::read_to_string(root().join(page)).expect("readable");
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap_or_else(|| panic!("{page} has no {language}"));
    rest.split_once("```").expect("the block has an end").0.to_owned()
}

/// Whether a series has a checkpoint in the global directory of [`mpirun`].
pub fn has_series(folder: &Path, series: &str) -> bool {
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut groups = below(folder.join("global")).flat_map(below);
    groups.any(|group| below(group.join(series)).next().is_some())
}
