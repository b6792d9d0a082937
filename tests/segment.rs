//! The node segment across processes: the tests use real deaths, real forks, several processes at once, and a full tmpfs.
//!
//! A test that needs other processes starts this test program again for that test alone, with a role in the
//! environment; [`role`] returns the part that the process plays.

#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::ids::{Generation, Incarnation, Level};
use bivouac_core::base::rng::Rng;
use bivouac_core::base::units::{KIB, MIB};
use bivouac_core::segment::{
    OldSegment, Order, Refusal, SealInfo, Segment, SegmentError, SegmentSpec, SlotState, Token, TokenGuard, list,
};
use limit::{LIMIT, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROLE: &str = "BIVOUAC_TEST_SEGMENT_ROLE";
const PLACE: &str = "BIVOUAC_TEST_SEGMENT_PLACE";
const BUDGET: u64 = 32 * MIB;
const INFO: SealInfo = SealInfo { operation: 1, version: 10, name: 5 };

/// The role of this process, and the directory in which it plays that role; `None` in the test itself.
fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PLACE)?.into()))
}

/// Starts this program again to play `role` in the test with this name.
fn start(test: &str, role: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts again")
}

/// Waits until the child prints `word` (the test harness prints other lines first).
fn wait_for(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let said = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(word)));
    assert!(said.is_some(), "the child ended without saying {word:?}");
}

/// Blocks until the parent closes this process's standard input, or dies.
fn wait_for_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
}

fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

fn spec(directory: &Path, budget: u64, node_ranks: u32) -> SegmentSpec {
    SegmentSpec {
        directory: directory.to_owned(),
        name: "node".into(),
        job: 1,
        group: 2,
        generation: Generation(3),
        incarnation: Incarnation([4; 16]),
        store: 0,
        budget,
        node_ranks,
        group_size: node_ranks,
    }
}

fn attach(spec: &SegmentSpec, node_rank: u32) -> Segment {
    let deadline = Instant::now() + LIMIT;
    loop {
        match Segment::attach(spec, node_rank) {
            Err(error) if error.is_not_there() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other.expect("attach"),
        }
    }
}

#[test]
fn kill_9_while_writing_leaves_the_sealed_slot_and_a_torn_one() {
    if let Some((_, place)) = role() {
        let segment = Segment::create(&spec(&place, BUDGET, 2)).expect("create");
        let mut slot = segment.reserve(3 * MIB).expect("usable").expect("room");
        slot.as_mut_slice().fill(0x5a);
        let slot = slot.seal(INFO).expect("seal");
        segment.set_committed(slot, Level::Process).expect("ours");
        let mut torn = segment.reserve(5 * MIB).expect("usable").expect("room");
        torn.as_mut_slice()[..1000].fill(0x66);
        println!("writing");
        wait_for_parent();
        unreachable!("the parent kills this process");
    }
    let place = place();
    let mut child = start("kill_9_while_writing_leaves_the_sealed_slot_and_a_torn_one", "victim", place.path());
    wait_for(&mut child, "writing");
    let old = OldSegment::open(place.path(), "node").expect("open");
    assert!(old.is_alive().expect("query"));
    assert!(matches!(Segment::attach(&spec(place.path(), BUDGET, 2), 0), Err(SegmentError::RankTaken { .. })));
    child.kill().expect("kill");
    child.wait().expect("wait");

    assert!(!old.is_alive().expect("query"), "the lock died with the process");
    let old = OldSegment::open(place.path(), "node").expect("the file outlives the process");
    let [sealed, torn] = old.slots() else { panic!("two slots: {:?}", old.slots()) };
    assert_eq!((sealed.state, sealed.intact, sealed.level), (SlotState::Sealed, true, Level::Process));
    assert!(old.bytes(sealed).expect("bytes").iter().all(|byte| *byte == 0x5a));
    assert_eq!((torn.state, torn.intact, torn.length), (SlotState::Writing, false, 5 * MIB));
    assert!(matches!(old.bytes(torn), Err(SegmentError::Torn { .. })));
}

