//! Loading rows, on the number of ranks that saved them or on another number.

use super::super::load_error::LoadError;
use super::super::remade::{Dealing, Finding, Owners, Together, Wanted};
use super::dealt::Hands;
use super::{Attempt, Shards};
use crate::decomposition::Rule;
use crate::decomposition::rows::{names_of, region_name};
use crate::format::ElementType;
use crate::region::Element;
use crate::tier::storage::zeroed;
use std::ops::Range;

/// Which rows of a set each rank gets. All ranks must choose the same variant; only the numbers of a range may differ.
pub enum How<'o> {
    /// The rows that this rank saved, if the same number of ranks took the checkpoint.
    Own,
    /// All rows, spread evenly in the order of the ranks that saved them.
    Even,
    /// A range of the rows, in the order of the ranks that saved them. The ranges of different ranks may overlap, and may leave rows out.
    Range(Range<u64>),
    /// The rows that the program assigns to this rank (see [`How::by`]).
    By(ByOwner<'o>),
}

/// A function that says which rank gets a row, and the column by whose values it decides.
pub struct ByOwner<'o> {
    column: String,
    element: ElementType,
    width: u32,
    owners: Box<Owners<'o>>,
}

impl<'o> How<'o> {
    /// Lets a function say which rank gets each row, depending on the values in a column. The function is called on the ranks that read the
    /// rows, in batches, and sees each row once. It receives the values of the column in some rows (`width` values for each row), and fills
    /// in the number of a rank for each row. Rows arrive in the order of the ranks that saved them; the rows of each of these ranks arrive
    /// in the order in which they were saved.
    ///
    /// ```
    /// use bivouac_core::How;
    ///
    /// // By position, along one of three coordinates.
    /// let (length, ranks) = (10.0, 4);
    /// let how = How::by("position", 3, |positions: &[f64], owners: &mut [u32]| {
    ///     for (position, owner) in positions.chunks_exact(3).zip(owners) {
    ///         *owner = ((position[0] / length * f64::from(ranks)) as u32).min(ranks - 1);
    ///     }
    /// });
    /// # drop(how);
    /// ```
    pub fn by<T: Element>(column: &str, width: u32, mut owners: impl FnMut(&[T], &mut [u32]) + 'o) -> How<'o> {
        let owners = move |bytes: &[u8], ranks: &mut [u32]| match bytemuck::try_cast_slice(bytes) {
            Ok(values) => owners(values, ranks),
            Err(_) => owners(&bytemuck::pod_collect_to_vec(bytes), ranks),
        };
        How::typed_by(column, T::TYPE, width, owners)
    }

    /// The same as [`How::by`], for a column of a type that is known only at run time. The function receives the bytes of the values, at
    /// any alignment.
    #[doc(hidden)]
    pub fn typed_by(
        column: &str,
        element: ElementType,
        width: u32,
        owners: impl FnMut(&[u8], &mut [u32]) + 'o,
    ) -> How<'o> {
        How::By(ByOwner { column: column.into(), element, width, owners: Box::new(owners) })
    }

    /// The same choice of rows, for another attempt. It borrows the program's function.
    pub(crate) fn again(&mut self) -> How<'_> {
        match self {
            How::Own => How::Own,
            How::Even => How::Even,
            How::Range(rows) => How::Range(rows.clone()),
            How::By(ByOwner { column, element, width, owners }) => How::typed_by(column, *element, *width, owners),
        }
    }
}

/// Rows that are being loaded, column by column.
pub struct LoadedRows<'r> {
    restorer: &'r mut Attempt,
    rows: DealtRows,
}

/// The rows of a set that a rank gets, in the attempt that found them.
#[doc(hidden)]
pub struct DealtRows {
    set: String,
    count: u64,
    /// The rows to be loaded; `None`: the rank's own rows.
    dealing: Option<Dealing>,
}

impl DealtRows {
    /// The number of rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The name of their set.
    pub fn set(&self) -> &str {
        &self.set
    }
}

