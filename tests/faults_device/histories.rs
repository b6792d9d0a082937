//! Histories on a device that fails.

use crate::device::{ALWAYS, Call, Fault, FaultyDevice};
use crate::limit::wait_until;
use crate::machine::content;
use crate::{damage_file, logs};
use bivouac_core::base::ids::{Generation, Incarnation};
use bivouac_core::cache::{Keep, Tier};
use bivouac_core::device::Priority::{High, Low};
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{Device, DeviceError, DeviceSpan, Stream};
use bivouac_core::segment::{Segment, SegmentSpec};
use bivouac_core::transfer::history::{CacheConfig, Caches, Field, FieldMut, History, HistoryError, Return};
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Four blocks and a bit, so the last block is not full.
const BYTES: usize = MIB as usize + 1000;
/// Longer than any wait may last, except a wait for room.
const SOON: Duration = Duration::from_secs(30);

/// A device behind switches, a segment, and a directory for the file.
struct Bed {
    twin: Arc<HostDevice>,
    device: Arc<FaultyDevice>,
    /// The application's stream.
    stream: Arc<dyn Stream>,
    segment: Arc<Segment>,
    place: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        Bed::with(HostModel { memory_bytes: 4 << 30, ..HostModel::default() })
    }

    fn with(model: HostModel) -> Bed {
        let twin = Arc::new(HostDevice::new(model));
        let device = FaultyDevice::around(twin.clone());
        let builder = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm");
        let place = builder.expect("a directory in /dev/shm");
        let spec = SegmentSpec {
            directory: place.path().to_owned(),
            name: "node".into(),
            job: 1,
            group: 1,
            generation: Generation(1),
            incarnation: Incarnation([7; 16]),
            store: 0,
            budget: 64 * MIB,
            node_ranks: 1,
            group_size: 1,
        };
        let segment = Arc::new(Segment::create(&spec).expect("segment"));
        let stream = device.stream(High).expect("stream");
        Bed { twin, device, stream, segment, place }
    }

    fn try_caches(&self, mib: [u64; 3], room: Duration) -> Result<Caches, HistoryError> {
        let config = CacheConfig {
            device_bytes: mib[0] * MIB,
            host_bytes: mib[1] * MIB,
            store_bytes: mib[2] * MIB,
            store_directory: (mib[2] > 0).then(|| self.place.path().join("spill")),
            line_bytes: 8 * MIB,
            room,
            trace: true,
            ..CacheConfig::default()
        };
        Caches::open(self.device.clone(), Some(self.segment.clone()), config)
    }

    /// Caches of this many MiB on the device, on the host and in the file.
    fn caches(&self, mib: [u64; 3]) -> Caches {
        self.try_caches(mib, SOON).expect("caches")
    }

    /// Allocates device memory with these bytes, without passing the switches.
    fn span(&self, bytes: &[u8]) -> DeviceSpan {
        let span = self.twin.allocate(bytes.len() as u64).expect("room");
        self.twin.compute(&[&span], |slices| slices[0].copy_from_slice(bytes)).expect("our own memory");
        span
    }

    fn append(&self, history: &History, version: u64) -> Result<(), HistoryError> {
        let span = self.span(&bytes(version));
        history.append(version, &[Field::device::<u8>("p", &span)], &*self.stream)
    }

    fn append_all(&self, history: &History, versions: std::ops::Range<u64>) {
        versions.for_each(|version| self.append(history, version).expect("room"));
    }

    /// Restores a version, and returns its bytes.
    fn restore(&self, history: &History, version: u64) -> Result<Vec<u8>, HistoryError> {
        let span = self.span(&vec![0xee; BYTES]);
        history.restore(version, &mut [FieldMut::device::<u8>("p", &span)], &*self.stream)?;
        let mut back = vec![0; BYTES];
        self.twin.compute(&[&span], |slices| back.copy_from_slice(slices[0])).expect("our own memory");
        Ok(back)
    }

    /// Checks that a version is restored unchanged, and returns the tier from which it came.
    fn check(&self, history: &History, version: u64) -> Tier {
        let back = self.restore(history, version).unwrap_or_else(|error| panic!("version {version}: {error}"));
        assert!(back == bytes(version), "version {version}");
        history.take_steps().last().expect("a step").tier
    }

    /// The first version that is in that tier.
    fn version_in(&self, history: &History, versions: std::ops::Range<u64>, tier: Tier) -> u64 {
        let found = versions.into_iter().find(|version| self.check(history, *version) == tier);
        found.unwrap_or_else(|| panic!("no version in {tier:?}"))
    }

    /// Flips a bit of a version wherever host memory holds or held it.
    fn damage_host(&self, version: u64) -> usize {
        let files = std::fs::read_dir(self.place.path()).expect("a folder").map(|entry| entry.expect("entry").path());
        files.filter(|path| path.is_file()).map(|path| damage_file(&path, &bytes(version))).sum()
    }

    /// Flips a bit of a version in the file, which can be named only through this process's descriptors.
    fn damage_file(&self, version: u64) -> usize {
        let name = self.place.path().join("spill").display().to_string();
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").map(|entry| entry.expect("entry").path());
        let is_spill = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|target| {
                let target = target.display().to_string();
                target.starts_with(&name) && target.ends_with("(deleted)")
            })
        };
        // The direct and the buffered handle give the same file two names.
        descriptors.filter(is_spill).take(1).map(|path| damage_file(&path, &bytes(version))).sum()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.segment.close(true).expect("close");
    }
}

