//! A drain is stopped at every durable step in turn, with and without a power cut of the file server, and then runs again.
//!
//! The nodes are real: a session that ended like killed processes left its shards in memory segments and on local disks. The global tier is
//! a simulated disk that counts its steps and forgets what was not synced. After each stop, no manifest on that disk may promise anything
//! that is missing, and a second drain must complete the checkpoint and leave no temp file.
#![forbid(unsafe_code)]

use crate::limit;
use crate::store::{Store, take};
use bivouac_core::Level;
use bivouac_core::base::CheckpointKey;
use bivouac_core::base::rng::Rng;
use bivouac_core::config::{Compress, Config, Direct, Method};
use bivouac_core::recovery::drain::{Drain, Drained, Fate, Which, collect, host_tag, select};
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::rank_file;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::simulated::{Fault, Simulated};
use bivouac_core::tier::source::Source;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::{Tier, TierId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NODES: [u32; 3] = [0, 0, 1];

/// Does the manifest of this version exist below the folder?
fn has_manifest(folder: &Path, version: u64) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_it = |path: PathBuf| {
        let is_its = || folder.to_string_lossy().contains(&format!("-v{version:010}-"));
        if path.is_dir() { has_manifest(&path, version) } else { path.ends_with("manifest") && is_its() }
    };
    entries.map(|entry| entry.path()).any(is_it)
}

fn died() -> Store {
    let store = Store::on(&NODES);
    // Every second version goes to the local disks, so the last version is in memory only, however long its ranks live.
    let local_every_second =
        |config: &mut Config| (config.job.local.every, config.job.global.every) = (2.into(), 1000.into());
    store.run_killed(local_every_second, |session, rank| {
        take(session, rank, &[10], Level::System);
        take(session, rank, &[15], Level::Process);
        take(session, rank, &[20], Level::NodeReboot);
        // A node whose manifest is missing takes an older version for the newest committed one.
        limit::wait_until("both nodes have the manifest", || {
            session.progress();
            (0..2).all(|node| has_manifest(&store.local_of(node), 20))
        });
        take(session, rank, &[30], Level::Process);
    });
    store
}

fn global(disk: &Simulated, process: u64) -> Arc<dyn Tier> {
    Arc::new(DirectoryTier::new(TierId::GLOBAL, Arc::new(disk.process(process)), PathBuf::from("/global")))
}

/// Drains one node, as one process.
fn drain(store: &Store, node: u32, disk: &Simulated, process: u64) -> Vec<Drained> {
    let local = Arc::new(PosixStorage::new(Direct::Off));
    let local: Arc<dyn Tier> = Arc::new(DirectoryTier::new(TierId::LOCAL, local, store.local_of(node)));
    let (chosen, loose) = select(collect(&store.memory_of(node), &[local], &|_| true), Which::Newest);
    assert!(loose.is_empty() && !chosen.is_empty());
    let global = global(disk, process);
    let drain = Drain {
        global: &global,
        host: host_tag("host"),
        unique: process.to_string(),
        is_quick: false,
        is_dry: false,
        write_bytes: 16 << 10,
    };
    drain.run(chosen, 1, &|_| ())
}

/// Checks that everything that a drain has called copied or complete is so, whatever came afterwards.
fn assert_kept(disk: &Simulated, drained: &Drained) {
    let (tier, series) = (global(disk, 99), &drained.chosen.series);
    let folder = drained.chosen.candidate.key.folder();
    for (rank, _) in drained.fates.iter().filter(|(_, fate)| **fate == Fate::Copied) {
        let shard = tier.open_shard(series, &folder, &rank_file(*rank), *rank).expect("it was copied");
        Source::File(shard).verify(|_| ()).expect("every digest");
    }
    if drained.standing.as_ref().is_ok_and(|standing| standing.is_complete) {
        assert!(tier.read_manifest(series, &folder).expect("it was complete").is_complete());
    }
}

/// Checks that every manifest names sound shards of all ranks, and returns the number of manifests.
fn manifests(disk: &Simulated) -> usize {
    let tier = global(disk, 99);
    let mut found = 0;
    for series in tier.all_series().expect("listed") {
        for (generation, version, operation) in tier.folders(&series).expect("listed") {
            let folder = CheckpointKey { generation, version, operation, ..Default::default() }.folder();
            // This is what a restart would take: the manifest, or the one that it would put together.
            let manifest = match tier.read_manifest(&series, &folder) {
                Ok(manifest) => Some(manifest),
                Err(error) if error.is_absent() => tier.reconstruct(&series, &folder).expect("listed"),
                Err(error) => panic!("{error}"),
            };
            let Some(manifest) = manifest else { continue };
            assert!(manifest.is_complete() && manifest.sources.is_empty());
            for container in &manifest.containers {
                for rank in &container.ranks {
                    let shard = tier.open_shard(&series, &folder, &container.file, *rank).expect("sound");
                    Source::File(shard).verify(|_| ()).expect("every digest");
                }
            }
            found += 1;
        }
    }
    found
}

fn leftovers(disk: &Simulated) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![PathBuf::from("/global")]);
    while let Some(folder) = folders.pop() {
        for entry in disk.process(98).list(&folder).expect("listed") {
            match entry.is_dir {
                true => folders.push(folder.join(entry.name)),
                false => names.push(entry.name),
            }
        }
    }
    names.retain(|name| name.ends_with(".tmp"));
    names
}

