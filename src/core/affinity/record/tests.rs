//! Records as bytes: whole, small, and refused when they are damaged.

use super::*;
use crate::affinity::machine::tests::flat;
use crate::affinity::machine::{PciDevice, PciKind};
use crate::affinity::pages::{PAGE_BYTES, RUNS_MAX, Run};
use proptest::prelude::*;

/// A thread of the application.
pub(crate) fn thread(role: Role, order: u32, cpus: impl IntoIterator<Item = usize>) -> ThreadPlace {
    ThreadPlace { role, name: "heat2d".into(), order, cpus: cpus.into_iter().collect() }
}

/// A region whose pages are on these nodes, with this many in a row.
pub(crate) fn region(name: &str, runs: &[(u64, u32)]) -> (String, RegionPlace) {
    let runs = runs.iter().map(|(pages, node)| Run { pages: *pages, node: Some(*node) });
    let place = RegionPlace::Host { pages: PageMap::from_runs(64, runs), age_ms: 1500, is_whole: true };
    (name.to_owned(), place)
}

/// One rank of two on a machine with two packages and 128 CPUs, with a pinned thread on each CPU of its package.
fn ordinary() -> Record {
    let mut machine = flat(2, 1, 64);
    for gpu in 0..8u32 {
        let address = format!("0000:{:02x}:00.0", 0x17 + 0x12 * gpu);
        machine.devices.push(PciDevice { address, kind: PciKind::Gpu, nodes: vec![gpu / 4] });
    }
    let threads = (0..64).map(|at| thread(if at == 0 { Role::Main } else { Role::Other }, at as u32, [at]));
    let quarter = (1u64 << 30) / PAGE_BYTES / 4;
    let piecewise = |name| region(name, &[(quarter, 0), (quarter, 1), (quarter, 0), (quarter, 1)]);
    let mut regions: Vec<_> = ["u", "v", "p", "rho"].map(piecewise).into();
    regions.push(("images".into(), RegionPlace::Device("0000:17:00.0".into())));
    Record {
        given: machine.all_cpus(),
        machine,
        neighbours: vec![0, 1],
        threads: threads.collect(),
        policy: Policy { mode: 2, nodes: vec![0, 1] },
        regions,
    }
}

fn assert_round_trip(record: &Record) -> usize {
    let bytes = record.encode().expect("encodes");
    assert_eq!(&Record::decode(&bytes).expect("decodes"), record);
    bytes.len()
}

#[test]
fn records_come_back_as_they_were_and_are_small() {
    let bytes = assert_round_trip(&ordinary());
    println!("two packages, 128 CPUs, 8 GPUs, 64 threads, 4 regions placed piecewise: {bytes} bytes");
    assert!(bytes < 3000, "{bytes}");
    assert_round_trip(&Record::default());
    let pages = (1u64 << 30) / PAGE_BYTES;
    let interleaved: Vec<(u64, u32)> = (0..pages).map(|page| (1, page as u32 % 4)).collect();
    let mut record = ordinary();
    record.regions = vec![region("u", &interleaved)];
    let bytes = assert_round_trip(&record);
    println!("1 GiB interleaved page by page: {bytes} bytes");
    assert!(bytes < 2000 + 2 * pages as usize, "two bytes a page, a 2048th of the region: {bytes}");
}

#[test]
fn regions_that_do_not_fit_are_left_out_the_largest_first() {
    let mut record = ordinary();
    let short = |name: &str, count: u32| region(name, &(0..count).map(|page| (1, page % 4)).collect::<Vec<_>>());
    for at in 0..16 {
        record.regions.push(short(&format!("dealt {at}"), (RUNS_MAX - at as usize * 1000) as u32));
    }
    record.regions.push(("no device".into(), RegionPlace::Device("x".repeat(40))));
    record.encode().expect_err("too much, and damaged");
    let count = record.keep_what_fits();
    assert_roomy(&record);
    let names: Vec<&str> = record.regions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..5], ["u", "v", "p", "rho", "images"]);
    let last: Vec<String> = (16 - (names.len() - 5)..16).map(|at| format!("dealt {at}")).collect();
    assert!(count + names.len() == 22 && last.len() > 3 && names[5..] == last, "{names:?}");
    assert_eq!(record.keep_what_fits(), 0);
}

