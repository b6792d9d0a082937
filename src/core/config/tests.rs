//! Tests of the module as a whole, from text and environment to checked values or errors.

use super::error::Problems;
use super::text::PLACE_VARIABLES;
use super::*;
use crate::base::units::KIB;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SAMPLE: &str = include_str!("../../../config/bivouac.toml");
const PRESETS: [(&str, &str); 3] = [
    ("laptop", include_str!("../../../config/laptop.toml")),
    ("workstation", include_str!("../../../config/workstation.toml")),
    ("cluster", include_str!("../../../config/cluster.toml")),
];

fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn with(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_variables(vars(pairs))
}

fn message(toml: &str) -> String {
    Config::from_toml(toml).expect_err(toml).to_string()
}

/// Prints the configuration as TOML text, by the table of keys.
fn to_toml(config: &Config) -> String {
    keys::KEYS.iter().map(|key| format!("{} = {}\n", key.name, (key.show)(config))).collect()
}

/// A configuration in which every key differs from its default.
fn unusual() -> Config {
    let policy = |n: u64| LevelPolicy {
        every: if n == 0 { Choice::Auto } else { (3 + n).into() },
        every_seconds: Duration::from_millis(1500 + 1000 * n),
        keep_last: 7 + n,
        keep_every: 100 + n,
    };
    let second = Duration::from_secs;
    Config {
        job: JobConfig {
            name: Some("heat flow".into()),
            group: Some("océan".into()),
            take_over: true,
            block_bytes: 4 * KIB,
            memory_enabled: false,
            memory_required: true,
            local_enabled: false,
            local_required: true,
            global_enabled: false,
            global_required: true,
            global_directory: "/scratch/a \"b\" c:\\d".into(),
            object_url: Some("s3://bucket/runs-of/heat".into()),
            object_required: true,
            object_endpoint: Some("https://s3.example.org:9000".into()),
            local: policy(0),
            global: policy(1),
            object: policy(2),
            redundancy: RedundancyConfig {
                scheme: Scheme::Rs { data: 4, parity: 2 },
                every: Choice::Auto,
                every_seconds: Duration::from_millis(3500),
                names: "{ mesh = 'none', heat = { scheme = 'rs(2,2)', every = 5 } }".parse().unwrap(),
                store: PartStore::Local,
                domains: DomainSource::File("/etc/racks.toml".into()),
            },
            reduction: ReductionConfig {
                method: Method::Tree,
                chunk: Some(64),
                regions: "{ 'heat/t' = 'full', 'graph/counts' = { method = 'auto', chunk = 128 } }".parse().unwrap(),
                sources: 32,
                live: 1.0,
                whole_every: 7,
                verify: Verify::Bytes,
                compress: Compress::Auto,
            },
            interval: Interval {
                steps: u64::MAX,
                seconds: Choice::Auto,
                least: Duration::from_nanos(1),
                most: second(7),
                mtbf: Some(second(86_400)),
                overhead_percent: 0.1,
            },
            exit: ExitConfig {
                signal: Some("XCPU".into()),
                stop_file: Some("stop".into()),
                end_time: Some(1_769_860_800),
                reserve: second(36_500 * 86_400),
                check_every: Duration::ZERO,
            },
            timeouts: Timeouts { warn: second(1), abandon: second(2), room: Duration::ZERO, drain: second(4) },
            stagger: StaggerConfig {
                bursts: Some(8),
                scope: BurstScope::Node,
                order: BurstOrder::RoundRobin,
                patience: Duration::from_millis(500),
                rate: FlushRate::Bytes(10_000_000_000),
                slowdown: 0.5,
            },
            offload: OffloadConfig { mode: OffloadMode::Always, audit: false, host_writes: HostWrites::Declared },
            affinity: AffinityMode::Capture,
        },
        node: NodeConfig {
            log: LogLevel::Trace,
            memory_directory: "/mnt/tmpfs".into(),
            memory_budget: Budget::Percent(12.5),
            local_directory: Some("ssd".into()),
            local_allow_tmpfs: true,
            local_direct: Direct::On,
            global_direct: Direct::Off,
            write_bytes: 1 << 30,
            writers: 64,
            progress: Progress::Stepped,
            restart_window: 1 << 20,
            run_directory: Some("run".into()),
            events_directory: Some("events".into()),
            profile: Some("machine.toml".into()),
            device_budget: Budget::Bytes(3 << 30),
            offload_buffer: Budget::Bytes(0),
            device_cpus: ThreadCpus::Own,
            history: HistoryConfig {
                host_budget: Budget::Percent(25.0),
                store_budget: Budget::Bytes(1 << 40),
                touch: Touch::Between,
                pin: PinOrder::Never,
            },
            reduction_budget: Budget::Bytes(1 << 30),
            device_tables: Budget::Percent(1.5),
            affinity: AffinityConfig { cpus: Some([0, 1, 2, 8].into()), check_every: Duration::from_millis(1500) },
        },
        origins: BTreeMap::new(),
        notes: Vec::new(),
    }
}

