//! An array that lies over the shards of a checkpoint, read by the places of its elements.
//!
//! [`Array::find`] reads the decomposition records of all shards in a place, and nothing else of them. [`Array::read`] brings one *band* of the array, a
//! box that fits a buffer, from the shards that have something of it. Whole blocks are read and held against their digests. Bands that
//! [`bands`] makes are one piece of the array in the order of C, and so what a box of a shard has of one is one piece of the shard: as bands follow
//! each other, each block is read once if it is kept from one band to the next. A budget bounds what is kept.
#![forbid(unsafe_code)]

use crate::body::{self, RECORD_MAX};
use crate::ending::{self, Ending, Problem};
use crate::output::{ranks, short};
use crate::shards::{Here, Place, Spot};
use crate::verify::tiling::{PIECES_MAX, Verdict, prove_in};
use bivouac_core::base::Rank;
use bivouac_core::base::units::MIB;
use bivouac_core::decomposition::proof::Finding;
use bivouac_core::decomposition::strides::Strides;
use bivouac_core::decomposition::{Cuboid, DIMS, Identity, PackedParts, Rule, View, ids};
use bivouac_core::format::{ElementType, Region, RegionKind};
use bivouac_core::tier::TierError;
use bivouac_core::tier::source::{FileShard, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Bytes of a band.
pub const BAND_BYTES: u64 = 64 * MIB;
/// Bytes of shards that stay open from one band to the next, heads and blocks.
const OPEN_BYTES: usize = 128 << 20;
const NO_MARGIN: [u64; DIMS] = [0; DIMS];

/// One rank's part of an array.
struct Share {
    spot: Spot,
    /// The region, as the shard's head describes it.
    region: Region,
    /// Its boxes, as the record has them.
    packed: Vec<u8>,
    /// A box around them.
    bounds: Cuboid,
}

impl Share {
    fn parts(&self) -> Option<PackedParts<'_>> {
        PackedParts::of(&self.packed)
    }

    fn boxes(&self) -> impl Iterator<Item = Cuboid> + use<'_> {
        self.parts().into_iter().flat_map(|parts| parts.boxes())
    }
}

/// A shard that is open, and the block of it that was read last.
struct Open {
    source: Source,
    region: Region,
    block: Vec<u8>,
    /// Which one that is.
    at: Option<usize>,
}

/// What kind of region it is, if it is not an array that is spread over the ranks.
pub enum Plain {
    /// A value that all ranks have in common.
    Shared,
    /// A value of each rank.
    PerRank,
    /// A column of rows, of which each rank has a number of its own.
    Rows,
    /// An array of each rank's own.
    OwnArray,
    /// A value of each rank's own, of which nobody has said anything else.
    OwnValue,
}

/// What was found of a region.
pub enum Found {
    /// It is spread over the ranks.
    Array(Box<Array>),
    /// It does not.
    Plain(Plain),
}

/// An array in the shards of a place.
pub struct Array {
    place: Place,
    /// Ascending by rank.
    shares: Vec<Share>,
    here: Here,
    name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// How many dimensions it has.
    pub dims: usize,
    /// All its elements.
    pub whole: Cuboid,
    /// The parts of all ranks together need not cover it.
    pub is_sparse: bool,
    kept: Kept,
}

/// Shards that stay open, by their places among the shares.
#[derive(Default)]
struct Kept {
    open: BTreeMap<usize, Open>,
    bytes: usize,
}

/// What was read of a band.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Had {
    /// These elements, by their places in the band.
    pub from: usize,
    /// The first one after them.
    pub to: usize,
}

