//! When versions are used next, and the queues that keep them in that order.
#![forbid(unsafe_code)]

use super::books::Cache;
use super::entry::Entry;
use super::evict::Use;
use super::queue::{Place, QUEUES, When};
use super::{EntryId, Link, Tier};
use std::cmp::Reverse;

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

    /// Where a version is in each queue.
    pub(super) fn places(&self, id: EntryId, entry: &Entry) -> [Option<Place>; QUEUES] {
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
