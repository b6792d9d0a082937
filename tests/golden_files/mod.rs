//! The golden files: their places, and how they are made. The tests that read these files share this module.
#![allow(dead_code)] // Each test program uses a part of this.

use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::{CheckpointKey, Digest, Generation, Incarnation, Level, Origin, Rank};
use bivouac_core::format::container::encode_tail;
use bivouac_core::format::packed::{Extent, SourceKey, Stored};
use bivouac_core::format::shard::{Layout, ShardHeader, encode_head};
use bivouac_core::format::{
    ContainerEntry, ContainerInfo, Content, ElementType, Manifest, Region, RegionKind, ShardMeta,
};
use bivouac_core::redundancy::part;
use bivouac_core::redundancy::stripes::SetInfo;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::packing::pack;
use bivouac_core::tier::source::MemoryShard;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The container of both ranks.
pub const CONTAINER: &str = "c000000.bvc";
/// The container of rank 1.
pub const SINGLE: &str = "r000001.bvs";
/// The container of the parity part that rank 0 keeps for the set of both ranks.
pub const PARITY: &str = "p000000.bvp";
/// The container of the packed shard that rank 1 has in the next checkpoint.
pub const PACKED: &str = "packed.bvs";
/// The manifest of the global tier.
pub const MANIFEST: &str = "manifest";

/// The folder of the golden files.
pub fn folder() -> PathBuf {
    Path::new(env!("WORKSPACE_ROOT")).join("tests/golden/v1")
}

/// Reads a golden file.
pub fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The key of the golden checkpoint.
pub fn key() -> CheckpointKey {
    let incarnation = Incarnation(std::array::from_fn(|i| 0xa0 + i as u8));
    CheckpointKey { generation: Generation(3), version: 70, operation: 9, incarnation }
}

/// The field of a rank: quarters, which are exact in binary.
pub fn field(rank: u32) -> Vec<f64> {
    (0..600).map(|i| f64::from(rank) * 1000.0 + f64::from(i) * 0.25).collect()
}

fn bodies(rank: u32) -> [Vec<u8>; 4] {
    let temperature = field(rank).iter().flat_map(|value| value.to_le_bytes()).collect();
    let cells = [1u16, 256, 65535].iter().flat_map(|value| value.to_le_bytes()).collect();
    [temperature, cells, Vec::new(), 70u64.to_le_bytes().to_vec()]
}

/// The shard of a rank.
pub fn shard(rank: u32) -> Vec<u8> {
    shard_of(key(), rank, &bodies(rank))
}

/// The key of the checkpoint that comes after the golden one.
pub fn next_key() -> CheckpointKey {
    CheckpointKey { version: 71, operation: 10, ..key() }
}

/// The shard of a rank in the next checkpoint: one number of its field differs, and so does its step.
pub fn next_shard(rank: u32) -> Vec<u8> {
    let mut bodies = bodies(rank);
    bodies[0][16..24].copy_from_slice(&(-1.5f64).to_le_bytes());
    bodies[3] = 71u64.to_le_bytes().to_vec();
    shard_of(next_key(), rank, &bodies)
}

/// The packed form of that shard, which refers to the golden checkpoint.
pub fn packed(rank: u32) -> Vec<u8> {
    let shard = MemoryShard::open_any(Path::new("memory"), Arc::new(next_shard(rank))).expect("a shard");
    let taken = |length, offset| Extent { length, stored: Stored::In { source: 0, offset } };
    let own = |length| Extent { length, stored: Stored::Own };
    let extents = [own(4096), taken(704, 4096), taken(6, 8192), own(8)];
    let source = SourceKey { key: key(), agreement: 0x00c0_ffee };
    let packed = pack(&shard, vec![source], &extents, 1 << 20).expect("it can be packed");
    let mut bytes = vec![0; packed.shard.head().header.total_len as usize];
    packed.shard.read_raw(0, &mut bytes).expect("read");
    bytes
}

