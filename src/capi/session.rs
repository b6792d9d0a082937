//! Sessions: opening and closing, protected regions, decisions, statistics.

use super::arguments::{fill, must_put, put, sized, text};
use super::handles::{self, Entry, Id, to_pointer};
use super::open::{Open, described, with};
use super::regions::{Region, Regions};
use super::status::{BVK_ERR_OPEN, BVK_ERR_REGION, BVK_NOTHING, BVK_OK, Failure, Outcome, call};
use ::mpi::ffi::MPI_Comm;
use bivouac_core::affinity::pinning::Pin;
use bivouac_core::base::Level;
use bivouac_core::base::log;
use bivouac_core::base::sync::{Lock, Order};
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::config::{AffinityMode, Config, ConfigSource, LogLevel};
use bivouac_core::session::{Session, prepare_to_wait};
use bivouac_core::tier::PerTier;
use bivouac_core::transfer::LevelVerdict;
use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// A session: ranks that take and restore checkpoints together.
pub struct SessionHandle {
    _private: (),
}

/// Captured: safe only from the application's next write.
pub const BVK_LEVEL_CAPTURED: c_int = 0;
/// In node memory: survives killed processes.
pub const BVK_LEVEL_PROCESS: c_int = 1;
/// On node-local storage: survives a reboot of the node.
pub const BVK_LEVEL_NODE_REBOOT: c_int = 2;
/// With copies or parity on other nodes: survives the loss of a node.
pub const BVK_LEVEL_NODE_LOSS: c_int = 3;
/// On the parallel file system: survives the loss of all nodes.
pub const BVK_LEVEL_SYSTEM: c_int = 4;

/// How a session is configured. Set `size` to `sizeof(bvk_options)` and the rest to zero (`BVK_OPTIONS_INIT`) before you set members. At
/// most one of `config_file` and `config_text` may be set. The environment (`BIVOUAC_...`) takes precedence over the file or the text, and
/// `settings` takes precedence over the environment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    /// `sizeof(bvk_options)`.
    pub size: usize,
    /// A TOML file. NULL: the file that `BIVOUAC_CONFIG` names, if `config_text` is also NULL.
    pub config_file: *const c_char,
    /// TOML text instead of a file; NULL: none.
    pub config_text: *const c_char,
    /// A list of settings (`section.key=value`) that ends with a NULL entry. NULL: none.
    pub settings: *const *const c_char,
}

/// One of the regions that `bvk_protect_many` protects. Set `size` to `sizeof(bvk_region)` and the rest to zero (`BVK_REGION_INIT`) before
/// you set members.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CRegion {
    /// `sizeof(bvk_region)`, the same in all entries of a list.
    pub size: usize,
    /// The name.
    pub name: *const c_char,
    /// The memory of the region, on the host or on a GPU.
    pub data: *mut c_void,
    /// The number of elements; ignored if there is a shape.
    pub count: u64,
    /// The type of the elements: one of `BVK_U8` to `BVK_F64` or `BVK_RECORD(bytes)`.
    pub kind: c_int,
    /// The number of extents in `shape`; 0: one dimension of `count` elements.
    pub dimensions: c_int,
    /// The extents, slowest first; NULL: none.
    pub shape: *const u64,
}

