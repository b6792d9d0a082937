//! Which versions are worth draining. Pure.
//!
//! Nodes decide alone, but must all take the same version, because only a version that all of them bring is complete. One node knows the
//! following:
//!
//! - A version that was committed on a tier was captured (or published) there by *all* ranks before any rank was told so.
//!   So if one node knows that version v was committed on that tier, every other node that still has this tier has v on it,
//!   too: either as a version that it also knows to be committed, or as a sealed version whose verdict it no longer heard.
//! - A slot or file is given up only after a later version was committed on its tier.
//!
//! The following rule results for each series and each tier (memory, local): take *the newest version that this node knows to be committed
//! on that tier, and everything on that tier that was taken after it.* Two nodes that both still have the tier then both take the newest
//! version committed there. Each tier counts by itself, because nodes may have lost different tiers: a node that was rebooted has its disk
//! but no memory, and its versions are completed by the disks of the other nodes, not by their memory, which may be newer.
//!
//! Such a version need not survive the loss of a node, and if it does not, it is never complete. So every node also takes *every version
//! that has a parity part or a copy for another rank here, or that is marked as one that survives lost nodes*. On all nodes, a run keeps
//! its newest version of this kind until it has a newer one. There are few such versions.
//!
//! "Newer" means taken later: by generation, then by operation. Version numbers do not tell this, because the application chooses them, and
//! an application that has gone back takes smaller ones later. Which version a restart then elects is decided by lineage, as always, over
//! what all nodes have brought.

use super::{Collected, Damage, Piece};
use crate::base::{Generation, Incarnation, Rank};
use crate::catalog::Candidate;
use crate::redundancy::stripes::SetInfo;
use crate::tier::TierId;
use crate::tier::names::Series;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How much to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Which {
    /// The newest committed version of each series and tier, what was taken after it, and what may survive lost nodes.
    #[default]
    Newest,
    /// Everything.
    All,
}

/// A checkpoint to drain, with all copies of shards that this node has.
#[derive(Clone)]
pub struct Chosen {
    /// The series.
    pub series: Series,
    /// The checkpoint.
    pub candidate: Candidate,
    /// The copies of each rank's shard, the nearest first. If there are none, the shard is known to have been here and is not usable.
    pub pieces: BTreeMap<Rank, Vec<Piece>>,
    /// Copies of parity parts, by the member that kept them and its set.
    pub parts: BTreeMap<(Rank, SetInfo), Vec<Piece>>,
    /// The tiers on which it is known to have been committed.
    pub committed: BTreeSet<TierId>,
    /// What is wrong here with parts of this checkpoint.
    pub damage: Vec<Damage>,
}

/// When a checkpoint was taken, as far as its numbers tell.
type Taken = (Generation, u64, Incarnation);

fn taken(candidate: &Candidate) -> Taken {
    (candidate.key.generation, candidate.key.operation, candidate.key.incarnation)
}

/// Chooses from what was collected, over all series, the newest first. Also returns damage that concerns none of the chosen checkpoints but
/// may be a loss, because the damaged checkpoint is newer than all of them, or cannot be determined.
pub fn select(collected: Collected, which: Which) -> (Vec<Chosen>, Vec<Damage>) {
    let mut on: BTreeMap<Series, BTreeSet<(TierId, Candidate)>> = BTreeMap::new();
    for piece in collected.pieces.iter().chain(collected.parts.iter().map(|(piece, _)| piece)) {
        on.entry(piece.series.clone()).or_default().insert((piece.tier(), piece.candidate));
    }
    let mut committed: BTreeMap<Series, BTreeSet<(TierId, Candidate)>> = BTreeMap::new();
    for (series, tier, candidate) in &collected.committed {
        on.entry(series.clone()).or_default().insert((*tier, *candidate));
        committed.entry(series.clone()).or_default().insert((*tier, *candidate));
    }
    let mut protected: BTreeMap<Series, BTreeSet<Candidate>> = BTreeMap::new();
    for (series, candidate) in &collected.protected {
        protected.entry(series.clone()).or_default().insert(*candidate);
    }
    let mut chosen: Vec<Chosen> = Vec::new();
    for (series, on) in on {
        let committed = committed.remove(&series).unwrap_or_default();
        let wanted = choose(&on, &committed, &protected.remove(&series).unwrap_or_default(), which);
        let tiers = |candidate| committed.iter().filter(move |(_, known)| *known == candidate).map(|(tier, _)| *tier);
        chosen.extend(wanted.into_iter().map(|candidate| Chosen {
            series: series.clone(),
            candidate,
            pieces: BTreeMap::new(),
            parts: BTreeMap::new(),
            committed: tiers(candidate).collect(),
            damage: Vec::new(),
        }));
    }
    chosen.sort_by_key(|chosen| (Reverse(taken(&chosen.candidate)), chosen.series.clone()));
    let index: BTreeMap<(Series, Candidate), usize> =
        chosen.iter().enumerate().map(|(at, chosen)| ((chosen.series.clone(), chosen.candidate), at)).collect();
    for piece in collected.pieces {
        if let Some(at) = index.get(&(piece.series.clone(), piece.candidate)) {
            chosen[*at].pieces.entry(piece.rank).or_default().push(piece);
        }
    }
    for (piece, set) in collected.parts {
        if let Some(at) = index.get(&(piece.series.clone(), piece.candidate)) {
            chosen[*at].parts.entry((piece.rank, set)).or_default().push(piece);
        }
    }
    for chosen in &mut chosen {
        let copies = chosen.pieces.values_mut().chain(chosen.parts.values_mut());
        copies.for_each(|copies| copies.sort_by_key(Piece::tier));
    }
    let loose = collected.damage.into_iter().filter(|damage| !place(damage, &mut chosen)).collect();
    (chosen, loose)
}

