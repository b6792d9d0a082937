//! What the examples have in common before their work begins: a log, an end for all ranks when one panics, and the
//! configuration.
#![forbid(unsafe_code)]

use bivouac::Config;
use bivouac::config::ConfigError;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::io::Write;
use std::path::Path;

/// A panic on one rank would leave the others waiting for its messages for ever.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        SimpleCommunicator::world().abort(1);
    }));
}

/// Log lines name their rank.
pub fn start_log(rank: i32, verbose: bool) {
    let level = if verbose { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format(move |out, record| {
            writeln!(out, "[rank {rank}] {} {}: {}", record.level(), record.target(), record.args())
        })
        .init();
}

/// The configuration of a file or of the environment. Where it leaves the directories open they are put under `directory`.
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
