//! Staggering: flushes from the device that take turns with other ranks' and keep to a rate.
//!
//! After a checkpoint all GPUs of a node want to flush at once, each gets a fraction of the links and of host memory,
//! and the application's own transfers beside them get little (ICS'19, section 3). Two things spread such a burst, each of
//! which can be switched on by itself (`[stagger]` of the configuration):
//!
//! - *turns* ([`super::turns`]): so many ranks at once over a link, or on the node, by tokens of the node segment;
//! - a *pace* ([`crate::transfer::pacing`]): bytes per second of this rank, fixed or found by watching the application's steps
//!   ([`super::steps`]).
//!
//! Both hold back the threads that flush, between pieces of a download, and nobody else. Pieces are those of the
//! device, 16 MiB: one is 0.7 ms of a link of 25 GB/s, short beside the steps of an application and long beside the cost
//! of asking, so the pace of a rank is even enough without smaller ones.
//!
//! Staggering is a courtesy and never a reason to hang. Who waits for a turn for longer than `stagger.patience` goes on without.
//! The pace does not hold while a call of the application waits for room, for a version, for flushes or for a level of a checkpoint
//! ([`Waiting`]): slowing a flush down protects nobody then. When the caches are closed nothing is held back.
#![forbid(unsafe_code)]

use super::steps::{CallKind, Steps};
use super::turns::Turns;
use super::{Caches, HistoryStats, Shared};
use crate::affinity::links::link_of;
use crate::base::log;
use crate::base::units::MIB;
use crate::config::{BurstOrder, BurstScope, FlushRate, StaggerConfig};
use crate::device::{Device, DeviceError, DeviceSpan, Stream};
use crate::segment::{Order, Segment, Token};
use crate::transfer::Waiting;
use crate::transfer::pacing::{self, ControlSettings, Pace, RateControl};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What may go at once under a pace: one piece.
const PACE_BURST_BYTES: u64 = 16 * MIB;
/// How long a thread that is held back sleeps: an eighth of what it has waited, within these bounds. Turns of a few
/// milliseconds change hands in fractions of one.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// How the flushes of one rank are held back.
pub(super) struct Bursts {
    turns: Option<Turns>,
    pacing: Option<Mutex<Pacing>>,
    /// How long a turn is waited for.
    pub(super) patience: Duration,
    started: Instant,
    /// Calls of the application that wait for flushes.
    pub(super) waiting: Waiting,
    /// Waited for turns and for the pace, in nanoseconds; turns that did not come in time.
    turn_nanos: AtomicU64,
    pace_nanos: AtomicU64,
    given_up: AtomicU64,
}

/// The pace, and what finds it if nobody has set it.
struct Pacing {
    pace: Pace,
    control: Option<RateControl>,
    steps: Steps,
}

impl Pacing {
    fn new(rate: FlushRate, slowdown: f64) -> Option<Pacing> {
        let (rate, control) = match rate {
            FlushRate::Unlimited => return None,
            FlushRate::Bytes(bytes) => (Some(bytes), None),
            FlushRate::Auto => {
                (None, Some(RateControl::new(ControlSettings { target: slowdown, ..ControlSettings::default() })))
            }
        };
        Some(Pacing { pace: Pace::new(rate, PACE_BURST_BYTES, Duration::ZERO), control, steps: Steps::default() })
    }

    /// The control sees a step; the pace follows.
    fn on_step(&mut self, step: Option<pacing::Step>, now: Duration) {
        let (Some(control), Some(step)) = (&mut self.control, step) else { return };
        control.on_step(step);
        let rate = control.rate();
        if rate != self.pace.rate() {
            log::debug!("event=flush-rate before={:?} now={rate:?} step={:?}", self.pace.rate(), step.time);
            self.pace.set_rate(rate, now);
        }
    }
}

