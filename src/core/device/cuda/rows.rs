//! Rows at regular distances. They are packed inside the device, and brought to and from pinned host memory by a kernel that accesses this
//! memory itself. Long rows are left to the copy engine, which needs no thread of the device.

use super::super::{DeviceError, DeviceSpan, LEVELS, Result, RowCopy, Staging, check_copies};
use super::event::Event;
use super::pinned::PinnedLoan;
use super::stream::{EngineCopy, GpuStream};
use crate::base::log;
use cudarc::driver::result;
use std::ffi::c_void;

/// Bytes that one thread block copies.
const ITEM_BYTES: u64 = 32 << 10;
/// Threads of a thread block; the kernel is built for it.
const THREADS: u32 = 256;
/// The maximum number of runs that are passed as kernel arguments; more go through pinned memory.
const FEW: usize = 16;
/// Rows of at least this many bytes are copied by the copy engine between host and device.
const LONG: u64 = 256 << 10;
/// The widest load of the kernel.
const WIDEST: u64 = 16;

/// `struct RowRun` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct KernelRun {
    packed: u64,
    rows: u64,
    at: u64,
    bytes: u64,
    row: u64,
    count: [u64; LEVELS],
    distance: [u64; LEVELS],
    levels: u32,
    width: u32,
    first_item: u32,
    is_packed: u32,
}

impl KernelRun {
    /// `piece` is the address of the one piece.
    fn of(copy: &RowCopy, piece: u64, is_packed: bool) -> KernelRun {
        let (first, again) = copy.rows.shape();
        let mut run = KernelRun {
            packed: piece + copy.packed,
            rows: copy.rows.span().address() + first,
            at: copy.at,
            bytes: copy.bytes,
            row: copy.rows.row(),
            levels: again.len() as u32,
            is_packed: u32::from(is_packed),
            ..KernelRun::default()
        };
        for (level, (count, distance)) in again.iter().enumerate() {
            (run.count[level], run.distance[level]) = (*count, *distance);
        }
        // The greatest power of two that divides all of them.
        let all = again.iter().map(|(_, distance)| *distance).chain([run.packed, run.rows, run.at, run.bytes, run.row]);
        let common = all.fold(WIDEST, |common, number| common | number);
        run.width = 1 << common.trailing_zeros();
        run
    }
}

/// What the kernel is told in one launch. Pure.
struct Table {
    runs: Vec<KernelRun>,
    items: u32,
}

impl Table {
    fn of(runs: impl Iterator<Item = KernelRun>) -> Result<Table> {
        let (mut table, mut items) = (Vec::new(), 0u64);
        for run in runs.filter(|run| run.bytes > 0) {
            table.push(KernelRun { first_item: items as u32, ..run });
            items += run.bytes.div_ceil(ITEM_BYTES);
        }
        let too_many = DeviceError::Range { offset: 0, bytes: items, reason: "more than 2^31 items in one call" };
        let items = i32::try_from(items).map_err(|_| too_many)? as u32;
        Ok(Table { runs: table, items })
    }

    /// The run of each item.
    fn owners(&self) -> Vec<u32> {
        let mut owners = Vec::with_capacity(self.items as usize);
        let ends = self.runs.iter().skip(1).map(|run| run.first_item).chain([self.items]);
        for (index, end) in (0..).zip(ends) {
            owners.resize(end as usize, index);
        }
        owners
    }
}

impl GpuStream {
    /// Enqueues the kernel. The result is kept until it has run.
    ///
    /// # Safety
    /// The runs are in memory of this device, and their other ends in such memory or in pinned memory of the process, all of which stays
    /// until the stream has run the kernel.
    unsafe fn copy_rows(&self, table: &Table) -> Result<Option<PinnedLoan>> {
        if table.items == 0 {
            return Ok(None);
        }
        let mut few = [KernelRun::default(); FEW];
        let (mut many, mut owners, mut loan) = (0u64, 0u64, None);
        if table.runs.len() <= FEW {
            few[..table.runs.len()].copy_from_slice(&table.runs);
        } else {
            let (runs, places) = (bytemuck::cast_slice::<_, u8>(&table.runs), table.owners());
            let places: &[u8] = bytemuck::cast_slice(&places);
            let mut pinned = self.shared.pinned.take(runs.len() + places.len())?;
            pinned.write(0, runs);
            pinned.write(runs.len(), places);
            (many, owners) = (pinned.address(), pinned.address() + runs.len() as u64);
            loan = Some(pinned);
        }
        let (count, item_bytes) = (table.runs.len() as u32, ITEM_BYTES);
        let mut arguments: [*mut c_void; 5] = [
            (&raw const few).cast_mut().cast(),
            (&raw const many).cast_mut().cast(),
            (&raw const owners).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const item_bytes).cast_mut().cast(),
        ];
        let (function, grid) = (self.shared.copy_rows.cu_function(), (table.items, 1, 1));
        // SAFETY: the arguments are those of `bvk_copy_rows` in number, order and size, and are read during the call. The table is as the caller says;
        // a long one lies in the loan, which the caller keeps.
        let launched = unsafe { result::launch_kernel(function, grid, (THREADS, 1, 1), 0, self.raw(), &mut arguments) };
        launched.map_err(|error| self.shared.failed("cuLaunchKernel", error))?;
        Ok(loan)
    }

    /// See [`Stream::pack`](super::super::Stream::pack).
    pub(super) fn pack_rows(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<()> {
        check_copies(copies, to.bytes())?;
        self.check_spans(copies.iter().map(|copy| copy.rows.span()).chain([to]))?;
        let _bound = self.shared.bind()?;
        let table = Table::of(copies.iter().map(|copy| KernelRun::of(copy, to.address(), true)))?;
        let spans = copies.iter().map(|copy| copy.rows.span().clone()).chain([to.clone()]).collect();
        self.keeping(|| {
            // SAFETY: the spans are of this device, `check_copies` has looked at all lengths, and they are kept with the loan until the kernel has run.
            let loan = unsafe { self.copy_rows(&table)? };
            Ok((spans, loan))
        })
    }

    /// See [`Stream::staging`](super::super::Stream::staging).
    pub(super) fn pinned_staging(&self, bytes: u64) -> Result<PinnedStaging<'_>> {
        let loan = self.shared.pinned.take(bytes as usize)?;
        Ok(PinnedStaging { stream: self, loan, bytes: bytes as usize, under_way: Vec::new(), event: None })
    }
}

