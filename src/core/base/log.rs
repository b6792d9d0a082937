//! Where log lines go: to the program's logger, or, if it has none, to standard error.
//!
//! Bivouac logs through the `log` crate, whose logger a program sets once. A library that sets one takes that
//! choice away, so none is set here: as long as a program has none, or one that lets nothing through, lines up to our own level are
//! written to standard error. A configuration chooses the level (`configure`), or the program itself (`decide`);
//! before that nothing is written, so that tools and tests get only the lines that they ask for.
//!
//! A module that says something imports this one, and writes `log::warn!` as it would with the crate.
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

/// The target of the lines that a session writes for people when it opens and when it closes.
pub const SUMMARY: &str = "bivouac::summary";

/// What is written to standard error where the program has no logger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Errors.
    Error,
    /// Warnings too, and one line when a session opens and one when it closes.
    #[default]
    Warn,
    /// Events too.
    Info,
    /// Details too.
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

    /// By its name in configurations.
    pub fn of(name: &str) -> Option<LogLevel> {
        LogLevel::NAMES.into_iter().find(|(_, known)| *known == name).map(|(level, _)| level)
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        LogLevel::NAMES.into_iter().find(|(level, _)| *level == self).map_or("off", |(_, name)| name)
    }
}

/// Nobody has chosen a level so far: nothing is written.
const UNASKED: u8 = u8::MAX;
/// A [`LogLevel`], or [`UNASKED`].
static LEVEL: AtomicU8 = AtomicU8::new(UNASKED);
/// The program has said what is written, whatever configurations say.
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// Has lines of at least the importance `level` written to standard error, unless the program has a logger; later
/// configurations change nothing.
///
/// Local, never waits, any thread.
pub fn decide(level: LogLevel) {
    IS_DECIDED.store(true, Ordering::Relaxed);
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// As [`decide`], for what a configuration says.
#[cfg(any(test, feature = "mpi"))]
pub(crate) fn configure(level: LogLevel) {
    if !IS_DECIDED.load(Ordering::Relaxed) {
        LEVEL.store(level as u8, Ordering::Relaxed);
    }
}

/// Warnings that are kept until somebody takes them, at most.
const KEPT_MAX: usize = 256;

/// A warning, or an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// When, in seconds since 1970.
    pub unix: f64,
    /// Which of both.
    pub level: Level,
    /// The line.
    pub text: String,
}

/// Somebody takes warnings.
static KEEPS: AtomicBool = AtomicBool::new(false);
static KEPT: Lock<VecDeque<Kept>> = Lock::unordered(VecDeque::new());

/// From now on warnings and errors of this process are kept for [`take_kept`], the newest 256, whether or not anybody hears them.
///
/// Local, never waits, any thread.
pub(crate) fn keep() {
    KEEPS.store(true, Ordering::Relaxed);
}

/// Those that nobody has taken, the oldest first.
///
/// Local, never waits, any thread.
pub(crate) fn take_kept() -> Vec<Kept> {
    std::mem::take(&mut *KEPT.lock()).into()
}

fn is_kept(level: Level) -> bool {
    level <= Level::Warn && KEEPS.load(Ordering::Relaxed)
}

/// Writes a line to standard error unless `off` was chosen. For interfaces that tell of each failed call.
pub fn say(text: &str) {
    if LEVEL.load(Ordering::Relaxed) != LogLevel::Off as u8 {
        put(&format!("{text}\n"));
    }
}

/// Does anybody hear a line of this importance?
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

/// Hands a line that [`is_on`] to the program's logger, or writes it.
pub fn write(level: Level, target: &str, text: Arguments<'_>) {
    if is_kept(level) {
        // Whatever the text is made of may say something itself.
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

/// Users know one library: `RUST_LOG=bivouac::session=info` is about the module of that name, whichever of our crates it lies in.
fn as_told(target: &str) -> Cow<'_, str> {
    let [core, capi] = ["bivouac_core", "bivouac_capi"].map(|name| target.strip_prefix(name));
    match (core, capi) {
        (Some(rest), _) => format!("bivouac{rest}").into(),
        (_, Some(rest)) => format!("bivouac::capi{rest}").into(),
        _ => target.into(),
    }
}

/// The crate's macros look at nothing but this level before they call a logger, and a program without one never raises it.
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

/// One write for one line, so that those of several ranks do not mix. A program without standard error is not told.
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
        // Other tests of this process may have warnings kept, so that more is on than is heard.
        assert!(!is_heard(Level::Error, SUMMARY), "nobody has asked");
        configure(LogLevel::Info);
        assert!(is_heard(Level::Info, "bivouac::x") && !is_on(Level::Debug, "bivouac::x"));
        decide(LogLevel::Error);
        configure(LogLevel::Trace);
        assert!(is_heard(Level::Error, "bivouac::x") && !is_heard(Level::Warn, "bivouac::x"));
        decide(LogLevel::Off);
    }
}
