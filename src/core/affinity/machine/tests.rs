//! Compares the readers with each other and with machines that were written down for the tests.

use super::*;
use std::fs;
use std::path::Path;

/// A machine with this many packages, nodes per package, and cores per node, with one CPU each. Each
/// node has a cache and memory.
pub(crate) fn flat(packages: u32, nodes: u32, cores: u32) -> Machine {
    let cpu = |number: u32| {
        let node = number / cores;
        Cpu { number, core: number, cache: node, package: node / nodes, node }
    };
    let count = packages * nodes;
    let nodes = (0..count).map(|number| Node { number, bytes: 1 << 30 }).collect();
    let distance = |from: u32, to: u32| if from == to { 10 } else { 20 };
    Machine {
        cpus: (0..count * cores).map(cpu).collect(),
        nodes,
        distances: (0..count).flat_map(|from| (0..count).map(move |to| distance(from, to))).collect(),
        devices: Vec::new(),
    }
}

/// The machine with other numbers for its CPUs and nodes.
pub(crate) fn renumbered(machine: &Machine, cpu: impl Fn(u32) -> u32, node: impl Fn(u32) -> u32) -> Machine {
    let mut other = machine.clone();
    for one in &mut other.cpus {
        (one.number, one.node) = (cpu(one.number), node(one.node));
    }
    other.nodes.iter_mut().for_each(|one| one.number = node(one.number));
    other.devices.iter_mut().for_each(|one| one.nodes.iter_mut().for_each(|number| *number = node(*number)));
    other
}

/// Writes files below a folder.
fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
}

fn from_sys(root: &Path) -> Machine {
    sysfs::read(root).expect("a machine").assemble()
}

#[test]
fn this_machine_is_read_and_sound() {
    let machine = Machine::here();
    machine.check().expect("sound");
    let own = crate::affinity::cpus::of_this_thread();
    assert!(own.is_subset(&machine.all_cpus()), "{own:?}");
    assert!(!machine.nodes_with_memory().is_empty());
    assert_eq!(machine.likeness(&machine.clone()), Likeness::Same);
}

#[cfg(feature = "hwloc")]
#[test]
fn both_readers_agree_on_this_machine() {
    let root = Path::new("/sys");
    // A virtual machine may be given memory between two looks.
    loop {
        let (before, read, after) = (from_sys(root), hwloc::here(root).expect("hwloc"), from_sys(root));
        if before == after {
            return assert_eq!(read, before);
        }
    }
}

/// The environment belongs to the whole process, so this test runs a second time, in another process.
#[cfg(feature = "hwloc")]
#[test]
fn a_machine_that_hwlocs_environment_describes_is_not_this_one() {
    let root = Path::new("/sys");
    if std::env::var_os("HWLOC_SYNTHETIC").is_some() {
        assert!(hwloc::here(root).is_err());
        // A virtual machine may get more memory between the two looks.
        return assert_eq!(Machine::here().likeness(&from_sys(root)), Likeness::Same);
    }
    let name = "affinity::machine::tests::a_machine_that_hwlocs_environment_describes_is_not_this_one";
    let mut again = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = again.args([name, "--exact"]).env("HWLOC_SYNTHETIC", "numa:3 core:5 pu:1").output().expect("started");
    let out = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
}

