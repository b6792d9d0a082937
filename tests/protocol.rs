//! The rows of the damage table about the calls of ranks and their times: disagreement, lateness, other numbers of ranks, other regions,
//! other configurations, other thread levels, several sessions and several runs, and all ways to end.
//!
//! Each test runs `tests/programs/protocol_worker.rs` under `mpirun` with four ranks and compares the lines that the
//! ranks print. Times are limits for a hang, and never a measure of speed.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod common;

use common::limit::{self, LIMIT};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const RANKS: u32 = 4;

/// Directories for one job only, removed at the end, even after a failure.
struct Store {
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Store {
    fn new() -> Store {
        let folder = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir(folder.path().join("memory")).unwrap();
        let pairs = [
            ("BIVOUAC_JOB_NAME", "protocol".to_owned()),
            ("BIVOUAC_MEMORY_DIRECTORY", path("memory")),
            ("BIVOUAC_MEMORY_BUDGET", "64 MiB".to_owned()),
            ("BIVOUAC_LOCAL_DIRECTORY", path("local")),
            ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true".to_owned()),
            ("BIVOUAC_GLOBAL_DIRECTORY", path("global")),
            // This is long enough for a busy machine, and short enough to notice a hang.
            ("BIVOUAC_TIMEOUTS_ABANDON", "40s".to_owned()),
            ("BIVOUAC_TEST_DIR", folder.path().display().to_string()),
        ];
        let env = pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Store { folder, env }
    }

    /// Sets one more variable.
    fn with(mut self, key: &str, value: &str) -> Store {
        self.set(key, value);
        self
    }

    fn set(&mut self, key: &str, value: &str) {
        self.env.retain(|(known, _)| known != key);
        self.env.push((key.to_owned(), value.to_owned()));
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn env(&self) -> Vec<(&str, &str)> {
        self.env.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// Runs a scenario on `ranks` ranks to its end. Returns `None` if there is no `mpirun`.
    fn run_on(&self, ranks: u32, scenario: &[&str]) -> Option<Answer> {
        let program = worker();
        let mut args = vec![program.as_os_str()];
        args.extend(scenario.iter().map(std::ffi::OsStr::new));
        let output = common::mpirun(ranks, &args, &self.env())?;
        Some(Answer::of(scenario, ranks, &output))
    }

    fn run(&self, scenario: &[&str]) -> Option<Answer> {
        self.run_on(RANKS, scenario)
    }

    /// Runs a scenario that must succeed.
    fn succeed(&self, scenario: &[&str]) -> Option<Answer> {
        let answer = self.run(scenario)?;
        assert!(answer.success, "{}", answer.text);
        Some(answer)
    }

    /// Runs a scenario that ends with a kill.
    fn be_killed(&self, scenario: &[&str]) -> Option<Answer> {
        let answer = self.run(scenario)?;
        assert!(!answer.success && !answer.text.contains("panicked"), "{}", answer.text);
        Some(answer)
    }
}

/// The program, which Cargo builds with the tests: `target/<profile>/examples/protocol-worker`.
fn worker() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/protocol-worker");
    assert!(path.exists(), "{} is missing: cargo build --example protocol-worker", path.display());
    path
}

/// What the ranks of a job printed.
struct Answer {
    ranks: u32,
    success: bool,
    stdout: String,
    /// The whole output, for messages.
    text: String,
}

impl Answer {
    fn of(scenario: &[&str], ranks: u32, output: &Output) -> Answer {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let text = format!("{scenario:?} on {ranks} ranks: {}\n{stdout}\n{stderr}", output.status);
        Answer { ranks, success: output.status.success(), stdout, text }
    }

    /// The texts of all lines with this label: rank and text, in the order of the ranks.
    fn lines(&self, label: &str) -> Vec<(u32, &str)> {
        let mut found: Vec<(u32, &str)> = self
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(label)?.strip_prefix(" rank="))
            .map(|rest| rest.split_once(' ').unwrap_or((rest, "")))
            .map(|(rank, text)| (rank.parse().unwrap(), text))
            .collect();
        found.sort_by_key(|(rank, _)| *rank);
        found
    }

    /// One text per rank.
    fn each(&self, label: &str) -> Vec<&str> {
        let lines = self.lines(label);
        let ranks: Vec<u32> = lines.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, (0..self.ranks).collect::<Vec<_>>(), "ranks that say {label:?} in\n{}", self.text);
        lines.into_iter().map(|(_, text)| text).collect()
    }

