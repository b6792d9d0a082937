//! Room in a tier: what may leave it, when, and the decision to let it go.
#![forbid(unsafe_code)]

use super::books::Cache;
use super::evict::{self, Candidate, Plan, Use};
use super::{EntryId, Link, Owner, Piece, State, Tier};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What may be given up for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Only what will be used later than this.
    pub later_than: Option<Use>,
    /// Also prefetches that have not been read yet, if a tier below has them.
    pub unread: bool,
    /// Also what becomes evictable when flushes end, which somebody then waits for.
    pub flushes: bool,
}

impl Terms {
    /// Whatever can leave at once, but no started prefetch.
    pub const NOW: Terms = Terms { later_than: None, unread: false, flushes: false };
}

/// An answer to a request for room.
#[derive(Debug)]
pub(super) enum Room {
    Now(Vec<Piece>),
    Later(Duration),
    No,
}

/// When the copies of a tier that are being flushed become evictable, in nanoseconds from now.
pub(super) type Waits = BTreeMap<EntryId, u64>;

impl Cache {
    /// Whether `bytes` bytes could ever fit into a tier.
    pub(super) fn could_fit(&self, tier: Tier, bytes: u64) -> bool {
        let seat = &self.tiers[tier as usize];
        seat.space.could_fit(bytes) || (seat.mapping && seat.space.rounded(bytes) <= seat.capacity)
    }

    /// Whether there is room now, or can be made at once.
    pub(super) fn has_room(&self, tier: Tier, bytes: u64, terms: Terms) -> bool {
        self.tiers[tier as usize].space.has_room(bytes)
            || self.plan(tier, bytes, terms, &Waits::new()).is_some_and(|plan| plan.wait == Duration::ZERO)
    }

    /// Takes room for `bytes`, if need be by evicting others.
    pub(super) fn make_room(&mut self, tier: Tier, bytes: u64, owner: Owner, terms: Terms, now: Duration) -> Room {
        if !self.tiers[tier as usize].space.has_room(bytes) {
            let waits = if terms.flushes { self.flush_waits(tier, now) } else { Waits::new() };
            match self.plan(tier, bytes, terms, &waits) {
                None => return Room::No,
                Some(plan) if plan.wait > Duration::ZERO => return Room::Later(plan.wait),
                Some(plan) => plan.victims.into_iter().for_each(|id| self.evict(id, tier)),
            }
        }
        let pieces = self.tiers[tier as usize].space.allocate(bytes, owner);
        Room::Now(pieces.expect("what was evicted has made room"))
    }

    /// Which copies to evict for `bytes`; those in `waits` are evictable later.
    fn plan(&self, tier: Tier, bytes: u64, terms: Terms, waits: &Waits) -> Option<Plan> {
        let seat = &self.tiers[tier as usize];
        if tier == Tier::Device && seat.mapping {
            return None;
        }
        let missing = seat.space.rounded(bytes).saturating_sub(seat.space.free_bytes());
        let candidates = match terms.unread || !waits.is_empty() {
            true => self.candidates(tier, terms, waits).collect(),
            false => self.first_to_leave(tier, terms.later_than, missing),
        };
        evict::choose(candidates, missing)
    }

    /// The copies that may leave a tier at once and are used latest, as many as it takes to free `missing` bytes.
    fn first_to_leave(&self, tier: Tier, later_than: Option<Use>, missing: u64) -> Vec<Candidate> {
        let space = &self.tiers[tier as usize].space;
        let (mut found, mut held) = (Vec::new(), 0);
        for (next, id) in self.queues[2 + tier as usize].iter(|history, when| self.use_at(history, when)) {
            if held >= missing || later_than.is_some_and(|limit| next <= limit) {
                break;
            }
            let bytes = self.entries[&id].copy(tier).map_or(0, |copy| space.freed_by(&copy.pieces));
            held += bytes;
            found.push(Candidate { id, bytes, wait: 0, next });
        }
        found
    }

