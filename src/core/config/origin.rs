//! Where settings come from.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line; the first one is 1.
        line: usize,
    },
    /// A line of the text given to [`super::Config::from_toml`].
    Text {
        /// The line; the first one is 1.
        line: usize,
    },
    /// An environment variable.
    Variable {
        /// Its name.
        name: String,
    },
    /// A field that the program set.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Text { line } => write!(f, "line {line}"),
            Origin::Variable { name } => write!(f, "environment variable {name}"),
            Origin::Program => f.write_str("set by the program"),
        }
    }
}
