//! What the status files of an attempt say: events, progress, and whether it still moves.
//!
//! Status files of earlier runs are in the same directory. Those of this attempt are the ones whose incarnations did
//! not exist there before it started.
#![forbid(unsafe_code)]

use super::decide::{Outcome, Reached};
use bivouac_core::base::units::Bytes;
use bivouac_core::format::supervision::{LevelStatus, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long an attempt may do nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// From one sign of life of an open session to the next.
    pub hang: Option<Duration>,
    /// From the launch to the first open session.
    pub start: Option<Duration>,
}

/// Something that has happened in the job.
#[derive(Clone, PartialEq, Debug)]
pub struct Happened {
    /// One word: `opened`, `restored`, `first-step`, `committed`, `asked-to-exit`, `session-failed`, `closed`.
    pub event: &'static str,
    /// The event in words.
    pub text: String,
    /// When it happened, by the clock of the job's root.
    pub unix: f64,
}

/// Follows one attempt. Times are relative to the launch of the attempt.
#[derive(Debug)]
pub struct Watch {
    /// Incarnations that existed before the attempt.
    before: BTreeSet<String>,
    seen: BTreeMap<String, Status>,
    told: BTreeSet<(String, &'static str, String)>,
    marks: BTreeMap<String, (u64, u64)>,
    moved: Duration,
    restored: Reached,
}

impl Watch {
    /// Watches an attempt that is about to start. `before` has the incarnations of all status files that exist.
    pub fn new(before: BTreeSet<String>) -> Watch {
        Watch {
            before,
            seen: BTreeMap::new(),
            told: BTreeSet::new(),
            marks: BTreeMap::new(),
            moved: Duration::ZERO,
            restored: Reached::new(),
        }
    }

    /// Takes in what the files say now, and returns the new events in the order in which they happened.
    pub fn look(&mut self, statuses: Vec<Status>, now: Duration) -> Vec<Happened> {
        let mut happened = Vec::new();
        for status in statuses.into_iter().filter(|status| !self.before.contains(&status.incarnation)) {
            let mark = (status.calls, status.levels.iter().map(|level| level.committed).sum());
            if self.marks.insert(status.incarnation.clone(), mark) != Some(mark) {
                self.moved = now;
            }
            for (key, event) in events(&status) {
                if self.told.insert((status.incarnation.clone(), event.event, key)) {
                    happened.push(event);
                }
            }
            if let Some(restored) = &status.restored {
                note_newest(&mut self.restored, &status.group, &restored.name, restored.version);
            }
            self.seen.insert(status.group.clone(), status);
        }
        happened.sort_by(|a, b| a.unix.total_cmp(&b.unix));
        happened
    }

    /// Is it time to end the attempt because nothing moves?
    pub fn overdue(&self, patience: Patience, now: Duration) -> Option<Outcome> {
        if self.seen.is_empty() {
            return patience.start.filter(|limit| now >= *limit).map(|_| Outcome::NeverOpened);
        }
        // After it has closed all its sessions, a program may compute for as long as it likes.
        let limit = patience.hang.filter(|_| !self.is_closed())?;
        (now.saturating_sub(self.moved) >= limit).then_some(Outcome::Hung)
    }

    /// Has the attempt opened a session?
    pub fn is_opened(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Has the attempt committed anything?
    pub fn has_committed(&self) -> bool {
        self.seen.values().any(|status| !status.levels.is_empty())
    }

    /// Has the attempt closed all sessions that it opened?
    pub fn is_closed(&self) -> bool {
        self.is_opened() && self.seen.values().all(|status| status.closed)
    }

    /// Why `should_exit` has answered yes, if it has.
    pub fn exit_asked(&self) -> Option<String> {
        self.seen.values().find_map(|status| status.exit.clone())
    }

    /// When a session last gave a sign of life, by the clock of the job's root.
    pub fn last_sign(&self) -> Option<f64> {
        self.seen.values().map(|status| status.unix).max_by(f64::total_cmp)
    }

    /// The groups' statuses.
    pub fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.seen.values()
    }

    /// The newest version of each series that the attempt has committed, at any level.
    pub fn reached(&self) -> Reached {
        let mut reached = Reached::new();
        for status in self.seen.values() {
            for series in &status.series {
                note_newest(&mut reached, &status.group, &series.name, series.version);
            }
        }
        reached
    }