impl Array {
    /// Looks for a region in a place.
    ///
    /// # Errors
    /// It is not there, or shards of it are damaged, or say different things.
    pub fn find(path: &Path, name: &str) -> Result<Found, Problem> {
        let place = Place::of(path)?;
        let (mut shares, mut names, mut left): (BTreeMap<u32, Share>, _, _) =
            (BTreeMap::new(), BTreeSet::new(), RECORD_MAX);
        let (mut plain, mut first) = (None, None);
        let here = place.each(None, |spot, shard| {
            names.extend(shard.head().meta.regions.iter().map(|region| region.name.clone()));
            match looked_at(&spot, shard, name, &mut left)? {
                None => {}
                Some(Said::Plain(other)) => plain = Some(other),
                Some(Said::On(said)) => {
                    let common = (said.identity, said.region.element, said.whole, said.dims, said.is_sparse);
                    let (of_first, rank) = *first.get_or_insert((common, spot.rank()));
                    if common != of_first {
                        let text =
                            format!("region {:?} has a different decomposition from that of rank {rank}", short(name));
                        return Err(Problem::damage(format!("{}: {text}", spot.title())));
                    }
                    let OnArray { region, packed, bounds, .. } = *said;
                    shares.insert(spot.rank(), Share { spot, region, packed, bounds });
                }
            }
            Ok(())
        })?;
        match (first, plain) {
            (None, None) => Err(place.no_region(name, &names)),
            (None, Some(plain)) => Ok(Found::Plain(plain)),
            (Some(_), Some(_)) => {
                let path = place.path.display();
                let text =
                    format!("{path}: region {:?} is part of an array on some ranks, but not on others", short(name));
                Err(Problem::damage(format!("{text}; run bivouac verify to see which")))
            }
            (Some(((_, element, whole, dims, is_sparse), _)), None) => {
                let (shares, name) = (shares.into_values().collect(), name.to_owned());
                let kept = Kept::default();
                let of = Array { place, shares, here, name, element, dims, whole, is_sparse, kept };
                Ok(Found::Array(Box::new(of)))
            }
        }
    }

    /// Its extents, slowest first.
    pub fn shape(&self) -> &[u64] {
        &self.whole.to[..self.dims]
    }

