//! Parcels over MPI.
//!
//! A parcel consists of two messages: a *head* of 56 bytes, which holds the label and the length of the body, and the
//! body, which is sent straight from the lent memory. Heads and bodies are sent from one rank to another in the order
//! of the parcels, each with a tag of its own. The receiver matches heads from any rank, and for each head the next
//! body of that sender. MPI lets no message overtake another between the same two ranks with the same tag, so the n-th
//! body belongs to the n-th head that announced one. A body is matched before it is received, because the receiver must
//! check that its length is the announced length: Open MPI 4.1 writes beyond the end of a shorter buffer (single copy,
//! TCP and messages to oneself) before it reports the truncation.
//!
//! **Memory.** A receiver holds at most `PARCELS_AT_ONCE` parcels that its caller has not taken. Their bodies take at
//! most `BYTES_AT_ONCE`, in buffers from a pool. Beyond these limits the receiver matches no further heads. The head is
//! sent with `MPI_Issend`, which is complete only when the head is matched. A sender starts at most `STARTED_PARCELS`
//! parcels to each peer; the others wait in a queue of borrowed slices. So for a receiver that does not receive, MPI
//! itself must buffer only a few heads and short bodies from each peer (long bodies stay with their sender until they
//! are received). Moreover, a peer that is stuck can occupy only some of a receiver's places.
//!
//! **Work of a call.** Only the oldest request of each peer is asked about: later requests must wait for it anyway.
//! Inside a node some libraries copy a whole body in `MPI_Imrecv`. Therefore a call that begins to receive a body and
//! finds at once that it has arrived begins to receive no further bodies.
//!
//! **Errors.** After an error, heads and bodies may no longer match. So once MPI has reported an error about a parcel,
//! every later call for parcels returns this first error. Messages continue.

use super::calls::{self, Reporter, Tag};
use super::{Lent, TARGET};
use crate::base::Rank;
use crate::base::log;
use crate::comm::parcel::PARCELS_AT_ONCE;
use crate::comm::pool::Pool;
use crate::comm::{CommError, Label, MAX_PARCEL_BYTES, Parcel, Slice};
use ::mpi::ffi::{MPI_Comm, MPI_Request};
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;

/// The maximum size, in bytes, of the buffers of bodies that a receiver holds. It leaves room for a body of any length.
const BYTES_AT_ONCE: usize = 16 << 20;
const _: () = assert!(MAX_PARCEL_BYTES.next_power_of_two() <= BYTES_AT_ONCE);

/// The maximum number of parcels, and of bytes of bodies, that are started to one peer. One parcel may always be
/// started.
const STARTED_PARCELS: usize = 8;
const STARTED_BYTES: usize = 8 << 20;

const HEAD_BYTES: usize = 8 * (size_of::<Label>() / 8 + 1);

fn encode_head(label: Label, length: usize) -> Vec<u8> {
    label.into_iter().chain([length as u64]).flat_map(u64::to_le_bytes).collect()
}

/// The label and the length of the body; None if none of our ranks can have sent these bytes.
fn decode_head(bytes: &[u8]) -> Option<(Label, usize)> {
    let bytes: &[u8; HEAD_BYTES] = bytes.try_into().ok()?;
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let label = [(); 6].map(|()| words.next().unwrap_or_default());
    let length = usize::try_from(words.next()?).ok()?;
    (length <= MAX_PARCEL_BYTES).then_some((label, length))
}

/// A slice that MPI reads. Dropping it leaks the share in its memory, on purpose.
struct LentSlice(ManuallyDrop<Slice>);

