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
//!  bvk-pin    pins host memory behind it
//! ```
//!
//! Device regions of collective checkpoints pass through the same GPU cache on their way to node memory ([`staging`](self)).
//!
//! A history belongs to its rank alone: no call of it communicates. Its versions are never candidates of a restart, and its
//! memory and file vanish with the process.
//!
//! Sources: HPDC'23 (caching and prefetching), sections 2 and 4; HiPC'22 (cache allocation), section IV.
//!
//! # Blocking and locks
//!
//! One lock guards the planner and the layouts. It is never held across a copy, a file access or a call into a driver.
#![forbid(unsafe_code)]

mod bursts;
mod error;
mod layout;
mod lines;
mod links;
mod open;
mod spill;
mod staging;
mod steps;
mod trace;
mod turns;

pub use error::HistoryError;
pub use layout::FieldInfo;
pub use open::CacheConfig;
pub use trace::{HistoryStats, Operation, Span, Step};

use crate::base::Digest;
use crate::cache::{Admission, Cache, EntryId, Job, Keep, Link, Piece, Read, Reason, Tier};
use crate::device::{Copied, Device, DeviceSpan, Reservation, Run, Stream};
use crate::format::ElementType;
use crate::region::Element;
use crate::segment::Segment;
use crate::tier::posix::PageBuffer;
use bursts::Bursts;
use layout::{Cut, Layout};
use lines::Lines;
use spill::Spill;
use staging::Landing;
pub(in crate::transfer) use staging::Staged;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use steps::CallKind;
use trace::Trace;

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
    lines: Lines,
    spill: Option<Spill>,
    config: CacheConfig,
    bursts: Bursts,
    started: Instant,
    books: Mutex<Books>,
    /// Wakes the application's threads.
    application: Condvar,
    /// Wakes the threads of each link.
    links: [Condvar; 4],
    /// Jobs that are about to come for each link.
    announced: [AtomicUsize; 4],
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
    /// Appends whose copies were enqueued and not yet seen to end.
    enqueued: VecDeque<(EntryId, Box<dyn Copied>)>,
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
}

/// When an append returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Return {
    /// When the fields have been copied: whatever the application does next, on whichever stream, the version is safe.
    /// The default, because an application with several streams would otherwise have to order each of them.
    #[default]
    Done,
    /// When the copy is enqueued: work that the application enqueues on the same stream runs after it. Work on other streams, and
    /// the host's own access to host fields, must be ordered by the application.
    Enqueued,
}

/// A field of a version to append.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    name: &'a str,
    element: ElementType,
    data: FieldData<'a>,
}

#[derive(Clone, Debug)]
enum FieldData<'a> {
    Device(&'a DeviceSpan),
    Host(&'a [u8]),
}

impl<'a> Field<'a> {
    /// Device memory that holds elements of type `T`.
    pub fn device<T: Element>(name: &'a str, span: &'a DeviceSpan) -> Field<'a> {
        Field { name, element: T::TYPE, data: FieldData::Device(span) }
    }

    /// A slice of host memory. It is copied to the device cache when it is appended, which waits for that.
    pub fn host<T: Element>(name: &'a str, slice: &'a [T]) -> Field<'a> {
        Field { name, element: T::TYPE, data: FieldData::Host(bytemuck::cast_slice(slice)) }
    }

    fn bytes(&self) -> u64 {
        match self.data {
            FieldData::Device(span) => span.bytes(),
            FieldData::Host(slice) => slice.len() as u64,
        }
    }
}

/// A field of a version to restore.
#[derive(Debug)]
pub struct FieldMut<'a> {
    name: &'a str,
    element: ElementType,
    data: FieldDataMut<'a>,
}