#[test]
fn processes_share_a_tight_budget_and_vote() {
    const RANKS: u32 = 3;
    const ROUNDS: u64 = 100;
    if let Some((role, place)) = role() {
        let node_rank: u32 = role.parse().expect("a rank");
        let segment = attach(&spec(&place, 0, RANKS), node_rank);
        let mut rng = Rng::new(u64::from(node_rank));
        let mut previous = None;
        for round in 0..ROUNDS {
            // A slot is kept for one round, so all ranks use slots at the same time.
            let bytes = if rng.chance(1, 2) { rng.below(10 * KIB) } else { rng.below(6 * MIB) };
            let fill = (round as u8).wrapping_mul(3).wrapping_add(node_rank as u8);
            let current = segment.reserve(bytes).expect("usable").map(|mut slot| {
                slot.as_mut_slice().fill(fill);
                (slot.seal(INFO).expect("seal"), fill)
            });
            assert!(segment.post(round, u64::from(current.is_some())));
            let before = segment.arrive(round).expect("less than 64 operations behind");
            if before == RANKS - 1 {
                let votes = (0..RANKS).map(|rank| segment.read(rank, round).expect("posted")).sum();
                assert!(segment.set_outcome(round, votes));
            }
            let deadline = Instant::now() + LIMIT;
            while segment.outcome(round).is_none() {
                assert!(Instant::now() < deadline, "no outcome of round {round}");
                std::thread::yield_now();
            }
            if let Some((slot, fill)) = previous {
                let reader = segment.sealed(slot).expect("sealed");
                assert!(reader.iter().all(|byte| *byte == fill), "another rank wrote into our slot");
                assert!(segment.retire(slot).expect("ours"));
            }
            previous = current;
        }
        segment.close(false).expect("close");
        return;
    }
    let place = place();
    let spec = spec(place.path(), BUDGET, RANKS);
    // The children compete with the creation of the segment; rank 0 is this process.
    let mut children: Vec<Child> = (1..RANKS)
        .map(|rank| start("processes_share_a_tight_budget_and_vote", &rank.to_string(), place.path()))
        .collect();
    let segment = Segment::create(&spec).expect("create");
    for round in 0..ROUNDS {
        assert!(segment.post(round, 1));
        if segment.arrive(round).expect("in step") == RANKS - 1 {
            let votes = (0..RANKS).map(|rank| segment.read(rank, round).expect("posted")).sum();
            assert!(segment.set_outcome(round, votes));
        }
        let deadline = Instant::now() + LIMIT;
        let votes = loop {
            if let Some(votes) = segment.outcome(round) {
                break votes;
            }
            assert!(Instant::now() < deadline, "no outcome of round {round}");
            std::thread::yield_now();
        };
        assert!((1..=u64::from(RANKS)).contains(&votes));
    }
    for child in &mut children {
        assert!(child.wait().expect("wait").success());
    }
    assert!(!segment.is_peer_alive(1).expect("query"));
    segment.close(true).expect("close");
    assert!(list(place.path(), "").expect("list").is_empty());
}

#[test]
fn a_forked_child_changes_nothing() {
    if let Some((_, place)) = role() {
        let segment = Segment::create(&spec(&place, BUDGET, 1)).expect("create");
        let mut slot = segment.reserve(MIB).expect("usable").expect("room");
        slot.as_mut_slice().fill(1);
        let sealed = slot.seal(INFO).expect("seal");
        let writing = segment.reserve(MIB).expect("usable").expect("room");
        let token = take(&segment, Token::Pinning).expect("free");
        let lease = segment.lease(MIB).expect("usable").expect("room");
        // SAFETY: the child only drops values, asks for errors, and leaves by `_exit`; glibc keeps malloc usable after
        // a fork, and this process's other threads are idle.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = [
                matches!(segment.reserve(1), Err(SegmentError::Forked)),
                matches!(segment.prepare(1), Err(SegmentError::Forked)),
                matches!(segment.retire(sealed), Err(SegmentError::Forked)),
                matches!(segment.close(true), Err(SegmentError::Forked)),
                matches!(writing.seal(INFO), Err(SegmentError::Forked)),
                matches!(segment.lease(1), Err(SegmentError::Forked)),
                matches!(segment.try_take(Token::Link(0), 1, Order::FirstCome), Err(SegmentError::Forked)),
                lease.lend(0..1).is_none() && lease.view(0..1).is_none(),
                segment.host_range(lease.offset(), 1).is_none(),
            ];
            drop((token, lease));
            drop(segment);
            let failed = refused.iter().filter(|refused| !**refused).count();
            // SAFETY: ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(failed as i32) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made; `status` lives through the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child counts what was not refused");
        assert!(segment.is_linked());
        let old = OldSegment::open(&place, "node").expect("open");
        assert!(old.is_alive().expect("query"), "the child did not end our liveness");
        let states: Vec<SlotState> = old.slots().iter().map(|slot| slot.state).collect();
        assert_eq!(states, [SlotState::Sealed, SlotState::Writing]);
        writing.seal(INFO).expect("seal");
        assert!(segment.retire(sealed).expect("ours"));
        assert!(take(&segment, Token::Pinning).is_none(), "the child did not give our token back");
        drop(token);
        assert!(take(&segment, Token::Pinning).is_some());
        assert!(lease.lend(0..MIB).is_some_and(|part| part.len() as u64 == MIB));
        println!("done");
        return;
    }
    let place = place();
    let mut child = start("a_forked_child_changes_nothing", "parent", place.path());
    wait_for(&mut child, "done");
    assert!(child.wait().expect("wait").success());
}

