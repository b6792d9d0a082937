//! Loading a region on another decomposition than it was saved on, by all ranks together.
//!
//! ```text
//!   plan       readers say what their shards have, and all what they want, to the owners of cells       posts, one reduction
//!              owners tell readers what they send to whom, and all whom they hear from                  posts, one reduction: a gap ends it here
//!   load       readers go through their shards once, check whole blocks, and send what is wanted        posts, one reduction
//!   close      has everybody got what it wanted?                                                        one reduction
//! ```
//!
//! A plan is kept: the next region that lies on the same decomposition and is loaded on the same one needs no new one.

mod packet;
mod reading;
mod target;
mod together;

use super::access::ShardAccess;
use super::load_error::LoadError;
use super::outline::OutlinedDecomposition;
use crate::base::Rank;
use crate::base::log;
use crate::coordination::posts::Posts;
use crate::coordination::{Ballot, Outcome, Payload};
use crate::decomposition::matching::{self, Piece, Unmatched};
use crate::decomposition::shelf::{Shelf, Side, all_of, posts};
use crate::decomposition::{Decomposition, Identity, Parts};
use crate::format::ElementType;
use crate::transfer::posting::{Handled, Next, all_at_once};
use packet::{CREDIT, DATA};
use reading::Reading;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
pub use target::Target;
pub use together::{ELSEWHERE, Together, plainly};

/// Bytes that a reader has on their way before they were taken, and that a rank gets from all readers together before it has taken them.
const WINDOW: usize = 64 << 20;
/// The most bytes of a packet, about.
const PACKET: usize = 512 << 10;
/// The most before it is known how much its receiver takes at once.
const FIRST_PACKET: usize = 64 << 10;
/// The least that is worth a message.
const PACKET_MIN: usize = 4 << 10;

/// What one rank does for loads by one plan.
#[derive(Debug)]
pub(super) struct Plan {
    /// What it sends, by shard.
    pieces: BTreeMap<Rank, Vec<Piece>>,
    /// The ranks that it gets something from.
    senders: Vec<Rank>,
}

impl Plan {
    /// How long packets become, so that one for each receiver fits into the window.
    fn packet(&self) -> usize {
        let receivers: BTreeSet<Rank> = self.pieces.values().flatten().map(|piece| piece.to).collect();
        (WINDOW / (4 * receivers.len().max(1))).clamp(PACKET_MIN, PACKET)
    }
}

/// Plans by the identities of the decompositions from and to.
pub(super) type Plans = HashMap<(Identity, Identity), Arc<Plan>>;

/// What is loaded.
pub(super) struct Remaking<'r> {
    pub together: Together<'r>,
    pub element: ElementType,
    /// The decomposition that it lies on.
    pub from: &'r OutlinedDecomposition,
    pub on: &'r Decomposition,
}

