//! Arrays whose elements are assigned to ranks by lists of numbers, like those of an unstructured mesh: the proof, blocking, and loads on
//! other lists from node memory.

use super::{Bench, Options, median, value};
use bivouac_core::Level;
use bivouac_core::decomposition::{Decomposition, Ids};
use bivouac_core::session::Session;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of an element.
const SIZE: u64 = 8;

/// The numbers of one rank: runs of `run` numbers, each assigned to a rank by its place and `shift`.
fn numbers(total: u64, run: u64, (rank, ranks): (u64, u64), shift: u64) -> Vec<u64> {
    let whose = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (20 + shift)) % ranks;
    (0..total.div_ceil(run))
        .filter(|at| whose(*at) == rank)
        .flat_map(|at| at * run..((at + 1) * run).min(total))
        .collect()
}

struct Part {
    on: Decomposition,
    data: Vec<f64>,
    /// Seconds that the proof took.
    took: f64,
}

fn part(bench: &Bench, session: &Session, run: u64, ranks: u32, shift: u64) -> Part {
    let total = u64::from(bench.options.from) * (bench.options.mib << 20) / SIZE;
    let own = numbers(total, run, (u64::from(bench.rank()), u64::from(ranks)), shift);
    let data = own.iter().map(|number| value(*number)).collect();
    let start = Instant::now();
    let on = session.decompose(Ids::of(total).own(own)).expect("each number is in one list");
    Part { on, data, took: start.elapsed().as_secs_f64() }
}

pub fn all(bench: &Bench) {
    for run in [64, 4096] {
        blocking(bench, run);
        resized(bench, run);
    }
}

/// `save_on` against `save` of as many bytes: the numbers go with each checkpoint.
fn blocking(bench: &Bench, run: u64) {
    let Options { from, mib, rounds, .. } = bench.options;
    let opened = bench.open(from, true);
    let (mut proofs, mut ours, mut reference) = (Vec::new(), Vec::new(), Vec::new());
    // Ranks without a session take part in what is reduced over all ranks.
    let mut open = opened.map(|(_, session)| {
        let part = part(bench, &session, run, from, 0);
        session.prepare(2 * (mib << 20));
        (session, part)
    });
    proofs.push(bench.slowest(open.as_ref().map_or(0.0, |(_, part)| part.took)));
    let mut version = 0;
    for round in 0..=2 * rounds {
        for is_dealt in [round % 2 == 0, round % 2 == 1] {
            version += 1;
            let mut pending = None;
            let took = bench.timed(|| {
                let Some((session, part)) = &mut open else { return };
                let mut checkpoint = session.begin_checkpoint("mesh", version).expect("begun");
                match is_dealt {
                    true => checkpoint.save_on("p", &part.on, &part.data).expect("saved"),
                    false => checkpoint.save("p", &part.data).expect("saved"),
                };
                pending = Some(checkpoint.capture().expect("captured"));
            });
            if let Some(pending) = pending {
                pending.wait(Level::Process).expect("committed");
            }
            if round > 0 {
                if is_dealt { &mut ours } else { &mut reference }.push(took);
            }
        }
    }
    let bytes = mib << 20;
    bench.print(&format!("numbers in runs of {run}, decompose"), median(proofs), ("one second", 1.0), bytes);
    let against = ("save of as many bytes", median(reference));
    bench.print(&format!("numbers in runs of {run}, blocking"), median(ours), against, bytes);
}

/// Loads from node memory on another number of ranks, with other lists, against memcpy of as many bytes.
fn resized(bench: &Bench, run: u64) {
    let Options { from, to, mib, rounds, .. } = bench.options;
    if let Some((_, session)) = bench.open(from, true) {
        let part = part(bench, &session, run, from, 0);
        let mut checkpoint = session.begin_checkpoint("mesh", 1).expect("begun");
        checkpoint.save_on("first", &part.on, &part.data).expect("saved");
        checkpoint.save_on("second", &part.on, &part.data).expect("saved");
        checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
    }
    let bytes = u64::from(from) * (mib << 20) / u64::from(to);
    let source: Vec<f64> = (0..bytes / SIZE).map(value).collect();
    let mut target = source.clone();
    let mut all: [Vec<f64>; 3] = Default::default();
    for round in 0..=rounds {
        let times = bench.open(to, false).map(|(some, session)| {
            let part = part(bench, &session, run, to, 3);
            let mut data = vec![1.0; part.data.len()];
            let mut times = [0.0; 2];
            let load = |r: &mut bivouac_core::recovery::Attempt| {
                for (name, time) in ["first", "second"].into_iter().zip(&mut times) {
                    mpi::traits::CommunicatorCollectives::barrier(&some);
                    let start = Instant::now();
                    r.load_on(name, &part.on, &mut data).expect("loaded");
                    *time = start.elapsed().as_secs_f64();
                    assert!(round > 0 || data == part.data, "wrong data");
                }
                Ok(())
            };
            session.begin_restore("mesh").run(load).expect("restored").expect("it is there");
            times
        });
        let [first, second] = times.unwrap_or_default().map(|time| bench.slowest(time));
        let reference = bench.timed(|| {
            if bench.rank() < to {
                black_box(&mut target).copy_from_slice(black_box(&source));
            }
        });
        if round > 0 {
            all.iter_mut().zip([first, second, reference]).for_each(|(all, one)| all.push(one));
        }
    }
    let [first, second, reference] = all.map(median);
    let against = "memcpy into touched private memory";
    bench.print(&format!("numbers in runs of {run}, memory, first region"), first, (against, reference), bytes);
    bench.print(&format!("numbers in runs of {run}, memory, next region"), second, (against, reference), bytes);
}
