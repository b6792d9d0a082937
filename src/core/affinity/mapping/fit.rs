//! Fits groups of old CPUs into nodes, caches and cores of a new machine, from the large to the small. Pure.
//!
//! At each level, the old CPUs form groups and the new ones form bins: by node first, then by cache, by core, and one by one. The largest
//! groups choose first. A group goes to a bin that has room for all of it. If no bin has, the group is divided into the groups of the next
//! level, which stay as close together as they can. The same is then done inside each bin at the next level. If there are fewer new CPUs
//! than old ones, each new CPU has room for as many as it must take, and groups fill bins singly before they double up.
#![forbid(unsafe_code)]

use super::Gpus;
use crate::affinity::machine::{Cpu, Machine};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Node,
    Cache,
    Core,
    Cpu,
}

impl Level {
    fn finer(self) -> Option<Level> {
        match self {
            Level::Node => Some(Level::Cache),
            Level::Cache => Some(Level::Core),
            Level::Core => Some(Level::Cpu),
            Level::Cpu => None,
        }
    }

    /// What the CPUs of one group have in common.
    fn key(self, cpu: &Cpu) -> u32 {
        match self {
            Level::Node => cpu.node,
            Level::Cache => cpu.cache,
            Level::Core => cpu.core,
            Level::Cpu => cpu.number,
        }
    }
}

/// CPUs with something in common, by place.
struct Group {
    key: u32,
    /// Its place among the groups of its level, in logical order.
    order: usize,
    cpus: Vec<usize>,
}

/// New CPUs with something in common, and what was put there.
struct Bin {
    key: u32,
    cpus: Vec<usize>,
    /// How many old CPUs it has room for.
    room: usize,
    taken: Vec<usize>,
    /// The groups that were put here, as a whole or in part.
    kin: BTreeSet<usize>,
}

impl Bin {
    fn free(&self) -> usize {
        self.room.saturating_sub(self.taken.len())
    }
}

/// Groups in logical order.
fn groups(level: Level, machine: &Machine, cpus: &[usize]) -> Vec<Group> {
    let mut found: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for at in cpus {
        found.entry(level.key(&machine.cpus[*at])).or_default().push(*at);
    }
    let mut groups: Vec<(u32, Vec<usize>)> = found.into_iter().collect();
    groups.sort_by_key(|(_, cpus)| cpus.first().copied());
    groups.into_iter().enumerate().map(|(order, (key, cpus))| Group { key, order, cpus }).collect()
}

pub(super) struct Fit<'a> {
    old: &'a Machine,
    new: &'a Machine,
    gpus: Gpus,
    /// New packages that were taken for CPUs of each old package.
    packages: BTreeMap<u32, BTreeSet<u32>>,
    images: BTreeMap<usize, usize>,
}

impl<'a> Fit<'a> {
    pub fn new(old: &'a Machine, new: &'a Machine, gpus: Gpus) -> Fit<'a> {
        Fit { old, new, gpus, packages: BTreeMap::new(), images: BTreeMap::new() }
    }

    /// The new CPU for each old one; empty without new ones. Both lists are places in logical order.
    pub fn place(mut self, old: &[usize], new: &[usize]) -> BTreeMap<usize, usize> {
        if !new.is_empty() {
            self.fill(Level::Node, old, new);
        }
        self.images
    }

    fn fill(&mut self, level: Level, old: &[usize], new: &[usize]) {
        // This many on each CPU: together, the bins have room for all, so a single CPU always finds a bin.
        let each = old.len().div_ceil(new.len()).max(1);
        let bin = |Group { key, cpus, .. }| Bin {
            key,
            room: cpus.len() * each,
            cpus,
            taken: Vec::new(),
            kin: BTreeSet::new(),
        };
        let mut bins: Vec<Bin> = groups(level, self.new, new).into_iter().map(bin).collect();
        let mut groups = groups(level, self.old, old);
        groups.sort_by_key(|group| std::cmp::Reverse(group.cpus.len()));
        for group in &groups {
            self.put(level, level, group, &group.cpus, &mut bins);
        }
        for bin in &mut bins {
            bin.taken.sort_unstable();
            match level.finer() {
                Some(finer) => self.fill(finer, &bin.taken, &bin.cpus),
                None => self.images.extend(bin.taken.iter().map(|at| (*at, bin.cpus[0]))),
            }
        }
    }

    /// Finds bins for a group of `level`, or for a part of it that was divided at the level `part`.
    fn put(&mut self, level: Level, part: Level, group: &Group, cpus: &[usize], bins: &mut [Bin]) {
        let size = cpus.len();
        let costs: Vec<_> = (0..bins.len()).map(|at| self.cost(level, group, cpus, bins, at)).collect();
        let with_room = (0..bins.len()).filter(|at| bins[*at].free() >= size).min_by_key(|at| costs[*at]);
        let Some(chosen) = with_room else {
            let parts = std::iter::successors(part.finer(), |level| level.finer());
            let mut parts = parts.map(|level| (level, groups(level, self.old, cpus)));
            if let Some((finer, parts)) = parts.find(|(_, parts)| parts.len() > 1) {
                parts.iter().for_each(|one| self.put(level, finer, group, &one.cpus, bins));
            }
            return;
        };
        let bin = &mut bins[chosen];
        bin.taken.extend(cpus);
        bin.kin.insert(group.order);
        let package = |machine: &Machine, at: &usize| machine.cpus[*at].package;
        self.packages.entry(package(self.old, &cpus[0])).or_default().insert(package(self.new, &bin.cpus[0]));
    }

    /// What speaks against a bin: the first difference counts.
    fn cost(&self, level: Level, group: &Group, cpus: &[usize], bins: &[Bin], at: usize) -> impl Ord + Copy + use<> {
        let bin = &bins[at];
        let is_kin = bin.kin.contains(&group.order);
        let package = |machine: &Machine, at: usize| machine.cpus[at].package;
        let known = self.packages.get(&package(self.old, cpus[0]));
        (
            // Parts of one group stay together, and away from others: CPUs that did not share a core or a cache need not share one now.
            !is_kin,
            (bin.taken.len() + cpus.len()).div_ceil(bin.cpus.len()),
            if level == Level::Node { self.gpu_distance(group.key, bin.key) } else { 0 },
            !bin.taken.is_empty() && !is_kin,
            bin.key != group.key,
            known.is_some_and(|known| !known.contains(&package(self.new, bin.cpus[0]))),
            at.abs_diff(group.order),
        )
    }

    /// For CPUs of an old node near the GPUs: how far the new node is from them. For other CPUs: whether the new node is near them.
    fn gpu_distance(&self, old: u32, new: u32) -> u16 {
        if self.gpus.new.is_empty() || self.gpus.old.is_empty() {
            return 0;
        }
        let is_near = self.gpus.new.contains(&new);
        match (self.gpus.old.contains(&old), is_near) {
            (true, true) | (false, false) => 0,
            (false, true) => 1,
            (true, false) => {
                let distances = self.gpus.new.iter().map(|gpu| self.new.distance(new, *gpu).unwrap_or(u16::MAX));
                distances.min().unwrap_or(u16::MAX).max(1)
            }
        }
    }
}
