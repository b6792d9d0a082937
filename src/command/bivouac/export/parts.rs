//! The shards that hold a region, and how they fit together. [`find`] looks for them; the rest is pure.
#![forbid(unsafe_code)]

use crate::ending::Problem;
use crate::npy::{descr, tuple};
use crate::output::{ranks, short};
use crate::shards::{Place, Spot};
use bivouac_core::format::{ElementType, Region, RegionKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One rank's part of the region.
pub struct Part {
    /// The place of its shard.
    pub spot: Spot,
    /// The region, as the shard's head describes it.
    pub region: Region,
}

impl Part {
    /// Element type and shape, in NumPy's words.
    pub fn describe(&self) -> String {
        format!("{} {}", descr(self.region.element), tuple(&self.shape()))
    }

    /// The recorded shape, or one dimension if that shape does not describe the bytes.
    pub fn shape(&self) -> Vec<u64> {
        let Region { shape, element, bytes, .. } = &self.region;
        let product = shape.iter().try_fold(element.bytes(), |product, extent| product.checked_mul(*extent));
        match product == Some(*bytes) {
            true => shape.clone(),
            false => vec![bytes.checked_div(element.bytes()).unwrap_or_default()],
        }
    }
}

/// The parts of a region that were found in a place.
pub struct Found {
    /// The place, for reading.
    pub place: Place,
    /// The parts, ascending by rank.
    pub parts: Vec<Part>,
    /// Ranks in the group.
    pub group_size: u32,
}

/// Looks for a region of all ranks, or of one.
///
/// # Errors
/// The region does not exist, or parts that should exist are damaged.
pub fn find(path: &Path, region: &str, rank: Option<u32>) -> Result<Found, Problem> {
    let place = Place::of(path)?;
    let (mut found, mut names) = (BTreeMap::new(), BTreeSet::new());
    let here = place.each(rank, |spot, shard| {
        let head = shard.head();
        names.extend(head.meta.regions.iter().map(|region| region.name.clone()));
        // The ranks agreed on the names of their regions.
        if let Some(region) = head.region(region) {
            found.insert(spot.rank(), Part { spot, region: region.clone() });
        }
        Ok(())
    })?;
    let parts: Vec<Part> = found.into_values().collect();
    if parts.is_empty() {
        return Err(place.no_region(region, &names));
    }
    if parts.iter().any(|part| part.region.kind == RegionKind::Value) {
        return Err(format!(
            "region {:?} is a value that the program encoded (serde), not an array: only the program can read it",
            short(region)
        )
        .into());
    }
    Ok(Found { place, parts, group_size: here.group_size })
}

/// Element type and shape of all parts when they are joined along the first axis.
///
/// # Errors
/// The parts do not fit together, or some are missing.
pub fn joined(found: &Found) -> Result<(ElementType, Vec<u64>), String> {
    let advice = "give --rank N, or a file name with {rank} for one file per rank";
    let Some(first) = found.parts.first() else { return Err("there is no part".into()) };
    let here = found.parts.iter().map(|part| part.spot.rank());
    if here.len() as u64 != u64::from(found.group_size) {
        return Err(format!(
            "only the shards of ranks {} of {} are here, but one array needs those of all ranks: name the folder on the global tier, or \
             {advice}",
            ranks(here),
            found.group_size
        ));
    }
    let mut whole = first.shape();
    // Single numbers become an array with one element for each rank.
    if whole.is_empty() {
        whole.push(1);
    }
    for part in &found.parts[1..] {
        let mut shape = part.shape();
        if shape.is_empty() {
            shape.push(1);
        }
        if part.region.element != first.region.element || shape[1..] != whole[1..] || shape.len() != whole.len() {
            return Err(format!(
                "the parts do not fit together: rank {} has {}, rank {} has {}; {advice}",
                first.spot.rank(),
                first.describe(),
                part.spot.rank(),
                part.describe()
            ));
        }
        whole[0] = whole[0].checked_add(shape[0]).ok_or("the first axis is too long")?;
    }
    Ok((first.region.element, whole))
}
