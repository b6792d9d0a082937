//! What LSF says about the job in which this process runs.
#![forbid(unsafe_code)]

use super::questions::{answer, ask, variable};
use crate::hosts::{Host, parse_pairs, read_file};
use std::path::Path;

pub(super) fn is_here() -> bool {
    variable("LSB_JOBID").is_some()
}

pub(super) fn hosts() -> Result<Option<Vec<Host>>, String> {
    if let Some(pairs) = variable("LSB_MCPU_HOSTS") {
        return parse_pairs(&pairs).map(Some).map_err(|why| format!("LSB_MCPU_HOSTS: {why}"));
    }
    // The file has one line for each slot.
    let Some(path) = variable("LSB_DJOB_HOSTFILE") else { return Ok(None) };
    let mut hosts = read_file(Path::new(&path)).map_err(|why| format!("LSB_DJOB_HOSTFILE: {why}"))?;
    for host in &mut hosts {
        host.slots.get_or_insert(1);
    }
    Ok(Some(hosts))
}

/// The job as LSF's commands name it: an element of an array with its index.
fn job() -> Option<String> {
    let job = variable("LSB_JOBID")?;
    Some(match variable("LSB_JOBINDEX").filter(|index| index != "0") {
        Some(index) => format!("{job}[{index}]"),
        None => job,
    })
}

pub(super) fn seconds_left() -> Option<u64> {
    left(&answer("bjobs", &["-noheader", "-o", "time_left", &job()?]).ok()?)
}

/// `1:30 L` is hours and minutes, `01:30:00 L` has seconds as well, `-` is no limit.
fn left(text: &str) -> Option<u64> {
    let clock = text.split_whitespace().next()?;
    let parts: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts.as_slice() {
        [hours, minutes] => (*hours, *minutes, 0),
        [hours, minutes, seconds] => (*hours, *minutes, *seconds),
        _ => return None,
    };
    hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)
}

pub(super) fn requeue() -> Result<String, String> {
    let job = job().ok_or("LSB_JOBID is not set, so this is not an LSF job")?;
    ask("brequeue", &[&job]).map(|()| job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_in_hours_and_minutes() {
        assert_eq!(left("1:30 L\n"), Some(5400));
        assert_eq!(left("00:01:05 X\n"), Some(65));
        for text in ["", "-", "- L", "5", "1:2:3:4", "99999999999999999999:0"] {
            assert_eq!(left(text), None, "{text:?}");
        }
    }
}
