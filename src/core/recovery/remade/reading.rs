//! A reader's progress through its shards for others: each block of which some rank wants a part is read once and checked as a whole, and
//! each wanted part is sent to the rank that wants it.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::ahead::Ahead;
use super::direct::{inside, starts};
use super::packing::{BoxWay, Packing, Way, Ways};
use super::together::Together;
use crate::base::Rank;
use crate::decomposition::matching::Piece;
use crate::format::Region;
use crate::tier::source::Source;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;

/// The approximate number of bytes that are read from memory at once: they stay in cache for whatever takes parts of them.
const FROM_MEMORY: usize = 1 << 20;
/// The approximate number of bytes that are read from files at once.
const FROM_FILE: usize = 4 << 20;

/// A region, and the ways through it.
pub(super) type Through<'p, W> = (Region, Ways<'p, W>);

/// What a rank sends from the shards that it reads.
pub(super) trait Parcels<'p> {
    /// One way of what is sent.
    type Way: Way + 'p;

    /// The region of a shard from which something is sent, and the ways through that region; `None` if nothing is sent from this shard.
    ///
    /// # Errors
    /// [`LoadError`]: the shard has no such region, or lacks part of what is requested.
    fn of_shard(
        &self,
        access: &mut ShardAccess,
        together: &Together<'_>,
    ) -> Result<Option<Through<'p, Self::Way>>, LoadError>;
}

/// Pieces of boxes, by shard.
pub(super) struct Boxed<'p> {
    pub dims: usize,
    pub pieces: &'p BTreeMap<Rank, Vec<Piece>>,
    /// The size of an element in bytes.
    pub size: u64,
}

impl<'p> Parcels<'p> for Boxed<'p> {
    type Way = BoxWay;

    fn of_shard(
        &self,
        access: &mut ShardAccess,
        together: &Together<'_>,
    ) -> Result<Option<Through<'p, BoxWay>>, LoadError> {
        let Some(pieces) = self.pieces.get(&access.shard()) else { return Ok(None) };
        let dealt = access.dealt(together.region)?;
        let parts = dealt.parts().1;
        let starts = starts(parts, self.size);
        let ways = pieces.iter().filter_map(|piece| {
            let (strides, base) = (inside(piece, parts, self.size)?, starts[piece.part as usize]);
            let (to, number, cuboid, dims) = (piece.to, piece.number, piece.cuboid, self.dims);
            Some(BoxWay { to, number, cuboid, dims, strides, base })
        });
        let mut ways: Vec<BoxWay> = ways.collect();
        ways.sort_by_key(|way| way.place_of(0));
        Ok(Some((dealt.region, Box::new(ways.into_iter()))))
    }
}

/// A rank's progress through the shards that it reads.
pub(super) struct Reading<'p, 's, 'e, P: Parcels<'p>> {
    together: &'p Together<'p>,
    parcels: &'p P,
    /// The place of the next shard among those that are read.
    shard: usize,
    /// The current shard, its region, and the place up to which that was read.
    open: Option<(usize, Arc<Region>, usize)>,
    ahead: Ahead<'s, 'e>,
    packing: Packing<'p, P::Way>,
}

impl<'p, 's, 'e, P: Parcels<'p>> Reading<'p, 's, 'e, P> {
    /// Reads for what `parcels` sends. The threads that read ahead end before `scope` does.
    pub fn new(together: &'p Together<'p>, parcels: &'p P, scope: &'s Scope<'s, 'e>) -> Reading<'p, 's, 'e, P> {
        let packing = Packing::new(together.rank(), Box::new(|| together.engine.spare()));
        Reading { together, parcels, shard: 0, open: None, ahead: Ahead::new(scope), packing }
    }

    /// The next packet, of about as many bytes as `limit` says for its receiver. What is for this rank itself goes to `here`, which says whether it
    /// belongs there.
    ///
    /// # Blocking
    /// On the tiers that hold the shards.
    pub fn next(
        &mut self,
        shards: &mut [&mut ShardAccess],
        limit: &impl Fn(Rank) -> usize,
        here: &mut impl FnMut(&P::Way, usize, &[u8]) -> bool,
    ) -> Result<Option<(Rank, Vec<u8>)>, LoadError> {
        loop {
            if let Some(packet) = self.packing.next() {
                return Ok(Some(packet));
            }
            match self.open.take() {
                Some((at, region, read)) => {
                    let read = self.read_some(shards[at], (&region, read), limit, here)?;
                    match read {
                        Some(read) => self.open = Some((at, region, read)),
                        None => {
                            self.ahead.drop_all();
                            self.shard = at + 1;
                        }
                    }
                }
                None => {
                    if self.shard == shards.len() {
                        self.packing.finish();
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

    /// Begins with the next shard.
    fn begin(&mut self, access: &mut ShardAccess) -> Result<(), LoadError> {
        match self.parcels.of_shard(access, self.together)? {
            Some((region, ways)) => {
                self.packing.begin(ways);
                self.open = Some((self.shard, region.into(), 0));
            }
            None => self.shard += 1,
        }
        Ok(())
    }

    /// Continues reading at `at`, and packs what is wanted. Returns the place up to which it has read; `None` when nothing more is wanted.
    fn read_some(
        &mut self,
        access: &mut ShardAccess,
        (region, at): (&Arc<Region>, usize),
        limit: &impl Fn(Rank) -> usize,
        here: &mut impl FnMut(&P::Way, usize, &[u8]) -> bool,
    ) -> Result<Option<usize>, LoadError> {
        // Nobody wants any byte before the first wanted one.
        let Some(first) = self.packing.first() else { return Ok(None) };
        let at = first.max(at);
        let mut taken = None;
        access.load_all(std::iter::once(&**region), |source| {
            let (range, buffer) = match self.ahead.take(at) {
                Some((range, buffer, outcome)) => match outcome {
                    Ok(()) => (range, buffer),
                    Err(error) => {
                        // What else was read from this copy is not used, because the next copy follows.
                        self.ahead.drop_all();
                        return Err(error.into());
                    }
                },
                None => {
                    let range = piece(source, region, at);
                    let mut buffer = self.ahead.buffer(range.len());
                    source.read_blocks(region, range.start, &mut buffer[..range.len()])?;
                    (range, buffer)
                }
            };
            while self.ahead.has_room(source) {
                let next = self.packing.next_from(self.ahead.end().unwrap_or(range.end));
                let Some(next) = next.filter(|next| (*next as u64) < region.bytes) else { break };
                if !self.ahead.ask(source, region, piece(source, region, next)) {
                    break;
                }
            }
            let bytes = range.len() as u64;
            taken = Some((range, buffer));
            Ok(bytes)
        })?;
        let Some((range, buffer)) = taken else { return Ok(None) };
        let is_taken = self.packing.pack((range.start, &buffer[..range.len()]), limit, here);
        self.ahead.give_back(buffer);
        if !is_taken {
            return Err(self
                .together
                .of_this_rank("it was told to put elements where it has no memory for them".into()));
        }
        Ok(Some(range.end))
    }
}

/// As many whole blocks of a region as are read at once, beginning with the block of byte `at`.
fn piece(source: &Source, region: &Region, at: usize) -> Range<usize> {
    let block = source.head().header.block_size as usize;
    let most = if matches!(source, Source::Memory(_)) { FROM_MEMORY } else { FROM_FILE };
    let start = at - at % block;
    start..(start + most.max(block) / block * block).min(region.bytes as usize)
}
