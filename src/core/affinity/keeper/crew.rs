//! The threads of one rank, those that exist and those that start later, and where they are to go.
//!
//! A thread is identified by its role, its name, and its place by age among the threads of that role and name. It is served once: what
//! the application does with it afterwards is the application's business, and when a thread ends, the others do not move up.
#![forbid(unsafe_code)]

use crate::affinity::cpus::Cpus;
use crate::affinity::given::Given;
use crate::affinity::mapping::Loss;
use crate::affinity::pinning::Pin;
use crate::affinity::record::{Record, Role, ThreadPlace};
use crate::affinity::threads::{self, Thread};
use std::collections::{BTreeMap, BTreeSet};

/// Where threads are to go.
pub(super) enum Wish {
    /// Nowhere.
    Nothing,
    /// Where a record says.
    Recorded(Box<Recorded>),
    /// Where a policy puts them.
    Pinned(Pin),
}

/// What a record wants for threads, on this machine.
pub(super) struct Recorded {
    /// It is mapped again when it turns out that the job was given more CPUs than was known.
    pub record: Record,
    /// Threads that were pinned, with the masks that they get.
    pub pinned: Vec<ThreadPlace>,
    /// Threads that were free to run where the job may. They are left alone.
    pub free: Vec<ThreadPlace>,
    /// The mask of the main thread before the restart. Threads that start later get this mask if they inherit what the restart gave the
    /// main thread, and are not among the pinned ones.
    pub before: Cpus,
}

/// A thread that is served now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival<'a> {
    pub thread: &'a Thread,
    /// How a record names it.
    pub place: ThreadPlace,
    /// The thread did not exist when the wish was made.
    pub is_late: bool,
}

pub(super) struct Crew {
    /// The thread that holds the session.
    pub main: i32,
    /// What the job has on this node, as far as is known.
    pub given: Given,
    pub wish: Wish,
    /// How many threads there were when arrivals were last looked for.
    pub count: Option<u64>,
    /// Threads, by number and start time, that have been served.
    served: BTreeSet<(i32, u64)>,
    /// Threads that a policy has placed.
    pub placed: usize,
    /// The main thread has its own place, rather than the places of all pinned threads.
    pub is_main_placed: bool,
    has_widened: bool,
    /// The next place by age, for each role and name.
    next: BTreeMap<(Role, String), u32>,
    is_late: bool,
}

impl Crew {
    pub fn new(given: Given) -> Crew {
        let (served, next) = Default::default();
        let (main, wish) = (threads::own_id(), Wish::Nothing);
        Crew {
            main,
            given,
            wish,
            count: None,
            served,
            placed: 0,
            is_main_placed: false,
            has_widened: false,
            next,
            is_late: false,
        }
    }

    /// Makes a wish, for which all threads are to be served anew.
    pub fn wish(&mut self, wish: Wish) {
        self.wish = wish;
        self.begin();
        self.placed = 0;
        self.is_late = false;
    }

    /// Lets all threads be served again.
    pub fn begin(&mut self) {
        self.is_main_placed = false;
        self.served.clear();
        self.next.clear();
        self.count = None;
    }

    /// Are there threads that may not have been served?
    pub fn may_have_arrivals(&self, count: Option<u64>) -> bool {
        !matches!(self.wish, Wish::Nothing) && (self.has_widened || count.is_none() || count != self.count)
    }

    /// The living threads (the oldest first) that have not been served, each once.
    pub fn arrivals<'a>(&mut self, live: &'a [Thread]) -> Vec<Arrival<'a>> {
        self.count = Some(live.len() as u64);
        let alive: BTreeSet<(i32, u64)> = live.iter().map(|thread| (thread.id, thread.started)).collect();
        self.served.retain(|key| alive.contains(key));
        let mut arrivals = Vec::new();
        for thread in live {
            if !self.served.insert((thread.id, thread.started)) {
                continue;
            }
            let (role, name) = (threads::role(thread, self.main), thread.name.clone());
            let next = self.next.entry((role, name.clone())).or_default();
            let place = ThreadPlace { role, name, order: *next, cpus: thread.cpus.clone() };
            *next += 1;
            arrivals.push(Arrival { thread, place, is_late: self.is_late });
        }
        self.is_late = true;
        arrivals
    }

    /// Takes note of where the application's threads may run: without a launcher, nothing else says what the job was given.
    pub fn widen(&mut self, live: &[Thread]) {
        if !self.given.is_jobs {
            let before = self.given.cpus.len();
            let of_application = live.iter().filter(|thread| threads::role(thread, self.main) != Role::Bivouac);
            of_application.for_each(|thread| self.given.cpus.extend(&thread.cpus));
            self.has_widened |= self.given.cpus.len() > before;
        }
    }

    /// Has it become known since the last call that the job was given more?
    pub fn take_widened(&mut self) -> bool {
        std::mem::take(&mut self.has_widened)
    }
}

impl Recorded {
    /// Is it one of the pinned threads?
    pub fn is_pinned(&self, place: &ThreadPlace) -> bool {
        self.pinned.iter().any(|pinned| is_same(pinned, place))
    }

    /// The mask of the main thread, if that was pinned.
    pub fn main(&self) -> Option<&Cpus> {
        self.pinned.iter().find(|place| place.role == Role::Main).map(|place| &place.cpus)
    }

    /// The mask of the main thread until the other threads exist: libraries that start threads count the CPUs that it may use.
    pub fn all(&self) -> Cpus {
        self.pinned.iter().flat_map(|place| &place.cpus).copied().collect()
    }

    /// The loss to report if the threads were bound within `given` before the restart, and now leave the CPUs that they were bound to.
    pub fn rebound(&self, given: &Cpus) -> Option<Loss> {
        let all = self.all();
        let is_bound = self.before != *given && self.before.is_subset(given);
        (is_bound && !all.is_subset(&self.before)).then(|| Loss::Rebound(self.before.clone(), all))
    }

