//! Reading a region into boxes of memory that are surrounded by other data.

use super::pass::Pass;
use super::{READ_BYTES, Source, in_threads, is_read_in_place, read_piece};
use crate::base::Digest;
use crate::base::digest::{Sums, digest_bytes, store_fence};
use crate::base::units::page_ceil;
use crate::format::Region;
use crate::region::Unpacked;
use crate::tier::TierError;
use crate::tier::posix::PageBuffer;

impl Source {
    /// Reads a whole region into `target`, which takes the same number of bytes, and checks each block. Exactly the bytes that were checked
    /// are put there, even if the source can change in the meantime.
    ///
    /// # Errors
    /// As [`Source::read_region`]. `target` is then partly overwritten.
    ///
    /// # Blocking
    /// On the device that holds the file.
    pub fn read_scattered(&self, region: &Region, target: Unpacked<'_>) -> Result<(), TierError> {
        let mut target = match target.in_one_piece() {
            Ok(memory) => return self.read_region(region, memory),
            Err(target) => target,
        };
        let block = self.head().header.block_size as usize;
        let mut check_and_put = |at: usize, bytes: &[u8]| {
            let blocks = (at as u64 / block as u64..).zip(bytes.chunks(block));
            blocks.into_iter().try_for_each(|(index, bytes)| self.compare(region, index, digest_bytes(bytes)))?;
            target.put(at, bytes);
            Ok(())
        };
        match self {
            Source::Memory(shard) => {
                let start = (shard.head.header.body_offset + region.offset) as usize;
                let bytes = shard.part(start, region.bytes as usize)?;
                // The two halves of each block are read in turn, because memory does not reach its full speed when it
                // is read in only one place.
                let half = block / 2;
                let mut halves = target.parts(half).into_iter();
                let targets = std::iter::from_fn(move || Some((halves.next()?, halves.next())));
                in_threads(region.bytes, bytes.chunks(block).zip(targets).zip(0..), |((from, to), index)| {
                    self.compare(region, index, put_in_turn(from, half, to))?;
                    store_fence();
                    Ok(())
                })
            }
            Source::File(shard) if is_read_in_place(shard, region) => {
                let mut buffer = PageBuffer::new(READ_BYTES.min(page_ceil(region.bytes) as usize));
                for at in (0..region.bytes as usize).step_by(READ_BYTES) {
                    let part = &mut buffer[..READ_BYTES.min(region.bytes as usize - at)];
                    read_piece(shard, region, at, part)?;
                    check_and_put(at, part)?;
                }
                Ok(())
            }
            Source::File(shard) => self.read_ahead(shard, region, check_and_put),
        }
    }
}

/// Puts the halves of a block into their places, row by row in turn, and makes the digest of the bytes that it has put there.
fn put_in_turn(block: &[u8], half: usize, (near, far): (Unpacked<'_>, Option<Unpacked<'_>>)) -> Digest {
    let half = half.min(block.len());
    let far = far.map(|far| (Pass::between(block, half..block.len()), far.way(0), far));
    let mut ways = [Some((Pass::between(block, 0..half), near.way(0), near)), far];
    let mut is_open = true;
    while is_open {
        is_open = false;
        for (pass, way, to) in ways.iter_mut().flatten() {
            if let Some(row) = to.next(way, pass.left()).filter(|row| !row.is_empty()) {
                pass.copy(row);
                is_open = true;
            }
        }
    }
    let mut sums = Sums::default();
    ways.into_iter().flatten().for_each(|(pass, ..)| sums.merge(pass.sums()));
    sums.finish(block.len() as u64)
}
