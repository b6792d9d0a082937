//! Feeds the core from a message layer and a clock, and carries out its sends.

use super::core::{Core, Effect, Event, Message};
use crate::base::log;
use crate::base::{Clock, Rank};
use crate::comm::{Bell, Comm, CommError, Label, Parcel, Slice};
use crate::config::Timeouts;
use crate::format::codec;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of messages that a step takes, so that every step ends. A rank finds fewer even when it makes a call after a long
/// time.
const MESSAGES_PER_STEP: usize = 1024;
/// The interval between looks at time-outs, which are counted in seconds: looking more often would be a waste.
const TICK: Duration = Duration::from_millis(50);

/// The core with its communicator and its clock. Only one thread at a time may step it.
pub struct Driver {
    comm: Box<dyn Comm>,
    core: Core,
    clock: Arc<dyn Clock>,
    ticked: Duration,
    messages: u64,
}

impl Driver {
    /// A driver on a communicator that nothing else uses.
    pub fn new(comm: Box<dyn Comm>, clock: Arc<dyn Clock>, timeouts: Timeouts) -> Driver {
        let core = Core::new(comm.rank(), comm.nodes(), timeouts);
        let ticked = clock.now();
        Driver { comm, core, clock, ticked, messages: 0 }
    }

    /// Takes what has arrived, gives `events` to the core, and returns the effects that are not messages.
    ///
    /// # Errors
    /// [`CommError`] if the message layer failed. The caller must then latch its session, because no further agreement is possible.
    pub fn step(&mut self, events: Vec<Event>) -> Result<Vec<Effect>, CommError> {
        let now = self.clock.now();
        let mut effects = Vec::new();
        // Messages come first: a rank that has not been here for a long time may find that the round in which it votes has ended.
        for _ in 0..MESSAGES_PER_STEP {
            let Some((from, bytes)) = self.comm.receive()? else { break };
            match codec::decode::<Message>("message", &bytes) {
                Ok(message) => self.core.on_event(Event::Message(from, message), now, &mut effects),
                Err(error) => log::error!("event=message-undecodable from={from} error={error}"),
            }
        }
        for event in events {
            self.core.on_event(event, now, &mut effects);
        }
        if now.saturating_sub(self.ticked) >= TICK {
            self.ticked = now;
            self.core.on_event(Event::Tick, now, &mut effects);
        }
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<Vec<Effect>, CommError> {
        let mut rest = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send(to, message) => self.send(to, &message)?,
                other => rest.push(other),
            }
        }
        Ok(rest)
    }

    fn send(&mut self, to: Rank, message: &Message) -> Result<(), CommError> {
        match codec::encode("message", message) {
            Ok(bytes) => {
                self.messages += 1;
                self.comm.send(to, &bytes)
            }
            // Only a message beyond the metadata limit cannot be encoded. Its round will time out, and the log will show why.
            Err(error) => {
                log::error!("event=message-too-large to={to} error={error}");
                Ok(())
            }
        }
    }

    /// Starts to send a parcel: [`Comm::send_parcel`].
    ///
    /// # Errors
    /// [`CommError`] of the message layer.
    pub fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        self.comm.send_parcel(to, label, body)
    }

    /// The next parcel that has arrived completely: [`Comm::receive_parcel`].
    ///
    /// # Errors
    /// [`CommError`] of the message layer.
    pub fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.comm.receive_parcel()
    }

    /// Returns the memory of a parcel for reuse.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.comm.recycle(bytes);
    }

    /// The number of parcels that have not left yet.
    pub fn unsent_parcels(&self) -> usize {
        self.comm.unsent_parcels()
    }

    /// The number of messages sent so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Has this rank lost touch with the root?
    pub fn is_latched(&self) -> bool {
        self.core.is_latched()
    }

    /// The bell that rings when something has arrived, if there is one.
    pub fn bell(&self) -> Option<Arc<Bell>> {
        self.comm.bell()
    }

    /// Is no round open, and is nothing left to be sent?
    pub fn is_idle(&self) -> bool {
        self.core.is_idle() && self.comm.unfinished() == 0
    }

    /// Has this rank voted in a round that is still open?
    pub fn awaits_others(&self) -> bool {
        self.core.awaits_others()
    }

    /// Ends the conversation once everything that was sent to this rank has arrived. Returns whether that happened in time.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`CommError`] of the message layer.
    pub fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        self.comm.quiesce(limit)
    }

    /// Gives up the communicator.
    pub fn cancel(&mut self) {
        self.comm.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::SimulatedClock;
    use crate::comm::threads::world;
    use crate::coordination::{Ballot, Outcome, Payload, Phase, Round};

    const ROUND: Round = Round { operation: 1, phase: Phase::Call };

    fn vote(rank: u32) -> Vec<Event> {
        vec![Event::Vote(ROUND, Ballot::of(Rank(rank), 5, "call", Payload::None))]
    }

    fn decided() -> Vec<Event> {
        vec![Event::Decided { round: ROUND, outcome: Outcome::Agreed, decision: Vec::new() }]
    }

    /// The drivers of a root and a rank below it, and their clock.
    fn pair() -> (Driver, Driver, Arc<SimulatedClock>) {
        let clock = Arc::new(SimulatedClock::default());
        // The clock has already run for a while when the session is opened.
        clock.advance(Duration::from_secs(1));
        let s = Duration::from_secs;
        let timeouts = Timeouts { warn: Duration::from_millis(10), abandon: s(10), room: s(1), drain: s(1) };
        let mut comms = world(&[0, 0]).into_iter();
        let mut next = || Driver::new(Box::new(comms.next().expect("two ranks")), clock.clone(), timeouts);
        (next(), next(), clock)
    }

    #[test]
    fn a_round_is_carried_from_votes_to_verdicts_with_one_message_each_way() {
        let (mut root, mut below, _clock) = pair();
        assert!(root.is_idle() && below.is_idle());
        assert_eq!(root.step(vote(0)), Ok(vec![]));
        assert_eq!(below.step(vote(1)), Ok(vec![]));
        assert!(!root.is_idle() && !below.is_idle());
        assert!(matches!(&root.step(vec![]).expect("sent")[..], [Effect::Decide(ROUND, ballot)] if ballot.votes == 2));
        assert!(matches!(&root.step(decided()).expect("sent")[..], [Effect::Settled(_)]));
        assert!(matches!(&below.step(vec![]).expect("sent")[..], [Effect::Settled(verdict)] if verdict.round == ROUND));
        assert!(root.is_idle() && below.is_idle());
        assert_eq!((root.messages(), below.messages()), (1, 1));
    }

    #[test]
    fn a_rank_that_votes_late_finds_the_verdict_that_lies_there() {
        let (mut root, mut below, clock) = pair();
        root.step(vote(0)).expect("sent");
        clock.advance(Duration::from_secs(10));
        root.step(vec![]).expect("sent");
        // Messages that have arrived are handled before the vote is.
        let heard = below.step(vote(1)).expect("sent");
        assert!(matches!(&heard[..], [Effect::Settled(verdict)] if matches!(verdict.outcome, Outcome::Abandoned(_))));
        assert_eq!(below.messages(), 0);
    }

    #[test]
    fn time_is_looked_at_once_a_tick() {
        let (mut root, _below, clock) = pair();
        root.step(vote(0)).expect("sent");
        for _ in 0..3 {
            clock.advance(TICK - Duration::from_millis(1));
            assert_eq!(root.step(vec![]), Ok(vec![]), "it has waited for long, and nobody has looked");
            clock.advance(Duration::from_millis(1));
            assert!(matches!(&root.step(vec![]).expect("sent")[..], [Effect::Waiting { round: ROUND, .. }]));
        }
    }

    #[test]
    fn a_rank_that_hears_nothing_of_the_root_is_latched() {
        let (_root, mut below, clock) = pair();
        below.step(vote(1)).expect("sent");
        assert!(!below.is_latched());
        clock.advance(Duration::from_secs(20));
        let effects = below.step(vec![]).expect("sent");
        assert!(
            matches!(&effects[..], [Effect::Waiting { .. }, Effect::Settled(verdict)] if verdict.outcome == Outcome::Unknown)
        );
        assert!(below.is_latched());
    }

    #[test]
    fn a_message_that_is_none_is_passed_over() {
        let mut comms = world(&[0, 0]);
        let mut stranger = comms.remove(0);
        let s = Duration::from_secs;
        let timeouts = Timeouts { warn: s(1), abandon: s(10), room: s(1), drain: s(1) };
        let mut below = Driver::new(Box::new(comms.remove(0)), Arc::new(SimulatedClock::default()), timeouts);
        stranger.send(Rank(1), &[0xff; 40]).expect("sent");
        assert_eq!(below.step(vec![]), Ok(vec![]));
    }

    #[test]
    fn parcels_go_beside_the_messages_and_wait_with_their_sender() {
        let (mut root, mut below, _clock) = pair();
        let label = |number: u64| [number, 0, 0, 0, 0, 0];
        (0..40).for_each(|number| root.send_parcel(Rank(1), label(number), Slice::empty()).expect("sent"));
        let waiting = root.unsent_parcels();
        assert!(waiting > 1 && waiting < 40, "{waiting}");
        assert_eq!(root.quiesce(Duration::ZERO), Ok(true));
        assert_eq!(root.unsent_parcels(), 0);
        for number in 0..40 {
            let parcel = below.receive_parcel().expect("open").expect("it has arrived");
            assert_eq!((parcel.from, parcel.label), (Rank::ROOT, label(number)));
            below.recycle(parcel.bytes);
        }
        assert_eq!(below.receive_parcel(), Ok(None));
    }

    #[test]
    fn after_a_cancel_every_step_says_so() {
        let (mut root, _below, _clock) = pair();
        root.cancel();
        assert_eq!(root.step(vec![]), Err(CommError::Closed { rank: Rank::ROOT }));
        assert_eq!(root.receive_parcel(), Err(CommError::Closed { rank: Rank::ROOT }));
    }
}
