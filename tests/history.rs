//! Histories on the host twin: appended versions come back, from any tier, in any order.
#![forbid(unsafe_code)]

#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::ids::{Generation, Incarnation};
use bivouac_core::base::rng;
use bivouac_core::cache::{Keep, Tier};
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{Device, DeviceSpan, Priority, Stream};
use bivouac_core::segment::{Segment, SegmentSpec};
use bivouac_core::transfer::history::{CacheConfig, Caches, Field, FieldMut, History, HistoryError, Operation, Return};
use limit::wait_until;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// A twin, a segment and a directory for the file.
struct Bed {
    device: Arc<HostDevice>,
    stream: Arc<dyn Stream>,
    segment: Arc<Segment>,
    directory: tempfile::TempDir,
}

impl Bed {
    fn new(model: HostModel) -> Bed {
        let device = Arc::new(HostDevice::new(HostModel { memory_bytes: 2 << 30, ..model }));
        let incarnation: Incarnation = rng::incarnation().expect("random");
        let spec = SegmentSpec {
            directory: "/dev/shm".into(),
            name: format!("bivouac-test-history-{incarnation}"),
            job: 1,
            group: 1,
            generation: Generation(1),
            incarnation,
            store: 0,
            budget: 256 * MIB,
            node_ranks: 1,
            group_size: 1,
        };
        let segment = Arc::new(Segment::create(&spec).expect("segment"));
        let stream = device.stream(Priority::High).expect("stream");
        Bed { device, stream, segment, directory: tempfile::tempdir().expect("directory") }
    }

    /// Caches of this many MiB on the device, on the host and in the file.
    fn caches(&self, mib: [u64; 3], change: impl FnOnce(&mut CacheConfig)) -> Caches {
        let mut config = CacheConfig {
            device_bytes: mib[0] * MIB,
            host_bytes: mib[1] * MIB,
            store_bytes: mib[2] * MIB,
            store_directory: Some(self.directory.path().to_owned()),
            line_bytes: 8 * MIB,
            room: Duration::from_secs(20),
            trace: true,
            ..CacheConfig::default()
        };
        change(&mut config);
        Caches::open(self.device.clone(), Some(self.segment.clone()), config).expect("caches")
    }

    fn span(&self, bytes: u64) -> DeviceSpan {
        self.device.allocate(bytes).expect("room")
    }

    fn append(&self, history: &History, version: u64, bytes: u64) -> Result<(), HistoryError> {
        let span = self.span(bytes);
        self.stream.upload(&[(&content(version, bytes), span.clone())], None).expect("upload");
        history.append(version, &[Field::device::<u8>("p", &span)], &*self.stream)
    }

    fn check(&self, history: &History, version: u64, bytes: u64) {
        self.check_and(history, version, bytes, Return::Done);
    }

    fn check_and(&self, history: &History, version: u64, bytes: u64, until: Return) {
        let span = self.span(bytes);
        let restored = history.restore_and(version, &mut [FieldMut::device::<u8>("p", &span)], &*self.stream, until);
        restored.unwrap_or_else(|error| panic!("version {version}: {error}"));
        let mut back = vec![0; bytes as usize];
        self.stream.download(&mut [(span, &mut back)], None).expect("download");
        assert!(back == content(version, bytes), "version {version}");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.segment.close(true).expect("close");
    }
}

fn content(version: u64, bytes: u64) -> Vec<u8> {
    let mut state = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(bytes as usize).collect()
}

/// The length of a version: early versions are small, late ones are large, and none has a round length.
fn size(version: u64) -> u64 {
    100 * KIB + version * 61 * KIB + version * 13
}

