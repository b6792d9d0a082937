//! Checkpoints that one call takes of all protected regions, checkpoints that are put together step by step, and the outcome of both.

use super::arguments::{self, must_put, put};
use super::columns::SavedRows;
use super::handles::{self, Entry, Part, lock, part, to_pointer};
use super::open::{Begun, Holding, Open, described, insert_part, with as with_session};
use super::paths::Paths;
use super::regions::{Region, Regions, Value, only_gpu};
use super::restart::BVK_NEWEST;
use super::session::{self, SessionHandle, level_number};
use super::status::{BVK_OK, Failure, Outcome, call};
use bivouac_core::config::Method;
use bivouac_core::format;
use bivouac_core::session::{CheckpointBuilder, Error, Pending};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// A checkpoint that is being put together.
pub struct CheckpointHandle {
    _private: (),
}

/// A captured checkpoint on its way down the tiers.
pub struct PendingHandle {
    _private: (),
}

impl Begun {
    /// The region of that name, if it is held.
    fn held(&self, name: &str) -> Option<&format::Region> {
        match &self.held {
            Holding::Some(checkpoint) => checkpoint.held(name),
            Holding::Nothing | Holding::Refused(_) => None,
        }
    }

    /// Adds a region that the capture reads, unless there is a region of the same name.
    pub(super) fn add(&mut self, region: Region) -> Outcome {
        self.check_new(&region.name)?;
        self.regions.put(region);
        Ok(BVK_OK)
    }

    /// Adds a value that has already been copied, unless there is a region of that name.
    pub(super) fn add_value(&mut self, value: Value) -> Outcome {
        self.check_new(&value.name)?;
        self.values.push(value);
        Ok(BVK_OK)
    }

    /// Adds rows, each column of which is a region, unless a region has the same name as one of the columns.
    pub(super) fn add_rows(&mut self, rows: SavedRows) -> Outcome {
        rows.regions().try_for_each(|region| self.check_new(&region.name))?;
        if self.rows.iter().any(|other| other.name == rows.name) {
            return Err(Error::from(bivouac_core::region::RegionError::Twice { name: rows.name }).into());
        }
        self.rows.push(rows);
        Ok(BVK_OK)
    }

    pub(super) fn check_new(&self, name: &str) -> Outcome<()> {
        let is_value = self.values.iter().any(|value| value.name == name);
        let mut columns = self.rows.iter().flat_map(SavedRows::regions);
        if is_value || columns.any(|column| column.name == name) || self.regions.has(name) || self.held(name).is_some()
        {
            return Err(Error::from(bivouac_core::region::RegionError::Twice { name: name.into() }).into());
        }
        Ok(())
    }

    /// The checkpoint that already holds regions. If there is none yet, this function begins it.
    pub(super) fn begin_holding(&mut self, open: &Open) -> Outcome<&mut CheckpointBuilder<'static>> {
        if let Holding::Nothing = self.held {
            self.held = match begin(open, &self.name, self.version) {
                Ok(checkpoint) => Holding::Some(Box::new(checkpoint)),
                Err(failure) => Holding::Refused(failure),
            };
        }
        match &mut self.held {
            Holding::Some(checkpoint) => Ok(checkpoint),
            Holding::Refused(failure) => Err(failure.clone()),
            Holding::Nothing => Err(Failure::state("nothing is held")),
        }
    }

    /// Copies the regions on the host.
    ///
    /// # Safety
    /// As [`take`], for the regions on the host.
    unsafe fn hold(&mut self, open: &Open) -> Outcome<()> {
        // SAFETY: as the caller says.
        let held = unsafe { self.try_hold(open) };
        // A capture would have other bytes than those of the other ranks.
        held.map_err(|failure| self.refused(failure))
    }

    /// # Safety
    /// As [`Begun::hold`].
    unsafe fn try_hold(&mut self, open: &Open) -> Outcome<()> {
        self.begin_holding(open)?;
        let Holding::Some(checkpoint) = &mut self.held else { return Ok(()) };
        let later = self.with_protected.then(|| open.protected.iter()).into_iter().flatten();
        let is_held = |region: &Region| region.gpu().is_none() && region.is_own();
        let unheld = self.regions.iter().filter(|region| !is_held(region));
        let values = self.values.iter().map(Value::body);
        let rows = self.rows.iter().map(SavedRows::body);
        let room = unheld.chain(later).map(Region::body).chain(values).chain(rows).sum();
        let on_host = self.regions.iter().filter(|region| is_held(region));
        // SAFETY: as the caller says.
        let saved = on_host.map(|region| unsafe { region.saved(None) }).collect::<Outcome<Vec<_>>>()?;
        checkpoint.hold(saved, room)?;
        self.regions.retain(|region| !is_held(region));
        Ok(())
    }
}

