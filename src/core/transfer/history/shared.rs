//! What the application's calls and the threads of the caches share: the data behind one lock, and how its changes are
//! signalled.
#![forbid(unsafe_code)]

use super::bursts::Bursts;
use super::error::HistoryError;
use super::field::FromHost;
use super::layout::{FieldInfo, Layout};
use super::lines::Lines;
use super::registered::Registered;
use super::settings::CacheConfig;
use super::spill::Spill;
use super::steps::CallKind;
use super::trace::{HistoryStats, Span, Step, Trace};
use super::ways::Ways;
use crate::base::Digest;
use crate::base::log;
use crate::base::sync::{Condition, Guard, Lock};
use crate::cache::{Cache, EntryId, Job, Keep, Link, Noted};
use crate::device::{Copied, Device, DeviceSpan, Reservation, Stream};
use crate::segment::{Segment, SlotMut};
use crate::transfer::remains::Fill;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
/// How many bytes pass through host memory at a time when a version bypasses both caches.
pub(super) const BOUNCE_BYTES: u64 = 8 << 20;
/// The longest sleep of a waiting call before it looks again.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// The caches of one rank on one device, and the threads that work for them. The caches are shared by histories and by the checkpoints that
/// are captured with [`CheckpointBuilder::with_device`](crate::CheckpointBuilder::with_device).
///
/// Dropping the caches blocks until checkpoints that are in the GPU cache have reached node memory.
pub struct Caches {
    pub(super) shared: Arc<Shared>,
    pub(super) threads: Lock<Vec<JoinHandle<()>>>,
}

/// What the application's calls and the threads share.
pub(super) struct Shared {
    pub(super) device: Arc<dyn Device>,
    pub(super) range: Arc<dyn Reservation>,
    pub(super) segment: Option<Arc<Segment>>,
    /// Before `lines`: the registrations that only these caches have made are undone before the leases return to the node.
    pub(super) registered: Registered,
    pub(super) lines: Lines,
    pub(super) spill: Option<Spill>,
    pub(super) config: CacheConfig,
    pub(super) bursts: Bursts,
    /// The application has asked for device memory back: no more of it is mapped.
    pub(super) is_shrinking: AtomicBool,
    /// As much host memory is leased as will ever be.
    pub(super) is_leased: AtomicBool,
    /// The measurements on preparing host memory; this lock is never held together with another one.
    pub(super) ways: Lock<Ways>,
    pub(super) started: Instant,
    pub(super) books: Lock<Books>,
    /// Wakes the application's threads.
    pub(super) application: Condition,
    /// Wakes the threads of each link.
    pub(super) links: [Condition; 4],
    /// For each link, the number of announced jobs.
    pub(super) announced: [AtomicUsize; 4],
    /// Jobs in the queues of the links, and landings. A thread that looks for an announced job sees these numbers without the lock.
    pub(super) given: [AtomicUsize; 4],
    pub(super) stop: AtomicBool,
    pub(super) histories: AtomicU32,
    pub(super) process: u32,
}

/// What the lock guards.
pub(super) struct Books {
    pub(super) cache: Cache,
    /// For each link, the number of threads that have nothing to do; `queues` holds the jobs for those that are being woken.
    pub(super) idle: [usize; 4],
    pub(super) queues: [VecDeque<Job>; 4],
    /// For each link, the number of threads that are awake for an announced job.
    pub(super) awake: [usize; 4],
    /// Calls of the application that wait for a change.
    pub(super) waiting: usize,
    pub(super) entries: BTreeMap<EntryId, Entry>,
    /// Appends and restores whose copies were enqueued and have not yet been seen to end.
    pub(super) enqueued: VecDeque<Enqueued>,
    /// The number of these for which threads are waiting; they are in no queue meanwhile.
    pub(super) settling: usize,
    /// The errors of such restores of each history, until its application is told.
    pub(super) late: BTreeMap<u32, VecDeque<HistoryError>>,
    /// Staged shards that wait for their download, oldest first.
    pub(super) landings: VecDeque<Landing>,
    /// The number of shards that have room in the GPU cache; `shards` counts all that ever asked for it.
    pub(super) staged: u64,
    pub(super) shards: u64,
    pub(super) trace: Trace,
}

/// What is known of a version besides its place.
pub(super) struct Entry {
    pub(super) layout: Arc<Layout>,
    pub(super) digests: Option<Arc<[Digest]>>,
    /// The error of the last copy that was given up.
    pub(super) complaint: Option<HistoryError>,
    /// A restore has reported the version as lost.
    pub(super) is_told_lost: bool,
}

