//! Bulk data between ranks: a parcel is a label and some bytes. The sender lends the bytes, and the receiver gets them
//! in a buffer of its own.
#![forbid(unsafe_code)]

use super::CommError;
use crate::base::Rank;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that neither move nor change while the value lives, for example a sealed slot of a segment.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The subject of a parcel, in a form that its sender chooses.
pub type Label = [u64; 6];

/// The maximum length of the body of a parcel, in bytes. It bounds the memory that a receiver can be made to allocate,
/// and the time that one copy takes.
pub const MAX_PARCEL_BYTES: usize = 4 << 20;

/// The maximum number of parcels that a rank takes in and its caller has not taken yet. Further parcels stay with their
/// senders.
pub(super) const PARCELS_AT_ONCE: usize = 16;

/// A range of shared bytes. Clones share the bytes.
#[derive(Clone)]
pub struct Slice {
    /// None: the slice is empty.
    bytes: Option<SharedBytes>,
    range: Range<usize>,
}

impl Slice {
    /// The bytes in `range`; None if the range does not lie inside `bytes`.
    pub fn new(bytes: SharedBytes, range: Range<usize>) -> Option<Slice> {
        (*bytes).as_ref().get(range.clone())?;
        Some(Slice { bytes: Some(bytes), range })
    }

    /// No bytes, for a parcel that consists of its label only.
    pub fn empty() -> Slice {
        Slice { bytes: None, range: 0..0 }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Is the slice empty?
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
    /// The subject of the parcel.
    pub label: Label,
    /// The body, at its exact length. Give the buffer back with [`Comm::recycle`](super::Comm::recycle).
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