/// Counters and times of this rank since its session was opened. Set `size` to `sizeof(bvk_stats)` before the call (`BVK_STATS_INIT`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CStats {
    /// `sizeof(bvk_stats)`.
    pub size: usize,
    /// Checkpoints that this rank has captured.
    pub captured: u64,
    /// Checkpoints that the ranks abandoned at the checkpoint call. No part of them is kept.
    pub abandoned: u64,
    /// Checkpoints in flight: some of their levels are neither reached nor given up.
    pub in_flight: u64,
    /// Bytes that the application handed over.
    pub bytes_captured: u64,
    /// Captures that waited for room in node memory.
    pub room_waits: u64,
    /// Captures that were written to a file before the call returned, because they did not fit into node memory.
    pub direct_captures: u64,
    /// Copies of shards or blocks that were found damaged, on all tiers.
    pub damaged: u64,
    /// Seconds that the last checkpoint blocked the application.
    pub blocked_last_s: f64,
    /// The longest time that a checkpoint blocked the application, in seconds.
    pub blocked_max_s: f64,
    /// The total time that checkpoints blocked the application, in seconds.
    pub blocked_total_s: f64,
    /// Files that refer to earlier files for part of their content (`reduction.method`).
    pub packed_files: u64,
    /// Files that could have referred to earlier files, but hold whole shards.
    pub whole_files: u64,
    /// Bytes of the shards that the files in `packed_files` and `whole_files` represent.
    pub reduced_bytes: u64,
    /// Bytes that the files in `packed_files` and `whole_files` store themselves.
    pub stored_bytes: u64,
    /// Captures that stored only what had changed since the previous one.
    pub partial_captures: u64,
    /// Shards whose regions in GPU memory were compared there, chunk by chunk.
    pub looked_on_device: u64,
    /// Seconds that these comparisons took, while the shards were transferred.
    pub look_total_s: f64,
    /// Bytes of shards that remained to be compressed (`reduction.compress`).
    pub compressed_from: u64,
    /// The size of the same data after compression, in bytes.
    pub compressed_to: u64,
    /// Seconds that the compression took.
    pub compress_total_s: f64,
    /// Checkpoints that were marked (`bvk_offload`).
    pub marks: u64,
    /// Marked checkpoints that this rank refused later, for example because of a write that was not declared.
    pub marks_refused: u64,
    /// Bytes in GPU memory that were marked.
    pub marked_bytes: u64,
    /// Marked bytes that were not sent, because node memory already held them.
    pub equal_bytes: u64,
    /// Marked bytes that were copied to another place in GPU memory before a write.
    pub doubled_bytes: u64,
    /// Marked bytes that a stream of the application had to wait for.
    pub urgent_bytes: u64,
    /// How often a checkpoint waited for the previous marked checkpoint.
    pub mark_waits: u64,
    /// Seconds that the waits in `mark_waits` took.
    pub mark_wait_total_s: f64,
    /// Checkpoints that only the application's declarations protected from later writes (`offload.audit`, `offload.host_writes`).
    pub unaudited: u64,
    /// Live regions that were copied after the checkpoint call had returned (`bvk_set_live`).
    pub live_regions: u64,
    /// Bytes of the regions in `live_regions`.
    pub live_bytes: u64,
    /// Bytes in `live_bytes` that a write of the application waited for.
    pub live_waited_bytes: u64,
    /// Bytes in `live_bytes` that were copied because a write was declared (`bvk_before_write`).
    pub live_declared_bytes: u64,
    /// Live regions that were nevertheless copied before the checkpoint call returned.
    pub live_at_once: u64,
    /// How often a checkpoint waited until the live regions of the previous one were copied.
    pub live_waits: u64,
    /// Seconds that the waits in `live_waits` took.
    pub live_wait_total_s: f64,
}

/// Counters of this rank for one level, summed over all tiers that have this level. Set `size` to `sizeof(bvk_level_stats)` before the
/// call (`BVK_LEVEL_STATS_INIT`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CLevelStats {
    /// `sizeof(bvk_level_stats)`.
    pub size: usize,
    /// Checkpoints that reached the level.
    pub committed: u64,
    /// Checkpoints that should have reached the level but did not.
    pub level_failures: u64,
    /// Writes of this rank that failed.
    pub write_failures: u64,
    /// Bytes that this rank has written in the background.
    pub flushed_bytes: u64,
    /// Bytes that restarts have read from node memory, node-local storage, other nodes, the parallel file system or an object store.
    pub restored_bytes: u64,
    /// Copies of shards or blocks that were found damaged.
    pub damaged: u64,
    /// Seconds that it took to write `flushed_bytes`.
    pub flushed_s: f64,
}

/// The ranks' verdict on one level of one checkpoint, or the information that a level has been out of reach since the session was opened.
/// Set `size` to `sizeof(bvk_report)` before the call (`BVK_REPORT_INIT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CReport {
    /// `sizeof(bvk_report)`.
    pub size: usize,
    /// The version; 0 for a tier that cannot be used.
    pub version: u64,
    /// The level, `BVK_LEVEL_...`; `BVK_LEVEL_CAPTURED` stands for the call itself.
    pub level: c_int,
    /// 1: committed; 0: abandoned or out of reach; -1: unknown, because the root could not be reached.
    pub committed: c_int,
    /// The name of the series; empty for a tier that cannot be used.
    pub name: [c_char; 136],
    /// The reason, if `committed` is not 1. A long reason is truncated.
    pub reason: [c_char; 512],
}

