//! Tables of machines, threads and pages, for people.
#![forbid(unsafe_code)]

use super::compare::{Comparison, MaskDifference, RankDifference};
use super::gather::{Placed, Snapshot};
use super::hosts::{bytes_by_node, hosts, is_pinned, nodes_of_threads, summary};
use super::view::{likeness, role};
use crate::output::{self, plain, table};
use bivouac_core::affinity::cpus::{Cpus, of_this_thread};
use bivouac_core::affinity::machine::{Machine, PciKind};
use bivouac_core::affinity::record::{RegionPlace, ThreadPlace};
use bivouac_core::base::units::show_cpus;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The maximum number of masks, of threads with the same name, that are shown one by one.
const MASKS_MAX: usize = 16;
/// The maximum number of differing threads of a rank that are shown one by one.
const DIFFERENCES_MAX: usize = 8;

/// Writing to a `String` cannot fail.
macro_rules! line {
    ($text:expr, $($part:tt)*) => { writeln!($text, $($part)*).expect("a String takes everything") };
}

/// The tables of this machine, or of all snapshots.
pub fn all(here: Option<&Machine>, snapshots: &[Snapshot]) -> String {
    let mut parts: Vec<String> = snapshots.iter().map(snapshot).collect();
    if let Some(here) = here {
        let mut text = format!("this machine: {}\n", summary(here));
        line!(text, "given to this process: CPUs {}", show(&of_this_thread()));
        parts.push(text + &machine(here));
    }
    parts.join("\n")
}

fn show(cpus: &Cpus) -> String {
    if cpus.is_empty() { "none".to_owned() } else { show_cpus(cpus) }
}

// ------------------------------------------------------------------------------------------- machines

fn machine(machine: &Machine) -> String {
    let mut text = String::new();
    if !machine.nodes.is_empty() {
        text += &nodes(machine);
    }
    let caches: BTreeSet<(u32, u32)> = machine.cpus.iter().map(|cpu| (cpu.cache, cpu.node)).collect();
    // One cache for each node says nothing that the nodes have not said.
    if caches.len() > machine.nodes.len() {
        text += "\n";
        text += &caches_text(machine, &caches);
    }
    if !machine.devices.is_empty() {
        let rows = machine.devices.iter().map(|device| {
            let kind = if device.kind == PciKind::Gpu { "gpu" } else { "network" };
            vec![kind.to_owned(), plain(&device.address), output::ranks(device.nodes.iter().copied())]
        });
        text += "\n";
        text += &table(&["DEVICE", "ADDRESS", "NODES"], &[], &rows.collect::<Vec<_>>());
    }
    text
}

fn nodes(machine: &Machine) -> String {
    let count = machine.nodes.len();
    let row = |(at, node): (usize, &bivouac_core::affinity::machine::Node)| {
        let own: Vec<_> = machine.cpus.iter().filter(|cpu| cpu.node == node.number).collect();
        let distinct = |of: fn(&bivouac_core::affinity::machine::Cpu) -> u32| {
            own.iter().map(|cpu| of(cpu)).collect::<BTreeSet<u32>>()
        };
        let distances = machine.distances.get(at * count..(at + 1) * count).unwrap_or_default();
        vec![
            node.number.to_string(),
            if node.bytes == 0 { "none".to_owned() } else { output::bytes(node.bytes) },
            output::ranks(distinct(|cpu| cpu.package)),
            distinct(|cpu| cpu.core).len().to_string(),
            show(&machine.cpus_of_node(node.number)),
            distances.iter().map(u16::to_string).collect::<Vec<_>>().join(" "),
        ]
    };
    let rows: Vec<Vec<String>> = machine.nodes.iter().enumerate().map(row).collect();
    table(&["NODE", "MEMORY", "PACKAGE", "CORES", "CPUS", "DISTANCES"], &[0, 1, 3], &rows)
}

