//! `bivouac extract`: an array that is spread over the ranks, or a box of it, as one array for NumPy.
//!
//! First, the command proves that every wanted element exists exactly once. Then it writes the array from front to back, in
//! [bands](array) that fit in memory.
#![forbid(unsafe_code)]

mod image;
mod section;

use crate::array::{self, Array, BAND_BYTES, Found, Plain, bands};
use crate::draft::Draft;
use crate::ending::{Ending, Problem};
use crate::npy;
use crate::output::{self, SCHEMA, complain, plain, print, print_json, short};
use bivouac_core::decomposition::Cuboid;
use image::Image;
use indicatif::ProgressBar;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// The arguments of `bivouac extract`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac extract bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 temperature -o t.npy
  bivouac extract bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 temperature --box 100:200,: -o rows.npy
  bivouac extract bivouac/amr-51d0c4aa/world/amr/g000001-v0000000070-o000007 level2 --fill nan -o level2.npy
  bivouac extract bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007 temperature --picture -o t.png
  python3 -c 'import numpy; print(numpy.load(\"t.npy\", mmap_mode=\"r\").shape)'

FOLDER is a checkpoint folder of the global or the local tier, or a container file. `bivouac inspect` shows which
regions belong to an array. The array is written as the program sees it, in C order, whatever the number of ranks and
however it was divided among them. For regions that are not part of an array, use `bivouac export`.

--box takes a range FROM:TO for each dimension, the slowest dimension first. The element TO is not included. Without
FROM, a range begins with the first element; without TO, it ends with the last one. Negative numbers count from the
end, as in Python. A single number N means N:N+1, and its dimension is kept. A range that is not inside the array is
refused.

If some elements of a sparse array were not saved by any rank, the command names the first of them and fails, unless
--fill says what to write there. On one node's local tier, some shards are missing; their elements cannot be filled.

Every block that overlaps the box is read as a whole and compared with the digest that was made at capture. If a block
is damaged, the command leaves no new file and replaces no old one. It needs about 200 MB of memory, and room for the
decomposition records.

