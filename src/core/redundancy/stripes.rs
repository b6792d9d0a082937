//! How the shards of a set are cut into stripes, and which member holds the parity of each.
//!
//! ```text
//!   rs(2, 2), members A B C D        stripe 0   stripe 1   stripe 2   stripe 3
//!   A's shard = chunks a0 a1            P0         a1         a0         Q3
//!   B's shard = chunks b0 b1            Q0         P1         b1         b0
//!   C's shard = chunks c0 c1            c0         Q1         P2         c1
//!   D's shard = chunks d0 d1            d1         d0         Q2         P3
//! ```
//!
//! A set of n members with m parities has n stripes. In stripe s the members s, s+1, … s+m-1 (modulo n) hold parity; the
//! other k = n-m are data members in that order, and the d-th data member contributes its d-th chunk. So every member
//! contributes each of its k chunks to one stripe and holds m parities. The parity, the arithmetic and the traffic are
//! spread evenly, and no member ever sees a whole shard of another member. Chunks are as long as the longest shard needs;
//! shorter shards count as if they were followed by zeros, which are neither sent nor stored.

#![forbid(unsafe_code)]

use crate::base::Rank;
use crate::base::units::PAGE;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The maximum number of members that a set may have.
pub const MEMBERS_MAX: usize = 255;

/// A redundancy set of one checkpoint: its members in order, the lengths of their shards, and the number of parities.
///
/// It is stored with every parity part.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SetInfo {
    /// The number of parities per stripe, and of members that may be lost.
    pub parity: u32,
    /// The rank and the shard length of each member, in order.
    pub members: Vec<(Rank, u64)>,
}

/// A piece of one member's shard that is part of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// The stripe.
    pub stripe: usize,
    /// The place among the data members of the stripe.
    pub data: u32,
}

impl SetInfo {
    /// Could a correct program have written this set?
    pub fn is_sound(&self) -> bool {
        let ranks: std::collections::BTreeSet<Rank> = self.members.iter().map(|(rank, _)| *rank).collect();
        (1..=MEMBERS_MAX).contains(&self.members.len())
            && ranks.len() == self.members.len()
            && (1..self.members.len()).contains(&(self.parity as usize))
            && self.members.iter().all(|(_, length)| length.is_multiple_of(PAGE) && *length <= 1 << 62)
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The number of data members per stripe.
    pub fn data(&self) -> u32 {
        self.members.len() as u32 - self.parity
    }

    /// The place of a rank among the members.
    pub fn place(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|(member, _)| *member == rank)
    }

    /// The number of bytes per chunk, and per parity: a multiple of a page.
    pub fn chunk(&self) -> u64 {
        let longest = self.members.iter().map(|(_, length)| *length).max().unwrap_or(0);
        longest.div_ceil(u64::from(self.data())).next_multiple_of(PAGE)
    }

    /// The place of a member's chunk in its stripe.
    pub fn place_of_chunk(&self, member: usize, chunk: u32) -> ChunkPlace {
        let n = self.size();
        ChunkPlace { stripe: (member + 2 * n - self.parity as usize - chunk as usize) % n, data: chunk }
    }

    /// The member that is the `data`-th data member of a stripe, to which it contributes its chunk of the same number.
    pub fn data_member(&self, stripe: usize, data: u32) -> usize {
        (stripe + (self.parity + data) as usize) % self.size()
    }

    /// The member that holds parity number `parity` of a stripe.
    pub fn parity_member(&self, stripe: usize, parity: u32) -> usize {
        (stripe + parity as usize) % self.size()
    }

    /// The bytes of a member's shard that a range of its chunk represents; empty if the shard ends before the range.
    pub fn shard_range(&self, member: usize, chunk: u32, range: Range<u64>) -> Range<u64> {
        let length = self.members[member].1;
        let start = u64::from(chunk) * self.chunk();
        (start + range.start).min(length)..(start + range.end).min(length)
    }

