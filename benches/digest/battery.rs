//! The test that decides about the block digest: structured changes of structured blocks, compared with chance.
//!
//! For each state and each kind of change, a set of different blocks is drawn, the unchanged block among them, and all pairs of the set
//! are compared. No two blocks may agree in either half of the digest, and truncated digests must collide as often as chance predicts,
//! neither more nor less often. Another hash of the bytes (XXH3, 128 bits) tells which blocks differ.

use super::families::{Change, FAMILIES};
use super::states::{BLOCK, State};
use bivouac_core::base::digest::{Sums, digest_bytes};
use bivouac_core::base::rng::Rng;
use std::collections::HashSet;

/// Lengths of truncated digests, in bits.
pub const TRUNCATED: [u32; 5] = [12, 16, 20, 24, 28];
/// A count this many standard deviations from chance is a failure. Not one of a million random counts deviates this far.
pub const DEVIATIONS_MAX: f64 = 7.0;

/// What one set of blocks showed.
#[derive(Default)]
pub struct Found {
    /// Different blocks.
    pub blocks: u64,
    /// Pairs of different blocks that agree in the first or the second half of the digest.
    pub equal_halves: u64,
    /// The largest distance from chance of any count of truncated collisions, in standard deviations.
    pub deviations: f64,
}

impl Found {
    /// Pairs that were compared.
    pub fn pairs(&self) -> u64 {
        self.blocks * self.blocks.saturating_sub(1) / 2
    }

    /// Does the digest do what it must?
    pub fn is_good(&self) -> bool {
        self.equal_halves == 0 && self.deviations <= DEVIATIONS_MAX
    }
}

/// The number of pairs of equal numbers.
fn equal_pairs(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers.chunk_by(|one, other| one == other).map(|run| (run.len() * (run.len() - 1) / 2) as u64).sum()
}

/// Compares all pairs of digests of different blocks.
pub fn judge(digests: &[[u64; 2]]) -> Found {
    let mut found = Found { blocks: digests.len() as u64, ..Found::default() };
    let pairs = found.pairs() as f64;
    for half in 0..2 {
        let all: Vec<u64> = digests.iter().map(|digest| digest[half]).collect();
        for bits in TRUNCATED {
            // Truncated at either end of the half.
            for shift in [0, 64 - bits] {
                let short = all.iter().map(|word| word >> shift & ((1 << bits) - 1)).collect();
                let (seen, expected) = (equal_pairs(short) as f64, pairs / f64::from(2u32).powi(bits as i32));
                // Rare counts are skewed: a few collisions where none is expected are no failure in themselves.
                let deviation = (seen - expected).abs() / expected.max(4.0).sqrt();
                found.deviations = found.deviations.max(deviation);
            }
        }
        found.equal_halves += equal_pairs(all);
    }
    found
}

/// Both halves of a digest, as numbers.
pub fn halves(digest: bivouac_core::base::digest::Digest) -> [u64; 2] {
    let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| digest.0[from + at]));
    [word(0), word(8)]
}

/// Draws `draws` changes of a state and compares all resulting blocks.
pub fn family(state: &State, change: Change, draws: usize, seed: u64) -> Found {
    let mut rng = Rng::new(seed);
    let (mut known, mut digests) = (HashSet::new(), Vec::new());
    let mut block = state.now.clone();
    for _ in 0..draws {
        if known.insert(xxhash_rust::xxh3::xxh3_128(&block)) {
            digests.push(halves(digest_bytes(&block)));
        }
        block.copy_from_slice(&state.now);
        change(state, &mut block, &mut rng);
    }
    judge(&digests)
}

/// Blocks that are consecutive in time, as de-duplication compares them: a block and the same block a step later must differ in both
/// halves, unless they are equal.
pub fn consecutive(states: &[State]) -> Vec<(String, bool)> {
    let differs = |state: &State| {
        let (now, later) = (halves(digest_bytes(&state.now)), halves(digest_bytes(&state.later)));
        state.now == state.later || (now[0] != later[0] && now[1] != later[1])
    };
    states.iter().map(|state| (state.name.clone(), differs(state))).collect()
}

/// The maximum deviation from one half, in standard deviations, of any output bit's chance to flip when one input bit flips.
pub fn avalanche(state: &State, draws: u64, seed: u64) -> f64 {
    let mut rng = Rng::new(seed);
    let mut whole = Sums::default();
    whole.add(0, &state.now);
    let clean = halves(whole.finish(BLOCK as u64));
    let mut flips = [0u64; 128];
    for _ in 0..draws {
        let bit = rng.below(8 * BLOCK as u64) as usize;
        let from = bit / 128 * 16;
        let mut pair: [u8; 16] = std::array::from_fn(|at| state.now[from + at]);
        let mut sums = whole;
        sums.remove(from as u64, &pair);
        pair[bit / 8 % 16] ^= 1 << (bit % 8);
        sums.add(from as u64, &pair);
        let found = halves(sums.finish(BLOCK as u64));
        for (index, count) in flips.iter_mut().enumerate() {
            *count += (found[index / 64] ^ clean[index / 64]) >> (index % 64) & 1;
        }
    }
    let deviation = |count: &u64| (*count as f64 - draws as f64 / 2.0).abs() / (draws as f64).sqrt() * 2.0;
    flips.iter().map(deviation).fold(0.0, f64::max)
}

/// Compares one pair of blocks after the other: a block of small whole numbers, and the same block with `changes` added
/// to words of one lane. Only the sums of the changed pairs are computed, so that 10^9 pairs take a minute. Returns how
/// many halves agree.
pub fn small_number_pairs(changes: &[i64], pairs: u64, seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut equal = 0;
    for _ in 0..pairs {
        let phase = rng.below(8);
        let (mut before, mut after) = (Sums::default(), Sums::default());
        let mut taken = [u64::MAX; 4];
        for (index, change) in changes.iter().enumerate() {
            let line = loop {
                let line = rng.below(BLOCK as u64 / 64);
                if !taken.contains(&line) {
                    break line;
                }
            };
            taken[index] = line;
            let mut words = [rng.below(16) + 2, rng.below(16)];
            for (sums, change) in [(&mut before, 0), (&mut after, *change)] {
                words[0] = words[0].wrapping_add_signed(change);
                let mut pair = [0u8; 16];
                let place = (phase % 2) as usize;
                pair[8 * place..8 * place + 8].copy_from_slice(&words[0].to_le_bytes());
                pair[8 - 8 * place..16 - 8 * place].copy_from_slice(&words[1].to_le_bytes());
                sums.add(64 * line + phase / 2 * 16, &pair);
            }
        }
        let (before, after) = (halves(before.finish(BLOCK as u64)), halves(after.finish(BLOCK as u64)));
        equal += u64::from(before[0] == after[0]) + u64::from(before[1] == after[1]);
    }
    equal
}

/// All families of changes of a state.
pub fn families(state: &State, draws: usize, seed: u64) -> impl Iterator<Item = (&'static str, Found)> {
    FAMILIES.iter().enumerate().map(move |(index, (name, change))| {
        (*name, family(state, *change, draws, seed.wrapping_add(index as u64 * 0x9e37_79b9)))
    })
}