    /// The mask for a thread that has arrived; `None`: it stays as it is.
    pub fn mask(&self, arrival: &Arrival<'_>) -> Option<Cpus> {
        let main = self.main();
        if arrival.place.role == Role::Main {
            return main.map(|_| self.all());
        }
        if let Some(pinned) = self.pinned.iter().find(|place| is_same(place, &arrival.place)) {
            return Some(pinned.cpus.clone());
        }
        let cpus = &arrival.thread.cpus;
        let has_inherited =
            arrival.is_late && arrival.place.role == Role::Other && (Some(cpus) == main || *cpus == self.all());
        (main.is_some() && has_inherited).then(|| self.before.clone())
    }
}

/// Do these name the same thread? The thread that holds the session may have another name.
pub(super) fn is_same(a: &ThreadPlace, b: &ThreadPlace) -> bool {
    (a.role, a.order) == (b.role, b.order) && (a.role == Role::Main || a.name == b.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &[usize]) -> Cpus {
        list.iter().copied().collect()
    }

    fn thread(id: i32, name: &str, mask: &[usize]) -> Thread {
        Thread { id, name: name.into(), started: id as u64, cpus: cpus(mask) }
    }

    fn crew(main: i32, is_jobs: bool) -> Crew {
        let mut crew = Crew::new(Given { cpus: cpus(&[0]), is_jobs });
        crew.main = main;
        crew
    }

    fn orders(arrivals: &[Arrival<'_>]) -> Vec<(i32, u32, bool)> {
        arrivals.iter().map(|arrival| (arrival.thread.id, arrival.place.order, arrival.is_late)).collect()
    }

    #[test]
    fn a_thread_is_served_once_and_keeps_its_place_when_others_end() {
        let mut crew = crew(1, true);
        let mut live = vec![thread(1, "app", &[0]), thread(2, "app", &[0]), thread(3, "app", &[0])];
        assert_eq!(orders(&crew.arrivals(&live)), [(1, 0, false), (2, 0, false), (3, 1, false)]);
        assert_eq!(orders(&crew.arrivals(&live)), []);
        live.remove(1);
        live.push(thread(4, "app", &[0]));
        assert_eq!(orders(&crew.arrivals(&live)), [(4, 2, true)], "not in the place of the one that has ended");
        crew.wish(Wish::Pinned(Pin::Compact));
        assert_eq!(orders(&crew.arrivals(&live)), [(1, 0, false), (3, 0, false), (4, 1, false)]);
    }

    #[test]
    fn what_was_given_is_learnt_from_threads_only_where_no_launcher_says_it() {
        let mut own = crew(1, false);
        own.wish = Wish::Pinned(Pin::Compact);
        own.widen(&[thread(1, "app", &[0]), thread(2, "bvk-comm", &[9])]);
        assert!(!own.take_widened());
        own.widen(&[thread(1, "app", &[3]), thread(2, "app", &[0])]);
        own.count = Some(1);
        assert!(own.may_have_arrivals(Some(1)), "nothing has come, but it may fit now");
        assert!(own.take_widened() && !own.take_widened());
        assert_eq!(own.given.cpus, cpus(&[0, 3]));
        let mut told = crew(1, true);
        told.widen(&[thread(1, "app", &[3])]);
        assert!(!told.take_widened());
        assert_eq!(told.given.cpus, cpus(&[0]));
    }

    #[test]
    fn the_main_thread_shows_all_cpus_until_others_come_and_strangers_are_let_out_of_what_they_inherit() {
        let place =
            |role, name: &str, order, mask: &[usize]| ThreadPlace { role, name: name.into(), order, cpus: cpus(mask) };
        let wanted = Recorded {
            record: Record::default(),
            pinned: vec![place(Role::Main, "app", 0, &[5]), place(Role::Other, "app", 1, &[6])],
            free: vec![place(Role::Other, "app", 0, &[0, 1, 2, 3])],
            before: cpus(&[0, 1, 2, 3]),
        };
        let masks = |arrivals: &[Arrival<'_>]| arrivals.iter().map(|it| wanted.mask(it)).collect::<Vec<_>>();
        let mut crew = crew(1, true);
        let mut live = vec![thread(1, "other name", &[0, 1, 2, 3])];
        assert_eq!(masks(&crew.arrivals(&live)), [Some(cpus(&[5, 6]))], "a pool that starts now sees two CPUs");
        live = vec![thread(1, "other name", &[5, 6]), thread(2, "app", &[5, 6]), thread(3, "app", &[5, 6])];
        live.push(thread(4, "stranger", &[5, 6]));
        live.push(thread(5, "stranger", &[7]));
        let late = crew.arrivals(&live);
        let out = Some(wanted.before.clone());
        assert_eq!(masks(&late), [out.clone(), Some(cpus(&[6])), out, None], "one has a mask of its own");
        assert_eq!(late.iter().map(|it| wanted.is_pinned(&it.place)).collect::<Vec<_>>(), [false, true, false, false]);
        assert_eq!(wanted.main(), Some(&cpus(&[5])));
        assert_eq!(wanted.rebound(&cpus(&[0, 1, 2, 3])), None, "it was free");
        let bound = Recorded { before: cpus(&[5]), ..wanted };
        assert_eq!(bound.rebound(&cpus(&[0, 5, 6])), Some(Loss::Rebound(cpus(&[5]), cpus(&[5, 6]))));
        assert_eq!(Recorded { before: cpus(&[4, 5, 6]), ..bound }.rebound(&cpus(&[0, 4, 5, 6])), None, "still there");
    }
}
