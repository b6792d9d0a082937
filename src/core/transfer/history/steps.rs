//! The application's steps, and what was flushed during them: the basis for the control of the flush rate. Pure.
//!
//! Only the time that the application spends outside of the library's calls counts: a call that waits for a flush says nothing about what
//! the flush does to the computation. If an application reports its steps ([`super::Caches::step`]), they are taken as reported. For any
//! other application, a step lasts from the end of one append or capture to the beginning of the next; a step with other calls in it (a
//! restore, a wait for flushes) is another kind of work and is left out.
#![forbid(unsafe_code)]

use crate::transfer::pacing::Step;
use std::time::Duration;

/// The kind of a call of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transfer) enum CallKind {
    /// An append or a capture: the border between two steps, unless the application reports its steps.
    Write,
    /// Another call that may take long.
    Other,
}

/// Watches calls and flushes. All times are from one clock that never goes back.
#[derive(Debug, Default)]
pub(super) struct Steps {
    is_told: bool,
    /// Calls of the application that are under way.
    calls: usize,
    /// The beginning of the computation that `step` does not include yet. `None` inside a call, and before the first call.
    computing: Option<Duration>,
    /// What is known of the step so far.
    step: Step,
    /// Does the step contain calls of another kind?
    is_mixed: bool,
    flushes: Flushes,
}

/// The flushes that are under way.
#[derive(Debug, Default)]
struct Flushes {
    count: usize,
    /// The time since when there has been a flush, or the time of the last look.
    since: Duration,
    time: Duration,
    bytes: u64,
}

impl Flushes {
    /// For how long there was a flush since the last look, and how many bytes were moved.
    fn take(&mut self, now: Duration) -> (Duration, u64) {
        if self.count > 0 {
            self.time += now.saturating_sub(self.since);
            self.since = now;
        }
        (std::mem::take(&mut self.time), std::mem::take(&mut self.bytes))
    }
}

impl Steps {
    /// A flush begins.
    pub(super) fn on_flush(&mut self, now: Duration) {
        if self.flushes.count == 0 {
            self.flushes.since = now;
        }
        self.flushes.count += 1;
    }

    /// A flush is about to move this many bytes.
    pub(super) fn on_bytes(&mut self, bytes: u64) {
        self.flushes.bytes += bytes;
    }

    /// A flush has ended.
    pub(super) fn on_flushed(&mut self, now: Duration) {
        self.flushes.count = self.flushes.count.saturating_sub(1);
        if self.flushes.count == 0 {
            self.flushes.time += now.saturating_sub(self.flushes.since);
        }
    }

    /// The application calls. Returns the step that has ended with the call, if one has.
    pub(super) fn on_call(&mut self, kind: CallKind, now: Duration) -> Option<Step> {
        self.calls += 1;
        if self.calls > 1 {
            return None;
        }
        self.collect(now);
        self.computing = None;
        match kind {
            CallKind::Write if !self.is_told => self.finish(),
            CallKind::Write => None,
            CallKind::Other => {
                self.is_mixed = true;
                None
            }
        }
    }

    /// The call returns.
    pub(super) fn on_return(&mut self, now: Duration) {
        self.calls = self.calls.saturating_sub(1);
        if self.calls == 0 {
            self.computing = Some(now);
            // What was flushed during the call did not coincide with computation.
            self.flushes.take(now);
        }
    }

    /// The application reports that a step has ended. Returns that step; the first time there is none, because nobody knows when it began.
    pub(super) fn on_told(&mut self, now: Duration) -> Option<Step> {
        self.collect(now);
        self.computing = (self.calls == 0).then_some(now);
        self.is_mixed = false;
        let step = self.finish();
        let was_told = std::mem::replace(&mut self.is_told, true);
        step.filter(|_| was_told)
    }

    /// Adds the time for which the application has computed so far; nothing inside a call.
    fn collect(&mut self, now: Duration) {
        let (time, bytes) = self.flushes.take(now);
        if let Some(since) = self.computing {
            self.step.time += now.saturating_sub(since);
            self.step.flush_time += time;
            self.step.flush_bytes += bytes;
        }
    }

