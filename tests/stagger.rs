//! Staggering on the host twin: ranks take turns at flushing, a rate is kept, and neither can make a rank hang.
//!
//! The ranks of a node are two handles of one segment in this process. Each has its own device, which notes when a
//! flush may proceed. If a rank must die, it is this test program, started again.
#![forbid(unsafe_code)]

#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::Digest;
use bivouac_core::base::ids::{Generation, Incarnation};
use bivouac_core::cache::Keep;
use bivouac_core::config::{BurstOrder, FlushRate, StaggerConfig};
use bivouac_core::device::chunks::{ChunkTable, TableSize};
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{
    Carrier, Copied, Device, DeviceError, DeviceInfo, DeviceSpan, Gate, HostRange, Moment, Pinned, Priority,
    Reservation, RowCopy, Run, Sending, Staging, Stream, upload_and_digest,
};
use bivouac_core::segment::{Order, Segment, SegmentSpec, Token};
use bivouac_core::transfer::history::{CacheConfig, Caches, Field, History};
use limit::wait_until;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PLACE: &str = "BIVOUAC_TEST_STAGGER_PLACE";
/// Longer than any test may last: a test that waits this long has failed.
const FOREVER: Duration = Duration::from_secs(600);

/// The ranks that are flushing now, and the maximum number that were flushing at once.
#[derive(Debug, Default)]
struct Watch {
    flushing: Mutex<[usize; 2]>,
    most: AtomicUsize,
    /// While a test holds this lock, flushes that begin do not proceed.
    hold: Mutex<()>,
}

impl Watch {
    fn begin(&self, rank: usize) {
        let mut flushing = self.flushing.lock().expect("no panic");
        flushing[rank] += 1;
        self.most.fetch_max(flushing.iter().filter(|threads| **threads > 0).count(), Ordering::Relaxed);
        drop(flushing);
        drop(self.hold.lock().expect("no panic"));
    }

    fn end(&self, rank: usize) {
        self.flushing.lock().expect("no panic")[rank] -= 1;
    }
}

/// The twin of one rank, which notes its flushes.
#[derive(Debug)]
struct Watched {
    inner: Arc<HostDevice>,
    rank: usize,
    watch: Arc<Watch>,
}

#[derive(Debug)]
struct WatchedStream {
    inner: Arc<dyn Stream>,
    rank: usize,
    watch: Arc<Watch>,
}

impl Device for Watched {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.inner.free_memory()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceSpan, DeviceError> {
        self.inner.allocate(bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<Arc<dyn Reservation>, DeviceError> {
        self.inner.reserve(bytes)
    }

    fn stream(&self, priority: Priority) -> Result<Arc<dyn Stream>, DeviceError> {
        let inner = self.inner.stream(priority)?;
        Ok(Arc::new(WatchedStream { inner, rank: self.rank, watch: self.watch.clone() }))
    }

    fn chunk_table(&self, size: TableSize) -> Result<Box<dyn ChunkTable>, DeviceError> {
        self.inner.chunk_table(size)
    }

    fn make_ready(&self, bytes: u64) -> Result<(), DeviceError> {
        self.inner.make_ready(bytes)
    }

    fn pin(&self, memory: &HostRange) -> Result<Box<dyn Pinned>, DeviceError> {
        self.inner.pin(memory)
    }
}

impl Stream for WatchedStream {
    fn copy_blocks(&self, runs: Vec<Run>, block_bytes: u64) -> Result<Box<dyn Copied>, DeviceError> {
        self.inner.copy_blocks(runs, block_bytes)
    }

    fn copy(&self, from: &DeviceSpan, to: &DeviceSpan) -> Result<(), DeviceError> {
        self.inner.copy(from, to)
    }

    fn pack(&self, copies: &[RowCopy], to: &DeviceSpan) -> Result<(), DeviceError> {
        self.inner.pack(copies, to)
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging + '_>, DeviceError> {
        self.inner.staging(bytes)
    }

