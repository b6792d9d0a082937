//! What run directories and directories of events say.
#![forbid(unsafe_code)]

use bivouac_core::format::events::{Event, with_openings};
use bivouac_core::format::supervision::{Attempt, Status};
use bivouac_core::tier::run_directory::RunDirectory;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Everything that was read.
#[derive(Default)]
pub struct Gathered {
    /// Attempts of `bivouac run` that have ended, the oldest first, for each job that used their run directory; for no job (an empty name)
    /// those of a run directory in which no session has been opened.
    pub attempts: BTreeMap<String, Vec<Attempt>>,
    /// The final state of the groups.
    pub statuses: Vec<Status>,
    /// The events of each rank of each group, given by its name and job, in the order of their time.
    pub events: BTreeMap<(String, String), BTreeMap<u32, Vec<Event>>>,
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
        gathered.follow();
        for events in gathered.events.values_mut().flat_map(BTreeMap::values_mut) {
            events.sort_by(|one, other| one.unix.total_cmp(&other.unix));
            // The user may have named one directory twice, or under two names.
            events.dedup();
        }
        for attempts in gathered.attempts.values_mut() {
            attempts.sort_by(|one, other| one.began.total_cmp(&other.began));
            attempts.dedup();
        }
        gathered
    }

    /// The attempts that started this job.
    pub fn attempts_of(&self, job: &str) -> &[Attempt] {
        self.attempts.get(job).map_or(&[], Vec::as_slice)
    }

    /// How a group is called: by its name, and by that of its job as well if there are several jobs.
    pub fn called(&self, group: &str, job: &str) -> String {
        match self.events.keys().all(|(_, other)| other == job) {
            true => group.to_owned(),
            false => format!("{job}, {group}"),
        }
    }

    fn add(&mut self, directory: &RunDirectory) {
        let (statuses, problems) = directory.read_statuses();
        let mut jobs: BTreeSet<String> = statuses.iter().map(|status| status.job.clone()).collect();
        self.statuses.extend(statuses);
        self.problems.extend(problems);
        match directory.events() {
            Ok(found) => jobs.extend(self.read(directory, found, None)),
            Err(error) => self.problems.push(error.to_string()),
        }
        match directory.read_attempts() {
            Ok(attempts) if jobs.is_empty() => self.attempts.entry(String::new()).or_default().extend(attempts),
            Ok(attempts) => {
                for job in jobs {
                    self.attempts.entry(job).or_default().extend(attempts.iter().cloned());
                }
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// Reads these files of events, all of them or those of one job, and returns the jobs in them.
    fn read(&mut self, directory: &RunDirectory, files: Vec<(String, u32)>, job: Option<&str>) -> BTreeSet<String> {
        let mut jobs = BTreeSet::new();
        for (group, rank) in files {
            let events = match directory.read_events(&group, rank) {
                Ok(events) => events,
                Err(error) => {
                    self.problems.push(error.to_string());
                    continue;
                }
            };
            // Jobs may have used the directory one after the other. Each file is divided before files are put together: another job may
            // have had runs with the same numbers at the same time.
            for (opened, event) in with_openings(&events).into_iter().filter(|it| job.is_none_or(|job| it.0.job == job))
            {
                jobs.insert(opened.job.clone());
                let ranks = self.events.entry((group.clone(), opened.job.clone())).or_default();
                ranks.entry(rank).or_default().push(event.clone());
            }
        }
        jobs
    }

    /// Reads the events of the jobs whose sessions wrote them to a directory of its own (`events.directory`).
    fn follow(&mut self) {
        let places: BTreeSet<(String, String, String, String)> = (self.statuses.iter())
            .filter(|status| !status.events.is_empty())
            .map(|it| (it.events.clone(), it.job.clone(), it.group.clone(), it.host.clone()))
            .collect();
        for (path, job, group, host) in places {
            let directory = RunDirectory::at(&path);
            match directory.events() {
                Ok(found) => drop(self.read(&directory, found, Some(&job))),
                // The user may have named copies of them.
                Err(_) if self.events.contains_key(&(group, job)) => {}
                Err(error) => self.problems.push(format!(
                    "the ranks wrote their events where events.directory says, on {host} to {path}, which cannot be read here: {error}"
                )),
            }
        }
    }
}
