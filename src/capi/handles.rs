//! Handles: numbers in the shape of pointers, never used twice and never followed.

use super::open::Open;
use super::status::{BVK_ERR_HANDLE, Failure, Outcome};
use bivouac_core::base::sync::{Guard, Lock};
use bivouac_core::session::{Error, Pending};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A number that names a value of [`Entry`].
pub(super) type Id = usize;

/// A session that may have been closed, by whichever call got there first.
pub(super) type Shared = Arc<Lock<Option<Open>>>;

/// A session for the length of a call.
pub(super) struct Locked<'a>(Guard<'a, Option<Open>>);

impl Deref for Locked<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
        self.0.as_ref().expect("it was open when it was locked, and the lock is held")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Open {
        self.0.as_mut().expect("it was open when it was locked, and the lock is held")
    }
}

/// What a handle stands for.
#[derive(Clone)]
pub(super) enum Entry {
    Session(Shared),
    /// A checkpoint, a restart and what was found in it, a history, a set of writes or of boxes; its session keeps it.
    Part(Part, Shared),
    Pending(Arc<Pending>),
}

/// What a session keeps under a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Checkpoint,
    Restart,
    History,
    WriteSet,
    Boxes,
    Rows,
    Parts,
}

/// The process that the sessions belong to. This number serves to refuse a forked child before the child waits for a lock that a thread of
/// its parent held at the fork: nobody would ever unlock it.
pub(super) struct Owner(AtomicU32);

impl Owner {
    /// No process.
    pub(super) const fn nobody() -> Owner {
        Owner(AtomicU32::new(0))
    }

    /// This process has a session from now on.
    pub(super) fn set(&self) {
        self.0.store(std::process::id(), Ordering::Relaxed);
    }

    /// There is no session any more.
    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Refuses a forked child.
    pub(super) fn check(&self) -> Outcome<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            process => check_process(process),
        }
    }
}

/// Refuses a session that another process has opened: in a forked child the connections to the other ranks belong to the parent.
pub(super) fn check_process(process: u32) -> Outcome<()> {
    match process == std::process::id() {
        true => Ok(()),
        false => Err(Failure::state("this is a forked child: the session belongs to its parent")),
    }
}

static OWNER: Owner = Owner::nobody();
static NEXT: AtomicUsize = AtomicUsize::new(1);
static TABLE: Lock<BTreeMap<Id, Entry>> = Lock::new(BTreeMap::new());

fn table() -> Guard<'static, BTreeMap<Id, Entry>> {
    TABLE.lock()
}

/// Locks a session for one call.
///
/// # Errors
/// The session was closed or belongs to another process, or this thread may not call MPI.
pub(super) fn lock(shared: &Lock<Option<Open>>) -> Outcome<Locked<'_>> {
    let guard = shared.lock();
    match &*guard {
        None => Err(Failure::new(BVK_ERR_HANDLE, "the session was closed by another thread")),
        Some(open) => {
            check_process(open.process)?;
            check_thread()?;
            Ok(Locked(guard))
        }
    }
}

/// Refuses a thread that may not call MPI. A message that it sends or receives would end the session.
pub(super) fn check_thread() -> Outcome<()> {
    bivouac_core::comm::mpi::wrong_thread().map_or(Ok(()), |error| Err(Error::from(error).into()))
}

/// Takes a session out of its lock to end it, so that no handle leads to it any more.
///
/// # Errors
/// As [`lock`].
pub(super) fn take(shared: &Shared) -> Outcome<Open> {
    let mut locked = lock(shared)?;
    let open = locked.0.take().expect("it was open when it was locked, and the lock is held");
    drop(locked);
    table().retain(|_, entry| match entry {
        Entry::Session(known) | Entry::Part(_, known) => !Arc::ptr_eq(known, shared),
        Entry::Pending(_) => true,
    });
    Ok(open)
}

/// Gives a value a handle.
pub(super) fn insert(entry: Entry) -> Id {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    if matches!(entry, Entry::Session(_)) {
        OWNER.set();
    }
    table().insert(id, entry);
    id
}

/// Takes a handle's value out of the table.
pub(super) fn remove(id: Id) -> Option<Entry> {
    table().remove(&id)
}

fn wrong(what: &str, is_null: bool) -> Failure {
    let why = if is_null { "NULL" } else { "already closed, of another kind, or not a handle at all" };
    Failure::new(BVK_ERR_HANDLE, format!("the handle of a {what} is {why}"))
}

/// The session of a handle.
pub(super) fn session<T>(handle: *mut T) -> Outcome<Shared> {
    OWNER.check()?;
    match table().get(&handle.addr()) {
        Some(Entry::Session(open)) => Ok(open.clone()),
        _ => Err(wrong("session", handle.is_null())),
    }
}

/// The session that keeps what a handle stands for.
pub(super) fn part<T>(handle: *mut T, part: Part) -> Outcome<(Id, Shared)> {
    OWNER.check()?;
    match table().get(&handle.addr()) {
        Some(Entry::Part(kind, open)) if *kind == part => Ok((handle.addr(), open.clone())),
        _ => {
            let what = match part {
                Part::Checkpoint => "checkpoint",
                Part::Restart => "restart",
                Part::History => "history",
                Part::WriteSet => "set of writes",
                Part::Boxes => "set of boxes",
                Part::Rows => "set of loaded rows",
                Part::Parts => "list of parts",
            };
            Err(wrong(what, handle.is_null()))
        }
    }
}

/// The pending checkpoint of a handle.
pub(super) fn pending<T>(handle: *mut T) -> Outcome<Arc<Pending>> {
    OWNER.check()?;
    match table().get(&handle.addr()) {
        Some(Entry::Pending(pending)) => Ok(pending.clone()),
        _ => Err(wrong("pending checkpoint", handle.is_null())),
    }
}

/// A handle in the shape that C sees.
pub(super) fn to_pointer<T>(id: Id) -> *mut T {
    std::ptr::without_provenance_mut(id)
}
