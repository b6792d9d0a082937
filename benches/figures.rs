//! The figures of *Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication* (Tan and others, ICPP 2023, section 3),
//! measured with the calls that programs make, on the paper's application: the counters of `mpi-examples/graphlets.rs`.
//!
//! ```sh
//! cargo bench --bench figures -- --fig4 --fig5 --restart --dir DIR      # small, on the processor; DIR on the disk to measure
//! mpirun -n 1 figures --fig4 --fig5 --gpu --dir DIR                     # 2^20 vertices on the first GPU
//! mpirun -n 2 figures --fig6 --gpu --dir DIR                            # on two of them
//! ```
//!
//! The graphlets of an input are counted once. The counters after each part of the work are kept, on the GPU where they fit,
//! and each method takes its checkpoints of the same counters. Each checkpoint is taken after the one before it has been
//! committed on the local tier.
//!
//! - `--fig4`: ten checkpoints for each method and chunk length. `basic` has blocks of the default and of the minimum `job.block`.
//! - `--fig5`: five, ten and twenty checkpoints, and compression. `full` refers to no earlier checkpoints, so its five and ten
//!   are among its twenty. nvCOMP, with which the paper compares, is a GPU library that this bench does not have: `compress` is
//!   zstd on the processor.
//! - `--fig6`: the first ten of `--parts` parts, by one rank and then by all ranks of mpirun, each with counters of all vertices and its
//!   share of the work.
//! - `--restart`: a restart of a version from files, against plain reads (`figures/restart.rs`).
//!
//! Prints one JSON object per line (`figures/rows.rs`). All checkpoints are kept, and may be referred to, as in the paper, unless
//! `--sources` and `--live` allow less. The GPU's time for a look at the chunks is `stats().reduction.device_time`.
#![deny(unsafe_code)] // Except in the example's `gpu`.

#[allow(dead_code)]
#[cfg(feature = "cuda")]
#[path = "../mpi-examples/card.rs"]
mod card;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/graph.rs"]
mod graph;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/inputs.rs"]
mod inputs;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/orbits.rs"]
mod orbits;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/subgraphs.rs"]
mod subgraphs;

#[path = "figures/files.rs"]
mod files;
#[path = "figures/paper.rs"]
mod paper;
#[path = "figures/restart.rs"]
mod restart;
#[path = "figures/rows.rs"]
mod rows;
#[path = "figures/series.rs"]
mod series;
#[path = "figures/states.rs"]
mod states;

use bivouac::config::Method;
use clap::Parser;
use inputs::Kind;
use mpi::collective::SystemOperation;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::*;
use rows::row;
use series::{Setting, Taken, take};
use states::Input;
use std::path::PathBuf;

/// Checkpoints of figures 4 and 6.
const CHECKPOINTS: usize = 10;
/// Checkpoints of figure 5; the first two divide the last one.
const FREQUENCIES: [usize; 3] = [5, 10, 20];
/// Bytes of a chunk where its length does not vary.
const CHUNK: u64 = 128;
/// Bytes of a block: the default of `job.block`, and its minimum.
const BLOCKS: [u64; 2] = [64 << 10, 4 << 10];

#[derive(Parser)]
struct Options {
    /// Measure figure 4: methods and chunk lengths.
    #[arg(long)]
    fig4: bool,
    /// Measure figure 5: numbers of checkpoints, and compression.
    #[arg(long)]
    fig5: bool,
    /// Measure figure 6: all ranks of mpirun against one.
    #[arg(long)]
    fig6: bool,
    /// Measure restarts from files.
    #[arg(long)]
    restart: bool,
    /// A folder on the disk to measure.
    #[arg(long, default_value = "target/tmp")]
    dir: PathBuf,
    /// Keep the counters in GPU memory, and count there.
    #[arg(long)]
    gpu: bool,
    /// Vertices of each graph [default: 20,000, with --gpu 2^20].
    #[arg(long, value_parser = clap::value_parser!(u32).range(16..=50_000_000))]
    vertices: Option<u32>,
    /// Vertices of the largest graphlets [default: 4, with --gpu 5].
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=5))]
    size: Option<u8>,
    /// The graphs of figures 4 and 5; figure 6 uses the first.
    #[arg(long, value_delimiter = ',', default_value = "delaunay,road,bubble,race,mesh")]
    inputs: Vec<Kind>,
    /// Seed of the graphs and of the changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of a chunk in figure 4.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512")]
    chunks: Vec<u64>,
    /// Parts of each rank's work in figure 6.
    #[arg(long, default_value_t = 20)]
    parts: usize,
    /// reduction.sources [default: 32, with --restart that of the key].
    #[arg(long)]
    sources: Option<u64>,
    /// reduction.live [default: 0.000001, with --restart that of the key].
    #[arg(long)]
    live: Option<f64>,
    /// MiB of the region whose restarts are measured.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Versions of that region.
    #[arg(long, default_value_t = 100)]
    versions: u64,
    /// Restarts of each version, and plain reads.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn vertices(&self) -> usize {
        self.vertices.unwrap_or(if self.gpu { 1 << 20 } else { 20_000 }) as usize
    }

    fn size(&self) -> usize {
        self.size.unwrap_or(if self.gpu { 5 } else { 4 }).into()
    }
}

