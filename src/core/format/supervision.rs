//! The two JSON files that a session and its supervisor share in the run directory: the session's report, and the
//! requests to it.
//!
//! `status-<group>.json` is written by the root of each group, about once a second: who it is, how often the application
//! has called (its heartbeat), and what is committed at each level. `halt.json` is written by `bivouac halt` and by the
//! supervisor: conditions, each of which ends the run when it is met. Both carry a kind and a schema; anything else is
//! foreign. Fields are added, never renamed, while the schema stays the same.
//!
//! Times are seconds since 1970 with a fraction, by the clock of the host that wrote the file.
#![forbid(unsafe_code)]

use crate::base::calendar::utc;
use crate::base::text::short;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The number that both files carry as `schema`.
pub const SCHEMA: u32 = 1;
/// The name of the file of halt conditions.
pub const HALT_FILE: &str = "halt.json";
/// The name of the file with a line for each attempt of `bivouac run` that has ended.
pub const ATTEMPTS_FILE: &str = "attempts.jsonl";
/// The maximum size of a file of a run directory.
pub const FILE_MAX: u64 = 1 << 20;
/// The maximum number of series that a status file lists; for other series, it has only the levels.
pub const SERIES_MAX: usize = 64;

/// The maximum number of regions that are named among those that bind a checkpoint to its number of ranks.
pub const BOUND_MAX: usize = 6;

const STATUS_KIND: &str = "bivouac-status";
const HALT_KIND: &str = "bivouac-halt";

/// The name of a group's status file.
pub fn status_file(group: &str) -> String {
    format!("status-{group}.json")
}

/// Is this the name of a status file?
pub fn is_status_file(name: &str) -> bool {
    name.starts_with("status-") && name.ends_with(".json")
}

/// The report of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `bivouac-status`.
    pub kind: String,
    /// The job's key.
    pub job: String,
    /// The group.
    pub group: String,
    /// Ranks in the group.
    pub ranks: u32,
    /// Host of the root rank.
    pub host: String,
    /// Process of the root rank.
    pub pid: u32,
    /// The run's generation.
    pub generation: u64,
    /// The run's random identity.
    pub incarnation: String,
    /// The directory to which the root writes its events, if it is not the run directory; otherwise empty.
    pub events: String,
    /// When this status was written.
    pub unix: f64,
    /// When the session was opened.
    pub opened: f64,
    /// The last restore of the session, if there was one.
    pub restored: Option<RestoredFrom>,
    /// When the application first asked for a decision or took a checkpoint after the last restore (or after opening): its first new step.
    pub first_step: Option<f64>,
    /// Calls to the session by the root's application thread: the application's heartbeat.
    pub calls: u64,
    /// Checkpoints of this session that were committed at some level.
    pub checkpoints: u64,
    /// Checkpoints that were committed at some level, over all sessions of this group that used the run directory.
    pub checkpoints_total: u64,
    /// The commits at each level, lowest first; levels that no checkpoint has reached are absent.
    pub levels: Vec<LevelStatus>,
    /// The newest version of each series at each level.
    pub series: Vec<SeriesStatus>,
    /// The newest version of each series that this group has committed at any level, and who can restore it, over all sessions that used
    /// the run directory. If there are more than [`SERIES_MAX`] series, those that are bound to a number of ranks are listed first.
    pub newest: Vec<NewestStatus>,
    /// Checkpoints whose levels have not all ended.
    pub in_flight: u64,
    /// Checkpoints that were refused at the call, and levels that were wanted and not reached.
    pub refused: u64,
    /// The last such checkpoint or level.
    pub trouble: Option<Trouble>,
    /// Seconds for which captures have blocked the root's application.
    pub root_blocked_seconds: f64,
    /// The intervals that the session has chosen, if any are left to it.
    pub tuned: Option<Tuned>,
    /// The application has called `should_exit`: it will be told about a halt condition.
    pub asks_exit: bool,
    /// Why `should_exit` has answered yes, if it has.
    pub exit: Option<String>,
    /// Why the session has failed, if it has.
    pub failed: Option<String>,
    /// The session was closed normally.
    pub closed: bool,
}

/// One level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelStatus {
    /// The level's name.
    pub level: String,
    /// Checkpoints that this session has committed at the level.
    pub committed: u64,
    /// When the first of them was committed.
    pub first: f64,
    /// When the newest of them was committed.
    pub newest: f64,
    /// The series of the newest.
    pub name: String,
    /// The version of the newest.
    pub version: u64,
    /// Bytes that the root rank alone has written at the level.
    pub root_bytes: u64,
    /// The root rank's bytes per second while it wrote.
    pub root_bytes_per_second: f64,
}

