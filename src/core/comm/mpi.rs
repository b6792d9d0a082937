//! The message layer of real jobs: point-to-point messages on our own communicator.
//!
//! [`MpiComm::duplicate`] makes this communicator from the application's, in one collective call. After that nothing
//! here is collective until [`MpiComm::quiesce`], and nothing here waits: a send is an `MPI_Isend` of a buffer that we
//! own, a receive is an `MPI_Improbe` and an `MPI_Imrecv`. (For short messages `MPI_Mrecv` would suffice, but both
//! sides move a long message together, so a blocking receive would wait until the sender next enters MPI. An
//! application that computes for a minute between two calls would stop all its peers.)
//!
//! The parts of this module are layers. `calls` turns each MPI function that we use into a Rust function, checks
//! its return code and knows nothing about messages; `parcels` moves bulk data, with buffers from a `pool`; this file owns
//! the communicator, and the requests and buffers of messages; [`finalize`] announces `MPI_Finalize` in time. The safe calls of
//! the `mpi` crate are not used, because they drop the return codes that report a failure.
//!
//! **Buffers.** Memory that MPI may still read or write is `Lent` (or one of its like in `parcels`): it cannot be touched, and
//! dropping it leaks it. The memory is given back only after MPI has said that the request is complete. So neither an error, nor a
//! dropped `MpiComm`, nor giving up can free memory that MPI still uses.
//!
//! **Threads.** The thread level that the application asked MPI for decides which threads may call. Each call checks
//! this, and refuses with [`Unusable::WrongThread`] on a wrong thread; see the proof at `impl Send`.
//!
//! **Closing** must not wait for a dead peer, so [`Comm::cancel`] is local. This has a price. When a communicator
//! is freed, the library may give its internal number to the next one that the application makes, and a message
//! still under way to the old one would then arrive in the new one. So `cancel` frees the communicator only if
//! [`MpiComm::quiesce`] has shown beforehand that no message is under way; otherwise the communicator is left to
//! `MPI_Finalize`. (This costs a few hundred bytes and one of the library's context numbers: MPICH has about 2000.)

mod calls;
pub mod finalize;
mod parcels;
mod roll;

use super::{
    Comm, CommError, Label, MAX_MESSAGE_BYTES, Parcel, Slice, ThreadLevel, Unusable, check_send, number_nodes, parcel,
};
use crate::base::Rank;
use crate::base::log;
use crate::config::Timeouts;
use ::mpi::ffi::{MPI_Comm, MPI_Request};
use ::mpi::traits::Communicator;
use calls::{Reporter, Tag};
use parcels::{Channel, Parcels};
use std::collections::VecDeque;
use std::os::raw::c_int;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

pub use finalize::{FinalizeHook, on_finalize};

const TARGET: &str = "bivouac::comm::mpi";

/// The communicator that Fortran knows by this number (`MPI_Comm_f2c`).
///
/// # Errors
/// [`Unusable`] as for [`MpiComm::duplicate`]. An invalid number gives whatever the library makes of it, usually
/// `MPI_COMM_NULL`.
pub fn from_fortran(number: c_int) -> Result<MPI_Comm, CommError> {
    calls::usable_from_this_thread()?;
    calls::comm_from_fortran(number)
}

/// The reason why this thread may not call MPI although another thread may: the granted thread level allows only one thread to call.
/// Also `None` where MPI is not initialised or finalized, which has nothing to do with threads.
pub fn wrong_thread() -> Option<CommError> {
    let error = calls::usable_from_this_thread().err()?;
    matches!(error, CommError::Unusable(Unusable::WrongThread { .. })).then_some(error)
}

/// The number of unfinished sends that one call asks about. Each question costs well under a microsecond and advances
/// the library's own work, so a call takes only microseconds however long the queue is.
const SENDS_PER_CALL: usize = 16;

