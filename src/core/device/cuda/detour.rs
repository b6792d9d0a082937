//! The way around what the device cannot reach: copies of host memory that is not pinned go through pinned buffers, on several threads.

use super::super::Result;
use super::event::Event;
use super::pinned::PinnedLoan;
use super::stream::GpuStream;
use crate::base::log;
use crate::base::pages;
use crate::base::sync::{Condition, Lock};
use crate::base::threads::spawn_scoped;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

/// The size of a [`Detour`]'s buffers in bytes, and how many of them a thread has in use at a time: the device fills one
/// while the other is emptied.
pub(super) const DETOUR_BYTES: usize = 4 << 20;
const DETOUR_BUFFERS: usize = 2;
/// The maximum number of threads for the detour of a transfer, and the least number of bytes for which starting them is worthwhile.
const TEAM_MAX: usize = 8;
const TEAM_MIN_BYTES: u64 = 16 << 20;

/// Pinned buffers of one thread between the device and host memory that is not pinned. The driver has such buffers of its own, but
/// a copy through those delays the registrations of the process, and these would make further copies faster.
pub(super) struct Detour<'a, T> {
    stream: &'a GpuStream,
    /// What the device still reads or writes, in order. An event exists once the copy has been enqueued.
    under_way: VecDeque<(PinnedLoan, Option<Event>, T)>,
}

impl<'a, T> Detour<'a, T> {
    fn new(stream: &'a GpuStream) -> Detour<'a, T> {
        Detour { stream, under_way: VecDeque::new() }
    }

    /// A buffer that the device has finished with, and the note about it; a new buffer while there are few. `None` if no
    /// memory can be pinned here at all.
    fn buffer(&mut self) -> Result<Option<(PinnedLoan, Option<T>)>> {
        if self.under_way.len() < DETOUR_BUFFERS {
            match self.stream.shared.pinned.take(DETOUR_BYTES) {
                Ok(buffer) => return Ok(Some((buffer, None))),
                Err(error) => log::debug!("event=no-pinned-buffer error={error}"),
            }
        }
        self.oldest().map(|found| found.map(|(buffer, what)| (buffer, Some(what))))
    }

    /// The oldest buffer under way, once the device has finished with it.
    fn oldest(&mut self) -> Result<Option<(PinnedLoan, T)>> {
        match self.under_way.front() {
            Some((_, Some(event), _)) => event.wait()?,
            // Its event could not be made: the copy may be under way.
            Some((_, None, _)) => self.stream.drain()?,
            None => {}
        }
        Ok(self.under_way.pop_front().map(|(buffer, _, what)| (buffer, what)))
    }

    /// Enqueues the copy between a buffer and the device. The buffer is kept until the device has finished with it.
    fn enqueue(&mut self, buffer: PinnedLoan, device: u64, bytes: usize, what: T, is_down: bool) -> Result<()> {
        let host = buffer.address();
        self.under_way.push_back((buffer, None, what));
        let (from, to) = if is_down { (device, host) } else { (host, device) };
        // SAFETY: the caller's piece is no longer than the buffer and lies in device memory of the transfer; the buffer is kept.
        unsafe { self.stream.enqueue(from, to, bytes, is_down)? };
        let event = self.stream.event()?;
        if let Some((_, marked, _)) = self.under_way.back_mut() {
            *marked = Some(event);
        }
        Ok(())
    }
}

impl<T> Drop for Detour<'_, T> {
    /// The buffers return to the pool, so the device must have finished with them, however this ends.
    fn drop(&mut self) {
        if !self.under_way.is_empty()
            && let Err(error) = self.stream.drain()
        {
            log::debug!("event=transfer-failed error={error}");
        }
    }
}

/// How many threads handle the detour of a transfer of this many bytes; 0 if the caller does it.
fn team_for(bytes: u64) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if bytes < TEAM_MIN_BYTES || processors == 1 { 0 } else { processors.min(TEAM_MAX) }
}

