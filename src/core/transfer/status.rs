//! What the root reports to a supervisor, and how a supervisor makes it halt.
//!
//! The root of a group that has a run directory writes its status there about once a second, as a piece of background
//! work like any other, and at once when something happens for which a supervisor waits. Trouble with the directory is
//! reported when it begins, and has no effect on the session.

use super::events::Events;
use super::stats::Stats;
use crate::base::Level;
use crate::base::calendar::unix_now;
use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::format::supervision::{
    Bound, LevelStatus, NewestStatus, RestoredFrom, SERIES_MAX, SeriesStatus, Status, Trouble,
};
use crate::tier::TierId;
use crate::tier::run_directory::RunDirectory;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// How often a status is written when nothing special happens.
const EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two statuses, if a checkpoint was committed: whoever reports on a restart must know which checkpoint it may
/// load.
const SOON: Duration = Duration::from_millis(100);

/// What the engine knows about its supervisor.
pub struct Supervision {
    /// The group's root has a run directory, so `should_exit` checks the halt conditions there. The same on all ranks.
    pub is_on: bool,
    /// The run directory and the constant parts of the status (root only).
    pub teller: Option<Teller>,
    /// Calls of the application so far.
    pub(super) calls: AtomicU64,
    /// The file to which this rank's events are written, if there is one.
    pub events: Option<Events>,
    /// The last complaint of each kind, so that it is made once.
    complaints: Lock<BTreeMap<&'static str, String>>,
    /// Held while a status is made and written: a worker's status must not be written after the last one of `close`, nor mix with it.
    pub(super) writing: Lock<()>,
}

impl Default for Supervision {
    fn default() -> Supervision {
        Supervision::of(false, None, None)
    }
}

/// Writes the status of a group.
pub struct Teller {
    pub(super) directory: RunDirectory,
    /// The parts that do not change.
    pub(super) base: Status,
    /// The incarnation that the file named when this session was opened; empty if it named none.
    before: String,
}

/// The events that a supervisor wants to know.
#[derive(Default)]
pub(super) struct Told {
    /// Checkpoints that have reached some level.
    pub checkpoints: u64,
    levels: BTreeMap<Level, Reached>,
    series: BTreeMap<(String, Level), (u64, f64)>,
    /// The newest checkpoints of this session, by series.
    newest: BTreeMap<String, Newest>,
    /// What was restored last.
    pub restored: Option<RestoredFrom>,
    /// The time of the first step after that restart.
    pub first_step: Option<f64>,
    /// `should_exit` is called.
    pub asks_exit: bool,
    trouble: Option<Trouble>,
    /// Why `should_exit` answered yes.
    pub exit: Option<String>,
    /// The session is closed.
    pub closed: bool,
    /// The node memory in use when it was last reported.
    memory: u64,
    /// When the next status is due.
    pub due: Duration,
    /// When the last status was written.
    last: Duration,
}

#[derive(Clone)]
struct Reached {
    tier: TierId,
    committed: u64,
    first: f64,
    newest: f64,
    name: String,
    version: u64,
}

/// The newest checkpoint of a series that this session has committed.
struct Newest {
    version: u64,
    unix: f64,
    bound: Bound,
}

impl Supervision {
    /// `is_on`: the group's root has a run directory; only the root has a `teller`.
    pub fn of(is_on: bool, teller: Option<Teller>, events: Option<Events>) -> Supervision {
        let (calls, complaints) = (AtomicU64::default(), Lock::default());
        Supervision { is_on, teller, events, calls, complaints, writing: Lock::at(Order::File, ()) }
    }

    /// Warns of a problem that did not exist the last time.
    pub(super) fn complain(&self, event: &'static str, problem: Option<String>) {
        let mut complaints = self.complaints.lock();
        let Some(problem) = problem else {
            complaints.remove(event);
            return;
        };
        if complaints.get(event) != Some(&problem) {
            log::warn!("event={event} error={problem:?}");
            complaints.insert(event, problem);
        }
    }
}

impl Teller {
    /// Prepares the run directory of a root that has just opened its session. `base` names job, group, ranks, process and
    /// run; counting continues where the last session of the group left off.
    pub fn new(directory: RunDirectory, mut base: Status) -> Teller {
        if let Err(error) = directory.create() {
            log::warn!("event=run-directory error={error}");
        }
        let mut before = String::new();
        match directory.read_status(&base.group) {
            Ok(Some(found)) => {
                base.checkpoints_total = found.checkpoints_total;
                // A new store counts its runs anew, and has none of these checkpoints.
                if found.job == base.job && found.generation < base.generation {
                    base.newest = found.newest;
                }
                before = found.incarnation;
            }
            Ok(None) => {}
            Err(problem) => log::warn!("event=run-directory error={problem:?}"),
        }
        base.opened = unix_now();
        Teller { directory, base, before }
    }

