//! How batch systems are asked, and what their answers have in common.
#![forbid(unsafe_code)]

use crate::asking;
use bivouac_core::base::calendar::unix_now;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

/// A command of a batch system may hang when its server does; it is ended after this time.
const LIMIT: Duration = Duration::from_secs(15);

/// The time that is this many seconds from now, in seconds since 1970.
pub(super) fn from_now(seconds: u64) -> u64 {
    unix_now() as u64 + seconds
}

/// The value of an environment variable that is set and not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns what a command of a batch system prints.
///
/// # Errors
/// The command cannot be started, takes too long, or fails; the error has its status and its message.
pub(super) fn answer(program: &str, arguments: &[&str]) -> Result<String, String> {
    asking::answer(Command::new(program).args(arguments), LIMIT).map_err(|why| named(program, arguments, &why))
}

/// Runs a command that asks for something that may end this process and the command itself.
///
/// # Errors
/// The command cannot be started, takes too long, or fails; the error has its status and its message.
pub(super) fn ask(program: &str, arguments: &[&str]) -> Result<(), String> {
    let said = asking::run(Command::new(program).args(arguments), LIMIT);
    let said = said.map_err(|why| named(program, arguments, &why))?;
    match said.status.success() || said.status.signal().is_some() {
        true => Ok(()),
        false => Err(named(program, arguments, &format!("{} {}", said.status, said.err.trim()))),
    }
}

fn named(program: &str, arguments: &[&str], why: &str) -> String {
    format!("{program} {}: {why}", arguments.join(" "))
}

/// Converts `1-02:03:04`, `02:03:04`, `03:04` and `04` to seconds; `None` for words such as `UNLIMITED`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if parts.len() > 3 {
        return None;
    }
    let seconds = parts.iter().try_fold(0u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    days.checked_mul(86_400)?.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_are_read() {
        assert_eq!(seconds("1-02:03:04\n"), Some(86_400 + 7384));
        assert_eq!(
            [seconds("36:00:00"), seconds("03:04"), seconds("0:00"), seconds("5")],
            [Some(129_600), Some(184), Some(0), Some(5)]
        );
        for text in ["", "UNLIMITED", "INVALID", "NOT_SET", "1:2:3:4", "9999999999999999999-00:00", "x-00:00", "1-2-3"]
        {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
