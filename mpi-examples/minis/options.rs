//! The command line.
#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;

/// Six small programs whose GPU memory is checkpointed while they continue.
///
/// Start one with mpirun on any number of ranks; each has its own part. Started again with the same directory and the same number of
/// ranks after it was killed, it continues from the newest checkpoint, and prints the same digest as an undisturbed run and as a run
/// without checkpoints.
#[derive(Parser, Debug)]
#[command(name = "minis")]
pub struct Options {
    /// Which program.
    #[arg(value_enum)]
    pub app: App,
    /// What computes.
    #[arg(long, value_enum, default_value_t = Place::Twin)]
    pub device: Place,
    /// Speed of the link in MiB per second: the twin's [default: that of a copy], or a GPU's, which kernels slow down by
    /// holding transfers back.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub link: Option<u32>,
    /// Approximate size of what each rank saves.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub mib: u64,
    /// Number of steps.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Steps between checkpoints.
    #[arg(long, value_name = "STEPS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// How checkpoints are taken.
    #[arg(long, value_enum, default_value_t = How::Mark)]
    pub how: How,
    /// Omit the declaration of this set (relax, halo, solution, direction, drift, force, total, even, odd), to see what happens.
    #[arg(long, value_name = "SET")]
    pub forget: Option<String>,
    /// Wait after each checkpoint until it has reached its last level.
    #[arg(long)]
    pub wait: bool,
    /// The last rank kills itself with SIGKILL before that step.
    #[arg(long, value_name = "STEP")]
    pub die_at: Option<u64>,
    /// Measure the time of --every steps without a checkpoint and after one, in turns, this many times; for each of --ways.
    #[arg(long, value_name = "ROUNDS", conflicts_with_all = ["steps", "die_at", "forget", "wait", "how"])]
    pub measure: Option<usize>,
    /// Which checkpoints --measure takes.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "copy,mark", requires = "measure")]
    pub ways: Vec<Way>,
    /// Keep Bivouac's files under this directory (global/ and local/), unless they are configured elsewhere.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Configuration file; environment variables BIVOUAC_… override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print Bivouac's log (as RUST_LOG=info does).
    #[arg(long)]
    pub verbose_log: bool,
}

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum App {
    /// Writes to everything in each step.
    Stencil,
    /// Has a matrix that is only read.
    Cg,
    /// Writes to a third.
    Particles,
    /// Writes to a part that moves.
    Amr,
    /// Writes to everything, one eighth after the other.
    Sweep,
    /// Writes to one of two fields in turn.
    Rtm,
}

/// What computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Place {
    /// The processor, in the memory of the host twin of a GPU.
    Twin,
    /// GPUs.
    Cuda,
}

/// How checkpoints are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum How {
    /// Not at all.
    None,
    /// Copied before the program continues.
    Copy,
    /// Marked, and sent from live memory while the program continues.
    Mark,
}

/// How a measured checkpoint is taken, with the paper's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Way {
    /// Copied before the program continues: F.
    Copy,
    /// Marked; the program waits until all changes have been sent: I.
    Wait,
    /// Marked; the first write waits for everything, as if nobody knew what has been sent: NB+I.
    Blind,
    /// Marked, and sent whole, whatever the slot holds: NB+F+H.
    Full,
    /// Marked: NB+I+H.
    Mark,
    /// Marks 64 KiB that nobody writes to: the cost of the calls without that of the sending.
    Nothing,
}

impl Options {
    /// Approximate number of bytes that each rank saves.
    pub fn bytes(&self) -> u64 {
        self.mib << 20
    }
}
