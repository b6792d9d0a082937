//! `bivouac topo`: machines, records of checkpoints, live processes, comparisons and drawings.
//!
//! Sessions record their machine. `topo/mod.rs` puts records of other machines into stores, and records that no session would write. The
//! drawings of the tests stay in `target`'s folder for temporary files, so that people can look at them.
#![forbid(unsafe_code)]

use crate::store::{Ran, Store, bivouac, with_path};
use crate::topologies::{Recorded, write};
use crate::{limit, store, topologies};
use bivouac_core::affinity::cpus::Cpus;
use bivouac_core::affinity::record::Record;
use bivouac_core::config::Config;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A checkpoint with these records.
fn checkpoint(root: &Path, version: u64, records: Vec<Record>) -> PathBuf {
    write(root, version, &records.into_iter().map(Recorded::from).collect::<Vec<_>>())
}

fn compare(then: &Path, now: &Path, more: &[&str]) -> Ran {
    let paths = [then, now].map(|path| path.to_str().expect("UTF-8"));
    bivouac(&[&["topo", "--compare"], more, &paths].concat())
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// Draws everything below a path.
fn draw(name: &str, path: &Path) -> (Ran, Svg) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("topo-{name}.svg"));
    let ran = with_path(&["topo", "--svg", file.to_str().expect("UTF-8")], path);
    (ran, Svg::parse(&std::fs::read_to_string(file).expect("drawn")))
}

/// A drawing, taken apart. The parser knows only as much XML as the drawings use.
struct Svg {
    text: String,
    width: f64,
    height: f64,
    /// The left, upper, right and lower edge, and the colour.
    areas: Vec<([f64; 4], String)>,
    /// Words outside of hints, and their coordinates.
    words: Vec<(String, f64, f64)>,
}

impl Svg {
    fn parse(text: &str) -> Svg {
        let allowed = |letter: char| letter == '\n' || !letter.is_control();
        assert!(text.chars().all(allowed) && text.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"));
        let mut svg = Svg { text: text.to_owned(), width: 0.0, height: 0.0, areas: Vec::new(), words: Vec::new() };
        let mut open: Vec<(String, Vec<(String, String)>)> = Vec::new();
        let mut rest = &text[text.find("?>").expect("the first line") + 2..];
        while let Some((words, after)) = rest.split_once('<') {
            let (tag, after) = after.split_once('>').expect("a tag ends");
            svg.take_words(words, open.last());
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().expect("something is open").0, name);
                continue;
            }
            let (tag, is_whole) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            let attributes = Svg::attributes(attributes);
            svg.take_tag(name, &attributes, open.iter().any(|(name, _)| name == "pattern"));
            if !is_whole {
                open.push((name.to_owned(), attributes));
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty());
        svg
    }