fn bytes(version: u64) -> Vec<u8> {
    content(0, version, 1, BYTES)
}

/// A history whose caches have all the memory that they will ever have; earlier, versions may have nowhere to go.
fn ready(caches: &Caches, name: &str, keep: Keep) -> History {
    let history = caches.history(name, keep);
    wait_until("the caches are ready", || caches.is_ready());
    history
}

/// Panics with the error's text unless that text contains all of these parts.
fn says(error: &HistoryError, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in: {text}");
}

// Memory.

#[test]
fn caches_without_any_device_memory_are_refused_with_the_reason() {
    let bed = Bed::new();
    for (call, fault, why) in [
        (Call::Map, Fault::OutOfMemory, "no device memory"),
        (Call::Reserve, Fault::OutOfMemory, "no device memory"),
        (Call::Map, Fault::Fail, "a test said so"),
    ] {
        bed.device.set(call, fault, 0, 1);
        let error = bed.try_caches([8, 8, 0], SOON).err().expect("no memory");
        says(&error, &[why]);
    }
    // The device still works as before.
    let caches = bed.caches([8, 8, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..3);
    assert_eq!(bed.check(&history, 0), Tier::Device);
}

#[test]
fn a_later_step_without_device_memory_leaves_a_smaller_cache() {
    logs::collect();
    let bed = Bed::new();
    // The first step is 1 GiB, and the others are a quarter of it.
    bed.device.set(Call::Map, Fault::OutOfMemory, 2, ALWAYS);
    let caches = bed.caches([1024 + 3 * 256, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..10);
    history.wait_flushed();
    assert!(logs::has(&["event=gpu-cache-smaller", "mapped=1342177280", "wanted=1879048192", "no device memory"]));
    assert_eq!(bed.device.hits(), 1, "it is not tried again and again");
    assert_eq!(caches.release_device_memory(u64::MAX), 1280 * MIB);
    for version in 0..10 {
        assert_eq!(bed.check(&history, version), Tier::Host);
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_used_as_it_is() {
    logs::collect();
    let bed = Bed::new();
    bed.device.set(Call::Pin, Fault::OutOfMemory, 1, ALWAYS);
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..20);
    let (leased, pinned) = caches.host_bytes();
    assert!(leased == 32 * MIB && (1..32 * MIB).contains(&pinned), "{leased} {pinned}");
    assert_eq!(bed.device.hits(), 1, "it is not tried again and again");
    assert!(logs::has(&["event=not-pinned", "no device memory for a test"]));
    (0..20).for_each(|version| _ = bed.check(&history, version));
    assert_eq!(history.stats().failures, [0; 4]);
}

// Copies.

#[test]
fn a_flush_that_fails_once_is_made_again() {
    let bed = Bed::new();
    bed.device.set(Call::Download(Low), Fault::Fail, 2, 1);
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..20);
    history.wait_flushed();
    let stats = history.stats();
    assert_eq!((bed.device.hits(), stats.failures), (1, [1, 0, 0, 0]));
    assert_eq!(caches.release_device_memory(u64::MAX), 4 * MIB, "all of it was flushed");
    for version in 0..20 {
        assert_eq!(bed.check(&history, version), Tier::Host);
    }
}

/// A version that cannot be flushed stays, and later versions go past it.
#[test]
fn a_flush_that_always_fails_leaves_its_version_on_the_device() {
    let bed = Bed::new();
    bed.device.set(Call::Download(Low), Fault::Fail, 0, ALWAYS);
    let caches = bed.caches([4, 16, 0]);
    let history = ready(&caches, "wave", Keep::All);
    let begun = Instant::now();
    // Three versions fit into the GPU cache, which has a border of 64 KiB, and 15 fit into host memory.
    let refused = (0..100).find_map(|version| Some((version, bed.append(&history, version).err()?)));
    let (count, error) = refused.expect("memory is finite");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(matches!(error, HistoryError::NoRoom { .. }), "{error}");
    assert!((10..=19).contains(&count), "{count}");
    history.wait_flushed();
    // Each version was tried three times.
    assert_eq!(history.stats().failures, [9, 0, 0, 0]);
    let tiers: Vec<Tier> = (0..count).map(|version| bed.check(&history, version)).collect();
    assert_eq!(tiers.iter().filter(|tier| **tier == Tier::Device).count(), 3);
    assert!(matches!(bed.restore(&history, count), Err(HistoryError::Unknown { .. })));
}

/// No data can be copied to the host, not even past the caches.
#[test]
fn without_any_download_an_append_without_room_gets_the_device_s_error() {
    let bed = Bed::new();
    bed.device.set(Call::Download(Low), Fault::Fail, 0, ALWAYS);
    bed.device.set(Call::Download(High), Fault::Fail, 0, ALWAYS);
    let caches = bed.caches([4, 16, 16]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..3);
    for _ in 0..3 {
        let error = bed.append(&history, 3).expect_err("nothing comes down");
        assert!(matches!(error, HistoryError::Device(DeviceError::Failed { call: "download", .. })), "{error}");
        assert!(matches!(bed.restore(&history, 3), Err(HistoryError::Unknown { version: 3, .. })));
    }
    for version in 0..3 {
        assert_eq!(bed.check(&history, version), Tier::Device);
    }
}

#[test]
fn a_prefetch_that_fails_leaves_the_version_in_host_memory() {
    let bed = Bed::new();
    bed.device.set(Call::Upload(Low), Fault::Fail, 0, ALWAYS);
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "wave", Keep::UntilRead);
    history.hint((0..20).rev());
    bed.append_all(&history, 0..20);
    history.start_prefetch();
    (0..20).rev().for_each(|version| _ = bed.check(&history, version));
    assert!(history.stats().failures[3] > 0, "{:?}", history.stats());
    assert!(bed.restore(&history, 5).is_err_and(|error| matches!(error, HistoryError::Gone { .. })));
}

#[test]
fn a_restore_whose_copy_fails_says_so_and_works_the_next_time() {
    let bed = Bed::new();
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..20);
    history.wait_flushed();
    let on_host = bed.version_in(&history, 0..20, Tier::Host);
    let on_device = bed.version_in(&history, 0..20, Tier::Device);
    for (version, call, fault) in [
        (on_host, Call::Upload(High), Fault::Fail),
        (on_host, Call::CopyBlocks(High), Fault::FailLater),
        (on_device, Call::CopyBlocks(High), Fault::Fail),
        (on_device, Call::CopyBlocks(High), Fault::FailLater),
        (on_device, Call::CopyBlocks(High), Fault::OutOfMemory),
    ] {
        bed.device.set(call, fault, 0, 1);
        let error = bed.restore(&history, version).expect_err("the device failed");
        assert!(matches!(error, HistoryError::Device(_)), "{call:?} {fault:?}: {error}");
        bed.check(&history, version);
    }
}

