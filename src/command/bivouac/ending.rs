//! How a command ends, and its complaints.
//!
//! All commands use the same exit statuses. A command collects [`Problems`] while it works; the worst of them decides how it ends.
#![forbid(unsafe_code)]

use crate::output::complain;
use crate::target::TargetError;
use bivouac_core::segment::SegmentError;
use bivouac_core::tier::TierError;
use serde::{Serialize, Serializer};
use std::io;
use std::process::ExitCode;

/// How a command ended. A later variant takes precedence over an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ending {
    /// The work is done, and everything that was examined is good.
    #[default]
    Good,
    /// There was nothing to work on.
    Nothing,
    /// Wrong usage, something that cannot be read, or a refusal.
    Trouble,
    /// Damage, problems or differences were found.
    Damage,
    /// The status that `run` documents.
    Status(u8),
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> ExitCode {
        ExitCode::from(match ending {
            Ending::Good => 0,
            Ending::Damage => 1,
            Ending::Trouble => 2,
            Ending::Nothing => 3,
            Ending::Status(status) => status,
        })
    }
}

/// A complaint, and how a command ends that has met the problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// How the command ends, unless something worse is met.
    pub ending: Ending,
    /// The problem in words.
    pub text: String,
}

impl Problem {
    /// A problem: nothing was found where something was looked for.
    pub fn nothing(text: impl Into<String>) -> Problem {
        Problem { ending: Ending::Nothing, text: text.into() }
    }

    /// A problem: something differs from what was written.
    pub fn damage(text: impl Into<String>) -> Problem {
        Problem { ending: Ending::Damage, text: text.into() }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Problem {
        Problem { ending: Ending::Trouble, text }
    }
}

impl From<TargetError> for Problem {
    fn from(error: TargetError) -> Problem {
        error.to_string().into()
    }
}

impl From<TierError> for Problem {
    fn from(error: TierError) -> Problem {
        Problem { ending: of_tier(&error), text: error.to_string() }
    }
}

impl From<SegmentError> for Problem {
    fn from(error: SegmentError) -> Problem {
        Problem { ending: of_segment(&error), text: error.to_string() }
    }
}

/// How a command ends that has met this error of a tier: an action that the system refused is trouble, everything else is damage. A file
/// that ends early, or that is gone although it should exist, is damage.
pub fn of_tier(error: &TierError) -> Ending {
    match error {
        TierError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Ending::Damage,
            _ => Ending::Trouble,
        },
        _ => Ending::Damage,
    }
}

/// How a command ends that has met this error of a memory segment. A segment that was never finished is not damaged, but it cannot be read.
pub fn of_segment(error: &SegmentError) -> Ending {
    match error {
        SegmentError::Damaged { .. } => Ending::Damage,
        _ => Ending::Trouble,
    }
}

/// Everything that a command complains about. Documents show it as a list of texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problems {
    all: Vec<Problem>,
    /// The ending for what is shown without a complaint, such as damage in a table.
    shown: Ending,
}

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, problem: impl Into<Problem>) {
        self.all.push(problem.into());
    }

    /// Notes that the output shows something for which the command ends with `ending`.
    pub fn note(&mut self, ending: Ending) {
        self.shown = self.shown.max(ending);
    }

    /// Is there no problem at all?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Prints all problems to standard error.
    pub fn complain(&self) {
        self.all.iter().for_each(|problem| complain(&problem.text));
    }

    /// How the command ends.
    pub fn ending(&self) -> Ending {
        self.all.iter().map(|problem| problem.ending).fold(self.shown, Ending::max)
    }
}

impl Extend<String> for Problems {
    fn extend<T: IntoIterator<Item = String>>(&mut self, texts: T) {
        texts.into_iter().for_each(|text| self.add(text));
    }
}

impl Serialize for Problems {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all.iter().map(|problem| &problem.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_decides() {
        let mut problems = Problems::default();
        assert_eq!(problems.ending(), Ending::Good);
        problems.add(Problem::nothing("an empty folder"));
        assert_eq!(problems.ending(), Ending::Nothing);
        problems.add("no such folder".to_owned());
        assert_eq!(problems.ending(), Ending::Trouble);
        problems.note(Ending::Damage);
        problems.add("another".to_owned());
        assert_eq!(problems.ending(), Ending::Damage);
    }
}