    fn attributes(mut text: &str) -> Vec<(String, String)> {
        let mut attributes = Vec::new();
        while let Some((name, rest)) = text.split_once("=\"") {
            let (value, rest) = rest.split_once('"').expect("a value ends");
            assert!(!value.contains(['<', '&']), "{value}");
            let name = name.trim();
            assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '-'), "{name}");
            attributes.push((name.to_owned(), value.to_owned()));
            text = rest;
        }
        assert!(text.trim().is_empty(), "{text}");
        attributes
    }

    fn take_tag(&mut self, name: &str, attributes: &[(String, String)], is_pattern: bool) {
        let value = |name: &str| attributes.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        let number = |name: &str| value(name).map_or(0.0, |value| value.parse::<f64>().expect("a number"));
        match name {
            "svg" => (self.width, self.height) = (number("width"), number("height")),
            "rect" if !is_pattern => {
                let (x, y) = (number("x"), number("y"));
                let area = [x, y, x + number("width"), y + number("height")];
                self.areas.push((area, value("fill").expect("a colour").to_owned()));
            }
            "rect" | "text" | "title" | "defs" | "pattern" => {}
            other => panic!("<{other}>"),
        }
    }

    fn take_words(&mut self, words: &str, tag: Option<&(String, Vec<(String, String)>)>) {
        if words.trim().is_empty() {
            return;
        }
        let (name, attributes) = tag.expect("words are in something");
        let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
        assert_eq!(words.matches('&').count(), entities.iter().map(|one| words.matches(one).count()).sum::<usize>());
        assert!(["text", "title"].contains(&name.as_str()));
        if name == "text" {
            let number = |name: &str| {
                let value = attributes.iter().find(|(own, _)| own == name).expect("a place");
                value.1.parse::<f64>().expect("a number")
            };
            self.words.push((words.to_owned(), number("x"), number("y")));
        }
    }

    /// Checks that nothing is outside, and that any two boxes are nested or apart.
    fn assert_sound(&self) {
        for (area, _) in &self.areas {
            assert!(area[0] >= 0.0 && area[1] >= 0.0 && area[2] <= self.width && area[3] <= self.height, "{area:?}");
        }
        for (words, x, y) in &self.words {
            assert!(*x >= 0.0 && *x < self.width && *y > 0.0 && *y < self.height, "{words} at {x}, {y}");
        }
        // Edges are rounded to a tenth of a pixel.
        let is_in = |a: &[f64; 4], b: &[f64; 4]| {
            a[0] >= b[0] - 0.2 && a[1] >= b[1] - 0.2 && a[2] <= b[2] + 0.2 && a[3] <= b[3] + 0.2
        };
        let is_apart = |a: &[f64; 4], b: &[f64; 4]| {
            a[2] <= b[0] + 0.2 || b[2] <= a[0] + 0.2 || a[3] <= b[1] + 0.2 || b[3] <= a[1] + 0.2
        };
        let large: Vec<_> = self.areas.iter().map(|(area, _)| area).filter(|area| area[2] - area[0] > 60.0).collect();
        for (index, a) in large.iter().enumerate() {
            for b in &large[index + 1..] {
                assert!(is_in(a, b) || is_in(b, a) || is_apart(a, b), "{a:?} and {b:?}");
            }
        }
    }

    fn says(&self, words: &str) -> bool {
        self.words.iter().any(|(own, ..)| own.contains(words))
    }

    /// The number of places that hold exactly these words.
    fn count(&self, words: &str) -> usize {
        self.words.iter().filter(|(own, ..)| own == words).count()
    }
}

// ------------------------------------------------------------------------------------------- this machine

#[test]
fn this_machine_is_shown() {
    let document = bivouac(&["topo", "--json"]).json();
    let machine = &document["machine"];
    let cpus = list(&machine["cpus"]);
    assert!(!cpus.is_empty() && !list(&machine["nodes"]).is_empty(), "{document}");
    assert!(cpus.iter().all(|cpu| cpu["number"].is_u64() && cpu["node"].is_u64()));
    let ran = bivouac(&["topo"]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.starts_with("this machine: ") && ran.out.contains("\nNODE "), "{}", ran.out);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("topo-here.svg");
    assert_eq!(bivouac(&["topo", "--svg", file.to_str().expect("UTF-8")]).status, 0);
    let svg = Svg::parse(&std::fs::read_to_string(file).expect("drawn"));
    svg.assert_sound();
    assert!(svg.says("this machine") && svg.says("package 0"));
}

// ------------------------------------------------------------------------------------------- checkpoints

