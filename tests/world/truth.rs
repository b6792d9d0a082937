//! The checkers: they know what has been promised so far and what damage has been done, and so what a run must not do.
//!
//! They know nothing of the implementation. They read journals, which hold what applications were told, and the list of
//! damage that the test itself did.

use super::journal::{Entry, Heard, Journal, Key, Restart};
use super::rank::SERIES;
use bivouac_core::base::Level;
use std::collections::{BTreeMap, BTreeSet};

/// A checkpoint that some rank was told was committed.
#[derive(Clone, Debug)]
pub struct Told {
    pub levels: BTreeSet<Level>,
    /// The machine (physical node) of each rank when it was taken.
    pub machines: Vec<u32>,
    /// The number of machines that may be lost if the checkpoint is committed at level `NodeLoss`.
    pub tolerates: u32,
    /// Whether its run reached its end, and so gave its memory back if a durable tier has everything.
    pub ended: bool,
}

/// The faults that a run met. Its journal must have no consequences of other faults.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// Ranks died, or fell so far behind that others gave up on them, or messages were lost, or another run was alive.
    pub hard: bool,
    /// Some storage failed for a while.
    pub storage: bool,
    /// A rank gave a checkpoint up, or was late.
    pub late: bool,
    /// Messages and parcels were lost without anybody having died.
    pub lossy: bool,
    /// An older run was alive that checks the claims in the place where this run has made its own: the older run's commits on a durable
    /// level, as far as it was told of them, were decided before, and can be found.
    pub overtakes: bool,
    /// Tiers that did not work from the start of the run, or while it restored.
    pub local_out: bool,
    pub global_out: bool,
}

/// The checkers' knowledge after all runs so far.
#[derive(Default)]
pub struct Truth {
    told: BTreeMap<&'static str, BTreeMap<Key, Told>>,
    /// The newest generation, for each machine, whose memory or whose local files are gone.
    memory_lost: BTreeMap<u32, u64>,
    local_lost: BTreeMap<u32, u64>,
    /// Checkpoints with a damaged file, by tier.
    pub local_damaged: BTreeSet<(String, Key)>,
    pub global_damaged: BTreeSet<(String, Key)>,
    /// Checkpoints with damage in memory, in a shard, a copy or parity.
    pub memory_damaged: BTreeSet<(String, Key)>,
    keep_last_global: usize,
    /// Whether the memory tier is so large that no version leaves it early.
    is_roomy: bool,
    /// Whether copies and parity are on local disks as well.
    is_stored: bool,
    /// The problems that the checkers found.
    pub problems: Vec<String>,
    pub counts: Counts,
}

/// How much was really tested, so that a simulation that tests nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub runs: u64,
    pub opened: u64,
    pub captured: u64,
    pub committed: u64,
    pub abandoned: u64,
    pub unknown: u64,
    /// The number of restores, by the farthest tier.
    pub restored: [u64; 4],
    pub promises: u64,
    /// Promises that only redundancy between nodes can keep.
    pub protected: u64,
    /// Promises of a run that was still alive.
    pub overtaken: u64,
    pub refused: u64,
    pub ended: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.runs += other.runs;
        self.opened += other.opened;
        self.captured += other.captured;
        self.committed += other.committed;
        self.abandoned += other.abandoned;
        self.unknown += other.unknown;
        for (mine, theirs) in self.restored.iter_mut().zip(other.restored) {
            *mine += theirs;
        }
        self.promises += other.promises;
        self.protected += other.protected;
        self.overtaken += other.overtaken;
        self.refused += other.refused;
        self.ended += other.ended;
    }
}

/// The checkpoints that must be restorable at the start of a run, by series, and whether this depends on redundancy between nodes.
pub type Promises = BTreeMap<&'static str, (Key, bool)>;

/// Why a checkpoint must still be restorable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Each shard is still where its rank put it.
    Whole,
    /// Machines were lost, but no more than redundancy can compensate for.
    Protected,
}

impl Truth {
    pub fn new(keep_last_global: usize, is_roomy: bool, is_stored: bool) -> Truth {
        Truth { keep_last_global, is_roomy, is_stored, ..Truth::default() }
    }

    pub fn lose_memory(&mut self, machine: u32, generation: u64) {
        self.memory_lost.insert(machine, generation);
    }

    pub fn lose_local(&mut self, machine: u32, generation: u64) {
        self.local_lost.insert(machine, generation);
    }

