//! The machine profile: the measured costs of checkpoints on a machine, and how often a job failed there, as a TOML file that people can
//! read and change. `bivouac bench` and sessions (`plan.profile`) write it, and `bivouac plan --profile` reads it; `docs/FORMAT.md`
//! describes it.
//!
//! Each number is stored with the time, the host and the command of its measurement, the range of the measurements, and their number. A new
//! measurement replaces the same figure and leaves the others unchanged ([`Profile::renew`]).
//!
//! Anyone may have written a profile. Therefore, its length is bounded before it is parsed, and each key and each number is checked.
#![forbid(unsafe_code)]

use crate::base::Level;
use crate::base::calendar::{UTC_MAX, parse_utc, utc};
use crate::base::text::{message, short};
use std::collections::BTreeSet;
use std::fmt::Write;
use toml::{Table, Value};

/// The number that a profile carries as `schema`.
pub const SCHEMA: u32 = 1;
/// The maximum length of a profile, in bytes.
pub const FILE_MAX: usize = 64 << 10;
/// The maximum number of figures in a profile.
pub const FIGURES_MAX: usize = 128;

/// The longest host name and the longest command, in bytes: a longer command is cut when it is written.
const TEXT_MAX: usize = 256;
/// The maximum of any count.
const COUNT_MAX: i64 = 1_000_000_000_000;
/// The maximum number of bytes that a node saves or moves.
const BYTES_MAX: f64 = 1e18;

/// The quantity that a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Copies into node memory while the program waits, with digests.
    Capture,
    /// Preparation of node memory.
    Populate,
    /// Pinning of node memory for GPUs.
    Pin,
    /// The link of one GPU while the other links are unused.
    LinkAlone,
    /// The links of all GPUs together, used at the same time.
    LinkTogether,
    /// Writes to local storage, until the data is durable.
    LocalWrite,
    /// Reads from local storage.
    LocalRead,
    /// Writes to the global directory, until the data is durable.
    GlobalWrite,
    /// Reads from the global directory.
    GlobalRead,
    /// A restart from node memory.
    Restore,
    /// How long a checkpoint stops the program.
    Blocking,
    /// The time from the return of a capture until data that was in GPU memory is in node memory.
    Landing,
    /// The exchange with the other nodes of redundancy sets.
    Exchange,
    /// The time from a capture until it counts at a level.
    Latency,
    /// The time of a restart from a level, from the call until all ranks have loaded.
    Restart,
    /// How much slower the program is while a level is written.
    Slowdown,
    /// The share of the state that a checkpoint stores when this many seconds have passed since the previous one.
    Dirty,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second, for a node.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// A share: 0.02 is 2 %.
    Share,
}

impl Unit {
    /// The key that holds the value.
    pub fn key(self) -> &'static str {
        match self {
            Unit::BytesPerSecond => "bytes_per_second",
            Unit::Seconds => "seconds",
            Unit::Share => "share",
        }
    }

    /// The range in which values of this unit must lie.
    fn range(self) -> (f64, f64) {
        match self {
            Unit::BytesPerSecond => (1.0, 1e18),
            Unit::Seconds => (0.0, 1e9),
            Unit::Share => (0.0, 1.0),
        }
    }
}

impl Name {
    /// All names.
    pub const ALL: [Name; 17] = [
        Name::Capture,
        Name::Populate,
        Name::Pin,
        Name::LinkAlone,
        Name::LinkTogether,
        Name::LocalWrite,
        Name::LocalRead,
        Name::GlobalWrite,
        Name::GlobalRead,
        Name::Restore,
        Name::Blocking,
        Name::Landing,
        Name::Exchange,
        Name::Latency,
        Name::Restart,
        Name::Slowdown,
        Name::Dirty,
    ];

