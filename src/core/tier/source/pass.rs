//! A block on its way from a shard to where its bytes are wanted, piece by piece, with its digest made on the way.

use super::share::BlockShare;
use crate::base::Digest;
use crate::base::digest::{PAIR, Sums};
use std::ops::Range;

/// A pass through one block. What is handed out was read once, and the digest is made from exactly that. The bytes count only when the
/// digest has turned out to be right.
pub struct Pass<'b> {
    bytes: &'b [u8],
    /// How far the pass has come, and where it ends.
    at: usize,
    end: usize,
    /// The sums of all bytes before `at`, including the pair that `at` is inside of. `None` if the block was checked
    /// already, or if the pass has a share.
    sums: Option<Sums>,
    pair: [u8; PAIR],
    /// The share of the bytes that were copied, if others copy the rest.
    share: Option<BlockShare>,
}

impl<'b> Pass<'b> {
    /// A pass through a block of memory that others may change.
    pub fn new(bytes: &'b [u8]) -> Pass<'b> {
        Pass::between(bytes, 0..bytes.len())
    }

    /// A pass through a part of such a block. The part begins with a pair of words, and ends with a pair or with the block.
    pub fn between(bytes: &'b [u8], part: Range<usize>) -> Pass<'b> {
        Pass { bytes, at: part.start, end: part.end, sums: Some(Sums::default()), pair: [0; PAIR], share: None }
    }

    /// A pass through a block that was checked.
    pub fn checked(bytes: &'b [u8]) -> Pass<'b> {
        Pass { bytes, at: 0, end: bytes.len(), sums: None, pair: [0; PAIR], share: None }
    }

    /// A pass through a block of memory that others may change, and of which others copy the rest. Skipped bytes are not looked at.
    pub fn shared(bytes: &'b [u8]) -> Pass<'b> {
        Pass { share: Some(BlockShare::default()), ..Pass::checked(bytes) }
    }

    /// How far the pass has come in the block.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// Skips bytes that nobody wants.
    pub fn skip(&mut self, mut count: usize) {
        let Some(_) = self.sums else {
            self.at += count;
            return;
        };
        count -= self.of_pair(count, |_| ());
        let whole = count / PAIR * PAIR;
        let bytes = &self.bytes[self.at..self.at + whole];
        if let Some(sums) = self.sums.as_mut().filter(|_| whole > 0) {
            sums.add(self.at as u64, bytes);
        }
        self.at += whole;
        self.of_pair(count - whole, |_| ());
    }

    /// Copies the next bytes, as many as `target` takes.
    pub fn copy(&mut self, target: &mut [u8]) {
        let Some(_) = self.sums else {
            match &mut self.share {
                Some(share) => share.copy(self.bytes, self.at, target),
                None => target.copy_from_slice(&self.bytes[self.at..self.at + target.len()]),
            }
            self.at += target.len();
            return;
        };
        let wanted = target.len();
        let first = self.of_pair(wanted, |bytes| target[..bytes.len()].copy_from_slice(bytes));
        let whole = (wanted - first) / PAIR * PAIR;
        if let Some(sums) = self.sums.as_mut().filter(|_| whole > 0) {
            let bytes = &self.bytes[self.at..self.at + whole];
            sums.add_copying(self.at as u64, bytes, &mut target[first..first + whole]);
        }
        self.at += whole;
        let rest = &mut target[first + whole..];
        self.of_pair(rest.len(), |bytes| rest.copy_from_slice(bytes));
    }

    /// Takes at most `most` bytes of the pair that `at` is inside of, or of the next pair if that is not wanted as a
    /// whole. Returns how many.
    fn of_pair(&mut self, most: usize, take: impl FnOnce(&[u8])) -> usize {
        let within = self.at % PAIR;
        let begins = self.at - within;
        let length = (self.end - begins).min(PAIR);
        let count = most.min(length - within);
        if count == 0 || (within == 0 && count == PAIR) {
            return 0;
        }
        if within == 0 {
            self.pair[..length].copy_from_slice(&self.bytes[begins..begins + length]);
            if let Some(sums) = &mut self.sums {
                sums.add(begins as u64, &self.pair[..length]);
            }
        }
        take(&self.pair[within..within + count]);
        self.at += count;
        count
    }

    /// What the part adds to the digest of the block.
    pub fn sums(self) -> Sums {
        debug_assert_eq!(self.left(), 0, "something of it was not passed");
        self.sums.unwrap_or_default()
    }

    /// What the pass adds to the check of a block of which others copy the rest.
    pub fn share(&self) -> BlockShare {
        self.share.unwrap_or_default()
    }

    /// The digest of the block, which was passed as a whole. `None` if the block was checked before, or is checked together with others.
    pub fn finish(self) -> Option<Digest> {
        debug_assert_eq!(self.left(), 0, "a part of the block was not passed");
        self.sums.map(|sums| sums.finish(self.bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::digest_bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_passed_in_pieces_has_the_digest_of_the_whole(
            length in 0usize..700,
            pieces in proptest::collection::vec((0usize..200, any::<bool>()), 0..12),
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            for mut pass in [Pass::new(&bytes), Pass::checked(&bytes)] {
                for (count, is_wanted) in &pieces {
                    let (at, count) = (pass.at(), (*count).min(pass.left()));
                    if *is_wanted {
                        let mut target = vec![0; count];
                        pass.copy(&mut target);
                        prop_assert_eq!(&target[..], &bytes[at..at + count]);
                    } else {
                        pass.skip(count);
                    }
                    prop_assert_eq!(pass.at(), at + count);
                }
                pass.skip(pass.left());
                if let Some(found) = pass.finish() {
                    prop_assert_eq!(found, digest_bytes(&bytes));
                }
            }
        }
    }
}
