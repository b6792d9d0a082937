//! Checkpoints of GPU memory that are marked: the regions are sent while the application continues and declares what it is about to write
//! to.
//!
//! A session offloads one GPU. After [`bvk_offload`], the session's captures mark regions on this GPU. All other functions in this module
//! make declarations or wait. Declarations and [`bvk_settle`] are also for live host memory ([`super::live`]). Declared memory is compared
//! with the regions by its addresses, and is neither read nor written.

use super::arguments::{must_put, put, text};
use super::gpu::{self, Gpu};
use super::handles::{self, Id, Part, lock, part, to_pointer};
use super::history;
use super::open::{Offloading, Open, Writes, insert_part, with};
use super::regions::Region;
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome, call};
use bivouac_core::device::DeviceSpan;
use bivouac_core::transfer::offload::Offload;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

/// The memory that a piece of work writes to.
pub struct WriteSetHandle {
    _private: (),
}

impl Offloading {
    /// The offloader that marks captures with regions on that GPU.
    pub(super) fn of(&self, gpu: Option<usize>) -> Option<&Offload> {
        (self.gpu == gpu).then_some(&self.offload)
    }

    fn device<'g>(&self, gpus: &'g BTreeMap<Option<usize>, Gpu>) -> Outcome<&'g Gpu> {
        gpus.get(&self.gpu).ok_or_else(|| Failure::state("the caches of the GPU that is offloaded are gone"))
    }

    /// Memory that work will write to; `None` if nothing that is marked can lie there.
    fn span(&self, gpu: &Gpu, piece: &Range<usize>) -> Outcome<Option<DeviceSpan>> {
        let data = std::ptr::without_provenance(piece.start);
        if piece.is_empty() || gpu::of_pointer(data)?.is_none_or(|whose| Some(whose) != self.gpu) {
            return Ok(None);
        }
        // SAFETY: nothing is copied from or to this span or a part of it, so its memory need not stay: `Offload::before_write`, its only use,
        // looks which blocks of marked regions lie at its addresses, and copies from the regions' own spans.
        Ok(Some(unsafe { gpu.span(piece.start as u64, piece.len() as u64) }?))
    }
}

/// The addresses of memory that is declared.
fn piece(data: *const c_void, bytes: u64) -> Outcome<Range<usize>> {
    if bytes == 0 {
        return Ok(0..0);
    }
    if data.is_null() {
        return Err(Failure::argument(format!("the pointer to {bytes} bytes is NULL")));
    }
    let end = usize::try_from(bytes).ok().and_then(|bytes| data.addr().checked_add(bytes));
    let end =
        end.ok_or_else(|| Failure::argument(format!("{bytes} bytes at {data:p} extend past the end of memory")))?;
    Ok(data.addr()..end)
}

impl Open {
    fn offloading(&self) -> Outcome<&Offloading> {
        self.offload.as_ref().ok_or_else(not_offloading)
    }

    /// The offloader, if there is one. The result is an error if nothing would ever have to be declared.
    fn declaring(&self) -> Outcome<Option<&Offloading>> {
        match &self.offload {
            None if !self.has_live => Err(not_offloading()),
            offload => Ok(offload.as_ref()),
        }
    }

    /// Marks checkpoints of that GPU from now on, and makes node memory for `bytes` ready, unless that is 0.
    fn start_offloading(&mut self, gpu: Option<usize>, bytes: u64) -> Outcome<()> {
        let prepare = |offload: &Offload| if bytes > 0 { offload.prepare(bytes) } else { Ok(()) };
        if let Some(known) = &self.offload {
            if known.gpu != gpu {
                let number = |gpu: Option<usize>| gpu.map_or("BVK_NO_GPU".to_owned(), |number| format!("GPU {number}"));
                return Err(Failure::state(format!(
                    "this session already offloads {}: open another session for {}",
                    number(known.gpu),
                    number(gpu)
                )));
            }
            return Ok(prepare(&known.offload)?);
        }
        let offload = self.session.offload(&history::gpu(&self.session, &mut self.gpus, gpu)?.caches)?;
        prepare(&offload)?;
        self.offload = Some(Offloading { offload, gpu });
        Ok(())
    }

