//! The block digest, and the capture loop that copies and hashes in one pass.
//!
//! Every block of every region carries a 128-bit digest ([`Digest`], id [`DIGEST_ID`] in the format). It
//! guards against damage, not against an adversary. It has to run at memory speed beside a copy on a CPU and
//! has to be the same value when a GPU computes it, so its inner state is a plain sum over 64-byte stripes:
//! any number of lanes, warps or threads may each take some stripes and add their sums.
//!
//! For stripe `s` (eight little-endian words `d[0..8]`, the last stripe padded with zeros) and lane `l`:
//!
//! ```text
//! x       = d[l] ^ (KEY[l] + s * STEP)                   (64 bits, wrapping)
//! sum[l] += lo32(x) * hi32(x) + d[l ^ 1]                 (64 bits, wrapping)
//! ```
//!
//! The product is the NH construction (Black et al., CRYPTO 1999, as used in UMAC); adding the neighbour's
//! word, as XXH3 does, keeps a flip visible when a keyed half happens to be zero: one changed word always
//! changes `sum[l ^ 1]`. The eight sums and the length are folded into two words by 64 x 64 -> 128 bit
//! products with different keys and a final avalanche.
//!
//! [`copy_digest`] is the capture loop: it loads, hashes and stores past the cache (non-temporal stores) in
//! one pass, because a second pass over memory would cost half as much again. [`digest_bytes`] only reads.
//! Both have a portable body and an AVX2 body with the same result; tests compare them.

use std::fmt;

/// The id of this digest in headers. A new algorithm gets a new id; this one never changes.
pub const DIGEST_ID: u32 = 1;

/// Bytes per stripe: eight lanes of 64 bits, one cache line.
const STRIPE: usize = 64;
/// Lanes per stripe.
const LANES: usize = 8;
/// Added to every lane's key per stripe: the odd 64-bit golden-ratio constant.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// First-stripe keys: the first 8 x 64 fractional bits of pi.
const KEY: [u64; LANES] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];
/// Keys of the two folds: the next fractional bits of pi.
const FOLD: [[u64; LANES]; 2] = [
    [
        0x9216_d5d9_8979_fb1b,
        0xd131_0ba6_98df_b5ac,
        0x2ffd_72db_d01a_dfb7,
        0xb8e1_afed_6a26_7e96,
        0xba7c_9045_f12c_7f99,
        0x24a1_9947_b391_6cf7,
        0x0801_f2e2_858e_fc16,
        0x6369_20d8_7157_4e69,
    ],
    [
        0xa458_fea3_f493_3d7e,
        0x0d95_748f_728e_b658,
        0x718b_cd58_8215_4aee,
        0x7b54_a41d_c25a_59b5,
        0x9c30_d539_2af2_6013,
        0xc5d1_b023_2860_85f0,
        0xca41_7918_b8db_38ef,
        0x8e79_dcb0_603a_180e,
    ],
];

/// A 128-bit digest of a block's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub [u8; 16]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The digest of `bytes`.
pub fn digest_bytes(bytes: &[u8]) -> Digest {
    let whole = bytes.len() / STRIPE * STRIPE;
    let mut sums = [0u64; LANES];
    sum_stripes(&bytes[..whole], &mut sums);
    finish(sums, &bytes[whole..], bytes.len())
}

/// Copies `source` to `target` past the cache and returns the digest of what was read.
///
/// The stores are non-temporal where the processor has them and `target` is 16-byte aligned: publish the
/// data to another thread or process only after [`store_fence`].
///
/// # Panics
/// If the two slices differ in length.
pub fn copy_digest(source: &[u8], target: &mut [u8]) -> Digest {
    assert_eq!(source.len(), target.len(), "copy_digest: lengths differ");
    let whole = source.len() / STRIPE * STRIPE;
    let mut sums = [0u64; LANES];
    copy_sum_stripes(&source[..whole], &mut target[..whole], &mut sums);
    target[whole..].copy_from_slice(&source[whole..]);
    finish(sums, &source[whole..], source.len())
}

/// Copies past the cache without a digest. [`store_fence`] comes before anybody else is told of the copy.
#[doc(hidden)]
pub fn copy_streaming(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "copy_streaming: lengths differ");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && (target.as_ptr() as usize).is_multiple_of(STRIPE) {
        // SAFETY: AVX2 was just detected; the slices are equally long and the target is aligned to a stripe.
        unsafe { x86::copy_stripes(source, target) };
        return;
    }
    target.copy_from_slice(source);
}

