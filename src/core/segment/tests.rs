//! The segment within one process: several handles play the ranks of a node.
#![forbid(unsafe_code)]

use super::*;
use crate::base::ids::Level;
use crate::base::limit::wait_until;
use crate::base::rng::Rng;
use crate::base::units::{MIB, PAGE};
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

const INFO: SealInfo = SealInfo { operation: 7, version: 70, name: 0xabcd };

fn place() -> TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

fn spec(directory: &Path, budget: u64, node_ranks: u32) -> SegmentSpec {
    SegmentSpec {
        directory: directory.to_owned(),
        name: "segment-g000003".into(),
        job: 0x1111,
        group: 0x2222,
        generation: Generation(3),
        incarnation: Incarnation([9; 16]),
        store: 0,
        budget,
        node_ranks,
        group_size: 2 * node_ranks,
    }
}

fn reserve(segment: &Segment, bytes: u64) -> SlotMut {
    let slot = segment.reserve(bytes).expect("usable");
    slot.unwrap_or_else(|| panic!("room for {bytes}: {:?}", segment.refusal()))
}

fn sealed(segment: &Segment, bytes: u64, fill: u8) -> SlotId {
    let mut slot = reserve(segment, bytes);
    slot.as_mut_slice().fill(fill);
    slot.seal(INFO).expect("seal")
}

fn old(spec: &SegmentSpec) -> OldSegment {
    OldSegment::open(&spec.directory, &spec.name).expect("open")
}

/// What a rank that finds no room checks before it gives up on memory.
#[test]
fn a_rank_sees_whether_others_give_back_room_without_it() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 2);
    let one = Segment::create(&spec).expect("create");
    let two = Segment::attach(&spec, 1).expect("attach");
    let open = |segment: &Segment, operation| segment.others_give_back(operation).expect("query");
    assert!(!open(&one, 8));
    let slot = sealed(&two, 5000, 1);
    assert!(open(&one, 8), "operation 7 of the other rank ends by itself");
    assert!(!open(&one, 7), "the operation itself waits for the one who asks");
    assert!(!open(&two, 8), "one's own slots do not count");
    assert!(two.set_committed(slot, Level::Process).expect("ours"));
    assert!(!open(&one, 8), "what is committed stays");
    let slot = sealed(&two, 5000, 2);
    assert!(open(&one, 8));
    assert!(two.let_pass(slot).expect("ours") && two.set_committed(slot, Level::NodeReboot).expect("ours"));
    assert!(open(&one, 8), "it goes when it is written");
    let reader = two.sealed(slot).expect("sealed");
    assert!(two.retire(slot).expect("ours"));
    assert!(open(&one, 8) && two.is_still_read(), "it goes when it is read");
    drop(reader);
    assert!(!open(&one, 8) && !two.is_still_read());
    assert!(!two.let_pass(slot).expect("ours"), "it is gone");
    let _slot = sealed(&two, 5000, 3);
    drop(two);
    assert!(!open(&one, 8), "nobody is there to end it");
}

#[test]
fn a_sealed_shard_is_read_here_and_by_the_next_run() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 2);
    let one = Segment::create(&spec).expect("create");
    let two = Segment::attach(&spec, 1).expect("attach");
    let first = sealed(&one, 5000, 1);
    let second = sealed(&two, 3 * MIB + 1, 2);
    assert!(one.set_committed(first, Level::Process).expect("ours"));
    assert_eq!(&*one.sealed(first).expect("sealed"), &[1u8; 5000][..]);
    let previous = old(&spec);
    assert!(previous.is_alive().expect("query"));
    assert!(one.is_peer_alive(1).expect("query"));
    drop((one, two));
    assert!(!previous.is_alive().expect("query"), "dropping a handle ends its liveness and leaves the file");

    let previous = old(&spec);
    assert_eq!(previous.header().generation, Generation(3));
    assert_eq!(previous.header().group_size, 4);
    let [a, b] = previous.slots() else { panic!("two slots: {:?}", previous.slots()) };
    assert_eq!((a.node_rank, a.state, a.level, a.intact), (0, SlotState::Sealed, Level::Process, true));
    assert_eq!((a.operation, a.version, a.name, a.length), (7, 70, 0xabcd, 5000));
    assert_eq!((b.node_rank, b.level, b.intact), (1, Level::Captured, true));
    assert_eq!(previous.bytes(a).expect("bytes"), &[1u8; 5000][..]);
    assert!(previous.bytes(b).expect("bytes").iter().all(|byte| *byte == 2));
    assert_eq!(second.index, 0);
}

