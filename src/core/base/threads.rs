//! Starts Bivouac's threads, which have names and take no signals.
//!
//! Signals belong to the application, whose handlers run on its own threads. All signals are blocked before a thread is created. The thread
//! inherits this, so at no moment can it take a signal. (`nix` does this; rustix has no call for it.)
#![forbid(unsafe_code)]

use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// The prefix of the names of all Bivouac's threads.
pub const PREFIX: &str = "bvk-";

/// Starts a thread.
///
/// # Errors
/// The system's error if no thread can be started.
pub fn spawn<T: Send + 'static>(name: String, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    without_signals(|| Builder::new().name(name).spawn(body))?
}

/// Starts a thread that ends before its scope does.
///
/// # Errors
/// The system's error if no thread can be started.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn_scoped(scope, body))?
}

/// Runs `work`, which takes its pieces one by one, in this many threads, including the calling one. If threads cannot be started, the
/// others do their share.
pub fn in_threads(threads: usize, name: &str, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            _ = spawn_scoped(scope, name, &work);
        }
        work();
    });
}

/// Runs `start` with all signals blocked, so that threads that it starts take none.
///
/// # Errors
/// The system's error if signals cannot be blocked, or not be unblocked again.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = start();
    before.thread_set_mask()?;
    Ok(started)
}

/// Blocks all signals for the calling thread.
pub fn take_no_signals() {
    _ = SigSet::all().thread_block();
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    fn mask() -> Vec<bool> {
        let mask = SigSet::thread_get_mask().expect("it has one");
        Signal::iterator().map(|signal| mask.contains(signal)).collect()
    }

    #[test]
    fn threads_of_ours_take_no_signals_and_the_starting_one_goes_on_taking_them() {
        let before = mask();
        let seen = spawn("bvk-test".into(), mask).expect("a thread").join().expect("no panic");
        let scoped = std::thread::scope(|scope| spawn_scoped(scope, "bvk-test", mask).expect("a thread").join());
        // All signals are blocked except those that cannot be.
        for seen in [seen, scoped.expect("no panic")] {
            assert!(seen.iter().filter(|is_blocked| **is_blocked).count() > before.len() - 3, "{seen:?}");
        }
        assert_eq!(mask(), before);
    }
}
