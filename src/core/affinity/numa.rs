//! What the operating system does about NUMA nodes, as safe calls: on which node a page is, moving it, the memory policy of
//! a thread, and making memory present or absent. The declarations of libnuma are our own, because the crate `libnuma`
//! panics on ordinary machines.
//!
//! Addresses are plain numbers here: the system looks them up itself and answers those that mean nothing with an error. No
//! call reads through them, and moving a page changes neither its bytes nor its address.
//!
//! A system may refuse all of this: containers commonly forbid these calls without `CAP_SYS_NICE`. Callers then do without
//! them, and [`told`] says so in the log, once.

use super::Node;
use super::record::Policy;
use crate::base::log;
use rustix::mm::Advice;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

// SAFETY: these are the declarations of numa.h and numaif.h (libnuma 2).
#[link(name = "numa")]
unsafe extern "C" {
    fn numa_available() -> c_int;
    fn numa_max_node() -> c_int;
    fn numa_node_of_cpu(cpu: c_int) -> c_int;
    fn move_pages(
        pid: c_int,
        count: c_ulong,
        pages: *const *mut c_void,
        nodes: *const c_int,
        status: *mut c_int,
        flags: c_int,
    ) -> c_long;
    fn get_mempolicy(mode: *mut c_int, nodes: *mut c_ulong, bits: c_ulong, at: *mut c_void, flags: c_uint) -> c_long;
    fn set_mempolicy(mode: c_int, nodes: *const c_ulong, bits: c_ulong) -> c_long;
}

/// Policy of a thread: memory comes from one node while that has room (`MPOL_PREFERRED`).
const PREFERRED: u32 = 1;
/// Memory comes from these nodes and from nowhere else (`MPOL_BIND`).
const BIND: u32 = 2;
/// The flags that a mode may also contain: `MPOL_F_STATIC_NODES`, `MPOL_F_RELATIVE_NODES`, `MPOL_F_NUMA_BALANCING`.
const MODE_FLAGS: u32 = 0xe000;
/// Pages that other processes also map stay where they are (`MPOL_MF_MOVE`).
const MOVE_OWN: c_int = 1 << 1;
/// Asks for the node of an address instead of a policy (`MPOL_F_NODE`, `MPOL_F_ADDR`).
const POLICY_NODE: c_uint = 1 << 0;
const POLICY_ADDRESS: c_uint = 1 << 1;
/// Nodes of a mask: as many as Linux can be built for.
const NODES_MAX: usize = 1024;
/// The bits of a word of a mask, and the length of a mask as the system wants it: the system subtracts one.
const WORD_BITS: usize = c_ulong::BITS as usize;
const MASK_BITS: c_ulong = NODES_MAX as c_ulong + 1;
type Mask = [c_ulong; NODES_MAX / WORD_BITS];

/// Bytes of a huge page, and after how many failed batches the rest of its block is given up: if a huge page is held,
/// each of its pages fails as a separate batch, slowly.
const BLOCK_BYTES: usize = 2 << 20;
const BLOCK_TRIES: u32 = 3;

/// The status of a page that the system did not get to.
const UNTRIED: c_int = c_int::MIN;

/// Bytes of the smallest page.
fn page() -> usize {
    rustix::param::page_size()
}

/// The highest node number; 0 where libnuma cannot work, or if there is only one node.
fn max_node() -> c_int {
    static MAX: OnceLock<c_int> = OnceLock::new();
    *MAX.get_or_init(|| {
        // SAFETY: numa_available may be called at any time, and must come before every other call; numa_max_node only
        // reads what it found.
        unsafe { if numa_available() < 0 { 0 } else { numa_max_node() } }
    })
}

pub(super) fn current_node() -> Option<Node> {
    if max_node() == 0 {
        return None;
    }
    let cpu = c_int::try_from(rustix::thread::sched_getcpu()).ok()?;
    // SAFETY: libnuma is available (max_node); for a CPU that it does not know, it returns -1.
    let node = unsafe { numa_node_of_cpu(cpu) };
    u32::try_from(node).ok().map(Node)
}

