//! The program that `tests/numa.rs` runs on machines with several NUMA nodes. Each argument is a scenario, which ends with a line `passed
//! NAME` or with a panic. Nothing here uses MPI.
//!
//! The scenario `time` needs no second node: it prints the time of queries and of populating memory on the present machine.

use bivouac_core::affinity::cpus::{self, Cpus};
use bivouac_core::affinity::pages::{PAGE_BYTES, Run};
use bivouac_core::affinity::placing::{PlaceReport, Reason, Wanted, place, verify};
use bivouac_core::affinity::record::Policy;
use bivouac_core::affinity::{Node, numa, scan, with_preferred};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Instant;

const PAGE: usize = PAGE_BYTES as usize;
const BLOCK: usize = 2 << 20;

/// A list such as `0-3,8`.
fn list(path: &str) -> Vec<u32> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parts = text.trim().split(',').filter(|part| !part.is_empty());
    let numbers = parts.flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    numbers.collect()
}

/// The machine on which this program runs.
struct Machine {
    /// Nodes with memory.
    nodes: Vec<u32>,
    /// Nodes without memory.
    memoryless: Vec<u32>,
    cpus: BTreeMap<u32, Cpus>,
    /// Does the system make huge pages without being asked?
    is_huge: bool,
}

impl Machine {
    fn look() -> Machine {
        let folder = "/sys/devices/system/node";
        let nodes = list(&format!("{folder}/has_memory"));
        let all = list(&format!("{folder}/online"));
        let cpus = all.iter().map(|node| {
            (*node, list(&format!("{folder}/node{node}/cpulist")).into_iter().map(|cpu| cpu as usize).collect())
        });
        let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        Machine {
            memoryless: all.iter().copied().filter(|node| !nodes.contains(node)).collect(),
            cpus: cpus.collect(),
            nodes,
            is_huge: huge.contains("[always]"),
        }
    }

    /// The node with memory at this index, which wraps around.
    fn node(&self, index: usize) -> u32 {
        self.nodes[index % self.nodes.len()]
    }
}

/// Untouched memory. The used part begins at the border of a block.
struct Memory(Vec<u8>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![0; bytes + 2 * BLOCK])
    }

    fn blocks(&mut self) -> &mut [u8] {
        let from = self.0.as_ptr().align_offset(BLOCK);
        let length = (self.0.len() - from) / BLOCK * BLOCK;
        &mut self.0[from..from + length]
    }
}

fn pages_of(bytes: &[u8]) -> Vec<usize> {
    let first = bytes.as_ptr() as usize / PAGE * PAGE;
    (first..bytes.as_ptr() as usize + bytes.len()).step_by(PAGE).collect()
}

fn nodes_of(bytes: &[u8]) -> Vec<i32> {
    numa::query(&pages_of(bytes)).unwrap()
}

/// A byte for each position that differs from its neighbours and between pages.
fn pattern(index: usize) -> u8 {
    (index * 31 + index / PAGE * 7 + 1) as u8
}

/// Runs the body on the CPUs of a node, with memory of that node.
fn on_node(machine: &Machine, node: u32, body: impl FnOnce() + Send) {
    let body = || {
        cpus::run_on(&machine.cpus[&node]);
        with_preferred(Some(Node(node)), body);
    };
    std::thread::scope(|scope| scope.spawn(body).join()).unwrap();
}

/// Writes the pattern on a CPU of this node, with memory of that node.
fn touch(machine: &Machine, bytes: &mut [u8], node: u32) {
    // A system that moves pages to the threads that use them has no reason to move these.
    on_node(machine, node, || bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i)));
    assert!(nodes_of(bytes).iter().all(|found| *found == node as i32), "node {node} has no room for the test");
}

fn kept(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(i, byte)| *byte == pattern(i))
}

/// Cuts a region into pieces of this length, each on the next node.
fn in_pieces(machine: &Machine, length: usize, piece: usize) -> Vec<Wanted> {
    let range = |from: usize| from as u64..(from + piece).min(length) as u64;
    (0..length).step_by(piece).enumerate().map(|(i, from)| (range(from), Some(machine.node(i)))).collect()
}

