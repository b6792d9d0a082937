//! Restarts in which one call loads all protected regions, and restarts whose attempts the application loads itself.

use super::arguments::{self, fill, must_put, put, text};
use super::handles::{self, Id, Part, Shared, lock, part, to_pointer};
use super::open::{Open, Running, described, insert_part, kind_of, with as with_session};
use super::regions::{Lies, Region, only_gpu};
use super::session::{SessionHandle, level_number};
use super::status::{BVK_AGAIN, BVK_ERR_LOAD, BVK_ERR_STATE, BVK_NOTHING, BVK_OK, Failure, Outcome, call};
use bivouac_core::Elements;
use bivouac_core::format::RegionKind;
use bivouac_core::recovery::{Attempt, LoadError, Unloaded, Want};
use bivouac_core::session::{AttemptEnd, Error, Restored, Session, named};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A restart under way.
pub struct RestartHandle {
    _private: (),
}

/// As a version number: the newest version that all ranks can restore.
pub const BVK_NEWEST: u64 = u64::MAX;

/// What a restart restored. Set `size` to `sizeof(bvk_restored)` before the call (`BVK_RESTORED_INIT`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CRestored {
    /// `sizeof(bvk_restored)`.
    pub size: usize,
    /// The version.
    pub version: u64,
    /// The generation of the run that took the checkpoint.
    pub generation: u64,
    /// Bytes that this rank has read.
    pub bytes: u64,
    /// Seconds from the call to the agreement of all ranks.
    pub seconds: f64,
    /// The level of the farthest tier that this rank read from (`BVK_LEVEL_...`).
    pub level: i64,
    /// The number of ranks that took the checkpoint.
    pub ranks: u64,
}

fn want(version: u64) -> Want {
    if version == BVK_NEWEST { Want::Newest } else { Want::Version(version) }
}

/// Can there be a checkpoint of that version?
fn check_wanted(version: u64) -> Outcome<()> {
    if version == BVK_NEWEST { Ok(()) } else { arguments::check_version(version) }
}

fn described_restored(restored: &Restored) -> CRestored {
    CRestored {
        size: 0,
        version: restored.version,
        generation: restored.generation,
        bytes: restored.bytes,
        seconds: restored.took.as_secs_f64(),
        level: level_number(restored.tier.level()).into(),
        ranks: restored.ranks.into(),
    }
}

/// Loads a region into its memory.
///
/// # Safety
/// What the application has promised about the region's memory and its own stream holds.
pub(super) unsafe fn load_region(
    restorer: &mut Attempt,
    region: &Region,
    session: &Session,
    gpus: &mut BTreeMap<Option<usize>, super::gpu::Gpu>,
    stream: usize,
) -> Outcome<Result<(), LoadError>> {
    match &region.lies {
        Lies::Own => {}
        Lies::On(on, _) if region.gpu().is_some() => {
            let gpu = super::history::gpu(session, gpus, region.gpu())?;
            // SAFETY: as the caller says.
            let (spans, stream) = unsafe { (region.spans(gpu)?, gpu.stream(stream)?) };
            return Ok(restorer.load_spans_on(&region.name, on, region.element(), spans, &*stream));
        }
        Lies::On(on, _) => {
            // SAFETY: as the caller says.
            let memory = unsafe { region.boxes_mut() };
            return Ok(restorer.load_typed_on(&region.name, on, region.element(), memory));
        }
        Lies::Shared => {
            let loaded = restorer.shared::<Elements>(&region.name);
            // SAFETY: as the caller says.
            return loaded.map_or_else(|error| Ok(Err(error)), |found| unsafe { region.land(&found) }.map(Ok));
        }
        // Nothing there is this rank's own.
        Lies::PerRank(_) if restorer.saved_ranks() != session.engine().identity().size => return Ok(Ok(())),
        Lies::PerRank(_) => {
            let loaded = restorer.value::<Elements>(&region.name);
            // SAFETY: as the caller says.
            return loaded.map_or_else(|error| Ok(Err(error)), |found| unsafe { region.land(&found) }.map(Ok));
        }
    }
    if region.gpu().is_none() {
        // SAFETY: as the caller says.
        return Ok(restorer.load_bytes(&region.name, region.element(), unsafe { region.host_mut() }));
    }
    let gpu = super::history::gpu(session, gpus, region.gpu())?;
    // SAFETY: as the caller says.
    let (span, stream) = unsafe { (region.span(gpu)?, gpu.stream(stream)?) };
    Ok(restorer.load_span(&region.name, region.element(), &span, &*stream))
}

