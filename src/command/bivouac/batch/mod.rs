//! Batch systems: which one this process has an allocation of, what it says about the allocation, and how it is asked to queue the
//! job again.
//!
//! [`slurm`] was tried with SLURM itself, [`flux`], [`pbs`] and [`lsf`] with scripts that answer as their documentation says.
#![forbid(unsafe_code)]

mod flux;
mod lsf;
mod pbs;
pub mod slurm;

use crate::hosts::Host;
use bivouac_core::base::calendar::unix_now;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Commands of a batch system may hang when its server does: so many seconds are enough.
const ANSWER_SECONDS: u32 = 15;

/// A batch system that this process has an allocation of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// Flux: a batch script or an interactive shell of an instance.
    Flux,
    /// SLURM.
    Slurm,
    /// PBS Professional, OpenPBS, TORQUE.
    Pbs,
    /// IBM Spectrum LSF.
    Lsf,
}

/// How a job stands that is about to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Its nodes are being taken away, to give them to another job. Then the ranks have been told, and not this process.
    pub is_preempted: bool,
    /// Somebody has cancelled it.
    pub is_cancelled: bool,
}

/// The batch system of this process: the inner one, where one runs in an allocation of another.
pub fn here() -> Option<System> {
    // Flux hides the variables of an enclosing SLURM.
    [System::Flux, System::Slurm, System::Pbs, System::Lsf].into_iter().find(|system| system.is_here())
}

impl System {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Flux => "Flux",
            System::Slurm => "SLURM",
            System::Pbs => "PBS",
            System::Lsf => "LSF",
        }
    }

    fn is_here(self) -> bool {
        match self {
            System::Flux => flux::is_here(),
            System::Slurm => slurm::is_here(),
            System::Pbs => pbs::is_here(),
            System::Lsf => lsf::is_here(),
        }
    }

    /// The hosts of the allocation; `None` if it does not say.
    ///
    /// # Errors
    /// What it says cannot be read.
    pub fn hosts(self) -> Result<Option<Vec<Host>>, String> {
        match self {
            System::Flux => flux::hosts().map(Some),
            System::Slurm => slurm::hosts(),
            System::Pbs => pbs::hosts(),
            System::Lsf => lsf::hosts(),
        }
    }

    /// Are these all hosts of the allocation?
    pub fn has_all(self, given: &[Host]) -> bool {
        let all = |own: Vec<Host>| given.iter().all(|host| own.iter().any(|own| own.name == host.name));
        self.hosts().ok().flatten().is_some_and(all)
    }

    /// The end of the allocation, seconds since 1970, if it has one and the system tells.
    pub fn end_time(self) -> Option<u64> {
        match self {
            System::Flux => flux::seconds_left().map(from_now),
            System::Slurm => slurm::end_time(),
            System::Pbs => pbs::end_time(),
            System::Lsf => lsf::seconds_left().map(from_now),
        }
    }

    /// How the job stands, whose supervisor heard the signal `heard`, if any, and whose time `is_ending`.
    pub fn standing(self, heard: Option<&str>, is_ending: bool) -> Standing {
        match self {
            System::Slurm => slurm::standing(),
            // SIGTERM comes from these when a job is cancelled; what warns of the end is another signal, or our own clock.
            _ => Standing { is_preempted: false, is_cancelled: heard == Some("SIGTERM") && !is_ending },
        }
    }

    /// Can a user have a job queued again?
    ///
    /// # Errors
    /// Why not.
    pub fn can_requeue(self) -> Result<(), &'static str> {
        match self {
            System::Slurm | System::Lsf => Ok(()),
            System::Pbs => Err("PBS lets only its operators queue a job again"),
            System::Flux => Err("Flux does not queue a job again"),
        }
    }

    /// Asks that this job be queued again, which also ends it: both this process and the command that asks may be ended before
    /// the answer is there. The job's id.
    ///
    /// # Errors
    /// It cannot be done, or what the system says.
    pub fn requeue(self) -> Result<String, String> {
        self.can_requeue()?;
        match self {
            System::Lsf => lsf::requeue(),
            _ => slurm::requeue(),
        }
    }
}

fn from_now(seconds: u64) -> u64 {
    unix_now() as u64 + seconds
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A command of a batch system, with a limit of time.
fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(ANSWER_SECONDS.to_string()).arg(program).stdin(Stdio::null());
    command
}

/// What a command of a batch system prints.
///
/// # Errors
/// It cannot be started, or fails: its status and what it says.
fn answer(program: &str, arguments: &[&str]) -> Result<String, String> {
    let call = || format!("{program} {}", arguments.join(" "));
    let output = bounded(program).args(arguments).output().map_err(|error| format!("{}: {error}", call()))?;
    if !output.status.success() {
        return Err(format!("{}: {} {}", call(), output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has a command ask for something that may end this process and the command itself.
///
/// # Errors
/// It cannot be started, or what it says.
fn ask(program: &str, arguments: &[&str]) -> Result<(), String> {
    let call = format!("{program} {}", arguments.join(" "));
    let output = bounded(program).args(arguments).output().map_err(|error| format!("{call}: {error}"))?;
    if output.status.success() || output.status.signal().is_some() {
        return Ok(());
    }
    Err(format!("{call}: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

/// `1-02:03:04`, `02:03:04`, `03:04` and `04` in seconds; `None` for words such as `UNLIMITED`.
fn seconds(text: &str) -> Option<u64> {
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

    #[test]
    fn sigterm_is_a_cancellation_unless_the_time_is_over() {
        for system in [System::Flux, System::Pbs, System::Lsf] {
            let is_cancelled = |heard, is_ending| system.standing(heard, is_ending).is_cancelled;
            assert!(is_cancelled(Some("SIGTERM"), false));
            assert!(!is_cancelled(Some("SIGTERM"), true));
            assert!(!is_cancelled(Some("SIGUSR1"), false));
            assert!(!is_cancelled(None, false));
        }
    }
}