#[derive(Debug)]
enum FieldDataMut<'a> {
    Device(&'a DeviceSpan),
    Host(&'a mut [u8]),
}

impl<'a> FieldMut<'a> {
    /// Device memory of exactly the field's length.
    pub fn device<T: Element>(name: &'a str, span: &'a DeviceSpan) -> FieldMut<'a> {
        FieldMut { name, element: T::TYPE, data: FieldDataMut::Device(span) }
    }

    /// A slice of host memory of exactly the field's length.
    pub fn host<T: Element>(name: &'a str, slice: &'a mut [T]) -> FieldMut<'a> {
        FieldMut { name, element: T::TYPE, data: FieldDataMut::Host(bytemuck::cast_slice_mut(slice)) }
    }

    fn bytes(&self) -> u64 {
        match &self.data {
            FieldDataMut::Device(span) => span.bytes(),
            FieldDataMut::Host(slice) => slice.len() as u64,
        }
    }
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

    /// Notes the end of enqueued appends. With `all`, waits for them.
    fn settle_enqueued(&self, all: bool) {
        loop {
            let mut books = self.lock();
            let Some((id, copied)) = books.enqueued.pop_front() else { return };
            if !all && matches!(copied.is_done(), Ok(false)) {
                books.enqueued.push_front((id, copied));
                return;
            }
            drop(books);
            let digests = copied.digests();
            let mut books = self.lock();
            if let Err(error) = &digests {
                log::warn!("event=append-failed history={} version={} error={error}", id.history, id.version);
            }
            books.written(id, digests.ok());
            self.changed(books);
        }
    }
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
    /// Appends a version: fields in device memory, in host memory, or both.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the copy inside the device (see [`Return`]). When the GPU cache has no room: for what has to leave it first. When
    /// neither it nor host memory will have any: for the write to the next tier. At most for `timeouts.room`.
    ///
    /// # Errors
    /// [`HistoryError::Exists`], [`HistoryError::NoRoom`], [`HistoryError::TimedOut`], [`HistoryError::Device`],
    /// [`HistoryError::Store`]; the version is then not in the history.
    pub fn append(&self, version: u64, fields: &[Field<'_>], stream: &dyn Stream) -> Result<(), HistoryError> {
        self.append_and(version, fields, stream, Return::Done)
    }

    /// The same with a say in when it returns.
    ///
    /// # Errors
    /// As [`History::append`]. With [`Return::Enqueued`] an error of the copy itself is heard when the version is restored: it is
    /// unknown then.
    pub fn append_and(
        &self,
        version: u64,
        fields: &[Field<'_>],
        stream: &dyn Stream,
        until: Return,
    ) -> Result<(), HistoryError> {
        let begun = Instant::now();
        let shared = &self.shared;
        let _call = shared.bursts.call(CallKind::Write);
        shared.settle_enqueued(false);
        let lengths = fields.iter().map(|field| (field.name, field.element, field.bytes()));
        let layout = Arc::new(Layout::new(lengths, shared.config.block_bytes));
        let id = EntryId { history: self.id, version };
        self.check_names(version, fields.iter().map(|field| field.name))?;
        let (tier, pieces) = self.admit(id, &layout)?;
        let mut announced = None;
        let written = match tier {
            Tier::Device => self.write_device(id, &layout, fields, &pieces, stream, until, &mut announced),
            Tier::Host => self.write_host(&layout, fields, &pieces, stream).map(|digests| Some((digests, 0.0))),
            Tier::Store => self.write_store(&layout, fields, &pieces, stream).map(|digests| Some((digests, 0.0))),
        };
        let mut books = shared.lock();
        let mut device_seconds = 0.0;
        let outcome = match written {
            Ok(None) => Ok(()),
            Ok(Some((digests, seconds))) => {
                device_seconds = seconds;
                books.written(id, Some(digests));
                Ok(())
            }
            Err(error) => {
                books.written(id, None);
                Err(error)
            }
        };
        let step = Step::new(version, Operation::Append, layout.bytes, tier, device_seconds);
        books.trace.step(step, begun, shared.started);
        shared.changed_for(books, if tier == Tier::Device { &[Link::Down] } else { &Link::ALL });
        drop(announced);
        outcome
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

    /// A place for a new version.
    fn admit(&self, id: EntryId, layout: &Arc<Layout>) -> Result<(Tier, Vec<Piece>), HistoryError> {
        let shared = &self.shared;
        let (name, version) = (|| self.name.clone(), id.version);
        let begun = Instant::now();
        let mut books = shared.lock();
        loop {
            // Histories outlive their caches: then nobody moves anything any more.
            let answer = match shared.is_stopping() {
                true => Admission::Never(Reason::Closed),
                false => books.cache.admit(id, layout.bytes, self.keep, shared.now()),
            };
            let no_room = |reason: &str| {
                let (bytes, reason) = (layout.bytes, reason.to_owned());
                Err(HistoryError::NoRoom { history: name(), version, bytes, reason })
            };
            let place = match answer {
                Admission::Device(pieces) => (Tier::Device, pieces),
                Admission::Host(pieces) => (Tier::Host, pieces),
                Admission::Store(pieces) => (Tier::Store, pieces),
                Admission::Never(Reason::Exists) => {
                    return Err(HistoryError::Exists { history: name(), version });
                }
                Admission::Never(Reason::TooLarge) => return no_room("it is larger than every tier"),
                Admission::Never(Reason::NoRoom) => {
                    return no_room("all tiers hold versions that are still to be restored");
                }
                Admission::Never(Reason::Closed) => return no_room("the history, or its caches, were closed"),
                Admission::Wait { .. } => {
                    if begun.elapsed() >= shared.config.room {
                        books.cache.written(id, false);
                        let seconds = begun.elapsed().as_secs_f64();
                        return Err(HistoryError::TimedOut { history: name(), version, seconds });
                    }
                    books = shared.wait_for_room(books);
                    continue;
                }
            };
            let entry = Entry { layout: layout.clone(), digests: None, complaint: None };
            books.entries.insert(id, entry);
            return Ok(place);
        }
    }

    /// Into the GPU cache. `None`: enqueued only.
    #[allow(clippy::too_many_arguments)]
    fn write_device<'a>(
        &'a self,
        id: EntryId,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
        until: Return,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<Option<(Vec<Digest>, f64)>, HistoryError> {
        let cuts = layout.cuts(pieces);
        let mut runs = Vec::with_capacity(cuts.len());
        for cut in &cuts {
            let target = self.shared.range.span(cut.place, cut.bytes)?;
            match fields[cut.field].data {
                FieldData::Device(span) => {
                    let source = span.part(cut.start, cut.bytes)?;
                    runs.push(layout.run(cut, source, Some(target)));
                }
                FieldData::Host(slice) => {
                    let source = &slice[cut.start as usize..(cut.start + cut.bytes) as usize];
                    stream.upload(&[(source, target.clone())], None)?;
                    runs.push(layout.run(cut, target, None));
                }
            }
        }
        let copied = stream.copy_blocks(runs, layout.block_bytes)?;
        if until == Return::Enqueued {
            self.shared.lock().enqueued.push_back((id, copied));
            return Ok(None);
        }
        *announced = Some(Announced::new(&self.shared, Link::Down));
        let digests = copied.digests()?;
        // What came over the link is what the application has.
        let mut expected = digests.clone();
        for (field, info) in fields.iter().zip(&layout.fields) {
            if let FieldData::Host(slice) = field.data {
                digest_slice(slice, layout.block_bytes, &mut expected[info.blocks(layout.block_bytes)]);
            }
        }
        compare(layout, &expected, &digests, 0..layout.fields.len(), "device")?;
        Ok(Some((digests, copied.seconds()?)))
    }

    /// Straight to host memory.
    fn write_host(
        &self,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
    ) -> Result<Vec<Digest>, HistoryError> {
        for cut in layout.cuts(pieces) {
            let place = Piece { offset: cut.place, bytes: cut.bytes };
            let mut parts = self.shared.lines.lend(place).ok_or_else(lines_gone)?;
            let mut at = cut.start;
            for part in &mut parts {
                get(&fields[cut.field], at, part, stream)?;
                at += part.len() as u64;
            }
        }
        digests_of(layout, fields, stream)
    }

    /// Straight to the file.
    fn write_store(
        &self,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
    ) -> Result<Vec<Digest>, HistoryError> {
        let spill = self.shared.spill.as_ref().ok_or_else(lines_gone)?;
        let mut bounce = PageBuffer::new(BOUNCE_BYTES.min(layout.bytes) as usize);
        for cut in layout.cuts(pieces) {
            for at in (0..cut.bytes).step_by(BOUNCE_BYTES as usize) {
                let bytes = &mut bounce[..BOUNCE_BYTES.min(cut.bytes - at) as usize];
                get(&fields[cut.field], cut.start + at, bytes, stream)?;
                spill.write(bytes, cut.place + at).map_err(|error| self.shared.store_failed(&error))?;
            }
        }
        digests_of(layout, fields, stream)
    }

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

    /// Copies a version back: all fields that `fields` names, which may be some of those appended. Its digests are compared.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For a copy inside the device if the version is in the GPU cache. Otherwise for the transfer from where it is, and for
    /// one that is bringing it already, at most for `timeouts.room`.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`], [`HistoryError::Gone`], [`HistoryError::Lost`], [`HistoryError::Field`],
    /// [`HistoryError::TimedOut`], [`HistoryError::Device`], [`HistoryError::Store`]. The fields then hold nothing of use.
    pub fn restore(&self, version: u64, fields: &mut [FieldMut<'_>], stream: &dyn Stream) -> Result<(), HistoryError> {
        let begun = Instant::now();
        let shared = &self.shared;
        let _call = shared.bursts.call(CallKind::Other);
        shared.settle_enqueued(true);
        let id = EntryId { history: self.id, version };
        let mut books = shared.lock();
        let distance = books.cache.prefetch_distance(self.id);
        // A mistake in the call is no damage: it is found before the version is touched.
        let targets = match books.entries.get(&id) {
            Some(entry) => self.targets(version, &entry.layout, fields)?,
            None => Vec::new(),
        };
        loop {
            let (tier, pieces) = match books.cache.read(id) {
                Read::Device(pieces) => (Tier::Device, pieces),
                Read::Host(pieces) => (Tier::Host, pieces),
                Read::Store(pieces) => (Tier::Store, pieces),
                Read::Wait if begun.elapsed() >= shared.config.room || shared.is_stopping() => {
                    let (history, seconds) = (self.name.clone(), begun.elapsed().as_secs_f64());
                    return Err(HistoryError::TimedOut { history, version, seconds });
                }
                Read::Wait => {
                    books = shared.wait(books);
                    continue;
                }
                answer => return Err(self.not_there(&mut books, id, answer)),
            };
            let known = books.entries.get(&id).and_then(|entry| Some((entry.layout.clone(), entry.digests.clone()?)));
            drop(books);
            let mut announced = None;
            let outcome = match &known {
                Some((layout, digests)) => {
                    self.read_from(tier, layout, digests, &pieces, &targets, fields, stream, &mut announced)
                }
                None => Err(HistoryError::Unknown { history: self.name.clone(), version }),
            };
            books = shared.lock();
            match &outcome {
                Ok(_) => books.cache.read_done(id, tier, true),
                // Only what is wrong with the copy itself is held against it.
                Err(HistoryError::Damaged { .. } | HistoryError::Store { .. }) => {
                    books.cache.read_done(id, tier, false)
                }
                Err(_) => books.cache.read_undone(id, tier),
            }
            match outcome {
                Ok(seconds) => {
                    let bytes = known.map_or(0, |(layout, _)| layout.bytes);
                    let step = Step { distance, ..Step::new(version, Operation::Restore, bytes, tier, seconds) };
                    books.trace.step(step, begun, shared.started);
                    if self.keep == Keep::Discard && books.cache.states(id) == [None; 3] {
                        books.entries.remove(&id);
                    }
                    shared.changed_for(books, if tier == Tier::Device { &[Link::Up] } else { &Link::ALL });
                    drop(announced);
                    return Ok(());
                }
                Err(error @ (HistoryError::Device(_) | HistoryError::Unknown { .. })) => {
                    shared.changed(books);
                    return Err(error);
                }
                Err(error) => {
                    log::warn!("event=copy-given-up history={:?} version={version} error={error}", self.name);
                    if let Some(entry) = books.entries.get_mut(&id) {
                        entry.complaint = Some(error);
                    }
                }
            }
        }
    }

    fn not_there(&self, books: &mut Books, id: EntryId, answer: Read) -> HistoryError {
        let (history, version) = (self.name.clone(), id.version);
        match answer {
            Read::Gone => HistoryError::Gone { history, version },
            Read::Lost => {
                let complaint = books.entries.get(&id).and_then(|entry| entry.complaint.as_ref());
                let reason = complaint.map_or_else(|| "its copy failed".to_owned(), ToString::to_string);
                HistoryError::Lost { history, version, reason }
            }
            _ => HistoryError::Unknown { history, version },
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn read_from<'a>(
        &'a self,
        tier: Tier,
        layout: &Layout,
        digests: &[Digest],
        pieces: &[Piece],
        targets: &[usize],
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<f64, HistoryError> {
        let cuts: Vec<(Cut, usize)> = layout
            .cuts(pieces)
            .into_iter()
            .filter_map(|cut| Some((cut, targets.iter().position(|field| *field == cut.field)?)))
            .collect();
        match tier {
            Tier::Device => self.read_device(layout, digests, &cuts, targets, fields, stream, announced),
            Tier::Host => {
                for (cut, target) in &cuts {
                    let place = Piece { offset: cut.place, bytes: cut.bytes };
                    let views = self.shared.lines.view(place).ok_or_else(lines_gone)?;
                    let mut at = cut.start;
                    for view in views {
                        put(&mut fields[*target], at, &view, stream)?;
                        at += view.len() as u64;
                    }
                }
                check(layout, digests, targets, fields, "memory", stream).map(|()| 0.0)
            }
            Tier::Store => {
                let spill = self.shared.spill.as_ref().ok_or_else(lines_gone)?;
                let mut bounce = PageBuffer::new(BOUNCE_BYTES.min(layout.bytes) as usize);
                for (cut, target) in &cuts {
                    for at in (0..cut.bytes).step_by(BOUNCE_BYTES as usize) {
                        let bytes = &mut bounce[..BOUNCE_BYTES.min(cut.bytes - at) as usize];
                        spill.read(bytes, cut.place + at).map_err(|error| self.shared.store_failed(&error))?;
                        put(&mut fields[*target], cut.start + at, bytes, stream)?;
                    }
                }
                check(layout, digests, targets, fields, "local", stream).map(|()| 0.0)
            }
        }
    }

    /// Which field of the version each field of the caller is.
    fn targets(&self, version: u64, layout: &Layout, fields: &[FieldMut<'_>]) -> Result<Vec<usize>, HistoryError> {
        self.check_names(version, fields.iter().map(|field| field.name))?;
        let mut targets = Vec::with_capacity(fields.len());
        for field in fields {
            let refuse = |reason: String| {
                let (history, field) = (self.name.clone(), field.name.to_owned());
                HistoryError::Field { history, version, field, reason }
            };
            let index = layout.fields.iter().position(|info| info.name == field.name);
            let index = index.ok_or_else(|| refuse("no such field was appended".into()))?;
            let info = &layout.fields[index];
            if info.bytes != field.bytes() {
                return Err(refuse(format!(
                    "{} bytes were appended, and the target has {}",
                    info.bytes,
                    field.bytes()
                )));
            }
            if info.element != field.element {
                return Err(refuse(format!("{} was appended, and the target is {}", info.element, field.element)));
            }
            targets.push(index);
        }
        Ok(targets)
    }

    #[allow(clippy::too_many_arguments)]
    fn read_device<'a>(
        &'a self,
        layout: &Layout,
        digests: &[Digest],
        cuts: &[(Cut, usize)],
        targets: &[usize],
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<f64, HistoryError> {
        let mut runs = Vec::with_capacity(cuts.len());
        for (cut, target) in cuts {
            let source = self.shared.range.span(cut.place, cut.bytes)?;
            let to = match &fields[*target].data {
                FieldDataMut::Device(span) => Some(span.part(cut.start, cut.bytes)?),
                FieldDataMut::Host(_) => None,
            };
            runs.push(layout.run(cut, source, to));
        }
        let copied = stream.copy_blocks(runs, layout.block_bytes)?;
        *announced = Some(Announced::new(&self.shared, Link::Up));
        for (cut, target) in cuts {
            if let FieldDataMut::Host(slice) = &mut fields[*target].data {
                let bytes = &mut slice[cut.start as usize..(cut.start + cut.bytes) as usize];
                stream.download(&mut [(self.shared.range.span(cut.place, cut.bytes)?, bytes)], None)?;
            }
        }
        compare(layout, digests, &copied.digests()?, targets.iter().copied(), "device")?;
        // What came over the link is what lay in the cache.
        let mut found = digests.to_vec();
        for (field, target) in fields.iter().zip(targets) {
            if let FieldDataMut::Host(slice) = &field.data {
                let blocks = layout.fields[*target].blocks(layout.block_bytes);
                digest_slice(slice, layout.block_bytes, &mut found[blocks]);
            }
        }
        compare(layout, digests, &found, targets.iter().copied(), "device")?;
        Ok(copied.seconds()?)
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

    /// Waits until nothing is left to flush.
    ///
    /// # Blocking
    /// For the slowest tier.
    pub fn wait_flushed(&self) {
        let _call = self.shared.bursts.call(CallKind::Other);
        self.shared.settle_enqueued(true);
        let mut books = self.shared.lock();
        while !books.cache.is_flushed() && !self.shared.is_stopping() {
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
        self.shared.settle_enqueued(true);
        let mut books = self.shared.lock();
        books.cache.close(self.id);
        books.entries.retain(|id, _| id.history != self.id);
        self.shared.changed(books);
    }
}

impl Layout {
    /// A cut as a run of a device copy.
    fn run(&self, cut: &Cut, from: DeviceSpan, to: Option<DeviceSpan>) -> Run {
        let info = &self.fields[cut.field];
        Run { from, to, first_block: info.first_block, start: cut.start, region_bytes: info.bytes }
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

/// Digests of fields where they are.
fn digests_of(layout: &Layout, fields: &[Field<'_>], stream: &dyn Stream) -> Result<Vec<Digest>, HistoryError> {
    let mut digests = vec![Digest::default(); layout.blocks as usize];
    let mut runs = Vec::new();
    for (field, info) in fields.iter().zip(&layout.fields) {
        match field.data {
            FieldData::Device(span) => runs.push(Run::whole(span.clone(), None, info.first_block)),
            FieldData::Host(slice) => {
                digest_slice(slice, layout.block_bytes, &mut digests[info.first_block as usize..])
            }
        }
    }
    let found = stream.copy_blocks(runs, layout.block_bytes)?.digests()?;
    for (field, info) in fields.iter().zip(&layout.fields) {
        if matches!(field.data, FieldData::Device(_)) {
            let blocks = info.blocks(layout.block_bytes);
            digests[blocks.clone()].copy_from_slice(&found[blocks]);
        }
    }
    Ok(digests)
}

fn digest_slice(slice: &[u8], block_bytes: u64, digests: &mut [Digest]) {
    let blocks = slice.chunks(block_bytes as usize).zip(digests);
    blocks.for_each(|(block, digest)| *digest = crate::base::digest::digest_bytes(block));
}

/// Gets bytes out of a field of the caller.
fn get(field: &Field<'_>, at: u64, bytes: &mut [u8], stream: &dyn Stream) -> Result<(), HistoryError> {
    match field.data {
        FieldData::Device(span) => stream.download(&mut [(span.part(at, bytes.len() as u64)?, bytes)], None)?,
        FieldData::Host(slice) => bytes.copy_from_slice(&slice[at as usize..at as usize + bytes.len()]),
    }
    Ok(())
}

/// Puts bytes into a field of the caller.
fn put(field: &mut FieldMut<'_>, at: u64, bytes: &[u8], stream: &dyn Stream) -> Result<(), HistoryError> {
    match &mut field.data {
        FieldDataMut::Device(span) => stream.upload(&[(bytes, span.part(at, bytes.len() as u64)?)], None)?,
        FieldDataMut::Host(slice) => slice[at as usize..at as usize + bytes.len()].copy_from_slice(bytes),
    }
    Ok(())
}

/// Checks what the fields of the caller hold now, device fields on the device.
fn check(
    layout: &Layout,
    digests: &[Digest],
    targets: &[usize],
    fields: &[FieldMut<'_>],
    tier: &'static str,
    stream: &dyn Stream,
) -> Result<(), HistoryError> {
    let mut found = vec![Digest::default(); layout.blocks as usize];
    let mut runs = Vec::new();
    for (field, target) in fields.iter().zip(targets) {
        let info = &layout.fields[*target];
        match &field.data {
            FieldDataMut::Device(span) => runs.push(Run::whole((*span).clone(), None, info.first_block)),
            FieldDataMut::Host(slice) => {
                digest_slice(slice, layout.block_bytes, &mut found[info.blocks(layout.block_bytes)]);
            }
        }
    }
    let on_device = stream.copy_blocks(runs, layout.block_bytes)?.digests()?;
    for (field, target) in fields.iter().zip(targets) {
        if matches!(field.data, FieldDataMut::Device(_)) {
            let blocks = layout.fields[*target].blocks(layout.block_bytes);
            found[blocks.clone()].copy_from_slice(&on_device[blocks]);
        }
    }
    compare(layout, digests, &found, targets.iter().copied(), tier)
}

/// Are the digests of these fields those that were made when they were appended?
fn compare(
    layout: &Layout,
    expected: &[Digest],
    found: &[Digest],
    fields: impl Iterator<Item = usize>,
    tier: &'static str,
) -> Result<(), HistoryError> {
    for info in fields.map(|field| &layout.fields[field]) {
        let blocks = info.blocks(layout.block_bytes);
        let pairs = expected[blocks.clone()].iter().zip(&found[blocks]);
        if let Some((block, (expected, found))) = pairs.enumerate().find(|(_, (expected, found))| expected != found) {
            let field = info.name.clone();
            let (expected, found) = (*expected, *found);
            return Err(HistoryError::Damaged { tier, field, block: block as u64, expected, found });
        }
    }
    Ok(())
}

impl FieldInfo {
    /// Its blocks among the version's digests.
    fn blocks(&self, block_bytes: u64) -> std::ops::Range<usize> {
        let first = self.first_block as usize;
        first..first + self.bytes.div_ceil(block_bytes) as usize
    }
}