/// Loads a region that a call describes. The other ranks are told of a mistake of this rank at the end of the attempt.
///
/// # Safety
/// As [`load_region`].
pub(super) unsafe fn load_described(open: &mut Open, running: &mut Running, region: Outcome<Region>) -> Outcome {
    let Open { session, gpus, stream, .. } = open;
    // SAFETY: as the caller says.
    let load = |region: Region| unsafe { load_region(running.restart.attempt(), &region, session, gpus, *stream) };
    let loaded = region.and_then(load);
    running.note(loaded)
}

impl Running {
    /// Keeps the error of something that does not exist, which the application may have expected. If it then says that it has not loaded,
    /// this is the reason.
    pub(super) fn missing(&mut self, error: LoadError) -> Failure {
        self.failed.get_or_insert_with(|| Unloaded::by(&error));
        Error::from(error).into()
    }

    /// Keeps the last error for the end of the attempt.
    pub(super) fn note(&mut self, outcome: Outcome<Result<(), LoadError>>) -> Outcome {
        let (failure, unloaded) = match outcome {
            Ok(Ok(())) => return Ok(BVK_OK),
            Ok(Err(error)) => (Failure::new(BVK_ERR_LOAD, error.to_string()), Unloaded::by(&error)),
            // A device that is gone is so for older versions, too.
            Err(failure) => (failure.clone(), Unloaded::Refused(failure.text)),
        };
        self.failed = Some(unloaded);
        Err(failure)
    }
}

/// Restores version `version` (or `BVK_NEWEST`) of the series `name` into all protected regions, which must have the lengths that were
/// saved. Regions on boxes can be loaded on any number of ranks (`bvk_protect_on`), and so can values (`bvk_protect_shared`); a version
/// that contains any other region can be restored only on the number of ranks that took it. If a version is damaged on some rank, all ranks
/// take the next older one, unless a single version was requested. `restored`: NULL, or a structure to fill. `BVK_NOTHING`: there is
/// nothing to restore. Regions of the checkpoint that are not protected are not loaded, and a warning names them. It is an error if no
/// region is protected and the checkpoint has one.
///
/// Collective: all ranks. Blocks until all ranks have loaded, and waits for checkpoints of this session that are being written.
///
/// Errors: `BVK_ERR_RESTART`, on all ranks, even if only one rank left `restored->size` unset; the contents of the regions are then
/// unspecified. `BVK_ERR_REGION`, `BVK_ERR_STATE`.
///
/// # Safety
/// The requirements of [`bvk_protect`](super::session::bvk_protect) hold; `name` is NULL or a NUL-terminated string; `restored`
/// is NULL or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_restore(
    session: *mut SessionHandle,
    name: *const c_char,
    version: u64,
    restored: *mut CRestored,
) -> c_int {
    with_session(session, |open| {
        open.check_no_restart()?;
        // SAFETY: as the caller says.
        let fillable = unsafe { arguments::check_fillable(restored, "bvk_restored") };
        check_wanted(version)?;
        // SAFETY: as the caller says.
        let mut next = open.session.start_restore(unsafe { arguments::name(name) }, want(version))?;
        while let Some(attempt) = next {
            let mut running = Running::new(0, attempt);
            if let Err(mistake) = &fillable {
                // A mistake of this rank ends the restart of all: none may continue from a version that another rank is not told
                // about.
                running.failed = Some(Unloaded::Refused(mistake.text.clone()));
            } else {
                // SAFETY: as the caller says.
                _ = unsafe { load_protected(open, &mut running, true) };
            }
            match running.restart.end(&open.session, running.failed)? {
                AttemptEnd::Counts(done) => {
                    // SAFETY: as the caller says; there is no padding.
                    unsafe { fill(restored, described_restored(&done), "bvk_restored") }?;
                    return Ok(BVK_OK);
                }
                AttemptEnd::Again(other) => next = Some(*other),
            }
        }
        Ok(BVK_NOTHING)
    })
}

