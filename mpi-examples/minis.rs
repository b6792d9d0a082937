//! Six small programs that continue while their GPU memory is being saved, and say what they are about to write to.
//!
//! They resemble the programs that *GPU Snapshot: Checkpoint Offloading for GPU-Dense Systems* (Lee and others, ICS 2019) measured:
//!
//! | program | has | a step writes to |
//! |---|---|---|
//! | `stencil` | a plate of heat | everything, twice |
//! | `cg` | a matrix, five vectors | three vectors of a hundredth to a fiftieth each |
//! | `particles` | places, velocities, forces, lists of neighbours | the first three: a third |
//! | `amr` | boxes of cells | three eighths, different ones each time |
//! | `sweep` | fluxes in eight directions | everything, one direction after the other |
//! | `rtm` | two wavefields, the ground | one wavefield, in turn |
//!
//! Each program is in the file of the same name in `minis/`, with its steps and its declarations. The calls to Bivouac for checkpoints are
//! in `minis/checkpoints.rs`, those for declarations in `minis/apps.rs`, and the kernels in `minis/kernels.cu` and `minis/kernels.rs`.
//!
//! ```sh
//! export BIVOUAC_OFFLOAD_MODE=always
//! mpirun -n 2 minis cg --dir /scratch/me/cg                                   # on the host twin of a GPU
//! mpirun -n 2 minis cg --dir /scratch/me/cg --device cuda --mib 8192          # on GPUs
//! mpirun -n 2 minis cg --dir /scratch/me/cg --forget direction                # a declaration is missing: refused, and reported
//! mpirun -n 2 minis stencil --dir /scratch/me/s --device cuda --mib 8192 --every 10 --measure 5
//! ```
//!
//! Rank 0 prints `started`, `restored`, `committed` or `refused` for each checkpoint, counters, and `digest`.
#![deny(unsafe_code)] // Except in `card` and `machine::gpu`.

#[path = "minis/amr.rs"]
mod amr;
#[path = "minis/apps.rs"]
mod apps;
#[cfg(feature = "cuda")]
mod card;
#[path = "minis/cg.rs"]
mod cg;
#[path = "minis/checkpoints.rs"]
mod checkpoints;
#[path = "minis/figure.rs"]
mod figure;
#[path = "minis/kernels.rs"]
mod kernels;
#[path = "minis/machine.rs"]
mod machine;
mod node;
#[path = "minis/options.rs"]
mod options;
#[path = "minis/particles.rs"]
mod particles;
#[path = "minis/rtm.rs"]
mod rtm;
#[path = "minis/stencil.rs"]
mod stencil;
mod surroundings;
#[path = "minis/sweep.rs"]
mod sweep;

use apps::{App, Result, Run};
use checkpoints::Checkpoints;
use clap::Parser;
use machine::Machine;
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use options::{How, Options, Place, Way};
use std::time::Instant;
use surroundings::start;
use xxhash_rust::xxh3::Xxh3;

/// Memory of the twin in addition to what is saved.
const SPARE_BYTES: u64 = 1 << 30;
/// Fields are digested in pieces of this many bytes.
const PIECE: u64 = 64 << 20;

fn main() {
    let options = Options::parse();
    start(Threading::Multiple, options.verbose_log, |world| run(world, &options));
}

fn run(world: &SimpleCommunicator, options: &Options) -> Result<()> {
    let machine = open_machine(world, options)?;
    let mut run = Run::new(&*machine, world);
    let mut app = apps::open(options, &run)?;
    let bytes = app.fields().iter().map(|(_, field)| field.bytes()).sum();
    if world.rank() == 0 {
        let name = &machine.device().info().name;
        println!("started app={:?} ranks={} device={name:?} bytes={bytes}", options.app, world.size());
    }
    if options.how == How::None {
        advance(options, &mut *app, &run, None)?;
        return finish(world, &*app, &*machine);
    }
    let mut checkpoints = Checkpoints::open(world, options, &*machine, bytes)?;
    if options.how == How::Mark {
        run.tell(checkpoints.offload(), &*app, options.forget.as_deref());
    }
    if let Some(rounds) = options.measure {
        figure::measure(options, rounds, &mut *app, &run, &mut checkpoints)?;
    } else {
        advance(options, &mut *app, &run, Some(&mut checkpoints))?;
        finish(world, &*app, &*machine)?;
    }
    drop(run);
    checkpoints.close()
}

