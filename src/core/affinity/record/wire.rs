//! The record as bytes: a version, then the fields below by [`codec`].
//!
//! Lists of numbers are packed ([`packed`](crate::affinity::packed)). CPUs are stored column by column (numbers, cores, caches,
//! packages, nodes); sets of CPUs are stored as ranges, each set once however many threads have it; threads of the same role and
//! name are stored together.
#![forbid(unsafe_code)]

use super::{Policy, Record, RegionPlace, Role, THREADS_MAX, ThreadPlace};
use crate::affinity::cpus::Cpus;
use crate::affinity::machine::{CPUS_MAX, Cpu, Machine, NODES_MAX, Node, PciDevice};
use crate::affinity::packed::{pack, unpack};
use crate::affinity::pages::{PageMap, RUNS_MAX, Run};
use crate::format::{FormatError, codec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What [`FormatError`] calls it.
const WHAT: &str = "affinity record";
/// The version that is written and read.
const VERSION: u32 = 1;
/// The maximum number of bytes. A run of pages takes at least two, so page maps take at most 128 MiB of memory.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// The maximum number of these bytes that regions may take, so that there is room for the machine and the threads.
pub(super) const REGIONS_BYTES_MAX: usize = BYTES_MAX - (4 << 20);
/// The maximum number of CPUs in the masks of all threads together, plus the bytes of their names: 4096 threads that
/// may run on 1024 CPUs each.
pub(super) const MASKS_MAX: usize = 1 << 22;

#[derive(Serialize, Deserialize)]
struct Wire {
    cpus: Vec<u8>,
    nodes: Vec<u8>,
    distances: Vec<u8>,
    devices: Vec<PciDevice>,
    /// For each set, the number of its ranges, and for each range, its first and last CPU. The first set is `given`.
    sets: Vec<u8>,
    neighbours: Vec<u8>,
    threads: Vec<WireThreads>,
    policy: Policy,
    regions: Vec<(String, WireRegion)>,
}

#[derive(Serialize, Deserialize)]
struct WireThreads {
    role: Role,
    name: String,
    /// Their orders.
    orders: Vec<u8>,
    /// And their sets.
    sets: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
enum WireRegion {
    Host {
        offset: u32,
        /// Lengths of the runs.
        pages: Vec<u8>,
        /// Their nodes plus one; 0: not known.
        nodes: Vec<u8>,
        age_ms: u64,
        is_whole: bool,
    },
    Device(String),
}

pub(super) fn encode(record: &Record) -> Result<Vec<u8>, FormatError> {
    let mut sets = Sets::default();
    sets.index_of(&record.given);
    let threads = pack_threads(&record.threads, &mut sets);
    let machine = &record.machine;
    let column = |of: fn(&Cpu) -> u32| machine.cpus.iter().map(move |cpu| u64::from(of(cpu)));
    let columns = column(|cpu| cpu.number)
        .chain(column(|cpu| cpu.core))
        .chain(column(|cpu| cpu.cache))
        .chain(column(|cpu| cpu.package))
        .chain(column(|cpu| cpu.node));
    let numbers = machine.nodes.iter().map(|node| u64::from(node.number));
    let wire = Wire {
        cpus: pack(columns),
        nodes: pack(numbers.chain(machine.nodes.iter().map(|node| node.bytes))),
        distances: pack(machine.distances.iter().map(|distance| u64::from(*distance))),
        devices: machine.devices.clone(),
        sets: pack(sets.numbers),
        neighbours: pack(record.neighbours.iter().map(|rank| u64::from(*rank))),
        threads,
        policy: record.policy.clone(),
        regions: record.regions.iter().map(|(name, place)| (name.clone(), pack_region(place))).collect(),
    };
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(codec::encode(WHAT, &wire)?);
    if bytes.len() > BYTES_MAX {
        return Err(invalid(format!("{} bytes, but at most {BYTES_MAX} are allowed", bytes.len())));
    }
    Ok(bytes)
}

/// What a region takes, or a little more.
pub(super) fn bytes_of((name, place): &(String, RegionPlace)) -> usize {
    // Lengths and kinds take a few bytes each.
    let fields = match pack_region(place) {
        WireRegion::Host { pages, nodes, .. } => pages.len() + nodes.len(),
        WireRegion::Device(address) => address.len(),
    };
    64 + name.len() + fields
}

pub(super) fn decode(bytes: &[u8]) -> Result<Record, FormatError> {
    let short = FormatError::Short { what: WHAT, need: 4, have: bytes.len() as u64 };
    let (version, rest) = bytes.split_first_chunk::<4>().ok_or(short)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(FormatError::Version { what: WHAT, found });
    }
    if bytes.len() > BYTES_MAX {
        return Err(invalid(format!("{} bytes", bytes.len())));
    }
    let wire: Wire = codec::decode(WHAT, rest)?;
    let record = unwrap(wire).ok_or_else(|| invalid("a list is damaged or too long".to_owned()))?;
    record.check().map_err(invalid)?;
    Ok(record)
}

fn invalid(reason: String) -> FormatError {
    FormatError::invalid(WHAT, reason)
}

fn unwrap(wire: Wire) -> Option<Record> {
    let sets = unpack_sets(&wire.sets)?;
    let mut room = MASKS_MAX;
    let mut threads = Vec::new();
    for group in wire.threads {
        let (orders, indexes) = (list(&group.orders)?, list(&group.sets)?);
        if orders.len() != indexes.len() || orders.len() > THREADS_MAX - threads.len() {
            return None;
        }
        for (order, index) in orders.into_iter().zip(indexes) {
            let cpus = sets.get(usize::try_from(index).ok()?)?;
            // Each thread gets a set of its own, and long names are refused before they are copied.
            room = room.checked_sub(cpus.len() + group.name.len())?;
            let order = u32::try_from(order).ok()?;
            threads.push(ThreadPlace { role: group.role, name: group.name.clone(), order, cpus: cpus.clone() });
        }
    }
    Some(Record {
        machine: unpack_machine(&wire.cpus, &wire.nodes, &wire.distances, wire.devices)?,
        given: sets.first()?.clone(),
        neighbours: list(&wire.neighbours)?.into_iter().map(|rank| u32::try_from(rank).ok()).collect::<Option<_>>()?,
        threads,
        policy: wire.policy,
        regions: wire
            .regions
            .into_iter()
            .map(|(name, place)| Some((name, unpack_region(place)?)))
            .collect::<Option<_>>()?,
    })
}

/// A packed list.
fn list(bytes: &[u8]) -> Option<Vec<u64>> {
    unpack(bytes).collect()
}

fn unpack_machine(cpus: &[u8], nodes: &[u8], distances: &[u8], devices: Vec<PciDevice>) -> Option<Machine> {
    let cpus: Vec<u32> =
        unpack(cpus).take(5 * CPUS_MAX + 1).map(|number| u32::try_from(number?).ok()).collect::<Option<_>>()?;
    let count = cpus.len() / 5;
    let cpu = |at: usize| {
        let [number, core, cache, package, node] = std::array::from_fn(|column| cpus[column * count + at]);
        Cpu { number, core, cache, package, node }
    };
    let nodes: Vec<u64> = unpack(nodes).take(2 * NODES_MAX + 1).collect::<Option<_>>()?;
    if cpus.len() != count * 5 || !nodes.len().is_multiple_of(2) {
        return None;
    }
    let (numbers, bytes) = nodes.split_at(nodes.len() / 2);
    let node = |(number, bytes): (&u64, &u64)| Some(Node { number: u32::try_from(*number).ok()?, bytes: *bytes });
    let distances = unpack(distances).take(NODES_MAX * NODES_MAX + 1).map(|distance| u16::try_from(distance?).ok());
    Some(Machine {
        cpus: (0..count).map(cpu).collect(),
        nodes: numbers.iter().zip(bytes).map(node).collect::<Option<_>>()?,
        distances: distances.collect::<Option<_>>()?,
        devices,
    })
}

/// Sets of CPUs, each once.
#[derive(Default)]
struct Sets {
    numbers: Vec<u64>,
    known: BTreeMap<Cpus, u64>,
}

impl Sets {
    fn index_of(&mut self, cpus: &Cpus) -> u64 {
        if let Some(index) = self.known.get(cpus) {
            return *index;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for cpu in cpus.iter().map(|cpu| *cpu as u64) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        self.numbers.push(ranges.len() as u64);
        self.numbers.extend(ranges.iter().flat_map(|(first, last)| [*first, *last]));
        let index = self.known.len() as u64;
        self.known.insert(cpus.clone(), index);
        index
    }
}

fn unpack_sets(bytes: &[u8]) -> Option<Vec<Cpus>> {
    let (mut numbers, mut sets, mut room) = (unpack(bytes), Vec::new(), MASKS_MAX);
    while let Some(ranges) = numbers.next() {
        // The set `given`, and at most one for each thread.
        if sets.len() > THREADS_MAX {
            return None;
        }
        let (mut cpus, mut next) = (Cpus::new(), 0);
        for _ in 0..ranges? {
            let (first, last) = (numbers.next()??, numbers.next()??);
            // The ranges must ascend, so that a set takes no more than CPUS_MAX.
            if first < next || last < first || last >= CPUS_MAX as u64 {
                return None;
            }
            room = room.checked_sub((last - first) as usize + 1)?;
            cpus.extend(first as usize..=last as usize);
            next = last + 1;
        }
        sets.push(cpus);
    }
    Some(sets)
}

fn pack_threads(threads: &[ThreadPlace], sets: &mut Sets) -> Vec<WireThreads> {
    let groups = threads.chunk_by(|a, b| (a.role, &a.name) == (b.role, &b.name));
    let wire = groups.map(|group| WireThreads {
        role: group[0].role,
        name: group[0].name.clone(),
        orders: pack(group.iter().map(|thread| u64::from(thread.order))),
        sets: pack(group.iter().map(|thread| sets.index_of(&thread.cpus)).collect::<Vec<_>>()),
    });
    wire.collect()
}

fn pack_region(place: &RegionPlace) -> WireRegion {
    match place {
        RegionPlace::Device(address) => WireRegion::Device(address.clone()),
        RegionPlace::Host { pages, age_ms, is_whole } => WireRegion::Host {
            offset: pages.offset,
            pages: pack(pages.runs.iter().map(|run| run.pages)),
            nodes: pack(pages.runs.iter().map(|run| run.node.map_or(0, |node| u64::from(node) + 1))),
            age_ms: *age_ms,
            is_whole: *is_whole,
        },
    }
}

fn unpack_region(place: WireRegion) -> Option<RegionPlace> {
    let WireRegion::Host { offset, pages, nodes, age_ms, is_whole } = place else {
        let WireRegion::Device(address) = place else { return None };
        return Some(RegionPlace::Device(address));
    };
    let mut nodes = unpack(&nodes);
    let mut runs = Vec::new();
    for pages in unpack(&pages) {
        if runs.len() == RUNS_MAX {
            return None;
        }
        let node = match nodes.next()?? {
            0 => None,
            node => Some(u32::try_from(node - 1).ok()?),
        };
        runs.push(Run { pages: pages?, node });
    }
    let is_over = nodes.next().is_none();
    is_over.then_some(RegionPlace::Host { pages: PageMap { offset, runs }, age_ms, is_whole })
}