pub(super) fn with_preferred<T>(node: Node, body: impl FnOnce() -> T) -> T {
    if !c_int::try_from(node.0).is_ok_and(|number| max_node() > 0 && number <= max_node()) {
        return body();
    }
    let before = match policy_and_flags() {
        // A program that binds its memory means it, even if Bivouac would prefer another node.
        Ok(policy) if policy.mode & !MODE_FLAGS == BIND => return body(),
        Ok(policy) => policy,
        Err(error) => {
            told("get_mempolicy", &error);
            return body();
        }
    };
    if let Err(error) = set_policy(&Policy { mode: PREFERRED, nodes: vec![node.0] }) {
        // A node without memory, or one that this process may not use.
        log::debug!("event=not-preferred node={} error=\"{error}\"", node.0);
        return body();
    }
    let result = body();
    if let Err(error) = set_policy(&before) {
        told("set_mempolicy", &error);
    }
    result
}

/// Says once, for the first call that the system refuses altogether, that memory is left where it is.
pub fn told(call: &str, error: &io::Error) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        log::warn!("event=no-numa call={call} error=\"{error}\": memory stays where the system puts it");
    }
}

/// The node of the page at each of these addresses: its number, or the negative of an error number, which is `-ENOENT` for a page
/// that has no memory, and `-EFAULT` for one that is the shared page of zeros or is not mapped. Nothing is touched. If automatic
/// balancing is on, Linux 6.1 to 6.5 report pages that it has just marked as if they had no memory.
///
/// # Errors
/// Those of the system, for all pages together: it has no NUMA, or forbids the query.
pub fn query(addresses: &[usize]) -> io::Result<Vec<i32>> {
    let mut status = vec![UNTRIED; addresses.len()];
    if addresses.is_empty() {
        return Ok(status);
    }
    // SAFETY: `addresses` and `status` have as many entries as the count says, and a usize is laid out as a pointer. Without
    // nodes the call only writes `status`; the addresses themselves are not read through.
    let result = unsafe {
        let pages = addresses.as_ptr().cast::<*mut c_void>();
        move_pages(0, addresses.len() as c_ulong, pages, std::ptr::null(), status.as_mut_ptr(), 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// The nodes of pages that the calling thread is about to read anyway. Pages that automatic balancing has marked lose their mark, as they
/// would by being read, and are found.
///
/// # Errors
/// See [`query`].
pub fn query_before_reading(addresses: &[usize]) -> io::Result<Vec<i32>> {
    let mut found = query(addresses)?;
    if is_balancing() {
        for (address, status) in addresses.iter().zip(&mut found).filter(|(_, status)| **status == -libc::ENOENT) {
            *status = marked(*address).unwrap_or(*status);
        }
    }
    Ok(found)
}

/// Does the system move pages to the threads that use them?
fn is_balancing() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| std::fs::read_to_string("/proc/sys/kernel/numa_balancing").is_ok_and(|text| text.trim() != "0"))
}

/// The node of a page that has memory although `move_pages` says that it has none.
fn marked(address: usize) -> Option<c_int> {
    let mut is_there = 0u8;
    let at = (address / page() * page()) as *mut c_void;
    // SAFETY: for one page, the call writes one byte, for which there is room; the address itself is not read through.
    let result = unsafe { libc::mincore(at, 1, &raw mut is_there) };
    if result != 0 || is_there & 1 == 0 {
        return None;
    }
    let mut node: c_int = -1;
    // SAFETY: `node` is where the answer goes, and no mask is asked for. The system looks the address up itself, as a read by this
    // thread would; a page that means nothing is an error.
    let result = unsafe { get_mempolicy(&raw mut node, std::ptr::null_mut(), 0, at, POLICY_NODE | POLICY_ADDRESS) };
    (result == 0 && node >= 0).then_some(node)
}

/// Moves the pages with these addresses to a node, contents and all, and says for each where it is now, or gives the negative of
/// an error number: `-EBUSY` for one that could not be moved because something holds it, `-ENOMEM` if the node is full,
/// `-EACCES` if other processes also map it. A huge page moves as a whole. Pages without memory remain without it.
///
/// # Errors
/// The system forbids it (`EPERM`), there is no such node or it has no memory (`ENODEV`), or this process may
/// not use the node (`EACCES`).
pub fn migrate(addresses: &[usize], node: u32) -> io::Result<Vec<i32>> {
    let target = c_int::try_from(node).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    let mut status = Vec::with_capacity(addresses.len());
    let mut failure = libc::EBUSY;
    let mut failed_block = (usize::MAX, 0);
    while status.len() < addresses.len() {
        let rest = &addresses[status.len()..];
        let (mut answers, outcome) = migrate_some(rest, target);
        match outcome {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                // The pages after this one would fail in the same way.
                failure = libc::ENOMEM;
                answers.resize(rest.len(), UNTRIED);
            }
            Err(error) => return Err(error),
        }
        status.extend(answers);
        let block = |index: usize| addresses.get(index).map(|address| address / BLOCK_BYTES);
        if let (Some(last), next) = (block(status.len() - 1), block(status.len())) {
            failed_block = (last, if failed_block.0 == last { failed_block.1 + 1 } else { 1 });
            if next == Some(last) && failed_block.1 == BLOCK_TRIES {
                let same =
                    addresses[status.len()..].iter().take_while(|address| **address / BLOCK_BYTES == last).count();
                status.resize(status.len() + same, UNTRIED);
            }
        }
    }
    settle(addresses, target, -failure, &mut status)?;
    Ok(status)
}

