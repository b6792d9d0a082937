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

/// How a command ended. The later ones win over the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Ending {
    /// Done, and all that was looked at is good.
    #[default]
    Good,
    /// There was nothing to do it to.
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

/// Something to complain about, and how a command ends that has met it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// How the command ends, unless something worse is met.
    pub ending: Ending,
    /// It in words.
    pub text: String,
}

impl Problem {
    /// There is nothing where something was looked for.
    pub fn nothing(text: impl Into<String>) -> Problem {
        Problem { ending: Ending::Nothing, text: text.into() }
    }

    /// Something is not as it was written.
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

/// How a command ends that has met this error of a tier: what the system refused is trouble, all else is damage. A file that ends
/// early, or is gone though it should be there, is damage.
pub fn of_tier(error: &TierError) -> Ending {
    match error {
        TierError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Ending::Damage,
            _ => Ending::Trouble,
        },
        _ => Ending::Damage,
    }
}

/// How a command ends that has met this error of a memory segment. A segment that was never finished is not damage, but cannot
/// be read.
pub fn of_segment(error: &SegmentError) -> Ending {
    match error {
        SegmentError::Damaged { .. } => Ending::Damage,
        _ => Ending::Trouble,
    }
}

/// All that a command complains about. In documents, a list of texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problems {
    all: Vec<Problem>,
    /// What is not complained about, such as damage that a table shows.
    shown: Ending,
}

impl Problems {
    /// Takes one in.
    pub fn add(&mut self, problem: impl Into<Problem>) {
        self.all.push(problem.into());
    }

    /// The output shows something that the command ends like this for.
    pub fn note(&mut self, ending: Ending) {
        self.shown = self.shown.max(ending);
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Says all of them on standard error.
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
