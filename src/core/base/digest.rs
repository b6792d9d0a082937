//! The block digest, and the capture loop that copies and hashes in one pass.
//!
//! Every block of every region carries a 128-bit digest ([`Digest`], id [`DIGEST_ID`] in the format). The digest guards against accidents,
//! not against an adversary: anyone who knows the keys, which are public here, can make two blocks with the same digest. It is computed at
//! memory speed during a copy, on a CPU or a GPU, because its state is two plain sums: any number of lanes, warps, threads or pieces may
//! each process a part of a block and add up their [`Sums`].
//!
//! A block is a sequence of little-endian 64-bit words, padded with zeros to whole pairs. With the key `k[w]` of word `w`, the pair
//! `(a, b)` of the words `w` and `w + 1` adds
//!
//! ```text
//! product = (a + k[w]) * (b + k[w + 1])      (sums modulo 2^64, product of 128 bits)
//! low    += product mod 2^64                 (modulo 2^64)
//! high   += product / 2^64                   (modulo 2^64)
//! ```
//!
//! This is NH with 64-bit words (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999, section 4.2). Its authors prove for the sum
//! modulo 2^128 that two different blocks of the same length agree under at most one in 2^64 choices of the keys, whatever the blocks are.
//! A carry between the halves would need 128-bit atomics on a GPU; without this carry, the bound is one in 2^63. The proof needs a separate
//! key for each word: with keys that follow a formula in the position (an arithmetic progression, a polynomial, a row key plus a column
//! key), equal changes at regular distances cancel. The keys are the outputs of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), each of which
//! is computed from its position alone, in two products.
//!
//! Four Feistel rounds turn the two sums and the length into the digest. For a given length they are a permutation of 128 bits. They
//! therefore add no collision, and each half of the digest depends on both sums.
//!
//! [`copy_digest`] is the capture loop. It loads, hashes and stores past the cache (with non-temporal stores) in one pass, because a second
//! pass over memory would cost half as much again. [`digest_bytes`] only reads.

use std::fmt;
use std::sync::LazyLock;

/// The id of this digest in headers. A new algorithm gets a new id; this one never changes.
pub const DIGEST_ID: u32 = 1;

/// The number of bytes of a pair of words, which one product mixes.
pub(crate) const PAIR: usize = 16;
/// The increment of SplitMix64's state at each step, the odd 64-bit golden-ratio constant.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// SplitMix64's state before the first key: the first 64 fractional bits of pi.
const SEED: u64 = 0x243f_6a88_85a3_08d3;
/// A constant for each round of the finish: the next fractional bits of pi.
const ROUNDS: [u64; 4] = [0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89, 0x4528_21e6_38d0_1377];
/// The number of words whose keys are kept. It suffices for the largest block of the format, 1 MiB. The other keys of a
/// longer text are computed.
const KEPT: usize = (1 << 20) / 8;

/// The keys of the first [`KEPT`] words.
static KEYS: LazyLock<Vec<u64>> = LazyLock::new(|| (0..KEPT as u64).map(key).collect());

/// The key of word `word` of a block.
fn key(word: u64) -> u64 {
    mix(SEED.wrapping_add(word.wrapping_add(1).wrapping_mul(STEP)))
}

/// Returns the weight of a byte by its position in a block: an odd number, different for each position.
#[inline]
pub(crate) fn weight(at: usize) -> u64 {
    let word = at / 8;
    let key = KEYS.get(word).copied().unwrap_or_else(|| key(word as u64));
    mix(key.wrapping_add((at % 8) as u64)) | 1
}

/// SplitMix64's output function: a permutation in which every input bit reaches every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A 128-bit digest of a block's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
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

/// The contribution of a part of a block to the block's digest. The sums of the parts, added up in any order, are the
/// sums of the whole block.
///
/// ```
/// use bivouac_core::base::digest::{Sums, digest_bytes};
///
/// let block = [7u8; 100];
/// let mut sums = Sums::default();
/// sums.add(64, &block[64..]);
/// sums.add(0, &block[..64]);
/// assert_eq!(sums.finish(100), digest_bytes(&block));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    low: u64,
    high: u64,
}

