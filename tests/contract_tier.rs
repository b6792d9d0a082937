//! One contract for every [`Tier`], run on each implementation: directories, real and simulated, and object stores.
#![forbid(unsafe_code)]

#[cfg(feature = "object-store")]
mod object;

use bivouac_core::base::clock::SystemClock;
use bivouac_core::base::{CheckpointKey, Generation, Incarnation, Level};
use bivouac_core::config::Direct;
use bivouac_core::format::Manifest;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::simulated::Simulated;
use bivouac_core::tier::{Tier, TierId, Upload, Writers, read_whole};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// A function that opens the same place once more, as another process would.
type Open<'a> = &'a dyn Fn() -> Arc<dyn Tier>;

fn series() -> Series {
    Series { job: "heat-0c7a11f2".into(), group: "world".into(), name: "with a blank, ä and %20".into() }
}

fn key(version: u64) -> CheckpointKey {
    CheckpointKey { generation: Generation(3), version, operation: version, incarnation: Incarnation([7; 16]) }
}

fn manifest(key: CheckpointKey) -> Manifest {
    let Series { job, group, name } = series();
    Manifest {
        job,
        group,
        name,
        key,
        agreement: 5,
        group_size: 2,
        origin: None,
        level: Level::System,
        sources: Vec::new(),
        containers: Vec::new(),
    }
}

/// Bytes that differ between any two places of a file.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|at| ((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed) >> 32) as u8).collect()
}

fn read(tier: &dyn Tier, path: &Path) -> Vec<u8> {
    read_whole(&*tier.open(path).expect("it is there"), 1 << 30).expect("read")
}

fn names(tier: &dyn Tier, path: &Path) -> Vec<String> {
    tier.entries(path).expect("listed").into_iter().map(|entry| entry.name).collect()
}

fn all(open: Open<'_>) {
    a_file_appears_whole_when_it_is_published(open);
    threads_write_a_file_in_any_order(open);
    what_is_not_written_reads_as_zeros(open);
    what_is_given_up_leaves_nothing(open);
    rivals_write_the_same(open);
    folders_are_listed_by_level(open);
    a_manifest_is_written_last_and_removed_first(open);
    a_store_is_held_by_the_first(open);
    of_many_that_create_a_record_one_succeeds(open);
}

fn a_file_appears_whole_when_it_is_published(open: Open<'_>) {
    for length in [0, 1, 4096, 9 * MIB, 16 * MIB, 20 * MIB + 17] {
        let tier = open();
        let path = tier.folder_path(&series(), &key(length as u64)).join("r000000.bvs");
        let upload = tier.begin(&path, Writers::One).expect("begun");
        upload.reserve(length as u64).expect("room");
        let wanted = bytes(length, 1);
        for (at, piece) in wanted.chunks(4 * MIB).enumerate() {
            upload.write_at((at * 4 * MIB) as u64, piece).expect("written");
        }
        upload.sync().expect("synced");
        assert_eq!(tier.open(&path).err().map(|error| error.kind()), Some(ErrorKind::NotFound), "nobody sees it yet");
        upload.publish().expect("published");
        for seen in [tier, open()] {
            assert_eq!(read(&*seen, &path), wanted, "{length}");
            assert_eq!(seen.stat(&path).expect("there").bytes, length as u64);
            assert!(names(&*seen, path.parent().unwrap()).contains(&"r000000.bvs".to_owned()));
            let file = seen.open(&path).expect("there");
            assert_eq!(
                file.read_at(length as u64, &mut [0]).err().map(|error| error.kind()),
                Some(ErrorKind::UnexpectedEof)
            );
            if length > 100 {
                let mut part = [0; 50];
                file.read_at(length as u64 - 50, &mut part).expect("its end");
                assert_eq!(part, wanted[length - 50..]);
            }
        }
    }
}

