//! Takes the place of `numa.rs` if the feature `numa` is off: nothing can be done, and everything says so.
#![forbid(unsafe_code)]

use super::record::Policy;
use crate::base::log;
use std::io;

fn cannot<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "built without the feature numa"))
}

/// Says so only at the debug level: whoever left the feature out knows.
pub fn told(call: &str, error: &io::Error) {
    log::debug!("event=no-numa call={call} error=\"{error}\"");
}

/// Cannot tell where pages are.
///
/// # Errors
/// Always.
pub fn query(_addresses: &[usize]) -> io::Result<Vec<i32>> {
    cannot()
}

/// Cannot tell where pages are.
///
/// # Errors
/// Always.
pub fn query_before_reading(_addresses: &[usize]) -> io::Result<Vec<i32>> {
    cannot()
}

/// Cannot move pages.
///
/// # Errors
/// Always.
pub fn migrate(_addresses: &[usize], _node: u32) -> io::Result<Vec<i32>> {
    cannot()
}

/// Knows no policy.
///
/// # Errors
/// Always.
pub fn policy() -> io::Result<Policy> {
    cannot()
}

/// Sets no policy.
///
/// # Errors
/// Always.
pub fn set_policy(_policy: &Policy) -> io::Result<()> {
    cannot()
}

/// Leaves memory as it is.
///
/// # Errors
/// Always.
pub fn populate(_bytes: &mut [u8]) -> io::Result<()> {
    cannot()
}

/// Leaves memory as it is.
///
/// # Errors
/// Always.
pub fn discard(_bytes: &mut [u8]) -> io::Result<()> {
    cannot()
}

/// Leaves memory as it is.
///
/// # Errors
/// Always.
pub fn forbid_huge(_bytes: &mut [u8]) -> io::Result<()> {
    cannot()
}
