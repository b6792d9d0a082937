//! How programs, memories and disks change a block, one function for each kind of change.
//!
//! Each function draws one change and makes it in place. Structured changes are the test of a digest whose sums commute: random
//! changes never cancel.

use super::states::{BLOCK, State};
use bivouac_core::base::rng::Rng;

/// Changes `block`, a copy of the state's `now`.
pub type Change = fn(&State, &mut [u8], &mut Rng);

/// All kinds of change, by name.
pub const FAMILIES: [(&str, Change); 17] = [
    ("equal values at the corners of a rectangle", rectangle),
    ("equal values at the corners of a box", cuboid),
    ("equal values at regular distances", regular),
    ("+1 -1 -1 +1 at multiples of 64 bytes", |s, b, r| add_at(s, b, r, &[1, -1, -1, 1], 64)),
    ("+1 -2 +1 at multiples of 64 bytes", |s, b, r| add_at(s, b, r, &[1, -2, 1], 64)),
    ("+1 -1 anywhere", |s, b, r| add_at(s, b, r, &[1, -1], 1)),
    ("+1 -1 -1 +1 on a rectangle", add_rectangle),
    ("two swaps of elements", |s, b, r| swap_units(b, r, s.element, 2)),
    ("a swap of words at multiples of 64 bytes", swap_words),
    ("swaps of lines", |_, b, r| swap_units(b, r, 64, 1)),
    ("swaps of pages", |_, b, r| swap_units(b, r, 4096, 2)),
    ("a shifted range", shift),
    ("signs", |s, b, r| flip_at(s, b, r, 63)),
    ("exponents", |s, b, r| flip_at(s, b, r, 52)),
    ("last places", last_places),
    ("one or two bits", bits),
    ("zeroed and stale sectors", sectors),
];

/// Elements of the block.
fn count(state: &State) -> u64 {
    (BLOCK / state.element) as u64
}

fn put(state: &State, block: &mut [u8], at: u64, value: &[u8]) {
    let from = at as usize * state.element;
    block[from..from + state.element].copy_from_slice(&value[..state.element]);
}

/// A value that fields and counters often hold, as the bytes of an element.
fn value(state: &State, rng: &mut Rng) -> [u8; 8] {
    let number = [2.0, 1.0, -1.0, 0.5, 100.0, 1e-3, f64::MIN_POSITIVE, 3.0][rng.below(8) as usize];
    match (state.element, rng.chance(1, 2)) {
        (8, true) => number.to_le_bytes(),
        (4, true) => (u64::from((number as f32).to_bits())).to_le_bytes(),
        _ => (1 + rng.below(4)).to_le_bytes(),
    }
}

/// A row length: one of real arrays, or any.
fn row(rng: &mut Rng, most: u64) -> u64 {
    let usual = [8, 16, 32, 64, 100, 128, 200, 256, 320, 500, 512, 640, 800, 1000, 1024];
    let row = if rng.chance(2, 3) { usual[rng.below(usual.len() as u64) as usize] } else { 2 + rng.below(1024) };
    row.min(most)
}

/// Bases and offsets of the corners of a box with these sides, all inside the block.
fn corners(state: &State, rng: &mut Rng, dimensions: u32) -> Vec<u64> {
    let elements = count(state);
    let nx = row(rng, elements / 8);
    let (mut stride, mut offsets) = (1, vec![0]);
    let mut reach = 0;
    for dimension in 0..dimensions {
        let left = (elements - 1 - reach) / stride;
        let most = if dimension + 1 < dimensions { left.min(nx - 1) } else { left }.max(1);
        let side = 1 + rng.below(most);
        reach += side * stride;
        offsets.extend(offsets.clone().iter().map(|offset| offset + side * stride));
        stride *= nx;
        if reach + stride >= elements {
            break;
        }
    }
    let base = rng.below(elements - reach.min(elements - 1));
    offsets.into_iter().map(|offset| (base + offset) % elements).collect()
}

fn rectangle(state: &State, block: &mut [u8], rng: &mut Rng) {
    let value = value(state, rng);
    corners(state, rng, 2).into_iter().for_each(|at| put(state, block, at, &value));
}

fn cuboid(state: &State, block: &mut [u8], rng: &mut Rng) {
    let value = value(state, rng);
    corners(state, rng, 3).into_iter().for_each(|at| put(state, block, at, &value));
}