fn threads_write_a_file_in_any_order(open: Open<'_>) {
    let (tier, wanted) = (open(), bytes(40 * MIB, 2));
    let path = tier.folder_path(&series(), &key(2)).join("c000000.bvc");
    let upload = tier.begin(&path, Writers::One).expect("begun");
    upload.reserve(wanted.len() as u64).expect("room");
    let pieces: Vec<_> = wanted.chunks(3 * MIB).enumerate().collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (upload, pieces): (&dyn Upload, _) = (&*upload, &pieces);
            scope.spawn(move || {
                for (at, piece) in pieces.iter().rev().filter(|(at, _)| at % 3 == thread) {
                    upload.write_at((at * 3 * MIB) as u64, piece).expect("written");
                }
            });
        }
    });
    upload.sync().and_then(|()| upload.publish()).expect("published");
    assert!(read(&*open(), &path) == wanted);
}

fn what_is_not_written_reads_as_zeros(open: Open<'_>) {
    for length in [3 * MIB, 30 * MIB] {
        let tier = open();
        let path = tier.folder_path(&series(), &key(3)).join(format!("r{length:06}.bvs"));
        let upload = tier.begin(&path, Writers::One).expect("begun");
        upload.reserve(length as u64).expect("room");
        upload.write_at(0, &[1; 10]).expect("written");
        upload.write_at(length as u64 - 10, &[2; 10]).expect("written");
        upload.sync().and_then(|()| upload.publish()).expect("published");
        let mut wanted = vec![0; length];
        wanted[..10].fill(1);
        wanted[length - 10..].fill(2);
        // Tools report a hole in a file, but a read must give the data that was written.
        let mut found = vec![9; length];
        tier.open(&path).and_then(|file| file.read_at(0, &mut found)).expect("read");
        assert!(found == wanted);
    }
}

fn what_is_given_up_leaves_nothing(open: Open<'_>) {
    let tier = open();
    let folder = tier.folder_path(&series(), &key(4));
    for length in [100, 20 * MIB] {
        let upload = tier.begin(&folder.join("r000001.bvs"), Writers::One).expect("begun");
        upload.reserve(length as u64).expect("room");
        upload.write_at(0, &bytes(length, 4)).expect("written");
        upload.discard();
        drop(upload);
        assert_eq!(names(&*open(), &folder), [""; 0]);
    }
}

fn rivals_write_the_same(open: Open<'_>) {
    let tier = open();
    let path = tier.folder_path(&series(), &key(5)).join("r000000.bvs");
    let begun = ["one", "two"].map(|rival| tier.begin(&path, Writers::Rival(rival)).expect("begun"));
    for upload in &begun {
        upload.write_at(0, b"the same").and_then(|()| upload.sync()).expect("written");
    }
    for upload in &begun {
        upload.publish().expect("published");
        assert_eq!(read(&*tier, &path), b"the same");
    }
    assert_eq!(names(&*tier, path.parent().unwrap()), ["r000000.bvs"]);
}

