//! A second reader that knows only `docs/FORMAT.md` reads the library's files.
//!
//! Nothing here calls a decoder, a checksum or a digest of the library: if code and document disagree, these tests fail.
#![forbid(unsafe_code)]

#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::digest::{Digest, digest_bytes};
use bivouac_core::base::ids::{CheckpointKey, Generation, Incarnation, Level, Origin, Rank};
use bivouac_core::config::{PartStore, Scheme};
use bivouac_core::format::SourceKey;
use bivouac_core::format::container::encode_tail;
use bivouac_core::format::packed::{Extent, Packing, Stored};
use bivouac_core::format::shard::{Layout, encode_head};
use bivouac_core::format::{ContainerEntry, ContainerInfo, ElementType, Manifest, Region, RegionKind, ShardMeta};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Boxes, Config, Ids, OnResize, Rows, Session};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

// ------------------------------------------------------------------------ what the document says

fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| {
        (0..8).fold(
            sum ^ u64::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x9a6c_9329_ac4b_c9b5 } else { sum >> 1 },
        )
    };
    !bytes.iter().fold(u64::MAX, add)
}

/// A checksum that is at `at` within the bytes that it covers.
fn checksum_around(bytes: &[u8], at: usize) -> u64 {
    let mut copy = bytes.to_vec();
    copy[at..at + 8].fill(0);
    checksum(&copy)
}

/// The constants of a row of the document's table.
fn constants(name: &str) -> Vec<u64> {
    let document = include_str!("../docs/FORMAT.md");
    let row = document.lines().find_map(|line| line.strip_prefix(&format!("| {name} | "))).unwrap();
    row.split('`').skip(1).step_by(2).map(|word| u64::from_str_radix(word, 16).unwrap()).collect()
}

fn digest(bytes: &[u8]) -> [u8; 16] {
    let (step, seed, round) = (constants("STEP")[0], constants("SEED")[0], constants("ROUND"));
    let factors = constants("MIX");
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(factors[0]);
        z = (z ^ (z >> 27)).wrapping_mul(factors[1]);
        z ^ (z >> 31)
    };
    let (mut x, mut y) = (0u64, 0u64);
    for (pair, chunk) in bytes.chunks(16).enumerate() {
        let mut padded = [0u8; 16];
        padded[..chunk.len()].copy_from_slice(chunk);
        let [a, b] = [0, 1].map(|half| {
            let key = mix(seed.wrapping_add((2 * pair as u64 + half + 1).wrapping_mul(step)));
            u64_at(&padded, 8 * half as usize).wrapping_add(key)
        });
        let product = u128::from(a) * u128::from(b);
        x = x.wrapping_add(product as u64);
        y = y.wrapping_add((product >> 64) as u64);
    }
    x = x.wrapping_add((bytes.len() as u64).wrapping_mul(step));
    y ^= mix(x.wrapping_add(round[0]));
    x ^= mix(y.wrapping_add(round[1]));
    y ^= mix(x.wrapping_add(round[2]));
    x ^= mix(y.wrapping_add(round[3]));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&x.to_le_bytes());
    out[8..].copy_from_slice(&y.to_le_bytes());
    out
}

/// Reads metadata from front to back.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head.to_vec()
    }
    fn u8(&mut self) -> u8 {
        self.bytes(1)[0]
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }
    fn short(&mut self) -> u64 {
        let length = self.0.iter().position(|byte| byte >> 7 == 0).unwrap() + 1;
        let number = self.bytes(length).into_iter().rev().fold(0u128, |n, byte| n << 7 | u128::from(byte & 127));
        assert!(length == 1 || number >> (7 * (length - 1)) > 0, "it could be shorter");
        number.try_into().unwrap()
    }
    fn step(&mut self) -> i64 {
        match self.short() {
            number if number & 1 == 1 => -((number / 2) as i64) - 1,
            number => (number / 2) as i64,
        }
    }
    fn text(&mut self) -> String {
        let count = self.u64() as usize;
        String::from_utf8(self.bytes(count)).unwrap()
    }
    /// Reads a key: generation, version, operation and incarnation.
    fn key(&mut self) -> (u64, u64, u64, Vec<u8>) {
        (self.u64(), self.u64(), self.u64(), self.bytes(16))
    }
    fn end(self) {
        assert!(self.0.is_empty(), "{} trailing bytes", self.0.len());
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Reader(&bytes[at..]).u32()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Reader(&bytes[at..]).u64()
}

/// Checks magic, version and byte order.
fn opens_with(bytes: &[u8], magic: &[u8; 8]) {
    assert_eq!(&bytes[..8], magic);
    assert_eq!(&bytes[8..16], &[1, 0, 0, 0, 4, 3, 2, 1]);
}

// ------------------------------------------------------------------------ what the library writes

fn key() -> CheckpointKey {
    let incarnation = Incarnation(std::array::from_fn(|i| 0xa0 + i as u8));
    CheckpointKey { generation: Generation(3), version: 70, operation: 9, incarnation }
}

/// The values that a reader of metadata finds for [`key`].
fn key_read() -> (u64, u64, u64, Vec<u8>) {
    (3, 70, 9, (0xa0..0xb0).collect())
}

