//! `bivouac export`: a region of a checkpoint as an array for NumPy.
//!
//! [`parts`] finds the shards that hold the region and says how they fit together; [`npy`](crate::npy) makes the header. This module copies
//! the bytes piece by piece, compares each block with its digest, and gives the file its name when all of it is good.
#![forbid(unsafe_code)]

mod parts;

use crate::draft::Draft;
use crate::ending::{self, Ending, Problem};
use crate::npy;
use crate::output::{self, SCHEMA, complain, plain, print, print_json};
use crate::shards::Place;
use crate::verify::{READ_BYTES, damaged_blocks};
use bivouac_core::format::ElementType;
use bivouac_core::tier::TierError;
use indicatif::ProgressBar;
use parts::{Part, find, joined};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The placeholder for the rank in a file name.
const RANK: &str = "{rank}";

/// The arguments of `bivouac export`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac export bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 field -o field.npy       all ranks, one array
  bivouac export bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 field -o field.npy --rank 3
  bivouac export bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 field -o 'field-{rank}.npy'
  python3 -c 'import numpy; print(numpy.load(\"field.npy\", mmap_mode=\"r\").shape)'

FOLDER is a checkpoint folder of the global or the local tier, or a container file. `bivouac inspect --summary` shows
the regions.

The parts of all ranks are joined along the first axis, in ascending order of rank, as numpy.concatenate does: a
region of shape (30, 50) on 4 ranks becomes (120, 50). The other axes and the element type must be the same on all
ranks. If FILE contains {rank}, each rank's part is written to a separate file. The shape is the one that the program
gave, in C order; if it gave none, the shape is the number of elements. Records become raw bytes of the same length
(such as V16), which view() can reinterpret. Values that Rust programs have encoded are refused. If an array is cut
into boxes, this command writes the boxes as each rank had them; `bivouac extract` writes the array.

Every block is compared with the digest that was made at capture. If a block is damaged, the command leaves no new
file and replaces no old one.

Exit status: 0 done; 1 something is damaged;
2 wrong usage, or something cannot be read or written; 3 no such checkpoint, rank or region.")]
pub struct Args {
    /// The checkpoint folder or container file
    folder: PathBuf,
    /// The name of the region
    region: String,
    /// The file to write; if its name contains {rank}, one file for each rank
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write only the part of this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `export --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    region: String,
    files: Vec<Written>,
}

/// A file that was written.
#[derive(Serialize)]
struct Written {
    path: String,
    /// NumPy's word for the element type.
    dtype: String,
    shape: Vec<u64>,
    /// The ranks whose parts the file holds, in order.
    ranks: Vec<u32>,
}

/// A file that is to be written.
struct Wanted<'a> {
    path: PathBuf,
    element: ElementType,
    shape: Vec<u64>,
    parts: Vec<&'a Part>,
}

/// Runs `bivouac export`.
pub fn run(args: &Args) -> Ending {
    let files = match export(args) {
        Ok(files) => files,
        Err(problem) => {
            complain(&problem.text);
            return problem.ending;
        }
    };
    if args.json {
        print_json(&Document { schema: SCHEMA, command: "export", region: args.region.clone(), files });
    } else {
        let line = |Written { path, dtype, shape, ranks }: &Written| {
            let ranks = output::ranks(ranks.iter().copied());
            format!("{}: {dtype} {}, ranks {ranks}\n", plain(path), npy::tuple(shape))
        };
        print(&files.iter().map(line).collect::<String>());
    }
    Ending::Good
}

fn export(args: &Args) -> Result<Vec<Written>, Problem> {
    let found = find(&args.folder, &args.region, args.rank)?;
    let alone = |part| {
        let path = named(&args.output, part);
        Wanted { path, element: part.region.element, shape: part.shape(), parts: vec![part] }
    };
    let wanted: Vec<Wanted<'_>> = match (args.rank, args.output.to_string_lossy().contains(RANK)) {
        (None, false) => {
            let (element, shape) = joined(&found)?;
            vec![Wanted { path: args.output.clone(), element, shape, parts: found.parts.iter().collect() }]
        }
        _ => found.parts.iter().map(alone).collect(),
    };
    let bar = output::bar(found.parts.iter().map(|part| part.region.bytes).sum(), args.json);
    let drafts: Result<Vec<Draft>, Problem> =
        wanted.iter().map(|wanted| write(&found.place, wanted, &args.region, &bar)).collect();
    bar.finish_and_clear();
    // No file receives its name unless all files are good.
    for draft in drafts? {
        draft.publish()?;
    }
    let written = |wanted: &Wanted<'_>| Written {
        path: wanted.path.display().to_string(),
        dtype: npy::descr(wanted.element),
        shape: wanted.shape.clone(),
        ranks: wanted.parts.iter().map(|part| part.spot.rank()).collect(),
    };
    Ok(wanted.iter().map(written).collect())
}

/// The path of the file for a rank.
fn named(pattern: &Path, part: &Part) -> PathBuf {
    match pattern.to_str() {
        Some(text) => text.replace(RANK, &part.spot.rank().to_string()).into(),
        None => pattern.to_owned(),
    }
}

fn write(place: &Place, wanted: &Wanted<'_>, region: &str, bar: &ProgressBar) -> Result<Draft, Problem> {
    let (draft, mut file) = Draft::create(&wanted.path)?;
    let failed = |error: std::io::Error| draft.failed("write", &error);
    file.write_all(&npy::header(wanted.element, &wanted.shape)).map_err(failed)?;
    for part in &wanted.parts {
        copy(place, part, region, &mut |bytes| {
            bar.inc(bytes.len() as u64);
            file.write_all(bytes).map_err(|error| failed(error).into())
        })?;
    }
    file.sync_all().map_err(failed)?;
    Ok(draft)
}

/// Reads a part piece by piece, checks each block, and passes the data on.
fn copy(
    place: &Place,
    part: &Part,
    name: &str,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let wrong = |error: TierError| Problem {
        ending: ending::of_tier(&error),
        text: format!("{error} (region {:?} of {})", output::short(name), part.spot.title()),
    };
    let shard = place.open(&part.spot).map_err(wrong)?;
    let head = shard.head();
    let region = head.region(name).filter(|region| **region == part.region);
    let Some(region) = region else {
        return Err(format!("{} was replaced while it was read: try again", part.spot.path.display()).into());
    };
    let start = head.header.body_offset + region.offset;
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < region.bytes {
        let length = READ_BYTES.min(region.bytes - at);
        buffer.resize(length as usize, 0);
        shard.read_raw(start + at, &mut buffer).map_err(wrong)?;
        if let Some(finding) = damaged_blocks(&part.spot.path, head, region, at, &buffer).into_iter().next() {
            let advice = "another tier may have a good copy, and bivouac verify names the newest good version";
            return Err(Problem::damage(format!("{} tier: {}; {advice}", place.tier.kind(), finding.message)));
        }
        take(&buffer)?;
        at += length;
    }
    Ok(())
}
