//! The errors of a configuration: facts, and their texts.
#![forbid(unsafe_code)]

use super::origin::Origin;
use super::redundancy::{PartStore, Scheme};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The maximum number of problems that are kept. Further ones are only counted: a wrong file must not produce a megabyte of messages.
const PROBLEMS_MAX: usize = 100;

/// The maximum number of characters of a value or a name in a message. A longer one is cut.
const SHOWN_CHARS_MAX: usize = 80;

/// Why a configuration could not be made.
///
/// [`ConfigError::problems`] lists each problem separately, whether there was one or there were several.
///
/// `{}` and `{:?}` print the same text; the second is what Rust prints when `main` returns an error.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {}", .path.display(), io::Error::from_raw_os_error(*.errno))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
    /// The path leads to something other than a file: a folder, a pipe or a device.
    #[error("{} is not a regular file, so it is not read as configuration", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is too large to be a configuration.
    #[error("the configuration file {} is larger than {limit} bytes; is it the right file?", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest size that is read, in bytes.
        limit: u64,
    },
    /// The file is not UTF-8 text.
    #[error("{origin}: the configuration is not UTF-8 text (byte {offset}); is it the right file?")]
    NotText {
        /// The line with the first bad byte.
        origin: Origin,
        /// The offset of that byte.
        offset: usize,
    },
    /// The text is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// The place of the mistake.
        origin: Origin,
        /// The message of the TOML parser.
        message: String,
    },
    /// A section that does not exist.
    #[error("{origin}: there is no section [{section}]{}", did_you_mean(.suggestion))]
    UnknownSection {
        /// The name as written.
        section: String,
        /// The place of the mistake.
        origin: Origin,
        /// The section that was probably meant.
        suggestion: Option<String>,
    },
    /// The name of a section is used for something other than a table.
    #[error("{origin}: {section} is a section; write [{section}] on its own line and its keys below it")]
    NotASection {
        /// The section.
        section: &'static str,
        /// The place of the mistake.
        origin: Origin,
    },
    /// A key that does not exist.
    #[error("{origin}: there is no key {key}{}", did_you_mean(.suggestion))]
    UnknownKey {
        /// The name as written, with its section.
        key: String,
        /// The place of the mistake.
        origin: Origin,
        /// The key that was probably meant.
        suggestion: Option<String>,
    },
    /// An environment variable that starts with `BIVOUAC_` and belongs to no key.
    #[error("environment variable {name} does not belong to any configuration key{}", did_you_mean(.suggestion))]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The variable that was probably meant.
        suggestion: Option<String>,
    },
    /// The value of an environment variable is not UTF-8.
    #[error("environment variable {name} for {key} is not UTF-8 text: {value}; allowed: {allowed}")]
    VariableNotText {
        /// The variable.
        name: String,
        /// Its key.
        key: &'static str,
        /// The value, with the bad bytes escaped.
        value: String,
        /// What the key accepts.
        allowed: &'static str,
    },
    /// A value of the wrong type or outside its range.
    #[error("{key} = {value} ({origin}): allowed: {allowed}")]
    Value {
        /// The key with its section.
        key: &'static str,
        /// The value as written, cut if it is very long.
        value: String,
        /// The place of the mistake.
        origin: Origin,
        /// What the key accepts.
        allowed: &'static str,
    },
    /// All tiers are switched off.
    #[error(
        "no tier is enabled, so no checkpoint can be kept: set memory.enabled, local.enabled or global.enabled to true"
    )]
    NoTier,
    /// The tier for copies and parity is switched off.
    #[error(
        "redundancy.store = \"{store}\" (with the scheme {scheme}) needs the {store} tier, which is switched off: set \
         {store}.enabled to true, choose another redundancy.store, or set redundancy.scheme to \"none\"{}",
        store_hint(*.store)
    )]
    NoPartStore {
        /// The tier.
        store: PartStore,
        /// The first scheme that would use it.
        scheme: Scheme,
    },
    /// The lower bound of the interval is above the upper one.
    #[error("interval.least is {} s, more than interval.most, which is {} s: lower \
             interval.least", .least.as_secs_f64(), .most.as_secs_f64())]
    NoInterval {
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// More than one problem.
    #[error("{} problems in the configuration:{}", .problems.len() + .omitted, Listing(.problems, *.omitted))]
    Several {
        /// At least two problems, none of them `Several`. Problems of the file come first, in the order of the file.
        problems: Vec<ConfigError>,
        /// The number of further problems.
        omitted: usize,
    },
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ConfigError {
    /// Each problem separately: the list inside [`ConfigError::Several`], or this one.
    pub fn problems(&self) -> &[ConfigError] {
        match self {
            ConfigError::Several { problems, .. } => problems,
            one => std::slice::from_ref(one),
        }
    }
}

fn store_hint(store: PartStore) -> &'static str {
    match store {
        PartStore::Memory => ", also in redundancy.names",
        PartStore::Local => " and redundancy.store to \"memory\"",
    }
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

/// Prints problems as a list, one on each line.
struct Listing<'a>(&'a [ConfigError], usize);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.0 {
            write!(f, "\n  - {problem}")?;
        }
        match self.1 {
            0 => Ok(()),
            omitted => write!(f, "\n  and {omitted} more"),
        }
    }
}

/// The problems found so far.
#[derive(Default)]
pub(super) struct Problems {
    kept: Vec<ConfigError>,
    omitted: usize,
}

impl Problems {
    /// Adds a problem. The closure, which may search for a suggestion, runs only if the problem is kept.
    pub fn push(&mut self, problem: impl FnOnce() -> ConfigError) {
        if self.kept.len() < PROBLEMS_MAX {
            self.kept.push(problem());
        } else {
            self.omitted += 1;
        }
    }

    /// Returns `Ok` if no problem was found.
    pub fn into_result(mut self) -> Result<(), ConfigError> {
        match self.kept.len() {
            0 => Ok(()),
            1 => Err(self.kept.remove(0)),
            _ => Err(ConfigError::Several { problems: self.kept, omitted: self.omitted }),
        }
    }
}

/// A name as it is shown in messages: without control characters, and cut if it is very long.
pub(super) fn shown_name(name: &str) -> String {
    shown(&name.escape_debug().to_string())
}

/// Cuts text for a message.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