#[test]
fn a_retired_slot_is_not_reused_while_a_reader_holds_it() {
    let dir = place();
    let spec = spec(dir.path(), 2 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    let slot = sealed(&segment, 2 * MIB, 5);
    let reader = segment.sealed(slot).expect("sealed");
    assert!(segment.retire(slot).expect("ours"));
    assert!(!segment.retire(slot).expect("ours"), "only once");
    assert!(segment.sealed(slot).is_none());
    assert!(!segment.set_committed(slot, Level::System).expect("ours"));
    assert_eq!(old(&spec).slots()[0].state, SlotState::Retired);
    assert!(!old(&spec).slots()[0].intact);
    assert!(segment.reserve(4096).expect("usable").is_none());
    assert_eq!(segment.refusal(), Some(Refusal::Budget { bytes: 4096 }));
    let clone = reader.clone();
    std::thread::spawn(move || drop(reader)).join().expect("thread");
    assert!(segment.reserve(4096).expect("usable").is_none());
    assert!(clone.iter().all(|byte| *byte == 5));
    drop(clone);
    assert!(old(&spec).slots().is_empty());
    let again = sealed(&segment, 4096, 6);
    assert_ne!(again, slot, "a stale id names nothing");
    assert!(segment.sealed(slot).is_none());
}

#[test]
fn warm_slots_are_reused_without_new_pages() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), 32 * MIB, 2)).expect("create");
    for round in 0..10 {
        let slot = sealed(&segment, 5 * MIB, round);
        assert!(segment.retire(slot).expect("ours"));
    }
    assert_eq!(segment.populated_bytes(), 6 * MIB, "three extents of 2 MiB, once");
}

#[test]
fn extents_that_change_hands_are_not_populated_twice() {
    let dir = place();
    let spec = spec(dir.path(), 8 * MIB, 2);
    let (one, two) = (Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach"));
    let whole = sealed(&one, 8 * MIB, 1);
    assert!(two.reserve(1).expect("usable").is_none());
    assert!(one.retire(whole).expect("ours"));
    assert_eq!(two.room().expect("room"), 4 * MIB, "rank 0 keeps its home");
    sealed(&two, 4 * MIB, 2);
    assert_eq!((one.populated_bytes(), two.populated_bytes()), (8 * MIB, 0));
}

#[test]
fn prepared_memory_is_what_the_next_reserve_takes() {
    let dir = place();
    let segment = std::sync::Arc::new(Segment::create(&spec(dir.path(), 64 * MIB, 1)).expect("create"));
    let background = std::sync::Arc::clone(&segment);
    assert!(std::thread::spawn(move || background.prepare(20 * MIB)).join().expect("thread").expect("usable"));
    assert!(segment.prepare(20 * MIB).expect("usable"));
    let slot = reserve(&segment, 20 * MIB);
    assert_eq!((slot.len() as u64, segment.populated_bytes()), (20 * MIB, 20 * MIB));
    assert!(!segment.prepare(50 * MIB).expect("usable"));
    assert_eq!(segment.refusal(), Some(Refusal::Budget { bytes: 50 * MIB }));
}

#[test]
fn the_budget_bounds_the_slots_and_says_what_never_fits() {
    let dir = place();
    let spec = spec(dir.path(), 7 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    assert_eq!(segment.capacity(), 6 * MIB);
    assert_eq!(segment.room().expect("room"), 6 * MIB);
    let held = reserve(&segment, 4 * MIB);
    assert_eq!(segment.room().expect("room"), 2 * MIB);
    assert!(segment.reserve(2 * MIB + 1).expect("usable").is_none());
    drop(held);
    assert!(segment.reserve(6 * MIB).expect("usable").is_some());
    for bytes in [6 * MIB + 1, u64::MAX] {
        let error = segment.reserve(bytes).expect_err("too large");
        assert!(matches!(error, SegmentError::TooLarge { capacity, .. } if capacity == 6 * MIB), "{error}");
    }
}

#[test]
fn a_budget_below_one_extent_makes_a_segment_that_holds_nothing() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), MIB, 1)).expect("create");
    assert!(matches!(segment.reserve(1), Err(SegmentError::TooLarge { capacity: 0, .. })));
    assert!(segment.post(0, 1) && segment.read(0, 0) == Some(1), "votes work all the same");
}

