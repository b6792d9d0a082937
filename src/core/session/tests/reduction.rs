//! Files that refer to earlier files: what such a file contains, which earlier files stay because of it, and what a restart reads from it.

use super::*;
use crate::base::Rank;
use crate::base::rng::Rng;
use crate::config::{Budget, Compress, Method, Verify};
use crate::format::container::encode_tail;
use crate::format::{ContainerEntry, Content, Manifest, RegionKind};
use crate::recovery::unpack::unpack;
use crate::tier::names::rank_file;
use crate::tier::source::FileShard;
use crate::tier::wrappers::Call;
use crate::tier::{Tier, Writers};
use crate::transfer::stats::Reduction;
use std::io;
use std::sync::atomic::AtomicU64;

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn reduced(bed: &Bed) -> Config {
    let mut config = bed.config();
    config.job.reduction.method = Method::Basic;
    (config.job.local.keep_last, config.job.global.keep_last) = (1, 1);
    config
}

/// Takes a version in which one block is new, and waits until the version has reached all tiers.
fn take_changed(session: &Session, version: u64) {
    let array = array(version);
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
    checkpoint.save("array", &array).expect("saved");
    checkpoint.value("step", &version).expect("saved");
    let pending = checkpoint.capture().expect("captured");
    assert_eq!(levels(&ended(&pending), false), [], "all are committed");
}

fn array(version: u64) -> Vec<u8> {
    let mut array = vec![7; BLOCK * BLOCKS + 100];
    for earlier in 1..=version {
        array[earlier as usize * BLOCK + 5] = earlier as u8 + 100;
    }
    array
}

impl Bed {
    /// The manifests of a tier, oldest first. A folder may still wait for its manifest, which is written after the verdict, or for the end
    /// of its deletion.
    fn manifests(&self, kind: TierId, root: &str) -> Vec<Manifest> {
        let tier = DirectoryTier::new(kind, Arc::new(self.disk.clone()), PathBuf::from(root));
        let series = tier.all_series().expect("listed").remove(0);
        let read = |(generation, version, operation)| {
            let key = CheckpointKey { generation, version, operation, ..CheckpointKey::default() };
            tier.read_manifest(&series, &key.folder())
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut manifests = loop {
            let folders = tier.folders(&series).expect("listed").into_iter();
            match folders.map(read).collect::<Result<Vec<Manifest>, _>>() {
                Err(error) if error.is_absent() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                read => break read.expect("a manifest"),
            }
        };
        manifests.sort_by_key(|manifest| manifest.key.operation);
        manifests
    }
}

impl Bed {
    /// The bytes that all checkpoints of a tier, each with a single shard, take in their files, without those that are being deleted.
    fn stored(&self, kind: TierId, root: &str) -> u64 {
        let tier = DirectoryTier::new(kind, Arc::new(self.disk.clone()), PathBuf::from(root));
        let series = tier.all_series().expect("listed").remove(0);
        let bytes = |(generation, version, operation)| {
            let key = CheckpointKey { generation, version, operation, ..CheckpointKey::default() };
            let manifest = tier.read_manifest(&series, &key.folder()).ok()?;
            let path = tier.folder_path(&series, &key).join(&manifest.containers[0].file);
            // Retention may have deleted the file since its manifest was read.
            let (index, file) = match tier.open_container(&path) {
                Err(error) if error.is_absent() => return None,
                opened => opened.expect("a container"),
            };
            let shard = FileShard::open_any(kind, path, file.into(), &index.entries[0]).expect("a shard");
            Some(shard.head().header.total_len)
        };
        tier.folders(&series).expect("listed").into_iter().filter_map(bytes).sum()
    }
}

fn versions(manifests: &[Manifest]) -> Vec<u64> {
    manifests.iter().map(|manifest| manifest.key.version).collect()
}

fn sources(manifest: &Manifest) -> Vec<u64> {
    manifest.sources.iter().map(|source| source.key.version).collect()
}

#[test]
fn a_file_holds_what_has_changed_and_what_it_refers_to_stays_as_long_as_it_does() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), reduced(&bed));
    for version in 1..=4 {
        take_changed(&session, version);
    }
    let stats = session.stats();
    // On each of the two tiers, the first file is whole, and each of the others has a head, a table and a few blocks.
    assert_eq!((stats.reduction.packed, stats.reduction.whole), (6, 2));
    assert!(stats.reduction.stored_bytes * 2 < stats.reduction.shard_bytes, "{:?}", stats.reduction);
    session.close().expect("closes");
    for (kind, root) in [(TierId::LOCAL, "/local"), (TierId::GLOBAL, "/global")] {
        let manifests = bed.manifests(kind, root);
        // Versions 2 and 3 each store a block that version 4 also has.
        assert_eq!(versions(&manifests), [1, 2, 3, 4], "{root}");
        assert_eq!(manifests.iter().map(sources).collect::<Vec<_>>(), [vec![], vec![1], vec![1, 2], vec![1, 2, 3]]);
        let bytes: Vec<u64> = manifests.iter().map(|manifest| manifest.containers[0].bytes).collect();
        let slack = if kind == TierId::LOCAL { 10 * BLOCK as u64 } else { bytes[0] };
        assert!(bytes[1..].iter().all(|bytes| *bytes <= slack), "{root}: {bytes:?}");
    }
}