    fn finish(&mut self) -> Option<Step> {
        let step = std::mem::take(&mut self.step);
        let is_mixed = std::mem::take(&mut self.is_mixed);
        (!is_mixed && !step.time.is_zero()).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn step(time: u64, flush_time: u64, flush_bytes: u64) -> Option<Step> {
        Some(Step { time: ms(time), flush_time: ms(flush_time), flush_bytes })
    }

    /// Makes an append from `from` to `to`; returns the step that ends with it.
    fn append(steps: &mut Steps, from: u64, to: u64) -> Option<Step> {
        let ended = steps.on_call(CallKind::Write, ms(from));
        steps.on_return(ms(to));
        ended
    }

    #[test]
    fn untold_steps_lie_between_writes_and_leave_the_calls_out() {
        let mut steps = Steps::default();
        assert_eq!(append(&mut steps, 100, 110), None, "nobody knows when the first step began");
        assert_eq!(append(&mut steps, 150, 200), step(40, 0, 0));
        steps.on_flush(ms(210));
        steps.on_bytes(7);
        assert_eq!(append(&mut steps, 230, 290), step(30, 20, 7));
        steps.on_bytes(5);
        steps.on_flushed(ms(300));
        assert_eq!(append(&mut steps, 320, 330), step(30, 10, 5), "what was flushed during the call counts nowhere");
        assert_eq!(append(&mut steps, 350, 360), step(20, 0, 0));
    }

    #[test]
    fn two_flushes_at_once_take_the_time_of_one() {
        let mut steps = Steps::default();
        append(&mut steps, 0, 10);
        steps.on_flush(ms(20));
        steps.on_flush(ms(30));
        steps.on_flushed(ms(40));
        steps.on_flushed(ms(50));
        steps.on_flush(ms(60));
        steps.on_flushed(ms(65));
        assert_eq!(append(&mut steps, 110, 120), step(100, 35, 0));
    }

    #[test]
    fn a_step_with_other_calls_in_it_is_left_out() {
        let mut steps = Steps::default();
        append(&mut steps, 0, 10);
        assert_eq!(steps.on_call(CallKind::Other, ms(20)), None);
        steps.on_return(ms(30));
        assert_eq!(append(&mut steps, 40, 50), None);
        assert_eq!(append(&mut steps, 60, 70), step(10, 0, 0));
    }

    #[test]
    fn told_steps_go_over_calls_and_leave_their_time_out() {
        let mut steps = Steps::default();
        assert_eq!(steps.on_told(ms(10)), None);
        assert_eq!(append(&mut steps, 15, 40), None);
        steps.on_flush(ms(41));
        assert_eq!(steps.on_call(CallKind::Other, ms(50)), None);
        steps.on_return(ms(60));
        assert_eq!(steps.on_told(ms(65)), step(20, 14, 0));
        assert_eq!(append(&mut steps, 70, 75), None);
        assert_eq!(steps.on_told(ms(80)), step(10, 10, 0));
        steps.on_flushed(ms(81));
        steps.on_told(ms(90));
        assert_eq!(steps.on_told(ms(100)), step(10, 0, 0));
    }

    #[test]
    fn the_first_told_step_forgets_what_was_guessed() {
        let mut steps = Steps::default();
        append(&mut steps, 0, 10);
        assert_eq!(steps.on_told(ms(20)), None);
        assert_eq!(steps.on_told(ms(27)), step(7, 0, 0));
    }

    #[test]
    fn calls_of_several_threads_are_one_call() {
        let mut steps = Steps::default();
        append(&mut steps, 0, 10);
        assert_eq!(steps.on_call(CallKind::Write, ms(20)), step(10, 0, 0));
        assert_eq!(steps.on_call(CallKind::Write, ms(25)), None);
        steps.on_return(ms(30));
        steps.on_return(ms(40));
        assert_eq!(append(&mut steps, 45, 50), step(5, 0, 0));
    }
}