fn main() {
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one rank would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        SimpleCommunicator::world().abort(1);
    }));
    let world = universe.world();
    std::fs::create_dir_all(&options.dir).expect("a folder");
    let alone = world.split_by_color(Color::with_value(world.rank())).expect("every rank has a colour");
    if world.rank() == 0 && (options.fig4 || options.fig5) {
        for kind in &options.inputs {
            let parts = if options.fig5 { FREQUENCIES[2] } else { CHECKPOINTS };
            let mut input = Input::count(&options, *kind, &alone, parts, parts);
            if options.fig4 {
                chunks(&options, &alone, &mut input);
            }
            if options.fig5 {
                frequencies(&options, &alone, &mut input);
            }
        }
    }
    if world.rank() == 0 && options.restart {
        restart::measure(&options, &alone);
    }
    if options.fig6 {
        ranks(&options, &world, &alone);
    }
}

fn chunks(options: &Options, alone: &SimpleCommunicator, input: &mut Input) {
    let mut settings = vec![Setting::new(Method::Full)];
    settings.extend(BLOCKS.map(|block| Setting { block, ..Setting::new(Method::Basic) }));
    for method in [Method::List, Method::Tree] {
        settings.extend(options.chunks.iter().map(|chunk| Setting { chunk: *chunk, ..Setting::new(method) }));
    }
    for setting in settings {
        let taken = take(options, alone, &setting, input, CHECKPOINTS);
        println!("{}", row("figures 4", options, input, &setting, &taken.iter().collect::<Vec<_>>()));
    }
}

fn frequencies(options: &Options, alone: &SimpleCommunicator, input: &mut Input) {
    for compress in [false, true] {
        let setting = Setting { compress, ..Setting::new(Method::Full) };
        let taken = take(options, alone, &setting, input, FREQUENCIES[2]);
        for count in FREQUENCIES {
            let step = FREQUENCIES[2] / count;
            let some: Vec<&Taken> = taken.iter().skip(step - 1).step_by(step).collect();
            println!("{}", row("figures 5", options, input, &setting, &some));
        }
    }
    for count in FREQUENCIES {
        let mut settings = [Method::Basic, Method::List, Method::Tree].map(Setting::new).to_vec();
        settings.push(Setting { compress: true, ..Setting::new(Method::Tree) });
        for setting in settings {
            let taken = take(options, alone, &setting, input, count);
            println!("{}", row("figures 5", options, input, &setting, &taken.iter().collect::<Vec<_>>()));
        }
    }
}

/// Compares one rank that does all of the work with all ranks, each with its share.
fn ranks(options: &Options, world: &SimpleCommunicator, alone: &SimpleCommunicator) {
    let methods = [Method::Full, Method::Tree];
    let mut single = Vec::new();
    if world.rank() == 0 {
        let mut input = Input::count(options, options.inputs[0], alone, options.parts, CHECKPOINTS);
        for setting in methods.map(Setting::new) {
            let taken = take(options, alone, &setting, &mut input, CHECKPOINTS);
            single.push(rows::scaled(options, &input, &setting, &taken, alone, None));
        }
    }
    world.barrier();
    if world.size() == 1 {
        return;
    }
    let mut input = Input::count(options, options.inputs[0], world, options.parts, CHECKPOINTS);
    for (at, setting) in methods.map(Setting::new).into_iter().enumerate() {
        let taken = take(options, world, &setting, &mut input, CHECKPOINTS);
        rows::scaled(options, &input, &setting, &taken, world, single.get(at).copied());
    }
}

/// The sum over all ranks, and the maximum.
fn over_all(comm: &SimpleCommunicator, mine: f64) -> (f64, f64) {
    let (mut sum, mut largest) = (0.0, 0.0);
    comm.all_reduce_into(&mine, &mut sum, SystemOperation::sum());
    comm.all_reduce_into(&mine, &mut largest, SystemOperation::max());
    (sum, largest)
}
