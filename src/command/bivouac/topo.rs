//! `bivouac topo`: where things are. It shows this machine, where the ranks of checkpoints had their threads and pages, where live
//! processes have them now, and how two of these differ.
//!
//! A [`Snapshot`](gather::Snapshot) is the state at one time: the affinity record of each rank of a checkpoint, or what `/proc` says of
//! each process, in the same form ([`live`]). [`gather`] reads snapshots, [`hosts`] sorts ranks by their machines, and [`compare`] compares
//! two snapshots; [`view`] is the document for programs, [`text`] makes the tables, and [`svg`] makes the drawing.
#![forbid(unsafe_code)]

mod compare;
mod gather;
mod hosts;
mod live;
mod svg;
mod text;
mod view;

use crate::ending::{Ending, Problems};
use crate::output::{complain, print, print_json};
use bivouac_core::affinity::machine::Machine;
use gather::Snapshot;
use std::path::PathBuf;

/// The arguments of `bivouac topo`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac topo                                this machine
  bivouac topo bivouac                        where the ranks of the newest checkpoint had their threads and pages
  bivouac topo --svg places.svg bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007
  bivouac topo --pid 4711,4712                where two processes of this node have their threads and pages now
  bivouac topo --compare OLD NEW              what differs between two checkpoints
  bivouac topo --compare --pid 4711,4712 OLD  what differs now: the processes are the checkpoint's ranks in ascending order
  bivouac topo --compare --pid 3=4711 OLD     process 4711 is rank 3
  bivouac topo --json bivouac | jq '.snapshots[].ranks[] | [.rank, .threads[].cpus]'

For a folder that contains several checkpoints, the newest of each series is shown. A thread counts as not pinned if it
is allowed to use all CPUs that its job was given. Pages are those of registered regions in host memory; on a machine
with only one NUMA node, none are recorded. A node marked * holds pages of a rank that has no thread there. For a
process, only anonymous memory is counted, and only a user who is allowed to trace the process can see this memory. CPUs
and nodes are compared by number.

Exit status: 0 done and, with --compare, nothing differs; 1 something differs or is damaged; 2 wrong usage, or
something could not be read; 3 nothing found.")]
pub struct Args {
    /// Directories, container files or memory segments [default: this machine]
    paths: Vec<PathBuf>,
    /// Live processes of this node; with --compare, in the order of the ranks or as RANK=PID
    #[arg(long, value_name = "[RANK=]PID", value_delimiter = ',')]
    pid: Vec<live::Process>,
    /// Say what differs between two checkpoints, or between a checkpoint and processes
    #[arg(long)]
    compare: bool,
    /// Draw what is shown into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs `bivouac topo`.
pub fn run(args: &Args) -> Ending {
    let mut problems = Problems::default();
    let snapshots = gather(args, &mut problems);
    let comparison = match (args.compare, snapshots.as_slice()) {
        (false, _) => None,
        (true, [then, now]) => Some(compare::compare(then, now)),
        (true, several) => {
            let found = several.len();
            problems.add(format!(
                "there are {found} checkpoints with records, but --compare takes two, or one and processes: name checkpoint folders"
            ));
            None
        }
    };
    // If the user names nothing, this machine is shown.
    let here = (args.paths.is_empty() && args.pid.is_empty()).then(Machine::here);
    if let Some(path) = &args.svg {
        let drawing = svg::draw(here, &snapshots);
        drawing.notes.iter().for_each(|note| complain(note));
        if let Err(error) = std::fs::write(path, drawing.text) {
            problems.add(format!("cannot write {}: {error}", path.display()));
        }
    }
    if comparison.as_ref().is_some_and(|comparison| !comparison.is_alike()) {
        problems.note(Ending::Damage);
    }
    problems.complain();
    if args.json {
        print_json(&view::document(here, &snapshots, comparison.as_ref(), &problems));
    } else {
        print(&match &comparison {
            Some(comparison) => text::comparison(comparison),
            None => text::all(here, &snapshots),
        });
    }
    problems.ending()
}

fn gather(args: &Args, problems: &mut Problems) -> Vec<Snapshot> {
    let mut snapshots: Vec<Snapshot> = args.paths.iter().flat_map(|path| gather::of_path(path, problems)).collect();
    let ranks: Vec<u32> = match (args.compare, snapshots.first()) {
        (true, Some(first)) => first.ranks.iter().map(|placed| placed.number).collect(),
        _ => Vec::new(),
    };
    if !args.pid.is_empty() {
        snapshots.push(live::snapshot(&args.pid, args.compare.then_some(ranks.as_slice()), problems));
    }
    snapshots
}
