//! `bivouac bench`: measures what checkpoints cost on this node, with the code that sessions run, and writes the figures
//! into a machine profile.
//!
//! A session of one rank, without MPI, takes checkpoints of noise and restores them: in node memory, in a local directory and in a global
//! directory, one after the other. [`rounds`] times them, [`scratch`] makes the temporary folders, and [`gpu`] measures the links.
#![forbid(unsafe_code)]

mod gpu;
mod rounds;
mod scratch;

use crate::ending::Ending;
use crate::output::{bytes, complain, print, table};
use bivouac_core::Config;
use bivouac_core::base::calendar::unix_now;
use bivouac_core::base::units::{MIB, parse_bytes, parse_duration};
use bivouac_core::format::profile::{Figure, Name, Profile, Source, rounded};
use bivouac_core::segment::available_memory;
use bivouac_core::tier::TierId;
use bivouac_core::transfer::profile;
use rounds::Rounds;
use scratch::Scratch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The maximum size of a checkpoint if the user gives none. The size is also limited to a part of what is free.
const SIZE_MAX: u64 = 1 << 30;
const SIZE_LEAST: u64 = MIB;
/// That part is one divided by this, of the memory and of each directory.
const FREE_SHARE: u64 = 8;

/// The arguments of `bivouac bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac bench --out machine.toml
  bivouac bench --out machine.toml --local /ssd --global /scratch/me
  bivouac plan --profile machine.toml --state \"20 GiB\" --config

The command takes checkpoints of random data with a session of one rank, and restores them. It measures copies with
digests into node memory, the preparation of that memory, writes to the local and to the global directory until they are
durable, and restarts from node memory and from each directory. If there are GPUs and the command was built with the
feature cuda, it also measures their links, each alone and all at once, and how fast node memory is pinned. The command
needs room for four checkpoints in memory and for two in each directory. Unless --size is given, a checkpoint takes no
more than an eighth of the free space. Everything that the command creates is removed, even after Ctrl-C.

`bivouac plan --profile` reads the file. Figures that sessions have written to the file (plan.profile) are kept. The
numbers for the global directory are those of one node that has the directory to itself; let a session measure what all
nodes get.

Exit status: 0 done; 2 wrong usage, the file could not be written, or a directory that was named could not be measured.")]
pub struct Args {
    /// The machine profile to write or update
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Storage of this node [default: local.directory, or the temporary directory]
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Storage that all nodes share [default: global.directory, if it exists]
    #[arg(long, value_name = "DIR")]
    global: Option<PathBuf>,
    /// How much a checkpoint saves [default: 1 GiB, or an eighth of the free space if that is less]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// About how long the measurements may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    time: Duration,
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text).filter(|bytes| *bytes >= SIZE_LEAST);
    size.ok_or_else(|| "give a size of 1 MiB or more, such as \"256 MiB\"".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "give a time greater than 0, such as 60s".to_owned())
}

/// The seconds that each measurement of one kind took, and the bytes that each moved.
pub struct Taken {
    name: Name,
    bytes: u64,
    seconds: Vec<f64>,
}

/// What has been measured, and what has not.
#[derive(Default)]
pub struct Found {
    taken: Vec<Taken>,
    /// What could not be measured, and why, in words.
    absent: Vec<String>,
    /// The user asked for something that could not be measured.
    is_short: bool,
}

/// A directory to measure.
struct Target {
    tier: TierId,
    directory: PathBuf,
    /// The user named it.
    is_asked_for: bool,
}

/// Runs `bivouac bench`.
pub fn run(args: &Args) -> Ending {
    match measure(args) {
        Ok(false) => Ending::Good,
        Ok(true) => Ending::Trouble,
        Err(text) => {
            complain(&text);
            Ending::Trouble
        }
    }
}

