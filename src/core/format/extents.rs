//! Extents as bytes. Each takes three or four bytes, because a shard in chunks of 32 bytes has millions of extents. Pure.
//!
//! Lengths and distances are counted in *units*. The unit is the largest power of two of which they all are multiples, and is usually the
//! length of a chunk. The last extent of a region may end within its last unit. The number that encodes the length also says where the
//! bytes are stored. A reference is the distance from the extent's place to the place of the bytes: 0 for bytes that have not moved.
#![forbid(unsafe_code)]

use super::frames::{Compressor, Expander};
use super::packed::{Extent, Packing, Placed, Stored};
use super::shard::Region;
use super::{FormatError, codec, numbers};
use std::borrow::Cow;

/// The maximum number of extents of a packed shard. A reader's representation of each takes 44 bytes, and that of all of them 176 MiB.
pub const EXTENTS_MAX: usize = 1 << 22;

/// The exponent of the largest unit, which is a page.
const SHIFT_MAX: u32 = 12;
/// The numbers that say where an extent is stored: 0 for bytes of its own, 1 for bytes of another extent, and 2 or more
/// for a source.
const OWN: u64 = 0;
const SAME: u64 = 1;
const IN: u64 = 2;

const WHAT: &str = "packed shard";

/// Encodes the extents of a packing.
///
/// # Errors
/// [`FormatError::Invalid`] if there are more than [`EXTENTS_MAX`], or they take more bytes than metadata may have.
pub(super) fn encode(packing: &Packing) -> Result<Vec<u8>, FormatError> {
    let count = packing.extents.len();
    if count > EXTENTS_MAX {
        return Err(FormatError::invalid(WHAT, format!("{count} extents, but at most {EXTENTS_MAX} are allowed")));
    }
    let (shift, kinds) = (unit_of(packing), IN + packing.outline.sources.len() as u64);
    let mut bytes = Vec::with_capacity(4 * count + 8);
    numbers::put(&mut bytes, count as u64);
    numbers::put(&mut bytes, shift.into());
    for extent in &packing.extents {
        let kind = match extent.stored {
            Stored::Own => OWN,
            Stored::Same { .. } => SAME,
            Stored::In { source, .. } => IN + u64::from(source),
        };
        let number = (((extent.length - 1) >> shift) + 1).checked_mul(kinds).and_then(|units| units.checked_add(kind));
        numbers::put(&mut bytes, number.ok_or_else(|| FormatError::invalid(WHAT, "an extent is too long"))?);
        if let Some(step) = step(extent) {
            numbers::put(&mut bytes, numbers::from_step(step >> shift));
        }
    }
    if bytes.len() > codec::LIMIT {
        let why = format!("{} bytes of extents, but at most {} are allowed", bytes.len(), codec::LIMIT);
        return Err(FormatError::invalid(WHAT, why));
    }
    Ok(bytes)
}

/// The distance from the place of an extent to the place of the bytes to which it refers, modulo 2^64, as a reader adds
/// it.
fn step(extent: &Placed) -> Option<i64> {
    match extent.stored {
        Stored::Own => None,
        Stored::In { offset, .. } | Stored::Same { offset } => Some(offset.wrapping_sub(extent.at) as i64),
    }
}

/// The exponent of the unit of the extents.
fn unit_of(packing: &Packing) -> u32 {
    let mut bits = 1u64 << SHIFT_MAX;
    for region in &packing.outline.head.meta.regions {
        let end = region.offset + region.bytes;
        for extent in packing.extents_in(region.offset..end) {
            let length = if extent.end() < end { extent.length } else { 0 };
            bits |= length | step(extent).unwrap_or(0) as u64;
        }
    }
    bits.trailing_zeros()
}

