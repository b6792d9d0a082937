//! Keeps track of where the threads and pages of one rank are, and brings them back after a restart.
//!
//! Each session has one keeper. The application's thread asks it for the record of a checkpoint ([`Keeper::record`]) and has
//! it restore one ([`Keeper::restore`]). A background thread lends it time ([`Keeper::work`]) to look at whole regions, and
//! to see what has wandered. None of its failures ever makes a checkpoint or a restart fail: whatever cannot be done is
//! counted, logged and left undone.
#![forbid(unsafe_code)]

mod crew;
mod maps;
mod restoring;
#[cfg(test)]
mod tests;

use super::cpus::Cpus;
use super::given;
use super::machine::Machine;
use super::mapping::Loss;
use super::pinning::{self, Pin};
use super::placing::PlaceReport;
use super::record::{Record, RegionPlace, Role, ThreadPlace};
use super::threads::{self, Thread};
use super::{Node, numa};
use crate::base::log;
use crate::base::sync::{Guard, Lock};
use crate::config::{AffinityConfig, AffinityMode};
use crew::{Arrival, Crew, Recorded, Wish, is_same};
use maps::{EXACT_BUDGET, MAP_UNUSED_MAX, Mapped, Refused, whole_map};
use restoring::{INTERLEAVE, with_allowed_memory};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub use restoring::Placement;

/// How old the list of threads in a record may be, unless their number has changed.
const THREADS_AGE: Duration = Duration::from_secs(10);
/// How old the whole map of a region gets before it is made again, while checkpoints are taken.
const MAP_AGE: Duration = Duration::from_secs(60);

/// Where a region is, as the code that saves it knows.
#[derive(Clone, Copy, Debug)]
pub enum Whereabouts<'a> {
    /// In host memory: address and length in bytes. It is only asked about, never read.
    Host(usize, usize),
    /// In the memory of the device with this PCI address.
    Device(&'a str),
}

/// What has been seen and done since the session was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffinityReport {
    /// Threads that a restart was asked to put on their CPUs.
    pub threads_wanted: u64,
    /// Threads that are on these CPUs.
    pub threads_set: u64,
    /// Threads that were left alone: they were not pinned, or nothing says where they could go.
    pub threads_left: u64,
    /// Threads that could not be put on these CPUs.
    pub threads_failed: u64,
    /// What happened to the pages of the regions that were loaded.
    pub pages: PlaceReport,
    /// What the machine of the restart lacks, in words.
    pub losses: Vec<String>,
    /// The number of looks for threads and pages that have wandered.
    pub checks: u64,
    /// Threads whose mask was found to have changed, over all looks.
    pub threads_wandered: u64,
    /// Pages that were found to have moved to another node, over all looks.
    pub pages_wandered: u64,
}

/// The account of one rank.
pub struct Keeper {
    settings: Settings,
    /// The threads that existed when the session was opened.
    early: BTreeSet<i32>,
    /// The number of processes that the launcher started on this node, if the launcher says so.
    processes: Option<usize>,
    /// A background thread is reading the machine.
    is_reading: AtomicBool,
    state: Lock<State>,
}

/// The settings of a keeper.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is recorded and restored.
    pub mode: AffinityMode,
    /// Where threads go after a restart, and how often they are looked at.
    pub config: AffinityConfig,
    /// This rank.
    pub rank: u32,
    /// The ranks of the group on this node, in ascending order and including this one.
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
    /// The last record without maps of pages, and its bytes. Usually, nothing has changed when the next record is wanted.
    encoded: Option<(Record, Vec<u8>)>,
    /// Threads have been moved, and other ranks may still be moving theirs. The next checkpoint shows that these ranks have begun to
    /// compute; the keeper then looks again for CPUs where Bivouac's threads are out of the way.
    is_unsettled: bool,
    /// The background thread is to move Bivouac's threads out of the way.
    is_in_the_way: bool,
    checked: Instant,
    report: AffinityReport,
}