impl LentSlice {
    /// Gives up the share.
    ///
    /// # Safety
    /// MPI must have completed the request that the bytes were lent to.
    unsafe fn take_back(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// The buffer for a body, which MPI writes. Dropping it leaks it, on purpose.
struct LentBuffer {
    start: *mut u8,
    capacity: usize,
}

impl LentBuffer {
    fn new(buffer: Vec<u8>) -> Self {
        let mut buffer = ManuallyDrop::new(buffer);
        LentBuffer { start: buffer.as_mut_ptr(), capacity: buffer.capacity() }
    }

    /// Takes the memory back.
    ///
    /// # Safety
    /// MPI must have completed the request that the memory was lent to, and must have written its first `length` bytes.
    unsafe fn take_back(self, length: usize) -> Vec<u8> {
        // SAFETY: start and capacity come from a vector that `new` took apart, and `self` is consumed, so the vector is
        // reassembled once. By the caller's promise the first `length` bytes are initialized, and so lie within the
        // capacity.
        unsafe { Vec::from_raw_parts(self.start, length, self.capacity) }
    }
}

/// A parcel that has been started but has not left yet.
struct Started {
    head: Option<(MPI_Request, Lent)>,
    body: Option<MPI_Request>,
    length: usize,
    lent: LentSlice,
}

/// The parcels on their way to one peer.
#[derive(Default)]
struct Lane {
    started: VecDeque<Started>,
    started_bytes: usize,
    queued: VecDeque<(Label, Slice)>,
}

impl Lane {
    fn has_room_for(&self, bytes: usize) -> bool {
        self.started.is_empty() || self.started.len() < STARTED_PARCELS && self.started_bytes + bytes <= STARTED_BYTES
    }
}

/// A parcel whose head was matched.
struct Arriving {
    from: Rank,
    stage: Stage,
}

enum Stage {
    Head(MPI_Request, Lent),
    /// The body has not been received yet.
    Announced(Label, usize),
    Body(MPI_Request, Label, usize, LentBuffer),
    /// The parcel has arrived completely, but has not been taken yet.
    Here(Label, Vec<u8>),
}

/// The part of our own communicator that parcels need.
#[derive(Clone, Copy)]
pub(super) struct Channel {
    pub(super) comm: MPI_Comm,
    pub(super) rank: Rank,
}

impl Channel {
    fn reporter(self) -> Reporter {
        Reporter(self.rank)
    }
}

/// The parcels of one rank. "Callable" in the safety sections means that MPI may be called on this thread, and that
/// the communicator of the channel is live and always the same.
///
/// Dropping a `Parcels` leaks the memory that is lent to MPI.
pub(super) struct Parcels {
    /// Peers for which parcels are unsent. No lane is empty.
    lanes: BTreeMap<Rank, Lane>,
    unsent: usize,
    /// Parcels in the order in which MPI matched their heads. At most `PARCELS_AT_ONCE`.
    arriving: VecDeque<Arriving>,
    /// The sum of the sizes of the buffers of bodies in `arriving`. At most `BYTES_AT_ONCE`.
    arriving_bytes: usize,
    /// The number of heads matched so far, for `quiesce`.
    matched: u64,
    pool: Pool,
    broken: Option<CommError>,
}

impl Parcels {
    pub(super) fn new() -> Self {
        Parcels {
            lanes: BTreeMap::new(),
            unsent: 0,
            arriving: VecDeque::new(),
            arriving_bytes: 0,
            matched: 0,
            pool: Pool::new(),
            broken: None,
        }
    }

    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    pub(super) fn matched(&self) -> u64 {
        self.matched
    }

    /// Nothing is under way in either direction.
    pub(super) fn is_idle(&self) -> bool {
        self.unsent == 0 && self.arriving.is_empty()
    }

    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        self.pool.put(bytes);
    }

    /// # Safety
    /// Callable; `to` a member.
    pub(super) unsafe fn send(
        &mut self,
        channel: Channel,
        to: Rank,
        label: Label,
        body: Slice,
    ) -> Result<(), CommError> {
        self.healthy()?;
        self.lanes.entry(to).or_default().queued.push_back((label, body));
        self.unsent += 1;
        // SAFETY: the caller's promise; lanes are made only here, so each leads to a member.
        let pushed = unsafe { self.push_lane(channel, to) };
        self.watch(pushed)
    }

    /// Advances everything that is under way, and returns the next parcel that has arrived.
    ///
    /// # Safety
    /// Callable.
    pub(super) unsafe fn receive(&mut self, channel: Channel) -> Result<Option<Parcel>, CommError> {
        self.healthy()?;
        // SAFETY: the caller's promise.
        unsafe { self.progress(channel)? };
        let Some(position) = self.first_here() else { return Ok(None) };
        let Some(Arriving { from, stage: Stage::Here(label, bytes) }) = self.arriving.remove(position) else {
            return Ok(None);
        };
        self.arriving_bytes -= bytes.capacity();
        Ok(Some(Parcel { from, label, bytes }))
    }

    /// Advances everything that is under way. Does nothing after an error.
    ///
    /// # Safety
    /// Callable.
    pub(super) unsafe fn progress(&mut self, channel: Channel) -> Result<(), CommError> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.pool.tidy();
        // SAFETY: the caller's promise.
        let moved = unsafe { self.push(channel).and_then(|()| self.take_in(channel)) };
        self.watch(moved)
    }