/// The container of the packed shard.
pub fn packed_container() -> Vec<u8> {
    let mut bytes = packed(1);
    let length = bytes.len() as u64;
    let entry = ContainerEntry { key: next_key(), rank: Rank(1), offset: 0, length };
    bytes.extend(encode_tail(&[entry]).expect("an index"));
    bytes
}

fn shard_of(key: CheckpointKey, rank: u32, bodies: &[Vec<u8>]) -> Vec<u8> {
    let region = |name: &str, kind, element: ElementType, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>() * element.bytes();
        Region { name: name.into(), kind, element, shape: shape.into(), bytes, offset: 0, first_block: 0 }
    };
    let meta = ShardMeta {
        job: "golden".into(),
        group: "world".into(),
        name: "heat".into(),
        regions: vec![
            region("temperature", RegionKind::Array, ElementType::F64, &[20, 30]),
            region("cells", RegionKind::Array, ElementType::U16, &[3]),
            region("none", RegionKind::Array, ElementType::Record(12), &[0]),
            region("step", RegionKind::Value, ElementType::U8, &[8]),
        ],
    };
    let layout = Layout::new(meta, 4096).expect("a layout");
    let header = layout.header(key, 0x00c0_ffee, 2, Rank(rank), ORIGIN);
    filled(&layout, &header, bodies)
}

fn filled(layout: &Layout, header: &ShardHeader, bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; layout.total_len as usize];
    let mut digests: Vec<Digest> = Vec::new();
    for (region, body) in layout.meta.regions.iter().zip(bodies) {
        let start = (layout.body_offset + region.offset) as usize;
        bytes[start..start + body.len()].copy_from_slice(body);
        digests.extend(body.chunks(4096).map(digest_bytes));
    }
    encode_head(layout, header, &digests, &mut bytes[..layout.body_offset as usize]);
    bytes
}

/// The set of both ranks: it has one parity, so each rank keeps a copy of the other's shard.
pub fn set() -> SetInfo {
    SetInfo { parity: 1, members: (0..2).map(|rank| (Rank(rank), shard(rank).len() as u64)).collect() }
}

/// The parity part of rank 0.
pub fn part() -> Vec<u8> {
    let series = Series { job: "golden".into(), group: "world".into(), name: "heat".into() };
    let (layout, encoded) = part::layout(&series, &set(), 4096).expect("a layout");
    let header = ShardHeader { content: Content::Parity, ..layout.header(key(), 0x00c0_ffee, 2, Rank(0), ORIGIN) };
    // The only data chunk of its stripe is the other rank's, multiplied by one.
    filled(&layout, &header, &[encoded, shard(1)])
}

/// A container with the shards of these ranks.
pub fn container(ranks: &[u32]) -> Vec<u8> {
    contained(ranks.iter().map(|rank| (*rank, shard(*rank))))
}

/// The container of the parity part.
pub fn parity_container() -> Vec<u8> {
    contained([(0, part())])
}

/// The restart that the run made.
pub const ORIGIN: Option<Origin> = Some(Origin { generation: Generation(2), version: 60, operation: 12, restart: 3 });

fn contained(shards: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Vec<u8> {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    for (rank, shard) in shards {
        let (offset, length) = (bytes.len() as u64, shard.len() as u64);
        entries.push(ContainerEntry { key: key(), rank: Rank(rank), offset, length });
        bytes.extend(shard);
    }
    bytes.extend(encode_tail(&entries).expect("an index"));
    bytes
}

/// The manifest of the checkpoint on the global tier.
pub fn manifest() -> Vec<u8> {
    let ranks = vec![Rank(0), Rank(1)];
    let manifest = Manifest {
        job: "golden".into(),
        group: "world".into(),
        name: "heat".into(),
        key: key(),
        agreement: 0x00c0_ffee,
        group_size: 2,
        origin: ORIGIN,
        level: Level::System,
        sources: Vec::new(),
        containers: vec![ContainerInfo { file: CONTAINER.into(), bytes: container(&[0, 1]).len() as u64, ranks }],
    };
    manifest.encode().expect("a manifest")
}
