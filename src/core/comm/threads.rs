//! N ranks in one process: the message layer of tests and of the simulation.
//!
//! [`world`] makes one [`ThreadComm`] per rank. Each rank may live on a thread of its own, or one thread may step all
//! ranks in turn. Nothing here waits, looks at a clock or draws a random number, so a single-threaded run can be
//! replayed exactly.
//!
//! Each rank owns one mailbox, a queue behind a mutex. A send locks the mailbox of the receiver and appends the
//! message; a receive locks the rank's own mailbox and takes the oldest message. No call holds two locks at once. A
//! message has therefore arrived when `send` returns, and `unfinished` is always 0.
//!
//! A mailbox has room for a fixed number of parcels. A parcel is copied into the mailbox of its receiver once there is
//! room; until then it waits, uncopied, with its sender, which tries again in each of its calls. So senders feel the
//! same back pressure as under MPI. As under MPI, waiting parcels are lost when their sender dies.
//!
//! A [`WorldHandle`] looks at the world from outside: it kills ranks and reads the number of messages and bytes of each
//! rank, from which the cost of a protocol is plotted. Killing a rank does what `kill -9` does to a process: its later
//! calls fail, and messages to it vanish, but messages that it sent before still arrive.
#![forbid(unsafe_code)]

use super::parcel::{self, PARCELS_AT_ONCE};
use super::{Comm, CommError, Label, Parcel, Slice, check_send, number_nodes};
use crate::base::Rank;
use crate::base::sync::{Guard, Lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Makes a world with one rank per entry of `nodes`. Ranks with equal entries share a node; the entries are only
/// labels, which [`Comm::nodes`] renumbers as its contract requires.
pub fn world(nodes: &[u32]) -> Vec<ThreadComm> {
    let world = Arc::new(World {
        nodes: number_nodes(nodes),
        mailboxes: nodes.iter().map(|_| Lock::new(Mailbox::default())).collect(),
    });
    (0..world.size())
        .map(|rank| ThreadComm { rank: Rank(rank), world: world.clone(), outbox: VecDeque::new() })
        .collect()
}

/// How much one rank has sent and received, not counting parcels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Messages that the rank sent, including those that vanished because their receiver was dead.
    pub sent_messages: u64,
    /// Bytes in those messages.
    pub sent_bytes: u64,
    /// Messages that `receive` returned to the rank.
    pub received_messages: u64,
    /// Bytes in those messages.
    pub received_bytes: u64,
}

/// The state that one rank owns. The mutex around it guards nothing else.
#[derive(Default)]
struct Mailbox {
    queue: VecDeque<(Rank, Vec<u8>)>,
    /// At most `PARCELS_AT_ONCE`, unless a sender has called `quiesce`.
    parcels: VecDeque<Parcel>,
    /// Parcels that the owner has sent, but for which there has been no room yet.
    unsent: usize,
    /// The rank was killed, cancelled or dropped. Invariant: a closed mailbox is empty and stays empty.
    closed: bool,
    traffic: Traffic,
}

impl Mailbox {
    fn close(&mut self) {
        self.closed = true;
        self.queue = VecDeque::new();
        self.parcels = VecDeque::new();
        self.unsent = 0;
    }
}

struct World {
    nodes: Vec<u32>,
    mailboxes: Vec<Lock<Mailbox>>,
}

impl World {
    fn size(&self) -> u32 {
        self.mailboxes.len() as u32
    }

    /// The mailbox of a member. A panic while the mailbox was locked is no reason to stop: each change is a single
    /// push, pop or assignment, so the mailbox is consistent at any time.
    fn mailbox(&self, rank: Rank) -> Guard<'_, Mailbox> {
        self.mailboxes[rank.index()].lock()
    }
}

/// One rank of a [`world`]. Dropping it closes the rank's mailbox, as the end of a process would.
pub struct ThreadComm {
    rank: Rank,
    world: Arc<World>,
    /// Parcels for which there has been no room yet, in the order in which they were sent.
    outbox: VecDeque<(Rank, Label, Slice)>,
}

impl ThreadComm {
    /// The rank's own mailbox, if it has not been closed.
    fn own(&self) -> Result<Guard<'_, Mailbox>, CommError> {
        let own = self.world.mailbox(self.rank);
        if own.closed { Err(CommError::Closed { rank: self.rank }) } else { Ok(own) }
    }

    /// Delivers the parcels that find room now, in mailboxes that hold up to `room` parcels. The copy is made under the
    /// receiver's lock, so that the room is still there.
    fn deliver(&mut self, room: usize) -> Result<(), CommError> {
        drop(self.own()?);
        if self.outbox.is_empty() {
            return Ok(());
        }
        let mut full: Vec<Rank> = Vec::new();
        self.outbox.retain(|(to, label, body)| {
            if full.contains(to) {
                return true;
            }
            let mut mailbox = self.world.mailbox(*to);
            if mailbox.parcels.len() >= room {
                full.push(*to);
                return true;
            }
            if !mailbox.closed {
                let bytes = body.as_ref().to_vec();
                mailbox.parcels.push_back(Parcel { from: self.rank, label: *label, bytes });
            }
            false
        });
        self.own()?.unsent = self.outbox.len();
        Ok(())
    }

    /// A view of the whole world from outside.
    pub fn handle(&self) -> WorldHandle {
        WorldHandle(self.world.clone())
    }
}

