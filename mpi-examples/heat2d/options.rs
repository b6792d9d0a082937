//! The command line.
#![forbid(unsafe_code)]

use super::plate::{Border, Grid};
use clap::Parser;
use mpi::Threading;
use std::path::PathBuf;
use std::str::FromStr;

/// Heat spreads over a plate; the run survives being killed.
///
/// Start it with mpirun on any number of ranks. Started again with the same directory after it was killed, it continues
/// from the newest checkpoint that all ranks can load, and ends with the same digest as an undisturbed run.
#[derive(Parser, Debug)]
#[command(name = "heat2d")]
pub struct Options {
    /// Size of the plate in cells.
    #[arg(long, default_value = "1024x1024", value_name = "NXxNY")]
    pub grid: Grid,
    /// Steps to compute.
    #[arg(long, default_value_t = 1000)]
    pub steps: u64,
    /// Steps between checkpoints; without it, the configuration's interval decides.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// A rank (the last one if none is named) kills itself with SIGKILL after that step.
    #[arg(long, value_name = "STEP[:RANK]")]
    pub die_at: Option<Spot>,
    /// A rank (the last one if none is named) stops for ever after that step, so that all others wait for it.
    #[arg(long, value_name = "STEP[:RANK]")]
    pub hang_at: Option<Spot>,
    /// Keep checkpoints under this directory (global/ and local/), unless they are configured elsewhere.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Configuration file; environment variables BIVOUAC_… override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Wait after each checkpoint until it has reached this level.
    #[arg(long, value_name = "LEVEL")]
    pub wait: Option<WaitLevel>,
    /// What holds at the border of the plate.
    #[arg(long, value_enum, default_value_t = Border::Insulated)]
    pub border: Border,
    /// Take initial temperatures and conductivities from this picture instead of a formula.
    #[arg(long, value_name = "FILE.png")]
    pub picture: Option<PathBuf>,
    /// Write the final field as a picture.
    #[arg(long, value_name = "FILE.png")]
    pub png: Option<PathBuf>,
    /// Draw the final field on the terminal.
    #[arg(long)]
    pub text: bool,
    /// Sleep this long after each step, so that a small run lasts long enough to be killed.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub pause: u64,
    /// The thread support to ask MPI for.
    #[arg(long, value_enum, default_value_t = Threads::Multiple)]
    pub threads: Threads,
    /// Print what every rank restored, Bivouac's log (as RUST_LOG=info does) and its statistics.
    #[arg(long)]
    pub verbose_log: bool,
}

/// `STEP` or `STEP:RANK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The step after which it happens.
    pub step: u64,
    /// The rank; `None` means the last one.
    pub rank: Option<i32>,
}

impl FromStr for Spot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither STEP nor STEP:RANK");
        let (step, rank) = match text.split_once(':') {
            Some((step, rank)) => (step, Some(rank.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        Ok(Spot { step: step.parse().map_err(|_| wrong())?, rank })
    }
}

/// A level that the program can wait for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum WaitLevel {
    /// Survives the death of processes.
    Process,
    /// Survives a node that comes back with its disk.
    NodeReboot,
    /// Survives the loss of nodes that the redundancy sets cover.
    NodeLoss,
    /// Survives the loss of the whole machine.
    System,
}

impl From<WaitLevel> for bivouac::Level {
    fn from(level: WaitLevel) -> Self {
        match level {
            WaitLevel::Process => bivouac::Level::Process,
            WaitLevel::NodeReboot => bivouac::Level::NodeReboot,
            WaitLevel::NodeLoss => bivouac::Level::NodeLoss,
            WaitLevel::System => bivouac::Level::System,
        }
    }
}

/// MPI's levels of thread support.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Threads {
    /// MPI_THREAD_SINGLE.
    Single,
    /// MPI_THREAD_FUNNELED.
    Funneled,
    /// MPI_THREAD_SERIALIZED.
    Serialized,
    /// MPI_THREAD_MULTIPLE.
    Multiple,
}

impl From<Threads> for Threading {
    fn from(threads: Threads) -> Self {
        match threads {
            Threads::Single => Threading::Single,
            Threads::Funneled => Threading::Funneled,
            Threads::Serialized => Threading::Serialized,
            Threads::Multiple => Threading::Multiple,
        }
    }
}
