//! What the library logs, for tests that expect a line.

use std::sync::Mutex;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().expect("no panic").push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Collects lines from now on. Tests of one process share them.
pub fn collect() {
    if log::set_logger(&Collector).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// Was there a line with all of these parts?
pub fn has(parts: &[&str]) -> bool {
    LINES.lock().expect("no panic").iter().any(|line| parts.iter().all(|part| line.contains(part)))
}
