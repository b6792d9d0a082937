//! Keeps account of where the threads and pages of one rank are, and brings them back after a restart.
//!
//! One for each session. The application's thread asks it for the record of a checkpoint ([`Keeper::record`]) and lets it restore one
//! ([`Keeper::restore`]); a background thread lends it time ([`Keeper::work`]) to look at whole regions, and to see what
//! has wandered. Nothing of it ever fails a checkpoint or a restart: what cannot be done is counted, told once and left.
#![forbid(unsafe_code)]

mod crew;

use super::cpus::{self, Cpus};
use super::machine::Machine;
use super::mapping::{Loss, Mapping, Now, Target};
use super::pages::{PAGE_BYTES, PageMap, Run};
use super::pinning::{self, Pin};
use super::placing::{self, PlaceReport, Wanted};
use super::record::{Policy, Record, RegionPlace, Role, ThreadPlace};
use super::threads::{self, Thread};
use super::{Node, numa, scan};
use crate::base::units::parse_cpus;
use crate::config::{AffinityConfig, AffinityMode};
use crew::{Arrival, Crew, Recorded, Wish, is_same};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old the list of threads in a record may be, unless their number has changed.
const THREADS_AGE: Duration = Duration::from_secs(10);
/// How old the whole map of a region gets before it is made again, while checkpoints are taken.
const MAP_AGE: Duration = Duration::from_secs(60);
/// Pages that are asked for while a checkpoint is captured: of a region whose pages are asked for one by one, of one that is sampled,
/// and of all regions one by one (about a millisecond).
const EXACT_MAX: u64 = 2048;
const SAMPLES_MAX: usize = 2048;
const EXACT_BUDGET: u64 = 8192;
/// Runs from which on a map is one of pages that were dealt to nodes one by one, and its end is not known.
const DEALT_RUNS: usize = scan::WHOLE_RUNS_MAX;
/// Regions whose maps are kept, and for how many checkpoints without them.
const MAPS_MAX: usize = 4096;
const MAP_UNUSED_MAX: u64 = 2;

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
    /// Those that were left alone: they were not pinned, or nothing says where they could go.
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
    /// The threads that there were when the session was opened.
    early: BTreeSet<i32>,
    /// Processes that the launcher started on this node, if it says so.
    processes: Option<usize>,
    /// A thread of the background reads the machine.
    is_reading: AtomicBool,
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
    /// PCI addresses of the GPUs that this rank uses.
    gpus: BTreeSet<String>,
    crew: Crew,
    threads: Vec<ThreadPlace>,
    threads_seen: Option<Instant>,
    thread_count: Option<u64>,
    /// Maps by address and length.
    maps: BTreeMap<(usize, usize), Mapped>,
    /// Records made.
    records: u64,
    /// Threads have been moved, and other ranks may still be moving theirs: once these have begun to compute, which the next checkpoint
    /// shows, it is looked again where Bivouac's threads are out of the way.
    is_unsettled: bool,
    /// The background is to send Bivouac's threads out of the way.
    is_in_the_way: bool,
    checked: Instant,
    report: AffinityReport,
}

struct Mapped {
    map: PageMap,
    /// The page behind each of its runs.
    ends: Vec<u64>,
    /// The same as it is recorded: short runs put together.
    coarse: PageMap,
    taken: Instant,
    is_whole: bool,
    /// A whole map is to be made in the background.
    is_wished: bool,
    /// The number of the last record that had it.
    used: u64,
}

impl Mapped {
    /// A map that has just been made, of all pages of the region at `address`.
    fn whole(map: PageMap, address: usize) -> Mapped {
        let sum = |end: &mut u64, run: &Run| {
            *end += run.pages;
            Some(*end)
        };
        let ends = map.runs.iter().scan(0, sum).collect();
        let coarse = map.coarsened(address as u64);
        Mapped { map, ends, coarse, taken: Instant::now(), is_whole: true, is_wished: false, used: 0 }
    }

    /// Pages lie one by one on changing nodes: by the policy of the process, which does it again after a restart, or so many of them
    /// that the end of the map is not known.
    fn is_dealt(&self, is_interleaved: bool) -> bool {
        self.map.runs.len() >= DEALT_RUNS || is_interleaved && self.map.is_short()
    }

    fn node_at(&self, page: u64) -> Option<u32> {
        let run = self.ends.partition_point(|end| *end <= page);
        self.map.runs.get(run)?.node
    }
}

