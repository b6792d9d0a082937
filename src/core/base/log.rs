//! Decides where log lines go: to the program's logger or, if it has none, to standard error.
//!
//! Bivouac logs through the `log` crate, whose logger a program sets once. A library that sets a logger takes this choice away from the
//! program, so Bivouac sets none. While a program has no logger, or one that lets nothing through, lines up to Bivouac's own level are
//! written to standard error. A configuration (`configure`) or the program itself (`decide`) chooses this level. Before that nothing is
//! written, so that tools and tests receive only the lines that they ask for.
//!
//! A module that logs imports this module and writes `log::warn!` as with the crate.
#![forbid(unsafe_code)]

use super::calendar::{unix_now, utc};
use super::sync::Lock;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU8, Ordering};

pub use ::log::Level;

/// The target of the lines for people that a session writes when it opens and when it closes.
pub const SUMMARY: &str = "bivouac::summary";

/// What is written to standard error if the program has no logger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Errors.
    Error,
    /// Errors and warnings, one line when a session opens and one when it closes.
    #[default]
    Warn,
    /// These lines and events.
    Info,
    /// These lines and details.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const NAMES: [(LogLevel, &str); 6] = [
        (LogLevel::Off, "off"),
        (LogLevel::Error, "error"),
        (LogLevel::Warn, "warn"),
        (LogLevel::Info, "info"),
        (LogLevel::Debug, "debug"),
        (LogLevel::Trace, "trace"),
    ];

    /// Finds a level by its name in configurations.
    pub fn of(name: &str) -> Option<LogLevel> {
        LogLevel::NAMES.into_iter().find(|(_, known)| *known == name).map(|(level, _)| level)
    }

    /// The level's name in configurations.
    pub fn name(self) -> &'static str {
        LogLevel::NAMES.into_iter().find(|(level, _)| *level == self).map_or("off", |(_, name)| name)
    }
}

/// The value while nobody has chosen a level. Nothing is written then.
const UNASKED: u8 = u8::MAX;
/// A [`LogLevel`], or [`UNASKED`].
static LEVEL: AtomicU8 = AtomicU8::new(UNASKED);
/// Whether the program has decided what is written, whatever configurations say.
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// Chooses that lines of at least the importance `level` are written to standard error, unless the program has a logger. Later
/// configurations do not change this.
///
/// Local, never waits, any thread.
pub fn decide(level: LogLevel) {
    IS_DECIDED.store(true, Ordering::Relaxed);
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Does the same as [`decide`] for the level of a configuration, unless the program has decided.
#[cfg(any(test, feature = "mpi"))]
pub(crate) fn configure(level: LogLevel) {
    if !IS_DECIDED.load(Ordering::Relaxed) {
        LEVEL.store(level as u8, Ordering::Relaxed);
    }
}

/// The maximum number of warnings that are kept until they are taken.
const KEPT_MAX: usize = 256;

/// A warning or an error that was kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The time of the line, in seconds since 1970.
    pub unix: f64,
    /// Whether the line is a warning or an error.
    pub level: Level,
    /// The text of the line.
    pub text: String,
}

/// Whether warnings are kept.
static KEEPS: AtomicBool = AtomicBool::new(false);
static KEPT: Lock<VecDeque<Kept>> = Lock::unordered(VecDeque::new());

/// Makes this process keep its newest 256 warnings and errors for [`take_kept`], whether or not any of them are written.
///
/// Local, never waits, any thread.
pub(crate) fn keep() {
    KEEPS.store(true, Ordering::Relaxed);
}

/// Returns the kept lines that have not been taken yet, oldest first.
///
/// Local, never waits, any thread.
pub(crate) fn take_kept() -> Vec<Kept> {
    std::mem::take(&mut *KEPT.lock()).into()
}

fn is_kept(level: Level) -> bool {
    level <= Level::Warn && KEEPS.load(Ordering::Relaxed)
}

/// Writes a line to standard error unless `off` was chosen. It is meant for interfaces that report each failed call.
pub fn say(text: &str) {
    if LEVEL.load(Ordering::Relaxed) != LogLevel::Off as u8 {
        put(&format!("{text}\n"));
    }
}

/// Is a line of this importance kept, written or passed to a logger?
pub fn is_on(level: Level, target: &str) -> bool {
    is_kept(level) || is_heard(level, target)
}

fn is_heard(level: Level, target: &str) -> bool {
    match has_logger() {
        true => level <= ::log::max_level(),
        false => match LEVEL.load(Ordering::Relaxed) {
            UNASKED => false,
            asked => asked >= needed(level, target) as u8,
        },
    }
}

/// Passes a line for which [`is_on`] is true to the program's logger, or writes it.
pub fn write(level: Level, target: &str, text: Arguments<'_>) {
    if is_kept(level) {
        // Formatting the text may itself log a line, so it precedes the lock.
        let line = Kept { unix: unix_now(), level, text: text.to_string() };
        let mut kept = KEPT.lock();
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(line);
    }
    if !is_heard(level, target) {
        return;
    }
    let target = &*as_told(target);
    if has_logger() {
        ::log::log!(target: target, level, "{text}");
    } else if target == SUMMARY {
        put(&format!("bivouac: {text}\n"));
    } else {
        put(&format!("[{} {level:5} {target}] {text}\n", utc(unix_now())));
    }
}

