//! The threads that move versions: two for each link.
#![forbid(unsafe_code)]

use super::error::HistoryError;
use super::shared::{Books, Landing, PATIENCE, Shared, lines_gone};
use super::spill::Spill;
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::base::threads::spawn_scoped;
use crate::cache::{Job, Link, Piece, Tier, runs};
use crate::device::{DeviceSpan, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The size of the pieces in which the file is read and written.
const FILE_PIECE_BYTES: usize = 4 << 20;
/// Threads that write one version. Two versions are under way at once. Four writers in total saturated the disk on which this was measured
/// (2.6 GB/s, against 1.9 with one), while reading was fastest with few threads (2.5 GB/s with one, 1.75 with four).
const WRITERS: usize = 2;
const READERS: usize = 1;
/// How long a thread looks for an announced job before it sleeps: the time in which an H200 copies 4 GiB.
const AWAKE: Duration = Duration::from_millis(2);
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

/// Waits for work. Staged shards come before the end of the threads: ranks wait for these shards.
fn next(shared: &Shared, link: Link) -> Next {
    let mut books = shared.lock();
    if let Some(landing) = books.landing(shared, link) {
        return Next::Landing(landing);
    }
    books.idle[link as usize] += 1;
    books.dispatch(shared, &Link::ALL);
    let mut is_tired = false;
    loop {
        // A job in the queue was given to a thread that was idle.
        if let Some(job) = books.queues[link as usize].pop_front() {
            shared.given[link as usize].fetch_sub(1, Ordering::Relaxed);
            return Next::Job(job);
        }
        if let Some(landing) = books.landing(shared, link) {
            books.idle[link as usize] -= 1;
            return Next::Landing(landing);
        }
        if shared.is_stopping() {
            books.idle[link as usize] -= 1;
            return Next::Stop;
        }
        let is_announced = shared.announced[link as usize].load(Ordering::Relaxed) > 0;
        if is_announced && !is_tired {
            books = shared.stay_awake(link, books);
            is_tired = true;
            continue;
        }
        books = shared.wait_on(&shared.links[link as usize], books, PATIENCE);
        is_tired = false;
        // Even work that nobody announced is found, a little later.
        books.dispatch(shared, &[link]);
    }
}

/// Moves what the planner wants to have moved over one link, until the caches are closed. Each link has two such threads, so that it is
/// busy while one of them wakes up.
pub(super) fn link_loop(shared: &Arc<Shared>, link: Link, stream: &Arc<dyn Stream>) {
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
        let held_back = outcome.as_ref().copied().unwrap_or_default();
        books.note_moved(link, job.bytes, begun.elapsed().saturating_sub(held_back), outcome.is_ok());
        shared.changed(books);
    }
}

impl Books {
    /// A staged shard that waits to be downloaded.
    fn landing(&mut self, shared: &Shared, link: Link) -> Option<Landing> {
        let landing = if link == Link::Down { self.landings.pop_front() } else { None }?;
        shared.given[link as usize].fetch_sub(1, Ordering::Relaxed);
        Some(landing)
    }

    /// Hands jobs to idle threads of the links. Exactly as many threads are woken as have work, because waking one
    /// costs the application's thread as much as a small checkpoint.
    pub(super) fn dispatch(&mut self, shared: &Shared, links: &[Link]) {
        if shared.is_stopping() {
            return;
        }
        for link in links.iter().copied() {
            while self.idle[link as usize] > 0
                && let Some(job) = self.cache.next(link, shared.now())
            {
                self.idle[link as usize] -= 1;
                self.queues[link as usize].push_back(job);
                shared.given[link as usize].fetch_add(1, Ordering::Relaxed);
                if self.queues[link as usize].len() > self.awake[link as usize] {
                    shared.links[link as usize].notify_one();
                }
            }
        }
    }

    /// Counts what a link has moved in `time`, or that it has failed, and how fast it was, if that took any time.
    pub(super) fn note_moved(&mut self, link: Link, bytes: u64, time: Duration, is_good: bool) {
        if !is_good {
            self.trace.stats.failures[link as usize] += 1;
            return;
        }
        self.trace.stats.moved_bytes[link as usize] += bytes;
        if !time.is_zero() {
            self.cache.set_rate(link, (bytes as f64 / time.as_secs_f64()) as u64);
        }
    }
}

impl Shared {
    /// Announces a job for a link: one of its threads wakes up and looks for the job while the caller waits for the
    /// device. Otherwise the caller would have to wait for the wake-up later.
    pub(super) fn announce(&self, link: Link) {
        self.announced[link as usize].fetch_add(1, Ordering::Relaxed);
        let wakes = self.lock().awake[link as usize] == 0;
        if wakes {
            self.links[link as usize].notify_one();
        }
    }