impl Comm for ThreadComm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.world.size()
    }

    fn nodes(&self) -> &[u32] {
        &self.world.nodes
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        {
            let mut own = self.own()?;
            check_send(self.rank, self.world.size(), to, bytes.len())?;
            own.traffic.sent_messages += 1;
            own.traffic.sent_bytes += bytes.len() as u64;
        }
        // The bytes are copied before the receiver's lock is taken, so that a long message delays no other rank.
        let bytes = bytes.to_vec();
        let mut mailbox = self.world.mailbox(to);
        if !mailbox.closed {
            mailbox.queue.push_back((self.rank, bytes));
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        self.deliver(PARCELS_AT_ONCE)?;
        let mut own = self.own()?;
        let message = own.queue.pop_front();
        if let Some((_, bytes)) = &message {
            own.traffic.received_messages += 1;
            own.traffic.received_bytes += bytes.len() as u64;
        }
        Ok(message)
    }

    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        if let Ok(mut own) = self.own() {
            own.queue.push_front((from, bytes));
        }
    }

    fn unfinished(&self) -> usize {
        0
    }

    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        drop(self.own()?);
        parcel::check(self.rank, self.world.size(), to, body.len())?;
        self.outbox.push_back((to, label, body));
        self.deliver(PARCELS_AT_ONCE)
    }

    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.deliver(PARCELS_AT_ONCE)?;
        Ok(self.own()?.parcels.pop_front())
    }

    /// Drops the buffer, so that the next parcel gets new memory: nothing is measured on this layer.
    fn recycle(&mut self, bytes: Vec<u8>) {
        drop(bytes);
    }

    fn unsent_parcels(&self) -> usize {
        self.outbox.len()
    }

    /// Delivers all parcels that still wait, whether or not there is room: nothing may wait here, and no rank sends any
    /// more.
    fn quiesce(&mut self, _limit: Duration) -> Result<bool, CommError> {
        self.deliver(usize::MAX)?;
        Ok(true)
    }

    fn cancel(&mut self) {
        self.outbox.clear();
        self.world.mailbox(self.rank).close();
    }
}

impl Drop for ThreadComm {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// A view of a [`world`] from outside, for the code that runs the experiment. Clones look at the same world.
///
/// Ranks outside the world are dead and have no traffic.
#[derive(Clone)]
pub struct WorldHandle(Arc<World>);

impl WorldHandle {
    /// The number of ranks, including the dead ones.
    pub fn size(&self) -> u32 {
        self.0.size()
    }

    /// Kills a rank: its later calls return [`CommError::Closed`], and messages to it vanish, including those that wait
    /// in its mailbox. Messages that it sent before still arrive.
    pub fn kill(&self, rank: Rank) {
        if rank.0 < self.0.size() {
            self.0.mailbox(rank).close();
        }
    }

    /// True until the rank is killed, cancels or is dropped.
    pub fn alive(&self, rank: Rank) -> bool {
        rank.0 < self.0.size() && !self.0.mailbox(rank).closed
    }

    /// How much the rank has sent and received since the start or the last [`reset_traffic`](Self::reset_traffic).
    pub fn traffic(&self, rank: Rank) -> Traffic {
        if rank.0 < self.0.size() { self.0.mailbox(rank).traffic } else { Traffic::default() }
    }

    /// Sets the counters of all ranks to zero.
    pub fn reset_traffic(&self) {
        for rank in 0..self.0.size() {
            self.0.mailbox(Rank(rank)).traffic = Traffic::default();
        }
    }

