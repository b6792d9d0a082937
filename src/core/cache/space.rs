//! The allocation table of one tier: which ranges of its space are used, by whom, and which are gaps.
//!
//! A space is made of *spans* that come and go: device memory is mapped step by step, host memory arrives as leases of
//! a shared segment. Spans whose offsets touch count as one. Everything is rounded up to the tier's unit.
#![forbid(unsafe_code)]

use super::{Owner, Piece};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
struct Used {
    bytes: u64,
    owner: Owner,
}

/// The allocation table of one tier.
///
/// Invariants: gaps and used pieces do not overlap; inside the spans they leave nothing out; no two gaps touch; the only
/// used bytes outside the spans are in ranges that were closed and are not vacant yet.
#[derive(Clone, Debug)]
pub struct Space {
    unit: u64,
    spans: BTreeMap<u64, u64>,
    /// Ranges that take no new pieces and wait for those that they have.
    closing: BTreeMap<u64, u64>,
    used: BTreeMap<u64, Used>,
    gaps: BTreeMap<u64, u64>,
    /// The gaps, ordered by size: (bytes, offset).
    sizes: BTreeSet<(u64, u64)>,
    bytes: u64,
    free: u64,
}

impl Space {
    /// A space without spans.
    ///
    /// # Panics
    /// If `unit` is 0.
    pub fn new(unit: u64) -> Self {
        assert!(unit > 0, "a space has a unit");
        Space {
            unit,
            spans: BTreeMap::new(),
            closing: BTreeMap::new(),
            used: BTreeMap::new(),
            gaps: BTreeMap::new(),
            sizes: BTreeSet::new(),
            bytes: 0,
            free: 0,
        }
    }

    /// What an allocation of `bytes` takes: whole units, at least one.
    pub fn rounded(&self, bytes: u64) -> u64 {
        bytes.max(1).div_ceil(self.unit).saturating_mul(self.unit)
    }

    /// Bytes of all spans.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all gaps.
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Whether an allocation of `bytes` would fit if nothing else were here.
    pub fn could_fit(&self, bytes: u64) -> bool {
        self.bytes >= self.rounded(bytes)
    }