    /// The newest checkpoint of each series that was promised and that no damage has reached.
    pub fn promises(&self, machines: &[u32], weather: &Weather) -> Promises {
        let best = SERIES.iter().filter_map(|series| {
            let told = self.told.get(series)?;
            let kept = |(key, told): (&Key, &Told)| Some((*key, self.kept(series, *key, told, machines, weather)?));
            let (key, why) = told.iter().rev().find_map(kept)?;
            Some((*series, (key, why == Kept::Protected)))
        });
        best.collect()
    }

    fn newest(&self, series: &str, level: Level) -> Option<Key> {
        let told = self.told.get(series)?;
        told.iter().rev().find(|(_, told)| told.levels.contains(&level)).map(|(key, _)| *key)
    }

    fn kept(&self, series: &str, key: Key, told: &Told, machines: &[u32], weather: &Weather) -> Option<Kept> {
        let damaged = |set: &BTreeSet<(String, Key)>| set.contains(&(series.to_owned(), key));
        let newer_damaged =
            |set: &BTreeSet<(String, Key)>| set.iter().filter(|(name, other)| name == series && *other > key).count();
        // Retention deletes a version only for newer committed ones. Damage may then have destroyed all of these.
        let global = told.levels.contains(&Level::System)
            && !weather.global_out
            && !damaged(&self.global_damaged)
            && newer_damaged(&self.global_damaged) < self.keep_last_global;
        let local = told.levels.contains(&Level::NodeReboot)
            && !weather.local_out
            && self.newest(series, Level::NodeReboot) == Some(key)
            && !damaged(&self.local_damaged)
            && newer_damaged(&self.local_damaged) == 0;
        // A version leaves memory early if a lower tier has it: then the copy in that tier counts, and must be sound.
        let clean = |set: &BTreeSet<(String, Key)>| set.iter().all(|(name, _)| name != series);
        let sound = clean(&self.local_damaged) && clean(&self.global_damaged);
        let calm = !weather.local_out && !weather.global_out;
        // A run that is alive retires versions in memory without checking the claims.
        let memory = told.levels.contains(&Level::Process)
            && !weather.overtakes
            && self.newest(series, Level::Process) == Some(key)
            && !damaged(&self.memory_damaged)
            && ((self.is_roomy && !told.ended) || (sound && calm));
        let reached = |lost: &BTreeMap<u32, u64>, machine: u32| lost.get(&machine).is_none_or(|gone| key.0 > *gone);
        // A shard that is on another machine of the run is moved to its rank.
        let is_there = |lost: &BTreeMap<u32, u64>, machine: u32| machines.contains(&machine) && reached(lost, machine);
        let is_whole = told.machines.iter().all(|machine| {
            let in_memory = memory && is_there(&self.memory_lost, *machine);
            let on_disk = local && is_there(&self.local_lost, *machine);
            global || in_memory || on_disk
        });
        if is_whole {
            return Some(Kept::Whole);
        }
        // Once the global tier has this version or a newer one, memory need not keep it; then the copy in that tier counts.
        let on_global = told.levels.contains(&Level::System)
            || self.newest(series, Level::System).is_some_and(|newest| newest > key);
        let holders: BTreeSet<u32> = told.machines.iter().copied().collect();
        let without = |lost: &BTreeMap<u32, u64>| holders.iter().filter(|machine| !is_there(lost, **machine)).count();
        // A run that has closed has given up memory whose data is also in files.
        let mut lost = if told.ended && self.is_stored { holders.len() } else { without(&self.memory_lost) };
        if self.is_stored && !weather.local_out && clean(&self.local_damaged) {
            lost = lost.min(without(&self.local_lost));
        }
        let is_protected = told.levels.contains(&Level::NodeLoss)
            && lost as u32 <= told.tolerates
            && !damaged(&self.memory_damaged)
            && !on_global
            && !weather.global_out
            && clean(&self.global_damaged);
        is_protected.then_some(Kept::Protected)
    }

    fn complain(&mut self, text: String) {
        self.problems.push(text);
    }

