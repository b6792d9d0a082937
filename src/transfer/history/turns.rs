//! This rank's turn to flush: a token of the node segment, which the rank's flushing threads share.
//!
//! A turn begins when one thread takes the token and ends when the last thread that uses it is done. While less than
//! [`TURN_BYTES`] went out in it, another thread of the rank joins it: the link sees one rank either way, and two
//! threads keep it busy better than one. After that the rank queues up anew, so that its neighbours get their turn however much
//! it has to flush.
#![forbid(unsafe_code)]

use crate::base::units::MIB;
use crate::segment::{Order, Segment, SegmentError, Token, TokenGuard};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A turn that has moved so much is not joined any more, and in round robin it is given back: three milliseconds of a link of
/// 25 GB/s, long beside the tenths of a millisecond that handing on takes.
pub(super) const TURN_BYTES: u64 = 64 * MIB;

/// The rank's place in the queue for one token.
pub(super) struct Turns {
    segment: Arc<Segment>,
    token: Token,
    order: Order,
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct Turn {
    /// The token while somebody uses it.
    guard: Option<TokenGuard>,
    /// Threads that use it.
    users: usize,
    /// Bytes that were let through.
    passed: u64,
    /// Threads that wait for the next one, and how much they have to move.
    waiting: usize,
    wanted: u64,
}

impl Turns {
    /// Turns at `token`, of which `capacity` ranks may have one at once.
    ///
    /// # Errors
    /// As [`Segment::set_token_capacity`].
    pub(super) fn new(segment: Arc<Segment>, token: Token, order: Order, capacity: u32) -> Result<Turns, SegmentError> {
        segment.set_token_capacity(token, capacity)?;
        Ok(Turns { segment, token, order, turn: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread begins to wait for a turn, to move so many bytes.
    pub(super) fn queue(&self, bytes: u64) {
        let mut turn = self.lock();
        turn.waiting += 1;
        turn.wanted = turn.wanted.saturating_add(bytes);
    }

    /// Tries to begin or to join a turn; never waits. With `Ok(true)` the thread is out of the queue and has it.
    ///
    /// # Errors
    /// As [`Segment::try_take`].
    pub(super) fn try_begin(&self, bytes: u64) -> Result<bool, SegmentError> {
        let mut turn = self.lock();
        if turn.users > 0 && turn.passed >= TURN_BYTES {
            return Ok(false);
        }
        if turn.users == 0 {
            let Some(guard) = self.segment.try_take(self.token, turn.wanted, self.order)? else { return Ok(false) };
            turn.guard = Some(guard);
            turn.passed = 0;
        }
        turn.users += 1;
        turn.waiting -= 1;
        turn.wanted = turn.wanted.saturating_sub(bytes);
        Ok(true)
    }

    /// A thread waits no longer, without a turn. The wish of the rank goes with its last thread.
    pub(super) fn leave(&self, bytes: u64) {
        let mut turn = self.lock();
        turn.waiting -= 1;
        turn.wanted = turn.wanted.saturating_sub(bytes);
        if turn.waiting == 0
            && let Err(error) = self.segment.withdraw(self.token)
        {
            log::debug!("event=wish-not-withdrawn error={error}");
        }
    }

    /// Counts what goes out in a turn.
    pub(super) fn pass(&self, bytes: u64) {
        self.lock().passed += bytes;
    }

    /// Is it somebody else's turn, before this thread has done all that it has to?
    pub(super) fn is_over(&self) -> bool {
        self.order == Order::RoundRobin && self.lock().passed >= TURN_BYTES
    }

    /// A thread is done with its turn. The last one gives the token back.
    pub(super) fn end(&self) {
        let mut turn = self.lock();
        turn.users -= 1;
        if turn.users == 0 {
            turn.guard = None;
        }
    }
}
