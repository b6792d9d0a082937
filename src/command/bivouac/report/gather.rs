//! What run directories and directories of events say.
#![forbid(unsafe_code)]

use bivouac_core::format::events::Event;
use bivouac_core::format::supervision::{Attempt, Status};
use bivouac_core::tier::run_directory::RunDirectory;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything that was read.
#[derive(Default)]
pub struct Gathered {
    /// Attempts of `bivouac run` that have ended, the oldest first.
    pub attempts: Vec<Attempt>,
    /// The final state of the groups.
    pub statuses: Vec<Status>,
    /// The events of each rank of each group, in the order of their time.
    pub events: BTreeMap<String, BTreeMap<u32, Vec<Event>>>,
    /// What could not be read.
    pub problems: Vec<String>,
}

impl Gathered {
    /// Reads the directories.
    pub fn of(directories: &[PathBuf]) -> Gathered {
        let mut gathered = Gathered::default();
        for path in directories {
            gathered.add(&RunDirectory::at(path));
        }
        for events in gathered.events.values_mut().flat_map(BTreeMap::values_mut) {
            events.sort_by(|one, other| one.unix.total_cmp(&other.unix));
            // The user may have named one directory twice, or under two names.
            events.dedup();
        }
        gathered.attempts.sort_by(|one, other| one.began.total_cmp(&other.began));
        gathered.attempts.dedup();
        gathered
    }

    fn add(&mut self, directory: &RunDirectory) {
        match directory.read_attempts() {
            Ok(attempts) => self.attempts.extend(attempts),
            Err(error) => self.problems.push(error.to_string()),
        }
        let (statuses, problems) = directory.read_statuses();
        self.statuses.extend(statuses);
        self.problems.extend(problems);
        let found = directory.events().unwrap_or_else(|error| {
            self.problems.push(error.to_string());
            Vec::new()
        });
        for (group, rank) in found {
            match directory.read_events(&group, rank) {
                Ok(events) => self.events.entry(group).or_default().entry(rank).or_default().extend(events),
                Err(error) => self.problems.push(error.to_string()),
            }
        }
    }
}
