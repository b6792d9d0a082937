//! Loads a region, by all ranks together, on a decomposition other than the one on which it was saved.
//!
//! ```text
//!   plan       readers tell the owners of cells what their shards have, and all ranks tell them what they want    posts, one reduction
//!              owners tell each rank what it gets from where: a gap ends the load here                            posts, one reduction
//!              ranks ask readers for what they cannot read themselves                                             posts, one reduction
//!   load       each rank reads what is on its node and on shared tiers, if that pays; if that is everything, all of it is in memory, and
//!              whole blocks would be much more than is wanted of them, blocks are checked together                posts, two reductions
//!              readers go through their shards once, check whole blocks, and send what was requested              posts, one reduction
//!   close      has every rank received what it wanted?                                                            one reduction
//! ```
//!
//! A plan is kept: the next region that lies on the same decomposition and is loaded on the same one needs no new plan.

mod ahead;
mod carrier;
mod direct;
mod landing;
mod listed;
mod packet;
mod packing;
mod readers;
mod reading;
mod rows;
mod runs;
mod scattering;
mod shares;
mod target;
mod together;

use super::access::ShardAccess;
use super::load_error::LoadError;
use super::opener::Opener;
use super::outline::{Dealt, OutlinedDecomposition};
use crate::base::Rank;
use crate::base::log;
use crate::coordination::{Ballot, Outcome, Payload};
use crate::decomposition::cells::Cells;
use crate::decomposition::matching::{self, Piece, Unmatched};
use crate::decomposition::shelf::{Shelf, Side, all_of, posts};
use crate::decomposition::{Cuboid, Decomposition, Identity, Own};
use crate::tier::TierId;
use crate::tier::source::Source;
use crate::transfer::posting::{Handled, all_at_once};
use carrier::Carrier;
use direct::Direct;
pub(super) use listed::Numbered;
use listed::Routes;
pub use readers::Readers;
use reading::Boxed;
pub(super) use rows::{Dealing, Finding, Owners, Wanted};
use shares::{Reads, longest, touched_by};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use target::Mapper;
pub use target::Target;
pub use together::{ELSEWHERE, Together, plainly};

/// The maximum number of bytes in whole blocks that a rank reads itself for each byte that it wants; above it, other ranks read them for
/// it. The first limit is for memory, and the second for files, which cost more than messages do.
const MEMORY_AMPLIFIED: f64 = 12.0;
const FILES_AMPLIFIED: f64 = 1.5;

/// Pieces by shard, or by the rank that reads them.
type Pieces = BTreeMap<Rank, Vec<Piece>>;

/// What one rank does in loads by one plan.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What it reads for itself, by shard.
    own: Pieces,
    /// What it sends, by shard.
    pieces: Pieces,
    /// The ranks from which it receives something.
    senders: Vec<Rank>,
    /// Some rank sends something. The same on all ranks.
    is_sent: bool,
    /// The maximum element size, in bytes, for which the ranks that copy parts of a block check it together. It is 0 once a block was
    /// wrong, because from then on ranks may read other copies than before, including files. The same on all ranks.
    checked_together: AtomicU64,
}

impl Plan {
    /// The number of ranks that receive something from this one.
    fn receivers(&self) -> usize {
        self.pieces.values().flatten().map(|piece| piece.to).collect::<BTreeSet<Rank>>().len()
    }
}

/// Plans of earlier loads.
#[derive(Default)]
pub(super) struct Plans {
    /// Plans for boxes, by the identities of the old and the new decomposition.
    boxes: HashMap<(Identity, Identity), Arc<Plan>>,
    /// Plans for lists of numbers.
    pub lists: Routes,
}

/// The region that is loaded.
pub(super) struct Remaking<'r> {
    pub together: Together<'r>,
    pub opener: &'r Opener,
    /// The size of an element in bytes.
    pub size: u64,
    /// The decomposition on which the region lies.
    pub from: &'r OutlinedDecomposition,
    /// The part that this rank wants.
    pub own: &'r Own,
    /// Each element is proved to be wanted by one rank.
    pub is_proved: bool,
}