fn caches_text(machine: &Machine, caches: &BTreeSet<(u32, u32)>) -> String {
    let row = |(cache, node): &(u32, u32)| {
        let own = machine.cpus.iter().filter(|cpu| (cpu.cache, cpu.node) == (*cache, *node));
        let cpus: Cpus = own.map(|cpu| cpu.number as usize).collect();
        vec![cache.to_string(), node.to_string(), show(&cpus)]
    };
    table(&["CACHE", "NODE", "CPUS"], &[0, 1], &caches.iter().map(row).collect::<Vec<_>>())
}

// ------------------------------------------------------------------------------------------- snapshots

fn snapshot(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    line!(text, "{}", plain(&snapshot.title));
    if let Some(size) = snapshot.group_size {
        line!(text, "records of {} of {size} ranks", snapshot.ranks.len());
    }
    if !snapshot.without.is_empty() {
        let ranks = output::ranks(snapshot.without.iter().copied());
        line!(text, "without a readable record: ranks {ranks}");
    }
    let hosts = hosts(snapshot);
    let kinds = hosts.iter().map(|host| host.kind + 1).max().unwrap_or(0);
    for kind in 0..kinds {
        let own: Vec<_> = hosts.iter().filter(|host| host.kind == kind).collect();
        let groups: Vec<String> = own.iter().map(|host| host.who()).collect();
        let Some(first) = own.first() else { continue };
        let each = if own.len() > 1 { format!("{} machines, each", own.len()) } else { "machine".to_owned() };
        line!(text, "\n{each} of {}: {}", groups.join(" | "), summary(first.machine));
        text += &machine(first.machine);
    }
    if !snapshot.ranks.is_empty() {
        text += "\n";
        text += &threads(&snapshot.ranks);
        let pages = regions(&snapshot.ranks);
        if !pages.is_empty() {
            text += "\n";
            text += &pages;
        }
    }
    text
}

/// The head of the column with the numbers of ranks or processes.
fn head(ranks: &[Placed]) -> String {
    ranks.first().map(Placed::kind).unwrap_or_default().one().to_uppercase()
}

/// A table of threads; those of one role and name are in one row.
fn threads(ranks: &[Placed]) -> String {
    let mut rows = Vec::new();
    for placed in ranks {
        for group in placed.record.threads.chunk_by(|a, b| (a.role, &a.name) == (b.role, &b.name)) {
            rows.push(vec![
                placed.number.to_string(),
                role(group[0].role).to_owned(),
                plain(&group[0].name),
                group.len().to_string(),
                masks(placed, group),
            ]);
        }
    }
    table(&[&head(ranks), "THREADS", "NAME", "COUNT", "CPUS"], &[0, 3], &rows)
}

/// The masks of some threads, one after the other; equal masks of consecutive threads are shown once.
fn masks(placed: &Placed, threads: &[ThreadPlace]) -> String {
    let mask = |group: &[ThreadPlace]| {
        let unpinned = if is_pinned(placed, &group[0]) { "" } else { " (not pinned)" };
        let each = if group.len() > 1 { " each" } else { "" };
        format!("{}{each}{unpinned}", show(&group[0].cpus))
    };
    let all: Vec<String> = threads.chunk_by(|a, b| a.cpus == b.cpus).map(mask).collect();
    let more = all.len().saturating_sub(MASKS_MAX);
    let shown = all.iter().take(MASKS_MAX).cloned().collect::<Vec<_>>().join(" | ");
    if more > 0 { format!("{shown} | and {more} more") } else { shown }
}

