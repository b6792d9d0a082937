//! A shard cut into page-aligned pieces, which threads can take in turn and check one by one.
#![forbid(unsafe_code)]

use super::TierError;
use super::source::Source;
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::format::shard::Head;
use std::ops::Range;

/// A page-aligned range of a shard and the blocks that start in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offsets within the shard.
    pub bytes: Range<u64>,
    /// Indices of the blocks that start in the piece, and also end in it.
    pub blocks: Range<u64>,
}

impl Piece {
    /// Checks the blocks of the piece, whose bytes were read from `source`, against their digests, and the head against its checksums.
    ///
    /// # Errors
    /// [`TierError::Damaged`] for the first block that differs, [`TierError::Format`] for the head.
    pub fn check(&self, source: &Source, bytes: &[u8]) -> Result<(), TierError> {
        let head = source.head();
        if self.bytes.start == 0 {
            return Head::check(bytes, &head.header).map_err(|error| TierError::Format {
                tier: source.tier(),
                path: source.path().to_owned(),
                source: error,
            });
        }
        for index in self.blocks.clone() {
            let (offset, length, expected, region) = head.block_at(index);
            let from = (offset - self.bytes.start) as usize;
            let found = digest_bytes(&bytes[from..from + length as usize]);
            if found != expected {
                return Err(damaged(source, region, offset, expected, found));
            }
        }
        Ok(())
    }
}

fn damaged(source: &Source, region: &str, at: u64, expected: Digest, found: Digest) -> TierError {
    TierError::Damaged {
        tier: source.tier(),
        path: source.path().to_owned(),
        rank: source.head().header.rank,
        region: region.to_owned(),
        at,
        expected,
        found,
    }
}

/// Cuts a shard into its head and pieces of about `piece_bytes`. The cuts are at the starts of blocks, so all pieces are page-aligned.
pub fn pieces(head: &Head, piece_bytes: u64) -> Vec<Piece> {
    let mut pieces = vec![Piece { bytes: 0..head.header.body_offset, blocks: 0..0 }];
    let mut piece = Piece { bytes: head.header.body_offset..head.header.body_offset, blocks: 0..0 };
    for (index, (offset, length, _)) in head.blocks().enumerate() {
        if offset > piece.bytes.start && offset + length > piece.bytes.start + piece_bytes {
            let next = Piece { bytes: offset..offset, blocks: index as u64..index as u64 };
            piece.bytes.end = offset;
            pieces.push(std::mem::replace(&mut piece, next));
        }
        piece.blocks.end = index as u64 + 1;
    }
    piece.bytes.end = head.header.total_len;
    if !piece.bytes.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{CheckpointKey, Rank};
    use crate::format::shard::{Layout, ShardMeta, encode_head};
    use crate::format::{Region, RegionKind};

    fn head(lengths: &[u64], block: u64) -> Head {
        let regions =
            lengths.iter().enumerate().map(|(i, bytes)| Region::of_bytes(i.to_string(), RegionKind::Array, *bytes));
        let meta = ShardMeta { job: "j".into(), group: "g".into(), name: "n".into(), regions: regions.collect() };
        let layout = Layout::new(meta, block).unwrap();
        let digests = vec![Digest::default(); layout.block_count as usize];
        let header = layout.header(CheckpointKey::default(), 0, 1, Rank(0), None);
        let mut bytes = vec![0; layout.body_offset as usize];
        encode_head(&layout, &header, &digests, &mut bytes);
        Head::decode(&bytes).unwrap()
    }

    #[test]
    fn pieces_cover_every_byte_and_every_block_once_and_are_aligned() {
        for lengths in [&[1u64, 0, 70_000, 5][..], &[], &[0], &[1 << 20, 1 << 20], &[4096; 100]] {
            for piece_bytes in [4096, 16_384, 1 << 20] {
                let head = head(lengths, 4096);
                let pieces = pieces(&head, piece_bytes);
                let (mut at, mut block) = (0, 0);
                for piece in &pieces {
                    assert_eq!((piece.bytes.start, piece.blocks.start), (at, block), "{lengths:?}");
                    assert_eq!(piece.bytes.start % 4096, 0);
                    (at, block) = (piece.bytes.end, piece.blocks.end);
                    for index in piece.blocks.clone() {
                        let (offset, length, _, _) = head.block_at(index);
                        assert!(piece.bytes.start <= offset && offset + length <= piece.bytes.end);
                    }
                }
                assert_eq!((at, block), (head.header.total_len, head.header.block_count));
            }
        }
    }
}
