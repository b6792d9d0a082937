//! Making pages real before anybody touches them.
//!
//! A page of a shared file comes into being when it is first touched, and if there is no room at that moment, the
//! process that touches it dies. So every range is first *reserved* (`fallocate`, whose refusal is an error value) and
//! then *populated* (`MADV_POPULATE_WRITE`, which fills the page table without changing a byte), batch by batch, with a
//! look at the node's memory before each batch.
//!
//! Huge pages need no privilege: one page in each 2 MiB is made, then `MADV_COLLAPSE` turns the rest into huge pages at
//! once, even where `shmem_enabled` says `never`. Reserving and populating follow nevertheless: after a successful
//! collapse they cost almost nothing, and after a failed one they do the work with 4 KiB pages. During a collapse, the
//! kernel may wait for a worker on every processor; on a machine with twenty times as many busy threads as processors,
//! that once took minutes. So only [`super::Segment::prepare`], which background threads call, asks for huge pages; a
//! capture that finds no warm memory takes small ones.
//!
//! The speed was measured on a two-core virtual machine (Linux 6.18, `shmem_enabled` never, 1 GiB of tmpfs per run, twelve runs each,
//! memory that the host had backed before). It was 8.6 to 9.1 GB/s with collapse (two slow runs: 1.8 and 2.1), and 2.9 to 3.5 GB/s
//! without (one slow run: 1.9). Memory that the host gives the virtual machine for the first time is populated at 0.4 to 2 GB/s either
//! way. On 16 cores, four threads at once reached 18 GB/s, one thread 6. Collapsing after a whole `fallocate` reached only 3.1 GB/s,
//! because 4 KiB pages are then made, copied and thrown away; hence the order here. The look at free memory takes 20 to 45 microseconds;
//! a batch of 32 MiB takes 3.7 ms.
#![forbid(unsafe_code)]

use super::Refusal;
use super::layout::EXTENT_MIN;
use super::map::Loan;
use super::room::{Gauge, THREADS_MAX};
use crate::base::log;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What population needs to know about the node and the kernel.
pub(super) struct Populator {
    pub(super) gauge: Gauge,
    batch: u64,
    /// Whether to ask for huge pages. Turned off by the owner, or when the kernel does not support that.
    huge: AtomicBool,
    /// Cleared when the kernel turns out not to support MADV_POPULATE_WRITE.
    populate: AtomicBool,
    /// Bytes that were populated afresh.
    fresh_bytes: AtomicU64,
}

impl Populator {
    pub(super) fn new(gauge: Gauge) -> Populator {
        // Each thread looks at the free memory on its own.
        let share = gauge.batch() / THREADS_MAX as u64;
        // The batch consists of whole huge pages.
        let batch = (share / EXTENT_MIN * EXTENT_MIN).max(EXTENT_MIN);
        Populator {
            gauge,
            batch,
            huge: AtomicBool::new(true),
            populate: AtomicBool::new(true),
            fresh_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn set_huge_pages(&self, on: bool) {
        self.huge.store(on, Ordering::Relaxed);
    }

    /// Bytes to populate in one go; see [`Gauge::batch`].
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// How many threads may populate in the background on behalf of the calling thread.
    pub(super) fn threads(&self) -> usize {
        self.gauge.threads()
    }

    /// Bytes that were populated afresh since the start.
    pub(super) fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes.load(Ordering::Relaxed)
    }

    /// Reserves and populates a whole loan of fresh extents, with huge pages if `in_background` is set and the kernel can make them.
    pub(super) fn fresh(&self, loan: &mut Loan, in_background: bool) -> Result<(), Refusal> {
        let mut at = 0;
        while at < loan.len() {
            let length = self.batch.min(loan.len() - at);
            self.look(length)?;
            if in_background && self.huge.load(Ordering::Relaxed) {
                self.huge_pages(loan, at, length);
            }
            loan.reserve(at, length).map_err(|errno| Refusal::Os { call: "fallocate", errno: errno.raw_os_error() })?;
            self.enter(loan, at, length)?;
            self.fresh_bytes.fetch_add(length, Ordering::Relaxed);
            at += length;
        }
        Ok(())
    }

    /// Enters a loan, whose pages have already been reserved, into this process's page table.
    pub(super) fn enter_all(&self, loan: &mut Loan) -> Result<(), Refusal> {
        let length = loan.len();
        self.enter(loan, 0, length)
    }

    fn look(&self, bytes: u64) -> Result<(), Refusal> {
        match self.gauge.read() {
            Ok(available) if available.least < bytes => Err(Refusal::Node { bytes, available }),
            Ok(_) => Ok(()),
            Err(error) => {
                log::warn!("cannot determine the free memory error=\"{error}\"");
                Ok(()) // The file system's own refusal remains.
            }
        }
    }

    /// Best effort: if it fails, the caller uses small pages, or is refused.
    fn huge_pages(&self, loan: &mut Loan, at: u64, length: u64) {
        for step in (at..at + length).step_by(EXTENT_MIN as usize) {
            if loan.reserve(step, 4096).and_then(|()| loan.populate(step, 4096)).is_err() {
                return;
            }
        }
        if let Err(errno) = loan.collapse(at, length) {
            if errno == Errno::INVAL {
                self.huge.store(false, Ordering::Relaxed);
            }
            log::debug!("no huge pages errno={errno} bytes={length}");
        }
    }

    fn enter(&self, loan: &mut Loan, at: u64, length: u64) -> Result<(), Refusal> {
        if self.populate.load(Ordering::Relaxed) {
            match loan.populate(at, length) {
                Ok(()) => return Ok(()),
                Err(Errno::INVAL) => self.populate.store(false, Ordering::Relaxed),
                Err(errno) => return Err(Refusal::Os { call: "madvise", errno: errno.raw_os_error() }),
            }
        }
        loan.touch(at, length);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::map::Map;
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;

    /// The result of a look at free memory can be outdated by the time the pages are asked for. Here the look goes to another file system.
    #[test]
    fn a_tmpfs_that_fills_up_after_the_look_refuses_instead_of_killing() {
        let place = tempfile::tempdir().expect("directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "bivouac-test"]).arg(place.path());
        if !mount.output().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: mounting a small tmpfs needs root");
            return;
        }
        let file = tempfile::tempfile_in(place.path()).expect("file");
        file.set_len(2 * EXTENT_MIN).expect("set_len");
        let map = Arc::new(Map::new(file, 4096, 2 * EXTENT_MIN).expect("map"));
        for huge in [true, false] {
            let populator = Populator::new(Gauge::new(Path::new("/dev/shm"), 1));
            populator.set_huge_pages(huge);
            let mut loan = map.lend(EXTENT_MIN, EXTENT_MIN).expect("free");
            let refusal = populator.fresh(&mut loan, true).expect_err("1 MiB is not 2 MiB");
            assert_eq!(refusal, Refusal::Os { call: "fallocate", errno: libc::ENOSPC });
            assert_eq!(populator.fresh_bytes(), 0);
        }
        drop(map);
        assert!(Command::new("umount").arg("-l").arg(place.path()).status().is_ok_and(|status| status.success()));
    }
}
