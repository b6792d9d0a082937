//! How two snapshots differ, rank by rank. Pure.
//!
//! Numbers of CPUs and nodes are compared as they are, even if the machines differ: the result says how much alike the machines are.
//! Bivouac's own threads are left out, as in a restart. From outside a process, nobody can see where a region is. But if the process has
//! less memory on a node than the regions had there, at least the difference is elsewhere.
#![forbid(unsafe_code)]

use super::gather::{Placed, Snapshot};
use super::hosts::{all_bytes_by_node, of_application};
use super::live::MEMORY;
use bivouac_core::affinity::cpus::Cpus;
use bivouac_core::affinity::machine::Likeness;
use bivouac_core::affinity::pages::PAGE_BYTES;
use bivouac_core::affinity::record::{RegionPlace, Role};
use std::collections::{BTreeMap, BTreeSet};

/// How two snapshots differ.
pub struct Comparison {
    /// The titles of both snapshots.
    pub titles: [String; 2],
    /// The ranks that both snapshots have.
    pub ranks: Vec<RankDifference>,
    /// Ranks of which only one snapshot has a record.
    pub alone: [Vec<u32>; 2],
}

/// How one rank differs.
pub struct RankDifference {
    /// Its number.
    pub rank: u32,
    /// How much alike its machines in both snapshots are.
    pub machine: Likeness,
    /// The number of the application's threads that are in both snapshots.
    pub threads: usize,
    /// The threads whose masks differ, and those that only one snapshot has.
    pub masks: Vec<MaskDifference>,
    /// The differences of its regions.
    pub regions: Vec<RegionDifference>,
}

/// A thread whose mask differs.
pub struct MaskDifference {
    /// Role, name and order.
    pub thread: (Role, String, u32),
    /// The CPUs on which it might run in each snapshot; `None` where the thread did not exist.
    pub cpus: [Option<Cpus>; 2],
}

/// How a region differs.
#[derive(Default)]
pub struct RegionDifference {
    /// Its name.
    pub name: String,
    /// The number of pages whose place is, or should be, known in both snapshots.
    pub pages: u64,
    /// The number of these pages that are on another node.
    pub elsewhere: u64,
    /// The number of these pages whose place is no longer known.
    pub unknown: u64,
    /// What else differs, in words.
    pub other: Option<String>,
}

impl RankDifference {
    /// Does nothing differ?
    pub fn is_alike(&self) -> bool {
        let is_alike = |region: &RegionDifference| region.elsewhere == 0 && region.other.is_none();
        self.machine == Likeness::Same && self.masks.is_empty() && self.regions.iter().all(is_alike)
    }
}

impl Comparison {
    /// Does nothing differ? Pages whose place is unknown count as alike.
    pub fn is_alike(&self) -> bool {
        self.ranks.iter().all(RankDifference::is_alike) && self.alone.iter().all(Vec::is_empty)
    }
}

/// Compares two snapshots. If one of them is of live processes, ranks that it lacks do not count as missing.
pub fn compare(then: &Snapshot, now: &Snapshot) -> Comparison {
    let find = |snapshot: &'_ Snapshot, rank: u32| snapshot.ranks.iter().position(|placed| placed.number == rank);
    let both = then.ranks.iter().filter_map(|one| Some((one, &now.ranks[find(now, one.number)?])));
    let only = |own: &Snapshot, other: &Snapshot| {
        let alone = own.ranks.iter().map(|placed| placed.number).filter(|rank| find(other, *rank).is_none());
        if other.is_live { Vec::new() } else { alone.collect() }
    };
    Comparison {
        titles: [then.title.clone(), now.title.clone()],
        ranks: both.map(|(then, now)| of_rank(then, now)).collect(),
        alone: [only(then, now), only(now, then)],
    }
}

