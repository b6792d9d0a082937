//! Host memory that a device writes to while nobody reads it.
#![forbid(unsafe_code)]

use super::{DeviceError, Result};
use crate::base::sync::Lock;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The owner of the memory while nobody writes to it.
trait Memory: AsMut<[u8]> + Any + Send {}

impl<T: AsMut<[u8]> + Any + Send> Memory for T {}

/// Host memory that is lent out for [`Stream::send`](super::Stream::send). Until [`Target::take_back`] returns it, nobody reads it, and
/// whoever sends to it must make sure that no two transfers write the same bytes at once.
pub struct Target {
    address: usize,
    bytes: u64,
    memory: Lock<Box<dyn Memory>>,
}

impl Target {
    /// Lends memory out. Its bytes must not move while its owner stays where it is, as is the case with a slot, a vector or a box.
    pub(crate) fn new(memory: impl AsMut<[u8]> + Any + Send) -> Arc<Target> {
        let mut memory: Box<dyn Memory> = Box::new(memory);
        let slice = (*memory).as_mut();
        let (address, bytes) = (slice.as_mut_ptr().expose_provenance(), slice.len() as u64);
        Arc::new(Target { address, bytes, memory: Lock::new(memory) })
    }

    /// Lends out memory that is never freed.
    pub fn leaked(memory: &'static mut [u8]) -> Arc<Target> {
        Target::new(memory)
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`DeviceError::Range`] if it extends beyond the end.
    pub fn part(self: &Arc<Self>, at: u64, bytes: u64) -> Result<TargetPart> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(TargetPart { target: self.clone(), at, bytes }),
            _ => Err(DeviceError::Range { offset: at, bytes, reason: "it goes past the end of its memory" }),
        }
    }

    /// Returns the memory if no transfer has any part of it any more. Otherwise, or if the memory is of another type,
    /// returns the target itself.
    ///
    /// # Errors
    /// The target itself: a transfer still has a part of it, or its memory is of another type.
    pub fn take_back<T: 'static>(self: Arc<Self>) -> std::result::Result<T, Arc<Target>> {
        if !(&**self.memory.lock() as &dyn Any).is::<T>() {
            return Err(self);
        }
        let target = Arc::try_unwrap(self)?;
        let memory: Box<dyn Any> = target.memory.into_inner();
        Ok(*memory.downcast::<T>().expect("its type was asked for before"))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({:#x}, {} bytes)", self.address, self.bytes)
    }
}

/// A part of a [`Target`], which it keeps lent out.
#[derive(Clone, Debug)]
pub struct TargetPart {
    target: Arc<Target>,
    at: u64,
    bytes: u64,
}

impl TargetPart {
    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.target.address + self.at as usize
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes bytes there, starting at an offset, as a device would.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let mut memory = self.target.memory.lock();
        let start = (self.at + at) as usize;
        (**memory).as_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_once_nothing_is_on_its_way_there() {
        let target = Target::new(vec![0u8; 10]);
        let part = target.part(2, 3).expect("inside");
        assert!(target.part(8, 3).is_err());
        part.write(1, &[7, 8]);
        let target = target.take_back::<Vec<u8>>().expect_err("a part is there");
        drop(part);
        let target = target.take_back::<Box<[u8]>>().expect_err("another type");
        assert_eq!(target.take_back::<Vec<u8>>().expect("all is there"), [0, 0, 0, 7, 8, 0, 0, 0, 0, 0]);
    }
}
