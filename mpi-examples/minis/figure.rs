//! `--measure`: what a checkpoint adds to the time of some steps, copied and marked.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::checkpoints::Checkpoints;
use super::options::{Options, Way};
use mpi::collective::SystemOperation;
use mpi::traits::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The first checkpoints of a way fill slots, and show the order in which the program writes.
const FIRST: usize = 2;
/// A pause after each round, because programs take checkpoints less often.
const PAUSE: Duration = Duration::from_millis(30);

/// Prints one line on rank 0 for each way. Collective.
///
/// # Errors
/// Any error that the device or Bivouac reports.
pub fn measure(
    options: &Options,
    rounds: usize,
    app: &mut dyn App,
    run: &Run,
    checkpoints: &mut Checkpoints,
) -> Result<()> {
    let (mut step, mut version, mut copied) = (0, 0, None);
    for way in &options.ways {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let mut stats = checkpoints.stats();
        for round in 0..rounds + FIRST {
            if round == FIRST {
                stats = checkpoints.stats();
            }
            for is_taken in [false, true] {
                run.machine.stream().finish()?;
                run.world.barrier();
                let begun = Instant::now();
                if is_taken {
                    version += 1;
                    take(*way, version, app, run, checkpoints)?;
                }
                for _ in 0..options.every {
                    app.step(step, run)?;
                    step += 1;
                }
                run.machine.stream().finish()?;
                let took = slowest(run, begun.elapsed().as_secs_f64());
                checkpoints.commit()?;
                // The older version's slot is given back after that; the next mark would find a different one, about which nothing is
                // known.
                std::thread::sleep(PAUSE);
                if round >= FIRST {
                    if is_taken { with.push(took) } else { without.push(took) }
                }
            }
        }
        let now = checkpoints.stats();
        let [none, time] = [without, with].map(median);
        if *way == Way::Copy {
            copied = Some(time - none);
        }
        let each = |now: u64, then: u64| (now - then) / rounds as u64;
        let bytes: u64 = app.fields().iter().map(|(_, field)| field.bytes()).sum();
        let line: Value = json!({
            "figure": "minis", "app": format!("{:?}", options.app).to_lowercase(), "way": format!("{way:?}").to_lowercase(), "ranks": run.world.size(),
            "bytes": bytes, "block": checkpoints.block, "buffer": checkpoints.buffer, "link_mib_s": options.link, "every": options.every, "none": none,
            "time": time, "added": time - none, "of_copy": copied.map(|copied| (time - none) / copied), "marks": now.marks - stats.marks,
            "equal": each(now.equal_bytes, stats.equal_bytes), "doubled": each(now.doubled_bytes, stats.doubled_bytes),
            "urgent": each(now.urgent_bytes, stats.urgent_bytes),
        });
        if run.world.rank() == 0 {
            println!("{line}");
        }
    }
    Ok(())
}

/// Takes a checkpoint in the given way. Collective.
fn take(way: Way, version: u64, app: &mut dyn App, run: &Run, checkpoints: &mut Checkpoints) -> Result<()> {
    checkpoints.take(app, run.machine, version, way)?;
    match way {
        Way::Wait => checkpoints.commit()?,
        Way::Blind => run.blind(),
        Way::Copy | Way::Full | Way::Mark | Way::Nothing => {}
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The longest time of all ranks. Collective.
fn slowest(run: &Run, mine: f64) -> f64 {
    let mut all = 0.0;
    run.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
    all
}
