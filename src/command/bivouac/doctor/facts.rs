//! What the doctor knows about an environment: values only, so that a test can make up any machine.
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
    /// The settings; the defaults if they are wrong.
    pub config: Config,
    /// Commands that start MPI jobs.
    pub launchers: Vec<Launcher>,
    /// The superuser, whom Open MPI refuses unless told otherwise.
    pub is_root: bool,
    /// Is Open MPI told otherwise?
    pub root_may_launch: bool,
    /// What a job of ranks found out (`--mpi`).
    pub ranks: Option<Result<Ranks, String>>,
    /// The memory tier.
    pub memory: Memory,
    /// The local tier's directory.
    pub local: Directory,
    /// Directories of the local tier whose store is gone, each with the bytes in it and with where the store was.
    pub orphans: Vec<Orphan>,
    /// The global tier's directory.
    pub global: Directory,
    /// What is in the global directory, if it is a store.
    pub store: Option<Result<Store, String>>,
    /// The object store, if one is configured: can it be used?
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
    /// Can the kernel watch writes to live memory for this process? If not, why.
    pub watch: Result<(), String>,
    /// Version of the kernel: major and minor.
    pub kernel: Option<(u32, u32)>,
    /// The wall clock.
    pub now: SystemTime,
}

/// An object store that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// There is a store of Bivouac at its place.
    pub has_store: bool,
    /// It refuses a second object of the same name.
    pub can_fence: bool,
}

/// A command that starts MPI jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `mpirun`, `mpiexec` or `srun`.
    pub name: &'static str,
    /// Where it is.
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
    /// What the library says about itself.
    pub library: String,
    /// Ranks that do not see a file that rank 0 has made where the global directory is. `Err`: it could not be made.
    pub blind: Result<Vec<u32>, String>,
}

/// The memory tier.
#[derive(Clone, Debug)]
pub struct Memory {
    /// What is left, or why that is not known.
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
    /// Is it there? If not, the rest is about its nearest ancestor that is.
    pub exists: bool,
    /// What a trial gave, or why it failed.
    pub trial: Result<Trial, String>,
}

/// What writing to a directory gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The file system.
    pub kind: &'static str,
    /// Is it in memory?
    pub is_memory: bool,
    /// Do several nodes see it? `None`: its kind does not tell.
    pub is_shared: Option<bool>,
    /// Number of the device, to tell file systems apart.
    pub device: u64,
    /// Its size in bytes.
    pub total: u64,
    /// Free for this user.
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
    /// Whose.
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
    /// Where it is.
    pub path: Option<PathBuf>,
}
