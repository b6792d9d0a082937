//! Rows that are to be saved: columns of the application with their type and width.

use super::arguments::{sized, text};
use super::regions::Region;
use super::status::{Failure, Outcome};
use bivouac_core::Rows;
use bivouac_core::base::units::page_ceil;
use bivouac_core::decomposition::rows::region_name;
use bivouac_core::session::CheckpointBuilder;
use std::ffi::{c_char, c_int, c_void};

/// The maximum number of columns of a set: far more than anybody names by hand.
const COLUMNS_MAX: usize = 1 << 12;
/// The maximum number of coordinates of a corner.
const CORNERS_MAX: usize = 8;

/// A column of rows: `width` elements of the type `kind` for each row, row after row, starting at `data`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CColumn {
    /// The name of the column, without a `/`.
    pub name: *const c_char,
    /// The memory of the column, on the host; NULL if there are no rows.
    pub data: *const c_void,
    /// The type of the elements: `BVK_U8` to `BVK_F64` or `BVK_RECORD`.
    pub kind: c_int,
    /// Elements in each row, 1 or more.
    pub width: u32,
}

/// A rank's rows of a set. Set `size` to `sizeof(bvk_rows)` before the call (`BVK_ROWS_INIT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CRows {
    /// `sizeof(bvk_rows)`.
    pub size: usize,
    /// The number of this rank's rows, which may be 0.
    pub count: u64,
    /// The columns.
    pub columns: *const CColumn,
    /// The number of columns. The number, names, types and widths of the columns are the same on all ranks.
    pub column_count: usize,
    /// The number of dimensions of `low` and `high`, at most 8; 0: no bounds.
    pub dimensions: usize,
    /// The least coordinate of this rank's rows in each dimension. It is recorded, but otherwise not used.
    pub low: *const f64,
    /// The greatest coordinate in each dimension.
    pub high: *const f64,
}

/// Rows that wait for their checkpoint.
pub(super) struct SavedRows {
    pub name: String,
    count: u64,
    columns: Vec<(String, Region, u32)>,
    bounds: (Vec<f64>, Vec<f64>),
}

impl SavedRows {
    /// Rows from the arguments of a call.
    ///
    /// # Safety
    /// As [`bvk_save_rows`](super::rows::bvk_save_rows).
    pub(super) unsafe fn described(name: *const c_char, rows: *const CRows) -> Outcome<SavedRows> {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a set of rows") }?;
        if rows.is_null() {
            return Err(Failure::argument(format!("rows {name:?}: rows is NULL")));
        }
        // SAFETY: as the caller says; pointers and numbers may be zero.
        let rows = unsafe { sized(rows, "bvk_rows") }?;
        let wrong = |what: String| Failure::argument(format!("rows {name:?}: {what}"));
        if rows.column_count > COLUMNS_MAX || (rows.columns.is_null() && rows.column_count > 0) {
            return Err(wrong(format!(
                "columns is NULL, or there are {} columns, which is more than {COLUMNS_MAX}",
                rows.column_count
            )));
        }
        let is_none = rows.low.is_null() || rows.high.is_null();
        if rows.dimensions > CORNERS_MAX || (is_none && rows.dimensions > 0) {
            let dimensions = rows.dimensions;
            return Err(wrong(format!(
                "low or high is NULL, or there are {dimensions} dimensions, which is more than {CORNERS_MAX}"
            )));
        }
        // SAFETY: there are that many, says the caller.
        let corner =
            |from: *const f64| (0..rows.dimensions).map(|at| unsafe { from.add(at).read_unaligned() }).collect();
        let bounds = (corner(rows.low), corner(rows.high));
        let mut columns = Vec::with_capacity(rows.column_count);
        for at in 0..rows.column_count {
            // SAFETY: there are that many, says the caller.
            let column = unsafe { rows.columns.add(at).read_unaligned() };
            // SAFETY: as the caller says.
            let column_name = unsafe { text(column.name, "the name of a column") }?;
            let elements = rows.count.checked_mul(u64::from(column.width));
            let elements =
                elements.ok_or_else(|| wrong(format!("{} rows are more than memory can hold", rows.count)))?;
            let region = Region::new(&region_name(name, column_name), column.data, column.kind, &[elements])?;
            region.check_host("rows are")?;
            columns.push((column_name.to_owned(), region, column.width));
        }
        Ok(SavedRows { name: name.to_owned(), count: rows.count, columns, bounds })
    }

    /// The regions of the columns.
    pub(super) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.columns.iter().map(|(_, region, _)| region)
    }

    /// Bytes that these rows take in a checkpoint.
    pub(super) fn body(&self) -> u64 {
        self.regions().map(|region| page_ceil(region.bytes() as u64)).sum()
    }

    /// These rows in the form that the session takes.
    ///
    /// # Safety
    /// The memory of the columns is readable for as long as the result is used.
    pub(super) unsafe fn rows<'a>(&self) -> Rows<'a> {
        let (low, high) = &self.bounds;
        let rows = Rows::new(self.count).bounds(low.clone(), high.clone());
        self.columns.iter().fold(rows, |rows, (name, region, width)| {
            // SAFETY: as the caller says.
            rows.typed_columns(name, *width, region.element(), unsafe { region.host() })
        })
    }

    /// Adds these rows to a checkpoint.
    ///
    /// # Safety
    /// As [`SavedRows::rows`], for the checkpoint.
    pub(super) unsafe fn add_to(&self, checkpoint: &mut CheckpointBuilder<'_>) -> Outcome<()> {
        // SAFETY: as the caller says.
        Ok(checkpoint.save_rows(&self.name, unsafe { self.rows() })?)
    }
}