#[test]
fn many_small_shards_share_extents_and_slots_run_out_first() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), 64 * MIB, 1)).expect("create");
    let slots: Vec<SlotId> = (0..SLOTS_PER_RANK).map(|n| sealed(&segment, u64::from(n) * 100, n as u8)).collect();
    assert_eq!(segment.populated_bytes(), EXTENT_MIN);
    assert!(segment.reserve(1).expect("usable").is_none());
    assert_eq!(segment.refusal(), Some(Refusal::Slots));
    for (n, slot) in slots.iter().enumerate() {
        let bytes = segment.sealed(*slot).expect("sealed");
        assert_eq!(bytes.len(), n * 100);
        assert!(bytes.iter().all(|byte| usize::from(*byte) == n));
        assert!(segment.retire(*slot).expect("ours"));
    }
    drop(reserve(&segment, EXTENT_MIN));
    assert_eq!(segment.populated_bytes(), EXTENT_MIN, "all pieces have been joined again");
}

#[test]
fn huge_pages_off_gives_the_same_memory() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), 8 * MIB, 1)).expect("create");
    segment.set_huge_pages(false);
    let slot = sealed(&segment, 5 * MIB, 3);
    assert!(segment.sealed(slot).expect("sealed").iter().all(|byte| *byte == 3));
}

#[test]
fn a_slot_dropped_unsealed_was_never_there() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    let mut slot = reserve(&segment, 1000);
    slot.as_mut_slice().fill(1);
    let during = old(&spec);
    assert_eq!((during.slots().len(), during.slots()[0].state), (1, SlotState::Writing));
    assert!(matches!(during.bytes(&during.slots()[0]), Err(SegmentError::Torn { .. })));
    drop(slot);
    assert!(old(&spec).slots().is_empty());
    assert_eq!(segment.room().expect("room"), 4 * MIB);
}

#[test]
fn readers_outlive_the_segment() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    let slot = sealed(&segment, 4096, 8);
    let reader = segment.sealed(slot).expect("sealed");
    segment.close(true).expect("close");
    assert!(!segment.is_linked());
    assert!(matches!(segment.reserve(1), Err(SegmentError::Closed)));
    drop(segment);
    assert!(reader.iter().all(|byte| *byte == 8));
    assert!(matches!(OldSegment::open(&spec.directory, &spec.name), Err(SegmentError::NotFound { .. })));
}

#[test]
fn punching_keeps_what_it_is_told_to_keep() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    for (bytes, fill) in [(3 * MIB, 1), (5000, 2), (4 * MIB, 3)] {
        sealed(&segment, bytes, fill);
    }
    segment.close(false).expect("close");
    drop(segment);
    let previous = old(&spec);
    let slots = previous.slots().to_vec();
    let freed = previous.punch_except(&slots[1..2]).expect("punch");
    assert!(freed >= 7 * MIB, "{freed}");
    for view in [&previous, &old(&spec)] {
        assert!(view.bytes(&slots[1]).expect("kept").iter().all(|byte| *byte == 2));
        assert!(matches!(view.bytes(&slots[0]), Err(SegmentError::Hole { index: 0, .. })));
        assert!(matches!(view.bytes(&slots[2]), Err(SegmentError::Hole { index: 2, .. })));
    }
    previous.punch_except(&[]).expect("punch");
    assert!(matches!(previous.bytes(&slots[1]), Err(SegmentError::Hole { .. })));
    previous.unlink().expect("unlink");
    previous.unlink().expect("a second time is harmless");
    assert_eq!(list(dir.path(), "").expect("list"), Vec::<String>::new());
}