/// The configuration that the options describe.
///
/// # Safety
/// As [`bvk_open`] for its options.
unsafe fn configure(options: *const Options) -> Result<Config, String> {
    if options.is_null() {
        return Config::from_env().map_err(|error| error.to_string());
    }
    let inner = || -> Outcome<Config> {
        // SAFETY: the structure begins with its size, says the caller; all members may be zero.
        let options = unsafe { sized(options, "bvk_options") }?;
        // SAFETY: texts are NULL or end with a zero byte, says the caller.
        let optional =
            |given: *const c_char, what| (!given.is_null()).then(|| unsafe { text(given, what) }).transpose();
        let file = optional(options.config_file, "config_file")?;
        let inline = optional(options.config_text, "config_text")?;
        let mut settings = Vec::new();
        let mut next = options.settings;
        // SAFETY: the list ends with NULL, says the caller.
        while let Some(entry) = unsafe { next.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: as above.
            let setting = unsafe { text(*entry, "a setting") }?;
            let pair = setting.split_once('=');
            let (key, value) = pair.ok_or_else(|| {
                Failure::argument(format!("setting {setting:?} is not of the form section.key=value"))
            })?;
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
            // SAFETY: this entry was not the last one.
            next = unsafe { next.add(1) };
        }
        let source = match (file, inline) {
            (Some(_), Some(_)) => {
                return Err(Failure::argument("config_file and config_text are both set: choose one"));
            }
            (Some(file), None) => ConfigSource::File(Path::new(file)),
            (None, Some(inline)) => ConfigSource::Text(inline),
            (None, None) => ConfigSource::Environment,
        };
        Config::with_settings(source, &settings).map_err(|error| Failure::new(BVK_ERR_OPEN, error.to_string()))
    };
    inner().map_err(|failure| failure.text)
}

/// Opens a session and keeps it under a handle.
///
/// # Safety
/// `comm` is a communicator of this process or `MPI_COMM_NULL`.
pub(super) unsafe fn open(comm: MPI_Comm, config: Result<Config, String>) -> Outcome<Id> {
    // SAFETY: as the caller says.
    let comm = unsafe { MpiComm::duplicate_raw(comm, &prepare_to_wait(config.as_ref())) }
        .map_err(|error| Failure::from(bivouac_core::session::Error::from(error)))?;
    let session = Session::open_on_mpi(comm, config)?;
    Ok(handles::insert(Entry::Session(Arc::new(Lock::at(Order::Call, Some(Open::new(session)))))))
}

/// Opens a session on the ranks of `comm`, which may be any intracommunicator. MPI must be initialised, at any thread level.
/// With `MPI_THREAD_MULTIPLE`, or with sockets between the ranks, a thread of Bivouac exchanges the coordination messages;
/// otherwise the session's calls do.
///
/// Collective over `comm`. Blocks until all ranks have made the call, but no longer than `timeouts.abandon` (at least 10 s). After that
/// time the call fails, the error names the ranks that have not made the call, and two MPI requests of Bivouac stay open on `comm`. The
/// call also blocks on the file systems of the tiers. If a rank has a mistake in its configuration or options, all ranks fail together.
/// Make this call from a thread that may call MPI.
///
/// `options`: NULL for the environment alone. `*session`: the handle, yours until `bvk_close`; NULL after an error.
///
/// Errors: `BVK_ERR_OPEN` (the text names ranks and keys; also returned for a NULL `session`), `BVK_ERR_MPI`, `BVK_ERR_FAILED`. If `comm`
/// on some ranks is not a communicator, the other ranks wait for these ranks.
///
/// # Safety
/// `comm` is live or `MPI_COMM_NULL`; `options` is NULL or begins with its size, its texts are NUL-terminated, and its list ends with NULL;
/// `session` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_open(comm: MPI_Comm, options: *const Options, session: *mut *mut SessionHandle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { put(session, std::ptr::null_mut()) };
        // SAFETY: as the caller says.
        let config = unsafe { configure(options) };
        let config =
            if session.is_null() { Err("the pointer to the session handle is NULL".to_owned()) } else { config };
        // SAFETY: as the caller says.
        let id = unsafe { open(comm, config) }?;
        // SAFETY: not NULL, or opening had failed.
        unsafe { must_put(session, to_pointer(id), "session") }?;
        Ok(BVK_OK)
    })
}

