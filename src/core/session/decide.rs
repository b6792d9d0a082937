//! `should_checkpoint` and `should_exit`: the answer is the same on all ranks, and almost never needs a message.

use super::asking::{ask, decoded};
use super::error::{Error, Result};
use crate::base::Rank;
use crate::base::log;
use crate::base::sync::Lock;
use crate::config::{ExitConfig, Interval};
use crate::coordination::{Ballot, Outcome, Payload};
use crate::policy::{Cadence, Pace, calls_within};
use crate::transfer::Engine;
use signal_hook::{SigId, flag, low_level};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The state on which both answers are based. Every rank updates it in the same way.
pub struct Decisions {
    steps: u64,
    /// Whether a checkpoint is due regardless of the interval.
    is_due_now: bool,
    checkpoint: Cadence,
    since_checkpoint_look: u64,
    pace: Arc<Lock<Pace>>,
    exit: Cadence,
    since_exit_look: u64,
    looked: Arc<Lock<Option<Duration>>>,
    exiting: bool,
    signalled: Arc<AtomicBool>,
    /// Listens for the signal until it is dropped.
    _signal: Option<Listener>,
}

impl Decisions {
    /// Listens for the configured signal.
    ///
    /// # Errors
    /// [`Error::Failed`] if the signal cannot be caught.
    pub fn new(exit: &ExitConfig) -> Result<Decisions> {
        let signalled = Arc::new(AtomicBool::new(false));
        let signal = exit.signal_number().map(|number| Listener::new(number, &signalled));
        let signal = signal.transpose().map_err(|error| Error::Failed { reason: format!("exit.signal: {error}") })?;
        Ok(Decisions {
            steps: 0,
            is_due_now: false,
            checkpoint: Cadence::default(),
            since_checkpoint_look: 0,
            pace: Arc::default(),
            exit: Cadence::default(),
            since_exit_look: 0,
            looked: Arc::default(),
            exiting: false,
            signalled,
            _signal: signal,
        })
    }

    /// Makes the next call of `should_checkpoint` answer true, if an interval is configured.
    ///
    /// # Collective
    /// All ranks call this between the same two calls of `should_checkpoint`; nothing is sent.
    pub fn checkpoint_soon(&mut self) {
        self.is_due_now = true;
    }

    /// See [`crate::Session::should_checkpoint`].
    pub fn should_checkpoint(&mut self, engine: &Engine) -> Result<bool> {
        let interval = engine.config().job.interval;
        self.steps += 1;
        let is_timed = interval.is_timed();
        if self.steps == 1 && interval.steps == 0 && !is_timed && engine.identity().rank == Rank::ROOT {
            log::warn!(
                "event=no-interval: should_checkpoint answers no until an interval is set: BIVOUAC_INTERVAL_SECONDS=auto, or another key \
                 of [interval]"
            );
        }
        if engine.tuning().is_on() {
            let blocked = engine.reporter().count(|stats| stats.blocked_total);
            engine.tuning().on_step(engine.clock().now(), blocked);
        }
        let is_asked_for = std::mem::take(&mut self.is_due_now) && (interval.steps > 0 || is_timed);
        let by_steps = is_asked_for || (interval.steps > 0 && self.steps.is_multiple_of(interval.steps));
        if !is_timed {
            return Ok(by_steps);
        }
        self.since_checkpoint_look += 1;
        if !self.checkpoint.on_call() {
            return Ok(by_steps);
        }
        let calls = std::mem::take(&mut self.since_checkpoint_look);
        let (due, next) = self.look_at_pace(engine, interval, calls)?;
        self.checkpoint.on_look(next);
        Ok(by_steps || due)
    }

    fn look_at_pace(&self, engine: &Engine, interval: Interval, calls: u64) -> Result<(bool, u64)> {
        let (pace, clock, tuning) = (self.pace.clone(), engine.clock().clone(), engine.tuning().clone());
        let (blocked, captured) = engine.reporter().count(|stats| (stats.blocked_total, stats.captured));
        // All ranks have captured the same number of checkpoints.
        let ballot = engine.ballot("should_checkpoint", Payload::Max(vec![blocked.as_nanos() as u64]));
        decide(engine, "should_checkpoint", ballot, move |ballot| {
            let slowest = match &ballot.payload {
                Payload::Max(numbers) => numbers.first().copied().unwrap_or_default(),
                _ => 0,
            };
            let slowest = Duration::from_nanos(slowest);
            tuning.on_slowest(slowest, blocked);
            let cost = slowest.checked_div(u32::try_from(captured).unwrap_or(u32::MAX)).unwrap_or_default();
            let now = clock.now();
            let tuned = tuning.pause(now);
            pace.lock().look(&interval, now, calls, cost, tuned)
        })
    }