#[test]
fn only_this_run_may_attach_and_each_rank_once() {
    let dir = place();
    let good = spec(dir.path(), 4 * MIB, 2);
    let error = Segment::attach(&good, 1).expect_err("not there");
    assert!(error.is_not_there() && matches!(error, SegmentError::NotFound { .. }));
    let segment = Segment::create(&good).expect("create");
    assert!(matches!(Segment::create(&good), Err(SegmentError::Exists { .. })));
    let others = [
        SegmentSpec { job: 0, ..good.clone() },
        SegmentSpec { group: 0, ..good.clone() },
        SegmentSpec { generation: Generation(4), ..good.clone() },
        SegmentSpec { incarnation: Incarnation([0; 16]), ..good.clone() },
        SegmentSpec { node_ranks: 3, ..good.clone() },
        SegmentSpec { group_size: 5, ..good.clone() },
    ];
    for other in others {
        let error = Segment::attach(&other, 1).expect_err("another run's");
        assert!(matches!(error, SegmentError::Mismatch { .. }), "{error}");
    }
    let budget = SegmentSpec { budget: 999, ..good.clone() };
    let peer = Segment::attach(&budget, 1).expect("the creator's budget counts");
    assert_eq!(peer.capacity(), 4 * MIB);
    assert!(matches!(Segment::attach(&good, 1), Err(SegmentError::RankTaken { node_rank: 1, .. })));
    assert!(matches!(Segment::attach(&good, 0), Err(SegmentError::RankTaken { node_rank: 0, .. })));
    assert!(matches!(Segment::attach(&good, 2), Err(SegmentError::Limit { .. })));
    sealed(&peer, 1, 1);
    drop(peer);
    assert!(!segment.is_peer_alive(1).expect("query"));
    assert!(matches!(Segment::attach(&good, 1), Err(SegmentError::Used { node_rank: 1, .. })));
}

#[test]
fn bad_specifications_are_refused() {
    let dir = place();
    let good = spec(dir.path(), 4 * MIB, 2);
    for name in ["", ".", "..", "a/b", "/etc/passwd", "nul\0", &"x".repeat(300)] {
        let bad = SegmentSpec { name: name.into(), ..good.clone() };
        assert!(matches!(Segment::create(&bad), Err(SegmentError::Name { .. })), "{name:?}");
        assert!(matches!(OldSegment::open(dir.path(), name), Err(SegmentError::Name { .. })), "{name:?}");
    }
    let limits = [
        SegmentSpec { node_ranks: 0, ..good.clone() },
        SegmentSpec { node_ranks: u32::MAX, group_size: u32::MAX, ..good.clone() },
        SegmentSpec { group_size: 1, ..good.clone() },
        SegmentSpec { budget: u64::MAX, ..good.clone() },
    ];
    for bad in limits {
        assert!(matches!(Segment::create(&bad), Err(SegmentError::Limit { .. })), "{bad:?}");
    }
    let nowhere = SegmentSpec { directory: "/no/such/place".into(), ..good };
    assert!(matches!(Segment::create(&nowhere), Err(SegmentError::Os { .. })));
    assert_eq!(list(dir.path(), "").expect("list"), Vec::<String>::new(), "no attempt left a file");
}

#[test]
fn of_two_creators_one_wins() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 2);
    for _ in 0..50 {
        let made = std::thread::scope(|scope| {
            let tries = [(), ()].map(|()| scope.spawn(|| Segment::create(&spec)));
            tries.map(|each| each.join().expect("thread"))
        });
        assert_eq!(made.iter().filter(|result| result.is_ok()).count(), 1);
        for result in &made {
            match result {
                Ok(winner) => assert!(winner.is_linked()),
                Err(error) => assert!(matches!(error, SegmentError::Exists { .. }), "{error}"),
            }
        }
        remove(dir.path(), &spec.name).expect("remove");
    }
}