/// The number of incoming messages that may be in the middle of their transfer at the same time. This bounds the memory
/// that peers can make this rank allocate to this many times [`MAX_MESSAGE_BYTES`](super::MAX_MESSAGE_BYTES), and the
/// work of a call.
const INCOMING_AT_ONCE: usize = 8;

/// How long `cancel` helps unfinished messages along: longer than a long message takes inside a node, too short
/// to be noticed at the end of a job.
const CANCEL_PATIENCE: Duration = Duration::from_millis(100);

/// The pause between two polls while `cancel` and `quiesce` wait.
const PAUSE: Duration = Duration::from_micros(50);

/// Memory that MPI may access. Dropping it leaks it, on purpose.
struct Lent(*mut [u8]);

impl Lent {
    fn new(bytes: Vec<u8>) -> Self {
        Lent(Box::into_raw(bytes.into_boxed_slice()))
    }

    /// Takes the memory back.
    ///
    /// # Safety
    /// MPI must have completed the request that the memory was lent to.
    unsafe fn take_back(self) -> Vec<u8> {
        // SAFETY: the pointer comes from `Box::into_raw` in `new`, and `self` is consumed, so it is converted back
        // once. Nobody else accesses the memory: MPI has completed the request, by the caller's promise.
        unsafe { Box::from_raw(self.0) }.into_vec()
    }
}

/// A message that MPI has not released yet.
struct Outgoing {
    request: MPI_Request,
    bytes: Lent,
}

/// A message that is matched and may still be arriving.
struct Incoming {
    request: MPI_Request,
    from: Rank,
    bytes: Lent,
}

/// How far this end of the communicator has been closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// `quiesce` has been called: no more sends are allowed. `quiet`: no message or parcel is under way on any rank.
    Leaving {
        quiet: bool,
    },
    Closed,
}

/// A communicator of our own that spans the ranks of the application's communicator.
///
/// Dropping it makes no MPI call. It leaks what is still lent to MPI and leaves the communicator to `MPI_Finalize`.
/// Call [`Comm::cancel`] to give back what can be given back.
pub struct MpiComm {
    comm: MPI_Comm,
    rank: Rank,
    size: u32,
    nodes: Vec<u32>,
    world_ranks: Vec<Option<u32>>,
    is_world: bool,
    level: ThreadLevel,
    /// The thread that opened the communicator. Below `MPI_THREAD_SERIALIZED`, only this thread may call.
    home: ThreadId,
    life: Life,
    /// Sends that are not complete; the next one to ask about comes first.
    outgoing: VecDeque<Outgoing>,
    /// Receives in the order in which MPI matched them. At most `INCOMING_AT_ONCE`.
    incoming: VecDeque<Incoming>,
    /// Messages that the caller has given back.
    early: VecDeque<(Rank, Vec<u8>)>,
    parcels: Parcels,
    /// Messages and parcels sent to each rank, for `quiesce`.
    sent_to: Vec<u64>,
    /// Messages taken from MPI, for `quiesce`.
    received: u64,
}

// SAFETY: the fields that are not `Send` by themselves are MPI handles (depending on the library, an integer or a
// pointer to an object of the library) and lent memory: plain heap memory owned by this value, and slices, which are
// `Send` by themselves. MPI handles belong to the process, not to a thread: the MPI standard (chapter "External
// Interfaces", "MPI and Threads") lets any thread use any handle if the level is MPI_THREAD_MULTIPLE, and any thread,
// one at a time, if it is MPI_THREAD_SERIALIZED; `&mut self` and the application's own promise to MPI ensure the
// latter. At the lower levels every method that calls MPI first compares the calling thread with the one that opened
// the communicator (`usable`) and refuses on any other, so moving the value to another thread is harmless.
unsafe impl Send for MpiComm {}

