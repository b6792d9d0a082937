//! Reconstructs shards of which no whole copy is left: from the rest of a redundancy set, or from damaged copies that are good in different
//! places.
//!
//! Everything that a process can read takes part: the pieces that it has collected, and the files in the checkpoint's folder on the global
//! tier. The result is written like any other shard, and each block is checked against the digest that was made at the capture.
//!
//! Parity parts are on the global tier only for a while. A node that drains brings its parts along if shards are missing there. The process
//! that then finds everything it needs rebuilds these shards, and any process that sees that the checkpoint is complete removes the parts.

use super::super::discover::candidate_of;
use super::collect::set_of;
use super::copy::{Brought, Drain, Drained, Fate, Shelf, tier_of};
use super::{Chosen, Piece, Place};
use crate::base::Rank;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::threads::in_threads;
use crate::base::units::PAGE;
use crate::format::{ContainerEntry, Content};
use crate::redundancy::part::Part;
use crate::redundancy::rebuild::{Input, Rebuilt};
use crate::redundancy::stripes::SetInfo;
use crate::tier::names::{parity_file, parse_rank_file, rank_file};
use crate::tier::posix::PageBuffer;
use crate::tier::source::{FileShard, Source};
use crate::tier::storage::ReadFile;
use crate::tier::{TierError, TierId};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranks whose shards cannot be obtained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lacking {
    /// The ranks.
    pub ranks: RangeInclusive<u32>,
    /// Their redundancy set and what is missing from it, in words.
    pub why: String,
}

/// A shard as a file, in which every block has been checked. Each block comes from the first copy in which it is good, or else from the
/// redundancy set.
struct Mended {
    copies: Vec<Source>,
    rebuilt: Option<Rebuilt>,
    length: u64,
}

