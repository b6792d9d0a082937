//! Versions in the order in which they go, kept while everything changes, so that nobody has to sort: what is to be flushed over a
//! link, and what may leave a tier at once.
#![forbid(unsafe_code)]

use super::EntryId;
use super::entry::Entry;
use super::evict::Use;
use super::planner::Cache;
use std::cmp::Reverse;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};

/// When a version is used next, by its place in the restore order, which stays the same while the head moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum When {
    Hinted(u64),
    Unhinted,
    Consumed,
}

/// A version's place in a queue: latest use first, then first admitted.
pub(super) type Place = (Reverse<When>, u64, u64);

/// Which queues there are: one for each link that flushes, one for each tier.
pub(super) const QUEUES: usize = 5;

/// What goes in a certain order, each history's versions apart: places in different restore orders cannot be compared.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Queue {
    histories: BTreeMap<u32, BTreeSet<Place>>,
}

impl Queue {
    pub fn insert(&mut self, history: u32, place: Place) {
        self.histories.entry(history).or_default().insert(place);
    }

    pub fn remove(&mut self, history: u32, place: Place) {
        if let Slot::Occupied(mut slot) = self.histories.entry(history) {
            slot.get_mut().remove(&place);
            if slot.get().is_empty() {
                slot.remove();
            }
        }
    }

    /// All of them with their uses, those that are used latest first.
    pub fn iter<'a>(
        &'a self,
        use_at: impl Fn(u32, When) -> Use + Clone + 'a,
    ) -> impl Iterator<Item = (Use, EntryId)> + 'a {
        let mut heads: Vec<_> = self
            .histories
            .iter()
            .map(|(&history, places)| {
                let use_at = use_at.clone();
                let ranked = move |&(Reverse(when), serial, version): &Place| {
                    (Reverse(use_at(history, when)), serial, EntryId { history, version })
                };
                places.iter().map(ranked).peekable()
            })
            .collect();
        std::iter::from_fn(move || {
            let first = heads.iter_mut().filter_map(|head| Some((*head.peek()?, head))).min_by_key(|(rank, _)| *rank);
            let (Reverse(next), _, id) = first?.1.next()?;
            Some((next, id))
        })
    }
}

impl Cache {
    /// When a version will be used next.
    pub(super) fn next_use(&self, id: EntryId) -> Use {
        self.use_at(id.history, self.when(id))
    }

    pub(super) fn use_at(&self, history: u32, when: When) -> Use {
        match when {
            When::Hinted(position) => {
                let head = self.histories.get(&history).and_then(|history| history.order.head());
                Use::Hinted(position - head.unwrap_or(position))
            }
            When::Unhinted => Use::Unhinted,
            When::Consumed => Use::Consumed,
        }
    }

    fn when(&self, id: EntryId) -> When {
        match self.histories.get(&id.history).and_then(|history| history.order.position(id.version)) {
            Some(position) => When::Hinted(position),
            None if self.entries.get(&id).is_some_and(|entry| entry.read) => When::Consumed,
            None => When::Unhinted,
        }
    }

    /// Where a version stands in each queue.
    pub(super) fn places(&self, id: EntryId, entry: &Entry) -> [Option<Place>; QUEUES] {
        use super::{Link, Tier};
        let when = self.when(id);
        let flush = |link| entry.needs_flush(link).then_some(when);
        let leave = |tier| entry.may_leave(tier).then(|| if entry.is_consumed(tier) { When::Consumed } else { when });
        let whens = [flush(Link::Down), flush(Link::Out), leave(Tier::Device), leave(Tier::Host), leave(Tier::Store)];
        whens.map(|when| when.map(|when| (Reverse(when), entry.serial, id.version)))
    }

    /// Brings the queues into line after something has changed with a version's copies or hints.
    pub(super) fn requeue(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let (old, new) = (entry.places, self.places(id, entry));
        if old == new {
            return;
        }
        self.move_in_queues(id, old, new);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.places = new;
        }
    }

    pub(super) fn move_in_queues(&mut self, id: EntryId, old: [Option<Place>; QUEUES], new: [Option<Place>; QUEUES]) {
        for (queue, (old, new)) in self.queues.iter_mut().zip(old.into_iter().zip(new)) {
            if old != new {
                old.into_iter().for_each(|place| queue.remove(id.history, place));
                new.into_iter().for_each(|place| queue.insert(id.history, place));
            }
        }
    }
}