/// Data that can be compressed is compressed, with any method and without one. Data that cannot be compressed, or for which there is no
/// room, is stored as it is.
#[test]
fn what_a_file_stores_itself_is_compressed_where_that_is_asked_for() {
    for method in Method::ALL {
        for budget in [1 << 30, 1_500_000, 100] {
            let bed = Bed::new();
            let mut config = reduced(&bed);
            (config.job.reduction.method, config.job.reduction.compress) = (method, Compress::On);
            config.node.reduction_budget = Budget::Bytes(budget);
            let session = bed.open(&bed.place(), config);
            let mut rng = Rng::new(3);
            let noise: Vec<u8> = (0..9 * BLOCK).map(|_| rng.next_u64() as u8).collect();
            let mut smooth: Vec<f64> = (0..1000 * BLOCK / 8).map(|at| (at as f64 * 1e-4).sin()).collect();
            for version in 1..=3 {
                smooth[version as usize * 5000..][..4000].fill(version as f64);
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint.save("noise", &noise).expect("saved");
                checkpoint.save("smooth", &smooth).expect("saved");
                assert_eq!(levels(&ended(&checkpoint.capture().expect("captured")), false), [], "all are committed");
            }
            let Reduction { compressed_from: from, compressed_to: to, packed, shard_bytes, stored_bytes, .. } =
                session.stats().reduction;
            session.close().expect("closes");
            let what = format!("{method}, {budget}: {from} to {to}");
            assert!(to < from || (budget == 100 && to == from), "{what}");
            assert!(packed >= if to < from { 6 } else { 0 } && stored_bytes < shard_bytes + 1, "{what}");
            let mut config = bed.config();
            config.job.memory_enabled = false;
            let session = bed.open(&bed.place(), config);
            let mut loaded = (Vec::new(), Vec::new());
            let restored = session.begin_restore("heat").run(|r| {
                loaded = (r.load_vec::<u8>("noise")?, r.load_vec::<f64>("smooth")?);
                Ok(())
            });
            assert_eq!(restored.expect("restored").expect("something").version, 3, "{what}");
            assert!(loaded == (noise, smooth), "{what}");
        }
    }
}

/// For each array region, its name and the number of its bytes that the file of a version stores itself.
fn own_bytes(bed: &Bed, version: u64) -> Vec<(String, u64)> {
    let (_, raw) = bed.file(TierId::LOCAL, version);
    let packing = crate::tier::packing_of(&raw).expect("it is packed");
    let own = packing.own_regions().filter(|(region, _)| region.kind == RegionKind::Array);
    own.map(|(region, bytes)| (region.name.clone(), bytes)).collect()
}

