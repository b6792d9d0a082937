//! Small arrays that are the same on all ranks, or that belong to one rank, with a rule for restarts on a different number of ranks.
//!
//! They are saved as [`Elements`], a value that knows the type of its elements, so that each language can read values that another
//! language has saved.

use super::arguments::{self, element, must_put};
use super::checkpoint::{self, CheckpointHandle};
use super::open::{described, with as with_session};
use super::regions::{Lies, Region};
use super::restart::{self, RestartHandle};
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome};
use bivouac_core::Elements;
use bivouac_core::OnResize;
use std::ffi::{c_char, c_int, c_void};

/// As with `bvk_protect`, the checkpoint cannot be restored on a different number of ranks.
pub const BVK_RESIZE_REFUSE: c_int = 0;
/// On a different number of ranks, the value is dropped.
pub const BVK_RESIZE_DROP: c_int = 1;
/// On a different number of ranks, each rank may ask for the values of any old ranks (`bvk_of_ranks`).
pub const BVK_RESIZE_ASK: c_int = 2;

/// The rule, identified by its number, for a value of one rank.
fn on_resize(number: c_int) -> Outcome<OnResize> {
    match number {
        BVK_RESIZE_REFUSE => Ok(OnResize::Refuse),
        BVK_RESIZE_DROP => Ok(OnResize::Drop),
        BVK_RESIZE_ASK => Ok(OnResize::Ask),
        _ => Err(Failure::argument(format!("on_resize is {number}; see BVK_RESIZE_..."))),
    }
}

/// A region of values from the arguments of a call.
///
/// # Safety
/// `name` is NULL or ends with zero.
unsafe fn valued(
    name: *const c_char,
    data: *const c_void,
    count: u64,
    kind: c_int,
    lies: Outcome<Lies>,
) -> Outcome<Region> {
    // SAFETY: as the caller says; there is one extent.
    unsafe { described(name, data, kind, 1, &count) }?.of_values(lies?)
}

/// Protects the `count` elements at `data` under `name`, as a value that is the same on all ranks, such as a step or a time.
/// `bvk_checkpoint` saves them, and `bvk_restore` loads them, on any number of ranks. They must be on the host and take less than 1 MiB. If
/// the elements differ on a rank, the checkpoint is abandoned, and the verdict names the rank. Otherwise, the call works like
/// `bvk_protect`. All ranks must protect their regions in the same order.
///
/// A Rust program loads such a value with `shared::<Elements>`.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect`; also `BVK_ERR_REGION` for 1 MiB or more.
///
/// # Safety
/// As for [`bvk_protect`](super::session::bvk_protect).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_shared(
    session: *mut SessionHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    with_session(session, |open| {
        // SAFETY: as the caller says.
        open.protect([unsafe { valued(name, data, count, kind, Ok(Lies::Shared)) }?]);
        Ok(BVK_OK)
    })
}

/// Protects the `count` elements at `data` under `name`, as a value that belongs to this rank alone, such as the state of its random number
/// generator. They must be on the host and take less than 1 MiB. On the same number of ranks, `bvk_restore` loads them. `on_resize`, one of
/// `BVK_RESIZE_...` and the same on all ranks, says what happens on a different number of ranks: with `BVK_RESIZE_REFUSE` the restart is
/// refused; otherwise the elements stay unchanged, and `bvk_restored` says how many ranks took the checkpoint.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect_shared`.
///
/// # Safety
/// As for [`bvk_protect`](super::session::bvk_protect).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_per_rank(
    session: *mut SessionHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
    on_resize: c_int,
) -> c_int {
    with_session(session, |open| {
        let lies = self::on_resize(on_resize).map(Lies::PerRank);
        // SAFETY: as the caller says.
        open.protect([unsafe { valued(name, data, count, kind, lies) }?]);
        Ok(BVK_OK)
    })
}

/// Adds the `count` elements at `data` to a checkpoint, as a value that is the same on all ranks (`bvk_protect_shared`). They are copied in
/// this call.
///
/// Local, never waits.
///
/// Errors: as for `bvk_protect_shared`, and `BVK_ERR_REGION` for a name that has already been added; the checkpoint is unchanged.
///
/// # Safety
/// The memory is readable. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_shared(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    data: *const c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    checkpoint::with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let value = unsafe { valued(name, data, count, kind, Ok(Lies::Shared))?.value() };
        open.begun[at].1.add_value(value)
    })
}

/// Adds the `count` elements at `data` to a checkpoint, as a value of this rank (`bvk_protect_per_rank`). They are copied in this call.
///
/// Local, never waits.
///
/// Errors: as for `bvk_save_shared`.
///
/// # Safety
/// As for [`bvk_save_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_per_rank(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    data: *const c_void,
    count: u64,
    kind: c_int,
    on_resize: c_int,
) -> c_int {
    checkpoint::with(checkpoint, |open, at| {
        let lies = self::on_resize(on_resize).map(Lies::PerRank);
        // SAFETY: as the caller says.
        let value = unsafe { valued(name, data, count, kind, lies)?.value() };
        open.begun[at].1.add_value(value)
    })
}