/// Users know a single library. `RUST_LOG=bivouac::session=info` refers to the module with that name, whichever of
/// Bivouac's crates contains it.
fn as_told(target: &str) -> Cow<'_, str> {
    let [core, capi] = ["bivouac_core", "bivouac_capi"].map(|name| target.strip_prefix(name));
    match (core, capi) {
        (Some(rest), _) => format!("bivouac{rest}").into(),
        (_, Some(rest)) => format!("bivouac::capi{rest}").into(),
        _ => target.into(),
    }
}

/// The macros of the `log` crate look only at this level before they call a logger, and a program without a logger never raises it.
fn has_logger() -> bool {
    ::log::max_level() > ::log::LevelFilter::Off
}

/// The level at which a line is written.
fn needed(level: Level, target: &str) -> LogLevel {
    match (target, level) {
        (SUMMARY, Level::Info) | (_, Level::Warn) => LogLevel::Warn,
        (_, Level::Error) => LogLevel::Error,
        (_, Level::Info) => LogLevel::Info,
        (_, Level::Debug) => LogLevel::Debug,
        (_, Level::Trace) => LogLevel::Trace,
    }
}

/// Writes a line in a single write, so that lines of several ranks do not mix. A program without standard error is not told.
fn put(line: &str) {
    _ = std::io::stderr().write_all(line.as_bytes());
}

#[doc(hidden)]
#[macro_export]
macro_rules! bvk_log {
    (target: $target:expr, $level:expr, $($text:tt)+) => {{
        let (level, target) = ($level, $target);
        if $crate::base::log::is_on(level, target) {
            $crate::base::log::write(level, target, format_args!($($text)+));
        }
    }};
    ($level:expr, $($text:tt)+) => { $crate::base::log::log!(target: module_path!(), $level, $($text)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! bvk_error {
    (target: $target:expr, $($text:tt)+) => {
        $crate::base::log::log!(target: $target, $crate::base::log::Level::Error, $($text)+)
    };
    ($($text:tt)+) => { $crate::base::log::log!($crate::base::log::Level::Error, $($text)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! bvk_warn {
    (target: $target:expr, $($text:tt)+) => {
        $crate::base::log::log!(target: $target, $crate::base::log::Level::Warn, $($text)+)
    };
    ($($text:tt)+) => { $crate::base::log::log!($crate::base::log::Level::Warn, $($text)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! bvk_info {
    (target: $target:expr, $($text:tt)+) => {
        $crate::base::log::log!(target: $target, $crate::base::log::Level::Info, $($text)+)
    };
    ($($text:tt)+) => { $crate::base::log::log!($crate::base::log::Level::Info, $($text)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! bvk_debug {
    (target: $target:expr, $($text:tt)+) => {
        $crate::base::log::log!(target: $target, $crate::base::log::Level::Debug, $($text)+)
    };
    ($($text:tt)+) => { $crate::base::log::log!($crate::base::log::Level::Debug, $($text)+) };
}

pub use {bvk_debug as debug, bvk_error as error, bvk_info as info, bvk_log as log, bvk_warn as warn};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_lets_through_what_is_as_important_and_the_summary() {
        let heard = |level: LogLevel| {
            let ours = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
            let is_heard = |target, line| level >= needed(line, target);
            (
                is_heard(SUMMARY, Level::Info),
                ours.map(|line| u8::from(is_heard("bivouac::transfer", line))).iter().sum(),
            )
        };
        assert_eq!(heard(LogLevel::Off), (false, 0u8));
        assert_eq!(heard(LogLevel::Error), (false, 1));
        assert_eq!(heard(LogLevel::Warn), (true, 2));
        assert_eq!(heard(LogLevel::Info), (true, 3));
        assert_eq!(heard(LogLevel::Debug), (true, 4));
        assert_eq!(heard(LogLevel::Trace), (true, 5));
    }

    #[test]
    fn all_crates_of_ours_speak_as_one_library() {
        let told = ["bivouac_core::session::open", "bivouac_capi::veloc", SUMMARY, "heat2d"].map(as_told);
        assert_eq!(told, ["bivouac::session::open", "bivouac::capi::veloc", SUMMARY, "heat2d"]);
    }

    #[test]
    fn warnings_are_kept_for_whoever_asked_for_them_even_where_nobody_hears_them() {
        keep();
        super::warn!("event=kept number={}", 1);
        super::info!("event=no-warning");
        let ours = |kept: Vec<Kept>| kept.into_iter().filter(|kept| kept.text.contains("number=1")).count();
        let kept = take_kept();
        assert!(!kept.iter().any(|kept| kept.text.contains("no-warning")));
        assert_eq!((ours(kept), ours(take_kept())), (1, 0));
        (0..2 * KEPT_MAX).for_each(|number| super::error!("event=many at={number}"));
        assert!(take_kept().len() <= KEPT_MAX);
    }

    #[test]
    fn what_the_program_decides_counts_more_than_a_configuration() {
        // Other tests in this process may have warnings kept, so `is_on` may be true for lines that are not heard.
        assert!(!is_heard(Level::Error, SUMMARY), "nobody has asked");
        configure(LogLevel::Info);
        assert!(is_heard(Level::Info, "bivouac::x") && !is_on(Level::Debug, "bivouac::x"));
        decide(LogLevel::Error);
        configure(LogLevel::Trace);
        assert!(is_heard(Level::Error, "bivouac::x") && !is_heard(Level::Warn, "bivouac::x"));
        decide(LogLevel::Off);
    }
}
