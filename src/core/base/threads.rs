//! Threads of ours: named, and without signals.
//!
//! Signals are the application's, whose handlers run on its own threads. They are blocked before a thread exists, which inherits that:
//! there is no moment at which it could take one. (`nix` does this; rustix has no call for it.)
#![forbid(unsafe_code)]

use super::sync::Lock;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// What the names of all of them begin with.
pub const PREFIX: &str = "bvk-";

/// Starts a thread.
///
/// # Errors
/// The system's answer if there is none to be had.
pub fn spawn<T: Send + 'static>(name: String, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    without_signals(|| Builder::new().name(name).spawn(body))?
}

/// Starts a thread that ends before its scope does.
///
/// # Errors
/// The system's answer if there is none to be had.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn_scoped(scope, body))?
}

/// Does work that takes its next piece by itself, in so many threads, the calling one among them; those that cannot be had leave their share to
/// the rest.
pub fn in_threads(threads: usize, name: &str, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            _ = spawn_scoped(scope, name, &work);
        }
        work();
    });
}

/// What `work` makes of each of the items, in their order. Where there are many, several threads work at once: each waits for storage.
pub fn each_in_threads<I: Sync, T: Send>(name: &str, items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T> {
    const THREADS_MAX: usize = 8;
    const ITEMS_MIN: usize = 4;
    let next = AtomicUsize::new(0);
    let made = Lock::new(Vec::with_capacity(items.len()));
    in_threads((items.len() / ITEMS_MIN).clamp(1, THREADS_MAX), name, || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let one = work(item);
            made.lock().push((index, one));
        }
    });
    let mut made = made.into_inner();
    made.sort_unstable_by_key(|(index, _)| *index);
    made.into_iter().map(|(_, one)| one).collect()
}

/// What `start` starts takes no signals.
///
/// # Errors
/// The system's answer if signals cannot be blocked, or not be let in again.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = start();
    before.thread_set_mask()?;
    Ok(started)
}

/// The calling thread takes no signals any more.
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
        // All but those that nobody can block.
        for seen in [seen, scoped.expect("no panic")] {
            assert!(seen.iter().filter(|is_blocked| **is_blocked).count() > before.len() - 3, "{seen:?}");
        }
        assert_eq!(mask(), before);
    }

    #[test]
    fn what_several_threads_make_comes_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let slower_first = |item: &u64| {
            std::thread::sleep(std::time::Duration::from_micros(100 - item));
            item * item
        };
        let squares: Vec<u64> = items.iter().map(|item| item * item).collect();
        assert_eq!(each_in_threads("bvk-test", &items, slower_first), squares);
        assert_eq!(each_in_threads("bvk-test", &items[..1], slower_first), [0]);
        assert!(each_in_threads("bvk-test", &items[..0], slower_first).is_empty());
    }
}