/// Loads all protected regions. `is_all`: nothing else is loaded, so a warning names the other regions of the checkpoint.
///
/// # Safety
/// What the application has promised about the regions holds.
unsafe fn load_protected(open: &mut Open, running: &mut Running, is_all: bool) -> Outcome {
    let Open { session, gpus, protected, stream, .. } = open;
    if let Err(failure) = only_gpu(protected.iter()) {
        return running.note(Err(failure));
    }
    let left_out = match running.restart.attempt().left_out(protected.iter().map(|region| region.name.as_str())) {
        Ok(left_out) => left_out,
        Err(error) => return running.note(Ok(Err(error))),
    };
    // A program that names the regions itself may have protected none.
    if is_all && protected.iter().next().is_none() && !left_out.is_empty() {
        let named = named(&left_out);
        let text = format!("nothing is protected, but the checkpoint has {named}: call bvk_protect before bvk_restore");
        return running.note(Err(Failure::state(text)));
    }
    if is_all {
        session.say_left_out(&left_out);
    }
    // Those that all ranks may load together keep their order, wherever a rank has them.
    let is_by_itself = |region: &&Region| region.gpu().is_some() && region.is_own();
    let (on_gpu, others): (Vec<&Region>, Vec<&Region>) = protected.iter().partition(is_by_itself);
    for region in others {
        // SAFETY: as the caller says.
        let loaded = unsafe { load_region(running.restart.attempt(), region, session, gpus, *stream) };
        running.note(loaded)?;
    }
    // SAFETY: as the caller says.
    let loaded = unsafe { load_on_gpu(running.restart.attempt(), &on_gpu, session, gpus, *stream) };
    running.note(loaded)
}

/// Loads regions that are all in the memory of one GPU.
///
/// # Safety
/// As [`load_protected`].
unsafe fn load_on_gpu(
    restorer: &mut Attempt,
    regions: &[&Region],
    session: &Session,
    gpus: &mut BTreeMap<Option<usize>, super::gpu::Gpu>,
    stream: usize,
) -> Outcome<Result<(), LoadError>> {
    let Some(first) = regions.first() else { return Ok(Ok(())) };
    let gpu = super::history::gpu(session, gpus, first.gpu())?;
    // SAFETY: as the caller says.
    let stream = unsafe { gpu.stream(stream)? };
    let mut spans = Vec::with_capacity(regions.len());
    for region in regions {
        // SAFETY: as the caller says.
        spans.push((region.name.as_str(), region.element(), unsafe { region.span(gpu)? }));
    }
    Ok(restorer.load_spans(&spans, &*stream))
}

/// Begins a restart in which the application loads the regions itself. The application calls `bvk_load` for each region that it needs,
/// then `bvk_end_restore`, and repeats these calls as long as `bvk_end_restore` returns `BVK_AGAIN`. `version` is as in `bvk_restore`.
/// `BVK_NOTHING`: there is nothing to restore, and no restart is open.
///
/// Collective: all ranks. No other collective call of the session may be made until the restart has ended. Blocks until the ranks have
/// elected a version. Below `MPI_THREAD_MULTIPLE`, the application must not wait for other ranks in MPI calls of its own between this call
/// and `bvk_end_restore`, because ranks may be reading from each other's nodes.
///
/// Errors: as for `bvk_restore`. `BVK_ERR_STATE` while another restart is open; `*restart` is then unchanged.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `restart` points to a handle, which the call sets and you own
/// until `bvk_end_restore` ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_begin_restore(
    session: *mut SessionHandle,
    name: *const c_char,
    version: u64,
    restart: *mut *mut RestartHandle,
) -> c_int {
    // Where a restart is open its handle stays in its place: it has to be ended with it.
    let is_free = call(|| {
        let open = handles::session(session)?;
        lock(&open)?.check_no_restart().map(|()| BVK_OK)
    });
    if is_free == BVK_ERR_STATE {
        return is_free;
    }
    // SAFETY: as the caller says.
    unsafe { put(restart, std::ptr::null_mut()) };
    call(|| {
        let open = handles::session(session)?;
        let mut locked = lock(&open)?;
        locked.check_no_restart()?;
        check_wanted(version)?;
        // SAFETY: as the caller says.
        let attempt = locked.session.start_restore(unsafe { arguments::name(name) }, want(version))?;
        let Some(attempt) = attempt else { return Ok(BVK_NOTHING) };
        if restart.is_null() {
            // Found only now, so that the other ranks are told.
            Running::new(0, attempt).give_up(&locked.session);
            return Err(Failure::argument("restart is NULL"));
        }
        let id = insert_part(Part::Restart, &open);
        locked.attempt = Some(Running::new(id, attempt));
        // SAFETY: as the caller says.
        unsafe { put(restart, to_pointer(id)) };
        Ok(BVK_OK)
    })
}

