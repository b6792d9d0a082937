//! `bivouac doctor` in environments that the tests make up around it. Its conclusions from facts are
//! tested next to the code.
#![forbid(unsafe_code)]

use crate::store;
use crate::store::{Ran, Store, command, entries, ran};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Directories of an environment, and a folder of commands that come first in the path.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["bin", "memory", "local", "global"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        let place = Place { folder };
        place.script("mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a command with this name and this body.
    fn script(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("changed");
    }

    fn doctor(&self, variables: &[(&str, &str)]) -> Ran {
        let mut doctor = command();
        doctor.args(["doctor", "--json"]);
        for name in ["SLURM_JOB_ID", "SLURM_JOBID"] {
            doctor.env_remove(name);
        }
        doctor.env("PATH", format!("{}:/usr/sbin:/sbin", self.path("bin").display()));
        doctor.env("BIVOUAC_MEMORY_DIRECTORY", "/dev/shm").env("BIVOUAC_LOCAL_DIRECTORY", self.path("local"));
        doctor.env("BIVOUAC_GLOBAL_DIRECTORY", self.path("global")).env("BIVOUAC_LOCAL_ALLOW_TMPFS", "true");
        doctor.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        doctor.envs(variables.iter().copied());
        ran(doctor)
    }
}

fn check<'d>(document: &'d Value, name: &str) -> &'d Value {
    let checks = document["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no check {name}: {document}"))
}

/// Checks the verdict and the advice of one check.
#[track_caller]
fn expect(ran: &Ran, name: &str, verdict: &str, word: &str) {
    let document = ran.json();
    let check = check(&document, name);
    assert_eq!(check["verdict"], verdict, "{check}");
    let advice = check["advice"].as_str().unwrap_or_default();
    assert!(advice.contains(word), "{check}");
    let has_problem = document["checks"].as_array().expect("a list").iter().any(|check| check["verdict"] == "problem");
    assert_eq!((ran.status, document["good"].as_bool()), (i32::from(has_problem), Some(!has_problem)), "{document}");
}

#[test]
fn a_usable_environment_is_good_and_nothing_stays_behind() {
    let place = Place::new();
    let ran = place.doctor(&[]);
    let document = ran.json();
    assert_eq!((ran.status, document["good"].as_bool()), (0, Some(true)), "{document}");
    for name in [
        "configuration",
        "MPI",
        "memory tier",
        "segments",
        "local tier",
        "global tier",
        "limits",
        "batch system",
        "libraries",
        "clock",
    ] {
        assert_ne!(check(&document, name)["verdict"], "problem");
    }
    assert!([place.path("local"), place.path("global")].iter().all(|path| entries(path).is_empty()));
    let mut text = command();
    text.arg("doctor")
        .env("BIVOUAC_GLOBAL_DIRECTORY", place.path("not/yet"))
        .env("BIVOUAC_LOCAL_DIRECTORY", place.path("local"));
    let text = store::ran(text);
    let lines: Vec<&str> = text.out.lines().collect();
    let (last, checks) = lines.split_last().expect("lines");
    assert!(
        checks.iter().all(|line| ["ok ", "warning ", "problem "].iter().any(|word| line.starts_with(word))),
        "{}",
        text.out
    );
    assert!(
        last.starts_with(&format!("{} checks, ", checks.len())) && text.out.contains("not there yet"),
        "{}",
        text.out
    );
    assert!(!place.path("not").exists());
}

#[test]
fn what_the_settings_ask_for_and_cannot_be_is_a_problem() {
    let place = Place::new();
    expect(&place.doctor(&[("BIVOUAC_GLOBAL_KEEP_LSAT", "3")]), "configuration", "problem", "correct it");
    expect(&place.doctor(&[("BIVOUAC_CONFIG", "/no/such/file")]), "configuration", "problem", "correct it");
    expect(&place.doctor(&[("BIVOUAC_MEMORY_DIRECTORY", "/no/such/folder")]), "memory tier", "problem", "/dev/shm");
    let file = place.path("file");
    std::fs::write(&file, "").expect("written");
    let below = file.join("x");
    expect(
        &place.doctor(&[("BIVOUAC_GLOBAL_DIRECTORY", below.to_str().expect("UTF-8"))]),
        "global tier",
        "problem",
        "global.directory",
    );
    std::fs::write(place.path("global/store"), "rubbish").expect("written");
    expect(&place.doctor(&[]), "store", "problem", "owner");
    std::fs::remove_file(place.path("bin/mpirun")).expect("removed");
    expect(&place.doctor(&[]), "MPI", "problem", "module");
}

