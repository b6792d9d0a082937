//! Regions that are read whole because a command needs their contents. Each block is compared with its digest.
#![forbid(unsafe_code)]

use crate::ending::{self, Problem};
use crate::survey::without_path;
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::units::MIB;
use bivouac_core::decomposition::ids;
use bivouac_core::format::Region;
use bivouac_core::format::shard::Head;
use bivouac_core::region::DECOMPOSITION;
use bivouac_core::tier::TierError;
use bivouac_core::tier::source::FileShard;

/// The longest decomposition record that is read, in bytes: a few million boxes. The format allows more.
pub const RECORD_MAX: u64 = 256 * MIB;

/// Reads a region of at most `most` bytes. Memory is allocated only for bytes that have been read: a length alone takes none.
///
/// # Errors
/// The region is longer or cannot be read, or its bytes differ from those of the capture.
pub fn read_region(
    head: &Head,
    region: &Region,
    most: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
) -> Result<Vec<u8>, Problem> {
    if region.bytes > most {
        let Region { name, bytes, .. } = region;
        return Err(Problem::from(format!("region {name:?} has {bytes} bytes, but at most {most} can be read")));
    }
    let mut bytes = Vec::new();
    for (at, length, digest) in head.region_blocks(region) {
        let start = bytes.len();
        bytes.resize(start + length as usize, 0);
        read(at, &mut bytes[start..])?;
        if digest_bytes(&bytes[start..]) != digest {
            return Err(Problem::damage(format!("region {:?}: its bytes do not match their digest", region.name)));
        }
    }
    Ok(bytes)
}

/// The decomposition record of a shard, if it has one.
///
/// # Errors
/// Those of [`read_region`].
pub fn decomposition_record(
    head: &Head,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
) -> Result<Option<Vec<u8>>, Problem> {
    head.region(DECOMPOSITION).map(|region| read_region(head, region, RECORD_MAX, read)).transpose()
}

/// The packed numbers of the list at an index of the record of a shard, if the shard has them.
///
/// # Errors
/// Those of [`read_region`].
pub fn list(
    head: &Head,
    place: usize,
    read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
) -> Result<Vec<u8>, Problem> {
    let name = ids::region_name(place);
    let region = head.region(&name).ok_or_else(|| Problem::damage(format!("there is no region {name:?}")))?;
    read_region(head, region, RECORD_MAX, read)
}

/// A tier's error, for messages that name the file already.
pub fn unread(error: &TierError) -> Problem {
    Problem { ending: ending::of_tier(error), text: without_path(error) }
}

/// Reads from a shard in a file.
pub fn of_file(shard: &FileShard) -> impl Fn(u64, &mut [u8]) -> Result<(), Problem> + '_ {
    |at, buffer| shard.read_raw(at, buffer).map_err(|error| unread(&error))
}

/// Reads from a shard in memory that another process may have returned to the system.
pub fn of_memory(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> Result<(), Problem> + '_ {
    |at, buffer| {
        let part = bytes.get(at as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or_else(|| Problem::damage("its bytes are gone"))?);
        Ok(())
    }
}