fn regular(state: &State, block: &mut [u8], rng: &mut Rng) {
    let (value, many) = (value(state, rng), 2 + rng.below(15));
    let stride = 1 + rng.below((count(state) - 1) / many);
    let base = rng.below(count(state) - stride * (many - 1));
    (0..many).for_each(|index| put(state, block, base + index * stride, &value));
}

/// Adds a whole number to an element, as an integer or, with `as_float`, as a floating-point number.
fn add(state: &State, block: &mut [u8], at: u64, change: i64, as_float: bool) {
    let from = at as usize * state.element;
    let mut eight = [0u8; 8];
    eight[..state.element].copy_from_slice(&block[from..from + state.element]);
    let whole = u64::from_le_bytes(eight);
    let found = match (state.element, as_float) {
        (8, true) => (f64::from_bits(whole) + change as f64).to_bits(),
        (4, true) => u64::from((f32::from_bits(whole as u32) + change as f32).to_bits()),
        _ => whole.wrapping_add_signed(change),
    };
    put(state, block, at, &found.to_le_bytes());
}

/// Adds `changes` to distinct elements, at multiples of `grain` bytes from a common offset.
fn add_at(state: &State, block: &mut [u8], rng: &mut Rng, changes: &[i64], grain: usize) {
    let grain = grain.max(state.element);
    let phase = rng.below((grain / state.element) as u64);
    let as_float = rng.chance(1, 2);
    let mut taken = Vec::new();
    for change in changes {
        let at = phase + rng.below((BLOCK / grain) as u64) * (grain / state.element) as u64;
        if !taken.contains(&at) {
            add(state, block, at, *change, as_float);
            taken.push(at);
        }
    }
}

fn add_rectangle(state: &State, block: &mut [u8], rng: &mut Rng) {
    let as_float = rng.chance(1, 2);
    let found = corners(state, rng, 2);
    found.into_iter().zip([1, -1, -1, 1]).for_each(|(at, change)| add(state, block, at, change, as_float));
}

fn swap_units(block: &mut [u8], rng: &mut Rng, unit: usize, swaps: usize) {
    for _ in 0..swaps {
        let [one, other] = [0; 2].map(|_| rng.below((BLOCK / unit) as u64) as usize * unit);
        for at in 0..unit {
            block.swap(one + at, other + at);
        }
    }
}

fn swap_words(_: &State, block: &mut [u8], rng: &mut Rng) {
    let phase = rng.below(8) as usize * 8;
    let [one, other] = [0; 2].map(|_| phase + rng.below(BLOCK as u64 / 64) as usize * 64);
    (0..8).for_each(|at| block.swap(one + at, other + at));
}

fn shift(_: &State, block: &mut [u8], rng: &mut Rng) {
    let unit = [1, 4, 8, 16, 64, 512, 4096][rng.below(7) as usize];
    let from = rng.below((BLOCK / unit) as u64) as usize * unit;
    let part = &mut block[from..];
    part.rotate_right(unit * (1 + rng.below(8) as usize) % part.len().max(1));
}

/// Flips this bit (of 64, or the corresponding one of a shorter element) in one to four elements, at random or at regular distances.
fn flip_at(state: &State, block: &mut [u8], rng: &mut Rng, bit: usize) {
    let bit = match state.element {
        8 => bit,
        4 if bit == 52 => 23,
        size => bit.min(8 * size - 1),
    };
    let places = if rng.chance(1, 2) {
        corners(state, rng, 2)
    } else {
        (0..1 + rng.below(4)).map(|_| rng.below(count(state))).collect()
    };
    for at in places {
        block[at as usize * state.element + bit / 8] ^= 1 << (bit % 8);
    }
}

fn last_places(state: &State, block: &mut [u8], rng: &mut Rng) {
    let places =
        if rng.chance(1, 2) { corners(state, rng, 2) } else { vec![rng.below(count(state)), rng.below(count(state))] };
    for at in places {
        let up = if rng.chance(1, 2) { 1 } else { -1 };
        add(state, block, at, up, false);
    }
}

fn bits(_: &State, block: &mut [u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(2) {
        let bit = rng.below(8 * BLOCK as u64) as usize;
        block[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Sets one to eight sectors to zero, or to what they hold in the later state.
fn sectors(state: &State, block: &mut [u8], rng: &mut Rng) {
    let sector = [512, 4096][rng.below(2) as usize];
    for _ in 0..1 + rng.below(8) {
        let at = rng.below((BLOCK / sector) as u64) as usize * sector;
        if rng.chance(1, 2) {
            block[at..at + sector].fill(0);
        } else {
            block[at..at + sector].copy_from_slice(&state.later[at..at + sector]);
        }
    }
}