/// Checks that all pages are right afterwards, and that fewer were before.
fn all_right(before: &PlaceReport, after: &PlaceReport) {
    assert!(before.right < before.wanted, "nothing was to be done: {before}");
    assert_eq!((after.wanted, after.right, after.wrong_pages()), (before.wanted, before.wanted, 0), "{after}");
}

/// Tests the wrappers themselves: policy, populating, queries, moving.
fn calls(machine: &Machine) {
    let before = numa::policy().unwrap();
    for (index, node) in machine.nodes.iter().copied().enumerate() {
        let mut memory = Memory::new(2 * BLOCK);
        let bytes = &mut memory.blocks()[..2 * BLOCK];
        assert!(nodes_of(bytes).iter().all(|status| *status < 0));
        with_preferred(Some(Node(node)), || {
            assert_eq!(numa::policy().unwrap(), Policy { mode: 1, nodes: vec![node] });
            numa::populate(bytes).unwrap();
        });
        assert!(nodes_of(bytes).iter().all(|found| *found == node as i32), "populated on node {node}");
        touch(machine, bytes, node);
        let next = machine.node(index + 1);
        let status = numa::migrate(&pages_of(bytes), next).unwrap();
        assert!(status.iter().all(|found| *found == next as i32), "moved from {node} to {next}: {status:?}");
        assert!(nodes_of(bytes) == status && kept(bytes));
        numa::discard(bytes).unwrap();
        assert!(nodes_of(bytes).iter().all(|status| *status < 0) && bytes.iter().all(|byte| *byte == 0));
    }
    for node in &machine.memoryless {
        let mut memory = Memory::new(BLOCK);
        let bytes = &mut memory.blocks()[..BLOCK];
        with_preferred(Some(Node(*node)), || numa::populate(bytes).unwrap());
        assert!(nodes_of(bytes).iter().all(|found| machine.nodes.contains(&(*found as u32))));
        assert!(numa::migrate(&pages_of(bytes), *node).is_err());
        let report = place(bytes, &[(0..BLOCK as u64, Some(*node))], &machine.cpus);
        assert_eq!(report.wrong, BTreeMap::from([(Reason::NoNode, 512)]), "{report}");
    }
    assert_eq!(numa::policy().unwrap(), before);
}

/// A few queries find the same runs in a region in pieces as queries for all its pages.
fn scanned(machine: &Machine) {
    let mut memory = Memory::new(24 * BLOCK);
    let bytes = &mut memory.blocks()[100..24 * BLOCK];
    let wanted = in_pieces(machine, bytes.len(), 7 * BLOCK);
    place(bytes, &wanted, &machine.cpus);
    let (start, length) = (bytes.as_ptr() as usize, bytes.len() as u64);
    let mut asked = 0;
    let mut query = |pages: &[usize]| {
        asked += pages.len();
        numa::query(pages)
    };
    let few = scan::bounded(start, length, 4096, &mut query).unwrap();
    assert!(asked < 200, "{asked} questions");
    let all = scan::whole(start, length, &mut || true, &mut numa::query).unwrap().unwrap();
    let runs: Vec<Run> = wanted.iter().map(|(bytes, node)| Run { pages: pages(bytes), node: *node }).collect();
    assert_eq!((few.offset, &few.runs), (100, &all.runs));
    assert_eq!(all.runs.iter().map(|run| run.pages).sum::<u64>(), 24 * 512);
    assert_eq!(
        all.runs.iter().map(|run| run.node).collect::<Vec<_>>(),
        runs.iter().map(|run| run.node).collect::<Vec<_>>()
    );
}

fn pages(bytes: &Range<u64>) -> u64 {
    (bytes.end - bytes.start).div_ceil(PAGE_BYTES)
}