impl Mended {
    fn fill(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut first_error = None;
        for copy in &self.copies {
            match copy.slice(at..at + buffer.len() as u64, true) {
                // The memory of an older run may be given back at any time, and then nothing is left of the copy.
                Ok(slice) if slice.as_ref().len() == buffer.len() => {
                    buffer.copy_from_slice(slice.as_ref());
                    return Ok(());
                }
                Ok(_) => drop(first_error.get_or_insert_with(|| gone(copy))),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        // Every copy is damaged somewhere in this range, but perhaps not every copy in a smaller range.
        let is_worth_it = self.copies.len() + usize::from(self.rebuilt.is_some()) > 1;
        if is_worth_it && !self.copies.is_empty() && buffer.len() as u64 > PAGE {
            let half = (buffer.len() as u64 / 2).next_multiple_of(PAGE) as usize;
            let (left, right) = buffer.split_at_mut(half);
            self.fill(at, left)?;
            return self.fill(at + half as u64, right);
        }
        match (&self.rebuilt, first_error) {
            (Some(rebuilt), _) => rebuilt.read_at(at, buffer),
            (None, Some(error)) => Err(io::Error::other(error.to_string())),
            (None, None) => Err(io::Error::other("no copy is left")),
        }
    }
}

fn gone(copy: &Source) -> TierError {
    TierError::io(copy.tier(), "read", copy.path(), ErrorKind::UnexpectedEof.into())
}

impl ReadFile for Mended {
    /// The application's thread requests data ahead by itself, and may be the only one that can wait for the answers.
    fn readers(&self) -> usize {
        0
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(buffer.len() as u64) {
            Some(end) if end <= self.length => self.fill(offset, buffer),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Everything that can be read of one checkpoint.
struct Hoard<'a> {
    drain: &'a Drain<'a>,
    chosen: &'a Chosen,
    shelf: Shelf,
    sets: BTreeMap<SetInfo, BTreeMap<Rank, Vec<Piece>>>,
}

impl Hoard<'_> {
    fn has_shard(&self, rank: Rank) -> bool {
        self.copies(rank) > 0
    }

    fn copies(&self, rank: Rank) -> usize {
        self.chosen.pieces.get(&rank).map_or(0, Vec::len) + self.shelf.copies.get(&rank).map_or(0, Vec::len)
    }

    fn sets_of(&self, rank: Rank) -> impl Iterator<Item = (&SetInfo, &BTreeMap<Rank, Vec<Piece>>)> {
        self.sets.iter().filter(move |(set, _)| set.place(rank).is_some())
    }

    fn can_rebuild(&self, rank: Rank) -> bool {
        self.sets_of(rank).any(|(set, parts)| {
            let shards: Vec<bool> = set.members.iter().map(|(member, _)| self.has_shard(*member)).collect();
            let parities: Vec<bool> = set.members.iter().map(|(member, _)| parts.contains_key(member)).collect();
            set.place(rank).is_some_and(|lost| set.can_rebuild(lost, &shards, &parities))
        })
    }

    /// Can the shard perhaps be obtained? Two damaged copies may be good in different places.
    fn is_obtainable(&self, rank: Rank) -> bool {
        self.can_rebuild(rank) || self.copies(rank) > 1
    }

    /// The ranks in a range about which more is known than that their shards are missing.
    fn known_in(&self, range: &RangeInclusive<u32>) -> BTreeSet<Rank> {
        let members = self.sets.keys().flat_map(|set| set.members.iter().map(|(rank, _)| *rank));
        let known = members.chain(self.chosen.pieces.keys().copied()).chain(self.shelf.copies.keys().copied());
        known.filter(|rank| range.contains(&rank.0)).collect()
    }

    fn lacking(&self, missing: &[RangeInclusive<u32>]) -> Vec<Lacking> {
        let mut all = Vec::new();
        for range in missing {
            let unknown = |from: u32, to: u32| Lacking {
                ranks: from..=to,
                why: "no copy of the shard, and no parity part of a set that covers it".into(),
            };
            let mut next = Some(*range.start());
            for rank in self.known_in(range) {
                if let Some(from) = next.filter(|from| *from < rank.0) {
                    all.push(unknown(from, rank.0 - 1));
                }
                next = rank.0.checked_add(1);
                if !self.is_obtainable(rank) {
                    all.push(Lacking { ranks: rank.0..=rank.0, why: self.why_not(rank) });
                }
            }
            if let Some(from) = next.filter(|from| from <= range.end()) {
                all.push(unknown(from, *range.end()));
            }
        }
        all
    }

    fn why_not(&self, rank: Rank) -> String {
        let sets = self.sets_of(rank).map(|(set, parts)| {
            let list = |has: &dyn Fn(Rank) -> bool| {
                let lost: Vec<String> =
                    set.members.iter().filter(|(member, _)| !has(*member)).map(|(rank, _)| rank.to_string()).collect();
                lost.join(", ")
            };
            let shards = list(&|member| member != rank && self.has_shard(member));
            let parities = list(&|member| parts.contains_key(&member));
            let parities = if parities.is_empty() { String::new() } else { format!(" and the parity of {parities}") };
            format!(
                "its redundancy set (ranks {}) can do without {} of them, but lacks the shards of {shards}{parities}",
                names(set),
                set.parity
            )
        });
        let mut why: Vec<String> = sets.collect();
        if why.is_empty() {
            let has = if self.has_shard(rank) { "its only copy is damaged" } else { "no copy of the shard" };
            why.push(format!("{has}, and no parity part of a set that covers it"));
        }
        why.join("; ")
    }

    /// All copies of a rank's shard whose heads are good.
    fn sources(&self, rank: Rank) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut add = |opened: Result<Source, TierError>| match opened {
            Ok(source) if candidate_of(source.head()) == self.chosen.candidate => sources.push(source),
            Ok(_) => {}
            Err(error) => log::warn!("event=copy-unusable rank={rank} error={error}"),
        };
        self.chosen.pieces.get(&rank).into_iter().flatten().for_each(|piece| add(piece.open()));
        let folder = self.chosen.candidate.key.folder();
        for file in self.shelf.copies.get(&rank).into_iter().flatten() {
            add(self.drain.global.open_shard(&self.chosen.series, &folder, file, rank).map(Source::File));
        }
        sources
    }

    /// What a member of a set contributes to rebuilding the others.
    fn input(&self, set: &SetInfo, member: Rank, length: u64, parts: Option<&Vec<Piece>>) -> Input {
        let of = |mut copies: Vec<Source>, length| -> Option<Arc<dyn ReadFile>> {
            copies.retain(|copy| copy.head().header.total_len == length);
            (!copies.is_empty()).then(|| Arc::new(Mended { copies, rebuilt: None, length }) as Arc<dyn ReadFile>)
        };
        let mut offsets: Option<Vec<u64>> = None;
        let mut copies = Vec::new();
        for piece in parts.into_iter().flatten() {
            let Ok(part) = piece.open().and_then(Part::open).inspect_err(|error| {
                log::warn!("event=parity-unusable rank={member} error={error}");
            }) else {
                continue;
            };
            let own: Vec<u64> = (0..set.parity).map(|parity| part.offset_of(parity)).collect();
            if part.set == *set && *offsets.get_or_insert_with(|| own.clone()) == own {
                copies.push(part.source);
            }
        }
        let bytes = copies.first().map_or(0, |part| part.head().header.total_len);
        Input { shard: of(self.sources(member), length), part: of(copies, bytes).zip(offsets) }
    }

    /// The ways to reconstruct a shard. A way is an error if its head is not sound, or belongs to another checkpoint.
    fn ways(&self, rank: Rank) -> Vec<Result<Source, String>> {
        let own = self.sources(rank);
        let mut ways = Vec::new();
        let mut open = |copies: Vec<Source>, rebuilt: Option<(Rebuilt, &SetInfo)>, length: u64| {
            let from = rebuilt.as_ref().map_or_else(
                || "put together from damaged copies".into(),
                |(_, set)| format!("rebuilt from the set of ranks {}", names(set)),
            );
            let path = PathBuf::from(format!("the shard of rank {rank} {from}"));
            let file = Arc::new(Mended { copies, rebuilt: rebuilt.map(|(rebuilt, _)| rebuilt), length });
            let entry = ContainerEntry { key: self.chosen.candidate.key, rank, offset: 0, length };
            let opened = FileShard::open(TierId::PEERS, path, file, &entry, &self.chosen.series);
            ways.push(match opened {
                Ok(shard) if candidate_of(shard.head()) == self.chosen.candidate => Ok(Source::File(shard)),
                Ok(_) => Err(format!("the shard of rank {rank} {from} belongs to another checkpoint")),
                Err(error) => Err(error.to_string()),
            });
        };
        for (set, parts) in self.sets_of(rank) {
            let inputs =
                set.members.iter().map(|(member, length)| self.input(set, *member, *length, parts.get(member)));
            let Some(lost) = set.place(rank) else { continue };
            let length = set.members[lost].1;
            let copies = own.iter().filter(|copy| copy.head().header.total_len == length).cloned().collect();
            if let Ok(rebuilt) = Rebuilt::new(set.clone(), lost, inputs.collect()) {
                open(copies, Some((rebuilt, set)), length);
            }
        }
        if let [first, _, ..] = &own[..] {
            let length = first.head().header.total_len;
            let copies = own.iter().filter(|copy| copy.head().header.total_len == length).cloned().collect();
            open(copies, None, length);
        }
        ways
    }
}

fn names(set: &SetInfo) -> String {
    set.members.iter().map(|(rank, _)| rank.to_string()).collect::<Vec<_>>().join(", ")
}

/// What became of the parity parts of one checkpoint.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Parts {
    /// How many were copied to the global tier (in a dry run: would be).
    pub copied: usize,
    /// How many were already there and good.
    pub there: usize,
    /// The parts that could not be brought, and why.
    pub failed: Vec<String>,
}

impl Drain<'_> {
    fn hoard<'a>(&'a self, chosen: &'a Chosen) -> Result<Hoard<'a>, TierError> {
        let shelf = self.shelf(&chosen.series, &chosen.candidate.key)?;
        let mut sets: BTreeMap<SetInfo, BTreeMap<Rank, Vec<Piece>>> = BTreeMap::new();
        for ((rank, set), pieces) in &chosen.parts {
            sets.entry(set.clone()).or_default().entry(*rank).or_default().extend(pieces.iter().cloned());
        }
        for piece in self.parts_on(chosen, &shelf) {
            match set_of(&piece) {
                Ok(set) => sets.entry(set).or_default().entry(piece.rank).or_default().push(piece),
                Err(error) => log::warn!("event=parity-unusable rank={} error={error}", piece.rank),
            }
        }
        Ok(Hoard { drain: self, chosen, shelf, sets })
    }