impl Keeper {
    /// A keeper whose account begins now.
    pub fn new(settings: Settings) -> Keeper {
        let live = threads::list();
        let given = given::given(live.iter().map(|thread| thread.cpus.clone()));
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
            encoded: None,
            is_unsettled: false,
            is_in_the_way: false,
            checked: Instant::now(),
            report: AffinityReport::default(),
        };
        let (processes, is_reading) = (given::processes_here(), AtomicBool::new(false));
        Keeper { settings, early, processes, is_reading, state: Lock::new(state) }
    }

    /// Sets what is restored from now on. What is recorded stays as configured, because all ranks record alike. If `mode` does not include
    /// threads, nothing more is done about threads that start later.
    pub fn set_mode(&self, mode: AffinityMode) {
        let mut state = self.lock();
        state.mode = mode;
        if !mode.has_threads() {
            state.crew.wish(Wish::Nothing);
        }
    }

    /// Notes that this rank uses the device with this PCI address.
    pub fn use_device(&self, address: &str) {
        if !address.is_empty() {
            self.lock().gpus.insert(address.to_owned());
        }
    }

    /// The node with memory that is nearest to the GPU of this rank: bytes of regions travel between the two. `None`: there is no
    /// GPU, or its place is not known yet.
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

    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// May there be processes that have the same CPUs as this one but do not share them by the same rules? This is the case if the node
    /// has more processes of the job than ranks of the group, or if nobody says what the job was given, because the other ranks may
    /// then believe something else.
    fn has_strangers(&self, state: &State) -> bool {
        let ranks = self.settings.neighbours.len().max(1);
        self.processes.is_some_and(|processes| processes > ranks) || (ranks > 1 && !state.crew.given.is_jobs)
    }

    /// The record of a checkpoint with these regions, encoded.
    ///
    /// # Blocking
    /// For about a millisecond: threads are listed only every ten seconds unless their number changes, and the system
    /// is asked about few pages of large regions. Whole maps are made in the background.
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
        let is_encoded = |(last, _): &&(Record, Vec<u8>)| {
            (&last.given, &last.threads) == (&state.crew.given.cpus, &state.threads)
                && (&last.policy, &last.regions) == (&policy, &places)
        };
        if let Some((_, bytes)) = state.encoded.as_ref().filter(is_encoded) {
            return bytes.clone();
        }
        let has_maps = places.iter().any(|(_, place)| matches!(place, RegionPlace::Host { .. }));
        let mut record = Record {
            machine: Machine::here().clone(),
            given: state.crew.given.cpus.clone(),
            neighbours: self.settings.neighbours.clone(),
            threads: state.threads.clone(),
            policy,
            regions: places,
        };
        drop(state);
        let bytes = record.encode().unwrap_or_else(|error| {
            // Many gigabytes of pages are in short runs on changing nodes.
            let count = record.keep_what_fits();
            log::debug!("event=maps-left-out rank={} maps={count} error=\"{error}\"", self.settings.rank);
            record.encode().unwrap_or_default()
        });
        if !has_maps {
            self.lock().encoded = Some((record, bytes.clone()));
        }
        bytes
    }
}

impl Keeper {
    /// Says what could not be kept, in the log and in the report.
    fn lose(&self, state: &mut State, losses: &[Loss]) {
        for loss in losses {
            log::warn!("event=affinity-lost rank={} loss=\"{loss}\"", self.settings.rank);
        }
        state.report.losses.extend(losses.iter().map(ToString::to_string));
    }

    /// Notes that the checkpoint that is restored was taken by `then` ranks, whereas there are `now` ranks. Its records are those of other
    /// ranks, so threads and memory stay where they are, and the report says so. All ranks find the same, so only rank 0 logs it, once for
    /// all attempts of a restart.
    pub fn stay(&self, then: u32, now: u32) {
        let mut state = self.lock();
        let loss = Loss::Resized { then, now };
        let texts = vec![loss.to_string()];
        if !state.mode.has_threads() && !state.mode.has_pages() || state.report.losses == texts {
            return;
        }
        if self.settings.rank == 0 {
            log::info!("event=affinity-lost loss=\"{loss}\"");
        }
        state.report.losses = texts;
        let AffinityReport { threads_wanted, threads_set, threads_left, threads_failed, .. } = &mut state.report;
        (*threads_wanted, *threads_set, *threads_left, *threads_failed) = (0, 0, 0, 0);
    }

    /// Gives threads that have started since a restart the masks of their predecessors.
    ///
    /// # Blocking
    /// For next to no time while no thread has started or ended.
    pub fn catch_up(&self) {
        let mut state = self.lock();
        state.crew.main = threads::own_id();
        if state.crew.may_have_arrivals(threads::count()) {
            self.serve_threads(&mut state);
        }
    }

    /// Puts the threads of this rank where a policy says; threads that start later are placed at the next call to the session. The
    /// ranks of the node share the CPUs that the job was given. If other processes may use these CPUs as well, the threads stay where
    /// they are, and the report says so. Of the threads that existed when the session was opened, only the calling one gets its own
    /// core, because the others may be MPI's.
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

