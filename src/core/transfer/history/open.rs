//! Opening and closing the caches.
#![forbid(unsafe_code)]

use super::bursts::Bursts;
use super::error::HistoryError;
use super::lines::Lines;
use super::links::{link_loop, name_of};
use super::preparing::{memory_loop, pin_loop};
use super::registered::Registered;
use super::settings::CacheConfig;
use super::shared::{Books, Caches, History, Shared};
use super::spill::Spill;
use super::trace::Trace;
use crate::affinity::{cpus, given};
use crate::base::log;
use crate::base::sync::{Condition, Lock, Order};
use crate::base::threads::spawn;
use crate::cache::{Cache, IN_FLIGHT_MAX, Keep, Link, Options, Tier, TierOptions};
use crate::config::ThreadCpus;
use crate::device::{Device, Priority};
use crate::segment::Segment;
use crate::transfer::Waiting;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// The threads that prepare memory. The first ends when the memory is ready; the other continues with slots.
const MAP_THREAD: &str = "bvk-map";
const PIN_THREAD: &str = "bvk-pin";
/// Allocation unit in device memory: copies of this size are still efficient.
const DEVICE_UNIT: u64 = 64 << 10;
/// Allocation unit in host memory and in the file: pages, for direct I/O.
const HOST_UNIT: u64 = 4096;
/// How much memory is mapped before the caches are usable; this takes about a tenth of a millisecond.
const FIRST_MAP_BYTES: u64 = 1 << 30;

impl Caches {
    /// Reserves the GPU cache on `device`, maps its first step, and starts the threads that make the rest ready.
    ///
    /// # Blocking
    /// For the first step of mapping, which takes well under a millisecond. With turns at links (`stagger.bursts`), also for a look at the
    /// node's topology, which takes some tens of milliseconds.
    ///
    /// # Errors
    /// [`HistoryError::Device`]; [`HistoryError::Store`] if the file cannot be made or a thread cannot be started.
    pub fn open(
        device: Arc<dyn Device>,
        segment: Option<Arc<Segment>>,
        config: CacheConfig,
    ) -> Result<Caches, HistoryError> {
        Caches::open_beside(device, segment, config, Waiting::default())
    }

    /// Opens caches for use with an engine, whose calls may wait for flushes of these caches.
    ///
    /// # Errors
    /// As [`Caches::open`].
    pub(crate) fn open_beside(
        device: Arc<dyn Device>,
        segment: Option<Arc<Segment>>,
        config: CacheConfig,
        waiting: Waiting,
    ) -> Result<Caches, HistoryError> {
        let spill = config.store_directory.as_ref().map(|directory| Spill::new(directory)).transpose();
        let spill = spill.map_err(|error| store_failed(&config, error.to_string()))?;
        let range = device.reserve(config.device_bytes)?;
        let host_bytes = if segment.is_some() { config.host_bytes / HOST_UNIT * HOST_UNIT } else { 0 };
        let store_bytes = if spill.is_some() { config.store_bytes / HOST_UNIT * HOST_UNIT } else { 0 };
        let cache = Cache::new(Options {
            device: TierOptions { unit: DEVICE_UNIT, capacity: range.bytes() },
            host: TierOptions { unit: HOST_UNIT, capacity: host_bytes },
            store: TierOptions { unit: HOST_UNIT, capacity: store_bytes },
        });
        let books = Books::new(cache, config.trace);
        let bursts = Bursts::new(&config.stagger, &*device, segment.as_ref(), waiting);
        let shared = Arc::new(Shared {
            device,
            range,
            segment,
            registered: Registered::default(),
            lines: Lines::default(),
            spill,
            config: CacheConfig { host_bytes, ..config },
            bursts,
            is_shrinking: AtomicBool::new(false),
            is_leased: AtomicBool::new(false),
            ways: Lock::default(),
            started: Instant::now(),
            books: Lock::new(books),
            application: Condition::new(),
            links: Default::default(),
            announced: Default::default(),
            given: Default::default(),
            stop: AtomicBool::new(false),
            histories: AtomicU32::new(0),
            process: std::process::id(),
        });
        let first = FIRST_MAP_BYTES.min(shared.range.bytes());
        if first > 0 {
            shared.map_step(0, first)?;
        }
        let caches = Caches { shared, threads: Lock::at(Order::Session, Vec::new()) };
        let threads = start_threads(&caches.shared, first)?;
        *caches.threads.lock() = threads;
        Ok(caches)
    }

    /// Makes a new history. Two histories of the same name are separate.
    pub fn history(&self, name: &str, keep: Keep) -> History {
        let id = self.shared.histories.fetch_add(1, Ordering::Relaxed);
        // Host memory is leased for histories only: programs without histories leave it to checkpoints.
        for thread in self.threads.lock().iter() {
            thread.thread().unpark();
        }
        History { shared: self.shared.clone(), id, name: name.into(), keep }
    }

    /// How much host memory the caches have leased, and how much of that is pinned, in bytes.
    pub fn host_bytes(&self) -> (u64, u64) {
        self.shared.host_bytes()
    }

    /// Is all memory mapped, leased and pinned that the caches will have? The answer is false until the first history has been made, and
    /// while other processes of the node hold host memory that these caches are to have.
    pub fn is_ready(&self) -> bool {
        let threads = self.threads.lock();
        let has_ended =
            |name| threads.iter().any(|thread| thread.thread().name() == Some(name) && thread.is_finished());
        has_ended(MAP_THREAD) && (has_ended(PIN_THREAD) || self.shared.unpinned_line().is_none())
    }

