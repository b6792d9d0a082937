//! Handles: numbers in the shape of pointers, never used twice and never followed.

use super::session::Open;
use super::status::{BVK_ERR_HANDLE, Failure, Outcome};
use crate::session::Pending;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number that names a value of [`Entry`].
pub(super) type Id = usize;

/// What a handle stands for.
#[derive(Clone)]
pub(super) enum Entry {
    Session(Arc<Mutex<Open>>),
    /// A checkpoint, a restart or a history, kept in its session.
    Part(Part, Arc<Mutex<Open>>),
    Pending(Arc<Pending>),
}

/// What a session keeps under a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Checkpoint,
    Restart,
    History,
}

static NEXT: AtomicUsize = AtomicUsize::new(1);
static TABLE: Mutex<BTreeMap<Id, Entry>> = Mutex::new(BTreeMap::new());

fn table() -> MutexGuard<'static, BTreeMap<Id, Entry>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a session for one call; a call that panicked left it as it was.
pub(super) fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a value a handle.
pub(super) fn insert(entry: Entry) -> Id {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    table().insert(id, entry);
    id
}

/// Takes a handle's value out of the table.
pub(super) fn remove(id: Id) -> Option<Entry> {
    table().remove(&id)
}

/// Takes the handles out of the table that lead into a session.
pub(super) fn remove_parts(of: &Arc<Mutex<Open>>) {
    table().retain(|_, entry| !matches!(entry, Entry::Part(_, open) if Arc::ptr_eq(open, of)));
}

fn wrong(what: &str, is_null: bool) -> Failure {
    let why = if is_null { "NULL" } else { "closed already, of another kind, or never was one" };
    Failure::new(BVK_ERR_HANDLE, format!("the handle of a {what} is {why}"))
}

/// The session of a handle.
pub(super) fn session<T>(handle: *mut T) -> Outcome<Arc<Mutex<Open>>> {
    match table().get(&handle.addr()) {
        Some(Entry::Session(open)) => Ok(open.clone()),
        _ => Err(wrong("session", handle.is_null())),
    }
}

/// The session that keeps what a handle stands for.
pub(super) fn part<T>(handle: *mut T, part: Part) -> Outcome<(Id, Arc<Mutex<Open>>)> {
    match table().get(&handle.addr()) {
        Some(Entry::Part(kind, open)) if *kind == part => Ok((handle.addr(), open.clone())),
        _ => {
            let what = match part {
                Part::Checkpoint => "checkpoint",
                Part::Restart => "restart",
                Part::History => "history",
            };
            Err(wrong(what, handle.is_null()))
        }
    }
}

/// The pending checkpoint of a handle.
pub(super) fn pending<T>(handle: *mut T) -> Outcome<Arc<Pending>> {
    match table().get(&handle.addr()) {
        Some(Entry::Pending(pending)) => Ok(pending.clone()),
        _ => Err(wrong("pending checkpoint", handle.is_null())),
    }
}

/// A handle in the shape that C sees.
pub(super) fn to_pointer<T>(id: Id) -> *mut T {
    std::ptr::without_provenance_mut(id)
}
