//! Affinity: what recording and restoring it costs, and what a restarted computation gains from it. Prints JSON lines.
//!
//! ```text
//! benches/affinity.sh                      everything, and stores it
//! cargo bench --bench affinity             figures without MPI: `planning.rs`
//! … costs                                  ratios with against without, under mpirun: `costs.rs`
//! … run, resume, compare, table            the experiment of Middleware'14, section 4: `work.rs`, `table.rs`
//! ```
#![forbid(unsafe_code)]

#[path = "affinity/costs.rs"]
mod costs;
#[path = "affinity/kernels.rs"]
mod kernels;
#[path = "affinity/planning.rs"]
mod planning;
#[path = "affinity/table.rs"]
mod table;
#[path = "affinity/team.rs"]
mod team;
#[path = "affinity/work.rs"]
mod work;

use clap::{Parser, Subcommand};
use mpi::traits::Communicator;
use std::path::PathBuf;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum What {
    /// Mapping and size of records.
    Planning,
    /// The times of checkpoints and restarts with affinity, against those without. Runs under mpirun, on one rank.
    Costs(costs::Costs),
    /// A computation with checkpoints. Runs under mpirun.
    Run {
        #[command(flatten)]
        work: work::Work,
        /// How many checkpoints are taken.
        #[arg(long)]
        points: u64,
    },
    /// The rest of the computation, from one of its checkpoints. Runs under mpirun.
    Resume {
        #[command(flatten)]
        work: work::Work,
        /// The version: the step at which the checkpoint was taken.
        #[arg(long)]
        version: u64,
    },
    /// Compares the lines that `run` and `resume` have printed into a file.
    Compare {
        /// JSON lines.
        file: PathBuf,
    },
    /// Prints a table of the lines that `compare` has printed into a file.
    Table {
        /// JSON lines.
        file: PathBuf,
    },
}

fn main() {
    env_logger::init();
    match Options::parse().what.unwrap_or(What::Planning) {
        What::Planning => {
            planning::mappings();
            planning::records();
        }
        What::Compare { file } => table::print(&file),
        What::Table { file } => table::print_markdown(&file),
        What::Costs(costs) => with_mpi(|world| costs::print(&world, &costs)),
        What::Run { work, points } => with_mpi(|world| work::run(world, work, points)),
        What::Resume { work, version } => with_mpi(|world| work::resume(world, work, version)),
    }
}

fn with_mpi(body: impl FnOnce(mpi::topology::SimpleCommunicator)) {
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one thread would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        mpi::topology::SimpleCommunicator::world().abort(1);
    }));
    body(universe.world());
}
