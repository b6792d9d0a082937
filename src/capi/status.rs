//! The status of a call, and the guard around every call.

use bivouac_core::OffloadError;
use bivouac_core::base::text::message;
use bivouac_core::session::Error;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Success.
pub const BVK_OK: c_int = 0;
/// `bvk_end_restore`: some rank has found damage, or has rejected this version. Load again: the handle now leads to other copies of this
/// version, or to an older version (`bvk_saved_version` says which version it is). Nothing that was loaded before may be used.
pub const BVK_AGAIN: c_int = 1;
/// There is nothing to return: for example, there is no checkpoint to restore or no report to read.
pub const BVK_NOTHING: c_int = 2;
/// An argument is wrong: NULL where a value is needed, a count that is too large, an unknown type.
pub const BVK_ERR_ARGUMENT: c_int = -1;
/// The handle is not valid: it never was a handle, is a handle of another kind, or was closed.
pub const BVK_ERR_HANDLE: c_int = -2;
/// Calls were made in the wrong order, for example a checkpoint while a restart is open, or a declaration on a
/// stream that is being captured.
pub const BVK_ERR_STATE: c_int = -3;
/// The configuration has problems, or the session could not be opened. The error text names the ranks and the keys.
pub const BVK_ERR_OPEN: c_int = -4;
/// MPI cannot be used: it is not initialised or is already finalised, this thread may not call it, or one of its calls failed.
pub const BVK_ERR_MPI: c_int = -5;
/// A name or a shape cannot be used, or a region was named twice.
pub const BVK_ERR_REGION: c_int = -6;
/// This rank could not capture the checkpoint. The other ranks are told, and the application may continue.
pub const BVK_ERR_CAPTURE: c_int = -7;
/// A region could not be loaded: it is not in the checkpoint, has a different type or length, or has no undamaged copy.
pub const BVK_ERR_LOAD: c_int = -8;
/// The restart ended on all ranks without restoring a state.
pub const BVK_ERR_RESTART: c_int = -9;
/// The checkpoint has not reached the level that was waited for, and will not reach it.
pub const BVK_ERR_NOT_COMMITTED: c_int = -10;
/// Ranks made different calls, or some made none; or an element of an array has no owner, or more than one.
pub const BVK_ERR_DISAGREED: c_int = -11;
/// The session has failed and commits nothing more. The application may continue to compute.
pub const BVK_ERR_FAILED: c_int = -12;
/// Checkpoints were still being written when the session was closed.
pub const BVK_ERR_UNDRAINED: c_int = -13;
/// A device or a history cannot do what was requested.
pub const BVK_ERR_DEVICE: c_int = -14;
/// A defect in Bivouac. From now on the session may be unusable; the application may continue to compute.
pub const BVK_ERR_INTERNAL: c_int = -15;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a function of the application that a call has called. The call holds the lock of its session, so other calls
/// would wait for ever.
pub(super) struct Inside;