/// Decodes the extents of a shard with these regions, whose file refers to `sources` sources.
///
/// # Errors
/// [`FormatError::Invalid`] if the bytes are not extents that cover the regions, or are not in the one form that encoding gives.
pub(super) fn decode(mut bytes: &[u8], regions: &[Region], sources: usize) -> Result<Vec<Extent>, FormatError> {
    let rule = |holds: bool, why: &str| if holds { Ok(()) } else { Err(FormatError::invalid(WHAT, why)) };
    let count = number(&mut bytes)?;
    // Each extent takes at least one byte.
    rule(count <= EXTENTS_MAX.min(bytes.len()) as u64, "it claims more extents than it can have")?;
    let shift = number(&mut bytes)?;
    rule(shift <= SHIFT_MAX.into(), "the unit of its extents is larger than a page")?;
    let (unit, kinds) = (1u64 << shift, IN + sources as u64);
    let mut extents = Vec::with_capacity(count as usize);
    for region in regions {
        let (mut at, end) = (region.offset, region.offset + region.bytes);
        while at < end {
            rule((extents.len() as u64) < count, "its extents end before its regions")?;
            let word = number(&mut bytes)?;
            let (units, kind, left) = (word / kinds, word % kinds, end - at);
            rule(units > 0 && units - 1 <= (left - 1) >> shift, "an extent is empty, or longer than its region")?;
            let length = (((units - 1) << shift).saturating_add(unit)).min(left);
            let mut offset = || -> Result<u64, FormatError> {
                let step = numbers::to_step(number(&mut bytes)?);
                rule((step << shift) >> shift == step, "an extent refers to an impossible place")?;
                Ok(at.wrapping_add((step << shift) as u64))
            };
            let stored = match kind {
                OWN => Stored::Own,
                SAME => Stored::Same { offset: offset()? },
                _ => Stored::In { source: (kind - IN) as u32, offset: offset()? },
            };
            extents.push(Extent { length, stored });
            at += length;
        }
    }
    rule(extents.len() as u64 == count, "extents follow its last region")?;
    rule(bytes.is_empty(), "bytes follow its extents")?;
    Ok(extents)
}

/// Puts a 0 before the encoded extents, or, if this function compresses them, the length of their uncompressed form.
pub(super) fn compressed(extents: Vec<u8>, compress: bool) -> Vec<u8> {
    // If there is no memory for a compressor, the extents stay as they are.
    let compressor = if compress { Compressor::new().ok() } else { None };
    let packed = compressor.and_then(|mut compressor| compressor.compress(&extents, 1));
    let (bytes, body) = packed.as_deref().map_or((0, &extents[..]), |packed| (extents.len() as u64, packed));
    let mut all = Vec::with_capacity(body.len() + 4);
    numbers::put(&mut all, bytes);
    all.extend_from_slice(body);
    all
}

/// The reverse of [`compressed`].
///
/// # Errors
/// [`FormatError::Invalid`] if the extents are damaged.
pub(super) fn expanded(mut extents: &[u8]) -> Result<Cow<'_, [u8]>, FormatError> {
    let bytes = number(&mut extents)?;
    if bytes > codec::LIMIT as u64 {
        return Err(FormatError::invalid(WHAT, format!("its extents are too long: {bytes} bytes")));
    }
    if bytes == 0 {
        return Ok(Cow::Borrowed(extents));
    }
    let no_memory = |error| FormatError::invalid(WHAT, format!("its extents cannot be expanded: {error}"));
    let mut all = vec![0; bytes as usize];
    Expander::new().map_err(no_memory)?.expand(extents, 1, &mut all)?;
    Ok(Cow::Owned(all))
}

fn number(bytes: &mut &[u8]) -> Result<u64, FormatError> {
    numbers::take(bytes).ok_or_else(|| FormatError::invalid(WHAT, "a number in its extents is truncated, or too long"))
}

#[cfg(test)]
mod tests {
    use super::super::packed::SourceKey;
    use super::super::shard::{Layout, RegionKind, ShardMeta, encode_head};
    use super::*;
    use crate::base::{CheckpointKey, Digest, Generation, Incarnation, Rank};
    use proptest::prelude::*;

    fn key(operation: u64) -> CheckpointKey {
        CheckpointKey { generation: Generation(1), version: operation, operation, incarnation: Incarnation([1; 16]) }
    }