    /// Declares regions that a call to Bivouac is about to write to, on the session's stream.
    ///
    /// # Safety
    /// The application's promise about its stream holds.
    pub(super) unsafe fn declare<'a>(&self, regions: impl IntoIterator<Item = &'a Region> + Clone) -> Outcome<()> {
        regions.clone().into_iter().for_each(|region| self.session.engine().before_write(&region.range()));
        let Some(offloading) = &self.offload else { return Ok(()) };
        let gpu = offloading.device(&self.gpus)?;
        for region in regions.into_iter().filter(|region| region.gpu().is_some() && region.gpu() == offloading.gpu) {
            // SAFETY: as in `Offloading::span`; the stream is the application's, as the caller says.
            let (spans, stream) = unsafe { (region.spans(gpu)?, gpu.stream(self.stream)?) };
            spans.iter().try_for_each(|span| offloading.offload.before_write(span, &*stream))?;
        }
        Ok(())
    }

    /// # Safety
    /// `stream` is a stream of the GPU's primary context.
    unsafe fn before_write(&self, data: *const c_void, bytes: u64, stream: usize) -> Outcome {
        let offloading = self.declaring()?;
        let piece = piece(data, bytes)?;
        self.session.engine().before_write(&piece);
        let Some(offloading) = offloading else { return Ok(BVK_OK) };
        let gpu = offloading.device(&self.gpus)?;
        if let Some(span) = offloading.span(gpu, &piece)? {
            // SAFETY: as the caller says; what is made of it is gone when this returns.
            let stream = unsafe { gpu.stream(stream) }?;
            offloading.offload.before_write(&span, &*stream)?;
        }
        Ok(BVK_OK)
    }

    /// The writes of a set of that name.
    fn writes(&self, name: &str, pieces: Vec<Range<usize>>) -> Outcome<Writes> {
        let Some(offloading) = &self.offload else { return Ok(Writes { pieces, marked: None }) };
        let gpu = offloading.device(&self.gpus)?;
        let mut spans = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            spans.extend(offloading.span(gpu, piece).map_err(|failure| of_entry(name, at, &failure))?);
        }
        let marked = Some(offloading.offload.write_set(name, &spans));
        Ok(Writes { pieces, marked })
    }

    /// # Safety
    /// As [`Open::before_write`].
    unsafe fn before(&self, set: Id, stream: usize) -> Outcome {
        let known = self.sets.get(&set);
        let known = known.ok_or_else(|| Failure::state("this set of writes was closed by another thread"))?;
        known.pieces.iter().for_each(|piece| self.session.engine().before_write(piece));
        let Some(offloading) = &self.offload else { return Ok(BVK_OK) };
        let marked = known.marked.as_ref().ok_or_else(|| {
            Failure::state(
                "this set was made before bvk_offload, so which part of it is on the GPU is not known: make it again",
            )
        })?;
        // SAFETY: as the caller says; what is made of it is gone when this returns.
        let stream = unsafe { offloading.device(&self.gpus)?.stream(stream) }?;
        offloading.offload.before(marked, &*stream)?;
        Ok(BVK_OK)
    }
}

fn not_offloading() -> Failure {
    Failure::state(
        "this session does not offload, so nothing is marked: call bvk_offload first (once, after bvk_open), or bvk_set_live for host \
         memory",
    )
}

/// Says which entry of the list of a set is wrong, and why.
fn of_entry(name: &str, at: usize, failure: &Failure) -> Failure {
    Failure::new(failure.status, format!("set {name:?}: entry {at} of the list: {}", failure.text))
}

/// After this call, checkpoints with regions in the memory of GPU number `gpu` are *marked*: while the application continues, the regions
/// are sent from where they are, and the application declares which memory it is about to write to (`bvk_before_write`, `bvk_before`). The
/// configuration (`[offload]`) says whether a checkpoint is marked, or copied inside the GPU as without this call. Other checkpoints are
/// taken as before. A session can offload only one GPU. With `BVK_NO_GPU`, all declarations are accepted and nothing is marked, so that a
/// program runs unchanged without a GPU. `docs/OFFLOAD.md` shows a program.
///
/// `bytes`: the size of a marked checkpoint's regions in bytes, on the GPU and on the host together. Node memory for two such checkpoints
/// is reserved, touched and pinned, and its two parts are used in turn. With 0, no memory is prepared: the first checkpoints are copied,
/// and their memory is pinned for later ones. A second call prepares more memory. Histories that are opened later may take prepared
/// memory, so open histories before this call.
///
/// Local. Blocks for about half a second per GiB of `bytes`, and for up to a second if this is the first call for the GPU.
///
/// Errors: `BVK_ERR_DEVICE`: the GPU does not exist, this rank does not have enough node memory, or the memory cannot be pinned.
/// `BVK_ERR_STATE`: the session already offloads another GPU. `BVK_ERR_ARGUMENT`, `BVK_ERR_HANDLE`. The session is unchanged.
///
/// # Safety
/// After this call, the memory of a region on that GPU must stay allocated beyond the call that captures it, until `bvk_settle`
/// or `bvk_close` has returned. From a capture until the next one, all work that writes to a saved region, on any stream, must
/// be declared before it is enqueued. Otherwise the checkpoint is refused on all ranks (with `offload.audit = false` it may instead contain
/// later bytes, and nothing detects this).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_offload(session: *mut SessionHandle, gpu: c_int, bytes: u64) -> c_int {
    with(session, |open| {
        open.start_offloading(history::ordinal(gpu)?, bytes)?;
        Ok(BVK_OK)
    })
}

