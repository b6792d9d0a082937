//! Feeds the core from a message layer and a clock, and carries out its sends.

use super::core::{Core, Effect, Event, Message};
use crate::base::{Clock, Rank};
use crate::comm::{Comm, CommError, Label, Parcel, Slice};
use crate::config::Timeouts;
use crate::format::codec;
use std::sync::Arc;
use std::time::Duration;

/// Messages taken per step, so that a step comes to an end. More than a rank finds that makes a call after a long time.
const MESSAGES_PER_STEP: usize = 1024;
/// Time-outs are counted in seconds: looking more often is waste.
const TICK: Duration = Duration::from_millis(50);

/// The core, its communicator and its clock. Stepped by one thread at a time.
pub struct Driver {
    comm: Box<dyn Comm>,
    core: Core,
    clock: Arc<dyn Clock>,
    ticked: Duration,
    messages: u64,
}

impl Driver {
    /// A driver on a communicator of our own.
    pub fn new(comm: Box<dyn Comm>, clock: Arc<dyn Clock>, timeouts: Timeouts) -> Driver {
        let core = Core::new(comm.rank(), comm.nodes(), timeouts);
        let ticked = clock.now();
        Driver { comm, core, clock, ticked, messages: 0 }
    }

    /// Takes what has arrived, gives `events` to the core, and returns the effects that are not messages.
    ///
    /// # Errors
    /// [`CommError`] when the message layer failed. The caller latches its session: nothing more can be agreed.
    pub fn step(&mut self, events: Vec<Event>) -> Result<Vec<Effect>, CommError> {
        let now = self.clock.now();
        let mut effects = Vec::new();
        // First: a rank that has not been here for long may find that the round it votes in has ended.
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
            // Only a message beyond the metadata limit: its round will time out, with this in the log.
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

    /// The next parcel that is wholly here: [`Comm::receive_parcel`].
    ///
    /// # Errors
    /// [`CommError`] of the message layer.
    pub fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.comm.receive_parcel()
    }

    /// Gives the memory of a parcel back.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.comm.recycle(bytes);
    }

    /// Parcels that have not left yet.
    pub fn unsent_parcels(&self) -> usize {
        self.comm.unsent_parcels()
    }

    /// Messages sent so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Has this rank lost touch with the root?
    pub fn is_latched(&self) -> bool {
        self.core.is_latched()
    }

    /// Nothing is being agreed and nothing is on its way out.
    pub fn is_idle(&self) -> bool {
        self.core.is_idle() && self.comm.unfinished() == 0
    }

    /// Ends the conversation: all that was sent to this rank has arrived. True if that came about in time.
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