    /// Ranks whose shards are here.
    pub fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.here.ranks.iter().copied()
    }

    /// The rank that an element belongs to.
    pub fn rank_of(&self, element: &Cuboid) -> Option<u32> {
        let mut near = self.shares.iter().filter(|share| share.bounds.contains(element));
        near.find(|share| share.boxes().any(|own| own.contains(element))).map(|share| share.spot.rank())
    }

    /// All boxes that shards have of it, by rank.
    pub fn boxes(&self) -> impl Iterator<Item = Cuboid> + '_ {
        self.shares.iter().flat_map(Share::boxes).filter(|own| !own.is_empty())
    }

    /// How many elements they have.
    pub fn elements(&self) -> u64 {
        self.shares.iter().filter_map(Share::parts).map(|parts| parts.elements()).fold(0, u64::saturating_add)
    }

    /// Tells `had` what the shards have of a band, as [`Array::read`] does, and reads nothing.
    pub fn look(&self, band: &Cuboid, mut had: impl FnMut(Had)) {
        for share in self.shares.iter().filter(|share| share.bounds.common(band).is_some()) {
            for common in share.boxes().filter_map(|own| own.common(band)) {
                let to = Strides::inside(&common, band, &NO_MARGIN, &NO_MARGIN, 1);
                to.each(0, to.bytes(), |at, elements| had(Had { from: at, to: at + elements }));
            }
        }
    }

    /// Proves that each element of a section is there once; if `may_lack`, that none is there twice.
    ///
    /// # Errors
    /// It is not so: names the first elements.
    pub fn prove(&self, section: &Cuboid, may_lack: bool) -> Result<(), Problem> {
        let is_covered = !may_lack || !self.here.is_all();
        let parts = self.shares.iter().filter_map(|share| Some((Rank(share.spot.rank()), share.parts()?)));
        let parts: Vec<(Rank, PackedParts<'_>)> = parts.collect();
        let place = format!("{}: region {:?}", self.place.path.display(), short(&self.name));
        match prove_in(&parts, section, is_covered, PIECES_MAX) {
            Verdict::Proved => Ok(()),
            Verdict::Wrong(Finding::Gap(gap)) if !self.here.is_all() => {
                let (here, size) = (ranks(self.ranks()), self.here.group_size);
                let advice = "name the folder on the global tier, or ask for less of the array";
                let gap = gap.shown(self.dims);
                let text = format!(
                    "elements {gap} are not here, because only the shards of ranks {here} of {size} are: {advice}"
                );
                Err(Problem::nothing(format!("{place}: {text}")))
            }
            Verdict::Wrong(Finding::Gap(gap)) if self.is_sparse => {
                let text = format!("elements {} were saved by no rank", gap.shown(self.dims));
                Err(Problem::nothing(format!("{place}: {text}")))
            }
            Verdict::Wrong(wrong) => Err(Problem::damage(format!("{place}: {}", wrong.in_words(self.dims)))),
            Verdict::Open => {
                Err(format!("{place}: it would take too long to prove that no element occurs twice").into())
            }
        }
    }

    /// Reads what the shards have of a band into `buffer`, which is as long as the band, in the order of C. What they do not have stays as it is. `had`
    /// is told what they have, element by element or several at once.
    ///
    /// # Errors
    /// A block cannot be read, or is damaged.
    pub fn read(&mut self, band: &Cuboid, buffer: &mut [u8], had: impl FnMut(Had)) -> Result<(), Problem> {
        let mut kept = std::mem::take(&mut self.kept);
        // What has nothing of this band has nothing of those after it.
        kept.open.retain(|index, _| self.shares[*index].bounds.to[0] > band.from[0]);
        kept.bytes = kept.open.values().map(Open::bytes).sum();
        let result = self.read_with(&mut kept, band, buffer, had);
        self.kept = kept;
        result
    }

    fn read_with(
        &self,
        kept: &mut Kept,
        band: &Cuboid,
        buffer: &mut [u8],
        mut had: impl FnMut(Had),
    ) -> Result<(), Problem> {
        let size = self.element.bytes();
        for (index, share) in self.shares.iter().enumerate() {
            if share.bounds.common(band).is_none() {
                continue;
            }
            let (mut open, mut behind) = (None, 0usize);
            for own in share.boxes() {
                let at = behind;
                behind += (own.volume() * size) as usize;
                let Some(common) = own.common(band) else { continue };
                let open = match &mut open {
                    Some(open) => open,
                    none => none.insert(kept.take(index).map_or_else(|| self.opened(index), Ok)?),
                };
                let from = Strides::inside(&common, &own, &NO_MARGIN, &NO_MARGIN, size);
                let to = Strides::inside(&common, band, &NO_MARGIN, &NO_MARGIN, size);
                let fetched = fetch(open, at, &from, &to, buffer, |from, to| {
                    had(Had { from: from / size as usize, to: to / size as usize });
                });
                fetched.map_err(|error| self.unreadable(index, &error))?;
            }
            open.into_iter().for_each(|open| kept.put(index, open));
        }
        Ok(())
    }

    fn opened(&self, index: usize) -> Result<Open, Problem> {
        let Share { spot, region, .. } = &self.shares[index];
        let shard = self.place.open(spot).map_err(|error| self.unreadable(index, &error))?;
        match shard.head().region(&region.name).filter(|found| *found == region) {
            Some(_) => Ok(Open { source: Source::File(shard), region: region.clone(), block: Vec::new(), at: None }),
            None => Err(format!("{} was replaced while it was read: try again", spot.path.display()).into()),
        }
    }

    fn unreadable(&self, index: usize, error: &TierError) -> Problem {
        let ending = ending::of_tier(error);
        let advice = match ending {
            Ending::Damage => "; another tier may have a good copy, and bivouac verify names the newest good version",
            _ => "",
        };
        let title = self.shares[index].spot.title();
        Problem { ending, text: format!("{error} (region {:?} of {title}){advice}", short(&self.name)) }
    }
}

impl Kept {
    /// Takes one out, to use it.
    fn take(&mut self, index: usize) -> Option<Open> {
        let open = self.open.remove(&index)?;
        self.bytes -= open.bytes();
        Some(open)
    }

