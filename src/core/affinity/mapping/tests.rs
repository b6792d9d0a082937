//! Tests the rules, on handwritten machines and on machines from hwloc's short form and from its XML, and
//! what holds on any machine.

use super::*;
use crate::affinity::machine::tests::{flat, renumbered};
use crate::affinity::machine::{Cpu, Node, PciDevice};
use crate::affinity::record::Policy;
use crate::affinity::record::tests::{region, thread};
use proptest::prelude::*;

/// What a rank has now: everything that it might need, owned.
#[derive(Clone, Debug)]
struct Place {
    machine: Machine,
    allowed: Cpus,
    neighbours: Vec<u32>,
    gpus: Vec<String>,
    list: Option<Vec<u32>>,
    has_strangers: bool,
    /// Nodes whose memory the run may not use.
    denied: Vec<u32>,
}

impl Place {
    /// The whole machine, alone.
    fn whole(machine: &Machine) -> Place {
        let allowed = machine.all_cpus();
        Place {
            machine: machine.clone(),
            allowed,
            neighbours: vec![0],
            gpus: Vec::new(),
            list: None,
            has_strangers: false,
            denied: Vec::new(),
        }
    }

    fn map(&self, record: &Record, rank: u32) -> Mapping {
        let Place { machine: whole, allowed, neighbours, gpus, list, has_strangers, denied } = self;
        let mut machine = whole.clone();
        machine.nodes.iter_mut().filter(|node| denied.contains(&node.number)).for_each(|node| node.bytes = 0);
        let (has_strangers, cpus) = (*has_strangers, list.as_deref());
        Mapping::new(record, &Now { machine: &machine, whole, allowed, neighbours, has_strangers, rank, gpus, cpus })
    }
}

/// A record of a rank that had the whole machine, with a thread on each of these sets, and a page on each of these nodes.
fn record(machine: &Machine, masks: &[&[usize]], nodes: &[u32]) -> Record {
    let role = |at| if at == 0 { Role::Main } else { Role::Other };
    let threads = masks.iter().enumerate().map(|(at, cpus)| thread(role(at), at as u32, cpus.iter().copied()));
    Record {
        machine: machine.clone(),
        given: machine.all_cpus(),
        neighbours: vec![0],
        threads: threads.collect(),
        policy: Policy::default(),
        regions: vec![region("u", &nodes.iter().map(|node| (1, *node)).collect::<Vec<_>>())],
    }
}

/// The CPUs of each thread now.
fn masks(mapping: &Mapping, record: &Record) -> Vec<Option<Vec<usize>>> {
    let cpus = record.threads.iter().map(|thread| mapping.cpus_for(thread));
    cpus.map(|cpus| cpus.map(|cpus| cpus.into_iter().collect())).collect()
}

/// The CPUs that each thread has now. All threads are pinned.
fn pinned(mapping: &Mapping, record: &Record) -> Vec<Vec<usize>> {
    masks(mapping, record).into_iter().map(|cpus| cpus.expect("pinned")).collect()
}

#[test]
fn the_same_machine_gives_every_cpu_and_node_back() {
    let machine = flat(1, 4, 4);
    let record = record(&machine, &[&[0], &[5], &[8, 9, 10, 11]], &[0, 3, 1]);
    let mapping = Place::whole(&machine).map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [vec![0], vec![5], vec![8, 9, 10, 11]]);
    assert!((0..4).all(|node| mapping.node_for(node) == Target::Node(node)));
    assert_eq!(mapping.losses(), []);
    // This rank needs nothing of what others have now.
    let fewer = Place { allowed: Cpus::from([0, 5, 8, 9, 10, 11]), ..Place::whole(&machine) };
    assert_eq!(pinned(&fewer.map(&record, 0), &record), pinned(&mapping, &record));
}

#[test]
fn other_numbers_go_by_place() {
    let machine = flat(1, 4, 4);
    let record = record(&machine, &[&[0], &[5]], &[0, 1, 2, 3]);
    let other = renumbered(&machine, |cpu| (cpu + 4) % 16, |node| 3 - node);
    let mapping = Place::whole(&other).map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [vec![4], vec![9]]);
    assert!((0..4).all(|node| mapping.node_for(node) == Target::Node(3 - node)));
    assert_eq!(mapping.losses(), []);
}