fn take(segment: &Segment, token: Token) -> Option<TokenGuard> {
    segment.try_take(token, 1, Order::FirstCome).expect("usable")
}

#[test]
fn a_token_of_a_killed_process_is_taken_over_by_one_waiter() {
    const RANKS: u32 = 4;
    const LINK: Token = Token::Link(2);
    if let Some((_, place)) = role() {
        let segment = attach(&spec(&place, 0, RANKS), 3);
        let _token = take(&segment, LINK).expect("free");
        assert!(take(&segment, Token::Pinning).is_none(), "the parent holds it");
        println!("holding");
        wait_for_parent();
        unreachable!("the parent kills this process");
    }
    let place = place();
    let spec = spec(place.path(), BUDGET, RANKS);
    let segments = [Segment::create(&spec), Segment::attach(&spec, 1), Segment::attach(&spec, 2)];
    let segments = segments.map(|segment| segment.expect("a segment"));
    let pinning = take(&segments[0], Token::Pinning).expect("free");
    let mut child = start("a_token_of_a_killed_process_is_taken_over_by_one_waiter", "holder", place.path());
    wait_for(&mut child, "holding");
    for segment in &segments {
        assert!(take(segment, LINK).is_none(), "its holder lives");
    }
    assert!(take(&segments[1], Token::Pinning).is_none());
    drop(pinning);
    assert!(take(&segments[1], Token::Pinning).is_none(), "the child came first, and lives");
    child.kill().expect("kill");
    child.wait().expect("wait");

    assert!(take(&segments[1], Token::Pinning).is_some(), "nobody waits for the dead");
    let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for segment in &segments {
            scope.spawn(|| {
                let deadline = Instant::now() + LIMIT;
                for _ in 0..20 {
                    let token = loop {
                        assert!(Instant::now() < deadline, "the token was lost");
                        match take(segment, LINK) {
                            Some(token) => break token,
                            None => std::thread::sleep(Duration::from_micros(200)),
                        }
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two hold the token");
                    turns.fetch_add(1, Ordering::AcqRel);
                    inside.fetch_sub(1, Ordering::AcqRel);
                    drop(token);
                }
            });
        }
    });
    assert_eq!(turns.load(Ordering::Acquire), 60);
}

#[test]
fn the_lease_of_a_killed_process_is_not_there_for_the_next_run() {
    if let Some((_, place)) = role() {
        let segment = Segment::create(&spec(&place, BUDGET, 1)).expect("create");
        let lease = segment.lease(5 * MIB).expect("usable").expect("room");
        let mut part = lease.lend(0..5 * MIB).expect("free");
        part.fill(0x77);
        println!("leased");
        wait_for_parent();
        unreachable!("the parent kills this process");
    }
    let place = place();
    let mut child = start("the_lease_of_a_killed_process_is_not_there_for_the_next_run", "victim", place.path());
    wait_for(&mut child, "leased");
    child.kill().expect("kill");
    child.wait().expect("wait");
    let old = OldSegment::open(place.path(), "node").expect("open");
    assert!(old.slots().is_empty());
    assert!(old.punch_except(&[]).expect("punch") >= 5 * MIB);
}

