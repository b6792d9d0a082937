//! Which checkpoints of a series the files of a new one may refer to, and which stay because files refer to them.
//!
//! The root chooses ([`References::choose`]) among the checkpoints that are committed on every tier to which the new one goes, and that
//! stay there, and announces the choice with its plan. With each commit, the root announces what stays on that tier ([`References::stay`]):
//! the last checkpoints that retention keeps, their sources, and the sources of whatever has been agreed on but not settled there. All
//! ranks remember that, and delete none of it. So nothing that another rank's file refers to can be deleted, even if a rank has not heard
//! everything.

use super::books::Facts;
use crate::base::Origin;
use crate::config::JobConfig;
use crate::format::SourceKey;
use crate::reduction::STORED;
use crate::tier::{Gathering, Means, PerTier, TierId, TierSet};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A checkpoint that goes to files.
struct Version {
    key: SourceKey,
    origin: Option<Origin>,
    sources: Vec<SourceKey>,
    /// Those of its tiers whose files may refer to other files.
    planned: TierSet,
    /// Root: the tiers on which it has decided that all ranks have this version.
    decided: TierSet,
    committed: TierSet,
    settled: TierSet,
}

/// How many versions are remembered although nothing is known to need them: retention may keep some by its own rules.
const REMEMBERED: usize = 1000;

/// What stays on a tier, and the number of the announcement that says so: the later of two announcements counts.
#[derive(Clone, Default)]
struct Stays {
    number: u64,
    operations: BTreeSet<u64>,
}

#[derive(Default)]
struct Series {
    versions: BTreeMap<u64, Version>,
    /// What stays according to the last announcement.
    stays: PerTier<Stays>,
    /// Root: the number of checkpoints since the last one without references.
    since_whole: u64,
}

/// The references between the checkpoints of all series of a run.
pub struct References {
    job: JobConfig,
    series: HashMap<String, Series>,
}

/// The tiers whose files may refer to earlier files. Where one rank writes for all, that rank has only the bytes of the others.
fn referring() -> TierSet {
    let refers = |tier: &TierId| tier.spec().means == Means::Files && tier.spec().gathering != Gathering::ByOne;
    TierId::all().filter(refers).collect()
}

impl References {
    /// Without checkpoints.
    pub fn new(job: &JobConfig) -> References {
        References { job: job.clone(), series: HashMap::new() }
    }

    /// May files of a tier refer to earlier ones?
    pub fn refers_on(tier: TierId) -> bool {
        referring().has(tier)
    }

    /// May files refer to earlier ones at all?
    pub fn is_on(&self) -> bool {
        self.job.reduction.is_on()
    }

    /// Does the policy of a tier keep that version for good?
    fn is_pinned(&self, tier: TierId, version: u64) -> bool {
        let every = tier.wish(&self.job).policy.map_or(0, |policy| policy.keep_every);
        every > 0 && version.is_multiple_of(every)
    }

    /// Root: what the files of a checkpoint that goes to these tiers may refer to. `uses` is what the ranks say about
    /// it, added up and ascending ([`crate::reduction::Versions::uses`]).
    pub fn choose(&mut self, facts: &Facts, plan: TierSet, uses: &[(u64, u64)]) -> Vec<SourceKey> {
        let planned = plan.and(referring());
        if !self.is_on() || planned.is_empty() {
            return Vec::new();
        }
        let reduction = self.job.reduction.clone();
        let is_pinned = planned.iter().any(|tier| self.is_pinned(tier, facts.key.version));
        let series = self.series.entry(facts.series.name.clone()).or_default();
        series.since_whole += 1;
        let is_whole = is_pinned || (reduction.whole_every > 0 && series.since_whole >= reduction.whole_every);
        let use_of = |key: u64| uses.binary_search_by_key(&key, |(other, _)| *other).map_or(0, |at| uses[at].1);
        let stays = |operation| planned.iter().all(|tier| series.stays[tier].operations.contains(&operation));
        let may = |version: &&Version| {
            let operation = version.key.key.operation;
            let used = use_of(operation);
            let is_live = used > 0 && used as f64 >= reduction.live * use_of(operation | STORED) as f64;
            version.origin == facts.origin && version.committed.and(planned) == planned && is_live && stays(operation)
        };
        let mut sources: Vec<SourceKey> = match is_whole {
            true => Vec::new(),
            false => series.versions.values().filter(may).map(|version| version.key).collect(),
        };
        sources.sort_by_key(|source| std::cmp::Reverse(use_of(source.key.operation)));
        sources.truncate(reduction.sources as usize);
        sources.sort_unstable();
        if sources.is_empty() {
            series.since_whole = 0;
        }
        series.enter(facts, planned, sources.clone());
        sources
    }