#[test]
fn threads_that_were_not_pinned_are_left_alone_and_their_pages_are_not() {
    let machine = flat(1, 4, 4);
    let mut record = record(&machine, &[&[]], &[2]);
    record.threads[0].cpus = machine.all_cpus();
    record.threads.push(thread(Role::Bivouac, 0, [3]));
    for now in [machine.clone(), flat(1, 2, 4)] {
        assert_eq!(masks(&Place::whole(&now).map(&record, 0), &record), [None, None]);
    }
    assert_eq!(Place::whole(&machine).map(&record, 0).node_for(2), Target::Node(2));
    let smaller = Place::whole(&flat(1, 2, 4)).map(&record, 0);
    assert_eq!(smaller.node_for(2), Target::Spread(vec![0, 1]));
    assert_eq!(smaller.losses(), [Loss::NodeGone { node: 2, to: Target::Spread(vec![0, 1]) }]);
    assert_eq!(smaller.node_for(900), Target::Spread(vec![0, 1]), "a node that the record does not name");
}

#[test]
fn among_strangers_threads_go_back_or_stay_and_pages_have_places_all_the_same() {
    let machine = flat(1, 4, 4);
    let mut record = record(&machine, &[&[4], &[5]], &[0, 3]);
    record.neighbours = vec![2, 3];
    let among = Place { neighbours: vec![2, 3], has_strangers: true, ..Place::whole(&machine) };
    for rank in [2, 3] {
        let back = among.map(&record, rank);
        assert_eq!((pinned(&back, &record), back.losses()), (vec![vec![4], vec![5]], &[][..]));
    }
    let turned = Place { machine: renumbered(&machine, |cpu| 15 - cpu, |node| node), ..among.clone() };
    assert_eq!(pinned(&turned.map(&record, 2), &record), [vec![11], vec![10]], "the same place on other numbers");
    let others = [
        Place { neighbours: vec![3, 4], ..among.clone() },
        Place { allowed: (4..16).collect(), ..among.clone() },
        Place { machine: flat(1, 2, 8), ..among.clone() },
        Place { list: Some(vec![1, 2]), ..among.clone() },
    ];
    for place in others {
        let left = place.map(&record, 3);
        assert_eq!((masks(&left, &record), left.losses()[0].clone()), (vec![None, None], Loss::Strangers), "{place:?}");
        assert_eq!(left.node_for(0), Target::Node(0));
    }
    record.threads.iter_mut().for_each(|thread| thread.cpus = machine.all_cpus());
    let free = Place { list: Some(vec![1, 2]), neighbours: vec![9], ..among };
    assert_eq!(masks(&free.map(&record, 9), &record), [None, None], "and nothing is dealt to threads that were free");
}

#[test]
fn a_machine_of_which_some_memory_is_denied_is_the_same_machine() {
    let machine = flat(1, 4, 4);
    let record = record(&machine, &[&[4], &[13]], &[0, 1, 2, 3]);
    let bound = Place { denied: vec![2, 3], ..Place::whole(&machine) };
    let mapping = bound.map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [vec![4], vec![13]], "every CPU to itself");
    assert_eq!([0, 1].map(|node| mapping.node_for(node)), [0, 1].map(Target::Node));
    let denied = [2, 3].map(|node| mapping.node_for(node));
    let is_allowed = |target: &Target| matches!(target, Target::Node(0 | 1));
    assert!(denied.iter().all(is_allowed), "{denied:?}");
    assert_eq!(mapping.losses(), [Loss::NodeGone { node: 2, to: denied[0].clone() }]);
}

#[test]
fn fewer_cores_keep_nodes_together_and_pages_with_their_threads() {
    let machine = flat(1, 4, 4);
    let record = record(&machine, &[&[8], &[9], &[14], &[15]], &[2, 3, 0]);
    // The paper's machine with half of its nodes: 8 CPUs on two nodes.
    let mapping = Place::whole(&flat(1, 2, 4)).map(&record, 0);
    let cpus = pinned(&mapping, &record);
    assert_eq!(cpus, [vec![0], vec![1], vec![4], vec![5]]);
    assert_eq!((mapping.node_for(2), mapping.node_for(3)), (Target::Node(0), Target::Node(1)));
    assert_eq!((mapping.node_for(0), mapping.losses()), (Target::Node(0), &[][..]));
    // Two CPUs for four threads: each node's threads share one.
    let tight = Place { allowed: Cpus::from([3, 6]), ..Place::whole(&flat(1, 2, 4)) };
    let mapping = tight.map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [vec![3], vec![3], vec![6], vec![6]]);
    assert_eq!(mapping.losses(), [Loss::FewerCpus { then: 4, now: 2 }, Loss::CoresShared(2)]);
}