#[test]
fn what_a_session_recorded_is_shown_from_every_tier() {
    let store = Store::with(&[10, 20]);
    let container = store.folders(&store.global())[1].join("c000000.bvc");
    // This checkpoint was only in memory when its job ended.
    let memory = Store::empty();
    let only_memory = |config: &mut Config| (config.job.local_enabled, config.job.global_enabled) = (false, false);
    memory.run(only_memory, |session, rank| store::take(session, rank, &[10, 20], bivouac_core::Level::Process));
    let old = store.folders(&store.global())[0].clone();
    let segments = memory.memory.path().to_owned();
    for path in [store.global(), store.local(), old, container, memory.segment(), segments] {
        let ran = with_path(&["topo", "--json"], &path);
        assert_eq!(ran.status, 0, "{}: {}", path.display(), ran.err);
        let document = ran.json();
        let snapshots = list(&document["snapshots"]);
        assert_eq!(snapshots.len(), 1, "of a series the newest: {document}");
        let snapshot = &snapshots[0];
        let is_old = path.to_str().expect("UTF-8").contains("v0000000010");
        assert_eq!(snapshot["version"], if is_old { 10 } else { 20 }, "{}", path.display());
        assert_eq!((&snapshot["name"], &snapshot["group_size"]), (&"heat".into(), &2.into()));
        let ranks = list(&snapshot["ranks"]);
        assert_eq!((ranks.len(), list(&snapshot["machines"]).len()), (2, 1), "{document}");
        for (rank, number) in ranks.iter().zip(0..) {
            assert_eq!((&rank["rank"], &rank["neighbours"]), (&number.into(), &serde_json::json!([0, 1])));
            let threads = list(&rank["threads"]);
            assert_eq!(threads.iter().filter(|thread| thread["role"] == "main").count(), 1, "{document}");
            assert!(threads.iter().all(|thread| thread["cpus"].as_str().is_some_and(|cpus| !cpus.is_empty())));
        }
        let text = with_path(&["topo"], &path).out;
        assert!(text.contains("machine of ranks 0-1: ") && text.contains("records of 2 of 2 ranks"), "{text}");
    }
}

#[test]
fn threads_pages_and_gpus_of_ranks_are_shown() {
    let root = folder();
    let path = checkpoint(root.path(), 10, topologies::cluster_node());
    let ran = with_path(&["topo"], &path);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let has = |row: &[&str]| {
        let is_row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") == row.join(" ");
        assert!(ran.out.lines().any(is_row), "{row:?}:\n{}", ran.out);
    };
    has(&["3", "64 GiB", "1", "16", "48-63", "32 32 12 10"]);
    has(&["network", "0000:a0:00.0", "0-1"]);
    has(&["5", "main heat2d", "1", "40"]);
    has(&["5", "other heat2d", "3", "41 | 42 | 43"]);
    has(&["5", "temperature", "256 MiB", "node 0* 64 MiB, node 2 192 MiB", "exact, 1.5 s old"]);
    has(&["2", "images", "64 MiB", "gpu 0000:37:00.0"]);
    assert!(ran.out.contains("* no thread of the rank may run on that node"));
    let document = with_path(&["topo", "--json"], &path).json();
    let rank = &document["snapshots"][0]["ranks"][5];
    let nodes = serde_json::json!([{"node": 0, "bytes": 64 << 20}, {"node": 2, "bytes": 192 << 20}]);
    assert_eq!((&rank["regions"][0]["nodes"], &rank["regions"][0]["exact"]), (&nodes, &true.into()));
    assert_eq!((&rank["threads"][3]["cpus"], &rank["threads"][3]["pinned"]), (&"43".into(), &true.into()));
    assert_eq!(document["snapshots"][0]["machines"][0]["nodes"][3]["distances"], serde_json::json!([32, 32, 12, 10]));

    let text = with_path(&["topo"], &checkpoint(root.path(), 20, topologies::unpinned())).out;
    assert!(text.contains("0-127 (not pinned)") && !text.contains('*'), "{text}");
}

