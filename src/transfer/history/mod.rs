//! Histories: versions that are written forward and read back in a known order, at the speed of GPU memory.
//!
//! # What happens
//!
//! [`History::append`] copies the application's fields into the GPU cache, on the application's stream, with the digest of
//! every block made on the way; that is all that the application waits for while there is room. Behind its back two
//! threads for each link move versions: device to host, host to file, file to host, host to device.
//! [`History::restore`] copies a version back and compares the digests. Which version rests where, what makes room and what is
//! fetched ahead is decided by [`crate::cache`], and by nothing here: this module moves the bytes that it is told to.
//!
//! ```text
//!  application's thread      append ──▶ [GPU cache] ──▶ restore
//!  bvk-d2h                               │        ▲                bvk-h2d
//!                                        ▼        │
//!                                   [node memory: leases of the node segment, pinned part by part]
//!  bvk-h2f                               │        ▲                bvk-f2h
//!                                        ▼        │
//!                                   [file without a name on the local tier]
//!  bvk-map    maps GPU memory, leases and touches host memory, in steps, from the start on
//!  bvk-pin    pins host memory behind it, and slots of checkpoints ([`registered`](self))
//! ```
//!
//! Device regions of collective checkpoints pass through the same GPU cache on their way to node memory ([`staging`](self)).
//!
//! A history belongs to its rank alone: no call of it communicates. Its versions are never candidates of a restart, and its
//! memory and file vanish with the process. What has to outlive it is sealed: made part of a collective checkpoint
//! ([`Checkpoint::save_history`](crate::Checkpoint::save_history)).
//!
//! Sources: HPDC'23 (caching and prefetching), sections 2 and 4; HiPC'22 (cache allocation), section IV.
//!
//! # Blocking and locks
//!
//! One lock guards the planner and the layouts. It is never held across a copy, a file access or a call into a driver.
//!
//! # How bytes and decisions meet
//!
//! `transfer::history` moves bytes, `cache` decides: each link's threads are handed jobs by the planner (`Cache::next`) whenever its state
//! changes, exactly as many as can work, because waking a thread costs the application as much as a small copy. An append announces
//! its flush while it waits for its own copy, so that the flushing thread is awake when the copy is done. A version is bytes cut at pieces: versions
//! lie in as few gaps as there are, and one kernel copies any number of runs and adds up the digests of blocks that
//! lie in several. `docs/GPU.md` has the life cycle.
//!
//! Flushes of the ranks of a node can be staggered (`transfer::history::bursts`, the gate of `Stream::download`): before each piece the thread
//! that flushes waits for the pace (`transfer::pacing`; `steps` tells it the application's step times), and before the first one for its rank's turn
//! (`turns`: a token of `segment::token`, shared by the rank's two threads; `affinity::links` says which token). Both waits end when the caches close; the pace
//! does not hold while a call of the application waits for flushes (`transfer::waiting`), and a turn that does not come in time is done without.
//!
//! A history in a checkpoint (`transfer::history::seal`) is regions whose bytes are read at capture (`region::ReadBlocks`): from the fastest tier that has a
//! good copy straight into the slot, or into the buffer of the file writer, and compared with the digests of the append. The planner is asked with
//! `Cache::peek`, which holds the copy and changes nothing else.
#![forbid(unsafe_code)]

mod append;
mod bursts;
mod error;
mod field;
mod layout;
mod lines;
mod links;
mod open;
mod preparing;
mod registered;
mod restore;
mod seal;
mod spill;
mod staging;
mod steps;
mod trace;
mod turns;
mod ways;

use crate::base::log;
pub use append::Return;
pub use error::HistoryError;
pub use field::{Field, FieldMut};
pub use layout::FieldInfo;
pub use open::CacheConfig;
pub(crate) use seal::{Index, index_name, region_name};
pub use trace::{HistoryStats, Operation, Span, Step};

use crate::base::Digest;
use crate::cache::{Cache, EntryId, Job, Keep, Link};
use crate::device::{Copied, Device, Reservation, Stream};
use crate::segment::Segment;
use bursts::Bursts;
use field::FromHost;
use layout::Layout;
use lines::Lines;
use registered::Registered;
use restore::Expected;
use spill::Spill;
use staging::Landing;
pub(in crate::transfer) use staging::Staged;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use steps::CallKind;
use trace::Trace;
use ways::Ways;