impl MpiComm {
    /// Makes a communicator of our own that spans the ranks of `comm`.
    ///
    /// Its messages never mix with the application's. It inherits neither the attributes, nor the hints, nor the
    /// topology of `comm` (a hint that forbids receives from any source would stop us), and errors on it are returned.
    /// Errors inside this call itself are handled by the error handler of `comm`, which by default ends the job.
    ///
    /// # Collective
    /// Over `comm`, in the same order as the application's other collective calls on all ranks.
    ///
    /// # Blocking
    /// Until all ranks of `comm` have called, for at most `timeouts.abandon`. Every `timeouts.warn`, rank 0 logs which ranks
    /// are missing.
    ///
    /// # Errors
    /// [`CommError::Absent`] if ranks do not call in time. [`CommError::Unusable`] if MPI is not initialized or already finalized, if this
    /// thread may not call MPI, or if `comm` is an intercommunicator; these errors are found before anything is sent. [`CommError::Mpi`] if
    /// an MPI call fails; other ranks may have succeeded then, and the job should end.
    pub fn duplicate<C: Communicator + ?Sized>(comm: &C, timeouts: &Timeouts) -> Result<MpiComm, CommError> {
        // SAFETY: the `mpi` crate promises that `as_raw` of a communicator is a live handle or MPI_COMM_NULL.
        unsafe { Self::duplicate_raw(comm.as_raw(), timeouts) }
    }

    /// [`duplicate`](Self::duplicate) for a handle that comes from C, Fortran (after `MPI_Comm_f2c`) or another
    /// binding.
    ///
    /// # Safety
    /// `raw` must be a live communicator of this process or `MPI_COMM_NULL`.
    ///
    /// # Collective
    /// Over `raw`, as for `duplicate`.
    ///
    /// # Errors
    /// As for `duplicate`; also [`Unusable::NullCommunicator`].
    pub unsafe fn duplicate_raw(raw: MPI_Comm, timeouts: &Timeouts) -> Result<MpiComm, CommError> {
        let level = calls::usable_from_this_thread()?;
        // For a number that Fortran does not know, some libraries return a null pointer.
        if raw == calls::comm_null() || calls::is_zero_pointer(raw) {
            return Err(Unusable::NullCommunicator.into());
        }
        // SAFETY: MPI is initialized and not finalized, and this thread may call it (checked above). By the caller's
        // promise `raw` is live, and it is not null. The handles made below are live because the call that made them
        // succeeded.
        unsafe {
            // Until the rank in the communicator is known, errors name the rank in MPI_COMM_WORLD.
            let reporter = Reporter(calls::comm_rank(Reporter(Rank::ROOT), calls::comm_world())?);
            if calls::comm_is_inter(reporter, raw)? {
                return Err(Unusable::Intercommunicator.into());
            }
            let reporter = Reporter(calls::comm_rank(reporter, raw)?);
            let rank = reporter.0;
            roll::call(raw, rank, calls::comm_size(reporter, raw)?, timeouts)?;
            // This is a split in which all ranks stay together. MPI_Comm_dup would call the application's attribute
            // copy functions and inherit its hints.
            let comm = calls::comm_split_together(reporter, raw, rank)?;
            calls::comm_set_errors_return(reporter, comm)?;
            let size = calls::comm_size(reporter, comm)?;
            let nodes = number_nodes(&node_leaders(reporter, comm, size)?);
            let all: Vec<c_int> = (0..size as c_int).collect();
            let world_ranks = calls::translate_ranks(reporter, comm, &all, calls::comm_world())?;
            let world_size = calls::comm_size(reporter, calls::comm_world())?;
            let is_world = size == world_size && world_ranks.iter().copied().eq((0..size).map(Some));
            log::debug!(
                target: TARGET,
                "event=duplicated rank={rank} size={size} node={} nodes={} thread_level={level}",
                nodes[rank.index()],
                nodes.iter().max().map_or(0, |last| last + 1),
            );
            Ok(MpiComm {
                comm,
                rank,
                size,
                nodes,
                world_ranks,
                is_world,
                level,
                home: std::thread::current().id(),
                life: Life::Open,
                outgoing: VecDeque::new(),
                incoming: VecDeque::new(),
                early: VecDeque::new(),
                parcels: Parcels::new(),
                sent_to: vec![0; size as usize],
                received: 0,
            })
        }
    }