#[test]
fn ranks_are_grouped_by_the_machines_they_were_on() {
    let root = folder();
    let mut records = topologies::cluster_node();
    for record in &mut records[4..] {
        record.neighbours = (8..12).collect();
        record.machine.nodes[0].bytes = 32 << 30;
    }
    records[6].neighbours = vec![20];
    let path = checkpoint(root.path(), 10, records);
    let snapshot = with_path(&["topo", "--json"], &path).json()["snapshots"][0].clone();
    let machines: Vec<_> = list(&snapshot["ranks"]).iter().map(|rank| rank["machine"].as_u64()).collect();
    assert_eq!(machines, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    let text = with_path(&["topo"], &path).out;
    assert!(text.contains("\nmachine of ranks 0-3: "), "{text}");
    assert!(text.contains("\n2 machines, each of ranks 4-5,7 | rank 6: "), "{text}");
    let (_, svg) = draw("machines", &path);
    svg.assert_sound();
    assert!(["ranks 0-3:", "ranks 4-5,7:", "rank 6:"].iter().all(|words| svg.says(words)));
}

#[test]
fn missing_and_damaged_records_are_said_and_do_no_harm() {
    let root = folder();
    let good = || Recorded::from(topologies::cluster_node().swap_remove(0));
    let path = write(root.path(), 10, &[good(), Recorded::Nothing, Recorded::Bytes(Vec::new())]);
    let ran = with_path(&["topo"], &path);
    assert!(ran.status == 0 && ran.out.contains("records of 1 of 3 ranks"), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("without a readable record: ranks 1-2"), "affinity was off, or failed: {}", ran.out);

    let noise: Vec<u8> = (0..5000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cut = topologies::cluster_node()[0].encode().expect("sound")[..200].to_vec();
    let path =
        write(root.path(), 20, &[good(), Recorded::Bytes(noise), Recorded::Bytes(cut), Recorded::Bytes(vec![9; 4])]);
    let ran = with_path(&["topo", "--json"], &path);
    let document = ran.json();
    assert_eq!((ran.status, list(&document["problems"]).len()), (1, 3), "{document}");
    assert_eq!(list(&document["snapshots"][0]["ranks"]).len(), 1);
    assert_eq!(document["snapshots"][0]["without"], serde_json::json!([1, 2, 3]));

    // A flipped bit of a record is found by its digest.
    let path = write(root.path(), 30, &[good()]);
    let file = path.join("c000000.bvc");
    let file = std::fs::File::options().read(true).write(true).open(&file).expect("opens");
    let (mut body, mut byte) = ([0; 8], [0]);
    file.read_exact_at(&mut body, 120).expect("where the regions begin");
    let at = u64::from_le_bytes(body) + 100;
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 4], at).expect("written");
    let ran = with_path(&["topo"], &path);
    assert!(ran.status == 1 && ran.err.contains("do not match their digest"), "{}", ran.err);
    let (ran, svg) = draw("nothing", &path);
    assert!(ran.status == 1 && svg.says("no readable record"));
    svg.assert_sound();
}

#[test]
fn records_that_no_session_writes_are_harmless() {
    let root = folder();
    let path = checkpoint(root.path(), 10, topologies::half_broken());
    let ran = with_path(&["topo"], &path);
    assert_eq!(ran.status, 0, "sound as records: {}", ran.err);
    assert!(!ran.out.contains('\u{1b}') && ran.out.contains("node 77* 8 MiB"), "{}", ran.out);
    assert!(ran.out.contains("machine of rank 1: nothing is known about it"), "{}", ran.out);
    let (ran, svg) = draw("broken", &path);
    assert_eq!(ran.status, 0, "{}", ran.err);
    svg.assert_sound();
    assert!(svg.says("node 77 · not on this machine") && svg.says("CPUs that the machine does not have: 700-701"));
    assert!(
        svg.says("GPUs that the machine does not have: 9999:99:99.9")
            && svg.says("4 MiB of regions are on no known node")
    );

    // This map does not fit its region.
    let mut record = topologies::cluster_node().swap_remove(0);
    record.regions.truncate(1);
    let bytes = record.encode().expect("sound");
    let path = write(root.path(), 20, &[Recorded::Bytes(bytes)]);
    let ran = with_path(&["topo"], &path);
    assert!(ran.status == 1 && ran.err.contains("no such region"), "{}", ran.err);
    assert!(ran.out.contains("records of 1 of 1 ranks") && !ran.out.contains("temperature"), "{}", ran.out);
}

