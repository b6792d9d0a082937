//! The command line with real MPI jobs: `bivouac doctor --mpi`, and `bivouac drain` after a job was killed.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

#[path = "damage/bed.rs"]
#[allow(dead_code)]
mod bed;
#[path = "damage/case.rs"]
#[allow(dead_code)]
mod case;
mod common;
mod store;

use common::limit;

use bed::{Bed, RANKS};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn program() -> std::path::PathBuf {
    assert_cmd::cargo::cargo_bin("bivouac")
}

/// The JSON document in an output; the MPI library may print lines before and after it.
fn document(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let (start, end) = (text.find('{').unwrap_or(0), text.rfind('}').map_or(0, |end| end + 1));
    serde_json::from_str(&text[start..end]).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn found<'d>(document: &'d Value, name: &str) -> &'d Value {
    let checks = document["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no check {name}: {document}"))
}

#[test]
fn the_doctor_sees_all_ranks_of_a_job_and_reports_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, global) = (program(), folder.path().join("global"));
    let args = [program.as_os_str(), "doctor".as_ref(), "--mpi".as_ref(), "--json".as_ref()];
    let env = [("BIVOUAC_GLOBAL_DIRECTORY", global.to_str().expect("UTF-8"))];
    let Some(output) = common::mpirun(3, &args, &env) else { return };
    let document = document(&output);
    let ranks = found(&document, "ranks");
    assert!(ranks["found"].as_str().expect("text").starts_with("3 ranks on 1 nodes, 3 on each"), "{ranks}");
    assert_eq!(found(&document, "shared directory")["verdict"], "ok", "{document}");
    assert_eq!(found(&document, "sockets")["verdict"], "ok", "{document}");
    assert!(found(&document, "thread level")["found"].as_str().expect("text").starts_with("MPI_THREAD_"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0);
}

/// Each rank is in a directory of its own, as on nodes where the configured directory is not shared.
#[test]
fn the_doctor_notices_that_ranks_do_not_share_the_global_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program();
    let script = "mkdir -p rank$$ && cd rank$$ && exec \"$0\" doctor --mpi --json";
    let run = format!("cd {} && {script}", folder.path().display());
    let args: [&std::ffi::OsStr; 4] = ["sh".as_ref(), "-c".as_ref(), run.as_ref(), program.as_os_str()];
    let Some(output) = common::mpirun(2, &args, &[("BIVOUAC_GLOBAL_DIRECTORY", "ckpt")]) else { return };
    let document = document(&output);
    let shared = found(&document, "shared directory");
    assert!(
        shared["verdict"] == "problem" && shared["found"].as_str().expect("text").contains("ranks 1 do not see"),
        "{shared}"
    );
    assert_eq!(document["good"], false);
}

/// All ranks of a real job are killed, and the versions that are only in memory are drained. Then memory and local storage are emptied, and
/// a new job restarts from the global directory with the same bytes.
#[test]
fn a_killed_job_is_drained_and_restarts_from_the_global_directory() {
    let mut bed = Bed::in_memory();
    // Only the first version is copied to the lower tiers without a drain.
    bed.set("BIVOUAC_GLOBAL_EVERY", "1000").set("BIVOUAC_LOCAL_EVERY", "2");
    let Some(mut job) = bed.start(&["run", "--versions", "9", "--wait", "process", "--hold", "6"]) else { return };
    job.wait_for_hold(6);
    job.kill(&(0..RANKS).collect::<Vec<_>>());
    job.end();
    let drain = |more: &[&str]| {
        let mut command = store::command();
        command.args(["drain", "--json", "--global"]).arg(&bed.global).arg("--memory").arg(&bed.memory);
        command.arg("--local").arg(&bed.local).args(more);
        store::ran(command)
    };
    let ran = drain(&["--wait", "0"]);
    let document = ran.json();
    assert_eq!((ran.status, document["damage"].as_array().map(Vec::len)), (0, Some(0)), "{document}");
    let newest = &document["checkpoints"][0];
    assert_eq!((&newest["version"], &newest["complete"]), (&5.into(), &true.into()), "{document}");
    assert_eq!(newest["copied"].as_array().map(Vec::len), Some(RANKS), "{document}");
    assert_eq!(drain(&[]).json()["bytes"], 0);
    let verified = store::with_path(&["verify"], &bed.global);
    assert_eq!(verified.status, 0, "{}", verified.out);
    for path in [&bed.memory, &bed.local] {
        empty(path);
    }
    // The job continues from that version, and ends with the data of an undisturbed run.
    let told = bed.run(&["run", "--versions", "9", "--wait", "system"]).expect("there was an mpirun");
    for rank in 0..RANKS {
        assert!(told.lines(rank, "restored version=5 generation=1 tier=global").len() == 1, "{told:?}");
        assert_eq!(told.lines(rank, "verified version=5").len(), 1, "{told:?}");
    }
    let undisturbed = Bed::in_memory();
    let other = undisturbed.run(&["run", "--versions", "9", "--wait", "process"]).expect("there was an mpirun");
    assert_eq!(told.lines(0, "digest"), other.lines(0, "digest"));
    assert_eq!(told.lines(0, "digest").len(), 1);
}

