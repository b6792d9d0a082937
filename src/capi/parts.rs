//! What old ranks had of arrays and rows, for programs that use this information to divide arrays or distribute rows again.

use super::arguments::{check_fillable, fill, put, text};
use super::handles::{Part, part, to_pointer};
use super::open::{Asked, insert_part};
use super::restart::{self, RestartHandle, with_found};
use super::status::{BVK_OK, Failure, Outcome, call};
use bivouac_core::recovery::RankPart;
use std::ffi::{c_char, c_int};

/// A rank's part consists of rows of a set.
pub const BVK_PART_ROWS: c_int = 1;
/// A rank's part consists of boxes of an array.
pub const BVK_PART_BOXES: c_int = 2;
/// A rank's part consists of numbered elements of an array.
pub const BVK_PART_IDS: c_int = 3;

/// The maximum number of dimensions of an array or of bounds.
const DIMENSIONS_MAX: usize = 8;

/// What ranks that took a checkpoint had of an array or of rows.
pub struct PartsHandle {
    _private: (),
}

/// The part of an array or of a set of rows that one old rank had. Set `size` to `sizeof(bvk_part)` before the call (`BVK_PART_INIT`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CPart {
    /// `sizeof(bvk_part)`.
    pub size: usize,
    /// One of `BVK_PART_...`.
    pub kind: c_int,
    /// The number of dimensions of the array, or of the bounds; 0 for rows that were saved without bounds.
    pub dimensions: c_int,
    /// The number of rows, boxes, or numbered elements that the rank had.
    pub count: u64,
    /// For boxes: the extents of the array, slowest dimension first. For numbered elements: `shape[0]` is the
    /// number of elements of the array.
    pub shape: [u64; 8],
    /// For rows: the least coordinate in each dimension, as given in `bvk_rows` when the rows were saved.
    pub low: [f64; 8],
    /// For rows: the greatest coordinate in each dimension.
    pub high: [f64; 8],
}

impl From<&RankPart> for CPart {
    fn from(part: &RankPart) -> CPart {
        let mut found = CPart::default();
        match part {
            RankPart::Rows { count, bounds } => {
                (found.kind, found.count, found.dimensions) = (BVK_PART_ROWS, *count, bounds.len() as c_int);
                for (at, [low, high]) in bounds.iter().enumerate().take(DIMENSIONS_MAX) {
                    (found.low[at], found.high[at]) = (*low, *high);
                }
            }
            RankPart::Boxes { shape, boxes } => {
                (found.kind, found.count) = (BVK_PART_BOXES, boxes.len() as u64);
                found.dimensions = shape.len() as c_int;
                found.shape.iter_mut().zip(shape).for_each(|(place, extent)| *place = *extent);
            }
            RankPart::Ids { total, count } => {
                (found.kind, found.count, found.dimensions, found.shape[0]) = (BVK_PART_IDS, *count, 1, *total);
            }
        }
        found
    }
}

/// Asks which part of `name` each of the old ranks `first` to `first + count - 1` had; `name` is an array that was saved on boxes or as
/// numbered elements, or a set of rows. `bvk_part_of` and `bvk_boxes_of` then return the answers. Each rank may ask for any of the
/// `bvk_saved_ranks` old ranks, or for none with `count` 0. Nothing is loaded.
///
/// Collective: all ranks. Blocks on the tiers that hold the shards, and until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`: no such array or set exists. `BVK_ERR_ARGUMENT` for old ranks that do not exist: this rank does not take part,
/// and the other ranks get an error when it calls `bvk_end_restore`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string. `parts` points to a handle, which the call sets and you own until `bvk_parts_close`, or until
/// `bvk_end_restore`, which closes the handle whatever status it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_parts(
    restart: *mut RestartHandle,
    name: *const c_char,
    first: c_int,
    count: c_int,
    parts: *mut *mut PartsHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(parts, std::ptr::null_mut()) };
    call(|| {
        let (attempt, open) = part(restart, Part::Restart)?;
        restart::on(
            &open,
            |running| running.id == attempt,
            |_, running| {
                let restorer = running.restart.attempt();
                // SAFETY: as the caller says.
                let asked = unsafe { text(name, "the name of an array or of rows") }.and_then(|name| {
                    if parts.is_null() {
                        return Err(Failure::argument("parts is NULL"));
                    }
                    Ok((name, restart::old_ranks(restorer.saved_ranks(), first, count)?))
                });
                let (first, found) = match asked {
                    Ok((name, ranks)) => (ranks.start, restorer.parts(name, ranks)),
                    Err(mistake) => return running.note(Err(mistake)),
                };
                let found = match found {
                    Ok(found) => found,
                    Err(error) => return running.note(Ok(Err(error))),
                };
                let id = insert_part(Part::Parts, &open);
                running.parts.insert(id, Asked { first, parts: found });
                // SAFETY: as the caller says.
                unsafe { put(parts, to_pointer(id)) };
                Ok(BVK_OK)
            },
        )
    })
}