#[test]
fn each_region_is_reduced_by_the_method_that_is_asked_for_it() {
    let bed = Bed::new();
    let mut config = reduced(&bed);
    config.job.reduction.regions =
        "{ 'heat/same' = 'full', 'heat/list' = { method = 'list', chunk = 64 }, 'heat/tree' = 'tree' }"
            .parse()
            .expect("a table");
    let session = bed.open(&bed.place(), config);
    let mut rng = Rng::new(3);
    let mut moving: Vec<u8> = (0..20 * BLOCK).map(|_| rng.next_u64() as u8).collect();
    let same = moving.clone();
    for version in 1..=4 {
        moving.rotate_left(256);
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
        for name in ["same", "blocks", "list", "tree", "wished", "wished-full"] {
            checkpoint
                .save(name, if name.starts_with("wished-") || name == "same" { &same } else { &moving })
                .expect("saved");
        }
        checkpoint.save("still", &same).expect("saved");
        checkpoint.reduce("wished", Method::Full);
        checkpoint.reduce("wished", Method::Tree);
        checkpoint.reduce("wished-full", Method::Full);
        assert_eq!(levels(&ended(&checkpoint.capture().expect("captured")), false), [], "all are committed");
    }
    session.close().expect("closes");
    let own = own_bytes(&bed, 4);
    // Data that has moved is found by chunks, and data that has not moved is found by blocks. The other regions are stored whole.
    let whole: Vec<&str> =
        own.iter().filter(|(_, bytes)| *bytes == 20 * BLOCK as u64).map(|(name, _)| &name[..]).collect();
    assert_eq!(whole, ["same", "blocks", "wished-full"], "{own:?}");
    assert!(own.iter().all(|(name, bytes)| whole.contains(&&name[..]) || *bytes < 2 * BLOCK as u64), "{own:?}");
}

/// Chunks are looked for until most of a region has changed twice, and again once the region has calmed down.
#[test]
fn auto_goes_by_what_changes() {
    let bed = Bed::new();
    let mut config = reduced(&bed);
    (config.job.reduction.method, config.job.reduction.chunk) = (Method::Auto, Some(128));
    // No version is deleted.
    (config.job.local.keep_last, config.job.global.keep_last) = (100, 100);
    let session = bed.open(&bed.place(), config);
    let mut rng = Rng::new(3);
    let mut region: Vec<u8> = (0..20 * BLOCK).map(|_| rng.next_u64() as u8).collect();
    let mut own = Vec::new();
    for version in 1..=8 {
        match version {
            // All data has moved: as long as chunks are looked for, none of it is stored.
            1..=5 => region.rotate_left(256),
            // One byte changes. Once a version is stored by blocks, the other blocks are known; after that, chunks of the changed block are
            // known, too.
            _ => region[9 * BLOCK + 7] = version as u8,
        }
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
        checkpoint.save("array", &region).expect("saved");
        assert_eq!(levels(&ended(&checkpoint.capture().expect("captured")), false), [], "all are committed");
    }
    session.close().expect("closes");
    for version in 1..=8 {
        let (_, raw) = bed.file(TierId::LOCAL, version);
        own.push(match raw.head().header.content {
            Content::Packed => own_bytes(&bed, version).iter().map(|(_, bytes)| bytes).sum(),
            _ => region.len() as u64,
        });
    }
    let all = 20 * BLOCK as u64;
    let ways: Vec<u64> = own
        .iter()
        .map(|own| match *own {
            own if own == all => 2,
            own if own >= BLOCK as u64 => 1,
            _ => 0,
        })
        .collect();
    assert_eq!(ways, [2, 0, 2, 2, 2, 1, 0, 0], "{own:?}");
}

