//! Seeded faults: a wrapper around any [`Comm`] that loses, delays, reorders and repeats messages, and that can die.
//!
//! A [`FaultPlan`] says which faults happen, and how often. The fate of each message comes from a seeded generator, and
//! a delay is counted in calls to `receive`, never in time. Therefore the same calls with the same seed meet the same
//! faults, and a failing run can be replayed.
//!
//! The sender decides on loss and repetition, the receiver on delay and reordering. Delay and reordering differ in what
//! they promise. A *delayed* message holds back the later messages of its sender, as a slow network under MPI would,
//! and so the order is kept. A *reordered* message lets later messages pass, which MPI never does; a protocol that
//! tolerates it is safe from our own mistakes in the layers between. Death ends this rank's communication after a given
//! number of sends: from then on each call returns [`CommError::Closed`].
//!
//! Parcels are lost, delayed and counted towards death in the same way; their delay is counted in calls to
//! `receive_parcel`. They are neither repeated nor reordered: the data in parcels is checked by its digest, and the
//! protocols that use parcels may rely on the order that each message layer keeps.
//!
//! With [`FaultPlan::NONE`] the wrapper changes nothing.
#![forbid(unsafe_code)]

use super::{Comm, CommError, Label, Parcel, Slice};
use crate::base::Rank;
use crate::base::log;
use crate::base::rng::Rng;
use std::collections::VecDeque;
use std::time::Duration;

/// Which faults a [`Faulty`] wrapper injects. Chances are in thousandths of the messages; 1000 or more means always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// The chance that a sent message or parcel vanishes.
    pub drop: u16,
    /// The chance that a sent message arrives twice.
    pub duplicate: u16,
    /// The chance that a received message, and with it the later messages of its sender, is held back; the same for
    /// parcels.
    pub delay: u16,
    /// The chance that a received message is held back while later messages pass it.
    pub reorder: u16,
    /// The maximum time for which a message is held back, in calls to `receive` (to `receive_parcel` for a parcel).
    /// Each message is held back for 1 to this many calls (0 counts as 1).
    pub hold_calls: u32,
    /// The rank dies in place of the send that follows this many sends, which may be of messages or parcels. 0: it dies
    /// at its first send.
    pub die_after: Option<u64>,
}

impl FaultPlan {
    /// No faults.
    pub const NONE: FaultPlan =
        FaultPlan { drop: 0, duplicate: 0, delay: 0, reorder: 0, hold_calls: 0, die_after: None };
}

/// How many faults have been injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Messages and parcels that this rank sent and that vanished.
    pub dropped: u64,
    /// Messages that this rank sent twice.
    pub duplicated: u64,
    /// Messages and parcels that this rank received late, in order.
    pub delayed: u64,
    /// Messages that this rank received late, while later messages were free to pass.
    pub reordered: u64,
}

/// A message or parcel that has arrived at the inner communicator but has not been passed to the caller yet.
struct Held<T> {
    from: Rank,
    what: T,
    /// The first call that may deliver it.
    due: u64,
    /// Later messages or parcels of the same sender may be delivered before it.
    passable: bool,
}

/// The messages or parcels that are held back, in order of arrival. Bounded by what arrives within `hold_calls` calls.
struct Waiting<T> {
    /// Calls to `receive`, or to `receive_parcel`, so far.
    calls: u64,
    held: VecDeque<Held<T>>,
}

impl<T> Waiting<T> {
    fn new() -> Self {
        Waiting { calls: 0, held: VecDeque::new() }
    }

    /// Takes the oldest message or parcel that is due and that no earlier one of the same sender holds back.
    fn take_due(&mut self) -> Option<(Rank, T)> {
        let mut held_back: Vec<Rank> = Vec::new();
        let position = self.held.iter().position(|held| {
            let ready = held.due <= self.calls && !held_back.contains(&held.from);
            if !ready && !held.passable {
                held_back.push(held.from);
            }
            ready
        })?;
        self.held.remove(position).map(|held| (held.from, held.what))
    }
}

/// A [`Comm`] with faults. See the module's documentation.
pub struct Faulty<C> {
    inner: C,
    plan: FaultPlan,
    rng: Rng,
    /// Calls to `send` and `send_parcel` so far that were not refused.
    sends: u64,
    messages: Waiting<Vec<u8>>,
    parcels: Waiting<Parcel>,
    counts: FaultCounts,
    dead: bool,
}

