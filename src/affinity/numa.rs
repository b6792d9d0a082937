//! The four calls of libnuma that are needed (the crate `libnuma` panics on ordinary machines).

use super::Node;
use std::ffi::c_int;
use std::sync::OnceLock;

// SAFETY: these are the declarations of numa.h (libnuma 2); all take and return plain integers.
#[link(name = "numa")]
unsafe extern "C" {
    fn numa_available() -> c_int;
    fn numa_max_node() -> c_int;
    fn numa_node_of_cpu(cpu: c_int) -> c_int;
    fn numa_set_preferred(node: c_int);
    fn numa_set_localalloc();
}

/// The highest node number; 0 where libnuma cannot work, or there is one node only.
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
    // SAFETY: libnuma is available (max_node); a CPU that it does not know is answered with -1.
    let node = unsafe { numa_node_of_cpu(cpu) };
    u32::try_from(node).ok().map(Node)
}

pub(super) fn with_preferred<T>(node: Node, body: impl FnOnce() -> T) -> T {
    match c_int::try_from(node.0) {
        Ok(number) if max_node() > 0 && number <= max_node() => {
            // SAFETY: libnuma is available and the node exists; the call changes only this thread's memory policy.
            unsafe { numa_set_preferred(number) };
            let result = body();
            // SAFETY: as above; the engine's threads have the default policy otherwise.
            unsafe { numa_set_localalloc() };
            result
        }
        _ => body(),
    }
}