fn sweep(store: &Store, cuts: &[Option<u64>]) {
    let fresh = || {
        let disk = Simulated::new();
        disk.create_dir_all(Path::new("/global")).expect("an empty disk has room");
        disk
    };
    let disk = fresh();
    let before = disk.steps();
    drain(store, 0, &disk, 1);
    drain(store, 1, &disk, 2);
    let steps = disk.steps() - before;
    let complete = manifests(&disk);
    assert!(steps > 30 && complete >= 1, "{steps} steps, {complete} checkpoints: hardly anything to stop");
    for step in 0..=steps {
        for cut in cuts.iter().copied() {
            let disk = fresh();
            disk.freeze_after(step);
            let said = [(0, 1), (1, 2)].map(|(node, process)| drain(store, node, &disk, process));
            disk.thaw();
            [1, 2].into_iter().for_each(|process| disk.kill(process));
            if let Some(seed) = cut {
                disk.power_cut(&mut Rng::new(seed << 32 ^ step));
            }
            manifests(&disk);
            said.iter().flatten().for_each(|drained| assert_kept(&disk, drained));
            let mut last = Vec::new();
            for (node, process) in [(0, 3), (1, 4), (0, 5)] {
                last = drain(store, node, &disk, process);
            }
            for drained in last {
                let standing = drained.standing.expect("readable");
                assert!(standing.is_complete, "step {step}, cut {cut:?}: {standing:?} {:?}", drained.fates);
                assert!(drained.fates.values().all(|fate| *fate == Fate::There), "{:?}", drained.fates);
            }
            assert_eq!(manifests(&disk), complete, "step {step}, cut {cut:?}");
            assert!(leftovers(&disk).is_empty(), "step {step}, cut {cut:?}: {:?}", leftovers(&disk));
        }
    }
    println!("{steps} steps, {} ends each", cuts.len());
}

#[test]
fn a_stop_at_any_step_leaves_nothing_false_and_the_next_drain_completes_everything() {
    sweep(&died(), &[None, Some(1), Some(2), Some(3)]);
}

/// The memory of the nodes is gone, and their newest local files refer to older ones: drained files refer to no others.
#[test]
fn what_refers_to_other_files_is_drained_whole_whenever_that_is_stopped() {
    let store = Store::on(&NODES);
    let change = |config: &mut Config| {
        config.job.reduction.method = Method::Basic;
        config.job.reduction.compress = Compress::On;
        (config.job.local.every, config.job.local.keep_last, config.job.global.every) = (1.into(), 1, 1000.into());
    };
    store.run_killed(change, |session, rank| {
        let mut array: Vec<u8> = (0..9 * 4096 + 7).map(|at: u32| (at / 4096 + at + rank) as u8).collect();
        for version in 1..=4 {
            array[version as usize * 4096] ^= 0xff;
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("a checkpoint");
            checkpoint.save("array", &array).expect("a region");
            let pending = checkpoint.capture().expect("captured");
            limit::wait_until("all levels end", || pending.poll());
        }
        limit::wait_until("both nodes have the manifest", || {
            session.progress();
            (0..2).all(|node| has_manifest(&store.local_of(node), 4))
        });
    });
    for node in 0..2 {
        std::fs::remove_dir_all(store.memory_of(node)).expect("its memory goes");
        std::fs::create_dir_all(store.memory_of(node)).expect("an empty one");
        let local = Arc::new(PosixStorage::new(Direct::Off));
        let tier = DirectoryTier::new(TierId::LOCAL, local, store.local_of(node));
        let series = tier.all_series().expect("listed").remove(0);
        let newest = tier.folders(&series).expect("listed").into_iter().max_by_key(|(_, version, _)| *version);
        let (generation, version, operation) = newest.expect("version 4");
        let key = CheckpointKey { generation, version, operation, ..Default::default() };
        let manifest = tier.read_manifest(&series, &key.folder()).expect("a manifest");
        assert!(version == 4 && !manifest.sources.is_empty(), "{manifest:?}");
    }
    sweep(&store, &[None, Some(1)]);
}

#[test]
fn every_fault_of_the_global_tier_is_said_and_made_good_by_the_next_drain() {
    let store = died();
    for fault in [Fault::Dead, Fault::ReadOnly, Fault::Full, Fault::Denied, Fault::NoLocks, Fault::NoReserve] {
        let disk = Simulated::new();
        disk.create_dir_all(Path::new("/global")).expect("an empty disk has room");
        disk.inject(Path::new("/global"), fault).expect("there");
        let drained = drain(&store, 0, &disk, 1);
        let is_harmless = matches!(fault, Fault::NoLocks | Fault::NoReserve);
        let fates = || drained.iter().flat_map(|drained| drained.fates.values());
        match is_harmless {
            true => assert!(fates().all(|fate| *fate == Fate::Copied), "{fault:?}"),
            false => assert!(fates().all(|fate| matches!(fate, Fate::NotWritten(_) | Fate::Refused(_))), "{fault:?}"),
        }
        disk.heal(Path::new("/global")).expect("there");
        drain(&store, 0, &disk, 2);
        let last = drain(&store, 1, &disk, 3);
        assert!(last.iter().all(|drained| drained.standing.as_ref().expect("readable").is_complete), "{fault:?}");
        assert!(manifests(&disk) >= 2 && leftovers(&disk).is_empty(), "{fault:?}");
    }
}
