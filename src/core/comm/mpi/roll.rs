//! A roll call before the first MPI call in which all ranks must wait for each other.
//!
//! `MPI_Comm_split` returns when all ranks have called it. It never returns if a rank does not call it, for example because its
//! configuration has a mistake and its program ends. So the ranks first gather one byte each at rank 0, without waiting inside MPI, and
//! rank 0 broadcasts whether all ranks have called. While bytes are missing, rank 0 logs whose they are. After the limit it gives up
//! and tells all ranks that it can reach.
//!
//! Both calls go over the application's own communicator, as a collective call of ours may. A point-to-point message could
//! be taken by a receive of the application from any source with any tag. If the roll call is given up, its requests stay
//! open, and the application should make no further collective call on that communicator.

use super::calls::{self, Reporter};
use crate::base::Rank;
use crate::base::log;
use crate::comm::CommError;
use crate::config::Timeouts;
use ::mpi::ffi::{MPI_Comm, MPI_Request};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The pause between two polls.
const PAUSE: Duration = Duration::from_micros(200);
/// Ranks arrive from their program's start, so they are given at least the time that the start may take, whatever the
/// configuration says.
const LIMIT_MIN: Duration = Duration::from_secs(10);
/// How long rank 0 keeps trying to deliver its final message.
const LAST_WORD: Duration = Duration::from_millis(500);
/// The maximum number of missing ranks that are named.
const NAMED_MAX: usize = 8;

/// What rank 0 broadcasts: the number of missing ranks, and the first of them.
type Word = [u32; 1 + NAMED_MAX];

/// The memory that MPI may access until both requests are complete. It is leaked if they are never complete.
struct Lent {
    mine: u8,
    /// One byte per rank, on rank 0; a rank's byte is set when the rank has called.
    present: Box<[AtomicU8]>,
    /// The number of bytes that each rank sends, and where they are stored (on rank 0).
    counts: Box<[c_int]>,
    places: Box<[c_int]>,
    word: Word,
}

/// Waits until all ranks of `comm` have called this.
///
/// # Safety
/// MPI may be called from this thread; `comm` is a live intracommunicator of `size` ranks, and this is `rank` of it.
///
/// # Collective
/// All ranks of `comm`.
///
/// # Blocking
/// At most for `timeouts.abandon`, or [`LIMIT_MIN`] if that is longer, and a grace for the word of rank 0.
///
/// # Errors
/// [`CommError::Absent`]; [`CommError::Mpi`].
pub(super) unsafe fn call(comm: MPI_Comm, rank: Rank, size: u32, timeouts: &Timeouts) -> Result<(), CommError> {
    let is_root = rank == Rank::ROOT;
    let seats = if is_root { size } else { 0 };
    let lent = Box::into_raw(Box::new(Lent {
        mine: 1,
        present: (0..seats).map(|_| AtomicU8::new(0)).collect(),
        counts: vec![1; seats as usize].into(),
        places: (0..seats as c_int).collect(),
        word: [0; 1 + NAMED_MAX],
    }));
    let abandon = timeouts.abandon.max(LIMIT_MIN);
    let limit = if is_root { abandon } else { abandon + abandon / 10 + LAST_WORD };
    let mut open = Open { comm, rank, gather: None, word: None, lent, started: Instant::now(), limit };
    // SAFETY: as the caller says; `open.lent` is a live box that nobody frees before its requests are complete.
    let heard = unsafe {
        open.begin()?;
        if is_root { open.preside(timeouts) } else { open.listen() }
    };
    heard.inspect(|()| {
        // SAFETY: both requests are complete, so MPI has let go of the box, which is converted back once.
        drop(unsafe { Box::from_raw(lent) });
    })
}

struct Open {
    comm: MPI_Comm,
    rank: Rank,
    /// `None`: the gather is complete.
    gather: Option<MPI_Request>,
    word: Option<MPI_Request>,
    lent: *mut Lent,
    started: Instant,
    limit: Duration,
}

impl Open {
    fn reporter(&self) -> Reporter {
        Reporter(self.rank)
    }

