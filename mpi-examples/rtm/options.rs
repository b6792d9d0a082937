//! The command line.
#![forbid(unsafe_code)]

use super::model::{Grid, Shape, Survey};
use clap::Parser;
use std::path::PathBuf;

/// Reverse time migration of seismic shots, whose wavefields wait in histories of Bivouac.
///
/// Start it with mpirun on any number of ranks; the ranks share the shots and the GPUs of their node. The image, and
/// with it the digest that is printed, depends neither on the number of ranks nor on where the wavefields waited.
#[derive(Parser, Debug)]
#[command(name = "rtm")]
pub struct Options {
    /// What computes.
    #[arg(long, value_enum, default_value_t = Kind::Auto)]
    pub device: Kind,
    /// Size of the ground in cells of 10 m [default: 192x96, on GPUs 2048x1024].
    #[arg(long, value_name = "NXxNZ")]
    pub grid: Option<Grid>,
    /// Steps of each propagation [default: 800, on GPUs 7000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub steps: Option<u32>,
    /// Steps between two states of the wavefield that are kept and correlated [default: 5, on GPUs 10].
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..))]
    pub every: Option<u32>,
    /// Number of shots.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    pub shots: u32,
    /// Seed of the ground.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep all wavefields in device memory, without Bivouac.
    #[arg(long)]
    pub reference: bool,
    /// Let all ranks meet before each state that is kept or recalled, as simulations with one wavefield on all ranks do.
    #[arg(long)]
    pub tight: bool,
    /// Write the image as a picture.
    #[arg(long, value_name = "FILE.png")]
    pub out: Option<PathBuf>,
    /// Draw the stacked image as it is, without the Laplacian filter. The digest is always that of the unfiltered image.
    #[arg(long)]
    pub unfiltered: bool,
    /// Write a trace of what was done when, for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FILE.json", conflicts_with = "reference")]
    pub timeline: Option<PathBuf>,
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

/// What computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// GPUs if every rank finds one, otherwise the twin.
    Auto,
    /// GPUs.
    Cuda,
    /// The host twin of a GPU.
    Host,
}

impl Options {
    /// The survey that is asked for. By default, its states take 6 GiB per shot on GPUs, and 25 MiB per shot on the twin.
    pub fn survey(&self, is_gpu: bool) -> Survey {
        let (grid, steps, every) = match is_gpu {
            true => (Grid { nx: 2048, nz: 1024 }, 7000, 10),
            false => (Grid { nx: 192, nz: 96 }, 800, 5),
        };
        Survey {
            shape: Shape::new(self.grid.unwrap_or(grid)),
            steps: self.steps.unwrap_or(steps) as usize,
            every: self.every.unwrap_or(every) as usize,
            shots: self.shots as usize,
        }
    }
}
