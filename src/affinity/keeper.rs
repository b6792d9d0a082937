//! Keeps account of where the threads and pages of one rank are, and brings them back after a restart.
//!
//! One for each session. The application's thread asks it for the record of a checkpoint ([`Keeper::record`]) and lets it restore one
//! ([`Keeper::restore`]); a background thread lends it time ([`Keeper::work`]) to look at whole regions, and to see what
//! has wandered. Nothing of it ever fails a checkpoint or a restart: what cannot be done is counted, told once and left.
#![forbid(unsafe_code)]

use super::cpus::{self, Cpus};
use super::machine::Machine;
use super::mapping::{Mapping, Now, Target};
use super::pages::{PAGE_BYTES, PageMap, Run};
use super::pinning::{self, Pin};
use super::placing::{self, PlaceReport, Wanted};
use super::record::{Policy, Record, RegionPlace, Role, ThreadPlace};
use super::threads::{self, Thread};
use super::{numa, scan};
use crate::config::{AffinityConfig, AffinityMode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old the list of threads in a record may be, unless their number has changed.
const THREADS_AGE: Duration = Duration::from_secs(1);
/// How old the whole map of a region gets before it is made again, while checkpoints are taken.
const MAP_AGE: Duration = Duration::from_secs(60);
/// Pages of a region that are asked for while a checkpoint is captured.
const QUESTIONS_MAX: usize = 2048;
/// Regions whose maps are kept.
const MAPS_MAX: usize = 4096;

/// Where a region is, as the one who saves it knows.
#[derive(Clone, Copy, Debug)]
pub enum Whereabouts<'a> {
    /// In host memory: address and length in bytes. It is only asked about, never read.
    Host(usize, usize),
    /// In the memory of the device with this PCI address.
    Device(&'a str),
}

/// What has been seen and done, since the session was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffinityReport {
    /// Threads that a restart was to put on their CPUs.
    pub threads_wanted: u64,
    /// Those that are there.
    pub threads_set: u64,
    /// Those that were not pinned, and were left alone.
    pub threads_left: u64,
    /// Those that could not be set.
    pub threads_failed: u64,
    /// What became of the pages of the regions that were loaded.
    pub pages: PlaceReport,
    /// What the machine of the restart has not, in words.
    pub losses: Vec<String>,
    /// How often it was looked whether something wandered.
    pub checks: u64,
    /// Threads found with another mask than before, over all looks.
    pub threads_wandered: u64,
    /// Pages found on another node than before, over all looks.
    pub pages_wandered: u64,
}

/// The account of one rank.
pub struct Keeper {
    settings: Settings,
    machine: &'static Machine,
    /// What the job had on this node when the session was opened.
    given: Cpus,
    /// The threads that there were then.
    early: BTreeSet<i32>,
    state: Mutex<State>,
}

/// What a keeper is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is recorded and restored.
    pub mode: AffinityMode,
    /// Where threads go after a restart, and how often they are looked at.
    pub config: AffinityConfig,
    /// This rank.
    pub rank: u32,
    /// The ranks of the group on this node, ascending, this one among them.
    pub neighbours: Vec<u32>,
}

struct State {
    mode: AffinityMode,
    /// The GPUs that regions were on.
    gpus: BTreeSet<String>,
    threads: Vec<ThreadPlace>,
    threads_seen: Option<Instant>,
    thread_count: Option<u64>,
    /// Maps by address and length.
    maps: BTreeMap<(usize, usize), Mapped>,
    wish: Wish,
    /// How many threads there were when masks were last set.
    served: Option<u64>,
    checked: Instant,
    report: AffinityReport,
}

/// Where threads are to go, also those that are not there yet.
enum Wish {
    /// Nowhere.
    Nothing,
    /// To these masks, by role, name and order.
    Recorded(Vec<ThreadPlace>),
    /// Where a policy puts them.
    Pinned(Pin),
}

struct Mapped {
    map: PageMap,
    /// The page behind each of its runs.
    ends: Vec<u64>,
    taken: Instant,
    is_whole: bool,
    /// A whole map is to be made in the background.
    is_wished: bool,
}

impl Mapped {
    /// A map that has just been made, of all pages.
    fn whole(map: PageMap) -> Mapped {
        let sum = |end: &mut u64, run: &Run| {
            *end += run.pages;
            Some(*end)
        };
        let ends = map.runs.iter().scan(0, sum).collect();
        Mapped { map, ends, taken: Instant::now(), is_whole: true, is_wished: false }
    }