    /// Whether an allocation of `bytes` would succeed now.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.free >= self.rounded(bytes)
    }

    /// How many bytes would become free if these pieces were given back: what lies in a closed range would not.
    pub fn freed_by(&self, pieces: &[Piece]) -> u64 {
        let inside = |piece: &Piece| match self.closing.is_empty() {
            true => piece.bytes,
            false => clips(&self.spans, *piece).map(|part| part.bytes).sum(),
        };
        pieces.iter().map(inside).sum()
    }

    /// Adds space; a partial unit at either end is left out.
    ///
    /// # Panics
    /// If some of it already exists, or is closed and not vacant yet.
    pub fn add_span(&mut self, offset: u64, bytes: u64) {
        let end = (offset + bytes) / self.unit * self.unit;
        let start = offset.next_multiple_of(self.unit);
        if start >= end {
            return;
        }
        let range = Piece { offset: start, bytes: end - start };
        let taken = overlapping(&self.spans, range).or(overlapping(&self.closing, range));
        assert!(taken.is_none(), "the space at {offset} is there already");
        join(&mut self.spans, range);
        self.bytes += range.bytes;
        self.add_gap(range);
    }

    /// Takes free space away. Returns false, and changes nothing, if some of `range` is used or is not part of the space.
    pub fn remove_span(&mut self, range: Piece) -> bool {
        let inside = |map: &BTreeMap<u64, u64>| {
            map.range(..=range.offset).next_back().is_some_and(|(at, bytes)| at + bytes >= range.end())
        };
        let free = inside(&self.gaps);
        if free {
            self.cut(range);
        }
        free
    }

    /// Takes a range out of use, whatever lies in it: no new piece is placed there. When called again, it says whether the
    /// last piece has left; if so, the range is forgotten.
    pub fn close_span(&mut self, range: Piece) -> bool {
        self.cut(range);
        let occupied = self.owners_in(range).next().is_some();
        if occupied {
            self.closing.insert(range.offset, range.bytes);
        } else {
            self.closing.remove(&range.offset);
        }
        !occupied
    }

    /// Whose pieces overlap a range, in the order of addresses.
    pub fn owners_in(&self, range: Piece) -> impl Iterator<Item = Owner> + '_ {
        let before = self.used.range(..range.offset).next_back();
        let before = before.filter(move |(at, used)| *at + used.bytes > range.offset);
        before.into_iter().chain(self.used.range(range.offset..range.end())).map(|(_, used)| used.owner)
    }

    /// Takes space for `bytes`, rounded up to units; `None` if there are fewer free bytes.
    ///
    /// This takes the smallest gap that is large enough, if there is one. Otherwise, it takes the largest gaps first and
    /// the smallest sufficient one last, which gives the fewest pieces.
    pub fn allocate(&mut self, bytes: u64, owner: Owner) -> Option<Vec<Piece>> {
        if !self.has_room(bytes) {
            return None;
        }
        let (mut pieces, mut left) = (Vec::new(), self.rounded(bytes));
        while left > 0 {
            let fitting = self.sizes.range((left, 0)..).next().or(self.sizes.last());
            let &(gap, offset) = fitting.expect("there are enough free bytes");
            let piece = Piece { offset, bytes: gap.min(left) };
            self.take_from_gap(piece);
            self.used.insert(offset, Used { bytes: piece.bytes, owner });
            left -= piece.bytes;
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// Gives pieces back.
    ///
    /// # Panics
    /// If one of them was not allocated as it is listed here.
    pub fn free(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let used = self.used.remove(&piece.offset);
            assert_eq!(used.map(|used| used.bytes), Some(piece.bytes), "what is freed was allocated");
            // What lies in a closed range is not a gap.
            let parts: Vec<Piece> = clips(&self.spans, *piece).collect();
            parts.into_iter().for_each(|part| self.add_gap(part));
        }
    }

    /// All used pieces with their owners, in the order of addresses.
    pub fn pieces(&self) -> impl Iterator<Item = (Piece, Owner)> + '_ {
        self.used.iter().map(|(&offset, used)| (Piece { offset, bytes: used.bytes }, used.owner))
    }

    fn add_gap(&mut self, range: Piece) {
        self.free += range.bytes;
        let joined = join_with(&mut self.gaps, range, |offset, bytes| {
            self.sizes.remove(&(bytes, offset));
        });
        self.sizes.insert((joined.bytes, joined.offset));
    }

    /// Takes `piece` from the gap around it.
    fn take_from_gap(&mut self, piece: Piece) {
        let gap = self.gaps.range(..=piece.offset).next_back().map(|(&offset, &bytes)| Piece { offset, bytes });
        let gap = gap.filter(|gap| gap.end() >= piece.end()).expect("a piece is taken from a gap");
        self.gaps.remove(&gap.offset);
        self.sizes.remove(&(gap.bytes, gap.offset));
        for (offset, end) in [(gap.offset, piece.offset), (piece.end(), gap.end())] {
            if offset < end {
                self.gaps.insert(offset, end - offset);
                self.sizes.insert((end - offset, offset));
            }
        }
        self.free -= piece.bytes;
    }

    /// Removes a range from the spans and its gaps from the gaps.
    fn cut(&mut self, range: Piece) {
        let gaps: Vec<Piece> = clips(&self.gaps, range).collect();
        gaps.into_iter().for_each(|gap| self.take_from_gap(gap));
        let parts: Vec<Piece> = clips(&self.spans, range).collect();
        for part in parts {
            let (&offset, &bytes) = self.spans.range(..=part.offset).next_back().expect("it was just found");
            self.spans.remove(&offset);
            for (from, to) in [(offset, part.offset), (part.end(), offset + bytes)] {
                if from < to {
                    self.spans.insert(from, to - from);
                }
            }
            self.bytes -= part.bytes;
        }
    }

    /// Asserts the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let mut end = 0;
        for (piece, _) in self.pieces() {
            assert!(piece.offset >= end && piece.bytes > 0, "pieces do not overlap");
            assert!(piece.offset % self.unit == 0 && piece.bytes % self.unit == 0, "pieces are whole units");
            let known = clips(&self.spans, piece).chain(clips(&self.closing, piece));
            assert_eq!(known.map(|part| part.bytes).sum::<u64>(), piece.bytes, "pieces lie in the space");
            end = piece.end();
        }
        assert_eq!(self.gaps.values().sum::<u64>(), self.free);
        assert_eq!(self.spans.values().sum::<u64>(), self.bytes);
        let sizes: BTreeSet<_> = self.gaps.iter().map(|(&offset, &bytes)| (bytes, offset)).collect();
        assert_eq!(sizes, self.sizes);
        let mut unused = BTreeMap::new();
        for (&offset, &bytes) in &self.spans {
            let span = Piece { offset, bytes };
            let mut at = offset;
            let inside = self.pieces().filter(|(piece, _)| piece.offset < span.end() && piece.end() > offset);
            for (piece, _) in inside.chain([(Piece { offset: span.end(), bytes: 0 }, Owner::Shard(0))]) {
                if piece.offset > at {
                    unused.insert(at, piece.offset - at);
                }
                at = piece.end();
            }
        }
        assert_eq!(unused, self.gaps, "what is not used is a gap");
    }
}

