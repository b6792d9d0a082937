//! Loads numbered elements, by all ranks together, on lists other than those on which they were saved.
//!
//! ```text
//!   numbers    the number of stretches of numbers, from which the number of windows follows                  one reduction
//!   for each window of numbers
//!     told     readers tell owners which numbers their shards have, and all ranks tell them which they want  posts, one reduction
//!     runs     owners tell readers what to send, and ranks who sends to them: a gap ends the load here       posts, one reduction
//!     carry    readers go through their shards once, and send what was requested                             posts, one reduction
//!   close      has every rank received what it wanted?                                                       one reduction
//! ```
//!
//! Windows limit what a rank holds at once ([`windows`](crate::decomposition::ids::windows)). If there is only one window, its route is
//! kept, so that the next region on the same lists needs only the step *carry*.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::super::opener::Opener;
use super::super::outline::OutlinedDecomposition;
use super::carrier::Carrier;
use super::offered;
use super::readers::Readers;
use super::runs::{Run, Runs};
use super::target::{self, Target};
use super::together::{Together, plainly};
use crate::base::Rank;
use crate::coordination::{Ballot, Outcome, Payload};
use crate::decomposition::ids::counter::{self, Counter, Joined, Said, Wrong};
use crate::decomposition::ids::list;
use crate::decomposition::ids::windows::{STRETCHES, Told, Windows};
use crate::decomposition::ids::{List, Listed};
use crate::decomposition::{Identity, run};
use crate::format::{FormatError, Region, numbers};
use crate::tier::TierError;
use crate::tier::source::Source;
use crate::transfer::posting::{Handled, all_at_once};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The approximate number of bytes of a list that are read at once.
const BATCH: usize = 1 << 20;

/// The kinds of an owner's posts: one tells a reader what to send, and the other tells a rank who sends to it.
const RUNS: u8 = 1;
const SENDERS: u8 = 2;

/// What one rank does for a load in one window.
#[derive(Debug, Default)]
pub struct Route {
    /// What it sends, by shard.
    runs: BTreeMap<Rank, Vec<Run>>,
    /// The ranks from which it receives something.
    senders: BTreeSet<Rank>,
    /// Some rank sends something. The same on all ranks.
    is_sent: bool,
}

/// The routes of loads that need only one window, by the identities of the old and the new lists.
pub type Routes = HashMap<(Identity, Identity), Arc<Route>>;

/// What one rank tells about all numbers at once.
struct All {
    /// How many stretches its shards have, and how many it wants.
    has: u64,
    wants: u64,
    /// Nothing had to be left out because there was too much.
    is_whole: bool,
    told: Vec<(Rank, Vec<u8>)>,
}

/// The region that is loaded.
pub struct Numbered<'r> {
    pub together: Together<'r>,
    pub opener: &'r Opener,
    /// The size of an element in bytes.
    pub size: u64,
    /// The lists on which the region lies.
    pub from: &'r OutlinedDecomposition,
    /// The list of the elements that this rank wants, and the identity of all such lists.
    pub list: &'r List,
    pub on: Identity,
}