fn folders_are_listed_by_level(open: Open<'_>) {
    let tier = open();
    assert!(tier.all_series().expect("listed").contains(&series()));
    assert!(tier.names(&series().job, "world").expect("listed").contains(&series().name));
    assert_eq!(tier.names(&series().job, "nobody").expect("listed"), [""; 0]);
    assert_eq!(tier.list(&tier.root().join("nothing")).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    let folders = tier.folders(&series()).expect("listed");
    assert!(
        folders.is_sorted_by(|newer, older| newer > older) && folders.contains(&(Generation(3), 5, 5)),
        "{folders:?}"
    );
}

fn a_manifest_is_written_last_and_removed_first(open: Open<'_>) {
    let (tier, key) = (open(), key(6));
    let folder = tier.folder_path(&series(), &key);
    tier.put(&folder.join("r000000.bvs"), b"a shard").expect("written");
    let is_committed = || {
        let found = open().survey(&series()).expect("surveyed");
        found.iter().find(|folder| folder.version == 6).map(|folder| folder.committed)
    };
    assert_eq!(is_committed(), Some(false));
    tier.write_manifest(&series(), &manifest(key)).expect("written");
    assert_eq!(is_committed(), Some(true));
    assert_eq!(open().read_manifest(&series(), &key.folder()).expect("read"), manifest(key));
    // The manifest is written once more, as after a lost answer, and to replace a damaged one.
    tier.write_manifest(&series(), &manifest(key)).expect("written");
    tier.put(&folder.join("manifest"), b"damaged").expect("written");
    tier.write_manifest(&series(), &manifest(key)).expect("written");
    tier.remove(&series(), &key.folder()).expect("removed");
    assert_eq!(is_committed(), None);
    tier.remove(&series(), &key.folder()).expect("it is gone, which is no error");
}

fn a_store_is_held_by_the_first(open: Open<'_>) {
    let clock = SystemClock::default();
    assert_eq!(open().find_store().expect("nobody's"), None);
    assert_eq!(open().hold_store(Incarnation([1; 16]), &clock).expect("ours"), Incarnation([1; 16]));
    assert_eq!(open().hold_store(Incarnation([2; 16]), &clock).expect("theirs"), Incarnation([1; 16]));
    assert_eq!(open().find_store().expect("theirs"), Some(Incarnation([1; 16])));
}

fn of_many_that_create_a_record_one_succeeds(open: Open<'_>) {
    let (tier, clock) = (open(), SystemClock::default());
    assert!(tier.can_fence());
    let path = tier.root().join("job/world/claims/g000001");
    let records = tier.records();
    let made = records.create(&path, b"first", &clock).expect("created");
    let again = open().records().create(&path, b"second", &clock);
    assert_eq!(again.err().map(|error| error.kind()), Some(ErrorKind::AlreadyExists));
    assert_eq!(records.read(&path, 100).expect("read"), b"first");
    drop(made);
    let before = records.changed(&path).expect("there");
    // Object stores measure time in seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    open().records().touch(&path).expect("touched");
    assert!(records.changed(&path).expect("there") > before);
    assert_eq!(records.read(&path, 100).expect("read"), b"first");
    let closed = path.with_extension("closed");
    records.mark(&closed).and_then(|()| records.mark(&closed)).expect("marked");
    let mut seen: Vec<String> =
        records.list(path.parent().unwrap()).expect("listed").into_iter().map(|of| of.name).collect();
    seen.sort();
    assert_eq!(seen, ["g000001", "g000001.closed"]);
    records.remove(&path).expect("removed");
    assert_eq!(records.read(&path, 100).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
}

#[test]
fn a_directory_on_a_disk_keeps_the_contract() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = folder.path().join("store");
    all(&|| {
        let storage = Arc::new(PosixStorage::new(Direct::Auto));
        std::fs::create_dir_all(&root).unwrap();
        Arc::new(DirectoryTier::new(TierId::GLOBAL, storage, root.clone()))
    });
}

#[test]
fn a_simulated_directory_keeps_the_contract() {
    let disk = Simulated::new();
    all(&|| Arc::new(DirectoryTier::new(TierId::GLOBAL, Arc::new(disk.clone()), PathBuf::from("/global"))));
}

#[cfg(feature = "object-store")]
mod in_object_stores {
    use super::*;
    use crate::object::{Server, environment, url};
    use bivouac_core::tier::TierError;
    use bivouac_core::tier::object::ObjectTier;
    use std::time::Duration;

    /// The tier has a manifest of another run that took the same number.
    fn other_run(open: Open<'_>) -> Result<(), TierError> {
        let (tier, ours) = (open(), key(7));
        tier.write_manifest(&series(), &manifest(CheckpointKey { incarnation: Incarnation([8; 16]), ..ours }))
            .expect("first");
        tier.write_manifest(&series(), &manifest(ours))
    }

    fn on(server: &Server) {
        let endpoint = server.endpoint();
        let open = || -> Arc<dyn Tier> {
            let (keys, limit) = (environment(), Duration::from_secs(20));
            Arc::new(ObjectTier::open_with(&url("some/prefix"), Some(&endpoint), limit, &keys).expect("opened"))
        };
        all(&open);
        let refused = other_run(&open).expect_err("it is another run's");
        assert!(matches!(refused, TierError::Foreign { .. }), "{refused}");
    }

    #[test]
    fn the_store_in_memory_keeps_the_contract() {
        let tier = ObjectTier::in_memory();
        all(&|| Arc::new(tier.clone()));
    }

    #[test]
    fn s3s_fs_keeps_the_contract() {
        Server::s3s_fs().iter().for_each(on);
    }

    #[test]
    fn moto_keeps_the_contract() {
        Server::moto().iter().for_each(on);
    }
}
