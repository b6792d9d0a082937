//! This rank's events, on their way to its file ([`crate::format::events`]).
//!
//! They are collected in memory and written about once a second, as a piece of background work like any other. Events that cannot be
//! written are counted, and the file says later how many are missing; the session continues.
#![forbid(unsafe_code)]

use crate::base::calendar::unix_now;
use crate::base::log;
use crate::base::sync::Lock;
use crate::format::events::{EVENTS_MAX, Event, What, events_file};
use crate::tier::run_directory::RunDirectory;
use std::io;

/// How many bytes may wait: when a file system hangs, later events are only counted.
const WAITING_MAX: usize = 1 << 20;
/// Bytes left free in the file for the line that says that the file is full.
const LAST_LINE: u64 = 1 << 10;

/// A rank's file of events.
pub struct Events {
    directory: RunDirectory,
    file: String,
    run: u64,
    queue: Lock<Queue>,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// The number of events for which there was no room.
    missing: u64,
    /// The file is full.
    is_full: bool,
}

impl Events {
    /// Opens the events of rank `rank` of a group in its `run`. From now on, warnings are kept for this file.
    pub fn new(directory: RunDirectory, group: &str, rank: u32, run: u64) -> Events {
        log::keep();
        let file = events_file(group, rank);
        Events { directory, file, run, queue: Lock::default() }
    }

    /// An event has just happened.
    pub fn note(&self, what: What) {
        self.note_at(unix_now(), what);
    }

    fn note_at(&self, unix: f64, what: What) {
        let line = Event { unix, run: self.run, what }.encode();
        let mut queue = self.queue.lock();
        if queue.is_full {
            return;
        }
        if queue.lines.len() + line.len() > WAITING_MAX {
            queue.missing += 1;
            return;
        }
        queue.lines.extend_from_slice(&line);
    }

    /// Writes what has accumulated.
    ///
    /// # Blocking
    /// Appends to a file.
    ///
    /// # Errors
    /// The system's answer, with the path; what was to be written is lost, but counted.
    pub fn write(&self) -> io::Result<()> {
        for warning in log::take_kept() {
            let importance = warning.level.to_string();
            self.note_at(warning.unix, What::Warned { importance, text: warning.text });
        }
        let (mut lines, missing) = {
            let mut queue = self.queue.lock();
            (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.missing))
        };
        if missing > 0 {
            lines.extend_from_slice(&self.missing(missing, "they could not be written in time"));
        }
        if lines.is_empty() {
            return Ok(());
        }
        let written = self.directory.append(&self.file, EVENTS_MAX - LAST_LINE, &lines);
        match &written {
            Ok(true) => return Ok(()),
            // The next session of this rank would also find the file full.
            Ok(false) => {
                self.queue.lock().is_full = true;
                let reason =
                    format!("the file has {EVENTS_MAX} bytes; move it away, and the next session begins another one");
                log::warn!("event=events-full file={} in={}: {reason}", self.file, self.directory.path().display());
                return self.directory.append(&self.file, EVENTS_MAX, &self.missing(0, &reason)).map(drop);
            }
            Err(_) => {}
        }
        let mut queue = self.queue.lock();
        queue.missing += missing + lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        written.map(drop)
    }

    fn missing(&self, count: u64, reason: &str) -> Vec<u8> {
        let what = What::Missing { count, reason: reason.to_owned() };
        Event { unix: unix_now(), run: self.run, what }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(events: &Events, count: u64) {
        (0..count).for_each(|operation| {
            events.note(What::Written { operation, tier: "local".into(), bytes: 1, seconds: 0.0 });
        });
    }

    #[test]
    fn what_could_not_be_written_is_counted_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let events = Events::new(RunDirectory::at(&path), "world", 3, 2);
        noted(&events, 4);
        events.write().expect_err("no directory is there");
        RunDirectory::at(&path).create().expect("made");
        noted(&events, 1);
        events.write().expect("written");
        events.write().expect("there is nothing more");
        let found = RunDirectory::at(&path).read_events("world", 3).expect("read");
        let whats: Vec<_> = found.into_iter().filter(|event| !matches!(event.what, What::Warned { .. })).collect();
        assert_eq!(whats.len(), 2, "{whats:?}");
        assert!(whats.iter().all(|event| event.run == 2));
        assert!(matches!(whats[1].what, What::Missing { count: 4, .. }), "{whats:?}");
    }

    #[test]
    fn a_full_file_says_so_once_and_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(events_file("world", 0));
        std::fs::write(&path, vec![b'\n'; EVENTS_MAX as usize - 100 - LAST_LINE as usize]).expect("written");
        let events = Events::new(RunDirectory::at(folder.path()), "world", 0, 1);
        for _ in 0..3 {
            noted(&events, 10);
            events.write().expect("it is no error");
        }
        let found = RunDirectory::at(folder.path()).read_events("world", 0).expect("read");
        let whats: Vec<_> = found.into_iter().filter(|event| !matches!(event.what, What::Warned { .. })).collect();
        assert_eq!(whats.len(), 1);
        assert!(matches!(&whats[0].what, What::Missing { count: 0, reason } if reason.contains("move it away")));
        assert!(std::fs::metadata(&path).expect("it is there").len() <= EVENTS_MAX);
    }
}
