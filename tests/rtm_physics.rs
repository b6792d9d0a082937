//! The physics of `mpi-examples/rtm.rs`, without MPI: waves travel, are absorbed, and show reflectors where they are.
//!
//! The example's own files are compiled into this test; shots are migrated with the wavefields of `--reference`.
#![deny(unsafe_code)] // The example's module `gpu` is an exception.

#[allow(dead_code)]
#[cfg(feature = "cuda")]
#[path = "../mpi-examples/card.rs"]
mod card;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/image.rs"]
mod image;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/shot.rs"]
mod shot;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/stencil.rs"]
mod stencil;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/timeline.rs"]
mod timeline;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/wavefields.rs"]
mod wavefields;

use image::Image;
use machine::Machine;
use machine::twin::Twin;
use model::{CELL_M, Grid, Ground, SURFACE_ROW, Shape, Survey};
use shot::Migration;
use timeline::Recorder;
use wavefields::Wavefields;

fn survey(grid: Grid, steps: usize) -> Survey {
    Survey { shape: Shape::new(grid), steps, every: 4, shots: 1 }
}

fn twin(survey: &Survey) -> Twin {
    Twin::new(survey.shape, 1 << 30).unwrap()
}

/// The image of the only shot over `truth`, migrated with the ground `smooth`.
fn migrate(machine: &dyn Machine, survey: &Survey, truth: &Ground, smooth: &Ground) -> Vec<f32> {
    let (truth, smooth) = (machine.medium(survey, truth).unwrap(), machine.medium(survey, smooth).unwrap());
    let mut migration = Migration::new(machine, survey, &truth, &smooth).unwrap();
    let mut wavefields = Wavefields::new(None, 0, survey.states());
    migration.shot(0, &mut wavefields, &mut Recorder::new(false), &|| {}).unwrap()
}

/// Fires the shot over a ground of 2000 m/s, and passes the field of every step to `look`.
fn fire(survey: &Survey, sponge: &[f32], mut look: impl FnMut(usize, &[f32])) {
    let shape = &survey.shape;
    let courant = Ground::from_fn(shape.grid, |_, _| 2000.0).courant(shape, survey.seconds_per_step());
    let (mut now, mut before) = (vec![0.0; shape.cells()], vec![0.0; shape.cells()]);
    let source = shape.index(survey.source_column(0), SURFACE_ROW);
    for step in 1..=survey.steps {
        stencil::step(shape, &courant, sponge, &now, &mut before);
        std::mem::swap(&mut now, &mut before);
        stencil::add_source(&courant, &mut now, source, survey.wavelet(step));
        look(step, &now);
    }
}

#[test]
fn waves_travel_at_the_velocity_of_the_ground() {
    let survey = survey(Grid { nx: 160, nz: 32 }, 500);
    let (near, far) = (30, 70);
    let mut peaks = [(0.0, 0), (0.0, 0)];
    fire(&survey, &survey.shape.sponge(survey.seconds_per_step()), |step, field| {
        for (peak, distance) in peaks.iter_mut().zip([near, far]) {
            let heard = field[survey.shape.index(survey.source_column(0) + distance, SURFACE_ROW)];
            if heard > peak.0 {
                *peak = (heard, step);
            }
        }
    });
    let seconds = (peaks[1].1 - peaks[0].1) as f64 * survey.seconds_per_step();
    let expected = (far - near) as f64 * CELL_M / 2000.0;
    assert!((seconds / expected - 1.0).abs() < 0.02, "{seconds} s, not {expected} s");
    assert!(peaks[1].0 < peaks[0].0 && peaks[1].0 > 0.0, "a wave that spreads grows weaker: {peaks:?}");
}

#[test]
fn the_border_absorbs_what_leaves_the_ground() {
    let survey = survey(Grid { nx: 64, nz: 64 }, 1200);
    let energy = |sponge: &[f32]| {
        let (mut greatest, mut last) = (0f64, 0f64);
        fire(&survey, sponge, |_, field| {
            let rows = (0..64).map(|z| &field[survey.shape.index(0, z)..][..64]);
            last = rows.flatten().map(|value| f64::from(*value).powi(2)).sum();
            greatest = greatest.max(last);
        });
        last / greatest
    };
    let absorbed = energy(&survey.shape.sponge(survey.seconds_per_step()));
    let echoing = energy(&vec![0.0; survey.shape.width + survey.shape.height]);
    assert!(absorbed < 1e-4, "{absorbed} of the energy is left");
    assert!(echoing > 0.1, "without a sponge the edge reflects, but only {echoing} is left");
}