    /// The one text that all ranks print.
    fn same(&self, label: &str) -> &str {
        let all = self.each(label);
        assert!(all.iter().all(|text| *text == all[0]), "{label}: ranks differ: {all:#?}\n{}", self.text);
        all[0]
    }

    /// The error that all ranks get, which contains all these words.
    fn error(&self, label: &str, words: &[&str]) -> &str {
        let text = self.same(label);
        assert!(text.starts_with("error "), "{label} should fail: {text}\n{}", self.text);
        self.has(label, text, words);
        text
    }

    fn has(&self, label: &str, text: &str, words: &[&str]) {
        for word in words {
            assert!(text.contains(word), "{label}: no {word:?} in {text:?}\n{}", self.text);
        }
    }

    fn ok(&self, label: &str) -> &str {
        let text = self.same(label);
        text.strip_prefix("ok ").unwrap_or_else(|| panic!("{label}: {text}\n{}", self.text))
    }
}

// ------------------------------------------------------------------------------------------ disagreement

#[test]
fn one_rank_calls_with_another_name_version_or_layout_and_is_named_on_all_ranks() {
    let store = Store::new();
    let Some(answer) = store.succeed(&["disagree"]) else { return };
    let check = |kind: &str, culprit: u32, words: &[&str]| {
        let all = answer.each(&format!("wrong-{kind}"));
        for (rank, text) in all.iter().enumerate().filter(|(rank, _)| *rank as u32 != culprit) {
            assert!(text.starts_with("error "), "rank {rank}, {kind}: {text}");
            answer.has(kind, text, words);
            answer.has(kind, text, &[&format!("rank {culprit}: ")]);
            for other in (0..RANKS).filter(|other| *other != culprit) {
                assert!(!text.contains(&format!("rank {other}: ")), "{kind}: rank {other} is blamed in {text}");
            }
        }
        assert!(all[culprit as usize].starts_with("error "), "{kind}: {}", all[culprit as usize]);
        answer.ok(&format!("right-{kind}"));
    };
    check(
        "name",
        2,
        &["called checkpoint \"cold\" version 1 ", "while ranks 0, 1, 3 called checkpoint \"heat\" version 1 "],
    );
    check(
        "version",
        3,
        &["called checkpoint \"heat\" version 1003", "while ranks 0-2 called checkpoint \"heat\" version 3"],
    );
    check("region-name", 0, &["pressure (f64)", "field (f64)"]);
    check("element-type", 1, &["field (i64)", "field (f64)"]);
    check("more-regions", 2, &["3 regions: field (f64), extra (f64), seed (u8)", "2 regions: field (f64), seed (u8)"]);
    check("unusable-name", 3, &["a/b"]);
    check("unusable-region", 0, &["gave the checkpoint up before capture"]);
    check("given-up", 1, &["gave the checkpoint up before capture"]);
    check("other-call", 2, &["called restart \"heat\"", "while ranks 0, 1, 3 called checkpoint \"heat\""]);
    check("other-restart", 3, &["\"a/b\" is not usable"]);
    assert!(answer.ok("restored").starts_with("version=20 "), "{}", answer.text);
    answer.ok("close");
}

#[test]
fn a_mistake_in_the_environment_of_one_rank_is_told_to_all() {
    let store = Store::new();
    let script =
        "[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" != 2 ] || export BIVOUAC_TIMEOUTS_WARN=soon; exec \"$0\" from-env";
    let worker = worker().display().to_string();
    let Some(output) = common::mpirun(RANKS, &["bash", "-c", script, &worker], &store.env()) else { return };
    let answer = Answer::of(&["from-env"], RANKS, &output);
    let text = answer.error("opened", &["rank 2: ", "BIVOUAC_TIMEOUTS_WARN", "soon"]);
    for other in [0, 1, 3] {
        assert!(!text.contains(&format!("rank {other}: ")), "{text}");
    }
}

#[test]
fn a_rank_that_never_opens_is_named_on_the_others() {
    for absent in [2u32, 0] {
        let Some(answer) = impatient().run(&["open-without", &absent.to_string()]) else { return };
        let told = answer.lines("opened");
        assert_eq!(told.len(), RANKS as usize - 1, "{}", answer.text);
        for (rank, text) in told {
            let named: &[&str] = if absent == 0 { &["rank 0 may be one"] } else { &["1 ranks have not opened", "2"] };
            assert!(text.starts_with("error "), "rank {rank}: {text}");
            answer.has("opened", text, named);
        }
    }
}

