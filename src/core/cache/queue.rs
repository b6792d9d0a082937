//! Versions in the order in which they go: those that are to be flushed over a link, and those that may leave a tier at once. The
//! order is maintained while everything changes, so that nobody has to sort.
#![forbid(unsafe_code)]

use super::EntryId;
use super::evict::Use;
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

/// The number of queues: one for each link that flushes, and one for each tier.
pub(super) const QUEUES: usize = 5;

/// Versions in the order in which they go. The versions of each history are kept apart, because places in different
/// restore orders cannot be compared.
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
