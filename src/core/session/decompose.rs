//! Decomposing arrays: each rank states which elements it owns, and all ranks together prove that each element has exactly one owner.
#![forbid(unsafe_code)]

use super::asking::{ask, decoded, heard};
use super::error::{Error, Result};
use super::session::Session;
use crate::base::Rank;
use crate::coordination::{Ballot, Outcome, Payload, Verdict};
use crate::decomposition::cells::{Cells, Sums};
use crate::decomposition::ids::List;
use crate::decomposition::ids::counter::{self, Counter, Said, Wrong};
use crate::decomposition::ids::windows::{Told, Windows};
use crate::decomposition::proof::{Finding, Owner};
use crate::decomposition::shelf::{Side, all_of, posts};
use crate::decomposition::{Checked, Decomposition, ListSums, Own, Part};
use crate::transfer::posting::{Exchange, Handled, all_at_once};

const CALL: &str = "decompose";

impl Session {
    /// Says which elements of a global array this rank owns, and proves together with the other ranks that each element has one owner.
    /// Regions that are saved on the decomposition can be restored on any number of ranks, and on any other decomposition of an array of
    /// the same shape.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, y0: u64, rows: u64) -> bivouac::Result<()> {
    /// use bivouac::Boxes;
    ///
    /// // This rank has `rows` of 1000 rows of 800 elements, with one row of ghost cells above and below.
    /// let grid = session.decompose(Boxes::of([1000, 800]).own([y0, 0], [rows, 800]).halo([1, 0]))?;
    /// let (mut t, mut step) = (vec![0.0f64; (rows as usize + 2) * 800], 0u64);
    /// session.begin_restore("heat").run(|r| {
    ///     r.load_on("temperature", &grid, &mut t)?;
    ///     step = r.shared("step")?;
    ///     Ok(())
    /// })?;
    /// let mut ckpt = session.begin_checkpoint("heat", step)?;
    /// ckpt.save_on("temperature", &grid, &t)?;
    /// ckpt.shared("step", &step)?;
    /// ckpt.capture()?;
    /// # Ok(()) }
    /// ```
    ///
    /// The vertices of an unstructured mesh have numbers instead ([`Ids`](crate::Ids)):
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, vertices: u64, mine: Vec<u64>) -> bivouac::Result<()> {
    /// use bivouac::Ids;
    ///
    /// // The element at place k of this rank's memory is that of vertex `mine[k]`.
    /// let mesh = session.decompose(Ids::of(vertices).own(mine))?;
    /// # drop(mesh); Ok(()) }
    /// ```
    ///
    /// # Collective
    /// All ranks, including those that own nothing, with the same shape.
    ///
    /// # Blocking
    /// For two reductions and some messages between the ranks, for at most `timeouts.abandon`. With lists of numbers, for three reductions,
    /// and for two more for each 524,288 numbers that a rank has on average.
    ///
    /// # Errors
    /// On all ranks alike. [`Error::Disagreed`]: a rank's part is impossible (a box outside the array, nine dimensions, a number that
    /// occurs twice), or a rank gives a different shape. [`Error::Decomposition`]: elements belong to two ranks, or to none (which
    /// [`Boxes::sparse`](crate::Boxes::sparse) allows). [`Error::Failed`].
    pub fn decompose(&self, part: impl Into<Part>) -> Result<Decomposition> {
        self.decompose_described(Ok(part.into()))
    }

    /// Decomposes as [`Session::decompose`] does. If the description is a mistake, all ranks are told.
    #[doc(hidden)]
    pub fn decompose_described(&self, described: std::result::Result<Part, String>) -> Result<Decomposition> {
        let engine = &self.engine;
        engine.reporter().beat();
        let checked = described.and_then(Part::check);
        let (rank, ranks) = self.engine.identity().place();
        let ballot = match &checked {
            Ok(part) => {
                let call = format!("decompose {}", part.array());
                engine.ballot(&call, Payload::None).with_sums(part.sums(rank, ranks))
            }
            Err(mistake) => engine.refusal(mistake),
        };
        let verdict = ask(engine, CALL, ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        // A rank with a mistake has learned of it in the verdict, together with the others.
        let checked = checked.map_err(|reason| Error::Failed { reason })?;
        let call = format!("decompose {}", checked.array());
        let sums: Vec<(u64, u64)> = decoded(&verdict)?;
        match checked {
            Checked::Boxes(own) => self.prove_boxes(&call, *own, &Sums::of_numbers(&sums)),
            Checked::List(list) => self.prove_list(&call, list, &ListSums::of_numbers(&sums)),
        }
    }

    /// Proves that each element is in exactly one box.
    fn prove_boxes(&self, call: &str, own: Own, sums: &Sums) -> Result<Decomposition> {
        let (rank, ranks) = self.engine.identity().place();
        let parts = own.parts();
        let cells = Cells::new(parts, sums, ranks);
        let mut owner = Owner::new(&cells, parts.dims());
        let first = posts(&cells, parts.dims(), all_of(parts, Side::Has, rank, rank));
        let mut finding = self.exchange_parts(call, first, &mut owner)?;
        // If no boxes overlap, and as many elements have been described as the array has, each element has an owner.
        if finding.is_none() && !parts.is_sparse() && sums.volume != parts.whole().volume() {
            finding = self.find_gap(call, &cells, &owner)?;
        }
        match finding {
            None => Ok(Decomposition::of_boxes(own, sums.identity, cells, (rank, ranks))),
            Some(finding) => {
                let finding = finding.in_words(parts.dims());
                Err(Error::Decomposition { shape: parts.shape().to_vec(), finding })
            }
        }
    }

    /// Proves that each number is in exactly one list.
    fn prove_list(&self, call: &str, list: List, sums: &ListSums) -> Result<Decomposition> {
        let (engine, (rank, ranks)) = (&self.engine, self.engine.identity().place());
        let head = list.head();
        let windows = Windows::new(sums.stretches, ranks);
        let mut worst: Option<Wrong> = None;
        for window in 0..windows.count() {
            let mut told = Told::new(windows, window);
            list.each(|at, numbers| told.add(at, numbers));
            let first = counter::told(told.sorted(), Said::Has(rank));
            let mut counter = Counter::new(windows, window, rank, head.total);
            let mut on_post = |from: Rank, bytes: &[u8]| {
                counter.take(from, bytes).ok_or("it is truncated or invalid")?;
                Ok(Handled::default())
            };
            let text = format!("{call}: numbers");
            let exchange = Exchange {
                next: &mut all_at_once(first),
                on_post: &mut on_post,
                vote: Box::new(|_| engine.ballot(&text, Payload::None)),
                decide: Box::new(|ballot| Outcome::unless_culprits(ballot, |_| (Outcome::Agreed, Vec::new()))),
            };
            heard(CALL, engine.exchange(exchange))?;
            let is_short = !head.is_sparse && sums.count != head.total;
            let wrong = counter.twice().or_else(|| is_short.then(|| counter.first_gap(sums.count)).flatten());
            let ballot = engine.ballot(&format!("{call}: lists"), Payload::greatest(1, wrong.map(Wrong::to_bytes)));
            let found: Vec<u8> = decoded(&ask(engine, CALL, ballot, greatest)?)?;
            // An element with two owners is reported before one with none, and a low number before a higher one.
            let is_worse = worst.is_none_or(|worst| found > worst.to_bytes());
            worst = Wrong::of_bytes(&found).filter(|_| is_worse).or(worst);
        }
        match worst {
            None => Ok(Decomposition::of_list(list, sums.identity, (rank, ranks))),
            Some(wrong) => Err(Error::Decomposition { shape: vec![head.total], finding: wrong.to_string() }),
        }
    }

    /// Sends parts to the ranks that check their cells, checks the parts that arrive, and returns what any rank has found.
    fn exchange_parts(&self, call: &str, first: Vec<(Rank, Vec<u8>)>, owner: &mut Owner) -> Result<Option<Finding>> {
        let engine = &self.engine;
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let taken = owner.take(bytes).ok_or("it is truncated or invalid")?;
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

    /// Finds the first elements that have no owner.
    fn find_gap(&self, call: &str, cells: &Cells, owner: &Owner) -> Result<Option<Finding>> {
        let gap = owner.first_gap(cells.of(self.engine.identity().rank)).map(|gap| Finding::Gap(gap).to_bytes());
        let ballot = self.engine.ballot(&format!("{call}: gaps"), Payload::greatest(1, gap));
        finding(&ask(&self.engine, CALL, ballot, greatest)?)
    }
}

fn finding(verdict: &Verdict) -> Result<Option<Finding>> {
    Ok(Finding::of_bytes(&decoded::<Vec<u8>>(verdict)?))
}

/// The greatest of the ranks' findings.
fn greatest(ballot: &Ballot) -> (Outcome, Vec<u8>) {
    Outcome::agreed("finding", &ballot.payload.first_of_greatest().to_vec())
}