    fn node_at(&self, page: u64) -> Option<u32> {
        let run = self.ends.partition_point(|end| *end <= page);
        self.map.runs.get(run)?.node
    }
}

impl Keeper {
    /// An account that begins now.
    ///
    /// # Blocking
    /// For a look at the node's topology: some tens of milliseconds for the first keeper of a process.
    pub fn new(settings: Settings) -> Keeper {
        let machine = Machine::here();
        let live = threads::list();
        let given = cpus::given(live.iter().map(|thread| thread.cpus.clone()));
        let early = live.into_iter().map(|thread| thread.id).collect();
        let state = State {
            mode: settings.mode,
            gpus: BTreeSet::new(),
            threads: Vec::new(),
            threads_seen: None,
            thread_count: None,
            maps: BTreeMap::new(),
            wish: Wish::Nothing,
            served: None,
            checked: Instant::now(),
            report: AffinityReport::default(),
        };
        Keeper { settings, machine, given, early, state: Mutex::new(state) }
    }

    /// What is restored from now on. What is recorded stays as configured, because all ranks record alike.
    pub fn set_mode(&self, mode: AffinityMode) {
        self.lock().mode = mode;
    }

    /// What has been seen and done.
    pub fn report(&self) -> AffinityReport {
        self.lock().report.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a checkpoint with these regions, encoded.
    ///
    /// # Blocking
    /// For a few hundred microseconds: threads are listed at most once a second unless their number changes, and of the pages of
    /// a region few are asked for. Whole maps come from the background.
    pub fn record<'a>(&self, regions: impl IntoIterator<Item = (&'a str, Whereabouts<'a>)>) -> Vec<u8> {
        let mut state = self.lock();
        state.see_threads();
        let regions = regions.into_iter().filter_map(|(name, at)| match at {
            Whereabouts::Device("") => None,
            Whereabouts::Device(address) => Some((name.to_owned(), RegionPlace::Device(address.to_owned()))),
            Whereabouts::Host(address, bytes) if self.machine.nodes_with_memory().len() > 1 => {
                Some((name.to_owned(), state.pages_of(address, bytes)?))
            }
            Whereabouts::Host(..) => None,
        });
        let regions = regions.collect();
        let mut record = Record {
            machine: self.machine.clone(),
            given: self.given.clone(),
            neighbours: self.settings.neighbours.clone(),
            threads: state.threads.clone(),
            policy: numa::policy().unwrap_or_default(),
            regions,
        };
        record.encode().unwrap_or_else(|error| {
            // Pages that lie one by one on changing nodes, over terabytes.
            log::warn!("event=affinity-unrecorded rank={} error=\"{error}\"", self.settings.rank);
            record.regions.clear();
            record.encode().unwrap_or_default()
        })
    }
}

impl Keeper {
    /// Brings threads back to where a record says they were, and says where the pages of its regions belong. `None`: the record is of
    /// no use, or nothing is to be restored.
    ///
    /// # Blocking
    /// For a few calls of the system for each thread.
    pub fn restore(self: &Arc<Self>, bytes: &[u8]) -> Option<Placement> {
        let rank = self.settings.rank;
        let record = match Record::decode(bytes) {
            Ok(record) => record,
            Err(error) => {
                log::warn!("event=affinity-unread rank={rank} error=\"{error}\"");
                return None;
            }
        };
        let mut state = self.lock();
        let mode = state.mode;
        if !mode.has_threads() && !mode.has_pages() {
            return None;
        }
        let gpus: Vec<String> = state.gpus.iter().cloned().collect();
        let cpus = self.settings.config.cpus.as_ref();
        let cpus: Option<Vec<u32>> = cpus.map(|cpus| cpus.iter().map(|cpu| *cpu as u32).collect());
        let now = Now {
            machine: self.machine,
            allowed: &self.given,
            neighbours: &self.settings.neighbours,
            rank,
            gpus: &gpus,
            cpus: cpus.as_deref(),
        };
        let mapping = Mapping::new(&record, &now);
        state.report.losses = mapping.losses().iter().map(ToString::to_string).collect();
        for loss in &state.report.losses {
            log::warn!("event=affinity-lost rank={rank} loss=\"{loss}\"");
        }
        if mode.has_threads() {
            state.want_threads(&record, &mapping);
            self.serve_threads(&mut state);
            restore_policy(&record.policy, &mapping);
        }
        drop(state);
        if mode.has_threads() {
            settle_own_threads();
        }
        if mode.has_pages() { Placement::new(self, &record, mapping) } else { None }
    }