/// Bytes that go through host memory at a time where a version passes both caches by.
const BOUNCE_BYTES: u64 = 8 << 20;
/// How long a waiting call sleeps at most before it looks again.
const PATIENCE: Duration = Duration::from_millis(100);

/// The caches of one rank on one device, and the threads that work for them. Histories share them, and the checkpoints that are
/// captured with [`Checkpoint::capture_on`](crate::Checkpoint::capture_on).
///
/// Dropping them blocks until checkpoints that are in the GPU cache have come down to node memory.
pub struct Caches {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the application's calls and the threads share.
struct Shared {
    device: Arc<dyn Device>,
    range: Arc<dyn Reservation>,
    segment: Option<Arc<Segment>>,
    /// Before `lines`: what only these caches have registered is taken back before the leases go back to the node.
    registered: Registered,
    lines: Lines,
    spill: Option<Spill>,
    config: CacheConfig,
    bursts: Bursts,
    /// The application has asked for device memory back: no more of it is mapped.
    is_shrinking: AtomicBool,
    /// Host memory is leased, as far as it will be.
    is_leased: AtomicBool,
    /// What was measured about making host memory ready; its lock is never held with another.
    ways: Mutex<Ways>,
    started: Instant,
    books: Mutex<Books>,
    /// Wakes the application's threads.
    application: Condvar,
    /// Wakes the threads of each link.
    links: [Condvar; 4],
    /// Jobs that are about to come for each link.
    announced: [AtomicUsize; 4],
    /// Jobs in the queues of the links, and landings: what who looks for an announced one sees without the lock.
    given: [AtomicUsize; 4],
    stop: AtomicBool,
    histories: AtomicU32,
    process: u32,
}

/// What the lock guards.
struct Books {
    cache: Cache,
    /// Threads of each link that have nothing to do, and jobs for those of them that are being woken.
    idle: [usize; 4],
    queues: [VecDeque<Job>; 4],
    /// Threads of each link that are awake for an announced job.
    awake: [usize; 4],
    /// Calls of the application that wait for a change.
    waiting: usize,
    entries: BTreeMap<EntryId, Entry>,
    /// Appends and restores whose copies were enqueued and not yet seen to end.
    enqueued: VecDeque<Enqueued>,
    /// How many of them threads are waiting for, which are in no queue then.
    settling: usize,
    /// What was wrong with such restores of each history, until its application hears of it.
    late: BTreeMap<u32, VecDeque<HistoryError>>,
    /// Staged shards that wait for their download, oldest first.
    landings: VecDeque<Landing>,
    /// Shards that have room in the GPU cache, and how many ever asked for it.
    staged: u64,
    shards: u64,
    trace: Trace,
}

/// What is known of a version beside its place.
struct Entry {
    layout: Arc<Layout>,
    digests: Option<Arc<[Digest]>>,
    /// What was wrong with the last copy that was given up.
    complaint: Option<HistoryError>,
    /// A restore has answered that it is lost.
    is_told_lost: bool,
}

/// A call whose copy was enqueued.
struct Enqueued {
    id: EntryId,
    /// Tells the stream from others while this is there: copies on one stream end in their order.
    stream: usize,
    copied: Arc<dyn Copied>,
    call: EnqueuedCall,
}

impl Enqueued {
    fn new(id: EntryId, stream: &dyn Stream, copied: Box<dyn Copied>, call: EnqueuedCall) -> Enqueued {
        Enqueued { id, stream: std::ptr::from_ref(stream).addr(), copied: copied.into(), call }
    }
}

/// What is left to do when the copy has ended.
enum EnqueuedCall {
    /// The digests are kept; those of fields that came from host memory are compared.
    Append(FromHost),
    /// The digests are compared.
    Restore(Expected),
}

/// Versions of one name, kept by one rank. Dropping it forgets them.
pub struct History {
    shared: Arc<Shared>,
    id: u32,
    name: String,
    keep: Keep,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Lets an application's thread sleep until the books change.
    fn wait<'a>(&self, books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
        self.wait_at_most(books, PATIENCE)
    }