/// Works on an open restart.
pub(super) fn with(restart: *mut RestartHandle, work: impl FnOnce(&mut Open, &mut Running) -> Outcome) -> c_int {
    call(|| {
        let (id, open) = part(restart, Part::Restart)?;
        on(&open, |running| running.id == id, work)
    })
}

/// Works on the open attempt of a session, if it is the one that `restart` names.
pub(super) fn on(
    open: &Shared,
    is_meant: impl Fn(&Running) -> bool,
    work: impl FnOnce(&mut Open, &mut Running) -> Outcome,
) -> Outcome {
    let mut open = lock(open)?;
    let running = open.attempt.take_if(|running| is_meant(running));
    let mut running = running.ok_or_else(|| Failure::state("this restart has ended"))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut open, &mut running)));
    // Also after a panic: closing the session tells the other ranks.
    open.attempt = Some(running);
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Works on something that an open attempt keeps under a handle.
pub(super) fn with_found<T>(found: *mut T, kind: Part, work: impl FnOnce(&mut Running, Id) -> Outcome) -> c_int {
    call(|| {
        let (id, open) = part(found, kind)?;
        on(&open, |running| running.keeps(id), |_, running| work(running, id))
    })
}

/// Closes something that an open attempt keeps, and makes its handle NULL. A handle that is already NULL is not an
/// error.
///
/// # Safety
/// `found` is NULL or points to a handle.
pub(super) unsafe fn close_found<T>(found: *mut *mut T, kind: Part) -> c_int {
    // SAFETY: as the caller says.
    let Some(place) = (unsafe { found.as_mut() }).filter(|place| !place.is_null()) else { return BVK_OK };
    let closed = with_found(*place, kind, |running, id| {
        running.close(id);
        Ok(BVK_OK)
    });
    if closed == BVK_OK {
        *place = std::ptr::null_mut();
    }
    closed
}

/// A range of old ranks, computed from the first rank and the number of ranks.
pub(super) fn old_ranks(saved_ranks: u32, first: c_int, count: c_int) -> Outcome<Range<u32>> {
    let ranks = u32::try_from(first).ok().zip(u32::try_from(count).ok());
    let ranks = ranks.and_then(|(first, count)| Some(first..first.checked_add(count)?));
    ranks.filter(|ranks| ranks.end <= saved_ranks).ok_or_else(|| {
        Failure::argument(format!(
            "cannot look at {count} ranks starting at rank {first}: {saved_ranks} ranks took the checkpoint"
        ))
    })
}

/// The version that is being restored.
///
/// Local, never waits.
///
/// # Safety
/// `version` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_saved_version(restart: *mut RestartHandle, version: *mut u64) -> c_int {
    with(restart, |_, running| {
        // SAFETY: as the caller says.
        unsafe { must_put(version, running.restart.attempt().version(), "version") }?;
        Ok(BVK_OK)
    })
}

