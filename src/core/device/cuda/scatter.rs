//! Copies many small pieces of host memory to as many places on the device: the pieces are gathered in buffers, sent as one, and
//! brought to their places by the kernel that makes their digests.

use super::super::{Copied, DeviceError, DeviceSpan, Result, Run, Stream, upload_and_digest};
use super::detour::{DETOUR_BYTES, Gather, Team};
use super::memory::Allocation;
use super::stream::{GpuStream, Lent, check_lengths};
use crate::base::Digest;
use std::ops::Range;
use std::sync::Arc;

/// Pieces below this size are gathered: each would be a copy of its own, and shorter copies do not fill the link.
const SMALL: u64 = DETOUR_BYTES as u64;
/// Fewer pieces than this are not worth it.
const MANY: usize = 16;
/// Pieces begin at multiples of this in a batch, as the kernel's wide loads require.
const ALIGN: u64 = 256;
/// Bytes of device memory for a batch: the maximum, and the least that is worth it.
const ROOM_MAX: u64 = 256 << 20;
const ROOM_MIN: u64 = DETOUR_BYTES as u64;
/// Parts that wait for a thread of the team while the next batch is prepared: about those of one batch.
const QUEUE: usize = (ROOM_MAX / DETOUR_BYTES as u64) as usize;

/// Where the pieces of one batch lie in the staging memory. Pure.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// Which of the small pieces.
    pieces: Range<usize>,
    /// Start of each.
    at: Vec<u64>,
    bytes: u64,
}

/// A batch, ready to be sent.
struct Prepared<'a> {
    pieces: &'a [usize],
    parts: Vec<(u64, Gather<'a>)>,
    runs: Vec<Run>,
}

/// Cuts pieces of these lengths, in order, into batches for `room` bytes.
fn batches(lengths: &[u64], room: u64) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        let fits = |batch: &&mut Batch| batch.bytes.next_multiple_of(ALIGN) + length <= room;
        match batches.last_mut().filter(fits) {
            Some(batch) => {
                batch.at.push(batch.bytes.next_multiple_of(ALIGN));
                batch.bytes = batch.bytes.next_multiple_of(ALIGN) + length;
                batch.pieces.end = index + 1;
            }
            None => batches.push(Batch { pieces: index..index + 1, at: vec![0], bytes: *length }),
        }
    }
    batches
}

impl GpuStream {
    /// See [`Stream::upload_blocks`].
    pub(super) fn upload_in_batches(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        match self.try_in_batches(copies, block_bytes) {
            // The staging memory may have taken what the kernel's tables need.
            Err(DeviceError::OutOfMemory { .. }) => upload_and_digest(self, copies, block_bytes),
            outcome => outcome,
        }
    }

    fn try_in_batches(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>> {
        let (small, others): (Vec<usize>, Vec<usize>) =
            (0..copies.len()).partition(|index| copies[*index].1.bytes() < SMALL);
        let lengths: Vec<u64> = small.iter().map(|index| copies[*index].1.bytes()).collect();
        let wanted = lengths.iter().map(|length| length.next_multiple_of(ALIGN)).sum::<u64>();
        let room = if small.len() < MANY { None } else { self.room(wanted) };
        let Some(room) = room else { return upload_and_digest(self, copies, block_bytes) };
        copies.iter().try_for_each(|(host, device)| check_lengths(device, host.len()))?;
        // Where the digests of each piece go.
        let blocks = |index: &usize| copies[*index].1.bytes().div_ceil(block_bytes) as usize;
        let firsts: Vec<usize> =
            (0..copies.len()).scan(0, |next, index| Some(std::mem::replace(next, *next + blocks(&index)))).collect();
        let all = firsts.last().map_or(0, |first| first + blocks(&(copies.len() - 1)));
        let mut found = vec![Digest::default(); all];
        let mut sort = |indices: &[usize], digests: Vec<Digest>| {
            let mut rest = &digests[..];
            for index in indices {
                let (own, others) = rest.split_at(blocks(index));
                found[firsts[*index]..][..own.len()].copy_from_slice(own);
                rest = others;
            }
        };
        let large: Vec<_> = others.iter().map(|index| copies[*index].clone()).collect();
        sort(&others, upload_and_digest(self, &large, block_bytes)?);
        // Work that was enqueued before may write what the processor reads now.
        self.finish()?;
        let _bound = self.shared.bind()?;
        let lent = Lent::to(self);
        let outcome = std::thread::scope(|scope| {
            let mut team = Team::with_queue(scope, self, wanted, QUEUE);
            let prepare = |batch: Batch| -> Result<Prepared<'_>> {
                let pieces = &small[batch.pieces.clone()];
                let slices: Vec<&[u8]> = pieces.iter().map(|index| copies[*index].0).collect();
                let mut first = 0;
                let runs = pieces.iter().zip(&batch.at).map(|(index, at)| {
                    let to = copies[*index].1.clone();
                    let run = Run::whole(room.part(*at, to.bytes())?, Some(to), first);
                    first += blocks(index) as u32;
                    Ok(run)
                });
                Ok(Prepared { pieces, parts: parts(&batch.at, &slices), runs: runs.collect::<Result<_>>()? })
            };
            let mut batches = batches(&lengths, room.bytes()).into_iter().map(prepare);
            let mut before: Option<(&[usize], Box<dyn Copied>)> = None;
            let mut next = batches.next().transpose()?;
            while let Some(Prepared { pieces, parts, runs }) = next.take() {
                parts.into_iter().try_for_each(|(at, part)| team.give(room.address() + at, part))?;
                // This is done while the team is at work.
                next = batches.next().transpose()?;
                if !team.settle() {
                    break;
                }
                // The next batch goes to the staging memory after it. At most two are under way: each has its own tables.
                let copied = self.copy_blocks(runs, block_bytes)?;
                if let Some((pieces, copied)) = before.replace((pieces, copied)) {
                    sort(pieces, copied.digests()?);
                }
            }
            team.end()?;
            before.map_or(Ok(()), |(pieces, copied)| copied.digests().map(|digests| sort(pieces, digests)))
        });
        lent.take_back(outcome)?;
        Ok(found)
    }

