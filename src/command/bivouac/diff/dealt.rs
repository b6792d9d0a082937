//! How two checkpoints can be compared whose regions lie differently over the ranks.
#![forbid(unsafe_code)]

use crate::body;
use crate::ending::Problem;
use bivouac_core::decomposition::{Identity, Rule, View};
use bivouac_core::tier::source::FileShard;
use std::collections::BTreeMap;

/// How a region is spread over the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    On(Identity),
    Shared,
    Own,
}

/// One checkpoint, as one of its shards says.
struct Side {
    ranks: u32,
    lies: BTreeMap<String, Lie>,
}

/// How the regions of both lie.
pub struct Dealt([Option<Side>; 2]);

/// How a region is compared.
pub enum Comparison {
    /// Each rank's with that of the same rank.
    ByRank,
    /// Once: it is the same on all ranks.
    Once,
    /// Each element with that of the same place in the array.
    ByElement,
    /// Not at all, and why.
    None(String),
}

impl Dealt {
    /// Reads the records of one shard of each.
    ///
    /// # Errors
    /// One cannot be read, or is damaged.
    pub fn of(shards: [&BTreeMap<u32, FileShard>; 2]) -> Result<Dealt, Problem> {
        let side = |shards: &BTreeMap<u32, FileShard>| shards.values().next().map(side).transpose();
        Ok(Dealt([side(shards[0])?, side(shards[1])?]))
    }

    /// Have different numbers of ranks taken them?
    pub fn is_resized(&self) -> bool {
        matches!(&self.0, [Some(a), Some(b)] if a.ranks != b.ranks)
    }

    /// How a region is compared, of all ranks or of one.
    pub fn of_region(&self, name: &str, rank: Option<u32>) -> Comparison {
        let [Some(a), Some(b)] = &self.0 else { return Comparison::ByRank };
        let sides = [a, b].map(|side| side.lies.get(name).copied());
        let is_alone = rank.is_some();
        match sides {
            _ if is_alone && self.is_resized() => {
                let (a, b) = (a.ranks, b.ranks);
                Comparison::None(format!("{a} and {b} ranks took the checkpoints: omit --rank"))
            }
            [Some(Lie::On(one)), Some(Lie::On(other))] if one != other && is_alone => {
                Comparison::None("its decompositions differ: omit --rank".into())
            }
            [Some(Lie::On(one)), Some(Lie::On(other))] if one != other => Comparison::ByElement,
            _ if !self.is_resized() => Comparison::ByRank,
            // Of an absent one there is nothing to compare.
            [None, _] | [_, None] | [Some(Lie::Shared), Some(Lie::Shared)] => Comparison::Once,
            [Some(Lie::On(_)), _] | [_, Some(Lie::On(_))] => {
                Comparison::None("it is spread over the ranks in only one of the checkpoints".into())
            }
            _ => {
                let (a, b) = (a.ranks, b.ranks);
                Comparison::None(format!("each rank has its own, but {a} and {b} ranks took the checkpoints"))
            }
        }
    }
}

fn side(shard: &FileShard) -> Result<Side, Problem> {
    let head = shard.head();
    let regions = &head.meta.regions;
    let path = shard.path().display();
    let in_words = |problem: Problem| Problem { text: format!("{path}: {}", problem.text), ..problem };
    let record = body::decomposition_record(head, body::of_file(shard)).map_err(in_words)?;
    let view = record.as_deref().map(|record| View::of(record, regions)).transpose();
    let view = view.map_err(|error| in_words(Problem::damage(error.to_string())))?.unwrap_or_default();
    let lie = |place: usize| match view.rules.get(&place) {
        Some(Rule::On(of)) => view.decompositions.get(*of).map_or(Lie::Own, |(identity, _)| Lie::On(*identity)),
        Some(Rule::Numbered(of)) => view.lists.get(*of).map_or(Lie::Own, |(identity, _)| Lie::On(*identity)),
        Some(Rule::Shared) => Lie::Shared,
        Some(Rule::PerRank(_) | Rule::Rows { .. }) | None => Lie::Own,
    };
    let lies = regions.iter().enumerate().map(|(place, region)| (region.name.clone(), lie(place)));
    Ok(Side { ranks: head.header.group_size, lies: lies.collect() })
}
