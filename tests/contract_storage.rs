//! One contract for every [`Storage`], run on each implementation and each wrapper. Then come tests of promises that only some of them
//! make: the real file system's care with modes and special files, and the simulated one's model of power cuts.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bivouac_core::base::Clock;
use bivouac_core::base::clock::SimulatedClock;
use bivouac_core::base::rng::Rng;
use bivouac_core::config::Direct;
use bivouac_core::tier::ours::Trust;
use bivouac_core::tier::posix::{PageBuffer, PosixStorage};
use bivouac_core::tier::simulated::{Fault, Interruption, Simulated};
use bivouac_core::tier::storage::{Create, Entry, Storage, read_range, zeroed};
use bivouac_core::tier::wrappers::{Call, Counted, Counts, Faults, Faulty, Throttle, Throttled};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const ENOTDIR: i32 = 20;
const ELOOP: i32 = 40;

type SetModified = dyn Fn(&Path, SystemTime);

/// A storage with a directory that exists, and a way to make a file look old.
struct Bed {
    storage: Box<dyn Storage>,
    root: PathBuf,
    set_modified: Box<SetModified>,
    _directory: Option<tempfile::TempDir>,
}

impl Bed {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        let file = self.storage.open_write(&path, Create::New).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
        path
    }

    fn get(&self, path: &Path) -> Vec<u8> {
        self.storage.read_all(path, 1 << 26).unwrap()
    }

    fn kind<T>(&self, result: std::io::Result<T>) -> ErrorKind {
        result.err().expect("an error").kind()
    }
}

/// A directory on a disk, because /tmp may be in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn around_posix<S: Storage + 'static>(direct: Direct, wrap: impl FnOnce(PosixStorage) -> S) -> Bed {
    let directory = on_disk();
    let set_modified = |path: &Path, time| File::open(path).unwrap().set_modified(time).unwrap();
    Bed {
        storage: Box::new(wrap(PosixStorage::new(direct))),
        root: directory.path().to_owned(),
        set_modified: Box::new(set_modified),
        _directory: Some(directory),
    }
}

/// A storage that holds its directory, so that it reaches nothing by its whole path.
fn held(direct: Direct) -> Bed {
    let bed = around_posix(direct, |s| s);
    bed.storage.hold(&bed.root, Trust::Ours).unwrap();
    bed
}

fn around_simulated<S: Storage + 'static>(wrap: impl FnOnce(Simulated) -> S) -> Bed {
    let disk = Simulated::new();
    let root = PathBuf::from("/scratch");
    disk.create_dir_all(&root).unwrap();
    let behind = disk.clone();
    let set_modified = move |path: &Path, time| behind.set_modified(path, time).unwrap();
    Bed { storage: Box::new(wrap(disk)), root, set_modified: Box::new(set_modified), _directory: None }
}

fn throttle() -> Arc<Throttle> {
    Arc::new(Throttle::new(Arc::new(SimulatedClock::default()), Some(1 << 20), Some(1 << 20)))
}

/// Runs each named function on each storage, as a test of its own.
macro_rules! contract {
    ($($case:ident),+ $(,)?) => {
        contract!(@on posix_buffered, around_posix(Direct::Off, |s| s), $($case),+);
        contract!(@on posix_direct, around_posix(Direct::Auto, |s| s), $($case),+);
        contract!(@on posix_held, held(Direct::Auto), $($case),+);
        contract!(@on simulated, around_simulated(|s| s), $($case),+);
        contract!(@on shared, around_simulated(|s| -> Arc<dyn Storage> { Arc::new(s) }), $($case),+);
        contract!(@on faulty, around_simulated(|s| Faulty::new(s, Arc::new(Faults::default()))), $($case),+);
        contract!(@on throttled, around_simulated(|s| Throttled::new(s, throttle())), $($case),+);
        contract!(@on counted, around_posix(Direct::Auto, |s| Counted::new(s, Arc::new(Counts::default()))), $($case),+);
    };
    (@on $module:ident, $bed:expr, $($case:ident),+) => {
        mod $module {
            use super::*;
            $(#[test] fn $case() { super::$case(&$bed); })+
        }
    };
}

contract!(
    directories_are_made_with_their_parents_and_again,
    many_may_make_the_same_directories_at_once,
    a_file_in_the_way_of_a_directory_is_an_error,
    a_new_file_must_not_exist,
    shared_handles_write_their_own_slices,
    any_alignment_reads_back_what_was_written,
    gaps_read_as_zeros,
    reading_past_the_end_is_unexpected_eof,
    reserving_never_shortens_and_never_changes_bytes,
    ranges_beyond_every_file_are_errors,
    renaming_replaces_and_open_files_follow,
    what_is_missing_is_not_found,
    files_and_directories_are_not_mistaken,
    only_empty_directories_are_removed,
    listings_are_sorted,
    touching_sets_the_time_to_now,
    a_lock_excludes_until_it_is_dropped,
    those_who_ask_for_a_lock_do_not_see_each_other,
    a_lock_is_of_the_file_that_has_the_name,
    read_all_is_bounded,
    write_all_replaces_whole_files,
);

fn directories_are_made_with_their_parents_and_again(bed: &Bed) {
    let path = bed.path("a/b/c");
    bed.storage.create_dir_all(&path).unwrap();
    bed.storage.create_dir_all(&path).unwrap();
    bed.storage.create_dir_all(&bed.path("a/d")).unwrap();
    assert_eq!(bed.storage.list(&path).unwrap(), []);
    let names: Vec<_> = bed.storage.list(&bed.path("a")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["b", "d"]);
}

fn many_may_make_the_same_directories_at_once(bed: &Bed) {
    for round in 0..10 {
        let path = bed.path(&format!("{round}/x/y/z"));
        let storage = &*bed.storage;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| storage.create_dir_all(&path).unwrap());
            }
        });
        assert_eq!(bed.storage.list(&path).unwrap(), []);
    }
}

fn a_file_in_the_way_of_a_directory_is_an_error(bed: &Bed) {
    let file = bed.put("file", b"x");
    assert_eq!(bed.kind(bed.storage.create_dir_all(&file)), ErrorKind::NotADirectory);
    assert_eq!(bed.kind(bed.storage.create_dir_all(&file.join("below"))), ErrorKind::NotADirectory);
    assert_eq!(bed.get(&file), b"x");
}