Exit status: 0 done; 1 something is damaged;
2 wrong usage, or something cannot be read or written; 3 no such checkpoint, region or elements.")]
pub struct Args {
    /// The checkpoint folder or container file
    folder: PathBuf,
    /// The name of the region
    region: String,
    /// Write only these elements, such as 0:100,20:,-1
    #[arg(long = "box", value_name = "RANGES", allow_hyphen_values = true)]
    section: Option<String>,
    /// The value to write for those elements of a sparse array that no rank has saved
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    fill: Option<String>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Draw a two-dimensional array of numbers as a PNG picture instead, at most 1024 by 1024 pixels
    #[arg(long)]
    picture: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `extract --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    region: String,
    path: String,
    /// NumPy's word for the element type.
    dtype: String,
    /// The shape of what was written.
    shape: Vec<u64>,
    /// The position in the array of the first element that was written.
    origin: Vec<u64>,
    /// The shape of the whole array.
    array_shape: Vec<u64>,
    /// Elements that no rank has saved.
    filled: u64,
    /// The ranks whose shards were found here.
    ranks: Vec<u32>,
}

/// Runs `bivouac extract`.
pub fn run(args: &Args) -> Ending {
    let document = match extract(args) {
        Ok(document) => document,
        Err(problem) => {
            complain(&problem.text);
            return problem.ending;
        }
    };
    match args.json {
        true => print_json(&document),
        false => print(&text(&document)),
    }
    Ending::Good
}

fn extract(args: &Args) -> Result<Document, Problem> {
    let mut array = match Array::find(&args.folder, &args.region)? {
        Found::Array(array) => array,
        Found::Plain(plain) => return Err(no_array(&plain, args).into()),
    };
    let section = match &args.section {
        Some(text) => section::parse(text, array.shape())?,
        None => array.whole,
    };
    let fill = args.fill.as_ref().map(|text| section::fill(text, array.element)).transpose()?;
    if fill.is_some() && !array.is_sparse {
        let text = format!("the array of region {:?} is not sparse: omit --fill", short(&args.region));
        return Err(text.into());
    }
    array.prove(&section, fill.is_some())?;
    let bar = output::bar(section.volume().saturating_mul(array.element.bytes()), args.json);
    let filled = write(args, &mut array, &section, fill.as_deref(), &bar);
    bar.finish_and_clear();
    let filled = filled?;
    Ok(Document {
        schema: SCHEMA,
        command: "extract",
        region: args.region.clone(),
        path: args.output.display().to_string(),
        dtype: npy::descr(array.element),
        origin: section.from[..array.dims].to_vec(),
        array_shape: array.shape().to_vec(),
        shape: extents(&section, array.dims),
        filled,
        ranks: array.ranks().collect(),
    })
}

fn extents(section: &Cuboid, dims: usize) -> Vec<u64> {
    (0..dims).map(|dim| section.extent(dim)).collect()
}

/// The message about a region that is not an array spread over the ranks.
fn no_array(plain: &Plain, Args { region, folder, .. }: &Args) -> String {
    let (region, folder) = (short(region), folder.display());
    let inspect = format!("bivouac inspect {folder} shows it, but only the program can read it");
    match plain {
        Plain::Shared => {
            format!("region {region:?} is a value that all ranks share, not an array: {inspect} (`shared`)")
        }
        Plain::PerRank => format!("region {region:?} is a value of each rank, not an array: {inspect} (`of_ranks`)"),
        Plain::Rows => format!(
            "region {region:?} is a column of rows and not part of an array: each rank has its own number of rows. bivouac export \
             {folder} {region} -o FILE writes those of one rank"
        ),
        Plain::OwnValue => {
            format!("region {region:?} is a value that each rank has for itself, not an array: {inspect} (`value`)")
        }
        Plain::OwnArray => format!(
            "region {region:?} is not part of an array: each rank has its own. bivouac export {folder} {region} -o FILE writes it"
        ),
    }
}

/// Writes a section of an array, or a picture of it. Returns the number of its elements that no rank has saved.
fn write(
    args: &Args,
    array: &mut Array,
    section: &Cuboid,
    fill: Option<&[u8]>,
    bar: &ProgressBar,
) -> Result<u64, Problem> {
    let extents = extents(section, array.dims);
    let image = args.picture.then(|| Image::new(array.element, *section, &extents)).transpose()?;
    let (draft, mut file) = Draft::create(&args.output)?;
    let failed = |error: std::io::Error| draft.failed("write", &error);
    let filled = match image {
        Some(mut image) => {
            let filled = read(args, array, section, fill, |band, bytes| {
                image.add(band, bytes);
                bar.inc(bytes.len() as u64);
                Ok(())
            })?;
            image.write(&mut file).map_err(failed)?;
            filled
        }
        None => {
            file.write_all(&npy::header(array.element, &extents)).map_err(failed)?;
            read(args, array, section, fill, |_, bytes| {
                bar.inc(bytes.len() as u64);
                file.write_all(bytes).map_err(|error| draft.failed("write", &error).into())
            })?
        }
    };
    file.sync_all().map_err(failed)?;
    draft.publish()?;
    Ok(filled)
}

/// Passes the bands of a section to `put`, from front to back. Returns the number of elements that no rank has saved.
fn read(
    args: &Args,
    array: &mut Array,
    section: &Cuboid,
    fill: Option<&[u8]>,
    mut put: impl FnMut(&Cuboid, &[u8]) -> Result<(), Problem>,
) -> Result<u64, Problem> {
    let size = array.element.bytes();
    let (mut buffer, mut filled) = (Vec::new(), 0);
    for band in bands(section, array.dims, size, BAND_BYTES) {
        buffer.resize((band.volume() * size) as usize, 0);
        if let Some(fill) = fill {
            buffer.chunks_exact_mut(fill.len().max(1)).for_each(|element| element.copy_from_slice(fill));
        }
        let mut had = 0;
        array.read(&band, &mut buffer, |array::Had { from, to }| had += (to - from) as u64)?;
        // It has been proved that no element occurs twice.
        let lacking = band.volume().saturating_sub(had);
        if lacking > 0 && fill.is_none() {
            let (file, region) = (args.folder.display(), short(&args.region));
            return Err(format!("{file}: region {region:?}: it was replaced while it was read: try again").into());
        }
        filled += lacking;
        put(&band, &buffer)?;
    }
    Ok(filled)
}

fn text(document: &Document) -> String {
    let Document { path, dtype, shape, origin, array_shape, filled, .. } = document;
    let of = match shape == array_shape {
        true => String::new(),
        false => format!(", from {} of {}", npy::tuple(origin), npy::tuple(array_shape)),
    };
    let filled = if *filled == 0 { String::new() } else { format!(", {filled} elements filled") };
    format!("{}: {dtype} {}{of}{filled}\n", plain(path), npy::tuple(shape))
}