impl Attempt {
    /// Finds out which rows of a set this rank gets ([`CheckpointBuilder::save_rows`](crate::CheckpointBuilder::save_rows)). The program
    /// then loads the columns of these rows one by one.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session) -> bivouac::Result<()> {
    /// use bivouac::How;
    ///
    /// let (mut x, mut v) = (Vec::new(), Vec::new());
    /// session.begin_restore("plasma").run(|r| {
    ///     let mut rows = r.load_rows("electrons", How::Even)?;
    ///     x = rows.column::<f64>("x")?;
    ///     v = rows.columns::<f64>("v", 3)?;
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local with [`How::Own`]. Otherwise all ranks; all of them must load the same columns in the same order.
    ///
    /// # Blocking
    /// On the tiers that hold the shards; if the call is collective, until all ranks have called.
    ///
    /// # Errors
    /// [`LoadError::Missing`]: the checkpoint has no such set. [`LoadError::Decomposition`]: the region was not saved with `save_rows`.
    /// [`LoadError::Mismatch`]: the column by which owners are found has a different type. [`LoadError::Resized`]: with [`How::Own`], if a
    /// different number of ranks took the checkpoint. [`LoadError::Others`], on all ranks alike: a range extends beyond the rows, or a row
    /// is assigned to a rank that does not exist.
    pub fn load_rows(&mut self, name: &str, how: How<'_>) -> Result<LoadedRows<'_>, LoadError> {
        let rows = self.deal_rows(name, how)?;
        Ok(LoadedRows { restorer: self, rows })
    }

    /// Finds rows as [`Attempt::load_rows`] does, in a form that does not borrow the attempt.
    #[doc(hidden)]
    pub fn deal_rows(&mut self, name: &str, how: How<'_>) -> Result<DealtRows, LoadError> {
        let (column, row) = match &how {
            How::By(by) => {
                let region = region_name(name, &by.column);
                let row = self.check_column(&region, by.element, by.width)?;
                (region, row)
            }
            How::Own | How::Even | How::Range(_) => (self.first_column(name)?, 0),
        };
        let of = (self.saved_ranks(), self.ranks);
        let key = self.key;
        let dealing = match how {
            How::Own => None,
            how => {
                let Hands { opener, homes, readers, .. } = self.hands(&column)?;
                let together = Together { engine: opener.engine(), key, region: &column };
                let (finding, hands) = (Finding { together, opener, ranks: of }, (homes, readers));
                Some(match how {
                    How::By(mut by) => finding.by_owner(hands, row, &mut by.owners)?,
                    How::Range(rows) => finding.in_order(hands, &Wanted::Range(rows))?,
                    How::Own | How::Even => finding.in_order(hands, &Wanted::Even)?,
                })
            }
        };
        let count = match &dealing {
            Some(dealing) => dealing.count(),
            None => self.own_rows(&column)?,
        };
        Ok(DealtRows { set: name.into(), count, dealing })
    }

    /// The columns of a set, each with its element type and its number of elements in a row. Local.
    ///
    /// # Errors
    /// [`LoadError::Missing`]: there is no such set. [`LoadError::Decomposition`]: it was not saved with `save_rows`. [`LoadError::NoCopy`].
    #[doc(hidden)]
    pub fn columns_of(&mut self, set: &str) -> Result<Vec<(String, ElementType, u32)>, LoadError> {
        self.first_column(set)?;
        let mut columns = Vec::new();
        for (region, element) in self.regions()? {
            if let Some(column) = names_of(&region).filter(|(of, _)| *of == set).map(|(_, column)| column) {
                columns.push((column.to_owned(), element, self.width(&region)?));
            }
        }
        Ok(columns)
    }

    /// The region of the first column of a set.
    pub(super) fn first_column(&mut self, set: &str) -> Result<String, LoadError> {
        let regions = self.regions()?;
        let is_column = |region: &&(String, ElementType)| names_of(&region.0).is_some_and(|(of, _)| of == set);
        let Some((region, _)) = regions.iter().find(is_column) else {
            let present = regions.into_iter().map(|(region, _)| region).collect();
            return Err(LoadError::Missing { rank: self.rank, key: self.key, region: set.into(), present });
        };
        self.width(region)?;
        Ok(region.clone())
    }

    /// The number of elements that a row has in a column.
    fn width(&mut self, region: &str) -> Result<u32, LoadError> {
        match self.rule(region)? {
            Some(Rule::Rows { width, .. }) => Ok(width),
            _ => {
                let found = "was not saved as a column of rows: save it with `save_rows`".to_owned();
                Err(LoadError::Decomposition { rank: self.rank, key: self.key, region: region.into(), found })
            }
        }
    }

    /// Checks that the region is a column of that type with `width` elements in each row, and returns the number of bytes in a row.
    fn check_column(&mut self, region: &str, element: ElementType, width: u32) -> Result<u64, LoadError> {
        let found = (self.width(region)?, self.regions()?.into_iter().find(|(name, _)| name == region));
        if let (has, Some((_, of))) = &found
            && (*has, *of) != (width, element)
        {
            let (found, expected) = (format!("rows of {has} x {of}"), format!("rows of {width} x {element}"));
            return Err(LoadError::Mismatch { rank: self.rank, key: self.key, region: region.into(), found, expected });
        }
        Ok(u64::from(width) * element.bytes())
    }

    /// The number of rows that this rank saved.
    fn own_rows(&mut self, region: &str) -> Result<u64, LoadError> {
        if matches!(self.shards, Shards::Resized(_)) {
            self.own()?;
        }
        let record = self.record()?;
        let source = self.source("the region table")?;
        let place = source.head().meta.regions.iter().position(|known| known.name == region);
        let rows = place.and_then(|place| record.rows_of(place)).map(|(rows, _)| rows.count);
        rows.ok_or_else(|| self.missing(source.head(), region))
    }
}

impl LoadedRows<'_> {
    /// The number of rows that this rank gets.
    pub fn count(&self) -> u64 {
        self.rows.count
    }