fn empty(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("there").flatten() {
        match entry.path().is_dir() {
            true => std::fs::remove_dir_all(entry.path()).expect("removed"),
            false => std::fs::remove_file(entry.path()).expect("removed"),
        }
    }
}

/// Under `MPI_Init`, the library's threads may not call MPI. These ranks call nothing between two checkpoints: they continue once all three
/// levels of the last checkpoint have ended.
#[test]
fn levels_are_committed_while_ranks_only_compute_however_many_there_are() {
    for ranks in [2, 8, 32] {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let place = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("made");
            path.to_str().expect("UTF-8").to_owned()
        };
        let (memory, local, global, out) = (place("memory"), place("local"), place("global"), place("out"));
        let worker = bed::worker();
        let args = ["run", "--out", &out, "--versions", "3", "--single", "--silent-levels", "3"];
        let args: Vec<&std::ffi::OsStr> =
            std::iter::once(worker.as_os_str()).chain(args.iter().map(std::convert::AsRef::as_ref)).collect();
        let env = [
            ("BIVOUAC_MEMORY_DIRECTORY", &*memory),
            ("BIVOUAC_LOCAL_DIRECTORY", &local),
            ("BIVOUAC_GLOBAL_DIRECTORY", &global),
            ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true"),
            ("BIVOUAC_MEMORY_BUDGET", "128 MiB"),
            ("BIVOUAC_JOB_BLOCK", "16 KiB"),
            // The 32 ranks share few cores here.
            ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ];
        let Some(output) = common::mpirun(ranks, &args, &env) else { return };
        assert!(output.status.success(), "{ranks} ranks: {output:?}");
        for rank in 0..ranks {
            let log = std::fs::read_to_string(Path::new(&out).join(format!("rank-{rank}.log"))).expect("its log");
            for (version, level) in (1..=3)
                .flat_map(|version| ["process", "node-reboot", "system"].into_iter().map(move |level| (version, level)))
            {
                let line = format!("silently version={version} level={level} ");
                assert!(log.contains(&line), "{ranks} ranks, rank {rank}: no {line:?}\n{log}");
            }
        }
    }
}

#[test]
fn status_follows_a_running_session_until_it_is_closed() {
    let mut bed = Bed::in_memory();
    let directory = bed.folder().join("run");
    bed.set("BIVOUAC_RUN_DIRECTORY", directory.to_str().expect("UTF-8"));
    let Some(mut job) = bed.start(&["run", "--versions", "3", "--hold", "2", "--wait", "system"]) else { return };
    job.wait_for_hold(2);
    let seen = bed.folder().join("seen.json");
    let mut status = std::process::Command::new(program());
    status.arg("status").arg(&directory).args(["--follow", "--every", "0.1", "--json"]);
    status.stdout(std::fs::File::create(&seen).expect("made")).stdin(std::process::Stdio::null());
    let mut status = status.spawn().expect("started");
    let documents = || -> Vec<Value> {
        let text = limit::lines_written_to(&seen);
        serde_json::Deserializer::from_str(&text).into_iter().map_while(Result::ok).collect()
    };
    // The versions that the command shows while the session is open.
    let newest = |document: &Value| {
        let series = document["groups"][0]["series"].as_array()?;
        series.iter().filter(|series| series["level"] == "system").find_map(|series| series["version"].as_u64())
    };
    let started = std::time::Instant::now();
    while !documents().iter().any(|document| newest(document) == Some(1)) {
        assert!(started.elapsed() < limit::LIMIT, "{:?}", documents());
        assert!(status.try_wait().expect("ours").is_none(), "it ended while the session was open");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    job.go(2);
    job.finish();
    assert!(status.wait().expect("ours").success());
    let last = documents().pop().expect("it has shown something");
    assert_eq!(newest(&last), Some(3), "{last}");
    assert_eq!(last["groups"][0]["closed"], true, "{last}");
}