impl Inside {
    pub(super) fn enter() -> Inside {
        IS_INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

/// Refuses a call from inside a function of the application that a call has called.
fn check_outside() -> Outcome<()> {
    match IS_INSIDE.get() {
        false => Ok(()),
        true => Err(Failure::state(
            "Bivouac was called inside the function that says which ranks get rows: call it elsewhere",
        )),
    }
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub status: c_int,
    pub text: String,
}

pub(super) type Outcome<T = c_int> = std::result::Result<T, Failure>;

impl Failure {
    pub(super) fn new(status: c_int, text: impl Into<String>) -> Failure {
        Failure { status, text: text.into() }
    }

    pub(super) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(BVK_ERR_ARGUMENT, text)
    }

    pub(super) fn state(text: impl Into<String>) -> Failure {
        Failure::new(BVK_ERR_STATE, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Offload(error) => return error.clone().into(),
            Error::History(_) => BVK_ERR_DEVICE,
            Error::Config(_) | Error::Open { .. } => BVK_ERR_OPEN,
            Error::Comm(_) | Error::MessageInFlight { .. } => BVK_ERR_MPI,
            Error::Name { .. } | Error::Region(_) => BVK_ERR_REGION,
            Error::Capture(_) | Error::File { .. } => BVK_ERR_CAPTURE,
            Error::Load(_) | Error::Application(_) => BVK_ERR_LOAD,
            Error::Restart(_) => BVK_ERR_RESTART,
            Error::NotCommitted { .. } => BVK_ERR_NOT_COMMITTED,
            Error::Disagreed { .. } | Error::Decomposition { .. } => BVK_ERR_DISAGREED,
            Error::Failed { .. } => BVK_ERR_FAILED,
            Error::Undrained { .. } => BVK_ERR_UNDRAINED,
            // A kind that has come since; its text says which.
            _ => BVK_ERR_FAILED,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<bivouac_core::device::DeviceError> for Failure {
    fn from(error: bivouac_core::device::DeviceError) -> Failure {
        Failure::new(BVK_ERR_DEVICE, error.to_string())
    }
}

impl From<OffloadError> for Failure {
    fn from(error: OffloadError) -> Failure {
        match error {
            OffloadError::Recording => Failure::state(error.to_string()),
            OffloadError::Slots { .. } => {
                let text = format!("{error}; with 0 bytes nothing is prepared, and the first checkpoints are copied");
                Failure::new(BVK_ERR_DEVICE, text)
            }
            OffloadError::Device(error) => error.into(),
        }
    }
}

/// Runs a call of the interface. It keeps the text of a failure for the thread, turns a panic into a failure, and restores the thread's GPU
/// context.
pub(super) fn call(work: impl FnOnce() -> Outcome) -> c_int {
    let _context = super::gpu::keep_context();
    let work = || check_outside().and_then(|()| work());
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Failure::new(
            BVK_ERR_INTERNAL,
            format!("this is a bug in Bivouac, please report it: {}", text.unwrap_or("panic")),
        ))
    });
    outcome.unwrap_or_else(|failure| {
        keep(&failure.text);
        failure.status
    })
}

/// Keeps the text of a failure that is not the status of a call.
pub(super) fn keep_failure(failure: &Failure) {
    keep(&failure.text);
}

/// Keeps a text for the thread. A long one is cut in its middle, because names in it may have any length.
fn keep(text: &str) {
    let text = CString::new(message(text).replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The error text of this thread's last failed call; empty if no call has failed.
///
/// Local, never blocks, any thread. The text belongs to Bivouac and is valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status, for example `BVK_ERR_LOAD`; `unknown status` for any other number.
///
/// Local, never blocks, any thread. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_status_name(status: c_int) -> *const c_char {
    let name: &CStr = match status {
        BVK_OK => c"BVK_OK",
        BVK_AGAIN => c"BVK_AGAIN",
        BVK_NOTHING => c"BVK_NOTHING",
        BVK_ERR_ARGUMENT => c"BVK_ERR_ARGUMENT",
        BVK_ERR_HANDLE => c"BVK_ERR_HANDLE",
        BVK_ERR_STATE => c"BVK_ERR_STATE",
        BVK_ERR_OPEN => c"BVK_ERR_OPEN",
        BVK_ERR_MPI => c"BVK_ERR_MPI",
        BVK_ERR_REGION => c"BVK_ERR_REGION",
        BVK_ERR_CAPTURE => c"BVK_ERR_CAPTURE",
        BVK_ERR_LOAD => c"BVK_ERR_LOAD",
        BVK_ERR_RESTART => c"BVK_ERR_RESTART",
        BVK_ERR_NOT_COMMITTED => c"BVK_ERR_NOT_COMMITTED",
        BVK_ERR_DISAGREED => c"BVK_ERR_DISAGREED",
        BVK_ERR_FAILED => c"BVK_ERR_FAILED",
        BVK_ERR_UNDRAINED => c"BVK_ERR_UNDRAINED",
        BVK_ERR_DEVICE => c"BVK_ERR_DEVICE",
        BVK_ERR_INTERNAL => c"BVK_ERR_INTERNAL",
        _ => c"unknown status",
    };
    name.as_ptr()
}

/// The version of the library, for example `0.1.0`.
///
/// Local, never blocks, any thread. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
