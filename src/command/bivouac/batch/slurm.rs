//! What SLURM says about the allocation in which this process runs.
#![forbid(unsafe_code)]

use super::questions::{answer, ask, from_now, seconds, variable};
use crate::hosts::{self, Host};

/// The standing of a job that is about to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// SLURM is taking its nodes away to give them to another job. In this case SLURM has told the ranks, but not this process.
    pub is_preempted: bool,
    /// Somebody has cancelled it.
    pub is_cancelled: bool,
}

pub(super) fn is_here() -> bool {
    variable("SLURM_JOB_ID").is_some()
}

pub(super) fn hosts() -> Result<Option<Vec<Host>>, String> {
    let Some(nodes) = variable("SLURM_JOB_NODELIST") else { return Ok(None) };
    let tasks = variable("SLURM_TASKS_PER_NODE");
    hosts::parse_nodes(&nodes, tasks.as_deref()).map(Some).map_err(|why| format!("SLURM_JOB_NODELIST: {why}"))
}

/// The given nodes in their order within SLURM's allocation, as a list for `SLURM_JOB_NODELIST`; `None` if they do not
/// belong to this allocation.
///
/// SLURM's PMIx plugin (seen in 22.05) uses the number of a node within its step as an index into that variable. Therefore a step that runs
/// on nodes other than the first ones of the allocation sometimes asks the wrong node for the address of a rank: this happens when the
/// rank's first message arrives before all ranks have left `MPI_Init`. If that node is dead, the asking process waits for five minutes and
/// then loses the message. If the variable lists only the nodes of the step, the two numbers are the same.
pub fn list_of_step(seats: &[Host]) -> Option<String> {
    let nodes = hosts::parse_nodes(&variable("SLURM_JOB_NODELIST")?, None).ok()?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let of_step: Vec<&str> = names.into_iter().filter(|name| seats.iter().any(|seat| seat.name == *name)).collect();
    (of_step.len() == seats.len()).then(|| of_step.join(","))
}

pub(super) fn end_time() -> Option<u64> {
    if let Some(time) = variable("SLURM_JOB_END_TIME").and_then(|time| time.parse().ok()) {
        return Some(time);
    }
    // squeue is asked for the time left, because it prints the end in a time zone that it does not name.
    let job = variable("SLURM_JOB_ID")?;
    answer("squeue", &["-h", "-j", &job, "-o", "%L"]).ok().and_then(|left| seconds(&left)).map(from_now)
}

/// The port of slurmd on the nodes, if SLURM reports it.
pub fn slurmd_port() -> Option<u16> {
    slurmd_port_in(&answer("scontrol", &["show", "config"]).ok()?)
}

fn slurmd_port_in(config: &str) -> Option<u16> {
    let pairs = config.lines().filter_map(|line| line.split_once('='));
    let value = pairs.filter(|(name, _)| name.trim() == "SlurmdPort").map(|(_, value)| value.trim()).next()?;
    value.parse().ok().filter(|port| *port > 0)
}

/// Both are false if SLURM does not answer.
pub(super) fn standing() -> Standing {
    let job = variable("SLURM_JOB_ID").unwrap_or_default();
    answer("scontrol", &["--oneliner", "show", "job", &job])
        .map_or_else(|_| Standing::default(), |shown| standing_in(&shown))
}

fn standing_in(shown: &str) -> Standing {
    let field = |name: &str| shown.split_whitespace().find_map(|word| word.strip_prefix(name));
    let is_preempted = field("PreemptTime=").is_some_and(|time| time != "None");
    // As long as its processes live, a cancelled job is COMPLETING without a reason. A job that ends because its time is over or because a
    // node failed has that as its reason.
    let is_cancelled = match field("JobState=") {
        Some("CANCELLED") => true,
        Some("COMPLETING") => !is_preempted && field("Reason=") == Some("None"),
        _ => false,
    };
    Standing { is_preempted, is_cancelled }
}

pub(super) fn requeue() -> Result<String, String> {
    let job = variable("SLURM_JOB_ID").ok_or("SLURM_JOB_ID is not set, so this is not a SLURM job")?;
    ask("scontrol", &["requeue", &job]).map(|()| job)
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
}
