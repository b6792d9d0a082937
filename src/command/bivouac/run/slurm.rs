//! What SLURM says of the allocation that this process runs in.
#![forbid(unsafe_code)]

use super::hosts::{self, Host};
use bivouac_core::base::calendar::unix_now;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Does this process run in an allocation?
pub fn is_here() -> bool {
    variable("SLURM_JOB_ID").is_some() && variable("SLURM_JOB_NODELIST").is_some()
}

/// The hosts of the allocation; `None` outside of one.
///
/// # Errors
/// SLURM's variables cannot be read.
pub fn hosts() -> Result<Option<Vec<Host>>, String> {
    if !is_here() {
        return Ok(None);
    }
    let nodes = variable("SLURM_JOB_NODELIST").unwrap_or_default();
    let tasks = variable("SLURM_TASKS_PER_NODE");
    hosts::parse_slurm(&nodes, tasks.as_deref()).map(Some).map_err(|why| format!("SLURM_JOB_NODELIST: {why}"))
}

/// These nodes in the order in which SLURM has them in the allocation, as a list for `SLURM_JOB_NODELIST`; `None` if they are
/// not of this allocation.
///
/// SLURM's PMIx plugin (seen in 22.05) takes the number that a node has in its step for a number in that variable. A step on
/// other nodes than the first ones of the allocation so asks the wrong node for the address of a rank, now and then: when
/// that rank's first message comes before all ranks have left `MPI_Init`. If that node is dead, the one who asks waits for
/// five minutes, and has lost the message then. With the nodes of the step alone the two numbers are one.
pub fn list_of_step(seats: &[Host]) -> Option<String> {
    let nodes = hosts::parse_slurm(&variable("SLURM_JOB_NODELIST")?, None).ok()?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let of_step: Vec<&str> = names.into_iter().filter(|name| seats.iter().any(|seat| seat.name == *name)).collect();
    (of_step.len() == seats.len()).then(|| of_step.join(","))
}

/// Are these all nodes of the allocation?
pub fn has_all(given: &[Host]) -> bool {
    let nodes = variable("SLURM_JOB_NODELIST").and_then(|nodes| hosts::parse_slurm(&nodes, None).ok());
    nodes.is_some_and(|nodes| given.iter().all(|host| nodes.iter().any(|node| node.name == host.name)))
}

/// The end of the allocation, seconds since 1970, if SLURM tells.
pub fn end_time() -> Option<u64> {
    if let Some(time) = variable("SLURM_JOB_END_TIME").and_then(|time| time.parse().ok()) {
        return Some(time);
    }
    // The time left, since squeue prints the end in a time zone that it does not name.
    let job = variable("SLURM_JOB_ID")?;
    let output = bounded("squeue").args(["-h", "-j", &job, "-o", "%L"]).output().ok()?;
    let left = seconds_left(String::from_utf8_lossy(&output.stdout).trim())?;
    Some(unix_now() as u64 + left)
}

/// `1-02:03:04`, `03:04` and the like in seconds; `None` for `UNLIMITED` and the rest.
fn seconds_left(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let seconds = parts.iter().try_fold(0u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    days.checked_mul(86_400)?.checked_add(seconds)
}

/// The port of slurmd on the nodes, if SLURM tells.
pub fn slurmd_port() -> Option<u16> {
    let output = bounded("scontrol").args(["show", "config"]).output().ok()?;
    slurmd_port_in(&String::from_utf8_lossy(&output.stdout))
}

fn slurmd_port_in(config: &str) -> Option<u16> {
    let pairs = config.lines().filter_map(|line| line.split_once('='));
    let value = pairs.filter(|(name, _)| name.trim() == "SlurmdPort").map(|(_, value)| value.trim()).next()?;
    value.parse().ok().filter(|port| *port > 0)
}

/// How a job stands that is about to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// SLURM is taking its nodes away, to give them to another job. Then it has told the ranks, not this process.
    pub is_preempted: bool,
    /// Somebody has cancelled it.
    pub is_cancelled: bool,
}

