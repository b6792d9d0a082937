//! Tokens: how the ranks of a node take turns at using what they share, without locks between processes.
//!
//! Two things are better done by a few ranks at a time than by all at once: bursts over a link that several devices share
//! (ICS'19, section 3), and registering memory, which slows down out of proportion when processes compete (HiPC'22, section
//! IV.A). For each such thing the control area has a *token*: a few places, each free or held by a rank, and for each rank a
//! word in which it posts that it waits, and for how many bytes. `layout.rs` shows the words.
//!
//! ```text
//! place    bits 0-15 holder's node rank + 1, 0 for free     16-63 use count, one more with each take
//! wish     0 waits    1-24 ticket, drawn when it began to wait    25-63 bytes in pages of 4096, rounded up
//! ```
//!
//! A place changes by compare-and-swap on the whole word and nothing else. [`Segment::try_take`] posts the wish, looks, and
//! takes a free place if this rank is among the first in the given [`Order`]; it never waits. The caller sleeps for about a
//! millisecond and tries again. Mutual exclusion is the rule; order is a courtesy, with the limits below.
//!
//! # Deaths
//!
//! A waiter that finds a place held by a rank without a liveness lock frees it, by compare-and-swap on the very word that it saw.
//! Because each take raises the use count, a second waiter that found the same fails, even if the same rank (a new process in its
//! place) holds the token again. Wishes of dead ranks are not counted. There are two limits: a killed process whose forked child lives
//! on counts as alive (see [`super`]), and a rank that closes its segment counts as dead, so it gives its tokens back first.
//!
//! # Hung ranks
//!
//! A rank that lives and stops trying (or forgot [`Segment::withdraw`]) would keep the others waiting although a place is
//! free. After 1000 tries that found a place free and the same wish ahead, a rank ignores that wish until it changes. A
//! *holder* that hangs keeps its place: nobody can tell whether its transfer still runs.
#![forbid(unsafe_code)]

#[cfg(test)]
mod schedules;

use super::SegmentError;
use super::layout::{SegmentHeader, TOKEN_HOLDERS_MAX, TOKEN_LINKS, TOKENS, token_word};
use super::live::{Segment, Shared};
use super::map::Map;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::units::PAGE;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How often a rank finds a place free and the same wish ahead before it ignores that wish.
const PATIENCE: u32 = 1000;

/// What the ranks of a node take turns at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Token {
    /// A burst on a shared link, numbered from 0 to 15; the ranks agree on which link has which number.
    Link(u32),
    /// Registering memory with a device.
    Pinning,
}

/// Who is first among the ranks that wait. All ranks should use the same order for a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// The rank that began to wait first. Nobody is passed over.
    #[default]
    FirstCome,
    /// The rank that wants the fewest bytes (in pages); among equals, the one that came first. The total wait is the shortest,
    /// but a rank with a long transfer can be passed over for as long as short ones keep coming.
    ShortestFirst,
    /// The next waiting rank, by number, after the one that was served last.
    RoundRobin,
}

/// The state of waiting that this process keeps to itself, one for each token.
pub(super) struct Queue(Lock<[Patience; TOKENS as usize]>);

impl Default for Queue {
    fn default() -> Queue {
        Queue(Lock::unordered(Default::default()))
    }
}

/// How often in a row this rank has found a place free and the same wish ahead, and which wishes it ignores.
#[derive(Default)]
struct Patience {
    ahead: u64,
    tries: u32,
    passed: Vec<(u32, u64)>,
}

impl Patience {
    /// Must this rank still wait for this wish?
    fn respects(&self, rank: u32, wish: u64) -> bool {
        !self.passed.contains(&(rank, wish))
    }

    /// Counts one more try that found a place free and this wish ahead.
    fn on_wait(&mut self, rank: u32, wish: u64) {
        self.tries = if self.ahead == wish { self.tries + 1 } else { 1 };
        self.ahead = wish;
        if self.tries >= PATIENCE {
            log::warn!("event=token-wish-passed node_rank={rank} tries={PATIENCE}");
            self.passed.push((rank, wish));
            self.tries = 0;
        }
    }
}