/// A GPU or the twin.
fn open_machine(world: &SimpleCommunicator, options: &Options) -> Result<Box<dyn Machine>> {
    let local_rank = node::local_rank(world);
    match options.device {
        Place::Twin => Ok(Box::new(machine::twin::Twin::open(2 * options.bytes() + SPARE_BYTES, options.link)?)),
        Place::Cuda => open_gpu(local_rank, options.link),
    }
}

#[cfg(feature = "cuda")]
fn open_gpu(local_rank: usize, link: Option<u32>) -> Result<Box<dyn Machine>> {
    Ok(Box::new(machine::gpu::Gpu::open(local_rank, link)?))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_: usize, _: Option<u32>) -> Result<Box<dyn Machine>> {
    Err(bivouac::device::DeviceError::NoLibrary.into())
}

/// Runs all steps, starting from the newest checkpoint. Collective.
fn advance(options: &Options, app: &mut dyn App, run: &Run, mut checkpoints: Option<&mut Checkpoints>) -> Result<()> {
    let mut first = 0;
    if let Some(checkpoints) = &checkpoints {
        first = checkpoints.restart(app, run.machine)?;
    }
    let begun = Instant::now();
    for step in first..options.steps {
        if let Some(checkpoints) = checkpoints.as_deref_mut()
            && step.is_multiple_of(options.every)
            && step > first
        {
            let way = if options.how == How::Copy { Way::Copy } else { Way::Mark };
            if let Err(error) = checkpoints.take(app, run.machine, step, way) {
                eprintln!("rank {}: checkpoint {step} was not taken: {error}", run.world.rank());
            }
            if options.wait {
                checkpoints.settle();
            }
        }
        fail_if_asked(options, step, run);
        app.step(step, run)?;
        if let Some(checkpoints) = checkpoints.as_deref_mut() {
            checkpoints.follow();
        }
    }
    run.machine.stream().finish()?;
    if run.world.rank() == 0 {
        println!("seconds={:.3}", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The death that `--die-at` asks for: SIGKILL, as from outside; nothing is flushed, no destructor runs.
fn fail_if_asked(options: &Options, step: u64, run: &Run) {
    if options.die_at == Some(step)
        && run.world.rank() + 1 == run.world.size()
        && let Err(error) = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    {
        eprintln!("cannot kill itself: {error}");
    }
}

/// Prints the digest of all fields of all ranks on rank 0. Collective.
fn finish(world: &SimpleCommunicator, app: &dyn App, machine: &dyn Machine) -> Result<()> {
    let mut digest = Xxh3::new();
    for (_, field) in app.fields() {
        for at in (0..field.bytes()).step_by(PIECE as usize) {
            let part = field.part(at, PIECE.min(field.bytes() - at))?;
            let mut bytes = vec![0; part.bytes() as usize];
            machine.stream().download(&mut [(part, &mut bytes[..])], None)?;
            digest.update(&bytes);
        }
    }
    let mine = digest.digest128().to_le_bytes();
    let root = world.process_at_rank(0);
    if world.rank() != 0 {
        root.gather_into(&mine);
        return Ok(());
    }
    let mut all = vec![0u8; mine.len() * world.size() as usize];
    root.gather_into_root(&mine, &mut all);
    println!("digest {:032x}", xxhash_rust::xxh3::xxh3_128(&all));
    Ok(())
}
