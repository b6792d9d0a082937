//! How two checkpoints can be compared whose regions are spread differently over the ranks.
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

/// One checkpoint, as described by one of its shards.
struct Side {
    ranks: u32,
    lies: BTreeMap<String, Lie>,
}

/// How the regions of both checkpoints are spread over the ranks.
pub struct Dealt([Option<Side>; 2]);

/// How a region is compared.
pub enum Comparison {
    /// Each rank's region is compared with that of the same rank.
    ByRank,
    /// It is compared once, because it is the same on all ranks.
    Once,
    /// Each element is compared with the element at the same place in the array.
    ByElement,
    /// It cannot be compared, for this reason.
    None(String),
}

impl Dealt {
    /// Reads the records of one shard of each checkpoint.
    ///
    /// # Errors
    /// A record cannot be read, or it is damaged.
    pub fn of(shards: [&BTreeMap<u32, FileShard>; 2]) -> Result<Dealt, Problem> {
        let side = |shards: &BTreeMap<u32, FileShard>| shards.values().next().map(side).transpose();
        Ok(Dealt([side(shards[0])?, side(shards[1])?]))
    }

    /// Were the checkpoints taken by different numbers of ranks?
    pub fn is_resized(&self) -> bool {
        matches!(&self.0, [Some(a), Some(b)] if a.ranks != b.ranks)
    }

    /// How a region is compared; `rank` is the only rank that is compared, or `None` for all ranks.
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
            // There is nothing to compare with an absent region.
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
