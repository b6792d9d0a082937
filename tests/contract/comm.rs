//! The contract of `Comm`, as test bodies that each implementation runs. Each rank makes one call, with its end of a
//! fresh communicator. The bodies use only the trait, so the same bodies run on threads and under `mpirun`.

use crate::limit::LIMIT;
use bivouac_core::base::Rank;
use bivouac_core::comm::{Comm, CommError, Label, MAX_MESSAGE_BYTES, MAX_PARCEL_BYTES, Parcel, SharedBytes, Slice};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A test body. All ranks of one communicator run it at the same time.
pub type Body = fn(Box<dyn Comm>);

/// All bodies, with their names.
pub const BODIES: &[(&str, Body)] = &[
    ("members_know_their_place", members_know_their_place),
    ("every_rank_reaches_every_rank_and_itself", every_rank_reaches_every_rank_and_itself),
    ("messages_of_one_sender_keep_their_order", messages_of_one_sender_keep_their_order),
    ("many_senders_to_one_all_arrive_each_in_its_order", many_senders_to_one_all_arrive_each_in_its_order),
    ("bytes_may_be_reused_at_once", bytes_may_be_reused_at_once),
    ("an_empty_message_arrives_empty", an_empty_message_arrives_empty),
    ("a_message_that_is_put_back_comes_first", a_message_that_is_put_back_comes_first),
    ("receive_says_none_when_nothing_was_sent", receive_says_none_when_nothing_was_sent),
    ("bad_arguments_are_refused_and_harm_nothing", bad_arguments_are_refused_and_harm_nothing),
    ("after_cancel_everything_is_closed", after_cancel_everything_is_closed),
    ("quiesce_ends_the_conversation", quiesce_ends_the_conversation),
    ("parcels_of_one_sender_keep_their_order", parcels_of_one_sender_keep_their_order),
    ("parcels_go_all_ways_at_once", parcels_go_all_ways_at_once),
    ("messages_go_beside_parcels", messages_go_beside_parcels),
    ("bad_parcels_are_refused_and_harm_nothing", bad_parcels_are_refused_and_harm_nothing),
    ("parcels_that_nobody_takes_stay_with_their_sender", parcels_that_nobody_takes_stay_with_their_sender),
    ("quiesce_takes_in_parcels", quiesce_takes_in_parcels),
    ("cancel_gives_up_messages_that_nobody_takes", cancel_gives_up_messages_that_nobody_takes),
    (LONG_MESSAGES_ARE_ABANDONED, cancel_gives_up_long_messages_that_nobody_takes),
];

/// The only body after which a message layer may have to be ended from outside.
pub const LONG_MESSAGES_ARE_ABANDONED: &str = "cancel_gives_up_long_messages_that_nobody_takes";

const ARRIVED: &[u8] = b"\xffbarrier: arrived";
const GO_ON: &[u8] = b"\xffbarrier: go on";

/// One rank in a test body. It keeps messages of the barrier apart from those of the test.
struct Member {
    comm: Box<dyn Comm>,
    early: VecDeque<(Rank, Vec<u8>)>,
    arrived: u32,
    go_on: bool,
}

impl Member {
    fn new(comm: Box<dyn Comm>) -> Self {
        Member { comm, early: VecDeque::new(), arrived: 0, go_on: false }
    }

    fn rank(&self) -> u32 {
        self.comm.rank().0
    }

    fn size(&self) -> u32 {
        self.comm.size()
    }

