//! Shards with random changes are packed, written and joined, and compared with the bytes that were captured.

use super::*;
use crate::base::digest::digest_bytes;
use crate::base::rng::Rng;
use crate::base::{CheckpointKey, Generation, Incarnation};
use crate::format::container::encode_tail;
use crate::format::packed::{Extent, FRAME_MAX};
use crate::format::shard::{Layout, encode_head};
use crate::format::{ContainerEntry, ContainerInfo, ElementType, Region, RegionKind};
use crate::reduction::{Chunks, Extents, Field, Grouping, Question, Versions, all_own, extents};
use crate::tier::directory::DirectoryTier;
use crate::tier::packing::pack;
use crate::tier::posix::PageBuffer;
use crate::tier::simulated::Simulated;
use crate::tier::source::{MemoryShard, SharedPages};
use crate::tier::storage::Storage;
use crate::tier::{Tier, TierId, Writers};
use proptest::prelude::*;
use std::borrow::Cow;
use std::convert::Infallible;

const RANK: Rank = Rank(1);

fn series() -> Series {
    Series { job: "job".into(), group: "world".into(), name: "heat".into() }
}

fn key(operation: u64) -> CheckpointKey {
    CheckpointKey { generation: Generation(3), version: operation, operation, incarnation: Incarnation([1; 16]) }
}

/// A shard in memory that has these regions, each with its name and bytes.
fn shard(operation: u64, regions: &[(String, Vec<u8>)]) -> MemoryShard {
    let region = |(name, bytes): &(String, Vec<u8>)| {
        let region = Region::of_bytes(name, RegionKind::Array, bytes.len() as u64);
        match bytes.len() as u64 % 4 {
            0 => Region { element: ElementType::F32, shape: vec![region.bytes / 4], ..region },
            _ => region,
        }
    };
    let Series { job, group, name } = series();
    let meta = ShardMeta { job, group, name, regions: regions.iter().map(region).collect() };
    let layout = Layout::new(meta, 4096).unwrap();
    let header = layout.header(key(operation), 7, 4, RANK, None);
    let mut pages = PageBuffer::new(layout.total_len as usize);
    let mut digests = Vec::new();
    for (placed, (_, bytes)) in layout.meta.regions.iter().zip(regions) {
        let start = (layout.body_offset + placed.offset) as usize;
        pages[start..start + bytes.len()].copy_from_slice(bytes);
        digests.extend(bytes.chunks(4096).map(digest_bytes));
    }
    encode_head(&layout, &header, &digests, &mut pages[..layout.body_offset as usize]);
    MemoryShard::open_any(Path::new("memory"), Arc::new(SharedPages(pages))).unwrap()
}

/// Writes a shard to a file of its own, as ranks that write alone do.
fn write(tier: &DirectoryTier, operation: u64, source: &Source) {
    let total = source.head().header.total_len;
    let mut bytes = vec![0; total as usize];
    match source {
        Source::Memory(shard) => bytes.copy_from_slice(shard.bytes()),
        Source::File(shard) => shard.read_raw(0, &mut bytes).unwrap(),
    }
    let entry = ContainerEntry { key: key(operation), rank: RANK, offset: 0, length: total };
    bytes.extend(encode_tail(&[entry]).unwrap());
    let path = tier.folder_path(&series(), &key(operation)).join(rank_file(RANK));
    let upload = tier.begin(&path, Writers::One).unwrap();
    upload.write_at(0, &bytes).unwrap();
    upload.sync().and_then(|()| upload.publish()).unwrap();
}

fn tier() -> (DirectoryTier, Simulated) {
    let disk = Simulated::new();
    (DirectoryTier::new(TierId::LOCAL, Arc::new(disk.clone()), "/local".into()), disk)
}

fn open(tier: &DirectoryTier, operation: u64) -> Result<FileShard, TierError> {
    tier.open_shard(&series(), &key(operation).folder(), &rank_file(RANK), RANK)
}

fn source_key(operation: u64) -> SourceKey {
    SourceKey { key: key(operation), agreement: 7 }
}

