//! Reverse time migration: the wavefields of seismic shots are written forward, wait in a history, and are read backward.
//!
//! A shot is fired over layered ground and recorded along the surface. To see the layers, its wavefield is propagated once
//! more through a smooth model of the ground, and the recording is propagated back in time: where the two are alike at the
//! same moment, something has reflected. The first wavefield is needed in reverse order, and as a whole it is several
//! times larger than the memory of a GPU: its states are appended to a history of Bivouac and restored in reverse order.
//!
//! The ground and the survey are in `rtm/model.rs`; the kernels in `rtm/wave.cu` and, for a machine without a GPU, in
//! `rtm/stencil.rs`; the calls of the kernels in `rtm/gpu.rs` and `rtm/twin.rs`, behind `rtm/machine.rs`; a shot in
//! `rtm/shot.rs`. All calls to Bivouac are in `rtm/wavefields.rs` and in [`caches`] here.
//!
//! ```sh
//! mpirun -n 4 rtm --dir /scratch/me/rtm --out image.png --timeline trace.json
//! mpirun -n 2 rtm --reference     # the same image, all states in device memory
//! ```
//!
//! Rank 0 prints `started`, a line for each rank (`blocked_s` is the time that the rank's calls to the history took), and
//! `image=` with a digest: it is the same for every number of ranks, with and without Bivouac, on devices of one kind.
//!
//! A rank uses the GPU with its number among the ranks of its node, modulo the node's GPUs. How much GPU memory, node memory
//! and file space the histories may take is configured by `[device]` and `[history]`.
#![deny(unsafe_code)] // Except in `card` and `machine::gpu`.

#[cfg(feature = "cuda")]
mod card;
#[path = "rtm/image.rs"]
mod image;
#[path = "rtm/machine.rs"]
mod machine;
#[path = "rtm/model.rs"]
mod model;
mod node;
#[path = "rtm/options.rs"]
mod options;
#[path = "rtm/ranks.rs"]
mod ranks;
#[path = "rtm/shot.rs"]
mod shot;
#[path = "rtm/stencil.rs"]
mod stencil;
mod surroundings;
#[path = "rtm/timeline.rs"]
mod timeline;
#[path = "rtm/wavefields.rs"]
mod wavefields;

use bivouac::history::Span;
use bivouac::{Caches, Session};
use clap::Parser;
use image::Image;
use machine::Machine;
use model::{Ground, Survey};
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use options::{Kind, Options};
use shot::Migration;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use surroundings::{configuration, start};
use timeline::{Counts, Recorder};
use wavefields::Wavefields;

/// Memory of the twin, in addition to the wavefields that `--reference` keeps in it.
const TWIN_BYTES: u64 = 4 << 30;

fn main() {
    let options = Options::parse();
    start(Threading::Multiple, options.verbose_log, |world| run(world, &options));
}

fn run(world: &SimpleCommunicator, options: &Options) -> Result<(), Box<dyn Error>> {
    let (machine, survey) = open_machine(world, options)?;
    let begun = Instant::now();
    announce(world, options, &*machine, &survey);
    if options.reference {
        let mut recorder = Recorder::new(false);
        let work = migrate(world, options, &*machine, &survey, None, &mut recorder)?;
        return finish(world, options, &survey, work, recorder, begun);
    }
    let session = open_session(world, options)?;
    // All ranks start timing together.
    world.barrier();
    let mut recorder = Recorder::new(options.timeline.is_some());
    let caches = caches(&session, &*machine, options)?;
    let work = migrate(world, options, &*machine, &survey, Some(&caches), &mut recorder)?;
    finish(world, options, &survey, work, recorder, begun)?;
    drop(caches);
    Ok(session.close()?)
}

/// A GPU or the twin, of the same kind on all ranks, and a survey that suits it. Collective.
fn open_machine(world: &SimpleCommunicator, options: &Options) -> Result<(Box<dyn Machine>, Survey), Box<dyn Error>> {
    let local = node::local_rank(world);
    if options.device != Kind::Host {
        let survey = options.survey(true);
        let gpu = open_gpu(&survey, local);
        if ranks::all(world, gpu.is_ok()) || options.device == Kind::Cuda {
            return Ok((gpu?, survey));
        }
        match gpu {
            Err(error) if world.rank() == 0 => println!("no GPU, so all ranks compute on the host twin: {error}"),
            Err(error) => log::info!("no GPU: {error}"),
            Ok(_) => log::warn!("another rank has no GPU, so all ranks compute on the host twin"),
        }
    }
    let survey = options.survey(false);
    let kept = if options.reference { survey.states() * survey.field_bytes() } else { 0 };
    let memory = TWIN_BYTES.max(16 * survey.field_bytes()) + kept;
    Ok((Box::new(machine::twin::Twin::new(survey.shape, memory)?), survey))
}