    /// Reads the journal of a run that is over.
    ///
    /// `promises` are the checkpoints that had to be restorable when the run began. `None` means that nothing was promised, because another
    /// run was alive that did not see this run's claim.
    pub fn read(
        &mut self,
        journal: &Journal,
        machines: &[u32],
        tolerates: u32,
        promises: Option<&Promises>,
        weather: &Weather,
    ) {
        let entries = journal.entries();
        self.count(&entries);
        let ranks = machines.len();
        let generation = self.check_opening(&entries, weather);
        self.check_restarts(&entries, promises, weather);
        self.check_verdicts(&entries, tolerates, weather);
        self.check_lists(&entries);
        self.check_ends(&entries, ranks, weather);
        for (rank, entry) in &entries {
            if let Entry::Memory { bytes, allowed } = entry
                && bytes > allowed
            {
                self.complain(format!("rank {rank}: the segment holds {bytes} bytes of {allowed}"));
            }
        }
        if let Some(generation) = generation {
            self.learn(&entries, generation, machines, tolerates);
        }
    }

    /// Reads the whole journal of a run that continued after it was first read, and that is now dead. The commits that it was told of in
    /// the meantime are promised like the others, because they were decided before the next run made its claim. This does not hold for node
    /// memory, for which nobody checks the claims: a late commit on that level alone is no promise.
    pub fn read_on(&mut self, journal: &Journal, machines: &[u32], tolerates: u32) {
        let entries = journal.entries();
        let hard = Weather { hard: true, ..Weather::default() };
        let generation = self.check_opening(&entries, &hard);
        self.check_restarts(&entries, None, &hard);
        self.check_verdicts(&entries, tolerates, &hard);
        self.check_lists(&entries);
        if let Some(generation) = generation {
            let before = self.in_memory();
            self.learn(&entries, generation, machines, tolerates);
            for (series, key) in self.in_memory().difference(&before) {
                let told = self.told.get_mut(series.as_str()).and_then(|told| told.get_mut(key));
                told.map(|told| told.levels.remove(&Level::Process));
            }
        }
    }

    /// The versions that the run was told are in node memory.
    fn in_memory(&self) -> BTreeSet<(String, (u64, u64))> {
        let all = self.told.iter().flat_map(|(series, told)| told.iter().map(move |(key, told)| (series, key, told)));
        let held = all.filter(|(_, _, told)| told.levels.contains(&Level::Process));
        held.map(|(series, key, _)| (series.to_string(), *key)).collect()
    }

    fn count(&mut self, entries: &[(u32, Entry)]) {
        let counts = &mut self.counts;
        counts.runs += 1;
        for (_, entry) in entries {
            match entry {
                Entry::Opened { .. } => counts.opened += 1,
                Entry::Captured { .. } => counts.captured += 1,
                Entry::Verdict { heard: Heard::Committed, .. } => counts.committed += 1,
                Entry::Verdict { heard: Heard::Abandoned(_), .. } => counts.abandoned += 1,
                Entry::Verdict { heard: Heard::Unknown, .. } => counts.unknown += 1,
                Entry::Restart { outcome: Restart::Restored { tier, .. }, .. } => {
                    let index =
                        ["memory", "local", "peers", "global"].iter().position(|name| name == tier).unwrap_or(0);
                    counts.restored[index] += 1;
                }
                Entry::Restart { outcome: Restart::Refused(_), .. } => counts.refused += 1,
                Entry::Ended => counts.ended += 1,
                _ => {}
            }
        }
    }

    fn check_opening(&mut self, entries: &[(u32, Entry)], weather: &Weather) -> Option<u64> {
        let mut generations = BTreeSet::new();
        let mut failures = BTreeSet::new();
        for (rank, entry) in entries {
            match entry {
                Entry::Opened { generation } => _ = generations.insert(*generation),
                Entry::NotOpened { text } => {
                    failures.insert(text.clone());
                    if !weather.hard && !weather.storage {
                        self.complain(format!("rank {rank} could not open: {text}"));
                    }
                }
                _ => {}
            }
        }
        if generations.len() > 1 {
            self.complain(format!("one run has several generations: {generations:?}"));
        }
        if !weather.hard && failures.len() + usize::from(!generations.is_empty()) > 1 {
            self.complain(format!("ranks hear different things of open: {generations:?} {failures:?}"));
        }
        generations.first().copied()
    }