#[test]
fn another_cpuset_of_the_same_machine_is_not_left() {
    let machine = flat(1, 4, 4);
    let record = record(&machine, &[&[0], &[1], &[4]], &[0, 1]);
    let given = Place { allowed: (8..16).collect(), ..Place::whole(&machine) };
    let mapping = given.map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [vec![8], vec![9], vec![12]]);
    assert_eq!((mapping.node_for(0), mapping.node_for(1)), (Target::Node(2), Target::Node(3)));
    assert_eq!(mapping.losses(), [Loss::NotAllowed(Cpus::from([0, 1, 4]))]);
    // One node with two CPUs, one with one: threads that shared a node still do.
    let odd = Place { allowed: Cpus::from([2, 8, 9]), ..Place::whole(&machine) };
    assert_eq!(pinned(&odd.map(&record, 0), &record), [vec![8], vec![9], vec![2]]);
    // The CPUs are scattered, and the losses say so.
    let mapping = Place { allowed: Cpus::from([3, 7, 11]), ..Place::whole(&machine) }.map(&record, 0);
    assert!(mapping.losses().iter().any(|loss| matches!(loss, Loss::NodeSplit { node: 0, over } if over.len() == 2)));
    assert!(matches!(mapping.node_for(0), Target::Spread(nodes) if nodes.len() == 2));
}

#[test]
fn ranks_of_a_node_decide_alike_and_apart() {
    let machine = flat(1, 4, 4);
    let ranks = [4u32, 5, 6, 7];
    let all = |now: &Place| -> Vec<Cpus> {
        let map = |(at, rank): (usize, &u32)| {
            let mask: Vec<usize> = (at * 4..at * 4 + 2).collect();
            let record = Record { neighbours: ranks.to_vec(), ..record(&machine, &[&mask], &[]) };
            now.map(&record, *rank).cpus_for(&record.threads[0]).expect("pinned")
        };
        ranks.iter().enumerate().map(map).collect()
    };
    // The same ranks on a larger machine with its cores in packages: one map for all.
    let larger = Place { neighbours: ranks.to_vec(), ..Place::whole(&flat(2, 2, 8)) };
    assert_eq!(all(&larger), [0, 8, 16, 24].map(|cpu| Cpus::from([cpu, cpu + 1])));
    // With half of the CPUs, there is no such map, so each rank takes its share.
    let smaller = Place { neighbours: ranks.to_vec(), ..Place::whole(&flat(1, 2, 4)) };
    assert_eq!(all(&smaller), [0, 2, 4, 6].map(|cpu| Cpus::from([cpu, cpu + 1])));
    // With twice as many ranks on the node, each rank takes its share, too, even on the same machine.
    let crowded = Place { neighbours: (0..8).collect(), ..Place::whole(&machine) };
    assert_eq!(all(&crowded), [8, 10, 12, 14].map(|cpu| Cpus::from([cpu, cpu + 1])));
    let record = Record { neighbours: ranks.to_vec(), ..record(&machine, &[&[0]], &[]) };
    assert_eq!(crowded.map(&record, 4).losses(), [Loss::Shares { then: 4, now: 8 }]);
    // With more ranks than CPUs, two ranks share one, and nobody goes without.
    let tiny = Place { neighbours: ranks.to_vec(), ..Place::whole(&flat(1, 1, 2)) };
    assert_eq!(all(&tiny), [0, 0, 1, 1].map(|cpu| Cpus::from([cpu])));
}

#[test]
fn the_users_list_goes_before_everything_but_what_is_allowed() {
    let machine = flat(1, 4, 4);
    let mut record = Record { neighbours: vec![0, 1], ..record(&machine, &[&[0], &[1], &[2]], &[0]) };
    record.threads.push(thread(Role::Other, 9, 0..16));
    let list = Some(vec![15, 14, 13, 99, 13, 12]);
    let now = Place { neighbours: vec![0, 1], list, ..Place::whole(&machine) };
    let first = pinned(&now.map(&record, 0), &record);
    assert_eq!(first[3], [14, 15], "one that was not pinned gets the whole share");
    assert!(first[..3].iter().all(|cpus| cpus.len() == 1 && (14..16).contains(&cpus[0])));
    assert_eq!(pinned(&now.map(&record, 1), &record)[3], [12, 13]);
    // In the order of the list, one by one.
    record.threads.pop();
    let alone = Place { neighbours: vec![0], ..now.clone() };
    assert_eq!(pinned(&alone.map(&record, 0), &record), [[15], [14], [13]]);
    let forbidden = Place { allowed: (0..8).collect(), ..alone };
    let mapping = forbidden.map(&record, 0);
    assert!(mapping.losses().contains(&Loss::ListNotAllowed));
    assert!(pinned(&mapping, &record).iter().flatten().all(|cpu| *cpu < 8));
}

