//! The block digest: does it miss no more than chance would, and is it as fast as memory?
//!
//! ```text
//! cargo bench --bench digest -- battery | tee benches/results/digest-battery.jsonl        (all cores, an hour on two)
//! cargo bench --bench digest -- counters | tee benches/results/digest-counters.jsonl       (a minute on two cores)
//! cargo bench --bench digest -- speed --threads 16 | tee benches/results/digest-NAME.jsonl (a quiet machine)
//! ```
//!
//! * `battery`: sets of changed 64 KiB blocks (`digest/families.rs` has the changes, `digest/states.rs` the blocks); all
//!   pairs of each set are compared. The exit status is 1 if any half of a digest is equal for different blocks, or if
//!   truncated digests or flipped bits are far from chance. `tests/digest.rs` runs a slice of this.
//! * `counters`: blocks of 20 versions of graphlet counters, for five graphs: consecutive versions, and all pairs.
//! * `speed`: the capture loop of `base::digest` and two other candidates, each against memcpy in the same run, on one thread
//!   and on many at once. `benches/gpu/digest.cu` measures the same candidates on a GPU.
#![deny(unsafe_code)]

#[path = "digest/battery.rs"]
mod battery;
#[path = "digest/counters.rs"]
mod counters;
#[path = "digest/families.rs"]
mod families;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/graph.rs"]
mod graph;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/inputs.rs"]
mod inputs;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/orbits.rs"]
mod orbits;
#[allow(dead_code)]
#[path = "../mpi-examples/heat2d/plate.rs"]
mod plate;
#[path = "digest/speed.rs"]
mod speed;
#[path = "digest/states.rs"]
mod states;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/stencil.rs"]
mod stencil;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/subgraphs.rs"]
mod subgraphs;

use clap::{Parser, Subcommand};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum What {
    /// Structured changes of structured blocks against chance.
    Battery {
        /// Blocks drawn for each state and kind of change.
        #[arg(long, default_value_t = 1 << 17)]
        draws: usize,
        /// Pairs of blocks of small whole numbers for each kind of change.
        #[arg(long, default_value_t = 1_000_000_000)]
        pairs: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Versions of counters, as de-duplication compares them.
    Counters {
        /// Vertices of each graph.
        #[arg(long, default_value_t = 4_000_000)]
        vertices: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The capture loop and other candidates against memcpy.
    Speed {
        /// Number of threads that run at once.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Memory of each thread, in MiB.
        #[arg(long, default_value_t = 128)]
        mib: usize,
        /// Rounds that count.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
    },
}

fn main() {
    println!("{}", json!({"machine": machine(), "command": std::env::args().skip(1).collect::<Vec<_>>().join(" ")}));
    let good = match Options::parse().what {
        What::Battery { draws, pairs, seed } => run_battery(draws, pairs, seed),
        What::Counters { vertices, seed } => run_counters(vertices, seed),
        What::Speed { threads, mib, rounds } => {
            speed::run(threads, mib, rounds);
            true
        }
    };
    std::process::exit(i32::from(!good));
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1)).unwrap_or("unknown");
    format!("{model}, {} CPUs", cores())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// Runs jobs on all cores, each once.
fn on_all_cores(jobs: usize, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs {
                        break;
                    }
                    run(job);
                }
            });
        }
    });
}

fn run_battery(draws: usize, pairs: u64, seed: u64) -> bool {
    let states = states::all();
    let total = Mutex::new((0u64, 0u64, 0f64, 0f64));
    on_all_cores(states.len(), |index| {
        let state = &states[index];
        let mut lines = Vec::new();
        let mut sum = (0, 0, 0f64);
        for (name, found) in battery::families(state, draws, seed + index as u64) {
            lines.push(json!({"state": state.name, "change": name, "blocks": found.blocks, "pairs": found.pairs(),
                "equal_halves": found.equal_halves, "deviations": round(found.deviations), "good": found.is_good()}));
            sum = (sum.0 + found.pairs(), sum.1 + found.equal_halves, sum.2.max(found.deviations));
        }
        let avalanche = battery::avalanche(state, draws as u64, seed);
        lines.push(json!({"state": state.name, "change": "avalanche", "flips": draws, "deviations": round(avalanche)}));
        lines.iter().for_each(|line| println!("{line}"));
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        *total = (total.0 + sum.0, total.1 + sum.1, total.2.max(sum.2), total.3.max(avalanche));
    });
    let mut good = true;
    for (name, changes) in [("+1 -1 -1 +1", &[1, -1, -1, 1][..]), ("+1 -2 +1", &[1, -2, 1]), ("+1 -1", &[1, -1])] {
        let equal = Mutex::new(0);
        let parts = 64;
        on_all_cores(parts, |part| {
            let found = battery::small_number_pairs(changes, pairs / parts as u64, seed + part as u64);
            *equal.lock().unwrap_or_else(PoisonError::into_inner) += found;
        });
        let equal = *equal.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{}", json!({"pairs_of_small_numbers": name, "pairs": pairs, "equal_halves": equal}));
        good &= equal == 0;
    }
    for (name, differs) in battery::consecutive(&states) {
        println!("{}", json!({"state": name, "change": "one step of the program", "seen": differs}));
        good &= differs;
    }
    let (compared, equal, deviations, avalanche) = *total.lock().unwrap_or_else(PoisonError::into_inner);
    good &= equal == 0 && deviations <= battery::DEVIATIONS_MAX && avalanche <= battery::DEVIATIONS_MAX;
    println!(
        "{}",
        json!({"all_pairs": compared, "equal_halves": equal, "deviations_max": round(deviations),
        "avalanche_deviations_max": round(avalanche), "good": good})
    );
    good
}

fn run_counters(vertices: usize, seed: u64) -> bool {
    let runs: Vec<_> = counters::INPUTS.into_iter().flat_map(|kind| [(kind, 4096), (kind, 65536)]).collect();
    let good = Mutex::new(true);
    on_all_cores(runs.len(), |index| {
        let (kind, block) = runs[index];
        let counters::Counted { found, changed, unseen } = counters::counted(kind, vertices, block, seed);
        let is_good = found.is_good() && unseen == 0;
        println!(
            "{}",
            json!({"input": format!("{kind:?}"), "vertices": vertices, "block": block, "blocks": found.blocks, "pairs": found.pairs(),
            "equal_halves": found.equal_halves, "deviations": round(found.deviations), "consecutive_changed": changed,
            "consecutive_unseen": unseen, "good": is_good})
        );
        *good.lock().unwrap_or_else(PoisonError::into_inner) &= is_good;
    });
    good.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
