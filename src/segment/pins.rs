//! What of the segment is registered with a device ("pinned"), and what a device needs to register it.
//!
//! A copy between device and host runs at the link's full speed only if the driver knows the host pages not to move:
//! they are *registered*. Registering a whole buffer at once would hold up copies and launches for as long as it takes
//! (HiPC'22, section IV.A), so it is done chunk by chunk, one rank of the node after the other ([`super::Token::Pinning`]),
//! and what is registered already is used at once. Each chunk is a registration of its own, and a driver refuses
//! a copy that crosses from one into the next, so a transfer is cut at their borders: [`Pins::split`].
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

/// Bytes of a registration, if nobody says otherwise.
pub const PIN_CHUNK: u64 = 16 * MIB;

impl Segment {
    /// The address of a range of the data area that this rank holds, as slot or lease, with all its pages populated. `None`
    /// for any other range, an empty one, and in a forked child.
    pub fn host_range(&self, offset: u64, bytes: u64) -> Option<HostRange> {
        let address = self.shared.address_of(offset, bytes)?;
        // Its own value, because a method call on the field would make another type of it.
        let keep: Arc<dyn Any + Send + Sync> = self.shared.map.clone();
        Some(HostRange { address, bytes, keep })
    }
}

/// The book of one process's registrations with one device, in offsets of the data area. Numbers only: whoever registers a
/// range marks it here.
pub struct Pins {
    chunk: u64,
    /// Start and end of each registration. Invariant: none is empty, no two overlap.
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

