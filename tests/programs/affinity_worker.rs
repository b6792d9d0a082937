//! The program that `tests/affinity.rs` runs under `mpirun` on a machine with several NUMA nodes. It puts threads and pages in places of
//! its own choice, takes a checkpoint and is killed. When it is launched again, it does nothing about threads and pages, but restores and
//! prints where they are. It expects nothing: the test decides.
//!
//! `affinity-worker save` places two threads and four regions on each rank, waits until the checkpoint is on the global tier, and kills
//! itself. `affinity-worker restore CASE…` restores once for each case, each time in a session of its own. A case is a mode of affinity, or
//! `full,touched` if the main thread is to touch all memory first.
//!
//! `affinity-worker pin` has the session pin two threads, and `affinity-worker wander` counts threads that move.
//! `affinity-worker groups save` and `affinity-worker groups restore` open a session for each rank alone: these groups share
//! the node and do not know of each other.
//!
//! The lines of a rank go to standard output. Each begins with the rank and the case (or `saved`):
//!
//! | line | meaning |
//! |---|---|
//! | `thread main 4`, `thread worker 5` | the CPUs of the two threads |
//! | `region NAME 0x2048 2x1024` | the nodes of its pages: node, times, number of pages; `-`: on none |
//! | `data NAME good` | or `WRONG` |
//! | `report …` | the session's report of its actions |
//!
//! The places of pages are taken from hwloc, not from the code under test.
#![forbid(unsafe_code)]

#[path = "../common/limit.rs"]
mod limit;

use bivouac_core::config::AffinityMode;
use bivouac_core::{Config, Level, Pin, Session};
use clap::{Parser, Subcommand};
use hwlocality::Topology;
use hwlocality::memory::binding::MemoryBindingFlags;
use hwlocality::memory::nodeset::NodeSet;
use hwlocality::object::types::ObjectType;
use mpi::Threading;
use mpi::topology::Color;
use mpi::traits::*;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The series of the worker's checkpoints.
const NAME: &str = "affinity";
const PAGE: usize = 4096;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    phase: Phase,
    /// Bytes of a region that are together on one node.
    #[arg(long, default_value_t = 65_536, global = true)]
    piece: usize,
    /// Number of pieces of the large regions.
    #[arg(long, default_value_t = 32, global = true)]
    pieces: usize,
}

#[derive(Subcommand)]
enum Phase {
    /// Place threads and pages, take a checkpoint and end by a signal.
    Save,
    /// Have the session pin the threads.
    Pin,
    /// Take checkpoints and move a thread in the meantime.
    Wander,
    /// Make each rank a group of its own.
    Groups {
        /// `save`: let the session pin the thread, bind it to the CPU of its rank, take a checkpoint and end by a signal. Or `restore`.
        what: String,
    },
    /// Restore.
    Restore {
        /// Modes of affinity.
        cases: Vec<String>,
    },
}

/// A region, and the node on which each of its pieces is placed.
struct Region {
    name: &'static str,
    bytes: Vec<u8>,
    nodes: fn(piece: usize, home: usize, count: usize) -> usize,
}

/// The regions of a rank, not yet touched.
fn regions(options: &Options) -> Vec<Region> {
    let memory = |pieces: usize, more: usize| vec![0; pieces * options.piece + more];
    vec![
        Region { name: "own", bytes: memory(options.pieces, 0), nodes: |_, home, _| home },
        // No thread of the rank computes on these nodes.
        Region { name: "orphan", bytes: memory(options.pieces, 0), nodes: |_, home, count| (home + count / 2) % count },
        Region { name: "dealt", bytes: memory(options.pieces, 0), nodes: |piece, _, count| piece % count },
        Region {
            name: "odd",
            bytes: memory(options.pieces / 2, 10_001),
            nodes: |piece, home, count| (home + piece / 5) % count,
        },
    ]
}

/// The CPUs of each node with memory, as far as this process may use them.
fn nodes_of(topology: &Topology) -> Vec<Vec<usize>> {
    let nodes = topology.objects_with_type(ObjectType::NUMANode);
    let cpus = |node: &hwlocality::object::TopologyObject| {
        node.cpuset().map(|set| set.iter_set().map(usize::from).collect()).unwrap_or_default()
    };
    nodes.map(cpus).collect()
}

fn run_on(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).expect("CPUs of this machine");
}

fn own_cpus() -> String {
    let set = sched_getaffinity(None).expect("a mask");
    let cpus: Vec<String> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu.to_string()).collect();
    cpus.join(",")
}