/// Takes a checkpoint of `regions`.
///
/// # Safety
/// What the application has promised about the regions' memory holds until this returns. For regions that are live, or on a GPU that the
/// session offloads, it holds until they are settled.
pub(super) unsafe fn take(
    open: &mut Open,
    name: &str,
    version: u64,
    regions: &[Region],
    histories: &[handles::Id],
) -> Outcome<Pending> {
    let checkpoint = begin(open, name, version)?;
    // SAFETY: as the caller says.
    unsafe { finish(open, checkpoint, regions, histories) }
}

/// Begins a checkpoint. If anything fails from here on, the other ranks are told.
pub(super) fn begin(open: &Open, name: &str, version: u64) -> Outcome<CheckpointBuilder<'static>> {
    let mut checkpoint = open.session.begin_unbound(name, version)?;
    let usable = match version {
        BVK_NEWEST => Err(Failure::argument(
            "this version number is BVK_NEWEST, which stands for the newest version: choose another number",
        )),
        _ => arguments::check_version(version),
    };
    if let Err(failure) = usable {
        checkpoint.refuse(&failure.text);
        return Err(failure);
    }
    if open.own_regions {
        checkpoint.let_regions_differ();
    }
    Ok(checkpoint)
}

/// Captures a checkpoint with `regions` and with the regions that the checkpoint already holds.
///
/// # Safety
/// As [`take`].
pub(super) unsafe fn finish(
    open: &mut Open,
    checkpoint: CheckpointBuilder<'static>,
    regions: &[Region],
    histories: &[handles::Id],
) -> Outcome<Pending> {
    let spans;
    // What is lent from here on lives shorter than what was begun.
    let mut checkpoint: CheckpointBuilder<'_> = checkpoint;
    let ordinal = only_gpu(regions)?;
    let gpu = match ordinal {
        None => None,
        Some(_) => Some(super::history::gpu(&open.session, &mut open.gpus, ordinal)?),
    };
    let of_region = |region: &Region| match gpu {
        // SAFETY: as the caller says.
        Some(gpu) => unsafe { region.spans(gpu) },
        None => Ok(Vec::new()),
    };
    spans = regions.iter().map(of_region).collect::<Outcome<Vec<_>>>()?;
    for (region, spans) in regions.iter().zip(&spans) {
        // SAFETY: as the caller says.
        unsafe { region.add_to(&mut checkpoint, spans) }?;
    }
    for id in histories {
        let past = open.histories.get(id);
        let past = past.ok_or_else(|| {
            Failure::state("a history of this checkpoint was closed before the capture: close it afterwards")
        })?;
        checkpoint.save_history(&past.history)?;
    }
    let pending = match gpu {
        None => checkpoint.capture()?,
        Some(gpu) => {
            // SAFETY: the application's promise about its stream.
            let stream = unsafe { gpu.stream(open.stream) }?;
            match open.offload.as_ref().and_then(|offloading| offloading.of(ordinal)) {
                Some(offload) => checkpoint.with_offload(offload, &*stream).capture()?,
                None => checkpoint.with_device(&gpu.caches, &*stream).capture()?,
            }
        }
    };
    Ok(pending)
}