    /// Keeps one for the next band. Where there are more than fit, the first ones are kept: each band asks for all in the same order, so that
    /// those that were used last would be gone whenever they are asked for.
    fn put(&mut self, index: usize, open: Open) {
        if self.bytes + open.bytes() <= OPEN_BYTES {
            self.bytes += open.bytes();
            self.open.insert(index, open);
        }
    }
}

impl Open {
    fn bytes(&self) -> usize {
        self.block.capacity() + 16 * self.source.head().digests.len()
    }

    /// Reads bytes of the region, from `at` on.
    fn read(&mut self, mut at: usize, mut target: &mut [u8]) -> Result<(), TierError> {
        let size = self.source.head().header.block_size as usize;
        let bytes = self.region.bytes as usize;
        while !target.is_empty() {
            let begin = at / size * size;
            if self.at != Some(begin) {
                self.at = None;
                self.block.resize(size.min(bytes.saturating_sub(begin)), 0);
                self.source.read_blocks(&self.region, begin, &mut self.block)?;
                self.at = Some(begin);
            }
            let here = (begin + self.block.len()).saturating_sub(at).min(target.len());
            let (now, rest) = target.split_at_mut(here);
            now.copy_from_slice(&self.block[at - begin..at - begin + here]);
            (target, at) = (rest, at + here);
        }
        Ok(())
    }
}

/// Copies the elements of a box that begins at byte `at` of its region to their places in a band. Both are gone through in the same order, in rows that are not
/// of the same length.
fn fetch(
    open: &mut Open,
    at: usize,
    from: &Strides,
    to: &Strides,
    buffer: &mut [u8],
    mut had: impl FnMut(usize, usize),
) -> Result<(), TierError> {
    let (mut done, mut result) = (0, Ok(()));
    from.each(0, from.bytes(), |place, bytes| {
        let mut read = 0;
        to.each(done, done + bytes, |target, bytes| {
            if result.is_ok() {
                result = open.read(at + place + read, &mut buffer[target..target + bytes]);
                had(target, target + bytes);
            }
            read += bytes;
        });
        done += bytes;
    });
    result
}

/// What a shard records about a region.
enum Said {
    Plain(Plain),
    On(Box<OnArray>),
}

struct OnArray {
    region: Region,
    identity: Identity,
    whole: Cuboid,
    dims: usize,
    is_sparse: bool,
    packed: Vec<u8>,
    bounds: Cuboid,
}

/// What the record of a shard says about a region; `left` is how many more bytes all records together may have.
fn looked_at(spot: &Spot, shard: &FileShard, name: &str, left: &mut u64) -> Result<Option<Said>, Problem> {
    let head = shard.head();
    let regions = &head.meta.regions;
    let Some(place) = regions.iter().position(|region| region.name == name) else { return Ok(None) };
    let region = &regions[place];
    let in_words = |problem: Problem| Problem { text: format!("{}: {}", spot.title(), problem.text), ..problem };
    let record = body::decomposition_record(head, body::of_file(shard)).map_err(in_words)?;
    let view = record.as_deref().map(|record| View::of(record, regions)).transpose();
    let view = view.map_err(|error| in_words(Problem::damage(error.to_string())))?.unwrap_or_default();
    let listed;
    let (identity, parts) = match view.rules.get(&place) {
        Some(Rule::On(of)) => view.decompositions[*of],
        Some(Rule::Numbered(of)) => {
            let (identity, list) = view.lists[*of];
            let numbers = body::list(head, *of, body::of_file(shard)).map_err(in_words)?;
            let no_list =
                || format!("the element numbers of region {:?} are invalid, or in too many pieces", short(name));
            listed = ids::as_parts(list, &numbers).ok_or_else(|| in_words(Problem::damage(no_list())))?;
            (identity, PackedParts::of(&listed).ok_or_else(|| in_words(Problem::damage(no_list())))?)
        }
        Some(Rule::Shared) => return Ok(Some(Said::Plain(Plain::Shared))),
        Some(Rule::PerRank(_)) => return Ok(Some(Said::Plain(Plain::PerRank))),
        Some(Rule::Rows { .. }) => return Ok(Some(Said::Plain(Plain::Rows))),
        None => {
            let plain = if region.kind == RegionKind::Array { Plain::OwnArray } else { Plain::OwnValue };
            return Ok(Some(Said::Plain(plain)));
        }
    };
    *left = left.checked_sub(parts.bytes().len() as u64).ok_or_else(|| {
        Problem::from(format!("the parts of region {:?} take more than {RECORD_MAX} bytes in the records", short(name)))
    })?;
    Ok(Some(Said::On(Box::new(OnArray {
        region: region.clone(),
        identity,
        whole: *parts.whole(),
        dims: parts.dims(),
        is_sparse: parts.is_sparse(),
        packed: parts.bytes().to_vec(),
        bounds: around(parts.boxes()),
    }))))
}