    /// Staging memory for this many bytes, or for as many as there is room for. `None` if there is so little that it is of no use.
    fn room(&self, wanted: u64) -> Option<DeviceSpan> {
        let mut bytes = wanted.clamp(ROOM_MIN, ROOM_MAX);
        while bytes >= ROOM_MIN {
            if let Ok(memory) = Allocation::new(&self.shared, bytes) {
                return Some(DeviceSpan::new(memory.address(), bytes, self.shared.home(), Arc::new(memory)));
            }
            bytes /= 2;
        }
        None
    }
}

/// The pieces of a batch in buffers: the start of each, and what is in it. Pure.
fn parts<'a>(at: &[u64], slices: &[&'a [u8]]) -> Vec<(u64, Gather<'a>)> {
    let mut parts: Vec<(u64, Gather<'a>)> = Vec::new();
    for (at, slice) in at.iter().zip(slices) {
        match parts.last_mut() {
            Some((start, gather)) if (at - *start) as usize + slice.len() <= DETOUR_BYTES => {
                let offset = (at - *start) as usize;
                gather.slices.push((offset, *slice));
                gather.bytes = offset + slice.len();
            }
            _ => parts.push((*at, Gather { slices: vec![(0, *slice)], bytes: slice.len() })),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_side_by_side_in_order_and_within_the_room() {
        let lengths: Vec<u64> = (0..3000u64).map(|at| at * 7919 % (512 << 10)).collect();
        let cut = batches(&lengths, 4 << 20);
        assert!(cut.len() > 100 && cut.iter().all(|batch| batch.bytes <= 4 << 20));
        assert_eq!(
            cut.iter().flat_map(|batch| batch.pieces.clone()).collect::<Vec<_>>(),
            (0..3000).collect::<Vec<_>>()
        );
        for batch in &cut {
            let ends = batch.at.iter().zip(&lengths[batch.pieces.clone()]).map(|(at, length)| at + length);
            let starts = batch.at.iter().skip(1).copied().chain([batch.bytes]);
            assert!(
                ends.zip(starts).all(|(end, next)| end <= next) && batch.at.iter().all(|at| at.is_multiple_of(ALIGN))
            );
        }
    }

    #[test]
    fn no_buffer_holds_more_than_it_can() {
        let lengths = [4096u64, 0, 500 << 10, 100, 511 << 10].repeat(20);
        let bytes: Vec<Vec<u8>> = lengths.iter().map(|length| vec![1; *length as usize]).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let [batch] = &batches(&lengths, 1 << 30)[..] else { panic!("one batch") };
        let parts = parts(&batch.at, &slices);
        assert!(parts.len() > 3 && parts.iter().all(|(_, part)| part.bytes <= DETOUR_BYTES));
        let placed = parts.iter().flat_map(|(start, part)| part.slices.iter().map(move |(at, _)| start + *at as u64));
        assert_eq!(placed.collect::<Vec<_>>(), batch.at);
    }
}
