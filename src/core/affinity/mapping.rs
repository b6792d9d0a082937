//! Maps where things were to where they belong now: a pure function of a [`Record`] and of this rank's resources, [`Now`].
//!
//! The rules, in their order:
//! 1. Nothing is placed outside of what the job was given now. Within that, a list of CPUs in the configuration takes
//!    precedence over all that follows.
//! 2. On the same machine with the same numbers, every CPU and node is mapped to itself.
//! 3. On the same machine with other numbers, CPUs and nodes are mapped by place in the logical order.
//! 4. Otherwise, neighbourhoods are kept: CPUs that shared a node go to one node with enough CPUs for all of them; within it, those that
//!    shared a cache go to one cache, and within that, those of one core go to one core (`fit`). Pages follow the CPUs of their old node.
//!    Pages of a node on which this rank had no thread go to the node of the same number if that has memory, else to the node at the same
//!    place in the logical order; otherwise, they are spread over all nodes with memory.
//! 5. If the ranks of the node are not those of the record, each takes its own share of what the job was given, in logical order, and
//!    rule 4 applies within this share.
//!
//! 6. If processes other than the ranks of the group may take the same CPUs, nothing is shared out: threads return to where the record says
//!    by rule 2 or 3 if the ranks are the same as before, and stay where they are otherwise.
//!
//! Ranks do not collide, although they decide without communicating. If the ranks are the same as before, rules 2 to 4 are applied to
//! all CPUs that the job had on the node rather than to those of one rank: all ranks arrive at the same one-to-one map, and each uses
//! its part. If there is no such map (because there are fewer CPUs, or no node has room for all CPUs of an old one), rule 5 applies.
//!
//! Anything that could not be kept is reported as a [`Loss`].
#![forbid(unsafe_code)]

mod fit;
mod loss;

pub use loss::Loss;

use super::cpus::Cpus;
use super::machine::{Likeness, Machine, PciKind};
use super::pages::{HUGE_BYTES, PAGE_BYTES, PageMap, Run};
use super::record::{Record, RegionPlace, Role, ThreadPlace};
use fit::Fit;
use std::collections::{BTreeMap, BTreeSet};

/// What a rank has now.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// The machine that it runs on. Nodes whose memory this run may not use are without memory here.
    pub machine: &'a Machine,
    /// The machine that it runs on, with all of its memory. It is compared with the machine of the record.
    pub whole: &'a Machine,
    /// The CPUs that the job was given on that machine.
    pub allowed: &'a Cpus,
    /// The ranks of the group that run there, ascending.
    pub neighbours: &'a [u32],
    /// Processes other than these ranks may have been given the same CPUs.
    pub has_strangers: bool,
    /// Its own rank in the group.
    pub rank: u32,
    /// PCI addresses of the GPUs that it uses; empty if it uses none, or none is known yet.
    pub gpus: &'a [String],
    /// CPUs that the user names for the restart, for all ranks of a node: each takes its share, in the order of the list, and its
    /// threads' CPUs go there one by one in logical order. CPUs that are not allowed are left out.
    pub cpus: Option<&'a [u32]>,
}

/// Where pages of an old node belong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// On this node.
    Node(u32),
    /// On these nodes, in turn; if there are none, wherever the system puts them.
    Spread(Vec<u32>),
}

/// Where threads and pages of a record belong now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The new CPU for each CPU that a pinned thread could run on.
    images: BTreeMap<u32, u32>,
    given: Cpus,
    /// The rank's share of the CPUs that the user named.
    named: Option<Cpus>,
    targets: BTreeMap<u32, Target>,
    /// For nodes that the record does not know.
    nodes_with_memory: Vec<u32>,
    losses: Vec<Loss>,
}

impl Mapping {
    /// Maps what the record says to what there is now. Any record is accepted: what makes no sense in it is ignored.
    pub fn new(record: &Record, now: &Now<'_>) -> Mapping {
        let decision = Decision::new(record, now);
        let targets = decision.targets();
        let losses = loss::of(&decision, &targets);
        let named = now.cpus.map(|_| decision.share.iter().map(|at| now.machine.cpus[*at].number as usize).collect());
        Mapping {
            images: decision.images_by_number(),
            given: record.given.clone(),
            named: named.filter(|cpus: &Cpus| !cpus.is_empty()),
            targets,
            nodes_with_memory: now.machine.nodes_with_memory(),
            losses,
        }
    }