/// What a rank had.
fn of(asked: &Asked, rank: c_int) -> Outcome<&RankPart> {
    let at = u32::try_from(rank).ok().and_then(|rank| rank.checked_sub(asked.first));
    at.and_then(|at| asked.parts.get(at as usize)).ok_or_else(|| {
        let (count, first) = (asked.parts.len(), asked.first);
        Failure::argument(format!("rank {rank} was not asked for: only {count} ranks starting at rank {first} were"))
    })
}

/// Describes in `*found` the part that old rank number `rank` had.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT` for a rank that `bvk_parts` was not asked for, or if `found->size` was not set.
///
/// # Safety
/// `found` is NULL or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_part_of(parts: *mut PartsHandle, rank: c_int, found: *mut CPart) -> c_int {
    with_found(parts, Part::Parts, |running, id| {
        if found.is_null() {
            return Err(Failure::argument("found is NULL"));
        }
        // SAFETY: as the caller says.
        unsafe { check_fillable(found, "bvk_part") }?;
        let part = CPart::from(of(&running.parts[&id], rank)?);
        // SAFETY: as the caller says; there is no padding.
        unsafe { fill(found, part, "bvk_part") }?;
        Ok(BVK_OK)
    })
}

/// Lists the boxes that old rank number `rank` had, in the order in which the boxes were passed to `bvk_boxes`. The lists `origins` and
/// `extents` have room for `capacity` boxes, and get as many as fit. Each of the two lists gets as many numbers per box as the array has
/// dimensions, box after box. `bvk_part_of` says how many boxes there are.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT`, also for a rank whose part consists of rows or numbered elements.
///
/// # Safety
/// `origins` and `extents` have room for `capacity` times as many numbers as the array has dimensions, or are NULL and `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_boxes_of(
    parts: *mut PartsHandle,
    rank: c_int,
    capacity: usize,
    origins: *mut u64,
    extents: *mut u64,
) -> c_int {
    with_found(parts, Part::Parts, |running, id| {
        let RankPart::Boxes { shape, boxes } = of(&running.parts[&id], rank)? else {
            return Err(Failure::argument(format!("rank {rank} had no boxes")));
        };
        if (origins.is_null() || extents.is_null()) && capacity > 0 {
            return Err(Failure::argument("origins or extents is NULL and capacity is not 0"));
        }
        let dims = shape.len();
        for (number, (origin, extent)) in boxes.iter().take(capacity).enumerate() {
            for (dim, (first, length)) in origin.iter().zip(extent).enumerate() {
                // SAFETY: the caller guarantees room for `capacity` times `dims` numbers.
                unsafe {
                    put(origins.add(number * dims + dim), *first);
                    put(extents.add(number * dims + dim), *length);
                }
            }
        }
        Ok(BVK_OK)
    })
}

/// Releases the result of `bvk_parts`. `*parts` becomes NULL. A NULL handle is not an error. `bvk_end_restore`
/// closes handles that are still open.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_HANDLE`, also after `bvk_end_restore`.
///
/// # Safety
/// `parts` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_parts_close(parts: *mut *mut PartsHandle) -> c_int {
    // SAFETY: as the caller says.
    unsafe { restart::close_found(parts, Part::Parts) }
}