#[test]
fn an_append_whose_copy_fails_leaves_no_version() {
    let bed = Bed::new();
    let caches = bed.caches([4, 16, 0]);
    let history = ready(&caches, "wave", Keep::All);
    for fault in [Fault::Fail, Fault::FailLater, Fault::OutOfMemory] {
        bed.device.set(Call::CopyBlocks(High), fault, 0, 1);
        let error = bed.append(&history, 1).expect_err("the device failed");
        assert!(matches!(error, HistoryError::Device(_)), "{fault:?}: {error}");
        assert!(matches!(bed.restore(&history, 1), Err(HistoryError::Unknown { .. })), "{fault:?}");
    }
    bed.append_all(&history, 1..12);
    (1..12).for_each(|version| _ = bed.check(&history, version));
}

/// Nobody waits for the append's copy, so its failure becomes known only when the version is restored.
#[test]
fn an_enqueued_append_whose_copy_fails_is_unknown_afterwards() {
    logs::collect();
    let bed = Bed::new();
    let caches = bed.caches([4, 16, 0]);
    let history = ready(&caches, "wave", Keep::All);
    let span = bed.span(&bytes(71));
    bed.device.set(Call::CopyBlocks(High), Fault::FailLater, 0, 1);
    for version in [71, 72] {
        let fields = [Field::device::<u8>("p", &span)];
        history.append_and(version, &fields, &*bed.stream, Return::Enqueued).expect("enqueued");
    }
    assert!(matches!(bed.restore(&history, 71), Err(HistoryError::Unknown { version: 71, .. })));
    assert!(logs::has(&["event=append-failed", "version=71", "copy_blocks: a test said so"]));
    assert!(bed.restore(&history, 72).expect("the next one was copied") == bytes(71));
    bed.append(&history, 71).expect("its number is free");
    bed.check(&history, 71);
}