#[test]
fn links_special_files_and_open_modes_are_refused() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 2);
    let path = dir.path().join(&spec.name);
    let refused = |what: &str| {
        for error in
            [Segment::attach(&spec, 1).expect_err(what), OldSegment::open(dir.path(), &spec.name).expect_err(what)]
        {
            assert!(matches!(error, SegmentError::NotOurs { .. }), "{what}: {error}");
        }
        assert!(matches!(Segment::create(&spec), Err(SegmentError::Exists { .. })), "{what}");
    };
    let target = SegmentSpec { name: "target".into(), ..spec.clone() };
    let segment = Segment::create(&target).expect("create");
    std::os::unix::fs::symlink(segment.path(), &path).expect("symlink");
    refused("symbolic link");
    assert!(matches!(remove(dir.path(), &spec.name), Err(SegmentError::NotOurs { .. })));
    assert_eq!(list(dir.path(), "").expect("list"), ["target"], "links are not listed");
    std::fs::remove_file(&path).expect("remove");

    std::fs::create_dir(&path).expect("mkdir");
    refused("directory");
    std::fs::remove_dir(&path).expect("rmdir");

    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("mkfifo");
    refused("pipe");
    std::fs::remove_file(&path).expect("remove");

    std::fs::rename(dir.path().join("target"), &path).expect("rename");
    assert!(!segment.is_linked(), "the name is gone");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    refused("open to others");
}

#[test]
fn another_users_segment_is_refused() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 2);
    let segment = Segment::create(&spec).expect("create");
    if std::os::unix::fs::chown(segment.path(), Some(65534), None).is_err() {
        eprintln!("SKIPPED: giving a file to another user needs root");
        return;
    }
    assert!(matches!(Segment::attach(&spec, 1), Err(SegmentError::NotOurs { .. })));
    assert!(matches!(OldSegment::open(dir.path(), &spec.name), Err(SegmentError::NotOurs { .. })));
    assert!(matches!(remove(dir.path(), &spec.name), Err(SegmentError::NotOurs { .. })));
    assert!(list(dir.path(), "segment").expect("list").is_empty());
}

/// Writes a file of this user with the right mode and any content.
fn plant(spec: &SegmentSpec, content: &[u8], len: u64) {
    let path = spec.directory.join(&spec.name);
    std::fs::write(&path, content).expect("write");
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(len)).expect("set_len");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

#[test]
fn garbage_and_truncated_files_are_refused() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 2);
    let segment = Segment::create(&spec).expect("create");
    sealed(&segment, 100, 1);
    let len = segment.header().file_len();
    let content = std::fs::read(segment.path()).expect("read");
    drop(segment);
    for cut in [1, 7, 8, 100, 127, 128, 4095, 4096, 8192, 2 * MIB, len - 1] {
        plant(&spec, &content[..cut.min(content.len() as u64) as usize], cut);
        for error in
            [OldSegment::open(dir.path(), &spec.name).expect_err("cut"), Segment::attach(&spec, 1).expect_err("cut")]
        {
            assert!(matches!(error, SegmentError::Damaged { .. }), "{cut}: {error}");
        }
    }
    for len in [0, 4096, len] {
        plant(&spec, &[], len);
        assert!(matches!(OldSegment::open(dir.path(), &spec.name), Err(SegmentError::Unfinished { .. })), "{len}");
        assert!(Segment::attach(&spec, 1).expect_err("unfinished").is_not_there());
    }
    let mut rng = Rng::new(11);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..rng.below(10_000) + 128).map(|_| rng.next_u64() as u8 | 1).collect();
        plant(&spec, &bytes, bytes.len() as u64);
        assert!(matches!(OldSegment::open(dir.path(), &spec.name), Err(SegmentError::Damaged { .. })));
    }
    remove(dir.path(), &spec.name).expect("remove");
    assert!(matches!(remove(dir.path(), &spec.name), Err(SegmentError::NotFound { .. })));
}