#[test]
fn a_plane_reflector_is_imaged_at_its_depth() {
    let grid = Grid { nx: 96, nz: 96 };
    let survey = survey(grid, 640);
    for depth in [40, 56] {
        // The velocity changes between the rows depth - 1 and depth.
        let truth = Ground::from_fn(grid, |_, z| if z < depth { 2000.0 } else { 2600.0 });
        let smooth = Ground::from_fn(grid, |_, _| 2000.0);
        let mut image = Image::new(grid);
        image.add(&migrate(&twin(&survey), &survey, &truth, &smooth));
        let image = image.filtered();
        for x in [40, 48, 56] {
            // A faster layer is a positive reflector. Near the surface, the source and the receivers
            // themselves are visible.
            let value = |z: &usize| image.pixels[z * grid.nx + x];
            let peak = (24..94).max_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
            assert!(peak.abs_diff(depth) <= 1, "column {x}: the peak is in row {peak}, the reflector in row {depth}");
        }
    }
}

#[test]
fn the_ground_depends_on_the_seed_only_and_smoothing_keeps_its_slowness() {
    let grid = Grid { nx: 80, nz: 60 };
    let ground = Ground::layered(grid, 7);
    assert_eq!(ground, Ground::layered(grid, 7));
    assert_ne!(ground, Ground::layered(grid, 8));
    assert!(ground.velocity.iter().all(|velocity| (1000.0..=4000.0).contains(velocity)));
    let even = Ground::from_fn(grid, |_, _| 2500.0).smoothed(5);
    assert!(even.velocity.iter().all(|velocity| (velocity - 2500.0).abs() < 1e-6));
    let smooth = ground.smoothed(3);
    let slowness = |ground: &Ground| ground.velocity.iter().map(|velocity| 1.0 / velocity).sum::<f64>();
    assert!((slowness(&smooth) / slowness(&ground) - 1.0).abs() < 0.02);
    let roughness =
        |ground: &Ground| ground.velocity.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f64::max);
    assert!(roughness(&smooth) < 0.5 * roughness(&ground));
}

#[test]
fn sums_do_not_depend_on_who_made_the_images_and_digests_see_every_bit() {
    let grid = Grid { nx: 16, nz: 16 };
    let shot = |shot: u32| (0..256).map(|pixel| (pixel * shot) as f32 / 7.0).collect::<Vec<f32>>();
    let mut image = Image::new(grid);
    (0..3).for_each(|number| image.add(&shot(number)));
    assert!(
        image.pixels.iter().zip(shot(1).iter().zip(shot(2))).all(|(sum, (a, b))| *sum == f64::from(*a) + f64::from(b))
    );
    let digest = image.digest();
    image.pixels[99] = f64::from_bits(image.pixels[99].to_bits() ^ 1);
    assert_ne!(image.digest(), digest);
}

/// This test needs the NVRTC library but no GPU: CI installs the library.
#[cfg(feature = "cuda")]
#[test]
fn the_kernels_compile() {
    if !card::has_compiler() {
        eprintln!("SKIPPED: no NVRTC library on this machine; ci/setup.sh --with-tests installs it");
        return;
    }
    let ptx = card::compile(machine::gpu::WAVE).unwrap_or_else(|error| panic!("{}", card::said(&error)));
    for kernel in ["rtm_step", "rtm_add_source", "rtm_record", "rtm_inject", "rtm_correlate"] {
        assert!(ptx.to_src().contains(&format!(".entry {kernel}(")), "{kernel}");
    }
}

/// Both use the same formulas, with different rounding.
#[cfg(feature = "cuda")]
#[test]
fn a_gpu_makes_the_image_that_the_twin_makes() {
    let grid = Grid { nx: 70, nz: 50 };
    let survey = survey(grid, 400);
    let gpu = match machine::gpu::Gpu::open(survey.shape, 0) {
        Ok(gpu) => gpu,
        Err(error) => return eprintln!("SKIPPED: {error}"),
    };
    let truth = Ground::layered(grid, 3);
    let smooth = truth.smoothed(3);
    let there = migrate(&gpu, &survey, &truth, &smooth);
    let here = migrate(&twin(&survey), &survey, &truth, &smooth);
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let difference = norm(&mut there.iter().zip(&here).map(|(there, here)| there - here));
    let whole = norm(&mut here.iter().copied());
    assert!(whole > 0.0 && difference < 1e-3 * whole, "{difference} of {whole}");
    assert_eq!(there, migrate(&gpu, &survey, &truth, &smooth), "equal runs make equal bits");
}