/// Asserts that it can be encoded, and that not much more could be.
fn assert_roomy(record: &Record) {
    let bytes = assert_round_trip(record);
    assert!(bytes > wire::BYTES_MAX / 2, "{bytes}");
}

#[test]
fn records_that_break_a_rule_are_refused_on_both_sides() {
    let bad: [fn(&mut Record); 9] = [
        |record| record.machine.cpus[3].node = 77,
        |record| _ = record.given.insert(CPUS_MAX),
        |record| _ = record.threads[0].cpus.insert(usize::MAX),
        |record| record.neighbours = vec![1, 1],
        |record| record.threads[0].name = "x".repeat(65),
        |record| record.policy.nodes = vec![u32::MAX],
        |record| record.policy.nodes = vec![0; 2000],
        |record| record.regions[0] = region("u", &[(u64::MAX / 2, 1)]),
        |record| record.regions[4].1 = RegionPlace::Device("x".repeat(40)),
    ];
    for (index, damage) in bad.iter().enumerate() {
        let mut record = ordinary();
        damage(&mut record);
        assert!(record.encode().is_err(), "damage {index}");
        // Somebody else may have written it nevertheless.
        if let Ok(bytes) = wire::encode(&record) {
            assert!(Record::decode(&bytes).is_err(), "damage {index}");
        }
    }
}

#[test]
fn absurd_sizes_are_refused_before_they_take_memory() {
    let mut record = ordinary();
    // Each of them takes a few bytes in the file.
    record.threads = (0..2000).map(|order| thread(Role::Other, order, 0..CPUS_MAX)).collect();
    assert!(Record::decode(&wire::encode(&record).expect("encodes")).is_err());
    record.threads = (0..=THREADS_MAX as u32).map(|order| thread(Role::Other, order, [])).collect();
    assert!(record.encode().is_err() && Record::decode(&wire::encode(&record).expect("encodes")).is_err());
    _ = record.threads.pop();
    assert_round_trip(&record);
    let mut record = ordinary();
    let runs = (0..=RUNS_MAX as u64).map(|at| Run { pages: 1, node: Some(at as u32 % 2) }).collect();
    let pages = PageMap { offset: 0, runs };
    record.regions = vec![("u".into(), RegionPlace::Host { pages, age_ms: 0, is_whole: true })];
    assert!(Record::decode(&wire::encode(&record).expect("encodes")).is_err());
    // Whatever the system has is written in such a way that it can be read.
    let mut record = ordinary();
    record.threads = (0..9000).map(|order| thread(Role::Other, order, 0..512)).collect();
    assert!(record.encode().is_err());
    assert_eq!(record.keep_what_fits(), 0);
    assert!(record.threads.len() > 8000);
    assert_round_trip(&record);
    let mut bytes = ordinary().encode().expect("encodes");
    bytes.resize(wire::BYTES_MAX + 1, 0);
    assert!(Record::decode(&bytes).is_err());
}

#[test]
fn other_versions_are_named() {
    let mut bytes = ordinary().encode().expect("encodes");
    bytes[0] = 2;
    assert!(matches!(Record::decode(&bytes), Err(FormatError::Version { found: 2, .. })));
    assert!(matches!(Record::decode(&bytes[..3]), Err(FormatError::Short { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_bytes_are_refused_or_make_a_sound_record(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = ordinary().encode().expect("encodes");
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.check(), Ok(()));
            prop_assert_eq!(Record::decode(&record.encode().expect("it was decoded")).expect("decodes"), record);
        }
    }

    #[test]
    fn any_threads_come_back(
        sets in proptest::collection::vec(proptest::collection::btree_set(0usize..300, 0..20), 1..20),
        given in proptest::collection::btree_set(0usize..300, 0..20),
    ) {
        let threads = sets.into_iter().enumerate();
        let role = |at: usize| [Role::Main, Role::Other, Role::Bivouac][at % 7 % 3];
        let threads = threads.map(|(at, cpus)| thread(role(at), at as u32, cpus)).collect();
        let record = Record { threads, given, ..Record::default() };
        prop_assert_eq!(Record::decode(&record.encode().expect("encodes")).expect("decodes"), record);
    }
}