/// A box around others; one without elements if they have none.
fn around(boxes: impl Iterator<Item = Cuboid>) -> Cuboid {
    let nothing = Cuboid { from: [0; DIMS], to: [0; DIMS] };
    let both = |one: Cuboid, other: Cuboid| Cuboid {
        from: std::array::from_fn(|dim| one.from[dim].min(other.from[dim])),
        to: std::array::from_fn(|dim| one.to[dim].max(other.to[dim])),
    };
    boxes.filter(|own| !own.is_empty()).reduce(both).unwrap_or(nothing)
}

/// A section of an array in bands of at most `most` bytes, or of one element, each of which is one piece of the section in the order of C; in that order.
pub fn bands(section: &Cuboid, dims: usize, element: u64, most: u64) -> impl Iterator<Item = Cuboid> + use<> {
    let section = *section;
    // The first dimension of which one place fits, and how many do.
    let inner =
        |dim: usize| (dim + 1..dims).fold(element.max(1), |bytes, dim| bytes.saturating_mul(section.extent(dim)));
    let dim = (0..dims).find(|dim| inner(*dim) <= most).unwrap_or(dims.saturating_sub(1));
    let step = (most / inner(dim).max(1)).max(1);
    let mut next = (!section.is_empty()).then_some(section.from);
    std::iter::from_fn(move || {
        let at = next?;
        let mut band = section;
        band.from[..dim].copy_from_slice(&at[..dim]);
        band.to[..dim].iter_mut().zip(at).for_each(|(to, from)| *to = from + 1);
        band.from[dim] = at[dim];
        band.to[dim] = at[dim].saturating_add(step).min(section.to[dim]);
        let mut following = at;
        following[dim] = band.to[dim];
        // As in counting: a digit that has reached its end starts again, and the one before it advances.
        for place in (1..=dim).rev() {
            if following[place] >= section.to[place] {
                following[place] = section.from[place];
                following[place - 1] += 1;
            }
        }
        next = (following[0] < section.to[0]).then_some(following);
        Some(band)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bands_are_the_section_in_order_each_in_one_piece(
            sides in proptest::collection::vec((0u64..5, 0u64..6), 1..4),
            element in 1u64..9,
            most in 1u64..200,
        ) {
            let (origin, extent): (Vec<u64>, Vec<u64>) = sides.into_iter().unzip();
            let dims = origin.len();
            let section = Cuboid::at(&origin, &extent).expect("few");
            let mut at = 0;
            for band in bands(&section, dims, element, most) {
                prop_assert!(section.contains(&band) && !band.is_empty());
                prop_assert!(band.volume() * element <= most || band.volume() == 1);
                let place = Strides::inside(&band, &section, &NO_MARGIN, &NO_MARGIN, 1).one_piece();
                let end = at + band.volume() as usize;
                prop_assert_eq!(place, Some(at..end));
                at = end;
            }
            prop_assert_eq!(at as u64, section.volume());
        }
    }
}
