//! A reader's way through its shards for others: each block that somebody wants something of is read once, checked as a whole, and what is wanted of it goes to
//! whom it is for.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::direct::{inside, starts};
use super::packet::Packet;
use crate::base::Rank;
use crate::base::units::page_ceil;
use crate::decomposition::matching::Piece;
use crate::decomposition::strides::Strides;
use crate::format::Region;
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that are read at once from memory, about: they stay in cache for those who take something of them.
const FROM_MEMORY: usize = 1 << 20;
/// And from files.
const FROM_FILE: usize = 4 << 20;

/// A piece on its way.
struct Moving {
    piece: Piece,
    /// Where its bytes are in the region.
    strides: Strides,
    /// Where the part that it is of begins in the region.
    base: usize,
    /// How many of its bytes were sent.
    sent: usize,
}

/// What a rank sends of its shards.
pub(super) struct Reading<'p> {
    region: &'p str,
    dims: usize,
    pieces: &'p BTreeMap<Rank, Vec<Piece>>,
    /// Bytes of an element.
    size: u64,
    /// The place of the next shard among those that are read.
    shard: usize,
    /// Those of the shard in hand that do not begin yet, by their first bytes.
    waiting: VecDeque<Moving>,
    /// Those that have begun.
    moving: Vec<Moving>,
    /// The shard in hand, its region, and up to where that was read.
    open: Option<(usize, Region, usize)>,
    buffer: Option<PageBuffer>,
    packets: BTreeMap<Rank, Packet>,
    ready: VecDeque<(Rank, Vec<u8>)>,
}

impl<'p> Reading<'p> {
    /// What is sent of a region by these pieces of each shard.
    pub fn new(region: &'p str, dims: usize, pieces: &'p BTreeMap<Rank, Vec<Piece>>, size: u64) -> Reading<'p> {
        Reading {
            region,
            dims,
            pieces,
            size,
            shard: 0,
            waiting: VecDeque::new(),
            moving: Vec::new(),
            open: None,
            buffer: None,
            packets: BTreeMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// The next packet, of about as many bytes as `limit` says for its receiver.
    ///
    /// # Blocking
    /// On what holds the shards.
    pub fn next(
        &mut self,
        shards: &mut [&mut ShardAccess],
        limit: &dyn Fn(Rank) -> usize,
    ) -> Result<Option<(Rank, Vec<u8>)>, LoadError> {
        loop {
            if let Some(packet) = self.ready.pop_front() {
                return Ok(Some(packet));
            }
            match self.open.take() {
                Some((at, region, read)) => {
                    let read = self.read_some(shards[at], (&region, read), limit)?;
                    match read {
                        Some(read) => self.open = Some((at, region, read)),
                        None => self.shard = at + 1,
                    }
                }
                None => {
                    if self.shard == shards.len() {
                        let packets = std::mem::take(&mut self.packets);
                        let rest = packets.into_iter().map(|(to, packet)| (to, packet.finish()));
                        self.ready.extend(rest.filter(|(_, packet)| !packet.is_empty()));
                        self.shard += 1;
                    } else if self.shard > shards.len() {
                        return Ok(None);
                    } else {
                        self.begin(shards[self.shard])?;
                    }
                }
            }
        }
    }

    /// Takes the next shard in hand.
    fn begin(&mut self, access: &mut ShardAccess) -> Result<(), LoadError> {
        let Some(pieces) = self.pieces.get(&access.shard()) else {
            self.shard += 1;
            return Ok(());
        };
        let dealt = access.dealt(self.region)?;
        let parts = dealt.parts().1;
        let starts = starts(parts, self.size);
        let moving = pieces.iter().filter_map(|piece| {
            let strides = inside(piece, parts, self.size)?;
            Some(Moving { piece: *piece, strides, base: starts[piece.part as usize], sent: 0 })
        });
        let mut moving: Vec<Moving> = moving.collect();
        moving.sort_by_key(Moving::first);
        let first = moving.first().map_or(0, Moving::first);
        self.waiting = moving.into();
        self.open = Some((self.shard, dealt.region, first));
        Ok(())
    }

    /// Reads on from `at`, and packs what is wanted of it. Says up to where; `None` when nothing more is wanted.
    fn read_some(
        &mut self,
        access: &mut ShardAccess,
        (region, at): (&Region, usize),
        limit: &dyn Fn(Rank) -> usize,
    ) -> Result<Option<usize>, LoadError> {
        // Nobody wants what lies before the first of these.
        let begun = self.moving.iter().map(Moving::next);
        let Some(first) = begun.chain(self.waiting.front().map(Moving::first)).min() else { return Ok(None) };
        let at = first.max(at);
        let length = region.bytes as usize;
        let mut piece = (0, 0);
        let mut buffer = self.buffer.take().unwrap_or_else(|| PageBuffer::new(page_ceil(FROM_MEMORY as u64) as usize));
        access.load_all(std::iter::once(region), |source| {
            let block = source.head().header.block_size as usize;
            let most = if matches!(source, Source::Memory(_)) { FROM_MEMORY } else { FROM_FILE };
            let start = at - at % block;
            let end = (start + most.max(block) / block * block).min(length);
            piece = (start, end);
            if buffer.len() < end - start {
                buffer = PageBuffer::new(page_ceil((end - start) as u64) as usize);
            }
            source.read_blocks(region, start, &mut buffer[..end - start])?;
            Ok((end - start) as u64)
        })?;
        let (start, end) = piece;
        let bytes = &buffer[..end - start];
        while self.waiting.front().is_some_and(|next| next.first() < end) {
            self.moving.extend(self.waiting.pop_front());
        }
        let (dims, packets, ready) = (self.dims, &mut self.packets, &mut self.ready);
        for Moving { piece, strides, base, sent } in &mut self.moving {
            let until = strides.before(end - *base);
            let most = limit(piece.to);
            while *sent < until {
                let to = until.min(*sent + most);
                let packet = packets.entry(piece.to).or_default();
                let rows = packet.begin(dims, piece.number, &piece.cuboid, *sent, to - *sent);
                strides.each(*sent, to, |place, count| {
                    rows.extend_from_slice(&bytes[*base + place - start..][..count]);
                });
                if packet.len() >= most {
                    ready.push_back((piece.to, std::mem::take(packet).finish()));
                }
                *sent = to;
            }
        }
        self.moving.retain(|moving| moving.sent < moving.strides.bytes());
        self.buffer = Some(buffer);
        Ok(Some(end))
    }
}

impl Moving {
    /// Where its first byte is in the region.
    fn first(&self) -> usize {
        self.base + self.strides.place_of(0)
    }

    /// Where the next byte is that was not sent.
    fn next(&self) -> usize {
        self.base + self.strides.place_of(self.sent)
    }
}