    fn healthy(&self) -> Result<(), CommError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Remembers the first error.
    fn watch(&mut self, result: Result<(), CommError>) -> Result<(), CommError> {
        if let Err(error) = &result {
            log::error!(target: TARGET, "event=parcels_broken error={error:?}");
            self.broken = Some(error.clone());
        }
        result
    }

    /// Releases the parcels that have left, and starts the parcels for which there is room now.
    ///
    /// # Safety
    /// Callable.
    unsafe fn push(&mut self, channel: Channel) -> Result<(), CommError> {
        let mut next = self.lanes.keys().next().copied();
        while let Some(to) = next {
            // SAFETY: the caller's promise; lanes lead to members.
            unsafe { self.push_lane(channel, to)? };
            next =
                self.lanes.range((std::ops::Bound::Excluded(to), std::ops::Bound::Unbounded)).next().map(|(to, _)| *to);
        }
        Ok(())
    }

    /// [`push`](Self::push) for one peer.
    ///
    /// # Safety
    /// Callable; `to` a member.
    unsafe fn push_lane(&mut self, channel: Channel, to: Rank) -> Result<(), CommError> {
        let Some(lane) = self.lanes.get_mut(&to) else { return Ok(()) };
        while let Some(mut first) = lane.started.pop_front() {
            // SAFETY: the requests are live: `start` made them, and they are tested until they are complete. On an
            // error `first` is dropped, which leaks what is lent.
            if !unsafe { has_left(channel.reporter(), &mut first)? } {
                lane.started.push_front(first);
                break;
            }
            lane.started_bytes -= first.length;
            self.unsent -= 1;
            // SAFETY: both requests are complete.
            unsafe { first.lent.take_back() };
        }
        while lane.queued.front().is_some_and(|(_, body)| lane.has_room_for(body.len())) {
            let Some((label, body)) = lane.queued.pop_front() else { break };
            // SAFETY: the caller's promise.
            let started = unsafe { start(channel, to, label, body)? };
            lane.started_bytes += started.length;
            lane.started.push_back(started);
        }
        if lane.started.is_empty() {
            self.lanes.remove(&to);
        }
        Ok(())
    }

    /// Matches heads while there is room, and advances the parcels that are arriving.
    ///
    /// # Safety
    /// Callable.
    unsafe fn take_in(&mut self, channel: Channel) -> Result<(), CommError> {
        while self.arriving.len() < PARCELS_AT_ONCE {
            // SAFETY: the caller's promise.
            let Some(head) =
                (unsafe { calls::improbe(channel.reporter(), channel.comm, None, Tag::Head, HEAD_BYTES)? })
            else {
                break;
            };
            self.matched += 1;
            let (from, bytes) = (head.from, Lent::new(vec![0; head.bytes]));
            // SAFETY: the message was matched by the call above and is received once. The buffer has the length of the
            // message, and is lent.
            let request = unsafe { calls::imrecv(channel.reporter(), bytes.0.cast::<u8>(), head)? };
            self.arriving.push_back(Arriving { from, stage: Stage::Head(request, bytes) });
        }
        // Senders with an earlier body that has not been begun, or has not arrived.
        let (mut unbegun, mut behind): (Vec<Rank>, Vec<Rank>) = (Vec::new(), Vec::new());
        let mut may_begin = true;
        let mut begun = None;
        let mut position = 0;
        while let Some(Arriving { from, stage }) = self.arriving.get(position) {
            let from = *from;
            let is_asked = match stage {
                Stage::Head(..) => !unbegun.contains(&from),
                Stage::Announced(_, length) => {
                    // Bodies are begun in order, so that short ones do not overtake a long one forever.
                    may_begin &= self.arriving_bytes + Pool::capacity(*length) <= BYTES_AT_ONCE;
                    begun = Some(position);
                    may_begin && !unbegun.contains(&from)
                }
                Stage::Body(..) => !behind.contains(&from),
                Stage::Here(..) => {
                    may_begin &= begun != Some(position);
                    false
                }
            };
            // SAFETY: the caller's promise. If an earlier parcel has no body begun yet, its sender is in `unbegun`.
            if is_asked && unsafe { self.advance(channel, position)? } {
                continue;
            }
            match self.arriving[position].stage {
                Stage::Head(..) | Stage::Announced(..) => unbegun.push(from),
                Stage::Body(..) => behind.push(from),
                Stage::Here(..) => {}
            }
            position += 1;
        }
        Ok(())
    }

