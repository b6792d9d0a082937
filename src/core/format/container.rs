//! A file of shards: page-aligned shards one after another, followed by an index and a footer.
//!
//! The footer is the last 64 bytes of the file, so a reader finds everything from the file's length. Index and
//! footer together fill whole pages, so they can be written with direct I/O. A container may hold shards of one
//! checkpoint (this version writes no others) or of many: each index entry names its checkpoint.

use super::{Fields, FormatError, checksum, codec, expect_zeros, header, put_u64, verify_checksum};
use crate::base::ids::{CheckpointKey, Rank};
use crate::base::units::{PAGE, page_ceil};
use serde::{Deserialize, Serialize};

/// The length of the footer in bytes.
pub const FOOTER_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"BVKCONT1";
const WHAT: &str = "container footer";
const WHAT_INDEX: &str = "container index";
const AT_CHECKSUM: usize = 16;
const AT_INDEX_OFFSET: usize = 24;
const AT_INDEX_LEN: usize = 32;
const AT_INDEX_CHECKSUM: usize = 40;
const AT_FILE_LEN: usize = 48;
const AT_FLAGS: usize = 56;

/// The place of one shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerEntry {
    /// The checkpoint to which the shard belongs.
    pub key: CheckpointKey,
    /// The rank whose data the shard holds.
    pub rank: Rank,
    /// The start of the shard in the file; a multiple of 4096.
    pub offset: u64,
    /// The length of the shard; a multiple of 4096.
    pub length: u64,
}

/// The decoded index of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// The shards, in the order of their offsets.
    pub entries: Vec<ContainerEntry>,
}

/// The content of the last 64 bytes of a file: where the index is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// The start of the index in the file.
    pub index_offset: u64,
    /// The length of the encoded index.
    pub index_len: u64,
    index_checksum: u64,
}

/// Encodes the index, the padding and the footer. These are the bytes that follow the last shard, a whole number of
/// pages.
///
/// # Errors
/// [`FormatError`] if there are more entries than the index may hold.
pub fn encode_tail(entries: &[ContainerEntry]) -> Result<Vec<u8>, FormatError> {
    let index_offset = entries.last().map_or(0, |last| last.offset + last.length);
    let index = codec::encode(WHAT_INDEX, &entries)?;
    let tail_len = page_ceil((index.len() + FOOTER_LEN) as u64) as usize;
    let mut tail = vec![0u8; tail_len];
    tail[..index.len()].copy_from_slice(&index);
    let mut footer: [u8; FOOTER_LEN] = header(MAGIC);
    put_u64(&mut footer, AT_INDEX_OFFSET, index_offset);
    put_u64(&mut footer, AT_INDEX_LEN, index.len() as u64);
    put_u64(&mut footer, AT_INDEX_CHECKSUM, checksum(&tail[..tail_len - FOOTER_LEN]));
    put_u64(&mut footer, AT_FILE_LEN, index_offset + tail_len as u64);
    let sum = checksum(&footer);
    put_u64(&mut footer, AT_CHECKSUM, sum);
    tail[tail_len - FOOTER_LEN..].copy_from_slice(&footer);
    Ok(tail)
}

impl Footer {
    /// Decodes the last [`FOOTER_LEN`] bytes of a file of `file_len` bytes.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are damaged or the file no longer has the length with which it was written.
    pub fn decode(bytes: &[u8], file_len: u64) -> Result<Self, FormatError> {
        let fields = Fields::open(WHAT, bytes, FOOTER_LEN, MAGIC)?;
        fields.verify(AT_CHECKSUM)?;
        fields.check_flags(AT_FLAGS)?;
        if fields.u64(AT_FILE_LEN) != file_len {
            let need = fields.u64(AT_FILE_LEN);
            return Err(FormatError::Short { what: "container", need, have: file_len });
        }
        let footer = Footer {
            index_offset: fields.u64(AT_INDEX_OFFSET),
            index_len: fields.u64(AT_INDEX_LEN),
            index_checksum: fields.u64(AT_INDEX_CHECKSUM),
        };
        let tail = file_len.saturating_sub(footer.index_offset);
        if footer.index_len > codec::LIMIT as u64 || tail != page_ceil(footer.index_len + FOOTER_LEN as u64) {
            return Err(FormatError::invalid(WHAT, "the index is not where the footer says"));
        }
        Ok(footer)
    }