#[test]
fn a_damaged_entry_is_never_intact_and_never_out_of_bounds() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    let slot = sealed(&segment, 9000, 4);
    segment.set_committed(slot, Level::System).expect("ours");
    let at = segment.header().slot_offset(0, 0);
    drop(segment);
    let file = std::fs::File::options().read(true).write(true).open(dir.path().join(&spec.name)).expect("open");
    let mut good = [0u8; 64];
    file.read_exact_at(&mut good, at).expect("read");
    for bit in 0..64 * 8 {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        file.write_all_at(&bad, at).expect("write");
        let previous = old(&spec);
        match previous.slots() {
            [] => assert!(bit < 8, "only the state byte can say empty"),
            [slot] if bit / 64 == 6 => {
                assert_eq!(previous.bytes(slot).expect("bytes").len(), 9000);
                assert!(slot.level == Level::Captured || bit % 64 < 8, "a foreign level word counts for nothing");
            }
            [slot] => {
                assert!(!slot.intact, "bit {bit}");
                assert!(matches!(previous.bytes(slot), Err(SegmentError::Torn { .. })));
                let forged = OldSlot { intact: true, offset: u64::MAX - 5, length: 100, ..*slot };
                assert!(matches!(previous.bytes(&forged), Err(SegmentError::Torn { .. })));
            }
            more => panic!("{more:?}"),
        }
    }
    file.write_all_at(&good, at).expect("write");
    assert_eq!(old(&spec).slots()[0].level, Level::System);
}

#[test]
fn a_sparse_forgery_is_read_without_touching_its_holes() {
    let dir = place();
    let spec = spec(dir.path(), 64 * MIB, 1);
    let header = SegmentHeader::of(&spec);
    plant(&spec, &header.encode(), header.file_len());
    let path = dir.path().join(&spec.name);
    let mut entry = [0u8; 64];
    let words = layout::SlotWords { uses: 1, offset: header.data_offset(), length: MIB, ..Default::default() };
    for (at, word) in [(0, 1 << 8 | 2), (8, words.offset), (16, words.length), (56, words.check_word(0, 0))] {
        entry[at..at + 8].copy_from_slice(&u64::to_ne_bytes(word));
    }
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_all_at(&entry, header.slot_offset(0, 0)).expect("write");
    let previous = old(&spec);
    assert!(previous.slots()[0].intact);
    assert!(matches!(previous.bytes(&previous.slots()[0]), Err(SegmentError::Hole { .. })));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&path.metadata().expect("stat"));
    assert!(blocks * 512 < MIB, "{blocks}");
}

#[test]
fn closing_never_removes_another_file_of_the_same_name() {
    let dir = place();
    let spec = spec(dir.path(), 4 * MIB, 1);
    let first = Segment::create(&spec).expect("create");
    remove(dir.path(), &spec.name).expect("remove");
    assert!(!first.is_linked());
    let second = Segment::create(&spec).expect("create");
    assert!(second.is_linked() && !first.is_linked());
    first.close(true).expect("close");
    first.close(true).expect("twice");
    assert!(second.is_linked());
    second.close(true).expect("close");
    assert!(list(dir.path(), "").expect("list").is_empty());
    assert!(list(Path::new("/no/such/place"), "").expect("none").is_empty());
}

