//! The loops over bytes: `target ^= factor * source`, for one target or for several at once.
//!
//! Factor 1 means exclusive or, which a plain loop does, and factor 0 means that nothing is done. ISA-L handles the
//! other factors if it can be opened. Otherwise a loop of our own gives the same bytes at a fraction of the speed. The
//! log says once which of the two is used (`event=erasure-kernel`).
#![forbid(unsafe_code)]

use super::gf;
use super::isal::{Isal, LINE};
use crate::base::log;
use std::sync::OnceLock;

/// The code that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// ISA-L, a library of the system.
    IsaL,
    /// The loop in this file.
    Portable,
}

impl Kernel {
    /// The fastest kernel that this process can use. The first call looks for ISA-L and logs what it found.
    ///
    /// # Blocking
    /// The first call may read a library from disk.
    pub fn best() -> Kernel {
        if isal().is_some() { Kernel::IsaL } else { Kernel::Portable }
    }

    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::IsaL => "isa-l",
            Kernel::Portable => "portable",
        }
    }
}

/// The library, which the first call opens.
fn isal() -> Option<&'static Isal> {
    static ISAL: OnceLock<Option<Isal>> = OnceLock::new();
    ISAL.get_or_init(|| match Isal::open() {
        Ok(isal) => {
            log::info!("event=erasure-kernel name={}", Kernel::IsaL.name());
            Some(isal)
        }
        Err(reason) => {
            log::info!(
                "event=erasure-kernel name={} reason={reason:?}: Reed-Solomon codes are slower without ISA-L (Debian: \
                 libisal2)",
                Kernel::Portable.name()
            );
            None
        }
    })
    .as_ref()
}

/// A factor for multiplying bytes, prepared once.
#[derive(Clone, Copy)]
pub struct Factor {
    value: u8,
    /// The value times x^0 to x^7. The product with a byte is the sum of those entries for which the bit of the byte is
    /// set.
    products: [u8; 8],
    /// `None`: the portable loop is used, on purpose or because there is no library.
    isal: Option<&'static Isal>,
}

impl std::fmt::Debug for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernel = if self.isal.is_some() { Kernel::IsaL } else { Kernel::Portable };
        write!(f, "Factor({:#04x}, {})", self.value, kernel.name())
    }
}

impl Factor {
    /// Prepares a factor for the best available kernel.
    pub fn new(value: u8) -> Factor {
        // Exclusive or needs no library, so the schemes `partner` and `xor` never look for one.
        Factor { isal: if value > 1 { isal() } else { None }, ..Factor::portable(value) }
    }

    /// Prepares a factor for the portable loop, even if the library is installed. It gives the same bytes, and is used
    /// in tests and measurements.
    pub fn portable(value: u8) -> Factor {
        let mut products = [value; 8];
        for bit in 1..8 {
            products[bit] = gf::double(products[bit - 1]);
        }
        Factor { value, products, isal: None }
    }

    /// The factor as a byte.
    pub fn value(&self) -> u8 {
        self.value
    }

    /// `target ^= factor * source`. If a target is longer than the source, its remaining bytes do not change, as if the
    /// source ended in zeros.
    ///
    /// # Panics
    /// If the target is shorter than the source.
    pub fn add_to(&self, source: &[u8], target: &mut [u8]) {
        add_to_all(std::slice::from_ref(self), source, &mut [target]);
    }
}

/// Does the same as [`Factor::add_to`] with one source for each factor and the target at the same index, in fewer
/// passes over the source.
///
/// # Panics
/// If the number of targets differs from that of factors, or if a target is shorter than the source.
pub fn add_to_all(factors: &[Factor], source: &[u8], targets: &mut [&mut [u8]]) {
    assert_eq!(factors.len(), targets.len(), "a target for each factor");
    assert!(targets.iter().all(|target| target.len() >= source.len()), "a target is shorter than the source");
    // The library handles whole lines, with the factors that are prepared for it. The loops below handle everything
    // else, including the ends, and also exclusive or, which takes longer in the library than in a pass of its own (by
    // 12 % of an encoding, as measured).
    let whole = source.len() - source.len() % LINE;
    if whole > 0
        && let Some(isal) = factors.iter().find_map(|factor| factor.isal)
    {
        let (values, mut lines): (Vec<u8>, Vec<&mut [u8]>) = factors
            .iter()
            .zip(targets.iter_mut())
            .filter(|(factor, _)| factor.isal.is_some())
            .map(|(factor, target)| (factor.value, &mut target[..whole]))
            .unzip();
        isal.add(&values, &source[..whole], &mut lines);
    }
    // The source is processed in pieces that stay in the first-level cache from one target to the next.
    for (piece, start) in source.chunks(PIECE).zip((0..).step_by(PIECE)) {
        for (factor, target) in factors.iter().zip(targets.iter_mut()) {
            let done = if factor.isal.is_some() { whole.saturating_sub(start).min(piece.len()) } else { 0 };
            factor.add_here(&piece[done..], &mut target[start + done..start + piece.len()]);
        }
    }
}