    /// A flush begins with its first piece, or, without a gate, with the call.
    fn download(&self, copies: &mut [(DeviceSpan, &mut [u8])], gate: Option<Gate<'_>>) -> Result<(), DeviceError> {
        let mut has_begun = false;
        let outcome = match gate {
            Some(gate) => {
                let mut watched = |bytes| {
                    gate(bytes);
                    if !std::mem::replace(&mut has_begun, true) {
                        self.watch.begin(self.rank);
                    }
                };
                self.inner.download(copies, Some(&mut watched))
            }
            None => {
                has_begun = true;
                self.watch.begin(self.rank);
                self.inner.download(copies, None)
            }
        };
        if has_begun {
            self.watch.end(self.rank);
        }
        outcome
    }

    fn upload(&self, copies: &[(&[u8], DeviceSpan)], gate: Option<Gate<'_>>) -> Result<(), DeviceError> {
        self.inner.upload(copies, gate)
    }

    fn upload_blocks(&self, copies: &[(&[u8], DeviceSpan)], block_bytes: u64) -> Result<Vec<Digest>, DeviceError> {
        upload_and_digest(self, copies, block_bytes)
    }

    fn send(&self, sendings: Vec<Sending>, block_bytes: u64, carrier: Carrier) -> Result<Box<dyn Copied>, DeviceError> {
        self.inner.send(sendings, block_bytes, carrier)
    }

    fn moment(&self) -> Result<Arc<dyn Moment>, DeviceError> {
        self.inner.moment()
    }

    fn wait_for(&self, moment: &dyn Moment) -> Result<(), DeviceError> {
        self.inner.wait_for(moment)
    }

    fn is_recording(&self) -> Result<bool, DeviceError> {
        self.inner.is_recording()
    }

    fn finish(&self) -> Result<(), DeviceError> {
        self.inner.finish()
    }
}

fn spec(directory: &Path) -> SegmentSpec {
    SegmentSpec {
        directory: directory.to_owned(),
        name: "node".into(),
        job: 1,
        group: 2,
        generation: Generation(3),
        incarnation: Incarnation([4; 16]),
        store: 0,
        budget: 512 * MIB,
        node_ranks: 2,
        group_size: 2,
    }
}

/// A node with two ranks.
struct Node {
    place: tempfile::TempDir,
    first: Arc<Segment>,
    watch: Arc<Watch>,
}

/// One of the ranks of a node.
struct Rank {
    history: History,
    caches: Caches,
    device: Arc<HostDevice>,
    stream: Arc<dyn Stream>,
}

impl Node {
    fn new() -> Node {
        let builder = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm");
        let place = builder.expect("a directory in /dev/shm");
        let first = Arc::new(Segment::create(&spec(place.path())).expect("create"));
        Node { place, first, watch: Arc::default() }
    }

    fn second(&self) -> Arc<Segment> {
        Arc::new(Segment::attach(&spec(self.place.path()), 1).expect("attach"))
    }

    /// A rank whose caches have all their memory: `mib` of device memory and 128 MiB of host memory.
    fn rank(&self, segment: &Arc<Segment>, mib: u64, link_bytes_per_s: f64, stagger: StaggerConfig) -> Rank {
        let model =
            HostModel { memory_bytes: 1 << 30, link_bytes_per_s: Some(link_bytes_per_s), ..HostModel::default() };
        let device = Arc::new(HostDevice::new(model));
        let rank = usize::from(!Arc::ptr_eq(segment, &self.first));
        let watched = Watched { inner: device.clone(), rank, watch: self.watch.clone() };
        let config = CacheConfig {
            device_bytes: mib * MIB,
            host_bytes: 128 * MIB,
            line_bytes: 32 * MIB,
            room: FOREVER,
            stagger,
            trace: true,
            ..CacheConfig::default()
        };
        let caches = Caches::open(Arc::new(watched), Some(segment.clone()), config).expect("caches");
        let history = caches.history("wave", Keep::All);
        wait_until("the caches are ready", || caches.is_ready());
        let stream = device.stream(Priority::High).expect("stream");
        Rank { history, caches, device, stream }
    }
}

impl Rank {
    fn append(&self, versions: std::ops::Range<u64>, bytes: u64) {
        let span = self.device.allocate(bytes).expect("room");
        for version in versions {
            self.history.append(version, &[Field::device::<u8>("p", &span)], &*self.stream).expect("room");
        }
    }