/// The number and the type of the elements of the region `name` in the version that is being restored. `count` and `kind` may be NULL.
///
/// Local. Blocks on the tier that holds the copy.
///
/// Errors: `BVK_ERR_LOAD` if there is no such region, or no copy that can be read. A missing region does not make the attempt fail.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `count` and `kind` are NULL or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_region_size(
    restart: *mut RestartHandle,
    name: *const c_char,
    count: *mut u64,
    kind: *mut c_int,
) -> c_int {
    with(restart, |_, running| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a region") }?;
        let found = running.restart.attempt().describe(name);
        let region = match found {
            Ok(region) => region,
            Err(error) => {
                return Err(running.missing(error));
            }
        };
        if region.kind != RegionKind::Array {
            return Err(Failure::new(
                BVK_ERR_LOAD,
                format!(
                    "region {name:?} is a value, not an array: load it with bvk_load_shared or bvk_load_per_rank, or in Rust"
                ),
            ));
        }
        let (elements, number) = kind_of(&region);
        // SAFETY: as the caller says.
        unsafe {
            put(count, elements);
            put(kind, number);
        }
        Ok(BVK_OK)
    })
}

/// Loads the region `name` into `count` elements at `data`, on the host or on a GPU. The number and the type must be those that were saved.
///
/// Local. Blocks on the tier that holds the copy.
///
/// Errors: `BVK_ERR_LOAD`, `BVK_ERR_DEVICE`, `BVK_ERR_ARGUMENT`. If the region is missing, or has a different type or length, `data` is
/// unchanged; after any other error, the contents of `data` are unspecified.
///
/// # Safety
/// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load(
    restart: *mut RestartHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    with(restart, |open, running| {
        // SAFETY: as the caller says; there is one extent.
        let region = unsafe { described(name, data, kind, 1, &count) }?;
        let Open { session, gpus, stream, .. } = open;
        // SAFETY: as the caller says.
        let loaded = unsafe { load_region(running.restart.attempt(), &region, session, gpus, *stream) };
        running.note(loaded)
    })
}

/// Loads all protected regions, if there are any. The application loads other regions of the checkpoint itself, or leaves them out.
///
/// Local, except for values and for regions on boxes: for these, the call is collective whenever `bvk_load_on` and `bvk_load_shared` are.
/// Blocks on the tiers that hold the copies, and then until all ranks have made the call.
///
/// Errors: as for `bvk_load`; the contents of the regions are then unspecified.
///
/// # Safety
/// The requirements of [`bvk_protect`](super::session::bvk_protect) hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_protected(restart: *mut RestartHandle) -> c_int {
    // SAFETY: as the caller says.
    with(restart, |open, running| unsafe { load_protected(open, running, false) })
}

/// Appends to `history` all versions that were saved under its name. `*count` says how many versions these are (`count` may be NULL). Each
/// attempt needs its own history: after `BVK_AGAIN`, close this history and open another.
///
/// Local. Blocks on the tier that holds the copy.
///
/// Errors: as for `bvk_load`. The history then contains only some of the versions: close it.
///
/// # Safety
/// `count` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_history(
    restart: *mut RestartHandle,
    history: *mut super::history::HistoryHandle,
    count: *mut u64,
) -> c_int {
    call(|| {
        let (past, its) = part(history, Part::History)?;
        let (id, open) = part(restart, Part::Restart)?;
        if !std::sync::Arc::ptr_eq(&open, &its) {
            return Err(Failure::argument("the history and the restart belong to different sessions"));
        }
        let mut open = lock(&open)?;
        let Open { attempt, histories, .. } = &mut *open;
        let running = attempt.as_mut().filter(|running| running.id == id);
        let running = running.ok_or_else(|| Failure::state("this restart has ended"))?;
        let past = histories.get(&past).ok_or_else(|| Failure::state("this history was closed"))?;
        let mut loaded = 0;
        let outcome = running.restart.attempt().load_history(&past.history).map(|versions| loaded = versions);
        running.note(Ok(outcome))?;
        // SAFETY: as the caller says.
        unsafe { put(count, loaded) };
        Ok(BVK_OK)
    })
}

/// Rejects a version that can be loaded but must not be used, for example because it contains a NaN or fails another check of the program.
/// After `bvk_end_restore`, all ranks continue with the next older version. It is enough for one rank to make this call. `reason` is for
/// the log, and for the error if there is no older version. If a rank gives several reasons, the first one counts.
///
/// Local, never waits.
///
/// # Safety
/// `reason` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_reject(restart: *mut RestartHandle, reason: *const c_char) -> c_int {
    with(restart, |_, running| {
        // SAFETY: as the caller says.
        let reason = unsafe { text(reason, "the reason") }?;
        running.restart.attempt().reject(reason);
        Ok(BVK_OK)
    })
}