fn of_rank(then: &Placed, now: &Placed) -> RankDifference {
    let masks = [then, now].map(|placed| {
        let threads = of_application(placed);
        let key = threads.map(|thread| ((thread.role, thread.name.clone(), thread.order), &thread.cpus));
        key.collect::<BTreeMap<_, _>>()
    });
    let all: BTreeSet<_> = masks.iter().flat_map(|masks| masks.keys().cloned()).collect();
    let is_in_both = |thread: &&(Role, String, u32)| masks.iter().all(|masks| masks.contains_key(*thread));
    let threads = all.iter().filter(is_in_both).count();
    let differing = all.into_iter().filter(|thread| masks[0].get(thread) != masks[1].get(thread));
    let difference = |thread| {
        let cpus = [0, 1].map(|at: usize| masks[at].get(&thread).map(|cpus| (*cpus).clone()));
        MaskDifference { thread, cpus }
    };
    RankDifference {
        rank: then.number,
        machine: then.record.machine.likeness(&now.record.machine),
        threads,
        masks: differing.map(difference).collect(),
        regions: if then.process.is_some() || now.process.is_some() {
            of_process(then, now)
        } else {
            of_regions(then, now)
        },
    }
}

/// Compares regions by name.
fn of_regions(then: &Placed, now: &Placed) -> Vec<RegionDifference> {
    let places = [then, now].map(|placed| {
        let places = placed.record.regions.iter().map(|(name, place)| (name.as_str(), place));
        places.collect::<BTreeMap<_, _>>()
    });
    let names: BTreeSet<&str> = places.iter().flat_map(|places| places.keys().copied()).collect();
    let one = |name: &str| {
        let other =
            |why: &str| RegionDifference { name: name.to_owned(), other: Some(why.to_owned()), ..Default::default() };
        match (places[0].get(name), places[1].get(name)) {
            (Some(RegionPlace::Device(then)), Some(RegionPlace::Device(now))) if then.eq_ignore_ascii_case(now) => {
                RegionDifference { name: name.to_owned(), ..Default::default() }
            }
            (Some(RegionPlace::Device(then)), Some(RegionPlace::Device(now))) => {
                other(&format!("on the GPU {then} then, {now} now"))
            }
            (Some(RegionPlace::Host { pages: wanted, .. }), Some(RegionPlace::Host { pages: found, .. })) => {
                let lengths = [then, now].map(|placed| placed.bytes.get(name).copied().unwrap_or(0));
                let tally = wanted.moved(lengths[0], u64::from(found.offset)).compare(found);
                let other =
                    (lengths[0] != lengths[1]).then(|| format!("{} bytes then, {} now", lengths[0], lengths[1]));
                let (pages, elsewhere) = (tally.wanted, tally.wrong);
                RegionDifference { name: name.to_owned(), pages, elsewhere, unknown: tally.unknown(), other }
            }
            (Some(_), Some(_)) => other("in host memory in one of them, on a GPU in the other"),
            (Some(_), None) => other("recorded then, not now"),
            (None, _) => other("recorded now, not then"),
        }
    };
    names.into_iter().map(one).collect()
}