impl Keeper {
    /// An account that begins now.
    pub fn new(settings: Settings) -> Keeper {
        let live = threads::list();
        let given = cpus::given(live.iter().map(|thread| thread.cpus.clone()));
        let early = live.into_iter().map(|thread| thread.id).collect();
        let state = State {
            mode: settings.mode,
            gpus: BTreeSet::new(),
            crew: Crew::new(given),
            threads: Vec::new(),
            threads_seen: None,
            thread_count: None,
            maps: BTreeMap::new(),
            records: 0,
            is_unsettled: false,
            is_in_the_way: false,
            checked: Instant::now(),
            report: AffinityReport::default(),
        };
        let (processes, is_reading) = (cpus::processes_here(), AtomicBool::new(false));
        Keeper { settings, early, processes, is_reading, state: Mutex::new(state) }
    }

    /// What is restored from now on. What is recorded stays as configured, because all ranks record alike. Without threads nothing more is
    /// done about those that start later.
    pub fn set_mode(&self, mode: AffinityMode) {
        let mut state = self.lock();
        state.mode = mode;
        if !mode.has_threads() {
            state.crew.wish(Wish::Nothing);
        }
    }

    /// This rank uses the device with this PCI address.
    pub fn use_device(&self, address: &str) {
        if !address.is_empty() {
            self.lock().gpus.insert(address.to_owned());
        }
    }

    /// The node with memory that is nearest to the GPU of this rank: bytes of regions come and go between them. `None`: there is no
    /// GPU, or nobody knows yet where it is.
    pub fn node_of_device(&self) -> Option<Node> {
        let machine = Machine::is_read().then(Machine::here).filter(|machine| machine.nodes_with_memory().len() > 1)?;
        let device = self.lock().gpus.iter().find_map(|address| machine.device(address))?;
        device.nodes.first().and_then(|node| machine.nearest_with_memory(*node)).map(Node)
    }

    /// Threads and pages that were found elsewhere than before, over all looks.
    pub fn wandered(&self) -> (u64, u64) {
        let state = self.lock();
        (state.report.threads_wandered, state.report.pages_wandered)
    }