impl Segment {
    /// Takes a token if a place is free and no rank that waits comes before this one. Otherwise the wish stays posted, with
    /// the time of the first try and the bytes of this one. Then sleep and try again, or [`Segment::withdraw`] the wish.
    ///
    /// A rank has one wish for each token. If several of its threads wait for the same one, the thread that tries at the
    /// right moment takes the token, and the others queue up again.
    ///
    /// # Blocking
    /// Never blocks; takes a few microseconds.
    ///
    /// # Errors
    /// [`SegmentError::Limit`] for a link above 15, [`SegmentError::Closed`], [`SegmentError::Forked`].
    pub fn try_take(&self, token: Token, bytes: u64, order: Order) -> Result<Option<TokenGuard>, SegmentError> {
        let shared = &self.shared;
        shared.check_open()?;
        let index = index_of(token)?;
        let table = shared.table(index);
        let mut queue = shared.queue.0.lock();
        let patience = &mut queue[index as usize];
        let is_alive = |rank: u32| rank == shared.node_rank || self.is_peer_alive(rank).unwrap_or(true);
        let wish = table.post(bytes);
        let (free, places) = table.free(is_alive);
        if free == 0 {
            return Ok(None);
        }
        patience.passed.retain(|(rank, wish)| table.wish(*rank).load(Acquire) == *wish);
        let may_count = |rank, word| patience.respects(rank, word) && is_alive(rank);
        let ahead = table.ahead(order, wish, free, may_count);
        if let (Some((rank, word)), true) = (ahead.first(), ahead.len() >= free) {
            patience.on_wait(*rank, *word);
            return Ok(None);
        }
        let taken = places.into_iter().find_map(|place| table.take(place));
        Ok(taken.map(|(at, word)| TokenGuard { shared: Arc::clone(shared), at, word }))
    }

    /// Withdraws this rank's wish for a token. Harmless if the rank has none.
    ///
    /// # Errors
    /// As [`Segment::try_take`].
    pub fn withdraw(&self, token: Token) -> Result<(), SegmentError> {
        self.shared.check_open()?;
        let index = index_of(token)?;
        let _queue = self.shared.queue.0.lock();
        self.shared.table(index).own_wish().store(0, Release);
        Ok(())
    }

    /// Says how many ranks of the node may hold a token at once: 1 to 8, the same for all ranks, initially 1. A smaller
    /// number takes effect as the present holders give the token back.
    ///
    /// # Errors
    /// [`SegmentError::Limit`] for another number or a link above 15, [`SegmentError::Closed`], [`SegmentError::Forked`].
    pub fn set_token_capacity(&self, token: Token, capacity: u32) -> Result<(), SegmentError> {
        self.shared.check_open()?;
        let table = self.shared.table(index_of(token)?);
        if capacity == 0 || capacity > TOKEN_HOLDERS_MAX {
            let allowed = format!("1 to {TOKEN_HOLDERS_MAX}");
            return Err(SegmentError::Limit { what: "the capacity of a token", value: capacity.into(), allowed });
        }
        table.word(token_word::CAPACITY).store(capacity.into(), Release);
        Ok(())
    }
}

impl Shared {
    fn table(&self, token: u32) -> Table<'_> {
        Table { map: &self.map, header: &self.header, node_rank: self.node_rank, token }
    }

    /// Frees what a killed process left in the name of this rank, whose place in the segment is taken anew.
    pub(super) fn clear_tokens(&self) {
        for token in 0..TOKENS {
            let table = self.table(token);
            table.own_wish().store(0, Release);
            table.free(|rank| rank != self.node_rank);
        }
    }
}

/// A token that this rank holds; dropping it gives the token back. It keeps this rank's place in the segment, unless the segment is closed.
pub struct TokenGuard {
    shared: Arc<Shared>,
    /// The place's word, and what it says while we hold it.
    at: u64,
    word: u64,
}

impl Drop for TokenGuard {
    fn drop(&mut self) {
        // In a forked child the token belongs to the parent. If somebody has already freed the place (because this rank
        // closed its segment before), the word is a different one.
        if self.shared.map.is_mine() {
            give_back(self.shared.map.word(self.at), self.word);
        }
    }
}

impl fmt::Debug for TokenGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenGuard(node rank {}, use {})", self.shared.node_rank, self.word >> 16)
    }
}

fn index_of(token: Token) -> Result<u32, SegmentError> {
    match token {
        Token::Link(link) if link < TOKEN_LINKS => Ok(link),
        Token::Link(link) => {
            let allowed = format!("less than {TOKEN_LINKS}");
            Err(SegmentError::Limit { what: "the number of a link", value: link.into(), allowed })
        }
        Token::Pinning => Ok(TOKEN_LINKS),
    }
}