    /// The copies that may leave a tier, now or later.
    fn candidates(&self, tier: Tier, terms: Terms, waits: &Waits) -> impl Iterator<Item = Candidate> {
        let space = &self.tiers[tier as usize].space;
        self.residents[tier as usize].iter().filter_map(move |&id| {
            let wait = self.wait(id, tier, terms, waits)?;
            let bytes = space.freed_by(&self.entries[&id].copy(tier)?.pieces);
            Some(Candidate { id, bytes, wait, next: self.use_of_copy(id, tier) })
        })
    }

    /// When a copy will be used. A copy that another one stands in for is used after everything else.
    pub(super) fn use_of_copy(&self, id: EntryId, tier: Tier) -> Use {
        match self.entries[&id].copy(tier) {
            Some(copy) if copy.state == State::Consumed => Use::Consumed,
            _ => self.next_use(id),
        }
    }

    /// Nanoseconds until a copy may leave its tier; `None` if it may not, or nobody knows when.
    fn wait(&self, id: EntryId, tier: Tier, terms: Terms, waits: &Waits) -> Option<u64> {
        let entry = &self.entries[&id];
        let copy = entry.copy(tier)?;
        let limited = terms.later_than.is_some_and(|limit| self.use_of_copy(id, tier) <= limit);
        if copy.doomed || limited {
            return None;
        }
        let is_unread = copy.state == State::ReadComplete;
        if entry.is_dispensable(tier) || (terms.unread && is_unread && entry.is_below(tier)) {
            return copy.is_idle().then_some(0);
        }
        // A flush of it may be queued, or it may be under way, and is then its only user.
        let link = tier.flush()?;
        let flushing = u32::from(entry.is_flying(link));
        let pinned = is_unread || copy.users + copy.readers != flushing;
        if pinned { None } else { waits.get(&id).copied() }
    }

    /// Predicts when what is flushed from a tier becomes evictable: first what is under way, less the time that it has
    /// already had, then the queue in its order. Flushes from the device are no faster than the host finds room; once the
    /// host is full, that is the pace of the store.
    pub(super) fn flush_waits(&self, tier: Tier, now: Duration) -> Waits {
        let Some(link) = tier.flush() else { return Waits::new() };
        let rate = self.rates[link as usize];
        let mut room = u64::MAX;
        if tier == Tier::Device {
            let none = Waits::new();
            let can_go = self.candidates(Tier::Host, Terms::NOW, &none).map(|candidate| candidate.bytes);
            room = can_go.sum::<u64>() + self.tiers[Tier::Host as usize].space.free_bytes();
        }
        let (mut waits, mut ahead, mut landing) = (Waits::new(), 0, 0);
        for flight in self.flights.values().filter(|flight| flight.link == link) {
            let moved = now.saturating_sub(flight.started).as_nanos() * u128::from(rate) / 1_000_000_000;
            let left = flight.bytes.saturating_sub(u64::try_from(moved).unwrap_or(u64::MAX));
            waits.insert(flight.id, nanos(evict::predict_evictable(ahead, left, rate)));
            ahead += left;
        }
        for id in self.flush_queue(link) {
            let bytes = self.entries[&id].bytes;
            let mut wait = evict::predict_evictable(ahead, bytes, rate);
            landing += bytes;
            if landing > room {
                wait += evict::predict_evictable(0, landing - room, self.rates[Link::Out as usize]);
            }
            waits.insert(id, nanos(wait));
            ahead += bytes;
        }
        waits
    }

    /// Lets a copy go that `wait` allows to leave.
    fn evict(&mut self, id: EntryId, tier: Tier) {
        let copy = self.entries.get_mut(&id).and_then(|entry| entry.copy_mut(tier));
        copy.expect("a victim has a copy here").doomed = true;
        self.reap(id);
        self.settle(id);
    }

    /// Evicts from a range all that may leave it at once.
    pub(super) fn evict_range(&mut self, tier: Tier, range: Piece) {
        let owners: BTreeSet<Owner> = self.tiers[tier as usize].space.owners_in(range).collect();
        for owner in owners {
            let Owner::Entry(id) = owner else { continue };
            if self.wait(id, tier, Terms { unread: true, ..Terms::NOW }, &Waits::new()) == Some(0) {
                self.evict(id, tier);
            }
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