    /// Takes an arriving parcel to its next stage, if possible. Returns true if the parcel has reached it.
    ///
    /// # Safety
    /// Callable; all earlier bodies of the sender have been begun.
    unsafe fn advance(&mut self, channel: Channel, position: usize) -> Result<bool, CommError> {
        let reporter = channel.reporter();
        // During the step the parcel is not in the queue. On an error it is dropped, which leaks what is lent.
        let Some(Arriving { from, stage }) = self.arriving.remove(position) else { return Ok(false) };
        let mut has_moved = true;
        let stage = match stage {
            Stage::Head(mut request, bytes) => {
                // SAFETY: the request is live: it was made in `take_in` and is tested until it is complete.
                if unsafe { calls::test(reporter, "MPI_Imrecv", &mut request)? } {
                    // SAFETY: the request is complete.
                    let bytes = unsafe { bytes.take_back() };
                    let Some((label, length)) = decode_head(&bytes) else {
                        let text = format!("rank {from} announced a parcel with a head that Bivouac cannot have sent");
                        return Err(reporter.strange("MPI_Imrecv", bytes.len() as i32, text));
                    };
                    match length {
                        0 => Stage::Here(label, Vec::new()),
                        _ => Stage::Announced(label, length),
                    }
                } else {
                    has_moved = false;
                    Stage::Head(request, bytes)
                }
            }
            Stage::Announced(label, length) => {
                // SAFETY: the caller's promise; MPI has named the sender, so it is a member.
                let body = unsafe { calls::improbe(reporter, channel.comm, Some(from), Tag::Body, MAX_PARCEL_BYTES)? };
                match body {
                    None => {
                        has_moved = false;
                        Stage::Announced(label, length)
                    }
                    Some(body) if body.bytes != length => {
                        return Err(strange_length(reporter, from, length, body.bytes));
                    }
                    Some(body) => {
                        let buffer = LentBuffer::new(self.pool.take(length));
                        // SAFETY: the message was matched by the call above and is received once. The buffer has room
                        // for the message (`Pool::take`), and is lent.
                        let request = unsafe { calls::imrecv(reporter, buffer.start, body)? };
                        self.arriving_bytes += buffer.capacity;
                        Stage::Body(request, label, length, buffer)
                    }
                }
            }
            Stage::Body(mut request, label, length, buffer) => {
                // SAFETY: the request is live: it was made above and is tested until it is complete.
                match unsafe { calls::test_received(reporter, "MPI_Imrecv", &mut request)? } {
                    None => {
                        has_moved = false;
                        Stage::Body(request, label, length, buffer)
                    }
                    // SAFETY: the request is complete, and MPI says that it has written this many bytes.
                    Some(count) if count == length => Stage::Here(label, unsafe { buffer.take_back(length) }),
                    Some(count) => return Err(strange_length(reporter, from, length, count)),
                }
            }
            Stage::Here(label, bytes) => {
                has_moved = false;
                Stage::Here(label, bytes)
            }
        };
        self.arriving.insert(position, Arriving { from, stage });
        Ok(has_moved)
    }

    /// The first parcel that has arrived and does not overtake an earlier one of its sender.
    fn first_here(&self) -> Option<usize> {
        let overtakes =
            |position: usize, from: Rank| self.arriving.range(..position).any(|earlier| earlier.from == from);
        let is_here = |(position, parcel): &(usize, &Arriving)| {
            matches!(parcel.stage, Stage::Here(..)) && !overtakes(*position, parcel.from)
        };
        self.arriving.iter().enumerate().find(is_here).map(|(position, _)| position)
    }
}