fn a_new_file_must_not_exist(bed: &Bed) {
    let path = bed.put("file", b"first");
    assert_eq!(bed.kind(bed.storage.open_write(&path, Create::New)), ErrorKind::AlreadyExists);
    let file = bed.storage.open_write(&path, Create::Shared).unwrap();
    assert_eq!(bed.get(&path), b"first", "opening a shared file must not shorten it");
    file.write_at(2, b"u").unwrap();
    assert_eq!(bed.get(&path), b"fiust");
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

fn shared_handles_write_their_own_slices(bed: &Bed) {
    const SLICE: usize = 3 * 4096;
    let path = bed.path("container");
    std::thread::scope(|scope| {
        for rank in 0..4u64 {
            let (storage, path) = (&*bed.storage, &path);
            scope.spawn(move || {
                let file = storage.open_write(path, Create::Shared).unwrap();
                file.reserve(4 * SLICE as u64).unwrap();
                for page in 0..3 {
                    let mut buffer = PageBuffer::new(4096);
                    buffer.copy_from_slice(&pattern(rank * 3 + page, 4096));
                    file.write_at(rank * SLICE as u64 + page * 4096, &buffer).unwrap();
                }
                file.sync().unwrap();
            });
        }
    });
    let expected: Vec<u8> = (0..12).flat_map(|page| pattern(page, 4096)).collect();
    assert!(bed.get(&path) == expected);
}

fn maybe_aligned(bound: u64, rng: &mut Rng) -> usize {
    let value = rng.below(bound) as usize;
    if rng.chance(1, 2) { value & !4095 } else { value }
}

/// Reads and writes random ranges at random memory addresses, and compares them with a plain vector as the model.
fn any_alignment_reads_back_what_was_written(bed: &Bed) {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let path = bed.path(&format!("file-{seed}"));
        let file = bed.storage.open_write(&path, Create::New).unwrap();
        let mut model = Vec::new();
        for _ in 0..30 {
            let offset = maybe_aligned(1 << 21, &mut rng);
            let longest = [100, 20_000, 3 << 20][rng.below(3) as usize];
            let length = maybe_aligned(longest, &mut rng);
            let skew = if rng.chance(1, 2) { 0 } else { rng.below(4096) as usize };
            let mut buffer = PageBuffer::new(length + skew);
            buffer[skew..].copy_from_slice(&pattern(rng.next_u64(), length));
            file.write_at(offset as u64, &buffer[skew..]).unwrap();
            if length > 0 {
                model.resize(model.len().max(offset + length), 0);
                model[offset..offset + length].copy_from_slice(&buffer[skew..]);
            }
        }
        file.sync().unwrap();
        let file = bed.storage.open_read(&path).unwrap();
        assert_eq!(file.len().unwrap(), model.len() as u64);
        for skew in [0, 16] {
            let mut whole = PageBuffer::new(model.len() + skew);
            file.read_at(0, &mut whole[skew..]).unwrap();
            assert!(whole[skew..] == model[..], "seed {seed}, skew {skew}");
        }
        for _ in 0..20 {
            let offset = rng.below(model.len() as u64) as usize & if rng.chance(1, 2) { !4095 } else { !0 };
            let length = rng.below((model.len() - offset) as u64 + 1) as usize;
            let mut part = PageBuffer::new(length);
            file.read_at(offset as u64, &mut part).unwrap();
            assert!(part[..] == model[offset..offset + length], "seed {seed}, {length} bytes at {offset}");
        }
    }
}

fn gaps_read_as_zeros(bed: &Bed) {
    let path = bed.path("file");
    let file = bed.storage.open_write(&path, Create::New).unwrap();
    file.write_at(10_000, b"end").unwrap();
    file.write_at(1, b"begin").unwrap();
    file.write_at(5_000, b"").unwrap();
    let bytes = bed.get(&path);
    assert_eq!(bytes.len(), 10_003);
    assert_eq!((&bytes[..7], &bytes[10_000..]), (&b"\0begin\0"[..], &b"end"[..]));
    assert!(bytes[6..10_000].iter().all(|byte| *byte == 0));
}

fn reading_past_the_end_is_unexpected_eof(bed: &Bed) {
    for length in [5, (1 << 20) + 4096 + 7] {
        let path = bed.put(&format!("{length}"), &pattern(1, length));
        let file = bed.storage.open_read(&path).unwrap();
        let mut buffer = PageBuffer::new(length + 1);
        assert_eq!(bed.kind(file.read_at(0, &mut buffer)), ErrorKind::UnexpectedEof);
        let mut buffer = PageBuffer::new(2 * length.next_multiple_of(4096));
        assert_eq!(bed.kind(file.read_at(0, &mut buffer)), ErrorKind::UnexpectedEof);
        assert_eq!(bed.kind(file.read_at(1 << 40, &mut buffer)), ErrorKind::UnexpectedEof);
        file.read_at(length as u64, &mut []).unwrap();
        file.read_at(length as u64 - 1, &mut [0]).unwrap();
    }
}

fn reserving_never_shortens_and_never_changes_bytes(bed: &Bed) {
    let path = bed.path("file");
    let file = bed.storage.open_write(&path, Create::New).unwrap();
    file.reserve(0).unwrap();
    file.reserve(100_000).unwrap();
    file.write_at(0, &pattern(3, 50_000)).unwrap();
    file.reserve(10).unwrap();
    file.reserve(60_000).unwrap();
    let bytes = bed.get(&path);
    assert!(bytes[..50_000] == pattern(3, 50_000));
    assert!(bytes[50_000..].iter().all(|byte| *byte == 0));
    // The file has its reserved length if the file system could reserve, and otherwise the length of what was written.
    assert!([50_000, 100_000].contains(&bytes.len()), "{} bytes", bytes.len());
}

fn ranges_beyond_every_file_are_errors(bed: &Bed) {
    let path = bed.put("file", b"x");
    let file = bed.storage.open_write(&path, Create::Shared).unwrap();
    let page = PageBuffer::new(4096);
    for offset in [u64::MAX, u64::MAX - 4095, i64::MAX as u64 - 4095, 1 << 63] {
        let file = bed.storage.open_write(&path, Create::Shared).unwrap();
        assert!(file.write_at(offset, &page).is_err(), "offset {offset}");
        let file = bed.storage.open_read(&path).unwrap();
        assert!(file.read_at(offset, &mut [0; 2]).is_err(), "offset {offset}");
    }
    assert!(file.reserve(u64::MAX).is_err());
    assert_eq!(bed.get(&path), b"x");
}

fn renaming_replaces_and_open_files_follow(bed: &Bed) {
    let (old, new) = (bed.put("old", b"1"), bed.put("new", b"2"));
    let reader_of_replaced = bed.storage.open_read(&new).unwrap();
    let writer = bed.storage.open_write(&old, Create::Shared).unwrap();
    bed.storage.rename(&old, &new).unwrap();
    bed.storage.sync_dir(&bed.root).unwrap();
    assert_eq!(bed.kind(bed.storage.open_read(&old)), ErrorKind::NotFound);
    writer.write_at(1, b"+").unwrap();
    assert_eq!(bed.get(&new), b"1+");
    let mut byte = [0];
    reader_of_replaced.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, *b"2", "an open file outlives its name");
    bed.storage.rename(&new, &new).unwrap();
    assert_eq!(bed.get(&new), b"1+");
}

fn what_is_missing_is_not_found(bed: &Bed) {
    let (storage, path) = (&bed.storage, bed.path("missing"));
    let below = path.join("file");
    let outcomes = [
        storage.open_read(&path).err(),
        storage.open_write(&below, Create::New).err(),
        storage.open_write(&below, Create::Shared).err(),
        storage.rename(&path, &bed.path("other")).err(),
        storage.sync_dir(&path).err(),
        storage.remove_file(&path).err(),
        storage.remove_dir(&path).err(),
        storage.list(&path).err(),
        storage.touch(&path).err(),
        storage.modified(&path).err(),
        storage.try_lock(&path).err(),
        storage.is_locked(&path).err(),
    ];
    let kinds: Vec<_> = outcomes.into_iter().map(|error| error.expect("an error").kind()).collect();
    assert_eq!(kinds, [ErrorKind::NotFound; 12]);
    assert_eq!(storage.list(&bed.root).unwrap(), [], "nothing may come into being");
}