/// Writes the handle of a captured checkpoint to `place`, unless it is NULL.
///
/// # Safety
/// `place` is NULL or points to a handle.
unsafe fn hand_out(pending: Pending, place: *mut *mut PendingHandle) -> c_int {
    if !place.is_null() {
        let id = handles::insert(Entry::Pending(Arc::new(pending)));
        // SAFETY: as the caller says.
        unsafe { put(place, to_pointer(id)) };
    }
    BVK_OK
}

/// Takes a checkpoint of all protected regions, as version `version` of the series `name` (1 to 128 bytes without `/` or control
/// characters, not starting with a dot). When the call returns, the application may
/// overwrite these regions. Regions on an offloaded GPU may be overwritten once the write has been declared (`bvk_offload`), and live
/// regions as `bvk_set_live` says. The ranks agree on the checkpoint in the background; see `bvk_wait` and `bvk_next_report`.
///
/// Versions should grow within a run, because a restart takes the largest one as the newest. If a version is taken twice, both checkpoints
/// are stored, and a restart takes the second one.
///
/// Collective: all ranks, with the same name, version and regions (lengths may differ). Returns without waiting for the other ranks.
/// Blocks for the copy; if regions are live, also for the live copy of the previous checkpoint; and if node memory is full, also for room
/// there, for at most `timeouts.room`.
///
/// `pending`: NULL, or a pointer to a handle, which the call sets and you own until `bvk_release`; after an error the handle is NULL. The
/// first checkpoint with regions on a GPU initialises the caches of this GPU, which takes up to a second.
///
/// Errors: `BVK_ERR_CAPTURE`, `BVK_ERR_REGION`, `BVK_ERR_DEVICE`: the other ranks are told, and the application may continue.
/// `BVK_ERR_STATE` while a restart is open, and `BVK_ERR_HANDLE`: the other ranks are not told. `BVK_ERR_STATE` is also returned if regions
/// are to be marked on a stream that is being captured into a CUDA graph; in this case the other ranks are told.
///
/// # Safety
/// The requirements of [`bvk_protect`](super::session::bvk_protect) hold; `name` is NULL or a NUL-terminated string; `pending`
/// is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_checkpoint(
    session: *mut SessionHandle,
    name: *const c_char,
    version: u64,
    pending: *mut *mut PendingHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(pending, std::ptr::null_mut()) };
    with_session(session, |open| {
        open.check_no_restart()?;
        let regions: Vec<Region> = open.protected.iter().cloned().collect();
        // SAFETY: as the caller says.
        let taken = unsafe { take(open, arguments::name(name), version, &regions, &[]) }?;
        // SAFETY: as the caller says.
        Ok(unsafe { hand_out(taken, pending) })
    })
}

/// Begins a checkpoint that names its own regions: `bvk_save` adds the regions, and `bvk_capture` takes the checkpoint. Several
/// checkpoints may be open at a time.
///
/// Collective like `bvk_checkpoint`, together with the `bvk_capture` or `bvk_abort` that ends the checkpoint; never waits.
///
/// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_STATE`, `BVK_ERR_HANDLE`: the other ranks are not told. If the name cannot be
/// used, `bvk_capture` refuses it.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `checkpoint` points to a handle, which the call sets and you own
/// until `bvk_capture` or `bvk_abort`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_begin_checkpoint(
    session: *mut SessionHandle,
    name: *const c_char,
    version: u64,
    checkpoint: *mut *mut CheckpointHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(checkpoint, std::ptr::null_mut()) };
    call(|| {
        let open = handles::session(session)?;
        if checkpoint.is_null() {
            return Err(Failure::argument("checkpoint is NULL"));
        }
        let id = {
            let mut locked = lock(&open)?;
            locked.check_no_restart()?;
            let id = insert_part(Part::Checkpoint, &open);
            // SAFETY: as the caller says.
            let name = unsafe { arguments::name(name) }.to_owned();
            locked.begun.push((
                id,
                Begun {
                    name,
                    version,
                    held: Holding::Nothing,
                    stream: None,
                    regions: Regions::default(),
                    values: Vec::new(),
                    rows: Vec::new(),
                    with_protected: false,
                    histories: Vec::new(),
                    wishes: Vec::new(),
                    paths: Paths::default(),
                },
            ));
            id
        };
        // SAFETY: as the caller says.
        unsafe { must_put(checkpoint, to_pointer(id), "checkpoint") }?;
        Ok(BVK_OK)
    })
}