impl Remaking<'_> {
    /// Loads the region on a decomposition of which this rank has its own part: from the shards whose home this rank is, from those that
    /// are near, and from those that others read. If `target` is an error, it says what keeps this rank from taking its part.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError`], the same on all ranks.
    pub fn load(
        &self,
        (on, cells): (Identity, &Cells),
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        plans: &mut Plans,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let key = (self.from.identity, on);
        let plan = match plans.boxes.get(&key) {
            Some(plan) => plan.clone(),
            None => {
                readers.find(&self.together, self.opener, homes, target.as_ref().err())?;
                let plan = Arc::new(self.plan(cells, (homes, readers), target.as_ref().map(Target::mapper))?);
                plans.boxes.insert(key, plan.clone());
                plan
            }
        };
        self.carry((homes, readers), &plan, target)
    }

    /// Finds out who sends what to whom.
    fn plan(
        &self,
        cells: &Cells,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        mapper: Result<Mapper<'_>, &LoadError>,
    ) -> Result<Plan, LoadError> {
        let (together, own) = (&self.together, self.own.parts());
        let (rank, dims, mut failure) = (together.rank(), own.dims(), None);
        let mut placed = Vec::new();
        for access in readers.read_here(homes) {
            match self.offered(access) {
                Ok((dealt, side)) => placed.extend(all_of(dealt.parts().1, side, rank, access.shard())),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        placed.extend(all_of(own, Side::Wants, rank, rank));
        let mut shelf = Shelf::new(cells, dims);
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let onward = shelf.take(bytes, |_, _| ()).ok_or("it is truncated or invalid")?;
            Ok(Handled { answer: Vec::new(), onward })
        };
        let mistake = mapper.as_ref().err().copied();
        let ballot = together.failed(together.ballot("parts", Payload::None), mistake.or(failure.as_ref()));
        let first = posts(cells, dims, placed);
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        let wanted = self.hand_out(&shelf)?;
        drop(shelf);
        // All ranks have a mapper here: a rank without one has ended the load for all ranks above.
        let Ok(mapper) = mapper else { return Err(together.of_this_rank("no memory for its part".into())) };
        self.ask(wanted, (homes, readers), &mapper)
    }

    /// Tells ranks which pieces they get, and learns which pieces this rank gets.
    fn hand_out(&self, shelf: &Shelf) -> Result<Vec<Piece>, LoadError> {
        let own = self.own.parts();
        let dims = own.dims();
        let found = matching::matched(shelf);
        let mut first: Vec<(Rank, Vec<u8>)> = Vec::new();
        for (to, pieces) in &found.pieces {
            first.extend(matching::bundles(pieces, dims).into_iter().map(|bundle| (*to, bundle)));
        }
        let mut wanted = Vec::new();
        let mut on_post = |_: Rank, bytes: &[u8]| {
            wanted.extend(matching::unbundled(bytes, dims).ok_or("it is truncated")?);
            Ok(Handled::default())
        };
        let sums = vec![(0, own.elements()), (1, found.wanted), (2, found.matched)];
        let unmatched = found.unmatched.map(Unmatched::to_bytes);
        let ballot = self.together.ballot("pieces", Payload::greatest(1, unmatched)).with_sums(sums);
        let decide = |ballot: &Ballot| {
            let first = ballot.payload.first_of_greatest().to_vec();
            Outcome::agreed("pieces", &(first, ballot.sums.clone()))
        };
        let verdict = self.together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, decide)?;
        let (unmatched, sums): (Vec<u8>, Vec<(u64, u64)>) = self.together.decode(&verdict)?;
        if let Some(unmatched) = Unmatched::of_bytes(&unmatched) {
            let is_missing = matches!(unmatched, Unmatched::Missing(..));
            return Err(self.together.unmatched(unmatched.in_words(dims), !(is_missing && self.from.is_sparse)));
        }
        if sums.iter().any(|(_, sum)| *sum != sums[0].1) {
            return Err(self
                .together
                .unmatched(format!("the elements wanted, found and matched differ in number: {sums:?}"), true));
        }
        Ok(matching::joined(wanted))
    }

    /// Chooses which of the wanted pieces this rank reads for itself, and asks readers for the rest.
    fn ask(
        &self,
        wanted: Vec<Piece>,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        mapper: &Mapper<'_>,
    ) -> Result<Plan, LoadError> {
        let (together, dims) = (&self.together, self.own.parts().dims());
        let (own, asked) = self.chosen(wanted, readers, mapper);
        let elements = |of: &Pieces| of.values().flatten().map(|piece| piece.cuboid.volume()).sum::<u64>();
        // Is each element wanted by one rank, and saved by one rank? The answer is the same on all ranks.
        let is_once = self.is_proved && !self.from.is_sparse && !self.own.parts().is_sparse();
        let reads = if is_once { Reads::of(self, &own, (homes, readers), mapper) } else { Reads::default() };
        let sums = [(0, elements(&own)), (1, elements(&asked))].into_iter().chain(reads.sums(2)).collect();
        let senders = asked.keys().copied().collect();
        let mut first: Vec<(Rank, Vec<u8>)> = Vec::new();
        for (reader, pieces) in &asked {
            first.extend(matching::bundles(pieces, dims).into_iter().map(|bundle| (*reader, bundle)));
        }
        let mut pieces = Pieces::new();
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let bundle = matching::unbundled(bytes, dims).ok_or("it is truncated")?;
            bundle.into_iter().for_each(|piece| pieces.entry(piece.shard).or_default().push(piece));
            Ok(Handled::default())
        };
        let ballot = together.ballot("requests", Payload::None).with_sums(sums);
        let decide = |ballot: &Ballot| Outcome::agreed("requests", &ballot.sums);
        let verdict = together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, decide)?;
        let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
        let sum = |of: u64| sums.iter().find(|(key, _)| *key == of).map_or(0, |(_, sum)| *sum);
        let is_sent = sum(1) > 0;
        let is_checked_together = is_once && !is_sent && Reads::of_sums(&sums, 2).pay_together();
        if together.engine.is_root() {
            let (region, key) = (together.region, together.key);
            let checked = if is_checked_together { "together" } else { "by each" };
            log::info!(
                "event=planned region={region:?} {key} read={} sent={} elements checked={checked:?}",
                sum(0),
                sum(1)
            );
        }
        let checked_together = AtomicU64::new(if is_checked_together { longest(self.size) } else { 0 });
        Ok(Plan { own, pieces, senders, is_sent, checked_together })
    }

    /// What this rank reads for itself, by shard, and what it asks others for, by reader.
    fn chosen(&self, wanted: Vec<Piece>, readers: &mut Readers, mapper: &Mapper<'_>) -> (Pieces, Pieces) {
        let rank = self.together.rank();
        let (mut own, mut asked) = (Pieces::new(), Pieces::new());
        // For memory and for files: the pieces that could be read here, the bytes that are wanted, and the bytes of their blocks.
        let mut near = [(Pieces::new(), 0u64, 0u64), (Pieces::new(), 0, 0)];
        let mut by_shard = Pieces::new();
        wanted.into_iter().for_each(|piece| by_shard.entry(piece.shard).or_default().push(piece));
        for (shard, pieces) in by_shard {
            let reader = pieces[0].reader;
            if reader == rank {
                own.insert(shard, pieces);
                continue;
            }
            let dealt = readers.near(self.opener, &pieces[0]).and_then(|access| self.offered(access).ok());
            let Some((dealt, _)) = dealt else {
                asked.entry(reader).or_default().extend(pieces);
                continue;
            };
            let (some, blocks) = touched_by(&pieces, &dealt, mapper);
            let (all, wanted, read) = &mut near[usize::from(matches!(dealt.source, Source::File(_)))];
            (*wanted, *read) = (*wanted + some, *read + blocks);
            all.insert(shard, pieces);
        }
        let [memory, files] = near;
        let pays =
            [memory.2 as f64 <= MEMORY_AMPLIFIED * memory.1 as f64, files.2 as f64 <= FILES_AMPLIFIED * files.1 as f64];
        for ((pieces, ..), pays) in [memory, files].into_iter().zip(pays) {
            match pays {
                true => own.extend(pieces),
                false => {
                    pieces.into_values().flatten().for_each(|piece| asked.entry(piece.reader).or_default().push(piece))
                }
            }
        }
        (own, asked)
    }

    /// Moves the elements.
    fn carry(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        plan: &Plan,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let (mut target, mut failure) = match target {
            Ok(target) => (Some(target), None),
            Err(error) => (None, Some(error)),
        };
        let is_shared = (1..=plan.checked_together.load(Ordering::Relaxed)).contains(&self.size);
        let is_loaded = is_shared && self.load_shared((homes, readers), plan, target.as_mut(), failure.as_ref())?;
        if is_shared && !is_loaded {
            plan.checked_together.store(0, Ordering::Relaxed);
        }
        if let Some(target) = target.as_mut().filter(|_| !is_loaded) {
            let direct = Direct { region: self.together.region, pieces: &plan.own };
            let shards: BTreeSet<Rank> = plan.own.keys().copied().collect();
            failure = direct.load(readers.of(homes, &shards), target).err();
        }
        if plan.is_sent {
            let (dims, size) = (self.own.parts().dims(), self.size);
            let boxed = Boxed { dims, pieces: &plan.pieces, size };
            let carrier = Carrier { together: &self.together, senders: &plan.senders, receivers: plan.receivers() };
            carrier.send(readers.read_here(homes), &boxed, target.as_mut(), failure.take())?;
        }
        target::close(&self.together, self.own.parts().elements() * self.size, target, failure)
    }

    /// What a shard has of the array, and whether all ranks can read it.
    fn offered(&self, access: &mut ShardAccess) -> Result<(Dealt, Side), LoadError> {
        let (dealt, side) = offered(access, self.together.region)?;
        if dealt.parts().0 == self.from.identity {
            return Ok((dealt, side));
        }
        Err(access.lies_otherwise(self.together.region))
    }
}