    /// The CPUs that a thread of the record may run on now, never an empty set; `None` if it is to be left alone. This is
    /// the case for threads of Bivouac, which are placed anew, for threads that were not pinned (unless the user names
    /// CPUs), and if nothing is known.
    pub fn cpus_for(&self, thread: &ThreadPlace) -> Option<Cpus> {
        if thread.role == Role::Bivouac {
            return None;
        }
        if thread.cpus == self.given {
            return self.named.clone();
        }
        let numbers = thread.cpus.iter().filter_map(|cpu| u32::try_from(*cpu).ok());
        let cpus: Cpus = numbers.filter_map(|cpu| self.images.get(&cpu)).map(|cpu| *cpu as usize).collect();
        Some(cpus).filter(|cpus| !cpus.is_empty())
    }

    /// Where pages of an old node belong.
    pub fn node_for(&self, node: u32) -> Target {
        match self.targets.get(&node) {
            Some(target) => target.clone(),
            None if self.nodes_with_memory.contains(&node) => Target::Node(node),
            None => Target::Spread(self.nodes_with_memory.clone()),
        }
    }

    /// The wanted nodes of a region of `bytes` bytes, now at `address`, for which the record has this map. Pages that are spread
    /// change nodes with each 2 MiB of the address, so that huge pages stay possible.
    pub fn place(&self, map: &PageMap, bytes: u64, address: u64) -> PageMap {
        let moved = map.moved(bytes, address);
        let (per_block, mut page) = (HUGE_BYTES / PAGE_BYTES, address / PAGE_BYTES);
        let mut runs = Vec::with_capacity(moved.runs.len());
        for run in &moved.runs {
            let end = page.saturating_add(run.pages);
            match run.node.map(|node| self.node_for(node)) {
                None => runs.push(*run),
                Some(Target::Node(node)) => runs.push(Run { pages: run.pages, node: Some(node) }),
                Some(Target::Spread(nodes)) if nodes.len() < 2 => {
                    runs.push(Run { pages: run.pages, node: nodes.first().copied() });
                }
                Some(Target::Spread(nodes)) => {
                    let mut at = page;
                    while at < end {
                        let next = (at / per_block + 1).saturating_mul(per_block).min(end);
                        let node = nodes[(at / per_block % nodes.len() as u64) as usize];
                        runs.push(Run { pages: next - at, node: Some(node) });
                        at = next;
                    }
                }
            }
            page = end;
        }
        PageMap::from_runs(address, runs)
    }

    /// What could not be kept.
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }
}

/// Which rule was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// The user names the CPUs.
    Named,
    /// By number or by place: the machine is the same.
    SamePlace,
    /// One map for all ranks of the node, or for this rank if it is the only one.
    Neighbourhoods,
    /// Each rank within its share.
    Shares,
    /// Threads stay where they are.
    Left,
}

/// All that the mapping is made from. CPUs, old and new, are given by their places in `Machine::cpus`.
struct Decision<'a> {
    record: &'a Record,
    now: &'a Now<'a>,
    likeness: Likeness,
    rule: Rule,
    /// Old CPUs that pinned threads of this rank could run on, in logical order.
    used: Vec<usize>,
    /// New CPUs that this rank may take, in logical order or in the user's order.
    share: Vec<usize>,
    /// Maps old CPUs to new ones; covers `used`, unless `share` is empty because threads are left where they are.
    images: BTreeMap<usize, usize>,
}

impl<'a> Decision<'a> {
    fn new(record: &'a Record, now: &'a Now<'a>) -> Decision<'a> {
        let pinned = record.threads.iter().filter(|thread| thread.role != Role::Bivouac && thread.cpus != record.given);
        let pinned: Cpus = if now.cpus.is_some() {
            // The user's list also applies to threads that were not pinned.
            record
                .threads
                .iter()
                .filter(|thread| thread.role != Role::Bivouac)
                .flat_map(|thread| &thread.cpus)
                .copied()
                .collect()
        } else {
            pinned.flat_map(|thread| &thread.cpus).copied().collect()
        };
        let used = places(&record.machine, &pinned);
        let allowed = places(now.machine, now.allowed);
        let likeness = record.machine.likeness(now.whole);
        let decision =
            Decision { record, now, likeness, rule: Rule::Shares, used, share: allowed, images: BTreeMap::new() };
        decision.by_list().decide()
    }

    /// Restricts it to the user's list, if there is one and any CPU of it is allowed.
    fn by_list(mut self) -> Decision<'a> {
        let Some(list) = self.now.cpus else { return self };
        let allowed: BTreeMap<u32, usize> =
            self.share.iter().map(|at| (self.now.machine.cpus[*at].number, *at)).collect();
        let mut seen = BTreeSet::new();
        let named: Vec<usize> =
            list.iter().filter_map(|cpu| allowed.get(cpu).copied()).filter(|at| seen.insert(*at)).collect();
        if !named.is_empty() {
            self.rule = Rule::Named;
            self.share = named;
        }
        self
    }