/// What changes from one version to the next: regions grow, shrink, appear and disappear, and some of their bytes change.
fn changed(regions: &mut Vec<(String, Vec<u8>)>, rng: &mut Rng) {
    for (_, bytes) in regions.iter_mut() {
        match rng.below(8) {
            0 => bytes.resize(rng.below(20_000) as usize, 3),
            1 => bytes.clear(),
            // What was there before is now in another place, or exists twice.
            5 if bytes.len() > 5000 => bytes.rotate_left(1000),
            6 if bytes.len() > 9000 => bytes.copy_within(..4200, 4300),
            2..=4 if !bytes.is_empty() => {
                for _ in 0..1 + rng.below(4) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = rng.next_u64() as u8;
                }
            }
            _ => {}
        }
    }
    match rng.below(6) {
        0 if !regions.is_empty() => drop(regions.remove(0)),
        1 => {
            let length = rng.below(30_000);
            regions.push((format!("r{}", rng.next_u64()), (0..length).map(|_| rng.next_u64() as u8).collect()));
        }
        2 => regions.reverse(),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_packed_shard_joined_with_its_sources_is_the_shard(seed: u64) {
        let mut rng = Rng::new(seed);
        // Comparison is by blocks, or by chunks that are listed or grouped, some with hardly any room in their table.
        let grouping = [None, Some(Grouping::List), Some(Grouping::Tree)][rng.below(3) as usize];
        let (chunk, budget) = (32 << rng.below(8), [1 << 30, 4000][rng.below(2) as usize]);
        let mut chunks = grouping.map(|grouping| Chunks::new(chunk, grouping, 100_000, budget));
        let (tier, _) = tier();
        let mut versions = Versions::default();
        let mut regions: Vec<(String, Vec<u8>)> = (0..rng.below(4))
            .map(|index| {
                // The bytes are noise, or can be compressed.
                let few = [0xff, 3][rng.below(2) as usize];
                (index.to_string(), (0..rng.below(40_000)).map(|_| rng.next_u64() as u8 & few).collect())
            })
            .collect();
        let room = [0, 3000, 1 << 20][rng.below(3) as usize];
        let mut whole = Vec::new();
        for operation in 1..=6 {
            let shard = shard(operation, &regions);
            versions.captured(source_key(operation), Source::Memory(shard.clone()).shared_head(), false);
            let uses = versions.uses(operation, None, |_| true);
            let allowed: Vec<SourceKey> =
                (1..operation).filter(|_| rng.chance(2, 3)).map(source_key).collect();
            let known = versions.known(&allowed);
            prop_assert_eq!(&known, &allowed);
            // Some versions are compared by blocks, and the tables of chunks know nothing of them.
            let decided = match chunks.as_mut().filter(|_| rng.chance(3, 4)) {
                None => {
                    let operations: Vec<u64> = known.iter().map(|source| source.key.operation).collect();
                    let found = versions.unchanged(operation, &known, |_| true);
                    match extents(shard.head(), &found, &operations) {
                        Some(extents) => versions.decided(operation, &known, extents),
                        None => {
                            versions.whole(operation);
                            None
                        }
                    }
                }
                Some(chunks) => {
                    let found = if rng.chance(3, 4) { versions.unchanged(operation, &known, |_| true) } else { Default::default() };
                    let operations: Vec<u64> = known.iter().map(|source| source.key.operation).collect();
                    let bodies = &shard.bytes()[shard.head().header.body_offset as usize..];
                    let head = shard.head();
                    let fields = Field::of(head, |_| true);
                    let asked = Question { operation, allowed: operations.clone(), block: 4096, fields, kept: None, known: found };
                    let read = |field: usize, block: u64| {
                        Ok::<_, Infallible>(Cow::Borrowed(&bodies[asked.fields[field].block(block, 4096)]))
                    };
                    let Ok(found) = chunks.look(&asked, read);
                    match extents(head, &found, &operations) {
                        Some(extents) => versions.decided(operation, &known, extents),
                        None => {
                            versions.whole(operation);
                            None
                        }
                    }
                }
            };
            if let Some(Extents { sources, .. }) = &decided {
                prop_assert!(sources.iter().all(|source| allowed.contains(source)));
                prop_assert!(operation == 1 || !uses.is_empty());
            }
            let source = match decided {
                Some(Extents { sources, extents }) => Source::File(pack(&shard, sources, &extents, room).unwrap().shard),
                None if room > 0 => Source::File(pack(&shard, vec![], &all_own(shard.head()), room).unwrap().shard),
                None => Source::Memory(shard.clone()),
            };
            source.verify(|_| ()).unwrap();
            write(&tier, operation, &source);
            whole.push(shard);
            changed(&mut regions, &mut rng);
        }
        for (operation, shard) in (1..).zip(&whole) {
            let opened = open(&tier, operation).unwrap();
            let mut bytes = vec![0xee; shard.bytes().len()];
            opened.read_raw(0, &mut bytes).unwrap();
            prop_assert!(bytes == shard.bytes(), "operation {}", operation);
            Source::File(opened.clone()).verify(|_| ()).unwrap();
            for _ in 0..20 {
                let from = rng.below(bytes.len() as u64);
                let mut part = vec![0xee; rng.below(bytes.len() as u64 - from + 1) as usize];
                opened.read_raw(from, &mut part).unwrap();
                prop_assert!(part == shard.bytes()[from as usize..][..part.len()]);
            }
            let mut beyond = [0; 2];
            prop_assert!(opened.sources().is_empty() || opened.read_raw(bytes.len() as u64 - 1, &mut beyond).is_err());
        }
    }
}