    /// Has a later run of the group written its status? The root of a run that was given up for dead, on a host that was cut off, may still
    /// be alive. The status that existed when this session was opened is older, whatever generation it names: it belongs to another job, or
    /// to a store that no longer exists.
    pub(super) fn is_superseded(&self) -> bool {
        let Ok(Some(found)) = self.directory.read_status(&self.base.group) else { return false };
        let age = |status: &Status| (status.generation, status.opened);
        let is_known = [&self.base.incarnation, &self.before].contains(&&found.incarnation);
        !is_known && found.job == self.base.job && age(&found) > age(&self.base)
    }

    pub(super) fn status(&self, told: &Told, stats: &Stats, calls: u64, failed: Option<String>) -> Status {
        let level = |(level, reached): (&Level, &Reached)| LevelStatus {
            level: level.name().into(),
            committed: reached.committed,
            first: reached.first,
            newest: reached.newest,
            name: reached.name.clone(),
            version: reached.version,
            root_bytes: stats.flushed_bytes[reached.tier],
            root_bytes_per_second: stats.bandwidth(reached.tier).unwrap_or_default(),
        };
        let series = |((name, level), (version, unix)): (&(String, Level), &(u64, f64))| SeriesStatus {
            name: name.clone(),
            level: level.name().into(),
            version: *version,
            unix: *unix,
        };
        Status {
            unix: unix_now(),
            restored: told.restored.clone(),
            first_step: told.first_step,
            calls,
            checkpoints: told.checkpoints,
            checkpoints_total: self.base.checkpoints_total + told.checkpoints,
            levels: told.levels.iter().map(level).collect(),
            series: told.series.iter().map(series).collect(),
            newest: told.newest(&self.base),
            in_flight: stats.in_flight,
            refused: stats.abandoned + TierId::all().map(|tier| stats.level_failures[tier]).sum::<u64>(),
            trouble: told.trouble.clone(),
            root_blocked_seconds: stats.blocked_total.as_secs_f64(),
            tuned: stats.tuned.clone(),
            asks_exit: told.asks_exit,
            exit: told.exit.clone(),
            failed,
            closed: told.closed,
            ..self.base.clone()
        }
    }
}

