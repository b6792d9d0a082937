//! Time as a replaceable value: the system's time or a simulated one.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock, read as the time since the clock was made.
pub trait Clock: Send + Sync {
    /// The time since the clock was made. It never decreases.
    fn now(&self) -> Duration;
    /// Waits for about `pause`. A simulated clock advances instead.
    fn sleep(&self, pause: Duration);
}

/// The machine's monotonic clock.
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

/// A clock that moves only when it is told to. All ranks of a simulation share it.
#[derive(Default)]
pub struct SimulatedClock(AtomicU64);

impl SimulatedClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, pause: Duration) {
        self.advance(pause);
    }
}
