//! The compressed bytes of a frame of a packed shard: the byte planes of its elements, as one zstd frame. This is the only file that names
//! `zstd`.

use super::FormatError;
use std::ops::{Range, RangeInclusive};

/// The fastest of zstd's levels that exploits the redundancy of shuffled numbers: the next levels halve the speed to gain a
/// hundredth.
const LEVEL: i32 = 1;
/// The lengths of the elements, in bytes, whose bytes are separated into planes.
const SHUFFLED: RangeInclusive<usize> = 2..=64;
/// A frame that does not become shorter by a sixteenth is kept as it is.
const WORTH: usize = 16;
/// The number of bytes that are tried before a whole frame is compressed.
const SAMPLE: usize = 16 << 10;

/// Arranges the bytes in planes: the first bytes of all elements, then their second bytes, up to their last bytes. An
/// incomplete element remains at the end.
fn shuffle(from: &[u8], element: usize, to: &mut [u8]) {
    let count = from.len() / element;
    let (planes, rest) = to.split_at_mut(count * element);
    for (byte, plane) in planes.chunks_exact_mut(count.max(1)).enumerate() {
        for (target, element) in plane.iter_mut().zip(from.chunks_exact(element)) {
            *target = element[byte];
        }
    }
    rest.copy_from_slice(&from[count * element..]);
}

/// The reverse of [`shuffle`].
fn unshuffle(from: &[u8], element: usize, to: &mut [u8]) {
    let count = from.len() / element;
    let (planes, rest) = from.split_at(count * element);
    for (byte, plane) in planes.chunks_exact(count.max(1)).enumerate() {
        for (source, element) in plane.iter().zip(to.chunks_exact_mut(element)) {
            element[byte] = *source;
        }
    }
    to[count * element..].copy_from_slice(rest);
}

/// The length of the elements, if elements of this length are separated into planes.
fn shuffled(element: u64) -> Option<usize> {
    usize::try_from(element).ok().filter(|element| SHUFFLED.contains(element))
}

/// Compresses frames, one after the other.
pub struct Compressor {
    context: zstd::bulk::Compressor<'static>,
    planes: Vec<u8>,
    packed: Vec<u8>,
    /// How many attempts in a row were useless, and how many frames are skipped before the next attempt.
    misses: u32,
    passes: u32,
}

/// The maximum number of times that the distance between useless attempts doubles.
const MISSES_MAX: u32 = 4;

impl Compressor {
    /// Creates a new compressor.
    ///
    /// # Errors
    /// If the library has no memory.
    pub fn new() -> std::io::Result<Compressor> {
        let context = zstd::bulk::Compressor::new(LEVEL)?;
        Ok(Compressor { context, planes: Vec::new(), packed: Vec::new(), misses: 0, passes: 0 })
    }

    /// Should the next frame be tried? After frames for which compression was useless, only some are.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.passes == 0;
        self.passes = self.passes.saturating_sub(1);
        is_due
    }

    /// The part of a frame of this many bytes that shows whether compressing the whole frame is worthwhile.
    pub fn sample(bytes: usize) -> Range<usize> {
        let from = (bytes.saturating_sub(SAMPLE) / 2).next_multiple_of(64).min(bytes);
        from..bytes.min(from + SAMPLE)
    }

    /// Does this sample become shorter?
    pub fn is_promising(&mut self, sample: &[u8], element: u64) -> bool {
        let is_promising = self.pack(sample, element);
        if !is_promising {
            self.missed();
        }
        is_promising
    }

    /// The compressed form of `bytes`, whose elements have `element` bytes each, if it is shorter by at least a sixteenth.
    pub fn compress(&mut self, bytes: &[u8], element: u64) -> Option<Box<[u8]>> {
        if self.pack(bytes, element) {
            self.misses = 0;
            return Some(self.packed.as_slice().into());
        }
        self.missed();
        None
    }

    fn missed(&mut self) {
        self.passes = (1 << self.misses) - 1;
        self.misses = (self.misses + 1).min(MISSES_MAX);
    }

    /// Compresses into `packed`, and returns whether this is worthwhile.
    fn pack(&mut self, bytes: &[u8], element: u64) -> bool {
        let from = match shuffled(element) {
            Some(element) => {
                self.planes.resize(bytes.len(), 0);
                shuffle(bytes, element, &mut self.planes);
                &self.planes
            }
            None => bytes,
        };
        // A longer result is not wanted; the library gives up at this length.
        self.packed.resize(bytes.len() - bytes.len().div_ceil(WORTH), 0);
        match self.context.compress_to_buffer(from, self.packed.as_mut_slice()) {
            Ok(length) => {
                self.packed.truncate(length);
                length > 0
            }
            Err(_) => false,
        }
    }
}

