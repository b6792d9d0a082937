//! The launcher's process: waiting for it and ending it, whether this supervisor started it or found it.
#![forbid(unsafe_code)]

use super::decide::Outcome;
use super::launch::Family;
use super::record::Process;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

/// How long srun may take to end its step before srun itself is killed.
const STEP_PATIENCE: Duration = Duration::from_secs(1);
/// How often the process is checked.
const PAUSE: Duration = Duration::from_millis(10);

/// The process of an attempt. It leads a process group of its own.
pub enum Job {
    /// Our child.
    Own(Child),
    /// A process that a supervisor which is gone started.
    Found(Process),
}

impl Job {
    /// The process id of the launcher, which is also that of its group.
    pub fn pid(&self) -> u32 {
        match self {
            Job::Own(child) => child.id(),
            Job::Found(process) => process.pid,
        }
    }

    /// How the process ended; `None` while it is alive.
    ///
    /// # Errors
    /// The system reports an error.
    pub fn poll(&mut self) -> std::io::Result<Option<Outcome>> {
        match self {
            Job::Found(process) => Ok((!process.is_alive()).then_some(Outcome::Unknown)),
            Job::Own(child) => Ok(child.try_wait()?.map(|status| match (status.code(), status.signal()) {
                (Some(code), _) => Outcome::Exited(code),
                (None, Some(signal)) => Outcome::Signalled(signal),
                (None, None) => Outcome::Unknown,
            })),
        }
    }

    /// Sends a signal to the process group, which may have ended just now.
    pub fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.pid() as i32), signal);
    }

    /// Kills the process group and everything that the launcher has started on this machine: launchers give each rank its own group.
    ///
    /// The ranks of srun are not its descendants, and they continue when srun is killed. On TERM, srun makes SLURM kill them at once.
    /// Therefore srun is given the time for that, even if it was stopped itself or has only just been told to end.
    ///
    /// # Blocking
    /// For at most a second, if the launcher is srun.
    pub fn kill(&self, family: Family) {
        if family == Family::Srun {
            self.signal(Signal::SIGTERM);
            self.signal(Signal::SIGCONT);
            let until = Instant::now() + STEP_PATIENCE;
            while Process::of(self.pid()).is_some() && Instant::now() < until {
                std::thread::sleep(PAUSE);
            }
        }
        let descendants = descendants(self.pid());
        self.signal(Signal::SIGKILL);
        for process in descendants.into_iter().filter(Process::is_alive) {
            let _ = kill(Pid::from_raw(process.pid as i32), Signal::SIGKILL);
        }
    }
}

/// The living descendants of a process.
fn descendants(of: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: BTreeMap<u32, u32> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&looked_at) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| **parent == looked_at).map(|(pid, _)| *pid));
        next += 1;
    }
    found[1..].iter().filter_map(|pid| Process::of(*pid)).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()
}
