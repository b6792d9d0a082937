//! `ci/install.sh`: the installed files serve programs that know nothing of the source tree.
//!
//! The installation is made from the files that Cargo has built for the tests.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod interfaces;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn install(arguments: &[&OsStr], destination: Option<&Path>) -> Output {
    let mut command = Command::new(interfaces::root().join("ci/install.sh"));
    command.args(arguments).env_remove("DESTDIR");
    if let Some(destination) = destination {
        command.env("DESTDIR", destination);
    }
    command.output().expect("bash is there")
}

/// The folder in which Cargo has built the commands and, in `deps/` below it, the libraries.
fn built() -> PathBuf {
    interfaces::library_folder().parent().expect("a folder").to_owned()
}

/// Runs a command that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    interfaces::printed(&output)
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The output of `pkg-config`, as arguments.
fn package(prefix: &Path, options: &[&str], name: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    let said = run(command.args(options).arg(name).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
    said.split_whitespace().map(str::to_owned).collect()
}

/// Compiles the tiny program with these arguments, and no others.
fn compiled(folder: &Path, name: &str, arguments: &[String]) -> PathBuf {
    let program = folder.join(name);
    let source = interfaces::root().join("tests/programs/c/tiny.c");
    run(Command::new(interfaces::compiler("c")).arg(source).args(arguments).arg("-o").arg(&program));
    program
}

/// Runs the tiny program on two ranks with the installed libraries, in its own store.
fn works(folder: &Path, program: &Path, libraries: Option<&Path>) {
    let store = folder.join("store");
    std::fs::create_dir_all(&store).expect("made");
    let mut command = interfaces::mpirun(2, &store, program, &[]);
    match libraries {
        Some(libraries) => command.env("LD_LIBRARY_PATH", libraries),
        None => command.env_remove("LD_LIBRARY_PATH"),
    };
    let printed = interfaces::printed(&command.output().expect("mpirun is there"));
    assert_eq!(interfaces::line(&printed, "wrong"), format!("0 with {VERSION}"));
    std::fs::remove_dir_all(&store).expect("removed");
}

/// Whether the program loads the shared library when it starts.
fn needs_shared(program: &Path) -> bool {
    run(Command::new("readelf").arg("-d").arg(program)).contains("Shared library: [libbivouac.so.")
}

#[test]
fn what_is_installed_serves_programs_that_know_nothing_of_the_sources() {
    let folder = interfaces::folder();
    let prefix = folder.path().join("prefix");
    let output = install(&[prefix.as_os_str(), OsStr::new("--built"), built().as_os_str()], None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let libraries = prefix.join("lib");
    exports_only_the_interface(&libraries);
    velocs_library(&prefix);
    pages_and_completions(&prefix);
    configurations_and_documentation(&prefix);

    let shared = compiled(folder.path(), "shared", &package(&prefix, &["--cflags", "--libs"], "bivouac"));
    assert!(needs_shared(&shared));
    works(folder.path(), &shared, Some(&libraries));

    let everything = package(&prefix, &["--cflags", "--static", "--libs"], "bivouac");
    let chosen = |argument: &String| if argument == "-lbivouac" { "-l:libbivouac.a".into() } else { argument.clone() };
    let whole = compiled(folder.path(), "whole", &everything.iter().map(chosen).collect::<Vec<_>>());
    assert!(!needs_shared(&whole));
    works(folder.path(), &whole, None);

    match is_there(&interfaces::compiler("f90")) {
        true => the_fortran_example(folder.path(), &prefix),
        false => println!("SKIPPED: an installation for Fortran (there is no compiler)"),
    }
    match is_there("cmake") {
        true => a_cmake_project(folder.path(), &prefix),
        false => println!("SKIPPED: an installation in a CMake project (cmake is absent)"),
    }
}

/// The shared library exports only the interface: other symbols could be mistaken for those of another
/// library in the same program.
fn exports_only_the_interface(libraries: &Path) {
    let mut names = BTreeSet::new();
    for line in run(Command::new("nm").args(["-D", "--defined-only"]).arg(libraries.join("libbivouac.so"))).lines() {
        names.insert(line.split_whitespace().last().expect("a name").to_owned());
    }
    let header = std::fs::read_to_string(interfaces::root().join("include/bivouac.h")).expect("readable");
    let declared = |name: &&String| header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}("));
    let strange: Vec<_> = names.iter().filter(|name| !name.starts_with("bvk_")).collect();
    assert!(strange.is_empty(), "exported, and not of the interface: {strange:?}");
    assert!(names.iter().filter(declared).count() > 50, "{names:?}");
    for link in ["libbivouac.so", "libbivouac.so.0.1"] {
        let target = std::fs::canonicalize(libraries.join(link)).expect("a link");
        assert_eq!(target.file_name().and_then(OsStr::to_str), Some(&*format!("libbivouac.so.{VERSION}")), "{link}");
    }
}

/// Checks that VELOC's library has the names that programs linked with it need, and no others.
fn velocs_library(prefix: &Path) {
    let client = prefix.join("lib/libveloc-client.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&client));
    for part in
        ["Library soname: [libveloc-client.so]", "Shared library: [libbivouac.so.0.1]", "Library runpath: [$ORIGIN]"]
    {
        assert!(dynamic.contains(part), "{part} is not in\n{dynamic}");
    }
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&client));
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let strange: Vec<_> = names.iter().filter(|name| !name.starts_with("VELOC_")).collect();
    assert!(strange.is_empty() && names.len() >= 25, "{strange:?} in {names:?}");
    for header in ["veloc.h", "veloc.hpp", "veloc/defs.h"] {
        let read = |folder: &Path| std::fs::read_to_string(folder.join("include").join(header)).expect("readable");
        assert_eq!(read(prefix), read(interfaces::root()), "{header}");
    }
}

fn pages_and_completions(prefix: &Path) {
    let command = prefix.join("bin/bivouac");
    let help = run(Command::new(&command).arg("--help"));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> =
        listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(commands.contains(&"ls") && !commands.contains(&"generate"), "{help}");
    let page = |name: &str| prefix.join("share/man/man1").join(name);
    let pages = commands.iter().map(|name| page(&format!("bivouac-{name}.1"))).chain([page("bivouac.1")]);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{}:\n{text}", page.display());
    }
    let files = [
        "bash-completion/completions/bivouac",
        "zsh/site-functions/_bivouac",
        "fish/vendor_completions.d/bivouac.fish",
    ];
    for file in files {
        let text =
            std::fs::read_to_string(prefix.join("share").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let missing: Vec<_> = commands.iter().filter(|name| !text.contains(**name)).collect();
        assert!(missing.is_empty(), "{file} does not know {missing:?}");
    }
    run(Command::new("bash").arg("-n").arg(prefix.join("share/bash-completion/completions/bivouac")));
}

/// A page in which links to files that are not installed with it are plain text.
fn without_links_out(page: &str) -> String {
    let mut text = page.to_owned();
    while let Some(at) = text.find("](../") {
        let begin = text[..at].rfind('[').expect("a link begins");
        let end = at + text[at..].find(')').expect("a link ends");
        let word = text[begin + 1..at].to_owned();
        let begin = begin - usize::from(text[..begin].ends_with('!'));
        text.replace_range(begin..=end, &word);
    }
    text
}

/// Checks that all of `config/` and `docs/` is installed, and so everything that a manual page refers to.
fn configurations_and_documentation(prefix: &Path) {
    let share = prefix.join("share");
    let entries = |folder: &Path| std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path());
    let all = ["config", "docs", "docs/planning"].iter().flat_map(|folder| entries(&interfaces::root().join(folder)));
    for source in all.filter(|path| !path.is_dir()) {
        let name = source.strip_prefix(interfaces::root()).expect("below it");
        let [installed, wanted] = [&share.join("bivouac").join(name), &source].map(std::fs::read_to_string);
        let installed = installed.unwrap_or_else(|error| panic!("{}: {error}", name.display()));
        assert_eq!(installed, without_links_out(&wanted.expect("readable")), "{}", name.display());
    }
    let pages: Vec<String> = entries(&share.join("man/man1")).filter_map(|p| std::fs::read_to_string(p).ok()).collect();
    let package = interfaces::root().join("src/capi/python/bivouac");
    for module in entries(&package).filter(|path| path.extension().is_some_and(|end| end == "py")) {
        let name = module.file_name().expect("it has one");
        assert!(share.join("bivouac/python/bivouac").join(name).exists(), "{}", module.display());
    }
    let is_file = |word: &&str| ["config/", "docs/"].iter().any(|folder| word.starts_with(folder));
    let told: BTreeSet<&str> = pages.iter().flat_map(|page| page.split_whitespace()).filter(is_file).collect();
    assert!(told.contains("docs/RECOVERY.md"), "{told:?}");
    let missing: Vec<_> = told.iter().filter(|name| !share.join("bivouac").join(name).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Builds the example in an empty folder, so the module and the archive are those of the installation.
fn the_fortran_example(folder: &Path, prefix: &Path) {
    let (place, program) = (folder.join("fortran"), folder.join("heat2d"));
    std::fs::create_dir_all(&place).expect("made");
    let source = interfaces::root().join("mpi-examples/fortran/heat2d.f90");
    let mut compiler = Command::new(interfaces::compiler("f90"));
    let arguments = package(prefix, &["--cflags", "--libs"], "bivouac-fortran");
    run(compiler.current_dir(&place).arg(source).args(arguments).arg("-o").arg(&program));
    let mut command = interfaces::mpirun(2, &place, &program, &["--grid", "32x32", "--steps", "4", "--every", "2"]);
    let output = command.env("LD_LIBRARY_PATH", prefix.join("lib")).output().expect("mpirun is there");
    assert_eq!(interfaces::line(&interfaces::printed(&output), "digest").len(), 16);
}

fn a_cmake_project(folder: &Path, prefix: &Path) {
    let (sources, made) = (folder.join("project"), folder.join("made"));
    std::fs::create_dir_all(&sources).expect("made");
    let tiny = interfaces::root().join("tests/programs/c/tiny.c");
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(tiny C)\nfind_package(Bivouac {VERSION} REQUIRED)\n\
         add_executable(tiny {0})\ntarget_link_libraries(tiny PRIVATE Bivouac::bivouac)\n\
         add_executable(whole {0})\ntarget_link_libraries(whole PRIVATE Bivouac::static)\n",
        tiny.display()
    );
    std::fs::write(sources.join("CMakeLists.txt"), project).expect("written");
    let compiler = format!("-DMPI_C_COMPILER={}", interfaces::compiler("c"));
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&sources).arg("-B").arg(&made).arg(compiler);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&made));
    let (shared, whole) = (made.join("tiny"), made.join("whole"));
    assert!(needs_shared(&shared) && !needs_shared(&whole));
    works(folder, &shared, None);

    if is_there("c++") {
        a_cmake_project_in_cxx(folder, prefix);
    } else {
        println!("SKIPPED: an installation in a CMake project in C++ (there is no compiler)");
    }

    let newer = std::fs::read_to_string(sources.join("CMakeLists.txt")).expect("read").replace(VERSION, "0.99");
    std::fs::write(sources.join("CMakeLists.txt"), newer).expect("written");
    let refused = configure.output().expect("cmake is there");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("0.99"), "{errors}");
}