/// Declares that work that is enqueued on the session's stream (`bvk_set_stream`) between this call and the next checkpoint may write to
/// the `bytes` bytes at `data`: a region on the GPU, a part of a region, or several adjacent regions in one allocation. Memory that is not
/// saved is ignored. Host memory is also ignored, because it is copied in the call that captures it. Live regions (`bvk_set_live`) are an
/// exception: the declared bytes that have not been copied yet are copied before this call returns.
///
/// Local, never waits for a GPU. The stream may have to wait: for the mark, for a copy inside the GPU, or for a transfer. For live regions,
/// the call blocks until the declared bytes have been copied.
///
/// Errors: `BVK_ERR_STATE` if neither `bvk_offload` nor `bvk_set_live` has been called, and while the stream is being captured into a CUDA
/// graph: before each launch of a graph, declare everything that the graph writes to. `BVK_ERR_ARGUMENT` if `data` is NULL and `bytes` is
/// not 0. `BVK_ERR_DEVICE`: the bytes are not all on one GPU, or the GPU has failed; marked regions are then refused.
///
/// # Safety
/// The session's stream meets the requirements of `bvk_set_stream`. `data` is not dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_before_write(session: *mut SessionHandle, data: *const c_void, bytes: u64) -> c_int {
    // SAFETY: the application has promised of its stream what `before_write` asks, when it set it.
    with(session, |open| unsafe { open.before_write(data, bytes, open.stream) })
}

/// Declares memory that work on another stream is about to write to. `stream` is a `cudaStream_t` or `CUstream` of the device's primary
/// context; NULL stands for the legacy default stream. Otherwise, the call works like `bvk_before_write`.
///
/// Local, waits like `bvk_before_write`.
///
/// Errors: as for `bvk_before_write`, and `BVK_ERR_ARGUMENT` for the per-thread default stream.
///
/// # Safety
/// `stream` lives until this call has returned. `data` is not dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_before_write_on(
    session: *mut SessionHandle,
    data: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    with(session, |open| unsafe { open.before_write(data, bytes, stream.expose_provenance()) })
}

/// Names the `count` pieces of memory that some work of the application writes to, so that they can be declared together each time
/// (`bvk_before`). This is faster than declaring them one by one, because the driver is asked only once which device each piece belongs to.
/// Memory that is not on the GPU counts as host memory.
///
/// Local, never waits. `set`: the handle, yours until `bvk_write_set_close` or the end of the session; NULL after an error. After a
/// reallocation, and after the first `bvk_offload`, create a new set.
///
/// Errors: as for `bvk_before_write`; the error text says which entry is wrong, counted from 0.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string. `data` points to `count` pointers, which are not dereferenced, and `bytes` points to `count`
/// numbers. `set` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_write_set(
    session: *mut SessionHandle,
    name: *const c_char,
    data: *const *const c_void,
    bytes: *const u64,
    count: usize,
    set: *mut *mut WriteSetHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(set, std::ptr::null_mut()) };
    call(|| {
        let shared = handles::session(session)?;
        let mut open = lock(&shared)?;
        open.declaring()?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of the set") }?;
        if count > 0 && (data.is_null() || bytes.is_null()) {
            return Err(Failure::argument(format!(
                "set {name:?}: the list of {count} pointers or the list of their sizes is NULL"
            )));
        }
        if set.is_null() {
            return Err(Failure::argument("set is NULL"));
        }
        let mut pieces = Vec::new();
        for at in 0..count {
            // SAFETY: both lists have that many entries, says the caller.
            let (data, bytes) = unsafe { (data.add(at).read_unaligned(), bytes.add(at).read_unaligned()) };
            pieces.push(piece(data, bytes).map_err(|failure| of_entry(name, at, &failure))?);
        }
        let writes = open.writes(name, pieces)?;
        let id = insert_part(Part::WriteSet, &shared);
        open.sets.insert(id, writes);
        // SAFETY: as the caller says; it is not NULL.
        unsafe { must_put(set, to_pointer(id), "set") }?;
        Ok(BVK_OK)
    })
}

/// Declares all memory that a set names; otherwise like `bvk_before_write`.
///
/// Local, waits like `bvk_before_write`.
///
/// Errors: as for `bvk_before_write`, and `BVK_ERR_STATE` for a set that was created before `bvk_offload` was called; `BVK_ERR_HANDLE`.
///
/// # Safety
/// The session's stream meets the requirements of `bvk_set_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_before(set: *mut WriteSetHandle) -> c_int {
    call(|| {
        let (id, open) = part(set, Part::WriteSet)?;
        let open = lock(&open)?;
        // SAFETY: the application has promised of its stream what `before` asks, when it set it.
        unsafe { open.before(id, open.stream) }
    })
}

