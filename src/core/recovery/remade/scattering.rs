//! Rows that go one by one to the ranks that the program names for them.
//!
//! Whoever reads a shard asks the program for the ranks of its rows, in batches, and keeps them: 4 bytes a row. Then each column is read once, in windows of
//! rows, and the rows of a window that go to one rank go to it together. A rank's rows of a shard keep their order.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::packet::Packet;
use super::rows::Owners;
use super::together::Together;
use super::{Limit, Rank};
use crate::decomposition::Cuboid;
use crate::format::{Region, numbers};
use crate::tier::source::Source;
use crate::tier::storage::zeroed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Bytes of a batch that the program is asked for, about.
const BATCH: usize = 4 << 20;
/// Bytes of a window: those of blocks that stay in cache.
const WINDOW: usize = 1 << 20;

/// The ranks of the rows of the shards that a rank reads.
#[derive(Default)]
pub struct Scattered {
    /// By shard, for each row.
    ranks: BTreeMap<Rank, Vec<u32>>,
    /// The ranks that get something of them.
    receivers: BTreeSet<u32>,
    /// Those that this rank gets something from.
    senders: Vec<Rank>,
    /// Which of its boxes has the rows of a shard.
    boxes: BTreeMap<Rank, u32>,
}

impl Scattered {
    /// Asks for the ranks of the rows of a shard by the column that the region is, whose rows have so many bytes; there are so many ranks.
    ///
    /// # Errors
    /// [`LoadError`]; that of a rank that there is not names the row.
    ///
    /// # Blocking
    /// On what holds the shard.
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
            // No rank has this number: one that was left out is seen.
            named.fill(u32::MAX);
            owners(bytes, named);
            if let Some(at) = named.iter().position(|rank| *rank >= ranks) {
                let (at, rank, region) = (rows.start + at as u64, named[at], together.region);
                let why = match rank {
                    u32::MAX => format!("row {at} of rank {shard} in region {region:?} was given to no rank"),
                    _ => format!(
                        "row {at} of rank {shard} in region {region:?} was given to rank {rank}, and there are {ranks}"
                    ),
                };
                return Err(together.of_this_rank(why));
            }
            first = rows.end;
        }
        self.receivers.extend(all.iter().copied());
        self.ranks.insert(shard, all);
        Ok(())
    }

    /// What ranks hear: how many rows of which shards they get.
    pub fn counts(&self) -> Vec<(Rank, Vec<u8>)> {
        let mut posts: BTreeMap<Rank, Vec<u8>> = BTreeMap::new();
        for (shard, ranks) in &self.ranks {
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            ranks.iter().for_each(|rank| *counts.entry(*rank).or_default() += 1);
            for (rank, count) in counts {
                let body = posts.entry(Rank(rank)).or_default();
                numbers::put(body, u64::from(shard.0));
                numbers::put(body, count);
            }
        }
        posts.into_iter().collect()
    }

    /// This rank gets rows from these ranks, of these shards: a box for each, in this order.
    pub fn expect(&mut self, senders: Vec<Rank>, shards: impl Iterator<Item = Rank>) {
        self.senders = senders;
        self.boxes = shards.zip(0..).collect();
    }

    /// Those that this rank gets something from.
    pub fn senders(&self) -> &[Rank] {
        &self.senders
    }

    /// How many ranks get something from this one.
    pub fn receivers(&self) -> usize {
        self.receivers.len()
    }

    /// Which box has the rows of a shard.
    pub fn box_of(&self, shard: Rank) -> Option<u32> {
        self.boxes.get(&shard).copied()
    }
}

/// Reads rows of a column of one shard.
struct Reader {
    region: Region,
    /// Bytes of a row.
    row: u64,
    /// Rows of the shard.
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

    /// The rows from one on that have about so many bytes: one at least.
    fn window(&self, first: u64, bytes: usize) -> Range<u64> {
        let count = (bytes as u64 / self.row.max(1)).max(1);
        first..(first + count).min(self.count)
    }

    /// The bytes of some rows, from blocks that were checked as a whole.
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

/// A reader's way through a column.
pub struct Scattering<'s> {
    region: &'s str,
    /// Bytes of a row.
    row: u64,
    of: &'s Scattered,
    /// The place of the shard in hand.
    shard: usize,
    /// What reads it, how many of its rows were read, and how many of them went to whom.
    open: Option<(Reader, u64, BTreeMap<u32, u64>)>,
    packets: BTreeMap<Rank, Packet>,
    ready: VecDeque<(Rank, Vec<u8>)>,
    is_over: bool,
}

impl<'s> Scattering<'s> {
    /// Through the column of a region whose rows have so many bytes.
    pub fn new(region: &'s str, row: u64, of: &'s Scattered) -> Scattering<'s> {
        let (packets, ready) = (BTreeMap::new(), VecDeque::new());
        Scattering { region, row, of, shard: 0, open: None, packets, ready, is_over: false }
    }

    /// The next packet, of about as many bytes as `limit` says for its receiver.
    ///
    /// # Blocking
    /// On what holds the shards.
    pub fn next(
        &mut self,
        shards: &mut [&mut ShardAccess],
        limit: &Limit<'_>,
    ) -> Result<Option<(Rank, Vec<u8>)>, LoadError> {
        loop {
            if let Some(packet) = self.ready.pop_front() {
                return Ok(Some(packet));
            }
            if self.is_over {
                return Ok(None);
            }
            let Some(access) = shards.get_mut(self.shard) else {
                let packets = std::mem::take(&mut self.packets);
                self.ready.extend(packets.into_iter().map(|(to, packet)| (to, packet.finish())));
                self.ready.retain(|(_, packet)| !packet.is_empty());
                self.is_over = true;
                continue;
            };
            match self.open.take() {
                None => self.open = Some((Reader::new(self.region, access, self.row)?, 0, BTreeMap::new())),
                Some((reader, first, _)) if first == reader.count => self.shard += 1,
                Some((mut reader, first, mut sent)) => {
                    let rows = reader.window(first, WINDOW);
                    self.pack(access.shard(), reader.read(access, &rows)?, &rows, (&mut sent, limit));
                    self.open = Some((reader, rows.end, sent));
                }
            }
        }
    }

    /// Packs some rows of a shard.
    fn pack(
        &mut self,
        shard: Rank,
        bytes: &[u8],
        rows: &Range<u64>,
        (sent, limit): (&mut BTreeMap<u32, u64>, &Limit<'_>),
    ) {
        let Some(ranks) = self.of.ranks.get(&shard) else { return };
        let (row, ranks) = (self.row as usize, &ranks[rows.start as usize..rows.end as usize]);
        let mut by_rank: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (rank, bytes) in ranks.iter().zip(bytes.chunks_exact(row)) {
            by_rank.entry(*rank).or_default().extend_from_slice(bytes);
        }
        for (rank, bytes) in by_rank {
            let (to, done) = (Rank(rank), sent.entry(rank).or_default());
            let most = limit(to);
            for some in bytes.chunks((most / row).max(1) * row) {
                let count = (some.len() / row) as u64;
                let Some(cuboid) = Cuboid::at(&[*done], &[count]) else { return };
                *done += count;
                let packet = self.packets.entry(to).or_default();
                packet.begin(1, shard.0, &cuboid, 0, some.len()).extend_from_slice(some);
                if packet.len() >= most {
                    self.ready.push_back((to, std::mem::take(packet).finish()));
                }
            }
        }
    }
}
