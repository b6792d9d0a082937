//! Which ranks hold which parts of the checkpoints that a restart considers, and how shards can be obtained from these
//! parts. Pure.

#![forbid(unsafe_code)]

use super::stripes::SetInfo;
use crate::base::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A part of a checkpoint that a rank holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Item {
    /// The shard of a rank.
    Shard(Rank),
    /// The parity part that a rank kept.
    Part(Rank),
}

/// An item that a rank can read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Holding {
    /// The candidate, by its place in the window of the election.
    pub candidate: u8,
    /// The item.
    pub item: Item,
    /// The rank that can read it.
    pub holder: Rank,
    /// The length of the item in bytes.
    pub bytes: u64,
    /// The set to which a part belongs.
    pub set: Option<SetInfo>,
}

/// A way to obtain a shard that is not on the rank's own node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Alternative {
    /// Another node holds the whole shard.
    Copy {
        /// The rank that reads it there.
        holder: Rank,
        /// The length of the shard in bytes.
        bytes: u64,
    },
    /// The shard can be rebuilt.
    Rebuild {
        /// The set.
        set: SetInfo,
        /// For each member, the rank that can read its shard.
        shards: Vec<Option<Rank>>,
        /// For each member, the rank that can read its parity part, and the length of the part.
        parts: Vec<Option<(Rank, u64)>>,
    },
}

/// All holdings of one candidate, sorted for look-ups.
#[derive(Default)]
pub struct Table {
    shards: BTreeMap<Rank, Vec<(Rank, u64)>>,
    parts: BTreeMap<Rank, (Rank, u64)>,
    /// Each set occurs once, identified by its members.
    sets: Vec<SetInfo>,
    set_of: BTreeMap<Rank, Vec<usize>>,
}

impl Table {
    /// The table of one candidate.
    pub fn of<'h>(holdings: impl IntoIterator<Item = &'h Holding>, candidate: u8) -> Table {
        let mut table = Table::default();
        let mut sets = std::collections::BTreeSet::new();
        for holding in holdings.into_iter().filter(|holding| holding.candidate == candidate) {
            match holding.item {
                Item::Shard(rank) => {
                    table.shards.entry(rank).or_default().push((holding.holder, holding.bytes));
                }
                Item::Part(rank) => {
                    table.parts.entry(rank).or_insert((holding.holder, holding.bytes));
                    sets.extend(holding.set.iter().filter(|set| set.is_sound()).cloned());
                }
            }
        }
        for holders in table.shards.values_mut() {
            holders.sort_unstable();
            holders.dedup();
        }
        for (index, set) in sets.into_iter().enumerate() {
            for (rank, _) in &set.members {
                table.set_of.entry(*rank).or_default().push(index);
            }
            table.sets.push(set);
        }
        table
    }

    /// Can this rank's shard be obtained from anywhere?
    pub fn has(&self, rank: Rank) -> bool {
        self.shards.contains_key(&rank) || self.rebuilds(rank).next().is_some()
    }

    /// All ways to obtain a rank's shard, apart from the copies that `own` itself has, best first.
    pub fn alternatives(&self, rank: Rank, own: Rank) -> Vec<Alternative> {
        let copies = self.shards.get(&rank).into_iter().flatten().filter(|(holder, _)| *holder != own);
        let copies = copies.map(|(holder, bytes)| Alternative::Copy { holder: *holder, bytes: *bytes });
        copies.chain(self.rebuilds(rank)).collect()
    }

    fn rebuilds(&self, rank: Rank) -> impl Iterator<Item = Alternative> + '_ {
        let sets = self.set_of.get(&rank).into_iter().flatten();
        sets.filter_map(move |index| {
            let set = &self.sets[*index];
            let holder = |member: &Rank| self.shards.get(member).and_then(|holders| holders.first()).map(|(h, _)| *h);
            let shards: Vec<Option<Rank>> =
                set.members.iter().map(|(member, _)| holder(member).filter(|_| *member != rank)).collect();
            let parts: Vec<_> = set.members.iter().map(|(member, _)| self.parts.get(member).copied()).collect();
            let has_shard: Vec<bool> = shards.iter().map(Option::is_some).collect();
            let has_part: Vec<bool> = parts.iter().map(Option::is_some).collect();
            let place = set.place(rank)?;
            set.can_rebuild(place, &has_shard, &has_part).then(|| Alternative::Rebuild {
                set: set.clone(),
                shards,
                parts,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(rank: u32, holder: u32) -> Holding {
        Holding { candidate: 0, item: Item::Shard(Rank(rank)), holder: Rank(holder), bytes: 8192, set: None }
    }

    fn part(rank: u32, set: &SetInfo) -> Holding {
        Holding { candidate: 0, item: Item::Part(Rank(rank)), holder: Rank(rank), bytes: 12288, set: Some(set.clone()) }
    }

    #[test]
    fn a_shard_is_had_from_a_copy_or_from_its_set_or_not_at_all() {
        let set = SetInfo { parity: 1, members: (0..4).map(|rank| (Rank(rank), 8192)).collect() };
        let mut all: Vec<Holding> = (0..3).map(|rank| shard(rank, rank)).collect();
        assert!(!Table::of(&all, 0).has(Rank(3)));
        all.extend((0..3).map(|rank| part(rank, &set)));
        let table = Table::of(&all, 0);
        assert!(table.has(Rank(3)) && table.has(Rank(0)));
        assert!(
            matches!(&table.alternatives(Rank(3), Rank(3))[..], [Alternative::Rebuild { shards, .. }] if shards[3].is_none())
        );
        assert!(!Table::of(&all, 1).has(Rank(0)));
        // The shard of rank 0 exists, but it cannot be obtained from the others alone, because rank 3 is lost too.
        assert!(table.alternatives(Rank(0), Rank(0)).is_empty());
        all.push(shard(3, 1));
        let table = Table::of(&all, 0);
        assert!(matches!(table.alternatives(Rank(3), Rank(3))[0], Alternative::Copy { holder: Rank(1), .. }));
        // One of the stripes of rank 0 has its parity on the lost rank 3.
        assert!(table.alternatives(Rank(0), Rank(0)).is_empty());
        all.push(part(3, &set));
        let table = Table::of(&all, 0);
        assert!(matches!(&table.alternatives(Rank(0), Rank(0))[..], [Alternative::Rebuild { .. }]));
    }
}
