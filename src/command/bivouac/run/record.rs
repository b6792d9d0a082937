//! What the supervisor records: who it is, each attempt, and each event; and what it prints.
//!
//! | file of the run directory | holds |
//! |---|---|
//! | `supervisor.json` | the supervisor and the job that it started last, by which a new supervisor finds the job |
//! | `supervisor.lock` | locked while a supervisor lives |
//! | `launcher.pid` | the process id of the launcher, written by the process before it becomes the launcher |
//! | `attempts.jsonl` | a line for each attempt that has ended |
//! | `timeline.jsonl` | a line for each event |
#![forbid(unsafe_code)]

use super::ranks::{Allowed, Binding, HOW_TO_RESIZE};
use crate::hosts::{Host, names, parse_list, room};
use bivouac_core::base::calendar::{unix_now, utc};
use bivouac_core::format::supervision::{ATTEMPTS_FILE, LevelStatus};
use bivouac_core::tier::run_directory::RunDirectory;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SUPERVISOR_FILE: &str = "supervisor.json";
const PID_FILE: &str = "launcher.pid";
const SUPERVISOR_KIND: &str = "bivouac-supervisor";
const SCHEMA: u32 = 1;
/// Our files are never symbolic links.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
/// If no terminal shows a live status, its changes are printed, at most this often.
const CHANGES_EVERY: Duration = Duration::from_secs(30);
const TICK_EVERY: Duration = Duration::from_secs(1);

/// A process, identified so that it can be told from a later one with the same number.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Host.
    pub host: String,
    /// Identity of the host's boot.
    pub boot: String,
    /// Process id.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub started: u64,
}

impl Process {
    /// A process of this machine; `None` if no such process lives.
    pub fn of(pid: u32) -> Option<Process> {
        let started = start_time(pid)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Some(Process { host, boot: boot.trim().to_owned(), pid, started })
    }

    /// Is it alive, on this machine?
    pub fn is_alive(&self) -> bool {
        Process::of(self.pid).as_ref() == Some(self)
    }
}

/// The start of a living process (not of a zombie), in ticks since boot: field 22 of `/proc/PID/stat`.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in parentheses and may contain anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// What a new supervisor needs to find its predecessor's job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Always 1.
    pub schema: u32,
    /// Always `bivouac-supervisor`.
    pub kind: String,
    /// The supervisor.
    pub supervisor: Process,
    /// When this run of the job began, over all supervisors that have taken it over.
    pub run_began: f64,
    /// The attempt that was started last.
    pub attempt: u32,
    /// When that attempt was started.
    pub attempt_began: f64,
    /// The launcher of that attempt; absent if only the file `launcher.pid` can tell.
    pub launcher: Option<Process>,
    /// The hosts on which the job computes.
    pub seats: Vec<String>,
    /// The number of its ranks; absent if only the launcher knows it.
    pub ranks: Option<u32>,
    /// The number of ranks that it is to have if its hosts have room for them.
    pub goal: Option<u32>,
    /// The numbers of ranks that it may have, as `--ranks` gives them; absent if the number never changes.
    pub allowed: Option<String>,
    /// All hosts on which it may compute, with slots; empty if the launcher chooses them.
    pub hosts: Vec<String>,
    /// The hosts that did not answer when they were last asked.
    pub down: BTreeSet<String>,
    /// Incarnations of the status files that existed before the attempt.
    pub before: BTreeSet<String>,
    /// The command line as given.
    pub command: Vec<String>,
    /// The end of the allocation, if it is known.
    pub end_time: Option<u64>,
    /// The attempt has ended, and this supervisor has no more interest in it.
    pub ended: bool,
}

/// Reads the record of the last supervisor; `None` if there is none.
///
/// # Errors
/// The record cannot be used; the error says why.
pub fn read(directory: &RunDirectory) -> Result<Option<Record>, String> {
    let Some(bytes) = directory.read(SUPERVISOR_FILE).map_err(|error| error.to_string())? else { return Ok(None) };
    let path = directory.path().join(SUPERVISOR_FILE);
    let record: Record = serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    if (record.kind.as_str(), record.schema) != (SUPERVISOR_KIND, SCHEMA) {
        return Err(format!("{}: this is not a record of a supervisor of this version", path.display()));
    }
    Ok(Some(record))
}