    /// Waits until this many bytes have been copied to the host, without a call that would hurry a flush.
    fn wait_for_flushed(&self, bytes: u64) {
        wait_until("it is flushed", || self.caches.stats().moved_bytes[0] >= bytes);
    }
}

fn turns(order: BurstOrder) -> StaggerConfig {
    StaggerConfig { bursts: Some(1), order, patience: FOREVER, ..StaggerConfig::default() }
}

/// Flushes eight versions of 4 MiB on both ranks; each flush takes a tenth of a second.
fn flush_on_both(stagger: StaggerConfig) -> (usize, Vec<Rank>) {
    let node = Node::new();
    let ranks = vec![node.rank(&node.first, 64, 40e6, stagger), node.rank(&node.second(), 64, 40e6, stagger)];
    // All versions are appended before the first is flushed, so that both ranks always have something to flush, however slow appending is.
    let hold = node.watch.hold.lock().expect("no panic");
    (0..8).for_each(|version| ranks.iter().for_each(|rank| rank.append(version..version + 1, 4 * MIB)));
    drop(hold);
    ranks.iter().for_each(|rank| rank.wait_for_flushed(32 * MIB));
    (node.watch.most.load(Ordering::Relaxed), ranks)
}

#[test]
fn with_one_burst_at_a_time_no_two_ranks_flush_at_once() {
    for order in [BurstOrder::ShortestFirst, BurstOrder::FirstCome, BurstOrder::RoundRobin] {
        let (most, ranks) = flush_on_both(turns(order));
        assert_eq!(most, 1, "{order:?}");
        let stats: Vec<_> = ranks.iter().map(|rank| rank.caches.stats()).collect();
        // Each rank had to wait for the other, because all flushes (more than a second and a half) went one after the other.
        assert!(stats.iter().map(|stats| stats.turn_seconds).sum::<f64>() > 0.1, "{order:?}: {stats:?}");
        assert!(
            stats.iter().all(|stats| stats.turns_given_up == 0 && stats.failures == [0; 4]),
            "{order:?}: {stats:?}"
        );
        let bursts = ranks[0].history.take_spans().into_iter().filter(|span| span.what == "burst").count();
        assert_eq!(bursts, 8, "{order:?}");
    }
}

#[test]
fn without_staggering_ranks_flush_at_once() {
    let (most, ranks) = flush_on_both(StaggerConfig::default());
    assert_eq!(most, 2);
    let stats = ranks[0].caches.stats();
    assert_eq!((stats.turn_seconds, stats.pace_seconds, stats.flush_rate), (0.0, 0.0, None));
}

#[test]
fn two_bursts_at_a_time_let_both_ranks_flush() {
    let (most, _ranks) = flush_on_both(StaggerConfig { bursts: Some(2), ..turns(BurstOrder::FirstCome) });
    assert_eq!(most, 2);
}

#[test]
fn a_version_larger_than_a_turn_goes_round_robin_and_comes_down_whole() {
    let node = Node::new();
    let ranks = [
        node.rank(&node.first, 160, 1e9, turns(BurstOrder::RoundRobin)),
        node.rank(&node.second(), 160, 1e9, turns(BurstOrder::RoundRobin)),
    ];
    ranks.iter().for_each(|rank| rank.append(0..1, 100 * MIB));
    ranks.iter().for_each(|rank| rank.wait_for_flushed(100 * MIB));
    assert!(ranks.iter().all(|rank| rank.caches.stats().turns_given_up == 0));
}

/// Holds the token until it is killed.
fn hold_token(place: &Path) -> ! {
    let segment = Segment::attach(&spec(place), 1).expect("attach");
    let _token = segment.try_take(Token::Link(0), MIB, Order::FirstCome).expect("usable").expect("free");
    println!("holding");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
    unreachable!("the parent kills this process");
}

#[test]
fn a_rank_that_dies_in_its_turn_holds_nobody_up() {
    if let Some(place) = std::env::var_os(PLACE) {
        hold_token(&PathBuf::from(place));
    }
    let node = Node::new();
    let rank = node.rank(&node.first, 64, 1e9, turns(BurstOrder::ShortestFirst));
    let mut holder = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "a_rank_that_dies_in_its_turn_holds_nobody_up", "--nocapture", "--test-threads=1"])
        .env(PLACE, node.place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts again");
    let mut lines = BufReader::new(holder.stdout.as_mut().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("holding"))));
    rank.append(0..2, MIB);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rank.caches.stats().moved_bytes[0], 0, "the holder lives");
    holder.kill().expect("kill");
    holder.wait().expect("wait");
    rank.wait_for_flushed(2 * MIB);
    assert_eq!(rank.caches.stats().turns_given_up, 0);
}

