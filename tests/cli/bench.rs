//! `bivouac bench`: what it measures, what it leaves behind, and what it reports when it cannot measure.
#![forbid(unsafe_code)]

use crate::limit::wait_until;
use crate::store::{Ran, Store, bivouac};
use bivouac_core::config::Choice;
use bivouac_core::format::profile::{Name, Profile};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

/// The figures that a session's bench measures without GPUs.
const FIGURES: [Name; 7] = [
    Name::Capture,
    Name::Populate,
    Name::LocalWrite,
    Name::LocalRead,
    Name::GlobalWrite,
    Name::GlobalRead,
    Name::Restore,
];

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::Builder::new().prefix("bivouac-test-cli-").tempdir().expect("a temporary directory");
        for name in ["local", "global"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Runs a short bench with these directories.
    fn bench(&self, local: &str, global: &str, more: &[&str]) -> Ran {
        let (out, local, global) = (self.path("machine.toml"), self.path(local), self.path(global));
        let options =
            ["bench", "--out", &out, "--local", &local, "--global", &global, "--size", "2 MiB", "--time", "10ms"];
        bivouac(&[&options[..], more].concat())
    }

    fn profile(&self) -> Profile {
        let text = std::fs::read_to_string(self.path("machine.toml")).expect("written");
        Profile::decode(&text).expect("it is right")
    }

    fn is_empty(&self, name: &str) -> bool {
        std::fs::read_dir(self.path(name)).expect("listed").next().is_none()
    }
}