/// Opens a session on a communicator in Fortran's form (`MPI_Comm_c2f`); otherwise like `bvk_open`.
///
/// Collective and blocking like `bvk_open`.
///
/// # Safety
/// As for [`bvk_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_open_f(comm: c_int, options: *const Options, session: *mut *mut SessionHandle) -> c_int {
    let mut status = BVK_OK;
    let mut found = None;
    // SAFETY: as the caller says.
    unsafe { put(session, std::ptr::null_mut()) };
    let looked = call(|| {
        found = Some(
            bivouac_core::comm::mpi::from_fortran(comm)
                .map_err(|error| Failure::from(bivouac_core::session::Error::from(error)))?,
        );
        Ok(BVK_OK)
    });
    if let Some(comm) = found {
        // SAFETY: as the caller says.
        status = unsafe { bvk_open(comm, options, session) };
    }
    if looked == BVK_OK { status } else { looked }
}

/// Waits for all checkpoints that are being written, then closes the session and everything that was created from it. `*session` becomes
/// NULL. A NULL session is not an error.
///
/// Collective. Blocks for checkpoints that are being written, for at most `timeouts.drain`; then for ranks that have not made the
/// call, for at most `timeouts.abandon` (30 minutes unless it is set); and finally a few seconds for the last messages. The status
/// does not say which levels the last checkpoint reached: call `bvk_wait` first, or read the reports. Handles of pending checkpoints
/// stay valid until `bvk_release`.
///
/// Errors: `BVK_ERR_UNDRAINED`, `BVK_ERR_DISAGREED`, `BVK_ERR_FAILED`; the session is closed nevertheless. `BVK_ERR_HANDLE`;
/// `BVK_ERR_STATE` in a forked child.
///
/// # Safety
/// `session` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_close(session: *mut *mut SessionHandle) -> c_int {
    call(|| {
        // SAFETY: NULL or a pointer to a handle, says the caller.
        let Some(place) = (unsafe { session.as_mut() }) else { return Ok(BVK_OK) };
        if place.is_null() {
            return Ok(BVK_OK);
        }
        let shared = handles::session(*place)?;
        // A call on another thread that is in the session ends first.
        let open = handles::take(&shared)?;
        *place = std::ptr::null_mut();
        open.close()?;
        Ok(BVK_OK)
    })
}

/// The generation: the number of this run on its store, which grows with every run.
///
/// Local, never waits.
///
/// # Safety
/// `generation` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_generation(session: *mut SessionHandle, generation: *mut u64) -> c_int {
    with(session, |open| {
        // SAFETY: as the caller says.
        unsafe { must_put(generation, open.session.generation(), "generation") }?;
        Ok(BVK_OK)
    })
}

/// Protects `count` elements at `data` as region `name` (1 to 256 bytes without control characters, not beginning with `.bivouac/`):
/// `bvk_checkpoint` saves them, and `bvk_restore` loads them. The memory may be on the host or on a GPU. A region of this name that is already protected is replaced, so make this call again after a reallocation (before
/// the reallocation of a live region, call `bvk_settle`). Node memory for a checkpoint of all protected regions is prepared in the
/// background.
///
/// Local. If a live region (`bvk_set_live`) is replaced by a region at another address, waits until the old region has been copied;
/// otherwise never waits.
///
/// `kind` is one of `BVK_U8` to `BVK_F64` or `BVK_RECORD(bytes)`. The memory at `data` still belongs to the application; `data` may be NULL
/// if `count` is 0. Access to device memory is ordered by the session's stream. Host memory, including pinned and managed memory, is read
/// as it is at the time of the checkpoint call.
///
/// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`, `BVK_ERR_HANDLE`.
///
/// # Safety
/// Until the region is unprotected or replaced, or the session is closed, the memory is readable in each call that saves it, and writable
/// and used by nothing else in each call that loads it. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect(
    session: *mut SessionHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    // SAFETY: as the caller says; there is one extent.
    unsafe { bvk_protect_shaped(session, name, data, kind, 1, &count) }
}

/// Protects an array with the extents of its `dimensions` dimensions, slowest first; otherwise like `bvk_protect`.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect`.
///
/// # Safety
/// As for [`bvk_protect`]; `shape` points to `dimensions` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_shaped(
    session: *mut SessionHandle,
    name: *const c_char,
    data: *mut c_void,
    kind: c_int,
    dimensions: c_int,
    shape: *const u64,
) -> c_int {
    with(session, |open| {
        // SAFETY: as the caller says.
        let region = unsafe { described(name, data, kind, dimensions, shape) }?;
        open.protect([region]);
        Ok(BVK_OK)
    })
}