fn impatient() -> Store {
    Store::new().with("BIVOUAC_TIMEOUTS_WARN", "700ms").with("BIVOUAC_TIMEOUTS_ABANDON", "3s")
}

/// Ranks 1 (which is between rank 3 and the root), 3 and 2 make no call, one after the other; then all ranks continue.
fn late_ranks_are_named(store: &Store, late: &[&str]) {
    let Some(answer) = store.succeed(&[&["late"], late].concat()) else { return };
    for late in late {
        answer.ok(&format!("before-{late}"));
        let label = format!("late-{late}");
        let text = answer.error(&label, &[&format!("rank {late}: did not take part within 3s")]);
        assert_eq!(text.matches("did not take part").count(), 1, "{text}");
    }
    answer.ok("after");
    answer.ok("restored");
    answer.ok("close");
}

#[test]
fn a_rank_that_does_not_call_at_all_is_named_and_finds_the_verdict_when_it_calls() {
    late_ranks_are_named(&impatient(), &["1", "3", "0", "2"]);
}

#[test]
fn a_rank_that_does_not_call_at_all_is_named_in_stepped_mode_too() {
    late_ranks_are_named(&impatient().with("BIVOUAC_ENGINE_PROGRESS", "stepped"), &["1", "3", "2"]);
}

#[test]
fn a_root_that_cannot_be_reached_leaves_the_verdict_unknown_and_nothing_hangs() {
    let store = impatient().with("BIVOUAC_ENGINE_PROGRESS", "stepped");
    let Some(answer) = store.succeed(&["late-root"]) else { return };
    answer.ok("before");
    for (rank, text) in answer.each("late").iter().enumerate().skip(1) {
        answer.has("late", text, &["error ", "did not answer"]);
        answer.has("after", answer.each("after")[rank], &["error ", "has failed and commits nothing more"]);
    }
    answer.each("close");
    answer.each("ended");
}

#[test]
fn one_rank_closes_while_others_checkpoint_an_error_and_no_hang() {
    let Some(answer) = impatient().succeed(&["close-early"]) else { return };
    answer.ok("before");
    for (rank, text) in answer.lines("checkpoint") {
        assert!(text.starts_with("error "), "rank {rank}: {text}");
        answer.has(
            "checkpoint",
            text,
            &["rank 2: called close", "while ranks 0, 1, 3 called checkpoint \"heat\" version 2"],
        );
    }
    assert_eq!(answer.lines("checkpoint").len(), 3);
    assert!(answer.lines("next").iter().all(|(_, text)| text.starts_with("error ")), "{}", answer.text);
    answer.has("close", answer.each("close")[2], &["error ", "rank 2: called close"]);
    answer.each("ended");
}

// ------------------------------------------------------------------------------------------ restarts

#[test]
fn restart_on_another_number_of_ranks_is_a_clear_error_that_says_so() {
    for (before, after) in [(4, 2), (2, 4)] {
        let store = Store::new();
        let Some(first) = store.run_on(before, &["step", "kill", "2"]) else { return };
        first.ok("committed-2");
        let second = store.run_on(after, &["look"]).unwrap();
        let taken = format!("taken by {before} ranks");
        second.error(
            "restored",
            &[&taken, &format!("this run has {after}"), &format!("Start the program on {before} ranks")],
        );
        assert!(second.success, "{}", second.text);
        let third = store.run_on(before, &["look"]).unwrap();
        assert!(third.ok("restored").starts_with("version=2 generation=1 "), "{}", third.text);
    }
}

#[test]
fn region_missing_or_of_another_type_or_length_names_region_expected_and_found() {
    let store = Store::new();
    let Some(answer) = store.succeed(&["mismatch"]) else { return };
    answer.ok("taken");
    for rank in 0..RANKS {
        let says = |label: &str, words: &[&str]| {
            let text = answer.each(label)[rank as usize];
            answer.has(label, text, &["error ", &format!("rank {rank}: ")]);
            answer.has(label, text, words);
        };
        says("handled-missing", &["has no region \"pressure\"", "it has: temperature, flags, step"]);
        let found = format!("holds {} x f64, but 99 x f64 was requested", 100 + rank);
        says("handled-length", &["region \"temperature\"", &found]);
        says("handled-type", &["region \"flags\"", "holds 10 x i32, but 10 x f32 was requested"]);
        says("handled-value", &["\"step\""]);
        says("handled-kind", &["region \"flags\"", "holds 10 x i32, but a value was requested"]);
    }
    assert_eq!(answer.ok("handled"), "1");
    answer.error("everywhere", &["all 4 ranks: ", "no region \"pressure\""]);
    let one = answer.error("one-rank", &["rank 2: ", "\"temperature\"", "holds 102 x f64, but 55 x f64"]);
    assert!(!one.contains("rank 1: "), "{one}");
    answer.error("one-value", &["rank 1: ", "\"step\""]);
    assert_eq!(answer.ok("right"), "1");
    answer.ok("close");
}