/// How the last attempt that has ended ended, if that is known.
pub fn last_outcome(directory: &RunDirectory) -> Option<String> {
    let bytes = directory.read(ATTEMPTS_FILE).ok()??;
    let last = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty())?;
    let line: serde_json::Value = serde_json::from_slice(last).ok()?;
    Some(line.get("outcome")?.as_str()?.to_owned())
}

impl Record {
    /// Writes the record.
    ///
    /// # Errors
    /// The system reports an error; the text has the path.
    pub fn write(&mut self, directory: &RunDirectory) -> Result<(), String> {
        (self.schema, self.kind) = (SCHEMA, SUPERVISOR_KIND.to_owned());
        let text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        directory.replace(SUPERVISOR_FILE, &text).map_err(|error| error.to_string())
    }

    /// May the job be asked to continue with this many ranks? `binding` says why the job could continue only with as many ranks as took
    /// its newest checkpoint.
    ///
    /// # Errors
    /// It may not; the error says why, and what to do.
    pub fn may_resize(&self, ranks: u32, binding: Option<&Binding>) -> Result<(), String> {
        let here = Process::of(std::process::id()).unwrap_or_default();
        let is_gone = if self.supervisor.host == here.host { !self.supervisor.is_alive() } else { self.ended };
        if is_gone {
            return Err("no supervisor is at work there: start the job with bivouac run --ranks".into());
        }
        let Some(allowed) = &self.allowed else {
            return Err("its bivouac run was started without --ranks, so its number of ranks cannot change".into());
        };
        let allowed =
            Allowed::parse(allowed).map_err(|why| format!("its record is damaged: --ranks {allowed:?}: {why}"))?;
        if !allowed.has(ranks) {
            return Err(format!("its bivouac run allows --ranks {allowed}, but {ranks} is not one of these"));
        }
        if self.ranks == Some(ranks) {
            return Err(format!("it already has {ranks} ranks"));
        }
        let hosts: Result<Vec<Vec<Host>>, String> = self.hosts.iter().map(|host| parse_list(host)).collect();
        let mut hosts = hosts.map_err(|why| format!("its record is damaged: {why}"))?.concat();
        hosts.retain(|host| !self.down.contains(&host.name));
        if !self.hosts.is_empty() && room(&hosts) < u64::from(ranks) {
            let answering = names(&hosts);
            return Err(format!(
                "the hosts that answered most recently ({answering}) have slots for {} ranks",
                room(&hosts)
            ));
        }
        binding.map_or(Ok(()), |binding| Err(format!("{binding}; {HOW_TO_RESIZE}")))
    }

    /// The job's launcher, if it still lives on this machine.
    pub fn living_launcher(&self, directory: &RunDirectory) -> Option<Process> {
        if self.ended {
            return None;
        }
        if let Some(launcher) = &self.launcher {
            return launcher.is_alive().then(|| launcher.clone());
        }
        // The supervisor died while it was starting the job.
        let here = Process::of(std::process::id())?;
        if (&self.supervisor.host, &self.supervisor.boot) != (&here.host, &here.boot) {
            return None;
        }
        let text = String::from_utf8(directory.read(PID_FILE).ok()??).ok()?;
        let process = Process::of(text.trim().parse().ok()?)?;
        (process.started >= self.supervisor.started).then_some(process)
    }
}

/// The file to which the launcher writes its process id.
pub fn pid_file(directory: &RunDirectory) -> PathBuf {
    directory.path().join(PID_FILE)
}

/// Keeps a second supervisor out of the run directory for as long as it lives.
///
/// # Errors
/// Another supervisor lives, or the directory cannot be used.
pub fn lock(directory: &RunDirectory) -> Result<File, String> {
    let path = directory.path().join("supervisor.lock");
    let opened = OpenOptions::new().create(true).truncate(false).write(true).custom_flags(NO_LINK).open(&path);
    let file = opened.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(format!(
            "another supervisor is at work in {}: wait for it, or give another --run-directory",
            directory.path().display()
        )),
        Err(std::fs::TryLockError::Error(error)) => {
            // The file system has no locks; the record still shows a supervisor on this machine.
            log::warn!("event=no-lock path={} error={error}", path.display());
            Ok(file)
        }
    }
}