fn region(name: &str, kind: RegionKind, element: ElementType, shape: &[u64]) -> Region {
    let bytes = shape.iter().product::<u64>() * element.bytes();
    Region { name: name.into(), kind, element, shape: shape.into(), bytes, offset: 0, first_block: 0 }
}

/// A shard of three regions, which have three blocks, no block, and one block.
fn shard() -> Vec<u8> {
    let meta = ShardMeta {
        job: "job".into(),
        group: "world".into(),
        name: "heat".into(),
        regions: vec![
            region("t", RegionKind::Array, ElementType::F64, &[40, 33]),
            region("none", RegionKind::Array, ElementType::U16, &[0, 7]),
            region("step", RegionKind::Value, ElementType::Record(12), &[5]),
        ],
    };
    let layout = Layout::new(meta, 4096).unwrap();
    let header = layout.header(
        key(),
        0xfeed,
        4,
        Rank(2),
        Some(Origin { generation: Generation(2), version: 60, operation: 12, restart: 3 }),
    );
    let mut bytes = vec![0u8; layout.total_len as usize];
    let mut digests: Vec<Digest> = Vec::new();
    for region in &layout.meta.regions {
        let start = (layout.body_offset + region.offset) as usize;
        let body = &mut bytes[start..start + region.bytes as usize];
        body.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + region.name.len()) as u8);
        digests.extend(body.chunks(4096).map(digest_bytes));
    }
    encode_head(&layout, &header, &digests, &mut bytes[..layout.body_offset as usize]);
    bytes
}

// ------------------------------------------------------------------------ the comparison

#[test]
fn checksum_and_digest_have_the_documented_values() {
    assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
    assert_eq!(bivouac_core::format::checksum(b"123456789"), 0xae8b_1486_0a79_9888);
    let sample: Vec<u8> = (0..1000u32).map(|i| (7 * i + 3) as u8).collect();
    assert_eq!(Digest(digest(&[])).to_string(), "6a36f1e989e3b200feb0f6e8b2d44325");
    assert_eq!(Digest(digest(&sample)).to_string(), "75849b32bf9bfb38a903f6ba31fe8238");
    for length in [1, 15, 16, 17, 63, 64, 65, 128, 999] {
        assert_eq!(digest(&sample[..length]), digest_bytes(&sample[..length]).0, "length {length}");
    }
}

#[test]
fn folder_names_are_as_documented() {
    assert_eq!(key().folder(), "g000003-v0000000070-o000009");
}