/// How many buffers are in use at a time for a detour of this many bytes.
pub(super) fn buffers_for(bytes: u64) -> usize {
    let parts = usize::try_from(bytes.div_ceil(DETOUR_BYTES as u64)).unwrap_or(usize::MAX);
    (team_for(bytes).max(1) * DETOUR_BUFFERS).min(parts)
}

/// One direction of a detour, for a part of at most [`DETOUR_BYTES`] of host memory, through a buffer.
pub(super) trait Through {
    /// Passes a part on; the device may still be working on it when this returns.
    fn pass(self, detour: &mut Detour<'_, Self>, device: u64) -> Result<()>
    where
        Self: Sized;

    /// Called when the device has filled the buffer.
    fn land(self, buffer: &PinnedLoan);
}

impl Through for &mut [u8] {
    fn pass(self, detour: &mut Detour<'_, Self>, device: u64) -> Result<()> {
        let bytes = self.len();
        let Some((buffer, filled)) = detour.buffer()? else {
            // SAFETY: as in `Stream::download`: the part is borrowed until the work of the stream has ended.
            return unsafe { detour.stream.enqueue(device, self.as_mut_ptr() as u64, bytes, true) };
        };
        if let Some(target) = filled {
            target.land(&buffer);
        }
        detour.enqueue(buffer, device, bytes, self, true)
    }

    fn land(self, buffer: &PinnedLoan) {
        buffer.stream_out(self);
    }
}

impl Through for &[u8] {
    fn pass(self, detour: &mut Detour<'_, Self>, device: u64) -> Result<()> {
        let Some((mut buffer, _)) = detour.buffer()? else {
            // SAFETY: as in `Stream::upload`: the part is borrowed until the work of the stream has ended.
            return unsafe { detour.stream.enqueue(self.as_ptr() as u64, device, self.len(), false) };
        };
        pages::find(self.as_ptr_range());
        buffer.write(0, self);
        detour.enqueue(buffer, device, self.len(), self, false)
    }

    fn land(self, _: &PinnedLoan) {}
}

/// Small pieces that lie side by side in one buffer, at their offsets, on their way to device memory.
pub(super) struct Gather<'a> {
    pub slices: Vec<(usize, &'a [u8])>,
    /// The number of bytes up to the end of the last one.
    pub bytes: usize,
}

impl Through for Gather<'_> {
    fn pass(self, detour: &mut Detour<'_, Self>, device: u64) -> Result<()> {
        let Some((mut buffer, _)) = detour.buffer()? else {
            return self.slices.iter().try_for_each(|(at, slice)| {
                // SAFETY: as in `Stream::upload`: the slices are borrowed until the work of the stream has ended.
                unsafe { detour.stream.enqueue(slice.as_ptr() as u64, device + *at as u64, slice.len(), false) }
            });
        };
        let begin = self.slices.iter().map(|(_, slice)| slice.as_ptr()).min();
        let end = self.slices.iter().map(|(_, slice)| slice.as_ptr_range().end).max();
        if let (Some(begin), Some(end)) = (begin, end)
            && end.addr() - begin.addr() <= 2 * DETOUR_BYTES
        {
            pages::find(begin..end);
        }
        self.slices.iter().for_each(|(at, slice)| buffer.write(*at, slice));
        let bytes = self.bytes;
        detour.enqueue(buffer, device, bytes, self, false)
    }

    fn land(self, _: &PinnedLoan) {}
}

/// The threads that handle parts of one transfer: one of them moves a fifth of what the link does. Parts are enqueued in any
/// order; each has a place of its own.
pub(super) struct Team<'scope, 'env, T> {
    scope: &'scope Scope<'scope, 'env>,
    stream: &'env GpuStream,
    /// How many threads may be at work; none for a short transfer, which the caller handles.
    wanted: usize,
    own: Detour<'env, T>,
    hand_over: Option<SyncSender<(u64, T)>>,
    parts: Arc<Lock<Receiver<(u64, T)>>>,
    threads: Vec<ScopedJoinHandle<'scope, Result<()>>>,
    /// The number of parts that threads have been given.
    given: u64,
    passed: Arc<Passed>,
}

