//! Files of the C library that are not files of the operating system. The declarations are not in `stream`, because the header is
//! generated from `stream`.

use std::ffi::{c_char, c_int, c_void};

/// A file of the C library.
#[allow(clippy::upper_case_acronyms, reason = "it is the name of stdio.h")]
pub type FILE = c_void;

/// The functions that the C library calls for a file.
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