    /// What the MPI library allows the threads of this process to do.
    pub fn thread_level(&self) -> ThreadLevel {
        self.level
    }

    /// True if one of our own threads may call MPI while the application runs.
    pub fn is_multiple(&self) -> bool {
        self.level == ThreadLevel::Multiple
    }

    /// For each rank its rank in this process's `MPI_COMM_WORLD`; `None` for a process of another world, that is, one
    /// that was spawned or connected.
    pub fn world_ranks(&self) -> &[Option<u32>] {
        &self.world_ranks
    }

    /// A name for the group that is the same on all its ranks and, if the job starts again in the same way, the same in
    /// the next run: `world` if the members are those of `MPI_COMM_WORLD` in the same order, else `sub-` and the lowest
    /// rank in `MPI_COMM_WORLD` among the members. This distinguishes disjoint communicators, which several sessions in
    /// one job need. Overlapping communicators may get the same name, so the program must name them. If the members are
    /// of several worlds and thus have no common numbering, the name is `merged-` and the number of ranks.
    pub fn default_group_name(&self) -> String {
        group_name(&self.world_ranks, self.is_world)
    }

    /// Ends the conversation on all ranks: waits until every message and parcel that any rank has sent to this one has
    /// arrived, and drops those that have not been taken. From then on, sends are refused. Returns true if all ranks
    /// succeed in time; then a subsequent [`Comm::cancel`] also frees the communicator.
    ///
    /// # Collective
    /// Over the group. A rank that does not call makes the others return false.
    ///
    /// # Blocking
    /// For at most `limit`, and one step of the MPI library.
    ///
    /// # Errors
    /// What MPI reports; [`CommError::Closed`] after `cancel`. `cancel` may be called after an error as well.
    pub fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        self.usable()?;
        if self.life != Life::Open {
            return Ok(self.life == Life::Leaving { quiet: true });
        }
        self.life = Life::Leaving { quiet: false };
        let started = Instant::now();
        // The number of messages and parcels on their way to this rank is the sum, over all ranks, of those sent to it. Each
        // rank contributes one number per rank and gets one back. This costs O(size), once, at the very end.
        let counts: *mut [u64] = Box::into_raw(std::mem::take(&mut self.sent_to).into_boxed_slice());
        let expected: *mut u64 = Box::into_raw(Box::new(0));
        // SAFETY: `comm` is live (not closed, MPI not finalized: `usable`) and this thread may call. `counts` holds
        // `size` numbers and `expected` one; both are raw boxes that are freed only below, after completion.
        let mut request =
            unsafe { calls::ireduce_scatter_sum(self.reporter(), self.comm, counts.cast::<u64>(), expected)? };
        let mut told = None;
        loop {
            while self.receive()?.is_some() {}
            while let Some(parcel) = self.receive_parcel()? {
                self.recycle(parcel.bytes);
            }
            if told.is_none() {
                // SAFETY: `request` is live: it comes from the call above and was not complete before. Once it is
                // complete, MPI has let go of both boxes, each is converted back once (`told` is set), and `expected`
                // was written by MPI.
                told = unsafe {
                    calls::test(self.reporter(), "MPI_Ireduce_scatter_block", &mut request)?.then(|| {
                        drop(Box::from_raw(counts));
                        *Box::from_raw(expected)
                    })
                };
            }
            let quiet = told == Some(self.received + self.parcels.matched()) && self.is_idle();
            if quiet || started.elapsed() >= limit {
                self.life = Life::Leaving { quiet };
                log::debug!(target: TARGET, "event=quiesced rank={} quiet={quiet}", self.rank);
                return Ok(quiet);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Nothing is under way in either direction, as far as this rank can know.
    fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.outgoing.is_empty() && self.parcels.is_idle()
    }

    fn channel(&self) -> Channel {
        Channel { comm: self.comm, rank: self.rank }
    }

    fn reporter(&self) -> Reporter {
        Reporter(self.rank)
    }

    /// Says whether MPI may be called on our communicator, here and now. After `Ok`: `comm` is live, MPI is
    /// initialized and not finalized, and this thread may call it.
    fn usable(&self) -> Result<(), CommError> {
        if self.life == Life::Closed || calls::is_finalized(self.reporter())? {
            return Err(CommError::Closed { rank: self.rank });
        }
        if self.level < ThreadLevel::Serialized && std::thread::current().id() != self.home {
            return Err(Unusable::WrongThread { level: self.level }.into());
        }
        Ok(())
    }

    /// Asks about the oldest unfinished sends and releases those that have left. The caller has checked `usable`.
    fn progress_sends(&mut self) -> Result<(), CommError> {
        for _ in 0..self.outgoing.len().min(SENDS_PER_CALL) {
            let Some(mut send) = self.outgoing.pop_front() else { break };
            // SAFETY: the request is live: it comes from MPI_Isend and has not completed yet, or it would not be in
            // the queue. MPI may be called (`usable`). On an error it is not known whether MPI still reads the
            // buffer: `send` is dropped, which leaks it.
            if unsafe { calls::test(self.reporter(), "MPI_Isend", &mut send.request)? } {
                // SAFETY: the request is complete.
                drop(unsafe { send.bytes.take_back() });
            } else {
                self.outgoing.push_back(send);
            }
        }
        Ok(())
    }

    /// Takes the first message that has arrived completely, but never one that overtakes an earlier message of its
    /// sender. The caller has checked `usable`.
    fn take_arrived(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        let mut behind: Vec<Rank> = Vec::new();
        for position in 0..self.incoming.len() {
            let message = &mut self.incoming[position];
            if behind.contains(&message.from) {
                continue;
            }
            // SAFETY: as in `progress_sends`, for MPI_Imrecv.
            let arrived = unsafe { calls::test(Reporter(self.rank), "MPI_Imrecv", &mut message.request) };
            if matches!(arrived, Ok(false)) {
                behind.push(message.from);
                continue;
            }
            let message = self.incoming.remove(position);
            arrived?;
            // SAFETY: the request is complete.
            return Ok(message.map(|message| (message.from, unsafe { message.bytes.take_back() })));
        }
        Ok(None)
    }

    /// Matches one message that has been announced, and starts to receive it. False if none has been announced or there
    /// is no room for more. The caller has checked `usable`.
    fn accept(&mut self) -> Result<bool, CommError> {
        if self.incoming.len() >= INCOMING_AT_ONCE {
            return Ok(false);
        }
        // SAFETY: `comm` is live and MPI may be called (`usable`).
        let Some(announced) =
            (unsafe { calls::improbe(self.reporter(), self.comm, None, Tag::Message, MAX_MESSAGE_BYTES)? })
        else {
            return Ok(false);
        };
        let from = announced.from;
        let bytes = Lent::new(vec![0; announced.bytes]);
        // SAFETY: the message was matched by the call above and is received once. The buffer has the length of the
        // message, and is lent, so it is not accessed until the request is complete.
        let request = unsafe { calls::imrecv(self.reporter(), bytes.0.cast::<u8>(), announced)? };
        self.incoming.push_back(Incoming { request, from, bytes });
        self.received += 1;
        Ok(true)
    }

    /// Lets unfinished messages leave and arrive for a while. Arriving messages are dropped, but taking them in lets
    /// the sends of peers that are also closing leave. Stops at the first error, because a caller that cancels needs no
    /// further errors.
    fn help_messages_out(&mut self) {
        let started = Instant::now();
        loop {
            match self.receive().and_then(|message| Ok((message, self.receive_parcel()?))) {
                Ok((None, None)) if self.is_idle() => return,
                Ok((None, None)) => std::thread::sleep(PAUSE),
                Ok((_, parcel)) => self.recycle(parcel.map(|parcel| parcel.bytes).unwrap_or_default()),
                Err(error) => {
                    log::warn!(target: TARGET, "event=cancel_incomplete rank={} error={error:?}", self.rank);
                    return;
                }
            }
            if started.elapsed() >= CANCEL_PATIENCE {
                return;
            }
        }
    }
}

impl Comm for MpiComm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        self.usable()?;
        if self.life != Life::Open {
            return Err(CommError::Closed { rank: self.rank });
        }
        check_send(self.rank, self.size, to, bytes.len())?;
        let bytes = Lent::new(bytes.to_vec());
        // SAFETY: `comm` is live and MPI may be called (`usable`); `to` is a member (`check_send`). The buffer is
        // neither changed nor freed until the request is complete: it is lent.
        let mut request = unsafe { calls::isend(self.reporter(), self.comm, bytes.0, to, Tag::Message)? };
        self.sent_to[to.index()] += 1;
        // Short messages have left already. An error concerns this message, and then its buffer leaks.
        // SAFETY: the request was just made.
        if unsafe { calls::test(self.reporter(), "MPI_Isend", &mut request)? } {
            // SAFETY: the request is complete.
            drop(unsafe { bytes.take_back() });
        } else {
            self.outgoing.push_back(Outgoing { request, bytes });
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        self.usable()?;
        self.progress_sends()?;
        // SAFETY: the communicator is live and MPI may be called (`usable`).
        unsafe { self.parcels.progress(self.channel())? };
        if let Some(message) = self.early.pop_front() {
            return Ok(Some(message));
        }
        loop {
            if let Some(message) = self.take_arrived()? {
                return Ok(Some(message));
            }
            if !self.accept()? {
                return Ok(None);
            }
        }
    }

    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        self.early.push_front((from, bytes));
    }

    fn unfinished(&self) -> usize {
        self.outgoing.len()
    }

    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        self.usable()?;
        if self.life != Life::Open {
            return Err(CommError::Closed { rank: self.rank });
        }
        parcel::check(self.rank, self.size, to, body.len())?;
        // SAFETY: the communicator is live and MPI may be called (`usable`); `to` is a member (`check`).
        unsafe { self.parcels.send(self.channel(), to, label, body)? };
        self.sent_to[to.index()] += 1;
        Ok(())
    }

    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.usable()?;
        self.progress_sends()?;
        // SAFETY: the communicator is live and MPI may be called (`usable`).
        unsafe { self.parcels.receive(self.channel()) }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.parcels.recycle(bytes);
    }

    fn unsent_parcels(&self) -> usize {
        self.parcels.unsent()
    }

    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        // The inherent method of the same name, which comes first in resolution.
        MpiComm::quiesce(self, limit)
    }

    /// Gives up all unfinished sends and closes the communicator.
    ///
    /// Messages and parcels that wait for this rank are dropped. Messages and parcels of this rank that do not leave
    /// within 100 ms are abandoned. `MPI_Cancel` does not help: Open MPI ignores it for sends, MPICH asks the peer, which
    /// may be dead, and MPI 4 deprecates it. The buffers of abandoned messages therefore stay lent forever; of a parcel
    /// whose transfer has begun, a share in its bytes stays lent. The communicator is freed if [`MpiComm::quiesce`]
    /// returned true, and is left to `MPI_Finalize` otherwise; the documentation of this module gives the reason. After
    /// `MPI_Finalize`, and on a thread that may not call MPI, nothing is given back.
    ///
    /// Whether a later `MPI_Finalize` waits for abandoned messages depends on the library. Open MPI does not; MPICH over
    /// UCX does if a message was long and its transfer had begun. So call [`MpiComm::quiesce`] before `cancel` wherever
    /// the peers may still be alive, even after a failure, and at the latest in a hook of [`on_finalize`].
    fn cancel(&mut self) {
        let usable = self.usable();
        let quiet = self.life == Life::Leaving { quiet: true };
        if usable.is_ok() {
            self.help_messages_out();
        }
        let (sends, receives) = (self.outgoing.len(), self.incoming.len());
        // Lent memory leaks when it is dropped. The requests are not freed either: newer standards forbid
        // MPI_Request_free on a receive, and on a send it gains nothing at the end of a job.
        self.outgoing.clear();
        self.incoming.clear();
        let parcels = std::mem::replace(&mut self.parcels, Parcels::new()).unsent();
        if self.life == Life::Closed {
            return;
        }
        self.life = Life::Closed;
        if quiet && usable.is_ok() {
            // SAFETY: `comm` is live and MPI may be called (`usable`); no request is pending on any rank (`quiet`), and
            // `life` is `Closed`, so the handle is not used again.
            if let Err(error) = unsafe { calls::comm_free(self.reporter(), self.comm) } {
                log::warn!(target: TARGET, "event=free_failed rank={} error={error:?}", self.rank);
            }
        }
        log::debug!(
            target: TARGET,
            "event=closed rank={} freed={quiet} abandoned_sends={sends} abandoned_receives={receives} abandoned_parcels={parcels}",
            self.rank
        );
    }
}