/// Returns true if something that the user asked for is missing.
fn measure(args: &Args) -> Result<bool, String> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(|error| format!("signal: {error}"))?;
    }
    // The profile is read before anything takes time.
    let mut known = profile::read(&args.out)
        .map_err(|error| format!("{error}; move it away, or name another file"))?
        .unwrap_or_default();
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let targets = targets(args, &config);
    let size = args.size.map_or_else(|| standard_size(&config, &targets), Ok)?;
    let rounds = Rounds::new(size, args.time, &config, interrupted.clone());

    let mut found = Found::default();
    let mut add = |what: &str, is_asked_for: bool, outcome: Result<Vec<Taken>, String>| match outcome {
        Ok(taken) => found.taken.extend(taken),
        Err(why) => {
            found.is_short |= is_asked_for;
            found.absent.push(format!("{what}: {why}"));
        }
    };
    add("populate", false, rounds.populate());
    for Target { tier, directory, is_asked_for } in &targets {
        let outcome = Scratch::in_directory(directory, *tier).and_then(|folder| rounds.tier(*tier, folder.path()));
        add(&format!("{tier} {}", directory.display()), *is_asked_for, outcome);
    }
    add("pin, link_alone, link_together", false, gpu::measure(size, &interrupted));
    if interrupted.load(Ordering::Relaxed) {
        return Err("interrupted: nothing was written".into());
    }
    if found.taken.is_empty() {
        return Err(format!("nothing could be measured: {}", found.absent.join("; ")));
    }
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let source = Source::new(unix_now(), &host, &command);
    let figures = found.figures(&source);
    print(&text(&figures, &found.absent, size));
    known.renew(Profile { nodes: 1, ranks: 1, figures, ..Profile::default() });
    profile::write(&args.out, &known)?;
    print(&format!("\n{}: bivouac plan --profile {0}\n", args.out.display()));
    Ok(found.is_short)
}

fn targets(args: &Args, config: &Config) -> Vec<Target> {
    let local = args.local.clone().or_else(|| config.node.local_directory.clone()).unwrap_or_else(std::env::temp_dir);
    let global = args.global.clone().unwrap_or_else(|| config.job.global_directory.clone());
    vec![
        Target { tier: TierId::LOCAL, directory: local, is_asked_for: args.local.is_some() },
        Target { tier: TierId::GLOBAL, directory: global, is_asked_for: args.global.is_some() },
    ]
}

/// The size of a checkpoint if the user gives none. Directories whose free space is unknown or too small do not count: they are left out
/// later, with the reason.
fn standard_size(config: &Config, targets: &[Target]) -> Result<u64, String> {
    let memory = available_memory(&config.node.memory_directory).map_err(|error| error.to_string())?.least;
    let room = |path: &Path| rustix::fs::statvfs(path).ok().map(|room| room.f_bavail.saturating_mul(room.f_frsize));
    let free =
        targets.iter().filter_map(|target| room(&target.directory)).filter(|free| *free >= FREE_SHARE * SIZE_LEAST);
    let size = free.chain([memory]).min().unwrap_or(memory) / FREE_SHARE;
    match size.min(SIZE_MAX) / MIB * MIB {
        0 => Err(format!("only {} of memory is free, and an eighth of that is too little: give --size", bytes(memory))),
        size => Ok(size),
    }
}

impl Found {
    /// The measurements as figures of a profile: bytes per second for the median, the longest and the shortest time.
    fn figures(&self, source: &Source) -> Vec<Figure> {
        let mut figures: Vec<Figure> = Vec::new();
        for Taken { name, bytes, seconds } in &self.taken {
            let mut sorted = seconds.clone();
            sorted.sort_by(f64::total_cmp);
            let (Some(shortest), Some(longest)) = (sorted.first(), sorted.last()) else { continue };
            let rate = |seconds: f64| rounded(*bytes as f64 / seconds.max(1e-9));
            let value = rate(sorted[sorted.len() / 2]);
            let range = [rate(*longest).min(value), rate(*shortest).max(value)];
            let samples = seconds.len() as u64;
            // Captures are measured with each directory; those of the first directory are as good as any.
            if figures.iter().all(|figure| figure.name != *name) {
                let (level, interval, source) = (None, None, source.clone());
                figures.push(Figure { name: *name, level, interval, value, range, samples, bytes: None, source });
            }
        }
        figures
    }
}

fn text(figures: &[Figure], absent: &[String], size: u64) -> String {
    let rate = |value: f64| format!("{:.2} GB/s", value / 1e9);
    let row = |figure: &Figure| {
        let [least, most] = figure.range.map(rate);
        vec![figure.name.text().to_owned(), rate(figure.value), least, most, figure.samples.to_string()]
    };
    let rows: Vec<Vec<String>> = figures.iter().map(row).collect();
    let mut text = format!("Checkpoints of {}:\n\n", bytes(size));
    text += &table(&["figure", "median", "least", "most", "rounds"], &[1, 2, 3, 4], &rows);
    if !absent.is_empty() {
        text += "\nNot measured:\n";
        absent.iter().for_each(|what| text += &format!("  {}\n", crate::output::plain(what)));
    }
    text
}
