//! What Flux says about the instance in which this process runs: that of a batch script or of an interactive allocation.
#![forbid(unsafe_code)]

use super::questions::{answer, variable};
use crate::hosts::{Host, parse_nodes};

pub(super) fn is_here() -> bool {
    variable("FLUX_URI").is_some()
}

pub(super) fn hosts() -> Result<Vec<Host>, String> {
    let list = answer("flux", &["getattr", "hostlist"])?;
    parse_nodes(list.trim(), None).map_err(|why| format!("flux getattr hostlist: {why}"))
}

pub(super) fn seconds_left() -> Option<u64> {
    limit(&answer("flux", &["job", "timeleft"]).ok()?)
}

/// For a job without a limit, Flux reports the largest 32-bit number.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|seconds| *seconds < u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_have_no_limit() {
        assert_eq!(limit("3599\n"), Some(3599));
        for text in ["4294967295\n", "", "inf", "-1"] {
            assert_eq!(limit(text), None, "{text:?}");
        }
    }
}