#[test]
fn a_shard_is_as_documented() {
    let bytes = shard();
    let header = &bytes[..256];
    opens_with(header, b"BVKSHRD1");
    assert_eq!(u64_at(header, 16), checksum_around(header, 16));
    assert_eq!(Reader(&header[24..]).key(), key_read());
    assert_eq!(u64_at(header, 64), 0xfeed);
    let words: Vec<u32> = (72..88).step_by(4).map(|at| u32_at(header, at)).collect();
    assert_eq!(words, [4, 2, 1, 4096]);
    assert_eq!([88, 96, 144, 152].map(|at| u64_at(header, at)), [2, 60, 12, 3]);
    let (meta_len, blocks) = (u64_at(header, 104) as usize, u64_at(header, 112) as usize);
    let (body, total) = (u64_at(header, 120) as usize, u64_at(header, 128) as usize);
    let index = (256 + meta_len).next_multiple_of(16);
    assert_eq!((blocks, body, total), (4, (index + 16 * blocks).next_multiple_of(4096), bytes.len()));
    assert_eq!(u64_at(header, 136), checksum(&bytes[256..body]));
    assert!(header[160..].iter().all(|byte| *byte == 0));

    let mut meta = Reader(&bytes[256..256 + meta_len]);
    assert_eq!([meta.text(), meta.text(), meta.text()], ["job", "world", "heat"]);
    assert_eq!(meta.u64(), 3);
    let mut found = Vec::new();
    let (mut next_offset, mut next_block) = (0, 0);
    for _ in 0..3 {
        let (name, kind, element) = (meta.text(), meta.u32(), meta.u32());
        let record = if element == 10 { meta.u32() } else { 0 };
        let extents = meta.u64();
        let shape: Vec<u64> = (0..extents).map(|_| meta.u64()).collect();
        let (length, offset, first_block) = (meta.u64() as usize, meta.u64() as usize, meta.u64() as usize);
        assert_eq!((offset, first_block), (next_offset, next_block), "{name}");
        for (block, content) in bytes[body + offset..][..length].chunks(4096).enumerate() {
            let at = index + 16 * (first_block + block);
            assert_eq!(bytes[at..at + 16], digest(content), "block {block} of {name}");
        }
        next_offset += length.next_multiple_of(4096);
        next_block += length.div_ceil(4096);
        found.push((name, kind, element, record, shape, length));
    }
    meta.end();
    assert_eq!((body + next_offset, next_block), (total, blocks));
    let expected = [
        ("t".to_owned(), 0, 9, 0, vec![40, 33], 10560),
        ("none".to_owned(), 0, 2, 0, vec![0, 7], 0),
        ("step".to_owned(), 1, 10, 12, vec![5], 60),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_container_is_as_documented() {
    let entry = |rank, offset, length| ContainerEntry { key: key(), rank: Rank(rank), offset, length };
    let tail = encode_tail(&[entry(0, 0, 8192), entry(5, 8192, 4096)]).unwrap();
    let footer = &tail[tail.len() - 64..];
    opens_with(footer, b"BVKCONT1");
    assert_eq!(u64_at(footer, 16), checksum_around(footer, 16));
    let index_len = u64_at(footer, 32) as usize;
    assert_eq!(u64_at(footer, 24), 12288);
    assert_eq!(tail.len(), (index_len + 64).next_multiple_of(4096));
    assert_eq!(u64_at(footer, 40), checksum(&tail[..tail.len() - 64]));
    assert_eq!((u64_at(footer, 48), u64_at(footer, 56)), (12288 + tail.len() as u64, 0));
    let mut index = Reader(&tail[..index_len]);
    assert_eq!(index.u64(), 2);
    for expected in [(0, 0, 8192), (5, 8192, 4096)] {
        assert_eq!(index.key(), key_read());
        assert_eq!((index.u32(), index.u64(), index.u64()), expected);
    }
    index.end();
}

#[test]
fn a_manifest_is_as_documented() {
    let container =
        |file: &str, ranks: [u32; 2]| ContainerInfo { file: file.into(), bytes: 12288, ranks: ranks.map(Rank).into() };
    let mut manifest = Manifest {
        job: "job".into(),
        group: "world".into(),
        name: "heat".into(),
        key: key(),
        agreement: 0xfeed,
        group_size: 4,
        origin: Some(Origin { generation: Generation(2), version: 60, operation: 12, restart: 3 }),
        level: Level::System,
        sources: vec![SourceKey { key: CheckpointKey { operation: 8, ..key() }, agreement: 0xabba }],
        containers: vec![container("c000000.bvc", [0, 2]), container("c000001.bvc", [1, 3])],
    };
    let bytes = manifest.encode().unwrap();
    opens_with(&bytes, b"BVKMANI1");
    assert_eq!(u64_at(&bytes, 16), checksum_around(&bytes[..48], 16));
    assert_eq!(u64_at(&bytes, 24), bytes.len() as u64 - 48);
    assert_eq!((u64_at(&bytes, 32), u64_at(&bytes, 40)), (checksum(&bytes[48..]), 0));
    let mut body = Reader(&bytes[48..]);
    assert_eq!([body.text(), body.text(), body.text()], ["job", "world", "heat"]);
    assert_eq!(body.key(), key_read());
    assert_eq!((body.u64(), body.u32()), (0xfeed, 4));
    assert_eq!((body.u8(), body.u64(), body.u64(), body.u64(), body.u64()), (1, 2, 60, 12, 3));
    assert_eq!((body.u32(), body.u64()), (4, 2));
    for (file, ranks) in [("c000000.bvc", [0, 2]), ("c000001.bvc", [1, 3])] {
        assert_eq!((body.text().as_str(), body.u64(), body.u64()), (file, 12288, 2));
        assert_eq!([body.u32(), body.u32()], ranks);
    }
    assert_eq!(body.u64(), 1);
    let (generation, version, _, incarnation) = key_read();
    assert_eq!(body.key(), (generation, version, 8, incarnation));
    assert_eq!(body.u64(), 0xabba);
    body.end();
    // Without an origin, one byte replaces 33.
    manifest.origin = None;
    assert_eq!(manifest.encode().unwrap().len(), bytes.len() - 32);
}

// ------------------------------------------------------------------------ the golden fixtures

/// The contents of a shard, or of a parity part.
struct Found {
    rank: u32,
    key: (u64, u64, u64, Vec<u8>),
    /// The job, the group and the name of the series.
    texts: [String; 3],
    /// The name and the body of each region.
    regions: Vec<(String, Vec<u8>)>,
}

/// Checks the header, the tables and every digest of a shard against the document.
fn read_shard(bytes: &[u8], magic: &[u8; 8]) -> Found {
    let header = &bytes[..256];
    opens_with(header, magic);
    assert_eq!(u64_at(header, 16), checksum_around(header, 16));
    let (meta_len, body) = (u64_at(header, 104) as usize, u64_at(header, 120) as usize);
    assert_eq!(u64_at(header, 136), checksum(&bytes[256..body]));
    let index = (256 + meta_len).next_multiple_of(16);
    let block_size = u32_at(header, 84) as usize;
    let mut meta = Reader(&bytes[256..256 + meta_len]);
    let texts = [meta.text(), meta.text(), meta.text()];
    let mut regions = Vec::new();
    for _ in 0..meta.u64() {
        let name = meta.text();
        let (_kind, element) = (meta.u32(), meta.u32());
        if element == 10 {
            meta.u32();
        }
        for _ in 0..meta.u64() {
            meta.u64();
        }
        let (length, offset, first_block) = (meta.u64() as usize, meta.u64() as usize, meta.u64() as usize);
        let content = &bytes[body + offset..][..length];
        for (block, content) in content.chunks(block_size).enumerate() {
            let at = index + 16 * (first_block + block);
            assert_eq!(bytes[at..at + 16], digest(content), "block {block}");
        }
        regions.push((name, content.to_vec()));
    }
    meta.end();
    Found { rank: u32_at(header, 76), key: Reader(&header[24..]).key(), texts, regions }
}

/// The set that a parity part describes: the number of parities, and the rank and the length of each member.
fn read_set(part: &Found) -> (usize, Vec<(u32, usize)>) {
    assert_eq!(part.regions[0].0, "set");
    let mut set = Reader(&part.regions[0].1);
    let (parities, count) = (set.u32() as usize, set.u64());
    let members = (0..count).map(|_| (set.u32(), set.u64() as usize)).collect();
    set.end();
    (parities, members)
}

fn golden(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("WORKSPACE_ROOT")).join("tests/golden/v1").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks the footer and the index of a container against the document. Returns each entry's rank and bytes.
fn read_container(bytes: &[u8]) -> Vec<(u32, &[u8])> {
    let footer = &bytes[bytes.len() - 64..];
    opens_with(footer, b"BVKCONT1");
    assert_eq!(u64_at(footer, 16), checksum_around(footer, 16));
    let (at, length) = (u64_at(footer, 24) as usize, u64_at(footer, 32) as usize);
    assert_eq!(u64_at(footer, 40), checksum(&bytes[at..bytes.len() - 64]));
    assert_eq!(u64_at(footer, 48) as usize, bytes.len());
    let mut index = Reader(&bytes[at..at + length]);
    let entry = |index: &mut Reader| {
        let (key, rank) = (index.key(), index.u32());
        let (offset, length) = (index.u64() as usize, index.u64() as usize);
        let shard = &bytes[offset..offset + length];
        assert_eq!(Reader(&shard[24..]).key(), key);
        (rank, shard)
    };
    let entries = (0..index.u64()).map(|_| entry(&mut index)).collect();
    index.end();
    entries
}

#[test]
fn the_golden_files_are_as_documented() {
    for (bytes, ranks) in [(golden("c000000.bvc"), &[0, 1][..]), (golden("r000001.bvs"), &[1][..])] {
        let entries = read_container(&bytes);
        assert_eq!(entries.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), ranks);
        for (rank, shard) in entries {
            let found = read_shard(shard, b"BVKSHRD1");
            let names: Vec<&str> = found.regions.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(
                (found.rank, found.key, names.join(" ").as_str()),
                (rank, key_read(), "temperature cells none step")
            );
            assert_eq!(found.texts, ["golden", "world", "heat"]);
        }
    }
    let (file, other) = (golden("p000000.bvp"), golden("r000001.bvs"));
    let (entries, other) = (read_container(&file), read_container(&other)[0].1);
    let part = read_shard(entries[0].1, b"BVKPRTY1");
    assert_eq!((entries.len(), entries[0].0, part.rank, &part.key), (1, 0, 0, &key_read()));
    assert_eq!(read_set(&part), (1, vec![(0, other.len()), (1, other.len())]));
    // The parity of a single data member is that member, the other rank's shard.
    assert_eq!((part.regions[1].0.as_str(), part.regions[1].1.as_slice()), ("parity.0", other));
    // This joins a packed shard with the shard to which it refers, without the library.
    let (file, source) = (golden("packed.bvs"), golden("r000001.bvs"));
    let packed = read_shard(read_container(&file)[0].1, b"BVKPACK1");
    let names: Vec<&str> = packed.regions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((packed.rank, names), (1, vec!["head", "sources", "extents", "frames", "bytes"]));
    let mut sources = Reader(&packed.regions[1].1);
    assert_eq!((sources.u64(), sources.key(), sources.u64()), (1, key_read(), 0x00c0_ffee));
    sources.end();
    let mut whole = packed.regions[0].1.clone();
    let source = read_container(&source)[0].1;
    let source_body = u64_at(source, 120) as usize;
    let own = own_bytes(&packed.regions[3].1, &packed.regions[4].1, 8);
    let own = take_together(&mut whole, &packed.regions[2].1, &own, &source[source_body..], &[4800, 6, 8]);
    whole.resize(whole.len().next_multiple_of(4096), 0);
    let next = read_shard(&whole, b"BVKSHRD1");
    assert_eq!(own, 0);
    assert_eq!(next.regions[3], ("step".to_owned(), 71u64.to_le_bytes().to_vec()));
    let bytes = &golden("manifest")[..];
    opens_with(bytes, b"BVKMANI1");
    assert_eq!(u64_at(bytes, 16), checksum_around(&bytes[..48], 16));
    assert_eq!(u64_at(bytes, 32), checksum(&bytes[48..]));
    let mut body = Reader(&bytes[48..]);
    assert_eq!([body.text(), body.text(), body.text()], ["golden", "world", "heat"]);
    assert_eq!((body.key(), body.u64(), body.u32()), (key_read(), 0x00c0_ffee, 2));
    assert_eq!((body.u8(), body.u64(), body.u64(), body.u64(), body.u64()), (1, 2, 60, 12, 3));
    assert_eq!((body.u32(), body.u64()), (4, 1));
    assert_eq!((body.text().as_str(), body.u64(), body.u64()), ("c000000.bvc", golden("c000000.bvc").len() as u64, 2));
    assert_eq!([body.u32(), body.u32()], [0, 1]);
    assert_eq!(body.u64(), 0, "it refers to nothing");
    body.end();
}

/// Appends the regions to a head, each from the start of a page. Their bytes come from the packed shard itself and from the bodies of its
/// only source. Returns the number of own bytes that are left.
fn take_together(whole: &mut Vec<u8>, extents: &[u8], own: &[u8], source: &[u8], regions: &[usize]) -> usize {
    let (mut extents, mut own, body) = (Reader(extents), own, whole.len());
    assert_eq!(extents.short(), 0, "they are not compressed");
    let (mut count, unit) = (extents.short(), 1 << extents.short());
    for bytes in regions {
        whole.resize(whole.len().next_multiple_of(4096), 0);
        let end = whole.len() + bytes;
        while whole.len() < end {
            let number = extents.short() as usize;
            let (units, place, left) = (number / 3, whole.len() - body, end - whole.len());
            assert!((units - 1) * unit < left);
            let length = left.min(units * unit);
            match number % 3 {
                0 => {
                    let (bytes, rest) = own.split_at(length);
                    whole.extend(bytes);
                    own = rest;
                }
                2 => {
                    let offset = place.checked_add_signed(extents.step() as isize * unit as isize).unwrap();
                    whole.extend(&source[offset..][..length]);
                }
                _ => panic!("the golden file has nothing twice"),
            }
            count -= 1;
        }
    }
    extents.end();
    assert_eq!(count, 0);
    own.len()
}

#[test]
fn the_example_of_extents_is_what_the_library_reads_and_writes() {
    let document = include_str!("../docs/FORMAT.md");
    let numbers = document.split("bytes before its own: ").nth(1).unwrap().split('.').next().unwrap();
    let bytes: Vec<u8> = numbers.split(", ").map(|number| number.parse().unwrap()).collect();
    let mut extents = Reader(&bytes);
    assert_eq!((extents.short(), extents.short(), extents.short()), (0, 3, 7));
    assert_eq!((extents.short(), extents.step()), (4 + 2 + 1, 0));
    assert_eq!((extents.short(), extents.short(), extents.step()), (4, 7, -1));
    extents.end();
    let meta = ShardMeta {
        job: "job".into(),
        group: "world".into(),
        name: "heat".into(),
        regions: vec![region("t", RegionKind::Array, ElementType::F64, &[48])],
    };
    let layout = Layout::new(meta, 4096).unwrap();
    let header = layout.header(key(), 0xfeed, 4, Rank(2), None);
    let mut head = vec![0; layout.body_offset as usize];
    encode_head(&layout, &header, &[digest_bytes(&[0; 384])], &mut head);
    let source = |operation| SourceKey { key: CheckpointKey { operation, ..key() }, agreement: 0xabba };
    let taken = |offset| Extent { length: 128, stored: Stored::In { source: 1, offset } };
    let own = Extent { length: 128, stored: Stored::Own };
    let packing = Packing::new(head, vec![source(7), source(8)], &[taken(0), own, taken(128)]).unwrap();
    assert_eq!(packing.encode(false).unwrap()[2], bytes);
}

/// The own bytes of a packed shard. The first frame belongs to a region with elements of `element` bytes, and later
/// frames to other regions.
fn own_bytes(frames: &[u8], stored: &[u8], element: usize) -> Vec<u8> {
    let (mut frames, mut stored, mut own) = (Reader(frames), stored, Vec::new());
    let (mut element, mut compressed) = (element, 0);
    for _ in 0..frames.u64() {
        let (bytes, length) = (frames.u32() as usize, frames.u32() as usize);
        let (frame, rest) = stored.split_at(length);
        if length == bytes {
            own.extend(frame);
        } else {
            let planes = zstd::bulk::decompress(frame, bytes).expect("a frame of zstd");
            let count = bytes / element;
            own.extend((0..count * element).map(|at| planes[at % element * count + at / element]));
            own.extend(&planes[count * element..]);
            compressed += 1;
        }
        (stored, element) = (rest, 1);
    }
    frames.end();
    assert_eq!((stored.len(), compressed), (0, 1), "one of them is compressed");
    own
}

// ------------------------------------------------------------------------ redundancy

/// The product in the finite field that the document describes.
fn product(a: u8, b: u8) -> u8 {
    let wide = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0u32, |sum, bit| sum ^ u32::from(a) << bit);
    (8..16).rev().fold(wide, |sum, bit| if sum >> bit & 1 == 1 { sum ^ 0x11d << (bit - 8) } else { sum }) as u8
}

