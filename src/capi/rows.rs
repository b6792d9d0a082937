//! Rows whose number changes freely, such as particles: saved as columns, and dealt again over any number of ranks.
//!
//! The number of rows that a rank gets is not known before they are dealt. So there are two steps. A call deals the rows and says how many
//! there are. The application makes room, and loads each column to where it wants it. A handle connects the two steps, and lives as long as
//! the attempt.

use super::arguments::{element, number, put, text};
use super::checkpoint::{self, CheckpointHandle};
use super::columns::{CRows, SavedRows};
use super::handles::{Part, part, to_pointer};
use super::open::{Running, insert_part};
use super::regions::Region;
use super::restart::{self, RestartHandle, with_found};
use super::status::{BVK_NOTHING, BVK_OK, Failure, Inside, Outcome, call};
use bivouac_core::decomposition::rows::region_name;
use bivouac_core::recovery::How;
use std::ffi::{CString, c_char, c_int, c_void};

/// As `how`: each rank gets the rows that it saved. This works only if the same number of ranks took the
/// checkpoint, and makes the call local.
pub const BVK_ROWS_OWN: c_int = 0;
/// As `how`: all rows are distributed evenly, in the order of the ranks that saved them.
pub const BVK_ROWS_EVEN: c_int = 1;

/// The strictest alignment of a C type.
const ALIGNMENT: usize = 16;

/// Rows that this rank gets from a restart.
pub struct LoadedRowsHandle {
    _private: (),
}

/// Says which rank gets each of `count` rows. `values` holds the values of a column for these rows, row after row, with as many elements
/// per row as the column has. For each row, the function writes to `owners` the number of a rank of this run. `user` is the pointer that
/// was given to `bvk_load_rows_by`.
pub type OwnersFunction =
    Option<unsafe extern "C" fn(values: *const c_void, count: usize, owners: *mut c_int, user: *mut c_void)>;

/// Adds this rank's rows of the set `name` to a checkpoint. A rank may have any number of rows, and a different number at each checkpoint.
/// Each column is a region `name/column`. The rows can be restored on any number of ranks (`bvk_load_rows`). The structure and its list of
/// columns need to be valid only during the call. The memory of the columns is read by `bvk_capture`, not by `bvk_hold`.
///
/// Local, never waits. All ranks, including ranks without rows, add the set with the same columns.
///
/// Errors: `BVK_ERR_ARGUMENT`; `BVK_ERR_REGION` for a name that cannot be used or has already been added, and for a set without
/// columns; the checkpoint is unchanged.
///
/// # Safety
/// The memory of the columns is readable until `bvk_capture` has returned. `name` and the names of the columns are NULL or NUL-terminated
/// strings; `rows` is NULL or begins with its size, and points to as many columns and coordinates as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_save_rows(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    rows: *const CRows,
) -> c_int {
    checkpoint::with(checkpoint, |open, at| {
        // SAFETY: as the caller says.
        let saved = unsafe { SavedRows::described(name, rows) }?;
        // SAFETY: as the caller says; nothing is read from the memory of the columns.
        unsafe { saved.rows() }.check(&saved.name)?;
        open.begun[at].1.add_rows(saved)
    })
}

/// Deals rows, and writes their handle and their number.
///
/// # Safety
/// `name` is NULL or ends with zero; `rows` points to a handle; `count` is NULL or points to a number.
unsafe fn deal(
    restart: *mut RestartHandle,
    name: *const c_char,
    how: impl FnOnce() -> Outcome<How<'static>>,
    (rows, count): (*mut *mut LoadedRowsHandle, *mut u64),
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { put(rows, std::ptr::null_mut()) };
    call(|| {
        let (attempt, open) = part(restart, Part::Restart)?;
        restart::on(
            &open,
            |running| running.id == attempt,
            |_, running| {
                let asked = || {
                    if rows.is_null() {
                        return Err(Failure::argument("rows is NULL"));
                    }
                    // SAFETY: as the caller says.
                    Ok((unsafe { text(name, "the name of a set of rows") }?, how()?))
                };
                let (name, how) = match asked() {
                    Ok(asked) => asked,
                    Err(mistake) => return running.note(Err(mistake)),
                };
                let restorer = running.restart.attempt();
                let dealt = match restorer.deal_rows(name, how) {
                    Ok(dealt) => dealt,
                    Err(error) => return running.note(Ok(Err(error))),
                };
                let id = insert_part(Part::Rows, &open);
                // SAFETY: as the caller says.
                unsafe {
                    put(count, dealt.count());
                    put(rows, to_pointer(id));
                }
                running.rows.insert(id, dealt);
                Ok(BVK_OK)
            },
        )
    })
}