    /// What has been seen and done.
    pub fn report(&self) -> AffinityReport {
        self.lock().report.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May processes have the same CPUs that do not share them by the rules that this one does? So it is where more processes of the job
    /// are on the node than ranks of the group, and where nobody says what the job was given: the other ranks may believe something else.
    fn has_strangers(&self, state: &State) -> bool {
        let ranks = self.settings.neighbours.len().max(1);
        self.processes.is_some_and(|processes| processes > ranks) || (ranks > 1 && !state.crew.given.is_jobs)
    }

    /// The record of a checkpoint with these regions, encoded.
    ///
    /// # Blocking
    /// For about a millisecond: threads are listed every ten seconds unless their number changes, and of the pages of
    /// large regions few are asked for. Whole maps come from the background.
    pub fn record<'a>(&self, regions: impl IntoIterator<Item = (&'a str, Whereabouts<'a>)>) -> Vec<u8> {
        let mut state = self.lock();
        state.crew.main = threads::own_id();
        state.is_in_the_way |= std::mem::take(&mut state.is_unsettled);
        state.see_threads();
        state.records += 1;
        let has_nodes = Machine::here().nodes_with_memory().len() > 1;
        let policy = numa::policy().unwrap_or_default();
        let is_interleaved = policy.mode == INTERLEAVE;
        let mut budget = EXACT_BUDGET;
        let mut places = Vec::new();
        for (name, at) in regions {
            let place = match at {
                Whereabouts::Device("") => None,
                Whereabouts::Device(address) => Some(RegionPlace::Device(address.to_owned())),
                Whereabouts::Host(address, bytes) if has_nodes => {
                    state.pages_of(address, bytes, &mut budget, is_interleaved)
                }
                Whereabouts::Host(..) => None,
            };
            places.extend(place.map(|place| (name.to_owned(), place)));
        }
        let last = state.records;
        state.maps.retain(|_, mapped| mapped.used + MAP_UNUSED_MAX > last);
        let mut record = Record {
            machine: Machine::here().clone(),
            given: state.crew.given.cpus.clone(),
            neighbours: self.settings.neighbours.clone(),
            threads: state.threads.clone(),
            policy,
            regions: places,
        };
        drop(state);
        record.encode().unwrap_or_else(|error| {
            // Pages that lie in short runs on changing nodes, over many gigabytes.
            let count = record.keep_what_fits();
            log::debug!("event=maps-left-out rank={} maps={count} error=\"{error}\"", self.settings.rank);
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
        state.crew.main = threads::own_id();
        let mode = state.mode;
        if !mode.has_threads() && !mode.has_pages() {
            return None;
        }
        let machine = with_allowed_memory(Machine::here());
        let mapping = self.map(&state, &machine, &record);
        state.report.losses.clear();
        self.lose(&mut state, mapping.losses());
        // What is loaded now may be put elsewhere: it has not wandered then.
        state.maps.clear();
        let cpus: BTreeMap<u32, Cpus> = machine
            .nodes_with_memory()
            .into_iter()
            .map(|node| (node, &machine.cpus_of_node(node) & &state.crew.given.cpus))
            .collect();
        let placement = (mode.has_pages() && cpus.len() > 1).then(|| {
            restore_policy(&record.policy, &mapping);
            Placement::new(self, &record, mapping.clone(), cpus)
        });
        let given = state.crew.given.cpus.clone();
        if mode.has_threads() {
            let wanted = self.wanted(&state, record, &mapping);
            self.lose(&mut state, wanted.rebound(&given).as_slice());
            state.report.threads_wanted = wanted.pinned.len() as u64;
            state.report.threads_left = wanted.free.len() as u64;
            (state.report.threads_set, state.report.threads_failed) = (0, 0);
            // What a policy has placed is not let go for a record of threads that were nowhere in particular.
            if !wanted.pinned.is_empty() || !matches!(state.crew.wish, Wish::Pinned(_)) {
                state.crew.wish(Wish::Recorded(Box::new(wanted)));
                self.serve_threads(&mut state);
            }
            (state.is_unsettled, state.is_in_the_way) = (true, true);
        }
        placement
    }

    fn map(&self, state: &State, machine: &Machine, record: &Record) -> Mapping {
        let gpus: Vec<String> = state.gpus.iter().cloned().collect();
        let cpus = self.settings.config.cpus.as_ref();
        let cpus: Option<Vec<u32>> = cpus.map(|cpus| cpus.iter().map(|cpu| *cpu as u32).collect());
        let now = Now {
            machine,
            whole: Machine::here(),
            allowed: &state.crew.given.cpus,
            neighbours: &self.settings.neighbours,
            has_strangers: self.has_strangers(state),
            rank: self.settings.rank,
            gpus: &gpus,
            cpus: cpus.as_deref(),
        };
        Mapping::new(record, &now)
    }

    /// Says what could not be kept, in the log and in the report.
    fn lose(&self, state: &mut State, losses: &[Loss]) {
        for loss in losses {
            log::warn!("event=affinity-lost rank={} loss=\"{loss}\"", self.settings.rank);
        }
        state.report.losses.extend(losses.iter().map(ToString::to_string));
    }

    /// The masks of a record's threads on this machine. Where nobody says what was given, and it seems to be less than the threads had, they
    /// are left alone until more of it is known: the main thread may have been bound before the others were started.
    fn wanted(&self, state: &State, record: Record, mapping: &Mapping) -> Recorded {
        let is_less = |loss: &Loss| matches!(loss, Loss::FewerCpus { .. } | Loss::NotAllowed(_));
        let is_named = self.settings.config.cpus.is_some();
        let is_unknown = !state.crew.given.is_jobs && !is_named && mapping.losses().iter().any(is_less);
        let (mut pinned, mut free) = (Vec::new(), Vec::new());
        for place in record.threads.iter().filter(|place| place.role != Role::Bivouac) {
            match mapping.cpus_for(place) {
                Some(cpus) if !is_unknown => pinned.push(ThreadPlace { cpus, ..place.clone() }),
                Some(_) => {}
                None => free.push(place.clone()),
            }
        }
        Recorded { record, pinned, free, before: cpus::of_this_thread() }
    }

    /// Gives threads that have started since a restart the masks of their predecessors.
    ///
    /// # Blocking
    /// Nearly nothing while no thread has come or gone.
    pub fn catch_up(&self) {
        let mut state = self.lock();
        state.crew.main = threads::own_id();
        if state.crew.may_have_arrivals(threads::count()) {
            self.serve_threads(&mut state);
        }
    }

    /// Puts the threads of this rank where a policy says, and those that start later at the next call of the session. The ranks of the
    /// node share what the job was given; if they are not all that may have it, the threads stay where they are, and the report says so. Of the threads that were there when the session was opened only the calling one gets a
    /// core of its own: others may be MPI's.
    pub fn pin(&self, pin: Pin) {
        let mut state = self.lock();
        state.crew.main = threads::own_id();
        state.report.losses.clear();
        let wish = match pin {
            Pin::Launcher => Wish::Nothing,
            Pin::Compact | Pin::Scatter if self.has_strangers(&state) => {
                self.lose(&mut state, &[Loss::Strangers]);
                Wish::Nothing
            }
            pin => Wish::Pinned(pin),
        };
        state.crew.wish(wish);
        (state.report.threads_set, state.report.threads_failed) = (0, 0);
        self.serve_threads(&mut state);
        (state.is_unsettled, state.is_in_the_way) = (true, true);
    }

    /// Sets the masks that are wished for, of the threads that have not been served.
    fn serve_threads(&self, state: &mut State) {
        let live = threads::list();
        state.crew.widen(&live);
        if state.crew.take_widened()
            && let Wish::Recorded(wanted) = std::mem::replace(&mut state.crew.wish, Wish::Nothing)
        {
            // More is known to be given: the record may fit now.
            let machine = with_allowed_memory(Machine::here());
            let mapping = self.map(state, &machine, &wanted.record);
            let before = wanted.before;
            let wanted = Recorded { before, ..self.wanted(state, wanted.record, &mapping) };
            state.report.losses.clear();
            self.lose(state, mapping.losses());
            let given = state.crew.given.cpus.clone();
            self.lose(state, wanted.rebound(&given).as_slice());
            state.report.threads_wanted = wanted.pinned.len() as u64;
            state.crew.wish = Wish::Recorded(Box::new(wanted));
            state.crew.begin();
            (state.report.threads_set, state.report.threads_failed) = (0, 0);
        }
        let arrivals = state.crew.arrivals(&live);
        let masks: Vec<(&Thread, Cpus)> = match &state.crew.wish {
            Wish::Nothing => return,
            Wish::Recorded(wanted) => {
                let is_other =
                    |arrival: &&Arrival<'_>| arrival.place.role == Role::Other && wanted.is_pinned(&arrival.place);
                // With the first of the others the main thread goes to its own place.
                let is_time = !state.crew.is_main_placed && arrivals.iter().any(|arrival| is_other(&arrival));
                let rest = arrivals.iter().filter(|arrival| !is_time || arrival.place.role != Role::Main);
                let mut masks: Vec<(&Thread, Cpus)> =
                    rest.filter_map(|arrival| Some((arrival.thread, wanted.mask(arrival)?))).collect();
                if is_time {
                    state.crew.is_main_placed = true;
                    let main = live.iter().find(|thread| thread.id == state.crew.main);
                    masks.extend(main.and_then(|main| Some((main, wanted.main()?.clone()))));
                }
                masks
            }
            Wish::Pinned(pin) => {
                let masks = self.pinned(pin, state, &arrivals);
                state.crew.placed += masks.len();
                masks
            }
        };
        for (thread, cpus) in masks {
            match if cpus == thread.cpus { Ok(()) } else { threads::set(thread.id, &cpus) } {
                Ok(()) => state.report.threads_set += 1,
                Err(error) => {
                    state.report.threads_failed += 1;
                    let rank = self.settings.rank;
                    log::warn!("event=thread-not-set rank={rank} thread={:?} error=\"{error}\"", thread.name);
                }
            }
        }
        // What was set here has not wandered.
        state.threads.clear();
        state.threads_seen = None;
    }

    /// The masks of a policy: of the calling thread first, and of the application's others by age.
    fn pinned<'a>(&self, pin: &Pin, state: &State, arrivals: &[Arrival<'a>]) -> Vec<(&'a Thread, Cpus)> {
        let ranks = &self.settings.neighbours;
        let given = &state.crew.given.cpus;
        let position = ranks.iter().position(|rank| *rank == self.settings.rank).unwrap_or(0);
        let share = pinning::share(Machine::here(), given, position, ranks.len());
        let is_own = |arrival: &&Arrival<'_>| match arrival.place.role {
            Role::Main => true,
            Role::Other => !self.early.contains(&arrival.thread.id),
            Role::Bivouac => false,
        };
        let main = |arrival: &&Arrival<'_>| u32::from(arrival.place.role != Role::Main);
        let mut own: Vec<&Arrival<'a>> = arrivals.iter().filter(is_own).collect();
        own.sort_by_key(main);
        // Those that were served before have the first cores.
        let before = state.crew.placed;
        let masks = pinning::masks(pin, Machine::here(), given, &share, before + own.len());
        own.into_iter().zip(masks.into_iter().skip(before)).map(|(arrival, cpus)| (arrival.thread, cpus)).collect()
    }

    /// Has the background something to do?
    pub fn has_work(&self) -> bool {
        if !Machine::is_read() {
            return !self.is_reading.load(Relaxed);
        }
        let state = self.lock();
        let every = self.settings.config.check_every;
        state.is_in_the_way
            || state.maps.values().any(|mapped| mapped.is_wished)
            || (!every.is_zero() && state.checked.elapsed() >= every)
    }

    /// Does one thing of these, in this order: reads the machine, if that has not been done (some tens of milliseconds); sends Bivouac's
    /// threads out of the way, if threads have been moved (for that it reads `/proc` of the other ranks of the node); makes one whole map;
    /// looks whether something has wandered.
    ///
    /// # Blocking
    /// For about 40 ms for each GiB of a region in small pages.
    pub fn work(&self, goes_on: &mut dyn FnMut() -> bool) {
        if !Machine::is_read() {
            // One is enough: the others would wait for it.
            if !self.is_reading.swap(true, Relaxed) {
                Machine::here();
            }
            return;
        }
        let wished = {
            let mut state = self.lock();
            if std::mem::take(&mut state.is_in_the_way) {
                drop(state);
                settle_own_threads();
                return;
            }
            let wished = state.maps.iter_mut().find(|(_, mapped)| mapped.is_wished);
            wished.map(|(key, mapped)| {
                mapped.is_wished = false;
                *key
            })
        };
        match wished {
            Some(key) => {
                let map = whole_map(key, goes_on);
                if let Some(mapped) = self.lock().maps.get_mut(&key) {
                    match map {
                        Ok(Some(map)) => *mapped = Mapped { used: mapped.used, ..Mapped::whole(map, key.0) },
                        // Something more urgent came.
                        Ok(None) => mapped.is_wished = true,
                        Err(Refused) => {}
                    }
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
            let Ok(Some(map)) = whole_map(key, goes_on) else { break };
            if let Some(mapped) = self.lock().maps.get_mut(&key) {
                wandered += mapped.map.compare(&map).wrong;
                *mapped = Mapped { used: mapped.used, ..Mapped::whole(map, key.0) };
            }
        }
        let mut state = self.lock();
        let before = std::mem::take(&mut state.threads);
        state.threads_seen = None;
        state.see_threads();
        let is_changed = |place: &&ThreadPlace| {
            before.iter().find(|other| is_same(other, place)).is_some_and(|other| other.cpus != place.cpus)
        };
        let of_application = state.threads.iter().filter(|place| place.role != Role::Bivouac);
        let changed = of_application.filter(is_changed).count() as u64;
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
        let live = threads::list();
        self.crew.widen(&live);
        self.threads = threads::places(&live, self.crew.main);
        self.threads_seen = Some(Instant::now());
        self.thread_count = count;
    }

    /// Where a region is. As far as the budget goes a small one is asked for page by page; of others the background makes whole maps, which
    /// are used as long as they are right where a few pages are asked for. The calling thread is about to read the region.
    fn pages_of(
        &mut self,
        address: usize,
        bytes: usize,
        budget: &mut u64,
        is_interleaved: bool,
    ) -> Option<RegionPlace> {
        let refused = |error: &std::io::Error| numa::told("move_pages", error);
        let mut query = |addresses: &[usize]| numa::query_before_reading(addresses);
        let pages = (bytes as u64).div_ceil(PAGE_BYTES) + 1;
        if pages <= EXACT_MAX.min(*budget) {
            *budget -= pages;
            let map = scan::whole(address, bytes as u64, &mut || true, &mut query).inspect_err(refused).ok()??;
            return Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: true });
        }
        let key = (address, bytes);
        let last = self.records;
        let known = self.maps.get(&key).filter(|mapped| mapped.is_whole);
        if let Some(dealt) = known.filter(|mapped| mapped.is_dealt(is_interleaved)) {
            // Nothing that a few pages say is worth much. A policy does that, and the record has the policy.
            let (is_old, age) = (dealt.taken.elapsed() >= MAP_AGE, dealt.taken.elapsed());
            let unknown = Run { pages: dealt.map.pages(), node: None };
            let pages = PageMap::from_runs(address as u64, [unknown]);
            self.maps.entry(key).and_modify(|mapped| (mapped.used, mapped.is_wished) = (last, is_old));
            return Some(RegionPlace::Host { pages, age_ms: age.as_millis() as u64, is_whole: true });
        }
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
        let map = scan::bounded(address, bytes as u64, SAMPLES_MAX, &mut query).inspect_err(refused).ok()?;
        // Single pages wander; a region that was made anew is wrong all over.
        if known.is_some() && wrong * 10 <= asked {
            let mapped = self.maps.get_mut(&key)?;
            mapped.used = last;
            mapped.is_wished |= wrong > 0 || mapped.taken.elapsed() >= MAP_AGE;
            let age_ms = mapped.taken.elapsed().as_millis() as u64;
            return Some(RegionPlace::Host { pages: mapped.coarse.clone(), age_ms, is_whole: true });
        }
        if self.maps.len() < MAPS_MAX {
            let mapped = Mapped { is_whole: false, is_wished: true, used: last, ..Mapped::whole(map.clone(), address) };
            self.maps.insert(key, mapped);
        }
        Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: false })
    }
}