impl Numbered<'_> {
    /// Loads the region into the memory of this rank's list. If `target` is an error, it says what keeps this rank from that.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError`], the same on all ranks.
    pub fn load(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        routes: &mut Routes,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let (mut target, failure) = match target {
            Ok(target) => (Some(target), None),
            Err(error) => (None, Some(error)),
        };
        let key = (self.from.identity, self.on);
        if let Some(route) = routes.get(&key).cloned() {
            self.carry((homes, readers), &route, target.as_mut(), failure)?;
        } else {
            readers.find(&self.together, self.opener, homes, failure.as_ref())?;
            let (windows, mut all) = self.windows(readers.read_here(homes), failure.as_ref())?;
            for window in 0..windows.count() {
                let told = match all.take().filter(|_| windows.count() == 1) {
                    Some(all) => Ok(all.told),
                    None => self.told(readers.read_here(homes), windows, window),
                };
                let route = Arc::new(self.route(windows, window, told)?);
                if windows.count() == 1 {
                    routes.insert(key, route.clone());
                }
                self.carry((homes, readers), &route, target.as_mut(), None)?;
            }
        }
        target::close(&self.together, self.list.head().count * self.size, target, None)
    }

    /// The windows that the load needs, and what this rank tells if there is only one.
    fn windows(
        &self,
        shards: Vec<&mut ShardAccess>,
        mistake: Option<&LoadError>,
    ) -> Result<(Windows, Option<All>), LoadError> {
        let together = &self.together;
        let ranks = together.engine.identity().size;
        let looked = self.all(shards, ranks);
        let (all, failure) = match looked {
            Ok(all) => (Some(all), None),
            Err(error) => (None, Some(error)),
        };
        let sums = all.iter().flat_map(|all| [(0, all.has), (1, all.wants)]).collect();
        let ballot = together.ballot("numbers", Payload::None).with_sums(sums);
        let ballot = together.failed(ballot, mistake.or(failure.as_ref()));
        let verdict = together.vote(ballot, |ballot| Outcome::agreed("sums", &ballot.sums))?;
        let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
        let most = sums.iter().map(|(_, sum)| *sum).max().unwrap_or(0);
        Ok((Windows::new(most, ranks), all.filter(|all| all.is_whole)))
    }

    /// What this rank tells if there is only one window. If it has more stretches than it may keep, it tells only how many there are.
    fn all(&self, shards: Vec<&mut ShardAccess>, ranks: u32) -> Result<All, LoadError> {
        let none = |has: u64| Told::of_all(ranks, (2 * STRETCHES).saturating_sub(has));
        let mut wants = none(0);
        self.list.each(|at, numbers| wants.add(at, numbers));
        let mut all = All { has: 0, wants: wants.stretches(), is_whole: wants.is_whole(), told: Vec::new() };
        let mut lists = vec![(Said::Wants, wants)];
        for access in shards {
            let told = self.told_of(access, || none(all.wants + all.has))?;
            all.has = all.has.saturating_add(told.stretches());
            all.is_whole = all.is_whole && told.is_whole();
            lists.push((Said::Has(access.shard()), told));
        }
        all.told = lists.into_iter().flat_map(|(said, told)| counter::told(told.sorted(), said)).collect();
        Ok(all)
    }

    /// What this rank tells about one window.
    fn told(
        &self,
        shards: Vec<&mut ShardAccess>,
        windows: Windows,
        window: u64,
    ) -> Result<Vec<(Rank, Vec<u8>)>, LoadError> {
        let mut told = Told::new(windows, window);
        self.list.each(|at, numbers| told.add(at, numbers));
        let mut posts = counter::told(told.sorted(), Said::Wants);
        for access in shards {
            let told = self.told_of(access, || Told::new(windows, window))?;
            posts.extend(counter::told(told.sorted(), Said::Has(access.shard())));
        }
        Ok(posts)
    }

    /// Finds out who sends what to whom in one window. `told` is what this rank tells about the window, or why it cannot.
    fn route(
        &self,
        windows: Windows,
        window: u64,
        told: Result<Vec<(Rank, Vec<u8>)>, LoadError>,
    ) -> Result<Route, LoadError> {
        let together = &self.together;
        let (first, failure) = match told {
            Ok(told) => (told, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut counter = Counter::new(windows, window, together.rank(), self.list.head().total);
        let mut on_post = |from: Rank, bytes: &[u8]| {
            counter.take(from, bytes).ok_or("it is truncated or invalid")?;
            Ok(Handled::default())
        };
        let ballot = together.failed(together.ballot("lists", Payload::None), failure.as_ref());
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        self.hand_out(&mut counter)
    }

    /// Tells readers what to send, and learns what this rank sends and receives.
    fn hand_out(&self, counter: &mut Counter) -> Result<Route, LoadError> {
        let together = &self.together;
        let (joined, wrong) = match counter.twice().map_or_else(|| counter.join(), Err) {
            Ok(joined) => (joined, None),
            Err(wrong) => (Joined::default(), Some(wrong)),
        };
        let mut route = Route::default();
        let ranks = together.engine.identity().size;
        let mut on_post = |_: Rank, bytes: &[u8]| {
            match bytes.split_first() {
                Some((&RUNS, post)) => {
                    let (shard, runs) = run::told(post).ok_or("it is truncated")?;
                    if let Some(run) = runs.iter().find(|run| run.to.0 >= ranks) {
                        return Err(format!("it has elements for rank {}, but there are only {ranks} ranks", run.to));
                    }
                    route.runs.entry(shard).or_default().extend(runs);
                }
                Some((&SENDERS, mut post)) => {
                    while !post.is_empty() {
                        let sender = numbers::take(&mut post).filter(|sender| *sender < u64::from(ranks));
                        route.senders.insert(Rank(sender.ok_or("it is truncated, or names no rank")? as u32));
                    }
                }
                _ => return Err("it is empty".to_owned()),
            }
            Ok(Handled::default())
        };
        let (wanted, matched) = (joined.wanted, joined.matched);
        let payload = Payload::greatest(1, wrong.map(Wrong::to_bytes));
        let ballot = together.ballot("runs", payload).with_sums(vec![(0, wanted), (1, matched)]);
        let decide = |ballot: &Ballot| {
            let first = ballot.payload.first_of_greatest().to_vec();
            Outcome::agreed("runs", &(first, ballot.sums.clone()))
        };
        let first = posts(&joined);
        let verdict = together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, decide)?;
        let (wrong, sums): (Vec<u8>, Vec<(u64, u64)>) = together.decode(&verdict)?;
        if let Some(wrong) = Wrong::of_bytes(&wrong) {
            let is_missing = matches!(wrong, Wrong::Missing(..));
            return Err(self.together.unmatched(wrong.to_string(), !(is_missing && self.from.is_sparse)));
        }
        if sums.iter().any(|(_, sum)| *sum != sums[0].1) {
            return Err(self.together.unmatched(format!("the numbers wanted and matched differ: {sums:?}"), true));
        }
        route.is_sent = sums.first().is_some_and(|(_, sum)| *sum > 0);
        // Owners tell the runs in no particular order.
        route.runs.values_mut().for_each(|runs| runs.sort_unstable_by_key(|run| (run.at, run.to)));
        Ok(route)
    }

    /// Moves the elements of a window.
    fn carry(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        route: &Route,
        target: Option<&mut Target<'_>>,
        failure: Option<LoadError>,
    ) -> Result<(), LoadError> {
        if !route.is_sent {
            return Ok(());
        }
        let receivers: BTreeSet<Rank> = route.runs.values().flatten().map(|run| run.to).collect();
        let senders: Vec<Rank> = route.senders.iter().copied().collect();
        let carrier = Carrier { together: &self.together, senders: &senders, receivers: receivers.len() };
        let runs = Runs { by_shard: &route.runs, size: self.size };
        carrier.send(readers.read_here(homes), &runs, target, failure)
    }

    /// What the list of a shard tells, added to the empty `none`.
    fn told_of(&self, access: &mut ShardAccess, none: impl Fn() -> Told) -> Result<Told, LoadError> {
        let (list, region) = self.offered(access)?;
        let mut buffer = Vec::new();
        let mut told = none();
        access.load_all(std::iter::once(&region), |source| {
            // An earlier copy may have been damaged.
            told = none();
            read(source, (&region, list), &mut buffer, |at, numbers| told.add(at, numbers))?;
            Ok(region.bytes)
        })?;
        Ok(told)
    }

    /// The list of a shard, and the region that contains it.
    fn offered(&self, access: &mut ShardAccess) -> Result<(Listed, Region), LoadError> {
        let (dealt, _) = offered(access, self.together.region)?;
        let list = dealt
            .list()
            .filter(|(list, _)| dealt.parts().0 == self.from.identity && [list.total] == self.from.shape[..]);
        list.ok_or_else(|| access.lies_otherwise(self.together.region))
    }
}