/// The copy from the GPU cache is wrong, or fails. The application hears of it once, later, and gets the right bytes
/// when it restores again.
#[test]
fn an_enqueued_restore_that_went_wrong_is_told_by_the_next_call() {
    logs::collect();
    for (round, (is_damage, waits)) in
        [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
    {
        let bed = Bed::new();
        let caches = bed.caches([4, 32, 0]);
        let name = format!("late-{round}");
        let history = ready(&caches, &name, Keep::All);
        bed.append_all(&history, 0..20);
        history.wait_flushed();
        let version = bed.version_in(&history, 0..20, Tier::Device);
        let span = bed.span(&bytes(0));
        let restore = |version| {
            let fields = &mut [FieldMut::device::<u8>("p", &span)];
            history.restore_and(version, fields, &*bed.stream, Return::Enqueued)
        };
        match is_damage {
            true => assert_eq!(bed.device.damage(&bytes(version)), 1),
            false => bed.device.set(Call::CopyBlocks(High), Fault::FailLater, 0, 1),
        }
        restore(version).expect("enqueued");
        let error =
            if waits { history.settle().expect_err("wrong") } else { bed.restore(&history, 5).expect_err("wrong") };
        let reason =
            if is_damage { "device tier, field \"p\", block 0: digest" } else { "copy_blocks: a test said so" };
        let place = format!("version {version} of history {name:?}");
        says(&error, &[&place, reason, "what was computed from it is wrong"]);
        history.settle().expect("told once");
        let tier = if is_damage { Tier::Host } else { Tier::Device };
        assert_eq!(bed.check(&history, version), tier);
        (0..20).for_each(|version| _ = bed.check(&history, version));
        // Nobody restores from now on.
        let version = bed.version_in(&history, 0..20, Tier::Device);
        bed.device.set(Call::CopyBlocks(High), Fault::FailLater, 0, 1);
        restore(version).expect("enqueued");
        drop(history);
        assert!(logs::has(&["event=restore-failed-unheard", &format!("version {version} of history {name:?}")]));
    }
}

#[test]
fn each_enqueued_restore_that_went_wrong_is_told_and_can_be_made_again() {
    let bed = Bed::new();
    let caches = bed.caches([16, 0, 0]);
    let history = ready(&caches, "late", Keep::UntilRead);
    bed.append_all(&history, 0..3);
    let span = bed.span(&bytes(0));
    bed.device.set(Call::CopyBlocks(High), Fault::FailLater, 0, 2);
    let restore = |version| {
        let fields = &mut [FieldMut::device::<u8>("p", &span)];
        history.restore_and(version, fields, &*bed.stream, Return::Enqueued)
    };
    // If a copy has already ended, the next restore reports its error and does nothing else.
    let mut told: Vec<_> = (0..3).flat_map(|version| iter::from_fn(move || restore(version).err()).take(4)).collect();
    told.extend(iter::from_fn(|| history.settle().err()).take(4));
    assert_eq!(told.len(), 2, "the third was right: {told:?}");
    (0..2).for_each(|version| says(&told[version], &[&format!("version {version} of")]));
    assert!(matches!(bed.restore(&history, 2), Err(HistoryError::Gone { .. })));
    (0..2).for_each(|version| _ = bed.check(&history, version));
}

/// A restore that fails is not a read: neither of two hints is used up.
#[test]
fn an_enqueued_restore_that_went_wrong_leaves_its_hint() {
    let bed = Bed::new();
    let caches = bed.caches([16, 0, 0]);
    let history = ready(&caches, "hinted", Keep::UntilRead);
    bed.append_all(&history, 0..1);
    history.hint([0, 0]);
    let span = bed.span(&bytes(0));
    bed.device.set(Call::CopyBlocks(High), Fault::FailLater, 0, 1);
    let fields = &mut [FieldMut::device::<u8>("p", &span)];
    history.restore_and(0, fields, &*bed.stream, Return::Enqueued).expect("enqueued");
    says(&history.settle().expect_err("wrong"), &["version 0 of"]);
    (0..2).for_each(|_| _ = bed.check(&history, 0));
    assert!(matches!(bed.restore(&history, 0), Err(HistoryError::Gone { .. })));
}

/// A copy after a long kernel on one stream does not hide that the copies on another stream have ended: those are flushed.
#[test]
fn a_copy_behind_a_long_kernel_hides_no_copy_of_another_stream() {
    let bed = Bed::new();
    let caches = bed.caches([16, 32, 0]);
    let history = ready(&caches, "streams", Keep::All);
    let other = bed.device.stream(High).expect("a stream");
    let span = bed.span(&bytes(1));
    let append = |version, stream: &dyn Stream| {
        let fields = [Field::device::<u8>("p", &span)];
        history.append_and(version, &fields, stream, Return::Enqueued).expect("enqueued");
    };
    bed.device.set(Call::CopyBlocks(High), Fault::Hold, 0, 1);
    let release = bed.device.release_at_end();
    append(1, &*bed.stream);
    append(2, &*other);
    other.finish().expect("the second copy has ended");
    append(3, &*other);
    wait_until("the second version is flushed", || history.stats().moved_bytes[0] >= BYTES as u64);
    drop(release);
    (1..=3).for_each(|version| assert!(bed.restore(&history, version).expect("there") == bytes(1)));
}

/// Versions under enqueued restores are about to leave the GPU cache: an append waits for their room, and does not go past the cache.
#[test]
fn an_append_waits_for_the_room_of_versions_that_are_being_restored() {
    let bed = Bed::new();
    // There is room for one version on the device.
    let caches = bed.caches([2, 32, 0]);
    let history = ready(&caches, "full", Keep::UntilRead);
    bed.append_all(&history, 0..1);
    bed.device.set(Call::CopyBlocks(High), Fault::Hold, 0, 1);
    let release = bed.device.release_at_end();
    let target = bed.span(&bytes(9));
    let fields = &mut [FieldMut::device::<u8>("p", &target)];
    history.restore_and(0, fields, &*bed.stream, Return::Enqueued).expect("enqueued");
    std::thread::scope(|scope| {
        let append = scope.spawn(|| bed.append(&history, 1));
        wait_until("the append waits, or is over", || bed.device.is_waited_for() || append.is_finished());
        drop(release);
        append.join().expect("no panic").expect("room");
    });
    assert_eq!(history.take_steps().last().expect("a step").tier, Tier::Device);
    assert_eq!(bed.check(&history, 1), Tier::Device);
}

// The whole device.

#[test]
fn a_device_that_is_lost_takes_its_own_histories_along_and_no_others() {
    let other = Bed::new();
    for call in [Call::Download(Low), Call::CopyBlocks(High)] {
        let bed = Bed::new();
        let (caches, neighbours) = (bed.caches([4, 16, 16]), other.caches([4, 16, 0]));
        let (history, neighbour) = (ready(&caches, "wave", Keep::All), ready(&neighbours, "wave", Keep::All));
        let span = bed.span(&bytes(0));
        let append = |version| history.append(version, &[Field::device::<u8>("p", &span)], &*bed.stream);
        let restore = |version| history.restore(version, &mut [FieldMut::device::<u8>("p", &span)], &*bed.stream);
        bed.device.set(call, Fault::Lose, 6, 1);
        let begun = Instant::now();
        let refused = (0..100).find_map(|version| append(version).err());
        says(&refused.expect("the device is lost"), &["device 0 is lost", "a test pulled the plug"]);
        for version in [0, 3] {
            says(&restore(version).expect_err("lost"), &["device 0 is lost"]);
        }
        says(&append(100).expect_err("lost"), &["device 0 is lost"]);
        history.wait_flushed();
        drop(history);
        drop(caches);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        other.append_all(&neighbour, 0..10);
        (0..10).for_each(|version| _ = other.check(&neighbour, version));
    }
}

// Damage.

#[test]
fn a_version_that_is_damaged_on_the_device_comes_from_host_memory() {
    logs::collect();
    let bed = Bed::new();
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "device-damage", Keep::All);
    bed.append_all(&history, 0..20);
    history.wait_flushed();
    let version = bed.version_in(&history, 0..20, Tier::Device);
    assert_eq!(bed.device.damage(&bytes(version)), 1);
    assert_eq!(bed.check(&history, version), Tier::Host);
    assert!(logs::has(&["event=copy-given-up history=\"device-damage\"", "device tier, field \"p\", block 0: digest"]));
    (0..20).for_each(|version| _ = bed.check(&history, version));
}