    fn decide(mut self) -> Decision<'a> {
        if self.now.has_strangers {
            return self.back_or_left();
        }
        if self.rule == Rule::Named {
            self.share = own_part(&self.share, self.now.neighbours, self.now.rank);
            self.images = in_turn(&self.used, &self.share);
            return self;
        }
        let is_alone = self.now.neighbours.len() < 2;
        if self.record.neighbours == self.now.neighbours || (is_alone && self.record.neighbours.len() < 2) {
            // The CPUs that must have a place, so that all ranks decide alike.
            let all = if is_alone { self.used.clone() } else { places(&self.record.machine, &self.record.given) };
            let knows_all = self.used.iter().all(|at| all.binary_search(at).is_ok());
            let fit = |gpus| Fit::new(&self.record.machine, self.now.machine, gpus);
            if let Some(images) = self.same_place(&all).filter(|_| knows_all) {
                (self.rule, self.images) = (Rule::SamePlace, images);
                return self;
            }
            if is_alone {
                self.rule = Rule::Neighbourhoods;
                self.images = fit(self.own_gpus()).place(&self.used, &self.share);
                return self;
            }
            if knows_all
                && all.len() <= self.share.len()
                && let Some(images) = whole(fit(self.all_gpus()).place(&all, &self.share), self.record, self.now)
            {
                (self.rule, self.images) = (Rule::Neighbourhoods, images);
                return self;
            }
        }
        self.rule = Rule::Shares;
        self.share = own_part(&self.share, self.now.neighbours, self.now.rank);
        self.images = Fit::new(&self.record.machine, self.now.machine, self.own_gpus()).place(&self.used, &self.share);
        self
    }

    /// Puts everything back in its place, or nothing. What the job had counts as a whole, so that all ranks decide alike.
    fn back_or_left(mut self) -> Decision<'a> {
        let all = places(&self.record.machine, &self.record.given);
        let knows_all = self.used.iter().all(|at| all.binary_search(at).is_ok());
        let is_as_before = self.record.neighbours == self.now.neighbours && self.now.cpus.is_none() && knows_all;
        match self.same_place(&all).filter(|_| is_as_before) {
            Some(images) => (self.rule, self.images) = (Rule::SamePlace, images),
            None => (self.rule, self.share) = (Rule::Left, Vec::new()),
        }
        self
    }

    /// Maps every CPU to its own place, if the machines are alike and all of these CPUs are allowed.
    fn same_place(&self, all: &[usize]) -> Option<BTreeMap<usize, usize>> {
        let is_allowed = |at: &usize| self.share.binary_search(at).is_ok();
        let fits = self.likeness != Likeness::Other && all.iter().all(is_allowed);
        fits.then(|| all.iter().map(|at| (*at, *at)).collect())
    }

    /// Nodes of the GPUs that this rank used, and of those that it uses now.
    fn own_gpus(&self) -> Gpus {
        let old = self.record.regions.iter().filter_map(|(_, place)| match place {
            RegionPlace::Device(address) => Some(address),
            RegionPlace::Host { .. } => None,
        });
        Gpus { old: nodes_of(&self.record.machine, old), new: nodes_of(self.now.machine, self.now.gpus.iter()) }
    }

    /// Nodes of all GPUs of both machines.
    fn all_gpus(&self) -> Gpus {
        let all = |machine: &Machine| {
            let gpus = machine.devices.iter().filter(|device| device.kind == PciKind::Gpu);
            gpus.flat_map(|gpu| gpu.nodes.iter().copied()).collect()
        };
        Gpus { old: all(&self.record.machine), new: all(self.now.machine) }
    }

    fn images_by_number(&self) -> BTreeMap<u32, u32> {
        let (old, new) = (&self.record.machine.cpus, &self.now.machine.cpus);
        self.images.iter().map(|(from, to)| (old[*from].number, new[*to].number)).collect()
    }

    /// Where the pages of each node that the record knows or names belong.
    fn targets(&self) -> BTreeMap<u32, Target> {
        let mut nodes: BTreeSet<u32> = self.record.machine.nodes.iter().map(|node| node.number).collect();
        nodes.extend(self.nodes_with_pages());
        let mut followed: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for at in &self.used {
            if let Some(image) = self.images.get(at) {
                let to = self.now.machine.cpus[*image].node;
                let to = self.now.machine.nearest_with_memory(to);
                followed.entry(self.record.machine.cpus[*at].node).or_default().extend(to);
            }
        }
        let is_kept = self.rule == Rule::SamePlace;
        let target = |node: u32| match followed.get(&node).filter(|_| !is_kept) {
            Some(nodes) if nodes.len() == 1 => Target::Node(nodes.iter().copied().sum()),
            Some(nodes) if nodes.len() > 1 => Target::Spread(nodes.iter().copied().collect()),
            _ => self.orphan(node),
        };
        nodes.into_iter().map(|node| (node, target(node))).collect()
    }

    /// Nodes that hold pages of the record.
    fn nodes_with_pages(&self) -> BTreeSet<u32> {
        let maps = self.record.regions.iter().filter_map(|(_, place)| match place {
            RegionPlace::Host { pages, .. } => Some(pages),
            RegionPlace::Device(_) => None,
        });
        maps.flat_map(|map| map.runs.iter().filter_map(|run| run.node)).collect()
    }

    /// Where pages that follow no thread belong.
    fn orphan(&self, node: u32) -> Target {
        let machine = self.now.machine;
        let position = self.record.machine.node_position(node);
        let counterpart = position.and_then(|at| machine.nodes.get(at)).map(|node| node.number);
        let has_memory = |node: &u32| machine.node(*node).is_some_and(|node| node.bytes > 0);
        let choice = if self.likeness == Likeness::Other { Some(node) } else { counterpart };
        let found = choice.filter(has_memory).or_else(|| counterpart.filter(has_memory));
        let near = || counterpart.filter(|_| self.likeness != Likeness::Other);
        match found.or_else(|| near().and_then(|node| machine.nearest_with_memory(node))) {
            Some(node) => Target::Node(node),
            None => Target::Spread(machine.nodes_with_memory()),
        }
    }
}