/// The value of byte `at` of a region.
fn content(rank: usize, name: &str, at: usize) -> u8 {
    (at / PAGE * 31 + at % 251 + rank * 7 + name.len()) as u8
}

/// The nodes of a region's pages, in runs.
fn places(topology: &Topology, bytes: &[u8]) -> String {
    let first = bytes.as_ptr().align_offset(PAGE);
    let mut runs: Vec<(String, usize)> = Vec::new();
    for page in bytes[first..].chunks(PAGE) {
        // The first byte decides, and a page that does not exist has no node.
        let found = topology.area_memory_location::<_, NodeSet>(&page[..1], MemoryBindingFlags::empty());
        let node = found.ok().and_then(|set| set.first_set());
        let node = node.map_or("-".to_owned(), |node| usize::from(node).to_string());
        match runs.last_mut() {
            Some((last, count)) if *last == node => *count += 1,
            _ => runs.push((node, 1)),
        }
    }
    runs.iter().map(|(node, count)| format!("{node}x{count}")).collect::<Vec<_>>().join(" ")
}

/// The second thread, which reports its CPUs on request.
struct Worker {
    ask: Sender<()>,
    hear: Receiver<String>,
}

impl Worker {
    fn start(cpus: Option<Vec<usize>>) -> Worker {
        let (ask, asked) = channel();
        let (say, hear) = channel();
        let body = move || {
            if let Some(cpus) = cpus {
                run_on(&cpus);
            }
            while asked.recv().is_ok() {
                let _ = say.send(own_cpus());
            }
        };
        std::thread::Builder::new().name("second".into()).spawn(body).expect("a thread");
        Worker { ask, hear }
    }

    fn cpus(&self) -> String {
        self.ask.send(()).expect("it lives");
        self.hear.recv().expect("it lives")
    }
}

fn show(rank: usize, case: &str, topology: &Topology, worker: &Worker, regions: &[Region]) {
    println!("{rank} {case} thread main {}", own_cpus());
    println!("{rank} {case} thread worker {}", worker.cpus());
    for region in regions {
        println!("{rank} {case} region {} {}", region.name, places(topology, &region.bytes));
    }
}

fn save(rank: usize, options: &Options, session: &Session, topology: &Topology) -> Result<(), Box<dyn Error>> {
    let nodes = nodes_of(topology);
    let home = rank % nodes.len();
    let place = rank / nodes.len();
    let pick = |which: usize| nodes[home][(2 * place + which) % nodes[home].len()];
    let mut regions = regions(options);
    for region in &mut regions {
        for (piece, bytes) in region.bytes.chunks_mut(options.piece).enumerate() {
            run_on(&nodes[(region.nodes)(piece, home, nodes.len())]);
            let start = piece * options.piece;
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = content(rank, region.name, start + at));
        }
    }
    run_on(&[pick(0)]);
    let worker = Worker::start(Some(vec![pick(1)]));
    worker.cpus();
    // The second version is exact wherever pages are: by then the whole map has been made, because that comes before a check.
    for version in 1..=2 {
        let mut checkpoint = session.begin_checkpoint(NAME, version)?;
        for region in &regions {
            checkpoint.save(region.name, &region.bytes)?;
        }
        checkpoint.capture()?.wait(Level::System)?;
        checks(session, 2);
    }
    show(rank, "saved", topology, &worker, &regions);
    Ok(())
}

fn restore(
    rank: usize,
    case: &str,
    options: &Options,
    session: &Session,
    topology: &Topology,
) -> Result<(), Box<dyn Error>> {
    let (mode, touched) = case.split_once(',').map_or((case, false), |(mode, _)| (mode, true));
    session.set_affinity(match mode {
        "full" => AffinityMode::Full,
        "threads" => AffinityMode::Threads,
        "pages" => AffinityMode::Pages,
        _ => AffinityMode::Off,
    });
    let mut regions = regions(options);
    if touched {
        regions.iter_mut().for_each(|region| region.bytes.fill(1));
    }
    // Half of the ranks start their threads before the restart, and the others start theirs later.
    let early = (rank.is_multiple_of(2)).then(|| Worker::start(None));
    let restored = session.begin_restore(NAME).run(|restorer| {
        for region in &mut regions {
            restorer.load(region.name, &mut region.bytes)?;
        }
        Ok(())
    })?;
    let worker = early.unwrap_or_else(|| Worker::start(None));
    worker.cpus();
    session.should_checkpoint()?;
    show(rank, case, topology, &worker, &regions);
    for region in &regions {
        let is_good = region.bytes.iter().enumerate().all(|(at, byte)| *byte == content(rank, region.name, at));
        println!("{rank} {case} data {} {}", region.name, if is_good { "good" } else { "WRONG" });
    }
    println!("{rank} {case} version {:?}", restored.map(|restored| restored.version));
    println!("{rank} {case} report {:?}", session.affinity());
    Ok(())
}