/// The regions change a little, a lot or not at all, change back, or change in length.
#[test]
fn a_capture_stores_what_has_changed_in_the_slot_that_had_the_one_before_the_last() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), reduced(&bed));
    let mut rng = Rng::new(7);
    let mut regions: [Vec<u8>; 3] = [40 * BLOCK + 9, 3 * BLOCK, 2 * BLOCK - 500].map(|bytes| vec![1; bytes]);
    let (mut before, mut partial) = (regions.clone(), Vec::new());
    for version in 1..=40 {
        let kept = regions.clone();
        match rng.below(6) {
            0 => {}
            1 => regions[rng.below(3) as usize].fill(version as u8),
            2 => regions = before,
            3 => regions[2].resize(2 * BLOCK - rng.below(1000) as usize, version as u8),
            _ => {
                let bytes = &mut regions[rng.below(2) as usize];
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= version as u8;
            }
        }
        before = kept;
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
        for (name, bytes) in ["a", "b", "c"].into_iter().zip(&regions) {
            checkpoint.save(name, bytes).expect("saved");
        }
        checkpoint.value("step", &version).expect("saved");
        let pending = checkpoint.capture().expect("captured");
        pending.wait(Level::Process).expect("committed");
        partial.push(session.stats().reduction.partial_captures);
        let mut loaded = regions.clone().map(|bytes| vec![0; bytes.len()]);
        let restored = session.begin_restore("heat").run(|r| {
            for (name, bytes) in ["a", "b", "c"].into_iter().zip(&mut loaded) {
                r.load(name, bytes)?;
            }
            Ok(())
        });
        let restored = restored.expect("restored").expect("the newest");
        assert_eq!((restored.version, restored.tier.name(), loaded == regions), (version, "memory", true));
    }
    assert_eq!(partial[1], 0, "neither of the first two has anything in its slot");
    assert!(partial[39] > 20, "{partial:?}");
    session.close().expect("closes");
}

#[test]
fn a_restart_reads_what_files_refer_to_and_begins_whole() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), reduced(&bed));
    (1..=3).for_each(|version| take_changed(&session, version));
    session.close().expect("closes");
    for root in ["/local", "/global"] {
        let mut config = reduced(&bed);
        config.job.memory_enabled = false;
        config.job.local_enabled = root == "/local";
        let session = bed.open(&bed.place(), config);
        let mut loaded = Vec::new();
        let restored = session.begin_restore("heat").run(|r| {
            loaded = r.load_vec::<u8>("array")?;
            Ok(())
        });
        let restored = restored.expect("restored").expect("version 3");
        assert_eq!((restored.version, loaded == array(3)), (3, true), "{root}");
        session.close().expect("closes");
    }
    let session = bed.open(&bed.place(), reduced(&bed));
    session.begin_restore("heat").run(|_| Ok(())).expect("restored");
    take_changed(&session, 4);
    assert_eq!(session.stats().reduction.packed, 0);
    session.close().expect("closes");
    assert_eq!(versions(&bed.manifests(TierId::GLOBAL, "/global")), [4], "nobody needs the older run's any more");
}

/// Without a bound, everything would stay for ever. If little of a source is still in use, that little is stored again.
#[test]
fn what_a_run_keeps_is_bounded() {
    let bed = Bed::new();
    let mut config = reduced(&bed);
    config.job.reduction.sources = 3;
    let session = bed.open(&bed.place(), config);
    (1..=40).for_each(|version| take_changed(&session, version));
    let reduction = session.stats().reduction;
    assert!(reduction.packed > 40 && reduction.stored_bytes < reduction.shard_bytes * 3 / 4, "{reduction:?}");
    session.close().expect("closes");
    for (kind, root) in [(TierId::LOCAL, "/local"), (TierId::GLOBAL, "/global")] {
        let manifests = bed.manifests(kind, root);
        let (newest, kept) = (manifests.last().expect("version 40"), versions(&manifests));
        assert!(kept.len() <= 4 && newest.key.version == 40, "{kept:?}");
        assert!(sources(newest).iter().all(|version| kept.contains(version)));
    }
}

/// The file of a source holds other bytes than were captured. The digests do not show this, but a comparison with `bytes` always does.
#[test]
fn with_bytes_a_file_does_not_refer_to_what_is_something_else() {
    for verify in Verify::ALL {
        let bed = Bed::new();
        let mut config = reduced(&bed);
        config.job.reduction.verify = verify;
        let session = bed.open(&bed.place(), config);
        take_changed(&session, 1);
        let (path, shard) = bed.file(TierId::LOCAL, 1);
        let region = shard.head().region("array").expect("it is whole");
        let at = shard.head().header.body_offset + region.offset + 40 * BLOCK as u64;
        bed.disk.flip_bit(&path, at * 8).expect("it is there");
        take_changed(&session, 2);
        let reduction = session.stats().reduction;
        // Nothing was flipped on the global tier.
        let packed = if verify == Verify::Bytes { 1 } else { 2 };
        assert_eq!((reduction.packed, reduction.whole), (packed, 4 - packed), "{verify:?}");
        session.close().expect("closes");
    }
}