    /// Can the shard of member `lost` be obtained if the marked shards and parities exist? The entry of `lost` in `shards`
    /// does not matter.
    pub fn can_rebuild(&self, lost: usize, shards: &[bool], parities: &[bool]) -> bool {
        (0..self.data()).all(|chunk| {
            let stripe = self.place_of_chunk(lost, chunk).stripe;
            let has_data = |d: &u32| self.data_member(stripe, *d) != lost && shards[self.data_member(stripe, *d)];
            let data = (0..self.data()).filter(has_data).count() as u32;
            let parity = (0..self.parity).filter(|p| parities[self.parity_member(stripe, *p)]).count() as u32;
            data + parity >= self.data()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(parity: u32, lengths: &[u64]) -> SetInfo {
        SetInfo { parity, members: lengths.iter().enumerate().map(|(i, l)| (Rank(i as u32), *l)).collect() }
    }

    proptest! {
        #[test]
        fn each_chunk_and_each_parity_has_one_place(n in 2usize..12, parity in 1u32..5, length in 0u64..64) {
            prop_assume!((parity as usize) < n);
            let set = set(parity, &vec![length * 4096; n]);
            prop_assert!(set.is_sound());
            let mut places = std::collections::BTreeSet::new();
            for member in 0..n {
                for chunk in 0..set.data() {
                    let place = set.place_of_chunk(member, chunk);
                    prop_assert_eq!(set.data_member(place.stripe, place.data), member);
                    prop_assert!(places.insert((place.stripe, place.data)));
                    prop_assert!((0..parity).all(|p| set.parity_member(place.stripe, p) != member));
                }
                for p in 0..parity {
                    let stripes = (0..n).filter(|&stripe| set.parity_member(stripe, p) == member);
                    prop_assert_eq!(stripes.count(), 1, "each member holds each parity of one stripe");
                }
            }
            prop_assert_eq!(places.len(), n * set.data() as usize);
        }

        #[test]
        fn chunks_cover_each_shard_once(lengths in proptest::collection::vec(0u64..40, 2..9), parity in 1u32..4) {
            prop_assume!((parity as usize) < lengths.len());
            let set = set(parity, &lengths.iter().map(|l| l * 4096).collect::<Vec<_>>());
            for member in 0..set.size() {
                let mut at = 0;
                for chunk in 0..set.data() {
                    let range = set.shard_range(member, chunk, 0..set.chunk());
                    prop_assert_eq!(range.start, at.min(set.members[member].1));
                    at = range.end;
                }
                prop_assert_eq!(at, set.members[member].1);
            }
        }

        #[test]
        fn as_many_lost_members_as_parities_can_be_had_again_and_no_more(n in 2usize..9, parity in 1u32..4, lost in 0u32..512) {
            prop_assume!((parity as usize) < n);
            let set = set(parity, &vec![8192; n]);
            let there: Vec<bool> = (0..n).map(|member| lost >> member & 1 == 0).collect();
            for member in 0..n {
                let others = (0..n).filter(|other| *other != member && !there[*other]).count();
                prop_assert_eq!(set.can_rebuild(member, &there, &there), others < parity as usize);
            }
        }
    }

    #[test]
    fn the_drawing_is_right() {
        let set = set(2, &[8192; 4]);
        assert_eq!(set.chunk(), 4096);
        // d1 in stripe 0, a1 in stripe 1, b0 in stripe 3.
        assert_eq!(set.place_of_chunk(3, 1), ChunkPlace { stripe: 0, data: 1 });
        assert_eq!(set.place_of_chunk(0, 1), ChunkPlace { stripe: 1, data: 1 });
        assert_eq!(set.place_of_chunk(1, 0), ChunkPlace { stripe: 3, data: 0 });
        assert_eq!(set.parity_member(3, 1), 0);
    }

    #[test]
    fn unsound_sets_are_told() {
        assert!(!set(0, &[4096; 3]).is_sound());
        assert!(!set(3, &[4096; 3]).is_sound());
        assert!(!set(1, &[4096, 100]).is_sound());
        let twice = SetInfo { parity: 1, members: vec![(Rank(1), 0), (Rank(1), 0)] };
        assert!(!twice.is_sound());
    }
}