impl Bursts {
    pub(super) fn new(
        config: &StaggerConfig,
        device: &dyn Device,
        segment: Option<&Arc<Segment>>,
        waiting: Waiting,
    ) -> Bursts {
        let pacing = Pacing::new(config.rate, config.slowdown);
        Bursts {
            turns: config.bursts.and_then(|capacity| turns(config, capacity, device, segment)),
            pacing: pacing.map(Mutex::new),
            patience: config.patience,
            started: Instant::now(),
            waiting,
            turn_nanos: AtomicU64::new(0),
            pace_nanos: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn pacing(&self) -> Option<MutexGuard<'_, Pacing>> {
        self.pacing.as_ref().map(|pacing| pacing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a call of the application, until the answer is dropped.
    pub(super) fn call(&self, kind: CallKind) -> Call<'_> {
        self.with_steps(|steps, now| steps.on_call(kind, now));
        Call(self)
    }

    /// Lets the control have the step that has ended, if one has. Costs nothing where there is no control.
    fn with_steps(&self, what: impl FnOnce(&mut Steps, Duration) -> Option<pacing::Step>) {
        let Some(mut pacing) = self.pacing().filter(|pacing| pacing.control.is_some()) else { return };
        let now = self.now();
        let step = what(&mut pacing.steps, now);
        pacing.on_step(step, now);
    }

    /// Adds its counters.
    pub(super) fn count(&self, stats: &mut HistoryStats) {
        let seconds = |nanos: &AtomicU64| nanos.load(Ordering::Relaxed) as f64 * 1e-9;
        stats.turn_seconds = seconds(&self.turn_nanos);
        stats.pace_seconds = seconds(&self.pace_nanos);
        stats.turns_given_up = self.given_up.load(Ordering::Relaxed);
        stats.flush_rate = self.pacing().and_then(|pacing| pacing.pace.rate());
    }
}

/// The turns that the configuration asks for; `None` if they cannot be had.
fn turns(config: &StaggerConfig, capacity: u32, device: &dyn Device, segment: Option<&Arc<Segment>>) -> Option<Turns> {
    let Some(segment) = segment else {
        log::warn!("event=no-turns: stagger.bursts needs the memory tier");
        return None;
    };
    let link = match config.scope {
        BurstScope::Node => 0,
        BurstScope::Link => link_of(&device.info().bus_id),
    };
    let order = match config.order {
        BurstOrder::ShortestFirst => Order::ShortestFirst,
        BurstOrder::RoundRobin => Order::RoundRobin,
        BurstOrder::FirstCome => Order::FirstCome,
    };
    let turns = Turns::new(segment.clone(), Token::Link(link), order, capacity);
    turns.inspect_err(|error| log::warn!("event=no-turns link={link} error={error}")).ok()
}

/// A call of the application.
pub(in crate::transfer) struct Call<'a>(&'a Bursts);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.with_steps(|steps, now| {
            steps.on_return(now);
            None
        });
    }
}

impl Caches {
    /// Says that a time step of the application has ended and the next one begins. Worth while with `stagger.rate = "auto"`, which
    /// compares steps with a flush beside them to steps without: call it once in every step, always at the same place. From
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

    /// Notes that a capture with device regions is under way, until the answer is dropped.
    pub(in crate::transfer) fn capturing(&self) -> Call<'_> {
        self.shared.bursts.call(CallKind::Write)
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

    /// A flush of so many bytes, which holds nothing yet. For the application's steps it is under way from here on: one beside which
    /// it only waits is neither a quiet step nor a loaded one.
    pub(super) fn burst(&self, version: u64, bytes: u64) -> Burst<'_> {
        self.ways().on_flush(self.now());
        if let Some(mut pacing) = self.bursts.pacing() {
            pacing.steps.on_flush(self.bursts.now());
        }
        let (waited, paced) = (Duration::ZERO, Duration::ZERO);
        Burst { shared: self, version, bytes, arrived: 0, passed: 0, begun: None, hold: Hold::Nothing, waited, paced }
    }
}

/// A flush: one version, or one shard of a checkpoint. Dropping it ends its turn; not to be dropped under the lock of the books.
pub(super) struct Burst<'a> {
    shared: &'a Shared,
    version: u64,
    bytes: u64,
    /// How much of it has arrived.
    arrived: u64,
    /// How much of it was let through, and since when.
    passed: u64,
    begun: Option<Instant>,
    hold: Hold,
    /// How long it waited for its turns, and for the pace.
    waited: Duration,
    paced: Duration,
}