#[test]
fn a_deliberate_return_to_an_older_version_leaves_the_newer_ones_behind() {
    let store = Store::new().with("BIVOUAC_LOCAL_KEEP_LAST", "20").with("BIVOUAC_GLOBAL_KEEP_LAST", "20");
    let Some(first) = store.be_killed(&["step", "kill", "6"]) else { return };
    first.ok("committed-6");

    let second = store.be_killed(&["go-back", "3", "4"]).unwrap();
    second.error("no-such", &["version 99 cannot be restored", "versions that can: 6, 5, 4, 3, 2, 1"]);
    second.has("restored", second.ok("restored"), &["version=3 generation=1 seed=1 ", "left_behind=false"]);
    second.ok("committed");

    let third = store.succeed(&["look"]).unwrap();
    third.has("restored", third.ok("restored"), &["version=4 generation=2 seed=2 ", "left_behind=false"]);
    assert_eq!(third.ok("versions"), "g2v4 g1v6-left g1v5-left g1v4-left g1v3 g1v2 g1v1");

    // This restores an abandoned version by name: later versions descend from it.
    let fourth = store.be_killed(&["go-back", "6", "7"]).unwrap();
    fourth.has("restored", fourth.ok("restored"), &["version=6 generation=1 seed=1 ", "left_behind=true"]);
    fourth.ok("committed");
    let fifth = store.succeed(&["look"]).unwrap();
    fifth.has("restored", fifth.ok("restored"), &["version=7 generation=4 seed=4 ", "left_behind=false"]);
    assert_eq!(fifth.ok("versions"), "g4v7 g2v4-left g1v6 g1v5 g1v4 g1v3 g1v2 g1v1");
}

#[test]
fn a_roll_back_inside_a_living_session_works_from_its_own_segment() {
    let store = Store::new().with("BIVOUAC_LOCAL_KEEP_LAST", "20").with("BIVOUAC_GLOBAL_KEEP_LAST", "20");
    let Some(first) = store.be_killed(&["roll-back"]) else { return };
    first.has("newest", first.ok("newest"), &["version=5 generation=1 seed=1 tier=memory "]);
    first.has("back", first.ok("back"), &["version=3 generation=1 seed=1 ", "left_behind=false"]);
    first.has("other-newest", first.ok("other-newest"), &["version=2 generation=1 seed=1 "]);
    first.ok("retaken");
    first.has("newest-retaken", first.ok("newest-retaken"), &["version=5 generation=1 seed=2 tier=memory "]);
    first.has("back-again", first.ok("back-again"), &["version=3 generation=1 seed=1 "]);
    first.ok("retaken-again");
    // The versions that were rolled back are not elected by the next run, though their numbers are higher.
    let second = store.succeed(&["look"]).unwrap();
    second.has("restored", second.ok("restored"), &["version=4 generation=1 seed=3 ", "left_behind=false"]);
    assert!(second.ok("versions").contains("g1v5-left"), "{}", second.ok("versions"));
}

// ------------------------------------------------------------------------------------------ configuration and names