    fn check_restarts(&mut self, entries: &[(u32, Entry)], promises: Option<&Promises>, weather: &Weather) {
        for series in SERIES {
            for by_name in [false, true] {
                let outcomes: Vec<(u32, Restart)> = entries
                    .iter()
                    .filter_map(|(rank, entry)| match entry {
                        Entry::Restart { series: found, by_name: named, outcome }
                            if *found == series && *named == by_name =>
                        {
                            Some((*rank, outcome.clone()))
                        }
                        _ => None,
                    })
                    .collect();
                self.check_same_restart(series, &outcomes, weather);
                if !by_name && let Some(promises) = promises {
                    self.check_promise(series, &outcomes, promises.get(series).copied(), weather);
                }
            }
        }
    }

    fn check_same_restart(&mut self, series: &str, outcomes: &[(u32, Restart)], weather: &Weather) {
        let mut known: Option<(u32, Restart)> = None;
        for (rank, outcome) in outcomes {
            let outcome = match outcome {
                Restart::Restored { key, run, .. } => Restart::Restored { key: *key, run: *run, tier: "any" },
                Restart::Lost(reason) => {
                    if !weather.hard {
                        self.complain(format!("rank {rank} lost touch in the restart of {series}: {reason}"));
                    }
                    continue;
                }
                other => other.clone(),
            };
            match &known {
                None => known = Some((*rank, outcome)),
                Some((first, other)) if *other != outcome => {
                    let text = format!("MIXED: {series}: rank {first} has {other:?}, rank {rank} has {outcome:?}");
                    return self.complain(text);
                }
                Some(_) => {}
            }
        }
    }

    fn check_promise(
        &mut self,
        series: &str,
        outcomes: &[(u32, Restart)],
        promised: Option<(Key, bool)>,
        weather: &Weather,
    ) {
        let Some((promised, protected)) = promised else { return };
        self.counts.promises += 1;
        self.counts.protected += u64::from(protected);
        self.counts.overtaken += u64::from(weather.overtakes);
        for (rank, outcome) in outcomes {
            match outcome {
                Restart::Restored { key, .. } if *key >= promised => {}
                Restart::Lost(_) => {}
                Restart::Refused(_) if weather.hard => {}
                // No rank sent the bytes of another node in time.
                Restart::Restored { .. } if weather.lossy => {}
                other => {
                    let text = format!("LOST: {series}: {promised:?} was promised, rank {rank} has {other:?}");
                    return self.complain(text);
                }
            }
        }
    }

    fn check_verdicts(&mut self, entries: &[(u32, Entry)], tolerates: u32, weather: &Weather) {
        let mut heard_by: BTreeMap<(&str, u64, Level), (u32, Heard)> = BTreeMap::new();
        for (rank, entry) in entries {
            let Entry::Verdict { series, version, level, heard } = entry else { continue };
            let what = format!("{series} version {version} at {level}");
            match heard {
                Heard::Unknown if weather.hard => continue,
                Heard::Committed if *level == Level::NodeLoss && tolerates == 0 => {
                    self.complain(format!("{what} is committed, but would survive no loss"));
                }
                Heard::Committed => {}
                // Redundancy must fit into memory as well; it cannot go elsewhere.
                Heard::Abandoned(why) if *level == Level::NodeLoss && !self.is_roomy && why.contains("no room") => {}
                Heard::Abandoned(_) if weather.hard || weather.storage || weather.late => {}
                other => self.complain(format!("rank {rank}: nothing was wrong, yet {what} was {other:?}")),
            }
            let (first, other) =
                heard_by.entry((series, *version, *level)).or_insert_with(|| (*rank, heard.clone())).clone();
            if other != *heard {
                self.complain(format!("rank {first} hears {other:?} of {what}, rank {rank} {heard:?}"));
            }
        }
    }

    fn check_lists(&mut self, entries: &[(u32, Entry)]) {
        // Every rank makes the same calls, so the n-th list of each rank is the same, and so is the n-th answer.
        let mut lists: BTreeMap<u32, Vec<(&str, &Vec<Key>)>> = BTreeMap::new();
        for (rank, entry) in entries {
            if let Entry::Listed { series, versions } = entry {
                lists.entry(*rank).or_default().push((series, versions));
            }
        }
        let mut answers: BTreeMap<u32, Vec<bool>> = BTreeMap::new();
        for (rank, entry) in entries {
            if let Entry::Asked { is_due } = entry {
                answers.entry(*rank).or_default().push(*is_due);
            }
        }
        let most = answers.values().max_by_key(|answers| answers.len()).cloned().unwrap_or_default();
        for (rank, heard) in answers {
            if most[..heard.len()] != heard[..] {
                self.complain(format!("rank {rank} is told of checkpoints {heard:?}, others {most:?}"));
            }
        }
        let longest = lists.values().max_by_key(|list| list.len()).cloned().unwrap_or_default();
        for (rank, list) in lists {
            if longest[..list.len()] != list[..] {
                self.complain(format!("rank {rank} lists {list:?}, others {longest:?}"));
            }
        }
    }

