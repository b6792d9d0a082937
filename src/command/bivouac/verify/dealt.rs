//! How the regions of a checkpoint are spread over the ranks: does each shard's record fit its shard, and do the records of all shards fit
//! together?
//!
//! The first question is asked for each shard when it is read ([`check_record`]). The second needs all shards of a checkpoint, and is asked
//! at the end for one checkpoint after the other ([`prove`]): all shards say the same, each identity is the sum of what the ranks add to
//! it, shared values are the same everywhere, the parts of each array [tile](super::tiling) it, and each number is in one
//! [list](super::lists).
#![forbid(unsafe_code)]

use super::tiling::{PIECES_MAX, Verdict};
use super::{Checked, Expected, Finding, Item, Kind, Outcome, lists, tiling};
use crate::body::{self, RECORD_MAX};
use crate::ending::{Ending, Problem};
use crate::output::short;
use bivouac_core::base::{CheckpointKey, Rank};
use bivouac_core::decomposition::ids::Listed;
use bivouac_core::decomposition::ids::counter::Wrong;
use bivouac_core::decomposition::proof;
use bivouac_core::decomposition::{Identity, PackedParts, Rule, View, ids};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{Content, Region};
use bivouac_core::region::DECOMPOSITION;
use bivouac_core::tier::names::parse_rank_file;
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::ReadFile;
use bivouac_core::tier::{Tier, TierError, join};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum bytes of the records of one checkpoint that are in memory together.
const RECORDS_MAX: u64 = RECORD_MAX;

/// Checks whether the record of a shard, if it has one, can be read and fits its regions.
pub fn check_record(
    path: &Path,
    head: &Head,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
    outcome: &mut Outcome,
) {
    let Some(region) = head.region(DECOMPOSITION) else { return };
    outcome.has_record = true;
    let found = match body::decomposition_record(head, &mut read) {
        // The record is too long to be examined here, and may be good.
        Err(Problem { text, .. }) if region.bytes > RECORD_MAX => Some((Kind::Note, text)),
        Err(Problem { ending, text }) => Some((Kind::of(ending), text)),
        Ok(record) => {
            let viewed = View::of(record.as_deref().unwrap_or_default(), &head.meta.regions);
            match viewed {
                Ok(view) => wrong_list(head, &view, &mut read),
                Err(error) => Some((Kind::Damage, error.to_string())),
            }
        }
    };
    if let Some((kind, why)) = found {
        let message = format!("{}: rank {}: {why}", path.display(), head.header.rank);
        let finding = Finding::new(kind, path, message).of_rank(head.header.rank);
        outcome.findings.push(Finding { region: Some(DECOMPOSITION.into()), ..finding });
    }
}

/// The first list of a shard that cannot be read or is not valid.
fn wrong_list(
    head: &Head,
    view: &View<'_>,
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), Problem>,
) -> Option<(Kind, String)> {
    view.lists.iter().enumerate().find_map(|(place, (_, list))| match body::list(head, place, &mut *read) {
        Ok(numbers) if lists::is_one(*list, &numbers) => None,
        Ok(_) => Some((Kind::Damage, format!("region {:?} is invalid", ids::region_name(place)))),
        // Errors other than damage mean that the list is too long to be examined here; it may be good.
        Err(Problem { ending: Ending::Damage, text }) => Some((Kind::Damage, text)),
        Err(Problem { text, .. }) => Some((Kind::Note, text)),
    })
}

/// Files that may hold the shards of one checkpoint, or only a container.
pub struct Group<'a> {
    folder: PathBuf,
    files: Vec<(&'a Arc<dyn Tier>, &'a Path, Option<&'a Expected>)>,
}

/// The folders that have records and in which nothing is damaged.
pub fn groups<'a>(items: &'a [Item], outcomes: &[Outcome]) -> Vec<Group<'a>> {
    let mut of_folder: BTreeMap<&Path, (Vec<_>, bool, bool)> = BTreeMap::new();
    for (item, outcome) in items.iter().zip(outcomes) {
        let Item::Container { tier, path, expected, .. } = item else { continue };
        let Some(folder) = path.parent() else { continue };
        let (files, has_record, is_sound) = of_folder.entry(folder).or_insert((Vec::new(), false, true));
        files.push((tier, path.as_path(), expected.as_ref()));
        *has_record |= outcome.has_record;
        *is_sound &= outcome.findings.iter().all(|finding| finding.kind == Kind::Note);
    }
    let with_records = of_folder.into_iter().filter(|(_, (_, has_record, is_sound))| *has_record && *is_sound);
    with_records.map(|(folder, (files, ..))| Group { folder: folder.to_owned(), files }).collect()
}

/// What one shard says.
struct Said {
    path: PathBuf,
    rank: Rank,
    /// Checkpoint, agreement, ranks in the group.
    of: (CheckpointKey, u64, u32),
    record: Option<Record>,
}

