//! `bivouac diff`: how two checkpoints differ, region by region and rank by rank.
#![forbid(unsafe_code)]

mod dealt;
mod elements;

use crate::ending::{Ending, Problem, Problems};
use crate::output::{self, SCHEMA, list, plain, short, show, table};
use crate::places::nothing_in;
use crate::survey::{Checkpoint, survey};
use crate::target::Target;
use bivouac_core::format::shard::Head;
use bivouac_core::format::{ElementType, Region};
use bivouac_core::region::is_reserved;
use bivouac_core::tier::TierError;
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::ReadFile;
use dealt::{Comparison, Dealt};
use elements::Elements;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of bytes that are read from each side at a time.
const PIECE: u64 = 1 << 20;
/// The granularity, in bytes, of a comparison of bytes.
const GRAIN: u64 = 64;
/// The maximum number of regions that are named because they cannot be compared.
const REGIONS_MAX: usize = 20;
/// The maximum number of ranges of a region that are shown to people.
const RANGES_MAX: usize = 6;

/// The arguments of `bivouac diff`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac diff RUN/world/heat/g000001-v0000000050-o000005 RUN/world/heat/g000001-v0000000060-o000006
  bivouac diff --read A B                 byte by byte, with the largest numerical difference
  bivouac diff --region t --rank 3 A B    one region of one rank

Regions are compared by the digests of their blocks, without reading the blocks. This works even across runs, and even
if files refer to other files. If the blocks have different lengths, `--read` is needed. Bytes are not checked; use
`bivouac verify` for that. Bivouac's own regions are left out unless `--region` names one of them.

If the checkpoints have different numbers of ranks or different decompositions, arrays that are spread over the ranks
are compared element by element, according to the elements' places in the array. The output shows how many elements
differ, and the first of them with both values and both ranks. Blocks are checked as they are read. If the numbers of
ranks differ, shared values are compared once, and values that belong to one rank cannot be compared. Such values are
named, but do not affect the exit status unless there is nothing else to compare or `--region` names one of them.

