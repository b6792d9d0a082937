//! Kinds of values: how raw text becomes a checked value, and back.
//!
//! A [`Kind`] is a constant with three parts: the allowed values in words, a reader that returns `None` for anything else, and a printer. A
//! reader need not say what is wrong, because the error shows the value along with the words.
#![forbid(unsafe_code)]

use super::affinity::AffinityMode;
use super::names::is_name;
use super::offload::{HostWrites, OffloadMode};
use super::raw::Raw;
use super::reduction::{Compress, Method, REGIONS_ALLOWED, RegionMethods, SOURCES_MAX, Verify, is_chunk};
use super::redundancy::{DomainSource, NamePolicies};
use super::redundancy::{NAMES_ALLOWED, SCHEME_ALLOWED};
use super::redundancy::{PartStore, Scheme};
use super::stagger::{BURSTS_MAX, BurstOrder, BurstScope, FlushRate};
use super::values::{Budget, Choice, Direct, PinOrder, Progress, ThreadCpus, Touch};
use crate::base::calendar::{UTC_MAX, parse_utc};
use crate::base::log::LogLevel;
use crate::base::units::{GIB, KIB, MIB, PAGE, parse_bytes, parse_cpus, parse_duration, show_cpus};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A kind of value.
pub(super) struct Kind<T> {
    /// The allowed values, in words that follow "allowed: ".
    pub allowed: &'static str,
    /// The checked value; `None` if the raw one is not allowed.
    pub read: fn(&Raw) -> Option<T>,
    /// Prints the checked value as a raw value that reads back equal. Equal values give equal raw values.
    pub show: fn(&T) -> Raw,
}

pub(super) const SWITCH: Kind<bool> = Kind {
    allowed: "true or false",
    read: |raw| match raw {
        Raw::Bool(value) => Some(*value),
        Raw::Word(word) => match word.trim() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    },
    show: |value| Raw::Bool(*value),
};

pub(super) const FROM_ZERO: Kind<u64> =
    Kind { allowed: "a whole number from 0", read: |raw| raw.integer(), show: show_integer };

pub(super) const FROM_ONE: Kind<u64> = Kind {
    allowed: "a whole number from 1",
    read: |raw| raw.integer().filter(|value| *value >= 1),
    show: show_integer,
};

pub(super) const WRITERS: Kind<u32> = Kind {
    allowed: "a whole number from 1 to 64",
    read: |raw| raw.integer().filter(|value| (1..=64).contains(value))?.try_into().ok(),
    show: |value| Raw::Integer((*value).into()),
};

pub(super) const PERCENT: Kind<f64> = Kind {
    allowed: "a percentage from 0 to 100, as a number",
    read: |raw| raw.float().filter(|value| (0.0..=100.0).contains(value)),
    show: |value| Raw::Float(*value),
};

pub(super) const BLOCK: Kind<u64> = Kind {
    allowed: "a size like \"256 KiB\" or a number of bytes: a power of two from 4 KiB to 1 MiB",
    read: |raw| size(raw).filter(|bytes| bytes.is_power_of_two() && (4 * KIB..=MIB).contains(bytes)),
    show: show_integer,
};

pub(super) const WRITE: Kind<u64> = Kind {
    allowed: "a size like \"4 MiB\" or a number of bytes: a multiple of 4096 from 64 KiB to 1 GiB",
    read: |raw| size(raw).filter(|bytes| bytes.is_multiple_of(PAGE) && (64 * KIB..=GIB).contains(bytes)),
    show: show_integer,
};

pub(super) const WINDOW: Kind<u64> = Kind {
    allowed: "a size like \"64 MiB\" or a number of bytes, from 1 MiB to 1 TiB",
    read: |raw| size(raw).filter(|bytes| (MIB..=1024 * GIB).contains(bytes)),
    show: show_integer,
};

pub(super) const SPAN: Kind<Duration> = Kind {
    allowed: "a duration like \"90s\", \"10min\" or \"2h\", or a number of seconds, from 0 to 36500 days",
    read: span,
    show: show_span,
};

pub(super) const LIMIT: Kind<Duration> = Kind {
    allowed: "a duration like \"90s\", \"10min\" or \"2h\", or a number of seconds, more than 0 and up to 36500 days",
    read: |raw| span(raw).filter(|value| !value.is_zero()),
    show: show_span,
};

