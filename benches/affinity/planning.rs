//! What it costs to map a record to another machine, and how large a record is in a checkpoint. Involves neither MPI nor a session.
//!
//! * `mapping`: a record with 1024 CPUs and 64 nodes, of one rank with a pinned thread on each CPU, mapped to the same machine, to the
//!   same machine with other numbers, to half of its CPUs, to a machine with larger nodes, and to a machine with a single node. The figure
//!   is the median time of a decision.
//! * `record`: the bytes of a record, and the median times to encode and decode it. `piecewise` has 128 CPUs, 64 threads and four regions
//!   of 1 GiB in four pieces each; `interleaved` has a region of 1 GiB whose pages alternate between four nodes one by one.
#![forbid(unsafe_code)]

use bivouac_core::affinity::machine::{Cpu, Machine, Node};
use bivouac_core::affinity::mapping::{Mapping, Now};
use bivouac_core::affinity::pages::{PageMap, Run};
use bivouac_core::affinity::record::{Record, RegionPlace, Role, ThreadPlace};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// Nodes with this many CPUs each, two to a core, eight to a cache, and eight nodes to a package; numbers ascend or descend.
fn machine(nodes: u32, cpus: u32, is_reversed: bool) -> Machine {
    let last = nodes * cpus - 1;
    let number = |at: u32| if is_reversed { last - at } else { at };
    let caches = cpus.div_ceil(8);
    let cpu = |at: u32| Cpu {
        number: number(at),
        core: at / 2,
        cache: at / cpus * caches + at % cpus / 8,
        package: at / cpus / 8,
        node: at / cpus,
    };
    let distance = |from: u32, to: u32| if from == to { 10 } else { 12 + u16::from(from / 8 != to / 8) * 20 };
    Machine {
        cpus: (0..=last).map(cpu).collect(),
        nodes: (0..nodes).map(|number| Node { number, bytes: 1 << 34 }).collect(),
        distances: (0..nodes).flat_map(|from| (0..nodes).map(move |to| distance(from, to))).collect(),
        devices: Vec::new(),
    }
}

fn region(name: &str, pages: u64, nodes: impl Iterator<Item = u32>) -> (String, RegionPlace) {
    let runs = nodes.map(|node| Run { pages, node: Some(node) });
    (name.to_owned(), RegionPlace::Host { pages: PageMap::from_runs(0, runs), age_ms: 0, is_whole: true })
}

/// A rank with this many threads, each on its own CPU.
fn record(machine: &Machine, threads: u32) -> Record {
    let thread = |order: u32| ThreadPlace {
        role: if order == 0 { Role::Main } else { Role::Other },
        name: "heat2d".into(),
        order,
        cpus: [order as usize].into(),
    };
    let nodes = 0..machine.nodes.len() as u32;
    Record {
        machine: machine.clone(),
        given: machine.all_cpus(),
        neighbours: vec![0],
        threads: (0..threads).map(thread).collect(),
        regions: vec![region("u", 512, nodes)],
        ..Record::default()
    }
}

/// Median time of 51 calls, in microseconds.
pub fn micros(mut call: impl FnMut()) -> f64 {
    let mut once = || {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..51).map(|_| once()).collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2] * 10.0).round() / 10.0
}

/// Prints the figures `mapping`.
pub fn mappings() {
    let old = machine(64, 16, false);
    let record = record(&old, 1024);
    let half = machine(64, 16, false).cpus.iter().step_by(2).map(|cpu| cpu.number as usize).collect();
    let (larger, one, reversed) = (machine(8, 128, false), machine(1, 1024, false), machine(64, 16, true));
    let cases = [
        ("same", &old, old.all_cpus()),
        ("renumbered", &reversed, reversed.all_cpus()),
        ("half", &old, half),
        ("larger nodes", &larger, larger.all_cpus()),
        ("one node", &one, one.all_cpus()),
    ];
    for (case, machine, allowed) in &cases {
        let now = Now {
            machine,
            whole: machine,
            allowed,
            neighbours: &[0],
            has_strangers: false,
            rank: 0,
            gpus: &[],
            cpus: None,
        };
        let us = micros(|| _ = black_box(Mapping::new(black_box(&record), &now)));
        let losses = Mapping::new(&record, &now).losses().len();
        println!("{}", json!({"figure": "mapping", "to": case, "cpus": 1024, "nodes": 64, "us": us, "losses": losses}));
    }
}

/// Prints the figures `record`.
pub fn records() {
    let pages = (1u64 << 30) / 4096;
    let mut piecewise = record(&machine(2, 64, false), 64);
    piecewise.regions = ["u", "v", "p", "rho"].map(|name| region(name, pages / 4, [0, 1, 0, 1].into_iter())).into();
    let mut interleaved = piecewise.clone();
    interleaved.regions = vec![region("u", 1, (0..pages as u32).map(|page| page % 4))];
    for (case, record) in [("piecewise", piecewise), ("interleaved", interleaved)] {
        let bytes = record.encode().expect("it encodes");
        let encode_us = micros(|| _ = black_box(black_box(&record).encode()));
        let decode_us = micros(|| _ = black_box(Record::decode(black_box(&bytes))));
        let line = json!({"figure": "record", "of": case, "bytes": bytes.len(), "encode_us": encode_us, "decode_us": decode_us});
        println!("{line}");
    }
}
