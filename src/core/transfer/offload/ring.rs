//! Room in the buffer, which is taken in order and given back in about the same order. Pure.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

/// A number of bytes, and the parts of them that are taken.
pub(super) struct Ring {
    bytes: u64,
    /// The taken parts, in the order in which they were taken; true: the part was given back.
    taken: VecDeque<(Range<u64>, bool)>,
}

impl Ring {
    pub fn new(bytes: u64) -> Ring {
        Ring { bytes, taken: VecDeque::new() }
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many bytes are taken, including parts that were given back but precede others.
    pub fn used(&self) -> u64 {
        match (self.taken.front(), self.taken.back()) {
            (Some((first, _)), Some((last, _))) if last.end > first.start => last.end - first.start,
            (Some((first, _)), Some((last, _))) => self.bytes - first.start + last.end,
            _ => 0,
        }
    }

    /// Takes at most `most` bytes in one piece: all of them, or a multiple of `unit`. `None` if there is room neither for all of them nor
    /// for one unit.
    pub fn take(&mut self, most: u64, unit: u64) -> Option<Range<u64>> {
        let fitting = |room: u64| if room >= most { most } else { room / unit * unit };
        let (start, room) = match (self.taken.front(), self.taken.back()) {
            (Some((first, _)), Some((last, _))) if last.end > first.start => {
                let behind = self.bytes - last.end;
                // The remainder at the end is given up if it is of no use.
                if fitting(behind) > 0 { (last.end, behind) } else { (0, first.start) }
            }
            (Some((first, _)), Some((last, _))) => (last.end, first.start - last.end),
            _ => (0, self.bytes),
        };
        let bytes = fitting(room);
        if bytes == 0 {
            return None;
        }
        self.taken.push_back((start..start + bytes, false));
        Some(start..start + bytes)
    }

    /// Gives back a piece that was taken as a whole.
    pub fn give(&mut self, piece: &Range<u64>) {
        let found = self.taken.iter_mut().find(|(taken, is_free)| taken == piece && !is_free);
        debug_assert!(found.is_some(), "what is given back was taken");
        found.into_iter().for_each(|(_, is_free)| *is_free = true);
        while self.taken.front().is_some_and(|(_, is_free)| *is_free) {
            self.taken.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_taken_is_given_back_in_turn() {
        let mut ring = Ring::new(100);
        assert_eq!(ring.take(60, 8), Some(0..60));
        assert_eq!(ring.take(60, 8), Some(60..100));
        assert_eq!((ring.take(60, 8), ring.used()), (None, 100));
        ring.give(&(60..100));
        assert_eq!((ring.take(1, 8), ring.used()), (None, 100));
        ring.give(&(0..60));
        assert_eq!(ring.used(), 0);
        assert_eq!(ring.take(90, 8), Some(0..90));
        assert_eq!(ring.take(7, 8), Some(90..97));
        assert_eq!(ring.take(9, 8), None);
        ring.give(&(0..90));
        assert_eq!(ring.take(16, 8), Some(0..16));
        assert_eq!(ring.take(200, 8), Some(16..88));
        assert_eq!(Ring::new(0).take(1, 1), None);
    }

    proptest! {
        #[test]
        fn nothing_is_given_to_two(bytes in 0u64..200, steps in proptest::collection::vec((0u64..80, 1u64..20, 0usize..4), 1..60)) {
            let mut ring = Ring::new(bytes);
            let mut held: Vec<Range<u64>> = Vec::new();
            for (most, unit, give) in steps {
                if let Some(new) = ring.take(most, unit) {
                    prop_assert!(new.end <= bytes && new.start < new.end && new.end - new.start <= most);
                    prop_assert!(held.iter().all(|old| new.end <= old.start || old.end <= new.start));
                    held.push(new);
                }
                for _ in 0..give {
                    if !held.is_empty() {
                        let old = held.remove(give % held.len());
                        ring.give(&old);
                    }
                }
                prop_assert!(ring.used() >= held.iter().map(|old| old.end - old.start).sum::<u64>() && ring.used() <= bytes);
            }
            held.iter().for_each(|old| ring.give(old));
            prop_assert_eq!(ring.used(), 0);
        }
    }
}
