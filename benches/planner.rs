//! What `bivouac plan` computes, and how long it takes.
//!
//! Prints one JSON object per line, after a line that names the machine:
//!
//! ```text
//! cargo bench --bench planner | tee benches/results/planner-NAME.jsonl
//! ```
//!
//! * `look`: the time of what a session with "auto" asks its tuner at a look, on the root: when there is nothing to choose, and when there
//!   is something (at every fifth checkpoint).
//! * `closed form`: the best plan for each scheme on 100,000 nodes, as a median over this many rounds.
//! * `plays`: jobs of 30 days on 100,000 nodes of 32 GPUs, whose parts fail as in table 1 of ICS'19 (some 10,000 failures per job), on
//!   threads that take one job after the other; and the peak memory of the process by then.
//!
//! The test that compares the plays with a step-by-step program in Python says how much faster the plays are
//! (`src/core/planner/play/reference.rs`).
#![forbid(unsafe_code)]

use bivouac_core::base::threads::in_threads;
use bivouac_core::config::Choice;
use bivouac_core::config::Scheme;
use bivouac_core::planner::play::{Played, Setting, Summary, play, seed_of};
use bivouac_core::planner::{Failures, Machine, presets, protection};
use bivouac_core::policy::intervals::{Best, best};
use bivouac_core::policy::tuning::{Expected, Scope, Tuner};
use clap::Parser;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Parser)]
struct Options {
    /// Number of jobs that are played.
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Number of threads that play.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rounds of the closed form.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// 100,000 nodes of 32 GPUs and two processors, with the paper's failure rates for each part. One failed node in ten does not come back.
fn machine(scheme: Scheme) -> Machine {
    let mut machine = presets::named("node-8gpu").expect("known");
    machine.nodes = 100_000;
    machine.gpus = 32;
    machine.scheme = scheme;
    machine.failures = Failures {
        process: 32.0 * 1.14e-9 + 2.0 * 3.2e-10,
        reboot: 0.9 * 1.44e-10,
        loss: 0.1 * 1.44e-10,
        system: machine.failures.system,
    };
    // Such a machine would have a global store of this speed: half an hour for the whole state.
    let global = machine.global.as_mut().expect("it has one");
    (global.write, global.read) = (machine.state * 1e5 / 1800.0, machine.state * 1e5 / 1800.0);
    machine
}

fn plan(machine: &Machine) -> Best {
    let costs: Vec<_> = machine.levels().into_iter().map(|(_, costs)| costs).collect();
    best(&costs, machine.always(), machine.conduct()).expect("a pattern")
}

fn main() {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    println!("{}", json!({ "machine": std::env::consts::ARCH, "cores": cores }));
    looks(options.rounds);
    closed_form(options.rounds);
    for (what, shape, scheme) in [
        ("exponential, no scheme", 1.0, Scheme::None),
        ("exponential", 1.0, Scheme::Xor { members: 8 }),
        ("Weibull 0.7", 0.7, Scheme::Xor { members: 8 }),
        ("Weibull 0.7", 0.7, Scheme::Partner { copies: 1 }),
    ] {
        let mut machine = machine(scheme);
        machine.site.shape = shape;
        plays(what, &machine, &options);
    }
}

/// Four levels, all of which the tuner chooses.
fn looks(rounds: usize) {
    use bivouac_core::Level;
    let levels = Level::VOTED.map(|level| (level, Choice::Auto)).to_vec();
    let expected = Expected { rates: [1e-4, 1e-5, 1e-6, 1e-6], relaunch: 30.0 };
    let mut tuner = Tuner::new(Scope { segment: Some((1.0, 3600.0)), levels, expected });
    let (mut quiet, mut choosing) = (Vec::new(), Vec::new());
    for round in 0..rounds * 5 + 2 {
        // Costs jump, so that there is something to choose.
        let times = if round % 10 < 5 { 1.0 } else { 20.0 };
        tuner.on_checkpoint(Some(100.0), 0.5 * times);
        for (level, latency) in Level::VOTED.iter().zip([0.0, 5.0, 20.0, 300.0]) {
            tuner.on_committed(*level, latency * times);
        }
        let start = Instant::now();
        let change = std::hint::black_box((tuner.decide(&[]), tuner.pause())).0;
        let took = start.elapsed().as_secs_f64() * 1e6;
        if change.is_some() { choosing.push(took) } else { quiet.push(took) }
    }
    for (what, mut times) in [("nothing to choose", quiet), ("a choice", choosing)] {
        times.sort_by(f64::total_cmp);
        let (count, median, most) = (times.len(), times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{}",
            json!({ "figure": "look", "what": what, "count": count, "us": round(median), "most_us": round(most), "target": "<= 100 us" })
        );
    }
}

fn closed_form(rounds: usize) {
    let once = || {
        let start = Instant::now();
        let plans: Vec<Best> = protection::SCHEMES.iter().map(|scheme| plan(&machine(*scheme))).collect();
        assert!(plans.iter().all(|plan| plan.efficiency > 0.0));
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut times: Vec<f64> = (0..rounds).map(|_| once()).collect();
    times.sort_by(f64::total_cmp);
    let (median, schemes) = (times[rounds / 2], protection::SCHEMES.len());
    println!(
        "{}",
        json!({ "figure": "closed form", "nodes": 100_000, "schemes": schemes, "ms": round(median), "target": "<= 50 ms" })
    );
}

fn plays(what: &str, machine: &Machine, options: &Options) {
    let best = plan(machine);
    let start = Instant::now();
    let setting = Setting::of_machine(machine, &machine.levels(), &best.pattern, 30.0 * 86_400.0);
    let prepared = start.elapsed().as_secs_f64();
    let (next, all) = (AtomicU64::new(0), Mutex::new(Vec::<(u64, Played)>::new()));
    in_threads(options.threads, "bvk-play", || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|run| *run < options.runs);
        while let Some(run) = take() {
            let played = play(&setting, seed_of(1, run));
            all.lock().expect("no thread panics").push((run, played));
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut all = all.into_inner().expect("no thread panics");
    all.sort_by_key(|(run, _)| *run);
    let plays: Vec<Played> = all.into_iter().map(|(_, played)| played).collect();
    let summary = Summary::of(&plays);
    let failures = summary.failures.iter().sum::<f64>();
    let line = json!({
        "figure": "plays", "failures": what, "scheme": machine.scheme.to_string(), "nodes": machine.nodes, "days": 30, "runs": options.runs,
        "threads": options.threads, "failures_per_run": failures.round(), "efficiency": (summary.efficiency.mean * 1e5).round() / 1e5,
        "efficiency_closed_form": (best.efficiency * 1e5).round() / 1e5, "prepared_s": round(prepared), "seconds": round(seconds),
        "us_per_failure_and_thread": round(seconds * 1e6 * options.threads as f64 / (failures * options.runs as f64)),
        "peak_mib": peak_mib(), "target": "<= 5 s and 64 MiB for 1000 runs in 2 threads",
    });
    println!("{line}");
}

fn round(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// The peak memory of this process.
fn peak_mib() -> Value {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    json!(kib.map(|kib| (kib / 1024.0 * 10.0).round() / 10.0))
}