fn regions(ranks: &[Placed]) -> String {
    let (mut rows, mut has_orphans) = (Vec::new(), false);
    for placed in ranks {
        let threads_on = nodes_of_threads(placed);
        for (name, place) in &placed.record.regions {
            let (places, map) = match place {
                RegionPlace::Device(address) => (format!("gpu {}", plain(address)), String::new()),
                RegionPlace::Host { age_ms, is_whole, .. } => {
                    let part = |(node, bytes): (Option<u32>, u64)| match node {
                        None => format!("unknown {}", output::bytes(bytes)),
                        Some(node) => {
                            let is_orphan = !threads_on.contains(&node);
                            has_orphans |= is_orphan;
                            format!("node {node}{} {}", if is_orphan { "*" } else { "" }, output::bytes(bytes))
                        }
                    };
                    let parts: Vec<String> = bytes_by_node(place).into_iter().map(part).collect();
                    let exactness = if *is_whole { "exact" } else { "sampled" };
                    let map = match placed.process {
                        Some(_) => "now".to_owned(),
                        None => format!("{exactness}, {:.1} s old", *age_ms as f64 / 1e3),
                    };
                    (parts.join(", "), map)
                }
            };
            let bytes = placed.bytes.get(name).map_or("?".to_owned(), |bytes| output::bytes(*bytes));
            rows.push(vec![placed.number.to_string(), output::short(name), bytes, places, map]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut text = table(&[&head(ranks), "REGION", "BYTES", "PAGES ON", "MAP"], &[0, 2], &rows);
    if has_orphans {
        let kind = ranks.first().map(Placed::kind).unwrap_or_default();
        text += &format!("* no thread of the {} may run on that node\n", kind.one());
    }
    text
}

// ------------------------------------------------------------------------------------------- comparisons

/// A comparison as text.
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = String::new();
    let [first, second] = &comparison.titles;
    line!(text, "first   {}", plain(first));
    line!(text, "second  {}\n", plain(second));
    let row = |rank: &RankDifference| {
        let sum = |of: fn(&super::compare::RegionDifference) -> u64| {
            rank.regions.iter().map(of).fold(0u64, u64::saturating_add).to_string()
        };
        vec![
            rank.rank.to_string(),
            likeness(rank.machine).to_owned(),
            rank.threads.to_string(),
            rank.masks.len().to_string(),
            sum(|region| region.pages),
            sum(|region| region.elsewhere),
            sum(|region| region.unknown),
        ]
    };
    let heads = ["RANK", "MACHINE", "THREADS", "DIFFER", "PAGES", "ELSEWHERE", "UNKNOWN"];
    text += &table(&heads, &[0, 2, 3, 4, 5, 6], &comparison.ranks.iter().map(row).collect::<Vec<_>>());
    let mut details = String::new();
    for rank in &comparison.ranks {
        details += &rank_details(rank);
    }
    for (ranks, which) in comparison.alone.iter().zip(["first", "second"]) {
        if !ranks.is_empty() {
            line!(details, "only in the {which}: ranks {}", output::ranks(ranks.iter().copied()));
        }
    }
    if !details.is_empty() {
        text += "\n";
        text += &details;
    }
    text += if comparison.is_alike() { "\nalike\n" } else { "\nnot alike\n" };
    text
}

fn rank_details(rank: &RankDifference) -> String {
    let mut text = String::new();
    let number = rank.rank;
    for MaskDifference { thread: (whose, name, order), cpus } in rank.masks.iter().take(DIFFERENCES_MAX) {
        let [first, second] = [0, 1].map(|at: usize| cpus[at].as_ref().map_or("not there".to_owned(), show));
        line!(text, "rank {number}: {} thread {} {order}: CPUs {first} -> {second}", role(*whose), plain(name));
    }
    if rank.masks.len() > DIFFERENCES_MAX {
        line!(text, "rank {number}: and {} more threads", rank.masks.len() - DIFFERENCES_MAX);
    }
    for region in rank.regions.iter().filter(|region| region.elsewhere > 0) {
        let name = output::short(&region.name);
        line!(text, "rank {number}: region {name}: {} of {} pages on other nodes", region.elsewhere, region.pages);
    }
    for region in &rank.regions {
        if let Some(other) = &region.other {
            line!(text, "rank {number}: region {}: {}", output::short(&region.name), plain(other));
        }
    }
    text
}
