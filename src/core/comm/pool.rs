//! Keeps the buffers of parcels between two uses. A MiB of fresh memory costs 256 page faults, which take longer than
//! filling it.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The sizes of the smallest and the largest buffer. Capacities are powers of two, so that a buffer fits the next
/// parcel of about the same size.
const SMALLEST: usize = 4 << 10;
const LARGEST: usize = super::MAX_PARCEL_BYTES;

/// The maximum number of buffers that are kept.
const BUFFERS_MAX: usize = 32;
/// The maximum number of bytes that are kept.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// How long an unused pool keeps its memory. Checkpoints are minutes apart, and filling the pool again takes
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(super) struct Pool {
    /// The most recently used buffer comes first, because it may still be in the CPU cache.
    buffers: Vec<Vec<u8>>,
    /// The sum of the capacities of the buffers. At most `BYTES_MAX`.
    bytes: usize,
    used: Instant,
}

impl Pool {
    pub(super) fn new() -> Self {
        Pool { buffers: Vec::new(), bytes: 0, used: Instant::now() }
    }

    /// The capacity of the buffer that [`take`](Self::take) returns for this many bytes.
    pub(super) fn capacity(bytes: usize) -> usize {
        bytes.next_power_of_two().max(SMALLEST)
    }

    /// An empty buffer with room for `bytes`.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let capacity = Self::capacity(bytes);
        match self.buffers.iter().rposition(|buffer| buffer.capacity() == capacity) {
            Some(position) => {
                let buffer = self.buffers.remove(position);
                self.bytes -= capacity;
                buffer
            }
            None => Vec::with_capacity(capacity),
        }
    }

    /// Keeps a buffer, if it is one of ours. The buffer that has been unused for the longest time makes room.
    pub(super) fn put(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if !capacity.is_power_of_two() || !(SMALLEST..=LARGEST).contains(&capacity) {
            return;
        }
        while self.buffers.len() >= BUFFERS_MAX || self.bytes + capacity > BYTES_MAX {
            self.bytes -= self.buffers.remove(0).capacity();
        }
        buffer.clear();
        self.bytes += capacity;
        self.buffers.push(buffer);
        self.used = Instant::now();
    }

    /// Gives the memory back if no buffer has been put in for a while.
    pub(super) fn tidy(&mut self) {
        if !self.buffers.is_empty() && self.used.elapsed() >= PATIENCE {
            self.buffers = Vec::new();
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_about_the_size_comes_back_and_others_do_not() {
        let mut pool = Pool::new();
        let mut buffer = pool.take(1000 * 1000);
        buffer.resize(1000 * 1000, 7);
        let at = buffer.as_ptr();
        assert_eq!(buffer.capacity(), 1 << 20);
        pool.put(buffer);
        let (short, long) = (pool.take(1), pool.take((1 << 20) + 1));
        assert_eq!((short.capacity(), long.capacity()), (SMALLEST, 2 << 20), "each gets its own size");
        let again = pool.take(1 << 20);
        assert_eq!((again.as_ptr(), again.len(), pool.bytes), (at, 0, 0));
    }

    #[test]
    fn what_it_keeps_is_bounded() {
        let mut pool = Pool::new();
        let large: Vec<_> = (0..10).map(|_| pool.take(LARGEST)).collect();
        large.into_iter().for_each(|buffer| pool.put(buffer));
        assert_eq!((pool.buffers.len(), pool.bytes), (BYTES_MAX / LARGEST, BYTES_MAX));
        let small: Vec<_> = (0..2 * BUFFERS_MAX).map(|_| pool.take(1)).collect();
        small.into_iter().for_each(|buffer| pool.put(buffer));
        assert_eq!((pool.buffers.len(), pool.bytes), (BUFFERS_MAX, BUFFERS_MAX * SMALLEST));
        // These do not come from this pool, and are useless or harmful.
        pool.put(Vec::new());
        pool.put(Vec::with_capacity(2 * LARGEST));
        pool.put(Vec::with_capacity(SMALLEST + 1));
        assert_eq!(pool.buffers.len(), BUFFERS_MAX);
    }

    #[test]
    fn an_idle_pool_gives_its_memory_back() {
        let mut pool = Pool::new();
        let buffer = pool.take(1 << 20);
        pool.put(buffer);
        pool.used += Duration::from_secs(3600);
        pool.tidy();
        assert_eq!(pool.buffers.len(), 1);
        pool.used = Instant::now().checked_sub(PATIENCE).expect("the machine runs for more than a second");
        pool.tidy();
        assert_eq!((pool.buffers.len(), pool.bytes), (0, 0));
    }
}