impl Remaking<'_> {
    /// Loads it; `mistake` is what keeps this rank from that.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError`], the same on all ranks.
    pub fn load(
        &self,
        shards: &mut [ShardAccess],
        plans: &mut Plans,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let key = (self.from.identity, self.on.identity());
        let plan = match plans.get(&key) {
            Some(plan) => plan.clone(),
            None => {
                let mistake = target.as_ref().err();
                let plan = Arc::new(self.plan(shards, mistake)?);
                plans.insert(key, plan.clone());
                plan
            }
        };
        self.carry(shards, &plan, target)
    }

    /// Finds out who sends whom what.
    fn plan(&self, shards: &mut [ShardAccess], mistake: Option<&LoadError>) -> Result<Plan, LoadError> {
        let (together, cells, own) = (&self.together, self.on.cells(), self.on.own().parts());
        let (rank, dims, mut failure) = (together.rank(), own.dims(), None);
        let mut placed = Vec::new();
        for access in &mut *shards {
            match self.parts(access) {
                Ok(parts) => placed.extend(all_of(&parts, Side::Has, rank, access.shard())),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        placed.extend(all_of(own, Side::Wants, rank, rank));
        let mut shelf = Shelf::new(cells, dims);
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let onward = shelf.take(bytes, |_, _| ()).ok_or("it is cut, or says what cannot be")?;
            Ok(Handled { answer: Vec::new(), onward })
        };
        let ballot = together.failed(together.ballot("parts", Payload::None), mistake.or(failure.as_ref()));
        let first = posts(cells, dims, placed);
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        self.hand_out(&shelf)
    }

    /// Tells readers their pieces, and hears those of this rank.
    fn hand_out(&self, shelf: &Shelf) -> Result<Plan, LoadError> {
        let own = self.on.own().parts();
        let dims = own.dims();
        let found = matching::matched(shelf);
        let mut first: Vec<(Rank, Vec<u8>)> = Vec::new();
        for (reader, pieces) in &found.pieces {
            let bundles = matching::bundles(pieces, dims).into_iter();
            first.extend(bundles.map(|bundle| (*reader, [&[DATA], &bundle[..]].concat())));
        }
        for (to, readers) in &found.senders {
            let readers: Vec<u8> = readers.iter().flat_map(|reader| reader.0.to_le_bytes()).collect();
            first.push((*to, [&[CREDIT], &readers[..]].concat()));
        }
        let (mut pieces, mut senders) = (BTreeMap::<Rank, Vec<Piece>>::new(), BTreeSet::new());
        let mut on_post = |_: Rank, bytes: &[u8]| {
            match bytes.split_first() {
                Some((&DATA, bundle)) => {
                    let bundle = matching::unbundled(bundle, dims).ok_or("it is cut")?;
                    bundle.into_iter().for_each(|piece| pieces.entry(piece.shard).or_default().push(piece));
                }
                Some((&CREDIT, readers)) => {
                    let rank = |at: &[u8]| Some(Rank(u32::from_le_bytes(at.try_into().ok()?)));
                    senders.extend(readers.chunks(4).filter_map(rank));
                }
                _ => return Err("it is empty".to_owned()),
            }
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
            return Err(self.unmatched(unmatched.in_words(dims), !(is_missing && self.from.is_sparse)));
        }
        if sums.iter().any(|(_, sum)| *sum != sums[0].1) {
            return Err(self.unmatched(format!("elements wanted, found in cells, and matched are {sums:?}"), true));
        }
        // What a rank sends to itself is no message.
        senders.remove(&self.together.rank());
        Ok(Plan { pieces, senders: senders.into_iter().collect() })
    }

    /// Moves the elements.
    fn carry(
        &self,
        shards: &mut [ShardAccess],
        plan: &Plan,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let (together, dims) = (&self.together, self.on.own().parts().dims());
        let rank = together.rank();
        let mut failure = None;
        let target = target.map_err(|error| failure = Some(error)).ok();
        let target = RefCell::new(target);
        // What each of those that this rank sends to takes of it at once.
        let credits: RefCell<BTreeMap<Rank, usize>> = RefCell::default();
        let failure = RefCell::new(failure);
        let mut reading = Reading::new(together.region, dims, &plan.pieces, self.element.bytes());
        let most = plan.packet();
        let limit = |to: Rank| match credits.borrow().get(&to) {
            Some(credit) => most.min(credit / 2).max(PACKET_MIN),
            None => most.min(FIRST_PACKET),
        };
        let share = (WINDOW / plan.senders.len().max(1)) as u64;
        let credit = [&[CREDIT], &share.to_le_bytes()[..]].concat();
        let mut grants = plan.senders.iter().map(|sender| (*sender, credit.clone()));
        let mut ready: Option<(Rank, Vec<u8>)> = None;
        let mut next = |posts: &Posts| {
            if let Some((to, body)) = grants.next() {
                return Next::Post(to, body);
            }
            loop {
                if let Some((to, body)) = ready.take() {
                    let credit = credits.borrow().get(&to).copied().unwrap_or(FIRST_PACKET);
                    // One may always be under way.
                    let is_over = |out: usize, most: usize| out > 0 && out + body.len() > most;
                    if is_over(posts.all_outstanding(), WINDOW) || is_over(posts.outstanding(to), credit) {
                        ready = Some((to, body));
                        return Next::Later;
                    }
                    return Next::Post(to, body);
                }
                let mut deliver = |piece: &Piece, from: usize, bytes: &[u8]| {
                    if let Some(target) = &mut *target.borrow_mut() {
                        target.put(piece.number, &piece.cuboid, from, bytes);
                    }
                };
                match reading.next(shards, rank, &limit, &mut deliver) {
                    Ok(Some(packet)) => ready = Some(packet),
                    Ok(None) => return Next::Done,
                    Err(error) => {
                        failure.borrow_mut().get_or_insert(error);
                        return Next::Done;
                    }
                }
            }
        };
        let mut on_post = |from: Rank, bytes: &[u8]| {
            match bytes.split_first() {
                Some((&CREDIT, share)) => {
                    let share: [u8; 8] = share.try_into().map_err(|_| "it is cut")?;
                    credits.borrow_mut().insert(from, u64::from_le_bytes(share) as usize);
                }
                Some((&DATA, packet)) => {
                    let mut target = target.borrow_mut();
                    packet::unpack(packet, dims, |number, cuboid, at, bytes| match &mut *target {
                        Some(target) => target.put(number, cuboid, at, bytes),
                        None => true,
                    })?;
                }
                _ => return Err("it is empty".to_owned()),
            }
            Ok(Handled::default())
        };
        let vote = |_| together.failed(together.ballot("elements", Payload::None), failure.borrow().as_ref());
        together.exchange(&mut next, &mut on_post, vote, plainly)?;
        // Nothing is under way any more: what has not come never will.
        self.close(target.into_inner().map_or(0, |target| target.delivered()))
    }

    /// Has everybody got what it wanted? This rank got so many bytes.
    fn close(&self, got: u64) -> Result<(), LoadError> {
        let together = &self.together;
        let rank = together.rank();
        let wanted = self.on.elements() * self.element.bytes();
        let ballot = together.ballot("close", Payload::None).with_sums(vec![(0, wanted), (1, got)]);
        let ballot = match got == wanted {
            true => ballot,
            false => ballot.failed(rank, format!("got {got} of {wanted} bytes of region {:?}", together.region), false),
        };
        let verdict = together.vote(ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        if self.together.engine.is_root() {
            let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
            let bytes = sums.first().map_or(0, |(_, sum)| *sum);
            log::info!("event=covered region={:?} {} bytes={bytes}", together.region, together.key);
        }
        Ok(())
    }

    fn unmatched(&self, what: String, is_damage: bool) -> LoadError {
        LoadError::Unmatched { key: self.together.key, region: self.together.region.into(), what, is_damage }
    }

    /// What a shard has of the array.
    fn parts(&self, access: &mut ShardAccess) -> Result<Parts, LoadError> {
        let record = access.shared_record()?;
        let source = access.source("the region table")?;
        let place = source.head().meta.regions.iter().position(|region| region.name == self.together.region);
        let found =
            place.and_then(|place| record.of_region(place)).filter(|(identity, _)| *identity == self.from.identity);
        found.map(|(_, parts)| parts.clone()).ok_or_else(|| LoadError::Decomposition {
            rank: self.together.rank(),
            key: self.together.key,
            region: self.together.region.into(),
            found: format!("lies otherwise in the shard of rank {} than in others", access.shard()),
        })
    }
}