    fn check_ends(&mut self, entries: &[(u32, Entry)], ranks: usize, weather: &Weather) {
        if weather.hard {
            return;
        }
        for (rank, entry) in entries {
            match entry {
                Entry::Failed { call, text } if !weather.late => {
                    self.complain(format!("rank {rank}: {call} failed: {text}"));
                }
                Entry::NotCaptured { text } if !weather.storage => {
                    self.complain(format!("rank {rank}: nothing was wrong, yet a capture failed: {text}"));
                }
                Entry::Closed { result: Err(text) } => self.complain(format!("rank {rank}: close failed: {text}")),
                _ => {}
            }
        }
        // Every rank that was allowed to work reached the end: storage faults neither kill nor hang the application.
        let opened = entries.iter().any(|(_, entry)| matches!(entry, Entry::Opened { .. }));
        let refused =
            entries.iter().any(|(_, entry)| matches!(entry, Entry::Restart { outcome: Restart::Refused(_), .. }));
        let ended = entries.iter().filter(|(_, entry)| matches!(entry, Entry::Ended)).count();
        if opened && !refused && ended != ranks {
            self.complain(format!("{ended} of {ranks} ranks came to the end of their work"));
        }
    }

    /// Records the commits that this run was told of, and the state that it has left behind.
    fn learn(&mut self, entries: &[(u32, Entry)], generation: u64, machines: &[u32], tolerates: u32) {
        for series in SERIES {
            let captured = entries
                .iter()
                .any(|(_, entry)| matches!(entry, Entry::Captured { series: found, .. } if *found == series));
            let restored = entries.iter().rev().find_map(|(_, entry)| match entry {
                Entry::Restart { series: found, outcome: Restart::Restored { key, .. }, .. } if *found == series => {
                    Some(*key)
                }
                _ => None,
            });
            if captured {
                // Versions after the origin of this run are left behind once something of this run is complete.
                let told = self.told.entry(series).or_default();
                told.retain(|key, _| key.0 >= generation || restored.is_some_and(|origin| *key <= origin));
            }
            // Nobody could restore a version newer than that, and nothing keeps such versions any more. A machine that was away may come
            // back, but not everything that it would also need.
            if let Some(origin) = restored {
                let told = self.told.entry(series).or_default();
                told.iter_mut().filter(|(key, _)| **key > origin && key.0 < generation).for_each(|(_, told)| {
                    told.levels.remove(&Level::Process);
                    told.levels.remove(&Level::NodeLoss);
                });
            }
            // Going back by name frees the memory of the versions that were passed over.
            let by_name = entries.iter().any(|(_, entry)| {
                matches!(entry, Entry::Restart { series: found, by_name: true, outcome: Restart::Restored { .. } } if *found == series)
            });
            if by_name && let Some(told) = self.told.get_mut(series) {
                told.iter_mut().filter(|(key, _)| Some(**key) != restored).for_each(|(_, told)| {
                    told.levels.remove(&Level::Process);
                });
            }
        }
        let ended = entries.iter().any(|(_, entry)| matches!(entry, Entry::Ended));
        for (_, entry) in entries {
            let Entry::Verdict { series, version, level, heard: Heard::Committed } = entry else { continue };
            let told = self.told.entry(series).or_default().entry((generation, *version));
            let new = || Told { levels: BTreeSet::new(), machines: machines.to_vec(), tolerates, ended };
            let told = told.or_insert_with(new);
            told.levels.insert(*level);
            told.ended |= ended;
        }
        // Only the newest version at level `NodeLoss` stays in memory because of that level.
        for series in SERIES {
            let newest = self.newest(series, Level::NodeLoss);
            let Some(told) = self.told.get_mut(series) else { continue };
            told.iter_mut().filter(|(key, _)| Some(**key) != newest).for_each(|(_, told)| {
                told.levels.remove(&Level::NodeLoss);
            });
        }
    }
}