    /// See [`crate::Session::should_exit`].
    pub fn should_exit(&mut self, engine: &Engine) -> Result<bool> {
        let exit = &engine.config().job.exit;
        let is_configured = exit.signal.is_some()
            || exit.stop_file.is_some()
            || exit.end_time.is_some()
            || engine.reporter().is_supervised();
        if self.exiting || !is_configured {
            return Ok(self.exiting);
        }
        self.since_exit_look += 1;
        if !self.exit.on_call() {
            return Ok(false);
        }
        let calls = std::mem::take(&mut self.since_exit_look);
        let reason = self.asks_for_exit(engine, exit);
        let mine = u64::from(reason.is_some());
        let (clock, every, looked) = (engine.clock().clone(), exit.check_every, self.looked.clone());
        let ballot = engine.ballot("should_exit", Payload::Bits { all: mine, any: mine });
        let (exiting, next) = decide(engine, "should_exit", ballot, move |ballot| {
            let asked = matches!(ballot.payload, Payload::Bits { any, .. } if any != 0);
            let now = clock.now();
            let before = looked.lock().replace(now);
            (asked, calls_within(every, before.map(|then| now.saturating_sub(then)), calls))
        })?;
        self.exit.on_look(next);
        self.exiting = exiting;
        engine.is_ending.store(exiting, Ordering::Relaxed);
        if exiting {
            engine.tell_exit(reason.as_deref());
        }
        Ok(exiting)
    }

    /// Returns why this rank asks to stop, if it does. Any rank may have received the signal; only the root looks at the files and the
    /// clock.
    fn asks_for_exit(&self, engine: &Engine, exit: &ExitConfig) -> Option<String> {
        if self.signalled.load(Ordering::Relaxed) {
            return Some("the signal of exit.signal".into());
        }
        if !engine.is_root() {
            return None;
        }
        if exit.stop_file.as_ref().is_some_and(|file| file.exists()) {
            return Some("the file of exit.stop_file".into());
        }
        let ending = exit.end_time.is_some_and(|end| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now + exit.reserve >= Duration::from_secs(end)
        });
        if ending { Some("the end time of exit.end_time".into()) } else { engine.reporter().halt_asked() }
    }
}

/// The signals that sessions of this process have listened for.
///
/// An installed handler stays until the process ends, because removing it could also remove one that somebody else has installed on top of
/// it. So that the signal is not swallowed when no session listens any longer, the handler then does what the system would have done,
/// provided that the system's default action was in force when the handler was installed.
static HEARD: Lock<BTreeMap<i32, Heard>> = Lock::new(BTreeMap::new());

struct Heard {
    listeners: usize,
    /// True while no session listens. The handler reads this.
    idle: Arc<AtomicBool>,
}

/// A session that listens for a signal, until it is dropped.
struct Listener {
    number: i32,
    id: SigId,
}

impl Listener {
    fn new(number: i32, signalled: &Arc<AtomicBool>) -> io::Result<Listener> {
        let mut heard = HEARD.lock();
        if let std::collections::btree_map::Entry::Vacant(entry) = heard.entry(number) {
            let idle = Arc::new(AtomicBool::new(true));
            if has_default_action(number) {
                flag::register_conditional_default(number, idle.clone())?;
            }
            entry.insert(Heard { listeners: 0, idle });
        }
        let id = flag::register(number, signalled.clone())?;
        if let Some(heard) = heard.get_mut(&number) {
            heard.listeners += 1;
            heard.idle.store(false, Ordering::SeqCst);
        }
        Ok(Listener { number, id })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut heard = HEARD.lock();
        low_level::unregister(self.id);
        if let Some(heard) = heard.get_mut(&self.number) {
            heard.listeners -= 1;
            heard.idle.store(heard.listeners == 0, Ordering::SeqCst);
        }
    }
}

/// Returns true if the signal is neither caught nor ignored according to the system. If the system does not say, the signal is left to
/// whoever handles it.
fn has_default_action(number: i32) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    ["SigIgn:", "SigCgt:"].iter().all(|key| {
        let mask = status.lines().find_map(|line| line.strip_prefix(key));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask >> (number - 1) & 1 == 0)
    })
}

/// Makes a reduction whose decision consists of the answer and the number of calls until the ranks compare again.
fn decide(
    engine: &Engine,
    call: &'static str,
    ballot: Ballot,
    answer: impl FnOnce(&Ballot) -> (bool, u64) + Send + 'static,
) -> Result<(bool, u64)> {
    decoded(&ask(engine, call, ballot, |ballot| Outcome::agreed("answer", &answer(ballot)))?)
}