pub(super) const OPTIONAL_LIMIT: Kind<Option<Duration>> = Kind {
    allowed: "a duration like \"90s\", \"10min\" or \"2h\", or a number of seconds, more than 0 and up to 36500 days; or \"unset\"",
    read: |raw| optional(raw, LIMIT.read),
    show: |value| show_optional(value, show_span),
};

pub(super) const SPAN_OR_AUTO: Kind<Choice<Duration>> = Kind {
    allowed: "a duration like \"90s\", \"10min\" or \"2h\", or a number of seconds, from 0 to 36500 days; or \"auto\"",
    read: |raw| choice(raw, span),
    show: |value| show_choice(value, show_span),
};

pub(super) const EVERY: Kind<Choice<u64>> = Kind {
    allowed: "a whole number from 1, or \"auto\"",
    read: |raw| choice(raw, FROM_ONE.read),
    show: |value| show_choice(value, show_integer),
};

/// The kind for a tier whose `every` cannot be left to the session.
pub(super) const FIXED_EVERY: Kind<Choice<u64>> = Kind {
    allowed: FROM_ONE.allowed,
    read: |raw| (FROM_ONE.read)(raw).map(Choice::Fixed),
    show: |value| show_choice(value, show_integer),
};

pub(super) const NAME: Kind<Option<String>> = Kind {
    allowed: "a name of 1 to 128 bytes without '/' or control characters, without blanks at either end, and other than \
              \".\" and \"..\"; or \"unset\"",
    read: |raw| optional(raw, |raw| raw.text().filter(|text| is_name(text)).map(str::to_owned)),
    show: |value| show_optional(value, |text| Raw::Text(text.clone())),
};

pub(super) const PATH: Kind<PathBuf> =
    Kind { allowed: "a path, as a string of 1 to 4095 bytes without control characters", read: path, show: show_path };

pub(super) const OPTIONAL_PATH: Kind<Option<PathBuf>> = Kind {
    allowed: "a path, as a string of 1 to 4095 bytes without control characters, or \"unset\"",
    read: |raw| optional(raw, path),
    show: |value| show_optional(value, show_path),
};

pub(super) const OBJECT_URL: Kind<Option<String>> = Kind {
    allowed: "a URL like \"s3://bucket/checkpoints\" that begins with s3://, gs:// or az:// and names a bucket and optionally a \
              prefix in it, without blanks, \"?\", \"#\" or a password; or \"unset\"",
    read: |raw| optional(raw, |raw| url(raw, &OBJECT_SCHEMES)),
    show: |value| show_optional(value, |url| Raw::Text(url.clone())),
};

pub(super) const ENDPOINT: Kind<Option<String>> = Kind {
    allowed: "a URL like \"https://s3.example.org:9000\" that begins with https:// or http:// and names a server, without blanks, \
              \"?\", \"#\" or a password; or \"unset\"",
    read: |raw| optional(raw, |raw| url(raw, &["https", "http"])),
    show: |value| show_optional(value, |url| Raw::Text(url.clone())),
};

/// The schemes of an object store's URL.
pub const OBJECT_SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// A URL with one of these schemes and a host, and without parts that a log must not show.
fn url(raw: &Raw, schemes: &[&str]) -> Option<String> {
    let text = raw.text()?.trim();
    let (scheme, rest) = text.split_once("://")?;
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"?#@\\\"".contains(c);
    let has_host = rest.split('/').next().is_some_and(|host| !host.is_empty());
    let is_path = rest.split('/').all(|part| part != "." && part != "..") && !rest.trim_end_matches('/').contains("//");
    let is_right = schemes.contains(&scheme) && has_host && is_path && rest.chars().all(is_plain) && text.len() <= 1024;
    is_right.then(|| text.trim_end_matches('/').to_owned())
}

pub(super) const SIGNAL: Kind<Option<String>> = Kind {
    allowed: "one of HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CONT, URG, XCPU, VTALRM, PROF, WINCH, IO, PWR \
              (KILL and STOP cannot be caught, and signals that report faults must not be), or \"unset\"",
    read: |raw| optional(raw, |raw| signal(raw.text()?).map(|(name, _)| name.to_owned())),
    show: |value| show_optional(value, |name| Raw::Text(name.clone())),
};

pub(super) const END_TIME: Kind<Option<u64>> = Kind {
    allowed: "seconds since 1970 as a whole number, or a time in UTC like \"2026-01-31T12:00:00Z\", from 1970 to 9999; \
              or \"unset\"",
    read: |raw| optional(raw, end_time),
    show: |value| show_optional(value, show_integer),
};

