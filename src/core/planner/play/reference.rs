//! Compares the plays with a program that simulates step by step and shares no code with them: `tests/programs/plan_reference.py`.

use super::*;
use crate::base::rng::Rng;
use crate::config::Scheme;
use crate::planner::machine::{Burst, Capture, Domain, Failures, Site, Store};
use crate::policy::intervals::{Volume, best};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

const DAY: f64 = 86_400.0;

fn between(rng: &mut Rng, from: f64, to: f64) -> f64 {
    from * (to / from).powf(hazard::share(rng))
}

/// Returns a machine; over the numbers, every feature of a machine occurs.
fn machine(number: u64, rng: &mut Rng) -> Machine {
    let schemes = [
        Scheme::None,
        Scheme::Partner { copies: 1 },
        Scheme::Xor { members: 8 },
        Scheme::Rs { data: 4, parity: 2 },
        Scheme::Partner { copies: 2 },
        Scheme::Xor { members: 4 },
    ];
    let (nodes, state) = (64, 100e9);
    let each = between(rng, 1.0, 6.0) * 3600.0 * nodes as f64;
    let domains = [
        Domain { name: "switch".into(), nodes: 4, rate: between(rng, 0.02, 0.1) / each, returns: 0.5 },
        Domain { name: "rack".into(), nodes: 8, rate: 0.02 / each, returns: 0.2 },
    ];
    let scheme = schemes[number as usize % 6];
    // If jobs stand still for all writes, they are played by the rules of the chain, which have no time limits of jobs and no spares.
    let is_behind = number % 8 != 7;
    let versions = if number.is_multiple_of(4) { 2.4 } else { 3.5 };
    let site = Site {
        shape: if number.is_multiple_of(2) { 1.0 } else { 0.7 },
        burst: (number % 3 == 1).then_some(Burst { chance: 0.3, delay: 200.0 }),
        // Sets of eight can be kept apart in domains of four nodes, but not in domains of eight.
        domains: if number % 4 == 1 { domains[..1].to_vec() } else { Vec::new() },
        others: if number.is_multiple_of(5) { 0.4 } else { 0.0 },
        spares: (number % 5 == 2 && is_behind).then_some(Spares { count: 1, repair: between(rng, 0.2, 1.0) * DAY }),
        limit: (number % 7 == 3 && is_behind).then_some(Limit { time: DAY, queue: 3600.0 }),
    };
    Machine {
        name: number.to_string(),
        nodes,
        gpus: 1 + number % 2,
        state,
        links: vec![(1, state / between(rng, 3.0, 20.0))],
        at_once: u64::MAX,
        capture: match number % 3 {
            0 => Capture::Blocking,
            1 => Capture::Cached { rate: state / 0.5 },
            _ => Capture::Marked { fixed: 0.2, stalls: 0.1 },
        },
        memory: Some(versions * state * (1.0 + crate::planner::protection::memory_share(scheme))),
        network: state / between(rng, 5.0, 40.0),
        scheme,
        local: (number % 6 != 4).then(|| Store { write: state / between(rng, 20.0, 80.0), read: state / 30.0 }),
        global: Some(Store {
            write: state * nodes as f64 / between(rng, 100.0, 500.0),
            read: state * nodes as f64 / 200.0,
        }),
        volume: Volume::WHOLE,
        is_behind,
        slowdown: 0.03,
        relaunch: 60.0,
        failures: Failures { process: 0.6 / each, reboot: 0.25 / each, loss: 0.15 / each, system: 0.02 / each },
        site,
    }
}

/// Describes the machine and the pattern in the form that the other program reads.
fn told(machine: &Machine, pattern: &Pattern, seconds: f64) -> Value {
    let names: Vec<Level> = machine.levels().iter().map(|(name, _)| *name).collect();
    let levels = pattern.levels.iter().zip(pattern.every());
    let store = |store: Option<Store>| store.map(|store| json!({"write": store.write, "read": store.read}));
    let Failures { process, reboot, loss, system } = machine.failures;
    let scheme = match machine.scheme {
        Scheme::None => json!({"kind": "none"}),
        Scheme::Partner { copies } => json!({"kind": "partner", "copies": copies}),
        Scheme::Xor { members } => json!({"kind": "xor", "members": members}),
        Scheme::Rs { data, parity } => json!({"kind": "rs", "data": data, "parity": parity}),
    };
    let site = &machine.site;
    let domain = |domain: &Domain| json!({"nodes": domain.nodes, "rate": domain.rate, "returns": domain.returns});
    json!({
        "nodes": machine.nodes, "gpus": machine.gpus, "state": machine.state, "capture_rate": machine.capture_rate(),
        "capture": match machine.capture {
            Capture::Blocking => json!({"how": "blocking"}),
            Capture::Cached { rate } => json!({"how": "cached", "rate": rate}),
            Capture::Marked { fixed, stalls } => json!({"how": "marked", "fixed": fixed, "stalls": stalls}),
        },
        "memory": machine.memory, "network": machine.network, "scheme": scheme, "local": store(machine.local),
        "global": store(machine.global), "others": site.others, "behind": machine.is_behind, "slowdown": machine.slowdown,
        "relaunch": machine.relaunch, "process": process, "reboot": reboot, "loss": loss, "system": system,
        "shape": site.shape, "burst": site.burst.map(|burst| json!({"chance": burst.chance, "delay": burst.delay})),
        "domains": site.domains.iter().map(domain).collect::<Vec<_>>(),
        "spares": site.spares.map(|spares| json!({"count": spares.count, "repair": spares.repair})),
        "limit": site.limit.map(|limit| json!({"time": limit.time, "queue": limit.queue})),
        "segment": pattern.segment,
        "levels": levels.map(|((level, _), every)| json!([names[*level].name(), every])).collect::<Vec<_>>(),
        "seconds": seconds,
    })
}