/// Reads a list from one copy of a shard.
fn read(
    source: &Source,
    (region, list): (&Region, Listed),
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(u64, &[u64]),
) -> Result<(), TierError> {
    let block = source.head().header.block_size as usize;
    let (length, step) = (region.bytes as usize, BATCH.max(block) / block * block);
    let mut reader = list::Reader::new(list.total, list.count);
    buffer.resize(step.min(length), 0);
    let mut is_right = true;
    for start in (0..length).step_by(step) {
        let blocks = &mut buffer[..step.min(length - start)];
        source.read_blocks(region, start, blocks)?;
        is_right = is_right && reader.take(blocks, &mut each).is_some();
    }
    if is_right && reader.is_through() {
        return Ok(());
    }
    let wrong = FormatError::invalid("list of numbers", format!("region {:?} is invalid", region.name));
    Err(TierError::Format { tier: source.tier(), path: source.path().into(), source: wrong })
}

/// The posts of an owner, which tell readers what to send, and ranks who sends to them.
fn posts(joined: &Joined) -> Vec<(Rank, Vec<u8>)> {
    let mut posts = Vec::new();
    let mut senders: BTreeMap<Rank, BTreeSet<Rank>> = BTreeMap::new();
    for ((reader, shard), runs) in &joined.runs {
        posts.extend(run::posts(*shard, runs).map(|post| (*reader, [&[RUNS], &post[..]].concat())));
        for run in runs.chunk_by(|one, other| one.to == other.to) {
            senders.entry(run[0].to).or_default().insert(*reader);
        }
    }
    for (to, readers) in senders {
        let mut body = vec![SENDERS];
        readers.iter().for_each(|reader| numbers::put(&mut body, u64::from(reader.0)));
        posts.push((to, body));
    }
    posts
}
