//! Heat spreads over a plate, and the run survives being killed.
//!
//! The program solves a 2-D heat equation (explicit five-point stencil, double precision) on a plate that is cut into
//! one block per rank. The physics is in `heat2d/plate.rs`, its messages in `heat2d/exchange.rs`, pictures and the
//! digest in `heat2d/picture.rs`; all calls to Bivouac are in `heat2d/checkpoints.rs`.
//!
//! ```sh
//! mpirun -n 4 heat2d --dir /scratch/me/heat --steps 5000 --every 100
//! ```
//!
//! Rank 0 prints one line per event: `started`, `restored`, `committed` (a checkpoint has reached a level), and at
//! the end `digest`, which depends neither on the number of ranks nor on how often the run was killed. The run may be
//! started again on a different number of ranks. `--die-at 1234:2` makes rank 2 kill itself after step 1234, each
//! time the run passes that step; a run that restored a later step does not pass it. `--hang-at` makes a rank stop
//! there for ever instead.
//!
//! The run ends early, with a last checkpoint, when `should_exit` says so: `bivouac halt`, the signals that `bivouac run`
//! receives, and the keys of `[exit]` all have this effect.
#![forbid(unsafe_code)]

#[path = "heat2d/checkpoints.rs"]
mod checkpoints;
#[path = "heat2d/exchange.rs"]
mod exchange;
#[path = "heat2d/options.rs"]
mod options;
#[path = "heat2d/picture.rs"]
mod picture;
#[path = "heat2d/plate.rs"]
mod plate;
mod surroundings;

use checkpoints::Checkpoints;
use clap::Parser;
use exchange::Halo;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use options::{Options, Spot};
use picture::{FieldDigest, Picture, PngOut, TextOut};
use plate::{Decomposition, Field, Formula, Plane};
use std::error::Error;
use std::time::Duration;
use surroundings::start;

fn main() {
    let options = Options::parse();
    start(options.threads.into(), options.verbose_log, |world| run(world, &options));
}

fn run(world: &SimpleCommunicator, options: &Options) -> Result<(), Box<dyn Error>> {
    let (rank, ranks) = (world.rank(), world.size());
    let cut = Decomposition::new(options.grid, ranks as usize)
        .ok_or_else(|| format!("{ranks} ranks cannot share a grid of {} cells", options.grid))?;
    announce(world, options, &cut);
    let (mut field, problem) = initial(options, &cut, rank as usize)?;
    let mut halo = Halo::new(&cut, rank as usize);
    halo.exchange(world, &mut field.conductivity);
    halo.borders.iter().for_each(|side| field.conductivity.mirror_halo(*side));

    let session = checkpoints::open(world, options)?;
    let blocks = checkpoints::decompose(&session, &cut, rank)?;
    let mut step = checkpoints::restart(&session, (&mut field, &blocks), &problem, rank, options.verbose_log)?;
    let mut taken = Checkpoints::default();
    let mut stopped = false;
    while step < options.steps && !stopped {
        halo.exchange(world, &mut field.now);
        halo.borders.iter().for_each(|side| field.close_border(*side, options.border));
        field.step();
        step += 1;
        std::thread::sleep(Duration::from_micros(options.pause));
        stopped = session.should_exit()?;
        let due = match options.every {
            Some(every) => step.is_multiple_of(every),
            None => session.should_checkpoint()?,
        };
        if due || stopped {
            taken.take(&session, (&field, &blocks), step, &problem, rank);
            if let Some(level) = options.wait {
                taken.wait(level.into(), rank);
            }
        }
        fail_if_asked(options, step, rank, ranks);
        taken.follow(rank);
    }
    if stopped && step < options.steps {
        taken.wait(bivouac::Level::System, rank);
        if rank == 0 {
            println!("stopped step={step} of={}", options.steps);
        }
    } else {
        finish(world, options, &cut, &field)?;
    }
    if options.verbose_log && rank == 0 {
        println!("stats {:?}", session.stats());
    }
    taken.follow(rank);
    drop(taken);
    session.close()?;
    Ok(())
}

/// Announces the run, with the process ids in the order of the ranks (`launch/demo.sh` kills one of them).
fn announce(world: &SimpleCommunicator, options: &Options, cut: &Decomposition) {
    let pid = std::process::id();
    let root = world.process_at_rank(0);
    if world.rank() == 0 {
        let mut pids = vec![0u32; world.size() as usize];
        root.gather_into_root(&pid, &mut pids[..]);
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        println!(
            "started ranks={} blocks={}x{} grid={} steps={} pids={}",
            pids.len(),
            cut.px,
            cut.py,
            options.grid,
            options.steps,
            pids.join(",")
        );
    } else {
        root.gather_into(&pid);
    }
}

/// The block's initial state, and a text that says which problem it is.
fn initial(options: &Options, cut: &Decomposition, rank: usize) -> Result<(Field, String), Box<dyn Error>> {
    let block = cut.block(rank);
    let grid = options.grid;
    let (now, conductivity, source) = match &options.picture {
        Some(path) => {
            let picture = Picture::load(path, grid)?;
            let now = Plane::from_fn(&block, |x, y| picture.temperature(x, y));
            (now, Plane::from_fn(&block, |x, y| picture.conductivity(x, y)), picture.fingerprint())
        }
        None => {
            let formula = Formula(grid);
            let now = Plane::from_fn(&block, |x, y| formula.temperature(x, y));
            (now, Plane::from_fn(&block, |x, y| formula.conductivity(x, y)), "formula".to_owned())
        }
    };
    Ok((Field::new(now, conductivity), format!("grid {grid}, border {:?}, source {source}", options.border)))
}

/// The death that `--die-at` asks for: SIGKILL, as from outside; nothing is flushed, and no destructor runs. Also the end
/// of all progress that `--hang-at` asks for.
fn fail_if_asked(options: &Options, step: u64, rank: i32, ranks: i32) {
    let is_here = |spot: Spot| spot.step == step && spot.rank.unwrap_or(ranks - 1) == rank;
    while options.hang_at.is_some_and(is_here) {
        std::thread::park();
    }
    if options.die_at.is_some_and(is_here)
        && let Err(error) = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    {
        eprintln!("rank {rank}: cannot kill itself: {error}");
    }
}

/// Prints the digest, and makes the pictures, of the final field; collective.
fn finish(
    world: &SimpleCommunicator,
    options: &Options,
    cut: &Decomposition,
    field: &Field,
) -> Result<(), Box<dyn Error>> {
    let root = world.rank() == 0;
    let mut digest = FieldDigest::default();
    let mut text = TextOut::new(options.grid);
    // A picture that cannot be written must not keep the others from the digest: remember the error and continue.
    let mut png = match &options.png {
        Some(path) if root => Some(PngOut::create(path, options.grid)),
        _ => None,
    };
    exchange::for_each_row(world, cut, &field.now, |row| {
        digest.row(row);
        text.row(row);
        if let Some(Ok(out)) = &mut png
            && let Err(error) = out.row(row)
        {
            png = Some(Err(error));
        }
    });
    if root {
        if options.text {
            print!("{}", text.finish());
        }
        println!("digest {}", digest.finish());
        if let Some(out) = png {
            out.and_then(PngOut::finish).map_err(|error| format!("picture of the final field: {error}"))?;
        }
    }
    Ok(())
}
