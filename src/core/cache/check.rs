//! The invariants of the planner, as assertions.
#![forbid(unsafe_code)]

use super::books::Cache;
use super::queue::{QUEUES, Queue};
use super::{IN_FLIGHT_MAX, Keep, Link, Owner, Piece, State, Tier};
use std::collections::BTreeMap;

impl Cache {
    /// Asserts all invariants. Debug builds do so after each call.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.check_space();
        self.check_copies();
        self.check_users();
        self.check_queues();
    }

    pub(super) fn debug_check(&self) {
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The allocation tables hold what the copies and shards say, and nothing else.
    fn check_space(&self) {
        for tier in Tier::ALL {
            let seat = &self.tiers[tier as usize];
            seat.space.check();
            assert!(seat.space.bytes() <= seat.capacity, "{tier:?} stays within its capacity");
            let mut known: BTreeMap<Piece, Owner> = BTreeMap::new();
            for (id, entry) in &self.entries {
                let copy = entry.copy(tier);
                assert_eq!(copy.is_some(), self.residents[tier as usize].contains(id));
                let pieces = copy.iter().flat_map(|copy| &copy.pieces);
                known.extend(pieces.map(|piece| (*piece, Owner::Entry(*id))));
            }
            if tier == Tier::Device {
                for (shard, pieces) in &self.staged {
                    known.extend(pieces.iter().map(|piece| (*piece, Owner::Shard(*shard))));
                }
            }
            assert_eq!(seat.space.pieces().collect::<BTreeMap<_, _>>(), known);
        }
    }

    /// Copies are in states that fit together.
    fn check_copies(&self) {
        for (id, entry) in &self.entries {
            if entry.leaving {
                assert!(entry.copies.iter().flatten().all(|copy| copy.doomed && !copy.is_idle()));
                continue;
            }
            assert!(entry.copies.iter().flatten().any(|copy| !copy.doomed), "{id:?} has a copy");
            let read = entry.keep == Keep::UntilRead && entry.read;
            assert!(!read || self.is_hinted(*id) || entry.has_readers(), "{id:?} was consumed and is still here");
            for tier in Tier::ALL {
                let Some(copy) = entry.copy(tier) else { continue };
                assert!(!(copy.doomed && copy.is_idle()), "what is given up and not used is gone");
                match copy.state {
                    State::Flushed => assert!(copy.doomed || entry.is_below(tier)),
                    State::WriteComplete => assert!(copy.doomed || !entry.is_below(tier)),
                    State::WriteInProgress | State::ReadInProgress => assert_eq!(copy.users, 1),
                    State::Init => panic!("a copy is made for something that writes it"),
                    State::ReadComplete | State::Consumed => {}
                }
            }
        }
    }

    /// The queues hold what the entries say, in their places.
    fn check_queues(&self) {
        let mut queues: [Queue; QUEUES] = Default::default();
        for (id, entry) in &self.entries {
            let places = self.places(*id, entry);
            assert_eq!(entry.places, places, "{id:?} stands where it belongs");
            for (queue, place) in queues.iter_mut().zip(places) {
                place.into_iter().for_each(|place| queue.insert(id.history, place));
            }
        }
        assert_eq!(queues, self.queues);
        assert_eq!(self.entries.values().map(|entry| entry.bytes).sum::<u64>(), self.entry_bytes);
        let mut lengths = BTreeMap::new();
        self.entries.values().for_each(|entry| *lengths.entry(entry.bytes).or_default() += 1);
        assert_eq!(lengths, self.lengths);
    }

    /// All users of copies are known, and no link has too many jobs.
    fn check_users(&self) {
        for link in Link::ALL {
            assert!(self.flights.values().filter(|flight| flight.link == link).count() <= IN_FLIGHT_MAX);
        }
        for (id, entry) in &self.entries {
            let flights: Vec<Link> =
                self.flights.values().filter(|flight| flight.id == *id).map(|flight| flight.link).collect();
            for link in Link::ALL {
                assert_eq!(entry.is_flying(link), flights.contains(&link));
            }
            for tier in Tier::ALL {
                let jobs = flights.iter().filter(|link| link.from() == tier || link.to() == tier).count();
                let users = jobs + usize::from(entry.writing == Some(tier));
                assert_eq!(entry.copy(tier).map_or(0, |copy| copy.users as usize), users);
            }
        }
        let staged: u64 = self.staged.values().flatten().map(|piece| piece.bytes).sum();
        assert_eq!(staged, self.staged_bytes);
    }
}