/// A pinned buffer, and what the device still does with it.
pub(super) struct PinnedStaging<'s> {
    stream: &'s GpuStream,
    loan: PinnedLoan,
    bytes: usize,
    /// What work under way uses in addition to the buffer.
    under_way: Vec<(Vec<DeviceSpan>, Option<PinnedLoan>)>,
    /// An event after the last of this work. `None` although there is work: the event could not be made.
    event: Option<Event>,
}

impl PinnedStaging<'_> {
    fn enqueue(&mut self, copies: &[RowCopy], is_down: bool) -> Result<()> {
        check_copies(copies, self.bytes as u64)?;
        let stream = self.stream;
        stream.check_spans(copies.iter().map(|copy| copy.rows.span()))?;
        let _bound = stream.shared.bind()?;
        let host = self.loan.address();
        let mut engine: Vec<EngineCopy> = Vec::new();
        let (long, short): (Vec<&RowCopy>, Vec<&RowCopy>) =
            copies.iter().partition(|copy| copy.rows.row().min(copy.bytes) >= LONG);
        for copy in long {
            let (mut at, device) = (host + copy.packed, copy.rows.span().address());
            copy.rows.each(copy.at, copy.bytes, |place, count| {
                let (here, there) = (at, device + place);
                engine.push(if is_down { (there, here, count as usize) } else { (here, there, count as usize) });
                at += count;
                Ok(())
            })?;
        }
        let table = Table::of(short.into_iter().map(|copy| KernelRun::of(copy, host, is_down)))?;
        let spans: Vec<DeviceSpan> = copies.iter().map(|copy| copy.rows.span().clone()).collect();
        // This comes first, so that the spans are kept whatever fails afterwards.
        self.event = None;
        self.under_way.push((spans, None));
        for (from, to, bytes) in engine {
            // SAFETY: both are inside what `check_copies` has checked; the buffer and the spans are kept until the
            // device has finished with them.
            unsafe { stream.enqueue(from, to, bytes, is_down)? };
        }
        // SAFETY: as above, and the loan is kept likewise.
        let loan = unsafe { stream.copy_rows(&table)? };
        if let Some((_, kept)) = self.under_way.last_mut() {
            *kept = loan;
        }
        self.event = Some(stream.event()?);
        Ok(())
    }

    /// Waits until the device has finished with it.
    fn settle(&mut self) -> Result<()> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let waited = match &self.event {
            Some(event) => event.wait(),
            None => self.stream.drain(),
        };
        if waited.is_err() {
            // The device may still be using the buffer.
            _ = self.stream.drain();
        }
        self.event = None;
        self.under_way.clear();
        waited
    }
}

impl Staging for PinnedStaging<'_> {
    fn memory(&mut self) -> Result<&mut [u8]> {
        self.settle()?;
        Ok(self.loan.bytes_mut(self.bytes))
    }

    fn scatter(&mut self, copies: &[RowCopy]) -> Result<()> {
        self.enqueue(copies, false)
    }

    fn gather(&mut self, copies: &[RowCopy]) -> Result<()> {
        self.enqueue(copies, true)
    }
}

impl Drop for PinnedStaging<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            log::debug!("event=rows-not-copied error={error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_has_its_run() {
        let lengths = [1, ITEM_BYTES, 0, 3 * ITEM_BYTES + 1];
        let table = Table::of(lengths.into_iter().map(|bytes| KernelRun { bytes, ..KernelRun::default() }));
        let table = table.expect("few");
        assert_eq!((table.runs.len(), table.items), (3, 6));
        assert_eq!(table.owners(), [0, 1, 2, 2, 2, 2]);
        assert!(Table::of(std::iter::once(KernelRun { bytes: u64::MAX, ..KernelRun::default() })).is_err());
    }
}