/// The entry of a map of ranges that overlaps `range`, if there is one.
fn overlapping(map: &BTreeMap<u64, u64>, range: Piece) -> Option<Piece> {
    let last = map.range(..range.end()).next_back().map(|(&offset, &bytes)| Piece { offset, bytes });
    last.filter(|last| last.end() > range.offset)
}

/// The parts of `range` that a map of ranges covers, in order.
fn clips(map: &BTreeMap<u64, u64>, range: Piece) -> impl Iterator<Item = Piece> + '_ {
    let first = map.range(..range.offset).next_back();
    first.into_iter().chain(map.range(range.offset..range.end())).filter_map(move |(&offset, &bytes)| {
        let (start, end) = (offset.max(range.offset), (offset + bytes).min(range.end()));
        (start < end).then(|| Piece { offset: start, bytes: end - start })
    })
}

fn join(map: &mut BTreeMap<u64, u64>, range: Piece) -> Piece {
    join_with(map, range, |_, _| ())
}

/// Inserts a range and joins it with those that it touches; `absorbed` is called for each of them.
fn join_with(map: &mut BTreeMap<u64, u64>, range: Piece, mut absorbed: impl FnMut(u64, u64)) -> Piece {
    let mut joined = range;
    let before = map.range(..range.offset).next_back().map(|(&offset, &bytes)| (offset, bytes));
    if let Some((offset, bytes)) = before.filter(|(offset, bytes)| offset + bytes == range.offset) {
        absorbed(offset, bytes);
        joined = Piece { offset, bytes: bytes + range.bytes };
    }
    if let Some(bytes) = map.remove(&range.end()) {
        absorbed(range.end(), bytes);
        joined.bytes += bytes;
    }
    map.insert(joined.offset, joined.bytes);
    joined
}