/// Memory that nobody has touched gets its pages where they are wanted, wherever its borders are.
fn fresh(machine: &Machine) {
    for (offset, piece) in [(0, 3 * BLOCK), (100, 3 * BLOCK + 5 * PAGE + 7), (PAGE, BLOCK / 2), (0, PAGE)] {
        let length = if piece == PAGE { 4 * BLOCK } else { 16 * BLOCK };
        let mut memory = Memory::new(length);
        let bytes = &mut memory.blocks()[offset..length];
        let wanted = in_pieces(machine, bytes.len(), piece);
        let before = verify(bytes, &wanted);
        assert_eq!(before.right, 0);
        // A thread takes memory from a node even if it does not run on the CPUs of that node.
        let anywhere = BTreeMap::new();
        let report = place(bytes, &wanted, if offset == 0 { &machine.cpus } else { &anywhere });
        all_right(&before, &report);
        assert_eq!(verify(bytes, &wanted).right, report.right);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

/// Pages that are present on one node are moved to where they are wanted. Contents are kept unless a huge page was taken apart.
fn touched(machine: &Machine) {
    for (offset, piece) in [(0, 3 * BLOCK), (100, 3 * BLOCK + 5 * PAGE), (0, PAGE)] {
        let length = if piece == PAGE { 4 * BLOCK } else { 16 * BLOCK };
        let mut memory = Memory::new(length);
        let all = &mut memory.blocks()[..length];
        touch(machine, all, machine.node(1));
        let around = all[..offset].to_vec();
        let bytes = &mut all[offset..];
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
        let wanted = in_pieces(machine, bytes.len(), piece);
        let before = verify(bytes, &wanted);
        let report = place(bytes, &wanted, &machine.cpus);
        all_right(&before, &report);
        assert!(report.migrated > 0 || report.dropped > 0);
        let is_apart = machine.is_huge && !piece.is_multiple_of(BLOCK);
        assert_eq!(report.dropped > 0, is_apart, "{report:?}");
        assert_eq!(kept(bytes), !is_apart);
        assert_eq!(all[..offset], around);
    }
}

/// Memory next to the target keeps its contents and its place, even if both are in one huge page.
fn neighbours(machine: &Machine) {
    for node in [machine.node(1), machine.node(machine.nodes.len() - 1)] {
        let mut memory = Memory::new(4 * BLOCK);
        let all = &mut memory.blocks()[..4 * BLOCK];
        touch(machine, all, machine.node(0));
        let inside = BLOCK / 2 + 100..3 * BLOCK + BLOCK / 4 + 50;
        let target = &mut all[inside.clone()];
        let wanted = [(0..target.len() as u64, Some(node))];
        let before = verify(target, &wanted);
        let report = place(target, &wanted, &machine.cpus);
        // The page at each end is shared with a neighbour, so it may be on either node.
        assert!(before.right == 0 && report.wrong_pages() <= if machine.is_huge { 2 } else { 0 }, "{report}");
        assert_eq!(machine.is_huge, report.dropped > 0, "{report:?}");
        let home = machine.node(0) as i32;
        let page = |byte: usize| byte / PAGE * PAGE;
        assert!(nodes_of(&all[..page(inside.start)]).iter().all(|found| *found == home), "before the target");
        assert!(nodes_of(&all[page(inside.end) + PAGE..]).iter().all(|found| *found == home), "behind the target");
        let is_kept = |range: Range<usize>| range.into_iter().all(|i| all[i] == pattern(i));
        assert!(is_kept(0..inside.start) && is_kept(inside.end..all.len()), "contents beside the target");
        assert!(is_kept(BLOCK..3 * BLOCK), "contents of whole blocks");
    }
}

/// A page that somebody else holds (here a pipe; the driver of a GPU or of a network card does the same) stays whole and in place.
fn held(machine: &Machine) {
    let mut memory = Memory::new(3 * BLOCK);
    let bytes = &mut memory.blocks()[..3 * BLOCK];
    touch(machine, bytes, machine.node(0));
    let (_read, write) = std::io::pipe().unwrap();
    let page = BLOCK + 5 * PAGE;
    let part = libc::iovec { iov_base: bytes[page..].as_mut_ptr().cast(), iov_len: PAGE };
    // SAFETY: the pipe takes a reference to a page of `bytes`, which outlives the pipe here, and nobody reads from it.
    let taken = unsafe { libc::vmsplice(write.as_raw_fd(), &part, 1, 0) };
    assert_eq!(taken, PAGE as isize, "{}", std::io::Error::last_os_error());
    // The held page is wanted on another node, and so are other pages of its block.
    let wanted = in_pieces(machine, bytes.len() - BLOCK / 2, BLOCK / 4 + PAGE).into_iter();
    let wanted: Vec<Wanted> =
        wanted.map(|(range, node)| (range, node.filter(|node| *node != machine.node(0)))).collect();
    let report = place(bytes, &wanted, &machine.cpus);
    let block = BLOCK..2 * BLOCK;
    let is_kept = |range: Range<usize>| range.into_iter().all(|i| bytes[i] == pattern(i));
    if machine.is_huge {
        assert!(is_kept(block.clone()), "a huge page that is held must not be dropped: {report:?}");
        assert!(nodes_of(&bytes[block]).iter().all(|found| *found == machine.node(0) as i32));
        assert!(report.wrong[&Reason::Held] > 100, "{report}");
    } else {
        let is_wanted = wanted.iter().any(|(range, node)| range.contains(&(page as u64)) && node.is_some());
        assert_eq!(report.wrong.get(&Reason::Held).copied(), is_wanted.then_some(1), "{report}");
        assert!(is_kept(0..bytes.len()));
    }
    assert!(report.right > 0);
}

/// File memory, and memory that a child process shares, keeps its contents, wherever it can be moved.
fn not_own(machine: &Machine) {
    let path = format!("/dev/shm/bivouac-numa-{}", std::process::id());
    let length = 4 * BLOCK;
    let contents: Vec<u8> = (0..length).map(pattern).collect();
    for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        on_node(machine, machine.node(0), || fs::write(&path, &contents).unwrap());
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file of this length, which nobody else has; it is never unmapped.
        let bytes = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), length, access, kind, file.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(start.cast::<u8>(), length)
        };
        assert!(kept(bytes));
        let wanted = in_pieces(machine, length, BLOCK / 2 + PAGE);
        let before = verify(bytes, &wanted);
        let report = place(bytes, &wanted, &machine.cpus);
        assert!(kept(bytes), "{report}");
        assert_eq!((report.dropped, report.right + report.wrong_pages()), (0, report.wanted));
        assert!(before.right < before.wanted && report.right > before.right, "{before} then {report}");
        fs::remove_file(&path).unwrap();
    }

    let mut memory = Memory::new(length);
    let bytes = &mut memory.blocks()[..length];
    touch(machine, bytes, machine.node(0));
    // SAFETY: the child makes one system call, and then ends.
    let child = unsafe {
        match libc::fork() {
            0 => {
                libc::pause();
                libc::_exit(0)
            }
            child => child,
        }
    };
    assert!(child > 0);
    let wanted = in_pieces(machine, length, BLOCK / 2 + PAGE);
    let before = verify(bytes, &wanted);
    let report = place(bytes, &wanted, &machine.cpus);
    assert_eq!(
        (report.right, report.wrong.get(&Reason::NotOwn)),
        (before.right, Some(&before.wrong_pages())),
        "{report}"
    );
    assert!(kept(bytes));
    // SAFETY: it is this process's child, and nobody else waits for it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
    // Once the child has ended, the pages may be moved.
    all_right(&before, &place(bytes, &wanted, &machine.cpus));
}

