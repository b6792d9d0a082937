//! Stores whose shards have affinity records of machines that are not available: sessions record only what they find.
#![allow(dead_code)]

use bivouac_core::affinity::cpus::Cpus;
use bivouac_core::affinity::machine::{Cpu, Machine, Node, PciDevice, PciKind};
use bivouac_core::affinity::pages::{PAGE_BYTES, PageMap, Run};
use bivouac_core::affinity::record::{Record, RegionPlace, Role, ThreadPlace};
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::units::MIB;
use bivouac_core::base::{CheckpointKey, Digest, Generation, Incarnation, Level, Rank};
use bivouac_core::format::container::encode_tail;
use bivouac_core::format::shard::{Layout, encode_head};
use bivouac_core::format::{ContainerEntry, ContainerInfo, Manifest, Region, RegionKind, ShardMeta};
use bivouac_core::region::AFFINITY;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The length of a block in these stores, in bytes.
const BLOCK: u64 = MIB;

/// How a machine is built.
#[derive(Clone, Copy)]
pub struct Built {
    pub packages: u32,
    /// Nodes in each package.
    pub nodes: u32,
    /// Caches in each node.
    pub caches: u32,
    /// Cores at each cache.
    pub cores: u32,
    /// CPUs of each core, in Linux's order: first one CPU of each core.
    pub threads: u32,
}

impl Built {
    pub fn machine(self) -> Machine {
        let Built { packages, nodes, caches, cores, threads } = self;
        let (per_node, count) = (caches * cores, packages * nodes);
        let all = count * per_node;
        let cpu = |core: u32, thread: u32| Cpu {
            number: core + thread * all,
            core,
            cache: core / cores,
            package: core / per_node / nodes,
            node: core / per_node,
        };
        let distance = |from: u32, to: u32| match () {
            () if from == to => 10,
            () if from / nodes == to / nodes => 12,
            () => 32,
        };
        Machine {
            cpus: (0..all).flat_map(|core| (0..threads).map(move |thread| cpu(core, thread))).collect(),
            nodes: (0..count).map(|number| Node { number, bytes: 64 << 30 }).collect(),
            distances: (0..count).flat_map(|from| (0..count).map(move |to| distance(from, to))).collect(),
            devices: Vec::new(),
        }
    }
}

pub fn device(kind: PciKind, bus: u32, nodes: &[u32]) -> PciDevice {
    PciDevice { address: format!("0000:{bus:02x}:00.0"), kind, nodes: nodes.to_vec() }
}

/// A thread for each of these sets of CPUs; the first thread holds the session.
pub fn threads(sets: impl IntoIterator<Item = Cpus>) -> Vec<ThreadPlace> {
    let thread = |(at, cpus): (u32, Cpus)| ThreadPlace {
        role: if at == 0 { Role::Main } else { Role::Other },
        name: "heat2d".into(),
        order: at.saturating_sub(1),
        cpus,
    };
    (0..).zip(sets).map(thread).collect()
}

/// A region with this many MiB on each of these nodes, in order.
pub fn region(name: &str, parts: &[(u64, Option<u32>)]) -> (String, RegionPlace) {
    let runs = parts.iter().map(|(mib, node)| Run { pages: mib * MIB / PAGE_BYTES, node: *node });
    let place = RegionPlace::Host { pages: PageMap::from_runs(0, runs), age_ms: 1500, is_whole: true };
    (name.to_owned(), place)
}

/// The contents of a shard's affinity record.
pub enum Recorded {
    Record(Box<Record>),
    Bytes(Vec<u8>),
    Nothing,
}

impl From<Record> for Recorded {
    fn from(record: Record) -> Recorded {
        Recorded::Record(Box::new(record))
    }
}