#[test]
fn a_directory_that_can_never_be_made_is_a_problem() {
    let place = Place::new();
    let impossible = |variable, key, check| {
        let ran = place.doctor(&[(variable, "/proc/nope")]);
        expect(&ran, check, "problem", key);
        let found = found_by(&ran, check);
        assert!(found.contains("/proc/nope: cannot be created: cannot create a folder in /proc: "), "{found}");
        assert!(found.contains("os error") && !found.contains("free"), "{found}");
    };
    impossible("BIVOUAC_GLOBAL_DIRECTORY", "global.directory", "global tier");
    impossible("BIVOUAC_LOCAL_DIRECTORY", "local.directory", "local tier");
    // A directory that a session can make is no problem, and the trial leaves nothing behind.
    let (parent, wanted) = (place.path("new"), place.path("new/global"));
    std::fs::create_dir(&parent).expect("made");
    let ran = place.doctor(&[("BIVOUAC_GLOBAL_DIRECTORY", wanted.to_str().expect("UTF-8"))]);
    assert_ne!(check(&ran.json(), "global tier")["verdict"], "problem");
    assert!(entries(&parent).is_empty());
}

/// The finding of one check.
fn found_by(ran: &Ran, name: &str) -> String {
    check(&ran.json(), name)["found"].as_str().expect("text").to_owned()
}

#[test]
fn what_is_reported_in_several_lines_is_shown_in_several() {
    let place = Place::new();
    let file = place.path("two.toml");
    std::fs::write(&file, "[global]\nkeep_lsat = 3\n[local]\nnosuch = 1\n").expect("written");
    let mut doctor = command();
    doctor.arg("doctor").env("BIVOUAC_CONFIG", &file).current_dir(place.folder.path());
    let ran = store::ran(doctor);
    assert!(ran.status == 1 && !ran.out.contains('\u{fffd}'), "{}", ran.out);
    let lines: Vec<&str> = ran.out.lines().take(4).collect();
    let start = lines[0].find("2 problems in the configuration:").expect("the first line");
    for (line, words) in lines[1..].iter().zip(["keep_lsat", "nosuch", "Correct it"]) {
        assert!(line.contains(words) && line[..start].trim().is_empty(), "{words}: {}", ran.out);
    }
    let mut doctor = command();
    doctor.arg("doctor").env("BIVOUAC_GLOBAL_KEEP_LSAT", "3").current_dir(place.folder.path());
    let ran = store::ran(doctor);
    assert!(ran.out.contains("BIVOUAC_GLOBAL_KEEP_LAST? Correct it"), "{}", ran.out);
}

#[test]
fn a_tmpfs_is_no_local_tier_unless_it_is_allowed() {
    let place = Place::new();
    let memory = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a folder");
    let local = memory.path().to_str().expect("UTF-8");
    expect(
        &place.doctor(&[("BIVOUAC_LOCAL_DIRECTORY", local), ("BIVOUAC_LOCAL_ALLOW_TMPFS", "false")]),
        "local tier",
        "problem",
        "allow_tmpfs",
    );
    let allowed = place.doctor(&[("BIVOUAC_LOCAL_DIRECTORY", local)]);
    assert_eq!(check(&allowed.json(), "local tier")["verdict"], "ok");
    let off = place.doctor(&[("BIVOUAC_LOCAL_DIRECTORY", local), ("BIVOUAC_LOCAL_ENABLED", "false")]);
    assert!(check(&off.json(), "local tier")["found"].as_str().expect("text").contains("switched off"));
}