/// The rule of the module, for one series.
fn choose(
    on: &BTreeSet<(TierId, Candidate)>,
    committed: &BTreeSet<(TierId, Candidate)>,
    protected: &BTreeSet<Candidate>,
    which: Which,
) -> BTreeSet<Candidate> {
    let newest = |tier: TierId| {
        committed.iter().filter(|(known, _)| *known == tier).map(|(_, candidate)| taken(candidate)).max()
    };
    let is_wanted = |tier: TierId, candidate: &Candidate| {
        which == Which::All
            || protected.contains(candidate)
            || newest(tier).is_none_or(|newest| taken(candidate) >= newest)
    };
    on.iter().filter(|(tier, candidate)| is_wanted(*tier, candidate)).map(|(_, candidate)| *candidate).collect()
}

/// Assigns damage to the checkpoint that it concerns. Also true if it concerns a checkpoint that is older than a chosen one.
fn place(damage: &Damage, chosen: &mut [Chosen]) -> bool {
    let Some((generation, version, operation)) = damage.order else { return false };
    let mut is_older = false;
    for chosen in chosen.iter_mut().filter(|chosen| damage.may_concern(&chosen.series)) {
        let key = &chosen.candidate.key;
        if (key.generation, key.version, key.operation) == (generation, version, operation) {
            if let Some(rank) = damage.rank {
                chosen.pieces.entry(rank).or_default();
            }
            chosen.damage.push(damage.clone());
            return true;
        }
        is_older |= (key.generation, key.operation) > (generation, operation);
    }
    is_older
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CheckpointKey;
    use proptest::prelude::*;

    fn at(generation: u64, version: u64, operation: u64) -> Candidate {
        Candidate {
            key: CheckpointKey { generation: Generation(generation), version, operation, ..Default::default() },
            agreement: 1,
            group_size: 4,
            origin: None,
        }
    }

    fn v(version: u64) -> Candidate {
        at(1, version, version)
    }

    fn chosen(on: &[(TierId, Candidate)], committed: &[(TierId, Candidate)]) -> Vec<u64> {
        let (on, committed) = (on.iter().copied().collect(), committed.iter().copied().collect());
        choose(&on, &committed, &BTreeSet::new(), Which::Newest).iter().map(|candidate| candidate.key.version).collect()
    }

    #[test]
    fn the_newest_committed_version_and_what_was_taken_after_it() {
        let on = [(TierId::MEMORY, v(20)), (TierId::MEMORY, v(30)), (TierId::MEMORY, v(40))];
        assert_eq!(chosen(&on, &[(TierId::MEMORY, v(20)), (TierId::MEMORY, v(30))]), [30, 40]);
        assert_eq!(chosen(&on, &[(TierId::MEMORY, v(40))]), [40]);
        // Nothing is known to be committed: any of these versions may have been.
        assert_eq!(chosen(&on, &[]), [20, 30, 40]);
    }

    #[test]
    fn each_tier_counts_by_itself() {
        let on = [(TierId::LOCAL, v(10)), (TierId::LOCAL, v(20)), (TierId::LOCAL, v(25)), (TierId::MEMORY, v(30))];
        assert_eq!(
            chosen(&on, &[(TierId::LOCAL, v(10)), (TierId::LOCAL, v(20)), (TierId::MEMORY, v(30))]),
            [20, 25, 30]
        );
    }

    #[test]
    fn what_may_survive_lost_nodes_is_taken_however_old_it_is() {
        let on = [(TierId::MEMORY, v(10)), (TierId::LOCAL, v(20)), (TierId::MEMORY, v(20)), (TierId::MEMORY, v(30))]
            .into_iter()
            .collect();
        let committed =
            [(TierId::MEMORY, v(20)), (TierId::MEMORY, v(30)), (TierId::LOCAL, v(20))].into_iter().collect();
        let of = |protected: &[Candidate]| -> Vec<u64> {
            let protected = protected.iter().copied().collect();
            choose(&on, &committed, &protected, Which::Newest).iter().map(|chosen| chosen.key.version).collect()
        };
        assert_eq!(of(&[]), [20, 30]);
        assert_eq!(of(&[v(10)]), [10, 20, 30]);
    }

    #[test]
    fn a_version_taken_later_is_newer_whatever_its_number() {
        // The run took version 60, went back to 50, and took 55. Another run came before all of this.
        let on = [(TierId::MEMORY, at(2, 60, 6)), (TierId::MEMORY, at(2, 55, 10)), (TierId::MEMORY, at(1, 99, 99))];
        assert_eq!(chosen(&on, &[(TierId::MEMORY, at(2, 60, 6)), (TierId::MEMORY, at(1, 99, 99))]), [55, 60]);
        assert_eq!(chosen(&on, &[(TierId::MEMORY, at(2, 55, 10)), (TierId::MEMORY, at(2, 60, 6))]), [55]);
    }

    #[test]
    fn all_means_all() {
        let on = [(TierId::MEMORY, v(20)), (TierId::LOCAL, v(10))].into_iter().collect();
        let committed = [(TierId::MEMORY, v(20))].into_iter().collect();
        assert_eq!(choose(&on, &committed, &BTreeSet::new(), Which::All).len(), 2);
    }

    proptest! {
        /// Versions are taken in order. Each is committed on a tier when all nodes have it there. Nodes learn of this, and give up older
        /// versions, at different times. At whatever moment the job dies, all nodes take the newest committed version.
        #[test]
        fn all_nodes_take_the_newest_committed_version(
            committed in 1u64..20, taken_by in proptest::collection::vec(0u64..3, 2..6),
            heard in proptest::collection::vec(any::<bool>(), 6), kept in proptest::collection::vec(0u64..4, 6),
        ) {
            for (node, ahead) in taken_by.iter().enumerate() {
                // The first node is the one that knows; the others may have been told only about the previous version.
                let knows = if node == 0 || heard[node] { committed } else { committed - 1 };
                let oldest = knows.saturating_sub(kept[node]).max(1);
                let on: Vec<_> = (oldest..=committed + ahead).map(|version| (TierId::MEMORY, v(version))).collect();
                let known: Vec<_> = (oldest..=knows).map(|version| (TierId::MEMORY, v(version))).collect();
                prop_assert!(chosen(&on, &known).contains(&committed));
            }
        }
    }

    #[test]
    fn damage_is_put_to_its_checkpoint_or_stays_a_loss_that_nobody_can_rule_out() {
        let series = |name: &str| Series { job: "j".into(), group: "g".into(), name: name.into() };
        let damage = |name: &str, version: u64, rank| Damage {
            tier: TierId::LOCAL,
            series: Some(series(name)),
            name_hash: None,
            order: Some((Generation(1), version, version)),
            rank,
            why: "bad".into(),
        };
        let unknown = Damage {
            tier: TierId::MEMORY,
            series: None,
            name_hash: None,
            order: None,
            rank: None,
            why: "worse".into(),
        };
        let collected = Collected {
            committed: [(series("heat"), TierId::LOCAL, v(20))].into_iter().collect(),
            damage: vec![
                damage("heat", 20, Some(Rank(3))),
                damage("heat", 10, None),
                damage("heat", 30, None),
                damage("flow", 10, None),
                unknown.clone(),
            ],
            ..Default::default()
        };
        let (chosen, loose) = select(collected, Which::Newest);
        assert_eq!(chosen.len(), 1);
        assert_eq!(chosen[0].damage, [damage("heat", 20, Some(Rank(3)))]);
        assert!(chosen[0].pieces[&Rank(3)].is_empty());
        assert_eq!(loose, [damage("heat", 30, None), damage("flow", 10, None), unknown]);
    }
}
