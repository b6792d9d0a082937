//! Files of format version 1 as they were once written, whose meaning must never change.
//!
//! The fixtures in `tests/golden/v1` are one small checkpoint of two ranks. `c000000.bvc` is the global tier's container with both shards;
//! `r000001.bvs` is the local tier's container of rank 1 alone; `p000000.bvp` is the container of the parity part that rank 0 keeps for the
//! set of both ranks; `packed.bvs` is the container of rank 1's packed shard in the next checkpoint, which refers to this one; and
//! `manifest` is that of the global tier. A reader of any later version must read these files. As long as the format version is 1, the
//! writer must produce exactly the same bytes.
//!
//! After a change of the format (document, code and fixtures in one commit), this command makes the fixtures again:
//! `BIVOUAC_TEST_WRITE_GOLDEN=1 cargo nextest run --test golden todays_writer`. Never answer an unexpected failure in this way: existing
//! files would no longer be readable.
#![forbid(unsafe_code)]

mod golden_files;

use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::{CheckpointKey, Rank};
use bivouac_core::config::Direct;
use bivouac_core::format::container::{FOOTER_LEN, Footer};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{Container, Content, ElementType, Manifest, RegionKind};
use bivouac_core::redundancy::part::set_of;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::source::Source;
use bivouac_core::tier::{Tier, TierId};
use golden_files::{
    CONTAINER, MANIFEST, PACKED, PARITY, SINGLE, container, field, folder, key, manifest, next_key, next_shard,
    packed_container, parity_container, read, set, shard,
};
use std::sync::Arc;

#[test]
fn todays_writer_makes_the_golden_bytes() {
    let made = [
        (CONTAINER, container(&[0, 1])),
        (SINGLE, container(&[1])),
        (PARITY, parity_container()),
        (PACKED, packed_container()),
        (MANIFEST, manifest()),
    ];
    if std::env::var_os("BIVOUAC_TEST_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(folder()).expect("the source tree is writable");
        for (name, bytes) in &made {
            std::fs::write(folder().join(name), bytes).expect("the source tree is writable");
        }
    }
    for (name, bytes) in &made {
        let golden = read(name);
        let first = golden.iter().zip(bytes).position(|(a, b)| a != b);
        assert!(
            golden == *bytes,
            "{name}: lengths {} and {}, first difference at {first:?}",
            golden.len(),
            bytes.len()
        );
    }
}

/// Decodes a container, checks all digests, and returns the shards with their bytes.
fn shards(file: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let footer = Footer::decode(&file[file.len() - FOOTER_LEN..], file.len() as u64).expect("a footer");
    let container = Container::decode(&footer, &file[footer.index_offset as usize..]).expect("an index");
    let shard = |entry: &bivouac_core::format::ContainerEntry| {
        let bytes = file[entry.offset as usize..(entry.offset + entry.length) as usize].to_vec();
        let head = Head::decode(&bytes).expect("a head");
        assert_eq!((head.header.key, head.header.rank), (entry.key, entry.rank));
        for (at, length, digest) in head.blocks() {
            assert_eq!(digest_bytes(&bytes[at as usize..(at + length) as usize]), digest);
        }
        (head, bytes)
    };
    container.entries.iter().map(shard).collect()
}

#[test]
fn golden_containers_decode_to_the_expected_values() {
    for (name, ranks) in [(CONTAINER, vec![0, 1]), (SINGLE, vec![1])] {
        let shards = shards(&read(name));
        assert_eq!(shards.iter().map(|(head, _)| head.header.rank.0).collect::<Vec<_>>(), ranks);
        for (head, bytes) in shards {
            let header = &head.header;
            let rank = header.rank.0;
            assert_eq!((header.key, header.agreement, header.group_size), (key(), 0x00c0_ffee, 2));
            assert_eq!((header.origin, header.block_size), (golden_files::ORIGIN, 4096));
            assert_eq!(
                (head.meta.job.as_str(), head.meta.group.as_str(), head.meta.name.as_str()),
                ("golden", "world", "heat")
            );
            let named: Vec<_> = head
                .meta
                .regions
                .iter()
                .map(|region| {
                    (region.name.as_str(), region.kind, region.element, region.shape.as_slice(), region.bytes)
                })
                .collect();
            assert_eq!(
                named,
                [
                    ("temperature", RegionKind::Array, ElementType::F64, &[20, 30][..], 4800),
                    ("cells", RegionKind::Array, ElementType::U16, &[3][..], 6),
                    ("none", RegionKind::Array, ElementType::Record(12), &[0][..], 0),
                    ("step", RegionKind::Value, ElementType::U8, &[8][..], 8),
                ]
            );
            let body = |index: usize| {
                let region = &head.meta.regions[index];
                let start = (header.body_offset + region.offset) as usize;
                &bytes[start..start + region.bytes as usize]
            };
            let doubles: Vec<f64> =
                body(0).chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
            assert_eq!(doubles, field(rank));
            assert_eq!((doubles[0], doubles[599]), (f64::from(rank) * 1000.0, f64::from(rank) * 1000.0 + 149.75));
            assert_eq!(body(1), [1, 0, 0, 1, 255, 255]);
            assert_eq!(body(3), 70u64.to_le_bytes());
        }
    }
}