#[test]
fn bad_configuration_is_a_clear_error_on_all_ranks() {
    let store = Store::new();
    let garbage: Vec<u8> = (0..5000u32).map(|i| (i * i * 31 % 251) as u8).collect();
    std::fs::write(store.path().join("garbage.toml"), garbage).unwrap();
    let Some(answer) = store.succeed(&["config", "garbage.toml"]) else { return };
    let text = answer.error("differing", &["rank 2: ", "local.keep_last", "timeouts.room", "7"]);
    assert!(!text.contains("rank 1: ") && !text.contains("rank 3: "), "{text}");
    answer.error("invalid-1", &["rank 1: ", "job.block"]);
    answer.error("invalid-0", &["rank 0: ", "job.block"]);
    answer.error("garbage", &["garbage.toml"]);
    answer.error("unknown", &["keep_lst", "keep_last"]);
    answer.ok("right");
    answer.ok("close");

    let unknown = Store::new().with("BIVOUAC_LOCAL_KEEPLAST", "3").succeed(&["open"]).unwrap();
    unknown.error("opened", &["BIVOUAC_LOCAL_KEEPLAST", "BIVOUAC_LOCAL_KEEP_LAST"]);
    let mut store = store;
    let file = store.path().join("garbage.toml").display().to_string();
    store.set("BIVOUAC_CONFIG", &file);
    store.succeed(&["open"]).unwrap().error("opened", &["garbage.toml"]);
}

#[test]
fn unusable_names_messages_in_flight_empty_and_very_many_regions() {
    let Some(answer) = Store::new().succeed(&["names"]) else { return };
    for label in ["name-empty", "name-slash", "name-dot", "name-newline", "name-long"] {
        answer.error(label, &["checkpoint name", "is not usable: use 1 to 128 bytes"]);
    }
    for (rank, text) in answer.lines("in-flight") {
        let said = "error rank 1: a message from rank 0 with tag 77 has arrived but has not been received";
        assert!(if rank == 1 { text.starts_with(said) } else { text == "ok none" }, "rank {rank}: {text}");
    }
    assert_eq!(answer.lines("in-flight").len(), 4);
    answer.ok("received");
    answer.error("restart-slash", &["\"a/b\" is not usable"]);
    answer.error("versions-slash", &["\"a/b\" is not usable"]);
    answer.error("twice", &["region \"field\" is saved twice"]);
    answer.error("zero-regions", &["version 2 of \"none\" has no region", "a region of length 0"]);
    assert_eq!(answer.ok("zero-regions-restored"), "0");
    for label in ["twice-captured", "zero-length", "many"] {
        answer.ok(label);
    }
    assert_eq!(answer.ok("zero-length-restored"), "3");
    assert_eq!(answer.ok("many-restored"), "4");
    answer.ok("close");
}

// ------------------------------------------------------------------------------------------ thread levels, sessions, runs

#[test]
fn every_thread_level_and_an_application_that_initialised_mpi_itself() {
    let mut store = Store::new();
    let modes = [
        ("single", "auto"),
        ("funneled", "auto"),
        ("serialized", "auto"),
        ("multiple", "stepped"),
        ("raw", "auto"),
        ("multiple", "sockets"),
    ];
    // Each mode restores what the previous one wrote.
    for (index, (threads, progress)) in modes.into_iter().enumerate() {
        store.set("BIVOUAC_TEST_THREADS", threads);
        store.set("BIVOUAC_ENGINE_PROGRESS", progress);
        let Some(answer) = store.be_killed(&["step", "kill", "2"]) else { return };
        assert_eq!(answer.ok("restored"), (2 * index).to_string(), "{threads} {progress}");
        answer.ok(&format!("committed-{}", 2 * index + 2));
    }
    let last = store.succeed(&["step", "close", "1"]).unwrap();
    assert_eq!(last.ok("restored"), (2 * modes.len()).to_string());
    last.ok("close");
}

/// Checkpoints do not depend on MPI's thread level: a program that computes for long without any call gets its checkpoints at all levels.
#[test]
fn levels_are_committed_while_ranks_make_no_call_at_all() {
    for threads in ["raw", "single", "funneled", "serialized", "multiple"] {
        let store = Store::new().with("BIVOUAC_TEST_THREADS", threads);
        let Some(answer) = store.succeed(&["without-calls"]) else { return };
        (1..=3).for_each(|version| assert_eq!(answer.same(&format!("levels-{version}")), "3 true", "{threads}"));
        answer.ok("close");
        println!("{threads}\n{}", answer.text);
    }
}

#[test]
fn sessions_on_disjoint_communicators_use_the_same_names_and_get_their_own_data() {
    let store = Store::new();
    let Some(first) = store.be_killed(&["split", "start"]) else { return };
    first.each("taken");
    let second = store.succeed(&["split", "again"]).unwrap();
    for (rank, text) in second.each("restored").iter().enumerate() {
        let (version, seed) = if rank % 2 == 0 { (3, 100) } else { (5, 101) };
        second.has("restored", text, &[&format!("ok version={version} generation=1 seed={seed} tier=memory ")]);
    }
    second.ok("close");

    let store = Store::new();
    store.be_killed(&["reordered", "start"]).unwrap().ok("committed");
    let again = store.succeed(&["reordered", "again"]).unwrap();
    again.has("restored", again.ok("restored"), &["version=1 generation=1 seed=1 "]);
}