impl Sums {
    /// Adds `bytes`, which begin `offset` bytes after the start of the block. Only the last part of the block may have a length that is not
    /// a multiple of 16.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 16.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        let done = whole_units(bytes, keys_from(offset), self);
        if done < bytes.len() {
            self.add_rest(offset + done as u64, &bytes[done..]);
        }
    }

    /// Adds bytes as [`Sums::add`] does, and copies them to `target`. If there are enough bytes, the copy bypasses the cache, as in
    /// [`copy_digest`].
    ///
    /// # Panics
    /// Panics as [`Sums::add`] does, and if the two slices differ in length.
    #[inline]
    pub fn add_copying(&mut self, offset: u64, bytes: &[u8], target: &mut [u8]) {
        assert_eq!(bytes.len(), target.len(), "add_copying: lengths differ");
        let done = copy_whole_units(bytes, target, bytes.as_ptr_range().end, keys_from(offset), self);
        if done < bytes.len() {
            self.add_rest(offset + done as u64, &bytes[done..]);
            target[done..].copy_from_slice(&bytes[done..]);
        }
    }

    /// Does the same as [`Sums::add_copying`] for the rows of two parts of a block, alternating between the parts, because memory is not
    /// used at full speed with a single stream. Each part begins `offset` bytes after the start of the block. Its rows are copied to its
    /// target one after the other.
    ///
    /// # Panics
    /// Panics as [`Sums::add_copying`] does; if the parts differ in the number or length of their rows; or if a row is not inside its
    /// memory, or its length is not a multiple of 16.
    pub fn add_copying_rows(&mut self, parts: [(u64, EqualRows<'_>, &mut [u8]); 2]) {
        let [(one_at, one, one_to), (two_at, two, two_to)] = parts;
        assert!(one.row == two.row && one.count == two.count, "add_copying_rows: the parts differ");
        assert!(one.row.is_multiple_of(PAIR) && one.row > 0, "add_copying_rows: rows of {} bytes", one.row);
        for (rows, to) in [(&one, &*one_to), (&two, &*two_to)] {
            assert!(
                rows.end() <= rows.memory.len() && rows.row * rows.count == to.len(),
                "add_copying_rows: a row is outside"
            );
        }
        let keys = [keys_from(one_at), keys_from(two_at)];
        #[cfg(target_arch = "x86_64")]
        if x86::is_there() && keys.iter().all(|keys| 8 * keys.len() >= one_to.len()) {
            // SAFETY: the features were just detected; the number of rows, targets and keys was just checked.
            unsafe { x86::copy_sum_rows([one, two], [one_to, two_to], keys, self) };
            return;
        }
        for (offset, rows, to) in [(one_at, one, one_to), (two_at, two, two_to)] {
            for (number, to) in to.chunks_mut(rows.row).enumerate() {
                self.add_copying(offset + (number * rows.row) as u64, rows.get(number), to);
            }
        }
    }

    /// The sums, for a message.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        u128::from(self.low).wrapping_add(u128::from(self.high) << 64).to_le_bytes()
    }

    /// The sums from the result of [`Sums::to_bytes`].
    pub(crate) fn of_bytes(bytes: &[u8; 16]) -> Sums {
        let both = u128::from_le_bytes(*bytes);
        Sums { low: both as u64, high: (both >> 64) as u64 }
    }

    /// Adds the sums of another part of the block.
    pub fn merge(&mut self, other: Sums) {
        self.low = self.low.wrapping_add(other.low);
        self.high = self.high.wrapping_add(other.high);
    }

    /// The loop without special instructions.
    fn add_rest(&mut self, offset: u64, bytes: &[u8]) {
        let first = offset / 8;
        let kept = (KEPT as u64).saturating_sub(first).min(bytes.len() as u64 / 8) as usize & !1;
        let (near, far) = bytes.split_at(8 * kept);
        if kept > 0 {
            let first = first as usize;
            self.add_pairs(near, &KEYS[first..first + kept]);
        }
        for (index, pair) in far.chunks(PAIR).enumerate() {
            let word = first + kept as u64 + 2 * index as u64;
            let mut padded = [0u8; PAIR];
            padded[..pair.len()].copy_from_slice(pair);
            self.add_pairs(&padded, &[key(word), key(word + 1)]);
        }
    }

    /// Removes what [`Sums::add`] added for the same bytes.
    pub fn remove(&mut self, offset: u64, bytes: &[u8]) {
        let mut part = Sums::default();
        part.add(offset, bytes);
        self.low = self.low.wrapping_sub(part.low);
        self.high = self.high.wrapping_sub(part.high);
    }

    /// Adds whole pairs. `bytes` has as many words as there are keys.
    #[inline(always)]
    fn add_pairs(&mut self, bytes: &[u8], keys: &[u64]) {
        for (pair, keys) in bytes.chunks_exact(PAIR).zip(keys.chunks_exact(2)) {
            let a = word(&pair[..8]).wrapping_add(keys[0]);
            let b = word(&pair[8..]).wrapping_add(keys[1]);
            let product = u128::from(a) * u128::from(b);
            self.low = self.low.wrapping_add(product as u64);
            self.high = self.high.wrapping_add((product >> 64) as u64);
        }
    }

    /// The digest of a block of `length` bytes whose parts have all been added.
    pub fn finish(self, length: u64) -> Digest {
        let mut halves = [self.low.wrapping_add(length.wrapping_mul(STEP)), self.high];
        for (round, constant) in ROUNDS.iter().enumerate() {
            let from = halves[round % 2];
            halves[1 - round % 2] ^= mix(from.wrapping_add(*constant));
        }
        let mut digest = [0u8; 16];
        digest[..8].copy_from_slice(&halves[0].to_le_bytes());
        digest[8..].copy_from_slice(&halves[1].to_le_bytes());
        Digest(digest)
    }
}