#[test]
fn hyperthreads_and_caches_are_kept_apart_or_together_as_they_were() {
    // 8 CPUs in 2 caches; siblings are neighbours.
    let mut machine = flat(1, 1, 8);
    machine.cpus.iter_mut().for_each(|cpu| (cpu.core, cpu.cache) = (cpu.number / 2, cpu.number / 4));
    machine.check().expect("sound");
    let record = record(&machine, &[&[0], &[2], &[4], &[6]], &[]);
    // The same record on another machine: four cores with two CPUs each in one cache.
    let mut other = flat(1, 1, 8);
    other.cpus.iter_mut().for_each(|cpu| cpu.core = cpu.number / 2);
    let mapping = Place::whole(&other).map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [[0], [2], [4], [6]], "a core each");
    let siblings = Record { threads: vec![thread(Role::Main, 0, [2]), thread(Role::Other, 1, [3])], ..record.clone() };
    assert_eq!(pinned(&Place::whole(&other).map(&siblings, 0), &siblings), [[2], [3]], "a core for both");
    let two = Place { allowed: Cpus::from([0, 1, 2, 3]), ..Place::whole(&other) };
    let mapping = two.map(&record, 0);
    assert_eq!(mapping.losses(), [Loss::CoresShared(2)]);
    assert_eq!(pinned(&mapping, &record).concat().into_iter().collect::<Cpus>(), Cpus::from([0, 1, 2, 3]));
}

#[test]
fn pages_of_nodes_without_memory_go_to_the_nearest_with_some() {
    let machine = flat(1, 4, 2);
    let record = record(&machine, &[&[6], &[7]], &[3, 1]);
    let mut now = machine.clone();
    now.nodes[3].bytes = 0;
    now.nodes[1].bytes = 0;
    // A ring: node 2 is next to node 3.
    let hops = |from: u16, to: u16| 10 + 10 * from.abs_diff(to).min(4 - from.abs_diff(to));
    now.distances = (0..4).flat_map(|from| (0..4).map(move |to| hops(from, to))).collect();
    let mapping = Place::whole(&now).map(&record, 0);
    assert_eq!(pinned(&mapping, &record), [[6], [7]]);
    assert_eq!(mapping.node_for(3), Target::Node(2));
    // No thread of the rank was there, so its pages are spread: another machine's neighbours mean nothing.
    assert_eq!(mapping.node_for(1), Target::Spread(vec![0, 2]));
    assert_eq!(mapping.losses(), [Loss::NodeGone { node: 1, to: Target::Spread(vec![0, 2]) }]);
}

fn with_gpus(mut machine: Machine, gpus: &[(&str, u32)]) -> Machine {
    let gpu = |(address, node): &(&str, u32)| PciDevice {
        address: (*address).to_owned(),
        kind: PciKind::Gpu,
        nodes: vec![*node],
    };
    machine.devices = gpus.iter().map(gpu).collect();
    machine
}

#[test]
fn threads_stay_near_the_gpu_of_their_rank() {
    let old = with_gpus(flat(2, 1, 8), &[("0000:17:00.0", 0), ("0000:ca:00.0", 1)]);
    let mut record = record(&old, &[&[0], &[1], &[8]], &[0, 1]);
    record.regions.push(("images".into(), RegionPlace::Device("0000:17:00.0".into())));
    // Another machine, whose GPU is at the other end.
    let now = with_gpus(flat(2, 2, 8), &[("0000:41:00.0", 3)]);
    let place = Place { gpus: vec!["0000:41:00.0".into()], ..Place::whole(&now) };
    let mapping = place.map(&record, 0);
    assert_eq!(pinned(&mapping, &record)[..2], [[24], [25]]);
    assert_ne!(pinned(&mapping, &record)[2][0] / 8, 3, "the thread that was far from it stays far");
    assert_eq!((mapping.node_for(0), mapping.losses()), (Target::Node(3), &[][..]));
    let far = Place { allowed: (0..24).collect(), ..place }.map(&record, 0);
    assert!(far.losses().contains(&Loss::GpuFar));
}

