//! Candidates for the block digest on a CPU, in the capture loop and alone, against memcpy.
//!
//! * `nh`: the method of `base::digest`; each word has its own key from a table, and each pair a product of 128 bits.
//! * `row`: no table; a SplitMix64 output for each 64-byte line, times four constants, gives the line's eight keys. These keys
//!   are products of a row and a column, for which nothing is proven.
//! * `mixed`: every word and its position pass through two products and three shifts, and the results are added up.
//!
//! `row` and `mixed` are plain loops, as `base::digest` has one for `nh`, without stores past the cache.

use bivouac_core::base::digest::{copy_digest, copy_streaming, digest_bytes, store_fence};
use serde_json::json;
use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

const BLOCK: usize = 256 << 10;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn words(line: &[u8]) -> [u64; 8] {
    std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| line[8 * at + byte])))
}

fn row(block: &[u8]) -> [u64; 2] {
    const COLUMNS: [u64; 4] =
        [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];
    let (mut low, mut high, mut state) = (0u64, 0u64, STEP);
    for line in block.chunks_exact(64) {
        let (words, row) = (words(line), mix(state));
        for (column, constant) in COLUMNS.iter().enumerate() {
            let keys = u128::from(row) * u128::from(*constant);
            let a = words[2 * column].wrapping_add(keys as u64);
            let b = words[2 * column + 1].wrapping_add((keys >> 64) as u64);
            let product = u128::from(a) * u128::from(b);
            low = low.wrapping_add(product as u64);
            high = high.wrapping_add((product >> 64) as u64);
        }
        state = state.wrapping_add(STEP);
    }
    [low, high]
}

fn mixed(block: &[u8]) -> [u64; 2] {
    let (mut low, mut high, mut state) = (0u64, 0u64, STEP);
    for line in block.chunks_exact(64) {
        for word in words(line) {
            let mut x = word ^ state;
            for _ in 0..2 {
                x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
            }
            x ^= x >> 32;
            low = low.wrapping_add(x);
            high = high.wrapping_add(x.rotate_left(23).wrapping_mul(STEP));
            state = state.wrapping_add(STEP);
        }
    }
    [low, high]
}

type Run = fn(&[u8], &mut [u8]);

/// What is timed, in turn. All others are compared with the first.
const SIDES: [(&str, Run); 6] = [
    ("memcpy", |from, to| to.copy_from_slice(from)),
    ("copy past the cache", copy_streaming),
    ("copy with digest, nh", |from, to| {
        black_box(copy_digest(from, to));
    }),
    ("digest alone, nh", |from, _| {
        black_box(digest_bytes(from));
    }),
    ("digest alone, row", |from, _| {
        black_box(row(from));
    }),
    ("digest alone, mixed", |from, _| {
        black_box(mixed(from));
    }),
];

/// Prints the medians of `rounds` rounds on `threads` threads at once, with `mib` MiB each.
pub fn run(threads: usize, mib: usize, rounds: usize) {
    let (barrier, times) = (Barrier::new(threads), Mutex::new(vec![vec![0f64; rounds]; SIDES.len()]));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (barrier, times) = (&barrier, &times);
            scope.spawn(move || one_thread(thread, mib << 20, rounds, barrier, times));
        }
    });
    let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut base = times[0].clone();
    for ((name, _), times) in SIDES.iter().zip(&mut times) {
        let mut ratios: Vec<f64> = times.iter().zip(&mut base).map(|(time, base)| *time / *base).collect();
        let (time, ratio) = (median(times), median(&mut ratios));
        let rate = (mib << 20) as f64 / time / 1e9;
        println!(
            "{}",
            json!({"figure": name, "threads": threads, "mib_per_thread": mib, "block_kib": BLOCK >> 10, "rounds": rounds,
            "gb_per_s_per_thread": (rate * 100.0).round() / 100.0, "against": "memcpy", "ratio": (ratio * 1000.0).round() / 1000.0})
        );
    }
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Times are those of the slowest thread of each round.
fn one_thread(thread: usize, bytes: usize, rounds: usize, barrier: &Barrier, times: &Mutex<Vec<Vec<f64>>>) {
    let from: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ thread as u8).collect();
    let mut room = vec![1u8; bytes + 4096];
    let start = room.as_ptr().align_offset(4096);
    let to = &mut room[start..start + bytes];
    for round in 0..rounds + 1 {
        for (index, (_, side)) in SIDES.iter().enumerate() {
            barrier.wait();
            let began = Instant::now();
            from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).for_each(|(from, to)| side(black_box(from), to));
            store_fence();
            let seconds = began.elapsed().as_secs_f64();
            // The first round is thrown away.
            if round > 0 {
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                let slot = &mut times[index][round - 1];
                *slot = slot.max(seconds);
            }
        }
    }
}
