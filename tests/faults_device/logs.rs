//! The lines that the library logs, for tests that expect one.

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

/// Starts to collect lines. All tests of one process share them.
pub fn collect() {
    if log::set_logger(&Collector).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// Has a line with all of these parts been logged?
pub fn has(parts: &[&str]) -> bool {
    LINES.lock().expect("no panic").iter().any(|line| parts.iter().all(|part| line.contains(part)))
}