fn orders(count: u64) -> [(&'static str, Vec<u64>); 3] {
    let irregular = (0..count).map(|index| index * 17 % count).collect();
    [("sequential", (0..count).collect()), ("reverse", (0..count).rev().collect()), ("irregular", irregular)]
}

/// 40 versions with 70 MiB in total pass through 8 MiB of device memory and 24 MiB of host memory. A third of all combinations are tried,
/// which includes each pair of an order and a way to keep versions; with `BIVOUAC_TEST_EVERY=1` (`ci/test.sh whole`), all of them are.
#[test]
fn every_version_comes_back_in_every_order() {
    let count = 40;
    let is_whole = std::env::var("BIVOUAC_TEST_EVERY").is_ok_and(|every| every == "1");
    for (first, (name, order)) in orders(count).into_iter().enumerate() {
        for (second, hints) in ["none", "one", "all"].into_iter().enumerate() {
            for (third, keep) in [Keep::UntilRead, Keep::All].into_iter().enumerate() {
                if !is_whole && (first + second + third) % 3 != 0 {
                    continue;
                }
                let bed = Bed::new(HostModel::default());
                let caches = bed.caches([8, 24, 256], |_| {});
                let history = caches.history("wave", keep);
                if hints == "all" {
                    history.hint(order.iter().copied());
                }
                for version in 0..count {
                    bed.append(&history, version, size(version))
                        .unwrap_or_else(|error| panic!("{name} {hints} {keep:?}: {error}"));
                }
                history.start_prefetch();
                for version in &order {
                    if hints == "one" {
                        history.hint([*version]);
                    }
                    // Every other restore is only enqueued; the bytes are checked in the stream's order.
                    let until = if version % 2 == 0 { Return::Enqueued } else { Return::Done };
                    bed.check_and(&history, *version, size(*version), until);
                }
                let stats = history.stats();
                assert_eq!((stats.appends, stats.restores), (count, count));
                assert_eq!(stats.failures, [0; 4]);
                match keep {
                    Keep::UntilRead => {
                        let again = bed.span(size(3));
                        let error = history.restore(3, &mut [FieldMut::device::<u8>("p", &again)], &*bed.stream);
                        assert!(matches!(error, Err(HistoryError::Gone { version: 3, .. })), "{error:?}");
                    }
                    Keep::All => {
                        history.wait_flushed();
                        for version in [3, 39, 0] {
                            bed.check(&history, version, size(version));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_history_that_fits_the_gpu_cache_is_read_from_there() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([32, 32, 32], |_| {});
    let history = caches.history("wave", Keep::UntilRead);
    for version in 0..20 {
        bed.append(&history, version, MIB).expect("room");
    }
    history.hint((0..20).rev());
    history.start_prefetch();
    (0..20).rev().for_each(|version| bed.check(&history, version, MIB));
    assert_eq!(history.stats().hits, 20);
    let steps = history.take_steps();
    assert_eq!(steps.len(), 40);
    let restores: Vec<u64> =
        steps.iter().filter(|step| step.operation == Operation::Restore).map(|step| step.distance).collect();
    assert_eq!(restores, (1..=20).rev().collect::<Vec<u64>>(), "all that is hinted was there at each restore");
}

/// The versions have several fields, in host and device memory. Some fields are restored to the other kind of memory.
#[test]
fn fields_of_both_kinds_mix_in_a_version() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 16, 16], |_| {});
    let history = caches.history("mixed", Keep::All);
    let span = bed.span(3 * MIB + 8);
    let data = content(7, span.bytes());
    bed.stream.upload(&[(&data, span.clone())], None).expect("upload");
    let (step, table) = ([41u64], vec![1.5f64; 1000]);
    for version in 0..6 {
        let fields = [Field::host("step", &step), Field::device::<f64>("p", &span), Field::host("table", &table)];
        history.append(version, &fields, &*bed.stream).expect("room");
    }
    assert_eq!(
        history.fields(0).expect("there").iter().map(|field| field.bytes).collect::<Vec<_>>(),
        [8, 3 * MIB + 8, 8000]
    );
    history.wait_flushed();
    for version in 0..6 {
        let (mut step, mut p) = ([0u64], vec![0f64; data.len() / 8]);
        let table = bed.span(8000);
        let mut fields =
            [FieldMut::device::<f64>("table", &table), FieldMut::host("step", &mut step), FieldMut::host("p", &mut p)];
        history.restore(version, &mut fields, &*bed.stream).expect("there");
        assert!(step == [41] && bytemuck::cast_slice::<f64, u8>(&p) == data);
        let mut back = vec![0; 8000];
        bed.stream.download(&mut [(table, &mut back)], None).expect("download");
        assert!(bytemuck::cast_slice::<u8, f64>(&back).iter().all(|value| *value == 1.5));
    }
}

/// An empty field has no block of its own; its block number is also that of the next field.
#[test]
fn empty_fields_come_back_with_any_others_in_any_order_from_any_tier() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 16, 16], |_| {});
    let history = caches.history("mixed", Keep::All);
    let spans = [("none", 0), ("a", MIB), ("hole", 0), ("b", 2 * MIB + 8), ("end", 0)].map(|(name, bytes)| {
        let span = bed.span(bytes);
        bed.stream.upload(&[(&content(bytes, bytes), span.clone())], None).expect("upload");
        (name, span)
    });
    let fields: Vec<Field<'_>> = spans.iter().map(|(name, span)| Field::device::<u8>(name, span)).collect();
    history.append(1, &fields, &*bed.stream).expect("room");
    let choices = [&[3, 2][..], &[2, 3], &[1, 4], &[4], &[0], &[4, 3, 2, 1, 0], &[0, 1, 2, 3, 4]];
    for tier in [Tier::Device, Tier::Host] {
        if tier == Tier::Host {
            history.wait_flushed();
            assert!(caches.release_device_memory(u64::MAX) > 0);
        }
        for choice in choices {
            let targets: Vec<(usize, DeviceSpan)> =
                choice.iter().map(|index| (*index, bed.span(spans[*index].1.bytes()))).collect();
            let mut fields: Vec<FieldMut<'_>> =
                targets.iter().map(|(index, span)| FieldMut::device::<u8>(spans[*index].0, span)).collect();
            history.restore(1, &mut fields, &*bed.stream).unwrap_or_else(|error| panic!("{choice:?}: {error}"));
            assert_eq!(history.take_steps().last().map(|step| step.tier), Some(tier), "{choice:?}");
            for (index, span) in &targets {
                let mut back = vec![0; span.bytes() as usize];
                bed.stream.download(&mut [(span.clone(), &mut back)], None).expect("download");
                assert!(back == content(span.bytes(), span.bytes()), "{choice:?}: {index}");
            }
            let mut hosts: Vec<Vec<u8>> = targets.iter().map(|(_, span)| vec![0; span.bytes() as usize]).collect();
            let named = hosts.iter_mut().zip(choice);
            let mut fields: Vec<FieldMut<'_>> =
                named.map(|(host, index)| FieldMut::host(spans[*index].0, &mut host[..])).collect();
            history.restore(1, &mut fields, &*bed.stream).unwrap_or_else(|error| panic!("{choice:?}: {error}"));
            assert!(hosts.iter().all(|host| *host == content(host.len() as u64, host.len() as u64)), "{choice:?}");
        }
    }
}

/// A thread that waits for an enqueued append has removed it from the queue, but the append must still be flushed.
#[test]
fn waiting_for_flushes_counts_what_other_threads_wait_for() {
    let bed = Bed::new(HostModel { copy_bytes_per_s: Some(10e6), ..HostModel::default() });
    let caches = bed.caches([64, 64, 64], |_| {});
    let history = caches.history("wave", Keep::All);
    let (span, back) = (bed.span(4 * MIB), bed.span(4 * MIB));
    history.append_and(1, &[Field::device::<u8>("p", &span)], &*bed.stream, Return::Enqueued).expect("room");
    std::thread::scope(|scope| {
        scope.spawn(|| history.restore(1, &mut [FieldMut::device::<u8>("p", &back)], &*bed.stream).expect("there"));
        std::thread::sleep(Duration::from_millis(50));
        history.wait_flushed();
        assert!(caches.stats().moved_bytes[0] >= 4 * MIB, "{:?}", caches.stats());
    });
}

#[test]
fn mistakes_in_calls_are_told_and_change_nothing() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 8, 8], |_| {});
    let history = caches.history("wave", Keep::UntilRead);
    bed.append(&history, 1, MIB).expect("room");
    assert!(matches!(bed.append(&history, 1, MIB), Err(HistoryError::Exists { version: 1, .. })));
    let span = bed.span(MIB);
    let short = span.part(0, 8).expect("inside");
    let stream = &*bed.stream;
    let error = |fields: &mut [FieldMut<'_>]| history.restore(1, fields, stream).expect_err("a mistake").to_string();
    assert!(error(&mut [FieldMut::device::<u8>("q", &span)]).contains("no such field"));
    assert!(error(&mut [FieldMut::device::<u8>("p", &short)]).contains("1048576 bytes were appended"));
    assert!(error(&mut [FieldMut::device::<f64>("p", &span)]).contains("f64"));
    assert!(matches!(history.restore(2, &mut [], stream), Err(HistoryError::Unknown { version: 2, .. })));
    assert!(matches!(history.fields(2), Err(HistoryError::Unknown { .. })));
    // There is room for 24 MiB in total, and nothing is restored.
    let full = (2..).find_map(|version| bed.append(&history, version, 3 * MIB).err()).expect("it is finite");
    assert!(matches!(full, HistoryError::NoRoom { .. }), "{full}");
    assert!(matches!(bed.append(&history, 99, 100 * MIB), Err(HistoryError::NoRoom { .. })));
    bed.check(&history, 1, MIB);
}