/// Tests what a `main` that returns the error prints.
#[test]
fn an_error_reads_the_same_in_debug_output() {
    let error = Config::from_toml("[locla]\nevery = 0").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn the_sample_lists_every_key_at_its_default() {
    assert_eq!(Config::from_toml(SAMPLE), Ok(Config::default()));
    let mut problems = Problems::default();
    let settings = text::text_settings(SAMPLE, text::Source::Text(SAMPLE), &mut problems);
    let listed: BTreeSet<_> = settings.iter().map(|setting| setting.key.name).collect();
    let all: BTreeSet<_> = keys::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(listed, all);
}

#[test]
fn the_sample_says_for_each_key_whether_ranks_must_share_it() {
    let mut section = "";
    let mut mark = "";
    for line in SAMPLE.lines().skip_while(|line| !line.starts_with('[')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if line.starts_with("# [") {
            mark = line;
        } else if let Some((leaf, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            let key = keys::find(section, leaf).expect(line);
            let expected = if key.is_job { "# [all ranks] " } else { "# [per node] " };
            assert!(mark.starts_with(expected), "{} is marked {mark:?}", key.name);
            mark = "";
        }
    }
}

#[test]
fn presets_load_and_differ_from_the_defaults() {
    for (name, text) in PRESETS {
        let config = Config::from_toml(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_ne!(config, Config::default(), "{name}");
        assert_eq!(config.check(), Ok(()), "{name}");
    }
}

#[test]
fn nothing_at_all_is_the_default() {
    assert_eq!(Config::from_toml(""), Ok(Config::default()));
    assert_eq!(with(&[]), Ok(Config::default()));
    assert_eq!(with(&[("PATH", "/bin"), ("BIVOUAC_TEST_X", "1"), ("BIVOUAC_CONFIG", "")]), Ok(Config::default()));
    for name in PLACE_VARIABLES {
        assert_eq!(with(&[(name, "/opt/bivouac")]), Ok(Config::default()), "{name}");
    }
    assert_eq!(Config::default().check(), Ok(()));
}

/// [`unusual`] as a user would write it. The text does not use the table, so that a mistake in the
/// table cannot hide itself.
const UNUSUAL: &str = r#"
[job]
name = "heat flow"
group = "océan"
take_over = true
block = "4K"
log = "trace"
[interval]
steps = 18446744073709551615
seconds = "auto"
least = 1e-9
most = "7s"
mtbf = "1d"
overhead_percent = 0.1
[exit]
signal = "SIGXCPU"
stop_file = "stop"
end_time = 2026-01-31T12:00:00Z
reserve = "36500d"
check_every = 0
[timeouts]
warn = 1
abandon = "2s"
room = "0s"
drain = "4000ms"
[memory]
enabled = false
required = true
directory = "/mnt/tmpfs"
budget = "12.5%"
[local]
enabled = false
required = true
directory = "ssd"
every = "auto"
every_seconds = "1.5s"
keep_last = 7
keep_every = 100
allow_tmpfs = true
direct = "on"
[global]
enabled = false
required = true
directory = '/scratch/a "b" c:\d'
every = 4
every_seconds = "2.5s"
keep_last = 8
keep_every = 101
direct = "off"
[object]
url = "s3://bucket/runs-of/heat"
endpoint = "https://s3.example.org:9000"
required = true
every = 5
every_seconds = 3.5
keep_last = 9
keep_every = 102
[redundancy]
scheme = "rs( 4, 2 )"
every = "auto"
every_seconds = 3.5
names = { mesh = "none", heat = { every = 5, scheme = " rs( 2,2 ) " } }
store = "local"
domains = "/etc/racks.toml"
[engine]
write = "1 GiB"
writers = 64
progress = "stepped"
[reduction]
method = "tree"
chunk = 64
host_budget = "1 GiB"
device_budget = "1.5%"
sources = 32
live = 1.0
whole_every = 7
regions = { "heat/t" = "full", "graph/counts" = { chunk = 128, method = "auto" } }
verify = "bytes"
compress = "auto"
[restart]
window = "1 MiB"
[run]
directory = 'run'
[events]
directory = 'events'
[plan]
profile = 'machine.toml'
[device]
budget = "3 GiB"
cpus = "own"
[history]
host_budget = "25%"
store_budget = "1 TiB"
touch = "between"
pin = "never"
[stagger]
bursts = 8
scope = "node"
order = "round-robin"
patience = "500ms"
rate = "10 GB"
slowdown = 0.5
[offload]
mode = "always"
audit = false
host_writes = "declared"
buffer = 0
[affinity]
mode = "capture"
cpus = "0-2,8"
check_every = 1.5
"#;

#[test]
fn every_key_is_read_from_text_and_from_its_variable() {
    for tier in ["memory", "local", "global"] {
        // One tier must be enabled, and the local tier must be if parity is to be kept on it.
        let mut wanted = unusual();
        wanted.job.memory_enabled = tier == "memory";
        wanted.job.local_enabled = tier == "local";
        wanted.job.global_enabled = tier == "global";
        let mut written = UNUSUAL.replace(&format!("[{tier}]\nenabled = false"), &format!("[{tier}]\nenabled = true"));
        if tier != "local" {
            wanted.job.redundancy = RedundancyConfig::default();
            let (start, end) = (written.find("[redundancy]").unwrap(), written.find("[engine]").unwrap());
            written.replace_range(start..end, "");
        }
        assert_eq!(Config::from_toml(&written), Ok(wanted.clone()));
        assert_eq!(Config::from_toml(&to_toml(&wanted)), Ok(wanted.clone()));

        let variables = keys::KEYS.iter().map(|key| {
            let text = match (key.show)(&wanted) {
                raw::Raw::Text(text) => text,
                other => other.to_string(),
            };
            (key.variable().into(), text.into())
        });
        assert_eq!(Config::from_variables(variables), Ok(wanted));
    }
}

#[test]
fn load_reads_the_file_and_then_the_environment_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bivouac.toml");
    std::fs::write(&path, "[job]\nname = 'loaded'\n").unwrap();
    // The result is compared with that of the inner function, so that the environment variables of
    // the test run do not matter.
    assert_eq!(Config::load(&path), text::resolve(text::Source::File(&path), std::env::vars_os()));
    assert_eq!(Config::from_env(), Config::from_variables(std::env::vars_os()));
    let loaded = text::resolve(text::Source::File(&path), []).unwrap();
    assert_eq!(loaded.job.name.as_deref(), Some("loaded"));
}

#[test]
fn each_key_moves_its_own_field_and_no_other() {
    let unusual = unusual();
    for key in keys::KEYS {
        let mut config = Config::default();
        let raw = (key.show)(&unusual);
        assert_eq!((key.read)(&mut config, &raw), Some(()), "{}", key.name);
        let moved: Vec<_> = keys::KEYS
            .iter()
            .filter(|other| (other.show)(&config) != (other.show)(&Config::default()))
            .map(|other| other.name)
            .collect();
        assert_eq!(moved, [key.name]);
    }
}

#[test]
fn the_environment_wins_over_the_file_and_can_take_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bivouac.toml");
    std::fs::write(&path, "[job]\nname = 'file'\n[local]\nkeep_last = 9\nevery = 4\n").unwrap();
    let config = with(&[
        ("BIVOUAC_CONFIG", path.to_str().unwrap()),
        ("BIVOUAC_LOCAL_KEEP_LAST", "5"),
        ("BIVOUAC_JOB_NAME", "unset"),
    ])
    .unwrap();
    assert_eq!((config.job.local.keep_last, config.job.local.every, config.job.name), (5, 4.into(), None));
}

#[test]
fn values_are_read_in_all_their_notations() {
    let read = |toml: &str| Config::from_toml(toml).unwrap_or_else(|error| panic!("{toml}: {error}"));
    assert_eq!(read("memory.budget = 4096").node.memory_budget, Budget::Bytes(4096));
    assert_eq!(read("memory.budget = '8 GiB'").node.memory_budget, Budget::Bytes(8 << 30));
    assert_eq!(read("memory.budget = ' 0.5 % '").node.memory_budget, Budget::Percent(0.5));
    assert_eq!(read("job.block = 0x1000").job.block_bytes, 4096);
    assert_eq!(read("reduction.method = 'full'").job.block_bytes, 256 << 10);
    assert_eq!(read("reduction.method = 'tree'").job.block_bytes, 64 << 10);
    assert_eq!(read("reduction.method = 'tree'\njob.block = '256 KiB'").job.block_bytes, 256 << 10);
    assert_eq!(read("timeouts.warn = 60").job.timeouts, read("timeouts.warn = '1 min'").job.timeouts);
    assert_eq!(read("timeouts.warn = 0.25").job.timeouts.warn, Duration::from_millis(250));
    assert_eq!(read("interval.overhead_percent = 5").job.interval.overhead_percent, 5.0);
    assert_eq!(read("exit.signal = 'SIGUSR1'").job.exit.signal.as_deref(), Some("USR1"));
    assert_eq!(read("exit.signal = 'SIGUSR1'").job.exit.signal_number(), Some(libc::SIGUSR1));
    for time in ["2026-01-31T12:00:00Z", "'2026-01-31T12:00:00Z'", "1769860800"] {
        assert_eq!(read(&format!("exit.end_time = {time}")).job.exit.end_time, Some(1_769_860_800), "{time}");
    }
    for (name, value) in [("BIVOUAC_EXIT_END_TIME", "1769860800"), ("BIVOUAC_EXIT_END_TIME", "2026-01-31T12:00:00Z")] {
        assert_eq!(with(&[(name, value)]).unwrap().job.exit.end_time, Some(1_769_860_800), "{value}");
    }
    let rates = ["'unlimited'", "'auto'", "'10 GB'", "10000000000"]
        .map(|rate| read(&format!("stagger.rate = {rate}")).job.stagger.rate);
    let fixed = FlushRate::Bytes(10_000_000_000);
    assert_eq!(rates, [FlushRate::Unlimited, FlushRate::Auto, fixed, fixed]);
    assert_eq!(read("stagger.bursts = 'unlimited'").job.stagger.bursts, None);
    assert_eq!(with(&[("BIVOUAC_STAGGER_BURSTS", "2")]).unwrap().job.stagger.bursts, Some(2));
    assert!(with(&[("BIVOUAC_JOB_TAKE_OVER", "1")]).unwrap().job.take_over);
}

#[test]
fn values_that_are_not_allowed_are_refused_with_key_value_place_and_rule() {
    let long = format!("'{}'", "n".repeat(129));
    let refused = [
        (
            "local.every",
            vec!["0", "-1", "'1'", "1.0", "true", "[1]", "{a = 1}", "99999999999999999999999999999999999999999"],
        ),
        ("global.keep_last", vec!["0", "2026-01-31"]),
        ("job.block", vec!["2048", "4097", "'2 MiB'", "0", "'big'", "1.5", "''"]),
        ("job.name", vec!["''", "'a/b'", "'..'", "'.'", "' a'", "\"a\\u0007\"", "7", &long]),
        ("job.take_over", vec!["1", "'true'"]),
        ("memory.budget", vec!["0", "-5", "'0%'", "'101%'", "'NaN%'", "'%'", "'-1%'", "25.0", "''"]),
        ("memory.directory", vec!["''", "\"a\\u0000b\"", "1"]),
        ("local.directory", vec!["''"]),
        ("global.directory", vec!["''"]),
        ("local.direct", vec!["'maybe'", "true", "''"]),
        ("redundancy.scheme", vec!["''", "'unset'", "'xor(1)'", "'rs(4)'", "8", "false"]),
        ("redundancy.every", vec!["0", "'often'"]),
        ("object.every", vec!["'auto'", "0"]),
        ("interval.mtbf", vec!["0", "'auto'", "-1"]),
        ("interval.most", vec!["0"]),
        (
            "redundancy.names",
            vec!["''", "'unset'", "{ mesh = 'raid' }", "7", "[{ mesh = 'none' }]", "{ mesh = { every = 0 } }"],
        ),
        ("redundancy.store", vec!["'global'", "''"]),
        ("redundancy.domains", vec!["''", "1", "\"a\\u0000b\""]),
        ("reduction.method", vec!["'tree2'", "1", "''"]),
        ("reduction.verify", vec!["'crc'", "true", "''"]),
        ("reduction.chunk", vec!["16", "8192", "96", "'big'", "1.5", "''"]),
        ("reduction.host_budget", vec!["0", "'101%'"]),
        ("reduction.device_budget", vec!["0", "'101%'"]),
        ("reduction.sources", vec!["0", "33", "'8'"]),
        ("reduction.live", vec!["0", "-0.1", "1.01", "nan", "'1'"]),
        ("reduction.whole_every", vec!["-1"]),
        ("engine.writers", vec!["0", "65", "4294967297"]),
        ("engine.write", vec!["4096", "65537", "'2 GiB'", "'4 MB'"]),
        ("engine.progress", vec!["'Sockets'", "'thread'"]),
        ("device.budget", vec!["0", "'101%'", "-1"]),
        ("device.cpus", vec!["'far'", "0"]),
        ("history.touch", vec!["'Beside'", "1"]),
        ("history.pin", vec!["'once'"]),
        ("stagger.bursts", vec!["0", "9", "-1", "'1'", "'none'", "4294967297"]),
        ("stagger.scope", vec!["'switch'", "1"]),
        ("stagger.order", vec!["'shortest'", "''"]),
        ("stagger.patience", vec!["-1", "'soon'"]),
        ("stagger.rate", vec!["0", "'0 GB'", "1048575", "'fast'", "-1", "1.5"]),
        ("stagger.slowdown", vec!["-0.01", "1.01", "nan", "'2%'"]),
        ("offload.mode", vec!["'never'", "true", "''"]),
        ("offload.host_writes", vec!["'never'", "true"]),
        ("offload.buffer", vec!["-1", "'101%'", "'0%'"]),
        ("affinity.mode", vec!["'on'", "true", "''"]),
        ("affinity.cpus", vec!["''", "'3-1'", "'a'", "0", "'0-999999'"]),
        ("restart.window", vec!["0", "1048575", "'2 TiB'", "'25%'", "-1"]),
        ("interval.seconds", vec!["-1", "inf", "nan", "'soon'", "'99999999999d'", "36501e5"]),
        ("interval.overhead_percent", vec!["101", "-0.1", "nan", "'5'"]),
        ("interval.steps", vec!["-1"]),
        ("timeouts.warn", vec!["0", "'0s'"]),
        ("timeouts.abandon", vec!["0"]),
        ("exit.signal", vec!["'KILL'", "'SIGSTOP'", "'SEGV'", "9", "''"]),
        ("exit.stop_file", vec!["''"]),
        ("exit.end_time", vec!["-1", "'tomorrow'", "2026-01-31T12:00:00+01:00", "2026-01-31", "253402300800"]),
    ];
    for (name, values) in refused {
        for value in values {
            let toml = format!("\n{name} = {value}\n");
            let error = Config::from_toml(&toml).expect_err(&toml);
            let ConfigError::Value { key, origin, allowed, .. } = &error else { panic!("{toml}: {error}") };
            assert_eq!((*key, origin), (name, &Origin::Text { line: 2 }));
            assert!(error.to_string().contains(allowed) && error.to_string().contains("line 2"), "{error}");
        }
    }
}

#[test]
fn unknown_names_get_a_suggestion() {
    for (toml, expected) in [
        ("[locla]\nevery = 0", "line 1: there is no section [locla]; did you mean [local]?"),
        ("[local]\nkeeplast = 1", "line 2: there is no key local.keeplast; did you mean local.keep_last?"),
        ("[job]\nkeep_every = 1", "line 2: there is no key job.keep_every; did you mean local.keep_every?"),
        ("name = 'x'", "line 1: there is no key name outside any section; did you mean job.name?"),
        ("[global.drect]\nx = 1", "line 1: there is no key global.drect; did you mean global.direct?"),
        ("[weather]\nsun = 1", "line 1: there is no section [weather]"),
        ("local = true", "line 1: local is a section; write [local] on its own line and its keys below it"),
        ("[[local]]\nevery = 1", "line 1: local is a section; write [local] on its own line and its keys below it"),
    ] {
        assert_eq!(message(toml), expected);
    }
    for (name, expected) in [
        ("BIVOUAC_LOCAL_KEEPLAST", "; did you mean BIVOUAC_LOCAL_KEEP_LAST?"),
        ("BIVOUAC_CONFG", "; did you mean BIVOUAC_CONFIG?"),
        ("BIVOUAC_local_every", "; did you mean BIVOUAC_LOCAL_EVERY?"),
        ("BIVOUAC_HOUSE", "key"),
        ("BIVOUAC_", "key"),
    ] {
        let error = with(&[(name, "1")]).expect_err(name).to_string();
        assert!(error.contains(name) && error.ends_with(expected), "{error}");
    }
}

#[test]
fn all_problems_are_reported_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bivouac.toml");
    std::fs::write(&path, "[memory]\nenabled = false\n[local]\nenabled = false\nevery = 0\nevry = 1\n[wrong]\n")
        .unwrap();
    let mut variables = vars(&[
        ("BIVOUAC_CONFIG", path.to_str().unwrap()),
        ("BIVOUAC_GLOBAL_ENABLED", "false"),
        ("BIVOUAC_GLOBAL_KEEP_LAST", "many"),
        ("BIVOUAC_WRONG", "1"),
    ]);
    variables.push(("BIVOUAC_JOB_NAME".into(), OsString::from_vec(vec![b'a', 0xff])));
    let error = Config::from_variables(variables).unwrap_err();
    let kinds: BTreeSet<_> = error
        .problems()
        .iter()
        .map(|problem| match problem {
            ConfigError::Value { key, .. } => *key,
            ConfigError::UnknownKey { .. } => "unknown key",
            ConfigError::UnknownSection { .. } => "unknown section",
            ConfigError::UnknownVariable { .. } => "unknown variable",
            ConfigError::VariableNotText { .. } => "not text",
            ConfigError::NoTier => "no tier",
            other => panic!("{other}"),
        })
        .collect();
    let expected = [
        "local.every",
        "unknown key",
        "unknown section",
        "global.keep_last",
        "unknown variable",
        "not text",
        "no tier",
    ];
    assert_eq!(kinds, BTreeSet::from(expected));
    assert_eq!(error.problems().len(), expected.len());
    let text = error.to_string();
    assert!(text.starts_with("7 problems in the configuration:\n  - "), "{text}");
    assert!(text.contains(&format!("local.every = 0 ({}:5)", path.display())), "{text}");
    assert!(text.contains("global.keep_last = \"many\" (environment variable BIVOUAC_GLOBAL_KEEP_LAST)"), "{text}");
}