/// A node takes as many pages as it has room for; the rest are elsewhere, and the report says so.
fn full(machine: &Machine) {
    let node = machine.node(1);
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).unwrap();
    let total = text.lines().find(|line| line.contains("MemTotal:")).unwrap();
    let total: usize = total.split_whitespace().rev().nth(1).unwrap().parse::<usize>().unwrap() << 10;
    let length = total / BLOCK * BLOCK;
    for is_touched in [false, true] {
        let mut memory = Memory::new(length);
        let bytes = &mut memory.blocks()[..length];
        if is_touched {
            for byte in bytes.iter_mut().step_by(PAGE) {
                *byte = 9;
            }
        }
        let report = place(bytes, &[(0..length as u64, Some(node))], &machine.cpus);
        assert!(report.right > report.wanted / 2, "{report}");
        assert_eq!(report.right + report.wrong_pages(), report.wanted);
        assert!(report.wrong.get(&Reason::NodeFull).is_some_and(|pages| *pages > 0), "{report}");
        assert!(!is_touched || bytes.iter().step_by(PAGE).all(|byte| *byte == 9));
        println!("full: touched={is_touched} {report}");
    }
}

/// The calls are forbidden, as in some containers: everything is reported as wrong, and nothing happens. This cannot be undone, so no later
/// scenario may need the calls.
fn forbidden(machine: &Machine) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in [libc::SYS_move_pages, libc::SYS_mbind, libc::SYS_get_mempolicy, libc::SYS_set_mempolicy] {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter has as many statements as `program` says, and outlives the calls, which copy it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
    assert!(numa::policy().is_err() && numa::query(&[PAGE]).is_err() && numa::migrate(&[PAGE], 0).is_err());
    assert_eq!(with_preferred(Some(Node(machine.node(1))), || 5), 5);
    let mut bytes: Vec<u8> = (0..2 * BLOCK).map(pattern).collect();
    let wanted = in_pieces(machine, bytes.len(), BLOCK / 2);
    let report = place(&mut bytes, &wanted, &machine.cpus);
    assert_eq!(report.wrong, BTreeMap::from([(Reason::Forbidden, report.wanted)]));
    assert!(report.wanted > 0 && report.right == 0 && kept(&bytes));
    assert_eq!(verify(&bytes, &wanted).wrong_pages(), report.wanted);
}