/// Writes a committed checkpoint of the series `heat` below `root`, with one rank for each record, and returns its folder. The shards have
/// the regions that a record names, as holes.
pub fn write(root: &Path, version: u64, ranks: &[Recorded]) -> PathBuf {
    let incarnation = Incarnation([7; 16]);
    let key = CheckpointKey { generation: Generation(1), version, operation: version, incarnation };
    let folder = root.join("job-1/world/heat").join(key.folder());
    std::fs::create_dir_all(&folder).expect("our own folder");
    std::fs::write(root.join("store"), format!("{:032x}\n", 7)).expect("written");
    let path = folder.join("c000000.bvc");
    let file = File::create(&path).expect("created");
    let (mut entries, mut offset) = (Vec::new(), 0);
    for (rank, recorded) in (0u32..).zip(ranks) {
        let length = write_shard(&file, offset, key, rank, ranks.len() as u32, recorded);
        entries.push(ContainerEntry { key, rank: Rank(rank), offset, length });
        offset += length;
    }
    file.write_all_at(&encode_tail(&entries).expect("an index"), offset).expect("written");
    let bytes = file.metadata().expect("its length").len();
    let manifest = Manifest {
        job: "job-1".into(),
        group: "world".into(),
        name: "heat".into(),
        key,
        agreement: 5,
        group_size: ranks.len() as u32,
        origin: None,
        level: Level::System,
        sources: Vec::new(),
        containers: vec![ContainerInfo {
            file: "c000000.bvc".into(),
            bytes,
            ranks: (0..ranks.len() as u32).map(Rank).collect(),
        }],
    };
    std::fs::write(folder.join("manifest"), manifest.encode().expect("a manifest")).expect("written");
    folder
}

fn write_shard(file: &File, at: u64, key: CheckpointKey, rank: u32, size: u32, recorded: &Recorded) -> u64 {
    let (body, record) = match recorded {
        Recorded::Record(record) => (Some(record.encode().expect("sound")), Some(record)),
        Recorded::Bytes(bytes) => (Some(bytes.clone()), None),
        Recorded::Nothing => (None, None),
    };
    let mut regions = Vec::new();
    regions.extend(body.as_ref().map(|body| Region::of_bytes(AFFINITY, RegionKind::Value, body.len() as u64)));
    for (name, place) in record.iter().flat_map(|record| &record.regions) {
        let bytes = match place {
            RegionPlace::Host { pages, .. } => pages.pages() * PAGE_BYTES,
            RegionPlace::Device(_) => 64 * MIB,
        };
        regions.push(Region::of_bytes(name, RegionKind::Array, bytes));
    }
    let meta = ShardMeta { job: "job-1".into(), group: "world".into(), name: "heat".into(), regions };
    let layout = Layout::new(meta, BLOCK).expect("a layout");
    let header = layout.header(key, 5, size, Rank(rank), None);
    let body = body.unwrap_or_default();
    let mut digests: Vec<Digest> = body.chunks(BLOCK as usize).map(digest_bytes).collect();
    digests.resize(layout.block_count as usize, Digest::default());
    let mut head = vec![0; layout.body_offset as usize];
    encode_head(&layout, &header, &digests, &mut head);
    file.write_all_at(&head, at).expect("written");
    // The record is the body of the first region.
    file.write_all_at(&body, at + layout.body_offset).expect("written");
    file.set_len(at + layout.total_len).expect("as long as it says");
    layout.total_len
}

/// A machine with 2 packages of 2 nodes of 16 cores, with 4 GPUs and 2 network cards, and with 8 ranks with 4 pinned threads each. Pages
/// are with their threads, except that rank 5 has a quarter of them on node 0.
pub fn cluster_node() -> Vec<Record> {
    let mut machine = Built { packages: 2, nodes: 2, caches: 2, cores: 8, threads: 1 }.machine();
    machine.devices = (0..4).map(|node| device(PciKind::Gpu, 0x17 + 0x20 * node, &[node])).collect();
    machine.devices.push(device(PciKind::Network, 0x98, &[2]));
    machine.devices.push(device(PciKind::Network, 0xa0, &[0, 1]));
    let record = |rank: u32| {
        let node = rank / 2;
        let first = (rank * 8) as usize;
        let foreign = if rank == 5 { 64 } else { 0 };
        let gpu = machine.devices[node as usize].address.clone();
        Record {
            given: machine.all_cpus(),
            neighbours: (0..8).collect(),
            threads: threads((0..4).map(|at| Cpus::from([first + at]))),
            regions: vec![
                region("temperature", &[(256 - foreign, Some(node)), (foreign, Some(0))]),
                ("images".into(), RegionPlace::Device(gpu)),
            ],
            machine: machine.clone(),
            ..Record::default()
        }
    };
    (0..8).map(record).collect()
}