/// Makes one call, and returns the status of as many of the first pages as it has handled (at least one). Call this again for
/// the rest. The system moves pages in batches and ends with the first batch that fails, for which it gives no status; the
/// next status after that batch has already been written.
fn migrate_some(addresses: &[usize], target: c_int) -> (Vec<c_int>, io::Result<()>) {
    let nodes = vec![target; addresses.len()];
    let mut status = vec![UNTRIED; addresses.len()];
    // SAFETY: all three have as many entries as the count says, and a usize is laid out as a pointer. The call changes where
    // pages of this process lie, not what they hold, so that no reference can tell; it writes only `status`.
    let result = unsafe {
        let pages = addresses.as_ptr().cast::<*mut c_void>();
        move_pages(0, addresses.len() as c_ulong, pages, nodes.as_ptr(), status.as_mut_ptr(), MOVE_OWN)
    };
    if result < 0 {
        return (status, Err(io::Error::last_os_error()));
    }
    if result > 0
        && let Some(first) = status.iter().position(|status| *status == UNTRIED)
        && let Some(length) = status[first..].iter().position(|status| *status != UNTRIED)
    {
        status.truncate(first + length + 1);
    }
    (status, Ok(()))
}

/// Asks again for the pages that do not seem to be on their node: the second page of a huge page is said to be busy while the
/// first one takes it along, and a batch that failed has no status. Pages that are elsewhere have failed with `failure`,
/// unless the system gave them a reason of their own.
fn settle(addresses: &[usize], target: c_int, failure: c_int, status: &mut [c_int]) -> io::Result<()> {
    let open: Vec<usize> = (0..status.len()).filter(|i| status[*i] != target).collect();
    let found = query(&open.iter().map(|i| addresses[*i]).collect::<Vec<_>>())?;
    for (i, found) in open.into_iter().zip(found) {
        status[i] = match (found, status[i]) {
            (found, _) if found == target || found < 0 => found,
            (_, reason) if reason < 0 && reason != UNTRIED => reason,
            _ => failure,
        };
    }
    Ok(())
}

/// The NUMA policy of the calling thread.
///
/// # Errors
/// Those of the system.
pub fn policy() -> io::Result<Policy> {
    policy_and_flags().map(|policy| Policy { mode: policy.mode & !MODE_FLAGS, ..policy })
}