    /// Receives until `done`, and puts each message where it belongs.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            match self.comm.receive().expect("a healthy communicator receives") {
                Some((_, bytes)) if bytes == ARRIVED => self.arrived += 1,
                Some((_, bytes)) if bytes == GO_ON => self.go_on = true,
                Some(message) => self.early.push_back(message),
                None => std::thread::yield_now(),
            }
            assert!(started.elapsed() < LIMIT, "rank {} waits in vain for {what}", self.comm.rank());
        }
    }

    fn send(&mut self, to: u32, bytes: &[u8]) {
        self.comm.send(Rank(to), bytes).expect("a healthy communicator sends");
    }

    fn next(&mut self) -> (u32, Vec<u8>) {
        self.until("a message", |member| !member.early.is_empty());
        self.early.pop_front().map(|(from, bytes)| (from.0, bytes)).expect("there is one")
    }

    /// Waits until all ranks have reached this call.
    fn barrier(&mut self) {
        self.send(0, ARRIVED);
        if self.rank() == 0 {
            self.until("all ranks", |member| member.arrived == member.size());
            self.arrived = 0;
            (0..self.size()).for_each(|rank| self.send(rank, GO_ON));
        }
        self.until("the root", |member| member.go_on);
        self.go_on = false;
    }

    /// Ends a body: all messages must have been taken, and all sends must leave.
    fn finish(mut self) {
        self.barrier();
        assert!(self.early.is_empty(), "messages that nobody expected: {:?}", self.early);
        self.until("its sends to leave", |member| member.comm.unfinished() == 0 && member.comm.unsent_parcels() == 0);
        assert_eq!(self.comm.receive_parcel(), Ok(None));
    }

    fn send_parcel(&mut self, to: u32, label: Label, body: Slice) {
        self.comm.send_parcel(Rank(to), label, body).expect("a healthy communicator sends");
    }

    fn next_parcel(&mut self) -> Parcel {
        let started = Instant::now();
        loop {
            if let Some(parcel) = self.comm.receive_parcel().expect("a healthy communicator receives") {
                return parcel;
            }
            assert!(started.elapsed() < LIMIT, "rank {} waits in vain for a parcel", self.comm.rank());
            std::thread::yield_now();
        }
    }
}

/// The body of a parcel, in its own memory.
fn body(bytes: Vec<u8>) -> Slice {
    let range = 0..bytes.len();
    Slice::new(Arc::new(bytes), range).expect("the range is the whole")
}

/// Waits until nobody shares the bytes any more.
fn wait_until_released(member: &mut Member, bytes: &SharedBytes) {
    member.until("its parcels to leave", |member| member.comm.unsent_parcels() == 0);
    assert_eq!(Arc::strong_count(bytes), 1, "nothing is unsent, and the bytes are still lent");
}

/// Bytes that depend on the sender, the number and the position.
fn pattern(from: u32, number: u32, length: usize) -> Vec<u8> {
    let head = from.to_le_bytes().into_iter().chain(number.to_le_bytes());
    let seed = from.wrapping_mul(31).wrapping_add(number);
    head.chain((0u32..).map(|at| at.wrapping_mul(197).wrapping_add(seed) as u8)).take(length.max(8)).collect()
}

fn members_know_their_place(comm: Box<dyn Comm>) {
    let member = Member::new(comm);
    assert!(member.rank() < member.size());
    let nodes = member.comm.nodes();
    assert_eq!(nodes.len(), member.size() as usize);
    let mut known = 0;
    for &node in nodes {
        assert!(node <= known, "nodes are numbered by their lowest rank, in ascending order: {nodes:?}");
        known = known.max(node + 1);
    }
    assert_eq!(member.comm.unfinished(), 0);
    member.finish();
}

fn every_rank_reaches_every_rank_and_itself(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let me = member.rank();
    for to in 0..member.size() {
        member.send(to, &pattern(me, to, 40));
    }
    let mut heard: Vec<u32> = Vec::new();
    for _ in 0..member.size() {
        let (from, bytes) = member.next();
        assert_eq!(bytes, pattern(from, me, 40));
        heard.push(from);
    }
    heard.sort_unstable();
    assert_eq!(heard, (0..member.size()).collect::<Vec<_>>());
    member.finish();
}

/// Lengths around the limits at which MPI libraries change their way of sending.
const LENGTHS: [usize; 7] = [8, 300_000, 100, 4_096, 70_000, 9, 20_000];

