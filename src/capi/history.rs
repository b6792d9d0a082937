//! Histories: many versions of one rank, read back in a known order.

use super::arguments::{put, text};
use super::gpu::Gpu;
use super::handles::{self, Part, lock, part, to_pointer};
use super::open::{Open, Past, described, insert_part};
use super::regions::{Region, only_gpu};
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome, call};
use bivouac_core::cache::Keep;
use bivouac_core::session::{Error, Session};
use bivouac_core::transfer::history::{Field, FieldMut};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// A history.
pub struct HistoryHandle {
    _private: (),
}

/// As the number of a GPU: no GPU. A history without a GPU keeps its versions in host memory and in its file.
pub const BVK_NO_GPU: c_int = -1;
/// A version stays until it has been restored and no further hint names it.
pub const BVK_KEEP_UNTIL_READ: c_int = 0;
/// A version stays until the history is closed.
pub const BVK_KEEP_ALL: c_int = 1;

/// The caches of a GPU, or of host memory, opened when they are first needed.
pub(super) fn gpu<'g>(
    session: &Session,
    gpus: &'g mut BTreeMap<Option<usize>, Gpu>,
    ordinal: Option<usize>,
) -> Outcome<&'g Gpu> {
    use std::collections::btree_map::Entry;
    match gpus.entry(ordinal) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(vacant) => Ok(vacant.insert(Gpu::open(session, ordinal)?)),
    }
}

/// The number of a GPU, or `BVK_NO_GPU`.
pub(super) fn ordinal(gpu: c_int) -> Outcome<Option<usize>> {
    match gpu {
        BVK_NO_GPU => Ok(None),
        number => usize::try_from(number)
            .map(Some)
            .map_err(|_| Failure::argument(format!("there is no GPU {number}: give 0 or more, or BVK_NO_GPU"))),
    }
}

impl Past {
    pub(super) fn open(open: &mut Open, name: &str, gpu_: Option<usize>, keep: Keep) -> Outcome<Past> {
        let gpu = gpu(&open.session, &mut open.gpus, gpu_)?;
        Ok(Past { history: gpu.caches.history(name, keep), gpu: gpu_, fields: Vec::new() })
    }

    /// Sets a field, which replaces a field of the same name.
    pub(super) fn set(&mut self, field: Region) {
        match self.fields.iter_mut().find(|known| known.name == field.name) {
            Some(known) => *known = field,
            None => self.fields.push(field),
        }
    }

    pub(super) fn clear(&mut self) {
        self.fields.clear();
    }

    /// Appends a version of all fields.
    ///
    /// # Safety
    /// What the application has promised about the memory of the fields and about its stream holds.
    pub(super) unsafe fn append(
        &self,
        gpus: &BTreeMap<Option<usize>, Gpu>,
        stream: usize,
        version: u64,
    ) -> Outcome<()> {
        let gpu = self.device(gpus)?;
        // SAFETY: as the caller says.
        let stream = unsafe { gpu.stream(stream) }?;
        // SAFETY: as the caller says.
        let spans = unsafe { self.spans(gpu) }?;
        let fields = self.fields.iter().zip(&spans).map(|(field, span)| match span {
            Some(span) => Field::device_bytes(&field.name, field.element(), span),
            // SAFETY: as the caller says.
            None => Field::host_bytes(&field.name, field.element(), unsafe { field.host() }),
        });
        let fields: Vec<Field> = fields.collect();
        self.history.append(version, &fields, &*stream).map_err(|error| Error::from(error).into())
    }

    /// Copies a version back into all fields.
    ///
    /// # Safety
    /// As [`Past::append`], and nobody else uses the memory meanwhile.
    pub(super) unsafe fn restore(
        &self,
        gpus: &BTreeMap<Option<usize>, Gpu>,
        stream: usize,
        version: u64,
    ) -> Outcome<()> {
        self.check_overlaps()?;
        let gpu = self.device(gpus)?;
        // SAFETY: as the caller says.
        let stream = unsafe { gpu.stream(stream) }?;
        // SAFETY: as the caller says.
        let spans = unsafe { self.spans(gpu) }?;
        let fields = self.fields.iter().zip(&spans).map(|(field, span)| match span {
            Some(span) => FieldMut::device_bytes(&field.name, field.element(), span),
            // SAFETY: as the caller says.
            None => FieldMut::host_bytes(&field.name, field.element(), unsafe { field.host_mut() }),
        });
        let mut fields: Vec<FieldMut> = fields.collect();
        self.history.restore(version, &mut fields, &*stream).map_err(|error| Error::from(error).into())
    }