/// A project that names no language uses both C and C++, and mpi.h may need another library in C++.
fn a_cmake_project_in_cxx(folder: &Path, prefix: &Path) {
    let (sources, made) = (folder.join("project-cxx"), folder.join("made-cxx"));
    std::fs::create_dir_all(&sources).expect("made");
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(tiny)\nfind_package(Bivouac REQUIRED)\n\
         add_executable(plain tiny.cpp)\ntarget_link_libraries(plain PRIVATE Bivouac::bivouac)\n\
         add_executable(veloc veloc.cpp)\ntarget_link_libraries(veloc PRIVATE Bivouac::veloc)\n";
    let plain = "#include <mpi.h>\n#include <bivouac.hpp>\nint main(int c, char **v) {\nMPI_Init(&c, &v);\n\
         bool is_safe = bivouac::pending().reached() == bivouac::level::system;\nMPI_Finalize();\nreturn is_safe;\n}\n";
    let veloc = "#include <veloc.hpp>\nint main(int c, char **v) {\nMPI_Init(&c, &v);\n\
         if (c > 1) delete veloc::get_client(1u, v[1]);\n\
         int status = VELOC_Checkpoint_wait();\nMPI_Finalize();\nreturn status == VELOC_SUCCESS;\n}\n";
    for (name, text) in [("CMakeLists.txt", project), ("tiny.cpp", plain), ("veloc.cpp", veloc)] {
        std::fs::write(sources.join(name), text).expect("written");
    }
    let compilers = [("C", "c"), ("CXX", "cpp")]
        .map(|(name, language)| format!("-DMPI_{name}_COMPILER={}", interfaces::compiler(language)));
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&sources).arg("-B").arg(&made).args(compilers);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&made));
    assert!(needs_shared(&made.join("plain")) && made.join("veloc").exists());
}

