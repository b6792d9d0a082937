//! A file system in memory that forgets like a real one: for the simulation and for crash tests.
//!
//! [`Simulated`] is a [`Storage`]. Its promises about durability are the least that a real file system promises:
//!
//! - Bytes written to a file, and its length, are durable once the file has been synced. Before that, a power cut keeps,
//!   loses or tears every 512-byte or 4-KiB sector of every write independently, and the length ends up anywhere between
//!   the old and the new one.
//! - Names (made, renamed, removed; files and directories) are durable once their directory has been synced. Before
//!   that, a power cut keeps the changes of each directory only up to some point, independently of other directories
//!   and of the files' bytes. So a durable name may refer to a file whose bytes were lost. A rename is one change: it
//!   happens entirely or not at all.
//! - Syncing a file does not make its name durable, and syncing a directory does not make the bytes of its files durable.
//!
//! Everything else serves tests:
//!
//! - **Steps.** Each change of the disk (making, writing, reserving, syncing, renaming, removing, touching) is one step, if it
//!   succeeds. [`Simulated::steps`] counts them, and [`Simulated::freeze_after`] stops all processes at a chosen step. So a test
//!   can count the steps of a run and then repeat the run, frozen at each step in turn.
//! - **Processes.** [`Simulated::process`] gives a value whose calls and locks belong to one simulated process on the same disk;
//!   [`Simulated::kill`] ends that process alone.
//! - **Damage and faults** for a directory and everything below it: [`Fault`], capacity, flipped bits, replaced bytes, cut and lost files.
//!   So one simulated disk can hold `/local-0`, `/local-1` and `/global`, and each can fail on its own.
//!
//! All clones share one disk with one mutex; a call never blocks on anything else. Paths start at the root, whether they
//! are absolute or not, and `..` is refused. Renames must not leave their directory (`EXDEV`). All random choices depend
//! only on the seed and the calls, so a failure can be repeated with its seed.
#![forbid(unsafe_code)]

mod disk;
mod handles;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use thiserror::Error;

use self::disk::{Disk, InodeId, LockId};
use self::handles::{SimulatedFile, SimulatedLock};
use super::storage::{Create, Entry, FileLock, ReadFile, Stat, Storage, WriteFile};
use crate::base::Clock;
use crate::base::rng::Rng;
use crate::base::sync::{Guard, Lock};

/// The simulated time starts on 2020-01-01, so that simulated times are recognised in a log and never mistaken for missing ones.
const FIRST_DAY: Duration = Duration::from_secs(1_577_836_800);

/// Why a call failed that would not have failed on a real file system. It is found inside the `io::Error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Interruption {
    /// The process no longer runs, because of [`Simulated::freeze_after`] or [`Simulated::kill`].
    #[error("the simulated process was stopped here")]
    Stopped,
    /// The handle was opened before a power cut.
    #[error("the simulated machine lost power after this file was opened")]
    PowerCut,
}

impl Interruption {
    /// The interruption that caused an error, if one did.
    pub fn of(error: &io::Error) -> Option<Interruption> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<Interruption> for io::Error {
    fn from(interruption: Interruption) -> Self {
        io::Error::other(interruption)
    }
}

/// What can be wrong with a directory and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every call fails with `EIO`.
    Dead,
    /// Every change fails with `EROFS`.
    ReadOnly,
    /// Everything that needs room fails with `ENOSPC`.
    Full,
    /// Every call fails with `EACCES`.
    Denied,
    /// Locks are not supported.
    NoLocks,
    /// Room cannot be reserved; `reserve` does nothing and succeeds.
    NoReserve,
}

/// What a call is about to do, insofar as faults depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Look,
    /// It changes the disk without needing room.
    Change,
    /// It needs room.
    Grow,
}

/// The names that make up a path, beginning at the root.
type Parts = Vec<String>;