    /// Sets the masks that are wished for the threads that have not been served.
    fn serve_threads(&self, state: &mut State) {
        let live = threads::list();
        state.crew.widen(&live);
        if state.crew.take_widened() {
            state.crew.wish = match std::mem::replace(&mut state.crew.wish, Wish::Nothing) {
                Wish::Recorded(last) => Wish::Recorded(Box::new(self.mapped_again(state, *last))),
                other => other,
            };
        }
        let arrivals = state.crew.arrivals(&live);
        // The threads, their masks, and whether each counts, which it does if the record or the policy has a place for it. The main thread
        // counts when it arrives, and not again.
        let masks: Vec<(&Thread, Cpus, bool)> = match &state.crew.wish {
            Wish::Nothing => return,
            Wish::Recorded(wanted) => {
                let is_other =
                    |arrival: &&Arrival<'_>| arrival.place.role == Role::Other && wanted.is_pinned(&arrival.place);
                // When the first of the other threads arrives, the main thread goes to its own place.
                let is_time = !state.crew.is_main_placed && arrivals.iter().any(|arrival| is_other(&arrival));
                let is_main = |arrival: &&Arrival<'_>| arrival.place.role == Role::Main;
                let rest = arrivals.iter().filter(|arrival| !is_time || !is_main(arrival));
                let mask =
                    |arrival: &Arrival<'_>| wanted.mask(arrival).map(|cpus| (cpus, wanted.is_pinned(&arrival.place)));
                let mut masks: Vec<(&Thread, Cpus, bool)> = rest
                    .filter_map(|arrival| mask(arrival).map(|(cpus, counts)| (arrival.thread, cpus, counts)))
                    .collect();
                if is_time {
                    state.crew.is_main_placed = true;
                    let main = live.iter().find(|thread| thread.id == state.crew.main);
                    let counts = arrivals.iter().any(|arrival| is_main(&arrival));
                    masks.extend(main.and_then(|main| Some((main, wanted.main()?.clone(), counts))));
                }
                masks
            }
            Wish::Pinned(pin) => {
                let masks = self.pinned(pin, state, &arrivals);
                state.crew.placed += masks.len();
                masks.into_iter().map(|(thread, cpus)| (thread, cpus, true)).collect()
            }
        };
        for (thread, cpus, counts) in masks {
            match if cpus == thread.cpus { Ok(()) } else { threads::set(thread.id, &cpus) } {
                Ok(()) => state.report.threads_set += u64::from(counts),
                Err(error) => {
                    state.report.threads_failed += 1;
                    let rank = self.settings.rank;
                    log::warn!("event=thread-not-set rank={rank} thread={:?} error=\"{error}\"", thread.name);
                }
            }
        }
        // Threads that were moved here have not wandered.
        state.threads.clear();
        state.threads_seen = None;
    }

    /// What a record wants, now that it is known that the job was given more CPUs, with which the record may fit better. If the masks stay
    /// the same, threads that were served stay as they are.
    fn mapped_again(&self, state: &mut State, last: Recorded) -> Recorded {
        let machine = with_allowed_memory(Machine::here());
        let mapping = self.map(state, &machine, &last.record);
        let wanted = Recorded { before: last.before, ..self.wanted(state, last.record, &mapping) };
        state.report.losses.clear();
        self.lose(state, mapping.losses());
        let given = state.crew.given.cpus.clone();
        self.lose(state, wanted.rebound(&given).as_slice());
        if wanted.pinned != last.pinned {
            state.report.threads_wanted = wanted.pinned.len() as u64;
            state.crew.begin();
            (state.report.threads_set, state.report.threads_failed) = (0, 0);
        }
        wanted
    }

    /// The masks of a policy: first that of the calling thread, then those of the application's other threads by age.
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
        // Threads that were served before have the first cores.
        let before = state.crew.placed;
        let masks = pinning::masks(pin, Machine::here(), given, &share, before + own.len());
        own.into_iter().zip(masks.into_iter().skip(before)).map(|(arrival, cpus)| (arrival.thread, cpus)).collect()
    }

    /// Does the background thread have something to do?
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

    /// Does the first of these things that is due: reads the machine, if this has not been done (some tens of milliseconds); moves
    /// Bivouac's threads out of the way, if threads have been moved (for this, it reads `/proc` of the other ranks of the node); makes one
    /// whole map; looks whether something has wandered.
    ///
    /// # Blocking
    /// For about 40 ms per GiB of a region in small pages.
    pub fn work(&self, goes_on: &mut dyn FnMut() -> bool) {
        if !Machine::is_read() {
            // One thread is enough: the others would only wait for it.
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
                        Ok(Some(map)) => *mapped = mapped.remade(map, key.0),
                        // Something more urgent has come up.
                        Ok(None) => mapped.is_wished = true,
                        Err(Refused) => {}
                    }
                }
            }
            None => self.check(goes_on),
        }
    }

    /// Looks whether threads and pages are where they were last seen, and notes where they are now for the next look.
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
                *mapped = mapped.remade(map, key.0);
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
    /// Lists the threads, unless this was done a moment ago and no thread has started or ended since.
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
}

/// Moves Bivouac's writers out of the way of threads that have just been moved.
fn settle_own_threads() {
    let cpus = given::for_background("");
    let writers = threads::list().into_iter().filter(|thread| {
        ["bvk-write", "bvk-comm"].iter().any(|name| thread.name.starts_with(name)) && thread.cpus != cpus
    });
    for thread in writers {
        if let Err(error) = threads::set(thread.id, &cpus) {
            log::debug!("event=thread-not-set thread={:?} error=\"{error}\"", thread.name);
        }
    }
}