/// Rows of equal length at regular distances.
#[derive(Clone, Copy)]
pub struct EqualRows<'m> {
    /// The memory that contains the rows.
    pub memory: &'m [u8],
    /// The offset of the first row in that memory, in bytes.
    pub first: usize,
    /// The length of a row, in bytes.
    pub row: usize,
    /// The distance between the starts of two consecutive rows, in bytes.
    pub step: usize,
    /// The number of rows.
    pub count: usize,
}

impl EqualRows<'_> {
    fn get(&self, number: usize) -> &[u8] {
        &self.memory[self.first + number * self.step..][..self.row]
    }

    /// Where the last row ends.
    fn end(&self) -> usize {
        self.first + self.count.saturating_sub(1) * self.step + self.row
    }
}

#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(bytes);
    u64::from_le_bytes(eight)
}

/// The digest of `bytes`.
pub fn digest_bytes(bytes: &[u8]) -> Digest {
    let mut sums = Sums::default();
    sums.add(0, bytes);
    sums.finish(bytes.len() as u64)
}

/// Copies `source` to `target` past the cache and returns the digest of what was read.
///
/// The stores are non-temporal where the processor has them and `target` is 16-byte aligned: publish the
/// data to another thread or process only after [`store_fence`].
///
/// # Panics
/// If the two slices differ in length.
pub fn copy_digest(source: &[u8], target: &mut [u8]) -> Digest {
    copy_digest_before(source, target, source.as_ptr_range().end)
}

/// The same as [`copy_digest`], if the next copy begins at `next` and not at the end of `source`: the first bytes at `next` are brought
/// into the cache while the last bytes of `source` are copied. The function reads nothing there, so any address is valid.
pub(crate) fn copy_digest_before(source: &[u8], target: &mut [u8], next: *const u8) -> Digest {
    assert_eq!(source.len(), target.len(), "copy_digest: lengths differ");
    let mut sums = Sums::default();
    let done = copy_whole_units(source, target, next, &KEYS, &mut sums);
    sums.add_rest(done as u64, &source[done..]);
    target[done..].copy_from_slice(&source[done..]);
    sums.finish(source.len() as u64)
}