    /// Gives device memory back to the application: as much of `bytes` as is possible without losing a version, in whole steps from the end
    /// of the cache. Returns the number of bytes. A cache that is still growing stops growing.
    ///
    /// # Blocking
    /// For flushes that have to end first, for at most `timeouts.room`.
    pub fn release_device_memory(&self, bytes: u64) -> u64 {
        self.shared.release(bytes)
    }
}

impl Books {
    fn new(cache: Cache, is_traced: bool) -> Books {
        Books {
            cache,
            idle: [0; 4],
            queues: Default::default(),
            awake: [0; 4],
            waiting: 0,
            entries: BTreeMap::new(),
            enqueued: VecDeque::new(),
            late: BTreeMap::new(),
            settling: 0,
            landings: VecDeque::new(),
            staged: 0,
            shards: 0,
            trace: Trace::new(is_traced),
        }
    }
}

/// Starts the threads of the links and those that prepare memory, of which `mapped` bytes on the device are ready.
///
/// # Errors
/// [`HistoryError::Device`], [`HistoryError::Store`] if a thread cannot be started.
fn start_threads(shared: &Arc<Shared>, mapped: u64) -> Result<Vec<JoinHandle<()>>, HistoryError> {
    let cpus = match shared.config.cpus {
        ThreadCpus::Near => given::for_background(&shared.device.info().bus_id),
        ThreadCpus::Own => cpus::of_this_thread(),
    };
    let start = |name: String, body: Box<dyn FnOnce() + Send>| {
        let cpus = cpus.clone();
        let started = spawn(name, move || {
            cpus::run_on(&cpus);
            body();
        });
        started.map_err(|error| store_failed(&shared.config, format!("a thread could not be started: {error}")))
    };
    let mut threads = Vec::new();
    for (link, number) in Link::ALL.into_iter().flat_map(|link| (0..IN_FLIGHT_MAX).map(move |number| (link, number))) {
        let stream = shared.device.stream(Priority::Low)?;
        let shared = shared.clone();
        let body = move || link_loop(&shared, link, &stream);
        threads.push(start(format!("bvk-{}-{number}", name_of(link)), Box::new(body))?);
    }
    let (pinning, mapping) = (shared.clone(), shared.clone());
    threads.push(start(PIN_THREAD.into(), Box::new(move || pin_loop(&pinning)))?);
    threads.push(start(MAP_THREAD.into(), Box::new(move || memory_loop(&mapping, mapped)))?);
    Ok(threads)
}

/// The error for failures of the file and of the threads; it names the directory of the file.
fn store_failed(config: &CacheConfig, reason: String) -> HistoryError {
    let directory = config.store_directory.as_ref().map_or_else(String::new, |path| path.display().to_string());
    HistoryError::Store { directory, reason }
}

impl Shared {
    fn release(&self, bytes: u64) -> u64 {
        let begun = Instant::now();
        // Memory that is mapped from now on would be the memory that was just given back.
        self.is_shrinking.store(true, Ordering::Release);
        let mut books = self.lock();
        while !books.cache.is_fully_mapped(Tier::Device) {
            if begun.elapsed() >= self.config.room || self.is_stopping() {
                return 0;
            }
            books = self.wait(books);
        }
        // Steps were mapped from the front: the first step as one, the rest in equal parts.
        let end = books.cache.bytes(Tier::Device).0;
        drop(books);
        let mut released = 0;
        while released < bytes && end > released {
            let last = end - released;
            let start = if last <= FIRST_MAP_BYTES { 0 } else { self.step_before(last) };
            let range = crate::cache::Piece { offset: start, bytes: last - start };
            let mut books = self.lock();
            while !books.cache.release(Tier::Device, range) {
                if begun.elapsed() >= self.config.room || self.is_stopping() {
                    return released;
                }
                books = self.wait_for_room(books);
            }
            drop(books);
            if let Err(error) = self.range.unmap(range.offset, range.bytes) {
                log::warn!("event=device-memory-kept error={error}");
                return released;
            }
            released += range.bytes;
        }
        released
    }

    fn step_before(&self, end: u64) -> u64 {
        let steps = (end - FIRST_MAP_BYTES - 1) / super::preparing::MAP_STEP_BYTES;
        FIRST_MAP_BYTES + steps * super::preparing::MAP_STEP_BYTES
    }
}

impl Drop for Caches {
    /// Stops and joins the threads, which first bring all checkpoints that are in the GPU cache to node memory. Histories that still exist
    /// answer that they know no version.
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            // A forked child has no such threads, and must not change the memory.
            std::mem::take(self.threads.get_mut()).into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        {
            let mut books = self.shared.lock();
            (0..self.shared.histories.load(Ordering::Relaxed)).for_each(|history| books.cache.close(history));
            books.entries.clear();
        }
        self.shared.links.iter().for_each(Condition::notify_all);
        self.shared.application.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("event=thread-panicked");
            }
        }
        // Empty, unless a thread has panicked: those who wait for these landings are told when the landings are dropped.
        let left = std::mem::take(&mut self.shared.lock().landings);
        drop(left);
    }
}