/// Works on a checkpoint that was begun.
pub(super) fn with(checkpoint: *mut CheckpointHandle, work: impl FnOnce(&mut Open, usize) -> Outcome) -> c_int {
    call(|| {
        let (id, open) = part(checkpoint, Part::Checkpoint)?;
        let mut open = lock(&open)?;
        let at = open.begun.iter().position(|(begun, _)| *begun == id);
        work(&mut open, at.ok_or_else(|| Failure::state("this checkpoint has already been captured or aborted"))?)
    })
}

/// Adds `count` elements at `data`, on the host or on a GPU, as region `name`.
///
/// Local, never waits; nothing is read before `bvk_capture`. `kind` is as in `bvk_protect`.
///
/// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`, `BVK_ERR_HANDLE`; the checkpoint is unchanged.
///
/// # Safety
/// The memory is readable until `bvk_capture` has returned. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    data: *const c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    // SAFETY: as the caller says; there is one extent.
    unsafe { bvk_save_shaped(checkpoint, name, data, kind, 1, &count) }
}

/// Adds an array with the extents of its `dimensions` dimensions, slowest first; otherwise like `bvk_save`.
///
/// Local, never waits.
///
/// # Safety
/// As for [`bvk_save`]; `shape` points to `dimensions` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_shaped(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    data: *const c_void,
    kind: c_int,
    dimensions: c_int,
    shape: *const u64,
) -> c_int {
    with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let region = unsafe { described(name, data, kind, dimensions, shape) }?;
        let begun = &mut open.begun[at].1;
        if begun.held(&region.name).is_some_and(|held| region.is_like(held)) && !begun.regions.has(&region.name) {
            // It is copied again.
            begun.regions.put(region);
            return Ok(BVK_OK);
        }
        begun.add(region)
    })
}

/// Adds all regions that are protected on the session when the checkpoint is captured. Live regions are copied after `bvk_capture` has
/// returned (`bvk_set_live`). If a protected region has a name that `bvk_save` has used, the capture fails.
///
/// Local, never waits.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_save_protected(checkpoint: *mut CheckpointHandle) -> c_int {
    with(checkpoint, |open, at| {
        open.begun[at].1.with_protected = true;
        Ok(BVK_OK)
    })
}

/// Copies into the checkpoint the host regions that were added with `bvk_save`. When the call returns, the application may overwrite these
/// regions; `bvk_capture` may be called later. The copies occupy no memory of the process. A region that was copied may be added and copied
/// again if its type and shape are the same (otherwise `bvk_save` returns `BVK_ERR_REGION`). Regions on a GPU, regions on boxes, rows,
/// protected regions and histories are not read until `bvk_capture`.
///
/// Collective: all ranks or none, between the same other collective calls, with the same regions on the host and on a GPU; returns without
/// waiting for the other ranks. Blocks like `bvk_checkpoint`. A restart before the capture makes the capture fail.
///
/// Errors: `BVK_ERR_CAPTURE` if no tier has room, `BVK_ERR_REGION` for a name that cannot be used; in both cases `bvk_capture` also fails,
/// and the other ranks are told. `BVK_ERR_STATE` while a restart is open.
///
/// # Safety
/// The memory of all regions that were added is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_hold(checkpoint: *mut CheckpointHandle) -> c_int {
    with(checkpoint, |open, at| {
        open.check_no_restart()?;
        let (id, mut begun) = open.begun.remove(at);
        // SAFETY: as the caller says.
        let held = unsafe { begun.hold(open) };
        open.begun.push((id, begun));
        held.map(|()| BVK_OK)
    })
}