#[test]
fn records_that_make_no_sense_are_harmless() {
    let machine = flat(1, 2, 4);
    let nothing = Place { allowed: Cpus::new(), ..Place::whole(&machine) };
    let sane = record(&machine, &[&[0]], &[0]);
    assert_eq!(masks(&nothing.map(&sane, 0), &sane), [None]);
    let unknown = Place::whole(&Machine::default());
    let mapping = unknown.map(&sane, 0);
    assert_eq!(masks(&mapping, &sane), [None]);
    assert_eq!((mapping.node_for(0), &mapping.losses()[0]), (Target::Spread(vec![]), &Loss::MachineUnknown));
    let foreign = record(&machine, &[&[700], &[usize::MAX]], &[77]);
    let mapping = Place::whole(&machine).map(&foreign, 9);
    assert_eq!(masks(&mapping, &foreign), [None, None]);
    assert_eq!(mapping.node_for(77), Target::Spread(vec![0, 1]));
    let empty = Place { list: Some(vec![]), neighbours: vec![], ..Place::whole(&machine) };
    assert_eq!(pinned(&empty.map(&sane, 0), &sane), [[0]]);
    assert!(mapping.losses().iter().chain(unknown.map(&sane, 0).losses()).all(|loss| !loss.to_string().is_empty()));
}

