//! The library with VELOC's interface, used by C programs that are written for VELOC and linked with the library.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

#[path = "damage/case.rs"]
#[allow(dead_code, reason = "what the Rust interface's tests need besides")]
mod case;
#[path = "veloc/damage.rs"]
mod damage;
mod interfaces;
#[path = "common/limit.rs"]
mod limit;
#[path = "damage/spots.rs"]
#[allow(dead_code, reason = "as above")]
mod spots;

use interfaces::{compile_with, folder, gpu_program_ended, library_folder, line, mpirun, printed, root};
use interfaces::{memcheck, veloc};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A folder with the library, its configuration and a scratch and a persistent directory.
struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let folder = folder();
        veloc::client(folder.path());
        Bed { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration file with the two directories and `more`.
    fn config(&self, name: &str, more: &str) -> String {
        let directories =
            ["scratch", "persistent"].map(|directory| format!("{directory} = {}\n", self.path(directory).display()));
        let path = self.path(name);
        std::fs::write(&path, directories.concat() + more).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Compiles one of the tests' programs.
    fn program(&self, source: &str) -> PathBuf {
        veloc::program(self.folder.path(), &format!("tests/programs/c/{source}"), &[])
    }

    /// Compiles such a program with AddressSanitizer, which also sees what the library copies from and to the program's memory.
    fn watched(&self, source: &str) -> PathBuf {
        let options = ["-fsanitize=address", "-fno-omit-frame-pointer"];
        veloc::program(self.folder.path(), &format!("tests/programs/c/{source}"), &options)
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        self.command_on(2, program, arguments)
    }

    fn command_on(&self, ranks: usize, program: &Path, arguments: &[&str]) -> Command {
        let mut command = mpirun(ranks, self.folder.path(), program, arguments);
        // Leaks in MPI are not this test's concern.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        for name in
            ["BIVOUAC_JOB_NAME", "BIVOUAC_LOCAL_DIRECTORY", "BIVOUAC_GLOBAL_DIRECTORY", "BIVOUAC_LOCAL_ALLOW_TMPFS"]
        {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().expect("mpirun")
    }

    /// Runs a program under memcheck. It must succeed, and memcheck must find no fault of this package.
    fn run_under_memcheck(&self, ranks: usize, program: &Path, arguments: &[&str]) -> String {
        let arguments = memcheck::arguments(self.folder.path(), program, arguments);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.command_on(ranks, Path::new("valgrind"), &arguments).output().expect("mpirun");
        let said = printed(&output);
        memcheck::check(self.folder.path(), ranks);
        said
    }

    /// The files below a directory whose paths contain `mark`.
    fn files(&self, directory: &str, mark: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(directory)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.to_str().expect("UTF-8").contains(mark) => found.push(path),
                    false => {}
                }
            }
        }
        found
    }

    /// The containers of one version, on scratch and on persistent storage.
    fn containers(&self, version: u64) -> Vec<PathBuf> {
        let mark = format!("-v{version:010}-");
        let files = ["scratch", "persistent"].map(|directory| self.files(directory, &mark));
        let data = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bvs" || extension == "bvc");
        let found: Vec<PathBuf> = files.concat().into_iter().filter(data).collect();
        assert!(found.len() >= 2, "version {version} is on both: {found:?}");
        found
    }
}

/// Flips a bit in each half of a file: in both ranks' data if they share a container.
fn flip(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let length = file.metadata().expect("a length").len();
    for at in [length / 4, length / 4 * 3] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
    }
}

fn cut_in_half(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).expect("opens");
    file.set_len(file.metadata().expect("a length").len() / 2).expect("cut");
}

