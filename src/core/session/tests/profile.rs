//! The machine profile that a session writes when it ends and reads when it begins.

use super::*;
use crate::config::Choice;
use crate::format::profile::{Name, Profile};
use crate::format::supervision::ATTEMPTS_FILE;
use crate::policy::tuning::Measured;
use crate::transfer::profile::{read, write};
use std::os::unix::fs::PermissionsExt;

/// A profile with a figure from `bivouac bench`, which no session measures, and a figure that every session measures.
const BENCH: &str = r#"schema = 1
[machine]
nodes = 1
ranks = 1
[[figure]]
name = "capture"
bytes_per_second = 5e9
least = 5e9
most = 5e9
samples = 3
date = "2026-01-31T12:00:00Z"
host = "node1"
command = "bivouac bench"
[[figure]]
name = "blocking"
seconds = 77.0
least = 77.0
most = 77.0
samples = 3
date = "2026-01-31T12:00:00Z"
host = "node1"
command = "an earlier session"
"#;

#[test]
fn a_session_writes_what_its_checkpoints_cost_beside_what_a_bench_measured() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("machine.toml");
    write(&path, &Profile::decode(BENCH).expect("right")).expect("written");
    let attempt = r#"{"began": 100, "ended": 86500, "hosts": ["a", "b"], "decision": "restart"}"#;
    std::fs::write(folder.path().join(ATTEMPTS_FILE), format!("{attempt}\n")).expect("written");
    let mut config = bed.config();
    config.node.profile = Some(path.clone());
    config.node.run_directory = Some(folder.path().to_owned());
    on_one_node(&[bed.place(), bed.place()], &config, |_, session| {
        commit(&session, &[1, 2, 3, 4], Level::System);
        assert_eq!(restart(&session).map(|restored| restored.tier.name()), Some("memory"));
        session.close().expect("closes");
    });
    let profile = read(&path).expect("it is right").expect("it is there");
    assert_eq!((profile.nodes, profile.ranks, profile.state), (1, 2, Some(16.0)));
    let of = |name, level| profile.figure(name, level).unwrap_or_else(|| panic!("{name:?} {level:?}: {profile:?}"));
    for level in [Level::Process, Level::NodeReboot, Level::System] {
        assert_eq!(of(Name::Latency, Some(level)).samples, 3, "the first one made memory ready");
    }
    assert!(of(Name::Latency, Some(Level::System)).bytes.is_some_and(|bytes| bytes >= 8192.0));
    let blocking = of(Name::Blocking, None);
    assert!(blocking.value < 77.0 && blocking.samples == 3 && blocking.source.command == "tests", "{blocking:?}");
    assert_eq!((of(Name::Restart, Some(Level::Process)).samples, of(Name::Capture, None).value), (1, 5e9));
    let failures = profile.failures.as_ref().expect("there was an attempt");
    assert_eq!((failures.seconds, failures.node_seconds, failures.process), (86_400.0, 172_800.0, 1));
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
}

/// Closing never fails because of a profile, and a file that somebody may want to keep stays unchanged.
#[test]
fn a_profile_that_cannot_be_used_is_left_alone() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let (rubbish, link, target) =
        (folder.path().join("rubbish"), folder.path().join("link"), folder.path().join("target"));
    std::fs::write(&rubbish, "[[[[").expect("written");
    std::os::unix::fs::symlink(&target, &link).expect("made");
    for path in [&rubbish, &link, &folder.path().join("nowhere/machine.toml"), Path::new("/")] {
        let mut config = bed.config();
        config.node.profile = Some(path.to_owned());
        config.job.interval.seconds = Choice::Auto;
        let session = bed.open(&bed.place(), config);
        commit(&session, &[1, 2], Level::System);
        session.close().expect("closes");
    }
    assert_eq!(std::fs::read(&rubbish).expect("there"), b"[[[[");
    assert!(!target.exists() && !folder.path().join("nowhere").exists());
    // A session that has captured nothing writes no profile.
    let mut config = bed.config();
    config.node.profile = Some(target.clone());
    bed.open(&bed.place(), config).close().expect("closes");
    assert!(!target.exists());
}

#[test]
fn a_session_with_auto_begins_with_what_the_last_one_measured() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("machine.toml");
    let mut config = bed.config();
    config.node.profile = Some(path.clone());
    config.job.interval.seconds = Choice::Auto;
    config.job.interval.mtbf = Some(Duration::from_secs(10_000));
    let first = |config: &Config| {
        let session = bed.open(&bed.place(), config.clone());
        let tuned = session.engine().tuning().newest();
        assert_eq!(session.engine().tuning().measured(), Measured::default());
        session.close().expect("closes");
        tuned.map(|tuned| (tuned.interval_seconds, tuned.levels[0].blocking_seconds))
    };
    assert_eq!(first(&config), None);
    write(&path, &Profile::decode(BENCH).expect("right")).expect("written");
    let (interval, blocking) = first(&config).expect("an interval at once");
    // The blocking time leads to sqrt(2 x 77 x 10,000), plus what the model adds.
    assert!(blocking == 77.0 && (1000.0..1500.0).contains(&interval), "{interval} {blocking}");
    config.job.interval.seconds = Choice::Fixed(Duration::from_secs(30));
    assert_eq!(first(&config), None, "nothing is left to it");
}