#[test]
fn who_waits_too_long_for_a_turn_goes_on_without() {
    let node = Node::new();
    let patience = Duration::from_millis(200);
    let rank = node.rank(&node.first, 64, 1e9, StaggerConfig { patience, ..turns(BurstOrder::FirstCome) });
    let second = node.second();
    let token = second.try_take(Token::Link(0), MIB, Order::FirstCome).expect("usable").expect("free");
    rank.append(0..4, MIB);
    rank.wait_for_flushed(4 * MIB);
    let stats = rank.caches.stats();
    assert!(stats.turns_given_up > 0 && stats.turn_seconds >= 0.2, "{stats:?}");
    drop(token);
    // The second rank's wish is gone, so nobody waits for it.
    let again = second.try_take(Token::Link(0), MIB, Order::FirstCome).expect("usable");
    assert!(again.is_some());
}

/// A process that hangs while it pins memory keeps its turn. The other processes pin without a turn.
#[test]
fn who_waits_too_long_for_its_turn_to_pin_goes_on_without() {
    let node = Node::new();
    let second = node.second();
    let _token = second.try_take(Token::Pinning, MIB, Order::RoundRobin).expect("usable").expect("free");
    let patience = Duration::from_millis(200);
    let begun = Instant::now();
    let rank = node.rank(&node.first, 64, 1e9, StaggerConfig { patience, ..StaggerConfig::default() });
    assert!(begun.elapsed() >= patience && rank.caches.host_bytes() == (128 * MIB, 128 * MIB));
}

#[test]
fn closing_the_caches_does_not_wait_for_a_turn() {
    let node = Node::new();
    let rank = node.rank(&node.first, 64, 1e9, turns(BurstOrder::ShortestFirst));
    let second = node.second();
    let _token = second.try_take(Token::Link(0), MIB, Order::FirstCome).expect("usable").expect("free");
    rank.append(0..4, MIB);
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    drop(rank);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

fn paced(bytes_per_s: u64) -> StaggerConfig {
    StaggerConfig { rate: FlushRate::Bytes(bytes_per_s), ..StaggerConfig::default() }
}

/// 16 MiB are flushed at once, and the rest at a rate that any machine exceeds.
#[test]
fn a_fixed_rate_is_kept() {
    let node = Node::new();
    let rank = node.rank(&node.first, 128, 1e9, paced(MIB));
    let begun = Instant::now();
    rank.append(0..1, 16 * MIB);
    rank.append(1..2, 5 * MIB);
    rank.wait_for_flushed(21 * MIB);
    assert!(begun.elapsed() >= Duration::from_millis(4500), "{:?}", begun.elapsed());
    let stats = rank.caches.stats();
    assert!(stats.pace_seconds > 0.5, "{stats:?}");
    assert_eq!(stats.flush_rate, Some(MIB));
}

#[test]
fn nothing_is_held_back_while_the_application_waits() {
    let node = Node::new();
    // At this rate, 100 MiB take a minute and a half, and the 16 MiB of the cache hold four versions.
    let rank = node.rank(&node.first, 16, 1e9, paced(MIB));
    let begun = Instant::now();
    rank.append(0..25, 4 * MIB);
    rank.history.wait_flushed();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(rank.caches.stats().moved_bytes[0], 100 * MIB);
}

/// The steps of the application take ten times as long while something is flushed.
#[test]
fn the_rate_falls_when_the_steps_suffer() {
    let node = Node::new();
    let stagger = StaggerConfig { rate: FlushRate::Auto, ..StaggerConfig::default() };
    let rank = node.rank(&node.first, 128, 5e6, stagger);
    let steps = |count, length| {
        for _ in 0..count {
            std::thread::sleep(Duration::from_millis(length));
            rank.caches.step();
        }
    };
    steps(12, 5);
    assert_eq!(rank.caches.stats().flush_rate, None);
    // These are a quarter of a minute of flushes.
    rank.append(0..140, MIB / 2);
    steps(30, 100);
    let stats = rank.caches.stats();
    assert!(stats.flush_rate.is_some(), "{stats:?}");
}
