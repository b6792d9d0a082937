//! Batch systems: which of them gave this process its allocation, what that system says about the allocation, and how it is asked to
//! queue the job again.
//!
//! [`slurm`] was tried with SLURM itself; [`flux`], [`pbs`] and [`lsf`] were tried with scripts that answer as the documentation
//! of these systems says.
#![forbid(unsafe_code)]

mod flux;
mod lsf;
mod pbs;
mod questions;
pub mod slurm;

use crate::hosts::Host;
use questions::from_now;
use slurm::Standing;

/// A batch system that gave this process an allocation.
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

/// The batch system of this process; if one runs in an allocation of another, the inner one.
pub fn here() -> Option<System> {
    // Flux hides the variables of an enclosing SLURM job.
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

    /// The hosts of the allocation; `None` if the system does not report them.
    ///
    /// # Errors
    /// The report of the system cannot be read.
    pub fn hosts(self) -> Result<Option<Vec<Host>>, String> {
        match self {
            System::Flux => flux::hosts().map(Some),
            System::Slurm => slurm::hosts(),
            System::Pbs => pbs::hosts(),
            System::Lsf => lsf::hosts(),
        }
    }

    /// Are the given hosts all hosts of the allocation?
    pub fn has_all(self, given: &[Host]) -> bool {
        let all = |own: Vec<Host>| given.iter().all(|host| own.iter().any(|own| own.name == host.name));
        self.hosts().ok().flatten().is_some_and(all)
    }

    /// The end of the allocation in seconds since 1970, if it has an end and the system reports it.
    pub fn end_time(self) -> Option<u64> {
        match self {
            System::Flux => flux::seconds_left().map(from_now),
            System::Slurm => slurm::end_time(),
            System::Pbs => pbs::end_time(),
            System::Lsf => lsf::seconds_left().map(from_now),
        }
    }

    /// The standing of the job. `heard` is the signal that its supervisor received, if any; `is_ending`: its time is about to end.
    pub fn standing(self, heard: Option<&str>, is_ending: bool) -> Standing {
        match self {
            System::Slurm => slurm::standing(),
            // These systems send SIGTERM when a job is cancelled; another signal, or our own clock, warns of the end.
            _ => Standing { is_preempted: false, is_cancelled: heard == Some("SIGTERM") && !is_ending },
        }
    }

    /// Can users have their jobs queued again?
    ///
    /// # Errors
    /// Says why not.
    pub fn can_requeue(self) -> Result<(), &'static str> {
        match self {
            System::Slurm | System::Lsf => Ok(()),
            System::Pbs => Err("PBS lets only its operators queue a job again"),
            System::Flux => Err("Flux does not queue a job again"),
        }
    }

    /// Asks that this job be queued again, and returns its id. The request also ends the job: both this process and the command that makes
    /// the request may be ended before the answer arrives.
    ///
    /// # Errors
    /// The system cannot do it, or refuses; the error says why.
    pub fn requeue(self) -> Result<String, String> {
        self.can_requeue()?;
        match self {
            System::Lsf => lsf::requeue(),
            _ => slurm::requeue(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