/// A decomposition: its identity, the parts of a rank as recorded, and the first region that is spread by it.
type Part = (Identity, Vec<u8>, String);

/// A list of numbers: its identity, the list of a rank as recorded, and the first region that has its elements.
type OfList = (Identity, (Listed, Vec<u8>), String);

/// The part of a record that is compared with the records of other shards.
struct Record {
    decompositions: Vec<Part>,
    lists: Vec<OfList>,
    /// A hash of the rules.
    rules: u64,
    /// Values that all ranks share, with a hash of their contents.
    shared: Vec<(String, u64)>,
}

/// Why the shards of a checkpoint are not examined together.
enum Stop {
    /// Something cannot be read or does not exist: the code that read the shards has reported it.
    Told,
    /// The records are too long.
    TooLong,
}

/// Proves that the records of a checkpoint fit together, if all its shards are here.
pub fn prove(group: &Group<'_>, checked: &mut Checked) -> Vec<Finding> {
    let mut findings = match group.read() {
        Err(Stop::Told) => Vec::new(),
        Err(Stop::TooLong) => vec![group.open("its records", &format!("they have more than {RECORDS_MAX} bytes"))],
        Ok(all) => group.compare(&all).map_or_else(|| group.prove_arrays(&all, checked), |finding| vec![finding]),
    };
    let tier = group.files.iter().find(|(.., expected)| expected.is_some()).map(|(tier, ..)| tier.kind().name());
    findings.iter_mut().for_each(|finding| finding.tier = tier);
    findings
}

