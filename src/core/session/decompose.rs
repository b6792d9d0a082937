//! Decomposing arrays: each rank says what it owns, and all of them prove that each element has one owner.
#![forbid(unsafe_code)]

use super::asking::{ask, decoded, heard};
use super::error::{Error, Result};
use super::session::Session;
use crate::base::Rank;
use crate::coordination::{Ballot, Outcome, Payload, Verdict};
use crate::decomposition::cells::{Cells, Sums};
use crate::decomposition::proof::{Finding, Owner};
use crate::decomposition::shelf::{Side, all_of, posts};
use crate::decomposition::{Boxes, Decomposition};
use crate::transfer::posting::{Exchange, Handled, all_at_once};

const CALL: &str = "decompose";

impl Session {
    /// Says which elements of a global array this rank owns, and proves together with the other ranks that each element has one owner.
    /// Regions that are saved on the decomposition can be restored on any number of ranks, and on any other decomposition of an array of that shape.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, y0: u64, rows: u64) -> bivouac::Result<()> {
    /// use bivouac::Boxes;
    ///
    /// // This rank has `rows` of 1000 rows of 800 elements, with one row of ghost cells above and below.
    /// let grid = session.decompose(Boxes::of([1000, 800]).own([y0, 0], [rows, 800]).halo([1, 0]))?;
    /// let (mut t, mut step) = (vec![0.0f64; (rows as usize + 2) * 800], 0u64);
    /// session.restart("heat", |r| {
    ///     r.load_on("temperature", &grid, &mut t)?;
    ///     step = r.shared("step")?;
    ///     Ok(())
    /// })?;
    /// let mut ckpt = session.checkpoint("heat", step)?;
    /// ckpt.save_on("temperature", &grid, &t)?;
    /// ckpt.shared("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, with the same shape; a rank that owns nothing too.
    ///
    /// # Blocking
    /// For two reductions and some messages between the ranks, which are late for `timeouts.abandon` at most.
    ///
    /// # Errors
    /// The same on all ranks. [`Error::Disagreed`]: a rank said what cannot be (a box outside the array, nine dimensions), or another shape.
    /// [`Error::Decomposition`]: elements belong to two ranks, or to none ([`Boxes::sparse`] allows that). [`Error::Failed`].
    pub fn decompose(&self, boxes: Boxes) -> Result<Decomposition> {
        self.decompose_described(Ok(boxes))
    }

    /// The same for a caller that may have been told what is no description: the mistake is this rank's, and all ranks hear of it.
    #[doc(hidden)]
    pub fn decompose_described(&self, described: std::result::Result<Boxes, String>) -> Result<Decomposition> {
        let engine = &self.engine;
        engine.reporter().beat();
        let identity = engine.identity();
        let (rank, ranks) = (identity.rank, identity.size);
        let described = described.and_then(|boxes| {
            let own = boxes.check().map_err(|mistake| mistake.to_string())?;
            let an = if boxes.is_sparse() { "a sparse" } else { "an" };
            Ok((own, format!("decompose {an} array of shape {:?}", boxes.shape())))
        });
        let ballot = match &described {
            Ok((own, call)) => {
                let sums = Sums::of_rank(own.parts(), rank, ranks);
                engine.ballot(call, Payload::None).with_sums(sums.numbers())
            }
            Err(mistake) => engine.refusal(mistake),
        };
        let verdict = ask(engine, CALL, ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        // A rank with a mistake has heard with the others that there is one.
        let (own, call) = described.map_err(|reason| Error::Failed { reason })?;
        let sums = Sums::of_numbers(&decoded::<Vec<(u64, u64)>>(&verdict)?);

        let parts = own.parts();
        let cells = Cells::new(parts, &sums, ranks);
        let mut owner = Owner::new(&cells, parts.dims());
        let mut finding =
            self.exchange_parts(&call, posts(&cells, parts.dims(), all_of(parts, Side::Has, rank, rank)), &mut owner)?;
        // Without an overlap as many elements as there are have been given: each has its owner.
        if finding.is_none() && !parts.is_sparse() && sums.volume != parts.whole().volume() {
            finding = self.find_gap(&call, &cells, &owner)?;
        }
        match finding {
            None => Ok(Decomposition::proved(own, sums.identity, cells, rank, ranks)),
            Some(finding) => {
                let finding = finding.in_words(parts.dims());
                Err(Error::Decomposition { shape: parts.shape().to_vec(), finding })
            }
        }
    }

    /// Sends parts to the owners of their cells, looks at what comes, and hears what anybody has found.
    fn exchange_parts(&self, call: &str, first: Vec<(Rank, Vec<u8>)>, owner: &mut Owner) -> Result<Option<Finding>> {
        let engine = &self.engine;
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let taken = owner.take(bytes).ok_or("it is cut, or says what cannot be")?;
            let answer = taken.overlap.map_or_else(Vec::new, |overlap| Finding::Overlap(overlap).to_bytes());
            Ok(Handled { answer, onward: taken.onward })
        };
        let text = format!("{call}: parts");
        let vote = |found: Vec<Vec<u8>>| engine.ballot(&text, Payload::greatest(1, found));
        let decide = |ballot: &Ballot| Outcome::unless_culprits(ballot, greatest);
        let exchange = Exchange {
            next: &mut all_at_once(first),
            on_post: &mut on_post,
            vote: Box::new(vote),
            decide: Box::new(decide),
        };
        finding(&heard(CALL, engine.exchange(exchange))?)
    }

    /// The first elements that nobody owns: not all have an owner.
    fn find_gap(&self, call: &str, cells: &Cells, owner: &Owner) -> Result<Option<Finding>> {
        let gap = owner.first_gap(cells.of(self.engine.identity().rank)).map(|gap| Finding::Gap(gap).to_bytes());
        let ballot = self.engine.ballot(&format!("{call}: gaps"), Payload::greatest(1, gap));
        finding(&ask(&self.engine, CALL, ballot, greatest)?)
    }
}

fn finding(verdict: &Verdict) -> Result<Option<Finding>> {
    Ok(Finding::of_bytes(&decoded::<Vec<u8>>(verdict)?))
}

/// The greatest of what the ranks have found.
fn greatest(ballot: &Ballot) -> (Outcome, Vec<u8>) {
    Outcome::agreed("finding", &ballot.payload.first_of_greatest().to_vec())
}