#[test]
fn ranks_and_threads_under_a_tight_budget_never_share_a_byte() {
    let dir = place();
    let spec = spec(dir.path(), 12 * MIB, 2);
    let (one, two) = (Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach"));
    // The kernel makes huge pages with the help of all CPUs, which takes minutes on a loaded machine.
    one.set_huge_pages(false);
    two.set_huge_pages(false);
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let segment = if worker % 2 == 0 { &one } else { &two };
            scope.spawn(move || {
                let mut rng = Rng::new(worker);
                let mut kept: Vec<(SlotId, u8, usize)> = Vec::new();
                for _ in 0..150 {
                    let bytes = if rng.chance(1, 2) { rng.below(3 * PAGE) } else { rng.below(5 * MIB) };
                    let fill = rng.next_u64() as u8;
                    if rng.chance(1, 8) {
                        segment.prepare(bytes).expect("usable");
                    }
                    if let Some(mut slot) = segment.reserve(bytes).expect("usable") {
                        slot.as_mut_slice().fill(fill);
                        kept.push((slot.seal(INFO).expect("seal"), fill, bytes as usize));
                    }
                    while kept.len() > 2 || (rng.chance(1, 2) && !kept.is_empty()) {
                        let (slot, fill, len) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
                        let reader = segment.sealed(slot).expect("sealed");
                        assert!(segment.retire(slot).expect("ours"));
                        assert!(reader.len() == len && reader.iter().all(|byte| *byte == fill), "{reader:?}");
                    }
                }
                for (slot, ..) in kept {
                    assert!(segment.retire(slot).expect("ours"));
                }
            });
        }
    });
    assert!(old(&spec).slots().is_empty());
    drop(two);
    assert!(one.populated_bytes() <= 12 * MIB);
    let used = std::os::unix::fs::MetadataExt::blocks(&one.path().metadata().expect("stat")) * 512;
    assert!(used <= 12 * MIB + one.header().control_len(), "{used}");
}

#[test]
fn a_file_is_held_while_a_process_has_a_place_in_it_whatever_is_in_it() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 2);
    let segment = Segment::create(&spec).expect("create");
    let path = segment.path().to_owned();
    assert!(is_held(dir.path(), &spec.name).expect("ours"));
    File::options().write(true).open(&path).expect("open").write_all_at(&[0xff; 128], 0).expect("write");
    assert!(matches!(OldSegment::open(dir.path(), &spec.name), Err(SegmentError::Damaged { .. })));
    assert!(is_held(dir.path(), &spec.name).expect("ours"));
    drop(segment);
    // A process that another test is just starting shares our openings until it calls exec.
    wait_until("the place is free", || !is_held(dir.path(), &spec.name).expect("ours"));
    assert!(matches!(is_held(dir.path(), "none"), Err(SegmentError::NotFound { .. })));
}

fn leased(segment: &Segment, bytes: u64) -> Lease {
    let lease = segment.lease(bytes).expect("usable");
    lease.unwrap_or_else(|| panic!("room for {bytes}: {:?}", segment.refusal()))
}

#[test]
fn a_lease_counts_in_the_budget_and_what_it_leaves_others_may_take() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 2);
    let (one, two) = (Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach"));
    let lease = leased(&one, 12 * MIB);
    assert_eq!((lease.len(), lease.offset() % PAGE, one.populated_bytes()), (12 * MIB, 0, 12 * MIB));
    assert_eq!(two.room().expect("room"), 4 * MIB);
    assert!(two.lease(4 * MIB + 1).expect("usable").is_none());
    assert_eq!(two.refusal(), Some(Refusal::Budget { bytes: 4 * MIB + 1 }));
    let slot = reserve(&two, 4 * MIB);
    assert!(one.lease(1).expect("usable").is_none(), "slots and leases share one budget");
    drop(slot);
    drop(lease);
    assert_eq!(two.room().expect("room"), 8 * MIB, "rank 0 keeps its home");
    assert_eq!(leased(&two, 8 * MIB).len(), 8 * MIB);
    assert_eq!(one.populated_bytes() + two.populated_bytes(), 16 * MIB, "each page once");
    assert!(matches!(one.lease(16 * MIB + 1), Err(SegmentError::TooLarge { .. })));
    one.close(false).expect("close");
    assert!(matches!(one.lease(1), Err(SegmentError::Closed)));
}

#[test]
fn a_part_is_exclusive_and_keeps_the_lease() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), 8 * MIB, 1)).expect("create");
    let lease = segment.lease_in_background(3 * MIB).expect("usable").expect("room");
    let mut part = lease.lend(PAGE..3 * PAGE).expect("free");
    part.fill(7);
    assert_eq!((part.len() as u64, part.start(), part.offset()), (2 * PAGE, PAGE, lease.offset() + PAGE));
    for refused in
        [0..PAGE + 1, 2 * PAGE..2 * PAGE + 1, 3 * PAGE - 1..MIB, 5..5, 0..3 * MIB + 1, u64::MAX - 1..u64::MAX]
    {
        assert!(lease.lend(refused.clone()).is_none() && lease.view(refused.clone()).is_none(), "{refused:?}");
    }
    let neighbour = lease.lend(3 * PAGE..3 * MIB).expect("free");
    drop(lease);
    assert_eq!(segment.room().expect("room"), 5 * MIB, "parts keep the lease");
    assert!(part.iter().all(|byte| *byte == 7));
    drop((part, neighbour));
    assert_eq!(segment.room().expect("room"), 8 * MIB);
    drop(reserve(&segment, 8 * MIB));
}