/// A machine with 2 packages of 4 nodes with 8 cores of 2 CPUs each, and with 64 ranks that are not pinned: their pages are spread.
pub fn unpinned() -> Vec<Record> {
    let mut machine = Built { packages: 2, nodes: 4, caches: 1, cores: 8, threads: 2 }.machine();
    machine.devices = (0..8).map(|gpu| device(PciKind::Gpu, 0x11 + 0x10 * gpu, &[gpu])).collect();
    machine.devices.push(device(PciKind::Network, 0xe1, &(0..8).collect::<Vec<_>>()));
    let record = |rank: u32| Record {
        given: machine.all_cpus(),
        neighbours: (0..64).collect(),
        threads: threads((0..2).map(|_| machine.all_cpus())),
        regions: vec![region("u", &[(24 + u64::from(rank % 5), Some(rank / 8)), (8, Some((rank / 8 + 1) % 8))])],
        machine: machine.clone(),
        ..Record::default()
    };
    (0..64).map(record).collect()
}

/// A machine with 1 node of 4 cores with 2 CPUs each, and one rank on half of it.
pub fn laptop() -> Vec<Record> {
    let mut machine = Built { packages: 1, nodes: 1, caches: 1, cores: 4, threads: 2 }.machine();
    machine.nodes[0].bytes = 16 << 30;
    machine.devices = vec![device(PciKind::Gpu, 0, &[0]), device(PciKind::Network, 0x3a, &[0])];
    let threads = threads([Cpus::from([0, 4]), Cpus::from([1])]);
    vec![Record { given: (0..6).collect(), machine, neighbours: vec![0], threads, ..Record::default() }]
}

/// Records as in a damaged or foreign file: pages on nodes and threads on CPUs that the machine does not have, a GPU that is gone, names
/// that are not names, and a rank whose machine is unknown.
pub fn half_broken() -> Vec<Record> {
    let machine = Built { packages: 2, nodes: 1, caches: 1, cores: 4, threads: 1 }.machine();
    let name = "<script>&\u{1b}[2J\"";
    let mut first = Record {
        given: machine.all_cpus(),
        machine,
        neighbours: vec![0, 1],
        threads: threads([Cpus::from([0]), Cpus::from([700, 701])]),
        regions: vec![
            region("u", &[(16, Some(0)), (8, Some(77)), (4, None), (2, Some(1000))]),
            (name.into(), RegionPlace::Device("9999:99:99.9".into())),
        ],
        ..Record::default()
    };
    first.threads[1].name = name.into();
    let second = Record { regions: vec![region("u", &[(16, Some(3))])], ..Record::default() };
    vec![first, second]
}

/// A machine with 8 packages of 2 nodes of 16 CPUs, 256 CPUs in all, and with 128 ranks with 2 pinned threads each.
pub fn large() -> Vec<Record> {
    let mut machine = Built { packages: 8, nodes: 2, caches: 2, cores: 8, threads: 1 }.machine();
    machine.devices = (0..8).map(|gpu| device(PciKind::Gpu, 0x11 + 0x10 * gpu, &[2 * gpu])).collect();
    let record = |rank: u32| {
        let first = 2 * rank as usize;
        Record {
            given: machine.all_cpus(),
            neighbours: (0..128).collect(),
            threads: threads((0..2).map(|at| Cpus::from([first + at]))),
            regions: vec![region("u", &[(64, Some(if rank % 16 == 3 { 15 } else { rank / 8 }))])],
            machine: machine.clone(),
            ..Record::default()
        }
    };
    (0..128).map(record).collect()
}