/// Protects the `count` regions of a list in one call, each as `bvk_protect` does. If one of them cannot be protected, none is. The cost
/// per region does not depend on the number of regions.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect`; also if two entries of the list have the same name. The error text says which
/// entry is wrong, counted from 0.
///
/// # Safety
/// `regions` points to `count` structures, all of the size that the first one begins with, or is NULL and `count` is 0. The requirements of
/// `bvk_protect` hold for each region, and a shape has as many numbers as dimensions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_many(session: *mut SessionHandle, regions: *const CRegion, count: usize) -> c_int {
    with(session, |open| {
        // SAFETY: as the caller says.
        let regions = unsafe { listed(regions, count) }?;
        open.protect(regions);
        Ok(BVK_OK)
    })
}

/// The regions of a list, none of them twice.
///
/// # Safety
/// As [`bvk_protect_many`].
unsafe fn listed(regions: *const CRegion, count: usize) -> Outcome<Vec<Region>> {
    let mut names = HashSet::new();
    let mut found = Vec::new();
    // SAFETY: as the caller says.
    for (at, entry) in unsafe { entries(regions, count) }?.into_iter().enumerate() {
        let CRegion { name, data, count, kind, dimensions, shape, .. } = entry;
        let one = [count];
        let (dimensions, shape) = if dimensions == 0 { (1, one.as_ptr()) } else { (dimensions, shape) };
        // SAFETY: as the caller says; there is one extent.
        let region = unsafe { described(name, data, kind, dimensions, shape) }
            .map_err(|failure| Failure::new(failure.status, format!("entry {at} of the list: {}", failure.text)))?;
        if !names.insert(region.name.clone()) {
            let text = format!("entry {at} of the list: region {:?} is in the list twice", region.name);
            return Err(Failure::new(BVK_ERR_REGION, text));
        }
        found.push(region);
    }
    Ok(found)
}

/// The entries of a list, all of the size that the first one says.
///
/// # Safety
/// As [`bvk_protect_many`].
unsafe fn entries(list: *const CRegion, count: usize) -> Outcome<Vec<CRegion>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() {
        return Err(Failure::argument(format!("the list of {count} regions is NULL")));
    }
    // SAFETY: the first structure begins with its size, says the caller.
    let size = unsafe { list.cast::<usize>().read_unaligned() };
    let mut found = Vec::new();
    for at in 0..count {
        // SAFETY: the structures lie side by side, and all have the size of the first, says the caller.
        let entry = unsafe { sized(list.byte_add(at * size), "bvk_region") }?;
        if entry.size != size {
            let text =
                format!("entry {at} of the list: its size is {}, but that of the first entry is {size}", entry.size);
            return Err(Failure::argument(text));
        }
        found.push(entry);
    }
    Ok(found)
}

/// Protects a region under a number instead of a name: the region is called `#7` for `id` 7.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect`.
///
/// # Safety
/// As for [`bvk_protect`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_id(
    session: *mut SessionHandle,
    id: c_int,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    with(session, |open| {
        open.protect([Region::new(&name_of_id(id), data, kind, &[count])?]);
        Ok(BVK_OK)
    })
}

/// The name of a region that is protected under a number.
pub(super) fn name_of_id(id: c_int) -> String {
    format!("#{id}")
}

/// Ends the protection of a region. Its memory may be freed as soon as the call returns, unless `bvk_save` has added the
/// region to a checkpoint that has not been captured yet. If the session offloads its GPU (`bvk_offload`), call
/// `bvk_settle` before GPU memory is freed.
///
/// Local. If the region is live (`bvk_set_live`), waits until it has been copied; otherwise never waits.
///
/// Errors: `BVK_ERR_ARGUMENT` if no such region is protected.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_unprotect(session: *mut SessionHandle, name: *const c_char) -> c_int {
    with(session, |open| {
        // SAFETY: as the caller says.
        unprotect(open, unsafe { text(name, "the name of a region") }?)
    })
}

/// Ends the protection of a region that was protected under a number; otherwise like `bvk_unprotect`.
///
/// Local, waits like `bvk_unprotect`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_unprotect_id(session: *mut SessionHandle, id: c_int) -> c_int {
    with(session, |open| unprotect(open, &name_of_id(id)))
}

/// Ends the protection of all regions; otherwise like `bvk_unprotect`.
///
/// Local, waits like `bvk_unprotect`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_unprotect_all(session: *mut SessionHandle) -> c_int {
    with(session, |open| {
        open.let_go(open.protected.iter());
        open.protected = Regions::default();
        Ok(BVK_OK)
    })
}

