//! Bulk data between ranks: a parcel is a label and some bytes that the sender lends and the receiver gets as a
//! buffer of its own.
#![forbid(unsafe_code)]

use super::CommError;
use crate::base::Rank;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay in place and unchanged while the value lives, for example a sealed slot of a segment.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What a parcel is about, in the words of whoever sends it.
pub type Label = [u64; 6];

/// Longest body of a parcel, in bytes. Bounds what a receiver can be made to allocate, and how long one copy takes.
pub const MAX_PARCEL_BYTES: usize = 4 << 20;

/// Parcels that a rank takes in before its caller has taken them: beyond that they stay with their senders.
pub(super) const PARCELS_AT_ONCE: usize = 16;

/// A range of shared bytes. Clones share the bytes.
#[derive(Clone)]
pub struct Slice {
    /// None: the empty slice of nothing.
    bytes: Option<SharedBytes>,
    range: Range<usize>,
}

impl Slice {
    /// The bytes in `range`; None if the range is not inside.
    pub fn new(bytes: SharedBytes, range: Range<usize>) -> Option<Slice> {
        (*bytes).as_ref().get(range.clone())?;
        Some(Slice { bytes: Some(bytes), range })
    }

    /// No bytes, for a parcel that is all label.
    pub fn empty() -> Slice {
        Slice { bytes: None, range: 0..0 }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Are there no bytes?
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.bytes.as_ref().and_then(|bytes| (**bytes).as_ref().get(self.range.clone()));
        bytes.unwrap_or_default()
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({:?})", self.range)
    }
}

/// A parcel that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The sender.
    pub from: Rank,
    /// What it is about.
    pub label: Label,
    /// The body, exactly. Give it back with [`Comm::recycle`](super::Comm::recycle).
    pub bytes: Vec<u8>,
}

/// Checks the arguments of a send, the same way in each implementation.
pub(super) fn check(rank: Rank, size: u32, to: Rank, bytes: usize) -> Result<(), CommError> {
    if to.0 >= size {
        return Err(CommError::NoSuchRank { rank, to, size });
    }
    if bytes > MAX_PARCEL_BYTES {
        return Err(CommError::ParcelTooLong { rank, to, bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_lies_inside_its_bytes_and_keeps_them_alive() {
        let bytes: Arc<Vec<u8>> = Arc::new((0..10).collect());
        let slice = Slice::new(bytes.clone(), 2..5).unwrap();
        assert_eq!((slice.as_ref(), slice.len(), slice.is_empty()), (&[2, 3, 4][..], 3, false));
        assert!(Slice::new(bytes.clone(), 10..10).unwrap().is_empty());
        assert_eq!(Arc::strong_count(&bytes), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&bytes), 1);
        #[allow(clippy::reversed_empty_ranges)]
        for outside in [0..11, 11..11, 5..2, 0..usize::MAX] {
            assert!(Slice::new(bytes.clone(), outside.clone()).is_none(), "{outside:?}");
        }
        assert_eq!((Slice::empty().as_ref(), Slice::empty().len()), (&[][..], 0));
    }

    #[test]
    fn a_parcel_to_a_rank_outside_the_group_or_of_too_many_bytes_is_refused() {
        let rank = Rank(1);
        assert_eq!(check(rank, 4, Rank(3), MAX_PARCEL_BYTES), Ok(()));
        assert_eq!(check(rank, 4, Rank(4), 0), Err(CommError::NoSuchRank { rank, to: Rank(4), size: 4 }));
        let bytes = MAX_PARCEL_BYTES + 1;
        assert_eq!(check(rank, 4, Rank(0), bytes), Err(CommError::ParcelTooLong { rank, to: Rank(0), bytes }));
    }
}
