//! Arrays that are divided into boxes over the ranks: the layout of the boxes, and the regions on them. A checkpoint with only such
//! regions and those of [`super::values`] can be restored on any number of ranks.

use super::arguments::put;
use super::checkpoint;
use super::checkpoint::CheckpointHandle;
use super::handles::{self, Part, lock, part, to_pointer};
use super::open::{Open, insert_part, with as with_session};
use super::regions::{Lies, Region};
use super::restart::{self, RestartHandle};
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome, call};
use bivouac_core::decomposition::{self, BOXES_MAX, Boxes, Decomposition, DecompositionError, Ids};
use bivouac_core::region;
use bivouac_core::session::Error;
use std::ffi::{c_char, c_int, c_void};

/// How an array is spread over the ranks.
pub struct BoxesHandle {
    _private: (),
}

/// The boxes of a handle.
fn boxes_of(open: &Open, boxes: *mut BoxesHandle) -> Outcome<Decomposition> {
    let (id, _) = part(boxes, Part::Boxes)?;
    open.boxes.get(&id).cloned().ok_or_else(|| Failure::argument("the boxes belong to another session"))
}

/// `count` numbers; NULL is accepted if there are none.
///
/// # Safety
/// `numbers` is NULL or has as many.
unsafe fn list(numbers: *const u64, count: usize, what: &str) -> Result<Vec<u64>, String> {
    if numbers.is_null() && count > 0 {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: there are that many numbers, says the caller.
    Ok((0..count).map(|at| unsafe { numbers.add(at).read_unaligned() }).collect())
}

/// `count` rows of `dims` numbers; NULL is accepted if there are none.
///
/// # Safety
/// `numbers` is NULL or has as many.
unsafe fn rows(numbers: *const u64, dims: usize, count: usize, what: &str) -> Result<Vec<Vec<u64>>, String> {
    if numbers.is_null() && count > 0 {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: there are that many numbers, says the caller.
    (0..count).map(|row| unsafe { list(numbers.wrapping_add(row * dims), dims, what) }).collect()
}

/// What a call to [`bvk_boxes`] says about this rank's part.
struct Described {
    dimensions: c_int,
    shape: *const u64,
    count: usize,
    origins: *const u64,
    extents: *const u64,
    before: *const u64,
    after: *const u64,
    is_sparse: bool,
}

impl Described {
    /// This rank's part as a [`Boxes`] value. Other mistakes in the description are found together with the other ranks.
    ///
    /// # Safety
    /// As [`bvk_boxes`].
    unsafe fn boxes(&self) -> Result<Boxes, String> {
        let dims = usize::try_from(self.dimensions).ok().filter(|dims| *dims <= 32);
        let dims = dims.ok_or_else(|| {
            format!("an array of {} dimensions cannot be decomposed: at most 32 are allowed", self.dimensions)
        })?;
        if self.count > BOXES_MAX {
            return Err(DecompositionError::TooMany { given: self.count }.to_string());
        }
        // SAFETY: as the caller says.
        let (shape, origins, extents) = unsafe {
            (
                rows(self.shape, dims, 1, "shape")?.remove(0),
                rows(self.origins, dims, self.count, "origins")?,
                rows(self.extents, dims, self.count, "extents")?,
            )
        };
        let margin = |numbers: *const u64| match numbers.is_null() {
            true => Ok(vec![0; dims]),
            // SAFETY: as the caller says.
            false => unsafe { rows(numbers, dims, 1, "a width of ghost cells") }.map(|mut rows| rows.remove(0)),
        };
        let boxes = Boxes::of(shape).margins(margin(self.before)?, margin(self.after)?);
        let boxes = origins.into_iter().zip(extents).fold(boxes, |boxes, (origin, extent)| boxes.own(origin, extent));
        Ok(if self.is_sparse { boxes.sparse() } else { boxes })
    }
}

/// Says which boxes this rank owns in an array, and proves together with the other ranks that each element has one owner. Regions that are
/// saved on `*boxes` can be restored on any number of ranks, and on any other boxes of an array of the same shape. Make this call once for
/// each decomposition, whatever the element types are.
///
/// `shape`: the extents of the array in its `dimensions` dimensions (1 to 8), slowest first (in C, rows before columns). This rank owns
/// `count` boxes, which may be 0. The `dimensions` numbers starting at `origins + b * dimensions` are the origin of box b, and those
/// starting at `extents + b * dimensions` are its extents; boxes and elements are counted from 0. In memory, each box is surrounded by
/// ghost cells: `before` and `after` point to `dimensions` numbers each, which say how many elements lie before and after the box in each
/// dimension; NULL stands for none. Ghost cells are not saved, and a load leaves them unchanged. `sparse`: 1 if the boxes of all ranks
/// together need not cover the array, as on a level of an adaptive mesh; 0 if they must.
///
/// Collective: all ranks, with the same `dimensions`, `shape` and `sparse`, including ranks that own nothing. Blocks
/// until all ranks have made the call.
///
/// Errors: `BVK_ERR_DISAGREED`, on all ranks alike: an element has two owners or none (the text names the ranks and the first elements), an
/// argument of some rank is invalid, or ranks gave different shapes. `BVK_ERR_FAILED`. `BVK_ERR_STATE` while a restart is open, and
/// `BVK_ERR_HANDLE`: the other ranks are not told.
///
/// # Safety
/// `shape` points to `dimensions` numbers, `origins` and `extents` point to `count * dimensions` numbers each, and `before` and
/// `after` are NULL or point to `dimensions` numbers each. `boxes` points to a handle, which the call sets and you own until
/// `bvk_boxes_close` or `bvk_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_boxes(
    session: *mut SessionHandle,
    dimensions: c_int,
    shape: *const u64,
    count: usize,
    origins: *const u64,
    extents: *const u64,
    before: *const u64,
    after: *const u64,
    sparse: c_int,
    boxes: *mut *mut BoxesHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(boxes, std::ptr::null_mut()) };
    let is_sparse = sparse != 0;
    let described = || {
        let described = Described { dimensions, shape, count, origins, extents, before, after, is_sparse };
        match boxes.is_null() {
            true => Err("boxes is NULL".to_owned()),
            // SAFETY: as the caller says.
            false => unsafe { described.boxes() }.map(Into::into),
        }
    };
    // SAFETY: as the caller says.
    call(|| unsafe { decomposed(session, described, boxes) })
}