#[test]
fn the_golden_parity_part_decodes_to_the_expected_values() {
    let parts = shards(&read(PARITY));
    let [(head, bytes)] = parts.as_slice() else { panic!("{} parts", parts.len()) };
    assert_eq!((head.header.content, head.header.rank, head.header.key), (Content::Parity, Rank(0), key()));
    let body = |name: &str| {
        let region = head.region(name).expect("the region");
        &bytes[(head.header.body_offset + region.offset) as usize..][..region.bytes as usize]
    };
    assert_eq!(set_of(head, body("set")).expect("a set"), (set(), 0));
    assert_eq!(body("parity.0"), shard(1));
}

#[test]
fn the_golden_manifest_decodes_to_the_expected_values() {
    let manifest = Manifest::decode(&read(MANIFEST)).expect("a manifest");
    assert_eq!((manifest.job.as_str(), manifest.group.as_str(), manifest.name.as_str()), ("golden", "world", "heat"));
    assert_eq!((manifest.key, manifest.agreement, manifest.group_size), (key(), 0x00c0_ffee, 2));
    assert_eq!((manifest.origin, manifest.level), (golden_files::ORIGIN, bivouac_core::Level::System));
    let [only] = manifest.containers.as_slice() else { panic!("{:?}", manifest.containers) };
    assert_eq!((only.file.as_str(), only.bytes), (CONTAINER, read(CONTAINER).len() as u64));
    assert_eq!(only.ranks, [Rank(0), Rank(1)]);
}

#[test]
fn the_golden_packed_shard_is_the_next_one_where_its_source_is() {
    let root = tempfile::tempdir().expect("a directory");
    let series = Series { job: "golden".into(), group: "world".into(), name: "heat".into() };
    let tier = DirectoryTier::new(TierId::LOCAL, Arc::new(PosixStorage::new(Direct::Off)), root.path().to_owned());
    let put = |key: &CheckpointKey, file: &str| {
        let path = tier.folder_path(&series, key);
        std::fs::create_dir_all(&path).expect("made");
        std::fs::write(path.join(SINGLE), read(file)).expect("written");
    };
    put(&next_key(), PACKED);
    let open = || tier.open_shard(&series, &next_key().folder(), SINGLE, Rank(1));
    assert!(open().is_err(), "without its source");
    put(&key(), SINGLE);
    let shard = open().expect("both are there");
    let mut bytes = vec![0xee; next_shard(1).len()];
    shard.read_raw(0, &mut bytes).expect("read");
    assert!(bytes == next_shard(1));
    Source::File(shard).verify(|_| ()).expect("sound");
}

#[test]
fn a_tier_restores_from_the_golden_files() {
    let root = tempfile::tempdir().expect("a directory");
    let series = Series { job: "golden".into(), group: "world".into(), name: "heat".into() };
    let tier = DirectoryTier::new(TierId::GLOBAL, Arc::new(PosixStorage::new(Direct::Off)), root.path().to_owned());
    let path = tier.folder_path(&series, &key());
    std::fs::create_dir_all(&path).expect("made");
    for name in [CONTAINER, MANIFEST] {
        std::fs::write(path.join(name), read(name)).expect("written");
    }
    let folder = "g000003-v0000000070-o000009";
    let manifest = tier.read_manifest(&series, folder).expect("a manifest");
    for rank in [Rank(0), Rank(1)] {
        let file = &manifest.container_of(rank).expect("both ranks are there").file;
        let source = Source::File(tier.open_shard(&series, folder, file, rank).expect("a shard"));
        source.verify(|_| ()).expect("no damage");
        let region = source.head().region("temperature").expect("the region").clone();
        let mut bytes = vec![0; region.bytes as usize];
        source.read_region(&region, &mut bytes).expect("read");
        let expected: Vec<u8> = field(rank.0).iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bytes, expected);
    }
    assert_eq!(tier.reconstruct(&series, folder).expect("listed"), Some(manifest));
}
