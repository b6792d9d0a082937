//! A single flush, and how it is held back.
#![forbid(unsafe_code)]

use super::shared::{Caches, Shared};
use super::trace::HistoryStats;
use super::turns::Turns;
use crate::base::log;
use crate::device::{DeviceError, DeviceSpan, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread that is held back sleeps: an eighth of the time it has waited so far, within these bounds. This is
/// fine enough for turns of a few milliseconds to change hands in fractions of a millisecond.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(1);

impl Caches {
    /// Says that a time step of the application has ended and the next one begins. Worthwhile with `stagger.rate = "auto"`, which
    /// compares steps during a flush to steps without one: call it once in every step, always at the same place. From
    /// the first call on, steps are what the application says; before, they are guessed from the times between appends and
    /// captures.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// Never; well below a microsecond, a few microseconds when the rate is decided on.
    pub fn step(&self) {
        self.shared.bursts.with_steps(|steps, now| steps.on_told(now));
    }

    /// Counters of this rank's caches.
    pub fn stats(&self) -> HistoryStats {
        self.shared.stats()
    }
}

impl Shared {
    pub(super) fn stats(&self) -> HistoryStats {
        let mut stats = self.lock().trace.stats.clone();
        stats.host_bytes = self.host_bytes();
        stats.slot_bytes_pinned = self.registered.bytes(0..u64::MAX) - stats.host_bytes.1;
        self.bursts.count(&mut stats);
        stats
    }

    /// Begins a flush of `bytes` bytes, which holds no turn yet. For the application's steps, the flush is under way from now on: a step
    /// during which it only waits is neither a quiet step nor a loaded one.
    pub(super) fn burst(self: &Arc<Self>, version: u64, bytes: u64) -> Burst {
        self.ways().on_flush(self.now());
        if let Some(mut pacing) = self.bursts.pacing() {
            pacing.steps.on_flush(self.bursts.now());
        }
        let (waited, paced) = (Duration::ZERO, Duration::ZERO);
        Burst {
            shared: self.clone(),
            version,
            bytes,
            arrived: 0,
            passed: 0,
            begun: None,
            hold: Hold::Nothing,
            waited,
            paced,
        }
    }
}

/// A flush: one version, or one shard of a checkpoint. Dropping it ends its turn. It must not be dropped under the lock of the books.
pub(in crate::transfer) struct Burst {
    shared: Arc<Shared>,
    version: u64,
    bytes: u64,
    /// How many bytes have arrived.
    arrived: u64,
    /// How many bytes were let through, and since when.
    passed: u64,
    begun: Option<Instant>,
    hold: Hold,
    /// How long the flush waited for its turns, and for the pace.
    waited: Duration,
    paced: Duration,
}

/// How a flush is related to its rank's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// It needs a turn.
    Nothing,
    /// It has a turn.
    Turn,
    /// It continues without a turn.
    Without,
}

impl Burst {
    /// Downloads a part of the flush, piece by piece, when each piece is let through.
    ///
    /// # Errors
    /// As [`Stream::download`].
    pub(super) fn download(
        &mut self,
        stream: &dyn Stream,
        copies: &mut [(DeviceSpan, &mut [u8])],
    ) -> Result<(), DeviceError> {
        let shared = self.shared.clone();
        let bursts = &shared.bursts;
        let bytes: u64 = copies.iter().map(|(span, _)| span.bytes()).sum();
        match bursts.turns.is_some() || bursts.pacing.is_some() {
            true => stream.download(copies, Some(&mut |bytes| self.pass(bytes)))?,
            false => stream.download(copies, None)?,
        }
        self.arrived += bytes;
        Ok(())
    }

    /// How long the flush was held back, by the pace and for turns: during that time, it did not use the link.
    pub(super) fn held_back(&self) -> Duration {
        self.waited + self.paced
    }