/// Nodes to which GPUs are attached, by number, then and now.
struct Gpus {
    old: BTreeSet<u32>,
    new: BTreeSet<u32>,
}

fn nodes_of<'a>(machine: &Machine, addresses: impl Iterator<Item = &'a String>) -> BTreeSet<u32> {
    addresses.filter_map(|address| machine.device(address)).flat_map(|gpu| gpu.nodes.iter().copied()).collect()
}

/// Places of the CPUs that the machine has, in logical order.
fn places(machine: &Machine, cpus: &Cpus) -> Vec<usize> {
    let all = machine.cpus.iter().enumerate();
    all.filter(|(_, cpu)| cpus.contains(&(cpu.number as usize))).map(|(at, _)| at).collect()
}

/// The part of a list that belongs to a rank. The parts are as equal as possible, in the order of the ranks. If there are
/// more ranks than CPUs, neighbours share a CPU.
fn own_part(list: &[usize], neighbours: &[u32], rank: u32) -> Vec<usize> {
    let (count, length) = (neighbours.len().max(1), list.len());
    let at = neighbours.iter().position(|other| *other == rank).unwrap_or(0);
    let start = at * length / count;
    let end = ((at + 1) * length / count).max(start + 1).min(length);
    list[start..end].to_vec()
}

/// Maps CPUs one by one; if there are more old CPUs than new ones, in equal parts, with neighbours together.
fn in_turn(used: &[usize], share: &[usize]) -> BTreeMap<usize, usize> {
    let count = used.len().max(share.len());
    let image = |at: usize| if used.len() <= share.len() { at } else { at * share.len() / count };
    used.iter().enumerate().filter_map(|(at, old)| Some((*old, *share.get(image(at))?))).collect()
}

/// The map, if it keeps all CPUs of every old node on one node and gives each a CPU of its own.
fn whole(images: BTreeMap<usize, usize>, record: &Record, now: &Now<'_>) -> Option<BTreeMap<usize, usize>> {
    let (mut nodes, mut taken) = (BTreeMap::new(), BTreeSet::new());
    let is_whole = images.iter().all(|(from, to)| {
        let node = now.machine.cpus[*to].node;
        *nodes.entry(record.machine.cpus[*from].node).or_insert(node) == node && taken.insert(*to)
    });
    is_whole.then_some(images)
}

#[cfg(test)]
mod tests;
