//! Bytes of device memory that are not in one piece: rows of equal length at regular distances, as the elements of a
//! box are in memory that has a margin.
#![forbid(unsafe_code)]

use super::{DeviceError, DeviceSpan, Result};

/// The maximum number of distances at which rows repeat: one for each dimension of an array except the fastest.
pub const LEVELS: usize = 7;

/// Rows of equal length at regular distances, all inside a span. Their bytes are counted row after row.
#[derive(Clone, Debug)]
pub struct Rows {
    span: DeviceSpan,
    /// Where the first row begins in the span.
    first: u64,
    /// Bytes of a row.
    row: u64,
    /// How often it repeats, and at which distance, slowest first.
    again: Vec<(u64, u64)>,
}

impl Rows {
    /// Rows of `row` bytes, the first of which begins at `first` in `span`. Each entry of `again`, slowest first, says how often what the
    /// entries after it describe repeats, and at which distance.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if a row lies outside of the span, or if there are more than [`LEVELS`] distances.
    pub fn new(span: DeviceSpan, first: u64, row: u64, again: Vec<(u64, u64)>) -> Result<Rows> {
        let refuse = |reason| DeviceError::Range { offset: first, bytes: row, reason };
        if again.len() > LEVELS {
            return Err(refuse("its rows repeat at more than 7 distances"));
        }
        let last = again.iter().try_fold(0u64, |last, (count, distance)| {
            last.checked_add(count.saturating_sub(1).checked_mul(*distance)?)
        });
        let end = last.and_then(|last| last.checked_add(first)?.checked_add(row));
        let bytes = again.iter().try_fold(row, |bytes, (count, _)| bytes.checked_mul(*count));
        match (bytes, end) {
            (Some(0), _) => Ok(Rows { span, first, row: 0, again: Vec::new() }),
            (Some(_), Some(end)) if end <= span.bytes() => Ok(Rows { span, first, row, again }),
            _ => Err(refuse("one of its rows goes past the end of its memory")),
        }
    }

    /// The memory that they lie in.
    pub fn span(&self) -> &DeviceSpan {
        &self.span
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> u64 {
        self.again.iter().fold(self.row, |bytes, (count, _)| bytes * count)
    }

    /// Bytes of a row.
    pub fn row(&self) -> u64 {
        self.row
    }

    /// Where the first row begins in the span, and how often rows repeat at which distances, slowest first.
    pub fn shape(&self) -> (u64, &[(u64, u64)]) {
        (self.first, &self.again)
    }

    /// Where a row begins in the span, counted from the first one.
    fn place(&self, mut index: u64) -> u64 {
        let mut place = self.first;
        for (count, distance) in self.again.iter().rev() {
            place += index % count * distance;
            index /= count;
        }
        place
    }

    /// Tells `take` where bytes `at..at + bytes` of the rows are in the span, row by row: the place, and the number of bytes.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn each(&self, at: u64, bytes: u64, mut take: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let (mut at, end) = (at, at + bytes);
        while at < end {
            let (index, within) = (at / self.row, at % self.row);
            let count = (self.row - within).min(end - at);
            take(self.place(index) + within, count)?;
            at += count;
        }
        Ok(())
    }
}

/// Some bytes of rows, and where they are among bytes that lie in one piece.
#[derive(Clone, Debug)]
pub struct RowCopy {
    /// The rows.
    pub rows: Rows,
    /// The first of their bytes that is copied.
    pub at: u64,
    /// How many bytes are copied.
    pub bytes: u64,
    /// Where they begin in the one piece.
    pub packed: u64,
}

/// Checks copies between rows and one piece of `piece` bytes.
///
/// # Errors
/// [`DeviceError::Range`] for one that extends beyond the end of its rows or of the piece.
pub(super) fn check_copies(copies: &[RowCopy], piece: u64) -> Result<()> {
    let is_inside = |at: u64, bytes: u64, whole: u64| at.checked_add(bytes).is_some_and(|end| end <= whole);
    for RowCopy { rows, at, bytes, packed } in copies {
        if !is_inside(*at, *bytes, rows.bytes()) || !is_inside(*packed, *bytes, piece) {
            let reason = "a copy of rows goes past the end of the rows, or of the packed piece";
            return Err(DeviceError::Range { offset: *at, bytes: *bytes, reason });
        }
    }
    Ok(())
}

/// Our own host memory, which the device reaches at the speed of the link, for copies between rows on the device and
/// host memory. Dropping it waits for the device.
pub trait Staging: Send + Sync {
    /// The memory, once the device has finished with what was enqueued for it.
    ///
    /// # Blocking
    /// For everything that was enqueued on the stream before this call.
    ///
    /// # Errors
    /// Any error that the device reports.
    fn memory(&mut self) -> Result<&mut [u8]>;

    /// Enqueues copies from the memory to rows on the device. No two of them may write the same bytes.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for copies that extend beyond an end; any error that the device reports.
    fn scatter(&mut self, copies: &[RowCopy]) -> Result<()>;

    /// Enqueues copies from rows on the device to the memory.
    ///
    /// # Errors
    /// See [`Staging::scatter`].
    fn gather(&mut self, copies: &[RowCopy]) -> Result<()>;
}