/// The bytes that VELOC itself would have written for one rank of `veloc_steps`.
fn written_by_veloc(rank: usize, step: i32) -> Vec<u8> {
    let many = 50_000 + 1000 * rank;
    let value = |at: usize| 1e6 * rank as f64 + 1e3 * f64::from(step) + (at % 1000) as f64;
    let mut bytes = 2u64.to_ne_bytes().to_vec();
    for (id, size) in [(1i32, 8 * many as u64), (0, 4)] {
        bytes.extend(id.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
    }
    bytes.extend((0..many).flat_map(|at| value(at).to_ne_bytes()));
    bytes.extend(step.to_ne_bytes());
    bytes
}

#[test]
fn every_function_does_what_it_says_and_survives_every_mistake() {
    let bed = Bed::new();
    let (background, waits) = (bed.config("async.cfg", "mode = async\n"), bed.config("sync.cfg", "mode = sync\n"));
    let wrong = bed.config("wrong.cfg", "mode = fast\n");
    // Both ranks write to one file, because mpirun may itself cut lines in two.
    let program = bed.watched("veloc_calls.c");
    let script = ["-c", r#"exec "$@" 2>> errors"#, "sh", program.to_str().expect("UTF-8"), &background, &waits, &wrong];
    let said = bed.run(Path::new("sh"), &script);
    let errors = std::fs::read_to_string(bed.path("errors")).expect("UTF-8");
    assert!(said.status.success(), "{errors}");
    assert_eq!(line(&printed(&said), "calls:"), "done");
    // A failure is reported once, with its reason.
    assert!(errors.contains("VELOC_Init: ") && errors.contains("mode = fast: it must be sync or async"), "{errors}");
    assert!(bed.files("scratch/veloc-files", "").is_empty(), "routed files are gone");
    // Each line is in one piece, although two ranks print at the same time: besides the library's own lines, each has one
    // function and its message.
    for line in errors.lines().filter(|line| !line.starts_with('[') && !line.starts_with("bivouac: ")) {
        let functions = line.split_whitespace().filter(|word| word.contains("VELOC_") && word.ends_with(':'));
        assert!(line.starts_with("VELOC_") && functions.count() == 1, "{line:?} in\n{errors}");
    }

    let said = printed(&bed.run(&bed.program("veloc_listing.c"), &[&background]));
    assert_eq!(said.lines().filter(|line| *line == "listing: done").count(), 2, "{said}");
}

#[test]
fn what_is_protected_has_node_memory_before_the_first_checkpoint() {
    let bed = Bed::new();
    let config = bed.config("veloc.cfg", "mode = async\n");
    printed(&bed.run(&bed.program("veloc_ready.c"), &[&config, &limit::LIMIT.as_secs().to_string()]));
}

#[test]
fn programs_for_the_class_of_veloc_save_structures_and_restore_them_in_the_next_run() {
    let bed = Bed::new();
    let config = bed.config("class.cfg", "mode = async\nmax_versions = 0\n");
    for (standard, run) in [("-std=c++11", "1"), ("-std=c++20", "2")] {
        let options = [standard, "-Wshadow", "-Wconversion", "-fsanitize=address", "-fno-omit-frame-pointer"];
        let program = veloc::program(bed.folder.path(), "tests/programs/c/veloc_class.cpp", &options);
        let said = bed.run(&program, &[&config, run]);
        assert_eq!(line(&printed(&said), "class:"), "done");
        if run == "1" {
            let errors = String::from_utf8_lossy(&said.stderr);
            for part in ["target_rank 1: rank 0 restores its own", "region 5 cannot be deserialized"] {
                assert!(errors.contains(part), "{part}: {errors}");
            }
        }
    }
}

/// VELOC does not start without its directories, and neither does this library.
#[test]
fn directories_that_cannot_be_used_end_init() {
    let bed = Bed::new();
    let program = bed.program("veloc_runs.c");
    for missing in ["scratch", "persistent"] {
        let other = if missing == "scratch" { "persistent" } else { "scratch" };
        let text = format!("{other} = {}\n{missing} = /proc/nope\nmode = sync\n", bed.path(other).display());
        std::fs::write(bed.path("impossible.cfg"), text).expect("written");
        let (config, folder) = (bed.path("impossible.cfg"), bed.path("."));
        let [config, folder] = [&config, &folder].map(|path| path.to_str().expect("UTF-8"));
        let output = bed.run(&program, &["first", config, folder]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains("VELOC_Init: the session could not be opened: all 2 ranks: "),
            "{errors}"
        );
        assert!(errors.contains("/proc/nope"), "{errors}");
    }
}

#[test]
fn device_memory_is_ordered_on_the_default_stream() {
    let bed = Bed::new();
    let config = bed.config("gpu.cfg", "mode = async\n");
    gpu_program_ended(&bed.run(&bed.program("veloc_gpu.c"), &[&config]));
}

#[test]
fn a_program_compiled_against_either_header_is_the_same_program() {
    let bed = Bed::new();
    let source = root().join("tests/programs/c/veloc_abi.c");
    let library = format!("-L{}", bed.path("lib").display());
    compile_with(bed.folder.path(), "abi", &[source], &["-std=c11"], &[&library, "-lveloc-client"]);
    let plus = bed.program("veloc_plus.cpp");
    // This program is linked only under VELOC's name, and runs without mpirun and MPI.
    let status = Command::new(plus).env("LD_LIBRARY_PATH", library_path(&bed)).stderr(Stdio::null()).status();
    assert!(status.expect("runs").success());
    let symbols = |path: &Path| {
        let output = Command::new("nm").args(["-D", "--defined-only"]).arg(path).output().expect("nm");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let defined = symbols(&bed.path("lib/libveloc-client.so"));
    assert_eq!(defined.lines().filter(|line| line.contains(" T VELOC_")).count(), 25 + 4, "{defined}");
    assert!(!symbols(&library_folder().join(interfaces::LIBRARY)).contains("VELOC_"));
}

fn library_path(bed: &Bed) -> String {
    // The helper for mpirun makes the link with the library's name.
    drop(bed.command(Path::new("true"), &[]));
    bed.path("lib").to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_killed_program_goes_on_and_falls_back_from_damage_on_all_ranks() {
    let bed = Bed::new();
    let steps = bed.watched("veloc_steps.c");
    let config = bed.config("veloc.cfg", "mode = async\nmax_versions = 0\n");
    let killed = bed.run(&steps, &[&config, "9", "4"]);
    assert!(!killed.status.success());
    assert_eq!(line(&String::from_utf8_lossy(&killed.stdout), "from"), "-1");
    let said = printed(&bed.run(&steps, &[&config, "9", "0"]));
    assert_eq!((line(&said, "from").as_str(), line(&said, "reached").as_str()), ("4", "9"));

    // A bit is flipped in every copy: a version that cannot be restored is not offered.
    bed.containers(9).iter().for_each(|path| flip(path));
    bed.containers(8).iter().for_each(|path| cut_in_half(path));
    let said = printed(&bed.run(&steps, &[&config, "7", "0"]));
    assert_eq!(line(&said, "from"), "7");
    assert!(!said.contains("refused"), "{said}");
    // Without the check in advance, the restart refuses, on all ranks and once.
    let trusting = bed.config("trusting.cfg", "mode = async\nmax_versions = 0\nverify = false\n");
    let said = printed(&bed.run(&steps, &[&trusting, "7", "0"]));
    assert!(said.starts_with("refused 9\nrefused 8\nfrom 7\n"), "{said}");
    // One good copy of each rank's data is enough.
    bed.files("scratch", "-v0000000007-").iter().for_each(|path| flip(path));
    let said = printed(&bed.run(&steps, &[&config, "10", "0"]));
    assert_eq!((line(&said, "from").as_str(), line(&said, "reached").as_str()), ("7", "10"));
}

/// Regions of VELOC's programs belong to their ranks. Another number of ranks is offered no version, not even an older one of its own
/// number, and hears why.
#[test]
fn another_number_of_ranks_is_offered_nothing_and_told_why() {
    let bed = Bed::new();
    let steps = bed.watched("veloc_steps.c");
    let config = bed.config("veloc.cfg", "mode = async\nmax_versions = 0\n");
    printed(&bed.run(&steps, &[&config, "4", "0"]));
    for ranks in [3, 1] {
        let output = bed.command_on(ranks, &steps, &[&config, "0", "0"]).output().expect("mpirun");
        assert_eq!(line(&printed(&output), "from"), "-1", "{ranks} ranks");
        let told = String::from_utf8_lossy(&output.stderr);
        let why = format!("version 4 was taken by 2 ranks, and these are {ranks}: start it on as many");
        assert_eq!(told.matches(&why).count(), 1, "{told}");
    }
    // Nothing is lost: the original number of ranks continues.
    assert_eq!(line(&printed(&bed.run(&steps, &[&config, "5", "0"])), "from"), "4");
}

#[test]
fn what_was_read_to_test_it_is_not_read_again_by_the_restart() {
    let bed = Bed::new();
    let steps = bed.watched("veloc_steps.c");
    let config = bed.config("veloc.cfg", "mode = async\nmax_versions = 0\n");
    printed(&bed.run(&steps, &[&config, "2", "0"]));
    std::fs::remove_dir_all(bed.path("memory")).expect("node memory goes");
    let containers = bed.containers(2);
    let damaged = containers.iter().map(|path| path.to_str().expect("UTF-8"));
    let arguments: Vec<&str> = [&*config, "2", "0"].into_iter().chain(damaged).collect();
    let said = printed(&bed.run(&steps, &arguments));
    assert_eq!(line(&said, "from"), "2", "{said}");
    assert!(!said.contains("refused"), "{said}");
}

#[test]
fn the_example_goes_on_after_a_kill_and_ends_as_if_nobody_had_disturbed_it() {
    let (undisturbed, bed) = (Bed::new(), Bed::new());
    let ring = |bed: &Bed| {
        (
            veloc::program(bed.folder.path(), "mpi-examples/c/veloc_ring.c", &[]),
            bed.config("veloc.cfg", "mode = async\n"),
        )
    };
    let (program, config) = ring(&undisturbed);
    let expected = printed(&undisturbed.run(&program, &[&config, "60", "10"]));
    let (program, config) = ring(&bed);
    let killed = bed.run(&program, &[&config, "60", "10", "45"]);
    assert!(!killed.status.success(), "{killed:?}");
    let again = printed(&bed.run(&program, &[&config, "60", "10"]));
    // The kill may have cut off the agreement on the last checkpoint or two.
    assert!(
        ["40 step=40", "30 step=30", "20 step=20"].contains(&line(&again, "restored version=").as_str()),
        "{again}"
    );
    assert_eq!(line(&again, "sum"), line(&expected, "sum"));
}

#[test]
fn checkpoints_that_veloc_wrote_are_read_until_there_are_newer_ones() {
    let bed = Bed::new();
    let steps = bed.watched("veloc_steps.c");
    let config = bed.config("veloc.cfg", "");
    for directory in ["scratch", "persistent"] {
        std::fs::create_dir(bed.path(directory)).expect("made");
    }
    let write = |directory: &str, rank, step, bytes: &[u8]| {
        std::fs::write(bed.path(directory).join(format!("steps-{rank}-{step}.dat")), bytes).expect("written");
    };
    for (rank, directory) in [(0, "scratch"), (1, "persistent")] {
        write(directory, rank, 40, &written_by_veloc(rank, 40));
        // The file is longer than its header says: VELOC does not truncate a file that it writes again.
        write("persistent", rank, 30, &[&written_by_veloc(rank, 30)[..], b"more"].concat());
    }
    write("scratch", 0, 50, &written_by_veloc(0, 50));
    let torn = written_by_veloc(1, 50);
    write("scratch", 1, 50, &torn[..torn.len() - 1]);
    // The version is whole, but does not fit on one rank: it is refused once, and not offered again.
    write("scratch", 0, 60, &written_by_veloc(0, 60));
    write("scratch", 1, 60, &written_by_veloc(2, 60));
    let said = printed(&bed.run(&steps, &[&config, "42", "0"]));
    assert!(said.starts_with("refused 60\nfrom 40\n"), "{said}");
    assert_eq!(line(&said, "reached"), "42");
    let said = printed(&bed.run(&steps, &[&config, "42", "0"]));
    assert_eq!(line(&said, "from"), "42");
}

/// May this test mount a small file system of its own? Prints a loud note if it may not.
fn can_mount(test: &str) -> bool {
    let probe = "mount -t tmpfs -o size=1m bivouac-probe /mnt";
    let tried = Command::new("unshare").args(["-m", "sh", "-c", probe]).stderr(Stdio::null()).status();
    let can = rustix::process::geteuid().is_root() && tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("\n*** SKIPPED {test}: it mounts a small file system; run it as root ***\n");
    }
    can
}

impl Bed {
    /// Runs a program with a scratch directory of 1 MiB, in its own namespace. Afterwards, some shell commands inspect that directory,
    /// which is `$dir`; their output comes last.
    fn run_on_small_scratch(&self, program: &Path, arguments: &[&str], look: &str) -> String {
        let scratch = self.path("scratch");
        std::fs::create_dir_all(&scratch).expect("made");
        let run = self.command(program, arguments);
        let script =
            format!(r#"dir=$1 && shift && mount -t tmpfs -o size=1m bivouac-scratch "$dir" && "$@" && {look}"#);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "sh"]).arg(&scratch).arg(run.get_program()).args(run.get_args());
        for (name, value) in run.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        printed(&command.current_dir(self.folder.path()).output().expect("unshare"))
    }

    /// A configuration without node memory, and without the features that need node memory.
    fn config_without_memory(&self, more: &str) -> String {
        std::fs::write(self.path("more.toml"), "[memory]\nenabled = false\n").expect("written");
        let own = self.path("more.toml");
        self.config("veloc.cfg", &format!("mode = async\nec_interval = -1\nbivouac = {}\n{more}", own.display()))
    }
}

#[test]
fn a_full_scratch_directory_gives_no_checkpoint_and_no_empty_file() {
    if !can_mount("a_full_scratch_directory_gives_no_checkpoint_and_no_empty_file") {
        return;
    }
    let bed = Bed::new();
    let config = bed.config_without_memory("persistent_interval = -1\n");
    let look = r#"find "$dir" -name '*.bvs' -size -1c && find "$dir" -name '*v0000000002*' -type f"#;
    let said = bed.run_on_small_scratch(&bed.program("veloc_full.c"), &[&config], look);
    assert_eq!(line(&said, "full:"), "done");
    assert_eq!(said.lines().count(), 1, "nothing of version 2 and nothing empty: {said}");
}

#[test]
fn a_full_scratch_directory_is_no_failure_while_persistent_storage_has_the_checkpoint() {
    if !can_mount("a_full_scratch_directory_is_no_failure_while_persistent_storage_has_the_checkpoint") {
        return;
    }
    let bed = Bed::new();
    let config = bed.config_without_memory("");
    let look = r#"find "$dir" -name '*.bvs' -path '*v0000000002*'"#;
    let said = bed.run_on_small_scratch(&bed.program("veloc_full.c"), &[&config, "persistent"], look);
    assert_eq!(line(&said, "full:"), "done");
    assert!(!said.contains("r000001.bvs"), "the scratch directory was not too small: {said}");
}

#[test]
fn a_second_run_of_the_job_is_refused_or_takes_over_and_then_the_first_one_saves_nothing_more() {
    let bed = Bed::new();
    let program = bed.watched("veloc_runs.c");
    std::fs::write(bed.path("more.toml"), "[job]\ntake_over = true\n").expect("written");
    let config = bed.config("veloc.cfg", "mode = async\n");
    let taking = bed.config("taking.cfg", &format!("mode = async\nbivouac = {}\n", bed.path("more.toml").display()));
    let folder = bed.folder.path().to_str().expect("UTF-8");
    let start = |arguments: &[&str]| {
        let mut command = bed.command(&program, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun")
    };
    let mut first = start(&["first", &config, folder]);
    while !bed.path("first").exists() {
        assert!(first.try_wait().expect("a child").is_none(), "{:?}", first.wait_with_output());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut second = start(&["second", &config, &taking, folder]);
    // If one run ends early, the test writes the file for which the other waits.
    while first.try_wait().expect("a child").is_none() {
        if second.try_wait().expect("a child").is_some() {
            std::fs::write(bed.path("second"), "").expect("written");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::write(bed.path("ended"), "").expect("written");
    let ended = first.wait_with_output().expect("output");
    let going_on = second.wait_with_output().expect("output");
    let errors = String::from_utf8_lossy(&going_on.stderr);
    assert_eq!(line(&printed(&ended), "first:"), "done", "{errors}");
    assert_eq!(line(&printed(&going_on), "second:"), "done");
}

#[test]
fn a_forked_child_can_do_nothing_to_the_session_of_its_parent() {
    let bed = Bed::new();
    let config = bed.config("veloc.cfg", "mode = async\n");
    let program = veloc::program(bed.folder.path(), "tests/programs/c/veloc_fork.c", &["-std=c11"]);
    let said = printed(&bed.run(&program, &[&config]));
    assert_eq!(line(&said, "fork:"), "done");
}

#[test]
fn memcheck_finds_nothing_of_ours() {
    if !memcheck::can() {
        return;
    }
    let bed = Bed::new();
    let (background, waits) = (bed.config("async.cfg", "mode = async\n"), bed.config("sync.cfg", "mode = sync\n"));
    let wrong = bed.config("wrong.cfg", "mode = fast\n");
    let ranks = if memcheck::is_whole() { 2 } else { 1 };
    // This runs a restart and a checkpoint; the first steps are not watched, which is quicker.
    let steps = bed.program("veloc_steps.c");
    printed(&bed.command_on(ranks, &steps, &[&background, "2", "0"]).output().expect("mpirun"));
    let said = bed.run_under_memcheck(ranks, &steps, &[&background, "3", "0"]);
    assert_eq!((line(&said, "from").as_str(), line(&said, "reached").as_str()), ("2", "3"));
    if memcheck::is_whole() {
        let calls = bed.program("veloc_calls.c");
        let said = bed.run_under_memcheck(ranks, &calls, &[&background, &waits, &wrong]);
        assert_eq!(line(&said, "calls:"), "done");
        bed.run_under_memcheck(ranks, &bed.program("veloc_listing.c"), &[&background]);
    }
}