#[test]
fn files_that_cannot_be_configuration_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let read = |path: &Path| text::resolve(text::Source::File(path), []).unwrap_err();
    let missing = folder.path().join("missing.toml");
    assert_eq!(read(&missing), ConfigError::Unreadable { path: missing, errno: libc::ENOENT });
    assert_eq!(read(folder.path()), ConfigError::NotAFile { path: folder.path().to_path_buf() });
    let through_a_file = folder.path().join("plain/bivouac.toml");
    std::fs::write(folder.path().join("plain"), "").unwrap();
    assert_eq!(read(&through_a_file), ConfigError::Unreadable { path: through_a_file, errno: libc::ENOTDIR });
    let zero_byte = Path::new("a\0b");
    assert_eq!(read(zero_byte), ConfigError::Unreadable { path: zero_byte.to_path_buf(), errno: libc::EINVAL });

    let large = folder.path().join("large.toml");
    std::fs::write(&large, "#".repeat((1 << 20) + 1)).unwrap();
    assert_eq!(read(&large), ConfigError::TooLarge { path: large, limit: 1 << 20 });
    let just_fits = folder.path().join("just-fits.toml");
    std::fs::write(&just_fits, "#".repeat(1 << 20)).unwrap();
    assert_eq!(text::resolve(text::Source::File(&just_fits), []), Ok(Config::default()));

    let binary = folder.path().join("binary.toml");
    std::fs::write(&binary, b"# one\n# two \xff\n").unwrap();
    assert_eq!(read(&binary), ConfigError::NotText { origin: Origin::File { path: binary, line: 2 }, offset: 12 });
}