    /// Loads a column with one element in each row.
    ///
    /// # Collective
    /// See [`Attempt::load_rows`].
    ///
    /// # Blocking
    /// See [`Attempt::load_rows`].
    ///
    /// # Errors
    /// [`LoadError::Missing`], [`LoadError::Mismatch`]: there is no column of that name and type. [`LoadError::Memory`]: there is no memory
    /// for the column. [`LoadError::NoCopy`]; [`LoadError::Others`], on all ranks alike.
    pub fn column<T: Element>(&mut self, name: &str) -> Result<Vec<T>, LoadError> {
        self.columns(name, 1)
    }

    /// Loads a column with `width` elements in each row, row after row.
    ///
    /// # Collective
    /// See [`Attempt::load_rows`].
    ///
    /// # Blocking
    /// See [`Attempt::load_rows`].
    ///
    /// # Errors
    /// See [`LoadedRows::column`].
    pub fn columns<T: Element>(&mut self, name: &str, width: u32) -> Result<Vec<T>, LoadError> {
        let elements = self.rows.count.saturating_mul(u64::from(width));
        let (rank, key, region) = (self.restorer.rank, self.restorer.key, region_name(&self.rows.set, name));
        let mut values = zeroed::<T>(elements);
        let memory = match &mut values {
            Ok(values) => Ok(bytemuck::cast_slice_mut(values)),
            Err(_) => Err(LoadError::Memory { rank, key, region, bytes: elements.saturating_mul(T::TYPE.bytes()) }),
        };
        self.restorer.load_column(&mut self.rows, name, (T::TYPE, width), memory)?;
        Ok(values.unwrap_or_default())
    }

    /// Loads a column into the program's memory, which must have exactly the length of these rows.
    ///
    /// # Collective
    /// See [`Attempt::load_rows`].
    ///
    /// # Blocking
    /// See [`Attempt::load_rows`].
    ///
    /// # Errors
    /// The errors of [`LoadedRows::column`]; [`LoadError::Mismatch`] also if the memory has another length. The memory is then left as it
    /// is.
    pub fn columns_into<T: Element>(&mut self, name: &str, width: u32, memory: &mut [T]) -> Result<(), LoadError> {
        let memory = Ok(bytemuck::cast_slice_mut(memory));
        self.restorer.load_column(&mut self.rows, name, (T::TYPE, width), memory)
    }
}

impl Attempt {
    /// Loads a column of rows that this attempt has found, as [`LoadedRows::columns_into`] does. If there is no memory for the column, the
    /// other ranks are told why.
    #[doc(hidden)]
    pub fn load_column(
        &mut self,
        rows: &mut DealtRows,
        column: &str,
        (element, width): (ElementType, u32),
        memory: Result<&mut [u8], LoadError>,
    ) -> Result<(), LoadError> {
        let (rank, key, region) = (self.rank, self.key, region_name(&rows.set, column));
        let row = self.check_column(&region, element, width)?;
        let memory = memory.and_then(|memory| match rows.count.checked_mul(row) == Some(memory.len() as u64) {
            true => Ok(memory),
            false => {
                let size = element.bytes().max(1);
                let found = format!("{} rows of {width} x {element}", rows.count);
                let expected = format!("{} x {element}", memory.len() as u64 / size);
                Err(LoadError::Mismatch { rank, key, region: region.clone(), found, expected })
            }
        });
        let Some(dealing) = &mut rows.dealing else {
            return self.load_bytes(&region, element, memory?);
        };
        let Hands { opener, homes, readers, .. } = self.hands(&region)?;
        let together = Together { engine: opener.engine(), key, region: &region };
        dealing.load((together, opener), (homes, readers), row, memory)
    }
}