/// Declares all memory that a set names, for work on another stream; otherwise like `bvk_before_write_on`.
///
/// Local, waits like `bvk_before_write`.
///
/// Errors: as for `bvk_before_write_on`, and `BVK_ERR_STATE` for a set that was created before `bvk_offload` was called; `BVK_ERR_HANDLE`.
///
/// # Safety
/// `stream` lives until this call has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_before_on(set: *mut WriteSetHandle, stream: *mut c_void) -> c_int {
    call(|| {
        let (id, open) = part(set, Part::WriteSet)?;
        let open = lock(&open)?;
        // SAFETY: as the caller says.
        unsafe { open.before(id, stream.expose_provenance()) }
    })
}

/// Deletes a set. `*set` becomes NULL. A NULL handle is not an error.
///
/// Local, never waits.
///
/// # Safety
/// `set` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_write_set_close(set: *mut *mut WriteSetHandle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let Some(place) = (unsafe { set.as_mut() }) else { return Ok(BVK_OK) };
        if place.is_null() {
            return Ok(BVK_OK);
        }
        let (id, open) = part(*place, Part::WriteSet)?;
        // A call that is refused leaves the handle.
        lock(&open)?.sets.remove(&id);
        handles::remove(id);
        *place = std::ptr::null_mut();
        Ok(BVK_OK)
    })
}

/// Waits until Bivouac no longer reads marked regions on a GPU or live regions on the host. Make this call before the memory of these
/// regions is freed, and before a write to it that cannot be declared, such as a write by another process or another GPU. If nothing is
/// marked or being copied, this call does nothing.
///
/// Local. Blocks for the transfer of marked regions, at full speed, and for the copy of live ones.
///
/// Errors: `BVK_ERR_HANDLE`. `bvk_wait` says whether the marked checkpoint has been committed.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_settle(session: *mut SessionHandle) -> c_int {
    with(session, |open| {
        if let Some(offloading) = &open.offload {
            offloading.offload.settle();
        }
        open.session.settle();
        Ok(BVK_OK)
    })
}

/// Allows checkpoints to be marked again. After two refused checkpoints in a row, later checkpoints are copied until this call is made.
/// Make it when the missing declaration has been added.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_STATE` without `bvk_offload`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_allow_marks(session: *mut SessionHandle) -> c_int {
    with(session, |open| {
        open.offloading()?.offload.allow_marks();
        Ok(BVK_OK)
    })
}

#[cfg(test)]
mod tests {
    //! The functions of C on the twin, whose memory counts here as a GPU's: a rank marks what it saves, over a link that takes its time.

    use super::super::arguments::{BVK_U8, BVK_U32, BVK_U64};
    use super::super::boxes::{bvk_boxes, bvk_boxes_close, bvk_protect_boxes_on, bvk_protect_on};
    use super::super::checkpoint::{PendingHandle, bvk_checkpoint, bvk_release, bvk_wait};
    use super::super::handles::Entry;
    use super::super::history::{BVK_KEEP_ALL, HistoryHandle};
    use super::super::history::{bvk_history_append, bvk_history_field, bvk_history_open, bvk_history_restore};
    use super::super::live::bvk_set_live;
    use super::super::restart::{BVK_NEWEST, bvk_restore};
    use super::super::session::{BVK_LEVEL_NODE_REBOOT, CStats, bvk_close, bvk_get_stats, bvk_protect};
    use super::super::status::{
        BVK_ERR_ARGUMENT, BVK_ERR_DEVICE, BVK_ERR_NOT_COMMITTED, BVK_ERR_REGION, BVK_ERR_STATE, BVK_NOTHING, bvk_error,
        bvk_status_name,
    };
    use super::*;
    use bivouac_core::Config;
    use bivouac_core::base::sync::{Lock, Order};
    use bivouac_core::base::units::MIB;
    use bivouac_core::comm::threads::world;
    use bivouac_core::config::{Budget, HostWrites, OffloadMode};
    use bivouac_core::device::host::{HostDevice, HostModel};
    use bivouac_core::device::{Device, Stream};
    use bivouac_core::session::Session;
    use bivouac_core::session::place::{Place, Workers};
    use std::ffi::CStr;
    use std::path::Path;
    use std::ptr::{null, null_mut};
    use std::sync::Arc;
    use tempfile::TempDir;

    const TWIN: c_int = gpu::TWIN as c_int;
    const BYTES: u64 = 2 * MIB;

    /// A program with a field that changes all the time, a table that never does, and a counter in host memory.
    struct Program {
        session: *mut SessionHandle,
        device: Arc<HostDevice>,
        stream: Arc<dyn Stream>,
        field: DeviceSpan,
        step: Box<u64>,
    }

    fn at(span: &DeviceSpan) -> *mut c_void {
        std::ptr::without_provenance_mut(span.address() as usize)
    }