/// The bound holds however little or much changes between versions: blocks, chunks, moves, or everything.
#[test]
fn no_tier_holds_more_than_five_shards_over_a_hundred_versions() {
    for method in [Method::Basic, Method::List, Method::Tree] {
        let bed = Bed::new();
        let mut config = reduced(&bed);
        config.job.reduction.method = method;
        let session = bed.open(&bed.place(), config);
        let mut rng = Rng::new(5);
        let mut array: Vec<u8> = (0..32 * BLOCK).map(|_| rng.next_u64() as u8).collect();
        let mut most = [0.0f64; 2];
        for version in 1..=100 {
            for _ in 0..1 << rng.below(6) {
                let length = 1 + rng.below(BLOCK as u64 / 2) as usize;
                let at = rng.below((array.len() - length) as u64) as usize;
                match rng.below(3) {
                    0 => array.copy_within(at..at + length, (at / 2) & !127),
                    _ => array[at..at + length].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
                }
            }
            if rng.chance(1, 25) {
                array.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
            }
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.save("array", &array).expect("saved");
            let pending = checkpoint.capture().expect("captured");
            assert_eq!(levels(&ended(&pending), false), [], "all are committed");
            for (most, (kind, root)) in most.iter_mut().zip([(TierId::LOCAL, "/local"), (TierId::GLOBAL, "/global")]) {
                // Files that are no longer needed are deleted after the verdict; on a busy machine, some time later.
                let deadline = Instant::now() + Duration::from_secs(20);
                let stored = || bed.stored(kind, root) as f64 / array.len() as f64;
                let mut lengths = stored();
                while lengths >= 5.0 && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                    lengths = stored();
                }
                *most = most.max(lengths);
            }
        }
        session.close().expect("closes");
        println!("{method}: at most {most:.2?} shard lengths on the local and the global tier");
        assert!(most.iter().all(|most| *most < 5.0), "{method}: {most:?}");
    }
}

/// All data has moved, and all of it is still present.
#[test]
fn chunks_that_have_moved_are_taken_from_where_files_store_them() {
    for method in [Method::List, Method::Tree] {
        let bed = Bed::new();
        let config = || {
            let mut config = reduced(&bed);
            (config.job.reduction.method, config.job.reduction.chunk) = (method, Some(64));
            config
        };
        let mut rng = Rng::new(5);
        let mut array: Vec<u8> = (0..BLOCK * BLOCKS + 100).map(|_| rng.next_u64() as u8).collect();
        let session = bed.open(&bed.place(), config());
        for version in 1..=4 {
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.save("array", &array).expect("saved");
            let pending = checkpoint.capture().expect("captured");
            assert_eq!(levels(&ended(&pending), false), [], "all are committed");
            if version < 4 {
                array[..BLOCK * BLOCKS].rotate_left(64 * 7);
                array[..64].fill(version as u8);
            }
        }
        let reduction = session.stats().reduction;
        assert!(reduction.packed == 6 && reduction.stored_bytes < reduction.shard_bytes / 2, "{reduction:?}");
        session.close().expect("closes");
        let mut config = config();
        config.job.memory_enabled = false;
        let session = bed.open(&bed.place(), config);
        let mut loaded = Vec::new();
        let load = |r: &mut crate::recovery::Attempt| {
            loaded = r.load_vec::<u8>("array")?;
            Ok(())
        };
        let restored = session.begin_restore("heat").run(load).expect("restored").expect("version 4");
        assert!((restored.version, restored.tier.name()) == (4, "local") && loaded == array, "{method}");
        session.close().expect("closes");
    }
}

// ------------------------------------------------------------------------------------------ damage

impl Bed {
    fn tier(&self, kind: TierId) -> DirectoryTier {
        let root = if kind == TierId::LOCAL { "/local" } else { "/global" };
        DirectoryTier::new(kind, Arc::new(self.disk.clone()), root.into())
    }

