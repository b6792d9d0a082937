//! Storage that fails, slows down or counts, around any other storage.
//!
//! There is one wrapper, [`Watched`], which passes every call on and tells an [`Observer`] before and after it. The three
//! observers give the three kinds of storage that tests and measurements need:
//!
//! - [`Faults`] (storage [`Faulty`]): chosen calls fail with a chosen error number, or random calls, chosen by a seed;
//! - [`Throttle`] (storage [`Throttled`]): limits bytes per second by waiting on a [`Clock`], so that simulated time works as well;
//! - [`Counts`] (storage [`Counted`]): counts calls of each kind, and bytes read and written.
//!
//! The observer is shared (`Arc`): a test keeps one end and changes faults or reads counts while the storage is in use. One observer
//! may watch several storages; a throttle then acts as their common link. Wrappers can be stacked, and `Arc<dyn Storage>` is a
//! storage itself. The composite operations `read_all` and `write_all` appear as the calls of which they consist.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::ours::Trust;
use super::storage::{Create, Entry, FileLock, ReadFile, Stat, Storage, WriteFile};
use crate::base::Clock;
use crate::base::rng::Rng;
use crate::base::sync::{Guard, Lock};

/// A call of [`Storage`], [`WriteFile`] or [`ReadFile`].
#[allow(missing_docs)] // Each is named after its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    CreateDirAll,
    OpenWrite,
    Reserve,
    WriteAt,
    Sync,
    OpenRead,
    Len,
    ReadAt,
    Rename,
    SyncDir,
    RemoveFile,
    RemoveDir,
    List,
    Touch,
    Stat,
    TryLock,
    IsLocked,
}

/// The number of kinds of calls.
const CALL_KINDS: usize = Call::IsLocked as usize + 1;

/// Sees every call of a [`Watched`] storage.
pub trait Observer: Send + Sync {
    /// Called before a call on `path` (the first path if there are two; for files, the path at which they were opened) that is
    /// about to move `bytes` bytes. The observer may wait. If it returns an error, the call fails with that error; a write then
    /// leaves its first half behind, as a failing device might.
    fn before(&self, call: Call, path: &Path, bytes: u64) -> io::Result<()>;

    /// Called after a call that succeeded.
    fn after(&self, _call: Call, _path: &Path, _bytes: u64) {}
}

/// A storage that tells an observer about each call.
pub struct Watched<S, O> {
    inner: S,
    observer: Arc<O>,
}

/// A storage with injected errors.
pub type Faulty<S> = Watched<S, Faults>;
/// A storage of limited bandwidth.
pub type Throttled<S> = Watched<S, Throttle>;
/// A storage that counts.
pub type Counted<S> = Watched<S, Counts>;

impl<S: Storage, O: Observer + 'static> Watched<S, O> {
    /// Puts `observer` in front of `inner`.
    pub fn new(inner: S, observer: Arc<O>) -> Self {
        Watched { inner, observer }
    }

    fn call<T>(&self, call: Call, path: &Path, run: impl FnOnce(&S) -> io::Result<T>) -> io::Result<T> {
        watch(&*self.observer, call, path, 0, || run(&self.inner))
    }

    fn file<F>(&self, inner: F, path: &Path) -> Box<WatchedFile<F, O>> {
        Box::new(WatchedFile { inner, path: path.to_owned(), observer: Arc::clone(&self.observer) })
    }
}

fn watch<T>(
    observer: &impl Observer,
    call: Call,
    path: &Path,
    bytes: u64,
    run: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    observer.before(call, path, bytes)?;
    let result = run()?;
    observer.after(call, path, bytes);
    Ok(result)
}

impl<S: Storage, O: Observer + 'static> Storage for Watched<S, O> {
    fn hold(&self, root: &Path, trust: Trust) -> io::Result<()> {
        self.inner.hold(root, trust)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(Call::CreateDirAll, path, |inner| inner.create_dir_all(path))
    }

    fn open_write(&self, path: &Path, create: Create) -> io::Result<Box<dyn WriteFile>> {
        let file = self.call(Call::OpenWrite, path, |inner| inner.open_write(path, create))?;
        Ok(self.file(file, path))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let file = self.call(Call::OpenRead, path, |inner| inner.open_read(path))?;
        Ok(self.file(file, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Call::Rename, from, |inner| inner.rename(from, to))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Call::SyncDir, path, |inner| inner.sync_dir(path))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(Call::RemoveFile, path, |inner| inner.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Call::RemoveDir, path, |inner| inner.remove_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.call(Call::List, path, |inner| inner.list(path))
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        self.call(Call::Touch, path, |inner| inner.touch(path))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.call(Call::Stat, path, |inner| inner.stat(path))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.call(Call::TryLock, path, |inner| inner.try_lock(path))
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.call(Call::IsLocked, path, |inner| inner.is_locked(path))
    }
}