/// Adds the versions that a history contains when the checkpoint is captured; `bvk_load_history` loads them.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_HANDLE`; `BVK_ERR_ARGUMENT` for a history of another session.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_save_history(
    checkpoint: *mut CheckpointHandle,
    history: *mut super::history::HistoryHandle,
) -> c_int {
    call(|| {
        let (past, its) = part(history, Part::History)?;
        let (id, open) = part(checkpoint, Part::Checkpoint)?;
        if !Arc::ptr_eq(&open, &its) {
            return Err(Failure::argument("the history and the checkpoint belong to different sessions"));
        }
        let mut open = lock(&open)?;
        let begun = open.begun.iter_mut().find(|(begun, _)| *begun == id);
        let (_, begun) = begun.ok_or_else(|| Failure::state("this checkpoint has already been captured or aborted"))?;
        begun.histories.push(past);
        Ok(BVK_OK)
    })
}

/// Chooses "full", "basic", "list", "tree" or "auto" (`docs/REDUCTION.md`) as the method by which files reuse earlier files for a region of
/// this checkpoint. This method replaces the configured one. The choice has an effect only if `reduction.method` or `reduction.regions`
/// asks for a method. If the region is not saved, the log names it.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT` for any other method, `BVK_ERR_HANDLE`; the checkpoint is unchanged.
///
/// # Safety
/// `region` and `method` are NULL or NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_reduce(
    checkpoint: *mut CheckpointHandle,
    region: *const c_char,
    method: *const c_char,
) -> c_int {
    with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let (region, method) = unsafe { (arguments::text(region, "region name")?, arguments::text(method, "method")?) };
        let method: Method = method.parse().map_err(|error| Failure::argument(format!("{error}, not {method:?}")))?;
        open.begun[at].1.wishes.push((region.to_owned(), method));
        Ok(BVK_OK)
    })
}

/// Copies all regions. When the call returns, the application may overwrite these regions. `*checkpoint` becomes NULL, even if the capture
/// fails, but not if the call is refused because a restart is open (`BVK_ERR_STATE`).
///
/// Collective and blocking like `bvk_checkpoint`.
///
/// Errors: as for `bvk_checkpoint`, and `BVK_ERR_REGION` for a name that cannot be used.
///
/// # Safety
/// The memory of all regions is readable; `checkpoint` points to a handle; `pending` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_capture(
    checkpoint: *mut *mut CheckpointHandle,
    pending: *mut *mut PendingHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(pending, std::ptr::null_mut()) };
    let work = |open: &mut Open, mut begun: Begun| {
        if begun.regions.iter().any(|region| begun.held(&region.name).is_some()) {
            // SAFETY: as the caller says.
            unsafe { begun.hold(open) }?;
        }
        let protected = begun.with_protected.then(|| open.protected.iter()).into_iter().flatten();
        let regions: Vec<Region> = begun.regions.iter().chain(protected).cloned().collect();
        let mut checkpoint = match begun.held {
            Holding::Nothing => self::begin(open, &begun.name, begun.version)?,
            Holding::Some(checkpoint) if begun.stream.is_some() => {
                let unfinished = "a region is still being written: end it before the capture (fclose)";
                checkpoint.refuse(unfinished);
                return Err(Failure::state(unfinished));
            }
            Holding::Some(checkpoint) => *checkpoint,
            Holding::Refused(failure) => return Err(failure),
        };
        begun.values.iter().try_for_each(|value| value.add_to(&mut checkpoint))?;
        // SAFETY: as the caller says; what is read from there is read before this returns.
        begun.rows.iter().try_for_each(|rows| unsafe { rows.add_to(&mut checkpoint) })?;
        begun.wishes.iter().for_each(|(region, method)| checkpoint.reduce(region, *method));
        // SAFETY: as the caller says.
        let taken = unsafe { finish(open, checkpoint, &regions, &begun.histories) }?;
        // SAFETY: as the caller says.
        Ok(unsafe { hand_out(taken, pending) })
    };
    // SAFETY: as the caller says.
    unsafe { end(checkpoint, work) }
}