    /// The file of a version on a tier, and the file's content in its stored form.
    fn file(&self, kind: TierId, version: u64) -> (PathBuf, FileShard) {
        let tier = self.tier(kind);
        let series = tier.all_series().expect("listed").remove(0);
        let manifests = self.manifests(kind, &tier.root().to_string_lossy());
        let manifest = manifests.iter().find(|manifest| manifest.key.version == version).expect("it is there");
        let (folder, file) = (manifest.key.folder(), &manifest.containers[0].file);
        let path = tier.series_path(&series).join(&folder).join(file);
        (path, tier.open_raw(&series, &folder, file, Rank(0)).expect("opened"))
    }

    /// A bed with three versions, of which the later ones refer to the earlier ones.
    fn with_three() -> Bed {
        Bed::with_three_of(Compress::Off)
    }

    fn with_three_of(compress: Compress) -> Bed {
        let bed = Bed::new();
        let mut config = reduced(&bed);
        config.job.reduction.compress = compress;
        let session = bed.open(&bed.place(), config);
        (1..=3).for_each(|version| take_changed(&session, version));
        session.close().expect("closes");
        bed
    }

    /// The version and the tier that a restart without node memory uses, and the number of damaged copies that it finds.
    fn restart(&self) -> Result<(u64, TierId, u64), String> {
        let mut config = reduced(self);
        config.job.memory_enabled = false;
        let session = self.open(&self.place(), config);
        let mut loaded = Vec::new();
        let restored = session.begin_restore("heat").run(|r| {
            loaded = r.load_vec::<u8>("array")?;
            Ok(())
        });
        let damaged = session.stats().damaged.iter().map(|(_, count)| *count).sum();
        session.close().expect("closes");
        let restored = restored.map_err(|error| error.to_string())?.ok_or("nothing is there")?;
        assert!(loaded == array(restored.version), "wrong data");
        let tier = restored.tier;
        Ok((restored.version, tier, damaged))
    }
}

#[test]
fn a_flip_anywhere_in_a_packed_shard_is_found_and_the_copy_of_another_tier_is_taken() {
    let regions = ["head", "sources", "extents", "frames", "bytes"];
    for (region, compress) in regions.into_iter().flat_map(|region| [(region, Compress::Off), (region, Compress::On)]) {
        let bed = Bed::with_three_of(compress);
        let flip = |kind| {
            let (path, packed) = bed.file(kind, 3);
            let head = packed.head();
            let place = head.region(region).expect("it has these");
            let at = head.header.body_offset + place.offset + place.bytes / 2;
            bed.disk.flip_bit(&path, at * 8 + 3).expect("it is there");
        };
        assert_eq!(bed.restart(), Ok((3, TierId::LOCAL, 0)));
        flip(TierId::LOCAL);
        let (version, tier, damaged) = bed.restart().expect("the other copy");
        assert_eq!((version, tier, damaged > 0), (3, TierId::GLOBAL, true), "{region}");
        flip(TierId::GLOBAL);
        assert_eq!(bed.restart().expect("an older version").0, 2, "{region}");
    }
}

