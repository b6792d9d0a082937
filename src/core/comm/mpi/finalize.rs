//! Notices `MPI_Finalize` in time.
//!
//! An application may call `MPI_Finalize` before it closes its session, and a thread of ours that called MPI afterwards
//! would bring the job down. The standard offers one way to notice the call: attributes of `MPI_COMM_SELF` are deleted
//! as the first thing in `MPI_Finalize`, while MPI still works, and their delete functions are called. One such
//! attribute is attached when the first hook is registered; it calls all hooks that are registered then. It carries no
//! pointer: the hooks are in a list of this process, so a dropped hook leaves nothing behind in MPI.

use super::calls::{self, Reporter};
use crate::base::Rank;
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::comm::{CommError, Unusable};
use ::mpi::ffi::{self, MPI_Comm};
use std::os::raw::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Hook = Box<dyn FnOnce() + Send>;

/// The hooks of this process.
struct Hooks {
    stage: Stage,
    next_id: u64,
    /// In order of registration.
    waiting: Vec<(u64, Hook)>,
}

/// The state of our attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The attribute has not been attached yet.
    Absent,
    /// The attribute is attached; the hooks will be called.
    Attached,
    /// `MPI_Finalize` has begun.
    Finalizing,
}

static HOOKS: Lock<Hooks> = Lock::new(Hooks { stage: Stage::Absent, next_id: 0, waiting: Vec::new() });

/// Locks the list. A panic while the list was locked is no reason to stop, because each change is a single push, pop or
/// assignment.
fn hooks() -> Guard<'static, Hooks> {
    HOOKS.lock()
}

/// Keeps a function registered with [`on_finalize`]. Dropping the hook unregisters the function without calling it.
/// This makes no MPI call, and may happen on any thread and after `MPI_Finalize`.
#[derive(Debug)]
#[must_use = "dropping the hook disarms it"]
pub struct FinalizeHook {
    id: u64,
}

impl FinalizeHook {
    /// Unregisters the function without calling it, as dropping the hook does. If `MPI_Finalize` is calling the
    /// function on another thread at this moment, `disarm` does not wait for the function to end.
    pub fn disarm(self) {}
}

impl Drop for FinalizeHook {
    fn drop(&mut self) {
        let mut list = hooks();
        let found = list.waiting.iter().position(|(id, _)| *id == self.id);
        let hook = found.map(|position| list.waiting.remove(position));
        // The function's own drop may do anything, so it runs without the lock.
        drop(list);
        drop(hook);
    }
}

/// Has `f` called at the beginning of `MPI_Finalize`, on the thread that calls it, while MPI still works. Hooks are
/// called in the reverse order of their registration. A panic in a hook is caught and logged, and the other hooks still
/// run.
///
/// # Errors
/// [`CommError::Unusable`] if MPI is not initialized, is finalized or is being finalized, or if this thread may not call it.
/// [`CommError::Mpi`] if the attribute cannot be attached.
pub fn on_finalize(f: impl FnOnce() + Send + 'static) -> Result<FinalizeHook, CommError> {
    calls::usable_from_this_thread()?;
    let mut list = hooks();
    match list.stage {
        Stage::Finalizing => return Err(Unusable::Finalized.into()),
        Stage::Attached => {}
        Stage::Absent => {
            // The lock is held during the calls so that two threads do not attach the attribute twice. The calls are
            // local and do not call back, because no attribute with this key exists yet.
            attach()?;
            list.stage = Stage::Attached;
        }
    }
    let id = list.next_id;
    list.next_id += 1;
    list.waiting.push((id, Box::new(f)));
    Ok(FinalizeHook { id })
}

/// Attaches our attribute to `MPI_COMM_SELF`. MPI must be usable from this thread.
fn attach() -> Result<(), CommError> {
    // SAFETY: the caller has asked `usable_from_this_thread`.
    let reporter = Reporter(unsafe { calls::comm_rank(Reporter(Rank::ROOT), calls::comm_world())? });
    let mut key = ffi::MPI_KEYVAL_INVALID as c_int;
    let nothing = std::ptr::null_mut::<c_void>();
    // SAFETY: MPI is usable (as above). Both callbacks are functions of the types that MPI asks for, live as long as
    // the program, do not unwind, and ignore their pointers, which may therefore be null. The key is valid once the
    // first call has succeeded. Freeing the key only marks it; it vanishes together with the attribute.
    unsafe {
        let code = ffi::MPI_Comm_create_keyval(Some(do_not_copy), Some(run_hooks), &mut key, nothing);
        reporter.check("MPI_Comm_create_keyval", code)?;
        reporter.check("MPI_Comm_set_attr", ffi::MPI_Comm_set_attr(calls::comm_self(), key, nothing))?;
        reporter.check("MPI_Comm_free_keyval", ffi::MPI_Comm_free_keyval(&mut key))
    }
}

/// Keeps the attribute off duplicates of `MPI_COMM_SELF`: freeing a duplicate must not call the hooks.
unsafe extern "C" fn do_not_copy(
    _comm: MPI_Comm,
    _key: c_int,
    _extra: *mut c_void,
    _value: *mut c_void,
    _new_value: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes the address of an integer that says whether the attribute was copied.
    unsafe { *copied = 0 };
    ffi::MPI_SUCCESS as c_int
}

/// The delete function of our attribute.
unsafe extern "C" fn run_hooks(_comm: MPI_Comm, _key: c_int, _value: *mut c_void, _extra: *mut c_void) -> c_int {
    while let Some(hook) = next_hook() {
        // The logger belongs to the application and may panic too; no panic may unwind into C.
        let logged = catch_unwind(AssertUnwindSafe(hook)).or_else(|panic| {
            std::mem::forget(panic); // its drop could panic
            catch_unwind(|| log::error!(target: super::TARGET, "event=finalize_hook_panicked"))
        });
        if let Err(panic) = logged {
            std::mem::forget(panic);
        }
    }
    ffi::MPI_SUCCESS as c_int
}

/// Takes the most recently registered hook out of the list, so that hooks may register and drop hooks and wait for each
/// other's threads.
fn next_hook() -> Option<Hook> {
    let mut list = hooks();
    list.stage = Stage::Finalizing;
    list.waiting.pop().map(|(_, hook)| hook)
}