/// Orders earlier non-temporal stores before every later store of this thread.
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` is part of SSE, which every x86-64 processor has, and touches no memory of its own.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Adds whole stripes to `sums`; `bytes.len()` is a multiple of [`STRIPE`].
fn sum_stripes(bytes: &[u8], sums: &mut [u64; LANES]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was just detected; the body reads whole stripes inside the slice only.
        unsafe { x86::sum_stripes(bytes, sums) };
        return;
    }
    sum_stripes_portable(bytes, sums);
}

fn copy_sum_stripes(source: &[u8], target: &mut [u8], sums: &mut [u64; LANES]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was just detected; both slices hold the same whole number of stripes.
        unsafe { x86::copy_sum_stripes(source, target, sums) };
        return;
    }
    sum_stripes(source, sums);
    target.copy_from_slice(source);
}

/// The definition, stripe by stripe, for every machine.
fn sum_stripes_portable(bytes: &[u8], sums: &mut [u64; LANES]) {
    for (stripe, chunk) in bytes.chunks_exact(STRIPE).enumerate() {
        add_stripe(chunk, stripe as u64, sums);
    }
}

fn add_stripe(chunk: &[u8], stripe: u64, sums: &mut [u64; LANES]) {
    let mut words = [0u64; LANES];
    for (word, bytes) in words.iter_mut().zip(chunk.chunks_exact(8)) {
        let mut eight = [0u8; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    let offset = stripe.wrapping_mul(STEP);
    for lane in 0..LANES {
        let x = words[lane] ^ KEY[lane].wrapping_add(offset);
        let product = (x & 0xffff_ffff).wrapping_mul(x >> 32);
        sums[lane] = sums[lane].wrapping_add(product).wrapping_add(words[lane ^ 1]);
    }
}

/// Adds the padded tail and folds sums and length into the digest.
fn finish(mut sums: [u64; LANES], tail: &[u8], length: usize) -> Digest {
    if !tail.is_empty() {
        let mut padded = [0u8; STRIPE];
        padded[..tail.len()].copy_from_slice(tail);
        add_stripe(&padded, (length / STRIPE) as u64, &mut sums);
    }
    let mut digest = [0u8; 16];
    for (half, keys) in digest.chunks_exact_mut(8).zip(&FOLD) {
        let mut folded = (length as u64).wrapping_mul(STEP);
        for pair in 0..LANES / 2 {
            let a = sums[2 * pair] ^ keys[2 * pair];
            let b = sums[2 * pair + 1] ^ keys[2 * pair + 1];
            let product = u128::from(a) * u128::from(b);
            folded = folded.wrapping_add(product as u64 ^ (product >> 64) as u64).rotate_left(17);
        }
        half.copy_from_slice(&avalanche(folded).to_le_bytes());
    }
    Digest(digest)
}

/// XXH3's final mix (Collet): every input bit reaches every output bit.
fn avalanche(mut h: u64) -> u64 {
    h ^= h >> 37;
    h = h.wrapping_mul(0x1656_6791_9e37_79f9);
    h ^ (h >> 32)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same sums with AVX2: two 256-bit vectors hold the eight lanes.

    use super::{KEY, LANES, STEP, STRIPE};
    use core::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX2. `bytes.len()` is a multiple of 64.
    #[target_feature(enable = "avx2")]
    pub unsafe fn sum_stripes(bytes: &[u8], sums: &mut [u64; LANES]) {
        // SAFETY: a null target means no stores; reads stay inside `bytes`.
        unsafe { run::<NONE>(bytes.as_ptr(), std::ptr::null_mut(), bytes.len() / STRIPE, sums) }
    }

    /// # Safety
    /// The processor has AVX2. Both slices have the same length, a multiple of 64.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_sum_stripes(source: &[u8], target: &mut [u8], sums: &mut [u64; LANES]) {
        let (from, to, stripes) = (source.as_ptr(), target.as_mut_ptr(), source.len() / STRIPE);
        // Large allocations start 16 bytes after a page, so the middle case is that of most application arrays.
        // SAFETY: reads and stores stay inside the two slices, which are equally long and cannot overlap; each variant
        // gets a target of the alignment that its stores need.
        unsafe {
            match to as usize {
                at if at.is_multiple_of(32) => run::<STREAM_32>(from, to, stripes, sums),
                at if at.is_multiple_of(16) => run::<STREAM_16>(from, to, stripes, sums),
                _ => run::<STORE>(from, to, stripes, sums),
            }
        }
    }

    /// How `run` stores: not at all, past the cache in 32 or 16 aligned bytes, or through the cache anywhere.
    const NONE: u8 = 0;
    const STREAM_32: u8 = 1;
    const STREAM_16: u8 = 2;
    const STORE: u8 = 3;

    /// # Safety
    /// The processor has AVX2. Both slices have the same length; the target is 32-byte aligned.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_stripes(source: &[u8], target: &mut [u8]) {
        let stripes = source.len() / STRIPE;
        let copy = |index: usize, from: *const u8, to: *mut u8| {
            // SAFETY: `index < stripes`, so the stripe lies inside both slices; the target is aligned (contract).
            unsafe {
                let from = from.add(index * STRIPE);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                let data = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())];
                store::<STREAM_32>(to.add(index * STRIPE), data);
            }
        };
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        let mut at = 0;
        while at + PAGES * PAGE_STRIPES <= stripes {
            for line in at..at + PAGE_STRIPES {
                copy(line, from, to);
                copy(line + PAGE_STRIPES, from, to);
            }
            at += PAGES * PAGE_STRIPES;
        }
        (at..stripes).for_each(|line| copy(line, from, to));
        target[stripes * STRIPE..].copy_from_slice(&source[stripes * STRIPE..]);
    }

    /// Two pages are walked side by side: sequential streams leave memory channels idle, and memcpy does the same.
    /// Measured with two processes at once, 256 MiB each, against memcpy: one stream 1.11 to 1.13, two 0.97 to 0.99,
    /// four 0.98 to 0.99, eight 0.96 to 1.00.
    const PAGES: usize = 2;
    /// Stripes per page.
    const PAGE_STRIPES: usize = 64;
    /// How far ahead of the loads the cache is told: the next pair of pages.
    const AHEAD: usize = PAGES * PAGE_STRIPES * STRIPE;

    /// The sums so far, and the keys of the stripe that comes next.
    struct Lanes {
        key: [__m256i; 2],
        sum: [__m256i; 2],
    }

    /// # Safety
    /// The processor has AVX2; `source` is readable for `stripes` stripes, and so is `target` writable and aligned as
    /// `STORES` needs it, unless that is `NONE`.
    #[target_feature(enable = "avx2")]
    unsafe fn run<const STORES: u8>(source: *const u8, target: *mut u8, stripes: usize, sums: &mut [u64; LANES]) {
        // SAFETY: `KEY` and `sums` are exactly two vectors long, and loads and stores that need no alignment are used
        // for them. Each stripe index below is less than `stripes`, which is what `stripe` asks for.
        unsafe {
            let mut lanes = Lanes {
                key: [_mm256_loadu_si256(KEY.as_ptr().cast()), _mm256_loadu_si256(KEY.as_ptr().add(4).cast())],
                sum: [_mm256_loadu_si256(sums.as_ptr().cast()), _mm256_loadu_si256(sums.as_ptr().add(4).cast())],
            };
            let (none, page) = (_mm256_setzero_si256(), splat(PAGE_STRIPES));
            let (one, rest) = (splat(1), splat((PAGES - 1) * PAGE_STRIPES));
            let mut at = 0;
            while at + PAGES * PAGE_STRIPES <= stripes {
                for line in at..at + PAGE_STRIPES {
                    stripe::<STORES>(source, target, line, none, &mut lanes);
                    stripe::<STORES>(source, target, line + PAGE_STRIPES, page, &mut lanes);
                    advance(&mut lanes, one);
                }
                advance(&mut lanes, rest);
                at += PAGES * PAGE_STRIPES;
            }
            for line in at..stripes {
                stripe::<STORES>(source, target, line, none, &mut lanes);
                advance(&mut lanes, one);
            }
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), lanes.sum[0]);
            _mm256_storeu_si256(sums.as_mut_ptr().add(4).cast(), lanes.sum[1]);
        }
    }

    /// What the keys grow by over `stripes` stripes.
    #[target_feature(enable = "avx2")]
    fn splat(stripes: usize) -> __m256i {
        _mm256_set1_epi64x(STEP.wrapping_mul(stripes as u64) as i64)
    }

    #[target_feature(enable = "avx2")]
    fn advance(lanes: &mut Lanes, by: __m256i) {
        lanes.key = [_mm256_add_epi64(lanes.key[0], by), _mm256_add_epi64(lanes.key[1], by)];
    }

    /// Loads, stores and adds stripe `index`, whose keys are `lanes.key` plus `offset`.
    ///
    /// # Safety
    /// As [`run`], with `index` less than the number of stripes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn stripe<const STORES: u8>(
        source: *const u8,
        target: *mut u8,
        index: usize,
        offset: __m256i,
        lanes: &mut Lanes,
    ) {
        // SAFETY: the stripe lies inside both buffers, and the target has the alignment that `STORES` needs (`run`'s
        // contract). A prefetch may name any address.
        unsafe {
            let from = source.add(index * STRIPE);
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
            let data = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())];
            if STORES != NONE {
                store::<STORES>(target.add(index * STRIPE), data);
            }
            for ((word, key), sum) in data.into_iter().zip(lanes.key).zip(&mut lanes.sum) {
                let x = _mm256_xor_si256(word, _mm256_add_epi64(key, offset));
                let product = _mm256_mul_epu32(x, _mm256_srli_epi64::<32>(x));
                // 0x4e swaps the 64-bit halves of each 128 bits: lane l receives word l ^ 1.
                let neighbour = _mm256_shuffle_epi32::<0x4e>(word);
                *sum = _mm256_add_epi64(*sum, _mm256_add_epi64(product, neighbour));
            }
        }
    }

    /// # Safety
    /// `to` is writable for a stripe and has the alignment that `STORES` needs.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store<const STORES: u8>(to: *mut u8, data: [__m256i; 2]) {
        // SAFETY: four times 16 or twice 32 bytes are one stripe; alignment is the caller's promise.
        unsafe {
            match STORES {
                STREAM_32 => {
                    _mm256_stream_si256(to.cast(), data[0]);
                    _mm256_stream_si256(to.add(32).cast(), data[1]);
                }
                STREAM_16 => {
                    _mm_stream_si128(to.cast(), _mm256_castsi256_si128(data[0]));
                    _mm_stream_si128(to.add(16).cast(), _mm256_extracti128_si256::<1>(data[0]));
                    _mm_stream_si128(to.add(32).cast(), _mm256_castsi256_si128(data[1]));
                    _mm_stream_si128(to.add(48).cast(), _mm256_extracti128_si256::<1>(data[1]));
                }
                _ => {
                    _mm256_storeu_si256(to.cast(), data[0]);
                    _mm256_storeu_si256(to.add(32).cast(), data[1]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        (0..length).map(|_| rng.next_u64() as u8).collect()
    }

    #[test]
    fn the_vector_and_the_portable_body_agree_at_every_length() {
        for length in (0..400).chain([4096, 8191, 8192, 12_288, 20_001, 65_536, 65_537]) {
            let bytes = noise(length, length as u64);
            let whole = length / STRIPE * STRIPE;
            let mut sums = [0; LANES];
            sum_stripes_portable(&bytes[..whole], &mut sums);
            let expected = finish(sums, &bytes[whole..], length);
            assert_eq!(digest_bytes(&bytes), expected, "length {length}");
            // Aligned and unaligned targets take different bodies.
            let mut room = vec![0u8; length + 128];
            let aligned = room.as_ptr().align_offset(64);
            for shift in [aligned, aligned + 1, aligned + 16, aligned + 32] {
                let target = &mut room[shift..shift + length];
                assert_eq!(copy_digest(&bytes, target), expected, "length {length}");
                store_fence();
                assert_eq!(&target[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_a_small_block_changes_the_digest() {
        for fill in [0u8, 0xff, 0x5a] {
            let mut bytes = vec![fill; 200];
            let clean = digest_bytes(&bytes);
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(digest_bytes(&bytes), clean, "bit {bit} of {fill:#x}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn swapped_stripes_and_added_zeros_change_the_digest() {
        let bytes = noise(256, 3);
        let mut swapped = bytes.clone();
        swapped[..128].rotate_left(64);
        assert_ne!(digest_bytes(&bytes), digest_bytes(&swapped));
        let longer = [bytes.clone(), vec![0]].concat();
        assert_ne!(digest_bytes(&bytes), digest_bytes(&longer));
        assert_ne!(digest_bytes(&[]), digest_bytes(&[0; 64]));
    }

    #[test]
    fn the_digest_is_frozen() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        assert_eq!(digest_bytes(&bytes).to_string(), FROZEN);
        assert_eq!(digest_bytes(&[]).to_string(), FROZEN_EMPTY);
    }

    const FROZEN: &str = "d53e9154de0578f5239b66dbb4b17af5";
    const FROZEN_EMPTY: &str = "cadfd8e2d5f6e518ab61ff18c393b8c0";
}