Exit status: 0 everything that can be compared is equal; 1 something differs or is damaged;
2 wrong usage, or something cannot be read; 3 nothing found.")]
pub struct Args {
    /// The folder of a checkpoint
    a: PathBuf,
    /// The folder of another checkpoint
    b: PathBuf,
    /// Compare only this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Compare only the region with this name
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Compare bytes, not digests
    #[arg(long)]
    read: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `diff --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    a: String,
    b: String,
    /// The number of regions that were compared and are equal.
    equal: u64,
    differences: Vec<Row>,
    /// Regions that belong to each rank alone, in checkpoints of different numbers of ranks.
    incomparable: Vec<Incomparable>,
    problems: Problems,
}

/// A region that cannot be compared.
#[derive(Serialize)]
struct Incomparable {
    region: String,
    why: String,
}

/// A region of a rank, or of all ranks together, that differs between the checkpoints.
#[derive(Serialize)]
struct Row {
    /// `None` if the region belongs to all ranks together.
    rank: Option<u32>,
    region: String,
    /// `bytes`, `length`, `type`, `shape`, `elements`, `only in a`, `only in b`, or `blocks`, if the regions cannot be compared
    /// without reading them.
    what: &'static str,
    /// The bytes of the region in each checkpoint; `None` where it is absent.
    bytes: [Option<u64>; 2],
    /// The first byte and the length of each range that differs.
    ranges: Vec<[u64; 2]>,
    /// The largest difference of two numbers at one place, and the index of that element; only with `--read`, and only for numbers.
    largest: Option<(f64, u64)>,
    /// The differing elements, if an array was compared element by element.
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<Elements>,
}

impl Row {
    fn of(rank: Option<u32>, region: &str, what: &'static str, bytes: [Option<u64>; 2]) -> Row {
        Row { rank, region: region.to_owned(), what, bytes, ranges: Vec::new(), largest: None, elements: None }
    }
}

/// Runs `bivouac diff`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document {
        schema: SCHEMA,
        command: "diff",
        a: args.a.display().to_string(),
        b: args.b.display().to_string(),
        equal: 0,
        differences: Vec::new(),
        incomparable: Vec::new(),
        problems: Problems::default(),
    };
    if let Err(problem) = compare(args, &mut document) {
        document.problems.add(problem);
    }
    if !document.differences.is_empty() {
        document.problems.note(Ending::Damage);
    }
    document.problems.complain();
    show(args.json, &document, text);
    document.problems.ending()
}

fn compare(args: &Args, document: &mut Document) -> Result<(), Problem> {
    let [mut a, mut b] = [shards(&args.a)?, shards(&args.b)?];
    if let Some(rank) = args.rank {
        a.retain(|other, _| *other == rank);
        b.retain(|other, _| *other == rank);
        if a.is_empty() && b.is_empty() {
            return Err(Problem::nothing(format!("neither checkpoint has a shard of rank {rank}")));
        }
    }
    let mut has_region = false;
    let is_meant = |name: &String| match &args.region {
        Some(wanted) => wanted == name,
        None => !is_reserved(name),
    };
    let dealt = Dealt::of([&a, &b])?;
    let all: BTreeSet<u32> = a.keys().chain(b.keys()).copied().collect();
    for rank in all.into_iter().filter(|_| !dealt.is_resized()) {
        let sides = [a.get(&rank), b.get(&rank)];
        let is_own = |name: &&String| matches!(dealt.of_region(name, args.rank), Comparison::ByRank);
        for name in names(sides).iter().filter(|name| is_meant(name)).filter(is_own) {
            has_region = true;
            match differs(Some(rank), name, sides, args.read)? {
                Some(row) => document.differences.push(row),
                None => document.equal += 1,
            }
        }
    }
    let firsts = [&a, &b].map(|shards| shards.values().next());
    for name in names(firsts).iter().filter(|name| is_meant(name)) {
        let found = match dealt.of_region(name, args.rank) {
            Comparison::ByRank => continue,
            Comparison::None(why) => {
                has_region = true;
                document.incomparable.push(Incomparable { region: name.clone(), why });
                continue;
            }
            Comparison::Once => differs(None, name, firsts, args.read)?,
            Comparison::ByElement => elements::compare([&args.a, &args.b], name)?,
        };
        has_region = true;
        match found {
            Some(row) => document.differences.push(row),
            None => document.equal += 1,
        }
    }
    if document.equal == 0 && document.differences.is_empty() && !document.incomparable.is_empty() {
        let why = document.incomparable.iter().map(|one| format!("{:?}: {}", short(&one.region), one.why));
        return Err(format!("nothing can be compared: {}", list(why, REGIONS_MAX, "; ")).into());
    }
    match &args.region {
        Some(region) if !has_region => Err(Problem::nothing(format!("neither checkpoint has a region {region:?}"))),
        _ => Ok(()),
    }
}

/// The names of the regions that one shard or both have, in their order.
fn names(sides: [Option<&FileShard>; 2]) -> Vec<String> {
    let of = |side: Option<&FileShard>| -> Vec<String> {
        let regions = side.into_iter().flat_map(|shard| shard.head().meta.regions.iter());
        regions.map(|region| region.name.clone()).collect()
    };
    let mut names = of(sides[0]);
    names.extend(of(sides[1]).into_iter().filter(|name| sides[0].is_none_or(|a| a.head().region(name).is_none())));
    names
}

/// The shards of the only checkpoint at a path, by rank.
fn shards(path: &Path) -> Result<BTreeMap<u32, FileShard>, Problem> {
    let Target::Scope(scope) = Target::of(path)? else {
        return Err(format!("{} is not the folder of a checkpoint", path.display()).into());
    };
    scope.tier.find_store().map_err(|error| error.to_string())?;
    let (found, _) = survey(&scope)?;
    let checkpoint = match &found[..] {
        [] => return Err(nothing_in(path)),
        [one] => one,
        more => {
            let count = more.len();
            return Err(format!(
                "{} has {count} checkpoints: give the folder of one (bivouac ls lists them)",
                path.display()
            )
            .into());
        }
    };
    let mut shards = BTreeMap::new();
    for file in checkpoint.files.iter().filter(|file| file.is_container()) {
        open(checkpoint, &file.name, &mut shards)?;
    }
    Ok(shards)
}

fn open(checkpoint: &Checkpoint, name: &str, shards: &mut BTreeMap<u32, FileShard>) -> Result<(), TierError> {
    let path = checkpoint.path.join(name);
    let (index, file) = checkpoint.tier.open_container(&path)?;
    let file: Arc<dyn ReadFile> = file.into();
    for entry in index.entries {
        let shard = checkpoint.tier.open_placed(&checkpoint.series, path.clone(), file.clone(), &entry)?;
        shards.entry(entry.rank.0).or_insert(shard);
    }
    Ok(())
}

/// How a region differs, if it does.
fn differs(
    rank: Option<u32>,
    name: &str,
    sides: [Option<&FileShard>; 2],
    read: bool,
) -> Result<Option<Row>, TierError> {
    let region = |side: Option<&FileShard>| side.and_then(|shard| shard.head().region(name)).cloned();
    let regions = sides.map(region);
    let bytes = [0, 1].map(|side| regions[side].as_ref().map(|region| region.bytes));
    let row = |what| Row::of(rank, name, what, bytes);
    let ([Some(a), Some(b)], [Some(one), Some(other)]) = (sides, &regions) else {
        return Ok(Some(row(if regions[0].is_some() { "only in a" } else { "only in b" })));
    };
    if (one.kind, one.element, &one.shape) != (other.kind, other.element, &other.shape) && one.bytes == other.bytes {
        return Ok(Some(row("type")));
    }
    if one.bytes != other.bytes {
        return Ok(Some(row("length")));
    }
    let found = match read {
        true => by_bytes([a, b], [one, other])?,
        false => match by_digests([a.head(), b.head()], [one, other]) {
            Some(ranges) => (ranges, None),
            None => return Ok(Some(row("blocks"))),
        },
    };
    let (ranges, largest) = found;
    Ok((!ranges.is_empty()).then(|| Row { ranges, largest, ..row("bytes") }))
}

/// Appends a range to others.
fn push(ranges: &mut Vec<[u64; 2]>, start: u64, bytes: u64) {
    match ranges.last_mut() {
        Some([at, length]) if *at + *length == start => *length += bytes,
        _ => ranges.push([start, bytes]),
    }
}

/// The blocks whose digests differ in two regions of the same length; `None` if the block sizes differ. Pure.
fn by_digests(heads: [&Head; 2], regions: [&Region; 2]) -> Option<Vec<[u64; 2]>> {
    let block = u64::from(heads[0].header.block_size);
    if heads[1].header.block_size != heads[0].header.block_size {
        return None;
    }
    let digests = |side: usize| {
        let first = regions[side].first_block as usize;
        &heads[side].digests[first..first + regions[side].blocks(block) as usize]
    };
    let mut ranges = Vec::new();
    for (index, (one, other)) in digests(0).iter().zip(digests(1)).enumerate() {
        let start = index as u64 * block;
        if one != other {
            push(&mut ranges, start, block.min(regions[0].bytes - start));
        }
    }
    Some(ranges)
}

/// The ranges that differ, and the largest difference of two numbers with its element.
type Found = (Vec<[u64; 2]>, Option<(f64, u64)>);

/// Finds the bytes that differ in two regions of the same length and type.
fn by_bytes(shards: [&FileShard; 2], regions: [&Region; 2]) -> Result<Found, TierError> {
    let (bytes, element) = (regions[0].bytes, regions[0].element);
    let (mut ranges, mut largest) = (Vec::new(), None);
    let mut buffers = [0, 1].map(|_| vec![0u8; PIECE.min(bytes) as usize]);
    for start in (0..bytes).step_by(PIECE as usize) {
        let length = PIECE.min(bytes - start) as usize;
        for ((shard, region), buffer) in shards.into_iter().zip(regions).zip(&mut buffers) {
            shard.read_raw(shard.head().header.body_offset + region.offset + start, &mut buffer[..length])?;
        }
        let [a, b] = &buffers;
        let grains = a[..length].chunks(GRAIN as usize).zip(b[..length].chunks(GRAIN as usize));
        for (index, (a, b)) in grains.enumerate().filter(|(_, (a, b))| a != b) {
            let at = start + index as u64 * GRAIN;
            push(&mut ranges, at, a.len() as u64);
            largest_of(element, at, [a, b], &mut largest);
        }
    }
    Ok((ranges, largest))
}

/// Notes the largest difference of the numbers in these bytes, which begin at byte `at` of a region. A difference that is not a number is
/// larger than all others.
fn largest_of(element: ElementType, at: u64, bytes: [&[u8]; 2], largest: &mut Option<(f64, u64)>) {
    let size = element.bytes();
    if matches!(element, ElementType::Record(_)) {
        return;
    }
    let [a, b] = bytes.map(|bytes| bytes.chunks_exact(size as usize));
    for (index, (a, b)) in a.zip(b).enumerate().filter(|(_, (a, b))| a != b) {
        let difference = (number(element, a) - number(element, b)).abs();
        let is_larger = |known: f64| difference.is_nan() && !known.is_nan() || difference > known;
        if largest.is_none_or(|(known, _)| is_larger(known)) {
            *largest = Some((difference, at / size + index as u64));
        }
    }
}

fn number(element: ElementType, bytes: &[u8]) -> f64 {
    let word = bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    match element {
        ElementType::I8 => f64::from(word as u8 as i8),
        ElementType::I16 => f64::from(word as u16 as i16),
        ElementType::I32 => f64::from(word as u32 as i32),
        ElementType::I64 => word as i64 as f64,
        ElementType::F32 => f64::from(f32::from_bits(word as u32)),
        ElementType::F64 => f64::from_bits(word),
        _ => word as f64,
    }
}

fn text(document: &Document) -> String {
    let left_out = |one: &Incomparable| format!("not compared: {} ({})\n", plain(&one.region), one.why);
    let left_out: String = document.incomparable.iter().map(left_out).collect();
    if document.differences.is_empty() {
        let is_good = document.problems.ending() == Ending::Good;
        return if is_good { format!("{left_out}equal: {} regions\n", document.equal) } else { String::new() };
    }
    let rows: Vec<Vec<String>> = document.differences.iter().map(cells).collect();
    let heads = ["RANK", "REGION", "DIFFERS", "WHERE", "LARGEST"];
    let (differ, all) = (rows.len() as u64, rows.len() as u64 + document.equal);
    format!("{}{left_out}{differ} of {all} regions differ\n", table(&heads, &[0], &rows))
}

fn cells(row: &Row) -> Vec<String> {
    let lengths = row.bytes.map(|bytes| bytes.map_or_else(|| "-".to_owned(), output::bytes));
    let differs = match row.what {
        "bytes" => {
            let sum = row.ranges.iter().map(|[_, bytes]| bytes).sum();
            format!("{} of {}", output::bytes(sum), lengths[0])
        }
        "blocks" => "not known, because their blocks have different lengths: use --read".into(),
        "length" => format!("length: {} and {}", lengths[0], lengths[1]),
        "type" => "type or shape".into(),
        "elements" => row.elements.as_ref().map_or_else(String::new, Elements::counts),
        what => what.to_owned(),
    };
    let shown: Vec<String> =
        row.ranges.iter().take(RANGES_MAX).map(|[start, bytes]| format!("{start}+{bytes}")).collect();
    let more = row.ranges.len().saturating_sub(RANGES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let largest = row.largest.map_or_else(String::new, |(difference, element)| format!("{difference:e} at {element}"));
    let places = match &row.elements {
        Some(elements) => elements.places(),
        None => shown.join(", ") + &more,
    };
    let rank = row.rank.map_or_else(|| "all".to_owned(), |rank| rank.to_string());
    vec![rank, plain(&row.region), differs, places, largest]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_is_of_numbers_as_they_are() {
        let largest = |element, a: &[u8], b: &[u8]| {
            let mut largest = None;
            largest_of(element, 64, [a, b], &mut largest);
            largest
        };
        let bytes = |numbers: &[f64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(largest(ElementType::F64, &bytes(&[1.0, 2.0]), &bytes(&[1.5, 2.25])), Some((0.5, 8)));
        assert_eq!(largest(ElementType::F64, &bytes(&[1.0, -3.0]), &bytes(&[1.0, 4.0])), Some((7.0, 9)));
        let none = largest(ElementType::F64, &bytes(&[f64::NAN, 1.0]), &bytes(&[1.0, 9.0])).expect("one differs");
        assert!(none.0.is_nan() && none.1 == 8);
        assert_eq!(largest(ElementType::I16, &[0xff, 0xff], &[1, 0]), Some((2.0, 32)));
        assert_eq!(largest(ElementType::U8, &[0xff], &[1]), Some((254.0, 64)));
        assert_eq!(largest(ElementType::Record(2), &[1, 2], &[3, 4]), None);
    }

    #[test]
    fn neighbours_are_one_range() {
        let mut ranges = Vec::new();
        [(0, 64), (64, 64), (256, 10)].into_iter().for_each(|(start, bytes)| push(&mut ranges, start, bytes));
        assert_eq!(ranges, [[0, 128], [256, 10]]);
    }
}
