//! Reading a region into boxes of memory that have something around them.

use super::{MEMORY_PART, READ_BYTES, Source, in_threads, is_read_in_place, read_piece};
use crate::base::digest::{Sums, digest_bytes};
use crate::base::units::page_ceil;
use crate::format::Region;
use crate::region::Unpacked;
use crate::tier::TierError;
use crate::tier::posix::PageBuffer;

/// Bytes that go through a buffer at once. It stays in the nearest cache, with what is made of it.
const BUFFER: usize = 16 << 10;

impl Source {
    /// Reads a whole region into `target`, which takes as many bytes, checking each block. What was checked is what is put there, also where the
    /// bytes can change meanwhile: they pass through a buffer.
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
                let parts = bytes.chunks(MEMORY_PART).zip(target.parts(MEMORY_PART));
                let parts = parts.zip((0..).step_by(MEMORY_PART / block));
                in_threads(region.bytes, parts, |((from, mut to), first)| {
                    for (number, from) in from.chunks(block).enumerate() {
                        self.compare(region, first + number as u64, put_digested(from, number * block, &mut to))?;
                    }
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

/// Puts a block where its bytes go, which are those from `at` on, and makes the digest of what it has put there.
fn put_digested(block: &[u8], at: usize, target: &mut Unpacked<'_>) -> crate::base::Digest {
    let (mut buffer, mut sums) = ([0u8; BUFFER], Sums::default());
    for (number, from) in block.chunks(BUFFER).enumerate() {
        let bytes = &mut buffer[..from.len()];
        bytes.copy_from_slice(from);
        sums.add((number * BUFFER) as u64, bytes);
        target.put(at + number * BUFFER, bytes);
    }
    sums.finish(block.len() as u64)
}
