//! The words of a token under many schedules: ranks are coroutines of one thread, and before each access to a word, a scheduler
//! decides which of them continues. Each run of a test uses the same schedules, and a schedule that fails is printed.
//!
//! This finds accesses in the wrong order, but not memory orderings that are too weak: every rank sees each access at once.

use super::tests::{LINK, ranks, spec};
use super::{Order, Segment, TokenGuard, holder};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use shuttle::{Config, Runner};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

/// How many schedules a test goes through of each kind: those that switch anywhere, and those that switch at only a few places and
/// let a rank continue everywhere else. Only the latter leave a rank standing between two accesses while another does all its work.
const RANDOM: usize = 300;
const LONG: usize = 1000;
/// At how many places a schedule of the second kind switches.
const LONG_SWITCHES: usize = 3;

thread_local! {
    /// Does a scheduler control this thread? Other tests use tokens without one.
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// Lets another rank run, if the scheduler wants that.
pub(super) fn switch() {
    if IS_SCHEDULED.get() {
        // This is not a yield, which would ask for another rank, so that no rank would run for long.
        thread::sleep(Duration::ZERO);
    }
}

/// Runs `body` under schedules of both kinds.
fn under_schedules(body: impl Fn() + Clone + Send + Sync + 'static) {
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(RandomScheduler::new_from_seed(1, RANDOM)),
        Box::new(PctScheduler::new_from_seed(2, LONG_SWITCHES, LONG)),
    ];
    for scheduler in schedulers {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        IS_SCHEDULED.set(true);
        Runner::new(scheduler, config).run(body.clone());
        IS_SCHEDULED.set(false);
    }
}

/// Tries until it has the token.
fn take(segment: &Segment, bytes: u64, order: Order) -> TokenGuard {
    loop {
        match segment.try_take(LINK, bytes, order).expect("usable") {
            Some(guard) => return guard,
            None => thread::yield_now(),
        }
    }
}

/// Which ranks are where only holders of the token may be.
#[derive(Default)]
struct Room {
    inside: AtomicU32,
    visits: AtomicU32,
}

impl Room {
    fn visit(&self, capacity: u32) {
        assert!(self.inside.fetch_add(1, SeqCst) < capacity, "too many hold the token");
        switch();
        self.visits.fetch_add(1, SeqCst);
        self.inside.fetch_sub(1, SeqCst);
    }
}

/// Checks that nobody holds the token or waits for it. Returns how often it was taken.
fn uses(segment: &Segment) -> u64 {
    let table = segment.shared.table(super::index_of(LINK).expect("a link"));
    let places = (0..super::TOKEN_HOLDERS_MAX).map(|place| table.word(u64::from(place) * 8).load(Acquire));
    let uses = places.map(|word| {
        assert_eq!(holder(word), None, "all of them were given back");
        word >> 16
    });
    uses.sum()
}

#[test]
fn no_schedule_lets_more_ranks_hold_a_token_than_it_has_places() {
    for (order, capacity) in [
        (Order::FirstCome, 1),
        (Order::ShortestFirst, 1),
        (Order::RoundRobin, 1),
        (Order::FirstCome, 2),
        (Order::RoundRobin, 2),
    ] {
        // Only tickets and use counts differ between schedules.
        let (_place, all) = ranks::<3>();
        all[0].set_token_capacity(LINK, capacity).expect("usable");
        let all = all.map(Arc::new);
        under_schedules(move || {
            let (room, before) = (Arc::new(Room::default()), uses(&all[0]));
            let visitors = all.iter().zip([3, 1, 2]).map(|(segment, pages)| {
                let (segment, room) = (segment.clone(), room.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let _guard = take(&segment, pages * 4096, order);
                        room.visit(capacity);
                    }
                })
            });
            visitors.collect::<Vec<_>>().into_iter().for_each(|visitor| visitor.join().expect("no panic"));
            assert_eq!(room.visits.load(SeqCst), 6);
            assert_eq!(uses(&all[0]) - before, 6, "each take is counted, and only those");
        });
    }
}

/// The holder dies, and two ranks notice that. A new process in its place takes the token again, while what the old one
/// believed it held is given back late.
#[test]
fn no_schedule_frees_a_dead_holder_s_place_twice() {
    under_schedules(|| {
        let (place, all) = ranks::<3>();
        let room = Arc::new(Room::default());
        let [one, two, dead] = all;
        let left = take(&dead, 1, Order::FirstCome);
        dead.close(false).expect("close");
        let one = Arc::new(one);
        let waiters = [one.clone(), Arc::new(two)].map(|segment| {
            let room = room.clone();
            thread::spawn(move || {
                let _guard = take(&segment, 1, Order::FirstCome);
                room.visit(1);
            })
        });
        let (node, there) = (spec(place.path(), 3), room.clone());
        let new = thread::spawn(move || {
            let again = Segment::attach(&node, 2).expect("attach");
            let guard = take(&again, 1, Order::FirstCome);
            drop(left);
            there.visit(1);
            drop(guard);
        });
        waiters.into_iter().chain([new]).for_each(|rank| rank.join().expect("no panic"));
        assert_eq!((room.visits.load(SeqCst), uses(&one)), (3, 4));
    });
}