/// How many parts the threads of a team have passed on, and how many of the threads have ended.
#[derive(Default)]
struct Passed {
    counts: Lock<(u64, usize)>,
    changed: Condition,
}

impl Passed {
    fn count(&self, parts: u64, ended: usize) {
        let mut counts = self.counts.lock();
        *counts = (counts.0 + parts, counts.1 + ended);
        self.changed.notify_all();
    }
}

/// Marks the end of a thread of a team, however it ends.
struct Ending(Arc<Passed>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.count(0, 1);
    }
}

impl<'scope, 'env, T: Through + Send + 'scope> Team<'scope, 'env, T> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        stream: &'env GpuStream,
        bytes: u64,
    ) -> Team<'scope, 'env, T> {
        // No part waits in between: a part is given to a thread that is free, so a gate holds back all parts except those in hand.
        Team::with_queue(scope, stream, bytes, 0)
    }

    /// A team for which up to `queue` parts may wait.
    pub(super) fn with_queue(
        scope: &'scope Scope<'scope, 'env>,
        stream: &'env GpuStream,
        bytes: u64,
        queue: usize,
    ) -> Team<'scope, 'env, T> {
        let wanted = team_for(bytes);
        let (hand_over, parts) = sync_channel(queue);
        let own = Detour::new(stream);
        Team {
            scope,
            stream,
            wanted,
            own,
            hand_over: Some(hand_over),
            parts: Arc::new(Lock::new(parts)),
            threads: Vec::new(),
            given: 0,
            passed: Arc::default(),
        }
    }

    /// Handles a part, or has it done.
    pub(super) fn give(&mut self, device: u64, part: T) -> Result<()> {
        if self.threads.is_empty() && self.wanted > 0 {
            self.start();
        }
        match (&self.hand_over, self.threads.is_empty()) {
            (Some(hand_over), false) => {
                // If nobody takes the part, all threads have failed; they say why when they are joined.
                self.given += u64::from(hand_over.send((device, part)).is_ok());
                Ok(())
            }
            _ => part.pass(&mut self.own, device),
        }
    }

    /// Waits until all parts that were given are on the stream: whatever is enqueued after this comes after them. False if a thread has
    /// failed, which [`Team::end`] reports.
    pub(super) fn settle(&self) -> bool {
        let threads = self.threads.len();
        let counts = self.passed.counts.lock();
        let is_open = |(parts, ended): &mut (u64, usize)| *parts < self.given && *ended < threads;
        let counts = self.passed.changed.wait_while(counts, is_open);
        counts.0 == self.given
    }

    fn start(&mut self) {
        for _ in 0..std::mem::take(&mut self.wanted) {
            let (stream, parts, passed) = (self.stream, self.parts.clone(), self.passed.clone());
            let work = move || -> Result<()> {
                let ending = Ending(passed);
                let _bound = stream.shared.bind()?;
                let mut detour = Detour::new(stream);
                let next = || parts.lock().recv().ok();
                while let Some((device, part)) = next() {
                    T::pass(part, &mut detour, device)?;
                    ending.0.count(1, 0);
                }
                while let Some((buffer, part)) = detour.oldest()? {
                    part.land(&buffer);
                }
                Ok(())
            };
            match spawn_scoped(self.scope, "bvk-ring", work) {
                Ok(thread) => self.threads.push(thread),
                // The other threads do its part, or the caller does.
                Err(error) => log::debug!("event=no-thread error={error}"),
            }
        }
        // Only the threads have the receiver: when the last one has failed, nobody waits to hand over.
        let (_, none) = sync_channel(0);
        self.parts = Arc::new(Lock::new(none));
    }

    /// Waits until all parts have gone through.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.hand_over.take());
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        while let Some((buffer, part)) = self.own.oldest()? {
            part.land(&buffer);
        }
        outcome
    }
}
