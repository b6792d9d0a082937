//! Reads an array that is spread over the shards of a checkpoint, element by element in the order of the array.
//!
//! [`Array::find`] reads only the decomposition records of all shards in a place. [`Array::read`] reads one *band* of the array, which is a
//! box that fits in a buffer, from the shards that hold parts of it. Whole blocks are read and compared with their digests. Each band that
//! [`bands`] makes is one contiguous piece of the array in C order, so the part of a band that lies in a box of a shard is contiguous in
//! the shard, too. When the bands are read in order, each block is read once if it is kept from one band to the next. A budget bounds the
//! memory that is kept.
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

/// The maximum size of a band in bytes.
pub const BAND_BYTES: u64 = 64 * MIB;
/// The maximum bytes, in heads and blocks, of the shards that stay open from one band to the next.
const OPEN_BYTES: usize = 128 << 20;
const NO_MARGIN: [u64; DIMS] = [0; DIMS];

/// One rank's part of an array.
struct Share {
    spot: Spot,
    /// The region, as the shard's head describes it.
    region: Region,
    /// The packed boxes of the rank, as in the decomposition record.
    packed: Vec<u8>,
    /// A box around all of them.
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

/// An open shard and its block that was read last.
struct Open {
    source: Source,
    region: Region,
    block: Vec<u8>,
    /// Where the block begins in the region.
    at: Option<usize>,
}

/// The kind of a region that is not an array spread over the ranks.
pub enum Plain {
    /// A value that all ranks have in common.
    Shared,
    /// A value that each rank has.
    PerRank,
    /// A column of rows; each rank has its own number of rows.
    Rows,
    /// An array of the rank's own.
    OwnArray,
    /// A value of the rank's own; the program has not said how it is spread.
    OwnValue,
}

/// What was found out about a region.
pub enum Found {
    /// The region is an array spread over the ranks.
    Array(Box<Array>),
    /// The region is of another kind.
    Plain(Plain),
}

/// An array in the shards of a place.
pub struct Array {
    place: Place,
    /// The parts of the ranks, ascending by rank.
    shares: Vec<Share>,
    here: Here,
    name: String,
    /// The type of the elements.
    pub element: ElementType,
    /// The number of dimensions.
    pub dims: usize,
    /// The box of all elements.
    pub whole: Cuboid,
    /// The parts of all ranks together need not cover the array.
    pub is_sparse: bool,
    kept: Kept,
}

/// Shards that stay open, by their positions among the shares.
#[derive(Default)]
struct Kept {
    open: BTreeMap<usize, Open>,
    bytes: usize,
}

/// A range of elements of a band that shards have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Had {
    /// The position of the first of these elements in the band.
    pub from: usize,
    /// The position after the last one.
    pub to: usize,
}

impl Array {
    /// Looks for a region in a place.
    ///
    /// # Errors
    /// The region does not exist, or its shards are damaged or contradict each other.
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

    /// The extents of the array, slowest first.
    pub fn shape(&self) -> &[u64] {
        &self.whole.to[..self.dims]
    }

    /// The ranks whose shards were found here.
    pub fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.here.ranks.iter().copied()
    }

    /// The rank that an element belongs to.
    pub fn rank_of(&self, element: &Cuboid) -> Option<u32> {
        let mut near = self.shares.iter().filter(|share| share.bounds.contains(element));
        near.find(|share| share.boxes().any(|own| own.contains(element))).map(|share| share.spot.rank())
    }

    /// All boxes of the array that shards have, by rank.
    pub fn boxes(&self) -> impl Iterator<Item = Cuboid> + '_ {
        self.shares.iter().flat_map(Share::boxes).filter(|own| !own.is_empty())
    }

    /// The number of elements in these boxes.
    pub fn elements(&self) -> u64 {
        self.shares.iter().filter_map(Share::parts).map(|parts| parts.elements()).fold(0, u64::saturating_add)
    }

    /// Tells `had` which elements of a band the shards have, as [`Array::read`] does, but reads nothing.
    pub fn look(&self, band: &Cuboid, mut had: impl FnMut(Had)) {
        for share in self.shares.iter().filter(|share| share.bounds.common(band).is_some()) {
            for common in share.boxes().filter_map(|own| own.common(band)) {
                let to = Strides::inside(&common, band, &NO_MARGIN, &NO_MARGIN, 1);
                to.each(0, to.bytes(), |at, elements| had(Had { from: at, to: at + elements }));
            }
        }
    }

    /// Proves that the shards have each element of a section exactly once, or at most once if `may_lack`.
    ///
    /// # Errors
    /// The proof fails; the error names the first elements that are missing or occur twice.
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

    /// Reads the elements of a band that the shards have into `buffer`, which has the size of the band, in C order. The other elements of
    /// `buffer` stay unchanged. `had` is told which elements were read, one or several at a time.
    ///
    /// # Errors
    /// A block cannot be read, or is damaged.
    pub fn read(&mut self, band: &Cuboid, buffer: &mut [u8], had: impl FnMut(Had)) -> Result<(), Problem> {
        let mut kept = std::mem::take(&mut self.kept);
        // A shard that has nothing of this band has nothing of the bands after it, either.
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
    /// Takes an open shard out for use.
    fn take(&mut self, index: usize) -> Option<Open> {
        let open = self.open.remove(&index)?;
        self.bytes -= open.bytes();
        Some(open)
    }

    /// Keeps a shard open for the next band. If not all shards fit, the first ones are kept: each band asks for all of them in the same
    /// order, so if those used last were kept, each would be gone whenever it is needed.
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

    /// Reads bytes of the region, starting at `at`.
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

/// Copies the elements of a box, which begins at byte `at` of its region, to their places in a band. Box and band are traversed in the same
/// order, in rows whose lengths differ.
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

/// Reads what a shard's record says about a region; `left` is how many more bytes the records may have together.
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

/// A box around others; a box without elements if none of them has any.
fn around(boxes: impl Iterator<Item = Cuboid>) -> Cuboid {
    let nothing = Cuboid { from: [0; DIMS], to: [0; DIMS] };
    let both = |one: Cuboid, other: Cuboid| Cuboid {
        from: std::array::from_fn(|dim| one.from[dim].min(other.from[dim])),
        to: std::array::from_fn(|dim| one.to[dim].max(other.to[dim])),
    };
    boxes.filter(|own| !own.is_empty()).reduce(both).unwrap_or(nothing)
}

/// Divides a section of an array into bands of at most `most` bytes, or of one element, in their order; each band is one contiguous piece
/// of the section in C order.
pub fn bands(section: &Cuboid, dims: usize, element: u64, most: u64) -> impl Iterator<Item = Cuboid> + use<> {
    let section = *section;
    // The first dimension of which at least one index fits, and how many indices fit.
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
        // As in counting, a digit that has reached its end starts again, and the digit before it advances.
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
