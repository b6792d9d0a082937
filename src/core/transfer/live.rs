//! Regions of a capture in live host memory, to which the program continues to write ([`crate::live`]). They are protected when the capture
//! returns, and a separate thread copies them. After that they are treated as in [`super::landing`].
//!
//! A page to which a thread waits to write comes first, and the pages after it next: a writer that goes from one end to the other is
//! overtaken after a few pages, and no longer waits.
#![forbid(unsafe_code)]

use crate::affinity::{cpus, given};
use crate::base::Digest;
use crate::base::digest::store_fence;
use crate::base::log;
use crate::base::sync::{Condition, Lock};
use crate::base::threads::spawn;
use crate::device::{DeviceError, Target, TargetPart};
use crate::live::{Blocks, Habit, LiveMemory, Protected, Watch, WatchError, page_bytes};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes that are copied between two checks for waiting writers.
const RUN: u64 = 256 << 10;
/// How long a thread that waits for the copy sleeps before it looks again.
const PATIENCE: Duration = Duration::from_millis(20);

/// Counters of live host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveStats {
    /// Regions that were copied after the capture had returned.
    pub regions: u64,
    /// Bytes of these regions.
    pub bytes: u64,
    /// Bytes of these regions for which a write of the program waited.
    pub waited_bytes: u64,
    /// Bytes of these regions that a declaration copied.
    pub declared_bytes: u64,
    /// Live regions that were nevertheless copied before the capture returned.
    pub at_once: u64,
    /// How often a capture waited until the live regions of the previous one were copied.
    pub waits: u64,
    /// How long these waits took.
    pub wait_time: Duration,
}

/// What an engine knows of live memory.
pub(super) struct Lives {
    process: u32,
    /// The kernel's watch, which is opened only once.
    watch: OnceLock<Result<Arc<Watch>, WatchError>>,
    habits: Lock<BTreeMap<String, Habit>>,
    /// The copy under way.
    current: Lock<Option<Arc<Copying>>>,
    /// Is a copy under way?
    is_open: AtomicBool,
    /// True from the beginning of the protection until its end.
    is_busy: Lock<bool>,
    changed: Condition,
    stats: Lock<LiveStats>,
}

impl Default for Lives {
    fn default() -> Lives {
        Lives {
            process: std::process::id(),
            watch: OnceLock::new(),
            habits: Lock::default(),
            current: Lock::default(),
            is_open: AtomicBool::new(false),
            is_busy: Lock::default(),
            changed: Condition::new(),
            stats: Lock::default(),
        }
    }
}

/// A region that is being copied.
pub(super) struct LiveRegion {
    name: String,
    memory: LiveMemory,
    /// Where the region begins in the shard, in bytes.
    at: u64,
    /// The region's blocks among those of the shard.
    blocks: Range<usize>,
    /// The number of its first block among all blocks that are copied here.
    first: usize,
    /// `None` if the program declares all writes.
    protected: Option<Protected>,
    /// A lower bound on how often a write waited, with one block for each wait.
    waited: AtomicU64,
}

impl LiveRegion {
    /// A region that begins at byte `at` of its shard. It has these blocks there, the first of which is number `first` of all blocks that
    /// are copied.
    pub fn new(
        name: &str,
        memory: LiveMemory,
        at: u64,
        blocks: Range<usize>,
        first: usize,
        protected: Option<Protected>,
    ) -> LiveRegion {
        LiveRegion { name: name.to_owned(), memory, at, blocks, first, protected, waited: AtomicU64::new(0) }
    }

    /// Does the region overlap these whole pages?
    pub fn meets(&self, pages: &Range<usize>) -> bool {
        let range = self.memory.range();
        range.start < pages.end && pages.start < range.end.next_multiple_of(page_bytes())
    }

    /// The region's blocks among those that are copied here.
    fn own(&self) -> Range<usize> {
        self.first..self.first + self.blocks.len()
    }

    /// The region's blocks that contain some of these addresses, which may lie partly outside it.
    fn touched(&self, addresses: &Range<usize>, block_bytes: usize) -> Range<usize> {
        let range = self.memory.range();
        let (start, end) = (addresses.start.max(range.start), addresses.end.min(range.end));
        if start >= end {
            return self.first..self.first;
        }
        let first = self.first + (start - range.start) / block_bytes;
        first..self.first + (end - range.start).div_ceil(block_bytes)
    }