    /// The name as it is written in a profile.
    pub fn text(self) -> &'static str {
        match self {
            Name::Capture => "capture",
            Name::Populate => "populate",
            Name::Pin => "pin",
            Name::LinkAlone => "link_alone",
            Name::LinkTogether => "link_together",
            Name::LocalWrite => "local_write",
            Name::LocalRead => "local_read",
            Name::GlobalWrite => "global_write",
            Name::GlobalRead => "global_read",
            Name::Restore => "restore",
            Name::Blocking => "blocking",
            Name::Landing => "landing",
            Name::Exchange => "exchange",
            Name::Latency => "latency",
            Name::Restart => "restart",
            Name::Slowdown => "slowdown",
            Name::Dirty => "dirty",
        }
    }

    /// The unit of this figure.
    pub fn unit(self) -> Unit {
        match self {
            Name::Blocking | Name::Landing | Name::Exchange | Name::Latency | Name::Restart => Unit::Seconds,
            Name::Slowdown | Name::Dirty => Unit::Share,
            _ => Unit::BytesPerSecond,
        }
    }

    /// Does this figure exist for each level?
    pub fn has_level(self) -> bool {
        matches!(self, Name::Latency | Name::Restart | Name::Slowdown)
    }
}

/// When, where and how something was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// When, in whole seconds since 1970.
    pub unix: u64,
    /// The host; if there were several, the root's.
    pub host: String,
    /// The command.
    pub command: String,
}

impl Source {
    /// Makes a source. Texts that are too long for a profile are cut, and characters that it cannot hold are replaced.
    pub fn new(unix: f64, host: &str, command: &str) -> Source {
        let cut = |text: &str| {
            let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            let mut length = 0;
            let fits = |c: &char| {
                length += c.len_utf8();
                length <= TEXT_MAX
            };
            plain.take_while(fits).collect::<String>()
        };
        Source { unix: (unix as u64).min(UTC_MAX), host: cut(host), command: cut(command) }
    }
}

/// One number and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The quantity.
    pub name: Name,
    /// The level, if this quantity exists for each level.
    pub level: Option<Level>,
    /// For [`Name::Dirty`], the number of seconds after which it was measured.
    pub interval: Option<f64>,
    /// The number, in the unit of [`Name::unit`].
    pub value: f64,
    /// The smallest and the largest measurement.
    pub range: [f64; 2],
    /// The number of measurements.
    pub samples: u64,
    /// Bytes that a node moved in the measured seconds.
    pub bytes: Option<f64>,
    /// When, where and how it was measured.
    pub source: Source,
}

impl Figure {
    /// The kind of the figure. A profile has one figure of each kind.
    fn key(&self) -> (Name, Option<Level>, Option<u64>) {
        (self.name, self.level, self.interval.map(f64::to_bits))
    }
}

/// How often the job failed, as [`crate::planner::estimate::Seen`] counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failures {
    /// Seconds for which the job ran.
    pub seconds: f64,
    /// These seconds multiplied by the number of nodes on which the job ran.
    pub node_seconds: f64,
    /// Ends after which all nodes were still usable.
    pub process: u64,
    /// Nodes that were gone.
    pub node: u64,
    /// Ends after which no node was left.
    pub system: u64,
    /// When, where and how these numbers were measured.
    pub source: Source,
}

/// A machine profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Nodes that were measured together.
    pub nodes: u64,
    /// Ranks on these nodes.
    pub ranks: u64,
    /// Bytes that a node saves in a checkpoint, if a program was running.
    pub state: Option<f64>,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// The failures, if they were counted.
    pub failures: Option<Failures>,
}

