//! Blocks that several ranks check together, when each of them wants a part of them.
//!
//! A rank that wants a sixth of each block would read six times what it wants if it checked whole blocks by itself. If every byte of a
//! region is loaded by exactly one rank, directly from memory, each rank instead adds what it has copied to the checks ([`BlockShare`]),
//! and the readers of the shards check what these shares add up to for each block. If any block is wrong, all ranks load the region once
//! more and check whole blocks. Then damaged copies are distrusted, and other copies are read.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::super::outline::Dealt;
use super::direct::{Direct, gap_of, moves_of, touched};
use super::readers::Readers;
use super::target::{Mapper, Target};
use super::{Pieces, Plan, Remaking};
use crate::base::Rank;
use crate::base::log;
use crate::coordination::{Outcome, Payload};
use crate::decomposition::matching::Piece;
use crate::format::numbers;
use crate::tier::source::{BlockShare, SHARE_BYTES, Source};
use crate::transfer::posting::{Handled, all_at_once};
use std::collections::{BTreeMap, BTreeSet};

/// For each wanted byte, the number of bytes of blocks above which checking together pays.
const PAYS: f64 = 1.5;
/// The maximum number of shares in a post.
const SHARES: usize = 2048;
/// The shares that a rank holds may take `restart.window` divided by this number.
const WINDOW_PART: u64 = 4;
/// The minimum element size, in bytes, for which a plan is made: the next regions that are loaded by it may have longer elements than the
/// first.
const ELEMENT_MIN: u64 = 32;

/// How much the ranks read by themselves.
#[derive(Clone, Copy, Default)]
pub(super) struct Reads {
    /// The number of bytes that are wanted, and the number of bytes in the blocks that contain them.
    wanted: u64,
    blocks: u64,
    /// The number of ranks that read from something other than memory, or would hold too many shares.
    others: u64,
}

impl Reads {
    /// The reads of one rank: what it reads for itself, and the shards that it would check for all ranks.
    pub fn of(
        remaking: &Remaking<'_>,
        pieces: &Pieces,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        mapper: &Mapper<'_>,
    ) -> Reads {
        let (mut reads, mut shares) = (Reads::default(), 0);
        let mut left: BTreeSet<Rank> = pieces.keys().copied().collect();
        for access in readers.of(homes, &left.clone()) {
            let Some(pieces) = pieces.get(&access.shard()) else { continue };
            let Ok((dealt, _)) = remaking.offered(access) else { continue };
            if !matches!(dealt.source, Source::Memory(_)) {
                continue;
            }
            left.remove(&access.shard());
            let (wanted, blocks) = touched_by(pieces, &dealt, mapper);
            (reads.wanted, reads.blocks) = (reads.wanted + wanted, reads.blocks + blocks);
            // The shares exist here, and in posts.
            shares += 2 * blocks_of(&dealt);
        }
        for access in readers.read_here(homes) {
            shares += remaking.offered(access).map_or(0, |(dealt, _)| blocks_of(&dealt));
        }
        let window = remaking.together.engine.config().node.restart_window;
        reads.others = u64::from(!left.is_empty() || !fit(shares, mapper.size(), window));
        reads
    }

    /// The reads as sums for a reduction, under keys that begin with `first`.
    pub fn sums(self, first: u64) -> [(u64, u64); 3] {
        [(first, self.wanted), (first + 1, self.blocks), (first + 2, self.others)]
    }

    /// The reads of all ranks that such sums add up to.
    pub fn of_sums(sums: &[(u64, u64)], first: u64) -> Reads {
        let sum = |of: u64| sums.iter().find(|(key, _)| *key == first + of).map_or(0, |(_, sum)| *sum);
        Reads { wanted: sum(0), blocks: sum(1), others: sum(2) }
    }

    /// Does it pay to check blocks together, given these reads of all ranks? The answer is the same on all ranks.
    pub fn pay_together(self) -> bool {
        self.others == 0 && self.blocks as f64 > PAYS * self.wanted as f64
    }
}

/// The maximum element size, in bytes, for which blocks are checked together by a plan that was made for elements of `size` bytes.
pub(super) fn longest(size: u64) -> u64 {
    size.max(ELEMENT_MIN)
}

/// Is there room in the window for this many shares, counted for elements of `size` bytes, if elements become as long as they may be?
fn fit(shares: u64, size: u64, window: u64) -> bool {
    let times = longest(size).div_ceil(size.max(1));
    shares.saturating_mul(times).saturating_mul(SHARE_BYTES as u64) <= window / WINDOW_PART
}

fn blocks_of(dealt: &Dealt) -> u64 {
    dealt.region.bytes.div_ceil(u64::from(dealt.source.head().header.block_size))
}

/// The number of bytes in some pieces of a shard, and in the blocks that contain them.
pub(super) fn touched_by(pieces: &[Piece], dealt: &Dealt, mapper: &Mapper<'_>) -> (u64, u64) {
    let moves = moves_of(pieces, dealt.parts().1, mapper);
    let block = dealt.source.head().header.block_size as usize;
    let ranges = touched(&moves, block, dealt.region.bytes as usize, gap_of(&dealt.source));
    let wanted = pieces.iter().map(|piece| piece.cuboid.volume() * mapper.size()).sum();
    (wanted, ranges.iter().map(|range| range.len() as u64).sum())
}

/// What has arrived for the blocks of one shard.
struct Coming {
    source: Source,
    region: crate::format::Region,
    shares: Vec<BlockShare>,
}

