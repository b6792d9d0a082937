//! Sizes of the versions of a shot.

/// The next number of a sequence, from 0 to 1.
pub fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// Sizes distributed as in the papers (HPDC'23, figure 4; HiPC'22, figure 3a): small early, growing, with spread; `gb`
/// times 10^9 bytes in all.
pub fn variable(count: u64, gb: f64, seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let raw: Vec<f64> = (0..count)
        .map(|index| {
            let along = index as f64 / count as f64;
            (0.04 + along.powf(0.8)) * (0.85 + 0.3 * random(&mut state))
        })
        .collect();
    let scale = gb * 1e9 / raw.iter().sum::<f64>();
    raw.iter().map(|size| ((size * scale) as u64).max(4096) / 4096 * 4096).collect()
}