#[test]
fn parity_is_what_the_document_says() {
    use bivouac_core::redundancy::code::{Code, Factor, add_to_all};

    let quotient = |a: u8, b: u8| (0..=255).find(|q| product(*q, b) == a).unwrap();
    let (k, m) = (4u32, 2u32);
    let coefficient = |p: u32, d: u32| quotient((k ^ d) as u8, ((k + p) ^ d) as u8);
    let table: Vec<u8> = (0..m).flat_map(|p| (0..k).map(move |d| coefficient(p, d))).collect();
    let document = include_str!("../docs/FORMAT.md");
    assert!(document.contains("are 1, 1, 1, 1 and 166, 70, 187, 123."));
    assert_eq!(table, [1, 1, 1, 1, 166, 70, 187, 123]);

    // The last data member is shorter than the others.
    let data: Vec<Vec<u8>> = (0..k as u8)
        .map(|d| (0..if d == 3 { 70 } else { 100u8 }).map(|at| at.wrapping_mul(37) ^ d).collect())
        .collect();
    let mut parity = vec![vec![0u8; 100]; m as usize];
    let code = Code::new(k, m).unwrap();
    for (d, bytes) in (0..).zip(&data) {
        let factors: Vec<Factor> = (0..m).map(|p| Factor::new(code.coefficient(p, d))).collect();
        let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        add_to_all(&factors, bytes, &mut targets);
    }
    for (p, sums) in (0..).zip(&parity) {
        for (at, sum) in sums.iter().enumerate() {
            let byte = |d: u32| data[d as usize].get(at).copied().unwrap_or(0);
            assert_eq!(*sum, (0..k).fold(0, |sum, d| sum ^ product(coefficient(p, d), byte(d))));
        }
    }
}