impl Remaking<'_> {
    /// Loads what each rank wants without others, and checks all blocks together. False if a block is wrong; then nothing that was loaded
    /// counts.
    ///
    /// # Collective
    /// All ranks. One that has a `failure` has no target.
    ///
    /// # Errors
    /// [`LoadError`], the same on all ranks.
    pub(super) fn load_shared(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        plan: &Plan,
        mut target: Option<&mut Target<'_>>,
        failure: Option<&LoadError>,
    ) -> Result<bool, LoadError> {
        let together = &self.together;
        let direct = Direct { region: together.region, pieces: &plan.own };
        let loaded = target.as_deref_mut().map_or(Ok(Vec::new()), |target| {
            let shards: BTreeSet<Rank> = plan.own.keys().copied().collect();
            direct.load_shared(readers.of(homes, &shards), target)
        });
        let (shares, mut failed) = match loaded {
            Ok(shares) => (shares, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let first = shares.iter().flat_map(|(shard, shares)| {
            let reader = plan.own[shard].first().map_or(*shard, |piece| piece.reader);
            posts(*shard, shares).map(move |post| (reader, post))
        });
        let first: Vec<(Rank, Vec<u8>)> = first.collect();
        drop(shares);
        let mut coming = BTreeMap::new();
        for access in readers.read_here(homes) {
            match self.offered(access) {
                Ok((dealt, _)) => {
                    let shares = vec![BlockShare::default(); blocks_of(&dealt) as usize];
                    coming.insert(access.shard(), Coming { source: dealt.source, region: dealt.region, shares });
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let mut on_post = |_: Rank, bytes: &[u8]| {
            take(&mut coming, bytes).ok_or("it is truncated, or of no block that this rank checks")?;
            Ok(Handled::default())
        };
        let ballot = together.failed(together.ballot("shares", Payload::None), failure.or(failed.as_ref()));
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, super::plainly)?;
        // Everything that was sent has arrived.
        let wrong = coming.values().map(Coming::wrong).sum::<u64>();
        let ballot = together.ballot("blocks", Payload::None).with_sums(vec![(0, wrong)]);
        let verdict = together.vote(ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
        let wrong = sums.first().map_or(0, |(_, sum)| *sum);
        if wrong > 0 && together.engine.is_root() {
            let (region, key) = (together.region, together.key);
            log::warn!(
                "event=blocks-differ region={region:?} {key} blocks={wrong}: all ranks load it again, and check whole blocks"
            );
        }
        if wrong == 0
            && let Some(target) = target
        {
            target.add_delivered(direct.bytes(self.size));
        }
        Ok(wrong == 0)
    }
}

impl Coming {
    /// The number of its blocks that are not what they were.
    fn wrong(&self) -> u64 {
        let blocks = self.shares.iter().enumerate();
        blocks.filter(|(block, share)| !self.source.is_whole(&self.region, *block, **share)).count() as u64
    }
}

/// Posts with the shares that were added to blocks of a shard.
fn posts(shard: Rank, shares: &[BlockShare]) -> impl Iterator<Item = Vec<u8>> {
    let some = shares.iter().enumerate().filter(|(_, share)| **share != BlockShare::default());
    let some: Vec<(usize, BlockShare)> = some.map(|(block, share)| (block, *share)).collect();
    let posts: Vec<Vec<u8>> = some
        .chunks(SHARES)
        .map(|some| {
            let mut bytes = Vec::new();
            numbers::put(&mut bytes, u64::from(shard.0));
            for (block, share) in some {
                numbers::put(&mut bytes, *block as u64);
                bytes.extend(share.to_bytes());
            }
            bytes
        })
        .collect();
    posts.into_iter()
}

/// Merges what a post says; `None` if it is truncated, or names a block that is not checked here.
fn take(coming: &mut BTreeMap<Rank, Coming>, mut bytes: &[u8]) -> Option<()> {
    let shard = Rank(u32::try_from(numbers::take(&mut bytes)?).ok()?);
    let coming = coming.get_mut(&shard)?;
    while !bytes.is_empty() {
        let block = usize::try_from(numbers::take(&mut bytes)?).ok()?;
        let (share, rest) = bytes.split_first_chunk::<SHARE_BYTES>()?;
        coming.shares.get_mut(block)?.merge(BlockShare::of_bytes(share));
        bytes = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_checked_together_where_that_pays_and_all_read_memory() {
        let reads = |wanted, blocks, others| Reads { wanted, blocks, others };
        assert!(reads(1000, 6000, 0).pay_together());
        assert!(!reads(1000, 6000, 1).pay_together());
        assert!(!reads(1000, 1500, 0).pay_together());
        assert!(!reads(0, 0, 0).pay_together());
        let sums = reads(7, 30, 2).sums(2);
        let back = Reads::of_sums(&sums, 2);
        assert_eq!((back.wanted, back.blocks, back.others), (7, 30, 2));
    }

    #[test]
    fn shares_of_the_longest_elements_fit_into_a_part_of_the_window() {
        let window = 4 * 1000 * SHARE_BYTES as u64;
        assert!(fit(1000, 32, window) && !fit(1001, 32, window));
        assert!(fit(1000, 4096, window));
        // There are four times as many shares when the next region has elements of 32 bytes.
        assert!(fit(250, 8, window) && !fit(251, 8, window));
        assert!(fit(0, 1, window) && !fit(u64::MAX, 1, window) && !fit(u64::MAX, 64, u64::MAX / 2));
        assert_eq!([longest(1), longest(8), longest(100)], [32, 32, 100]);
    }
}