#[test]
fn a_source_that_is_gone_or_damaged_is_taken_from_another_tier_and_named_where_there_is_none() {
    for is_lost in [true, false] {
        let bed = Bed::with_three();
        let harm = |kind| {
            let (path, shard) = bed.file(kind, 1);
            let region = shard.head().region("array").expect("it is whole");
            let at = shard.head().header.body_offset + region.offset + 40 * BLOCK as u64;
            match is_lost {
                true => bed.disk.lose(&path).expect("it is there"),
                false => bed.disk.flip_bit(&path, at * 8).expect("it is there"),
            }
        };
        harm(TierId::LOCAL);
        let (version, tier, _) = bed.restart().expect("the source is on the global tier as well");
        assert_eq!((version, tier), (3, TierId::LOCAL), "lost: {is_lost}");
        harm(TierId::GLOBAL);
        let error = bed.restart().expect_err("nothing is whole any more");
        let words = if is_lost { vec!["version 1 of generation 1"] } else { vec!["rank 0", "damaged", "array"] };
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

#[test]
fn a_source_whose_manifest_is_damaged_or_that_was_made_whole_is_a_source_still() {
    let bed = Bed::with_three();
    for kind in [TierId::LOCAL, TierId::GLOBAL] {
        let (path, packed) = bed.file(kind, 2);
        let manifest = path.with_file_name("manifest");
        bed.disk.flip_bit(&manifest, 60 * 8).expect("it is there");
        // The result is what a drain leaves: a file of the rank alone, with the whole shard.
        let tier = bed.tier(kind);
        let head = packed.head().header.clone();
        let whole = crate::tier::join(&tier, packed).expect("its source is there");
        let mut bytes = vec![0; whole.head().header.total_len as usize];
        whole.read_raw(0, &mut bytes).expect("read");
        let entry = ContainerEntry { key: head.key, rank: head.rank, offset: 0, length: bytes.len() as u64 };
        bytes.extend(encode_tail(&[entry]).expect("an index"));
        let upload = tier.begin(&path.with_file_name(rank_file(Rank(0))), Writers::One).expect("begun");
        upload.write_at(0, &bytes).and_then(|()| upload.sync()).and_then(|()| upload.publish()).expect("written");
    }
    assert_eq!(bed.restart().map(|(version, tier, _)| (version, tier)), Ok((3, TierId::LOCAL)));
}

// ------------------------------------------------------------------------------------------ unpack

/// Lets this many calls that change something pass, and no further ones.
struct Stop(AtomicU64);

impl Observer for Stop {
    fn before(&self, call: Call, _: &Path, _: u64) -> io::Result<()> {
        let changes = [Call::OpenWrite, Call::WriteAt, Call::Sync, Call::Rename, Call::SyncDir, Call::RemoveFile];
        if !changes.contains(&call) {
            return Ok(());
        }
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| io::Error::other("stopped"))
    }
}

impl Bed {
    /// Makes version 3 whole on a tier, but stops after `steps` steps. Returns an error if the work did not reach its end.
    fn unpack(&self, kind: TierId, steps: u64) -> Result<(), String> {
        let plain = self.tier(kind);
        let disk: Arc<dyn Storage> = Arc::new(self.disk.process(7000));
        let watched = Arc::new(Watched::new(disk, Arc::new(Stop(AtomicU64::new(steps)))));
        let tier = DirectoryTier::new(kind, watched, plain.root().to_owned());
        let series = plain.all_series().expect("listed").remove(0);
        let manifests = self.manifests(kind, &plain.root().to_string_lossy());
        let manifest = manifests.iter().find(|manifest| manifest.key.version == 3).expect("it is there");
        unpack(&tier, &series, manifest, "test").map(drop).map_err(|error| error.to_string())
    }

    /// Deletes the other tier's copies, and the versions to which version 3 refers.
    fn leave_alone(&self, kind: TierId) {
        for (path, _) in self.disk.files(Path::new("/")) {
            let text = path.to_string_lossy();
            let is_other = text.starts_with(if kind == TierId::LOCAL { "/global/" } else { "/local/" });
            let is_file = text.ends_with(".bvs") || text.ends_with(".bvc") || text.ends_with("manifest");
            if is_file && (is_other || !text.contains("-v0000000003-")) {
                self.disk.lose(&path).expect("it is there");
            }
        }
    }
}

#[test]
fn a_checkpoint_that_was_made_whole_needs_no_other_and_one_stopped_on_the_way_is_what_it_was() {
    for kind in [TierId::LOCAL, TierId::GLOBAL] {
        let mut steps = 0;
        loop {
            let bed = Bed::with_three();
            let is_done = bed.unpack(kind, steps).is_ok();
            if steps % 2 == 1 {
                bed.disk.power_cut(&mut Rng::new(steps));
            }
            assert_eq!(bed.restart().expect("restored").0, 3, "{kind} stopped after {steps} steps");
            assert_eq!(bed.unpack(kind, u64::MAX), Ok(()), "{kind} again after {steps} steps");
            bed.leave_alone(kind);
            assert_eq!(bed.restart().map(|(version, tier, _)| (version, tier)), Ok((3, kind)), "after {steps} steps");
            if is_done {
                break;
            }
            steps += 1;
        }
        assert!(steps > 8, "{kind}: {steps}");
    }
}