    /// The number of messages and parcels, over all ranks, that have been sent but not received. If this is 0 in a
    /// single-threaded simulation and no rank has anything to do, the simulation is stuck.
    pub fn in_flight(&self) -> usize {
        let of = |mailbox: &Mailbox| mailbox.queue.len() + mailbox.parcels.len() + mailbox.unsent;
        (0..self.0.size()).map(|rank| of(&self.0.mailbox(Rank(rank)))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (ThreadComm, ThreadComm, WorldHandle) {
        let mut world = world(&[0, 1]).into_iter();
        let first = world.next().unwrap();
        let handle = first.handle();
        (first, world.next().unwrap(), handle)
    }

    #[test]
    fn a_world_of_no_ranks_is_empty() {
        assert!(world(&[]).is_empty());
    }

    #[test]
    fn a_killed_rank_hears_and_says_nothing_but_its_earlier_messages_arrive() {
        let (mut a, mut b, handle) = pair();
        a.send(Rank(1), b"before").unwrap();
        b.send(Rank(0), b"lost").unwrap();
        handle.kill(Rank(0));
        assert!(!handle.alive(Rank(0)) && handle.alive(Rank(1)));
        assert_eq!(a.send(Rank(1), b"after"), Err(CommError::Closed { rank: Rank(0) }));
        assert_eq!(a.receive(), Err(CommError::Closed { rank: Rank(0) }));
        assert_eq!(b.send(Rank(0), b"into the void"), Ok(()));
        assert_eq!(handle.in_flight(), 1);
        assert_eq!(b.receive(), Ok(Some((Rank(0), b"before".to_vec()))));
        assert_eq!(b.receive(), Ok(None));
    }

    #[test]
    fn a_killed_ranks_parcels_arrive_as_far_as_they_had_left() {
        let (mut a, mut b, handle) = pair();
        let bytes = Arc::new(vec![7; 10]);
        let slice = || Slice::new(bytes.clone(), 2..5).unwrap();
        for number in 0..20 {
            a.send_parcel(Rank(1), [number; 6], slice()).unwrap();
        }
        assert_eq!((a.unsent_parcels(), handle.in_flight()), (20 - PARCELS_AT_ONCE, 20));
        // Taking a parcel makes room, which the sender uses in its next call.
        assert_eq!(b.receive_parcel(), Ok(Some(Parcel { from: Rank(0), label: [0; 6], bytes: vec![7; 3] })));
        assert_eq!(a.receive(), Ok(None));
        assert_eq!((a.unsent_parcels(), handle.in_flight()), (19 - PARCELS_AT_ONCE, 19));

        handle.kill(Rank(0));
        assert_eq!(handle.in_flight(), PARCELS_AT_ONCE);
        let closed = CommError::Closed { rank: Rank(0) };
        assert_eq!(a.send_parcel(Rank(1), [0; 6], slice()), Err(closed.clone()));
        assert_eq!(a.receive_parcel(), Err(closed));
        let heard: Vec<_> = std::iter::from_fn(|| b.receive_parcel().unwrap()).map(|parcel| parcel.label[0]).collect();
        assert_eq!(heard, (1..=PARCELS_AT_ONCE as u64).collect::<Vec<_>>());

        // The living ranks lose only the parcels to dead ranks, which vanish, and whose bytes are released.
        a.cancel();
        for _ in 0..100 {
            b.send_parcel(Rank(0), [0; 6], slice()).unwrap();
        }
        assert_eq!((a.unsent_parcels(), b.unsent_parcels(), handle.in_flight()), (0, 0, 0));
        assert_eq!(Arc::strong_count(&bytes), 1);
    }

    #[test]
    fn a_full_mailbox_holds_back_only_what_goes_there() {
        let mut world = world(&[0, 0, 0]).into_iter();
        let (mut a, _b, mut c) = (world.next().unwrap(), world.next().unwrap(), world.next().unwrap());
        for number in 0..50 {
            a.send_parcel(Rank(1), [number; 6], Slice::empty()).unwrap();
        }
        a.send_parcel(Rank(2), [9; 6], Slice::empty()).unwrap();
        assert_eq!(c.receive_parcel().unwrap().map(|parcel| parcel.label), Some([9; 6]));
        assert_eq!(a.unsent_parcels(), 50 - PARCELS_AT_ONCE);
    }

    #[test]
    fn a_dropped_rank_is_dead_and_lets_no_messages_pile_up() {
        let (a, mut b, handle) = pair();
        drop(a);
        assert!(!handle.alive(Rank(0)));
        b.send(Rank(0), &[1; 100]).unwrap();
        assert_eq!(handle.in_flight(), 0);
    }

    #[test]
    fn traffic_counts_messages_and_bytes_of_each_rank() {
        let (mut a, mut b, handle) = pair();
        a.send(Rank(1), &[0; 10]).unwrap();
        a.send(Rank(1), &[]).unwrap();
        a.send(Rank(2), &[0; 5]).unwrap_err();
        b.receive().unwrap();
        let sent = Traffic { sent_messages: 2, sent_bytes: 10, ..Traffic::default() };
        let received = Traffic { received_messages: 1, received_bytes: 10, ..Traffic::default() };
        assert_eq!((handle.traffic(Rank(0)), handle.traffic(Rank(1))), (sent, received));
        handle.reset_traffic();
        assert_eq!(handle.traffic(Rank(0)), Traffic::default());
    }

    #[test]
    fn a_handle_asked_about_a_rank_outside_the_world_says_dead_and_silent() {
        let (_a, _b, handle) = pair();
        handle.kill(Rank(7));
        assert!(!handle.alive(Rank(7)));
        assert_eq!(handle.traffic(Rank(u32::MAX)), Traffic::default());
    }
}