/// What a flush has to do with its rank's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// It needs one.
    Nothing,
    /// It has one.
    Turn,
    /// It goes on without.
    Without,
}

impl Burst<'_> {
    /// Downloads a part of it, piece by piece as it is let.
    ///
    /// # Errors
    /// As [`Stream::download`].
    pub(super) fn download(
        &mut self,
        stream: &dyn Stream,
        copies: &mut [(DeviceSpan, &mut [u8])],
    ) -> Result<(), DeviceError> {
        let bursts = &self.shared.bursts;
        let bytes: u64 = copies.iter().map(|(span, _)| span.bytes()).sum();
        match bursts.turns.is_some() || bursts.pacing.is_some() {
            true => stream.download(copies, Some(&mut |bytes| self.pass(bytes)))?,
            false => stream.download(copies, None)?,
        }
        self.arrived += bytes;
        Ok(())
    }

    /// How long it was held back, by the pace and for turns: time in which the link was not at it.
    pub(super) fn held_back(&self) -> Duration {
        self.waited + self.paced
    }

    /// Waits until the next piece may go. The pace comes first: who waits for it at the beginning has no turn yet.
    fn pass(&mut self, bytes: u64) {
        let bursts = &self.shared.bursts;
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
        let (shared, bursts) = (self.shared, &self.shared.bursts);
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
        let Some(turns) = &self.shared.bursts.turns else { return };
        if self.hold == Hold::Turn && turns.is_over() {
            turns.end();
            self.hold = Hold::Nothing;
        }
        if self.hold == Hold::Nothing {
            self.hold = self.take_turn(turns);
        }
    }

    /// Waits for a turn, as long as that is worth while.
    fn take_turn(&self, turns: &Turns) -> Hold {
        let (shared, bursts) = (self.shared, &self.shared.bursts);
        let begun = Instant::now();
        let bytes = self.bytes.saturating_sub(self.passed);
        turns.queue(bytes);
        while !shared.is_stopping() {
            match turns.try_begin(bytes) {
                Ok(true) => return Hold::Turn,
                Ok(false) if begun.elapsed() < bursts.patience => std::thread::sleep(pause(begun)),
                Ok(false) => {
                    // Once is worth a line; whoever holds the token may do so for long.
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

impl Drop for Burst<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Steps of the application, on a clock of the test's.
    #[test]
    fn the_pace_follows_what_the_steps_say() {
        let mut pacing = Pacing::new(FlushRate::Auto, 0.02).expect("paced");
        let mut now = Duration::ZERO;
        let mut run = |pacing: &mut Pacing, count: u32, length: Duration, is_flushing: bool| {
            for _ in 0..count {
                if is_flushing {
                    pacing.steps.on_flush(now);
                    pacing.steps.on_bytes(500 * MIB);
                }
                now += length;
                let step = pacing.steps.on_told(now);
                pacing.on_step(step, now);
                if is_flushing {
                    pacing.steps.on_flushed(now);
                }
            }
        };
        run(&mut pacing, 10, 100 * MS, false);
        run(&mut pacing, 8, 130 * MS, true);
        let lowered = pacing.pace.rate().expect("a limit");
        assert_eq!(lowered, (500.0 * MIB as f64 / 0.13 / 2.0) as u64, "half of what was seen");
        // Steps that are as short as without a flush: the limit goes.
        for _ in 0..100 {
            run(&mut pacing, 10, 100 * MS, false);
            run(&mut pacing, 8, 100 * MS, true);
        }
        assert_eq!(pacing.pace.rate(), None);
    }

    #[test]
    fn a_fixed_rate_asks_nobody() {
        assert!(Pacing::new(FlushRate::Unlimited, 0.02).is_none());
        let mut pacing = Pacing::new(FlushRate::Bytes(1000), 0.02).expect("paced");
        assert!(pacing.control.is_none());
        assert_eq!(pacing.pace.next(PACE_BURST_BYTES, Duration::ZERO), Duration::ZERO);
        assert_eq!(pacing.pace.next(1000, Duration::ZERO), Duration::from_secs(1));
    }
}