    /// The parity parts in the checkpoint's folder on the global tier.
    fn parts_on(&self, chosen: &Chosen, shelf: &Shelf) -> Vec<Piece> {
        let rank = |name: &String| match parse_rank_file(name) {
            Some((rank, Content::Parity)) if parity_file(rank) == *name => Some(rank),
            _ => None,
        };
        let named = shelf.names.iter().filter_map(|name| rank(name).map(|rank| (name, rank)));
        named
            .map(|(name, rank)| Piece {
                series: chosen.series.clone(),
                candidate: chosen.candidate,
                rank,
                bytes: 0,
                content: Content::Parity,
                place: Place::File(self.global.clone(), name.clone()),
            })
            .collect()
    }

    /// The missing shards that cannot be obtained from anything that this process can read, judged by heads alone.
    ///
    /// # Errors
    /// [`TierError`] if the global tier cannot be read.
    ///
    /// # Blocking
    /// On all tiers.
    pub fn lacking(&self, drained: &Drained) -> Result<Vec<Lacking>, TierError> {
        let Ok(standing) = &drained.standing else { return Ok(Vec::new()) };
        Ok(self.hoard(&drained.chosen)?.lacking(&standing.missing))
    }

    /// The shards that, before anything is copied, are neither here nor on the global tier and cannot be rebuilt.
    ///
    /// # Errors
    /// See [`Drain::lacking`].
    ///
    /// # Blocking
    /// On all tiers.
    pub fn lacking_of(&self, chosen: &Chosen) -> Result<Vec<Lacking>, TierError> {
        let hoard = self.hoard(chosen)?;
        let (mut gaps, mut next) = (Vec::new(), 0u32);
        let size = chosen.candidate.group_size;
        for rank in hoard.known_in(&(0..=u32::MAX)).into_iter().filter(|rank| hoard.has_shard(*rank) && rank.0 < size) {
            if rank.0 > next {
                gaps.push(next..=rank.0 - 1);
            }
            next = rank.0 + 1;
        }
        if next < size {
            gaps.push(next..=size - 1);
        }
        Ok(hoard.lacking(&gaps))
    }

