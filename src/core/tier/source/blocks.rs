//! Reading some blocks of a region.

use super::{Source, read_piece};
use crate::base::digest::digest_bytes;
use crate::format::Region;
use crate::tier::TierError;

impl Source {
    /// Reads the bytes of a region from `at` on, which is the begin of a block, into `target`, which ends with a block or with the region, and checks
    /// them there: what is in `target` afterwards is right, also where the bytes can change meanwhile.
    ///
    /// # Errors
    /// As [`Source::read_region`]; `target` then holds nothing of use.
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
                let blocks = bytes.chunks(block).zip(target.chunks_mut(block)).zip(first..);
                for ((from, to), index) in blocks {
                    to.copy_from_slice(from);
                    self.compare(region, index, digest_bytes(to))?;
                }
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
}