    /// # Safety
    /// As [`call`].
    unsafe fn begin(&mut self) -> Result<(), CommError> {
        // SAFETY: as the caller says. The buffers are in the box. Until the requests are complete, only MPI accesses them, except for
        // `present`, whose bytes are atomic.
        unsafe {
            let Lent { mine, present, counts, places, .. } = &*self.lent;
            let into = present.as_ptr().cast_mut().cast::<u8>();
            let form = (counts.as_ptr(), places.as_ptr());
            self.gather = Some(calls::igather_byte(self.reporter(), self.comm, mine, into, form)?);
            if self.rank != Rank::ROOT {
                self.word = Some(self.broadcast()?);
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`call`].
    unsafe fn broadcast(&self) -> Result<MPI_Request, CommError> {
        // SAFETY: as the caller says; the word is in the box, as in `begin`.
        unsafe {
            let word = (&raw mut (*self.lent).word).cast::<u8>();
            calls::ibcast_bytes(self.reporter(), self.comm, word, size_of::<Word>())
        }
    }

    /// Tests both requests; returns true when they are complete.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn is_complete(&mut self) -> Result<bool, CommError> {
        let reporter = self.reporter();
        for (name, slot) in [("MPI_Igatherv", &mut self.gather), ("MPI_Ibcast", &mut self.word)] {
            if let Some(request) = slot {
                // SAFETY: as the caller says; the request is live, because it has not been complete before.
                if unsafe { calls::test(reporter, name, request)? } {
                    *slot = None;
                }
            }
        }
        Ok(self.gather.is_none() && self.word.is_none())
    }

    /// Rank 0: waits for all bytes, and then broadcasts the word.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn preside(&mut self, timeouts: &Timeouts) -> Result<(), CommError> {
        let mut warned = Duration::ZERO;
        // SAFETY: as the caller says.
        while !unsafe { self.is_complete()? } {
            let waited = self.started.elapsed();
            if waited >= self.limit {
                // SAFETY: as the caller says.
                return Err(unsafe { self.give_up(waited) });
            }
            if waited >= warned + timeouts.warn {
                warned = waited;
                let (count, missing) = self.missing();
                log::warn!(
                    "event=waiting call=open waited_s={:.0} missing={count} ranks={missing:?}",
                    waited.as_secs_f64()
                );
            }
            std::thread::sleep(PAUSE);
        }
        // SAFETY: as the caller says.
        unsafe {
            self.word = Some(self.broadcast()?);
            // All other ranks have called; only the transfer takes time.
            while !self.is_complete()? {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Tells the ranks that have called which ranks are missing.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn give_up(&mut self, waited: Duration) -> CommError {
        let (count, missing) = self.missing();
        let mut word: Word = [0; 1 + NAMED_MAX];
        word[0] = count;
        word[1..].iter_mut().zip(&missing).for_each(|(slot, rank)| *slot = rank.0);
        // SAFETY: as the caller says; no broadcast has been begun, so MPI does not access the word.
        let sent = unsafe {
            (*self.lent).word = word;
            self.broadcast()
        };
        self.word = sent.ok();
        let begun = Instant::now();
        // SAFETY: as the caller says.
        while begun.elapsed() < LAST_WORD && self.word.is_some() && unsafe { self.is_complete() }.is_ok() {
            std::thread::sleep(PAUSE);
        }
        CommError::Absent { rank: self.rank, count, missing, waited }
    }

    fn missing(&self) -> (u32, Vec<Rank>) {
        // SAFETY: the box is live; MPI may write the bytes meanwhile, and they are read as atomics.
        let present = unsafe { &(*self.lent).present };
        let absent = present.iter().zip(0u32..).filter(|(byte, _)| byte.load(Ordering::Acquire) == 0);
        let all: Vec<Rank> = absent.map(|(_, rank)| Rank(rank)).collect();
        (all.len() as u32, all.into_iter().take(NAMED_MAX).collect())
    }

    /// Waits for the word of rank 0.
    ///
    /// # Safety
    /// As [`call`].
    unsafe fn listen(&mut self) -> Result<(), CommError> {
        while self.word.is_some() && self.started.elapsed() < self.limit {
            // SAFETY: as the caller says.
            if unsafe { self.is_complete()? } {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let waited = self.started.elapsed();
        if self.word.is_some() {
            return Err(CommError::Absent { rank: self.rank, count: 0, missing: Vec::new(), waited });
        }
        // SAFETY: the broadcast is complete, so the word is not written any more.
        let [count, named @ ..] = unsafe { (*self.lent).word };
        if count > 0 {
            let missing = named.iter().take(count as usize).map(|rank| Rank(*rank)).collect();
            return Err(CommError::Absent { rank: self.rank, count, missing, waited });
        }
        // SAFETY: as the caller says.
        while !unsafe { self.is_complete()? } {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