#[test]
fn a_pipe_is_refused_without_waiting_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert_eq!(text::resolve(text::Source::File(&pipe), []), Err(ConfigError::NotAFile { path: pipe }));
}

#[test]
fn mistakes_in_the_syntax_are_all_found_with_their_lines() {
    let error = Config::from_toml("[job]\nname = \n[local]\nevery = 1\nevery = 2\nkeep_last == 3\n").unwrap_err();
    let lines: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| match problem {
            ConfigError::Syntax { origin: Origin::Text { line }, .. } => *line,
            other => panic!("{other}"),
        })
        .collect();
    assert!([2, 5, 6].iter().all(|line| lines.contains(line)), "{error}");
}

#[test]
fn a_hostile_file_makes_neither_a_deep_stack_nor_a_long_message() {
    for (before, repeated, after) in [
        ("job.name = ", "[", ""),
        ("job.name = ", "{a=", ""),
        ("", "a.", "a = 1"),
        ("local.", "every.", "x = 1"),
        ("[", "a.", "a]"),
        ("[[", "a.", "a]]"),
        ("", "a = 1\n", ""),
        ("", "=\n", ""),
    ] {
        let hostile = format!("{before}{}{after}", repeated.repeat(1_000_000 / repeated.len()));
        assert!(message(&hostile).len() < 100_000, "{before}{repeated}…{after}");
    }
    let tables: String = (0..100_000).map(|i| format!("[x{i}]\n")).collect();
    let error = Config::from_toml(&tables).unwrap_err();
    assert!(matches!(&error, ConfigError::Several { problems, omitted: 99_900 } if problems.len() == 100));
    assert!(error.to_string().ends_with("and 99900 more"));
    let long = "e".repeat(300_000);
    let wide = message(&format!("[{long}]\n[local]\n{long} = 1\nevery = '{long}'\n"));
    assert!(wide.len() < 2000, "{}", wide.len());
    assert!(!message("[\"\\u001b[2J\"]").contains('\u{1b}'));
}