/// Expands frames, one after the other.
pub struct Expander {
    context: zstd::bulk::Decompressor<'static>,
    planes: Vec<u8>,
}

impl Expander {
    /// Creates a new expander.
    ///
    /// # Errors
    /// If the library has no memory.
    pub fn new() -> std::io::Result<Expander> {
        Ok(Expander { context: zstd::bulk::Decompressor::new()?, planes: Vec::new() })
    }

    /// Expands a compressed frame, whose elements have `element` bytes each, into `bytes`, which it must fill exactly.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] if the frame is damaged.
    pub fn expand(&mut self, packed: &[u8], element: u64, bytes: &mut [u8]) -> Result<(), FormatError> {
        let element = shuffled(element);
        let target = match element {
            Some(_) => {
                self.planes.resize(bytes.len(), 0);
                &mut self.planes[..]
            }
            None => &mut *bytes,
        };
        let wrong = |why: String| FormatError::invalid("packed shard", format!("one of its frames {why}"));
        let expected = target.len();
        let length = self.context.decompress_to_buffer(packed, target);
        let length = length.map_err(|error| wrong(format!("cannot be expanded: {error}")))?;
        if length != expected {
            return Err(wrong(format!("stands for {length} bytes, but should stand for {expected}")));
        }
        if let Some(element) = element {
            unshuffle(&self.planes, element, bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use proptest::prelude::*;

    fn round(bytes: &[u8], element: u64) -> Option<usize> {
        let packed = Compressor::new().unwrap().compress(bytes, element)?;
        let mut expander = Expander::new().unwrap();
        let mut back = vec![1; bytes.len()];
        expander.expand(&packed, element, &mut back).unwrap();
        assert!(back == bytes);
        let mut short = vec![0; bytes.len() - 1];
        assert!(expander.expand(&packed, element, &mut short).is_err(), "it takes any length");
        let mut long = vec![0; bytes.len() + 1];
        assert!(expander.expand(&packed, element, &mut long).is_err(), "it takes any length");
        Some(packed.len())
    }

    proptest! {
        #[test]
        fn what_is_expanded_is_what_was_compressed(
            seed in any::<u64>(), length in 1..70_000usize, element in 0..70u64, few in 1..200u8,
        ) {
            let mut rng = Rng::new(seed);
            round(&(0..length).map(|_| rng.next_u64() as u8 % few).collect::<Vec<u8>>(), element);
        }
    }

    #[test]
    fn smooth_numbers_become_shorter_in_planes() {
        let numbers: Vec<u8> = (0..1 << 17).flat_map(|i| (f64::from(i) * 1e-3).sin().to_le_bytes()).collect();
        let (apart, together) = (round(&numbers, 8), round(&numbers, 1));
        assert!(apart.is_some_and(|apart| together.is_none_or(|together| apart < together)), "{apart:?} {together:?}");
    }

    #[test]
    fn after_frames_of_noise_only_some_are_tried() {
        let mut rng = Rng::new(1);
        let noise: Vec<u8> = (0..1 << 16).map(|_| rng.next_u64() as u8).collect();
        let mut compressor = Compressor::new().unwrap();
        assert!((0..40).all(|_| !compressor.is_due() || !compressor.is_promising(&noise, 8)));
        let zeros = vec![0; 1 << 16];
        let tried: Vec<usize> =
            (0..40).filter(|_| compressor.is_due() && compressor.compress(&zeros, 8).is_some()).collect();
        assert!(tried[0] > 0 && tried[0] < 16 && tried.len() == 40 - tried[0], "{tried:?}");
    }

    #[test]
    fn hostile_frames_are_errors() {
        let packed = Compressor::new().unwrap().compress(&[7; 4096], 4).unwrap();
        let mut expander = Expander::new().unwrap();
        let mut bytes = [0; 4096];
        for at in 0..packed.len() {
            let mut wrong = packed.to_vec();
            wrong[at] ^= 0x55;
            let _ = expander.expand(&wrong, 4, &mut bytes);
            assert!(expander.expand(&packed[..at], 4, &mut bytes).is_err());
        }
        assert!(expander.expand(&packed, 4, &mut bytes).is_ok());
    }
}
