//! VELOC's interface on a session of Bivouac: the functions to which `libveloc-client.so` forwards (`veloc/client.c`).
//!
//! The functions have VELOC's names in Bivouac's style (`VELOC_Checkpoint_begin` is `bvk_veloc_checkpoint_begin`) and its conventions: 0
//! for success and -1 for failure. `bvk_error` returns the text of a failure, and a line on standard error also shows it (unless `job.log`
//! is off). There is one session per process (`state`). Calls from several threads wait for each other. `include/veloc.h` describes the
//! functions, and docs/VELOC.md explains how to move a program.
//!
//! | part | contents |
//! |---|---|
//! | `ini` | VELOC's configuration file, translated into Bivouac's (pure) |
//! | `names` | names of checkpoints, regions and files (pure) |
//! | `choice` | which regions a call concerns (pure) |
//! | `old`, `old_files` | checkpoints that VELOC wrote (the first is pure) |
//! | `ahead` | announced versions, kept as a history |
//! | `state`, `checkpoint`, `restart` | the session between the calls |
//!
//! Each of VELOC's ranks saves its own regions, so names need not be the same on all ranks. Memory that is chosen in one call and saved in
//! a later one is copied at once, because VELOC lets the application change it in between.

mod ahead;
mod checkpoint;
mod choice;
mod ini;
mod names;
mod old;
mod old_files;
mod restart;
mod state;

use super::arguments::text;
use super::handles::Owner;
use super::status::{self, Failure, Outcome};
use ::mpi::ffi::MPI_Comm;
use bivouac_core::base::log;
use bivouac_core::base::sync::{Guard, Lock, Order};
use choice::Mode;
use state::{Phase, State};
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

/// `VELOC_SUCCESS`.
const SUCCESS: c_int = 0;
/// `VELOC_FAILURE`.
const FAILURE: c_int = -1;
/// `VELOC_MAX_NAME`, the room that the application has for the name of a routed file.
const MAX_NAME: usize = 1024;

/// The state of the session in this process.
enum Opened {
    /// No session has been opened.
    Never,
    Now(Box<State>),
    /// The session has been finalized.
    Before,
}

static STATE: Lock<Opened> = Lock::at(Order::Call, Opened::Never);
static OWNER: Owner = Owner::nobody();

fn lock() -> Guard<'static, Opened> {
    STATE.lock()
}

/// Runs a call. A failure is reported and becomes VELOC's failure code.
fn call(function: &str, work: impl FnOnce() -> Outcome) -> c_int {
    let status = status::call(work);
    if status >= SUCCESS {
        return status;
    }
    // SAFETY: the text ends with zero and remains valid until the next failure of this thread.
    let text = unsafe { CStr::from_ptr(status::bvk_error()) }.to_string_lossy();
    log::say(&format!("{function}: {text}"));
    FAILURE
}

/// Runs a call on the session that `VELOC_Init` has opened.
fn with(function: &str, work: impl FnOnce(&mut State) -> Outcome) -> c_int {
    call(function, || {
        OWNER.check()?;
        match &mut *lock() {
            Opened::Now(state) => work(state),
            Opened::Never => Err(not_yet()),
            Opened::Before => Err(Failure::state("VELOC_Finalize has been called: call VELOC_Init again first")),
        }
    })
}

fn not_yet() -> Failure {
    Failure::state("VELOC_Init has not been called or has failed: call it first")
}

fn done(outcome: Outcome<()>) -> Outcome {
    outcome.map(|()| SUCCESS)
}

/// Reads the numbers of a list.
///
/// # Safety
/// `ids` has `count` numbers, or is NULL.
unsafe fn numbers(ids: *const c_int, count: c_int) -> Result<Vec<c_int>, String> {
    match usize::try_from(count) {
        Ok(0) => Ok(Vec::new()),
        Ok(_) if ids.is_null() => Err(format!("the list of {count} numbers is NULL")),
        // SAFETY: there are that many numbers, says the caller.
        Ok(count) => Ok((0..count).map(|at| unsafe { ids.add(at).read_unaligned() }).collect()),
        Err(_) => Err(format!("a list cannot have {count} numbers")),
    }
}

/// The mode and the numbers of a selection.
///
/// # Safety
/// As [`numbers`].
unsafe fn selection(mode: c_int, ids: *const c_int, count: c_int) -> (Result<Mode, String>, Vec<c_int>) {
    match Mode::of(mode) {
        Ok(Mode::All) => (Ok(Mode::All), Vec::new()),
        // SAFETY: as the caller says.
        Ok(mode) => match unsafe { numbers(ids, count) } {
            Ok(ids) => (Ok(mode), ids),
            Err(text) => (Err(text), Vec::new()),
        },
        Err(text) => (Err(text), Vec::new()),
    }
}

