//! What affinity adds to checkpoints and restarts: each figure is the ratio of the same work with and without it, measured in
//! turn in one process, on separate sessions.
//!
//! The library asks for pages and places them only on machines with several NUMA nodes. To show the costs on a machine with one node as
//! well, some sides do that work next to a session without affinity, on the same memory. They are named `…, pages asked for` and
//! `…, pages placed`. The pages are already where they are wanted, as after an ordinary restart.
//!
//! `ratio` is the ratio of the medians, `ratio_of_pairs` gives the quartiles of the ratios of the rounds, and `low_ratio` is the
//! ratio of the tenth percentiles, which other work on the machine disturbs least.
#![forbid(unsafe_code)]

use crate::planning::micros;
use bivouac_core::affinity::cpus::{self, Cpus};
use bivouac_core::affinity::keeper::{Keeper, Settings, Whereabouts};
use bivouac_core::affinity::machine::Machine;
use bivouac_core::affinity::placing::{self, Wanted};
use bivouac_core::affinity::{numa, scan, threads};
use bivouac_core::base::rng::Rng;
use bivouac_core::config::{AffinityConfig, AffinityMode, Budget};
use bivouac_core::{Config, Level, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The maximum number of questions that a checkpoint asks about a region.
const QUESTIONS: usize = 2048;

/// The settings of the measurements.
#[derive(clap::Args)]
pub struct Costs {
    /// Size of the region, in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Directory for the checkpoints.
    #[arg(long)]
    dir: PathBuf,
}

/// Threads that exist without doing anything, assigned to the CPUs in turn. They end when this is dropped.
struct Idle(#[expect(dead_code, reason = "dropping it ends them")] Vec<Sender<()>>);

impl Idle {
    fn start(count: usize) -> Idle {
        let given: Vec<usize> = cpus::of_this_thread().into_iter().collect();
        let (say, ready) = channel();
        let start = |order: usize| {
            let (end, wait) = channel::<()>();
            let (cpu, say) = (given[order % given.len()], say.clone());
            let body = move || {
                cpus::run_on(&Cpus::from([cpu]));
                let _ = say.send(());
                let _ = wait.recv();
            };
            std::thread::Builder::new().name("idle".into()).spawn(body).expect("a thread starts");
            end
        };
        let ends = (0..count).map(start).collect();
        (0..count).for_each(|_| ready.recv().expect("they start"));
        Idle(ends)
    }
}

struct Bench<'a> {
    world: &'a SimpleCommunicator,
    costs: &'a Costs,
    data: Vec<f64>,
}

/// Prints all figures of this file.
pub fn print(world: &SimpleCommunicator, costs: &Costs) {
    assert_eq!(world.size(), 1, "one rank");
    let _idle = Idle::start(4);
    let mut rng = Rng::new(7);
    let data = (0..costs.mib << 17).map(|_| f64::from_bits(rng.next_u64() >> 2)).collect();
    let bench = Bench { world, costs, data };
    for mib in [64.min(costs.mib), costs.mib] {
        bench.size(mib);
    }
    bench.blocking();
    bench.restart();
    bench.pages();
    bench.record();
}

fn timed(body: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    body();
    begun.elapsed().as_secs_f64()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

fn sorted(mut all: Vec<f64>) -> Vec<f64> {
    all.sort_by(f64::total_cmp);
    all
}

fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

/// How pages are handled alongside a load.
#[derive(Clone, Copy)]
enum Pages {
    Alone,
    /// Placed before the load, as in a restart on a machine with several nodes.
    Placed,
    /// All of them asked for before the load.
    Asked,
    /// All of them asked for by another thread during the load.
    AskedMeanwhile,
}

/// A side of a comparison: it does the work once, and returns how long that took.
type Side<'a> = (&'a str, &'a mut dyn FnMut() -> f64);

impl Bench<'_> {
    fn nodes(&self) -> usize {
        Machine::here().nodes_with_memory().len()
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.data)
    }

    /// Times the sides one after another, in random order, and prints each against the first.
    fn in_turn(&self, target: &str, sides: &mut [Side<'_>]) {
        let (mut times, mut rng) = (vec![Vec::new(); sides.len()], Rng::new(3));
        for round in 0..=self.costs.rounds {
            // A random order, so that no side always follows the same other side.
            let mut order: Vec<usize> = (0..sides.len()).collect();
            order.sort_by_cached_key(|_| rng.next_u64());
            for side in order {
                let took = sides[side].1();
                if round > 0 {
                    times[side].push(took);
                }
            }
        }
        let base = sorted(times[0].clone());
        for (at, (name, _)) in sides.iter().enumerate().skip(1) {
            let paired = sorted(times[at].iter().zip(&times[0]).map(|(with, without)| with / without).collect());
            let with = sorted(times[at].clone());
            let quartiles = [0.25, 0.5, 0.75].map(|part| rounded(quantile(&paired, part)));
            let line = json!({
                "figure": name, "nodes": self.nodes(), "mib": self.costs.mib, "rounds": self.costs.rounds,
                "with_s": quantile(&with, 0.5), "against": sides[0].0, "against_s": quantile(&base, 0.5),
                "low_ratio": rounded(quantile(&with, 0.1) / quantile(&base, 0.1)),
                "ratio": rounded(quantile(&with, 0.5) / quantile(&base, 0.5)),
                "ratio_of_pairs": quartiles, "target": target,
            });
            println!("{line}");
        }
    }

    fn config(&self, name: &str, mode: AffinityMode) -> Config {
        let mut config = Config::from_env().expect("the environment is clean");
        config.job.name = Some(format!("bench-{name}-{}", if mode == AffinityMode::Off { "off" } else { "full" }));
        config.job.affinity = mode;
        config.job.global_directory = self.costs.dir.join(config.job.name.as_deref().unwrap_or_default());
        config.job.local_enabled = false;
        config.job.local.keep_last = 1;
        config.job.global.keep_last = 1;
        config.node.memory_budget = Budget::Bytes((3 * (self.costs.mib as u64 + 32)) << 20);
        config
    }

    fn open(&self, config: Config) -> Session {
        Session::open(&self.world.duplicate(), config).expect("the session opens")
    }

    /// A session with node memory alone, whose first slot is populated.
    fn in_memory(&self, name: &str, mode: AffinityMode) -> Session {
        let mut config = self.config(name, mode);
        config.job.global_enabled = false;
        let session = self.open(config);
        session.prepare((self.costs.mib as u64) << 20);
        std::thread::sleep(Duration::from_secs(2));
        session
    }

    fn capture(&self, session: &Session, version: u64, data: &[f64]) -> bivouac_core::Pending {
        let mut checkpoint = session.begin_checkpoint("bench", version).expect("the name is fine");
        checkpoint.save("data", data).expect("the region is fine");
        checkpoint.capture().expect("there is room")
    }

    /// Bytes of all files of a checkpoint of one region.
    fn size(&self, mib: usize) {
        let [with, without] = [AffinityMode::Full, AffinityMode::Off].map(|mode| {
            let mut config = self.config("size", mode);
            config.job.memory_enabled = false;
            let folder = config.job.global_directory.clone();
            let session = self.open(config);
            // Where there are several nodes, the second checkpoint has a whole map.
            let bytes = [1, 2].map(|version| {
                self.capture(&session, version, &self.data[..mib << 17]).wait(Level::System).expect("committed");
                std::thread::sleep(Duration::from_millis(500));
                shards_below(&folder)
            });
            session.close().expect("closed");
            bytes[1]
        });
        let line = json!({
            "figure": "size of a checkpoint", "nodes": self.nodes(), "mib": mib, "threads": threads::list().len(),
            "with_bytes": with, "against": "without affinity", "against_bytes": without,
            "ratio": (with as f64 / without as f64 * 1e6).round() / 1e6, "target": "<= 1.002",
        });
        println!("{line}");
    }

    /// How long a checkpoint blocks the application.
    fn blocking(&self) {
        let [full, off] = [AffinityMode::Full, AffinityMode::Off].map(|mode| self.in_memory("blocking", mode));
        let version = std::cell::Cell::new(0);
        let take = |session: &Session, ask: bool| {
            version.set(version.get() + 1);
            let mut pending = None;
            let took = timed(|| {
                if ask {
                    self.ask(QUESTIONS);
                }
                pending = Some(self.capture(session, version.get(), &self.data));
            });
            pending.expect("captured").wait(Level::Process).expect("committed");
            took
        };
        self.in_turn(
            "<= 1.01",
            &mut [
                ("checkpoint, blocking, without", &mut || take(&off, false)),
                ("checkpoint, blocking", &mut || take(&full, false)),
                ("checkpoint, blocking, without, pages asked for", &mut || take(&off, true)),
                ("checkpoint, blocking, without, again (noise)", &mut || take(&off, false)),
            ],
        );
        full.close().expect("closed");
        off.close().expect("closed");
    }

    /// Asks where the pages of the data are, as a checkpoint does.
    fn ask(&self, questions: usize) {
        let bytes = self.bytes();
        let mut query = |addresses: &[usize]| numa::query_before_reading(addresses);
        _ = black_box(scan::bounded(bytes.as_ptr().addr(), bytes.len() as u64, questions, &mut query));
    }

    /// Restarts from memory, into memory that has been touched and into fresh memory.
    fn restart(&self) {
        let [full, off] = [AffinityMode::Full, AffinityMode::Off].map(|mode| self.in_memory("restart", mode));
        for session in [&full, &off] {
            self.capture(session, 1, &self.data).wait(Level::Process).expect("committed");
        }
        // Another session has its shards in other memory, which affects the times. Therefore both modes of one session
        // are compared as well.
        let load = |session: &Session, mode: AffinityMode, target: &mut [f64], pages: Pages| {
            session.set_affinity(mode);
            let (start, bytes) = (target.as_ptr().addr(), size_of_val(target) as u64);
            let ask = move || _ = black_box(scan::whole(start, bytes, &mut || true, &mut |at| numa::query(at)));
            timed(|| {
                let restored = session.begin_restore("bench").run(|restorer| match pages {
                    Pages::Alone => Ok(restorer.load("data", target)?),
                    Pages::Placed => {
                        place(bytemuck::cast_slice_mut(target));
                        Ok(restorer.load("data", target)?)
                    }
                    Pages::Asked => {
                        ask();
                        Ok(restorer.load("data", target)?)
                    }
                    Pages::AskedMeanwhile => std::thread::scope(|scope| {
                        scope.spawn(ask);
                        Ok(restorer.load("data", target)?)
                    }),
                });
                assert_eq!(restored.expect("restored").expect("there").tier.name(), "memory");
            })
        };
        let target = RefCell::new(vec![1.0; self.data.len()]);
        let touched = |session, mode, pages| load(session, mode, &mut target.borrow_mut(), pages);
        let (on, none) = (AffinityMode::Full, AffinityMode::Off);
        self.in_turn(
            "<= 1.05",
            &mut [
                ("restart into touched memory, switched off", &mut || touched(&full, none, Pages::Alone)),
                ("restart into touched memory", &mut || touched(&full, on, Pages::Alone)),
                ("restart into touched memory, switched off, pages placed", &mut || {
                    touched(&full, none, Pages::Placed)
                }),
                ("restart into touched memory, switched off, all pages asked for", &mut || {
                    touched(&full, none, Pages::Asked)
                }),
                ("restart into touched memory, switched off, all pages asked for meanwhile", &mut || {
                    touched(&full, none, Pages::AskedMeanwhile)
                }),
                ("restart into touched memory, switched off, again (noise)", &mut || {
                    touched(&full, none, Pages::Alone)
                }),
                ("restart into touched memory, a session without (noise)", &mut || touched(&off, none, Pages::Alone)),
            ],
        );
        drop(target);
        let fresh = |session, mode, pages| load(session, mode, &mut vec![0.0; self.data.len()], pages);
        self.in_turn(
            "<= 1.05",
            &mut [
                ("restart into fresh memory, switched off", &mut || fresh(&full, none, Pages::Alone)),
                ("restart into fresh memory", &mut || fresh(&full, on, Pages::Alone)),
                ("restart into fresh memory, switched off, pages placed", &mut || fresh(&full, none, Pages::Placed)),
            ],
        );
        full.close().expect("closed");
        off.close().expect("closed");
    }

    /// How long it takes to ask for the pages of the data, and to make memory present.
    fn pages(&self) {
        let bytes = self.bytes();
        let (start, length) = (bytes.as_ptr().addr(), bytes.len() as u64);
        let mut target = vec![0.0; self.data.len()];
        target.fill(1.0);
        let target = RefCell::new(target);
        let mut whole = || timed(|| _ = black_box(scan::whole(start, length, &mut || true, &mut |at| numa::query(at))));
        self.in_turn(
            "reported",
            &mut [
                ("copy of the same bytes", &mut || {
                    timed(|| black_box(&mut **target.borrow_mut()).copy_from_slice(&self.data))
                }),
                ("query of all pages", &mut whole),
                ("query of some pages", &mut || timed(|| self.ask(QUESTIONS))),
            ],
        );
        drop(target);
        let fresh = |touch: &dyn Fn(&mut [u8])| {
            let mut memory = vec![0.0f64; self.data.len()];
            timed(|| touch(bytemuck::cast_slice_mut(&mut memory)))
        };
        self.in_turn(
            "reported",
            &mut [
                ("fresh memory written by one thread", &mut || fresh(&|memory| black_box(memory).fill(1))),
                ("fresh memory populated by one call", &mut || {
                    fresh(&|memory| numa::populate(memory).expect("memory"))
                }),
                ("fresh memory placed", &mut || fresh(&place)),
            ],
        );
    }

    /// How long it takes to make the record of a checkpoint with four regions of a process with 64 threads.
    fn record(&self) {
        let _idle = Idle::start(60usize.saturating_sub(threads::list().len() - 4));
        let settings =
            Settings { mode: AffinityMode::Full, config: AffinityConfig::default(), rank: 0, neighbours: vec![0] };
        let keeper = Keeper::new(settings);
        let quarter = self.bytes().len() / 4;
        let regions = || {
            let at = |part: usize| Whereabouts::Host(self.bytes().as_ptr().addr() + part * quarter, quarter);
            ["u", "v", "p", "rho"].into_iter().enumerate().map(move |(part, name)| (name, at(part)))
        };
        let bytes = keeper.record(regions()).len();
        let cached_us = micros(|| _ = black_box(keeper.record(regions())));
        let list_us = micros(|| _ = black_box(threads::list()));
        let ask_us = micros(|| self.ask(QUESTIONS));
        let line = json!({
            "figure": "making a record", "nodes": self.nodes(), "regions": 4, "mib": self.costs.mib, "threads": threads::list().len(),
            "bytes": bytes, "us": cached_us, "listing_threads_us": list_us, "asking_for_pages_us": ask_us,
        });
        println!("{line}");
    }
}

/// Places memory where the system would have put it: on the node of the calling thread.
fn place(memory: &mut [u8]) {
    let machine = Machine::here();
    let here = cpus::of_this_thread();
    let home = here.first().and_then(|cpu| machine.cpu(*cpu as u32)).map_or(0, |cpu| cpu.node);
    let cpus = BTreeMap::from([(home, &machine.cpus_of_node(home) & &here)]);
    let wanted: [Wanted; 1] = [(0..memory.len() as u64, Some(home))];
    let report = placing::place(memory, &wanted, &cpus);
    assert_eq!(report.wrong_pages(), 0, "{report}");
}

/// Bytes of the newest shard file below a folder.
fn shards_below(folder: &Path) -> u64 {
    let mut found: Vec<(std::time::SystemTime, u64)> = Vec::new();
    look_below(folder, &mut found);
    found.into_iter().max().map_or(0, |(_, bytes)| bytes)
}

fn look_below(folder: &Path, found: &mut Vec<(std::time::SystemTime, u64)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.metadata() {
            Ok(data) if data.is_dir() => look_below(&path, found),
            Ok(data) if path.extension().is_some_and(|it| it == "bvs" || it == "bvc") => {
                found.push((data.modified().expect("a time"), data.len()));
            }
            _ => {}
        }
    }
}