fn strange_length(reporter: Reporter, from: Rank, announced: usize, sent: usize) -> CommError {
    let text = format!("rank {from} announced a parcel of {announced} bytes, but sent {sent}");
    reporter.strange("MPI_Imrecv", sent as i32, text)
}

/// Starts to send the head and the body. If an error occurs after the head has left, the lent memory leaks.
///
/// # Safety
/// Callable; `to` a member.
unsafe fn start(channel: Channel, to: Rank, label: Label, body: Slice) -> Result<Started, CommError> {
    let lent = LentSlice(ManuallyDrop::new(body));
    let bytes: &[u8] = lent.0.as_ref();
    let length = bytes.len();
    let bytes: *const [u8] = bytes;
    let head = Lent::new(encode_head(label, length));
    // SAFETY: the caller's promise; the head is lent, and never changed.
    let request = unsafe { calls::issend(channel.reporter(), channel.comm, head.0, to, Tag::Head)? };
    let body = match length {
        0 => None,
        // SAFETY: the caller's promise; `send_parcel` checked the length. The bytes stay in place and unchanged: they
        // were borrowed from the value in the slice's `Arc`, and could be borrowed for as long as that value lives and
        // is not borrowed mutably. Both hold, because `lent` holds a share until the request is complete.
        _ => Some(unsafe { calls::isend(channel.reporter(), channel.comm, bytes, to, Tag::Body)? }),
    };
    Ok(Started { head: Some((request, head)), body, length, lent })
}

