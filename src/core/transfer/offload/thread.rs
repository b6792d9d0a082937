//! The offloader of a device: its streams, its buffer, and the thread that sends.
#![forbid(unsafe_code)]

use super::mark::{Land, Snapshot, Terms};
use super::step::Next;
use super::{Counters, OffloadError, OffloadStats, Shared, Sizes};
use crate::base::log;
use crate::base::threads::spawn;
use crate::device::{DeviceError, DeviceSpan, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps at most before it looks again.
const PATIENCE: Duration = Duration::from_millis(20);

/// What the thread calls before each piece. The call may sleep to hold the piece back. The gate also knows whether somebody waits for the
/// shard.
pub(in crate::transfer) trait Gate: Send {
    /// The next piece has `bytes` bytes of a version with `all` bytes.
    fn pass(&mut self, version: u64, all: u64, bytes: u64);
    /// Does a call or a later vote wait?
    fn is_waited_for(&self) -> bool;
    /// A shard has landed.
    fn over(&mut self);
}

/// Marks shards on one device and sends them. Dropping it waits until the marked shard has landed.
pub(in crate::transfer) struct Offloader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Offloader {
    /// Starts the thread with these streams and this buffer; the thread first runs `prepare`.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn open(
        streams: [Arc<dyn Stream>; 3],
        buffer: Vec<DeviceSpan>,
        stats: Counters,
        mut gate: impl Gate + 'static,
        prepare: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Offloader> {
        let shared = Arc::new(Shared::new(streams, buffer, Sizes::default(), stats));
        let there = shared.clone();
        let thread = spawn("bvk-off".into(), move || {
            let _end = End(&there);
            prepare();
            there.run(&mut gate);
        })?;
        Ok(Offloader { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Waits until the next shard can be marked, and counts the wait.
    ///
    /// # Blocking
    /// For the previous shard, if it is still under way.
    pub fn wait_for_turn(&self) {
        let waited = self.settle();
        if !waited.is_zero() {
            self.shared.count(|stats| {
                stats.waits += 1;
                stats.wait_time += waited;
            });
        }
    }

    /// Marks a shard.
    ///
    /// # Blocking
    /// As [`Offloader::wait_for_turn`].
    ///
    /// # Errors
    /// Any error that the device reports; the snapshot's `land` is returned.
    pub fn mark(&self, snapshot: Snapshot, terms: Terms, stream: &dyn Stream) -> Result<(), (DeviceError, Land)> {
        self.wait_for_turn();
        self.shared.mark(snapshot, terms, stream)
    }

    /// Work that is enqueued on the stream from now on may write to these spans.
    ///
    /// # Errors
    /// [`OffloadError`].
    pub fn before(&self, spans: &[DeviceSpan], stream: &dyn Stream) -> Result<(), OffloadError> {
        self.shared.before(spans, stream)
    }

    /// Waits until every marked shard has landed; returns how long that took.
    pub fn settle(&self) -> Duration {
        let begun = Instant::now();
        let shared = &self.shared;
        shared.hurrying.fetch_add(1, Ordering::AcqRel);
        let mut books = shared.books.lock();
        let mut waited = Duration::ZERO;
        while books.mark.is_some() || books.is_landing {
            shared.changed.notify_all();
            books = shared.changed.wait_timeout(books, PATIENCE);
            waited = begun.elapsed();
        }
        drop(books);
        shared.hurrying.fetch_sub(1, Ordering::AcqRel);
        waited
    }

    /// Is there a thread that sends?
    pub fn is_alive(&self) -> bool {
        !self.shared.is_dead.load(Ordering::Acquire)
    }

    /// Counters.
    pub fn stats(&self) -> OffloadStats {
        self.shared.stats.lock().clone()
    }
}

/// Marks the end of the thread, even by a panic: nobody waits for the thread any more, and those who wait for a marked shard are told that
/// it will not land.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_dead.store(true, Ordering::Release);
        let mut books = self.0.books.lock();
        books.is_landing = false;
        let mark = books.mark.take();
        self.0.is_open.store(false, Ordering::Release);
        drop(books);
        drop(mark);
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// The thread's main loop.
    fn run(&self, gate: &mut impl Gate) {
        let mut may_send = false;
        loop {
            // The application's calls come first: a lock goes to the thread that asks for it at the right moment, usually the one that has
            // just released it.
            while self.calling.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            let next = self.step(std::mem::take(&mut may_send), gate.is_waited_for());
            match next {
                Next::Again => {}
                Next::Ask { version, all, bytes } => {
                    gate.pass(version, all, bytes);
                    may_send = true;
                }
                Next::Await(moment) => {
                    if let Err(error) = moment.wait() {
                        log::debug!("event=transfer-failed error={error}");
                    }
                }
                Next::Pause(wait) => {
                    let books = self.books.lock();
                    drop(self.changed.wait_timeout(books, wait.min(PATIENCE)));
                }
                Next::Idle => {
                    gate.over();
                    let books = self.books.lock();
                    if self.is_stopping() && books.mark.is_none() {
                        return;
                    }
                    if books.mark.is_none() {
                        drop(self.changed.wait_timeout(books, Duration::from_secs(1)));
                    }
                }
            }
        }
    }
}

impl Drop for Offloader {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // A forked child has no such thread.
            std::mem::forget(thread);
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.changed.notify_all();
        if thread.join().is_err() {
            log::error!("event=thread-panicked");
        }
    }
}