#[test]
fn a_version_that_is_damaged_in_host_memory_comes_from_the_file() {
    let bed = Bed::new();
    let caches = bed.caches([4, 16, 64]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..40);
    history.wait_flushed();
    let version = bed.version_in(&history, 0..40, Tier::Host);
    assert!(bed.damage_host(version) > 0);
    assert_eq!(bed.check(&history, version), Tier::Store);
}

#[test]
fn a_version_whose_last_copy_is_damaged_is_lost_with_the_place_of_the_damage() {
    let bed = Bed::new();
    let caches = bed.caches([4, 16, 64]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..40);
    history.wait_flushed();
    let version = bed.version_in(&history, 0..40, Tier::Store);
    assert!(bed.damage_file(version) > 0);
    for _ in 0..2 {
        let error = bed.restore(&history, version).expect_err("nothing of it is left");
        assert!(matches!(error, HistoryError::Lost { .. }), "{error}");
        says(&error, &[&format!("version {version} of history \"wave\" is lost"), "local tier, field \"p\", block 0"]);
    }
    (0..40).filter(|other| *other != version).for_each(|version| _ = bed.check(&history, version));
}

/// The version is in all three tiers, and damaged in each.
#[test]
fn a_version_that_is_damaged_everywhere_is_lost() {
    let bed = Bed::new();
    let caches = bed.caches([4, 16, 64]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..2);
    history.wait_flushed();
    assert_eq!(bed.device.damage(&bytes(1)), 1);
    assert_eq!((bed.damage_host(1), bed.damage_file(1)), (1, 1));
    says(&bed.restore(&history, 1).expect_err("damaged"), &["version 1", "local tier, field \"p\", block 0: digest"]);
    assert_eq!(bed.check(&history, 0), Tier::Device);
}

