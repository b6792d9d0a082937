//! What the doctor knows about an environment. These are only values, so that a test can invent any machine.
#![forbid(unsafe_code)]

use crate::batch::System;
use crate::places::Orphan;
use bivouac_core::Config;
use bivouac_core::segment::Available;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Everything that was found out.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Where the settings come from, or what is wrong with them.
    pub configuration: Result<String, String>,
    /// The settings, or the defaults if the settings are wrong.
    pub config: Config,
    /// Commands that start MPI jobs.
    pub launchers: Vec<Launcher>,
    /// Is this the superuser, whom Open MPI refuses unless it is told otherwise?
    pub is_root: bool,
    /// Is Open MPI told otherwise?
    pub root_may_launch: bool,
    /// What a job of ranks found out (`--mpi`).
    pub ranks: Option<Result<Ranks, String>>,
    /// The memory tier.
    pub memory: Memory,
    /// The local tier's directory.
    pub local: Directory,
    /// Directories of the local tier whose store is gone, each with its size in bytes and the place where the store was.
    pub orphans: Vec<Orphan>,
    /// The global tier's directory.
    pub global: Directory,
    /// What is in the global directory, if it is a store.
    pub store: Option<Result<Store, String>>,
    /// The object store, if one is configured, or why it cannot be used.
    pub objects: Option<Result<Objects, String>>,
    /// Limits of this process.
    pub limits: Limits,
    /// The allocation that this process is in.
    pub allocation: Option<Allocation>,
    /// The SLURM job that this process is in.
    pub slurm: Option<Slurm>,
    /// Libraries, and where they are.
    pub libraries: Vec<Library>,
    /// NUMA nodes of this machine.
    pub numa_nodes: usize,
    /// Whether the kernel can watch writes to live memory for this process; if not, why.
    pub watch: Result<(), String>,
    /// Version of the kernel: major and minor.
    pub kernel: Option<(u32, u32)>,
    /// The wall clock.
    pub now: SystemTime,
}

/// An object store that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// Does its place contain a Bivouac store?
    pub has_store: bool,
    /// Does it refuse a second object with the same name?
    pub can_fence: bool,
}

/// A command that starts MPI jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `mpirun`, `mpiexec` or `srun`.
    pub name: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// The first lines that it prints about its version.
    pub version: Option<String>,
}

/// What the ranks of a job found out together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Ranks of the job.
    pub size: u32,
    /// Ranks on each node.
    pub per_node: Vec<u32>,
    /// The granted thread level, as MPI names it.
    pub thread_level: String,
    /// Why ranks do not reach each other over sockets, if they do not.
    pub cut_off: Option<String>,
    /// What the MPI library says about itself.
    pub library: String,
    /// Ranks that do not see a file that rank 0 has created in the global directory, or in its nearest ancestor that
    /// exists. `Err`: the file could not be created.
    pub blind: Result<Vec<u32>, String>,
}

/// The memory tier.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The memory that is left, or why it is not known.
    pub available: Result<Available, String>,
    /// Is the directory in memory?
    pub is_memory: bool,
    /// Size of its file system in bytes.
    pub total: u64,
    /// `shmem_enabled` of transparent huge pages: the word in brackets.
    pub huge: Option<String>,
    /// Segments of this user without a living process: how many, and their bytes.
    pub dead: (usize, u64),
    /// Segments with a living process.
    pub alive: usize,
}

/// A directory that a tier wants to write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its path.
    pub path: PathBuf,
    /// Does it exist? If not, the other facts are about its nearest ancestor that exists.
    pub exists: bool,
    /// The result of a trial, or why the trial failed.
    pub trial: Result<Trial, String>,
}

/// The result of a trial write to a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The file system.
    pub kind: &'static str,
    /// Is it in memory?
    pub is_memory: bool,
    /// Do several nodes see it? `None`: the kind of file system does not say.
    pub is_shared: Option<bool>,
    /// Number of the device, to tell file systems apart.
    pub device: u64,
    /// Its size in bytes.
    pub total: u64,
    /// Bytes that are free for this user.
    pub free: u64,
    /// Can files be written around the page cache? `None`: not tried.
    pub direct: Option<bool>,
}

/// What is in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Jobs with a living run, in words.
    pub living: Vec<String>,
    /// Temp files in checkpoint folders.
    pub temps: usize,
    /// Checkpoint folders, and those of them without a manifest.
    pub folders: (usize, usize),
}

/// Limits of this process; `None`: unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open files.
    pub files: Option<u64>,
    /// Bytes of locked memory.
    pub locked: Option<u64>,
    /// Bytes of a core file.
    pub core: Option<u64>,
}

/// An allocation of a batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The batch system that made the allocation.
    pub system: System,
    /// Time until it ends; `None`: unlimited or unknown.
    pub left: Option<Duration>,
}

/// A SLURM job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slurm {
    /// Its number.
    pub job: String,
    /// Nodes of the allocation.
    pub nodes: Option<u32>,
    /// Tasks per node, as SLURM writes them.
    pub tasks_per_node: Option<String>,
    /// May SLURM start it again?
    pub requeue: Option<bool>,
    /// Number within a job array.
    pub array_task: Option<String>,
    /// SLURM's commands that were not found.
    pub missing: Vec<&'static str>,
}

impl Slurm {
    /// The fewest tasks that a node has, from a text such as `2(x3),1`; 1 if SLURM does not say.
    pub fn least_tasks(&self) -> u32 {
        let words = self.tasks_per_node.iter().flat_map(|text| text.split(','));
        let counts = words.filter_map(|word| word.split('(').next()?.trim().parse().ok());
        counts.min().unwrap_or(1).max(1)
    }
}

/// A library that is used if it is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file name without the version.
    pub name: &'static str,
    /// Its path, if it was found.
    pub path: Option<PathBuf>,
}