    /// The addresses of blocks.
    fn addresses(&self, blocks: &Range<usize>, block_bytes: usize) -> Range<usize> {
        let range = self.memory.range();
        let at = |block: usize| (range.start + (block - self.first) * block_bytes).min(range.end);
        at(blocks.start)..at(blocks.end)
    }
}

/// Regions that are protected.
pub(super) struct Watched {
    regions: Vec<LiveRegion>,
    block_bytes: usize,
    busy: Busy,
}

impl Watched {
    /// Regions with blocks of `block_bytes` bytes.
    pub fn new(regions: Vec<LiveRegion>, block_bytes: usize, busy: Busy) -> Watched {
        Watched { regions, block_bytes, busy }
    }

    /// The names of the regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().map(|region| region.name.as_str())
    }
}

/// While this exists, no other capture leaves memory to be copied later.
pub(super) struct Busy(Arc<Lives>);

impl Drop for Busy {
    fn drop(&mut self) {
        let lives = &self.0;
        lives.is_open.store(false, Ordering::Release);
        lives.current.lock().take();
        *lives.is_busy.lock() = false;
        lives.changed.notify_all();
    }
}

/// Blocks, each of which has a place in the target.
struct Copying {
    regions: Vec<LiveRegion>,
    /// The places, one for each region.
    places: Vec<TargetPart>,
    /// The number of the block at which each region ends.
    ends: Vec<usize>,
    block_bytes: usize,
    blocks: Blocks,
}

impl Copying {
    fn new(regions: Vec<LiveRegion>, block_bytes: usize, target: &Arc<Target>) -> Result<Copying, DeviceError> {
        let place = |region: &LiveRegion| target.part(region.at, region.memory.bytes());
        let places = regions.iter().map(place).collect::<Result<_, _>>()?;
        let ends: Vec<usize> = regions.iter().map(|region| region.own().end).collect();
        let blocks = Blocks::new(ends.last().copied().unwrap_or(0));
        Ok(Copying { regions, places, ends, block_bytes, blocks })
    }

    /// Copies blocks of one region that the caller has claimed.
    fn copy(&self, index: usize, blocks: Range<usize>) {
        let region = &self.regions[index];
        let from = region.memory.range().start;
        let copied: Vec<Digest> = blocks
            .clone()
            .map(|block| {
                let bytes = region.addresses(&(block..block + 1), self.block_bytes);
                let bytes = bytes.start - from..bytes.end - from;
                region.memory.copy_to(bytes.clone(), &self.places[index], bytes.start as u64)
            })
            .collect();
        store_fence();
        self.blocks.done(blocks, &copied);
    }

    /// Makes sure that blocks of a region are copied; returns how many of them this call has copied itself.
    fn make_safe(&self, index: usize, blocks: Range<usize>) -> u64 {
        let mut own = 0;
        for block in blocks {
            if self.blocks.claim(block) {
                self.copy(index, block..block + 1);
                own += 1;
            }
            // Another thread is just copying the block, and waits for nobody.
            while !self.blocks.is_safe(block) {
                std::thread::yield_now();
            }
        }
        own
    }

    /// Lets writes to copied blocks pass, if all blocks of the page that is written to are copied.
    fn let_pass(&self, index: usize, blocks: &Range<usize>) -> Result<(), String> {
        let region = &self.regions[index];
        let Some(protected) = &region.protected else { return Ok(()) };
        let (page, own) = (page_bytes(), region.own());
        let bytes = region.addresses(blocks, self.block_bytes);
        let has_before = blocks.start == own.start || self.blocks.is_safe(blocks.start - 1);
        let has_behind = blocks.end == own.end || self.blocks.is_safe(blocks.end);
        let start = if has_before { bytes.start & !(page - 1) } else { bytes.start.next_multiple_of(page) };
        let end = if has_behind { bytes.end.next_multiple_of(page) } else { bytes.end & !(page - 1) };
        if start >= end {
            return Ok(());
        }
        protected.let_pass(&(start..end)).map_err(|errno| errno.to_string())
    }

    /// Lets writes to these blocks pass, or writes to the whole region if the kernel only accepts larger pages.
    fn open_up(&self, index: usize, blocks: &Range<usize>) {
        if self.let_pass(index, blocks).is_err() {
            let own = self.regions[index].own();
            self.make_safe(index, own.clone());
            if let Err(why) = self.let_pass(index, &own) {
                // The protection ends anyway when the other regions are copied.
                log::debug!("event=live-not-passed region={:?} error={why}", self.regions[index].name);
            }
        }
    }