/// Ends an attempt. `loaded`: 1 if this rank has loaded what it needs; 0 if not; -1 if not and no other version would help, for example
/// because the rank does not have enough memory. There are three outcomes, and all ranks get the same one:
///
/// - `BVK_OK`: all ranks have loaded. `*restart` is NULL, and `restored`, unless it is NULL, describes the checkpoint.
/// - `BVK_AGAIN`: a rank has found damage, or has rejected the version (`bvk_reject`). Load again from the same handle, which now leads to
///   other copies of the version or to an older one. Nothing that was loaded before may be used.
/// - `BVK_ERR_RESTART`: the restart has ended, and `*restart` is NULL. A rank has not loaded and no other version would help: a region is
///   missing or has a different type or length, the rank passed 0 although no load failed, or the rank passed -1.
///
/// To ask whether a region exists, use `bvk_region_size`, which does not affect the outcome.
///
/// Collective: all ranks. Blocks until all ranks have made the call.
///
/// Errors: `BVK_ERR_RESTART`, on all ranks, even if only one rank left `restored->size` unset; `*restart` is then NULL.
///
/// # Safety
/// `restart` points to a handle; `restored` is NULL or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_end_restore(
    restart: *mut *mut RestartHandle,
    loaded: c_int,
    restored: *mut CRestored,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let place = unsafe { restart.as_mut() }.ok_or_else(|| Failure::argument("restart is NULL"))?;
        let (id, open) = part(*place, Part::Restart)?;
        let mut open = lock(&open)?;
        let running = open.attempt.take_if(|running| running.id == id);
        let mut running = running.ok_or_else(|| Failure::state("this restart has ended"))?;
        running.forget();
        let mut failure = running.failed.filter(|_| loaded <= 0);
        if loaded < 0 || loaded == 0 && failure.is_none() && !running.restart.attempt().is_rejected() {
            let why =
                failure.map_or_else(|| "it has not loaded what it needs".to_owned(), |failure| failure.to_string());
            failure = Some(Unloaded::Refused(why));
        }
        // SAFETY: as the caller says.
        if let Err(mistake) = unsafe { arguments::check_fillable(restored, "bvk_restored") } {
            // A mistake of this rank ends the restart of all: none may continue from a version that another rank is not told
            // about.
            failure = Some(Unloaded::Refused(mistake.text));
        }
        match running.restart.end(&open.session, failure) {
            Ok(AttemptEnd::Again(next)) => {
                open.attempt = Some(Running::new(id, *next));
                Ok(BVK_AGAIN)
            }
            Ok(AttemptEnd::Counts(done)) => {
                handles::remove(id);
                *place = std::ptr::null_mut();
                // SAFETY: as the caller says; there is no padding.
                unsafe { fill(restored, described_restored(&done), "bvk_restored") }?;
                Ok(BVK_OK)
            }
            Err(error) => {
                handles::remove(id);
                *place = std::ptr::null_mut();
                Err(error.into())
            }
        }
    })
}

/// Lists the versions of the series `name` that all ranks can restore, newest first. `versions` has room for `capacity` versions, and gets
/// as many as fit. `*count` says how many versions all ranks can restore.
///
/// Collective: all ranks. Blocks like `bvk_begin_restore`.
///
/// Errors: as for `bvk_restore`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `versions` has room for `capacity` numbers, or is NULL and `capacity` is
/// 0; `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_versions(
    session: *mut SessionHandle,
    name: *const c_char,
    versions: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    with_session(session, |open| {
        open.check_no_restart()?;
        // SAFETY: as the caller says.
        let found = open.session.versions(unsafe { arguments::name(name) })?;
        if versions.is_null() && capacity > 0 {
            return Err(Failure::argument("versions is NULL and capacity is not 0"));
        }
        for (at, info) in found.iter().take(capacity).enumerate() {
            // SAFETY: there is room for `capacity` numbers, says the caller.
            unsafe { versions.add(at).write_unaligned(info.version) };
        }
        // SAFETY: as the caller says.
        unsafe { must_put(count, found.len(), "count") }?;
        Ok(BVK_OK)
    })
}