/// The application's next work on the same stream overwrites the data of an append that was enqueued before.
#[test]
fn an_enqueued_append_is_ordered_with_the_stream() {
    let bed = Bed::new(HostModel { copy_bytes_per_s: Some(200e6), ..HostModel::default() });
    let caches = bed.caches([64, 64, 64], |_| {});
    let history = caches.history("wave", Keep::UntilRead);
    let (span, zeros) = (bed.span(4 * MIB), bed.span(4 * MIB));
    bed.stream.upload(&[(&content(5, 4 * MIB), span.clone())], None).expect("upload");
    let fields = [Field::device::<u8>("p", &span)];
    history.append_and(5, &fields, &*bed.stream, Return::Enqueued).expect("room");
    bed.stream.copy(&zeros, &span).expect("copy");
    bed.check(&history, 5, 4 * MIB);
}

/// The copies of a slow device are enqueued one after the other; nothing waits, and each version is dropped once it was read.
#[test]
fn enqueued_restores_are_ordered_with_the_stream_and_count_as_reads() {
    let bed = Bed::new(HostModel { copy_bytes_per_s: Some(40e6), ..HostModel::default() });
    let caches = bed.caches([64, 64, 64], |_| {});
    let history = caches.history("wave", Keep::UntilRead);
    let span = bed.span(4 * MIB);
    // There are three copies of 0.1 s each. If the machine was held up in the meantime, the test tries again.
    let enqueue = |versions: Range<u64>| {
        versions.clone().for_each(|version| bed.append(&history, version, 4 * MIB).expect("room"));
        let targets: Vec<_> = versions.clone().map(|_| bed.span(4 * MIB)).collect();
        let begun = Instant::now();
        for (version, target) in versions.clone().zip(&targets) {
            let fields = &mut [FieldMut::device::<u8>("p", &span)];
            history.restore_and(version, fields, &*bed.stream, Return::Enqueued).expect("there");
            bed.stream.copy(&span, target).expect("copy");
        }
        let is_quick = begun.elapsed() < Duration::from_millis(200);
        history.settle().expect("whole");
        is_quick.then_some((versions, targets))
    };
    let quick = (0..10).find_map(|round| enqueue(3 * round..3 * round + 3));
    let (versions, targets) = quick.expect("nothing waits");
    let read = versions.end;
    for (version, target) in versions.zip(targets) {
        let mut back = vec![0; 4 * MIB as usize];
        bed.stream.download(&mut [(target, &mut back)], None).expect("download");
        assert!(back == content(version, 4 * MIB), "version {version}");
        let again = history.restore_and(version, &mut [], &*bed.stream, Return::Enqueued);
        assert!(matches!(again, Err(HistoryError::Gone { .. })), "{again:?}");
    }
    assert_eq!((history.stats().restores, history.stats().hits), (read, read));
}

