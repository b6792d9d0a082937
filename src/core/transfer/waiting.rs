//! Calls of the application that wait for flushes, because they do not end before something has left device memory.
//!
//! Flushes are held back so that the application computes undisturbed ([`super::pacing`]). While the application is in a waiting call, it
//! does not compute, and flushes run as fast as they can. The engine and the caches of a session share one count.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the calls that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Arc<AtomicUsize>);

/// A call that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingCall(Waiting);

impl Waiting {
    /// A call begins to wait.
    pub(crate) fn begin(&self) -> WaitingCall {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitingCall(self.clone())
    }

    /// Does any call wait now?
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_until_they_end() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.begin(), waiting.clone().begin());
        drop(first);
        assert!(waiting.is_any());
        drop(second);
        assert!(!waiting.is_any());
    }
}
