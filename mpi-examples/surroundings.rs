//! What the examples share before their work begins: a log, the end of all ranks when one panics, and the configuration.
#![forbid(unsafe_code)]

use bivouac::Config;
use bivouac::config::ConfigError;
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::error::Error;
use std::io::Write;
use std::path::Path;

/// Starts MPI and the log, and runs a program: everything in `main` after the command line. If the program fails or panics on one rank,
/// all ranks end.
pub fn start(
    threads: Threading,
    is_verbose: bool,
    run: impl FnOnce(&SimpleCommunicator) -> Result<(), Box<dyn Error>>,
) {
    let Some((universe, _)) = mpi::initialize_with_threading(threads) else {
        eprintln!("MPI was already initialised");
        std::process::exit(1);
    };
    let world = universe.world();
    start_log(world.rank(), is_verbose);
    abort_on_panic();
    if let Err(error) = run(&world) {
        eprintln!("rank {}: {error}", world.rank());
        // The other ranks may be waiting for this one: end them all.
        world.abort(1);
    }
}

/// Ends all ranks when one panics: the others would wait for its messages for ever.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        SimpleCommunicator::world().abort(1);
    }));
}

/// Log lines name their rank.
fn start_log(rank: i32, verbose: bool) {
    let level = if verbose { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format(move |out, record| {
            writeln!(out, "[rank {rank}] {} {}: {}", record.level(), record.target(), record.args())
        })
        .init();
}

/// The configuration from a file or from the environment. Directories that it leaves unset are put under `directory`.
///
/// # Errors
/// A bad configuration.
pub fn configuration(file: Option<&Path>, directory: Option<&Path>) -> Result<Config, ConfigError> {
    let mut config = match file {
        Some(path) => Config::load(path)?,
        None => Config::from_env()?,
    };
    if let Some(directory) = directory {
        if config.job.global_directory == Config::default().job.global_directory {
            config.job.global_directory = directory.join("global");
        }
        config.node.local_directory.get_or_insert_with(|| directory.join("local"));
    }
    Ok(config)
}
