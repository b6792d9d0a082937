//! Which parts of the segment are registered with a device ("pinned"), and what a device needs in order to register parts.
//!
//! A copy between device and host runs at the link's full speed only if the driver knows that the host pages do not move,
//! that is, if they are *registered*. Registering a whole buffer at once would hold up copies and launches until it is done
//! (HiPC'22, section IV.A). So the ranks of the node register chunk by chunk, one rank after the other
//! ([`super::Token::Pinning`]), and what is already registered is used at once.
//!
//! Slots come and go, but their memory stays: a registration serves whatever is stored there next, even if that belongs to
//! another rank. So no registration is undone before the book is closed.
//!
//! The chunk's size bounds the delay: 16 MiB of populated memory register in 0.3 to 1.6 ms (10 to 57 GB/s measured).
#![forbid(unsafe_code)]

use super::live::Segment;
use crate::base::units::{MIB, page_ceil};
use crate::device::HostRange;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes per registration, unless somebody says otherwise.
pub const PIN_CHUNK: u64 = 16 * MIB;

impl Segment {
    /// The address of a range of the data area that this rank holds as a slot or a lease and whose pages are all populated.
    /// `None` for any other range, an empty one, and in a forked child.
    pub fn host_range(&self, offset: u64, bytes: u64) -> Option<HostRange> {
        let address = self.shared.address_of(offset, bytes)?;
        // Bound separately, because a method call on the field would give it another type.
        let keep: Arc<dyn Any + Send + Sync> = self.shared.map.clone();
        Some(HostRange::new(address, bytes, keep))
    }
}

/// The book of one process's registrations with one device, in offsets of the data area. It holds numbers only: the code
/// that registers a range marks it here.
pub struct Pins {
    chunk: u64,
    /// Start and end of each stretch that is registered without gaps. Invariants: none is empty, and no two overlap or touch.
    marked: BTreeMap<u64, u64>,
}

impl Default for Pins {
    fn default() -> Self {
        Pins::new(PIN_CHUNK)
    }
}

impl Pins {
    /// An empty book. Chunks have `chunk` bytes, rounded up to whole pages, and start at multiples of that.
    pub fn new(chunk: u64) -> Pins {
        Pins { chunk: page_ceil(chunk.max(1)), marked: BTreeMap::new() }
    }

    /// The parts of a range that are not registered yet, cut at the boundaries of chunks, in ascending order. Each is to
    /// be registered on its own and then marked.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for marked in self.over(&range) {
            self.cut(at..marked.start, &mut pieces);
            at = marked.end;
        }
        self.cut(at..range.end, &mut pieces);
        pieces
    }

    /// Cuts a range at the boundaries of chunks. A range that ends before it starts gives no pieces.
    fn cut(&self, mut range: Range<u64>, pieces: &mut Vec<Range<u64>>) {
        while range.start < range.end {
            let border = (range.start / self.chunk + 1).saturating_mul(self.chunk);
            let end = border.min(range.end);
            pieces.push(range.start..end);
            range.start = end;
        }
    }

    /// Notes one registration. `false` if it is empty or overlaps another; nothing changes then.
    pub fn mark(&mut self, range: Range<u64>) -> bool {
        let is_new = !range.is_empty() && self.touching(&range).next().is_none();
        if is_new {
            let before = self.marked.range(..range.start).next_back().filter(|(_, end)| **end == range.start);
            let start = before.map_or(range.start, |(start, _)| *start);
            let end = self.marked.remove(&range.end).unwrap_or(range.end);
            self.marked.insert(start, end);
        }
        is_new
    }

    /// How many bytes of a range are registered.
    pub fn bytes(&self, range: Range<u64>) -> u64 {
        let inside = |marked: Range<u64>| marked.end.min(range.end) - marked.start.max(range.start);
        self.over(&range).into_iter().map(inside).sum()
    }

    /// Stretches that share a byte with a range, in ascending order.
    fn over(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut over: Vec<_> = self.touching(range).collect();
        over.reverse();
        over
    }

    /// Stretches that share a byte with a range, in descending order.
    fn touching(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let start = range.start;
        let end = if range.is_empty() { 0 } else { range.end };
        let below = self.marked.range(..end).rev().map(|(start, end)| *start..*end);
        below.take_while(move |marked| marked.end > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::PAGE;
    use proptest::prelude::*;

    #[test]
    fn what_is_registered_is_not_missing() {
        let mut pins = Pins::new(8 * PAGE);
        let (a, b, c, end) = (4 * PAGE, 8 * PAGE, 12 * PAGE, 20 * PAGE);
        assert!(pins.mark(a..b) && pins.mark(b..c));
        assert!(!pins.mark(0..a + 1) && !pins.mark(b..b), "no byte is registered twice, and nothing is no range");
        assert_eq!(pins.missing(0..end), [0..a, c..16 * PAGE, 16 * PAGE..end]);
        assert_eq!((pins.missing(a + 1..c - 1), pins.missing(5..5)), (vec![], vec![]));
        assert_eq!((pins.bytes(0..end), pins.bytes(a + 1..c - 1), pins.bytes(c..end)), (8 * PAGE, 8 * PAGE - 2, 0));
    }

    #[test]
    fn chunks_are_whole_pages() {
        assert_eq!(Pins::new(0).missing(0..2 * PAGE), [0..PAGE, PAGE..2 * PAGE]);
        assert_eq!(Pins::default().missing(0..PIN_CHUNK + 1), [0..PIN_CHUNK, PIN_CHUNK..PIN_CHUNK + 1]);
        assert_eq!(Pins::new(u64::MAX).missing(7..9).len(), 1);
    }

    proptest! {
        #[test]
        fn the_book_agrees_with_one_entry_a_page(
            steps in proptest::collection::vec((0u64..40, 0u64..16), 1..60),
            cuts in proptest::collection::vec((0u64..60, 0u64..60), 8),
        ) {
            let mut pins = Pins::new(4 * PAGE);
            let mut pages = [false; 64];
            for (at, length) in steps {
                let under = at as usize..(at + length) as usize;
                let free = length > 0 && !pages[under.clone()].contains(&true);
                prop_assert_eq!(pins.mark(at * PAGE..(at + length) * PAGE), free);
                if free {
                    pages[under].fill(true);
                }
            }
            for (start, end) in cuts {
                // One byte off the page boundaries, to see that nothing is rounded.
                let range = (start * PAGE).saturating_sub(1)..end * PAGE + 1;
                let is_missing = |byte: u64| !pages[(byte / PAGE) as usize];
                let mut at = range.start;
                let mut last: Option<u64> = None;
                let mut missing = 0;
                for piece in pins.missing(range.clone()) {
                    prop_assert!(at <= piece.start && piece.start < piece.end && piece.end <= range.end);
                    let inside = |from: u64, to: u64| (from..to).step_by(PAGE as usize).chain((from < to).then(|| to - 1));
                    prop_assert!(inside(at, piece.start).all(|byte| !is_missing(byte)));
                    prop_assert!(inside(piece.start, piece.end).all(is_missing));
                    prop_assert!(piece.start / (4 * PAGE) == (piece.end - 1) / (4 * PAGE));
                    let is_needless = last == Some(piece.start) && piece.start % (4 * PAGE) != 0;
                    prop_assert!(!is_needless, "no needless cut");
                    (at, last, missing) = (piece.end, Some(piece.end), missing + piece.end - piece.start);
                }
                let length = range.end.saturating_sub(range.start);
                prop_assert_eq!(pins.bytes(range), length - missing);
            }
        }
    }
}