fn files_and_directories_are_not_mistaken(bed: &Bed) {
    let (file, directory) = (bed.put("file", b"x"), bed.path("directory"));
    bed.storage.create_dir_all(&directory).unwrap();
    assert_eq!(bed.kind(bed.storage.open_read(&directory)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.open_write(&directory, Create::Shared)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.open_write(&directory, Create::New)), ErrorKind::AlreadyExists);
    assert_eq!(bed.kind(bed.storage.try_lock(&directory)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.is_locked(&directory)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.remove_file(&directory)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.rename(&file, &directory)), ErrorKind::IsADirectory);
    assert_eq!(bed.kind(bed.storage.rename(&directory, &file)), ErrorKind::NotADirectory);
    assert_eq!(bed.kind(bed.storage.remove_dir(&file)), ErrorKind::NotADirectory);
    assert_eq!(bed.kind(bed.storage.list(&file)), ErrorKind::NotADirectory);
    assert_eq!(bed.kind(bed.storage.sync_dir(&file)), ErrorKind::NotADirectory);
    assert_eq!(bed.kind(bed.storage.open_read(&file.join("below"))), ErrorKind::NotADirectory);
}

fn only_empty_directories_are_removed(bed: &Bed) {
    let directory = bed.path("directory");
    bed.storage.create_dir_all(&directory).unwrap();
    let file = bed.put("directory/file", b"x");
    assert_eq!(bed.kind(bed.storage.remove_dir(&directory)), ErrorKind::DirectoryNotEmpty);
    bed.storage.remove_file(&file).unwrap();
    bed.storage.remove_dir(&directory).unwrap();
    assert_eq!(bed.storage.list(&bed.root).unwrap(), []);
}

fn listings_are_sorted(bed: &Bed) {
    for name in ["b", "a10", "a9", "z"] {
        bed.put(name, b"");
    }
    bed.storage.create_dir_all(&bed.path("c/below")).unwrap();
    let entry = |name: &str, is_dir| Entry { name: name.into(), is_dir };
    let expected = [entry("a10", false), entry("a9", false), entry("b", false), entry("c", true), entry("z", false)];
    assert_eq!(bed.storage.list(&bed.root).unwrap(), expected);
}

fn touching_sets_the_time_to_now(bed: &Bed) {
    let (path, other) = (bed.put("file", b"x"), bed.put("other", b"x"));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in [&path, &other] {
        (bed.set_modified)(path, long_ago);
        assert_eq!(bed.storage.modified(path).unwrap(), long_ago);
    }
    bed.storage.touch(&path).unwrap();
    let touched = bed.storage.modified(&path).unwrap();
    let new = bed.storage.modified(&bed.put("new", b"x")).unwrap();
    assert!(touched > long_ago + Duration::from_secs(365 * 24 * 3600), "touched at {touched:?}");
    assert!(new >= touched, "a file made later is not older: {new:?}, {touched:?}");
    assert_eq!(bed.storage.modified(&other).unwrap(), long_ago);
    assert_eq!(bed.get(&path), b"x");
}

fn a_lock_excludes_until_it_is_dropped(bed: &Bed) {
    let (path, other) = (bed.put("lock", b""), bed.put("other", b""));
    assert!(!bed.storage.is_locked(&path).unwrap());
    let held = bed.storage.try_lock(&path).unwrap().expect("nobody holds it");
    assert!(bed.storage.try_lock(&path).unwrap().is_none());
    assert!(bed.storage.is_locked(&path).unwrap() && !bed.storage.is_locked(&other).unwrap());
    // Opening and closing the file in another way must not end the lock, as it would end a POSIX record lock.
    drop(bed.storage.open_read(&path).unwrap());
    drop(bed.storage.open_write(&path, Create::Shared).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(bed.storage.try_lock(&path).unwrap().is_none()));
    });
    assert!(bed.storage.try_lock(&other).unwrap().is_some());
    drop(held);
    assert!(!bed.storage.is_locked(&path).unwrap());
    let again = bed.storage.try_lock(&path).unwrap();
    assert!(again.is_some());
}

/// Many processes check at once whether the last run is dead. None of them may mistake another process's check for a living run.
fn those_who_ask_for_a_lock_do_not_see_each_other(bed: &Bed) {
    let path = bed.put("lock", b"");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert!(!bed.storage.is_locked(&path).unwrap())));
        }
    });
}

/// Two threads remove a file under its lock while its maker also asks for that lock: whoever gets a lock has a file.
fn a_lock_is_of_the_file_that_has_the_name(bed: &Bed) {
    const ROUNDS: usize = 1000;
    let names: Vec<PathBuf> = (0..ROUNDS).map(|round| bed.path(&format!("file{round}"))).collect();
    let made = std::sync::atomic::AtomicUsize::new(0);
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let newest = made.load(std::sync::atomic::Ordering::Acquire);
                    if newest > ROUNDS {
                        return;
                    }
                    // The file must exist first: its maker may find it gone when it opens it a second time.
                    let Some(path) = newest.checked_sub(1).and_then(|at| names.get(at)) else { continue };
                    if let Ok(Some(_lock)) = bed.storage.try_lock(path) {
                        bed.storage.remove_file(path).expect("nobody else removes what is locked");
                    }
                }
            });
        }
        for (round, path) in names.iter().enumerate() {
            wrong.extend(bed.storage.open_write(path, Create::New).err());
            made.store(round + 1, std::sync::atomic::Ordering::Release);
            match bed.storage.try_lock(path) {
                Ok(Some(_lock)) => wrong.extend(bed.storage.open_read(path).err()),
                Ok(None) => {}
                Err(error) => wrong.extend((error.kind() != ErrorKind::NotFound).then_some(error)),
            }
        }
        made.store(ROUNDS + 1, std::sync::atomic::Ordering::Release);
    });
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn read_all_is_bounded(bed: &Bed) {
    let path = bed.put("file", b"12345");
    assert_eq!(bed.storage.read_all(&path, 5).unwrap(), b"12345");
    assert_eq!(bed.kind(bed.storage.read_all(&path, 4)), ErrorKind::InvalidData);
    let empty = bed.put("empty", b"");
    assert_eq!(bed.storage.read_all(&empty, 0).unwrap(), b"");
}

fn write_all_replaces_whole_files(bed: &Bed) {
    let path = bed.path("manifest");
    bed.storage.write_all(&path, b"a long first version").unwrap();
    // An interrupted attempt left this behind.
    bed.put("manifest.tmp", b"half of something");
    bed.storage.write_all(&path, b"second").unwrap();
    assert_eq!(bed.get(&path), b"second");
    let names = bed.storage.list(&bed.root).unwrap();
    assert_eq!(names, [Entry { name: "manifest".into(), is_dir: false }], "no temporary file stays");
}

mod real_file_system {
    use super::*;