/// Two packages of two cores with two CPUs each, numbered as common firmware does it: the numbers of siblings differ by half
/// the number of CPUs. The node of the second package has no memory, and a third node has memory but no CPUs.
fn write_odd_machine(root: &Path) {
    write(root, &[("devices/system/cpu/online", "0-7\n"), ("devices/system/node/online", "0-2\n")]);
    for cpu in 0..8 {
        let (core, package) = (cpu % 4, cpu % 4 / 2);
        let siblings = format!("{core},{}", core + 4);
        let all = format!("{}-{},{}-{}", package * 2, package * 2 + 1, package * 2 + 4, package * 2 + 5);
        let folder = format!("devices/system/cpu/cpu{cpu}");
        let put = |name: &str, text: &str| write(root, &[(&format!("{folder}/{name}"), text)]);
        put("topology/core_cpus_list", &siblings);
        put("topology/package_cpus_list", &all);
        for (index, level, kind, list) in
            [(0, "1", "Data", &siblings), (1, "1", "Instruction", &siblings), (2, "3", "Unified", &all)]
        {
            put(&format!("cache/index{index}/level"), level);
            put(&format!("cache/index{index}/type"), kind);
            put(&format!("cache/index{index}/shared_cpu_list"), list);
        }
    }
    for (node, cpus, kilobytes, distance) in
        [(0, "0-1,4-5", 1024, "10 21 17"), (1, "2-3,6-7", 0, "21 10 28"), (2, "", 2048, "17 28 10")]
    {
        let folder = format!("devices/system/node/node{node}");
        let put = |name: &str, text: &str| write(root, &[(&format!("{folder}/{name}"), text)]);
        put("cpulist", cpus);
        put("meminfo", &format!("Node {node} MemTotal:  {kilobytes} kB\nNode {node} MemFree: 7 kB\n"));
        put("distance", distance);
    }
    for (address, class, cpus) in [
        ("0000:9a:00.0", "0x030200", "2-3,6-7"),
        ("0000:17:00.0", "0x020700", "0-7"),
        ("0000:00:01.0", "0x010802", "0-7"),
    ] {
        let folder = format!("bus/pci/devices/{address}");
        write(root, &[(&format!("{folder}/class"), class), (&format!("{folder}/local_cpulist"), cpus)]);
    }
}

#[test]
fn sys_shows_siblings_nodes_without_memory_or_cpus_and_devices() {
    let folder = tempfile::tempdir().expect("a folder");
    write_odd_machine(folder.path());
    let machine = from_sys(folder.path());
    machine.check().expect("sound");
    let cpus: Vec<_> =
        machine.cpus.iter().map(|cpu| (cpu.number, cpu.core, cpu.cache, cpu.package, cpu.node)).collect();
    assert_eq!(
        cpus,
        [
            (0, 0, 0, 0, 0),
            (4, 0, 0, 0, 0),
            (1, 1, 0, 0, 0),
            (5, 1, 0, 0, 0),
            (2, 2, 1, 1, 1),
            (6, 2, 1, 1, 1),
            (3, 3, 1, 1, 1),
            (7, 3, 1, 1, 1),
        ]
    );
    let nodes: Vec<_> = machine.nodes.iter().map(|node| (node.number, node.bytes >> 10)).collect();
    assert_eq!(nodes, [(0, 1024), (2, 2048), (1, 0)], "the one without memory is last");
    assert_eq!(machine.distances, [10, 17, 21, 17, 10, 28, 21, 28, 10]);
    assert_eq!(machine.nearest_with_memory(1), Some(0));
    assert_eq!(machine.nearest_with_memory(2), Some(2));
    assert_eq!(machine.nodes_with_memory(), [0, 2]);
    let devices: Vec<_> =
        machine.devices.iter().map(|one| (one.address.as_str(), one.kind, one.nodes.clone())).collect();
    assert_eq!(
        devices,
        [("0000:17:00.0", PciKind::Network, vec![0, 1]), ("0000:9a:00.0", PciKind::Gpu, vec![1])],
        "a disk is none of our business"
    );
}

#[test]
fn cpus_that_are_off_and_kernels_without_numa_are_no_obstacle() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(sysfs::read(folder.path()).is_none());
    write_odd_machine(folder.path());
    write(folder.path(), &[("devices/system/cpu/online", "1-7")]);
    let machine = from_sys(folder.path());
    assert_eq!((machine.check(), machine.cpus.len(), machine.cpus[0].number), (Ok(()), 7, 1));
    fs::remove_dir_all(folder.path().join("devices/system/node")).expect("removed");
    let machine = from_sys(folder.path());
    assert_eq!((machine.check(), machine.nodes.len()), (Ok(()), 1));
    assert!(machine.nodes[0].bytes > 0 && machine.cpus.iter().all(|cpu| cpu.node == 0));
}