impl<C: Comm> Faulty<C> {
    /// Wraps `inner`. Give each rank its own generator, for example seeded with the run's seed plus the rank.
    pub fn new(inner: C, plan: FaultPlan, rng: Rng) -> Self {
        let counts = FaultCounts::default();
        let (messages, parcels) = (Waiting::new(), Waiting::new());
        Faulty { inner, plan, rng, sends: 0, messages, parcels, counts, dead: false }
    }

    /// Replaces the plan from the next call on; messages that are already held back remain held back. A dead rank stays
    /// dead.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }

    /// The number of faults injected so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// True once the rank has died by its plan or was cancelled.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The number of messages and parcels that wait here for their delay to pass.
    pub fn held(&self) -> usize {
        self.messages.held.len() + self.parcels.held.len()
    }

    /// The wrapped communicator.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    fn alive(&self) -> Result<(), CommError> {
        if self.dead { Err(CommError::Closed { rank: self.inner.rank() }) } else { Ok(()) }
    }

    fn strikes(&mut self, thousandths: u16) -> bool {
        // A number is drawn even if the chance is zero, so that a change of one chance does not affect the other draws.
        self.rng.chance(u64::from(thousandths), 1000)
    }

    /// Counts a send. If the plan says so, the rank dies in its place.
    fn live_to_send(&mut self) -> Result<(), CommError> {
        if self.plan.die_after.is_some_and(|sends| self.sends >= sends) {
            log::info!(target: "bivouac::comm::faulty", "event=died rank={} sends={}", self.rank(), self.sends);
            self.cancel();
        }
        self.alive()?;
        self.sends += 1;
        Ok(())
    }

    /// Decides the fate of a message that has just arrived. Always draws three numbers: see `strikes`.
    fn hold_message(&mut self, from: Rank, bytes: Vec<u8>) {
        let (delayed, reordered) = (self.strikes(self.plan.delay), self.strikes(self.plan.reorder));
        let wait = 1 + self.rng.below(u64::from(self.plan.hold_calls.max(1)));
        let late = delayed || reordered;
        self.counts.reordered += u64::from(reordered);
        self.counts.delayed += u64::from(delayed && !reordered);
        let due = if late { self.messages.calls + wait } else { self.messages.calls };
        self.messages.held.push_back(Held { from, what: bytes, due, passable: reordered });
    }

    /// Decides the fate of a parcel that has just arrived. Always draws two numbers.
    fn hold_parcel(&mut self, parcel: Parcel) {
        let delayed = self.strikes(self.plan.delay);
        let wait = 1 + self.rng.below(u64::from(self.plan.hold_calls.max(1)));
        self.counts.delayed += u64::from(delayed);
        let due = if delayed { self.parcels.calls + wait } else { self.parcels.calls };
        self.parcels.held.push_back(Held { from: parcel.from, what: parcel, due, passable: false });
    }
}

