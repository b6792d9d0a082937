//! The kernels of the erasure codes on one core, against memcpy: rates in GB/s (10^9 bytes of data per second).
//!
//! All sides run in turn, round by round, on the same touched buffers and in one thread; the first round is thrown away.
//! Medians are printed, one JSON object per line, after a line that names the machine:
//!
//! ```text
//! cargo bench --bench kernels | tee benches/results/kernels-NAME.jsonl
//! ```
//!
//! * `memcpy`: one whole buffer to another.
//! * `xor`: `target ^= source`, over a whole buffer.
//! * `share to 2`: one member's whole data, added to two parity members with factors. Each member does this
//!   in an exchange.
//! * `encode k+m`: `k` buffers to `m` parities, in segments that stay in the cache. The rate counts the data.
#![forbid(unsafe_code)]

use bivouac_core::redundancy::code::{Code, Factor, Kernel, add_to_all};
use clap::Parser;
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// Data members of the largest code.
const DATA_MAX: usize = 8;

#[derive(Parser)]
struct Options {
    /// Size of each member, in MiB: all members together exceed the caches.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Size of the part of each member that is encoded before the next ones, in KiB: two parities and a source stay in
    /// the second-level cache.
    #[arg(long, default_value_t = 256)]
    segment_kib: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Something that is timed.
struct Side {
    what: &'static str,
    kernel: &'static str,
    /// Bytes of data that one run processes.
    bytes: usize,
    run: Box<dyn Fn(&mut Buffers)>,
}

struct Buffers {
    segment: usize,
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
}

type MakeFactor = fn(u8) -> Factor;

/// The factors of each data member, one for each parity.
fn factors(data: u32, parity: u32, make: MakeFactor) -> Vec<Vec<Factor>> {
    let code = Code::new(data, parity).expect("a small code");
    (0..data).map(|at| (0..parity).map(|row| make(code.coefficient(row, at))).collect()).collect()
}

fn encode(buffers: &mut Buffers, factors: &[Vec<Factor>]) {
    let len = buffers.data[0].len();
    for start in (0..len).step_by(buffers.segment) {
        let segment = start..len.min(start + buffers.segment);
        for (data, factors) in buffers.data.iter().zip(factors) {
            let parities = buffers.parity.iter_mut().take(factors.len());
            let mut targets: Vec<&mut [u8]> = parities.map(|parity| &mut parity[segment.clone()]).collect();
            add_to_all(factors, &data[segment.clone()], &mut targets);
        }
    }
}

fn sides(bytes: usize) -> Vec<Side> {
    let mut kernels: Vec<(&'static str, MakeFactor)> = vec![(Kernel::Portable.name(), Factor::portable)];
    if Kernel::best() == Kernel::IsaL {
        kernels.insert(0, (Kernel::IsaL.name(), Factor::new));
    } else {
        eprintln!("ISA-L is not installed (Debian: libisal2): the portable kernel alone is measured");
    }
    let mut sides = vec![
        Side {
            what: "memcpy",
            kernel: "libc",
            bytes,
            run: Box::new(|buffers| buffers.parity[0].copy_from_slice(black_box(&buffers.data[0]))),
        },
        Side {
            what: "xor",
            kernel: "portable",
            bytes,
            run: Box::new(|buffers| Factor::new(1).add_to(&buffers.data[0], &mut buffers.parity[0])),
        },
        Side {
            what: "encode 4+1",
            kernel: "portable",
            bytes: 4 * bytes,
            run: Box::new(|buffers| encode(buffers, &factors(4, 1, Factor::new))),
        },
    ];
    for (kernel, make) in kernels {
        // No factor is 1, which would be exclusive or.
        let share = [make(0x8e), make(0x53)];
        sides.push(Side {
            what: "share to 2",
            kernel,
            bytes,
            run: Box::new(move |buffers| {
                let mut targets: Vec<&mut [u8]> = buffers.parity.iter_mut().map(Vec::as_mut_slice).collect();
                add_to_all(&share, &buffers.data[0], &mut targets);
            }),
        });
        for (what, data) in [("encode 4+2", 4), ("encode 8+2", DATA_MAX)] {
            let factors = factors(data as u32, 2, make);
            sides.push(Side {
                what,
                kernel,
                bytes: data * bytes,
                run: Box::new(move |buffers| encode(buffers, &factors)),
            });
        }
    }
    sides
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    format!("{}, {cpus} CPUs, {release}", model.trim_start_matches(['\t', ' ', ':']))
}

fn main() {
    let options = Options::parse();
    let bytes = options.mib << 20;
    // Touched by writing, with bytes that are not all equal.
    let filled = |seed: usize| (0..bytes).map(|at| (at * 31 + seed * 7 + (at >> 9)) as u8).collect::<Vec<u8>>();
    let mut buffers = Buffers {
        segment: options.segment_kib << 10,
        data: (0..DATA_MAX).map(filled).collect(),
        parity: (DATA_MAX..DATA_MAX + 2).map(filled).collect(),
    };
    let sides = sides(bytes);
    let mut times = vec![Vec::new(); sides.len()];
    for round in 0..=options.rounds {
        for (side, times) in sides.iter().zip(&mut times) {
            let start = Instant::now();
            (side.run)(&mut buffers);
            black_box(&mut buffers.parity);
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let command = format!(
        "cargo bench --bench kernels -- --mib {} --segment-kib {} --rounds {}",
        options.mib, options.segment_kib, options.rounds
    );
    println!("{}", json!({"machine": machine(), "command": command}));
    let rates: Vec<f64> =
        sides.iter().zip(times).map(|(side, times)| side.bytes as f64 / median(times) / 1e9).collect();
    let memcpy = rates[0];
    for (side, rate) in sides.iter().zip(rates) {
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        println!(
            "{}",
            json!({
                "figure": side.what, "kernel": side.kernel, "gb_per_s": rounded(rate), "memcpy_gb_per_s": rounded(memcpy),
                "ratio": rounded(rate / memcpy), "mib_per_member": options.mib, "rounds": options.rounds,
            })
        );
    }
}
