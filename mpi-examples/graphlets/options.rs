//! The command line.
#![forbid(unsafe_code)]

use super::inputs::Kind;
use clap::Parser;
use std::path::PathBuf;

/// Counts the graphlets of a graph; the run survives being killed.
///
/// Start it with mpirun on any number of ranks. Started again with the same directory and the same number of ranks after it was
/// killed, it continues from the newest checkpoint, and ends with the same digest as an undisturbed run. The digest depends only
/// on the graph and on --size.
#[derive(Parser, Debug)]
#[command(name = "graphlets")]
pub struct Options {
    /// The graph.
    #[arg(long, value_enum, default_value_t = Kind::Delaunay)]
    pub graph: Kind,
    /// Number of vertices.
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(16..=50_000_000))]
    pub vertices: u32,
    /// Seed of the graph.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Vertices of the largest graphlets: with 4 there are 15 counters for each vertex of the graph, with 5 there are 73.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=5))]
    pub size: u8,
    /// What counts, and where the counters are.
    #[arg(long, value_enum, default_value_t = Place::Host)]
    pub device: Place,
    /// Parts of each rank's work.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub parts: u32,
    /// Parts between checkpoints.
    #[arg(long, value_name = "PARTS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub every: u32,
    /// Wait after each checkpoint until it has reached its last level.
    #[arg(long)]
    pub wait: bool,
    /// The last rank kills itself with SIGKILL after that part (and the checkpoint after it).
    #[arg(long, value_name = "PART")]
    pub die_at: Option<u32>,
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

/// What counts, and where the counters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Place {
    /// The processor, in ordinary memory.
    Host,
    /// The processor, in the memory of the host twin of a GPU.
    Twin,
    /// A GPU.
    Cuda,
}