/// Why a profile is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The file is too long.
    #[error("it has {bytes} bytes, but a profile may have at most {FILE_MAX}")]
    Long {
        /// The length of the file.
        bytes: usize,
    },
    /// The file is not TOML.
    #[error("line {line}: {message}")]
    Syntax {
        /// Where.
        line: usize,
        /// The parser's words.
        message: String,
    },
    /// A key is missing or unknown, or has a value that makes no sense.
    #[error("{key}: {why}")]
    Key {
        /// Which one: `figure[2].seconds`, counted from 1.
        key: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`], with the key that is wrong.
    pub fn decode(text: &str) -> Result<Profile, ProfileError> {
        if text.len() > FILE_MAX {
            return Err(ProfileError::Long { bytes: text.len() });
        }
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = &text.as_bytes()[..error.span().map_or(0, |span| span.start).min(text.len())];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            ProfileError::Syntax { line, message: message(&short(error.message())) }
        })?;
        let mut top = Keys { place: String::new(), table };
        let schema = top.count("schema")?;
        if schema != u64::from(SCHEMA) {
            return Err(top.wrong("schema", format!("it is {schema}, but this program reads {SCHEMA}")));
        }
        let mut machine = top.section("machine")?.ok_or_else(|| top.wrong("machine", "it is missing"))?;
        let (nodes, ranks) = (machine.count("nodes")?.max(1), machine.count("ranks")?.max(1));
        let state = machine.optional("state_bytes", |keys, key| keys.number(key, (1.0, BYTES_MAX)))?;
        machine.end()?;
        let failures = top.section("failures")?.map(failures).transpose()?;
        let figures = top.list("figure")?.into_iter().map(figure).collect::<Result<Vec<_>, _>>()?;
        top.end()?;
        let mut known = BTreeSet::new();
        for (at, figure) in figures.iter().enumerate() {
            if !known.insert(figure.key()) {
                let key = format!("figure[{}].name", at + 1);
                return Err(ProfileError::Key { key, why: format!("{} occurs twice", figure.name.text()) });
            }
        }
        Ok(Profile { nodes, ranks, state, figures, failures })
    }

    /// Encodes the profile as text, as the file holds it.
    pub fn encode(&self) -> String {
        let mut out = String::from("# A machine profile of Bivouac: docs/PLANNING.md.\n");
        let mut line = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text).expect("a text takes all");
            out.push('\n');
        };
        line(format_args!("schema = {SCHEMA}\n\n[machine]\nnodes = {}\nranks = {}", self.nodes, self.ranks));
        if let Some(state) = self.state {
            line(format_args!("state_bytes = {}", number(state)));
        }
        let source = |source: &Source| {
            let quoted = |text: &str| Value::from(text).to_string();
            let date = utc(source.unix as f64);
            format!("date = \"{date}\"\nhost = {}\ncommand = {}", quoted(&source.host), quoted(&source.command))
        };
        if let Some(failures) = &self.failures {
            line(format_args!("\n[failures]\nseconds = {}", number(failures.seconds)));
            line(format_args!("node_seconds = {}", number(failures.node_seconds)));
            let Failures { process, node, system, .. } = failures;
            line(format_args!("process = {process}\nnode = {node}\nsystem = {system}"));
            line(format_args!("{}", source(&failures.source)));
        }
        for figure in &self.figures {
            line(format_args!("\n[[figure]]\nname = \"{}\"", figure.name.text()));
            if let Some(level) = figure.level {
                line(format_args!("level = \"{level}\""));
            }
            if let Some(interval) = figure.interval {
                line(format_args!("interval_seconds = {}", number(interval)));
            }
            line(format_args!("{} = {}", figure.name.unit().key(), number(figure.value)));
            let [least, most] = figure.range.map(number);
            line(format_args!("least = {least}\nmost = {most}\nsamples = {}", figure.samples));
            if let Some(bytes) = figure.bytes {
                line(format_args!("bytes = {}", number(bytes)));
            }
            line(format_args!("{}", source(&figure.source)));
        }
        out
    }

    /// The figure with that name and, if there is one for each level, for that level.
    pub fn figure(&self, name: Name, level: Option<Level>) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name && figure.level == level)
    }

    /// Takes everything that a newer profile has, and keeps the rest. The figures of [`Name::Dirty`] are replaced as a whole.
    pub fn renew(&mut self, newer: Profile) {
        let has_dirty = newer.figures.iter().any(|figure| figure.name == Name::Dirty);
        let is_dirty = |old: &Figure| has_dirty && old.name == Name::Dirty;
        self.figures.retain(|old| !is_dirty(old) && newer.figures.iter().all(|figure| figure.key() != old.key()));
        self.figures.extend(newer.figures);
        self.figures.sort_by_key(Figure::key);
        // A bench has no state of a program; its figures were measured with bytes of its own.
        if newer.state.is_some() || self.state.is_none() {
            (self.nodes, self.ranks, self.state) = (newer.nodes, newer.ranks, newer.state);
        }
        self.failures = newer.failures.or(self.failures.take());
    }
}

/// A number as text that reads back unchanged; large numbers are written in the short form.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1e7 => format!("{value:e}"),
        _ => Value::Float(value).to_string(),
    }
}

/// Rounds to four digits. More digits are noise, and distract those who read them.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn failures(mut keys: Keys) -> Result<Failures, ProfileError> {
    let range = (0.0, 1e15);
    let failures = Failures {
        seconds: keys.number("seconds", range)?,
        node_seconds: keys.number("node_seconds", range)?,
        process: keys.count("process")?,
        node: keys.count("node")?,
        system: keys.count("system")?,
        source: keys.source()?,
    };
    if failures.node_seconds < failures.seconds {
        return Err(keys.wrong("node_seconds", "it is less than seconds, but a job has at least one node"));
    }
    keys.end().map(|()| failures)
}

fn figure(mut keys: Keys) -> Result<Figure, ProfileError> {
    let text = keys.text("name")?;
    let name = Name::ALL.into_iter().find(|name| name.text() == text);
    let Some(name) = name else {
        let names = Name::ALL.map(Name::text).join(", ");
        return Err(keys.wrong("name", format!("{:?} is unknown; use one of {names}", short(&text))));
    };
    let level = match name.has_level() {
        true => {
            let text = keys.text("level")?;
            let level = Level::VOTED.into_iter().find(|level| level.name() == text);
            let names = Level::VOTED.map(Level::name).join(", ");
            Some(
                level
                    .ok_or_else(|| keys.wrong("level", format!("{:?} is unknown; use one of {names}", short(&text))))?,
            )
        }
        false => None,
    };
    let interval = match name {
        Name::Dirty => Some(keys.number("interval_seconds", (1e-6, 1e9))?),
        _ => None,
    };
    let unit = name.unit();
    let value = keys.number(unit.key(), unit.range())?;
    let range = [keys.number("least", unit.range())?, keys.number("most", unit.range())?];
    if !(range[0] <= value && value <= range[1]) {
        return Err(keys.wrong(unit.key(), "it is not between least and most"));
    }
    let samples = keys.count("samples")?;
    if samples == 0 {
        return Err(keys.wrong("samples", "a figure needs at least one"));
    }
    let bytes = match unit {
        Unit::Seconds => keys.optional("bytes", |keys, key| keys.number(key, (1.0, BYTES_MAX)))?,
        _ => None,
    };
    let source = keys.source()?;
    keys.end().map(|()| Figure { name, level, interval, value, range, samples, bytes, source })
}

/// The keys of a table that have not been read yet.
struct Keys {
    /// The prefix of the names of the keys: `figure[2].`.
    place: String,
    table: Table,
}

impl Keys {
    fn wrong(&self, key: &str, why: impl Into<String>) -> ProfileError {
        ProfileError::Key { key: format!("{}{}", self.place, message(&short(key))), why: why.into() }
    }

    fn take(&mut self, key: &str) -> Result<Value, ProfileError> {
        self.table.remove(key).ok_or_else(|| self.wrong(key, "it is missing"))
    }

    fn optional<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Keys, &str) -> Result<T, ProfileError>,
    ) -> Result<Option<T>, ProfileError> {
        if self.table.contains_key(key) { read(self, key).map(Some) } else { Ok(None) }
    }

    /// Reads a number within a range.
    fn number(&mut self, key: &str, (least, most): (f64, f64)) -> Result<f64, ProfileError> {
        let value = match self.take(key)? {
            Value::Float(value) => value,
            Value::Integer(value) => value as f64,
            other => return Err(self.wrong(key, format!("expected a number, found {}", other.type_str()))),
        };
        match (least..=most).contains(&value) {
            // Removes the minus sign of a zero: -0.0 would differ from 0.0 when bits are compared.
            true => Ok(value + 0.0),
            false => Err(self.wrong(key, format!("{value:?} is not between {least:?} and {most:?}"))),
        }
    }

    /// Reads a whole number.
    fn count(&mut self, key: &str) -> Result<u64, ProfileError> {
        match self.take(key)? {
            Value::Integer(count @ 0..=COUNT_MAX) => Ok(count as u64),
            Value::Integer(count) => Err(self.wrong(key, format!("{count} is not between 0 and {COUNT_MAX}"))),
            other => Err(self.wrong(key, format!("expected a whole number, found {}", other.type_str()))),
        }
    }

    fn text(&mut self, key: &str) -> Result<String, ProfileError> {
        let text = match self.take(key)? {
            Value::String(text) => text,
            other => return Err(self.wrong(key, format!("expected a string, found {}", other.type_str()))),
        };
        match text.len() <= TEXT_MAX && !text.chars().any(char::is_control) {
            true => Ok(text),
            false => {
                Err(self
                    .wrong(key, format!("expected a string of at most {TEXT_MAX} bytes without control characters")))
            }
        }
    }

    fn source(&mut self) -> Result<Source, ProfileError> {
        let date = self.text("date")?;
        let unix = parse_utc(&date);
        let unix = unix
            .ok_or_else(|| self.wrong("date", format!("{:?} is not a time like 2026-01-31T12:00:00Z", short(&date))))?;
        Ok(Source { unix, host: self.text("host")?, command: self.text("command")? })
    }

    fn section(&mut self, key: &str) -> Result<Option<Keys>, ProfileError> {
        match self.table.remove(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(Keys { place: format!("{}{key}.", self.place), table })),
            Some(other) => Err(self.wrong(key, format!("expected a section, found {}", other.type_str()))),
        }
    }

    fn list(&mut self, key: &str) -> Result<Vec<Keys>, ProfileError> {
        let all = match self.table.remove(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) if all.len() <= FIGURES_MAX => all,
            Some(Value::Array(all)) => {
                return Err(self.wrong(key, format!("there are {}, but at most {FIGURES_MAX} are allowed", all.len())));
            }
            Some(other) => return Err(self.wrong(key, format!("expected sections, found {}", other.type_str()))),
        };
        let one =
            |(at, value): (usize, Value)| match value {
                Value::Table(table) => Ok(Keys { place: format!("{key}[{}].", at + 1), table }),
                other => Err(self
                    .wrong(&format!("{key}[{}]", at + 1), format!("expected a section, found {}", other.type_str()))),
            };
        all.into_iter().enumerate().map(one).collect()
    }

    /// Checks that no key is left, so that a misspelt key is not overlooked.
    fn end(&self) -> Result<(), ProfileError> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => Err(self.wrong(key, "there is no such key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sample has a figure of each kind, and all sections.
    const SAMPLE: &str = include_str!("../../../config/machine.toml");

    fn refused(text: &str) -> String {
        Profile::decode(text).expect_err(&short(text)).to_string()
    }

    #[test]
    fn the_sample_reads_back_and_has_a_figure_of_each_name() {
        let profile = Profile::decode(SAMPLE).expect("it is right");
        assert_eq!(Profile::decode(&profile.encode()), Ok(profile.clone()));
        let missing: Vec<_> =
            Name::ALL.into_iter().filter(|name| profile.figures.iter().all(|figure| figure.name != *name)).collect();
        assert!(missing.is_empty() && profile.failures.is_some() && profile.state.is_some(), "{missing:?}");
    }

    /// Each line of the sample is changed and left out in turn. The error must name the key.
    #[test]
    fn what_makes_no_sense_is_refused_with_its_key() {
        let (mut place, mut count, mut next) = (String::new(), 0, 0);
        for line in SAMPLE.lines() {
            let at = next;
            next += line.len() + 1;
            match line {
                "[[figure]]" => {
                    count += 1;
                    place = format!("figure[{count}].");
                }
                section if section.starts_with('[') => place = format!("{}.", section.trim_matches(['[', ']'])),
                _ => {}
            }
            let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else { continue };
            let with = |new: &str| format!("{}{new}{}", &SAMPLE[..at], &SAMPLE[at + line.len()..]);
            for value in
                ["nan", "-inf", "inf", "-1", "-0.5", "1e300", "9223372036854775807", "[]", "{}", "true", "\"\\u0000\""]
            {
                let text = refused(&with(&format!("{key} = {value}")));
                assert!(text.starts_with(&format!("{place}{key}: ")), "{place}{key} = {value}: {text}");
            }
            let is_optional = ["bytes", "state_bytes"].contains(&key);
            match is_optional {
                true => assert!(Profile::decode(&with("")).is_ok()),
                false => assert_eq!(refused(&with("")), format!("{place}{key}: it is missing")),
            }
            assert_eq!(
                refused(&with(&format!("{line}\nunheard = 1"))),
                format!("{place}unheard: there is no such key")
            );
        }
        assert_eq!(count, SAMPLE.matches("[[figure]]").count());
    }

    #[test]
    fn long_deep_and_broken_files_are_refused_soon() {
        let begun = std::time::Instant::now();
        assert_eq!(refused(&" ".repeat(10 << 20)), "it has 10485760 bytes, but a profile may have at most 65536");
        let deep = |open: &str, close: &str| format!("schema = {}1{}", open.repeat(20_000), close.repeat(20_000));
        for text in [deep("[", "]"), deep("{a=", "}"), format!("[{}]", ["a"; 30_000].join("."))] {
            assert!(refused(&text).len() < 1000);
        }
        assert!(refused("schema = ").starts_with("line 1: "));
        assert_eq!(refused(""), "schema: it is missing");
        assert_eq!(refused("schema = 2"), "schema: it is 2, but this program reads 1");
        assert_eq!(refused("schema = 1"), "machine: it is missing");
        let many =
            format!("{}{}", &SAMPLE[..SAMPLE.find("[[").expect("figures")], "[[figure]]\n".repeat(FIGURES_MAX + 1));
        assert_eq!(refused(&many), "figure: there are 129, but at most 128 are allowed");
        for at in (0..SAMPLE.len()).step_by(7) {
            // If the cut is between two figures, the result is a shorter profile.
            if let Err(error) = Profile::decode(&SAMPLE[..at]) {
                assert!((1..2000).contains(&error.to_string().len()));
            }
        }
        assert!(begun.elapsed() < crate::base::limit::LIMIT);
    }

    #[test]
    fn a_value_outside_of_its_range_and_a_figure_twice_are_refused() {
        let (head, first) = SAMPLE.split_once("[[figure]]").expect("figures");
        let first = first.split("[[figure]]").next().expect("one");
        let twice = format!("{head}[[figure]]{first}[[figure]]{first}");
        assert_eq!(refused(&twice), "figure[2].name: capture occurs twice");
        let out = SAMPLE.replacen("least = ", "least = 9e11 #", 1);
        assert_eq!(refused(&out), "figure[1].bytes_per_second: it is not between least and most");
        assert!(refused(&SAMPLE.replacen("\"capture\"", "\"captures\"", 1)).contains("use one of capture, populate"));
        assert!(
            refused(&SAMPLE.replacen("level = \"process\"", "level = \"peers\"", 1)).contains("process, node-reboot")
        );
        let fewer = SAMPLE.replacen("node_seconds = ", "node_seconds = 1 #", 1);
        assert!(refused(&fewer).starts_with("failures.node_seconds: "), "{}", refused(&fewer));
    }

    #[test]
    fn what_is_measured_again_is_replaced_and_the_rest_stays() {
        let mut profile = Profile::decode(SAMPLE).expect("it is right");
        let count = profile.figures.len();
        let old = profile.clone();
        let of = |name: Name, value: f64| {
            let mut figure = old.figures.iter().find(|figure| figure.name == name).expect("one").clone();
            (figure.value, figure.range) = (value, [value; 2]);
            figure
        };
        let figures = vec![of(Name::Capture, 7e9), Figure { interval: Some(77.0), ..of(Name::Dirty, 0.5) }];
        profile.renew(Profile { nodes: 9, ranks: 9, figures, ..Profile::default() });
        let dirty = old.figures.iter().filter(|figure| figure.name == Name::Dirty).count();
        assert_eq!(profile.figures.len(), count - dirty + 1);
        assert_eq!(profile.figure(Name::Capture, None).map(|figure| figure.value), Some(7e9));
        assert_eq!((profile.state, profile.nodes, &profile.failures), (old.state, old.nodes, &old.failures));
        profile.renew(Profile { nodes: 9, ranks: 9, state: Some(5.0), ..Profile::default() });
        assert_eq!((profile.state, profile.nodes), (Some(5.0), 9));
        assert!(Profile::decode(&profile.encode()).is_ok());
    }

    #[test]
    fn texts_that_cannot_stand_in_a_profile_are_made_to() {
        let source = Source::new(f64::NAN, "a\nhost", &"ü\"\\'".repeat(300));
        assert!(source.command.len() <= TEXT_MAX && source.host == "a host" && source.unix == 0);
        let figure = Figure { source, ..Profile::decode(SAMPLE).expect("right").figures.remove(0) };
        let profile = Profile { nodes: 1, ranks: 1, figures: vec![figure], ..Profile::default() };
        assert_eq!(Profile::decode(&profile.encode()), Ok(profile));
    }

    fn value(unit: Unit) -> impl Strategy<Value = [f64; 3]> {
        let (least, most) = unit.range();
        prop::array::uniform3((0.0f64..=1.0).prop_map(move |share| least + (most - least) * share.powi(9))).prop_map(
            |mut three| {
                three.sort_by(f64::total_cmp);
                three
            },
        )
    }

    fn figures() -> impl Strategy<Value = Figure> {
        let text = "[^\\p{Cc}]{0,20}";
        let of = move |name: Name| {
            let level = prop::sample::select(Level::VOTED.to_vec());
            let source = (0..=UTC_MAX, text, text).prop_map(|(unix, host, command)| Source { unix, host, command });
            let bytes = prop::option::of(1.0..BYTES_MAX);
            (value(name.unit()), 1..=COUNT_MAX as u64, level, 1e-6f64..1e9, bytes, source).prop_map(
                move |([least, value, most], samples, level, interval, bytes, source)| Figure {
                    name,
                    level: name.has_level().then_some(level),
                    interval: (name == Name::Dirty).then_some(interval),
                    value,
                    range: [least, most],
                    samples,
                    bytes: bytes.filter(|_| name.unit() == Unit::Seconds),
                    source,
                },
            )
        };
        prop::sample::select(Name::ALL.to_vec()).prop_flat_map(of)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_reads_back(all in prop::collection::vec(figures(), 0..12), nodes in 1u64..1000, seconds in prop::option::of(0.0f64..1e9)) {
            let mut profile = Profile { nodes, ranks: nodes, ..Profile::default() };
            profile.failures = seconds.map(|seconds| Failures { seconds, node_seconds: seconds * nodes as f64, ..Failures::default() });
            all.into_iter().for_each(|figure| profile.renew(Profile { nodes, ranks: nodes, figures: vec![figure], ..Profile::default() }));
            prop_assert_eq!(Profile::decode(&profile.encode()), Ok(profile));
        }
    }
}