/// The intervals that a session has chosen, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tuned {
    /// Seconds of work between two checkpoints.
    pub interval_seconds: f64,
    /// The levels in use.
    pub levels: Vec<TunedLevel>,
    /// The share of the time that is expected to be lost, before and after the change.
    pub lost: [f64; 2],
    /// How often something was changed.
    pub changes: u64,
}

/// How often a level is used, and the costs on which this choice is based.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunedLevel {
    /// Its name.
    pub level: String,
    /// The level gets one in this many checkpoints.
    pub every: u64,
    /// Seconds for which a checkpoint stops the program.
    pub blocking_seconds: f64,
    /// Seconds from the capture of a checkpoint until it counts.
    pub latency_seconds: f64,
    /// How much slower the program is in the meantime: 0.02 is 2 %.
    pub slowdown: f64,
    /// Failures that this level is the lowest to survive.
    pub failures_per_second: f64,
}

/// A checkpoint that was not committed, or not at a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// The level's name; `captured`: the call itself.
    pub level: String,
    /// Why.
    pub reason: String,
    /// When the root learned of it.
    pub unix: f64,
}

/// One series at one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeriesStatus {
    /// The series.
    pub name: String,
    /// The level's name.
    pub level: String,
    /// The newest version committed there by this session.
    pub version: u64,
    /// When it was committed.
    pub unix: f64,
}

/// The newest version of a series, and who can restore it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewestStatus {
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// How many ranks took it.
    pub ranks: u32,
    /// When it was first committed.
    pub unix: f64,
    /// What binds it to that number of ranks.
    pub bound: Bound,
}

/// The regions that belong to one rank each. Because of them, only the number of ranks that took the checkpoint can restore it. Without any
/// such region, any number of ranks can restore it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The number of these regions.
    pub count: u64,
    /// The names of the first [`BOUND_MAX`] of them; long names are cut in their middle.
    pub regions: Vec<String>,
}

/// The checkpoint that a session restored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoredFrom {
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// The run that took it.
    pub generation: u64,
    /// The farthest tier that the root read from.
    pub tier: String,
    /// Bytes that the root read.
    pub bytes: u64,
    /// Seconds from the call to the agreement of all ranks.
    pub seconds: f64,
    /// The part of these seconds that had passed when the ranks had elected the checkpoint.
    pub elect_seconds: f64,
    /// When the restore ended.
    pub unix: f64,
}

/// Why a file of the run directory is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SupervisionError {
    /// The file is not JSON of the expected form.
    #[error("{0}")]
    Json(String),
    /// The file says that it is something else.
    #[error("it is {found:?} of schema {schema}, not {expected:?} of schema {SCHEMA}")]
    Foreign {
        /// The kind that the file gives.
        found: String,
        /// The schema that the file gives.
        schema: u32,
        /// The kind that was expected.
        expected: &'static str,
    },
}

/// The fields that every file begins with.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Heading {
    schema: u32,
    kind: String,
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8], expected: &'static str) -> Result<T, SupervisionError> {
    let wrong = |error: serde_json::Error| SupervisionError::Json(error.to_string());
    let heading: Heading = serde_json::from_slice(bytes).map_err(wrong)?;
    if (heading.kind.as_str(), heading.schema) != (expected, SCHEMA) {
        let found = heading.kind.chars().take(40).collect();
        return Err(SupervisionError::Foreign { found, schema: heading.schema, expected });
    }
    serde_json::from_slice(bytes).map_err(wrong)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("the files of a run directory have text keys");
    bytes.push(b'\n');
    bytes
}