/// How this job stands; neither if SLURM does not answer.
pub fn standing() -> Standing {
    let Some(job) = variable("SLURM_JOB_ID") else { return Standing::default() };
    let output = bounded("scontrol").args(["--oneliner", "show", "job", &job]).output();
    output.map_or_else(|_| Standing::default(), |output| standing_in(&String::from_utf8_lossy(&output.stdout)))
}

fn standing_in(shown: &str) -> Standing {
    let field = |name: &str| shown.split_whitespace().find_map(|word| word.strip_prefix(name));
    let is_preempted = field("PreemptTime=").is_some_and(|time| time != "None");
    // While processes of it live, a cancelled job is COMPLETING without a reason. One that ends because its time is over,
    // or because of a node, has that as its reason.
    let is_cancelled = match field("JobState=") {
        Some("CANCELLED") => true,
        Some("COMPLETING") => !is_preempted && field("Reason=") == Some("None"),
        _ => false,
    };
    Standing { is_preempted, is_cancelled }
}

/// Asks SLURM to queue this job again, which also ends it: both this process and the command that asks may be ended before
/// the answer is there. The job's id.
///
/// # Errors
/// There is no job, or what SLURM says.
pub fn requeue() -> Result<String, String> {
    let job = variable("SLURM_JOB_ID").ok_or("SLURM_JOB_ID is not set, so this is no SLURM job")?;
    let output = bounded("scontrol").args(["requeue", &job]).output().map_err(|error| format!("scontrol: {error}"))?;
    if output.status.success() || output.status.signal().is_some() {
        return Ok(job);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("scontrol requeue {job}: {} {}", output.status, said.trim()))
}

/// A command of SLURM's, which may hang when its controller does.
fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["15", program]).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preempted_job_has_a_time_of_preemption() {
        let show = |time: &str| {
            format!("JobId=5 JobState=RUNNING PreemptEligibleTime=2026-11-21T13:03:11 PreemptTime={time} Restarts=0\n")
        };
        let standing = |time| standing_in(&show(time));
        assert_eq!(standing("2026-11-21T13:03:14"), Standing { is_preempted: true, is_cancelled: false });
        assert_eq!(standing("None"), Standing::default());
        assert_eq!(standing_in("slurm_load_jobs error: Invalid job id specified"), Standing::default());
    }

    #[test]
    fn a_cancelled_job_ends_without_a_reason() {
        let is_cancelled = |state: &str, reason: &str, preempted: &str| {
            let shown =
                format!("JobId=5 Priority=1 JobState={state} Reason={reason} Restarts=0 PreemptTime={preempted}");
            standing_in(&shown).is_cancelled
        };
        assert!(is_cancelled("COMPLETING", "None", "None"));
        assert!(is_cancelled("CANCELLED", "None", "None"));
        assert!(!is_cancelled("RUNNING", "None", "None"));
        assert!(!is_cancelled("COMPLETING", "TimeLimit", "None"));
        assert!(!is_cancelled("COMPLETING", "NodeDown", "None"));
        assert!(!is_cancelled("COMPLETING", "None", "2026-11-21T13:03:14"));
    }

    #[test]
    fn the_port_of_slurmd_is_read() {
        let config =
            "Configuration data as of 2026-11-21\nSlurmctldPort           = 6817\nSlurmdPort              = 7000\n";
        assert_eq!(slurmd_port_in(config), Some(7000));
        for config in ["", "SlurmdPort = \n", "SlurmdPort = 0\n", "SlurmctldPort = 1\n", "slurm_load_ctl_conf error\n"]
        {
            assert_eq!(slurmd_port_in(config), None, "{config}");
        }
    }

    #[test]
    fn the_time_left_is_read() {
        assert_eq!(seconds_left("1-02:03:04"), Some(86_400 + 7384));
        assert_eq!(seconds_left("03:04"), Some(184));
        assert_eq!(seconds_left("0:00"), Some(0));
        for text in ["", "UNLIMITED", "INVALID", "NOT_SET", "1:2:3:4", "5", "9999999999999999999-00:00", "x-00:00"] {
            assert_eq!(seconds_left(text), None, "{text}");
        }
    }
}