    fn does_direct_io(directory: &Path) -> bool {
        const O_DIRECT: i32 = 0o40000;
        let path = directory.join("probe");
        let direct = cfg!(target_arch = "x86_64")
            && File::options().write(true).create(true).truncate(true).custom_flags(O_DIRECT).open(&path).is_ok();
        let _ = std::fs::remove_file(path);
        direct
    }

    #[test]
    fn direct_on_works_where_the_file_system_does_direct_io_and_is_an_error_elsewhere() {
        let directory = on_disk();
        let storage = PosixStorage::new(Direct::On);
        let path = directory.path().join("file");
        let page = PageBuffer::new(1 << 20);
        match storage.open_write(&path, Create::New) {
            Ok(file) => file.write_at(0, &page).unwrap(),
            Err(error) if cfg!(target_arch = "x86_64") => {
                assert!(!does_direct_io(directory.path()), "{error}");
                assert!(!path.exists(), "a file that was not handed out must not stay");
            }
            Err(_) => {}
        }
    }

    /// The number of open descriptors of this process that lead to `path` and were opened with O_DIRECT.
    fn direct_descriptors(path: &Path) -> usize {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let target = std::fs::read_link(Path::new("/proc/self/fd").join(&name)).ok()?;
            (target == path).then(|| std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(&name)).ok())?
        });
        let flags = open.filter_map(|info| {
            let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
            i32::from_str_radix(&line, 8).ok()
        });
        flags.filter(|flags| flags & 0o40000 != 0).count()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn large_files_are_opened_around_the_page_cache_exactly_where_wanted_and_possible() {
        let directory = on_disk();
        let possible = usize::from(does_direct_io(directory.path()));
        for (direct, expected) in [(Direct::Auto, possible), (Direct::Off, 0)] {
            let storage = PosixStorage::new(direct);
            let path = directory.path().join(format!("{direct:?}"));
            let file = storage.open_write(&path, Create::New).unwrap();
            assert_eq!(direct_descriptors(&path), expected, "{direct:?}");
            file.write_at(0, &PageBuffer::new(1 << 20)).unwrap();
            drop(file);
            let reader = storage.open_read(&path).unwrap();
            assert_eq!(direct_descriptors(&path), expected, "{direct:?}");
            drop(reader);
        }
    }

    #[test]
    fn files_and_directories_are_private() {
        let bed = around_posix(Direct::Auto, |s| s);
        bed.storage.create_dir_all(&bed.path("a/b")).unwrap();
        bed.put("a/b/file", b"x");
        for (name, mode) in [("a", 0o700), ("a/b", 0o700), ("a/b/file", 0o600)] {
            assert_eq!(std::fs::metadata(bed.path(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn symbolic_links_to_files_are_not_followed() {
        let bed = around_posix(Direct::Auto, |s| s);
        let target = bed.put("target", b"x");
        for (name, target) in [("link", target.as_path()), ("dangling", Path::new("nowhere"))] {
            let link = bed.path(name);
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(bed.storage.open_read(&link).is_err());
            assert!(bed.storage.open_write(&link, Create::Shared).is_err());
            assert!(bed.storage.open_write(&link, Create::New).is_err());
            assert!(bed.storage.try_lock(&link).is_err());
            assert!(bed.storage.is_locked(&link).is_err());
        }
        assert!(!bed.path("nowhere").exists());
        assert!(bed.storage.create_dir_all(&bed.path("dangling")).is_err());
    }

    #[test]
    fn directories_may_be_symbolic_links() {
        let bed = around_posix(Direct::Auto, |s| s);
        bed.storage.create_dir_all(&bed.path("real")).unwrap();
        std::os::unix::fs::symlink("real", bed.path("link")).unwrap();
        bed.storage.create_dir_all(&bed.path("link/below")).unwrap();
        bed.storage.create_dir_all(&bed.path("link")).unwrap();
        bed.storage.sync_dir(&bed.path("link")).unwrap();
        assert_eq!(bed.storage.list(&bed.path("link")).unwrap()[0].name, "below");
        let entry = bed.storage.list(&bed.root).unwrap().swap_remove(0);
        assert_eq!((entry.name.as_str(), entry.is_dir), ("link", false), "what is listed is the link");
    }

    /// A neighbour acts between the check of a folder and its use.
    #[test]
    fn below_a_directory_that_is_held_no_link_is_followed() {
        let (bed, outside) = (held(Direct::Auto), on_disk());
        bed.storage.create_dir_all(&bed.path("job/version")).unwrap();
        bed.put("job/version/file", b"x");
        let precious = outside.path().join("file");
        std::fs::write(&precious, "precious").unwrap();
        std::fs::rename(bed.path("job/version"), bed.path("job/away")).unwrap();
        std::os::unix::fs::symlink(outside.path(), bed.path("job/version")).unwrap();
        let (file, folder, storage) = (bed.path("job/version/file"), bed.path("job/version"), &bed.storage);
        let refused = [
            storage.open_read(&file).map(drop),
            storage.open_write(&file, Create::Shared).map(drop),
            storage.open_write(&bed.path("job/version/new"), Create::New).map(drop),
            storage.write_all(&bed.path("job/version/new"), b"x"),
            storage.create_dir_all(&bed.path("job/version/below")),
            storage.create_dir_all(&folder),
            storage.rename(&file, &bed.path("job/version/other")),
            storage.remove_file(&file),
            storage.remove_dir(&bed.path("job/version/below")),
            storage.list(&folder).map(drop),
            storage.sync_dir(&folder),
            storage.touch(&file),
            storage.modified(&file).map(drop),
            storage.try_lock(&file).map(drop),
            storage.is_locked(&file).map(drop),
        ];
        for (call, refused) in refused.into_iter().enumerate() {
            // A listing gives "not a directory", because it opens the link itself.
            let errno = refused.unwrap_err().raw_os_error();
            assert!(errno == Some(ELOOP) || errno == Some(ENOTDIR), "call {call}: {errno:?}");
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_put_in_the_place_of_a_held_directory_is_used_by_the_same_rule_or_not_at_all() {
        let (bed, away) = (held(Direct::Auto), on_disk());
        let kept = away.path().join("kept");
        bed.put("file", b"ours");
        std::fs::rename(&bed.root, &kept).unwrap();
        std::fs::create_dir(&bed.root).unwrap();
        std::fs::write(bed.path("file"), "theirs").unwrap();
        std::fs::set_permissions(&bed.root, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = bed.storage.remove_file(&bed.path("file")).unwrap_err().to_string();
        assert!(error.contains("others may write"), "{error}");
        assert!(bed.path("file").exists() && kept.join("file").exists());
        // If the directory is closed to others, the user made the change, and a restart will find what the path leads to.
        std::fs::set_permissions(&bed.root, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(bed.get(&bed.path("file")), b"theirs");
        bed.storage.remove_file(&bed.path("file")).unwrap();
        assert!(!bed.path("file").exists() && kept.join("file").exists());
    }

    #[test]
    fn a_held_directory_that_was_removed_is_made_and_held_again() {
        let bed = held(Direct::Auto);
        std::fs::remove_dir(&bed.root).unwrap();
        assert_eq!(bed.kind(bed.storage.list(&bed.root)), ErrorKind::NotFound);
        bed.storage.create_dir_all(&bed.path("a/b")).unwrap();
        bed.put("a/b/file", b"x");
        assert_eq!(std::fs::metadata(&bed.root).unwrap().permissions().mode() & 0o777, 0o700);
        // The rule is the same as before.
        std::fs::remove_dir_all(&bed.root).unwrap();
        std::fs::create_dir(&bed.root).unwrap();
        std::fs::set_permissions(&bed.root, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = bed.storage.create_dir_all(&bed.path("a")).unwrap_err().to_string();
        assert!(error.contains("others may write"), "{error}");
        assert!(!bed.path("a").exists());
    }

    #[test]
    fn a_hole_is_not_read_into_memory_and_too_much_memory_is_an_error() {
        let bed = held(Direct::Auto);
        let file = File::create(bed.path("sparse")).unwrap();
        file.set_len(1 << 42).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 3 << 20], 1 << 30).unwrap();
        let file = bed.storage.open_read(&bed.path("sparse")).unwrap();
        let there = (1 << 30)..(1 << 30) + (3 << 20);
        assert!(read_range(&*file, there.clone()).unwrap().iter().all(|byte| *byte == 7));
        for hole in [0..1 << 34, there.start..there.end + 4096, (1 << 42) - (2 << 20)..1 << 42] {
            assert_eq!(bed.kind(read_range(&*file, hole.clone())), ErrorKind::InvalidData, "{hole:?}");
        }
        assert_eq!(bed.kind(zeroed::<u64>(u64::MAX / 16)), ErrorKind::OutOfMemory);
    }

    /// Without O_NONBLOCK each of these opens would wait for a peer for ever.
    #[test]
    fn pipes_and_devices_neither_hang_nor_pass_for_files() {
        let bed = around_posix(Direct::Auto, |s| s);
        let pipe = bed.path("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null")] {
            assert!(bed.storage.open_read(path).is_err());
            assert!(bed.storage.open_write(path, Create::Shared).is_err());
            assert!(bed.storage.try_lock(path).is_err());
            assert!(bed.storage.is_locked(path).is_err());
        }
    }

    /// `/scratch` is often like this. For root the permission bits mean nothing, so root runs only the plain case.
    #[test]
    fn directories_can_be_made_below_one_that_cannot_be_listed() {
        let bed = around_posix(Direct::Auto, |s| s);
        let dark = bed.path("dark");
        bed.storage.create_dir_all(&dark).unwrap();
        std::fs::set_permissions(&dark, std::fs::Permissions::from_mode(0o300)).unwrap();
        bed.storage.create_dir_all(&dark.join("a/b")).unwrap();
        bed.storage.create_dir_all(&dark.join("a")).unwrap();
        assert!(dark.join("a/b").is_dir());
        std::fs::set_permissions(&dark, std::fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn relative_paths_are_taken_from_the_working_directory() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let name = Path::new(directory.path().file_name().unwrap());
        let storage = PosixStorage::new(Direct::Auto);
        storage.create_dir_all(name).unwrap();
        storage.create_dir_all(Path::new(".")).unwrap();
        storage.create_dir_all(Path::new("/")).unwrap();
        storage.create_dir_all(&name.join("a/b")).unwrap();
        storage.write_all(&name.join("a/b/file"), b"x").unwrap();
        assert_eq!(std::fs::read(directory.path().join("a/b/file")).unwrap(), b"x");
    }

    /// Another process has another open file description, and dies while it holds the lock.
    #[test]
    fn a_lock_ends_with_the_process_that_held_it() {
        let bed = around_posix(Direct::Auto, |s| s);
        let path = bed.put("lock", b"");
        let mut child = std::process::Command::new("flock")
            .args(["--exclusive", "--no-fork"])
            .arg(&path)
            .args(["sh", "-c", "echo held; exec sleep 600"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(bed.storage.try_lock(&path).unwrap().is_none(), "the other process holds it");
        assert!(bed.storage.is_locked(&path).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(bed.storage.try_lock(&path).unwrap().is_some());
    }
}

mod power_cuts {
    use super::*;

    const SEEDS: u64 = 300;

    fn scratch() -> Simulated {
        let disk = Simulated::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        disk
    }

    /// A file with synced bytes and a synced name.
    fn put(disk: &Simulated, path: &Path, bytes: &[u8]) {
        let file = disk.open_write(path, Create::New).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
        disk.sync_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_was_synced_survives_every_power_cut() {
        let disk = scratch();
        let path = Path::new("/d/file");
        put(&disk, path, &pattern(1, 10_000));
        for seed in 0..SEEDS {
            disk.power_cut(&mut Rng::new(seed));
            assert!(disk.read_all(path, 1 << 20).unwrap() == pattern(1, 10_000), "seed {seed}");
        }
    }

    #[test]
    fn unsynced_bytes_are_kept_lost_or_torn_and_synced_ones_beside_them_stay() {
        let (old, new) = (vec![1u8; 10_000], vec![2u8; 8_000]);
        let path = Path::new("/d/file");
        let disk = scratch();
        put(&disk, path, &old);
        let file = disk.open_write(path, Create::Shared).unwrap();
        file.write_at(6_000, &new).unwrap();
        let before = disk.snapshot();
        let (mut whole, mut lost, mut torn, mut lengths) = (0, 0, 0, std::collections::BTreeSet::new());
        for seed in 0..SEEDS {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(seed));
            let bytes = disk.read_all(path, 1 << 20).unwrap();
            assert!((10_000..=14_000).contains(&bytes.len()));
            assert!(bytes[..6_000] == old[..6_000], "seed {seed}: a synced byte changed that nobody wrote");
            assert!(bytes[6_000..].iter().all(|byte| [0, 1, 2].contains(byte)));
            lengths.insert(bytes.len());
            match bytes[6_000..].iter().filter(|byte| **byte == 2).count() {
                8_000 => whole += 1,
                0 => lost += 1,
                _ => torn += 1,
            }
        }
        assert!(whole > 20 && lost > 20 && torn > 20 && lengths.len() > 5, "{whole} {lost} {torn} {lengths:?}");
    }

    #[test]
    fn a_durable_name_may_lead_to_lost_bytes() {
        let disk = scratch();
        let path = Path::new("/d/file");
        let file = disk.open_write(path, Create::New).unwrap();
        file.write_at(0, b"never synced").unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        let before = disk.snapshot();
        let survivors = (0..SEEDS).filter(|seed| {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(*seed));
            disk.read_all(path, 100).expect("the name is durable") == b"never synced"
        });
        assert!((50..250).contains(&survivors.count()));
    }

    #[test]
    fn synced_bytes_may_lose_their_name() {
        let disk = scratch();
        let path = Path::new("/d/file");
        let file = disk.open_write(path, Create::New).unwrap();
        file.write_at(0, b"bytes").unwrap();
        file.sync().unwrap();
        let before = disk.snapshot();
        let mut found = 0;
        for seed in 0..SEEDS {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(seed));
            match disk.read_all(path, 100) {
                Ok(bytes) => {
                    assert_eq!(bytes, b"bytes");
                    found += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
            }
        }
        assert!((50..250).contains(&found), "{found}");
    }

    #[test]
    fn a_rename_is_whole_or_lost_until_the_directory_is_synced() {
        let disk = scratch();
        let (from, to) = (Path::new("/d/from"), Path::new("/d/to"));
        put(&disk, from, b"new");
        put(&disk, to, b"old");
        disk.rename(from, to).unwrap();
        let before = disk.snapshot();
        let mut happened = 0;
        for seed in 0..SEEDS {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(seed));
            let target = disk.read_all(to, 100).unwrap();
            match disk.read_all(from, 100) {
                Ok(source) => assert_eq!((source, target), (b"new".to_vec(), b"old".to_vec())),
                Err(_) => {
                    assert_eq!(target, b"new");
                    happened += 1;
                }
            }
        }
        assert!((50..250).contains(&happened), "{happened}");
        disk.restore(&before);
        disk.sync_dir(Path::new("/d")).unwrap();
        for seed in 0..SEEDS {
            disk.power_cut(&mut Rng::new(seed));
            assert_eq!(disk.read_all(to, 100).unwrap(), b"new");
            assert!(disk.open_read(from).is_err());
        }
    }

    #[test]
    fn a_removal_may_be_undone_until_the_directory_is_synced() {
        let disk = scratch();
        let path = Path::new("/d/file");
        put(&disk, path, b"bytes");
        disk.remove_file(path).unwrap();
        let before = disk.snapshot();
        let back = (0..SEEDS).filter(|seed| {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(*seed));
            disk.read_all(path, 100).is_ok_and(|bytes| bytes == b"bytes")
        });
        assert!((50..250).contains(&back.count()));
        disk.restore(&before);
        disk.sync_dir(Path::new("/d")).unwrap();
        disk.power_cut(&mut Rng::new(1));
        assert!(disk.open_read(path).is_err());
    }

    #[test]
    fn changes_of_one_directory_survive_in_their_order() {
        let disk = scratch();
        let paths: Vec<_> = (0..6).map(|i| PathBuf::from(format!("/d/{i}"))).collect();
        for path in &paths {
            disk.open_write(path, Create::New).unwrap();
        }
        let before = disk.snapshot();
        let mut counts = std::collections::BTreeSet::new();
        for seed in 0..SEEDS {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(seed));
            let found: Vec<_> = paths.iter().map(|path| disk.open_read(path).is_ok()).collect();
            assert!(found.is_sorted_by(|a, b| a >= b), "a later name without an earlier one: {found:?}");
            counts.insert(found.iter().filter(|found| **found).count());
        }
        assert_eq!(counts.len(), 7, "every first part is possible");
    }

    #[test]
    fn directories_made_with_create_dir_all_are_durable() {
        for seed in 0..SEEDS {
            let disk = Simulated::new();
            disk.create_dir_all(Path::new("/a/b/c")).unwrap();
            disk.power_cut(&mut Rng::new(seed));
            assert_eq!(disk.list(Path::new("/a/b/c")).unwrap(), []);
        }
    }

    #[test]
    fn handles_and_locks_of_before_are_dead_and_names_can_be_opened_again() {
        let disk = scratch();
        let path = Path::new("/d/file");
        put(&disk, path, b"bytes");
        let (writer, reader) = (disk.open_write(path, Create::Shared).unwrap(), disk.open_read(path).unwrap());
        let lock = disk.try_lock(path).unwrap().unwrap();
        disk.power_cut(&mut Rng::new(7));
        let errors = [
            writer.write_at(0, b"x").unwrap_err(),
            writer.sync().unwrap_err(),
            reader.read_at(0, &mut [0]).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| Interruption::of(error) == Some(Interruption::PowerCut)));
        let new_lock = disk.try_lock(path).unwrap().expect("the old lock is gone");
        drop(lock);
        assert!(disk.try_lock(path).unwrap().is_none(), "the old guard must not release the new lock");
        drop((writer, reader, new_lock));
        assert_eq!(disk.read_all(path, 100).unwrap(), b"bytes");
    }

    #[test]
    fn one_directory_can_lose_power_alone() {
        let disk = Simulated::new();
        for top in ["/local-0", "/local-1"] {
            disk.create_dir_all(Path::new(top)).unwrap();
            disk.open_write(&Path::new(top).join("file"), Create::New).unwrap();
        }
        let before = disk.snapshot();
        let mut lost = 0;
        for seed in 0..SEEDS {
            disk.restore(&before);
            disk.power_cut_below(Path::new("/local-0"), &mut Rng::new(seed)).unwrap();
            lost += u64::from(disk.open_read(Path::new("/local-0/file")).is_err());
            assert!(disk.open_read(Path::new("/local-1/file")).is_ok());
        }
        assert!((50..250).contains(&lost), "{lost}");
        assert!(disk.power_cut_below(Path::new("/nowhere"), &mut Rng::new(0)).is_err());
    }

    #[test]
    fn one_seed_replays() {
        let outcome = |seed| {
            let disk = scratch();
            for i in 0..5 {
                let file = disk.open_write(&PathBuf::from(format!("/d/{i}")), Create::New).unwrap();
                file.write_at(0, &pattern(i, 9_000)).unwrap();
            }
            disk.power_cut(&mut Rng::new(seed));
            let files = disk.files(Path::new("/"));
            files.into_iter().map(|(path, _)| disk.read_all(&path, 1 << 20).unwrap()).collect::<Vec<_>>()
        };
        assert!(outcome(11) == outcome(11));
        assert!(outcome(11) != outcome(12));
    }

    /// The states from which `write_all` starts: an older version or none, and possible leftovers of an earlier crash.
    fn starts() -> Vec<(Simulated, Option<Vec<u8>>)> {
        let old = pattern(1, 6_000);
        let with_old = scratch();
        with_old.write_all(Path::new("/d/manifest"), &old).unwrap();
        let with_leftover = scratch();
        with_leftover.write_all(Path::new("/d/manifest"), &old).unwrap();
        let file = with_leftover.open_write(Path::new("/d/manifest.tmp"), Create::New).unwrap();
        file.write_at(0, b"half of something").unwrap();
        vec![(scratch(), None), (with_old, Some(old.clone())), (with_leftover, Some(old))]
    }

    #[test]
    fn write_all_is_atomic_at_every_step_and_after_every_power_cut() {
        let path = Path::new("/d/manifest");
        let new = pattern(2, 9_000);
        for (disk, old) in starts() {
            let before = disk.snapshot();
            let first = disk.steps();
            disk.write_all(path, &new).unwrap();
            let steps = disk.steps() - first;
            assert!(steps >= 5, "create, write, sync, rename, sync of the directory: {steps}");
            let (mut found_old, mut found_new) = (0, 0);
            for step in 0..=steps {
                for seed in 0..SEEDS {
                    disk.restore(&before);
                    disk.freeze_after(step);
                    let result = disk.write_all(path, &new);
                    assert_eq!(result.is_ok(), step == steps, "step {step}");
                    disk.thaw();
                    if seed > 0 {
                        disk.power_cut(&mut Rng::new(seed));
                    }
                    let found = match disk.read_all(path, 1 << 20) {
                        Ok(bytes) => Some(bytes),
                        Err(error) if error.kind() == ErrorKind::NotFound => None,
                        Err(error) => panic!("{error}"),
                    };
                    if found.as_ref() == Some(&new) {
                        found_new += 1;
                    } else {
                        assert!(found == old, "step {step}, seed {seed}: neither old nor new\n{}", disk.tree());
                        assert!(step < steps, "seed {seed}: write_all returned, yet its bytes are gone");
                        found_old += 1;
                    }
                    disk.write_all(path, b"third").unwrap();
                    assert_eq!(disk.read_all(path, 100).unwrap(), b"third", "what a crash left must not be in the way");
                }
            }
            assert!(found_old > 0 && found_new > SEEDS, "{found_old} {found_new}");
        }
    }

    /// Shows that the test above can fail: it would fail if the file were not synced.
    #[test]
    fn renaming_an_unsynced_file_into_place_is_caught() {
        let disk = scratch();
        let path = Path::new("/d/manifest");
        let new = pattern(2, 9_000);
        let file = disk.open_write(Path::new("/d/temp"), Create::New).unwrap();
        file.write_at(0, &new).unwrap();
        disk.rename(Path::new("/d/temp"), path).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        let before = disk.snapshot();
        let partial = (0..SEEDS).filter(|seed| {
            disk.restore(&before);
            disk.power_cut(&mut Rng::new(*seed));
            disk.read_all(path, 1 << 20).unwrap() != new
        });
        assert!(partial.count() > 100);
    }
}

mod simulated_faults {
    use super::*;

    fn errno(result: std::io::Result<()>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    fn two_nodes() -> Simulated {
        let disk = Simulated::new();
        for top in ["/local-0", "/local-1"] {
            disk.write_all(Path::new(&format!("{top}-file")), b"").unwrap();
            disk.create_dir_all(Path::new(top)).unwrap();
            disk.write_all(&Path::new(top).join("file"), b"bytes").unwrap();
        }
        disk
    }

    #[test]
    fn a_fault_hits_its_directory_alone_and_heals() {
        let disk = two_nodes();
        let (top, path) = (Path::new("/local-0"), Path::new("/local-0/file"));
        let open = disk.open_write(path, Create::Shared).unwrap();
        for (fault, write, read) in [
            (Fault::Dead, Some(EIO), Some(EIO)),
            (Fault::Denied, Some(13), Some(13)),
            (Fault::ReadOnly, Some(30), None),
            (Fault::Full, Some(ENOSPC), None),
        ] {
            disk.inject(top, fault).unwrap();
            assert_eq!(errno(disk.write_all(&top.join("new"), b"x")), write, "{fault:?}");
            assert_eq!(errno(open.write_at(5, b"+")), write, "{fault:?}");
            assert_eq!(disk.read_all(path, 10).err().and_then(|error| error.raw_os_error()), read, "{fault:?}");
            disk.write_all(Path::new("/local-1/new"), b"x").unwrap();
            disk.write_all(Path::new("/local-0-file"), b"x").unwrap();
            disk.heal(top).unwrap();
        }
        disk.write_all(&top.join("new"), b"x").unwrap();
        open.write_at(5, b"+").unwrap();
        assert_eq!(disk.read_all(path, 10).unwrap(), b"bytes+");
    }

    #[test]
    fn a_full_file_system_takes_bytes_again_when_room_returns() {
        let disk = two_nodes();
        let top = Path::new("/local-0");
        disk.set_capacity(top, Some(5 + 4096)).unwrap();
        disk.write_all(&top.join("fits"), &[1; 4096]).unwrap();
        assert_eq!(errno(disk.write_all(&top.join("more"), b"x")), Some(ENOSPC));
        let file = disk.open_write(&top.join("file"), Create::Shared).unwrap();
        assert_eq!(errno(file.reserve(6)), Some(ENOSPC));
        file.write_at(0, b"BYTES").unwrap();
        disk.remove_file(&top.join("fits")).unwrap();
        disk.write_all(&top.join("more"), b"x").unwrap();
        disk.set_capacity(top, None).unwrap();
        disk.write_all(&top.join("large"), &[1; 10_000]).unwrap();
    }

    #[test]
    fn locks_and_reservations_can_be_unsupported() {
        let disk = two_nodes();
        let path = Path::new("/local-0/file");
        disk.inject(path, Fault::NoLocks).unwrap();
        disk.inject(path, Fault::NoReserve).unwrap();
        assert_eq!(disk.try_lock(path).err().unwrap().kind(), ErrorKind::Unsupported);
        assert_eq!(disk.is_locked(path).err().unwrap().kind(), ErrorKind::Unsupported);
        disk.open_write(path, Create::Shared).unwrap().reserve(1000).unwrap();
        assert_eq!(disk.read_all(path, 1000).unwrap().len(), 5);
        assert!(disk.try_lock(Path::new("/local-1/file")).unwrap().is_some());
    }

    #[test]
    fn damage_is_durable_and_confined() {
        let disk = two_nodes();
        let path = Path::new("/local-0/file");
        disk.flip_bit(path, 8 * 4 + 1).unwrap();
        disk.power_cut(&mut Rng::new(3));
        assert_eq!(disk.read_all(path, 10).unwrap(), b"byteq");
        disk.truncate(path, 2).unwrap();
        assert_eq!(disk.read_all(path, 10).unwrap(), b"by");
        disk.overwrite(path, 1, b"a").unwrap();
        disk.power_cut(&mut Rng::new(3));
        assert_eq!(disk.read_all(path, 10).unwrap(), b"ba");
        assert!(disk.flip_bit(path, 16).is_err() && disk.truncate(path, 3).is_err());
        assert!(disk.overwrite(path, 1, b"ab").is_err());
        disk.lose(Path::new("/local-0")).unwrap();
        disk.power_cut(&mut Rng::new(3));
        assert!(disk.list(Path::new("/local-0")).is_err());
        let left = disk.files(Path::new("/local-1"));
        assert_eq!(left, [(PathBuf::from("/local-1/file"), 5)]);
        assert_eq!(disk.tree(), "/\n/local-0-file 0 B\n/local-1/\n/local-1/file 5 B\n/local-1-file 0 B");
    }

    #[test]
    fn frozen_processes_cannot_even_look_and_nothing_changes() {
        let disk = two_nodes();
        let path = Path::new("/local-0/file");
        let file = disk.open_write(path, Create::Shared).unwrap();
        disk.freeze_after(1);
        file.write_at(0, b"B").unwrap();
        let errors = [
            file.write_at(1, b"Y").unwrap_err(),
            file.sync().unwrap_err(),
            disk.read_all(path, 10).unwrap_err(),
            disk.list(Path::new("/")).unwrap_err(),
            disk.create_dir_all(Path::new("/local-0")).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| Interruption::of(error) == Some(Interruption::Stopped)));
        disk.thaw();
        assert_eq!(disk.read_all(path, 10).unwrap(), b"Bytes");
    }

    #[test]
    fn a_process_dies_alone_and_takes_its_locks_along() {
        let disk = two_nodes();
        let (one, two) = (disk.process(1), disk.process(2));
        let [first, second] = ["/local-0/file", "/local-1/file"].map(Path::new);
        let (lock_of_one, _lock_of_two) = (one.try_lock(first).unwrap(), two.try_lock(second).unwrap());
        let file = one.open_write(first, Create::Shared).unwrap();
        disk.kill(1);
        assert_eq!(Interruption::of(&file.sync().unwrap_err()), Some(Interruption::Stopped));
        assert_eq!(Interruption::of(&one.list(Path::new("/")).unwrap_err()), Some(Interruption::Stopped));
        let taken = two.try_lock(first).unwrap();
        assert!(taken.is_some(), "a dead process holds no lock");
        assert!(disk.try_lock(second).unwrap().is_none(), "a living one does");
        drop(lock_of_one);
        assert!(disk.try_lock(first).unwrap().is_none());
        disk.revive_all();
        assert!(one.list(Path::new("/")).is_ok());
        disk.drop_locks();
        assert!(one.try_lock(first).unwrap().is_some());
    }

    #[test]
    fn bytes_are_counted_by_directory() {
        let disk = two_nodes();
        disk.read_all(Path::new("/local-0/file"), 10).unwrap();
        disk.read_all(Path::new("/local-0/file"), 10).unwrap();
        disk.read_all(Path::new("/local-1/file"), 10).unwrap();
        let [zero, one, all] = ["/local-0", "/local-1", "/"].map(|top| disk.bytes_read(Path::new(top)));
        assert_eq!((zero, one, all), (10, 5, 15));
        assert_eq!(disk.bytes_written(Path::new("/local-1")), 5);
    }

    #[test]
    fn times_follow_a_clock_where_there_is_one() {
        let clock = Arc::new(SimulatedClock::default());
        let disk = Simulated::with_clock(clock.clone());
        let path = Path::new("/file");
        disk.write_all(path, b"x").unwrap();
        let made = disk.modified(path).unwrap();
        clock.advance(Duration::from_secs(90));
        disk.touch(path).unwrap();
        assert_eq!(disk.modified(path).unwrap().duration_since(made).unwrap(), Duration::from_secs(90));
    }

    #[test]
    fn paths_that_are_none_are_refused() {
        let disk = two_nodes();
        assert!(disk.open_read(Path::new("/local-0/../local-1/file")).is_err());
        assert!(disk.open_write(Path::new("/"), Create::New).is_err());
        assert!(disk.remove_dir(Path::new("/")).is_err());
        let error = disk.rename(Path::new("/local-0/file"), Path::new("/local-1/other")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CrossesDevices);
    }
}

mod wrappers {
    use super::*;

    #[test]
    fn the_nth_call_of_a_kind_below_a_path_fails_once() {
        let faults = Arc::new(Faults::default());
        let storage = Faulty::new(Simulated::new(), Arc::clone(&faults));
        storage.create_dir_all(Path::new("/a")).unwrap();
        faults.fail_nth(Call::Sync, Path::new("/a"), 2, ENOSPC);
        storage.write_all(Path::new("/b"), b"x").unwrap();
        storage.write_all(Path::new("/a/1"), b"x").unwrap();
        let error = storage.write_all(Path::new("/a/2"), b"x").unwrap_err();
        assert_eq!((error.raw_os_error(), faults.injected()), (Some(ENOSPC), 1));
        storage.write_all(Path::new("/a/3"), b"x").unwrap();
        faults.fail_all(None, Path::new("/a"), EIO);
        assert!(storage.list(Path::new("/a")).is_err() && storage.read_all(Path::new("/a/1"), 9).is_err());
        assert!(storage.list(Path::new("/")).is_ok());
        faults.clear();
        assert_eq!(storage.read_all(Path::new("/a/1"), 9).unwrap(), b"x");
    }

    #[test]
    fn a_write_that_fails_leaves_half_of_itself() {
        let disk = Simulated::new();
        let faults = Arc::new(Faults::default());
        let storage = Faulty::new(disk.clone(), Arc::clone(&faults));
        let file = storage.open_write(Path::new("/file"), Create::New).unwrap();
        faults.fail_nth(Call::WriteAt, Path::new("/"), 1, EIO);
        assert_eq!(file.write_at(0, b"12345678").unwrap_err().raw_os_error(), Some(EIO));
        assert_eq!(disk.read_all(Path::new("/file"), 100).unwrap(), b"1234");
    }

    #[test]
    fn random_faults_replay_by_their_seed() {
        let outcome = |seed| {
            let faults = Arc::new(Faults::default());
            let storage = Faulty::new(Simulated::new(), Arc::clone(&faults));
            faults.fail_randomly(seed, 1, 10, EIO);
            (0..50).map(|i| storage.write_all(&PathBuf::from(format!("/{i}")), b"x").is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(outcome(5), outcome(5));
        assert_ne!(outcome(5), outcome(6));
        assert!(outcome(5).contains(&true) && outcome(5).contains(&false));
    }

    /// `write_all` over storage that fails at random never shows a partial file.
    #[test]
    fn write_all_is_atomic_under_random_faults() {
        let disk = Simulated::new();
        let faults = Arc::new(Faults::default());
        let storage = Faulty::new(disk.clone(), Arc::clone(&faults));
        let path = Path::new("/file");
        let mut old = pattern(0, 5_000);
        disk.write_all(path, &old).unwrap();
        faults.fail_randomly(1, 1, 8, EIO);
        for round in 1..200 {
            let new = pattern(round, 5_000);
            let told = storage.write_all(path, &new).is_ok();
            let found = disk.read_all(path, 1 << 20).unwrap();
            assert!(found == new || (!told && found == old), "round {round}");
            old = found;
        }
        assert!(faults.injected() > 50);
    }

    #[test]
    fn a_throttle_takes_the_time_its_rate_says_for_all_its_users_together() {
        let clock = Arc::new(SimulatedClock::default());
        let throttle = Arc::new(Throttle::new(clock.clone(), Some(2000), Some(1000)));
        let disk = Simulated::new();
        let (one, two) = (Throttled::new(disk.clone(), throttle.clone()), Throttled::new(disk, throttle));
        one.open_write(Path::new("/a"), Create::New).unwrap().write_at(0, &[0; 3000]).unwrap();
        two.open_write(Path::new("/b"), Create::New).unwrap().write_at(0, &[0; 1000]).unwrap();
        assert_eq!(clock.now(), Duration::from_secs(4));
        two.read_all(Path::new("/a"), 3000).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(5500));
    }

    #[test]
    fn counts_are_of_what_succeeded() {
        let counts = Arc::new(Counts::default());
        let storage = Counted::new(Simulated::new(), Arc::clone(&counts));
        storage.write_all(Path::new("/file"), b"12345").unwrap();
        storage.read_all(Path::new("/file"), 10).unwrap();
        assert!(storage.open_read(Path::new("/missing")).is_err());
        let calls =
            [Call::OpenWrite, Call::WriteAt, Call::Sync, Call::Rename, Call::SyncDir, Call::OpenRead, Call::ReadAt];
        assert_eq!(calls.map(|call| counts.calls(call)), [1; 7]);
        // The removal found no leftover and so did not count; reading asked for the length.
        assert_eq!((counts.calls(Call::RemoveFile), counts.calls(Call::Len), counts.calls_total()), (0, 1, 8));
        assert_eq!((counts.bytes_written(), counts.bytes_read()), (5, 5));
    }
}