/// A call whose copy was enqueued.
pub(super) struct Enqueued {
    pub(super) id: EntryId,
    /// Identifies the stream while this exists: copies on one stream end in their order.
    pub(super) stream: usize,
    pub(super) copied: Arc<dyn Copied>,
    pub(super) call: EnqueuedCall,
}

impl Enqueued {
    pub(super) fn new(id: EntryId, stream: &dyn Stream, copied: Box<dyn Copied>, call: EnqueuedCall) -> Enqueued {
        Enqueued { id, stream: std::ptr::from_ref(stream).addr(), copied: copied.into(), call }
    }
}

/// What remains to be done when the copy has ended.
pub(super) enum EnqueuedCall {
    /// Keep the digests; compare those of fields that came from host memory.
    Append(FromHost),
    /// Compare the digests.
    Restore(Expected),
}

/// Versions under one name, kept by one rank. Dropping the history forgets them.
pub struct History {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) keep: Keep,
}

impl Shared {
    pub(super) fn lock(&self) -> Guard<'_, Books> {
        self.books.lock()
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes an application's thread sleep until the books change.
    pub(super) fn wait<'a>(&self, books: Guard<'a, Books>) -> Guard<'a, Books> {
        self.wait_at_most(books, PATIENCE)
    }

    pub(super) fn wait_at_most<'a>(&self, mut books: Guard<'a, Books>, limit: Duration) -> Guard<'a, Books> {
        let _waiting = self.bursts.waiting.begin();
        books.waiting += 1;
        let mut books = self.wait_on(&self.application, books, limit);
        books.waiting -= 1;
        books
    }

    /// Waits for something to leave the caches.
    pub(super) fn wait_for_room<'a>(&'a self, mut books: Guard<'a, Books>) -> Guard<'a, Books> {
        // A new waiting call may change which jobs the links can do.
        books.dispatch(self, &Link::ALL);
        if books.enqueued.is_empty() {
            return self.wait(books);
        }
        // A copy that is only enqueued cannot be flushed, and the wait for room may be a wait for that.
        drop(books);
        self.settle_enqueued(true);
        self.lock()
    }

    pub(super) fn wait_on<'a>(
        &self,
        condition: &Condition,
        books: Guard<'a, Books>,
        limit: Duration,
    ) -> Guard<'a, Books> {
        condition.wait_timeout(books, limit)
    }

    /// Dispatches the work that a change of the books has made possible, and releases the lock.
    pub(super) fn changed(&self, books: Guard<'_, Books>) {
        self.changed_for(books, &Link::ALL);
    }

    /// Dispatches the work of a change that can only have made work for some links, and releases the lock. The application's thread asks
    /// for no more than that.
    pub(super) fn changed_for(&self, mut books: Guard<'_, Books>, links: &[Link]) {
        books.dispatch(self, links);
        if books.waiting > 0 {
            self.application.notify_all();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for all enqueued copies, including those whose end another thread is noting.
    pub(super) fn settle_all(&self) -> Guard<'_, Books> {
        self.settle_enqueued(true);
        let mut books = self.lock();
        while books.settling > 0 {
            books = self.wait(books);
        }
        books
    }

    /// Notes the end of enqueued appends and restores. With `all`, waits for them.
    pub(super) fn settle_enqueued(&self, all: bool) {
        self.settle_some(all, |_| true);
    }

    /// Notes the end of some enqueued appends and restores. With `all`, waits for them.
    pub(super) fn settle_some(&self, all: bool, which: impl Fn(&Enqueued) -> bool) {
        loop {
            let first = first_of_streams(&self.lock().enqueued, &which);
            // The device is asked without the lock: another thread may settle the copy meanwhile.
            let is_due = |copied: &Arc<dyn Copied>| all || !matches!(copied.is_done(), Ok(false));
            let Some(due) = first.into_iter().find(is_due) else { return };
            self.settle_one(&due);
        }
    }

    /// Waits for an enqueued copy and notes its end. Does nothing if another thread already does so.
    pub(super) fn settle_one(&self, copied: &Arc<dyn Copied>) {
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

    /// Waits for enqueued restores, the oldest first, while the GPU cache has no room for `bytes` that could be placed in it: the versions
    /// of these restores are about to leave the cache, or may then be flushed.
    pub(super) fn settle_restores_for(&self, bytes: u64) {
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

/// For each stream, the oldest of the selected copies.
fn first_of_streams(enqueued: &VecDeque<Enqueued>, which: impl Fn(&Enqueued) -> bool) -> Vec<Arc<dyn Copied>> {
    let mut streams = BTreeSet::new();
    let first = enqueued.iter().filter(|enqueued| which(enqueued) && streams.insert(enqueued.stream));
    first.map(|enqueued| enqueued.copied.clone()).collect()
}

impl Books {
    /// The number of the next shard that asks for room in the GPU cache.
    pub(super) fn next_shard(&mut self) -> u64 {
        self.shards += 1;
        self.shards - 1
    }

    /// Ends an append.
    pub(super) fn written(&mut self, id: EntryId, digests: Option<Vec<Digest>>) {
        let is_good = digests.is_some();
        match (self.entries.get_mut(&id), digests) {
            (Some(entry), Some(digests)) => entry.digests = Some(digests.into()),
            _ => _ = self.entries.remove(&id),
        }
        self.cache.written(id, is_good);
    }
}

impl History {
    /// Says that `versions` will be restored in this order, after the versions that were named earlier. Hints can be given at any time,
    /// even for versions that do not exist yet; they cannot be taken back, and restores may deviate from them.
    ///
    /// # Collective
    /// Local; never waits.
    pub fn hint(&self, versions: impl IntoIterator<Item = u64>) {
        let mut books = self.shared.lock();
        versions.into_iter().for_each(|version| books.cache.hint(EntryId { history: self.id, version }));
        self.shared.changed(books);
    }

    /// Allows hinted versions to be fetched ahead. Before this call, hints only decide which versions are kept.
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
    /// [`HistoryError::Unknown`], even for a version that was restored and dropped.
    pub fn fields(&self, version: u64) -> Result<Vec<FieldInfo>, HistoryError> {
        let books = self.shared.lock();
        let entry = books.entries.get(&EntryId { history: self.id, version });
        entry
            .map(|entry| entry.layout.fields.clone())
            .ok_or_else(|| HistoryError::Unknown { history: self.name.clone(), version })
    }

    /// Refuses a field that is named twice: one of the two would be forgotten.
    pub(super) fn check_names<'f>(
        &self,
        version: u64,
        names: impl Iterator<Item = &'f str>,
    ) -> Result<(), HistoryError> {
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

    /// What the links and the application did, and when, since the last call; empty unless [`CacheConfig::trace`] is set.
    pub fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut self.shared.lock().trace.spans)
    }

    /// Waits for the end of every flush for which there is room below, including room in host memory that is still being made ready.
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

    /// The name of the history.
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

/// The announcement of a job.
pub(super) struct Announced<'a>(&'a Shared, Link);

impl<'a> Announced<'a> {
    pub(super) fn new(shared: &'a Shared, link: Link) -> Announced<'a> {
        shared.announce(link);
        Announced(shared, link)
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.announced[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place of the planner without memory: a broken invariant, reported as an error.
pub(super) fn lines_gone() -> HistoryError {
    HistoryError::Store { directory: String::new(), reason: "a cache range has no memory behind it".into() }
}

/// The content that an enqueued restore must deliver, and its version.
pub(super) struct Expected {
    pub(super) name: String,
    pub(super) layout: Arc<Layout>,
    pub(super) digests: Arc<[Digest]>,
    pub(super) targets: Vec<usize>,
    /// What the outcome of the copy means for the version.
    pub(super) noted: Noted,
}

/// The device regions of a shard in the GPU cache. Dropping it gives their room back.
pub(in crate::transfer) struct Staged {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: u64,
    pub(super) bytes: u64,
    /// Where the bytes are, and where they go from the start of the shard; ascending.
    pub(super) lines: Vec<Line>,
    /// The parts of the shard between regions of one line: zeros in the shard, anything in the cache.
    pub(super) gaps: Vec<Range<u64>>,
    /// The copy into the cache, until its digests are known.
    pub(super) copied: Option<Box<dyn Copied>>,
}

/// Bytes that are contiguous both in the cache and in the shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) place: u64,
    pub(super) bytes: u64,
    pub(super) at: u64,
}

/// What is to be done when the bytes are in the slot, or when it is known that they will never be. Runs on a thread of the caches.
pub(in crate::transfer) type Land = Box<dyn FnOnce(Result<SlotMut, String>) + Send>;

/// What is to be done with the bytes while they are downloaded, given the device and their spans, by their first byte in the shard. Runs in
/// parallel with the download.
pub(in crate::transfer) type LookAt = Box<dyn FnOnce(&dyn Device, Vec<(u64, DeviceSpan)>) + Send>;

/// A staged shard on its way to its slot.
pub(super) struct Landing {
    pub(super) staged: Staged,
    pub(super) slot: SlotMut,
    pub(super) version: u64,
    pub(super) look: Option<LookAt>,
    pub(super) fill: Option<Fill>,
    pub(super) land: Land,
}