    /// A thread waits to write to a page: copies the page. Returns the block after it, or `None`.
    fn serve(&self, page: usize) -> Option<usize> {
        let page = page..page + page_bytes();
        let mut next = None;
        for (index, region) in self.regions.iter().enumerate() {
            let blocks = region.touched(&page, self.block_bytes);
            if !blocks.is_empty() {
                // Counted even if another thread is just copying the block or has just done so, because the write has waited nevertheless.
                let own = self.make_safe(index, blocks.clone());
                region.waited.fetch_add(own.max(1), Ordering::Relaxed);
                self.open_up(index, &blocks);
                next = Some(blocks.end);
            }
        }
        next
    }

    /// Copies everything.
    fn run(&self, watch: Option<&Watch>) {
        let most = (RUN as usize / self.block_bytes).max(1);
        let mut cursor = 0;
        while self.blocks.left() > 0 {
            if let Some(page) = watch.and_then(Watch::next_fault) {
                cursor = self.serve(page).unwrap_or(cursor);
                continue;
            }
            let run = self.blocks.claim_next(cursor, most, &self.ends);
            if run.is_empty() {
                std::thread::yield_now();
                continue;
            }
            let index = self.ends.partition_point(|end| *end <= run.start);
            cursor = run.end;
            self.copy(index, run.clone());
            // Checked before the run is let pass: otherwise a writer that waits for this run would no longer be noticed.
            let waits = watch.and_then(Watch::next_fault);
            self.open_up(index, &run);
            if let Some(page) = waits {
                cursor = self.serve(page).unwrap_or(cursor);
            }
        }
    }

    /// The program is about to write to these addresses. Returns how many bytes this call has copied.
    fn before(&self, addresses: &Range<usize>) -> u64 {
        let mut copied = 0;
        for (index, region) in self.regions.iter().enumerate() {
            let blocks = region.touched(addresses, self.block_bytes);
            if !blocks.is_empty() {
                copied += self.make_safe(index, blocks.clone()) * self.block_bytes as u64;
                // If this fails, the write is stopped and let pass at that time.
                let _ = self.let_pass(index, &blocks);
            }
        }
        copied
    }
}

/// The result of a copy that follows a capture: the blocks of each region, and their digests.
pub(super) type Copied = Vec<(Range<usize>, Vec<Digest>)>;

/// The data that the thread receives.
struct Work<L> {
    copying: Arc<Copying>,
    busy: Busy,
    watch: Option<Arc<Watch>>,
    target: Arc<Target>,
    land: L,
}

impl<L: FnOnce(Result<(Arc<Target>, Copied), String>)> Work<L> {
    fn run(self) {
        let Work { copying, busy, watch, target, land } = self;
        copying.run(watch.as_deref());
        let lives = busy.0.clone();
        lives.is_open.store(false, Ordering::Release);
        lives.current.lock().take();
        // Calls that have already found this copy end soon.
        let mut shared = copying;
        let copying = loop {
            match Arc::try_unwrap(shared) {
                Ok(copying) => break copying,
                Err(still) => shared = still,
            }
            std::thread::yield_now();
        };
        let Copying { regions, places, blocks, .. } = copying;
        drop(places);
        let digests = blocks.digests();
        let copied = regions.iter().map(|region| (region.blocks.clone(), digests[region.own()].to_vec())).collect();
        let counts: Vec<Count> = regions.iter().map(Count::of).collect();
        // The protection is removed before anything of the program is called, such as its logger, and before anybody hears that it has been
        // removed.
        drop(regions);
        lives.count(&counts);
        let overtaken: Vec<&Count> = counts.iter().filter(|count| lives.has_overtaken(count)).collect();
        drop(busy);
        for Count { name, waited, blocks, .. } in overtaken {
            log::info!(
                "event=live-overtaken region={name:?} waited={waited} blocks={blocks}: the program writes there faster than it is copied, so the \
                 next captures copy it at once"
            );
        }
        land(Ok((target, copied)));
    }
}

impl Lives {
    /// Waits for the copy that follows the previous capture, if there is one.
    pub fn wait_for_turn(&self) {
        let waited = self.settle();
        if !waited.is_zero() {
            let mut stats = self.stats.lock();
            stats.waits += 1;
            stats.wait_time += waited;
        }
    }

