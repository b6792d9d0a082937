//! The bell on which a thread that moves messages sleeps. It rings when something has arrived from another rank, or when a thread
//! of this process wants the thread's attention.
#![forbid(unsafe_code)]

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the module's documentation.
#[derive(Debug)]
pub struct Bell {
    /// Readable when something has arrived.
    arrivals: OwnedFd,
    /// Readable when somebody has rung.
    rung: OwnedFd,
    is_listened_to: AtomicBool,
}

impl Bell {
    /// A bell that also rings when `arrivals` becomes readable.
    pub fn new(arrivals: OwnedFd) -> io::Result<Bell> {
        let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { arrivals, rung, is_listened_to: AtomicBool::new(false) })
    }

    /// Wakes the thread that listens. This costs next to nothing if no thread listens.
    pub fn ring(&self) {
        if self.is_listened_to.load(Ordering::SeqCst) {
            self.remind();
        }
    }

    /// Wakes the thread that listens, or the next one that listens if no thread does now.
    pub fn remind(&self) {
        // This fails only when the counter is full, and then the bell already rings.
        let _ = rustix::io::write(&self.rung, &1u64.to_ne_bytes());
    }

    /// Sleeps until the bell rings, but for at most `limit`. Does not sleep if something has already arrived or if `has_work`
    /// returns true. Returns true if it finds that something has arrived from another rank. A thread that makes work must make it
    /// known to `has_work` first, and ring afterwards.
    ///
    /// # Blocking
    /// For at most `limit`.
    pub fn listen(&self, limit: Duration, has_work: impl FnOnce() -> bool) -> bool {
        self.is_listened_to.store(true, Ordering::SeqCst);
        let mut on = [PollFd::new(&self.arrivals, PollFlags::IN), PollFd::new(&self.rung, PollFlags::IN)];
        if !has_work() {
            let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
            // If a signal interrupts the poll, the sleep was merely short.
            let _ = poll(&mut on, Some(&limit));
        }
        self.is_listened_to.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.rung, &mut [0u8; 8]);
        !on[0].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limit::LIMIT;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    fn bell() -> (Bell, OwnedFd) {
        let (arrivals, other) = UnixStream::pair().expect("a pair");
        (Bell::new(arrivals.into()).expect("a bell"), other.into())
    }

    #[test]
    fn it_rings_for_arrivals_and_for_whoever_made_work_before() {
        let (bell, other) = bell();
        assert!(!bell.listen(Duration::from_millis(1), || false), "nothing has come");
        assert!(!bell.listen(LIMIT, || true), "there is work already");
        rustix::io::write(&other, b"x").expect("written");
        assert!(bell.listen(LIMIT, || false));
    }

    #[test]
    fn a_reminder_waits_for_the_next_who_listens() {
        let (bell, _other) = bell();
        bell.remind();
        let started = Instant::now();
        assert!(!bell.listen(2 * LIMIT, || false), "nothing has come");
        assert!(started.elapsed() < LIMIT, "it was slept over");
    }

    #[test]
    fn work_that_is_made_while_it_is_being_listened_to_is_never_slept_over() {
        let (bell, _other) = bell();
        let (made, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=20_000 {
                    made.store(number, Ordering::SeqCst);
                    bell.ring();
                    while done.load(Ordering::SeqCst) < number {
                        assert!(started.elapsed() < LIMIT, "it sleeps");
                        std::thread::yield_now();
                    }
                }
            });
            while done.load(Ordering::SeqCst) < 20_000 {
                let known = done.load(Ordering::SeqCst);
                // A lost ring would cost a sleep of this length.
                bell.listen(10 * LIMIT, || made.load(Ordering::SeqCst) > known);
                done.store(made.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        });
    }
}
