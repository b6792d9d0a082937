//! The order in which pieces are sent: the order in which the program wrote to them after the previous mark, because it will usually do so
//! again. Pure.
#![forbid(unsafe_code)]

use std::ops::Range;

/// The order in which pieces were first written to.
#[derive(Default)]
pub(super) struct Order {
    /// For each piece, its place among the writes after the last mark; `u32::MAX` if nobody has declared a write to it.
    first: Vec<u32>,
    writes: u32,
}

impl Order {
    /// A shard of this many pieces is marked. Returns the order in which to send them; from now on, writes count for the next shard.
    pub fn on_mark(&mut self, pieces: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..pieces as u32).collect();
        if self.first.len() == pieces {
            order.sort_by_key(|piece| self.first[*piece as usize]);
        }
        self.first.clear();
        self.first.resize(pieces, u32::MAX);
        self.writes = 0;
        order
    }

    /// A write to these pieces is declared.
    pub fn on_write(&mut self, pieces: Range<usize>) {
        let is_new = self.first[pieces.clone()].contains(&u32::MAX);
        for first in self.first[pieces].iter_mut().filter(|first| **first == u32::MAX) {
            *first = self.writes;
        }
        self.writes += u32::from(is_new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_first_is_sent_first_and_what_never_was_last() {
        let mut order = Order::default();
        assert_eq!(order.on_mark(5), [0, 1, 2, 3, 4]);
        order.on_write(3..5);
        order.on_write(1..4);
        order.on_write(0..0);
        assert_eq!(order.on_mark(5), [3, 4, 1, 2, 0]);
        // Nothing has been written since.
        assert_eq!(order.on_mark(5), [0, 1, 2, 3, 4]);
        order.on_write(4..5);
        assert_eq!(order.on_mark(3), [0, 1, 2]);
    }
}
