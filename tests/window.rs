//! The memory that ranks hold while arrays are moved to another number of ranks: the arrays, and besides them no more than their windows.
//!
//! The allocator of this program counts. All ranks are threads of this program, so data that one rank has sent and another has not taken
//! yet is counted as well.

use bivouac_core::base::clock::SystemClock;
use bivouac_core::base::{Level, rng};
use bivouac_core::comm::threads;
use bivouac_core::config::Budget;
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::simulated::Simulated;
use bivouac_core::tier::storage::Storage;
use bivouac_core::{Boxes, Config, Session};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

// ------------------------------------------------------------------------------------------- the allocator

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with the number of bytes that are held, and the maximum so far.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract. The counters allocate nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc` (a layout of non-zero size), which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

// ------------------------------------------------------------------------------------------- the ranks

/// The rows and columns of the array, which has 128 MiB.
const SHAPE: [u64; 2] = [8192, 2048];
const RANKS: u32 = 8;
const WINDOW: usize = 1 << 20;

/// Runs a session on each of these nodes, with node memory as the only tier, and waits for all of them.
fn on_nodes(memory: &Path, disk: &Simulated, nodes: &[u32], work: impl Fn(u32, Session) + Sync) {
    let fresh = rng::incarnation().expect("randomness");
    std::thread::scope(|scope| {
        for (rank, comm) in (0..).zip(threads::world(nodes)) {
            let storage: Arc<dyn Storage> = Arc::new(disk.process(u64::from(rank)));
            let mut config = Config::default();
            config.job.name = Some("window".into());
            config.job.global_directory = PathBuf::from("/global");
            (config.job.local_enabled, config.job.global_enabled) = (false, false);
            config.node.memory_directory = memory.join(format!("node-{}", nodes[rank as usize]));
            std::fs::create_dir_all(&config.node.memory_directory).expect("our own folder");
            config.node.memory_budget = Budget::Bytes(160 << 20);
            config.node.restart_window = WINDOW as u64;
            let place = Place {
                clock: Arc::new(SystemClock::default()),
                local: storage.clone(),
                global: storage,
                workers: Workers::Threads,
                later: None,
                group: "world".into(),
                fresh,
                host: format!("node-{}", nodes[rank as usize]),
                boot: "boot".into(),
                program: "window".into(),
                command: "window".into(),
                directory: PathBuf::from("/"),
                temporary: PathBuf::from("/tmp"),
                user: 1000,
                is_real: false,
            };
            let work = &work;
            scope.spawn(move || work(rank, Session::open_on(Box::new(comm), &place, config).expect("opens")));
        }
    });
}

/// The rows of a rank that saves.
fn rows(rank: u32) -> (u64, u64) {
    let first = |rank: u32| u64::from(rank) * SHAPE[0] / u64::from(RANKS);
    (first(rank), first(rank + 1) - first(rank))
}

/// Each of eight nodes has an eighth of an array in its memory, and one rank needs all of it: seven ranks send to it at once, faster than
/// it can take the data.
#[test]
fn a_load_stays_in_its_window() {
    let memory = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a folder");
    let disk = Simulated::new();
    let nodes: Vec<u32> = (0..RANKS).collect();
    on_nodes(memory.path(), &disk, &nodes, |rank, session| {
        let (first, count) = rows(rank);
        let on = session.decompose(Boxes::of(SHAPE).own([first, 0], [count, SHAPE[1]])).expect("it tiles");
        let field: Vec<u64> = (first * SHAPE[1]..(first + count) * SHAPE[1]).collect();
        let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
        checkpoint.save_on("t", &on, &field).expect("saved");
        checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
        drop(session);
    });
    disk.drop_locks();
    let barrier = Barrier::new(RANKS as usize);
    let beside = AtomicUsize::new(usize::MAX);
    on_nodes(memory.path(), &disk, &nodes, |rank, session| {
        let count = if rank == 0 { SHAPE[0] } else { 0 };
        let on = session.decompose(Boxes::of(SHAPE).own([0, 0], [count, SHAPE[1]])).expect("it tiles");
        let mut field = vec![0u64; on.elements() as usize];
        let restored = session.begin_restore("heat").run(|r| {
            barrier.wait();
            let before = HELD.load(Ordering::Relaxed);
            if barrier.wait().is_leader() {
                MOST.store(before, Ordering::Relaxed);
            }
            barrier.wait();
            r.load_on("t", &on, &mut field)?;
            if barrier.wait().is_leader() {
                beside.store(MOST.load(Ordering::Relaxed) - before, Ordering::Relaxed);
            }
            Ok(())
        });
        assert_eq!(restored.expect("restored").map(|restored| restored.version), Some(1));
        assert!((0..).zip(&field).all(|(at, found)| *found == at), "elements are not where they were");
        session.close().expect("closed");
    });
    let beside = beside.into_inner();
    // Each rank holds the 4 MiB into which it reads, each sender the 1 MiB that it packs at once; the data on its way comes on top.
    let most = RANKS as usize * (4 << 20) + (RANKS as usize - 1) * (1 << 20) + 2 * WINDOW;
    println!("{} KiB beside the arrays, of {} KiB", beside >> 10, most >> 10);
    assert!(beside <= most, "{beside} bytes were held beside the arrays, and {most} are what the windows allow");
}