impl Group<'_> {
    /// What each rank's shard says, by rank.
    fn read(&self) -> Result<Vec<Said>, Stop> {
        let (mut all, mut left): (BTreeMap<Rank, Said>, u64) = (BTreeMap::new(), RECORDS_MAX);
        for (tier, path, expected) in &self.files {
            if expected.is_some_and(|expected| expected.is_replaced(path, None)) {
                continue;
            }
            let (container, file) = tier.open_container(path).map_err(|_| Stop::Told)?;
            let file: Arc<dyn ReadFile> = file.into();
            let is_own = path.file_name().and_then(|name| name.to_str()).and_then(parse_rank_file).is_some();
            for entry in &container.entries {
                let is_replaced = expected.is_some_and(|expected| expected.is_replaced(path, Some(entry.rank)));
                // If no manifest decides, a file of the rank's own takes precedence.
                if is_replaced || all.contains_key(&entry.rank) && !is_own {
                    continue;
                }
                let shard = FileShard::open_any(tier.kind(), path.to_path_buf(), file.clone(), entry);
                let shard = shard.and_then(|shard| whole(&***tier, shard)).map_err(|_| Stop::Told)?;
                if let Some(shard) = shard {
                    let said = said(path, &shard, &mut left)?;
                    all.insert(entry.rank, said);
                }
            }
        }
        let all: Vec<Said> = all.into_values().collect();
        let Some(first) = all.first() else { return Err(Stop::Told) };
        let is_complete = all.len() as u64 == u64::from(first.of.2) && all.iter().all(|said| said.of == first.of);
        if is_complete { Ok(all) } else { Err(Stop::Told) }
    }

    /// The first respect in which a shard differs from that of the first rank.
    fn compare(&self, all: &[Said]) -> Option<Finding> {
        let first = all.first()?;
        all[1..].iter().find_map(|said| {
            let (region, what) = unlike(first, said)?;
            let message = format!("{}: rank {}: {what} rank {}", said.path.display(), said.rank, first.rank);
            let finding = Finding::damage(&said.path, message).of_rank(said.rank);
            Some(Finding { region: Some(region), ..finding })
        })
    }

    /// Proves each array of a checkpoint whose shards say the same about it.
    fn prove_arrays(&self, all: &[Said], checked: &mut Checked) -> Vec<Finding> {
        let Some(first) = all.first().and_then(|said| said.record.as_ref()) else { return Vec::new() };
        let mut findings = Vec::new();
        for (at, (identity, _, region)) in first.decompositions.iter().enumerate() {
            let parts = all.iter().filter_map(|said| {
                let (_, parts, _) = said.record.as_ref()?.decompositions.get(at)?;
                Some((said.rank, PackedParts::of(parts)?))
            });
            let parts: Vec<(Rank, PackedParts<'_>)> = parts.collect();
            let region = (!region.is_empty()).then_some(region.as_str());
            let known = findings.len();
            findings.extend(self.wrong_identity(&parts, *identity, region));
            findings.extend(self.wrong_parts(&parts, region, all));
            checked.arrays += u64::from(findings.len() == known);
        }
        for (at, (identity, (head, _), region)) in first.lists.iter().enumerate() {
            let lists = all.iter().filter_map(|said| {
                let (_, (head, numbers), _) = said.record.as_ref()?.lists.get(at)?;
                Some((said.rank, *head, &numbers[..]))
            });
            let lists: Vec<(Rank, Listed, &[u8])> = lists.collect();
            let what = format!("region {:?} on an array of {} numbered elements", short(region), head.total);
            let known = findings.len();
            findings.extend(self.wrong_lists(&lists, *identity, (&what, region), all));
            checked.arrays += u64::from(findings.len() == known);
        }
        findings
    }

    /// Is each number in one list, and is the recorded identity the sum of what the lists add to it?
    fn wrong_lists(
        &self,
        lists: &[(Rank, Listed, &[u8])],
        recorded: Identity,
        (what, region): (&str, &str),
        all: &[Said],
    ) -> Vec<Finding> {
        let ranks = lists.len() as u32;
        let of = lists.iter().map(|(rank, head, numbers)| ids::identity_of(*head, numbers, *rank, ranks));
        let sum = of.fold(Identity::default(), Identity::and);
        let mut findings = Vec::new();
        if sum != recorded {
            let why = format!("{what}: its identity is {recorded}, but the lists of all ranks give {sum}");
            findings.push(Self::damage(&self.folder, Some(region), &why));
        }
        match lists::prove(lists) {
            lists::Verdict::Proved => {}
            lists::Verdict::Open => findings.push(self.open(what, "it would take too long")),
            lists::Verdict::Wrong(wrong) => {
                let text = format!("{what}: {wrong}");
                findings.push(match wrong {
                    Wrong::Twice(_, _, rank) => {
                        let file = all.iter().find(|said| said.rank == rank).map_or(&self.folder, |said| &said.path);
                        Self::damage(file, Some(region), &text).of_rank(rank)
                    }
                    Wrong::Missing(..) | Wrong::Gap(..) => Self::damage(&self.folder, Some(region), &text),
                });
            }
        }
        findings
    }

    /// Is the recorded identity the sum of what the ranks add to it?
    fn wrong_identity(
        &self,
        parts: &[(Rank, PackedParts<'_>)],
        recorded: Identity,
        region: Option<&str>,
    ) -> Option<Finding> {
        let of = parts.iter().map(|(rank, of)| Identity::of_packed(of.bytes(), rank.0, parts.len() as u32));
        let sum = of.fold(Identity::default(), Identity::and);
        let why = format!("its identity is {recorded}, but the parts of all ranks give {sum}");
        (sum != recorded).then(|| Self::damage(&self.folder, region, &format!("{}: {why}", what(region, parts))))
    }

    /// Do the parts of all ranks tile their array?
    fn wrong_parts(&self, parts: &[(Rank, PackedParts<'_>)], region: Option<&str>, all: &[Said]) -> Option<Finding> {
        let what = what(region, parts);
        let wrong = match tiling::prove(parts, PIECES_MAX) {
            Verdict::Proved => return None,
            Verdict::Open => return Some(self.open(&what, "it would take too long")),
            Verdict::Wrong(wrong) => wrong,
        };
        let text = format!("{what}: {}", wrong.in_words(parts.first()?.1.dims()));
        Some(match wrong {
            proof::Finding::Gap(_) => Self::damage(&self.folder, region, &text),
            proof::Finding::Overlap(proof::Overlap { other: (rank, _), .. }) => {
                let file = all.iter().find(|said| said.rank == rank).map_or(&self.folder, |said| &said.path);
                Self::damage(file, region, &text).of_rank(rank)
            }
        })
    }

    fn damage(path: &Path, region: Option<&str>, text: &str) -> Finding {
        let finding = Finding::damage(path, format!("{}: {text}", path.display()));
        Finding { region: region.map(str::to_owned), ..finding }
    }

    /// A finding that says that a proof was not made.
    fn open(&self, what: &str, why: &str) -> Finding {
        let message = format!("{}: {what}: not proved: {why}", self.folder.display());
        Finding::new(Kind::Note, &self.folder, message)
    }
}

/// An array in words, named by the first region that is on it.
fn what(region: Option<&str>, parts: &[(Rank, PackedParts<'_>)]) -> String {
    let shape = parts.first().map_or(&[][..], |(_, parts)| parts.shape());
    match region {
        Some(region) => format!("region {:?} on an array of shape {shape:?}", short(region)),
        None => format!("an array of shape {shape:?} without a region"),
    }
}

/// The region about which two shards of a checkpoint say different things, and the difference in words up to the rank of the first shard.
fn unlike(first: &Said, said: &Said) -> Option<(String, String)> {
    let of_record = |what: &str| Some((DECOMPOSITION.to_owned(), what.to_owned()));
    let (one, other) = match (&first.record, &said.record) {
        (None, None) => return None,
        (Some(one), Some(other)) => (one, other),
        (Some(_), None) => return of_record("it has no decomposition record, unlike"),
        (None, Some(_)) => return of_record("it has a decomposition record, unlike"),
    };
    if one.rules != other.rules {
        return of_record("its regions are spread over the ranks differently from those of");
    }
    let mut pairs = one.decompositions.iter().zip(&other.decompositions);
    let is_unlike = |((identity, parts, _), (of_other, others, _)): &(&Part, &Part)| {
        identity != of_other || array_of(parts) != array_of(others)
    };
    if let Some(((.., region), _)) = pairs.find(is_unlike) {
        return Some((
            region.clone(),
            format!("region {:?} has a different decomposition from that of", short(region)),
        ));
    }
    let mut pairs = one.lists.iter().zip(&other.lists);
    let is_unlike = |((identity, (head, _), _), (of_other, (others, _), _)): &(&OfList, &OfList)| {
        (identity, head.total, head.is_sparse) != (of_other, others.total, others.is_sparse)
    };
    if let Some(((.., region), _)) = pairs.find(is_unlike) {
        return Some((region.clone(), format!("region {:?} has different lists from those of", short(region))));
    }
    let (name, _) = one.shared.iter().zip(&other.shared).find(|(one, other)| one != other)?.0;
    Some((name.clone(), format!("value {:?}, which all ranks share, differs from that of", short(name))))
}

/// The array to which parts belong.
fn array_of(parts: &[u8]) -> Option<(Vec<u64>, bool)> {
    PackedParts::of(parts).map(|parts| (parts.shape().to_vec(), parts.is_sparse()))
}

/// The shard in a file, joined with what it refers to; `None` for a parity part.
fn whole(tier: &dyn Tier, shard: FileShard) -> Result<Option<FileShard>, TierError> {
    match shard.head().header.content {
        Content::Shard => Ok(Some(shard)),
        Content::Packed => join(tier, shard).map(Some),
        Content::Parity => Ok(None),
    }
}

/// Reads what a shard says; `left` is how many more bytes all records together may have.
fn said(path: &Path, shard: &FileShard, left: &mut u64) -> Result<Said, Stop> {
    let head = shard.head();
    let bytes = head.region(DECOMPOSITION).map_or(0, |region| region.bytes);
    *left = left.checked_sub(bytes).ok_or(Stop::TooLong)?;
    let record = body::decomposition_record(head, body::of_file(shard)).map_err(|_| Stop::Told)?;
    let record = record.map(|record| record_of(shard, &record, left)).transpose()?;
    let header = &head.header;
    let of = (header.key, header.agreement, header.group_size);
    Ok(Said { path: path.to_owned(), rank: header.rank, of, record })
}

fn record_of(shard: &FileShard, bytes: &[u8], left: &mut u64) -> Result<Record, Stop> {
    let head = shard.head();
    let regions = &head.meta.regions;
    let view = View::of(bytes, regions).map_err(|_| Stop::Told)?;
    let mut names = vec![String::new(); view.decompositions.len()];
    let mut of_lists = vec![String::new(); view.lists.len()];
    for (place, rule) in view.rules.iter().rev() {
        match (rule, regions.get(*place)) {
            (Rule::On(at), Some(region)) => names[*at].clone_from(&region.name),
            (Rule::Numbered(at), Some(region)) => of_lists[*at].clone_from(&region.name),
            _ => {}
        }
    }
    let decompositions = view.decompositions.iter().zip(names);
    let decompositions = decompositions.map(|((identity, parts), name)| (*identity, parts.bytes().to_vec(), name));
    let mut lists = Vec::new();
    for (place, ((identity, list), name)) in view.lists.iter().zip(of_lists).enumerate() {
        let region = head.region(&ids::region_name(place)).ok_or(Stop::Told)?;
        *left = left.checked_sub(region.bytes).ok_or(Stop::TooLong)?;
        let numbers = body::list(head, place, body::of_file(shard)).map_err(|_| Stop::Told)?;
        lists.push((*identity, (*list, numbers), name));
    }
    let shared = view.rules.iter().filter(|(_, rule)| **rule == Rule::Shared);
    let shared = shared.filter_map(|(place, _)| regions.get(*place));
    Ok(Record {
        decompositions: decompositions.collect(),
        lists,
        rules: hash(&(&view.rules, view.decompositions.len(), view.lists.len())),
        shared: shared.map(|region| (region.name.clone(), digests(head, region))).collect(),
    })
}

/// A hash of the digests of a region's blocks.
fn digests(head: &Head, region: &Region) -> u64 {
    let blocks: Vec<(u64, [u8; 16])> =
        head.region_blocks(region).map(|(_, length, digest)| (length, digest.0)).collect();
    hash(&blocks)
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