    /// From now on, something is protected. The previous protection has ended.
    pub fn begin(self: &Arc<Self>) -> Busy {
        *self.is_busy.lock() = true;
        Busy(self.clone())
    }

    /// Has a thread copy what was protected into its shard, and then call `land`.
    pub fn copy(
        self: &Arc<Self>,
        watched: Watched,
        target: Arc<Target>,
        land: impl FnOnce(Result<(Arc<Target>, Copied), String>) + Send + 'static,
    ) {
        let Watched { regions, block_bytes, busy } = watched;
        let copying = match Copying::new(regions, block_bytes, &target) {
            Ok(copying) => Arc::new(copying),
            Err(error) => {
                drop(busy);
                return land(Err(error.to_string()));
            }
        };
        self.is_open.store(true, Ordering::Release);
        *self.current.lock() = Some(copying.clone());
        // Parts of pages that are shared with other memory are not protected.
        for (index, region) in copying.regions.iter().enumerate().filter(|(_, region)| region.protected.is_some()) {
            let (range, page) = (region.memory.range(), page_bytes());
            let edges = [range.start..range.start.next_multiple_of(page), range.end & !(page - 1)..range.end];
            edges.iter().for_each(|edge| _ = copying.make_safe(index, region.touched(edge, block_bytes)));
        }
        let watch = self.watch.get().and_then(|watch| watch.as_ref().ok()).cloned();
        let near = given::for_background("");
        let work = Work { copying, busy, watch, target, land };
        let shared = Arc::new(Lock::new(Some(work)));
        let there = shared.clone();
        let spawned = spawn("bvk-live".into(), move || {
            cpus::run_on(&near);
            let work = there.lock().take();
            work.into_iter().for_each(Work::run);
        });
        if let Err(error) = spawned {
            log::warn!("event=no-thread name=bvk-live error={error}: the program waits for the copy");
            let work = shared.lock().take();
            work.into_iter().for_each(Work::run);
        }
    }

    /// The program is about to write to these addresses.
    pub fn before(&self, addresses: &Range<usize>) {
        if !self.is_open.load(Ordering::Acquire) || self.process != std::process::id() {
            return;
        }
        let current = self.current.lock().clone();
        if let Some(copying) = current {
            let copied = copying.before(addresses);
            drop(copying);
            self.stats.lock().declared_bytes += copied;
        }
    }

    /// Waits until no checkpoint needs live host memory any more; returns how long that took. A forked child has no thread to wait for.
    pub fn settle(&self) -> Duration {
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        let mut is_busy = self.is_busy.lock();
        while *is_busy && self.process == std::process::id() {
            is_busy = self.changed.wait_timeout(is_busy, PATIENCE);
            waited = begun.elapsed();
        }
        waited
    }

    /// Counters.
    pub fn stats(&self) -> LiveStats {
        self.stats.lock().clone()
    }

    /// Counts regions that were copied at once.
    pub fn count_at_once(&self, regions: u64) {
        self.stats.lock().at_once += regions;
    }

    /// Is it worthwhile to protect the region of that name this time?
    pub fn is_worth_it(&self, name: &str) -> bool {
        self.habits.lock().entry(name.to_owned()).or_default().on_capture()
    }

    /// The kernel's watch, or the reason why there is none.
    pub fn watch(&self) -> Result<Arc<Watch>, WatchError> {
        self.watch.get_or_init(|| Watch::open().map(Arc::new)).clone()
    }

    fn count(&self, counts: &[Count]) {
        let mut stats = self.stats.lock();
        for Count { bytes, waited, blocks, .. } in counts {
            stats.regions += 1;
            stats.bytes += bytes;
            stats.waited_bytes += (waited * bytes / blocks.max(&1)).min(*bytes);
        }
    }

    /// Was the program faster than the copy? If so, the next captures copy that region at once.
    fn has_overtaken(&self, Count { name, waited, blocks, .. }: &Count) -> bool {
        self.habits.lock().entry(name.clone()).or_default().on_copied(*waited, *blocks)
    }
}

/// The outcome of a region's copy.
struct Count {
    name: String,
    bytes: u64,
    waited: u64,
    blocks: u64,
}

impl Count {
    fn of(region: &LiveRegion) -> Count {
        let (bytes, blocks) = (region.memory.bytes(), region.blocks.len() as u64);
        Count { name: region.name.clone(), bytes, waited: region.waited.load(Ordering::Relaxed), blocks }
    }
}