    /// A packing of a shard whose regions have these numbers of bytes.
    fn packing(regions: &[u64], sources: u64, extents: &[Extent]) -> Result<Packing, FormatError> {
        let region = |(index, bytes): (usize, &u64)| Region::of_bytes(format!("r{index}"), RegionKind::Array, *bytes);
        let regions = regions.iter().enumerate().map(region).collect();
        let meta = ShardMeta { job: "job".into(), group: "world".into(), name: "heat".into(), regions };
        let layout = Layout::new(meta, 4096)?;
        let blocks = layout.meta.regions.iter().map(|region| region.blocks(4096)).sum::<u64>();
        let header = layout.header(key(99), 7, 1, Rank(0), None);
        let mut head = vec![0; layout.body_offset as usize];
        encode_head(&layout, &header, &vec![Digest([0; 16]); blocks as usize], &mut head);
        Packing::new(head, (0..sources).map(|n| SourceKey { key: key(n + 1), agreement: 7 }).collect(), extents)
    }

    fn decoded(packing: &Packing, bytes: &[u8]) -> Result<Vec<Extent>, FormatError> {
        decode(bytes, &packing.outline.head.meta.regions, packing.outline.sources.len())
    }

    fn numbers_of(numbers: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| numbers::put(&mut bytes, *number));
        bytes
    }

    /// Three regions of arbitrary lengths, with random extents in units of `unit`. References within the file point to
    /// bytes that the file stores.
    fn random(seed: u64, unit: u64) -> ([u64; 3], u64, Vec<Extent>) {
        let mut rng = crate::base::rng::Rng::new(seed);
        let regions = [8192, 0, 4096 + rng.below(4096)].map(|bytes| bytes - rng.below(2) * bytes.min(rng.below(40)));
        let (sources, mut extents, mut own) = (1 + rng.below(20), Vec::new(), Vec::new());
        let mut start = 0;
        for bytes in regions {
            let mut at = start;
            while at < start + bytes {
                let length = (unit * (1 + rng.below(5))).min(start + bytes - at);
                let known = own.iter().find(|(_, bytes)| *bytes == length && rng.chance(1, 2));
                let stored = match rng.below(4) {
                    0 => Stored::Own,
                    1 => known.map_or(Stored::Own, |(offset, _)| Stored::Same { offset: *offset }),
                    2 => Stored::In { source: rng.below(sources) as u32, offset: at },
                    _ => Stored::In { source: rng.below(sources) as u32, offset: unit * rng.below(1 << 40) },
                };
                if stored == Stored::Own {
                    own.push((at, length));
                }
                extents.push(Extent { length, stored });
                at += length;
            }
            start = at.next_multiple_of(4096);
        }
        (regions, sources, extents)
    }

    #[test]
    fn a_chunk_that_has_not_moved_takes_two_bytes_and_its_own_one() {
        let taken = |offset| Extent { length: 128, stored: Stored::In { source: 6, offset } };
        let own = |length| Extent { length, stored: Stored::Own };
        let packing = packing(&[384], 7, &[taken(0), own(128), taken(128 * 65)]).unwrap();
        let bytes = encode(&packing).unwrap();
        assert_eq!(bytes, [3, 7, 9 + 8, 0, 9, 9 + 8, 126]);
        assert_eq!(decoded(&packing, &bytes).unwrap()[1], own(128));
    }

    #[test]
    fn many_that_are_alike_take_little_and_what_is_wrong_with_that_is_said() {
        let one = |number: u32| match number % 3 {
            0 => Extent { length: 128, stored: Stored::Own },
            _ => Extent { length: 128, stored: Stored::In { source: number % 3, offset: 128 * u64::from(number % 7) } },
        };
        let extents: Vec<Extent> = (0..10_000).map(one).collect();
        let packing = packing(&[1_280_000], 3, &extents).unwrap();
        let plain = encode(&packing).unwrap();
        let as_it_is = compressed(plain.clone(), false);
        assert_eq!((as_it_is[0], &as_it_is[1..], &*expanded(&as_it_is).unwrap()), (0, &plain[..], &plain[..]));
        let packed = compressed(plain.clone(), true);
        assert!(packed.len() < plain.len() / 2, "{} of {}", packed.len(), plain.len());
        assert_eq!(&*expanded(&packed).unwrap(), &plain[..]);
        // Extents that do not become shorter stay as they are.
        assert_eq!(compressed(vec![3, 7, 9], true), [0, 3, 7, 9]);
        let frame = {
            let mut rest = &packed[..];
            assert_eq!(number(&mut rest), Ok(plain.len() as u64));
            rest
        };
        let said = |bytes: u64| [&numbers_of(&[bytes])[..], frame].concat();
        for bad in [
            said(plain.len() as u64 + 1),
            said(plain.len() as u64 - 1),
            said(1),
            said(codec::LIMIT as u64 + 1),
            vec![],
            vec![0x80],
        ] {
            assert!(expanded(&bad).is_err());
        }
        assert!(expanded(&packed[..packed.len() - 1]).is_err());
    }

    #[test]
    fn the_last_extent_of_a_region_may_end_within_its_unit() {
        let extents = [Extent { length: 64, stored: Stored::Own }, Extent { length: 61, stored: Stored::Own }];
        let packing = packing(&[125], 0, &extents).unwrap();
        let bytes = encode(&packing).unwrap();
        assert_eq!((&bytes[..], decoded(&packing, &bytes)), (&[2, 6, 2, 2][..], Ok(extents.to_vec())));
        for bad in [[2, 6, 2, 4], [2, 6, 0, 2], [2, 6, 4, 2], [2, 13, 2, 2], [1, 6, 2, 2], [3, 6, 2, 2]] {
            assert!(decoded(&packing, &bad).is_err(), "{bad:?}");
        }
        assert!(decoded(&packing, &[2, 6, 2, 2, 0]).is_err());
        assert!(decoded(&packing, &[2, 6, 2, 0x82, 0]).is_err());
    }

    #[test]
    fn numbers_that_cannot_be_are_no_extents() {
        let own = [Extent { length: 4096, stored: Stored::Own }];
        let packing = packing(&[4096], 1, &own).unwrap();
        let of = |numbers: &[u64]| decoded(&packing, &numbers_of(numbers));
        assert_eq!(of(&[1, 12, 3]), Ok(own.to_vec()));
        // A count beyond the bytes or the limit, and a length or a distance that does not fit in 64 bits.
        for numbers in [&[u64::MAX, 0][..], &[2, 12, 3], &[1, 12, u64::MAX], &[1, 12, 5, u64::MAX], &[1, 12, 5]] {
            assert!(of(numbers).is_err(), "{numbers:?}");
        }
        let most = [numbers_of(&[EXTENTS_MAX as u64 + 1, 0]), vec![3; EXTENTS_MAX + 1]].concat();
        assert!(decoded(&packing, &most).unwrap_err().to_string().contains("more extents"));
        // The farthest reference that is possible.
        let far = Stored::In { source: 0, offset: u64::MAX - 4096 };
        let packing = self::packing(&[4096], 1, &[Extent { length: 4096, stored: far }]).unwrap();
        let bytes = encode(&packing).unwrap();
        assert_eq!(decoded(&packing, &bytes).unwrap()[0].stored, far);
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(seed: u64, unit in prop_oneof![Just(1u64), Just(33), Just(32), Just(4096)]) {
            let (regions, sources, extents) = random(seed, unit);
            let packing = packing(&regions, sources, &extents).unwrap();
            let bytes = encode(&packing).unwrap();
            prop_assert_eq!(decoded(&packing, &bytes), Ok(extents));
            // Truncated bytes are invalid.
            prop_assert!(decoded(&packing, &bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..60), count in 0u64..40) {
            let packing = packing(&[8192, 5], 2, &[8192, 5].map(|length| Extent { length, stored: Stored::Own })).unwrap();
            let bytes = [numbers_of(&[count]), bytes].concat();
            if let Ok(extents) = decoded(&packing, &bytes) {
                prop_assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), 8197);
            }
        }
    }
}