    fn error() -> String {
        // SAFETY: the text stays until the next call of this thread that fails.
        unsafe { CStr::from_ptr(bvk_error()) }.to_string_lossy().into_owned()
    }

    #[track_caller]
    fn is(status: c_int, wanted: c_int) {
        // SAFETY: names of statuses are constant.
        let name = |status| unsafe { CStr::from_ptr(bvk_status_name(status)) }.to_string_lossy().into_owned();
        assert_eq!(name(status), name(wanted), "{}", error());
    }

    fn folder() -> TempDir {
        TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder")
    }

    fn content(version: u64) -> Vec<u8> {
        (0..BYTES / 8).flat_map(|at| (version << 32 | at).to_le_bytes()).collect()
    }

    impl Program {
        /// A program with a session in `root` that does not offload yet.
        fn open(root: &Path) -> Program {
            let mut config = Config::default();
            config.job.name = Some("marks".into());
            config.job.block_bytes = 16 << 10;
            config.job.take_over = true;
            config.job.local.every = 1.into();
            config.job.global_enabled = false;
            config.job.offload.mode = OffloadMode::Always;
            config.job.offload.host_writes = HostWrites::Declared;
            config.node.offload_buffer = Budget::Bytes(MIB);
            config.node.device_budget = Budget::Bytes(16 * MIB);
            // Host memory of histories would be leased from what is made ready for marks.
            config.node.history.host_budget = Budget::Bytes(1);
            config.node.history.store_budget = Budget::Bytes(1);
            config.node.memory_budget = Budget::Bytes(128 * MIB);
            config.node.memory_directory = root.join("memory");
            config.node.local_directory = Some(root.join("local"));
            config.node.local_allow_tmpfs = true;
            for folder in ["memory", "local"] {
                std::fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            let comm = world(&[0]).into_iter().next().expect("a rank");
            let place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
            let mut open = Open::new(Session::open_on(Box::new(comm), &place, config).expect("opens"));
            let model = HostModel {
                memory_bytes: 128 * MIB,
                link_bytes_per_s: Some(BYTES as f64 / 0.1),
                ..HostModel::default()
            };
            let gpu = Gpu::twin(&open.session, model).expect("a twin");
            let twin = gpu.twin.as_ref().expect("it is one");
            let (device, stream) = (twin.device.clone(), twin.stream.clone());
            open.gpus.insert(Some(gpu::TWIN), gpu);
            let id = handles::insert(Entry::Session(Arc::new(Lock::at(Order::Call, Some(open)))));
            let field = device.allocate(BYTES).expect("room");
            let mut program = Program { session: to_pointer(id), device, stream, field, step: Box::new(0) };
            let table = program.span(&content(7));
            program.protect(c"field", at(&program.field), BYTES, BVK_U8);
            program.protect(c"table", at(&table), BYTES, BVK_U8);
            let step: *mut u64 = &mut *program.step;
            program.protect(c"step", step.cast(), 1, BVK_U64);
            // Regions of the twin stay as long as somebody has their span.
            std::mem::forget(table);
            program
        }

        fn offloading(root: &Path) -> Program {
            let program = Program::open(root);
            // SAFETY: what is written from here on is declared, or meant to be found.
            is(unsafe { bvk_offload(program.session, TWIN, 3 * BYTES) }, BVK_OK);
            program
        }

        fn protect(&self, name: &CStr, data: *mut c_void, count: u64, kind: c_int) {
            // SAFETY: the memory lives as long as the program.
            is(unsafe { bvk_protect(self.session, name.as_ptr(), data, count, kind) }, BVK_OK);
        }

        fn span(&self, bytes: &[u8]) -> DeviceSpan {
            let span = self.device.allocate(bytes.len() as u64).expect("room");
            self.device.compute(&[&span], |slices| slices[0].copy_from_slice(bytes)).expect("our own memory");
            span
        }

        /// Enqueues work on the stream after which the field is that of a version.
        fn write(&mut self, version: u64) {
            self.stream.copy(&self.span(&content(version)), &self.field).expect("enqueued");
            *self.step = version;
        }

        /// Declares and enqueues work after which the field is that of a version.
        fn compute(&mut self, version: u64) {
            // SAFETY: the twin has one stream.
            is(unsafe { bvk_before_write(self.session, at(&self.field), BYTES) }, BVK_OK);
            self.write(version);
        }

        fn holds(&self, version: u64) -> bool {
            self.stream.finish().expect("done");
            let expected = content(version);
            let same = self.device.compute(&[&self.field], |slices| *slices[0] == expected[..]);
            same.expect("our own memory") && *self.step == version
        }

        fn checkpoint(&self, version: u64) -> *mut PendingHandle {
            let mut pending = null_mut();
            // SAFETY: regions live as long as the program, and the last argument points to a handle.
            is(unsafe { bvk_checkpoint(self.session, c"run".as_ptr(), version, &mut pending) }, BVK_OK);
            pending
        }

        /// What became of a checkpoint.
        fn waited(mut pending: *mut PendingHandle) -> c_int {
            // SAFETY: it is a handle, which is given back.
            unsafe {
                let status = bvk_wait(pending, BVK_LEVEL_NODE_REBOOT, null_mut());
                is(bvk_release(&mut pending), BVK_OK);
                status
            }
        }

        fn restart(&self) -> c_int {
            // SAFETY: regions live as long as the program, and nobody else uses them.
            unsafe { bvk_restore(self.session, c"run".as_ptr(), BVK_NEWEST, null_mut()) }
        }

        fn stats(&self) -> CStats {
            let mut stats = CStats { size: size_of::<CStats>(), ..CStats::default() };
            // SAFETY: it begins with its size.
            is(unsafe { bvk_get_stats(self.session, &mut stats) }, BVK_OK);
            stats
        }

        fn close(mut self) {
            // SAFETY: it is a handle.
            is(unsafe { bvk_close(&mut self.session) }, BVK_OK);
        }
    }