/// Says which elements this rank owns in an array of numbered elements, such as the elements of an unstructured mesh, and proves together
/// with the other ranks that each element has one owner. `*boxes` is a handle for all calls that take boxes. For these calls, this rank's
/// memory is one box of `count` elements, in the order of the list. Regions that are saved on `*boxes` can be restored on any number of
/// ranks, and on any other lists of an array of the same size.
///
/// The array has `total` elements, numbered from 0. `numbers` lists the `count` numbers that this rank owns, in any order; `count` may be
/// 0. The list is copied. `sparse`: 1 if the lists of all ranks together need not contain all numbers; 0 if they must.
///
/// Collective: all ranks, with the same `total` and `sparse`, including ranks that own nothing. Blocks until all ranks have made the call.
///
/// Errors: as for `bvk_boxes`; also `BVK_ERR_DISAGREED` if a number is not below `total`, or occurs twice in a list.
///
/// # Safety
/// `numbers` points to `count` numbers. `boxes` points to a handle, which the call sets and you own until `bvk_boxes_close` or `bvk_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_ids(
    session: *mut SessionHandle,
    total: u64,
    count: usize,
    numbers: *const u64,
    sparse: c_int,
    boxes: *mut *mut BoxesHandle,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(boxes, std::ptr::null_mut()) };
    let described = || {
        if boxes.is_null() {
            return Err("boxes is NULL".to_owned());
        }
        // SAFETY: as the caller says.
        let ids = Ids::of(total).own(unsafe { list(numbers, count, "numbers") }?);
        Ok(if sparse != 0 { ids.sparse() } else { ids }.into())
    };
    // SAFETY: as the caller says.
    call(|| unsafe { decomposed(session, described, boxes) })
}

/// Has the ranks prove together what each of them says, and writes the handle of the result to `boxes`.
///
/// # Safety
/// `boxes` is NULL, which `described` refuses, or points to a handle.
unsafe fn decomposed(
    session: *mut SessionHandle,
    described: impl FnOnce() -> Result<decomposition::Part, String>,
    boxes: *mut *mut BoxesHandle,
) -> Outcome<c_int> {
    let open = handles::session(session)?;
    let mut locked = lock(&open)?;
    locked.check_no_restart()?;
    let on = locked.session.decompose_described(described())?;
    let id = insert_part(Part::Boxes, &open);
    locked.boxes.insert(id, on);
    // SAFETY: as the caller says; it is not NULL, or there would be an error.
    unsafe { put(boxes, to_pointer(id)) };
    Ok(BVK_OK)
}

