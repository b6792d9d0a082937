//! `bivouac status` and `bivouac config`: the state of a job, and its settings.
#![forbid(unsafe_code)]

use crate::limit;
use crate::store::{Ran, Store, bivouac, command, ran, take};
use bivouac_core::Level;
use std::path::Path;

fn status(directory: &Path, more: &[&str]) -> Ran {
    bivouac(&[&["status", directory.to_str().expect("UTF-8")], more].concat())
}

/// Waits until a status has been written for which `is_so` holds.
fn until(directory: &Path, is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let deadline = std::time::Instant::now() + limit::LIMIT;
    loop {
        let document = status(directory, &["--json"]).json();
        if is_so(&document["groups"][0]) {
            return document;
        }
        assert!(std::time::Instant::now() < deadline, "{document}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_job_is_shown_while_it_runs_and_when_it_has_ended() {
    let store = Store::empty();
    let directory = store.disk.path().join("run");
    let metrics = store.disk.path().join("bivouac.prom");
    let metrics_path = metrics.to_str().expect("UTF-8");
    store.run(
        |config| config.node.run_directory = Some(directory.clone()),
        |session, rank| {
            take(session, rank, &[10, 20], Level::System);
            if rank == 0 {
                // Both checkpoints must be at their last level: the status is written each time a
                // checkpoint reaches a level.
                let is_there = |level: &serde_json::Value| level["level"] == "system" && level["version"] == 20;
                let document =
                    until(&directory, |group| group["levels"].as_array().is_some_and(|all| all.iter().any(is_there)));
                assert_eq!(document["groups"][0]["checkpoints"], 2);
                assert_eq!(document["groups"][0]["asks_exit"], false);
                let halted = bivouac(&["halt", directory.to_str().expect("UTF-8"), "--at", "+1h"]);
                assert!(halted.status == 0 && halted.err.contains("not asked should_exit() so far"), "{halted:?}");
                let shown = status(&directory, &["--openmetrics", metrics_path]);
                assert_eq!(shown.status, 0, "{shown:?}");
                for part in ["group world: 2 ranks", "running", "system", "\"heat\" version 20", "refused 0"] {
                    assert!(shown.out.contains(part), "{part}: {shown:?}");
                }
            }
            session.should_exit().expect("an answer");
            if rank == 0 {
                until(&directory, |group| group["asks_exit"] == true);
            }
        },
    );
    let text = std::fs::read_to_string(&metrics).expect("written");
    assert!(text.contains("bivouac_up{") && text.contains(",level=\"system\"} 20\n"), "{text}");
    let ended = status(&directory, &["--follow"]);
    assert!(ended.status == 0 && ended.out.contains("closed"), "{ended:?}");
    assert!(!directory.join(format!("bivouac.prom.{}.tmp", std::process::id())).exists());
}

#[test]
fn a_job_is_found_by_its_name_in_the_configured_directory() {
    let store = Store::empty();
    let directory = store.disk.path().join("run");
    let name = std::sync::Mutex::new(String::new());
    store.run(
        |config| config.node.run_directory = Some(directory.clone()),
        |session, rank| {
            take(session, rank, &[1], Level::System);
            let job = until(&directory, |group| group["job"].is_string())["groups"][0]["job"].clone();
            *name.lock().expect("whole") = job.as_str().expect("text").to_owned();
        },
    );
    let key = name.into_inner().expect("whole");
    let (job, _) = key.rsplit_once('-').expect("a key");
    let ask = |job: &str| {
        let mut command = command();
        command.args(["status", job]).current_dir("/").env("BIVOUAC_RUN_DIRECTORY", &directory);
        ran(command)
    };
    assert!(ask(job).status == 0 && ask(job).out.contains(&key), "{:?}", ask(job));
    assert!(
        ask("nosuch").status == 3 && ask("nosuch").err.contains("no status of job \"nosuch\""),
        "{:?}",
        ask("nosuch")
    );
    let nowhere = ran({
        let mut command = command();
        command.args(["status", "nosuch"]).current_dir("/");
        command
    });
    assert!(nowhere.status == 2 && nowhere.err.contains("BIVOUAC_RUN_DIRECTORY"), "{nowhere:?}");
    assert_eq!(status(store.disk.path(), &[]).status, 3);
}

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bivouac.toml");
    std::fs::write(&file, "[global]\nkeep_last = 7\nevery = 2\n").expect("written");
    let show = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = command();
        command.arg("config").args(args).env("BIVOUAC_CONFIG", &file).envs(variables.iter().copied());
        ran(command)
    };
    let changed = show(&["--changed"], &[("BIVOUAC_GLOBAL_EVERY", "3"), ("BIVOUAC_LOG", "info")]);
    assert_eq!(changed.status, 0, "{changed:?}");
    let lines: Vec<&str> = changed.out.lines().filter(|line| line.contains('#')).collect();
    let [log, every, keep] = &lines[..] else { panic!("{changed:?}") };
    assert!(log.starts_with("log = \"info\"") && log.ends_with("# environment variable BIVOUAC_LOG"), "{log}");
    assert!(
        every.starts_with("every = 3") && every.ends_with("# environment variable BIVOUAC_GLOBAL_EVERY"),
        "{every}"
    );
    assert!(keep.starts_with("keep_last = 7") && keep.ends_with(&format!("# {}:2", file.display())), "{keep}");
    let all = show(&["--json"], &[]).json();
    let settings = all["settings"].as_array().expect("a list");
    let of = |key: &str| settings.iter().find(|setting| setting["key"] == key).expect(key);
    assert_eq!((&of("global.every")["source"], &of("global.every")["line"]), (&"file".into(), &3.into()));
    assert_eq!((&of("job.log")["source"], &of("job.log")["all_ranks"]), (&"default".into(), &false.into()));
    let wrong = show(&[], &[("BIVOUAC_GLOBL_EVERY", "3"), ("BIVOUAC_GLOBAL_EVERY", "0")]);
    assert!(
        wrong.status == 2 && wrong.err.contains("BIVOUAC_GLOBL_EVERY") && wrong.err.contains("global.every"),
        "{wrong:?}"
    );
}