    #[test]
    fn what_was_marked_comes_back_though_the_program_went_on_at_once() {
        let root = folder();
        let mut program = Program::offloading(root.path());
        let (session, field) = (program.session, at(&program.field));
        let halves = [field.cast_const(), field.wrapping_byte_add(BYTES as usize / 2).cast_const()];
        let mut set = null_mut();
        // SAFETY: there are two of each, and the last argument points to a handle.
        is(
            unsafe { bvk_write_set(session, c"field".as_ptr(), halves.as_ptr(), [BYTES / 2; 2].as_ptr(), 2, &mut set) },
            BVK_OK,
        );
        for version in 1..=5 {
            program.compute(version);
            let pending = program.checkpoint(version);
            // SAFETY: the twin has one stream, whatever it is called.
            let declared = unsafe {
                match version {
                    1 => bvk_before_write(session, field, BYTES),
                    2 => bvk_before_write_on(session, field, BYTES, null_mut()),
                    3 => bvk_before(set),
                    4 => bvk_before_on(set, null_mut()),
                    _ => halves
                        .map(|half| bvk_before_write(session, half, BYTES / 2))
                        .into_iter()
                        .min()
                        .unwrap_or(BVK_OK),
                }
            };
            is(declared, BVK_OK);
            program.write(100 + version);
            is(Program::waited(pending), BVK_OK);
            is(program.restart(), BVK_OK);
            assert!(program.holds(version), "version {version}");
        }
        let stats = program.stats();
        assert_eq!((stats.marks, stats.marks_refused, stats.marked_bytes), (5, 0, 10 * BYTES));
        assert!(stats.equal_bytes > 0 && stats.doubled_bytes > 0 && stats.urgent_bytes > 0);
        program.close();
    }

    #[test]
    fn a_write_that_was_not_declared_is_refused_and_twice_in_a_row_is_enough() {
        let root = folder();
        let mut program = Program::offloading(root.path());
        program.compute(1);
        is(Program::waited(program.checkpoint(1)), BVK_OK);
        for version in [2, 3] {
            program.compute(version);
            let pending = program.checkpoint(version);
            program.write(100 + version);
            is(Program::waited(pending), BVK_ERR_NOT_COMMITTED);
            assert!(error().contains("\"field\" has changed in bytes 0 to 16384"), "{}", error());
        }
        // Copied from now on, and nobody is hurt by it.
        program.compute(4);
        let pending = program.checkpoint(4);
        program.write(104);
        is(Program::waited(pending), BVK_OK);
        assert_eq!((program.stats().marks, program.stats().marks_refused), (3, 2));
        is(bvk_allow_marks(program.session), BVK_OK);
        program.compute(5);
        is(Program::waited(program.checkpoint(5)), BVK_OK);
        assert_eq!((program.stats().marks, program.stats().marks_refused), (4, 2));
        is(program.restart(), BVK_OK);
        assert!(program.holds(5));
        program.close();
    }

    /// Restarts wait for marked regions that are being sent, and histories declare what they write to; the application need not.
    #[test]
    fn what_our_own_calls_write_is_no_surprise() {
        let root = folder();
        let mut program = Program::offloading(root.path());
        let mut history: *mut HistoryHandle = null_mut();
        program.compute(9);
        // SAFETY: the field lives as long as the program, and the last argument points to a handle.
        unsafe {
            is(bvk_history_open(program.session, c"past".as_ptr(), TWIN, BVK_KEEP_ALL, &mut history), BVK_OK);
            is(bvk_history_field(history, c"field".as_ptr(), at(&program.field), BYTES, BVK_U8), BVK_OK);
            is(bvk_history_append(history, 9), BVK_OK);
        }
        program.compute(1);
        let pending = program.checkpoint(1);
        // SAFETY: as above.
        is(unsafe { bvk_history_restore(history, 9) }, BVK_OK);
        *program.step = 9;
        assert!(program.holds(9));
        is(Program::waited(pending), BVK_OK);
        program.compute(2);
        let pending = program.checkpoint(2);
        is(program.restart(), BVK_OK);
        is(Program::waited(pending), BVK_OK);
        is(program.restart(), BVK_OK);
        assert!(program.holds(2));
        assert_eq!((program.stats().marks, program.stats().marks_refused), (2, 0));
        program.close();
    }