/// The number of bytes of a source that are added to all targets before the next bytes are processed.
const PIECE: usize = 4096;

impl Factor {
    /// The loops of this file; both slices have the same length.
    fn add_here(&self, source: &[u8], target: &mut [u8]) {
        match self.value {
            0 => {}
            1 => exclusive_or(source, target),
            _ => multiply_add(&self.products, source, target),
        }
    }
}

// Both loops are separate functions that are not inlined. As arguments, the slices are known not to overlap, so the
// compiler can process 16 bytes at a time without checking first.

/// Computes the sum over the bits of a byte with masks instead of branches, so that the compiler can process many bytes at a
/// time. A look-up of each product in a table of 256 entries takes up to twice as long, because a table cannot be read for
/// many bytes at once.
#[inline(never)]
fn multiply_add(products: &[u8; 8], source: &[u8], target: &mut [u8]) {
    for (byte, sum) in source.iter().zip(target) {
        for (bit, product) in products.iter().enumerate() {
            let mask = if byte & (1 << bit) != 0 { 0xff } else { 0 };
            *sum ^= mask & product;
        }
    }
}

#[inline(never)]
fn exclusive_or(source: &[u8], target: &mut [u8]) {
    for (byte, sum) in source.iter().zip(target) {
        *sum ^= byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [usize; 18] =
        [0, 1, 2, 7, 15, 16, 31, 32, 33, 63, 64, 65, 127, 129, PIECE - 1, PIECE, PIECE + 65, 3 * PIECE + 1];

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut rng = crate::base::rng::Rng::new(seed);
        (0..len).map(|_| rng.next_u64() as u8).collect()
    }

    /// The result that the loops must give, computed one byte at a time.
    fn expected(factor: u8, source: &[u8], target: &[u8]) -> Vec<u8> {
        let padded = source.iter().copied().chain(std::iter::repeat(0));
        target.iter().zip(padded).map(|(sum, byte)| sum ^ gf::multiply(factor, byte)).collect()
    }

    #[test]
    fn every_factor_times_every_byte_is_the_product() {
        let source: Vec<u8> = (0..=255).chain(0..=255).collect();
        for value in 0..=255 {
            let start = bytes(u64::from(value), source.len());
            for factor in [Factor::new(value), Factor::portable(value)] {
                let mut target = start.clone();
                factor.add_to(&source, &mut target);
                assert_eq!(target, expected(value, &source, &start), "{factor:?}");
            }
        }
    }

    #[test]
    fn every_length_and_alignment_gives_the_same_bytes() {
        let (sources, targets) = (bytes(1, 5 * PIECE), bytes(2, 5 * PIECE));
        for len in LENGTHS {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (13, 13)] {
                let (source, start) = (&sources[from..from + len], &targets[to..to + len + 3]);
                for value in [0, 1, 2, 0x8e, 0xff] {
                    for factor in [Factor::new(value), Factor::portable(value)] {
                        let mut target = targets.clone();
                        factor.add_to(source, &mut target[to..to + len + 3]);
                        assert_eq!(target[to..to + len + 3], expected(value, source, start), "{factor:?} {len}");
                        let is_beside = |at: &usize| !(to..to + len).contains(at);
                        assert!((0..targets.len()).filter(is_beside).all(|at| target[at] == targets[at]), "{len}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "shorter than the source")]
    fn a_target_that_is_too_short_is_refused() {
        Factor::new(2).add_to(&[1, 2, 3], &mut [0, 0]);
    }

    #[test]
    fn a_missing_library_is_told_and_a_present_one_is_used() {
        // Both kernels are correct, but the one in use must match the prepared factors.
        match Kernel::best() {
            Kernel::IsaL => assert!(Factor::new(2).isal.is_some()),
            Kernel::Portable => {
                println!(
                    "SKIPPED: ISA-L is not installed, only the portable loop is tested (apt-get install libisal2)"
                );
                assert!(Factor::new(2).isal.is_none());
            }
        }
        assert!(Factor::new(1).isal.is_none() && Factor::portable(2).isal.is_none());
    }

    proptest! {
        #[test]
        fn several_targets_at_once_are_as_one_by_one(
            values in proptest::collection::vec((any::<u8>(), any::<bool>()), 0..20),
            len in prop_oneof![0usize..300, proptest::sample::select(LENGTHS.to_vec())],
            seed in any::<u64>(),
        ) {
            let source = bytes(seed, len);
            let starts: Vec<Vec<u8>> = (0..values.len()).map(|at| bytes(!seed ^ at as u64, len + at % 3)).collect();
            let make = |(value, portable): &(u8, bool)| if *portable { Factor::portable(*value) } else { Factor::new(*value) };
            let factors: Vec<Factor> = values.iter().map(make).collect();
            let mut sums = starts.clone();
            let mut targets: Vec<&mut [u8]> = sums.iter_mut().map(|sum| &mut sum[..]).collect();
            add_to_all(&factors, &source, &mut targets);
            for ((sum, start), factor) in sums.iter().zip(&starts).zip(&factors) {
                prop_assert_eq!(sum, &expected(factor.value(), &source, start));
            }
        }
    }
}
