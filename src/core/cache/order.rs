//! The restore order of one history: a queue of hints about what will be read, in order (HPDC'23, section 4.1.1).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

/// The hints of one history that are not read yet, in the order in which they were given.
///
/// Hints cannot be taken back; a version that is named twice will be read twice. A read removes the first pending
/// hint of its version, wherever that is, so the head moves on when the version that it names has been read. All
/// operations take O(log n).
#[derive(Clone, Default, Debug)]
pub struct Order {
    hints: BTreeMap<u64, u64>,
    /// Of each version the positions of its hints, ascending; none is empty.
    positions: BTreeMap<u64, VecDeque<u64>>,
    next: u64,
}

impl Order {
    /// Adds a hint to the end.
    pub fn push(&mut self, version: u64) {
        self.hints.insert(self.next, version);
        self.positions.entry(version).or_default().push_back(self.next);
        self.next += 1;
    }

    /// Takes the first pending hint of a version that was read, and returns where it was, or `None` if there is none.
    pub fn take(&mut self, version: u64) -> Option<u64> {
        let positions = self.positions.get_mut(&version)?;
        let position = positions.pop_front().expect("a version without pending hints has no list");
        if positions.is_empty() {
            self.positions.remove(&version);
        }
        self.hints.remove(&position).map(|_| position)
    }

    /// Puts a hint back to where it was, because its version was not read.
    pub fn give_back(&mut self, version: u64, position: u64) {
        debug_assert!(position < self.next);
        if self.hints.insert(position, version).is_none() {
            let positions = self.positions.entry(version).or_default();
            positions.insert(positions.partition_point(|other| *other < position), position);
        }
    }

    /// The position of the next hint of a version, which stays as it is while others are read.
    /// `None` if none is pending.
    pub fn position(&self, version: u64) -> Option<u64> {
        self.positions.get(&version).map(|positions| positions[0])
    }

    /// The position of the first pending hint.
    pub fn head(&self) -> Option<u64> {
        self.hints.first_key_value().map(|(position, _)| *position)
    }

    /// How far the next hint of a version is after the head; `None` if none is pending.
    ///
    /// Hints in between that reads out of order have taken away still count: whatever is compared, the order is exact.
    pub fn distance(&self, version: u64) -> Option<u64> {
        Some(self.position(version)? - self.head()?)
    }

    /// The versions that are hinted, starting at the head. A version that is hinted repeatedly appears repeatedly.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.hints.values().copied()
    }

    /// The hinted versions, starting at a position, each with its position.
    pub fn iter_from(&self, position: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.hints.range(position..).map(|(position, version)| (*position, *version))
    }

    /// Whether the hint at a position is pending.
    pub fn is_pending(&self, position: u64) -> bool {
        self.hints.contains_key(&position)
    }

    /// How many hints are pending.
    pub fn len(&self) -> usize {
        self.hints.len()
    }

    /// Whether no hint is pending.
    pub fn is_empty(&self) -> bool {
        self.hints.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_head_moves_when_what_it_names_is_read() {
        let mut order = Order::default();
        [7, 5, 9].into_iter().for_each(|version| order.push(version));
        assert_eq!([7, 5, 9, 1].map(|version| order.distance(version)), [Some(0), Some(1), Some(2), None]);
        assert_eq!(order.take(5), Some(1));
        assert_eq!([7, 5, 9].map(|version| order.distance(version)), [Some(0), None, Some(2)]);
        assert_eq!(order.take(7), Some(0));
        assert_eq!(order.distance(9), Some(0));
        assert_eq!(order.take(7), None);
        order.give_back(5, 1);
        assert_eq!(order.iter().collect::<Vec<_>>(), [5, 9]);
        assert_eq!(order.distance(9), Some(1));
    }

    #[test]
    fn a_version_hinted_twice_is_read_twice() {
        let mut order = Order::default();
        [1, 2, 1].into_iter().for_each(|version| order.push(version));
        assert_eq!(order.take(1), Some(0));
        assert_eq!(order.distance(1), Some(1));
        order.give_back(1, 0);
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!([1, 2, 1].map(|version| order.take(version)), [Some(0), Some(1), Some(2)]);
        assert!(order.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_list_with_the_first_match_removed(steps in prop::collection::vec((any::<bool>(), 0u64..6), 0..60)) {
            let (mut order, mut model) = (Order::default(), Vec::new());
            for (push, version) in steps {
                if push {
                    order.push(version);
                    model.push(version);
                } else {
                    let at = model.iter().position(|hinted| *hinted == version);
                    prop_assert_eq!(order.take(version).is_some(), at.is_some());
                    at.map(|at| model.remove(at));
                }
                prop_assert_eq!(order.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(order.len(), model.len());
                // Distances rise in the order of the first hints, and the head's is 0.
                let mut firsts: Vec<u64> = Vec::new();
                model.iter().for_each(|version| if !firsts.contains(version) { firsts.push(*version) });
                let distances: Vec<_> = firsts.iter().map(|version| order.distance(*version).unwrap()).collect();
                prop_assert!(distances.is_sorted_by(|a, b| a < b));
                prop_assert_eq!(distances.first().copied().unwrap_or(0), 0);
            }
        }
    }
}