/// The folder of a node, which is created if it does not exist.
fn folder_of(root: &Path, node: u32, what: &str) -> PathBuf {
    let path = root.join(format!("{what}-{node}"));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Ranks, each on its own node with a local tier and no global one, take a checkpoint of the series `state`.
fn take_on_nodes(root: &Path, ranks: u32, change: impl Fn(&mut Config), take: impl Fn(u32, &Session) + Sync) {
    let end = std::sync::Barrier::new(ranks as usize);
    std::thread::scope(|scope| {
        let nodes: Vec<u32> = (0..ranks).collect();
        for (comm, rank) in bivouac_core::comm::threads::world(&nodes).into_iter().zip(0..) {
            let mut config = Config::default();
            config.job.name = Some("set".into());
            config.job.block_bytes = 4096;
            config.job.global_enabled = false;
            config.node.memory_directory = folder_of(root, rank, "memory");
            config.node.memory_budget = bivouac_core::config::Budget::Bytes(8 << 20);
            config.node.local_directory = Some(folder_of(root, rank, "local"));
            config.node.local_allow_tmpfs = true;
            change(&mut config);
            let (take, end) = (&take, &end);
            scope.spawn(move || {
                let mut place = Place::here(&config, Workers::Threads, "ranks".into()).unwrap();
                place.host = format!("node-{rank}");
                let session = Session::open_on(Box::new(comm), &place, config).unwrap();
                take(rank, &session);
                end.wait();
                session.close().unwrap();
            });
        }
    });
}

/// A file of the only checkpoint, from the local tier of a rank's node.
fn local_file(root: &Path, rank: u32, name: &str) -> Vec<u8> {
    let only = |path: &Path| std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    let job = only(&folder_of(root, rank, "local"));
    std::fs::read(only(&job.join("ranks/state")).join(name)).unwrap()
}

/// Four ranks on four nodes write a checkpoint with rs(2,2) to their local tiers. The relations between the files
/// follow from the document alone.
#[test]
fn a_set_is_as_documented() {
    let root = tempfile::tempdir().unwrap();
    let take = |rank: u32, session: &Session| {
        let values: Vec<u64> = (0..1000 * u64::from(rank) + 700).map(|at| at * 0x9e37_79b9 + u64::from(rank)).collect();
        let mut checkpoint = session.begin_checkpoint("state", 5).unwrap();
        checkpoint.save("values", &values).unwrap();
        let pending = checkpoint.capture().unwrap();
        pending.wait(Level::NodeLoss).unwrap();
        // On this rank, the checkpoint has ended when all its tiers have been written.
        limit::wait_until("all its tiers are written", || pending.poll());
    };
    let with_parity = |config: &mut Config| {
        config.job.redundancy.scheme = "rs(2,2)".parse::<Scheme>().unwrap();
        config.job.redundancy.store = PartStore::Local;
    };
    take_on_nodes(root.path(), 4, with_parity, take);
    let file = |rank: u32, name: String| local_file(root.path(), rank, &name);
    let shards: Vec<Vec<u8>> =
        (0..4).map(|rank| read_container(&file(rank, format!("r{rank:06}.bvs")))[0].1.to_vec()).collect();
    let lengths: std::collections::BTreeSet<usize> = shards.iter().map(Vec::len).collect();
    assert_eq!(lengths.len(), 4, "of four different lengths");
    let parts: Vec<Found> = (0..4)
        .map(|rank| read_shard(read_container(&file(rank, format!("p{rank:06}.bvp")))[0].1, b"BVKPRTY1"))
        .collect();

    let (m, members) = read_set(&parts[0]);
    let (n, k) = (members.len(), members.len() - m);
    assert_eq!((m, n), (2, 4));
    let chunk = members.iter().map(|(_, length)| *length).max().unwrap().div_ceil(k).next_multiple_of(4096);
    let quotient = |a: usize, b: usize| (0..=255).find(|q| product(*q, b as u8) == a as u8).unwrap();
    let coefficient = |p: usize, d: usize| quotient(k ^ d, (k + p) ^ d);
    for (place, (rank, length)) in members.iter().enumerate() {
        let part = &parts[*rank as usize];
        let own = read_shard(&shards[*rank as usize], b"BVKSHRD1");
        assert_eq!((part.rank, &part.key, &part.texts), (*rank, &own.key, &own.texts));
        assert_eq!((*length, read_set(part)), (shards[*rank as usize].len(), (m, members.clone())));
        assert_eq!(part.regions.len(), 1 + m);
        for (p, (name, sums)) in part.regions[1..].iter().enumerate() {
            assert_eq!((name.as_str(), sums.len()), (format!("parity.{p}").as_str(), chunk));
            let stripe = (place + n - p) % n;
            let data: Vec<&Vec<u8>> = (0..k).map(|d| &shards[members[(stripe + m + d) % n].0 as usize]).collect();
            let factors: Vec<u8> = (0..k).map(|d| coefficient(p, d)).collect();
            for (at, sum) in sums.iter().enumerate() {
                let byte = |d: usize| data[d].get(d * chunk + at).copied().unwrap_or(0);
                assert_eq!(*sum, (0..k).fold(0, |sum, d| sum ^ product(factors[d], byte(d))));
            }
        }
    }
}

// ------------------------------------------------------------------------ how regions lie over the ranks

/// The bytes of the example of a decomposition record that follows these words in the document, without their explanations.
fn example_record(behind: &str) -> Vec<u8> {
    let document = include_str!("../docs/FORMAT.md");
    let example = document.split(behind).nth(1).unwrap().split("```").nth(1).unwrap();
    let bytes = |line: &str| hex(&line[..50]);
    example.lines().skip(1).flat_map(bytes).collect()
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The bytes of rank 0's parts, as the document gives them.
fn example_parts() -> Vec<u8> {
    let document = include_str!("../docs/FORMAT.md");
    hex(document.split("so its parts are `").nth(1).unwrap().split('`').next().unwrap())
}

/// Parts: the extents of the array, whether it is sparse, and the origin and the extent of each box.
type PartsRead = (Vec<u64>, bool, Vec<(Vec<u64>, Vec<u64>)>);

fn read_parts(reader: &mut Reader) -> PartsRead {
    let (dims, sparse) = (usize::from(reader.u8()), reader.u8());
    let shape = (0..dims).map(|_| reader.short()).collect();
    let (mut origin, mut extent) = (vec![0u64; dims], vec![0u64; dims]);
    let boxes = (0..reader.short()).map(|_| {
        for dim in 0..dims {
            origin[dim] = origin[dim].wrapping_add_signed(reader.step());
            extent[dim] = extent[dim].wrapping_add_signed(reader.step());
        }
        (origin.clone(), extent.clone())
    });
    (shape, sparse == 1, boxes.collect())
}

/// The place of the region, and the code.
type RuleRead = (u64, u64);

/// The identity and the parts of each decomposition, and the rules.
fn read_record(bytes: &[u8]) -> (Vec<(u128, PartsRead)>, Vec<RuleRead>) {
    let mut reader = Reader(bytes);
    assert_eq!(reader.u8(), 1);
    let decomposition = |reader: &mut Reader| {
        let identity = u128::from_le_bytes(reader.bytes(16).try_into().unwrap());
        (identity, read_parts(reader))
    };
    let decompositions = (0..reader.short()).map(|_| decomposition(&mut reader)).collect();
    let mut next = 0;
    let rules = (0..reader.short()).map(|_| {
        let place = next + reader.short();
        next = place + 1;
        (place, reader.short())
    });
    let rules = rules.collect();
    reader.end();
    (decompositions, rules)
}

/// Two ranks take the checkpoint of the document's example; their files agree with the document, byte for byte.
#[test]
fn a_decomposition_record_and_its_regions_are_as_documented() {
    let root = tempfile::tempdir().unwrap();
    let number = |row: u64, column: u64| (10 * row + column) as u16;
    let take = |rank: u32, session: &Session| {
        let boxes = match rank {
            0 => Boxes::of([6, 4]).own([0, 0], [2, 4]),
            _ => Boxes::of([6, 4]).own([2, 0], [4, 3]).own([2, 3], [4, 1]).halo([1, 2]),
        };
        let memory: Vec<Vec<u16>> = match rank {
            0 => vec![(0..2).flat_map(|row| (0..4).map(move |column| number(row, column))).collect()],
            // This has ghost cells, which are not stored: one row and two columns on each side.
            _ => [(0, 3), (3, 1)]
                .map(|(first, columns): (u64, u64)| {
                    let inside = |row: u64, at: u64| (1..5).contains(&row) && (2..columns + 2).contains(&at);
                    let cell =
                        |row: u64, at: u64| if inside(row, at) { number(row + 1, first + at - 2) } else { 0xffff };
                    (0..6).flat_map(|row| (0..columns + 4).map(move |at| cell(row, at))).collect()
                })
                .into(),
        };
        let memory: Vec<&[u16]> = memory.iter().map(Vec::as_slice).collect();
        let on = session.decompose(boxes).unwrap();
        let mut checkpoint = session.begin_checkpoint("state", 5).unwrap();
        checkpoint.save_boxes_on("t", &on, &memory).unwrap();
        checkpoint.shared("step", &5u64).unwrap();
        checkpoint.value("note", &rank).unwrap();
        checkpoint.per_rank("seed", &rank, OnResize::Ask).unwrap();
        let pending = checkpoint.capture().unwrap();
        limit::wait_until("it is written", || pending.poll());
    };
    take_on_nodes(root.path(), 2, |_| (), take);

    let found = |rank: u32| {
        let file = local_file(root.path(), rank, &format!("r{rank:06}.bvs"));
        let (_, shard) = read_container(&file)[0];
        read_shard(shard, b"BVKSHRD1").regions
    };
    let (zero, one) = (found(0), found(1));
    let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["t", "step", "note", "seed", ".bivouac/decomposition", ".bivouac/affinity"]);
    let numbers = |cells: &[(u64, u64)]| -> Vec<u8> {
        cells.iter().flat_map(|(row, column)| number(*row, *column).to_le_bytes()).collect()
    };
    let cells = |rows: std::ops::Range<u64>, columns: std::ops::Range<u64>| -> Vec<(u64, u64)> {
        rows.flat_map(|row| columns.clone().map(move |column| (row, column))).collect()
    };
    assert_eq!(zero[0].1, numbers(&cells(0..2, 0..4)));
    // The boxes follow one another.
    assert_eq!(one[0].1, numbers(&[cells(2..6, 0..3), cells(2..6, 3..4)].concat()));

    let record = &one[4].1;
    let shown: Vec<String> = record.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(record, &example_record("its record is:"), "the library writes {}", shown.join(" "));
    let (decompositions, rules) = read_record(record);
    assert_eq!(rules, [(0, 4), (1, 0), (3, 3)]);
    let [(identity, parts)] = &decompositions[..] else { panic!("{decompositions:?}") };
    let boxes = vec![(vec![2, 0], vec![4, 3]), (vec![2, 3], vec![4, 1])];
    assert_eq!(*parts, (vec![6, 4], false, boxes));
    let (of_zero, same_rules) = read_record(&zero[4].1);
    assert_eq!(same_rules, rules);
    assert_eq!(of_zero, [(*identity, (vec![6, 4], false, vec![(vec![0, 0], vec![2, 4])]))]);
    let bytes_of_parts = |record: &[u8]| record[2 + 16..record.len() - 7].to_vec();
    assert_eq!(bytes_of_parts(&zero[4].1), example_parts());
    let sum = [&zero, &one].iter().zip(0u32..).fold(0u128, |sum, (regions, rank)| {
        let of_rank = [&rank.to_le_bytes(), &2u32.to_le_bytes(), &bytes_of_parts(&regions[4].1)[..]].concat();
        sum.wrapping_add(xxh3_128(&of_rank))
    });
    assert_eq!(sum, *identity);
}

/// A rank saves the rows of the document's example; its file agrees with the document, byte for byte.
#[test]
fn rows_and_their_record_are_as_documented() {
    let root = tempfile::tempdir().unwrap();
    let take = |_: u32, session: &Session| {
        let (x, v) = ([0.25f64, 1.0], [1u16, 2, 3, 4, 5, 6]);
        let mut checkpoint = session.begin_checkpoint("state", 5).unwrap();
        let rows = Rows::new(2).column("x", &x).columns("v", 3, &v).bounds([0.0], [1.0]);
        checkpoint.save_rows("e", rows).unwrap();
        let pending = checkpoint.capture().unwrap();
        limit::wait_until("it is written", || pending.poll());
    };
    take_on_nodes(root.path(), 1, |_| (), take);
    let file = local_file(root.path(), 0, "r000000.bvs");
    let (_, shard) = read_container(&file)[0];
    let regions = read_shard(shard, b"BVKSHRD1").regions;
    let names: Vec<&str> = regions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["e/x", "e/v", ".bivouac/decomposition", ".bivouac/affinity"]);
    assert_eq!(regions[0].1, [0.25f64, 1.0].map(f64::to_le_bytes).concat());
    assert_eq!(regions[1].1, [1u8, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
    assert_eq!(regions[2].1, example_record("That is recorded as:"));
}

/// A rank saves the numbered elements of the document's example; its file agrees with the document, byte for byte.
#[test]
fn lists_of_numbers_and_their_record_are_as_documented() {
    let root = tempfile::tempdir().unwrap();
    let take = |_: u32, session: &Session| {
        let mesh = session.decompose(Ids::of(10).own([7, 0, 3]).sparse()).unwrap();
        let t = [0.25f64, 1.0, -1.0];
        let mut checkpoint = session.begin_checkpoint("state", 5).unwrap();
        checkpoint.save_on("t", &mesh, &t).unwrap();
        let pending = checkpoint.capture().unwrap();
        limit::wait_until("it is written", || pending.poll());
    };
    take_on_nodes(root.path(), 1, |_| (), take);
    let file = local_file(root.path(), 0, "r000000.bvs");
    let (_, shard) = read_container(&file)[0];
    let regions = read_shard(shard, b"BVKSHRD1").regions;
    let names: Vec<&str> = regions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["t", ".bivouac/decomposition", ".bivouac/ids/0", ".bivouac/affinity"]);
    assert_eq!(regions[0].1, [0.25f64, 1.0, -1.0].map(f64::to_le_bytes).concat());
    let shown: Vec<String> = regions[1].1.iter().map(|byte| format!("{byte:02x}")).collect();
    let record = example_record("with a list of three numbers is recorded as:");
    assert_eq!(regions[1].1, record, "the library writes {}", shown.join(" "));
    assert_eq!(regions[2].1, example_record("and the list is:"));
    // The identity is made as the document says: from the rank, the number of ranks, a byte, the bytes that follow the identity in the
    // record, and the list.
    let of_rank =
        [&0u32.to_le_bytes(), &1u32.to_le_bytes(), &[0][..], &record[record.len() - 3..], &regions[2].1].concat();
    assert_eq!(record[record.len() - 19..record.len() - 3], xxh3_128(&of_rank).to_le_bytes());
}