/// After an enqueued restore, an application may do everything that it may do after a restore: the number is free, hints refer to the next
/// version with that number, and the version that was read makes room.
#[test]
fn an_enqueued_restore_is_a_read_for_all_calls_after_it() {
    let bed = Bed::new(HostModel { copy_bytes_per_s: Some(40e6), ..HostModel::default() });
    let caches = bed.caches([8, 0, 0], |config| config.store_directory = None);
    let history = caches.history("wave", Keep::UntilRead);
    let other = bed.device.stream(Priority::High).expect("a stream");
    let contents: Vec<_> = (0..6)
        .map(|version| {
            let span = bed.span(4 * MIB);
            bed.stream.upload(&[(&content(version, 4 * MIB), span.clone())], None).expect("upload");
            span
        })
        .collect();
    // The append uses a stream of its own, so it waits for no copy.
    let append =
        |version: u64| history.append(version, &[Field::device::<u8>("p", &contents[version as usize])], &*other);
    let span = bed.span(4 * MIB);
    let enqueue = |version| {
        let fields = &mut [FieldMut::device::<u8>("p", &span)];
        history.restore_and(version, fields, &*bed.stream, Return::Enqueued).expect("there");
    };
    history.hint([1, 2]);
    (1..3).for_each(|version| append(version).expect("room"));
    history.start_prefetch();
    // The number is first used again while the copy runs, and then by a version that is hinted before the end of the copy is seen.
    enqueue(1);
    append(1).expect("the number and the room are free");
    enqueue(2);
    history.hint([1, 2, 2]);
    bed.stream.finish().expect("copied");
    append(2).expect("the number is free");
    bed.check(&history, 1, 4 * MIB);
    (0..2).for_each(|_| bed.check(&history, 2, 4 * MIB));
    // Another number is used, and the only room is that of the version that is being read.
    (3..5).for_each(|version| append(version).expect("room"));
    enqueue(3);
    append(5).expect("room");
    [4, 5].into_iter().for_each(|version| bed.check(&history, version, 4 * MIB));
}