    /// What of a range is not registered yet, cut at the borders of chunks, ascending: each piece is to be registered by
    /// itself and then marked.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        for (mut part, _) in self.split(range).into_iter().filter(|(_, is_pinned)| !is_pinned) {
            while part.start < part.end {
                let border = (part.start / self.chunk + 1).saturating_mul(self.chunk);
                let end = border.min(part.end);
                pieces.push(part.start..end);
                part.start = end;
            }
        }
        pieces
    }

    /// Notes one registration. `false`, and nothing changes, if it is empty or overlaps another.
    pub fn mark(&mut self, range: Range<u64>) -> bool {
        let is_new = !range.is_empty() && self.touching(&range).next().is_none();
        if is_new {
            self.marked.insert(range.start, range.end);
        }
        is_new
    }

    /// Forgets one registration of exactly this range; `false` if there is none.
    pub fn unmark(&mut self, range: Range<u64>) -> bool {
        let is_marked = self.marked.get(&range.start) == Some(&range.end);
        if is_marked {
            self.marked.remove(&range.start);
        }
        is_marked
    }

    /// The registrations that share a byte with a range, whole and ascending: those to take back before its memory is given up.
    pub fn over(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut over: Vec<_> = self.touching(&range).collect();
        over.reverse();
        over
    }

    /// Cuts a transfer at the borders of registrations: the pieces in order, each with whether it is registered. A registered
    /// piece lies in one registration; neighbours that are not registered are one piece. Nothing for an empty range.
    pub fn split(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for pinned in self.over(range.clone()) {
            let (start, end) = (pinned.start.max(range.start), pinned.end.min(range.end));
            if at < start {
                pieces.push((at..start, false));
            }
            pieces.push((start..end, true));
            at = end;
        }
        if at < range.end {
            pieces.push((at..range.end, false));
        }
        pieces
    }

    /// Bytes that are registered.
    pub fn bytes(&self) -> u64 {
        self.marked.iter().map(|(start, end)| end - start).sum()
    }

    /// Registrations that share a byte with a range, descending.
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
    fn a_transfer_is_cut_where_registrations_end() {
        let mut pins = Pins::new(8 * PAGE);
        let (a, b, c, end) = (4 * PAGE, 8 * PAGE, 12 * PAGE, 20 * PAGE);
        assert!(pins.mark(a..b) && pins.mark(b..c));
        assert!(!pins.mark(0..a + 1) && !pins.mark(b..b), "no byte is registered twice, and nothing is no range");
        assert_eq!(pins.split(0..end), [(0..a, false), (a..b, true), (b..c, true), (c..end, false)]);
        assert_eq!(pins.split(a + 1..c - 1), [(a + 1..b, true), (b..c - 1, true)]);
        assert_eq!(pins.split(5..5), []);
        assert_eq!(pins.missing(0..end), [0..a, c..16 * PAGE, 16 * PAGE..end]);
        assert_eq!(pins.over(b - 1..b + 1), [a..b, b..c]);
        assert!(!pins.unmark(a..c) && pins.unmark(a..b) && !pins.unmark(a..b));
        assert_eq!((pins.bytes(), pins.missing(b..end)), (4 * PAGE, vec![c..16 * PAGE, 16 * PAGE..end]));
        assert_eq!(pins.split(0..b), [(0..b, false)]);
    }

    #[test]
    fn chunks_are_whole_pages() {
        assert_eq!(Pins::new(0).missing(0..2 * PAGE), [0..PAGE, PAGE..2 * PAGE]);
        assert_eq!(Pins::default().missing(0..PIN_CHUNK + 1), [0..PIN_CHUNK, PIN_CHUNK..PIN_CHUNK + 1]);
        assert_eq!(Pins::new(u64::MAX).missing(7..9).len(), 1);
    }

    /// Marks or unmarks a range, in the small.
    fn steps() -> impl Strategy<Value = Vec<(bool, u64, u64)>> {
        proptest::collection::vec((proptest::bool::weighted(0.7), 0u64..40, 0u64..16), 1..60)
    }

    proptest! {
        #[test]
        fn the_book_agrees_with_one_entry_a_page(steps in steps(), cuts in proptest::collection::vec((0u64..60, 0u64..60), 8)) {
            let mut pins = Pins::new(4 * PAGE);
            // For each page: the number of the registration that covers it.
            let mut pages: Vec<Option<usize>> = vec![None; 64];
            let mut made: Vec<(Range<u64>, bool)> = Vec::new();
            for (marks, at, length) in steps {
                let range = at * PAGE..(at + length) * PAGE;
                let under = at as usize..(at + length) as usize;
                if marks {
                    let free = length > 0 && pages[under.clone()].iter().all(Option::is_none);
                    prop_assert_eq!(pins.mark(range.clone()), free);
                    if free {
                        pages[under].fill(Some(made.len()));
                        made.push((range, true));
                    }
                } else if let Some(index) = pages.get(at as usize).copied().flatten() {
                    let (range, is_out) = made[index].clone();
                    prop_assert!(is_out && pins.unmark(range.clone()) && !pins.unmark(range));
                    made[index].1 = false;
                    pages.iter_mut().filter(|page| **page == Some(index)).for_each(|page| *page = None);
                }
            }
            prop_assert_eq!(pins.bytes(), pages.iter().flatten().count() as u64 * PAGE);
            for (start, end) in cuts {
                // One byte off the borders of pages, to see that nothing is rounded.
                let range = (start * PAGE).saturating_sub(1)..end * PAGE + 1;
                let page_of = |byte: u64| pages[(byte / PAGE) as usize];
                let mut at = range.start;
                let mut last = None;
                for (piece, is_pinned) in pins.split(range.clone()) {
                    prop_assert!(piece.start == at && piece.start < piece.end);
                    prop_assert!((piece.start..piece.end).step_by(PAGE as usize).chain([piece.end - 1]).all(|byte| page_of(byte) == page_of(piece.start)));
                    prop_assert_eq!(page_of(piece.start).is_some(), is_pinned);
                    prop_assert!(last.is_none_or(|last| last != page_of(piece.start)), "no needless cut");
                    last = Some(page_of(piece.start));
                    at = piece.end;
                }
                prop_assert_eq!(at, range.end.max(range.start));
                for piece in pins.missing(range.clone()) {
                    prop_assert!(pins.mark(piece.clone()) && piece.start / (4 * PAGE) == (piece.end - 1) / (4 * PAGE));
                    prop_assert!(pins.unmark(piece));
                }
            }
        }
    }
}