fn unprotect(open: &mut Open, name: &str) -> Outcome {
    open.let_go(open.protected.get(name));
    match open.protected.remove(name) {
        true => Ok(BVK_OK),
        false => Err(Failure::argument(format!("no region {name:?} is protected"))),
    }
}

/// Sets the session's stream, a `cudaStream_t` or `CUstream` of the device's primary context. After this call, regions in device memory
/// (not in managed memory) count as complete once the work that is enqueued on `stream` has run. NULL, the default, stands for the legacy
/// default stream. Programs without GPUs do not need this call.
///
/// Local, never waits. The stream still belongs to the application.
///
/// # Safety
/// The stream lives until another one is set or the session is closed, and is not the per-thread default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_set_stream(session: *mut SessionHandle, stream: *mut c_void) -> c_int {
    with(session, |open| {
        open.stream = stream.expose_provenance();
        Ok(BVK_OK)
    })
}

/// Asks whether a checkpoint is due according to the configured interval. Make this call once per step. `*yes`: 1 or 0, the same on
/// all ranks.
///
/// Collective: all ranks, the same number of times. Blocks only when a checkpoint that is scheduled by time or cost is nearly due.
///
/// Errors: `BVK_ERR_DISAGREED`, `BVK_ERR_FAILED`, `BVK_ERR_STATE`; `*yes` is then 0.
///
/// # Safety
/// `yes` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_should_checkpoint(session: *mut SessionHandle, yes: *mut c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe { decide(session, yes, Session::should_checkpoint) }
}

/// Asks whether the program should stop, because a configured signal has arrived on some rank, the end of the allocation is near,
/// `bivouac halt` was called, or the configured stop file exists. `*yes`: 1 or 0, the same on all ranks.
///
/// Collective: all ranks, the same number of times. About once every `exit.check_every`, the ranks compare what they have seen.
///
/// Errors: as for `bvk_should_checkpoint`.
///
/// # Safety
/// `yes` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_should_exit(session: *mut SessionHandle, yes: *mut c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe { decide(session, yes, Session::should_exit) }
}

/// # Safety
/// `yes` is NULL or points to a number.
unsafe fn decide(
    session: *mut SessionHandle,
    yes: *mut c_int,
    ask: fn(&Session) -> bivouac_core::session::Result<bool>,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(yes, 0) };
    with(session, |open| {
        open.check_no_restart()?;
        let answer = ask(&open.session)?;
        // SAFETY: as the caller says.
        unsafe { must_put(yes, c_int::from(answer), "yes") }?;
        Ok(BVK_OK)
    })
}

/// Prepares node memory in the background for checkpoints of about `bytes` per rank, so that the first checkpoint
/// does not wait for this memory.
///
/// Local, never waits.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_prepare(session: *mut SessionHandle, bytes: u64) -> c_int {
    with(session, |open| {
        open.session.prepare(bytes);
        Ok(BVK_OK)
    })
}

/// Exchanges coordination messages. This call is needed only if the session has no thread for these messages
/// (`engine.progress = "stepped"`) and other calls are rare.
///
/// Local, never waits.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_progress(session: *mut SessionHandle) -> c_int {
    with(session, |open| {
        open.session.progress();
        Ok(BVK_OK)
    })
}

/// Threads stay where the launcher bound them.
pub const BVK_PIN_LAUNCHER: c_int = 0;
/// Each rank gets its share of neighbouring cores, and each of its threads gets one of these cores.
pub const BVK_PIN_COMPACT: c_int = 1;
/// Each rank gets its share of neighbouring cores, and its threads are placed in turn on the NUMA nodes or caches of this share.
pub const BVK_PIN_SCATTER: c_int = 2;

/// Places the threads of this rank as `policy` says (`BVK_PIN_...`), on CPUs that the job was given on this node.
///
/// Local. With the same policy on all ranks of a node, the ranks get different cores. Threads are left alone if affinity is off, if the
/// node has processes of the job that are not ranks of the session, or if no launcher says what the job was given and the session has
/// several ranks on the node.
///
/// Errors: `BVK_ERR_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_pin(session: *mut SessionHandle, policy: c_int) -> c_int {
    with(session, |open| {
        open.session.pin(match policy {
            BVK_PIN_LAUNCHER => Pin::Launcher,
            BVK_PIN_COMPACT => Pin::Compact,
            BVK_PIN_SCATTER => Pin::Scatter,
            _ => return Err(Failure::argument(format!("there is no pin policy {policy}; see BVK_PIN_..."))),
        });
        Ok(BVK_OK)
    })
}

