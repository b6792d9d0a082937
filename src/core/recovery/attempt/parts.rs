//! The parts of arrays and rows that old ranks had, for programs that distribute them in the same way again.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::Attempt;
use crate::decomposition::ids::Listed;
use crate::decomposition::{Cuboid, DIMS, RowSet, Rule};
use crate::format::numbers;
use std::collections::BTreeMap;
use std::ops::Range;

/// The maximum number of boxes in one answer: 256 KiB of them.
const PAGE: usize = 2 << 10;

/// The first byte of an answer about rows. An answer about boxes begins with the number of their dimensions.
const ROWS: u8 = 0;
const IDS: u8 = DIMS as u8 + 1;

/// The part of an array, or of a set of rows, that an old rank had.
#[derive(Clone, PartialEq, Debug)]
pub enum RankPart {
    /// Boxes of an array.
    Boxes {
        /// The extents of the array, in elements, slowest first.
        shape: Vec<u64>,
        /// Origin and extent of each box, in the order in which the boxes were described.
        boxes: Vec<(Vec<u64>, Vec<u64>)>,
    },
    /// Rows.
    Rows {
        /// The number of rows.
        count: u64,
        /// The smallest and the largest coordinate in each dimension, as the program gave them; empty if it gave no bounds.
        bounds: Vec<[f64; 2]>,
    },
    /// A list of numbers.
    Ids {
        /// The number of elements of the array.
        total: u64,
        /// The number of these elements that the rank had.
        count: u64,
    },
}

impl Attempt {
    /// Returns the parts of an array ([`CheckpointBuilder::save_on`](crate::CheckpointBuilder::save_on)) or of a set of rows
    /// ([`CheckpointBuilder::save_rows`](crate::CheckpointBuilder::save_rows)) that some old ranks had, in the order of these ranks. Each
    /// rank may ask for any of the [`Attempt::saved_ranks`] old ranks, and needs memory for the answer. Nothing is loaded.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// use bivouac::RankPart;
    ///
    /// session.begin_restore("plasma").run(|r| {
    ///     let of = r.saved_ranks();
    ///     for (rank, part) in r.parts("electrons", 0..of)?.into_iter().enumerate() {
    ///         let RankPart::Rows { count, bounds } = part else { continue };
    ///         println!("rank {rank} had {count} electrons in {bounds:?}");
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks; a rank that wants no part asks for an empty range.
    ///
    /// # Blocking
    /// On the tiers that hold the shards, and until all ranks have called. Boxes arrive in pages. For each
    /// page, all ranks exchange messages once.
    ///
    /// # Errors
    /// [`LoadError::Missing`]: the checkpoint has neither an array nor a set of that name. [`LoadError::Decomposition`]: there is a
    /// region of that name, but it has no parts. [`LoadError::Others`], on all ranks alike.
    pub fn parts(&mut self, name: &str, ranks: Range<u32>) -> Result<Vec<RankPart>, LoadError> {
        let (rank, key, of) = (self.rank, self.key, self.saved_ranks());
        let is_region = self.regions()?.iter().any(|(region, _)| region == name);
        let region = if is_region { name.to_owned() } else { self.first_column(name)? };
        if !matches!(self.rule(&region)?, Some(Rule::On(_) | Rule::Numbered(_) | Rule::Rows { .. })) {
            let found = "was saved neither on a decomposition nor as rows: it has no parts".to_owned();
            return Err(LoadError::Decomposition { rank, key, region, found });
        }
        let wanted = ranks.start.min(of)..ranks.end.min(of).max(ranks.start.min(of));
        let mut next: BTreeMap<u32, u64> = wanted.map(|shard| (shard, 0)).collect();
        let mut parts: BTreeMap<u32, RankPart> = BTreeMap::new();
        loop {
            let asked = next.iter().map(|(shard, from)| (*shard, *from)).collect();
            let answer = |access: &mut ShardAccess, from| access.page(&region, from);
            let left = self.ask_homes((&region, "parts"), asked, answer, |shard, bytes| {
                let (part, more) = take_page(parts.remove(&shard), bytes)?;
                let has = if let RankPart::Boxes { boxes, .. } = &part { boxes.len() as u64 } else { 0 };
                parts.insert(shard, part);
                match more {
                    0 => _ = next.remove(&shard),
                    _ => _ = next.insert(shard, has),
                }
                Some(more)
            })?;
            // What is left is the same on all ranks.
            if left == 0 {
                return Ok(parts.into_values().collect());
            }
        }
    }
}

impl ShardAccess {
    /// The shard's part of a region, or as much of it as fits into a page. Boxes begin with number `from`.
    fn page(&mut self, region: &str, from: u64) -> Result<Vec<u8>, LoadError> {
        let record = self.shared_record()?;
        let source = self.source(region)?;
        let place = source.head().meta.regions.iter().position(|known| known.name == region);
        let place = place.ok_or_else(|| self.missing(region))?;
        if let Some((rows, _)) = record.rows_of(place) {
            let mut page = vec![ROWS];
            rows.put(&mut page);
            return Ok(page);
        }
        if let Some((_, (_, list))) = record.list_of(place) {
            let mut page = vec![IDS];
            list.put(&mut page);
            return Ok(page);
        }
        let (_, parts) = record.of_region(place).ok_or_else(|| self.missing(region))?;
        let (dims, all) = (parts.dims(), parts.own());
        let mut page = vec![dims as u8];
        parts.shape().iter().for_each(|extent| numbers::put(&mut page, *extent));
        let behind = usize::try_from(from).ok().and_then(|from| all.get(from..)).unwrap_or_default();
        let some = &behind[..behind.len().min(PAGE)];
        numbers::put(&mut page, some.len() as u64);
        some.iter().for_each(|own| own.put(dims, &mut page));
        numbers::put(&mut page, (behind.len() - some.len()) as u64);
        Ok(page)
    }
}

/// Adds the content of a page to a part, and returns it with the number of boxes that are left; `None` if the page is not valid.
fn take_page(before: Option<RankPart>, bytes: &[u8]) -> Option<(RankPart, u64)> {
    let (kind, mut rest) = bytes.split_first()?;
    if *kind == ROWS {
        let rows = RowSet::take(&mut rest).filter(|_| rest.is_empty())?;
        return Some((RankPart::Rows { count: rows.count, bounds: rows.bounds() }, 0));
    }
    if *kind == IDS {
        let list = Listed::take(&mut rest).filter(|_| rest.is_empty())?;
        return Some((RankPart::Ids { total: list.total, count: list.count }, 0));
    }
    let dims = Some(usize::from(*kind)).filter(|dims| *dims <= DIMS)?;
    let extents = (0..dims).map(|_| numbers::take(&mut rest)).collect::<Option<Vec<u64>>>()?;
    let mut all = match before {
        Some(RankPart::Boxes { shape, boxes }) if shape == extents => boxes,
        Some(_) => return None,
        None => Vec::new(),
    };
    let count = numbers::take(&mut rest).filter(|count| *count <= PAGE as u64)?;
    for _ in 0..count {
        let own = Cuboid::take(dims, &mut rest)?;
        all.push((own.from[..dims].to_vec(), (0..dims).map(|dim| own.extent(dim)).collect()));
    }
    let more = numbers::take(&mut rest).filter(|more| rest.is_empty() && (*more == 0 || count > 0))?;
    Some((RankPart::Boxes { shape: extents, boxes: all }, more))
}