/// Copies past the cache without a digest. [`store_fence`] must come before any other thread learns of the copy.
#[doc(hidden)]
pub fn copy_streaming(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "copy_streaming: lengths differ");
    #[cfg(target_arch = "x86_64")]
    if x86::is_there() && target.as_ptr().addr().is_multiple_of(x86::LINE) {
        // SAFETY: the features were just detected; the slices are equally long and the target is aligned to a line.
        unsafe { x86::copy_lines(source, target) };
        return;
    }
    target.copy_from_slice(source);
}

/// Fills with zeros past the cache, so that memory that is not read soon need not be read before it is written. [`store_fence`] is needed,
/// as for [`copy_digest`].
pub(crate) fn zero_streaming(target: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if x86::is_there() {
        let begin = target.as_ptr().align_offset(x86::LINE).min(target.len());
        let (odd, lines) = target.split_at_mut(begin);
        odd.fill(0);
        // SAFETY: the features were just detected, and `lines` begins with a line.
        unsafe { x86::zero_lines(lines) };
        return;
    }
    target.fill(0);
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

/// The kept keys of the words that begin `offset` bytes after the start of a block or later.
#[inline]
fn keys_from(offset: u64) -> &'static [u64] {
    assert!(offset.is_multiple_of(PAIR as u64), "a part of a block begins at byte {offset}, inside a pair");
    KEYS.get((offset / 8) as usize..).unwrap_or(&[])
}

/// Adds the bytes at the start of a part of a block that the processor's own loop can process, and returns their number.
#[inline]
fn whole_units(bytes: &[u8], keys: &[u64], sums: &mut Sums) -> usize {
    #[cfg(target_arch = "x86_64")]
    if x86::is_there() {
        // SAFETY: the features were just detected.
        return unsafe { x86::sum(bytes, keys, sums) };
    }
    let _ = (bytes, keys, sums);
    0
}