/// Releases boxes. Regions that were protected or saved on these boxes remain so. `*boxes` becomes NULL. A NULL handle is not an error.
///
/// Local, never waits.
///
/// # Safety
/// `boxes` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_boxes_close(boxes: *mut *mut BoxesHandle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let Some(place) = (unsafe { boxes.as_mut() }) else { return Ok(BVK_OK) };
        if place.is_null() {
            return Ok(BVK_OK);
        }
        let (id, open) = part(*place, Part::Boxes)?;
        // A call that is refused leaves the handle.
        lock(&open)?.boxes.remove(&id);
        handles::remove(id);
        *place = std::ptr::null_mut();
        Ok(BVK_OK)
    })
}

/// The memory of a rank's boxes, as a call gives it.
struct Memory {
    count: usize,
    data: *const *const c_void,
    elements: *const u64,
    kind: c_int,
}

impl Memory {
    /// The region of this memory on `boxes`.
    ///
    /// # Safety
    /// `name` is NULL or ends with zero; `data` and `elements` have `count` entries. Nothing is read from where `data` points to.
    unsafe fn region(&self, open: &Open, name: *const c_char, boxes: *mut BoxesHandle) -> Outcome<Region> {
        // SAFETY: as the caller says.
        let name = unsafe { super::arguments::text(name, "the name of a region") }?;
        let on = boxes_of(open, boxes)?;
        if self.count > 0 && (self.data.is_null() || self.elements.is_null()) {
            return Err(Failure::argument(format!("region {name:?}: data or elements is NULL")));
        }
        // SAFETY: there are that many entries, says the caller.
        let entry = |at: usize| unsafe { (self.data.add(at).read_unaligned(), self.elements.add(at).read_unaligned()) };
        let memory: Vec<(*const c_void, u64)> = (0..self.count).map(entry).collect();
        Region::on(name, on, &memory, self.kind)
    }

    /// As [`Memory::region`], and checks that the memory fits the boxes. A mistake concerns this rank only.
    ///
    /// # Safety
    /// As [`Memory::region`].
    unsafe fn checked(&self, open: &Open, name: *const c_char, boxes: *mut BoxesHandle) -> Outcome<Region> {
        // SAFETY: as the caller says.
        let region = unsafe { self.region(open, name, boxes) }?;
        if let Lies::On(on, memory) = &region.lies {
            let size = region.element().bytes().max(1) as usize;
            let elements = memory.iter().map(|memory| memory.bytes / size);
            region::check_memory(&region.name, on, elements).map_err(|error| Failure::from(Error::from(error)))?;
        }
        Ok(region)
    }
}

/// The memory of at most one box. A rank that owns none passes no elements.
fn of_one(data: &*const c_void, elements: &u64, kind: c_int, open: &Open, boxes: *mut BoxesHandle) -> Memory {
    let owns_none = *elements == 0 && boxes_of(open, boxes).is_ok_and(|on| on.boxes() == 0);
    Memory { count: usize::from(!owns_none), data, elements, kind }
}

/// Protects this rank's part of an array as region `name`: the memory of its box, with the ghost cells of `boxes`. `bvk_checkpoint` saves
/// this part, and `bvk_restore` loads it, on any number of ranks. `elements`: the number of elements in memory, including ghost cells. This
/// number is compared with the size of the box and its ghost cells. A rank that owns nothing passes 0. The memory may be on the host or on
/// a GPU, as each rank chooses. Otherwise, the call works like `bvk_protect`. All ranks must protect their regions in the same order.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect`; also `BVK_ERR_REGION` if `elements` is not the number of elements of the box with its ghost cells, or
/// if this rank owns several boxes.
///
/// # Safety
/// As for [`bvk_protect`](super::session::bvk_protect).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_on(
    session: *mut SessionHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    data: *mut c_void,
    elements: u64,
    kind: c_int,
) -> c_int {
    let data = data.cast_const();
    with_session(session, |open| {
        // SAFETY: as the caller says.
        let region = unsafe { of_one(&data, &elements, kind, open, boxes).checked(open, name, boxes) }?;
        open.protect([region]);
        Ok(BVK_OK)
    })
}