    /// Reconstructs missing shards where possible, with `jobs` threads, and then determines the state of the checkpoint.
    ///
    /// # Blocking
    /// On all tiers.
    pub fn mend(&self, drained: &mut Drained, jobs: usize, progress: &(dyn Fn(u64) + Sync)) {
        while !drained.fates.values().any(|fate| matches!(fate, Fate::Refused(_))) {
            let Ok(standing) = &drained.standing else { return };
            let Ok(hoard) =
                self.hoard(&drained.chosen).inspect_err(|error| log::warn!("event=not-rebuilt error={error}"))
            else {
                return;
            };
            let todo: Vec<Rank> = standing
                .missing
                .iter()
                .flat_map(|range| hoard.known_in(range))
                .filter(|rank| hoard.is_obtainable(*rank))
                .collect();
            let next = AtomicUsize::new(0);
            let done: Lock<Vec<(Rank, Brought)>> = Lock::default();
            in_threads(jobs.min(todo.len()), "bvk-drain", || {
                let mut staging = None;
                while let Some(rank) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let brought = self.make(&hoard, drained, *rank, &mut staging, progress);
                    done.lock().push((*rank, brought));
                }
            });
            let done = done.into_inner();
            // A shard that has just been reconstructed may be the one that another shard lacked.
            let is_better = done.iter().any(|(_, brought)| matches!(brought.fate, Fate::Rebuilt | Fate::There));
            for (rank, brought) in done {
                drained.take(rank, brought);
            }
            if !is_better {
                return;
            }
            self.settle(drained);
            if self.is_dry {
                return;
            }
        }
    }

    fn make(
        &self,
        hoard: &Hoard<'_>,
        drained: &Drained,
        rank: Rank,
        staging: &mut Option<PageBuffer>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Brought {
        let chosen = &drained.chosen;
        // Another process may have been faster.
        let own = (rank_file(rank), chosen.candidate.key.folder());
        let is_new = !hoard.shelf.names.contains(&own.0);
        if is_new && self.global.open_shard(&chosen.series, &own.1, &own.0, rank).is_ok() {
            return Fate::There.into();
        }
        let mut causes = match drained.fates.get(&rank) {
            Some(Fate::Damaged(why)) => why.clone(),
            _ => Vec::new(),
        };
        for way in hoard.ways(rank) {
            let tried = way.and_then(|source| {
                log::info!("event=rebuilding path={:?} {}", source.path().display(), chosen.candidate.key);
                match self.copy(chosen, rank, source, staging, progress) {
                    Ok(bytes) => Ok(Ok(bytes)),
                    Err(error) if tier_of(&error) == self.global.kind() => Ok(Err(error)),
                    Err(error) => Err(error.to_string()),
                }
            });
            match tried {
                Ok(Ok(bytes)) => {
                    let is_stale = hoard.shelf.names_rank(rank);
                    return Brought { fate: Fate::Rebuilt, bytes, is_stale, spoiled: None };
                }
                Ok(Err(error)) => return Fate::NotWritten(error.to_string()).into(),
                Err(why) => causes.push(why),
            }
        }
        let spoiled = drained.spoiled.get(&rank).cloned();
        Brought { spoiled, ..Fate::Damaged(causes).into() }
    }

    /// Brings those parity parts from here to the global tier that cover shards missing there.
    ///
    /// # Blocking
    /// On all tiers.
    pub fn bring_parts(&self, drained: &mut Drained, progress: &(dyn Fn(u64) + Sync)) {
        let Ok(standing) = &drained.standing else { return };
        if drained.fates.values().any(|fate| matches!(fate, Fate::Refused(_))) {
            return;
        }
        let is_missing = |rank: &Rank| standing.missing.iter().any(|range| range.contains(&rank.0));
        let chosen = &drained.chosen;
        let mut parts = Parts::default();
        let mut staging = None;
        for ((rank, set), pieces) in &chosen.parts {
            if !set.members.iter().any(|(member, _)| is_missing(member)) {
                continue;
            }
            if self.has_part(chosen, *rank, set) {
                parts.there += 1;
                continue;
            }
            let mut causes = Vec::new();
            let is_brought = pieces.iter().any(|piece| {
                let copied = piece.open().and_then(|source| self.copy(chosen, *rank, source, &mut staging, progress));
                drained.bytes += copied.as_ref().copied().unwrap_or(0);
                copied.map_err(|error| causes.push(error.to_string())).is_ok()
            });
            parts.copied += usize::from(is_brought);
            if !is_brought {
                parts.failed.push(format!("the parity part of rank {rank}: {}", causes.join("; ")));
            }
        }
        drained.parts = parts;
    }

    fn has_part(&self, chosen: &Chosen, rank: Rank, set: &SetInfo) -> bool {
        let folder = chosen.candidate.key.folder();
        let opened = self.global.open_any(&chosen.series, &folder, &parity_file(rank), rank);
        opened.and_then(|shard| Part::open(Source::File(shard))).is_ok_and(|part| {
            part.set == *set
                && candidate_of(part.source.head()) == chosen.candidate
                && (self.is_quick || part.source.verify(|_| ()).is_ok())
        })
    }

    /// Removes parity parts from the folder of a checkpoint that is complete on the global tier, where nothing needs them.
    ///
    /// # Blocking
    /// On the global tier.
    pub fn remove_parts(&self, drained: &Drained) {
        let is_complete = drained.standing.as_ref().is_ok_and(|standing| standing.is_complete);
        let Ok(shelf) = self.shelf(&drained.chosen.series, &drained.chosen.candidate.key) else { return };
        if !is_complete || self.is_dry {
            return;
        }
        let folder = self.global.folder_path(&drained.chosen.series, &drained.chosen.candidate.key);
        for part in self.parts_on(&drained.chosen, &shelf) {
            let path = folder.join(parity_file(part.rank));
            if let Err(error) = self.global.remove_file(&path) {
                log::warn!("event=parity-left path={} error={error}", path.display());
            }
        }
    }
}