fn opened(state: impl FnOnce() -> Outcome<State>) -> Outcome {
    OWNER.check()?;
    let mut place = lock();
    if let Opened::Now(_) = *place {
        return Err(Failure::state("VELOC_Init has already been called: call VELOC_Finalize first"));
    }
    OWNER.set();
    let state = state().inspect_err(|_| OWNER.clear())?;
    *place = Opened::Now(Box::new(state));
    Ok(SUCCESS)
}

/// `VELOC_Init`.
///
/// # Safety
/// `comm` is a communicator of this process or `MPI_COMM_NULL`; `config` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_init(comm: MPI_Comm, config: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    call("VELOC_Init", || opened(|| unsafe { State::open(comm, config) }))
}

/// `VELOC_Init_single`.
///
/// # Safety
/// `config` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_init_single(id: u32, config: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    call("VELOC_Init_single", || opened(|| unsafe { State::open_single(id, config) }))
}

/// `VELOC_Finalize`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_finalize(drain: c_int) -> c_int {
    call("VELOC_Finalize", || {
        OWNER.check()?;
        // The lock is held: nobody opens another session while this one ends.
        let mut place = lock();
        if let Opened::Never = *place {
            return Err(not_yet());
        }
        let closed = match std::mem::replace(&mut *place, Opened::Before) {
            Opened::Now(state) => state.close(drain != 0),
            Opened::Never | Opened::Before => Ok(()),
        };
        OWNER.clear();
        done(closed)
    })
}

/// `VELOC_Mem_protect`.
///
/// # Safety
/// Until it is unprotected or protected again, the memory is readable in each call that saves it, and writable and used by nothing else in
/// each call that loads it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_mem_protect(id: c_int, data: *mut c_void, count: usize, size: usize) -> c_int {
    with("VELOC_Mem_protect", |state| done(state.protect(None, id, data, count, size)))
}

/// `VELOC_Region_protect`.
///
/// # Safety
/// As [`bvk_veloc_mem_protect`]; `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_region_protect(
    id: c_int,
    data: *mut c_void,
    count: usize,
    size: usize,
    name: *const c_char,
) -> c_int {
    with("VELOC_Region_protect", |state| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name") }?;
        done(state.protect(Some(name), id, data, count, size))
    })
}

/// `VELOC_Mem_unprotect`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_mem_unprotect(id: c_int) -> c_int {
    with("VELOC_Mem_unprotect", |state| done(state.unprotect(None, id)))
}

/// `VELOC_Region_unprotect`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_region_unprotect(id: c_int, name: *const c_char) -> c_int {
    with("VELOC_Region_unprotect", |state| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name") }?;
        done(state.unprotect(Some(name), id))
    })
}

/// `VELOC_Mem_clear`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_mem_clear() -> c_int {
    with("VELOC_Mem_clear", |state| {
        state.clear(None);
        Ok(SUCCESS)
    })
}

/// `VELOC_Region_clear`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_region_clear(name: *const c_char) -> c_int {
    with("VELOC_Region_clear", |state| {
        // SAFETY: as the caller says.
        state.clear(Some(unsafe { text(name, "the name") }?));
        Ok(SUCCESS)
    })
}

/// `VELOC_Route_file`.
///
/// # Safety
/// `original` is NULL, or has `MAX_NAME` bytes, or ends with zero earlier. `routed` is NULL or has room for `MAX_NAME`
/// bytes. Both may be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_route_file(original: *const c_char, routed: *mut c_char) -> c_int {
    with("VELOC_Route_file", |state| {
        if original.is_null() || routed.is_null() {
            return Err(Failure::argument("a name is NULL"));
        }
        let mut name = Vec::new();
        for at in 0..MAX_NAME {
            // SAFETY: not NULL, and no zero has ended the bytes before this one.
            match unsafe { original.add(at).read() } as u8 {
                0 => break,
                byte => name.push(byte),
            }
        }
        let original = names::original(&name);
        let path = match &state.phase {
            Phase::Checkpoint(_) => state.route(&original)?,
            _ => state.routed(&original)?,
        };
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.len() >= MAX_NAME {
            return Err(Failure::argument(format!("{} is longer than VELOC_MAX_NAME allows", path.display())));
        }
        // SAFETY: there is room for as many bytes and a zero, says the caller; the path is our own memory.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), routed.cast::<u8>(), bytes.len());
            routed.add(bytes.len()).write(0);
        }
        Ok(SUCCESS)
    })
}

/// `VELOC_Cleanup`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_cleanup(name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Cleanup", |state| done(state.cleanup(unsafe { text(name, "the name") })))
}

/// `VELOC_Checkpoint_begin`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_checkpoint_begin(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Checkpoint_begin", |state| done(state.begin(unsafe { text(name, "the name") }, version)))
}

