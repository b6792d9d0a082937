//! Threads and pages after a restart, in machines with several NUMA nodes: `numa/machine.sh` boots the machines in QEMU. A run of
//! `programs/affinity_worker.rs` is saved and killed in one machine, and restored in others that share only a folder with that machine.
//! Each scenario can fail, because the same program, restored with affinity off, has its threads and pages elsewhere.
#![cfg(all(feature = "numa", feature = "hwloc"))]
#![forbid(unsafe_code)]

#[path = "numa/mod.rs"]
mod machines;

use machines::{program, script};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// The number of ranks of the job.
const RANKS: usize = 4;
/// The regions that the program saves.
const REGIONS: [&str; 4] = ["own", "orphan", "dealt", "odd"];

/// The words that the ranks of a job printed, by case, rank and subject.
#[derive(Default, Debug)]
struct Said(BTreeMap<(String, usize, String), String>);

impl Said {
    fn of(out: &str) -> Said {
        let mut said = Said::default();
        for line in out.lines() {
            let mut words = line.splitn(5, ' ');
            let (Some(rank), Some(case), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(rank) = rank.parse() else { continue };
            let rest = words.next().unwrap_or_default();
            let (key, value) = match kind {
                "thread" | "region" | "data" => (format!("{kind} {name}"), rest.to_owned()),
                _ => (kind.to_owned(), format!("{name} {rest}")),
            };
            said.0.insert((case.to_owned(), rank, key), value);
        }
        said
    }

    fn get(&self, case: &str, rank: usize, key: &str) -> &str {
        let found = self.0.get(&(case.to_owned(), rank, key.to_owned()));
        found.unwrap_or_else(|| panic!("rank {rank} said nothing of {key:?} in {case:?}: {self:#?}"))
    }

    /// The NUMA node of each page of a region.
    fn pages(&self, case: &str, rank: usize, region: &str) -> Vec<String> {
        let runs = self.get(case, rank, &format!("region {region}")).split_whitespace();
        let runs = runs.map(|run| run.split_once('x').expect("node, times, pages"));
        runs.flat_map(|(node, pages)| vec![node.to_owned(); pages.parse().expect("pages")]).collect()
    }

    fn threads(&self, case: &str, rank: usize) -> [&str; 2] {
        ["thread main", "thread worker"].map(|key| self.get(case, rank, key))
    }

    /// Checks that all data came back, from the newest version.
    fn check_data(&self, case: &str) {
        for rank in 0..RANKS {
            for region in REGIONS {
                assert_eq!(self.get(case, rank, &format!("data {region}")), "good", "{case} rank {rank} {region}");
            }
            assert_eq!(self.get(case, rank, "version").trim(), "Some(2)");
            assert!(self.get(case, rank, "report").contains("threads_failed: 0"), "{}", self.get(case, rank, "report"));
        }
    }

    /// The number of pages that are on another node in `other`. Pages that lie only partly in the region do not count.
    fn differing(&self, case: &str, other: &Said, as_case: &str) -> usize {
        let differing = |rank: usize, region: &str| {
            let (here, there) = (self.pages(case, rank, region), other.pages(as_case, rank, region));
            assert!(here.len().abs_diff(there.len()) <= 1, "{case} {region}: {} pages, {}", here.len(), there.len());
            let inner = |pages: &[String]| pages[1..pages.len().min(here.len()).min(there.len()) - 2].to_vec();
            inner(&here).iter().zip(inner(&there)).filter(|(a, b)| **a != *b).count()
        };
        (0..RANKS).flat_map(|rank| REGIONS.map(|region| differing(rank, region))).sum()
    }

    /// Checks that the restart moved nearly all pages for which it wanted a certain node.
    fn check_report(&self, case: &str, rank: usize) {
        let report = self.get(case, rank, "report");
        let number = |name: &str| -> f64 {
            let rest = report.split(&format!(" {name}: ")).nth(1).expect(name);
            rest.split([',', ' ']).next().and_then(|word| word.parse().ok()).expect("a number")
        };
        assert!(number("wanted") > 1000.0 && number("right") > 0.97 * number("wanted"), "{case} rank {rank}: {report}");
    }

    fn has_threads_of(&self, case: &str, other: &Said, as_case: &str) -> bool {
        (0..RANKS).all(|rank| self.threads(case, rank) == other.threads(as_case, rank))
    }
}

/// A job's folder, which all machines see.
struct Job {
    folder: tempfile::TempDir,
    piece: usize,
}

impl Job {
    /// `None` if no machines can run here, which is reported loudly.
    fn new(piece: usize) -> Option<Job> {
        if !machines::can("restarting on them", "affinity") {
            return None;
        }
        Some(Job { folder: tempfile::tempdir().unwrap(), piece })
    }

