//! The record of how a checkpoint's regions are spread over the ranks, and of which values are the same on all ranks.
#![forbid(unsafe_code)]

use crate::base::text::list;
use crate::decomposition::ids::List;
use crate::decomposition::{Decomposition, Identity, Layout, RowSet, Rule, record};
use crate::format::supervision::Bound;
use crate::region::SavedRegion;
use crate::transfer::checkpoint::Agreed;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// The maximum number of shared values that a message names.
const NAMED: usize = 6;

/// This rank's record of one checkpoint, while the checkpoint's regions are being added.
#[derive(Default)]
pub(super) struct Terms {
    /// The decompositions into boxes, with this rank's boxes as records encode them.
    decompositions: Vec<(Identity, Arc<[u8]>)>,
    /// The lists of numbers.
    lists: Vec<(Identity, List)>,
    /// The rule of each region, by the region's place.
    rules: BTreeMap<usize, Rule>,
    shared: Vec<(String, u128)>,
    /// The sets of rows, with their names.
    rows: Vec<(String, RowSet)>,
}

impl Terms {
    /// Records that the region at `place` lies on a decomposition.
    pub fn on(&mut self, place: usize, on: &Decomposition) {
        let rule = match on.layout() {
            Layout::Boxes { packed, .. } => Rule::On(place_of(&mut self.decompositions, on.identity(), packed)),
            Layout::Listed(list) => Rule::Numbered(place_of(&mut self.lists, on.identity(), list)),
        };
        self.rules.insert(place, rule);
    }

    /// Records that the value at `place` is the same on all ranks.
    pub fn shared(&mut self, place: usize, name: &str, bytes: &[u8]) {
        self.rules.insert(place, Rule::Shared);
        self.shared.push((name.into(), xxhash_rust::xxh3::xxh3_128(bytes)));
    }

    /// Is there a set of rows called `name`?
    pub fn has_rows(&self, name: &str) -> bool {
        self.rows.iter().any(|(known, _)| known == name)
    }

    /// Adds a set of rows, and returns its place among the sets.
    pub fn rows(&mut self, name: &str, rows: RowSet) -> usize {
        self.rows.push((name.into(), rows));
        self.rows.len() - 1
    }

    /// Records how the region at `place` is spread over the ranks.
    pub fn rule(&mut self, place: usize, rule: Rule) {
        self.rules.insert(place, rule);
    }

    /// Makes room for a region at `place`: the regions from there onwards move up by one place.
    pub fn make_place(&mut self, place: usize) {
        let behind = self.rules.split_off(&place);
        self.rules.extend(behind.into_iter().map(|(at, rule)| (at + 1, rule)));
    }

    /// The record as bytes; `None` if it is empty.
    pub fn record(&self) -> Option<Vec<u8>> {
        if self.rules.is_empty() {
            return None;
        }
        let rows: Vec<RowSet> = self.rows.iter().map(|(_, rows)| rows.clone()).collect();
        let lists: Vec<_> = self.lists.iter().map(|(identity, list)| (*identity, list.head())).collect();
        Some(record::encode(&self.decompositions, &self.rules, (&rows, &lists)))
    }

    /// The lists of numbers, in the order in which they were added.
    pub fn lists(&self) -> impl Iterator<Item = &List> {
        self.lists.iter().map(|(_, list)| list)
    }

    /// The regions that bind the checkpoint to its number of ranks.
    pub fn bound(&self, regions: &[SavedRegion<'_>]) -> Bound {
        let bound = regions.iter().enumerate().filter(|(place, _)| record::binds(self.rules.get(place)));
        Bound::of(bound.map(|(_, saved)| saved.region.name.as_str()))
    }

    /// The part of the record on which all ranks must agree.
    pub fn agreed(&self) -> Agreed {
        if self.rules.is_empty() {
            return Agreed::default();
        }
        let mut hasher = Xxh3::new();
        self.rules.hash(&mut hasher);
        self.decompositions.iter().for_each(|(identity, _)| identity.hash(&mut hasher));
        self.lists.iter().for_each(|(identity, _)| identity.hash(&mut hasher));
        self.shared.hash(&mut hasher);
        let shared = self.shared.iter().map(|(name, hash)| format!("{name} = {:08x}", *hash as u32));
        let text = match self.shared.is_empty() {
            true => String::new(),
            false => format!("; shared (hashes): {}", list(shared, NAMED, ", ")),
        };
        Agreed { hash: hasher.finish(), text }
    }
}

/// The place of the entry with this identity. If it is new, it is added at the end.
fn place_of<T: Clone>(all: &mut Vec<(Identity, T)>, identity: Identity, new: &T) -> usize {
    let known = all.iter().position(|(known, _)| *known == identity);
    known.unwrap_or_else(|| {
        all.push((identity, new.clone()));
        all.len() - 1
    })
}