/// Cuts two lists of pieces, of which `bytes` bytes count, into runs `(from, to, bytes)` that are contiguous on
/// both sides: the single copies that a transfer is made of.
pub fn runs(from: &[Piece], to: &[Piece], bytes: u64) -> Vec<(u64, u64, u64)> {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (Piece::default(), Piece::default());
    let (mut left, mut out) = (bytes, Vec::new());
    while left > 0 {
        for (piece, rest) in [(&mut source, &mut from), (&mut target, &mut to)] {
            while piece.bytes == 0 {
                *piece = rest.next().expect("the pieces hold the bytes");
            }
        }
        let run = left.min(source.bytes).min(target.bytes);
        out.push((source.offset, target.offset, run));
        for piece in [&mut source, &mut target] {
            *piece = Piece { offset: piece.offset + run, bytes: piece.bytes - run };
        }
        left -= run;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ME: Owner = Owner::Shard(0);

    fn space(unit: u64, bytes: u64) -> Space {
        let mut space = Space::new(unit);
        space.add_span(0, bytes);
        space
    }

    fn gaps(space: &Space) -> Vec<Piece> {
        space.gaps.iter().map(|(&offset, &bytes)| piece(offset, bytes)).collect()
    }

    fn piece(offset: u64, bytes: u64) -> Piece {
        Piece { offset, bytes }
    }

    /// Used bytes at 0, 20, 30, 60: gaps of 10, 20 and 40.
    fn with_gaps() -> Space {
        let mut space = space(1, 100);
        let all: Vec<_> = [10, 10, 10, 10, 20].map(|bytes| space.allocate(bytes, ME).unwrap()).into();
        space.free(&all[1]);
        space.free(&all[4]);
        space.allocate(10, ME).unwrap();
        let tail = space.allocate(20, ME).unwrap();
        space.free(&tail);
        space.check();
        space
    }

    #[test]
    fn a_version_lies_in_one_gap_if_it_can_and_in_few_otherwise() {
        let mut space = space(1, 100);
        let all: Vec<_> = [30, 10, 20, 10, 12, 18].map(|bytes| space.allocate(bytes, ME).unwrap()).into();
        [0, 2, 4].iter().for_each(|at: &usize| space.free(&all[*at]));
        let mut one = space.clone();
        assert_eq!(one.allocate(18, ME), Some(vec![piece(40, 18)]));
        // This takes the largest gap and, of those that suffice for the rest, the smallest.
        assert_eq!(space.allocate(41, ME), Some(vec![piece(0, 30), piece(70, 11)]));
        assert_eq!(space.allocate(22, ME), None);
        assert_eq!(space.allocate(21, ME), Some(vec![piece(40, 20), piece(81, 1)]));
        space.check();
    }

    #[test]
    fn freed_pieces_join_with_the_gaps_around_them() {
        let mut space = with_gaps();
        let pieces: Vec<Piece> = space.pieces().map(|(piece, _)| piece).collect();
        space.free(&pieces);
        assert_eq!(gaps(&space), [piece(0, 100)]);
        space.check();
    }

    #[test]
    fn sizes_are_rounded_up_to_units_and_spans_down() {
        let mut space = Space::new(8);
        space.add_span(3, 30);
        assert_eq!(space.bytes(), 24);
        assert_eq!(space.allocate(0, ME), Some(vec![piece(8, 8)]));
        assert_eq!(space.allocate(9, ME), Some(vec![piece(16, 16)]));
        space.add_span(100, 3);
        assert_eq!(space.bytes(), 24);
        space.check();
    }

    #[test]
    fn spans_join_only_where_their_offsets_touch() {
        let mut space = space(1, 10);
        space.add_span(20, 10);
        assert_eq!(gaps(&space), [piece(0, 10), piece(20, 10)]);
        assert!(space.could_fit(20) && !space.could_fit(21));
        space.add_span(10, 10);
        assert_eq!(space.allocate(30, ME), Some(vec![piece(0, 30)]));
        space.check();
    }

    #[test]
    fn a_span_is_removed_only_when_it_is_free() {
        let mut space = space(1, 30);
        let first = space.allocate(5, ME).unwrap();
        assert!(!space.remove_span(piece(0, 10)));
        assert!(!space.remove_span(piece(25, 10)));
        assert!(space.remove_span(piece(10, 10)));
        assert_eq!((space.bytes(), space.free_bytes()), (20, 15));
        space.free(&first);
        assert!(space.remove_span(piece(0, 10)));
        space.check();
    }

    #[test]
    fn a_closed_span_takes_nothing_new_and_is_vacant_when_its_last_piece_has_left() {
        let mut space = space(1, 40);
        let (first, second) = (space.allocate(15, ME).unwrap(), space.allocate(10, ME).unwrap());
        // A range that cuts the second piece in two.
        assert!(!space.close_span(piece(20, 20)));
        space.check();
        assert_eq!((space.bytes(), space.free_bytes()), (20, 0));
        assert_eq!([&first, &second].map(|pieces| space.freed_by(pieces)), [15, 5]);
        space.free(&second);
        assert_eq!(space.free_bytes(), 5);
        assert!(space.close_span(piece(20, 20)));
        space.free(&first);
        space.check();
        space.add_span(20, 20);
        assert_eq!(gaps(&space), [piece(0, 40)]);
    }

    #[test]
    fn runs_are_contiguous_on_both_sides() {
        let (from, to) = ([piece(0, 10), piece(50, 20)], [piece(100, 16), piece(200, 16)]);
        assert_eq!(runs(&from, &to, 25), [(0, 100, 10), (50, 110, 6), (56, 200, 9)]);
        assert_eq!(runs(&from, &to, 0), []);
    }

    proptest! {
        #[test]
        fn what_is_allocated_never_overlaps_and_nothing_fails_while_bytes_suffice(
            steps in prop::collection::vec((0u8..10, 0u64..40), 0..80),
        ) {
            let mut space = Space::new(4);
            let (mut held, mut closing): (Vec<Vec<Piece>>, Vec<Piece>) = (Vec::new(), Vec::new());
            for (what, value) in steps {
                match what {
                    // Spans of 32, some of which touch.
                    0 | 1 => {
                        let span = piece(value % 12 * 32, 32);
                        let known = clips(&space.spans, span).next().is_some();
                        if !known && !closing.contains(&span) {
                            space.add_span(span.offset, span.bytes);
                        }
                    }
                    2 => {
                        let span = piece(value % 12 * 32, 32);
                        let (bytes, free) = (space.bytes(), space.free_bytes());
                        let taken = if space.remove_span(span) { 32 } else { 0 };
                        prop_assert_eq!((space.bytes(), space.free_bytes()), (bytes - taken, free - taken));
                    }
                    3 => {
                        let span = piece(value % 12 * 32, 32);
                        closing.retain(|closed| *closed != span);
                        if !space.close_span(span) {
                            closing.push(span);
                        }
                    }
                    4..=7 => {
                        let fits = space.free_bytes() >= space.rounded(value);
                        prop_assert_eq!(space.has_room(value), fits);
                        let pieces = space.allocate(value, ME);
                        prop_assert_eq!(pieces.is_some(), fits);
                        if let Some(pieces) = pieces {
                            prop_assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), space.rounded(value));
                            held.push(pieces);
                        }
                    }
                    _ => {
                        if !held.is_empty() {
                            let pieces = held.swap_remove(value as usize % held.len());
                            let (free, freed) = (space.free_bytes(), space.freed_by(&pieces));
                            space.free(&pieces);
                            prop_assert_eq!(space.free_bytes(), free + freed);
                        }
                    }
                }
                space.check();
            }
        }
    }
}