#[test]
fn a_least_interval_above_the_most_is_refused() {
    let error = Config::from_toml("interval.least = '2h'\ninterval.most = '1h'").unwrap_err();
    assert_eq!(error, ConfigError::NoInterval { least: Duration::from_secs(7200), most: Duration::from_secs(3600) });
    assert!(error.to_string().contains("interval.least is 7200 s"), "{error}");
    assert!(Config::from_toml("interval.least = '1h'\ninterval.most = '1h'").is_ok());
}

#[test]
fn values_that_a_program_sets_are_checked_by_the_same_rules() {
    let mut config = Config::default();
    config.job.block_bytes = 0;
    config.job.name = Some("../escape".into());
    config.job.interval.overhead_percent = f64::NAN;
    config.node.local_directory = Some(PathBuf::from(OsString::from_vec(vec![b'a', 0xff])));
    config.job.exit.signal = Some("KILL".into());
    let error = config.check().unwrap_err();
    let keys: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| match problem {
            ConfigError::Value { key, origin: Origin::Program, .. } => *key,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(keys, ["job.name", "job.block", "interval.overhead_percent", "exit.signal", "local.directory"]);
    assert_eq!(config.job.exit.signal_number(), None);
    let mut without_tier = unusual();
    without_tier.job.object_url = None;
    let error = without_tier.check().unwrap_err();
    let no_store = ConfigError::NoPartStore { store: PartStore::Local, scheme: Scheme::Rs { data: 4, parity: 2 } };
    assert_eq!(error.problems(), [ConfigError::NoTier, no_store]);
    let mut config = Config::default();
    config.job.redundancy.scheme = Scheme::Partner { copies: 9 };
    assert!(matches!(config.check(), Err(ConfigError::Value { key: "redundancy.scheme", .. })));
}

#[test]
fn parity_without_a_place_is_an_error() {
    let refused = |toml: &str| {
        let error = Config::from_toml(toml).expect_err(toml);
        assert!(matches!(error, ConfigError::NoPartStore { .. }), "{toml}: {error}");
        error.to_string()
    };
    let text = refused("memory.enabled = false\nredundancy.scheme = 'xor(4)'");
    assert!(text.contains("xor(4)") && text.contains("memory.enabled"), "{text}");
    refused("memory.enabled = false\nlocal.enabled = false\nredundancy.scheme = 'partner'");
    refused("memory.enabled = false\nredundancy.names = { heat = 'rs(2,1)' }");
    let text = refused("local.enabled = false\nredundancy.store = 'local'");
    assert!(text.contains("local.enabled"), "{text}");
    for toml in [
        "memory.enabled = false",
        "memory.enabled = false\nredundancy.names = { heat = 'none' }",
        "memory.enabled = false\nredundancy = { scheme = 'xor', store = 'local' }",
        "local.enabled = false\nredundancy.scheme = 'xor'",
    ] {
        Config::from_toml(toml).unwrap_or_else(|error| panic!("{toml}: {error}"));
    }
}

#[test]
fn a_topology_file_is_told_from_the_words() {
    let read =
        |text: &str| Config::from_toml(&format!("redundancy.domains = '{text}'")).unwrap().job.redundancy.domains;
    assert_eq!(read("node"), DomainSource::Node);
    assert_eq!(read("slurm"), DomainSource::Slurm);
    assert_eq!(read("./node"), DomainSource::File("./node".into()));
    let mut config = Config::default();
    config.job.redundancy.domains = DomainSource::File("slurm".into());
    assert_ne!(config.job.hash(), Config::from_toml("redundancy.domains = 'slurm'").unwrap().job.hash());
}

#[test]
fn no_tier_is_an_error() {
    assert_eq!(
        Config::from_toml("memory.enabled = false\nlocal.enabled = false\nglobal.enabled = false"),
        Err(ConfigError::NoTier)
    );
}

#[test]
fn entries_are_canonical_sorted_and_of_the_job_only() {
    let entries = Config::default().job.entries();
    assert!(entries.is_sorted());
    assert_eq!(entries.len(), keys::KEYS.iter().filter(|key| key.is_job).count());
    assert!(entries.contains(&("global.keep_last", "3".to_owned())));
    assert!(entries.contains(&("timeouts.warn", "\"30s\"".to_owned())));
    assert!(entries.contains(&("job.name", "\"unset\"".to_owned())));
    assert!(entries.iter().all(|(key, _)| *key != "engine.writers"));
    let written = Config::from_toml("timeouts.warn = '0.5 min'\ninterval.overhead_percent = -0.0").unwrap();
    assert_eq!(written.job.hash(), Config::default().job.hash());
}

#[test]
fn each_job_key_changes_the_hash_and_is_named_and_no_node_key_does() {
    let unusual = unusual();
    let usual = Config::default().job;
    for key in keys::KEYS {
        let mut config = Config::default();
        (key.read)(&mut config, &(key.show)(&unusual)).unwrap();
        let differences = JobConfig::differences(&usual.entries(), &config.job.entries());
        let names: Vec<_> = differences.iter().map(|difference| difference.key.as_str()).collect();
        assert_eq!(names, if key.is_job { vec![key.name] } else { vec![] });
        assert_eq!(config.job.hash() != usual.hash(), key.is_job, "{}", key.name);
    }
}

#[test]
fn differences_name_key_and_both_values() {
    let here = [("a", "1"), ("b", "2")];
    let there = [("b".to_owned(), "3".to_owned()), ("c".to_owned(), "4".to_owned())];
    let text: Vec<_> = JobConfig::differences(&here, &there).iter().map(ToString::to_string).collect();
    assert_eq!(text, ["a is 1 here and unknown there", "b is 2 here and 3 there", "c is unknown here and 4 there"]);
    assert_eq!(JobConfig::differences(&here, &here), []);
}

/// Lines of TOML that consist of real and random names and values. Many parse, and many are nearly right.
fn line() -> impl Strategy<Value = String> {
    let names: Vec<String> = keys::KEYS.iter().map(|key| key.name.to_owned()).collect();
    let name = prop_oneof![4 => proptest::sample::select(names), 1 => "[a-z_.]{1,12}"];
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (0u64..3).prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        any::<bool>().prop_map(|b| b.to_string()),
        "'[ -&(-~]{0,20}'",
        "\"[0-9]{1,4} ?(KiB|MiB|s|min|%)\"",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
    ];
    (name, value).prop_map(|(name, value)| format!("{name} = {value}"))
}