    /// Gives threads that have started since a restart the masks of their predecessors.
    ///
    /// # Blocking
    /// Nearly nothing while no thread has come or gone.
    pub fn catch_up(&self) {
        let mut state = self.lock();
        if !matches!(state.wish, Wish::Nothing) && state.served != threads::count() {
            self.serve_threads(&mut state);
        }
    }

    /// Puts the threads of this rank where a policy says, and those that start later at the next call of the session. The ranks of the
    /// node share what the job was given. Of the threads that were there when the session was opened only the calling one gets a
    /// core of its own: others may be MPI's.
    pub fn pin(&self, pin: Pin) {
        let mut state = self.lock();
        state.wish = if pin == Pin::Launcher { Wish::Nothing } else { Wish::Pinned(pin) };
        self.serve_threads(&mut state);
        drop(state);
        settle_own_threads();
    }

    /// Sets the masks that are wished for, of the threads that are there.
    fn serve_threads(&self, state: &mut State) {
        state.served = threads::count();
        state.threads_seen = None;
        let live = threads::list();
        let places = threads::places(&live, threads::own_id());
        let wanted: Vec<(&Thread, Cpus)> = match &state.wish {
            Wish::Nothing => return,
            Wish::Recorded(wanted) => {
                let mask =
                    |place: &ThreadPlace| wanted.iter().find(|wanted| is_same(wanted, place)).map(|it| it.cpus.clone());
                live.iter().zip(&places).filter_map(|(thread, place)| Some((thread, mask(place)?))).collect()
            }
            Wish::Pinned(pin) => self.pinned(pin, &live, &places),
        };
        let (mut set, mut failed) = (0, 0);
        for (thread, cpus) in wanted {
            match if cpus == thread.cpus { Ok(()) } else { threads::set(thread.id, &cpus) } {
                Ok(()) => set += 1,
                Err(error) => {
                    failed += 1;
                    let rank = self.settings.rank;
                    log::warn!("event=thread-not-set rank={rank} thread={:?} error=\"{error}\"", thread.name);
                }
            }
        }
        (state.report.threads_set, state.report.threads_failed) = (set, failed);
    }

    /// The masks of a policy: of the calling thread first, and of the application's others by age.
    fn pinned<'a>(&self, pin: &Pin, live: &'a [Thread], places: &[ThreadPlace]) -> Vec<(&'a Thread, Cpus)> {
        let neighbours = &self.settings.neighbours;
        let position = neighbours.iter().position(|rank| *rank == self.settings.rank).unwrap_or(0);
        let share = pinning::share(self.machine, &self.given, position, neighbours.len());
        let of =
            |role: Role| live.iter().zip(places).filter(move |(_, place)| place.role == role).map(|(thread, _)| thread);
        let later = of(Role::Other).filter(|thread| !self.early.contains(&thread.id));
        let threads: Vec<&Thread> = of(Role::Main).chain(later).collect();
        let masks = pinning::masks(pin, self.machine, &self.given, &share, threads.len());
        threads.into_iter().zip(masks).collect()
    }

    /// Has the background something to do?
    pub fn has_work(&self) -> bool {
        let state = self.lock();
        let every = self.settings.config.check_every;
        state.maps.values().any(|mapped| mapped.is_wished) || (!every.is_zero() && state.checked.elapsed() >= every)
    }

    /// Makes one whole map, or looks once whether something has wandered.
    ///
    /// # Blocking
    /// For about 40 ms for each GiB of a region in small pages.
    pub fn work(&self, goes_on: &mut dyn FnMut() -> bool) {
        let wished = {
            let mut state = self.lock();
            let wished = state.maps.iter_mut().find(|(_, mapped)| mapped.is_wished);
            wished.map(|(key, mapped)| {
                mapped.is_wished = false;
                *key
            })
        };
        match wished {
            Some(key) => {
                let map = whole_map(key, goes_on);
                if let (Some(map), Some(mapped)) = (map, self.lock().maps.get_mut(&key)) {
                    *mapped = Mapped::whole(map);
                }
            }
            None => self.check(goes_on),
        }
    }

    /// Looks whether threads or pages are where they were last seen, and takes where they are now for the next look.
    fn check(&self, goes_on: &mut dyn FnMut() -> bool) {
        let known: Vec<(usize, usize)> = {
            let mut state = self.lock();
            state.checked = Instant::now();
            let whole = state.maps.iter().filter(|(_, mapped)| mapped.is_whole);
            whole.map(|(key, _)| *key).collect()
        };
        let mut wandered = 0;
        for key in known {
            let Some(map) = whole_map(key, goes_on) else { break };
            if let Some(mapped) = self.lock().maps.get_mut(&key) {
                wandered += mapped.map.compare(&map).wrong;
                *mapped = Mapped::whole(map);
            }
        }
        let mut state = self.lock();
        let before = std::mem::take(&mut state.threads);
        state.threads_seen = None;
        state.see_threads();
        let is_changed = |place: &&ThreadPlace| {
            before.iter().find(|other| is_same(other, place)).is_some_and(|other| other.cpus != place.cpus)
        };
        let changed = state.threads.iter().filter(is_changed).count() as u64;
        state.report.checks += 1;
        state.report.threads_wandered += changed;
        state.report.pages_wandered += wandered;
        if changed + wandered > 0 {
            log::info!("event=wandered rank={} threads={changed} pages={wandered}", self.settings.rank);
        }
    }
}