pub(super) const BUDGET: Kind<Budget> = Kind {
    allowed: "a size like \"8 GiB\", a number of bytes, or a percentage like \"25%\" up to 100%; greater than 0",
    read: budget,
    show: |value| match value {
        Budget::Bytes(bytes) => show_integer(bytes),
        Budget::Percent(percent) => Raw::Text(format!("{percent}%")),
    },
};

pub(super) const BUDGET_OR_NONE: Kind<Budget> = Kind {
    allowed: "a size like \"8 GiB\", a number of bytes, a percentage like \"25%\" up to 100%, or 0",
    read: |raw| if raw.integer() == Some(0) { Some(Budget::Bytes(0)) } else { budget(raw) },
    show: BUDGET.show,
};

pub(super) const HOST_WRITES: Kind<HostWrites> = Kind {
    allowed: "\"watched\", \"declared\" or \"copied\"",
    read: |raw| match raw.text()?.trim() {
        "watched" => Some(HostWrites::Watched),
        "declared" => Some(HostWrites::Declared),
        "copied" => Some(HostWrites::Copied),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            HostWrites::Watched => "watched".to_owned(),
            HostWrites::Declared => "declared".to_owned(),
            HostWrites::Copied => "copied".to_owned(),
        })
    },
};

pub(super) const OFFLOAD_MODE: Kind<OffloadMode> = Kind {
    allowed: "\"auto\" or \"always\"",
    read: |raw| match raw.text()?.trim() {
        "auto" => Some(OffloadMode::Auto),
        "always" => Some(OffloadMode::Always),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            OffloadMode::Auto => "auto".to_owned(),
            OffloadMode::Always => "always".to_owned(),
        })
    },
};

pub(super) const THREAD_CPUS: Kind<ThreadCpus> = Kind {
    allowed: "\"near\" or \"own\"",
    read: |raw| match raw.text()?.trim() {
        "near" => Some(ThreadCpus::Near),
        "own" => Some(ThreadCpus::Own),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            ThreadCpus::Near => "near".to_owned(),
            ThreadCpus::Own => "own".to_owned(),
        })
    },
};

pub(super) const AFFINITY_MODE: Kind<AffinityMode> = Kind {
    allowed: "\"full\", \"threads\", \"pages\", \"capture\" or \"off\"",
    read: |raw| match raw.text()?.trim() {
        "full" => Some(AffinityMode::Full),
        "threads" => Some(AffinityMode::Threads),
        "pages" => Some(AffinityMode::Pages),
        "capture" => Some(AffinityMode::Capture),
        "off" => Some(AffinityMode::Off),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            AffinityMode::Full => "full".to_owned(),
            AffinityMode::Threads => "threads".to_owned(),
            AffinityMode::Pages => "pages".to_owned(),
            AffinityMode::Capture => "capture".to_owned(),
            AffinityMode::Off => "off".to_owned(),
        })
    },
};

pub(super) const OPTIONAL_CPUS: Kind<Option<BTreeSet<usize>>> = Kind {
    allowed: "\"unset\", or a list of CPU numbers like \"0-3,8\"",
    read: |raw| match raw.text()?.trim() {
        UNSET => Some(None),
        list => parse_cpus(list).filter(|cpus| !cpus.is_empty()).map(Some),
    },
    show: |value| Raw::Text(value.as_ref().map_or_else(|| UNSET.to_owned(), show_cpus)),
};

pub(super) const TOUCH: Kind<Touch> = Kind {
    allowed: "\"auto\", \"beside\" or \"between\"",
    read: |raw| match raw.text()?.trim() {
        "auto" => Some(Touch::Auto),
        "beside" => Some(Touch::Beside),
        "between" => Some(Touch::Between),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            Touch::Auto => "auto".to_owned(),
            Touch::Beside => "beside".to_owned(),
            Touch::Between => "between".to_owned(),
        })
    },
};

pub(super) const PIN_ORDER: Kind<PinOrder> = Kind {
    allowed: "\"turns\", \"at-once\" or \"never\"",
    read: |raw| match raw.text()?.trim() {
        "turns" => Some(PinOrder::InTurns),
        "at-once" => Some(PinOrder::AtOnce),
        "never" => Some(PinOrder::Never),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            PinOrder::InTurns => "turns".to_owned(),
            PinOrder::AtOnce => "at-once".to_owned(),
            PinOrder::Never => "never".to_owned(),
        })
    },
};