/// Tests those requests of a parcel that are not complete yet. Returns true if the whole parcel has left.
///
/// # Safety
/// MPI may be called; the requests are live. After an error the parcel must be dropped.
unsafe fn has_left(reporter: Reporter, parcel: &mut Started) -> Result<bool, CommError> {
    if let Some((request, _)) = &mut parcel.head {
        // SAFETY: the caller's promise.
        if !unsafe { calls::test(reporter, "MPI_Issend", request)? } {
            return Ok(false);
        }
        if let Some((_, bytes)) = parcel.head.take() {
            // SAFETY: the request is complete.
            drop(unsafe { bytes.take_back() });
        }
    }
    if let Some(request) = &mut parcel.body {
        // SAFETY: the caller's promise.
        if !unsafe { calls::test(reporter, "MPI_Isend", request)? } {
            return Ok(false);
        }
        parcel.body = None;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limit::LIMIT;
    use crate::comm::mpi::MpiComm;
    use crate::comm::{Comm, MAX_MESSAGE_BYTES};
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn a_head_says_what_was_put_in_and_strange_ones_say_nothing() {
        let label = [1, u64::MAX, 0, 1 << 40, 5, 6];
        for length in [0, 1, MAX_PARCEL_BYTES] {
            let bytes = encode_head(label, length);
            assert_eq!(bytes.len(), HEAD_BYTES);
            assert_eq!(decode_head(&bytes), Some((label, length)));
            assert_eq!(decode_head(&bytes[1..]), None);
            assert_eq!(decode_head(&[&bytes[..], &[0]].concat()), None);
        }
        for length in [MAX_PARCEL_BYTES + 1, MAX_MESSAGE_BYTES, usize::MAX] {
            assert_eq!(decode_head(&encode_head(label, length)), None);
        }
    }

    #[test]
    fn lent_memory_comes_back() {
        let mut buffer = Vec::with_capacity(100);
        buffer.extend([1, 2, 3]);
        // SAFETY: the memory was lent to nobody, and three bytes are written.
        let again = unsafe { LentBuffer::new(buffer).take_back(3) };
        assert_eq!((&again[..], again.capacity()), (&[1, 2, 3][..], 100));

        let bytes = Arc::new(vec![0; 10]);
        let lend = || LentSlice(ManuallyDrop::new(Slice::new(bytes.clone(), 0..10).unwrap()));
        // SAFETY: as above.
        unsafe { lend().take_back() };
        assert_eq!(Arc::strong_count(&bytes), 1);
        {
            let _given_up = lend();
        }
        assert_eq!(Arc::strong_count(&bytes), 2, "what MPI may still read is never freed");
    }

    const WORKER: &str = "BIVOUAC_TEST_STRANGE_PARCELS";

    /// A peer that is not one of our ranks, or that is broken, sends messages that we would never send. The test program
    /// runs itself once more, on one rank that sends to itself, past our own checks.
    #[test]
    fn strange_parcels_are_errors_and_never_overrun() {
        if std::env::var_os(WORKER).is_some() {
            return strange_parcels();
        }
        let mpirun = std::env::var_os("BIVOUAC_TEST_MPIRUN").unwrap_or_else(|| "mpirun".into());
        let mut command = Command::new(&mpirun);
        command.args(["-n", "1"]).arg(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "comm::mpi::parcels::tests::strange_parcels_are_errors_and_never_overrun",
            "--nocapture",
        ]);
        command.env(WORKER, "1").env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let Ok(output) = command.output() else {
            eprintln!("\n*** SKIPPED: no {mpirun:?} here. Run ci/setup.sh, then this test again. ***\n");
            return;
        };
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("[strange parcels finished]"), "{out}\n{err}");
    }

    /// Sends raw bytes to ourselves and returns the resulting error. The bytes are leaked, so that they stay valid.
    fn provoke(comm: &mut MpiComm, sent: &[(Tag, Vec<u8>)]) -> CommError {
        let me = comm.rank;
        for (tag, bytes) in sent {
            let bytes = Lent::new(bytes.clone());
            // SAFETY: the communicator is live and MPI is initialized by this thread; the bytes are leaked.
            unsafe { calls::isend(Reporter(me), comm.comm, bytes.0, me, *tag).unwrap() };
        }
        let started = Instant::now();
        loop {
            match comm.receive_parcel() {
                Ok(None) => assert!(started.elapsed() < LIMIT, "nothing comes of it"),
                Ok(Some(parcel)) => panic!("it was taken for a parcel: {parcel:?}"),
                Err(error) => return error,
            }
        }
    }

    fn strange_parcels() {
        let universe = ::mpi::initialize().expect("nobody has initialized MPI in this process");
        let world = universe.world();
        let cases = [
            ("a short head", vec![(Tag::Head, vec![0; HEAD_BYTES - 1])]),
            ("an empty head", vec![(Tag::Head, Vec::new())]),
            ("a long head", vec![(Tag::Head, vec![0; HEAD_BYTES + 1])]),
            ("a very long head", vec![(Tag::Head, vec![0; 1 << 20])]),
            ("a body over the limit", vec![(Tag::Head, encode_head([0; 6], MAX_PARCEL_BYTES + 1))]),
            ("a body without end", vec![(Tag::Head, encode_head([0; 6], usize::MAX))]),
            ("a short body", vec![(Tag::Head, encode_head([0; 6], 5000)), (Tag::Body, vec![9; 4999])]),
            ("a missing body", vec![(Tag::Head, encode_head([0; 6], 5000)), (Tag::Body, Vec::new())]),
            ("a longer body", vec![(Tag::Head, encode_head([0; 6], 5000)), (Tag::Body, vec![9; 1 << 20])]),
            // This fits within the capacity of the buffer, which is 8 KiB, but is not what was announced.
            ("a body over our limit", vec![(Tag::Head, encode_head([0; 6], 5000)), (Tag::Body, vec![9; 8 << 20])]),
            ("a body one too long", vec![(Tag::Head, encode_head([0; 6], 5000)), (Tag::Body, vec![9; 5001])]),
        ];
        for (what, sent) in cases {
            let mut comm = MpiComm::duplicate(&world, &crate::config::Timeouts::default()).unwrap();
            let me = comm.rank;
            let error = provoke(&mut comm, &sent);
            println!("{what}: {error}");
            assert!(matches!(error, CommError::Mpi { rank, .. } if rank == me), "{what}: {error}");
            assert_eq!(comm.receive_parcel(), Err(error.clone()), "{what}: parcels are over");
            assert_eq!(comm.send_parcel(me, [0; 6], Slice::empty()), Err(error), "{what}: in both directions");
            comm.send(me, b"still here").unwrap();
            while comm.receive().unwrap() != Some((me, b"still here".to_vec())) {}
            comm.cancel();
        }
        drop(universe);
        println!("[strange parcels finished]");
    }
}