fn pin(rank: usize, session: &Session) -> Result<(), Box<dyn Error>> {
    let before = Worker::start(None);
    session.pin(Pin::Compact);
    println!("{rank} pinned thread main {}", own_cpus());
    println!("{rank} pinned thread early {}", before.cpus());
    let worker = Worker::start(None);
    worker.cpus();
    session.should_checkpoint()?;
    println!("{rank} pinned thread worker {}", worker.cpus());
    Ok(())
}

/// Prints the CPUs of a rank's thread, and the number of things that the session could not do.
fn tell(rank: usize, case: &str, session: &Session) {
    let losses = session.affinity().map_or(0, |report| report.losses.len());
    println!("{rank} {case} thread main {}", own_cpus());
    println!("{rank} {case} losses {losses}");
}

fn groups(rank: usize, world: &impl Communicator, what: &str) -> Result<(), Box<dyn Error>> {
    let group = world.split_by_color(Color::with_value(rank as i32)).ok_or("every rank has a colour")?;
    let session = Session::open(&group, Config::from_env()?)?;
    if what == "save" {
        session.pin(Pin::Compact);
        tell(rank, "pinned", &session);
        let free = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| free.is_set(*cpu)).collect();
        run_on(&[cpus[rank % cpus.len()]]);
        let mut checkpoint = session.begin_checkpoint(NAME, 1)?;
        checkpoint.save("data", &[7u8; 100])?;
        checkpoint.capture()?.wait(Level::System)?;
        tell(rank, "saved", &session);
        world.barrier();
        nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL)?;
    }
    let mut data = [0u8; 100];
    session.begin_restore(NAME).run(|restorer| Ok(restorer.load("data", &mut data)?))?;
    tell(rank, "restored", &session);
    world.barrier();
    session.close()?;
    Ok(())
}

/// Waits until the background has checked placements this many more times. Needs `affinity.check_every`.
fn checks(session: &Session, more: u64) {
    let checks = || session.affinity().map_or(0, |report| report.checks);
    let enough = checks() + more;
    limit::wait_until("it has looked where things are", || checks() >= enough);
}

/// Takes checkpoints while a thread moves. Needs `affinity.check_every`.
fn wander(rank: usize, session: &Session) -> Result<(), Box<dyn Error>> {
    let data = vec![1u8; 10_000];
    let take = |version| -> Result<(), Box<dyn Error>> {
        let mut checkpoint = session.begin_checkpoint(NAME, version)?;
        checkpoint.save("data", &data)?;
        checkpoint.capture()?.wait(Level::Process)?;
        Ok(())
    };
    take(1)?;
    checks(session, 2);
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).ok_or("no CPU")?;
    println!("{rank} quiet {}", session.affinity().map_or(0, |report| report.threads_wandered));
    run_on(&[first]);
    checks(session, 2);
    println!("{rank} moved {}", session.affinity().map_or(0, |report| report.threads_wandered));
    take(2)
}

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(Threading::Multiple).ok_or("MPI is initialised already")?;
    let world = universe.world();
    let rank = world.rank() as usize;
    let topology = Topology::new()?;
    match &options.phase {
        Phase::Save => {
            let mut config = Config::from_env()?;
            // The program waits for these checks.
            config.node.affinity.check_every = std::time::Duration::from_millis(200);
            let session = Session::open(&world, config)?;
            save(rank, &options, &session, &topology)?;
            world.barrier();
            nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL)?;
        }
        Phase::Pin | Phase::Wander => {
            let session = Session::open(&world, Config::from_env()?)?;
            world.barrier();
            if matches!(options.phase, Phase::Pin) {
                pin(rank, &session)?
            } else {
                wander(rank, &session)?
            }
            world.barrier();
            session.close()?;
        }
        Phase::Groups { what } => groups(rank, &world, what)?,
        Phase::Restore { cases } => {
            let before = sched_getaffinity(None)?;
            for case in cases {
                // Each case begins with the CPUs of a fresh process.
                sched_setaffinity(None, &before)?;
                let session = Session::open(&world, Config::from_env()?)?;
                restore(rank, case, &options, &session, &topology)?;
                session.close()?;
            }
        }
    }
    Ok(())
}