/// Checks what every answer must fulfil: a configuration passes its own check and reads back
/// equal, and an error has text.
fn consistent(answer: Result<Config, ConfigError>) {
    match answer {
        Ok(config) => {
            assert_eq!(config.check(), Ok(()));
            assert_eq!(Config::from_toml(&to_toml(&config)), Ok(config));
        }
        Err(error) => {
            assert!(!error.problems().is_empty());
            assert!(!error.to_string().is_empty());
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        consistent(Config::from_toml(&text));
    }

    #[test]
    fn text_of_toml_characters_never_panics(text in "[\\[\\]{}=.,'\"#\n \\\\a-f0-9TZ:+-]{0,200}") {
        consistent(Config::from_toml(&text));
    }

    #[test]
    fn nearly_right_text_gives_consistent_values_or_errors(lines in proptest::collection::vec(line(), 0..6)) {
        consistent(Config::from_toml(&lines.join("\n")));
    }

    #[test]
    fn tables_of_random_strings_are_errors(
        section in "[g-z]{1,10}",
        pairs in proptest::collection::btree_map("[a-z]{1,10}", any::<String>(), 0..5),
    ) {
        prop_assume!(!keys::sections().contains(&section.as_str()));
        let mut toml = format!("[{section}]\n");
        for (name, value) in &pairs {
            toml.push_str(&format!("{name} = {}\n", toml::Value::from(value.as_str())));
        }
        let error = Config::from_toml(&toml).unwrap_err();
        prop_assert!(matches!(error, ConfigError::UnknownSection { .. }), "{}", error);
    }

    #[test]
    fn arbitrary_variables_never_panic(
        pairs in proptest::collection::vec((0..keys::KEYS.len(), any::<Vec<u8>>()), 0..5),
        name in any::<Vec<u8>>(),
    ) {
        let known = pairs.into_iter().map(|(at, value)| (keys::KEYS[at].variable().into(), OsString::from_vec(value)));
        let unknown = OsString::from_vec([b"BIVOUAC_".to_vec(), name].concat());
        consistent(Config::from_variables(known.chain([(unknown, "1".into())])));
    }
}
