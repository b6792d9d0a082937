//! The node-memory tier of a cache: leases of the node segment, next to each other in one numbering.
#![forbid(unsafe_code)]

use crate::base::sync::{Guard, Lock, Order};
use crate::cache::Piece;
use crate::segment::{Lease, LeasePart, LeaseView};
use std::collections::BTreeMap;
use std::ops::Range;

/// The leases by the offset of their first byte in the cache's numbering.
pub(super) struct Lines {
    lines: Lock<BTreeMap<u64, Lease>>,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { lines: Lock::at(Order::Outer, BTreeMap::new()) }
    }
}

impl Lines {
    fn lock(&self) -> Guard<'_, BTreeMap<u64, Lease>> {
        self.lines.lock()
    }

    /// Adds a lease and returns its offset. Lines never touch: a transfer that crosses from one lease into another is cut.
    pub(super) fn add(&self, lease: Lease) -> u64 {
        let mut lines = self.lock();
        let offset = lines.last_key_value().map_or(0, |(offset, line)| offset + line.len() + crate::base::units::PAGE);
        lines.insert(offset, lease);
        offset
    }

    /// The ranges of the lines in the segment, oldest first.
    pub(super) fn places(&self) -> Vec<Range<u64>> {
        self.lock().values().map(|line| line.offset()..line.offset() + line.len()).collect()
    }

    /// Lends a piece for writing, cut at the ends of lines.
    pub(super) fn lend(&self, piece: Piece) -> Option<Vec<LeasePart>> {
        self.cut(piece, Lease::lend)
    }

    /// Lends a piece for reading, cut at the ends of lines.
    pub(super) fn view(&self, piece: Piece) -> Option<Vec<LeaseView>> {
        self.cut(piece, Lease::view)
    }

    fn cut<T>(&self, piece: Piece, take: impl Fn(&Lease, Range<u64>) -> Option<T>) -> Option<Vec<T>> {
        let lines = self.lock();
        let mut parts = Vec::new();
        let mut at = piece.offset;
        while at < piece.end() {
            let (offset, line) = lines.range(..=at).next_back()?;
            let end = piece.end().min(offset + line.len());
            if end <= at {
                return None;
            }
            parts.push(take(line, at - offset..end - offset)?);
            at = end;
        }
        Some(parts)
    }
}