#[test]
fn a_second_session_on_the_same_communicator_is_refused_unless_it_has_a_group_of_its_own() {
    let Some(answer) = Store::new().succeed(&["two-sessions"]) else { return };
    answer.error("second", &["this process", "open already", "Close it first", "job.group"]);
    answer.has("first", answer.ok("restored-first"), &["version=3 generation=1 seed=1 "]);
    answer.has("second", answer.ok("restored-second"), &["version=13 generation=1 seed=2 "]);
    answer.has("after", answer.ok("restored-after"), &["version=13 generation=1 seed=2 "]);
    answer.has("again", answer.ok("restored-again"), &["version=3 generation=1 seed=1 "]);
    for label in ["close-first", "close-second", "close-again"] {
        answer.ok(label);
    }
}

/// A job that runs alongside others. Dropping it kills its ranks.
struct Background {
    launcher: Child,
    output: PathBuf,
}

impl Background {
    fn start(store: &Store, prefix: &[&str], scenario: &[&str], output: &str) -> Option<Background> {
        let mpirun = std::env::var_os("BIVOUAC_TEST_MPIRUN").unwrap_or_else(|| "mpirun".into());
        let output = store.path().join(output);
        let file = std::fs::File::create(&output).unwrap();
        let mut command = match prefix.split_first() {
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg(mpirun);
                command
            }
            None => Command::new(mpirun),
        };
        let started = command
            .args(["-n", &RANKS.to_string()])
            .arg(worker())
            .args(scenario)
            .envs(store.env())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
            .env("OMPI_MCA_hwloc_base_binding_policy", "none")
            .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn();
        match started {
            Ok(launcher) => Some(Background { launcher, output }),
            Err(error) => {
                eprintln!("\n*** SKIPPED: no mpirun or {prefix:?} here ({error}). Run ci/setup.sh. ***\n");
                None
            }
        }
    }

    /// The job's output so far, in which `mpirun` may have passed on pieces of lines.
    fn text(&self) -> String {
        limit::lines_written_to(&self.output)
    }

    fn answer(&self, success: bool) -> Answer {
        let text = self.text();
        Answer { ranks: RANKS, success, stdout: text.clone(), text }
    }

    /// Waits until the output satisfies `ready`. Fails if the job ends earlier or takes too long.
    fn wait_for(&mut self, what: &str, ready: impl Fn(&Answer) -> bool) {
        let started = Instant::now();
        while !ready(&self.answer(true)) {
            assert!(started.elapsed() < LIMIT, "{what} did not come:\n{}", self.text());
            if let Some(status) = self.launcher.try_wait().unwrap() {
                assert!(ready(&self.answer(true)), "{what} did not come before the end ({status}):\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn finish(mut self) -> Answer {
        let started = Instant::now();
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return self.answer(status.success());
            }
            assert!(started.elapsed() < LIMIT, "the job does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The ranks' process ids, as the ranks printed them.
    fn ranks(&self) -> Vec<u32> {
        self.answer(true).lines("pid").iter().filter_map(|(_, pid)| pid.parse().ok()).collect()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        for pid in self.ranks() {
            let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process has a number");
            // A rank that has ended needs no signal.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if matches!(self.launcher.try_wait(), Ok(None)) {
            self.signal(rustix::process::Signal::KILL);
            let _ = self.launcher.kill();
            let _ = self.launcher.wait();
        }
    }
}

fn served(answer: &Answer, rank: u32) -> Vec<&str> {
    answer.lines("served").into_iter().filter(|(of, _)| *of == rank).map(|(_, text)| text).collect()
}

#[test]
fn a_zombie_of_an_older_generation_is_fenced_and_its_files_never_mix_with_the_newer_ones() {
    let mut store = Store::new().with("BIVOUAC_GLOBAL_KEEP_LAST", "3");
    let stop = store.path().join("stop");
    store.set("BIVOUAC_EXIT_STOP_FILE", &stop.display().to_string());
    store.set("BIVOUAC_EXIT_CHECK_EVERY", "50ms");
    let Some(mut zombie) = Background::start(&store, &[], &["serve", "1"], "zombie.txt") else { return };
    zombie.wait_for("version 3", |answer| served(answer, 0).len() >= 3);

    // While the first run is alive, a second one is refused.
    store.succeed(&["open"]).unwrap().error("opened", &["is alive", "generation 1", "take_over"]);

    zombie.signal(rustix::process::Signal::STOP);
    store.set("BIVOUAC_JOB_TAKE_OVER", "true");
    let mut newer = Background::start(&store, &[], &["serve", "2"], "newer.txt").unwrap();
    newer.wait_for("three versions of the newer run", |answer| served(answer, 0).len() >= 3);
    let before = served(&zombie.answer(true), 0).len();

    zombie.signal(rustix::process::Signal::CONT);
    zombie.wait_for("the zombie's news that it is superseded", |answer| {
        (0..RANKS).all(|rank| served(answer, rank).iter().any(|text| text.contains("superseded")))
    });
    // Superseded or not, the application continues to compute, and so does the newer one.
    let (old, new) = (served(&zombie.answer(true), 0).len(), served(&newer.answer(true), 0).len());
    zombie.wait_for("more steps of the zombie", |answer| served(answer, 0).len() >= old + 5);
    newer.wait_for("more versions of the newer run", |answer| served(answer, 0).len() >= new + 3);
    std::fs::write(&stop, "").unwrap();
    let (zombie, newer) = (zombie.finish(), newer.finish());
    zombie.each("ended");
    assert!(zombie.success, "{}", zombie.text);
    newer.each("ended");
    newer.ok("close");
    assert!(newer.success, "{}", newer.text);

    // After it was told, the zombie prints only errors, the same on all ranks.
    for rank in 0..RANKS {
        let lines = served(&zombie, rank);
        let told = lines.iter().position(|text| text.contains("superseded")).unwrap();
        assert!(told >= before.saturating_sub(1), "fenced before anybody took over\n{}", zombie.text);
        assert!(lines[told..].iter().all(|text| text.contains(" error ")), "{}", zombie.text);
        // On the root, the next capture fails at once; the other ranks hear of the failure in the verdict.
        let brief = |lines: &[&str]| -> Vec<String> {
            lines.iter().map(|text| text.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(brief(&lines), brief(&served(&zombie, 0)), "rank {rank}\n{}", zombie.text);
        let first = served(&zombie, 0)[told];
        assert!([lines[told], first].iter().all(|text| text.contains("generation 1 is superseded")), "{}", zombie.text);
    }
    zombie.error("close", &["rank 0: generation 1 is superseded: generation 2 has claimed"]);
    let committed = |answer: &Answer| -> BTreeSet<String> {
        let good = served(answer, 0).into_iter().filter(|text| text.contains(" ok "));
        good.map(|text| text.split(' ').next().unwrap().to_owned()).collect()
    };
    assert!(served(&newer, 0).iter().all(|text| text.contains(" ok ")), "{}", newer.text);
    // The newer run began from the zombie's last commit, and the next run continues from the newer one.
    let restored = newer.same("restored");
    let last = committed(&zombie).iter().filter_map(|text| text["version=".len()..].parse::<u64>().ok()).max().unwrap();
    newer.has("restored", restored, &["generation=1 seed=1"]);
    let begun: u64 = restored.split(['=', ' ']).nth(1).unwrap().parse().unwrap();
    assert!(begun >= last, "version {last} was committed before the newer run restored {restored}");
    store.set("BIVOUAC_JOB_TAKE_OVER", "false");
    let third = store.succeed(&["look"]).unwrap();
    let newest = begun + committed(&newer).len() as u64;
    third.has("restored", third.ok("restored"), &[&format!("version={newest} generation=2 seed=2 ")]);
}

// ------------------------------------------------------------------------------------------ decisions and ends

#[test]
fn should_checkpoint_and_should_exit_give_one_answer_on_all_ranks() {
    let Some(answer) = Store::new().succeed(&["decide"]) else { return };
    assert_eq!(answer.ok("by-steps"), "6,13,20,27,34,41,48");
    assert_eq!(answer.ok("never-exits"), "");
    let calls = |label: &str| -> Vec<u64> { answer.ok(label).split(',').map(|call| call.parse().unwrap()).collect() };
    let by_seconds = calls("by-seconds");
    assert!(!by_seconds.is_empty() && by_seconds.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(!calls("by-overhead").is_empty());
    // The first two checkpoints are for measuring; each later one is due when it pays.
    assert!(calls("by-auto").len() >= 3, "{}", answer.text);
    assert_eq!(answer.same("tuned"), "true", "{}", answer.text);
    for label in ["by-signal", "by-file", "by-time"] {
        let calls = calls(label);
        // After the first yes, the answer is always yes.
        assert!(calls.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{label}: {calls:?}");
        assert!(label == "by-time" || calls[0] >= 30, "{label}: {calls:?}");
    }
}

#[test]
fn mpi_finalize_before_close_and_sessions_that_are_never_closed() {
    let mut store = Store::new();
    let mut version = 10u64;
    for progress in ["auto", "sockets", "stepped"] {
        store.set("BIVOUAC_ENGINE_PROGRESS", progress);
        for how in ["finalize-first", "drop", "drop-after-finalize", "forget"] {
            let Some(answer) = store.succeed(&["end", how, &version.to_string()]) else { return };
            let restored = answer.ok("restored");
            if version > 10 {
                // The committed version is restored, or the next one, which may have been committed as well.
                let number: u64 = restored["version=".len()..].split(' ').next().unwrap().parse().unwrap();
                assert!(number == version - 10 || number == version - 9, "{how} {progress}: {restored}");
            }
            answer.ok("committed");
            answer.each("ended");
            version += 10;
        }
    }
}

/// A mark that is open when the run ends does no harm, whatever state its blocks are in. `BIVOUAC_TEST_EVERY=1` tests
/// each end in each state.
#[test]
fn an_end_of_any_kind_in_any_state_of_a_mark() {
    let mut store = Store::new();
    store.set("BIVOUAC_DEVICE_BUDGET", "2 MiB");
    store.set("BIVOUAC_OFFLOAD_BUFFER", "1 MiB");
    let is_all = std::env::var("BIVOUAC_TEST_EVERY").is_ok_and(|every| every == "1");
    let mut version = 10u64;
    let hows = ["finalize-first", "drop", "drop-after-finalize", "forget", "kill"];
    for (first, how) in hows.into_iter().enumerate() {
        for (second, state) in ["undeclared", "doubled", "awaited", "landed"].into_iter().enumerate() {
            if (first + second) % 4 != 0 && !is_all {
                continue;
            }
            let scenario = ["end-marked", how, state, &version.to_string()];
            let Some(answer) = store.run(&scenario) else { return };
            assert_eq!(answer.success, how != "kill", "{}", answer.text);
            let restored: u64 = answer.ok("restored")["version=".len()..].parse().unwrap();
            // The committed version is restored, or the marked one, which may have been committed as well.
            let last = version.saturating_sub(10);
            assert!(restored == last || (last > 0 && restored == last + 1), "{how} {state}: {}", answer.text);
            answer.ok("committed");
            // Blocks that find no room in the buffer are waited for; they are already on their way, or are sent at once.
            let is_doubled = state == "doubled" || state == "awaited";
            assert_eq!(answer.same("state"), format!("doubled={is_doubled}"), "{}", answer.text);
            if how != "kill" {
                answer.each("ended");
            }
            version += 10;
        }
    }
}

#[test]
fn signals_reach_the_application_and_our_threads_keep_off_its_processors() {
    let mut store = Store::new();
    for progress in ["auto", "sockets", "stepped"] {
        store.set("BIVOUAC_ENGINE_PROGRESS", progress);
        let name = format!("signals-{progress}.txt");
        let Some(job) = Background::start(&store, &["taskset", "-c", "0"], &["signals"], &name) else { return };
        let answer = job.finish();
        assert!(answer.success, "{}", answer.text);
        for (rank, threads) in answer.lines("threads") {
            answer.has("threads", threads, &["bvk-write-0", "bvk-near"]);
            assert_eq!(threads.contains("bvk-comm"), progress != "stepped", "{threads}");
            assert_eq!(threads.contains("bvk-claim"), rank == 0, "{threads}");
        }
        assert_eq!(answer.same("mask"), "0");
        answer.same("handled");
        answer.ok("close");
        assert_eq!(answer.same("left"), "0", "threads outlive close");
    }
}

#[test]
fn a_signal_that_a_closed_session_listened_for_means_again_what_it_meant_before() {
    let Some(answer) = Store::new().run(&["after-close"]) else { return };
    answer.each("closed");
    assert!(!answer.success && !answer.text.contains("survived"), "{}", answer.text);
}
