//! Leases: memory of the segment that no restart will ever read.
//!
//! Caches (the host side of a device's cache, a staging buffer) use the segment's memory because all ranks of the node
//! share one budget, and what one rank leaves, another may use. They do not need a slot, because their contents mean
//! nothing to a later run. A [`Lease`] is contiguous, populated, page-aligned memory from the same arena and the same
//! extents as slots. It counts towards the budget, and the pages that had to be made for it count in
//! [`Segment::populated_bytes`].
//!
//! # What a restart sees
//!
//! Nothing. No entry of the slot directory names a lease, so [`super::OldSegment`] neither lists nor reads one, and
//! [`super::OldSegment::punch_except`] frees its memory with everything else that is not kept. A lease of a killed process
//! keeps its extents, as a slot in `Writing` does: they are lost to the run and disappear with the file.
//!
//! # Parts and views
//!
//! ```text
//!   free ──lend──▶ LeasePart (one, may write) ──drop──▶ free
//!     │                 │ share
//!     └─────view─────▶ LeaseView (any number, read only) ──drop──▶ free, once the last one is gone
//! ```
//!
//! A range of a lease is lent as an exclusive [`LeasePart`] or read through [`LeaseView`]s, of which several may
//! overlap: an upload to the device and a write to a file read the same bytes at once. Parts and views keep the lease's
//! memory: the memory returns to the node when the [`Lease`] and all its parts and views are dropped. Lending costs 1
//! to 2 microseconds (a search in the book of loans, `loans.rs`).
#![forbid(unsafe_code)]

use super::SegmentError;
use super::arena::Room;
use super::live::{Segment, Shared};
use super::map::{Loan, SharedLoan};
use crate::base::digest::store_fence;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

impl Segment {
    /// Leases `bytes` of contiguous, populated, page-aligned memory, or returns `None` if there is no room now.
    /// [`Segment::refusal`] then says why, and a later call may succeed. The memory may hold old bytes.
    ///
    /// If pages have to be made, they are small ones, as in [`Segment::reserve`].
    ///
    /// # Blocking
    /// Does not block if this rank has warm memory for the lease. Otherwise blocks for as long as populating takes (0.1
    /// to 0.5 s per GiB), and before that for a populating call that is under way in another thread.
    ///
    /// # Errors
    /// [`SegmentError::TooLarge`] if it never fits, [`SegmentError::Closed`], [`SegmentError::Forked`].
    pub fn lease(&self, bytes: u64) -> Result<Option<Lease>, SegmentError> {
        self.lease_from(bytes, false)
    }

    /// As [`Segment::lease`], but for background threads: memory that has to be populated gets huge pages where the
    /// kernel can make them, as in [`Segment::prepare`].
    ///
    /// # Blocking
    /// As [`Segment::lease`]; on a machine with many more runnable threads than processors, longer.
    ///
    /// # Errors
    /// As [`Segment::lease`].
    pub fn lease_in_background(&self, bytes: u64) -> Result<Option<Lease>, SegmentError> {
        self.lease_from(bytes, true)
    }

    fn lease_from(&self, bytes: u64, in_background: bool) -> Result<Option<Lease>, SegmentError> {
        let shared = &self.shared;
        shared.check_open()?;
        shared.check_fits(bytes)?;
        match shared.find_room(bytes, in_background) {
            Ok(Room { offset, length, .. }) => {
                let ground = Ground { shared: Arc::clone(shared), offset, length };
                Ok(Some(Lease { ground: Arc::new(ground), bytes }))
            }
            Err(refusal) => Ok(shared.refuse(refusal)),
        }
    }
}

/// Memory of the segment that this process uses as it likes, until it drops it.
///
/// A lease keeps this rank's place in the segment until the segment is closed, as a slot that is being written does.
pub struct Lease {
    ground: Arc<Ground>,
    bytes: u64,
}

/// The range itself, which returns to the arena when the lease, its parts and its views are dropped.
struct Ground {
    shared: Arc<Shared>,
    /// From the start of the data area.
    offset: u64,
    length: u64,
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.shared.give_back(self.offset, self.length);
    }
}

impl Lease {
    /// Where the memory starts, in bytes from the start of the segment's data area; a multiple of 4096.
    pub fn offset(&self) -> u64 {
        self.ground.offset
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Was nothing asked for?
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Lends a range (counted from the lease's start) for reading and writing. `None` if it is empty, reaches beyond the
    /// lease, or overlaps a part or a view that is out.
    pub fn lend(&self, range: Range<u64>) -> Option<LeasePart> {
        let (offset, length) = self.locate(&range)?;
        let loan = self.ground.shared.map.lend(offset, length)?;
        Some(LeasePart { loan, ground: Arc::clone(&self.ground), start: range.start })
    }

    /// Lends a range (counted from the lease's start) for reading, along with other views of it. `None` if it is empty,
    /// reaches beyond the lease, or overlaps a part that is out.
    pub fn view(&self, range: Range<u64>) -> Option<LeaseView> {
        let (offset, length) = self.locate(&range)?;
        let loan = self.ground.shared.map.lend_shared(offset, length)?;
        Some(LeaseView { loan, ground: Arc::clone(&self.ground), start: range.start })
    }

    /// Offset in the file and length of a range of the lease. In a forked child nothing can be lent.
    fn locate(&self, range: &Range<u64>) -> Option<(u64, u64)> {
        let fits = range.start < range.end && range.end <= self.bytes && self.ground.shared.map.is_mine();
        let start = self.ground.shared.header.data_offset() + self.ground.offset;
        fits.then(|| (start + range.start, range.end - range.start))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes at {})", self.bytes, self.ground.offset)
    }
}

/// A range of a lease that belongs to this value alone.
pub struct LeasePart {
    /// Declared before `ground`, so that the loan ends before its range may be given back.
    loan: Loan,
    ground: Arc<Ground>,
    start: u64,
}

impl LeasePart {
    /// Where the part starts in its lease.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Where the part starts, in bytes from the start of the segment's data area.
    pub fn offset(&self) -> u64 {
        self.ground.offset + self.start
    }

    /// Declares the bytes complete, after a store fence: this reader and others may read them from now on, and nobody
    /// writes them until all views are dropped. No other writer can intervene.
    pub fn share(self) -> LeaseView {
        store_fence();
        LeaseView { loan: self.loan.share(), ground: self.ground, start: self.start }
    }
}

impl Deref for LeasePart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.loan.as_slice()
    }
}

impl DerefMut for LeasePart {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.loan.as_mut_slice()
    }
}

impl fmt::Debug for LeasePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeasePart({} bytes at {})", self.loan.len(), self.offset())
    }
}

/// A range of a lease that is being read; nobody in this process writes it while any view of it lives.
pub struct LeaseView {
    /// Declared before `ground`, so that the loan ends before its range may be given back.
    loan: SharedLoan,
    ground: Arc<Ground>,
    start: u64,
}

impl LeaseView {
    /// Where the view starts in its lease.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Where the view starts, in bytes from the start of the segment's data area.
    pub fn offset(&self) -> u64 {
        self.ground.offset + self.start
    }
}

impl Deref for LeaseView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.loan.as_slice()
    }
}

impl AsRef<[u8]> for LeaseView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseView({} bytes at {})", self.len(), self.offset())
    }
}
