//! Checkpoints of one series: how long each took, and what its file holds.

use super::Options;
use super::files::File;
use super::machine::Counters;
use super::paper::{self, Homes};
use super::states::Input;
use bivouac::config::{Budget, Compress, LogLevel, Method};
use bivouac::{Caches, Config, Level, Pending, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the series and of its region.
pub const NAME: &str = "counters";
/// Room for the tables of chunks, in node memory and on the GPU: more than any of these inputs needs.
const TABLES: Budget = Budget::Bytes(8 << 30);

/// The maximum number of sources, and the share of a source that must be in use: hardly anything.
const SOURCES: u64 = 32;
const LIVE: f64 = 1e-6;

/// The rate at which node memory is made ready in the background, while a program computes, for each of the first two checkpoints.
const READY_BYTES_S: f64 = 4e9;

/// How checkpoints are taken.
#[derive(Clone)]
pub struct Setting {
    /// `reduction.method`
    pub method: Method,
    /// `reduction.chunk`
    pub chunk: u64,
    /// `job.block`
    pub block: u64,
    /// `reduction.compress`
    pub compress: bool,
}

impl Setting {
    /// A method with chunks of 128 bytes in blocks of 64 KiB.
    pub fn new(method: Method) -> Setting {
        Setting { method, chunk: super::CHUNK, block: super::BLOCKS[0], compress: false }
    }

    /// Does it look at chunks?
    pub fn has_chunks(&self) -> bool {
        !matches!(self.method, Method::Full | Method::Basic)
    }
}

/// A checkpoint that was taken; times in seconds.
pub struct Taken {
    /// From the call of the capture to its return.
    pub blocked: f64,
    /// From the call until it is whole in node memory.
    pub process: f64,
    /// From the call until it is committed on the local tier.
    pub committed: f64,
    /// The device's time for the look at its chunks.
    pub look: f64,
    /// Bytes of its file.
    pub file: u64,
    /// Bytes of the file if it referred to nothing.
    pub whole: u64,
    /// Bytes of the shard that it stores itself, before they are compressed.
    pub own: u64,
    /// Bytes that these occupy in the file.
    pub stored: u64,
    /// Number of extents; 0 in a file that refers to nothing.
    pub extents: usize,
    /// Metadata bytes that the paper's method would write.
    pub paper: u64,
}

/// A folder of this run, the same on all ranks. The first rank removes it at the end.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    is_mine: bool,
}

impl Folder {
    /// A new folder. Collective.
    pub fn new(below: &Path, comm: &SimpleCommunicator) -> Folder {
        let mut number = [u64::from(std::process::id())];
        comm.process_at_rank(0).broadcast_into(&mut number);
        let (path, is_mine) = (below.join(format!("bivouac-figures-{}", number[0])), comm.rank() == 0);
        if is_mine {
            std::fs::create_dir_all(&path).expect("a folder");
        }
        comm.barrier();
        Folder { path, is_mine }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_mine {
            std::fs::remove_dir_all(&self.path).expect("removed");
        }
    }
}

/// The configuration that the sessions of a setting share; `bytes` is the size of a rank's checkpoint.
pub fn config(options: &Options, setting: &Setting, bytes: u64, ranks: u64, memory: &Path, local: &Path) -> Config {
    let (mut config, room) = (Config::default(), bytes + (16 << 20));
    config.job.name = Some("figures".into());
    config.job.block_bytes = setting.block;
    config.job.global_enabled = false;
    // Keep all checkpoints.
    config.job.local.keep_last = 1000;
    let reduction = &mut config.job.reduction;
    (reduction.method, reduction.chunk) = (setting.method, Some(setting.chunk));
    reduction.sources = options.sources.unwrap_or(reduction.sources);
    reduction.live = options.live.unwrap_or(reduction.live);
    reduction.compress = if setting.compress { Compress::On } else { Compress::Off };
    // Avoid a line for each session.
    config.node.log = LogLevel::Error;
    config.node.reduction_budget = TABLES;
    config.node.device_tables = TABLES;
    config.node.device_budget = Budget::Bytes(2 * room + (64 << 20));
    config.node.local_directory = Some(local.to_owned());
    config.node.local_allow_tmpfs = true;
    config.node.memory_directory = memory.to_owned();
    config.node.memory_budget = Budget::Bytes(4 * room * ranks);
    config
}

/// `reduction.sources` and `reduction.live` with which all checkpoints may be referred to, as in the paper.
pub fn record(options: &Options) -> (u64, f64) {
    (options.sources.unwrap_or(SOURCES), options.live.unwrap_or(LIVE))
}

/// Takes `count` checkpoints, spread evenly over the states. Collective.
pub fn take(
    options: &Options,
    comm: &SimpleCommunicator,
    setting: &Setting,
    input: &mut Input,
    count: usize,
) -> Vec<Taken> {
    let (local, memory) = (Folder::new(&options.dir, comm), Folder::new(Path::new("/dev/shm"), comm));
    let mut config = config(options, setting, input.bytes, comm.size() as u64, &memory.path, &local.path);
    (config.job.reduction.sources, config.job.reduction.live) = record(options);
    let session = Session::open(comm, config).expect("opens");
    session.prepare(input.bytes);
    let caches = match &input.counters {
        Counters::Host { .. } => None,
        Counters::Device(machine) => Some(session.caches(Arc::clone(machine.device())).expect("caches")),
    };
    let (mut all, mut homes, mut looked) = (Vec::new(), Homes::default(), Duration::ZERO);
    for version in 1..=count {
        input.set(version * input.states() / count - 1);
        if version <= 2 {
            std::thread::sleep(Duration::from_secs_f64(input.bytes as f64 / READY_BYTES_S));
        }
        comm.barrier();
        let begun = Instant::now();
        let pending = capture(&session, version as u64, &input.counters, caches.as_ref());
        let blocked = begun.elapsed().as_secs_f64();
        assert!(pending.wait(Level::Process).expect("committed") >= Level::Process);
        let process = begun.elapsed().as_secs_f64();
        assert!(pending.wait(Level::NodeReboot).expect("committed") >= Level::NodeReboot);
        let committed = begun.elapsed().as_secs_f64();
        let told = session.stats().reduction.device_time;
        let look = (told - looked).as_secs_f64();
        looked = told;
        let file = File::find(&local.path, version as u64, comm.rank() as u32);
        let next = Homes::of(&file, NAME);
        let paper = paper::metadata(setting, &next, &homes);
        homes = next;
        let (own, stored, extents) = file.held();
        let (bytes, whole) = (file.bytes, file.whole_bytes());
        all.push(Taken { blocked, process, committed, look, file: bytes, whole, own, stored, extents, paper });
    }
    drop(caches);
    session.close().expect("closes");
    comm.barrier();
    all
}

fn capture(session: &Session, version: u64, counters: &Counters, caches: Option<&Caches>) -> Pending {
    let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begun");
    let pending = match (counters, caches) {
        (Counters::Device(machine), Some(caches)) => {
            let mut checkpoint = checkpoint.with_device(caches, machine.stream());
            checkpoint.save_device::<u32>(NAME, machine.counters()).expect("saved");
            checkpoint.capture()
        }
        (Counters::Host { values, .. }, _) => {
            checkpoint.save(NAME, values).expect("saved");
            checkpoint.capture()
        }
        (Counters::Device(_), None) => unreachable!("caches are opened for counters on a device"),
    };
    pending.expect("captured")
}
