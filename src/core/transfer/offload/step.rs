//! The thread's work, step by step: handling transfers that have ended, the next transfers, and the end of a mark.
#![forbid(unsafe_code)]

use super::mark::{Batch, Digesting, Doubled, Land, Landed, Mark, Part, Parts, Placed, Snapshot, Source, Terms};
use super::ring::Ring;
use super::zones::{Happens, Zone, Zones};
use super::{AHEAD, Books, Shared, WIDTH, WIDTH_HURRIED, pace};
use crate::base::Digest;
use crate::device::{Carrier, DeviceError, DeviceSpan, Moment, Run, Sending, SentPart, Stream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The next thing to do.
pub(super) enum Next {
    /// Another step.
    Again,
    /// The next piece of a version with `all` bytes has about `bytes` bytes: take another step with permission to send it.
    Ask { version: u64, all: u64, bytes: u64 },
    /// Wait: nothing can be done before this moment, or before a write is declared.
    Await(Arc<dyn Moment>),
    /// Nothing for this long.
    Pause(Duration),
    /// There is no mark.
    Idle,
}

/// Enqueues a transfer of parts on a stream, which has the number `lane`, and updates the state of the parts.
///
/// # Errors
/// Any error that the device reports.
pub(super) fn send(
    mark: &mut Mark,
    buffer: &[DeviceSpan],
    (lane, stream): (usize, &dyn Stream),
    parts: Vec<Part>,
    carrier: Carrier,
) -> Result<Batch, DeviceError> {
    let mut sendings: Vec<Sending> = Vec::new();
    // Consecutive parts of one field from the same place are sent together.
    let mut last = None;
    for part in &parts {
        let placed = &mark.fields[part.field];
        let bytes = mark.bytes_of(placed, &part.blocks);
        let (from, ring) = match &part.source {
            Source::Live => (bytes.start, None),
            Source::Buffer(ring, place) => (place.start, Some(*ring)),
        };
        let whence = (part.field, ring);
        if last != Some(whence) {
            let span = ring.map_or(&placed.field.span, |ring| &buffer[ring]).clone();
            let to = mark.target.part(placed.field.at, placed.field.span.bytes())?;
            sendings.push(Sending { from: span, to, parts: Vec::with_capacity(parts.len()) });
            last = Some(whence);
        }
        if let Some(sending) = sendings.last_mut() {
            sending.parts.push(SentPart { from, to: bytes.start, bytes: bytes.end - bytes.start });
        }
    }
    let copied = stream.send(sendings, mark.block_bytes, carrier)?;
    let moment = stream.moment()?;
    for part in parts.iter().filter(|part| matches!(part.source, Source::Live)) {
        mark.zones.all(part.blocks.clone(), Happens::Sent);
    }
    Ok(Batch { lane, parts, copied, moment })
}

impl Mark {
    /// A snapshot whose moment and digests are enqueued.
    fn new(
        snapshot: Snapshot,
        terms: Terms,
        fields: Vec<Placed>,
        piece: usize,
        moment: Arc<dyn Moment>,
        order: Vec<u32>,
        mut digests: Vec<Digest>,
    ) -> Mark {
        let Snapshot { version, block_bytes, target, known, land, .. } = snapshot;
        let count = count_of(&fields);
        digests.resize(count, Digest::default());
        let mut by_address: Vec<usize> = (0..fields.len()).filter(|index| !fields[*index].blocks.is_empty()).collect();
        by_address.sort_by_key(|index| fields[*index].field.span.address());
        let bytes = fields.iter().map(|placed| placed.field.span.bytes()).sum();
        Mark {
            version,
            fields,
            by_address,
            block_bytes,
            piece,
            target,
            known,
            terms,
            land,
            zones: Zones::new(count, piece),
            start: None,
            moment,
            is_past: false,
            refreshed: 0,
            digesting: None,
            looked_at: Default::default(),
            digests,
            is_digested: vec![false; count],
            equal: 0,
            order: order.into_iter().rev().collect(),
            low: Default::default(),
            urgent: Default::default(),
            doubled: Default::default(),
            doublings: Default::default(),
            bytes,
            sent: 0,
            begun: Duration::ZERO,
            whole: Duration::ZERO,
            failure: None,
        }
    }

    /// Notes which transfers have ended.
    pub fn reap(&mut self, rings: &mut [Ring]) {
        // The digests of copies into the buffer come first, because the bytes from the buffer are compared with them.
        while let Some(doubling) = self.doublings.front() {
            let digests = match doubling.moment.is_done() {
                Ok(false) => break,
                Ok(true) => doubling.copied.digests(),
                Err(error) => Err(error),
            };
            let Some(doubling) = self.doublings.pop_front() else { break };
            match digests {
                Ok(digests) => {
                    let mut rest = &digests[..];
                    for blocks in doubling.blocks {
                        let (own, others) = rest.split_at(blocks.len());
                        self.note_all(blocks, own);
                        rest = others;
                    }
                }
                Err(error) => self.fail_by(&error),
            }
        }
        for is_low in [true, false] {
            loop {
                let lane = if is_low { &mut self.low } else { &mut self.urgent };
                let Some(batch) = lane.front() else { break };
                let digests = match batch.moment.is_done() {
                    Ok(false) => break,
                    Ok(true) => batch.copied.digests(),
                    Err(error) => Err(error),
                };
                let Some(batch) = lane.pop_front() else { break };
                match digests {
                    Ok(digests) => self.arrived(batch.parts, &digests, rings),
                    Err(error) => self.fail_by(&error),
                }
            }
        }
    }

    fn arrived(&mut self, parts: Vec<Part>, digests: &[Digest], rings: &mut [Ring]) {
        let mut rest = digests;
        for Part { blocks, source, .. } in parts {
            let (own, others) = rest.split_at(blocks.len());
            rest = others;
            match source {
                Source::Live => {
                    // Blocks that were doubled may have been written to meanwhile: their copies in the buffer are sent later.
                    let is_moving = |zone| matches!(zone, Zone::Moving | Zone::Awaited);
                    let runs = match self.zones.only_state(&blocks) {
                        Some(zone) if is_moving(zone) => {
                            self.note_all(blocks.clone(), own);
                            self.zones.all(blocks, Happens::Arrived);
                            continue;
                        }
                        _ => self.zones.runs(blocks.clone(), is_moving),
                    };
                    for run in runs {
                        self.note_all(run.clone(), &own[run.start - blocks.start..run.end - blocks.start]);
                        self.zones.all(run, Happens::Arrived);
                    }
                }
                Source::Buffer(ring, place) => {
                    self.note_doubled(blocks.clone(), own);
                    self.zones.all(blocks, Happens::Emptied);
                    rings[ring].give(&place);
                }
            }
        }
    }

    /// The first moment at which a transfer under way, or a copy into the buffer, has ended.
    fn awaited(&self) -> Option<Arc<dyn Moment>> {
        let batch = self.low.front().or(self.urgent.front()).map(|batch| batch.moment.clone());
        batch.or_else(|| self.doublings.front().map(|doubling| doubling.moment.clone()))
    }

    /// Does a piece have only blocks that may be sent?
    fn is_sendable(&self, piece: u32) -> bool {
        self.zones.end_of(piece as usize) <= self.sendable()
    }

    /// Pending blocks in the order in which they are sent, up to a piece of them.
    fn next_pending(&mut self) -> Vec<Range<usize>> {
        let (mut most, mut runs) = (self.piece, Vec::new());
        // Blocks of pieces that have hardly changed are gathered from many pieces: a transfer of a few blocks costs as much as a long one.
        for piece in self.order.iter().rev().filter(|piece| self.is_sendable(**piece)) {
            let some = self.zones.pending_of(*piece as usize, most);
            most -= some.iter().map(Range::len).sum::<usize>();
            runs.extend(some);
            if most == 0 {
                break;
            }
        }
        while self.order.last().is_some_and(|piece| !self.zones.has_pending(*piece as usize)) {
            self.order.pop();
        }
        runs
    }
}

impl Shared {
    /// Marks the content that the regions will have once the stream has done the work that is enqueued on it. Only one mark is open at a
    /// time.
    ///
    /// # Errors
    /// Any error that the device reports; in this case, the snapshot's `land` is not called.
    pub(super) fn mark(
        &self,
        mut snapshot: Snapshot,
        terms: Terms,
        stream: &dyn Stream,
    ) -> Result<(), (DeviceError, Land)> {
        let mut books = self.books.lock();
        debug_assert!(books.mark.is_none() && !books.is_landing, "one mark is open at a time");
        let placed = Mark::place(std::mem::take(&mut snapshot.fields), snapshot.block_bytes);
        let piece = (self.sizes.piece / snapshot.block_bytes).max(1) as usize;
        let order = books.order.on_mark(count_of(&placed).div_ceil(piece));
        let now = self.now();
        let whole = books.intervals.on_mark(now, terms.limit);
        let block_bytes = snapshot.block_bytes;
        let enqueue = || -> Result<_, DeviceError> {
            // Live memory may be read from this moment on; writers also wait for the digests.
            let start = stream.moment()?;
            let digesting = if terms.is_audited { Some(digest(&placed, block_bytes, stream)?) } else { None };
            Ok((start, digesting))
        };
        let (start, digesting) = match enqueue() {
            Ok(enqueued) => enqueued,
            Err(error) => return Err((error, snapshot.land)),
        };
        let moment = digesting.as_ref().map_or_else(|| start.clone(), |digesting| digesting.moment.clone());
        let mut mark =
            Mark::new(snapshot, terms, placed, piece, moment, order, std::mem::take(&mut books.spare_digests));
        (mark.start, mark.digesting) = (Some(start), digesting);
        (mark.begun, mark.whole) = (now, whole);
        self.count(|stats| {
            stats.marks += 1;
            stats.bytes += mark.bytes;
        });
        books.mark = Some(mark);
        self.is_open.store(true, Ordering::Release);
        drop(books);
        self.changed.notify_all();
        Ok(())
    }

    /// The work that the marking call has left to the thread: our streams wait for the mark, and without an audit the digests are computed
    /// on one of them.
    fn begin(&self, mark: &mut Mark, start: &dyn Moment) -> Result<(), DeviceError> {
        self.lows.iter().try_for_each(|low| low.wait_for(start))?;
        if !mark.terms.is_audited {
            mark.digesting = Some(digest(&mark.fields, mark.block_bytes, &*self.lows[0])?);
        }
        Ok(())
    }

    /// Is anybody waiting, or about to?
    fn is_hurried(&self, books: &Books) -> bool {
        let is_full = books.rings.iter().map(Ring::used).sum::<u64>() * 2 > books.rings.iter().map(Ring::bytes).sum();
        let is_urgent = books.mark.as_ref().is_some_and(|mark| !mark.urgent.is_empty());
        is_full || is_urgent || self.hurrying.load(Ordering::Acquire) > 0 || self.is_stopping()
    }

    /// Does what can be done now. `may_send`: the next piece may be sent. `is_waited_for`: somebody else waits for the shard.
    pub(super) fn step(&self, may_send: bool, is_waited_for: bool) -> Next {
        let mut books = self.books.lock();
        let is_hurried = is_waited_for || self.is_hurried(&books);
        let Books { mark: Some(mark), rings, .. } = &mut *books else { return Next::Idle };
        if let Some(start) = mark.start.take()
            && let Err(error) = self.begin(mark, &*start)
        {
            mark.fail_by(&error);
        }
        mark.reap(rings);
        let coming = self.look(mark);
        if mark.failure.is_some() || (mark.zones.left() == 0 && mark.digesting.is_none()) {
            if let Some(awaited) = mark.awaited().or(coming) {
                return Next::Await(awaited);
            }
            let mark = books.mark.take();
            debug_assert!(
                mark.as_ref().is_some_and(|mark| mark.failure.is_some())
                    || books.rings.iter().all(|ring| ring.used() == 0),
                "what has left the buffer was given back"
            );
            books.is_landing = true;
            self.is_open.store(false, Ordering::Release);
            books.rings.iter_mut().for_each(|ring| *ring = Ring::new(ring.bytes()));
            drop(books);
            mark.into_iter().for_each(|mark| self.land(mark));
            return Next::Again;
        }
        let sent = self.send_next(mark, may_send, is_hurried, coming.as_ref());
        match sent {
            // There are more digests to examine.
            Ok(Next::Await(_) | Next::Pause(_)) if coming.is_none() && mark.digesting.is_some() => Next::Again,
            Ok(next) => next,
            Err(error) => {
                mark.fail_by(&error);
                Next::Again
            }
        }
    }

    /// Examines some digests of the mark if they have been computed; otherwise returns the moment at which they will be.
    fn look(&self, mark: &mut Mark) -> Option<Arc<dyn Moment>> {
        let next = mark.digesting.as_ref()?.moment.clone();
        match next.is_done() {
            Ok(false) => return Some(next),
            Ok(true) => {
                mark.is_past = true;
                let before = mark.equal;
                mark.look_at_digests();
                self.count(|stats| stats.equal_bytes += (mark.equal - before) as u64 * mark.block_bytes);
            }
            Err(error) => {
                mark.digesting = None;
                mark.fail_by(&error);
            }
        }
        None
    }

    /// Sends what is due, beginning with what is in the buffer.
    fn send_next(
        &self,
        mark: &mut Mark,
        may_send: bool,
        is_hurried: bool,
        coming: Option<&Arc<dyn Moment>>,
    ) -> Result<Next, DeviceError> {
        // The link belongs to transfers for which a stream waits: other transfers would take half of its bandwidth.
        if let Some(urgent) = mark.urgent.front() {
            return Ok(Next::Await(urgent.moment.clone()));
        }
        if mark.low.len() >= AHEAD
            && let Some(first) = mark.low.front()
        {
            return Ok(Next::Await(first.moment.clone()));
        }
        let width = if is_hurried { WIDTH_HURRIED } else { WIDTH };
        let ask = |mark: &Mark, bytes| Next::Ask { version: mark.version, all: mark.bytes, bytes };
        if let Some(doubled) = mark.doubled.front() {
            if !may_send {
                return Ok(ask(mark, doubled.place.end - doubled.place.start));
            }
            self.empty(mark, width)?;
            return Ok(Next::Again);
        }
        // Blocks that the slot already holds are not sent, except for a few, so their digests are needed first.
        let waiting = mark.zones.pending_until(mark.sendable());
        // The blocks that are sent while others wait for digests are too few to be held back.
        if waiting > 0 {
            let passed = self.now().saturating_sub(mark.begun);
            let wait = if is_hurried { Duration::ZERO } else { pace::wait(mark.sent, mark.bytes, mark.whole, passed) };
            if !wait.is_zero() {
                return Ok(Next::Pause(wait));
            }
            if !may_send {
                return Ok(ask(mark, waiting.min(mark.piece) as u64 * mark.block_bytes));
            }
        }
        let pending = if waiting > 0 { mark.next_pending() } else { mark.next_refreshed() };
        if pending.is_empty() {
            return Ok(coming.cloned().or_else(|| mark.awaited()).map_or(Next::Again, Next::Await));
        }
        // At the same time as the digests of the mark, a kernel would get no turn.
        let is_alone = is_hurried && waiting > 0;
        let least = if is_alone { self.sizes.engine } else { self.sizes.engine_beside };
        let Parts { long, short, bytes } = mark.live_parts(&pending, |bytes| bytes >= least);
        self.send_low(mark, long, short, width)?;
        mark.sent += bytes;
        Ok(Next::Again)
    }

    /// Sends what was doubled, up to about a piece.
    fn empty(&self, mark: &mut Mark, width: u32) -> Result<(), DeviceError> {
        let (mut long, mut short, mut bytes) = (Vec::new(), Vec::new(), 0);
        let lows = &self.lows;
        while bytes < self.sizes.piece
            && let Some(Doubled { field, blocks, ring, place, moment }) = mark.doubled.pop_front()
        {
            // The streams wait until the buffer has been filled, and until transfers under way from live memory to the same place have
            // arrived.
            lows.iter().try_for_each(|low| low.wait_for(&*moment))?;
            for batch in mark.low.iter().filter(|batch| batch.meets(std::slice::from_ref(&blocks))) {
                lows[1 - batch.lane].wait_for(&*batch.moment)?;
            }
            let length = place.end - place.start;
            bytes += length;
            let parts = if length >= self.sizes.engine { &mut long } else { &mut short };
            parts.push(Part { field, blocks, source: Source::Buffer(ring, place) });
        }
        self.send_low(mark, long, short, width)
    }

    /// Sends parts on the low streams alternately: while one stream digests what it has sent, the other one uses the link.
    fn send_low(&self, mark: &mut Mark, long: Vec<Part>, short: Vec<Part>, width: u32) -> Result<(), DeviceError> {
        for (parts, carrier) in [(long, Carrier::Engine), (short, Carrier::Kernel(width))] {
            if !parts.is_empty() {
                let lane = mark.low.back().map_or(0, |batch| 1 - batch.lane);
                let batch = send(mark, &self.buffer, (lane, &*self.lows[lane]), parts, carrier)?;
                mark.low.push_back(batch);
            }
        }
        Ok(())
    }

    /// Ends a mark, successful or not.
    fn land(&self, mark: Mark) {
        let Mark { target, digests, is_digested, land, failure, .. } = mark;
        let is_refused = failure.is_some();
        debug_assert!(
            is_refused || is_digested.iter().all(|is_digested| *is_digested),
            "all that is there is digested"
        );
        land(match failure {
            None => Ok(Landed { target, digests: &digests }),
            Some(why) => Err(why),
        });
        let mut books = self.books.lock();
        books.is_landing = false;
        books.spare_digests = digests;
        self.count(|stats| stats.refused += u64::from(is_refused));
        drop(books);
        self.changed.notify_all();
    }
}

/// The number of blocks of all fields.
fn count_of(fields: &[Placed]) -> usize {
    fields.last().map_or(0, |placed| placed.blocks.end)
}

/// Enqueues the digests of all blocks in one call. Parts of 2 GiB, with which the changed blocks of the first could be sent while the next
/// is digested, cost the stream more (0.1 to 0.3 ms for 4 GiB on an H100) than the commit gains.
fn digest(fields: &[Placed], block_bytes: u64, stream: &dyn Stream) -> Result<Digesting, DeviceError> {
    let some = fields.iter().filter(|placed| !placed.blocks.is_empty());
    let runs = some.map(|placed| Run::whole(placed.field.span.clone(), None, placed.blocks.start as u32)).collect();
    let copied = stream.copy_blocks(runs, block_bytes)?;
    Ok(Digesting { copied, moment: stream.moment()?, looked: 0 })
}