#[test]
fn paths_that_hold_no_record_are_refused() {
    let root = folder();
    let path = checkpoint(root.path(), 10, topologies::laptop());
    std::fs::create_dir(root.path().join("empty")).expect("made");
    std::fs::write(root.path().join("notes"), "mine").expect("written");
    for (path, status, why) in [
        (root.path().join("none"), 2, "cannot find"),
        (root.path().join("notes"), 2, "not a Bivouac file"),
        (root.path().join("empty"), 3, "holds no checkpoint"),
        (path.join("manifest"), 2, "name its folder"),
    ] {
        let ran = with_path(&["topo"], &path);
        assert!(ran.status == status && ran.err.contains(why), "{}: {}", path.display(), ran.err);
    }
    let file = root.path().join("none/x.svg");
    let ran = with_path(&["topo", "--svg", file.to_str().expect("UTF-8")], &path);
    assert!(ran.status == 2 && ran.err.contains("cannot write") && !ran.out.is_empty(), "{}", ran.err);
}

// ------------------------------------------------------------------------------------------- comparisons

#[test]
fn two_checkpoints_are_compared_rank_by_rank() {
    let root = folder();
    let then = checkpoint(root.path(), 10, topologies::cluster_node());
    let same = compare(&then, &then, &[]);
    assert!(same.status == 0 && same.out.ends_with("\nalike\n"), "{}{}", same.out, same.err);

    let mut records = topologies::cluster_node();
    records[2].threads[1].cpus = Cpus::from([63]);
    records[5].regions[0] = topologies::region("temperature", &[(256, Some(2))]);
    let now = checkpoint(root.path(), 20, records);
    let ran = compare(&then, &now, &[]);
    assert_eq!(ran.status, 1, "{}", ran.err);
    assert!(ran.out.contains("rank 2: other thread heat2d 0: CPUs 17 -> 63\n"), "{}", ran.out);
    let pages = 64 << 20 >> 12;
    assert!(
        ran.out.contains(&format!("rank 5: region temperature: {pages} of 65536 pages on other nodes\n")),
        "{}",
        ran.out
    );
    let document = compare(&then, &now, &["--json"]).json();
    let ranks = list(&document["comparison"]["ranks"]);
    let alike: Vec<_> = ranks.iter().map(|rank| rank["alike"] == true).collect();
    assert_eq!(alike, [true, true, false, true, true, false, true, true], "{document}");
    assert_eq!(ranks[5]["regions"][1]["elsewhere"], pages, "{document}");
    assert_eq!(compare(&now, &now, &[]).status, 0);
}

#[test]
fn other_machines_and_ranks_are_not_alike() {
    let root = folder();
    let then = checkpoint(root.path(), 10, topologies::cluster_node());
    let mut records = topologies::cluster_node();
    for record in &mut records {
        record.machine.cpus.iter_mut().for_each(|cpu| cpu.number = 63 - cpu.number);
    }
    let renumbered = checkpoint(root.path(), 20, records);
    let document = compare(&then, &renumbered, &["--json"]).json();
    assert_eq!(document["comparison"]["ranks"][0]["machine"], "renumbered");
    let fewer = checkpoint(root.path(), 30, topologies::laptop());
    let ran = compare(&then, &fewer, &[]);
    assert!(ran.status == 1 && ran.out.contains("only in the first: ranks 1-7"), "{}", ran.out);
    assert!(ran.out.contains(" other "), "{}", ran.out);
    // One path alone is refused, and so are three, and one that cannot be read.
    assert_eq!(with_path(&["topo", "--compare"], &then).status, 2);
    assert_eq!(compare(&then, &fewer, &[then.to_str().expect("UTF-8")]).status, 2);
    assert_eq!(compare(&then, &root.path().join("none"), &[]).status, 2);
}