#[test]
fn readers_share_a_range_and_a_writer_waits_for_the_last_of_them() {
    let dir = place();
    let segment = Segment::create(&spec(dir.path(), 8 * MIB, 1)).expect("create");
    let lease = leased(&segment, 10_000);
    let mut part = lease.lend(0..10_000).expect("free");
    part.fill(3);
    let upload = part.share();
    let write = lease.view(5000..10_000).expect("a second reader");
    assert_eq!((upload.len(), write.len(), write.start()), (10_000, 5000, 5000));
    std::thread::spawn(move || assert!(upload.iter().all(|byte| *byte == 3))).join().expect("thread");
    assert!(lease.lend(4999..5001).is_none() && lease.lend(9999..10_000).is_none());
    lease.lend(0..5000).expect("read no more").fill(4);
    drop(lease);
    assert!(write.iter().all(|byte| *byte == 3));
    drop(write);
    assert_eq!(segment.room().expect("room"), 8 * MIB);
}

#[test]
fn a_restart_sees_nothing_of_a_lease() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 1);
    let segment = Segment::create(&spec).expect("create");
    let lease = leased(&segment, 6 * MIB);
    lease.lend(0..6 * MIB).expect("free").fill(0xee);
    let kept = sealed(&segment, MIB, 1);
    segment.close(false).expect("close");
    let previous = old(&spec);
    assert_eq!((previous.slots().len(), previous.slots()[0].index), (1, kept.index));
    drop((lease, segment));
    assert!(previous.punch_except(previous.slots()).expect("punch") >= 6 * MIB, "nothing keeps its memory");
    assert!(previous.bytes(&previous.slots()[0]).expect("kept").iter().all(|byte| *byte == 1));
}

#[test]
fn only_what_a_rank_holds_has_an_address() {
    let dir = place();
    let spec = spec(dir.path(), 16 * MIB, 2);
    let (one, two) = (Segment::create(&spec).expect("create"), Segment::attach(&spec, 1).expect("attach"));
    let lease = leased(&one, 3 * MIB);
    let slot = reserve(&one, 2 * MIB);
    for (offset, bytes) in [(lease.offset(), lease.len()), (slot.offset(), 2 * MIB), (lease.offset() + 5, 1)] {
        let range = one.host_range(offset, bytes).expect("held");
        assert_eq!((range.bytes(), range.address() % PAGE as usize), (bytes, (offset % PAGE) as usize));
        assert!(two.host_range(offset, bytes).is_none(), "another rank's");
    }
    let part = lease.lend(PAGE..2 * PAGE).expect("free");
    let range = one.host_range(part.offset(), PAGE).expect("held");
    assert_eq!(range.address(), part.as_ptr().addr(), "the same bytes");
    let sealed = one.sealed(slot.seal(INFO).expect("seal")).expect("sealed");
    assert_eq!(one.host_range(sealed.offset(), PAGE).expect("held").address(), sealed.as_ptr().addr());
    for (offset, bytes) in [(5 * MIB, MIB), (lease.offset(), 0), (0, 0), (u64::MAX, 1), (0, u64::MAX), (16 * MIB, 1)] {
        assert!(one.host_range(offset, bytes).is_none(), "{offset} {bytes}");
    }
    let offset = lease.offset();
    drop((part, lease));
    assert!(one.host_range(offset, 1).is_none(), "prepared is not held");
    drop((one, sealed));
    assert!(range.keep.is::<map::Map>(), "the mapping outlives the segment");
}