    /// All ranks have agreed on a checkpoint, on what its files may refer to, and on where it goes.
    pub fn planned(&mut self, facts: &Facts, plan: TierSet, sources: &[SourceKey]) {
        let planned = plan.and(referring());
        if self.is_on() && !planned.is_empty() {
            let series = self.series.entry(facts.series.name.clone()).or_default();
            if !series.versions.contains_key(&facts.key.operation) {
                series.enter(facts, planned, sources.to_vec());
            }
        }
    }

    /// Root: what stays on a tier when that checkpoint is committed there. From now on nothing else is chosen.
    pub fn stay(&mut self, facts: &Facts, tier: TierId) -> Option<(u64, Vec<u64>)> {
        if !self.is_on() || !referring().has(tier) {
            return None;
        }
        let keep_last = tier.wish(&self.job).policy.map_or(1, |policy| policy.keep_last).max(1);
        let current = facts.key.operation;
        let series = self.series.entry(facts.series.name.clone()).or_default();
        if let Some(version) = series.versions.get_mut(&current) {
            version.decided.insert(tier);
        }
        // The ranks, including this one, may not have heard yet of what was decided.
        let on_tier = |version: &&Version| version.decided.has(tier);
        let mut stay: BTreeSet<u64> = BTreeSet::new();
        for version in series.versions.values().rev().filter(on_tier).take(keep_last as usize) {
            stay.insert(version.key.key.operation);
            stay.extend(version.sources.iter().map(|source| source.key.operation));
        }
        // A plan that was agreed on refers to these sources, and may still be committed.
        let is_open = |version: &&Version| version.planned.has(tier) && !version.settled.has(tier);
        for version in series.versions.values().filter(is_open) {
            stay.extend(version.sources.iter().map(|source| source.key.operation));
        }
        stay.insert(current);
        let number = series.stays[tier].number + 1;
        series.stays[tier] = Stays { number, operations: stay.clone() };
        Some((number, stay.into_iter().collect()))
    }

    /// A level of a checkpoint has ended, committed or not, and the root may have said what stays on its tier. Returns the parts of the
    /// series that are still of use.
    pub fn settled(
        &mut self,
        facts: &Facts,
        tier: TierId,
        is_committed: bool,
        stay: Option<(u64, Vec<u64>)>,
    ) -> Option<Vec<u64>> {
        let series = self.series.get_mut(&facts.series.name)?;
        if let Some(version) = series.versions.get_mut(&facts.key.operation) {
            version.settled.insert(tier);
            if is_committed {
                version.committed.insert(tier);
            }
        }
        match stay {
            Some((number, operations)) if number > series.stays[tier].number => {
                series.stays[tier] = Stays { number, operations: operations.into_iter().collect() };
            }
            Some(_) => {}
            // Without the root's word, nothing is known to have been deleted.
            None if is_committed => _ = series.stays[tier].operations.insert(facts.key.operation),
            None => {}
        }
        let stays = &series.stays;
        let is_of_use = |operation: &u64, version: &Version| {
            version.settled.and(version.planned) != version.planned
                || stays.iter().any(|(_, stay)| stay.operations.contains(operation))
        };
        let of_use = series.versions.iter().filter(|(operation, version)| is_of_use(operation, version));
        let of_use: Vec<u64> = of_use.map(|(operation, _)| *operation).collect();
        let oldest = series.versions.keys().rev().nth(REMEMBERED).copied().unwrap_or_default();
        series.versions.retain(|operation, version| *operation > oldest || is_of_use(operation, version));
        Some(of_use)
    }

    /// The checkpoint was never agreed on.
    pub fn refused(&mut self, facts: &Facts) {
        if let Some(series) = self.series.get_mut(&facts.series.name) {
            series.versions.remove(&facts.key.operation);
        }
    }

    /// What stays of a series on a tier because the root says so.
    pub fn stays(&self, name: &str, tier: TierId) -> BTreeSet<u64> {
        self.series.get(name).map(|series| series.stays[tier].operations.clone()).unwrap_or_default()
    }

    /// What the files of a checkpoint on a tier may refer to, if that is still remembered.
    pub fn sources(&self, name: &str, operation: u64, tier: TierId) -> Option<&[SourceKey]> {
        let version = self.series.get(name)?.versions.get(&operation)?;
        Some(if version.planned.has(tier) { &version.sources } else { &[] })
    }
}

