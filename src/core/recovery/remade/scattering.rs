//! Rows that go one by one to the ranks that the program names for them.
//!
//! The reader of a shard asks the program for the ranks of its rows, in batches, and keeps these: 4 bytes for each row. Receivers hear how
//! many rows they get from which shards, and tell readers where these rows begin in their memory. Then each column is read once, and its
//! rows are sent as [runs](super::runs). The rows that a rank gets from a shard keep their order.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::reading::{Parcels, Through};
use super::rows::Owners;
use super::runs::{Run, RunWay, Ways};
use super::together::Together;
use crate::base::Rank;
use crate::format::{Region, numbers};
use crate::tier::source::Source;
use crate::tier::storage::zeroed;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// The approximate number of bytes in a batch about which the program is asked.
const BATCH: usize = 4 << 20;

/// The ranks of the rows of the shards that a rank reads.
#[derive(Default)]
pub struct Scattered {
    /// For each shard, the rank of each row.
    ranks: BTreeMap<Rank, Vec<u32>>,
    /// By shard and receiver: the number of rows and, once it is known, where they begin in the receiver's memory.
    moves: BTreeMap<(Rank, Rank), (u64, Option<u64>)>,
    /// The ranks from which this rank receives something.
    senders: Vec<Rank>,
}

impl Scattered {
    /// Asks for the ranks of the rows of a shard by the values of a column, which is the region and has `row` bytes in each row. There are
    /// `ranks` ranks.
    ///
    /// # Errors
    /// [`LoadError`]; if a rank does not exist, the error names the row.
    ///
    /// # Blocking
    /// On the tier that holds the shard.
    pub fn ask(
        &mut self,
        together: &Together<'_>,
        access: &mut ShardAccess,
        (row, ranks): (u64, u32),
        owners: &mut Owners<'_>,
    ) -> Result<(), LoadError> {
        let shard = access.shard();
        let mut reader = Reader::new(together.region, access, row)?;
        let mut all: Vec<u32> =
            zeroed(reader.count).map_err(|_| access.no_memory(together.region, reader.count.saturating_mul(4)))?;
        let mut first = 0;
        while first < reader.count {
            let rows = reader.window(first, BATCH);
            let bytes = reader.read(access, &rows)?;
            let named = &mut all[rows.start as usize..rows.end as usize];
            // No rank has this number, so a row that was left out is noticed.
            named.fill(u32::MAX);
            owners(bytes, named);
            if let Some(at) = named.iter().position(|rank| *rank >= ranks) {
                let (at, rank, region) = (rows.start + at as u64, named[at], together.region);
                let why = match rank {
                    u32::MAX => format!(
                        "row {at} of rank {shard} in region {region:?} was given to no rank: name an owner for each row"
                    ),
                    _ => format!(
                        "row {at} of rank {shard} in region {region:?} was given to rank {rank}, but there are only {ranks} ranks"
                    ),
                };
                return Err(together.of_this_rank(why));
            }
            first = rows.end;
        }
        for rows in all.chunk_by(|one, other| one == other) {
            self.moves.entry((shard, Rank(rows[0]))).or_default().0 += rows.len() as u64;
        }
        self.ranks.insert(shard, all);
        Ok(())
    }

    /// Posts that tell ranks how many rows they get from which shards.
    pub fn counts(&self) -> Vec<(Rank, Vec<u8>)> {
        let moves = self.moves.iter().map(|((shard, to), (count, _))| (*to, *shard, *count));
        posts(moves)
    }

    /// Notes where the rows of a shard begin in the memory of a rank. False if that rank gets none, or has already said so.
    pub fn begin(&mut self, shard: Rank, to: Rank, start: u64) -> bool {
        let known = self.moves.get_mut(&(shard, to)).filter(|(_, known)| known.is_none());
        known.map(|(_, known)| *known = Some(start)).is_some()
    }

    /// The first rank that has not said where its rows of some shard begin.
    pub fn silent(&self) -> Option<Rank> {
        self.moves.iter().find(|(_, (_, start))| start.is_none()).map(|((_, to), _)| *to)
    }

    /// Notes that this rank gets rows from these ranks.
    pub fn expect(&mut self, senders: BTreeSet<Rank>) {
        self.senders = senders.into_iter().collect();
    }

    /// The ranks from which this rank receives something.
    pub fn senders(&self) -> &[Rank] {
        &self.senders
    }

    /// The number of ranks that receive something from this one.
    pub fn receivers(&self) -> usize {
        self.moves.keys().map(|(_, to)| *to).collect::<BTreeSet<Rank>>().len()
    }