/// Describes column number `at` of the set `name`: its name, the type of its elements, and the number of elements per row. Columns are
/// counted from 0, in the order in which they were saved. The call returns `BVK_NOTHING` after the last column. `column`, `kind` and
/// `width` may be NULL. The name stays valid until `bvk_end_restore`.
///
/// Local; the same on all ranks. Blocks on the tier that holds the copy.
///
/// Errors: `BVK_ERR_LOAD` if there is no such set, or no copy that can be read. A missing set does not make the attempt fail.
/// `BVK_ERR_ARGUMENT`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `column` is NULL or points to a pointer; `kind` and `width` are NULL or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_column_at(
    restart: *mut RestartHandle,
    name: *const c_char,
    at: usize,
    column: *mut *const c_char,
    kind: *mut c_int,
    width: *mut u32,
) -> c_int {
    restart::with(restart, |_, running| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a set of rows") }?;
        if !running.columns.contains_key(name) {
            let columns = match running.restart.attempt().columns_of(name) {
                Ok(columns) => columns,
                Err(error) => return Err(running.missing(error)),
            };
            let columns = columns.into_iter().map(|(name, element, width)| {
                // A name with a zero in it was made by no call of this interface, and cannot be asked for by one.
                (CString::new(name.replace('\0', "\u{fffd}")).unwrap_or_default(), element, width)
            });
            running.columns.insert(name.to_owned(), columns.collect());
        }
        let Some((found, element, elements)) = running.columns.get(name).and_then(|columns| columns.get(at)) else {
            return Ok(BVK_NOTHING);
        };
        // SAFETY: as the caller says.
        unsafe {
            put(column, found.as_ptr());
            put(kind, number(*element));
            put(width, *elements);
        }
        Ok(BVK_OK)
    })
}

/// Determines which rows of the set `name` this rank gets (`how` is one of `BVK_ROWS_...`). `*count` says how many rows these are (`count`
/// may be NULL). The application then loads their columns one by one, into memory with room for these rows (`bvk_load_column`). A program
/// that wants certain rows on certain ranks uses `bvk_load_rows_by`.
///
/// Collective: all ranks, with the same `how`, unless it is `BVK_ROWS_OWN`, which makes the call local. Blocks on the tiers that hold the
/// shards, and until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`: there is no such set, it was not saved with `bvk_save_rows`, or `how` is `BVK_ROWS_OWN` and a
/// different number of ranks took the checkpoint. `BVK_ERR_ARGUMENT`: this rank does not take part, and the other ranks get an
/// error when it calls `bvk_end_restore`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string. `rows` points to a handle, which the call sets and you own until `bvk_loaded_rows_close`, or
/// until `bvk_end_restore`, which closes the handle whatever status it returns. `count` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_rows(
    restart: *mut RestartHandle,
    name: *const c_char,
    how: c_int,
    rows: *mut *mut LoadedRowsHandle,
    count: *mut u64,
) -> c_int {
    let how = || match how {
        BVK_ROWS_OWN => Ok(How::Own),
        BVK_ROWS_EVEN => Ok(How::Even),
        _ => Err(Failure::argument(format!("how is {how}; see BVK_ROWS_..."))),
    };
    // SAFETY: as the caller says.
    unsafe { deal(restart, name, how, (rows, count)) }
}

/// Gets `wanted` rows, starting with row number `first`, in the order of the ranks that saved them. Each rank may ask for any
/// rows: the ranges may overlap and may leave rows out. `bvk_parts` says how many rows there are in total. Otherwise, the
/// call works like `bvk_load_rows`.
///
/// Collective and blocking like `bvk_load_rows`.
///
/// Errors: as for `bvk_load_rows`; `BVK_ERR_LOAD` on all ranks if one rank asks for rows that do not exist.
///
/// # Safety
/// As for [`bvk_load_rows`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_rows_range(
    restart: *mut RestartHandle,
    name: *const c_char,
    first: u64,
    wanted: u64,
    rows: *mut *mut LoadedRowsHandle,
    count: *mut u64,
) -> c_int {
    let how = || {
        let behind = first.checked_add(wanted);
        let behind =
            behind.ok_or_else(|| Failure::argument(format!("{wanted} rows from row {first} on are too many")))?;
        Ok(How::Range(first..behind))
    };
    // SAFETY: as the caller says.
    unsafe { deal(restart, name, how, (rows, count)) }
}

