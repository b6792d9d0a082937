//! Memory of the program that is read while the program runs.

use crate::base::Digest;
use crate::base::digest::copy_digest;
use crate::device::TargetPart;
use std::ops::Range;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicU64;

/// Memory to which the program may write again as soon as a checkpoint of this memory has been captured (see
/// [`CheckpointBuilder::save_live`](crate::CheckpointBuilder::save_live)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMemory {
    address: usize,
    bytes: usize,
}

impl LiveMemory {
    /// The memory of `count` values that begins at `data`.
    ///
    /// ```
    /// let mut field = vec![0.0f64; 1 << 20];
    /// // SAFETY: it is not freed before the session is settled, and only this program's own code writes to it.
    /// let memory = unsafe { bivouac::LiveMemory::new(field.as_mut_ptr(), field.len()) };
    /// assert_eq!(memory.bytes(), 8 << 20);
    /// ```
    ///
    /// # Safety
    /// The following must hold from each capture that saves this memory until [`Session::settle`](crate::Session::settle) has returned, the
    /// next capture with live memory has returned, or the session has ended:
    /// - The memory stays mapped and readable, and its pages stay the same: no `madvise` that drops them, no `mremap`, no hole punched.
    /// - All writes to it are made by instructions of this process that name these addresses, or by system calls that copy there (`read`, a
    ///   message through the kernel). Every other write is declared beforehand ([`Session::before_write`](crate::Session::before_write)):
    ///   writes by a network card or a GPU, by buffers that are registered with the kernel, through another mapping of the same memory,
    ///   through the file behind it, or by another process. If the configuration says that all writes are declared
    ///   (`offload.host_writes = "declared"`), every write is.
    /// - It is not memory in which the program's global allocator keeps its own records.
    ///
    /// Nothing at all writes to the memory until the call that captures it has returned.
    pub unsafe fn new<T: bytemuck::Pod>(data: *mut T, count: usize) -> LiveMemory {
        // The reads below rely on `expose_provenance`: they turn the address back into a pointer.
        LiveMemory { address: data.expose_provenance(), bytes: count * size_of::<T>() }
    }

    /// Describes memory that is never freed, for tests without `unsafe`. The tests write to it by atomic instructions only, which the
    /// kernel stops or which are declared.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn leaked(memory: &'static [AtomicU64]) -> LiveMemory {
        LiveMemory { address: memory.as_ptr().expose_provenance(), bytes: size_of_val(memory) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The addresses of the memory.
    pub fn range(&self) -> Range<usize> {
        self.address..self.address + self.bytes
    }

    /// The bytes, for a call that captures them and copies them before it returns.
    pub(crate) fn at_once<'a>(&self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the bytes are mapped and initialised (`new`), and nothing writes to them during that call, which this slice does not
        // outlive. Leaked memory consists of atomic numbers, which are read with the values that they have at the moment.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.bytes) }
    }

    /// Copies some of the bytes into `target`, beginning at its byte `to`, and returns their digest. The writes are visible to others after
    /// a fence ([`store_fence`](crate::base::digest::store_fence)).
    ///
    /// The caller has taken these bytes for itself: nobody else copies them, and a thread that wants to write to them waits meanwhile,
    /// stopped by the kernel or by its own declaration.
    ///
    /// # Panics
    /// If the bytes are not all inside this memory, or their place is not inside `target`.
    pub(crate) fn copy_to(&self, bytes: Range<usize>, target: &TargetPart, to: u64) -> Digest {
        let length = bytes.len();
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "the bytes are of this memory");
        assert!(to.checked_add(length as u64).is_some_and(|end| end <= target.bytes()), "the place has room for them");
        // SAFETY: the bytes are mapped and initialised (`new`), inside this memory by the assertion, and not written to while they are
        // taken (see above).
        let from = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address + bytes.start), length)
        };
        // SAFETY: a target's memory stays where it is, and nobody reads it while a part of it exists. The place is inside the part by the
        // assertion. Only the caller, which has taken the bytes, writes to their place.
        let into = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::with_exposed_provenance_mut(target.address() + to as usize),
                length,
            )
        };
        copy_digest(from, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::{digest_bytes, store_fence};
    use crate::device::Target;
    use std::sync::atomic::Ordering;

    #[test]
    fn bytes_come_to_their_place_with_their_digest() {
        let memory: &'static [AtomicU64] = (0..100).map(AtomicU64::new).collect::<Vec<_>>().leak();
        let live = LiveMemory::leaked(memory);
        memory[1].store(77, Ordering::Relaxed);
        assert_eq!((live.bytes(), live.at_once()[8]), (800, 77));
        let target = Target::new(vec![1u8; 1000]);
        let part = target.part(100, 800).expect("inside");
        let digest = live.copy_to(8..24, &part, 8);
        store_fence();
        assert_eq!(digest, digest_bytes(&live.at_once()[8..24]));
        drop(part);
        let bytes = target.take_back::<Vec<u8>>().expect("nothing is on its way");
        assert_eq!((bytes[107], bytes[108], bytes[116], bytes[124]), (1, 77, 2, 1));
        assert!(LiveMemory::leaked(&[]).at_once().is_empty());
    }
}