struct State {
    disk: Disk,
    steps: u64,
    /// All processes stop when this many steps have been made.
    stop_at: Option<u64>,
    killed: BTreeSet<u64>,
    faults: Vec<(Parts, Fault)>,
    capacities: BTreeMap<Parts, u64>,
    bytes_read: BTreeMap<Parts, u64>,
    bytes_written: BTreeMap<Parts, u64>,
    clock: Option<Arc<dyn Clock>>,
    ticks: u64,
    epoch: u64,
    last_lock: LockId,
}

/// A simulated file system; clones share the disk.
#[derive(Clone)]
pub struct Simulated {
    state: Arc<Lock<State>>,
    process: u64,
}

/// A copy of everything on a simulated disk, with what is durable and what is not.
#[derive(Clone)]
pub struct Snapshot(Disk);

fn parts(path: &Path) -> io::Result<Parts> {
    let mut parts = Parts::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => parts.push(name.to_str().ok_or(Errno::INVAL)?.to_owned()),
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL.into()),
        }
    }
    Ok(parts)
}

fn path_of(parts: &[String]) -> PathBuf {
    std::iter::once("/").chain(parts.iter().map(String::as_str)).collect()
}

/// Sums a counter over everything at and below a path.
fn sum_below(counts: &BTreeMap<Parts, u64>, top: &[String]) -> u64 {
    counts.iter().filter(|(path, _)| path.starts_with(top)).map(|(_, count)| count).sum()
}

impl State {
    /// The clock's time, or, without a clock, a time that never repeats.
    fn now(&mut self) -> SystemTime {
        self.ticks += 1;
        let since = match &self.clock {
            Some(clock) => clock.now(),
            None => Duration::from_millis(self.ticks),
        };
        SystemTime::UNIX_EPOCH + FIRST_DAY + since
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    fn has_fault(&self, path: &[String], fault: Fault) -> bool {
        self.faults.iter().any(|(top, found)| *found == fault && path.starts_with(top))
    }

    fn check_faults(&self, path: &[String], intent: Intent) -> io::Result<()> {
        let table = [
            (Fault::Dead, true, Errno::IO),
            (Fault::Denied, true, Errno::ACCESS),
            (Fault::ReadOnly, intent != Intent::Look, Errno::ROFS),
            (Fault::Full, intent == Intent::Grow, Errno::NOSPC),
        ];
        match table.into_iter().find(|(fault, hit, _)| *hit && self.has_fault(path, *fault)) {
            Some((_, _, errno)) => Err(errno.into()),
            None => Ok(()),
        }
    }

    /// Checks that every capacity that applies to `path` has room for `growth` more bytes.
    fn check_room(&mut self, path: &[String], growth: u64) -> io::Result<()> {
        if growth == 0 {
            return Ok(());
        }
        self.check_faults(path, Intent::Grow)?;
        for (top, capacity) in self.capacities.iter().filter(|(top, _)| path.starts_with(top)) {
            let found = self.disk.find(top).map(|inode| self.disk.tree(inode, top)).unwrap_or_default();
            let used: u64 = found.iter().filter_map(|(_, length)| *length).sum();
            if used + growth > *capacity {
                return Err(Errno::NOSPC.into());
            }
        }
        Ok(())
    }
}

impl Default for Simulated {
    fn default() -> Self {
        Simulated::new()
    }
}

impl Simulated {
    /// An empty disk whose modification times come from a counter: later changes always have later times.
    pub fn new() -> Self {
        Self::build(None)
    }

    /// An empty disk whose modification times follow a clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::build(Some(clock))
    }

    fn build(clock: Option<Arc<dyn Clock>>) -> Self {
        let state = State {
            disk: Disk::new(SystemTime::UNIX_EPOCH + FIRST_DAY),
            steps: 0,
            stop_at: None,
            killed: BTreeSet::new(),
            faults: Vec::new(),
            capacities: BTreeMap::new(),
            bytes_read: BTreeMap::new(),
            bytes_written: BTreeMap::new(),
            clock,
            ticks: 0,
            epoch: 0,
            last_lock: 0,
        };
        Simulated { state: Arc::new(Lock::new(state)), process: 0 }
    }