/// The lowest rank on the node of each rank of `comm`.
///
/// # Safety
/// `comm` must be live and have `size` ranks, and MPI must be callable from this thread.
unsafe fn node_leaders(reporter: Reporter, comm: MPI_Comm, size: u32) -> Result<Vec<c_int>, CommError> {
    // SAFETY: `comm` is live by the caller's promise; `node` is live from its creation until it is freed here.
    unsafe {
        let node = calls::comm_split_shared(reporter, comm, reporter.0)?;
        // Members are ordered by their rank in `comm`, so the node's rank 0 is its lowest.
        let leader = calls::translate_ranks(reporter, node, &[0], comm);
        calls::comm_free(reporter, node)?;
        let leader = leader?.first().copied().flatten().unwrap_or(reporter.0.0);
        calls::allgather(reporter, comm, leader as c_int, size)
    }
}

fn group_name(world_ranks: &[Option<u32>], is_world: bool) -> String {
    let members: Option<Vec<u32>> = world_ranks.iter().copied().collect();
    match members {
        Some(_) if is_world => "world".to_owned(),
        Some(members) => format!("sub-{}", members.iter().min().copied().unwrap_or(0)),
        None => format!("merged-{}", world_ranks.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_named_after_its_place_in_the_world() {
        assert_eq!(group_name(&[Some(0), Some(1)], true), "world");
        assert_eq!(group_name(&[Some(1), Some(0)], false), "sub-0");
        assert_eq!(group_name(&[Some(5), Some(3), Some(7)], false), "sub-3");
        assert_eq!(group_name(&[Some(0), None], false), "merged-2");
    }

    #[test]
    fn lent_memory_comes_back_unchanged() {
        for bytes in [vec![], vec![1, 2, 3]] {
            // SAFETY: the memory was lent to nobody.
            assert_eq!(unsafe { Lent::new(bytes.clone()).take_back() }, bytes);
        }
    }

    #[test]
    fn before_mpi_is_initialized_nothing_is_called() {
        // SAFETY: MPI_COMM_NULL is allowed.
        let refused = unsafe { MpiComm::duplicate_raw(calls::comm_null(), &Timeouts::default()) };
        assert_eq!(refused.err(), Some(CommError::Unusable(Unusable::NotInitialized)));
        assert_eq!(on_finalize(|| {}).err(), Some(CommError::Unusable(Unusable::NotInitialized)));
    }
}