impl Series {
    fn enter(&mut self, facts: &Facts, planned: TierSet, sources: Vec<SourceKey>) {
        let key = SourceKey { key: facts.key, agreement: facts.agreement };
        let none = TierSet::NONE;
        let version =
            Version { key, origin: facts.origin, sources, planned, decided: none, committed: none, settled: none };
        self.versions.insert(facts.key.operation, version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{CheckpointKey, Generation, Incarnation};
    use crate::config::Method;

    const LOCAL: TierId = TierId::LOCAL;
    const GLOBAL: TierId = TierId::GLOBAL;

    fn both() -> TierSet {
        [LOCAL, GLOBAL].into_iter().collect()
    }

    fn facts(operation: u64) -> Facts {
        let key = CheckpointKey {
            generation: Generation(2),
            version: operation,
            operation,
            incarnation: Incarnation([3; 16]),
        };
        let series = crate::tier::names::Series { job: "j".into(), group: "g".into(), name: "heat".into() };
        Facts { key, series, agreement: 7, origin: None }
    }

    fn references(change: impl FnOnce(&mut JobConfig)) -> References {
        let mut job = JobConfig::default();
        job.reduction.method = Method::Basic;
        (job.local.keep_last, job.global.keep_last) = (1, 1);
        change(&mut job);
        References::new(&job)
    }

    fn operations(sources: &[SourceKey]) -> Vec<u64> {
        sources.iter().map(|source| source.key.operation).collect()
    }

    /// Chooses what a checkpoint may refer to, if `uses` bytes of earlier checkpoints are in use. Each earlier checkpoint stores 1000
    /// bytes, except for 4, which stores 750.
    fn choose(references: &mut References, operation: u64, plan: TierSet, uses: &[(u64, u64)]) -> Vec<u64> {
        let stored = (1..operation).map(|earlier| (earlier | STORED, if earlier == 4 { 750 } else { 1000 }));
        let uses: Vec<(u64, u64)> = uses.iter().copied().chain(stored).collect();
        operations(&references.choose(&facts(operation), plan, &uses))
    }

    fn commit(references: &mut References, operation: u64, tier: TierId) -> Vec<u64> {
        let word = references.stay(&facts(operation), tier);
        references.settled(&facts(operation), tier, true, word.clone());
        word.map_or_else(Vec::new, |(_, stay)| stay)
    }

    #[test]
    fn files_refer_to_what_is_committed_on_every_tier_that_they_go_to() {
        let mut references = references(|_| ());
        assert_eq!(choose(&mut references, 1, both(), &[]), [0; 0]);
        assert_eq!(choose(&mut references, 2, both(), &[(1, 900)]), [0; 0], "in flight");
        commit(&mut references, 1, LOCAL);
        assert_eq!(choose(&mut references, 3, both(), &[(1, 900)]), [0; 0], "not on the global tier");
        assert_eq!(choose(&mut references, 4, TierSet::of(LOCAL), &[(1, 900)]), [1]);
        references.settled(&facts(1), GLOBAL, false, None);
        assert_eq!(choose(&mut references, 5, both(), &[(1, 900)]), [0; 0], "given up there");
    }

    #[test]
    fn nothing_is_chosen_that_may_be_gone_and_what_was_chosen_stays_until_it_is_settled() {
        let mut references = references(|_| ());
        let local = TierSet::of(LOCAL);
        choose(&mut references, 1, local, &[]);
        assert_eq!(commit(&mut references, 1, LOCAL), [1]);
        assert_eq!(choose(&mut references, 2, local, &[(1, 900)]), [1]);
        // Meanwhile a checkpoint without references is committed, and retention keeps only this one: the plan before it still refers to 1.
        choose(&mut references, 3, local, &[]);
        assert_eq!(commit(&mut references, 3, LOCAL), [1, 3]);
        references.settled(&facts(2), LOCAL, false, None);
        choose(&mut references, 4, local, &[]);
        assert_eq!(commit(&mut references, 4, LOCAL), [4]);
        // 1 and 3 may be deleted by now.
        assert_eq!(choose(&mut references, 5, local, &[(1, 300), (3, 300), (4, 300)]), [4]);
    }

    #[test]
    fn a_commit_without_a_word_lets_nothing_go() {
        let mut references = references(|_| ());
        let local = TierSet::of(LOCAL);
        choose(&mut references, 1, local, &[]);
        commit(&mut references, 1, LOCAL);
        choose(&mut references, 2, local, &[(1, 900)]);
        references.settled(&facts(2), LOCAL, true, None);
        assert!(references.stays("heat", LOCAL).contains(&1));
    }

    /// Both are decided before the first announcement is heard.
    #[test]
    fn of_two_words_the_later_counts_and_what_was_decided_counts_before_it_is_heard() {
        let mut references = references(|job| job.local.keep_last = 2);
        let local = TierSet::of(LOCAL);
        choose(&mut references, 1, local, &[]);
        choose(&mut references, 2, local, &[]);
        choose(&mut references, 3, local, &[]);
        let words: Vec<_> = (1..=3).map(|operation| references.stay(&facts(operation), LOCAL)).collect();
        assert_eq!(words[2], Some((3, vec![2, 3])));
        // The first announcement is heard last, and by the root only after its decision on the others.
        for operation in [3, 2, 1] {
            references.settled(&facts(operation), LOCAL, true, words[operation as usize - 1].clone());
        }
        assert_eq!(references.stays("heat", LOCAL), [2, 3].into_iter().collect());
        assert_eq!(choose(&mut references, 4, local, &[(1, 900), (3, 900)]), [3]);
    }

    /// The announcement is on its way: from then on nothing else is chosen, although no rank has heard it.
    #[test]
    fn what_is_about_to_go_is_not_chosen_any_more() {
        let mut references = references(|_| ());
        let local = TierSet::of(LOCAL);
        choose(&mut references, 1, local, &[]);
        commit(&mut references, 1, LOCAL);
        choose(&mut references, 2, local, &[]);
        assert_eq!(references.stay(&facts(2), LOCAL), Some((2, vec![2])));
        assert_eq!(choose(&mut references, 3, local, &[(1, 900)]), [0; 0]);
    }

    #[test]
    fn the_sources_of_what_retention_keeps_stay_and_not_the_sources_of_these() {
        let mut references = references(|job| job.local.keep_last = 2);
        let local = TierSet::of(LOCAL);
        let mut stay = Vec::new();
        for operation in 1..=4 {
            let uses: &[(u64, u64)] = if operation > 1 { &[(operation - 1, 400)] } else { &[] };
            let expected: &[u64] = if operation > 1 { &[operation - 1] } else { &[] };
            assert_eq!(choose(&mut references, operation, local, uses), expected);
            stay = commit(&mut references, operation, LOCAL);
        }
        // 4 and 3 are kept, and 2 for the sake of 3; what 2 refers to is deleted.
        assert_eq!(stay, [2, 3, 4]);
        assert_eq!(references.stays("heat", LOCAL), stay.into_iter().collect());
        assert_eq!(references.sources("heat", 4, LOCAL).map(operations), Some(vec![3]));
        assert_eq!(references.sources("heat", 4, GLOBAL).map(operations), Some(Vec::new()));
        assert_eq!(references.sources("heat", 1, LOCAL).map(operations), Some(vec![]), "retention may keep it");
    }

    #[test]
    fn what_is_hardly_in_use_is_stored_again_and_of_too_many_the_most_used_are_taken() {
        let mut references = references(|job| {
            job.local.keep_last = 10;
            job.reduction.sources = 2;
        });
        let local = TierSet::of(LOCAL);
        for operation in 1..=3 {
            choose(&mut references, operation, local, &[]);
            commit(&mut references, operation, LOCAL);
        }
        assert_eq!(choose(&mut references, 4, local, &[(1, 249), (2, 250), (3, 0)]), [2]);
        commit(&mut references, 4, LOCAL);
        // For 4, the 190 bytes in use are enough.
        assert_eq!(choose(&mut references, 5, local, &[(1, 260), (2, 300), (4, 190)]), [1, 2]);
        assert_eq!(choose(&mut references, 6, local, &[(2, 300), (4, 187)]), [2]);
        assert_eq!(choose(&mut references, 7, local, &[(2, 300), (4, 188)]), [2, 4]);
    }

    #[test]
    fn what_is_kept_for_good_and_every_so_many_are_whole_and_so_is_the_first_after_a_restart() {
        let mut references = references(|job| {
            job.local.keep_every = 4;
            job.reduction.whole_every = 3;
        });
        let local = TierSet::of(LOCAL);
        let mut chosen = Vec::new();
        for operation in 1..=9u64 {
            chosen.push(choose(&mut references, operation, local, &[(operation.saturating_sub(1), 900)]).is_empty());
            commit(&mut references, operation, LOCAL);
        }
        // 1 is the first; 4 and 8 are kept for good; 7 is the third since 4.
        assert_eq!(chosen, [true, false, false, true, false, false, true, true, false]);
        let origin = Origin { generation: Generation(2), version: 8, operation: 8, restart: 9 };
        let later = Facts { origin: Some(origin), ..facts(10) };
        assert_eq!(references.choose(&later, local, &[(9, 900)]), Vec::new());
    }

    #[test]
    fn nothing_is_chosen_where_it_is_off_or_no_file_may_refer() {
        let mut off = references(|job| job.reduction.method = Method::Full);
        choose(&mut off, 1, both(), &[]);
        assert_eq!(off.stay(&facts(1), LOCAL), None);
        let mut references = references(|_| ());
        let object = TierSet::of(TierId::OBJECT);
        choose(&mut references, 1, object, &[]);
        assert_eq!(commit(&mut references, 1, TierId::OBJECT), [0; 0]);
        assert_eq!(choose(&mut references, 2, object, &[(1, 900)]), [0; 0]);
    }
}