#[test]
fn destdir_stands_before_the_files_and_not_in_them() {
    let folder = interfaces::folder();
    let prefix = Path::new("/opt/somewhere");
    let output = install(&[prefix.as_os_str(), OsStr::new("--built"), built().as_os_str()], Some(folder.path()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let inside = folder.path().join("opt/somewhere");
    assert!(inside.join("bin/bivouac").exists() && inside.join("lib/libbivouac.so.0.1").exists());
    for file in ["lib/pkgconfig/bivouac.pc", "lib/cmake/Bivouac/BivouacConfig.cmake"] {
        let text = std::fs::read_to_string(inside.join(file)).expect("installed");
        assert!(!text.contains(folder.path().to_str().expect("UTF-8")) && !text.contains('@'), "{file}:\n{text}");
    }
    let flags = package(&inside, &["--cflags"], "bivouac");
    assert_eq!(flags, ["-I/opt/somewhere/include"]);
}

#[test]
fn mistakes_are_told_before_anything_is_written() {
    let folder = interfaces::folder();
    let prefix = folder.path().join("prefix");
    let said = |arguments: &[&str], status: i32| {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let output = install(&arguments, None);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let at = prefix.to_str().expect("UTF-8");
    assert!(said(&[], 2).contains("PREFIX is missing"));
    assert!(said(&[at, "--debgu"], 2).contains("there is no option --debgu"));
    assert!(said(&[at, "--built"], 2).contains("--built needs a value"));
    assert!(said(&[at, "--features", "cuda"], 2).contains("needs mpi"));
    assert!(said(&[at, "--built", folder.path().to_str().expect("UTF-8")], 1).contains("has no libbivouac_capi.so"));
    // The folder holds nothing to build from, so nothing is written here if this check fails.
    let (sources, empty) = (interfaces::root().to_str().expect("UTF-8"), folder.path().to_str().expect("UTF-8"));
    assert!(said(&[sources, "--built", empty], 2).contains("is this source tree"));
    let spaced = format!("{at} two");
    assert!(said(&[spaced.as_str()], 2).contains("white space"));
    assert!(!prefix.exists() && !Path::new(&spaced).exists());
}

/// VELOC's own header stays with its library, and a Fortran module that does not fit the new library is removed.
#[test]
fn what_was_installed_before_is_kept_or_goes() {
    let folder = interfaces::folder();
    let (lib, include) = (folder.path().join("here/opt/lib"), folder.path().join("here/opt/include"));
    std::fs::create_dir_all(lib.join("pkgconfig")).expect("made");
    std::fs::create_dir_all(&include).expect("made");
    let (header, client) = (include.join("veloc.h"), lib.join("libveloc-client.so"));
    let stale =
        [lib.join("libbivouac_fortran.a"), include.join("bivouac.mod"), lib.join("pkgconfig/bivouac-fortran.pc")];
    for file in stale.iter().chain([&header, &client]) {
        std::fs::write(file, "another's").expect("written");
    }
    let mut command = Command::new(interfaces::root().join("ci/install.sh"));
    command.current_dir(folder.path()).arg("/opt").arg("--built").arg(built());
    let said = run(command.env("DESTDIR", "here").env("MPIFC", "none"));
    assert!(said.contains("is VELOC's own") && said.contains("without the module for Fortran"), "{said}");
    for file in [&header, &client] {
        assert_eq!(std::fs::read_to_string(file).expect("kept"), "another's", "{}", file.display());
    }
    assert!(lib.join("libbivouac.so.0.1").exists(), "a relative DESTDIR is one of the caller's folder");
    let left: Vec<_> = stale.iter().filter(|file| file.exists()).collect();
    assert!(left.is_empty(), "{left:?} would not fit the library");
}

#[test]
fn a_library_of_another_mpi_is_not_installed() {
    let other = "mpicc.mpich";
    if interfaces::compiler("c") != "mpicc" || !is_there(other) {
        println!("SKIPPED: an installation for another MPI (needs mpicc and {other})");
        return;
    }
    let folder = interfaces::folder();
    let prefix = folder.path().join("prefix");
    let mut command = Command::new(interfaces::root().join("ci/install.sh"));
    let output = command.arg(&prefix).arg("--built").arg(built()).env("MPICC", other).output().expect("bash is there");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("was built for libmpi"), "{errors}");
    assert!(!prefix.exists());
}
