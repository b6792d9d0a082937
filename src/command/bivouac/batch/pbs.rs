//! What PBS says about the job in which this process runs: PBS Professional, OpenPBS or TORQUE.
#![forbid(unsafe_code)]

use super::questions::{answer, from_now, seconds, variable};
use crate::hosts::{Host, read_file};
use std::path::Path;

pub(super) fn is_here() -> bool {
    variable("PBS_JOBID").is_some()
}

pub(super) fn hosts() -> Result<Option<Vec<Host>>, String> {
    let Some(path) = variable("PBS_NODEFILE") else { return Ok(None) };
    let hosts = read_file(Path::new(&path)).map_err(|why| format!("PBS_NODEFILE: {why}"))?;
    Ok(Some(with_slots(hosts)))
}

/// The file has one line for each process that a host is to run. If each host has only one line, the user did not ask for a number of
/// processes, and the number is left open.
fn with_slots(mut hosts: Vec<Host>) -> Vec<Host> {
    if hosts.iter().any(|host| host.slots.is_some()) {
        for host in &mut hosts {
            host.slots.get_or_insert(1);
        }
    }
    hosts
}

pub(super) fn end_time() -> Option<u64> {
    let shown = answer("qstat", &["-f", &variable("PBS_JOBID")?]).ok()?;
    // TORQUE reports the remaining time directly.
    if let Some(left) = field(&shown, "Walltime.Remaining").and_then(seconds) {
        return Some(from_now(left));
    }
    let walltime = field(&shown, "Resource_List.walltime").and_then(seconds)?;
    // qstat prints the start in the time zone of this process, in which `date` reads it. (`resources_used.walltime` is minutes old.)
    let began = field(&shown, "stime")?;
    let began = answer("date", &["-d", began, "+%s"]).ok()?.trim().parse::<u64>().ok()?;
    began.checked_add(walltime)
}

/// Finds the value of a line `name = value` in the output of `qstat -f`.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = shown.lines().filter_map(|line| line.split_once(" = "));
    pairs.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{names, parse_file};

    #[test]
    fn a_line_is_a_process_if_any_host_has_several() {
        let slots = |text| parse_file(text).map(|hosts| names(&with_slots(hosts)));
        assert_eq!(slots("a\na\nb\n").unwrap(), "a:2, b:1");
        assert_eq!(slots("a\nb.example.org\n").unwrap(), "a, b.example.org");
        assert!(slots("").is_err());
        assert!(slots("-oProxyCommand=x\n").is_err());
    }

    #[test]
    fn fields_of_a_job_are_found() {
        let shown = "Job Id: 7.server\n    Job_Name = heat\n    Resource_List.walltime = 12:00:00\n    stime = Mon Nov 23 10:00:00 2026\n";
        assert_eq!(field(shown, "Resource_List.walltime").and_then(seconds), Some(43_200));
        assert_eq!(field(shown, "stime"), Some("Mon Nov 23 10:00:00 2026"));
        assert_eq!(field(shown, "time"), None);
    }
}