    /// The newest version of each series that the attempt has restored.
    pub fn restored(&self) -> &Reached {
        &self.restored
    }

    /// What is committed, in a few words: `committed process 70, system 60; writing system 1.2 GiB/s`.
    pub fn summary(&self) -> String {
        let several = self.seen.len() > 1;
        let group = |status: &Status| {
            let levels: Vec<String> =
                status.levels.iter().map(|level| format!("{} {}", level.level, level.version)).collect();
            let levels = if levels.is_empty() { "nothing yet".to_owned() } else { levels.join(", ") };
            // Each rank writes its share; the root's rate stands for all of them.
            let rate = |level: &LevelStatus| level.root_bytes_per_second * f64::from(status.ranks);
            let rates: Vec<String> = (status.levels.iter().filter(|level| level.root_bytes_per_second > 0.0))
                .map(|level| format!("{} {}/s", level.level, Bytes(rate(level) as u64)))
                .collect();
            let name = if several { format!("{}: ", status.group) } else { String::new() };
            let rates = if rates.is_empty() { String::new() } else { format!("; writing {}", rates.join(", ")) };
            format!("{name}committed {levels}{rates}")
        };
        self.seen.values().map(group).collect::<Vec<_>>().join(" | ")
    }
}

fn note_newest(reached: &mut Reached, group: &str, series: &str, version: u64) {
    let newest = reached.entry(format!("{group}/{series}")).or_default();
    *newest = version.max(*newest);
}

/// The events that a status reports, each with a key so that it is reported only once.
fn events(status: &Status) -> Vec<(String, Happened)> {
    let Status { group, generation, ranks, host, .. } = status;
    let mut events = Vec::new();
    let mut add = |event, key: &str, unix, text: String| events.push((key.to_owned(), Happened { event, text, unix }));
    add(
        "opened",
        "",
        status.opened,
        format!("group {group} opened its session: generation {generation}, {ranks} ranks, root on {host}"),
    );
    if let Some(restored) = &status.restored {
        let (name, version, tier) = (&restored.name, restored.version, &restored.tier);
        let text = format!(
            "all ranks elected and loaded {name} version {version} of generation {} in {:.3} s, {:.3} s of it for the election (rank 0 from {tier})",
            restored.generation, restored.seconds, restored.elect_seconds
        );
        add("restored", &format!("{name} {version}"), restored.unix, text);
    }
    if let Some(unix) = status.first_step {
        add("first-step", "", unix, format!("group {group} took its first new step"));
    }
    for level in &status.levels {
        let text = format!("first new checkpoint at level {}: {} version {}", level.level, level.name, level.version);
        add("committed", &level.level, level.first, text);
    }
    if let Some(why) = &status.exit {
        add("asked-to-exit", "", status.unix, format!("the program was told to end: {why}"));
    }
    if let Some(why) = &status.failed {
        add("session-failed", "", status.unix, format!("the session has failed and commits nothing more: {why}"));
    }
    if status.closed {
        add("closed", "", status.unix, format!("group {group} closed its session"));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::format::supervision::{RestoredFrom, SeriesStatus};

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn status(incarnation: &str, calls: u64, version: u64) -> Status {
        let levels = match version {
            0 => Vec::new(),
            _ => vec![LevelStatus { level: "process".into(), committed: version, version, ..LevelStatus::default() }],
        };
        let series = SeriesStatus { name: "heat".into(), level: "process".into(), version, unix: 0.0 };
        let series = if version > 0 { vec![series] } else { Vec::new() };
        Status { group: "world".into(), incarnation: incarnation.into(), calls, levels, series, ..Status::new() }
    }

    #[test]
    fn files_of_earlier_runs_do_not_count() {
        let mut watch = Watch::new(BTreeSet::from(["old".to_owned()]));
        assert!(watch.look(vec![status("old", 9, 9)], seconds(1)).is_empty());
        assert!(!watch.is_opened() && watch.reached().is_empty());
        let happened = watch.look(vec![status("new", 1, 0)], seconds(2));
        assert_eq!(happened.iter().map(|event| event.event).collect::<Vec<_>>(), ["opened"]);
        assert!(watch.is_opened() && !watch.is_closed());
    }

    #[test]
    fn each_event_is_told_once_and_in_order() {
        let mut watch = Watch::new(BTreeSet::new());
        let mut now = status("new", 1, 5);
        now.levels[0].first = 7.0;
        (now.opened, now.first_step) = (3.0, Some(4.0));
        let told: Vec<_> = watch.look(vec![now.clone()], seconds(1)).iter().map(|event| event.event).collect();
        assert_eq!(told, ["opened", "first-step", "committed"]);
        now.closed = true;
        let told: Vec<_> = watch.look(vec![now], seconds(2)).iter().map(|event| event.event).collect();
        assert_eq!(told, ["closed"]);
        assert!(watch.is_closed());
    }

    #[test]
    fn calls_and_commits_are_signs_of_life_and_nothing_else_is() {
        let patience = Patience { hang: Some(seconds(10)), start: None };
        let mut watch = Watch::new(BTreeSet::new());
        assert_eq!(watch.overdue(patience, seconds(1000)), None, "counted from the first status");
        watch.look(vec![status("new", 1, 0)], seconds(20));
        assert_eq!(watch.overdue(patience, seconds(29)), None);
        watch.look(vec![Status { unix: 5.0, in_flight: 3, ..status("new", 1, 0) }], seconds(29));
        assert_eq!(watch.overdue(patience, seconds(30)), Some(Outcome::Hung));
        watch.look(vec![status("new", 2, 0)], seconds(30));
        assert_eq!(watch.overdue(patience, seconds(39)), None);
        watch.look(vec![status("new", 2, 1)], seconds(39));
        assert_eq!(watch.overdue(patience, seconds(48)), None);
        assert_eq!(watch.overdue(patience, seconds(49)), Some(Outcome::Hung));
        assert_eq!(watch.overdue(Patience::default(), seconds(9999)), None);
        watch.look(vec![Status { closed: true, ..status("new", 2, 1) }], seconds(49));
        assert_eq!(watch.overdue(patience, seconds(9999)), None, "a closed session cannot hang");
    }

    #[test]
    fn one_group_that_moves_is_enough() {
        let patience = Patience { hang: Some(seconds(10)), start: None };
        let mut watch = Watch::new(BTreeSet::new());
        let other = |calls| Status { group: "sub-2".into(), ..status("other", calls, 0) };
        watch.look(vec![status("new", 1, 0), other(1)], seconds(0));
        watch.look(vec![status("new", 1, 0), other(2)], seconds(8));
        assert_eq!(watch.overdue(patience, seconds(12)), None);
        assert_eq!(watch.overdue(patience, seconds(18)), Some(Outcome::Hung));
    }

    #[test]
    fn an_attempt_that_never_opens_a_session_is_overdue_by_its_own_limit() {
        let patience = Patience { hang: Some(seconds(10)), start: Some(seconds(60)) };
        let mut watch = Watch::new(BTreeSet::from(["old".to_owned()]));
        watch.look(vec![status("old", 1, 0)], seconds(59));
        assert_eq!(watch.overdue(patience, seconds(59)), None);
        assert_eq!(watch.overdue(patience, seconds(60)), Some(Outcome::NeverOpened));
    }

    #[test]
    fn the_newest_restored_version_is_kept_when_older_ones_are_restored_after_it() {
        let mut watch = Watch::new(BTreeSet::new());
        let restored = |version| {
            let restored = RestoredFrom { name: "heat".into(), version, ..RestoredFrom::default() };
            Status { restored: Some(restored), ..status("new", 1, 0) }
        };
        watch.look(vec![restored(60)], seconds(1));
        watch.look(vec![restored(50)], seconds(2));
        assert_eq!(*watch.restored(), Reached::from([("world/heat".to_owned(), 60)]));
    }

    #[test]
    fn progress_is_the_newest_version_of_each_series() {
        let mut watch = Watch::new(BTreeSet::new());
        let mut now = status("new", 1, 70);
        now.series.push(SeriesStatus { name: "heat".into(), level: "system".into(), version: 60, unix: 0.0 });
        now.series.push(SeriesStatus { name: "wind".into(), level: "system".into(), version: 2, unix: 0.0 });
        watch.look(vec![now], seconds(1));
        let expected = Reached::from([("world/heat".to_owned(), 70), ("world/wind".to_owned(), 2)]);
        assert_eq!(watch.reached(), expected);
        assert_eq!(watch.summary(), "committed process 70");
    }
}
