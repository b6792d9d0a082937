//! Chooses how host memory is prepared, based on rates that are measured during the preparation.
//!
//! HiPC'22 (section IV) found that touching during flushes slows both down, that ranks which pin at the same time slow each other down, and
//! that the better way depends on the machine and on the interval; it chooses by a model that it describes in words. Our model, in bytes
//! per second:
//!
//! ```text
//!          alone  beside the other
//! flush      F        F'
//! touch      P        P'
//!
//! A byte that is touched and filled takes   1/F + 1/P         one after the other,
//!                                           1/min(F', P')     at the same time.
//! touch beside flushes   if   1/min(F', P') <= 1/F + 1/P
//! ```
//!
//! The interval between versions drops out: while both ways keep up with the interval, the application waits in neither of them; when the
//! interval is too short for one of them, it waits less with the faster one. As long as something has not been measured, there is no reason
//! to take turns, so memory is touched during flushes. One line tries the other way.
//!
//! Rates do not decide how memory is pinned. Ranks that register memory at the same time are faster together (n R' > R), but each
//! registration takes longer, and calls to the device wait for the current one: milliseconds instead of the tens of microseconds that they
//! take with turns (docs/GPU.md).
#![forbid(unsafe_code)]

use std::time::Duration;

/// The line that is touched between flushes, to measure how fast both are alone. One such line is enough: the first lines of a process are
/// touched before there is anything to flush, and while a further line waits, a rank with a busy link has to do without its memory.
const LINE_TRIED_BETWEEN: u64 = 4;
/// The share of a touch's time in which the link was busy. From `BUSY_MIN` upwards, the touch counts as simultaneous with flushes; up to
/// `IDLE_MAX`, as alone.
const BUSY_MIN: f64 = 0.5;
const IDLE_MAX: f64 = 0.1;

/// A number of bytes and the time that they took.
#[derive(Clone, Copy, Default, Debug)]
struct Meter {
    bytes: u64,
    time: Duration,
}

impl Meter {
    fn note(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
    }

    /// Bytes per second; `None` before anything was measured.
    fn rate(self) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

/// The measurements, and the conclusions from them.
#[derive(Default, Debug)]
pub(super) struct Ways {
    /// For each, the first is measured alone, the second at the same time as the other.
    flush: [Meter; 2],
    touch: [Meter; 2],
    lines: u64,
    /// The number of flushes under way; `stretch` says when the present stretch of the link's work began, and whether memory was being
    /// touched at that time.
    flushing: u32,
    stretch: (Duration, bool),
    /// How long the link was busy before the present stretch.
    busy: Duration,
    is_touching: bool,
    /// When the present touch began, and how long the link had been busy by then.
    touch_begun: (Duration, Duration),
}

impl Ways {
    /// A flush from the device begins.
    pub(super) fn on_flush(&mut self, now: Duration) {
        if self.flushing == 0 {
            self.stretch = (now, self.is_touching);
        }
        self.flushing += 1;
    }

    /// A flush that has moved `bytes` bytes has ended.
    pub(super) fn on_flushed(&mut self, bytes: u64, now: Duration) {
        let (since, touched) = self.stretch;
        let time = now.saturating_sub(since);
        if touched == self.is_touching {
            self.flush[usize::from(touched)].note(bytes, time);
        }
        self.busy += time;
        self.flushing = self.flushing.saturating_sub(1);
        self.stretch = (now, self.is_touching);
    }

    /// The touching of a line begins.
    pub(super) fn on_touch(&mut self, now: Duration) {
        self.is_touching = true;
        self.touch_begun = (now, self.busy(now));
    }

    /// A line has been touched.
    pub(super) fn on_touched(&mut self, bytes: u64, now: Duration) {
        let (begun, busy) = self.touch_begun;
        let time = now.saturating_sub(begun);
        let share = (self.busy(now) - busy).as_secs_f64() / time.as_secs_f64().max(1e-9);
        if share >= BUSY_MIN {
            self.touch[1].note(bytes, time);
        } else if share <= IDLE_MAX {
            self.touch[0].note(bytes, time);
        }
        self.is_touching = false;
        self.lines += 1;
    }