    /// Runs the program in a machine with these options, once for each of these arguments, one run after the other.
    fn run(&self, machine: &[&str], phases: &[&str]) -> Said {
        let program = program("affinity-worker");
        let root = Path::new(env!("WORKSPACE_ROOT"));
        let lines: Vec<String> = phases
            .iter()
            .map(|phase| {
                format!(
                    "mpirun --oversubscribe --bind-to none -n {RANKS} {} --piece {} {phase}\n",
                    program.display(),
                    self.piece
                )
            })
            .collect();
        let commands =
            format!(". {}/launch/env.sh; cd {}\n{}", root.display(), self.folder.path().display(), lines.concat());
        let mut command = Command::new(script());
        command.args(["--limit", "400", "--share"]).arg(self.folder.path()).args(machine).args(["--", "bash", "-c"]);
        command.arg(commands).env("BIVOUAC_LOCAL_ENABLED", "false").env("BIVOUAC_MEMORY_BUDGET", "200 MiB");
        // Memory that a program requests in large pieces always begins untouched.
        command
            .env("MALLOC_MMAP_THRESHOLD_", "131072")
            .env("BIVOUAC_GLOBAL_DIRECTORY", self.folder.path().join("global"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        println!("{machine:?}\n{}", machines::text(&output));
        Said::of(&out)
    }
}

/// After the job was killed, its threads and pages return to their places in a new machine of the same kind, whether or not its memory had
/// been touched. Each of the two returns alone if only that is asked for, and neither does if affinity is off.
#[test]
fn a_new_machine_of_the_same_kind() {
    let Some(job) = Job::new(64 << 10) else { return };
    let saved = job.run(&[], &["save"]);
    let cases = ["full", "full,touched", "threads", "pages", "off"];
    let now = job.run(&[], &[&format!("restore {}", cases.join(" "))]);
    for case in cases {
        now.check_data(case);
    }
    for case in ["full", "full,touched"] {
        assert_eq!(now.differing(case, &saved, "saved"), 0, "{case}");
        assert!(now.has_threads_of(case, &saved, "saved"), "{case}");
    }
    assert!(now.differing("off", &saved, "saved") > 2000 && !now.has_threads_of("off", &saved, "saved"));
    assert!(now.differing("threads", &saved, "saved") > 1000 && now.has_threads_of("threads", &saved, "saved"));
    assert!(now.differing("pages", &saved, "saved") == 0 && !now.has_threads_of("pages", &saved, "saved"));

    // The CPUs have other numbers: 0 and 4 share the first node, where 0 and 1 did before. Threads that were together stay together.
    let dealt = job.run(&["--dealt"], &["restore full off"]);
    dealt.check_data("full");
    let mut used = BTreeSet::new();
    for rank in 0..RANKS {
        let node = |cpu: &str| cpu.parse::<usize>().expect("one CPU") % 4;
        let [main, worker] = dealt.threads("full", rank);
        assert_ne!(main, worker);
        assert_eq!(node(main), node(worker), "the threads of rank {rank} still share a node");
        assert!(used.insert(main.to_owned()) && used.insert(worker.to_owned()), "ranks do not collide");
        let own = dealt.pages("full", rank, "own");
        assert!(own[1..own.len() - 2].iter().all(|page| *page == node(main).to_string()), "pages follow their threads");
    }
    // A rank's orphans were on the node of another rank's threads, and each node had a quarter of the dealt pages.
    assert_eq!(counts(&dealt.pages("full", 0, "dealt")), counts(&saved.pages("saved", 0, "dealt")));
    assert_eq!(dealt.pages("full", 0, "orphan")[9], dealt.pages("full", 2, "own")[9]);
    assert!(dealt.differing("off", &dealt, "full") > 2000);

    // In half the machine, every rank has its share, and every page has a place in the plan.
    let half = job.run(&["--nodes", "2", "--cpus", "4"], &["restore full"]);
    half.check_data("full");
    let main: BTreeSet<&str> = (0..RANKS).map(|rank| half.threads("full", rank)[0]).collect();
    assert_eq!(main.len(), RANKS, "each rank has a CPU of its own");
    for rank in 0..RANKS {
        let report = half.get("full", rank, "report");
        assert!(report.contains("wrong: {}") && !report.contains("losses: []"), "{report}");
        let node = half.threads("full", rank)[0].parse::<usize>().expect("one CPU") / 2;
        let own = half.pages("full", rank, "own");
        assert!(own[1..own.len() - 2].iter().all(|page| *page == node.to_string()), "pages follow their threads");
    }
}

fn counts(pages: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    pages.iter().for_each(|node| *counts.entry(node.as_str()).or_default() += 1);
    counts
}

/// Saves and restores in one machine with these options: the data comes from node memory, as after a killed process. If the system moves
/// pages itself, it does so between a record and a check as well; then only the placement that the restart reports counts.
fn one_machine(options: &[&str], piece: usize) {
    let is_moving = options.contains(&"--balancing");
    let Some(job) = Job::new(piece) else { return };
    let said = job.run(options, &["save", "restore full full,touched off"]);
    for case in ["full", "full,touched"] {
        said.check_data(case);
        if is_moving {
            (0..RANKS).for_each(|rank| said.check_report(case, rank));
        } else {
            assert_eq!(said.differing(case, &said, "saved"), 0, "{case}");
        }
        assert!(said.has_threads_of(case, &said, "saved"), "{case}");
    }
    assert!(said.differing("off", &said, "saved") > 1000);
}

#[test]
fn huge_pages_and_pieces_that_are_smaller() {
    one_machine(&["--huge", "always"], 192 << 10);
}

fn is_whole() -> bool {
    machines::is_whole("affinity")
}

#[test]
fn a_node_without_memory_and_a_system_that_moves_pages() {
    if is_whole() {
        one_machine(&["--nodes", "4", "--memoryless", "1", "--balancing", "--ring"], 64 << 10);
    }
}

#[test]
fn eight_nodes_with_huge_pages() {
    if is_whole() {
        let options = ["--nodes", "8", "--cpus", "8", "--huge", "always", "--memory", "3072"];
        one_machine(&options, 512 << 10);
    }
}

#[test]
fn two_nodes() {
    if is_whole() {
        one_machine(&["--nodes", "2", "--cpus", "4"], 64 << 10);
    }
}