#[test]
fn what_another_user_may_not_do_is_a_problem() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!(
            "\n*** SKIPPED: it becomes another user. Run it as root: sudo -E cargo nextest run --test cli another_user ***\n"
        );
    }
    let place = Place::new();
    let program = place.path("bivouac");
    std::fs::copy(assert_cmd::cargo::cargo_bin("bivouac"), &program).expect("copied");
    for path in [place.folder.path(), &place.path("global"), &place.path("bin"), &place.path("local")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("changed");
    }
    let output = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["doctor", "--json"])
        .env("BIVOUAC_GLOBAL_DIRECTORY", place.path("global"))
        .env("BIVOUAC_LOCAL_DIRECTORY", place.path("local"))
        .env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", place.path("bin").display()))
        .output()
        .expect("runs");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    for name in ["global tier", "local tier"] {
        let check = check(&document, name);
        assert!(
            check["verdict"] == "problem" && check["found"].as_str().expect("text").contains("Permission denied"),
            "{check}"
        );
    }
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn slurms_words_are_understood() {
    let place = Place::new();
    place.script("srun", "echo 'slurm 22.05.8'");
    place.script("scontrol", "echo \"JobId=$4 JobName=x Requeue=1 Restarts=0\"");
    place.script("squeue", "echo 1-00:00:00");
    let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "4"), ("SLURM_TASKS_PER_NODE", "2(x4)")];
    let ran = place.doctor(&job);
    let found = check(&ran.json(), "batch system")["found"].as_str().expect("text").to_owned();
    assert_eq!(found, "SLURM, job 7, 4 nodes, 2(x4) tasks per node, 24 h 0 min left, may be requeued");
    expect(&ran, "end of allocation", "warning", "BIVOUAC_EXIT_END_TIME");
    // A disk of one node cannot serve four nodes.
    let kind = check(&ran.json(), "global tier")["found"].as_str().expect("text").to_owned();
    if ["ext4", "xfs", "btrfs", "overlay"].iter().any(|name| kind.contains(name)) {
        expect(&ran, "global tier", "problem", "all nodes share");
    }
    let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let soon = (end + 60).to_string();
    expect(
        &place.doctor(&[&job[..1], &[("SLURM_JOB_END_TIME", &soon)]].concat()),
        "end of allocation",
        "problem",
        "sbatch --time",
    );
    let array = [&job[..1], &[("SLURM_ARRAY_TASK_ID", "3")]].concat();
    expect(&place.doctor(&array), "job array", "warning", "SLURM_ARRAY_TASK_ID");
    std::fs::remove_file(place.path("bin/scontrol")).expect("removed");
    expect(&place.doctor(&job[..1]), "batch system", "warning", "PATH");
}

#[test]
fn leftovers_and_living_runs_are_seen() {
    let store = Store::with(&[10, 20]);
    let place = Place::new();
    let (global, memory) = (store.global(), store.memory.path().to_owned());
    let variables = [
        ("BIVOUAC_GLOBAL_DIRECTORY", global.to_str().expect("UTF-8")),
        ("BIVOUAC_MEMORY_DIRECTORY", memory.to_str().expect("UTF-8")),
    ];
    let ran = place.doctor(&variables);
    assert_eq!(check(&ran.json(), "store")["found"], "2 checkpoints, 0 of them without a manifest, 0 temp files");
    let folder = store.folders(&global)[0].clone();
    std::fs::write(folder.join("r000000.bvs.tmp"), "unfinished").expect("written");
    expect(&place.doctor(&variables), "store", "warning", "bivouac clean");
    store.run_killed(|_| (), |session, rank| store::take(session, rank, &[30], bivouac_core::Level::System));
    expect(&place.doctor(&variables), "segments", "warning", "bivouac drain");
    store.while_it_runs(
        |_| (),
        || {
            let ran = place.doctor(&variables);
            expect(&ran, "store", "warning", "job.take_over");
            assert!(check(&ran.json(), "store")["found"].as_str().expect("text").contains("living run, generation 3"));
        },
    );
}

#[test]
fn without_the_probe_a_job_is_not_checked() {
    let place = Place::new();
    let program = place.path("bivouac");
    std::fs::copy(assert_cmd::cargo::cargo_bin("bivouac"), &program).expect("copied");
    let output = std::process::Command::new(&program).args(["doctor", "--mpi"]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("built without MPI"), "{text}");
}

#[test]
fn wrong_usage_ends_with_status_2() {
    assert_eq!(store::bivouac(&["doctor", "--unheard-of"]).status, 2);
    assert_eq!(store::with_path(&["doctor"], Path::new("/tmp")).status, 2);
}