impl Bound {
    /// Makes the list of these regions.
    pub fn of<'a>(regions: impl Iterator<Item = &'a str>) -> Bound {
        let mut bound = Bound::default();
        for region in regions {
            if bound.regions.len() < BOUND_MAX {
                bound.regions.push(short(region));
            }
            bound.count += 1;
        }
        bound
    }

    /// Can any number of ranks restore the checkpoint?
    pub fn is_free(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.regions.iter().map(|region| format!("{region:?}")).collect();
        f.write_str(&named.join(", "))?;
        match self.count.saturating_sub(named.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Status {
    /// An empty status of this schema.
    pub fn new() -> Status {
        Status { schema: SCHEMA, kind: STATUS_KIND.into(), ..Status::default() }
    }

    /// Encodes the status as the file holds it.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`SupervisionError`].
    pub fn decode(bytes: &[u8]) -> Result<Status, SupervisionError> {
        decode(bytes, STATUS_KIND)
    }
}

/// The fields that are read from the record of an attempt that has ended, a line of [`ATTEMPTS_FILE`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// When the run of `bivouac run` began: the same for all of its attempts.
    pub run_began: f64,
    /// How it ended, in words.
    pub outcome: String,
    /// Start and end, seconds since 1970.
    pub began: f64,
    /// See `began`.
    pub ended: f64,
    /// The hosts on which it computed; empty if the launcher chose them.
    pub hosts: Vec<String>,
    /// Hosts that did not answer afterwards, and why.
    pub down: BTreeMap<String, String>,
    /// The generation of each group that opened a session.
    pub generations: BTreeMap<String, u64>,
    /// What the supervisor did then.
    pub decision: String,
}

impl Attempt {
    /// The records of a file, oldest first. A line that cannot be read is skipped: the last line may be half written.
    pub fn decode_all(bytes: &[u8]) -> Vec<Attempt> {
        let lines = bytes.split(|byte| *byte == b'\n');
        let attempts = lines.filter_map(|line| serde_json::from_slice::<Attempt>(line).ok());
        attempts.filter(|attempt| attempt.ended > attempt.began && attempt.ended.is_finite()).collect()
    }

    /// Seconds for which the attempt ran.
    pub fn seconds(&self) -> f64 {
        self.ended - self.began
    }

    /// Did something fail? An attempt that was ended on purpose has not failed.
    pub fn has_failed(&self) -> bool {
        !["success", "halted", "resized", "interrupted", ""].contains(&self.decision.as_str())
    }
}

/// The halt conditions of a run directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Halt {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `bivouac-halt`.
    pub kind: String,
    /// Any of them ends the run.
    pub conditions: Vec<Condition>,
}

/// One halt condition, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The condition.
    #[serde(flatten)]
    pub when: When,
    /// User, host and process that set it.
    pub set_by: String,
    /// When it was set.
    pub set_at: f64,
    /// True if a supervisor set the condition for its own run: it does not hold for the next run.
    #[serde(default)]
    pub of_supervisor: bool,
    /// The number of ranks on which the supervisor starts the job again; it then removes the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
}

/// When a run is to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "kebab-case")]
pub enum When {
    /// At once.
    Now,
    /// After this number of checkpoints have been committed at any level, counted from what each group had committed when the condition was
    /// set.
    After {
        /// How many.
        checkpoints: u64,
        /// For each group, its total commits when the condition was set.
        counted: BTreeMap<String, u64>,
    },
    /// At a time.
    At {
        /// Seconds since 1970.
        unix: u64,
    },
    /// Before the end of the allocation.
    BeforeEnd {
        /// The end, seconds since 1970.
        end: u64,
        /// How long before the end.
        reserve: u64,
    },
}

impl Default for Halt {
    fn default() -> Self {
        Halt { schema: SCHEMA, kind: HALT_KIND.into(), conditions: Vec::new() }
    }
}

impl Halt {
    /// Encodes the conditions as the file holds them.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`SupervisionError`].
    pub fn decode(bytes: &[u8]) -> Result<Halt, SupervisionError> {
        decode(bytes, HALT_KIND)
    }