#[test]
fn two_histories_share_the_caches_and_one_that_is_dropped_makes_room() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 16, 0], |config| config.store_directory = None);
    let first = caches.history("a", Keep::All);
    let second = caches.history("a", Keep::All);
    for version in 0..8 {
        bed.append(&first, version, MIB).expect("room");
        bed.append(&second, version, MIB + 4096).expect("room");
    }
    assert!((8..).find_map(|version| bed.append(&second, version, 2 * MIB).err()).is_some(), "memory is finite");
    drop(first);
    (50..55).for_each(|version| bed.append(&second, version, MIB).expect("room again"));
    (0..8).for_each(|version| bed.check(&second, version, MIB + 4096));
    (50..55).for_each(|version| bed.check(&second, version, MIB));
}

#[test]
fn device_memory_is_given_back_when_it_is_asked_for() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([1024 + 256, 128, 0], |config| config.store_directory = None);
    let history = caches.history("wave", Keep::All);
    for version in 0..20 {
        bed.append(&history, version, MIB).expect("room");
    }
    wait_until("all of host memory is there", || caches.host_bytes().0 >= 128 * MIB);
    let before = bed.device.free_memory().expect("figure");
    assert_eq!(caches.release_device_memory(1), 256 * MIB);
    assert_eq!(bed.device.free_memory().expect("figure"), before + 256 * MIB);
    assert_eq!(caches.release_device_memory(u64::MAX), 1024 * MIB, "all of it, once it is flushed");
    (0..20).for_each(|version| bed.check(&history, version, MIB));
    bed.append(&history, 20, MIB).expect("straight to host memory");
    bed.check(&history, 20, MIB);
    assert_eq!(history.take_steps().last().map(|step| step.tier), Some(Tier::Host));
}

