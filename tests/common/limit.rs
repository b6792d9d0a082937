//! Time limits of tests. A test waits for the work of another process or thread, and never checks it only once. There is one limit
//! for all waits: reaching it is a failure, so it is far above the time that a loaded machine needs. The unit tests of the library
//! use this file as well.
#![allow(dead_code)] // Each test program uses a part of this.

use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time that a test waits for one thing.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Waits until a condition holds; `what` completes "waited in vain until".
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited {LIMIT:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The complete lines of a text that somebody may still be writing.
pub fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

/// The complete lines of a file that another process may be writing; none if the file does not exist.
pub fn lines_written_to(path: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    whole_lines(&text).to_owned()
}