/// Who holds a place.
fn holder(word: u64) -> Option<u32> {
    (word as u16).checked_sub(1).map(u32::from)
}

/// The word that a free place gets with its next use.
fn taken(word: u64, node_rank: u32) -> u64 {
    (word | 0xffff).wrapping_add(1) | (u64::from(node_rank) + 1)
}

/// Called before each access to a word that other ranks change. Tests let another rank run here.
fn between_accesses() {
    #[cfg(test)]
    schedules::switch();
}

/// Frees a place if it still holds the word that was seen.
fn give_back(place: &AtomicU64, seen: u64) -> bool {
    between_accesses();
    place.compare_exchange(seen, seen & !0xffff, AcqRel, Relaxed).is_ok()
}

const TICKETS: u32 = 1 << 24;
const PAGES_MAX: u64 = (1 << 39) - 1;

/// A wish as a word; never zero.
fn pack_wish(ticket: u32, bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE).min(PAGES_MAX);
    pages << 25 | u64::from(ticket % TICKETS) << 1 | 1
}

fn pages_of(wish: u64) -> u64 {
    wish >> 25
}

fn ticket_of(wish: u64) -> u32 {
    (wish >> 1) as u32 % TICKETS
}

/// By how many tickets `wish` is older (negative) or younger than `other`. Tickets wrap around, but no wish that is still
/// posted is half the circle (eight million tickets) old.
fn age(wish: u64, other: u64) -> i64 {
    let apart = i64::from(ticket_of(wish).wrapping_sub(ticket_of(other)) % TICKETS);
    if apart < i64::from(TICKETS / 2) { apart } else { apart - i64::from(TICKETS) }
}

/// One token, as one rank sees it.
struct Table<'a> {
    map: &'a Map,
    header: &'a SegmentHeader,
    node_rank: u32,
    token: u32,
}

