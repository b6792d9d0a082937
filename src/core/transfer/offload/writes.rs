//! Memory that the application is about to write to is copied into the buffer, or sent at once.
#![forbid(unsafe_code)]

use super::mark::{Batch, Doubled, Doubling, Mark, Parts, meets};
use super::ring::Ring;
use super::step::send;
use super::zones::{Happens, Zone};
use super::{Books, OffloadError, Shared, WIDTH_HURRIED};
use crate::device::{Carrier, DeviceError, DeviceSpan, Run, Stream};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Shared {
    /// Work that is enqueued on the stream from now on may write to these spans.
    ///
    /// # Errors
    /// [`OffloadError`]. If the device fails, the shard is refused.
    pub(super) fn before(&self, spans: &[DeviceSpan], stream: &dyn Stream) -> Result<(), OffloadError> {
        if stream.is_recording()? {
            return Err(OffloadError::Recording);
        }
        if !self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        self.calling.fetch_add(1, Ordering::AcqRel);
        let mut books = self.books.lock();
        self.calling.fetch_sub(1, Ordering::AcqRel);
        let Books { mark: Some(mark), rings, order, .. } = &mut *books else { return Ok(()) };
        let outcome = self.protect(mark, rings, order, spans, stream);
        if let Err(error) = &outcome {
            mark.fail_by(error);
        }
        drop(books);
        self.changed.notify_all();
        Ok(outcome?)
    }

    fn protect(
        &self,
        mark: &mut Mark,
        rings: &mut [Ring],
        order: &mut super::order::Order,
        spans: &[DeviceSpan],
        stream: &dyn Stream,
    ) -> Result<(), DeviceError> {
        // The snapshot comes first, whichever stream this is.
        if !mark.is_past {
            stream.wait_for(&*mark.moment)?;
        }
        let mut blocks: Vec<Range<usize>> = spans.iter().flat_map(|span| mark.blocks_in(span)).collect();
        if blocks.is_empty() || mark.failure.is_some() {
            return Ok(());
        }
        blocks.sort_by_key(|blocks| blocks.start);
        blocks.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            last.end = if is_joined { last.end.max(next.end) } else { last.end };
            is_joined
        });
        blocks.iter().for_each(|blocks| order.on_write(mark.zones.pieces_of(blocks)));
        // Blocks that another stream is doubling must be in the buffer before this stream's work writes to them.
        let is_touched = |doubling: &&Doubling| meets(&doubling.blocks, &blocks);
        for doubling in mark.doublings.iter().filter(is_touched) {
            stream.wait_for(&*doubling.moment)?;
        }
        let exposed = |mark: &Mark| blocks.iter().flat_map(|blocks| mark.zones.exposed_of(blocks)).collect::<Vec<_>>();
        if exposed(mark).is_empty() {
            return Ok(());
        }
        mark.reap(rings);
        let (mut doubled, mut rest) = (Vec::new(), Vec::new());
        for (run, zone) in exposed(mark) {
            match zone {
                Zone::Awaited => rest.push(run),
                _ => self.find_room(mark, rings, run, &mut doubled, &mut rest),
            }
        }
        if !doubled.is_empty() {
            let bytes = self.double(mark, rings, doubled, stream, &mut rest)?;
            self.count(|stats| stats.doubled_bytes += bytes);
        }
        if !rest.is_empty() {
            let bytes = self.urge(mark, &rest, stream)?;
            self.count(|stats| stats.urgent_bytes += bytes);
        }
        Ok(())
    }

    /// Finds room in the buffer for blocks; blocks without room are added to `rest`.
    fn find_room(
        &self,
        mark: &Mark,
        rings: &mut [Ring],
        run: Range<usize>,
        doubled: &mut Vec<(Range<usize>, usize, Range<u64>)>,
        rest: &mut Vec<Range<usize>>,
    ) {
        for (placed, mut blocks) in mark.cut(&run) {
            while !blocks.is_empty() {
                let bytes = mark.bytes_of(placed, &blocks);
                // In pieces, so that the room is soon free again.
                let most = (bytes.end - bytes.start).min(self.sizes.piece.max(mark.block_bytes));
                let taken = rings.iter_mut().enumerate().find_map(|(index, ring)| {
                    let place = ring.take(most, mark.block_bytes)?;
                    Some((index, place))
                });
                let Some((ring, place)) = taken else { break };
                let count = (place.end - place.start).div_ceil(mark.block_bytes) as usize;
                doubled.push((blocks.start..blocks.start + count, ring, place));
                blocks.start += count;
            }
            if !blocks.is_empty() {
                rest.push(blocks);
            }
        }
    }

    /// Copies blocks into the buffer, on the stream whose work may write to them; returns the number of bytes. If the device has no memory
    /// for the copy's tables, the blocks are added to `rest`.
    fn double(
        &self,
        mark: &mut Mark,
        rings: &mut [Ring],
        doubled: Vec<(Range<usize>, usize, Range<u64>)>,
        stream: &dyn Stream,
        rest: &mut Vec<Range<usize>>,
    ) -> Result<u64, DeviceError> {
        let mut runs = Vec::with_capacity(doubled.len());
        let mut first = 0;
        for (blocks, ring, place) in &doubled {
            let (placed, blocks) = mark.cut(blocks).next().unwrap_or_else(|| unreachable!("blocks lie in a field"));
            let bytes = mark.bytes_of(placed, &blocks);
            let from = placed.field.span.part(bytes.start, bytes.end - bytes.start)?;
            let to = self.buffer[*ring].part(place.start, place.end - place.start)?;
            runs.push(Run::whole(from, Some(to), first));
            first += blocks.len() as u32;
        }
        let copied = match stream.copy_blocks(runs, mark.block_bytes) {
            Err(DeviceError::OutOfMemory { .. }) => {
                for (blocks, ring, place) in doubled {
                    rings[ring].give(&place);
                    rest.push(blocks);
                }
                rest.sort_by_key(|blocks| blocks.start);
                return Ok(0);
            }
            copied => copied?,
        };
        let moment = stream.moment()?;
        let bytes = doubled.iter().map(|(_, _, place)| place.end - place.start).sum();
        let blocks = doubled.iter().map(|(blocks, ..)| blocks.clone()).collect();
        mark.doublings.push_back(Doubling { blocks, copied, moment: moment.clone() });
        for (blocks, ring, place) in doubled {
            mark.zones.all(blocks.clone(), Happens::Doubled);
            let field = mark.field_of(blocks.start);
            mark.doubled.push_back(Doubled { field, blocks, ring, place, moment: moment.clone() });
        }
        Ok(bytes)
    }

    /// Sends blocks at once, and makes the stream wait for them and for those that are already on their way; returns the number of bytes.
    fn urge(&self, mark: &mut Mark, rest: &[Range<usize>], stream: &dyn Stream) -> Result<u64, DeviceError> {
        let is_moving = |zone| matches!(zone, Zone::Moving | Zone::Awaited);
        let moving: Vec<Range<usize>> =
            rest.iter().flat_map(|blocks| mark.zones.runs(blocks.clone(), is_moving)).collect();
        for batch in mark.low.iter().chain(&mark.urgent).filter(|batch: &&Batch| batch.meets(&moving)) {
            stream.wait_for(&*batch.moment)?;
        }
        moving.into_iter().for_each(|blocks| mark.zones.all(blocks, Happens::Awaited));
        let pending: Vec<Range<usize>> =
            rest.iter().flat_map(|blocks| mark.zones.runs(blocks.clone(), |zone| zone == Zone::Pending)).collect();
        if pending.is_empty() {
            return Ok(0);
        }
        self.urgent.wait_for(&*mark.moment)?;
        // The copy engine is only used for blocks that were already digested, because the digests of what it sends are computed after the
        // transfer.
        let parts = mark.live_parts(&pending, |bytes| mark.terms.is_audited && bytes >= self.sizes.engine);
        let Parts { long, short, bytes } = parts;
        for (parts, carrier) in [(long, Carrier::Engine), (short, Carrier::Kernel(WIDTH_HURRIED))] {
            if parts.is_empty() {
                continue;
            }
            let batch = send(mark, &self.buffer, (0, &*self.urgent), parts, carrier)?;
            stream.wait_for(&*batch.moment)?;
            batch.parts.iter().for_each(|part| mark.zones.all(part.blocks.clone(), Happens::Awaited));
            mark.urgent.push_back(batch);
        }
        mark.sent += bytes;
        Ok(bytes)
    }
}