/// An attempt that has ended, as a line of `attempts.jsonl`.
#[derive(Serialize)]
pub struct AttemptLine<'a> {
    /// Always 1.
    pub schema: u32,
    /// When the run began: the same for all attempts of a run.
    pub run_began: f64,
    /// Its number within the run, from 1.
    pub attempt: u32,
    /// Start and end, in seconds since 1970.
    pub began: f64,
    /// See `began`.
    pub ended: f64,
    /// The number of ranks it had; null if only the launcher knows it.
    pub ranks: Option<u32>,
    /// The hosts on which it computed, with slots; empty if the launcher chose them.
    pub hosts: Vec<String>,
    /// Hosts that were held back.
    pub spares: Vec<String>,
    /// The words that were started.
    pub command: &'a [String],
    /// How it ended, in words.
    pub outcome: String,
    /// Its exit status, if it has one.
    pub exit_status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Hosts that did not answer afterwards, and why.
    pub down: &'a BTreeMap<String, String>,
    /// The generation of each group.
    pub generations: BTreeMap<String, u64>,
    /// What each group had committed at each level before the attempt.
    pub committed_before: BTreeMap<String, Vec<LevelStatus>>,
    /// What each group has committed at each level in this attempt.
    pub committed: BTreeMap<String, Vec<LevelStatus>>,
    /// `restart`, `resized`, `success`, `halted`, `exhausted`, `no-progress`, `too-few-nodes`, `rank-bound` or `interrupted`.
    pub decision: &'static str,
    /// Why this was decided.
    pub reason: String,
}

/// An event, as a line of `timeline.jsonl`.
#[derive(Serialize)]
struct EventLine<'a> {
    unix: f64,
    run_began: f64,
    attempt: u32,
    event: &'a str,
    text: &'a str,
}

/// Prints and records what happens.
pub struct Journal {
    directory: PathBuf,
    run_began: f64,
    began: Instant,
    quiet: bool,
    bar: Option<ProgressBar>,
    last_status: String,
    last_change: Option<Instant>,
    last_tick: Instant,
    complained: BTreeSet<String>,
}

impl Journal {
    /// Makes a journal in the run directory.
    pub fn new(directory: &RunDirectory, run_began: f64, quiet: bool) -> Journal {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}");
            ProgressBar::new_spinner().with_style(style.expect("a constant template"))
        });
        Journal {
            directory: directory.path().to_owned(),
            run_began,
            began: Instant::now(),
            quiet,
            bar,
            last_status: String::new(),
            last_change: None,
            last_tick: Instant::now(),
            complained: BTreeSet::new(),
        }
    }

    /// Continues a run that began earlier, under another supervisor.
    pub fn go_on(&mut self, run_began: f64) {
        self.run_began = run_began;
    }

    /// When the run began.
    pub fn run_began(&self) -> f64 {
        self.run_began
    }

    /// Records an event that happens now.
    pub fn event(&mut self, attempt: u32, event: &str, text: &str) {
        self.event_at(unix_now(), attempt, event, text);
    }

    /// Records an event that happened at that time.
    pub fn event_at(&mut self, unix: f64, attempt: u32, event: &str, text: &str) {
        let line = EventLine { unix, run_began: self.run_began, attempt, event, text };
        self.append("timeline.jsonl", &line);
        let important = matches!(event, "took-over" | "restarts" | "resized" | "stopped" | "requeued");
        if !self.quiet || important {
            let millis = ((unix.fract() * 1000.0) as u32).min(999);
            let time = utc(unix);
            let time = time.trim_end_matches('Z');
            let since = unix - self.run_began;
            self.say(&format!("bivouac: {time}.{millis:03}Z {since:+10.3} s  attempt {attempt}  {event}: {text}"));
        }
    }

    /// Reports a problem, once.
    pub fn complain(&mut self, text: &str) {
        if self.complained.insert(text.to_owned()) {
            self.say(&format!("bivouac: {text}"));
        }
    }

    /// Shows the live status.
    pub fn status(&mut self, text: &str) {
        if self.quiet || text == self.last_status {
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        } else if self.last_change.is_none_or(|last| last.elapsed() >= CHANGES_EVERY) {
            self.last_change = Some(Instant::now());
            let seconds = self.began.elapsed().as_secs();
            self.say(&format!("bivouac: after {seconds} s: {text}"));
        } else {
            return;
        }
        text.clone_into(&mut self.last_status);
    }

    /// Keeps the live status moving, but seldom: the program may write to the same terminal.
    pub fn tick(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|_| self.last_tick.elapsed() >= TICK_EVERY) {
            bar.tick();
            self.last_tick = Instant::now();
        }
    }

    /// Records an attempt that has ended.
    pub fn attempt(&mut self, line: &AttemptLine<'_>) {
        self.append(ATTEMPTS_FILE, line);
    }

    /// Removes the live status.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        let print = || {
            // Standard error may be closed; then nobody is left to tell.
            let _ = writeln!(std::io::stderr(), "{}", crate::output::plain(text));
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn append(&mut self, name: &str, line: &impl Serialize) {
        let path = self.directory.join(name);
        if let Err(error) = append(&path, line) {
            self.complain(&format!("cannot write {}: {error}", path.display()));
        }
    }
}

