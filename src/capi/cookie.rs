//! Files of C's library that are no files of the system. Beside `stream`, because the header is made of that.

use std::ffi::{c_char, c_int, c_void};

/// A file of C's library.
#[allow(clippy::upper_case_acronyms, reason = "it is the name of stdio.h")]
pub type FILE = c_void;

/// What C's library calls for one.
#[repr(C)]
pub(super) struct Calls {
    pub read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    pub write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    pub seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    pub close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    pub(super) fn fopencookie(cookie: *mut c_void, mode: *const c_char, calls: Calls) -> *mut FILE;
}