impl<C: Comm> Comm for Faulty<C> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn nodes(&self) -> &[u32] {
        self.inner.nodes()
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        self.alive()?;
        super::check_send(self.inner.rank(), self.inner.size(), to, bytes.len())?;
        self.live_to_send()?;
        let (dropped, duplicated) = (self.strikes(self.plan.drop), self.strikes(self.plan.duplicate));
        if dropped {
            self.counts.dropped += 1;
            return Ok(());
        }
        self.inner.send(to, bytes)?;
        if duplicated {
            self.counts.duplicated += 1;
            self.inner.send(to, bytes)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        self.alive()?;
        self.messages.calls += 1;
        // The inner communicator is asked only while nothing is due, so that without faults each call takes
        // exactly one message from it.
        loop {
            if let Some(message) = self.messages.take_due() {
                return Ok(Some(message));
            }
            match self.inner.receive()? {
                Some((from, bytes)) => self.hold_message(from, bytes),
                None => return Ok(None),
            }
        }
    }

    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        self.inner.put_back(from, bytes);
    }

    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }

    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        self.alive()?;
        super::parcel::check(self.inner.rank(), self.inner.size(), to, body.len())?;
        self.live_to_send()?;
        if self.strikes(self.plan.drop) {
            self.counts.dropped += 1;
            return Ok(());
        }
        self.inner.send_parcel(to, label, body)
    }

    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.alive()?;
        self.parcels.calls += 1;
        loop {
            if let Some((_, parcel)) = self.parcels.take_due() {
                return Ok(Some(parcel));
            }
            match self.inner.receive_parcel()? {
                Some(parcel) => self.hold_parcel(parcel),
                None => return Ok(None),
            }
        }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.inner.recycle(bytes);
    }

    fn unsent_parcels(&self) -> usize {
        self.inner.unsent_parcels()
    }

    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        self.alive()?;
        self.inner.quiesce(limit)
    }

    fn cancel(&mut self) {
        self.dead = true;
        self.messages.held.clear();
        self.parcels.held.clear();
        self.inner.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::threads::{ThreadComm, world};

    const MESSAGES: u32 = 2000;

    fn sent_by_one(plan: FaultPlan, seed: u64) -> Faulty<ThreadComm> {
        let mut ranks = world(&[0, 0]).into_iter().map(|comm| Faulty::new(comm, plan, Rng::new(seed)));
        let (mut sender, mut receiver) = (ranks.next().unwrap(), ranks.next().unwrap());
        for n in 0..MESSAGES {
            sender.send(Rank(1), &n.to_le_bytes()).unwrap();
        }
        // Copies the sender's counts to the receiver, where the tests look at them.
        receiver.counts = sender.counts();
        receiver
    }

    /// The messages that a receiver gets, each with the call to `receive` that returned it.
    fn heard(receiver: &mut Faulty<ThreadComm>) -> Vec<(u32, u32)> {
        let mut heard = Vec::new();
        for call in 0..4 * MESSAGES {
            if let Some((_, bytes)) = receiver.receive().unwrap() {
                heard.push((call, u32::from_le_bytes(bytes.try_into().unwrap())));
            }
        }
        assert_eq!(receiver.held(), 0);
        heard
    }

    fn numbers(heard: &[(u32, u32)]) -> Vec<u32> {
        heard.iter().map(|(_, number)| *number).collect()
    }

    #[test]
    fn no_faults_change_nothing() {
        let mut receiver = sent_by_one(FaultPlan::NONE, 1);
        let expected: Vec<_> = (0..MESSAGES).map(|n| (n, n)).collect();
        assert_eq!(heard(&mut receiver), expected);
        assert_eq!(receiver.counts(), FaultCounts::default());
    }

    #[test]
    fn dropped_messages_are_missing_and_the_others_keep_their_order() {
        let mut receiver = sent_by_one(FaultPlan { drop: 300, ..FaultPlan::NONE }, 2);
        let numbers = numbers(&heard(&mut receiver));
        assert!(numbers.is_sorted_by(|a, b| a < b));
        let dropped = receiver.counts().dropped;
        assert_eq!(numbers.len() as u64, u64::from(MESSAGES) - dropped);
        assert!((500..700).contains(&dropped), "300 of 1000 were to be dropped, {dropped} of {MESSAGES} were");
    }

    #[test]
    fn duplicated_messages_arrive_twice_in_place() {
        let mut receiver = sent_by_one(FaultPlan { duplicate: 1000, ..FaultPlan::NONE }, 3);
        let expected: Vec<_> = (0..MESSAGES).flat_map(|n| [n, n]).collect();
        assert_eq!(numbers(&heard(&mut receiver)), expected);
        assert_eq!(receiver.counts().duplicated, u64::from(MESSAGES));
    }

    #[test]
    fn delayed_messages_come_late_and_in_order() {
        let mut receiver = sent_by_one(FaultPlan { delay: 50, hold_calls: 20, ..FaultPlan::NONE }, 4);
        let heard = heard(&mut receiver);
        assert_eq!(numbers(&heard), (0..MESSAGES).collect::<Vec<_>>());
        assert!(heard.iter().any(|(call, number)| call > number));
        assert!(receiver.counts().delayed > 0);
    }

    #[test]
    fn reordered_messages_all_arrive_and_some_are_overtaken() {
        let mut receiver = sent_by_one(FaultPlan { reorder: 200, hold_calls: 5, ..FaultPlan::NONE }, 5);
        let mut numbers = numbers(&heard(&mut receiver));
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
        assert!(receiver.counts().reordered > 0);
    }

    #[test]
    fn a_delayed_message_holds_back_its_own_sender_only() {
        let mut ranks = world(&[0, 0, 0]).into_iter();
        let (mut a, mut b) = (ranks.next().unwrap(), ranks.next().unwrap());
        let always = FaultPlan { delay: 1000, hold_calls: 1, ..FaultPlan::NONE };
        let mut receiver = Faulty::new(ranks.next().unwrap(), always, Rng::new(6));
        a.send(Rank(2), b"late").unwrap();
        assert_eq!(receiver.receive(), Ok(None));
        receiver.set_plan(FaultPlan::NONE);
        receiver.messages.calls = 0;
        a.send(Rank(2), b"behind it").unwrap();
        b.send(Rank(2), b"free").unwrap();
        assert_eq!(receiver.receive(), Ok(Some((Rank(1), b"free".to_vec()))));
        assert_eq!(receiver.receive(), Ok(Some((Rank(0), b"late".to_vec()))));
        assert_eq!(receiver.receive(), Ok(Some((Rank(0), b"behind it".to_vec()))));
    }

    #[test]
    fn a_rank_dies_in_place_of_the_send_after_the_given_number() {
        let mut ranks = world(&[0, 0]).into_iter();
        let plan = FaultPlan { die_after: Some(2), ..FaultPlan::NONE };
        let mut mortal = Faulty::new(ranks.next().unwrap(), plan, Rng::new(7));
        let mut other = ranks.next().unwrap();
        mortal.send(Rank(1), b"one").unwrap();
        mortal.send(Rank(9), b"refused, not counted").unwrap_err();
        mortal.send(Rank(1), b"two").unwrap();
        assert!(!mortal.is_dead());
        let closed = CommError::Closed { rank: Rank(0) };
        assert_eq!(mortal.send(Rank(1), b"three"), Err(closed.clone()));
        assert!(mortal.is_dead() && !other.handle().alive(Rank(0)));
        assert_eq!(mortal.receive(), Err(closed));
        let heard: Vec<_> = std::iter::from_fn(|| other.receive().unwrap()).map(|(_, bytes)| bytes).collect();
        assert_eq!(heard, [b"one", b"two"]);
    }

    fn send_parcels(sender: &mut Faulty<ThreadComm>, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| sender.send_parcel(Rank(1), [number; 6], Slice::empty()).unwrap());
    }

    fn hear_parcels(receiver: &mut Faulty<ThreadComm>, calls: u32) -> Vec<u64> {
        (0..calls).filter_map(|_| receiver.receive_parcel().unwrap()).map(|parcel| parcel.label[0]).collect()
    }

    #[test]
    fn parcels_are_lost_or_late_but_never_repeated_or_reordered() {
        let plan = FaultPlan { drop: 300, duplicate: 1000, delay: 200, reorder: 1000, hold_calls: 9, die_after: None };
        let mut ranks = world(&[0, 0]).into_iter().map(|comm| Faulty::new(comm, plan, Rng::new(1)));
        let (mut sender, mut receiver) = (ranks.next().unwrap(), ranks.next().unwrap());
        let mut heard = Vec::new();
        for round in 0..50 {
            send_parcels(&mut sender, 10 * round..10 * (round + 1));
            heard.extend(hear_parcels(&mut receiver, 5));
        }
        // The last parcels did not find room at once.
        while sender.unsent_parcels() > 0 || receiver.held() > 0 {
            sender.receive().unwrap();
            heard.extend(hear_parcels(&mut receiver, 30));
        }
        assert!(heard.is_sorted_by(|a, b| a < b), "{heard:?}");
        let (dropped, delayed) = (sender.counts().dropped, receiver.counts().delayed);
        assert_eq!(heard.len() as u64, 500 - dropped);
        assert!(dropped > 0 && delayed > 0, "{dropped} dropped, {delayed} delayed");
        assert_eq!((sender.counts().duplicated, receiver.counts().reordered), (0, 0));
    }

    #[test]
    fn parcels_count_towards_death_like_messages() {
        let mut ranks = world(&[0, 0]).into_iter();
        let plan = FaultPlan { die_after: Some(2), ..FaultPlan::NONE };
        let mut mortal = Faulty::new(ranks.next().unwrap(), plan, Rng::new(7));
        let mut other = ranks.next().unwrap();
        mortal.send_parcel(Rank(1), [1; 6], Slice::empty()).unwrap();
        mortal.send_parcel(Rank(9), [0; 6], Slice::empty()).unwrap_err();
        mortal.send(Rank(1), b"two").unwrap();
        let closed = CommError::Closed { rank: Rank(0) };
        assert_eq!(mortal.send_parcel(Rank(1), [3; 6], Slice::empty()), Err(closed.clone()));
        assert!(mortal.is_dead() && !other.handle().alive(Rank(0)));
        assert_eq!(mortal.receive_parcel(), Err(closed));
        assert_eq!(other.receive_parcel().unwrap().map(|parcel| parcel.label), Some([1; 6]));
        assert_eq!(other.receive_parcel(), Ok(None));
    }

    #[test]
    fn the_same_seed_replays_the_same_faults_and_another_seed_does_not() {
        let plan = FaultPlan { drop: 100, duplicate: 100, delay: 100, reorder: 100, hold_calls: 9, die_after: None };
        let run = |seed| {
            let mut receiver = sent_by_one(plan, seed);
            let heard = heard(&mut receiver);
            (heard, receiver.counts())
        };
        assert_eq!(run(8), run(8));
        assert_ne!(run(8).0, run(9).0);
    }
}