fn append(path: &Path, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    let mut file = OpenOptions::new().create(true).append(true).custom_flags(NO_LINK).open(path)?;
    file.write_all(text.as_bytes())
}

/// The names of hosts as the files give them.
pub fn texts(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(Host::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::format::supervision::{Bound, NewestStatus};

    #[test]
    fn this_process_lives_and_another_one_of_its_number_would_not_be_taken_for_it() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own.clone() }.is_alive());
        assert!(!Process { boot: "other".into(), ..own.clone() }.is_alive());
        assert!(!Process { host: "other".into(), ..own }.is_alive());
        assert_eq!(Process::of(u32::MAX), None);
    }

    #[test]
    fn a_second_supervisor_is_kept_out() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::at(folder.path());
        let held = lock(&directory).unwrap();
        assert!(lock(&directory).unwrap_err().contains("another supervisor"));
        drop(held);
        assert!(lock(&directory).is_ok());
    }

    #[test]
    fn a_resize_is_refused_before_anything_is_halted() {
        let supervisor = Process::of(std::process::id()).unwrap();
        let hosts = ["a:2", "b:2", "c:2", "d:2"].map(String::from).to_vec();
        let (ranks, allowed) = (Some(6), Some("2..12/2".to_owned()));
        let record = Record { supervisor, hosts, ranks, allowed, down: ["b".into()].into(), ..Record::default() };
        assert_eq!(record.may_resize(4, None), Ok(()));
        let why = |record: &Record, ranks| record.may_resize(ranks, None).unwrap_err();
        assert!(why(&record, 5).contains("2..12/2"), "{}", why(&record, 5));
        assert_eq!(why(&record, 6), "it already has 6 ranks");
        assert!(why(&record, 8).contains("(a:2, c:2, d:2) have slots for 6"), "{}", why(&record, 8));
        assert_eq!(Record { down: BTreeSet::new(), ..record.clone() }.may_resize(8, None), Ok(()));
        assert_eq!(Record { hosts: Vec::new(), ..record.clone() }.may_resize(12, None), Ok(()));
        let bound = Bound::of(["state"].into_iter());
        let newest = NewestStatus { name: "heat".into(), version: 70, ranks: 6, unix: 5.0, bound };
        let why_bound = record.may_resize(4, Some(&Binding::of("world", &newest))).unwrap_err();
        assert!(why_bound.contains("\"state\"") && why_bound.contains("save_on"), "{why_bound}");
        assert!(why(&Record { allowed: None, ..record.clone() }, 4).contains("without --ranks"));
        let gone = Process { started: 1, ..record.supervisor.clone() };
        assert!(why(&Record { supervisor: gone, ..record.clone() }, 4).contains("no supervisor"));
        let elsewhere = Process { host: "other".into(), ..record.supervisor.clone() };
        assert_eq!(Record { supervisor: elsewhere.clone(), ..record.clone() }.may_resize(4, None), Ok(()));
        assert!(why(&Record { supervisor: elsewhere, ended: true, ..record }, 4).contains("no supervisor"));
    }

    #[test]
    fn records_read_back_and_foreign_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::at(folder.path());
        assert_eq!(read(&directory), Ok(None));
        let mut record = Record { attempt: 3, seats: vec!["a:2".into()], ..Record::default() };
        record.write(&directory).unwrap();
        assert_eq!(read(&directory), Ok(Some(record)));
        for text in ["", "[]", "{}", "{\"kind\":\"bivouac-supervisor\",\"schema\":2}"] {
            directory.replace(SUPERVISOR_FILE, text.as_bytes()).unwrap();
            assert!(read(&directory).is_err(), "{text}");
        }
    }
}