/// Loads a region from a rank's own shard, without other ranks, on the decomposition on which the rank saved it.
///
/// # Errors
/// [`LoadError`].
///
/// # Blocking
/// On the tiers that hold the shard, and for the device whose memory the target may be.
pub(super) fn load_own(
    access: &mut ShardAccess,
    region: &str,
    on: &Decomposition,
    target: &mut Target<'_>,
) -> Result<(), LoadError> {
    let (shard, own) = (access.shard(), on.own().parts());
    if access.dealt(region)?.parts().1.own() != own.own() {
        return Err(access.lies_otherwise(region));
    }
    let piece = |(number, cuboid): (u32, &Cuboid)| Piece {
        reader: shard,
        is_shared: false,
        shard,
        part: number,
        to: shard,
        number,
        cuboid: *cuboid,
    };
    let pieces = Pieces::from([(shard, (0..).zip(own.own()).map(piece).collect())]);
    Direct { region, pieces: &pieces }.load(vec![access], target)
}

/// A region of a shard, and whether all ranks can read it.
fn offered(access: &mut ShardAccess, region: &str) -> Result<(Dealt, Side), LoadError> {
    let dealt = access.dealt(region)?;
    // Only their readers see the copies that peers have.
    let is_shared = dealt.source.tier() != TierId::PEERS && dealt.source.tier().spec().is_shared;
    Ok((dealt, if is_shared { Side::Shared } else { Side::Has }))
}