#[test]
fn shapes_do_not_depend_on_numbers() {
    let machine = flat(2, 2, 4);
    let swapped = renumbered(&machine, |cpu| cpu ^ 1, |node| 3 - node);
    swapped.check().expect("sound");
    assert_eq!(machine.likeness(&swapped), Likeness::Renumbered);
    assert_eq!(machine.likeness(&flat(4, 1, 4)), Likeness::Other);
    let mut other = machine.clone();
    other.nodes[1].bytes *= 2;
    assert_eq!(machine.likeness(&other), Likeness::Same, "memory was added");
    other.nodes[1].bytes = 0;
    assert_eq!(machine.likeness(&other), Likeness::Other, "memory was taken out");
    let mut gpu = machine.clone();
    gpu.devices.push(PciDevice { address: "0000:01:00.0".into(), kind: PciKind::Gpu, nodes: vec![1] });
    let mut moved = gpu.clone();
    moved.devices[0].nodes = vec![2];
    assert_eq!((gpu.likeness(&machine), gpu.likeness(&moved)), (Likeness::Other, Likeness::Other));
    moved.devices[0] = PciDevice { address: "0000:07:00.0".into(), ..gpu.devices[0].clone() };
    assert_eq!(gpu.likeness(&moved), Likeness::Same, "the bus is numbered anew at each start");
}

#[test]
fn machines_from_elsewhere_are_checked() {
    let good = flat(2, 2, 4);
    good.check().expect("sound");
    Machine::default().check().expect("nothing is known, and that is no error");
    let bad: [fn(&mut Machine); 10] = [
        |machine| machine.cpus[3].number = 2,
        |machine| machine.cpus[3].number = 1 << 20,
        |machine| machine.cpus[3].node = 9,
        |machine| machine.cpus[3].core = u32::MAX,
        |machine| machine.cpus[0].package = 1,
        |machine| machine.nodes[1].number = 0,
        |machine| machine.nodes[1].number = u32::MAX,
        |machine| _ = machine.distances.pop(),
        |machine| {
            machine.devices.push(PciDevice { address: String::new(), kind: PciKind::Gpu, nodes: vec![17] });
        },
        |machine| {
            let nodes = vec![0; DEVICE_NODES_MAX + 1];
            machine.devices.push(PciDevice { address: String::new(), kind: PciKind::Gpu, nodes });
        },
    ];
    for (index, damage) in bad.iter().enumerate() {
        let mut machine = good.clone();
        damage(&mut machine);
        assert!(machine.check().is_err(), "damage {index}");
    }
    let many = Machine { cpus: vec![good.cpus[0]; CPUS_MAX + 1], ..good };
    assert!(many.check().is_err());
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    use super::*;

    fn synthetic(description: &str) -> Machine {
        let machine = Machine::from_synthetic(description).expect(description);
        machine.check().expect(description);
        machine
    }

    #[test]
    fn machines_in_hwlocs_short_form_are_read() {
        let machine = synthetic("pack:2 numa:4 l3:2 core:4 pu:2");
        let counts = |machine: &Machine| {
            let max = |of: fn(&Cpu) -> u32| machine.cpus.iter().map(of).max().map_or(0, |max| max + 1);
            (machine.cpus.len(), max(|cpu| cpu.core), max(|cpu| cpu.cache), max(|cpu| cpu.package), machine.nodes.len())
        };
        assert_eq!(counts(&machine), (128, 64, 16, 2, 8));
        assert_eq!(machine.cpus_of_node(1), (16..32).collect::<Cpus>());
        assert!(machine.nodes.iter().all(|node| node.bytes > 0));
        // Without a last-level cache, the package counts as one; with SNC, several nodes have one cache.
        assert_eq!(counts(&synthetic("pack:2 numa:2 core:4 pu:1")), (16, 16, 2, 2, 4));
        assert_eq!(counts(&synthetic("pack:2 l3:1 numa:2 core:4 pu:1")), (16, 16, 2, 2, 4));
        assert!(Machine::from_synthetic("pack:0 and so on").is_err());
        assert!(Machine::from_xml("<topology").is_err());
    }

    #[test]
    fn memory_without_cpus_stands_behind_and_is_no_cpus_nearest_node() {
        // As on a KNL in mode SNC4: ordinary and high-bandwidth memory in each quarter.
        let machine = synthetic("[numa(memory=16GB)] [numa(memory=4GB)] core:4 pu:2");
        assert_eq!(machine.nodes.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1]);
        assert!(machine.cpus.iter().all(|cpu| cpu.node == 0));
        let machine = synthetic("group:4 [numa(memory=24GB)] [numa(memory=4GB)] core:4 pu:2");
        let with_cpus: BTreeSet<u32> = machine.cpus.iter().map(|cpu| cpu.node).collect();
        assert_eq!(with_cpus.len(), 4, "{machine:?}");
        let first: BTreeSet<u32> = machine.nodes[..4].iter().map(|node| node.number).collect();
        assert_eq!(first, with_cpus);
    }
}