/// Compares all regions together with the memory of a process.
fn of_process(then: &Placed, now: &Placed) -> Vec<RegionDifference> {
    let bytes = [then, now].map(all_bytes_by_node);
    let is_seen =
        |placed: &Placed| placed.process.is_none() || placed.record.regions.iter().any(|(name, _)| name == MEMORY);
    let mut all = RegionDifference { name: "all in host memory".to_owned(), ..Default::default() };
    for (node, wanted) in bytes[0].iter().filter(|(node, _)| node.is_some()) {
        let pages = wanted / PAGE_BYTES;
        all.pages = all.pages.saturating_add(pages);
        if is_seen(then) && is_seen(now) {
            let found = bytes[1].get(node).map_or(0, |bytes| bytes / PAGE_BYTES);
            all.elsewhere = all.elsewhere.saturating_add(pages.saturating_sub(found));
        } else {
            all.unknown = all.unknown.saturating_add(pages);
        }
    }
    if all.pages == 0 { Vec::new() } else { vec![all] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::affinity::machine::{Cpu, Machine, Node};
    use bivouac_core::affinity::pages::{PageMap, Run};
    use bivouac_core::affinity::record::{Record, ThreadPlace};

    fn machine() -> Machine {
        let cpu = |number| Cpu { number, core: number, cache: number / 2, package: 0, node: number / 2 };
        let node = |number| Node { number, bytes: 1 << 30 };
        Machine { cpus: (0..4).map(cpu).collect(), nodes: vec![node(0), node(1)], ..Machine::default() }
    }

    fn thread(role: Role, cpu: usize) -> ThreadPlace {
        ThreadPlace { role, name: "app".into(), order: 0, cpus: Cpus::from([cpu]) }
    }

    fn host(offset: u64, runs: &[(u64, Option<u32>)]) -> RegionPlace {
        let runs = runs.iter().map(|(pages, node)| Run { pages: *pages, node: *node });
        RegionPlace::Host { pages: PageMap::from_runs(offset, runs), age_ms: 0, is_whole: true }
    }

    fn placed(number: u32, cpu: usize, region: RegionPlace) -> Placed {
        let threads = vec![thread(Role::Main, cpu), thread(Role::Bivouac, number as usize)];
        let regions = vec![("u".to_owned(), region)];
        let record = Record { machine: machine(), given: (0..4).collect(), threads, regions, ..Record::default() };
        Placed { number, process: None, record, bytes: BTreeMap::from([("u".to_owned(), 4 * PAGE_BYTES)]) }
    }

    fn snapshot(ranks: Vec<Placed>) -> Snapshot {
        Snapshot { ranks, ..Snapshot::new("a test".to_owned()) }
    }

    #[test]
    fn the_same_is_alike_wherever_the_region_begins() {
        let pages = [(2, Some(0)), (2, Some(1))];
        let then = snapshot(vec![placed(0, 1, host(0, &pages))]);
        assert!(compare(&then, &then).is_alike());
        let mut now = snapshot(vec![placed(0, 1, host(64, &[(2, Some(0)), (2, Some(1)), (1, Some(1))]))]);
        now.ranks[0].record.threads[1].cpus = Cpus::from([3]);
        let found = compare(&then, &now);
        assert_eq!((found.ranks[0].threads, found.ranks[0].regions[0].elsewhere), (1, 1), "byte-wise, by the first");
    }

    #[test]
    fn masks_pages_and_missing_ranks_are_named() {
        let then = snapshot(vec![placed(0, 1, host(0, &[(4, Some(0))])), placed(1, 2, host(0, &[(4, Some(1))]))]);
        let now = snapshot(vec![placed(0, 3, host(0, &[(1, Some(0)), (2, Some(1)), (1, None)]))]);
        let found = compare(&then, &now);
        assert!(!found.is_alike());
        assert_eq!((&found.alone[0], &found.alone[1]), (&vec![1], &vec![]));
        let rank = &found.ranks[0];
        assert_eq!(rank.masks[0].cpus, [Some(Cpus::from([1])), Some(Cpus::from([3]))]);
        let region = &rank.regions[0];
        assert_eq!((region.pages, region.elsewhere, region.unknown, rank.machine), (4, 2, 1, Likeness::Same));
        let device = snapshot(vec![placed(0, 1, RegionPlace::Device("0000:17:00.0".into()))]);
        assert!(compare(&device, &device).is_alike());
        assert!(!compare(&then, &device).is_alike() && !compare(&device, &then).is_alike());
    }

    #[test]
    fn of_a_process_only_what_is_missing_on_a_node_is_said_to_be_elsewhere() {
        let then = snapshot(vec![placed(0, 1, host(0, &[(2, Some(0)), (2, Some(1))])), placed(1, 1, host(0, &[]))]);
        let live = |runs: &[(u64, Option<u32>)]| {
            let mut live = placed(0, 1, host(0, runs));
            (live.process, live.record.regions[0].0) = (Some(77), MEMORY.to_owned());
            Snapshot { is_live: true, ..snapshot(vec![live]) }
        };
        assert!(compare(&then, &live(&[(900, Some(0)), (2, Some(1))])).is_alike(), "and nobody misses rank 1");
        let moved = compare(&then, &live(&[(900, Some(0)), (1, Some(1))]));
        assert_eq!((moved.ranks[0].regions[0].elsewhere, moved.is_alike()), (1, false));
        let mut hidden = live(&[]);
        hidden.ranks[0].record.regions.clear();
        let hidden = compare(&then, &hidden);
        assert_eq!((hidden.ranks[0].regions[0].unknown, hidden.is_alike()), (4, true));
    }
}
