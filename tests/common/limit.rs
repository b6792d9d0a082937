//! How long tests wait. What another process or thread does is waited for, never looked at once, and there is one limit for
//! it: reaching it is a failure, so it is far above what a loaded machine needs. The unit tests of the library use this file too.
#![allow(dead_code)] // Each test program uses a part of this.

use std::path::Path;
use std::time::{Duration, Instant};

/// No test waits longer for one thing.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Waits until something is so; `what` completes "waited in vain until".
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited {LIMIT:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The whole lines of a text that somebody may still be writing.
pub fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

/// The whole lines of a file that another process may be writing; none if it is not there.
pub fn lines_written_to(path: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    whole_lines(&text).to_owned()
}