struct WatchedFile<F, O> {
    inner: F,
    path: PathBuf,
    observer: Arc<O>,
}

impl<O: Observer> WriteFile for WatchedFile<Box<dyn WriteFile>, O> {
    fn reserve(&self, length: u64) -> io::Result<()> {
        watch(&*self.observer, Call::Reserve, &self.path, 0, || self.inner.reserve(length))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let moved = bytes.len() as u64;
        if let Err(error) = self.observer.before(Call::WriteAt, &self.path, moved) {
            // Whether this half arrives does not matter: the caller is told of a failure in either case.
            let _ = self.inner.write_at(offset, &bytes[..bytes.len() / 2]);
            return Err(error);
        }
        self.inner.write_at(offset, bytes)?;
        self.observer.after(Call::WriteAt, &self.path, moved);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        watch(&*self.observer, Call::Sync, &self.path, 0, || self.inner.sync())
    }
}

impl<O: Observer> ReadFile for WatchedFile<Box<dyn ReadFile>, O> {
    fn len(&self) -> io::Result<u64> {
        watch(&*self.observer, Call::Len, &self.path, 0, || self.inner.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let moved = buffer.len() as u64;
        watch(&*self.observer, Call::ReadAt, &self.path, moved, || self.inner.read_at(offset, buffer))
    }

    fn holds(&self, range: std::ops::Range<u64>) -> bool {
        self.inner.holds(range)
    }
}

/// One chosen fault.
struct Rule {
    /// `None` matches any call.
    call: Option<Call>,
    top: PathBuf,
    /// Matching calls that still pass.
    passes: u64,
    /// Matching calls that fail after that; then the rule ends.
    failures: u64,
    errno: i32,
}

struct Chance {
    rng: Rng,
    numerator: u64,
    denominator: u64,
    errno: i32,
}

#[derive(Default)]
struct Plan {
    rules: Vec<Rule>,
    chance: Option<Chance>,
    injected: u64,
}

/// Which calls fail, and how.
#[derive(Default)]
pub struct Faults(Lock<Plan>);

impl Faults {
    /// The plan may be used after a test's panic, because each change is a single assignment.
    fn plan(&self) -> Guard<'_, Plan> {
        self.0.lock()
    }

    /// Makes the `nth` of the coming calls of a kind (`None`: of any kind) at or below `top` fail once with `errno`. Counts from
    /// 1; 0 also means the first.
    pub fn fail_nth(&self, call: impl Into<Option<Call>>, top: &Path, nth: u64, errno: i32) {
        let (call, top, passes) = (call.into(), top.to_owned(), nth.saturating_sub(1));
        self.plan().rules.push(Rule { call, top, passes, failures: 1, errno });
    }

    /// Makes all later calls of a kind (`None`: of any kind) at or below `top` fail with `errno`, until [`Faults::clear`].
    pub fn fail_all(&self, call: impl Into<Option<Call>>, top: &Path, errno: i32) {
        self.plan().rules.push(Rule { call: call.into(), top: top.to_owned(), passes: 0, failures: u64::MAX, errno });
    }

    /// Makes each call fail with a probability of `numerator` in `denominator`. The same seed makes the same calls fail.
    pub fn fail_randomly(&self, seed: u64, numerator: u64, denominator: u64, errno: i32) {
        self.plan().chance = Some(Chance { rng: Rng::new(seed), numerator, denominator, errno });
    }

    /// Ends all faults.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.rules.clear();
        plan.chance = None;
    }

    /// How many calls have failed because of these faults.
    pub fn injected(&self) -> u64 {
        self.plan().injected
    }
}