    fn wait_at_most<'a>(&self, mut books: MutexGuard<'a, Books>, limit: Duration) -> MutexGuard<'a, Books> {
        let _waiting = self.bursts.waiting.begin();
        books.waiting += 1;
        let mut books = self.wait_on(&self.application, books, limit);
        books.waiting -= 1;
        books
    }

    /// The same for one that waits for something to leave the caches.
    fn wait_for_room<'a>(&'a self, mut books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
        // Waiting changes what the links may do.
        books.dispatch(self, &Link::ALL);
        if books.enqueued.is_empty() {
            return self.wait(books);
        }
        // What is only enqueued cannot be flushed: the wait for room may be one for that.
        drop(books);
        self.settle_enqueued(true);
        self.lock()
    }

    fn wait_on<'a>(&self, condition: &Condvar, books: MutexGuard<'a, Books>, limit: Duration) -> MutexGuard<'a, Books> {
        condition.wait_timeout(books, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Draws the conclusions from a change of the books and gives the lock back.
    fn changed(&self, books: MutexGuard<'_, Books>) {
        self.changed_for(books, &Link::ALL);
    }

    /// The same where only some links can have got something to do. The application's thread asks no more than that.
    fn changed_for(&self, mut books: MutexGuard<'_, Books>, links: &[Link]) {
        books.dispatch(self, links);
        if books.waiting > 0 {
            self.application.notify_all();
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for all that was enqueued, also for what another thread is noting the end of.
    fn settle_all(&self) -> MutexGuard<'_, Books> {
        self.settle_enqueued(true);
        let mut books = self.lock();
        while books.settling > 0 {
            books = self.wait(books);
        }
        books
    }

    /// Notes the end of enqueued appends and restores. With `all`, waits for them.
    fn settle_enqueued(&self, all: bool) {
        self.settle_some(all, |_| true);
    }

    /// The same for some of them.
    fn settle_some(&self, all: bool, which: impl Fn(&Enqueued) -> bool) {
        loop {
            let first = first_of_streams(&self.lock().enqueued, &which);
            // The device is asked without the lock: another thread may settle the copy meanwhile.
            let is_due = |copied: &Arc<dyn Copied>| all || !matches!(copied.is_done(), Ok(false));
            let Some(due) = first.into_iter().find(is_due) else { return };
            self.settle_one(&due);
        }
    }

    /// Notes the end of an enqueued copy, for which it waits. Nothing, if somebody else does so.
    fn settle_one(&self, copied: &Arc<dyn Copied>) {
        let mut books = self.lock();
        let place = books.enqueued.iter().position(|enqueued| Arc::ptr_eq(&enqueued.copied, copied));
        let Some(Enqueued { id, copied, call, .. }) = place.and_then(|place| books.enqueued.remove(place)) else {
            return;
        };
        books.settling += 1;
        let layout = books.entries.get(&id).map(|entry| entry.layout.clone());
        drop(books);
        let digests = copied.digests().map_err(HistoryError::from);
        let mut books = match call {
            EnqueuedCall::Append(from_host) => {
                let digests = digests.and_then(|digests| match &layout {
                    Some(layout) => from_host.check(layout, &digests).map(|()| digests),
                    None => Ok(digests),
                });
                if let Err(error) = &digests {
                    log::warn!("event=append-failed history={} version={} error={error}", id.history, id.version);
                }
                let mut books = self.lock();
                books.written(id, digests.ok());
                books
            }
            EnqueuedCall::Restore(expected) => {
                let outcome = digests.and_then(|digests| expected.compare(digests));
                let mut books = self.lock();
                books.restored(id, &expected, outcome);
                books
            }
        };
        books.settling -= 1;
        self.changed(books);
    }

    /// Waits for enqueued restores, the oldest first, as long as the GPU cache has no room for `bytes` that could lie there: their
    /// versions are about to leave it, or may be flushed then.
    fn settle_restores_for(&self, bytes: u64) {
        let is_restore = |enqueued: &&Enqueued| matches!(enqueued.call, EnqueuedCall::Restore(_));
        loop {
            let books = self.lock();
            if !books.cache.lacks_device_room(bytes) {
                return;
            }
            let Some(oldest) = books.enqueued.iter().find(is_restore).map(|enqueued| enqueued.copied.clone()) else {
                return;
            };
            drop(books);
            self.settle_one(&oldest);
        }
    }
}

/// The oldest copy on each stream, of those that are meant.
fn first_of_streams(enqueued: &VecDeque<Enqueued>, which: impl Fn(&Enqueued) -> bool) -> Vec<Arc<dyn Copied>> {
    let mut streams = BTreeSet::new();
    let first = enqueued.iter().filter(|enqueued| which(enqueued) && streams.insert(enqueued.stream));
    first.map(|enqueued| enqueued.copied.clone()).collect()
}

impl Books {
    /// Ends an append.
    fn written(&mut self, id: EntryId, digests: Option<Vec<Digest>>) {
        let is_good = digests.is_some();
        match (self.entries.get_mut(&id), digests) {
            (Some(entry), Some(digests)) => entry.digests = Some(digests.into()),
            _ => _ = self.entries.remove(&id),
        }
        self.cache.written(id, is_good);
    }
}

impl History {
    /// Says that `versions` will be restored in this order, after those that were named before. Hints can come at any time, also
    /// for versions that do not exist yet; they cannot be taken back, and restores may deviate from them.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn hint(&self, versions: impl IntoIterator<Item = u64>) {
        let mut books = self.shared.lock();
        versions.into_iter().for_each(|version| books.cache.hint(EntryId { history: self.id, version }));
        self.shared.changed(books);
    }

    /// Lets hinted versions be fetched ahead, now and from now on. Before this call hints only say what is kept.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn start_prefetch(&self) {
        let mut books = self.shared.lock();
        books.cache.start_prefetch(self.id);
        self.shared.changed(books);
    }

    /// The fields of a version, in the order in which they were appended.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`], also for a version that was restored and dropped.
    pub fn fields(&self, version: u64) -> Result<Vec<FieldInfo>, HistoryError> {
        let books = self.shared.lock();
        let entry = books.entries.get(&EntryId { history: self.id, version });
        entry
            .map(|entry| entry.layout.fields.clone())
            .ok_or_else(|| HistoryError::Unknown { history: self.name.clone(), version })
    }

    /// Refuses a field that is named twice: one of the two would be forgotten.
    fn check_names<'f>(&self, version: u64, names: impl Iterator<Item = &'f str>) -> Result<(), HistoryError> {
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                let (history, field) = (self.name.clone(), name.to_owned());
                return Err(HistoryError::Field { history, version, field, reason: "it is named twice".into() });
            }
        }
        Ok(())
    }

    /// Counters of this rank's caches.
    pub fn stats(&self) -> HistoryStats {
        self.shared.stats()
    }

    /// The appends and restores since the last call, one by one.
    pub fn take_steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.shared.lock().trace.steps)
    }

    /// What the links and the application did when, since the last call; empty unless [`CacheConfig::trace`] is set.
    pub fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut self.shared.lock().trace.spans)
    }

    /// Waits until nothing is left to flush that finds room below, also in host memory that is still being made ready.
    ///
    /// # Blocking
    /// For the slowest tier.
    pub fn wait_flushed(&self) {
        let _call = self.shared.bursts.call(CallKind::Other);
        self.shared.settle_enqueued(true);
        let mut books = self.shared.lock();
        while (books.settling > 0 || !books.cache.is_flushed()) && !self.shared.is_stopping() {
            books = self.shared.wait(books);
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for History {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            return;
        }
        let mut books = self.shared.settle_all();
        for error in books.late.remove(&self.id).into_iter().flatten() {
            log::error!("event=restore-failed-unheard error={error}");
        }
        books.cache.close(self.id);
        books.entries.retain(|id, _| id.history != self.id);
        self.shared.changed(books);
    }
}

/// A job that is about to come.
struct Announced<'a>(&'a Shared, Link);

impl<'a> Announced<'a> {
    fn new(shared: &'a Shared, link: Link) -> Announced<'a> {
        shared.announce(link);
        Announced(shared, link)
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.announced[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place of the planner without memory behind it: a broken invariant, told as an error.
fn lines_gone() -> HistoryError {
    HistoryError::Store { directory: String::new(), reason: "a cache range has no memory behind it".into() }
}