/// The system does not say where pages are.
struct Refused;

/// The map of all pages; `None`: it was interrupted.
fn whole_map((address, bytes): (usize, usize), goes_on: &mut dyn FnMut() -> bool) -> Result<Option<PageMap>, Refused> {
    let map = scan::whole(address, bytes as u64, goes_on, &mut |addresses| numa::query(addresses));
    map.inspect_err(|error| numa::told("move_pages", error)).map_err(|_| Refused)
}

/// Policies of the system by number: a policy that binds is not restored, because memory that runs out on few nodes has the
/// system end processes.
const PREFERRED: u32 = 1;
const BIND: u32 = 2;
const INTERLEAVE: u32 = 3;

/// Gives the calling thread the policy of a record, if it has none of its own.
fn restore_policy(policy: &Policy, mapping: &Mapping) {
    if ![PREFERRED, INTERLEAVE].contains(&policy.mode) || numa::policy().is_ok_and(|now| now.mode != 0) {
        return;
    }
    let nodes: BTreeSet<u32> = policy
        .nodes
        .iter()
        .flat_map(|node| match mapping.node_for(*node) {
            Target::Node(node) => vec![node],
            Target::Spread(nodes) => nodes,
        })
        .collect();
    let policy = Policy { mode: policy.mode, nodes: nodes.into_iter().collect() };
    if let Err(error) = numa::set_policy(&policy) {
        numa::told("set_mempolicy", &error);
    }
}