/// What the other program reports for each setting.
fn reference(python: &str, runs: u64, settings: &[Value]) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs/plan_reference.py");
    let mut program =
        Command::new(python).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let document = json!({"runs": runs, "seed": 1, "settings": settings}).to_string();
    program.stdin.take().expect("a pipe").write_all(document.as_bytes()).expect("written");
    let output = program.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the reference failed");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// All 40 settings run with `BIVOUAC_TEST_DRAWS=40 cargo test --release -p bivouac-core --lib reference -- --nocapture` (three minutes),
/// which also prints how much faster the plays are.
#[test]
fn plays_are_what_a_program_says_that_goes_step_by_step() {
    let works =
        |python: &&str| Command::new(python).arg("--version").output().is_ok_and(|output| output.status.success());
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(works) else {
        return println!("SKIPPED: the plays against a program in Python (no python3 here)");
    };
    let draws: Option<u64> = std::env::var("BIVOUAC_TEST_DRAWS").ok().and_then(|text| text.parse().ok());
    // The settings have blocking, cached and marked captures; no redundancy, partners and xor; bursts, domains, spares and time limits.
    let (numbers, theirs, ours): (Vec<u64>, u64, u64) = match draws {
        Some(_) => ((0..40).collect(), 100, 1000),
        None => (vec![7, 10, 13, 17, 22], 10, 200),
    };
    let mut rng = Rng::new(4);
    let all: Vec<Machine> = (0..40).map(|number| machine(number, &mut rng)).collect();
    let cases: Vec<(u64, Setting, Value, f64)> = { numbers.into_iter() }
        .map(|number| {
            let machine = &all[number as usize];
            let costs: Vec<LevelCosts> = machine.levels().into_iter().map(|(_, costs)| costs).collect();
            let found = best(&costs, machine.always(), machine.conduct()).expect("a pattern");
            let setting = Setting::of_machine(machine, &machine.levels(), &found.pattern, 10.0 * DAY);
            (number, setting, told(machine, &found.pattern, 10.0 * DAY), found.efficiency)
        })
        .collect();
    let told: Vec<Value> = cases.iter().map(|(_, _, told, _)| told.clone()).collect();
    let answers = reference(python, theirs, &told);
    let (mut beyond, mut faster) = (Vec::new(), Vec::new());
    for ((number, setting, _, model), answer) in cases.iter().zip(&answers) {
        let began = Instant::now();
        let plays: Vec<Played> = (0..ours).map(|run| play(setting, seed_of(*number, run))).collect();
        let seconds = began.elapsed().as_secs_f64();
        let summary = Summary::of(&plays);
        let get = |key: &str| answer[key].as_f64().expect("a number");
        let error = (summary.efficiency.error.powi(2) + get("error").powi(2)).sqrt();
        let away = (summary.efficiency.mean - get("efficiency")) / error;
        let times = get("seconds") / theirs as f64 / (seconds / ours as f64);
        let failures = summary.failures.iter().sum::<f64>();
        println!(
            "{number}: {:.4} here, {:.4} there: {away:+.1} standard errors; model {model:.4}; failures {failures:.1}, {:.1}; exposed {:.3}, {:.3}; {times:.0} times as fast",
            summary.efficiency.mean,
            get("efficiency"),
            get("failures"),
            summary.exposed,
            get("exposed"),
        );
        for play in &plays {
            let lost = play.checkpoints + play.waiting + play.rework.iter().chain(&play.recovering).sum::<f64>();
            assert!(
                (play.work + lost - play.time).abs() < 1e-6 * play.time,
                "{number}: time without a cause: {play:?}"
            );
        }
        faster.push(times);
        beyond.extend((away.abs() > 3.0).then_some((*number, away)));
    }
    faster.sort_by(f64::total_cmp);
    println!("beyond three standard errors: {beyond:?}; {:.0} times as fast in the median", faster[faster.len() / 2]);
    assert!(beyond.is_empty(), "{beyond:?}");
}