/// Does the same as [`whole_units`], and copies the bytes.
#[inline]
fn copy_whole_units(source: &[u8], target: &mut [u8], next: *const u8, keys: &[u64], sums: &mut Sums) -> usize {
    #[cfg(target_arch = "x86_64")]
    if x86::is_there() {
        // SAFETY: the features were just detected; the slices are equally long (asserted by the caller).
        return unsafe { x86::copy_sum(source, target, next, keys, sums) };
    }
    let _ = (source, target, next, keys, sums);
    0
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The loops for processors with AVX2 and BMI2. The sums are scalar, because there is no vector product of 64 bits. Only prefetching
    //! and stores past the cache need intrinsics.

    use super::{EqualRows, Sums};
    use core::arch::x86_64::*;
    use std::ops::Range;

    /// Bytes of a cache line.
    pub const LINE: usize = 64;
    /// The number of bytes that are summed and then copied at a time. It is small enough for the bytes to be still in the first-level cache
    /// and in reach of the load buffers, and large enough for stores past the cache to come in bursts. Measured on 16 cores at once and on
    /// a single core, with 128 MiB each, the times relative to memcpy are 0.77 and 0.95 line by line, 0.77 to 0.80 and 0.68 with 512 bytes,
    /// and 0.86 and 0.82 with whole pages.
    const UNIT: usize = 8 * LINE;
    const PAGE: usize = 4096;
    /// The number of pages that are processed side by side. Sequential streams leave memory channels idle, and memcpy interleaves pages,
    /// too. Measured with two processes at once, 256 MiB each, the times relative to memcpy are 1.11 to 1.13 with one stream, 0.97 to 0.99
    /// with two, 0.98 to 0.99 with four and 0.96 to 1.00 with eight.
    const PAGES: usize = 2;
    /// The distance between a prefetch and the loads: the next pair of pages. At the end of a block, the start of the next block is
    /// prefetched, which may be elsewhere. 10,000 scattered regions of 4 to 64 KiB then take 1.15 times as long as with memcpy, and 1.43
    /// times if the memory after each region is prefetched instead.
    const AHEAD: usize = PAGES * PAGE;

    /// How lines are stored: not at all; past the cache in 32 or 16 aligned bytes; or through the cache at any address.
    const NONE: u8 = 0;
    const STREAM_32: u8 = 1;
    const STREAM_16: u8 = 2;
    const STORE: u8 = 3;

    pub fn is_there() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
    }

    /// # Safety
    /// The processor has AVX2 and BMI2.
    #[target_feature(enable = "avx2,bmi2")]
    pub unsafe fn sum(bytes: &[u8], keys: &[u64], sums: &mut Sums) -> usize {
        // SAFETY: a null target means no stores.
        unsafe { run::<NONE>(bytes, std::ptr::null_mut(), bytes.as_ptr_range().end, keys, sums) }
    }

    /// # Safety
    /// The processor has AVX2 and BMI2. Both slices have the same length.
    #[target_feature(enable = "avx2,bmi2")]
    pub unsafe fn copy_sum(source: &[u8], target: &mut [u8], next: *const u8, keys: &[u64], sums: &mut Sums) -> usize {
        let to = target.as_mut_ptr();
        // Large allocations start 16 bytes after a page boundary, so most application arrays take the middle case.
        // SAFETY: `to` is writable for the length of `source`, and each variant gets the alignment that its stores need.
        unsafe {
            match to.addr() {
                at if at.is_multiple_of(32) => run::<STREAM_32>(source, to, next, keys, sums),
                at if at.is_multiple_of(16) => run::<STREAM_16>(source, to, next, keys, sums),
                _ => run::<STORE>(source, to, next, keys, sums),
            }
        }
    }

    /// # Safety
    /// The processor has AVX2 and BMI2. Both parts have the same number of rows, of the same length, which is a multiple of 16. The rows
    /// are inside their memory, and each part has as many bytes in its rows as in its target, with keys for all of them.
    #[target_feature(enable = "avx2,bmi2")]
    pub unsafe fn copy_sum_rows(rows: [EqualRows<'_>; 2], targets: [&mut [u8]; 2], keys: [&[u64]; 2], sums: &mut Sums) {
        let to = targets.map(<[u8]>::as_mut_ptr);
        let are_all =
            |bytes: usize| rows[0].row.is_multiple_of(bytes) && to.iter().all(|to| to.addr().is_multiple_of(bytes));
        // SAFETY: both targets are writable for all their rows, and each variant has the alignment that its stores need, including where a
        // later row begins.
        unsafe {
            match () {
                () if are_all(32) => run_rows::<STREAM_32>(rows, to, keys, sums),
                () if are_all(16) => run_rows::<STREAM_16>(rows, to, keys, sums),
                () => run_rows::<STORE>(rows, to, keys, sums),
            }
        }
    }

    /// # Safety
    /// The processor has AVX2. Both slices have the same length; the target is 32-byte aligned.
    #[target_feature(enable = "avx2")]
    pub unsafe fn copy_lines(source: &[u8], target: &mut [u8]) {
        let whole = source.len() / LINE * LINE;
        let to = target.as_mut_ptr();
        each_unit(whole, |unit| {
            let bytes = &source[unit.clone()];
            (0..bytes.len()).step_by(LINE).for_each(|at| look_ahead(bytes.as_ptr().wrapping_add(AHEAD + at)));
            // SAFETY: the unit lies inside both slices, and the target is aligned (contract).
            unsafe { store::<STREAM_32>(bytes, to.add(unit.start)) };
        });
        target[whole..].copy_from_slice(&source[whole..]);
    }

    /// Calls `with` for the units of `length` bytes, which is a multiple of a line, in the order that suits memory best.
    #[inline(always)]
    fn each_unit(length: usize, mut with: impl FnMut(Range<usize>)) {
        let paired = length / AHEAD * AHEAD;
        for group in (0..paired).step_by(AHEAD) {
            for inside in (0..PAGE).step_by(UNIT) {
                for start in [group + inside, group + inside + PAGE] {
                    with(start..start + UNIT);
                }
            }
        }
        (paired..length).step_by(UNIT).for_each(|start| with(start..length.min(start + UNIT)));
    }

    /// # Safety
    /// The processor has AVX2. The target begins with a line.
    #[target_feature(enable = "avx2")]
    pub unsafe fn zero_lines(target: &mut [u8]) {
        let (lines, rest) = target.as_chunks_mut::<LINE>();
        for line in lines {
            let to = line.as_mut_ptr();
            // SAFETY: twice 32 bytes are the line, which is aligned to its length (contract).
            unsafe {
                _mm256_stream_si256(to.cast(), _mm256_setzero_si256());
                _mm256_stream_si256(to.add(32).cast(), _mm256_setzero_si256());
            }
        }
        rest.fill(0);
    }

    /// Adds (and stores) the whole lines of `source` for which there are keys, and returns their number of bytes. `next` is what will be
    /// read after `source`.
    ///
    /// # Safety
    /// The processor has AVX2 and BMI2. `target` is writable for the length of `source`, does not overlap it, and is aligned as
    /// `STORES` needs it, unless that is `NONE`.
    #[target_feature(enable = "avx2,bmi2")]
    unsafe fn run<const STORES: u8>(
        source: &[u8],
        target: *mut u8,
        next: *const u8,
        keys: &[u64],
        sums: &mut Sums,
    ) -> usize {
        let whole = source.len().min(8 * keys.len()) / LINE * LINE;
        let mut found = *sums;
        each_unit(whole, |unit| {
            let bytes = &source[unit.clone()];
            let at = unit.start + AHEAD;
            let ahead = if at < whole { source.as_ptr().wrapping_add(at) } else { next.wrapping_add(at - whole) };
            add(bytes, ahead, &keys[unit.start / 8..unit.end / 8], &mut found);
            if STORES != NONE {
                // SAFETY: the unit lies inside `source`, and so inside the target, whose alignment is the caller's promise;
                // units begin at whole lines, which keeps it.
                unsafe { store::<STORES>(bytes, target.add(unit.start)) };
            }
        });
        *sums = found;
        whole
    }

    /// Does the same as [`run`] for the rows of two parts, alternating between them unit by unit.
    ///
    /// # Safety
    /// See [`copy_sum_rows`]. In addition, neither target overlaps the rows, and both are aligned as `STORES` needs it where
    /// each row begins.
    #[target_feature(enable = "avx2,bmi2")]
    unsafe fn run_rows<const STORES: u8>(
        rows: [EqualRows<'_>; 2],
        targets: [*mut u8; 2],
        keys: [&[u64]; 2],
        sums: &mut Sums,
    ) {
        let (length, whole) = (rows[0].row, rows[0].row / LINE * LINE);
        let mut found = *sums;
        for number in 0..rows[0].count {
            let begin = number * length;
            let row = [rows[0].get(number), rows[1].get(number)];
            for start in (0..whole).step_by(UNIT) {
                let unit = start..whole.min(start + UNIT);
                for side in 0..2 {
                    let bytes = &row[side][unit.clone()];
                    let keys = &keys[side][(begin + unit.start) / 8..(begin + unit.end) / 8];
                    add(bytes, bytes.as_ptr().wrapping_add(AHEAD), keys, &mut found);
                    // SAFETY: the unit lies inside the row, and so inside the target, whose alignment is the caller's promise; units
                    // begin at whole lines of the row, which keeps it.
                    unsafe { store::<STORES>(bytes, targets[side].add(begin + unit.start)) };
                }
            }
            for side in 0..2 {
                let rest = &row[side][whole..];
                found.add_pairs(rest, &keys[side][(begin + whole) / 8..(begin + length) / 8]);
                // SAFETY: the rest of the row lies inside the target (contract), which overlaps no row.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), targets[side].add(begin + whole), rest.len()) };
            }
        }
        *sums = found;
    }

    /// Adds a unit, line by line. The prefetch in the loop also keeps the compiler from combining the products of several lines in vectors,
    /// which took twice as long.
    #[inline(always)]
    fn add(bytes: &[u8], mut ahead: *const u8, keys: &[u64], sums: &mut Sums) {
        for (line, keys) in bytes.as_chunks::<LINE>().0.iter().zip(keys.as_chunks::<8>().0) {
            look_ahead(ahead);
            ahead = ahead.wrapping_add(LINE);
            sums.add_pairs(line, keys);
        }
    }

    /// Prefetches a line that will be read.
    #[inline(always)]
    fn look_ahead(line: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    /// # Safety
    /// The processor has AVX2. `to` is writable for the length of `bytes`, whole lines, and has the alignment that `STORES` needs.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store<const STORES: u8>(bytes: &[u8], to: *mut u8) {
        for (index, line) in bytes.chunks_exact(LINE).enumerate() {
            // SAFETY: twice 32 or four times 16 bytes are one line, which is read inside `line` and written inside the target. Loads and
            // stores of the last kind need no alignment; the alignment for the other kinds is the caller's promise.
            unsafe {
                let data = [_mm256_loadu_si256(line.as_ptr().cast()), _mm256_loadu_si256(line.as_ptr().add(32).cast())];
                let to = to.add(index * LINE);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        (0..length).map(|_| rng.next_u64() as u8).collect()
    }

    /// Computes the digest by its definition, word by word.
    fn reference(bytes: &[u8]) -> Digest {
        let mut words: Vec<u64> =
            bytes.chunks(8).map(|chunk| word(&[chunk, &[0; 8][chunk.len()..]].concat())).collect();
        words.resize(words.len().next_multiple_of(2), 0);
        let mut sums = Sums::default();
        for at in (0..words.len()).step_by(2) {
            let a = words[at].wrapping_add(key(at as u64));
            let b = words[at + 1].wrapping_add(key(at as u64 + 1));
            let product = u128::from(a) * u128::from(b);
            sums.low = sums.low.wrapping_add(product as u64);
            sums.high = sums.high.wrapping_add((product >> 64) as u64);
        }
        sums.finish(bytes.len() as u64)
    }

    #[test]
    fn all_loops_agree_with_the_definition_at_every_length() {
        let beyond = 8 * KEPT + 100;
        for length in (0..400).chain([4096, 8191, 8192, 12_288, 20_001, 65_536, 65_537, 8 * KEPT, beyond]) {
            let bytes = noise(length, length as u64);
            let expected = reference(&bytes);
            assert_eq!(digest_bytes(&bytes), expected, "length {length}");
            let mut sums = Sums::default();
            sums.add(0, &bytes);
            assert_eq!(sums.finish(length as u64), expected, "length {length}");
            // The block is added in two parts, the second of which is copied.
            let (cut, mut copied) = (length / 2 / PAIR * PAIR, vec![0; length]);
            let mut sums = Sums::default();
            sums.add_copying(cut as u64, &bytes[cut..], &mut copied[cut..]);
            sums.add(0, &bytes[..cut]);
            assert_eq!((sums.finish(length as u64), &copied[cut..]), (expected, &bytes[cut..]), "length {length}");
            // Aligned and unaligned targets use different loops.
            let mut room = vec![0u8; length + 128];
            let aligned = room.as_ptr().align_offset(64);
            for shift in [aligned, aligned + 1, aligned + 16, aligned + 32] {
                let target = &mut room[shift..shift + length];
                assert_eq!(copy_digest(&bytes, target), expected, "length {length}");
                store_fence();
                assert_eq!(&target[..], &bytes[..]);
                target.fill(0);
                copy_streaming(&bytes, target);
                store_fence();
                assert_eq!(&target[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn parts_in_any_order_add_up_to_the_whole() {
        let mut rng = Rng::new(11);
        for _ in 0..200 {
            let bytes = noise(1 + (rng.next_u64() % 20_000) as usize, rng.next_u64());
            let mut cuts: Vec<usize> = (0..7).map(|_| (rng.next_u64() as usize % (bytes.len() + 1)) & !15).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut parts: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
            let by = rng.next_u64() as usize % parts.len();
            parts.rotate_left(by);
            let mut sums = Sums::default();
            parts.iter().for_each(|part| sums.add(part.start as u64, &bytes[part.clone()]));
            assert_eq!(sums.finish(bytes.len() as u64), digest_bytes(&bytes));
            parts[1..].iter().for_each(|part| sums.remove(part.start as u64, &bytes[part.clone()]));
            let mut first = Sums::default();
            first.add(parts[0].start as u64, &bytes[parts[0].clone()]);
            assert_eq!(sums, first);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_small_block_changes_both_halves() {
        for fill in [0u8, 0xff, 0x5a] {
            let mut bytes = vec![fill; 200];
            let clean = digest_bytes(&bytes).0;
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let found = digest_bytes(&bytes).0;
                assert!(found[..8] != clean[..8] && found[8..] != clean[8..], "bit {bit} of {fill:#x}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn added_zeros_change_the_digest() {
        let bytes = noise(256, 3);
        let longer = [bytes.clone(), vec![0]].concat();
        assert_ne!(digest_bytes(&bytes), digest_bytes(&longer));
        assert_ne!(digest_bytes(&[]), digest_bytes(&[0; 64]));
    }

    /// Four cells of 2.0 at the corners of a rectangle, in a field of zeros, had the same digest as a field of zeros under the first digest
    /// of this project, whose keys were an arithmetic progression.
    #[test]
    fn a_rectangle_in_a_field_of_zeros_is_seen() {
        let zeros = digest_bytes(&[0; 4096]).0;
        let rows = [8, 16, 64, 128];
        for (row, rest) in rows.iter().flat_map(|row| (1..512 / row).map(move |rest| (row, rest))) {
            for column in 1..*row {
                let mut cells = [0f64; 512];
                for at in [0, column, rest * row, rest * row + column] {
                    cells[at] = 2.0;
                }
                let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_le_bytes()).collect();
                let found = digest_bytes(&bytes).0;
                assert!(found[..8] != zeros[..8] && found[8..] != zeros[8..], "row {row}, {column} x {rest}");
            }
        }
    }

    #[test]
    fn the_digest_is_frozen() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        assert_eq!(digest_bytes(&bytes).to_string(), FROZEN);
        assert_eq!(digest_bytes(&[]).to_string(), FROZEN_EMPTY);
    }

    const FROZEN: &str = "75849b32bf9bfb38a903f6ba31fe8238";
    const FROZEN_EMPTY: &str = "6a36f1e989e3b200feb0f6e8b2d44325";

    #[test]
    fn rows_of_two_parts_make_the_digest_of_the_whole() {
        for (row, count, gap, shift) in [
            (16, 1, 0, 0),
            (48, 7, 8, 0),
            (64, 33, 16, 0),
            (512, 20, 16, 16),
            (4096, 3, 32, 3),
            (80, 5, 0, 16),
            (1040, 9, 24, 0),
        ] {
            let memory = noise(2 * count * (row + gap) + 40, row as u64);
            let part = |first| EqualRows { memory: &memory, first, row, step: row + gap, count };
            let parts = [part(8), part(8 + count * (row + gap))];
            let half = row * count;
            let plain: Vec<u8> =
                parts.iter().flat_map(|part| (0..count).flat_map(|row| part.get(row).to_vec())).collect();
            let mut room = vec![0u8; 2 * half + 64];
            let start = room.as_ptr().align_offset(32) + shift;
            let (near, far) = room[start..][..2 * half].split_at_mut(half);
            let mut sums = Sums::default();
            sums.add_copying_rows([(0, parts[0], near), (half as u64, parts[1], far)]);
            assert_eq!(sums.finish(2 * half as u64), reference(&plain), "rows of {row}");
            assert_eq!(&room[start..][..2 * half], &plain[..], "rows of {row}");
            assert!(room[..start].iter().chain(&room[start + 2 * half..]).all(|byte| *byte == 0));
        }
    }
}
