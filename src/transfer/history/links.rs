//! The threads: one for each link, and one that makes memory ready.
#![forbid(unsafe_code)]

use super::{Books, HistoryError, Landing, Shared, lines_gone};
use crate::cache::{Job, Link, Piece, Tier, runs};
use crate::config::{PinOrder, Touch};
use crate::device::{DeviceSpan, Stream};
use crate::segment::{Order, Token, TokenGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Steps in which device memory is mapped after the first.
pub(super) const MAP_STEP_BYTES: u64 = 256 << 20;
/// How long the memory thread sleeps between tries.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it waits for node memory that others hold before it looks again.
const LEASE_PAUSE: Duration = Duration::from_millis(200);

/// The name that a link has in traces and thread names.
pub(super) fn name_of(link: Link) -> &'static str {
    match link {
        Link::Down => "d2h",
        Link::Out => "h2f",
        Link::In => "f2h",
        Link::Up => "h2d",
    }
}

/// What a link's thread does next.
enum Next {
    Job(Job),
    Landing(Landing),
    Stop,
}

/// Waits for work. Staged shards go before versions, and before the end: ranks wait for them.
fn next(shared: &Shared, link: Link) -> Next {
    let mut books = shared.lock();
    loop {
        if link == Link::Down
            && let Some(landing) = books.landings.pop_front()
        {
            return Next::Landing(landing);
        }
        if shared.is_stopping() {
            return Next::Stop;
        }
        if let Some(job) = books.cache.next(link, shared.now()) {
            return Next::Job(job);
        }
        books = shared.wait(books);
    }
}

/// Moves what the planner wants moved over one link, until the caches are closed.
pub(super) fn link_loop(shared: &Shared, link: Link, stream: &Arc<dyn Stream>) {
    loop {
        let job = match next(shared, link) {
            Next::Job(job) => job,
            Next::Landing(landing) => {
                landing.run(&**stream);
                continue;
            }
            Next::Stop => return,
        };
        let begun = Instant::now();
        let outcome = shared.run(&job, &**stream);
        if let Err(error) = &outcome {
            let (history, version) = (job.id.history, job.id.version);
            log::warn!("event=link-failed link={} history={history} version={version} error={error}", name_of(link));
        }
        let mut books = shared.lock();
        books.cache.done(&job, outcome.is_ok(), shared.now());
        books.trace.span(name_of(link), job.id.version, job.bytes, begun, shared.started);
        books.note_moved(link, job.bytes, begun, outcome.is_ok());
        drop(books);
        shared.changed.notify_all();
    }
}

impl Books {
    /// Counts what a link has moved since `begun`, or failed to, and how fast that was.
    pub(super) fn note_moved(&mut self, link: Link, bytes: u64, begun: Instant, is_good: bool) {
        if !is_good {
            self.trace.stats.failures[link as usize] += 1;
            return;
        }
        self.trace.stats.moved_bytes[link as usize] += bytes;
        let rate = bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        self.cache.set_rate(link, rate as u64);
    }
}

impl Shared {
    /// Moves the bytes of one job.
    fn run(&self, job: &Job, stream: &dyn Stream) -> Result<(), HistoryError> {
        let cuts = runs(&job.from, &job.to, job.bytes);
        let host = |(from, to, bytes): &(u64, u64, u64)| {
            let offset = if job.link.from() == Tier::Host { *from } else { *to };
            Piece { offset, bytes: *bytes }
        };
        for cut in &cuts {
            let (from, to, _) = *cut;
            // Parts of one cut, from its beginning to its end.
            let mut at = 0;
            match job.link {
                Link::Down => {
                    let mut parts = self.lines.lend([host(cut)].into_iter()).ok_or_else(lines_gone)?;
                    let mut copies: Vec<(DeviceSpan, &mut [u8])> = Vec::with_capacity(parts.len());
                    for part in &mut parts {
                        let length = part.len() as u64;
                        copies.push((self.range.span(from + at, length)?, part));
                        at += length;
                    }
                    stream.download(&mut copies, None)?;
                }
                Link::Up => {
                    let views = self.lines.view([host(cut)].into_iter()).ok_or_else(lines_gone)?;
                    let mut copies: Vec<(&[u8], DeviceSpan)> = Vec::with_capacity(views.len());
                    for view in &views {
                        let length = view.len() as u64;
                        copies.push((view, self.range.span(to + at, length)?));
                        at += length;
                    }
                    stream.upload(&copies, None)?;
                }
                Link::Out => {
                    for view in self.lines.view([host(cut)].into_iter()).ok_or_else(lines_gone)? {
                        self.spill()?.write(&view, to + at).map_err(|error| self.store_failed(&error))?;
                        at += view.len() as u64;
                    }
                }
                Link::In => {
                    for mut part in self.lines.lend([host(cut)].into_iter()).ok_or_else(lines_gone)? {
                        self.spill()?.read(&mut part, from + at).map_err(|error| self.store_failed(&error))?;
                        at += part.len() as u64;
                    }
                }
            }
        }
        Ok(())
    }