    /// The rows of a shard as runs: consecutive rows that go to the same rank form one run.
    fn runs(&self, shard: Rank) -> Option<impl Iterator<Item = Run> + '_> {
        let ranks = self.ranks.get(&shard)?;
        let starts = self.moves.range((shard, Rank(0))..=(shard, Rank(u32::MAX)));
        let mut next: HashMap<u32, u64> = starts.filter_map(|((_, to), (_, start))| Some((to.0, (*start)?))).collect();
        let mut at = 0;
        let runs = ranks.chunk_by(|one, other| one == other).flat_map(|rows| rows.chunks(u32::MAX as usize));
        Some(runs.filter_map(move |rows| {
            let target = next.get_mut(&rows[0])?;
            let run = Run { at, count: rows.len() as u32, to: Rank(rows[0]), target: *target };
            let count = u64::from(run.count);
            (at, *target) = (at + count, *target + count);
            Some(run)
        }))
    }
}

/// Posts that say something about shards. Each item has a receiver, a shard and a number.
pub fn posts(said: impl Iterator<Item = (Rank, Rank, u64)>) -> Vec<(Rank, Vec<u8>)> {
    let mut posts: BTreeMap<Rank, Vec<u8>> = BTreeMap::new();
    for (to, shard, number) in said {
        let body = posts.entry(to).or_default();
        numbers::put(body, u64::from(shard.0));
        numbers::put(body, number);
    }
    posts.into_iter().collect()
}

/// What such a post says. `None` if it is truncated.
pub fn said(mut bytes: &[u8]) -> Option<Vec<(Rank, u64)>> {
    let mut said = Vec::new();
    while !bytes.is_empty() {
        let shard = Rank(u32::try_from(numbers::take(&mut bytes)?).ok()?);
        said.push((shard, numbers::take(&mut bytes)?));
    }
    Some(said)
}

/// Reads rows of a column of one shard.
struct Reader {
    region: Region,
    /// The size of a row in bytes.
    row: u64,
    /// The number of rows in the shard.
    count: u64,
    /// What was read last.
    buffer: Vec<u8>,
}

impl Reader {
    fn new(region: &str, access: &mut ShardAccess, row: u64) -> Result<Reader, LoadError> {
        let dealt = access.dealt(region)?;
        let count = dealt.parts().1.elements();
        if row.checked_mul(count) != Some(dealt.region.bytes) {
            return Err(access.missing(region));
        }
        Ok(Reader { region: dealt.region, row, count, buffer: Vec::new() })
    }

    /// The rows that begin with `first` and have about `bytes` bytes: at least one row.
    fn window(&self, first: u64, bytes: usize) -> Range<u64> {
        let count = (bytes as u64 / self.row.max(1)).max(1);
        first..(first + count).min(self.count)
    }

    /// The bytes of some rows, from blocks that have been checked as a whole.
    fn read(&mut self, access: &mut ShardAccess, rows: &Range<u64>) -> Result<&[u8], LoadError> {
        let (start, end) = ((rows.start * self.row) as usize, (rows.end * self.row) as usize);
        let length = self.region.bytes as usize;
        let mut skipped = 0;
        let (region, buffer) = (&self.region, &mut self.buffer);
        let mut is_short = None;
        access.load_all(std::iter::once(region), |source: &Source| {
            let block = source.head().header.block_size as usize;
            let first = start - start % block;
            let last = end.next_multiple_of(block).min(length);
            if buffer.len() < last - first {
                match zeroed::<u8>((last - first) as u64) {
                    Ok(longer) => *buffer = longer,
                    Err(_) => {
                        is_short = Some((last - first) as u64);
                        return Ok(0);
                    }
                }
            }
            skipped = start - first;
            source.read_blocks(region, first, &mut buffer[..last - first])?;
            Ok((last - first) as u64)
        })?;
        match is_short {
            Some(bytes) => Err(access.no_memory(&self.region.name, bytes)),
            None => Ok(&self.buffer[skipped..skipped + end - start]),
        }
    }
}

/// A column of rows that go to the ranks that the program has named.
pub struct Column<'s> {
    /// Who gets which row.
    pub of: &'s Scattered,
    /// The size of a row in bytes.
    pub row: u64,
}

impl<'s> Parcels<'s> for Column<'s> {
    type Way = RunWay;

    fn of_shard(
        &self,
        access: &mut ShardAccess,
        together: &Together<'_>,
    ) -> Result<Option<Through<'s, RunWay>>, LoadError> {
        let Some(runs) = self.of.runs(access.shard()) else { return Ok(None) };
        let Reader { region, .. } = Reader::new(together.region, access, self.row)?;
        let size = self.row as usize;
        Ok(Some((region, Box::new(runs.map(move |run| RunWay::new(run, size))) as Ways<'s, RunWay>)))
    }
}