/// The word that means that there is no bound.
const UNLIMITED: &str = "unlimited";

pub(super) const BURSTS: Kind<Option<u32>> = Kind {
    allowed: "\"unlimited\", or a whole number from 1 to 8",
    read: |raw| match raw.text().map(str::trim) {
        Some(UNLIMITED) => Some(None),
        _ => raw.integer().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=BURSTS_MAX).contains(n)).map(Some),
    },
    show: |value| value.map_or_else(|| Raw::Text(UNLIMITED.to_owned()), |n| Raw::Integer(n.into())),
};

pub(super) const BURST_SCOPE: Kind<BurstScope> = Kind {
    allowed: "\"link\" or \"node\"",
    read: |raw| match raw.text()?.trim() {
        "link" => Some(BurstScope::Link),
        "node" => Some(BurstScope::Node),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            BurstScope::Link => "link".to_owned(),
            BurstScope::Node => "node".to_owned(),
        })
    },
};

pub(super) const BURST_ORDER: Kind<BurstOrder> = Kind {
    allowed: "\"shortest-first\", \"round-robin\" or \"first-come\"",
    read: |raw| match raw.text()?.trim() {
        "shortest-first" => Some(BurstOrder::ShortestFirst),
        "round-robin" => Some(BurstOrder::RoundRobin),
        "first-come" => Some(BurstOrder::FirstCome),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            BurstOrder::ShortestFirst => "shortest-first".to_owned(),
            BurstOrder::RoundRobin => "round-robin".to_owned(),
            BurstOrder::FirstCome => "first-come".to_owned(),
        })
    },
};

pub(super) const FLUSH_RATE: Kind<FlushRate> = Kind {
    allowed: "\"unlimited\", \"auto\", or bytes per second, like \"10 GB\" or as a plain number, at least 1 MiB",
    read: |raw| match raw.text().map(str::trim) {
        Some(UNLIMITED) => Some(FlushRate::Unlimited),
        Some("auto") => Some(FlushRate::Auto),
        _ => size(raw).filter(|bytes| *bytes >= MIB).map(FlushRate::Bytes),
    },
    show: |value| match value {
        FlushRate::Unlimited => Raw::Text(UNLIMITED.to_owned()),
        FlushRate::Auto => Raw::Text("auto".to_owned()),
        FlushRate::Bytes(bytes) => show_integer(bytes),
    },
};

pub(super) const FRACTION: Kind<f64> = Kind {
    allowed: "a number from 0 to 1",
    read: |raw| raw.float().filter(|value| (0.0..=1.0).contains(value)),
    show: |value| Raw::Float(*value),
};

pub(super) const DIRECT: Kind<Direct> = Kind {
    allowed: "\"auto\", \"on\" or \"off\"",
    read: |raw| match raw.text()?.trim() {
        "auto" => Some(Direct::Auto),
        "on" => Some(Direct::On),
        "off" => Some(Direct::Off),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            Direct::Auto => "auto".to_owned(),
            Direct::On => "on".to_owned(),
            Direct::Off => "off".to_owned(),
        })
    },
};

pub(super) const LOG_LEVEL: Kind<LogLevel> = Kind {
    allowed: "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
    read: |raw| LogLevel::of(&raw.text()?.trim().to_ascii_lowercase()),
    show: |value| Raw::Text(value.name().to_owned()),
};

pub(super) const PROGRESS: Kind<Progress> = Kind {
    allowed: "\"auto\", \"sockets\" or \"stepped\"",
    read: |raw| match raw.text()?.trim() {
        "auto" => Some(Progress::Auto),
        "sockets" => Some(Progress::Sockets),
        "stepped" => Some(Progress::Stepped),
        _ => None,
    },
    show: |value| {
        Raw::Text(match value {
            Progress::Auto => "auto".to_owned(),
            Progress::Sockets => "sockets".to_owned(),
            Progress::Stepped => "stepped".to_owned(),
        })
    },
};

pub(super) const SCHEME: Kind<Scheme> =
    Kind { allowed: SCHEME_ALLOWED, read: |raw| raw.text()?.parse().ok(), show: |value| Raw::Text(value.to_string()) };