    fn spill(&self) -> Result<&super::Spill, HistoryError> {
        self.spill.as_ref().ok_or_else(lines_gone)
    }

    pub(super) fn store_failed(&self, error: &std::io::Error) -> HistoryError {
        let directory = self.spill.as_ref().map_or_else(String::new, |spill| spill.directory().display().to_string());
        HistoryError::Store { directory, reason: error.to_string() }
    }

    /// Maps a step of device memory and makes it known.
    pub(super) fn map_step(&self, offset: u64, bytes: u64) -> bool {
        let begun = Instant::now();
        match self.range.map(offset, bytes) {
            Ok(()) => {
                let mut books = self.lock();
                books.cache.add_span(Tier::Device, offset, bytes);
                books.trace.span("map", 0, bytes, begun, self.started);
                drop(books);
                self.changed.notify_all();
                true
            }
            Err(error) => {
                log::warn!("event=gpu-cache-smaller mapped={offset} wanted={} error={error}", self.range.bytes());
                false
            }
        }
    }

    fn is_link_busy(&self) -> bool {
        let books = self.lock();
        books.staged > 0 || books.cache.is_moving(Link::Down)
    }
}

/// Makes memory ready: first the rest of the GPU cache, then host memory, lease by lease, each touched and then pinned.
pub(super) fn memory_loop(shared: &Shared, mapped: u64) {
    let mut at = mapped;
    while at < shared.range.bytes() && !shared.is_stopping() {
        let step = MAP_STEP_BYTES.min(shared.range.bytes() - at);
        if !shared.map_step(at, step) {
            break;
        }
        at += step;
    }
    shared.lock().cache.set_fully_mapped(Tier::Device, true);
    shared.changed.notify_all();
    let mut leased = 0;
    while leased < shared.config.host_bytes && !shared.is_stopping() {
        let bytes = shared.config.line_bytes.min(shared.config.host_bytes - leased);
        match lease(shared, bytes) {
            Some(offset) => {
                leased += bytes;
                pin_line(shared, offset);
            }
            None => {
                // Somebody else has the memory: go on without it, and look again when something may have been given back.
                shared.lock().cache.set_fully_mapped(Tier::Host, true);
                shared.changed.notify_all();
                std::thread::park_timeout(LEASE_PAUSE);
            }
        }
    }
    shared.lock().cache.set_fully_mapped(Tier::Host, true);
    shared.changed.notify_all();
}

/// One more lease, touched, and known to the planner at its offset.
fn lease(shared: &Shared, bytes: u64) -> Option<u64> {
    let segment = shared.segment.as_ref()?;
    while shared.config.touch == Touch::Between && shared.is_link_busy() && !shared.is_stopping() {
        std::thread::park_timeout(PAUSE);
    }
    let begun = Instant::now();
    let lease = match segment.lease_in_background(bytes) {
        Ok(lease) => lease?,
        Err(error) => {
            log::warn!("event=no-lease bytes={bytes} error={error}");
            return None;
        }
    };
    let offset = shared.lines.add(lease);
    let mut books = shared.lock();
    books.cache.add_span(Tier::Host, offset, bytes);
    books.trace.span("touch", 0, bytes, begun, shared.started);
    drop(books);
    shared.changed.notify_all();
    Some(offset)
}

/// Pins a line part by part, each in this rank's turn.
fn pin_line(shared: &Shared, offset: u64) {
    let Some(segment) = &shared.segment else { return };
    for part in shared.lines.unpinned(offset) {
        let bytes = part.end - part.start;
        let _turn = match shared.config.pin {
            PinOrder::Never => return,
            PinOrder::AtOnce => None,
            PinOrder::InTurns => turn(shared, bytes),
        };
        if shared.is_stopping() {
            return;
        }
        let begun = Instant::now();
        if let Err(error) = shared.lines.pin(offset, part, segment, &*shared.device) {
            // Copies go on at the speed of pageable memory.
            log::warn!("event=not-pinned bytes={bytes} error={error}");
            return;
        }
        shared.lock().trace.span("pin", 0, bytes, begun, shared.started);
    }
}

/// Waits for this rank's turn to pin; `None` if turns cannot be had.
fn turn(shared: &Shared, bytes: u64) -> Option<TokenGuard> {
    let segment = shared.segment.as_ref()?;
    while !shared.stop.load(Ordering::Acquire) {
        match segment.try_take(Token::Pinning, bytes, Order::RoundRobin) {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) => std::thread::park_timeout(Duration::from_micros(100)),
            Err(_) => return None,
        }
    }
    None
}