    /// Looks for an announced job without holding the lock, which the announcer needs to queue the job.
    fn stay_awake<'a>(&'a self, link: Link, mut books: Guard<'a, Books>) -> Guard<'a, Books> {
        books.awake[link as usize] += 1;
        drop(books);
        let has_come = || {
            self.given[link as usize].load(Ordering::Relaxed) > 0
                || self.announced[link as usize].load(Ordering::Relaxed) == 0
                || self.is_stopping()
        };
        let begun = Instant::now();
        while !has_come() && begun.elapsed() < AWAKE {
            // The announcer thus makes progress even on a machine with more threads than processors.
            std::thread::yield_now();
            (0..100).for_each(|_| std::hint::spin_loop());
        }
        let mut books = self.lock();
        books.awake[link as usize] -= 1;
        books
    }

    /// Moves the bytes of one job. Returns how long the job was held back to keep to a rate.
    fn run(self: &Arc<Self>, job: &Job, stream: &dyn Stream) -> Result<Duration, HistoryError> {
        let mut burst = (job.link == Link::Down).then(|| self.burst(job.id.version, job.bytes));
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
                    let mut parts = self.lines.lend(host(cut)).ok_or_else(lines_gone)?;
                    let mut copies: Vec<(DeviceSpan, &mut [u8])> = Vec::with_capacity(parts.len());
                    for part in &mut parts {
                        let length = part.len() as u64;
                        copies.push((self.range.span(from + at, length)?, part));
                        at += length;
                    }
                    match &mut burst {
                        Some(burst) => burst.download(stream, &mut copies)?,
                        None => stream.download(&mut copies, None)?,
                    }
                }
                Link::Up => {
                    let views = self.lines.view(host(cut)).ok_or_else(lines_gone)?;
                    let mut copies: Vec<(&[u8], DeviceSpan)> = Vec::with_capacity(views.len());
                    for view in &views {
                        let length = view.len() as u64;
                        copies.push((view, self.range.span(to + at, length)?));
                        at += length;
                    }
                    stream.upload(&copies, None)?;
                }
                Link::Out => {
                    let views = self.lines.view(host(cut)).ok_or_else(lines_gone)?;
                    let pieces = views.iter().flat_map(|view| view.chunks(FILE_PIECE_BYTES)).map(|piece| {
                        at += piece.len() as u64;
                        (piece, to + at - piece.len() as u64)
                    });
                    self.in_parallel(WRITERS, pieces.collect(), |spill, (piece, at)| spill.write(piece, at))?;
                }
                Link::In => {
                    let mut parts = self.lines.lend(host(cut)).ok_or_else(lines_gone)?;
                    let pieces = parts.iter_mut().flat_map(|part| part.chunks_mut(FILE_PIECE_BYTES)).map(|piece| {
                        at += piece.len() as u64;
                        let begin = from + at - piece.len() as u64;
                        (piece, begin)
                    });
                    self.in_parallel(READERS, pieces.collect(), |spill, (piece, at)| spill.read(piece, at))?;
                }
            }
        }
        Ok(burst.map_or(Duration::ZERO, |burst| burst.held_back()))
    }

    /// Reads or writes pieces of the file, several at the same time: single accesses would leave the device idle in between.
    fn in_parallel<T: Send>(
        &self,
        threads: usize,
        pieces: Vec<T>,
        work: impl Fn(&Spill, T) -> std::io::Result<()> + Sync,
    ) -> Result<(), HistoryError> {
        let spill = self.spill()?;
        let threads = threads.min(pieces.len());
        let queue = Lock::new(pieces.into_iter());
        let next = || queue.lock().next();
        let run = || std::iter::from_fn(next).try_for_each(|piece| work(spill, piece));
        let outcome = match threads {
            0 | 1 => run(),
            _ => std::thread::scope(|scope| {
                // A thread that cannot be started leaves its share to the others.
                let other = || spawn_scoped(scope, "bvk-file", run).ok();
                let others: Vec<_> = (1..threads).filter_map(|_| other()).collect();
                let mine = run();
                let panicked = |_| Err(std::io::Error::other("a thread panicked"));
                others
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(panicked))
                    .fold(mine, std::result::Result::and)
            }),
        };
        outcome.map_err(|error| self.store_failed(&error))
    }

    fn spill(&self) -> Result<&Spill, HistoryError> {
        self.spill.as_ref().ok_or_else(lines_gone)
    }

    pub(super) fn store_failed(&self, error: &std::io::Error) -> HistoryError {
        let directory = self.spill.as_ref().map_or_else(String::new, |spill| spill.directory().display().to_string());
        HistoryError::Store { directory, reason: error.to_string() }
    }
}