    fn busy(&self, now: Duration) -> Duration {
        self.busy + if self.flushing > 0 { now.saturating_sub(self.stretch.0) } else { Duration::ZERO }
    }

    /// Is the next line touched at the same time as flushes?
    pub(super) fn touches_beside(&self) -> bool {
        let rates = (self.flush[0].rate(), self.flush[1].rate(), self.touch[0].rate(), self.touch[1].rate());
        match rates {
            (Some(flush), Some(flush_beside), Some(touch), Some(touch_beside)) => {
                1.0 / flush_beside.min(touch_beside) <= 1.0 / flush + 1.0 / touch
            }
            _ => self.lines != LINE_TRIED_BETWEEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Ways that have measured these rates, in GB/s: flush and touch, each alone and at the same time as the other.
    fn measured(flush: [u64; 2], touch: [u64; 2]) -> Ways {
        let mut ways = Ways::default();
        for beside in [0, 1] {
            ways.flush[beside].note(flush[beside] * GB, Duration::from_secs(1));
            ways.touch[beside].note(touch[beside] * GB, Duration::from_secs(1));
        }
        ways
    }

    #[test]
    fn touching_beside_flushes_is_chosen_where_both_together_are_done_sooner() {
        // An H200: neither slows the other down.
        assert!(measured([55, 52], [15, 14]).touches_beside());
        // As in the paper: touching leaves only a fraction of both rates, and (1/20 + 1/3) < 1/2.
        assert!(!measured([20, 10], [3, 2]).touches_beside());
        // The borderline case: 1/2 against 1/4 + 1/4.
        assert!(measured([4, 2], [4, 2]).touches_beside());
        assert!(!measured([4, 1], [4, 3]).touches_beside());
    }

    #[test]
    fn a_line_tries_the_other_way_until_all_is_known() {
        let mut ways = Ways::default();
        let mut tried = Vec::new();
        for line in 0..12 {
            tried.push(ways.touches_beside());
            ways.on_touch(ms(10 * line));
            ways.on_touched(GB, ms(10 * line + 5));
        }
        assert_eq!(tried.iter().filter(|beside| !**beside).count(), 1, "{tried:?}");
        assert!(tried[..4].iter().all(|beside| *beside) && tried[5..].iter().all(|beside| *beside));
    }

    #[test]
    fn flushes_count_once_however_many_are_under_way() {
        let mut ways = Ways::default();
        ways.on_flush(ms(0));
        ways.on_flush(ms(1));
        ways.on_flushed(GB, ms(10));
        ways.on_flushed(GB, ms(20));
        // Idle from 20 to 100.
        ways.on_flush(ms(100));
        ways.on_flushed(2 * GB, ms(120));
        assert_eq!(ways.flush[0].rate(), Some(1e11));
        assert_eq!((ways.busy(ms(500)), ways.flushing), (ms(40), 0));
    }

    #[test]
    fn what_ran_beside_is_told_from_what_ran_alone() {
        let mut ways = Ways::default();
        ways.on_touch(ms(0));
        ways.on_flush(ms(1));
        ways.on_flushed(GB, ms(9));
        ways.on_touched(GB, ms(10));
        assert!(ways.flush[1].bytes == GB && ways.touch[1].bytes == GB, "{ways:?}");
        ways.on_touch(ms(20));
        ways.on_touched(GB, ms(30));
        ways.on_flush(ms(40));
        ways.on_flushed(GB, ms(50));
        assert!(ways.flush[0].bytes == GB && ways.touch[0].bytes == GB, "{ways:?}");
        // A touch that begins during a flush makes the flush count as neither.
        ways.on_flush(ms(60));
        ways.on_touch(ms(65));
        ways.on_flushed(GB, ms(70));
        ways.on_touched(GB, ms(90));
        assert!(ways.flush.iter().all(|meter| meter.bytes == GB) && ways.touch.iter().all(|meter| meter.bytes == GB));
    }
}