/// Three blocks and a few bytes: version 2 takes all but its second block from version 1.
fn two_versions(tier: &DirectoryTier) -> [MemoryShard; 2] {
    let mut bytes: Vec<u8> = (0..3 * 4096 + 100).map(|at: u32| (at / 4096 + at) as u8).collect();
    let first = shard(1, &[("t".into(), bytes.clone())]);
    write(tier, 1, &Source::Memory(first.clone()));
    bytes[5000] ^= 1;
    let second = shard(2, &[("t".into(), bytes)]);
    write(tier, 2, &Source::File(pack(&second, vec![source_key(1)], &EXTENTS, 0).unwrap().shard));
    [first, second]
}

const EXTENTS: [Extent; 3] = [
    Extent { length: 4096, stored: Stored::In { source: 0, offset: 0 } },
    Extent { length: 4096, stored: Stored::Own },
    Extent { length: 4196, stored: Stored::In { source: 0, offset: 8192 } },
];

#[test]
fn a_source_that_is_gone_is_named_and_one_on_another_tier_takes_its_place() {
    let (local, disk) = tier();
    let [first, second] = two_versions(&local);
    assert_eq!(open(&local, 2).unwrap().sources(), [source_key(1)]);
    let global = DirectoryTier::new(TierId::GLOBAL, Arc::new(disk.clone()), "/global".into());
    write(&global, 1, &Source::Memory(first));
    let tiers: [Arc<dyn Tier>; 2] =
        [Arc::new(DirectoryTier::new(TierId::LOCAL, Arc::new(disk.clone()), "/local".into())), Arc::new(global)];
    let path = local.folder_path(&series(), &key(2)).join(rank_file(RANK));
    assert!(mend(&local, &tiers, &path, RANK).unwrap().is_none(), "it needs no help");
    let first_path = local.folder_path(&series(), &key(1)).join(rank_file(RANK));
    // A flipped bit in what version 2 takes from version 1.
    disk.flip_bit(&first_path, (4096 + 9000) * 8).unwrap();
    let damaged = open(&local, 2).unwrap();
    assert!(Source::File(damaged).verify(|_| ()).is_err());
    let is_mended = || {
        let mended = mend(&local, &tiers, &path, RANK).unwrap().expect("the other tier has it");
        let mut bytes = vec![0; second.bytes().len()];
        mended.read_raw(0, &mut bytes).unwrap();
        assert!(bytes == second.bytes());
    };
    is_mended();
    disk.lose(&first_path).unwrap();
    let error = open(&local, 2).err().expect("its source is gone").to_string();
    for part in ["local tier", "rank 1", "version 1 of generation 3", "r000001.bvs", "v0000000002"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    is_mended();
    disk.lose(&tiers[1].folder_path(&series(), &key(1)).join(rank_file(RANK))).unwrap();
    assert!(mend(&local, &tiers, &path, RANK).is_err(), "no tier has it");
}

#[test]
fn a_source_is_found_in_the_container_of_its_node_with_and_without_a_manifest() {
    let (tier, disk) = tier();
    let [_, second] = two_versions(&tier);
    let folder = tier.folder_path(&series(), &key(1));
    disk.process(9).rename(&folder.join(rank_file(RANK)), &folder.join("c000000.bvc")).unwrap();
    Source::File(open(&tier, 2).unwrap()).verify(|_| ()).unwrap();
    let manifest = Manifest {
        job: "job".into(),
        group: "world".into(),
        name: "heat".into(),
        key: key(1),
        agreement: 7,
        group_size: 4,
        origin: None,
        level: crate::base::Level::System,
        containers: vec![ContainerInfo { file: "c000000.bvc".into(), bytes: 1, ranks: vec![RANK] }],
        sources: Vec::new(),
    };
    tier.write_manifest(&series(), &manifest).unwrap();
    let mut bytes = vec![0; second.bytes().len()];
    open(&tier, 2).unwrap().read_raw(0, &mut bytes).unwrap();
    assert!(bytes == second.bytes());
}

#[test]
fn what_a_source_does_not_store_itself_is_not_taken_from_it() {
    let (tier, _) = tier();
    let [_, second] = two_versions(&tier);
    // Only one hop is allowed: version 3 may take from version 2 what version 2 stores, but not what version 2 takes from version 1.
    let third = |extents: &[Extent]| {
        let shard = shard(3, &[("t".into(), second.bytes()[4096..4096 + 3 * 4096 + 100].to_vec())]);
        write(&tier, 3, &Source::File(pack(&shard, vec![source_key(2)], extents, 0).unwrap().shard));
        Source::File(open(&tier, 3).unwrap()).verify(|_| ())
    };
    let from_second = |offset| Stored::In { source: 0, offset };
    let refused = third(&[
        Extent { length: 4096, stored: from_second(0) },
        Extent { length: 2 * 4096 + 100, stored: Stored::Own },
    ]);
    let error = refused.expect_err("a reference to a reference").to_string();
    assert!(error.contains("does not store itself"), "{error}");
    let beyond = third(&[
        Extent { length: 4096, stored: from_second(1 << 40) },
        Extent { length: 2 * 4096 + 100, stored: Stored::Own },
    ]);
    assert!(beyond.is_err());
    let good = third(&[
        Extent { length: 4096, stored: Stored::Own },
        Extent { length: 4096, stored: from_second(4096) },
        Extent { length: 4196, stored: Stored::Own },
    ]);
    good.unwrap();
}

#[test]
fn what_lies_where_is_read_with_the_bodies_and_a_flip_in_it_names_the_file() {
    let (tier, disk) = tier();
    let [_, second] = two_versions(&tier);
    let taken = |length, offset| Extent { length, stored: Stored::In { source: 0, offset } };
    let extents =
        [Extent { length: 4096, stored: Stored::Own }, taken(4096, 4096), Extent { length: 4196, stored: Stored::Own }];
    let third = shard(3, &[("t".into(), second.bytes()[4096..4096 + 3 * 4096 + 100].to_vec())]);
    write(&tier, 3, &Source::File(pack(&third, vec![source_key(2)], &extents, 0).unwrap().shard));
    let path = |operation| tier.folder_path(&series(), &key(operation)).join(rank_file(RANK));
    let raw = open_source(&tier, &series(), &tier.series_path(&series()), &source_key(2), RANK).unwrap();
    let [_, _, table, ..] = crate::format::packed::regions_of(raw.head()).unwrap();
    disk.flip_bit(&path(2), (raw.head().header.body_offset + table.offset) * 8).unwrap();
    let mut look = [2, 3].map(|operation| open(&tier, operation).unwrap());
    // Only the bodies need that table.
    let mut head = vec![0; second.head().header.body_offset as usize];
    look[0].read_raw(0, &mut head).unwrap();
    assert!(head == second.bytes()[..head.len()]);
    let [second, third] = look.each_mut().map(|shard| Source::File(shard.clone()).verify(|_| ()).unwrap_err());
    assert!(matches!(&second, TierError::Damaged { path: of, .. } if *of == path(2)), "{second}");
    assert!(
        matches!(&third, TierError::Source { path: of, key: source, cause, .. }
        if *of == path(3) && *source == key(2) && matches!(&**cause, TierError::Damaged { path: of, .. } if *of == path(2))),
        "{third}"
    );
    assert_eq!([second.damaged(), third.damaged()], [Some(TierId::LOCAL); 2]);
}

#[test]
fn a_look_opens_each_file_once_however_many_refer_to_it() {
    let (tier, disk) = tier();
    let [first, second] = two_versions(&tier);
    let (tiers, of) = ([], series());
    let mut look = Look::new(&tier, &of, RANK);
    let mut opened: Vec<FileShard> =
        [2, 1].map(|operation| look.open_or_mend(&tiers, &key(operation).folder()).unwrap()).into();
    // The look does not open the file again, so its loss goes unnoticed.
    disk.lose(&tier.folder_path(&series(), &key(1)).join(rank_file(RANK))).unwrap();
    opened.push(look.open_or_mend(&tiers, &key(2).folder()).unwrap());
    for (shard, expected) in opened.iter().zip([&second, &first, &second]) {
        let mut bytes = vec![0; expected.bytes().len()];
        shard.read_raw(0, &mut bytes).unwrap();
        assert!(bytes == expected.bytes());
    }
    let absent = look.open_or_mend(&tiers, &key(4).folder()).err().expect("it is not there");
    assert!(absent.is_absent(), "{absent}");
}

fn flipped(sound: &MemoryShard, at: usize) -> MemoryShard {
    let mut pages = PageBuffer::new(sound.bytes().len());
    pages.copy_from_slice(sound.bytes());
    pages[at] ^= 1;
    MemoryShard::open_any(Path::new("memory"), Arc::new(SharedPages(pages))).unwrap()
}

/// Frames after noise are passed over unread. If other frames can be compressed, the blocks of the passed ones are checked nevertheless.
#[test]
fn a_frame_that_is_passed_over_is_checked_too() {
    let frame = FRAME_MAX as usize;
    let mut rng = Rng::new(3);
    let noise = (0..3 * frame).map(|_| rng.next_u64() as u8);
    let sound = shard(2, &[("t".into(), noise.chain(std::iter::repeat_n(0, 8 * frame)).collect())]);
    let all = all_own(sound.head());
    let packing = pack(&sound, vec![], &all, u64::MAX).unwrap().packing;
    let is_compressed: Vec<bool> = packing.frames.iter().map(|frame| frame.is_compressed()).collect();
    assert!(!is_compressed[2] && is_compressed[3..].contains(&true), "{is_compressed:?}");
    let body = sound.head().header.body_offset as usize;
    for frame_at in 0..is_compressed.len() {
        let changed = flipped(&sound, body + frame_at * frame + 5000);
        let packed = pack(&changed, vec![], &all, u64::MAX);
        assert!(matches!(packed, Err(TierError::Damaged { .. })), "frame {frame_at}");
    }
}

#[test]
fn a_shard_that_has_changed_since_the_capture_is_not_packed_or_not_written() {
    let bytes: Vec<u8> = (0..2 * 4096 + 10).map(|at: u32| at as u8).collect();
    let sound = shard(2, &[("t".into(), bytes)]);
    let changed = flipped(&sound, 4096 + 4100);
    let own = |length| Extent { length, stored: Stored::Own };
    let taken = |length, offset| Extent { length, stored: Stored::In { source: 0, offset } };
    // Whole blocks are checked when they are written, parts of blocks are checked here.
    let whole = pack(&changed, vec![source_key(1)], &[taken(4096, 0), own(4106)], 0).unwrap();
    assert!(Source::File(whole.shard).verify(|_| ()).is_err());
    let parts = [taken(4106, 0), own(50), taken(4046, 4156)];
    assert!(matches!(pack(&changed, vec![source_key(1)], &parts, 0), Err(TierError::Damaged { .. })));
}

/// A forger can sign anything: what a packed shard says of itself must follow the rules, or the shard is refused.
#[test]
fn extents_and_sources_keep_their_rules() {
    let shard = shard(5, &[("a".into(), vec![1; 5000]), ("b".into(), vec![2; 300])]);
    let own = |length| Extent { length, stored: Stored::Own };
    let taken = |length, source, offset| Extent { length, stored: Stored::In { source, offset } };
    let packed = |sources: &[u64], extents: &[Extent]| {
        pack(&shard, sources.iter().copied().map(source_key).collect(), extents, 0)
    };
    let good = [own(4096), taken(904, 0, 4096), own(300)];
    assert!(packed(&[1], &good).is_ok());
    for (sources, extents) in [
        (&[1][..], &[own(4096), own(904)][..]),
        (&[1], &[own(5000), own(300), own(1)]),
        (&[1], &[own(5300)]),
        (&[1], &[own(0), own(5000), own(300)]),
        (&[1], &[taken(5000, 1, 0), own(300)]),
        (&[1], &[taken(5000, 0, u64::MAX - 10), own(300)]),
        (&[5], &good),
        (&[6], &good),
        (&[1, 1], &good),
    ] {
        assert!(matches!(packed(sources, extents), Err(TierError::Format { .. })), "{sources:?} {extents:?}");
    }
}
