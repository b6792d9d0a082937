//! Staggering: flushes from the device take turns with those of other ranks, and keep to a rate.
//!
//! After a checkpoint, all GPUs of a node flush at once. Each of them receives only a fraction of the bandwidth of the links and of host
//! memory, and the application's own transfers receive little at that time (ICS'19, section 3). Two means spread such a burst; each of them
//! can be switched on separately (`[stagger]` of the configuration):
//!
//! - *turns* ([`super::turns`]): only a limited number of ranks flush at once over a link, or on the node, controlled by tokens of the node
//!   segment;
//! - a *pace* ([`crate::transfer::pacing`]): a number of bytes per second for this rank, fixed or found by watching the application's steps
//!   ([`super::steps`]).
//!
//! Both only hold back the threads that flush, between the pieces of a download. The pieces are those of the device, 16 MiB: one piece
//! takes 0.7 ms on a link of 25 GB/s, which is short compared with the steps of an application and long compared with the cost of asking.
//! So a rank's pace is even enough without smaller pieces.
//!
//! Staggering is a courtesy and never a reason to hang. A flush that waits for a turn for longer than `stagger.patience` continues without
//! one. The pace does not apply while a call of the application waits for room, for a version, for flushes or for a level of a checkpoint
//! ([`Waiting`]): then nobody gains from a slower flush. When the caches are closed, nothing is held back.
#![forbid(unsafe_code)]

use super::steps::{CallKind, Steps};
use super::trace::HistoryStats;
use super::turns::Turns;
use crate::affinity::links::link_of;
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::base::units::MIB;
use crate::config::{BurstOrder, BurstScope, FlushRate, StaggerConfig};
use crate::device::Device;
use crate::segment::{Order, Segment, Token};
use crate::transfer::Waiting;
use crate::transfer::pacing::{self, ControlSettings, Pace, RateControl};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many bytes may be sent at once under a pace: one piece.
const PACE_BURST_BYTES: u64 = 16 * MIB;
/// How the flushes of one rank are held back.
pub(super) struct Bursts {
    pub(super) turns: Option<Turns>,
    pub(super) pacing: Option<Lock<Pacing>>,
    /// How long a flush waits for a turn.
    pub(super) patience: Duration,
    pub(super) started: Instant,
    /// Calls of the application that wait for flushes.
    pub(super) waiting: Waiting,
    /// The times spent waiting for turns and for the pace, in nanoseconds, and the number of turns that did not come in time.
    pub(super) turn_nanos: AtomicU64,
    pub(super) pace_nanos: AtomicU64,
    pub(super) given_up: AtomicU64,
}

/// The pace, and the control that finds it if it is not configured.
pub(super) struct Pacing {
    pub(super) pace: Pace,
    pub(super) control: Option<RateControl>,
    pub(super) steps: Steps,
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

    /// Shows a step to the control, and adapts the pace.
    pub(super) fn on_step(&mut self, step: Option<pacing::Step>, now: Duration) {
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
            pacing: pacing.map(Lock::new),
            patience: config.patience,
            started: Instant::now(),
            waiting,
            turn_nanos: AtomicU64::new(0),
            pace_nanos: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn pacing(&self) -> Option<Guard<'_, Pacing>> {
        self.pacing.as_ref().map(|pacing| pacing.lock())
    }

    /// Notes a call of the application, until the returned value is dropped.
    pub(super) fn call(&self, kind: CallKind) -> Call<'_> {
        self.with_steps(|steps, now| steps.on_call(kind, now));
        Call(self)
    }

    /// Passes the step that has ended, if one has, to the control. Costs nothing if there is no control.
    pub(super) fn with_steps(&self, what: impl FnOnce(&mut Steps, Duration) -> Option<pacing::Step>) {
        let Some(mut pacing) = self.pacing().filter(|pacing| pacing.control.is_some()) else { return };
        let now = self.now();
        let step = what(&mut pacing.steps, now);
        pacing.on_step(step, now);
    }

    /// Adds the counters of staggering.
    pub(super) fn count(&self, stats: &mut HistoryStats) {
        let seconds = |nanos: &AtomicU64| nanos.load(Ordering::Relaxed) as f64 * 1e-9;
        stats.turn_seconds = seconds(&self.turn_nanos);
        stats.pace_seconds = seconds(&self.pace_nanos);
        stats.turns_given_up = self.given_up.load(Ordering::Relaxed);
        stats.flush_rate = self.pacing().and_then(|pacing| pacing.pace.rate());
    }
}

/// The turns that the configuration asks for; `None` if they are not available.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Steps of the application, on a clock that the test controls.
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
        // Steps that are as short as without a flush: the limit is removed.
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