pub(super) const NAME_POLICIES: Kind<NamePolicies> =
    Kind { allowed: NAMES_ALLOWED, read: NamePolicies::read, show: NamePolicies::show };

pub(super) const PART_STORE: Kind<PartStore> = Kind {
    allowed: "\"memory\" or \"local\"",
    read: |raw| match raw.text()?.trim() {
        "memory" => Some(PartStore::Memory),
        "local" => Some(PartStore::Local),
        _ => None,
    },
    show: |value| Raw::Text(value.name().to_owned()),
};

pub(super) const METHOD: Kind<Method> = Kind {
    allowed: "\"full\", \"basic\", \"list\", \"tree\" or \"auto\"",
    read: |raw| raw.text()?.parse().ok(),
    show: |value| Raw::Text(value.name().to_owned()),
};

pub(super) const REGION_METHODS: Kind<RegionMethods> =
    Kind { allowed: REGIONS_ALLOWED, read: RegionMethods::read, show: RegionMethods::show };

pub(super) const VERIFY: Kind<Verify> = Kind {
    allowed: "\"digest\" or \"bytes\"",
    read: |raw| Verify::ALL.into_iter().find(|verify| raw.text().is_some_and(|text| text.trim() == verify.name())),
    show: |value| Raw::Text(value.name().to_owned()),
};

pub(super) const COMPRESS: Kind<Compress> = Kind {
    allowed: "\"off\", \"auto\" or \"on\"",
    read: |raw| {
        Compress::ALL.into_iter().find(|compress| raw.text().is_some_and(|text| text.trim() == compress.name()))
    },
    show: |value| Raw::Text(value.name().to_owned()),
};

pub(super) const CHUNK: Kind<Option<u64>> = Kind {
    allowed: "\"auto\", or a number of bytes: a power of two from 32 to 4096",
    read: |raw| match raw.text().map(str::trim) {
        Some("auto") => Some(None),
        _ => size(raw).filter(|bytes| is_chunk(*bytes)).map(Some),
    },
    show: |value| value.as_ref().map_or_else(|| Raw::Text("auto".into()), show_integer),
};

pub(super) const SOURCES: Kind<u64> = Kind {
    allowed: "a whole number from 1 to 32",
    read: |raw| raw.integer().filter(|value| (1..=SOURCES_MAX).contains(value)),
    show: show_integer,
};

pub(super) const LIVE: Kind<f64> = Kind {
    allowed: "a number above 0, up to 1",
    read: |raw| raw.float().filter(|value| *value > 0.0 && *value <= 1.0),
    show: |value| Raw::Float(*value),
};

pub(super) const DOMAINS: Kind<DomainSource> = Kind {
    allowed: "\"node\", \"slurm\", or the path of a topology file as text of 1 to 4095 bytes without control \
              characters",
    read: |raw| match raw.text()?.trim() {
        "node" => Some(DomainSource::Node),
        "slurm" => Some(DomainSource::Slurm),
        _ => path(raw).map(DomainSource::File),
    },
    show: |value| match value {
        DomainSource::Node => Raw::Text("node".to_owned()),
        DomainSource::Slurm => Raw::Text("slurm".to_owned()),
        // A file whose name is one of these words needs its folder to distinguish it from the word.
        DomainSource::File(path) if matches!(path.to_str().map(str::trim), Some("node" | "slurm")) => {
            show_path(&Path::new(".").join(path))
        }
        DomainSource::File(path) => show_path(path),
    },
};

/// The word for an optional key without a value.
const UNSET: &str = "unset";
/// The word for a value that is left to the session.
const AUTO: &str = "auto";

fn optional<T>(raw: &Raw, read: impl Fn(&Raw) -> Option<T>) -> Option<Option<T>> {
    if raw.text() == Some(UNSET) { Some(None) } else { read(raw).map(Some) }
}

fn show_optional<T>(value: &Option<T>, show: impl Fn(&T) -> Raw) -> Raw {
    value.as_ref().map_or_else(|| Raw::Text(UNSET.to_owned()), show)
}

fn show_integer(value: &u64) -> Raw {
    Raw::Integer((*value).into())
}

/// Reads a size in bytes.
fn size(raw: &Raw) -> Option<u64> {
    match raw {
        Raw::Integer(value) => u64::try_from(*value).ok(),
        _ => parse_bytes(raw.text()?),
    }
}