    /// Waits until the next piece may be sent. The pace comes first: a flush that waits for it at the beginning has no turn yet.
    pub(in crate::transfer) fn pass(&mut self, bytes: u64) {
        let shared = self.shared.clone();
        let bursts = &shared.bursts;
        let paced = timed(&bursts.pace_nanos, || self.wait_for_pace(bytes));
        let waited = timed(&bursts.turn_nanos, || self.wait_for_turn());
        self.paced += paced;
        self.waited += waited;
        self.begun.get_or_insert_with(Instant::now);
        self.passed += bytes;
        if let (Some(turns), Hold::Turn) = (&bursts.turns, self.hold) {
            turns.pass(bytes);
        }
        if let Some(mut pacing) = bursts.pacing() {
            pacing.steps.on_bytes(bytes);
        }
    }

    fn wait_for_pace(&self, bytes: u64) {
        let (shared, bursts) = (&*self.shared, &self.shared.bursts);
        let begun = Instant::now();
        while !shared.is_stopping() && !bursts.waiting.is_any() {
            let wait = bursts.pacing().map_or(Duration::ZERO, |mut pacing| pacing.pace.next(bytes, bursts.now()));
            if wait.is_zero() {
                return;
            }
            std::thread::sleep(wait.min(pause(begun)));
        }
    }

    fn wait_for_turn(&mut self) {
        let shared = self.shared.clone();
        let Some(turns) = &shared.bursts.turns else { return };
        if self.hold == Hold::Turn && turns.is_over() {
            turns.end();
            self.hold = Hold::Nothing;
        }
        if self.hold == Hold::Nothing {
            self.hold = self.take_turn(turns);
        }
    }

    /// Waits for a turn, as long as that is worthwhile.
    fn take_turn(&self, turns: &Turns) -> Hold {
        let (shared, bursts) = (&*self.shared, &self.shared.bursts);
        let begun = Instant::now();
        let bytes = self.bytes.saturating_sub(self.passed);
        turns.queue(bytes);
        while !shared.is_stopping() {
            match turns.try_begin(bytes) {
                Ok(true) => return Hold::Turn,
                Ok(false) if begun.elapsed() < bursts.patience => std::thread::sleep(pause(begun)),
                Ok(false) => {
                    // Only the first time is worth a warning: the holder of the token may keep it for long.
                    let level = match bursts.given_up.fetch_add(1, Ordering::Relaxed) {
                        0 => log::Level::Warn,
                        _ => log::Level::Debug,
                    };
                    log::log!(level, "event=burst-without-token version={} waited={:?}", self.version, begun.elapsed());
                    break;
                }
                Err(error) => {
                    log::debug!("event=burst-without-token version={} error={error}", self.version);
                    break;
                }
            }
        }
        turns.leave(bytes);
        Hold::Without
    }
}

/// Does `what`, and adds up how long it took.
fn timed(sum: &AtomicU64, what: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    what();
    let time = begun.elapsed();
    sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    time
}

/// How long to sleep after waiting since `begun`.
fn pause(begun: Instant) -> Duration {
    (begun.elapsed() / 8).clamp(PAUSE_MIN, PAUSE_MAX)
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.shared.ways().on_flushed(self.arrived, self.shared.now());
        let bursts = &self.shared.bursts;
        if let (Some(turns), Hold::Turn) = (&bursts.turns, self.hold) {
            turns.end();
        }
        if let Some(mut pacing) = bursts.pacing() {
            pacing.steps.on_flushed(bursts.now());
        }
        if bursts.turns.is_none() && bursts.pacing.is_none() {
            return;
        }
        let rate = bursts.pacing().and_then(|pacing| pacing.pace.rate());
        let (version, bytes, hold) = (self.version, self.passed, self.hold);
        let (waited, paced) = (self.waited, self.paced);
        log::debug!(
            "event=burst version={version} bytes={bytes} hold={hold:?} turn={waited:?} pace={paced:?} rate={rate:?}"
        );
        if let Some(begun) = self.begun {
            self.shared.lock().trace.span("burst", version, bytes, begun, self.shared.started);
        }
    }
}