#[test]
fn wanted_pages_follow_the_map_and_spread_by_huge_pages() {
    let machine = flat(1, 4, 2);
    let record = record(&machine, &[&[6]], &[3, 1]);
    let confined = Place { allowed: Cpus::from([2, 3]), ..Place::whole(&flat(1, 2, 2)) };
    let mapping = confined.map(&record, 0);
    assert_eq!((mapping.node_for(3), mapping.node_for(2)), (Target::Node(1), Target::Spread(vec![0, 1])));
    let huge = HUGE_BYTES / PAGE_BYTES;
    let map =
        PageMap::from_runs(0, [(4, Some(3)), (3 * huge, Some(2)), (1, None)].map(|(pages, node)| Run { pages, node }));
    let bytes = map.pages() * PAGE_BYTES;
    let wanted = mapping.place(&map, bytes, 10 * HUGE_BYTES);
    wanted.check(bytes).expect("a map");
    let runs: Vec<_> = wanted.runs.iter().map(|run| (run.pages, run.node)).collect();
    let expected = [(4, Some(1)), (huge - 4, Some(0)), (huge, Some(1)), (huge, Some(0)), (4, Some(1)), (1, None)];
    assert_eq!(runs, expected);
    assert_eq!(wanted.mixed_blocks(10 * HUGE_BYTES), [10 * HUGE_BYTES], "only where the record has it so");
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    use super::*;

    fn synthetic(description: &str) -> Machine {
        Machine::from_synthetic(description).expect(description)
    }

    /// Maps every machine to every other. The result is within the machine and never empty, and from a machine to
    /// itself it is the identity.
    #[test]
    fn machines_of_many_kinds_map_to_each_other() {
        let kinds = [
            "pack:2 numa:1 l3:1 core:16 pu:2",
            "pack:2 numa:4 l3:2 core:8 pu:2",
            "numa:4 core:4 pu:1",
            "pack:1 numa:1 l3:1 core:64 pu:4",
            "group:4 [numa(memory=24GB)] [numa(memory=4GB)] core:4 pu:4",
            "pack:2 [numa(memory=64GB)] [numa(memory=0)] l3:1 core:8 pu:1",
        ];
        let machines = kinds.map(synthetic);
        for (old, name) in machines.iter().zip(kinds) {
            let masks: Vec<Vec<usize>> = old.cpus.chunks(3).map(|cpus| vec![cpus[0].number as usize]).collect();
            let masks: Vec<&[usize]> = masks.iter().map(Vec::as_slice).collect();
            let nodes: Vec<u32> = old.nodes.iter().map(|node| node.number).collect();
            let record = record(old, &masks, &old.nodes_with_memory());
            for (new, other) in machines.iter().zip(kinds) {
                let mapping = Place::whole(new).map(&record, 0);
                let found = pinned(&mapping, &record);
                assert!(found.iter().flatten().all(|cpu| new.all_cpus().contains(cpu)), "{name} to {other}");
                if name == other {
                    assert_eq!((found, mapping.losses()), (masks.iter().map(|mask| mask.to_vec()).collect(), &[][..]));
                }
                for node in &nodes {
                    let target = mapping.node_for(*node);
                    let wanted = match &target {
                        Target::Node(node) => vec![*node],
                        Target::Spread(nodes) => nodes.clone(),
                    };
                    let has_memory = |node: &u32| new.node(*node).is_some_and(|node| node.bytes > 0);
                    assert!(
                        !wanted.is_empty() && wanted.iter().all(has_memory),
                        "{name} to {other}: {node} {target:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_rank_on_one_socket_goes_to_neighbouring_domains_of_another_machine() {
        // 16 cores of a socket go to two domains with 8 cores each, in one package.
        let old = synthetic("pack:2 numa:1 l3:1 core:16 pu:1");
        let new = synthetic("pack:2 numa:4 l3:2 core:4 pu:1");
        let mask: Vec<usize> = (16..32).collect();
        let each: Vec<&[usize]> = mask.chunks(1).collect();
        let record = record(&old, &each, &[1]);
        let mapping = Place::whole(&new).map(&record, 0);
        let cpus: Cpus = pinned(&mapping, &record).concat().into_iter().collect();
        let nodes: BTreeSet<u32> = cpus.iter().filter_map(|cpu| new.cpu(*cpu as u32)).map(|cpu| cpu.node).collect();
        let packages: BTreeSet<u32> =
            cpus.iter().filter_map(|cpu| new.cpu(*cpu as u32)).map(|cpu| cpu.package).collect();
        assert_eq!((cpus.len(), nodes.len(), packages.len()), (16, 2, 1), "{cpus:?}");
        assert_eq!(mapping.node_for(1), Target::Spread(nodes.into_iter().collect()));
    }

    #[test]
    fn flat_memory_beside_ordinary_memory_keeps_its_pages() {
        // From quadrant to SNC4: on the old machine, high-bandwidth memory is node 1 and has no CPUs.
        let old = synthetic("pack:1 [numa(memory=96GB)] [numa(memory=16GB)] core:16 pu:1");
        assert!(old.cpus.iter().all(|cpu| cpu.node == 0));
        let record = record(&old, &[&[0], &[1]], &[1]);
        let same = Place::whole(&old).map(&record, 0);
        assert_eq!((same.node_for(1), same.losses()), (Target::Node(1), &[][..]));
    }

    /// A machine such as a DGX: two packages with a node each, and below a switch of each node two GPUs and a network card.
    fn dgx(first_bus: [u8; 2]) -> Machine {
        let mut index = 10u32;
        let mut next = || {
            index += 1;
            index
        };
        let mut packages = String::new();
        for (node, bus) in first_bus.into_iter().enumerate() {
            let set = |cpus: u32| format!(r#"cpuset="{cpus:#x}" complete_cpuset="{cpus:#x}""#);
            let nodes = format!(r#"nodeset="{:#x}" complete_nodeset="{:#x}""#, 1 << node, 1 << node);
            let mut below = format!(
                r#"<object type="NUMANode" os_index="{node}" {} {nodes} gp_index="{}" local_memory="1073741824"/>"#,
                set(0xf << (4 * node)),
                next()
            );
            for cpu in 4 * node..4 * node + 4 {
                let sets = format!("{} {nodes}", set(1 << cpu));
                below += &format!(
                    r#"<object type="Core" os_index="{cpu}" {sets} gp_index="{}"><object type="PU" os_index="{cpu}" {sets} gp_index="{}"/></object>"#,
                    next(),
                    next()
                );
            }
            let device = |at: u8, class: &str, index: u32| {
                format!(
                    r#"<object type="PCIDev" gp_index="{index}" pci_busid="0000:{at:02x}:00.0" pci_type="{class} [10de:2330] [10de:16c1] a1" pci_link_speed="0.0"/>"#
                )
            };
            let devices =
                device(bus + 2, "0302", next()) + &device(bus + 3, "0302", next()) + &device(bus + 4, "0207", next());
            let last = bus + 0x0f;
            below += &format!(
                r#"<object type="Bridge" gp_index="{}" bridge_type="0-1" depth="0" bridge_pci="0000:[{bus:02x}-{last:02x}]">
                   <object type="Bridge" gp_index="{}" bridge_type="1-1" depth="1" bridge_pci="0000:[{:02x}-{last:02x}]"
                    pci_busid="0000:{bus:02x}:01.0" pci_type="0604 [8086:2030] [0000:0000] 07" pci_link_speed="0.0">{devices}</object></object>"#,
                next(),
                next(),
                bus + 1,
            );
            let sets = format!("{} {nodes}", set(0xf << (4 * node)));
            packages +=
                &format!(r#"<object type="Package" os_index="{node}" {sets} gp_index="{}">{below}</object>"#, next());
        }
        let xml = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
            <!DOCTYPE topology SYSTEM "hwloc2.dtd">
            <topology version="2.0">
              <object type="Machine" os_index="0" cpuset="0xff" complete_cpuset="0xff" allowed_cpuset="0xff" nodeset="0x3"
                complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">{packages}</object>
            </topology>"#
        );
        let machine = Machine::from_xml(&xml).expect("XML");
        machine.check().expect("sound");
        machine
    }

    #[test]
    fn a_rank_goes_with_its_gpu_to_a_machine_with_switches() {
        let machine = dgx([0x10, 0x80]);
        let devices: Vec<_> =
            machine.devices.iter().map(|one| (one.address.as_str(), one.kind, one.nodes.clone())).collect();
        let (gpu, network) = (PciKind::Gpu, PciKind::Network);
        let expected = [
            ("0000:12:00.0", gpu, vec![0]),
            ("0000:13:00.0", gpu, vec![0]),
            ("0000:14:00.0", network, vec![0]),
            ("0000:82:00.0", gpu, vec![1]),
            ("0000:83:00.0", gpu, vec![1]),
            ("0000:84:00.0", network, vec![1]),
        ];
        assert_eq!(devices, expected);
        // The same machine with its buses numbered anew is still the same.
        assert_eq!(machine.likeness(&dgx([0x20, 0xa0])), Likeness::Same);
        let mut record = record(&machine, &[&[0], &[1]], &[0]);
        record.regions.push(("images".into(), RegionPlace::Device("0000:12:00.0".into())));
        // A machine with four nodes and its only GPU at the last.
        let now = with_gpus(flat(2, 2, 4), &[("0000:c1:00.0", 3)]);
        let mapping = Place { gpus: vec!["0000:C1:00.0".into()], ..Place::whole(&now) }.map(&record, 0);
        assert_eq!(pinned(&mapping, &record), [[12], [13]]);
        // And back, with the job confined to the half without a GPU: the losses say so.
        let there = Place { allowed: (4..8).collect(), gpus: vec!["0000:12:00.0".into()], ..Place::whole(&machine) };
        assert!(there.map(&record, 0).losses().contains(&Loss::GpuFar));
    }
}

/// Any small machine, with nodes, caches and cores of different sizes and numbers in any order.
fn machine() -> impl Strategy<Value = Machine> {
    let cache = prop::collection::vec(1usize..3, 1..4); // CPUs of each core.
    let node = prop::collection::vec(cache, 1..3);
    (prop::collection::vec(node, 1..5), any::<u64>(), 0u32..16).prop_map(|(nodes, seed, memory)| {
        let mut machine = Machine::default();
        let (mut cache, mut core) = (0, 0);
        for (number, caches) in (0u32..).zip(&nodes) {
            for cores in caches {
                for cpus in cores {
                    machine.cpus.extend((0..*cpus).map(|_| Cpu {
                        number: 0,
                        core,
                        cache,
                        package: number / 2,
                        node: number,
                    }));
                    core += 1;
                }
                cache += 1;
            }
            let bytes = if memory >> number & 1 == 1 && number > 0 { 0 } else { 1 << 30 };
            machine.nodes.push(Node { number, bytes });
        }
        let mut numbers: Vec<u32> = (0..machine.cpus.len() as u32).collect();
        let mut rng = crate::base::rng::Rng::new(seed);
        (1..numbers.len()).rev().for_each(|at| numbers.swap(at, rng.below(at as u64 + 1) as usize));
        machine.cpus.iter_mut().zip(numbers).for_each(|(cpu, number)| cpu.number = number);
        machine
    })
}

/// Some of the CPUs of a machine, by the bits of a word.
fn some(machine: &Machine, bits: u64) -> Cpus {
    machine.all_cpus().into_iter().filter(|cpu| bits >> cpu & 1 == 1).collect()
}

fn node_of(machine: &Machine, cpu: usize) -> u32 {
    machine.cpu(cpu as u32).expect("a CPU").node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn what_is_allowed_is_never_left_and_never_nothing(
        old in machine(), new in machine(), bits in any::<u64>(), masks in prop::collection::vec(any::<u64>(), 1..6),
        then in 1u32..4, ranks in 1u32..4, rank in 0u32..4, list in proptest::option::of(prop::collection::vec(0u32..40, 0..9)),
    ) {
        old.check().map_err(TestCaseError::fail)?;
        let mut record = record(&old, &[], &[0, 1, 2, 9]);
        record.neighbours = (0..then).collect();
        record.threads = masks.iter().map(|bits| thread(Role::Other, 0, some(&old, *bits))).collect();
        let allowed = some(&new, bits);
        let place = Place { allowed: allowed.clone(), neighbours: (0..ranks).collect(), list: list.clone(), ..Place::whole(&new) };
        let mapping = place.map(&record, rank);
        for thread in &record.threads {
            let cpus = mapping.cpus_for(thread);
            let is_left = list.is_none() && thread.cpus == record.given;
            let has_place = !allowed.is_empty() && !thread.cpus.is_empty() && !is_left;
            match cpus {
                None => prop_assert!(!has_place || is_left),
                Some(cpus) => prop_assert!(!cpus.is_empty() && cpus.is_subset(&allowed)),
            }
        }
        for node in 0..12 {
            let has_memory = |node: &u32| new.node(*node).is_some_and(|node| node.bytes > 0);
            match mapping.node_for(node) {
                Target::Node(node) => prop_assert!(has_memory(&node)),
                Target::Spread(nodes) => prop_assert!(!nodes.is_empty() && nodes.iter().all(has_memory)),
            }
        }
    }

    #[test]
    fn the_same_machine_is_the_identity(
        old in machine(), masks in prop::collection::vec(1u64.., 1..6), ranks in 1u32..4, rank in 0u32..4,
    ) {
        let mut record = record(&old, &[], &[0, 1]);
        record.neighbours = (0..ranks).collect();
        record.threads = masks.iter().map(|bits| thread(Role::Other, 0, some(&old, *bits))).collect();
        let mapping = Place { neighbours: record.neighbours.clone(), ..Place::whole(&old) }.map(&record, rank);
        for thread in record.threads.iter().filter(|thread| thread.cpus != record.given && !thread.cpus.is_empty()) {
            prop_assert_eq!(mapping.cpus_for(thread), Some(thread.cpus.clone()));
        }
        for node in old.nodes_with_memory() {
            prop_assert_eq!(mapping.node_for(node), Target::Node(node));
        }
    }

    #[test]
    fn threads_that_shared_a_node_share_one_where_there_is_room(
        old in machine(), new in machine(), used in 1u64.., bits in any::<u64>(),
    ) {
        let used = some(&old, used);
        let threads = used.iter().map(|cpu| thread(Role::Other, 0, [*cpu])).collect();
        let record = Record { threads, ..record(&old, &[], &[]) };
        // One thread, or a machine with one CPU, is not pinned.
        prop_assume!(record.threads.iter().all(|thread| thread.cpus != record.given));
        let place = Place { allowed: some(&new, bits), ..Place::whole(&new) };
        prop_assume!(!place.allowed.is_empty() && !used.is_empty());
        let mapping = place.map(&record, 0);
        let image = |cpu: usize| *mapping.cpus_for(&thread(Role::Other, 0, [cpu])).expect("pinned").first().expect("one");
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        used.iter().for_each(|cpu| groups.entry(node_of(&old, *cpu)).or_default().push(*cpu));
        let mut room: BTreeMap<u32, usize> = BTreeMap::new();
        place.allowed.iter().for_each(|cpu| *room.entry(node_of(&new, *cpu)).or_default() += 1);
        let over = |cpus: &[usize]| cpus.iter().map(|cpu| node_of(&new, image(*cpu))).collect::<BTreeSet<_>>().len();
        // The largest chooses first; if each node has room for all, everyone stays together.
        let largest = groups.values().max_by_key(|cpus| cpus.len()).expect("one").len();
        let most = room.values().copied().max().unwrap_or(0);
        let least = room.values().copied().min().unwrap_or(0);
        if largest <= most {
            prop_assert!(groups.values().filter(|cpus| cpus.len() == largest).any(|cpus| over(cpus) == 1));
        }
        if used.len() <= most || (largest <= least && groups.len() <= room.len()) {
            prop_assert!(groups.values().all(|cpus| over(cpus) == 1));
        }
        // As many CPUs as possible.
        if used.len() <= place.allowed.len() {
            prop_assert_eq!(used.iter().map(|cpu| image(*cpu)).collect::<Cpus>().len(), used.len());
        }
    }

    #[test]
    fn disjoint_ranks_stay_disjoint(
        old in machine(), new in machine(), owner in prop::collection::vec(0u32..3, 64), bits in any::<u64>(),
        now in 3u32..5,
    ) {
        let place = Place { allowed: some(&new, bits), neighbours: (0..now).collect(), ..Place::whole(&new) };
        prop_assume!(place.allowed.len() >= now as usize);
        let mut taken = Cpus::new();
        for rank in 0..3 {
            let cpus: Cpus = old.all_cpus().into_iter().filter(|cpu| owner[*cpu] == rank).collect();
            let record = Record { neighbours: vec![0, 1, 2], ..record(&old, &[], &[]) };
            let own = thread(Role::Main, 0, cpus);
            let record = Record { threads: vec![own.clone()], ..record };
            let image = place.map(&record, rank).cpus_for(&own).unwrap_or_default();
            prop_assert!(taken.is_disjoint(&image), "{:?} and {:?}", taken, image);
            taken.extend(image);
        }
    }
}