/// The time of queries and of populating, for 1 GiB.
fn time(machine: &Machine) {
    let length = 1 << 30;
    let mut memory = Memory::new(length);
    let bytes = &mut memory.blocks()[..length];
    let wanted = [(0..length as u64, Some(machine.node(0)))];
    let timed = |what: &str, body: &mut dyn FnMut() -> String| {
        let start = Instant::now();
        let said = body();
        println!("time {what} ms={:.1} {said}", start.elapsed().as_secs_f64() * 1e3);
    };
    let (start, bytes_all) = (bytes.as_ptr() as usize, length as u64);
    timed("place, untouched", &mut || place(bytes, &wanted, &machine.cpus).to_string());
    timed("place, all there", &mut || place(bytes, &wanted, &machine.cpus).to_string());
    timed("verify", &mut || verify(bytes, &wanted).to_string());
    timed("scan whole", &mut || {
        format!("{:?}", scan::whole(start, bytes_all, &mut || true, &mut numa::query).unwrap().unwrap().runs.len())
    });
    timed("scan bounded", &mut || {
        format!("{:?}", scan::bounded(start, bytes_all, 4096, &mut numa::query).unwrap().runs.len())
    });
    numa::discard(bytes).unwrap();
    timed("populate, one thread", &mut || format!("{:?}", numa::populate(bytes)));
    numa::discard(bytes).unwrap();
    timed("touch by the application", &mut || {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        String::new()
    });
}

fn main() {
    let is_set = std::env::var_os("MALLOC_MMAP_THRESHOLD_").is_some();
    assert!(is_set, "set MALLOC_MMAP_THRESHOLD_=131072, so that large memory is untouched");
    let machine = Machine::look();
    println!(
        "nodes={:?} memoryless={:?} huge={} cpus={:?}",
        machine.nodes,
        machine.memoryless,
        machine.is_huge,
        cpus::of_this_thread()
    );
    for scenario in std::env::args().skip(1) {
        let start = Instant::now();
        match scenario.as_str() {
            "calls" => calls(&machine),
            "scanned" => scanned(&machine),
            "fresh" => fresh(&machine),
            "touched" => touched(&machine),
            "neighbours" => neighbours(&machine),
            "held" => held(&machine),
            "not-own" => not_own(&machine),
            "forbidden" => forbidden(&machine),
            "full" => full(&machine),
            "time" => time(&machine),
            other => panic!("no scenario {other:?}"),
        }
        println!("passed {scenario} after {:.1} s", start.elapsed().as_secs_f64());
    }
}