    /// The number of bytes to read at `index_offset` for [`Container::decode`].
    pub fn tail_len(&self) -> usize {
        page_ceil(self.index_len + FOOTER_LEN as u64) as usize
    }
}

impl Container {
    /// Decodes the index from the bytes at the footer's `index_offset` up to the end of the file.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are damaged, or if entries overlap or extend beyond the file.
    pub fn decode(footer: &Footer, tail: &[u8]) -> Result<Self, FormatError> {
        let need = footer.tail_len() as u64;
        if tail.len() as u64 != need {
            return Err(FormatError::Short { what: WHAT_INDEX, need, have: tail.len() as u64 });
        }
        verify_checksum(WHAT_INDEX, &tail[..tail.len() - FOOTER_LEN], footer.index_checksum)?;
        expect_zeros(WHAT_INDEX, &tail[footer.index_len as usize..tail.len() - FOOTER_LEN])?;
        let entries: Vec<ContainerEntry> = codec::decode(WHAT_INDEX, &tail[..footer.index_len as usize])?;
        let mut end = 0;
        for entry in &entries {
            let aligned = entry.offset.is_multiple_of(PAGE) && entry.length.is_multiple_of(PAGE);
            if !aligned || entry.offset != end {
                return Err(FormatError::invalid(WHAT_INDEX, format!("the shard of rank {} is misplaced", entry.rank)));
            }
            end = entry.offset.checked_add(entry.length).ok_or_else(|| FormatError::invalid(WHAT_INDEX, "overflow"))?;
        }
        if end != footer.index_offset {
            return Err(FormatError::invalid(WHAT_INDEX, "the shards do not fill the file"));
        }
        Ok(Container { entries })
    }

    /// The entry for this rank's shard in this checkpoint.
    pub fn find(&self, key: &CheckpointKey, rank: Rank) -> Option<&ContainerEntry> {
        self.entries.iter().find(|entry| entry.rank == rank && entry.key == *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> (Vec<ContainerEntry>, Vec<u8>, u64) {
        let entry =
            |rank, offset, length| ContainerEntry { key: CheckpointKey::default(), rank: Rank(rank), offset, length };
        let entries = vec![entry(0, 0, 8192), entry(1, 8192, 4096), entry(5, 12288, 4096)];
        let tail = encode_tail(&entries).unwrap();
        let file_len = 16384 + tail.len() as u64;
        (entries, tail, file_len)
    }

    fn decode(tail: &[u8], file_len: u64) -> Result<Container, FormatError> {
        let footer = Footer::decode(&tail[tail.len() - FOOTER_LEN..], file_len)?;
        Container::decode(&footer, tail)
    }

    #[test]
    fn a_container_reads_back_as_it_was_written() {
        let (entries, tail, file_len) = tail();
        assert_eq!(tail.len() % PAGE as usize, 0);
        let container = decode(&tail, file_len).unwrap();
        assert_eq!(container.entries, entries);
        assert_eq!(container.find(&CheckpointKey::default(), Rank(5)).unwrap().offset, 12288);
        assert!(container.find(&CheckpointKey::default(), Rank(2)).is_none());
    }

    #[test]
    fn every_flipped_bit_of_the_tail_and_every_other_length_is_noticed() {
        let (_, mut tail, file_len) = tail();
        for bit in 0..tail.len() * 8 {
            tail[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&tail, file_len).is_err(), "bit {bit}");
            tail[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(decode(&tail, file_len - 4096).is_err());
        assert!(decode(&tail, file_len + 4096).is_err());
    }
}