/// `VELOC_Checkpoint_selective`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold; `ids` is NULL or has `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_checkpoint_selective(mode: c_int, ids: *const c_int, count: c_int) -> c_int {
    with("VELOC_Checkpoint_selective", |state| {
        // SAFETY: as the caller says.
        unsafe {
            let (mode, ids) = selection(mode, ids, count);
            done(state.choose(mode, &ids, true))
        }
    })
}

/// `VELOC_Checkpoint_mem`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_checkpoint_mem() -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Checkpoint_mem", |state| done(unsafe { state.choose(Ok(Mode::All), &[], true) }))
}

/// `VELOC_Checkpoint_end`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_checkpoint_end(success: c_int) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Checkpoint_end", |state| done(unsafe { state.end(success != 0) }))
}

/// `VELOC_Checkpoint_wait`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_checkpoint_wait() -> c_int {
    with("VELOC_Checkpoint_wait", |state| done(state.wait()))
}

/// `VELOC_Checkpoint_finished`. A result of -1 is not a failure here, and is not reported.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_checkpoint_finished() -> c_int {
    let mut is_finished = false;
    let status = with("VELOC_Checkpoint_finished", |state| {
        is_finished = state.is_finished();
        Ok(SUCCESS)
    });
    if status == SUCCESS && is_finished { SUCCESS } else { FAILURE }
}

/// `VELOC_Checkpoint`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold; `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_checkpoint(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as the caller says; no code of the application runs before the end.
    with("VELOC_Checkpoint", |state| unsafe {
        state.begin(text(name, "the name"), version)?;
        let chosen = state.choose(Ok(Mode::All), &[], false);
        done(state.end(true).and(chosen))
    })
}

/// `VELOC_Restart_test`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_restart_test(name: *const c_char, version: c_int) -> c_int {
    let mut found = None;
    let status = with("VELOC_Restart_test", |state| {
        // SAFETY: as the caller says.
        found = state.newest(unsafe { text(name, "the name") }, version)?;
        Ok(SUCCESS)
    });
    // The answer that no version can be restored is not reported as a failure.
    found.filter(|_| status == SUCCESS).unwrap_or(FAILURE)
}

/// `VELOC_Restart_begin`.
///
/// # Safety
/// `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_restart_begin(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Restart_begin", |state| done(state.begin_restart(unsafe { text(name, "the name") }, version)))
}

/// `VELOC_Recover_selective`.
///
/// # Safety
/// As [`bvk_veloc_checkpoint_selective`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_recover_selective(mode: c_int, ids: *const c_int, count: c_int) -> c_int {
    with("VELOC_Recover_selective", |state| {
        // SAFETY: as the caller says.
        unsafe {
            let (mode, ids) = selection(mode, ids, count);
            done(state.recover(mode, &ids))
        }
    })
}

/// `VELOC_Recover_mem`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_recover_mem() -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Recover_mem", |state| done(unsafe { state.recover(Ok(Mode::All), &[]) }))
}

/// `VELOC_Recover_size`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_recover_size(id: c_int) -> c_int {
    with("VELOC_Recover_size", |state| {
        let bytes = state.size(id)?;
        let larger = |_| Failure::argument(format!("region {id} has {bytes} bytes: ask VELOC_Recover_size_of"));
        c_int::try_from(bytes).map_err(larger)
    })
}

/// `VELOC_Restart_end`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_restart_end(success: c_int) -> c_int {
    with("VELOC_Restart_end", |state| done(state.end_restart(success != 0)))
}

/// `VELOC_Restart`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold; `name` is NULL or ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_restart(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Restart", |state| done(unsafe { state.restart(text(name, "the name"), version) }))
}

// ------------------------------------------------------------------------------------------------ beyond VELOC

/// `VELOC_Prefetch_enqueue`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_prefetch_enqueue(version: c_int) -> c_int {
    with("VELOC_Prefetch_enqueue", |state| {
        let version = names::version(version).map_err(Failure::argument)?;
        state.ahead.announce(&state.open, version);
        Ok(SUCCESS)
    })
}

/// `VELOC_Prefetch_start`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_prefetch_start() -> c_int {
    with("VELOC_Prefetch_start", |state| {
        state.ahead.start(&state.open);
        Ok(SUCCESS)
    })
}

/// `VELOC_Prefetch_restore`.
///
/// # Safety
/// The requirements of [`bvk_veloc_mem_protect`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_veloc_prefetch_restore(version: c_int) -> c_int {
    // SAFETY: as the caller says.
    with("VELOC_Prefetch_restore", |state| done(unsafe { state.restart_announced(version) }))
}

/// `VELOC_Recover_size_of`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_veloc_recover_size_of(version: c_int, id: c_int) -> c_longlong {
    let mut bytes = None;
    let status = with("VELOC_Recover_size_of", |state| {
        bytes = c_longlong::try_from(state.size_of(version, id)?).ok();
        Ok(SUCCESS)
    });
    bytes.filter(|_| status == SUCCESS).unwrap_or(c_longlong::from(FAILURE))
}