    fn check_overlaps(&self) -> Outcome<()> {
        for (at, field) in self.fields.iter().enumerate() {
            if let Some(other) = self.fields[..at].iter().find(|other| field.overlaps(other)) {
                let (one, two) = (&field.name, &other.name);
                return Err(Failure::argument(format!(
                    "the fields {one:?} and {two:?} overlap: they cannot be restored together"
                )));
            }
        }
        Ok(())
    }

    fn device<'g>(&self, gpus: &'g BTreeMap<Option<usize>, Gpu>) -> Outcome<&'g Gpu> {
        let elsewhere = only_gpu(&self.fields)?.filter(|gpu| Some(*gpu) != self.gpu);
        if let Some(gpu) = elsewhere {
            let name = self.history.name();
            return Err(Failure::argument(format!(
                "history {name:?} was not opened for GPU {gpu}, where its fields are"
            )));
        }
        gpus.get(&self.gpu).ok_or_else(|| Failure::state("the caches of this history are gone"))
    }

    /// # Safety
    /// As [`Past::append`].
    unsafe fn spans(&self, gpu: &Gpu) -> Outcome<Vec<Option<bivouac_core::device::DeviceSpan>>> {
        // SAFETY: as the caller says.
        let span = |field: &Region| field.gpu().map(|_| unsafe { field.span(gpu) }).transpose();
        self.fields.iter().map(span).collect()
    }
}

/// Opens a history of this rank under the name `name`, with a cache on GPU number `gpu`. With `BVK_NO_GPU`, this cache is in the memory
/// of the process. `keep`: `BVK_KEEP_...`. The configuration says how much memory and file space the history may take (`[device]`,
/// `[history]`). Without a GPU, a `device.budget` in percent is a share of this rank's part of node memory.
///
/// Local. The first history on a GPU initialises the driver if necessary, which takes up to a second.
///
/// Errors: `BVK_ERR_DEVICE`, `BVK_ERR_ARGUMENT`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `history` points to a handle, which the call sets and you own until `bvk_history_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_open(
    session: *mut SessionHandle,
    name: *const c_char,
    gpu: c_int,
    keep: c_int,
    history: *mut *mut HistoryHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(history, std::ptr::null_mut()) };
    call(|| {
        let open = handles::session(session)?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of the history") }?;
        // SAFETY: as the caller says.
        let place = unsafe { history.as_mut() }.ok_or_else(|| Failure::argument("history is NULL"))?;
        let gpu = ordinal(gpu)?;
        let keep = match keep {
            BVK_KEEP_UNTIL_READ => Keep::UntilRead,
            BVK_KEEP_ALL => Keep::All,
            _ => return Err(Failure::argument(format!("keep is {keep}; see BVK_KEEP_..."))),
        };
        let mut locked = lock(&open)?;
        let past = Past::open(&mut locked, name, gpu, keep)?;
        let id = insert_part(Part::History, &open);
        locked.histories.insert(id, past);
        *place = to_pointer(id);
        Ok(BVK_OK)
    })
}

/// Works on a history, with the devices and the stream of its session.
fn with(
    history: *mut HistoryHandle,
    work: impl FnOnce(&mut Past, &BTreeMap<Option<usize>, Gpu>, usize) -> Outcome<()>,
) -> c_int {
    call(|| {
        let (id, open) = part(history, Part::History)?;
        let mut open = lock(&open)?;
        let Open { histories, gpus, stream, .. } = &mut *open;
        let past = histories.get_mut(&id);
        work(past.ok_or_else(|| Failure::state("this history was closed by another thread"))?, gpus, *stream)?;
        Ok(BVK_OK)
    })
}

