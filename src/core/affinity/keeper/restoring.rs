//! What a restart does: the record of a checkpoint becomes wishes for threads, and, before regions are loaded, NUMA nodes for pages.
#![forbid(unsafe_code)]

use super::super::cpus::{self, Cpus};
use super::super::machine::Machine;
use super::super::mapping::{Loss, Mapping, Now, Target};
use super::super::pages::{PageMap, Run};
use super::super::placing::{self, Wanted};
use super::super::record::{Policy, Record, RegionPlace, Role, ThreadPlace};
use super::super::{numa, threads};
use super::crew::{Recorded, Wish};
use super::{Keeper, State};
use crate::base::log;
use crate::base::units::parse_cpus;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Keeper {
    /// Brings threads back to where a record says they were, and says where the pages of its regions belong. `None`: the record is
    /// useless, or nothing is to be restored.
    ///
    /// # Blocking
    /// For a few system calls per thread.
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
        // A region that is loaded now may be placed elsewhere, which does not mean that it has wandered.
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
            let mut wanted = self.wanted(&state, record, &mapping);
            if let Wish::Recorded(last) = &state.crew.wish
                && (Some(&wanted.before) == last.main() || wanted.before == last.all())
            {
                // The previous attempt has set this mask.
                wanted.before = last.before.clone();
                if wanted.main().is_none()
                    && let Err(error) = threads::set(state.crew.main, &wanted.before)
                {
                    log::warn!("event=thread-not-set rank={rank} error=\"{error}\"");
                }
            }
            self.lose(&mut state, wanted.rebound(&given).as_slice());
            state.report.threads_wanted = wanted.pinned.len() as u64;
            state.report.threads_left = wanted.free.len() as u64;
            (state.report.threads_set, state.report.threads_failed) = (0, 0);
            // Threads that a policy has placed are not released for a record whose threads were nowhere in particular.
            if !wanted.pinned.is_empty() || !matches!(state.crew.wish, Wish::Pinned(_)) {
                state.crew.wish(Wish::Recorded(Box::new(wanted)));
                self.serve_threads(&mut state);
            }
            (state.is_unsettled, state.is_in_the_way) = (true, true);
        }
        placement
    }

    pub(super) fn map(&self, state: &State, machine: &Machine, record: &Record) -> Mapping {
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

    /// The masks of a record's threads on this machine. If nobody says what the job was given, and it seems to be less than the threads
    /// had, the threads are left alone until more is known: the main thread may have been bound before the others were started.
    pub(super) fn wanted(&self, state: &State, record: Record, mapping: &Mapping) -> Recorded {
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
}

/// Policies of the system by number. A policy that binds is not restored, because the system ends processes when the
/// memory of a few nodes runs out.
const PREFERRED: u32 = 1;
const BIND: u32 = 2;
pub(super) const INTERLEAVE: u32 = 3;

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

/// The machine without the memory that this thread may not use: nodes with such memory count as nodes without memory.
pub(super) fn with_allowed_memory(machine: &Machine) -> Machine {
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

/// The map with unknown pages placed on the node of their neighbours: the pages before them or, at the start, the pages after them. The
/// load gives them memory in any case.
pub(super) fn known_all_over(map: &PageMap) -> PageMap {
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

    /// Gives the pages of a region memory on the nodes on which they were, before the bytes of the region are loaded. The content
    /// of its memory may be lost.
    ///
    /// # Blocking
    /// For a query of all its pages, and for giving them memory or moving them.
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
