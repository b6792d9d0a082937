//! Populates the pages of memory that is about to be read.

use super::units::PAGE;
use rustix::mm::Advice;
use std::ops::Range;

/// Makes the kernel map all pages of memory that is about to be read at once. A restart maps the node segment anew, and its pages would
/// otherwise be mapped one fault for each 64 KiB. This saves 3 % of a restart into a GPU, and 8 % of a restart with small regions.
pub fn find(range: Range<*const u8>) {
    let begin = range.start.addr() / PAGE as usize * PAGE as usize;
    let place = std::ptr::with_exposed_provenance_mut(begin);
    // SAFETY: the advice changes no byte, and where it is not accepted the pages are mapped one by one.
    unsafe { _ = rustix::mm::madvise(place, range.end.addr() - begin, Advice::LinuxPopulateRead) };
}