/// Protects an array of which this rank owns any number of boxes. `data` holds a pointer to the memory of each box, in the order in which
/// the boxes were passed to `bvk_boxes`, and `elements` holds the number of elements of each box. The lists need to be valid only during
/// the call. Otherwise, the call works like `bvk_protect_on`.
///
/// Local, waits like `bvk_protect`.
///
/// Errors: as for `bvk_protect_on`; also `BVK_ERR_REGION` if `count` is not the number of boxes that this rank owns; `BVK_ERR_ARGUMENT` if
/// boxes overlap in memory, or are partly on a GPU and partly elsewhere.
///
/// # Safety
/// The requirements of [`bvk_protect`](super::session::bvk_protect) hold for the memory of each box; `data` and
/// `elements` have `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_protect_boxes_on(
    session: *mut SessionHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    count: usize,
    data: *const *mut c_void,
    elements: *const u64,
    kind: c_int,
) -> c_int {
    with_session(session, |open| {
        // SAFETY: as the caller says.
        let region = unsafe { Memory { count, data: data.cast(), elements, kind }.checked(open, name, boxes) }?;
        open.protect([region]);
        Ok(BVK_OK)
    })
}

/// Adds this rank's part of an array to a checkpoint as region `name`, with memory as in `bvk_protect_on`. This memory is read by
/// `bvk_capture`, not by `bvk_hold`.
///
/// Local, never waits; nothing is read before `bvk_capture`.
///
/// Errors: as for `bvk_protect_on`, and `BVK_ERR_REGION` for a name that has already been added; the checkpoint is unchanged.
///
/// # Safety
/// The memory is readable until `bvk_capture` has returned. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_on(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    data: *const c_void,
    elements: u64,
    kind: c_int,
) -> c_int {
    checkpoint::with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let region = unsafe { of_one(&data, &elements, kind, open, boxes).checked(open, name, boxes) }?;
        open.begun[at].1.add(region)
    })
}

/// Adds an array of which this rank owns any number of boxes, with lists as in `bvk_protect_boxes_on`; otherwise like `bvk_save_on`.
///
/// Local, never waits.
///
/// Errors: as for `bvk_save_on` and `bvk_protect_boxes_on`.
///
/// # Safety
/// The requirements of [`bvk_save_on`] hold for the memory of each box; `data` and `elements` have `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_boxes_on(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    count: usize,
    data: *const *const c_void,
    elements: *const u64,
    kind: c_int,
) -> c_int {
    checkpoint::with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let region = unsafe { Memory { count, data, elements, kind }.checked(open, name, boxes) }?;
        open.begun[at].1.add(region)
    })
}

/// Loads the region `name` into this rank's part of an array, with memory as in `bvk_protect_on`. The boxes may differ from those that the
/// region was saved on; the shape of the array may not. Ghost cells stay as they are.
///
/// Local if the region was saved on the same number of ranks and on the same boxes. Otherwise collective: all ranks load the same regions
/// in the same order. Blocks on the tiers that hold the copies, and then until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`: the region does not exist, has a different type or shape, was not saved on boxes, or lacks requested elements;
/// or the memory does not fit the boxes. If the call is collective, all ranks get an error. `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`: this rank
/// does not take part, and the other ranks get an error when it calls `bvk_end_restore`.
///
/// # Safety
/// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_on(
    restart: *mut RestartHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    data: *mut c_void,
    elements: u64,
    kind: c_int,
) -> c_int {
    let data = data.cast_const();
    restart::with(restart, |open, running| {
        // SAFETY: as the caller says. Memory that does not fit is found with the other ranks.
        let region = unsafe { of_one(&data, &elements, kind, open, boxes).region(open, name, boxes) };
        // SAFETY: as the caller says.
        unsafe { restart::load_described(open, running, region) }
    })
}

/// Loads an array of which this rank owns any number of boxes, with lists as in `bvk_protect_boxes_on`; otherwise like `bvk_load_on`.
///
/// Local or collective, and blocking, like `bvk_load_on`.
///
/// Errors: as for `bvk_load_on`.
///
/// # Safety
/// The requirements of [`bvk_load_on`] hold for the memory of each box; `data` and `elements` have `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_boxes_on(
    restart: *mut RestartHandle,
    name: *const c_char,
    boxes: *mut BoxesHandle,
    count: usize,
    data: *const *mut c_void,
    elements: *const u64,
    kind: c_int,
) -> c_int {
    restart::with(restart, |open, running| {
        // SAFETY: as the caller says.
        let region = unsafe { Memory { count, data: data.cast(), elements, kind }.region(open, name, boxes) };
        // SAFETY: as the caller says.
        unsafe { restart::load_described(open, running, region) }
    })
}
