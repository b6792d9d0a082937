//! Where to damage: the parts of a shard, a container, a manifest and a segment, found by reading the files as a reader would.

use crate::case::Case;
use bivouac_core::base::rng::Rng;
use bivouac_core::format::container::{FOOTER_LEN, Footer};
use bivouac_core::format::shard::{Content, Head};
use bivouac_core::format::{Container, Region, ShardHeader};
use bivouac_core::segment::OldSegment;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Parts of a shard.
pub const SHARD_PARTS: [&str; 4] = ["header", "table", "index", "body"];
/// Parts of a container outside its shards.
pub const CONTAINER_PARTS: [&str; 2] = ["entries", "footer"];

/// A shard, in memory or in a file.
pub struct Shard {
    pub path: PathBuf,
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Shard {
    /// The newest version of a rank, in the memory segment.
    pub fn in_memory(case: &Case, rank: usize) -> Shard {
        let path = case.segment();
        let name = path.file_name().unwrap().to_str().unwrap();
        let segment = OldSegment::open(&case.tier("memory"), name).unwrap();
        // There is only one node, so the place on the node is the rank.
        let newest = segment.slots().iter().filter(|slot| slot.node_rank == rank as u32 && slot.intact);
        let slot = newest.max_by_key(|slot| slot.version).unwrap();
        Shard { path, at: slot.offset, bytes: segment.bytes(slot).unwrap().to_vec() }
    }

    /// The shard of a rank in a container file.
    pub fn in_file(path: PathBuf, rank: usize) -> Shard {
        let container = container(&path);
        let entry = container.1.entries.iter().find(|entry| entry.rank.index() == rank).unwrap();
        let mut bytes = vec![0; entry.length as usize];
        File::open(&path).unwrap().read_exact_at(&mut bytes, entry.offset).unwrap();
        Shard { path, at: entry.offset, bytes }
    }

    /// The range of a part in the file: `body` is the body of any of the application's regions, and another word is the name of a region.
    pub fn part(&self, part: &str, rng: &mut Rng) -> Range<u64> {
        let header = ShardHeader::decode(&self.bytes).unwrap();
        let index = (256 + header.meta_len).next_multiple_of(16);
        let within = match part {
            "header" => 0..256,
            "table" => 256..256 + header.meta_len,
            "index" => index..index + 16 * header.block_count,
            name => {
                let head = Head::decode(&self.bytes).unwrap();
                // The regions that the library keeps for itself in a shard may be lost without harm.
                let is_any = |region: &Region| name == "body" && !region.name.starts_with(".bivouac/");
                // A packed shard holds the bytes that it stores itself in one region.
                let is_own = |region: &Region| head.header.content == Content::Packed && region.name == "bytes";
                let is_hit =
                    |region: &&Region| region.bytes > 0 && (is_any(region) || region.name == name || is_own(region));
                let full: Vec<_> = head.meta.regions.iter().filter(is_hit).collect();
                assert!(!full.is_empty(), "no part {name}");
                let region = full[rng.below(full.len() as u64) as usize];
                let start = header.body_offset + region.offset;
                start..start + region.bytes
            }
        };
        self.at + within.start..self.at + within.end
    }

    /// Flips one bit of a part.
    pub fn flip(&self, part: &str, rng: &mut Rng) -> String {
        flip(&self.path, self.part(part, rng), rng)
    }
}

/// The ways to lose a write ([`Shard::lose_write`]).
pub const LOST: [&str; 4] = ["zeroed", "hole", "stale", "stale-sector"];

impl Shard {
    /// Undoes a write to the main region: a page becomes zeros or a hole, or the page or a sector of it becomes what it was in `older`, the
    /// shard of the previous version.
    pub fn lose_write(&self, how: &str, older: &Shard, rng: &mut Rng) -> String {
        let (region, before) = (self.part("main", rng), older.part("main", rng));
        let size = if how == "stale-sector" { 512 } else { 4096 };
        let shorter = (region.end - region.start).min(before.end - before.start);
        let within = rng.below((shorter / size).max(1)) * size;
        let at = region.start + within;
        let file = OpenOptions::new().write(true).open(&self.path).unwrap();
        if how == "hole" {
            let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, punch, at, size).unwrap();
        } else {
            let from = (before.start - older.at + within) as usize;
            let old = &older.bytes[from..(from + size as usize).min(older.bytes.len())];
            let zeros = vec![0; size as usize];
            file.write_all_at(if how == "zeroed" { &zeros } else { old }, at).unwrap();
        }
        format!("{size} bytes at {at} of {} are {how}", self.path.display())
    }
}