/// A process that sleeps, on one CPU or on any.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn new(cpu: Option<usize>) -> Sleeper {
        let mut command = std::process::Command::new(if cpu.is_some() { "taskset" } else { "sleep" });
        if let Some(cpu) = cpu {
            command.args(["-c", &cpu.to_string(), "sleep"]);
        }
        let child = command.arg("600").spawn().expect("it starts");
        // The process has started only when it has become `sleep`.
        let name = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default();
        limit::wait_until("it sleeps", || name().trim() == "sleep");
        Sleeper(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn live_processes_are_shown_and_compared() {
    let own = bivouac_core::affinity::cpus::of_this_thread();
    let cpu = *own.last().expect("a CPU");
    let [bound, free] = [Sleeper::new(Some(cpu)), Sleeper::new(None)];
    let list_of = format!("{},{}", bound.pid(), free.pid());
    let ran = bivouac(&["topo", "--json", "--pid", &list_of]);
    let document = ran.json();
    let mut ranks = list(&document["snapshots"][0]["ranks"]).clone();
    ranks.sort_by_key(|rank| rank["process"] != bound.0.id());
    assert_eq!(ranks.len(), 2, "{document}");
    assert_eq!(ranks[0]["threads"][0]["cpus"], cpu.to_string().as_str());
    assert_eq!((&ranks[0]["threads"][0]["role"], &ranks[0]["threads"][0]["name"]), (&"main".into(), &"sleep".into()));
    assert_eq!(ranks[1]["threads"][0]["cpus"], bivouac_core::base::units::show_cpus(&own).as_str());

    // These processes are nobody's ranks, and neither the tables nor the drawing call them so.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("topo-live.svg");
    let text = bivouac(&["topo", "--pid", &free.pid(), "--svg", file.to_str().expect("UTF-8")]).out;
    assert!(text.contains("PROCESS  THREADS") && !text.contains("RANK"), "{text}");
    let svg = Svg::parse(&std::fs::read_to_string(file).expect("drawn"));
    svg.assert_sound();
    let loose = format!("not pinned, so they may run on any CPU that the job was given: process {}", free.pid());
    assert!(svg.says(&loose) && !svg.text.contains(&format!("rank {}", free.pid())), "{}", svg.text);

    // This is a checkpoint of such processes on this machine; the process of rank 1 was on one CPU as well.
    let root = folder();
    let thread = |cpus: Cpus| {
        let mut threads = topologies::threads([cpus]);
        threads[0].name = "sleep".into();
        threads
    };
    let machine = bivouac_core::affinity::machine::Machine::here().clone();
    let record = |cpus: Cpus| Record {
        machine: machine.clone(),
        given: own.clone(),
        threads: thread(cpus),
        ..Record::default()
    };
    let one = || Cpus::from([cpu]);
    let path = checkpoint(root.path(), 10, vec![record(one()), record(own.clone()), record(one())]);
    let path = path.to_str().expect("UTF-8");
    let go = |pids: &str| bivouac(&["topo", "--compare", "--pid", pids, path]);
    let pids = format!("2={},{},1={}", bound.pid(), bound.pid(), free.pid());
    let ran = go(&pids);
    assert_eq!(ran.status, 0, "{}{}", ran.out, ran.err);
    assert_eq!(go(&format!("1={}", free.pid())).status, 0, "other ranks are not missed");
    if own.len() > 1 {
        let ran = go(&format!("0={}", free.pid()));
        assert!(
            ran.status == 1 && ran.out.contains(&format!("rank 0: main thread sleep 0: CPUs {cpu} -> ")),
            "{}",
            ran.out
        );
    }
    let ran = go(&format!("7={}", free.pid()));
    assert!(ran.status == 2 && ran.err.contains("not a rank of the checkpoint"), "{}", ran.err);
    let ended = free.pid();
    drop(free);
    let ran = bivouac(&["topo", "--pid", &ended]);
    assert!(ran.status == 2 && ran.err.contains(&format!("cannot look at process {ended}")), "{}", ran.err);
    assert_eq!(bivouac(&["topo", "--pid", "x"]).status, 2);
}

#[test]
fn a_run_without_affinity_has_no_records() {
    let store = Store::empty();
    let off = |config: &mut Config| config.job.affinity = bivouac_core::config::AffinityMode::Off;
    store.run(off, |session, rank| store::take(session, rank, &[10], bivouac_core::Level::System));
    let ran = with_path(&["topo"], &store.global());
    assert!(ran.status == 0 && ran.out.contains("without a readable record: ranks 0-1"), "{}{}", ran.out, ran.err);
}

// ------------------------------------------------------------------------------------------- drawings

#[test]
fn a_drawing_has_every_cpu_rank_node_and_device() {
    let root = folder();
    let (ran, svg) = draw("cluster-node", &checkpoint(root.path(), 10, topologies::cluster_node()));
    assert_eq!(ran.status, 0, "{}", ran.err);
    svg.assert_sound();
    // CPU 63 appears once, and a rank appears on each of its four CPUs.
    assert_eq!((svg.count("63"), svg.count("r5"), svg.count("r7")), (1, 4, 4));
    for words in
        ["package 1", "node 3 · 64 GiB", "cache 7", "GPU 77:00.0", "NIC a0:00.0", "rank 7: 4 threads, pinned, 256 MiB"]
    {
        assert!(svg.says(words), "{words}");
    }
    assert!(svg.says("576 MiB of pages, 64 MiB orphaned"));
    assert_eq!(
        svg.areas.iter().filter(|(_, fill)| fill == "url(#orphan)").count(),
        2,
        "one part of a bar, and the legend"
    );
    assert!(svg.text.len() < 100_000, "{}", svg.text.len());

    let (_, svg) = draw("unpinned", &checkpoint(root.path(), 20, topologies::unpinned()));
    svg.assert_sound();
    assert!(
        svg.says("not pinned, so they may run on any CPU that the job was given: ranks 0-63") && svg.count("r0") == 0
    );
    assert!(!svg.text.contains("fill=\"url(#orphan)\""));

    let (_, svg) = draw("laptop", &checkpoint(root.path(), 30, topologies::laptop()));
    svg.assert_sound();
    assert!(svg.count("r0") == 3 && svg.says("CPU that the job was not given"));

    let (_, svg) = draw("large", &checkpoint(root.path(), 40, topologies::large()));
    svg.assert_sound();
    assert_eq!((svg.count("255"), svg.count("r127"), svg.count("node 15 · 64 GiB")), (1, 2, 1));
}

#[test]
fn both_sides_of_a_comparison_are_drawn() {
    let root = folder();
    let then = checkpoint(root.path(), 10, topologies::cluster_node());
    let mut records = topologies::cluster_node();
    // All ranks are on one CPU, and two are on another one as well.
    records.iter_mut().for_each(|record| record.threads[0].cpus = Cpus::from([3]));
    records[0].threads[1].cpus = Cpus::from([20]);
    records[7].threads[1].cpus = Cpus::from([20]);
    let now = checkpoint(root.path(), 20, records);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("topo-both.svg");
    assert_eq!(compare(&then, &now, &["--svg", file.to_str().expect("UTF-8")]).status, 1);
    let svg = Svg::parse(&std::fs::read_to_string(file).expect("drawn"));
    svg.assert_sound();
    assert!(svg.says("version 10 of generation 1") && svg.says("version 20 of generation 1"));
    assert_eq!((svg.count("×8"), svg.count("×2")), (1, 1));
}