    #[test]
    fn what_is_marked_when_the_session_closes_is_not_lost() {
        let root = folder();
        let mut program = Program::offloading(root.path());
        program.compute(1);
        program.checkpoint(1);
        program.compute(101);
        program.close();
        let program = Program::open(root.path());
        is(program.restart(), BVK_OK);
        assert!(program.holds(1));
        program.close();
    }

    /// Only the declarations keep later writes out, so the restored data show that each of them had its effect.
    #[test]
    fn live_host_memory_is_declared_as_that_of_the_gpu_is() {
        let root = folder();
        let mut program = Program::open(root.path());
        let (session, field) = (program.session, at(&program.field));
        let mut rows = vec![0u64; (BYTES / 8) as usize];
        let (data, mut old, mut set) = (rows.as_mut_ptr().cast::<c_void>(), null_mut(), null_mut());
        program.protect(c"rows", data, BYTES / 8, BVK_U64);
        let (addresses, bytes) = ([data.cast_const(), field.cast_const()], [BYTES, BYTES]);
        // SAFETY: the rows live as long as the session, and what is written to them is declared; the twin has one stream.
        unsafe {
            is(bvk_set_live(session, c"field".as_ptr(), 1), BVK_ERR_ARGUMENT);
            assert!(error().contains("is on GPU 99") && error().contains("bvk_offload"), "{}", error());
            is(bvk_before_write(session, data, BYTES), BVK_ERR_STATE);
            is(bvk_set_live(session, c"rows".as_ptr(), 1), BVK_OK);
            is(bvk_before_write(session, data, BYTES), BVK_OK);
            is(bvk_allow_marks(session), BVK_ERR_STATE);
            let name = c"advance".as_ptr();
            is(bvk_write_set(session, name, addresses.as_ptr(), bytes.as_ptr(), 2, &mut old), BVK_OK);
            is(bvk_before(old), BVK_OK);
            is(bvk_offload(session, TWIN, 4 * BYTES), BVK_OK);
            is(bvk_before(old), BVK_ERR_STATE);
            assert!(error().contains("make it again"), "{}", error());
            is(bvk_write_set(session, name, addresses.as_ptr(), bytes.as_ptr(), 2, &mut set), BVK_OK);
        }
        for version in 1..=8 {
            rows.fill(version);
            program.compute(version);
            let pending = program.checkpoint(version);
            match version % 4 {
                // SAFETY: as above.
                1 | 2 => is(unsafe { bvk_before(set) }, BVK_OK),
                3 => {
                    // SAFETY: as above.
                    let declared = |at, bytes| unsafe { bvk_before_write(session, at, bytes) };
                    is(declared(data, BYTES / 2), BVK_OK);
                    is(declared(data.wrapping_byte_add(BYTES as usize / 2), BYTES / 2), BVK_OK);
                    is(declared(field, BYTES), BVK_OK);
                }
                _ => is(bvk_settle(session), BVK_OK),
            }
            rows.fill(99);
            program.write(99);
            is(Program::waited(pending), BVK_OK);
            is(program.restart(), BVK_OK);
            assert!(program.holds(version) && rows.iter().all(|number| *number == version), "version {version}");
        }
        let stats = program.stats();
        assert_eq!((stats.marks, stats.live_regions, stats.live_bytes, stats.unaudited), (8, 8, 8 * BYTES, 8));
        assert!(stats.live_declared_bytes > 0 && stats.live_waited_bytes == 0 && stats.live_at_once == 0);
        program.close();
    }

