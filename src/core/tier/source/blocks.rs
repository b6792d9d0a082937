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

/// Bytes of memory whose pages are found at once before they are read; for fewer it is not worth the call.
const FOUND_AT_ONCE: usize = 256 << 10;

impl Source {
    /// Reads the bytes of a region from `at` on, which is the begin of a block, into `target`, which ends with a block or with the region, and checks
    /// them there: what is in `target` afterwards is right, also where the bytes can change meanwhile.
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

    /// Hands out blocks of a region in memory as [`Source::read_through`] does, to somebody who copies a part of each, as others do: what that adds
    /// to their checks is merged into `shares`, of which the first is that of the first block of `range`, and nothing is compared here. Of a file nothing is handed out, and what all have added
    /// turns out to be no block's digest.
    ///
    /// # Errors
    /// [`TierError`]: the region is not inside the shard.
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

    /// Is this the digest of a block of a region, of which shares have come to it?
    pub fn is_whole(&self, region: &Region, block: usize, share: BlockShare) -> bool {
        let size = u64::from(self.head().header.block_size);
        let length = size.min(region.bytes.saturating_sub(block as u64 * size));
        share.finish(length).is_some_and(|found| self.compare(region, block as u64, found).is_ok())
    }

    /// Reads blocks of a region. `range` begins and ends with blocks, unless it ends with the region. Each block is handed out in order:
    /// its place in the region, and a way through it, which `take` follows to its end. `take` may ask for the same block again. What it got
    /// of a block before an error must not be used.
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
    /// There is more to be taken from it.
    Yes,
    /// It is done with.
    No,
}