#[test]
fn what_a_flush_has_damaged_is_never_handed_out() {
    let bed = Bed::new();
    bed.device.set(Call::Download(Low), Fault::Damage, 0, ALWAYS);
    let caches = bed.caches([8, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    bed.append_all(&history, 0..4);
    history.wait_flushed();
    assert_eq!(bed.device.hits(), 4);
    // As long as the good copy is there, nobody notices.
    assert_eq!(bed.check(&history, 0), Tier::Device);
    assert_eq!(caches.release_device_memory(u64::MAX), 8 * MIB);
    for version in 0..4 {
        let error = bed.restore(&history, version).expect_err("only the damaged copy is left");
        says(&error, &["is lost", "memory tier, field \"p\", block 2: digest"]);
    }
}

#[test]
fn what_a_prefetch_has_damaged_comes_from_host_memory() {
    let bed = Bed::new();
    bed.device.set(Call::Upload(Low), Fault::Damage, 0, ALWAYS);
    let caches = bed.caches([4, 32, 0]);
    let history = ready(&caches, "wave", Keep::All);
    history.hint((0..20).rev());
    bed.append_all(&history, 0..20);
    history.start_prefetch();
    for version in (0..20).rev() {
        wait_until("something is fetched ahead, or is as far as it gets", || {
            caches.stats().moved_bytes[3] > 0 || version > 16
        });
        bed.check(&history, version);
    }
    assert!(bed.device.hits() > 0);
}

#[test]
fn damage_on_the_way_to_or_from_the_application_is_told() {
    let bed = Bed::new();
    let caches = bed.caches([8, 0, 0]);
    let history = ready(&caches, "wave", Keep::All);
    let table = bytes(1);
    bed.device.set(Call::Upload(High), Fault::Damage, 0, 1);
    let error = history.append(1, &[Field::host("table", &table)], &*bed.stream).expect_err("damaged on the way");
    says(&error, &["device tier, field \"table\", block 2: digest"]);
    // Nobody waits for this version's copy, so the version is missing afterwards.
    bed.device.set(Call::Upload(High), Fault::Damage, 0, 1);
    let fields = [Field::host("table", &table)];
    history.append_and(1, &fields, &*bed.stream, Return::Enqueued).expect("enqueued");
    assert!(matches!(bed.restore(&history, 1), Err(HistoryError::Unknown { version: 1, .. })));
    history.append(1, &[Field::host("table", &table)], &*bed.stream).expect("room");
    let mut back = vec![0u8; BYTES];
    bed.device.set(Call::Download(High), Fault::Damage, 0, 1);
    let error = history.restore(1, &mut [FieldMut::host("table", &mut back)], &*bed.stream).expect_err("damaged");
    says(&error, &["version 1", "device tier, field \"table\", block 2: digest"]);
}