    /// A test that panics within a call may leave half a change, but other tests do not share its disk.
    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Starts a call on `path`: the process must be running, and no fault may be in the way.
    fn enter(&self, path: &[String], intent: Intent) -> io::Result<Guard<'_, State>> {
        let state = self.lock();
        if state.killed.contains(&self.process) || state.stop_at.is_some_and(|stop| state.steps >= stop) {
            return Err(Interruption::Stopped.into());
        }
        state.check_faults(path, intent)?;
        Ok(state)
    }

    /// This disk as another process sees it. That process has its own locks, and [`Simulated::kill`] can end it alone. The
    /// value that [`Simulated::new`] returns is process 0.
    pub fn process(&self, number: u64) -> Simulated {
        Simulated { state: Arc::clone(&self.state), process: number }
    }

    /// Ends one process: its calls fail with [`Interruption::Stopped`], and its locks are released. What it wrote stays as it is.
    pub fn kill(&self, process: u64) {
        let mut state = self.lock();
        state.killed.insert(process);
        state.disk.drop_locks(|holder| holder == process);
    }

    /// Lets killed processes run again, as a relaunch with the same numbers would.
    pub fn revive_all(&self) {
        self.lock().killed.clear();
    }

    /// Releases all locks, as when all processes have died; guards that still exist hold nothing.
    pub fn drop_locks(&self) {
        self.lock().disk.drop_locks(|_| true);
    }

    /// Steps made since the disk was made.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Stops all processes when `steps` more steps have been made: every later call fails with
    /// [`Interruption::Stopped`]. Zero stops them at once.
    pub fn freeze_after(&self, steps: u64) {
        let mut state = self.lock();
        state.stop_at = Some(state.steps.saturating_add(steps));
    }

    /// Ends the freeze.
    pub fn thaw(&self) {
        self.lock().stop_at = None;
    }

    /// Cuts the power: random parts of what is not durable are lost, everything left is durable, older handles are dead, and
    /// all locks are released.
    pub fn power_cut(&self, rng: &mut Rng) {
        let mut state = self.lock();
        let epoch = state.next_epoch();
        if let Ok(root) = state.disk.find(&[]) {
            state.disk.cut(root, epoch, rng);
        }
    }

    /// Cuts the power of one directory and everything below it, for example of one node's storage.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    pub fn power_cut_below(&self, top: &Path, rng: &mut Rng) -> io::Result<()> {
        let mut state = self.lock();
        let top = state.disk.find(&parts(top)?)?;
        let epoch = state.next_epoch();
        state.disk.cut(top, epoch, rng);
        Ok(())
    }

    /// Copies the disk. The copy does not include steps, faults, capacities or counters.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.lock().disk.clone())
    }

    /// Restores a copy. Handles and locks from before are dead.
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.lock();
        let epoch = state.next_epoch();
        state.disk = snapshot.0.clone();
        state.disk.renew_all(epoch);
    }

    /// Injects a fault into a directory and everything below it, now or when the directory is made. Several faults may
    /// exist at the same time.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is not valid.
    pub fn inject(&self, top: &Path, fault: Fault) -> io::Result<()> {
        self.lock().faults.push((parts(top)?, fault));
        Ok(())
    }

    /// Ends the faults that were injected for exactly this path.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is not valid.
    pub fn heal(&self, top: &Path) -> io::Result<()> {
        let top = parts(top)?;
        self.lock().faults.retain(|(found, _)| *found != top);
        Ok(())
    }

    /// Limits the bytes of all files at and below `top` together; `None` removes the limit. Writes that do not fit fail with `ENOSPC`.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is not valid.
    pub fn set_capacity(&self, top: &Path, bytes: Option<u64>) -> io::Result<()> {
        let top = parts(top)?;
        let capacities = &mut self.lock().capacities;
        match bytes {
            Some(bytes) => capacities.insert(top, bytes),
            None => capacities.remove(&top),
        };
        Ok(())
    }

    /// Flips one bit of a file. The result counts as durable.
    ///
    /// # Errors
    /// `NotFound`, or `InvalidInput` if the file is shorter.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.disk.find(&parts(path)?)?;
        if bit / 8 >= state.disk.length(inode)? {
            return Err(Errno::INVAL.into());
        }
        state.disk.damage(inode, |bytes| bytes[(bit / 8) as usize] ^= 1 << (bit % 8))
    }

    /// Puts other bytes into a file, as a lost write (zeros) or a misdirected write does. The result counts as durable.
    ///
    /// # Errors
    /// `NotFound`, or `InvalidInput` if the file is shorter.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.disk.find(&parts(path)?)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::INVAL)?;
        if end > state.disk.length(inode)? {
            return Err(Errno::INVAL.into());
        }
        state.disk.damage(inode, |contents| contents[offset as usize..end as usize].copy_from_slice(bytes))
    }

    /// Shortens a file to `length`. The result counts as durable.
    ///
    /// # Errors
    /// `NotFound`, or `InvalidInput` if the file is shorter.
    pub fn truncate(&self, path: &Path, length: u64) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.disk.find(&parts(path)?)?;
        if length > state.disk.length(inode)? {
            return Err(Errno::INVAL.into());
        }
        state.disk.damage(inode, |bytes| bytes.truncate(length as usize))
    }

    /// Takes a file, or a directory with everything in it, off the disk, durably and without a step.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` for the root.
    pub fn lose(&self, path: &Path) -> io::Result<()> {
        self.lock().disk.lose(&parts(path)?)
    }

    /// Sets a modification time, for tests about ages.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_modified(&self, path: &Path, time: SystemTime) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.disk.find(&parts(path)?)?;
        state.disk.inode(inode)?.modified = time;
        Ok(())
    }

    fn tree_below(&self, top: &Path) -> Vec<(Parts, Option<u64>)> {
        let mut state = self.lock();
        let found = parts(top).and_then(|top| Ok((state.disk.find(&top)?, top)));
        found.map(|(inode, top)| state.disk.tree(inode, &top)).unwrap_or_default()
    }

    /// All files at and below `top`, with their lengths, in the order of their paths. Empty if there are none.
    pub fn files(&self, top: &Path) -> Vec<(PathBuf, u64)> {
        let found = self.tree_below(top).into_iter();
        found.filter_map(|(path, length)| Some((path_of(&path), length?))).collect()
    }

    /// All directories and files as text, one per line, for messages of failed tests.
    pub fn tree(&self) -> String {
        let line = |(path, length): (Parts, Option<u64>)| match length {
            Some(length) => format!("{} {length} B", path_of(&path).display()),
            None => format!("{}", path_of(&path).join("").display()),
        };
        self.tree_below(Path::new("/")).into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Bytes read so far from files at and below `top`, by the names under which they were opened.
    pub fn bytes_read(&self, top: &Path) -> u64 {
        parts(top).map_or(0, |top| sum_below(&self.lock().bytes_read, &top))
    }

    /// Bytes written so far to files at and below `top`, by the names under which they were opened.
    pub fn bytes_written(&self, top: &Path) -> u64 {
        parts(top).map_or(0, |top| sum_below(&self.lock().bytes_written, &top))
    }

    /// Makes one directory, if it is missing, and makes its name durable, in up to two steps.
    fn make_directory(&self, path: &[String]) -> io::Result<()> {
        {
            let mut state = self.enter(path, Intent::Look)?;
            match state.disk.find(path) {
                Ok(inode) if state.disk.is_directory(inode)? => {}
                Ok(_) => return Err(Errno::NOTDIR.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    state.check_faults(path, Intent::Grow)?;
                    let (epoch, now) = (state.epoch, state.now());
                    state.disk.add_directory(path, epoch, now)?;
                    state.steps += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let parent = &path[..path.len() - 1];
        let mut state = self.enter(path, Intent::Look)?;
        let inode = state.disk.find(parent)?;
        if state.disk.has_unsynced_names(inode)? {
            state.check_faults(path, Intent::Change)?;
            state.disk.sync_directory(inode)?;
            state.steps += 1;
        }
        Ok(())
    }

    fn open(&self, mut state: Guard<'_, State>, path: Parts, inode: InodeId) -> io::Result<SimulatedFile> {
        if state.disk.is_directory(inode)? {
            return Err(Errno::ISDIR.into());
        }
        let entry = state.disk.inode(inode)?;
        entry.handles += 1;
        let epoch = entry.epoch;
        Ok(SimulatedFile { storage: self.clone(), path, inode, epoch })
    }

    /// Changes names, which is one step if it succeeds.
    fn change_names(
        &self,
        path: &Path,
        change: impl FnOnce(&mut Disk, &[String], SystemTime) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Change)?;
        let now = state.now();
        change(&mut state.disk, &path, now)?;
        state.steps += 1;
        Ok(())
    }
}

impl Storage for Simulated {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = parts(path)?;
        (1..=path.len()).try_for_each(|depth| self.make_directory(&path[..depth]))
    }

    fn open_write(&self, path: &Path, create: Create) -> io::Result<Box<dyn WriteFile>> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Change)?;
        let inode = match state.disk.find(&path) {
            Ok(_) if create == Create::New => return Err(Errno::EXIST.into()),
            Ok(inode) => inode,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state.check_faults(&path, Intent::Grow)?;
                let (epoch, now) = (state.epoch, state.now());
                let inode = state.disk.add_file(&path, epoch, now)?;
                state.steps += 1;
                inode
            }
            Err(error) => return Err(error),
        };
        Ok(Box::new(self.open(state, path, inode)?))
    }

    fn open_read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Look)?;
        let inode = state.disk.find(&path)?;
        Ok(Box::new(self.open(state, path, inode)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to = parts(to)?;
        self.change_names(from, |disk, from, now| disk.rename(from, &to, now))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.change_names(path, |disk, path, _| {
            let inode = disk.find(path)?;
            disk.sync_directory(inode)
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change_names(path, |disk, path, now| disk.unlink(path, false, now))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.change_names(path, |disk, path, now| disk.unlink(path, true, now))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Look)?;
        let directory = state.disk.find(&path)?;
        let names = state.disk.list(directory)?;
        names.into_iter().map(|(name, inode)| Ok(Entry { name, is_dir: state.disk.is_directory(inode)? })).collect()
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        self.change_names(path, |disk, path, now| {
            let inode = disk.find(path)?;
            disk.inode(inode)?.modified = now;
            Ok(())
        })
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Look)?;
        let inode = state.disk.find(&path)?;
        let is_odd = state.disk.is_directory(inode)?;
        let bytes = if is_odd { 0 } else { state.disk.length(inode)? };
        Ok(Stat { bytes, modified: state.disk.inode(inode)?.modified, is_odd })
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let path = parts(path)?;
        // The file is opened for writing, as on a real file system.
        let mut state = self.enter(&path, Intent::Change)?;
        if state.has_fault(&path, Fault::NoLocks) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let inode = state.disk.find(&path)?;
        if state.disk.is_directory(inode)? {
            return Err(Errno::ISDIR.into());
        }
        let id = state.last_lock + 1;
        let entry = state.disk.inode(inode)?;
        if entry.lock.is_some() {
            return Ok(None);
        }
        entry.lock = Some((id, self.process));
        state.last_lock = id;
        Ok(Some(Box::new(SimulatedLock { storage: self.clone(), inode, id })))
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let path = parts(path)?;
        let mut state = self.enter(&path, Intent::Look)?;
        if state.has_fault(&path, Fault::NoLocks) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let inode = state.disk.find(&path)?;
        if state.disk.is_directory(inode)? {
            return Err(Errno::ISDIR.into());
        }
        Ok(state.disk.inode(inode)?.lock.is_some())
    }
}