#[test]
fn a_node_is_measured_and_planned_for_and_nothing_is_left() {
    let place = Place::new();
    let ran = place.bench("local", "global", &[]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    let profile = place.profile();
    for name in FIGURES {
        let figure = profile.figure(name, None).unwrap_or_else(|| panic!("{name:?}: {}", ran.out));
        assert!(
            figure.value > 1e5 && figure.samples >= 2 && figure.source.command.contains("bench --out"),
            "{figure:?}"
        );
        assert!(ran.out.contains(name.text()), "{}", ran.out);
    }
    assert!(ran.out.contains("pin, link_alone, link_together: "), "{}", ran.out);
    assert!(place.is_empty("local") && place.is_empty("global"));

    // `plan` uses the figures and names the ones that nobody has measured; printed as keys, the
    // plan is a configuration.
    let out = place.path("machine.toml");
    let plan = |more: &[&str]| bivouac(&[&["plan", "--profile", &out][..], more].concat());
    let text = plan(&["--mtbf", "6h", "--state", "4 GiB"]);
    assert!(
        text.out.contains("Not measured, and taken from laptop: slowdown, how long a relaunch takes (--relaunch).\n"),
        "{}",
        text.out
    );
    let keys = place.path("bivouac.toml");
    std::fs::write(&keys, plan(&["--config", "--mtbf", "6h"]).out).expect("written");
    assert_eq!(bivouac(&["config", "--changed", "--config", &keys]).status, 0);

    // A second bench replaces its own figures, and keeps those of others.
    let mut known = profile.clone();
    let old = known.figures[0].clone();
    known.figures.push(bivouac_core::format::profile::Figure { name: Name::Blocking, ..old });
    std::fs::write(&out, known.encode()).expect("written");
    assert_eq!(place.bench("local", "global", &[]).status, 0);
    let again = place.profile();
    assert_eq!(again.figure(Name::Blocking, None), known.figure(Name::Blocking, None));
    assert_eq!(again.figures.len(), known.figures.len());
    assert_ne!(again.figure(Name::Capture, None), profile.figure(Name::Capture, None));
}

#[test]
fn directories_that_cannot_be_measured_are_named_and_the_rest_is_written() {
    let place = Place::new();
    let memory = tempfile::Builder::new().prefix("bivouac-test-cli-").tempdir_in("/dev/shm").expect("/dev/shm");
    let memory = memory.path().to_str().expect("UTF-8");
    let out = place.path("machine.toml");
    let (gone, file) = (place.path("gone"), place.path("file"));
    std::fs::write(&file, "").expect("written");
    for (local, why) in [
        (memory, format!("local {memory}: cannot use {memory}: it is a tmpfs")),
        (&gone, format!("local {gone}: cannot use {gone}: No such file or directory (os error 2)")),
        (&file, format!("local {file}: cannot use {file}: Not a directory (os error 20)")),
    ] {
        let ran =
            bivouac(&["bench", "--out", &out, "--local", local, "--global", &gone, "--size", "1 MiB", "--time", "1ms"]);
        assert_eq!(ran.status, 2, "{}", ran.out);
        assert!(ran.out.contains(&why), "{why}: {}", ran.out);
        let profile = place.profile();
        assert!(profile.figure(Name::Populate, None).is_some() && profile.figure(Name::LocalWrite, None).is_none());
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    let place = Place::new();
    for (options, words) in [
        (&["--size", "much"][..], "a size of 1 MiB or more"),
        (&["--size", "4 KiB"], "a size of 1 MiB or more"),
        (&["--time", "0s"], "a time greater than 0"),
    ] {
        let out = place.path("machine.toml");
        let ran = bivouac(&[&["bench", "--out", &out][..], options].concat());
        assert!(ran.status == 2 && ran.err.contains(words), "{options:?}: {}", ran.err);
    }
    assert_eq!(bivouac(&["bench"]).status, 2);
    // A file of the user that happens to have the same name is not replaced.
    std::fs::write(place.path("machine.toml"), "[machine]\nnodes = 1").expect("written");
    let ran = place.bench("local", "global", &[]);
    assert!(ran.status == 2 && ran.err.contains("machine.toml: schema: it is missing; move it away"), "{}", ran.err);
    assert!(place.is_empty("local"));
}

/// A session with "auto" chooses the interval that `plan` gives for the profile that the session wrote.
#[test]
fn a_session_that_sets_its_interval_comes_to_what_is_planned_with_its_profile() {
    let store = Store::on(&[0]);
    let path = store.disk.path().join("machine.toml");
    let chosen = Mutex::new(None);
    let change = |config: &mut bivouac_core::Config| {
        config.job.interval.seconds = Choice::Auto;
        config.job.interval.least = Duration::from_millis(1);
        config.job.interval.mtbf = Some(Duration::from_secs(30));
        config.job.local_enabled = false;
        config.node.profile = Some(path.clone());
    };
    store.run(change, |session, _| {
        let data = vec![7u8; 1 << 20];
        let mut version = 0;
        while version < 12 {
            if session.should_checkpoint().expect("answered") {
                version += 1;
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint.save("data", &data).expect("saved");
                checkpoint.capture().expect("captured");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        *chosen.lock().expect("no panic") = session.stats().tuned;
    });
    let chosen = chosen.into_inner().expect("no panic").expect("something was chosen");
    let path = path.to_str().expect("UTF-8");
    let document = bivouac(&["plan", "--profile", path, "--mtbf", "30s", "--json"]).json();
    assert_eq!(document["state_bytes"].as_f64(), Some(1_049_000.0), "in four digits");
    let planned = document["levels"][0]["interval_s"].as_f64().expect("a number");
    // A disk that others also use does not always take the same time.
    let compared = planned / chosen.interval_seconds;
    println!("planned {planned:.3} s, chosen {:.3} s", chosen.interval_seconds);
    assert!((0.5..2.0).contains(&compared), "planned {planned}, chosen {chosen:?}: {document}");
}

/// Presses Ctrl-C in the middle of a bench.
#[test]
fn an_interrupted_bench_leaves_nothing() {
    let place = Place::new();
    let (out, local, global) = (place.path("machine.toml"), place.path("local"), place.path("global"));
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_bivouac"))
        .args(["bench", "--out", &out, "--local", &local, "--global", &global, "--size", "2 MiB", "--time", "600s"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started");
    wait_until("it writes", || !place.is_empty("local"));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
    assert!(place.is_empty("local") && place.is_empty("global") && !Path::new(&out).exists());
    let id = child.id().to_string();
    let left = std::fs::read_dir("/dev/shm").expect("listed").flatten();
    assert!(
        left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("bivouac-bench-{id}-"))).count()
            == 0
    );
}