/// Loads into `count` elements at `data` the value that was saved under `name` with `bvk_save_shared` or `bvk_protect_shared`. The number
/// and the type must be those that were saved.
///
/// Local if the same number of ranks took the checkpoint. Otherwise collective: all ranks load the same regions in the same order, and the
/// call blocks until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`; `BVK_ERR_ARGUMENT` and `BVK_ERR_REGION` as for `bvk_load_on`. `data` is then unchanged.
///
/// # Safety
/// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_shared(
    restart: *mut RestartHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    restart::with(restart, |open, running| {
        // SAFETY: as the caller says.
        let region = unsafe { valued(name, data, count, kind, Ok(Lies::Shared)) };
        // SAFETY: as the caller says.
        unsafe { restart::load_described(open, running, region) }
    })
}

/// Loads into `count` elements at `data` the value that this rank saved under `name` with `bvk_save_per_rank` or `bvk_protect_per_rank`.
/// The number and the type must be those that were saved. It is an error if a different number of ranks took the checkpoint
/// (`bvk_saved_ranks`), because no saved value belongs to this rank; see `bvk_of_ranks`.
///
/// Local. Blocks on the tier that holds the copy.
///
/// Errors: as for `bvk_load_shared`.
///
/// # Safety
/// As for [`bvk_load_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_per_rank(
    restart: *mut RestartHandle,
    name: *const c_char,
    data: *mut c_void,
    count: u64,
    kind: c_int,
) -> c_int {
    restart::with(restart, |_, running| {
        // SAFETY: as the caller says. What is to become of it says the checkpoint.
        let region = unsafe { valued(name, data, count, kind, Ok(Lies::PerRank(OnResize::Drop))) };
        let loaded = region.and_then(|region| match running.restart.attempt().value::<Elements>(&region.name) {
            // SAFETY: as the caller says.
            Ok(elements) => unsafe { region.land(&elements) }.map(Ok),
            Err(error) => Ok(Err(error)),
        });
        running.note(loaded)
    })
}

/// The number of ranks that took the checkpoint that is being restored.
///
/// Local, never waits; the same on all ranks.
///
/// # Safety
/// `ranks` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_saved_ranks(restart: *mut RestartHandle, ranks: *mut c_int) -> c_int {
    restart::with(restart, |_, running| {
        let saved = c_int::try_from(running.restart.attempt().saved_ranks()).unwrap_or(c_int::MAX);
        // SAFETY: as the caller says.
        unsafe { must_put(ranks, saved, "ranks") }?;
        Ok(BVK_OK)
    })
}

/// Loads the values that the old ranks `first` to `first + count - 1` saved with `BVK_RESIZE_ASK` under `name`, and stores them rank after
/// rank, starting at `data`. `each` is the number of elements that each of these old ranks saved. Each rank may ask for any of the
/// `bvk_saved_ranks` old ranks, or for none with `count` 0.
///
/// Collective: all ranks. Blocks on the tiers that hold the shards, and until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`; `BVK_ERR_ARGUMENT` for old ranks that do not exist, a mistake of which the other ranks learn only in
/// `bvk_end_restore`. After either error, the contents of `data` are unspecified.
///
/// # Safety
/// The memory has room for `count * each` elements, and nothing else uses it before this call returns. `name` is
/// NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_of_ranks(
    restart: *mut RestartHandle,
    name: *const c_char,
    first: c_int,
    count: c_int,
    data: *mut c_void,
    each: u64,
    kind: c_int,
) -> c_int {
    restart::with(restart, |_, running| {
        let restorer = running.restart.attempt();
        // SAFETY: as the caller says.
        let asked = unsafe { asked(restorer.saved_ranks(), first, count, (name, data, each, kind)) };
        // A rank with a mistake asks for nothing, and the others are told at the end.
        let wanted = asked.as_ref().map_or(0..0, |(ranks, _)| ranks.clone());
        // SAFETY: as the caller says.
        let found = restorer.of_ranks::<Elements>(unsafe { arguments::name(name) }, wanted);
        // SAFETY: as the caller says.
        let land = |(found, place): (&Elements, &Region)| unsafe { place.land(found) };
        let loaded = match (asked, found) {
            (Err(mistake), _) => Err(mistake),
            (Ok(_), Err(error)) => Ok(Err(error)),
            (Ok((_, places)), Ok(found)) => found.iter().zip(&places).try_for_each(land).map(Ok),
        };
        running.note(loaded)
    })
}

/// The old ranks that a call asks for, and the memory for the value of each.
///
/// # Safety
/// As [`bvk_of_ranks`].
unsafe fn asked(
    saved_ranks: u32,
    first: c_int,
    count: c_int,
    (name, data, each, kind): (*const c_char, *mut c_void, u64, c_int),
) -> Outcome<(std::ops::Range<u32>, Vec<Region>)> {
    let ranks = restart::old_ranks(saved_ranks, first, count)?;
    let step = each.checked_mul(element(kind)?.bytes()).and_then(|bytes| usize::try_from(bytes).ok());
    let step = step.filter(|step| step.checked_mul(ranks.len()).is_some_and(|bytes| isize::try_from(bytes).is_ok()));
    let step =
        step.ok_or_else(|| Failure::argument(format!("{count} times {each} elements are more than memory can hold")))?;
    let place = |at: usize| {
        let data = data.cast::<u8>().wrapping_add(at * step);
        // SAFETY: as the caller says; nothing is read from there.
        unsafe { valued(name, data.cast(), each, kind, Ok(Lies::PerRank(OnResize::Ask))) }
    };
    let places = (0..ranks.len()).map(place).collect::<Outcome<Vec<_>>>()?;
    Ok((ranks, places))
}
