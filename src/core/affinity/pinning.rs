//! Where threads are placed from the start if an application asks for this. Pure.
#![forbid(unsafe_code)]

use super::cpus::Cpus;
use super::machine::Machine;
use std::collections::BTreeMap;

/// How the threads of the ranks of a node are spread over the CPUs that the job was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Each rank has its share of neighbouring cores, and each thread gets one of these cores, in order: threads that work on the same
    /// thing share caches.
    Compact,
    /// Each rank has its share of neighbouring cores, and its threads are placed in turn on the share's NUMA nodes, packages or caches, so
    /// that together they have the most bandwidth.
    Scatter,
    /// All threads on the CPUs nearest to the device with this PCI address.
    Near(String),
    /// Where the launcher put them.
    Launcher,
}

/// The part of `cpus` (in logical order) that belongs to the rank at `position` among `count` ranks: whole cores, as
/// long as there are enough.
pub fn share(machine: &Machine, cpus: &Cpus, position: usize, count: usize) -> Vec<u32> {
    let cores = cores(machine, &machine.in_order(cpus));
    let part = |items: usize| items * position / count.max(1)..items * (position + 1) / count.max(1);
    if cores.len() >= count {
        return cores[part(cores.len())].concat();
    }
    let all = cores.concat();
    match part(all.len()) {
        // More ranks than CPUs: they take the CPUs in turn.
        none if none.is_empty() => all.get(position % all.len().max(1)).into_iter().copied().collect(),
        range => all[range].to_vec(),
    }
}

/// These CPUs, grouped by core.
fn cores(machine: &Machine, cpus: &[u32]) -> Vec<Vec<u32>> {
    let core = |number: u32| machine.cpu(number).map_or(u32::MAX, |cpu| cpu.core);
    cpus.chunk_by(|a, b| core(*a) == core(*b)).map(<[u32]>::to_vec).collect()
}

/// Where the `threads` threads of a rank go; empty if they stay where they are. `share` is what the rank has, and
/// `given` what the job has.
pub fn masks(pin: &Pin, machine: &Machine, given: &Cpus, share: &[u32], threads: usize) -> Vec<Cpus> {
    let cores = cores(machine, share);
    let order = match pin {
        Pin::Launcher => return Vec::new(),
        Pin::Near(address) => {
            let nodes = machine.device(address).map_or_else(Vec::new, |device| device.nodes.clone());
            let near: Cpus = nodes.iter().flat_map(|node| machine.cpus_of_node(*node)).collect();
            let near = &near & given;
            return if near.is_empty() { Vec::new() } else { vec![near; threads] };
        }
        Pin::Compact => cores,
        Pin::Scatter => dealt(machine, cores),
    };
    if order.is_empty() {
        return Vec::new();
    }
    (0..threads).map(|thread| order[thread % order.len()].iter().map(|cpu| *cpu as usize).collect()).collect()
}

/// Cores in an order that takes one of each cache in turn.
fn dealt(machine: &Machine, cores: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let mut caches: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
    for core in cores.into_iter().rev() {
        let cache = machine.cpu(core[0]).map_or(0, |cpu| cpu.cache);
        caches.entry(cache).or_default().push(core);
    }
    let mut order = Vec::new();
    while !caches.is_empty() {
        order.extend(caches.values_mut().filter_map(Vec::pop));
        caches.retain(|_, cores| !cores.is_empty());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::machine::Cpu;
    use super::*;

    /// Two nodes with two caches each, of two cores with two CPUs each, numbered as Linux often does it: the second CPUs of the cores come
    /// last.
    fn machine() -> Machine {
        let cpu = |at: u32| {
            let core = at / 2;
            Cpu { number: core + 8 * (at % 2), core, cache: core / 2, package: core / 4, node: core / 4 }
        };
        Machine { cpus: (0..16).map(cpu).collect(), ..Machine::default() }
    }

    fn set(cpus: &[usize]) -> Cpus {
        cpus.iter().copied().collect()
    }

    #[test]
    fn ranks_share_whole_cores_in_order_and_do_not_meet() {
        let machine = machine();
        let all = machine.all_cpus();
        assert_eq!(share(&machine, &all, 1, 4), [2, 10, 3, 11]);
        for count in 1..40 {
            let shares: Vec<Vec<u32>> = (0..count).map(|position| share(&machine, &all, position, count)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()), "{count}");
            let mut met: Vec<u32> = shares.concat();
            met.sort_unstable();
            met.dedup();
            assert!(count > 16 || met.len() == 16 && shares.concat().len() == 16, "{count}");
        }
        assert_eq!(share(&machine, &set(&[3, 7, 11]), 0, 2), [3, 11], "what is allowed");
        assert!(share(&machine, &Cpus::new(), 0, 2).is_empty());
    }

    #[test]
    fn threads_are_packed_or_dealt() {
        let machine = machine();
        let all = machine.all_cpus();
        let mine = share(&machine, &all, 0, 1);
        let go = |pin: Pin, threads| masks(&pin, &machine, &all, &mine, threads);
        assert_eq!(go(Pin::Compact, 3), [set(&[0, 8]), set(&[1, 9]), set(&[2, 10])]);
        assert_eq!(go(Pin::Scatter, 5), [set(&[0, 8]), set(&[2, 10]), set(&[4, 12]), set(&[6, 14]), set(&[1, 9])]);
        assert_eq!(go(Pin::Compact, 9)[8], set(&[0, 8]), "more threads than cores go round");
        assert_eq!(go(Pin::Launcher, 3), Vec::<Cpus>::new());
        assert_eq!(go(Pin::Near("0000:17:00.0".into()), 3), Vec::<Cpus>::new(), "no such device");
    }

    #[test]
    fn near_a_device_is_the_nodes_that_it_hangs_at() {
        use super::super::machine::{Node, PciDevice, PciKind};
        let mut machine = machine();
        machine.nodes = vec![Node { number: 0, bytes: 1 }, Node { number: 1, bytes: 1 }];
        machine.devices = vec![PciDevice { address: "0000:17:00.0".into(), kind: PciKind::Gpu, nodes: vec![1] }];
        let pin = Pin::Near("0000:17:00.0".into());
        let found = masks(&pin, &machine, &set(&[0, 4, 5, 12]), &[0], 2);
        assert_eq!(found, [set(&[4, 5, 12]), set(&[4, 5, 12])], "not outside of what the job was given");
    }
}