impl Told {
    /// Is it time to write a status? Once for each time.
    pub fn take_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.due;
        if is_due {
            (self.due, self.last) = (now + EVERY, now);
        }
        is_due
    }

    /// Does this amount of node memory differ from the last reported one?
    pub fn is_memory_news(&mut self, used: u64) -> bool {
        std::mem::replace(&mut self.memory, used) != used
    }

    /// A checkpoint is not committed, or not at a level.
    pub fn on_refused(&mut self, name: &str, version: u64, level: Level, reason: String) {
        let level = level.name().into();
        self.trouble = Some(Trouble { name: name.to_owned(), version, level, reason, unix: unix_now() });
    }

    /// A checkpoint is committed at a level; `is_first`: it was not committed at any level before. `bound`: what binds it to its number of
    /// ranks, if that is known.
    pub fn on_committed(&mut self, tier: TierId, name: &str, version: u64, is_first: bool, bound: Option<&Bound>) {
        let (level, now) = (tier.level(), unix_now());
        if let Some(bound) = bound {
            self.note_newest(name, Newest { version, unix: now, bound: bound.clone() });
        }
        self.checkpoints += u64::from(is_first);
        self.due = self.due.min(self.last + SOON);
        let fresh = Reached { tier, committed: 0, first: now, newest: now, name: String::new(), version };
        let reached = self.levels.entry(level).or_insert_with(|| {
            self.due = Duration::ZERO;
            fresh
        });
        (reached.committed, reached.newest, reached.version) = (reached.committed + 1, now, version);
        reached.name = name.to_owned();
        let key = (name.to_owned(), level);
        if self.series.len() < SERIES_MAX || self.series.contains_key(&key) {
            self.series.insert(key, (version, now));
        }
    }

    /// If there are more series than can be listed, those that are bound matter most: they decide whether a job can shrink.
    fn note_newest(&mut self, name: &str, newest: Newest) {
        if let Some(known) = self.newest.get_mut(name) {
            // Levels of an older checkpoint may end after those of a newer one.
            if known.version < newest.version {
                *known = newest;
            }
            return;
        }
        if self.newest.len() >= SERIES_MAX {
            let free = self.newest.iter().find(|(_, known)| known.bound.is_free()).map(|(name, _)| name.clone());
            match free.filter(|_| !newest.bound.is_free()) {
                Some(free) => _ = self.newest.remove(&free),
                None => return,
            }
        }
        self.newest.insert(name.to_owned(), newest);
    }

    /// The newest checkpoint of each series: from this session, otherwise from the reports of earlier sessions.
    fn newest(&self, base: &Status) -> Vec<NewestStatus> {
        let own = self.newest.iter().map(|(name, newest)| NewestStatus {
            name: name.clone(),
            version: newest.version,
            ranks: base.ranks,
            unix: newest.unix,
            bound: newest.bound.clone(),
        });
        let earlier = base.newest.iter().filter(|earlier| !self.newest.contains_key(&earlier.name)).cloned();
        let mut all: Vec<NewestStatus> = own.chain(earlier).collect();
        all.sort_by_key(|newest| newest.bound.is_free());
        all.truncate(SERIES_MAX);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::supervision::status_file;

    fn status(job: &str, incarnation: &str, generation: u64, opened: f64) -> Status {
        let (job, incarnation) = (job.into(), incarnation.into());
        Status { job, group: "world".into(), incarnation, generation, opened, ..Status::new() }
    }

    fn told(told: &mut Told, name: &str, version: u64, regions: &[&str]) {
        let bound = Bound::of(regions.iter().copied());
        told.on_committed(TierId::MEMORY, name, version, true, Some(&bound));
    }

    #[test]
    fn who_can_restore_the_newest_checkpoint_is_told_over_sessions_of_one_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = || RunDirectory::at(folder.path());
        let mut first = Told::default();
        let versions = |told: &Told, base: &Status| {
            let all = told.newest(base).into_iter();
            all.map(|newest| (newest.name, newest.version, newest.ranks, newest.bound.count)).collect::<Vec<_>>()
        };
        told(&mut first, "heat", 70, &[]);
        told(&mut first, "wind", 3, &["rng"]);
        // A level of an older checkpoint, which ended later.
        told(&mut first, "heat", 60, &["old"]);
        let mut base = Status { ranks: 8, ..status("mine", "first", 1, 1.0) };
        let of_first = [("wind".to_owned(), 3, 8, 1), ("heat".to_owned(), 70, 8, 0)];
        assert_eq!(versions(&first, &base), of_first);
        base.newest = first.newest(&base);
        directory().replace(&status_file("world"), &base.encode()).expect("written");

        let next = |generation, job| Status { ranks: 6, ..status(job, "second", generation, 0.0) };
        let teller = Teller::new(directory(), next(2, "mine"));
        let mut second = Told::default();
        assert_eq!(versions(&second, &teller.base), of_first);
        // The program went back, and has taken other checkpoints since.
        told(&mut second, "heat", 65, &["state"]);
        assert_eq!(versions(&second, &teller.base), [("heat".to_owned(), 65, 6, 1), ("wind".to_owned(), 3, 8, 1)]);
        for other in [next(1, "mine"), next(2, "other")] {
            assert!(Teller::new(directory(), other).base.newest.is_empty());
        }
    }

    #[test]
    fn of_many_series_those_that_are_bound_are_told() {
        let mut many = Told::default();
        (0..SERIES_MAX).for_each(|number| told(&mut many, &format!("s{number}"), 1, &[]));
        told(&mut many, "free", 1, &[]);
        told(&mut many, "bound", 1, &["state"]);
        let all = many.newest(&Status::new());
        assert_eq!((all.len(), all[0].name.as_str()), (SERIES_MAX, "bound"));
        assert!(all.iter().all(|newest| newest.name != "free"));
    }

    #[test]
    fn only_a_later_run_of_the_same_job_silences_a_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = || RunDirectory::at(folder.path());
        let put = |status: &Status| directory().replace(&status_file("world"), &status.encode()).expect("written");
        // A status left by another job, or by this job on a store that was removed, names a higher generation.
        for job in ["other", "mine"] {
            put(&status(job, "before", 9, 1.0));
            let teller = Teller::new(directory(), status("mine", "own", 1, 0.0));
            assert!(!teller.is_superseded(), "{job}");
            put(&status("other", "beside", 9, unix_now() + 60.0));
            assert!(!teller.is_superseded());
            put(&status("mine", "later", 2, unix_now() + 60.0));
            assert!(teller.is_superseded());
        }
    }
}