fn messages_of_one_sender_keep_their_order(comm: Box<dyn Comm>) {
    const MESSAGES: u32 = 210;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let length = |number: u32| LENGTHS[number as usize % LENGTHS.len()];
    for number in 0..MESSAGES {
        member.send((me + 1) % size, &pattern(me, number, length(number)));
    }
    let before = (me + size - 1) % size;
    for number in 0..MESSAGES {
        let (from, bytes) = member.next();
        assert_eq!(from, before);
        assert!(bytes == pattern(before, number, length(number)), "message {number} of rank {before} is another");
    }
    member.finish();
}

fn many_senders_to_one_all_arrive_each_in_its_order(comm: Box<dyn Comm>) {
    const MESSAGES: u32 = 300;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    for number in 0..MESSAGES {
        member.send(0, &pattern(me, number, 64));
    }
    if me == 0 {
        let mut expected = vec![0; size as usize];
        for _ in 0..MESSAGES * size {
            let (from, bytes) = member.next();
            let number = &mut expected[from as usize];
            assert_eq!(bytes, pattern(from, *number, 64));
            *number += 1;
        }
        assert_eq!(expected, vec![MESSAGES; size as usize]);
    }
    member.finish();
}

fn bytes_may_be_reused_at_once(comm: Box<dyn Comm>) {
    const BYTES: usize = 4 << 20;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let mut buffer = Vec::new();
    for number in 0..3 {
        buffer = pattern(me, number, BYTES);
        member.send((me + 1) % size, &buffer);
        buffer.fill(0xee);
    }
    drop(buffer);
    let before = (me + size - 1) % size;
    for number in 0..3 {
        assert!(member.next().1 == pattern(before, number, BYTES), "message {number} was changed after its send");
    }
    member.finish();
}

fn an_empty_message_arrives_empty(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    member.send((me + 1) % size, &[]);
    assert_eq!(member.next(), ((me + size - 1) % size, Vec::new()));
    member.finish();
}

fn a_message_that_is_put_back_comes_first(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let before = (me + size - 1) % size;
    (0..3u8).for_each(|number| member.send((me + 1) % size, &[number]));
    let taken = [0; 3].map(|_| member.next());
    for (from, bytes) in taken.into_iter().rev() {
        member.comm.put_back(Rank(from), bytes);
    }
    (0..3).for_each(|number| assert_eq!(member.next(), (before, vec![number])));
    member.finish();
}

fn receive_says_none_when_nothing_was_sent(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    member.barrier();
    if member.rank() != 0 {
        // No rank sends before rank 0 does, which comes last.
        for _ in 0..200 {
            assert_eq!(member.comm.receive(), Ok(None));
        }
        member.send(0, b"quiet");
    } else {
        for _ in 1..member.size() {
            assert_eq!(member.next().1, b"quiet");
        }
    }
    member.finish();
}

fn bad_arguments_are_refused_and_harm_nothing(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (rank, size) = (member.comm.rank(), member.size());
    for to in [Rank(size), Rank(i32::MAX as u32), Rank(u32::MAX)] {
        assert_eq!(member.comm.send(to, b"?"), Err(CommError::NoSuchRank { rank, to, size }));
    }
    let too_long = vec![0; MAX_MESSAGE_BYTES + 1];
    let bytes = too_long.len();
    assert_eq!(member.comm.send(rank, &too_long), Err(CommError::TooLong { rank, to: rank, bytes }));
    assert_eq!(member.comm.unfinished(), 0);
    member.finish();
}

/// Lengths of bodies around this library's limits and those of MPI libraries.
const BODIES_OF: [usize; 9] = [0, 1, 4 << 10, 1 << 20, MAX_PARCEL_BYTES, 0, 100, 70_000, 300_001];

fn parcels_of_one_sender_keep_their_order(comm: Box<dyn Comm>) {
    const PARCELS: u32 = 45;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let next = (me + 1) % size;
    let label = |from: u32, number: u32| [u64::from(from), u64::from(number), 0, u64::MAX, 1 << 63, 0x0102_0304];
    let content = |from: u32, number: u32| {
        let length = BODIES_OF[number as usize % BODIES_OF.len()];
        let mut bytes = pattern(from, number, length);
        bytes.truncate(length);
        bytes
    };
    for number in 0..PARCELS {
        let bytes = content(me, number);
        member.send_parcel(next, label(me, number), if bytes.is_empty() { Slice::empty() } else { body(bytes) });
    }
    let before = (me + size - 1) % size;
    for number in 0..PARCELS {
        let parcel = member.next_parcel();
        assert_eq!((parcel.from, parcel.label), (Rank(before), label(before, number)));
        assert!(parcel.bytes == content(before, number), "parcel {number} of rank {before} is another");
        member.comm.recycle(parcel.bytes);
    }
    member.finish();
}