#[cfg(feature = "cuda")]
fn open_gpu(survey: &Survey, local_rank: usize) -> machine::Result<Box<dyn Machine>> {
    Ok(Box::new(machine::gpu::Gpu::open(survey.shape, local_rank)?))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_: &Survey, _: usize) -> machine::Result<Box<dyn Machine>> {
    Err(bivouac::device::DeviceError::NoLibrary)
}

/// Opens the session. Collective.
fn open_session(world: &SimpleCommunicator, options: &Options) -> Result<Session, Box<dyn Error>> {
    // Not with `?`: a rank that returned here would leave the others waiting for it.
    Ok(Session::open_with(world, configuration(options.config.as_deref(), options.dir.as_deref()))?)
}

/// The caches of this rank, which record what they do for `--timeline`.
fn caches(session: &Session, machine: &dyn Machine, options: &Options) -> Result<Caches, Box<dyn Error>> {
    let is_traced = options.timeline.is_some();
    Ok(session.caches_with(Arc::clone(machine.device()), |config| config.trace = is_traced)?)
}

fn announce(world: &SimpleCommunicator, options: &Options, machine: &dyn Machine, survey: &Survey) {
    if world.rank() == 0 {
        println!(
            "started ranks={} device={:?} grid={} steps={} every={} shots={} shot_bytes={}{}",
            world.size(),
            machine.device().info().name,
            survey.shape.grid,
            survey.steps,
            survey.every,
            survey.shots,
            survey.states() * survey.field_bytes(),
            if options.reference { " reference" } else { "" }
        );
    }
}

/// The results of a rank.
#[derive(Default)]
struct Work {
    images: BTreeMap<usize, Vec<f32>>,
    counts: Counts,
    spans: Vec<Span>,
}

/// Migrates this rank's shots.
fn migrate(
    world: &SimpleCommunicator,
    options: &Options,
    machine: &dyn Machine,
    survey: &Survey,
    caches: Option<&Caches>,
    recorder: &mut Recorder,
) -> Result<Work, Box<dyn Error>> {
    let grid = survey.shape.grid;
    let ground = Ground::layered(grid, options.seed);
    let truth = machine.medium(survey, &ground)?;
    let smooth = machine.medium(survey, &ground.smoothed((grid.nz / 24).max(2)))?;
    let mut migration = Migration::new(machine, survey, &truth, &smooth)?;
    let meet = || {
        if options.tight {
            world.barrier();
        }
    };
    let mut work = Work::default();
    for shot in ranks::shots_of(world.rank(), world.size(), survey.shots) {
        let mut wavefields = Wavefields::new(caches, shot, survey.states());
        let image = migration.shot(shot, &mut wavefields, recorder, &meet)?;
        work.images.insert(shot, image);
        let (counts, spans) = wavefields.account();
        work.counts = counts;
        work.spans.extend(spans);
    }
    // A rank that has one shot fewer than others meets them for the missing shot as well: at each of its states, forward and backward.
    let rounds = survey.shots.div_ceil(world.size() as usize);
    (0..(rounds - work.images.len()) as u64 * 2 * survey.states()).for_each(|_| meet());
    Ok(work)
}

/// Gathers everything on rank 0, which prints and writes it. Collective.
fn finish(
    world: &SimpleCommunicator,
    options: &Options,
    survey: &Survey,
    mut work: Work,
    recorder: Recorder,
    begun: Instant,
) -> Result<(), Box<dyn Error>> {
    let image = ranks::stack(world, survey.shots, &work.images, Image::new(survey.shape.grid));
    let seconds = begun.elapsed().as_secs_f64();
    let reports = ranks::gather(world, report(world.rank(), &work));
    work.spans.extend(recorder.into_spans());
    let events = timeline::events(world.rank(), &work.spans);
    let events = ranks::gather(world, serde_json::to_string(&events)?);
    let Some(image) = image else { return Ok(()) };
    reports.iter().for_each(|line| println!("{line}"));
    println!("image={} seconds={seconds:.3}", image.digest());
    if let Some(path) = &options.out {
        let picture = if options.unfiltered { image } else { image.filtered() };
        picture.write(path)?;
    }
    if let Some(path) = &options.timeline {
        let ranks: Result<Vec<Vec<_>>, _> = events.iter().map(|text| serde_json::from_str(text)).collect();
        let trace = timeline::trace(ranks?.into_iter().flatten().collect());
        std::fs::write(path, trace).map_err(|error| format!("timeline {}: {error}", path.display()))?;
    }
    Ok(())
}

fn report(rank: i32, work: &Work) -> String {
    let Counts { appended, restored, blocked_s, restores: (restores, hits), moved: [d2h, h2f, f2h, h2d] } = work.counts;
    format!(
        "rank={rank} shots={} appended={appended} restored={restored} blocked_s={blocked_s:.3} hits={hits}/{restores} \
         d2h={d2h} h2f={h2f} f2h={f2h} h2d={h2d}",
        work.images.len()
    )
}