impl State {
    /// Lists the threads, unless that was done a moment ago and none has come or gone.
    fn see_threads(&mut self) {
        let count = threads::count();
        let is_fresh = self.threads_seen.is_some_and(|seen| seen.elapsed() < THREADS_AGE);
        if is_fresh && count.is_some() && count == self.thread_count {
            return;
        }
        self.threads = threads::places(&threads::list(), threads::own_id());
        self.threads_seen = Some(Instant::now());
        self.thread_count = count;
    }

    /// Where a region is. A small one is asked for page by page; of others the background makes whole maps, which are used as long as they
    /// are right where a few pages are asked for. The calling thread is about to read the region.
    fn pages_of(&mut self, address: usize, bytes: usize) -> Option<RegionPlace> {
        let refused = |error: &std::io::Error| numa::told("move_pages", error);
        let mut query = |addresses: &[usize]| numa::query_before_reading(addresses);
        if bytes <= QUESTIONS_MAX * PAGE_BYTES as usize {
            let map = scan::whole(address, bytes as u64, &mut || true, &mut query).inspect_err(refused).ok()??;
            return Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: true });
        }
        let key = (address, bytes);
        let known = self.maps.get(&key).filter(|mapped| mapped.is_whole);
        let (mut asked, mut wrong) = (0, 0);
        let mut query = |addresses: &[usize]| {
            let answers = query(addresses)?;
            if let Some(known) = known {
                let page = |at: &usize| (at / PAGE_BYTES as usize - address / PAGE_BYTES as usize) as u64;
                let node = |status: &i32| u32::try_from(*status).ok();
                asked += answers.len();
                wrong += addresses.iter().zip(&answers).filter(|(at, it)| known.node_at(page(at)) != node(it)).count();
            }
            Ok(answers)
        };
        let map = scan::bounded(address, bytes as u64, QUESTIONS_MAX, &mut query).inspect_err(refused).ok()?;
        // Single pages wander; a region that was made anew is wrong all over.
        if known.is_some() && wrong * 10 <= asked {
            let mapped = self.maps.get_mut(&key)?;
            mapped.is_wished |= wrong > 0 || mapped.taken.elapsed() >= MAP_AGE;
            let age_ms = mapped.taken.elapsed().as_millis() as u64;
            return Some(RegionPlace::Host { pages: mapped.map.clone(), age_ms, is_whole: true });
        }
        if self.maps.len() >= MAPS_MAX {
            self.maps.clear();
        }
        let mapped = Mapped { is_whole: false, is_wished: true, ..Mapped::whole(map.clone()) };
        self.maps.insert(key, mapped);
        Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: false })
    }

    /// Notes the masks of a record's threads, as they are on this machine.
    fn want_threads(&mut self, record: &Record, mapping: &Mapping) {
        let own = |place: &&ThreadPlace| place.role != Role::Bivouac;
        let mut wanted = Vec::new();
        self.report.threads_left = 0;
        for place in record.threads.iter().filter(own) {
            match mapping.cpus_for(place) {
                Some(cpus) => wanted.push(ThreadPlace { cpus, ..place.clone() }),
                None => self.report.threads_left += 1,
            }
        }
        self.report.threads_wanted = wanted.len() as u64;
        self.wish = if wanted.is_empty() { Wish::Nothing } else { Wish::Recorded(wanted) };
    }
}

/// Do these say the same thread? The one that holds the session may have another name.
fn is_same(a: &ThreadPlace, b: &ThreadPlace) -> bool {
    (a.role, a.order) == (b.role, b.order) && (a.role == Role::Main || a.name == b.name)
}