impl Table<'_> {
    /// The word at an offset, for one access.
    fn word(&self, at: u64) -> &AtomicU64 {
        between_accesses();
        self.map.word(self.header.token_offset(self.token) + at)
    }

    /// A rank's wish, for one access.
    fn wish(&self, node_rank: u32) -> &AtomicU64 {
        between_accesses();
        self.map.word(self.header.wish_offset(node_rank, self.token))
    }

    fn own_wish(&self) -> &AtomicU64 {
        self.wish(self.node_rank)
    }

    fn capacity(&self) -> u32 {
        (self.word(token_word::CAPACITY).load(Acquire) as u32).clamp(1, TOKEN_HOLDERS_MAX)
    }

    /// Posts that this rank waits. If it waits already, it keeps its ticket. Returns the wish.
    fn post(&self, bytes: u64) -> u64 {
        let ticket = match self.own_wish().load(Relaxed) {
            0 => self.word(token_word::TICKETS).fetch_add(1, AcqRel) as u32,
            before => ticket_of(before),
        };
        let wish = pack_wish(ticket, bytes);
        self.own_wish().store(wish, Release);
        wish
    }

    /// Frees what dead ranks hold. Returns how many more ranks may take a place now, and which places are free.
    fn free(&self, is_alive: impl Fn(u32) -> bool) -> (usize, Vec<u32>) {
        let capacity = self.capacity();
        let mut free = Vec::new();
        let mut held = 0;
        for place in 0..TOKEN_HOLDERS_MAX {
            let word = self.word(u64::from(place) * 8);
            let seen = word.load(Acquire);
            match holder(seen) {
                Some(rank) if is_alive(rank) => held += 1,
                Some(rank) if give_back(word, seen) => {
                    log::info!("event=token-freed token={} node_rank={rank}", self.token);
                    free.push(place);
                }
                // Somebody else has freed the place, and may have taken it.
                Some(_) => held += 1,
                None => free.push(place),
            }
        }
        free.retain(|place| *place < capacity);
        ((capacity as usize).saturating_sub(held), free)
    }

    /// The first `count` wishes of other ranks, in order, that come before `mine`.
    fn ahead(&self, order: Order, mine: u64, count: usize, may_count: impl Fn(u32, u64) -> bool) -> Vec<(u32, u64)> {
        let served = self.word(token_word::SERVED).load(Relaxed);
        let ranks = u64::from(self.header.node_ranks);
        let key = |rank: u32, wish: u64| match order {
            Order::FirstCome => (0, age(wish, mine)),
            Order::ShortestFirst => (pages_of(wish), age(wish, mine)),
            // `served` is the rank's number + 1, which is the next rank.
            Order::RoundRobin => ((u64::from(rank) + ranks - served % ranks) % ranks, 0),
        };
        let own = key(self.node_rank, mine);
        let mut ahead: Vec<(u32, u64)> = (0..self.header.node_ranks)
            .filter(|rank| *rank != self.node_rank)
            .map(|rank| (rank, self.wish(rank).load(Acquire)))
            .filter(|(rank, wish)| *wish != 0 && key(*rank, *wish) < own)
            .collect();
        ahead.sort_unstable_by_key(|(rank, wish)| key(*rank, *wish));
        // Asking whether a rank is alive takes a system call, so the ranks are asked in order, and no more of them than needed.
        ahead.into_iter().filter(|(rank, wish)| may_count(*rank, *wish)).take(count).collect()
    }

    /// Takes a free place, unless somebody is quicker. Returns the offset of its word, and the word.
    fn take(&self, place: u32) -> Option<(u64, u64)> {
        let at = u64::from(place) * 8;
        let seen = self.word(at).load(Acquire);
        let word = taken(seen, self.node_rank);
        // AcqRel: we see what the previous holder did while it had the token.
        let is_ours = holder(seen).is_none() && self.word(at).compare_exchange(seen, word, AcqRel, Relaxed).is_ok();
        if is_ours {
            self.own_wish().store(0, Release);
            self.word(token_word::SERVED).store(u64::from(self.node_rank) + 1, Relaxed);
        }
        is_ours.then_some((self.header.token_offset(self.token) + at, word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Generation, Incarnation};
    use crate::base::units::MIB;
    use crate::segment::SegmentSpec;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    pub(super) const LINK: Token = Token::Link(3);

    /// The handles of all ranks of a node, in one process.
    pub(super) fn ranks<const N: usize>() -> (tempfile::TempDir, [Segment; N]) {
        let place =
            tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let spec = spec(place.path(), N as u32);
        let segments = std::array::from_fn(|rank| match rank {
            0 => Segment::create(&spec).expect("create"),
            _ => Segment::attach(&spec, rank as u32).expect("attach"),
        });
        (place, segments)
    }

    pub(super) fn spec(directory: &std::path::Path, node_ranks: u32) -> SegmentSpec {
        SegmentSpec {
            directory: directory.to_owned(),
            name: "tokens".into(),
            job: 1,
            group: 1,
            generation: Generation(1),
            incarnation: Incarnation([1; 16]),
            store: 0,
            budget: 0,
            node_ranks,
            group_size: node_ranks,
        }
    }

    fn take(segment: &Segment, bytes: u64, order: Order) -> Option<TokenGuard> {
        segment.try_take(LINK, bytes, order).expect("usable")
    }

    #[test]
    fn words_say_what_was_put_in() {
        for (word, rank) in [(0, 0), (0xffff << 16, 16383), (!0xffff, 7)] {
            let next = taken(word, rank);
            assert_eq!((holder(word), holder(next)), (None, Some(rank)));
            assert_eq!(next >> 16, (word >> 16).wrapping_add(1) & (u64::MAX >> 16));
        }
        for (ticket, bytes) in [(0, 0), (TICKETS - 1, 4096), (5, 4097), (TICKETS + 5, u64::MAX)] {
            let wish = pack_wish(ticket, bytes);
            assert_ne!(wish, 0);
            assert_eq!((ticket_of(wish), pages_of(wish)), (ticket % TICKETS, bytes.div_ceil(4096).min(PAGES_MAX)));
        }
        let (old, new) = (pack_wish(TICKETS - 2, 0), pack_wish(3, 0));
        assert_eq!((age(old, new), age(new, old), age(old, old)), (-5, 5, 0), "tickets wrap");
    }

    #[test]
    fn a_token_that_was_freed_is_not_freed_again() {
        let place = AtomicU64::new(taken(0, 4));
        let seen = place.load(Acquire);
        assert!(give_back(&place, seen), "the first waiter frees the dead rank's place");
        let again = taken(place.load(Acquire), 4);
        place.store(again, Release);
        assert!(!give_back(&place, seen), "the same rank holds it again: the second waiter saw another use");
        assert_eq!(place.load(Acquire), again);
    }

    #[test]
    fn one_holder_at_a_time_and_each_token_for_itself() {
        let (_place, [one, two]) = ranks();
        let held = take(&one, 1, Order::FirstCome).expect("free");
        assert!(take(&two, 1, Order::FirstCome).is_none() && take(&one, 1, Order::FirstCome).is_none());
        let other = two.try_take(Token::Link(15), 1, Order::FirstCome).expect("usable").expect("another link");
        let pinning = two.try_take(Token::Pinning, 1, Order::FirstCome).expect("usable").expect("another token");
        one.withdraw(LINK).expect("usable");
        drop(held);
        assert!(take(&two, 1, Order::FirstCome).is_some());
        drop((other, pinning));
        assert!(matches!(one.try_take(Token::Link(16), 1, Order::FirstCome), Err(SegmentError::Limit { .. })));
        one.close(false).expect("close");
        assert!(matches!(one.try_take(LINK, 1, Order::FirstCome), Err(SegmentError::Closed)));
        assert!(matches!(one.withdraw(LINK), Err(SegmentError::Closed)));
    }

    #[test]
    fn a_capacity_of_two_has_two_holders() {
        let (_place, [one, two, three]) = ranks();
        for bad in [0, 9] {
            assert!(matches!(one.set_token_capacity(LINK, bad), Err(SegmentError::Limit { .. })));
        }
        one.set_token_capacity(LINK, 2).expect("usable");
        let (a, b) = (take(&one, 1, Order::FirstCome).expect("free"), take(&two, 1, Order::FirstCome).expect("free"));
        assert!(take(&three, 1, Order::FirstCome).is_none());
        two.set_token_capacity(LINK, 1).expect("usable");
        drop(a);
        assert!(take(&three, 1, Order::FirstCome).is_none(), "one is held, in whichever place");
        drop(b);
        assert!(take(&three, 1, Order::FirstCome).is_some());
    }

    /// Ranks 1 to 3 wait in the order 2, 3, 1, with 30, 10 and 20 MiB; then the holder, rank 0 or 2, gives the token back.
    /// Returns the order in which they are served.
    fn served(order: Order) -> Vec<usize> {
        let (_place, all) = ranks::<4>();
        let bytes = [0, 20 * MIB, 30 * MIB, 10 * MIB];
        let mut held = take(&all[0], MIB, order);
        assert!(held.is_some());
        for rank in [2, 3, 1] {
            assert!(take(&all[rank], bytes[rank], order).is_none());
        }
        let mut waiting = vec![1, 2, 3];
        let mut served = Vec::new();
        while !waiting.is_empty() {
            drop(held.take());
            // All of them try twice, in both directions: only one may succeed.
            let tries = waiting.iter().chain(waiting.iter().rev());
            let won: Vec<usize> = tries
                .copied()
                .filter(|rank| {
                    let guard = take(&all[*rank], bytes[*rank], order);
                    let is_taken = guard.is_some();
                    held = held.take().or(guard);
                    is_taken
                })
                .collect();
            let [winner] = won[..] else { panic!("{won:?} of {waiting:?}") };
            all[winner].withdraw(LINK).expect("usable");
            waiting.retain(|rank| *rank != winner);
            served.push(winner);
        }
        served
    }

    #[test]
    fn each_order_serves_whom_it_says() {
        assert_eq!(served(Order::FirstCome), [2, 3, 1]);
        assert_eq!(served(Order::ShortestFirst), [3, 1, 2]);
        assert_eq!(served(Order::RoundRobin), [1, 2, 3]);
    }

    #[test]
    fn a_wish_that_was_withdrawn_or_whose_rank_is_gone_holds_nobody_up() {
        let (_place, [one, two, three]) = ranks();
        let held = take(&one, 1, Order::FirstCome);
        assert!(take(&two, 1, Order::FirstCome).is_none() && take(&three, 1, Order::FirstCome).is_none());
        drop(held);
        assert!(take(&three, 1, Order::FirstCome).is_none(), "rank 1 came first");
        two.withdraw(LINK).expect("usable");
        let held = take(&three, 1, Order::FirstCome);
        assert!(
            held.is_some() && take(&two, 1, Order::FirstCome).is_none() && take(&one, 1, Order::FirstCome).is_none()
        );
        drop((two, held));
        assert!(take(&one, 1, Order::FirstCome).is_some(), "rank 1 has left");
    }

    #[test]
    fn a_rank_that_stops_trying_is_passed_over_and_keeps_its_turn_when_it_returns() {
        let (_place, [one, two, three]) = ranks();
        let held = take(&one, 1, Order::FirstCome);
        assert!(take(&two, 1, Order::FirstCome).is_none() && take(&three, 1, Order::FirstCome).is_none());
        drop(held);
        for attempt in 0..PATIENCE {
            assert!(take(&three, 1, Order::FirstCome).is_none(), "try {attempt}");
        }
        for _ in 0..3 {
            assert!(take(&three, 1, Order::FirstCome).is_some(), "at once from now on");
        }
        assert!(take(&one, 1, Order::FirstCome).is_none(), "others have their own patience");
        assert!(take(&two, 1, Order::FirstCome).is_some());
        let held = take(&one, 1, Order::FirstCome).expect("first now");
        assert!(take(&two, 1, Order::FirstCome).is_none());
        drop(held);
        assert!(take(&three, 1, Order::FirstCome).is_none(), "a new wish is respected");
    }

    #[test]
    fn a_rank_that_begins_anew_finds_nothing_of_its_own() {
        let (place, [one, two]) = ranks();
        let held = take(&two, 1, Order::FirstCome).expect("free");
        assert!(two.try_take(LINK, 1, Order::FirstCome).expect("usable").is_none());
        two.close(false).expect("close");
        let again = Segment::attach(&spec(place.path(), 2), 1).expect("attach");
        let new = take(&again, 1, Order::FirstCome).expect("what it held before is free");
        drop(held);
        assert!(take(&one, 1, Order::FirstCome).is_none(), "the old guard gives back its own use only");
        drop(new);
        assert!(take(&one, 1, Order::FirstCome).is_some());
    }

    /// All ranks take the token again and again. Checks that never more than `capacity` of them hold it. Returns the maximum
    /// number of times that others were served while one rank waited. Waits during which a rank stood still for long do not
    /// count, because the others may pass over a rank that does not come.
    fn contend(order: Order, capacity: u32) -> usize {
        const ROUNDS: usize = 25;
        let (_place, all) = ranks::<4>();
        all[0].set_token_capacity(LINK, capacity).expect("usable");
        let (inside, services) = (AtomicU32::new(0), AtomicU32::new(0));
        let worst = std::thread::scope(|scope| {
            let ranks: Vec<_> = all
                .iter()
                .zip(1u64..)
                .map(|(segment, rank)| {
                    let (inside, services) = (&inside, &services);
                    scope.spawn(move || {
                        let mut worst = 0;
                        for _ in 0..ROUNDS {
                            let mut since = None;
                            let mut still = Duration::ZERO;
                            let mut tried = Instant::now();
                            let guard = loop {
                                still = still.max(tried.elapsed());
                                tried = Instant::now();
                                if let Some(guard) = take(segment, rank * MIB, order) {
                                    break guard;
                                }
                                // Only now is it certain that the wish is posted.
                                since.get_or_insert_with(|| services.load(Acquire));
                                std::thread::sleep(Duration::from_millis(1));
                            };
                            assert!(inside.fetch_add(1, AcqRel) < capacity, "too many hold the token");
                            let before = services.fetch_add(1, AcqRel);
                            if still < Duration::from_millis(500) {
                                worst = worst.max(since.map_or(0, |since| before - since));
                            }
                            std::thread::sleep(Duration::from_micros(200));
                            inside.fetch_sub(1, AcqRel);
                            drop(guard);
                        }
                        worst as usize
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("thread")).max()
        });
        assert_eq!(services.load(Acquire) as usize, 4 * ROUNDS, "everybody was served");
        worst.unwrap_or(0)
    }

    #[test]
    fn contending_ranks_exclude_each_other_and_none_is_passed_over_twice() {
        for order in [Order::FirstCome, Order::RoundRobin] {
            // While one rank waits, each of the three others is served at most once by right, and once more if it looked
            // just before the wish was posted.
            let worst = contend(order, 1);
            assert!(worst <= 6, "{order:?}: {worst}");
        }
        contend(Order::ShortestFirst, 1);
        contend(Order::FirstCome, 2);
    }
}