    /// The first condition that is met at the time `now`, when a group has committed `total` checkpoints in all.
    pub fn met<'a>(&self, now: f64, groups: impl Iterator<Item = (&'a str, u64)> + Clone) -> Option<&Condition> {
        self.conditions.iter().find(|condition| match &condition.when {
            When::Now => true,
            When::At { unix } => now >= *unix as f64,
            When::BeforeEnd { end, reserve } => now + *reserve as f64 >= *end as f64,
            When::After { checkpoints, counted } => groups.clone().any(|(group, total)| {
                // If the total is smaller than the counted one, the status files were removed and counting began again.
                let before = counted.get(group).copied().filter(|before| *before <= total).unwrap_or_default();
                total - before >= *checkpoints
            }),
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.when {
            When::Now => f.write_str("now")?,
            When::After { checkpoints, .. } => write!(f, "after {checkpoints} more checkpoints")?,
            When::At { unix } => write!(f, "at {}", utc(*unix as f64))?,
            When::BeforeEnd { end, reserve } => {
                let end = utc(*end as f64);
                write!(f, "{reserve} s before the end of the allocation at {end}")?;
            }
        }
        if let Some(ranks) = self.resize {
            write!(f, ", to continue with {ranks} ranks")?;
        }
        let set_at = utc(self.set_at);
        write!(f, " (set by {} at {set_at})", self.set_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halt(when: When) -> Halt {
        let condition = Condition { when, set_by: "somebody".into(), set_at: 5.0, of_supervisor: false, resize: None };
        Halt { conditions: vec![condition], ..Halt::default() }
    }

    #[test]
    fn both_files_read_back() {
        let after = When::After { checkpoints: 3, counted: BTreeMap::from([("world".to_owned(), 7)]) };
        for when in [When::Now, after, When::At { unix: 9 }, When::BeforeEnd { end: 100, reserve: 20 }] {
            let halt = halt(when);
            assert_eq!(Halt::decode(&halt.encode()).unwrap(), halt);
        }
        let mut resize = halt(When::Now);
        resize.conditions[0].resize = Some(6);
        assert_eq!(Halt::decode(&resize.encode()).unwrap(), resize);
        assert!(resize.conditions[0].to_string().starts_with("now, to continue with 6 ranks (set by somebody at "));
        let levels = vec![LevelStatus { level: "process".into(), committed: 4, ..LevelStatus::default() }];
        let bound = Bound::of(["state", "rng"].into_iter());
        let newest = vec![NewestStatus { name: "heat".into(), version: 70, ranks: 8, unix: 5.0, bound }];
        let status = Status { group: "world".into(), calls: 12, levels, newest, ..Status::new() };
        assert_eq!(Status::decode(&status.encode()).unwrap(), status);
    }

    #[test]
    fn only_the_first_regions_that_bind_a_checkpoint_are_named() {
        assert!(Bound::of(std::iter::empty()).is_free());
        let names: Vec<String> = (0..BOUND_MAX + 3).map(|number| format!("r{number}")).collect();
        let bound = Bound::of(names.iter().map(String::as_str));
        assert!(!bound.is_free());
        assert_eq!(bound.to_string(), r#""r0", "r1", "r2", "r3", "r4", "r5" and 3 more"#);
        let long = "x".repeat(10_000);
        assert!(Bound::of([long.as_str()].into_iter()).regions[0].len() < 200);
    }

    #[test]
    fn a_status_of_a_later_program_with_more_fields_is_read() {
        let text = br#"{"schema":1,"kind":"bivouac-status","group":"world","calls":3,"weather":"rain"}"#;
        assert_eq!(Status::decode(text).unwrap().calls, 3);
    }

    #[test]
    fn foreign_and_broken_files_are_refused() {
        for text in ["", "{", "[]", "{}", "null", "\"now\"", "{\"schema\":1,\"kind\":\"bivouac-halt\"}"] {
            assert!(Halt::decode(text.as_bytes()).is_err(), "{text}");
        }
        let other = br#"{"schema":2,"kind":"bivouac-halt","conditions":[]}"#;
        assert!(matches!(Halt::decode(other), Err(SupervisionError::Foreign { schema: 2, .. })));
        let unknown =
            br#"{"schema":1,"kind":"bivouac-halt","conditions":[{"when":"full-moon","set_by":"","set_at":0}]}"#;
        assert!(matches!(Halt::decode(unknown), Err(SupervisionError::Json(_))));
        assert!(Status::decode(&Halt::default().encode()).is_err());
    }

    #[test]
    fn conditions_are_met_in_their_time() {
        let none = std::iter::empty::<(&str, u64)>;
        assert!(halt(When::Now).met(0.0, none()).is_some());
        assert!(halt(When::At { unix: 10 }).met(9.9, none()).is_none());
        assert!(halt(When::At { unix: 10 }).met(10.0, none()).is_some());
        assert!(halt(When::BeforeEnd { end: 100, reserve: 20 }).met(79.0, none()).is_none());
        assert!(halt(When::BeforeEnd { end: 100, reserve: 20 }).met(80.0, none()).is_some());
        assert!(Halt::default().met(1e12, none()).is_none());
    }

    #[test]
    fn checkpoints_are_counted_from_when_the_condition_was_set_and_per_group() {
        let halt = halt(When::After { checkpoints: 3, counted: BTreeMap::from([("a".to_owned(), 7)]) });
        let met = |groups: &[(&str, u64)]| halt.met(0.0, groups.iter().copied()).is_some();
        assert!(!met(&[]) && !met(&[("a", 9)]) && met(&[("a", 10)]));
        assert!(!met(&[("a", 9), ("b", 2)]) && met(&[("a", 9), ("b", 3)]));
        // The count began again.
        assert!(!met(&[("a", 2)]) && met(&[("a", 3)]));
    }
}