/// Restarts put threads and pages back where they were.
pub const BVK_AFFINITY_FULL: c_int = 0;
/// Restarts put only threads back.
pub const BVK_AFFINITY_THREADS: c_int = 1;
/// Restarts put only pages back.
pub const BVK_AFFINITY_PAGES: c_int = 2;
/// Restarts put neither threads nor pages back.
pub const BVK_AFFINITY_CAPTURE: c_int = 3;

/// Sets which parts of the affinity (`BVK_AFFINITY_...`) later restarts bring back, instead of the configured parts.
///
/// Local, but ranks with different modes restore different parts.
///
/// Errors: `BVK_ERR_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_set_affinity(session: *mut SessionHandle, mode: c_int) -> c_int {
    with(session, |open| {
        open.session.set_affinity(match mode {
            BVK_AFFINITY_FULL => AffinityMode::Full,
            BVK_AFFINITY_THREADS => AffinityMode::Threads,
            BVK_AFFINITY_PAGES => AffinityMode::Pages,
            BVK_AFFINITY_CAPTURE => AffinityMode::Capture,
            _ => return Err(Failure::argument(format!("there is no affinity mode {mode}; see BVK_AFFINITY_..."))),
        });
        Ok(BVK_OK)
    })
}

/// Fills `stats` with counters and times of this rank.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT` if `stats->size` was not set.
///
/// # Safety
/// `stats` is NULL or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_get_stats(session: *mut SessionHandle, stats: *mut CStats) -> c_int {
    with(session, |open| {
        let now = open.session.stats();
        let filled = CStats {
            size: 0,
            captured: now.captured,
            abandoned: now.abandoned,
            in_flight: now.in_flight,
            bytes_captured: now.bytes_captured,
            room_waits: now.room_waits,
            direct_captures: now.direct_captures,
            damaged: now.damaged.iter().map(|(_, copies)| copies).sum(),
            blocked_last_s: now.blocked_last.as_secs_f64(),
            blocked_max_s: now.blocked_max.as_secs_f64(),
            blocked_total_s: now.blocked_total.as_secs_f64(),
            packed_files: now.reduction.packed,
            whole_files: now.reduction.whole,
            reduced_bytes: now.reduction.shard_bytes,
            stored_bytes: now.reduction.stored_bytes,
            partial_captures: now.reduction.partial_captures,
            looked_on_device: now.reduction.looked_on_device,
            look_total_s: now.reduction.device_time.as_secs_f64(),
            compressed_from: now.reduction.compressed_from,
            compressed_to: now.reduction.compressed_to,
            compress_total_s: now.reduction.compress_time.as_secs_f64(),
            marks: now.offload.marks,
            marks_refused: now.offload.refused,
            marked_bytes: now.offload.bytes,
            equal_bytes: now.offload.equal_bytes,
            doubled_bytes: now.offload.doubled_bytes,
            urgent_bytes: now.offload.urgent_bytes,
            mark_waits: now.offload.waits,
            mark_wait_total_s: now.offload.wait_time.as_secs_f64(),
            unaudited: now.unaudited,
            live_regions: now.live.regions,
            live_bytes: now.live.bytes,
            live_waited_bytes: now.live.waited_bytes,
            live_declared_bytes: now.live.declared_bytes,
            live_at_once: now.live.at_once,
            live_waits: now.live.waits,
            live_wait_total_s: now.live.wait_time.as_secs_f64(),
        };
        // SAFETY: as the caller says; all members are 8 bytes long, so there is no padding.
        unsafe { fill(stats, filled, "bvk_stats") }?;
        Ok(BVK_OK)
    })
}