fn parcels_go_all_ways_at_once(comm: Box<dyn Comm>) {
    const PARCELS: u32 = 24;
    const BYTES: usize = 200_000;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    // Each parcel is a range of the same bytes, and all are sent before one is taken.
    let bytes: SharedBytes = Arc::new(pattern(me, 0, BYTES + PARCELS as usize));
    for number in 0..PARCELS {
        for to in 0..size {
            let at = number as usize;
            let slice = Slice::new(bytes.clone(), at..at + BYTES).expect("it is inside");
            member.send_parcel(to, [u64::from(number); 6], slice);
        }
    }
    let expected: Vec<_> = (0..size).map(|from| pattern(from, 0, BYTES + PARCELS as usize)).collect();
    let mut numbers = vec![0; size as usize];
    for _ in 0..PARCELS * size {
        let parcel = member.next_parcel();
        let number = &mut numbers[parcel.from.index()];
        assert_eq!(parcel.label, [*number as u64; 6]);
        assert!(parcel.bytes == expected[parcel.from.index()][*number..*number + BYTES]);
        *number += 1;
        member.comm.recycle(parcel.bytes);
    }
    assert_eq!(numbers, vec![PARCELS as usize; size as usize]);
    wait_until_released(&mut member, &bytes);
    member.finish();
}

fn messages_go_beside_parcels(comm: Box<dyn Comm>) {
    const ROUNDS: u32 = 20;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let next = (me + 1) % size;
    let before = (me + size - 1) % size;
    // A conversation continues while parcels wait to be taken.
    for number in 0..ROUNDS {
        member.send_parcel(next, [u64::from(number); 6], body(pattern(me, number, 500_000)));
        member.send(next, &pattern(me, number, 300));
        assert_eq!(member.next(), (before, pattern(before, number, 300)));
    }
    for number in 0..ROUNDS {
        let parcel = member.next_parcel();
        assert_eq!((parcel.from, parcel.label), (Rank(before), [u64::from(number); 6]));
        assert!(parcel.bytes == pattern(before, number, 500_000));
        // This rank does not give the memory back, which is allowed.
    }
    member.finish();
}

fn bad_parcels_are_refused_and_harm_nothing(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (rank, size) = (member.comm.rank(), member.size());
    let bytes: SharedBytes = Arc::new(vec![0; MAX_PARCEL_BYTES + 1]);
    let whole = || Slice::new(bytes.clone(), 0..MAX_PARCEL_BYTES + 1).expect("it is inside");
    for to in [Rank(size), Rank(i32::MAX as u32), Rank(u32::MAX)] {
        assert_eq!(member.comm.send_parcel(to, [0; 6], whole()), Err(CommError::NoSuchRank { rank, to, size }));
    }
    let refused = CommError::ParcelTooLong { rank, to: rank, bytes: MAX_PARCEL_BYTES + 1 };
    assert_eq!(member.comm.send_parcel(rank, [0; 6], whole()), Err(refused));
    assert_eq!((member.comm.unsent_parcels(), Arc::strong_count(&bytes)), (0, 1));
    // Memory from elsewhere is taken or dropped.
    member.comm.recycle(Vec::new());
    member.comm.recycle(vec![7; 100]);
    member.finish();
}

