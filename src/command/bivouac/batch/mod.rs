//! Batch systems: which one this process has an allocation of, what it says about the allocation, and how it is asked to queue the
//! job again.
//!
//! [`slurm`] was tried with SLURM itself, [`flux`], [`pbs`] and [`lsf`] with scripts that answer as their documentation says.
#![forbid(unsafe_code)]

mod flux;
mod lsf;
mod pbs;
mod questions;
pub mod slurm;

use crate::hosts::Host;
use questions::from_now;
use slurm::Standing;

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

    /// The end of the allocation, seconds since 1970, if it has one and the system reports it.
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
