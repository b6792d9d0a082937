//! `bivouac`: looks at checkpoints, checks them, removes them, and helps after a job has died. It needs no MPI.
//!
//! Each command takes paths: a local or global root directory, any folder below it (job, group, series, checkpoint), a container file or a
//! manifest, a memory segment, or a folder of segments such as `/dev/shm`. [`target`] finds out which of these a path is; [`survey`] takes
//! stock of the checkpoints below it, and [`memory`] of a segment. The commands ([`ls`], [`inspect`], [`verify`], [`rm`]) work on the
//! results. [`output`] prints tables for people or, with `--json`, one document for programs. The fields of the document are those of the
//! structures that derive `Serialize`; fields are added, but never renamed, while `schema` stays the same.
//!
//! [`export`] writes a region as an array for other programs, [`extract`] does so for an [`array`] that is spread over the ranks, and
//! [`diff`] says how two checkpoints differ.
//!
//! [`bench`] measures what checkpoints cost on this node, and [`plan`] works out from that how often a job should take them.
//!
//! [`topo`] shows where the ranks of a checkpoint, or live processes, have their threads and pages.
//!
//! Three commands look at a node instead of at paths: [`doctor`] checks an environment, [`drain`] copies what a dead job left on the node
//! to the global tier, and [`clean`] removes it. [`rebuild`] makes the shards of lost nodes again, and [`unpack`] turns checkpoints that
//! refer to others into whole ones. [`places`] knows where the tiers are if nobody says so, [`living`] finds out whether a job is alive,
//! and [`removal`] carries out what `rm`, `clean` and [`reset`], which forgets a job, have decided.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | done, and all that was examined is good |
//! | 1 | damage was found, by any command; `doctor` found problems, `drain` or `rebuild` could not copy all that it should, `topo --compare` found a difference |
//! | 2 | wrong usage, something could not be read or removed, or the command refused to act |
//! | 3 | there was nothing to work on: no checkpoint, segment or job was found |
//!
//! [`ending`] defines these; `run` has additional ones.
#![forbid(unsafe_code)]

mod array;
mod asking;
mod batch;
mod bench;
mod body;
mod clean;
mod config;
mod diff;
mod doctor;
mod draft;
mod drain;
mod ending;
mod export;
mod extract;
mod generate;
mod halt;
mod hosts;
mod inspect;
mod living;
mod ls;
mod memory;
mod npy;
mod output;
mod picture;
mod places;
mod plan;
mod playing;
mod rebuild;
mod removal;
mod report;
mod reset;
mod rm;
mod run;
mod shards;
mod standing;
mod status;
mod survey;
mod target;
mod top;
mod topo;
mod unpack;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Inspects, checks and removes Bivouac's checkpoints, and helps when a job has died.
#[derive(Parser)]
#[command(
    name = "bivouac",
    version,
    arg_required_else_help = true,
    after_help = "A PATH is one of the following: a local or global root directory; a job, group, series or checkpoint \
folder below such a directory; a container file (.bvs, .bvc, .bvp); a manifest; a memory segment \
(/dev/shm/bivouac-…); or a folder of segments.\n\n\
Exit status of all commands: 0 done, and everything is good; 1 damage, problems or differences found; 2 wrong usage, \
something cannot be read, or the command refused to act; 3 nothing found: no checkpoint, segment or job. \
`bivouac run --help` lists the additional statuses of a supervised job."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List checkpoints and the slots of memory segments
    Ls(ls::Args),
    /// Show what checkpoints, containers, manifests and segments hold
    Inspect(inspect::Args),
    /// Read everything and check every digest
    Verify(verify::Args),
    /// Write a region of a checkpoint as an array for NumPy
    Export(export::Args),
    /// Write an array that is decomposed over the ranks, or a box of it, for NumPy
    Extract(extract::Args),
    /// Show how two checkpoints differ
    Diff(diff::Args),
    /// Remove checkpoints and dead memory segments
    Rm(rm::Args),
    /// Remove what dead jobs left in this node's memory
    Clean(clean::Args),
    /// Forget a job: its checkpoints, claims and memory segments, on this node and in the global directory
    Reset(reset::Args),
    /// Check this environment, and say what to change
    Doctor(doctor::Args),
    /// Copy what a dead job left on this node to the global directory
    Drain(drain::Args),
    /// Rebuild lost shards from what the surviving nodes hold, and complete a checkpoint in the global directory
    Rebuild(rebuild::Args),
    /// Make checkpoints self-contained, so that they can be copied elsewhere
    Unpack(unpack::Args),
    /// Start a job, watch it, and relaunch it on the remaining nodes
    Run(Box<run::Args>),
    /// Show the state of a job: versions by level, what is in flight, and what was refused
    Status(status::Args),
    /// Watch a job in a terminal
    Top(top::Args),
    /// Write a page about a job: its runs, failures, levels and tiers, and where its time went
    Report(report::Args),
    /// Set, list and clear the conditions under which a run ends
    Halt(halt::Args),
    /// Show machines and where the threads and pages of ranks are, or compare placements
    Topo(topo::Args),
    /// Say how often a job should checkpoint to each tier
    Plan(plan::Args),
    /// Measure what checkpoints cost on this node, for use by `bivouac plan`
    Bench(bench::Args),
    /// Show the settings that take effect here, and where each of them comes from
    Config(config::Args),
    /// Write the manual pages or the shell completions of this command
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    match Cli::parse().command {
        Command::Ls(args) => ls::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Extract(args) => extract::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Reset(args) => reset::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Rebuild(args) => rebuild::run(&args),
        Command::Unpack(args) => unpack::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Halt(args) => halt::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Generate(args) => generate::run(&args),
    }
    .into()
}