/// Rank 0 takes no parcel for a while, although it continues to receive messages. The data that it holds in the meantime is bounded by the
/// data that the senders have sent.
fn parcels_that_nobody_takes_stay_with_their_sender(comm: Box<dyn Comm>) {
    const PARCELS: usize = 100;
    const IN_HAND: usize = 16;
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    for length in [1 << 20, 1, 0] {
        let bytes: SharedBytes = Arc::new(vec![me as u8; length]);
        for number in 0..PARCELS {
            let slice = Slice::new(bytes.clone(), 0..length).expect("it is the whole");
            member.send_parcel(0, [number as u64; 6], slice);
        }
        for _ in 0..20 {
            member.barrier();
        }
        let unsent = member.comm.unsent_parcels();
        assert!(unsent >= PARCELS - IN_HAND, "{unsent} of {PARCELS} are left, and rank 0 has taken none");
        assert!(Arc::strong_count(&bytes) > unsent);
        member.barrier();
        let mut numbers = vec![0; size as usize];
        for _ in 0..if me == 0 { PARCELS * size as usize } else { 0 } {
            let parcel = member.next_parcel();
            let number = &mut numbers[parcel.from.index()];
            assert_eq!((parcel.label, parcel.bytes.len()), ([*number; 6], length));
            assert!(parcel.bytes.iter().all(|byte| *byte == parcel.from.0 as u8));
            *number += 1;
            member.comm.recycle(parcel.bytes);
        }
        wait_until_released(&mut member, &bytes);
        member.barrier();
    }
    member.finish();
}

fn quiesce_takes_in_parcels(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    let bytes: SharedBytes = Arc::new(pattern(me, 0, 1 << 20));
    for number in 0..40 {
        let length = if number % 4 == 0 { number } else { 1 << 20 };
        let slice = Slice::new(bytes.clone(), 0..length).expect("it is inside");
        member.send_parcel((me + 1) % size, [number as u64; 6], slice);
    }
    // One parcel is taken, and the others are not.
    assert_eq!(member.next_parcel().label, [0; 6]);
    assert_eq!(member.comm.quiesce(LIMIT), Ok(true));
    assert_eq!((member.comm.unsent_parcels(), Arc::strong_count(&bytes)), (0, 1));
    member.comm.cancel();
    assert_closed(&mut *member.comm);
}

fn assert_closed(comm: &mut dyn Comm) {
    let closed = CommError::Closed { rank: comm.rank() };
    for _ in 0..2 {
        assert_eq!(comm.send(Rank(0), b"too late"), Err(closed.clone()));
        assert_eq!(comm.receive(), Err(closed.clone()));
        assert_eq!(comm.unfinished(), 0);
        assert_eq!(comm.send_parcel(Rank(0), [0; 6], Slice::empty()), Err(closed.clone()));
        assert_eq!(comm.receive_parcel(), Err(closed.clone()));
        assert_eq!(comm.unsent_parcels(), 0);
        comm.recycle(vec![0; 5000]);
        comm.cancel();
    }
    assert_eq!(comm.nodes().len(), comm.size() as usize);
}

fn after_cancel_everything_is_closed(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    member.barrier();
    member.comm.cancel();
    assert_closed(&mut *member.comm);
}

fn quiesce_ends_the_conversation(comm: Box<dyn Comm>) {
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    for length in [10, 100_000] {
        member.send((me + 1) % size, &pattern(me, 0, length));
    }
    assert_eq!(member.comm.quiesce(LIMIT), Ok(true));
    assert_eq!(member.comm.unfinished(), 0);
    member.comm.cancel();
    assert_closed(&mut *member.comm);
}

fn send_and_cancel(comm: Box<dyn Comm>, lengths: &[usize]) {
    let mut member = Member::new(comm);
    let (me, size) = (member.rank(), member.size());
    member.barrier();
    for &length in lengths {
        member.send((me + 1) % size, &pattern(me, 0, length));
        member.send_parcel((me + 1) % size, [0; 6], body(pattern(me, 0, length)));
    }
    member.comm.cancel();
    assert_closed(&mut *member.comm);
}

fn cancel_gives_up_messages_that_nobody_takes(comm: Box<dyn Comm>) {
    send_and_cancel(comm, &[0, 10, 1000]);
}

fn cancel_gives_up_long_messages_that_nobody_takes(comm: Box<dyn Comm>) {
    send_and_cancel(comm, &[100_000, 10, 4 << 20]);
}