/// The NUMA policy of the calling thread with the flags of its mode, which say whether nodes are meant absolutely and
/// whether pages are balanced.
fn policy_and_flags() -> io::Result<Policy> {
    let (mut mode, mut mask): (c_int, Mask) = (0, [0; _]);
    // SAFETY: `mask` has room for the bits that are announced, less the one that the system takes off; without an address and
    // flags the call tells of the thread.
    let result = unsafe { get_mempolicy(&mut mode, mask.as_mut_ptr(), MASK_BITS, std::ptr::null_mut(), 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_set = |node: &u32| mask[*node as usize / WORD_BITS] >> (*node as usize % WORD_BITS) & 1 == 1;
    Ok(Policy { mode: mode as u32, nodes: (0..NODES_MAX as u32).filter(is_set).collect() })
}

/// Sets the NUMA policy of the calling thread, which says where memory comes from that the thread touches first from now on.
///
/// # Errors
/// Those of the system: it knows no such policy, or none of the nodes has memory that this process may use.
pub fn set_policy(policy: &Policy) -> io::Result<()> {
    let mut mask: Mask = [0; _];
    for node in &policy.nodes {
        let word = mask.get_mut(*node as usize / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (*node as usize % WORD_BITS);
    }
    let mode = c_int::try_from(policy.mode).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `mask` has as many bits as announced, less the one that the system takes off; the call changes only the policy of
    // this thread, which no memory safety rests on.
    let result = unsafe { set_mempolicy(mode, mask.as_ptr(), MASK_BITS) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The whole pages inside these bytes.
fn whole_pages(bytes: &mut [u8]) -> &mut [u8] {
    let page = page();
    let skip = bytes.as_ptr().align_offset(page).min(bytes.len());
    let length = (bytes.len() - skip) / page * page;
    &mut bytes[skip..skip + length]
}

/// Gives memory to all pages of these bytes by the policy of the calling thread, without changing a byte. The pages at both
/// ends, which may be shared with other data, also get memory.
///
/// # Errors
/// `ENOMEM`: there is no memory.
pub fn populate(bytes: &mut [u8]) -> io::Result<()> {
    let whole = whole_pages(bytes);
    if can_populate() && !whole.is_empty() {
        match populate_whole(whole) {
            Ok(()) => {
                touch(bytes, bytes.len());
                return Ok(());
            }
            // A mapping of a special kind, such as one of a device.
            Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    touch(bytes, page());
    Ok(())
}

/// Does the system know `MADV_POPULATE_WRITE`? Kernels before 5.14 do not. This is asked once, with ordinary memory: the answer
/// for a special mapping says nothing about the next one.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let mut own = vec![0u8; 2 * page()];
        populate_whole(whole_pages(&mut own)) != Err(rustix::io::Errno::INVAL)
    })
}

/// Gives memory to whole pages.
fn populate_whole(whole: &mut [u8]) -> rustix::io::Result<()> {
    // SAFETY: the bytes are borrowed for writing, and the call makes their pages present as a write of what they hold would.
    unsafe { rustix::mm::madvise(whole.as_mut_ptr().cast(), whole.len(), Advice::LinuxPopulateWrite) }
}

/// Writes one byte in every `step` bytes, and the last one, with the values that they already have.
fn touch(bytes: &mut [u8], step: usize) {
    let last = bytes.len().saturating_sub(1);
    for at in (0..bytes.len()).step_by(step.max(1)).chain([last]) {
        if let Some(byte) = bytes.get_mut(at) {
            // Without `black_box`, the compiler would see that nothing changes.
            *byte = std::hint::black_box(*byte);
        }
    }
}

/// Takes away the memory of the whole pages inside: private anonymous pages are zero from now on, and get memory when
/// they are written to again.
///
/// # Errors
/// Those of the system: the pages are locked.
pub fn discard(bytes: &mut [u8]) -> io::Result<()> {
    let whole = whole_pages(bytes);
    if whole.is_empty() {
        return Ok(());
    }
    // SAFETY: the pages lie wholly in `bytes`, which is borrowed for writing, so nobody else relies on what they hold; they
    // stay mapped and read as zeros (or as the file behind them), which are bytes like others.
    unsafe { rustix::mm::madvise(whole.as_mut_ptr().cast(), whole.len(), Advice::LinuxDontNeed) }
        .map_err(io::Error::from)
}

/// From now on, the whole pages inside get no huge pages. An existing huge page stays until it is discarded.
///
/// # Errors
/// Those of the system. A system that knows no huge pages is not an error.
pub fn forbid_huge(bytes: &mut [u8]) -> io::Result<()> {
    let whole = whole_pages(bytes);
    if whole.is_empty() {
        return Ok(());
    }
    // SAFETY: the pages lie wholly in `bytes`; the call changes neither what they hold nor whether they are present.
    match unsafe { rustix::mm::madvise(whole.as_mut_ptr().cast(), whole.len(), Advice::LinuxNoHugepage) } {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory and the addresses of 16 of its pages, if this machine allows pages to be queried; otherwise, the reason is printed.
    fn pages() -> Option<(Vec<u8>, Vec<usize>)> {
        let bytes = vec![0; 8 << 20];
        let start = bytes.as_ptr() as usize;
        let first = (start + (4 << 20)) & !(page() - 1);
        let addresses: Vec<usize> = (0..16).map(|i| first + i * page()).collect();
        match query(&addresses) {
            Ok(_) => Some((bytes, addresses)),
            Err(error) => {
                eprintln!("SKIPPED: this machine does not answer move_pages: {error}");
                None
            }
        }
    }

    fn part<'a>(bytes: &'a mut [u8], addresses: &[usize]) -> &'a mut [u8] {
        let from = addresses[0] - bytes.as_ptr() as usize;
        &mut bytes[from..from + addresses.len() * page()]
    }

    #[test]
    fn pages_are_populated_unchanged_found_discarded_and_found_missing() {
        let Some((mut bytes, addresses)) = pages() else { return };
        let part = part(&mut bytes, &addresses);
        discard(part).unwrap();
        assert!(query(&addresses).unwrap().iter().all(|status| *status < 0));
        forbid_huge(part).unwrap();
        populate(&mut part[..page() + 1]).unwrap();
        let found = query(&addresses).unwrap();
        assert!(found[0] >= 0 && found[1] >= 0 && found[2] < 0, "{found:?}");
        part.fill(7);
        populate(part).unwrap();
        assert!(query(&addresses).unwrap().iter().all(|status| *status >= 0));
        assert!(part.iter().all(|byte| *byte == 7));
        // Half a page stays.
        discard(&mut part[..page() * 3 / 2]).unwrap();
        assert!(part[..page()].iter().all(|byte| *byte == 0) && part[page()..].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn touching_makes_pages_present_and_changes_nothing() {
        let Some((mut bytes, addresses)) = pages() else { return };
        let part = part(&mut bytes, &addresses);
        discard(part).unwrap();
        touch(part, page());
        assert!(query(&addresses).unwrap().iter().all(|status| *status >= 0));
        assert!(part.iter().all(|byte| *byte == 0));
        touch(&mut [], 1);
    }

    #[test]
    fn pages_are_moved_to_where_they_are_and_nowhere_else() {
        let Some((mut bytes, addresses)) = pages() else { return };
        part(&mut bytes, &addresses).fill(3);
        let node = query(&addresses).unwrap()[0];
        match migrate(&addresses, node as u32) {
            Ok(status) => assert_eq!(status, vec![node; 16]),
            Err(error) => return eprintln!("SKIPPED: this machine forbids to move pages: {error}"),
        }
        for nowhere in [900, u32::MAX] {
            let error = migrate(&addresses, nowhere).unwrap_err();
            assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EACCES)), "{error}");
        }
        assert!(part(&mut bytes, &addresses).iter().all(|byte| *byte == 3));
        assert!(query(&[]).unwrap().is_empty());
        let missing = query(&[8]).unwrap();
        assert!(missing[0] < 0, "{missing:?}");
    }

    #[test]
    fn a_thread_has_the_policy_that_it_was_given() {
        let Ok(before) = policy() else { return eprintln!("SKIPPED: no get_mempolicy here") };
        let wanted = Policy { mode: PREFERRED, nodes: vec![0] };
        set_policy(&wanted).unwrap();
        assert_eq!(policy().unwrap(), wanted);
        // The flag for absolute nodes is of no interest to those who ask what the policy is.
        set_policy(&Policy { mode: 0x8000 | BIND, nodes: vec![0] }).unwrap();
        assert_eq!(policy().unwrap(), Policy { mode: BIND, nodes: vec![0] });
        let inside = with_preferred(Node(0), || policy_and_flags().unwrap());
        assert_eq!(inside.mode, 0x8000 | BIND, "who binds memory means it");
        set_policy(&before).unwrap();
        assert_eq!(policy().unwrap(), before);
        for nonsense in [Policy { mode: PREFERRED, nodes: vec![u32::MAX] }, Policy { mode: u32::MAX, nodes: vec![] }] {
            assert!(set_policy(&nonsense).is_err());
        }
        assert_eq!(policy().unwrap(), before);
    }
}
