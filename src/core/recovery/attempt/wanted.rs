//! Loading any elements of an array, whichever elements other ranks load.

use super::super::load_error::LoadError;
use super::super::remade::Together;
use super::Attempt;
use super::dealt::Hands;
use crate::coordination::{Outcome, Payload};
use crate::decomposition::{Checked, Decomposition, Part};
use crate::region::Element;

impl Attempt {
    /// Loads any elements of an array that was saved on a decomposition. A rank may ask for ghost cells, for elements that other ranks load
    /// too, or for nothing. Bivouac proves only that the elements were saved.
    ///
    /// `wanted` says which elements these are: boxes (each with its own memory) or numbers (with one memory, in the order of the list). The
    /// ghost cells of `wanted` surround a box in memory and are left as they are; ghost cells that are to be loaded must be part of the
    /// box.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, y0: u64, rows: u64) -> bivouac::Result<()> {
    /// use bivouac::Boxes;
    ///
    /// // This rank's rows of an array of 1000 rows and 800 columns, and one more above and below, where there is one.
    /// let (first, end) = (y0.saturating_sub(1), (y0 + rows + 1).min(1000));
    /// let mut t = vec![0.0f64; ((end - first) * 800) as usize];
    /// session.begin_restore("heat").run(|r| {
    ///     let wanted = Boxes::of([1000, 800]).own([first, 0], [end - first, 800]);
    ///     Ok(r.load_wanted("temperature", wanted, &mut [&mut t])?)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, even if the same number of ranks took the checkpoint. A rank that wants nothing passes no box, or no number.
    ///
    /// # Blocking
    /// On the tiers that hold the shards, and until all ranks have called.
    ///
    /// # Errors
    /// The errors of [`Attempt::load_on`]; [`LoadError::Decomposition`] also for an impossible part, of which the other ranks are told;
    /// [`LoadError::Unmatched`], on all ranks alike: no rank saved the elements that are wanted.
    pub fn load_wanted<T: Element>(
        &mut self,
        name: &str,
        wanted: impl Into<Part>,
        memory: &mut [&mut [T]],
    ) -> Result<(), LoadError> {
        let on = self.wanted(name, wanted.into())?;
        match on.boxes() {
            // A list without numbers counts as one box without elements.
            1 if memory.is_empty() && on.elements() == 0 => self.load_boxes_on::<T>(name, &on, &mut [&mut []]),
            _ => self.load_boxes_on(name, &on, memory),
        }
    }

    /// The elements that all ranks want together, as a decomposition that is not proved.
    fn wanted(&mut self, name: &str, part: Part) -> Result<Decomposition, LoadError> {
        let (rank, ranks, key) = (self.rank, self.ranks, self.key);
        let checked = part.check();
        let Hands { opener, .. } = self.hands(name)?;
        let together = Together { engine: opener.engine(), key, region: name };
        let array = checked.as_ref().map_or_else(|_| "an invalid array".to_owned(), Checked::array);
        let ballot = together.ballot(&format!("parts of {array}"), Payload::None);
        let ballot = match &checked {
            Ok(part) => ballot.with_sums(part.sums(rank, ranks)),
            Err(mistake) => ballot.failed(rank, mistake.clone(), false),
        };
        let verdict = together.vote(ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        // If a rank has a mistake, the vote has already ended with that error on all ranks.
        let checked = checked.map_err(|mistake| together.of_this_rank(mistake))?;
        Ok(checked.unproved(&together.decode::<Vec<(u64, u64)>>(&verdict)?, (rank, ranks)))
    }
}
