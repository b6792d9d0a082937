//! This rank's turn to flush: a token of the node segment, which the rank's flushing threads share.
//!
//! A turn begins when one thread takes the token and ends when the last thread that uses the token is done. While less than [`TURN_BYTES`]
//! went out in it, another thread of the rank joins it: the link sees one rank either way, and two threads keep it busy better than one.
//! After that the rank queues up anew, so that its neighbours get their turn however much it has to flush.
#![forbid(unsafe_code)]

use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::base::units::MIB;
use crate::segment::{Order, Segment, SegmentError, Token, TokenGuard};
use std::sync::Arc;

/// A turn that has moved this many bytes is not joined any more, and in round robin it is given back. It takes three milliseconds on a link
/// of 25 GB/s, which is long compared with the tenths of a millisecond that handing over takes.
pub(super) const TURN_BYTES: u64 = 64 * MIB;

/// The rank's place in the queue for one token.
pub(super) struct Turns {
    segment: Arc<Segment>,
    token: Token,
    order: Order,
    turn: Lock<Turn>,
}

#[derive(Default)]
struct Turn {
    /// The token, while a thread uses it.
    guard: Option<TokenGuard>,
    /// The number of threads that use the token.
    users: usize,
    /// The number of bytes that were let through in this turn.
    passed: u64,
    /// The number of threads that wait for the next turn; `wanted` is the number of bytes that they have to move.
    waiting: usize,
    wanted: u64,
}

impl Turns {
    /// Takes part in the turns at `token`, which `capacity` ranks may have at once.
    ///
    /// # Errors
    /// As [`Segment::set_token_capacity`].
    pub(super) fn new(segment: Arc<Segment>, token: Token, order: Order, capacity: u32) -> Result<Turns, SegmentError> {
        segment.set_token_capacity(token, capacity)?;
        Ok(Turns { segment, token, order, turn: Lock::at(crate::base::sync::Order::Outer, Turn::default()) })
    }

    fn lock(&self) -> Guard<'_, Turn> {
        self.turn.lock()
    }

    /// A thread begins to wait for a turn, to move `bytes` bytes.
    pub(super) fn queue(&self, bytes: u64) {
        let mut turn = self.lock();
        turn.waiting += 1;
        turn.wanted = turn.wanted.saturating_add(bytes);
    }

    /// Tries to begin or to join a turn; never waits. If this returns `Ok(true)`, the thread has a turn and is no longer in the queue.
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

    /// A thread stops waiting without a turn. When the last waiting thread of the rank stops, the rank's wish is withdrawn.
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

    /// Counts the bytes sent in a turn.
    pub(super) fn pass(&self, bytes: u64) {
        self.lock().passed += bytes;
    }

    /// Is it somebody else's turn, although this thread has not finished?
    pub(super) fn is_over(&self) -> bool {
        self.order == Order::RoundRobin && self.lock().passed >= TURN_BYTES
    }

    /// A thread has finished its turn. The last thread gives the token back.
    pub(super) fn end(&self) {
        let mut turn = self.lock();
        turn.users -= 1;
        if turn.users == 0 {
            turn.guard = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Generation, Incarnation};
    use crate::base::units::GIB;
    use crate::segment::SegmentSpec;

    const LINK: Token = Token::Link(2);

    /// The turns of two ranks of a node, only one of which may have a turn at a time.
    fn ranks(order: Order) -> (tempfile::TempDir, [Turns; 2]) {
        let place =
            tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let spec = SegmentSpec {
            directory: place.path().to_owned(),
            name: "turns".into(),
            job: 1,
            group: 2,
            generation: Generation(3),
            incarnation: Incarnation([4; 16]),
            store: 0,
            budget: 4 * MIB,
            node_ranks: 2,
            group_size: 2,
        };
        let segments = [Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach")];
        let turns = segments.map(|segment| Turns::new(Arc::new(segment), LINK, order, 1).expect("turns"));
        (place, turns)
    }

    fn begins(turns: &Turns, bytes: u64) -> bool {
        turns.try_begin(bytes).expect("usable")
    }

    #[test]
    fn threads_of_a_rank_share_a_turn_until_it_is_long() {
        let (_place, [first, second]) = ranks(Order::FirstCome);
        first.queue(MIB);
        assert!(begins(&first, MIB));
        second.queue(MIB);
        assert!(!begins(&second, MIB));
        first.pass(TURN_BYTES - 1);
        first.queue(MIB);
        assert!(begins(&first, MIB), "its other thread joins");
        first.end();
        assert!(!begins(&second, MIB), "one of them is still at it");
        first.pass(1);
        first.queue(MIB);
        assert!(!begins(&first, MIB), "enough of this turn");
        first.end();
        assert!(!begins(&first, MIB), "the other rank came first");
        assert!(begins(&second, MIB));
        second.end();
        assert!(begins(&first, MIB));
        first.end();
    }

    #[test]
    fn only_in_round_robin_a_turn_ends_before_its_flush() {
        for (order, ends) in [(Order::RoundRobin, true), (Order::ShortestFirst, false), (Order::FirstCome, false)] {
            let (_place, [first, _second]) = ranks(order);
            first.queue(GIB);
            assert!(begins(&first, GIB) && !first.is_over());
            first.pass(TURN_BYTES);
            assert_eq!(first.is_over(), ends, "{order:?}");
            first.end();
            first.queue(GIB);
            assert!(begins(&first, GIB) && !first.is_over(), "a new turn counts anew");
            first.end();
        }
    }

    #[test]
    fn a_rank_wishes_for_what_all_its_threads_have_to_move() {
        let (_place, [first, second]) = ranks(Order::ShortestFirst);
        let blocker = first.segment.try_take(LINK, 1, Order::FirstCome).expect("usable").expect("free");
        first.queue(2 * MIB);
        first.queue(2 * MIB);
        second.queue(3 * MIB);
        assert!(!begins(&first, 2 * MIB) && !begins(&second, 3 * MIB));
        drop(blocker);
        assert!(!begins(&first, 2 * MIB), "four are more than three");
        first.leave(2 * MIB);
        assert!(begins(&first, 2 * MIB), "two are less");
        first.end();
        assert!(begins(&second, 3 * MIB));
        second.end();
    }

    #[test]
    fn the_last_thread_that_gives_up_takes_the_wish_along() {
        let (_place, [first, second]) = ranks(Order::FirstCome);
        let blocker = second.segment.try_take(LINK, 1, Order::FirstCome).expect("usable").expect("free");
        first.queue(MIB);
        first.queue(MIB);
        assert!(!begins(&first, MIB));
        second.queue(MIB);
        assert!(!begins(&second, MIB));
        first.leave(MIB);
        drop(blocker);
        assert!(!begins(&second, MIB), "the other thread still waits");
        first.leave(MIB);
        assert!(begins(&second, MIB));
        second.end();
    }
}
