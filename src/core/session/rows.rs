//! Rows whose number changes freely, such as particles, in a checkpoint.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::error::Result;
use crate::decomposition::{RowSet, Rule, rows};
use crate::format::ElementType;
use crate::region::{self, Element, RegionError, SavedRegion};

/// A rank's rows of one set, in columns. There may be any number of rows, or none. See
/// [`CheckpointBuilder::save_rows`](crate::CheckpointBuilder::save_rows).
///
/// ```
/// use bivouac_core::Rows;
///
/// let (x, v, id) = (vec![0.5f64; 3], vec![0.0f32; 9], vec![7u64, 8, 9]);
/// // Three particles: one coordinate, three components of velocity, and a number each.
/// let atoms = Rows::new(3).column("x", &x).columns("v", 3, &v).column("id", &id).bounds([0.0], [1.0]);
/// # drop(atoms);
/// ```
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    count: u64,
    columns: Vec<Column<'a>>,
    bounds: (Vec<f64>, Vec<f64>),
}

#[derive(Clone, Debug)]
struct Column<'a> {
    name: String,
    width: u32,
    element: ElementType,
    /// The size of the application's type in bytes.
    size: usize,
    bytes: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Creates a set of `count` rows without columns.
    pub fn new(count: u64) -> Rows<'a> {
        Rows { count, columns: Vec::new(), bounds: (Vec::new(), Vec::new()) }
    }

    /// Adds a column with one element in each row. Its name must not contain a `/`.
    #[must_use]
    pub fn column<T: Element>(self, name: &str, data: &'a [T]) -> Rows<'a> {
        self.columns(name, 1, data)
    }

    /// Adds a column with `width` elements in each row, row after row.
    #[must_use]
    pub fn columns<T: Element>(self, name: &str, width: u32, data: &'a [T]) -> Rows<'a> {
        self.sized_columns(name, width, (T::TYPE, size_of::<T>()), bytemuck::cast_slice(data))
    }

    /// Adds a column whose elements have a type that is known only at run time. `bytes` holds a whole number of such elements.
    #[doc(hidden)]
    #[must_use]
    pub fn typed_columns(self, name: &str, width: u32, element: ElementType, bytes: &'a [u8]) -> Rows<'a> {
        self.sized_columns(name, width, (element, element.bytes() as usize), bytes)
    }

    fn sized_columns(
        mut self,
        name: &str,
        width: u32,
        (element, size): (ElementType, usize),
        bytes: &'a [u8],
    ) -> Rows<'a> {
        self.columns.push(Column { name: name.into(), width, element, size, bytes });
        self
    }

    /// Sets the bounds of this rank's rows in space: the smallest and the largest coordinate in each of up to 8 dimensions. The bounds are
    /// recorded, and are not used otherwise.
    #[must_use]
    pub fn bounds(mut self, low: impl Into<Vec<f64>>, high: impl Into<Vec<f64>>) -> Rows<'a> {
        self.bounds = (low.into(), high.into());
        self
    }

    /// Checks whether the rows can be saved under `name`.
    ///
    /// # Errors
    /// The errors of [`CheckpointBuilder::save_rows`](crate::CheckpointBuilder::save_rows), except that names already in use in the
    /// checkpoint are not noticed.
    #[doc(hidden)]
    pub fn check(&self, name: &str) -> Result<()> {
        self.regions(name)?;
        Ok(())
    }

    /// The record of the set, and its columns as regions, each with the number of its elements per row.
    fn regions(&self, name: &str) -> std::result::Result<(RowSet, Vec<(SavedRegion<'a>, u32)>), RegionError> {
        let wrong = |what: String| RegionError::Rows { name: name.into(), what };
        region::check_name(name)?;
        let (low, high) = &self.bounds;
        let rows = RowSet::new(self.count, (low, high)).ok_or_else(|| {
            let (low, high) = (low.len(), high.len());
            wrong(format!(
                "{} rows with bounds of {low} and {high} coordinates: at most 2^62 - 1 rows, and as many least as greatest coordinates, at \
                 most 8",
                self.count
            ))
        })?;
        if self.columns.is_empty() {
            return Err(wrong("they have no column".into()));
        }
        let mut regions = Vec::new();
        for (at, Column { name: column, width, element, size, bytes }) in self.columns.iter().enumerate() {
            if !rows::is_column(column) {
                return Err(wrong(format!("{column:?} cannot be the name of a column: it is empty, or has a '/'")));
            }
            let region = rows::region_name(name, column);
            if self.columns[..at].iter().any(|other| other.name == *column) {
                return Err(RegionError::Twice { name: region });
            }
            let saved = region::column(&region, (*element, *size), (self.count, *width), bytes)?;
            regions.push((saved, *width));
        }
        Ok((rows, regions))
    }
}

impl<'a> CheckpointBuilder<'a> {
    /// Adds this rank's rows of a set: each column becomes a region `<name>/<column>`. The number of rows may differ between ranks and
    /// between checkpoints. The columns, their types and their widths must be the same on all ranks. The rows can be restored on any number
    /// of ranks, spread over them as the program wants ([`Attempt::load_rows`](crate::Attempt::load_rows)).
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, step: u64, x: &[f64], v: &[f64]) -> bivouac::Result<()> {
    /// use bivouac::Rows;
    ///
    /// let mut ckpt = session.begin_checkpoint("plasma", step)?;
    /// ckpt.save_rows("electrons", Rows::new(x.len() as u64).column("x", x).columns("v", 3, v))?;
    /// ckpt.shared("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. All ranks save the set, even ranks without rows.
    ///
    /// # Errors
    /// [`Error::Region`](crate::Error::Region): a name is unusable or is already in use; the length of a column does not fit the number of
    /// rows; there is no column. After an error, the checkpoint may contain some of the columns: drop it.
    pub fn save_rows(&mut self, name: &str, rows: Rows<'a>) -> Result<()> {
        let (rows, regions) = rows.regions(name)?;
        if self.terms.has_rows(name) {
            return Err(RegionError::Twice { name: name.into() }.into());
        }
        let set = self.terms.rows(name, rows);
        for (saved, width) in regions {
            let place = self.regions.len();
            self.add(saved)?;
            self.terms.rule(place, Rule::Rows { set, width });
        }
        Ok(())
    }
}