impl Rule {
    /// Counts a call, and says whether it must fail.
    fn hits(&mut self, call: Call, path: &Path) -> bool {
        if self.call.is_some_and(|wanted| wanted != call) || !path.starts_with(&self.top) {
            return false;
        }
        if self.passes > 0 {
            self.passes -= 1;
            return false;
        }
        let hits = self.failures > 0;
        self.failures = self.failures.saturating_sub(1);
        hits
    }
}

impl Observer for Faults {
    fn before(&self, call: Call, path: &Path, _bytes: u64) -> io::Result<()> {
        let mut plan = self.plan();
        // Every rule counts every call, regardless of which rule makes it fail.
        let mut errno = None;
        for rule in &mut plan.rules {
            if rule.hits(call, path) {
                errno = errno.or(Some(rule.errno));
            }
        }
        if let Some(chance) = &mut plan.chance
            && chance.rng.chance(chance.numerator, chance.denominator)
        {
            errno = errno.or(Some(chance.errno));
        }
        match errno {
            Some(errno) => {
                plan.injected += 1;
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(()),
        }
    }
}

/// A device that moves this many bytes per second, reading and writing independently.
pub struct Throttle {
    clock: Arc<dyn Clock>,
    read: Lane,
    write: Lane,
}

struct Lane {
    bytes_per_second: Option<u64>,
    /// When the device has finished everything that it was given so far.
    busy_until: Lock<Duration>,
}

impl Lane {
    fn new(bytes_per_second: Option<u64>) -> Self {
        Lane { bytes_per_second: bytes_per_second.map(|rate| rate.max(1)), busy_until: Lock::default() }
    }

    /// Queues a transfer and waits for its end, without holding the lock.
    fn transfer(&self, clock: &dyn Clock, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let now = clock.now();
        let done = {
            let mut busy_until = self.busy_until.lock();
            *busy_until = now.max(*busy_until).saturating_add(takes);
            *busy_until
        };
        clock.sleep(done.saturating_sub(now));
    }
}

impl Throttle {
    /// Rates in bytes per second; `None` means unlimited, and a rate of zero counts as one.
    pub fn new(clock: Arc<dyn Clock>, read_rate: Option<u64>, write_rate: Option<u64>) -> Self {
        Throttle { clock, read: Lane::new(read_rate), write: Lane::new(write_rate) }
    }
}

impl Observer for Throttle {
    /// # Blocking
    /// Waits until the device would have moved these bytes and everything that it was given before.
    fn before(&self, call: Call, _path: &Path, bytes: u64) -> io::Result<()> {
        match call {
            Call::ReadAt => self.read.transfer(&*self.clock, bytes),
            Call::WriteAt => self.write.transfer(&*self.clock, bytes),
            _ => {}
        }
        Ok(())
    }
}

/// Counters of all calls that succeeded.
#[derive(Default)]
pub struct Counts {
    calls: [AtomicU64; CALL_KINDS],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Counts {
    /// Calls of one kind that succeeded.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(Ordering::Relaxed)
    }

    /// Calls of all kinds that succeeded.
    pub fn calls_total(&self) -> u64 {
        self.calls.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
    }

    /// Bytes that successful calls read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes that successful calls wrote.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }
}

impl Observer for Counts {
    fn before(&self, _call: Call, _path: &Path, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn after(&self, call: Call, _path: &Path, bytes: u64) {
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
        match call {
            Call::ReadAt => self.bytes_read.fetch_add(bytes, Ordering::Relaxed),
            Call::WriteAt => self.bytes_written.fetch_add(bytes, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// A shared storage is a storage, so wrappers can be put around it while others continue to use it directly.
impl<S: Storage + ?Sized> Storage for Arc<S> {
    fn hold(&self, root: &Path, trust: Trust) -> io::Result<()> {
        (**self).hold(root, trust)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        (**self).create_dir_all(path)
    }

    fn open_write(&self, path: &Path, create: Create) -> io::Result<Box<dyn WriteFile>> {
        (**self).open_write(path, create)
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        (**self).open_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (**self).rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        (**self).sync_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        (**self).remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        (**self).remove_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        (**self).list(path)
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        (**self).touch(path)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        (**self).stat(path)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        (**self).try_lock(path)
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        (**self).is_locked(path)
    }
}
