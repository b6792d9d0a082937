//! A parity part, which one member of a set keeps for the other members.
//!
//! It has the form of a shard (header, table, block index, bodies: see `format::shard`) but with different magic bytes, so
//! the code that stores, moves and verifies shards also handles parts. Its regions are `set`, which is the [`SetInfo`], and
//! `parity.0`, `parity.1`, …, which are the parities that [`super::stripes`] assigns to this member.

#![forbid(unsafe_code)]

use super::stripes::SetInfo;
use crate::base::Rank;
use crate::format::shard::{Head, Layout};
use crate::format::{Content, FormatError, Region, RegionKind, ShardMeta, codec};
use crate::tier::TierError;
use crate::tier::names::Series;
use crate::tier::source::Source;

const SET: &str = "set";
const WHAT: &str = "parity part";

/// The name of the region that holds a member's parity with this number.
fn parity_name(number: u32) -> String {
    format!("parity.{number}")
}

/// The layout of a part, and the encoded set that is its first body.
///
/// # Errors
/// [`FormatError`] if the block size is not allowed or the part is too large.
pub fn layout(series: &Series, set: &SetInfo, block_bytes: u64) -> Result<(Layout, Vec<u8>), FormatError> {
    let encoded = codec::encode(WHAT, set)?;
    let mut regions = vec![Region::of_bytes(SET, RegionKind::Value, encoded.len() as u64)];
    let parity = |number| Region::of_bytes(parity_name(number), RegionKind::Array, set.chunk());
    regions.extend((0..set.parity).map(parity));
    let meta = ShardMeta { job: series.job.clone(), group: series.group.clone(), name: series.name.clone(), regions };
    Ok((Layout::new(meta, block_bytes)?, encoded))
}

/// The region that holds a parity.
pub fn parity_region(head: &Head, number: u32) -> Option<&Region> {
    head.region(&parity_name(number))
}

/// The set that a part describes, and the place of the part's own member in it. `encoded` is the body of its region `set`.
///
/// # Errors
/// [`FormatError`] if `encoded` describes an impossible set, or one that does not fit the part.
pub fn set_of(head: &Head, encoded: &[u8]) -> Result<(SetInfo, usize), FormatError> {
    let set: SetInfo = codec::decode(WHAT, encoded)?;
    let place = set.place(head.header.rank).filter(|_| set.is_sound() && head.header.content == Content::Parity);
    let has = |number: u32| parity_region(head, number).is_some_and(|region| region.bytes == set.chunk());
    match place.filter(|_| (0..set.parity).all(has)) {
        Some(place) => Ok((set, place)),
        None => Err(FormatError::invalid(WHAT, "its set does not match it")),
    }
}

/// A part that was found on a tier.
#[derive(Clone)]
pub struct Part {
    /// The set, as it was when the part was made.
    pub set: SetInfo,
    /// The place of the part's member in the set.
    pub place: usize,
    /// Its bytes.
    pub source: Source,
}

impl Part {
    /// Reads and checks the description of the set.
    ///
    /// # Errors
    /// [`TierError`] if the part is damaged, or describes an impossible set.
    ///
    /// # Blocking
    /// On the device that holds the part.
    pub fn open(source: Source) -> Result<Part, TierError> {
        let format = |source_error| TierError::Format {
            tier: source.tier(),
            path: source.path().to_owned(),
            source: source_error,
        };
        let head = source.head();
        let region = head.region(SET).ok_or_else(|| format(FormatError::invalid(WHAT, "it names no set")))?.clone();
        // The part's own length bounds the length of the region; what the set must describe bounds the set.
        if region.bytes > 1 << 20 {
            return Err(format(FormatError::invalid(WHAT, "its set is too long")));
        }
        let mut bytes = vec![0; region.bytes as usize];
        source.read_region(&region, &mut bytes)?;
        let (set, place) = set_of(head, &bytes).map_err(format)?;
        Ok(Part { set, place, source })
    }

    /// The rank that holds it.
    pub fn rank(&self) -> Rank {
        self.source.head().header.rank
    }

    /// Where a parity begins within the part.
    pub fn offset_of(&self, parity: u32) -> u64 {
        let head = self.source.head();
        parity_region(head, parity).map_or(0, |region| head.header.body_offset + region.offset)
    }
}
