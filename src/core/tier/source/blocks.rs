//! Reading some blocks of a region.

use super::pass::Pass;
use super::{BlockShare, READ_BYTES, Source, read_piece};
use crate::base::digest::digest_bytes;
use crate::base::pages;
use crate::base::units::page_ceil;
use crate::format::Region;
use crate::tier::TierError;
use crate::tier::posix::PageBuffer;
use std::ops::Range;

/// If at least this many bytes of memory are read, their pages are found first, all in one call. For fewer bytes, the
/// call is not worthwhile.
const FOUND_AT_ONCE: usize = 256 << 10;

impl Source {
    /// Reads the bytes of a region that begin at `at`, the beginning of a block, into `target`, which ends with a block or with the region.
    /// Checks the bytes there: what is in `target` afterwards is right, even if the source can change in the meantime.
    ///
    /// # Errors
    /// As [`Source::read_region`]; the content of `target` is then unspecified.
    ///
    /// # Blocking
    /// On the device that holds the file.
    pub fn read_blocks(&self, region: &Region, at: usize, target: &mut [u8]) -> Result<(), TierError> {
        let block = self.head().header.block_size as usize;
        debug_assert!(at.is_multiple_of(block), "byte {at} begins no block");
        let first = (at / block) as u64;
        match self {
            Source::Memory(shard) => {
                let start = (shard.head.header.body_offset + region.offset) as usize + at;
                let bytes = shard.part(start, target.len())?;
                self.copy_blocks(region, first, bytes, target, |from, to| {
                    to.copy_from_slice(from);
                    digest_bytes(to)
                })?;
            }
            Source::File(shard) => {
                read_piece(shard, region, at, target)?;
                for (bytes, index) in target.chunks(block).zip(first..) {
                    self.compare(region, index, digest_bytes(bytes))?;
                }
            }
        }
        Ok(())
    }

    /// Hands out blocks of a region in memory as [`Source::read_through`] does, to a reader that copies a part of each block while
    /// others copy the rest. What this reader adds to the checks of the blocks is merged into `shares`, whose first entry belongs to the
    /// first block of `range`. Nothing is compared here. If the source is a file, nothing is handed out, and the merged shares then
    /// match no block's digest.
    ///
    /// # Errors
    /// [`TierError`] if the region is not inside the shard.
    ///
    /// # Blocking
    /// Never.
    pub fn read_shared(
        &self,
        region: &Region,
        range: Range<usize>,
        shares: &mut [BlockShare],
        mut take: impl FnMut(usize, &mut Pass<'_>) -> Again,
    ) -> Result<(), TierError> {
        let Source::Memory(shard) = self else { return Ok(()) };
        let block = self.head().header.block_size as usize;
        let bytes = shard.part((shard.head.header.body_offset + region.offset) as usize + range.start, range.len())?;
        if bytes.len() >= FOUND_AT_ONCE {
            pages::find(bytes.as_ptr_range());
        }
        for ((at, bytes), share) in range.step_by(block).zip(bytes.chunks(block)).zip(shares) {
            loop {
                let mut pass = Pass::shared(bytes);
                let again = take(at, &mut pass);
                share.merge(pass.share());
                if again == Again::No {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Do the merged shares of a block of a region give the block's digest?
    pub fn is_whole(&self, region: &Region, block: usize, share: BlockShare) -> bool {
        let size = u64::from(self.head().header.block_size);
        let length = size.min(region.bytes.saturating_sub(block as u64 * size));
        share.finish(length).is_some_and(|found| self.compare(region, block as u64, found).is_ok())
    }

    /// Reads blocks of a region. `range` begins and ends with blocks, unless it ends with the region. The blocks are handed out in order.
    /// `take` gets the block's place in the region and a pass through the block, which it follows to the end; it may ask for the same block
    /// again. Bytes that `take` got from a block before an error must not be used.
    ///
    /// # Errors
    /// As [`Source::read_region`].
    ///
    /// # Blocking
    /// On the device that holds the file.
    pub fn read_through(
        &self,
        region: &Region,
        range: Range<usize>,
        mut take: impl FnMut(usize, &mut Pass<'_>) -> Again,
    ) -> Result<(), TierError> {
        let block = self.head().header.block_size as usize;
        debug_assert!(range.start.is_multiple_of(block), "byte {} begins no block", range.start);
        match self {
            Source::Memory(shard) => {
                let start = (shard.head.header.body_offset + region.offset) as usize + range.start;
                let bytes = shard.part(start, range.len())?;
                if bytes.len() >= FOUND_AT_ONCE {
                    pages::find(bytes.as_ptr_range());
                }
                for (at, bytes) in range.step_by(block).zip(bytes.chunks(block)) {
                    loop {
                        let mut pass = Pass::new(bytes);
                        let again = take(at, &mut pass);
                        if let Some(found) = pass.finish() {
                            self.compare(region, (at / block) as u64, found)?;
                        }
                        if again == Again::No {
                            break;
                        }
                    }
                }
            }
            Source::File(shard) => {
                let most = (READ_BYTES / block).max(1) * block;
                let mut buffer = PageBuffer::new(most.min(page_ceil(range.len() as u64) as usize));
                for at in range.clone().step_by(most) {
                    let part = &mut buffer[..most.min(range.end - at)];
                    read_piece(shard, region, at, part)?;
                    for (bytes, at) in part.chunks(block).zip((at..).step_by(block)) {
                        self.compare(region, (at / block) as u64, digest_bytes(bytes))?;
                        while take(at, &mut Pass::checked(bytes)) == Again::Yes {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a block is to be handed out once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// More bytes are to be taken from the block.
    Yes,
    /// The block is finished.
    No,
}
