//! `--measure`: what a checkpoint adds to the time of some steps, copied and marked, in turns.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::checkpoints::Checkpoints;
use super::options::{How, Options};
use mpi::collective::SystemOperation;
use mpi::traits::*;
use serde_json::{Value, json};
use std::time::Instant;

const WAYS: [How; 3] = [How::None, How::Copy, How::Mark];

/// Prints one line on rank 0. Collective.
///
/// # Errors
/// What the device or Bivouac says.
pub fn measure(
    options: &Options,
    rounds: usize,
    app: &mut dyn App,
    run: &Run,
    checkpoints: &mut Checkpoints,
) -> Result<()> {
    let (mut step, mut version) = (0, 0);
    let mut times = [const { Vec::new() }; 3];
    let mut stats = checkpoints.stats();
    // The first two rounds fill slots, and show in which order the program writes.
    for round in 0..rounds + 2 {
        for (way, times) in WAYS.into_iter().zip(&mut times) {
            run.machine.stream().finish()?;
            run.world.barrier();
            let begun = Instant::now();
            if way != How::None {
                version += 1;
                checkpoints.take(app, run.machine, version, way)?;
            }
            for _ in 0..options.every {
                app.step(step, run)?;
                step += 1;
            }
            run.machine.stream().finish()?;
            let took = slowest(run, begun.elapsed().as_secs_f64());
            checkpoints.commit()?;
            if round >= 2 {
                times.push(took);
            }
        }
        if round == 1 {
            stats = checkpoints.stats();
        }
    }
    let now = checkpoints.stats();
    let [none, copy, mark] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let each = |now: u64, then: u64| (now - then) / rounds as u64;
    let bytes: u64 = app.fields().iter().map(|(_, field)| field.bytes()).sum();
    let line: Value = json!({
        "figure": "minis", "app": format!("{:?}", options.app).to_lowercase(), "ranks": run.world.size(), "bytes": bytes, "every": options.every,
        "none": none, "copy": copy, "mark": mark, "of_copy": (mark - none) / (copy - none), "marks": now.marks - stats.marks,
        "equal": each(now.equal_bytes, stats.equal_bytes), "doubled": each(now.doubled_bytes, stats.doubled_bytes),
        "urgent": each(now.urgent_bytes, stats.urgent_bytes),
    });
    if run.world.rank() == 0 {
        println!("{line}");
    }
    Ok(())
}

/// The longest time of all ranks. Collective.
fn slowest(run: &Run, mine: f64) -> f64 {
    let mut all = 0.0;
    run.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
    all
}