/// The machine without the memory that this thread may not use: it counts as nodes that have none.
fn with_allowed_memory(machine: &Machine) -> Machine {
    let mut machine = machine.clone();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let confined = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")).and_then(parse_cpus);
    let bound = numa::policy().ok().filter(|policy| policy.mode == BIND);
    for node in &mut machine.nodes {
        let is_confined = confined.as_ref().is_some_and(|nodes| !nodes.contains(&(node.number as usize)));
        if is_confined || bound.as_ref().is_some_and(|policy| !policy.nodes.contains(&node.number)) {
            node.bytes = 0;
        }
    }
    machine
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
    fn new(keeper: &Arc<Keeper>, record: &Record, mapping: Mapping, cpus: BTreeMap<u32, Cpus>) -> Placement {
        let map = |(name, place): &(String, RegionPlace)| match place {
            RegionPlace::Host { pages, .. } => Some((name.clone(), known_all_over(pages))),
            RegionPlace::Device(_) => None,
        };
        let maps = record.regions.iter().filter_map(map).collect();
        Placement { keeper: keeper.clone(), maps, mapping, cpus }
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

    /// Of a rank that is alone on its node.
    fn keeper(config: AffinityConfig) -> Arc<Keeper> {
        Machine::here();
        let settings = Settings { mode: AffinityMode::Full, config, rank: 0, neighbours: vec![0] };
        Arc::new(Keeper::new(settings))
    }

    fn quiet() -> AffinityConfig {
        AffinityConfig { check_every: Duration::ZERO, ..AffinityConfig::default() }
    }

    #[test]
    fn the_background_alone_sends_bivouacs_threads_out_of_the_way_and_once_more_after_a_checkpoint() {
        let keeper = keeper(quiet());
        assert!(!keeper.has_work());
        keeper.pin(Pin::Launcher);
        for _ in 0..2 {
            assert!(keeper.has_work());
            keeper.work(&mut || true);
            assert!(!keeper.has_work());
            keeper.record([]);
        }
        assert!(!keeper.has_work(), "the second checkpoint changes nothing");
    }

    /// Two CPUs of this thread, if it has as many.
    fn two_cpus() -> Option<[Cpus; 2]> {
        let own = cpus::of_this_thread();
        let mut own = own.into_iter().map(|cpu| Cpus::from([cpu]));
        let two = own.next().zip(own.next()).map(|(one, other)| [one, other]);
        if two.is_none() {
            eprintln!("SKIPPED: one CPU only");
        }
        two
    }

    #[test]
    fn what_a_restart_brings_back_has_not_wandered_and_what_goes_then_has() {
        let Some([one, other]) = two_cpus() else { return };
        let free = cpus::of_this_thread();
        let saving = keeper(quiet());
        cpus::run_on(&one);
        let record = saving.record([]);
        cpus::run_on(&free);
        let restoring = keeper(quiet());
        restoring.check(&mut || true);
        restoring.restore(&record);
        assert_eq!((cpus::of_this_thread(), restoring.report().losses), (one, Vec::new()));
        restoring.check(&mut || true);
        assert_eq!((restoring.report().checks, restoring.wandered()), (2, (0, 0)));
        cpus::run_on(&other);
        restoring.check(&mut || true);
        assert_eq!(restoring.wandered(), (1, 0));
    }

    /// Threads that do nothing until they are dropped, of which each first binds itself if it has a mask.
    struct Pool {
        end: Vec<std::sync::mpsc::Sender<()>>,
        threads: Vec<std::thread::JoinHandle<()>>,
        name: &'static str,
    }

    impl Pool {
        fn start(name: &'static str, masks: &[Option<&Cpus>]) -> Pool {
            let mut pool = Pool { end: Vec::new(), threads: Vec::new(), name };
            for mask in masks {
                let (end, wait) = std::sync::mpsc::channel();
                let (say, hear) = std::sync::mpsc::channel();
                let mask = mask.cloned();
                let body = move || {
                    mask.iter().for_each(cpus::run_on);
                    say.send(()).expect("it is heard");
                    wait.recv().expect_err("nothing is sent");
                };
                pool.threads.push(std::thread::Builder::new().name(name.into()).spawn(body).expect("a thread"));
                // One after the other, so that their order is known.
                hear.recv().expect("it lives");
                pool.end.push(end);
            }
            pool
        }

        fn ids(&self) -> Vec<i32> {
            threads::list().iter().filter(|thread| thread.name == self.name).map(|thread| thread.id).collect()
        }

        fn masks(&self) -> Vec<Cpus> {
            threads::list().into_iter().filter(|thread| thread.name == self.name).map(|thread| thread.cpus).collect()
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            self.end.clear();
            self.threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
            // A thread that has been joined may be listed for a moment.
            let deadline = Instant::now() + Duration::from_secs(10);
            while !self.ids().is_empty() {
                assert!(Instant::now() < deadline, "they have ended");
            }
        }
    }

    /// A keeper that has just restored a job whose main thread was on `one` and whose pool was on these CPUs.
    fn restored(one: &Cpus, pool: &[Option<&Cpus>]) -> Arc<Keeper> {
        let free = cpus::of_this_thread();
        let saving = keeper(quiet());
        let alive = Pool::start("pool", pool);
        cpus::run_on(one);
        let record = saving.record([]);
        cpus::run_on(&free);
        drop(alive);
        let keeper = keeper(quiet());
        keeper.restore(&record);
        keeper
    }

    #[test]
    fn a_pool_that_starts_after_the_restart_gets_its_masks_with_the_next_call_and_more_threads_are_let_out() {
        let Some([one, other]) = two_cpus() else { return };
        let free = cpus::of_this_thread();
        let keeper = restored(&one, &[Some(&other), Some(&one), Some(&other)]);
        let both: Cpus = &one | &other;
        assert_eq!(cpus::of_this_thread(), both, "as many CPUs as the pool had are seen by what starts it");
        let stranger = Pool::start("stranger", &[None]);
        let pool = Pool::start("pool", &[None, None, None, None]);
        assert_eq!(pool.masks(), vec![both; 4]);
        keeper.catch_up();
        assert_eq!(pool.masks(), [&other, &one, &other, &free].map(Clone::clone), "one more than there were");
        assert_eq!((stranger.masks(), cpus::of_this_thread()), (vec![free.clone()], one.clone()));
        // Started now, they inherit the main thread's own CPU.
        let late = Pool::start("late", &[None, Some(&other)]);
        assert_eq!(late.masks(), [one.clone(), other.clone()]);
        keeper.catch_up();
        assert_eq!(late.masks(), [free, other], "a thread that has bound itself stays");
        assert_eq!(keeper.report().threads_failed, 0);
    }

    #[test]
    fn fewer_threads_than_before_have_their_places_and_the_rest_is_wanted_still() {
        let Some([one, other]) = two_cpus() else { return };
        let keeper = restored(&one, &[Some(&other), Some(&one), Some(&other)]);
        let pool = Pool::start("pool", &[None]);
        keeper.catch_up();
        assert_eq!((pool.masks(), cpus::of_this_thread()), (vec![other], one));
        let report = keeper.report();
        assert_eq!((report.threads_wanted, report.threads_failed), (4, 0));
    }

    #[test]
    fn a_pool_that_binds_itself_is_put_where_it_was_once() {
        let Some([one, other]) = two_cpus() else { return };
        let keeper = restored(&one, &[Some(&other), Some(&one)]);
        // As with OMP_PROC_BIND: the runtime has bound its threads before the session is called again, in an order of its own.
        let pool = Pool::start("pool", &[Some(&one), Some(&other)]);
        keeper.catch_up();
        assert_eq!(pool.masks(), [other.clone(), one.clone()]);
        threads::set(pool.ids()[0], &one).expect("it lives");
        let _more = Pool::start("more", &[None]);
        keeper.catch_up();
        assert_eq!(pool.masks(), [one.clone(), one], "what the runtime does afterwards stands");
    }

    #[test]
    fn among_strangers_nothing_is_dealt_and_the_report_says_so() {
        let Some([one, _]) = two_cpus() else { return };
        let free = cpus::of_this_thread();
        let among = |processes, ranks: std::ops::Range<u32>| {
            let settings =
                Settings { mode: AffinityMode::Full, config: quiet(), rank: ranks.start, neighbours: ranks.collect() };
            Arc::new(Keeper { processes, ..Keeper::new(settings) })
        };
        // More processes than ranks; and ranks of which nobody says what they were given together.
        for (processes, ranks) in [(Some(2), 0..1), (None, 0..2)] {
            let keeper = among(processes, ranks.clone());
            for pin in [Pin::Compact, Pin::Scatter] {
                keeper.pin(pin);
                assert_eq!(
                    (cpus::of_this_thread(), keeper.report().losses),
                    (free.clone(), vec![Loss::Strangers.to_string()])
                );
            }
            cpus::run_on(&one);
            let record = keeper.record([]);
            cpus::run_on(&free);
            let other = among(processes, 7..7 + ranks.len() as u32);
            other.restore(&record);
            let report = other.report();
            assert_eq!((cpus::of_this_thread(), report.losses), (free.clone(), vec![Loss::Strangers.to_string()]));
            assert_eq!((report.threads_wanted, report.threads_failed), (0, 0));
            among(processes, ranks).restore(&record);
            assert_eq!(cpus::of_this_thread(), one, "the same place");
            cpus::run_on(&free);
        }
        let alone = among(Some(1), 0..1);
        alone.pin(Pin::Compact);
        assert!(cpus::of_this_thread().is_subset(&free) && alone.report().losses.is_empty());
        cpus::run_on(&free);
    }

    #[test]
    fn pages_in_short_runs_are_left_to_a_policy_that_deals_them_and_put_together_without_one() {
        let dealt = PageMap::from_nodes(0, (0..8192).map(|page| Some(page % 4)));
        let mapped = Mapped::whole(dealt, 0);
        assert!(mapped.is_dealt(true) && !mapped.is_dealt(false));
        assert_eq!(mapped.coarse.counts(), mapped.map.counts());
        assert_eq!(mapped.coarse.runs.len(), 16);
        let piecewise = PageMap::from_nodes(0, (0..8192).map(|page| Some(page / 16 % 4)));
        let mapped = Mapped::whole(piecewise, 0);
        assert!(!mapped.is_dealt(true) && mapped.coarse == mapped.map);
    }

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