fn whole_map((address, bytes): (usize, usize), goes_on: &mut dyn FnMut() -> bool) -> Option<PageMap> {
    let map = scan::whole(address, bytes as u64, goes_on, &mut |addresses| numa::query(addresses));
    map.inspect_err(|error| numa::told("move_pages", error)).ok()?
}

/// Gives the calling thread the policy of a record, if it has none of its own.
fn restore_policy(policy: &Policy, mapping: &Mapping) {
    if policy.mode == 0 || numa::policy().is_ok_and(|now| now.mode != 0) {
        return;
    }
    let nodes = policy.nodes.iter().flat_map(|node| match mapping.node_for(*node) {
        Target::Node(node) => vec![node],
        Target::Spread(nodes) => nodes,
    });
    let policy = Policy { mode: policy.mode, nodes: nodes.collect() };
    if let Err(error) = numa::set_policy(&policy) {
        numa::told("set_mempolicy", &error);
    }
}

/// Sends Bivouac's writers to where they are out of the way of threads that have just been moved.
fn settle_own_threads() {
    let cpus = cpus::for_background("");
    let writers = threads::list().into_iter().filter(|thread| {
        ["bvk-write", "bvk-comm"].iter().any(|name| thread.name.starts_with(name)) && thread.cpus != cpus
    });
    for thread in writers {
        if let Err(error) = threads::set(thread.id, &cpus) {
            log::debug!("event=thread-not-set thread={:?} error=\"{error}\"", thread.name);
        }
    }
}

/// The same map with the pages of which nothing is known beside their neighbours: those before them, at the start those behind them. The
/// load gives them memory in any case.
fn known_all_over(map: &PageMap) -> PageMap {
    let mut last = map.runs.iter().find_map(|run| run.node);
    let runs = map.runs.iter().map(|run| {
        last = run.node.or(last);
        Run { pages: run.pages, node: last }
    });
    PageMap::from_runs(map.offset.into(), runs)
}

/// Where the pages of the regions of a checkpoint belong on this machine.
pub struct Placement {
    keeper: Arc<Keeper>,
    maps: BTreeMap<String, PageMap>,
    mapping: Mapping,
    /// The CPUs of each node that the job was given.
    cpus: BTreeMap<u32, Cpus>,
}

impl Placement {
    fn new(keeper: &Arc<Keeper>, record: &Record, mapping: Mapping) -> Option<Placement> {
        let (machine, given) = (keeper.machine, &keeper.given);
        let nodes = machine.nodes_with_memory();
        if nodes.len() < 2 {
            return None;
        }
        let map = |(name, place): &(String, RegionPlace)| match place {
            RegionPlace::Host { pages, .. } => Some((name.clone(), known_all_over(pages))),
            RegionPlace::Device(_) => None,
        };
        let maps = record.regions.iter().filter_map(map).collect();
        let cpus = nodes.into_iter().map(|node| (node, &machine.cpus_of_node(node) & given)).collect();
        Some(Placement { keeper: keeper.clone(), maps, mapping, cpus })
    }

    /// Makes the memory of a region present on the nodes that it was on, before its bytes are loaded. What it holds may be lost.
    ///
    /// # Blocking
    /// For a look at all of its pages, and for making them present or moving them.
    pub fn before_load(&self, region: &str, target: &mut [u8]) {
        let bytes = target.len() as u64;
        let Some(map) = self.maps.get(region).filter(|map| map.check(bytes).is_ok()) else { return };
        let wanted = self.mapping.place(map, bytes, target.as_ptr().addr() as u64);
        let wanted: Vec<Wanted> = wanted.ranges(bytes).collect();
        let report = placing::place(target, &wanted, &self.cpus);
        log::debug!("event=placed rank={} region={region:?} {report}", self.keeper.settings.rank);
        self.keeper.lock().report.pages.add(&report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_which_nothing_is_known_go_with_their_neighbours() {
        let runs = |list: &[(u64, Option<u32>)]| {
            list.iter().map(|(pages, node)| Run { pages: *pages, node: *node }).collect::<Vec<_>>()
        };
        let map = |list| PageMap { offset: 9, runs: runs(list) };
        let filled = known_all_over(&map(&[(2, None), (1, Some(3)), (4, None), (1, Some(0))]));
        assert_eq!(filled, map(&[(7, Some(3)), (1, Some(0))]));
        assert_eq!(known_all_over(&map(&[(2, None)])), map(&[(2, None)]));
    }
}