/// Fills `stats` with the counters of this rank for one level (`BVK_LEVEL_PROCESS` to `BVK_LEVEL_SYSTEM`). If several tiers have the level,
/// the counters are the sums over these tiers.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT` if `stats->size` was not set, or for any other level.
///
/// # Safety
/// `stats` is NULL or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_get_level_stats(
    session: *mut SessionHandle,
    level: c_int,
    stats: *mut CLevelStats,
) -> c_int {
    with(session, |open| {
        let wanted = self::level(level)?;
        if !Level::VOTED.contains(&wanted) {
            return Err(Failure::argument(format!("no tier has level {level}; see BVK_LEVEL_...")));
        }
        let now = open.session.stats();
        let sum = |of: &PerTier<u64>| of.iter().filter(|(tier, _)| tier.level() == wanted).map(|(_, n)| n).sum();
        let flushed = now.flushed_time.iter().filter(|(tier, _)| tier.level() == wanted);
        let filled = CLevelStats {
            size: 0,
            committed: sum(&now.committed),
            level_failures: sum(&now.level_failures),
            write_failures: sum(&now.write_failures),
            flushed_bytes: sum(&now.flushed_bytes),
            restored_bytes: sum(&now.restored_bytes),
            damaged: sum(&now.damaged),
            flushed_s: flushed.map(|(_, time)| time.as_secs_f64()).sum(),
        };
        // SAFETY: as the caller says; all members are 8 bytes long, so there is no padding.
        unsafe { fill(stats, filled, "bvk_level_stats") }?;
        Ok(BVK_OK)
    })
}

/// Reads the next report, which is a verdict that the ranks have agreed on. Reports come in the order of the checkpoints. `BVK_NOTHING`:
/// all reports have been read. The first reports, which have no name, are about configured tiers that cannot be used: no checkpoint
/// reaches the level of such a tier.
///
/// Local, never waits. All ranks get the same verdicts, though not at the same time.
///
/// Errors: `BVK_ERR_ARGUMENT` if `report->size` was not set.
///
/// # Safety
/// `report` begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_next_report(session: *mut SessionHandle, report: *mut CReport) -> c_int {
    with(session, |open| {
        if report.is_null() {
            return Err(Failure::argument("report is NULL"));
        }
        if open.reports.is_empty() {
            open.reports.extend(open.session.reports());
        }
        let Some(next) = open.reports.front() else { return Ok(BVK_NOTHING) };
        let committed = match &next.verdict {
            LevelVerdict::Committed => 1,
            LevelVerdict::Abandoned(_) | LevelVerdict::Off(_) => 0,
            LevelVerdict::Unknown(_) => -1,
        };
        let reason = next.verdict.reason().unwrap_or_default();
        let filled = CReport {
            size: 0,
            version: next.key.version,
            level: level_number(next.level),
            committed,
            name: characters(&next.name),
            reason: characters(&reason),
        };
        // SAFETY: as the caller says; the members follow each other without padding.
        unsafe { fill(report, filled, "bvk_report") }?;
        open.reports.pop_front();
        Ok(BVK_OK)
    })
}

/// Text that is cut to the room that there is and ends with zero.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut cut = text.len().min(N - 1);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text[..cut].bytes()) {
        *to = from as c_char;
    }
    out
}

/// The number of a level.
pub(super) fn level_number(level: Level) -> c_int {
    match level {
        Level::Captured => BVK_LEVEL_CAPTURED,
        Level::Process => BVK_LEVEL_PROCESS,
        Level::NodeReboot => BVK_LEVEL_NODE_REBOOT,
        Level::NodeLoss => BVK_LEVEL_NODE_LOSS,
        Level::System => BVK_LEVEL_SYSTEM,
    }
}

/// The level that a number stands for.
pub(super) fn level(number: c_int) -> Outcome<Level> {
    let all = [Level::Captured, Level::Process, Level::NodeReboot, Level::NodeLoss, Level::System];
    let found = all.into_iter().find(|level| level_number(*level) == number);
    found.ok_or_else(|| Failure::argument(format!("there is no level {number}; see BVK_LEVEL_...")))
}

/// Sets which lines Bivouac writes to standard error, according to their importance: 0 nothing; 1 errors; 2 warnings, and one line each
/// when a session opens, restores and closes; 3 events; 4 details; 5 everything. This call takes precedence over `job.log` and
/// `BIVOUAC_LOG`. Without this call, these settings decide, and if neither is set, the level is 2.
///
/// Local, never waits, any thread, at any time.
///
/// Errors: `BVK_ERR_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_log(level: c_int) -> c_int {
    call(|| {
        let level = match level {
            0 => LogLevel::Off,
            1 => LogLevel::Error,
            2 => LogLevel::Warn,
            3 => LogLevel::Info,
            4 => LogLevel::Debug,
            5 => LogLevel::Trace,
            _ => return Err(Failure::argument(format!("there is no log level {level}: give 0 to 5"))),
        };
        log::decide(level);
        Ok(BVK_OK)
    })
}