/// A small tmpfs, which is unmounted when this is dropped.
struct SmallTmpfs(tempfile::TempDir);

impl SmallTmpfs {
    fn mount(size: &str) -> Option<SmallTmpfs> {
        let place = tempfile::tempdir().expect("a directory");
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "bivouac-test"])
            .arg(place.path())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("SKIPPED: mounting a small tmpfs needs root");
        }
        mounted.then(|| SmallTmpfs(place))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.path()).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("could not unmount {}", self.path().display());
        }
    }
}

#[test]
fn a_full_tmpfs_is_no_room_and_what_is_there_stays_good() {
    for huge in [true, false] {
        // Each round needs a fresh tmpfs: a process that another test is just starting keeps the last segment's pages until exec.
        let Some(tmpfs) = SmallTmpfs::mount("8m") else { return };
        let segment = Segment::create(&spec(tmpfs.path(), 64 * MIB, 1)).expect("create");
        segment.set_huge_pages(huge);
        let room = segment.room().expect("room");
        assert!((7 * MIB..8 * MIB).contains(&room), "{room}");
        let mut held = Vec::new();
        while let Some(mut slot) = segment.reserve(2 * MIB).expect("usable") {
            slot.as_mut_slice().fill(1);
            held.push(slot);
        }
        assert_eq!(held.len(), 3);
        assert!(matches!(segment.refusal(), Some(Refusal::Node { .. })), "{:?}", segment.refusal());
        assert!(segment.reserve(40 * MIB).expect("usable").is_none());
        // Memory that was already there can still be used.
        drop(held.pop());
        assert!(segment.reserve(2 * MIB).expect("usable").is_some());
    }
}

#[test]
fn a_tmpfs_filled_by_others_is_no_room_until_space_returns() {
    let Some(tmpfs) = SmallTmpfs::mount("8m") else { return };
    let segment = Segment::create(&spec(tmpfs.path(), 64 * MIB, 1)).expect("create");
    let other = tmpfs.path().join("other");
    assert!(std::fs::write(&other, vec![1u8; 8 * MIB as usize]).is_err(), "the tmpfs is full");
    assert_eq!(segment.room().expect("room"), 0);
    assert!(segment.reserve(1).expect("usable").is_none());
    assert!(segment.post(0, 1), "the tables have their pages");
    std::fs::remove_file(&other).expect("remove");
    // A process that another test is just starting may hold the file open until it has called exec.
    wait_until("there is room again", || segment.reserve(1).expect("usable").is_some());
}

#[test]
fn no_segment_is_made_where_not_even_its_tables_fit() {
    let Some(tmpfs) = SmallTmpfs::mount("16k") else { return };
    let error = Segment::create(&spec(tmpfs.path(), 64 * MIB, 4)).expect_err("16 KiB");
    assert!(matches!(&error, SegmentError::Os { call: "fallocate", source, .. } if source.raw_os_error() == Some(28)));
    assert!(list(tmpfs.path(), "").expect("list").is_empty(), "nothing is left behind");
}

#[test]
fn old_shards_are_read_on_a_full_tmpfs() {
    let Some(tmpfs) = SmallTmpfs::mount("8m") else { return };
    let segment = Segment::create(&spec(tmpfs.path(), 64 * MIB, 1)).expect("create");
    for fill in [1, 2] {
        let mut slot = segment.reserve(2 * MIB).expect("usable").expect("room");
        slot.as_mut_slice().fill(fill);
        slot.seal(INFO).expect("seal");
    }
    drop(segment);
    let old = OldSegment::open(tmpfs.path(), "node").expect("open");
    let slots = old.slots().to_vec();
    assert!(old.punch_except(&slots[..1]).expect("punch") >= 2 * MIB);
    // Every page is filled now, so that touching a hole through the map would cause SIGBUS.
    let full = std::fs::write(tmpfs.path().join("other"), vec![1u8; 8 * MIB as usize]);
    assert!(full.is_err());
    let old = OldSegment::open(tmpfs.path(), "node").expect("open");
    assert!(old.bytes(&slots[0]).expect("kept").iter().all(|byte| *byte == 1));
    assert!(matches!(old.bytes(&slots[1]), Err(SegmentError::Hole { .. })));
}