/// Gets the rows that a function of the application assigns to this rank according to the values of a column of the type `kind` with
/// `width` elements per row. The rows are in the order of the ranks that saved them and, for each of these ranks, in the order in which it
/// saved them. Otherwise, the call works like `bvk_load_rows`.
///
/// The function `owners` is called on this thread before this call returns, on the ranks that read rows: on some ranks for many rows and on
/// others for none. It gets each row once, in batches of up to 1 MiB of values. Its answers must depend only on the values, not on data
/// that only one rank has. It must call neither Bivouac (`BVK_ERR_STATE`) nor MPI, and it must return: no exception and no `longjmp` may
/// leave it. Entries of its array `owners` that it does not set are -1.
///
/// Collective and blocking like `bvk_load_rows`; the column must be the same on all ranks. A rank that reads rows keeps 4 bytes per
/// row until the handle is closed.
///
/// Errors: as for `bvk_load_rows`; `BVK_ERR_LOAD` on all ranks if a row is assigned to no rank, or to a rank that does not exist (the text
/// gives the numbers of the row and of that rank).
///
/// # Safety
/// As for [`bvk_load_rows`]. `column` is NULL or a NUL-terminated string; `owners` writes `count` numbers and no more,
/// and may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_rows_by(
    restart: *mut RestartHandle,
    name: *const c_char,
    column: *const c_char,
    kind: c_int,
    width: u32,
    owners: OwnersFunction,
    user: *mut c_void,
    rows: *mut *mut LoadedRowsHandle,
    count: *mut u64,
) -> c_int {
    let how = || {
        // SAFETY: as the caller says.
        let column = unsafe { text(column, "the name of a column") }?;
        let owners = owners.ok_or_else(|| Failure::argument("owners is NULL"))?;
        let row = u64::from(width).saturating_mul(element(kind)?.bytes());
        let mut aligned: Vec<u128> = Vec::new();
        let by = move |bytes: &[u8], named: &mut [u32]| {
            debug_assert_eq!(bytes.len() as u64, row * named.len() as u64);
            let mut values = bytes.as_ptr();
            if !values.addr().is_multiple_of(ALIGNMENT) {
                aligned.resize(bytes.len().div_ceil(size_of::<u128>()), 0);
                let place = aligned.as_mut_ptr().cast::<u8>();
                // SAFETY: there is room for as many bytes in `aligned`, which is none of `bytes`.
                unsafe { std::ptr::copy_nonoverlapping(values, place, bytes.len()) };
                values = place;
            }
            let _here = Inside::enter();
            // SAFETY: `values` has the values of `named.len()` rows, and `named` as many numbers: a C int has the size of a u32. The caller
            // guarantees that the function writes no others.
            unsafe { owners(values.cast(), named.len(), named.as_mut_ptr().cast(), user) };
            // A negative number is not a rank. The session knows one of them.
            named.iter_mut().filter(|rank| rank.cast_signed() < 0).for_each(|rank| *rank = u32::MAX);
        };
        Ok(How::typed_by(column, element(kind)?, width, by))
    };
    // SAFETY: as the caller says.
    unsafe { deal(restart, name, how, (rows, count)) }
}

/// Loads a column of rows into `elements` elements at `data`. These have the type that was saved: `width` elements for each row that this
/// rank gets, row after row.
///
/// Collective if the call that distributed the rows was collective: all ranks, including ranks without rows, load the same columns in the
/// same order. Blocks on the tiers that hold the shards, and until all ranks have made the call.
///
/// Errors: `BVK_ERR_LOAD`: there is no such column, it has a different type or width, or `elements` is not `width` times the number of
/// rows. In the last case, all ranks get an error if the call is collective. `BVK_ERR_ARGUMENT`: this rank does not take part, and the
/// other ranks get an error when it calls `bvk_end_restore`. The contents of `data` are then unspecified.
///
/// # Safety
/// The memory is writable, and nothing else uses it before this call returns. `column` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_load_column(
    rows: *mut LoadedRowsHandle,
    column: *const c_char,
    data: *mut c_void,
    elements: u64,
    kind: c_int,
    width: u32,
) -> c_int {
    with_found(rows, Part::Rows, |running, id| {
        let Running { restart, rows, .. } = running;
        let rows = rows.get_mut(&id).expect("the attempt keeps it");
        // SAFETY: as the caller says.
        let described = unsafe { text(column, "the name of a column") }.and_then(|column| {
            let region = Region::new(&region_name(rows.set(), column), data, kind, &[elements])?;
            region.check_host("rows are")?;
            Ok((column, region))
        });
        let loaded = described.map(|(column, region)| {
            // SAFETY: as the caller says.
            let memory = unsafe { region.host_mut() };
            restart.attempt().load_column(rows, column, (region.element(), width), Ok(memory))
        });
        running.note(loaded)
    })
}

/// Releases loaded rows and their memory. `*rows` becomes NULL. A NULL handle is not an error. `bvk_end_restore`
/// closes handles that are still open.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_HANDLE`, also after `bvk_end_restore`.
///
/// # Safety
/// `rows` is NULL or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_loaded_rows_close(rows: *mut *mut LoadedRowsHandle) -> c_int {
    // SAFETY: as the caller says.
    unsafe { restart::close_found(rows, Part::Rows) }
}
