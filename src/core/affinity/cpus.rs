//! Sets of CPUs, and the CPUs on which a thread may run.
#![forbid(unsafe_code)]

use crate::base::log;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// CPU numbers of the operating system.
pub type Cpus = BTreeSet<usize>;

/// The CPUs on which the calling thread may run; empty if the system does not say.
pub fn of_this_thread() -> Cpus {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => Cpus::new(),
    }
}

/// Lets the calling thread run on those of these CPUs that its control group allows. If that fails, the
/// thread stays where it is.
pub fn run_on(cpus: &Cpus) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    if let Err(error) = sched_setaffinity(None, &set) {
        log::debug!("event=not-moved cpus={} error={error}", cpus.len());
    }
}