fn container(path: &Path) -> (Footer, Container) {
    let bytes = fs::read(path).unwrap();
    let footer = Footer::decode(&bytes[bytes.len() - FOOTER_LEN..], bytes.len() as u64).unwrap();
    let container = Container::decode(&footer, &bytes[footer.index_offset as usize..]).unwrap();
    (footer, container)
}

/// Flips one bit of a container's own parts.
pub fn flip_container(path: &Path, part: &str, rng: &mut Rng) -> String {
    let footer = container(path).0;
    let length = fs::metadata(path).unwrap().len();
    let range = match part {
        "entries" => footer.index_offset..footer.index_offset + footer.index_len,
        "footer" => length - FOOTER_LEN as u64..length,
        other => panic!("no part {other}"),
    };
    flip(path, range, rng)
}

/// Flips one bit anywhere in a file.
pub fn flip_anywhere(path: &Path, rng: &mut Rng) -> String {
    flip(path, 0..fs::metadata(path).unwrap().len(), rng)
}

/// Flips one bit in the slot directory of a segment: in the entry that the rank uses, in a word that decides where the
/// shard is and what it is.
pub fn flip_slot_entry(case: &Case, rank: usize, rng: &mut Rng) -> String {
    let path = case.segment();
    let name = path.file_name().unwrap().to_str().unwrap();
    let segment = OldSegment::open(&case.tier("memory"), name).unwrap();
    let slot = segment.slots().iter().find(|slot| slot.node_rank == rank as u32 && slot.intact).unwrap();
    // `src/core/segment/layout.rs`: 64 entries of 128 bytes per rank after the first page; words 1 to 5 say where the
    // shard is and what it is.
    let at = 4096 + (u64::from(slot.node_rank) * 64 + u64::from(slot.index)) * 128;
    flip(&path, at + 8..at + 48, rng)
}

/// Flips one bit in a range of a file, and returns a text that names it.
pub fn flip(path: &Path, range: Range<u64>, rng: &mut Rng) -> String {
    let (at, bit) = (range.start + rng.below(range.end - range.start), rng.below(8));
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
    format!("bit {bit} of byte {at} of {}", path.display())
}

/// Overwrites a shard with other bytes.
pub fn overwrite(shard: &Shard, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(&shard.path).unwrap();
    file.write_all_at(bytes, shard.at).unwrap();
}

/// Loses a file in one of several ways; `foreign` are the same file of an older version and of another job.
pub fn spoil(path: &Path, how: &str, foreign: [&Path; 2], rng: &mut Rng) -> String {
    let length = fs::metadata(path).unwrap().len();
    match how {
        "truncated" => {
            let left = 1 + rng.below(length - 1);
            OpenOptions::new().write(true).open(path).unwrap().set_len(left).unwrap();
            return format!("{} cut to {left} of {length} bytes", path.display());
        }
        "empty" => OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap(),
        "missing" => fs::remove_file(path).unwrap(),
        "directory" => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
        "other-version" => drop(fs::copy(foreign[0], path).unwrap()),
        "other-job" => drop(fs::copy(foreign[1], path).unwrap()),
        other => panic!("no way {other}"),
    }
    format!("{} {how}", path.display())
}