/// Memory that is given back while the cache grows is not taken again, and leaves no hole.
#[test]
fn a_cache_that_gives_memory_back_grows_no_further() {
    for _ in 0..20 {
        let bed = Bed::new(HostModel::default());
        let free = || bed.device.free_memory().expect("figure");
        let all = free();
        let caches = bed.caches([1024 + 768, 16, 0], |config| config.store_directory = None);
        let given = caches.release_device_memory(1);
        let before = free();
        assert!(given > 0 && before >= all - (1024 + 512) * MIB, "{given}");
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(free(), before);
        assert_eq!(caches.release_device_memory(u64::MAX), all - before);
        assert_eq!(free(), all);
    }
}

#[test]
fn a_lost_device_is_an_error_and_nothing_hangs() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 8, 8], |_| {});
    let history = caches.history("wave", Keep::UntilRead);
    bed.append(&history, 1, MIB).expect("room");
    let span = bed.span(MIB);
    bed.device.lose("a test pulled the plug");
    let fields = [Field::device::<u8>("p", &span)];
    let error = history.append(2, &fields, &*bed.stream).expect_err("lost");
    assert!(error.to_string().contains("a test pulled the plug"), "{error}");
    assert!(history.restore(1, &mut [FieldMut::device::<u8>("p", &span)], &*bed.stream).is_err());
}

/// The error becomes known while the next transfer is announced. A thread must not wait for itself then.
#[test]
fn a_device_that_is_lost_during_a_restore_is_an_error_too() {
    let bed = Bed::new(HostModel { link_bytes_per_s: Some(4e5), ..HostModel::default() });
    let caches = bed.caches([8, 0, 0], |config| config.store_directory = None);
    let history = caches.history("wave", Keep::All);
    let span = bed.span(4 * MIB);
    history.append(1, &[Field::device::<u8>("p", &span)], &*bed.stream).expect("room");
    let mut back = vec![0u8; span.bytes() as usize];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            bed.device.lose("a test pulled the plug");
        });
        let error = history.restore(1, &mut [FieldMut::host("p", &mut back)], &*bed.stream).expect_err("lost");
        assert!(error.to_string().contains("a test pulled the plug"), "{error}");
    });
    assert!(history.fields(1).is_ok(), "the version was not held responsible");
}

#[test]
fn a_field_that_is_named_twice_is_refused() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 8, 8], |_| {});
    let history = caches.history("wave", Keep::All);
    let span = bed.span(4096);
    let twice = [Field::device::<u8>("p", &span), Field::device::<u8>("p", &span)];
    assert!(matches!(history.append(1, &twice, &*bed.stream), Err(HistoryError::Field { .. })));
    history.append(1, &twice[..1], &*bed.stream).expect("room");
    let mut targets = [FieldMut::device::<u8>("p", &span), FieldMut::device::<u8>("p", &span)];
    assert!(matches!(history.restore(1, &mut targets, &*bed.stream), Err(HistoryError::Field { .. })));
    history.restore(1, &mut targets[..1], &*bed.stream).expect("there");
}

#[test]
fn spans_of_another_device_are_refused() {
    let (bed, other) = (Bed::new(HostModel::default()), Bed::new(HostModel::default()));
    let caches = bed.caches([8, 8, 8], |_| {});
    let history = caches.history("wave", Keep::All);
    let foreign = other.span(4096);
    let error = history.append(1, &[Field::device::<u8>("p", &foreign)], &*bed.stream).expect_err("foreign");
    assert!(error.to_string().contains("another device"), "{error}");
    assert!(bed.device.free_memory().is_ok(), "the device is not lost");
}

/// A history may outlive its caches, but then holds no versions.
#[test]
fn a_history_without_its_caches_knows_no_version() {
    let bed = Bed::new(HostModel::default());
    let caches = bed.caches([8, 8, 8], |_| {});
    let history = caches.history("wave", Keep::All);
    bed.append(&history, 1, MIB).expect("room");
    drop(caches);
    let span = bed.span(MIB);
    assert!(history.restore(1, &mut [FieldMut::device::<u8>("p", &span)], &*bed.stream).is_err());
    assert!(bed.append(&history, 2, MIB).is_err());
}