/// The longest duration. It is far longer than any run, and far too short for a clock to overflow when it is added.
const SPAN_MAX: Duration = Duration::from_secs(36_500 * 86_400);

fn span(raw: &Raw) -> Option<Duration> {
    let value = match raw {
        Raw::Integer(value) => Duration::from_secs(u64::try_from(*value).ok()?),
        Raw::Float(value) => Duration::try_from_secs_f64(*value).ok()?,
        _ => parse_duration(raw.text()?)?,
    };
    within_span_max(value)
}

/// Reads a value, or the word that leaves it to the session.
fn choice<T>(raw: &Raw, read: fn(&Raw) -> Option<T>) -> Option<Choice<T>> {
    match raw.text().map(str::trim) {
        Some(AUTO) => Some(Choice::Auto),
        _ => read(raw).map(Choice::Fixed),
    }
}

fn show_choice<T>(value: &Choice<T>, show: fn(&T) -> Raw) -> Raw {
    match value {
        Choice::Auto => Raw::Text(AUTO.to_owned()),
        Choice::Fixed(value) => show(value),
    }
}

fn within_span_max(value: Duration) -> Option<Duration> {
    (value <= SPAN_MAX).then_some(value)
}

fn show_span(value: &Duration) -> Raw {
    Raw::Text(show_seconds(value))
}

/// Prints all digits of a duration, so that different durations have different text.
fn show_seconds(value: &Duration) -> String {
    let text = format!("{}.{:09}", value.as_secs(), value.subsec_nanos());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn path(raw: &Raw) -> Option<PathBuf> {
    let text = raw.text()?;
    let fits = (1..=4095).contains(&text.len()) && !text.chars().any(char::is_control);
    fits.then(|| PathBuf::from(text))
}

fn show_path(path: &PathBuf) -> Raw {
    match path.to_str() {
        Some(text) => Raw::Text(text.to_owned()),
        // Only a program can set such a path. The debug form keeps different bytes distinct when ranks compare them.
        None => Raw::Other(format!("{path:?}, which is not UTF-8")),
    }
}

/// Signals with which a job can be asked to end. The list leaves out signals that cannot be caught, signals of faults (returning from their
/// handlers is undefined), and signals that MPI libraries and child processes cause in normal operation.
const SIGNALS: [(&str, i32); 15] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
];

/// The canonical name and the number of a signal, given with or without `SIG`, in any case.
pub(super) fn signal(text: &str) -> Option<(&'static str, i32)> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS.into_iter().find(|(name, _)| *name == bare)
}

fn budget(raw: &Raw) -> Option<Budget> {
    let percent = raw.text().and_then(|text| text.trim().strip_suffix('%'));
    match percent {
        Some(number) => {
            let value: f64 = number.trim().parse().ok()?;
            (value > 0.0 && value <= 100.0).then_some(Budget::Percent(value))
        }
        None => size(raw).filter(|bytes| *bytes > 0).map(Budget::Bytes),
    }
}

fn end_time(raw: &Raw) -> Option<u64> {
    let seconds = match raw {
        Raw::Time(text) | Raw::Text(text) => parse_utc(text),
        Raw::Word(word) => raw.integer().or_else(|| parse_utc(word.trim())),
        _ => raw.integer(),
    }?;
    (seconds <= UTC_MAX).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_signals_in_words_is_the_list_that_is_accepted() {
        let words: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
        assert!(SIGNAL.allowed.starts_with(&format!("one of {} (", words.join(", "))), "{}", SIGNAL.allowed);
    }

    #[test]
    fn signals_are_known_by_both_names() {
        assert_eq!(signal("SIGUSR1"), Some(("USR1", libc::SIGUSR1)));
        assert_eq!(signal("term"), Some(("TERM", libc::SIGTERM)));
        for text in ["KILL", "SIGKILL", "STOP", "SEGV", "SIG", "", "SIGSIGTERM", "9", "USR3"] {
            assert_eq!(signal(text), None, "{text}");
        }
    }

    #[test]
    fn durations_print_all_their_digits() {
        let show = |seconds, nanos| show_span(&Duration::new(seconds, nanos)).to_string();
        assert_eq!(show(0, 0), "\"0s\"");
        assert_eq!(show(30, 0), "\"30s\"");
        assert_eq!(show(100, 500_000_000), "\"100.5s\"");
        assert_eq!(show(1, 1), "\"1.000000001s\"");
    }
}