    #[test]
    fn memory_that_is_none_or_nobody_saves_and_calls_too_early() {
        let root = folder();
        let mut program = Program::open(root.path());
        let (session, field) = (program.session, at(&program.field));
        is(bvk_settle(session), BVK_OK);
        is(bvk_allow_marks(session), BVK_ERR_STATE);
        // SAFETY: no pointer is followed, and the twin has one stream.
        unsafe {
            is(bvk_before_write(session, field, BYTES), BVK_ERR_STATE);
            assert!(error().contains("call bvk_offload first"), "{}", error());
            // Copied, as before.
            program.write(1);
            is(Program::waited(program.checkpoint(1)), BVK_OK);
            is(bvk_offload(session, TWIN, 1 << 40), BVK_ERR_DEVICE);
            assert!(error().contains("with 0 bytes nothing is prepared"), "{}", error());
            is(bvk_before_write(session, field, BYTES), BVK_ERR_STATE);
            is(bvk_offload(session, TWIN, 3 * BYTES), BVK_OK);
            is(bvk_offload(session, history::BVK_NO_GPU, 0), BVK_ERR_STATE);
            assert!(error().contains("already offloads GPU 99"), "{}", error());
            program.compute(2);
            let pending = program.checkpoint(2);
            let own = program.span(&[0; 4096]);
            is(bvk_before_write(session, at(&own), 4096), BVK_OK);
            is(bvk_before_write(session, (&raw const *program.step).cast(), 8), BVK_OK);
            is(bvk_before_write(session, field, 0), BVK_OK);
            is(bvk_before_write(session, null(), 0), BVK_OK);
            is(bvk_before_write(session, null(), 1), BVK_ERR_ARGUMENT);
            is(bvk_before_write(session, field, u64::MAX), BVK_ERR_ARGUMENT);
            is(bvk_before_write(session, field, BYTES + 1), BVK_ERR_DEVICE);
            is(bvk_before_write(session, field.wrapping_byte_add(1 << 40), 8), BVK_ERR_DEVICE);
            is(bvk_settle(session), BVK_OK);
            is(Program::waited(pending), BVK_OK);
        }
        assert_eq!((program.stats().marks, program.stats().urgent_bytes), (1, 0));
        is(program.restart(), BVK_OK);
        assert!(program.holds(2));
        // SAFETY: as above.
        is(unsafe { bvk_restore(session, c"another".as_ptr(), BVK_NEWEST, null_mut()) }, BVK_NOTHING);
        program.close();
    }

    #[test]
    fn boxes_of_host_and_gpu_memory_are_saved_beside_what_is_marked() {
        let root = folder();
        let mut program = Program::offloading(root.path());
        let (session, mut boxes) = (program.session, null_mut());
        // A row of 100 with a ghost cell before it and two after it.
        let mut row: Vec<u32> = (0..103).collect();
        let bytes_of = |row: &[u32]| row.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
        let there = program.span(&bytes_of(&row));
        let (shape, origin, before, after) = ([100], [0], [1], [2]);
        // SAFETY: there are as many numbers as dimensions; the row lives as long as the program.
        unsafe {
            let (shape, origin) = (shape.as_ptr(), origin.as_ptr());
            let made =
                bvk_boxes(session, 1, shape, 1, origin, shape, before.as_ptr(), after.as_ptr(), 0, &raw mut boxes);
            is(made, BVK_OK);
            let short = bvk_protect_on(session, c"there".as_ptr(), boxes, at(&there), 102, BVK_U32);
            is(short, BVK_ERR_REGION);
            assert!(error().contains("the memory for box 0 has 102 elements"), "{}", error());
            is(bvk_protect_on(session, c"row".as_ptr(), boxes, row.as_mut_ptr().cast(), 103, BVK_U32), BVK_OK);
            is(bvk_protect_on(session, c"there".as_ptr(), boxes, at(&there), 103, BVK_U32), BVK_OK);
            // Two boxes, of which one is on the host.
            let (mut two, starts, half) = (null_mut(), [0, 50], [50, 50]);
            let (starts, half) = (starts.as_ptr(), half.as_ptr());
            is(bvk_boxes(session, 1, shape, 2, starts, half, null(), null(), 0, &raw mut two), BVK_OK);
            let mixed = [at(&there), row.as_mut_ptr().cast()];
            let mixed = bvk_protect_boxes_on(session, c"mixed".as_ptr(), two, 2, mixed.as_ptr(), half, BVK_U32);
            is(mixed, BVK_ERR_ARGUMENT);
            assert!(error().contains("is on a GPU, and that of others elsewhere"), "{}", error());
            is(bvk_boxes_close(&raw mut two), BVK_OK);
            is(bvk_boxes_close(&raw mut boxes), BVK_OK);
        }
        program.compute(1);
        let pending = program.checkpoint(1);
        row.fill(7);
        program.compute(101);
        // SAFETY: the twin has one stream.
        is(unsafe { bvk_before_write(session, at(&there), there.bytes()) }, BVK_OK);
        program.stream.copy(&program.span(&bytes_of(&row)), &there).expect("enqueued");
        is(Program::waited(pending), BVK_OK);
        is(program.restart(), BVK_OK);
        assert!(program.holds(1));
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four"));
        let read = |slices: &mut [&mut [u8]]| slices[0].chunks(4).map(number).collect();
        let loaded: Vec<u32> = program.device.compute(&[&there], read).expect("our own memory");
        for row in [&row, &loaded] {
            assert!(row[1..101].iter().copied().eq(1..101), "{row:?}");
            assert_eq!([row[0], row[101], row[102]], [7, 7, 7], "ghost cells");
        }
        program.close();
    }
}