/// Adds a field `name` to all later versions: `count` elements at `data`, on the host or on the history's GPU. If a field of the
/// same name exists, it is replaced.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`.
///
/// # Safety
/// Until the field is replaced or cleared, or the history is closed, the memory is readable in each append, and writable and used by
/// nothing else in each restore. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_field(
    history: *mut HistoryHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    with(history, |past, _, _| {
        // SAFETY: as the caller says; there is one extent.
        past.set(unsafe { described(name, data, kind, 1, &count) }?);
        Ok(())
    })
}

/// Forgets all fields.
///
/// Local, never waits.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_history_clear_fields(history: *mut HistoryHandle) -> c_int {
    with(history, |past, _, _| {
        past.clear();
        Ok(())
    })
}

/// Appends version `version`: a copy of all fields as they are when the work on the session's stream has run (`bvk_set_stream`). When the
/// call returns, the application may overwrite the fields.
///
/// Local. Blocks for the copy and, if the cache is full, until other versions have left the cache, for at most `timeouts.room`.
///
/// Errors: `BVK_ERR_DEVICE`; the version is then not in the history.
///
/// # Safety
/// The requirements of [`bvk_history_field`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_append(history: *mut HistoryHandle, version: u64) -> c_int {
    // SAFETY: as the caller says.
    with(history, |past, gpus, stream| unsafe { past.append(gpus, stream, version) })
}

/// Copies version `version` back into the fields, and compares digests. The fields may be only some of the fields that were
/// appended, but must not overlap.
///
/// Local. Blocks for a copy inside the device if the version is in its cache, otherwise for the transfer.
///
/// Errors: `BVK_ERR_DEVICE`: the version does not exist or has no undamaged copy. The contents of the fields are then unspecified.
///
/// # Safety
/// The requirements of [`bvk_history_field`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_restore(history: *mut HistoryHandle, version: u64) -> c_int {
    call(|| {
        let (id, open) = part(history, Part::History)?;
        let open = lock(&open)?;
        let past = open.histories.get(&id);
        let past = past.ok_or_else(|| Failure::state("this history was closed by another thread"))?;
        // SAFETY: as the caller says; what the fields are overwritten with is ordered by the same stream.
        unsafe {
            open.declare(&past.fields)?;
            past.restore(&open.gpus, open.stream, version)?;
        }
        Ok(BVK_OK)
    })
}

/// Says that the `count` versions in the list `versions` will be restored in the order of the list, after the versions that earlier hints
/// named. The versions in the list need not exist yet. Hints cannot be taken back, and restores may deviate from them.
///
/// Local, never waits.
///
/// # Safety
/// `versions` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_hint(history: *mut HistoryHandle, versions: *const u64, count: usize) -> c_int {
    with(history, |past, _, _| {
        if versions.is_null() && count > 0 {
            return Err(Failure::argument("versions is NULL"));
        }
        // SAFETY: there are that many numbers, says the caller.
        let all = (0..count).map(|at| unsafe { versions.add(at).read_unaligned() });
        past.history.hint(all.collect::<Vec<u64>>());
        Ok(())
    })
}

/// Starts the prefetching of hinted versions.
///
/// Local, never waits.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_history_start_prefetch(history: *mut HistoryHandle) -> c_int {
    with(history, |past, _, _| {
        past.history.start_prefetch();
        Ok(())
    })
}

/// Waits until nothing is left to flush.
///
/// Local. Blocks for the slowest tier.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_history_wait_flushed(history: *mut HistoryHandle) -> c_int {
    with(history, |past, _, _| {
        past.history.wait_flushed();
        Ok(())
    })
}

/// Deletes the history with all its versions. `*history` becomes NULL. A NULL handle is not an error.
///
/// Local, never waits.
///
/// # Safety
/// `history` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_history_close(history: *mut *mut HistoryHandle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let Some(place) = (unsafe { history.as_mut() }) else { return Ok(BVK_OK) };
        if place.is_null() {
            return Ok(BVK_OK);
        }
        let (id, open) = part(*place, Part::History)?;
        // A call that is refused leaves the handle.
        lock(&open)?.histories.remove(&id);
        handles::remove(id);
        *place = std::ptr::null_mut();
        Ok(BVK_OK)
    })
}