/// Aborts an open checkpoint. The other ranks are told. `*checkpoint` becomes NULL. A NULL handle is not an error.
///
/// Collective, called in place of `bvk_capture`; never waits.
///
/// Errors: `BVK_ERR_STATE` while a restart is open; the handle stays valid.
///
/// # Safety
/// `checkpoint` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_abort(checkpoint: *mut *mut CheckpointHandle) -> c_int {
    // SAFETY: as the caller says.
    if unsafe { checkpoint.as_ref() }.is_none_or(|handle| handle.is_null()) {
        return BVK_OK;
    }
    let work = |open: &mut Open, begun: Begun| {
        begun.give_up(&open.session);
        Ok(BVK_OK)
    };
    // SAFETY: as the caller says.
    unsafe { end(checkpoint, work) }
}

/// Ends a checkpoint that was begun.
///
/// # Safety
/// `checkpoint` is NULL or points to a handle.
unsafe fn end(checkpoint: *mut *mut CheckpointHandle, work: impl FnOnce(&mut Open, Begun) -> Outcome) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let place = unsafe { checkpoint.as_mut() }.ok_or_else(|| Failure::argument("checkpoint is NULL"))?;
        let (id, open) = part(*place, Part::Checkpoint)?;
        let mut open = lock(&open)?;
        open.check_no_restart()?;
        handles::remove(id);
        *place = std::ptr::null_mut();
        let at = open.begun.iter().position(|(begun, _)| *begun == id);
        let (_, begun) =
            open.begun.remove(at.ok_or_else(|| Failure::state("this checkpoint was ended by another thread"))?);
        work(&mut open, begun)
    })
}

/// Asks whether every level of this checkpoint has been reached or given up. `*finished`: 1 or 0. The call also
/// exchanges coordination messages.
///
/// Local, never waits, any thread that may call MPI.
///
/// # Safety
/// `finished` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_poll(pending: *mut PendingHandle, finished: *mut c_int) -> c_int {
    call(|| {
        let pending = handles::pending(pending)?;
        handles::check_thread()?;
        let answer = pending.poll();
        // SAFETY: as the caller says.
        unsafe { must_put(finished, c_int::from(answer), "finished") }?;
        Ok(BVK_OK)
    })
}

/// The highest level that all ranks have reached, as far as this rank knows: `*reached` is one of `BVK_LEVEL_...`.
///
/// Local, never waits, any thread.
///
/// # Safety
/// `reached` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_level(pending: *mut PendingHandle, reached: *mut c_int) -> c_int {
    call(|| {
        let now = handles::pending(pending)?.level();
        // SAFETY: as the caller says.
        unsafe { must_put(reached, level_number(now), "reached") }?;
        Ok(BVK_OK)
    })
}

/// Waits until the checkpoint is committed at `level` or a higher one. `*reached` says at which level (`reached` may be NULL).
///
/// Local, but returns only when all ranks have done their part. Blocks on the slowest rank, at most until the level is given up
/// (`timeouts.abandon`). Any thread that may call MPI may make this call.
///
/// Errors: `BVK_ERR_NOT_COMMITTED` as soon as it is known that the level will not be reached; `BVK_ERR_ARGUMENT`.
///
/// # Safety
/// `reached` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_wait(pending: *mut PendingHandle, level: c_int, reached: *mut c_int) -> c_int {
    call(|| {
        let pending = handles::pending(pending)?;
        handles::check_thread()?;
        let now = pending.wait(session::level(level)?)?;
        // SAFETY: as the caller says.
        unsafe { put(reached, level_number(now)) };
        Ok(BVK_OK)
    })
}

/// Releases the handle; the checkpoint itself continues. `*pending` becomes NULL. A NULL handle is not an error.
///
/// Local, never waits, any thread.
///
/// # Safety
/// `pending` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_release(pending: *mut *mut PendingHandle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let Some(place) = (unsafe { pending.as_mut() }) else { return Ok(BVK_OK) };
        if !place.is_null() {
            handles::pending(*place)?;
            handles::remove(place.addr());
            *place = std::ptr::null_mut();
        }
        Ok(BVK_OK)
    })
}
