//! Rows whose number changes freely, such as particles, as a part of a program's state.
#![forbid(unsafe_code)]

use super::checkpoint::CheckpointBuilder;
use super::error::Result;
use super::protected::{Loading, Part, Protected};
use super::rows::Rows;
use crate::recovery::{How, LoadError, LoadedRows};
use crate::region::Element;

/// A rank's rows of one set, with one vector for each column. [`Protected::protect_rows`] saves and loads them. There may be any number of
/// rows, or none. A restart resizes all vectors to the rows that this rank receives.
///
/// ```
/// use bivouac_core::RowsMut;
///
/// let (mut x, mut v, mut id) = (vec![0.5f64; 3], vec![0.0f32; 9], vec![7u64, 8, 9]);
/// // Three particles: one coordinate, three components of velocity, and a number each.
/// let atoms = RowsMut::new().column("x", &mut x).columns("v", 3, &mut v).column("id", &mut id).bounds([0.0], [1.0]);
/// # drop(atoms);
/// ```
#[derive(Default)]
pub struct RowsMut<'a> {
    columns: Vec<Box<dyn Column + 'a>>,
    bounds: (Vec<f64>, Vec<f64>),
}

impl<'a> RowsMut<'a> {
    /// Creates a set of rows without columns.
    pub fn new() -> RowsMut<'a> {
        RowsMut::default()
    }

    /// Adds a column with one element in each row. Its name must not contain a `/`.
    #[must_use]
    pub fn column<T: Element>(self, name: &str, data: &'a mut Vec<T>) -> RowsMut<'a> {
        self.columns(name, 1, data)
    }

    /// Adds a column with `width` elements in each row, row after row.
    #[must_use]
    pub fn columns<T: Element>(mut self, name: &str, width: u32, data: &'a mut Vec<T>) -> RowsMut<'a> {
        self.columns.push(Box::new(Values { name: name.into(), width, data }));
        self
    }

    /// Sets the bounds of this rank's rows in space, as [`Rows::bounds`] does.
    #[must_use]
    pub fn bounds(mut self, low: impl Into<Vec<f64>>, high: impl Into<Vec<f64>>) -> RowsMut<'a> {
        self.bounds = (low.into(), high.into());
        self
    }
}

impl<'a> Protected<'a> {
    /// Adds rows whose number may change freely, such as particles. A restart gives this rank the rows that `how` assigns to it. Except
    /// with [`How::Own`], the restart may be on any number of ranks. See [`CheckpointBuilder::save_rows`].
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// use bivouac::{Checkpoint, How, Protected, RowsMut};
    ///
    /// struct Plasma {
    ///     step: u64,
    ///     x: Vec<f64>,
    ///     v: Vec<f64>,
    /// }
    ///
    /// impl Checkpoint for Plasma {
    ///     fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
    ///         let electrons = RowsMut::new().column("x", &mut self.x).columns("v", 3, &mut self.v);
    ///         parts.protect_shared("step", &mut self.step).protect_rows("electrons", electrons, How::Even);
    ///     }
    /// }
    /// # let mut plasma: Plasma = todo!();
    /// session.restore("plasma", &mut plasma)?;
    /// plasma.step += 1; // … move the particles …
    /// session.checkpoint("plasma", plasma.step, &mut plasma)?;
    /// # Ok(()) }
    /// ```
    pub fn protect_rows(&mut self, name: &str, rows: RowsMut<'a>, how: How<'a>) -> &mut Self {
        self.add(name, Set { rows, how })
    }
}

struct Set<'a> {
    rows: RowsMut<'a>,
    how: How<'a>,
}

impl Part for Set<'_> {
    fn save<'c>(&'c self, name: &str, builder: &mut CheckpointBuilder<'c>) -> Result<()> {
        let (low, high) = &self.rows.bounds;
        let count = self.rows.columns.first().map_or(0, |column| column.count());
        let rows = Rows::new(count).bounds(&low[..], &high[..]);
        builder.save_rows(name, self.rows.columns.iter().fold(rows, |rows, column| column.save(rows)))
    }

    fn load(&mut self, name: &str, loading: &mut Loading<'_>) -> Result<(), LoadError> {
        let mut dealt = loading.attempt.load_rows(name, self.how.again())?;
        self.rows.columns.iter_mut().try_for_each(|column| column.load(&mut dealt))
    }
}

/// A column with elements of any type.
trait Column {
    /// The number of rows of the column.
    fn count(&self) -> u64;

    fn save<'c>(&'c self, rows: Rows<'c>) -> Rows<'c>;

    fn load(&mut self, rows: &mut LoadedRows<'_>) -> Result<(), LoadError>;
}

struct Values<'a, T> {
    name: String,
    width: u32,
    data: &'a mut Vec<T>,
}

impl<T: Element> Column for Values<'_, T> {
    fn count(&self) -> u64 {
        self.data.len() as u64 / u64::from(self.width.max(1))
    }

    fn save<'c>(&'c self, rows: Rows<'c>) -> Rows<'c> {
        rows.columns(&self.name, self.width, self.data)
    }

    fn load(&mut self, rows: &mut LoadedRows<'_>) -> Result<(), LoadError> {
        if rows.count().checked_mul(u64::from(self.width)) == Some(self.data.len() as u64) {
            // The vector has the right length: its memory is reused, and its pages stay where the program has placed them.
            return rows.columns_into(&self.name, self.width, self.data);
        }
        *self.data = rows.columns(&self.name, self.width)?;
        Ok(())
    }
}
